/* transpose.c - a kernel that transposes what it reads (rows of memory become columns) works on blocks of the variable along
 * which it reads across rows: the memory pages and cache lines of a block are used whole before the next. In and out: scalar
 * form with a register tile.
 *
 * Squares go straight to their places, although rows of the result that lie a power of two apart share few places in the
 * caches. Transposed into local memory and written from there in runs of 512 bytes, 2048 x 512 f32 took less time on a Zen 3
 * while all of it stayed in the third level (183 to 293 against 395 to 397 us, the machine being shared), but up to twice the
 * time where 8 MB of something else passed in between, as in a program (486 to 1027 against 406 to 465 us). */
#include "recipe/recipe.h"

enum { BLOCK = 256 }; /* elements in a run of the result; as many pages are read at a time, which a second-level TLB holds */

static bool turns(const kernel *k, kvar v) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || affine_coef(in->idx, v) < 2) continue;
        for (kvar u = 0; u < k->vars.n; u++)
            if (u != v && k->vars.at[u].role.unroll >= 4 && affine_coef(in->idx, u) == 1) return true;
    }
    return false;
}

static kvar turned_variable(const kernel *k) {
    kvar found = -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        if (!k->vars.at[v].row) return -1;
        if (k->vars.at[v].role.lanes > 1 && turns(k, v)) found = v;
    }
    return found;
}

void recipe_transpose(recipe *r) {
    const kernel *k = r->k;
    kvar v = turned_variable(k);
    if (v < 0 || k->vars.n > 60) return;
    int64_t extent = k->vars.at[v].extent, piece = BLOCK, lanes = (int64_t)k->vars.at[v].role.lanes * k->vars.at[v].role.unroll;
    while (piece > lanes && extent % piece) piece -= lanes;
    if (extent <= BLOCK || piece < 2 * lanes) return;
    recipe_do(r, "split %s %lld", k->vars.at[v].name, (long long)piece);
    if (r->threads >= 0) r->threads = r->k->vars.n - 1; /* the loop over the pieces */
}
