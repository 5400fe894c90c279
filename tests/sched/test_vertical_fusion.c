/* test_vertical_fusion.c - consecutive kernels that become one for a GPU: networks of odd sizes by the interpreter against the
 * reference evaluator, thread by thread; that they are one kernel where that is asked for and are not where rows need each
 * other; their texts read back.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/plan_run.h"

static target small_gpu(int block_threads, int64_t grid) {
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = 32,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 1 << 20,
                     .block_threads = block_threads,
                     .shared_bytes = 32 << 10,
                     .resident_threads = grid };
}

static val input(graph *g, const char *name, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = rank, .dims = dims });
}

static val state(graph *g, const char *name, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = name, .rank = rank, .dims = dims });
}

/* Weights are inputs; of kind STATES states, of kind HALVES inputs of half the bytes. */
typedef enum weights { INPUTS, HALVES, STATES } weights;
static val linear(graph *g, arena *a, val x, int64_t n, int number, weights kind) {
    static const int64_t first[] = { 0 };
    const node *v = graph_get(g, x);
    int64_t ca[] = { v->rank - 1 }, dims[TN_MAX_RANK], k = v->dims[v->rank - 1];
    int rank = v->rank;
    for (int i = 0; i < rank; i++) dims[i] = v->dims[i];
    dims[rank - 1] = n;
    const char *wn = arena_printf(a, "w%d", number), *bn = arena_printf(a, "b%d", number);
    int64_t wd[] = { k, n };
    val w = kind == STATES ? state(g, wn, 2, wd) : input(g, wn, kind == HALVES ? TN_BF16 : TN_F32, 2, wd);
    val b = kind == STATES ? state(g, bn, 1, &n) : input(g, bn, TN_F32, 1, &n);
    if (kind == HALVES) w = graph_cast(g, w, TN_F32);
    return graph_binary(g, OP_add, graph_dot(g, x, w, NULL, NULL, 0, ca, first, 1), graph_broadcast(g, b, rank, dims));
}

static val softmax(graph *g, val x) {
    const node *n = graph_get(g, x);
    int rank = n->rank;
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < rank; i++) dims[i] = n->dims[i];
    uint64_t axis = 1ull << (rank - 1);
    val e = graph_unary(g, OP_exp,
                        graph_binary(g, OP_sub, x, graph_broadcast(g, graph_reduce(g, OP_reduce_max, x, axis), rank, dims)));
    return graph_binary(g, OP_div, e, graph_broadcast(g, graph_reduce(g, OP_sum, e, axis), rank, dims));
}

typedef struct facts { /* of a plan */
    int kernels, chains, rows, ahead, split_k, states, loops /* of layers */, ins, clusters,
        waits /* for what a layer has stored in a cluster */;
} facts;

static facts facts_of(const plan *p, arena *a) {
    facts f = { .kernels = p->kernels.n };
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        str text;
        str_init(&text, a);
        kernel_print(k, &text);
        f.chains += strstr(k->name, "_chain") != NULL;
        for (int v = 0; v < k->vars.n; v++) f.rows += k->vars.at[v].name[0] == 'g';
        f.ahead += strstr(text.s, " hoisted") != NULL;
        f.ins += k->ins.n;
        f.clusters += k->cluster > 0;
        for (int j = 1; j < k->ins.n; j++) f.waits += k->ins.at[j].op == K_BARRIER && k->ins.at[j].mode == BARRIER_MBARRIER;
        for (int j = 1; j < k->ins.n; j++) f.loops += k->ins.at[j].op == K_LOOP && k->vars.at[k->ins.at[j].var].name[0] == 'l';
        for (int j = 1; j < k->ins.n; j++) f.split_k += k->ins.at[j].op == K_BLOCK_REDUCE && k->ins.at[j].width > 1;
    }
    for (int b = 0; b < p->bufs.n; b++) f.states += p->bufs.at[b].kind == PB_STATES;
    return f;
}

static void add_facts(facts *sum, facts f) {
    sum->kernels += f.kernels, sum->chains += f.chains, sum->rows += f.rows, sum->ahead += f.ahead, sum->split_k += f.split_k;
    sum->states += f.states, sum->loops += f.loops, sum->ins += f.ins;
    sum->clusters += f.clusters;
}

