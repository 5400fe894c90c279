/* test_control.c - if, while and scan in compiled programs: graphs by hand and random ones with nested bodies give the
 * evaluator's values, exactly, in every mode, at every fusion level, with one thread and several, also many steps
 * in one call over rings; their plans print, read back, verify and evaluate, those for GPUs, too. TENON_DEVICE: on that device.
 *
 * Values are whole numbers below 2^24 in f32 and i64, so that no rounding hides a wrong order.
 * Labels: random threads
 * TENON_FUZZ_SEEDS: how many random graphs (default 300), a tenth of them where code is made by the C compiler (TENON_CPU=c);
 * TENON_FUZZ_FIRST: the first seed. A short campaign: a third of the values for graphs by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/plan_run.h"

static const char *const graphs[] = {
    /* both parts, results that are parameters, one that nobody reads */
    "graph @choice(c bool[], x f32[5], n i64[]) {\n"
    "  region @yes(%a f32[5], %b i64[]) {\n    %y = mul %a, 2.0\n    %m = add %b, 1\n    return %m, %y, %b\n  }\n"
    "  region @no(%p f32[5], %q i64[]) {\n    return %q, %p, %q\n  }\n"
    "  %1 = if c, x, n then=@yes else=@no i64[]\n  %2 = proj %1 index=1 f32[5]\n  %3 = add %2, x\n"
    "  return %1 as \"m\", %3 as \"y\", %2 as \"z\"\n}\n",
    /* the state changes places: Fibonacci's numbers */
    "graph @fibonacci(n i64[]) {\n  %1 = const 0 i64[]\n  %2 = const 1 i64[]\n"
    "  region @c(%ca i64[], %cb i64[], %ci i64[]) {\n    %ct = gt %ci, 0\n    return %ct\n  }\n"
    "  region @b(%ba i64[], %bb i64[], %bi i64[]) {\n    %bs = add %ba, %bb\n    %bn = sub %bi, 1\n    return %bb, %bs, %bn\n  "
    "}\n"
    "  %3 = while %1, %2, n cond=@c body=@b i64[]\n  %4 = proj %3 index=1 i64[]\n  return %3 as \"f\", %4 as \"next\"\n}\n",
    /* swapped in each iteration; the same result under two names; a condition that is part of the state */
    "graph @swap(x f32[3,4], y f32[3,4]) {\n  %1 = const true bool[]\n  %2 = const 7 i64[]\n"
    "  region @c(%ca f32[3,4], %cb f32[3,4], %cg bool[], %ci i64[]) {\n    return %cg\n  }\n"
    "  region @b(%ba f32[3,4], %bb f32[3,4], %bg bool[], %bi i64[]) {\n    %bn = sub %bi, 1\n    %bt = gt %bn, 0\n"
    "    return %bb, %ba, %bt, %bn\n  }\n"
    "  %3 = while x, y, %1, %2 cond=@c body=@b f32[3,4]\n  %4 = proj %3 index=1 f32[3,4]\n  %5 = proj %3 index=1 f32[3,4]\n"
    "  %6 = proj %3 index=0 f32[3,4]\n  return %3 as \"a\", %4 as \"b\", %5 as \"again\", %6 as \"first\"\n}\n",
    /* no iteration; results that are constants, ranges and views */
    "graph @views(x f32[2,6]) {\n  %1 = const 9 i64[]\n"
    "  region @c(%ca i64[], %cx f32[2,6]) {\n    %ct = lt %ca, 3\n    return %ct\n  }\n"
    "  region @b(%ba i64[], %bx f32[2,6]) {\n    %bn = add %ba, 1\n    return %bn, %bx\n  }\n"
    "  %2 = while %1, x cond=@c body=@b i64[]\n  %3 = proj %2 index=1 f32[2,6]\n  %4 = gt %2, 0\n"
    "  region @yes(%p f32[2,6]) {\n    %q = reshape %p f32[3,4]\n    %r = const 2.0 f32[4]\n    return %q, %r\n  }\n"
    "  region @no(%s f32[2,6]) {\n    %t = const 1.0 f32[3,4]\n    %u = iota axis=0 f32[4]\n    return %t, %u\n  }\n"
    "  %5 = if %4, %3 then=@yes else=@no f32[3,4]\n  %6 = proj %5 index=1 f32[4]\n  %7 = reshape %5 f32[12]\n"
    "  return %6 as \"r\", %7 as \"q\", %2 as \"n\"\n}\n",
    /* a state that no iteration changes, which is used up in each one otherwise */
    "graph @scan(x f32[6], b f32[6]) {\n  %1 = const 0 i64[]\n  %2 = floor x\n  %3 = floor b\n"
    "  region @c(%ci i64[], %cx f32[6], %cb f32[6]) {\n    %ct = lt %ci, 5\n    return %ct\n  }\n"
    "  region @s(%bi i64[], %bx f32[6], %bb f32[6]) {\n    %bn = add %bi, 1\n    %bm = mul %bx, 2.0\n    %by = add %bm, %bb\n"
    "    return %bn, %by, %bb\n  }\n"
    "  %4 = while %1, %2, %3 cond=@c body=@s i64[]\n  %5 = proj %4 index=1 f32[6]\n  return %5 as \"y\"\n}\n",
    /* a condition that the loop carries on: no launch in it reads that, and its memory must stay */
    "graph @carried(c bool[], x f32[3,64]) {\n  %1 = const 4 i64[]\n  %2 = floor x\n  %3 = not c\n"
    "  region @c(%ci i64[], %cx f32[3,64], %cg bool[]) {\n    %ct = gt %ci, 0\n    return %ct\n  }\n"
    "  region @yes(%p f32[3,64], %q f32[3,64]) {\n    return %p\n  }\n"
    "  region @no(%s f32[3,64], %t f32[3,64]) {\n    return %t\n  }\n"
    "  region @b(%bi i64[], %bx f32[3,64], %bg bool[]) {\n    %bn = sub %bi, 1\n    %b1 = sum %bx axes=[0] f32[1,64]\n"
    "    %b2 = expand %b1 f32[3,64]\n    %b3 = max %b2, -64.0\n    %b4 = min %b3, 64.0\n"
    "    %b5 = if %bg, %b4, %bx then=@yes else=@no f32[3,64]\n    return %bn, %b5, %bg\n  }\n"
    "  %4 = while %1, %2, %3 cond=@c body=@b i64[]\n  %5 = proj %4 index=1 f32[3,64]\n"
    "  return %5 as \"y\", %4 as \"n\"\n}\n",
    /* a training loop inside a step: the state of the session goes through a while; arrays without elements go along */
    "graph @train(x f32[17,5], state w f32[5,1], state n i64[]) {\n  %1 = const 0 i64[]\n  %2 = const 0.0 f32[0,3]\n"
    "  region @c(%ci i64[], %cw f32[5,1], %cx f32[17,5], %ce f32[0,3]) {\n    %ct = lt %ci, 4\n    return %ct\n  }\n"
    "  region @b(%bi i64[], %bw f32[5,1], %bx f32[17,5], %be f32[0,3]) {\n    %bn = add %bi, 1\n"
    "    %b1 = dot %bx, %bw contract=[1]x[0] f32[17,1]\n    %b2 = max %b1, -1.0\n    %b3 = min %b2, 1.0\n"
    "    %b4 = dot %bx, %b3 contract=[0]x[0] f32[5,1]\n    %b5 = sub %bw, %b4\n    %b6 = floor %b5\n    %b7 = max %b6, -64.0\n"
    "    %b8 = min %b7, 64.0\n    %b9 = neg %be\n    return %bn, %b8, %bx, %b9\n  }\n"
    "  %3 = floor x\n  %4 = while %1, w, %3, %2 cond=@c body=@b i64[]\n  %5 = proj %4 index=1 f32[5,1]\n"
    "  %6 = proj %4 index=3 f32[0,3]\n  %7 = add n, %4\n  return %5 as \"w\", %6 as \"empty\", %5 -> w, %7 -> n\n}\n",
    /* states that change places, or stay; one that takes what the other was; values of an if, of a while that does nothing */
    "graph @places(c bool[], state a f32[3], state b f32[3], state d f32[3]) {\n"
    "  region @y(%p f32[3], %q f32[3]) {\n    return %q, %p\n  }\n"
    "  region @n(%r f32[3], %s f32[3]) {\n    return %r, %s\n  }\n"
    "  %1 = if c, a, b then=@y else=@n f32[3]\n  %2 = proj %1 index=1 f32[3]\n  %f = const false bool[]\n"
    "  region @t(%u f32[3], %v bool[]) {\n    return %v\n  }\n"
    "  region @k(%w f32[3], %z bool[]) {\n    %x = neg %w\n    return %x, %z\n  }\n"
    "  %3 = while a, %f cond=@t body=@k f32[3]\n  return %1 as \"a\", %3 as \"old\", %1 -> a, %2 -> b, %3 -> d\n}\n",
    /* results of an if that are what a loop carries, in bodies of it; a result that is carried, and a slice of a stack */
    "graph @through(x f32[4,3], h f32[3]) {\n  %n = const 4 i64[]\n  %x = floor x\n  %h = floor h\n"
    "  region @y(%i f32[3], %j f32[3]) {\n    return %j, %i\n  }\n"
    "  region @z(%k f32[3], %l f32[3]) {\n    return %k, %l\n  }\n"
    "  region @b(%a f32[3], %p f32[3], %s f32[3]) {\n    %1 = sum %s axes=[0] f32[1]\n    %2 = reshape %1 f32[]\n"
    "    %3 = gt %2, 0.0\n    %4 = sub %s, %a\n"
    "    %5 = if %3, %a, %p then=@y else=@z f32[3]\n    %6 = proj %5 index=1 f32[3]\n    %7 = add %5, %4\n"
    "    return %7, %6, %4, %7, %s\n  }\n"
    "  %o = scan %n, %h, %h, %x body=@b carry=2 steps=1 length=4 f32[3]\n  %o1 = proj %o index=1 f32[3]\n"
    "  %o2 = proj %o index=2 f32[4,3]\n  %o3 = proj %o index=3 f32[4,3]\n  %o4 = proj %o index=4 f32[4,3]\n"
    "  return %o as \"a\", %o1 as \"b\", %o2 as \"c\", %o3 as \"d\", %o4 as \"e\"\n}\n",
    /* forward and backward, with a count that is a value, a condition, results that are carried and stacked, that are
     * parameters, of which one stack goes from one loop to the next */
    "graph @stacks(x f32[6,4], h f32[4], m i64[]) {\n  %n = const 6 i64[]\n  %x = floor x\n  %h = floor h\n"
    "  region @b(%c f32[4], %xt f32[4], %w f32[4]) {\n    %1 = add %c, %w\n    %2 = sub %1, %xt\n    %y = mul %2, 2.0\n"
    "    return %2, %y, %2, %c, %xt, %w\n  }\n"
    "  %s = scan %n, %h, %x, %h body=@b carry=1 steps=1 length=6 f32[4]\n  %ys = proj %s index=1 f32[6,4]\n"
    "  %hs = proj %s index=2 f32[6,4]\n  %cs = proj %s index=3 f32[6,4]\n  %xs = proj %s index=4 f32[6,4]\n"
    "  %ws = proj %s index=5 f32[6,4]\n"
    "  region @b2(%c2 f32[4], %i2 i64[], %xt2 f32[4], %yt2 f32[4]) {\n    %a1 = sub %yt2, %c2\n    %a2 = min %a1, %xt2\n"
    "    %j2 = add %i2, 1\n    return %a2, %j2, %i2, %a2\n  }\n"
    "  region @c2(%c3 f32[4], %i3 i64[], %xt3 f32[4], %yt3 f32[4]) {\n    %b1 = lt %i3, 3\n    return %b1\n  }\n"
    "  %z = const 0 i64[]\n  %s2 = scan m, %h, %z, %hs, %ys body=@b2 cond=@c2 carry=2 steps=2 length=6 reverse=1 f32[4]\n"
    "  %is = proj %s2 index=2 i64[6]\n  %as = proj %s2 index=3 f32[6,4]\n"
    "  return %s as \"a\", %ys as \"b\", %s2 as \"c\", %is as \"d\", %as as \"e\", %cs as \"f\", %xs as \"g\", %ws as "
    "\"i\"\n}\n",
    /* slices of more than 64 KB that are no whole vectors: GPUs load wide from what begins at one */
    "graph @loose(x f32[3,16387], h f32[16387]) {\n  %n = const 3 i64[]\n  %x = floor x\n  %h = floor h\n"
    "  region @b(%c f32[16387], %xt f32[16387]) {\n    %1 = add %c, %xt\n    %2 = sub %1, %c\n    return %1, %2\n  }\n"
    "  %s = scan %n, %h, %x body=@b carry=1 steps=1 length=3 f32[16387]\n  %ys = proj %s index=1 f32[3,16387]\n"
    "  return %s as \"a\", %ys as \"b\"\n}\n",
    /* no carried value; no iteration; constants as stacks; arrays without elements; a loop in a loop over its slices */
    "graph @nested(x f32[2,3,5], e f32[4,0]) {\n  %n = const 4 i64[]\n  %x = floor x\n  %t = const [1.0, 2.0] f32[2]\n"
    "  region @i(%c f32[], %v f32[5], %s f32[]) {\n    %a1 = sum %v axes=[0] f32[1]\n    %a2 = reshape %a1 f32[]\n"
    "    %a3 = sub %a2, %c\n    %a4 = add %a3, %s\n    return %a4, %a4, %v\n  }\n"
    "  region @o(%m f32[3,5], %q f32[], %k i64[]) {\n    %z = const 0.0 f32[]\n"
    "    %b = scan %k, %z, %m, %q body=@i carry=1 steps=1 length=3 reverse=1 f32[]\n    %b1 = proj %b index=1 f32[3]\n"
    "    %b2 = proj %b index=2 f32[3,5]\n    return %b1, %b, %b2\n  }\n"
    "  %1 = scan %n, %x, %t, %n body=@o carry=0 steps=2 length=2 f32[2,3]\n  %2 = proj %1 index=1 f32[2]\n"
    "  %3 = proj %1 index=2 f32[2,3,5]\n"
    "  region @e(%c5 f32[5], %v5 f32[0]) {\n    %w5 = neg %c5\n    return %w5, %v5, %w5\n  }\n"
    "  %f = const 3.0 f32[5]\n  %5 = scan %n, %f, e body=@e carry=1 steps=1 length=4 f32[5]\n  %6 = proj %5 index=1 f32[4,0]\n"
    "  %7 = proj %5 index=2 f32[4,5]\n  %o = const -1 i64[]\n"
    "  region @u(%c8 f32[5]) {\n    %w8 = neg %c8\n    return %w8, %w8\n  }\n"
    "  %8 = scan %o, %f body=@u carry=1 steps=0 length=7 f32[5]\n  %9 = proj %8 index=1 f32[7,5]\n"
    "  return %1 as \"a\", %2 as \"b\", %3 as \"c\", %5 as \"d\", %6 as \"f\", %7 as \"g\", %8 as \"h\", %9 as \"i\"\n}\n",
    /* a count and a condition that are constants in memory (without passes), which no launch reads */
    "graph @constant(x f32[5], h f32[3]) {\n  %1 = const [3] i64[1]\n  %n = reshape %1 i64[]\n  %2 = const [false] bool[1]\n"
    "  %c = reshape %2 bool[]\n  %h = floor h\n"
    "  region @b(%a f32[3]) {\n    %3 = mul %a, 2.0\n    return %3, %a\n  }\n"
    "  %s = scan %n, %h body=@b carry=1 steps=0 length=5 f32[3]\n  %t = proj %s index=1 f32[5,3]\n"
    "  region @yes(%p f32[5]) {\n    return %p\n  }\n  region @no(%q f32[5]) {\n    %4 = neg %q\n    return %4\n  }\n"
    "  %i = if %c, x then=@yes else=@no f32[5]\n  return %s as \"y\", %t as \"ys\", %i as \"z\"\n}\n",
};

