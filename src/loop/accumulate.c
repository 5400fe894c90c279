/* accumulate.c - sums wait in memory: some rows of a matrix at a time are read from end to end and multiplied by a few vectors
 * (GEMV, skinny GEMM). Tile by tile, the same matrix would be read in short pieces, each on a page of its own. In and out:
 * scalar form with roles.
 *
 * Applies to kernels of the form: row loop m (or none, for one vector), row loop n (the lanes), accumulator, contraction loops,
 * epilogue, where the matrix is contiguous along n. It becomes: outer contraction loops (groups of rows), pieces of the
 * innermost one, n, m. Each piece goes on from the sums of the one before: every bit is that of one loop. */
#include "loop/build.h"
#include "loop/contraction.h"
#include "loop/loop.h"
#include "loop/schedule.h"

enum { MOST_LOCAL = 1 << 20 /* bytes of sums */ };

typedef struct accumulator {
    contraction c;
    kvar m, depth;  /* m: -1 for one vector; depth: the innermost contraction loop */
    kvar outer[8];  /* loops that stand for the others */
    int inner;      /* instruction: the innermost contraction loop */
    int64_t rows;   /* of the matrix, read side by side */
    int64_t stride; /* elements from one vector's sums to the next one's */
    int row;        /* instruction: the first row loop */
    int sums;
    kernel out; /* only its instructions */
    reg *map;
} accumulator;

static int64_t extent_of(const accumulator *s, kvar v) { return v >= 0 ? contraction_extent(&s->c, v) : 1; }

/* ---- writing ---- */

static void push(accumulator *s, int i, const affine *depth) { /* instruction i once more, the contraction loop at *depth */
    kins in = *contraction_ins(&s->c, i);
    in.a = s->map[in.a], in.b = s->map[in.b], in.c = s->map[in.c], in.dyn = s->map[in.dyn];
    if (depth) build_set_var(s->c.k->a, &in, s->depth, *depth);
    for (int d = 0; depth && d < s->c.depth.n - 1; d++)
        build_set_var(s->c.k->a, &in, s->c.depth.at[d], affine_var(s->c.k->a, s->outer[d]));
    s->map[i] = kernel_push(&s->out, in);
}

static void open_loop(accumulator *s, kvar v) {
    kernel_push(&s->out, (kins){ .op = K_LOOP, .var = v, .hi = extent_of(s, v), .step = 1 });
}

/* n, m, and what was hoisted in front of the accumulator. */
static void open_rows(accumulator *s, bool hoisted) {
    open_loop(s, s->c.n);
    if (s->m >= 0) open_loop(s, s->m);
    for (int i = s->row; i < s->c.acc && hoisted; i++)
        if (contraction_ins(&s->c, i)->op != K_LOOP) push(s, i, NULL);
}
static void close_rows(accumulator *s) {
    build_ends(&s->out, 1);
    if (s->m >= 0) build_ends(&s->out, 1);
}

static kins access_sum(const accumulator *s, kop op) {
    const kins *acc = contraction_ins(&s->c, s->c.acc);
    affine place = affine_var(s->c.k->a, s->c.n);
    if (s->m >= 0) place = build_plus(s->c.k->a, place, affine_var(s->c.k->a, s->m), s->stride);
    return (kins){
        .op = (uint8_t)op, .dtype = acc->dtype, .src = acc->dtype, .buf = (uint16_t)s->sums, .idx = place, .node = acc->node
    };
}

static void store_sum(accumulator *s, reg value) {
    kins store = access_sum(s, K_STORE);
    store.a = value;
    kernel_push(&s->out, store);
}

static void clear_sums(accumulator *s) {
    const kins *acc = contraction_ins(&s->c, s->c.acc);
    open_rows(s, false);
    store_sum(s, kernel_push(&s->out, (kins){ .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int }));
    close_rows(s);
}

