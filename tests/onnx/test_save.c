/* test_save.c - graphs out and back: random graphs as models of ONNX, imported again, give the same values; constants in the
 * file and beside it; the training form; what has no form is refused; every failing allocation. label: random */
#include "io/io_test.h"
#include "support/plan_run.h"
#include "tenon/tenon_ir.h"
#include "tenon/tenon_nn.h"
#include "tenon/tenon_onnx.h"

#include <math.h>

/* Random values for all inputs: the same for both graphs. */
static int bind_inputs(tn_graph *g, uint64_t seed, tn_binding *b, int room) {
    int n = 0;
    for (int i = 0; i < tn_ir_n_values(g); i++) {
        tn_ir_value v;
        assert_int_equal(tn_ir_get_value(g, i, &v), TN_OK);
        if (strcmp(v.op, "input")) continue;
        assert_true(n < room);
        size_t bytes = tn_tensor_bytes(v.tensor), size = tn_dtype_size(v.dtype);
        char *data = calloc(bytes + 1, 1);
        uint64_t own = seed;
        for (const char *c = v.name; *c; c++) own = own * 31 + (uint64_t)*c;
        for (size_t k = 0; k < bytes / size; k++) {
            double x = v.dtype == TN_BOOL                                  ? rnd_below(&own, 2)
                       : tn_dtype_get_info(v.dtype)->kind == TN_KIND_FLOAT ? (rnd_below(&own, 4001) - 2000) / 1000.0
                       : tn_dtype_size(v.dtype) == 1 || tn_dtype_get_info(v.dtype)->kind == TN_KIND_UINT
                           ? rnd_below(&own, 100)
                           : rnd_below(&own, 40) - 5;
            tn_ir_store(v.dtype, data, (int64_t)k, x);
        }
        b[n++] = (tn_binding){ v.name, data };
    }
    return n;
}

typedef struct tally {
    int outputs, exact, graphs;
    int64_t elements;
} tally;

/* Every output and state update of g against the output of that name of back. */
static void assert_same(tn_graph *g, tn_graph *back, uint64_t seed, tally *t) {
    tn_binding in[64], in_back[64];
    tn_ir_eval *e, *e_back;
    int n = bind_inputs(g, seed, in, 64), n_back = bind_inputs(back, seed, in_back, 64);
    assert_int_equal(tn_ir_evaluate(g, in, n, &e), TN_OK);
    if (tn_ir_evaluate(back, in_back, n_back, &e_back)) fail_msg("%s", tn_ctx_error(tn_graph_ctx(back)));
    for (int i = 0; i < tn_ir_n_outputs(g); i++) {
        const char *name, *other;
        tn_tensor v, state, w = { NULL, 0 };
        char next[256];
        assert_int_equal(tn_ir_get_output(g, i, &name, &v, &state), TN_OK);
        if (!name) snprintf(next, sizeof next, "%s.next", tn_tensor_name(state));
        for (int k = 0; k < tn_ir_n_outputs(back); k++)
            if (!tn_ir_get_output(back, k, &other, &w, NULL) && !strcmp(other, name ? name : next)) break;
        int64_t count, count_back;
        const double *x = tn_ir_eval_values(e, v, &count), *y = tn_ir_eval_values(e_back, w, &count_back);
        assert_non_null(x), assert_non_null(y);
        assert_int_equal(count, count_back);
        assert_int_equal(tn_tensor_dtype(v), tn_tensor_dtype(w));
        bool exact = true;
        for (int64_t k = 0; k < count; k++) {
            bool same = x[k] == y[k] || (isnan(x[k]) && isnan(y[k]));
            double bound = tn_tensor_dtype(v) <= TN_BF16 ? 1e-9 * (1 + fabs(x[k])) : 0;
            exact &= same;
            if (!same && !(fabs(x[k] - y[k]) <= bound))
                fail_msg("seed %llu, output %s[%lld]: %.17g became %.17g", (unsigned long long)seed, name ? name : next,
                         (long long)k, x[k], y[k]);
        }
        t->outputs++, t->exact += exact, t->elements += count;
    }
    t->graphs++;
    tn_ir_eval_free(e), tn_ir_eval_free(e_back);
    for (int i = 0; i < n; i++) free(in[i].data);
    for (int i = 0; i < n_back; i++) free(in_back[i].data);
}

