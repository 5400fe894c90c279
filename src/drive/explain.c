/* explain.c - what the compiler did to the memory hierarchy, for people and as JSON: kernels, what each computes, bytes before
 * and after, and why neighbours were or were not joined. In: a compiled program. Out: text in the caller's string. */
#include "drive/drive.h"
#include "emit/emit.h"
#include "recipe/recipe.h"
#include "loop/gpu_access.h"
#include "machine/machine.h"

static void print_value(const plan *p, val v, str *out) {
    const node *n = graph_get(p->g, v);
    str_addf(out, "%%%u %s %s", v, plan_op_name((op_code)graph_get(p->g, v)->op), graph_shape_text(p->g, out->a, v));
    if (n->name) str_addf(out, " (%s)", n->name);
}

static double kib(uint64_t bytes) { return (double)bytes / 1024; }

/* Decisions by the value that they are about: the first of each value, the next of each decision; number + 1, 0 = none. */
typedef struct reasons {
    int *first, *next; /* [nodes], [decisions] */
} reasons;

static reasons list_reasons(const plan *p, arena *a) {
    reasons r = { ARENA_ARRAY(a, int, p->g->nodes.n), ARENA_ARRAY(a, int, p->decisions.n) };
    for (int i = p->decisions.n - 1; i >= 0; i--) {
        int *first = &r.first[p->decisions.at[i].producer];
        r.next[i] = *first;
        *first = i + 1;
    }
    return r;
}

static bool is_earlier(const void *x, const void *y, const void *ud) {
    (void)ud;
    return *(const int *)x < *(const int *)y;
}

static void print_reasons(const plan *p, const reasons *r, const pkernel *pk, str *out) {
    VEC(int) mine = { 0 };
    for (int j = 0; j < pk->n_fused; j++)
        for (int i = r->first[pk->fused[j]]; i; i = r->next[i - 1]) VEC_PUSH(out->a, &mine, i - 1);
    merge_sort(out->a, mine.at, mine.n, sizeof *mine.at, is_earlier, NULL);
    for (int i = 0; i < mine.n; i++) {
        const why *w = &p->decisions.at[mine.at[i]];
        if (i && mine.at[i] == mine.at[i - 1]) continue;
        str_addf(out, "      %s ", w->fused ? "+" : "-");
        print_value(p, w->producer, out);
        str_addf(out, ": %s", w->reason);
        if (!w->fused && w->consumer) {
            str_add(out, ", not joined with ");
            print_value(p, w->consumer, out);
        }
        str_add(out, "\n");
    }
}

/* ---- GPUs: the launch, what it takes, how it reads and writes ---- */

static device_usage usage_of(const tn_program *prog, int i) {
    device_usage u = { 0 };
    if (prog->dev->api->usage && prog->kernel_entry[i])
        prog->dev->api->usage(prog->dev, prog->kernel_entry[i], prog->plan->kernels.at[i].k->group, &u);
    return u;
}

static double resident_share(const device_usage *u, const kernel *k) {
    return u->threads ? (double)u->resident * k->group / u->threads : 0;
}

static void print_launch(const tn_program *prog, int i, str *out) {
    const kernel *k = prog->plan->kernels.at[i].k;
    device_usage u = usage_of(prog, i);
    gpu_access *at;
    str_addf(out, "   launch %lld groups of %d threads", (long long)k->groups, k->group);
    if (u.registers)
        str_addf(out, "; a thread has %d registers, %lld bytes spilled; a group %.1f KiB fast memory", u.registers,
                 (long long)u.spilled, (double)u.shared / 1024);
    if (u.threads)
        str_addf(out, "; %d groups a multiprocessor (%.0f%% of its threads)", u.resident, 100 * resident_share(&u, k));
    str_add(out, "\n");
    for (int j = 0, n = gpu_accesses(k, out->a, &at); j < n; j++) {
        int64_t moved = (int64_t)at[j].sectors * 32;
        str_addf(out, "   %s ", at[j].store ? "writes" : "reads");
        print_value(prog->plan, k->bufs.at[at[j].buf].node, out);
        str_addf(out, ": %d threads touch %d bytes in %d sectors of 32 (%.0f%% of what moves)%s\n", at[j].threads, at[j].bytes,
                 at[j].sectors, 100.0 * at[j].bytes / (double)(moved ? moved : 1),
                 at[j].indexed ? ", and move on by index" : "");
    }
}

