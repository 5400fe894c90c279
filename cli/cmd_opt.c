/* cmd_opt.c - `tenon opt`: runs graph passes by name and prints the graph that comes out. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int list_passes(cli *c) {
    json j = { 0 };
    if (c->json) {
        j = json_begin(stdout, "opt");
        json_array(&j, "passes");
    }
    for (int i = 0; i < tn_ir_n_passes(); i++) {
        tn_ir_pass p;
        if (tn_ir_get_pass(i, &p)) continue;
        if (!c->json)
            printf("%-20s %-7s %s\n", p.name, p.stage, p.doc);
        else {
            json_line(&j, NULL);
            json_text(&j, "name", p.name);
            json_text(&j, "stage", p.stage);
            json_text(&j, "doc", p.doc);
            json_text(&j, "regions", p.regions);
            json_end(&j);
        }
    }
    if (c->json) {
        json_end(&j);
        json_finish(&j);
    }
    return CLI_OK;
}

/* Names that are wrong are wrong usage; the library would refuse them as any wrong argument. */
static const char *pass_list(cli *c) {
    const char *text = cli_text(c, "passes", "all");
    for (const char *s = text; *s; s += strcspn(s, ","), s += *s == ',') {
        size_t n = strcspn(s, ",");
        bool known = n == 3 && !strncmp(s, "all", 3);
        tn_ir_pass p;
        for (int i = 0; i < tn_ir_n_passes() && !known; i++)
            known = !tn_ir_get_pass(i, &p) && strlen(p.name) == n && !strncmp(p.name, s, n);
        if (!known) cli_usage(c, "there is no pass %.*s (tenon opt --list has them)", (int)n, s);
    }
    return text;
}

typedef struct sample { /* random values of the inputs, and every output in double */
    int n_in, n_out;
    value *in;
    tn_binding *bindings;
    double **out;
    int64_t *count;
} sample;

static sample draw_inputs(cli *c, tn_graph *g, uint64_t seed) {
    int n = tn_ir_n_values(g);
    sample s = { .in = cli_alloc(sizeof(value) * ((size_t)n + 1)),
                 .bindings = cli_alloc(sizeof(tn_binding) * ((size_t)n + 1)) };
    for (int i = 0; i < n; i++) {
        tn_ir_value v;
        cli_need(c, tn_ir_get_value(g, i, &v));
        if (strcmp(v.op, "input")) continue;
        s.in[s.n_in] = value_of(c, &v);
        value_random(&s.in[s.n_in], &seed, FEW_NUMBERS);
        s.bindings[s.n_in] = (tn_binding){ cli_format("%s", v.name), s.in[s.n_in].data };
        s.n_in++;
    }
    return s;
}

static void evaluate(cli *c, tn_graph *g, sample *s, double ***out, int64_t **count) {
    tn_ir_eval *e;
    cli_need(c, tn_ir_evaluate(g, s->bindings, s->n_in, &e));
    s->n_out = tn_ir_n_outputs(g);
    *out = cli_alloc(sizeof(double *) * ((size_t)s->n_out + 1));
    *count = cli_alloc(sizeof(int64_t) * ((size_t)s->n_out + 1));
    for (int i = 0; i < s->n_out; i++) {
        tn_tensor y;
        cli_need(c, tn_ir_get_output(g, i, NULL, &y, NULL));
        const double *v = tn_ir_eval_values(e, y, &(*count)[i]);
        if (!v && (*count)[i]) cli_need(c, TN_ERR_INTERNAL);
        (*out)[i] = cli_alloc((size_t)(*count)[i] * sizeof(double));
        if (v) memcpy((*out)[i], v, (size_t)(*count)[i] * sizeof(double));
    }
    tn_ir_eval_free(e);
}

/* Both in double: passes may reorder arithmetic, so a few roundings of the largest element are allowed. */
static bool same(cli *c, int i, const double *x, const double *y, int64_t n) {
    double size = 0;
    for (int64_t k = 0; k < n; k++) size = isfinite(x[k]) ? fmax(size, fabs(x[k])) : size;
    for (int64_t k = 0; k < n; k++) {
        if (x[k] == y[k] || (isnan(x[k]) && isnan(y[k])) || fabs(x[k] - y[k]) <= 1e-11 * size) continue;
        cli_note(c, "output %d, element %lld: %.17g before the passes, %.17g after", i, (long long)k, x[k], y[k]);
        return false;
    }
    return true;
}

static bool verify(cli *c, sample *s, double **before, const int64_t *count, tn_graph *g) {
    double **after;
    int64_t *n;
    bool ok = true;
    int n_before = s->n_out;
    evaluate(c, g, s, &after, &n);
    if (s->n_out != n_before) cli_fail(c, "the passes changed the number of outputs from %d to %d", n_before, s->n_out);
    for (int i = 0; i < s->n_out; i++) {
        ok = ok && n[i] == count[i] && same(c, i, before[i], after[i], n[i]);
        free(before[i]);
        free(after[i]);
    }
    free(before);
    free(after);
    free(n);
    return ok;
}

static int run(cli *c) {
    if (cli_flag(c, "list")) return list_passes(c);
    if (!c->n_args) cli_usage(c, "an argument is missing: GRAPH");
    const char *passes = pass_list(c);
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    tn_graph *g = model_open(c, c->args[0], seed);
    int n_before = tn_ir_n_values(g);
    double **values = NULL;
    int64_t *count = NULL;
    sample s = { 0 };
    bool ok = true;
    if (cli_flag(c, "verify")) {
        s = draw_inputs(c, g, seed);
        evaluate(c, g, &s, &values, &count);
    }
    cli_need(c, tn_ir_run_passes(g, passes, cli_flag(c, "check")));
    if (values) ok = verify(c, &s, values, count, g);
    char *text;
    cli_need(c, tn_graph_print(g, &text));
    if (c->json) {
        json j = json_begin(stdout, "opt");
        json_int(&j, "values_before", n_before);
        json_int(&j, "values_after", tn_ir_n_values(g));
        if (s.in) json_bool(&j, "verified", ok);
        json_text(&j, "graph", text);
        json_finish(&j);
    } else
        fputs(text, stdout);
    cli_note(c, "%d values before, %d after%s", n_before, tn_ir_n_values(g),
             !s.in ? ""
             : ok  ? "; the outputs agree"
                   : "; the outputs DIFFER");
    tn_string_free(c->ctx, text);
    for (int i = 0; i < s.n_in; i++) {
        value_free(&s.in[i]);
        free((char *)s.bindings[i].name);
    }
    free(s.in);
    free(s.bindings);
    free(count);
    tn_graph_free(g);
    return ok ? CLI_OK : CLI_FAILED;
}

static const cli_option options[] = {
    { "passes", 'p', "LIST", "passes in order, such as fold,cse; `all` (default) = the standard list until nothing changes" },
    { "list", 'l', NULL, "list the passes and stop" },
    { "check", 0, NULL, "verify the graph after every pass" },
    { "verify", 0, NULL, "evaluate before and after in double on random inputs; exit code 1 when they differ" },
    { "seed", 's', "N", "of those inputs and of builtin models (default 1)" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_opt = {
    "opt",
    "[GRAPH]",
    "run graph passes by name, print the graph",
    "Reads a graph, rewrites it, prints the result in the same text form, ready to be read again.\n\n"
    "examples:\n"
    "  tenon opt --list\n"
    "  tenon opt net.tn --passes fold,cse,algebra --verify\n"
    "  tenon opt @softmax:4x8 | tenon run -",
    0,
    1,
    options,
    run,
};
