/* test_batcher.c - requests of many threads against runs of a session of their own; weights that change meanwhile; wrong calls;
 * failing allocations. Labels: threads */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_serve.h"

enum { CLIENTS = 6, REQUESTS = 60, WIDE = 5, OUT = 3, MOST = 8 };

static tn_program *compile(tn_ctx *ctx, tn_graph *g) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    o.threads = 1;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    return p;
}

/* y = softmax(w x) * scale, and the sum of each example. */
static tn_graph *network(tn_ctx *ctx, int64_t batch) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(batch ? batch : tn_dim(g, "batch", 1, 64, 1), WIDE)),
              scale = tn_input(g, "scale", TN_F32, TN_DIMS(OUT));
    tn_tensor y = tn_mul(tn_nn_softmax(tn_nn_linear(x, OUT, "fc"), -1), scale);
    tn_output(y, "y"), tn_output(tn_sum(x, TN_INTS(1), 0), "sum");
    return g;
}

typedef struct client {
    tn_batcher *b;
    tn_session *own; /* of the same program */
    int number, bad;
    double last; /* test_publish: the scale that was seen last */
    pthread_t thread;
} client;

static void *ask(void *ud) {
    client *c = ud;
    rng r = rng_make((uint64_t)(now_seconds() * 1e6) + (uint64_t)c->number);
    for (int i = 0; i < REQUESTS; i++) {
        int64_t n = rng_between(&r, 1, MOST);
        float x[MOST * WIDE], y[MOST * OUT], sum[MOST], want[MOST * OUT], want_sum[MOST];
        for (int k = 0; k < (int)n * WIDE; k++) x[k] = (float)rng_between(&r, -1000, 1000) / 256;
        memset(y, 0xff, sizeof y), memset(sum, 0xff, sizeof sum);
        bool dropped = i % 3 == 2;
        c->bad += tn_batcher_run(c->b, (tn_binding[]){ { "x", x }, { "y", y }, { "sum", sum } }, dropped ? 2 : 3, n) != TN_OK;
        c->bad += tn_bind_dim(c->own, "batch", n) || tn_run(c->own, TN_BIND({ "x", x }, { "y", want }, { "sum", want_sum }));
        for (int k = 0; k < (int)n * OUT; k++) c->bad += !(fabsf(y[k] - want[k]) <= 1e-5f * fabsf(want[k]));
        for (int k = 0; k < (int)n; k++) c->bad += dropped ? !isnan(sum[k]) : !(fabsf(sum[k] - want_sum[k]) <= 1e-4f);
    }
    return NULL;
}

static void test_many_threads(void **st) {
    (void)st;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = network(ctx, 0);
    tn_program *p = compile(ctx, g);
    float scale[OUT] = { 1, -2, 3 };
    for (int way = 0; way < 4; way++) {
        tn_batcher *b;
        tn_batcher_stats s;
        client c[CLIENTS] = { 0 };
        tn_batcher_opts o = { .max_batch = way == 0   ? 0
                                           : way == 3 ? MOST
                                                      : 20,
                              .max_delay = way == 1   ? 2e-3
                                           : way == 3 ? 1e-4
                                                      : 0,
                              .workers = way < 2 ? 1 : 3,
                              .fixed = (tn_binding[]){ { "scale", scale } },
                              .n_fixed = 1 };
        if (tn_batcher_new(ctx, p, &o, &b)) fail_msg("%s", tn_ctx_error(ctx));
        for (int i = 0; i < CLIENTS; i++) {
            c[i] = (client){ .b = b, .number = i };
            assert_int_equal(tn_session_new(p, &c[i].own), TN_OK);
            assert_int_equal(tn_session_bind(c[i].own, tn_session_slot(c[i].own, "scale"), scale), TN_OK);
        }
        for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&c[i].thread, NULL, ask, &c[i]), 0);
        for (int i = 0; i < CLIENTS; i++) {
            pthread_join(c[i].thread, NULL);
            assert_int_equal(c[i].bad, 0);
            tn_session_free(c[i].own);
        }
        tn_batcher_get_stats(b, &s, 1);
        assert_int_equal(s.requests, CLIENTS * REQUESTS);
        assert_true(s.failed == 0 && s.examples >= s.requests && s.batches <= s.requests && s.batches >= 1);
        assert_true(s.p50 > 0 && s.p50 <= s.p90 && s.p90 <= s.p99 && s.p99 <= s.worst);
        if (way == 1) assert_true(s.batches < s.requests); /* they wait 2 ms for each other */
        tn_batcher_get_stats(b, &s, 0);
        assert_true(s.requests == 0 && s.p99 == 0 && s.worst == 0);
        tn_batcher_free(b);
    }
    tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* ---- weights ---- */

