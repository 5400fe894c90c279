/* test_oom.c - fails the k-th allocation, for every k, while a graph of every kind of builder is built, differentiated,
 * printed, parsed and checked: nothing crashes, nothing leaks, the status is TN_ERR_NOMEM, and the next try succeeds. */
#include "drive/objects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

/* Counts live bytes, checks that sizes given back are those asked for, and refuses. */
typedef struct counter {
    size_t live, calls;
    size_t refuse_at; /* this call fails; 0 = none */
    bool for_ever;    /* and all after it */
    bool wrong;
} counter;
static void *count_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    counter *c = ud;
    size_t *block = ptr ? (size_t *)ptr - 2 : NULL;
    if (block && *block != old_size) c->wrong = true;
    if (new_size == 0) {
        c->live -= block ? *block : 0;
        free(block);
        return NULL;
    }
    c->calls++;
    if (c->refuse_at && (c->calls == c->refuse_at || (c->for_ever && c->calls > c->refuse_at))) return NULL;
    size_t before = block ? *block : 0;
    block = realloc(block, new_size + 2 * sizeof *block);
    *block = new_size;
    c->live += new_size - before;
    return block + 2;
}

#define A(...) ((const int64_t[]){ __VA_ARGS__ })
/* About fifty builder calls. Sizes are odd and large enough to make arenas grow at many places. */
static tn_tensor build(tn_graph *g) {
    static float data[35 * 77];
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(35, 77)), i = tn_input(g, "i", TN_I32, TN_DIMS(35));
    tn_tensor w = tn_param(g, "w", TN_F32, TN_DIMS(77, 9), NULL), n = tn_state(g, "n", TN_I64, TN_SCALAR, NULL);
    tn_tensor k = tn_const(g, TN_F32, TN_DIMS(35, 77), data), b = tn_full(g, TN_F32, TN_DIMS(9), 0.5);
    tn_tensor h = tn_relu(tn_add(tn_matmul(tn_add(x, k), w), b));
    h = tn_label(tn_sigmoid(tn_mul_scalar(tn_add_scalar(h, 1), 2)), "h");
    tn_tensor noise = tn_random_normal(n, 3, TN_DIMS(35, 9)), keep = tn_random_bernoulli(n, 4, TN_DIMS(35, 9), 0.5);
    h = tn_select(keep, tn_add(h, noise), tn_mul(h, tn_random_uniform(n, 1, TN_DIMS(35, 1))));
    h = tn_sub(h, tn_mean(h, TN_INTS(-1), 1));
    h = tn_div(h, tn_sqrt(tn_add_scalar(tn_sum(tn_mul(h, h), TN_INTS(1), 1), 1)));
    h = tn_max(h, tn_neg(tn_exp(tn_min(h, tn_full(g, TN_F32, TN_SCALAR, 3)))));
    tn_tensor p = tn_pad(tn_transpose(h, 0, 1), A(1, 0), A(0, 2), 2, 1);
    p = tn_slice(tn_flip(p, TN_INTS(0)), A(0, 0), A(9, 35), A(2, 1), 2);
    tn_tensor win = tn_window(p, A(1), A(5), A(3), A(2), 1), red = tn_reduce_max(win, TN_INTS(-1), 0);
    tn_tensor q = tn_concat((tn_tensor[]){ red, tn_reduce_min(win, TN_INTS(2), 0) }, 2, 1);
    q = tn_reshape(tn_expand(tn_reshape(q, TN_DIMS(1, -1)), TN_DIMS(3, tn_tensor_shape(q).dim[0] * tn_tensor_shape(q).dim[1])),
                   TN_DIMS(-1));
    tn_tensor rows = tn_gather(h, i, 0), sum = tn_scatter_add(h, i, rows, 0), many[12];
    tn_graph_push(g, "scope%d", 7);
    rows = tn_label(tn_add(tn_tril(rows, 2), tn_mul(tn_lgamma(tn_clamp(rows, 1, 2)), tn_erfinv(tn_fmod(rows, b)))), "rows");
    tn_graph_pop(g);
    rows = tn_squeeze(tn_slice_axis(tn_unsqueeze(rows, TN_INTS(1)), 0, 0, TN_END, 1), TN_INTS(1));
    tn_tensor dot = tn_dot(sum, rows, A(0), A(0), 1, A(1), A(1), 1);
    for (int j = 0; j < 12; j++)
        many[j] = tn_sum(tn_cast(tn_lt(dot, tn_iota(g, TN_F32, TN_DIMS(35), 0)), TN_F32), TN_ALL_AXES, 1);
    tn_tensor loss = tn_add(tn_add(tn_sum(q, TN_ALL_AXES, 0), tn_mean(dot, TN_ALL_AXES, 0)),
                            tn_prod(tn_concat(many, 12, 0), TN_ALL_AXES, 0));
    tn_output(tn_argmax(h, 1, 0), "class");
    tn_output(loss, "loss");
    tn_assign(n, tn_add_scalar(n, 1));
    return loss;
}