/* The graph of a seed out and back, evaluated; its outputs and next states within the bounds that an error analysis proves:
 * what is known at import is rounded to its dtype there. */
static void there_and_back(tn_ctx *ctx, uint64_t seed, tally *t) {
    arena a;
    guard gd;
    str text;
    char why[512];
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
    randgraph_opts o = { .no_random = true, .no_bitcast = true, .dtypes = ~(1u << TN_F8E4M3 | 1u << TN_F8E5M2 | 1u << TN_U64) };
    /* operator set 18 lacks the first two; tn_ir_eval_values has no words of 64 bits: test_u64 */
    graph *g = randgraph(&a, seed, &o);
    const reference ref = reference_make(g, &a, seed);
    str_init(&text, &a);
    graph_print(g, &text);
    tn_graph *out = tn_graph_parse(ctx, text.s, text.n, "random"), *back = NULL;
    tn_onnx_save_opts save = TN_ONNX_SAVE_DEFAULTS;
    save.training = 1, save.external = seed % 5 == 0;
    if (!out || tn_onnx_save(out, in_dir("g.onnx"), &save) || tn_onnx_load(ctx, in_dir("g.onnx"), NULL, &back))
        fail_msg("seed %llu: %s", (unsigned long long)seed, tn_ctx_error(ctx));
    tn_binding in[64];
    int n = 0;
    for (int i = 0; i < g->inputs.n; i++)
        if (graph_get(g, g->inputs.at[i])->op == OP_input)
            in[n++] = (tn_binding){ graph_get(g, g->inputs.at[i])->name, ref.in.data[i] };
    tn_ir_eval *e;
    if (tn_ir_evaluate(back, in, n, &e)) fail_msg("seed %llu: %s", (unsigned long long)seed, tn_ctx_error(ctx));
    for (int i = 0; i < g->outputs.n; i++) {
        const output *w = &g->outputs.at[i];
        char next[256];
        tn_tensor v = { NULL, 0 };
        const char *other;
        int64_t count;
        if (!w->name) snprintf(next, sizeof next, "%s.next", graph_get(g, w->state)->name);
        for (int k = 0; k < tn_ir_n_outputs(back); k++)
            if (!tn_ir_get_output(back, k, &other, &v, NULL) && !strcmp(other, w->name ? w->name : next)) break;
        const double *x = tn_ir_eval_values(e, v, &count);
        tn_dtype type = (tn_dtype)graph_get(g, w->v)->dtype;
        assert_non_null(x);
        assert_int_equal(count, graph_elems(g, w->v));
        assert_int_equal(type, tn_tensor_dtype(v));
        char *typed = arena_alloc(&a, (size_t)count * 8 + 8), *want = arena_alloc(&a, (size_t)count * 8 + 8);
        for (int64_t k = 0; k < count; k++) tn_ir_store(type, typed, k, x[k]);
        eval_store(g, w->v, ref.want[w->v], want);
        if (compare(g, w->v, typed, ref.want[w->v], ref.bound[w->v], 4, why, sizeof why) >= 0)
            fail_msg("seed %llu, %s: %s", (unsigned long long)seed, w->name ? w->name : next, why);
        t->outputs++, t->exact += !memcmp(typed, want, (size_t)count * dtype_size(type)), t->elements += count;
    }
    t->graphs++;
    tn_ir_eval_free(e), tn_graph_free(out), tn_graph_free(back);
    arena_fini(&a);
}

