/* tune.c - the search behind tn_tune: for each kernel of a program, other schedules than the recipe's are compiled and run in
 * turns with it on the memory of a session; from the fastest the search goes on (a beam). The winner is taken if it stays
 * faster; at last the whole program is run both ways.
 *
 * In: a graph and a time. Out: a report, and entries for the database. Compile-half work (candidates, code) happens under the
 * report's guard, everything else is run half. A kernel's budget is its share of the time of a run. */
#include "run/measure.h"
#include "run/tuner.h"
#include "recipe/recipe.h"
#include "mem/mem.h"
#include "rt/cache.h"
#include "rt/tuning.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    MOST_WAYS = 64,
    LEAST_WAYS = 8,
    BEAM = 3, /* schedules from which the search goes on */
    MOST_SEEN = 256,
    MOST_ROUNDS = 40,
    LEVELS = 6,
    DUEL_ROUNDS = 41,
    LEAST_ROUNDS = 7,
    MOST_REPEATS = 64,
    IN_PLACE_REPEATS = 16
};
#define SAMPLE_SECONDS 50e-6 /* a sample is several launches of a short kernel */
#define HOPELESS 3           /* dropped at once */
#define FAR_SLOWER 1.5       /* dropped after two rounds */
#define CLEARLY_SLOWER 1.10  /* dropped after a few rounds */
#define SLOWER 1.04          /* dropped after more */
#define NEARLY 1.05          /* near enough to the fastest to go on from */

/* ---- compile half: the ways to do a kernel ---- */

typedef struct variant {
    const char *text; /* of its schedule */
    const kernel *k;
    bool parallel;
} variant;

typedef struct variants {
    arena a;
    guard gd;
    const tn_program *p;
    const pkernel *pk;
    const char *head[BEAM]; /* where the search stands: the first ways */
    int n_heads, most;      /* ways, with those next to the heads; n_heads: no others */
    uint64_t *seen;         /* [MOST_SEEN] hashes of kernels that were measured before; NULL: does not matter */
    int *n_seen;
    variant *at; /* [n] */
    int n;
    plan plan; /* one launch a way; fixed values are constants of its own, for each way wants them in another order */
    drive_code code;
} variants;

static void start_plan(variants *w) {
    const plan *from = w->p->plan;
    plan *p = &w->plan;
    *p = *from;
    p->a = &w->a;
    p->bufs.at = arena_copy(&w->a, from->bufs.at, sizeof *from->bufs.at * (size_t)from->bufs.n);
    p->bufs.cap = from->bufs.n;
    memset(&p->kernels, 0, sizeof p->kernels);
    memset(&p->steps, 0, sizeof p->steps); /* launches come from the list that measures */
    for (int i = 0; i < w->pk->scalar->bufs.n; i++) {
        const kbuf *k = &w->pk->scalar->bufs.at[i];
        if (!k->fixed) continue;
        pbuf *b = &p->bufs.at[k->plan_buf];
        b->kind = PB_CONST, b->slot = SLOT_CONST;
        b->elems = k->elems, b->bytes = k->elems * (int64_t)dtype_size((tn_dtype)k->dtype);
        b->dtype = k->dtype, b->panels = NULL, b->next_panels = 0;
    }
}

static bool was_seen(variants *w, const kernel *k) {
    uint64_t key = kernel_hash(k, 0);
    for (int i = 0; w->seen && i < *w->n_seen; i++)
        if (w->seen[i] == key) return true;
    if (w->seen && *w->n_seen < MOST_SEEN) w->seen[(*w->n_seen)++] = key;
    return false;
}

static void list_variants(variants *w) {
    const target *t = &w->p->target;
    w->at = ARENA_ARRAY(&w->a, variant, w->most + 1);
    for (int i = 0; i < w->n_heads; i++) {
        kernel *k = recipe_kernel(kernel_clone(w->pk->scalar, &w->a), t, w->head[i], NULL);
        was_seen(w, k);
        w->at[w->n++] = (variant){ .text = w->head[i], .k = k };
    }
    int n = 0;
    recipe_candidate *all = ARENA_ARRAY(&w->a, recipe_candidate, w->n_heads * w->most + 1);
    for (int i = 0; i < w->n_heads && w->most > w->n_heads; i++)
        n += recipe_candidates(w->pk->scalar, t, w->head[i], &w->a, all + n, w->most);
    int worth = recipe_rank(t, &w->a, all, n);
    for (int i = 0; i < worth && w->n < w->most; i++)
        if (!was_seen(w, all[i].k)) w->at[w->n++] = (variant){ .text = all[i].text, .k = all[i].k };
}

