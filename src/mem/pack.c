/* pack.c - offsets of temporaries in one arena, and of constants in another. A temporary lives from the kernel that first
 * writes it to the one that last uses it; two that live at once never overlap. Largest first, each at the lowest free place.
 * In and out: mem.h. */
#include "mem/mem.h"

static void extend_life(int32_t buf, int from, int to, void *ud) {
    pbuf *b = &((plan *)ud)->bufs.at[buf];
    if (b->kind == PB_CONST && b->first < 0) b->first = b->last = from; /* what no launch reads */
    if (b->first >= 0 && b->first < from && b->last < to) b->last = to;
}

static void window_life(int32_t buf, int from, int to, void *ud) {
    pbuf *b = &((plan *)ud)->bufs.at[buf];
    if (b->first < 0 || b->first > from) b->first = from;
    if (b->last < to) b->last = to;
}

static void find_lifetimes(plan *p) {
    for (int b = 0; b < p->bufs.n; b++) p->bufs.at[b].first = p->bufs.at[b].last = -1;
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) {
            int32_t b = p->kernels.at[i].args[a].buf;
            if (b < 0) continue;
            if (p->bufs.at[b].first < 0) p->bufs.at[b].first = i;
            p->bufs.at[b].last = i;
        }
    if (!plan_has_control(p)) return;
    plan_window_lives(p, window_life, p);
    plan_extend_lives(p, extend_life, p);
}

static bool is_live(const pbuf *b) { return b->kind == PB_TEMP && b->first >= 0 && b->bytes > 0; }

static void find_bound(plan *p) {
    int64_t *change = ARENA_ARRAY(p->a, int64_t, p->kernels.n + 1), sum = 0; /* of what is live, from the kernel before */
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b];
        if (is_live(x)) change[x->first] += plan_room(x->bytes), change[x->last + 1] -= plan_room(x->bytes);
    }
    for (int i = 0; i < p->kernels.n; i++) {
        sum += change[i];
        if (sum > p->temp_bound) p->temp_bound = sum;
    }
}

/* ---- what is taken, when: a binary tree over the places of the arena ----
 *
 * Each node of it knows when all of its bytes are taken, and when some are. Buffers lie densely from the bottom on, so that a
 * search passes a large part of what is taken at a time by one look at a node. */

typedef struct span { /* launches, both included */
    int32_t from, to;
} span;
typedef VEC(span) span_list; /* ascending, with launches between */

typedef struct part { /* of the arena */
    span_list full, used;
    int32_t child[2]; /* index into arena_map.parts, or 0: nothing was noted there */
} part;

typedef struct arena_map {
    arena *a;
    VEC(part) parts; /* 1 is the root */
    int64_t places;  /* of PLAN_ALIGN bytes: a power of two */
    /* the search that is going on */
    span when;
    int64_t room, free_from; /* in places; all is free from there to where the search stands */
} arena_map;

