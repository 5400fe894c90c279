/* op_contrib.c - ops of ONNX Runtime (com.microsoft) that exported and optimised transformers use, as compositions. */
#include "attend.h"

#include <math.h>

static tn_dtype held(onnx_call *c, int i) { return onnx_elem_dtype(onnx_elem(c, i)); }
static tn_tensor accurate(onnx_call *c, int i) { return onnx_accurate(onnx_t(c, i)); }
static void put(onnx_call *c, int k, tn_tensor x, int like) {
    if (onnx_wants(c, k)) onnx_put(c, k, tn_cast(x, held(c, like)), onnx_elem(c, like));
}
static tn_tensor plus(onnx_call *c, tn_tensor x, int i) {
    return onnx_has(c, i) ? tn_add(x, tn_cast(onnx_t(c, i), tn_tensor_dtype(x))) : x;
}

/* ---- norms over the last axis ---- */

static tn_tensor norm(onnx_call *c, tn_tensor x, int scale, int shift, bool centred, double eps, tn_tensor *mean,
                      tn_tensor *inverse) {
    int64_t last = tn_tensor_shape(x).rank - 1;
    *mean = tn_mean(x, &last, 1, 1);
    if (centred) x = tn_sub(x, *mean);
    *inverse = tn_rsqrt(tn_add_scalar(tn_mean(tn_mul(x, x), &last, 1, 1), eps));
    tn_tensor y = tn_mul(tn_mul(x, *inverse), tn_cast(onnx_t(c, scale), tn_tensor_dtype(x)));
    return plus(c, y, shift);
}
static void skip_norm(onnx_call *c, bool centred, int shift, int bias) {
    tn_tensor x = tn_add(accurate(c, 0), accurate(c, 1)), mean, inverse;
    double eps = onnx_attr_float(c, "epsilon", 1e-12);
    if (bias) x = plus(c, x, bias);
    put(c, 0, norm(c, x, 2, shift, centred, eps, &mean, &inverse), 0);
    if (onnx_wants(c, 1)) onnx_put(c, 1, tn_cast(mean, TN_F32), ELEM_F32);
    if (onnx_wants(c, 2)) onnx_put(c, 2, tn_cast(inverse, TN_F32), ELEM_F32);
    put(c, 3, x, 0);
}
void onnx_op_skip_layer_normalization(onnx_call *c) { skip_norm(c, true, 3, 4); }
void onnx_op_skip_simplified_layer_normalization(onnx_call *c) { skip_norm(c, false, TN_MAX_RANK, 3); }
void onnx_op_simplified_layer_normalization(onnx_call *c) {
    tn_tensor mean, inverse;
    int rank = onnx_rank(c, 0);
    (void)onnx_attr_int(c, "stash_type", 1);
    if (onnx_axis(c, onnx_attr_int(c, "axis", -1), rank) != rank - 1) onnx_refuse(c, "attribute axis");
    put(c, 0, norm(c, accurate(c, 0), 1, TN_MAX_RANK, false, onnx_attr_float(c, "epsilon", (double)1e-5f), &mean, &inverse), 0);
    if (onnx_wants(c, 1)) onnx_put(c, 1, tn_cast(inverse, TN_F32), ELEM_F32);
}

/* Words, positions and segments looked up, added and normalised; the mask's sums are lengths. */
void onnx_op_embed_layer_normalization(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    if (s.rank != 2 || onnx_attr_int(c, "mask_index_type", 1) > 1) onnx_refuse(c, "its shape or mask_index_type");
    tn_tensor x = tn_gather(accurate(c, 2), onnx_t(c, 0), 0), mean, inverse;
    tn_tensor at = onnx_has(c, 8) ? onnx_t(c, 8) : tn_iota(c->g, TN_I32, TN_DIMS(1, s.dim[1]), 1);
    x = tn_add(x, tn_gather(accurate(c, 3), at, 0));
    if (onnx_has(c, 1) && onnx_has(c, 4)) x = tn_add(x, tn_gather(accurate(c, 4), onnx_t(c, 1), 0));
    put(c, 0, norm(c, x, 5, 6, true, onnx_attr_float(c, "epsilon", 1e-12), &mean, &inverse), 2);
    if (onnx_wants(c, 1)) {
        tn_tensor n =
            onnx_has(c, 7) ? tn_sum(tn_cast(onnx_t(c, 7), TN_I32), TN_INTS(1), 0) : tn_full(c->g, TN_I32, TN_DIMS(s.dim[0]), 0);
        onnx_put(c, 1, n, ELEM_I32);
    }
    put(c, 2, x, 2);
}