/* Words of 64 bits are no doubles: the graph and what comes back from the file, compiled, bit by bit. */
static void test_u64(void **state) {
    (void)state;
    enum { N = 64 };
    static const char text[] =
        "graph @g(x u64[64], y u64[64]) {\n  %1 = add x, y u64[64]\n  %2 = sub x, y\n  %3 = mul x, y\n"
        "  %4 = div x, y\n  %5 = mod x, y\n  %6 = neg x\n  %7 = max x, y\n  %8 = min x, y\n"
        "  %9 = and x, y\n  %10 = mod y, 70\n  %11 = shift_left x, %10\n  %12 = shift_right x, %10\n"
        "  %13 = lt x, y bool[64]\n  %14 = select %13, %11, %12 u64[64]\n"
        "  %15 = sum x axes=[0] u64[1]\n  %16 = reduce_max x axes=[0] u64[1]\n  %17 = abs x u64[64]\n"
        "  %18 = sign x u64[64]\n"
        "  %20 = concat %1, %2, %3, %4, %5, %6, %7, %8, %9, %11, %12, %14, %15, %16, %17, %18 axis=0 u64[898]\n"
        "  return %20 as \"z\"\n}\n";
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g[2] = { tn_graph_parse(ctx, text, sizeof text - 1, "u64"), NULL };
    uint64_t x[N], y[N], z[2][14 * N + 2], seed = 5;
    for (int i = 0; i < N; i++)
        x[i] = rnd(&seed) >> rnd_below(&seed, 64), y[i] = i % 9 ? rnd(&seed) >> rnd_below(&seed, 64) : i % 2;
    if (!g[0] || tn_onnx_save(g[0], in_dir("u64.onnx"), NULL) || tn_onnx_load(ctx, in_dir("u64.onnx"), NULL, &g[1]))
        fail_msg("%s", tn_ctx_error(ctx));
    for (int k = 0; k < 2; k++) {
        tn_program *p;
        tn_session *s;
        if (tn_compile(g[k], NULL, &p) || tn_session_new(p, &s) || tn_run(s, TN_BIND({ "x", x }, { "y", y }, { "z", z[k] })))
            fail_msg("%s", tn_ctx_error(ctx));
        tn_session_free(s), tn_program_free(p), tn_graph_free(g[k]);
    }
    for (int i = 0; i < 14 * N + 2; i++)
        if (z[0][i] != z[1][i])
            fail_msg("[%d]: %#llx, expected %#llx", i, (unsigned long long)z[1][i], (unsigned long long)z[0][i]);
    for (int i = 0; i < N; i++) assert_true(z[0][N + i] == x[i] - y[i]);
    tn_ctx_free(ctx);
    test_dir_remove();
}

static void test_random_graphs(void **state) {
    (void)state;
    uint64_t first, seeds = fuzz_seeds(500, &first);
    tally t = { 0 };
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (uint64_t seed = first; seed < first + seeds; seed++) there_and_back(ctx, seed, &t);
    printf("count: %d random graphs to ONNX and back, %d outputs (%d with every bit) of %lld elements\n", t.graphs, t.outputs,
           t.exact, (long long)t.elements);
    assert_true(t.exact * 10 > t.outputs * 8);
    tn_ctx_free(ctx);
    test_dir_remove();
}

