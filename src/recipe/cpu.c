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
    recipe_sparse(&r);
    recipe_prefetch(&r);
    recipe_nontemporal(&r);
    if (out) *out = r.s;
    return r.k;
}
