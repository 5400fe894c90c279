/* plan_deps.c - prints why launches stand in their order: by data (one reads what the other wrote) or by control (one writes a
 * place that the other reads or wrote before: a state that is updated after its old value was used, memory that is used again).
 * In: a plan with places. Out: text; of each launch, the latest ones that it must come after.
 *
 * Memory is cut into pieces wherever a buffer begins or ends. Of each piece is known who wrote it last, and who has read it
 * since; what was before does not matter any more. */
#include "ir/plan.h"

typedef struct touch {
    const pbuf *buf;
    bool reads, writes;
} touch;

static touch touch_of(const plan *p, const pkernel *pk, int b) {
    if (pk->args[b].buf < 0) return (touch){ 0 };
    uint8_t kind = pk->k->bufs.at[b].kind;
    return (touch){ &p->bufs.at[plan_base(p, pk->args[b].buf)], kind != KB_OUT, kind != KB_IN };
}

typedef struct seen { /* a use of a piece; chained */
    int launch, buf, next;
} seen;
typedef struct piece {
    int64_t at;
    int slot;
    int writer, readers; /* seen, or 0 */
} piece;
typedef struct edge {
    int launch;
    bool data, written;
    val node;
} edge;

typedef struct deps {
    const plan *p;
    arena *a;
    VEC(piece) pieces; /* by slot and place */
    VEC(seen) seen;
    VEC(edge) edges;
} deps;

static bool is_before(const void *x, const void *y, const void *ud) {
    const piece *a = x, *b = y;
    (void)ud;
    return a->slot != b->slot ? a->slot < b->slot : a->at < b->at;
}
static bool is_later(const void *x, const void *y, const void *ud) {
    (void)ud;
    return ((const edge *)x)->launch > ((const edge *)y)->launch;
}

static void cut(deps *d) {
    for (int i = 0; i < d->p->bufs.n; i++) {
        const pbuf *b = &d->p->bufs.at[i];
        if (b->bytes <= 0) continue;
        VEC_PUSH(d->a, &d->pieces, (piece){ .at = b->offset, .slot = b->slot });
        VEC_PUSH(d->a, &d->pieces, (piece){ .at = b->offset + b->bytes, .slot = b->slot });
    }
    merge_sort(d->a, d->pieces.at, d->pieces.n, sizeof *d->pieces.at, is_before, NULL);
    int n = 0;
    for (int i = 0; i < d->pieces.n; i++)
        if (n == 0 || is_before(&d->pieces.at[n - 1], &d->pieces.at[i], NULL)) d->pieces.at[n++] = d->pieces.at[i];
    d->pieces.n = n;
}

static int find_piece(const deps *d, int slot, int64_t at) {
    piece want = { .at = at, .slot = slot };
    int lo = 0, hi = d->pieces.n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (is_before(&d->pieces.at[mid], &want, NULL))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}
/* The pieces [*from, *to) of a buffer. */
static void find_pieces(const deps *d, const pbuf *b, int *from, int *to) {
    *from = *to = 0;
    if (!b || b->bytes <= 0) return;
    *from = find_piece(d, b->slot, b->offset), *to = find_piece(d, b->slot, b->offset + b->bytes);
}

static void add_edges(deps *d, const touch *x, int at) {
    for (; at; at = d->seen.at[at].next) {
        seen s = d->seen.at[at];
        touch y = touch_of(d->p, &d->p->kernels.at[s.launch], s.buf);
        VEC_PUSH(d->a, &d->edges, (edge){ s.launch, y.writes && x->reads, y.writes, y.buf->node });
    }
}

static void print_edges(deps *d, const touch *x, const char **between, str *out) {
    int from, to;
    d->edges.n = 0;
    find_pieces(d, x->buf, &from, &to);
    for (int i = from; i < to; i++) {
        add_edges(d, x, d->pieces.at[i].writer);
        if (x->writes) add_edges(d, x, d->pieces.at[i].readers);
    }
    merge_sort(d->a, d->edges.at, d->edges.n, sizeof *d->edges.at, is_later, NULL);
    for (int i = 0, next; i < d->edges.n; i = next) {
        edge e = d->edges.at[i];
        for (next = i + 1; next < d->edges.n && d->edges.at[next].launch == e.launch; next++) {
            const edge *o = &d->edges.at[next];
            if (o->data && !e.data) e.node = o->node;
            e.data |= o->data, e.written |= o->written;
        }
        str_addf(out, "%s %s %d", *between, e.data ? "data" : "control", e.launch);
        if (e.data)
            str_addf(out, " (%%%u)", e.node);
        else
            str_addf(out, " (%%%u is %s before)", e.node, e.written ? "written" : "read");
        *between = ",";
    }
}

static int see(deps *d, int launch, int buf, int next) {
    VEC_PUSH(d->a, &d->seen, (seen){ launch, buf, next });
    return d->seen.n - 1;
}
static void remember(deps *d, int launch, int buf, const touch *x, bool writes) {
    int from, to;
    if (x->writes != writes) return;
    find_pieces(d, x->buf, &from, &to);
    for (int i = from; i < to; i++) {
        piece *q = &d->pieces.at[i];
        if (writes)
            q->writer = see(d, launch, buf, 0), q->readers = 0;
        else
            q->readers = see(d, launch, buf, q->readers);
    }
}

void plan_print_deps(const plan *p, str *out) {
    deps d = { .p = p, .a = out->a };
    VEC_PUSH(d.a, &d.seen, (seen){ 0 });
    cut(&d);
    str_addf(out, "deps @%s {\n", p->g->name);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        const char *between = " after";
        str_addf(out, "  %d %s", i, pk->k->name);
        for (int b = 0; b < pk->k->bufs.n; b++) {
            touch x = touch_of(p, pk, b);
            print_edges(&d, &x, &between, out);
        }
        str_add(out, "\n");
        for (int writes = 0; writes < 2; writes++)
            for (int b = 0; b < pk->k->bufs.n; b++) {
                touch x = touch_of(p, pk, b);
                remember(&d, i, b, &x, writes);
            }
    }
    str_add(out, "}\n");
}
