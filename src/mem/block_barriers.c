/* block_barriers.c - takes away barriers of thread blocks that keep no two threads apart: of all accesses that a thread can
 * make before a barrier and after it, with no other barrier between, no two are of one element by two threads with a store
 * among them. Recipes set barriers by buffer: what one nest wrote and another reads. Here it is by element and thread: mostly
 * each thread reads what it wrote itself, or the other nest is at other elements.
 *
 * In: kernels in their final form, buffers with their places. Out: the same kernels with fewer barriers. The interpreter finds
 * a race if one too many is gone (eval/eval_race.h). */
#include "loop/loop.h"
#include "mem/mem.h"

enum {
    MOST_DIGITS = 24,
    MOST_ACCESSES = 512, /* on either side of a barrier; with more it stays */
    MOST_PAIRS = 4096    /* that are compared; the same */
};

typedef struct digit { /* 0 <= x < n: the element is coef * x further, the thread `thread` * x */
    int64_t coef, n, thread;
} digit;

/* The elements that an access touches and who does: a number whose digits are loop variables and lanes. */
typedef struct place {
    int64_t base, last, thread; /* first and last element; the thread of the first */
    int n_same, n;
    kterm same[MOST_DIGITS]; /* the same for all threads, and on both sides of the barrier */
    digit at[MOST_DIGITS];   /* by coef, the largest first */
    bool never;              /* no thread comes there */
    bool known;              /* an element's thread follows from these */
} place;

typedef struct access {
    int at;
    bool again;         /* in another iteration of some loop around the barrier than the barrier is */
    place same, others; /* in the same iterations of the loops around the barrier; in any */
} access;

typedef VEC(access) accesses;

typedef struct finder {
    plan *p;
    kernel *k;
    int code;          /* of these launches */
    int *around;       /* [ins] the innermost loop around, or 0 */
    int *end;          /* [ins] K_LOOP: its K_END; K_END: its K_LOOP */
    uint8_t *seen;     /* [ins] a bit for each `again` */
    int barrier;       /* the one in question */
    accesses sides[2]; /* before, after */
} finder;

static int64_t trips_of(const kins *loop) {
    return loop->hi <= loop->lo ? 0 : (loop->hi - loop->lo + loop->step - 1) / loop->step;
}

/* ---- places ---- */

/* Iterations [*first, *last] of a loop that the masks of an access leave. */
static void apply_masks(const kins *in, const kins *loop, int64_t *first, int64_t *last) {
    for (int i = 0; i < in->n_mask; i++) {
        const kmask *m = &in->mask[i];
        if (m->e.n != 1 || m->e.t[0].var != loop->var || m->e.t[0].coef <= 0 || (in->lanes > 1 && in->mask_lane[i])) continue;
        int64_t step = m->e.t[0].coef * loop->step, at = m->e.base + m->e.t[0].coef * loop->lo;
        while (*first <= *last && at + *first * step < m->lo) ++*first;
        while (*first <= *last && at + *last * step >= m->hi) --*last;
    }
}

static void add_digit(place *p, int64_t coef, int64_t n, int64_t thread) {
    if (n <= 1 || (coef == 0 && thread == 0)) return;
    if (p->n == MOST_DIGITS || coef == 0) { /* several threads at one element */
        p->known = false;
        return;
    }
    if (coef < 0) p->base += coef * (n - 1), p->thread += thread * (n - 1), coef = -coef, thread = -thread;
    int i = p->n++;
    for (; i > 0 && p->at[i - 1].coef < coef; i--) p->at[i] = p->at[i - 1];
    p->at[i] = (digit){ coef, n, thread };
}

/* Whether an element says which digits it has; digits that count on as one become one. */
static void finish_place(place *p) {
    int64_t reach = 0;
    for (int i = p->n - 1; i >= 0; i--) {
        p->known &= p->at[i].coef > reach;
        reach += p->at[i].coef * (p->at[i].n - 1);
    }
    p->last = p->base + reach;
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        digit *high = &p->at[n - (n > 0)], low = p->at[i];
        if (n > 0 && high->coef == low.coef * low.n && high->thread == low.thread * low.n)
            *high = (digit){ low.coef, high->n * low.n, low.thread };
        else
            p->at[n++] = low;
    }
    p->n = n;
}

