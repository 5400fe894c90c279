/* cmd_verify.c - `tenon verify`: runs a graph in several modes with its values as extra outputs, and checks them node by node.
 *
 * Each computed tensor is compared with its op in double on the operands that the same run computed, so the first node reported
 * is the one that is wrong, not one that inherited an error. Values in bodies of control flow are no outputs: the results of
 * their ops are checked, on their operands. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct node_data { /* values of one node in one run */
    tn_ir_value v;
    value data;
    bool source; /* input, state or constant: known, not checked */
    bool inside; /* of a body: the results of its op are checked */
} node_data;

typedef struct checked { /* result of one mode */
    const char *mode;
    char *sizes;       /* of symbolic dims, or NULL */
    int values, bad;   /* nodes checked, nodes that missed their bound */
    int inside;        /* nodes of bodies */
    tn_ir_value first; /* the first of those */
    tn_ir_difference difference;
    char *shape;
    double max_abs, max_ratio; /* over all nodes: largest difference, largest share of the bound used */
    node_data *nodes;          /* [n], with their values: compared with those of the first mode */
    int n, other_bits;         /* other_bits: nodes whose bits are not those of the first mode */
    double apart;              /* largest difference from the first mode */
} checked;

static char *output_name(uint32_t id) { return cli_format("value.%u", id); }

static node_data *list_nodes(cli *c, tn_graph *g, int *out_n) {
    int n = tn_ir_n_values(g);
    node_data *nodes = cli_alloc(sizeof(node_data) * ((size_t)n + 1));
    for (int i = 0; i < n; i++) {
        cli_need(c, tn_ir_get_value(g, i, &nodes[i].v));
        tn_ir_detail detail;
        cli_need(c, tn_ir_get_detail(g, i, &detail));
        nodes[i].inside = detail.body != 0;
        nodes[i].data = value_of(c, &nodes[i].v);
        nodes[i].source = nodes[i].v.n_operands == 0;
    }
    *out_n = n;
    return nodes;
}

/* Values are listed by their ids. */
static int find_node(const node_data *nodes, int n, uint32_t id) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (nodes[mid].v.tensor.id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && nodes[lo].v.tensor.id == id ? lo : -1;
}

/* The node whose operands value i is computed of: its own, or that of the op whose result it is. */
static const node_data *op_of(const node_data *nodes, int n, int i) {
    int at = strcmp(nodes[i].v.op, "proj") ? i : find_node(nodes, n, nodes[i].v.operands[0]);
    return &nodes[at < 0 ? i : at];
}

/* --input NAME=..: true when it is given. */
static bool fill_given(cli *c, const char *name, value *to) {
    int at = 0;
    bool found = false;
    for (const char *text; (text = cli_next(c, "input", &at));) {
        size_t n = strcspn(text, "=");
        if (strlen(name) != n || memcmp(name, text, n)) continue;
        value v = value_parse(c, name, text + n + 1);
        char *given = shape_text(v.dtype, v.shape), *want = shape_text(to->dtype, to->shape);
        if (strcmp(given, want)) cli_usage(c, "--input %s: %s given, the graph wants %s", name, given, want);
        memcpy(to->data, v.data, v.bytes);
        value_free(&v);
        free(given), free(want);
        found = true;
    }
    return found;
}

/* Inputs as given, or random from the seed, the same in every mode; states by their initial values; constants from the
 * evaluator. */
static void fill_sources(cli *c, tn_graph *g, node_data *nodes, int n, uint64_t seed) {
    tn_binding *in = cli_alloc(sizeof(tn_binding) * ((size_t)n + 1));
    int n_in = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(nodes[i].v.op, "input")) continue;
        uint64_t own = seed + 0x51ed2701u * (uint64_t)(i + 1);
        if (!fill_given(c, nodes[i].v.name, &nodes[i].data)) value_random(&nodes[i].data, &own, FEW_NUMBERS);
        in[n_in++] = (tn_binding){ nodes[i].v.name, nodes[i].data.data };
    }
    tn_ir_eval *e;
    cli_need(c, tn_ir_evaluate(g, in, n_in, &e));
    for (int i = 0; i < n; i++) {
        if (!nodes[i].source || nodes[i].inside || !strcmp(nodes[i].v.op, "input")) continue;
        int64_t count;
        const double *x = tn_ir_eval_values(e, nodes[i].v.tensor, &count);
        for (int64_t k = 0; x && k < count; k++) tn_ir_store(nodes[i].data.dtype, nodes[i].data.data, k, x[k]);
    }
    tn_ir_eval_free(e);
    free(in);
}