/* ---- random graphs ---- */

/* ---- what must hold ---- */

enum { STEPS = 5, BATCHES = 3 };
typedef struct oracle { /* of STEPS steps over a ring of BATCHES */
    sample in[BATCHES];
    eval_value *want[STEPS];
} oracle;

static oracle ask(const graph *g, arena *a, uint64_t seed) {
    oracle o;
    eval_value *values = ARENA_ARRAY(a, eval_value, g->inputs.n + 1);
    for (int b = 0; b < BATCHES; b++) o.in[b] = sample_make(g, a, seed * BATCHES + (uint64_t)b);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < g->inputs.n; i++) {
            bool later = step && graph_get(g, g->inputs.at[i])->op == OP_state;
            if (!later) values[i] = o.in[step % BATCHES].values[i];
            for (int k = 0; k < g->outputs.n && later; k++)
                if (g->outputs.at[k].state == g->inputs.at[i]) values[i] = o.want[step - 1][g->outputs.at[k].v];
        }
        o.want[step] = eval_graph(g, a, values);
    }
    return o;
}

static void expect(const graph *g, val v, const void *got, eval_value want, const char *text, const char *what) {
    char why_not[512];
    if (compare(g, v, got, want, NULL, 1, why_not, sizeof why_not) >= 0) fail_msg("%s: %s\n%s", what, why_not, text);
}