/* What random graphs seldom have: conditions, loops, scatters along inner axes, folds. */
static void test_texts(void **state) {
    (void)state;
    static const char *const texts[] = {
        "graph @loop(x f32[3]) {\n"
        "  region @more(%p1 i64[], %p2 f32[3]) {\n    %c = lt %p1, 4 bool[]\n    return %c\n  }\n"
        "  region @turn(%q1 i64[], %q2 f32[3]) {\n    %n = add %q1, 1 i64[]\n    %w = mul %q2, 1.5 f32[3]\n    return %n, %w\n "
        " }\n"
        "  %z = const 1 i64[]\n  %r = while %z, x cond=@more body=@turn i64[]\n  %p = proj %r index=1 f32[3]\n"
        "  return %r as \"n\", %p as \"y\"\n}\n",
        "graph @if(c bool[], x f32[2,2]) {\n"
        "  region @then(%a f32[2,2]) {\n    %b = exp %a f32[2,2]\n    return %b\n  }\n"
        "  region @else(%d f32[2,2]) {\n    %e = neg %d f32[2,2]\n    return %e\n  }\n"
        "  %r = if c, x then=@then else=@else f32[2,2]\n  return %r as \"y\"\n}\n",
        "graph @scatter(x f32[2,4,3], i i64[2,5], u f32[2,5,3]) {\n"
        "  %r = scatter_add x, i, u axis=1 batch=1 f32[2,4,3]\n  return %r as \"y\"\n}\n",
        "graph @set(x f32[2,4,3], i i64[2,5], u f32[2,5,3]) {\n"
        "  %r = scatter_set x, i, u axis=1 batch=1 f32[2,4,3]\n  return %r as \"y\"\n}\n",
        "graph @fold(x f64[2,3,4,2,3]) {\n"
        "  %r = fold x (axis=1 size=2 stride=2 dilation=1) (axis=2 size=3 stride=1 dilation=2) f64[2,6,8]\n  return %r as "
        "\"y\"\n}\n",
        "graph @ints(x i32[6], y i32[6], b i8[6], c u8[6]) {\n"
        "  %q = div x, y i32[6]\n  %m = mod x, y i32[6]\n  %s = add b, b i8[6]\n  %t = mul c, c u8[6]\n  %f = flip b axes=[0] "
        "i8[6]\n"
        "  return %q as \"q\", %m as \"m\", %s as \"s\", %t as \"t\", %f as \"f\"\n}\n",
        "graph @names(\"%x\" f32[2], \"%%y\" f32[2]) {\n  %1 = add \"%x\", \"%%y\" f32[2]\n  return %1 as \"%1\", \"%x\" as "
        "\"same\"\n}\n",
    };
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    tally t = { 0 };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tn_graph *g = tn_graph_parse(ctx, texts[i], strlen(texts[i]), "text"), *back;
        if (!g) fail_msg("%s", tn_ctx_error(ctx));
        if (tn_onnx_save(g, in_dir("g.onnx"), NULL)) fail_msg("%s", tn_ctx_error(ctx));
        if (tn_onnx_load(ctx, in_dir("g.onnx"), NULL, &back)) fail_msg("%s", tn_ctx_error(ctx));
        for (uint64_t seed = 1; seed < 6; seed++) assert_same(g, back, seed, &t);
        tn_graph_free(g), tn_graph_free(back);
    }
    assert_true(t.exact == t.outputs);
    tn_ctx_free(ctx);
    test_dir_remove();
}

/* Where erfc is small the exported one is still relatively near: constants, which import computes step by step in their type.
 */
static void test_erfc(void **state) {
    (void)state;
    static const struct {
        tn_dtype type;
        double ulp, least; /* spacing of numbers from 1 to 2; the least normal number */
    } types[] = { { TN_F64, 0x1p-52, 0x1p-1022 },
                  { TN_F32, 0x1p-23, 0x1p-126 },
                  { TN_F16, 0x1p-10, 0x1p-14 },
                  { TN_BF16, 0x1p-7, 0x1p-126 } };
    enum { N = 2003 };
    static const double special[] = { 0, -0.0, INFINITY, -INFINITY, NAN, 28, -28, 1e-30 };
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed;
    fuzz_seeds(1, &seed);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        double x[N], worst = 0;
        char data[N * 8];
        for (int i = 0; i < N; i++) {
            x[i] = i < 8 ? special[i] : (rnd_below(&seed, 1 << 30) * 0x1p-30 - 0.2) * (types[k].type == TN_F64 ? 33 : 12);
            tn_ir_store(types[k].type, data, i, x[i]), x[i] = tn_ir_load(types[k].type, data, i);
        }
        tn_graph *g = tn_graph_new(ctx, "erfc"), *back;
        tn_output(tn_erfc(tn_const(g, types[k].type, TN_DIMS(N), data)), "y");
        if (tn_onnx_save(g, in_dir("e.onnx"), NULL) || tn_onnx_load(ctx, in_dir("e.onnx"), NULL, &back))
            fail_msg("%s", tn_ctx_error(ctx));
        tn_ir_eval *e;
        tn_tensor y;
        int64_t count;
        assert_int_equal(tn_ir_get_output(back, 0, NULL, &y, NULL), TN_OK);
        assert_int_equal(tn_ir_evaluate(back, NULL, 0, &e), TN_OK);
        const double *got = tn_ir_eval_values(e, y, &count);
        assert_int_equal(count, N);
        for (int i = 0; i < N; i++) {
            double want = erfc(x[i]), room = types[k].ulp * fmax(want, types[k].least);
            if (isnan(x[i]) ? !isnan(got[i]) : !(fabs(got[i] - want) <= 8 * room))
                fail_msg("type %d, erfc(%.17g): %.17g, not %.17g", types[k].type, x[i], got[i], want);
            if (!isnan(x[i])) worst = fmax(worst, fabs(got[i] - want) / room);
        }
        printf("count: %d values of an exported erfc of type %d, the worst %.2f ULP off\n", N, types[k].type, worst);
        tn_ir_eval_free(e), tn_graph_free(g), tn_graph_free(back);
    }
    tn_ctx_free(ctx);
    test_dir_remove();
}

