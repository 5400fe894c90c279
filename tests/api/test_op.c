/* test_op.c - tn_op builds what the op's own builder builds, for every op of the table that has one; what is wrong is said. */
#include "tenon/tenon.h"
#include "tenon/tenon_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

#define L(...) ((const int64_t[]){ __VA_ARGS__ })
#define INTS(name, ...)                                                                                                        \
    { name, L(__VA_ARGS__), TN_COUNT_(int64_t, __VA_ARGS__), 0 }

typedef struct operands {
    tn_graph *g;
    tn_tensor x, y, mask, bits, index, counter;
} operands;
static operands make(tn_ctx *ctx) {
    operands o = { .g = tn_graph_new(ctx, "g") };
    o.x = tn_input(o.g, "x", TN_F32, TN_DIMS(4, 5));
    o.y = tn_input(o.g, "y", TN_F32, TN_DIMS(4, 5));
    o.mask = tn_input(o.g, "mask", TN_BOOL, TN_DIMS(4, 5));
    o.bits = tn_input(o.g, "bits", TN_I32, TN_DIMS(4, 5));
    o.index = tn_input(o.g, "index", TN_I64, TN_DIMS(3));
    o.counter = tn_input(o.g, "counter", TN_I64, TN_SCALAR);
    return o;
}
static char *text_of(tn_graph *g, tn_tensor y) {
    char *text = NULL;
    if (!y.id) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    tn_output(y, "out");
    assert_int_equal(tn_graph_print(g, &text), TN_OK);
    return text;
}
/* Both ways give the same text. */
#define SAME(direct, name, inputs, n_in, ...)                                                                                  \
    do {                                                                                                                       \
        operands o = make(ctx);                                                                                                \
        char *want = text_of(o.g, direct);                                                                                     \
        tn_graph_free(o.g);                                                                                                    \
        o = make(ctx);                                                                                                         \
        char *got = text_of(o.g, tn_op(o.g, name, inputs, n_in, __VA_ARGS__));                                                 \
        assert_string_equal(got, want);                                                                                        \
        tn_string_free(ctx, want), tn_string_free(ctx, got), tn_graph_free(o.g);                                               \
        built++;                                                                                                               \
    } while (0)
#define ONE(t) ((const tn_tensor[]){ t })
#define A(...) ((const tn_attr[]){ __VA_ARGS__ }), (int)(sizeof((const tn_attr[]){ __VA_ARGS__ }) / sizeof(tn_attr))

