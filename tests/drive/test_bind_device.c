/* test_bind_device.c - inputs and outputs in memory of the device that the caller owns, and runs in order with the caller's
 * streams: on the CPU and on null, what is refused, and on CUDA where there is a GPU (values) or a fake of its driver (which
 * calls it gets; test_faults.sh runs that). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "rt/cuda_api.h"
#include "tenon/tenon.h"

enum { ROWS = 8, IN = 32, OUT = 16 };

typedef struct fixture {
    tn_ctx *ctx;
    tn_program *p;
    tn_session *s;
    int x, y, z;
    float in[ROWS * IN], w[IN * OUT], want[ROWS * OUT];
} fixture;

/* y = relu(x w), z = -x */
static bool open_on(fixture *f, const char *device, tn_mode mode) {
    memset(f, 0, sizeof *f);
    f->ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(f->ctx, "bound");
    for (int i = 0; i < ROWS * IN; i++) f->in[i] = (float)(i * 37 % 19 - 9) / 8;
    for (int i = 0; i < IN * OUT; i++) f->w[i] = (float)(i * 53 % 23 - 11) / 16;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < OUT; c++) { /* exact: sums of few bits */
            float sum = 0;
            for (int k = 0; k < IN; k++) sum += f->in[r * IN + k] * f->w[k * OUT + c];
            f->want[r * OUT + c] = sum > 0 ? sum : 0;
        }
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(ROWS, IN));
    tn_output(tn_relu(tn_matmul(x, tn_const(g, TN_F32, TN_DIMS(IN, OUT), f->w))), "y");
    tn_output(tn_neg(x), "z");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.device = device, o.mode = mode;
    bool there = tn_compile(g, &o, &f->p) == TN_OK;
    tn_graph_free(g);
    if (!there) return false;
    assert_int_equal(tn_session_new(f->p, &f->s), TN_OK);
    f->x = tn_session_slot(f->s, "x"), f->y = tn_session_slot(f->s, "y"), f->z = tn_session_slot(f->s, "z");
    assert_int_equal(tn_program_ordinal(f->p), 0);
    return true;
}
static void close_it(fixture *f) { tn_session_free(f->s), tn_program_free(f->p), tn_ctx_free(f->ctx); }

static void expect_text(fixture *f, tn_status got, tn_status want, const char *text) {
    assert_int_equal(got, want);
    if (!strstr(tn_session_error(f->s), text)) fail_msg("no \"%s\" in: %s", text, tn_session_error(f->s));
}

static uint64_t at(const void *p) { return (uint64_t)(uintptr_t)p; }

static void test_cpu(void **state) {
    (void)state;
    fixture f;
    float y[ROWS * OUT], other[ROWS * OUT];
    for (int mode = 0; mode < 3; mode++) {
        static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_GRAPH, TN_MODE_IMMEDIATE };
        assert_true(open_on(&f, "cpu", modes[mode]));
        assert_int_equal(tn_session_bind_device(f.s, f.x, at(f.in), sizeof f.in), TN_OK);
        assert_int_equal(tn_session_bind_device(f.s, f.y, at(y), sizeof y), TN_OK);
        memset(y, 0xee, sizeof y);
        assert_int_equal(tn_session_queue(f.s, 0), TN_OK);
        assert_memory_equal(y, f.want, sizeof y);
        /* a call that names the slot hides it */
        memset(y, 0xee, sizeof y), memset(other, 0xee, sizeof other);
        assert_int_equal(tn_run(f.s, TN_BIND({ "y", other })), TN_OK);
        assert_memory_equal(other, f.want, sizeof y);
        assert_int_equal(((unsigned char *)y)[0], 0xee);
        assert_int_equal(tn_session_run(f.s), TN_OK);
        assert_memory_equal(y, f.want, sizeof y);
        expect_text(&f, tn_session_bind_device(f.s, f.y, at(y), sizeof y - 1), TN_ERR_INVAL,
                    "511 bytes for \"y\", which has 512");
        expect_text(&f, tn_session_bind_device(f.s, 9, at(y), sizeof y), TN_ERR_INVAL, "slot 9 of 3");
        expect_text(&f, tn_session_queue(f.s, 1), TN_ERR_INVAL, "has no streams");
        assert_int_equal(tn_session_bind_device(f.s, f.x, 0, 0), TN_OK);
        expect_text(&f, tn_session_queue(f.s, 0), TN_ERR_INVAL, "input \"x\"");
        close_it(&f);
    }
}