static int first_behind(const span_list *l, int32_t at) { /* the first span that ends there or behind */
    int lo = 0, hi = l->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (l->at[mid].to < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool meets(const span_list *l, span x) {
    int i = first_behind(l, x.from);
    return i < l->n && l->at[i].from <= x.to;
}

/* Returns whether the list has changed. */
static bool add_span(arena *a, span_list *l, span x) {
    int i = first_behind(l, x.from - 1), n = i;
    if (i < l->n && l->at[i].from <= x.from && l->at[i].to >= x.to) return false;
    for (; n < l->n && l->at[n].from <= x.to + 1; n++) { /* those that it touches become part of it */
        if (l->at[n].from < x.from) x.from = l->at[n].from;
        if (l->at[n].to > x.to) x.to = l->at[n].to;
    }
    if (n == i) VEC_PUSH(a, l, x);
    int moved = l->n - (n == i) - n;
    memmove(&l->at[i + 1], &l->at[n], (size_t)moved * sizeof x);
    l->n = i + 1 + moved;
    l->at[i] = x;
    return true;
}

/* Adds to `out` when both lists have launches of x. Returns what changed, or from > to. */
static span add_common(arena *a, span_list *out, const span_list *p, const span_list *q, span x) {
    span changed = { INT32_MAX, -1 };
    for (int i = first_behind(p, x.from), j = first_behind(q, x.from); i < p->n && j < q->n;) {
        span both = { x.from, x.to };
        if (p->at[i].from > both.from) both.from = p->at[i].from;
        if (q->at[j].from > both.from) both.from = q->at[j].from;
        if (both.from > x.to) break;
        if (p->at[i].to < both.to) both.to = p->at[i].to;
        if (q->at[j].to < both.to) both.to = q->at[j].to;
        if (both.from <= both.to && add_span(a, out, both)) {
            if (both.from < changed.from) changed.from = both.from;
            changed.to = both.to;
        }
        if (p->at[i].to < q->at[j].to)
            i++;
        else
            j++;
    }
    return changed;
}

/* Takes places from .. to - 1 of what part x has, which begins at `at` and has n places. Returns when x became full. */
static span take(arena_map *m, int32_t x, int64_t at, int64_t n, int64_t from, int64_t to) {
    span none = { INT32_MAX, -1 }, changed = none;
    add_span(m->a, &m->parts.at[x].used, m->when);
    if (from <= at && at + n <= to) return add_span(m->a, &m->parts.at[x].full, m->when) ? m->when : none;
    for (int c = 0; c < 2; c++) {
        int64_t begin = at + c * (n / 2);
        if (from >= begin + n / 2 || to <= begin) continue;
        if (!m->parts.at[x].child[c]) {
            VEC_PUSH(m->a, &m->parts, (part){ 0 });
            m->parts.at[x].child[c] = m->parts.n - 1;
        }
        span filled = take(m, m->parts.at[x].child[c], begin, n / 2, from, to);
        if (filled.from < changed.from) changed.from = filled.from;
        if (filled.to > changed.to) changed.to = filled.to;
    }
    part *p = &m->parts.at[x];
    if (changed.from > changed.to || !p->child[0] || !p->child[1]) return none;
    return add_common(m->a, &p->full, &m->parts.at[p->child[0]].full, &m->parts.at[p->child[1]].full, changed);
}

/* Goes through part x from the bottom up. Returns whether there is room from free_from on. */
static bool find_room(arena_map *m, int32_t x, int64_t at, int64_t n) {
    const part *p = &m->parts.at[x];
    if (x && meets(&p->full, m->when)) {
        m->free_from = at + n;
        return false;
    }
    if (!x || !meets(&p->used, m->when)) return at + n - m->free_from >= m->room;
    return find_room(m, p->child[0], at, n / 2) || find_room(m, p->child[1], at + n / 2, n / 2);
}

void mem_constants(plan *p) {
    find_lifetimes(p);
    p->const_bytes = 0;
    for (int i = 0; i < p->bufs.n; i++) {
        pbuf *b = &p->bufs.at[i];
        if (b->kind != PB_CONST) continue;
        if (b->first < 0) b->bytes = b->elems = 0;
        b->offset = p->const_bytes;
        p->const_bytes += plan_room(b->bytes);
    }
}

/* States that no run changes. Where a kernel sees several as one buffer (PB_STATES), it has their distances in its code: these
 * come first, and have their sizes still. */
static void place_shared(plan *p) {
    p->shared_bytes = 0;
    for (int i = 0; i < p->bufs.n; i++) {
        pbuf *b = &p->bufs.at[i];
        if (b->slot != SLOT_SHARED || b->kind == PB_STATES) continue;
        b->offset = p->shared_bytes;
        p->shared_bytes += plan_room(b->bytes);
    }
}

/* ---- launches that may overlap ----
 *
 * A device that runs a list by what its launches need lets launches overlap that share no memory. So a place should not be used
 * again where that alone makes one launch wait for another. */

enum {
    MOST_LAUNCHES = 256, /* the steps of a longer list hardly overlap (rt/gpulist.c), and looking at all pairs takes long */
    MOST_SPREAD = 2      /* times the size without it */
};

typedef struct spread { /* sets of launches are bits */
    int32_t reach;      /* in launches; farther away a place is used again in any case */
    int words;          /* of a set */
    uint64_t *before;   /* [launch] which it waits for, directly or not, when no buffers share a place; NULL: none */
    uint64_t *users;    /* [buffer] */
} spread;

static uint64_t *set_of(const spread *x, uint64_t *sets, int i) { return sets + (size_t)i * (size_t)x->words; }
static bool is_in(const uint64_t *set, int i) { return set[i / 64] >> i % 64 & 1; }
static void add_to(uint64_t *set, int i) { set[i / 64] |= (uint64_t)1 << i % 64; }

static void wait_for(const spread *x, int late, int early) {
    uint64_t *to = set_of(x, x->before, late), *from = set_of(x, x->before, early);
    if (early == late) return;
    for (int w = 0; w < x->words; w++) to[w] |= from[w];
    add_to(to, early);
}

static void find_order(const plan *p, spread *x) {
    x->words = (p->kernels.n + 63) / 64;
    x->before = ARENA_ARRAY(p->a, uint64_t, p->kernels.n * x->words);
    x->users = ARENA_ARRAY(p->a, uint64_t, p->bufs.n * x->words);
    uint64_t *writers = ARENA_ARRAY(p->a, uint64_t, p->bufs.n * x->words);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int k = 0; k < pk->k->bufs.n; k++) {
            int32_t b = pk->args[k].buf;
            if (b < 0) continue;
            bool writes = pk->k->bufs.at[k].kind != KB_IN;
            const uint64_t *early = set_of(x, writes ? x->users : writers, b);
            for (int u = 0; u < i; u++)
                if (is_in(early, u)) wait_for(x, i, u);
            add_to(set_of(x, x->users, b), i);
            if (writes) add_to(set_of(x, writers, b), i);
        }
    }
}

