/* attention.c - attention and what belongs to it. In: queries, keys, values. Out: two contractions with a softmax between them,
 * which the compiler finds again; rotary positions; rows written into a cache of keys or values. */
#include "nn.h"

#include <math.h>

/* Query heads in groups that share a head of keys: q f[..,Hk,G,T,d], k and v f[..,Hk,1,S,d]. */
static bool in_groups(tn_tensor *q, tn_tensor *k, tn_tensor *v) {
    tn_shape s = tn_tensor_shape(*q), ks = tn_tensor_shape(*k), vs = tn_tensor_shape(*v);
    int h = s.rank - 3;
    if (s.rank < 3 || s.rank == TN_MAX_RANK || ks.rank != s.rank || vs.rank != s.rank) return false;
    int64_t heads = s.dim[h], shared = ks.dim[h];
    if (shared <= 1 || shared == heads || heads % shared || vs.dim[h] != shared) return false;
    for (int i = s.rank++; i > h + 1; i--) s.dim[i] = s.dim[i - 1];
    s.dim[h] = shared, s.dim[h + 1] = heads / shared;
    for (int i = ks.rank++; i > h + 1; i--) ks.dim[i] = ks.dim[i - 1], vs.dim[i] = vs.dim[i - 1];
    vs.rank++;
    ks.dim[h + 1] = vs.dim[h + 1] = 1;
    *q = tn_reshape(*q, s), *k = tn_reshape(*k, ks), *v = tn_reshape(*v, vs);
    return true;
}

/* weights [..,1,S] times v [..,S,d], whose rows do not count where `seen` does not hold, whatever they are; added up in f32 as
 * by a contraction. */
static tn_tensor of_one_query(tn_tensor weights, tn_tensor v, tn_tensor seen) {
    tn_dtype t = tn_tensor_dtype(v), sum = t == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor y = tn_mul(tn_cast(tn_transpose(weights, -1, -2), sum), tn_cast(v, sum));
    y = tn_select(tn_transpose(seen, -1, -2), y, nn_scalar(y, 0));
    return tn_cast(tn_sum(y, TN_INTS(-2), 1), t);
}

tn_tensor nn_attention(tn_tensor q, tn_tensor k, tn_tensor v, tn_tensor seen, const char *fn) {
    tn_shape s, ks, vs;
    tn_tensor poison = { q.graph, 0 };
    if (!nn_check(q, fn, 2, &s) || !nn_given(q.graph, k, fn) || !nn_given(q.graph, v, fn)) return poison;
    if (!nn_check(k, fn, 2, &ks) || !nn_check(v, fn, 2, &vs)) return poison;
    int64_t d = s.dim[s.rank - 1];
    bool grouped = in_groups(&q, &k, &v);
    q = d < 0 ? tn_mul(q, tn_rsqrt(nn_size_like(q, d))) : tn_mul_scalar(q, d ? 1 / sqrt((double)d) : 1);
    tn_tensor score = tn_matmul(q, tn_transpose(k, -1, -2));
    if (seen.graph) score = tn_select(seen, score, nn_scalar(q, -INFINITY));
    tn_tensor w = tn_nn_softmax(score, -1);
    bool one = seen.graph && s.dim[s.rank - 2] == 1;
    tn_tensor y = one ? of_one_query(w, v, seen) : tn_matmul(w, v);
    s.dim[s.rank - 1] = vs.dim[vs.rank - 1];
    return grouped ? tn_reshape(y, s) : y;
}

tn_tensor tn_nn_attention(tn_tensor q, tn_tensor k, tn_tensor v, int causal) {
    tn_shape s = tn_tensor_shape(q), ks = tn_tensor_shape(k);
    tn_tensor seen = { 0 };
    if (causal && s.rank >= 2 && ks.rank >= 2) {
        tn_shape square = TN_DIMS(s.dim[s.rank - 2], ks.dim[ks.rank - 2]);
        tn_tensor column = tn_iota(q.graph, TN_I32, square, 1);
        seen = tn_le(column, tn_iota(q.graph, TN_I32, square, 0));
    }
    return nn_attention(q, k, v, seen, "tn_nn_attention");
}

