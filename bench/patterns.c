/* patterns.c - loops over memory in several orders and layouts, for `tenon bench memory`: plain C, whole numbers, so that every
 * sum is exact and every result can be compared bit by bit. */
#include "patterns.h"

#include <string.h>

#define LOOP __attribute__((noinline)) static void

/* ---- access: a footprint of n numbers (a power of two) in several orders ------------------------------------------------- */

static void sum_stride(pattern_data *d, int64_t stride) {
    int32_t sum = 0;
    for (int64_t i = 0; i < d->n; i += stride) sum += d->a[i];
    d->sum = sum;
}
LOOP sequential(pattern_data *d) { sum_stride(d, 1); }
LOOP stride_2(pattern_data *d) { sum_stride(d, 2); }
LOOP stride_4(pattern_data *d) { sum_stride(d, 4); }
LOOP stride_16(pattern_data *d) { sum_stride(d, 16); }
/* All elements, in an order that wraps around: the stride is odd, n a power of two. */
static void sum_wrapped(pattern_data *d, uint64_t stride) {
    int32_t sum = 0;
    uint64_t mask = (uint64_t)d->n - 1;
    for (uint64_t i = 0; i <= mask; i++) sum += d->a[(i * stride) & mask];
    d->sum = sum;
}
LOOP wrapped_5(pattern_data *d) { sum_wrapped(d, 5); }
LOOP wrapped_17(pattern_data *d) { sum_wrapped(d, 17); }
LOOP hashed(pattern_data *d) {
    int32_t sum = 0;
    uint64_t mask = (uint64_t)d->n - 1;
    for (uint64_t i = 0; i <= mask; i++) {
        uint64_t h = i * 0x9E3779B97F4A7C15u; /* spreads neighbours over the whole range */
        sum += d->a[(h ^ (h >> 32)) & mask];
    }
    d->sum = sum;
}

/* ---- layout: an n x n matrix, rows `pitch` numbers apart; records of eight fields -----------------------------------------
 */

LOOP by_rows(pattern_data *d) {
    int32_t sum = 0;
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t j = 0; j < d->n; j++) sum += d->a[i * d->pitch + j];
    d->sum = sum;
}
LOOP by_columns(pattern_data *d) {
    int32_t sum = 0;
    for (int64_t j = 0; j < d->n; j++)
        for (int64_t i = 0; i < d->n; i++) {
            sum += d->a[i * d->pitch + j];
            __asm__ volatile("" : "+r"(sum)); /* the compiler must not swap the loops */
        }
    d->sum = sum;
}
enum { FIELDS = 8 };
LOOP one_field_of_records(pattern_data *d) {
    int32_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += d->a[i * FIELDS];
    d->sum = sum;
}
LOOP one_field_of_arrays(pattern_data *d) {
    int32_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += d->a[i];
    d->sum = sum;
}
/* Field k + 4 is added to field k: b = f(a), record by record. */
LOOP all_fields_of_records(pattern_data *d) {
    for (int64_t i = 0; i < d->n; i++) {
        const int32_t *r = d->a + i * FIELDS;
        for (int k = 0; k < FIELDS / 2; k++) d->b[i * FIELDS / 2 + k] = r[k] + r[k + FIELDS / 2];
    }
}
LOOP all_fields_of_arrays(pattern_data *d) {
    for (int k = 0; k < FIELDS / 2; k++) {
        const int32_t *x = d->a + k * d->n, *y = d->a + (k + FIELDS / 2) * d->n;
        int32_t *out = d->b + k * d->n;
        for (int64_t i = 0; i < d->n; i++) out[i] = x[i] + y[i];
    }
}

/* Many arrays, one after the other in memory, read side by side. */
enum { STREAMS = pattern_streams };
LOOP add_streams(pattern_data *d) {
    const int32_t *a = d->a;
    int64_t p = d->pitch;
    for (int64_t i = 0; i < d->n; i++)
        d->b[i] = a[i] + a[p + i] + a[2 * p + i] + a[3 * p + i] + a[4 * p + i] + a[5 * p + i] + a[6 * p + i] + a[7 * p + i] +
                  a[8 * p + i] + a[9 * p + i] + a[10 * p + i] + a[11 * p + i];
}

/* ---- transposition and permutation --------------------------------------------------------------------------------------- */

