/* loader.c - rings of batches for tn_run_n, made by a thread while the ring before is used.
 *
 * In: a data set, options. Out: bindings into one of two rings. The thread touches neither the context nor the ring that was
 * given last; what goes wrong there is kept with the ring and reported by the call that would give it. */
#include "data.h"

#include <pthread.h>
#include <stdio.h>

enum { RINGS = 2, DEFAULT_RING = 16, ALIGN = 64 };

typedef struct source {  /* of one input */
    const char *base;    /* NULL: the callback writes it */
    int array;           /* in the data set */
    size_t row, example; /* bytes of a row of axis 0, of an example */
    int64_t shift;
} source;

typedef struct ring {
    tn_binding *bindings; /* [n_inputs] */
    bool filled;
    int refused;      /* what the callback returned, or 0 */
    int64_t at_fault; /* for which example */
} ring;

struct tn_loader {
    tn_ctx *ctx;
    tn_data *data;
    tn_loader_opts o;
    source *sources; /* [o.n_inputs] */
    void **places;   /* [data.n] where the callback writes an example */
    int64_t n_examples, n_batches;
    ring rings[RINGS];
    int64_t given_at; /* position: batches given so far */
    char *block;      /* all memory of the loader but itself */
    size_t block_bytes;
    /* shared with the thread, under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, quit, paused, busy;
    int fill_next, give_next, given; /* rings; given -1: none */
    int64_t fill_at;                 /* position of what is filled next */
};

/* ---- filling ---- */

static int64_t example_of(const tn_loader *l, int64_t batch, int64_t k) {
    int64_t epoch = batch / l->n_batches, i = batch % l->n_batches * l->o.batch + k;
    return l->o.first + (l->o.shuffle ? data_shuffled(i, l->n_examples, l->o.seed, (uint64_t)epoch) : i);
}

/* Example e of every input, the k-th of the ring. */
static bool put_example(tn_loader *l, ring *r, int64_t e, int64_t k) {
    int64_t row = l->o.window ? e * l->o.stride : e;
    for (int i = 0; i < l->o.n_inputs; i++) {
        const source *s = &l->sources[i];
        char *to = (char *)r->bindings[i].data + (size_t)k * s->example;
        if (s->base)
            memcpy(to, s->base + (size_t)(row + s->shift) * s->row, s->example);
        else
            l->places[s->array] = to;
    }
    int said = l->data->fill ? l->data->fill(l->data->ud, e, l->places) : 0;
    if (said) r->refused = said, r->at_fault = e;
    return !said;
}

static void fill(tn_loader *l, ring *r, int64_t at) {
    r->refused = 0;
    for (int64_t b = 0; b < l->o.ring; b++)
        for (int64_t k = 0; k < l->o.batch; k++)
            if (!put_example(l, r, example_of(l, at + b, k), b * l->o.batch + k)) return;
}

static void *work(void *ud) {
    tn_loader *l = ud;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->quit && (l->paused || l->rings[l->fill_next].filled)) pthread_cond_wait(&l->changed, &l->lock);
        if (l->quit) break;
        ring *r = &l->rings[l->fill_next];
        int64_t at = l->fill_at;
        l->busy = true;
        pthread_mutex_unlock(&l->lock);
        fill(l, r, at);
        pthread_mutex_lock(&l->lock);
        l->busy = false;
        if (!l->paused) { /* else somebody seeks, and what was made is of no use */
            r->filled = true;
            l->fill_at += l->o.ring;
            l->fill_next = (l->fill_next + 1) % RINGS;
        }
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- making one ---- */

static int find_array(const tn_data *d, const char *name) {
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->arrays[i].name, name)) return i;
    return -1;
}

/* Rows of axis 0 that input i may read, as examples. */
static tn_status add_source(tn_loader *l, int i, const tn_loader_input *in, int64_t *out_examples) {
    const tn_data *d = l->data;
    if (!in->input || !in->array) return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_new: input %d has no name or no array", i);
    int at = find_array(d, in->array);
    if (at < 0) return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_new: the data set has no array \"%.100s\"", in->array);
    for (int j = 0; j < i; j++)
        if (d->fill && l->sources[j].array == at)
            return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_new: two inputs are array \"%.100s\" of a callback", in->array);
    const tn_io_tensor *x = &d->arrays[at];
    source s = { .base = x->data, .array = at, .shift = in->shift };
    int64_t rows = x->shape.dim[0], window = l->o.window ? l->o.window : 1;
    if (in->shift < 0 || (in->shift && !l->o.window))
        return data_fail(l->ctx, TN_ERR_INVAL,
                         "tn_loader_new: input \"%.100s\" has shift %lld; windows alone have one, from 0 on", in->input,
                         (long long)in->shift);
    if (!data_row_bytes(x, &s.row) || __builtin_mul_overflow(s.row, (size_t)window, &s.example))
        return data_fail(l->ctx, TN_ERR_SHAPE, "tn_loader_new: a window of array \"%.100s\" has too many bytes", in->array);
    l->sources[i] = s;
    if (!l->o.window)
        *out_examples = rows;
    else
        *out_examples = in->shift > rows - window ? 0 : (rows - window - in->shift) / l->o.stride + 1;
    return TN_OK;
}

