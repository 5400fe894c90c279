/* test_same_bits.c - a compiled graph gives the same bits for any number of threads, and in every run.
 *
 * Labels: random
 * Random graphs with tensors large enough to be split run with 1, 2 and 3 threads; all outputs are compared byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/support.h"

/* Outputs of p on the inputs of `in`, one after the other in the order of p->io; the number of bytes in out_bytes. */
static unsigned char *outputs_of(tn_ctx *ctx, const graph *g, arena *a, tn_program *p, const sample *in, size_t *out_bytes) {
    tn_session *s = NULL;
    size_t at = 0, bytes = 0;
    for (int i = 0; i < p->n_io; i++)
        if (p->io[i].is_output) bytes += (size_t)p->io[i].bytes;
    unsigned char *all = arena_alloc(a, bytes + 1);
    memset(all, 0xee, bytes + 1);
    if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 0; i < p->n_io; i++) {
        void *where = all + at;
        for (int k = 0; k < g->inputs.n && !p->io[i].is_output; k++)
            if (!strcmp(graph_get(g, g->inputs.at[k])->name, p->io[i].name)) where = in->data[k];
        if (p->io[i].is_output) at += (size_t)p->io[i].bytes;
        if (tn_session_bind(s, i, where)) fail_msg("%s", tn_ctx_error(ctx));
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(ctx));
    tn_session_free(s);
    *out_bytes = bytes;
    return all;
}

static int n_parallel;

/* What is split over threads for sure: a contraction, long reductions over all axes and over each, rows, duplicates in a
 * scatter. */
static graph *large_graph(arena *a) {
    graph *g = graph_make(a, "large");
    int64_t dims[2] = { 517, 1031 }, dims_w[2] = { 1031, 131 }, n = 517;
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 2, .dims = dims, .name = "x" });
    val w = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 2, .dims = dims_w, .name = "w" });
    val index = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_I32, .rank = 1, .dims = &n, .name = "index" });
    val e = graph_unary(g, OP_exp, x), rows = graph_reduce(g, OP_sum, e, 2);
    graph_output(g, "dot", graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
    graph_output(g, "sum", graph_reduce(g, OP_sum, x, 3));
    graph_output(g, "columns", graph_reduce(g, OP_sum, graph_unary(g, OP_sin, x), 1));
    graph_output(g, "softmax", graph_binary(g, OP_div, e, graph_expand(g, rows, dims)));
    graph_output(g, "best", graph_arg(g, OP_argmax, x, 1));
    graph_output(g, "scatter",
                 graph_scatter_add(g, graph_slice(g, x, (int64_t[]){ 0, 0 }, (int64_t[]){ 7, 1031 }, (int64_t[]){ 1, 1 }),
                                   index, x, 0, 0));
    return g;
}

static void one_graph(arena *a, void *ud) {
    uint64_t seed = *(uint64_t *)ud;
    tn_ctx *ctx = test_ctx();
    graph *g = seed == UINT64_MAX
                   ? large_graph(a)
                   : randgraph(a, seed, &(randgraph_opts){ .max_elems = 100000, .min_steps = 6, .max_steps = 12 });
    sample in = sample_make(g, a, seed);
    unsigned char *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        tn_program *p = NULL;
        size_t bytes = 0;
        o.threads = threads;
        if (drive_compile(ctx, g, &o, &p)) fail_msg("seed %llu: %s", (unsigned long long)seed, tn_ctx_error(ctx));
        for (int run = 0; run < 2; run++) {
            unsigned char *all = outputs_of(ctx, g, a, p, &in, &bytes);
            if (!first) first = all;
            for (size_t i = 0; i < bytes; i++)
                if (all[i] != first[i])
                    fail_msg("seed %llu: %d threads, run %d: byte %zu differs", (unsigned long long)seed, threads, run, i);
        }
        n_parallel += threads == 2 && p->parallel;
        tn_program_free(p);
    }
    tn_ctx_free(ctx);
}

static void test_threads_give_same_bits(void **state) {
    (void)state;
    uint64_t first, n = (fuzz_seeds(400, &first) + 19) / 20; /* the C compiler runs three times a graph */
    n_parallel = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        err e;
        if (with_arena(one_graph, &seed, &e) != TN_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, e.text);
    }
    printf("%llu random graphs, %d of them with kernels split over threads: the same bits with 1, 2 and 3 threads\n",
           (unsigned long long)n, n_parallel);
}

static void test_large_graph(void **state) {
    (void)state;
    uint64_t seed = UINT64_MAX;
    err e;
    n_parallel = 0;
    if (with_arena(one_graph, &seed, &e) != TN_OK) fail_msg("%s", e.text);
    assert_int_equal(n_parallel, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_large_graph), cmocka_unit_test(test_threads_give_same_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
