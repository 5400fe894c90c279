/* explain_json.c - the model of explain.h as one JSON object: the graph's values, kernels, buffers and decisions, each
 * referring to the others by number. Keys stay; new ones may come. */
#include "drive/explain.h"

#include "loop/schedule.h"
#include "machine/machine.h"

typedef unsigned long long u64;

static const char *json_bool(bool x) { return x ? "true" : "false"; }

static void add_string(str *out, const char *key, const char *text) {
    str_addf(out, "\"%s\":", key);
    str_json(out, text);
    str_add(out, ",");
}

/* ---- the whole program ---- */

static void add_head(const explain *x, str *out) {
    const plan *p = x->plan;
    const tn_program_stats *s = &x->program->stats;
    add_string(out, "graph", p->g->name);
    add_string(out, "device", x->program->dev->api->name);
    if (x->program->why[0]) add_string(out, "device_why", x->program->why);
    str_addf(out, "\"fusion\":%d,\"threads\":%d,\"distinct_kernels\":%d,", p->fusion, s->threads, s->distinct_kernels);
    str_addf(out, "\"bytes_read\":%llu,\"bytes_written\":%llu,\"unfused_bytes_read\":%llu,\"unfused_bytes_written\":%llu,",
             (u64)s->bytes_read, (u64)s->bytes_written, (u64)p->unfused_read, (u64)p->unfused_written);
    str_addf(out, "\"flops\":%llu,\"state_bytes\":%llu,\"const_bytes\":%lld,\"scratch_bytes\":%zu,", (u64)s->flops,
             (u64)s->state_bytes, (long long)p->const_bytes, x->program->scratch);
    for (int i = 0; i < x->program->n_special; i++)
        str_addf(out, "%s%d%s", i ? "," : "\"special_kernels\":[", x->program->special[i]->stats.kernels,
                 i + 1 < x->program->n_special ? "" : "],");
    if (x->plan->again.n)
        str_addf(out, "\"memory_limit\":%llu,\"computed_again\":%d,\"arena_bytes_without\":%lld,",
                 (u64)x->program->opts.memory_limit, x->plan->again.n, (long long)x->plan->again.temp_bytes);
    str_addf(out, "\"program_bytes\":%llu,\"session_bytes\":%llu,\"arena_bytes\":%llu,\"arena_bound\":%llu,",
             (u64)x->program_bytes, (u64)x->session_bytes, (u64)s->arena_bytes, (u64)s->arena_bound);
}

/* The machine model's row: what each level holds (0: not known, or no end) and delivers to all threads, in bytes a nanosecond.
 */
static void add_machine(const explain *x, str *out) {
    static const char *const names[] = { "l1", "l2", "l3", "memory" };
    machine m = machine_of(&x->program->target);
    str_add(out, "\"machine\":{");
    add_string(out, "title", m.title);
    str_addf(out, "\"gpu\":%s,\"cores\":%d,\"gflops\":%.6g,\"levels\":[", json_bool(m.gpu), m.cores, machine_gflops(&m));
    for (int l = 0; l < MACHINE_LEVELS; l++) {
        const machine_cache *at = &m.level[l];
        if (!(at->read > 0)) continue;
        str_addf(out, "%s{\"level\":\"%s\",\"bytes\":%lld,\"gbs\":%.6g}", l ? "," : "", names[l], (long long)at->bytes,
                 machine_rate(&m, (machine_level)l, false));
    }
    str_add(out, "]},");
}

static void add_operands(const node *n, str *out) {
    if (n->n_in) str_add(out, ",\"in\":[");
    for (int i = 0; i < n->n_in; i++) str_addf(out, "%s%u", i ? "," : "", n->in[i]);
    if (n->n_in) str_add(out, "]");
}

static void add_place(const explain_value *at, str *out) {
    if (at->bytes) str_addf(out, ",\"bytes\":%lld", (long long)at->bytes);
    if (at->kernel >= 0) str_addf(out, ",\"kernel\":%d", at->kernel);
    if (at->n_kernels > 1) str_addf(out, ",\"kernels\":%d", at->n_kernels);
    if (at->buffer >= 0) str_addf(out, ",\"buffer\":%d", at->buffer);
    if (at->stored_ns > 0) str_addf(out, ",\"stored_us\":%.3g", at->stored_ns * 1e-3);
}