static tn_graph *trained(tn_ctx *ctx) {
    tn_graph *g = tn_graph_new(ctx, "net");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(4, 6)), t = tn_input(g, "t", TN_I32, TN_DIMS(4));
    tn_tensor y = tn_nn_linear(tn_relu(tn_nn_linear(x, 5, "fc1")), 3, "fc2");
    tn_output(y, "y");
    tn_tensor loss = tn_nn_cross_entropy(y, t);
    tn_output(loss, "loss");
    tn_nn_adam(loss, (tn_nn_adam_opts){ .lr = 0.01 });
    return g;
}

static void test_forms(void **state) {
    (void)state;
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = trained(ctx), *back;
    tn_onnx_model *m;
    tn_onnx_save_opts o = TN_ONNX_SAVE_DEFAULTS;
    assert_int_equal(tn_onnx_save(g, in_dir("i.onnx"), &o), TN_OK); /* inference: two inputs, two outputs */
    assert_int_equal(tn_onnx_open(ctx, in_dir("i.onnx"), &m), TN_OK);
    assert_int_equal(tn_onnx_n_inputs(m), 2);
    assert_int_equal(tn_onnx_n_outputs(m), 2);
    tn_onnx_opts as_params = TN_ONNX_DEFAULTS;
    as_params.parameters = 1;
    assert_int_equal(tn_onnx_import(m, &as_params, &back), TN_OK);
    assert_int_equal(tn_graph_n_params(back), 4); /* they can be trained again */
    tn_graph_free(back);
    tn_onnx_model_free(m);
    o.training = 1;
    assert_int_equal(tn_onnx_save(g, in_dir("t.onnx"), &o), TN_OK);
    assert_int_equal(tn_onnx_load(ctx, in_dir("t.onnx"), NULL, &back), TN_OK);
    tally t = { 0 };
    assert_same(g, back, 7, &t);
    assert_int_equal(t.outputs, tn_ir_n_outputs(g));
    assert_true(t.outputs > 12);
    tn_graph_free(back), tn_graph_free(g);
    g = tn_graph_new(ctx, "r");
    tn_output(tn_random_uniform(tn_input(g, "n", TN_I64, TN_SCALAR), 0, TN_DIMS(3)), "y");
    assert_fails(ctx, tn_onnx_save(g, in_dir("r.onnx"), NULL), TN_ERR_UNSUPPORTED, "random numbers have no form",
                 "random numbers");
    assert_int_equal(access(in_dir("r.onnx"), F_OK), -1);
    tn_graph_free(g);
    g = trained(ctx);
    assert_fails(ctx, tn_onnx_save(g, "/nowhere/at/all.onnx", NULL), TN_ERR_IO, "cannot write", "no such folder");
    assert_fails(ctx, tn_onnx_save(g, NULL, NULL), TN_ERR_INVAL, "path is NULL", "no path");
    tn_graph_free(g);
    tn_ctx_free(ctx);
    test_dir_remove();
}

/* ---- sizes of a run ---- */