static tn_status add_sources(tn_loader *l, const tn_loader_input *inputs) {
    int64_t least = INT64_MAX, first = -1;
    for (int i = 0; i < l->o.n_inputs; i++) {
        const char *own = inputs ? NULL : l->data->arrays[i].name;
        int64_t n = 0;
        tn_status st = add_source(l, i, inputs ? &inputs[i] : &(tn_loader_input){ own, own, 0 }, &n);
        if (st) return st;
        if (!l->o.window && first >= 0 && n != first)
            return data_fail(l->ctx, TN_ERR_SHAPE, "tn_loader_new: array \"%.100s\" has %lld examples, the ones before %lld",
                             l->data->arrays[l->sources[i].array].name, (long long)n, (long long)first);
        first = n;
        if (n < least) least = n;
    }
    int64_t rest = least - l->o.first;
    if (l->o.count > rest || rest < 0)
        return data_fail(l->ctx, TN_ERR_SHAPE, "tn_loader_new: examples from %lld on, %lld of them; the data set has %lld",
                         (long long)l->o.first, (long long)l->o.count, (long long)least);
    l->n_examples = l->o.count ? l->o.count : rest;
    l->n_batches = l->n_examples / l->o.batch;
    if (!l->n_batches)
        return data_fail(l->ctx, TN_ERR_SHAPE, "tn_loader_new: a batch has %lld examples, the data set %lld",
                         (long long)l->o.batch, (long long)l->n_examples);
    return TN_OK;
}

