/* test_builders.c - every builder: shapes, dtypes and values (by the reference evaluator) against loops written here; text and
 * names; gradients. */
#include "drive/objects.h"
#include "eval/eval.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t rng = 88172645463325252u;
static uint64_t next_u64(void) {
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return rng;
}

#define L(...) ((const int64_t[]){ __VA_ARGS__ })

/* ---- values by the evaluator ---- */

typedef struct array {
    tn_dtype t;
    tn_shape s;
    int64_t n;
    double v[4096];
} array;

static array value_of(tn_tensor x) {
    static array out;
    tn_graph *g = x.graph;
    if (!g || !x.id) fail_msg("no value: %s", g ? tn_ctx_error(g->ctx) : "no graph");
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    out = (array){ .t = tn_tensor_dtype(x), .s = tn_tensor_shape(x) };
    if (GUARD_TRY(&gd)) {
        eval_value *in = ARENA_ARRAY(&a, eval_value, g->ir->inputs.n + 1); /* empty entries: states take their initial value */
        eval_value v = eval_graph(g->ir, &a, in)[x.id];
        out.n = graph_elems(g->ir, x.id);
        for (int64_t i = 0; i < out.n; i++) out.v[i] = v.f ? v.f[i] : (double)v.i[i];
    } else {
        fail_msg("%s", gd.err.text);
    }
    arena_fini(&a);
    return out;
}
static int64_t elems(const tn_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dim[i];
    return n;
}
static void expect_type(tn_tensor x, tn_dtype t, tn_shape s) {
    if (!x.id) fail_msg("%s", tn_ctx_error(tn_graph_ctx(x.graph)));
    tn_shape got = tn_tensor_shape(x);
    assert_int_equal(tn_tensor_dtype(x), t);
    assert_int_equal(got.rank, s.rank);
    for (int i = 0; i < s.rank; i++) assert_int_equal(got.dim[i], s.dim[i]);
    assert_int_equal(tn_tensor_bytes(x), (size_t)elems(&s) * tn_dtype_size(t));
}
/* Equal values, NaN like NaN. */
static void expect_values(tn_tensor x, tn_dtype t, tn_shape s, const double *want) {
    expect_type(x, t, s);
    array got = value_of(x);
    for (int64_t i = 0; i < got.n; i++)
        if (!(got.v[i] == want[i] || (isnan(got.v[i]) && isnan(want[i]))))
            fail_msg("element %d is %.17g, not %.17g", (int)i, got.v[i], want[i]);
}
#define EXPECT(x, t, s, ...) expect_values(x, t, s, (const double[]){ __VA_ARGS__ })

typedef struct world {
    tn_ctx *ctx;
    tn_graph *g;
} world;
static world world_new(void) {
    world w = { .ctx = tn_ctx_new(NULL) };
    w.g = tn_graph_new(w.ctx, "w");
    assert_non_null(w.g);
    return w;
}
static void world_free(world *w) {
    if (tn_graph_status(w->g)) fail_msg("%s", tn_ctx_error(w->ctx));
    tn_graph_free(w->g);
    tn_ctx_free(w->ctx);
}
/* A constant of small whole numbers (exact in every dtype), also given back as doubles. */
static tn_tensor numbers(tn_graph *g, tn_dtype t, tn_shape s, double *out) {
    static char data[4096 * 8];
    int64_t n = elems(&s);
    for (int64_t i = 0; i < n; i++) {
        int64_t v = t == TN_BOOL ? (int64_t)(next_u64() % 2)
                    : t == TN_U8 ? (int64_t)(next_u64() % 12)
                                 : (int64_t)(next_u64() % 19) - 9;
        dtype_is_float(t) ? dtype_store(t, data, i, (double)v) : dtype_store_int(t, data, i, v);
        if (out) out[i] = (double)v;
    }
    return tn_const(g, t, s, data);
}
static tn_tensor vector(tn_graph *g, int n, const double *v) { return tn_const(g, TN_F64, TN_DIMS(n), v); }
#define F64(g, ...) vector(g, (int)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)), (const double[]){ __VA_ARGS__ })

/* ---- sources ---- */

