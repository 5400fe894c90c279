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
    for (int b = 0; b < r.k->bufs.n; b++)
        if (r.k->bufs.at[b].panels && r.k->bufs.at[b].dtype == TN_U8) recipe_try(&r, "join_bytes b%d", b);
    recipe_sparse(&r);
    recipe_prefetch(&r);
    recipe_nontemporal(&r);
    if (out) *out = r.s;
    return r.k;
}
