/* test_bad_calls.c - every builder called wrongly: each call has its status and a text that starts with the place and shows the
 * operands; afterwards the graph is poisoned for good, and other graphs are not. */
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <math.h>
#include <string.h>

#define L(...) ((const int64_t[]){ __VA_ARGS__ })

typedef struct bad {
    tn_graph *g, *h;
    tn_tensor a, v, n, i, b, d, s, c, st, e, r12; /* see bad_new */
    tn_tensor other, none, stray;
} bad;
static tn_ctx *bad_ctx;
static int n_bad;

static bad bad_new(void) {
    bad w = { .g = tn_graph_new(bad_ctx, "g"), .h = tn_graph_new(bad_ctx, "h") };
    w.a = tn_input(w.g, "a", TN_F32, TN_DIMS(2, 3));
    w.v = tn_input(w.g, "v", TN_F32, TN_DIMS(4));
    w.n = tn_input(w.g, "n", TN_F64, TN_DIMS(2, 3));
    w.i = tn_input(w.g, "i", TN_I32, TN_DIMS(2, 3));
    w.b = tn_input(w.g, "b", TN_BOOL, TN_DIMS(2, 3));
    w.d = tn_input(w.g, "d", TN_F32, TN_DIMS(5, 2, 3));
    w.s = tn_input(w.g, "s", TN_F32, TN_SCALAR);
    w.c = tn_input(w.g, "c", TN_I64, TN_SCALAR);
    w.st = tn_state(w.g, "st", TN_F32, TN_DIMS(2, 3), NULL);
    w.e = tn_input(w.g, "e", TN_F32, TN_DIMS(2, 0));
    w.r12 = tn_input(w.g, "r12", TN_F32, TN_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2));
    w.other = tn_input(w.h, "o", TN_F32, TN_DIMS(2, 3));
    w.none = (tn_tensor){ NULL, 7 };
    w.stray = (tn_tensor){ w.g, 100000 };
    assert_int_equal(tn_graph_status(w.g), TN_OK);
    return w;
}
static void bad_done(bad *w, const char *here, tn_status code, const char *const *words) {
    const char *text = tn_ctx_error(bad_ctx);
    n_bad++;
    if (tn_graph_status(w->g) != code)
        fail_msg("%s: %s instead of %s: %s", here, tn_status_name(tn_graph_status(w->g)), tn_status_name(code), text);
    assert_int_equal(tn_ctx_status(bad_ctx), code);
    if (strncmp(text, here, strlen(here)) != 0) fail_msg("%s is not at the start of: %s", here, text);
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("%s: \"%s\" is not in: %s", here, *words, text);
    /* sticky: what follows is poisoned, and the text stays the first error's */
    tn_tensor after = (tn_exp)(w->a);
    assert_int_equal(after.id, 0);
    assert_ptr_equal(after.graph, w->g);
    assert_int_equal((tn_add)(after, w->a).id, 0);
    assert_int_equal(tn_tensor_shape(after).rank, -1);
    assert_int_equal(tn_tensor_bytes(after), 0);
    char *listing;
    assert_int_equal(tn_graph_print(w->g, &listing), code);
    assert_null(listing);
    assert_int_equal(tn_graph_check(w->g), code);
    if (strncmp(tn_ctx_error(bad_ctx), here, strlen(here)) != 0) fail_msg("%s: lost: %s", here, tn_ctx_error(bad_ctx));
    assert_int_equal(tn_graph_status(w->h), TN_OK);
    tn_graph_free(w->g);
    tn_graph_free(w->h);
}
/* The call on the graph `w` of bad_new must fail with the status, the place, and every one of the words in the text. */
#define BAD(code, call, ...)                                                                                                   \
    do {                                                                                                                       \
        bad w = bad_new();                                                                                                     \
        (void)(call);                                                                                                          \
        bad_done(&w, TN_HERE ": ", code, (const char *const[]){ __VA_ARGS__, NULL });                                          \
    } while (0)
#define VOID(call) ((call), 0)