LOOP transpose_naive(pattern_data *d) {
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t j = 0; j < d->n; j++) d->b[j * d->pitch + i] = d->a[i * d->pitch + j];
}
LOOP transpose_blocked(pattern_data *d) {
    enum { BLOCK = 16 };
    for (int64_t i0 = 0; i0 < d->n; i0 += BLOCK)
        for (int64_t j0 = 0; j0 < d->n; j0 += BLOCK)
            for (int64_t i = i0; i < i0 + BLOCK && i < d->n; i++)
                for (int64_t j = j0; j < j0 + BLOCK && j < d->n; j++) d->b[j * d->pitch + i] = d->a[i * d->pitch + j];
}
/* The permuted array is read four times: through the index each time, or moved once and then read in order. */
enum { READS = 4 };
LOOP read_through_index(pattern_data *d) {
    int32_t sum = 0;
    for (int r = 0; r < READS; r++)
        for (int64_t i = 0; i < d->n; i++) sum += d->a[d->index[i]] * (int32_t)(i & 3);
    d->sum = sum;
}
LOOP move_then_read(pattern_data *d) {
    int32_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) d->b[i] = d->a[d->index[i]];
    for (int r = 0; r < READS; r++)
        for (int64_t i = 0; i < d->n; i++) sum += d->b[i] * (int32_t)(i & 3);
    d->sum = sum;
}
/* Rows of 64 numbers stay together: n / 64 of them are permuted. */
enum { ROW = 64 };
LOOP read_permuted_rows(pattern_data *d) {
    int32_t sum = 0;
    for (int r = 0; r < READS; r++)
        for (int64_t i = 0; i < d->n / ROW; i++) {
            const int32_t *row = d->a + (int64_t)d->index[i] % (d->n / ROW) * ROW;
            for (int64_t k = 0; k < ROW; k++) sum += row[k] * (int32_t)(k & 3);
        }
    d->sum = sum;
}

/* ---- what they must give, the slow way ----------------------------------------------------------------------------------- */

static int32_t want_stride(const pattern_data *d, int64_t stride) {
    int64_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += i % stride ? 0 : d->a[i];
    return (int32_t)sum;
}
static bool right_1(const pattern_data *d) { return d->sum == want_stride(d, 1); }
static bool right_2(const pattern_data *d) { return d->sum == want_stride(d, 2); }
static bool right_4(const pattern_data *d) { return d->sum == want_stride(d, 4); }
static bool right_16(const pattern_data *d) { return d->sum == want_stride(d, 16); }
static bool right_hashed(const pattern_data *d) {
    int64_t sum = 0;
    for (int64_t i = d->n - 1; i >= 0; i--) {
        uint64_t low = 0; /* the product, bit by bit */
        for (int k = 0; k < 64; k++) low += (uint64_t)i >> k & 1 ? 0x9E3779B97F4A7C15u << k : 0;
        sum += d->a[(low ^ low >> 32) % (uint64_t)d->n];
    }
    return d->sum == (int32_t)sum;
}
static bool right_matrix(const pattern_data *d) {
    int64_t sum = 0;
    for (int64_t i = 0; i < d->n * d->n; i++) sum += d->a[i / d->n * d->pitch + i % d->n];
    return d->sum == (int32_t)sum;
}
static bool right_field(const pattern_data *d, int64_t step) {
    int64_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += d->a[i * step];
    return d->sum == (int32_t)sum;
}
static bool right_records(const pattern_data *d) { return right_field(d, FIELDS); }
static bool right_arrays(const pattern_data *d) { return right_field(d, 1); }
static bool right_all_records(const pattern_data *d) {
    for (int64_t i = 0; i < d->n * FIELDS / 2; i++) {
        const int32_t *r = d->a + i / (FIELDS / 2) * FIELDS + i % (FIELDS / 2);
        if (d->b[i] != r[0] + r[FIELDS / 2]) return false;
    }
    return true;
}
static bool right_all_arrays(const pattern_data *d) {
    for (int64_t i = 0; i < d->n * FIELDS / 2; i++)
        if (d->b[i] != d->a[i] + d->a[i + d->n * FIELDS / 2]) return false;
    return true;
}
bool pattern_is_transposed(const pattern_data *d) {
    for (int64_t i = 0; i < d->n * d->n; i++)
        if (d->b[i / d->n * d->pitch + i % d->n] != d->a[i % d->n * d->pitch + i / d->n]) return false;
    return true;
}
static bool right_streams(const pattern_data *d) {
    for (int64_t i = 0; i < d->n; i++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < STREAMS; k++) sum += d->a[k * d->pitch + i];
        if (d->b[i] != sum) return false;
    }
    return true;
}
static bool right_permuted(const pattern_data *d) {
    int64_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += (int64_t)READS * d->a[d->index[i]] * (i & 3);
    return d->sum == (int32_t)sum;
}
static bool right_rows(const pattern_data *d) {
    int64_t sum = 0, rows = d->n / ROW;
    for (int64_t i = 0; i < rows * ROW; i++)
        sum += (int64_t)READS * d->a[d->index[i / ROW] % rows * ROW + i % ROW] * (i % ROW & 3);
    return d->sum == (int32_t)sum;
}

