/* table.c - the table of ops, from ops.def, and how one is found by its name. */
#include "import.h"

#define UNARY(name, builder, flags)
#define BINARY(name, builder, flags)
#define OP(name, least, most, flags, handler) void onnx_op_##handler(onnx_call *c);
#define OP_IN(domain, name, least, most, flags, handler) void onnx_op_##handler(onnx_call *c);
#include "ops.def"

#define UNARY(name, builder, flags) { #name, "", 1, 1, flags, onnx_op_unary, builder, NULL },
#define BINARY(name, builder, flags) { #name, "", 2, 2, flags, onnx_op_binary, NULL, builder },
#define OP_IN(domain, name, least, most, flags, handler) { #name, domain, least, most, flags, onnx_op_##handler, NULL, NULL },
#define OP(name, least, most, flags, handler) { #name, "", least, most, flags, onnx_op_##handler, NULL, NULL },
static const onnx_row rows[] = {
#include "ops.def"
};

const onnx_row *onnx_find_row(const char *domain, const char *op) {
    for (int i = 0; i < ONNX_COUNT(rows); i++)
        if (rows[i].name[0] == op[0] && !strcmp(rows[i].name, op) && !strcmp(rows[i].domain, domain)) return &rows[i];
    return NULL;
}