static void every_op_by_its_name(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    int built = 0, named = 0;
    for (int i = 0; i < tn_ir_n_ops(); i++) { /* the elementwise ones by their class */
        tn_ir_op op;
        assert_int_equal(tn_ir_get_op(i, &op), TN_OK);
        assert_true(!op.operands == !op.builder);
        named += op.operands != NULL;
        if (strncmp(op.kind, "elementwise", 11)) continue;
        assert_true(op.gradient && *op.gradient);
        operands o = make(ctx);
        bool bits = strstr(op.kind, "bits") || strstr(op.kind, "integer"), logic = strstr(op.kind, "logic");
        tn_tensor a = bits ? o.bits : logic ? o.mask : o.x, in[3] = { op.arity == 3 ? o.mask : a, a, a };
        tn_tensor y = tn_op(o.g, op.name, in, op.arity, NULL, 0);
        if (!y.id) fail_msg("%s: %s", op.name, tn_ctx_error(ctx));
        tn_ir_value v;
        assert_int_equal(tn_ir_get_value(o.g, (int)y.id - 1, &v), TN_OK);
        assert_string_equal(v.op, op.name);
        tn_graph_free(o.g);
        built++;
    }
    SAME(tn_cast(o.x, TN_F16), "cast", ONE(o.x), 1, A(INTS("dtype", TN_F16)));
    SAME(tn_bitcast(o.x, TN_I32), "bitcast", ONE(o.x), 1, A(INTS("dtype", TN_I32)));
    SAME(tn_sum(o.x, L(1), 1, 1), "sum", ONE(o.x), 1, A(INTS("keep", 1), INTS("axes", 1)));
    SAME(tn_prod(o.x, TN_ALL_AXES, 0), "prod", ONE(o.x), 1, NULL, 0);
    SAME(tn_reduce_max(o.x, L(-1, 0), 2, 0), "reduce_max", ONE(o.x), 1, A(INTS("axes", -1, 0)));
    SAME(tn_reduce_min(o.x, L(0), 1, 0), "reduce_min", ONE(o.x), 1, A(INTS("axes", 0), INTS("keep", 0)));
    SAME(tn_argmax(o.x, 1, 1), "argmax", ONE(o.x), 1, A(INTS("axis", 1), INTS("keep", 1)));
    SAME(tn_argmin(o.x, -2, 0), "argmin", ONE(o.x), 1, A(INTS("axis", -2)));
    SAME(tn_reshape(o.x, TN_DIMS(2, -1)), "reshape", ONE(o.x), 1, A(INTS("shape", 2, -1)));
    SAME(tn_permute(o.x, L(1, 0), 2), "permute", ONE(o.x), 1, A(INTS("perm", 1, 0)));
    SAME(tn_expand(o.x, TN_DIMS(3, 4, 5)), "expand", ONE(o.x), 1, A(INTS("shape", 3, 4, 5)));
    SAME(tn_pad(o.x, L(1, 0), L(0, 2), 2, 1.5), "pad", ONE(o.x), 1,
         A(INTS("before", 1, 0), INTS("after", 0, 2), { "value", NULL, 0, 1.5 }));
    SAME(tn_slice(o.x, L(1, 0), L(4, -1), L(2, 1), 2), "slice", ONE(o.x), 1,
         A(INTS("start", 1, 0), INTS("stop", 4, -1), INTS("step", 2, 1)));
    SAME(tn_flip(o.x, L(1), 1), "flip", ONE(o.x), 1, A(INTS("axes", 1)));
    SAME(tn_window(o.x, L(1), L(2), L(2), NULL, 1), "window", ONE(o.x), 1,
         A(INTS("axes", 1), INTS("size", 2), INTS("stride", 2)));
    SAME(tn_concat(((const tn_tensor[]){ o.x, o.y, o.x }), 3, 1), "concat", ((const tn_tensor[]){ o.x, o.y, o.x }), 3,
         A(INTS("axis", 1)));
    SAME(tn_dot(o.x, o.y, NULL, NULL, 0, L(1), L(1), 1), "dot", ((const tn_tensor[]){ o.x, o.y }), 2,
         A(INTS("contract_a", 1), INTS("contract_b", 1)));
    SAME(tn_gather(o.x, o.index, 0), "gather", ((const tn_tensor[]){ o.x, o.index }), 2, A(INTS("axis", 0)));
    SAME(tn_scatter_add(o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2), 0), "scatter_add",
         ((const tn_tensor[]){ o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2) }), 3, A(INTS("axis", 0)));
    SAME(tn_scatter_set(o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2), 0), "scatter_set",
         ((const tn_tensor[]){ o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2) }), 3, A(INTS("axis", 0)));
    static const char *const scatters[] = { "scatter_mul", "scatter_max", "scatter_min" };
    for (int i = 0; i < 3; i++)
        SAME(tn_scatter(o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2), 0, (tn_scatter_mode)(TN_SCATTER_MUL + i)),
             scatters[i], ((const tn_tensor[]){ o.y, o.index, tn_slice(o.x, L(0, 0), L(3, 5), NULL, 2) }), 3,
             A(INTS("axis", 0)));
    SAME(tn_iota(o.g, TN_I32, TN_DIMS(2, 3), 1), "iota", NULL, 0,
         A(INTS("dtype", TN_I32), INTS("shape", 2, 3), INTS("axis", 1)));
    SAME(tn_random_uniform(o.counter, (int64_t)1 << 40, TN_DIMS(6)), "random", ONE(o.counter), 1,
         A(INTS("stream", (int64_t)1 << 40), INTS("shape", 6)));
    assert_int_equal(built, named);
    tn_ctx_free(ctx);
}