/* ---- activations with a bias ---- */

void onnx_op_bias_gelu(onnx_call *c) { put(c, 0, tn_nn_gelu(plus(c, accurate(c, 0), 1)), 0); }
void onnx_op_fast_gelu(onnx_call *c) { put(c, 0, tn_nn_gelu_tanh(plus(c, accurate(c, 0), 1)), 0); }
void onnx_op_quick_gelu(onnx_call *c) {
    tn_tensor x = accurate(c, 0);
    put(c, 0, tn_mul(x, tn_sigmoid(tn_mul_scalar(x, onnx_attr_float(c, "alpha", (double)1.702f)))), 0);
}

/* ---- products ---- */

/* transBatch: [M, batch.., K] instead of [batch.., M, K]. */
static tn_tensor matrix(onnx_call *c, int i, const char *batch, const char *turned) {
    tn_tensor x = onnx_t(c, i);
    tn_shape s = tn_tensor_shape(x);
    int64_t perm[TN_MAX_RANK];
    if (onnx_attr_int(c, batch, 0) && s.rank > 2) {
        for (int k = 0; k < s.rank; k++) perm[k] = k < s.rank - 2 ? k + 1 : k == s.rank - 2 ? 0 : k;
        x = tn_permute(x, perm, s.rank);
    }
    return onnx_attr_int(c, turned, 0) && s.rank > 1 ? tn_transpose(x, -1, -2) : x;
}
void onnx_op_fused_mat_mul(onnx_call *c) {
    double alpha = onnx_attr_float(c, "alpha", 1);
    if (onnx_elem(c, 0) != onnx_elem(c, 1)) onnx_refuse(c, "operands of two types");
    tn_tensor y = tn_matmul(matrix(c, 0, "transBatchA", "transA"), matrix(c, 1, "transBatchB", "transB"));
    onnx_put(c, 0, alpha == 1 ? y : tn_mul_scalar(y, alpha), ELEM_NONE);
}