static void test_sources(void **state) {
    (void)state;
    world w = world_new();
    expect_type(tn_input(w.g, "x", TN_BF16, TN_DIMS(2, 0, 3)), TN_BF16, TN_DIMS(2, 0, 3));
    EXPECT(tn_const(w.g, TN_I32, TN_DIMS(2, 2), (int32_t[]){ 1, -2, 3, INT32_MIN }), TN_I32, TN_DIMS(2, 2), 1, -2, 3,
           INT32_MIN);
    EXPECT(tn_const(w.g, TN_BOOL, TN_DIMS(4), (uint8_t[]){ 0, 1, 2, 255 }), TN_BOOL, TN_DIMS(4), 0, 1, 1, 1);
    EXPECT(tn_const(w.g, TN_F32, TN_SCALAR, (float[]){ -0.5f }), TN_F32, TN_SCALAR, -0.5);
    expect_type(tn_const(w.g, TN_F32, TN_DIMS(0, 4), NULL), TN_F32, TN_DIMS(0, 4));
    EXPECT(tn_full(w.g, TN_F64, TN_DIMS(3), 0.1), TN_F64, TN_DIMS(3), 0.1, 0.1, 0.1);
    EXPECT(tn_full(w.g, TN_U8, TN_DIMS(2), 255), TN_U8, TN_DIMS(2), 255, 255);
    EXPECT(tn_full(w.g, TN_I64, TN_SCALAR, -0x1p63), TN_I64, TN_SCALAR, -0x1p63);
    EXPECT(tn_full(w.g, TN_F32, TN_DIMS(2), NAN), TN_F32, TN_DIMS(2), NAN, NAN);
    EXPECT(tn_full(w.g, TN_F16, TN_SCALAR, INFINITY), TN_F16, TN_SCALAR, INFINITY);
    EXPECT(tn_iota(w.g, TN_F32, TN_DIMS(2, 3), -1), TN_F32, TN_DIMS(2, 3), 0, 1, 2, 0, 1, 2);
    EXPECT(tn_iota(w.g, TN_I8, TN_DIMS(2, 3), 0), TN_I8, TN_DIMS(2, 3), 0, 0, 0, 1, 1, 1);
    EXPECT(tn_state(w.g, "s", TN_F32, TN_DIMS(2), (float[]){ 5, 6 }), TN_F32, TN_DIMS(2), 5, 6);
    EXPECT(tn_state(w.g, "zeros", TN_I64, TN_DIMS(2), NULL), TN_I64, TN_DIMS(2), 0, 0);
    tn_tensor p = tn_param(w.g, "p", TN_F32, TN_DIMS(1), (float[]){ 2 });
    EXPECT(p, TN_F32, TN_DIMS(1), 2);
    assert_int_equal(tn_graph_n_params(w.g), 1);
    assert_int_equal(tn_graph_param(w.g, 0).id, p.id);
    assert_int_equal(tn_graph_param(w.g, 1).id, 0);
    assert_int_equal(tn_graph_param(w.g, -1).id, 0);
    assert_string_equal(tn_tensor_name(p), "p");
    world_free(&w);
}

static void test_const_is_copied(void **state) {
    (void)state;
    world w = world_new();
    double data[2] = { 1, 2 };
    tn_tensor c = tn_const(w.g, TN_F64, TN_DIMS(2), data), s = tn_state(w.g, "s", TN_F64, TN_DIMS(2), data);
    data[0] = 9;
    EXPECT(c, TN_F64, TN_DIMS(2), 1, 2);
    EXPECT(s, TN_F64, TN_DIMS(2), 1, 2);
    char name[4] = "abc";
    tn_tensor in = tn_input(w.g, name, TN_F32, TN_SCALAR);
    name[0] = 'z';
    assert_string_equal(tn_tensor_name(in), "abc");
    world_free(&w);
}

static void test_random(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor c = tn_const(w.g, TN_I64, TN_SCALAR, (int64_t[]){ 77 });
    enum { N = 4000 };
    tn_tensor u = tn_random_uniform(c, 5, TN_DIMS(N / 4, 4)), z = tn_random_normal(c, 5, TN_DIMS(N)),
              b = tn_random_bernoulli(c, 5, TN_DIMS(N), 0.25);
    expect_type(u, TN_F32, TN_DIMS(N / 4, 4));
    expect_type(z, TN_F32, TN_DIMS(N));
    expect_type(b, TN_BOOL, TN_DIMS(N));
    static array a;
    a = value_of(u);
    for (int i = 0; i < N; i++) assert_true(a.v[i] == (double)random_uniform_at(77, 5, i));
    a = value_of(b);
    for (int i = 0; i < N; i++) assert_true(a.v[i] == (random_uniform_at(77, 5, i) < 0.25f));
    a = value_of(z);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < N; i++) {
        assert_true(isfinite(a.v[i]));
        sum += a.v[i], squares += a.v[i] * a.v[i], fourth += pow(a.v[i], 4);
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96.0 / N));
    expect_type(tn_random_normal(c, 0, TN_DIMS(0)), TN_F32, TN_DIMS(0));
    EXPECT(tn_random_bernoulli(c, 1, TN_DIMS(3), 1), TN_BOOL, TN_DIMS(3), 1, 1, 1);
    EXPECT(tn_random_bernoulli(c, 1, TN_DIMS(3), 0), TN_BOOL, TN_DIMS(3), 0, 0, 0);
    world_free(&w);
}

/* ---- elementwise ---- */

typedef tn_tensor (*unary_fn)(tn_tensor x);
typedef tn_tensor (*binary_fn)(tn_tensor x, tn_tensor y);
typedef struct row {
    const char *name;
    op_class cls;
    unary_fn f1;
    binary_fn f2;
} row;
enum { FLT = CL_FLT, NUM = CL_NUM, BIT = CL_BIT, INT = CL_INT, LOG = CL_LOG, CMP = CL_CMP, ANY = CL_ANY };
static const row rows[] = {
#define UNARY(name, cls, ...) { #name, (op_class)cls, (tn_##name), NULL },
#define BINARY(name, cls, ...) { #name, (op_class)cls, NULL, (tn_##name) },
#define TERNARY(...)
#define OP(...)
#include "ir/ops.def"
};
static bool accepts(op_class cls, tn_dtype t) {
    if (!dtype_info(t)->arithmetic) return cls == CL_ANY;
    switch (cls) {
    case CL_FLT:
        return dtype_is_float(t);
    case CL_NUM:
    case CL_CMP:
        return t != TN_BOOL;
    case CL_BIT:
        return !dtype_is_float(t);
    case CL_INT:
        return !dtype_is_float(t) && t != TN_BOOL;
    case CL_LOG:
        return t == TN_BOOL;
    default:
        return true;
    }
}

