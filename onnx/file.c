/* file.c - files as they lie in the page cache: models, and external data within a model's folder.
 *
 * In: paths, of which those of external data come from an untrusted file: relative, without "..", and no part of them a
 * symbolic link. Out: read-only mappings, which the model owns. */
#include "onnx.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void ONNX_NORETURN fail_errno(onnx_env *env, const char *path, const char *what) {
    char buffer[128];
    const char *reason = strerror_r(errno, buffer, sizeof buffer);
    onnx_fail(env, TN_ERR_IO, "%s: %s: %s", path, what, reason);
}

/* Closes fd in any case. */
static void map_open(onnx_env *env, int fd, const char *path, onnx_mapping *out) {
    struct stat st;
    void *at = NULL;
    if (fd < 0) fail_errno(env, path, "cannot open");
    bool known = fstat(fd, &st) == 0, regular = known && S_ISREG(st.st_mode);
    if (regular && st.st_size) at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int saved = errno;
    close(fd);
    errno = saved;
    if (!known) fail_errno(env, path, "cannot stat");
    if (!regular) onnx_fail(env, TN_ERR_IO, "%s: not a regular file", path);
    if (at == MAP_FAILED) fail_errno(env, path, "cannot map");
    *out = (onnx_mapping){ at, (size_t)st.st_size };
}

void onnx_map(onnx_env *env, const char *path, bool follow, onnx_mapping *out) {
    map_open(env, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW)), path, out);
}

void onnx_unmap(onnx_mapping *map) {
    if (map->bytes) munmap((void *)(uintptr_t)map->bytes, map->size);
    *map = (onnx_mapping){ 0 };
}

/* The first of a path's parts, copied; what follows it. */
static const char *part_of(onnx_env *env, const char *path, char *out, size_t cap) {
    size_t n = strcspn(path, "/");
    bool dots = (n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.');
    if (!n || dots || n >= cap)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: external data in '%s': only relative paths below the model are read", env->file,
                  path);
    memcpy(out, path, n);
    out[n] = 0;
    return path[n] ? path + n + 1 : path + n;
}

/* One folder after the other, so that no part may be a symbolic link. */
static int open_below(onnx_env *env, const char *folder, const char *location) {
    char part[256];
    for (const char *rest = location; *rest;)
        rest = part_of(env, rest, part, sizeof part); /* refused before anything is open */
    if (!*location || location[strlen(location) - 1] == '/')
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: external data in '%s': no file", env->file, location);
    int at = open(*folder ? folder : ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    for (const char *rest = location; *rest && at >= 0;) {
        rest = part_of(env, rest, part, sizeof part);
        int next = openat(at, part, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (*rest ? O_DIRECTORY : 0));
        int saved = errno;
        close(at);
        errno = saved;
        at = next;
    }
    return at;
}

const onnx_mapping *onnx_external_map(onnx_env *env, tn_onnx_model *m, const char *location) {
    for (onnx_external *e = m->externals; e; e = e->next)
        if (!strcmp(e->location, location)) return &e->map;
    onnx_mapping map;
    size_t n = strlen(location) + 1;
    map_open(env, open_below(env, m->folder, location), location, &map);
    onnx_external *e = tn_ctx_realloc(env->ctx, NULL, 0, sizeof *e + n);
    if (!e) {
        onnx_unmap(&map);
        onnx_fail(env, TN_ERR_NOMEM, "%s: out of memory: external data", env->file);
    }
    *e = (onnx_external){ .map = map, .next = m->externals };
    memcpy(e->location, location, n);
    return &(m->externals = e)->map;
}

const char *tn_onnx_external(const tn_onnx_model *m, int i) {
    const onnx_external *e = m ? m->externals : NULL;
    while (e && i-- > 0) e = e->next;
    return e && i == -1 ? e->location : NULL;
}

void onnx_externals_free(tn_onnx_model *m) {
    while (m->externals) {
        onnx_external *e = m->externals;
        m->externals = e->next;
        onnx_unmap(&e->map);
        (void)tn_ctx_realloc(m->env.ctx, e, sizeof *e + strlen(e->location) + 1, 0);
    }
}
