/* test_support.c - the tests' own tools: random graphs are valid, finite, cover every op and can be compared; bounds hold for
 * an evaluation in float and are broken by planted errors; reduction shrinks.
 * Labels: random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/support.h"
#include "ir/region.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- random graphs ---- */

typedef struct census {
    uint64_t seed;
    int64_t seen[N_OPS];
    bool finite;
    double n_checked, n_elems, n_floats, n_sharp;
    int largest, n_states, n_zero_size, n_rank0;
} census;

static void count_ops(arena *a, void *ud) {
    census *c = ud;
    graph *g = randgraph(a, c->seed, NULL);
    for (int v = 1; v < g->nodes.n; v++) c->seen[g->nodes.at[v].op]++;
}

static void every_op_appears(void **state) {
    (void)state;
    census c = { 0 };
    err e;
    for (c.seed = 0; c.seed < 2000; c.seed++)
        if (with_arena(count_ops, &c, &e) != TN_OK) fail_msg("seed %llu: %s", (unsigned long long)c.seed, e.text);
    for (int op = 1; op < N_OPS; op++) {
        if (op_get((op_code)op)->cls == CL_CTRL) continue;
        if (c.seen[op] == 0) fail_msg("op %s appears in none of 2000 random graphs", op_get((op_code)op)->name);
    }
}

static void check_one(arena *a, void *ud) {
    census *c = ud;
    graph *g = randgraph(a, c->seed, NULL);
    str problems;
    str_init(&problems, a);
    if (graph_check(g, &problems) != 0) fail_msg("seed %llu: %s", (unsigned long long)c->seed, problems.s);
    assert_true(g->outputs.n > 0);
    sample in = sample_make(g, a, c->seed);
    eval_value *v = eval_graph(g, a, in.values);
    double **bound = bound_graph(g, a, v);
    c->finite = true;
    for (int k = 0; k < g->outputs.n; k++) {
        val x = g->outputs.at[k].v;
        int64_t count = graph_elems(g, x);
        for (int64_t i = 0; i < count; i++) c->finite &= v[x].f ? isfinite(v[x].f[i]) != 0 : true;
        c->n_elems += (double)count;
        c->n_checked += (double)count * (1 - unchecked_share(g, x, bound[x]));
        for (int64_t i = 0; v[x].f && i < count; i++) c->n_floats++, c->n_sharp += bound[x][i] <= 0.01 * (1 + fabs(v[x].f[i]));
        c->n_zero_size += count == 0;
        c->n_rank0 += graph_get(g, x)->rank == 0;
        c->n_states += g->outputs.at[k].state != 0;
    }
    if (g->nodes.n > c->largest) c->largest = g->nodes.n;
}

static void graphs_are_valid_and_finite(void **state) {
    (void)state;
    census c = { 0 };
    err e;
    int n_finite = 0;
    for (c.seed = 0; c.seed < 500; c.seed++) {
        if (with_arena(check_one, &c, &e) != TN_OK) fail_msg("seed %llu: %s", (unsigned long long)c.seed, e.text);
        if (!c.finite) print_message("seed %llu is not finite\n", (unsigned long long)c.seed);
        n_finite += c.finite;
    }
    print_message("finite: %d of 500; elements checked: %.2f %%, floats to 1 %%: %.2f %%; largest: %d nodes; outputs: %d "
                  "states, %d of size 0, %d of rank 0\n",
                  n_finite, 100 * c.n_checked / c.n_elems, 100 * c.n_sharp / c.n_floats, c.largest, c.n_states, c.n_zero_size,
                  c.n_rank0);
    assert_true(n_finite > 475);
    assert_true(c.n_checked > 0.9 * c.n_elems);
    assert_true(c.n_states > 10 && c.n_zero_size > 0 && c.n_rank0 > 10);
}

ARENA_TEST(graphs_depend_on_the_seed_alone) {
    const char *why = NULL;
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_true(graph_equal(randgraph(a, seed, NULL), randgraph(a, seed, NULL), a, &why));
        assert_false(graph_equal(randgraph(a, seed, NULL), randgraph(a, seed + 1, NULL), a, &why));
    }
}

