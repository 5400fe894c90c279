/* test_few_bits.c - weights of 4 and 8 bits whose scales and least values are f16, or whole numbers times an f16 of a block, as
 * GGUF has them: the logits of the same weights with f32 scales, bit by bit where the sums are the same; in panels, of which
 * there is one copy, also for a table of tokens; for many tokens with one copy of the weights; out of a saved program. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon.h"
#include "tenon/tenon_io.h"
#include "tenon/tenon_nn.h"

enum { VOCAB = 320, TOKENS = 40, GROUP = 32, BLOCK = 256 };
static const tn_nn_lm_opts llama = { .kind = TN_NN_LLAMA,
                                     .vocab = VOCAB,
                                     .positions = 64,
                                     .width = 512,
                                     .layers = 1,
                                     .heads = 4,
                                     .hidden = 1024,
                                     .tied = 1,
                                     .given = 1 };
static const tn_nn_lm_opts gpt2 = { .vocab = VOCAB, .positions = 64, .width = 512, .layers = 1, .heads = 4, .given = 1 };
static tn_ctx *ctx;
static int32_t tokens[TOKENS];

static void need(tn_status s) {
    if (s) fail_msg("%s: %s", tn_status_name(s), tn_ctx_error(ctx));
}

static tn_nn_lm_matrix form_of(void *ud, const char *name) {
    (void)name;
    return *(const tn_nn_lm_matrix *)ud;
}

static tn_program *compiled(tn_nn_lm_opts o, const tn_nn_lm_matrix *f, int n, int threads) {
    tn_graph *g = tn_graph_new(ctx, "lm");
    tn_program *p;
    tn_compile_opts c = TN_COMPILE_DEFAULTS;
    c.threads = threads, c.check = 1, c.no_panels = n > 1;
    o.matrix = form_of, o.matrix_ud = (void *)(uintptr_t)f;
    tn_output(tn_nn_lm_cached(tn_input(g, "tokens", TN_I32, TN_DIMS(1, n)), tn_input(g, "start", TN_I64, TN_SCALAR), o),
              "logits");
    need(tn_compile(g, &c, &p));
    tn_graph_free(g);
    return p;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* The value of a state, of which there is one name whatever the form: drawn by the name alone. */
static void fill(const char *name, tn_dtype t, size_t n, void *out) {
    rng r = rng_make(1);
    uint64_t seed = 14695981039346656037u;
    for (const char *c = name; *c; c++) seed = (seed ^ (uint64_t)*c) * 1099511628211u;
    r = rng_make(seed);
    bool least = ends_with(name, "_least") || ends_with(name, "_least_of"), block = ends_with(name, "_of");
    for (size_t i = 0; i < n; i++) {
        if (t == TN_F32)
            ((float *)out)[i] = (float)rng_range(&r, -0.5, 0.5);
        else if (t == TN_F16 && least) /* to 1/8, or of a block to 1/128, of either sign */
            ((uint16_t *)out)[i] = (uint16_t)(rng_below(&r, 2) << 15 | rng_between(&r, 0x2000, block ? 0x2000 : 0x3000));
        else if (t == TN_F16)
            ((uint16_t *)out)[i] = (uint16_t)rng_between(&r, block ? 0x0c00 : 0x1c00, block ? 0x1000 : 0x2400);
        else if (ends_with(name, "_scale") || least)
            ((int8_t *)out)[i] = (int8_t)rng_between(&r, least ? 0 : 1, 63);
        else
            ((uint8_t *)out)[i] = (uint8_t)rng_between(&r, 0, 255);
    }
}

/* What the narrow states of that name make, n numbers: `each` of a row or, along columns, of so many have a number of the
 * block. */
