/* test_csv.c - tables of numbers: exact values, every dtype, malformed text and the place of each fault, mutations. */
#include "io_test.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <unistd.h>

static tn_status parse(tn_ctx *ctx, const char *text, tn_dtype dtype, int skip, tn_shape *shape, void **data) {
    size_t n = strlen(text);
    uint8_t *exact = malloc(n + !n);
    memcpy(exact, text, n);
    tn_status s = tn_io_csv_parse(ctx, exact, n, "t.csv", dtype, skip, shape, data);
    free(exact);
    return s;
}

static void test_values(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_shape shape;
    void *data;
    setlocale(LC_ALL, ""); /* a host with decimal commas changes nothing */
    assert_int_equal(parse(ctx, "\xEF\xBB\xBFname,b\r\n1, -2.5e3 \r\n.5,+1.\n 0.1\t,-inf", TN_F64, 1, &shape, &data), TN_OK);
    const double want[] = { 1, -2500, 0.5, 1, 0.1, -INFINITY };
    assert_int_equal(shape.rank, 2);
    assert_int_equal(shape.dim[0], 3);
    assert_int_equal(shape.dim[1], 2);
    assert_memory_equal(data, want, sizeof want);
    tn_io_free(ctx, data);
    assert_int_equal(parse(ctx, "1,-2147483648,2147483647\n\n \n", TN_I32, 0, &shape, &data), TN_OK);
    assert_memory_equal(data, ((const int32_t[]){ 1, INT32_MIN, INT32_MAX }), 12);
    assert_int_equal(shape.dim[0], 1);
    tn_io_free(ctx, data);
    assert_int_equal(parse(ctx, "-9007199254740992\n1e3\n", TN_I64, 0, &shape, &data), TN_OK);
    assert_memory_equal(data, ((const int64_t[]){ -9007199254740992, 1000 }), 16);
    tn_io_free(ctx, data);
    assert_int_equal(parse(ctx, "9007199254740993,-9223372036854775808\n9223372036854775807,+0\n", TN_I64, 0, &shape, &data),
                     TN_OK);
    assert_memory_equal(data, ((const int64_t[]){ 9007199254740993, INT64_MIN, INT64_MAX, 0 }), 32);
    tn_io_free(ctx, data);
    assert_int_equal(parse(ctx, "NaN,NAN,-Inf,INF\n", TN_F32, 0, &shape, &data), TN_OK);
    const float *odd = data;
    assert_true(isnan(odd[0]) && isnan(odd[1]) && odd[2] == -INFINITY && odd[3] == INFINITY);
    tn_io_free(ctx, data);
    assert_int_equal(parse(ctx, "1.00000017881393432617187499\nnan\n", TN_F32, 0, &shape, &data),
                     TN_OK); /* by way of double: one step higher */
    assert_true(((float *)data)[0] == 1.00000011920928955078125f && isnan(((float *)data)[1]));
    tn_io_free(ctx, data);
    for (int i = 0; i < 3; i++) { /* tables without rows */
        assert_int_equal(parse(ctx, i == 0 ? "" : i == 1 ? "\n\n" : "head\n", TN_F32, i == 2, &shape, &data), TN_OK);
        assert_true(shape.rank == 2 && shape.dim[0] == 0 && shape.dim[1] == 0);
        tn_io_free(ctx, data);
    }
    tn_ctx_free(ctx);
}

