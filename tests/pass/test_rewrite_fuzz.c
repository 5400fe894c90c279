/* test_rewrite_fuzz.c - random graphs through random sequences of passes, and a test of that test.
 * Labels: random
 *
 * Between passes, detours that mean nothing are put into the graph for the passes to find. After every pass the graph and its
 * use lists are verified and all outputs are compared with those of the graph before the first pass, within the proven bound of
 * rounding and reassociation. Then rewrites that are wrong on purpose are planted between the right ones: each of them must be
 * caught. TENON_FUZZ_SEEDS and TENON_FUZZ_FIRST choose the seeds. */
#include "grad/grad.h"
#include "pass/pass.h"
#include "support/support.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- work for the passes ------------------------------------------------------------------------------------------------- */

static void random_perm(rng *r, int rank, int64_t *perm, int64_t *inverse) {
    for (int i = 0; i < rank; i++) perm[i] = i;
    for (int i = rank - 1; i > 0; i--) {
        int k = (int)rng_below(r, i + 1);
        int64_t t = perm[i];
        perm[i] = perm[k];
        perm[k] = t;
    }
    for (int i = 0; i < rank; i++) inverse[perm[i]] = i;
}

static val round_trip(graph *g, rng *r, val x) {
    node n = *graph_get(g, x);
    int64_t a[TN_MAX_RANK] = { 0 }, b[TN_MAX_RANK] = { 0 }, flat = graph_elems(g, x);
    int axis = (int)rng_below(r, n.rank);
    switch (rng_below(r, 11)) {
    case 0:
        random_perm(r, n.rank, a, b);
        return graph_permute(g, graph_permute(g, x, a), b);
    case 1:
        return graph_reshape(g, graph_reshape(g, x, 1, &flat), n.rank, n.dims);
    case 2: /* a border and off with it */
        for (int i = 0; i < n.rank; i++) {
            a[i] = rng_below(r, 3);
            b[i] = rng_below(r, 2);
        }
        return graph_slice(g, graph_pad(g, x, a, b, n.dtype == TN_BOOL ? 1 : 3), a, n.dims, NULL);
    case 3:
        return n.rank == 0 ? x : graph_flip(g, graph_flip(g, x, UINT64_C(1) << axis), UINT64_C(1) << axis);
    case 4: { /* two pieces and together again */
        if (n.rank == 0) return x;
        int64_t count[TN_MAX_RANK], cut = rng_between(r, 0, n.dims[axis]);
        memcpy(count, n.dims, n.rank * sizeof *count);
        count[axis] = cut;
        val first = graph_slice(g, x, a, count, NULL);
        a[axis] = cut;
        count[axis] = n.dims[axis] - cut;
        return graph_concat(g, (val[]){ first, graph_slice(g, x, a, count, NULL) }, 2, axis);
    }
    case 5: /* one of two copies */
        if (n.rank == 0) return x;
        a[axis] = rng_below(r, 2) * n.dims[axis];
        return graph_slice(g, graph_concat(g, (val[]){ x, x }, 2, axis), a, n.dims, NULL);
    case 6: { /* a new axis, repeated, one of its elements */
        int64_t dims[TN_MAX_RANK];
        if (n.rank + 1 > TN_MAX_RANK) return x;
        memcpy(dims, n.dims, n.rank * sizeof *dims);
        dims[n.rank] = 1;
        val y = graph_reshape(g, x, n.rank + 1, dims);
        dims[n.rank] = 3;
        y = graph_expand(g, y, dims);
        dims[n.rank] = 1;
        a[n.rank] = rng_below(r, 3);
        return graph_reshape(g, graph_slice(g, y, a, dims, NULL), n.rank, n.dims);
    }
    case 7:
        return graph_cast(g, graph_cast(g, x, dtype_is_float(n.dtype) ? TN_F64 : TN_I64), n.dtype);
    case 8:
        return n.dtype == TN_BOOL ? graph_unary(g, OP_not, graph_unary(g, OP_not, x))
                                  : graph_unary(g, OP_neg, graph_unary(g, OP_neg, x));
    case 9:
        return n.dtype == TN_BOOL ? x : graph_binary(g, OP_mul, graph_splat_like(g, x, 1), x);
    default: { /* windows of one */
        window_axis w = { axis, 1, 1, 1 };
        if (n.rank == 0 || n.dims[axis] == 0 || n.rank + 1 > TN_MAX_RANK) return x;
        return graph_reshape(g, graph_window(g, x, &w, 1), n.rank, n.dims);
    }
    }
}