/* The outputs of a run of so many steps are those of the last one, or, traced, of each. */
static void check_run(tn_session *s, const graph *g, arena *a, const oracle *o, int64_t steps, const char *text,
                      const char *what) {
    tn_binding rings[8];
    void *out[8];
    int n = 0;
    for (int i = 0; i < g->inputs.n; i++) {
        const node *in = graph_get(g, g->inputs.at[i]);
        if (in->op == OP_state) {
            size_t bytes = o->in[0].bytes[i];
            if (bytes) assert_int_equal(tn_session_set(s, in->name, o->in[0].data[i], bytes), TN_OK);
            continue;
        }
        size_t bytes = o->in[0].bytes[i];
        char *ring = arena_alloc(a, BATCHES * bytes + 1);
        for (int b = 0; b < BATCHES; b++) memcpy(ring + (size_t)b * bytes, o->in[b].data[i], bytes);
        rings[n++] = (tn_binding){ in->name, ring };
    }
    for (int k = 0; k < g->outputs.n; k++) {
        const output *w = &g->outputs.at[k];
        size_t bytes = (size_t)graph_elems(g, w->v) * dtype_size((tn_dtype)graph_get(g, w->v)->dtype);
        if (!w->name) continue;
        out[k] = memset(arena_alloc(a, STEPS * bytes + 1), 0xee, STEPS * bytes + 1);
        int slot = tn_session_slot(s, w->name);
        assert_int_equal(k % 2 && bytes ? tn_session_bind_trace(s, slot, out[k], STEPS) : tn_session_bind(s, slot, out[k]),
                         TN_OK);
    }
    if (tn_run_n(s, steps, rings, n, BATCHES)) fail_msg("%s: %s\n%s", what, tn_session_error(s), text);
    for (int k = 0; k < g->outputs.n; k++) {
        const output *w = &g->outputs.at[k];
        size_t bytes = (size_t)graph_elems(g, w->v) * dtype_size((tn_dtype)graph_get(g, w->v)->dtype);
        bool trace = k % 2 && bytes;
        for (int64_t step = trace ? 0 : steps - 1; step < steps && w->name; step++)
            expect(g, w->v, (char *)out[k] + (trace ? (size_t)step * bytes : 0), o->want[step][w->v], text, what);
        if (!w->state) continue;
        void *got = arena_alloc(a, bytes + 1);
        assert_int_equal(tn_session_get(s, graph_get(g, w->state)->name, got, bytes), TN_OK);
        expect(g, w->v, got, o->want[steps - 1][w->v], text, what);
    }
}