static tn_tensor heads_of(tn_tensor x, int64_t heads) { /* [b,l,h*d] to [b,h,l,d] */
    tn_shape s = tn_tensor_shape(x);
    return tn_transpose(tn_reshape(x, TN_DIMS(s.dim[0], s.dim[1], heads, s.dim[2] / heads)), 1, 2);
}
static tn_tensor block(tn_tensor x) {
    tn_tensor n = tn_nn_layer_norm(x, 0, "n"), q = heads_of(tn_nn_linear(n, 16, "q"), 2),
              k = heads_of(tn_nn_linear(n, 16, "k"), 2);
    tn_tensor a = tn_nn_attention(q, k, heads_of(tn_nn_linear(n, 16, "v"), 2), 1);
    return tn_add(x, tn_reshape(tn_transpose(a, 1, 2), tn_tensor_shape(x)));
}
/* x f32[b,l,16], at i64[b] */
static void open_outputs(tn_graph *g, tn_tensor x, tn_tensor at) {
    int64_t b = tn_tensor_shape(x).dim[0], l = tn_tensor_shape(x).dim[1];
    tn_tensor y = block(x), flat = tn_reshape(y, TN_DIMS(tn_dim_mul(g, b, l), 16));
    tn_output(y, "block");
    tn_output(tn_slice(y, (int64_t[]){ 0, 0, 1 }, (int64_t[]){ b, l, 16 }, (int64_t[]){ 1, 2, 2 }, 3), "every second");
    tn_output(tn_pad(y, (int64_t[]){ 0, 1, 0 }, (int64_t[]){ 1, 2, 0 }, 3, 0.5), "padded");
    tn_output(tn_concat((tn_tensor[]){ flat, flat }, 2, 0), "both");
    tn_output(tn_gather(flat, at, 0), "rows");
    tn_output(tn_mul(tn_mean(y, TN_INTS(1), 0), tn_cast(tn_dim_value(g, tn_dim_max(g, b, l)), TN_F32)), "mean");
    tn_output(tn_iota(g, TN_I32, TN_DIMS(b, tn_dim_min(g, b, tn_dim_floor_div(g, tn_dim_add(g, l, 3), 2)), 3), 1), "counted");
}

static long count_failing(tn_ctx *ctx, counting *c, const tn_graph *g) {
    assert_int_equal(tn_onnx_save(g, in_dir("a.onnx"), NULL), TN_OK); /* proofs of sizes leave the graph memory for more */
    long used = 0, k = 0;
    for (; used >= k; k++) {
        size_t live = c->live;
        c->requests = 0, c->fail_at = k;
        tn_status s = tn_onnx_save(g, in_dir("a.onnx"), NULL);
        used = c->requests;
        c->fail_at = -1;
        if (s != TN_OK && s != TN_ERR_NOMEM) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(c->live, live);
    }
    assert_true(k > 3);
    return k;
}
static void test_allocations(void **state) {
    (void)state;
    test_dir_make();
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    tn_graph *g = trained(ctx), *open = tn_graph_new(ctx, "open");
    int64_t b = tn_dim(open, "batch", 1, 5, 1), l = tn_dim(open, "length", 1, 9, 1);
    open_outputs(open, tn_input(open, "x", TN_F32, TN_DIMS(b, l, 16)), tn_input(open, "at", TN_I64, TN_DIMS(b)));
    long k = count_failing(ctx, &c, g), of_run = count_failing(ctx, &c, open);
    printf("count: %ld failing allocations of an ONNX export, %ld of one with sizes of a run\n", k, of_run);
    tn_graph_free(g), tn_graph_free(open);
    tn_ctx_free(ctx);
    test_dir_remove();
}