static void bad_elementwise(void) {
    BAD(TN_ERR_SHAPE, tn_add(w.a, w.v), "tn_add(a f32[2,3], v f32[4])", "broadcast", "3 and 4");
    BAD(TN_ERR_SHAPE, tn_mul(w.d, w.v), "d f32[5,2,3]", "v f32[4]");
    BAD(TN_ERR_SHAPE, tn_max(w.a, w.e), "a f32[2,3]", "e f32[2,0]");
    BAD(TN_ERR_SHAPE, tn_lt(tn_transpose(w.a, 0, 1), w.a), "f32[3,2]", "f32[2,3]");
    BAD(TN_ERR_DTYPE, tn_add(w.a, w.n), "a f32[2,3]", "n f64[2,3]", "tn_cast");
    BAD(TN_ERR_DTYPE, tn_sub(w.i, w.c), "i i32[2,3]", "c i64[]", "tn_cast");
    BAD(TN_ERR_DTYPE, tn_eq(w.b, w.i), "bool[2,3]", "i32[2,3]");
    BAD(TN_ERR_DTYPE, tn_exp(w.i), "tn_exp(i i32[2,3])", "float");
    BAD(TN_ERR_DTYPE, tn_neg(w.b), "bool[2,3]");
    BAD(TN_ERR_DTYPE, tn_not(w.a), "f32[2,3]", "bool");
    BAD(TN_ERR_DTYPE, tn_and(w.a, w.a), "f32[2,3]");
    BAD(TN_ERR_DTYPE, tn_add(w.b, w.b), "bool[2,3]");
    BAD(TN_ERR_DTYPE, tn_pow(w.i, w.i), "i32[2,3]");
    BAD(TN_ERR_DTYPE, tn_lt(w.b, w.b), "bool[2,3]");
    BAD(TN_ERR_DTYPE, tn_select(w.a, w.a, w.a), "a f32[2,3], a f32[2,3], a f32[2,3]", "condition", "bool");
    BAD(TN_ERR_DTYPE, tn_select(w.b, w.a, w.n), "b bool[2,3], a f32[2,3], n f64[2,3]", "tn_cast");
    BAD(TN_ERR_SHAPE, tn_select(w.b, w.v, w.a), "bool[2,3]", "f32[4]", "broadcast");
    BAD(TN_ERR_INVAL, tn_add(w.a, w.other), "a f32[2,3]", "o f32[2,3]", "another graph");
    BAD(TN_ERR_INVAL, tn_add(w.a, w.none), "operand 2", "no graph");
    BAD(TN_ERR_INVAL, tn_add(w.a, w.stray), "operand 2", "100000");
    BAD(TN_ERR_INVAL, tn_exp(w.stray), "operand 1");
    BAD(TN_ERR_INVAL, tn_add(w.a, (tn_tensor){ w.g, 0 }), "operand 2");
    BAD(TN_ERR_INVAL, tn_cast(w.a, (tn_dtype)TN_N_DTYPES), "a f32[2,3]", "15");
    BAD(TN_ERR_INVAL, tn_cast(w.a, (tn_dtype)-1), "dtype");
    BAD(TN_ERR_DTYPE, tn_add_scalar(w.i, 0.5), "i i32[2,3]", "0.5");
    BAD(TN_ERR_DTYPE, tn_add_scalar(w.i, 3e9), "3000000000", "i32");
    BAD(TN_ERR_DTYPE, tn_mul_scalar(w.i, NAN), "nan");
    BAD(TN_ERR_DTYPE, tn_mul_scalar(w.b, 1), "bool[2,3]");
    BAD(TN_ERR_DTYPE, tn_add_scalar(w.b, 2), "2", "bool");
    BAD(TN_ERR_DTYPE, tn_max_scalar(w.i, 0.5), "tn_max_scalar", "0.5");
    BAD(TN_ERR_DTYPE, tn_pow_scalar(w.i, 2), "i i32[2,3]");
    BAD(TN_ERR_INVAL, tn_clamp(w.a, 1, 0), "tn_clamp(a f32[2,3])", "no bounds");
    BAD(TN_ERR_INVAL, tn_clamp(w.a, NAN, 0), "no bounds");
    BAD(TN_ERR_DTYPE, tn_clamp(w.i, 0, 0.5), "0.5", "i32");
    BAD(TN_ERR_DTYPE, tn_round_away(w.i), "i i32[2,3]");
    BAD(TN_ERR_DTYPE, tn_floor_div(w.a, w.n), "f32", "f64");
    BAD(TN_ERR_SHAPE, tn_fmod(w.a, w.v), "tn_fmod(a f32[2,3], v f32[4])", "broadcast");
    BAD(TN_ERR_DTYPE, tn_fmod(w.b, w.b), "bool");
    BAD(TN_ERR_DTYPE, tn_is_inf(w.b), "bool");
    BAD(TN_ERR_SHAPE, tn_tril(w.v, 0), "rank 1");
    BAD(TN_ERR_DTYPE, tn_one_hot(w.a, 3, TN_F32), "a f32[2,3]", "integer");
    BAD(TN_ERR_SHAPE, tn_one_hot(w.i, -3, TN_F32), "-3");
    BAD(TN_ERR_INVAL, tn_one_hot(w.i, 3, (tn_dtype)99), "99");
    BAD(TN_ERR_SHAPE, tn_squeeze(w.a, TN_INTS(0)), "axis 0 has size 2");
    BAD(TN_ERR_SHAPE, tn_squeeze(w.a, TN_INTS(2)), "axis 2");
    BAD(TN_ERR_INVAL, tn_unsqueeze(w.a, TN_INTS(0, 0)), "twice");
    BAD(TN_ERR_SHAPE, tn_unsqueeze(w.a, TN_INTS(4)), "axis 4");
    BAD(TN_ERR_SHAPE, tn_slice_axis(w.a, 2, 0, 1, 1), "axis 2");
    BAD(TN_ERR_SHAPE, tn_slice_axis(w.a, 1, 2, 9, 1), "2..9");
    BAD(TN_ERR_INVAL, tn_slice_axis(w.a, 1, 0, 2, 0), "step");
    BAD(TN_ERR_DTYPE, tn_relu(w.b), "tn_relu(b bool[2,3])");
    BAD(TN_ERR_DTYPE, tn_sigmoid(w.i), "tn_sigmoid(i i32[2,3])", "float");
}

