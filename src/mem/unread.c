/* unread.c - results of kernels that nothing reads are not stored: such a value was several kernels' operand before all of them
 * became one, which has it in a register.
 *
 * In: scalar kernels and steps, all copies included. Out: their stores go, where another one stands in the same loop; nothing
 * lives in their buffers any more. */
#include "loop/loop.h"
#include "mem/inplace.h"
#include "mem/mem.h"

/* What a step or a kernel reads, a window moves over, or several kernels write. */
static bool *find_read(const plan *p) {
    bool *read = ARENA_ARRAY(p->a, bool, p->bufs.n + 1), *written = ARENA_ARRAY(p->a, bool, p->bufs.n + 1);
    for (int b = 0; b < p->bufs.n; b++) {
        read[b] |= p->bufs.at[b].kind != PB_TEMP;
        if (p->bufs.at[b].kind == PB_WINDOW) read[p->bufs.at[b].window_of] = true;
    }
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *s = &p->steps.at[i];
        if (pstep_is_conditional(s)) read[s->cond] = true;
        if (s->kind == PSTEP_REPEAT && s->times && s->count >= 0) read[s->count] = true;
    }
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++) {
            int32_t buf = pk->args[b].buf;
            if (buf < 0) continue;
            read[buf] |= written[buf] || pk->k->bufs.at[b].kind != KB_OUT;
            written[buf] = true;
        }
    }
    return read;
}

/* The stores to buffer b become nothing; false if one of them is alone in its loop, or something else uses the buffer. */
static bool drop_stores(kernel *k, int b) {
    int *loop = ARENA_ARRAY(k->a, int, k->ins.n), *open = ARENA_ARRAY(k->a, int, k->ins.n), depth = 0;
    bool *others = ARENA_ARRAY(k->a, bool, k->ins.n); /* [loops] have another store */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) open[++depth] = i;
        if (in->op == K_END) depth--;
        loop[i] = depth > 0 ? open[depth] : 0;
        if (kernel_has_buffer(in) && in->buf == b && in->op != K_STORE) return false;
        others[loop[i]] |= in->op == K_STORE && in->buf != b;
    }
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_STORE && k->ins.at[i].buf == b && !others[loop[i]]) return false;
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_STORE && k->ins.at[i].buf == b) k->ins.at[i].op = K_NIL;
    loop_compact(k);
    loop_sweep(k);
    return true;
}

void mem_unread(plan *p) {
    const bool *read = find_read(p);
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++) {
            int32_t buf = pk->args[b].buf;
            if (buf < 0 || read[buf] || !drop_stores(pk->k, b)) continue;
            pk->k->bufs.at[b].kind = KB_LOCAL, pk->k->bufs.at[b].elems = 0; /* an empty one */
            pk->args[b].buf = -1;
            p->bufs.at[buf].bytes = p->bufs.at[buf].elems = 0; /* nothing lives there */
            kernel_count_traffic(pk->k);
        }
    }
}
