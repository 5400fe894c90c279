/* test_ops.c - every row of the op table, with every dtype it accepts, on awkward shapes, views and values: what compiled
 * kernels compute is what the reference evaluator computes.
 *
 * Labels: slow
 * Cases are generated from ops.def. One graph holds many ops, each an output of its own, and is compiled twice: one kernel an
 * op, and fused. Ops with an error of at most half a unit must be exact in every dtype; the others stay within the bound of
 * tests/support/bound.c. Failures are collected, so that one run shows all of them. An argument selects groups: test_ops
 * 'test_dots*'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/support.h"

/* ---- one graph of cases ---- */

typedef enum values { FINITE, WIDE, RARE, SPECIAL, PAIRS, INDEX, N_VALUES } values;
enum { MAX_CASES = 400 };

typedef struct cases {
    arena *a;
    graph *g;
    tn_ctx *ctx;
    val v[MAX_CASES];
    bool exact[MAX_CASES];
    int n;
    values how;          /* of the data set that runs */
    values index_of[64]; /* kind of values of input k; N_VALUES = that of the data set */
} cases;

static int n_cases, n_checked, n_bad, n_said;
static rng chance;

static const double float_specials[] = { 0.0,      -0.0,     1.0,       -1.0,   0.5,     -0.5,    1.5,      2.5,
                                         -2.5,     INFINITY, -INFINITY, NAN,    3.0,     -7.0,    1e-3,     100.125,
                                         16777217, -1.25e10, 88.75f,    -104.5, 3.14159, -2049.0, 65519.99, 1.00048828125 };
static const int64_t int_specials[] = { 0,   1,       -1,        2,         -2,        3,         -3,       7,
                                        -7,  10,      -10,       64,        100,       127,       -128,     128,
                                        255, 1000003, INT32_MIN, INT32_MAX, 1LL << 31, INT64_MIN, INT64_MAX };

static double special_float(tn_dtype t, int64_t i) {
    const double extremes[3] = { dtype_info(t)->hi, dtype_smallest_normal(t),
                                 2 * dtype_roundoff(t) * dtype_smallest_normal(t) };
    int64_t n = (int64_t)COUNT_OF(float_specials);
    i %= n + 6;
    return i < n ? float_specials[i] : i < n + 3 ? extremes[i - n] : -extremes[i - n - 3];
}
static int64_t special_int(tn_dtype t, int64_t i) {
    i %= (int64_t)COUNT_OF(int_specials) + 3;
    if (i < (int64_t)COUNT_OF(int_specials)) return int_specials[i];
    int64_t lo = dtype_min_int(t), hi = dtype_max_int(t);
    return i % 3 == 0 ? lo : i % 3 == 1 ? hi : lo + 1;
}
static int64_t n_specials(tn_dtype t) {
    return dtype_is_float(t) ? (int64_t)COUNT_OF(float_specials) + 6 : (int64_t)COUNT_OF(int_specials) + 3;
}

static double any_float(values how) {
    if (how == FINITE || how == RARE || rng_chance(&chance, 0.5)) return rng_range(&chance, -2, 2);
    return ldexp(rng_range(&chance, -1, 1), (int)rng_between(&chance, -18, 18));
}

static void fill(const node *x, void *data, int64_t n, values how, int which) {
    tn_dtype t = (tn_dtype)x->dtype;
    int64_t n_special = n_specials(t);
    for (int64_t i = 0; i < n; i++) {
        int64_t pick = how == PAIRS ? which == 0   ? i % n_special
                                      : which == 1 ? i / n_special % n_special
                                                   : i * 7
                                    : rng_below(&chance, 1000);
        bool special = how == PAIRS || (how == SPECIAL && rng_chance(&chance, 0.3));
        if (how == INDEX)
            dtype_store_int(t, data, i, rng_chance(&chance, 0.1) ? special_int(t, pick) : rng_between(&chance, -3, 12));
        else if (dtype_is_float(t))
            dtype_store(t, data, i,
                        special                                    ? special_float(t, pick)
                        : how == RARE && rng_chance(&chance, 0.01) ? float_specials[9 + pick % 3]
                                                                   : any_float(how));
        else if (special)
            dtype_store_int(t, data, i, special_int(t, pick));
        else
            dtype_store_int(t, data, i, how == FINITE ? rng_between(&chance, -3, 3) : (int64_t)rng_next(&chance));
    }
}