/* A contraction becomes one of two equal batches, or half the sum of both. */
static bool batch(graph *g, rng *r, val v) {
    node n = *graph_get(g, v);
    int64_t nb = n.attr[0], nc = n.attr[1], list[4][TN_MAX_RANK], dims[TN_MAX_RANK], start[TN_MAX_RANK] = { 0 };
    val in[2];
    if (n.rank + 1 > TN_MAX_RANK || !dtype_is_float(n.dtype)) return false;
    for (int s = 0; s < 2; s++) {
        node x = *graph_get(g, n.in[s]);
        if (x.rank + 1 > TN_MAX_RANK) return false;
        for (int i = 0; i < nb; i++) list[s][i] = n.attr[2 + s * nb + i] + 1;
        for (int i = 0; i < nc; i++) list[2 + s][i] = n.attr[2 + 2 * nb + s * nc + i] + 1;
        list[s][nb] = 0;
        dims[0] = 1;
        memcpy(dims + 1, x.dims, x.rank * sizeof *dims);
        in[s] = graph_reshape(g, n.in[s], x.rank + 1, dims);
        dims[0] = 2;
        in[s] = graph_expand(g, in[s], dims);
    }
    val d = graph_dot(g, in[0], in[1], list[0], list[1], (int)nb + 1, list[2], list[3], (int)nc);
    memcpy(dims, graph_get(g, d)->dims, (size_t)(n.rank + 1) * sizeof *dims);
    dims[nb] = 1;
    if (rng_chance(r, 0.5)) {
        d = graph_slice(g, d, start, dims, NULL);
    } else {
        d = graph_reduce(g, OP_sum, d, UINT64_C(1) << nb);
        d = graph_binary(g, OP_mul, d, graph_splat_like(g, d, 0.5));
    }
    graph_replace(g, v, graph_reshape(g, d, n.rank, n.dims));
    return true;
}

/* f(x, y) becomes m'(f(m(x), m(y))) for an elementwise op and a movement m with inverse m'. */
static bool wrap(graph *g, rng *r, val v) {
    node n = *graph_get(g, v);
    int64_t perm[TN_MAX_RANK], inverse[TN_MAX_RANK], flat = graph_elems(g, v);
    bool permutes = rng_chance(r, 0.5);
    val in[3];
    if (!op_is_elementwise(n.op)) return false;
    random_perm(r, n.rank, perm, inverse);
    for (int i = 0; i < n.n_in; i++) in[i] = permutes ? graph_permute(g, n.in[i], perm) : graph_reshape(g, n.in[i], 1, &flat);
    val f = graph_add(g, &(spec){ .op = n.op, .in = in, .n_in = n.n_in });
    graph_replace(g, v, permutes ? graph_permute(g, f, inverse) : graph_reshape(g, f, n.rank, n.dims));
    return true;
}

/* Puts detours into a graph that mean nothing, for the passes to find. */
static bool add_detours(graph *g, rng *r) {
    bool changed = false;
    int n_nodes = g->nodes.n;
    for (int i = 0; i < 4; i++) {
        val v = (val)rng_between(r, 1, n_nodes - 1);
        node n = *graph_get(g, v);
        if (n.region != 0 || n.n_in == 0) continue;
        int slot = (int)rng_below(r, n.n_in);
        if (n.op == OP_dot && rng_chance(r, 0.5)) {
            changed = batch(g, r, v) || changed;
            continue;
        }
        if (rng_chance(r, 0.3) && wrap(g, r, v))
            changed = true;
        else if (graph_elems(g, n.in[slot]) < 4000)
            graph_set_in(g, v, slot, round_trip(g, r, n.in[slot]));
        changed = true;
    }
    return changed;
}

/* ---- one run ------------------------------------------------------------------------------------------------------------- */