/* Every row, every dtype: the right type comes out, or the right error. */
static void test_elementwise_types(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (size_t k = 0; k < COUNT_OF(rows); k++)
        for (int t = 0; t < TN_N_DTYPES; t++) {
            tn_graph *g = tn_graph_new(ctx, "g");
            tn_tensor x = tn_input(g, "x", (tn_dtype)t, TN_DIMS(3, 1)), y = tn_input(g, "y", (tn_dtype)t, TN_DIMS(2));
            tn_tensor r = rows[k].f1 ? rows[k].f1(x) : rows[k].f2(x, y);
            if (accepts(rows[k].cls, (tn_dtype)t)) {
                expect_type(r, rows[k].cls == CL_CMP ? TN_BOOL : (tn_dtype)t, rows[k].f1 ? TN_DIMS(3, 1) : TN_DIMS(3, 2));
            } else {
                assert_int_equal(r.id, 0);
                assert_int_equal(tn_graph_status(g), TN_ERR_DTYPE);
                assert_non_null(strstr(tn_ctx_error(ctx), rows[k].name));
                assert_non_null(strstr(tn_ctx_error(ctx), tn_dtype_name((tn_dtype)t)));
                assert_non_null(strstr(tn_ctx_error(ctx), rows[k].f1 ? "[3,1]" : "[2]"));
            }
            tn_graph_free(g);
        }
    tn_ctx_free(ctx);
}

/* The element of a broadcast operand, by NumPy's rule. */
static int64_t broadcast_index(const tn_shape *from, const tn_shape *to, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int k = to->rank - 1, j = from->rank - 1; j >= 0; k--, j--) {
        int64_t c = i % to->dim[k];
        i /= to->dim[k];
        at += from->dim[j] == 1 ? 0 : c * stride;
        stride *= from->dim[j];
    }
    return at;
}
static void test_broadcast(void **state) {
    (void)state;
    static const struct {
        tn_shape x, y, out;
    } cases[] = {
        { { 0, { 0 } }, { 0, { 0 } }, { 0, { 0 } } },
        { { 1, { 3 } }, { 0, { 0 } }, { 1, { 3 } } },
        { { 0, { 0 } }, { 2, { 2, 3 } }, { 2, { 2, 3 } } },
        { { 2, { 2, 3 } }, { 1, { 3 } }, { 2, { 2, 3 } } },
        { { 2, { 2, 1 } }, { 1, { 3 } }, { 2, { 2, 3 } } },
        { { 1, { 1 } }, { 3, { 2, 3, 4 } }, { 3, { 2, 3, 4 } } },
        { { 3, { 1, 3, 1 } }, { 3, { 2, 1, 4 } }, { 3, { 2, 3, 4 } } },
        { { 4, { 5, 1, 3, 1 } }, { 2, { 1, 7 } }, { 4, { 5, 1, 3, 7 } } },
        { { 2, { 1, 1 } }, { 1, { 1 } }, { 2, { 1, 1 } } },
        { { 2, { 0, 3 } }, { 1, { 3 } }, { 2, { 0, 3 } } },
        { { 2, { 1, 3 } }, { 2, { 0, 1 } }, { 2, { 0, 3 } } },
        { { 3, { 2, 1, 3 } }, { 3, { 2, 1, 3 } }, { 3, { 2, 1, 3 } } },
        { { 12, { 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 3 } }, { 2, { 2, 1 } }, { 12, { 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 3 } } },
    };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        world w = world_new();
        double x[4096], y[4096], c[4096], want[4096];
        tn_tensor tx = numbers(w.g, TN_F32, cases[k].x, x), ty = numbers(w.g, TN_F32, cases[k].y, y),
                  tc = numbers(w.g, TN_BOOL, cases[k].x, c);
        tn_shape out = cases[k].out;
        int64_t n = elems(&out);
        for (int64_t i = 0; i < n; i++)
            want[i] = x[broadcast_index(&cases[k].x, &out, i)] - y[broadcast_index(&cases[k].y, &out, i)];
        expect_values(tn_sub(tx, ty), TN_F32, out, want);
        for (int64_t i = 0; i < n; i++)
            want[i] = y[broadcast_index(&cases[k].y, &out, i)] - x[broadcast_index(&cases[k].x, &out, i)];
        expect_values(tn_sub(ty, tx), TN_F32, out, want);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = broadcast_index(&cases[k].x, &out, i);
            want[i] = c[at] != 0 ? y[broadcast_index(&cases[k].y, &out, i)] : 7;
        }
        expect_values(tn_select(tc, ty, tn_full(w.g, TN_F32, TN_SCALAR, 7)), TN_F32, out, want);
        for (int64_t i = 0; i < n; i++) want[i] = x[broadcast_index(&cases[k].x, &out, i)];
        expect_values(tn_expand(tx, out), TN_F32, out, want);
        world_free(&w);
    }
}

