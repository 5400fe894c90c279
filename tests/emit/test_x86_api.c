/* test_x86_api.c - machine code as users meet it: the choice of tn_config.cpu, the listing, what falls back to C, many steps in
 * one call and threads, and how long compiling takes (printed, not judged). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <sys/mman.h>

#include "base/base.h"
#include "support/support.h"

static char last_log[1024];
static void keep_log(void *ud, tn_log_level level, const char *text) {
    (void)ud, (void)level;
    snprintf(last_log, sizeof last_log, "%s", text);
}

static tn_ctx *context(const char *cpu, const char *compiler) {
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = cpu, .compiler = compiler, .log = keep_log };
    last_log[0] = 0;
    return tn_ctx_new(&cfg);
}

static bool has_machine_code(void) {
    tn_device_info info;
    tn_ctx *ctx = context(NULL, NULL);
    bool ok = tn_device_get_info(ctx, 0, &info) == TN_OK &&
              (!strcmp(info.isa, "sse2") || !strcmp(info.isa, "avx2") || !strncmp(info.isa, "avx512", 6));
    tn_ctx_free(ctx);
    return ok;
}

static tn_graph *parse(tn_ctx *ctx, const char *text) {
    tn_graph *g = tn_graph_parse(ctx, text, strlen(text), "text");
    if (!g) fail_msg("%s", tn_ctx_error(ctx));
    return g;
}

static const char sum_text[] = "graph @sum(x f32[37,5], y f32[37,5]) {\n  %1 = add x, y f32[37,5]\n  %2 = exp %1 f32[37,5]\n"
                               "  return %2 as \"z\"\n}\n";

static void test_choice(void **state) {
    (void)state;
    static const char *const good[] = { NULL, "", "x86", "c" };
    static const char *const bad[] = { "vax", "AVX2", "sse", "x86 ", "c-", "c-vax", "cc" };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        tn_ctx *ctx = context(good[i], NULL);
        tn_graph *g = parse(ctx, sum_text);
        tn_program *p = NULL;
        if (tn_compile(g, NULL, &p)) fail_msg("%s: %s", good[i] ? good[i] : "NULL", tn_ctx_error(ctx));
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        tn_ctx *ctx = context(bad[i], NULL);
        tn_graph *g = parse(ctx, sum_text);
        tn_program *p = NULL;
        assert_int_equal(tn_compile(g, NULL, &p), TN_ERR_INVAL);
        assert_null(p);
        assert_non_null(strstr(tn_ctx_error(ctx), bad[i]));
        assert_non_null(strstr(tn_ctx_error(ctx), "there are: x86, "));
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

/* Both texts can be had of a program, whichever way it went; no compiler is needed on the way of machine code. */
static void test_texts(void **state) {
    (void)state;
    static const char *const cpus[] = { "c", "x86", "sse2" };
    for (int c = 0; c < (has_machine_code() ? 3 : 1); c++) {
        tn_ctx *ctx = context(cpus[c], c ? "/nowhere/cc" : NULL);
        tn_graph *g = parse(ctx, sum_text);
        tn_program *p = NULL;
        char *text = NULL;
        if (tn_compile(g, NULL, &p)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_program_text(p, "x86", &text), TN_OK);
        assert_non_null(strstr(text, "\ntn_main:\n"));
        assert_non_null(strstr(text, "addps "));
        if (c == 2) assert_null(strstr(text, "  vaddps "));
        tn_string_free(ctx, text);
        assert_int_equal(tn_program_text(p, "c", &text), TN_OK);
        assert_non_null(strstr(text, "void tn_main("));
        tn_string_free(ctx, text);
        tn_program_free(p);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

/* exp of the vectors of an unrolled loop goes in step: each of its instructions stands beside the same one for the next vector.
 */
static void test_woven(void **state) {
    (void)state;
    if (!has_machine_code()) skip();
    tn_ctx *ctx = context("x86", NULL);
    tn_graph *g = parse(ctx, "graph @e(x f32[4096]) {\n  %1 = exp x f32[4096]\n  return %1 as \"y\"\n}\n");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p = NULL;
    char *text = NULL;
    o.threads = 1;
    if (tn_compile(g, &o, &p)) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_program_text(p, "x86", &text), TN_OK);
    const char *first = strstr(text, "minps "), *next = first ? strstr(first + 1, "minps ") : NULL;
    assert_non_null(next);
    int lines = 0;
    for (const char *at = first; at < next; at++) lines += *at == '\n';
    assert_in_range(lines, 1, 3); /* with a constant fetched in between; else all of exp is */
    tn_string_free(ctx, text);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* An element more than 2 GiB into a buffer has no machine form: the program takes the way through C, and the log says so. */
static void test_fallback(void **state) {
    (void)state;
    static const char far[] =
        "graph @far(x f32[600000000]) {\n  %1 = slice x start=[590000000] step=[1] f32[7]\n  %2 = exp %1 f32[7]\n"
        "  return %2 as \"y\"\n}\n";
    if (!has_machine_code()) skip();
    tn_ctx *ctx = context("x86", "/nowhere/cc");
    tn_graph *g = parse(ctx, far);
    tn_program *p = NULL;
    assert_int_equal(tn_compile(g, NULL, &p), TN_ERR_BUILD);
    assert_non_null(strstr(last_log, "no machine code"));
    assert_non_null(strstr(last_log, "kernel "));
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* A running sum over a ring of inputs, split over threads, against the sum computed here. */
static void test_steps(void **state) {
    (void)state;
    enum { N = 30011, RING = 3, STEPS = 8 };
    if (!has_machine_code()) skip();
    tn_ctx *ctx = context("x86", "/nowhere/cc");
    tn_graph *g = tn_graph_new(ctx, "steps");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(N)), s = tn_state(g, "s", TN_F32, TN_DIMS(N), NULL);
    tn_tensor next = tn_add(s, tn_mul(x, x));
    tn_assign(s, next);
    tn_output(tn_sum(next, TN_ALL_AXES, 0), "total");
    float *data = malloc(sizeof *data * N * RING), *want = calloc(N, sizeof *want), *got = malloc(sizeof *got * N);
    rng r = rng_make(3);
    for (int i = 0; i < N * RING; i++) data[i] = (float)rng_range(&r, -1, 1);
    for (int k = 0; k < STEPS; k++)
        for (int i = 0; i < N; i++) {
            volatile float square = data[k % RING * N + i] * data[k % RING * N + i];
            want[i] += square;
        }
    for (int threads = 1; threads <= 3; threads++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p = NULL;
        tn_session *session = NULL;
        o.mode = TN_MODE_LOOP, o.threads = threads;
        if (tn_compile(g, &o, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
        tn_binding ring = { "x", data };
        if (tn_run_n(session, STEPS, &ring, 1, RING)) fail_msg("%s", tn_ctx_error(ctx));
        if (tn_session_get(session, "s", got, sizeof *got * N)) fail_msg("%s", tn_ctx_error(ctx));
        for (int i = 0; i < N; i++)
            if (got[i] != want[i]) fail_msg("%d threads: s[%d] is %.9g, not %.9g", threads, i, (double)got[i], (double)want[i]);
        tn_session_free(session);
        tn_program_free(p);
    }
    free(data), free(want), free(got);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* A choice between a mask of 64-bit lanes and one of 32-bit lanes. */
static void test_mixed_masks(void **state) {
    (void)state;
    static const char text[] =
        "graph @masks(x f64[37], c bool[37]) {\n  %1 = lt x, 0.25 bool[37]\n  %2 = select c, %1, c bool[37]\n"
        "  return %2 as \"y\"\n}\n";
    double x[37];
    uint8_t c[37], y[37];
    if (!has_machine_code()) skip();
    rng r = rng_make(11);
    for (int i = 0; i < 37; i++) x[i] = rng_range(&r, -1, 1), c[i] = (uint8_t)rng_below(&r, 2), y[i] = 7;
    tn_ctx *ctx = context("x86", "/nowhere/cc");
    tn_graph *g = parse(ctx, text);
    tn_program *p = NULL;
    tn_session *s = NULL;
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s) || tn_run(s, TN_BIND({ "x", x }, { "c", c }, { "y", y })))
        fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 37; i++) assert_int_equal(y[i], c[i] && x[i] < 0.25);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

/* Rows of bytes with a border, at both ends of memory that may be read: what the border hides is not touched, and no byte is
 * fetched alone. */
static void test_borders_of_bytes(void **state) {
    (void)state;
    enum { ROWS = 3, MOST = 24, PAGE = 1 << 16 };
    if (!has_machine_code()) skip();
    unsigned char *room = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int n = 0;
    rng r = rng_make(5);
    if (room == MAP_FAILED || mprotect(room + PAGE, PAGE, PROT_READ | PROT_WRITE)) skip();
    tn_ctx *ctx = context("avx2", "/nowhere/cc");
    tn_device_info info;
    if (tn_device_get_info(ctx, 0, &info) || (strcmp(info.isa, "avx2") && strncmp(info.isa, "avx512", 6))) {
        tn_ctx_free(ctx), munmap(room, 3 * PAGE);
        skip();
    }
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int width = 1; width <= 17; width++)
            for (int before = 0; before <= 3; before++, n++) {
                int all = width + before + (width + before) % 3, at = ROWS * width;
                tn_graph *g = tn_graph_new(ctx, "border");
                tn_tensor x = tn_input(g, "x", is_signed ? TN_I8 : TN_U8, TN_DIMS(ROWS, width));
                tn_output(tn_cast(tn_pad(x, (int64_t[]){ 0, before }, (int64_t[]){ 0, all - width - before }, 2, 0), TN_I32),
                          "y");
                tn_program *p = NULL;
                tn_session *s = NULL;
                if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
                char *text = NULL;
                assert_int_equal(tn_program_text(p, "x86", &text), TN_OK);
                assert_null(strstr(text, "test edx")); /* a lane's turn */
                tn_string_free(ctx, text);
                for (int end = 0; end < 2; end++) {
                    unsigned char *data = room + PAGE + (end ? PAGE - at : 0);
                    int32_t y[ROWS * MOST];
                    for (int i = 0; i < at; i++) data[i] = (unsigned char)(rng_below(&r, 256) | 128);
                    if (tn_run(s, TN_BIND({ "x", data }, { "y", y }))) fail_msg("%s", tn_ctx_error(ctx));
                    for (int i = 0; i < ROWS * all; i++) {
                        int column = i % all - before,
                            byte = column < 0 || column >= width ? 0 : data[i / all * width + column];
                        assert_int_equal(y[i], is_signed && byte ? byte - 256 : byte);
                    }
                }
                tn_session_free(s);
                tn_program_free(p);
                tn_graph_free(g);
            }
    tn_ctx_free(ctx);
    munmap(room, 3 * PAGE);
    printf("count: %d borders\n", n);
    assert_true(n > 100);
}

static void test_compile_time(void **state) {
    (void)state;
    if (!has_machine_code()) skip();
    for (int depth = 1; depth <= 64; depth += 63) {
        tn_ctx *ctx = context("x86", "/nowhere/cc");
        tn_graph *g = tn_graph_new(ctx, "net");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(64, 64));
        for (int i = 0; i < depth / 2; i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            x = tn_relu(tn_matmul(x, tn_state(g, name, TN_F32, TN_DIMS(64, 64), NULL)));
        }
        tn_output(depth == 1 ? tn_tanh(x) : x, "y");
        double best = 1, build = 1;
        for (int i = 0; i < 10; i++) {
            tn_program *p = NULL;
            tn_program_stats stats;
            if (tn_compile(g, NULL, &p)) fail_msg("%s", tn_ctx_error(ctx));
            tn_program_get_stats(p, &stats);
            if (stats.compile_seconds < best) best = stats.compile_seconds;
            if (stats.build_seconds < build) build = stats.build_seconds;
            tn_program_free(p);
        }
        printf("%s: compiled in %.0f us, of which %.0f us to load the code\n",
               depth == 1 ? "one kernel" : "network of depth 64", best * 1e6, build * 1e6);
        assert_true(best < 1);
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_choice),
                                        cmocka_unit_test(test_texts),
                                        cmocka_unit_test(test_fallback),
                                        cmocka_unit_test(test_woven),
                                        cmocka_unit_test(test_steps),
                                        cmocka_unit_test(test_mixed_masks),
                                        cmocka_unit_test(test_borders_of_bytes),
                                        cmocka_unit_test(test_compile_time) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