static const pattern table[] = {
    { "access", "sequential", sequential, right_1, 1, 0 },
    { "access", "stride 2", stride_2, right_2, 0.5, 0 },
    { "access", "stride 4", stride_4, right_4, 0.25, 0 },
    { "access", "stride 16", stride_16, right_16, 1.0 / 16, 0 },
    { "access", "wrapping stride 5", wrapped_5, right_1, 1, 0 },
    { "access", "wrapping stride 17", wrapped_17, right_1, 1, 0 },
    { "access", "hashed", hashed, right_hashed, 1, 0 },
    { "matrix", "row-major walk", by_rows, right_matrix, 1, 0 },
    { "matrix", "column-major walk", by_columns, right_matrix, 1, 0 },
    { "matrix", "column-major walk, padded rows", by_columns, right_matrix, 1, 16 },
    { "records", "one field, array of structs", one_field_of_records, right_records, 1, 0 },
    { "records", "one field, struct of arrays", one_field_of_arrays, right_arrays, 1, 0 },
    { "records", "all fields, array of structs", all_fields_of_records, right_all_records, 12, 0 },
    { "records", "all fields, struct of arrays", all_fields_of_arrays, right_all_arrays, 12, 0 },
    { "transpose", "row by row", transpose_naive, pattern_is_transposed, 2, 0 },
    { "transpose", "16 x 16 blocks", transpose_blocked, pattern_is_transposed, 2, 0 },
    { "transpose", "row by row, padded rows", transpose_naive, pattern_is_transposed, 2, 16 },
    { "transpose", "16 x 16 blocks, padded rows", transpose_blocked, pattern_is_transposed, 2, 16 },
    { "streams", "12 arrays", add_streams, right_streams, STREAMS + 1, 0 },
    { "streams", "12 arrays, padded by 4 lines", add_streams, right_streams, STREAMS + 1, 64 },
    { "permute", "read through the index", read_through_index, right_permuted, READS, 0 },
    { "permute", "move once, then read", move_then_read, right_permuted, READS + 2, 0 },
    { "permute", "permuted rows of 64", read_permuted_rows, right_rows, READS, 0 },
};
const pattern *pattern_table(int *out_n) {
    *out_n = COUNT_OF(table);
    return table;
}

/* Numbers 0..7; a random permutation in index. Room for the largest use of every pattern over n. */
pattern_data pattern_data_new(const pattern *p, int64_t n, uint64_t seed) {
    bool square = !strcmp(p->work, "matrix") || !strcmp(p->work, "transpose"), records = !strcmp(p->work, "records");
    pattern_data d = { .n = n, .pitch = n + p->padding };
    bool streams = !strcmp(p->work, "streams");
    size_t count = (size_t)(square ? n * d.pitch : records ? n * FIELDS : streams ? STREAMS * d.pitch : n);
    d.a = buffer_new(count * sizeof(int32_t));
    d.b = buffer_new(count * sizeof(int32_t));
    d.index = buffer_new((size_t)n * sizeof(int32_t));
    for (size_t i = 0; i < count; i++) d.a[i] = (int32_t)(random_next(&seed) & 7);
    for (int64_t i = 0; i < n; i++) d.index[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)(random_next(&seed) % (uint64_t)(i + 1));
        int32_t t = d.index[i];
        d.index[i] = d.index[k];
        d.index[k] = t;
    }
    return d;
}
void pattern_data_free(pattern_data *d) {
    buffer_free(d->a);
    buffer_free(d->b);
    buffer_free(d->index);
}
