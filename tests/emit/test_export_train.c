/* test_export_train.c - the digits training as C and as an object of its own: the losses of the library over 200 steps, bit for
 * bit, in memory that the host gives, without an allocation; states saved and loaded again go on as if nothing had been. Also
 * on other processors, which qemu simulates where it is installed with Debian's cross compilers, over 40 steps, for each takes
 * it 0.1 to 0.2 s: the library is then told to add in their order. In another order a sum near zero may fall to the other side
 * of a relu, and losses differ from then on. A short campaign: one of the simulated ones, in turns. Sanitized builds export one
 * form, and leave running it to the release run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon_nn.h"

#include <math.h>

enum { BATCH = 8, RING = 20, STEPS = 200 };

static tn_tensor digits(tn_tensor x) {
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 16, .kernel = { 3 }, .padding = { 1 } }, "conv1"));
    x = tn_relu(tn_nn_conv2d(x, (tn_nn_conv_opts){ .out_channels = 32, .kernel = { 3 }, .padding = { 1 } }, "conv2"));
    x = tn_nn_max_pool(x, (tn_nn_pool_opts){ .kernel = { 2 } });
    x = tn_relu(tn_nn_linear(tn_reshape(x, TN_DIMS(BATCH, 4 * 4 * 32)), 64, "fc1"));
    return tn_nn_linear(x, 10, "fc2");
}

/* Half of the steps, saved, begun anew, loaded, the rest. */
static const char host[] =
    "#include \"net.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    "static unsigned char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES], saved[NET_STATE_BYTES];\n"
    "#if NET_WEIGHTS_BYTES\nstatic uint64_t weights[NET_WEIGHTS_BYTES / 8];\nenum { WEIGHTS = sizeof weights };\n"
    "#else\nstatic unsigned char *weights;\nenum { WEIGHTS };\n#endif\n"
    "static float x[RING][BATCH * 64], loss[STEPS];\nstatic int32_t t[RING][BATCH];\n"
    "static size_t at;\n"
    "static int put(void *ud, const void *data, size_t n) {\n"
    "    const unsigned char *from = (const unsigned char *)data;\n"
    "    if (at + n > sizeof saved) return 1;\n    (void)ud;\n    while (n--) saved[at++] = *from++;\n    return 0;\n}\n"
    "static int get(void *ud, void *data, size_t n) {\n"
    "    unsigned char *to = (unsigned char *)data;\n    (void)ud;\n    while (n--) *to++ = saved[at++];\n    return 0;\n}\n"
    "static int no(void *ud, const void *data, size_t n) { return (void)ud, (void)data, n > 16; }\n"
    "static int load(const char *file, void *to, size_t n) {\n"
    "    FILE *f = fopen(file, \"rb\");\n    return !f || fread(to, 1, n, f) != n || fclose(f);\n}\n"
    "int main(void) {\n"
    "    struct net_ctx c;\n    struct net_io io;\n    io.in_x = x[0], io.in_t = t[0], io.out_loss = loss;\n    struct "
    "net_ring ring = { RING, RING, STEPS };\n"
    "    if (load(\"x\", x, sizeof x) || load(\"t\", t, sizeof t) || load(\"net.bin\", weights, WEIGHTS)) return 1;\n"
    "    if (net_init(&c, arena, sizeof arena, state, sizeof state - 1, weights, WEIGHTS) != NET_SMALL_STATE) return "
    "2;\n"
    "    if (net_init(&c, arena, sizeof arena, state, sizeof state, weights, WEIGHTS)) return 3;\n"
    "    net_run_n(&c, STEPS / 2, &io, &ring);\n"
    "    if (net_save(&c, put, 0)) return 4;\n"
    "    if (net_init(&c, arena, sizeof arena, state, sizeof state, weights, WEIGHTS)) return 5;\n"
    "    at = 0;\n    if (net_load(&c, get, 0)) return 6;\n"
    "    at = 0, saved[3] ^= 1;\n    if (net_load(&c, get, 0) != NET_WRONG_STATE) return 7;\n"
    "    if (net_save(&c, no, 0) != NET_BROKEN_STREAM) return 8;\n"
    "    io.out_loss += STEPS / 2;\n    net_run_n(&c, STEPS / 2, &io, &ring);\n"
    "    FILE *f = fopen(\"losses\", \"wb\");\n    return !f || fwrite(loss, 1, sizeof loss, f) != sizeof loss || "
    "fclose(f);\n}\n";

static char dir[256];

static void run(const char *command) {
    char text[1024];
    snprintf(text, sizeof text, "cd '%s' && %s", dir, command);
    if (system(text)) fail_msg("failed: %s", command);
}

