/* control.c - if and while: their bodies are kernels of the same plan, launched by steps that read a buffer.
 *
 * A body uses values of its own region alone, so no kernel has values of two, and operands, parameters and results of control
 * ops live in memory. The parameters of an if are the operands' buffers; what its bodies give is copied to the results. A while
 * has buffers for its state, which operands are copied to before and what the body gives in each iteration. In: groups of
 * fuse.c. Out: kernels and steps of the plan. */
#include "sched/sched.h"

static bool is_control(const node *n) { return n->op == OP_if || n->op == OP_while; }

void control_force(sched *s) {
    s->control = ARENA_ARRAY(s->a, bool, s->g->regions.n + 1);
    for (val v = 1; v < (val)s->g->nodes.n; v++) {
        const node *n = graph_get(s->g, v);
        if (!is_control(n)) continue;
        s->control[n->region] = true;
        for (int i = 0; i < n->n_in; i++) s->materialised[n->in[i]] = "an if or a while takes it from memory";
        for (int r = 0; r < 2; r++) {
            const region *body = &s->g->regions.at[n->attr[r]];
            for (int i = 0; i < body->n_results; i++)
                s->materialised[body->results[i]] = "a result of the body of an if or a while";
        }
    }
}

void control_groups(sched *s) {
    for (val v = 1; v < (val)s->g->nodes.n; v++) {
        if (!is_control(graph_get(s->g, v))) continue;
        VEC_PUSH(s->a, &s->groups, (group){ .control = true });
        VEC_PUSH(s->a, &s->groups.at[s->groups.n - 1].roots, v);
        s->place[v] = PLACE_ROOT, s->group_of[v] = s->groups.n - 1;
    }
}

/* Which result an op of its own stands for; those of equal ones that are no outputs share a buffer. */
void control_buffers(sched *s) {
    for (val v = 1; v < (val)s->g->nodes.n; v++) {
        const node *n = graph_get(s->g, v);
        if (n->op != OP_proj || s->buf_of[v] >= 0) continue;
        s->buf_of[v] = n->attr[0] ? -1 : s->buf_of[n->in[0]];
        for (uint32_t u = graph_get(s->g, n->in[0])->first_use; u && s->buf_of[v] < 0; u = s->g->uses.at[u - 1].next) {
            val other = s->g->uses.at[u - 1].user;
            if (graph_get(s->g, other)->op == OP_proj && graph_get(s->g, other)->attr[0] == n->attr[0])
                s->buf_of[v] = s->buf_of[other];
        }
        if (s->buf_of[v] < 0) sched_add_buf(s, PB_TEMP, v, SLOT_TEMP, NULL);
    }
}

/* ---- steps ---- */

static int push_step(sched *s, pstep x) {
    VEC_PUSH(s->a, &s->p->steps, x);
    return s->p->steps.n - 1;
}

static void copy(sched *s, int32_t from, int32_t to) {
    if (from == to || s->p->bufs.at[to].bytes == 0) return;
    sched_decide(s, s->p->bufs.at[from].node, 0, false, "an if or a while has a copy of its own");
    push_step(s, (pstep){ .kind = PSTEP_LAUNCH, .kernel = s->p->kernels.n });
    VEC_PUSH(s->a, &s->p->kernels, plan_copy(s->p, from, to));
}

/* One more buffer for values like v, which stays where it is. */
static int32_t add_like(sched *s, val v) {
    int32_t own = s->buf_of[v], more = sched_add_buf(s, PB_TEMP, v, SLOT_TEMP, NULL);
    s->buf_of[v] = own;
    return more;
}

/* The buffers of all results of an op, used or not. */
static int32_t *results_of(sched *s, val v, int n) {
    const region *body = &s->g->regions.at[graph_get(s->g, v)->attr[1]];
    int32_t *at = ARENA_ARRAY(s->a, int32_t, n + 1);
    for (int k = 0; k < n; k++) at[k] = k ? -1 : s->buf_of[v];
    for (uint32_t u = graph_get(s->g, v)->first_use; u; u = s->g->uses.at[u - 1].next) {
        const node *user = graph_get(s->g, s->g->uses.at[u - 1].user);
        if (user->op == OP_proj && at[user->attr[0]] < 0) at[user->attr[0]] = s->buf_of[s->g->uses.at[u - 1].user];
    }
    for (int k = 0; k < n; k++)
        if (at[k] < 0) at[k] = add_like(s, body->results[k]);
    return at;
}