static void json_launch(const tn_program *prog, int i, str *out) {
    const kernel *k = prog->plan->kernels.at[i].k;
    device_usage u = usage_of(prog, i);
    gpu_access *at;
    str_addf(out, "\"groups\":%lld,\"group\":%d,", (long long)k->groups, k->group);
    if (u.registers)
        str_addf(out, "\"registers\":%d,\"spilled\":%lld,\"shared\":%lld,\"resident\":%d,\"occupancy\":%.3f,", u.registers,
                 (long long)u.spilled, (long long)u.shared, u.resident, resident_share(&u, k));
    str_add(out, "\"accesses\":[");
    for (int j = 0, n = gpu_accesses(k, out->a, &at); j < n; j++)
        str_addf(out, "%s{\"value\":%u,\"store\":%s,\"indexed\":%s,\"threads\":%d,\"bytes\":%d,\"sectors\":%d}", j ? "," : "",
                 k->bufs.at[at[j].buf].node, at[j].store ? "true" : "false", at[j].indexed ? "true" : "false", at[j].threads,
                 at[j].bytes, at[j].sectors);
    str_add(out, "],");
}

/* ---- what is written over what, and what nothing reads ---- */

/* The value in whose place kernel buffer b is written, or 0. */
static val overwritten(const plan *p, const pkernel *pk, int b) {
    const kbuf *kb = &pk->k->bufs.at[b];
    if (kbuf_is_local(kb) || kb->kind != KB_INOUT || pk->args[b].buf < 0) return 0;
    val old = p->bufs.at[pk->args[b].buf].node;
    return old != kb->node ? old : 0;
}

static bool nothing_reads(const plan *p, int input) {
    val v = p->g->inputs.at[input];
    return !graph_is_assigned(p->g, v) && !graph_is_read(p->g, v);
}

/* The largest power of two that divides offset, at most a page. */
static int64_t alignment(int64_t offset) {
    int64_t a = PLAN_PAGE;
    while (offset % a) a /= 2;
    return a;
}

static bool has_place(const pbuf *b) { return b->slot < SLOT_IO && b->bytes > 0 && b->kind != PB_STATES; }

/* How a value lies that is packed for the kernels that read it. */
static void print_layout(const pbuf *b, str *out) {
    const kpanels *x = b->panels;
    int64_t rows = 1;
    if (!x) {
        if (b->next_panels) str_add(out, ", as it lies; packed copies follow");
        return;
    }
    for (int i = x->n_outer; i < x->n_outer + x->n_depth; i++) rows *= x->loops[i].extent;
    str_addf(out, ", %spacked: %lld columns in panels of %lld, each with all %lld rows", b->copy ? "a copy, " : "",
             (long long)x->column.extent, (long long)x->width, (long long)rows);
    if (x->parts) str_addf(out, ", %d values a word", x->parts);
}

static void print_places(const plan *p, str *out) {
    static const char *const slots[] = { "temporaries", "states", "states that no run changes", "constants" };
    for (int slot = SLOT_TEMP; slot <= SLOT_CONST; slot++) {
        bool any = false;
        for (int i = 0; i < p->bufs.n; i++) {
            const pbuf *b = &p->bufs.at[i];
            if (b->slot != slot || !has_place(b)) continue;
            if (!any) str_addf(out, "\nplaces of %s (bytes, alignment, first line in its page):\n", slots[slot]);
            any = true;
            str_addf(out, "   b%-4d at %-10lld %12lld %6lld %4lld  ", i, (long long)b->offset, (long long)b->bytes,
                     (long long)alignment(b->offset), (long long)(b->offset % PLAN_PAGE / MACHINE_LINE_BYTES));
            if (b->node) print_value(p, b->node, out);
            print_layout(b, out);
            str_add(out, "\n");
        }
    }
}

