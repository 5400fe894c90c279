/* ladder_rungs.c - the hand-written rungs from the naive loop to the best that plain loops give; the last rung is Tenon's own
 * code.
 *
 * In: a ladder_problem. Out: p->y. Each rung changes one thing against the one before, so that the table shows what it was
 * worth. Rungs up to "local" are compiled for the baseline and not vectorised; "optimised" ones are compiled for the widest
 * instruction set that the machine has, and vectorised by the C compiler. */
#include "bench.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#define PLAIN __attribute__((noinline))
#define NO_VECTORS _Pragma("clang loop vectorize(disable) interleave(disable)")
#else
#define PLAIN __attribute__((noinline, optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#define NO_VECTORS
#endif

/* Defines `name` as `body` compiled three times and chosen at run time; body is an always_inline function of the same
 * arguments. */
#if defined(__x86_64__)
#define WIDEST(name, body)                                                                                                     \
    __attribute__((target("avx512f,avx512vl,avx512dq,fma,prefer-vector-width=512"))) static void name##_avx512(                \
        ladder_problem *p) {                                                                                                   \
        body(p);                                                                                                               \
    }                                                                                                                          \
    __attribute__((target("avx2,fma"))) static void name##_avx2(ladder_problem *p) { body(p); }                                \
    static void name##_base(ladder_problem *p) { body(p); }                                                                    \
    static void name(ladder_problem *p) {                                                                                      \
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))     \
            name##_avx512(p);                                                                                                  \
        else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))                                              \
            name##_avx2(p);                                                                                                    \
        else                                                                                                                   \
            name##_base(p);                                                                                                    \
    }
#if defined(__clang__)
#undef WIDEST
#define WIDEST(name, body)                                                                                                     \
    __attribute__((target("avx512f,avx512vl,avx512dq,fma"))) static void name##_avx512(ladder_problem *p) { body(p); }         \
    __attribute__((target("avx2,fma"))) static void name##_avx2(ladder_problem *p) { body(p); }                                \
    static void name##_base(ladder_problem *p) { body(p); }                                                                    \
    static void name(ladder_problem *p) {                                                                                      \
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))     \
            name##_avx512(p);                                                                                                  \
        else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))                                              \
            name##_avx2(p);                                                                                                    \
        else                                                                                                                   \
            name##_base(p);                                                                                                    \
    }
#endif
#else
#define WIDEST(name, body)                                                                                                     \
    static void name(ladder_problem *p) { body(p); }
#endif
#define BODY static inline __attribute__((always_inline)) void

/* ---- element access: a call that is not inlined stands for the accessor of a naive matrix type ----------------------------
 */

typedef struct matrix {
    int64_t rows, cols;
    float *at;
} matrix;
static __attribute__((noinline)) float matrix_get(const matrix *a, int64_t i, int64_t j) {
    return i < a->rows && j < a->cols ? a->at[i * a->cols + j] : 0;
}
static __attribute__((noinline)) void matrix_set(matrix *a, int64_t i, int64_t j, float v) {
    if (i < a->rows && j < a->cols) a->at[i * a->cols + j] = v;
}
/* What "naive" pays for: a fresh result every call. The values end up in y by a copy of the pointer's data. */
static float *fresh(const ladder_problem *p) {
    float *y = malloc((size_t)(p->m * p->n) * sizeof(float) + 64);
    if (!y) {
        fprintf(stderr, "tenon: error: out of memory\n");
        exit(CLI_FAILED);
    }
    return y;
}
static void hand_over(ladder_problem *p, float *y) {
    memcpy(p->y, y, (size_t)(p->m * p->n) * sizeof(float));
    free(y);
}
static float relu_of(float x) { return x > 0 ? x : 0; }

/* ---- matmul: y = relu(x w + b) --------------------------------------------------------------------------------------------
 */