/* In many graphs that are one each gives what it gives alone. */
ARENA_TEST(joined_graphs_stay_as_they_are) {
    enum { N = 40 };
    int differentiated = 0, compared = 0;
    graph *all = randcases(a, 100, N, &differentiated);
    str problems;
    str_init(&problems, a);
    assert_int_equal(graph_check(all, &problems), 0);
    assert_in_range(differentiated, 1, N / 2);
    sample in = sample_make(all, a, 1);
    eval_value *whole = eval_graph(all, a, in.values);
    for (int i = 0; i < N; i += 2) { /* those without gradients */
        graph *g = randgraph(a, 100 + (uint64_t)i, &(randgraph_opts){ .max_steps = 7 });
        eval_value *values = ARENA_ARRAY(a, eval_value, g->inputs.n);
        char text[512];
        for (int k = 0; k < g->inputs.n; k++) {
            int at = graph_find_input(all, arena_printf(a, "%s of %d", graph_get(g, g->inputs.at[k])->name, i));
            assert_in_range(at, 0, all->inputs.n - 1);
            values[k] = in.values[at];
        }
        eval_value *alone = eval_graph(g, a, values);
        for (int k = 0; k < g->outputs.n; k++) {
            const output *o = &g->outputs.at[k];
            if (!o->name) continue;
            int at = graph_find_output(all, arena_printf(a, "%s of %d", o->name, i));
            assert_in_range(at, 0, all->outputs.n - 1);
            char *typed = arena_alloc(a, (size_t)graph_elems(g, o->v) * dtype_size((tn_dtype)graph_get(g, o->v)->dtype) + 1);
            eval_store(g, o->v, alone[o->v], typed);
            if (compare(all, all->outputs.at[at].v, typed, whole[all->outputs.at[at].v], NULL, 1, text, sizeof text) >= 0)
                fail_msg("%s of %d: %s", o->name, i, text);
            compared++;
        }
    }
    assert_in_range(compared, N / 2, 100 * N);
}

ARENA_TEST(options_restrict_dtypes) {
    randgraph_opts o = { .dtypes = 1u << TN_F32, .no_states = true, .no_random = true, .no_zero_size = true };
    for (uint64_t seed = 0; seed < 60; seed++) {
        graph *g = randgraph(a, seed, &o);
        for (int v = 1; v < g->nodes.n; v++) {
            const node *n = graph_get(g, (val)v);
            assert_true(!dtype_is_float(n->dtype) || n->dtype == TN_F32);
            assert_true(n->op != OP_state && n->op != OP_random);
            assert_true(graph_elems(g, (val)v) > 0);
        }
    }
}

/* ---- bounds ---- */

/* The graph with every float value rounded to its dtype after every op: what unfused kernels compute. The evaluator cannot do
 * that itself, so each node is evaluated alone on rounded operands. */
static eval_value *eval_rounded(const graph *g, arena *a, const eval_value *in) {
    eval_value *out = ARENA_ARRAY(a, eval_value, g->nodes.n);
    for (int k = 0; k < g->inputs.n; k++) out[g->inputs.at[k]] = in[k];
    for (int v = 1; v < g->nodes.n; v++) {
        const node *n = graph_get(g, (val)v);
        if (n->op == OP_input || n->op == OP_state) continue;
        graph *one = graph_make(a, "one");
        eval_value *operands = ARENA_ARRAY(a, eval_value, n->n_in);
        val *ids = ARENA_ARRAY(a, val, n->n_in);
        for (int j = 0; j < n->n_in; j++) {
            const node *x = graph_get(g, n->in[j]);
            spec s = {
                .op = OP_input, .dtype = (tn_dtype)x->dtype, .rank = x->rank, .dims = x->dims, .name = arena_printf(a, "x%d", j)
            };
            ids[j] = graph_add(one, &s);
            operands[j] = out[n->in[j]];
        }
        spec s = {
            .op = (op_code)n->op, .dtype = (tn_dtype)n->dtype, .in = ids, .n_in = n->n_in, .rank = n->rank, .dims = n->dims
        };
        s.attr = n->attr, s.n_attr = n->n_attr, s.splat = n->splat, s.imm = n->imm, s.imm_int = n->imm_int, s.data = n->data;
        val r = graph_add(one, &s);
        eval_value exact = eval_graph(one, a, operands)[r];
        void *typed = arena_alloc(a, (size_t)graph_elems(g, (val)v) * dtype_size(n->dtype) + 1);
        eval_store(g, (val)v, exact, typed);
        out[v] = eval_load(g, a, (val)v, typed);
    }
    return out;
}

