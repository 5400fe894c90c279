/* cpu.c - the schedule of a kernel for the processor. */
#include "recipe/recipe.h"

kernel *recipe_cpu(kernel *k, const target *t, const schedule **out) {
    recipe r = recipe_make(k, t);
    if (k->params) recipe_block_rows(&r);
    k = r.k;
    if (loop_has_blocks(k))
        recipe_nests(&r);
    else if (k->params)
        recipe_params(&r);
    else
        recipe_tile_nest(&r);
    recipe_do(&r, "multiply_add");
    for (int b = 0; b < r.k->bufs.n; b++) {
        const kbuf *x = &r.k->bufs.at[b];
        if (!x->panels || x->dtype != TN_U8) continue;
        /* Panels for any number of rows are words for all of them, or none: with few registers, tiles are narrower. */
        if (x->panels->column.step == 1 || t->n_vector_regs >= 32) recipe_try(&r, "join_bytes b%d", b);
    }
    recipe_sparse(&r);
    recipe_prefetch(&r);
    recipe_prefetch_panels(&r);
    recipe_nontemporal(&r);
    if (out) *out = r.s;
    return r.k;
}