typedef struct job {
    uint64_t seed;
    const graph *source;     /* NULL: made from the seed */
    const pass_info *mutant; /* NULL: only right rewrites */
    bool with_grad;
    bool mutated; /* out: the mutant changed something */
    const char *last;
    char text[512];
    err err;
} job;

/* Adds the gradients of the sum of the first float output by every float input. */
static void add_gradients(graph *g) {
    val xs[64], out[64];
    int n = 0;
    for (int i = 0; i < g->inputs.n && n < 64; i++) {
        const node *x = graph_get(g, g->inputs.at[i]);
        if (x->dtype == TN_F32 && x->op == OP_input) xs[n++] = g->inputs.at[i];
    }
    for (int i = 0; i < g->outputs.n && n > 0; i++) {
        val v = g->outputs.at[i].v;
        node y = *graph_get(g, v);
        if (y.dtype != TN_F32) continue;
        val loss = graph_reshape(g, graph_reduce(g, OP_sum, v, (UINT64_C(1) << y.rank) - 1), 0, NULL);
        grad_build(g, loss, xs, n, out);
        for (int k = 0; k < n; k++) {
            char name[16];
            snprintf(name, sizeof name, "d%d", k);
            graph_output(g, name, out[k]);
        }
        return;
    }
}

static void compare_outputs(const graph *g, const graph *want_graph, arena *a, const sample *in, const eval_value *want,
                            double **bound, const char *pass) {
    eval_value *got = eval_graph(g, a, in->values);
    char text[400];
    if (g->outputs.n != want_graph->outputs.n) guard_fail(a->gd, TN_ERR_VERIFY, "%s: an output is gone", pass);
    for (int i = 0; i < g->outputs.n; i++) {
        val v = g->outputs.at[i].v, w = want_graph->outputs.at[i].v;
        const node *x = graph_get(g, v), *y = graph_get(want_graph, w);
        if (x->dtype != y->dtype || x->rank != y->rank || (x->rank && memcmp(x->dims, y->dims, x->rank * sizeof *x->dims) != 0))
            guard_fail(a->gd, TN_ERR_VERIFY, "%s: output %d has another type", pass, i);
        void *data = arena_alloc(a, (size_t)graph_elems(g, v) * dtype_size(x->dtype) + 1);
        eval_store(g, v, got[v], data);
        if (compare(want_graph, w, data, want[w], bound[w], 4, text, sizeof text) >= 0)
            guard_fail(a->gd, TN_ERR_VERIFY, "%s: %s", pass, text);
    }
}

/* Only passes that run alone: the standard list would settle everything at once. */
static void run_job(arena *a, void *ud) {
    job *j = ud;
    rng r = rng_make(j->seed ^ 0x1234567);
    graph *g = j->source ? graph_clone(j->source, a, false, NULL) : randgraph(a, j->seed, NULL);
    j->last = "gradient";
    if (j->with_grad) {
        add_gradients(g);
        graph_compact(g);
    }
    graph *source = graph_clone(g, a, false, NULL);
    sample in = sample_make(source, a, j->seed);
    eval_value *want = eval_graph(source, a, in.values);
    double **bound = bound_graph(source, a, want);
    int n_passes, n_steps = (int)rng_between(&r, 3, 24), mutant_at = j->mutant ? (int)rng_below(&r, n_steps) : -1;
    const pass_info *table = pass_table(&n_passes);
    while (table[n_passes - 1].stage == STAGE_ASKED) n_passes--; /* these round: test_asked */
    for (int i = 0; i < n_steps; i++) {
        const pass_info *p = i == mutant_at ? j->mutant : &table[rng_below(&r, n_passes)];
        j->last = "a detour";
        if (i != mutant_at && g->nodes.n < 400 && rng_chance(&r, 0.5) && add_detours(g, &r)) {
            graph_compact(g);
            compare_outputs(g, source, a, &in, want, bound, j->last);
        }
        j->last = p->name;
        bool changed = pass_run(g, p, a, true);
        if (i == mutant_at) j->mutated = changed;
        if (changed) compare_outputs(g, source, a, &in, want, bound, p->name);
    }
    j->last = "all passes";
    if (j->mutant) return;
    pass_run_all(g, a, true);
    compare_outputs(g, source, a, &in, want, bound, "all passes");
    for (int i = 0; i < n_passes; i++) { /* settled: nothing changes any more */
        j->last = table[i].name;
        if (table[i].stage <= STAGE_LOWER && pass_run(g, &table[i], a, true))
            guard_fail(a->gd, TN_ERR_VERIFY, "%s changes a settled graph", table[i].name);
    }
    for (int v = 1; v < g->nodes.n; v++)
        if (graph_get(g, (val)v)->op == OP_fold) guard_fail(a->gd, TN_ERR_VERIFY, "a fold is left");
}

