/* test_choose.c - the device "auto": what the model says of devices that are not here, and what a program says of its choice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "drive/drive.h"

static tn_graph *network(tn_ctx *ctx, int64_t width, int layers) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(width, width));
    float *w = calloc((size_t)(width * width), sizeof *w);
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        x = tn_relu(tn_matmul(x, tn_state(g, name, TN_F32, TN_DIMS(width, width), w)));
    }
    free(w);
    tn_output(x, "y");
    return g;
}

static const device_caps two_cores = {
    .threads = 2, .vector_bytes = 32, .n_vector_regs = 16, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20
};
static const device_caps large_gpu = {
    .threads = 1,
    .vector_bytes = 16,
    .n_vector_regs = 64,
    .l1_bytes = 32 << 10,
    .l2_bytes = 50 << 20,
    .gpu = true,
    .block_threads = 256,
    .shared_bytes = 48 << 10,
    .resident_threads = 132 << 10,
    .buffers = 256,
};

static double estimate(tn_graph *g, tn_mode mode, const device_caps *caps, double *transfer) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    device_caps described = *caps;
    double us = 0;
    err e;
    o.mode = mode, o.fusion = 3;
    described.machine = machine_row(caps->gpu ? "h200" : "zen3");
    assert_int_equal(drive_estimate(mem_libc(), g->ir, &o, &described, &us, transfer, &e), TN_OK);
    return us;
}

/* Small graphs are faster on the CPU, large ones on the GPU, and there is one crossover. */
static void test_crossover(void **state) {
    (void)state;
    int changes = 0;
    bool gpu = false;
    for (int64_t width = 4; width <= 1024; width *= 2) {
        tn_ctx *ctx = tn_ctx_new(NULL);
        tn_graph *g = network(ctx, width, 8);
        double there = 0, here = 0, c = estimate(g, TN_MODE_COMPILED, &two_cores, &here),
               d = estimate(g, TN_MODE_COMPILED, &large_gpu, &there);
        assert_true(c > 0 && d > there);
        assert_true(here <= 0 && there >= 8 * (double)(width * width) / 8e3 + 20); /* x goes up, y comes down */
        if (width == 4) assert_true(c < d);
        if (width == 1024) assert_true(d < c / 10);
        double often = estimate(g, TN_MODE_LOOP, &large_gpu, &there);
        assert_true(often < d); /* a call has many steps */
        changes += (d < c) != gpu;
        gpu = d < c;
        tn_graph_free(g);
        tn_ctx_free(ctx);
    }
    assert_int_equal(changes, 1);
}

static void test_program(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = network(ctx, 4, 2);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    char *text;
    o.device = "auto";
    assert_int_equal(tn_compile(g, &o, &p), TN_OK);
    assert_string_equal(p->opts.device, "cpu"); /* nothing so small pays elsewhere */
    assert_int_equal(tn_program_text(p, "explain", &text), TN_OK);
    assert_non_null(strstr(text, "device: cpu; cpu: about "));
    assert_non_null(strstr(text, "; cuda: "));
    assert_non_null(strstr(text, "; opencl: "));
    tn_string_free(ctx, text);
    tn_program_free(p);
    for (int mode = TN_MODE_IMMEDIATE; mode <= TN_MODE_LOOP; mode++) {
        o.mode = (tn_mode)mode;
        assert_int_equal(tn_compile(g, &o, &p), TN_OK);
        tn_program_free(p);
    }
    tn_graph_free(g);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_crossover), cmocka_unit_test(test_program) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