static void compare_node(cli *c, tn_graph *g, node_data *nodes, int n, int i, checked *r) {
    const tn_ir_value *op = &op_of(nodes, n, i)->v;
    const void **operands = cli_alloc(sizeof(void *) * ((size_t)op->n_operands + 1));
    for (int k = 0; k < op->n_operands; k++) {
        int at = find_node(nodes, n, op->operands[k]);
        if (at < 0) cli_fail(c, "value %u uses value %u, which is not listed", op->tensor.id, op->operands[k]);
        operands[k] = nodes[at].data.data;
    }
    tn_ir_difference d;
    cli_need(c, tn_ir_compare(g, nodes[i].v.tensor, operands, nodes[i].data.data, &d));
    free(operands);
    r->values++;
    if (d.max_abs > r->max_abs) r->max_abs = d.max_abs;
    if (d.ok && d.bound > 0 && isfinite(d.got)) r->max_ratio = fmax(r->max_ratio, fabs(d.got - d.want) / d.bound);
    if (d.ok || r->bad++) return;
    r->first = nodes[i].v;
    r->difference = d;
    r->shape = shape_text(nodes[i].v.dtype, nodes[i].v.shape);
}

/* A graph whose value `only` (with its operands), or every value when only < 0, is an output; run once. Symbolic dims stay
 * open in the program, and get their values from the session. */
static void run_with_outputs(cli *c, node_data *nodes, int n, const tn_compile_opts *o, uint64_t seed, int only,
                             const dim_sizes *at) {
    tn_graph *g = model_open(c, c->args[0], seed);
    bool *out = cli_alloc((size_t)n + 1);
    for (int i = 0; i < n; i++) out[i] = only < 0 || i == only;
    const tn_ir_value *op = only >= 0 ? &op_of(nodes, n, only)->v : NULL;
    for (int k = 0; op && k < op->n_operands; k++) out[find_node(nodes, n, op->operands[k])] = true;
    for (int i = 0; i < n; i++) {
        out[i] = out[i] && !nodes[i].source && !nodes[i].inside;
        if (!out[i]) continue;
        tn_ir_value v;
        cli_need(c, tn_ir_get_value(g, i, &v));
        char *name = output_name(nodes[i].v.tensor.id);
        tn_output(v.tensor, name);
        free(name);
    }
    tn_program *p;
    tn_session *s;
    cli_need(c, tn_compile(g, o, &p));
    cli_need(c, tn_session_new(p, &s));
    for (int i = 0; i < at->n; i++) cli_need(c, tn_bind_dim(s, at->size[i].name, at->size[i].size));
    ports io = ports_of(c, p, s);
    ports_poison(&io);
    for (int i = 0; i < n; i++) {
        int k = strcmp(nodes[i].v.op, "input") ? -1 : tn_session_slot(s, nodes[i].v.name);
        if (k >= 0) memcpy(io.value[k].data, nodes[i].data.data, nodes[i].data.bytes);
    }
    ports_bind(c, s, &io);
    cli_need(c, tn_session_run(s));
    for (int i = 0; i < n; i++) {
        if (!out[i]) continue;
        char *name = output_name(nodes[i].v.tensor.id);
        int k = tn_session_slot(s, name);
        if (k < 0) cli_fail(c, "the program has no output %s", name);
        memcpy(nodes[i].data.data, io.value[k].data, io.value[k].bytes);
        free(name);
    }
    ports_free(&io);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    free(out);
}