static cases *cases_make(arena *a, tn_ctx *ctx) {
    cases *c = ARENA_ARRAY(a, cases, 1);
    c->a = a, c->ctx = ctx, c->g = graph_make(a, "cases");
    for (size_t i = 0; i < COUNT_OF(c->index_of); i++) c->index_of[i] = N_VALUES;
    return c;
}
static val input_of(cases *c, tn_dtype t, int rank, const int64_t *dims) {
    spec s = { .op = OP_input, .dtype = t, .rank = rank, .dims = dims, .name = arena_printf(c->a, "x%d", c->g->inputs.n) };
    return graph_add(c->g, &s);
}
static void add_case(cases *c, val v, bool exact) {
    if (c->n == MAX_CASES) fail_msg("more than %d cases in one graph", MAX_CASES);
    graph_output(c->g, arena_printf(c->a, "out%d", c->n), v);
    c->exact[c->n] = exact;
    c->v[c->n++] = v;
}
/* Adds the op when its rule takes these operands. Returns 0 when it does not. */
static val try_op(cases *c, const spec *s) {
    tn_status code;
    tn_dtype t;
    int rank;
    int64_t dims[TN_MAX_RANK];
    return graph_infer(c->g, s, c->a, &code, &t, &rank, dims) ? 0 : graph_add(c->g, s);
}

/* ---- running ---- */

static void complain(const cases *c, const char *config, int k, const char *text) {
    n_bad++;
    if (n_said++ < 30) {
        const node *n = graph_get(c->g, c->v[k]);
        fprintf(stderr, "%s: %s of %s -> %s: %s\n", config, op_get((op_code)n->op)->name,
                n->n_in ? graph_shape_text(c->g, c->a, n->in[0]) : "", graph_shape_text(c->g, c->a, c->v[k]), text);
    }
}

/* The sign of an exact zero, where an op of one operand makes it. */
static bool zero_signs_agree(const node *n, const void *got, eval_value want, int64_t count) {
    if (!want.f || n->n_in != 1 || n->op == OP_relu /* as max: either zero */ ||
        !(op_is_elementwise((op_code)n->op) || n->op == OP_cast || op_is_move((op_code)n->op)))
        return true;
    for (int64_t i = 0; i < count; i++)
        if (want.f[i] == 0 && signbit(dtype_load((tn_dtype)n->dtype, got, i)) != signbit(want.f[i])) return false;
    return true;
}

/* Partial sums and products of numbers near the end of the range overflow in one order and not in another: only NaN is sure
 * then. f16 adds in f32, where there is room. */
static bool order_matters(const node *n, values how) {
    if (!dtype_is_float((tn_dtype)n->dtype)) return false;
    if (n->op == OP_prod || n->op == OP_scatter_mul) return how != FINITE;
    bool adds = n->op == OP_sum || n->op == OP_dot || n->op == OP_fold || n->op == OP_scatter_add;
    return adds && how == SPECIAL && n->dtype != TN_F16;
}

static void check_case(cases *c, const char *config, int k, const unsigned char *got, eval_value want, double *bound) {
    char text[512];
    const node *n = graph_get(c->g, c->v[k]);
    int64_t count = graph_elems(c->g, c->v[k]);
    size_t bytes = (size_t)count * dtype_size((tn_dtype)n->dtype);
    for (int i = 0; i < 64; i++)
        if (got[bytes + (size_t)i] != 0xee) {
            complain(c, config, k, "written past its end");
            return;
        }
    n_checked++;
    if (order_matters(n, c->how)) {
        for (int64_t i = 0; i < count && n->dtype != TN_F64 && c->how != WIDE; i++)
            if (isnan(want.f[i]) && !isnan(dtype_load((tn_dtype)n->dtype, got, i))) complain(c, config, k, "a NaN was lost");
        return;
    }
    /* A value far beyond the dtype's range must come out infinite. */
    double largest = n->dtype == TN_F16 ? 65504 : n->dtype == TN_F64 ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
    for (int64_t i = 0; want.f && i < count && op_is_elementwise((op_code)n->op) && n->op != OP_mod; i++)
        if (isinf(bound[i]) && fabs(want.f[i]) > 1.01 * largest) bound[i] = 0;
    if (compare(c->g, c->v[k], got, want, c->exact[k] ? NULL : bound, c->exact[k] ? 0 : 1.5, text, sizeof text) >= 0)
        complain(c, config, k, text);
    else if (!zero_signs_agree(n, got, want, count))
        complain(c, config, k, "a zero has the wrong sign");
}

