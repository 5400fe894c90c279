/* explain_text.c - the model of explain.h as text for people. */
#include "drive/explain.h"

#include "loop/schedule.h"

static void print_value(const plan *p, val v, str *out) {
    const node *n = graph_get(p->g, v);
    str_addf(out, "%%%u %s %s", v, plan_op_name((op_code)n->op), graph_shape_text(p->g, out->a, v));
    if (n->name) str_addf(out, " (%s)", n->name);
}

static double kib(uint64_t bytes) { return (double)bytes / 1024; }

/* ---- the whole program ---- */

static void print_special(const exts *t, const tn_program *p, str *out) {
    const char *join = "sizes with ";
    for (int d = 0; d < t->n_dims; d++) {
        if (p->only[d] < 0) continue;
        str_addf(out, "%s%s %lld", join, exts_row(t, exts_dim(t, d))->name, (long long)p->only[d]);
        join = ", ";
    }
    str_addf(out, " have a program of their own: %d kernel%s\n", p->stats.kernels, p->stats.kernels == 1 ? "" : "s");
}

static void print_head(const explain *x, str *out) {
    const plan *p = x->plan;
    const tn_program_stats *s = &x->program->stats;
    str_addf(out, "graph @%s: %d kernel%s (%d different), fusion level %d, %d thread%s\n", p->g->name, s->kernels,
             s->kernels == 1 ? "" : "s", s->distinct_kernels, p->fusion, s->threads, s->threads == 1 ? "" : "s");
    if (p->params) {
        str_add(out, "sizes given at run time: ");
        exts_print_dims(p->params, out);
        str_add(out, "; what follows is for the largest ones\n");
        for (int i = 0; i < x->program->n_special; i++) print_special(p->params, x->program->special[i], out);
    }
    if (x->program->why[0]) str_addf(out, "device: %s\n", x->program->why);
    str_addf(out, "memory traffic at kernel borders: read %.1f KiB, written %.1f KiB a run", kib(s->bytes_read),
             kib(s->bytes_written));
    str_addf(out, " (each op on its own: read %.1f, written %.1f)\n", kib(p->unfused_read), kib(p->unfused_written));
    str_addf(out, "temporaries: %.1f KiB planned, lower bound %.1f KiB; states %.1f KiB; constants %.1f KiB\n",
             kib(s->arena_bytes), kib(s->arena_bound), kib(s->state_bytes), kib((uint64_t)p->const_bytes));
    if (plan_loop(p) && plan_loop(p)->overlaps)
        str_addf(out, "iterations: %d at a time, each with temporaries of its own\n", plan_loop(p)->overlaps);
    if (p->again.n)
        str_addf(out,
                 "within the memory limit of %.1f KiB: %d values are computed again, %.1f %% more arithmetic; temporaries "
                 "would be %.1f KiB\n",
                 kib(x->program->opts.memory_limit), p->again.n,
                 100 * ((double)s->flops / (double)(p->again.flops + !p->again.flops) - 1), kib((uint64_t)p->again.temp_bytes));
    str_addf(out, "memory: %.1f KiB of the program, which its sessions share; %.1f KiB of each session, %.1f of them scratch\n",
             kib(x->program_bytes), kib(x->session_bytes), kib(x->program->scratch));
    for (int i = 0; i < x->n_unused; i++) {
        const node *n = graph_get(p->g, x->unused[i]);
        str_addf(out, "no result depends on %s %s %s\n", op_get((op_code)n->op)->name, n->name,
                 graph_shape_text(p->g, out->a, x->unused[i]));
    }
    str_addf(out, "arithmetic: %.3f Mflop a run, %.2f flop a byte\n\n", (double)s->flops * 1e-6,
             (double)s->flops / (double)(s->bytes_read + s->bytes_written + 1));
}

/* ---- a kernel ---- */

static void print_launch(const plan *p, const explain_kernel *x, str *out) {
    const kernel *k = x->launch->k;
    const device_usage *u = &x->usage;
    str_add(out, "   launch ");
    ext_print(k->params, k->grid_blocks, false, out);
    str_addf(out, " thread blocks of %d threads", k->block_threads);
    if (u->registers)
        str_addf(out, "; a thread has %d registers, %lld bytes spilled; a thread block %.1f KiB shared memory", u->registers,
                 (long long)u->spilled, (double)u->shared / 1024);
    if (u->threads)
        str_addf(out, "; %d thread blocks a multiprocessor (%.0f%% of its threads)", u->resident, 100 * x->occupancy);
    str_add(out, "\n");
    for (int j = 0; j < x->n_accesses; j++) {
        const gpu_access *at = &x->accesses[j];
        int64_t moved = (int64_t)at->sectors * 32;
        str_addf(out, "   %s ", at->store ? "writes" : "reads");
        print_value(p, k->bufs.at[at->buf].node, out);
        str_addf(out, ": %d threads touch %d bytes in %d sectors of 32 (%.0f%% of what moves)%s\n", at->threads, at->bytes,
                 at->sectors, 100.0 * at->bytes / (double)(moved ? moved : 1), at->indexed ? ", and move on by index" : "");
    }
}

