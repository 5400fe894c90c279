/* memory.c - memory and errors of the tokenizer's files: from the context's allocator, with the text in the context. */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

tn_status text_fail(tn_ctx *ctx, tn_status code, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tn_ctx_fail(ctx, code, text);
}

bool text_grow(tn_ctx *ctx, void *at, size_t *room, size_t need, size_t size) {
    void *old, *new;
    if (need <= *room) return true;
    size_t more = *room + *room / 2 > need ? *room + *room / 2 : need;
    memcpy(&old, at, sizeof old);
    new = more > SIZE_MAX / size ? NULL : tn_ctx_realloc(ctx, old, *room * size, more * size);
    if (!new) {
        (void)text_fail(ctx, TN_ERR_NOMEM, "out of memory: %zu elements of %zu bytes for a tokenizer", more, size);
        return false;
    }
    memcpy(at, &new, sizeof new);
    *room = more;
    return true;
}

void text_free(tn_ctx *ctx, void *at, size_t room, size_t size) {
    if (at) (void)tn_ctx_realloc(ctx, at, room * size, 0);
}