/* Compiles, compares, and reads the texts back; what the plan is like. */
static facts agree(graph *g, arena *a, target t, uint64_t seed, const char *what) {
    char text[4096];
    plan_config c = { .seed = seed, .fusion = 3, .t = t };
    graph_compact(g);
    if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s, seed %llu: %s", what, (unsigned long long)seed, c.text);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3;
    plan *p = pipeline_run(g, a, &o, &t);
    if (!plan_texts_agree(p, a, text, sizeof text)) fail_msg("%s, seed %llu: %s", what, (unsigned long long)seed, text);
    return facts_of(p, a);
}

#define IN_ARENA(...)                                                                                                          \
    do {                                                                                                                       \
        arena a;                                                                                                               \
        guard gd;                                                                                                              \
        arena_init(&a, mem_libc(), &gd);                                                                                       \
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);                                 \
        __VA_ARGS__;                                                                                                           \
        arena_fini(&a);                                                                                                        \
    } while (0)

static uint64_t fresh_seed(void) { return (uint64_t)(now_seconds() * 1e6); }

/* Layers of random widths, with residual connections, results in the middle and a softmax: one kernel. */
static facts network(arena *a, uint64_t seed) {
    static const int grid_blocks[] = { 8, 32, 64, 128 };
    static const int64_t grids[] = { 1 << 17, 1024, 4096 };
    rng r = rng_make(seed);
    graph *g = graph_make(a, "network");
    int rank = rng_chance(&r, 0.3) ? 3 : 2;
    int64_t dims[] = { rng_between(&r, 1, 9), rng_between(&r, 1, 6), rng_between(&r, 1, 40) };
    if (rng_chance(&r, 0.3)) dims[3 - rank] *= 4;
    val x = input(g, "x", TN_F32, rank, dims + 3 - rank), kept = 0;
    weights kind = rng_chance(&r, 0.5) ? STATES : INPUTS;
    for (int l = 0, n = (int)rng_between(&r, 2, 6); l < n; l++) {
        const node *v = graph_get(g, x);
        bool same = rng_chance(&r, 0.4);
        int64_t width = same ? v->dims[v->rank - 1] : rng_chance(&r, 0.3) ? 8 * rng_between(&r, 1, 6) : rng_between(&r, 1, 70);
        val y = linear(g, a, x, width, l, rng_chance(&r, 0.2) ? HALVES : kind);
        if (rng_chance(&r, 0.6)) y = graph_binary(g, OP_max, y, graph_splat_like(g, y, 0));
        if (same && rng_chance(&r, 0.7)) y = graph_binary(g, OP_add, y, x);
        if (kept && graph_same_shape(g, kept, y)) y = graph_binary(g, OP_sub, y, kept);
        if (rng_chance(&r, 0.2)) graph_output(g, arena_printf(a, "mid%d", l), y);
        if (rng_chance(&r, 0.3)) kept = y;
        x = y;
    }
    graph_output(g, "out", rng_chance(&r, 0.5) ? softmax(g, x) : x);
    return agree(g, a, small_gpu(grid_blocks[seed % 4], grids[seed / 4 % 3]), seed, "network");
}

static void test_networks(void **st) {
    (void)st;
    uint64_t first = fresh_seed(), seed = first;
    int n = 60;
    facts sum = { 0 };
    for (; seed < first + (uint64_t)n; seed++) IN_ARENA(add_facts(&sum, network(&a, seed)));
    printf("count: %d networks, %d kernels, %d of them chains, %d with several rows a group, %d load ahead, %d sums in parts\n",
           n, sum.kernels, sum.chains, sum.rows, sum.ahead, sum.split_k);
    assert_true(sum.chains >= n / 2);
    assert_true(sum.rows > 0 && sum.ahead > 0 && sum.split_k > 0 && sum.states > 0);
}

/* Frozen layers around a state that runs change are no one buffer: the chain ends where a kernel can have no more. */
static void test_many_states(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    IN_ARENA({
        enum { MOST = 16 };
        graph *g = graph_make(&a, "frozen");
        const int64_t width = 12;
        val x = input(g, "x", TN_F32, 2, (int64_t[]){ 3, width }), changed = 0;
        for (int l = 0; l < 20; l++) {
            x = graph_unary(g, OP_tanh, linear(g, &a, x, width, l, STATES));
            if (l == 10) changed = state(g, "changed", 1, &width);
        }
        graph_output(g, "out", x);
        graph_assign(g, changed, graph_binary(g, OP_add, changed, changed));
        target t = small_gpu(256, 1 << 17);
        t.buffers = MOST;
        facts f = agree(g, &a, t, seed, "frozen");
        assert_true(f.chains > 0);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(g, &a, &o, &t);
        for (int i = 0; i < p->kernels.n; i++) {
            int args = 0;
            const kernel *k = p->kernels.at[i].k;
            for (int b = 0; b < k->bufs.n; b++) args += !kbuf_is_local(&k->bufs.at[b]);
            assert_in_range(args, 1, MOST);
        }
    });
}

