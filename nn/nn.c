/* nn.c - helpers of the layers. In: names, shapes, the graph's seed. Out: parameters with their initial values.
 * Initial values are made in memory of the context and copied by the graph; nothing stays owned here. */
#include "nn.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_NAME = 512 };

tn_tensor nn_fail(tn_graph *g, tn_status code, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tn_graph_fail(g, code, text);
}

bool nn_given(tn_graph *g, tn_tensor x, const char *fn) {
    if (tn_tensor_shape(x).rank >= 0) return true;
    nn_fail(g, TN_ERR_INVAL, "%s: an operand is not a tensor of %s (id %u)", fn, x.graph ? "its graph" : "any graph",
            (unsigned)x.id);
    return false;
}

bool nn_check(tn_tensor x, const char *fn, int min_rank, tn_shape *out_shape) {
    *out_shape = tn_tensor_shape(x);
    if (!nn_given(x.graph, x, fn)) return false;
    tn_dtype t = tn_tensor_dtype(x);
    bool is_float = t == TN_F32 || t == TN_F64 || t == TN_F16 || t == TN_BF16;
    if (!is_float) nn_fail(x.graph, TN_ERR_DTYPE, "%s: expected a float tensor, got %s", fn, tn_dtype_name(t));
    if (is_float && out_shape->rank < min_rank)
        nn_fail(x.graph, TN_ERR_SHAPE, "%s: expected rank %d or more, got rank %d", fn, min_rank, out_shape->rank);
    return is_float && out_shape->rank >= min_rank;
}

bool nn_axis(tn_tensor x, const char *fn, int axis, int *out_axis) {
    int rank = tn_tensor_shape(x).rank;
    if (!nn_given(x.graph, x, fn)) return false;
    *out_axis = axis < 0 ? axis + rank : axis;
    if (*out_axis >= 0 && *out_axis < rank) return true;
    nn_fail(x.graph, TN_ERR_SHAPE, "%s: axis %d of a tensor of rank %d", fn, axis, rank);
    return false;
}

int64_t nn_times(tn_graph *g, int64_t x, int64_t y) {
    int64_t p;
    return x >= 0 && y >= 0 && !__builtin_mul_overflow(x, y, &p) ? p : tn_dim_mul(g, x, y);
}
int64_t nn_plus(tn_graph *g, int64_t x, int64_t n) { return x >= 0 ? x + n : tn_dim_add(g, x, n); }
int64_t nn_product(tn_graph *g, const int64_t *dims, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p = nn_times(g, p, dims[i]);
    return p;
}
tn_tensor nn_size_like(tn_tensor x, int64_t size) {
    return size >= 0 ? nn_scalar(x, (double)size) : tn_cast(tn_dim_value(x.graph, size), tn_tensor_dtype(x));
}
tn_tensor nn_unbiased(tn_tensor v, int64_t n, int correction, bool one_is_enough) {
    if (n >= 0) {
        double less = (double)(n - correction);
        return tn_mul_scalar(v, (double)n / (one_is_enough && less < 1 ? 1 : less));
    }
    tn_tensor all = tn_cast(tn_dim_value(v.graph, n), TN_F64), less = tn_add_scalar(all, -correction);
    return tn_mul(v, tn_cast(tn_div(all, one_is_enough ? tn_max_scalar(less, 1) : less), tn_tensor_dtype(v)));
}
tn_tensor nn_by_size(tn_tensor x, int64_t size) {
    return size >= 0 ? tn_mul_scalar(x, (double)size) : tn_mul(x, nn_size_like(x, size));
}
int64_t nn_least(tn_graph *g, int64_t size) {
    int64_t lo = size;
    return size < 0 && tn_dim_range(g, size, &lo, NULL) ? 0 : lo;
}
int64_t nn_most(tn_graph *g, int64_t size) {
    int64_t hi = size;
    return size < 0 && tn_dim_range(g, size, NULL, &hi) ? 0 : hi;
}
const char *nn_size_text(const tn_graph *g, int64_t size, char out[NN_SIZE_TEXT]) {
    if (!tn_dim_text(g, size, out, NN_SIZE_TEXT)) out[0] = 0;
    return out;
}
tn_tensor nn_scalar(tn_tensor x, double value) {
    if (!nn_given(x.graph, x, "a layer")) return (tn_tensor){ x.graph, 0 };
    return tn_full(x.graph, tn_tensor_dtype(x), TN_SCALAR, value);
}

tn_tensor nn_row_sum(tn_tensor x, int64_t axis, int keep) {
    tn_dtype t = tn_tensor_dtype(x);
    return tn_sum(t == TN_F16 || t == TN_BF16 ? tn_cast(x, TN_F32) : x, &axis, 1, keep);
}

uint64_t nn_hash(const tn_graph *g, const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *scope = tn_graph_scope(g); *scope; scope++) h = (h ^ (unsigned char)*scope) * 0x100000001b3u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}
int64_t nn_stream(const tn_graph *g, const char *name) { return (int64_t)(nn_hash(g, name) >> 4); }

/* ---- initial values -------------------------------------------------------------------------------------------------- */