/* Values of the graph as scheduled: a kernel's values, a buffer's value and decisions name them by id. */
static void add_values(const explain *e, str *out) {
    const plan *p = e->plan;
    str_add(out, "\"values\":[");
    for (val v = 1, n = 0; v < (val)p->g->nodes.n; v++) {
        const node *x = graph_get(p->g, v);
        if (x->op == OP_NIL) continue;
        str_addf(out, "%s{\"id\":%u,\"op\":\"%s\",\"shape\":", n++ ? "," : "", v, plan_op_name((op_code)x->op));
        str_json(out, graph_shape_text(p->g, out->a, v));
        if (x->name) str_add(out, ",\"name\":"), str_json(out, x->name);
        add_operands(x, out);
        add_place(&e->values[v], out);
        str_add(out, "}");
    }
    str_add(out, "],");
}

/* ---- a kernel ---- */

static void add_launch(const explain_kernel *x, str *out) {
    const kernel *k = x->launch->k;
    const device_usage *u = &x->usage;
    str_addf(out, "\"grid_blocks\":%lld,\"block_threads\":%d,", (long long)ext_hi(k->params, k->grid_blocks), k->block_threads);
    if (u->registers)
        str_addf(out, "\"registers\":%d,\"spilled\":%lld,\"shared\":%lld,\"resident\":%d,\"occupancy\":%.3f,", u->registers,
                 (long long)u->spilled, (long long)u->shared, u->resident, x->occupancy);
    str_add(out, "\"accesses\":[");
    for (int j = 0; j < x->n_accesses; j++) {
        const gpu_access *at = &x->accesses[j];
        str_addf(out, "%s{\"value\":%u,\"store\":%s,\"indexed\":%s,\"threads\":%d,\"bytes\":%d,\"sectors\":%d}", j ? "," : "",
                 k->bufs.at[at->buf].node, json_bool(at->store), json_bool(at->indexed), at->threads, at->bytes, at->sectors);
    }
    str_add(out, "],");
}

static void add_cost(const cost *c, bool gpu, str *out) {
    str_addf(out, "\"predicted_us\":%.6g,\"predicted_bound\":\"%s\",", c->ns * 1e-3, cost_bound_text(c, gpu));
    str_addf(out, "\"level_bytes\":{\"l1\":%.0f,\"l2\":%.0f,\"l3\":%.0f,\"memory\":%.0f},", c->bytes[LEVEL_L1],
             c->bytes[LEVEL_L2], c->bytes[LEVEL_L3], c->bytes[LEVEL_MEMORY]);
}

static void add_counted(const replay_bytes *x, str *out) {
    if (x->unknown)
        add_string(out, "not_counted", x->unknown);
    else
        str_addf(out, "\"counted_bytes\":{\"l1\":%.0f,\"l2\":%.0f,\"l3\":%.0f,\"memory\":%.0f},", x->counted[LEVEL_L1],
                 x->counted[LEVEL_L2], x->counted[LEVEL_L3], x->counted[LEVEL_MEMORY]);
}

static void add_schedule(const pkernel *code, str *out) {
    const schedule *s = code->schedule;
    if (code->tuned) add_string(out, "tuned", code->tuned);
    if (code->ignored) add_string(out, "tuning_ignored", code->ignored);
    if (!s) return;
    str_add(out, "\"schedule\":[");
    for (int i = 0; i < s->steps.n; i++) {
        str_add(out, i ? ",\"" : "\"");
        step_print(&s->steps.at[i], out);
        str_add(out, "\"");
    }
    str_add(out, "],");
}