/* same: loops around the barrier are in the same iteration there. */
static place place_of(const finder *f, int at, bool same) {
    const kernel *k = f->k;
    const kins *in = &k->ins.at[at];
    place p = { .base = in->idx.base, .known = true };
    int64_t thread = 1, all = k->block_threads;
    int nest = 0; /* the outermost loop so far of the innermost nest of the block's threads; that says which thread it is */
    for (int l = f->around[at]; l; l = f->around[l]) {
        const kins *loop = &k->ins.at[l];
        int64_t coef = affine_coef(in->idx, loop->var), first = 0, last = trips_of(loop) - 1, digits = 0;
        if (loop->par == PAR_BLOCKS || (same && loop->par == PAR_SERIAL && l < f->barrier && f->barrier < f->end[l])) {
            if (coef && p.n_same < MOST_DIGITS) p.same[p.n_same++] = (kterm){ loop->var, coef };
            continue;
        }
        if (loop->par == PAR_BLOCK_THREADS && (!nest || nest == l + 1))
            nest = l, digits = thread % all, thread = thread * (last + 1) % all;
        else if (loop->par != PAR_SERIAL)
            p.known &= coef == 0;
        apply_masks(in, loop, &first, &last);
        p.never |= last < first;
        p.base += coef * (loop->lo + first * loop->step), p.thread += digits * first;
        add_digit(&p, coef * loop->step, last - first + 1, digits);
    }
    p.known &= nest && p.n_same < MOST_DIGITS;
    add_digit(&p, in->lane_stride, in->lanes, 0);
    if (in->packed) add_digit(&p, in->packed_stride, in->packed, 0);
    if (in->dyn) add_digit(&p, in->dyn_stride, in->dyn_n, 0);
    finish_place(&p);
    return p;
}

/* Whether no element of both has two threads. */
static bool is_apart(const place *x, const place *y, int64_t threads) {
    if (x->never || y->never) return true;
    if (x->n_same != y->n_same) return false;
    for (int i = 0; i < x->n_same; i++)
        if (x->same[i].var != y->same[i].var || x->same[i].coef != y->same[i].coef) return false;
    if (x->last < y->base || y->last < x->base) return true;
    if (!x->known || !y->known || x->base != y->base || (x->thread - y->thread) % threads) return false;
    if (x->n > y->n) {
        const place *z = x;
        x = y, y = z;
    }
    const digit *more = y->at + (y->n - x->n);
    for (int i = 0; i < x->n; i++) {
        bool first = i == 0 && (x->n == y->n || x->at[0].n <= more[0].n);
        if (x->at[i].coef != more[i].coef || (x->at[i].thread - more[i].thread) % threads) return false;
        if (x->at[i].n != more[i].n && !first) return false;
    }
    return true;
}

/* ---- memory ---- */

typedef enum sharing { APART, SAME, OVERLAPPING } sharing;

/* Of two buffers of the kernel, in all launches that run its code. */
static sharing share(const finder *f, int b, int c) {
    const kbuf *x = &f->k->bufs.at[b], *y = &f->k->bufs.at[c];
    sharing found = APART;
    if (b == c) return SAME;
    if (x->kind >= KB_SHARED && y->kind >= KB_SHARED && x->late != y->late) return OVERLAPPING;
    if (kbuf_is_local(x) || kbuf_is_local(y)) return APART;
    for (int i = f->code; i < f->p->kernels.n && found != OVERLAPPING; i++) {
        const pkernel *pk = &f->p->kernels.at[i];
        if (pk->code != f->code) continue;
        const pbuf *s = &f->p->bufs.at[pk->args[b].buf], *t = &f->p->bufs.at[pk->args[c].buf];
        if (s->kind == PB_WINDOW || t->kind == PB_WINDOW) return OVERLAPPING;
        if (s->slot != t->slot || s->offset >= t->offset + t->bytes || t->offset >= s->offset + s->bytes) continue;
        found = s->offset == t->offset && dtype_size((tn_dtype)x->dtype) == dtype_size((tn_dtype)y->dtype) ? SAME : OVERLAPPING;
    }
    return found;
}

/* ---- before and after ---- */

/* Where threads wait for each other's memory: a sum of a whole thread block ends with a barrier, one by shuffles may not. */
static bool separates(const kins *in) {
    return in->op == K_BARRIER || in->op == K_BLOCK_ARGREDUCE || (in->op == K_BLOCK_REDUCE && !in->width);
}

