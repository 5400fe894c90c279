/* kernels.c - inside_kernels: source text as a module, a recorded list of its entries, submitted and waited for.
 *
 * In: a GPU of the table, a program in its language, sizes of buffers. Owns module, buffers and list; the device is the
 * context's. */
#include "bench/inside/inside.h"

#include "drive/objects.h"

enum { MOST_BUFFERS = 16 };

struct inside_kernels {
    tn_ctx *ctx;
    device *dev;
    module *module;
    list *list;
    buffer *buffers[MOST_BUFFERS];
    size_t bytes[MOST_BUFFERS];
    int n;
    bool sealed;
};

void inside_kernels_free(inside_kernels *k) {
    if (!k) return;
    if (k->list) k->dev->api->discard(k->list);
    for (int i = 0; i < k->n; i++)
        if (k->buffers[i]) k->dev->api->free(k->dev, k->buffers[i]);
    if (k->module) k->dev->api->drop(k->dev, k->module);
    mem_free(k->ctx->mem, k, sizeof *k);
}

static tn_status fill(inside_kernels *k, const char *device_name, const char *source, err *e) {
    device_caps caps;
    tn_status st = ctx_device(k->ctx, device_name, 0, &k->dev, e);
    if (st) return st;
    k->dev->api->get_caps(k->dev, &caps);
    if (!caps.gpu) return err_set(e, TN_ERR_UNSUPPORTED, "kernels by hand for \"%s\": cuda and opencl take them", device_name);
    st = k->dev->api->build(k->dev, source, strlen(source), false, &k->module, NULL, e);
    for (int i = 0; i < k->n && !st; i++) st = k->dev->api->alloc(k->dev, k->bytes[i], &k->buffers[i], e);
    if (!st) st = k->dev->api->record(k->dev, k->n, &k->list, e);
    if (!st) st = k->dev->api->loop(k->list, e);
    return st;
}

tn_status inside_kernels_new(tn_ctx *ctx, const char *device_name, const char *source, const size_t *bytes, int n_buffers,
                             inside_kernels **out) {
    err e = { 0 };
    if (!ctx) return TN_ERR_INVAL;
    ctx_enter(ctx);
    if (!device_name || !source || !out || n_buffers < 0 || n_buffers > MOST_BUFFERS || (n_buffers && !bytes)) {
        err_set(&e, TN_ERR_INVAL, "inside_kernels_new: a device, a source, an out and 0 to %d buffers are needed",
                MOST_BUFFERS);
        return ctx_report(ctx, &e);
    }
    inside_kernels *k = mem_alloc(ctx->mem, sizeof *k);
    *out = NULL;
    if (!k) {
        err_set(&e, TN_ERR_NOMEM, "out of memory: kernels");
        return ctx_report(ctx, &e);
    }
    k->ctx = ctx, k->n = n_buffers;
    for (int i = 0; i < n_buffers; i++) k->bytes[i] = bytes[i];
    if (fill(k, device_name, source, &e)) {
        inside_kernels_free(k);
        return ctx_report(ctx, &e);
    }
    *out = k;
    return TN_OK;
}

tn_status inside_kernels_launch(inside_kernels *k, const char *entry, int threads, int64_t blocks) {
    if (!k) return TN_ERR_INVAL;
    err e = { 0 };
    device_arg args[MOST_BUFFERS];
    device_launch what = { .block_threads = threads, .grid_blocks = blocks, .args = args, .n_args = k->n };
    for (int i = 0; i < k->n; i++) args[i] = (device_arg){ .slot = i, .size = k->bytes[i], .written = true };
    if (!entry)
        err_set(&e, TN_ERR_INVAL, "inside_kernels_launch: entry is NULL");
    else if (k->dev->api->find(k->dev, k->module, entry, &what.entry, &e) == TN_OK)
        k->dev->api->launch(k->list, &what, &e);
    return ctx_report(k->ctx, &e);
}

static tn_status seal(inside_kernels *k, err *e) {
    if (k->sealed) return TN_OK;
    tn_status st = k->dev->api->end(k->list, e);
    if (!st) st = k->dev->api->seal(k->list, e);
    for (int i = 0; i < k->n && !st; i++) k->dev->api->bind(k->list, i, k->buffers[i], 0);
    k->sealed = st == TN_OK;
    return st;
}

tn_status inside_kernels_run(inside_kernels *k, int64_t times) {
    if (!k) return TN_ERR_INVAL;
    err e = { 0 };
    uint64_t ticket;
    if (times < 1)
        err_set(&e, TN_ERR_INVAL, "inside_kernels_run: %lld times", (long long)times);
    else if (!seal(k, &e) && !k->dev->api->submit(k->list, times, &ticket, &e))
        k->dev->api->wait(k->dev, ticket, &e);
    return ctx_report(k->ctx, &e);
}

static tn_status check_buffer(const inside_kernels *k, int i, const void *data, err *e) {
    if (i >= 0 && i < k->n && data) return TN_OK;
    return err_set(e, TN_ERR_INVAL, "buffer %d of %d, or data is NULL", i, k->n);
}

tn_status inside_kernels_write(inside_kernels *k, int i, const void *data, size_t bytes) {
    if (!k) return TN_ERR_INVAL;
    err e = { 0 };
    if (!check_buffer(k, i, data, &e)) k->dev->api->upload(k->dev, k->buffers[i], 0, data, bytes, &e);
    return ctx_report(k->ctx, &e);
}

tn_status inside_kernels_read(inside_kernels *k, int i, void *data, size_t bytes) {
    if (!k) return TN_ERR_INVAL;
    err e = { 0 };
    if (!check_buffer(k, i, data, &e)) k->dev->api->download(k->dev, k->buffers[i], 0, data, bytes, &e);
    return ctx_report(k->ctx, &e);
}
