/* objects.h - what stands behind tn_ctx and tn_graph. Made and freed by src/api; src/drive compiles and runs with them.
 *
 * They live here, not in src/api, because includes go one way (drive before api) and both need the fields.
 * A context owns its strings, its open devices and its kernel cache; a graph owns its arena and the values of immediate mode.
 */
#ifndef TN_DRIVE_OBJECTS_H
#define TN_DRIVE_OBJECTS_H

#include "base/base.h"
#include "ir/graph.h"
#include "rt/device.h"

struct cache;  /* rt/cache.h */
struct tuning; /* rt/tuning.h */
struct pool;   /* rt/pool.h */

typedef struct open_device {
    device *dev;
    int threads; /* what it was opened with: one device may be open with several counts */
} open_device;

struct tn_ctx {
    mem mem;
    void (*log)(void *ud, tn_log_level level, const char *text); /* may be NULL */
    void *log_ud;
    char *cache_dir; /* NULL = no disk cache */
    char *compiler;  /* never NULL */
    char *cpu;       /* tn_config.cpu; NULL = the default */
    bool name_code;
    void (*parallel_for)(void *ud, int n, void (*piece)(void *arg, int i), void *arg); /* NULL: the library's threads */
    void *parallel_ud;
    uint64_t cache_bytes;   /* defaults filled in: never 0 */
    uint64_t cache_memory;  /* never 0 */
    uint64_t made;          /* ns since 1970, by the clock that file systems use */
    err err;                /* the last error; err.text is never garbage. Written by the thread `home` only */
    _Atomic uintptr_t home; /* the thread that works with the context: see ctx_enter */

    /* Opened when first needed by ctx_device. tn_ctx_free closes them. */
    struct cache *cache;
    struct pool *pool;               /* of all devices */
    _Atomic(struct tuning *) tuning; /* what was measured before, by any process; may be NULL */
    open_device *devices;            /* [n_devices] */
    int n_devices;
};

/* The device of that name ("cpu") with that many threads (0 = as many as the process may use): opened once, then kept until
 * tn_ctx_free. */
tn_status ctx_device(tn_ctx *ctx, const char *name, int threads, device **out, err *e);
void ctx_close_devices(tn_ctx *ctx);      /* and the cache */
tn_status ctx_cache(tn_ctx *ctx, err *e); /* opens it: ctx->cache */

/* Programs are shared by threads, and their sessions run on any; ctx->err has no lock. So every call that needs the context for
 * itself makes the calling thread its home, and what may be called on other threads reports through ctx_report, which writes
 * ctx->err on the home thread only. Returns e->code. */
void ctx_enter(tn_ctx *ctx);
tn_status ctx_report(tn_ctx *ctx, const err *e);

/* Value of one node of an immediate graph. A node that needs no memory of its own (a reshape) shares its operand's buffer.
 * Inputs and states alone change their values: see immediate_renew. */
typedef struct node_value {
    buffer *buf;    /* NULL = not computed (an input before tn_tensor_write) .. */
    bool forgotten; /* .. or no longer there */
    bool shared;    /* another entry owns buf */
    val heir;       /* of an input or state: the first entry that shares its buffer, or 0 */
} node_value;

struct tn_graph {
    tn_ctx *ctx;
    arena arena; /* owns ir and everything it points to, and `values` */
    guard gd;    /* arena.gd while a call is in progress: set by GUARD_TRY in src/api (or by drive, for its own calls) */
    graph *ir;
    err err;                  /* sticky: the first error of the builders */
    err later;                /* text: further ones, for tn_graph_check; code as err.code when there are any */
    int n_later;              /* how many there were, also of those that found no room */
    uint64_t seed;            /* of the initial values of parameters */
    VEC(val) params;          /* states made by tn_param, in order */
    struct api_body *body;    /* the innermost one that is being built (api/control.c), or NULL */
    const char *scope;        /* in front of the names of states, "enc/l0/"; NULL = nothing */
    VEC(const char *) scopes; /* those around it */
    bool reuses_states;

    /* Immediate mode. values.at[v] belongs to node v; nodes from values.n on are not computed yet. All buffers belong to `dev`,
     * which the context owns; tn_graph_free frees those that are not shared. */
    bool immediate;
    const char *device; /* name; NULL = cpu */
    device *dev;        /* NULL until the first value is computed or written */
    VEC(node_value) values;
    int n_assigned;        /* outputs whose state update has taken place */
    struct immediate *imm; /* its one-op programs (drive/immediate.c) */
};

#endif
