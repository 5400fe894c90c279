/* fuzz_onnx.c - any bytes as an ONNX model, imported with a size or a range for "batch"; what is accepted is checked as a
 * graph. */
#include "tenon/tenon_onnx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_onnx_model *m = NULL;
    tn_graph *g = NULL;
    tn_onnx_dim d = { "batch", 2 };
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    o.dims = &d, o.n_dims = 1;
    tn_status s = tn_onnx_parse(ctx, data, size, "f", NULL, &m);
    tn_onnx_range r = { "batch", 1, 6, 1 };
    if (!s && size % 2) o.n_dims = 0, o.ranges = &r, o.n_ranges = 1;
    if (!s) s = tn_onnx_import(m, &o, &g);
    if (s && (g || !*tn_ctx_error(ctx))) abort();
    if (!s && tn_graph_check(g)) abort();
    tn_graph_free(g);
    tn_onnx_model_free(m);
    tn_ctx_free(ctx);
    return 0;
}