static void bad_sources(void) {
    BAD(TN_ERR_INVAL, tn_input(w.g, NULL, TN_F32, TN_SCALAR), "tn_input", "NULL");
    BAD(TN_ERR_INVAL, tn_input(w.g, "", TN_F32, TN_SCALAR), "empty");
    BAD(TN_ERR_INVAL, tn_input(w.g, "a", TN_F32, TN_SCALAR), "\"a\"", "taken");
    BAD(TN_ERR_INVAL, tn_state(w.g, "a", TN_F32, TN_SCALAR, NULL), "tn_state", "\"a\"");
    BAD(TN_ERR_INVAL, tn_param(w.g, "st", TN_F32, TN_SCALAR, NULL), "tn_param", "\"st\"");
    BAD(TN_ERR_INVAL, tn_input(w.g, "x", (tn_dtype)77, TN_SCALAR), "77", "dtype");
    BAD(TN_ERR_INVAL, tn_input(w.g, "x", TN_F32, TN_DIMS(2, -3)), "dim 1 is -3");
    BAD(TN_ERR_INVAL, tn_input(w.g, "x", TN_F32, ((tn_shape){ 13, { 0 } })), "13", "12");
    BAD(TN_ERR_INVAL, tn_input(w.g, "x", TN_F32, ((tn_shape){ -1, { 0 } })), "-1");
    BAD(TN_ERR_SHAPE, tn_input(w.g, "x", TN_F32, TN_DIMS(INT64_MAX, 2)), "f32[9223372036854775807,2]");
    BAD(TN_ERR_SHAPE, tn_input(w.g, "x", TN_F64, TN_DIMS((int64_t)1 << 61)), "f64[2305843009213693952]");
    BAD(TN_ERR_SHAPE, tn_state(w.g, "x", TN_F32, TN_DIMS(1 << 30, 1 << 30, 1 << 30), NULL), "1073741824");
    BAD(TN_ERR_INVAL, tn_const(w.g, TN_F32, TN_DIMS(2), NULL), "tn_const", "NULL");
    BAD(TN_ERR_INVAL, tn_const(w.g, TN_F32, TN_DIMS(-2), NULL), "dim 0 is -2");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_I32, TN_DIMS(2), 0.5), "0.5", "i32");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_U8, TN_DIMS(2), 256), "256", "u8");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_U8, TN_DIMS(2), -1), "-1", "u8");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_I64, TN_DIMS(2), 0x1p63), "i64");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_BOOL, TN_DIMS(2), 2), "bool");
    BAD(TN_ERR_DTYPE, tn_full(w.g, TN_I8, TN_SCALAR, INFINITY), "inf");
    BAD(TN_ERR_INVAL, tn_full(w.g, TN_N_DTYPES, TN_DIMS(2), 1), "dtype");
    BAD(TN_ERR_SHAPE, tn_iota(w.g, TN_F32, TN_DIMS(2), 1), "axis 1", "rank 1");
    BAD(TN_ERR_SHAPE, tn_iota(w.g, TN_F32, TN_SCALAR, 0), "axis 0", "rank 0");
    BAD(TN_ERR_DTYPE, tn_iota(w.g, TN_BOOL, TN_DIMS(2), 0), "bool");
    BAD(TN_ERR_DTYPE, tn_random_uniform(w.s, 0, TN_DIMS(2)), "s f32[]", "i64[]");
    BAD(TN_ERR_SHAPE, tn_random_uniform(tn_cast(w.i, TN_I64), 0, TN_DIMS(2)), "i64[2,3]", "i64[]");
    BAD(TN_ERR_INVAL, tn_random_uniform(w.c, -1, TN_DIMS(2)), "c i64[]", "stream -1");
    BAD(TN_ERR_INVAL, tn_random_normal(w.c, INT64_MAX, TN_DIMS(2)), "stream");
    BAD(TN_ERR_INVAL, tn_random_normal(w.c, 0, TN_DIMS(-2)), "-2");
    BAD(TN_ERR_INVAL, tn_random_bernoulli(w.c, 0, TN_DIMS(2), 1.5), "1.5");
    BAD(TN_ERR_INVAL, tn_random_bernoulli(w.c, 0, TN_DIMS(2), NAN), "nan");
}

