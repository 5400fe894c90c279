/* op_matmul.c - contractions without windows. */
#include "import.h"

static void check_same(onnx_call *c) {
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i] && onnx_elem(c, i) != onnx_elem(c, 0)) onnx_refuse(c, "operands of several types");
}

void onnx_op_matmul(onnx_call *c) {
    check_same(c);
    int ra = onnx_rank(c, 0), rb = onnx_rank(c, 1);
    if (ra < 1 || rb < 1) onnx_refuse(c, "a scalar");
    tn_tensor a, b, scale;
    if (rb == 2 && onnx_as_steps(c, 0, 1, 1, onnx_shape(c, 0).dim[ra - 1], &a, &b, &scale))
        onnx_put(c, 0, tn_mul(tn_cast(tn_matmul(a, b), TN_F32), scale), ELEM_F32);
    else
        onnx_put(c, 0, tn_matmul(onnx_t(c, 0), onnx_t(c, 1)), ELEM_NONE);
}

void onnx_op_gemm(onnx_call *c) {
    check_same(c);
    double alpha = onnx_attr_float(c, "alpha", 1), beta = onnx_attr_float(c, "beta", 1);
    bool ta = onnx_attr_int(c, "transA", 0), tb = onnx_attr_int(c, "transB", 0);
    (void)onnx_attr_int(c, "broadcast", 0); /* before operator set 7; from then on always */
    if (onnx_rank(c, 0) != 2 || onnx_rank(c, 1) != 2)
        onnx_refuse(c, "operands of rank %d and %d", onnx_rank(c, 0), onnx_rank(c, 1));
    int64_t last_a = ta ? 0 : 1, last_b = tb ? 1 : 0;
    tn_tensor a = onnx_t(c, 0), b = onnx_t(c, 1), scale, y;
    if (onnx_as_steps(c, 0, 1, tb ? 0 : 1, onnx_shape(c, 0).dim[last_a], &a, &b, &scale))
        y = tn_mul(tn_cast(tn_dot(a, b, NULL, NULL, 0, &last_a, &last_b, 1), TN_F32), scale);
    else
        y = tn_dot(a, b, NULL, NULL, 0, &last_a, &last_b, 1);
    if (alpha != 1) y = tn_mul_scalar(y, alpha);
    if (onnx_has(c, 2) && beta != 0) y = tn_add(y, beta != 1 ? tn_mul_scalar(onnx_t(c, 2), beta) : onnx_t(c, 2));
    onnx_put(c, 0, y, ELEM_NONE);
}

/* ---- whole numbers with zero points ---- */

void onnx_op_matmul_integer(onnx_call *c) {
    int ra = onnx_rank(c, 0), rb = onnx_rank(c, 1);
    if (ra < 2 || rb < 2) onnx_refuse(c, "operands of rank %d and %d", ra, rb);
    onnx_put(c, 0, tn_matmul(onnx_less_zero_point(c, 0, 2, ra - 2), onnx_less_zero_point(c, 1, 3, rb - 1)), ELEM_I32);
}

/* ---- Einsum ---- */

/* Labels are 0..51 for letters; the axes of "..." are ELLIPSIS and on, aligned to the last. */
enum { ELLIPSIS = 52, LABELS = ELLIPSIS + TN_MAX_RANK };
typedef struct term {
    int label[TN_MAX_RANK], n;
    tn_tensor x;
} term;

static const char *read_term(onnx_call *c, const char *s, const char *end, int rank, term *t) {
    int letters = 0;
    for (const char *k = s; k < end && *k != ',' && *k != '-'; k++) letters += *k != ' ' && *k != '.';
    for (t->n = 0; s < end && *s != ',' && *s != '-'; s++) {
        bool lower = *s >= 'a' && *s <= 'z', upper = *s >= 'A' && *s <= 'Z';
        int dots = end - s >= 3 && !memcmp(s, "...", 3) ? rank - letters : 0;
        if (*s == ' ') continue;
        if (dots < 0 || t->n + (dots ? dots : 1) > TN_MAX_RANK) onnx_refuse(c, "its equation");
        if (*s == '.' && end - s >= 3 && !memcmp(s, "...", 3)) {
            for (int i = 0; i < dots; i++) t->label[t->n++] = ELLIPSIS + TN_MAX_RANK - dots + i;
            s += 2;
        } else if (lower || upper) {
            t->label[t->n++] = lower ? *s - 'a' : *s - 'A' + 26;
        } else {
            onnx_refuse(c, "its equation");
        }
    }
    return s;
}

static int find_label(const term *t, int label) {
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label) return i;
    return -1;
}
static void drop_axis(term *t, int axis) {
    for (int i = axis; i + 1 < t->n; i++) t->label[i] = t->label[i + 1];
    t->n--;
}

/* A label that an operand has twice: the diagonal. */
static void take_diagonals(onnx_call *c, term *t) {
    for (int i = 0; i < t->n; i++)
        for (int k = i + 1; k < t->n; k++) {
            if (t->label[i] != t->label[k]) continue;
            tn_shape s = tn_tensor_shape(t->x);
            if (s.dim[i] != s.dim[k]) onnx_refuse(c, "a diagonal of %lld and %lld", (long long)s.dim[i], (long long)s.dim[k]);
            tn_tensor on = tn_eq(tn_iota(c->g, TN_I64, s, i), tn_iota(c->g, TN_I64, s, k));
            t->x = tn_sum(tn_select(on, t->x, onnx_scalar(t->x, 0)), TN_INTS(k), 0);
            drop_axis(t, k--);
        }
}
/* Sums over the labels that neither `out` nor a later operand has. */
static void sum_unused(term *t, const bool *wanted) {
    for (int i = 0; i < t->n; i++)
        if (!wanted[t->label[i]]) {
            t->x = tn_sum(t->x, TN_INTS(i), 0);
            drop_axis(t, i--);
        }
}
/* Axes of size 1 that the other operand has larger: taken off, since the other has the label. */
static void drop_ones(term *t, const term *other) {
    tn_shape s = tn_tensor_shape(t->x), o = tn_tensor_shape(other->x);
    for (int i = 0; i < t->n; i++) {
        int k = find_label(other, t->label[i]);
        if (s.rank < 0 || k < 0 || s.dim[i] != 1 || o.dim[k] == 1) continue;
        t->x = tn_sum(t->x, TN_INTS(i), 0);
        drop_axis(t, i--);
        s = tn_tensor_shape(t->x);
    }
}