/* ---- what the cost model says ---- */

static void print_cost(const tn_program *prog, const cost *c, str *out) {
    bool gpu = prog->target.kind == TARGET_GPU;
    str_addf(out, "   predicted %.3g us, bound by %s; moves %.1f KiB from %s, %.1f from %s,", c->ns * 1e-3,
             cost_bound_text(c, gpu), c->bytes[LEVEL_L1] / 1024, gpu ? "shared memory" : "the first cache",
             c->bytes[LEVEL_L2] / 1024, gpu ? "L2" : "the second");
    if (!gpu) str_addf(out, " %.1f from the last,", c->bytes[LEVEL_L3] / 1024);
    str_addf(out, " %.1f from memory\n", c->bytes[LEVEL_MEMORY] / 1024);
}

static void json_cost(const tn_program *prog, const cost *c, str *out) {
    str_addf(out, "\"predicted_us\":%.6g,\"predicted_bound\":\"%s\",", c->ns * 1e-3,
             cost_bound_text(c, prog->target.kind == TARGET_GPU));
    str_addf(out, "\"level_bytes\":{\"l1\":%.0f,\"l2\":%.0f,\"l3\":%.0f,\"memory\":%.0f},", c->bytes[LEVEL_L1],
             c->bytes[LEVEL_L2], c->bytes[LEVEL_L3], c->bytes[LEVEL_MEMORY]);
}

static cost *list_costs(const tn_program *prog, arena *a) {
    machine m = machine_of(&prog->target);
    cost *c = ARENA_ARRAY(a, cost, prog->plan->kernels.n + 1);
    cost_plan(prog->plan, &m, a, c);
    return c;
}

static void print_schedule(const schedule *s, str *out) {
    if (!s) return;
    for (int i = 0; i < s->steps.n; i++) {
        str_add(out, i ? "; " : "   schedule: ");
        step_print(&s->steps.at[i], out);
    }
    str_add(out, "\n");
}

static void json_schedule(const schedule *s, str *out) {
    str_add(out, "\"schedule\":[");
    for (int i = 0; i < s->steps.n; i++) {
        str_add(out, i ? ",\"" : "\"");
        step_print(&s->steps.at[i], out);
        str_add(out, "\"");
    }
    str_add(out, "],");
}

/* What the device gives for the program, which its sessions share, and for each session beside inputs and outputs. */
typedef struct memory {
    uint64_t program, session;
} memory;
static memory memory_of(const tn_program *prog) {
    const plan *p = prog->plan;
    uint64_t shared = (uint64_t)p->shared_bytes;
    memory m = { (uint64_t)p->const_bytes, (uint64_t)(p->temp_bytes + p->state_bytes) + prog->scratch };
    *(prog->shared ? &m.program : &m.session) += shared;
    return m;
}

