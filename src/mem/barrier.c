/* barrier.c - where the threads of a run must meet: before a kernel that touches memory which another thread may have touched
 * since the last meeting, unless both only read. Layers that split their rows alike need no meeting between them.
 *
 * In: tiled kernels, buffers with their places. Out: pkernel.barrier, right for runs with exactly `threads` threads or one. */
#include "mem/mem.h"
#include "mem/tree.h"

/* What threads have of rows that a run counts is not known here: they meet before each kernel. */
static bool meets_everywhere(plan *p) {
    for (int i = 0; p->params && i < p->kernels.n; i++) p->kernels.at[i].barrier = i > 0;
    return p->params != NULL;
}

/* Who touches some bytes: nobody, the one thread that a partition among the threads gives each byte to, or any thread. */
typedef int32_t owner; /* NOBODY, ANYBODY, or a partition: index into span.cuts + 1 */
enum { NOBODY = 0, ANYBODY = -1 };

typedef struct access { /* of a kernel: a whole buffer, of whose bytes thread t touches its own */
    int32_t buf;
    bool write;
    owner by;
} access;

typedef struct touched {
    owner read, written;
} touched;

typedef struct interval { /* of the memory of a run */
    uint32_t epoch;       /* what is said below is since this meeting; else nobody touched it */
    touched all, some;    /* of its bytes */
} interval;

typedef struct span { /* the accesses since the last meeting, by a tree over what buffers begin and end at (tree.h) */
    plan *p;
    int threads;
    int32_t size;
    int32_t *first, *last; /* [bufs] places of the tree; last < first: no bytes */
    interval *intervals;   /* [2 size] */
    uint32_t epoch;
    VEC(const int64_t *) cuts; /* partitions: thread t has bytes [cut[t], cut[t + 1]) of a slot; [1 .. threads - 1] */
    int32_t *by_hash;          /* a table of open addresses: index into cuts + 1 */
    uint64_t mask;
    int64_t *cut; /* of the access in question */
} span;

/* ---- places ---- */

typedef struct edge { /* where a buffer begins or ends */
    int slot;
    int64_t at;
} edge;

static bool comes_before(edge x, edge y) { return x.slot != y.slot ? x.slot < y.slot : x.at < y.at; }
static bool edge_less(const void *x, const void *y, const void *ud) {
    (void)ud;
    return comes_before(*(const edge *)x, *(const edge *)y);
}

static int32_t find_edge(const edge *list, int n, edge x) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (comes_before(list[mid], x))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void find_places(span *g) {
    const plan *p = g->p;
    int n = 0, n_different = 0;
    edge *list = ARENA_ARRAY(p->a, edge, 2 * (int64_t)p->bufs.n);
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b];
        list[n++] = (edge){ x->slot, x->offset }, list[n++] = (edge){ x->slot, x->offset + x->bytes };
    }
    merge_sort(p->a, list, n, sizeof *list, edge_less, NULL);
    for (int i = 0; i < n; i++)
        if (i == 0 || comes_before(list[i - 1], list[i])) list[n_different++] = list[i];
    g->first = ARENA_ARRAY(p->a, int32_t, p->bufs.n), g->last = ARENA_ARRAY(p->a, int32_t, p->bufs.n);
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b];
        g->first[b] = find_edge(list, n_different, (edge){ x->slot, x->offset });
        g->last[b] = find_edge(list, n_different, (edge){ x->slot, x->offset + x->bytes }) - 1;
    }
    g->size = tree_size(n_different);
    g->intervals = ARENA_ARRAY(p->a, interval, 2 * (int64_t)g->size);
}

/* ---- owners ---- */

/* The partition of g->cut, a new one or a known one. */
static owner partition(span *g) {
    size_t bytes = (size_t)(g->threads - 1) * sizeof *g->cut;
    uint64_t i = hash_bytes(g->cut + 1, bytes, 0) & g->mask;
    for (; g->by_hash[i]; i = (i + 1) & g->mask)
        if (!memcmp(g->cuts.at[g->by_hash[i] - 1] + 1, g->cut + 1, bytes)) return g->by_hash[i];
    VEC_PUSH(g->p->a, &g->cuts, arena_copy(g->p->a, g->cut, bytes + sizeof *g->cut));
    g->by_hash[i] = g->cuts.n;
    if ((uint64_t)g->cuts.n * 2 <= g->mask) return g->cuts.n;
    g->mask = 2 * g->mask + 1; /* twice the room, and all in it again */
    g->by_hash = ARENA_ARRAY(g->p->a, int32_t, g->mask + 1);
    for (int c = 0; c < g->cuts.n; c++) {
        for (i = hash_bytes(g->cuts.at[c] + 1, bytes, 0) & g->mask; g->by_hash[i]; i = (i + 1) & g->mask) {
        }
        g->by_hash[i] = c + 1;
    }
    return g->cuts.n;
}

static const kins *loop_of(const kernel *k, reg r, kvar v) {
    int depth = 0;
    for (reg i = r; i-- > 1;) {
        if (k->ins.at[i].op == K_END) depth++;
        if (k->ins.at[i].op != K_LOOP) continue;
        if (depth > 0)
            depth--;
        else if (k->ins.at[i].var == v)
            return &k->ins.at[i];
    }
    return NULL;
}