static void bad_reductions(void) {
    BAD(TN_ERR_SHAPE, tn_sum(w.a, TN_INTS(2), 0), "tn_sum(a f32[2,3])", "axis 2", "rank 2");
    BAD(TN_ERR_SHAPE, tn_sum(w.a, TN_INTS(-3), 0), "axis -3");
    BAD(TN_ERR_INVAL, tn_sum(w.a, TN_INTS(1, -1), 0), "axis -1", "twice");
    BAD(TN_ERR_INVAL, tn_sum(w.a, NULL, 1, 0), "NULL");
    BAD(TN_ERR_INVAL, tn_sum(w.a, NULL, -2, 0), "-2");
    BAD(TN_ERR_INVAL, tn_prod(w.a, TN_INTS(0, 0), 1), "twice");
    BAD(TN_ERR_INVAL, tn_prod(w.a, L(0), 1000, 1), "1000 axes", "rank 2"); /* and the list is not read */
    BAD(TN_ERR_INVAL, tn_label(w.a, NULL), "tn_label(a f32[2,3])", "NULL");
    BAD(TN_ERR_SHAPE, tn_reduce_max(w.s, TN_INTS(0), 1), "s f32[]", "axis 0", "rank 0");
    BAD(TN_ERR_SHAPE, tn_reduce_min(w.a, TN_INTS(INT64_MIN), 1), "axis");
    BAD(TN_ERR_DTYPE, tn_sum(w.b, TN_ALL_AXES, 0), "bool[2,3]");
    BAD(TN_ERR_DTYPE, tn_mean(w.i, TN_ALL_AXES, 0), "i i32[2,3]", "tn_cast");
    BAD(TN_ERR_SHAPE, tn_mean(w.a, TN_INTS(5), 0), "axis 5");
    BAD(TN_ERR_SHAPE, tn_argmax(w.a, 2, 0), "a f32[2,3]", "axis 2");
    BAD(TN_ERR_SHAPE, tn_argmin(w.a, -3, 0), "axis -3");
    BAD(TN_ERR_SHAPE, tn_argmax(w.e, 1, 0), "e f32[2,0]", "axis 1");
    BAD(TN_ERR_SHAPE, tn_argmax(w.s, 0, 0), "s f32[]");
    BAD(TN_ERR_DTYPE, tn_argmax(w.b, 0, 0), "bool[2,3]");
}