static void test_scalars(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x = F64(w.g, -1, 0, 2.5, NAN, INFINITY), i = tn_const(w.g, TN_I8, TN_DIMS(3), (int8_t[]){ 1, 127, -5 });
    EXPECT(tn_add_scalar(x, 0.5), TN_F64, TN_DIMS(5), -0.5, 0.5, 3, NAN, INFINITY);
    EXPECT(tn_mul_scalar(x, -2), TN_F64, TN_DIMS(5), 2, 0, -5, NAN, -INFINITY);
    EXPECT(tn_add_scalar(i, 1), TN_I8, TN_DIMS(3), 2, -128, -4);
    EXPECT(tn_mul_scalar(i, -1), TN_I8, TN_DIMS(3), -1, -127, 5);
    EXPECT(tn_relu(x), TN_F64, TN_DIMS(5), 0, 0, 2.5, NAN, INFINITY);
    EXPECT(tn_relu(i), TN_I8, TN_DIMS(3), 1, 127, 0);
    EXPECT(tn_cast(x, TN_I32), TN_I32, TN_DIMS(5), -1, 0, 2, 0, INT32_MAX);
    EXPECT(tn_cast(x, TN_BOOL), TN_BOOL, TN_DIMS(5), 1, 0, 1, 1, 1);
    assert_int_equal(tn_cast(x, TN_F64).id, x.id);
    for (int t = TN_F32; t <= TN_BF16; t++) {
        array s = value_of(tn_sigmoid(tn_cast(F64(w.g, -200, -8, -1, 0, 1, 30, 200, INFINITY, -INFINITY), (tn_dtype)t)));
        static const double at[] = { -200, -8, -1, 0, 1, 30, 200, INFINITY, -INFINITY };
        for (int k = 0; k < 9; k++) assert_true(fabs(s.v[k] - 1 / (1 + exp(-at[k]))) < 2e-5);
        assert_true(isnan(value_of(tn_sigmoid(tn_full(w.g, (tn_dtype)t, TN_SCALAR, NAN))).v[0]));
    }
    world_free(&w);
}

/* ---- reductions ---- */

static double reduce_start(int op) { return op == 0 ? 0 : op == 1 ? 1 : op == 2 ? -INFINITY : INFINITY; }
static double reduce_step(int op, double a, double b) {
    return op == 0 ? a + b : op == 1 ? a * b : op == 2 ? fmax(a, b) : fmin(a, b);
}

static void test_reductions(void **state) {
    (void)state;
    static tn_tensor (*const fn[])(tn_tensor, const int64_t *, int, int) = { (tn_sum), (tn_prod), (tn_reduce_max),
                                                                             (tn_reduce_min) };
    static const struct {
        tn_shape in;
        int64_t axes[4];
        int n;
    } cases[] = { { { 1, { 5 } }, { 0 }, 1 },
                  { { 2, { 3, 4 } }, { 1 }, 1 },
                  { { 2, { 3, 4 } }, { -2 }, 1 },
                  { { 3, { 2, 3, 4 } }, { 0, -1 }, 2 },
                  { { 3, { 2, 3, 4 } }, { 0 }, -1 },
                  { { 3, { 2, 1, 4 } }, { 1 }, 1 },
                  { { 2, { 3, 4 } }, { 0 }, 0 },
                  { { 0, { 0 } }, { 0 }, -1 },
                  { { 2, { 3, 0 } }, { 1 }, 1 },
                  { { 2, { 0, 3 } }, { 1 }, 1 },
                  { { 4, { 2, 2, 3, 2 } }, { 3, 1, 0 }, 3 } };
    for (size_t k = 0; k < COUNT_OF(cases); k++)
        for (int op = 0; op < 4; op++)
            for (int keep = 0; keep < 2; keep++) {
                world w = world_new();
                double x[512], want[512];
                tn_shape in = cases[k].in, kept = in, out = { 0 };
                tn_tensor t = numbers(w.g, TN_F64, in, x);
                bool gone[TN_MAX_RANK] = { false };
                for (int i = 0; i < in.rank && cases[k].n < 0; i++) gone[i] = true;
                for (int i = 0; i < cases[k].n; i++)
                    gone[cases[k].axes[i] < 0 ? cases[k].axes[i] + in.rank : cases[k].axes[i]] = true;
                for (int i = 0; i < in.rank; i++) {
                    if (gone[i]) kept.dim[i] = 1;
                    if (!gone[i] || keep) out.dim[out.rank++] = kept.dim[i];
                }
                for (int64_t i = 0; i < elems(&kept); i++) want[i] = reduce_start(op);
                for (int64_t i = 0; i < elems(&in); i++) {
                    int64_t at = broadcast_index(&kept, &in, i);
                    want[at] = reduce_step(op, want[at], x[i]);
                }
                expect_values(fn[op](t, cases[k].n < 0 ? NULL : cases[k].axes, cases[k].n, keep), TN_F64, out, want);
                if (op == 0) {
                    double count = (double)elems(&in) / (double)elems(&kept);
                    if (elems(&kept) == 0) count = 1;
                    for (int64_t i = 0; i < elems(&kept); i++) want[i] /= count; /* 0 / 0 for none */
                    expect_values(tn_mean(t, cases[k].n < 0 ? NULL : cases[k].axes, cases[k].n, keep), TN_F64, out, want);
                }
                world_free(&w);
            }
}
static void test_reductions_by_hand(void **state) {
    (void)state;
    world w = world_new();
    EXPECT(tn_mean(tn_full(w.g, TN_F16, TN_DIMS(4), 60000), TN_ALL_AXES, 0), TN_F16, TN_SCALAR, 60000); /* the sum is no f16 */
    EXPECT(tn_mean(tn_full(w.g, TN_F32, TN_DIMS(0), 1), TN_ALL_AXES, 1), TN_F32, TN_DIMS(1), NAN);
    EXPECT(tn_sum(tn_full(w.g, TN_I8, TN_DIMS(3), 100), TN_ALL_AXES, 0), TN_I8, TN_SCALAR, 44); /* wraps */
    tn_tensor x = tn_const(w.g, TN_F32, TN_DIMS(2, 4), (float[]){ 1, 5, 5, 0, 3, NAN, -1, NAN });
    EXPECT(tn_argmax(x, 1, 0), TN_I64, TN_DIMS(2), 1, 1);
    EXPECT(tn_argmax(x, -1, 1), TN_I64, TN_DIMS(2, 1), 1, 1);
    EXPECT(tn_argmin(x, 1, 0), TN_I64, TN_DIMS(2), 3, 1);
    EXPECT(tn_argmax(x, 0, 0), TN_I64, TN_DIMS(4), 1, 1, 0, 1);
    EXPECT(tn_argmin(x, -2, 1), TN_I64, TN_DIMS(1, 4), 0, 1, 1, 1);
    EXPECT(tn_reduce_max(x, TN_INTS(1), 0), TN_F32, TN_DIMS(2), 5, NAN);
    world_free(&w);
}

