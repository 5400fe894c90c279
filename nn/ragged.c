/* ragged.c - batches of sequences of different lengths, one behind the other in memory (tenon_index.h).
 *
 * In: rows x [n,..] and offsets i[s+1]: sequence i is rows offsets[i] .. offsets[i+1] - 1. Out: compositions of gathers,
 * segments and, where sequences meet each other, of padded batches; memory is the graph's. */
#include "nn.h"

#include "tenon/tenon_index.h"

#include <math.h>

static tn_tensor poisoned(tn_tensor x) { return (tn_tensor){ x.graph, 0 }; }

/* x has rows, offsets are a vector of one number or more. */
static bool is_ragged(tn_tensor x, tn_tensor offsets, const char *fn, tn_shape *out_shape, int64_t *out_sequences) {
    if (!nn_given(x.graph, x, fn) || !nn_given(x.graph, offsets, fn)) return false;
    tn_shape s = tn_tensor_shape(x), o = tn_tensor_shape(offsets);
    tn_dtype t = tn_tensor_dtype(offsets);
    bool known = o.rank == 1 && nn_least(x.graph, o.dim[0]) >= 1 && s.rank >= 1 && (t == TN_I32 || t == TN_I64);
    *out_shape = s, *out_sequences = known ? nn_plus(x.graph, o.dim[0], -1) : 0;
    if (!known)
        nn_fail(x.graph, TN_ERR_SHAPE,
                "%s: rows of rank %d with offsets of rank %d and dtype %s: expected rank 1 or more and a "
                "vector of one or more i32 or i64",
                fn, s.rank, o.rank, tn_dtype_name(t));
    return known;
}
/* v[s] or v[n] beside the axes of x. */
static tn_tensor column(tn_tensor v, int rank) {
    tn_shape s = tn_tensor_shape(v);
    for (int i = s.rank; i >= 0 && i < rank; i++) s.dim[i] = 1;
    if (s.rank >= 0) s.rank = rank;
    return tn_reshape(v, s);
}
/* Offset i, or i + 1, of each sequence: i64[s]. */
static tn_tensor bound(tn_tensor offsets, int64_t sequences, int64_t end) {
    int64_t stop = nn_plus(offsets.graph, sequences, end);
    return tn_cast(tn_slice(offsets, &end, &stop, NULL, 1), TN_I64);
}
static tn_tensor lengths(tn_tensor offsets, int64_t sequences) {
    return tn_sub(bound(offsets, sequences, 1), bound(offsets, sequences, 0));
}

tn_tensor tn_ragged(tn_tensor x, tn_tensor offsets, tn_ragged_mode mode) {
    static const char fn[] = "tn_ragged";
    tn_shape s;
    int64_t n;
    if ((unsigned)mode > TN_RAGGED_MEAN) return nn_fail(x.graph, TN_ERR_INVAL, "%s: there is no mode %d", fn, (int)mode);
    if (!is_ragged(x, offsets, fn, &s, &n)) return poisoned(x);
    tn_tensor ids = tn_segment_ids(offsets, s.dim[0]);
    if (mode == TN_RAGGED_MEAN) return tn_segment_mean(x, ids, n);
    return tn_segment(x, ids, n,
                      mode == TN_RAGGED_SUM   ? TN_SCATTER_ADD
                      : mode == TN_RAGGED_MAX ? TN_SCATTER_MAX
                                              : TN_SCATTER_MIN);
}

tn_tensor tn_embedding_bag(tn_tensor table, tn_tensor index, tn_tensor offsets, tn_ragged_mode mode) {
    tn_shape s = tn_tensor_shape(table), is = tn_tensor_shape(index);
    if (!nn_given(table.graph, table, "tn_embedding_bag") || !nn_given(table.graph, index, "tn_embedding_bag"))
        return poisoned(table);
    if (s.rank != 2 || is.rank != 1)
        return nn_fail(table.graph, TN_ERR_SHAPE,
                       "tn_embedding_bag: a table of rank %d and indices of rank %d: expected 2 and 1", s.rank, is.rank);
    return tn_ragged(tn_gather(table, index, 0), offsets, mode);
}

