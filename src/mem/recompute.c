/* recompute.c - fewer values that wait in memory: those that late readers compute again (Chen et al. 2016, arXiv:1604.06174;
 * Jain et al. 2020, arXiv:1910.02653).
 *
 * In: a plan that needs too much, what its launches take. Out: its graph, in which chosen values have a second computation for
 * their late readers, held back by op again; the plan of that graph needs less. Chosen greedily: at the launch where most is
 * live, the value whose second computation takes the least time a byte, until the launch with most has no more than the aim.
 * Values that are gone by then are computed again on the way; those that are there still are read. */
#include "mem/mem.h"

typedef VEC(int32_t) int_list;
typedef VEC(val) val_list;

typedef struct value {  /* one that lives in memory by itself */
    bool held;          /* it is a temporary, and may be computed again */
    int32_t made, last; /* the launch that makes it; the last that reads it */
    int_list readers;   /* launches, ascending */
    int64_t bytes;
    int32_t early,
        late;  /* of one that is computed again: the last launch that reads the first one, and for which it is; else 0 */
    val again; /* that value in the new graph */
} value;

typedef struct chooser {
    const plan *p;
    graph *g; /* the new graph; values of the plan's have the ids that they have there */
    arena *a;
    const double *ns;
    int32_t *kernel_of;  /* [nodes] launch that computes a value inside or as its result; -1: none, or any that reads it */
    value *values;       /* [nodes]; bytes 0: not in memory */
    int64_t *live;       /* [launches] bytes of temporaries */
    uint32_t *seen, now; /* [nodes] of the walk that goes on */
    val_list walk;
} chooser;

static bool in_memory(const chooser *c, val v) { return c->values[v].bytes > 0; }
static bool is_source(const chooser *c, val v) { return op_get((op_code)graph_get(c->p->g, v)->op)->cls == CL_SOURCE; }
static bool mark(chooser *c, val v) {
    bool fresh = c->seen[v] != c->now;
    c->seen[v] = c->now;
    return fresh;
}

static bool is_less(const void *x, const void *y, const void *ud) {
    (void)ud;
    return *(const val *)x < *(const val *)y;
}

/* ---- what is where, when ---- */

static void note_reads(chooser *c, int32_t i) {
    const pkernel *pk = &c->p->kernels.at[i];
    c->now++, c->walk.n = 0;
    for (int f = 0; f < pk->n_fused; f++) VEC_PUSH(c->a, &c->walk, pk->fused[f]);
    while (c->walk.n) {
        val v = c->walk.at[--c->walk.n];
        const node *n = graph_get(c->p->g, v);
        for (int s = 0; s < graph_n_read(n); s++) {
            val x = n->in[s];
            if (is_source(c, x) || c->kernel_of[x] == i || !mark(c, x)) continue;
            if (!in_memory(c, x)) {
                VEC_PUSH(c->a, &c->walk, x);
                continue;
            }
            VEC_PUSH(c->a, &c->values[x].readers, i);
            if (c->values[x].last < i) c->values[x].last = i;
        }
    }
}

static void note_values(chooser *c) {
    const plan *p = c->p;
    for (int v = 0; v < p->g->nodes.n; v++) c->kernel_of[v] = -1;
    for (int32_t i = 0; i < p->kernels.n; i++)
        for (int f = 0; f < p->kernels.at[i].n_fused; f++) c->kernel_of[p->kernels.at[i].fused[f]] = i;
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b], *place = x;
        while (place->kind == PB_TEMP && place->first < 0 && place->inplace_of >= 0) place = &p->bufs.at[place->inplace_of];
        bool temp = x->kind == PB_TEMP && place->first >= 0 && x->bytes > 0;
        if (!x->node || (!temp && x->kind != PB_OUTPUT)) continue;
        value *v = &c->values[x->node];
        v->bytes = plan_room(x->bytes);
        v->made = c->kernel_of[x->node] >= 0 ? c->kernel_of[x->node] : x->first; /* several make a concat */
        v->last = temp ? v->made : p->kernels.n;
        v->held = temp && c->kernel_of[x->node] >= 0 && !graph_is_output(p->g, x->node);
        for (int32_t i = x->first; temp && place == x && i <= x->last; i++) c->live[i] += v->bytes;
    }
    for (int32_t i = 0; i < p->kernels.n; i++) note_reads(c, i);
}

