/* explain.c - gathers the model of explain.h. */
#include "drive/explain.h"

#include "machine/machine.h"

/* ---- decisions about what a kernel computes ---- */

explain_reasons explain_list_reasons(const plan *p, arena *a) {
    explain_reasons r = { ARENA_ARRAY(a, int, p->g->nodes.n), ARENA_ARRAY(a, int, p->decisions.n) };
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

static void add_decisions(explain_kernel *k, const explain_reasons *r, arena *a) {
    VEC(int) mine = { 0 };
    for (int j = 0; j < k->launch->n_fused; j++)
        for (int i = r->first[k->launch->fused[j]]; i; i = r->next[i - 1]) VEC_PUSH(a, &mine, i - 1);
    merge_sort(a, mine.at, mine.n, sizeof *mine.at, is_earlier, NULL);
    k->decisions = mine.at;
    for (int i = 0; i < mine.n; i++)
        if (!i || mine.at[i] != mine.at[i - 1]) mine.at[k->n_decisions++] = mine.at[i];
}

/* ---- kernels ---- */

static void add_in_place(explain_kernel *x, const plan *p, arena *a) {
    const kernel *k = x->launch->k;
    x->in_place = ARENA_ARRAY(a, explain_in_place, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        if (kbuf_is_local(kb) || kb->kind != KB_INOUT || x->launch->args[b].buf < 0) continue;
        val old = p->bufs.at[x->launch->args[b].buf].node;
        if (old != kb->node) x->in_place[x->n_in_place++] = (explain_in_place){ kb->node, old };
    }
}

static void add_launch(explain_kernel *x, const tn_program *prog, int i, arena *a) {
    const kernel *k = x->launch->k;
    if (prog->dev->api->usage && prog->kernel_entry[i])
        prog->dev->api->usage(prog->dev, prog->kernel_entry[i], k->block_threads, &x->usage);
    x->occupancy = x->usage.threads ? (double)x->usage.resident * k->block_threads / x->usage.threads : 0;
    x->n_accesses = gpu_accesses(kernel_at_most(k, a), a, &x->accesses);
}

static void add_kernels(explain *x, const explain_reasons *r, arena *a) {
    const plan *p = x->plan;
    machine m = machine_of(&x->program->target);
    cost *costs = ARENA_ARRAY(a, cost, p->kernels.n + 1);
    cost_plan(p, &m, a, costs);
    x->kernels = ARENA_ARRAY(a, explain_kernel, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        explain_kernel *k = &x->kernels[i];
        k->launch = &p->kernels.at[i], k->code = &p->kernels.at[k->launch->code];
        k->cost = costs[i];
        add_decisions(k, r, a);
        add_in_place(k, p, a);
        if (k->launch->k->block_threads) add_launch(k, x->program, i, a);
    }
}

/* ---- memory ---- */

static int64_t alignment(int64_t offset) {
    int64_t a = PLAN_PAGE;
    while (offset % a) a /= 2;
    return a;
}

/* Values that are folded into those who read them have a buffer that no launch touches: it has no place. */
static bool has_place(const pbuf *b) {
    return b->slot < SLOT_IO && b->bytes > 0 && b->kind != PB_STATES && (b->kind != PB_TEMP || b->first >= 0);
}

static void add_buffers(explain *x, arena *a) {
    const plan *p = x->plan;
    x->buffers = ARENA_ARRAY(a, explain_buffer, p->bufs.n + 1);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        if (has_place(b))
            x->buffers[x->n_buffers++] =
                (explain_buffer){ i, alignment(b->offset), b->offset % PLAN_PAGE / MACHINE_LINE_BYTES };
    }
    uint64_t shared = (uint64_t)p->shared_bytes;
    x->program_bytes = (uint64_t)p->const_bytes;
    x->session_bytes = (uint64_t)(drive_temp_room(x->program) + (size_t)p->state_bytes) + x->program->scratch;
    *(x->program->shared ? &x->program_bytes : &x->session_bytes) += shared;
}

static void add_unused(explain *x, arena *a) {
    const graph *g = x->plan->g;
    x->unused = ARENA_ARRAY(a, val, g->inputs.n + 1);
    for (int i = 0; i < g->inputs.n; i++) {
        val v = g->inputs.at[i];
        if (!graph_is_assigned(g, v) && !graph_is_read(g, v)) x->unused[x->n_unused++] = v;
    }
}

const explain *explain_make(const tn_program *p, arena *a) {
    explain *x = ARENA_ARRAY(a, explain, 1);
    x->program = p, x->plan = p->plan;
    explain_reasons r = explain_list_reasons(x->plan, a);
    add_kernels(x, &r, a);
    machine m = machine_of(&p->target);
    explain_find_edges(x, &r, &m, a);
    add_buffers(x, a);
    add_unused(x, a);
    return x;
}
