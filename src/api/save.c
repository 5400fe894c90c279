/* save.c - programs as files. In: paths. Out: files that appear whole, and programs from them. */
#include "api/api.h"
#include "drive/drive.h"
#include "rt/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

typedef struct job {
    const tn_program *p;
    const drive_made_of *made_of;
    arena *a;
    drive_saved pieces;
} job;

static void save(void *arg) {
    job *j = arg;
    drive_save(j->p, j->made_of, j->a, &j->pieces);
}

/* The folder of a path; *out_name is what follows. -1: errno says why. */
static int open_folder(arena *a, const char *path, const char **out_name) {
    const char *slash = strrchr(path, '/');
    *out_name = slash ? slash + 1 : path;
    char *folder = slash ? arena_strdup(a, path) : NULL;
    if (folder) folder[slash == path ? 1 : slash - path] = 0;
    return open(folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

typedef struct written {
    job *j;
    const char *path;
    int why;
} written;
static void write_out(void *arg) {
    written *w = arg;
    const char *name;
    save(w->j);
    int dir = open_folder(w->j->a, w->path, &name);
    w->why = dir < 0 ? errno : !*name ? EISDIR : file_replace(dir, name, w->j->pieces.at, w->j->pieces.n, 0666, true);
    if (dir >= 0) close(dir);
}

tn_status tn_program_save(const tn_program *p, const char *path) {
    if (!p) return TN_ERR_INVAL;
    err e = { 0 };
    guard gd;
    arena a;
    arena_init(&a, p->ctx->mem, &gd);
    job j = { .p = p, .made_of = &(drive_made_of){ 0 }, .a = &a };
    written w = { &j, path, 0 };
    tn_status st = path ? api_try(&gd, write_out, &w) : err_set(&e, TN_ERR_INVAL, "tn_program_save: path is NULL");
    if (path && st)
        err_set(&e, st, "tn_program_save: %s", gd.err.text);
    else if (w.why)
        st = err_set(&e, TN_ERR_IO, "%s: %s", path, strerror(w.why));
    arena_fini(&a);
    return st ? ctx_report(p->ctx, &e) : TN_OK;
}

tn_status tn_program_load(tn_ctx *ctx, const char *path, tn_program **out) {
    if (!ctx) return TN_ERR_INVAL;
    err e = { 0 };
    file_view f;
    ctx_enter(ctx);
    if (out) *out = NULL;
    if (!path || !out) {
        err_set(&e, TN_ERR_INVAL, "tn_program_load: path or out_program is NULL");
        return api_report(ctx, &e);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    tn_status st = fd < 0 ? err_set(&e, TN_ERR_IO, "%s", strerror(errno)) : file_map(fd, &f, &e);
    if (fd >= 0) close(fd);
    if (!st) st = drive_load(ctx, f, NULL, out, &e);
    if (!st) return TN_OK;
    err named;
    err_set(&named, st, "%s: %s", path, e.text);
    return api_report(ctx, &named);
}

/* ---- in the cache ---- */

tn_status tn_program_keep(const tn_program *p, const char *key, const char *const *files, int n_files) {
    if (!p) return TN_ERR_INVAL;
    err e = { 0 };
    guard gd;
    arena a;
    arena_init(&a, p->ctx->mem, &gd);
    char boot[BOOT_ID_BYTES]; /* syncing takes seconds: after the next start of the machine the file is summed instead */
    file_boot_id(boot);
    if (!*boot) boot[0] = '?'; /* each time */
    job j = { .p = p, .made_of = &(drive_made_of){ key, files, n_files, p->ctx->made, boot, NULL }, .a = &a };
    disk *d = p->ctx->cache ? cache_disk(p->ctx->cache) : NULL;
    tn_status st = TN_OK;
    if (!key || n_files < 0 || (n_files && !files))
        st = err_set(&e, TN_ERR_INVAL, "tn_program_keep: key or files is NULL");
    else if (!d)
        st = err_set(&e, TN_ERR_UNSUPPORTED, "tn_program_keep: there is no cache directory");
    else if ((st = api_try(&gd, save, &j)))
        err_set(&e, st, "tn_program_keep: %s", gd.err.text);
    else if (!disk_store_program(d, hash_bytes128(key, strlen(key)), j.pieces.at, j.pieces.n))
        st = err_set(&e, TN_ERR_UNSUPPORTED, "tn_program_keep: the cache has no room for it, or cannot be written to");
    arena_fini(&a);
    return st ? ctx_report(p->ctx, &e) : TN_OK;
}

tn_status tn_program_find(tn_ctx *ctx, const char *key, tn_program **out) {
    if (!ctx) return TN_ERR_INVAL;
    err e = { 0 };
    file_view f;
    ctx_enter(ctx);
    if (out) *out = NULL;
    tn_status st = key && out ? ctx_cache(ctx, &e) : err_set(&e, TN_ERR_INVAL, "tn_program_find: key or out_program is NULL");
    if (st) return api_report(ctx, &e);
    disk *d = cache_disk(ctx->cache);
    int fd = d ? disk_open_program(d, hash_bytes128(key, strlen(key))) : -1;
    if (fd < 0) return TN_OK;
    bool whole = false;
    st = file_map(fd, &f, &e);
    if (!st) st = drive_load(ctx, f, &(drive_made_of){ .key = key, .out_whole = &whole }, out, &e);
    if (whole) drive_save_boot(fd);
    close(fd);
    return st == TN_ERR_NOMEM ? api_report(ctx, &e) : TN_OK; /* for any other reason it is compiled again */
}
