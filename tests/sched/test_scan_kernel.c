/* test_scan_kernel.c - scans whose body is elementwise are one kernel: the same bits as op by op, for random bodies over
 * dtypes, shapes, directions and counts; bodies that are not stay loops over kernels.
 *
 * Labels: random */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/support.h"
#include "tenon/tenon.h"

enum { MOST = 3, ROOM = 1 << 19 };

typedef struct body_of {
    rng r;
    int n_carry, n_xs, n_ys;
    tn_tensor seen[2]; /* by all iterations: of the carry's shape, and a scalar; f32 */
    bool exchange, across;
} body_of;

/* Numbers of one dtype stay small and exact in it. */
static tn_tensor mixed(body_of *b, tn_tensor x, const tn_tensor *in, int n) {
    tn_dtype t = tn_tensor_dtype(x);
    for (int i = 0; i < 3; i++) {
        tn_tensor y = rng_chance(&b->r, 0.3) ? b->seen[rng_below(&b->r, 2)] : in[rng_below(&b->r, n)];
        y = tn_cast(
            tn_max(tn_min(tn_cast(y, TN_F32), tn_full(x.graph, TN_F32, TN_SCALAR, 3)), tn_full(x.graph, TN_F32, TN_SCALAR, 0)),
            t);
        switch (rng_below(&b->r, 4)) {
        case 0:
            x = tn_add(x, y);
            break;
        case 1:
            x = tn_max(x, y);
            break;
        case 2:
            x = tn_sub(tn_max(x, y), y);
            break;
        default:
            x = tn_min(tn_add(x, y), tn_full(x.graph, t, TN_SCALAR, 7));
        }
    }
    return tn_min(x, tn_full(x.graph, t, TN_SCALAR, 9));
}

static void body(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    body_of *b = ud;
    int n = b->n_carry + b->n_xs;
    for (int i = 0; i < b->n_carry; i++) out[i] = rng_chance(&b->r, 0.1) && i ? in[i] : mixed(b, in[i], in, n);
    if (b->exchange) out[0] = in[1], out[1] = in[0];
    if (b->across) out[0] = tn_flip(out[0], TN_INTS(0));
    for (int i = 0; i < b->n_ys; i++)
        out[b->n_carry + i] =
            rng_chance(&b->r, 0.5) ? out[rng_below(&b->r, b->n_carry)] : mixed(b, in[rng_below(&b->r, n)], in, n);
}

/* The same some times: a scan in a scan. */
static void body_outer(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    body_of *b = ud;
    tn_scan(g, &(tn_scan_opts){ .carry = in, .n_carry = b->n_carry, .length = 3 }, body, b, out);
}

typedef struct made {
    int n_in, n_out;
    tn_tensor in[2 * MOST + 2], out[2 * MOST];
} made;

/* Whole numbers, which no dtype rounds. */
static tn_tensor input(made *m, tn_graph *g, tn_dtype t, tn_shape s) {
    char name[16];
    snprintf(name, sizeof name, "x%d", m->n_in);
    tn_tensor x = m->in[m->n_in++] = tn_input(g, name, t, s);
    return t == TN_F32 || t == TN_F64 || t == TN_BF16 || t == TN_F16 ? tn_floor(x) : x;
}

static made build(tn_graph *g, uint64_t seed, bool exchange, bool across) {
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16, TN_I32, TN_I64, TN_I8, TN_U8 };
    static const int64_t widths[] = { 1, 3, 4, 7, 16, 33, 130, 4096, 4100 }, lengths[] = { 1, 2, 5, 13 };
    body_of b = { .r = rng_make(seed), .exchange = exchange, .across = across };
    made m = { 0 };
    tn_tensor carry[MOST], xs[MOST];
    int64_t w = exchange || across ? 12 : widths[rng_below(&b.r, seed % 8 ? 7 : 9)], length = lengths[rng_below(&b.r, 4)];
    tn_shape s = w % 2 == 0 && rng_chance(&b.r, 0.4) ? TN_DIMS(w / 2, 2) : TN_DIMS(w), stack = s;
    for (int i = stack.rank++; i > 0; i--) stack.dim[i] = s.dim[i - 1];
    stack.dim[0] = length;
    b.n_carry = exchange ? 2 : 1 + (int)rng_below(&b.r, MOST), b.n_xs = (int)rng_below(&b.r, MOST),
    b.n_ys = (int)rng_below(&b.r, MOST);
    tn_dtype t = exchange ? TN_F32 : dtypes[rng_below(&b.r, 8)];
    for (int i = 0; i < b.n_carry; i++) carry[i] = input(&m, g, exchange || i == 0 ? t : dtypes[rng_below(&b.r, 8)], s);
    for (int i = 0; i < b.n_xs; i++) xs[i] = input(&m, g, dtypes[rng_below(&b.r, 8)], stack);
    for (int i = 0; i < 2; i++) b.seen[i] = input(&m, g, TN_F32, i ? TN_SCALAR : s);
    tn_scan_opts o = { .carry = carry, .n_carry = b.n_carry, .xs = xs, .n_xs = b.n_xs, .n_ys = b.n_ys, .length = length };
    o.reverse = rng_chance(&b.r, 0.5);
    if (!exchange && !across && rng_chance(&b.r, 0.3))
        o.count = tn_full(g, TN_I64, TN_SCALAR, (double)rng_below(&b.r, length + 2));
    m.n_out = b.n_carry + b.n_ys;
    tn_scan(g, &o, body, &b, m.out);
    for (int i = 0; i < m.n_out; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        tn_output(m.out[i], name);
    }
    return m;
}