/* Elements of so many bits out of bytes, the low ones first: u8[.., n] to u8[.., n * 8 / bits]. */
static tn_tensor unpack(onnx_call *c, tn_tensor x, int64_t bits) {
    tn_shape s = tn_tensor_shape(x);
    if (tn_tensor_dtype(x) != TN_U8 || s.rank < 1 || s.rank >= TN_MAX_RANK) onnx_refuse(c, "packed weights");
    if (bits == 8) return x;
    tn_tensor part[4], mask = onnx_scalar(x, (double)((1 << bits) - 1));
    int per = (int)(8 / bits);
    for (int i = 0; i < per; i++) part[i] = tn_and(i ? tn_div(x, onnx_scalar(x, (double)(1 << (i * bits)))) : x, mask);
    s.dim[s.rank - 1] *= per;
    return tn_reshape(tn_nn_stack(part, per, s.rank), s);
}
void onnx_op_mat_mul_nbits(onnx_call *c) {
    int64_t k = onnx_attr_need_int(c, "K"), n = onnx_attr_need_int(c, "N"), bits = onnx_attr_int(c, "bits", 4),
            block = onnx_attr_need_int(c, "block_size");
    (void)onnx_attr_int(c, "accuracy_level", 0); /* f32 at the least */
    if (k < 1 || n < 1 || k > 1 << 24 || n > 1 << 24 || (bits != 2 && bits != 4 && bits != 8) || block < 16 ||
        block > 1 << 16 || onnx_has(c, 4))
        onnx_refuse(c, "its attributes or g_idx");
    int64_t blocks = (k + block - 1) / block, per = 8 / bits, packed = (blocks + per - 1) / per;
    if (onnx_count_of(onnx_shape(c, 1)) != n * blocks * (block / per) || onnx_count_of(onnx_shape(c, 2)) != n * blocks)
        onnx_refuse(c, "its shapes");
    tn_tensor w = tn_cast(unpack(c, tn_reshape(onnx_t(c, 1), TN_DIMS(n, blocks, block / per)), bits), TN_F32), zero;
    if (!onnx_has(c, 3)) {
        zero = onnx_scalar(w, (double)(1 << (bits - 1)));
    } else if (onnx_elem(c, 3) == ELEM_U8) {
        if (onnx_count_of(onnx_shape(c, 3)) != n * packed) onnx_refuse(c, "its zero points");
        zero = tn_cast(unpack(c, tn_reshape(onnx_t(c, 3), TN_DIMS(n, packed)), bits), TN_F32);
        zero = tn_reshape(tn_slice(zero, (int64_t[]){ 0, 0 }, (int64_t[]){ n, blocks }, NULL, 2), TN_DIMS(n, blocks, 1));
    } else {
        zero = tn_reshape(tn_cast(onnx_t(c, 3), TN_F32), TN_DIMS(n, blocks, 1));
    }
    w = tn_mul(tn_sub(w, zero), tn_reshape(tn_cast(onnx_t(c, 2), TN_F32), TN_DIMS(n, blocks, 1)));
    w = tn_slice(tn_reshape(w, TN_DIMS(n, blocks * block)), (int64_t[]){ 0, 0 }, (int64_t[]){ n, k }, NULL, 2);
    tn_tensor x = accurate(c, 0);
    put(c, 0, plus(c, tn_matmul(tn_cast(x, TN_F32), tn_transpose(w, 0, 1)), 5), 0);
}

/* i32 sums times both scales (one number, or one a column of the second) plus a bias. */
static tn_tensor scaled(onnx_call *c, tn_tensor sums, tn_tensor scale_a, tn_tensor scale_b, int bias) {
    return plus(c, tn_mul(tn_cast(sums, TN_F32), tn_mul(scale_a, scale_b)), bias);
}
static tn_tensor scale_of(onnx_call *c, int i) {
    tn_shape s = onnx_shape(c, i);
    if (s.rank > 1) onnx_refuse(c, "scales of rank %d", s.rank);
    return onnx_count_of(s) == 1 ? tn_reshape(onnx_t(c, i), TN_SCALAR) : onnx_t(c, i);
}
void onnx_op_mat_mul_integer_to_float(onnx_call *c) {
    tn_tensor sums = tn_matmul(onnx_less_zero_point(c, 0, 4, TN_MAX_RANK), onnx_less_zero_point(c, 1, 5, onnx_rank(c, 1) - 1));
    onnx_put(c, 0, scaled(c, sums, scale_of(c, 2), scale_of(c, 3), 6), ELEM_F32);
}
void onnx_op_dynamic_quantize_mat_mul(onnx_call *c) {
    tn_tensor scale, zero, x = onnx_dynamic_quantise(c, onnx_t(c, 0), &scale, &zero); /* u8 as f32, and its zero point */
    tn_tensor sums = tn_matmul(tn_cast(tn_sub(x, zero), TN_I32), onnx_less_zero_point(c, 1, 3, onnx_rank(c, 1) - 1));
    if (onnx_elem(c, 0) != ELEM_F32) onnx_refuse(c, "%s", onnx_elem_name(onnx_elem(c, 0)));
    onnx_put(c, 0, scaled(c, sums, scale, scale_of(c, 2), 4), ELEM_F32);
}

/* ---- attention ---- */