static const struct config {
    const char *name;
    tn_mode mode;
    int fusion, threads, no_passes;
} configs[] = { { "graph", TN_MODE_GRAPH, 0, 1, 1 }, { "compiled", TN_MODE_COMPILED, 2, 2, 0 } };

static sample data_of(cases *c, values how) {
    graph *g = c->g;
    sample in = sample_make(g, c->a, 1);
    for (int k = 0; k < g->inputs.n; k++) {
        val v = g->inputs.at[k];
        fill(graph_get(g, v), in.data[k], graph_elems(g, v), c->index_of[k] == N_VALUES ? how : c->index_of[k], k % 3);
        in.values[k] = eval_load(g, c->a, v, in.data[k]);
    }
    return in;
}

static int number_of(const char *name) { return atoi(name + strcspn(name, "0123456789")); }

static void run_program(cases *c, tn_program *p, const char *config, const sample *in, const eval_value *want, double **bound) {
    tn_session *s = NULL;
    void **out = arena_array(c->a, (size_t)p->n_io, sizeof *out);
    if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(c->ctx));
    for (int i = 0; i < p->n_io; i++) {
        int k = number_of(p->io[i].name);
        out[i] = in->data[p->io[i].is_output ? 0 : k];
        if (p->io[i].is_output) {
            out[i] = arena_alloc(c->a, (size_t)p->io[i].bytes + 64);
            memset(out[i], 0xee, (size_t)p->io[i].bytes + 64);
        }
        if (tn_session_bind(s, i, out[i])) fail_msg("%s", tn_ctx_error(c->ctx));
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(c->ctx));
    for (int i = 0; i < p->n_io; i++) {
        int k = number_of(p->io[i].name);
        if (p->io[i].is_output) check_case(c, config, k, out[i], want[c->v[k]], bound[c->v[k]]);
    }
    tn_session_free(s);
}

/* The one configuration to run in; -1 = all. Groups of many graphs alternate, since it is the C compiler that takes the time.
 */
static int only = -1;

/* Compiles c in the configurations and runs it on a set of data of each kind given. */
static void run_cases(cases *c, int n_how, const values *how) {
    tn_program *p[COUNT_OF(configs)] = { NULL };
    if (c->n == 0) return;
    for (size_t k = 0; k < COUNT_OF(configs); k++) {
        if (only >= 0 && only != (int)k) continue;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.mode = configs[k].mode, o.fusion = configs[k].fusion, o.threads = configs[k].threads,
        o.no_passes = configs[k].no_passes;
        o.device = test_device();
        if (!test_device_is_cpu()) o.threads = 0;
        if (drive_compile(c->ctx, c->g, &o, &p[k])) fail_msg("%s: %s", configs[k].name, tn_ctx_error(c->ctx));
    }
    for (int h = 0; h < n_how; h++) {
        sample in = data_of(c, how[h]);
        c->how = how[h];
        eval_value *want = eval_graph(c->g, c->a, in.values);
        double **bound = bound_graph(c->g, c->a, want);
        n_cases += c->n;
        for (size_t k = 0; k < COUNT_OF(configs); k++)
            if (p[k]) run_program(c, p[k], configs[k].name, &in, want, bound);
    }
    for (size_t k = 0; k < COUNT_OF(configs); k++) tn_program_free(p[k]);
}

/* ---- shapes and views ---- */

enum view { PLAIN, EXPAND, SLICE, PERMUTE, FLIP, N_VIEWS };