/* y = x * k for each of 64 columns; train: k changes in every run. */
static tn_graph *scaled(tn_ctx *ctx, bool train) {
    tn_graph *g = tn_graph_new(ctx, "scaled");
    tn_tensor k = tn_state(g, "k", TN_F32, TN_DIMS(64), NULL);
    if (train) {
        tn_assign(k, tn_add_scalar(k, 1));
        tn_output(k, "k");
    } else {
        tn_output(tn_mul(tn_input(g, "x", TN_F32, TN_DIMS(tn_dim(g, "batch", 1, 16, 1), 64)), k), "y");
    }
    return g;
}

/* All of a result has one k, and k never goes back. */
static void *watch(void *ud) {
    client *c = ud;
    float x[64], y[64];
    for (int k = 0; k < 64; k++) x[k] = 1;
    for (int i = 0; i < 10 * REQUESTS; i++) {
        c->bad += tn_batcher_run(c->b, TN_BIND({ "x", x }, { "y", y }), 1) != TN_OK;
        for (int k = 1; k < 64; k++) c->bad += y[k] != y[0];
        c->bad += !(y[0] >= (float)c->last);
        c->last = (double)y[0];
    }
    return NULL;
}

static void test_publish(void **st) {
    (void)st;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *train = scaled(ctx, true), *serve = scaled(ctx, false);
    tn_program *tp = compile(ctx, train), *sp = compile(ctx, serve);
    tn_session *t;
    tn_batcher *b;
    client c[3] = { 0 };
    float x[64] = { 1, 1 }, y[64];
    assert_int_equal(tn_session_new(tp, &t), TN_OK);
    if (tn_batcher_new(ctx, sp, &(tn_batcher_opts){ .workers = 2, .max_batch = 8 }, &b)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 3; i++) {
        c[i].b = b;
        assert_int_equal(pthread_create(&c[i].thread, NULL, watch, &c[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        assert_int_equal(tn_session_run(t), TN_OK);
        assert_int_equal(tn_batcher_publish(b, t), TN_OK);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].bad, 0);
    }
    for (int i = 0; i < 4; i++) { /* whichever worker it is */
        assert_int_equal(tn_batcher_run(b, TN_BIND({ "x", x }, { "y", y }), 1), TN_OK);
        assert_true(y[0] == 50 && y[1] == 50 && y[2] == 0);
    }
    tn_batcher_free(b);
    tn_session_free(t);
    tn_program_free(tp), tn_program_free(sp), tn_graph_free(train), tn_graph_free(serve), tn_ctx_free(ctx);
}

/* Sessions that share states: no copy, and a setter has its own. */
static void test_sharing(void **st) {
    (void)st;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = scaled(ctx, false);
    tn_program *p = compile(ctx, g);
    tn_session *s[4];
    float k[64], x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = 1;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tn_session_new(p, &s[i]), TN_OK);
        assert_int_equal(tn_bind_dim(s[i], "batch", 1), TN_OK);
    }
    for (int i = 0; i < 64; i++) k[i] = 7;
    assert_int_equal(tn_session_set(s[0], "k", k, sizeof k), TN_OK);
    assert_int_equal(tn_session_share_states(s[1], s[0]), TN_OK);
    assert_int_equal(tn_session_share_states(s[2], s[1]), TN_OK);
    for (int i = 0; i < 64; i++) k[i] = 9;
    assert_int_equal(tn_session_set(s[1], "k", k, sizeof k), TN_OK);
    const float want[] = { 7, 9, 7, 0 };
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tn_run(s[i], TN_BIND({ "x", x }, { "y", y })), TN_OK);
        assert_true(y[0] == want[i] && y[63] == want[i]);
    }
    tn_session_free(s[0]); /* session 2 has its states */
    assert_int_equal(tn_run(s[2], TN_BIND({ "x", x }, { "y", y })), TN_OK);
    assert_true(y[0] == 7);
    assert_int_equal(tn_session_share_states(s[2], s[3]), TN_OK); /* back to the program's */
    assert_int_equal(tn_run(s[2], TN_BIND({ "x", x }, { "y", y })), TN_OK);
    assert_true(y[0] == 0);
    tn_program *other = compile(ctx, g);
    tn_session *o;
    assert_int_equal(tn_session_new(other, &o), TN_OK);
    assert_int_equal(tn_session_share_states(o, s[1]), TN_ERR_INVAL);
    assert_non_null(strstr(tn_session_error(o), "two programs"));
    tn_session_free(o), tn_program_free(other);
    for (int i = 1; i < 4; i++) tn_session_free(s[i]);
    tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* ---- wrong calls ---- */