static void bad_movement(void) {
    BAD(TN_ERR_SHAPE, tn_reshape(w.a, TN_DIMS(4)), "a f32[2,3]", "[4]", "6 elements");
    BAD(TN_ERR_SHAPE, tn_reshape(w.a, TN_DIMS(4, -1)), "a f32[2,3]", "[4,");
    BAD(TN_ERR_INVAL, tn_reshape(w.a, TN_DIMS(-1, -1)), "both -1");
    BAD(TN_ERR_INVAL, tn_reshape(w.a, TN_DIMS(-2, 3)), "-2");
    BAD(TN_ERR_SHAPE, tn_reshape(w.e, TN_DIMS(0, -1)), "e f32[2,0]", "-1");
    BAD(TN_ERR_SHAPE, tn_reshape(w.a, TN_DIMS(INT64_MAX, INT64_MAX)), "[9223372036854775807,9223372036854775807]");
    BAD(TN_ERR_INVAL, tn_reshape(w.a, ((tn_shape){ 13, { 0 } })), "13");
    BAD(TN_ERR_SHAPE, tn_permute(w.a, TN_INTS(0)), "a f32[2,3]", "length 1", "rank 2");
    BAD(TN_ERR_INVAL, tn_permute(w.a, TN_INTS(0, 0)), "twice");
    BAD(TN_ERR_SHAPE, tn_permute(w.a, TN_INTS(0, 2)), "axis 2");
    BAD(TN_ERR_INVAL, tn_permute(w.a, NULL, 2), "NULL");
    BAD(TN_ERR_SHAPE, tn_transpose(w.a, 0, 2), "axis 2");
    BAD(TN_ERR_SHAPE, tn_transpose(w.s, 0, 0), "s f32[]");
    BAD(TN_ERR_SHAPE, tn_expand(w.a, TN_DIMS(2, 4)), "a f32[2,3]", "[2,4]");
    BAD(TN_ERR_SHAPE, tn_expand(w.a, TN_DIMS(3)), "rank 2", "rank 1");
    BAD(TN_ERR_INVAL, tn_expand(w.s, TN_DIMS(-1)), "-1");
    BAD(TN_ERR_SHAPE, tn_expand(w.s, TN_DIMS(INT64_MAX, 4)), "s f32[]");
    BAD(TN_ERR_SHAPE, tn_pad(w.a, L(0), L(0), 1, 0), "a f32[2,3]", "length 1");
    BAD(TN_ERR_INVAL, tn_pad(w.a, L(0, -1), L(0, 0), 2, 0), "axis 1", "-1");
    BAD(TN_ERR_INVAL, tn_pad(w.a, NULL, L(0, 0), 2, 0), "before is NULL");
    BAD(TN_ERR_INVAL, tn_pad(w.a, L(0, 0), NULL, 2, 0), "after is NULL");
    BAD(TN_ERR_SHAPE, tn_pad(w.a, L(INT64_MAX, 0), L(0, 0), 2, 0), "9223372036854775807");
    BAD(TN_ERR_DTYPE, tn_pad(w.i, L(0, 0), L(1, 0), 2, 0.5), "0.5", "i32");
    BAD(TN_ERR_SHAPE, tn_slice(w.a, L(0, 0), L(2, 4), NULL, 2), "a f32[2,3]", "0..4", "size 3");
    BAD(TN_ERR_SHAPE, tn_slice(w.a, L(0, 2), L(2, 1), NULL, 2), "2..1");
    BAD(TN_ERR_SHAPE, tn_slice(w.a, L(0, -4), L(2, 3), NULL, 2), "-4..3");
    BAD(TN_ERR_INVAL, tn_slice(w.a, L(0, 0), L(2, 3), L(1, 0), 2), "step", "0");
    BAD(TN_ERR_INVAL, tn_slice(w.a, L(0, 0), L(2, 3), L(-1, 1), 2), "step", "-1");
    BAD(TN_ERR_INVAL, tn_slice(w.a, NULL, L(2, 3), NULL, 2), "start is NULL");
    BAD(TN_ERR_INVAL, tn_slice(w.a, L(0, 0), NULL, NULL, 2), "stop is NULL");
    BAD(TN_ERR_SHAPE, tn_slice(w.a, L(0, 0, 0), L(2, 3, 1), NULL, 3), "length 3");
    BAD(TN_ERR_SHAPE, tn_flip(w.a, TN_INTS(2)), "a f32[2,3]", "axis 2");
    BAD(TN_ERR_INVAL, tn_flip(w.a, TN_INTS(1, 1)), "twice");
    BAD(TN_ERR_SHAPE, tn_window(w.a, L(1), L(4), NULL, NULL, 1), "a f32[2,3]", "size 4", "size 3");
    BAD(TN_ERR_SHAPE, tn_window(w.a, L(1), L(2), NULL, L(3), 1), "dilation 3");
    BAD(TN_ERR_INVAL, tn_window(w.a, L(1), L(0), NULL, NULL, 1), "size 0");
    BAD(TN_ERR_INVAL, tn_window(w.a, L(1), L(2), L(0), NULL, 1), "stride 0");
    BAD(TN_ERR_SHAPE, tn_window(w.a, L(1), L(INT64_MAX), NULL, L(INT64_MAX), 1), "does not fit");
    BAD(TN_ERR_INVAL, tn_window(w.a, L(1, 1), L(2, 2), NULL, NULL, 2), "twice");
    BAD(TN_ERR_INVAL, tn_window(w.a, L(1), NULL, NULL, NULL, 1), "size is NULL");
    BAD(TN_ERR_INVAL, tn_window(w.a, NULL, L(1), NULL, NULL, 1), "axes is NULL");
    BAD(TN_ERR_INVAL, tn_window(w.a, NULL, NULL, NULL, NULL, -1), "-1");
    BAD(TN_ERR_SHAPE, tn_window(w.r12, L(11), L(1), NULL, NULL, 1), "rank 13");
    BAD(TN_ERR_SHAPE, tn_window(w.e, L(1), L(1), NULL, NULL, 1), "e f32[2,0]");
    BAD(TN_ERR_SHAPE, tn_concat(((tn_tensor[]){ w.a, w.v }), 2, 0), "tn_concat(a f32[2,3], v f32[4])");
    BAD(TN_ERR_SHAPE, tn_concat(((tn_tensor[]){ w.a, w.e }), 2, 0), "f32[2,3]", "f32[2,0]", "axis 0");
    BAD(TN_ERR_DTYPE, tn_concat(((tn_tensor[]){ w.a, w.a, w.n }), 3, 0), "1 and 3", "f32 and f64", "tn_cast");
    BAD(TN_ERR_SHAPE, tn_concat(((tn_tensor[]){ w.a, w.a }), 2, 2), "axis 2");
    BAD(TN_ERR_SHAPE, tn_concat(((tn_tensor[]){ w.s, w.s }), 2, 0), "rank 0");
    BAD(TN_ERR_INVAL, tn_concat(((tn_tensor[]){ w.a, w.other }), 2, 0), "another graph");
}