/* The sums go on over rows [first, first + count). */
static void add_rows(accumulator *s, affine first, int64_t count) {
    const kins *acc = contraction_ins(&s->c, s->c.acc);
    kvar inner = kernel_var(s->c.k, "k", count, false, true);
    affine depth = affine_add(s->c.k->a, first, affine_var(s->c.k->a, inner));
    kins add = { .op = K_UPD, .alu = OP_add, .dtype = acc->dtype, .src = acc->dtype, .node = acc->node };
    open_rows(s, true);
    push(s, s->c.acc, NULL);
    add.a = kernel_push(&s->out, access_sum(s, K_LOAD)), add.c = s->map[s->c.acc];
    kernel_push(&s->out, add);
    for (int i = s->c.acc + 1, end = kernel_loop_end(s->c.k, s->inner); i <= s->c.end; i++) {
        const kins *in = contraction_ins(&s->c, i);
        if (i == s->inner)
            open_loop(s, inner);
        else if (in->op != K_LOOP && (in->op != K_END || i == end))
            push(s, i, &depth);
    }
    store_sum(s, s->map[s->c.acc]);
    close_rows(s);
}

static void finish(accumulator *s) {
    open_rows(s, true);
    s->map[s->c.acc] = kernel_push(&s->out, access_sum(s, K_LOAD));
    for (int i = s->c.end + 1; i < s->c.k->ins.n; i++) push(s, i, NULL); /* with the ENDs of the rows */
}

/* ---- the step ---- */

bool step_accumulate(kernel **kk, const loop_step *st, str *why) {
    kernel *k = *kk;
    accumulator s = { .m = -1 };
    if (k->vars.n > 50) return step_refuse(why, "the kernel has %d loops; the limit is 50", k->vars.n);
    if (!contraction_find(k, &s.c) || !contraction_matrix(&s.c))
        return step_refuse(why, "the kernel is not a matrix, contiguous along the lanes, times vectors");
    kvar v = step_loop(k, st, 0, why);
    if (v < 0) return false;
    s.depth = s.c.depth.at[s.c.depth.n - 1];
    if (v != s.depth) return step_refuse(why, "%s is not the innermost contraction loop", st->arg[0].word);
    for (s.inner = s.c.first; k->ins.at[s.inner].op != K_LOOP || k->ins.at[s.inner].var != s.depth;) s.inner++;
    if (s.c.rows.n) s.m = s.c.rows.at[0];
    int64_t depth = extent_of(&s, s.depth), width = extent_of(&s, s.c.n), sum = contraction_sum_size(&s.c), bytes;
    s.rows = st->arg[1].n, s.stride = step_option(st, "stride", width);
    if (s.rows < 1 || s.rows > depth)
        return step_refuse(why, "%lld of the %lld rows of the matrix at a time", (long long)s.rows, (long long)depth);
    if (s.stride < width) return step_refuse(why, "sums of one vector have %lld elements", (long long)width);
    if (!size_mul(s.stride, sum * extent_of(&s, s.m), &bytes) || bytes > MOST_LOCAL)
        return step_refuse(why, "the sums have more than %d KiB", MOST_LOCAL >> 10);
    for (s.row = 1; k->ins.at[s.row].op != K_LOOP;) s.row++;
    int64_t rest = depth % s.rows;
    kbuf sums = { .dtype = k->ins.at[s.c.acc].dtype, .kind = KB_LOCAL, .node = k->ins.at[s.c.acc].node, .plan_buf = -1 };
    sums.elems = s.stride * extent_of(&s, s.m);
    s.sums = kernel_buf(k, sums);
    s.map = ARENA_ARRAY(k->a, reg, k->ins.n);
    s.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &s.out.ins, (kins){ 0 });
    for (int i = 1; i < s.row; i++) push(&s, i, NULL);
    clear_sums(&s);
    for (int i = 0; i < s.c.depth.n - 1; i++)
        open_loop(&s, s.outer[i] = kernel_var(k, "ks", extent_of(&s, s.c.depth.at[i]), false, false));
    kvar piece = kernel_var(k, "kb", depth / s.rows, false, false);
    open_loop(&s, piece);
    add_rows(&s, build_times(k->a, piece, s.rows), s.rows);
    build_ends(&s.out, 1);
    if (rest) add_rows(&s, affine_const(depth - rest), rest);
    build_ends(&s.out, s.c.depth.n - 1);
    finish(&s);
    k->ins.at = s.out.ins.at, k->ins.n = s.out.ins.n, k->ins.cap = s.out.ins.cap;
    k->vars.at[s.c.n].row = false; /* local memory is indexed by them */
    if (s.m >= 0) k->vars.at[s.m].row = false;
    loop_sweep(k);
    return true;
}
