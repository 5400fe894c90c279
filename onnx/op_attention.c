/* op_attention.c - attention with its masks, caches and groups of heads, and the rotation of positions. */
#include "attend.h"

#include <math.h>

/* ---- heads ---- */

tn_tensor onnx_split_heads(onnx_call *c, tn_tensor x, int64_t heads) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank != 3 || heads < 1 || onnx_is_dim(s.dim[2]) || s.dim[2] % heads)
        onnx_refuse(c, "%lld heads of its features", (long long)heads);
    return tn_permute(tn_reshape(x, TN_DIMS(s.dim[0], s.dim[1], heads, s.dim[2] / heads)), TN_INTS(0, 2, 1, 3));
}
tn_tensor onnx_join_heads(tn_tensor x) {
    tn_shape s = tn_tensor_shape(x);
    return tn_reshape(tn_permute(x, TN_INTS(0, 2, 1, 3)), TN_DIMS(s.dim[0], s.dim[2], s.dim[1] * s.dim[3]));
}

/* a [N,H,..] times b [N,G,..], each head of b for H/G of a. */
static tn_tensor by_heads(tn_tensor a, tn_tensor b) {
    tn_shape s = tn_tensor_shape(a), t = tn_tensor_shape(b);
    if (s.rank != 4 || t.rank != 4 || s.dim[1] == t.dim[1] || !t.dim[1]) return tn_matmul(a, b);
    a = tn_reshape(a, TN_DIMS(s.dim[0], t.dim[1], s.dim[1] / t.dim[1], s.dim[2], s.dim[3]));
    tn_tensor y = tn_matmul(a, tn_reshape(b, TN_DIMS(t.dim[0], t.dim[1], 1, t.dim[2], t.dim[3])));
    return tn_reshape(y, TN_DIMS(s.dim[0], s.dim[1], s.dim[2], t.dim[3]));
}

/* ---- masks ---- */

void onnx_allow(onnx_attend *a, tn_tensor allowed) { a->allowed = a->allowed.graph ? tn_and(a->allowed, allowed) : allowed; }

void onnx_allow_band(onnx_call *c, onnx_attend *a, tn_tensor offset, int64_t left, int64_t right) {
    tn_shape square = TN_DIMS(tn_tensor_shape(a->q).dim[2], tn_tensor_shape(a->k).dim[2]);
    tn_tensor at = tn_add(tn_iota(c->g, TN_I64, square, 0), offset), key = tn_iota(c->g, TN_I64, square, 1);
    if (right >= 0) onnx_allow(a, tn_le(key, right ? tn_add_scalar(at, (double)right) : at));
    if (left >= 0) onnx_allow(a, tn_ge(key, left ? tn_add_scalar(at, -(double)left) : at));
}

tn_tensor onnx_attention(onnx_attend *a) {
    tn_tensor q = a->scale == 1 ? a->q : tn_mul_scalar(a->q, a->scale), s = by_heads(q, tn_transpose(a->k, -1, -2));
    tn_tensor none = onnx_scalar(s, a->floor), empty = onnx_scalar(s, -INFINITY);
    a->stage[0] = s;
    if (a->softcap > 0) s = tn_mul_scalar(tn_tanh(tn_mul_scalar(s, 1 / a->softcap)), a->softcap);
    a->stage[1] = s;
    if (a->bias.graph) s = tn_add(s, a->bias);
    if (a->allowed.graph) s = tn_select(a->allowed, s, none);
    a->stage[2] = s;
    if (a->guard) { /* a row that is masked as a whole: the exponents of its numbers less the largest are no numbers */
        tn_tensor open = a->bias.graph ? a->bias : onnx_scalar(s, 0);
        if (a->allowed.graph) open = tn_select(a->allowed, open, empty);
        tn_tensor closed = tn_eq(tn_reduce_max(open, TN_INTS(-1), 1), empty), zero = onnx_scalar(s, 0);
        s = tn_select(closed, zero, tn_nn_softmax(tn_select(closed, zero, s), -1));
    } else {
        s = tn_nn_softmax(s, -1);
    }
    a->stage[3] = s;
    return by_heads(s, a->v);
}

/* ---- Attention of ai.onnx ---- */

/* The mask of the scores; one that is too short goes on with what is masked. */
static void read_mask(onnx_call *c, onnx_attend *a) {
    tn_shape s = onnx_shape(c, 3);
    int64_t keys = tn_tensor_shape(a->k).dim[2], before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, lo, hi;
    bool is_bool = onnx_elem(c, 3) == ELEM_BOOL;
    tn_tensor mask = onnx_t(c, 3);
    if (s.rank < 1 || s.rank > 4) onnx_refuse(c, "its mask");
    after[s.rank - 1] = onnx_dim(c, '-', keys, s.dim[s.rank - 1]);
    onnx_dim_range(c, after[s.rank - 1], &lo, &hi);
    if (lo < 0) onnx_refuse(c, "its mask");
    if (!is_bool) mask = tn_cast(mask, tn_tensor_dtype(a->q));
    if (after[s.rank - 1]) mask = tn_pad(mask, before, after, s.rank, is_bool ? 0 : -INFINITY);
    a->guard = true;
    if (is_bool)
        onnx_allow(a, mask);
    else
        a->bias = mask;
}