static void make_variants(variants *w) {
    const kernel *scalar = w->pk->scalar;
    start_plan(w);
    list_variants(w);
    for (int i = 0; i < w->n; i++) {
        pkernel pk = *w->pk;
        pk.k = arena_copy(&w->a, w->at[i].k, sizeof *pk.k);
        pk.args = ARENA_ARRAY(&w->a, parg, scalar->bufs.n + 1);
        for (int b = 0; b < scalar->bufs.n; b++)
            pk.args[b].buf = scalar->bufs.at[b].fixed ? scalar->bufs.at[b].plan_buf : w->pk->args[b].buf;
        pipeline_args(&w->plan, &pk, scalar->bufs.n);
        pk.code = i, pk.barrier = false;
        w->at[i].parallel = pk.k->par_var >= 0;
        VEC_PUSH(&w->a, &w->plan.kernels, pk);
    }
    mem_constants(&w->plan);
    drive_emit(w->p, &w->plan, &w->a, &w->code);
}

static tn_status variants_open(variants *w, tuner *u, const tuned_kernel *k) {
    arena_init(&w->a, u->ctx->mem, &w->gd);
    w->p = u->p, w->pk = &u->p->plan->kernels.at[k->kernel];
    if (w->most < w->n_heads) w->most = w->n_heads;
    if (GUARD_TRY(&w->gd)) {
        make_variants(w);
        return TN_OK;
    }
    return err_set(u->e, w->gd.err.code, "%s", w->gd.err.text);
}

static tn_status open_measure(measure *m, tuner *u, const tuned_kernel *k, const variants *w, int repeats) {
    bool parallel[MOST_WAYS];
    for (int i = 0; i < w->n; i++) parallel[i] = w->at[i].parallel;
    return measure_open(m, u->s, k->kernel, &w->plan, &w->code, parallel, w->n, repeats, u->e);
}

/* ---- the report ---- */

static int by_time(const void *x, const void *y) {
    double a = ((const tuned_variant *)x)->seconds, b = ((const tuned_variant *)y)->seconds;
    return (a > b) - (a < b);
}

/* ---- one kernel ---- */

typedef struct race {
    int n;
    bool live[MOST_WAYS];
    double best[MOST_WAYS];
} race;

static void drop_slow(race *r, double factor) {
    double best = r->best[0];
    for (int i = 1; i < r->n; i++)
        if (r->best[i] < best) best = r->best[i];
    for (int i = 1; i < r->n; i++) r->live[i] = r->live[i] && r->best[i] <= best * factor;
}

static tn_status check_all(tuner *u, measure *m, const tuned_kernel *k, const variants *w) {
    tn_status st = TN_OK;
    for (int i = 0; i < m->n && !st; i++) {
        bool same;
        st = measure_check(m, i, &same, u->e);
        if (!st && !same)
            st = err_set(u->e, TN_ERR_INTERNAL, "kernel %s computes other bits with the schedule %s", k->name, w->at[i].text);
    }
    return st;
}

/* The fastest become the heads, the very fastest first. */
static tn_status find_heads(tuner *u, tuned_kernel *k, const variants *w, const race *r, const char **head, int *out_n) {
    const char *kept[MOST_WAYS];
    tn_status st = TN_OK;
    bool taken[MOST_WAYS] = { false };
    double fastest = 0;
    for (int i = 0; i < w->n && !st; i++) st = tuner_remember(u, k, w->at[i].text, w->at[i].k, r->best[i], &kept[i]);
    for (*out_n = 0; *out_n < BEAM && *out_n < w->n && !st; ++*out_n) {
        int best = -1;
        for (int i = 0; i < w->n; i++)
            if (!taken[i] && (best < 0 || r->best[i] < r->best[best])) best = i;
        if (*out_n == 0) fastest = r->best[best];
        if (r->best[best] > NEARLY * fastest) break;
        taken[best] = true, head[*out_n] = kept[best];
    }
    return st;
}