/* Whether it is a loop over kernels. */
static bool run(tn_graph *g, const made *m, int fusion, int threads, char *const *in, char **out) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    char *text;
    o.fusion = fusion, o.threads = threads, o.check = 1;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(g)));
    for (int i = 0; i < m->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (tn_session_slot(s, name) >= 0) assert_int_equal(tn_session_bind(s, tn_session_slot(s, name), in[i]), TN_OK);
    }
    for (int i = 0; i < m->n_out; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        out[i] = memset(malloc(ROOM), 0x7e, ROOM);
        assert_int_equal(tn_session_bind(s, tn_session_slot(s, name), out[i]), TN_OK);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(tn_session_run(s), TN_OK);
    assert_int_equal(tn_program_text(p, "plan", &text), TN_OK);
    bool loops = strstr(text, "loop times=") != NULL;
    tn_string_free(tn_graph_ctx(g), text);
    tn_session_free(s), tn_program_free(p);
    return loops;
}

static void check(tn_ctx *ctx, uint64_t seed, bool exchange, bool across, int *n_kernels) {
    tn_graph *g = tn_graph_new(ctx, "scan");
    made m = build(g, seed, exchange, across);
    rng r = rng_make(seed + 1);
    char *in[2 * MOST + 2], *want[2 * MOST], *got[2 * MOST];
    for (int i = 0; i < m.n_in; i++) {
        in[i] = malloc(ROOM);
        fill_random(&r, tn_tensor_dtype(m.in[i]), in[i],
                    (int64_t)(tn_tensor_bytes(m.in[i]) / tn_dtype_size(tn_tensor_dtype(m.in[i]))), 0, 5);
    }
    run(g, &m, 0, 1, in, want);
    bool loops = run(g, &m, 3, 1 + (int)(seed % 3), in, got);
    *n_kernels += !loops;
    if (exchange || across) assert_true(loops);
    for (int i = 0; i < m.n_out; i++) {
        if (memcmp(got[i], want[i], ROOM))
            fail_msg("seed %llu: output %d differs from that of op by op", (unsigned long long)seed, i);
        free(got[i]), free(want[i]);
    }
    for (int i = 0; i < m.n_in; i++) free(in[i]);
    tn_graph_free(g);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(fuzz_by_c() ? 6 : 200, &first);
    tn_ctx *ctx = test_ctx();
    int kernels = 0;
    for (uint64_t seed = first; seed < first + n; seed++) check(ctx, seed, false, false, &kernels);
    assert_true(kernels > 0);
    printf("count: %llu random scans of elementwise bodies, %d of them one kernel\n", (unsigned long long)n, kernels);
    tn_ctx_free(ctx);
}

/* What a scan in a scan carries is read and written where the outer one has it: a kernel, and no copies. */
static void test_nested(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    for (uint64_t seed = 1; seed < 20; seed++) {
        tn_graph *g = tn_graph_new(ctx, "scan");
        body_of b = { .r = rng_make(seed), .n_carry = 1 + (int)(seed % 2) };
        made m = { 0 };
        rng r = rng_make(seed + 1);
        tn_tensor carry[MOST];
        tn_shape shape = TN_DIMS(5 + (int64_t)seed);
        char *in[2 * MOST + 2], *want[2 * MOST], *got[2 * MOST], *text;
        for (int i = 0; i < b.n_carry; i++) carry[i] = input(&m, g, TN_F32, shape);
        for (int i = 0; i < 2; i++) b.seen[i] = input(&m, g, TN_F32, i ? TN_SCALAR : shape);
        for (int i = 0; i < m.n_in; i++) fill_random(&r, TN_F32, in[i] = malloc(ROOM), ROOM / 4, 0, 5);
        m.n_out = b.n_carry;
        tn_scan(g, &(tn_scan_opts){ .carry = carry, .n_carry = b.n_carry, .length = 4 }, body_outer, &b, m.out);
        tn_output(m.out[0], "y0");
        if (m.n_out > 1) tn_output(m.out[1], "y1");
        run(g, &m, 0, 1, in, want), run(g, &m, 3, 1 + (int)(seed % 3), in, got);
        for (int i = 0; i < m.n_out; i++) {
            if (memcmp(got[i], want[i], ROOM)) fail_msg("seed %llu: output %d differs", (unsigned long long)seed, i);
            free(got[i]), free(want[i]);
        }
        for (int i = 0; i < m.n_in; i++) free(in[i]);
        tn_program *p;
        assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
        assert_int_equal(tn_program_text(p, "plan", &text), TN_OK);
        const char *loop = strstr(text, "loop times=4");
        if (b.n_carry == 1 && loop) assert_null(memmem(loop, (size_t)(strchr(loop, '}') - loop), "copy", 4));
        tn_string_free(ctx, text);
        tn_program_free(p), tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

static void test_stay(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    int none = 0;
    for (uint64_t seed = 0; seed < 8; seed++)
        check(ctx, seed * 8 + 1, true, false, &none), check(ctx, seed * 8 + 1, false, true, &none);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_nested),
                                        cmocka_unit_test(test_stay) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