static tn_status run_one(job *j) {
    tn_status s = with_arena(run_job, j, &j->err);
    return s == TN_ERR_UNSUPPORTED && j->with_grad && !strcmp(j->last, "gradient") ? TN_OK : s; /* ops without derivative */
}

static bool fails_too(graph *g, void *ud) {
    job j = *(job *)ud;
    j.source = g;
    return run_one(&j) != TN_OK;
}
static void shrink(arena *a, void *ud) {
    job *j = ud;
    reduce_and_print(randgraph(a, j->seed, NULL), a, fails_too, j);
}

/* Passes that round on request: the graph is right behind them, and behind all others after them; types of outputs stay. */
static void run_asked(arena *a, void *ud) {
    job *j = ud;
    for (int half = 0; half < 2; half++) {
        graph *g = randgraph(a, j->seed, NULL), *h = graph_clone(g, a, false, NULL);
        j->last = half ? "contract_f16" : "contract_bf16";
        j->mutated |= pass_run(h, pass_find(j->last), a, true);
        for (int i = 0; i < g->outputs.n; i++)
            if (graph_get(g, g->outputs.at[i].v)->dtype != graph_get(h, h->outputs.at[i].v)->dtype)
                guard_fail(a->gd, TN_ERR_VERIFY, "output %d has another type", i);
        pass_run_all(h, a, true);
    }
}

static void test_asked(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(300, &first);
    int n_changed = 0;
    for (uint64_t i = first; i < first + n; i++) {
        job j = { .seed = i };
        if (with_arena(run_asked, &j, &j.err) != TN_OK)
            fail_msg("seed %llu, %s: %s", (unsigned long long)i, j.last, j.err.text);
        n_changed += j.mutated;
    }
    assert_true(n < 100 || n_changed > 0);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(1000, &first);
    int n_failed = 0;
    for (uint64_t i = first; i < first + n && n_failed < 3; i++) {
        job j = { .seed = i, .with_grad = i % 3 == 0 };
        if (run_one(&j) == TN_OK) continue;
        print_error("seed %llu%s: %s\n", (unsigned long long)i, j.with_grad ? " with gradients" : "", j.err.text);
        with_arena(shrink, &j, NULL);
        n_failed++;
    }
    print_message("%llu random graphs through random passes\n", (unsigned long long)n);
    assert_int_equal(n_failed, 0);
}

/* ---- rewrites that are wrong on purpose ---------------------------------------------------------------------------------- */

typedef val (*wrong_rule)(graph *g, val v);

/* Applies a wrong rule to the first node of the graph itself that takes it. */
static bool apply_once(graph *g, wrong_rule rule) {
    int n = g->nodes.n;
    for (int v = n - 1; v >= 1; v--) {
        if (graph_get(g, (val)v)->region != 0 || graph_elems(g, (val)v) == 0) continue;
        val r = rule(g, (val)v);
        if (r == 0) continue;
        graph_replace(g, (val)v, r);
        return true;
    }
    return false;
}
#define WRONG(name)                                                                                                            \
    static val rule_##name(graph *g, val v);                                                                                   \
    static bool wrong_##name(graph *g, arena *scratch) {                                                                       \
        (void)scratch;                                                                                                         \
        return apply_once(g, rule_##name);                                                                                     \
    }                                                                                                                          \
    static val rule_##name(graph *g, val v)