/* All ways in turns until the time is over. */
static tn_status run_race(tuner *u, measure *m, tuned_kernel *k, double until, race *r) {
    tn_status st = TN_OK;
    *r = (race){ .n = m->n };
    for (int i = 0; i < m->n; i++) r->live[i] = true, r->best[i] = 1e300;
    for (int round = 0; round < MOST_ROUNDS && !st; round++) {
        int alive = 0;
        for (int i = 0; i < m->n && !st; i++) {
            double t;
            if (!r->live[i]) continue;
            alive++;
            st = measure_time(m, i, &t, u->e);
            if (!st && t < r->best[i]) r->best[i] = t;
        }
        drop_slow(r, round == 0 ? HOPELESS : round == 1 ? FAR_SLOWER : round < 8 ? CLEARLY_SLOWER : SLOWER);
        if (alive == 1 || (round >= 2 && now_seconds() > until) || !tuner_go_on(u, k->name)) break;
    }
    return st;
}

static double least(const double *v, int n) {
    double best = v[0];
    for (int i = 1; i < n; i++)
        if (v[i] < best) best = v[i];
    return best;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *v, int n) {
    if (n == 0) return 0;
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

/* Numbers of a kernel that goes on from its own results grow or vanish: they are set anew before each sample. */
static bool reads_own_output(const plan *p, const pkernel *pk) {
    for (int i = 0; i < pk->scalar->bufs.n; i++)
        if (pk->scalar->bufs.at[i].kind == KB_INOUT || (pk->args[i].buf >= 0 && p->bufs.at[pk->args[i].buf].inplace_of >= 0))
            return true;
    return false;
}

static int repeats_for(const tuner *u, const tuned_kernel *k) {
    double n = SAMPLE_SECONDS / (k->before > 1e-8 ? k->before : 1e-8);
    int most = reads_own_output(u->p->plan, &u->p->plan->kernels.at[k->kernel]) ? IN_PLACE_REPEATS : MOST_REPEATS;
    return n < 1 ? 1 : n > most ? most : (int)n;
}

/* The recipe's schedule against the one that won: it must win again. */
static tn_status duel(tuner *u, tuned_kernel *k, double until) {
    variants w = { .n_heads = 2, .head = { k->recipe, k->schedule } };
    double model[DUEL_ROUNDS], other[DUEL_ROUNDS], ratio[DUEL_ROUNDS];
    measure m = { 0 };
    int n = 0;
    tn_status st = variants_open(&w, u, k);
    if (!st) st = open_measure(&m, u, k, &w, repeats_for(u, k));
    if (!st) st = check_all(u, &m, k, &w);
    for (; n < DUEL_ROUNDS && !st && (n < LEAST_ROUNDS || now_seconds() < until); n++) {
        st = measure_time(&m, n % 2, n % 2 ? &other[n] : &model[n], u->e);
        if (!st) st = measure_time(&m, 1 - n % 2, n % 2 ? &model[n] : &other[n], u->e);
        if (!st) ratio[n] = other[n] / model[n];
    }
    if (!st) {
        double gain = median(ratio, n);
        k->before = least(model, n), k->after = least(other, n); /* what nobody disturbed */
        k->changed = gain < TUNER_GAIN && k->after < TUNER_GAIN * k->before;
        if (!k->changed) k->after = k->before;
    }
    measure_close(&m);
    arena_fini(&w.a);
    return st;
}

typedef struct beam {
    const char *head[BEAM];
    int n, n_seen;
    uint64_t seen[MOST_SEEN];
} beam;

/* Ways next to the heads that there is time for: each runs about twice. */
static int variants_for(const tuned_kernel *k, double seconds) {
    double n = seconds / (2 * (k->before > SAMPLE_SECONDS ? k->before : SAMPLE_SECONDS));
    return n < LEAST_WAYS ? LEAST_WAYS : n > MOST_WAYS ? MOST_WAYS : (int)n;
}

/* One round of the search: the heads and what is next to them. *out_better: another way than the first head was the fastest. */
static tn_status search_level(tuner *u, tuned_kernel *k, beam *b, double until, bool *out_better) {
    variants w = { .n_heads = b->n, .most = variants_for(k, until - now_seconds()), .seen = b->seen, .n_seen = &b->n_seen };
    measure m = { 0 };
    const char *first = b->head[0];
    race r;
    memcpy(w.head, b->head, sizeof w.head);
    *out_better = false;
    tn_status st = variants_open(&w, u, k);
    bool any = !st && w.n > b->n;
    if (any) st = open_measure(&m, u, k, &w, repeats_for(u, k));
    if (any && !st) st = check_all(u, &m, k, &w);
    if (any && !st) st = run_race(u, &m, k, until, &r);
    if (any && !st) st = find_heads(u, k, &w, &r, b->head, &b->n);
    if (any && !st) k->measured = true, *out_better = strcmp(b->head[0], first) != 0;
    measure_close(&m);
    arena_fini(&w.a);
    return st;
}

/* From the recipe's schedule on, as long as that brings something. */
static tn_status tune_kernel(tuner *u, tuned_kernel *k, double budget) {
    static const double share[LEVELS] = { 0.4, 0.6, 0.7, 0.78, 0.83, 0.86 };
    double from = now_seconds();
    beam b = { .head = { k->recipe }, .n = 1 };
    tn_status st = TN_OK;
    bool better = true;
    for (int level = 0; level < LEVELS && !st && better && tuner_go_on(u, k->name); level++) {
        double until = from + budget * share[level];
        if (level && now_seconds() > until) break;
        st = search_level(u, k, &b, until, &better);
    }
    k->schedule = b.head[0];
    if (!st && strcmp(k->schedule, k->recipe) != 0) st = duel(u, k, from + budget);
    if (!k->changed) k->schedule = k->recipe, k->after = k->measured ? k->before : 0;
    return st;
}

/* ---- all kernels ---- */

/* How long each takes as the recipe has it, roughly. */
static tn_status estimate(tuner *u, tuned_kernel *k) {
    variants w = { .n_heads = 1, .head = { k->recipe } };
    measure m = { 0 };
    tn_status st = variants_open(&w, u, k);
    if (!st) st = open_measure(&m, u, k, &w, 1);
    k->before = 1e300;
    for (int i = 0; i < 5 && !st; i++) {
        double t;
        st = measure_time(&m, 0, &t, u->e);
        if (!st && t < k->before) k->before = t;
    }
    k->share = k->before * k->launches;
    if (!st) st = tuner_remember(u, k, k->recipe, w.at[0].k, k->before, NULL);
    measure_close(&m);
    arena_fini(&w.a);
    return st;
}

static bool on_device(const tuner *u) { return u->s->io_buf != NULL; }

/* Of the schedule that the compiler chose. */
static const char *recipe_text(const pkernel *pk, arena *a) {
    str text;
    str_init(&text, a);
    if (pk->schedule) schedule_print_steps(pk->schedule, &text);
    return pk->schedule ? text.s : RECIPE_ITSELF;
}

static void list_kernels(tuner *u) {
    const plan *p = u->p->plan;
    tn_tuning *t = u->t;
    int *at = ARENA_ARRAY(&t->arena, int, p->kernels.n + 1);
    t->kernels = ARENA_ARRAY(&t->arena, tuned_kernel, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        if (!p->kernels.at[pk->code].scalar) continue; /* of several, each of which has a form */
        if (pk->code == i) {
            at[i] = t->n;
            const char *steps = recipe_text(pk, &t->arena);
            t->kernels[t->n++] = (tuned_kernel){ .name = arena_strdup(&t->arena, pk->k->name),
                                                 .recipe = steps,
                                                 .schedule = steps,
                                                 .kernel = i,
                                                 .flops = (double)pk->k->flops,
                                                 .key = kernel_hash(pk->scalar, u->p->target.tuning_seed) };
        }
        t->kernels[at[pk->code]].launches++;
    }
}

static int by_share(const void *x, const void *y) {
    const tuned_kernel *a = *(const tuned_kernel *const *)x, *b = *(const tuned_kernel *const *)y;
    return a->share != b->share ? (a->share < b->share) - (a->share > b->share) : a->kernel - b->kernel;
}

/* Those that take longest first; what one leaves of its time, the others get. */
static tn_status tune_kernels(tuner *u, tuned_kernel **order) {
    tn_tuning *t = u->t;
    tn_status st = TN_OK;
    double total = 0;
    if (on_device(u)) st = tuner_device_estimate(u);
    for (int i = 0; i < t->n && !st; i++) {
        order[i] = &t->kernels[i];
        if (tuner_go_on(u, t->kernels[i].name) && !on_device(u)) st = estimate(u, &t->kernels[i]);
        total += t->kernels[i].share;
    }
    if (st) return st;
    qsort(order, (size_t)t->n, sizeof *order, by_share);
    for (int i = 0; i < t->n && !st; i++) {
        double part = total > 0 ? order[i]->share / total : 1;
        double budget = (tuner_left(u) - 0.05 * u->seconds) * part;
        total -= order[i]->share;
        if (order[i]->share > 0 && budget > 20 * order[i]->before && tuner_go_on(u, order[i]->name))
            st = on_device(u) ? tuner_device_kernel(u, order[i], budget) : tune_kernel(u, order[i], budget);
    }
    return st;
}

/* ---- the whole program, both ways ---- */

static tn_status run_session(tuner *u, tn_session *s, double *out_seconds) {
    double from = now_seconds();
    tn_status st = session_run(s, 1);
    *out_seconds = now_seconds() - from;
    return st ? err_set(u->e, st, "%s", s->err.text) : TN_OK;
}

/* Runs in turns; false in *out_better when the schedules cost more together than they brought alone. Without a new one both are
 * the same program. */
static tn_status compare(tuner *u, tn_session *x, tn_session *y, bool *out_better) {
    enum { ROUNDS = 101 };
    double a[ROUNDS], b[ROUNDS], ratio[ROUNDS];
    int n = 0;
    bool same = true;
    tn_status st = run_session(u, x, &a[0]);
    if (!st) st = run_session(u, y, &b[0]);
    if (!st) st = tuner_same(u, x, y, &same);
    if (!st && !same)
        st =
            err_set(u->e, TN_ERR_INTERNAL, "@%s computes other bits with the schedules that tuning found", u->p->plan->g->name);
    double until = now_seconds() + 0.05 * u->seconds;
    for (; n < ROUNDS && !st && (n < 3 || now_seconds() < until); n++) {
        st = run_session(u, n % 2 ? y : x, n % 2 ? &b[n] : &a[n]);
        if (!st) st = run_session(u, n % 2 ? x : y, n % 2 ? &a[n] : &b[n]);
        if (!st) ratio[n] = b[n] / a[n];
    }
    if (st) return st;
    tn_tuning_summary *t = &u->t->summary;
    t->before_us = median(a, n) * 1e6, t->after_us = t->changed ? median(b, n) * 1e6 : t->before_us;
    *out_better = !t->changed || median(ratio, n) < 1;
    return TN_OK;
}

static tn_status compare_programs(tuner *u, const graph *g, const tuning *found, bool *out_better) {
    tn_program *p = NULL;
    tn_session *x = NULL, *y = NULL; /* both fresh: measuring kernels left random numbers in the states */
    tn_status st = drive_compile_tuned(u->ctx, u->p->dev, g, &u->p->opts, &found->table, &p, u->e);
    if (!st) st = session_new(u->p, NULL, &x, u->e);
    if (!st) st = session_new(p, NULL, &y, u->e);
    if (!st) st = tuner_bind(u, x);
    if (!st) st = tuner_bind(u, y);
    if (!st) st = compare(u, x, y, out_better);
    session_free(x);
    session_free(y);
    drive_program_free(p);
    return st;
}

/* ---- keeping ---- */

/* Kernels where the recipe won get an entry, too: it says so, and replaces an older one. */
static tuning_entry *entries_of(const tn_tuning *t, int *out_n) {
    tuning_entry *all = mem_alloc(t->ctx->mem, (size_t)t->n * sizeof *all);
    *out_n = 0;
    for (int i = 0; all && i < t->n; i++) {
        const tuned_kernel *k = &t->kernels[i];
        if (k->measured)
            all[(*out_n)++] = (tuning_entry){ k->key, k->changed ? k->schedule : RECIPE_ITSELF, (uint64_t)(k->before * 1e9),
                                              (uint64_t)(k->after * 1e9) };
    }
    return all;
}

static tn_status keep(tuner *u, const tuning_entry *add, int n) {
    tn_ctx *ctx = u->ctx;
    tuning *old = atomic_load(&ctx->tuning), *all;
    disk *d = cache_disk(ctx->cache);
    tn_status st = tuning_with(ctx->mem, old, add, n, &all, u->e);
    if (st) return st;
    all->older = old;
    atomic_store(&ctx->tuning, all);
    u->t->summary.kept = 1;
    return d ? tuning_store(ctx->mem, d, add, n, u->e) : TN_OK;
}

static tn_status finish(tuner *u, const graph *g) {
    int n;
    bool better = true;
    tuning *found = NULL;
    tuning_entry *add = entries_of(u->t, &n);
    tn_status st = add ? tuning_with(u->ctx->mem, NULL, add, n, &found, u->e)
                       : err_set(u->e, TN_ERR_NOMEM, "out of memory: the tuning database");
    for (int i = 0; i < u->t->n && !st; i++) u->t->summary.changed += u->t->kernels[i].changed;
    if (!st) st = compare_programs(u, g, found, &better);
    if (!st && better && n && !u->opts->dry_run) st = keep(u, add, n);
    tuning_free(found);
    mem_free(u->ctx->mem, add, (size_t)u->t->n * sizeof *add);
    return st;
}

/* ---- entry ---- */

static tn_status begin(tuner *u, tuned_kernel ***out_order) {
    tn_tuning *t = u->t;
    if (GUARD_TRY(&t->gd)) {
        list_kernels(u);
        *out_order = ARENA_ARRAY(&t->arena, tuned_kernel *, t->n + 1);
        return TN_OK;
    }
    return err_set(u->e, t->gd.err.code, "%s", t->gd.err.text);
}

static tn_status write_texts(tuner *u) {
    tn_tuning *t = u->t;
    if (GUARD_TRY(&t->gd)) {
        for (int i = 0; i < t->n; i++) {
            tuned_kernel *k = &t->kernels[i];
            k->text = k->measured ? recipe_change_text(k->recipe, k->schedule, &t->arena) : "not measured";
            if (k->variants.n > 1) qsort(k->variants.at, (size_t)k->variants.n, sizeof *k->variants.at, by_time);
            k->candidates = k->variants.n > 1 ? k->variants.n - 1 : 0;
        }
        return TN_OK;
    }
    return err_set(u->e, t->gd.err.code, "%s", t->gd.err.text);
}

static tn_status search(tuner *u, const graph *g) {
    tuned_kernel **order;
    size_t size = (size_t)u->p->n_io * sizeof(void *);
    u->inputs = mem_alloc(u->ctx->mem, size);
    if (!u->inputs) return err_set(u->e, TN_ERR_NOMEM, "out of memory: inputs to measure with");
    tn_status st = begin(u, &order);
    if (!st) st = session_new(u->p, NULL, &u->s, u->e);
    if (!st) st = tuner_bind(u, u->s);
    if (!st) st = tune_kernels(u, order);
    session_free(u->first);
    if (!st) st = finish(u, g);
    if (!st) st = write_texts(u);
    session_free(u->s);
    for (int i = 0; i < u->p->n_io; i++) mem_free(u->ctx->mem, u->inputs[i], (size_t)u->p->io[i].bytes);
    mem_free(u->ctx->mem, u->inputs, size);
    return st;
}

void tune_free(tn_tuning *t) {
    if (!t) return;
    arena_fini(&t->arena);
    mem_free(t->ctx->mem, t, sizeof *t);
}

tn_status tune_graph(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, const tn_tune_opts *tune, tn_tuning **out) {
    tn_compile_opts o;
    device *dev;
    tn_status st = drive_resolve(ctx, opts, &o);
    if (!st && o.mode == TN_MODE_IMMEDIATE)
        st = err_set(&ctx->err, TN_ERR_UNSUPPORTED,
                     "tn_tune: mode immediate, whose kernels are compiled one by one; tune mode graph, compiled or loop");
    if (!st && g->params && g->params->n_dims)
        st = err_set(&ctx->err, TN_ERR_UNSUPPORTED, "tn_tune: a graph with symbolic dims; tune it with numbers for them");
    if (!st && o.schedule)
        st = err_set(&ctx->err, TN_ERR_UNSUPPORTED,
                     "tn_tune: tuning starts from the recipes' schedules, not from one given by hand");
    if (!st && (!strcmp(o.device, "auto") || !strcmp(o.device, "null")))
        st = err_set(&ctx->err, TN_ERR_UNSUPPORTED,
                     "tn_tune: device \"%.64s\"; programs for \"cpu\", \"cuda\" and \"opencl\" are tuned", o.device);
    if (!st) st = ctx_device(ctx, o.device, o.threads, &dev, &ctx->err);
    if (st) return st;
    tn_tuning *t = mem_alloc(ctx->mem, sizeof *t);
    if (!t) return err_set(&ctx->err, TN_ERR_NOMEM, "out of memory: a report");
    tuner u = { .ctx = ctx, .t = t, .opts = tune, .start = now_seconds(), .e = &ctx->err };
    u.seconds = tune->seconds > 0 ? tune->seconds : 10;
    t->ctx = ctx;
    arena_init(&t->arena, ctx->mem, &t->gd);
    st = drive_compile_tuned(ctx, dev, g, &o, NULL, &u.p, u.e);
    u.start = now_seconds();
    if (!st) st = search(&u, g);
    drive_program_free(u.p);
    t->summary.kernels = t->n, t->summary.seconds = now_seconds() - u.start;
    if (st)
        tune_free(t);
    else
        *out = t;
    return st;
}