/* As many as there are rows in a group's share, and a number that does not divide. */
static void test_rows(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    static const int64_t rows[] = { 64, 63, 2, 0, 1 };
    facts sum = { 0 };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        IN_ARENA({
            graph *g = graph_make(&a, "rows");
            val x = input(g, "x", TN_F32, 2, (int64_t[]){ rows[i], 48 });
            for (int l = 0; l < 3; l++) x = graph_unary(g, OP_tanh, linear(g, &a, x, 48 + l, l, INPUTS));
            graph_output(g, "out", softmax(g, x));
            facts f = agree(g, &a, small_gpu(128, 16384), seed, "rows");
            if (rows[i] == 64 || rows[i] == 2) add_facts(&sum, f);
            if (rows[i]) assert_int_equal(f.chains, 1);
        });
    assert_true(sum.rows > 0);
}

/* A softmax that is a result and an operand of two contractions: other threads read a row in memory than those that wrote it.
 */
static void test_result_between(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    for (int block_threads = 32; block_threads <= 128; block_threads *= 2)
        IN_ARENA({
            graph *g = graph_make(&a, "between");
            val p = softmax(g, input(g, "x", TN_F32, 2, (int64_t[]){ 49, 64 }));
            graph_output(g, "p", p);
            val y = graph_binary(g, OP_add, linear(g, &a, p, 64, 0, INPUTS), p);
            graph_output(g, "out", linear(g, &a, y, 64, 1, INPUTS));
            agree(g, &a, small_gpu(block_threads, 1024), seed, "a result between");
        });
}

/* Every row needs all rows of what lies between: no chain of rows goes over that. */
static void test_all_rows(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    IN_ARENA({
        graph *g = graph_make(&a, "all");
        int64_t dims[] = { 256, 16 };
        val x = linear(g, &a, input(g, "x", TN_F32, 2, dims), 16, 0, INPUTS);
        x = graph_unary(g, OP_tanh, x);
        val s = graph_reduce(g, OP_sum, x, 1);
        val y = linear(g, &a, graph_binary(g, OP_sub, x, graph_broadcast(g, s, 2, dims)), 16, 1, INPUTS);
        graph_output(g, "out", y);
        facts f = agree(g, &a, small_gpu(64, 1 << 17), seed, "all rows");
        assert_true(f.kernels >= 3);
    });
}

/* A weight's gradient is a sum over rows: what comes before may be one kernel, it cannot belong to it. */
static void test_weight_gradient(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    static const int64_t rows[] = { 0 };
    IN_ARENA({
        graph *g = graph_make(&a, "gradient");
        val x = input(g, "x", TN_F32, 2, (int64_t[]){ 96, 24 });
        val h = graph_unary(g, OP_tanh, linear(g, &a, x, 24, 0, INPUTS));
        val y = graph_unary(g, OP_tanh, linear(g, &a, h, 24, 1, INPUTS));
        val dw = graph_dot(g, h, y, NULL, NULL, 0, rows, rows, 1);
        graph_output(g, "dw", dw);
        facts f = agree(g, &a, small_gpu(64, 1 << 17), seed, "weight gradient");
        assert_int_equal(f.kernels, 2);
        assert_int_equal(f.chains, 1);
    });
}

/* Rates of an optimiser follow from the number of the step alone: where launches overlap, what updates of the first parameters
 * wait for is not waited for by all others, too. */