PLAIN static void matmul_by_calls(const ladder_problem *p, float *out) {
    matrix x = { p->m, p->k, (float *)p->x }, w = { p->k, p->n, (float *)p->w }, y = { p->m, p->n, out };
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            matrix_set(&y, i, j, p->b[j]);
            NO_VECTORS for (int64_t k = 0; k < p->k; k++) {
                matrix_set(&y, i, j, matrix_get(&y, i, j) + matrix_get(&x, i, k) * matrix_get(&w, k, j));
            }
            matrix_set(&y, i, j, relu_of(matrix_get(&y, i, j)));
        }
    }
}
static void matmul_naive(ladder_problem *p) {
    float *y = fresh(p);
    matmul_by_calls(p, y);
    hand_over(p, y);
}
static void matmul_preallocated(ladder_problem *p) { matmul_by_calls(p, p->y); }

PLAIN static void matmul_inline(ladder_problem *p) {
    float *volatile keep = p->y; /* y may alias x and w as far as the compiler knows: it stores every step */
    float *y = keep;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            y[i * p->n + j] = p->b[j];
            NO_VECTORS for (int64_t k = 0; k < p->k; k++) y[i * p->n + j] += p->x[i * p->k + k] * p->w[k * p->n + j];
            y[i * p->n + j] = relu_of(y[i * p->n + j]);
        }
    }
}

PLAIN static void matmul_local(ladder_problem *p) {
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            float sum = p->b[j];
            NO_VECTORS for (int64_t k = 0; k < p->k; k++) sum += p->x[i * p->k + k] * p->w[k * p->n + j];
            p->y[i * p->n + j] = relu_of(sum);
        }
    }
}

/* i-k-j: the inner loop runs along rows of w and y, four rows of w at a time, so that y is loaded a quarter as often. */
BODY linear_rows(const ladder_problem *p, float *restrict y, bool relu) {
    const float *restrict x = p->x, *restrict w = p->w;
    int64_t n = p->n;
    for (int64_t i = 0; i < p->m; i++) {
        float *restrict row = y + i * n;
        memcpy(row, p->b, (size_t)n * sizeof(float));
        int64_t k = 0;
        for (; k + 4 <= p->k; k += 4) {
            const float *a = x + i * p->k + k, *restrict w0 = w + k * n, *restrict w1 = w0 + n, *restrict w2 = w1 + n,
                        *restrict w3 = w2 + n;
            float a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
            for (int64_t j = 0; j < n; j++) row[j] += a0 * w0[j] + a1 * w1[j] + a2 * w2[j] + a3 * w3[j];
        }
        for (; k < p->k; k++) {
            float a0 = x[i * p->k + k];
            for (int64_t j = 0; j < n; j++) row[j] += a0 * w[k * n + j];
        }
        for (int64_t j = 0; relu && j < n; j++) row[j] = row[j] > 0 ? row[j] : 0;
    }
}
BODY matmul_ikj_body(ladder_problem *p) { linear_rows(p, p->y, true); }
WIDEST(matmul_ikj, matmul_ikj_body)