static void print_cost(const cost *c, bool gpu, str *out) {
    str_addf(out, "   predicted %.3g us, bound by %s; moves %.1f KiB from %s, %.1f from %s,", c->ns * 1e-3,
             cost_bound_text(c, gpu), c->bytes[LEVEL_L1] / 1024, gpu ? "shared memory" : "the first cache",
             c->bytes[LEVEL_L2] / 1024, gpu ? "L2" : "the second");
    if (!gpu) str_addf(out, " %.1f from the last,", c->bytes[LEVEL_L3] / 1024);
    str_addf(out, " %.1f from memory\n", c->bytes[LEVEL_MEMORY] / 1024);
}

static void print_schedule(const explain_kernel *x, str *out) {
    const kernel *k = x->launch->k;
    const schedule *s = x->code->schedule;
    str_add(out, "   tile");
    for (int v = 0; v < k->vars.n; v++) {
        const kvar_info *i = &k->vars.at[v];
        if (i->role.unroll > 1 || i->role.lanes > 1)
            str_addf(out, " %s: %d x %d lanes of %lld;", i->name, i->role.unroll, i->role.lanes, (long long)i->extent);
    }
    if (x->code->tuned) str_addf(out, "\n   measured by tuning%s%s", s ? "" : ": ", s ? "" : x->code->tuned);
    if (x->code->ignored) str_addf(out, "\n   the tuning database's schedule is ignored: %s", x->code->ignored);
    str_add(out, "\n");
    if (!s) return;
    for (int i = 0; i < s->steps.n; i++) {
        str_add(out, i ? "; " : "   schedule: ");
        step_print(&s->steps.at[i], out);
    }
    str_add(out, "\n");
}

static void print_decisions(const plan *p, const explain_kernel *x, str *out) {
    for (int i = 0; i < x->n_decisions; i++) {
        const why *w = &p->decisions.at[x->decisions[i]];
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

static void print_kernel(const explain *e, int i, str *out) {
    const plan *p = e->plan;
    const explain_kernel *x = &e->kernels[i];
    const pkernel *pk = x->launch;
    str_addf(out, "kernel %d: %s%s, read %.1f KiB, written %.1f KiB, %.3f Mflop%s\n", i, pk->k->name,
             x->code != pk ? arena_printf(out->a, " (code of kernel %d)", pk->code) : "", kib(pk->k->bytes_read),
             kib(pk->k->bytes_written), (double)pk->k->flops * 1e-6, pk->k->par_var >= 0 ? ", split over threads" : "");
    str_add(out, "   computes");
    for (int j = 0; j < pk->n_fused; j++)
        str_addf(out, "%s %s", j ? "," : "", plan_op_name((op_code)graph_get(p->g, pk->fused[j])->op));
    str_add(out, "\n");
    for (int j = 0; j < x->n_in_place; j++) {
        str_add(out, "   in place: ");
        print_value(p, x->in_place[j].value, out);
        str_add(out, " over ");
        print_value(p, x->in_place[j].over, out);
        str_add(out, "\n");
    }
    if (pk->k->block_threads) print_launch(p, x, out);
    print_cost(&x->cost, e->program->target.kind == TARGET_GPU, out);
    print_schedule(x, out);
    print_decisions(p, x, out);
}

/* ---- where everything lies ---- */

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
    if (x->packed) str_addf(out, ", %d values a word", x->packed);
}

static void print_places(const explain *x, str *out) {
    static const char *const slots[] = { "temporaries", "states", "states that no run changes", "constants" };
    for (int slot = SLOT_TEMP; slot <= SLOT_CONST; slot++) {
        bool any = false;
        for (int i = 0; i < x->n_buffers; i++) {
            const explain_buffer *at = &x->buffers[i];
            const pbuf *b = &x->plan->bufs.at[at->index];
            if (b->slot != slot) continue;
            if (!any) str_addf(out, "\nplaces of %s (bytes, alignment, first line in its page):\n", slots[slot]);
            any = true;
            str_addf(out, "   b%-4d at %-10lld %12lld %6lld %4lld  ", at->index, (long long)b->offset, (long long)b->bytes,
                     (long long)at->alignment, (long long)at->line);
            if (b->node) print_value(x->plan, b->node, out);
            print_layout(b, out);
            str_add(out, "\n");
        }
    }
}

void explain_print(const explain *x, str *out) {
    print_head(x, out);
    for (int i = 0; i < x->plan->kernels.n; i++) print_kernel(x, i, out);
    print_places(x, out);
}
