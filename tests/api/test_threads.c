/* test_threads.c - two contexts in two threads build, differentiate, print and parse graphs at the same time. The library has
 * no shared state, so each thread gets what one thread alone gets; ThreadSanitizer watches in the tsan build.
 * Labels: threads */
#include "tenon/tenon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 20, DEPTH = 12 };

/* A network with its gradients, as text. Returns false on any error, with a message in out. */
static bool make_text(tn_ctx *ctx, int width, char *out, size_t n_out) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, width)), h = x, w[DEPTH], d[DEPTH];
    for (int i = 0; i < DEPTH; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        w[i] = tn_param(g, name, TN_F32, TN_DIMS(width, width), NULL);
        h = i % 2 ? tn_relu(tn_matmul(h, w[i])) : tn_tanh(tn_matmul(h, w[i]));
    }
    h = tn_sub(h, tn_log(tn_sum(tn_exp(h), TN_INTS(1), 1)));
    tn_tensor loss = tn_mean(h, TN_ALL_AXES, 0);
    tn_output(loss, "loss");
    bool good = tn_grad(loss, w, DEPTH, d) == TN_OK;
    for (int i = 0; i < DEPTH && good; i++) tn_assign(w[i], tn_sub(w[i], tn_mul_scalar(d[i], 0.1)));
    char *text = NULL, *again = NULL;
    tn_graph *back = NULL;
    good = good && tn_graph_check(g) == TN_OK && tn_graph_print(g, &text) == TN_OK;
    good = good && (back = tn_graph_parse(ctx, text, strlen(text), "net.tn")) && tn_graph_print(back, &again) == TN_OK;
    good = good && strcmp(text, again) == 0 && strlen(text) < n_out;
    snprintf(out, n_out, "%s", good ? text : tn_ctx_error(ctx));
    /* an error in one context is no business of the others */
    tn_graph *bad = tn_graph_new(ctx, "bad");
    tn_add(tn_input(bad, "a", TN_F32, TN_DIMS(width)), tn_input(bad, "b", TN_F32, TN_DIMS(width + 1)));
    char want[32];
    snprintf(want, sizeof want, "f32[%d]", width + 1);
    good = good && tn_graph_status(bad) == TN_ERR_SHAPE && strstr(tn_ctx_error(ctx), want);
    tn_string_free(ctx, text);
    tn_string_free(ctx, again);
    tn_graph_free(bad);
    tn_graph_free(back);
    tn_graph_free(g);
    return good;
}

typedef struct worker {
    pthread_t thread;
    int width;
    int n_good;
    char alone[60000], text[60000];
} worker;
static void *work(void *arg) {
    worker *w = arg;
    for (int i = 0; i < ROUNDS; i++) {
        tn_ctx *ctx = test_ctx();
        w->n_good += ctx && make_text(ctx, w->width, w->text, sizeof w->text) && strcmp(w->text, w->alone) == 0;
        tn_ctx_free(ctx);
    }
    return NULL;
}

static void test_contexts_in_threads(void **state) {
    (void)state;
    static worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        worker *w = &workers[i];
        w->width = 3 + 2 * i;
        tn_ctx *ctx = test_ctx();
        if (!make_text(ctx, w->width, w->alone, sizeof w->alone)) fail_msg("%s", w->alone);
        tn_ctx_free(ctx);
    }
    assert_string_not_equal(workers[0].alone, workers[1].alone);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) assert_int_equal(workers[i].n_good, ROUNDS);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_contexts_in_threads) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