static void widen(const tn_nn_lm_matrix *f, const char *name, tn_shape s, bool across, float *out) {
    size_t n = (size_t)(s.dim[0] * s.dim[1]), each = f->block ? (size_t)(f->block / f->group) : 1, columns = (size_t)s.dim[1];
    uint16_t *half = malloc(n * sizeof *half);
    int8_t *whole = malloc(n);
    char of[128];
    snprintf(of, sizeof of, "%s%s", name, f->block ? "_of" : "");
    fill(of, TN_F16, n / each, half);
    if (f->block) fill(name, TN_I8, n, whole);
    for (size_t i = 0; i < n; i++) {
        size_t at = across ? i / each : i / columns / each * columns + i % columns;
        need(tn_io_to_f32(ctx, TN_F16, &half[at], 1, &out[i]));
        if (f->block) out[i] *= (float)whole[i];
    }
    free(half), free(whole);
}

/* f: the form of the states; of: the form whose values they have. */
static void set_states(tn_session *s, const tn_nn_lm_matrix *f, const tn_nn_lm_matrix *of, bool is_llama) {
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype t;
        tn_shape shape;
        need(tn_session_state(s, i, &name, &t, &shape));
        size_t n = 1;
        for (int d = 0; d < shape.rank; d++) n *= (size_t)shape.dim[d];
        void *x = calloc(n, tn_dtype_size(t));
        bool scales = ends_with(name, "_scale") || ends_with(name, "_least");
        if (t == TN_F32 && scales && f != of)
            widen(of, name, shape, is_llama || !strncmp(name, "wte", 3), x);
        else if (strncmp(name, "cache.", 6) != 0)
            fill(name, t, n, x);
        need(tn_session_set(s, name, x, n * tn_dtype_size(t)));
        free(x);
    }
}

static void run(tn_session *s, int first, int n, float *logits) {
    int64_t start = first;
    need(tn_run(s, TN_BIND({ "tokens", &tokens[first] }, { "start", &start }, { "logits", logits })));
}

static void is_near(const float *x, const float *want, const char *what) {
    for (int i = 0; i < VOCAB; i++)
        if (!(fabsf(x[i] - want[i]) <= 2e-4f * (1 + fabsf(want[i]))))
            fail_msg("%s: logit %d is %g, not %g", what, i, (double)x[i], (double)want[i]);
}

static tn_session *opened(tn_program *p) {
    tn_session *s;
    need(tn_session_new(p, &s));
    return s;
}

static void check_form(const tn_nn_lm_opts *o, tn_nn_lm_matrix f, int threads) {
    enum { STEPS = 3 };
    static float want[STEPS][VOCAB], got[STEPS][VOCAB], many[TOKENS][VOCAB];
    tn_nn_lm_matrix wide = f;
    bool is_llama = o->kind == TN_NN_LLAMA;
    wide.scale = TN_F32, wide.block = 0;
    tn_program *p = compiled(*o, &wide, 1, threads), *q = compiled(*o, &f, 1, threads),
               *chunk = compiled(*o, &f, TOKENS, threads), *loaded;
    tn_session *s = opened(p), *narrow = opened(q);
    set_states(s, &wide, &f, is_llama), set_states(narrow, &f, &f, is_llama);
    for (int i = 0; i < STEPS; i++) run(s, i, 1, want[i]), run(narrow, i, 1, got[i]);
    for (int i = 0; i < STEPS && !f.has_least; i++) assert_memory_equal(got[i], want[i], sizeof got[i]);
    for (int i = 0; i < STEPS; i++) is_near(got[i], want[i], "f32 scales");
    char *text, path[] = "few_bits.XXXXXX";
    need(tn_program_text(q, "plan", &text)); /* f16 least values are read by rows, those of a table and of its product alike */
    if (strstr(text, " copy ")) fail_msg("more than one copy of weights:\n%s", text);
    tn_string_free(ctx, text);
    tn_session *shared;
    if (!tn_session_new_sharing(chunk, narrow, &shared)) {
        run(shared, 0, TOKENS, &many[0][0]);
        for (int i = 0; i < STEPS; i++) is_near(many[i], got[i], "many tokens at once");
        tn_session_free(shared);
    } else if (is_llama) /* some of a GPT-2 lies in panels for one token alone, as floats do */
        fail_msg("%s", tn_ctx_error(ctx));
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    tn_status saved = tn_program_save(q, path);
    if (saved != TN_ERR_UNSUPPORTED) { /* kernels of C */
        need(saved);
        need(tn_program_load(ctx, path, &loaded));
        tn_session *again = opened(loaded);
        set_states(again, &f, &f, is_llama);
        memset(want, 0, sizeof want);
        for (int i = 0; i < STEPS; i++) run(again, i, 1, want[i]);
        assert_memory_equal(want, got, sizeof got);
        for (int i = 0; i < tn_session_n_states(again); i++) { /* out of the panels, as they were set */
            const char *name;
            tn_dtype t;
            tn_shape shape;
            need(tn_session_state(again, i, &name, &t, &shape));
            size_t n = tn_dtype_size(t);
            for (int d = 0; d < shape.rank; d++) n *= (size_t)shape.dim[d];
            char *x = malloc(n), *y = malloc(n);
            need(tn_session_get(again, name, x, n)), need(tn_session_get(narrow, name, y, n));
            assert_memory_equal(x, y, n);
            free(x), free(y);
        }
        tn_session_free(again), tn_program_free(loaded);
    }
    close(fd), remove(path);
    tn_session_free(s), tn_session_free(narrow);
    tn_program_free(p), tn_program_free(q), tn_program_free(chunk);
}

