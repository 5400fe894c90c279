/* gen_ops_header.c - host tool of the build: writes tenon_ops.h (the elementwise builders) from src/ir/ops.def. */
#include <stdio.h>

static FILE *f;
static void unary(const char *name, const char *doc) {
    fprintf(f, "/* %s */\nTN_API tn_tensor tn_%s(tn_tensor x);\n", doc, name);
}
static void binary(const char *name, const char *doc) {
    fprintf(f, "/* %s */\nTN_API tn_tensor tn_%s(tn_tensor x, tn_tensor y);\n", doc, name);
}
static void ternary(const char *name, const char *doc) {
    fprintf(f, "/* %s */\nTN_API tn_tensor tn_%s(tn_tensor x, tn_tensor y, tn_tensor z);\n", doc, name);
}

int main(int argc, char **argv) {
    if (argc != 2 || !(f = fopen(argv[1], "w"))) return 2;
    fprintf(f, "/* tenon_ops.h - elementwise builders, written from the op table by the build; included by tenon.h. */\n");
#define UNARY(name, cls, expr, flops, ulp, lo, hi, gx, doc) unary(#name, doc);
#define BINARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, doc) binary(#name, doc);
#define TERNARY(name, cls, expr, flops, ulp, lo, hi, gx, gy, gz, doc) ternary(#name, doc);
#define OP(name, cls, arity, attr, doc)
#include "ir/ops.def"
    fprintf(f, "\n#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)\n");
#define UNARY(name, ...) fprintf(f, "#define tn_%s(x) (tn_%s)(tn_at(x, TN_HERE))\n", #name, #name);
#define BINARY(name, ...) fprintf(f, "#define tn_%s(x, ...) (tn_%s)(tn_at(x, TN_HERE), __VA_ARGS__)\n", #name, #name);
#define TERNARY(name, ...) fprintf(f, "#define tn_%s(x, ...) (tn_%s)(tn_at(x, TN_HERE), __VA_ARGS__)\n", #name, #name);
#define OP(name, cls, arity, attr, doc)
#include "ir/ops.def"
    fprintf(f, "#endif\n");
    return fclose(f) ? 2 : 0;
}
