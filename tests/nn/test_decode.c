/* test_decode.c - a language model that writes by itself: the whole decoding loop of a GPT of two layers with its caches of
 * keys and values is one program, a while loop that begins with a prompt of any length and ends at an end token, whose tokens
 * are those of a host that calls the network for each, without a cache. TENON_DEVICE: on that device. */
#include <math.h>
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

enum { LAYERS = 2, WIDTH = 32, HEADS = 4, HEAD = WIDTH / HEADS, VOCAB = 11, PLACES = 24, PROMPT = 8, END = 3 };
enum { PLACE, LAST, WRITTEN, CACHES, STATES = CACHES + 2 * LAYERS }; /* what iterations hand on */

static tn_ctx *ctx;
static void need(tn_status s) {
    if (s) fail_msg("%s", tn_ctx_error(ctx));
}

static tn_tensor layer(tn_tensor x, int64_t out, int l, const char *what) {
    char name[32];
    snprintf(name, sizeof name, "%d/%s", l, what);
    return out ? tn_nn_linear(x, out, name) : tn_nn_layer_norm(x, 0, name);
}
static tn_tensor heads_of(tn_tensor x, int64_t n) { /* [n,C] to [heads,n,C/heads] */
    return tn_permute(tn_reshape(x, TN_DIMS(n, HEADS, HEAD)), TN_INTS(1, 0, 2));
}

/* One token at each of n places; caches NULL: each place sees those before it, else n is 1, and `here` is true at its place. */
static tn_tensor network(tn_graph *g, tn_tensor token, tn_tensor place, int64_t n, tn_tensor *caches, tn_tensor here,
                         tn_tensor seen) {
    tn_tensor x = tn_add(tn_nn_embedding(token, VOCAB, WIDTH, "tokens"), tn_nn_embedding(place, PLACES, WIDTH, "places"));
    for (int l = 0; l < LAYERS; l++) {
        tn_tensor y = layer(x, 0, l, "norm1"), q = heads_of(layer(y, WIDTH, l, "q"), n), a;
        tn_tensor k = heads_of(layer(y, WIDTH, l, "k"), n), v = heads_of(layer(y, WIDTH, l, "v"), n);
        if (caches) {
            k = caches[2 * l] = tn_select(here, k, caches[2 * l]); /* [heads,places,C/heads] */
            v = caches[2 * l + 1] = tn_select(here, v, caches[2 * l + 1]);
            tn_tensor scores = tn_mul_scalar(tn_matmul(q, tn_transpose(k, 1, 2)), 1 / sqrt(HEAD));
            a = tn_matmul(tn_nn_softmax(tn_select(seen, scores, tn_full(g, TN_F32, TN_SCALAR, -1e9)), -1), v);
        } else {
            a = tn_nn_attention(q, k, v, 1);
        }
        x = tn_add(x, layer(tn_reshape(tn_permute(a, TN_INTS(1, 0, 2)), TN_DIMS(n, WIDTH)), WIDTH, l, "out"));
        x = tn_add(x, layer(tn_nn_gelu(layer(layer(x, 0, l, "norm2"), 4 * WIDTH, l, "up")), WIDTH, l, "down"));
    }
    return tn_nn_linear(tn_nn_layer_norm(x, 0, "norm"), VOCAB, "head");
}

typedef struct decoding {
    tn_tensor prompt, length;
} decoding;

static void goes_on(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const decoding *d = ud;
    tn_tensor inside = tn_lt(in[PLACE], tn_full(g, TN_I64, TN_SCALAR, PLACES - 1));
    tn_tensor ended = tn_and(tn_ge(in[PLACE], d->length), tn_eq(in[LAST], tn_full(g, TN_I64, TN_SCALAR, END)));
    out[0] = tn_and(inside, tn_not(ended));
}
static void body(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const decoding *d = ud;
    tn_tensor place = in[PLACE], next = tn_add_scalar(place, 1), all = tn_iota(g, TN_I64, TN_DIMS(PLACES), 0),
              caches[2 * LAYERS];
    for (int i = 0; i < 2 * LAYERS; i++) caches[i] = in[CACHES + i];
    tn_tensor scores = network(g, tn_reshape(in[LAST], TN_DIMS(1)), tn_reshape(place, TN_DIMS(1)), 1, caches,
                               tn_reshape(tn_eq(all, place), TN_DIMS(PLACES, 1)), tn_le(all, place));
    tn_tensor best = tn_reshape(tn_argmax(scores, 1, 0), TN_SCALAR);
    tn_tensor given = tn_gather(d->prompt, next, 0); /* behind its end: any, nobody looks at it */
    out[PLACE] = next;
    out[LAST] = tn_select(tn_lt(next, d->length), given, best);
    out[WRITTEN] = tn_select(tn_eq(all, next), out[LAST], in[WRITTEN]);
    for (int i = 0; i < 2 * LAYERS; i++) out[CACHES + i] = caches[i];
}