void explain_print(const tn_program *prog, str *out) {
    const plan *p = prog->plan;
    const tn_program_stats *s = &prog->stats;
    reasons r = list_reasons(p, out->a);
    const cost *costs = list_costs(prog, out->a);
    str_addf(out, "graph @%s: %d kernel%s (%d different), fusion level %d, %d thread%s\n", p->g->name, s->kernels,
             s->kernels == 1 ? "" : "s", s->distinct_kernels, p->fusion, s->threads, s->threads == 1 ? "" : "s");
    if (prog->why[0]) str_addf(out, "device: %s\n", prog->why);
    str_addf(out, "memory traffic at kernel borders: read %.1f KiB, written %.1f KiB a run", kib(s->bytes_read),
             kib(s->bytes_written));
    str_addf(out, " (each op on its own: read %.1f, written %.1f)\n", kib(p->unfused_read), kib(p->unfused_written));
    str_addf(out, "temporaries: %.1f KiB planned, lower bound %.1f KiB; states %.1f KiB; constants %.1f KiB\n",
             kib(s->arena_bytes), kib(s->arena_bound), kib(s->state_bytes), kib((uint64_t)p->const_bytes));
    str_addf(out, "memory: %.1f KiB of the program, which its sessions share; %.1f KiB of each session, %.1f of them scratch\n",
             kib(memory_of(prog).program), kib(memory_of(prog).session), kib(prog->scratch));
    for (int i = 0; i < p->g->inputs.n; i++) {
        const node *n = graph_get(p->g, p->g->inputs.at[i]);
        if (nothing_reads(p, i))
            str_addf(out, "no result depends on %s %s %s\n", op_get((op_code)n->op)->name, n->name,
                     graph_shape_text(p->g, out->a, p->g->inputs.at[i]));
    }
    str_addf(out, "arithmetic: %.3f Mflop a run, %.2f flop a byte\n\n", (double)s->flops * 1e-6,
             (double)s->flops / (double)(s->bytes_read + s->bytes_written + 1));
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        str_addf(out, "kernel %d: %s%s, read %.1f KiB, written %.1f KiB, %.3f Mflop%s\n", i, pk->k->name,
                 pk->code != i ? arena_printf(out->a, " (code of kernel %d)", pk->code) : "", kib(pk->k->bytes_read),
                 kib(pk->k->bytes_written), (double)pk->k->flops * 1e-6, pk->k->par_var >= 0 ? ", split over threads" : "");
        str_add(out, "   computes");
        for (int j = 0; j < pk->n_fused; j++)
            str_addf(out, "%s %s", j ? "," : "", plan_op_name((op_code)graph_get(p->g, pk->fused[j])->op));
        str_add(out, "\n");
        for (int b = 0; b < pk->k->bufs.n; b++) {
            if (!overwritten(p, pk, b)) continue;
            str_add(out, "   in place: ");
            print_value(p, pk->k->bufs.at[b].node, out);
            str_add(out, " over ");
            print_value(p, overwritten(p, pk, b), out);
            str_add(out, "\n");
        }
        if (pk->k->group) print_launch(prog, i, out);
        print_cost(prog, &costs[i], out);
        str_add(out, "   tile");
        for (int v = 0; v < pk->k->vars.n; v++)
            if (pk->k->vars.at[v].role.unroll > 1 || pk->k->vars.at[v].role.lanes > 1)
                str_addf(out, " %s: %d x %d lanes of %lld;", pk->k->vars.at[v].name, pk->k->vars.at[v].role.unroll,
                         pk->k->vars.at[v].role.lanes, (long long)pk->k->vars.at[v].extent);
        const pkernel *code = &p->kernels.at[pk->code];
        if (code->tuned)
            str_addf(out, "\n   measured by tuning%s%s", code->schedule ? "" : ": ", code->schedule ? "" : code->tuned);
        if (code->ignored) str_addf(out, "\n   the tuning database's schedule is ignored: %s", code->ignored);
        str_add(out, "\n");
        print_schedule(p->kernels.at[pk->code].schedule, out);
        print_reasons(p, &r, pk, out);
    }
    print_places(p, out);
}

