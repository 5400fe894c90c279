/* control.c - if, while and scan: their bodies are kernels of the same plan, launched by steps that are repeated or read a
 * buffer.
 *
 * A body uses values of its own region alone, so no kernel has values of two, and operands, parameters and results of control
 * ops live in memory. The parameters of an if are the operands' buffers; what its bodies give is copied to the results. A while
 * has buffers for its state, which operands are copied to before and what the body gives in each iteration. So has a scan for
 * what it carries; slices of stacks are windows, which move over the stack, so that kernels read and write them where they are:
 * an iteration takes time in proportion to a slice. In: groups of fuse.c. Out: kernels and steps of the plan. */
#include "sched/sched.h"
#include "ir/region.h"

static bool is_control(const node *n) { return node_regions(n) > 0; }

/* The count of a scan when it is a number, or follows from the dims; else UNKNOWN. */
enum { UNKNOWN = -1 };
static ext known_count(const sched *s, const node *n) {
    const node *c = graph_get(s->g, n->in[0]);
    ext length = n->attr[SCAN_LENGTH];
    int64_t count = c->imm_int < 0 ? 0 : c->imm_int;
    if (c->op != OP_const || !c->splat) return length ? UNKNOWN : 0;
    if (count >= graph_dim_most(s->g, length)) return length;
    return ext_is_lit(length) ? count : ext_min(s->g->params, length, count);
}

