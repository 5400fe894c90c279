/* tenon_serve.h - one program for the requests of many threads: a batcher gathers them into batches.
 *
 * The program has one symbolic dim (tn_dim), which counts examples: axis 0 of the inputs and outputs that have it. A request is
 * a few examples. It waits until as many examples as a run takes have come, or for max_delay, whichever is first; then all that
 * wait are computed by one run. Batches cost less for each example, since weights are read once for all of them.
 *
 *     tn_batcher_opts o = { .max_batch = 32, .max_delay = 1e-3 };
 *     if (tn_batcher_new(ctx, p, &o, &b)) ...
 *     tn_batcher_run(b, TN_BIND({ "x", x }, { "y", y }), 1);    on any thread, as often as there are requests
 *     tn_batcher_publish(b, trained);                           new weights, meanwhile
 *
 * Errors.  TN_ERR_INVAL, TN_ERR_SHAPE, TN_ERR_NOMEM, and those of runs. Texts: of tn_batcher_new in tn_ctx_error, of the others
 * by tn_batcher_error. Memory.  From the context's allocator, all of it in tn_batcher_new, but for the sets of weights that
 * tn_batcher_publish makes: a request allocates nothing. Threads.  Safe: a batcher may be used by all threads at once; it must
 * be free of requests when it is freed, and is made and freed on its context's thread. It does not work in a child after fork.
 */
#ifndef TENON_SERVE_H
#define TENON_SERVE_H

#include "tenon/tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t max_batch; /* examples of a run at most; 0: 32, or what the dim allows if that is less */
    double max_delay;  /* seconds that a request waits for others; 0: a batch is what waits when a worker is free */
    int workers;       /* threads that run batches, each with a session of its own; 0: 1 */
    /* Inputs without the dim, the same for all requests; not copied. */
    const tn_binding *fixed; /* [n_fixed] */
    int n_fixed;
} tn_batcher_opts;

typedef struct tn_batcher tn_batcher;
/* opts NULL: all zero. TN_ERR_INVAL for a program without a dim or with several, or whose dim is not any number from 1 on;
 * TN_ERR_SHAPE where a slot depends on it otherwise than by axis 0. The program must outlive the batcher. */
TN_API TN_CHECK tn_status tn_batcher_new(tn_ctx *ctx, tn_program *p, const tn_batcher_opts *opts, tn_batcher **out);
TN_API void tn_batcher_free(tn_batcher *b); /* NULL is fine */

/* A request of n_examples, 1 to max_batch: every input with the dim must be bound, to [n_examples, ...]; outputs that are not
 * bound are dropped. Returns when it is done. */
TN_API TN_CHECK tn_status tn_batcher_run(tn_batcher *b, const tn_binding *bindings, int n, int64_t n_examples);

/* Batches that begin from now on have the states of `from` by name, shape and dtype, as tn_session_copy_state copies them, all
 * at once: no batch sees some of the old and some of the new ones. `from` may be a session of another program, such as the
 * training step; nothing may run it meanwhile. The caller's thread does the copying, and workers take the new set without
 * waiting. Only states that no run of the batcher's program changes. TN_ERR_INVAL where there are none. */
TN_API TN_CHECK tn_status tn_batcher_publish(tn_batcher *b, const tn_session *from);

/* Since the batcher was made, or since they were reset. */
typedef struct {
    int64_t requests, examples, batches;
    int64_t failed;              /* requests */
    double p50, p90, p99, worst; /* seconds from the call of tn_batcher_run to its result, within 3 %; worst is exact */
} tn_batcher_stats;
TN_API void tn_batcher_get_stats(tn_batcher *b, tn_batcher_stats *out, int reset);

/* Writes the text of the last error to out[n], cut where it is longer. */
TN_API void tn_batcher_error(tn_batcher *b, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