static void compare_rounded(arena *a, void *ud) {
    uint64_t seed = *(uint64_t *)ud;
    graph *g = randgraph(a, seed, NULL);
    sample in = sample_make(g, a, seed);
    eval_value *want = eval_graph(g, a, in.values), *got = eval_rounded(g, a, in.values);
    double **bound = bound_graph(g, a, want);
    char text[512];
    for (int v = 1; v < g->nodes.n; v++) {
        void *typed = arena_alloc(a, (size_t)graph_elems(g, (val)v) * dtype_size(graph_get(g, (val)v)->dtype) + 1);
        eval_store(g, (val)v, got[v], typed);
        if (compare(g, (val)v, typed, want[v], bound[v], 1, text, sizeof text) >= 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, text);
    }
}

static void bounds_hold_for_rounded_evaluation(void **state) {
    (void)state;
    err e;
    uint64_t first, n = fuzz_seeds(500, &first);
    for (uint64_t seed = first; seed < first + n; seed++)
        if (with_arena(compare_rounded, &seed, &e) != TN_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, e.text);
}

/* A relative error of 1/512 in one element of a shallow f32 graph must not pass. */
ARENA_TEST(planted_errors_are_found) {
    rng r = rng_make(5);
    randgraph_opts o = { .dtypes = 1u << TN_F32, .min_steps = 1, .max_steps = 3 };
    int found = 0, planted = 0;
    char text[512];
    for (uint64_t seed = 0; seed < 100; seed++) {
        graph *g = randgraph(a, seed, &o);
        sample in = sample_make(g, a, seed);
        eval_value *want = eval_graph(g, a, in.values);
        double **bound = bound_graph(g, a, want);
        val v = g->outputs.at[0].v;
        int64_t count = graph_elems(g, v), i = rng_below(&r, count);
        if (count == 0 || !want[v].f || fabs(want[v].f[i]) < 1e-3) continue;
        float *typed = arena_alloc(a, (size_t)count * sizeof *typed);
        eval_store(g, v, want[v], typed);
        assert_int_equal(compare(g, v, typed, want[v], bound[v], 4, text, sizeof text), -1);
        typed[i] *= 1 + 1.0f / 512;
        planted++;
        found += compare(g, v, typed, want[v], bound[v], 4, text, sizeof text) == i;
    }
    print_message("planted errors found: %d of %d\n", found, planted);
    assert_true(planted > 40 && found > 0.9 * planted);
}

/* The first op of the graph that has a twin of the same type gets exchanged for it, as a wrong rewrite would. */
static bool exchange_an_op(graph *g) {
    static const uint8_t twins[][2] = {
        { OP_add, OP_sub }, { OP_max, OP_min }, { OP_exp, OP_cosh }, { OP_lt, OP_ge }, { OP_sin, OP_cos }
    };
    for (int v = g->nodes.n - 1; v > 0; v--) {
        for (size_t k = 0; k < COUNT_OF(twins); k++) {
            if (g->nodes.at[v].op != twins[k][0]) continue;
            g->nodes.at[v].op = twins[k][1];
            return true;
        }
    }
    return false;
}