static void test_rates(void **st) {
    (void)st;
    static const char begin[] = "graph @rates(x f32[512,128], y f32[512,128], state n f32[1,1], state w f32[128,128]";
    uint64_t seed = fresh_seed();
    for (int overlaps = 0; overlaps < 2; overlaps++)
        IN_ARENA({
            str s;
            str_init(&s, &a);
            str_add(&s, begin);
            for (int i = 0; i < 9; i++) str_addf(&s, ", state v%d f32[1,128]", i);
            str_add(
                &s,
                ") {\n %dw = dot x, y contract=[0]x[0] f32[128,128]\n %n = add n, 1.0 f32[1,1]\n %r = pow 0.9, %n f32[1,1]\n"
                " %x = expand %r f32[128,128]\n %z = mul %dw, %x f32[128,128]\n %w = sub w, %z f32[128,128]\n"
                " %y = expand %r f32[1,128]\n");
            for (int i = 0; i < 9; i += 3) {
                str_addf(&s, " %%a%d = mul %%dw, 0.%d f32[128,128]\n %%g%d = sum %%a%d axes=[0] f32[1,128]\n", i, i + 1, i, i);
                str_addf(&s, " %%b%d = add v%d, %%g%d f32[1,128]\n %%q%d = mul %%g%d, %%g%d f32[1,128]\n", i, i, i, i, i, i);
                str_addf(&s, " %%b%d = add v%d, %%q%d f32[1,128]\n %%d%d = div %%b%d, %%b%d f32[1,128]\n", i + 1, i + 1, i, i,
                         i, i + 1);
                str_addf(&s, " %%e%d = mul %%d%d, %%y f32[1,128]\n %%b%d = sub v%d, %%e%d f32[1,128]\n", i, i, i + 2, i + 2, i);
            }
            str_add(&s, " return %n -> n, %w -> w");
            for (int i = 0; i < 9; i++) str_addf(&s, ", %%b%d -> v%d", i, i);
            str_add(&s, "\n}");
            graph *g = graph_parse(&a, s.s, s.n, "rates");
            target t = small_gpu(256, 1 << 17);
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            t.overlaps = overlaps, o.fusion = 3, o.check = 1;
            const plan *p = pipeline_run(g, &a, &o, &t);
            bool together = false;
            for (int i = 0; i < p->kernels.n; i++) {
                const pkernel *pk = &p->kernels.at[i];
                bool counts = false, updates = false;
                for (int b = 0; b < pk->k->bufs.n; b++) {
                    const pbuf *buf = pk->args[b].buf < 0 ? NULL : &p->bufs.at[pk->args[b].buf];
                    if (!buf || buf->kind != PB_STATE || pk->k->bufs.at[b].kind == KB_IN) continue;
                    *(buf->elems == 1 ? &counts : &updates) = true;
                }
                together |= counts && updates;
            }
            assert_int_equal(together, !overlaps);
            agree(g, &a, t, seed, "rates");
        });
}

/* States: one that the chain updates row by row, one that it updates and reads elsewhere, and a weight of it. */
static void test_states(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    static const int64_t last[] = { 1 }, first[] = { 0 };
    facts sum = { 0 };
    IN_ARENA({
        graph *g = graph_make(&a, "states");
        int64_t dims[] = { 20, 12 }, square[] = { 12, 12 };
        val x = input(g, "x", TN_F32, 2, dims), h = state(g, "h", 2, dims), w = state(g, "w", 2, square);
        val y = graph_unary(g, OP_tanh, linear(g, &a, graph_binary(g, OP_add, x, h), 12, 0, STATES));
        y = graph_unary(g, OP_tanh, linear(g, &a, y, 12, 1, STATES));
        val z = graph_unary(g, OP_tanh, graph_dot(g, y, w, NULL, NULL, 0, last, first, 1));
        graph_output(g, "z", softmax(g, z));
        graph_assign(g, h, graph_binary(g, OP_mul, z, graph_splat_like(g, z, 0.5)));
        graph_assign(g, w, graph_binary(g, OP_sub, w, graph_dot(g, y, z, NULL, NULL, 0, first, first, 1)));
        for (int block_threads = 16; block_threads <= 128; block_threads *= 2)
            add_facts(&sum, agree(g, &a, small_gpu(block_threads, 1 << 17), seed, "states"));
    });
    assert_int_equal(sum.states, 4);
    IN_ARENA({ /* one that changes is declared between the others: it lies in another arena, so they are one buffer */
               graph *g = graph_make(&a, "between");
               int64_t dims[] = { 20, 12 };
               val x = input(g, "x", TN_F32, 2, dims);
               x = linear(g, &a, x, 12, 0, STATES);
               val h = state(g, "h", 2, dims);
               x = graph_binary(g, OP_add, linear(g, &a, x, 12, 1, STATES), h);
               graph_output(g, "out", x);
               graph_assign(g, h, graph_unary(g, OP_tanh, x));
               facts f = agree(g, &a, small_gpu(32, 1 << 17), seed, "between");
               assert_int_equal(f.states, 1);
    });
}

