/* sched.c - the scheduler's own conductor: fuses, orders kernels, makes buffers, lowers every group.
 *
 * When groups turn out not to be lowerable, the values to blame, one of each, are kept in memory and fusing starts again: at
 * most one try a value, and a few for any number of groups that are alike. */
#include "sched/sched.h"

static void refuse(const graph *g) {
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *n = graph_get(g, v);
        if (n->op == OP_fold)
            guard_fail(g->a->gd, TN_ERR_INTERNAL, "op fold (%%%u) reached the scheduler: pass fold_lower must run first", v);
    }
}

/* ---- buffers ---- */

static void add_io(sched *s, const char *name, bool is_output, val v) {
    int k = s->p->io.n;
    int32_t b = sched_add_buf(s, is_output ? PB_OUTPUT : PB_INPUT, v, SLOT_IO + k, NULL);
    s->p->bufs.at[b].io = k;
    VEC_PUSH(s->a, &s->p->io, (pio){ name, is_output, v, graph_get(s->g, v)->dtype, b, s->p->bufs.at[b].bytes });
}

static void make_buffers(sched *s) {
    graph *g = s->g;
    plan *p = s->p;
    for (val v = 0; v < (val)g->nodes.n; v++) s->buf_of[v] = -1;
    for (int i = 0; i < g->inputs.n; i++) {
        val v = g->inputs.at[i];
        if (graph_get(g, v)->op == OP_input) {
            add_io(s, graph_get(g, v)->name, false, v);
        } else {
            bool changes = graph_is_assigned(g, v);
            int32_t b =
                sched_add_buf(s, PB_STATE, v, changes ? SLOT_STATE : SLOT_SHARED, changes ? &p->state_bytes : &p->shared_bytes);
            VEC_PUSH(s->a, &p->states, (pstate){ graph_get(g, v)->name, v, b, graph_get(g, v)->data != NULL });
        }
    }
    for (int i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].name) {
            val v = g->outputs.at[i].v;
            add_io(s, g->outputs.at[i].name, true, v);
            for (; s->place[v] == PLACE_ALIAS; v = graph_get(g, v)->in[0])
                s->buf_of[graph_get(g, v)->in[0]] = s->buf_of[v]; /* see is_output_view */
        }
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *n = graph_get(g, v);
        if (s->buf_of[v] >= 0) continue;
        if (n->op == OP_const && !n->splat)
            sched_add_buf(s, PB_CONST, v, SLOT_CONST, &p->const_bytes);
        else if (s->place[v] == PLACE_ROOT && (s->group_of[v] < 0 || !s->groups.at[s->group_of[v]].dest))
            sched_add_buf(s, PB_TEMP, v, SLOT_TEMP, NULL);
    }
    control_buffers(s);
    for (val v = 1; v < (val)g->nodes.n; v++)
        if (s->place[v] == PLACE_ALIAS) s->buf_of[v] = s->buf_of[graph_get(g, v)->in[0]];
}

/* ---- order ---- */

typedef struct open_group {
    int gi;
    int_list needs; /* groups that come before it */
    int next;       /* of those */
} open_group;

enum { GROUP_NEW, GROUP_OPEN, GROUP_DONE };
typedef struct order {
    sched *s;
    int_list out;
    uint8_t *state; /* [groups] GROUP_* */
    bool waits;     /* for what an again is to come after */
    bool circle;    /* a group needs one that waits for it */
    VEC(open_group) open;
    val_list stack; /* of the walk inside of a group */
} order;

/* Opens a group: lists those that it needs, in order of a walk from its roots to the leaves. */
static void open_new(order *o, int gi) {
    sched *s = o->s;
    open_group x = { .gi = gi };
    if (o->state[gi] == GROUP_OPEN) o->circle = true;
    if (o->state[gi] != GROUP_NEW) return;
    o->state[gi] = GROUP_OPEN;
    sched_unmark(&s->values);
    for (int r = s->groups.at[gi].roots.n - 1; r >= 0; r--) VEC_PUSH(s->a, &o->stack, s->groups.at[gi].roots.at[r]);
    while (o->stack.n) {
        val v = o->stack.at[--o->stack.n];
        const node *n = graph_get(s->g, v);
        if (!sched_mark(&s->values, v)) continue;
        if (s->place[v] == PLACE_ROOT && s->group_of[v] != gi && n->op != OP_concat) /* its parts' groups make a concat */
            VEC_PUSH(s->a, &x.needs, s->group_of[v]);
        else
            for (int i = n->op == OP_again && !o->waits ? 0 : n->n_in - 1; i >= 0; i--) VEC_PUSH(s->a, &o->stack, n->in[i]);
    }
    VEC_PUSH(s->a, &o->open, x);
}

/* Depth-first from the operands. */
static void visit_group(order *o, int gi) {
    open_new(o, gi);
    while (o->open.n) {
        open_group *x = &o->open.at[o->open.n - 1];
        if (x->next < x->needs.n) {
            open_new(o, x->needs.at[x->next++]);
        } else {
            VEC_PUSH(o->s->a, &o->out, x->gi);
            o->state[x->gi] = GROUP_DONE;
            o->open.n--;
        }
    }
}

static bool updates_state(const sched *s, int gi) {
    for (int r = 0; r < s->groups.at[gi].roots.n; r++)
        for (int i = graph_get(s->g, s->groups.at[gi].roots.at[r])->first_out; i; i = s->g->outputs.at[i - 1].next)
            if (s->g->outputs.at[i - 1].state) return true;
    return false;
}

