/* tenon_index.h - choosing, writing and combining elements by computed places: n-dimensional gathers and scatters, segments,
 * search, sparse matrices, ragged batches, sets of values, running sums. Compositions of the builders of tenon.h, with the
 * gradients of those.
 *
 * Results whose size depends on values are bounded: the caller says how many there may be (`most`), and gets a count i64[] of
 * how many there are. Places behind the count hold what the builder's comment says; when the count is above `most`, the first
 * `most` are there and nothing is written beyond.
 *
 * Sizes may be dims (tn_dim), `most`, lengths and counts of rows, too. Errors: as for all builders, the first one stays in the
 * graph and the result is poisoned. */
#ifndef TENON_INDEX_H
#define TENON_INDEX_H

#include "tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- places ---- */

/* index i[b..,m..,k], x of batch axes b.., k axes that are indexed, and the rest r..: the result is [b..,m..,r..], where entry
 * (b,m) is x[b, index[b,m,0], .., index[b,m,k-1]]. n_batch: how many batch axes there are. Indices are clamped. (Along one
 * axis: tn_gather; one for each element: tn_take_along.) */
TN_API tn_tensor tn_gather_nd(tn_tensor x, tn_tensor index, int n_batch);
/* base [d..,r..] combined with updates [m..,r..] at index i[m..,k], k indices into the first k axes of base, as tn_scatter
 * does it. An update with an index out of range is skipped. */
TN_API tn_tensor tn_scatter_nd(tn_tensor base, tn_tensor index, tn_tensor updates, tn_scatter_mode mode);
/* base[index[i][j]][j] combined with updates[i][j], for axis 0: for each place apart, as tn_take_along reads. Off the axis
 * index and updates may be smaller than base; they have one shape. An index out of range is skipped. */
TN_API tn_tensor tn_put_along(tn_tensor base, tn_tensor index, tn_tensor updates, int axis, tn_scatter_mode mode);

/* Where each value would stand in `sorted` (rising along the last axis), as i64 of the shape of values: the number of elements
 * below it, or, with right != 0, of those not above it. sorted: one row for all values, or [b..,n] for values [b..,m]. NaNs are
 * the largest. Binary search: log2(n) gathers. */
TN_API tn_tensor tn_searchsorted(tn_tensor sorted, tn_tensor values, int right);

/* ---- segments: rows of x [n,..] with one id i[n] each, in any order; ids out of 0 .. n_segments - 1 are left out ---- */

/* [n_segments,..]: the sum, product, largest or smallest of each segment's rows; of an empty one 0, 1, or the lowest (highest)
 * value of the dtype. SET gives a segment's last row, 0 where there is none. */
TN_API tn_tensor tn_segment(tn_tensor x, tn_tensor ids, int64_t n_segments, tn_scatter_mode mode);
TN_API tn_tensor tn_segment_mean(tn_tensor x, tn_tensor ids, int64_t n_segments); /* 0 where a segment is empty */
/* Ids of ragged rows: offsets i[s+1] rise from 0; row r of 0 .. n_rows - 1 belongs to the segment with offsets[s] <= r <
 * offsets[s+1], rows behind the last offset to s. i64[n_rows]. */
TN_API tn_tensor tn_segment_ids(tn_tensor offsets, int64_t n_rows);

/* ---- sparse matrices: k entries, each with its row and its column, in any order; several for one place are added, and none at
 *      all is fine. Entries whose row is out of range are left out, columns are clamped. ---- */

/* The sparse matrix times x: values f[k], rows i[k], columns i[k], x f[m,n]; f[n_rows,n]. Blocks: values f[k,a,b], whose rows
 * and columns count blocks; m is a multiple of b, the result f[n_rows * a,n]. f16 and bf16 are summed as f32. Gradients go to
 * values and x. Rows and columns that change places give the transposed matrix. */
TN_API tn_tensor tn_sparse_matmul(tn_tensor values, tn_tensor rows, tn_tensor columns, int64_t n_rows, tn_tensor x);
/* The same for entries row by row (CSR): those of row i are offsets[i] .. offsets[i+1] - 1, offsets i[n_rows+1] rise from 0. */
TN_API tn_tensor tn_sparse_matmul_csr(tn_tensor values, tn_tensor offsets, tn_tensor columns, tn_tensor x);

/* ---- ragged batches: sequences of different lengths, one behind the other. offsets i[s+1] rise from 0; sequence i is rows
 *      offsets[i] .. offsets[i+1] - 1 of x [n,..], and may be empty. Rows behind the last offset belong to none. ---- */

