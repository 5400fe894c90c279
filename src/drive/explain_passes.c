/* explain_passes.c - what each pass made of a graph, as JSON. In: a compiled program. The passes run once more over a copy of
 * its graph. Out: the values as given; for each pass that changed something what it added, removed and connected otherwise;
 * which of all these values are those of `explain.json`. A value keeps its number from pass to pass. */
#include "drive/explain.h"

typedef struct recorder {
    arena *a;
    const graph *g;
    str *out;
    int n;               /* nodes of the graph that the last pass left, and the number of each .. */
    uint32_t *number;    /* [n] */
    const uint32_t **in; /* [n] .. and the numbers of its operands */
    uint32_t next;       /* number that no value has yet */
    int n_passes;
} recorder;

static void add_numbers(str *out, const uint32_t *at, int n) {
    str_add(out, "[");
    for (int i = 0; i < n; i++) str_addf(out, "%s%u", i ? "," : "", at[i]);
    str_add(out, "]");
}

/* [number, op, shape, name, operands] */
static void add_value(const recorder *r, val v, uint32_t number, const uint32_t *in, str *out) {
    const node *n = graph_get(r->g, v);
    str_addf(out, "[%u,\"%s\",", number, plan_op_name((op_code)n->op));
    str_json(out, graph_shape_text(r->g, out->a, v));
    str_add(out, ",");
    str_json(out, n->name ? n->name : "");
    str_add(out, ",");
    add_numbers(out, in, n->n_in);
    str_add(out, "]");
}

static const uint32_t *numbers_of(const recorder *r, val v, const uint32_t *number) {
    const node *n = graph_get(r->g, v);
    uint32_t *in = ARENA_ARRAY(r->a, uint32_t, n->n_in + 1);
    for (int i = 0; i < n->n_in; i++) in[i] = number[n->in[i]];
    return in;
}

static bool same_numbers(const uint32_t *x, const uint32_t *y, int n) { return !memcmp(x, y, sizeof *x * (size_t)n); }

/* The passes follow each other in compaction's order, which is that of graph_order. */
static void keep(recorder *r, const val *order, int n, const uint32_t *number) {
    uint32_t *kept = ARENA_ARRAY(r->a, uint32_t, n + 1);
    const uint32_t **in = ARENA_ARRAY(r->a, const uint32_t *, n + 1);
    for (int i = 0; i < n; i++) kept[i + 1] = number[order[i]], in[i + 1] = numbers_of(r, order[i], number);
    r->number = kept, r->in = in, r->n = n + 1;
}

static void record(void *ud, const graph *g, const pass_info *p) {
    recorder *r = ud;
    r->g = g;
    val *order = ARENA_ARRAY(r->a, val, g->nodes.n + 1);
    uint32_t *number = ARENA_ARRAY(r->a, uint32_t, g->nodes.n + 1);
    bool *live = ARENA_ARRAY(r->a, bool, g->nodes.n + 1);
    int n = graph_order(g, r->a, true, order), listed = 0;
    for (int i = 0; i < n; i++)
        number[order[i]] = order[i] < (val)r->n ? r->number[order[i]] : r->next++, live[order[i]] = true;
    str_addf(r->out, "%s{\"pass\":\"%s\",\"doc\":", r->n_passes++ ? "," : "", p->name);
    str_json(r->out, p->doc);
    str_addf(r->out, ",\"stage\":\"%s\",\"values\":%d,\"added\":[", pass_stage_name(p->stage), n);
    for (int i = 0; i < n; i++) {
        if (order[i] < (val)r->n) continue;
        if (listed++) str_add(r->out, ",");
        add_value(r, order[i], number[order[i]], numbers_of(r, order[i], number), r->out);
    }
    str_add(r->out, "],\"removed\":[");
    listed = 0;
    for (int v = 1; v < r->n; v++)
        if (!live[v]) str_addf(r->out, "%s%u", listed++ ? "," : "", r->number[v]);
    str_add(r->out, "],\"rewired\":[");
    listed = 0;
    for (int v = 1; v < r->n; v++) {
        const uint32_t *in = live[v] ? numbers_of(r, (val)v, number) : NULL;
        if (!in || same_numbers(in, r->in[v], graph_get(g, (val)v)->n_in)) continue;
        str_addf(r->out, "%s[%u,", listed++ ? "," : "", r->number[v]);
        add_numbers(r->out, in, graph_get(g, (val)v)->n_in);
        str_add(r->out, "]");
    }
    str_add(r->out, "]}");
    keep(r, order, n, number);
}

static void record_given(recorder *r, const graph *g) {
    val *order = ARENA_ARRAY(r->a, val, g->nodes.n + 1);
    uint32_t *number = ARENA_ARRAY(r->a, uint32_t, g->nodes.n + 1);
    int n = 0;
    for (val v = 1; v < (val)g->nodes.n; v++) order[n++] = v, number[v] = v;
    r->g = g, r->next = (uint32_t)g->nodes.n;
    keep(r, order, n, number);
    str_add(r->out, "\"given\":[");
    for (int i = 0; i < n; i++) {
        if (i) str_add(r->out, ",");
        add_value(r, order[i], number[order[i]], r->in[i + 1], r->out);
    }
    str_add(r->out, "],");
}

void explain_passes(const tn_program *p, arena *a, str *out) {
    graph *g = graph_clone(drive_with_values(p, p->graph, a), a, false, NULL);
    recorder r = { .a = a, .out = out };
    pass_watch w = { record, &r };
    graph_compact(g);
    str_add(out, "{\"schema\":1,");
    record_given(&r, g);
    str_add(out, "\"passes\":[");
    pipeline_passes(g, a, &p->opts, &p->target, &w);
    str_add(out, "],\"numbers\":");
    add_numbers(out, r.number + 1, r.n - 1);
    str_add(out, "}\n");
}
