/* objects.c - devices of a context, opened when first asked for.
 *
 * In: a device's name and thread count. Out: the open device, owned by the context, with the context's kernel cache and threads
 * behind it.
 * The run half: statuses, no jumps. */
#include "drive/objects.h"
#include "rt/cache.h"
#include "rt/pool.h"
#include "rt/tuning.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* ---- errors ---- */

static uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }

void ctx_enter(tn_ctx *ctx) { atomic_store_explicit(&ctx->home, this_thread(), memory_order_relaxed); }

tn_status ctx_report(tn_ctx *ctx, const err *e) {
    if (e->code && &ctx->err != e && atomic_load_explicit(&ctx->home, memory_order_relaxed) == this_thread()) {
        ctx->err.code = e->code;
        memcpy(ctx->err.text, e->text, strlen(e->text) + 1);
    }
    return e->code;
}

/* ---- devices ---- */

static tn_status find_api(const char *name, const device_api **out, err *e) {
    char known[256] = "";
    size_t used = 0;
    int n;
    const device_api *const *table = device_table(&n);
    if ((*out = device_find(name))) return TN_OK;
    for (int i = 0; i < n && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, " %s", table[i]->name);
    return err_set(e, TN_ERR_INVAL, "there is no device \"%.64s\"; there are:%s", name, known);
}

tn_status ctx_cache(tn_ctx *ctx, err *e) {
    if (ctx->cache) return TN_OK;
    cache_opts o = { .mem = ctx->mem,
                     .dir = ctx->cache_dir,
                     .disk_bytes = ctx->cache_bytes,
                     .memory_bytes = ctx->cache_memory,
                     .log = ctx->log,
                     .log_ud = ctx->log_ud };
    tn_status st = cache_open(&o, &ctx->cache, e);
    if (!st) atomic_store(&ctx->tuning, tuning_load(ctx->mem, cache_disk(ctx->cache), ctx->log, ctx->log_ud));
    return st;
}

static tn_status open_shared(tn_ctx *ctx, err *e) {
    tn_status st = ctx_cache(ctx, e);
    if (!st && !ctx->pool) st = pool_open(ctx->mem, &(executor){ ctx->parallel_for, ctx->parallel_ud }, &ctx->pool, e);
    return st;
}

tn_status ctx_device(tn_ctx *ctx, const char *name, int threads, device **out, err *e) {
    const device_api *api = NULL;
    tn_status st = find_api(name, &api, e);
    if (st) return st;
    if (threads < 0) return err_set(e, TN_ERR_INVAL, "threads is %d", threads);
    for (int i = 0; i < ctx->n_devices; i++) {
        *out = ctx->devices[i].dev;
        if ((*out)->api == api && ctx->devices[i].threads == threads) return TN_OK;
    }
    *out = NULL;
    if ((st = open_shared(ctx, e))) return st;

    device_opts o = { .mem = ctx->mem,
                      .threads = threads,
                      .compiler = ctx->compiler,
                      .cpu = ctx->cpu,
                      .name_code = ctx->name_code,
                      .cache = ctx->cache,
                      .pool = ctx->pool,
                      .log = ctx->log,
                      .log_ud = ctx->log_ud };
    device *dev = NULL;
    if ((st = api->open(&o, &dev, e))) return st;
    size_t size = (size_t)ctx->n_devices * sizeof *ctx->devices;
    open_device *devices = mem_realloc(ctx->mem, ctx->devices, size, size + sizeof *devices);
    if (!devices) {
        api->close(dev);
        return err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes for devices", size + sizeof *devices);
    }
    devices[ctx->n_devices++] = (open_device){ dev, threads };
    ctx->devices = devices;
    *out = dev;
    return TN_OK;
}

void ctx_close_devices(tn_ctx *ctx) {
    for (int i = 0; i < ctx->n_devices; i++) ctx->devices[i].dev->api->close(ctx->devices[i].dev);
    mem_free(ctx->mem, ctx->devices, (size_t)ctx->n_devices * sizeof *ctx->devices);
    pool_close(ctx->pool);
    cache_close(ctx->cache);
    tuning_free(atomic_load(&ctx->tuning));
    atomic_store(&ctx->tuning, NULL);
    ctx->devices = NULL, ctx->n_devices = 0, ctx->cache = NULL, ctx->pool = NULL;
}