/* Blocked: a tile of 4 x 32 results stays in registers while k runs over a block of w that fits the cache. */
enum { TILE_M = 4, TILE_N = 32, BLOCK_K = 256 };
BODY tile_add(const ladder_problem *p, float *restrict y, int64_t i, int64_t j, int64_t k0, int64_t k1) {
    float acc[TILE_M][TILE_N];
    for (int r = 0; r < TILE_M; r++) {
        for (int q = 0; q < TILE_N; q++) acc[r][q] = y[(i + r) * p->n + j + q];
    }
    for (int64_t k = k0; k < k1; k++) {
        const float *restrict w = p->w + k * p->n + j;
        for (int r = 0; r < TILE_M; r++) {
            float a = p->x[(i + r) * p->k + k];
            for (int q = 0; q < TILE_N; q++) acc[r][q] += a * w[q];
        }
    }
    for (int r = 0; r < TILE_M; r++) {
        for (int q = 0; q < TILE_N; q++) y[(i + r) * p->n + j + q] = acc[r][q];
    }
}
BODY edge_add(const ladder_problem *p, float *restrict y, int64_t i, int64_t j, int64_t k0, int64_t k1) {
    for (int64_t r = i; r < p->m && r < i + TILE_M; r++) {
        for (int64_t q = j; q < p->n && q < j + TILE_N; q++) {
            float sum = y[r * p->n + q];
            for (int64_t k = k0; k < k1; k++) sum += p->x[r * p->k + k] * p->w[k * p->n + q];
            y[r * p->n + q] = sum;
        }
    }
}
BODY matmul_blocked_body(ladder_problem *p) {
    float *restrict y = p->y;
    for (int64_t i = 0; i < p->m; i++) memcpy(y + i * p->n, p->b, (size_t)p->n * sizeof(float));
    for (int64_t k0 = 0; k0 < p->k; k0 += BLOCK_K) {
        int64_t k1 = k0 + BLOCK_K < p->k ? k0 + BLOCK_K : p->k;
        for (int64_t j = 0; j < p->n; j += TILE_N) {
            for (int64_t i = 0; i < p->m; i += TILE_M) {
                if (i + TILE_M <= p->m && j + TILE_N <= p->n)
                    tile_add(p, y, i, j, k0, k1);
                else
                    edge_add(p, y, i, j, k0, k1);
            }
        }
    }
    for (int64_t i = 0; i < p->m * p->n; i++) y[i] = y[i] > 0 ? y[i] : 0;
}
WIDEST(matmul_blocked, matmul_blocked_body)

/* ---- relu ------------------------------------------------------------------------------------------------------------------
 */

PLAIN static void relu_by_calls(const ladder_problem *p, const float *in, float *out) {
    matrix x = { p->m, p->n, (float *)in }, y = { p->m, p->n, out };
    for (int64_t i = 0; i < p->m; i++) {
        NO_VECTORS for (int64_t j = 0; j < p->n; j++) matrix_set(&y, i, j, relu_of(matrix_get(&x, i, j)));
    }
}
static void relu_naive(ladder_problem *p) {
    float *y = fresh(p);
    relu_by_calls(p, p->x, y);
    hand_over(p, y);
}
static void relu_preallocated(ladder_problem *p) { relu_by_calls(p, p->x, p->y); }
/* In place: the operand is y itself. Its first run makes relu(x) out of the copy of x that the harness put there; later runs do
 * the same work on numbers that no longer change. */
static void relu_in_place(ladder_problem *p) { relu_by_calls(p, p->y, p->y); }
BODY relu_inline_body(ladder_problem *p) {
    float *y = p->y;
    for (int64_t i = 0; i < p->m * p->n; i++) y[i] = y[i] > 0 ? y[i] : 0;
}
WIDEST(relu_in_place_inline, relu_inline_body)

/* ---- softmax over rows ------------------------------------------------------------------------------------------------------
 */

PLAIN static void softmax_by_calls(const ladder_problem *p, float *out) {
    matrix x = { p->m, p->n, (float *)p->x }, y = { p->m, p->n, out };
    for (int64_t i = 0; i < p->m; i++) {
        float top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < p->n; j++) top = matrix_get(&x, i, j) > top ? matrix_get(&x, i, j) : top;
        for (int64_t j = 0; j < p->n; j++) {
            matrix_set(&y, i, j, expf(matrix_get(&x, i, j) - top));
            sum += matrix_get(&y, i, j);
        }
        for (int64_t j = 0; j < p->n; j++) matrix_set(&y, i, j, matrix_get(&y, i, j) / sum);
    }
}
static void softmax_naive(ladder_problem *p) {
    float *y = fresh(p);
    softmax_by_calls(p, y);
    hand_over(p, y);
}
static void softmax_preallocated(ladder_problem *p) { softmax_by_calls(p, p->y); }

static inline __attribute__((always_inline)) void softmax_row(const float *x, float *y, int64_t n) {
    float top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) top = x[j] > top ? x[j] : top;
    for (int64_t j = 0; j < n; j++) sum += y[j] = expf(x[j] - top);
    float scale = 1 / sum;
    for (int64_t j = 0; j < n; j++) y[j] *= scale;
}
PLAIN static void softmax_inline(ladder_problem *p) {
    for (int64_t i = 0; i < p->m; i++) softmax_row(p->x + i * p->n, p->y + i * p->n, p->n);
}
/* In place on a copy of x: the copy is part of the work, because the second softmax of the same array would be another problem.
 */
