/* stream.c - a vector times a matrix in memory: a few rows of the matrix at a time are read from end to end, and the sums wait
 * in the first-level cache. Tile by tile, the same matrix would be read in short pieces, each on a page of its own. In and out:
 * scalar form with roles.
 *
 * Applies to kernels of the form: one row loop n (the lanes), accumulator, one contraction loop, epilogue, where the matrix is
 * contiguous along n and does not fit the first-level cache. The order of summation does not depend on how n is split. */
#include "kopt/kopt.h"

enum { ROWS = 8 /* of the matrix, read side by side */, MAX_SUMS = 64 << 10 /* bytes on the stack */ };

typedef struct streamer {
    kernel *k;
    kvar n, depth;
    int row, acc, contraction, end, upd; /* instructions */
    int sums;
    kernel out; /* only its instructions */
    reg *map;
} streamer;

static const kins *ins(const streamer *s, int i) { return &s->k->ins.at[i]; }

static bool recognise(streamer *s, const target *t) {
    const kernel *k = s->k;
    int i = 1;
    for (; i < k->ins.n && ins(s, i)->op != K_ACC; i++) {
        if (ins(s, i)->op == K_END || ins(s, i)->op == K_STORE || ins(s, i)->op == K_SCATTER) return false;
        if (ins(s, i)->op != K_LOOP) continue;
        if (s->row || !k->vars.at[ins(s, i)->var].row) return false;
        s->row = i;
    }
    s->acc = i;
    if (!s->row || i == k->ins.n) return false;
    s->n = ins(s, s->row)->var;
    for (i++; i < k->ins.n; i++) {
        if (ins(s, i)->op == K_ACC || ins(s, i)->op == K_ARGUPD || ins(s, i)->op == K_SCATTER) return false;
        if (ins(s, i)->op == K_LOOP) {
            if (s->contraction) return false;
            s->contraction = i;
        }
        if (ins(s, i)->op != K_UPD) continue;
        if (s->upd || ins(s, i)->alu != OP_dot || !s->contraction) return false;
        s->upd = i;
    }
    if (!s->upd || k->vars.at[s->n].role.lanes < 2) return false;
    s->depth = ins(s, s->contraction)->var;
    s->end = kopt_loop_end(k, s->contraction);
    const kins *a = ins(s, (int)ins(s, s->upd)->a), *b = ins(s, (int)ins(s, s->upd)->b);
    const kins *matrix = affine_coef(a->idx, s->n) ? a : b;
    if (a->op != K_LOAD || b->op != K_LOAD || matrix->n_mask || matrix->dyn || affine_coef(matrix->idx, s->n) != 1 ||
        (affine_coef(a->idx, s->n) && affine_coef(b->idx, s->n)))
        return false;
    int64_t depth = k->vars.at[s->depth].extent, width = k->vars.at[s->n].extent,
            size = (int64_t)dtype_size((tn_dtype)matrix->src);
    return s->upd < s->end && depth >= 4 * ROWS && affine_coef(matrix->idx, s->depth) >= width &&
           depth * width * size > t->l1_bytes && width * (int64_t)dtype_size((tn_dtype)ins(s, s->acc)->dtype) <= MAX_SUMS;
}

static kins place_of_sum(const streamer *s, kop op) {
    const kins *acc = ins(s, s->acc);
    return (kins){ .op = (uint8_t)op,
                   .dtype = acc->dtype,
                   .src = acc->dtype,
                   .buf = (uint16_t)s->sums,
                   .idx = affine_var(s->k->a, s->n),
                   .node = acc->node };
}

static void push(streamer *s, int i, const affine *depth) { /* instruction i once more, the contraction loop at *depth */
    kins in = *ins(s, i);
    in.a = s->map[in.a], in.b = s->map[in.b], in.c = s->map[in.c], in.dyn = s->map[in.dyn];
    if (depth) in.idx = affine_set_var(s->k->a, in.idx, s->depth, *depth);
    if (depth && in.n_mask) {
        in.mask = arena_copy(s->k->a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = affine_set_var(s->k->a, in.mask[m].e, s->depth, *depth);
    }
    s->map[i] = kernel_push(&s->out, in);
}

static void store_sum(streamer *s, reg value) {
    kins store = place_of_sum(s, K_STORE);
    store.a = value;
    kernel_push(&s->out, store);
}

static void clear_sums(streamer *s) {
    const kins *acc = ins(s, s->acc);
    push(s, s->row, NULL);
    store_sum(s, kernel_push(&s->out, (kins){ .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int }));
    kernel_push(&s->out, (kins){ .op = K_END });
}

/* sums += rows [first, first + count) */
static void add_rows(streamer *s, affine first, int64_t count) {
    const kins *acc = ins(s, s->acc);
    kvar inner = kernel_var(s->k, "k", count, false, true);
    affine depth = affine_add(s->k->a, first, affine_var(s->k->a, inner));
    for (int i = s->row; i <= s->acc; i++) push(s, i, NULL);
    kernel_push(&s->out, (kins){ .op = K_LOOP, .var = inner, .hi = count, .step = 1 });
    for (int i = s->acc + 1; i <= s->end; i++)
        if (i != s->contraction) push(s, i, &depth);
    reg old = kernel_push(&s->out, place_of_sum(s, K_LOAD));
    store_sum(s, kernel_push(&s->out, (kins){ .op = K_ALU,
                                              .alu = OP_add,
                                              .dtype = acc->dtype,
                                              .src = acc->dtype,
                                              .a = old,
                                              .b = s->map[s->acc],
                                              .node = acc->node }));
    kernel_push(&s->out, (kins){ .op = K_END });
}

void kopt_stream(kernel *k, const target *t) {
    streamer s = { .k = k };
    if (k->vars.n > 60 || !recognise(&s, t)) return;
    int64_t depth = k->vars.at[s.depth].extent;
    s.map = ARENA_ARRAY(k->a, reg, k->ins.n);
    s.sums = kernel_buf(k, (kbuf){ .dtype = ins(&s, s.acc)->dtype,
                                   .kind = KB_LOCAL,
                                   .node = ins(&s, s.acc)->node,
                                   .elems = k->vars.at[s.n].extent,
                                   .plan_buf = -1 });
    s.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &s.out.ins, (kins){ 0 });
    for (int i = 1; i < s.row; i++) push(&s, i, NULL);
    clear_sums(&s);
    kvar block = kernel_var(k, "kb", depth / ROWS, false, false);
    kernel_push(&s.out, (kins){ .op = K_LOOP, .var = block, .hi = depth / ROWS, .step = 1 });
    add_rows(&s, affine_scale(k->a, affine_var(k->a, block), ROWS), ROWS);
    kernel_push(&s.out, (kins){ .op = K_END });
    if (depth % ROWS) add_rows(&s, affine_const(depth - depth % ROWS), depth % ROWS);
    for (int i = s.row; i < k->ins.n; i++) {
        if (i == s.acc) s.map[i] = kernel_push(&s.out, place_of_sum(&s, K_LOAD));
        if (i < s.acc || i > s.end) push(&s, i, NULL);
    }
    k->ins.at = s.out.ins.at, k->ins.n = s.out.ins.n, k->ins.cap = s.out.ins.cap;
    k->vars.at[s.n].row = false; /* local memory is indexed by it */
    k->vars.at[s.n].role.unroll = 2;
    kopt_sweep(k);
}