/* Which buffers of the plan it touches, by index into "buffers" of the plan's text: b0, b1 .. */
static void add_touched(const pkernel *pk, str *out) {
    str_add(out, "\"touches\":[");
    for (int b = 0, n = 0; b < pk->k->bufs.n; b++) {
        const kbuf *kb = &pk->k->bufs.at[b];
        if (kbuf_is_local(kb)) continue;
        str_addf(out, "%s{\"buffer\":%d,\"reads\":%s,\"writes\":%s}", n++ ? "," : "", pk->args[b].buf,
                 json_bool(kb->kind != KB_OUT), json_bool(kb->kind != KB_IN));
    }
    str_add(out, "],");
}

static void add_parts(const explain *e, const explain_kernel *x, str *out) {
    const plan *p = e->plan;
    const pkernel *pk = x->launch;
    add_schedule(x->code, out);
    add_touched(pk, out);
    str_add(out, "\"values\":[");
    for (int j = 0; j < pk->n_fused; j++)
        str_addf(out, "%s{\"id\":%u,\"op\":\"%s\"}", j ? "," : "", pk->fused[j],
                 plan_op_name((op_code)graph_get(p->g, pk->fused[j])->op));
    str_add(out, "],\"in_place\":[");
    for (int j = 0; j < x->n_in_place; j++)
        str_addf(out, "%s{\"value\":%u,\"over\":%u}", j ? "," : "", x->in_place[j].value, x->in_place[j].over);
    str_add(out, "],\"decisions\":[");
    for (int j = 0; j < x->n_decisions; j++) str_addf(out, "%s%d", j ? "," : "", x->decisions[j]);
    str_add(out, "]");
}

/* counted: NULL where nothing is. */
static void add_kernel(const explain *e, int i, bool parts, const replay_bytes *counted, str *out) {
    const explain_kernel *x = &e->kernels[i];
    const pkernel *pk = x->launch;
    str_addf(out, "{\"kernel\":%d,", i);
    add_string(out, "name", pk->k->name);
    str_addf(out, "\"code\":%d,\"bytes_read\":%llu,\"bytes_written\":%llu,\"flops\":%llu,\"parallel\":%s,", pk->code,
             (u64)pk->k->bytes_read, (u64)pk->k->bytes_written, (u64)pk->k->flops, json_bool(pk->k->par_var >= 0));
    add_cost(&x->cost, e->program->target.kind == TARGET_GPU, out);
    if (counted) add_counted(&counted[i], out);
    if (parts && pk->k->block_threads) add_launch(x, out);
    if (parts)
        add_parts(e, x, out);
    else
        str_addf(out, "\"n_values\":%d", pk->n_fused);
}

/* ---- buffers and decisions ---- */

static void add_buffers(const explain *x, str *out) {
    str_add(out, "\"buffers\":[");
    for (int i = 0; i < x->n_buffers; i++) {
        const explain_buffer *at = &x->buffers[i];
        const pbuf *b = &x->plan->bufs.at[at->index];
        str_addf(out, "%s{\"buffer\":%d,\"slot\":%d,\"value\":%u,\"offset\":%lld,\"bytes\":%lld,\"alignment\":%lld",
                 i ? "," : "", at->index, b->slot, b->node, (long long)b->offset, (long long)b->bytes,
                 (long long)at->alignment);
        if (b->slot == SLOT_TEMP) str_addf(out, ",\"first\":%d,\"last\":%d", b->first, b->last);
        if (b->kind == PB_TEMP && b->inplace_of >= 0) str_addf(out, ",\"in_place_of\":%d", b->inplace_of);
        str_add(out, "}");
    }
    str_add(out, "],");
}

/* Why a kernel reads from memory what another one makes. */
static void add_edges(const explain *x, str *out) {
    str_add(out, "\"edges\":[");
    for (int i = 0; i < x->n_edges; i++) {
        const explain_edge *e = &x->edges[i];
        str_addf(out, "%s{\"from\":%d,\"to\":%d,\"value\":%u,\"bytes\":%lld,\"us\":%.3g,\"decision\":%d}", i ? "," : "",
                 e->from, e->to, e->value, (long long)e->bytes, e->ns * 1e-3, e->decision);
    }
    str_add(out, "],");
}

