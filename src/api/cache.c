/* cache.c - the public view of the kernel cache: what is in it, and making it smaller. */
#include "api/api.h"
#include "rt/cache.h"
#include "rt/tuning.h"

#include <stdatomic.h>

tn_status tn_cache_get_stats(tn_ctx *ctx, tn_cache_stats *out) {
    if (!ctx) return TN_ERR_INVAL;
    err e;
    if (!out) {
        err_set(&e, TN_ERR_INVAL, "tn_cache_get_stats: out is NULL");
        return api_report(ctx, &e);
    }
    *out = (tn_cache_stats){ .dir = ctx->cache_dir };
    if (ctx->cache_dir) {
        disk_stats s;
        if (disk_get_stats(ctx->cache_dir, &s, &e)) return api_report(ctx, &e);
        out->files = s.files;
        out->bytes = s.bytes;
        out->unfinished = s.unfinished;
        out->oldest = s.oldest;
        out->newest = s.newest;
        out->limit = ctx->cache_bytes;
        out->tuned = (uint64_t)tuning_count(ctx->mem, ctx->cache_dir);
    }
    if (ctx->cache) {
        cache_counts c;
        cache_get_counts(ctx->cache, &c);
        out->modules = c.modules;
        out->module_bytes = c.bytes;
        out->memory_hits = c.memory_hits;
        out->disk_hits = c.disk_hits;
        out->builds = c.builds;
    }
    return TN_OK;
}

tn_status tn_cache_prune(tn_ctx *ctx, uint64_t max_bytes, uint64_t *out_files, uint64_t *out_bytes) {
    if (!ctx) return TN_ERR_INVAL;
    if (out_files) *out_files = 0;
    if (out_bytes) *out_bytes = 0;
    err e;
    if (!ctx->cache_dir) {
        err_set(&e, TN_ERR_INVAL, "tn_cache_prune: the context has no cache directory (tn_config.cache_dir)");
        return api_report(ctx, &e);
    }
    disk_stats s;
    if (disk_prune(ctx->mem, ctx->cache_dir, max_bytes, &s, &e)) return api_report(ctx, &e);
    if (out_files) *out_files = s.removed_files;
    if (out_bytes) *out_bytes = s.removed_bytes;
    return TN_OK;
}

tn_status tn_cache_prune_tuning(tn_ctx *ctx, uint64_t *out_entries) {
    if (!ctx) return TN_ERR_INVAL;
    if (out_entries) *out_entries = 0;
    err e;
    tuning *none;
    tuning *had = atomic_load(&ctx->tuning);
    int n = had ? had->table.n : 0;
    if (ctx->cache_dir && tuning_clear(ctx->mem, ctx->cache_dir, &n, &e)) return api_report(ctx, &e);
    if (had) { /* programs may still look at it */
        if (tuning_with(ctx->mem, NULL, NULL, 0, &none, &e)) return api_report(ctx, &e);
        none->older = had;
        atomic_store(&ctx->tuning, none);
    }
    if (out_entries) *out_entries = (uint64_t)n;
    return TN_OK;
}