WRONG(swapped_sub) {
    node n = *graph_get(g, v);
    return n.op == OP_sub && n.in[0] != n.in[1] ? graph_binary(g, OP_sub, n.in[1], n.in[0]) : 0;
}
WRONG(swapped_select) {
    node n = *graph_get(g, v);
    return n.op == OP_select && n.in[1] != n.in[2] ? graph_select(g, n.in[0], n.in[2], n.in[1]) : 0;
}
WRONG(dropped_neg) {
    node n = *graph_get(g, v);
    return n.op == OP_neg ? n.in[0] : 0;
}
WRONG(dropped_constant) {
    node n = *graph_get(g, v);
    double c;
    return n.op == OP_add && graph_splat_value(g, n.in[1], &c) && c != 0 ? n.in[0] : 0;
}
WRONG(min_for_max) {
    node n = *graph_get(g, v);
    return n.op == OP_max ? graph_binary(g, OP_min, n.in[0], n.in[1]) : 0;
}
WRONG(pad_value) {
    node n = *graph_get(g, v);
    return n.op == OP_pad ? graph_pad(g, n.in[0], n.attr, n.attr + n.rank, n.imm + 1) : 0;
}
WRONG(pad_sides) {
    node n = *graph_get(g, v);
    return n.op == OP_pad && memcmp(n.attr, n.attr + n.rank, n.rank * sizeof *n.attr) != 0
               ? graph_pad(g, n.in[0], n.attr + n.rank, n.attr, n.imm)
               : 0;
}
WRONG(dropped_pad) { /* the readers of a pad get its operand */
    node n = *graph_get(g, v);
    return n.op == OP_pad ? n.in[0] : 0;
}
WRONG(slice_start) {
    node n = *graph_get(g, v);
    int64_t start[TN_MAX_RANK];
    if (n.op != OP_slice) return 0;
    for (int i = 0; i < n.rank; i++) {
        int64_t last = n.attr[i] + (n.dims[i] - 1) * n.attr[n.rank + i];
        memcpy(start, n.attr, n.rank * sizeof *start);
        start[i] += last + 1 < graph_get(g, n.in[0])->dims[i] ? 1 : -1;
        if (start[i] >= 0) return graph_slice(g, n.in[0], start, n.dims, n.attr + n.rank);
    }
    return 0;
}
WRONG(slice_step) {
    node n = *graph_get(g, v);
    int64_t step[TN_MAX_RANK];
    if (n.op != OP_slice) return 0;
    bool any = false;
    for (int i = 0; i < n.rank; i++) {
        any = any || (n.attr[n.rank + i] != 1 && n.dims[i] > 1);
        step[i] = 1;
    }
    return any ? graph_slice(g, n.in[0], n.attr, n.dims, step) : 0;
}
WRONG(perm_order) { /* composes two permutes the wrong way round */
    node n = *graph_get(g, v);
    node x = *graph_get(g, n.op == OP_permute ? n.in[0] : v);
    int64_t perm[TN_MAX_RANK];
    if (n.op != OP_permute) return 0;
    for (int i = 0; i < n.rank; i++) perm[i] = x.op == OP_permute ? n.attr[x.attr[i]] : 0;
    if (x.op == OP_permute) return graph_permute(g, x.in[0], perm);
    for (int i = 0; i < n.rank; i++) perm[n.attr[i]] = i; /* or takes the inverse */
    return memcmp(perm, n.attr, n.rank * sizeof *perm) != 0 ? graph_permute(g, n.in[0], perm) : 0;
}
WRONG(permute_as_reshape) {
    node n = *graph_get(g, v);
    return n.op == OP_permute ? graph_reshape(g, n.in[0], n.rank, n.dims) : 0;
}
WRONG(axis_mask) { /* reduces one axis less and keeps its first element */
    node n = *graph_get(g, v);
    int64_t start[TN_MAX_RANK] = { 0 };
    if (op_get(n.op)->cls != CL_REDUCE) return 0;
    for (int i = 0; i < n.rank; i++)
        if (n.attr[0] >> i & 1 && graph_get(g, n.in[0])->dims[i] > 1)
            return graph_slice(g, graph_reduce(g, n.op, n.in[0], (uint64_t)n.attr[0] & ~(UINT64_C(1) << i)), start, n.dims,
                               NULL);
    return 0;
}
WRONG(forgotten_count) { /* sum of an expanded value without the factor */
    node n = *graph_get(g, v);
    if (n.op != OP_expand) return 0;
    val twice = graph_binary(g, OP_add, n.in[0], n.in[0]);
    return graph_get(g, v)->dtype == TN_BOOL ? 0 : graph_expand(g, twice, n.dims);
}
WRONG(dropped_cast) { /* cast(cast(x)) -> x although the first loses bits */
    node n = *graph_get(g, v);
    if (n.op != OP_cast) return 0;
    node x = *graph_get(g, n.in[0]);
    if (dtype_is_float(x.dtype) && !dtype_is_float(n.dtype))
        return graph_cast(g, graph_binary(g, OP_add, n.in[0], graph_splat_like(g, n.in[0], 1)), n.dtype);
    bool loses = dtype_size(x.dtype) < dtype_size(n.dtype);
    return x.op == OP_cast && loses && graph_get(g, x.in[0])->dtype == n.dtype ? x.in[0] : 0;
}
WRONG(concat_order) {
    node n = *graph_get(g, v);
    val in[16];
    if (n.op != OP_concat || n.n_in > 16 || n.n_in < 2 || n.in[0] == n.in[n.n_in - 1]) return 0;
    for (int i = 0; i < n.n_in; i++) in[i] = n.in[n.n_in - 1 - i];
    return graph_concat(g, in, n.n_in, (int)n.attr[0]);
}
WRONG(flip_axis) {
    node n = *graph_get(g, v);
    return n.op == OP_flip ? n.in[0] : 0;
}
WRONG(fold_as_slice) { /* the sum of windows keeps only the first */
    node n = *graph_get(g, v);
    if (n.op != OP_sum) return 0;
    return graph_reduce(g, OP_reduce_max, n.in[0], (uint64_t)n.attr[0]);
}
WRONG(swapped_dot) {
    node n = *graph_get(g, v);
    if (n.op != OP_dot || n.in[0] == n.in[1]) return 0;
    int64_t nb = n.attr[0], nc = n.attr[1];
    const int64_t *b = n.attr + 2, *c = b + 2 * nb;
    return graph_dot(g, n.in[1], n.in[0], b + nb, b, (int)nb, c + nc, c, (int)nc); /* and nobody permutes the result */
}

