/* ops.c - the op table as data. In: ops.def. Out: op_get, op_find. All memory is constant. */
#include "ir/graph.h"

static const op_info op_table[N_OPS] = {
    [OP_NIL] = { .name = "nil", .cls = CL_NIL, .expr = "", .doc = "no op" },
#define UNARY(name_, cls_, expr_, flops_, ulp_, lo_, hi_, gx, doc_)                                                            \
    [OP_##name_] = { #name_, CL_##cls_, 1, flops_, ulp_, lo_, hi_, #expr_, doc_, #gx },
#define BINARY(name_, cls_, expr_, flops_, ulp_, lo_, hi_, gx, gy, doc_)                                                       \
    [OP_##name_] = { #name_, CL_##cls_, 2, flops_, ulp_, lo_, hi_, #expr_, doc_, #gx "; " #gy },
#define TERNARY(name_, cls_, expr_, flops_, ulp_, lo_, hi_, gx, gy, gz, doc_)                                                  \
    [OP_##name_] = { #name_, CL_##cls_, 3, flops_, ulp_, lo_, hi_, #expr_, doc_, #gx "; " #gy "; " #gz },
#define OP(name_, cls_, arity_, attr_, doc_) [OP_##name_] = { #name_, CL_##cls_, arity_, 0, 0, 0, 0, attr_, doc_, NULL },
#include "ir/ops.def"
};

const op_info *op_get(op_code op) { return &op_table[(unsigned)op < N_OPS ? op : OP_NIL]; }

op_code op_find(const char *name) {
    for (int i = OP_NIL + 1; i < N_OPS; i++)
        if (!strcmp(op_table[i].name, name)) return (op_code)i;
    return OP_NIL;
}
