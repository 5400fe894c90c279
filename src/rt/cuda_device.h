/* cuda_device.h - what the files of the device cuda share: its structs, errors, the copies of cuda_copy.c and the notes of
 * cuda_watch.c. */
#ifndef TN_RT_CUDA_DEVICE_H
#define TN_RT_CUDA_DEVICE_H

#include "rt/cuda_api.h"
#include "rt/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PENDING = 32 /* submits that may be under way */, PIECES = 4 /* of copies under way */, PIECE_BYTES = 4 << 20 };

/* A copy that several threads share out. */
typedef struct cuda_shares {
    char *to;
    const char *from;
    size_t size, each;
} cuda_shares;

/* Pinned memory that copies go through, piece by piece: the host fills one piece while others are under way. */
typedef struct cuda_copies {
    pthread_mutex_t lock;    /* of what follows; taken before the device's */
    cu_object stream;        /* of copies that may run beside kernels */
    cu_object order;         /* an event between the streams */
    void *pieces;            /* [PIECES][PIECE_BYTES] */
    cu_object moved[PIECES]; /* an event: the piece may be used again */
    uint64_t next;           /* piece next % PIECES is the one that was used longest ago */
    struct pool *pool;       /* the context's, or, when there is none, its own */
    bool own_pool;
    struct team *team; /* threads that fill and empty pieces; NULL: not needed so far */
    cuda_shares shares;
} cuda_copies;

/* What is written down for device_api.watch. */
typedef struct cuda_watch {
    atomic_bool on;       /* the same as cap > 0, to be looked at without the lock */
    pthread_mutex_t lock; /* of what follows, while it is on */
    bool taken;           /* somebody watches, or is about to */
    device_work *at;      /* the caller's */
    int n, cap, room;     /* cap: 0 = nothing is written down */
    int64_t first;        /* number of at[0] among all pieces of work ever written down */
    cu_object *events;    /* [2 room + 1] begin and end of each; the last: at `zero` of the host's clock */
    bool *device;         /* [room] it has events */
    double zero;
} cuda_watch;

typedef struct cuda {
    device base;
    cuda_api cu;
    mem mem;
    void *library;
    struct cache *cache; /* may be NULL */
    int device, arch;
    bool retained, overlaps; /* kernels that wait by themselves (device_launch.waits) may begin early */
    cu_object context, stream;
    device_caps caps;
    char variant[256];
    cuda_copies copies;
    cuda_watch watch;
    pthread_mutex_t lock; /* of what follows */
    struct nvrtc *nvrtc;  /* opened when the first program is compiled */
    int loops;            /* 0: not tried yet, 1: as follows, -1: the driver has none */
    cu_object loop_module, loop_control, loop_move[3];
    uint64_t ticket, done;
    cu_object order;          /* an event between the stream and one of the caller's */
    cu_object event[PENDING]; /* of ticket t at t % PENDING */
    bool recorded[PENDING];
} cuda;

struct buffer {
    cu_pointer at;
    size_t size;
    bool adopted; /* the caller's */
};

static inline tn_status fail(const cuda *d, err *e, const char *what, int rc) {
    const char *text = NULL;
    d->cu.cuGetErrorString(rc, &text);
    return err_set(e, rc == CUDA_ERROR_OUT_OF_MEMORY ? TN_ERR_NOMEM : TN_ERR_DEVICE, "CUDA: %s failed: %s (error %d)", what,
                   text ? text : "unknown", rc);
}

/* Round every use of the driver, on whatever thread. */
static inline tn_status enter(const cuda *d, err *e) {
    int rc = d->cu.cuCtxPushCurrent(d->context);
    return rc ? fail(d, e, "cuCtxPushCurrent", rc) : TN_OK;
}
static inline void leave(const cuda *d) {
    cu_object old;
    d->cu.cuCtxPopCurrent(&old);
}

/* With the context current; they return a code of the driver. */
int cuda_copies_open(cuda *d);
void cuda_copies_close(cuda *d);
int cuda_copies_wait(cuda *d); /* copies beside kernels run behind what was queued so far */

/* Round a piece of work, on a stream or (NULL) of the host; begin returns what end takes. */
int64_t cuda_watch_begin(cuda *d, const char *what, size_t bytes, cu_object stream);
void cuda_watch_end(cuda *d, int64_t id, cu_object stream);

/* As in device_api. */
tn_status cuda_watch_work(device *base, device_work *at, int cap, int *out_n, err *e);
tn_status cuda_upload(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e);
tn_status cuda_send(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e);
tn_status cuda_download(device *base, const buffer *b, size_t offset, void *dst, size_t size, err *e);

#endif