static void bad_contractions(void) {
    BAD(TN_ERR_SHAPE, tn_matmul(w.a, w.a), "tn_matmul(a f32[2,3], a f32[2,3])", "3", "2");
    BAD(TN_ERR_SHAPE, tn_matmul(w.a, w.v), "a f32[2,3]", "v f32[4]", "only axis");
    BAD(TN_ERR_SHAPE, tn_matmul(w.a, w.s), "s f32[]", "tn_mul");
    BAD(TN_ERR_DTYPE, tn_matmul(w.a, tn_transpose(w.n, 0, 1)), "f32[2,3]", "f64[3,2]", "tn_cast");
    BAD(TN_ERR_DTYPE, tn_matmul(w.b, tn_transpose(w.b, 0, 1)), "bool[2,3]");
    BAD(TN_ERR_SHAPE, tn_matmul(w.d, tn_full(w.g, TN_F32, TN_DIMS(4, 3, 2), 0)), "f32[5,2,3]", "f32[4,3,2]", "leading");
    BAD(TN_ERR_SHAPE, tn_dot(w.a, w.v, NULL, NULL, 0, L(1), L(0), 1), "tn_dot(a f32[2,3], v f32[4])", "3", "4");
    BAD(TN_ERR_SHAPE, tn_dot(w.a, w.a, L(0), L(1), 1, NULL, NULL, 0), "batch");
    BAD(TN_ERR_SHAPE, tn_dot(w.a, w.a, NULL, NULL, 0, L(2), L(0), 1), "axis 2");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, L(0), L(0), 1, L(0), L(1), 1), "contract_a", "already");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, NULL, NULL, 0, L(0, 0), L(0, 1), 2), "twice");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, NULL, NULL, 1, NULL, NULL, 0), "batch_a is NULL");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, NULL, NULL, 0, L(0), NULL, 1), "contract_b is NULL");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, NULL, NULL, -1, NULL, NULL, 0), "-1");
    BAD(TN_ERR_INVAL, tn_dot(w.a, w.a, NULL, NULL, 0, NULL, NULL, -5), "-5");
    BAD(TN_ERR_SHAPE, tn_dot(w.r12, w.v, NULL, NULL, 0, NULL, NULL, 0), "13");
    BAD(TN_ERR_DTYPE, tn_gather(w.a, w.v, 0), "a f32[2,3], v f32[4]", "i32 or i64");
    BAD(TN_ERR_SHAPE, tn_gather(w.a, w.i, 2), "axis 2");
    BAD(TN_ERR_SHAPE, tn_gather(w.s, w.i, 0), "s f32[]");
    BAD(TN_ERR_SHAPE, tn_gather(w.e, w.i, 1), "e f32[2,0]", "axis 1");
    BAD(TN_ERR_SHAPE, tn_gather(w.r12, w.i, 1), "rank 13");
    BAD(TN_ERR_SHAPE, tn_scatter_add(w.a, w.c, w.v, 0), "a f32[2,3], c i64[], v f32[4]");
    BAD(TN_ERR_DTYPE, tn_scatter_add(w.a, w.s, w.a, 0), "i32 or i64");
    BAD(TN_ERR_DTYPE, tn_scatter_add(w.a, w.c, w.n, 0), "f32 and f64");
    BAD(TN_ERR_SHAPE, tn_scatter_add(w.a, w.c, w.v, -3), "axis -3");
}