/* "<name>/<suffix>" in full[MAX_NAME]; false and an error when there is no name or it is too long. */
static bool join(tn_graph *g, const char *name, const char *suffix, char *full) {
    if (!name || !*name) {
        nn_fail(g, TN_ERR_INVAL, "a layer with states needs a name");
        return false;
    }
    int len = snprintf(full, MAX_NAME, "%s%s%s", name, suffix ? "/" : "", suffix ? suffix : "");
    if (len >= 0 && len < MAX_NAME) return true;
    nn_fail(g, TN_ERR_INVAL, "a layer's name has more than %d characters", MAX_NAME);
    return false;
}

/* A state that tn_graph_reuse gives again needs no initial value. */
static bool given_again(tn_graph *g, const char *full) {
    char name[2 * MAX_NAME];
    snprintf(name, sizeof name, "%s%s", tn_graph_scope(g), full);
    return tn_graph_reuse(g, -1) && tn_graph_find(g, name).id != 0;
}

tn_tensor nn_counter(tn_graph *g, const char *name, const char *suffix) {
    char full[MAX_NAME];
    if (!join(g, name, suffix, full)) return (tn_tensor){ g, 0 };
    bool again = given_again(g, full);
    tn_tensor n = tn_state(g, full, TN_I64, TN_SCALAR, NULL);
    if (n.id && !again) tn_assign(n, tn_add_scalar(n, 1));
    return n;
}
tn_tensor tn_nn_counter(tn_graph *g, const char *name) { return nn_counter(g, name, NULL); }

static tn_tensor declare(tn_graph *g, tn_dtype t, const char *full, tn_shape shape, tn_nn_init init, double scale, bool param) {
    int64_t n = 1, bytes = 0;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] < 0 && nn_is_size(shape.dim[i])) {
            char text[NN_SIZE_TEXT];
            return nn_fail(g, TN_ERR_SHAPE, "dim %d of %s is %s, which a run gives: a parameter's sizes are numbers", i, full,
                           nn_size_text(g, shape.dim[i], text));
        } else if (shape.dim[i] < 0 || __builtin_mul_overflow(n, shape.dim[i], &n))
            return nn_fail(g, TN_ERR_SHAPE, "the shape of %s is negative or too large (dim %d is %lld)", full, i,
                           (long long)shape.dim[i]);
    t = t == TN_F64 ? TN_F64 : TN_F32;
    if (__builtin_mul_overflow(n, (int64_t)tn_dtype_size(t), &bytes)) return nn_fail(g, TN_ERR_SHAPE, "%s is too large", full);
    void *data = NULL;
    if (init != TN_NN_INIT_ZEROS && n && !given_again(g, full)) {
        data = tn_ctx_realloc(tn_graph_ctx(g), NULL, 0, (size_t)bytes);
        if (!data)
            return nn_fail(g, TN_ERR_NOMEM, "out of memory: the initial value of %s, %lld bytes", full, (long long)bytes);
        tn_tensor failed = { g, 1 };
        if (!nn_initial(g, init, scale, shape, nn_hash(g, full) ^ tn_graph_seed(g) * 0x9e3779b97f4a7c15u, t, data))
            failed = nn_fail(g, TN_ERR_NOMEM, "out of memory: the initial value of %s", full);
        if (!failed.id) {
            tn_ctx_realloc(tn_graph_ctx(g), data, (size_t)bytes, 0);
            return failed;
        }
    }
    tn_tensor x = param ? tn_param(g, full, t, shape, data) : tn_state(g, full, t, shape, data);
    if (data) tn_ctx_realloc(tn_graph_ctx(g), data, (size_t)bytes, 0);
    return x;
}

tn_tensor nn_param_as(tn_graph *g, tn_dtype t, const char *full, tn_shape shape, tn_nn_init init, double scale) {
    tn_tensor p = declare(g, t, full, shape, init, scale, true);
    return p.id ? tn_cast(p, t) : p;
}
tn_tensor nn_param(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, tn_nn_init init,
                   double scale) {
    char full[MAX_NAME];
    return join(g, name, suffix, full) ? nn_param_as(g, t, full, shape, init, scale) : (tn_tensor){ g, 0 };
}
tn_tensor tn_nn_param(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, tn_nn_init init, double scale) {
    char full[MAX_NAME];
    if (!g || !join(g, name, NULL, full)) return (tn_tensor){ g, 0 };
    if (t != TN_F32 && t != TN_F64)
        return nn_fail(g, TN_ERR_DTYPE, "tn_nn_param: parameters are f32 or f64, not %s", tn_dtype_name(t));
    if ((unsigned)init > TN_NN_INIT_ORTHOGONAL || shape.rank < 0 || shape.rank > TN_MAX_RANK)
        return nn_fail(g, TN_ERR_INVAL, "tn_nn_param: initial value %d, rank %d", (int)init, shape.rank);
    return declare(g, t, full, shape, init, scale, true);
}
tn_tensor nn_state(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, tn_nn_init init) {
    char full[MAX_NAME];
    return join(g, name, suffix, full) ? declare(g, t, full, shape, init, 1, false) : (tn_tensor){ g, 0 };
}