/* An input seen through a movement, of these dims. */
static val view_of(cases *c, tn_dtype t, int rank, const int64_t *dims, enum view view) {
    int64_t base[TN_MAX_RANK], one[TN_MAX_RANK], two[TN_MAX_RANK], back[TN_MAX_RANK];
    for (int d = 0; d < rank; d++) {
        one[d] = 1, two[d] = 2, back[d] = rank - 1 - d;
        base[d] = view == EXPAND && d % 2 == 0 ? 1
                  : view == SLICE              ? 2 * dims[d] + 1
                  : view == PERMUTE            ? dims[rank - 1 - d]
                                               : dims[d];
    }
    val x = input_of(c, t, rank, base);
    switch (view) {
    case EXPAND:
        return graph_expand(c->g, x, dims);
    case SLICE:
        return graph_slice(c->g, x, one, dims, two);
    case PERMUTE:
        return graph_permute(c->g, x, back);
    case FLIP:
        return graph_flip(c->g, x, ((uint64_t)1 << rank) - 1);
    default:
        return x;
    }
}

typedef struct shape {
    int rank;
    int64_t dims[6];
    enum view view;
} shape;

/* ---- the groups of cases ---- */

static tn_ctx *the_ctx;

static void elementwise_cases(arena *a, tn_dtype t, const shape *s, int n_how, const values *how) {
    cases *c = cases_make(a, the_ctx);
    val x = view_of(c, t, s->rank, s->dims, s->view), y = view_of(c, t, s->rank, s->dims, s->view ? 1 + s->view % 4 : PLAIN);
    val z = view_of(c, TN_BOOL, s->rank, s->dims, s->view ? 1 + (s->view + 1) % 4 : PLAIN);
    for (int op = OP_NIL + 1; op < N_OPS; op++) {
        if (!op_is_elementwise((op_code)op)) continue;
        const op_info *info = op_get((op_code)op);
        val in[3] = { info->arity == 3 ? z : x, info->arity == 3 ? x : y, y };
        spec sp = { .op = (op_code)op, .in = in, .n_in = info->arity };
        val v = try_op(c, &sp);
        if (v) add_case(c, v, info->ulp <= 0.5);
    }
    run_cases(c, n_how, how);
}

static const shape shapes[] = {
    { 0, { 0 }, PLAIN },
    { 2, { 0, 3 }, EXPAND },
    { 2, { 1, 1 }, FLIP },
    { 1, { 13 }, SLICE },
    { 2, { 7, 33 }, PLAIN },
    { 2, { 33, 7 }, PERMUTE },
    { 6, { 2, 3, 1, 2, 3, 5 }, SLICE },
};
static const shape pairs = { 1, { 907 }, PLAIN }; /* more than the square of the number of special values */

static bool is_number(tn_dtype t) { return dtype_info(t)->arithmetic && t != TN_BOOL; }

#define EACH_DTYPE(body)                                                                                                       \
    for (int t_ = 0; t_ < TN_N_DTYPES; t_++) {                                                                                 \
        arena a_;                                                                                                              \
        guard gd_;                                                                                                             \
        tn_dtype t = (tn_dtype)t_;                                                                                             \
        arena_init(&a_, mem_libc(), &gd_);                                                                                     \
        if (!GUARD_TRY(&gd_)) fail_msg("%s", gd_.err.text);                                                                    \
        arena *const a = &a_;                                                                                                  \
        body;                                                                                                                  \
        arena_fini(&a_);                                                                                                       \
    }

static void finish(const char *what, int bad) {
    printf("%s: %d failures\n", what, n_bad - bad);
    n_said = 0, only = -1;
    assert_int_equal(n_bad, bad);
}

static void test_elementwise_values(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(elementwise_cases(a, t, &pairs, 3, (values[]){ PAIRS, WIDE, SPECIAL }))
    finish("elementwise values", bad);
}
static void test_elementwise_shapes(void **state) {
    (void)state;
    int bad = n_bad;
    for (size_t k = 0; k < COUNT_OF(shapes); k++)
        EACH_DTYPE(only = (int)(k + t) % 2; elementwise_cases(a, t, &shapes[k], 2, (values[]){ WIDE, SPECIAL }))
    finish("elementwise shapes", bad);
}