static tn_tensor with_past(onnx_call *c, int past, tn_tensor now) {
    if (!onnx_has(c, past)) return now;
    return tn_concat((tn_tensor[]){ tn_cast(onnx_t(c, past), tn_tensor_dtype(now)), now }, 2, 2);
}
static void put_as(onnx_call *c, int k, tn_tensor x, int like) {
    if (onnx_wants(c, k)) onnx_put(c, k, tn_cast(x, onnx_elem_dtype(onnx_elem(c, like))), onnx_elem(c, like));
}

void onnx_op_attention(onnx_call *c) {
    onnx_attend a = { .floor = -INFINITY, .softcap = onnx_attr_float(c, "softcap", 0) };
    bool causal = onnx_attr_int(c, "is_causal", 0), joined = onnx_rank(c, 0) == 3;
    int64_t heads = onnx_attr_int(c, "q_num_heads", 0), groups = onnx_attr_int(c, "kv_num_heads", 0);
    int64_t left = onnx_attr_int(c, "left_window_size", -1), right = onnx_attr_int(c, "right_window_size", -1);
    int64_t mode = onnx_attr_int(c, "qk_matmul_output_mode", 0);
    (void)onnx_attr_int(c, "softmax_precision", 1); /* f32 at the least */
    if (mode < 0 || mode > 3 || left < -1 || right < -1) onnx_refuse(c, "its attributes");
    for (int i = 0; i < 3; i++)
        if (onnx_rank(c, i) != (joined ? 3 : 4)) onnx_refuse(c, "operand %d of rank %d", i, onnx_rank(c, i));
    for (int i = 0; i < 3; i++)
        if (onnx_is_dim(onnx_shape(c, i).dim[joined ? 2 : 3]) || (!joined && onnx_is_dim(onnx_shape(c, i).dim[1])))
            onnx_refuse(c, "heads or features of a size that a run gives");
    tn_tensor q = onnx_accurate(onnx_t(c, 0)), k = onnx_accurate(onnx_t(c, 1)), v = onnx_accurate(onnx_t(c, 2));
    a.q = joined ? onnx_split_heads(c, q, heads) : q;
    a.k = with_past(c, 4, joined ? onnx_split_heads(c, k, groups) : k);
    a.v = with_past(c, 5, joined ? onnx_split_heads(c, v, groups) : v);
    tn_shape qs = tn_tensor_shape(a.q), ks = tn_tensor_shape(a.k);
    if (qs.rank < 0 || ks.rank < 0 || tn_tensor_shape(a.v).rank < 0) onnx_refuse_graph(c);
    if (ks.dim[1] < 1 || qs.dim[1] % ks.dim[1])
        onnx_refuse(c, "%lld heads for %lld", (long long)ks.dim[1], (long long)qs.dim[1]);
    a.scale = onnx_attr_float(c, "scale", qs.dim[3] > 0 ? 1 / sqrt((double)qs.dim[3]) : 1);
    if (onnx_has(c, 3)) read_mask(c, &a);
    tn_tensor offset = tn_dim_value(c->g, onnx_has(c, 4) ? onnx_shape(c, 4).dim[2] : 0);
    if (onnx_has(c, 6)) { /* so many keys of each batch are there */
        tn_tensor n = tn_reshape(tn_cast(onnx_t(c, 6), TN_I64), TN_DIMS(qs.dim[0], 1, 1, 1));
        offset = tn_sub(n, tn_dim_value(c->g, qs.dim[2]));
        onnx_allow(&a, tn_lt(tn_iota(c->g, TN_I64, TN_DIMS(1, 1, 1, ks.dim[2]), 3), n));
        a.guard = true;
    }
    if (causal) onnx_allow_band(c, &a, offset, -1, 0);
    if (left >= 0 || right >= 0) onnx_allow_band(c, &a, offset, left, right), a.guard = true;
    tn_tensor y = onnx_attention(&a);
    put_as(c, 0, joined ? onnx_join_heads(y) : y, 0);
    put_as(c, 1, a.k, 1), put_as(c, 2, a.v, 2);
    put_as(c, 3, a.stage[mode], 0);
}

/* ---- rotation ---- */

tn_tensor onnx_rotary_rows(onnx_call *c, tn_tensor cache, tn_tensor position, int64_t n, int64_t t) {
    tn_shape s = tn_tensor_shape(cache);
    if (s.rank != 2) onnx_refuse(c, "a cache of rank %d", s.rank);
    if (!position.graph) position = tn_iota(c->g, TN_I64, TN_DIMS(1, t), 1);
    tn_shape p = tn_tensor_shape(position);
    if (onnx_count_of(p) == 1 && (onnx_is_dim(n) || onnx_is_dim(t) || n * t != 1))
        position = tn_add(tn_reshape(position, TN_DIMS(1, 1)), tn_iota(c->g, TN_I64, TN_DIMS(1, t), 1));
    else if (p.rank != 2)
        onnx_refuse(c, "positions of rank %d", p.rank);
    return tn_gather(cache, position, 0);
}