/* Layers of one width, each with a bound, other bounds, or none; the first and the last have others. */
static facts layers(arena *a, uint64_t seed, int depth, int64_t width, int64_t rows, int block_threads, bool bounds) {
    rng r = rng_make(seed);
    graph *g = graph_make(a, "layers");
    val x = input(g, "x", TN_F32, 2, (int64_t[]){ rows, 5 });
    for (int l = 0; l < depth; l++) {
        x = linear(g, a, x, l + 1 < depth ? width : 3, l, STATES);
        int kind = bounds ? (int)rng_between(&r, 0, 4) : 0;
        if (kind) x = graph_binary(g, OP_max, x, graph_splat_like(g, x, kind == 1 ? -0.25 : 0));
        if (seed % 8 == 0 && kind == 2) x = graph_binary(g, OP_min, x, graph_splat_like(g, x, 1));
    }
    graph_output(g, "out", softmax(g, x));
    return agree(g, a, small_gpu(block_threads, 1 << 17), seed, "layers");
}

static void test_layers(void **st) {
    (void)st;
    uint64_t first = fresh_seed(), seed = first;
    int n = 32;
    facts sum = { 0 };
    for (; seed < first + (uint64_t)n; seed++) {
        rng r = rng_make(seed);
        int depth = (int)rng_between(&r, 8, 24);
        int64_t width = rng_chance(&r, 0.5) ? 8 << rng_between(&r, 0, 3) : rng_between(&r, 1, 70), rows = rng_between(&r, 1, 6);
        IN_ARENA(add_facts(&sum, layers(&a, seed, depth, width, rows, 16 << (seed % 4), true)));
    }
    printf("count: %d deep networks, %d kernels, %d loops of layers\n", n, sum.kernels, sum.loops);
    assert_true(sum.loops > n / 2);
    int ins[2];
    for (int i = 0; i < 2; i++) IN_ARENA(ins[i] = layers(&a, 1, 22 + 16 * i, 16, 16, 32, false).ins);
    assert_int_equal(ins[0], ins[1]); /* however deep */
}

/* Layers of one width on a machine that is slow but for its clusters: residual connections, norms between layers, results in
 * the middle, first layers and rows of any number. */
static facts clustered(arena *a, uint64_t seed) {
    rng r = rng_make(seed);
    graph *g = graph_make(a, "clustered");
    int64_t rows = rng_between(&r, 1, 70), first = rng_chance(&r, 0.5) ? 8 * rng_between(&r, 1, 9) : rng_between(&r, 1, 70),
            width = 32ll << rng_below(&r, 2);
    val x = input(g, "x", TN_F32, 2, (int64_t[]){ rows, first }), kept = 0;
    bool rolls = rng_chance(&r, 0.4), states = rng_chance(&r, 0.7);
    for (int l = 0, n = rolls ? 12 : (int)rng_between(&r, 2, 6); l < n; l++) {
        val y = linear(g, a, x, width, l, !rolls && rng_chance(&r, 0.05) ? HALVES : states ? STATES : INPUTS);
        if (rng_chance(&r, 0.6)) y = graph_binary(g, OP_max, y, graph_splat_like(g, y, 0));
        if (!rolls && l && rng_chance(&r, 0.3)) y = graph_binary(g, OP_add, y, x);
        if (!rolls && kept && rng_chance(&r, 0.2)) y = graph_binary(g, OP_sub, y, kept);
        if (!rolls && rng_chance(&r, 0.2)) y = softmax(g, y);
        if (!rolls && rng_chance(&r, 0.1)) graph_output(g, arena_printf(a, "mid%d", l), y);
        if (rng_chance(&r, 0.3)) kept = y;
        x = y;
    }
    graph_output(g, "out", rng_chance(&r, 0.6) ? softmax(g, x) : x);
    target t = small_gpu(rng_chance(&r, 0.5) ? 64 : 128, 1024);
    t.cluster = 2 << rng_below(&r, 3), t.clusters = (int)rng_between(&r, 1, 15);
    if (rng_chance(&r, 0.2)) t.shared_bytes = 12 << 10;
    return agree(g, a, t, seed, "clustered");
}

