/* save.c - programs as files. In: paths. Out: files that appear whole, and programs from them. */
#include "api/api.h"
#include "drive/drive.h"

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
    w->why = dir < 0 ? errno : !*name ? EISDIR : file_replace(dir, name, w->j->pieces.at, w->j->pieces.n, 0666);
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
    tn_status code = path ? api_try(&gd, write_out, &w) : err_set(&e, TN_ERR_INVAL, "tn_program_save: path is NULL");
    if (path && code)
        err_set(&e, code, "tn_program_save: %s", gd.err.text);
    else if (w.why)
        code = err_set(&e, TN_ERR_IO, "%s: %s", path, strerror(w.why));
    arena_fini(&a);
    return code ? ctx_report(p->ctx, &e) : TN_OK;
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
    tn_status code = fd < 0 ? err_set(&e, TN_ERR_IO, "%s", strerror(errno)) : file_map(fd, &f, &e);
    if (fd >= 0) close(fd);
    if (!code) code = drive_load(ctx, f, NULL, out, &e);
    if (!code) return TN_OK;
    err named;
    err_set(&named, code, "%s: %s", path, e.text);
    return api_report(ctx, &named);
}