/* ---- lowering ---- */

static void list_fused(sched *s, const members *m, int gi, pkernel *pk) {
    const val_list *roots = &s->groups.at[gi].roots;
    pk->fused = ARENA_ARRAY(s->a, val, m->first[gi + 1] - m->first[gi] + roots->n);
    for (int i = m->first[gi]; i < m->first[gi + 1]; i++)
        if (s->place[m->at[i]] == PLACE_INSIDE) pk->fused[pk->n_fused++] = m->at[i];
    for (int r = 0; r < roots->n; r++) pk->fused[pk->n_fused++] = roots->at[r];
}

static void lower_one(sched *s, int gi, lowering *low) {
    val materialise;
    pkernel pk = { .code = s->p->kernels.n };
    pk.k = lower_group(s, gi, &pk.args, &materialise);
    if (pk.k && s->opts.rows_only && s->opts.t) {
        int first = low->inside.first[gi];
        materialise = sched_beside_running_sums(s, low->inside.at + first, low->inside.first[gi + 1] - first, pk.k);
        if (materialise) pk.k = NULL;
    }
    if (!pk.k) {
        if (s->materialised[materialise])
            guard_fail(s->a->gd, TN_ERR_INTERNAL, "%%%u cannot be scheduled; please report the graph", materialise);
        VEC_PUSH(s->a, &low->to_materialise, materialise);
    }
    if (low->to_materialise.n) return;
    pk.root = s->groups.at[gi].roots.at[s->groups.at[gi].roots.n - 1];
    list_fused(s, &low->inside, gi, &pk);
    sched_count(&pk);
    VEC_PUSH(s->a, &s->p->steps, ((pstep){ .kind = PSTEP_LAUNCH, .kernel = s->p->kernels.n }));
    VEC_PUSH(s->a, &s->p->kernels, pk);
}

static order order_region(sched *s, int r, bool waits) {
    order o = { .s = s, .state = ARENA_ARRAY(s->a, uint8_t, s->groups.n), .waits = waits };
    for (int late = 0; late < 2; late++) /* kernels that end in a state update come last: others may still read the old value */
        for (int gi = 0; gi < s->groups.n; gi++) {
            const group *gr = &s->groups.at[gi];
            if (!gr->dead && graph_get(s->g, gr->roots.at[0])->region == r && updates_state(s, gi) == (late == 1))
                visit_group(&o, gi);
        }
    return o;
}

static void lower_region(sched *s, int r, lowering *low) {
    order o = order_region(s, r, true);
    if (o.circle) o = order_region(s, r, false); /* to wait saves memory; nothing needs it */
    for (int i = 0; i < o.out.n; i++) (s->groups.at[o.out.at[i]].control ? control_lower : lower_one)(s, o.out.at[i], low);
}

static bool lower_all(sched *s) {
    lowering low = { .inside = sched_members(s), .region = lower_region };
    lower_region(s, 0, &low);
    for (int i = 0; i < low.to_materialise.n; i++)
        s->materialised[low.to_materialise.at[i]] = "the loops of what reads it cannot compute it";
    return low.to_materialise.n == 0;
}

static void count_unfused(plan *p) {
    for (val v = 1; v < (val)p->g->nodes.n; v++) {
        const node *n = graph_get(p->g, v);
        op_class c = op_get((op_code)n->op)->cls;
        if (c == CL_SOURCE || c == CL_MOVE) continue;
        for (int i = 0; i < n->n_in; i++) {
            const node *x = graph_get(p->g, n->in[i]);
            if (x->op == OP_const && x->splat) continue;
            p->unfused_read += (uint64_t)graph_elems(p->g, n->in[i]) * dtype_size((tn_dtype)x->dtype);
        }
        p->unfused_written += (uint64_t)graph_elems(p->g, v) * dtype_size((tn_dtype)n->dtype);
    }
}

plan *sched_plan(graph *g, arena *a, const sched_opts *opts) {
    refuse(g);
    const char **materialised = ARENA_ARRAY(a, const char *, g->nodes.n);
    arena scratch, walked;
    arena_child(&scratch, a), arena_child(&walked, a);
    for (;;) {
        sched s = { .g = g, .a = a, .scratch = &scratch, .walked = &walked, .opts = *opts, .materialised = materialised };
        s.p = ARENA_NEW(a, plan);
        s.p->a = a, s.p->g = g, s.p->fusion = opts->fusion, s.p->params = g->params && g->params->n_dims ? g->params : NULL;
        s.place = ARENA_ARRAY(a, uint8_t, g->nodes.n);
        s.group_of = ARENA_ARRAY(a, int, g->nodes.n);
        s.part_at = ARENA_ARRAY(a, ext *, g->nodes.n);
        s.buf_of = ARENA_ARRAY(a, int32_t, g->nodes.n);
        s.values.at = ARENA_ARRAY(a, uint32_t, g->nodes.n), s.of_groups.at = ARENA_ARRAY(a, uint32_t, g->nodes.n);
        s.part_of = ARENA_ARRAY(a, int, g->nodes.n), s.count = ARENA_ARRAY(a, int, g->nodes.n);
        s.values.now = s.of_groups.now = 1;
        control_force(&s);
        sched_fuse(&s);
        control_groups(&s);
        make_buffers(&s);
        if (!lower_all(&s)) continue;
        count_unfused(s.p);
        return s.p;
    }
}