static tn_session *session_of(tn_ctx *ctx, tn_graph *g, tn_program **p) {
    tn_session *s;
    if (tn_compile(g, NULL, p) || tn_session_new(*p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    return s;
}
static void test_open_dims(void **state) {
    (void)state;
    enum { B = 5, L = 9, OUTPUTS = 7 };
    static const int64_t sizes[][2] = { { 1, 1 }, { 5, 9 }, { 3, 2 }, { 2, 7 }, { 4, 4 } };
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(ctx, "open"), *back;
    tn_graph_set_seed(g, 3);
    int64_t b = tn_dim(g, "batch", 1, B, 1), l = tn_dim(g, "length", 1, L, 1);
    open_outputs(g, tn_input(g, "x", TN_F32, TN_DIMS(b, l, 16)), tn_input(g, "at", TN_I64, TN_DIMS(b)));
    char text[16];
    assert_int_equal(tn_dim_text(g, tn_dim_mul(g, b, l), text, sizeof text), 12);
    assert_string_equal(text, "batch*length");
    assert_int_equal(tn_dim_text(g, b, text, 3), 5);
    assert_string_equal(text, "ba");
    assert_int_equal(tn_dim_text(g, 12, NULL, 0), 2);
    assert_int_equal(tn_dim_text(g, INT64_MIN + 9999, text, sizeof text), 0);
    assert_string_equal(text, "");
    tn_ir_dim d;
    assert_int_equal(tn_ir_get_dim(g, 12, &d), TN_ERR_INVAL);
    assert_int_equal(tn_ir_get_dim(g, INT64_MIN + 9999, &d), TN_ERR_INVAL);
    assert_int_equal(tn_ir_get_dim(g, l, &d), TN_OK);
    assert_string_equal(d.name, "length");
    assert_int_equal(d.hi, L);
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    o.ranges = (tn_onnx_range[]){ { "batch", 1, B, 1 }, { "length", 1, L, 1 } }, o.n_ranges = 2;
    if (tn_onnx_save(g, in_dir("open.onnx"), NULL) || tn_onnx_load(ctx, in_dir("open.onnx"), &o, &back))
        fail_msg("%s", tn_ctx_error(ctx));
    tn_program *p[2];
    tn_session *s[2] = { session_of(ctx, g, &p[0]), session_of(ctx, back, &p[1]) };
    static float x[B * L * 16];
    static char out[2][OUTPUTS][B * L * 16 * 2 * 4 + 4096];
    int64_t at[B] = { 0, 3, 100, -2, 7 };
    uint64_t seed = 8;
    for (size_t i = 0; i < B * L * 16; i++) x[i] = (float)rnd_below(&seed, 1000) / 500 - 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(out, 0, sizeof out);
        for (int k = 0; k < 2; k++) {
            char(*y)[sizeof out[0][0]] = out[k];
            if (tn_bind_dim(s[k], "batch", sizes[i][0]) || tn_bind_dim(s[k], "length", sizes[i][1]) ||
                tn_run(s[k], TN_BIND({ "x", x }, { "at", at }, { "block", y[0] }, { "every second", y[1] }, { "padded", y[2] },
                                     { "both", y[3] }, { "rows", y[4] }, { "mean", y[5] }, { "counted", y[6] })))
                fail_msg("%s", tn_ctx_error(ctx));
        }
        for (int k = 0; k < OUTPUTS - 1; k++)
            for (size_t j = 0; j < sizeof out[0][0] / 4; j++) {
                float u, v;
                memcpy(&u, out[0][k] + 4 * j, 4), memcpy(&v, out[1][k] + 4 * j, 4);
                if (!(fabsf(u - v) <= 1e-5F * (1 + fabsf(u))))
                    fail_msg("%d x %d, output %d[%zu]: %g became %g", (int)sizes[i][0], (int)sizes[i][1], k, j, (double)u,
                             (double)v);
            }
        assert_memory_equal(out[0][OUTPUTS - 1], out[1][OUTPUTS - 1], sizeof out[0][0]);
    }
    for (int k = 0; k < 2; k++) tn_session_free(s[k]), tn_program_free(p[k]);
    tn_graph_free(g), tn_graph_free(back);
    /* a size that no input has */
    g = tn_graph_new(ctx, "twice");
    b = tn_dim(g, "batch", 1, B, 1);
    tn_tensor y = tn_input(g, "x", TN_F32, TN_DIMS(tn_dim_mul(g, b, 2)));
    tn_output(tn_reshape(y, TN_DIMS(b, 2)), "y");
    assert_int_equal(tn_onnx_save(g, in_dir("twice.onnx"), NULL), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_ctx_error(ctx), "no axis of an input has the size batch"));
    tn_graph_free(g);
    tn_ctx_free(ctx);
    test_dir_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_erfc), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_u64),  cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_open_dims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
