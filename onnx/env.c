/* env.c - memory and errors of an import: an arena with a budget, and the guard that errors jump to.
 *
 * In: sizes that were computed from a file. Out: zeroed memory of the context, or a jump. All of it goes at once. */
#include "onnx.h"

#include <stdarg.h>
#include <stdio.h>

enum { CHUNK = 16384, ALIGN = 16, LARGE = 1 << 18, HUGE_PAGE = 2 << 20, MOST_SPARE = 32 << 20 };
struct onnx_chunk {
    onnx_chunk *before;
    size_t size, used; /* bytes after this head */
    _Alignas(ALIGN) unsigned char bytes[];
};

tn_status onnx_try(onnx_env *env, void (*body)(void *arg), void *arg) {
    jmp_buf here, *volatile before = env->guard;
    volatile tn_status s = TN_OK;
    env->guard = &here;
    if (setjmp(here) == 0)
        body(arg);
    else
        s = env->status;
    env->guard = before;
    return s;
}

void onnx_fail(onnx_env *env, tn_status code, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    env->status = tn_ctx_fail(env->ctx, code, text);
    longjmp(*env->guard, 1);
}

void onnx_again(onnx_env *env, tn_status s) {
    env->status = s;
    longjmp(*env->guard, 1);
}

static void free_chunk(onnx_env *env, onnx_chunk *c) {
    if (c) (void)tn_ctx_realloc(env->ctx, c, sizeof *c + c->size, 0);
}

/* Large ones take whole huge pages, which the context's memory has then, and one of them is used again: pages that are touched
 * for the first time take longer than what is done with filters. */
static onnx_chunk *add_chunk(onnx_env *env, size_t bytes) {
    size_t size = bytes > CHUNK / 4 ? bytes : CHUNK;
    if (size > env->budget - env->taken)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: the model takes more than %zu bytes to read", env->file, env->budget);
    env->taken += size;
    onnx_chunk *c = size >= LARGE ? env->spare : NULL;
    if (c) env->spare = NULL;
    if (c && c->size < size) {
        free_chunk(env, c);
        c = NULL;
    }
    if (size >= LARGE) size = (sizeof *c + size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE - sizeof *c;
    if (c)
        size = c->size;
    else
        c = tn_ctx_realloc(env->ctx, NULL, 0, sizeof *c + size);
    if (!c) onnx_fail(env, TN_ERR_NOMEM, "%s: out of memory: %zu bytes", env->file, size);
    *c = (onnx_chunk){ .before = env->chunks, .size = size };
    return env->chunks = c;
}

void *onnx_room(onnx_env *env, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 4)
        onnx_fail(env, TN_ERR_NOMEM, "%s: out of memory: %zu times %zu bytes", env->file, n, size);
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    onnx_chunk *c = env->chunks;
    if (!c || bytes > c->size - c->used) c = add_chunk(env, bytes);
    void *at = c->bytes + c->used;
    c->used += bytes;
    return at;
}

void *onnx_new(onnx_env *env, size_t n, size_t size) {
    void *at = onnx_room(env, n, size);
    return memset(at, 0, n * size);
}

char *onnx_format(onnx_env *env, const char *fmt, ...) {
    char text[3072];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    text[len] = 0;
    return memcpy(onnx_new(env, len + 1, 1), text, len + 1);
}

onnx_mark onnx_here(const onnx_env *env) { return (onnx_mark){ env->chunks, env->chunks ? env->chunks->used : 0, env->taken }; }

void onnx_back(onnx_env *env, onnx_mark m) {
    while (env->chunks != m.chunk) {
        onnx_chunk *c = env->chunks;
        env->chunks = c->before;
        bool keep = !env->spare && c->size >= LARGE && c->size <= MOST_SPARE;
        if (keep)
            env->spare = c;
        else
            free_chunk(env, c);
    }
    if (env->chunks) env->chunks->used = m.used;
    env->taken = m.taken;
}

void onnx_release(onnx_env *env) {
    onnx_back(env, (onnx_mark){ 0 });
    free_chunk(env, env->spare);
    env->spare = NULL;
}