/* ---- movement ---- */

static void test_movement(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x =
        tn_add(tn_mul_scalar(tn_iota(w.g, TN_I32, TN_DIMS(2, 3), 0), 3), tn_iota(w.g, TN_I32, TN_DIMS(2, 3), 1)); /* 0..5 */
    EXPECT(x, TN_I32, TN_DIMS(2, 3), 0, 1, 2, 3, 4, 5);
    EXPECT(tn_reshape(x, TN_DIMS(3, 2)), TN_I32, TN_DIMS(3, 2), 0, 1, 2, 3, 4, 5);
    EXPECT(tn_reshape(x, TN_DIMS(-1)), TN_I32, TN_DIMS(6), 0, 1, 2, 3, 4, 5);
    EXPECT(tn_reshape(x, TN_DIMS(1, 3, -1, 1)), TN_I32, TN_DIMS(1, 3, 2, 1), 0, 1, 2, 3, 4, 5);
    EXPECT(tn_reshape(tn_full(w.g, TN_F32, TN_DIMS(1, 1), 4), TN_SCALAR), TN_F32, TN_SCALAR, 4);
    expect_type(tn_reshape(tn_full(w.g, TN_F32, TN_DIMS(0, 4), 4), TN_DIMS(-1, 2)), TN_F32, TN_DIMS(0, 2));
    expect_type(tn_reshape(tn_full(w.g, TN_F32, TN_DIMS(0, 4), 4), TN_DIMS(7, 0)), TN_F32, TN_DIMS(7, 0));
    EXPECT(tn_permute(x, TN_INTS(1, 0)), TN_I32, TN_DIMS(3, 2), 0, 3, 1, 4, 2, 5);
    EXPECT(tn_permute(x, TN_INTS(-1, -2)), TN_I32, TN_DIMS(3, 2), 0, 3, 1, 4, 2, 5);
    EXPECT(tn_permute(tn_full(w.g, TN_F32, TN_SCALAR, 1), NULL, 0), TN_F32, TN_SCALAR, 1);
    EXPECT(tn_transpose(x, 0, -1), TN_I32, TN_DIMS(3, 2), 0, 3, 1, 4, 2, 5);
    assert_int_equal(tn_transpose(x, 1, 1).id, x.id);
    EXPECT(tn_pad(x, (int64_t[]){ 1, 0 }, (int64_t[]){ 0, 2 }, 2, 9), TN_I32, TN_DIMS(3, 5), 9, 9, 9, 9, 9, 0, 1, 2, 9, 9, 3, 4,
           5, 9, 9);
    EXPECT(tn_slice(x, (int64_t[]){ 0, 1 }, (int64_t[]){ 2, 3 }, NULL, 2), TN_I32, TN_DIMS(2, 2), 1, 2, 4, 5);
    EXPECT(tn_slice(x, (int64_t[]){ -1, 0 }, (int64_t[]){ 2, -1 }, NULL, 2), TN_I32, TN_DIMS(1, 2), 3, 4);
    EXPECT(tn_slice(x, (int64_t[]){ 0, 0 }, (int64_t[]){ 2, 3 }, (int64_t[]){ 5, 2 }, 2), TN_I32, TN_DIMS(1, 2), 0, 2);
    expect_type(tn_slice(x, (int64_t[]){ 2, 0 }, (int64_t[]){ 2, 3 }, NULL, 2), TN_I32, TN_DIMS(0, 3));
    EXPECT(tn_flip(x, TN_INTS(0)), TN_I32, TN_DIMS(2, 3), 3, 4, 5, 0, 1, 2);
    EXPECT(tn_flip(x, TN_ALL_AXES), TN_I32, TN_DIMS(2, 3), 5, 4, 3, 2, 1, 0);
    EXPECT(tn_window(x, L(-1), (int64_t[]){ 2 }, NULL, NULL, 1), TN_I32, TN_DIMS(2, 2, 2), 0, 1, 1, 2, 3, 4, 4, 5);
    tn_tensor line = tn_iota(w.g, TN_F32, TN_DIMS(8), 0);
    EXPECT(tn_window(line, L(0), (int64_t[]){ 3 }, (int64_t[]){ 2 }, (int64_t[]){ 2 }, 1), TN_F32, TN_DIMS(2, 3), 0, 2, 4, 2, 4,
           6);
    expect_type(
        tn_window(tn_full(w.g, TN_F32, TN_DIMS(2, 9, 8), 0), L(2, 1), (int64_t[]){ 3, 5 }, (int64_t[]){ 1, 2 }, NULL, 2),
        TN_F32, TN_DIMS(2, 3, 6, 3, 5));
    assert_int_equal(tn_window(x, NULL, NULL, NULL, NULL, 0).id, x.id);
    tn_tensor y = tn_full(w.g, TN_I32, TN_DIMS(2, 1), 7), e = tn_full(w.g, TN_I32, TN_DIMS(2, 0), 7);
    EXPECT(tn_concat((tn_tensor[]){ y, x, e, y }, 4, -1), TN_I32, TN_DIMS(2, 5), 7, 0, 1, 2, 7, 7, 3, 4, 5, 7);
    EXPECT(tn_concat((tn_tensor[]){ x, x }, 2, 0), TN_I32, TN_DIMS(4, 3), 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5);
    EXPECT(tn_concat(&x, 1, 0), TN_I32, TN_DIMS(2, 3), 0, 1, 2, 3, 4, 5);
    tn_tensor many[20];
    double ones[20];
    for (int i = 0; i < 20; i++) many[i] = tn_full(w.g, TN_F32, TN_DIMS(1), ones[i] = i);
    expect_values(tn_concat(many, 20, 0), TN_F32, TN_DIMS(20), ones);
    EXPECT(tn_expand(tn_reshape(x, TN_DIMS(2, 1, 3)), TN_DIMS(2, 2, 3)), TN_I32, TN_DIMS(2, 2, 3), 0, 1, 2, 0, 1, 2, 3, 4, 5, 3,
           4, 5);
    world_free(&w);
}