/* Keys that are there: mask 0 / 1 of [N,S], [N,T,S] or [N,1,..], or their number [N]. */
static void read_keys(onnx_call *c, onnx_attend *a, int i, int64_t past) {
    if (!onnx_has(c, i)) return;
    tn_shape m = onnx_shape(c, i), q = tn_tensor_shape(a->q), k = tn_tensor_shape(a->k);
    int64_t n = q.dim[0], keys = k.dim[2];
    tn_tensor mask = tn_cast(onnx_t(c, i), TN_I64), zero = onnx_scalar(mask, 0);
    if (onnx_is_float(onnx_elem(c, i)) || onnx_elem_widened(onnx_elem(c, i)))
        onnx_refuse(c, "a mask of %s", onnx_elem_name(onnx_elem(c, i)));
    if (m.rank == 1 && m.dim[0] == n && !past)
        onnx_allow(a, tn_lt(tn_iota(c->g, TN_I64, TN_DIMS(1, 1, 1, keys), 3), tn_reshape(mask, TN_DIMS(n, 1, 1, 1))));
    else if (m.rank == 2 && m.dim[0] == n && m.dim[1] == keys)
        onnx_allow(a, tn_ne(tn_reshape(mask, TN_DIMS(n, 1, 1, keys)), zero));
    else if (m.rank == 3 && m.dim[0] == n && m.dim[1] == q.dim[2] && m.dim[2] == keys)
        onnx_allow(a, tn_ne(tn_reshape(mask, TN_DIMS(n, 1, q.dim[2], keys)), zero));
    else
        onnx_refuse(c, "a mask of rank %d", m.rank);
}
static void read_bias(onnx_call *c, onnx_attend *a, int i) {
    if (onnx_has(c, i)) a->bias = tn_cast(onnx_t(c, i), tn_tensor_dtype(a->q));
}
static double mask_value(onnx_call *c) { return onnx_attr_float(c, "mask_filter_value", -10000); }

/* qkv f[N,T,3h]; past f[2,N,H,P,d]. */
static void attend_packed(onnx_call *c, tn_tensor qkv, int mask, int past, int bias) {
    tn_shape s = tn_tensor_shape(qkv);
    int64_t heads = onnx_attr_need_int(c, "num_heads"), before = 0;
    int n_sizes;
    const int64_t *sizes = onnx_attr_ints(c, "qkv_hidden_sizes", &n_sizes);
    onnx_attend a = { .floor = mask_value(c) };
    bool causal = onnx_attr_int(c, "unidirectional", 0);
    if (onnx_attr_int(c, "do_rotary", 0) || onnx_attr_int(c, "past_present_share_buffer", 0))
        onnx_refuse(c, "rotation or a shared buffer");
    if (s.rank != 3 || (sizes && n_sizes != 3) || heads < 1 || onnx_is_dim(s.dim[2])) onnx_refuse(c, "its shapes");
    int64_t h[3] = { s.dim[2] / 3, s.dim[2] / 3, s.dim[2] / 3 }, from = 0;
    tn_tensor part[3];
    for (int i = 0; sizes && i < 3; i++) h[i] = sizes[i];
    if (h[0] < 1 || h[0] != h[1] || h[2] < 1 || h[0] > s.dim[2] || h[2] > s.dim[2] || h[0] + h[1] + h[2] != s.dim[2] ||
        h[0] % heads)
        onnx_refuse(c, "its sizes");
    for (int i = 0; i < 3; from += h[i], i++)
        part[i] = onnx_split_heads(
            c, tn_slice(qkv, (int64_t[]){ 0, 0, from }, (int64_t[]){ s.dim[0], s.dim[1], from + h[i] }, NULL, 3), heads);
    a.q = part[0], a.k = part[1], a.v = part[2];
    if (onnx_has(c, past)) { /* keys, then values */
        tn_shape p = onnx_shape(c, past);
        if (p.rank != 5 || p.dim[0] != 2) onnx_refuse(c, "a past of rank %d", p.rank);
        before = p.dim[3];
        for (int i = 0; i < 2; i++) {
            int64_t start[5] = { i }, stop[5] = { i + 1, p.dim[1], p.dim[2], p.dim[3], p.dim[4] };
            tn_tensor old = tn_reshape(tn_slice(onnx_t(c, past), start, stop, NULL, 5), onnx_dims(p.dim + 1, 4)),
                      *now = i ? &a.v : &a.k;
            *now = tn_concat((tn_tensor[]){ tn_cast(old, tn_tensor_dtype(*now)), *now }, 2, 2);
        }
    }
    a.scale = onnx_attr_float(c, "scale", 0);
    if (a.scale == 0) a.scale = 1 / sqrt((double)(h[0] / heads));
    read_keys(c, &a, mask, before);
    read_bias(c, &a, bias);
    if (causal) onnx_allow_band(c, &a, tn_dim_value(c->g, before), -1, 0);
    put(c, 0, onnx_join_heads(onnx_attention(&a)), 2);
    if (onnx_wants(c, 1)) put(c, 1, tn_nn_stack((tn_tensor[]){ a.k, a.v }, 2, 0), 2);
}
void onnx_op_ms_attention(onnx_call *c) {
    tn_tensor x = accurate(c, 0), w = accurate(c, 1);
    if (onnx_has(c, 6) || !onnx_has(c, 2)) onnx_refuse(c, "operand 2 is missing, or 6 is there");
    attend_packed(c, plus(c, tn_matmul(x, w), 2), 3, 4, 5);
}
void onnx_op_q_attention(onnx_call *c) {
    tn_tensor sums = tn_matmul(onnx_less_zero_point(c, 0, 6, TN_MAX_RANK), onnx_less_zero_point(c, 1, 7, 1));
    attend_packed(c, scaled(c, sums, scale_of(c, 3), scale_of(c, 4), 2), 5, 8, TN_MAX_RANK);
}