/* From instruction `at` on, in direction `by`: what is touched before another barrier is met. False: too much. */
static bool walk(finder *f, int at, int by, bool again) {
    accesses *list = &f->sides[by > 0];
    for (; at > 0 && at < f->k->ins.n; at += by) {
        const kins *in = &f->k->ins.at[at];
        if (f->seen[at] & (1 << again)) return true;
        f->seen[at] |= (uint8_t)(1 << again);
        if (separates(in) && at != f->barrier) return true;
        if (kernel_touches(in) && f->k->bufs.at[in->buf].kind != KB_LOCAL) {
            if (list->n == MOST_ACCESSES) return false;
            VEC_PUSH(f->p->a, list, (access){ .at = at, .again = again });
        }
        if (in->op != K_LOOP && in->op != K_END) continue;
        int other = f->end[at];
        const kins *loop = in->op == K_LOOP ? in : &f->k->ins.at[other];
        bool enters = (in->op == K_LOOP) == (by > 0);
        if (enters && (loop->n_blocks || trips_of(loop) < 1) && !walk(f, other + by, by, again)) return false;
        if (!enters && loop->par == PAR_SERIAL && trips_of(loop) > 1 && !walk(f, other + by, by, true)) return false;
    }
    return true;
}

static bool is_redundant(finder *f, int barrier) {
    int pairs = 0;
    f->barrier = barrier;
    for (int s = 0; s < 2; s++) {
        accesses *list = &f->sides[s];
        list->n = 0;
        memset(f->seen, 0, (size_t)f->k->ins.n);
        if (!walk(f, barrier + (s ? 1 : -1), s ? 1 : -1, false)) return false;
        for (int i = 0; i < list->n; i++) {
            access *x = &list->at[i];
            x->others = place_of(f, x->at, false);
            if (!x->again) x->same = place_of(f, x->at, true);
        }
    }
    for (int i = 0; i < f->sides[0].n; i++)
        for (int j = 0; j < f->sides[1].n; j++) {
            const access *x = &f->sides[0].at[i], *y = &f->sides[1].at[j];
            const kins *a = &f->k->ins.at[x->at], *b = &f->k->ins.at[y->at];
            if (a->op == K_LOAD && b->op == K_LOAD) continue;
            sharing s = share(f, a->buf, b->buf);
            if (s == APART) continue;
            if (s == OVERLAPPING || ++pairs > MOST_PAIRS) return false;
            bool same = !x->again && !y->again;
            if (!is_apart(same ? &x->same : &x->others, same ? &y->same : &y->others, f->k->block_threads)) return false;
        }
    return true;
}

/* Asynchronous copies and products end at barriers; what the blocks of a cluster tell each other needs them as well. */
static bool is_simple(const kernel *k) {
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        any |= in->op == K_BARRIER && in->mode == BARRIER_BLOCK;
        if (in->op == K_ASYNC || in->op == K_MATRIX || (in->op == K_LOAD && in->mode >= LOAD_ASYNC)) return false;
    }
    return any && k->block_threads && !k->cluster && !k->params;
}

/* Whether two nests bound to the threads, one inside the other, would become one without it. */
static bool is_between_nests(const kernel *k, int barrier) {
    int before = barrier - 1, after = barrier + 1;
    while (k->ins.at[before].op == K_NIL && before > 0) before--;
    const kins *outer = &k->ins.at[before], *inner = &k->ins.at[after];
    return outer->op == K_LOOP && inner->op == K_LOOP && outer->par == inner->par && outer->par != PAR_SERIAL;
}

static void find_loops(finder *f) {
    int loop = 0;
    for (int i = 1; i < f->k->ins.n; i++) {
        const kins *in = &f->k->ins.at[i];
        f->around[i] = loop;
        if (in->op == K_LOOP) loop = i;
        if (in->op != K_END) continue;
        f->end[i] = loop, f->end[loop] = i;
        f->around[i] = loop = f->around[loop];
    }
}

void mem_block_barriers(plan *p) {
    finder f = { .p = p };
    for (int i = 0; i < p->kernels.n; i++) {
        kernel *k = p->kernels.at[i].k;
        if (p->kernels.at[i].code != i || !is_simple(k)) continue;
        f.k = k, f.code = i;
        f.around = ARENA_ARRAY(p->a, int, k->ins.n), f.end = ARENA_ARRAY(p->a, int, k->ins.n);
        f.seen = ARENA_ARRAY(p->a, uint8_t, k->ins.n);
        find_loops(&f);
        bool any = false;
        for (int r = 1; r < k->ins.n; r++) {
            kins *in = &k->ins.at[r];
            if (in->op != K_BARRIER || in->mode != BARRIER_BLOCK || is_between_nests(k, r) || !is_redundant(&f, r)) continue;
            any = true, in->op = K_NIL;
        }
        if (any) loop_compact(k);
        for (int j = i + 1; any && j < p->kernels.n; j++) /* they have a copy of the list, not of what is in it */
            if (p->kernels.at[j].code == i) p->kernels.at[j].k->ins = k->ins;
    }
}