/* Whatever a kernel reads of another one, explain says why they are two. */
static void check_reasons(const tn_program *p, const char *what) {
    char *said;
    assert_int_equal(tn_program_text(p, "explain.json", &said), TN_OK);
    if (strstr(said, "\"decision\":-1")) fail_msg("%s: an edge between kernels has no reason", what);
    tn_string_free(p->ctx, said);
}

static void check_programs(tn_ctx *ctx, graph *g, arena *a, const oracle *o, const char *text, uint64_t seed) {
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_LOOP, TN_MODE_GRAPH, TN_MODE_IMMEDIATE };
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        if (!test_device_is_cpu() && m != seed % COUNT_OF(modes)) continue; /* compilers take long */
        tn_compile_opts opts = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *s;
        opts.mode = modes[m], opts.fusion = (int)((seed + m) % 4), opts.threads = (int)((seed / 4 + m) % 3) + 1, opts.check = 1;
        opts.no_passes = seed % 7 == 0;
        opts.device = test_device();
        if (!test_device_is_cpu()) opts.threads = 0;
        const char *what = arena_printf(a, "seed %llu, mode %d, fusion %d, %d threads", (unsigned long long)seed, (int)modes[m],
                                        opts.fusion, opts.threads);
        if (drive_compile(ctx, g, &opts, &p) || tn_session_new(p, &s)) fail_msg("%s: %s\n%s", what, tn_ctx_error(ctx), text);
        if (modes[m] != TN_MODE_IMMEDIATE) check_reasons(p, what);
        check_run(s, g, a, o, STEPS, text, what);
        check_run(s, g, a, o, 1, text, what); /* rings of the run before are forgotten */
        tn_session_free(s);
        tn_program_free(p);
    }
}

