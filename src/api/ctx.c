/* ctx.c - contexts and the facts that need no graph: versions, names, the environment.
 *
 * In: a tn_config. Out: a tn_ctx that owns copies of its strings. Assumes that everything made from a context is freed before
 * it. */
#include "api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *tn_version(void) { return STRING(TN_VERSION_MAJOR) "." STRING(TN_VERSION_MINOR) "." STRING(TN_VERSION_PATCH); }

const char *tn_status_name(tn_status s) {
    static const char *const names[] = { "TN_OK",        "TN_ERR_INVAL",       "TN_ERR_SHAPE",
                                         "TN_ERR_DTYPE", "TN_ERR_UNSUPPORTED", "TN_ERR_PARSE",
                                         "TN_ERR_IO",    "TN_ERR_NOMEM",       "TN_ERR_DEVICE",
                                         "TN_ERR_BUILD", "TN_ERR_VERIFY",      "TN_ERR_INTERNAL" };
    return (unsigned)s < COUNT_OF(names) ? names[s] : "TN_ERR_?";
}

const char *tn_dtype_name(tn_dtype t) { return dtype_name(t); }
const tn_dtype_info *tn_dtype_get_info(tn_dtype t) { return dtype_info(t); }
size_t tn_dtype_size(tn_dtype t) { return (unsigned)t < TN_N_DTYPES ? dtype_size(t) : 0; }

/* ---- configuration ---- */

static const char *env_text(const char *name) {
    const char *s = getenv(name);
    return s && *s ? s : NULL;
}
/* "268435456" or "256M"; 0 (the default) for anything else. */
static uint64_t parse_bytes(const char *s) {
    if (!s || *s < '0' || *s > '9') return 0;
    char *end;
    unsigned long long v = strtoull(s, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    return *end || v > UINT64_MAX >> shift ? 0 : (uint64_t)v << shift;
}
void tn_config_from_env(tn_config *cfg) {
    if (!cfg) return;
    *cfg = (tn_config){ .struct_size = sizeof *cfg };
    const char *xdg = env_text("XDG_CACHE_HOME"), *home = env_text("HOME");
    if ((cfg->cache_dir = env_text("TENON_CACHE_DIR"))) {
        /* taken as it is */
    } else if (xdg && *xdg == '/') { /* the XDG specification says to ignore relative paths */
        cfg->cache_dir = xdg;
        cfg->cache_subdir = "tenon";
    } else if (home) {
        cfg->cache_dir = home;
        cfg->cache_subdir = ".cache/tenon";
    }
    cfg->cache_bytes = parse_bytes(env_text("TENON_CACHE_BYTES"));
    cfg->compiler = env_text("TENON_CC");
    cfg->cpu = env_text("TENON_CPU");
    const char *names = env_text("TENON_NAME_CODE");
    cfg->name_code = names && strcmp(names, "0") != 0;
}

/* ---- contexts ---- */

static char *join_path(mem m, const char *dir, const char *sub) {
    if (!sub || !*sub) return mem_strdup(m, dir);
    size_t n = strlen(dir) + 1 + strlen(sub) + 1;
    char *path = mem_alloc(m, n);
    if (path) snprintf(path, n, "%s/%s", dir, sub);
    return path;
}

tn_ctx *tn_ctx_new(const tn_config *given) {
    tn_config cfg = { 0 };
    if (given) { /* a caller built against a smaller struct gives fewer bytes */
        size_t size = given->struct_size && given->struct_size < sizeof cfg ? given->struct_size : sizeof cfg;
        memcpy(&cfg, given, size);
    }
    mem m = cfg.realloc ? (mem){ cfg.realloc, cfg.realloc_ud } : mem_libc();
    tn_ctx *ctx = mem_alloc(m, sizeof *ctx);
    if (!ctx) return NULL;
    ctx->mem = m;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    ctx->made = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    ctx_enter(ctx);
    ctx->log = cfg.log;
    ctx->log_ud = cfg.log_ud;
    ctx->cache_bytes = cfg.cache_bytes ? cfg.cache_bytes : (uint64_t)1 << 30;
    ctx->cache_memory = cfg.cache_memory ? cfg.cache_memory : (uint64_t)64 << 20;
    ctx->compiler = mem_strdup(m, cfg.compiler && *cfg.compiler ? cfg.compiler : "cc");
    if (cfg.cache_dir && *cfg.cache_dir) ctx->cache_dir = join_path(m, cfg.cache_dir, cfg.cache_subdir);
    if (cfg.cpu && *cfg.cpu) ctx->cpu = mem_strdup(m, cfg.cpu);
    ctx->name_code = cfg.name_code != 0;
    ctx->parallel_for = cfg.parallel_for;
    ctx->parallel_ud = cfg.parallel_ud;
    if (!ctx->compiler || (cfg.cpu && *cfg.cpu && !ctx->cpu) || (cfg.cache_dir && *cfg.cache_dir && !ctx->cache_dir)) {
        tn_ctx_free(ctx);
        return NULL;
    }
    return ctx;
}

void tn_ctx_free(tn_ctx *ctx) {
    if (!ctx) return;
    ctx_close_devices(ctx);
    mem_strfree(ctx->mem, ctx->cache_dir);
    mem_strfree(ctx->mem, ctx->compiler);
    mem_strfree(ctx->mem, ctx->cpu);
    mem_free(ctx->mem, ctx, sizeof *ctx);
}

const char *tn_ctx_error(const tn_ctx *ctx) {
    if (!ctx) return "no context (out of memory in tn_ctx_new)";
    return ctx->err.code ? ctx->err.text : "no error";
}
tn_status tn_ctx_status(const tn_ctx *ctx) { return ctx ? ctx->err.code : TN_ERR_INVAL; }

void tn_string_free(tn_ctx *ctx, char *text) {
    if (ctx) mem_strfree(ctx->mem, text);
}

void *tn_ctx_realloc(tn_ctx *ctx, void *ptr, size_t old_size, size_t new_size) {
    return ctx ? mem_realloc(ctx->mem, ptr, old_size, new_size) : NULL;
}

tn_status tn_ctx_fail(tn_ctx *ctx, tn_status code, const char *text) {
    return ctx && code ? err_set(&ctx->err, code, "%s", text ? text : "") : code;
}

tn_status api_report(tn_ctx *ctx, const err *e) {
    ctx->err.code = e->code;
    if (&ctx->err != e) memcpy(ctx->err.text, e->text, strlen(e->text) + 1);
    return e->code;
}