/* ---- one value computed again ---- */

/* What is computed when v is, ascending: v and what kernels compute inside. *out_reads (may be NULL): the values in memory that
 * it is made of. False: too much, or what cannot be. */
static bool find_work(chooser *c, val v, val_list *out, val_list *out_reads) {
    enum { MOST = 4096 };
    c->now++, c->walk.n = 0, out->n = 0;
    if (out_reads) out_reads->n = 0;
    mark(c, v);
    VEC_PUSH(c->a, &c->walk, v);
    while (c->walk.n) {
        val x = c->walk.at[--c->walk.n];
        const node *n = graph_get(c->p->g, x);
        if (op_get((op_code)n->op)->cls == CL_CTRL || n->op == OP_concat || out->n == MOST) return false;
        VEC_PUSH(c->a, out, x);
        for (int s = 0; s < graph_n_read(n); s++) {
            val y = n->in[s];
            if (is_source(c, y) || !mark(c, y)) continue;
            if (!in_memory(c, y))
                VEC_PUSH(c->a, &c->walk, y);
            else if (out_reads)
                VEC_PUSH(c->a, out_reads, y);
        }
    }
    merge_sort(c->a, out->at, out->n, sizeof *out->at, is_less, NULL);
    return true;
}

/* Bytes that the value takes at launch `at` more when launch t reads it, too; -1: it is gone by then, and has to be computed
 * again. */
static int64_t room_for(const value *x, int32_t t, int32_t at) {
    int32_t end = x->late ? x->early : x->last;
    if (t <= end) return 0;
    if (!x->late) return -1;
    if (t < x->late) return t <= at && at < x->late ? x->bytes : 0;
    return x->last < at && at <= t ? x->bytes : 0;
}

/* What it takes to compute v again for launch t, also what it is made of and is gone by then. *out_room: the bytes that this
 * takes at launch `at`. False: it cannot be. */
static bool find_price(chooser *c, val v, int32_t t, int32_t at, double *out_ns, int64_t *out_room) {
    enum { MOST_VALUES = 64 };
    val_list todo = { 0 }, work = { 0 }, reads = { 0 };
    VEC_PUSH(c->a, &todo, v);
    *out_ns = 0, *out_room = 0;
    for (int i = 0; i < todo.n; i++) {
        if (i == MOST_VALUES || !find_work(c, todo.at[i], &work, &reads)) return false;
        *out_ns += c->ns[c->values[todo.at[i]].made];
        for (int k = 0; k < reads.n; k++) {
            int64_t room = room_for(&c->values[reads.at[k]], t, at);
            bool known = false;
            for (int j = 0; j < todo.n && room < 0; j++) known |= todo.at[j] == reads.at[k];
            if (room > 0) *out_room += room;
            if (room >= 0 || known) continue;
            if (!c->values[reads.at[k]].held) return false;
            VEC_PUSH(c->a, &todo, reads.at[k]);
        }
    }
    return true;
}

/* The first launch behind `at` that reads v, or 0; *out_early: the last one before, or what makes it. Not for one that `at`
 * itself reads. */
static int32_t late_reader(const chooser *c, val v, int32_t at, int32_t *out_early) {
    const value *x = &c->values[v];
    *out_early = x->made;
    for (int i = 0; i < x->readers.n; i++) {
        int32_t r = x->readers.at[i];
        if (r == at) return 0;
        if (r > at) return r;
        *out_early = r;
    }
    return 0;
}

/* A value that is made last before launch t, so that what comes after it is computed for t and no earlier, but not before
 * launch `first`; 0: there is none. */
static val made_before(const chooser *c, int32_t t, int32_t first) {
    for (int32_t k = t - 1; k >= first; k--) {
        const pkernel *pk = &c->p->kernels.at[k];
        val v = pk->n_fused ? pk->root : 0;
        if (v && c->kernel_of[v] == k && !graph_get(c->p->g, v)->region) return v;
    }
    return 0;
}

/* ---- choosing ---- */

typedef struct choice {
    val v;
    int32_t early, late;
} choice;

static int32_t fullest(const chooser *c) {
    int32_t at = 0;
    for (int32_t i = 1; i < c->p->kernels.n; i++)
        if (c->live[i] > c->live[at]) at = i;
    return at;
}