/* ---- contraction ---- */

static void test_matmul(void **state) {
    (void)state;
    static const struct {
        tn_shape a, b, out;
    } cases[] = {
        { { 2, { 3, 4 } }, { 2, { 4, 5 } }, { 2, { 3, 5 } } },
        { { 1, { 4 } }, { 1, { 4 } }, { 0, { 0 } } },
        { { 1, { 4 } }, { 2, { 4, 5 } }, { 1, { 5 } } },
        { { 2, { 3, 4 } }, { 1, { 4 } }, { 1, { 3 } } },
        { { 3, { 2, 3, 4 } }, { 2, { 4, 5 } }, { 3, { 2, 3, 5 } } },
        { { 2, { 3, 4 } }, { 3, { 2, 4, 5 } }, { 3, { 2, 3, 5 } } },
        { { 2, { 3, 4 } }, { 4, { 6, 2, 4, 5 } }, { 4, { 6, 2, 3, 5 } } },
        { { 3, { 2, 3, 4 } }, { 3, { 2, 4, 5 } }, { 3, { 2, 3, 5 } } },
        { { 3, { 1, 3, 4 } }, { 3, { 2, 4, 5 } }, { 3, { 2, 3, 5 } } },
        { { 4, { 6, 1, 3, 4 } }, { 3, { 2, 4, 5 } }, { 4, { 6, 2, 3, 5 } } },
        { { 1, { 4 } }, { 3, { 2, 4, 5 } }, { 2, { 2, 5 } } },
        { { 3, { 2, 3, 4 } }, { 1, { 4 } }, { 2, { 2, 3 } } },
        { { 2, { 3, 0 } }, { 2, { 0, 5 } }, { 2, { 3, 5 } } },
        { { 2, { 0, 4 } }, { 2, { 4, 5 } }, { 2, { 0, 5 } } },
        { { 3, { 0, 3, 4 } }, { 3, { 1, 4, 5 } }, { 3, { 0, 3, 5 } } },
        { { 2, { 1, 1 } }, { 2, { 1, 1 } }, { 2, { 1, 1 } } },
    };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        world w = world_new();
        double x[512], y[512], want[1024];
        tn_shape a = cases[k].a, b = cases[k].b, out = cases[k].out;
        tn_tensor ta = numbers(w.g, TN_F64, a, x), tb = numbers(w.g, TN_F64, b, y);
        /* as matrices with leading axes */
        tn_shape lead = out, lead_a = a, lead_b = b;
        int64_t m = a.rank > 1 ? a.dim[a.rank - 2] : 1, kk = a.dim[a.rank - 1], n = b.rank > 1 ? b.dim[b.rank - 1] : 1;
        lead.rank -= (a.rank > 1) + (b.rank > 1);
        lead_a.rank = a.rank > 2 ? a.rank - 2 : 0;
        lead_b.rank = b.rank > 2 ? b.rank - 2 : 0;
        for (int64_t p = 0, at = 0; p < elems(&lead); p++)
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++, at++) {
                    want[at] = 0;
                    for (int64_t q = 0; q < kk; q++)
                        want[at] += x[(broadcast_index(&lead_a, &lead, p) * m + i) * kk + q] *
                                    y[(broadcast_index(&lead_b, &lead, p) * kk + q) * n + j];
                }
        expect_values(tn_matmul(ta, tb), TN_F64, out, want);
        world_free(&w);
    }
}
static void test_dot(void **state) {
    (void)state;
    world w = world_new();
    double x[2 * 3 * 4], y[4 * 5 * 2 * 3], want[256];
    tn_tensor a = numbers(w.g, TN_I32, TN_DIMS(2, 3, 4), x), b = numbers(w.g, TN_I32, TN_DIMS(4, 5, 2, 3), y);
    /* batch over a's axis 1 and b's axis 3; contract a's 2, 0 with b's 0, 2 */
    for (int p = 0; p < 3; p++)
        for (int j = 0; j < 5; j++) {
            want[p * 5 + j] = 0;
            for (int q = 0; q < 4; q++)
                for (int r = 0; r < 2; r++) want[p * 5 + j] += x[(r * 3 + p) * 4 + q] * y[((q * 5 + j) * 2 + r) * 3 + p];
        }
    expect_values(tn_dot(a, b, (int64_t[]){ 1 }, (int64_t[]){ -1 }, 1, (int64_t[]){ -1, 0 }, (int64_t[]){ 0, 2 }, 2), TN_I32,
                  TN_DIMS(3, 5), want);
    /* no axes at all: the outer product */
    tn_tensor u = tn_const(w.g, TN_F32, TN_DIMS(2), (float[]){ 2, 3 }),
              v = tn_const(w.g, TN_F32, TN_DIMS(3), (float[]){ 1, 10, 100 });
    EXPECT(tn_dot(u, v, NULL, NULL, 0, NULL, NULL, 0), TN_F32, TN_DIMS(2, 3), 2, 20, 200, 3, 30, 300);
    world_free(&w);
}