/* Smallest and largest element of an iteration of the parallel loop, counted from coefficient * its variable. */
static void range_inside(const kernel *k, reg r, int64_t *out_lo, int64_t *out_hi) {
    const kins *in = &k->ins.at[r];
    int64_t lo = in->idx.base, hi = lo, across = in->lane_stride * (in->lanes - 1);
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        if (t.var == k->par_var) continue;
        const kins *loop = loop_of(k, r, t.var);
        int64_t first = loop ? loop->lo : 0, last = loop ? loop->hi - loop->step : 0;
        if (loop && last < first) last = first;
        lo += t.coef * (t.coef > 0 ? first : last);
        hi += t.coef * (t.coef > 0 ? last : first);
    }
    *out_lo = lo + (across < 0 ? across : 0);
    *out_hi = hi + (across > 0 ? across : 0);
}

static owner owner_of(span *g, const pkernel *pk, reg r) {
    const kernel *k = pk->k;
    const kins *in = &k->ins.at[r];
    const pbuf *b = &g->p->bufs.at[pk->args[in->buf].buf];
    int64_t size = (int64_t)dtype_size((tn_dtype)b->dtype);
    if (k->par_var < 0) { /* thread 0 does all of it */
        for (int t = 1; t < g->threads; t++) g->cut[t] = INT64_MAX;
        return partition(g);
    }
    const kins *loop = loop_of(k, r, k->par_var);
    int64_t coef = affine_coef(in->idx, k->par_var), lo, hi;
    bool own;
    if (!loop || !loop->par || in->dyn || coef <= 0) return ANYBODY;
    range_inside(k, r, &lo, &hi);
    int64_t extent = k->vars.at[k->par_var].extent, step = loop->step, steps = (loop->hi - loop->lo) / step;
    if (loop->par == PAR_LAST) { /* the rest, after the last whole step: the last thread's */
        step = 0;
        for (reg i = 1; i < (reg)k->ins.n; i++)
            if (k->ins.at[i].op == K_LOOP && k->ins.at[i].par == PAR_THREADS) step = k->ins.at[i].step;
        if (step == 0 || loop->lo % step) return ANYBODY;
        steps = loop->lo / step;
        own = lo >= 0 && hi < coef * (extent - loop->lo);
    } else {
        own = loop->lo == 0 && lo >= 0 && hi < coef * step;
    }
    for (int t = 1; t < g->threads; t++) g->cut[t] = b->offset + coef * size * step * (steps * t / g->threads);
    return own ? partition(g) : ANYBODY;
}

/* ---- meetings ---- */

static bool is_other(owner who, owner by) { return who != NOBODY && (who != by || by == ANYBODY); }
static bool conflicts_with(touched before, const access *x) {
    return is_other(before.written, x->by) || (x->write && is_other(before.read, x->by));
}

static bool conflicts(const span *g, const access *x) {
    tree_range r;
    bool found = false;
    if (g->last[x->buf] < g->first[x->buf]) return false;
    tree_nodes(g->size, g->first[x->buf], g->last[x->buf], &r);
    for (int i = 0; i < r.n_path && !found; i++) {
        const interval *n = &g->intervals[r.path[i]];
        found = n->epoch == g->epoch && conflicts_with(n->all, x);
    }
    for (int i = 0; i < r.n_whole && !found; i++) {
        const interval *n = &g->intervals[r.whole[i]];
        found = n->epoch == g->epoch && conflicts_with(n->some, x);
    }
    return found;
}

static void touch(touched *t, const access *x) {
    owner *o = x->write ? &t->written : &t->read;
    *o = *o == NOBODY || *o == x->by ? x->by : ANYBODY;
}

static interval *interval_at(span *g, int32_t i) {
    if (g->intervals[i].epoch != g->epoch) g->intervals[i] = (interval){ .epoch = g->epoch };
    return &g->intervals[i];
}

static void note(span *g, const access *x) {
    tree_range r;
    if (g->last[x->buf] < g->first[x->buf]) return;
    tree_nodes(g->size, g->first[x->buf], g->last[x->buf], &r);
    for (int i = 0; i < r.n_path; i++) touch(&interval_at(g, r.path[i])->some, x);
    for (int i = 0; i < r.n_whole; i++) touch(&interval_at(g, r.whole[i])->some, x), touch(&interval_at(g, r.whole[i])->all, x);
}

static void needs_barrier(span *g, pkernel *pk) {
    VEC(access) own = { 0 };
    for (reg r = 1; r < (reg)pk->k->ins.n; r++) {
        const kins *in = &pk->k->ins.at[r];
        if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
        if (pk->args[in->buf].buf < 0) continue;
        access x = { .buf = pk->args[in->buf].buf, .write = in->op != K_LOAD, .by = owner_of(g, pk, r) };
        bool known = false;
        for (int j = 0; j < own.n && !known; j++)
            known = own.at[j].buf == x.buf && own.at[j].write == x.write && own.at[j].by == x.by;
        if (known) continue;
        VEC_PUSH(g->p->a, &own, x);
        pk->barrier |= conflicts(g, &x);
    }
    if (pk->barrier) g->epoch++;
    for (int j = 0; j < own.n; j++) note(g, &own.at[j]);
}

void mem_barriers(plan *p, int threads) {
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].barrier = false;
    if (threads < 2) return;
    if (meets_everywhere(p)) return;
    if (plan_has_control(p)) { /* a list of the device launches one after the other */
        for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].barrier = true;
        return;
    }
    span g = { .p = p, .threads = threads, .epoch = 1, .mask = 63 };
    g.by_hash = ARENA_ARRAY(p->a, int32_t, g.mask + 1);
    g.cut = ARENA_ARRAY(p->a, int64_t, threads);
    find_places(&g);
    for (int i = 0; i < p->kernels.n; i++) needs_barrier(&g, &p->kernels.at[i]);
}
