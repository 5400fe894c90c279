/* view.c - movement as index arithmetic: given the index of an element of a movement op's result, the index of the operand's
 * element.
 *
 * Everything stays affine. The one op that may not is reshape: an axis group that is regrouped is flattened and taken apart
 * again; where a loop variable straddles the new border the caller is told how to split that loop. */
#include "sched/sched.h"

val sched_behind_moves(const sched *s, val v) {
    while (op_is_move((op_code)graph_get(s->g, v)->op)) v = graph_get(s->g, v)->in[0];
    return v;
}

static affine add(const kernel *k, affine x, affine y) { return affine_add_params(k->a, k->params, x, y); }
affine view_moved(const kernel *k, affine x, ext by) { return add(k, x, affine_const(by)); }
static affine scale(const kernel *k, affine x, ext by) { return affine_scale_params(k->a, k->params, x, by); }
affine view_plus(const kernel *k, affine x, affine y, ext times) { return add(k, x, scale(k, y, times)); }

affine view_flat(const kernel *k, const graph *g, val v, const affine *idx) {
    const node *n = graph_get(g, v);
    affine flat = affine_const(0);
    ext stride = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        flat = add(k, scale(k, idx[i], stride), flat);
        if (i) stride = ext_mul(k->params, stride, n->dims[i]);
    }
    return flat;
}

/* Whether 0 <= x < n for all iterations, for all values of the dims. */
static bool is_within(const kernel *k, affine x, ext n) {
    exts *t = k->params;
    ext lo = x.base, hi = x.base;
    for (int i = 0; i < x.n; i++) {
        ext c = x.t[i].coef, last = ext_mul(t, c, ext_add(t, k->vars.at[x.t[i].var].extent, -1));
        if (ext_lo(t, c) >= 0)
            hi = ext_add(t, hi, last);
        else if (ext_hi(t, c) <= 0)
            lo = ext_add(t, lo, last);
        else
            return false;
    }
    return ext_never_less(t, lo, 0) && ext_never_less(t, n, ext_add(t, hi, 1));
}

/* x = q * s + r with 0 <= r < s for all iterations. */
static bool affine_divide(const kernel *k, affine x, ext s, affine *q, affine *r, view_fail *fail) {
    kterm *tq = ARENA_ARRAY(k->a, kterm, x.n + 1), *tr = ARENA_ARRAY(k->a, kterm, x.n + 1);
    int nq = 0, nr = 0;
    for (int i = 0; i < x.n; i++) {
        kterm t = x.t[i];
        ext c;
        if (ext_divides(k->params, t.coef, s, &c))
            tq[nq++] = (kterm){ t.var, c };
        else
            tr[nr++] = t;
    }
    ext base_q = 0, base_r = x.base;
    if (ext_is_lit(x.base) && ext_is_lit(s)) {
        base_q = x.base / s, base_r = x.base % s;
        if (base_r < 0) base_q--, base_r += s;
    }
    *q = (affine){ base_q, nq, tq };
    *r = (affine){ base_r, nr, tr };
    if (is_within(k, *r, s)) return true;
    *fail = (view_fail){ -1, 0 };
    for (int i = 0; i < nr; i++) { /* a loop that crosses the border at a whole number of steps can be split there */
        ext c = tr[i].coef, extent = k->vars.at[tr[i].var].extent, inner, outer;
        if (ext_is_lit(c) && c <= 0) continue;
        if (ext_divides(k->params, s, c, &inner) && ext_divides(k->params, extent, inner, &outer) && outer != 1 && inner != 1)
            *fail = (view_fail){ tr[i].var, inner };
    }
    return false;
}

/* Which of two products of dims is the smaller one, so that it takes in another axis. */
static bool is_smaller(const graph *g, ext x, ext y) { return graph_dim_most(g, x) < graph_dim_most(g, y); }

/* The one of axes [from, to) that is longer than 1; the first where none is; -1: there are several. */
static int only_axis(const node *n, int from, int to) {
    int at = from < to ? from : -1, longer = 0;
    for (int i = from; i < to; i++)
        if (n->dims[i] != 1) at = i, longer++;
    return longer < 2 ? at : -1;
}