/* A pass that writes node.in itself: the use lists no longer tell the truth. */
static bool wrong_stale_uses(graph *g, arena *scratch) {
    (void)scratch;
    for (int v = g->nodes.n - 1; v >= 1; v--) {
        node *n = graph_get(g, (val)v);
        for (int k = 1; k < n->n_in && op_is_elementwise(n->op); k++)
            if (n->in[k] != n->in[0] && graph_get(g, n->in[k])->dtype == graph_get(g, n->in[0])->dtype) {
                n->in[k] = n->in[0];
                return true;
            }
    }
    return false;
}
/* A pass that makes a value depend on itself. */
static bool wrong_cycle(graph *g, arena *scratch) {
    (void)scratch;
    for (int v = g->nodes.n - 1; v >= 1; v--) {
        const node *n = graph_get(g, (val)v);
        if (n->n_in != 2 || n->op != OP_add) continue;
        graph_set_in(g, (val)v, 1, (val)v);
        return true;
    }
    return false;
}
/* A pass that changes a node's dtype, or its dims, in place. */
static bool wrong_dtype(graph *g, arena *scratch) {
    (void)scratch;
    for (int v = g->nodes.n - 1; v >= 1; v--) {
        node *n = graph_get(g, (val)v);
        if (n->dtype != TN_F32 || n->n_in == 0) continue;
        n->dtype = TN_F64;
        return true;
    }
    return false;
}
static bool wrong_dims(graph *g, arena *scratch) {
    (void)scratch;
    for (int v = g->nodes.n - 1; v >= 1; v--) {
        node *n = graph_get(g, (val)v);
        if (n->n_in == 0 || n->rank == 0 || n->dims[0] < 2) continue;
        int64_t *dims = arena_copy(g->a, n->dims, n->rank * sizeof *dims);
        dims[0]--;
        n->dims = dims;
        return true;
    }
    return false;
}
/* A pass that exchanges two outputs of equal type. */
static bool wrong_outputs(graph *g, arena *scratch) {
    (void)scratch;
    for (int i = 0; i < g->outputs.n; i++)
        for (int k = i + 1; k < g->outputs.n; k++) {
            val v = g->outputs.at[i].v, w = g->outputs.at[k].v;
            if (v == w || !graph_same_shape(g, v, w) || graph_get(g, v)->dtype != graph_get(g, w)->dtype) continue;
            g->outputs.at[i].v = w;
            g->outputs.at[k].v = v;
            return true;
        }
    return false;
}
/* Common subexpressions found by op and operands alone. */
static bool wrong_cse(graph *g, arena *scratch) {
    (void)scratch;
    for (int v = 1; v < g->nodes.n; v++)
        for (int w = v + 1; w < g->nodes.n; w++) {
            const node *x = graph_get(g, (val)v), *y = graph_get(g, (val)w);
            if (x->op != y->op || x->dtype != y->dtype || x->n_in != 1 || y->n_in != 1 || x->in[0] != y->in[0]) continue;
            if (!graph_same_shape(g, (val)v, (val)w) || x->n_attr == 0 ||
                memcmp(x->attr, y->attr, x->n_attr * sizeof *x->attr) == 0)
                continue;
            graph_replace(g, (val)w, (val)v);
            return true;
        }
    return false;
}

