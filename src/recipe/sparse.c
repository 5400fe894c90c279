/* sparse.c - work that comes to nothing is left out: sums that a mask throws away, columns of a softmax behind it, and products
 * with the zeros that a softmax makes of what the mask put there. In: tiled form. */
#include "recipe/recipe.h"

/* Some value is replaced where a comparison of indices says so: half of a causal matrix. */
static bool has_mask(const kernel *k) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i], *cond = &k->ins.at[in->a];
        if (in->op != K_ALU || in->alu != OP_select || cond->op != K_ALU) continue;
        if (k->ins.at[cond->a].op == K_INDEX || k->ins.at[cond->b].op == K_INDEX) return true;
    }
    return false;
}

void recipe_sparse(recipe *r) {
    if (!has_mask(r->k)) return;
    recipe_try(r, "skip_masked");
    if (!loop_has_blocks(r->k)) return;
    recipe_try(r, "skip_columns");
    recipe_try(r, "skip_zeros");
}
