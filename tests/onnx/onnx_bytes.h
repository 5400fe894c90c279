/* onnx_bytes.h - ONNX files by hand: the protobuf wire format written field by field. */
#ifndef TESTS_ONNX_ONNX_BYTES_H
#define TESTS_ONNX_ONNX_BYTES_H

#include "io/io_test.h"
#include "tenon/tenon_onnx.h"

enum { BYTES = 1 << 17 };
typedef struct bytes {
    uint8_t at[BYTES];
    size_t n;
} bytes;

static inline void put_varint(bytes *b, uint64_t v) {
    for (; v >= 128; v >>= 7) b->at[b->n++] = (uint8_t)(v | 128);
    b->at[b->n++] = (uint8_t)v;
}
static inline void put_int(bytes *b, uint32_t field, uint64_t v) {
    put_varint(b, field << 3);
    put_varint(b, v);
}
static inline void put_bytes(bytes *b, uint32_t field, const void *data, size_t n) {
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    assert_true(b->n + n <= BYTES);
    if (n) memcpy(b->at + b->n, data, n);
    b->n += n;
}
static inline void put_text(bytes *b, uint32_t field, const char *s) { put_bytes(b, field, s, strlen(s)); }
static inline void put_message(bytes *b, uint32_t field, const bytes *inner) { put_bytes(b, field, inner->at, inner->n); }

enum { F32 = 1, I32 = 6, I64 = 7 }; /* TensorProto.DataType */

/* Dims below 0 are named: -1 is "batch", -2 "seq", -3 "past seq", -4 their sum. */
static inline void put_port(bytes *graph, uint32_t field, const char *name, int elem, const int64_t *dims, int rank) {
    bytes *m = calloc(4, sizeof *m), *shape = m + 1, *type = m + 2, *tensor = m + 3;
    for (int i = 0; i < rank; i++) {
        bytes dim = { .n = 0 };
        if (dims[i] < 0)
            put_text(&dim, 2, (const char *const[]){ "batch", "seq", "past seq", "past seq + seq" }[-1 - dims[i]]);
        else
            put_int(&dim, 1, (uint64_t)dims[i]);
        put_message(shape, 1, &dim);
    }
    put_int(tensor, 1, (uint64_t)elem);
    put_message(tensor, 2, shape);
    put_message(type, 1, tensor);
    put_text(m, 1, name);
    put_message(m, 2, type);
    put_message(graph, field, m);
    free(m);
}

static inline bytes tensor_message(const char *name, int elem, const int64_t *dims, int rank, const void *raw, size_t n) {
    bytes t = { .n = 0 };
    for (int i = 0; i < rank; i++) put_int(&t, 1, (uint64_t)dims[i]);
    put_int(&t, 2, (uint64_t)elem);
    put_text(&t, 8, name);
    if (raw) put_bytes(&t, 9, raw, n);
    return t;
}

/* "MatMul x w -> h" */
static inline bytes node_message(const char *text) {
    bytes n = { .n = 0 };
    char copy[256], *word, *rest = copy;
    bool results = false;
    snprintf(copy, sizeof copy, "%s", text);
    put_text(&n, 4, strtok_r(rest, " ", &rest));
    while ((word = strtok_r(NULL, " ", &rest))) {
        if (!strcmp(word, "->"))
            results = true;
        else
            put_text(&n, results ? 2 : 1, word);
    }
    return n;
}
static inline void put_attr_int(bytes *node, const char *name, int64_t v) {
    bytes a = { .n = 0 };
    put_text(&a, 1, name);
    put_int(&a, 3, (uint64_t)v);
    put_int(&a, 20, 2);
    put_message(node, 5, &a);
}
static inline void put_node(bytes *graph, const char *text) {
    bytes n = node_message(text);
    put_message(graph, 1, &n);
}

static inline bytes model_message(const bytes *graph, int opset) {
    bytes m = { .n = 0 }, set = { .n = 0 };
    put_int(&m, 1, 8);
    put_int(&set, 2, (uint64_t)opset);
    put_message(&m, 8, &set);
    put_message(&m, 7, graph);
    return m;
}

#endif
