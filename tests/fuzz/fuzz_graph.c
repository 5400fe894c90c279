/* fuzz_graph.c - any bytes as the text of a graph. What parses must check, print, parse back, and print the same again. */
#include "tenon/tenon.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    char *first = NULL, *second = NULL;
    tn_graph *again = NULL, *g = tn_graph_parse(ctx, (const char *)data, size, "f.tn");
    if (!g) {
        if (!tn_ctx_status(ctx) || !*tn_ctx_error(ctx)) abort();
        goto done;
    }
    if (tn_graph_check(g) || tn_graph_print(g, &first)) abort();
    again = tn_graph_parse(ctx, first, strlen(first), "printed.tn");
    if (!again || tn_graph_print(again, &second) || strcmp(first, second)) abort();
done:
    tn_string_free(ctx, first);
    tn_string_free(ctx, second);
    tn_graph_free(again);
    tn_graph_free(g);
    tn_ctx_free(ctx);
    return 0;
}
