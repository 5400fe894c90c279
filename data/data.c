/* data.c - data sets: arrays of a mapped file, of the caller, or made by a callback.
 *
 * In: names, dtypes, shapes. Out: arrays whose axis 0 counts examples, checked once. The data set owns names and the file. */
#include "data.h"

#include <stdarg.h>
#include <stdio.h>

tn_status data_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tn_ctx_fail(ctx, code, text);
}

bool data_row_bytes(const tn_io_tensor *x, size_t *out) {
    size_t bytes = tn_dtype_size(x->dtype);
    bool ok = bytes > 0 && x->shape.rank >= 1 && x->shape.rank <= TN_MAX_RANK && x->shape.dim[0] >= 0;
    for (int i = 1; ok && i < x->shape.rank; i++)
        ok = x->shape.dim[i] >= 0 && !__builtin_mul_overflow(bytes, (size_t)x->shape.dim[i], &bytes);
    size_t all;
    *out = bytes;
    return ok && !__builtin_mul_overflow(bytes, (size_t)x->shape.dim[0], &all);
}

static tn_status check_array(tn_ctx *ctx, const tn_data *d, int i) {
    const tn_io_tensor *x = &d->arrays[i];
    size_t bytes;
    if (!data_row_bytes(x, &bytes))
        return data_fail(ctx, TN_ERR_SHAPE,
                         "data set: array \"%.100s\" has %d axes or more bytes than fit; axis 0 counts examples", x->name,
                         x->shape.rank);
    for (int j = 0; j < i; j++)
        if (!strcmp(d->arrays[j].name, x->name))
            return data_fail(ctx, TN_ERR_INVAL, "data set: two arrays are \"%.100s\"", x->name);
    return TN_OK;
}

static char *copy_name(tn_ctx *ctx, const char *name) {
    size_t n = strlen(name) + 1;
    char *copy = tn_ctx_realloc(ctx, NULL, 0, n);
    return copy ? memcpy(copy, name, n) : NULL;
}

static tn_status new_data(tn_ctx *ctx, int n, tn_data **out) {
    tn_data *d = tn_ctx_realloc(ctx, NULL, 0, sizeof *d);
    tn_io_tensor *arrays = d ? tn_ctx_realloc(ctx, NULL, 0, (size_t)(n + 1) * sizeof *arrays) : NULL;
    *out = NULL;
    if (!arrays) {
        if (d) (void)tn_ctx_realloc(ctx, d, sizeof *d, 0);
        return data_fail(ctx, TN_ERR_NOMEM, "out of memory: a data set of %d arrays", n);
    }
    memset(arrays, 0, (size_t)(n + 1) * sizeof *arrays);
    *d = (tn_data){ .arrays = arrays, .n = n };
    *out = d;
    return TN_OK;
}

void tn_data_free(tn_ctx *ctx, tn_data *d) {
    if (!d) return;
    for (int i = 0; i < d->n; i++)
        if (d->arrays[i].name)
            (void)tn_ctx_realloc(ctx, (char *)(uintptr_t)d->arrays[i].name, strlen(d->arrays[i].name) + 1, 0);
    (void)tn_ctx_realloc(ctx, d->arrays, (size_t)(d->n + 1) * sizeof *d->arrays, 0);
    tn_io_tensors_free(d->file);
    (void)tn_ctx_realloc(ctx, d, sizeof *d, 0);
}

static tn_status fill_in(tn_ctx *ctx, tn_data *d, const tn_io_tensor *from, int i) {
    if (!from || !from->name) return data_fail(ctx, TN_ERR_INVAL, "data set: array %d has no name", i);
    d->arrays[i] = *from;
    if (!(d->arrays[i].name = copy_name(ctx, from->name)))
        return data_fail(ctx, TN_ERR_NOMEM, "out of memory: a name of a data set");
    return TN_OK;
}

static tn_status finish(tn_ctx *ctx, tn_data *d, tn_status st, tn_data **out) {
    if (st)
        tn_data_free(ctx, d);
    else
        *out = d;
    return st;
}

tn_status tn_data_open(tn_ctx *ctx, const char *path, tn_data **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!path || !out) return data_fail(ctx, TN_ERR_INVAL, "tn_data_open: path or out is NULL");
    tn_io_tensors *file;
    tn_data *d = NULL;
    tn_status st = tn_io_safetensors_load(ctx, path, &file);
    if (st) return st;
    int n = tn_io_tensors_count(file);
    if ((st = new_data(ctx, n, &d))) {
        tn_io_tensors_free(file);
        return st;
    }
    d->file = file;
    for (int i = 0; i < n && !st; i++) {
        const tn_io_tensor *x = tn_io_tensors_get(file, i);
        st = x ? fill_in(ctx, d, x, i) : data_fail(ctx, TN_ERR_NOMEM, "out of memory: array %d of %.200s", i, path);
        if (!st) st = check_array(ctx, d, i);
    }
    return finish(ctx, d, st, out);
}

tn_status tn_data_arrays(tn_ctx *ctx, const tn_io_tensor *arrays, int n, tn_data **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || n < 0 || n > TN_IO_MAX_TENSORS || (!arrays && n))
        return data_fail(ctx, TN_ERR_INVAL, "tn_data_arrays: arrays or out is NULL, or there are %d arrays", n);
    tn_data *d = NULL;
    tn_status st = new_data(ctx, n, &d);
    for (int i = 0; i < n && !st; i++) {
        st = fill_in(ctx, d, &arrays[i], i);
        if (!st) st = check_array(ctx, d, i);
        size_t bytes;
        if (!st && !arrays[i].data && data_row_bytes(&arrays[i], &bytes) && bytes && arrays[i].shape.dim[0])
            st = data_fail(ctx, TN_ERR_INVAL, "tn_data_arrays: array \"%.100s\" has no data", arrays[i].name);
    }
    return d ? finish(ctx, d, st, out) : st;
}

tn_status tn_data_callback(tn_ctx *ctx, const tn_io_tensor *arrays, int n, int64_t n_examples, tn_data_fill fill, void *ud,
                           tn_data **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || !fill || n_examples < 0 || n < 0 || n > TN_IO_MAX_TENSORS || (!arrays && n))
        return data_fail(ctx, TN_ERR_INVAL, "tn_data_callback: arrays, fill or out is NULL, or a number is negative");
    tn_data *d = NULL;
    tn_status st = new_data(ctx, n, &d);
    for (int i = 0; i < n && !st; i++) {
        tn_io_tensor x = arrays[i];
        if (x.shape.rank < 0 || x.shape.rank >= TN_MAX_RANK) {
            st = data_fail(ctx, TN_ERR_SHAPE, "tn_data_callback: examples of array %d have %d axes; %d are possible", i,
                           x.shape.rank, TN_MAX_RANK - 1);
            break;
        }
        for (int k = x.shape.rank++; k > 0; k--) x.shape.dim[k] = x.shape.dim[k - 1];
        x.shape.dim[0] = n_examples, x.data = NULL;
        st = fill_in(ctx, d, &x, i);
        if (!st) st = check_array(ctx, d, i);
    }
    if (d) d->fill = fill, d->ud = ud;
    return d ? finish(ctx, d, st, out) : st;
}

int tn_data_count(const tn_data *d) { return d ? d->n : 0; }

const tn_io_tensor *tn_data_get(const tn_data *d, int i) { return d && i >= 0 && i < d->n ? &d->arrays[i] : NULL; }
