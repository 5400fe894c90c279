/* eval_race.c - see eval_race.h. Of every element the last store and the last load are kept, with the barriers that their
 * threads had passed; of several threads that load between two barriers, that they were several. */
#include "eval/eval_race.h"

enum { SEVERAL = -1, SEVERAL_CLUSTERS = INT32_MIN };

typedef struct access { /* small: there are two for each element, and making them ready took longer than the kernels */
    int32_t thread;     /* 0: none; SEVERAL: loads of more than one */
    int32_t block;      /* from 1; below 0: of several of this cluster, counted from -1; or of SEVERAL_CLUSTERS */
    int32_t barriers, cluster_barriers;
} access;

typedef struct element {
    access store, load;
} element;

typedef struct area { /* of memory: the elements of buffers that overlap */
    const unsigned char *begin, *end;
    int64_t bytes; /* of the smallest element */
    bool written;  /* by the kernel; else nothing races there */
    element *at;
} area;

typedef struct place { /* of a buffer's elements: of its element i, at[(first + i * size) >> shift] */
    element *at;       /* NULL: nothing races there */
    int64_t first, size;
    int shift;
} place;

struct race_log {
    const kernel *k;
    int cluster;                /* thread blocks */
    unsigned char *const *base; /* of buffers in global memory */
    int *area_of;               /* [bufs] of these */
    area *areas;                /* [bufs] */
    place *places;              /* [cluster][bufs] shared memory is a thread block's own, or a cluster's */
};

static int64_t bytes_of(const kbuf *b) { return (int64_t)dtype_size((tn_dtype)b->dtype); }

/* Joins buffers that overlap, until nothing changes. */
static void find_areas(race_log *l) {
    const kernel *k = l->k;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        l->area_of[b] = b;
        if (!kbuf_is_local(x))
            l->areas[b] = (area){ l->base[b], l->base[b] + x->elems * bytes_of(x), bytes_of(x), x->kind != KB_IN, NULL };
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int b = 0; b < k->bufs.n; b++)
            for (int c = 0; c < b; c++) {
                area *x = &l->areas[l->area_of[b]], *y = &l->areas[l->area_of[c]];
                if (x == y || x->begin >= y->end || y->begin >= x->end) continue;
                if (x->begin < y->begin) y->begin = x->begin;
                if (x->end > y->end) y->end = x->end;
                if (x->bytes < y->bytes) y->bytes = x->bytes;
                y->written |= x->written;
                for (int d = 0, from = l->area_of[b], to = l->area_of[c]; d < k->bufs.n; d++)
                    if (l->area_of[d] == from) l->area_of[d] = to;
                changed = true;
            }
    }
}

race_log *race_log_make(const kernel *k, unsigned char *const *base, arena *a) {
    race_log *l = ARENA_NEW(a, race_log);
    int n = k->bufs.n;
    *l = (race_log){ .k = k, .cluster = k->cluster ? k->cluster : 1, .base = base };
    l->area_of = ARENA_ARRAY(a, int, n + 1), l->areas = ARENA_ARRAY(a, area, n + 1);
    l->places = ARENA_ARRAY(a, place, (int64_t)l->cluster * n + 1);
    find_areas(l);
    for (int b = 0; b < n; b++) {
        const kbuf *x = &k->bufs.at[b];
        area *r = &l->areas[b];
        if (!kbuf_is_local(x) && l->area_of[b] == b && r->written)
            r->at = ARENA_ARRAY(a, element, (r->end - r->begin + r->bytes - 1) / r->bytes + 1);
    }
    for (int b = 0; b < n; b++) {
        const kbuf *x = &k->bufs.at[b];
        const area *r = &l->areas[l->area_of[b]];
        for (int g = 0; g < l->cluster; g++) {
            place *to = &l->places[(int64_t)g * n + b];
            if (x->kind == KB_SHARED || (x->kind == KB_DISTRIBUTED && g == 0))
                *to = (place){ ARENA_ARRAY(a, element, x->elems + 1), 0, 1, 0 };
            else if (x->kind == KB_DISTRIBUTED)
                *to = l->places[b];
            else if (!kbuf_is_local(x))
                *to = (place){ r->at, base[b] - r->begin, bytes_of(x), __builtin_ctzll((uint64_t)r->bytes) };
        }
    }
    return l;
}

void race_log_clear(race_log *l, int g) {
    for (int b = 0; b < l->k->bufs.n; b++) {
        element *own = l->places[(int64_t)g * l->k->bufs.n + b].at;
        if (own && kbuf_is_local(&l->k->bufs.at[b])) memset(own, 0, sizeof *own * (size_t)l->k->bufs.at[b].elems);
    }
}

static element *element_at(const race_log *l, int g, int buf, int64_t at) {
    const place *x = &l->places[(int64_t)g * l->k->bufs.n + buf];
    return x->at ? &x->at[(x->first + at * x->size) >> x->shift] : NULL;
}

static access by(const race_thread *t) { return (access){ t->thread, t->block, t->barriers, t->cluster_barriers }; }

/* Negative, from -1; what is of several clusters stays so. */
static int32_t cluster_of(const race_log *l, const access *x) {
    return x->block < 0 ? x->block : -1 - (x->block - 1) / l->cluster;
}

/* Whether x came before y, of one thread, for all to see. */
static bool is_ordered(const race_log *l, const access *x, const access *y) {
    if (x->thread == 0 || x->thread == y->thread) return true;
    if (x->block == y->block) return x->barriers < y->barriers;
    return cluster_of(l, x) == cluster_of(l, y) && x->cluster_barriers < y->cluster_barriers;
}

int64_t race_load(race_log *l, int g, int buf, int64_t at, const race_thread *t) {
    element *e = element_at(l, g, buf, at);
    if (!e) return 0;
    access now = by(t), *x = &e->load;
    bool races = !is_ordered(l, &e->store, &now);
    if (!is_ordered(l, x, &now)) { /* both stay in mind */
        now.thread = SEVERAL;
        if (x->block != now.block) now.block = cluster_of(l, x) == cluster_of(l, &now) ? cluster_of(l, x) : SEVERAL_CLUSTERS;
    }
    *x = now;
    return races ? e->store.thread : 0;
}

int64_t race_store(race_log *l, int g, int buf, int64_t at, const race_thread *t) {
    element *e = element_at(l, g, buf, at);
    if (!e) return 0;
    access now = by(t);
    const access *with = !is_ordered(l, &e->store, &now) ? &e->store : !is_ordered(l, &e->load, &now) ? &e->load : NULL;
    int64_t who = with ? with->thread : 0;
    e->store = now;
    return who;
}
