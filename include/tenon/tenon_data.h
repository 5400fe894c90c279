/* tenon_data.h - data sets, and the loader that feeds training with batches of them.
 *
 * A data set is some arrays whose axis 0 counts examples: a mapped safetensors file (one large file rather than many small
 * ones; `tenon pack` makes some), arrays in memory, or a callback. A loader gives rings of batches as tn_run_n takes them, in
 * an order that is a function of seed and epoch, while a thread of its own prepares the next ring.
 *
 *     tn_loader_opts o = { .batch = 32, .shuffle = 1, .seed = 7 };
 *     if (tn_data_open(ctx, "digits.safetensors", &d) || tn_loader_new(ctx, d, &o, &l)) ...
 *     while (more) {
 *         const tn_binding *ring;
 *         int n; int64_t batches;
 *         if (tn_loader_next(l, &ring, &n, &batches) || tn_run_n(s, batches, ring, n, batches)) ...
 *     }
 *
 * Errors.  TN_ERR_INVAL, TN_ERR_SHAPE, TN_ERR_IO, TN_ERR_PARSE, TN_ERR_NOMEM; the text is in tn_ctx_error. Memory.  From the
 * context's allocator, all of it when data set and loader are made: tn_loader_next takes none. Threads. A loader is its
 * context's, one thread at a time; the callback of a data set runs on the loader's thread. A loader does not work in a child
 * after fork. Free loaders before their data set, both before the context. */
#ifndef TENON_DATA_H
#define TENON_DATA_H

#include "tenon/tenon_io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data sets ----------------------------------------------------------------------------------------------------------- */

typedef struct tn_data tn_data;

/* The arrays of a safetensors file, mapped as tn_io_safetensors_load does: the file must not become shorter meanwhile. */
TN_API TN_CHECK tn_status tn_data_open(tn_ctx *ctx, const char *path, tn_data **out);
/* Arrays of the caller, which are not copied. Each has at least one axis; names differ. */
TN_API TN_CHECK tn_status tn_data_arrays(tn_ctx *ctx, const tn_io_tensor *arrays, int n, tn_data **out);
/* Examples that a callback makes. arrays: names, dtypes and shapes without axis 0; data plays no part. fill writes example i of
 * every array k to out[k] (row-major; NULL: no input takes the array) and returns 0; anything else ends the loader's next call
 * with that number in the text. */
typedef int (*tn_data_fill)(void *ud, int64_t i, void *const *out);
TN_API TN_CHECK tn_status tn_data_callback(tn_ctx *ctx, const tn_io_tensor *arrays, int n, int64_t n_examples,
                                           tn_data_fill fill, void *ud, tn_data **out);
TN_API void tn_data_free(tn_ctx *ctx, tn_data *d); /* NULL is fine */

TN_API int tn_data_count(const tn_data *d);                      /* arrays */
TN_API const tn_io_tensor *tn_data_get(const tn_data *d, int i); /* with axis 0; data NULL for callbacks. NULL out of range */

/* ---- the loader ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *input; /* of the program */
    const char *array; /* of the data set */
    int64_t shift;     /* windows only: rows that this input is ahead; 1 for the next token, say */
} tn_loader_input;

typedef struct {
    int64_t batch; /* examples of a batch */
    int64_t ring;  /* batches that a call of tn_loader_next gives; 0: 16 */
    /* Which input gets which array; NULL: every array is for the input of its name. */
    const tn_loader_input *inputs; /* [n_inputs] */
    int n_inputs;
    /* 0: an example is a row of axis 0, and inputs are [batch, ...]. n: arrays are streams, and an example is n rows that
     * follow each other: inputs are [batch, n, ...]. Windows begin every `stride` rows (0: n). Not for callbacks. */
    int64_t window, stride;
    /* Examples first .. first + count - 1 alone; count 0: all from first on. So one data set is split into training and
     * validation. */
    int64_t first, count;
    int shuffle;   /* not 0: every epoch has an order of its own, which takes no memory; 0: as they lie */
    uint64_t seed; /* of the orders */
    int no_thread; /* not 0: tn_loader_next itself prepares what it gives */
} tn_loader_opts;

typedef struct tn_loader tn_loader;
/* TN_ERR_SHAPE when arrays have different numbers of examples or fewer than a batch. */
TN_API TN_CHECK tn_status tn_loader_new(tn_ctx *ctx, tn_data *d, const tn_loader_opts *opts, tn_loader **out);
TN_API void tn_loader_free(tn_loader *l); /* NULL is fine */

/* The next opts.ring batches: *out_ring[*out_n] as tn_run_n takes it, valid until the next call. Epochs follow each other;
 * examples that fill no batch at the end of one are left out of it. */
TN_API TN_CHECK tn_status tn_loader_next(tn_loader *l, const tn_binding **out_ring, int *out_n, int64_t *out_batches);
TN_API int64_t tn_loader_batches(const tn_loader *l); /* of an epoch */

/* Batches that were given so far. A loader with the same options that seeks there goes on with the same batches: what a
 * checkpoint has to remember. */
TN_API int64_t tn_loader_position(const tn_loader *l);
TN_API TN_CHECK tn_status tn_loader_seek(tn_loader *l, int64_t position); /* TN_ERR_INVAL below 0 */

#ifdef __cplusplus
}
#endif
#endif
