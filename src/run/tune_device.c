/* tune_device.c - the search of tune.c for devices with memory of their own: each choice for a kernel is a program like the
 * model's with that one kernel changed, whose results must have the model's bits, and whose kernels the device times.
 *
 * In: a tuner whose session has its inputs. Out: what was measured, in the report; the choice of a kernel, where one is faster
 * twice. */
#include "run/tuner.h"
#include "recipe/recipe.h"
#include "rt/tuning.h"

enum { MOST_WAYS = 40 };
#define PROFILE_SECONDS 4e-3
#define EACH_SECONDS 50e-6 /* a clock round one run of a kernel takes some microseconds itself */

static tn_status time_session(tuner *u, tn_session *s, int which, double *out_seconds) {
    tn_profile *p;
    tn_status st = profile_session(s, PROFILE_SECONDS, EACH_SECONDS, &p);
    if (st) return err_set(u->e, st, "%s", s->err.text);
    *out_seconds = p->kernels[which].best;
    profile_free(p);
    return TN_OK;
}

static tn_status run_once(tuner *u, tn_session *s) {
    tn_status st = tuner_bind(u, s);
    if (!st && (st = session_run(s, 1))) err_set(u->e, st, "%s", s->err.text);
    return st;
}

/* The first run of the model's program, which is kept for all choices. */
static tn_status run_first(tuner *u) {
    if (u->first) return TN_OK;
    tn_status st = session_new(u->p, NULL, &u->first, u->e);
    return st ? st : run_once(u, u->first);
}

/* One run of each program, both from the first state. */
static tn_status check(tuner *u, const tuned_kernel *k, tn_session *s, const char *c) {
    bool same = true;
    tn_status st = run_first(u);
    if (!st) st = run_once(u, s);
    if (!st) st = tuner_same(u, u->first, s, &same);
    if (!st && !same) st = err_set(u->e, TN_ERR_INTERNAL, "kernel %s computes other bits with \"%s\"", k->name, c);
    return st;
}

/* In a session of its own, as memory is when the program starts. */
static tn_status measure_program(tuner *u, tuned_kernel *k, const char *c, tn_program *p, double *out_seconds,
                                 const char **out_kept) {
    tn_session *s = NULL;
    tn_status st = session_new(p, NULL, &s, u->e);
    if (!st) st = check(u, k, s, c);
    if (!st) st = time_session(u, s, k->kernel, out_seconds);
    if (!st) st = tuner_remember(u, k, c, p->plan->kernels.at[k->kernel].k, *out_seconds, out_kept);
    session_free(s);
    return st;
}

static tn_status measure_model(tuner *u, tuned_kernel *k, double *out_seconds) {
    return measure_program(u, k, k->recipe, u->p, out_seconds, NULL);
}

static tn_status measure_way(tuner *u, tuned_kernel *k, const char *c, double *out_seconds, const char **out_kept) {
    tuning_entry entry = { .key = k->key, .schedule = c };
    tuning *table = NULL;
    tn_program *p = NULL;
    tn_status st = tuning_with(u->ctx->mem, NULL, &entry, 1, &table, u->e);
    if (!st) st = drive_compile_tuned(u->ctx, u->p->dev, u->p->graph, &u->p->opts, &table->table, &p, u->e);
    if (!st) st = measure_program(u, k, c, p, out_seconds, out_kept);
    drive_program_free(p);
    tuning_free(table);
    return st;
}

typedef struct schedules {
    arena a;
    guard gd;
    recipe_candidate at[MOST_WAYS];
    int n;
} schedules;

static tn_status list_schedules(tuner *u, const tuned_kernel *k, schedules *all) {
    arena_init(&all->a, u->ctx->mem, &all->gd);
    if (GUARD_TRY(&all->gd)) {
        const pkernel *pk = &u->p->plan->kernels.at[k->kernel];
        all->n = recipe_candidates(pk->scalar, &u->p->target, NULL, &all->a, all->at, MOST_WAYS);
        all->n = recipe_rank(&u->p->target, &all->a, all->at, all->n);
        return TN_OK;
    }
    return err_set(u->e, all->gd.err.code, "%s", all->gd.err.text);
}

tn_status tuner_device_estimate(tuner *u) {
    tn_profile *p = NULL;
    tn_status st = run_once(u, u->s);
    if (!st && (st = profile_session(u->s, PROFILE_SECONDS, EACH_SECONDS, &p))) err_set(u->e, st, "%s", u->s->err.text);
    for (int i = 0; i < u->t->n && !st; i++) {
        tuned_kernel *k = &u->t->kernels[i];
        k->before = p->kernels[k->kernel].best;
        k->share = k->before * k->launches;
        st = tuner_remember(u, k, k->recipe, u->p->plan->kernels.at[k->kernel].k, k->before, NULL);
    }
    profile_free(p);
    return st;
}

/* The model's choice is measured before and after the others: what is taken must be faster than both, twice. */
tn_status tuner_device_kernel(tuner *u, tuned_kernel *k, double budget) {
    schedules all = { .n = 0 };
    double until = now_seconds() + budget, best = 0, again = 0;
    tn_status st = list_schedules(u, k, &all);
    if (!st && all.n) st = measure_model(u, k, &best);
    k->before = best;
    for (int i = 0; i < all.n && !st && now_seconds() < until && tuner_go_on(u, k->name); i++) {
        double t;
        const char *kept;
        st = measure_way(u, k, all.at[i].text, &t, &kept);
        k->measured = true;
        if (!st && t < best) best = t, k->schedule = kept;
    }
    if (!st && best < TUNER_GAIN * k->before) st = measure_model(u, k, &again);
    if (!st && again > 0 && again < k->before) k->before = again;
    if (!st && again > 0) st = measure_way(u, k, k->schedule, &again, NULL);
    k->changed = !st && again > 0 && best < TUNER_GAIN * k->before && again < TUNER_GAIN * k->before;
    k->after = !k->measured ? 0 : k->changed ? best : k->before;
    if (!k->changed) k->schedule = k->recipe;
    arena_fini(&all.a);
    return st;
}