tn_tensor nn_rope(tn_tensor x, tn_tensor position, tn_tensor rate, double scale) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 2) return (tn_tensor){ x.graph, 0 };
    int64_t half = s.dim[s.rank - 1] / 2, start[TN_MAX_RANK] = { 0 };
    tn_dtype type = tn_tensor_dtype(x);
    tn_tensor angle = tn_mul(tn_reshape(tn_cast(position, TN_F64), TN_DIMS(s.dim[s.rank - 2], 1)), rate);
    if (type != TN_F64) angle = tn_cast(angle, TN_F32);
    tn_tensor c = tn_cos(angle), n = tn_sin(angle);
    if (scale != 1) c = tn_mul_scalar(c, scale), n = tn_mul_scalar(n, scale);
    c = tn_cast(c, type), n = tn_cast(n, type);
    tn_shape middle = s;
    middle.dim[s.rank - 1] = half;
    tn_tensor a = tn_slice(x, start, middle.dim, NULL, s.rank);
    start[s.rank - 1] = half;
    tn_tensor b = tn_slice(x, start, s.dim, NULL, s.rank);
    tn_tensor first = tn_sub(tn_mul(a, c), tn_mul(b, n));
    tn_tensor second = tn_add(tn_mul(b, c), tn_mul(a, n));
    return tn_concat((tn_tensor[]){ first, second }, 2, s.rank - 1);
}

tn_tensor tn_nn_rope(tn_tensor x, tn_tensor position, double base) {
    tn_shape s, ps = tn_tensor_shape(position);
    tn_tensor poison = { x.graph, 0 };
    if (!nn_check(x, "tn_nn_rope", 2, &s) || !nn_given(x.graph, position, "tn_nn_rope")) return poison;
    int64_t d = s.dim[s.rank - 1], t = s.dim[s.rank - 2];
    if (d % 2 || ps.rank != 1 || ps.dim[0] != t || !(base >= 0))
        return nn_fail(x.graph, TN_ERR_SHAPE,
                       "tn_nn_rope: expected x[..,T,d] with even d, positions [T] and a base above 0; got T = %lld, "
                       "d = %lld, positions of rank %d, base %g",
                       (long long)t, (long long)d, ps.rank, base);
    /* in double: powers in f32 would be off by the position times their rounding */
    tn_tensor rate = tn_iota(x.graph, TN_F64, TN_DIMS(d / 2), 0);
    rate = tn_exp(tn_mul_scalar(rate, -2 * log(base > 0 ? base : 10000) / (double)(d ? d : 1)));
    return nn_rope(x, position, rate, 1);
}

/* The number of the pair that turns so often in all positions. */
static double pair_of(int64_t d, const tn_nn_rope_opts *o, double turns) {
    return (double)d * log(o->positions / (turns * 2 * acos(-1))) / (2 * log(o->base));
}

double tn_nn_rope_rates(int64_t d, tn_nn_rope_opts o, double *rates) {
    bool yarn = o.kind == TN_NN_ROPE_YARN, parts = yarn || o.kind == TN_NN_ROPE_LLAMA3;
    if (o.base == 0) o.base = 10000;
    if (o.low == 0) o.low = 1;
    if (o.high == 0) o.high = yarn ? 32 : 4;
    if (o.kind == TN_NN_ROPE_PLAIN) o.factor = 1;
    if (d < 2 || d % 2 || !rates || !(o.base > 1) || !(o.factor >= 1) || o.kind > TN_NN_ROPE_YARN ||
        (parts && !(o.positions >= 1 && o.low > 0 && o.high > o.low)))
        return 0;
    double first = yarn ? fmax(floor(pair_of(d, &o, o.high)), 0) : 0; /* between them it changes */
    double last = yarn ? fmin(ceil(pair_of(d, &o, o.low)), (double)d - 1) : 0;
    if (first == last) last += 0.001;
    for (int64_t i = 0; i < d / 2; i++) {
        double rate = pow(o.base, -2 * (double)i / (double)d), turns = o.positions * rate / (2 * acos(-1));
        double kept = yarn ? 1 - ((double)i - first) / (last - first) : parts ? (turns - o.low) / (o.high - o.low) : 0;
        kept = fmin(fmax(kept, 0), 1);
        rates[i] = rate * (kept + (1 - kept) / o.factor);
    }
    return !yarn ? 1 : o.scale > 0 ? o.scale : 1 + 0.1 * log(o.factor);
}

tn_tensor nn_write_rows(tn_tensor base, tn_tensor x, tn_tensor start) {
    tn_shape s = tn_tensor_shape(base), xs = tn_tensor_shape(x);
    if (s.rank < 2 || xs.rank != s.rank) return (tn_tensor){ base.graph, 0 };
    tn_tensor rows = tn_iota(base.graph, TN_I64, TN_DIMS(xs.dim[xs.rank - 2]), 0);
    return tn_scatter_set(base, tn_add(rows, start), x, s.rank - 2);
}
