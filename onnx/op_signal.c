/* op_signal.c - windows, Fourier transforms, counts of n-grams, determinants. */
#include "import.h"

#include "tenon/tenon_linalg.h"
#include "tenon/tenon_signal.h"

static void window(onnx_call *c, tn_signal_window_kind kind) {
    int64_t n = onnx_known_int(c, 0, "size"), to = onnx_attr_int(c, "output_datatype", ELEM_F32);
    int periodic = (int)onnx_attr_int(c, "periodic", 1);
    if (n < 0 || n > 1 << 20 || to <= 0 || to >= ELEM_N || onnx_elem_dtype((int)to) == TN_N_DTYPES)
        onnx_refuse(c, "its size or type");
    onnx_put(c, 0, tn_cast(tn_signal_window(c->g, kind, n, periodic), onnx_elem_dtype((int)to)), (int)to);
}
void onnx_op_hann_window(onnx_call *c) { window(c, TN_SIGNAL_HANN); }
void onnx_op_hamming_window(onnx_call *c) { window(c, TN_SIGNAL_HAMMING); }
void onnx_op_blackman_window(onnx_call *c) { window(c, TN_SIGNAL_BLACKMAN); }

void onnx_op_mel_weight_matrix(onnx_call *c) {
    int64_t bands = onnx_known_int(c, 0, "number of bands"), length = onnx_known_int(c, 1, "length"),
            rate = onnx_known_int(c, 2, "rate"), to = onnx_attr_int(c, "output_datatype", ELEM_F32);
    int n;
    double low = onnx_known_floats(c, 3, "lower edge", &n)[0], high = onnx_known_floats(c, 4, "upper edge", &n)[0];
    if (to <= 0 || to >= ELEM_N || !onnx_is_float((int)to)) onnx_refuse(c, "its type");
    tn_tensor y = tn_signal_mel(c->g, bands, length, (double)rate, low, high);
    onnx_put(c, 0, tn_cast(y, onnx_elem_dtype((int)to)), (int)to);
}

/* ---- Fourier ---- */

/* x [..,n,1 or 2] to the first m frequencies along the last axis but one: [..,m,2]. */
static tn_tensor transform(onnx_call *c, tn_tensor x, int64_t m, bool inverse) {
    tn_shape s = tn_tensor_shape(x), real = s, cut = s;
    int64_t start[TN_MAX_RANK] = { 0 }, more[TN_MAX_RANK] = { 0 };
    if (s.rank < 2) return x;
    if (s.dim[s.rank - 1] < 1 || s.dim[s.rank - 1] > 2 || s.dim[s.rank - 2] < 1) onnx_refuse(c, "its shape");
    more[s.rank - 1] = 2 - s.dim[s.rank - 1], real.rank--, cut.dim[s.rank - 1] = 2, cut.dim[s.rank - 2] = m;
    if (more[s.rank - 1] && !inverse && m == s.dim[s.rank - 2] / 2 + 1) return tn_signal_rfft(tn_reshape(x, real), -1);
    if (more[s.rank - 1]) x = tn_pad(x, start, more, s.rank, 0);
    return tn_slice(tn_signal_fft(x, -1, inverse), start, cut.dim, NULL, s.rank);
}

