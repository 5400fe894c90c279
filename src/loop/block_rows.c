/* block_rows.c - a loop whose extent is given at run time becomes blocks of rows with literal sizes, which are tiled as nests
 * of any other kernel (nests.c): as many blocks of n rows as there are, then at most one of n/2, n/4 .. 1 rows. In and out:
 * scalar form; nothing but that extent and the lengths of buffers may be a parameter. */
#include "loop/build.h"
#include "loop/schedule.h"

enum { MOST_ROWS = 1024 };

typedef struct pieces {
    const kernel *k;
    kernel *o;
    int loop;   /* instruction */
    kvar v, of; /* its variable; that of the blocks */
} pieces;

/* Loops over rows around everything, one directly in the other, down to that of v. Returns its instruction, or 0. */
static int find_loop(const kernel *k, kvar v) {
    for (int i = 1, end = k->ins.n - 1; i < end; i++, end--) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP || kernel_loop_end(k, i) != end || !k->vars.at[in->var].row || in->lo != 0 || in->step != 1)
            return 0;
        if (in->var == v) return in->hi == k->vars.at[v].extent ? i : 0;
    }
    return 0;
}

/* Blocks lo .. hi - 1 of `rows` rows, each `apart` rows behind the one before: all other loops are inside of that over the rows
 * of a block. Variables are its own. */
static void put_piece(pieces *w, ext lo, ext hi, int64_t rows, int64_t apart) {
    const kernel *k = w->k;
    kernel *o = w->o;
    reg *at = ARENA_ARRAY(k->a, reg, k->ins.n);
    kvar *to = ARENA_ARRAY(k->a, kvar, k->vars.n);
    for (kvar v = 0; v < k->vars.n; v++) to[v] = kernel_var_like(o, &k->vars.at[v]);
    kvar row = to[w->v];
    o->vars.at[row].extent = rows;
    affine value = build_plus(k->a, affine_var(k->a, row), affine_var(k->a, w->of), apart);
    build_open(o, w->of, lo, hi, PAR_SERIAL);
    build_open(o, row, 0, rows, PAR_SERIAL);
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        if (i == w->loop || i == kernel_loop_end(k, w->loop)) continue;
        build_operands(&in, at);
        if (in.op == K_LOOP) in.var = to[in.var];
        build_rename(k->a, &in, to);
        if (kernel_touches(&in) && kbuf_is_local(&k->bufs.at[in.buf]))
            in.idx = affine_without(k->a, in.idx, row); /* nests.c
                                         numbers its copies */
        build_set_var(k->a, &in, row, value);
        at[i] = kernel_push(o, in);
    }
    build_ends(o, 2);
}

/* A block behind `blocks` of m rows each, where exactly `rows` are left: that is where the blocks of m rows which begin within
 * the first extent + m - rows are one more than those which do so within one row less. */
static void put_rest(pieces *w, ext extent, ext blocks, int64_t rows, int64_t m) {
    exts *t = w->k->params;
    ext with = ext_floor_div(t, ext_add(t, extent, m - rows), m), less = ext_floor_div(t, ext_add(t, extent, m - rows - 1), m);
    put_piece(w, ext_max(t, blocks, less), with, rows, m);
}

bool step_block_rows(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int64_t rows = s->arg[1].n, exact = step_option(s, "exact", 1);
    if (v < 0) return false;
    const char *name = s->arg[0].word;
    if (!k->params || ext_is_lit(k->vars.at[v].extent))
        return step_refuse(why, "%s has as many iterations in every run: the step split is for such loops", name);
    ext extent = k->vars.at[v].extent;
    if (rows < 1 || rows > MOST_ROWS || (rows & (rows - 1)) || rows > ext_hi(k->params, extent))
        return step_refuse(why, "blocks of %lld of at most %lld rows; a power of two of them up to %d is possible",
                           (long long)rows, (long long)ext_hi(k->params, extent), MOST_ROWS);
    pieces w = { .k = k, .v = v, .loop = find_loop(k, v) };
    if (!w.loop) return step_refuse(why, "%s is not one of the loops over rows around everything", name);
    const char *other = build_other_params(k, v);
    if (other) return step_refuse(why, "%s has a size that is given at run time, too", other);
    if (exact < 1 || exact > rows || (exact & (exact - 1)))
        return step_refuse(why, "the rows that are left are less than %lld: a power of two up to %lld is possible",
                           (long long)exact, (long long)rows);
    if (exact > 1 && ext_lo(k->params, extent) < 1) return step_refuse(why, "there may be no rows at all");
    int n = 1;
    for (int64_t r = rows; r > exact; r /= 2) n++;
    if ((n + exact - 1) * k->vars.n + 1 > MAX_LOOPS)
        return step_refuse(why, "blocks of %lld rows take %lld loops; the limit is %d", (long long)rows,
                           (long long)((n + exact - 1) * k->vars.n + 1), MAX_LOOPS);
    w.o = kernel_make(k->a, k->name);
    w.o->params = k->params, w.o->par_var = -1;
    w.o->flops = k->flops, w.o->bytes_read = k->bytes_read, w.o->bytes_written = k->bytes_written;
    for (int b = 0; b < k->bufs.n; b++) VEC_PUSH(k->a, &w.o->bufs, k->bufs.at[b]);
    w.of = kernel_var(w.o, "rb", extent, true, false);
    w.o->vars.at[w.of].block = true;
    ext *of = ARENA_ARRAY(k->a, ext, n); /* of[i]: blocks of exact * 2^i rows */
    of[0] = extent;
    for (int64_t r = 1; r < exact; r *= 2) of[0] = ext_floor_div(k->params, of[0], 2);
    for (int i = 1; i < n; i++) of[i] = ext_floor_div(k->params, of[i - 1], 2);
    int64_t divisor = ext_divisor(k->params, extent);
    put_piece(&w, 0, of[n - 1], rows, rows);
    for (int i = n - 2; i >= 0; i--) { /* none where the extent is always a multiple of as many */
        ext lo = ext_mul(k->params, of[i + 1], 2);
        if (lo != of[i] && divisor % (exact << (i + 1))) put_piece(&w, lo, of[i], exact << i, exact << i);
    }
    for (int64_t r = exact - 1; r > 0; r--)
        if (r % divisor == 0 || exact % divisor) put_rest(&w, extent, of[0], r, exact);
    *kk = w.o;
    return true;
}