static void test_gather(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x = tn_const(w.g, TN_F32, TN_DIMS(3, 2), (float[]){ 0, 1, 10, 11, 20, 21 });
    tn_tensor i = tn_const(w.g, TN_I32, TN_DIMS(2, 2), (int32_t[]){ 2, 0, -7, 99 }),
              one = tn_const(w.g, TN_I64, TN_SCALAR, (int64_t[]){ 1 });
    EXPECT(tn_gather(x, i, 0), TN_F32, TN_DIMS(2, 2, 2), 20, 21, 0, 1, 0, 1, 20, 21);
    EXPECT(tn_gather(x, i, -1), TN_F32, TN_DIMS(3, 2, 2), 1, 0, 0, 1, 11, 10, 10, 11, 21, 20, 20, 21);
    EXPECT(tn_gather(x, one, 0), TN_F32, TN_DIMS(2), 10, 11);
    expect_type(tn_gather(x, tn_const(w.g, TN_I32, TN_DIMS(0), NULL), 0), TN_F32, TN_DIMS(0, 2));
    tn_tensor at = tn_const(w.g, TN_I32, TN_DIMS(4), (int32_t[]){ 1, 1, -1, 3 }),
              u = tn_const(w.g, TN_F32, TN_DIMS(4, 2), (float[]){ 1, 2, 3, 4, 5, 6, 7, 8 });
    EXPECT(tn_scatter_add(x, at, u, 0), TN_F32, TN_DIMS(3, 2), 0, 1, 14, 17, 20, 21);
    EXPECT(tn_scatter_set(x, at, u, 0), TN_F32, TN_DIMS(3, 2), 0, 1, 3, 4, 20, 21);
    EXPECT(tn_scatter_add(x, one, tn_full(w.g, TN_F32, TN_DIMS(3), 5), 1), TN_F32, TN_DIMS(3, 2), 0, 6, 10, 16, 20, 26);
    world_free(&w);
}

/* ---- sinks, names, gradients ---- */

static void test_sinks(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x = tn_input(w.g, "x", TN_F32, TN_DIMS(2)), s = tn_state(w.g, "s", TN_F32, TN_DIMS(2), NULL);
    tn_tensor y = tn_label(tn_add(x, s), "enc/sum");
    assert_string_equal(tn_tensor_name(y), "enc/sum");
    tn_label(x, "other"); /* an input is found by its name, which stays */
    assert_string_equal(tn_tensor_name(x), "x");
    assert_null(tn_tensor_name(tn_neg(x)));
    tn_output(y, "y");
    tn_output(y, "again");
    tn_output(s, "s"); /* the name of a state is free for outputs */
    tn_assign(s, y);
    assert_int_equal(w.g->ir->outputs.n, 4);
    assert_int_equal(w.g->ir->outputs.at[3].state, s.id);
    assert_int_equal(tn_graph_check(w.g), TN_OK);
    assert_ptr_equal(tn_graph_ctx(w.g), w.ctx);
    tn_graph_set_seed(w.g, 9);
    assert_true(tn_graph_seed(w.g) == 9);
    world_free(&w);
}