/* Random doubles in 17 digits come back exactly. */
static void test_round_trip(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed = 5;
    for (int round = 0; round < 30; round++) {
        int rows = 1 + rnd_below(&seed, 20), columns = 1 + rnd_below(&seed, 20), n = rows * columns;
        double *x = malloc((size_t)n * sizeof *x);
        FILE *f = fopen(in_dir("r.csv"), "w");
        for (int i = 0; i < n; i++) {
            x[i] = ldexp((double)(int64_t)rnd(&seed), rnd_below(&seed, 200) - 160);
            fprintf(f, "%.17g%s", x[i], (i + 1) % columns ? "," : "\n");
        }
        fclose(f);
        tn_shape shape;
        void *data;
        assert_int_equal(tn_io_csv_load(ctx, in_dir("r.csv"), TN_F64, 0, &shape, &data), TN_OK);
        assert_true(shape.dim[0] == rows && shape.dim[1] == columns);
        assert_memory_equal(data, x, (size_t)n * sizeof *x);
        tn_io_free(ctx, data);
        free(x);
    }
    tn_ctx_free(ctx);
}

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        tn_dtype dtype;
        int skip;
        const char *message;
    } bad[] = {
        { "1,2\n3,x\n", TN_F32, 0, "t.csv: line 2, column 2: not a number: x" },
        { "h\n1,2\n3,x\n", TN_F32, 1, "line 3, column 2" },
        { "1,\n", TN_F32, 0, "line 1, column 2: an empty field" },
        { ",1\n", TN_F32, 0, "line 1, column 1: an empty field" },
        { "1,2\n3\n", TN_F32, 0, "line 2, column 1: fewer fields" },
        { "1,2\n3,4,5\n", TN_F32, 0, "line 2, column 3: more fields" },
        { "1,2,3\n4\n5\n6\n7\n", TN_F32, 0, "fewer fields" },
        { "1,2\n\n3,4\n", TN_F32, 0, "line 2, column 1" },
        { "1;2\n", TN_F32, 0, "not a number: 1;2" },
        { "1 2\n", TN_F32, 0, "not a number: 1 2" },
        { "0x10\n", TN_F32, 0, "not a number" },
        { "nan(1)\n", TN_F32, 0, "not a number" },
        { "infinity\n", TN_F32, 0, "not a number" },
        { "1e\n", TN_F32, 0, "not a number" },
        { "--1\n", TN_F32, 0, "not a number" },
        { ".\n", TN_F32, 0, "not a number" },
        { "\"1\"\n", TN_F32, 0, "not a number" },
        { "1\r2\n", TN_F32, 0, "carriage return inside" },
        { "1\0012\n", TN_F32, 0, "control character" },
        { "1.5\n", TN_I32, 0, "not a whole number in range" },
        { "2147483648\n", TN_I32, 0, "not a whole number in range" },
        { "nan\n", TN_I32, 0, "not a whole number in range" },
        { "NaN\n", TN_I64, 0, "not a whole number in range: NaN" },
        { "-2147483649\n", TN_I32, 0, "not a whole number in range" },
        { "9223372036854775808\n", TN_I64, 0, "not a whole number in range" },
        { "-9223372036854775809\n", TN_I64, 0, "not a whole number in range" },
        { "9007199254740993.0\n", TN_I64, 0, "not a whole number in range" },
        { "9e15,1e17\n", TN_I64, 0, "line 1, column 2: not a whole number in range" },
        { "1,2", TN_F32, 1, "no more lines than the heading" },
        { "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
          "000000000001\n",
          TN_F32, 0, "longer than a number can be" },
    };
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    tn_shape shape;
    void *data;
    int n_bad = (int)(sizeof bad / sizeof *bad);
    for (int i = 0; i < n_bad; i++) {
        data = &c;
        assert_fails(ctx, parse(ctx, bad[i].text, bad[i].dtype, bad[i].skip, &shape, &data), TN_ERR_PARSE, bad[i].message,
                     bad[i].text);
        assert_null(data);
        assert_int_equal(c.live, live);
    }
    assert_fails(ctx, parse(ctx, "1", TN_BOOL, 0, &shape, &data), TN_ERR_DTYPE, "not bool", "dtype");
    assert_fails(ctx, parse(ctx, "1", TN_F32, -1, &shape, &data), TN_ERR_INVAL, "negative", "skip");
    int fd = open(in_dir("long.csv"), O_WRONLY | O_CREAT, 0600); /* a file of holes: read, it would fill the memory */
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
    assert_fails(ctx, tn_io_csv_load(ctx, in_dir("long.csv"), TN_F32, 0, &shape, &data), TN_ERR_UNSUPPORTED,
                 "1099511627776 bytes, more than the limit of 4294967296", "long");
    printf("count: %d malformed CSV tables, each with its message\n", n_bad);
    tn_ctx_free(ctx);
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    static const char good[] = "1,2,3\n4.5,-6e2,7\r\n8,9,0\n";
    uint64_t seed = 13;
    int accepted = 0, rounds = 4000;
    for (int i = 0; i < rounds; i++) {
        uint8_t changed[256];
        size_t m = mutate(&seed, (const uint8_t *)good, sizeof good - 1, changed, sizeof changed);
        uint8_t *exact = malloc(m + !m);
        memcpy(exact, changed, m);
        tn_shape shape;
        void *data;
        tn_status s = tn_io_csv_parse(ctx, exact, m, "m", TN_F32, 0, &shape, &data);
        if (s)
            assert_true(s == TN_ERR_PARSE && !data);
        else
            tn_io_free(ctx, data), accepted++;
        free(exact);
        assert_int_equal(c.live, live);
    }
    assert_in_range(accepted, 1, rounds - 1);
    printf("count: %d mutated CSV files\n", rounds);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
