/* replay.c - implementation of replay.h. In: kernels in their tiled form, sizes of caches. Caches lie in the caller's arena. */
#include "drive/replay.h"

#include "eval/eval_kernel.h"

enum { CACHES = 3, SEVERAL = -1, MOST_STEPS = 50 * 1000 * 1000 /* about a second, for both times */ };

typedef struct cache {
    int ways;
    int64_t sets;
    int64_t *lines; /* [sets][ways] numbers of lines + 1, the last used first; 0: free */
} cache;

typedef struct replay {
    cache *near[2], last;   /* [threads] L1, L2; L3 is for all */
    int16_t *only;          /* [lines] of all that is touched: the thread + 1 that alone may have it near; SEVERAL; 0: none */
    const kernel *k;        /* at hand */
    int64_t *base;          /* [bufs] of its buffers */
    int64_t own_bytes;      /* of a thread: its arrays lie where every kernel has its own */
    double fetched[CACHES]; /* lines */
    double touched, past;   /* bytes by loads and stores; written past the caches */
    int64_t last_past;      /* the line of it that was counted last */
    int threads;
} replay;

/* Whether the line was there; it is now the last that was used. */
static bool find_line(cache *c, int64_t line) {
    int64_t *set = c->lines + line % c->sets * c->ways, before = line + 1;
    for (int w = 0; w < c->ways; w++) {
        int64_t at = set[w];
        set[w] = before, before = at;
        if (at == line + 1) return true;
        if (!at) break;
    }
    return false;
}

static void drop_line(cache *c, int64_t line) {
    int64_t *set = c->lines + line % c->sets * c->ways;
    for (int w = 0, to = 0; w < c->ways; w++) {
        int64_t at = set[w];
        set[w] = 0;
        if (at != line + 1) set[to++] = at;
    }
}

/* What one thread writes no other one has any more. */
static void share_line(replay *r, const eval_touch *x, int64_t line) {
    int16_t *only = &r->only[line], me = (int16_t)(x->thread + 1);
    if (*only == me) return;
    for (int t = 0; t < r->threads && *only && x->write; t++)
        for (int l = 0; l < 2 && t != x->thread; l++) drop_line(&r->near[l][t], line);
    *only = *only && !x->write ? SEVERAL : me;
}

static void touch(const eval_touch *x, void *ud) {
    replay *r = ud;
    int64_t from = r->base[x->buf] + x->at;
    if (r->k->bufs.at[x->buf].kind == KB_LOCAL) from += r->own_bytes * x->thread;
    r->touched += (double)x->bytes;
    for (int64_t line = from / MACHINE_LINE_BYTES; line <= (from + x->bytes - 1) / MACHINE_LINE_BYTES; line++) {
        if (x->nontemporal) {
            r->past += (double)(line != r->last_past) * MACHINE_LINE_BYTES, r->last_past = line;
            continue;
        }
        if (r->threads > 1) share_line(r, x, line);
        cache *way[CACHES] = { &r->near[0][x->thread], &r->near[1][x->thread], &r->last };
        for (int l = 0; l < CACHES && !find_line(way[l], line); l++) r->fetched[l]++;
    }
}

static cache make_cache(int64_t bytes, int ways, arena *a) {
    cache c = { ways, bytes / MACHINE_LINE_BYTES / ways, NULL };
    if (c.sets < 1) c.sets = 1;
    c.lines = ARENA_ARRAY(a, int64_t, c.sets * ways);
    return c;
}

/* span: bytes that are touched at all. A cache that has room for more need not be larger. */
static replay make_replay(const machine *m, int threads, int64_t span, arena *a) {
    replay r = { .threads = threads, .last_past = -1 };
    r.only = ARENA_ARRAY(a, int16_t, span / MACHINE_LINE_BYTES + 1);
    for (int l = 0; l < 2; l++) {
        r.near[l] = ARENA_ARRAY(a, cache, threads);
        for (int t = 0; t < threads; t++) r.near[l][t] = make_cache(m->level[l].bytes, l ? 16 : 12, a);
    }
    int64_t room = m->level[LEVEL_L3].bytes;
    r.last = make_cache(room < span ? room : span + 16 * MACHINE_LINE_BYTES, 16, a);
    return r;
}

static int64_t bytes_of(const kernel *k, int b) {
    ext n = k->bufs.at[b].elems;
    return ext_hi(k->params, n) * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
}

/* All of a buffer, line by line; threads have a piece each, and all of arrays of their own. */
static void touch_all(replay *r, int b, bool own) {
    int64_t bytes = bytes_of(r->k, b), piece = bytes / r->threads + MACHINE_LINE_BYTES;
    for (int t = 0; t < (own ? r->threads : 1); t++)
        for (int64_t at = 0; at < bytes; at += MACHINE_LINE_BYTES)
            touch(&(eval_touch){ b, own ? t : (int)(at / piece), at, 1, r->k->bufs.at[b].kind != KB_IN, false }, r);
}

static void begin_kernel(replay *r, const kernel *k, int64_t *base) {
    r->k = k, r->base = base;
    memset(r->fetched, 0, sizeof r->fetched);
    r->touched = r->past = 0, r->last_past = -1;
}