#define ROW(name)                                                                                                              \
    { #name, "", "", STAGE_CANON, wrong_##name }
static const pass_info mutants[] = {
    ROW(swapped_sub), ROW(swapped_select),  ROW(dropped_neg),  ROW(dropped_constant),
    ROW(min_for_max), ROW(pad_value),       ROW(pad_sides),    ROW(dropped_pad),
    ROW(slice_start), ROW(slice_step),      ROW(perm_order),   ROW(permute_as_reshape),
    ROW(axis_mask),   ROW(forgotten_count), ROW(dropped_cast), ROW(concat_order),
    ROW(flip_axis),   ROW(fold_as_slice),   ROW(swapped_dot),  ROW(stale_uses),
    ROW(cycle),       ROW(dtype),           ROW(dims),         ROW(outputs),
    ROW(cse),
};

/* A mutant may meet graphs in which it does no harm (a factor of 1, a symmetric value): it must be caught within its first 10
 * uses. */
static void test_mutants(void **state) {
    (void)state;
    int n_caught = 0;
    for (size_t m = 0; m < COUNT_OF(mutants); m++) {
        bool caught = false;
        int n_used = 0;
        for (uint64_t seed = 1; seed <= 2000 && !caught && n_used < 10; seed++) {
            job j = { .seed = seed * 977 + m, .mutant = &mutants[m] };
            tn_status s = run_one(&j);
            if (s != TN_OK && strcmp(j.last, mutants[m].name) != 0) print_error("seed %d: %s\n", (int)j.seed, j.err.text);
            assert_true(s == TN_OK || strcmp(j.last, mutants[m].name) == 0); /* right rewrites are never blamed */
            n_used += j.mutated || s != TN_OK;
            caught = s != TN_OK;
        }
        if (!caught) print_error("wrong rewrite '%s' was used %d times and never caught\n", mutants[m].name, n_used);
        n_caught += caught;
    }
    print_message("%d of %d wrong rewrites caught\n", n_caught, (int)COUNT_OF(mutants));
    assert_int_equal(n_caught, COUNT_OF(mutants));
}

/* What breaks the graph itself is an internal error under the name of the pass. */
static void test_blame(void **state) {
    (void)state;
    static const pass_info broken[] = { ROW(stale_uses), ROW(cycle), ROW(dtype), ROW(dims) };
    for (size_t m = 0; m < COUNT_OF(broken); m++) {
        bool caught = false;
        char blame[64];
        snprintf(blame, sizeof blame, "pass %s ", broken[m].name);
        for (uint64_t seed = 1; seed <= 200 && !caught; seed++) {
            job j = { .seed = seed, .mutant = &broken[m] };
            caught = run_one(&j) == TN_ERR_INTERNAL && strstr(j.err.text, blame);
        }
        if (!caught) print_error("%s was not blamed\n", broken[m].name);
        assert_true(caught);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_mutants),
                                        cmocka_unit_test(test_blame), cmocka_unit_test(test_asked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
