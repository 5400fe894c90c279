/* state.c - the states of a session in a safetensors file: how a training run is kept and taken up again.
 *
 * In: a session and a path. Out: a file written atomically, or a session whose states were all set (or, on any error, none of
 * them). Loading copies from the mapped file; saving has one copy of the states, freed before return. */
#include "safetensors.h"

#include <stdio.h>

static void shape_text(const tn_shape *shape, tn_dtype dtype, char out[320]) {
    size_t at = (size_t)snprintf(out, 320, "%s[", tn_dtype_name(dtype));
    for (int i = 0; i < shape->rank; i++)
        at += (size_t)snprintf(out + at, 320 - at, "%s%lld", i ? "," : "", (long long)shape->dim[i]);
    snprintf(out + at, 320 - at, "]");
}

/* Fills list[i] with the description of every state; *out_total is the memory all of them need. */
static tn_status describe(tn_session *s, int n, tn_io_tensor *list, size_t *out_total) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        tn_status st = tn_session_state(s, i, &list[i].name, &list[i].dtype, &list[i].shape);
        if (st) return st;
        if (!io_array_bytes(list[i].dtype, &list[i].shape, &bytes)) return TN_ERR_INTERNAL;
        total += (bytes + 63) / 64 * 64; /* cannot overflow: all of it is in memory already */
    }
    *out_total = total;
    return TN_OK;
}

tn_status tn_io_save_state(tn_ctx *ctx, tn_session *s, const char *path) {
    if (!ctx || !s || !path) return io_fail(ctx, TN_ERR_INVAL, "tn_io_save_state: an argument is NULL");
    int n = tn_session_n_states(s);
    size_t total = 0, at = 0;
    char *data = NULL;
    tn_status st = TN_ERR_NOMEM;
    tn_io_tensor *list = io_alloc(ctx, (size_t)n * sizeof *list);
    if (!list) goto done;
    if ((st = describe(s, n, list, &total))) goto done;
    st = TN_ERR_NOMEM;
    if (!(data = io_alloc(ctx, total))) goto done;
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        (void)io_array_bytes(list[i].dtype, &list[i].shape, &bytes);
        if ((st = tn_session_get(s, list[i].name, data + at, bytes))) goto done;
        list[i].data = data + at;
        at += (bytes + 63) / 64 * 64;
    }
    st = tn_io_safetensors_save(ctx, path, list, n);
done:
    tn_io_free(ctx, data);
    tn_io_free(ctx, list);
    return st;
}

/* Does the file have the state, with its dtype and shape? *out_data: in the file, until that is freed. */
static tn_status check_state(tn_ctx *ctx, const char *path, const tn_io_tensors *file, const tn_io_tensor *want,
                             const char *whose, const void **out_data) {
    tn_io_tensor have;
    if (!st_find(file, want->name, &have))
        return io_fail(ctx, TN_ERR_INVAL, "%s: state \"%s\" of the %s is not in the file, which has %d tensors", path,
                       want->name, whose, tn_io_tensors_count(file));
    bool same = have.dtype == want->dtype && have.shape.rank == want->shape.rank;
    for (int i = 0; same && i < want->shape.rank; i++) same = have.shape.dim[i] == want->shape.dim[i];
    *out_data = have.data;
    if (same) return TN_OK;
    char has[320], needs[320];
    shape_text(&have.shape, have.dtype, has);
    shape_text(&want->shape, want->dtype, needs);
    return io_fail(ctx, have.dtype != want->dtype ? TN_ERR_DTYPE : TN_ERR_SHAPE, "%s: \"%s\" is %s, the %s needs %s", path,
                   want->name, has, whose, needs);
}

tn_status tn_io_load_state(tn_ctx *ctx, tn_session *s, const char *path) {
    if (!ctx || !s || !path) return io_fail(ctx, TN_ERR_INVAL, "tn_io_load_state: an argument is NULL");
    int n = tn_session_n_states(s);
    size_t total;
    tn_io_tensors *file = NULL;
    tn_status st = TN_ERR_NOMEM;
    tn_io_tensor *list = io_alloc(ctx, (size_t)n * sizeof *list);
    const void **values = list ? io_alloc(ctx, (size_t)n * sizeof *values) : NULL;
    if (!values) goto done;
    if ((st = describe(s, n, list, &total))) goto done;
    if ((st = tn_io_safetensors_load(ctx, path, &file))) goto done;
    for (int i = 0; i < n; i++) /* nothing is set unless everything fits */
        if ((st = check_state(ctx, path, file, &list[i], "session", &values[i]))) goto done;
    st = tn_session_set_states(s, values);
done:
    tn_io_tensors_free(file);
    tn_io_free(ctx, values);
    tn_io_free(ctx, list);
    return st;
}

tn_status tn_io_load_graph(tn_ctx *ctx, tn_graph *g, const char *path) {
    if (!ctx || !g || !path) return io_fail(ctx, TN_ERR_INVAL, "tn_io_load_graph: an argument is NULL");
    if (tn_graph_status(g)) return tn_graph_check(g); /* the builders' first error, in words */
    tn_io_tensors *file = NULL;
    int n = tn_graph_n_states(g);
    tn_status st = TN_ERR_NOMEM;
    const void **values = io_alloc(ctx, (size_t)n * sizeof *values);
    if (!values) goto done;
    if ((st = tn_io_safetensors_load(ctx, path, &file))) goto done;
    for (int i = 0; i < n; i++) { /* nothing is set unless everything fits */
        tn_tensor x = tn_graph_state(g, i);
        tn_io_tensor want = { .name = tn_tensor_name(x), .dtype = tn_tensor_dtype(x), .shape = tn_tensor_shape(x) };
        if ((st = check_state(ctx, path, file, &want, "graph", &values[i]))) goto done;
    }
    st = tn_graph_write_states(g, values);
done:
    tn_io_tensors_free(file);
    tn_io_free(ctx, values);
    return st;
}