static void refused(tn_ctx *ctx, tn_graph *g, tn_batcher_opts o, tn_status code, const char *text) {
    tn_program *p = compile(ctx, g);
    tn_batcher *b;
    assert_int_equal(tn_batcher_new(ctx, p, &o, &b), code);
    if (!strstr(tn_ctx_error(ctx), text)) fail_msg("\"%s\" has no \"%s\"", tn_ctx_error(ctx), text);
    tn_program_free(p), tn_graph_free(g);
}

static void test_wrong_calls(void **st) {
    (void)st;
    tn_ctx *ctx = tn_ctx_new(NULL);
    float scale[OUT] = { 1, 1, 1 }, x[WIDE * 2] = { 0 }, y[OUT * 2];
    tn_binding fixed[] = { { "scale", scale }, { "x", x } };
    refused(ctx, network(ctx, 4), (tn_batcher_opts){ 0 }, TN_ERR_INVAL, "0 dims");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ 0 }, TN_ERR_INVAL, "\"scale\" has no examples");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ .fixed = fixed, .n_fixed = 2 }, TN_ERR_INVAL, "\"x\" is no input without");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ .max_batch = 65 }, TN_ERR_INVAL, "max_batch is 65");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ .max_batch = -1 }, TN_ERR_INVAL, "max_batch is -1");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ .max_delay = NAN }, TN_ERR_INVAL, "max_delay");
    refused(ctx, network(ctx, 0), (tn_batcher_opts){ .workers = -1 }, TN_ERR_INVAL, "workers");
    tn_graph *g = tn_graph_new(ctx, "g");
    int64_t n = tn_dim(g, "n", 4, 8, 4);
    tn_output(tn_relu(tn_input(g, "x", TN_F32, TN_DIMS(n, 2))), "y");
    refused(ctx, g, (tn_batcher_opts){ 0 }, TN_ERR_INVAL, "expected any number from 1 on");
    g = tn_graph_new(ctx, "g");
    n = tn_dim(g, "n", 1, 8, 1);
    tn_output(tn_relu(tn_input(g, "x", TN_F32, TN_DIMS(2, n))), "y");
    refused(ctx, g, (tn_batcher_opts){ 0 }, TN_ERR_SHAPE, "otherwise than by axis 0");

    g = network(ctx, 0);
    tn_program *p = compile(ctx, g);
    tn_batcher *b;
    char text[512];
    assert_int_equal(tn_batcher_new(ctx, p, &(tn_batcher_opts){ .max_batch = 2, .fixed = fixed, .n_fixed = 1 }, &b), TN_OK);
    static const struct {
        const char *name;
        int64_t n;
        const char *text;
    } cases[] = { { "x", 0, "0 examples" },           { "x", 3, "3 examples" },
                  { "z", 1, "\"z\" is no input" },    { "scale", 1, "\"scale\" is no input" },
                  { "y", 1, "\"y\" is bound twice" }, { NULL, 1, "(null)" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(tn_batcher_run(b, TN_BIND({ "y", y }, { cases[i].name, x }), cases[i].n), TN_ERR_INVAL);
        tn_batcher_error(b, text, sizeof text);
        if (!strstr(text, cases[i].text)) fail_msg("\"%s\" has no \"%s\"", text, cases[i].text);
    }
    assert_int_equal(tn_batcher_run(b, TN_BIND({ "y", y }), 1), TN_ERR_INVAL);
    tn_batcher_error(b, text, sizeof text);
    assert_non_null(strstr(text, "input \"x\" is not bound"));
    assert_int_equal(tn_batcher_publish(b, NULL), TN_ERR_INVAL);
    tn_graph *none = tn_graph_new(ctx, "none");
    tn_output(tn_relu(tn_input(none, "x", TN_F32, TN_DIMS(2))), "y");
    tn_program *np = compile(ctx, none);
    tn_session *ns;
    assert_int_equal(tn_session_new(np, &ns), TN_OK);
    assert_int_equal(tn_batcher_publish(b, ns), TN_ERR_INVAL);
    assert_int_equal(tn_batcher_run(b, TN_BIND({ "x", x }, { "y", y }), 2), TN_OK); /* it still works */
    tn_batcher_free(b), tn_batcher_free(NULL);
    tn_session_free(ns), tn_program_free(np), tn_graph_free(none);
    tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

/* ---- memory ---- */

typedef struct limit {
    int64_t left, held; /* allocations until one fails; bytes */
    pthread_mutex_t lock;
} limit;
static void *limited(void *ud, void *ptr, size_t old_size, size_t new_size) {
    limit *l = ud;
    void *p = NULL;
    pthread_mutex_lock(&l->lock);
    if (new_size == 0)
        free(ptr);
    else if (new_size <= old_size || --l->left != 0)
        p = realloc(ptr, new_size);
    if (p || new_size == 0) l->held += (int64_t)new_size - (int64_t)old_size;
    pthread_mutex_unlock(&l->lock);
    return p;
}

static void test_failing_allocations(void **st) {
    (void)st;
    limit l = { .left = -1, .lock = PTHREAD_MUTEX_INITIALIZER };
    tn_config cfg = { .struct_size = sizeof cfg, .realloc = limited, .realloc_ud = &l };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = scaled(ctx, false), *t = scaled(ctx, true);
    tn_program *p = compile(ctx, g), *tp = compile(ctx, t);
    tn_session *from;
    assert_int_equal(tn_session_new(tp, &from), TN_OK);
    int64_t failed = 0, before = l.held;
    for (int64_t k = 1;; k++) {
        tn_batcher *b;
        float x[64] = { 1 }, y[64];
        l.left = k;
        tn_status made = tn_batcher_new(ctx, p, &(tn_batcher_opts){ .workers = 2 }, &b), given = TN_OK;
        if (!made) {
            given = tn_batcher_publish(b, from);
            l.left = -1;
            assert_int_equal(tn_batcher_run(b, TN_BIND({ "x", x }, { "y", y }), 1), TN_OK);
            tn_batcher_free(b);
        }
        bool reached = l.left <= 0 || made || given;
        l.left = -1;
        assert_int_equal(l.held, before);
        if (!made && !given) break;
        assert_true(reached && (made == TN_ERR_NOMEM || given == TN_ERR_NOMEM));
        failed++;
    }
    printf("count: %d failing allocations of a batcher\n", (int)failed);
    assert_true(failed > 10);
    tn_session_free(from);
    tn_program_free(p), tn_program_free(tp), tn_graph_free(g), tn_graph_free(t), tn_ctx_free(ctx);
    assert_int_equal(l.held, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_many_threads), cmocka_unit_test(test_publish),
                                        cmocka_unit_test(test_sharing), cmocka_unit_test(test_wrong_calls),
                                        cmocka_unit_test(test_failing_allocations) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