/* One contraction: shared labels that are still wanted are batch axes, the other shared ones are summed over. */
static term contract(onnx_call *c, term a, term b, const bool *wanted) {
    int64_t batch_a[TN_MAX_RANK], batch_b[TN_MAX_RANK], sum_a[TN_MAX_RANK], sum_b[TN_MAX_RANK];
    int n_batch = 0, n_sum = 0;
    term y = { .n = 0 };
    drop_ones(&a, &b), drop_ones(&b, &a);
    for (int i = 0; i < a.n; i++) {
        int k = find_label(&b, a.label[i]);
        if (k < 0) continue;
        if (wanted[a.label[i]])
            batch_a[n_batch] = i, batch_b[n_batch++] = k, y.label[y.n++] = a.label[i];
        else
            sum_a[n_sum] = i, sum_b[n_sum++] = k;
    }
    if (a.n + b.n - n_batch - 2 * n_sum > TN_MAX_RANK) onnx_refuse(c, "more than %d axes", TN_MAX_RANK);
    for (int i = 0; i < a.n; i++)
        if (find_label(&b, a.label[i]) < 0) y.label[y.n++] = a.label[i];
    for (int i = 0; i < b.n; i++)
        if (find_label(&a, b.label[i]) < 0) y.label[y.n++] = b.label[i];
    y.x = tn_dot(a.x, b.x, batch_a, batch_b, n_batch, sum_a, sum_b, n_sum);
    return y;
}

static void einsum(onnx_call *c, term *in, int n, const term *out) {
    term y = in[0];
    bool wanted[LABELS];
    for (int i = 0; i < n; i++) {
        memset(wanted, 0, sizeof wanted);
        for (int k = 0; k < out->n; k++) wanted[out->label[k]] = true;
        for (int j = i + 1; j < n; j++)
            for (int k = 0; k < in[j].n; k++) wanted[in[j].label[k]] = true;
        if (i) {
            bool mine[LABELS], own[LABELS];
            memcpy(mine, wanted, sizeof mine), memcpy(own, wanted, sizeof own);
            for (int k = 0; k < y.n; k++) own[y.label[k]] = true;
            for (int k = 0; k < in[i].n; k++) mine[in[i].label[k]] = true;
            sum_unused(&in[i], own), sum_unused(&y, mine);
            y = contract(c, y, in[i], wanted);
        }
        sum_unused(&y, wanted);
    }
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < out->n; i++) {
        int k = find_label(&y, out->label[i]);
        if (k < 0 || y.n != out->n) onnx_refuse(c, "its equation");
        perm[i] = k;
    }
    onnx_put(c, 0, tn_permute(y.x, perm, out->n), ELEM_NONE);
}

/* Without "->": the axes of "...", then the letters that occur once, in the order of the alphabet (upper case first). */
static void implied(const term *in, int n, term *out) {
    int count[LABELS] = { 0 };
    for (int i = 0; i < n; i++)
        for (int k = 0; k < in[i].n; k++) count[in[i].label[k]]++;
    out->n = 0;
    for (int i = ELLIPSIS; i < LABELS; i++)
        if (count[i] && out->n < TN_MAX_RANK) out->label[out->n++] = i;
    for (int k = 0; k < 52; k++) {
        int label = (k + 26) % 52;
        if (count[label] == 1 && out->n < TN_MAX_RANK) out->label[out->n++] = label;
    }
}

void onnx_op_einsum(onnx_call *c) {
    const onnx_attr *a = onnx_attr_find(c, "equation");
    if (!a || a->type != ATTR_STRING) onnx_refuse(c, "its equation");
    const char *s = (const char *)a->s.at, *end = s + a->s.n;
    term *in = ONNX_NEW(c->im->env, term, c->n_in), out, all;
    check_same(c);
    for (int i = 0; i < c->n_in; i++) {
        s = read_term(c, s, end, onnx_rank(c, i), &in[i]);
        if (in[i].n != onnx_rank(c, i) || (i + 1 < c->n_in && (s == end || *s++ != ','))) onnx_refuse(c, "its equation");
        in[i].x = onnx_t(c, i);
    }
    implied(in, c->n_in, &all);
    int dots = 0;
    for (int i = 0; i < all.n; i++) dots += all.label[i] >= ELLIPSIS;
    for (int i = 0; i < c->n_in; i++) take_diagonals(c, &in[i]);
    if (s == end) {
        out = all;
    } else {
        int letters = 0;
        if (end - s < 2 || s[1] != '>') onnx_refuse(c, "its equation");
        for (const char *k = s + 2; k < end; k++) letters += *k != ' ' && *k != '.';
        if (read_term(c, s + 2, end, dots + letters, &out) != end) onnx_refuse(c, "its equation");
    }
    for (int i = 0; i < out.n; i++)
        for (int k = 0; k < i; k++)
            if (out.label[i] == out.label[k]) onnx_refuse(c, "its equation");
    einsum(c, in, c->n_in, &out);
}
