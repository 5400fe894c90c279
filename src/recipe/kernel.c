/* kernel.c - the schedule of a kernel by its target. */
#include "loop/bind_rows.h"
#include "loop/build.h"
#include "loop/cut.h"
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"

#include <math.h>

/* The recipe's schedule first: what was measured must have its bits. */
static kernel *by_recipe(kernel *k, const target *t, const char *measured, recipe_made *out) {
    kernel *scalar = measured ? kernel_clone(k, k->a) : NULL;
    kernel *made = (t->kind == TARGET_GPU ? recipe_gpu : recipe_cpu)(k, t, &out->schedule);
    if (!measured) return made;
    kernel *other = recipe_tuned(scalar, t, out->schedule, measured, &out->schedule, &out->ignored);
    if (other) out->tuned = measured;
    return other ? other : made;
}

static kernel *literal(kernel *k, const target *t, const schedule *given, const char *measured, recipe_made *out) {
    if (given) return schedule_apply(k, given, t, &out->schedule);
    return by_recipe(k, t, measured, out);
}

/* A machine of more units takes smaller tiles: on one as much larger as the square root of a sixteenth of the range of results,
 * up to 64 times, small sizes have thread blocks for most units of the real one, and the largest sizes lose little. On an H200,
 * the geometric mean of the time of special programs over its own, over 30 sizes each: an MLP for 1 to 64 rows 1.02 so (2 times
 * as many units), 0.96 for 4 times; a transformer for 1 to 32768 rows 0.93 so (32 times), 0.69 for 8 times, though its largest
 * sizes take 1.02 and not 0.85 then. */
static target for_range(const kernel *k, const target *t) {
    target many = *t;
    int bits = 0;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op == K_LOOP; i++) {
        int64_t least = ext_lo(k->params, k->ins.at[i].hi), most = ext_hi(k->params, k->ins.at[i].hi);
        if (k->vars.at[k->ins.at[i].var].reduce) continue;
        for (int64_t n = least < 1 ? 1 : least; n <= most / 2; n *= 2) bits++;
    }
    int more = bits < 4 ? 0 : bits < 16 ? (bits - 4) / 2 : 6;
    many.resident_threads <<= more, many.bulk = false; /* boxes are of matrices of literal sizes */
    return many;
}

bool recipe_takes(const kernel *k, const target *t) {
    recipe_made made = { 0 };
    if (k->params) recipe_kernel(kernel_clone(k, k->a), t, NULL, &made);
    return !k->params || made.schedule;
}

bool recipe_has_scores(const kernel *k) {
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL && !ext_is_lit(k->bufs.at[b].elems)) return true;
    return false;
}

static kernel *in_tiles(const kernel *k, const target *t, recipe_made *out) {
    recipe r = recipe_make(kernel_clone(k, k->a), t);
    recipe_form form = { .cost = INFINITY };
    if (!recipe_attention(k, t, &form)) return NULL;
    recipe_do_all(&r, form.steps);
    recipe_try(&r, "hoist");
    recipe_do(&r, "dce");
    out->schedule = r.s;
    return r.k;
}

/* Sums of columns over as many rows as a run has, which cost less at the most rows than a thread block a column does. */
static kernel *in_columns(const kernel *k, const target *t, double cost, recipe_made *out) {
    recipe r = recipe_make(kernel_clone(k, k->a), t);
    recipe_form form = { .cost = cost };
    target plain = *t;
    plain.no_panels = PANELS_NEVER;
    recipe_fuse_loops(&r);
    r.k = gpu_compacted(r.k);
    if (!recipe_reduce_columns(kernel_at_most(r.k, k->a), &plain, &form) || !recipe_try(&r, "%s", form.steps)) return NULL;
    recipe_try(&r, "hoist");
    recipe_do(&r, "dce");
    out->schedule = r.s;
    return r.k;
}

static bool sums_columns(const schedule *s) {
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == STEP_reduce_columns) return true;
    return false;
}

/* Kernels for GPUs with sizes that a run gives: as loop/cut.h says. */
static kernel *of_params(kernel *k, const target *t, const schedule *given, const char *measured, recipe_made *out) {
    enum { BLOCK_THREADS = 128 };
    if (given && recipe_has_scores(k)) return schedule_apply(k, given, t, &out->schedule);
    kernel *tiles = recipe_has_scores(k) ? in_tiles(k, t, out) : NULL;
    if (tiles) return tiles;
    recipe r = recipe_make(kernel_clone(k, k->a), t);
    recipe_fuse_rows(&r);
    target many = for_range(r.k, t);
    kernel *most = loop_most(r.k), *made = most ? literal(most, &many, given, measured, out) : NULL,
           *cut = made ? loop_cut(r.k, made) : NULL;
    if (cut) return cut;
    if (given && sums_columns(given)) return schedule_apply(k, given, t, &out->schedule);
    if (given)
        guard_fail(k->a->gd, TN_ERR_INVAL,
                   "schedule @%s: a run gives other sizes of the kernel than its rows: no step takes it", given->name);
    *out = (recipe_made){ 0 };
    if ((tiles = in_tiles(k, t, out))) return tiles;
    double cost;
    kernel *row = r.k;
    target wide = *t;
    if (!gpu_outer_loops(row)) { /* a sum of everything: one row, of as many threads as a block may have */
        row = kernel_clone(row, k->a), build_around(row, kernel_var(row, "one", 1, false, false), 1);
        if (wide.max_block_threads > wide.block_threads) wide.block_threads = wide.max_block_threads;
    }
    int threads = recipe_threads_of_rows(kernel_at_most(row, row->a), &wide, &cost);
    kernel *columns = in_columns(r.k, t, cost, out), *rows = !columns && threads ? loop_bind_rows(row, threads) : NULL;
    if (columns) return columns;
    if (rows) return rows;
    return loop_bind_params(k, t->block_threads < BLOCK_THREADS ? t->block_threads : BLOCK_THREADS, t->resident_threads);
}

kernel *recipe_kernel(kernel *k, const target *t, const char *measured, recipe_made *out) {
    recipe_made made = { 0 };
    if (measured && !strcmp(measured, RECIPE_ITSELF)) measured = NULL;
    const schedule *given = schedule_find(t->schedules, k->name);
    bool cut = k->params && t->kind == TARGET_GPU;
    k = (cut ? of_params : literal)(k, t, given, measured, &made);
    if (out) *out = made;
    return k;
}