/* Values round which a conversion to any dtype changes: whole and half units of the 16-bit formats, ends of the integers. */
static void cast_cases(arena *a, tn_dtype t) {
    cases *c = cases_make(a, the_ctx);
    val x = view_of(c, t, 1, (int64_t[]){ 3001 }, PLAIN), strided = view_of(c, t, 3, (int64_t[]){ 3, 7, 5 }, PERMUTE);
    for (int to = 0; to < TN_N_DTYPES; to++) {
        add_case(c, graph_cast(c->g, x, (tn_dtype)to), true);
        add_case(c, graph_cast(c->g, strided, (tn_dtype)to), true);
    }
    run_cases(c, 3, (values[]){ PAIRS, WIDE, SPECIAL });
}
static void test_casts(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(cast_cases(a, t))
    finish("casts", bad);
}

/* Every f32 whose upper bits are those of a 16-bit number and whose lower bits lie at, just below or just above a tie. */
static void tie_cases(arena *a, uint32_t first, int64_t n) {
    cases *c = cases_make(a, the_ctx);
    float *ties = ARENA_ARRAY(a, float, n * 6);
    for (int64_t i = 0; i < n * 6; i++) {
        uint32_t low[] = { 0x7fff, 0x8000, 0x8001, 0x0fff, 0x1000, 0x1001 }, u = (first + (uint32_t)(i / 6)) << 16 | low[i % 6];
        memcpy(&ties[i], &u, sizeof u);
    }
    val x = graph_const(c->g, TN_F32, 1, (int64_t[]){ n * 6 }, ties), y = input_of(c, TN_F32, 1, (int64_t[]){ n * 6 });
    add_case(c, graph_cast(c->g, graph_select(c->g, graph_binary(c->g, OP_ne, y, y), y, x), TN_F16), true);
    add_case(c, graph_cast(c->g, graph_select(c->g, graph_binary(c->g, OP_ne, y, y), y, x), TN_BF16), true);
    run_cases(c, 1, (values[]){ FINITE });
}
static void test_rounding_ties(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(if (t == TN_F32) tie_cases(a, 0, 0x8000))
    EACH_DTYPE(if (t == TN_F32) tie_cases(a, 0x8000, 0x8000))
    finish("rounding ties", bad);
}

static void reduce_cases(arena *a, tn_dtype t, const shape *s) {
    cases *c = cases_make(a, the_ctx);
    val x = view_of(c, t, s->rank, s->dims, s->view);
    for (op_code op = OP_sum; op <= OP_reduce_min; op++)
        for (int64_t axes = 1; axes<(int64_t)1 << s->rank; axes += s->rank> 3 ? 5 : 1) {
            spec sp = { .op = op, .in = &x, .n_in = 1, .attr = &axes, .n_attr = 1 };
            val v = try_op(c, &sp);
            if (v) add_case(c, v, op == OP_reduce_max || op == OP_reduce_min || dtype_is_int(t));
        }
    for (op_code op = OP_argmax; op <= OP_argmin; op++)
        for (int64_t axis = 0; axis < s->rank; axis++) {
            spec sp = { .op = op, .in = &x, .n_in = 1, .attr = &axis, .n_attr = 1 };
            val v = try_op(c, &sp);
            if (v) add_case(c, v, true);
        }
    run_cases(c, 4, (values[]){ FINITE, WIDE, RARE, SPECIAL });
}
static void test_reductions(void **state) {
    (void)state;
    int bad = n_bad;
    static const shape all[] = { { 3, { 7, 13, 33 }, PLAIN },       { 3, { 3, 0, 5 }, PLAIN }, { 3, { 13, 5, 33 }, PERMUTE },
                                 { 3, { 1, 65, 1 }, FLIP },         { 1, { 1031 }, SLICE },    { 2, { 33, 13 }, EXPAND },
                                 { 6, { 2, 3, 1, 2, 3, 5 }, SLICE } };
    for (size_t k = 0; k < COUNT_OF(all); k++) EACH_DTYPE(only = k == 0 ? -1 : (int)(k + t) % 2; reduce_cases(a, t, &all[k]))
    finish("reductions", bad);
}