static tn_tensor with_bias(onnx_call *c, tn_tensor x, int bias, int64_t from) {
    tn_shape s = tn_tensor_shape(x);
    if (!onnx_has(c, bias)) return x;
    tn_tensor part = tn_slice(onnx_t(c, bias), (int64_t[]){ from }, (int64_t[]){ from + s.dim[2] }, NULL, 1);
    return tn_add(x, tn_cast(part, tn_tensor_dtype(x)));
}
static tn_tensor behind(onnx_call *c, int past, tn_tensor now) {
    if (!onnx_has(c, past)) return now;
    return tn_concat((tn_tensor[]){ tn_cast(onnx_t(c, past), tn_tensor_dtype(now)), now }, 2, 2);
}
void onnx_op_multi_head_attention(onnx_call *c) {
    int64_t heads = onnx_attr_need_int(c, "num_heads");
    onnx_attend a = { .floor = mask_value(c), .scale = onnx_attr_float(c, "scale", 0) };
    bool causal = onnx_attr_int(c, "unidirectional", 0);
    if (!onnx_has(c, 1) || !onnx_has(c, 2) || onnx_rank(c, 0) != 3 || heads < 1) onnx_refuse(c, "packed operands");
    if (c->n_in > 8) onnx_refuse(c, "%d operands", c->n_in);
    tn_tensor q = accurate(c, 0), k = accurate(c, 1), v = accurate(c, 2);
    tn_shape s = onnx_shape(c, 0), ks = onnx_shape(c, 1), vs = onnx_shape(c, 2);
    for (int i = 0; i < 3; i++)
        if (onnx_is_dim(onnx_shape(c, i).dim[onnx_rank(c, i) == 4 ? 3 : 2]) ||
            (i && ks.rank == 4 && onnx_is_dim(onnx_shape(c, i).dim[1])))
            onnx_refuse(c, "heads or features of a size that a run gives");
    if ((ks.rank != 3 && ks.rank != 4) || vs.rank != ks.rank || s.dim[2] % heads) onnx_refuse(c, "keys of rank %d", ks.rank);
    if (ks.rank == 4 && onnx_has(c, 3)) onnx_refuse(c, "a bias of keys that are split");
    a.q = onnx_split_heads(c, with_bias(c, q, 3, 0), heads);
    a.k = ks.rank == 4 ? k : onnx_split_heads(c, with_bias(c, k, 3, s.dim[2]), heads);
    a.v = vs.rank == 4 ? v : onnx_split_heads(c, with_bias(c, v, 3, 2 * s.dim[2]), heads);
    a.k = behind(c, 6, a.k), a.v = behind(c, 7, a.v);
    if (a.scale == 0) a.scale = 1 / sqrt((double)(s.dim[2] / heads));
    int64_t past = onnx_has(c, 6) ? onnx_shape(c, 6).dim[2] : 0;
    if (tn_tensor_shape(a.q).rank < 0 || tn_tensor_shape(a.k).rank < 0) onnx_refuse_graph(c);
    read_keys(c, &a, 4, past);
    read_bias(c, &a, 5);
    if (causal) onnx_allow_band(c, &a, tn_dim_value(c->g, past), -1, 0);
    put(c, 0, onnx_join_heads(onnx_attention(&a)), 0);
    put(c, 1, a.k, 0), put(c, 2, a.v, 0);
}