static void save(const char *file, const void *data, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

typedef struct train_form {
    const char *library; /* tn_config.cpu */
    const char *cpu, *compiler, *simulator;
    int freestanding, steps, ring; /* half of the steps come round to the first input again */
    const char *target;
} train_form;
/* gcc contracts at -O2 only; the library does it on every processor that can. */
static const train_form forms[] = {
    { "sse2", "sse2", "cc -O1 -DNET_IMPLEMENTATION", "", 0, STEPS, RING, "object" },
    { "x86", "native", "cc -O1 -fPIE -pie -DNET_IMPLEMENTATION", "", 0, STEPS, RING, "object" },
    { "c-neon", "neon", "aarch64-linux-gnu-gcc -static -O2 -ffp-contract=fast", "qemu-aarch64", 0, 40, RING / 2 },
    { "sse2", "neon", "arm-linux-gnueabihf-gcc -static -O1 -mfpu=neon", "qemu-arm", 0, 40, RING / 2 },
    { "c-scalar", "scalar", "arm-linux-gnueabihf-gcc -static -O1", "qemu-arm", 1, 40, RING / 2 },
    { "x86", "native", "cc -O2 -march=native -ffp-contract=fast --param=avoid-fma-max-bits=0", "", 0, STEPS, RING }
};

/* Whether a program can be built and run in such a way. */
static bool is_here(const train_form *f) {
    char command[512];
    snprintf(
        command, sizeof command,
        "cd '%s' && echo 'int main(void) { return 0; }' >probe.c && %s probe.c -o probe 2>/dev/null && %s ./probe 2>/dev/null",
        dir, f->compiler, f->simulator);
    return system(command) == 0;
}

static void export_files(tn_ctx *ctx, const tn_program *p, const train_form *f) {
    const char *const names[] = { f->target ? "net.o" : "net.c", "net.h", "net.bin" };
    tn_export_opts e = TN_EXPORT_DEFAULTS;
    tn_export *files;
    tn_program_stats about;
    unsigned long long flops = 0;
    e.name = "net", e.weights = f->target ? NULL : "net.bin", e.header = "net.h", e.train = 1, e.cpu = f->cpu;
    e.freestanding = f->freestanding, e.target = f->target;
    if (tn_program_export(p, &e, &files)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < 3; i++) {
        size_t n;
        const void *data = tn_export_data(files, (tn_export_part)i, &n);
        save(names[i], data, n);
    }
    const char *count = strstr(tn_export_data(files, TN_EXPORT_HEADER, NULL), "#define NET_OPERATIONS ");
    tn_program_get_stats(p, &about);
    assert_true(count && sscanf(count, "#define NET_OPERATIONS %llu", &flops) == 1);
    assert_true(flops == about.flops);
    tn_export_free(files);
}

static void check_form(const train_form *f, const float *want) {
    static float got[STEPS];
    char command[512], path[512];
    snprintf(command, sizeof command,
             "rm -f losses && %s -std=c99 -Wall -Wextra -Wconversion -pedantic -Werror -DBATCH=%d -DRING=%d -DSTEPS=%d "
             "main.c %s -lm -o prog && %s ./prog",
             f->compiler, BATCH, f->ring, f->steps, f->target ? "net.o" : "net.c", f->simulator);
    run(command);
    snprintf(path, sizeof path, "%s/losses", dir);
    FILE *file = fopen(path, "rb");
    assert_true(file && fread(got, sizeof *got, STEPS, file) == (size_t)f->steps);
    fclose(file);
    for (int i = 0; i < f->steps; i++)
        if (got[i] != want[i])
            fail_msg("%s: step %d: loss %.9g, the library's %.9g", f->compiler, i, (double)got[i], (double)want[i]);
}

typedef struct examples {
    float x[RING][BATCH * 64];
    int32_t t[RING][BATCH];
} examples;

static void make_examples(examples *e) {
    rng r = rng_make(3);
    for (int i = 0; i < RING; i++) {
        fill_random(&r, TN_F32, e->x[i], BATCH * 64, 0, 1);
        for (int b = 0; b < BATCH; b++) e->t[i][b] = rng_below(&r, 10);
    }
    save("x", e->x, sizeof e->x), save("t", e->t, sizeof e->t), save("main.c", host, sizeof host - 1);
}

/* The library's losses and the form's. False: this processor cannot add in that order. */
static bool check_against_library(const train_form *f, examples *e, float *want) {
    tn_config cfg = test_config();
    cfg.cpu = f->library;
    tn_ctx *ctx = tn_ctx_new(&cfg);
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor picture = tn_input(g, "x", TN_F32, TN_DIMS(BATCH, 8, 8, 1)), label = tn_input(g, "t", TN_I32, TN_DIMS(BATCH));
    tn_tensor loss = tn_nn_cross_entropy(digits(picture), label);
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 2e-3 });
    tn_output(loss, "loss");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    o.mode = TN_MODE_LOOP, o.threads = 1;
    tn_status status = tn_compile(g, &o, &p);
    bool can = !(status == TN_ERR_INVAL && strstr(tn_ctx_error(ctx), "no code generator"));
    if (can) {
        if (status) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_session_new(p, &s), TN_OK);
        assert_int_equal(tn_session_bind_trace(s, tn_session_slot(s, "loss"), want, f->steps), TN_OK);
        assert_int_equal(tn_run_n(s, f->steps, TN_BIND({ "x", e->x }, { "t", e->t }), f->ring), TN_OK);
        if (f->steps == STEPS) assert_true(want[STEPS - 1] < want[0]);
        export_files(ctx, p, f);
        if (!TEST_SANITIZED) check_form(f, want);
        tn_session_free(s);
        tn_program_free(p);
    }
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return can;
}

static void test_losses(void **state) {
    (void)state;
    static examples e;
    static float want[STEPS];
    int runs = 0;
    make_examples(&e);
    assert_true(is_here(&forms[COUNT_OF(forms) - 1]));
    for (size_t i = TEST_SANITIZED ? COUNT_OF(forms) - 1 : 0; i < COUNT_OF(forms); i++) {
        if (*forms[i].simulator && !campaign_has(i, COUNT_OF(forms) - 1)) continue;
        runs += is_here(&forms[i]) && check_against_library(&forms[i], &e, want);
    }
    if (TEST_SANITIZED) return;
    run("cc -std=c99 -O1 -march=native -fno-stack-protector -c net.c && ! nm -u net.o | grep -vE ' "
        "(mem(cpy|set|move)|(log|exp|sqrt|pow)f?)$' >&2");
    print_message("count: %d exported programs with the losses of %d steps: %.4f to %.4f; simulated processors %d steps\n",
                  runs, STEPS, (double)want[0], (double)want[STEPS - 1], forms[2].steps);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_losses) };
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/tenon-train-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return failed || system(command);
}
