/* batcher.c - gathers the requests of many threads into batches of one program (tenon_serve.h).
 *
 * Requests lie on the stacks of the threads that wait for them, in a queue under one lock. A worker takes what fits into a run,
 * copies the examples behind each other, runs, and copies the results back; a request that is alone is run where it lies. A set
 * of weights is a session that nobody runs: workers share its states between two batches. */
#include "tenon/tenon_serve.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_SLOTS = 64, MOST_WORKERS = 256, DEFAULT_BATCH = 32, BUCKETS = 24 * 40 /* 24 an octave, from a nanosecond on */ };

typedef struct request {
    void *data[MOST_SLOTS]; /* NULL: an output that is dropped */
    int64_t n;              /* examples */
    double arrival;
    tn_status status;
    bool done;
    pthread_cond_t changed;
    struct request *next;
} request;

typedef struct slot {
    const char *name;
    bool output, batched;
    size_t row; /* bytes of an example */
} slot;

typedef struct worker {
    tn_batcher *b;
    tn_session *session;
    void *room[MOST_SLOTS]; /* of max_batch examples */
    int64_t version;        /* of the weights that it has */
    pthread_t thread;
} worker;

struct tn_batcher {
    tn_ctx *ctx;
    tn_program *p;
    tn_batcher_opts o;
    const char *dim;
    slot slots[MOST_SLOTS];
    int n_slots, n_started; /* threads */
    worker *workers;        /* [o.workers] */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    /* under the lock: */
    request *first, **last;
    int64_t waiting; /* examples in the queue */
    bool quit;
    tn_session *weights; /* published, or NULL */
    int64_t version;
    tn_batcher_stats stats; /* but for percentiles */
    int64_t latency[BUCKETS];
    char error[512];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static tn_status fail(tn_batcher *b, tn_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static tn_status fail(tn_batcher *b, tn_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&b->lock);
    vsnprintf(b->error, sizeof b->error, fmt, ap);
    pthread_mutex_unlock(&b->lock);
    va_end(ap);
    return code;
}

/* ---- statistics ---- */

static int bucket_of(double seconds) {
    double x = 24 * log2(seconds * 1e9);
    return !(x > 0) ? 0 : x >= BUCKETS ? BUCKETS - 1 : (int)x;
}

/* The middle of the bucket with the request that so many of all are not slower than. */
static double percentile(const int64_t *latency, int64_t all, double part) {
    int64_t before = 0;
    for (int i = 0; i < BUCKETS; i++)
        if ((before += latency[i]) > 0 && (double)before >= part * (double)all) return 1e-9 * exp2((i + 0.5) / 24);
    return 0;
}

void tn_batcher_get_stats(tn_batcher *b, tn_batcher_stats *out, int reset) {
    pthread_mutex_lock(&b->lock);
    tn_batcher_stats s = b->stats;
    s.p50 = fmin(percentile(b->latency, s.requests, 0.5), s.worst),
    s.p90 = fmin(percentile(b->latency, s.requests, 0.9), s.worst);
    s.p99 = fmin(percentile(b->latency, s.requests, 0.99), s.worst);
    if (reset) memset(&b->stats, 0, sizeof b->stats), memset(b->latency, 0, sizeof b->latency);
    pthread_mutex_unlock(&b->lock);
    *out = s;
}

void tn_batcher_error(tn_batcher *b, char *out, size_t n) {
    pthread_mutex_lock(&b->lock);
    if (n) snprintf(out, n, "%s", b->error);
    pthread_mutex_unlock(&b->lock);
}

/* ---- workers ---- */

/* Waits, under the lock, until the requests there are are to be run. False: there are none, and none will come. */
static bool wait_for_batch(tn_batcher *b) {
    for (;;) {
        while (!b->first && !b->quit) pthread_cond_wait(&b->arrived, &b->lock);
        if (!b->first) return false;
        double until = b->first->arrival + b->o.max_delay;
        if (b->waiting >= b->o.max_batch || b->quit || now() >= until) return true;
        struct timespec t = { (time_t)until, (long)((until - floor(until)) * 1e9) };
        pthread_cond_timedwait(&b->arrived, &b->lock, &t);
    }
}

/* The first requests that fit into a run, under the lock. */
static request *take_batch(tn_batcher *b, int64_t *out_n) {
    request *batch = b->first, **end = &batch;
    int64_t n = 0;
    while (*end && n + (*end)->n <= b->o.max_batch) n += (*end)->n, end = &(*end)->next;
    b->first = *end, *end = NULL;
    if (!b->first) b->last = &b->first;
    b->waiting -= n;
    if (b->first) pthread_cond_signal(&b->arrived); /* for another worker */
    *out_n = n;
    return batch;
}

/* Examples of all requests to the worker's room, or from there. */
static void copy_examples(worker *w, const request *batch, bool outputs) {
    for (int i = 0; i < w->b->n_slots; i++) {
        const slot *s = &w->b->slots[i];
        char *at = w->room[i];
        if (!s->batched || s->output != outputs) continue;
        for (const request *r = batch; r; at += s->row * (size_t)r->n, r = r->next) {
            if (outputs && r->data[i]) memcpy(r->data[i], at, s->row * (size_t)r->n);
            if (!outputs) memcpy(at, r->data[i], s->row * (size_t)r->n);
        }
    }
}

static tn_status run_batch(worker *w, const request *batch, int64_t n) {
    tn_batcher *b = w->b;
    bool alone = !batch->next;
    tn_status code = tn_bind_dim(w->session, b->dim, n);
    if (!alone) copy_examples(w, batch, false);
    for (int i = 0; i < b->n_slots && !code; i++)
        if (b->slots[i].batched) code = tn_session_bind(w->session, i, alone ? batch->data[i] : w->room[i]);
    if (!code) code = tn_session_run(w->session);
    if (code) return fail(b, code, "%s", tn_session_error(w->session));
    if (!alone) copy_examples(w, batch, true);
    return TN_OK;
}

static void finish_batch(tn_batcher *b, request *batch, tn_status code) {
    double t = now();
    b->stats.batches++;
    for (request *r = batch, *next; r; r = next) {
        double spent = t - r->arrival;
        next = r->next; /* r is its thread's again once that is told */
        b->stats.requests++, b->stats.examples += r->n, b->stats.failed += code != TN_OK;
        b->latency[bucket_of(spent)]++;
        if (spent > b->stats.worst) b->stats.worst = spent;
        r->status = code, r->done = true;
        pthread_cond_signal(&r->changed);
    }
}

static void *work(void *ud) {
    worker *w = ud;
    tn_batcher *b = w->b;
    pthread_mutex_lock(&b->lock);
    while (wait_for_batch(b)) {
        int64_t n;
        tn_status code = TN_OK;
        request *batch = take_batch(b, &n);
        if (w->version != b->version) code = tn_session_share_states(w->session, b->weights), w->version = b->version;
        pthread_mutex_unlock(&b->lock);
        if (!code) code = run_batch(w, batch, n);
        pthread_mutex_lock(&b->lock);
        finish_batch(b, batch, code);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- requests ---- */

static int find_slot(const tn_batcher *b, const char *name) {
    for (int i = 0; i < b->n_slots; i++)
        if (name && !strcmp(b->slots[i].name, name)) return i;
    return -1;
}

static tn_status place_request(tn_batcher *b, request *r, const tn_binding *bindings, int n) {
    for (int k = 0; k < n; k++) {
        int i = find_slot(b, bindings[k].name);
        if (i < 0 || !b->slots[i].batched)
            return fail(b, TN_ERR_INVAL, "tn_batcher_run: \"%.100s\" is no input or output of examples",
                        bindings[k].name ? bindings[k].name : "(null)");
        if (r->data[i] || !bindings[k].data)
            return fail(b, TN_ERR_INVAL, "tn_batcher_run: \"%.100s\" is bound twice, or to NULL", bindings[k].name);
        r->data[i] = bindings[k].data;
    }
    for (int i = 0; i < b->n_slots; i++)
        if (b->slots[i].batched && !b->slots[i].output && !r->data[i])
            return fail(b, TN_ERR_INVAL, "tn_batcher_run: input \"%.100s\" is not bound", b->slots[i].name);
    return TN_OK;
}

tn_status tn_batcher_run(tn_batcher *b, const tn_binding *bindings, int n, int64_t n_examples) {
    request r = { .n = n_examples, .arrival = now() };
    if (n_examples < 1 || n_examples > b->o.max_batch || n < 0 || (n && !bindings))
        return fail(b, TN_ERR_INVAL, "tn_batcher_run: %lld examples and %d bindings; expected 1 to %lld examples",
                    (long long)n_examples, n, (long long)b->o.max_batch);
    tn_status code = place_request(b, &r, bindings, n);
    if (code) return code;
    if (pthread_cond_init(&r.changed, NULL)) return fail(b, TN_ERR_NOMEM, "tn_batcher_run: no condition variable");
    pthread_mutex_lock(&b->lock);
    *b->last = &r, b->last = &r.next;
    b->waiting += r.n;
    /* The first one wakes a worker, which then waits for others; one that fills the batch ends that. */
    if (b->first == &r || b->waiting >= b->o.max_batch) pthread_cond_broadcast(&b->arrived);
    while (!r.done) pthread_cond_wait(&r.changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    pthread_cond_destroy(&r.changed);
    return r.status;
}

tn_status tn_batcher_publish(tn_batcher *b, const tn_session *from) {
    tn_session *next;
    int n = 0;
    if (!from) return fail(b, TN_ERR_INVAL, "tn_batcher_publish: the session is NULL");
    tn_status code = tn_session_new(b->p, &next);
    if (code) return fail(b, code, "tn_batcher_publish: no session for new weights");
    code = tn_session_copy_state(next, from, &n);
    if (code || n == 0) {
        code = code ? fail(b, code, "%s", tn_session_error(next))
                    : fail(b, TN_ERR_INVAL,
                           "tn_batcher_publish: no state of the session has the name, dtype and shape of one here");
        tn_session_free(next);
        return code;
    }
    pthread_mutex_lock(&b->lock);
    tn_session *old = b->weights;
    b->weights = next, b->version++;
    pthread_mutex_unlock(&b->lock);
    tn_session_free(old); /* workers that still read its states keep them */
    return TN_OK;
}

/* ---- making one ---- */

static tn_status refuse(tn_batcher *b, tn_status code) { return tn_ctx_fail(b->ctx, code, b->error); }

static tn_status read_dim(tn_batcher *b) {
    int64_t lo, hi, of;
    if (tn_program_n_dims(b->p) != 1)
        return fail(b, TN_ERR_INVAL, "tn_batcher_new: the program has %d dims; expected one, which counts examples",
                    tn_program_n_dims(b->p));
    tn_status code = tn_program_dim(b->p, 0, &b->dim, &lo, &hi, &of);
    if (code) return fail(b, code, "tn_batcher_new: the dim cannot be read");
    if (lo > 1 || of != 1)
        return fail(b, TN_ERR_INVAL,
                    "tn_batcher_new: dim \"%.100s\" is %lld to %lld in steps of %lld; expected any number from 1 on", b->dim,
                    (long long)lo, (long long)hi, (long long)of);
    if (!b->o.max_batch) b->o.max_batch = hi < DEFAULT_BATCH ? hi : DEFAULT_BATCH;
    if (b->o.max_batch < 1 || b->o.max_batch > hi)
        return fail(b, TN_ERR_INVAL, "tn_batcher_new: max_batch is %lld; dim \"%.100s\" is 1 to %lld",
                    (long long)b->o.max_batch, b->dim, (long long)hi);
    return TN_OK;
}

/* How slot i depends on the dim: its shapes for the least and the largest value. */
static tn_status read_slot(tn_batcher *b, tn_session *s, int i) {
    slot *x = &b->slots[i];
    tn_shape one, most;
    tn_dtype dtype;
    char kind;
    int64_t n = b->o.max_batch > 1 ? b->o.max_batch : 1;
    tn_status code = tn_program_slot(b->p, i, &kind, &x->name, &dtype, NULL);
    if (!code) code = tn_bind_dim(s, b->dim, 1);
    if (!code) code = tn_session_shape(s, i, &one);
    if (!code) code = tn_bind_dim(s, b->dim, n);
    if (!code) code = tn_session_shape(s, i, &most);
    if (code) return fail(b, code, "%s", tn_session_error(s));
    x->output = kind == 'o', x->row = tn_dtype_size(dtype);
    bool same = true;
    for (int d = 0; d < one.rank; d++) {
        if (d) same &= one.dim[d] == most.dim[d], x->row *= (size_t)one.dim[d];
    }
    x->batched = one.rank > 0 && one.dim[0] == 1 && most.dim[0] == n;
    bool fixed = same && (one.rank == 0 || one.dim[0] == most.dim[0]);
    if (n == 1 ? !same : !(x->batched && same) && !fixed)
        return fail(b, TN_ERR_SHAPE, "tn_batcher_new: \"%.100s\" depends on dim \"%.100s\" otherwise than by axis 0", x->name,
                    b->dim);
    return TN_OK;
}

static tn_status read_slots(tn_batcher *b) {
    tn_session *s;
    b->n_slots = tn_program_n_slots(b->p);
    if (b->n_slots > MOST_SLOTS)
        return fail(b, TN_ERR_INVAL, "tn_batcher_new: the program has %d inputs and outputs; at most %d", b->n_slots,
                    MOST_SLOTS);
    tn_status code = tn_session_new(b->p, &s);
    if (code) return fail(b, code, "tn_batcher_new: %.400s", tn_ctx_error(b->ctx));
    for (int i = 0; i < b->n_slots && !code; i++) code = read_slot(b, s, i);
    tn_session_free(s);
    return code;
}

static tn_status bind_fixed(tn_batcher *b, worker *w) {
    bool bound[MOST_SLOTS] = { false };
    for (int k = 0; k < b->o.n_fixed; k++) {
        int i = find_slot(b, b->o.fixed[k].name);
        if (i < 0 || b->slots[i].batched || b->slots[i].output)
            return fail(b, TN_ERR_INVAL, "tn_batcher_new: \"%.100s\" is no input without the dim \"%.100s\"",
                        b->o.fixed[k].name ? b->o.fixed[k].name : "(null)", b->dim);
        tn_status code = tn_session_bind(w->session, i, b->o.fixed[k].data);
        if (code) return fail(b, code, "%s", tn_session_error(w->session));
        bound[i] = true;
    }
    for (int i = 0; i < b->n_slots; i++)
        if (!bound[i] && !b->slots[i].batched && !b->slots[i].output)
            return fail(b, TN_ERR_INVAL, "tn_batcher_new: input \"%.100s\" has no examples and is not among the fixed ones",
                        b->slots[i].name);
    return TN_OK;
}

static tn_status start_worker(tn_batcher *b, worker *w) {
    w->b = b;
    tn_status code = tn_session_new(b->p, &w->session);
    if (code) return fail(b, code, "tn_batcher_new: %.400s", tn_ctx_error(b->ctx));
    for (int i = 0; i < b->n_slots; i++) {
        size_t bytes;
        if (!b->slots[i].batched) continue;
        if (__builtin_mul_overflow(b->slots[i].row, (size_t)b->o.max_batch, &bytes) ||
            !(w->room[i] = tn_ctx_realloc(b->ctx, NULL, 0, bytes ? bytes : 1)))
            return fail(b, TN_ERR_NOMEM, "tn_batcher_new: out of memory for a batch of \"%.100s\"", b->slots[i].name);
    }
    code = bind_fixed(b, w);
    if (code) return code;
    if (pthread_create(&w->thread, NULL, work, w)) return fail(b, TN_ERR_NOMEM, "tn_batcher_new: cannot start a thread");
    b->n_started++;
    return TN_OK;
}

static bool make_locks(tn_batcher *b) { /* waits go by the clock that nobody sets */
    pthread_condattr_t attr;
    if (pthread_mutex_init(&b->lock, NULL)) return false;
    bool ok = !pthread_condattr_init(&attr);
    if (ok) {
        ok = !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) && !pthread_cond_init(&b->arrived, &attr);
        pthread_condattr_destroy(&attr);
    }
    if (!ok) pthread_mutex_destroy(&b->lock);
    return ok;
}

static size_t room_bytes(const tn_batcher *b, int i) {
    size_t bytes = b->slots[i].row * (size_t)b->o.max_batch;
    return bytes ? bytes : 1;
}

void tn_batcher_free(tn_batcher *b) {
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->quit = true;
    pthread_cond_broadcast(&b->arrived);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_started; i++) pthread_join(b->workers[i].thread, NULL);
    for (int k = 0; b->workers && k < b->o.workers; k++) {
        worker *w = &b->workers[k];
        tn_session_free(w->session);
        for (int i = 0; i < b->n_slots; i++)
            if (w->room[i]) tn_ctx_realloc(b->ctx, w->room[i], room_bytes(b, i), 0);
    }
    tn_session_free(b->weights);
    if (b->workers) tn_ctx_realloc(b->ctx, b->workers, sizeof(worker) * (size_t)b->o.workers, 0);
    pthread_cond_destroy(&b->arrived);
    pthread_mutex_destroy(&b->lock);
    tn_ctx_realloc(b->ctx, b, sizeof *b, 0);
}

static tn_status check_opts(tn_batcher *b) {
    if (!b->o.workers) b->o.workers = 1;
    if (!(b->o.max_delay >= 0 && b->o.max_delay <= 3600) || b->o.workers < 0 || b->o.workers > MOST_WORKERS ||
        b->o.n_fixed < 0 || (b->o.n_fixed && !b->o.fixed))
        return fail(b, TN_ERR_INVAL,
                    "tn_batcher_new: max_delay %g, %d workers, %d fixed inputs; expected 0 to 3600 seconds, 1 to %d workers",
                    b->o.max_delay, b->o.workers, b->o.n_fixed, MOST_WORKERS);
    return TN_OK;
}

tn_status tn_batcher_new(tn_ctx *ctx, tn_program *p, const tn_batcher_opts *opts, tn_batcher **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (!p || !out) return tn_ctx_fail(ctx, TN_ERR_INVAL, "tn_batcher_new: the program, or where the batcher goes, is NULL");
    tn_batcher *b = tn_ctx_realloc(ctx, NULL, 0, sizeof *b);
    if (!b) return tn_ctx_fail(ctx, TN_ERR_NOMEM, "tn_batcher_new: out of memory");
    memset(b, 0, sizeof *b);
    b->ctx = ctx, b->p = p, b->last = &b->first;
    if (opts) b->o = *opts;
    if (!make_locks(b)) {
        tn_ctx_realloc(ctx, b, sizeof *b, 0);
        return tn_ctx_fail(ctx, TN_ERR_NOMEM, "tn_batcher_new: no locks");
    }
    tn_status code = check_opts(b);
    if (!code) code = read_dim(b);
    if (!code) code = read_slots(b);
    if (!code && !(b->workers = tn_ctx_realloc(ctx, NULL, 0, sizeof(worker) * (size_t)b->o.workers)))
        code = fail(b, TN_ERR_NOMEM, "tn_batcher_new: out of memory");
    if (!code) memset(b->workers, 0, sizeof(worker) * (size_t)b->o.workers);
    for (int i = 0; i < b->o.workers && !code; i++) code = start_worker(b, &b->workers[i]);
    if (code) {
        refuse(b, code);
        tn_batcher_free(b);
        return code;
    }
    *out = b;
    return TN_OK;
}