static void test_clusters(void **st) {
    (void)st;
    uint64_t first = fresh_seed(), seed = first;
    int n = 40;
    facts sum = { 0 };
    for (; seed < first + (uint64_t)n; seed++) IN_ARENA(add_facts(&sum, clustered(&a, seed)));
    static const uint64_t once_wrong[] = { 4196, 68141899448 }; /* rows of many nests, threads with other columns in some */
    for (size_t i = 0; i < sizeof once_wrong / sizeof *once_wrong; i++) IN_ARENA(clustered(&a, seed = once_wrong[i]));
    printf("count: %d networks for clusters, %d kernels, %d of them by clusters, %d loops of layers\n", n, sum.kernels,
           sum.clusters, sum.loops);
    assert_true(sum.clusters > n / 8 && sum.loops > 0);
}

/* An even number of layers of one width is one loop of two, the first and the last among them. */
static void test_all_layers(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    for (int depth = 12; depth <= 20; depth += 4)
        IN_ARENA({
            graph *g = graph_make(&a, "layers");
            val x = input(g, "x", TN_F32, 2, (int64_t[]){ 20, 64 });
            for (int l = 0; l < depth; l++) {
                x = linear(g, &a, x, 64, l, STATES);
                if (l % 3 == 1) x = graph_binary(g, OP_max, x, graph_splat_like(g, x, 0));
            }
            graph_output(g, "out", softmax(g, x));
            target t = small_gpu(64, 1024);
            t.cluster = 4, t.clusters = 8;
            facts f = agree(g, &a, t, seed + (uint64_t)depth, "all layers");
            assert_int_equal(f.clusters, 1);
            assert_int_equal(f.loops, 1);
            assert_int_equal(f.waits, 2);
        });
}

/* No shape of clusters fits a first layer of 40 inputs and the others: it stays apart, and they are not one group's. */
static void test_one_shape(void **st) {
    (void)st;
    uint64_t seed = 1;
    IN_ARENA({
        graph *g = graph_make(&a, "shape");
        val x = input(g, "x", TN_F32, 2, (int64_t[]){ 301, 40 });
        for (int l = 0; l < 5; l++) x = graph_unary(g, OP_tanh, linear(g, &a, x, 256, l, STATES));
        graph_output(g, "out", softmax(g, x));
        target t = target_common_gpu();
        t.resident_threads = 132 << 10, t.cluster = 8, t.clusters = 15;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        facts f = facts_of(pipeline_run(g, &a, &o, &t), &a);
        assert_int_equal(f.kernels, 2);
        assert_int_equal(f.clusters, 1);
    });
}

/* What takes longer in one group than launches do stays apart. */
static void test_large(void **st) {
    (void)st;
    uint64_t seed = 1;
    IN_ARENA({
        graph *g = graph_make(&a, "large");
        val x = input(g, "x", TN_F32, 2, (int64_t[]){ 1024, 1024 });
        for (int l = 0; l < 3; l++) x = graph_unary(g, OP_tanh, linear(g, &a, x, 1024, l, INPUTS));
        graph_output(g, "out", x);
        graph_compact(g);
        target t = target_common_gpu();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3;
        plan *p = pipeline_run(g, &a, &o, &t);
        assert_int_equal(facts_of(p, &a).chains, 0);
        bool told = false;
        for (int i = 0; i < p->decisions.n; i++)
            told |= !p->decisions.at[i].fused && strstr(p->decisions.at[i].reason, "takes longer");
        assert_true(told);
    });
}

/* The statistics of rows are results, too, or something else needs them: each has a kernel of its own, and all read the rows.
 * One kernel reads them once, where threads can keep their shares; a sum of all rows, which stands between them, comes later.
 */
static facts kept_rows(arena *a, int rows, int n, bool sums, uint64_t seed) {
    static const char text[] =
        "graph @g(x bf16[%d,%d], t i32[%d,1]) {\n %%1 = cast x f32[%d,%d]\n %%2 = reduce_max %%1 axes=[1] f32[%d,1]\n"
        " %%3 = expand %%2 f32[%d,%d]\n %%4 = sub %%1, %%3\n %%5 = exp %%4\n %%6 = sum %%5 axes=[1] f32[%d,1]\n"
        " %%7 = log %%6\n %%8 = sum %%7 axes=[0,1] f32[1,1]\n %%9 = expand %%6 f32[%d,%d]\n %%10 = div %%5, %%9\n"
        " %%11 = cast %%10 bf16[%d,%d]\n return %%11 as \"y\", %%2 as \"m\"%s\n}";
    const char *g =
        arena_printf(a, text, rows, n, rows, rows, n, rows, rows, n, rows, rows, n, rows, n, sums ? ", %8 as \"z\"" : "");
    return agree(graph_parse(a, g, strlen(g), "rows"), a, small_gpu(32, 1 << 17), seed, "kept rows");
}