typedef enum { TN_RAGGED_SUM, TN_RAGGED_MAX, TN_RAGGED_MIN, TN_RAGGED_MEAN } tn_ragged_mode;
/* [s,..]: the rows of each sequence combined; of an empty one 0, the lowest or highest value of the dtype, 0. */
TN_API tn_tensor tn_ragged(tn_tensor x, tn_tensor offsets, tn_ragged_mode mode);
/* tn_ragged over the rows table[index[i]]: bags of embeddings. table [v,d], index i[n], clamped; [s,d] */
TN_API tn_tensor tn_embedding_bag(tn_tensor table, tn_tensor index, tn_tensor offsets, tn_ragged_mode mode);
TN_API tn_tensor tn_ragged_softmax(tn_tensor x, tn_tensor offsets); /* within each sequence; 0 in rows of none */
TN_API tn_tensor tn_ragged_seen(tn_tensor offsets, int64_t length); /* bool[s,length]: whether the sequence is so long */
/* The batch as [s,length,..], with value behind each sequence; what is longer is cut. tn_ragged_rows is the way back:
 * [n_rows,..], zeros in rows of no sequence, and where one is longer than padded. */
TN_API tn_tensor tn_ragged_pad(tn_tensor x, tn_tensor offsets, int64_t length, double value);
TN_API tn_tensor tn_ragged_rows(tn_tensor padded, tn_tensor offsets, int64_t n_rows);
/* tn_nn_attention within each sequence: q f[n,heads,d] by q_offsets, k f[m,heads,d] and v f[m,heads,e] by k_offsets, in
 * batches padded to `length`, which none should exceed (what does is left out). causal: the queries of a sequence stand at its
 * last keys, and see those up to their own. [n,heads,e]; 0 for queries that see no key. */
TN_API tn_tensor tn_ragged_attention(tn_tensor q, tn_tensor k, tn_tensor v, tn_tensor q_offsets, tn_tensor k_offsets,
                                     int64_t length, int causal);

/* ---- sets of values ---- */

/* The different values of x, all axes as one, rising (NaNs are one value, the last): [most], zeros behind the count. Each of
 * the following may be NULL: out_count i64[]; out_inverse, of x's shape, the place of each element's value; out_counts
 * i64[most], how often each is there. */
TN_API tn_tensor tn_unique(tn_tensor x, int64_t most, tn_tensor *out_count, tn_tensor *out_inverse, tn_tensor *out_counts);
/* Places of what is not 0 (or true), in the order of memory: i64[most,rank], -1 behind the count (i64[], may be NULL). */
TN_API tn_tensor tn_nonzero(tn_tensor x, int64_t most, tn_tensor *out_count);

/* ---- running sums ---- */

typedef enum { TN_SCAN_SUM, TN_SCAN_PROD, TN_SCAN_MAX, TN_SCAN_MIN } tn_scan_mode;
typedef struct {
    int exclusive; /* element i has those before i, the first one 0, 1, or the lowest (highest) value of the dtype */
    int reverse;   /* from the end */
} tn_cumulative_opts;
/* Element i: all of 0 .. i along axis combined. A parallel scan in blocks of 16, on GPUs of up to 4096, of whose totals a
 * scan is made in turn (Blelloch 1990): three passes over memory, and a rounding error that grows with log(n). */
TN_API tn_tensor tn_cumulative(tn_tensor x, int axis, tn_scan_mode mode, tn_cumulative_opts opts);

#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)
#define tn_gather_nd(x, ...) (tn_gather_nd)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_scatter_nd(x, ...) (tn_scatter_nd)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_put_along(x, ...) (tn_put_along)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_searchsorted(x, ...) (tn_searchsorted)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_segment(x, ...) (tn_segment)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_segment_mean(x, ...) (tn_segment_mean)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_segment_ids(x, ...) (tn_segment_ids)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_sparse_matmul(x, ...) (tn_sparse_matmul)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_sparse_matmul_csr(x, ...) (tn_sparse_matmul_csr)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged(x, ...) (tn_ragged)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_embedding_bag(x, ...) (tn_embedding_bag)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged_softmax(x, ...) (tn_ragged_softmax)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged_seen(x, ...) (tn_ragged_seen)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged_pad(x, ...) (tn_ragged_pad)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged_rows(x, ...) (tn_ragged_rows)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_ragged_attention(x, ...) (tn_ragged_attention)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_unique(x, ...) (tn_unique)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nonzero(x, ...) (tn_nonzero)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_cumulative(x, ...) (tn_cumulative)(tn_at(x, TN_HERE), __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
