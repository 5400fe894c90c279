/* shares.c - the text of launches whose thread blocks share out many nests (sched/horizontal_fusion.c).
 *
 * A processor fetches the instructions that its thread blocks come to, and what is far apart it waits for each time: by a chain
 * of conditions, one for each nest, a thread block passed by all of them. So it finds its nest by halves, and nests that are
 * the same but for their buffers are written once: the thread block's number says which buffers it has. (An H200: a step of a
 * transformer 372 to 364 us by halves.)
 */
#include "emit/clike/clike.h"

enum { FEW_SHARES = 4, MOST_SHARES = 64 };

typedef struct share { /* instructions of some of the thread blocks, from `block` on, up to where the next one's begin */
    reg from;
    int64_t block;
    kernel *alone; /* by itself, */
    int *bufs;     /* [alone's bufs] which of the kernel those are */
    int same;      /* so many from here on are equal but for their buffers */
} share;

static affine moved(arena *a, affine x, kvar by) {
    kterm *t = ARENA_ARRAY(a, kterm, x.n);
    for (int i = 0; i < x.n; i++) t[i] = (kterm){ x.t[i].var - by, x.t[i].coef };
    return (affine){ x.base, x.n, t };
}

/* The share as a kernel of its own, to be compared; loops tell the rest apart. */
static void take_out(const kernel *k, share *s, reg to) {
    arena *a = k->a;
    kernel *o = s->alone = kernel_make(a, "");
    int *own = ARENA_ARRAY(a, int, k->bufs.n + 1);
    kvar first = k->vars.n, last = -1;
    s->bufs = ARENA_ARRAY(a, int, k->bufs.n + 1);
    for (reg r = s->from; r < to; r++) {
        if (k->ins.at[r].op != K_LOOP) continue;
        if (k->ins.at[r].var < first) first = k->ins.at[r].var;
        if (k->ins.at[r].var > last) last = k->ins.at[r].var;
    }
    for (kvar v = first; v <= last; v++) kernel_var_like(o, &k->vars.at[v]);
    for (reg r = s->from; r < to; r++) {
        kins in = k->ins.at[r];
        reg *reads[] = { &in.a, &in.b, &in.c, &in.dyn };
        for (size_t i = 0; i < COUNT_OF(reads); i++) *reads[i] -= *reads[i] ? s->from - 1 : 0;
        if (in.op == K_LOOP) in.var -= first, in.imm_int = in.par;
        in.idx = moved(a, in.idx, first);
        if (in.n_mask) in.mask = arena_copy(a, in.mask, sizeof *in.mask * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = moved(a, in.mask[m].e, first);
        if (kernel_has_buffer(&in)) {
            if (!own[in.buf]) s->bufs[o->bufs.n] = in.buf, own[in.buf] = kernel_buf(o, k->bufs.at[in.buf]) + 1;
            in.buf = (uint16_t)(own[in.buf] - 1);
        }
        kernel_push(o, in);
    }
}

/* 0: thread blocks share out few nests, or some values are for several of these. out: [MOST_SHARES + 1] */
static int find_shares(const kernel *k, share *out) {
    int n = 0;
    for (int i = 1, from = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP) continue;
        if (!in->n_blocks || n == MOST_SHARES || (n && in->first_block < out[n - 1].block)) return 0;
        if (!n || out[n - 1].block < in->first_block) out[n++] = (share){ .from = (reg)from, .block = in->first_block };
        from = (i = kernel_loop_end(k, i)) + 1;
    }
    if (n < FEW_SHARES) return 0;
    out[n] = (share){ .from = (reg)k->ins.n, .block = k->grid_blocks };
    for (int s = 0; s < n; s++)
        for (reg r = out[s].from; r < out[s + 1].from; r++) {
            const kins *in = &k->ins.at[r];
            const reg reads[] = { in->a, in->b, in->c, in->dyn };
            for (size_t i = 0; i < COUNT_OF(reads); i++)
                if (reads[i] && reads[i] < out[s].from) return 0;
        }
    for (int s = 0; s < n; s++) take_out(k, &out[s], out[s + 1].from);
    for (int s = n - 1; s >= 0; s--) {
        bool as_next = s + 1 < n && out[s + 1].block - out[s].block == out[s + 2].block - out[s + 1].block &&
                       kernel_equal(out[s].alone, out[s + 1].alone);
        out[s].same = as_next ? out[s + 1].same + 1 : 1;
    }
    return n;
}

static void print_from(clike *e, const share *s) {
    for (reg r = s->from; r < s[1].from; r++) clike_instruction(e, r);
}

/* The first of several that are equal, with the buffers of the one that the thread block's number says. */
static void print_same(clike *e, const share *s, int n) {
    const kernel *k = e->k;
    long long blocks = (long long)(s[1].block - s->block), first = (long long)s->block;
    clike_line(e), str_addf(e->out, "const int which = ((int)group - %lld) / %lld, own = (int)group - which * %lld;\n", first,
                            blocks, blocks);
    for (int pass = 0; pass < 2; pass++) {
        for (int b = 0; b < s->alone->bufs.n; b++) {
            const kbuf *kb = &k->bufs.at[s->bufs[b]];
            bool differs = false;
            for (int i = 1; i < n; i++) differs |= s[i].bufs[b] != s->bufs[b];
            if (kbuf_is_local(kb) || !differs) continue;
            clike_line(e);
            str_addf(e->out, "%s%s%s *const %s%d = ", e->l->global, kb->kind == KB_IN ? "const " : "",
                     clike_memory_type((tn_dtype)kb->dtype), pass ? "b" : "own", s->bufs[b]);
            for (int i = 0; i < n - 1 && !pass; i++) str_addf(e->out, "which == %d ? b%d : ", i, s[i].bufs[b]);
            str_addf(e->out, pass ? "own%d;\n" : "b%d;\n", pass ? s->bufs[b] : s[n - 1].bufs[b]);
        }
        if (pass) continue;
        clike_line(e), str_add(e->out, "{\n");
        e->indent++;
        clike_line(e);
        str_addf(e->out, "const %s group = own, thread = group * %d + tid; (void)thread;\n", e->index, k->block_threads);
    }
    print_from(e, s);
    e->indent--, clike_line(e), str_add(e->out, "}\n");
}

/* Of at[i] those that begin a run of equal ones. */
static void print_halves(clike *e, const share *const *at, int n) {
    int bases = e->bases.n;
    if (n == 1) {
        if (at[0]->same > 1)
            print_same(e, at[0], at[0]->same);
        else
            print_from(e, at[0]);
        return;
    }
    clike_line(e), str_addf(e->out, "if (group < %lld) {\n", (long long)at[n / 2]->block);
    e->indent++, print_halves(e, at, n / 2), e->indent--, e->bases.n = bases;
    clike_line(e), str_add(e->out, "} else {\n");
    e->indent++, print_halves(e, at + n / 2, n - n / 2), e->indent--, e->bases.n = bases;
    clike_line(e), str_add(e->out, "}\n");
}

bool clike_shares(clike *e) {
    share *at = ARENA_ARRAY(e->out->a, share, MOST_SHARES + 2);
    const share *runs[MOST_SHARES];
    int n = e->k->params || e->k->turns || e->bulk.stages || e->bulk.maps.n ? 0 : find_shares(e->k, at), n_runs = 0;
    for (int s = 0; s < n; s += at[s].same) runs[n_runs++] = &at[s];
    if (n) print_halves(e, runs, n_runs);
    return n > 0;
}