static void test_kept_rows(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    static const int lengths[] = {
        64, 96, 128, 192, 256, 264, 512, 776, 1000, 1280, 2040, 2048
    }; /* of 32 to 256 vectors, some with a rest; of 2 to 8 */
    for (int i = 0; i < (int)COUNT_OF(lengths); i++)
        for (int sums = 0; sums < 2; sums++)
            IN_ARENA({
                facts f = kept_rows(&a, 37 + i, lengths[i], sums, seed + (uint64_t)i);
                assert_int_equal(f.kernels, 1 + sums);
                assert_int_equal(f.chains, 1);
            });
    IN_ARENA({ /* longer than threads have registers for: as before */
               facts f = kept_rows(&a, 9, 32768, false, seed);
               assert_true(f.kernels > 1);
    });
}

/* The smaller and the larger of entries a half apart along an axis, in the order of axes perm, one behind the other along `to`.
 */
static val exchanged(graph *g, val x, int axis, const int64_t *perm, int to) {
    const node *n = graph_get(g, x);
    int64_t start[TN_MAX_RANK] = { 0 }, size[TN_MAX_RANK], step[TN_MAX_RANK];
    val half[2], both[2];
    int rank = n->rank;
    for (int i = 0; i < rank; i++) size[i] = n->dims[i], step[i] = 1;
    size[axis] = 1;
    for (int i = 0; i < 2; i++) {
        start[axis] = i;
        half[i] = graph_permute(g, graph_slice(g, x, start, size, step), perm);
    }
    both[0] = graph_binary(g, OP_min, half[0], half[1]), both[1] = graph_binary(g, OP_max, half[0], half[1]);
    return graph_concat(g, both, 2, to);
}

/* Exchanges along the rows of runs of rows, in tiles of all rows and some neighbours, which lie in no one piece in memory: the
 * first and the last kernel's loops change places, and those between are cut. One kernel, whatever the sizes are. */
static void test_column_tiles(void **st) {
    (void)st;
    uint64_t seed = fresh_seed();
    static const int64_t shapes[][3] = { { 1, 64, 32 }, { 4, 16, 64 }, { 3, 24, 16 }, { 2, 40, 8 } }; /* runs, across, width */
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        IN_ARENA({
            graph *g = graph_make(&a, "tiles");
            int64_t runs = shapes[i][0];
            int64_t across = shapes[i][1];
            int64_t width = shapes[i][2];
            val x = input(g, "x", TN_I64, 5, (int64_t[]){ runs, 2, 4, across, width });
            x = exchanged(g, x, 1, (int64_t[]){ 0, 3, 1, 2, 4 }, 2);
            x = graph_reshape(g, x, 3, (int64_t[]){ runs * across * 2, 2, 2 * width });
            x = exchanged(g, x, 1, (int64_t[]){ 0, 1, 2 }, 1);
            x = graph_reshape(g, x, 5, (int64_t[]){ runs, across, 4, 2, width });
            x = exchanged(g, x, 3, (int64_t[]){ 0, 2, 3, 1, 4 }, 2);
            graph_output(g, "y", x);
            facts f = agree(g, &a, small_gpu(64, 1 << 17), seed, "tiles of columns");
            assert_int_equal(f.kernels, 1);
            assert_int_equal(f.chains, 1);
        });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_tiles),    cmocka_unit_test(test_kept_rows),  cmocka_unit_test(test_networks),
        cmocka_unit_test(test_many_states),     cmocka_unit_test(test_rows),       cmocka_unit_test(test_all_rows),
        cmocka_unit_test(test_weight_gradient), cmocka_unit_test(test_rates),      cmocka_unit_test(test_states),
        cmocka_unit_test(test_layers),          cmocka_unit_test(test_clusters),   cmocka_unit_test(test_one_shape),
        cmocka_unit_test(test_large),           cmocka_unit_test(test_all_layers), cmocka_unit_test(test_result_between)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