static void add_decisions(const plan *p, str *out) {
    str_add(out, "\"decisions\":[");
    for (int i = 0; i < p->decisions.n; i++) {
        const why *w = &p->decisions.at[i];
        str_addf(out, "%s{\"value\":%u,\"with\":%u,\"fused\":%s,\"reason\":", i ? "," : "", w->producer, w->consumer,
                 json_bool(w->fused));
        str_json(out, w->reason ? w->reason : "");
        str_add(out, "}");
    }
    str_add(out, "]");
}

/* Sums over all kernels. */
static void add_totals(const explain *x, str *out) {
    double ns = 0, bytes[MACHINE_LEVELS] = { 0 };
    for (int i = 0; i < x->plan->kernels.n; i++) {
        ns += x->kernels[i].cost.ns;
        for (int l = 0; l < MACHINE_LEVELS; l++) bytes[l] += x->kernels[i].cost.bytes[l];
    }
    str_addf(out, "\"n_kernels\":%d,\"n_values\":%d,\"predicted_us\":%.6g,", x->plan->kernels.n, x->plan->g->nodes.n - 1,
             ns * 1e-3);
    str_addf(out, "\"level_bytes\":{\"l1\":%.0f,\"l2\":%.0f,\"l3\":%.0f,\"memory\":%.0f},", bytes[LEVEL_L1], bytes[LEVEL_L2],
             bytes[LEVEL_L3], bytes[LEVEL_MEMORY]);
}

/* Of a program for the CPU. */
static const replay_bytes *count_bytes(const explain *x, arena *a) {
    if (x->program->target.kind != TARGET_CPU) return NULL;
    replay_bytes *counted = ARENA_ARRAY(a, replay_bytes, x->plan->kernels.n + 1);
    machine m = machine_of(&x->program->target);
    replay_plan(x->plan, &m, m.cores, a, counted);
    return counted;
}

void explain_json(const explain *x, arena *a, str *out) {
    const replay_bytes *counted = count_bytes(x, a);
    str_add(out, "{\"schema\":1,");
    add_head(x, out);
    add_totals(x, out);
    add_machine(x, out);
    str_add(out, "\"kernels\":[");
    for (int i = 0; i < x->plan->kernels.n; i++) {
        if (i) str_add(out, ",");
        add_kernel(x, i, true, counted, out);
        str_add(out, "}");
    }
    str_add(out, "],\"unused\":[");
    for (int i = 0; i < x->n_unused; i++) {
        if (i) str_add(out, ",");
        str_json(out, graph_get(x->plan->g, x->unused[i])->name);
    }
    str_add(out, "],");
    add_values(x, out);
    add_edges(x, out);
    add_buffers(x, out);
    add_decisions(x->plan, out);
    str_add(out, "}\n");
}

/* Launches of the same code, such as those of repeated layers. */
typedef struct explain_code {
    int first, launches;
    double ns; /* of all of them */
} explain_code;

static bool is_dearer(const void *a, const void *b, const void *ud) {
    (void)ud;
    return ((const explain_code *)a)->ns > ((const explain_code *)b)->ns;
}

void explain_short_json(const explain *x, arena *a, str *out) {
    int n = x->plan->kernels.n;
    explain_code *codes = ARENA_ARRAY(a, explain_code, n + 1);
    for (int i = 0; i < n; i++) {
        explain_code *of = &codes[x->kernels[i].launch->code];
        if (!of->launches++) of->first = i;
        of->ns += x->kernels[i].cost.ns;
    }
    merge_sort(a, codes, n, sizeof *codes, is_dearer, NULL);
    str_add(out, "{\"schema\":1,\"short\":true,");
    add_head(x, out);
    add_totals(x, out);
    add_machine(x, out);
    str_add(out, "\"kernels\":[");
    for (int i = 0; i < n && i < EXPLAIN_SHORT && codes[i].launches; i++) {
        if (i) str_add(out, ",");
        add_kernel(x, codes[i].first, false, NULL, out);
        str_addf(out, ",\"launches\":%d,\"launches_us\":%.6g}", codes[i].launches, codes[i].ns * 1e-3);
    }
    str_add(out, "]}\n");
}