static void move_cases(arena *a, tn_dtype t) {
    cases *c = cases_make(a, the_ctx);
    graph *g = c->g;
    val x = view_of(c, t, 2, (int64_t[]){ 7, 13 }, PLAIN), y = view_of(c, t, 2, (int64_t[]){ 13, 7 }, PERMUTE),
        s = input_of(c, t, 0, NULL);
    val e = input_of(c, t, 2, (int64_t[]){ 0, 13 }), r6 = view_of(c, t, 6, (int64_t[]){ 2, 3, 1, 2, 3, 5 }, FLIP);
    double border = dtype_is_unsigned(t) || t == TN_BOOL ? 1 : -3;
    add_case(c, graph_pad(g, x, (int64_t[]){ 2, 0 }, (int64_t[]){ 1, 3 }, border), true);
    add_case(c, graph_pad(g, y, (int64_t[]){ 0, 5 }, (int64_t[]){ 0, 0 }, 0), true);
    add_case(c, graph_pad(g, e, (int64_t[]){ 1, 1 }, (int64_t[]){ 1, 0 }, border), true);
    add_case(c, graph_slice(g, x, (int64_t[]){ 1, 2 }, (int64_t[]){ 3, 4 }, (int64_t[]){ 2, 3 }), true);
    add_case(c, graph_slice(g, x, (int64_t[]){ 7, 0 }, (int64_t[]){ 0, 13 }, (int64_t[]){ 1, 1 }), true);
    add_case(c, graph_flip(g, x, 1), true);
    add_case(c, graph_flip(g, y, 3), true);
    add_case(c, graph_permute(g, r6, (int64_t[]){ 5, 0, 3, 2, 4, 1 }), true);
    add_case(c, graph_expand(g, r6, (int64_t[]){ 2, 3, 7, 2, 3, 5 }), true);
    add_case(c, graph_broadcast(g, s, 3, (int64_t[]){ 3, 1, 5 }), true);
    add_case(c, graph_reshape(g, y, 3, (int64_t[]){ 7, 1, 13 }), true);
    add_case(c, graph_reshape(g, graph_flip(g, r6, 9), 2, (int64_t[]){ 9, 20 }), true);
    add_case(c, graph_reshape(g, e, 3, (int64_t[]){ 5, 0, 2 }), true);
    add_case(c, graph_window(g, x, (window_axis[]){ { 0, 3, 2, 1 }, { 1, 2, 3, 4 } }, 2), true);
    add_case(c, graph_window(g, y, (window_axis[]){ { 1, 7, 1, 1 } }, 1), true);
    add_case(c, graph_concat(g, (val[]){ x, graph_permute(g, y, (int64_t[]){ 1, 0 }), e, x }, 1, 0), true);
    add_case(c,
             graph_concat(g, (val[]){ x, e, graph_slice(g, x, (int64_t[]){ 2, 0 }, (int64_t[]){ 5, 13 }, (int64_t[]){ 1, 1 }) },
                          3, 0),
             true);
    add_case(c, graph_concat(g, (val[]){ y, graph_flip(g, y, 2), y }, 3, 1), true);
    if (is_number(t)) {
        val w = input_of(c, t, 4, (int64_t[]){ 3, 3, 3, 2 }), w1 = input_of(c, t, 2, (int64_t[]){ 31, 3 });
        add_case(c, graph_fold(g, w, (window_axis[]){ { 0, 3, 2, 1 }, { 1, 2, 3, 4 } }, 2, (int64_t[]){ 7, 13 }),
                 dtype_is_int(t));
        add_case(c, graph_fold(g, w1, (window_axis[]){ { 0, 3, 1, 1 } }, 1, (int64_t[]){ 33 }), dtype_is_int(t));
    }
    run_cases(c, 3, (values[]){ FINITE, WIDE, SPECIAL });
}
static void test_moves(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(move_cases(a, t))
    finish("movement", bad);
}

