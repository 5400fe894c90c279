/* overlap.c - how a launch overlaps with the one before it (programmatic dependent launch): when it lets the next one begin,
 * what it does before it waits, and how it reads what others wrote.
 *
 * A kernel waits for the end of the launches before it (griddepcontrol.wait) and then lets the next one begin
 * (griddepcontrol.launch_dependents): once all its thread blocks have come so far, those of the next take the places that are
 * left, and ask for the first of their weights. What makes this right:
 * - It lets go only after it has waited. So all that is before a launch has ended when the next begins: two neighbours in a
 *   list are there at a time, never three. Let go at once, a third one would be there while the first still reads what the
 *   second writes: memory that is used again is planned for one launch after the other.
 * - Before it waits it touches nothing that a launch writes: buffers that are fixed (constants, states never assigned).
 * - What launches write is not read as constant memory. A compiler makes such loads of pointers that are const and restricted,
 *   and memory must then be constant while the kernel is there. So these pointers are restricted only where they are fixed. */
#include "emit/clike/clike.h"

/* Bytes of a thread's registers for what it asks for so early, at most. More are missed by what it computes: a token of a Llama
 * of 4 layers in 4 bits, an H200, us: without 149, with 128 bytes 141, 256 146, 384 173. */
enum { MOST_EARLY = 128 };

/* Bytes that a kernel reads of what it need not wait for, at least, for an early begin: launches themselves take longer with
 * one. Where every launch had it, a training step of GPT took 772 us for 600, one of the digits' 71 for 57. */
enum { LARGE = 4 << 20 };

bool clike_reads_constant(const kbuf *kb) { return kb->kind != KB_IN || kb->fixed; }

/* All that it does is in nests over thread blocks, and it reads much that it need not wait for. */
bool clike_begins_early(clike *e, const kernel *k) {
    int64_t bytes = 0;
    int blocks = 0; /* the end of a nest over them */
    if (!e->l->overlaps || k->params || k->cluster || k->turns) return false;
    e->k = k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_MMA || in->op == K_ASYNC) return false;
        if (in->op == K_LOOP && in->par == PAR_BLOCKS) {
            if (i > blocks) blocks = kernel_loop_end(k, i);
        } else if (i > blocks ? in->op == K_LOOP || kernel_has_buffer(in) : in->op == K_LOOP && !clike_turns(e, (reg)i)) {
            if (i > blocks) return false;
            i = kernel_loop_end(k, i);
        } else if (in->op == K_LOOP) { /* a nest that threads share evenly */
            for (int end = kernel_loop_end(k, i); i < end; i++)
                if (clike_early_bytes(e, (reg)i))
                    bytes += k->bufs.at[k->ins.at[i].buf].elems * (int64_t)dtype_size((tn_dtype)k->ins.at[i].src);
        }
    }
    return bytes >= LARGE;
}

/* What a kernel reads of launches before it, it reads at addresses that are known when these have ended: a compiler takes
 * memory that is only read for constant, and might read it earlier. */
void clike_wait(clike *e, str *out) {
    str_add(out, "    const int zero = wait_on_dependencies();");
    for (int b = 0; b < e->k->bufs.n; b++)
        if (!kbuf_is_local(&e->k->bufs.at[b]) && !e->k->bufs.at[b].fixed) str_addf(out, " b%d += zero;", b);
    str_add(out, e->next_early ? " launch_dependents();\n" : "\n");
}

/* The first loads of a thread's share of the nest: not by ld.global.nc, which ptxas moves behind the wait. */
static void load_early(clike *e, reg nest, int turns, int64_t *left) {
    reg end = (reg)kernel_loop_end(e->k, (int)nest);
    const char *turn = turns > 1 ? arena_printf(e->out->a, "t%u", nest) : "0";
    bool any = false;
    for (reg r = nest; r < end; r++) {
        int64_t bytes = clike_early_bytes(e, r) * turns;
        if (!bytes || bytes > *left) continue;
        *left -= bytes, any = true, e->early[r] = turn;
        clike_declare_early(e, r, turns);
    }
    if (!any) return;
    clike_instruction(e, nest);
    for (reg r = nest; r < end; r++)
        if (e->early[r]) clike_load_early(e, r);
    clike_instruction(e, end);
}

void clike_open_nest(clike *e, reg inner) {
    int64_t left = MOST_EARLY;
    for (reg r = inner + 1; e->k->ins.at[r].op != K_END; r++) {
        if (e->k->ins.at[r].op != K_LOOP) continue;
        int turns = clike_turns(e, r);
        if (turns) load_early(e, r, turns, &left);
        r = (reg)kernel_loop_end(e->k, (int)r);
    }
    clike_wait(e, e->out);
}
