/* cuda_copy.c - bytes between host and device cuda, through a ring of pinned pieces: the host fills a piece, or empties it,
 * while others are under way.
 *
 * upload and download are in order with what was submitted before, on the device's stream. send has a stream of its own, which
 * waits for memory to be zeroed and for nothing else; what is submitted later waits for it. No call waits for an upload: a
 * piece is waited for when its turn comes again. Whoever holds the ring's lock waits for the device only, never for another
 * caller. */
#include "rt/cuda_device.h"

#include "rt/copying.h"
#include "rt/pool.h"

/* One thread copies some 10 GB/s, the bus of an H200 50: of 256 MB in pieces of 4 MB one thread brought up 10.4 GB/s, 2 17.3, 4
 * 33.0, 8 50.6; from pinned memory it was 55.5, and the driver's own way 9.4. */
enum { MAX_TEAM = 8, SHARE_BYTES = 256 << 10 /* of a thread, at least */ };

int cuda_copies_open(cuda *d) {
    cuda_copies *c = &d->copies;
    int rc = d->cu.cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING);
    if (!rc) rc = d->cu.cuEventCreate(&c->order, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < PIECES && !rc; i++) rc = d->cu.cuEventCreate(&c->moved[i], CU_EVENT_DISABLE_TIMING);
    if (!rc) rc = d->cu.cuMemHostAlloc(&c->pieces, (size_t)PIECES * PIECE_BYTES, 0);
    return rc;
}

void cuda_copies_close(cuda *d) {
    cuda_copies *c = &d->copies;
    if (c->stream) d->cu.cuStreamSynchronize(c->stream);
    if (c->pieces) d->cu.cuMemFreeHost(c->pieces);
    for (int i = 0; i < PIECES; i++)
        if (c->moved[i]) d->cu.cuEventDestroy(c->moved[i]);
    if (c->order) d->cu.cuEventDestroy(c->order);
    if (c->stream) d->cu.cuStreamDestroy(c->stream);
    team_close(c->team);
    if (c->own_pool) pool_close(c->pool);
}

int cuda_copies_wait(cuda *d) {
    pthread_mutex_lock(&d->copies.lock);
    int rc = d->cu.cuEventRecord(d->copies.order, d->stream);
    if (!rc) rc = d->cu.cuStreamWaitEvent(d->copies.stream, d->copies.order, 0);
    pthread_mutex_unlock(&d->copies.lock);
    return rc;
}

/* ---- with the ring's lock held and the context current ---- */

static void copy_shares(const void *ud, int64_t number, pool_turn *turn) {
    const cuda_shares *s = ud;
    (void)number;
    for (int i; (i = pool_next(turn, true)) >= 0;) {
        size_t at = s->each * (size_t)i;
        if (at < s->size) memcpy(s->to + at, s->from + at, s->size - at < s->each ? s->size - at : s->each);
    }
}

static tn_status open_team(cuda *d, err *e) {
    cuda_copies *c = &d->copies;
    int cpus = pool_cpus(), threads;
    tn_status st = TN_OK;
    if (!c->pool) {
        st = pool_open(d->mem, NULL, &c->pool, e);
        c->own_pool = st == TN_OK;
    }
    if (!st) st = pool_want(c->pool, cpus < MAX_TEAM ? cpus : MAX_TEAM, &threads, e);
    return st ? st : team_open(c->pool, threads, &c->team, e);
}

/* Without a team for want of memory it only takes longer. */
static void copy_bytes(cuda *d, void *to, const void *from, size_t size) {
    cuda_copies *c = &d->copies;
    bool large = size >= 2 * SHARE_BYTES;
    err e;
    if (large && (c->team || open_team(d, &e) == TN_OK)) {
        size_t n = (size_t)team_threads(c->team), each = (size / n + 64) / 64 * 64;
        c->shares = (cuda_shares){ to, from, size, each < SHARE_BYTES ? SHARE_BYTES : each };
        if (team_run(c->team, copy_shares, &c->shares, 0, &e) == TN_OK) return;
    }
    memcpy(to, from, size);
}