static void test_text(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x = tn_input(w.g, "x", TN_F32, TN_DIMS(8, 784)), m = tn_param(w.g, "m", TN_F32, TN_DIMS(784, 3), NULL);
    tn_output(tn_relu(tn_matmul(x, m)), "y");
    char *text = NULL, *again = NULL;
    assert_int_equal(tn_graph_print(w.g, &text), TN_OK);
    assert_non_null(strstr(text, "f32[8,784]"));
    tn_graph *back = tn_graph_parse(w.ctx, text, strlen(text), "w.tn");
    if (!back) fail_msg("%s", tn_ctx_error(w.ctx));
    assert_int_equal(tn_graph_print(back, &again), TN_OK);
    assert_string_equal(text, again);
    tn_string_free(w.ctx, text);
    tn_string_free(w.ctx, again);
    tn_string_free(w.ctx, NULL);
    tn_graph_free(back);
    assert_null(tn_graph_parse(w.ctx, "graph @x( {", 11, "bad.tn"));
    assert_int_equal(tn_ctx_status(w.ctx), TN_ERR_PARSE);
    assert_non_null(strstr(tn_ctx_error(w.ctx), "bad.tn:1:"));
    assert_null(tn_graph_parse(w.ctx, NULL, 0, NULL));
    assert_int_equal(tn_ctx_status(w.ctx), TN_ERR_INVAL);
    assert_null(tn_graph_parse(NULL, "", 0, NULL));
    assert_int_equal(tn_graph_print(w.g, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_ctx_status(w.ctx), TN_ERR_INVAL);
    assert_int_equal(tn_graph_print(NULL, &text), TN_ERR_INVAL);
    assert_null(text);
    world_free(&w);
}

/* Any text can be a name, and comes back. */
static void test_names(void **state) {
    (void)state;
    static const char *const names[] = { "a b", "\"", "\\", "x\ny",     "\t\x01",  "%1", "return",
                                         "f32", "1",  "-",  "\xc3\xa9", "a/b.c_1", "..", "graph" };
    world w = world_new();
    for (size_t i = 0; i < COUNT_OF(names); i++)
        tn_output(tn_label(tn_exp(tn_input(w.g, names[i], TN_F32, TN_SCALAR)), names[i]), i % 2 ? names[i - 1] : "out");
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL); /* an output cannot have an input's name */
    tn_graph_free(w.g);
    w.g = tn_graph_new(w.ctx, "odd \" name");
    tn_tensor x = tn_input(w.g, "x", TN_F32, TN_SCALAR);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        tn_tensor y = tn_label(tn_add(tn_state(w.g, names[i], TN_F32, TN_SCALAR, NULL), x), names[i]);
        tn_output(y, names[i]);
    }
    char *text = NULL, *again = NULL;
    if (tn_graph_print(w.g, &text)) fail_msg("%s", tn_ctx_error(w.ctx));
    tn_graph *back = tn_graph_parse(w.ctx, text, strlen(text), "names.tn");
    if (!back) fail_msg("%s in\n%s", tn_ctx_error(w.ctx), text);
    assert_int_equal(tn_graph_print(back, &again), TN_OK);
    assert_string_equal(text, again);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_string_equal(graph_get(back->ir, back->ir->inputs.at[i + 1])->name, names[i]);
        assert_string_equal(back->ir->outputs.at[i].name, names[i]);
    }
    tn_string_free(w.ctx, text);
    tn_string_free(w.ctx, again);
    tn_graph_free(back);
    char *big = malloc(3000);
    memset(big, 'n', 2999);
    big[2999] = 0;
    assert_int_equal(tn_label(x, big).id, 0);
    assert_int_equal(tn_graph_status(w.g), TN_ERR_INVAL);
    free(big);
    tn_graph_free(w.g);
    w.g = tn_graph_new(w.ctx, "w");
    world_free(&w);
}

/* Reading and writing values is for immediate graphs, and sizes must match. */
static void test_access(void **state) {
    (void)state;
    world w = world_new();
    float data[3];
    tn_tensor x = tn_input(w.g, "x", TN_F32, TN_DIMS(3));
    assert_int_equal(tn_tensor_read(x, data, sizeof data), TN_ERR_INVAL);
    assert_int_equal(tn_tensor_write(x, data, sizeof data), TN_ERR_INVAL);
    tn_graph *g = tn_graph_immediate(w.ctx, "now");
    x = tn_input(g, "x", TN_F32, TN_DIMS(3));
    assert_int_equal(tn_tensor_write(x, data, 8), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_ctx_error(w.ctx), "8 bytes"));
    assert_int_equal(tn_tensor_write(x, NULL, sizeof data), TN_ERR_INVAL);
    assert_int_equal(tn_tensor_read(x, NULL, sizeof data), TN_ERR_INVAL);
    assert_int_equal(tn_tensor_read((tn_tensor){ g, 99 }, data, sizeof data), TN_ERR_INVAL);
    assert_int_equal(tn_graph_status(g), TN_OK);
    tn_graph_free(g);
    world_free(&w);
}

static void test_grad(void **state) {
    (void)state;
    world w = world_new();
    tn_tensor x = F64(w.g, 1, 2, 3), y = F64(w.g, 4, 5, 6), d[2], dd[1];
    tn_tensor loss = tn_sum(tn_mul(tn_mul(x, x), y), TN_ALL_AXES, 0);
    assert_int_equal(tn_grad(loss, (tn_tensor[]){ x, y }, 2, d), TN_OK);
    EXPECT(d[0], TN_F64, TN_DIMS(3), 8, 20, 36);
    EXPECT(d[1], TN_F64, TN_DIMS(3), 1, 4, 9);
    assert_int_equal(tn_grad(tn_sum(d[0], TN_ALL_AXES, 0), &x, 1, dd), TN_OK);
    EXPECT(dd[0], TN_F64, TN_DIMS(3), 8, 10, 12);
    assert_int_equal(tn_grad(loss, NULL, 0, NULL), TN_OK);
    /* the sigmoid's gradient is finite everywhere */
    tn_tensor far = tn_const(w.g, TN_F32, TN_DIMS(4), (float[]){ -500, -100, 0, 500 });
    assert_int_equal(tn_grad(tn_sum(tn_sigmoid(far), TN_ALL_AXES, 0), &far, 1, d), TN_OK);
    double want[4];
    for (int i = 0; i < 4; i++) want[i] = exp(-fabs((double[]){ -500, -100, 0, 500 }[i]));
    for (int i = 0; i < 4; i++) assert_true(fabs(value_of(d[0]).v[i] - want[i] / (1 + want[i]) / (1 + want[i])) <= 0x1p-52);
    world_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),    cmocka_unit_test(test_const_is_copied),
        cmocka_unit_test(test_random),     cmocka_unit_test(test_elementwise_types),
        cmocka_unit_test(test_broadcast),  cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_reductions_by_hand),
        cmocka_unit_test(test_movement),   cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_dot),        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_sinks),      cmocka_unit_test(test_text),
        cmocka_unit_test(test_grad),       cmocka_unit_test(test_names),
        cmocka_unit_test(test_access),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