static checked check_mode(cli *c, const char *mode, uint64_t seed, const dim_sizes *at) {
    checked r = { .mode = mode };
    tn_compile_opts o = cli_compile_opts(c);
    o.mode = cli_mode(c, mode);
    int n;
    tn_graph *open = model_open(c, c->args[0], seed), *g = at->n ? tn_ir_at(open, at->size, at->n) : open;
    if (!g) cli_fail(c, "%s", tn_ctx_error(c->ctx));
    node_data *nodes = list_nodes(c, g, &n);
    fill_sources(c, g, nodes, n, seed);
    bool each = cli_flag(c, "each");
    progress bar = progress_begin(c, mode, n);
    if (!each) run_with_outputs(c, nodes, n, &o, seed, -1, at);
    for (int i = 0; i < n; i++) {
        r.inside += nodes[i].inside;
        if (nodes[i].source || nodes[i].inside) continue;
        progress_step(&bar, i, nodes[i].v.op);
        if (each) run_with_outputs(c, nodes, n, &o, seed, i, at);
        compare_node(c, g, nodes, n, i, &r);
    }
    progress_end(&bar);
    r.nodes = nodes;
    r.n = n;
    r.first.operands = NULL;
    if (r.bad) { /* the names belong to the graph, which goes now */
        r.first.name = r.first.name ? cli_format("%s", r.first.name) : NULL;
        r.first.where = r.first.where ? cli_format("%s", r.first.where) : NULL;
    }
    if (g != open) tn_graph_free(g);
    tn_graph_free(open);
    return r;
}

/* How far the same graph's values in two modes are apart: each is within its bound, but their bits may differ. */
static void compare_modes(checked *r, const checked *first) {
    for (int i = 0; i < r->n; i++) {
        const value *x = &r->nodes[i].data, *y = &first->nodes[i].data;
        if (r->nodes[i].source || r->nodes[i].inside || memcmp(x->data, y->data, x->bytes) == 0) continue;
        r->other_bits++;
        for (int64_t k = 0; k < x->n; k++) {
            double d = fabs(tn_ir_load(x->dtype, x->data, k) - tn_ir_load(y->dtype, y->data, k));
            if (d > r->apart) r->apart = d;
        }
    }
}

static void report_modes(const checked *r, const checked *first) {
    if (r->other_bits)
        printf("%-10s %d of %d values have other bits than in %s, by at most %.3g\n", "", r->other_bits, r->values, first->mode,
               r->apart);
    else
        printf("%-10s bit for bit as in %s\n", "", first->mode);
}

static void report_json(const cli *c, const checked *r, int n, bool ok) {
    json j = json_begin(stdout, "verify");
    json_text(&j, "graph", c->args[0]);
    json_bool(&j, "ok", ok);
    json_array(&j, "modes");
    for (int i = 0; i < n; i++) {
        json_line(&j, NULL);
        json_text(&j, "mode", r[i].mode);
        if (r[i].sizes) json_text(&j, "sizes", r[i].sizes);
        json_int(&j, "values", r[i].values);
        json_int(&j, "inside_bodies", r[i].inside);
        json_int(&j, "bad", r[i].bad);
        json_number(&j, "max_abs_err", r[i].max_abs);
        json_number(&j, "max_bound_share", r[i].max_ratio);
        json_int(&j, "other_bits", r[i].other_bits); /* than in the first mode */
        json_number(&j, "max_apart", r[i].apart);
        if (r[i].bad) {
            json_object(&j, "first");
            json_int(&j, "value", r[i].first.tensor.id);
            json_text(&j, "op", r[i].first.op);
            json_text(&j, "name", r[i].first.name);
            json_text(&j, "where", r[i].first.where);
            json_text(&j, "shape", r[i].shape);
            json_int(&j, "index", r[i].difference.index);
            json_number(&j, "got", r[i].difference.got);
            json_number(&j, "want", r[i].difference.want);
            json_number(&j, "bound", r[i].difference.bound);
            json_end(&j);
        }
        json_end(&j);
    }
    json_end(&j);
    json_finish(&j);
}

static void report_text(const checked *r) {
    if (!r->bad) {
        printf("%-10s %d values agree with double precision; largest difference %.3g, at most %.0f %% of its bound\n", r->mode,
               r->values, r->max_abs, r->max_ratio * 100);
        if (r->inside) printf("%-10s %d values in bodies are checked by the results of their ops\n", "", r->inside);
        return;
    }
    char *line =
        cli_format("%-10s %d of %d values differ; the first is %s %%%u%s%s%s%s%s %s\n", r->mode, r->bad, r->values, r->first.op,
                   r->first.tensor.id, r->first.name ? " (" : "", r->first.name ? r->first.name : "", r->first.name ? ")" : "",
                   r->first.where ? " at " : "", r->first.where ? r->first.where : "", r->shape);
    cli_show(stdout, line);
    free(line);
    printf("%-10s element %lld is %.9g, from its operands it should be %.17g; the bound is %.3g\n", "",
           (long long)r->difference.index, r->difference.got, r->difference.want, r->difference.bound);
}

