/* short_rows.c - rows of contractions of few steps to few columns, with sums and maxima over those between or behind them, such
 * as attention of few keys as it is trained, or its gradient: tiles of thread blocks have whole rows in registers.
 *
 * In: scalar form, whole rows. What decides: the cost model, of each shape that is possible. */
#include "loop/gpu_bind.h"
#include "machine/cost.h"
#include "recipe/recipe.h"

#include <math.h>

#define MEASURED 1.3 /* times what machine/cost.h says, of small kernels on an H200 */

/* A contraction of few steps to few columns, and rows that are combined behind it: its registers hold a row. */
static bool has_short_rows(const kernel *k, int n) {
    enum { MOST = 128 };
    bool product = false, combined = false;
    for (int i = 1 + n; i < k->ins.n - n; i++) {
        const kins *loop = &k->ins.at[i];
        if (loop->op != K_LOOP) continue;
        int end = kernel_loop_end(k, i), inner = 0;
        if (loop->hi > MOST) return false;
        for (int j = i + 1; j < end; j++) {
            const kins *in = &k->ins.at[j];
            if (in->op == K_LOOP) inner = j;
            if (in->op == K_LOOP && in->hi > MOST) return false;
            product |= in->op == K_UPD && in->alu == OP_dot;
            combined |= product && in->op == K_UPD && !inner && k->vars.at[loop->var].reduce;
        }
        i = end;
    }
    return product && combined;
}

/* Whole rows of scores are in registers: no maximum is carried on, and what others read of them is stored. While a thread block
 * waits for its operands others multiply, so several have room. */
bool recipe_short_rows(const kernel *k0, const target *t, recipe_form *best) {
    static const struct {
        int block, down, across;
    } shapes[] = { { 8, 8, 8 }, { 16, 8, 8 }, { 32, 16, 8 }, { 32, 8, 16 }, { 32, 16, 16 } };
    enum { AT_ONCE = 4 };
    if (k0->params) return false;
    for (int b = 0; b < k0->bufs.n; b++)
        if (dtype_is_narrow_float((tn_dtype)k0->bufs.at[b].dtype)) return false;
    kernel *k = gpu_compacted((kernel *)(uintptr_t)k0);
    int n = gpu_outer_loops(k);
    if (n < 1 || !has_short_rows(k, n)) return false;
    machine m = machine_of(t);
    bool found = false;
    arena tmp;
    arena_child(&tmp, k->a);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (shapes[i].down * shapes[i].across > t->block_threads) continue;
        str reason;
        str_init(&reason, &tmp);
        kernel *tried = kernel_clone(k, &tmp);
        tried->a = &tmp;
        loop_step step =
            step_parse(&tmp, arena_printf(&tmp, "bind_row_tiles %d %d %d", shapes[i].block, shapes[i].down, shapes[i].across));
        double ns = INFINITY;
        if (step_apply(&tried, &step, &reason) && AT_ONCE * kernel_shared_bytes(tried) <= target_shared_most(t))
            ns = (cost_gpu_kernel(tried, &m, NULL, &tmp).ns - m.start_ns) * MEASURED + recipe_attention_start(t);
        arena_reset(&tmp);
        if (isinf(ns) && i == 0) break; /* the others need more registers, or more shared memory */
        if (ns / m.count_ns >= best->cost) continue;
        *best = (recipe_form){ ns / m.count_ns, arena_printf(k->a, "bind_row_tiles %d %d %d", shapes[i].block, shapes[i].down,
                                                             shapes[i].across) };
        found = true;
    }
    return found;
}