static int status_of(tn_status s) { return (int)s; }

static void bad_sinks(void) {
    BAD(TN_ERR_INVAL, VOID(tn_output(w.a, NULL)), "tn_output(a f32[2,3])", "NULL");
    BAD(TN_ERR_INVAL, VOID(tn_output(w.a, "")), "empty");
    BAD(TN_ERR_INVAL, VOID((tn_output(w.a, "y"), tn_output(w.v, "y"))), "v f32[4]", "\"y\"");
    BAD(TN_ERR_INVAL, VOID(tn_output(w.a, "v")), "\"v\" is taken by an input at ", "test_bad_calls.c:");
    BAD(TN_ERR_INVAL, VOID((tn_output(w.a, "y"), tn_input(w.g, "y", TN_F32, TN_SCALAR))), "\"y\" is taken by an output at ");
    BAD(TN_ERR_INVAL, tn_state(w.g, "v", TN_F32, TN_SCALAR, NULL), "\"v\" is taken by an input at ");
    BAD(TN_ERR_INVAL, tn_input(w.g, "st", TN_F32, TN_SCALAR), "\"st\" is taken by a state at ");
    BAD(TN_ERR_INVAL, VOID(tn_assign(w.a, w.a)), "input", "state");
    BAD(TN_ERR_SHAPE, VOID(tn_assign(w.st, w.v)), "tn_assign(st f32[2,3], v f32[4])");
    BAD(TN_ERR_DTYPE, VOID(tn_assign(w.st, w.n)), "f32 and f64");
    BAD(TN_ERR_INVAL, VOID((tn_assign(w.st, w.a), tn_assign(w.st, w.a))), "already");
    BAD(TN_ERR_INVAL, VOID(tn_assign(w.st, w.other)), "another graph");
    tn_tensor out[2];
    BAD(TN_ERR_SHAPE, status_of(tn_grad(w.a, &w.a, 1, out)), "tn_grad(a f32[2,3], a f32[2,3])", "scalar");
    BAD(TN_ERR_DTYPE, status_of(tn_grad(w.c, &w.a, 1, out)), "c i64[]", "float");
    BAD(TN_ERR_DTYPE, status_of(tn_grad(w.s, &w.i, 1, out)), "operand 2", "i32");
    BAD(TN_ERR_INVAL, status_of(tn_grad(w.s, &w.a, 1, NULL)), "out is NULL");
    BAD(TN_ERR_INVAL, status_of(tn_grad(w.s, NULL, 1, out)), "xs is NULL");
    BAD(TN_ERR_INVAL, status_of(tn_grad(w.s, &w.a, -1, out)), "-1");
    BAD(TN_ERR_INVAL, status_of(tn_grad(w.s, &w.other, 1, out)), "another graph");
}

static void test_bad_calls(void **state) {
    (void)state;
    bad_ctx = test_ctx();
    bad_elementwise();
    bad_sources();
    bad_reductions();
    bad_movement();
    bad_contractions();
    bad_sinks();
    print_message("%d bad calls\n", n_bad);
    assert_true(n_bad >= 150);
    tn_ctx_free(bad_ctx);
}