static bool view_reshape(const kernel *k, const graph *g, const node *to, const node *from, const affine *idx, affine *out,
                         view_fail *fail) {
    int i = 0, j = 0; /* axes [i0, i) of `to` hold the same elements as [j0, j) of `from` */
    while (i < to->rank || j < from->rank) {
        int i0 = i, j0 = j;
        ext pi = i < to->rank ? to->dims[i++] : 1, pj = j < from->rank ? from->dims[j++] : 1;
        while (pi != pj) {
            if (is_smaller(g, pi, pj) && i < to->rank)
                pi = ext_mul(k->params, pi, to->dims[i++]);
            else if (j < from->rank)
                pj = ext_mul(k->params, pj, from->dims[j++]);
            else if (i < to->rank)
                pi = ext_mul(k->params, pi, to->dims[i++]);
            else
                break;
        }
        int one = only_axis(to, i0, i), other = only_axis(from, j0, j);
        if (one >= 0 && other >= 0) {
            for (int x = j0; x < j; x++) out[x] = x == other ? idx[one] : affine_const(0);
            continue;
        }
        affine flat = affine_const(0);
        ext stride = 1;
        for (int x = i - 1; x >= i0; x--) {
            flat = add(k, scale(k, idx[x], stride), flat);
            stride = ext_mul(k->params, stride, to->dims[x]);
        }
        if (stride != 0 && !is_within(k, flat, stride)) { /* guarded by a mask further out: no meaning outside */
            *fail = (view_fail){ -1, 0 };
            return false;
        }
        for (int x = j0; x < j; x++) {
            if (from->dims[x] == 1) {
                out[x] = affine_const(0);
                continue;
            }
            if (from->dims[x] != 0 && !ext_divides(k->params, stride, from->dims[x], &stride)) {
                *fail = (view_fail){ -1, 0 };
                return false;
            }
            if (ext_is_lit(stride) && stride <= 1)
                out[x] = flat, flat = affine_const(0);
            else if (!affine_divide(k, flat, stride, &out[x], &flat, fail))
                return false;
        }
    }
    return true;
}

static void view_pad(const kernel *k, const node *n, const node *from, const affine *idx, affine *out, kmask_list *masks) {
    for (int i = 0; i < n->rank; i++) {
        out[i] = add(k, idx[i], affine_const(ext_mul(k->params, n->attr[i], -1)));
        if (!is_within(k, out[i], from->dims[i])) VEC_PUSH(k->a, masks, (kmask){ out[i], 0, from->dims[i] });
    }
}

bool view_operand(const kernel *k, const graph *g, val v, const affine *idx, affine *out, kmask_list *masks, view_fail *fail) {
    const node *n = graph_get(g, v), *from = graph_get(g, n->in[0]);
    switch (n->op) {
    case OP_reshape:
        return view_reshape(k, g, n, from, idx, out, fail);
    case OP_permute:
        for (int i = 0; i < n->rank; i++) out[n->attr[i]] = idx[i];
        return true;
    case OP_expand:
        for (int i = 0; i < n->rank; i++) out[i] = from->dims[i] == 1 ? affine_const(0) : idx[i];
        return true;
    case OP_slice:
        for (int i = 0; i < n->rank; i++) out[i] = add(k, scale(k, idx[i], n->attr[n->rank + i]), affine_const(n->attr[i]));
        return true;
    case OP_again:
        for (int i = 0; i < n->rank; i++) out[i] = idx[i];
        return true;
    case OP_flip:
        for (int i = 0; i < n->rank; i++)
            out[i] =
                (n->attr[0] >> i & 1) ? add(k, scale(k, idx[i], -1), affine_const(ext_add(k->params, n->dims[i], -1))) : idx[i];
        return true;
    case OP_pad:
        view_pad(k, n, from, idx, out, masks);
        return true;
    case OP_window:
        for (int i = 0; i < from->rank; i++) out[i] = idx[i];
        for (int j = 0; j < n->attr[0]; j++) {
            const int64_t *w = n->attr + 1 + 4 * j; /* axis, size, stride, dilation */
            out[w[0]] = add(k, scale(k, idx[w[0]], w[2]), scale(k, idx[from->rank + j], w[3]));
        }
        return true;
    default:
        guard_fail(k->a->gd, TN_ERR_INTERNAL, "op %s is not a view", op_get((op_code)n->op)->name);
    }
}