/* Results that are outputs under several names. */
static void copy_results(sched *s, val v, const int32_t *at) {
    for (uint32_t u = graph_get(s->g, v)->first_use; u; u = s->g->uses.at[u - 1].next) {
        val user = s->g->uses.at[u - 1].user;
        if (graph_get(s->g, user)->op == OP_proj) copy(s, at[graph_get(s->g, user)->attr[0]], s->buf_of[user]);
    }
}

/* The region's kernels, its parameters being in these buffers. */
static void put_region(sched *s, int64_t r, const int32_t *params, lowering *low) {
    const region *body = &s->g->regions.at[r];
    for (int k = 0; k < body->n_params; k++) s->buf_of[body->params[k]] = params[k];
    for (val v = 1; v < (val)s->g->nodes.n; v++) /* views of parameters */
        if (graph_get(s->g, v)->region == r && s->place[v] == PLACE_ALIAS) s->buf_of[v] = s->buf_of[graph_get(s->g, v)->in[0]];
    low->region(s, (int)r, low);
}

static void put_if(sched *s, val v, lowering *low) {
    node n = *graph_get(s->g, v);
    int n_results = s->g->regions.at[n.attr[0]].n_results;
    int32_t *to = results_of(s, v, n_results), *params = ARENA_ARRAY(s->a, int32_t, n.n_in);
    for (int k = 1; k < n.n_in; k++) params[k - 1] = s->buf_of[n.in[k]];
    int at = push_step(s, (pstep){ .kind = PSTEP_BRANCH, .cond = s->buf_of[n.in[0]] });
    for (int part = 0; part < 2; part++) {
        put_region(s, n.attr[part], params, low);
        for (int k = 0; k < n_results; k++) copy(s, s->buf_of[s->g->regions.at[n.attr[part]].results[k]], to[k]);
        if (part == 0) s->p->steps.at[at].n_then = s->p->steps.n - 1 - at;
    }
    s->p->steps.at[at].inside = s->p->steps.n - 1 - at;
    copy_results(s, v, to);
}

/* What the body gives becomes the state. Where it gives parameters in other places, they are put aside first. */
static void copy_state(sched *s, const region *body, const int32_t *state) {
    int n = body->n_results;
    int32_t *from = ARENA_ARRAY(s->a, int32_t, n + 1);
    for (int k = 0; k < n; k++) {
        from[k] = s->buf_of[body->results[k]];
        for (int j = 0; j < n; j++) {
            if (j == k || from[k] != state[j] || s->p->bufs.at[from[k]].bytes == 0) continue;
            int32_t aside = add_like(s, body->results[k]);
            copy(s, from[k], aside);
            from[k] = aside;
            break;
        }
    }
    for (int k = 0; k < n; k++) copy(s, from[k], state[k]);
}

static void put_while(sched *s, val v, lowering *low) {
    node n = *graph_get(s->g, v);
    const region *cond = &s->g->regions.at[n.attr[0]], *body = &s->g->regions.at[n.attr[1]];
    int32_t *state = results_of(s, v, n.n_in);
    for (int k = 0; k < n.n_in; k++) copy(s, s->buf_of[n.in[k]], state[k]);
    int at = push_step(s, (pstep){ .kind = PSTEP_REPEAT });
    put_region(s, n.attr[0], state, low);
    push_step(s, (pstep){ .kind = PSTEP_LEAVE, .cond = s->buf_of[cond->results[0]] });
    put_region(s, n.attr[1], state, low);
    copy_state(s, body, state);
    s->p->steps.at[at].inside = s->p->steps.n - 1 - at;
    copy_results(s, v, state);
}

void control_lower(sched *s, int gi, lowering *low) {
    val v = s->groups.at[gi].roots.at[0];
    (graph_get(s->g, v)->op == OP_if ? put_if : put_while)(s, v, low);
}