static bool choose_one(chooser *c, int32_t at, choice *out) {
    double best = 0;
    *out = (choice){ 0 };
    for (val v = 1; v < (val)c->p->g->nodes.n; v++) {
        const value *x = &c->values[v];
        int32_t early;
        if (!x->held || x->late || x->made >= at || x->last <= at) continue;
        int32_t late = late_reader(c, v, at, &early);
        double ns;
        int64_t room;
        if (!late || late - early < 2 || !made_before(c, late, x->made)) continue;
        if (!find_price(c, v, late, at, &ns, &room) || room >= x->bytes) continue;
        double price = (ns + 1) / (double)(x->bytes - room);
        if (out->v && price >= best) continue;
        best = price;
        *out = (choice){ v, early, late };
    }
    return out->v != 0;
}

static void add_reader(chooser *c, value *x, int32_t t) {
    VEC_PUSH(c->a, &x->readers, t);
    for (int i = x->readers.n - 1; i > 0 && x->readers.at[i] < x->readers.at[i - 1]; i--) {
        int32_t r = x->readers.at[i];
        x->readers.at[i] = x->readers.at[i - 1], x->readers.at[i - 1] = r;
    }
}

static void add_live(chooser *c, int32_t from, int32_t to, int64_t bytes) {
    for (int32_t i = from; i <= to; i++) c->live[i] += bytes;
}

/* v is computed again for launch t, and what it is made of is there then: in memory still, or computed again, too. */
static void need_at(chooser *c, val v, int32_t t) {
    val_list work = { 0 }, reads = { 0 }, todo = { 0 };
    VEC_PUSH(c->a, &todo, v);
    while (todo.n) {
        find_work(c, todo.at[--todo.n], &work, &reads);
        for (int k = 0; k < reads.n; k++) {
            value *y = &c->values[reads.at[k]];
            int32_t end = y->late ? y->early : y->last;
            add_reader(c, y, t);
            if (t <= end || (y->late && t >= y->late && t <= y->last)) continue;
            if (y->late && t > y->last) {
                add_live(c, y->last + 1, t, y->bytes);
                y->last = t;
                continue;
            }
            add_live(c, t, y->late ? y->late - 1 : t, y->bytes);
            if (!y->late) y->early = y->last, y->last = t;
            y->late = t;
            VEC_PUSH(c->a, &todo, reads.at[k]);
        }
    }
}

static void take(chooser *c, const choice *x) {
    value *v = &c->values[x->v];
    add_live(c, x->early + 1, x->late - 1, -v->bytes);
    v->early = x->early, v->late = x->late;
    need_at(c, x->v, x->late);
}

/* ---- the new graph ---- */

/* What operand y of a value that is computed again for launch t becomes. */
static val operand_at(const chooser *c, const val *made, val y, int32_t t) {
    if (y >= (val)c->p->g->nodes.n) return y;
    if (made && made[y]) return made[y];
    const value *x = &c->values[y];
    return x->late && t >= x->late ? x->again : y;
}

static void compute_again(chooser *c, val v) {
    graph *g = c->g;
    int32_t t = c->values[v].late;
    val after = made_before(c, t, c->values[v].made), *made = ARENA_ARRAY(c->a, val, c->p->g->nodes.n);
    val_list work = { 0 };
    find_work(c, v, &work, NULL);
    for (int k = 0; k < work.n; k++) {
        node n = *graph_get(g, work.at[k]);
        spec s = graph_spec(g, work.at[k]);
        val *in = arena_copy(c->a, c->p->g->nodes.at[work.at[k]].in, sizeof *in * (size_t)n.n_in);
        bool waits = false; /* by an operand that does */
        for (int i = 0; i < graph_n_read(&n); i++) {
            waits |= made[in[i]] != 0;
            in[i] = operand_at(c, made, in[i], t);
        }
        s.in = n.in = in;
        int slot = waits || !after ? -1 : graph_again_slot(g, &n);
        if (slot >= 0) in[slot] = graph_again(g, in[slot], after);
        g->here = n.where;
        made[work.at[k]] = graph_add(g, &s);
        graph_get(g, made[work.at[k]])->name = n.name;
    }
    c->values[v].again = made[v];
}