static void count_wrong_rewrites(arena *a, void *ud) {
    int *count = ud; /* seed, tried, found */
    char text[512];
    graph *g = randgraph(a, (uint64_t)count[0], NULL), *wrong = graph_clone(g, a, false, NULL);
    if (!exchange_an_op(wrong)) return;
    sample in = sample_make(g, a, (uint64_t)count[0]);
    eval_value *want = eval_graph(g, a, in.values), *got = eval_graph(wrong, a, in.values);
    double **bound = bound_graph(g, a, want);
    bool found = false;
    for (int k = 0; k < g->outputs.n; k++) {
        val v = g->outputs.at[k].v;
        void *typed = arena_alloc(a, (size_t)graph_elems(g, v) * sizeof(double) + 1);
        eval_store(g, v, got[v], typed);
        found |= compare(g, v, typed, want[v], bound[v], 4, text, sizeof text) >= 0;
    }
    count[1]++;
    count[2] += found;
}

static void wrong_rewrites_are_found(void **state) {
    (void)state;
    int count[3] = { 0 };
    err e;
    for (; count[0] < 400; count[0]++)
        if (with_arena(count_wrong_rewrites, count, &e) != TN_OK) fail_msg("seed %d: %s", count[0], e.text);
    print_message("wrong rewrites found: %d of %d\n", count[2], count[1]);
    assert_true(count[1] > 200 && count[2] > 0.8 * count[1]);
}

/* tanh(x) where x > 0, exp(x) elsewhere, as an if over a scalar: the bound is that of the branch taken. */
ARENA_TEST(bounds_follow_the_taken_branch) {
    graph *g = graph_make(a, "t");
    int yes = graph_region(g, "yes"), no = graph_region(g, "no");
    int64_t zero = 0, regions[2] = { yes, no };
    spec p = { .op = OP_param, .dtype = TN_F32, .attr = &zero, .n_attr = 1, .region = yes };
    val t = graph_unary(g, OP_tanh, graph_add(g, &p));
    p.region = no;
    val e = graph_unary(g, OP_exp, graph_add(g, &p));
    graph_region_result(g, yes, t);
    graph_region_result(g, no, e);
    spec in = { .op = OP_input, .dtype = TN_F32, .name = "x" };
    val x = graph_add(g, &in), operands[2] = { graph_binary(g, OP_gt, x, graph_splat(g, TN_F32, 0, NULL, 0)), x };
    spec s = { .op = OP_if, .in = operands, .n_in = 2, .attr = regions, .n_attr = 2 };
    val y = graph_add(g, &s);
    double numbers[2] = { 0.5, -0.5 };
    for (int k = 0; k < 2; k++) {
        eval_value value = { .f = &numbers[k] };
        eval_value *v = eval_graph(g, a, &value);
        double b = bound_graph(g, a, v)[y][0], want = k == 0 ? tanh(0.5) : exp(-0.5),
               ulps = op_get(k == 0 ? OP_tanh : OP_exp)->ulp;
        assert_true(v[y].f[0] == want);
        assert_true(b >= ulps * want * 0x1p-24 && b <= 4 * ulps * want * 0x1p-23);
    }
}

/* sin, cos and tan turn between the ends of what an operand may be, 1 / x has its pole there: in a linear network with a last
 * sine (random graph 70700815) the ends of the sine's operand were a period apart. */
ARENA_TEST(bounds_hold_between_the_ends) {
    static const op_code ops[] = { OP_sin, OP_cos, OP_tan, OP_div };
    const double x[2] = { 0x1.8p+23, 0.7 }; /* their sum has an error of about a unit, its difference of none */
    graph *g = graph_make(a, "t");
    val in[2], y[COUNT_OF(ops)];
    for (int i = 0; i < 2; i++) {
        spec s = { .op = OP_input, .dtype = TN_F32, .name = i ? "b" : "a" };
        in[i] = graph_add(g, &s);
    }
    val sum = graph_binary(g, OP_add, in[0], in[1]), rest = graph_binary(g, OP_sub, sum, in[0]);
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        y[k] = ops[k] == OP_div ? graph_binary(g, ops[k], in[1], rest) : graph_unary(g, ops[k], sum);
    eval_value values[2] = { { .f = (double[]){ x[0] } }, { .f = (double[]){ x[1] } } };
    eval_value *v = eval_graph(g, a, values);
    double **bound = bound_graph(g, a, v);
    for (size_t k = 0; k < COUNT_OF(ops); k++) {
        val from = ops[k] == OP_div ? rest : sum;
        double reach = bound[from][0];
        assert_true(reach > 0.5 && reach < 16);
        for (int i = 0; i <= 1000; i++) {
            double at = v[from].f[0] + reach * (i / 500.0 - 1),
                   is = ops[k] == OP_div ? x[1] / at : eval_element_float(ops[k], at, 0, 0);
            assert_true(fabs(is - v[y[k]].f[0]) <= bound[y[k]][0]);
        }
    }
}