PLAIN static void softmax_in_place(ladder_problem *p) {
    memcpy(p->y, p->x, (size_t)(p->m * p->n) * sizeof(float));
    matrix y = { p->m, p->n, p->y };
    for (int64_t i = 0; i < p->m; i++) {
        float top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < p->n; j++) top = matrix_get(&y, i, j) > top ? matrix_get(&y, i, j) : top;
        for (int64_t j = 0; j < p->n; j++) {
            matrix_set(&y, i, j, expf(matrix_get(&y, i, j) - top));
            sum += matrix_get(&y, i, j);
        }
        for (int64_t j = 0; j < p->n; j++) matrix_set(&y, i, j, matrix_get(&y, i, j) / sum);
    }
}

/* ---- fused: linear, ReLU, and softmax after them
 * ------------------------------------------------------------------------------ */

/* Two loops over the whole matrix: linear into scratch, then ReLU. */
BODY linear_then_relu_body(ladder_problem *p) {
    linear_rows(p, p->scratch, false);
    for (int64_t i = 0; i < p->m * p->n; i++) p->y[i] = p->scratch[i] > 0 ? p->scratch[i] : 0;
}
WIDEST(linear_then_relu, linear_then_relu_body)

/* Fission: each op goes over the whole matrix before the next one starts. */
BODY chain_fission_body(ladder_problem *p) {
    linear_then_relu_body(p);
    for (int64_t i = 0; i < p->m; i++) softmax_row(p->y + i * p->n, p->y + i * p->n, p->n);
}
WIDEST(chain_fission, chain_fission_body)

/* Fused: a row goes through all three while it is in the first cache. */
BODY chain_fused_body(ladder_problem *p) {
    ladder_problem one = *p;
    one.m = 1;
    for (int64_t i = 0; i < p->m; i++) {
        one.x = p->x + i * p->k;
        float *y = p->y + i * p->n;
        linear_rows(&one, y, true);
        softmax_row(y, y, p->n);
    }
}
WIDEST(chain_fused, chain_fused_body)

/* ---- the tables
 * --------------------------------------------------------------------------------------------------------------- */

static const ladder_rung matmul_rungs[] = {
    { "naive", "i-j-k, a call an element, result allocated every time", matmul_naive },
    { "preallocated", "the same into memory that is there already", matmul_preallocated },
    { "inline", "elements accessed directly", matmul_inline },
    { "local", "the sum stays in a register", matmul_local },
    { "optimised", "i-k-j, four rows of w at a time, vectorised", matmul_ikj },
    { "blocked", "tiles of 4 x 32 in registers, blocks of k", matmul_blocked },
    { "generated", "compiled by Tenon", NULL },
};
static const ladder_rung relu_rungs[] = {
    { "naive", "a call an element, result allocated every time", relu_naive },
    { "preallocated", "the same into memory that is there already", relu_preallocated },
    { "in_place", "the operand is overwritten", relu_in_place },
    { "in_place_inline", "elements accessed directly, vectorised", relu_in_place_inline },
    { "generated", "compiled by Tenon", NULL },
};
static const ladder_rung softmax_rungs[] = {
    { "naive", "a call an element, result allocated every time", softmax_naive },
    { "preallocated", "the same into memory that is there already", softmax_preallocated },
    { "in_place", "on a copy of the operand", softmax_in_place },
    { "inline", "elements accessed directly", softmax_inline },
    { "generated", "compiled by Tenon", NULL },
};
static const ladder_rung fused_rungs[] = {
    { "lin_relu_local", "linear + ReLU, the sum in a register", matmul_local },
    { "lin_relu_fission", "linear over the matrix, then ReLU over the matrix", linear_then_relu },
    { "lin_relu_optimised", "linear + ReLU a row at a time, vectorised", matmul_ikj },
    { "lin_relu_generated", "compiled by Tenon", NULL },
    { "lin_relu_softmax_fission", "three loops over the whole matrix", chain_fission },
    { "lin_relu_softmax_fused", "a row through all three", chain_fused },
    { "lin_relu_softmax_generated", "compiled by Tenon", NULL },
};