static void check_model(const tn_nn_lm_opts *o) {
    for (int bits = 4; bits <= 8; bits += 4)
        for (int least = 0; least <= 1; least++) {
            tn_nn_lm_matrix f = { .group = GROUP, .bits = bits, .has_least = least, .scale = TN_F16 };
            check_form(o, f, 1 + least);
            f.scale = TN_I8, f.block = BLOCK;
            check_form(o, f, 2 - least);
        }
    check_form(o, (tn_nn_lm_matrix){ .group = GROUP / 2, .bits = 8, .scale = TN_I8, .block = BLOCK }, 1);
}

static void test_llama(void **state) {
    (void)state;
    check_model(&llama);
}
static void test_gpt2(void **state) {
    (void)state;
    check_model(&gpt2);
}

/* A GPU multiplies one token by weights as they lie: none are written as f32 first. */
static void test_gpu(void **state) {
    (void)state;
    static const char *const written[] = { "out f32[163840]", "out f32[262144]", "out f32[524288]" };
    for (int bits = 4; bits <= 8; bits += 4)
        for (int block = 0; block <= BLOCK; block += BLOCK) {
            const tn_nn_lm_matrix f = {
                .group = GROUP, .bits = bits, .has_least = 1, .scale = block ? TN_I8 : TN_F16, .block = block
            };
            tn_graph *g = tn_graph_new(ctx, "lm");
            tn_nn_lm_opts o = llama;
            tn_program *p;
            tn_compile_opts c = TN_COMPILE_DEFAULTS;
            char *text;
            c.device = "null-cuda";
            o.matrix = form_of, o.matrix_ud = (void *)(uintptr_t)&f;
            tn_output(tn_nn_lm_cached(tn_input(g, "tokens", TN_I32, TN_DIMS(1, 1)), tn_input(g, "start", TN_I64, TN_SCALAR), o),
                      "logits");
            need(tn_compile(g, &c, &p));
            need(tn_program_text(p, "kernels", &text));
            for (int i = 0; i < 3; i++)
                if (strstr(text, written[i])) fail_msg("%d bits, blocks of %d: %s\n%s", bits, block, written[i], text);
            tn_string_free(ctx, text);
            tn_program_free(p), tn_graph_free(g);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_llama), cmocka_unit_test(test_gpt2), cmocka_unit_test(test_gpu) };
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    ctx = tn_ctx_new(&cfg);
    if (!ctx) return 1;
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 37 % VOCAB;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tn_ctx_free(ctx);
    return failed;
}
