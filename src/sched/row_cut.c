/* row_cut.c - kernels whose outermost loops have different extents get the same ones: a loop over blocks of 8 rows and one over
 * blocks of 2 both become loops over tiles of 16, where one may follow the other (row_join.h). A tile need not lie in one piece
 * where the first kernel reads it, nor where the last one writes it: loops of these change places until that over tiles is
 * outermost. */
#include "recipe/recipe.h"
#include "sched/row_join.h"

static int64_t common_divisor(int64_t x, int64_t y) { return y ? common_divisor(y, x % y) : x; }

row_cuts row_cuts_make(const plan *p, int first) {
    const kernel *k = p->kernels.at[first].k;
    row_cuts c = { .p = p, .first = first, .next = first + 1, .most = row_shared_loops(k) };
    c.rows = c.most ? row_extent(k, 0) : 1;
    return c;
}

/* The first kernel's own loops, without a cut: one of them, two, .. False: there are no more, or no iterations. */
static bool next_whole(row_cuts *c) {
    if (c->whole == c->most) return false;
    c->extent[c->whole] = row_extent(c->p->kernels.at[c->first].k, c->whole);
    c->rows = c->whole ? c->rows * c->extent[c->whole] : c->extent[0];
    c->n = ++c->whole;
    return c->rows > 0;
}

bool row_cuts_next(row_cuts *c) {
    for (int64_t was = c->rows; !c->whole && c->rows > 1 && c->next < c->p->kernels.n && c->next - c->first < ROW_MOST_LINKS;
         c->next++) {
        const kernel *k = c->p->kernels.at[c->next].k;
        c->rows = row_shared_loops(k) ? common_divisor(c->rows, row_extent(k, 0)) : 1;
        if (c->rows == 1 || (c->rows == was && c->next > c->first + 1)) continue;
        c->next++, c->n = 1, c->extent[0] = c->rows;
        return true;
    }
    return next_whole(c);
}

/* The buffer of y in which it reads what x makes, and x's; -1: there is none. */
static int buffer_of(const pkernel *y, const pkernel *x, int *of_x) {
    for (int i = 0; i < y->k->bufs.n; i++)
        for (int j = 0; j < x->k->bufs.n; j++)
            if (y->args[i].buf >= 0 && y->args[i].buf == x->args[j].buf && y->k->bufs.at[i].kind != KB_OUT &&
                x->k->bufs.at[j].kind != KB_IN)
                return *of_x = j, i;
    return -1;
}

/* The place of the first load or store there. */
static const affine *place_in(const kernel *k, int buf, kop op) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == op && k->ins.at[i].buf == buf) return &k->ins.at[i].idx;
    return NULL;
}

static const char *name_of(const kernel *k, kvar v) { return k->vars.at[v].name; }

/* Independent loops that are directly nested from the outermost on. */
static int nested_rows(const kernel *k) {
    int n = 0;
    while (k->ins.at[1 + n].op == K_LOOP && k->vars.at[k->ins.at[1 + n].var].row &&
           kernel_loop_end(k, 1 + n) == k->ins.n - 1 - n)
        n++;
    return n;
}

/* The loop that goes through buffer `buf` in steps of so many elements, so many times; it may be cut out of another. -1: there
 * is none. */
static kvar find_loop(recipe *r, int buf, int64_t stride, int64_t times) {
    const affine *at = place_in(r->k, buf, K_LOAD);
    for (int i = 0, n = nested_rows(r->k); i < n && at; i++) {
        kvar v = r->k->ins.at[1 + i].var;
        int64_t step = affine_coef(*at, v), extent = r->k->vars.at[v].extent, piece = step > 0 ? stride / step : 0;
        if (piece < 1 || step * piece != stride || extent != piece * times) continue;
        if (piece == 1) return v;
        return recipe_try(r, "split %s %lld", name_of(r->k, v), (long long)piece) ? r->k->ins.at[1].var : -1;
    }
    return -1;
}

/* The kernel goes through what x made, in buffer `buf`, by x's rows, its loops over them outermost. Returns whether it can;
 * *changed: its loops are others then. */
static bool follow(recipe *r, int buf, const kernel *x, int of_x, const row_cuts *c, bool *changed) {
    const affine *made = place_in(x, of_x, K_STORE);
    kvar rows[ROW_MOST_SHARED];
    bool there = true;
    str order;
    str_init(&order, r->k->a);
    int before = r->k->vars.n;
    for (int i = 0; i < c->n; i++) {
        rows[i] = made ? find_loop(r, buf, affine_coef(*made, x->ins.at[1 + i].var), c->extent[i]) : -1;
        if (rows[i] < 0) return false;
        str_addf(&order, " %s", name_of(r->k, rows[i]));
    }
    for (int i = 0; i < c->n; i++) there &= r->k->ins.at[1 + i].var == rows[i];
    for (int i = 0, n = nested_rows(r->k); i < n; i++) {
        bool named = false;
        for (int j = 0; j < c->n; j++) named |= r->k->ins.at[1 + i].var == rows[j];
        if (!named) str_addf(&order, " %s", name_of(r->k, r->k->ins.at[1 + i].var));
    }
    *changed |= !there || r->k->vars.n > before;
    return there || recipe_try(r, "reorder%s", order.s);
}

/* The first kernel's outermost loop is cut into pieces; of several loops each is one of the chain's as it is. */
static bool begin(recipe *r, const row_cuts *c, bool *changed) {
    int64_t piece = row_extent(r->k, 0) / c->extent[0];
    *changed |= piece > 1;
    return piece == 1 || recipe_try(r, "split %s %lld", name_of(r->k, r->k->ins.at[1].var), (long long)piece);
}

int row_cut(const row_cuts *c, const target *t, kernel **out) {
    const plan *p = c->p;
    bool changed = false;
    int n = 0, of_first;
    if (c->first + 1 == p->kernels.n || buffer_of(&p->kernels.at[c->first + 1], &p->kernels.at[c->first], &of_first) < 0)
        return 0;
    for (; c->first + n < p->kernels.n && n < ROW_MOST_LINKS; n++) {
        const pkernel *pk = &p->kernels.at[c->first + n];
        int of_x = 0, buf = n ? buffer_of(pk, pk - 1, &of_x) : 0;
        if (!row_shared_loops(pk->k) || buf < 0) break;
        recipe r = recipe_make(kernel_clone(pk->k, p->a), t);
        if (n ? !follow(&r, buf, out[n - 1], of_x, c, &changed) : !begin(&r, c, &changed)) break;
        out[n] = r.k;
    }
    return changed ? n : 0;
}