static void test_null(void **state) {
    (void)state;
    fixture f;
    float y[ROWS * OUT];
    assert_true(open_on(&f, "null", TN_MODE_COMPILED));
    assert_int_equal(tn_session_bind_device(f.s, f.x, 0x10000, sizeof f.in), TN_OK);
    assert_int_equal(tn_session_bind_device(f.s, f.y, 0x20000, sizeof y), TN_OK);
    assert_int_equal(tn_session_queue(f.s, 7), TN_OK);
    assert_int_equal(tn_session_run(f.s), TN_OK);
    assert_int_equal(tn_run(f.s, TN_BIND({ "x", f.in }, { "y", y })), TN_OK);
    expect_text(&f, tn_session_bind_device(f.s, f.x, 0x10004, sizeof f.in), TN_ERR_INVAL, "expected a multiple of 16 bytes");
    assert_int_equal(tn_session_bind_device(f.s, f.y, 0x10000 + sizeof f.in / 2, sizeof y), TN_OK);
    expect_text(&f, tn_session_queue(f.s, 0), TN_ERR_INVAL, "overlap");
    assert_int_equal(tn_session_bind(f.s, f.y, y), TN_OK);
    expect_text(&f, tn_session_queue(f.s, 0), TN_ERR_INVAL, "\"y\" is bound to memory of the host");
    assert_int_equal(tn_session_run(f.s), TN_OK);
    close_it(&f);
    assert_true(open_on(&f, "null", TN_MODE_IMMEDIATE));
    expect_text(&f, tn_session_bind_device(f.s, f.x, 0x10000, sizeof f.in), TN_ERR_UNSUPPORTED, "in immediate mode");
    expect_text(&f, tn_session_queue(f.s, 0), TN_ERR_UNSUPPORTED, "immediate mode");
    close_it(&f);
}

static void test_opencl(void **state) {
    (void)state;
    fixture f;
    if (!open_on(&f, "opencl", TN_MODE_COMPILED)) {
        tn_ctx_free(f.ctx);
        skip();
    }
    expect_text(&f, tn_session_bind_device(f.s, f.x, 0x10000, sizeof f.in), TN_ERR_UNSUPPORTED, "context of its own");
    assert_int_equal(tn_session_bind(f.s, f.x, f.in), TN_OK);
    assert_int_equal(tn_session_queue(f.s, 0), TN_OK);
    close_it(&f);
}

/* ---- CUDA: the caller's own driver calls ---- */

static cuda_api cu;
static bool load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return false;
#define X(name, symbol, parameters)                                                                                            \
    {                                                                                                                          \
        void *address = dlsym(library, symbol);                                                                                \
        if (!address) return false;                                                                                            \
        memcpy(&cu.name, &address, sizeof address);                                                                            \
    }
    CUDA_FUNCTIONS(X)
#undef X
    return true;
}
#define CU(call) assert_int_equal(cu.call, 0)

/* A copy in, a run and a copy out on one stream of the caller's, several times, with one wait at the end; then with the
 * memory elsewhere. */
static void test_cuda(void **state) {
    (void)state;
    fixture f;
    cu_object context, stream, old;
    cu_pointer x, y[2];
    static float got[2][ROWS * OUT];
    if (!load_driver() || !open_on(&f, "cuda", TN_MODE_COMPILED)) skip();
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, tn_program_ordinal(f.p)));
    CU(cuCtxPushCurrent(context));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&x, sizeof f.in));
    for (int i = 0; i < 2; i++) CU(cuMemAlloc(&y[i], sizeof got[i]));
    assert_int_equal(tn_session_bind_device(f.s, f.x, x, sizeof f.in), TN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tn_session_bind_device(f.s, f.y, y[i], sizeof got[i]), TN_OK);
        for (int round = 0; round < 20; round++) {
            CU(cuMemsetD8Async(x, 0, sizeof f.in, stream));
            CU(cuMemcpyHtoDAsync(x, f.in, sizeof f.in, stream));
            assert_int_equal(tn_session_queue(f.s, at(stream)), TN_OK);
        }
        CU(cuMemcpyDtoHAsync(got[i], y[i], sizeof got[i], stream));
    }
    CU(cuStreamSynchronize(stream));
    if (getenv("FAKE_CUDA")) {
        puts("fake driver");
    } else {
        for (int i = 0; i < 2; i++) assert_memory_equal(got[i], f.want, sizeof got[i]);
        static float host[ROWS * OUT];
        assert_int_equal(tn_run(f.s, TN_BIND({ "x", f.in }, { "y", host })), TN_OK);
        assert_memory_equal(host, f.want, sizeof host);
    }
    assert_int_equal(tn_session_bind_device(f.s, f.x, 0, 0), TN_OK);
    close_it(&f);
    cu.cuMemFree(x), cu.cuMemFree(y[0]), cu.cuMemFree(y[1]);
    cu.cuStreamDestroy(stream);
    cu.cuCtxPopCurrent(&old);
    cu.cuDevicePrimaryCtxRelease(0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cpu), cmocka_unit_test(test_null), cmocka_unit_test(test_opencl),
                                        cmocka_unit_test(test_cuda) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