tn_tensor tn_ragged_softmax(tn_tensor x, tn_tensor offsets) {
    static const char fn[] = "tn_ragged_softmax";
    tn_shape s;
    int64_t n;
    tn_dtype t = tn_tensor_dtype(x);
    if (!nn_check(x, fn, 1, &s) || !is_ragged(x, offsets, fn, &s, &n)) return poisoned(x);
    if (n == 0 || s.dim[0] == 0) return tn_mul(x, nn_scalar(x, 0));
    if (t == TN_F16 || t == TN_BF16) return tn_cast(tn_ragged_softmax(tn_cast(x, TN_F32), offsets), t);
    tn_tensor ids = tn_segment_ids(offsets, s.dim[0]), zero = nn_scalar(x, 0);
    tn_tensor in = column(tn_lt(ids, nn_size_like(ids, n)), s.rank);
    tn_tensor top = tn_select(in, tn_gather(tn_segment(x, ids, n, TN_SCATTER_MAX), ids, 0), zero);
    tn_tensor e = tn_exp(tn_sub(tn_select(in, x, zero), top)); /* rows of no sequence: no infinities, also in gradients */
    tn_tensor sum = tn_select(in, tn_gather(tn_segment(e, ids, n, TN_SCATTER_ADD), ids, 0), nn_scalar(x, 1));
    return tn_select(in, tn_div(e, sum), zero);
}

tn_tensor tn_ragged_seen(tn_tensor offsets, int64_t length) {
    static const char fn[] = "tn_ragged_seen";
    tn_shape s;
    int64_t n;
    if (!is_ragged(offsets, offsets, fn, &s, &n)) return poisoned(offsets);
    if (!nn_is_size(length)) return nn_fail(offsets.graph, TN_ERR_INVAL, "%s: length is %lld", fn, (long long)length);
    tn_tensor at = tn_iota(offsets.graph, TN_I64, TN_DIMS(n, length), 1);
    return tn_lt(at, column(lengths(offsets, n), 2));
}

tn_tensor tn_ragged_pad(tn_tensor x, tn_tensor offsets, int64_t length, double value) {
    static const char fn[] = "tn_ragged_pad";
    tn_shape s, out;
    int64_t n;
    if (!is_ragged(x, offsets, fn, &s, &n)) return poisoned(x);
    if (!nn_is_size(length) || s.rank == TN_MAX_RANK)
        return nn_fail(x.graph, TN_ERR_SHAPE, "%s: rows of rank %d as sequences of length %lld", fn, s.rank, (long long)length);
    out.rank = s.rank + 1, out.dim[0] = n, out.dim[1] = length;
    for (int i = 1; i < s.rank; i++) out.dim[i + 1] = s.dim[i];
    tn_tensor none = tn_full(x.graph, tn_tensor_dtype(x), out, value);
    if (s.dim[0] == 0 || n == 0 || length == 0) return none;
    tn_tensor at = tn_add(tn_iota(x.graph, TN_I64, TN_DIMS(n, length), 1), column(bound(offsets, n, 0), 2));
    tn_tensor y = tn_reshape(tn_gather(x, tn_reshape(at, TN_DIMS(nn_times(x.graph, n, length))), 0), out);
    return tn_select(column(tn_ragged_seen(offsets, length), out.rank), y, none);
}

