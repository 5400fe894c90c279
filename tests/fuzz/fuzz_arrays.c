/* fuzz_arrays.c - any bytes as an npy file and as a CSV table of each dtype. */
#include "tenon/tenon_io.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(tn_ctx *ctx, tn_status s, tn_dtype dtype, tn_shape shape, void *array) {
    if (s && (array || !*tn_ctx_error(ctx))) abort();
    size_t n = tn_dtype_size(dtype);
    for (int i = 0; i < shape.rank; i++) n *= (size_t)shape.dim[i];
    volatile uint8_t sum = 0;
    for (size_t i = 0; !s && i < n; i++) sum ^= ((uint8_t *)array)[i];
    tn_io_free(ctx, array);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const tn_dtype csv[] = { TN_F32, TN_F64, TN_I32, TN_I64 };
    if (size < 1) return 0;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_dtype dtype = TN_F32;
    tn_shape shape = { 0 };
    void *array = NULL;
    tn_status s;
    if (data[0] & 1) {
        s = tn_io_npy_parse(ctx, data + 1, size - 1, "f", &dtype, &shape, &array);
    } else {
        dtype = csv[data[0] >> 1 & 3];
        s = tn_io_csv_parse(ctx, data + 1, size - 1, "f", dtype, data[0] >> 3 & 3, &shape, &array);
    }
    touch(ctx, s, dtype, shape, array);
    tn_ctx_free(ctx);
    return 0;
}