void explain_json(const tn_program *prog, str *out) {
    const plan *p = prog->plan;
    const tn_program_stats *s = &prog->stats;
    const cost *costs = list_costs(prog, out->a);
    str_add(out, "{\"schema\":1,\"graph\":");
    str_json(out, p->g->name);
    str_add(out, ",\"device\":");
    str_json(out, prog->dev->api->name);
    if (prog->why[0]) str_add(out, ",\"device_why\":"), str_json(out, prog->why);
    str_addf(out,
             ",\"fusion\":%d,\"threads\":%d,\"bytes_read\":%llu,\"bytes_written\":%llu,\"unfused_bytes_read\":%llu,\"unfused_"
             "bytes_written\":%llu,\"flops\":%llu,",
             p->fusion, s->threads, (unsigned long long)s->bytes_read, (unsigned long long)s->bytes_written,
             (unsigned long long)p->unfused_read, (unsigned long long)p->unfused_written, (unsigned long long)s->flops);
    str_addf(out,
             "\"state_bytes\":%llu,\"const_bytes\":%lld,\"scratch_bytes\":%zu,\"program_bytes\":%llu,\"session_bytes\":%llu,",
             (unsigned long long)s->state_bytes, (long long)p->const_bytes, prog->scratch,
             (unsigned long long)memory_of(prog).program, (unsigned long long)memory_of(prog).session);
    str_addf(out, "\"arena_bytes\":%llu,\"arena_bound\":%llu,\"kernels\":[", (unsigned long long)s->arena_bytes,
             (unsigned long long)s->arena_bound);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        str_addf(out, "%s{\"name\":", i ? "," : "");
        str_json(out, pk->k->name);
        str_addf(out, ",\"code\":%d,\"bytes_read\":%llu,\"bytes_written\":%llu,\"flops\":%llu,\"parallel\":%s,", pk->code,
                 (unsigned long long)pk->k->bytes_read, (unsigned long long)pk->k->bytes_written,
                 (unsigned long long)pk->k->flops, pk->k->par_var >= 0 ? "true" : "false");
        if (p->kernels.at[pk->code].tuned)
            str_add(out, "\"tuned\":"), str_json(out, p->kernels.at[pk->code].tuned), str_add(out, ",");
        if (pk->k->group) json_launch(prog, i, out);
        json_cost(prog, &costs[i], out);
        if (p->kernels.at[pk->code].schedule) json_schedule(p->kernels.at[pk->code].schedule, out);
        str_add(out, "\"values\":[");
        for (int j = 0; j < pk->n_fused; j++)
            str_addf(out, "%s{\"id\":%u,\"op\":\"%s\"}", j ? "," : "", pk->fused[j],
                     plan_op_name((op_code)graph_get(p->g, pk->fused[j])->op));
        str_add(out, "],\"in_place\":[");
        for (int b = 0, n = 0; b < pk->k->bufs.n; b++)
            if (overwritten(p, pk, b))
                str_addf(out, "%s{\"value\":%u,\"over\":%u}", n++ ? "," : "", pk->k->bufs.at[b].node, overwritten(p, pk, b));
        str_add(out, "]}");
    }
    str_add(out, "],\"unused\":[");
    for (int i = 0, n = 0; i < p->g->inputs.n; i++)
        if (nothing_reads(p, i)) {
            if (n++) str_add(out, ",");
            str_json(out, graph_get(p->g, p->g->inputs.at[i])->name);
        }
    str_add(out, "],\"buffers\":[");
    for (int i = 0, n = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        if (has_place(b))
            str_addf(out, "%s{\"buffer\":%d,\"slot\":%d,\"value\":%u,\"offset\":%lld,\"bytes\":%lld,\"alignment\":%lld}",
                     n++ ? "," : "", i, b->slot, b->node, (long long)b->offset, (long long)b->bytes,
                     (long long)alignment(b->offset));
    }
    str_add(out, "],\"decisions\":[");
    for (int i = 0; i < p->decisions.n; i++) {
        const why *w = &p->decisions.at[i];
        str_addf(out, "%s{\"value\":%u,\"with\":%u,\"fused\":%s,\"reason\":", i ? "," : "", w->producer, w->consumer,
                 w->fused ? "true" : "false");
        str_json(out, w->reason ? w->reason : "");
        str_add(out, "}");
    }
    str_add(out, "]}\n");
}
