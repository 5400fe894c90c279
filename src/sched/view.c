/* view.c - movement as index arithmetic: given the index of an element of a movement op's result, the index of the operand's
 * element.
 *
 * Everything stays affine. The one op that may not is reshape: an axis group that is regrouped is flattened and taken apart
 * again; where a loop variable straddles the new border the caller is told how to split that loop. */
#include "sched/sched.h"

affine view_flat(arena *a, const graph *g, val v, const affine *idx) {
    const node *n = graph_get(g, v);
    affine flat = affine_const(0);
    int64_t stride = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        flat = affine_add(a, affine_scale(a, idx[i], stride), flat);
        stride *= n->dims[i];
    }
    return flat;
}

/* Range of an affine expression over the loop extents. */
static void affine_range(const kernel *k, affine x, int64_t *lo, int64_t *hi) {
    *lo = *hi = x.base;
    for (int i = 0; i < x.n; i++) {
        int64_t last = x.t[i].coef * (k->vars.at[x.t[i].var].extent - 1);
        if (last < 0)
            *lo += last;
        else
            *hi += last;
    }
}

/* x = q * s + r with 0 <= r < s for all iterations. */
static bool affine_divide(const kernel *k, affine x, int64_t s, affine *q, affine *r, view_fail *fail) {
    kterm *tq = ARENA_ARRAY(k->a, kterm, x.n + 1), *tr = ARENA_ARRAY(k->a, kterm, x.n + 1);
    int nq = 0, nr = 0;
    for (int i = 0; i < x.n; i++) {
        kterm t = x.t[i];
        if (t.coef % s == 0)
            tq[nq++] = (kterm){ t.var, t.coef / s };
        else
            tr[nr++] = t;
    }
    int64_t base_q = x.base / s, base_r = x.base % s;
    if (base_r < 0) base_q--, base_r += s;
    *q = (affine){ base_q, nq, tq };
    *r = (affine){ base_r, nr, tr };
    int64_t lo, hi;
    affine_range(k, *r, &lo, &hi);
    if (lo >= 0 && hi < s) return true;
    *fail = (view_fail){ -1, 0 };
    for (int i = 0; i < nr; i++) { /* a loop that crosses the border at a whole number of steps can be split there */
        int64_t c = tr[i].coef, extent = k->vars.at[tr[i].var].extent;
        if (c > 0 && s % c == 0 && s / c < extent && extent % (s / c) == 0) *fail = (view_fail){ tr[i].var, s / c };
    }
    return false;
}

static bool view_reshape(const kernel *k, const node *to, const node *from, const affine *idx, affine *out, view_fail *fail) {
    int i = 0, j = 0; /* axes [i0, i) of `to` hold the same elements as [j0, j) of `from` */
    while (i < to->rank || j < from->rank) {
        int i0 = i, j0 = j;
        int64_t pi = i < to->rank ? to->dims[i++] : 1, pj = j < from->rank ? from->dims[j++] : 1;
        while (pi != pj) {
            if (pi < pj && i < to->rank)
                pi *= to->dims[i++];
            else if (j < from->rank)
                pj *= from->dims[j++];
            else if (i < to->rank)
                pi *= to->dims[i++];
            else
                break;
        }
        if (i - i0 == 1 && j - j0 == 1) {
            out[j0] = idx[i0];
            continue;
        }
        affine flat = affine_const(0);
        int64_t stride = 1, lo, hi;
        for (int x = i - 1; x >= i0; x--) {
            flat = affine_add(k->a, affine_scale(k->a, idx[x], stride), flat);
            stride *= to->dims[x];
        }
        affine_range(k, flat, &lo, &hi);
        if (stride > 0 && (lo < 0 || hi >= stride)) { /* guarded by a mask further out: no meaning outside */
            *fail = (view_fail){ -1, 0 };
            return false;
        }
        for (int x = j0; x < j; x++) {
            if (from->dims[x] == 1) {
                out[x] = affine_const(0);
                continue;
            }
            stride /= from->dims[x] ? from->dims[x] : 1;
            if (stride <= 1)
                out[x] = flat, flat = affine_const(0);
            else if (!affine_divide(k, flat, stride, &out[x], &flat, fail))
                return false;
        }
    }
    return true;
}

static void view_pad(const kernel *k, const node *n, const node *from, const affine *idx, affine *out, kmask_list *masks) {
    for (int i = 0; i < n->rank; i++) {
        out[i] = affine_offset(idx[i], -n->attr[i]);
        int64_t lo, hi;
        affine_range(k, out[i], &lo, &hi);
        if (lo < 0 || hi >= from->dims[i]) VEC_PUSH(k->a, masks, (kmask){ out[i], 0, from->dims[i] });
    }
}

bool view_operand(const kernel *k, const graph *g, val v, const affine *idx, affine *out, kmask_list *masks, view_fail *fail) {
    const node *n = graph_get(g, v), *from = graph_get(g, n->in[0]);
    arena *a = k->a;
    switch (n->op) {
    case OP_reshape:
        return view_reshape(k, n, from, idx, out, fail);
    case OP_permute:
        for (int i = 0; i < n->rank; i++) out[n->attr[i]] = idx[i];
        return true;
    case OP_expand:
        for (int i = 0; i < n->rank; i++) out[i] = from->dims[i] == 1 ? affine_const(0) : idx[i];
        return true;
    case OP_slice:
        for (int i = 0; i < n->rank; i++) out[i] = affine_offset(affine_scale(a, idx[i], n->attr[n->rank + i]), n->attr[i]);
        return true;
    case OP_flip:
        for (int i = 0; i < n->rank; i++)
            out[i] = (n->attr[0] >> i & 1) ? affine_offset(affine_scale(a, idx[i], -1), n->dims[i] - 1) : idx[i];
        return true;
    case OP_pad:
        view_pad(k, n, from, idx, out, masks);
        return true;
    case OP_window:
        for (int i = 0; i < from->rank; i++) out[i] = idx[i];
        for (int j = 0; j < n->attr[0]; j++) {
            const int64_t *w = n->attr + 1 + 4 * j; /* axis, size, stride, dilation */
            out[w[0]] = affine_add(a, affine_scale(a, idx[w[0]], w[2]), affine_scale(a, idx[from->rank + j], w[3]));
        }
        return true;
    default:
        guard_fail(a->gd, TN_ERR_INTERNAL, "op %s is not a view", op_get((op_code)n->op)->name);
    }
}