/* All modes, at sizes that are given or drawn. Returns false when a value misses its bound. */
static bool check_sizes(cli *c, char *const *modes, int n, uint64_t seed, const dim_sizes *at, checked *r) {
    bool ok = true;
    char *said = at->n ? sizes_text(at) : NULL;
    if (said && !c->json) printf("%s\n", said);
    for (int i = 0; i < n; i++) {
        r[i] = check_mode(c, modes[i], seed, at);
        r[i].sizes = said ? cli_format("%s", said) : NULL;
        ok = ok && !r[i].bad;
        if (i) compare_modes(&r[i], &r[0]);
        if (!c->json) report_text(&r[i]);
        if (!c->json && i) report_modes(&r[i], &r[0]);
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < r[i].n; k++) value_free(&r[i].nodes[k].data);
        free(r[i].nodes);
    }
    free(said);
    return ok;
}

static int run(cli *c) {
    enum { MODES = 4, TURNS = 3 };
    char *modes[MODES];
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    int n = cli_words(c, cli_text(c, "modes", "immediate,compiled"), modes, MODES), n_checked = 0;
    for (int i = 0; i < n; i++) cli_mode(c, modes[i]);
    checked r[MODES * TURNS];
    bool ok = true;
    tn_graph *g = model_open(c, c->args[0], seed);
    dim_sizes at = sizes_of(c, g);
    for (int turn = 0; turn < TURNS && sizes_sample(&at, turn, seed); turn++) {
        tn_graph *sized = at.n ? tn_ir_at(g, at.size, at.n) : NULL;
        if (at.n && !sized) { /* two sizes that do not go together, such as a cut that is longer than what it cuts */
            char *said = sizes_text(&at);
            cli_note(c, "%s is left out: %s", said, tn_ctx_error(c->ctx));
            free(said);
            continue;
        }
        tn_graph_free(sized);
        ok &= check_sizes(c, modes, n, seed, &at, r + n_checked);
        n_checked += n;
    }
    tn_graph_free(g);
    if (!n_checked) cli_fail(c, "none of these sizes can be checked");
    if (c->json) report_json(c, r, n_checked, ok);
    for (int i = 0; i < n_checked; i++) {
        free(r[i].shape), free(r[i].sizes);
        if (r[i].bad) free((char *)r[i].first.name), free((char *)r[i].first.where);
    }
    for (int i = 0; i < n; i++) free(modes[i]);
    return ok ? CLI_OK : CLI_FAILED;
}

static const cli_option options[] = {
    { "modes", 'm', "LIST", "modes to check (default immediate,compiled)" },
    { "each", 0, NULL, "one value at a time, so that the rest stays fused as in the real program (compiles once a value)" },
    { "input", 'i', "NAME=SPEC", "an input, as for `tenon run`; those not given are random" },
    { "seed", 's', "N", "of inputs that are not given and of builtin models (default 1)" },
    CLI_DTYPE_OPTION,
    CLI_LEVEL_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_verify = {
    "verify",
    "GRAPH",
    "run modes node by node, name the first node that differs",
    "Every value of the graph is made an output, and compared with its op evaluated in double on the operands of the same run. "
    "The\n"
    "bound is the op's own: its ULPs in the op table, n * eps * sum |a||b| for contractions and sums, nothing for what must be "
    "exact.\n"
    "Values in bodies of if, while and scan are checked by the results of these ops, whose bound is what roundings in the "
    "bodies\n"
    "can change.\n"
    "The second mode and those after it are compared with the first, too: bit for bit, or how far they are apart.\n"
    "Symbolic dims stay open in the programs, which are checked at three sizes of each: the least, the largest (at most 64) "
    "and "
    "one\nbetween; or at what --dim NAME=SIZE and shapes of --input give.\n"
    "Exit code 1 when a value misses its bound.\n\n"
    "examples:\n"
    "  tenon verify @cnn:8\n"
    "  tenon verify net.tn --modes compiled --fusion 2 --each\n"
    "  tenon verify net.onnx --dim batch=1..64\n"
    "  tenon verify @mlp:64x64 --modes immediate,graph,compiled,loop --json",
    1,
    1,
    options,
    run,
};