static tn_session *compiled(tn_graph *g, tn_mode mode, tn_program **p) {
    tn_session *s = NULL;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.device = test_device();
    need(tn_compile(g, &o, p));
    need(tn_session_new(*p, &s));
    return s;
}

static tn_graph *loop_graph(void) {
    tn_graph *g = tn_graph_new(ctx, "decoding");
    decoding d = { .prompt = tn_input(g, "prompt", TN_I64, TN_DIMS(PROMPT)) };
    d.length = tn_input(g, "length", TN_I64, TN_SCALAR);
    tn_tensor state[STATES], out[STATES], zero = tn_full(g, TN_I64, TN_SCALAR, 0);
    state[PLACE] = zero, state[LAST] = tn_gather(d.prompt, zero, 0);
    state[WRITTEN] = tn_pad(tn_reshape(state[LAST], TN_DIMS(1)), (int64_t[]){ 0 }, (int64_t[]){ PLACES - 1 }, 1, 0);
    for (int i = CACHES; i < STATES; i++) state[i] = tn_full(g, TN_F32, TN_DIMS(HEADS, PLACES, HEAD), 0);
    tn_while(g, state, STATES, goes_on, body, &d, 0, out);
    tn_output(out[WRITTEN], "written"), tn_output(out[PLACE], "last");
    return g;
}

static void randomise(tn_session *s, uint64_t seed) {
    rng r = rng_make(seed);
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype type;
        tn_shape shape;
        static float x[VOCAB * 4 * WIDTH * WIDTH];
        int64_t n = 1;
        need(tn_session_state(s, i, &name, &type, &shape));
        assert_int_equal(type, TN_F32);
        for (int k = 0; k < shape.rank; k++) n *= shape.dim[k];
        assert_true(n <= (int64_t)(sizeof x / sizeof *x));
        for (int64_t k = 0; k < n; k++) x[k] = (float)rng_range(&r, -0.5, 0.5);
        need(tn_session_set(s, name, x, (size_t)n * sizeof *x));
    }
}

/* By the host: the network over all places for each token. */
static int64_t write_by_host(tn_session *s, const int64_t *prompt, int64_t n, int64_t *written) {
    static float logits[PLACES][VOCAB];
    int64_t last = 0;
    for (int64_t i = 0; i < PLACES; i++) written[i] = i < n ? prompt[i] : 0;
    while (last < PLACES - 1 && !(last >= n && written[last] == END)) {
        need(tn_run(s, TN_BIND({ "token", written }, { "logits", logits })));
        int best = 0;
        for (int i = 1; i < VOCAB; i++)
            if (logits[last][i] > logits[last][best]) best = i;
        if (++last >= n) written[last] = best;
    }
    return last;
}

static void test_decode(void **state) {
    (void)state;
    static const tn_mode modes[] = { TN_MODE_GRAPH, TN_MODE_COMPILED, TN_MODE_LOOP };
    int ended = 0, full = 0;
    for (int m = test_device_is_cpu() ? 0 : 2; m < 3; m++) {
        tn_graph *g = loop_graph(), *h = tn_graph_new(ctx, "host");
        tn_tensor token = tn_input(h, "token", TN_I64, TN_DIMS(PLACES));
        tn_output(network(h, token, tn_iota(h, TN_I64, TN_DIMS(PLACES), 0), PLACES, NULL, (tn_tensor){ 0 }, (tn_tensor){ 0 }),
                  "logits");
        tn_program *p, *q;
        tn_session *one = compiled(g, modes[m], &p), *host = compiled(h, modes[m], &q);
        rng r = rng_make(7);
        for (int round = 0; round < 24; round++) {
            int64_t n = 1 + round % PROMPT, prompt[PROMPT] = { 0 }, got[PLACES], want[PLACES], last = -1;
            int copied;
            if (round % 4 == 0) {
                randomise(host, (uint64_t)round + 1);
                need(tn_session_copy_state(one, host, &copied));
                assert_int_equal(copied, tn_session_n_states(host));
            }
            for (int i = 0; i < n; i++) prompt[i] = rng_below(&r, VOCAB);
            int64_t end = write_by_host(host, prompt, n, want);
            need(tn_run(one, TN_BIND({ "prompt", prompt }, { "length", &n }, { "written", got }, { "last", &last })));
            assert_int_equal(last, end);
            for (int i = 0; i < PLACES; i++)
                if (got[i] != want[i])
                    fail_msg("prompt of %d, place %d: token %d, not %d", (int)n, i, (int)got[i], (int)want[i]);
            ended += end < PLACES - 1, full += end == PLACES - 1;
        }
        tn_session_free(one), tn_session_free(host);
        tn_program_free(p), tn_program_free(q);
        tn_graph_free(g), tn_graph_free(h);
    }
    printf("count: decodings in one program: %d to the end token, %d to the last place\n", ended, full);
    assert_true(ended > 2 && full > 2);
}

int main(void) {
    ctx = test_ctx();
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_decode) };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tn_ctx_free(ctx);
    return failed;
}
