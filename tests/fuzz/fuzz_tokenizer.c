/* fuzz_tokenizer.c - any bytes as a tokenizer.json, then the same bytes as text for it: what is accepted encodes and decodes.
 */
#include "tenon/tenon_text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_bpe *b = NULL;
    tn_status s = tn_bpe_parse_json(ctx, data, size, "f", &b);
    if (s && (b || !*tn_ctx_error(ctx))) abort();
    if (!s) {
        int32_t *ids = calloc(2 * size + 2, sizeof *ids);
        size_t n, bytes;
        if (ids && !tn_bpe_encode(ctx, b, (const char *)data, size, 1, ids, 2 * size + 2, &n) && n <= 2 * size + 2 &&
            tn_bpe_decode(ctx, b, ids, n, NULL, 0, &bytes))
            abort();
        free(ids);
    }
    tn_bpe_free(ctx, b);
    tn_ctx_free(ctx);
    return 0;
}
