/* test_fuzz_builders.c - random builder calls with good and bad arguments: every call ends in a checked node or in an error
 * with a text, never in a crash; graphs that stay good pass graph_check and survive printing and parsing. Labels: random */
#include "drive/objects.h"
#include "support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t bits;
static uint64_t next_u64(void) {
    bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
    return bits;
}
static int below(int n) { return (int)(next_u64() % (uint64_t)n); }
static bool odds(int n) { return below(n) == 0; }

/* Mostly small, now and then absurd. */
static int64_t any_int(int lo, int hi) {
    static const int64_t absurd[] = { INT64_MIN, INT64_MAX, -1, INT32_MIN, (int64_t)1 << 40, 1000, INT64_MAX / 2 + 1 };
    return odds(60) ? absurd[below((int)COUNT_OF(absurd))] : lo + below(hi - lo + 1);
}
static tn_shape any_shape(void) {
    tn_shape s = { .rank = odds(80) ? (int)any_int(-1, 14) : below(4) };
    for (int i = 0; i < TN_MAX_RANK; i++) s.dim[i] = any_int(odds(9) ? 0 : 1, 4);
    return s;
}
static const int64_t *any_list(int64_t *out, int lo, int hi) {
    for (int i = 0; i < TN_MAX_RANK + 1; i++) out[i] = any_int(lo, hi);
    return odds(50) ? NULL : out;
}
static tn_dtype any_dtype(void) {
    return odds(60) ? (tn_dtype)any_int(-1, 12) : odds(3) ? (tn_dtype)below(TN_N_DTYPES) : TN_F32;
}
static double any_double(void) {
    static const double some[] = { 0, 1, -1, 0.5, NAN, INFINITY, 300, -1e300, 0x1p63 };
    return some[below((int)COUNT_OF(some))];
}

typedef tn_tensor (*unary_fn)(tn_tensor x);
typedef tn_tensor (*binary_fn)(tn_tensor x, tn_tensor y);
static const unary_fn unary[] = {
#define UNARY(name, ...) (tn_##name),
#define BINARY(...)
#define TERNARY(...)
#define OP(...)
#include "ir/ops.def"
    (tn_relu), (tn_sigmoid), (tn_round_away), (tn_is_nan), (tn_is_inf), (tn_is_finite)
};
static const binary_fn binary[] = {
#define UNARY(...)
#define BINARY(name, ...) (tn_##name),
#define TERNARY(...)
#define OP(...)
#include "ir/ops.def"
    (tn_matmul), (tn_add), (tn_floor_div), (tn_fmod)
};
static tn_tensor (*const reduce[])(tn_tensor, const int64_t *, int, int) = { (tn_sum), (tn_prod), (tn_reduce_max),
                                                                             (tn_reduce_min), (tn_mean) };

typedef struct pool {
    tn_graph *g;
    tn_tensor x[16];
    int names;
} pool;
static tn_tensor pick(pool *p) {
    return odds(400) ? (tn_tensor){ odds(2) ? p->g : NULL, (uint32_t)any_int(0, 9) } : p->x[below(16)];
}

