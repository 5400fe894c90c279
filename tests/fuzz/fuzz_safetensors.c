/* fuzz_safetensors.c - any bytes as a safetensors file. With an even first byte the rest is a header and the length fields
 * before it are made right, so that the search is not spent on them; then whatever was accepted is saved, loaded again and
 * compared. */
#include "tenon/tenon_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t bytes_of(const tn_io_tensor *t) {
    size_t n = tn_dtype_size(t->dtype);
    for (int i = 0; i < t->shape.rank; i++) n *= (size_t)t->shape.dim[i];
    return n;
}

static void check_same(tn_ctx *ctx, const tn_io_tensors *a) {
    int n = tn_io_tensors_count(a);
    tn_io_tensor *list = calloc((size_t)n + 1, sizeof *list);
    for (int i = 0; i < n; i++) list[i] = *tn_io_tensors_get(a, i);
    char path[] = "/tmp/tenon-fuzz-XXXXXX";
    tn_io_tensors *b = NULL;
    if (mkdtemp(path)) {
        char file[64];
        strcat(strcpy(file, path), "/f");
        if (tn_io_safetensors_save(ctx, file, list, n) || tn_io_safetensors_load(ctx, file, &b)) abort();
        remove(file), remove(path);
    }
    for (int i = 0; b && i < n; i++) {
        const tn_io_tensor *t = tn_io_tensors_find(b, list[i].name);
        if (!t || t->dtype != list[i].dtype || t->shape.rank != list[i].shape.rank ||
            memcmp(t->data, list[i].data, bytes_of(t)))
            abort();
    }
    tn_io_tensors_free(b);
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_io_tensors *t = NULL;
    tn_status s;
    if (size < 2 || data[0] & 1) {
        s = tn_io_safetensors_parse(ctx, data, size, "f", &t);
    } else {
        size_t n = 8 + (size - 2) + data[1];
        uint8_t *file = calloc(1, n);
        for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)(size - 2) >> 8 * i);
        memcpy(file + 8, data + 2, size - 2);
        s = tn_io_safetensors_parse(ctx, file, n, "f", &t);
        free(file);
    }
    if (!s && tn_io_tensors_count(t) > 0) check_same(ctx, t);
    if (s && (t || !*tn_ctx_error(ctx))) abort();
    tn_io_tensors_free(t);
    tn_ctx_free(ctx);
    return 0;
}
