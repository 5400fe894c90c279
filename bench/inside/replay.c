/* replay.c - inside_replay: what the kernels of a program bring through the memory levels, counted access by access.
 *
 * In: a compiled program for the CPU. Out: bytes of each kernel at each level, by the cost model and by a simulation of caches:
 * sets of lines in the order of their last use, one level asked where the one before has nothing, lines that are written
 * fetched first. The kernel runs twice, since the model speaks of one that runs again and again; the second time counts. As
 * cachegrind does it, but with the accesses of the interpreter of kernels, which needs no machine code. */
#include "bench/inside/inside.h"

#include "drive/drive.h"
#include "eval/eval_kernel.h"

enum { LEVELS = 3 };

typedef struct cache_level {
    int ways;
    int64_t sets;
    int64_t *lines; /* [sets][ways] numbers of lines + 1, the last used first; 0: free */
    double fetched; /* lines */
} cache_level;

typedef struct replay {
    cache_level level[LEVELS];
    const int64_t *base;  /* [bufs] */
    double touched, past; /* bytes by loads and stores; written past the caches */
    int64_t last_past;    /* the line of it that was counted last */
} replay;

/* Whether the line was there; it is now the last that was used. */
static bool find_line(cache_level *c, int64_t line) {
    int64_t *set = c->lines + line % c->sets * c->ways, before = line + 1;
    for (int w = 0; w < c->ways; w++) {
        int64_t at = set[w];
        set[w] = before, before = at;
        if (at == line + 1) return true;
        if (!at) break;
    }
    c->fetched++;
    return false;
}

static void touch(const eval_touch *x, void *ud) {
    replay *r = ud;
    int64_t from = r->base[x->buf] + x->at;
    r->touched += (double)x->bytes;
    for (int64_t line = from / MACHINE_LINE_BYTES; line <= (from + x->bytes - 1) / MACHINE_LINE_BYTES; line++) {
        if (x->nontemporal) {
            r->past += (double)(line != r->last_past) * MACHINE_LINE_BYTES, r->last_past = line;
            continue;
        }
        for (int l = 0; l < LEVELS && !find_line(&r->level[l], line); l++) {
        }
    }
}

static void make_level(cache_level *c, int64_t bytes, int ways, arena *a) {
    c->ways = ways, c->sets = bytes / MACHINE_LINE_BYTES / ways;
    if (c->sets < 1) c->sets = 1;
    c->lines = ARENA_ARRAY(a, int64_t, c->sets * ways);
}

/* Buffers one behind the other, as a plan has them. */
static const int64_t *place_buffers(const kernel *k, arena *a) {
    int64_t *base = ARENA_ARRAY(a, int64_t, k->bufs.n + 1), at = 0;
    for (int b = 0; b < k->bufs.n; b++) {
        base[b] = at;
        at += plan_room(k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype));
    }
    return base;
}

static void replay_kernel(const kernel *k, const machine *m, arena *a, inside_bytes *out) {
    replay r = { .base = place_buffers(k, a), .last_past = -1 };
    make_level(&r.level[0], m->level[LEVEL_L1].bytes, 12, a);
    make_level(&r.level[1], m->level[LEVEL_L2].bytes, 16, a);
    make_level(&r.level[2], m->level[LEVEL_L3].bytes, 16, a);
    for (int b = 0; b < k->bufs.n; b++) /* arrays of its own lie where every kernel has its own */
        if (k->bufs.at[b].kind == KB_LOCAL)
            touch(&(eval_touch){ b, 0, k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype), false, false },
                  &r);
    for (int run = 0; run < 2; run++) {
        for (int l = 0; l < LEVELS; l++) r.level[l].fetched = 0;
        r.touched = r.past = 0, r.last_past = -1;
        eval_kernel_touches(k, touch, &r, a);
        out->cold_counted = run ? out->cold_counted : r.level[2].fetched * MACHINE_LINE_BYTES + r.past;
    }
    out->counted[0] = r.touched;
    for (int l = 0; l < LEVELS; l++) out->counted[l + 1] = r.level[l].fetched * MACHINE_LINE_BYTES;
    out->counted[LEVEL_MEMORY] += r.past;
    cost c = cost_kernel(k, m, NULL, a);
    memcpy(out->predicted, c.bytes, sizeof out->predicted);
    double *far = ARENA_ARRAY(a, double, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) far[b] = 1e15; /* no cache keeps anything for so long */
    out->cold_predicted = cost_kernel(k, m, far, a).bytes[LEVEL_MEMORY];
}

typedef struct replay_job {
    arena a;
    guard gd;
} replay_job;

static tn_status run_job(replay_job *j, const tn_program *p, int i, int64_t l3_bytes, inside_bytes *out, err *e) {
    if (GUARD_TRY(&j->gd)) {
        machine m = machine_of(&p->target);
        if (l3_bytes) m.level[LEVEL_L3].bytes = l3_bytes;
        replay_kernel(p->plan->kernels.at[i].k, &m, &j->a, out);
        return TN_OK;
    }
    return err_set(e, j->gd.err.code, "%s", j->gd.err.text);
}

tn_status inside_replay(const tn_program *p, int i, int64_t l3_bytes, inside_bytes *out) {
    err e = { 0 };
    if (!p) return TN_ERR_INVAL;
    if (!p->plan || p->target.kind != TARGET_CPU || p->target.threads > 1 || i < 0 || i >= p->plan->kernels.n || !out ||
        l3_bytes < 0) {
        err_set(&e, TN_ERR_INVAL,
                "inside_replay: a kernel of a program for the CPU and one thread, a size and an out are needed");
        return ctx_report(p->ctx, &e);
    }
    replay_job j = { 0 };
    *out = (inside_bytes){ .name = p->plan->kernels.at[i].k->name, .repeats = p->plan->kernels.at[i].code != i };
    arena_init(&j.a, p->ctx->mem, &j.gd);
    tn_status st = run_job(&j, p, i, l3_bytes, out, &e);
    arena_fini(&j.a);
    return st ? ctx_report(p->ctx, &e) : TN_OK;
}
