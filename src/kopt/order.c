/* order.c - the order of a contraction's loops: the loop along which the operands lie closest together becomes the innermost,
 * so that it walks through memory and may be joined with the next one. Windows of results with few columns are an exception: a
 * tile of one vector a row has a load for each multiply-add, and loads are what it waits for; neighbours that walk through the
 * taps together share them (tile.c). In and out: scalar form.
 *
 * Changes the order of summation, the same way wherever the kernel runs. */
#include "kopt/kopt.h"

enum { LEAST_ROWS = 4 }; /* that share what a window loads */

static int64_t apart(const kins *load, kvar v) { /* 0: stands still */
    int64_t c = load->op == K_LOAD ? affine_coef(load->idx, v) : 0;
    return c < 0 ? -c : c;
}

static int64_t distance(const kins *a, const kins *b, kvar v) { /* of the operand that moves less */
    int64_t x = apart(a, v), y = apart(b, v);
    return x == 0 || (y != 0 && y < x) ? y : x;
}

/* Loops i .. i + n - 1 are perfectly nested contraction loops around one update. */
static int nest_at(const kernel *k, int i) {
    int n = 0;
    for (int end = k->ins.n; k->ins.at[i + n].op == K_LOOP && k->vars.at[k->ins.at[i + n].var].reduce; n++) {
        int e = kopt_loop_end(k, i + n);
        if (n && e != end - 1) break;
        end = e;
    }
    return n;
}

void kopt_order(kernel *k) {
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0;
        if (n < 2) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot) upd = j;
        if (!upd) continue;
        const kins *a = &k->ins.at[k->ins.at[upd].a], *b = &k->ins.at[k->ins.at[upd].b];
        for (int x = i + 1; x < i + n; x++) /* insertion sort: farthest apart first */
            for (int y = x; y > i; y--) {
                kins *outer = &k->ins.at[y - 1], *inner = &k->ins.at[y];
                if (distance(a, b, outer->var) >= distance(a, b, inner->var)) break;
                kins swap = *outer;
                *outer = *inner, *inner = swap;
            }
        i += n - 1;
    }
}

kvar kopt_slides_along(const kernel *k, const kins *x, const kins *weight, kvar w) {
    int64_t along = affine_coef(x->idx, w);
    kvar best = -1;
    if (x->op != K_LOAD || weight->op != K_LOAD || x->dyn || weight->dyn || weight->n_mask) return -1;
    if (along <= 0 || k->vars.at[w].extent < 2 || k->vars.at[w].extent > KOPT_MOST_TAPS) return -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        int64_t next = affine_coef(x->idx, v);
        if (!k->vars.at[v].row || affine_coef(weight->idx, v) || next <= 0 || along % next || k->vars.at[v].extent < LEAST_ROWS)
            continue;
        if (best < 0 || next < affine_coef(x->idx, best)) best = v;
    }
    return best;
}

static int64_t columns_of(const kernel *k, const kins *x, const kins *weight) {
    int64_t n = 1;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row && affine_coef(weight->idx, v) && !affine_coef(x->idx, v)) n *= k->vars.at[v].extent;
    return n;
}

void kopt_slide(kernel *k, const target *t) {
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0, at = -1;
        if (n < 2) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot) upd = j;
        if (!upd) continue;
        const kins *x = &k->ins.at[k->ins.at[upd].a], *weight = &k->ins.at[k->ins.at[upd].b];
        int64_t columns = columns_of(k, x, weight),
                lanes = t->vector_bytes / (int64_t)dtype_size((tn_dtype)k->ins.at[upd].dtype);
        for (int j = i; j < i + n && columns > 1 && columns <= lanes; j++)
            if (kopt_slides_along(k, x, weight, k->ins.at[j].var) >= 0) at = j; /* the innermost */
        for (; at >= 0 && at < i + n - 1; at++) {
            kins swap = k->ins.at[at];
            k->ins.at[at] = k->ins.at[at + 1], k->ins.at[at + 1] = swap;
        }
        i += n - 1;
    }
}
