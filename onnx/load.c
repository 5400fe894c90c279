/* load.c - the public import: a model and the table of ops come together. */
#include "import.h"

tn_status tn_onnx_import(tn_onnx_model *m, const tn_onnx_opts *opts, tn_graph **out) {
    return m ? onnx_import_model(m, opts, onnx_find_row, out) : TN_ERR_INVAL;
}

tn_status tn_onnx_load(tn_ctx *ctx, const char *path, const tn_onnx_opts *opts, tn_graph **out) {
    tn_onnx_model *m;
    tn_status s = tn_onnx_open(ctx, path, &m);
    if (s) return s;
    s = tn_onnx_import(m, opts, out);
    tn_onnx_model_free(m);
    return s;
}