/* The lengths of all batches must be the whole cache: a shorter one has rows that mean nothing, in places that only the run
 * knows. */
void onnx_op_group_query_attention(onnx_call *c) {
    int64_t heads = onnx_attr_need_int(c, "num_heads"), groups = onnx_attr_need_int(c, "kv_num_heads"),
            window = onnx_attr_int(c, "local_window_size", -1);
    onnx_attend a = { .floor = -INFINITY,
                      .scale = onnx_attr_float(c, "scale", 0),
                      .softcap = onnx_attr_float(c, "softcap", 0) };
    bool turn = onnx_attr_int(c, "do_rotary", 0), interleaved = onnx_attr_int(c, "rotary_interleaved", 0);
    int n;
    if (!onnx_has(c, 1) || !onnx_has(c, 2) || onnx_rank(c, 0) != 3 || heads < 1 || groups < 1 || heads % groups || c->n_in > 9)
        onnx_refuse(c, "packed operands");
    if (onnx_attr_int(c, "smooth_softmax", 0)) onnx_refuse(c, "attribute smooth_softmax");
    tn_shape s = onnx_shape(c, 0);
    int64_t past = onnx_has(c, 3) ? onnx_shape(c, 3).dim[2] : 0;
    const int64_t *lengths = onnx_known_ints(c, 5, "lengths", &n);
    for (int i = 0; i < n; i++)
        if (lengths[i] != past + s.dim[1] - 1)
            onnx_refuse(c, "a batch of %lld keys, expected %lld", (long long)lengths[i] + 1, (long long)(past + s.dim[1]));
    a.q = onnx_split_heads(c, accurate(c, 0), heads), a.k = onnx_split_heads(c, accurate(c, 1), groups),
    a.v = onnx_split_heads(c, accurate(c, 2), groups);
    if (turn) {
        tn_tensor from = tn_full(c->g, TN_I64, TN_SCALAR, (double)past);
        onnx_rotary r = { .interleaved = interleaved, .dims = 2 * onnx_shape(c, 7).dim[1] };
        r.cos = onnx_rotary_rows(c, onnx_t(c, 7), tn_add(tn_iota(c->g, TN_I64, TN_DIMS(1, s.dim[1]), 1), from), 1, s.dim[1]);
        r.sin = onnx_rotary_rows(c, onnx_t(c, 8), tn_add(tn_iota(c->g, TN_I64, TN_DIMS(1, s.dim[1]), 1), from), 1, s.dim[1]);
        a.q = onnx_rotate(c, a.q, &r), a.k = onnx_rotate(c, a.k, &r);
    }
    a.k = behind(c, 3, a.k), a.v = behind(c, 4, a.v);
    if (a.scale == 0) a.scale = 1 / sqrt((double)(s.dim[2] / heads));
    onnx_allow_band(c, &a, tn_full(c->g, TN_I64, TN_SCALAR, (double)past), window > 0 ? window - 1 : -1, 0);
    put(c, 0, onnx_join_heads(onnx_attention(&a)), 0);
    put(c, 1, a.k, 0), put(c, 2, a.v, 0);
}
