/* ir.c - `tenon bench ir`: how fast graphs are made, printed, parsed back, checked and walked: values a second. The
 * graphs are random: ops of one to three operands over earlier values of f32[16,16], some with a literal, some that move.
 * Checked: the parsed graph prints the same text and has as many values. */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

typedef struct subject {
    cli *c;
    int64_t n; /* builder calls */
    uint64_t seed;
    tn_graph *graph;
    char *text;
} subject;

enum { NEAR = 64 /* operands are from so many values before */ };

static tn_tensor grow(const tn_tensor *last, uint64_t r) {
    tn_tensor x = last[r % NEAR], y = last[r / NEAR % NEAR];
    switch (r >> 32 & 7) {
    case 0:
        return tn_relu(x);
    case 1:
        return tn_exp(x);
    case 2:
        return tn_mul_scalar(x, 0.5);
    case 3:
        return tn_transpose(x, 0, 1);
    case 4:
        return tn_select(tn_lt(x, y), x, y);
    case 5:
        return tn_mul(x, y);
    default:
        return tn_add(x, y);
    }
}

static tn_graph *build(subject *s) {
    uint64_t seed = s->seed;
    tn_tensor last[NEAR];
    tn_graph *g = tn_graph_new(cli_ctx(s->c), "random");
    for (int i = 0; i < NEAR; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        last[i] = tn_input(g, name, TN_F32, TN_DIMS(16, 16));
    }
    for (int64_t i = 0; i < s->n; i++) last[i % NEAR] = grow(last, random_next(&seed));
    for (int i = 0; i < NEAR; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        tn_output(last[i], name);
    }
    cli_need(s->c, tn_graph_status(g));
    return g;
}

/* What making graphs takes, without freeing them. */
static double clock_making(subject *s, tn_graph *(*make)(subject *s), int64_t times) {
    double spent = 0;
    for (int64_t i = 0; i < times; i++) {
        double start = cli_seconds();
        tn_graph *g = make(s);
        spent += cli_seconds() - start;
        tn_graph_free(g);
    }
    return spent;
}
static double clock_build(void *ud, int64_t times) { return clock_making(ud, build, times); }
static double clock_print(void *ud, int64_t times) {
    subject *s = ud;
    double spent = 0;
    for (int64_t i = 0; i < times; i++) {
        char *text;
        double start = cli_seconds();
        cli_need(s->c, tn_graph_print(s->graph, &text));
        spent += cli_seconds() - start;
        tn_string_free(s->c->ctx, text);
    }
    return spent;
}
static tn_graph *parse(subject *s) {
    tn_graph *g = tn_graph_parse(s->c->ctx, s->text, strlen(s->text), "random");
    if (!g) cli_fail(s->c, "%s", tn_ctx_error(s->c->ctx));
    return g;
}
static double clock_parse(void *ud, int64_t times) { return clock_making(ud, parse, times); }
static void run_check(void *ud, int64_t times) {
    subject *s = ud;
    for (int64_t i = 0; i < times; i++) cli_need(s->c, tn_graph_check(s->graph));
}
static void run_walk(void *ud, int64_t times) { /* from each value to its operands */
    subject *s = ud;
    for (int64_t i = 0; i < times; i++) {
        int64_t operands = 0;
        for (int k = 0; k < tn_ir_n_values(s->graph); k++) {
            tn_ir_value v;
            cli_need(s->c, tn_ir_get_value(s->graph, k, &v));
            operands += v.n_operands;
        }
        if (!operands) cli_fail(s->c, "no value of a random graph has operands");
    }
}

/* print(parse(print(g))) is print(g), and nothing is lost. */
static void check(subject *s) {
    char *again;
    tn_graph *g = parse(s);
    cli_need(s->c, tn_graph_print(g, &again));
    if (cli_flag(s->c, "plant-error")) again[strlen(again) / 2] ^= 1;
    if (strcmp(again, s->text) != 0) cli_fail(s->c, "a random graph of %lld ops reads back as another", (long long)s->n);
    tn_string_free(s->c->ctx, again);
    tn_graph_free(g);
}

static void measure(suite *s, int64_t n) {
    subject x = { .c = s->c, .n = n, .seed = s->seed };
    x.graph = build(&x);
    cli_need(s->c, tn_graph_print(x.graph, &x.text));
    check(&x);
    stats_case at[] = { { .clock = clock_build, .ud = &x, .label = "build" },
                        { .clock = clock_print, .ud = &x, .label = "print" },
                        { .clock = clock_parse, .ud = &x, .label = "parse" },
                        { .run = run_check, .ud = &x, .label = "check" },
                        { .run = run_walk, .ud = &x, .label = "walk" } };
    char label[64];
    snprintf(label, sizeof label, "graph of %lld ops", (long long)n);
    suite_measure(s, label, at, COUNT_OF(at), s->seconds);
    int64_t values = tn_ir_n_values(x.graph);
    for (size_t i = 0; i < COUNT_OF(at); i++) {
        bench_row r = row_empty();
        r.work = "ir";
        r.name = at[i].label;
        r.size = values;
        row_time(&r, &at[i].result, 0, (rate){ 0, 0 });
        r.us_per_million = r.median_us * 1e6 / (double)values;
        r.per_second = 1e6 * (double)values / r.median_us;
        suite_add(s, r);
    }
    tn_string_free(s->c->ctx, x.text);
    tn_graph_free(x.graph);
}

int bench_ir(cli *c) {
    suite s = suite_begin(c, "bench ir");
    int64_t sizes[16];
    int n = cli_ints(c, "sizes", "1000,100000", sizes, COUNT_OF(sizes), 64, 1 << 19);
    for (int i = 0; i < n; i++) measure(&s, sizes[i]);
    suite_report(&s);
    suite_end(&s);
    return CLI_OK;
}