void onnx_op_dft(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0), cut = s;
    bool inverse = onnx_attr_int(c, "inverse", 0), half = onnx_attr_int(c, "onesided", 0);
    int64_t given = c->opset < 20    ? onnx_attr_int(c, "axis", 1)
                    : onnx_has(c, 2) ? onnx_known_int(c, 2, "axis")
                                     : -2,
            start[TN_MAX_RANK] = { 0 }, more[TN_MAX_RANK] = { 0 };
    int axis = onnx_axis(c, given, s.rank);
    if (s.rank < 2 || axis == s.rank - 1 || (half && inverse)) onnx_refuse(c, "its axis");
    int64_t length = onnx_has(c, 1) ? onnx_known_int(c, 1, "length") : s.dim[axis];
    if (length < 1 || length > 1 << 24) onnx_refuse(c, "a transform of %lld", (long long)length);
    if (length < cut.dim[axis]) cut.dim[axis] = length;
    more[axis] = length - cut.dim[axis];
    tn_tensor x = tn_slice(onnx_accurate(onnx_t(c, 0)), start, cut.dim, NULL, s.rank);
    if (more[axis]) x = tn_pad(x, start, more, s.rank, 0);
    x = transform(c, tn_transpose(x, axis, s.rank - 2), half ? length / 2 + 1 : length, inverse);
    onnx_put(c, 0, tn_cast(tn_transpose(x, axis, s.rank - 2), onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

void onnx_op_stft(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    bool half = onnx_attr_int(c, "onesided", 1);
    int64_t step = onnx_known_int(c, 1, "step"), one = 1, axis = 1;
    int64_t length = onnx_has(c, 3) ? onnx_known_int(c, 3, "frame length") : onnx_has(c, 2) ? onnx_shape(c, 2).dim[0] : 0;
    if (s.rank != 3 || step < 1 || length < 1 || length > s.dim[1] || (half && s.dim[2] != 1)) onnx_refuse(c, "its frames");
    tn_tensor x = tn_window(onnx_accurate(onnx_t(c, 0)), &axis, &length, &step, &one, 1); /* [N,frames,1 or 2,length] */
    if (onnx_has(c, 2)) {
        if (onnx_shape(c, 2).rank != 1 || onnx_shape(c, 2).dim[0] != length) onnx_refuse(c, "its window");
        x = tn_mul(x, tn_cast(onnx_t(c, 2), tn_tensor_dtype(x)));
    }
    x = transform(c, tn_transpose(x, 2, 3), half ? length / 2 + 1 : length, false);
    onnx_put(c, 0, tn_cast(x, onnx_elem_dtype(onnx_elem(c, 0))), ELEM_NONE);
}

/* ---- TfIdfVectorizer, of whole numbers ---- */

typedef struct ngrams {
    const int64_t *pool, *starts, *index;
    const float *weights;
    int n_pool, n_starts, n_index, n_weights;
    int64_t least, most, skips, columns;
    bool tf, idf;
} ngrams;

static void read_ngrams(onnx_call *c, ngrams *g) {
    int64_t words = 0;
    g->pool = onnx_attr_ints(c, "pool_int64s", &g->n_pool), g->starts = onnx_attr_ints(c, "ngram_counts", &g->n_starts);
    g->index = onnx_attr_ints(c, "ngram_indexes", &g->n_index);
    const onnx_attr *w = onnx_attr_find(c, "weights");
    if (w) g->weights = w->floats, g->n_weights = w->type == ATTR_FLOATS ? w->n : -1;
    g->least = onnx_attr_need_int(c, "min_gram_length"), g->most = onnx_attr_need_int(c, "max_gram_length"),
    g->skips = onnx_attr_need_int(c, "max_skip_count");
    g->idf = onnx_attr_is(c, "mode", "", "IDF") || onnx_attr_is(c, "mode", "", "TFIDF"),
    g->tf = !onnx_attr_is(c, "mode", "", "IDF");
    if (!g->pool || !g->starts || !g->index || g->least < 1 || g->most < g->least || g->most > 64 || g->skips < 0 ||
        g->skips > 1024)
        onnx_refuse(c, "its attributes");
    if (!g->idf && !onnx_attr_is(c, "mode", "", "TF")) onnx_refuse(c, "attribute mode");
    for (int i = 0; i < g->n_starts; i++) {
        int64_t end = i + 1 < g->n_starts ? g->starts[i + 1] : g->n_pool;
        if (g->starts[i] < 0 || end < g->starts[i] || end > g->n_pool || (end - g->starts[i]) % (i + 1))
            onnx_refuse(c, "attribute ngram_counts");
        words += (end - g->starts[i]) / (i + 1);
    }
    if (words != g->n_index || (w && g->n_weights != words) || words > 4096) onnx_refuse(c, "%lld n-grams", (long long)words);
    for (int i = 0; i < g->n_index; i++) {
        if (g->index[i] < 0 || g->index[i] > 1 << 20) onnx_refuse(c, "attribute ngram_indexes");
        if (g->index[i] >= g->columns) g->columns = g->index[i] + 1;
    }
}

/* How often the n-gram w[0..n) stands in the rows of x i64[R,C], with each number of elements left out between: i64[R]. */
static tn_tensor occurrences(onnx_call *c, tn_tensor x, const int64_t *w, int64_t n, int64_t skips) {
    tn_shape s = tn_tensor_shape(x);
    tn_tensor sum = tn_full(c->g, TN_I64, TN_DIMS(s.dim[0]), 0);
    for (int64_t skip = 0; skip <= (n > 1 ? skips : 0); skip++) {
        int64_t count = s.dim[1] - (n - 1) * (skip + 1);
        if (count < 1) break;
        tn_tensor all = tn_full(c->g, TN_BOOL, TN_DIMS(s.dim[0], count), 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t start[2] = { 0, i * (skip + 1) }, stop[2] = { s.dim[0], start[1] + count };
            tn_tensor word = tn_const(c->g, TN_I64, TN_SCALAR, &w[i]);
            all = tn_and(all, tn_eq(tn_slice(x, start, stop, NULL, 2), word));
        }
        sum = tn_add(sum, tn_sum(tn_cast(all, TN_I64), TN_INTS(1), 0));
    }
    return sum;
}

void onnx_op_tf_idf_vectorizer(onnx_call *c) {
    ngrams g = { .n_pool = 0 };
    tn_shape s = onnx_shape(c, 0), out = { .rank = s.rank };
    read_ngrams(c, &g);
    if (s.rank < 1 || s.rank > 2 || onnx_is_float(onnx_elem(c, 0))) onnx_refuse(c, "its operand");
    int64_t rows = s.rank == 2 ? s.dim[0] : 1, word = 0;
    tn_tensor x = tn_reshape(tn_cast(onnx_t(c, 0), TN_I64), TN_DIMS(rows, s.dim[s.rank - 1]));
    tn_tensor *columns = ONNX_NEW(c->im->env, tn_tensor, g.columns + 1);
    for (int64_t n = 1; n <= g.n_starts; n++) {
        int64_t end = n < g.n_starts ? g.starts[n] : g.n_pool;
        for (int64_t at = g.starts[n - 1]; at < end; at += n, word++) {
            if (n < g.least || n > g.most) continue;
            tn_tensor v = tn_cast(occurrences(c, x, g.pool + at, n, g.skips), TN_F32);
            if (!g.tf) v = tn_min(v, onnx_scalar(v, 1));
            if (g.idf && g.weights) v = tn_mul_scalar(v, (double)g.weights[word]);
            tn_tensor *to = &columns[g.index[word]];
            *to = to->graph ? tn_add(*to, v) : v;
        }
    }
    for (int64_t i = 0; i < g.columns; i++)
        if (!columns[i].graph) columns[i] = tn_full(c->g, TN_F32, TN_DIMS(rows), 0);
    out.dim[0] = rows, out.dim[s.rank - 1] = g.columns;
    onnx_put(c, 0, tn_reshape(tn_nn_stack(columns, (int)g.columns, 1), out), ELEM_F32);
}

/* ---- determinants ---- */

void onnx_op_det(onnx_call *c) { onnx_put(c, 0, tn_linalg_det(onnx_t(c, 0)), ELEM_NONE); }