tn_tensor tn_ragged_rows(tn_tensor padded, tn_tensor offsets, int64_t n_rows) {
    static const char fn[] = "tn_ragged_rows";
    tn_shape s, out;
    int64_t n;
    if (!is_ragged(padded, offsets, fn, &s, &n)) return poisoned(padded);
    if (s.rank < 2 || s.dim[0] != n || !nn_is_size(n_rows))
        return nn_fail(padded.graph, TN_ERR_SHAPE, "%s: rank %d and %lld sequences for %lld offsets and %lld rows", fn, s.rank,
                       (long long)s.dim[0], (long long)n + 1, (long long)n_rows);
    out.rank = s.rank - 1, out.dim[0] = n_rows;
    for (int i = 2; i < s.rank; i++) out.dim[i - 1] = s.dim[i];
    tn_tensor none = tn_full(padded.graph, tn_tensor_dtype(padded), out, 0);
    if (n == 0 || s.dim[1] == 0 || n_rows == 0) return none;
    tn_graph *g = padded.graph;
    tn_tensor ids = tn_segment_ids(offsets, n_rows), first = tn_gather(tn_cast(offsets, TN_I64), ids, 0);
    tn_tensor at = tn_sub(tn_iota(g, TN_I64, TN_DIMS(n_rows), 0), first), size = nn_size_like(at, s.dim[1]);
    tn_tensor in = tn_and(tn_lt(ids, nn_size_like(ids, n)), tn_lt(at, size));
    tn_shape flat = out;
    flat.dim[0] = nn_times(g, n, s.dim[1]);
    tn_tensor y = tn_gather(tn_reshape(padded, flat), tn_add(nn_by_size(ids, s.dim[1]), at), 0);
    return tn_select(column(in, out.rank), y, none);
}

/* [n,heads,d] as [sequences,heads,length,d] */
static tn_tensor by_heads(tn_tensor x, tn_tensor offsets, int64_t length) {
    return tn_transpose(tn_ragged_pad(x, offsets, length, 0), 1, 2);
}
tn_tensor tn_ragged_attention(tn_tensor q, tn_tensor k, tn_tensor v, tn_tensor q_offsets, tn_tensor k_offsets, int64_t length,
                              int causal) {
    static const char fn[] = "tn_ragged_attention";
    tn_shape s, ks, vs;
    int64_t n, nk;
    if (!nn_check(q, fn, 3, &s) || !nn_check(k, fn, 3, &ks) || !nn_check(v, fn, 3, &vs)) return poisoned(q);
    if (!is_ragged(q, q_offsets, fn, &s, &n) || !is_ragged(k, k_offsets, fn, &ks, &nk)) return poisoned(q);
    if (n != nk || s.rank != 3 || ks.rank != 3 || vs.rank != 3 || ks.dim[0] != vs.dim[0] || nn_least(q.graph, length) < 1)
        return nn_fail(q.graph, TN_ERR_SHAPE,
                       "%s: %lld sequences of queries and %lld of keys, %lld keys and %lld values, ranks %d, %d and %d, length "
                       "%lld: expected as many, rank 3, and a length of 1 or more",
                       fn, (long long)n, (long long)nk, (long long)ks.dim[0], (long long)vs.dim[0], s.rank, ks.rank, vs.rank,
                       (long long)length);
    tn_graph *g = q.graph;
    tn_shape square = TN_DIMS(n, 1, length, length);
    tn_tensor key = tn_iota(g, TN_I64, square, 3), last = tn_reshape(lengths(k_offsets, n), TN_DIMS(n, 1, 1, 1));
    tn_tensor limit = last; /* keys before it are seen */
    if (causal) {           /* the queries are the last ones of their sequence */
        tn_tensor before = tn_sub(last, tn_reshape(lengths(q_offsets, n), TN_DIMS(n, 1, 1, 1)));
        tn_tensor next = tn_add_scalar(tn_iota(g, TN_I64, TN_DIMS(n, 1, length, 1), 2), 1);
        limit = tn_min(last, tn_add(next, before));
    }
    /* Queries that see nothing look at the first place, so that no NaN comes to be; their results are zeros. */
    tn_tensor blind = tn_le(limit, tn_full(g, TN_I64, TN_SCALAR, 0)), any = tn_lt(key, tn_max_scalar(limit, 1));
    tn_tensor y =
        nn_attention(by_heads(q, q_offsets, length), by_heads(k, k_offsets, length), by_heads(v, k_offsets, length), any, fn);
    y = tn_select(blind, nn_scalar(y, 0), y);
    return tn_ragged_rows(tn_transpose(y, 1, 2), q_offsets, s.dim[0]);
}