/* The whole story once. Returns the first status that is not TN_OK; everything is freed either way. */
static tn_status story(counter *c) {
    tn_config cfg = {
        .struct_size = sizeof cfg, .realloc = count_realloc, .realloc_ud = c, .cache_dir = "/nowhere", .cache_subdir = "x"
    };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    if (!ctx) return TN_ERR_NOMEM;
    char *text = NULL, *again = NULL;
    tn_graph *back = NULL, *g = tn_graph_new(ctx, "story");
    tn_status code = g ? TN_OK : tn_ctx_status(ctx);
    if (code) goto done;
    tn_tensor loss = build(g), xs[2] = { tn_graph_param(g, 0), tn_label(loss, "loss") }, d[2];
    code = tn_grad(loss, xs, 2, d);
    assert_int_equal(code, tn_graph_status(g));
    if (code) {
        assert_int_equal(loss.graph == g && d[0].graph == g && !d[0].id && !d[1].id, 1);
        assert_int_equal(tn_exp(loss).id, 0);
        goto done;
    }
    tn_output(d[0], "dw");
    if ((code = tn_graph_status(g))) goto done;
    if ((code = tn_graph_check(g))) goto done;
    if ((code = tn_graph_print(g, &text))) goto done;
    if (!(back = tn_graph_parse(ctx, text, strlen(text), "story.tn"))) {
        code = tn_ctx_status(ctx);
        goto done;
    }
    if ((code = tn_graph_print(back, &again))) goto done;
    assert_string_equal(text, again);
done:
    if (code) {
        assert_int_equal(tn_ctx_status(ctx), code);
        if (!strstr(tn_ctx_error(ctx), "out of memory")) fail_msg("%s", tn_ctx_error(ctx));
    }
    tn_string_free(ctx, text);
    tn_string_free(ctx, again);
    tn_graph_free(back);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return code;
}

static void fail_each(bool for_ever) {
    counter whole = { 0 };
    assert_int_equal(story(&whole), TN_OK);
    assert_int_equal(whole.live, 0);
    assert_false(whole.wrong);
    for (size_t k = 1; k <= whole.calls; k++) {
        counter c = { .refuse_at = k, .for_ever = for_ever };
        tn_status code = story(&c);
        if (code != TN_ERR_NOMEM) fail_msg("allocation %zu of %zu refused: %s", k, whole.calls, tn_status_name(code));
        if (c.live || c.wrong)
            fail_msg("allocation %zu refused: %zu bytes leak%s", k, c.live, c.wrong ? ", a wrong size came back" : "");
    }
    counter after = { 0 };
    assert_int_equal(story(&after), TN_OK);
    assert_int_equal(after.calls, whole.calls);
    print_message("%zu allocations failed\n", whole.calls);
}
static void test_fail_once(void **state) {
    (void)state;
    fail_each(false);
}
static void test_fail_for_ever(void **state) {
    (void)state;
    fail_each(true);
}

/* Arena blocks hide most allocations inside builders: here every block is the smallest there is, so that each builder meets its
 * own. */
static void test_each_builder(void **state) {
    (void)state;
    counter c = { 0 };
    tn_config cfg = { .struct_size = sizeof cfg, .realloc = count_realloc, .realloc_ud = &c };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    int failed = 0;
    for (int skip = 0;; skip++) { /* use up the arena's block to within `skip` steps of 16 bytes, then refuse */
        tn_graph *g = tn_graph_new(ctx, "g");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3, 5));
        for (int i = 0; i < skip; i++) g->arena.gd = &g->gd, arena_alloc(&g->arena, 16);
        c.refuse_at = c.calls + 1;
        tn_tensor y = tn_sigmoid(tn_mean(tn_matmul(x, tn_transpose(x, 0, 1)), TN_INTS(1), 1));
        for (int i = 0; i < 3; i++) y = tn_add_scalar(tn_div(tn_exp(tn_neg(y)), y), 0.5);
        bool refused = c.calls >= c.refuse_at;
        c.refuse_at = 0;
        if (refused) {
            failed++;
            assert_int_equal(y.id, 0);
            assert_int_equal(tn_graph_status(g), TN_ERR_NOMEM);
            assert_non_null(strstr(tn_ctx_error(ctx), "test_oom.c:"));
        } else {
            assert_int_equal(tn_graph_status(g), TN_OK);
        }
        tn_graph_free(g);
        if (skip > 700) break;
    }
    assert_true(failed > 100);
    tn_ctx_free(ctx);
    assert_int_equal(c.live, 0);
    assert_false(c.wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_fail_once), cmocka_unit_test(test_fail_for_ever),
                                        cmocka_unit_test(test_each_builder) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