/* The next piece, once the device is done with it. */
static int take_piece(cuda *d, int *out_i, char **out) {
    cuda_copies *c = &d->copies;
    *out_i = (int)(c->next++ % PIECES);
    *out = (char *)c->pieces + (size_t)*out_i * PIECE_BYTES;
    return d->cu.cuEventSynchronize(c->moved[*out_i]); /* at once when nothing was recorded */
}

static size_t piece_of(size_t size, size_t at) { return size - at < PIECE_BYTES ? size - at : PIECE_BYTES; }

static int bring(cuda *d, cu_pointer to, const char *from, size_t size, cu_object stream) {
    int rc = CUDA_SUCCESS, i = 0;
    char *piece;
    for (size_t at = 0, n; at < size && !rc; at += n) {
        n = piece_of(size, at);
        if ((rc = take_piece(d, &i, &piece))) break;
        int64_t noted = cuda_watch_begin(d, "fill", n, NULL);
        copy_bytes(d, piece, from + at, n);
        cuda_watch_end(d, noted, NULL);
        noted = cuda_watch_begin(d, "upload", n, stream);
        rc = d->cu.cuMemcpyHtoDAsync(to + at, piece, n, stream);
        cuda_watch_end(d, noted, stream);
        if (!rc) rc = d->cu.cuEventRecord(d->copies.moved[i], stream);
    }
    if (!rc && stream != d->stream) rc = d->cu.cuStreamWaitEvent(d->stream, d->copies.moved[i], 0);
    return rc;
}

static int ask_for(cuda *d, cu_pointer from, size_t n, int *out_i, char **out) {
    int rc = take_piece(d, out_i, out);
    if (rc) return rc;
    int64_t noted = cuda_watch_begin(d, "download", n, d->stream);
    rc = d->cu.cuMemcpyDtoHAsync(*out, from, n, d->stream);
    cuda_watch_end(d, noted, d->stream);
    return rc ? rc : d->cu.cuEventRecord(d->copies.moved[*out_i], d->stream);
}

/* Pieces come in advance of the one that the host empties, as many as there are. */
static int fetch(cuda *d, char *to, cu_pointer from, size_t size) {
    int rc = CUDA_SUCCESS, i[PIECES];
    char *piece[PIECES];
    for (size_t at = 0, asked = 0; at < size && !rc; at += PIECE_BYTES) {
        for (; asked < size && asked < at + (size_t)PIECES * PIECE_BYTES && !rc; asked += PIECE_BYTES) {
            size_t k = asked / PIECE_BYTES % PIECES;
            rc = ask_for(d, from + asked, piece_of(size, asked), &i[k], &piece[k]);
        }
        size_t k = at / PIECE_BYTES % PIECES;
        if (!rc) rc = d->cu.cuEventSynchronize(d->copies.moved[i[k]]);
        if (!rc) copy_bytes(d, to + at, piece[k], piece_of(size, at));
    }
    return rc;
}

/* ---- entry points ---- */

static tn_status begin(cuda *d, const char *what, const buffer *b, size_t offset, const void *host, size_t size, err *e) {
    tn_status st = copying_check(what, b->size, offset, host, size, e);
    if (st || size == 0 || (st = enter(d, e))) return st;
    pthread_mutex_lock(&d->copies.lock);
    return TN_OK;
}
static tn_status end(cuda *d, const char *what, int rc, err *e) {
    pthread_mutex_unlock(&d->copies.lock);
    leave(d);
    return rc ? fail(d, e, what, rc) : TN_OK;
}

tn_status cuda_upload(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    cuda *d = (cuda *)base;
    tn_status st = begin(d, "upload", b, offset, src, size, e);
    return st || size == 0 ? st : end(d, "an upload", bring(d, b->at + offset, src, size, d->stream), e);
}

tn_status cuda_send(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    cuda *d = (cuda *)base;
    tn_status st = begin(d, "upload", b, offset, src, size, e);
    return st || size == 0 ? st : end(d, "an upload", bring(d, b->at + offset, src, size, d->copies.stream), e);
}

tn_status cuda_download(device *base, const buffer *b, size_t offset, void *dst, size_t size, err *e) {
    cuda *d = (cuda *)base;
    tn_status st = begin(d, "download", b, offset, dst, size, e);
    return st || size == 0 ? st : end(d, "a download", fetch(d, dst, b->at + offset, size), e);
}
