/* row_cut.c - kernels whose outermost loops have different extents get one of the same: a loop over blocks of 8 rows and one
 * over blocks of 2 both become loops over tiles of 16, where one may follow the other (row_join.h). */
#include "recipe/recipe.h"
#include "sched/row_join.h"

static int64_t common_divisor(int64_t x, int64_t y) { return y ? common_divisor(y, x % y) : x; }

row_cuts row_cuts_make(const plan *p, int first) {
    const kernel *k = p->kernels.at[first].k;
    return (row_cuts){ p, first, first + 1, row_shared_loops(k) ? row_extent(k, 0) : 1 };
}

bool row_cuts_next(row_cuts *c) {
    for (int64_t was = c->rows; c->rows > 1 && c->next < c->p->kernels.n && c->next - c->first < ROW_MOST_LINKS; c->next++) {
        const kernel *k = c->p->kernels.at[c->next].k;
        c->rows = row_shared_loops(k) ? common_divisor(c->rows, row_extent(k, 0)) : 1;
        if (c->rows == 1 || (c->rows == was && c->next > c->first + 1)) continue;
        c->next++;
        return true;
    }
    return false;
}

static bool reads_of(const pkernel *y, const pkernel *x) {
    for (int i = 0; i < y->k->bufs.n; i++)
        for (int j = 0; j < x->k->bufs.n; j++)
            if (y->args[i].buf >= 0 && y->args[i].buf == x->args[j].buf && y->k->bufs.at[i].kind != KB_OUT &&
                x->k->bufs.at[j].kind != KB_IN)
                return true;
    return false;
}

int row_cut(const plan *p, int first, int64_t rows, const target *t, kernel **out) {
    bool cut = false;
    int n = 0;
    for (; first + n < p->kernels.n && n < ROW_MOST_LINKS; n++) {
        const pkernel *pk = &p->kernels.at[first + n];
        if (!row_shared_loops(pk->k) || row_extent(pk->k, 0) % rows || (n && !reads_of(pk, pk - 1))) break;
        recipe r = recipe_make(kernel_clone(pk->k, p->a), t);
        int64_t piece = row_extent(pk->k, 0) / rows;
        const char *name = pk->k->vars.at[pk->k->ins.at[1].var].name;
        if (piece > 1 && !recipe_try(&r, "split %s %lld", name, (long long)piece)) break;
        out[n] = r.k, cut |= piece > 1;
    }
    return cut ? n : 0;
}
