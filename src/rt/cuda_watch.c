/* cuda_watch.c - when the device cuda did what: two events round each copy and each submit, the host's clock round what the
 * host does, and one event that both clocks have seen. */
#include "rt/cuda_device.h"

enum { TRIES = 5 };

int64_t cuda_watch_begin(cuda *d, const char *what, size_t bytes, cu_object stream) {
    cuda_watch *w = &d->watch;
    int64_t id = -1;
    if (!atomic_load_explicit(&w->on, memory_order_relaxed)) return id; /* no lock in the way of a run that nobody watches */
    pthread_mutex_lock(&w->lock);
    if (w->n < w->cap) {
        int i = w->n++;
        double now = now_seconds();
        w->at[i] = (device_work){ .what = what, .bytes = bytes, .begin = now, .end = now };
        if (stream) d->cu.cuEventRecord(w->events[2 * i], stream);
        id = w->first + i;
    }
    pthread_mutex_unlock(&w->lock);
    return id;
}

/* Another thread may have ended the watch since the begin, and a third begun one. */
void cuda_watch_end(cuda *d, int64_t id, cu_object stream) {
    cuda_watch *w = &d->watch;
    if (id < 0) return;
    pthread_mutex_lock(&w->lock);
    int64_t i = id - w->first;
    if (i >= 0 && i < w->n && atomic_load_explicit(&w->on, memory_order_relaxed)) {
        w->at[i].end = now_seconds();
        w->device[i] = stream != NULL;
        if (stream) d->cu.cuEventRecord(w->events[2 * i + 1], stream);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- with the context current ---- */

static bool claim(cuda_watch *w) {
    pthread_mutex_lock(&w->lock);
    bool mine = !w->taken;
    w->taken = true;
    pthread_mutex_unlock(&w->lock);
    return mine;
}

static void stop(cuda_watch *w) {
    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&w->on, false, memory_order_relaxed);
    w->cap = 0;
    pthread_mutex_unlock(&w->lock);
}

/* After stop: no thread touches the arrays. */
static void end(cuda *d) {
    cuda_watch *w = &d->watch;
    size_t n = (size_t)w->room;
    for (size_t i = 0; w->events && i < 2 * n + 1; i++)
        if (w->events[i]) d->cu.cuEventDestroy(w->events[i]);
    mem_free(d->mem, w->events, (2 * n + 1) * sizeof *w->events);
    mem_free(d->mem, w->device, n * sizeof *w->device);
    pthread_mutex_lock(&w->lock);
    w->events = NULL, w->device = NULL, w->at = NULL;
    w->first += w->n;
    w->n = w->room = 0;
    w->taken = false;
    pthread_mutex_unlock(&w->lock);
}

/* An event of a stream that is done with everything happens when it is asked for: half way between two looks at the clock. */
static int align(cuda *d) {
    cuda_watch *w = &d->watch;
    cu_object zero = w->events[2 * w->room];
    double best = 1e9;
    int rc = d->cu.cuStreamSynchronize(d->stream);
    for (int i = 0; i < TRIES && !rc; i++) {
        double before = now_seconds();
        rc = d->cu.cuEventRecord(zero, d->stream);
        if (!rc) rc = d->cu.cuEventSynchronize(zero);
        double took = now_seconds() - before;
        if (took < best || i == TRIES - 1) w->zero = before + took / 2; /* what counts is the last event */
        if (took < best) best = took;
    }
    return rc;
}

static int start(cuda *d, device_work *at, int cap) {
    cuda_watch *w = &d->watch;
    size_t n = (size_t)cap;
    int rc = CUDA_SUCCESS;
    w->room = cap;
    w->events = mem_alloc(d->mem, (2 * n + 1) * sizeof *w->events);
    w->device = mem_alloc(d->mem, n * sizeof *w->device);
    if (!w->events || !w->device) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < 2 * n + 1 && !rc; i++) rc = d->cu.cuEventCreate(&w->events[i], 0);
    if (!rc) rc = align(d);
    if (rc) return rc;
    pthread_mutex_lock(&w->lock);
    w->at = at, w->n = 0, w->cap = cap;
    atomic_store_explicit(&w->on, true, memory_order_relaxed);
    pthread_mutex_unlock(&w->lock);
    return CUDA_SUCCESS;
}

/* Times of the device's clock become the host's. */
static int finish(cuda *d) {
    cuda_watch *w = &d->watch;
    int rc = d->cu.cuStreamSynchronize(d->copies.stream);
    if (!rc) rc = d->cu.cuStreamSynchronize(d->stream);
    for (int i = 0; i < w->n && !rc; i++) {
        float begin, to;
        if (!w->device[i]) continue;
        rc = d->cu.cuEventElapsedTime(&begin, w->events[2 * w->room], w->events[2 * i]);
        if (!rc) rc = d->cu.cuEventElapsedTime(&to, w->events[2 * w->room], w->events[2 * i + 1]);
        if (!rc) w->at[i].begin = w->zero + (double)begin * 1e-3, w->at[i].end = w->zero + (double)to * 1e-3;
    }
    return rc;
}

tn_status cuda_watch_work(device *base, device_work *at, int cap, int *out_n, err *e) {
    cuda *d = (cuda *)base;
    int rc = CUDA_SUCCESS;
    tn_status st = enter(d, e);
    if (st) return st;
    if (at && !claim(&d->watch)) {
        leave(d);
        return err_set(e, TN_ERR_INVAL, "the device is watched already");
    }
    if (at) {
        rc = start(d, at, cap);
    } else {
        stop(&d->watch);
        if (d->watch.events) rc = finish(d);
    }
    if (out_n) *out_n = d->watch.n;
    if (!at || rc) stop(&d->watch), end(d);
    leave(d);
    return rc ? fail(d, e, "watching copies and submits", rc) : TN_OK;
}
