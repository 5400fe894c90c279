/* tuner.c - implementation of tuner.h: what the searches for processors and devices share. */
#include "run/tuner.h"
#include "run/measure.h"
#include "recipe/recipe.h"

double tuner_left(const tuner *u) { return u->start + u->seconds - now_seconds(); }

bool tuner_go_on(tuner *u, const char *what) {
    double done = (now_seconds() - u->start) / u->seconds;
    if (u->opts->progress && !u->stopped) u->stopped = u->opts->progress(u->opts->progress_ud, done < 1 ? done : 1, what) != 0;
    return !u->stopped && tuner_left(u) > 0;
}

/* ---- the report ---- */

static const char *add_way(tuner *u, tuned_kernel *k, const char *steps, const kernel *made, double seconds) {
    arena *a = &u->t->arena;
    for (int i = 0; i < k->variants.n; i++) {
        tuned_variant *w = &k->variants.at[i];
        if (strcmp(w->schedule, steps) != 0) continue;
        if (seconds < w->seconds) w->seconds = seconds;
        return w->schedule;
    }
    steps = arena_strdup(a, steps);
    VEC_PUSH(a, &k->variants,
             (tuned_variant){ steps, recipe_change_text(k->recipe, steps, a), recipe_form_text(made, a), seconds });
    return steps;
}

tn_status tuner_remember(tuner *u, tuned_kernel *k, const char *steps, const kernel *made, double seconds,
                         const char **out_kept) {
    tn_tuning *t = u->t;
    if (GUARD_TRY(&t->gd)) {
        const char *kept = add_way(u, k, steps, made, seconds);
        if (out_kept) *out_kept = kept;
        return TN_OK;
    }
    return err_set(u->e, t->gd.err.code, "%s", t->gd.err.text);
}

/* ---- sessions ---- */

tn_status tuner_bind(tuner *u, tn_session *s) {
    void **inputs = u->inputs;
    for (int i = 0; i < s->p->n_io; i++) {
        const pio *io = &s->p->io[i];
        if (io->is_output) continue;
        if (!inputs[i]) {
            inputs[i] = mem_alloc(u->ctx->mem, (size_t)io->bytes);
            if (!inputs[i]) return err_set(u->e, TN_ERR_NOMEM, "out of memory: %lld bytes of input", (long long)io->bytes);
            measure_fill(inputs[i], (tn_dtype)io->dtype, io->bytes / (int64_t)dtype_size((tn_dtype)io->dtype), (uint64_t)i);
        }
        s->bound[i] = inputs[i];
        if (!s->io_buf) s->p->dev->api->bind_host(s->now->list, SLOT_IO + i, inputs[i]);
    }
    return TN_OK;
}

/* A state, brought to the host. */
static tn_status state_of(const tuner *u, const tn_session *s, const pbuf *b, void *to) {
    return s->p->dev->api->download(s->p->dev, s->state, (size_t)b->offset, to, (size_t)b->bytes, u->e);
}

static tn_status same_states(const tuner *u, const tn_session *x, const tn_session *y, const pbuf *b, bool *out_same) {
    void *a = mem_alloc(u->ctx->mem, (size_t)b->bytes), *c = mem_alloc(u->ctx->mem, (size_t)b->bytes);
    tn_status st = a && c ? TN_OK : err_set(u->e, TN_ERR_NOMEM, "out of memory: %lld bytes of state", (long long)b->bytes);
    if (!st) st = state_of(u, x, b, a);
    if (!st) st = state_of(u, y, b, c);
    if (!st) *out_same &= measure_same(a, c, (tn_dtype)b->dtype, b->elems);
    mem_free(u->ctx->mem, a, (size_t)b->bytes);
    mem_free(u->ctx->mem, c, (size_t)b->bytes);
    return st;
}

tn_status tuner_same(const tuner *u, const tn_session *x, const tn_session *y, bool *out_same) {
    const tn_program *p = x->p;
    tn_status st = TN_OK;
    *out_same = true;
    for (int i = 0; i < p->n_io; i++) {
        int64_t n = p->io[i].bytes / (int64_t)dtype_size((tn_dtype)p->io[i].dtype);
        if (p->io[i].is_output) *out_same &= measure_same(x->bound[i], y->bound[i], (tn_dtype)p->io[i].dtype, n);
    }
    for (int i = 0; i < p->n_states && !st; i++) { /* no run changes those of SLOT_SHARED */
        const pbuf *s = &p->plan->bufs.at[p->states[i].buf];
        if (s->bytes && s->slot == SLOT_STATE) st = same_states(u, x, y, s, out_same);
    }
    return st;
}