static void end_kernel(const replay *r, replay_bytes *out) {
    out->counted[0] = r->touched;
    for (int l = 0; l < CACHES; l++) out->counted[l + 1] = r->fetched[l] * MACHINE_LINE_BYTES;
    out->counted[LEVEL_MEMORY] += r->past;
}

/* Arrays of a kernel's own from `at` on; returns where they end. */
static int64_t place_own(const kernel *k, int64_t at, int64_t *base) {
    for (int b = 0; b < k->bufs.n; b++)
        if (kbuf_is_local(&k->bufs.at[b])) base[b] = at, at += plan_room(bytes_of(k, b));
    return at;
}

void replay_kernel(const kernel *k, const machine *m, arena *a, replay_bytes *out, double *out_cold) {
    int64_t *base = ARENA_ARRAY(a, int64_t, k->bufs.n + 1), at = 0;
    for (int b = 0; b < k->bufs.n; b++) base[b] = at, at += plan_room(bytes_of(k, b));
    replay r = make_replay(m, 1, at, a);
    begin_kernel(&r, k, base);
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) touch_all(&r, b, true);
    for (int run = 0; run < 2; run++) {
        begin_kernel(&r, k, base);
        eval_kernel_touches(k, 1, touch, &r, a);
        end_kernel(&r, out);
        if (!run) *out_cold = out->counted[LEVEL_MEMORY];
    }
    out->steps = eval_kernel_steps(k), out->unknown = NULL;
}

/* ---- plans ---- */

typedef struct by_steps {
    double steps;
    int kernel;
} by_steps;

static bool has_less(const void *x, const void *y, const void *ud) {
    (void)ud;
    return ((const by_steps *)x)->steps < ((const by_steps *)y)->steps;
}

static double lines_of(const kernel *k) {
    double bytes = 0;
    for (int b = 0; b < k->bufs.n; b++) bytes += (double)bytes_of(k, b);
    return bytes / MACHINE_LINE_BYTES;
}

/* Which kernels are counted: those with fewest steps first. Whether any is. */
static bool choose(const plan *p, arena *a, replay_bytes *out) {
    double room = MOST_STEPS / 2;
    by_steps *order = ARENA_ARRAY(a, by_steps, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        out[i] = (replay_bytes){ .unknown = eval_touches_unknown(k), .steps = lines_of(k) };
        room -= out[i].steps;
        if (!out[i].unknown) out[i].steps = eval_kernel_steps(k);
        order[i] = (by_steps){ out[i].steps, i };
    }
    bool any = room > 0;
    merge_sort(a, order, p->kernels.n, sizeof *order, has_less, NULL);
    for (int i = 0; i < p->kernels.n; i++) {
        replay_bytes *x = &out[order[i].kernel];
        if (x->unknown) continue;
        room -= x->steps;
        if (room < 0) x->unknown = any ? "counting it takes too long" : "the program touches too much to count it";
    }
    return any;
}

/* Slots lie one behind the other. */
static int64_t place_slots(const plan *p, int64_t *slot) {
    int64_t at = 0;
    for (int s = 0; s < plan_slots(p); s++) {
        slot[s] = at;
        at += s == SLOT_TEMP ? p->temp_bytes : s == SLOT_STATE ? p->state_bytes : s == SLOT_SHARED ? p->shared_bytes : 0;
        at += s == SLOT_CONST ? p->const_bytes : s >= SLOT_IO && s < SLOT_IO + p->io.n ? p->io.at[s - SLOT_IO].bytes : 0;
        at = (at + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
    }
    return at;
}

void replay_plan(const plan *p, const machine *m, int threads, arena *a, replay_bytes *out) {
    if (!choose(p, a, out)) return;
    int64_t *slot = ARENA_ARRAY(a, int64_t, plan_slots(p) + 1), end = place_slots(p, slot), own = 0;
    int64_t **base = ARENA_ARRAY(a, int64_t *, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *x = &p->kernels.at[i];
        base[i] = ARENA_ARRAY(a, int64_t, x->k->bufs.n + 1);
        int64_t bytes = place_own(x->k, end, base[i]) - end;
        own = bytes > own ? bytes : own;
        for (int b = 0; b < x->k->bufs.n; b++) { /* a window shows its first part */
            if (kbuf_is_local(&x->k->bufs.at[b])) continue;
            const pbuf *of = &p->bufs.at[plan_base(p, x->args[b].buf)];
            base[i][b] = slot[of->slot] + of->offset;
        }
    }
    replay r = make_replay(m, threads, end + own * threads, a);
    r.own_bytes = own;
    for (int run = 0; run < 2; run++)
        for (int i = 0; i < p->kernels.n; i++) {
            const kernel *k = p->kernels.at[i].k;
            begin_kernel(&r, k, base[i]);
            if (!out[i].unknown) {
                eval_kernel_touches(k, threads, touch, &r, a);
                end_kernel(&r, &out[i]);
                continue;
            }
            for (int b = 0; b < k->bufs.n; b++) touch_all(&r, b, kbuf_is_local(&k->bufs.at[b]));
        }
}