/* A text with another digit, a piece less or a piece twice: what still reads prints and reads back, and the check survives. */
static void check_damaged(const str *text, uint64_t seed) {
    rng r = rng_make(seed);
    for (int i = 0; i < 4; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (GUARD_TRY(&gd)) {
            str x, y, z, problems;
            str_init(&x, &a), str_init(&y, &a), str_init(&z, &a), str_init(&problems, &a);
            size_t at = (size_t)rng_below(&r, (int64_t)text->n), n = (size_t)rng_below(&r, 60);
            if (n > text->n - at) n = text->n - at;
            str_addn(&x, text->s, at);
            if (i % 2) str_addn(&x, text->s + at, n), str_addn(&x, text->s + at, n); /* twice */
            str_addn(&x, text->s + at + n, text->n - at - n);
            for (size_t k = at; i == 2 && k < x.n; k++)
                if (x.s[k] >= '0' && x.s[k] <= '9') {
                    x.s[k] = (char)('0' + rng_below(&r, 10));
                    break;
                }
            plan *p = plan_parse(&a, x.s, x.n, "damaged");
            plan_print(p, &y);
            plan_print(plan_parse(&a, y.s, y.n, "printed"), &z);
            assert_string_equal(y.s, z.s);
            bool good = true;
            for (int k = 0; k < p->kernels.n; k++) good = good && kernel_check(p->kernels.at[k].k, &problems) == 0;
            if (good) plan_check(p, &problems);
        } else if (gd.err.code != TN_ERR_PARSE && gd.err.code != TN_ERR_NOMEM) {
            fail_msg("%s", gd.err.text);
        }
        arena_fini(&a);
    }
}