/* In launch i another buffer may have the place of buffer b: one of them waits for the other's users anyway. */
static bool is_free(const plan *p, const spread *x, int32_t b, int i) {
    const pbuf *own = &p->bufs.at[b];
    if (i >= own->first && i <= own->last) return false;
    if (i < own->first - x->reach || i > own->last + x->reach) return true;
    if (!x->before) return false;
    if (i < own->first) return is_in(set_of(x, x->before, own->first), i);
    const uint64_t *users = set_of(x, x->users, b), *before = set_of(x, x->before, i);
    for (int w = 0; w < x->words; w++)
        if (users[w] & ~before[w]) return false;
    return true;
}

/* ---- all of it ---- */

/* Launch i, or, where a buffer lives then, the last one at which it does: none of those is free. */
static int32_t end_of_life(const pbuf *own, int32_t i) { return i >= own->first && i <= own->last ? own->last : i; }

static void place(plan *p, arena_map *m, int32_t b, const spread *x) {
    pbuf *own = &p->bufs.at[b];
    int32_t from = own->first > x->reach ? own->first - x->reach : 0, last = p->kernels.n - 1;
    int32_t to = last - own->last > x->reach ? own->last + x->reach : last;
    m->when = (span){ own->first, own->last };
    m->room = plan_room(own->bytes) / PLAN_ALIGN, m->free_from = 0;
    find_room(m, 1, 0, m->places);
    own->offset = m->free_from * PLAN_ALIGN;
    if (own->offset + plan_room(own->bytes) > p->temp_bytes) p->temp_bytes = own->offset + plan_room(own->bytes);
    for (int32_t i = from; i <= to; i = m->when.to + 1) {
        m->when = (span){ i, end_of_life(own, i) };
        if (is_free(p, x, b, i)) continue;
        while (m->when.to < to && !is_free(p, x, b, m->when.to + 1)) m->when.to = end_of_life(own, m->when.to + 1);
        take(m, 1, 0, m->places, m->free_from, m->free_from + m->room);
    }
}

static bool is_larger(const void *x, const void *y, const void *ud) {
    const plan *p = ud;
    return p->bufs.at[*(const int32_t *)x].bytes > p->bufs.at[*(const int32_t *)y].bytes;
}

typedef struct packing { /* buffers in the order in which they get their places */
    int32_t *order;
    int n;
    int64_t places; /* that all of them have */
} packing;

static void place_all(plan *p, const packing *x, const spread *apart) {
    arena_map m = { .a = p->a, .places = 1 };
    while (m.places < 2 * x->places) m.places *= 2; /* what a buffer leaves free below is less than another one above that */
    VEC_PUSH(p->a, &m.parts, (part){ 0 }), VEC_PUSH(p->a, &m.parts, (part){ 0 });
    p->temp_bytes = 0;
    for (int i = 0; i < x->n; i++) place(p, &m, x->order[i], apart);
}

void mem_pack(plan *p, int64_t roomy) {
    plan_pack_values(p);
    mem_constants(p);
    place_shared(p);
    find_bound(p);
    packing x = { .order = ARENA_ARRAY(p->a, int32_t, p->bufs.n) };
    for (int32_t b = 0; b < p->bufs.n; b++)
        if (is_live(&p->bufs.at[b])) x.order[x.n++] = b, x.places += plan_room(p->bufs.at[b].bytes) / PLAN_ALIGN;
    merge_sort(p->a, x.order, x.n, sizeof *x.order, is_larger, p); /* by size, then by age */
    bool fits = x.places <= roomy / PLAN_ALIGN && p->kernels.n <= MOST_LAUNCHES;
    spread apart = { 0 };
    pstep *loop = plan_loop(p);
    bool overlaps = fits && loop && loop->overlaps;
    if (overlaps) apart.reach = p->kernels.n;
    place_all(p, &x, &apart);
    if (loop) loop->overlaps = overlaps;
    while (overlaps && loop->overlaps < PLAN_MOST_AT_ONCE && 2 * loop->overlaps * p->temp_bytes <= roomy) loop->overlaps *= 2;
    if (!fits || overlaps) return;
    int64_t most = MOST_SPREAD * p->temp_bytes;
    find_order(p, &apart);
    for (apart.reach = p->kernels.n;; apart.reach /= 4) { /* at the latest with a reach of 0 */
        place_all(p, &x, &apart);
        if (p->temp_bytes <= most) return;
    }
}
