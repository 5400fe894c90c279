/* table.c - the table of ops, from ops.def, and how one is found by its name. */
#include "import.h"

#define UNARY(name, builder, flags)
#define BINARY(name, builder, flags)
#define OP(name, least, most, flags, handler) void onnx_op_##handler(onnx_call *c);
#define OP_IN(domain, name, least, most, flags, handler) void onnx_op_##handler(onnx_call *c);
#include "ops.def"

#define UNARY(name, builder, flags) { onnx_op_unary, { .unary = builder }, #name, 1, 1, 0, (flags) | ROW_DIMS },
#define BINARY(name, builder, flags) { onnx_op_binary, { .binary = builder }, #name, 2, 2, 0, (flags) | ROW_DIMS },
#define OP_IN(domain, name, least, most, flags, handler)                                                                       \
    { onnx_op_##handler, { NULL }, #name, least, most, sizeof domain - 1, flags },
#define OP(name, least, most, flags, handler) OP_IN("", name, least, most, flags, handler)
static const onnx_row rows[] = {
#include "ops.def"
};

const onnx_row *onnx_find_row(const char *domain, const char *op) {
    static const char domains[][28] = { "", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training" };
    for (int d = 0; d < ONNX_COUNT(domains); d++) {
        size_t n = strlen(domains[d]);
        for (int i = 0; i < ONNX_COUNT(rows) && !strcmp(domains[d], domain); i++)
            if (rows[i].domain == n && rows[i].name[0] == op[0] && !strcmp(rows[i].name, op)) return &rows[i];
    }
    return NULL;
}
