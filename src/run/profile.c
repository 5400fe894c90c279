/* profile.c - where the time of a run goes: the kernels of a session one by one, and whole runs, in turns.
 *
 * In: a session with its inputs bound. Out: times of each kernel. Every round is a run like any other, so states move on. Run
 * half. */
#include "run/run.h"

#include <stdlib.h>

enum { MIN_ROUNDS = 5, MAX_ROUNDS = 1000, MOST_LAUNCHES = 4096 /* of a round */, FEW_REPEATS = 16 };

typedef struct profiler {
    tn_session *s;
    tn_profile *out;
    list *list;
    device_span *spans; /* [n] of the last round */
    cost *costs;        /* [n] */
    double each;        /* seconds that a kernel is repeated for; 0: each runs once */
    int *repeats;       /* [n] */
    double *samples;    /* [n + 1][MAX_ROUNDS] seconds; the last row: whole runs */
} profiler;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tn_status open(profiler *p) {
    mem m = p->s->p->ctx->mem;
    size_t n = (size_t)p->out->n;
    p->out->kernels = mem_alloc(m, n * sizeof *p->out->kernels);
    p->spans = mem_alloc(m, n * sizeof *p->spans);
    p->costs = mem_alloc(m, n * sizeof *p->costs);
    p->samples = mem_alloc(m, (n + 1) * MAX_ROUNDS * sizeof *p->samples);
    p->repeats = mem_alloc(m, n * sizeof *p->repeats);
    if (!p->out->kernels || !p->spans || !p->costs || !p->samples || !p->repeats)
        return err_set(&p->s->err, TN_ERR_NOMEM, "out of memory: a profile of %zu kernels", n);
    tn_status st = drive_costs(p->s->p, p->each > 0, p->costs, &p->s->err);
    return st ? st : session_record(p->s, p->s->now, true, &p->list);
}

static void close(profiler *p) {
    mem m = p->s->p->ctx->mem;
    size_t n = (size_t)p->out->n;
    if (p->list) p->s->p->dev->api->discard(p->list);
    mem_free(m, p->spans, n * sizeof *p->spans);
    mem_free(m, p->costs, n * sizeof *p->costs);
    mem_free(m, p->samples, (n + 1) * MAX_ROUNDS * sizeof *p->samples);
    mem_free(m, p->repeats, n * sizeof *p->repeats);
}

/* A clock round one run of a kernel counts what the clock takes, so that a few runs tell how many it takes. */
static tn_status find_repeats(profiler *p) {
    int n = p->out->n, most = MOST_LAUNCHES / (n + 1) < DEVICE_MOST_REPEATS ? MOST_LAUNCHES / (n + 1) : DEVICE_MOST_REPEATS;
    tn_status code = TN_OK;
    for (int round = 0; round < 2 && !code; round++) {
        int cap = round ? most : FEW_REPEATS;
        code = p->s->p->dev->api->profile(p->list, round ? p->repeats : NULL, p->spans, n, &p->s->err);
        for (int i = 0; i < n && !code; i++) {
            double times = p->each / (p->spans[i].end - p->spans[i].begin + 1e-12);
            p->repeats[i] = times > cap ? cap : times < 1 ? 1 : (int)times;
        }
    }
    return code;
}

static tn_status round_of(profiler *p, int round, bool once) {
    const device_api *api = p->s->p->dev->api;
    int n = p->out->n;
    double start = now_seconds();
    tn_status code = session_run(p->s, 1); /* on devices with memory of their own it also brings the inputs there */
    p->samples[(size_t)n * MAX_ROUNDS + (size_t)round] = now_seconds() - start;
    if (!code) code = api->profile(p->list, once || p->each <= 0 ? NULL : p->repeats, p->spans, n, &p->s->err);
    for (int i = 0; i < n && !code; i++)
        p->samples[(size_t)i * MAX_ROUNDS + (size_t)round] = p->spans[i].end - p->spans[i].begin;
    return code;
}

static double sort_and_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void summarise(profiler *p, int rounds) {
    tn_profile_summary *s = &p->out->summary;
    *s = (tn_profile_summary){ .kernels = p->out->n, .rounds = rounds };
    for (int i = 0; i < p->out->n; i++) {
        double *x = p->samples + (size_t)i * MAX_ROUNDS, median = sort_and_median(x, rounds);
        p->out->kernels[i] = (kernel_times){ median, x[0], p->spans[i].begin, p->spans[i].end, p->costs[i] };
        s->kernels_us += median * 1e6;
    }
    s->run_us = sort_and_median(p->samples + (size_t)p->out->n * MAX_ROUNDS, rounds) * 1e6;
}

tn_status profile_session(tn_session *s, double seconds, double each, tn_profile **out) {
    session_use_sizes(s);
    tn_program *prog = s->now->p;
    if (s->imm)
        return err_set(&s->err, TN_ERR_UNSUPPORTED,
                       "a profile of mode immediate: its kernels are compiled one by one; profile mode graph instead");
    profiler p = { .s = s, .each = each, .out = mem_alloc(prog->ctx->mem, sizeof *p.out) };
    if (!p.out) return err_set(&s->err, TN_ERR_NOMEM, "out of memory: a profile");
    *p.out = (tn_profile){ .ctx = prog->ctx, .p = prog, .n = prog->plan->kernels.n };
    tn_status code = open(&p);
    if (!code) code = round_of(&p, 0, true); /* warms up; overwritten */
    if (!code && each > 0) code = find_repeats(&p);
    int rounds = 0;
    for (double start = now_seconds(); !code && rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || now_seconds() - start < seconds);
         rounds++)
        code = round_of(&p, rounds, false);
    if (!code) summarise(&p, rounds);
    close(&p);
    if (code)
        profile_free(p.out);
    else
        *out = p.out;
    return code;
}

void profile_free(tn_profile *p) {
    if (!p) return;
    mem_free(p->ctx->mem, p->kernels, (size_t)p->n * sizeof *p->kernels);
    mem_free(p->ctx->mem, p, sizeof *p);
}