void control_force(sched *s) {
    s->control = ARENA_ARRAY(s->a, bool, s->g->regions.n + 1);
    for (val v = 1; v < (val)s->g->nodes.n; v++) {
        const node *n = graph_get(s->g, v);
        if (!is_control(n)) continue;
        s->control[n->region] = true;
        for (int i = 0; i < n->n_in; i++)
            if (i > 0 || n->op != OP_scan || known_count(s, n) == UNKNOWN)
                s->materialised[n->in[i]] = "an if, a while or a scan takes it from memory";
        for (int r = 0; r < node_regions(n); r++) {
            const region *body = &s->g->regions.at[n->attr[r]]; /* that of no condition is empty */
            for (int i = 0; i < body->n_results; i++)
                s->materialised[body->results[i]] = "a result of the body of an if, a while or a scan";
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
    sched_decide(s, s->p->bufs.at[from].node, 0, false, "an if, a while or a scan has a copy of its own");
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
    const region *body = &s->g->regions.at[node_body(graph_get(s->g, v))];
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
static void copy_state(sched *s, const region *body, const int32_t *state, int n) {
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
    copy_state(s, body, state, body->n_results);
    s->p->steps.at[at].inside = s->p->steps.n - 1 - at;
    copy_results(s, v, state);
}

/* ---- scan ---- */

static void zero(sched *s, int32_t to) {
    if (s->p->bufs.at[to].bytes == 0) return;
    sched_decide(s, s->p->bufs.at[to].node, 0, false, "a scan stacks it, slice by slice, over zeros");
    push_step(s, (pstep){ .kind = PSTEP_LAUNCH, .kernel = s->p->kernels.n });
    VEC_PUSH(s->a, &s->p->kernels, plan_copy(s->p, -1, to));
}

/* A window over a stack for slices like v. */
static int32_t add_window(sched *s, val v, int32_t of) {
    int32_t own = s->buf_of[v], w = sched_add_buf(s, PB_WINDOW, v, plan_slots(s->p), NULL);
    s->buf_of[v] = own;
    s->p->bufs.at[w].window_of = of;
    s->p->n_windows++;
    return w;
}

/* Whether the kernel of a slice can write it where it belongs: it is one in memory that has no place yet. */
static bool is_free(const sched *s, val v) {
    int32_t b = s->buf_of[v];
    return s->place[v] == PLACE_ROOT && b >= 0 && s->p->bufs.at[b].kind == PB_TEMP && s->p->bufs.at[b].node == v &&
           graph_get(s->g, v)->op != OP_param && (s->group_of[v] < 0 || !s->groups.at[s->group_of[v]].dest);
}

typedef struct scan {
    node n;
    const region *body;
    int32_t *out;     /* [results] buffers of the op's results; those of stacks that nobody reads: -1 */
    int32_t *params;  /* buffers of the body's parameters */
    int32_t *windows; /* [results] of stacks, or -1 */
    VEC(pring) rings;
} scan;

static void add_ring(sched *s, scan *x, int32_t window) {
    ext stride = s->p->bufs.at[window].bytes, elems = plan_elems(s->p, window);
    if (!ext_is_lit(elems)) stride = ext_mul(s->g->params, elems, (int64_t)dtype_size((tn_dtype)s->p->bufs.at[window].dtype));
    VEC_PUSH(s->a, &x->rings, ((pring){ window, stride }));
}

static void find_buffers(sched *s, val v, scan *x) {
    int n = x->body->n_results, carry = (int)x->n.attr[SCAN_CARRY], stacks = (int)x->n.attr[SCAN_STEPS];
    x->out = ARENA_ARRAY(s->a, int32_t, n + 1), x->windows = ARENA_ARRAY(s->a, int32_t, n + 1);
    x->params = ARENA_ARRAY(s->a, int32_t, x->n.n_in);
    for (int k = 0; k < n; k++) x->windows[k] = x->out[k] = -1;
    x->out[0] = s->buf_of[v];
    for (uint32_t u = graph_get(s->g, v)->first_use; u; u = s->g->uses.at[u - 1].next) {
        const node *user = graph_get(s->g, s->g->uses.at[u - 1].user);
        if (user->op == OP_proj && x->out[user->attr[0]] < 0) x->out[user->attr[0]] = s->buf_of[s->g->uses.at[u - 1].user];
    }
    for (int k = 0; k < carry; k++) {
        if (x->out[k] < 0) x->out[k] = add_like(s, x->body->results[k]);
        x->params[k] = x->out[k];
    }
    if (known_count(s, &x->n) == 0) return; /* the body stays out */
    for (int k = carry; k < x->n.n_in - 1; k++) {
        bool stack = k < carry + stacks;
        x->params[k] = stack ? add_window(s, x->body->params[k], s->buf_of[x->n.in[1 + k]]) : s->buf_of[x->n.in[1 + k]];
        if (stack) add_ring(s, x, x->params[k]);
    }
    for (int k = carry; k < n; k++) {
        val slice = x->body->results[k];
        if (x->out[k] < 0) continue;
        x->windows[k] = add_window(s, slice, x->out[k]);
        add_ring(s, x, x->windows[k]);
        if (is_free(s, slice)) s->buf_of[slice] = x->windows[k];
    }
}

/* Whether the iterations became one kernel: then windows, which stand last, are not needed. */
static bool put_as_kernel(sched *s, scan *x, int before, int at, int n_bufs) {
    int carry = (int)x->n.attr[SCAN_CARRY];
    int32_t *first = ARENA_ARRAY(s->a, int32_t, carry + 1), *next = ARENA_ARRAY(s->a, int32_t, carry + 1);
    for (int k = 0; k < carry; k++) first[k] = s->buf_of[x->n.in[1 + k]], next[k] = s->buf_of[x->body->results[k]];
    if (x->n.attr[SCAN_COND] || s->p->bufs.n != n_bufs) return false;
    if (!sched_scan_kernel(s, &(scan_steps){ at, before, carry, first, x->out, next })) return false;
    s->p->bufs.n -= x->rings.n, s->p->n_windows -= x->rings.n;
    for (val v = 1; v < (val)s->g->nodes.n; v++)
        if (s->buf_of[v] >= s->p->bufs.n) s->buf_of[v] = -1;
    return true;
}

static void put_scan(sched *s, val v, lowering *low) {
    scan x = { .n = *graph_get(s->g, v) };
    x.body = &s->g->regions.at[x.n.attr[SCAN_BODY]];
    int carry = (int)x.n.attr[SCAN_CARRY];
    ext count = known_count(s, &x.n), length = x.n.attr[SCAN_LENGTH];
    find_buffers(s, v, &x);
    int n_bufs = s->p->bufs.n;
    for (int k = carry; k < x.body->n_results && (count != length || x.n.attr[SCAN_COND]); k++)
        if (x.out[k] >= 0) zero(s, x.out[k]);
    int before = s->p->steps.n, n_decisions = s->p->decisions.n;
    for (int k = 0; k < carry; k++) copy(s, s->buf_of[x.n.in[1 + k]], x.out[k]);
    int n_copies = s->p->steps.n - before;
    if (count != 0) {
        int at = push_step(s, (pstep){ .kind = PSTEP_REPEAT,
                                       .times = count == UNKNOWN ? length : count,
                                       .count = count == UNKNOWN ? s->buf_of[x.n.in[0]] : -1,
                                       .backward = x.n.attr[SCAN_REVERSE] != 0,
                                       .rings = x.rings.at,
                                       .n_rings = x.rings.n });
        if (x.n.attr[SCAN_COND]) {
            put_region(s, x.n.attr[SCAN_COND], x.params, low);
            val cond = s->g->regions.at[x.n.attr[SCAN_COND]].results[0];
            push_step(s, (pstep){ .kind = PSTEP_LEAVE, .cond = s->buf_of[cond] });
        }
        put_region(s, x.n.attr[SCAN_BODY], x.params, low);
        for (int k = carry; k < x.body->n_results; k++)
            if (x.windows[k] >= 0) copy(s, s->buf_of[x.body->results[k]], x.windows[k]);
        if (!put_as_kernel(s, &x, before, at, n_bufs)) {
            copy_state(s, x.body, x.out, carry);
            s->p->steps.at[at].inside = s->p->steps.n - 1 - at;
        } else if (s->p->steps.n <= at) { /* without the copies: nobody need know of them */
            s->p->decisions.n -= n_copies;
            memmove(&s->p->decisions.at[n_decisions], &s->p->decisions.at[n_decisions + n_copies],
                    sizeof(why) * (size_t)(s->p->decisions.n - n_decisions));
        }
    }
    copy_results(s, v, x.out);
}

void control_lower(sched *s, int gi, lowering *low) {
    val v = s->groups.at[gi].roots.at[0];
    op_code op = (op_code)graph_get(s->g, v)->op;
    (op == OP_if ? put_if : op == OP_while ? put_while : put_scan)(s, v, low);
}
