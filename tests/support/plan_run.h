/* plan_run.h - what the tests of plans share: a graph goes through the pipeline, its plan through the interpreter, its results
 * against the reference evaluator within proven bounds. No compiler, no device. */
#ifndef TN_TESTS_SUPPORT_PLAN_RUN_H
#define TN_TESTS_SUPPORT_PLAN_RUN_H

#include <stdio.h>

#include "drive/drive.h"
#include "eval/eval_kernel.h"
#include "sched/sched.h"
#include "support/support.h"

typedef struct reference { /* what a graph means for one sample of inputs */
    const graph *g;
    sample in;
    eval_value *want;
    double **bound;
} reference;

static inline reference reference_make(const graph *g, arena *a, uint64_t seed) {
    reference r = { .g = g, .in = sample_make(g, a, seed) };
    r.want = eval_graph(g, a, r.in.values);
    r.bound = bound_graph(g, a, r.want);
    return r;
}

static inline int plan_io(const plan *p, const char *name, bool is_output) {
    for (int i = 0; i < p->io.n; i++)
        if (p->io.at[i].is_output == is_output && !strcmp(p->io.at[i].name, name)) return i;
    return -1;
}

/* Runs p and compares all outputs and states. Returns whether all agree; else `text` says what does not. */
static inline bool plan_agrees(const plan *p, const reference *r, arena *a, char *text, size_t n_text) {
    const graph *g = r->g;
    eval_memory *m = eval_memory_make(p, a);
    for (int i = 0; i < g->inputs.n; i++) {
        int k = plan_io(p, graph_get(g, g->inputs.at[i])->name, false);
        if (k >= 0) memcpy(m->io[k], r->in.data[i], r->in.bytes[i]);
    }
    eval_plan(p, m, a);
    for (int i = 0; i < g->outputs.n; i++) {
        const output *w = &g->outputs.at[i];
        const void *got[2] = { NULL, NULL };
        char why_not[512];
        if (w->name) got[0] = m->io[plan_io(p, w->name, true)];
        for (int s = 0; w->state && s < p->states.n; s++)
            if (!strcmp(p->states.at[s].name, graph_get(g, w->state)->name))
                got[1] = m->state + p->bufs.at[p->states.at[s].buf].offset;
        for (int x = 0; x < 2; x++) {
            if (!got[x] || compare(g, w->v, got[x], r->want[w->v], r->bound[w->v], 4, why_not, sizeof why_not) < 0) continue;
            snprintf(text, n_text, "%s: %s", x == 0 ? w->name : graph_get(g, w->state)->name, why_not);
            return false;
        }
    }
    return true;
}

typedef struct plan_config {
    uint64_t seed;
    int fusion;
    bool no_passes;
    target t;
    char text[4096];
    tn_status code; /* of a jump */
} plan_config;

/* Machines of every vector width; few threads and many, so that loops are split; caches as they are, small ones, so that
 * contractions go in stretches and rows are cut, and ones that hold next to nothing, so that results are written past them. */
static inline target plan_target(uint64_t seed) {
    static const int widths[] = { 32, 64, 16, 32 }, threads[] = { 1, 2, 3, 8 }, parts[] = { 4, 2, 4, 2, 0 };
    static const int l1[] = { 32 << 10, 1 << 10, 32 << 10, 64, 32 << 10, 1 << 10, 64 };
    static const int l2[] = { 256 << 10, 16 << 10, 256 << 10, 64, 256 << 10, 16 << 10, 1 << 10 };
    return (target){ .vector_bytes = widths[seed % 4],
                     .n_vector_regs = seed % 4 == 1 ? 32 : 16,
                     .threads = threads[seed / 4 % 4],
                     .packed = parts[seed % 5],
                     .l1_bytes = l1[seed % 7],
                     .l2_bytes = l2[seed % 7] };
}

/* Compiles g as configured and compares; c->text says what went wrong. The reference may be given, or is made from the seed. */
static inline bool plan_config_agrees(graph *g, const reference *given, plan_config *c) {
    arena a;
    guard gd;
    bool ok = false;
    c->code = TN_OK;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        reference r = given ? *given : reference_make(g, &a, c->seed);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = c->fusion, o.no_passes = c->no_passes, o.check = 1;
        ok = plan_agrees(pipeline_run(g, &a, &o, &c->t), &r, &a, c->text, sizeof c->text);
    } else {
        snprintf(c->text, sizeof c->text, "%s", gd.err.text);
        c->code = gd.err.code;
    }
    arena_fini(&a);
    return ok;
}

/* Kept walks of groups, which go on when a value joins, find what walks of whole groups do: the same kernels for the same
 * reasons. */
static inline bool plan_walks_agree(const graph *g, arena *a, sched_opts o, char *why_not, size_t n) {
    str x[2];
    for (int anew = 0; anew < 2; anew++) {
        o.walks_anew = anew;
        const plan *p = sched_plan(graph_clone(g, a, true, NULL), a, &o);
        str_init(&x[anew], a);
        for (int i = 0; i < p->kernels.n; i++) kernel_print(p->kernels.at[i].k, &x[anew]);
        for (int i = 0; i < p->decisions.n; i++) {
            const why *d = &p->decisions.at[i];
            str_addf(&x[anew], "%u %u %d %s\n", d->producer, d->consumer, d->fused, d->reason);
        }
    }
    if (!strcmp(x[0].s, x[1].s)) return true;
    size_t at = 0;
    while (x[0].s[at] == x[1].s[at]) at++;
    at -= at < 200 ? at : 200;
    snprintf(why_not, n, "with kept walks\n%.900s\nwith new ones\n%.900s", x[0].s + at, x[1].s + at);
    return false;
}

/* parse(print(k)) prints the same text and has the same problems, none. */
static inline bool plan_texts_agree(const plan *p, arena *a, char *why_not, size_t n) {
    for (int i = 0; i < p->kernels.n; i++) {
        str x, y, problems;
        str_init(&x, a), str_init(&y, a), str_init(&problems, a);
        kernel_print(p->kernels.at[i].k, &x);
        kernel *k = kernel_parse(a, x.s, x.n, "kernel");
        kernel_print(k, &y);
        if (!strcmp(x.s, y.s) && kernel_check(k, &problems) == 0) continue;
        snprintf(why_not, n, "kernel %s reads back as\n%s%s", p->kernels.at[i].k->name, y.s, problems.s);
        return false;
    }
    return true;
}

#endif