/* The first error stays; tn_graph_check has them all, each once, and none that is only a consequence. */
static void test_all_mistakes(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "g");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(2, 3)), i = tn_input(g, "i", TN_I32, TN_DIMS(2, 3));
    tn_param(g, "p", TN_F32, TN_SCALAR, NULL);
    assert_true(tn_graph_n_params(g) == 1 && tn_graph_n_states(g) == 1);
    tn_tensor bad = tn_add(x, i), next = tn_exp(tn_reshape(bad, TN_DIMS(7)));
    (void)tn_reshape(x, TN_DIMS(7));
    tn_output(next, "y");
    tn_output(x, "x");
    tn_tensor late = tn_input(g, "x", TN_F32, TN_DIMS(-1));
    assert_int_equal(late.id, 0);
    (void)tn_matmul(late, x);
    assert_true(tn_graph_n_params(g) == 0 && tn_graph_n_states(g) == 0); /* what is counted can be asked for */
    assert_int_equal(tn_graph_param(g, 0).id, 0);
    assert_int_equal(tn_graph_status(g), TN_ERR_DTYPE);
    assert_non_null(strstr(tn_ctx_error(ctx), "tn_add(x f32[2,3], i i32[2,3])"));
    tn_program *p;
    assert_int_equal(tn_compile(g, NULL, &p), TN_ERR_DTYPE);
    assert_non_null(strstr(tn_ctx_error(ctx), "tn_add("));
    assert_non_null(strstr(tn_ctx_error(ctx), "and 3 more errors"));
    assert_int_equal(tn_graph_check(g), TN_ERR_DTYPE);
    const char *at = tn_ctx_error(ctx), *const want[] = { "tn_add(", "tn_reshape(x f32[2,3]): 6 elements",
                                                          "tn_output(x f32[2,3]): the name", "tn_input(): dim 0" };
    for (size_t k = 0; k < 4; k++)
        if (!(at = strstr(at, want[k]))) fail_msg("%s is not, or too early, in\n%s", want[k], tn_ctx_error(ctx));
    assert_null(strchr(at, '\n'));
    for (int k = 0; k < 300; k++) (void)tn_reshape(x, TN_DIMS(7 + k));
    assert_int_equal(tn_graph_check(g), TN_ERR_DTYPE);
    assert_true(strlen(tn_ctx_error(ctx)) < 3072);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* No graph to tell: poison comes back, nothing else happens. */
static void test_nothing_given(void **state) {
    (void)state;
    tn_tensor none = { NULL, 0 };
    assert_null(tn_add(none, none).graph);
    assert_int_equal(tn_exp(none).id, 0);
    assert_int_equal(tn_input(NULL, "x", TN_F32, TN_SCALAR).id, 0);
    assert_int_equal(tn_concat(NULL, 3, 0).id, 0);
    assert_int_equal(tn_concat(&none, 0, 0).id, 0);
    assert_int_equal(tn_grad(none, NULL, 0, NULL), TN_ERR_INVAL);
    tn_output(none, "y");
    tn_assign(none, none);
    tn_label(none, "x");
    assert_null(tn_graph_new(NULL, "g"));
    assert_null(tn_graph_immediate(NULL, "g"));
    tn_graph_free(NULL);
    tn_ctx_free(NULL);
    tn_string_free(NULL, NULL);
    tn_graph_at(NULL, "x");
    assert_int_equal(tn_graph_status(NULL), TN_ERR_INVAL);
    assert_int_equal(tn_graph_check(NULL), TN_ERR_INVAL);
    assert_null(tn_graph_ctx(NULL));
    assert_int_equal(tn_graph_n_params(NULL), 0);
    assert_int_equal(tn_graph_param(NULL, 0).id, 0);
    assert_int_equal(tn_tensor_shape(none).rank, -1);
    assert_int_equal(tn_tensor_dtype(none), TN_N_DTYPES);
    assert_null(tn_tensor_name(none));
    assert_int_equal(tn_tensor_read(none, NULL, 0), TN_ERR_INVAL);
    assert_int_equal(tn_graph_write_states(NULL, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_ctx_status(NULL), TN_ERR_INVAL);
    assert_non_null(tn_ctx_error(NULL));
    assert_null(tn_graph_fail(NULL, TN_ERR_INVAL, "x").graph);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bad_calls), cmocka_unit_test(test_all_mistakes),
                                        cmocka_unit_test(test_nothing_given) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