const ladder_rung *ladder_rungs(const char *work, int *out_n) {
    static const struct {
        const char *name;
        const ladder_rung *rungs;
        int n;
    } ladders[] = {
        { "matmul", matmul_rungs, COUNT_OF(matmul_rungs) },
        { "relu", relu_rungs, COUNT_OF(relu_rungs) },
        { "softmax", softmax_rungs, COUNT_OF(softmax_rungs) },
        { "fused", fused_rungs, COUNT_OF(fused_rungs) },
    };
    for (size_t i = 0; i < COUNT_OF(ladders); i++) {
        if (!strcmp(ladders[i].name, work)) return *out_n = ladders[i].n, ladders[i].rungs;
    }
    return NULL;
}

static bool has_linear(const char *work) { return strcmp(work, "relu") && strcmp(work, "softmax"); }
static bool has_softmax(const char *work) { return !strcmp(work, "softmax") || !strcmp(work, "linear+relu+softmax"); }

/* Multiply and add count one each; ReLU one; softmax five an element (compare, subtract, exponential, add, multiply). */
double ladder_flops(const char *work, const ladder_problem *p) {
    double elements = (double)p->m * (double)p->n, flops = 0;
    if (has_linear(work)) flops += elements * (2.0 * (double)p->k + 1);
    if (strcmp(work, "softmax")) flops += elements;
    if (has_softmax(work)) flops += 5 * elements;
    return flops;
}

/* The exact result in double, and for each element how far a correct f32 computation may be from it. */
/* y += x w, size += |x| |w|. */
static void add_product(const ladder_problem *p, double *y, double *size) {
    int64_t nx = p->m * p->k, nw = p->k * p->n;
    double *x = cli_alloc((size_t)nx * sizeof(double));
    float *w = cli_alloc((size_t)nw * sizeof(float));
    for (int64_t i = 0; i < nx; i++) x[i] = (double)p->x[i];
    product_double(x, p->w, p->m, p->n, p->k, y);
    for (int64_t i = 0; i < nx; i++) x[i] = fabs(x[i]);
    for (int64_t i = 0; i < nw; i++) w[i] = fabsf(p->w[i]);
    product_double(x, w, p->m, p->n, p->k, size);
    free(x);
    free(w);
}

void ladder_reference(const char *work, const ladder_problem *p, double *y, double *bound) {
    const double eps = FLT_EPSILON / 2;
    double *size = cli_alloc((size_t)(p->m * p->n) * sizeof(double) + 1);
    for (int64_t i = 0; i < p->m * p->n; i++) {
        y[i] = has_linear(work) ? (double)p->b[i % p->n] : (double)p->x[i];
        size[i] = fabs(y[i]);
    }
    if (has_linear(work)) add_product(p, y, size);
    for (int64_t i = 0; i < p->m; i++) {
        double *row = y + i * p->n, *slack = bound + i * p->n;
        double top = -INFINITY, sum = 0, worst = 0;
        for (int64_t j = 0; j < p->n; j++) {
            slack[j] = has_linear(work) ? ((double)p->k + 2) * eps * size[i * p->n + j] : 0;
            if (strcmp(work, "softmax")) row[j] = row[j] > 0 ? row[j] : 0;
            if (row[j] > top) top = row[j];
            if (slack[j] > worst) worst = slack[j];
        }
        if (!has_softmax(work)) continue;
        for (int64_t j = 0; j < p->n; j++) sum += row[j] = exp(row[j] - top);
        for (int64_t j = 0; j < p->n;
             j++) { /* relative: operands' errors (twice: also in the sum), exponent's rounding, n additions */
            row[j] /= sum;
            slack[j] = row[j] * (2 * worst + eps * ((double)p->n + 8 + 2 * fabs(log(row[j] > 0 ? row[j] : DBL_MIN)))) + FLT_MIN;
        }
    }
    free(size);
}