ARENA_TEST(compare_tells_where) {
    graph *g = graph_make(a, "t");
    float x[6] = { 1, 2, 3, 4, 5, NAN }, y[6] = { 1, 2, 3, 4, 5, NAN };
    val v = graph_const(g, TN_F32, 2, (int64_t[]){ 2, 3 }, x);
    eval_value want = eval_graph(g, a, NULL)[v];
    char text[512];
    assert_int_equal(compare(g, v, y, want, NULL, 1, text, sizeof text), -1);
    y[4] = nextafterf(5, 6);
    assert_int_equal(compare(g, v, y, want, NULL, 1, text, sizeof text), 4);
    assert_non_null(strstr(text, "[1/2, 1/3]"));
    double bound[6] = { 0, 0, 0, 0, 1e-5, 0 };
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), -1);
    y[5] = 0; /* a number where NaN is due */
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), 5);
    y[5] = NAN, y[0] = NAN;
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), 0);
    want.f[0] = FLT_MAX, y[0] = INFINITY; /* infinity where what is allowed rounds to it, with that sign */
    bound[0] = 0x1p103;
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), -1);
    bound[0] = 0x1p102;
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), 0);
    bound[0] = 0x1p103, y[0] = -INFINITY;
    assert_int_equal(compare(g, v, y, want, bound, 1, text, sizeof text), 0);
}

ARENA_TEST(filled_values_are_finite_and_not_zero) {
    rng r = rng_make(1);
    for (int t = 0; t < TN_N_DTYPES; t++) {
        uint64_t data[1000];
        fill_random(&r, (tn_dtype)t, data, 1000, dtype_is_unsigned((tn_dtype)t) ? 1 : -2, 7);
        double sum = 0;
        for (int64_t i = 0; i < 1000; i++) {
            double v = dtype_load((tn_dtype)t, data, i);
            assert_true(t == TN_BOOL || (isfinite(v) && v != 0 && v >= -2 && v <= 7));
            sum += v;
        }
        assert_true(sum > 300);
    }
}

/* ---- reduction ---- */

static bool has_tanh(graph *g, void *ud) {
    (void)ud;
    for (int v = 1; v < g->nodes.n; v++)
        if (g->nodes.at[v].op == OP_tanh) return true;
    return false;
}

ARENA_TEST(reduction_shrinks) {
    int n_tried = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        graph *g = randgraph(a, seed, NULL);
        if (!has_tanh(g, NULL)) continue;
        graph *small = reduce_graph(g, a, has_tanh, NULL);
        str problems;
        str_init(&problems, a);
        assert_int_equal(graph_check(small, &problems), 0);
        assert_true(has_tanh(small, NULL));
        assert_true(small->nodes.n <= 4); /* nil, a source, tanh, at most one state that is assigned */
        n_tried++;
    }
    assert_true(n_tried > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filled_values_are_finite_and_not_zero),
        cmocka_unit_test(compare_tells_where),
        cmocka_unit_test(graphs_depend_on_the_seed_alone),
        cmocka_unit_test(joined_graphs_stay_as_they_are),
        cmocka_unit_test(options_restrict_dtypes),
        cmocka_unit_test(every_op_appears),
        cmocka_unit_test(graphs_are_valid_and_finite),
        cmocka_unit_test(bounds_hold_for_rounded_evaluation),
        cmocka_unit_test(wrong_rewrites_are_found),
        cmocka_unit_test(bounds_follow_the_taken_branch),
        cmocka_unit_test(bounds_hold_between_the_ends),
        cmocka_unit_test(planted_errors_are_found),
        cmocka_unit_test(reduction_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
