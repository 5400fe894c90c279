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
    build_copier copy;
    build_places whole; /* as they are */
} accumulator;

static int64_t extent_of(const accumulator *s, kvar v) { return v >= 0 ? contraction_extent(&s->c, v) : 1; }

/* ---- writing ---- */

static void open_loop(accumulator *s, kvar v) {
    kernel_push(&s->out, (kins){ .op = K_LOOP, .var = v, .hi = extent_of(s, v), .step = 1 });
}

/* n, m, and what was hoisted in front of the accumulator. */
static void open_rows(accumulator *s, bool hoisted) {
    open_loop(s, s->c.n);
    if (s->m >= 0) open_loop(s, s->m);
    for (int i = s->row; i < s->c.acc && hoisted; i++)
        if (contraction_ins(&s->c, i)->op != K_LOOP) build_copy(&s->copy, i, &s->whole);
}
static void close_rows(accumulator *s) {
    build_ends(&s->out, 1);
    if (s->m >= 0) build_ends(&s->out, 1);
}

static affine sum_place(const accumulator *s) {
    affine place = affine_var(s->c.k->a, s->c.n);
    return s->m < 0 ? place : build_plus(s->c.k->a, place, affine_var(s->c.k->a, s->m), s->stride);
}

static void clear_sums(accumulator *s) {
    open_rows(s, false);
    contraction_clear_sum(&s->c, &s->out, s->sums, sum_place(s));
    close_rows(s);
}

/* The sums go on over rows [first, first + count). */
static void add_rows(accumulator *s, affine first, int64_t count) {
    arena *a = s->c.k->a;
    kvar inner = kernel_var(s->c.k, "k", count, false, true);
    build_places piece = { .n = 0 };
    build_put(&piece, s->depth, affine_add(a, first, affine_var(a, inner)));
    for (int d = 0; d < s->c.depth.n - 1; d++) build_put(&piece, s->c.depth.at[d], affine_var(a, s->outer[d]));
    open_rows(s, true);
    contraction_resume_sum(&s->c, build_copy(&s->copy, s->c.acc, &s->whole), &s->out, s->sums, sum_place(s));
    for (int i = s->c.acc + 1, end = kernel_loop_end(s->c.k, s->inner); i <= s->c.end; i++) {
        const kins *in = contraction_ins(&s->c, i);
        if (i == s->inner)
            open_loop(s, inner);
        else if (in->op != K_LOOP && (in->op != K_END || i == end))
            build_copy(&s->copy, i, &piece);
    }
    contraction_store_sum(&s->c, &s->out, s->sums, sum_place(s), s->copy.to[s->c.acc]);
    close_rows(s);
}

static void finish(accumulator *s) {
    open_rows(s, true);
    s->copy.to[s->c.acc] = contraction_load_sum(&s->c, &s->out, s->sums, sum_place(s));
    for (int i = s->c.end + 1; i < s->c.k->ins.n; i++) build_copy(&s->copy, i, &s->whole); /* with the ENDs of the rows */
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
    s.sums = contraction_sums(&s.c, s.stride * extent_of(&s, s.m));
    s.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &s.out.ins, (kins){ 0 });
    s.copy = build_copier_make(k, &s.out);
    for (int i = 1; i < s.row; i++) build_copy(&s.copy, i, &s.whole);
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