static tn_tensor part(tn_tensor x, int64_t from, int64_t to, int64_t step) { /* of the last axis */
    tn_shape s = tn_tensor_shape(x);
    int64_t start[TN_MAX_RANK] = { 0 }, by[TN_MAX_RANK];
    if (s.rank < 0) return x;
    for (int i = 0; i < s.rank; i++) by[i] = 1;
    start[s.rank - 1] = from, s.dim[s.rank - 1] = to, by[s.rank - 1] = step;
    return tn_slice(x, start, s.dim, by, s.rank);
}
static tn_tensor beside_heads(onnx_call *c, tn_tensor table, int64_t half) {
    tn_shape s = tn_tensor_shape(table);
    if (s.rank != 3 || s.dim[2] != half) onnx_refuse(c, "tables of its angles");
    return tn_reshape(table, TN_DIMS(s.dim[0], 1, s.dim[1], half));
}

tn_tensor onnx_rotate(onnx_call *c, tn_tensor x, const onnx_rotary *r) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank != 4 || onnx_is_dim(s.dim[3])) onnx_refuse(c, "an operand of rank %d, or its features", s.rank);
    int64_t d = s.dim[3], n = r->dims ? r->dims : d, half = n / 2;
    if (n < 0 || n > d || n % 2) onnx_refuse(c, "%lld of %lld features", (long long)n, (long long)d);
    tn_tensor cos = beside_heads(c, tn_cast(r->cos, tn_tensor_dtype(x)), half),
              sin = beside_heads(c, tn_cast(r->sin, tn_tensor_dtype(x)), half);
    tn_tensor a = r->interleaved ? part(x, 0, n, 2) : part(x, 0, half, 1),
              b = r->interleaved ? part(x, 1, n, 2) : part(x, half, n, 1);
    tn_tensor turned[] = { tn_sub(tn_mul(cos, a), tn_mul(sin, b)), tn_add(tn_mul(sin, a), tn_mul(cos, b)) };
    tn_tensor y = r->interleaved ? tn_reshape(tn_nn_stack(turned, 2, 4), TN_DIMS(s.dim[0], s.dim[1], s.dim[2], n))
                                 : tn_concat(turned, 2, 3);
    return n == d ? y : tn_concat((tn_tensor[]){ y, part(x, n, d, 1) }, 2, 3);
}

static int64_t last_of(tn_shape s) { return s.rank ? s.dim[s.rank - 1] : 1; }
/* Operands: x, and where the tables and the positions are. */
static void rotary(onnx_call *c, int cos, int sin, int position, const char *dims) {
    onnx_rotary r = { .interleaved = onnx_attr_int(c, "interleaved", 0), .dims = onnx_attr_int(c, dims, 0) };
    int64_t heads = onnx_attr_int(c, "num_heads", 0);
    tn_shape s = onnx_shape(c, 0);
    tn_tensor x = onnx_accurate(onnx_t(c, 0)), none = { .graph = NULL };
    if (onnx_is_dim(last_of(s)) || onnx_is_dim(last_of(onnx_shape(c, cos))))
        onnx_refuse(c, "features of a size that a run gives");
    if (s.rank == 3 && !heads && onnx_rank(c, cos) == 2) /* tables as wide as half a head */
        heads = r.dims || !onnx_shape(c, cos).dim[1] ? 0 : s.dim[2] / (2 * onnx_shape(c, cos).dim[1]);
    if (s.rank == 3) x = onnx_split_heads(c, x, heads);
    if (s.rank != 3 && s.rank != 4) onnx_refuse(c, "an operand of rank %d", s.rank);
    int64_t n = s.dim[0], t = s.dim[s.rank == 3 ? 1 : 2];
    if (onnx_rank(c, cos) == 3) {
        r.cos = onnx_t(c, cos), r.sin = onnx_t(c, sin);
    } else {
        tn_tensor at = onnx_has(c, position) ? tn_cast(onnx_t(c, position), TN_I64) : none;
        r.cos = onnx_rotary_rows(c, onnx_t(c, cos), at, n, t), r.sin = onnx_rotary_rows(c, onnx_t(c, sin), at, n, t);
    }
    tn_tensor y = onnx_rotate(c, x, &r);
    put_as(c, 0, s.rank == 3 ? onnx_join_heads(y) : y, 0);
}
void onnx_op_rotary_embedding(onnx_call *c) { rotary(c, 1, 2, 3, "rotary_embedding_dim"); }
void onnx_op_ms_rotary_embedding(onnx_call *c) {
    if (onnx_attr_float(c, "scale", 1) != 1) onnx_refuse(c, "attribute scale");
    if (onnx_attr_int(c, "is_packed_batching", 0)) onnx_refuse(c, "attribute is_packed_batching");
    rotary(c, 2, 3, 1, "rotary_embedding_dim");
}