static tn_tensor any_source(pool *p) {
    static double data[65536];
    char name[16];
    snprintf(name, sizeof name, "n%d", odds(50) ? 0 : p->names++);
    tn_shape s = any_shape();
    switch (below(7)) {
    case 0:
        return tn_input(p->g, name, any_dtype(), s);
    case 1:
        return tn_state(p->g, name, any_dtype(), TN_DIMS(below(5), below(5)), odds(2) ? NULL : data);
    case 2:
        return tn_const(p->g, any_dtype(), TN_DIMS(below(5), below(5)), odds(30) ? NULL : data);
    case 3:
        return tn_full(p->g, any_dtype(), s, any_double());
    case 4:
        return tn_iota(p->g, any_dtype(), s, (int)any_int(-1, 1));
    case 5:
        return tn_random_normal(tn_full(p->g, TN_I64, TN_SCALAR, 1), any_int(0, 3), s);
    default:
        return tn_random_bernoulli(tn_full(p->g, TN_I64, TN_SCALAR, 1), any_int(0, 3), s, odds(20) ? any_double() : 0.5);
    }
}
static tn_tensor any_movement(pool *p) {
    tn_tensor x = pick(p), many[5];
    int64_t a[16], b[16], c[16], d[16];
    int rank = tn_tensor_shape(x).rank < 0 ? 0 : tn_tensor_shape(x).rank, n = odds(30) ? (int)any_int(-2, 4) : rank;
    if (n > TN_MAX_RANK) n = TN_MAX_RANK;
    switch (below(9)) {
    case 0:
        return tn_reshape(x, odds(3) ? any_shape() : TN_DIMS(-1));
    case 1:
        return odds(2) ? tn_transpose(x, (int)any_int(-1, 2), (int)any_int(-1, 2)) : tn_permute(x, any_list(a, 0, rank), n);
    case 2: {
        tn_shape s = tn_tensor_shape(x);
        if (s.rank < 0) s.rank = 0;
        for (int i = 0; i < s.rank; i++)
            if (s.dim[i] == 1 || odds(30)) s.dim[i] = any_int(1, 4);
        return tn_expand(x, s);
    }
    case 3:
        return tn_pad(x, any_list(a, 0, 1), any_list(b, 0, 2), n, odds(4) ? any_double() : 0);
    case 4:
        return tn_slice(x, any_list(a, 0, 1), any_list(b, 1, 1), odds(2) ? any_list(c, 1, 2) : NULL, n);
    case 5:
        return tn_flip(x, any_list(a, -1, 1), odds(2) ? 1 : n);
    case 6:
        return tn_window(x, any_list(a, 0, 1), any_list(b, 1, 2), any_list(c, 1, 2), any_list(d, 1, 2), 1);
    default:
        for (int i = 0; i < 5; i++) many[i] = odds(3) ? pick(p) : x;
        return tn_concat(many, 1 + below(5), (int)any_int(-1, 1));
    }
}
static tn_tensor any_composition(pool *p) {
    int64_t a[16];
    tn_tensor x = pick(p);
    switch (below(7)) {
    case 0:
        return tn_clamp(x, any_double(), any_double());
    case 1:
        return tn_tril(x, any_int(-3, 3));
    case 2:
        return tn_one_hot(tn_cast(x, TN_I32), any_int(-1, 4), any_dtype());
    case 3:
        return tn_squeeze(x, any_list(a, -2, 2), odds(2) ? -1 : below(3));
    case 4:
        return tn_unsqueeze(x, any_list(a, -2, 2), below(3) - (odds(20) ? 2 : 0));
    case 5:
        return tn_slice_axis(x, (int)any_int(-2, 2), any_int(-1, 2), odds(2) ? TN_END : any_int(-1, 3), any_int(0, 2));
    default:
        return tn_max_scalar(tn_div_scalar(x, any_double()), any_double());
    }
}
static tn_tensor any_call(pool *p) {
    int64_t a[16], b[16], c[16], d[16];
    tn_tensor x = pick(p), y = pick(p);
    switch (below(13)) {
    case 12:
        return any_composition(p);
    case 0:
        return any_source(p);
    case 1:
        return unary[below((int)COUNT_OF(unary))](x);
    case 2:
    case 3:
        return binary[below((int)COUNT_OF(binary))](x, y);
    case 4:
        return tn_select(tn_cast(x, TN_BOOL), y, pick(p));
    case 5:
        return odds(2) ? tn_cast(x, any_dtype()) : odds(2) ? tn_add_scalar(x, any_double()) : tn_mul_scalar(x, 2);
    case 6:
        return reduce[below(5)](x, any_list(a, -2, 1), odds(3) ? -1 : 1, below(2));
    case 7:
        return odds(2) ? tn_argmax(x, (int)any_int(-1, 1), below(2)) : tn_argmin(x, 0, below(2));
    case 8:
        return tn_dot(x, y, any_list(a, 0, 1), any_list(b, 0, 1), below(2), any_list(c, 0, 2), any_list(d, 0, 2), below(2));
    case 9:
        return odds(2) ? tn_gather(x, tn_cast(y, TN_I32), (int)any_int(-1, 1))
                       : tn_scatter_add(x, tn_cast(y, TN_I64), pick(p), 0);
    default:
        return any_movement(p);
    }
}

static void check_whole(tn_ctx *ctx, tn_graph *g) {
    char *text = NULL, *again = NULL;
    if (tn_graph_check(g)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_graph_print(g, &text)) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph *back = tn_graph_parse(ctx, text, strlen(text), "fuzz.tn");
    if (!back) fail_msg("%s in\n%s", tn_ctx_error(ctx), text);
    if (tn_graph_print(back, &again)) fail_msg("%s", tn_ctx_error(ctx));
    assert_string_equal(text, again);
    tn_string_free(ctx, text);
    tn_string_free(ctx, again);
    tn_graph_free(back);
}

static void one_graph(tn_ctx *ctx, int *n_good, int *n_bad) {
    pool p = { .g = tn_graph_new(ctx, "fuzz") };
    for (int i = 0; i < 16; i++) p.x[i] = tn_full(p.g, i % 4 == 3 ? TN_I32 : TN_F32, i % 2 ? TN_DIMS(2, 3) : TN_DIMS(3), i);
    for (int i = 0; i < 60; i++) {
        tn_tensor y = any_call(&p);
        tn_status code = tn_graph_status(p.g);
        if (code) {
            (*n_bad)++;
            assert_true(code == TN_ERR_INVAL || code == TN_ERR_SHAPE || code == TN_ERR_DTYPE);
            assert_int_equal(y.id, 0);
            assert_true(strlen(tn_ctx_error(ctx)) > 20);
            p.g->err.code = TN_OK; /* no user can: it shows that a failed builder leaves the graph whole */
            continue;
        }
        (*n_good)++;
        if (!y.graph) continue; /* a call with no graph to tell */
        tn_shape s = tn_tensor_shape(y);
        assert_in_range(s.rank, 0, TN_MAX_RANK);
        int64_t n = 1;
        for (int k = 0; k < s.rank; k++) {
            assert_true(s.dim[k] >= 0);
            n *= s.dim[k];
        }
        if (n <= 4096) p.x[below(16)] = y;
    }
    for (int i = 0; i < 16; i++) {
        char name[16];
        snprintf(name, sizeof name, "out%d", i);
        tn_output(p.x[i], name);
    }
    assert_int_equal(tn_graph_status(p.g), TN_OK);
    check_whole(ctx, p.g);
    tn_graph_free(p.g);
}

static void test_random_calls(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(2000, &first);
    int n_good = 0, n_bad = 0;
    tn_ctx *ctx = test_ctx();
    for (uint64_t i = first; i < first + n; i++) {
        bits = (i + 1) * 0x9e3779b97f4a7c15u;
        one_graph(ctx, &n_good, &n_bad);
    }
    print_message("%d graphs, %d good calls, %d bad\n", (int)n, n_good, n_bad);
    assert_true(n_good > 20 * (int)n && n_bad > 5 * (int)n);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_calls) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
