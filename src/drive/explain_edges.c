/* explain_edges.c - where each value is, what it would cost to store it, and why what one kernel makes another one reads from
 * memory. In: a plan, and the decisions by value. Out: the values and edges of explain.h. */
#include "drive/explain.h"

#include "machine/machine.h"

typedef struct written { /* to a buffer */
    int by;              /* kernel */
    val v;
} written;

typedef struct finder {
    explain *x;
    arena *a;
    const explain_reasons *r;
    const machine *m;
    VEC(explain_edge) edges;
    int *writer, *next; /* [bufs] the last write of a buffer, [writes] the one before: number + 1, 0 = none */
    VEC(written) writes;
    int *in;   /* [nodes] the last kernel that was asked for and computes a value, + 1 */
    int asked; /* that kernel */
} finder;

/* ---- where values are ---- */

static void find_places(finder *f) {
    explain *x = f->x;
    const plan *p = x->plan;
    for (int v = 0; v < p->g->nodes.n; v++) x->values[v] = (explain_value){ .buffer = -1, .kernel = -1 };
    for (int b = p->bufs.n - 1; b >= 0; b--)
        if (p->bufs.at[b].bytes > 0 && p->bufs.at[b].kind != PB_STATES && p->bufs.at[b].kind != PB_TEMP && !p->bufs.at[b].copy)
            x->values[p->bufs.at[b].node].buffer = b;
    for (int i = p->kernels.n - 1; i >= 0; i--) {
        const pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (!kbuf_is_local(&pk->k->bufs.at[b]) && pk->k->bufs.at[b].kind != KB_IN && pk->args[b].buf >= 0)
                x->values[pk->k->bufs.at[b].node].buffer = pk->args[b].buf;
        for (int j = 0; j < pk->n_fused; j++) x->values[pk->fused[j]].kernel = i, x->values[pk->fused[j]].n_kernels++;
    }
    for (val v = 1; v < (val)p->g->nodes.n; v++) { /* the same bytes under another name */
        const node *n = graph_get(p->g, v);
        if (n->op == OP_reshape && x->values[v].buffer < 0 && x->values[v].kernel < 0)
            x->values[v].buffer = x->values[n->in[0]].buffer;
    }
}

/* ---- what a trip through memory takes ---- */

/* Nanoseconds in which so many bytes are written, and read so often, at the first level that has room for them. */
static double trip_ns(const machine *m, double bytes, int reads) {
    int l = LEVEL_L2;
    while (l < LEVEL_MEMORY && (double)m->level[l].bytes < bytes) l++;
    double read = machine_rate(m, (machine_level)l, false), write = machine_rate(m, (machine_level)l, true);
    return read > 0 && write > 0 ? bytes / write + reads * bytes / read : 0;
}

static int64_t bytes_of(const graph *g, val v) {
    return graph_elems(g, v) * (int64_t)dtype_size((tn_dtype)graph_get(g, v)->dtype);
}

static void price_values(finder *f) {
    const plan *p = f->x->plan;
    for (val v = 1; v < (val)p->g->nodes.n; v++) {
        explain_value *at = &f->x->values[v];
        if (graph_get(p->g, v)->op == OP_NIL) continue;
        at->bytes = bytes_of(p->g, v);
        if (at->buffer < 0 && at->n_kernels) at->stored_ns = trip_ns(f->m, (double)at->bytes, at->n_kernels);
    }
}

/* ---- edges ---- */

static bool computes(finder *f, int i, val v) {
    const pkernel *pk = &f->x->plan->kernels.at[i];
    if (f->asked != i)
        for (int j = 0; j < pk->n_fused; j++) f->in[pk->fused[j]] = i + 1;
    f->asked = i;
    return f->in[v] == i + 1;
}

/* How well a decision about v says why kernel `to` reads it from memory: 0: not at all. */
static int fits(finder *f, const why *w, int to) {
    if (w->fused) return 0;
    if (!w->consumer) return 2;
    return computes(f, to, w->consumer) ? 3 : 1;
}

/* The last of those that fit best; number + 1, 0 = none. */
static int find_reason(finder *f, val v, int to) {
    int best = 0, how = 0;
    for (int i = f->r->first[v]; i; i = f->r->next[i - 1]) {
        int fit = fits(f, &f->x->plan->decisions.at[i - 1], to);
        if (fit && fit >= how) how = fit, best = i;
    }
    return best;
}

static void add_edge(finder *f, int from, int to, val v) {
    const plan *p = f->x->plan;
    for (int i = f->edges.n - 1; i >= 0 && f->edges.at[i].to == to; i--)
        if (f->edges.at[i].from == from && f->edges.at[i].value == v) return;
    int decision = find_reason(f, v, to), joined = find_reason(f, p->kernels.at[from].root, to);
    if (joined && fits(f, &p->decisions.at[joined - 1], to) == 3) decision = joined;
    double bytes = (double)bytes_of(p->g, v);
    VEC_PUSH(f->a, &f->edges, (explain_edge){ from, to, v, decision - 1, (int64_t)bytes, trip_ns(f->m, bytes, 1) });
}

/* Kernel `to` reads buffer b: what was written there last, and other parts of the same value. */
static void read_buffer(finder *f, int32_t b, int to) {
    int last = f->writer[b];
    for (int w = last; w; w = f->next[w - 1]) {
        val v = f->writes.at[w - 1].v;
        if (v != f->writes.at[last - 1].v) break;
        if (f->writes.at[w - 1].by != to) add_edge(f, f->writes.at[w - 1].by, to, v);
    }
}

static void find_edges(finder *f) {
    const plan *p = f->x->plan;
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) n += p->kernels.at[i].k->bufs.n;
    f->writer = ARENA_ARRAY(f->a, int, p->bufs.n + 1), f->next = ARENA_ARRAY(f->a, int, n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->args[b].buf >= 0 && pk->k->bufs.at[b].kind != KB_OUT) read_buffer(f, pk->args[b].buf, i);
        for (int b = 0; b < pk->k->bufs.n; b++) {
            if (pk->args[b].buf < 0 || pk->k->bufs.at[b].kind == KB_IN || kbuf_is_local(&pk->k->bufs.at[b])) continue;
            int *last = &f->writer[pk->args[b].buf];
            f->next[f->writes.n] = *last;
            VEC_PUSH(f->a, &f->writes, (written){ i, pk->k->bufs.at[b].node });
            *last = f->writes.n;
        }
    }
    f->x->edges = f->edges.at, f->x->n_edges = f->edges.n;
}

void explain_find_edges(explain *x, const explain_reasons *r, const machine *m, arena *a) {
    finder f = { .x = x, .a = a, .r = r, .m = m, .asked = -1 };
    x->values = ARENA_ARRAY(a, explain_value, x->plan->g->nodes.n + 1);
    f.in = ARENA_ARRAY(a, int, x->plan->g->nodes.n + 1);
    find_places(&f);
    price_values(&f);
    find_edges(&f);
}