typedef struct redirection {
    val from, to;
} redirection;

/* The readers of v from its launch `late` on read the second one. What every kernel computes for itself is there once more for
 * them. */
static void redirect(chooser *c, val v) {
    graph *g = c->g;
    VEC(redirection) todo = { 0 };
    VEC_PUSH(c->a, &todo, ((redirection){ v, c->values[v].again }));
    while (todo.n) {
        redirection r = todo.at[--todo.n];
        val_list users = { 0 };
        for (uint32_t u = graph_get(g, r.from)->first_use; u; u = g->uses.at[u - 1].next)
            if (g->uses.at[u - 1].user < (val)c->p->g->nodes.n) VEC_PUSH(c->a, &users, g->uses.at[u - 1].user);
        for (int k = 0; k < users.n; k++) {
            node n = *graph_get(g, users.at[k]);
            int32_t at = c->kernel_of[users.at[k]];
            spec s = graph_spec(g, users.at[k]);
            val *in = arena_copy(c->a, n.in, sizeof *in * (size_t)n.n_in);
            bool reads = false;
            s.in = in;
            for (int i = 0; i < graph_n_read(&n); i++) {
                if (n.in[i] != r.from) {
                    in[i] = operand_at(c, NULL, n.in[i], c->values[v].late);
                    continue;
                }
                reads = true;
                in[i] = r.to;
                if (at >= c->values[v].late) graph_set_in(g, users.at[k], i, r.to);
            }
            g->here = n.where;
            if (reads && at < 0) VEC_PUSH(c->a, &todo, ((redirection){ users.at[k], graph_add(g, &s) }));
        }
    }
}

/* A value that only kernels inside of others compute is no launch: an again of an earlier round may wait for one that now reads
 * what is computed again later. In the order of the operands, agains that would wait for themselves wait for nothing. */
static void untangle(chooser *c) {
    graph *g = c->g;
    int32_t *missing = ARENA_ARRAY(c->a, int32_t, g->nodes.n);
    val_list ready = { 0 };
    for (val v = 1; v < (val)g->nodes.n; v++) {
        missing[v] = graph_get(g, v)->n_in;
        if (!missing[v]) VEC_PUSH(c->a, &ready, v);
    }
    for (;;) {
        while (ready.n) {
            val v = ready.at[--ready.n];
            missing[v] = -1;
            for (uint32_t u = graph_get(g, v)->first_use; u; u = g->uses.at[u - 1].next)
                if (--missing[g->uses.at[u - 1].user] == 0) VEC_PUSH(c->a, &ready, g->uses.at[u - 1].user);
        }
        val stuck = 0;
        for (val v = 1; v < (val)g->nodes.n && !stuck; v++) {
            const node *n = graph_get(g, v);
            if (missing[v] > 0 && n->op == OP_again && missing[n->in[0]] < 0) stuck = v;
        }
        if (!stuck) return;
        graph_set_in(g, stuck, 1, graph_get(g, stuck)->in[0]);
        missing[stuck] = 0;
        VEC_PUSH(c->a, &ready, stuck);
    }
}

int mem_recompute(const plan *p, graph *g, const double *ns, int64_t aim) {
    int nodes = p->g->nodes.n;
    if (plan_has_control(p) || p->kernels.n == 0) return 0;
    chooser c = { .p = p,
                  .g = g,
                  .a = g->a,
                  .ns = ns,
                  .kernel_of = ARENA_ARRAY(g->a, int32_t, nodes),
                  .values = ARENA_ARRAY(g->a, value, nodes),
                  .live = ARENA_ARRAY(g->a, int64_t, p->kernels.n),
                  .seen = ARENA_ARRAY(g->a, uint32_t, nodes) };
    int n = 0;
    note_values(&c);
    for (choice x;; n++) {
        int32_t at = fullest(&c);
        if (c.live[at] <= aim || !choose_one(&c, at, &x)) break;
        take(&c, &x);
    }
    for (val v = 1; v < (val)nodes; v++) /* operands first */
        if (c.values[v].late) compute_again(&c, v);
    for (val v = 1; v < (val)nodes; v++)
        if (c.values[v].late) redirect(&c, v);
    if (n) untangle(&c);
    return n;
}