/* The plan, and what its text gives when it is read back, run in the interpreter; one of the texts is damaged, in turns. */
static void check_plans(graph *g, arena *a, const oracle *o, const char *text, uint64_t seed) {
    reference r = { .g = g, .in = o->in[0], .want = o->want[0], .bound = ARENA_ARRAY(a, double *, g->nodes.n) };
    char why_not[4096];
    for (int way = 0; way < 6; way++) { /* the last two: for GPUs */
        tn_compile_opts opts = TN_COMPILE_DEFAULTS;
        int fusion = way < 4 ? way : way == 4 ? 3 : (int)(seed % 3);
        str x, y, problems;
        str_init(&x, a), str_init(&y, a), str_init(&problems, a);
        opts.fusion = fusion, opts.mode = fusion % 2 ? TN_MODE_GRAPH : TN_MODE_LOOP, opts.no_passes = seed % 5 == 0;
        target t = way < 4 ? plan_target(seed) : target_common_gpu();
        opts.check = way >= 4;
        plan *p = pipeline_run(g, a, &opts, &t);
        if (plan_check(p, &problems)) fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, problems.s, text);
        plan_print(p, &x);
        plan *q = plan_parse(a, x.s, x.n, "plan");
        plan_print(q, &y);
        assert_string_equal(x.s, y.s);
        if (way == (int)(seed % 6)) check_damaged(&x, seed);
        if (plan_check(q, &problems)) fail_msg("seed %llu, read back: %s\n%s", (unsigned long long)seed, problems.s, x.s);
        if (!plan_agrees(p, &r, a, why_not, sizeof why_not))
            fail_msg("seed %llu, fusion %d: %s\n%s\n%s", (unsigned long long)seed, fusion, why_not, text, x.s);
    }
}

static void check_text(tn_ctx *ctx, const char *text, uint64_t seed, bool programs) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, gd.err.text, text);
    graph *g = graph_parse(&a, text, strlen(text), "t");
    graph_compact(g);
    oracle o = ask(g, &a, seed);
    check_plans(g, &a, &o, text, seed);
    if (programs) check_programs(ctx, g, &a, &o, text, seed);
    arena_fini(&a);
}

static void test_by_hand(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        if (test_device_is_simulated() && strstr(graphs[i], "16387"))
            continue; /* 18 s; its kernels are those of short slices */
        for (uint64_t seed = 0; seed < (fuzz_by_c() ? 2 : test_device_is_cpu() ? (uint64_t)campaign(12, 4) : 1); seed++)
            check_text(ctx, graphs[i], seed, true);
    }
    tn_ctx_free(ctx);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(300, &first);
    tn_ctx *ctx = test_ctx();
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        check_text(ctx, randcontrol(&a, seed, false), seed, !fuzz_by_c() || seed % 10 == 0);
        arena_fini(&a);
    }
    tn_ctx_free(ctx);
    printf("count: %llu random graphs with if and while, nested, in 4 modes, over rings of inputs\n", (unsigned long long)n);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_by_hand), cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