static void indexed_case(cases *c, tn_dtype t, tn_dtype ti, int rank, const int64_t *dims, int rank_i, const int64_t *dims_i,
                         int axis) {
    c->index_of[c->g->inputs.n] = INDEX;
    val index = input_of(c, ti, rank_i, dims_i), x = input_of(c, t, rank, dims), picked = graph_gather(c->g, x, index, axis);
    add_case(c, picked, true);
    const node *n = graph_get(c->g, picked);
    val updates = input_of(c, t, n->rank, n->dims);
    if (is_number(t) || t == TN_BOOL) add_case(c, graph_scatter(c->g, OP_scatter_set, x, index, updates, axis, 0), true);
    if (!is_number(t)) return;
    add_case(c, graph_scatter_add(c->g, x, index, updates, axis, 0), dtype_is_int(t));
    add_case(c, graph_scatter(c->g, OP_scatter_mul, x, index, updates, axis, 0), dtype_is_int(t));
    add_case(c, graph_scatter(c->g, OP_scatter_max, x, index, updates, axis, 0), true);
    add_case(c, graph_scatter(c->g, OP_scatter_min, x, index, updates, axis, 0), true);
}
/* Leading axes that index and values have, too. */
static void batched_case(cases *c, tn_dtype t, tn_dtype ti, int rank, const int64_t *dims, int rank_i, const int64_t *dims_i,
                         int rank_u, const int64_t *dims_u, int axis, int batch) {
    c->index_of[c->g->inputs.n] = INDEX;
    val index = input_of(c, ti, rank_i, dims_i), x = input_of(c, t, rank, dims), u = input_of(c, t, rank_u, dims_u);
    if (is_number(t) || t == TN_BOOL) add_case(c, graph_scatter(c->g, OP_scatter_set, x, index, u, axis, batch), true);
    if (!is_number(t)) return;
    add_case(c, graph_scatter_add(c->g, x, index, u, axis, batch), dtype_is_int(t));
    add_case(c, graph_scatter(c->g, OP_scatter_max, x, index, u, axis, batch), true);
}
static void gather_cases(arena *a, tn_dtype t) {
    cases *c = cases_make(a, the_ctx);
    for (int k = 0; k < 2; k++) {
        tn_dtype ti = k ? TN_I64 : TN_I32;
        indexed_case(c, t, ti, 2, (int64_t[]){ 7, 5 }, 1, (int64_t[]){ 33 }, 0);
        indexed_case(c, t, ti, 3, (int64_t[]){ 3, 7, 2 }, 2, (int64_t[]){ 3, 5 }, 1);
        indexed_case(c, t, ti, 2, (int64_t[]){ 3, 13 }, 0, NULL, 1);
        indexed_case(c, t, ti, 1, (int64_t[]){ 9 }, 1, (int64_t[]){ 0 }, 0);
        indexed_case(c, t, ti, 1, (int64_t[]){ 1 }, 1, (int64_t[]){ 13 }, 0);
        batched_case(c, t, ti, 2, (int64_t[]){ 5, 7 }, 2, (int64_t[]){ 5, 33 }, 2, (int64_t[]){ 5, 33 }, 1, 1);
        batched_case(c, t, ti, 4, (int64_t[]){ 3, 2, 5, 3 }, 3, (int64_t[]){ 3, 4, 2 }, 5, (int64_t[]){ 3, 2, 4, 2, 3 }, 2, 1);
        batched_case(c, t, ti, 3, (int64_t[]){ 3, 2, 9 }, 2, (int64_t[]){ 3, 2 }, 2, (int64_t[]){ 3, 2 }, 2, 2);
    }
    run_cases(c, 3, (values[]){ FINITE, WIDE, RARE });
}
static void test_gather_scatter(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(gather_cases(a, t))
    finish("gather and scatters", bad);
}

static void source_cases(arena *a, tn_dtype t) {
    cases *c = cases_make(a, the_ctx);
    if (is_number(t)) {
        add_case(c, graph_iota(c->g, t, 2, (int64_t[]){ 7, 300 }, 1), true);
        add_case(c, graph_iota(c->g, t, 3, (int64_t[]){ 3, 5, 2 }, 1), true);
        add_case(c, graph_iota(c->g, t, 1, (int64_t[]){ 5000 }, 0), true);
        add_case(c, graph_iota(c->g, t, 2, (int64_t[]){ 3, 0 }, 0), true);
    }
    add_case(c, graph_splat(c->g, t, 2, (int64_t[]){ 3, 5 }, 1), true);
    if (t == TN_I64) {
        val counter = input_of(c, TN_I64, 0, NULL);
        static const int64_t streams[] = { 0, 1, -1, INT64_MAX, (int64_t)1 << 40 };
        for (size_t k = 0; k < COUNT_OF(streams); k++) {
            int64_t dims[2][3] = { { 1031 }, { 3, 7, 5 } };
            spec sp = { .op = OP_random,
                        .in = &counter,
                        .n_in = 1,
                        .rank = k % 2 ? 3 : 1,
                        .dims = dims[k % 2],
                        .attr = &streams[k],
                        .n_attr = 1 };
            add_case(c, graph_add(c->g, &sp), true);
        }
    }
    run_cases(c, 2, (values[]){ FINITE, WIDE });
}
static void test_sources(void **state) {
    (void)state;
    int bad = n_bad;
    EACH_DTYPE(source_cases(a, t))
    finish("iota, const and random", bad);
}