#define REFUSED(code, words, ...)                                                                                              \
    do {                                                                                                                       \
        operands o = make(ctx);                                                                                                \
        assert_int_equal(tn_op(__VA_ARGS__).id, 0);                                                                            \
        assert_int_equal(tn_graph_status(o.g), code);                                                                          \
        if (!strstr(tn_ctx_error(ctx), words)) fail_msg("no \"%s\" in: %s", words, tn_ctx_error(ctx));                         \
        assert_non_null(strstr(tn_ctx_error(ctx), "test_op.c:"));                                                              \
        tn_graph_free(o.g);                                                                                                    \
    } while (0)

static void mistakes_are_named(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    assert_int_equal(tn_op(NULL, "exp", NULL, 0, NULL, 0).id, 0);
    REFUSED(TN_ERR_INVAL, "no op \"expp\"", o.g, "expp", ONE(o.x), 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "no op \"(null)\"", o.g, NULL, ONE(o.x), 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "no op \"nil\"", o.g, "nil", ONE(o.x), 1, NULL, 0);
    REFUSED(TN_ERR_UNSUPPORTED, "a builder of its own", o.g, "input", NULL, 0, NULL, 0);
    REFUSED(TN_ERR_INVAL, "takes x y, and 1 operands", o.g, "add", ONE(o.x), 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "takes x", o.g, "exp", ONE(o.x), -1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "takes x", o.g, "exp", NULL, 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "takes xs", o.g, "concat", NULL, 0, A(INTS("axis", 0)));
    REFUSED(TN_ERR_INVAL, "operand 1 is not of this graph", o.g, "exp", ONE(((tn_tensor){ NULL, 3 })), 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "attrs is NULL", o.g, "exp", ONE(o.x), 1, NULL, 2);
    REFUSED(TN_ERR_INVAL, "it has: none", o.g, "exp", ONE(o.x), 1, A(INTS("axis", 0)));
    REFUSED(TN_ERR_INVAL, "it has: axes:ints? keep:bool?", o.g, "sum", ONE(o.x), 1, A(INTS("axis", 0)));
    REFUSED(TN_ERR_INVAL, "it has:", o.g, "sum", ONE(o.x), 1, A({ NULL, NULL, 0, 0 }));
    REFUSED(TN_ERR_INVAL, "axis is missing", o.g, "argmax", ONE(o.x), 1, NULL, 0);
    REFUSED(TN_ERR_INVAL, "axis is given twice", o.g, "argmax", ONE(o.x), 1, A(INTS("axis", 0), INTS("axis", 1)));
    REFUSED(TN_ERR_INVAL, "axis is one whole number", o.g, "argmax", ONE(o.x), 1, A(INTS("axis", 0, 1)));
    REFUSED(TN_ERR_INVAL, "axis is out of range", o.g, "argmax", ONE(o.x), 1, A(INTS("axis", INT64_MAX)));
    REFUSED(TN_ERR_SHAPE, "axis 7 is out of range", o.g, "argmax", ONE(o.x), 1, A(INTS("axis", 7)));
    REFUSED(TN_ERR_INVAL, "shape is NULL", o.g, "reshape", ONE(o.x), 1, A({ "shape", NULL, 2, 0 }));
    REFUSED(TN_ERR_INVAL, "more entries than a shape", o.g, "reshape", ONE(o.x), 1, A({ "shape", L(1), 13, 0 }));
    REFUSED(TN_ERR_INVAL, "fewer than none", o.g, "reshape", ONE(o.x), 1, A({ "shape", L(1), -1, 0 }));
    REFUSED(TN_ERR_INVAL, "the lists differ", o.g, "pad", ONE(o.x), 1, A(INTS("before", 1, 1), INTS("after", 1)));
    REFUSED(TN_ERR_INVAL, "of a and b differ", o.g, "dot", ((const tn_tensor[]){ o.x, o.y }), 2,
            A(INTS("contract_a", 1), INTS("contract_b", 0, 1)));
    REFUSED(TN_ERR_INVAL, "99 is not a dtype", o.g, "cast", ONE(o.x), 1, A(INTS("dtype", 99)));
    REFUSED(TN_ERR_DTYPE, "the dtypes differ", o.g, "add", ((const tn_tensor[]){ o.x, o.bits }), 2, NULL, 0);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_by_its_name),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