static size_t aligned(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Where bindings, names and data of both rings lie; with block NULL only how long all is. False: it overflows. */
static bool lay_out(tn_loader *l, const tn_loader_input *inputs, char *block, size_t *out) {
    size_t at = 0;
    for (int r = 0; r < RINGS; r++) {
        if (block) l->rings[r].bindings = (tn_binding *)(void *)(block + at);
        at += aligned((size_t)l->o.n_inputs * sizeof(tn_binding));
        for (int i = 0; i < l->o.n_inputs; i++) {
            const char *name = inputs ? inputs[i].input : l->data->arrays[i].name;
            size_t bytes;
            if (block) {
                memcpy(block + at, name, strlen(name) + 1);
                l->rings[r].bindings[i].name = block + at;
            }
            at += aligned(strlen(name) + 1);
            if (block) l->rings[r].bindings[i].data = block + at;
            if (__builtin_mul_overflow(l->sources[i].example, (size_t)l->o.batch, &bytes) ||
                __builtin_mul_overflow(bytes, (size_t)l->o.ring, &bytes) || bytes > SIZE_MAX - ALIGN ||
                __builtin_add_overflow(at, aligned(bytes), &at))
                return false;
        }
    }
    *out = at;
    return true;
}

static tn_status take_memory(tn_loader *l, const tn_loader_input *inputs) {
    size_t n;
    if (!lay_out(l, inputs, NULL, &n) || n > SIZE_MAX - ALIGN)
        return data_fail(l->ctx, TN_ERR_INVAL,
                         "tn_loader_new: a ring of %lld batches of %lld examples does not fit into memory",
                         (long long)l->o.ring, (long long)l->o.batch);
    l->block_bytes = n + ALIGN;
    if (!(l->block = tn_ctx_realloc(l->ctx, NULL, 0, l->block_bytes)))
        return data_fail(l->ctx, TN_ERR_NOMEM, "out of memory: %zu bytes for two rings of batches", l->block_bytes);
    (void)lay_out(l, inputs, l->block + (ALIGN - (uintptr_t)l->block % ALIGN) % ALIGN, &n);
    return TN_OK;
}

static tn_status start(tn_loader *l) {
    if (l->o.no_thread) return TN_OK;
    if (pthread_create(&l->thread, NULL, work, l))
        return data_fail(l->ctx, TN_ERR_IO, "tn_loader_new: no thread could be started");
    l->has_thread = true;
    return TN_OK;
}

void tn_loader_free(tn_loader *l) {
    if (!l) return;
    if (l->has_thread) {
        pthread_mutex_lock(&l->lock);
        l->quit = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    tn_ctx *ctx = l->ctx;
    if (l->block) (void)tn_ctx_realloc(ctx, l->block, l->block_bytes, 0);
    if (l->sources) (void)tn_ctx_realloc(ctx, l->sources, (size_t)(l->o.n_inputs + 1) * sizeof *l->sources, 0);
    if (l->places) (void)tn_ctx_realloc(ctx, l->places, (size_t)(l->data->n + 1) * sizeof *l->places, 0);
    (void)tn_ctx_realloc(ctx, l, sizeof *l, 0);
}

static tn_status check(tn_ctx *ctx, const tn_data *d, const tn_loader_opts *o) {
    int n = o->inputs ? o->n_inputs : d->n;
    if (o->batch < 1 || o->ring < 0 || o->window < 0 || o->stride < 0 || o->first < 0 || o->count < 0 || n < 1)
        return data_fail(ctx, TN_ERR_INVAL,
                         "tn_loader_new: batch %lld, ring %lld, window %lld, stride %lld, first %lld, count %lld, %d inputs: "
                         "batch and inputs are at least 1, the others at least 0",
                         (long long)o->batch, (long long)o->ring, (long long)o->window, (long long)o->stride,
                         (long long)o->first, (long long)o->count, n);
    if (o->window && d->fill) return data_fail(ctx, TN_ERR_INVAL, "tn_loader_new: the examples of a callback have no windows");
    return TN_OK;
}

tn_status tn_loader_new(tn_ctx *ctx, tn_data *d, const tn_loader_opts *opts, tn_loader **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!d || !opts || !out) return data_fail(ctx, TN_ERR_INVAL, "tn_loader_new: data, opts or out is NULL");
    tn_status st = check(ctx, d, opts);
    if (st) return st;
    tn_loader *l = tn_ctx_realloc(ctx, NULL, 0, sizeof *l);
    if (!l) return data_fail(ctx, TN_ERR_NOMEM, "out of memory: a loader");
    *l = (tn_loader){ .ctx = ctx, .data = d, .o = *opts, .given = -1 };
    l->o.inputs = NULL; /* the caller's; what is needed of them is copied */
    if (!opts->inputs) l->o.n_inputs = d->n;
    if (!l->o.ring) l->o.ring = DEFAULT_RING;
    if (!l->o.stride) l->o.stride = l->o.window;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->sources = tn_ctx_realloc(ctx, NULL, 0, (size_t)(l->o.n_inputs + 1) * sizeof *l->sources);
    l->places = tn_ctx_realloc(ctx, NULL, 0, (size_t)(d->n + 1) * sizeof *l->places);
    if (!l->sources || !l->places)
        st = data_fail(ctx, TN_ERR_NOMEM, "out of memory: a loader");
    else
        memset(l->places, 0, (size_t)(d->n + 1) * sizeof *l->places);
    if (!st) st = add_sources(l, opts->inputs);
    if (!st) st = take_memory(l, opts->inputs);
    if (!st) st = start(l);
    if (st)
        tn_loader_free(l);
    else
        *out = l;
    return st;
}

/* ---- using it ---- */

/* The ring that is given next; with a thread, once it has filled it. */
static ring *await(tn_loader *l) {
    ring *r = &l->rings[l->give_next];
    if (!l->has_thread) {
        fill(l, r, l->given_at);
        return r;
    }
    pthread_mutex_lock(&l->lock);
    if (l->given >= 0) {
        l->rings[l->given].filled = false;
        l->given = -1;
        pthread_cond_broadcast(&l->changed);
    }
    while (!r->filled) pthread_cond_wait(&l->changed, &l->lock);
    l->given = l->give_next;
    pthread_mutex_unlock(&l->lock);
    return r;
}

tn_status tn_loader_next(tn_loader *l, const tn_binding **out_ring, int *out_n, int64_t *out_batches) {
    if (!l) return TN_ERR_INVAL;
    if (!out_ring || !out_n || !out_batches) return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_next: an out pointer is NULL");
    const ring *r = await(l);
    l->give_next = (l->give_next + 1) % RINGS;
    l->given_at += l->o.ring;
    if (r->refused)
        return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_next: the data set's callback returned %d for example %lld",
                         r->refused, (long long)r->at_fault);
    *out_ring = r->bindings, *out_n = l->o.n_inputs, *out_batches = l->o.ring;
    return TN_OK;
}

int64_t tn_loader_batches(const tn_loader *l) { return l ? l->n_batches : 0; }
int64_t tn_loader_position(const tn_loader *l) { return l ? l->given_at : 0; }

tn_status tn_loader_seek(tn_loader *l, int64_t position) {
    if (!l) return TN_ERR_INVAL;
    if (position < 0) return data_fail(l->ctx, TN_ERR_INVAL, "tn_loader_seek: position %lld", (long long)position);
    pthread_mutex_lock(&l->lock);
    l->paused = true;
    while (l->busy) pthread_cond_wait(&l->changed, &l->lock);
    for (int r = 0; r < RINGS; r++) l->rings[r].filled = false;
    l->fill_next = l->give_next = 0, l->given = -1;
    l->fill_at = l->given_at = position;
    l->paused = false;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return TN_OK;
}