/* Axes of an operand by role: b batch, k contracted, other letters free; the axis order is that of the text. */
static const struct {
    const char *a, *b;
    int64_t b0, k, m, n;
} dots[] = {
    { "mk", "kn", 1, 13, 7, 33 },   { "km", "kn", 1, 13, 7, 33 },  { "mk", "nk", 1, 33, 13, 7 },  { "km", "nk", 1, 33, 33, 13 },
    { "bmk", "bkn", 3, 7, 5, 13 },  { "mbk", "nkb", 3, 7, 5, 13 }, { "kmb", "bnk", 3, 33, 7, 5 }, { "k", "k", 1, 1031, 1, 1 },
    { "mk", "k", 1, 33, 13, 1 },    { "k", "kn", 1, 13, 1, 33 },   { "m", "n", 1, 1, 7, 13 },     { "bk", "bk", 7, 13, 1, 1 },
    { "mk", "kn", 1, 0, 3, 5 },     { "mk", "kn", 1, 5, 0, 3 },    { "mk", "kn", 1, 1, 1, 1 },    { "mkl", "lkn", 1, 5, 7, 9 },
    { "cbmk", "bckn", 2, 5, 3, 7 }, { "mk", "kn", 1, 67, 65, 70 }, { "km", "nk", 1, 130, 9, 66 }, { "mkq", "pkn", 1, 5, 3, 4 },
};
static int64_t dot_dim(size_t k, char role) {
    switch (role) {
    case 'b':
        return dots[k].b0;
    case 'k':
        return dots[k].k;
    case 'm':
        return dots[k].m;
    case 'n':
        return dots[k].n;
    default:
        return role == 'c' ? 3 : role == 'l' ? 4 : 2;
    }
}
static void dot_case(cases *c, tn_dtype t, size_t k, bool view) {
    const char *text[2] = { dots[k].a, dots[k].b };
    int64_t dims[2][6], batch[2][6], contract[2][6];
    int nb = 0, nc = 0;
    val x[2];
    for (int j = 0; j < 2; j++) {
        int rank = (int)strlen(text[j]);
        for (int d = 0; d < rank; d++) dims[j][d] = dot_dim(k, text[j][d]);
        x[j] = view_of(c, t, rank, dims[j], !view ? PLAIN : j ? SLICE : FLIP);
    }
    for (const char *p = text[0]; *p; p++) {
        const char *q = strchr(text[1], *p);
        if (!q) continue;
        bool is_batch = *p == 'b' || *p == 'c';
        (is_batch ? batch : contract)[0][is_batch ? nb : nc] = p - text[0];
        (is_batch ? batch : contract)[1][is_batch ? nb++ : nc++] = q - text[1];
    }
    add_case(c, graph_dot(c->g, x[0], x[1], batch[0], batch[1], nb, contract[0], contract[1], nc), dtype_is_int(t));
}
static void dot_cases(arena *a, tn_dtype t, bool view) {
    cases *c = cases_make(a, the_ctx);
    for (size_t k = 0; k < COUNT_OF(dots); k++) dot_case(c, t, k, view);
    run_cases(c, 4, (values[]){ FINITE, WIDE, RARE, SPECIAL });
}
static void test_dots(void **state) {
    (void)state;
    int bad = n_bad;
    for (int view = 0; view < 2; view++) EACH_DTYPE(if (is_number(t)) dot_cases(a, t, view != 0))
    finish("dot", bad);
}

static int setup(void **state) {
    (void)state;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU") };
    the_ctx = tn_ctx_new(&cfg);
    chance = rng_make(12345);
    return the_ctx ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    tn_ctx_free(the_ctx);
    printf("count: %d op x dtype x shape cases, %d comparisons, %d failed\n", n_cases, n_checked, n_bad);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise_values),
        cmocka_unit_test(test_elementwise_shapes),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(test_rounding_ties),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_gather_scatter),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_dots),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
