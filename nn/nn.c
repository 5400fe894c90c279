/* nn.c - helpers of the layers. In: names, shapes, the graph's seed. Out: parameters with their initial values.
 * Initial values are made in memory of the context and copied by the graph; nothing stays owned here. */
#include "nn.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

tn_tensor nn_scalar(tn_tensor x, double value) {
    if (!nn_given(x.graph, x, "a layer")) return (tn_tensor){ x.graph, 0 };
    return tn_full(x.graph, tn_tensor_dtype(x), TN_SCALAR, value);
}

tn_tensor nn_row_sum(tn_tensor x, int64_t axis, int keep) {
    tn_dtype t = tn_tensor_dtype(x);
    return tn_sum(t == TN_F16 || t == TN_BF16 ? tn_cast(x, TN_F32) : x, &axis, 1, keep);
}

uint64_t nn_hash(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

/* ---- initial values -------------------------------------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al., SC 2011): four words from a block number and a key. Large weights go through it, and this file
 * is compiled for size: so rounds are unrolled, in variables of their own. */
static inline void philox(uint64_t block, uint64_t key, uint32_t out[4]) {
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = 0, d = 0, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t p = (uint64_t)0xd2511f53u * a, q = (uint64_t)0xcd9e8d57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0, b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1, d = (uint32_t)p;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

/* In (0, 1), 52 bits. */
static double unit(uint32_t hi, uint32_t lo) { return ((double)((uint64_t)hi << 20 | lo >> 12) + 0.5) * 0x1p-52; }

static double initial(nn_init init, double scale, uint64_t key, int64_t i) {
    uint32_t w[4];
    if (init == NN_ZEROS) return 0;
    if (init == NN_ONES) return 1;
    philox((uint64_t)i, key, w);
    if (init == NN_UNIFORM) return scale * (2 * unit(w[0], w[1]) - 1);
    return scale * sqrt(-2 * log(unit(w[0], w[1]))) * cos(6.283185307179586 * unit(w[2], w[3]));
}

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

tn_tensor nn_counter(tn_graph *g, const char *name, const char *suffix) {
    char full[MAX_NAME];
    if (!join(g, name, suffix, full)) return (tn_tensor){ g, 0 };
    tn_tensor n = tn_state(g, full, TN_I64, TN_SCALAR, NULL);
    if (n.id) tn_assign(n, tn_add_scalar(n, 1));
    return n;
}
tn_tensor tn_nn_counter(tn_graph *g, const char *name) { return nn_counter(g, name, NULL); }

static tn_tensor declare(tn_graph *g, tn_dtype t, const char *full, tn_shape shape, nn_init init, double scale, bool param) {
    int64_t n = 1, bytes = 0;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] < 0 || __builtin_mul_overflow(n, shape.dim[i], &n))
            return nn_fail(g, TN_ERR_SHAPE, "the shape of %s is negative or too large (dim %d is %lld)", full, i,
                           (long long)shape.dim[i]);
    t = t == TN_F64 ? TN_F64 : TN_F32;
    if (__builtin_mul_overflow(n, (int64_t)tn_dtype_size(t), &bytes)) return nn_fail(g, TN_ERR_SHAPE, "%s is too large", full);
    void *data = NULL;
    if (init != NN_ZEROS && n) {
        data = tn_ctx_realloc(tn_graph_ctx(g), NULL, 0, (size_t)bytes);
        if (!data)
            return nn_fail(g, TN_ERR_NOMEM, "out of memory: the initial value of %s, %lld bytes", full, (long long)bytes);
        uint64_t key = nn_hash(full) ^ tn_graph_seed(g) * 0x9e3779b97f4a7c15u;
        for (int64_t i = 0; i < n; i++) {
            double v = initial(init, scale, key, i);
            if (t == TN_F64)
                ((double *)data)[i] = v;
            else
                ((float *)data)[i] = (float)v;
        }
    }
    tn_tensor x = param ? tn_param(g, full, t, shape, data) : tn_state(g, full, t, shape, data);
    if (data) tn_ctx_realloc(tn_graph_ctx(g), data, (size_t)bytes, 0);
    return x;
}

tn_tensor nn_param_as(tn_graph *g, tn_dtype t, const char *full, tn_shape shape, nn_init init, double scale) {
    tn_tensor p = declare(g, t, full, shape, init, scale, true);
    return p.id ? tn_cast(p, t) : p;
}
tn_tensor nn_param(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, nn_init init, double scale) {
    char full[MAX_NAME];
    return join(g, name, suffix, full) ? nn_param_as(g, t, full, shape, init, scale) : (tn_tensor){ g, 0 };
}
tn_tensor nn_state(tn_graph *g, tn_dtype t, const char *name, const char *suffix, tn_shape shape, nn_init init) {
    char full[MAX_NAME];
    return join(g, name, suffix, full) ? declare(g, t, full, shape, init, 1, false) : (tn_tensor){ g, 0 };
}
