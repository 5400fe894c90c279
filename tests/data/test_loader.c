/* test_loader.c - data sets and the loader: orders are permutations; every example comes once an epoch; what the thread
 * prepares is what is prepared without it; a loader that seeks goes on with the same batches; windows of streams; callbacks and
 * what they refuse; wrong options; every allocation may fail; a program trains on it. Labels: threads */
#include "io/io_test.h"
#include "tenon/tenon_data.h"
#include "../data/data.h"

/* ---- orders ---- */

static void test_orders(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 300; n++) {
        bool seen[300] = { false };
        for (int64_t i = 0; i < n; i++) {
            int64_t at = data_shuffled(i, n, 3, (uint64_t)n);
            assert_true(at >= 0 && at < n && !seen[at]);
            seen[at] = true;
        }
    }
    /* Of a large n a sample goes through every value once; seeds and epochs make other orders. */
    enum { N = 1 << 20 };
    uint8_t *seen = calloc(N - 7, 1);
    int same_epoch = 0, same_seed = 0, in_place = 0;
    for (int64_t i = 0; i < N - 7; i++) {
        int64_t at = data_shuffled(i, N - 7, 1, 0);
        assert_true(!seen[at]++);
        same_epoch += at == data_shuffled(i, N - 7, 1, 1);
        same_seed += at == data_shuffled(i, N - 7, 2, 0);
        in_place += at == i;
    }
    assert_true(same_epoch < 12 && same_seed < 12 && in_place < 12); /* 1 is expected of each */
    free(seen);
    /* Neighbours land far apart: the mean distance of a random order is n / 3. */
    double sum = 0;
    for (int64_t i = 0; i < 10000; i++) {
        int64_t d = data_shuffled(i, 10000, 5, 0) - data_shuffled((i + 1) % 10000, 10000, 5, 0);
        sum += (double)(d < 0 ? -d : d) / 10000;
    }
    assert_true(sum > 3200 && sum < 3470);
}

/* ---- rows ---- */

enum { EXAMPLES = 103, WIDTH = 5 };
static void make_arrays(float x[EXAMPLES][WIDTH], int32_t y[EXAMPLES], tn_io_tensor out[2]) {
    for (int i = 0; i < EXAMPLES; i++) {
        y[i] = i;
        for (int j = 0; j < WIDTH; j++) x[i][j] = (float)(i * 10 + j);
    }
    out[0] = (tn_io_tensor){ .name = "x", .dtype = TN_F32, .shape = { .rank = 2, .dim = { EXAMPLES, WIDTH } }, .data = x };
    out[1] = (tn_io_tensor){ .name = "y", .dtype = TN_I32, .shape = { .rank = 1, .dim = { EXAMPLES } }, .data = y };
}

static void *bound(const tn_binding *b, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(b[i].name, name)) return b[i].data;
    fail_msg("no input %s", name);
    return NULL;
}

static void test_rows(void **state) {
    (void)state;
    static float x[EXAMPLES][WIDTH];
    static int32_t y[EXAMPLES];
    tn_io_tensor arrays[2];
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_data *d;
    tn_loader *l;
    make_arrays(x, y, arrays);
    assert_int_equal(tn_data_arrays(ctx, arrays, 2, &d), TN_OK);
    for (int shuffle = 0; shuffle <= 1; shuffle++)
        for (int no_thread = 0; no_thread <= 1; no_thread++)
            for (int64_t count = 0; count <= 50; count += 50) {
                tn_loader_opts o = {
                    .batch = 4, .ring = 3, .shuffle = shuffle, .seed = 9, .no_thread = no_thread, .first = 7, .count = count
                };
                int64_t n = count ? count : EXAMPLES - 7, batches = n / 4, given = 0;
                assert_int_equal(tn_loader_new(ctx, d, &o, &l), TN_OK);
                assert_int_equal(tn_loader_batches(l), batches);
                int seen[EXAMPLES] = { 0 }, in_order = 0;
                for (int call = 0; given < 2 * batches; call++) { /* rings cross from epoch to epoch */
                    const tn_binding *b;
                    int n_inputs;
                    int64_t ring;
                    assert_int_equal(tn_loader_next(l, &b, &n_inputs, &ring), TN_OK);
                    assert_int_equal(ring, 3);
                    assert_int_equal(n_inputs, 2);
                    const float *bx = bound(b, n_inputs, "x");
                    const int32_t *by = bound(b, n_inputs, "y");
                    for (int64_t i = 0; i < 12 && given < 2 * batches; i++) {
                        assert_memory_equal(bx + i * WIDTH, x[by[i]], sizeof x[0]);
                        assert_true(by[i] >= 7 && by[i] < 7 + n);
                        seen[by[i]]++;
                        in_order += by[i] == 7 + (given * 4 + i % 4) % (batches * 4);
                        given += i % 4 == 3;
                    }
                }
                int twice = 0;
                for (int i = 0; i < EXAMPLES; i++) {
                    assert_true(seen[i] <= 2);
                    twice += seen[i] == 2;
                }
                assert_true(twice >= n - 2 * (n - batches * 4)); /* what fills no batch is left out, another each epoch */
                assert_true(shuffle ? in_order < 20 : in_order == batches * 8);
                tn_loader_free(l);
            }
    tn_data_free(ctx, d);
    tn_ctx_free(ctx);
}

/* ---- going on ---- */

static void test_seek(void **state) {
    (void)state;
    static float x[EXAMPLES][WIDTH];
    static int32_t y[EXAMPLES], first[40][20];
    tn_io_tensor arrays[2];
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_data *d;
    tn_loader *l;
    const tn_binding *b;
    int n;
    int64_t ring;
    make_arrays(x, y, arrays);
    assert_int_equal(tn_data_arrays(ctx, arrays, 2, &d), TN_OK);
    tn_loader_opts o = { .batch = 10, .ring = 2, .shuffle = 1, .seed = 4 };
    assert_int_equal(tn_loader_new(ctx, d, &o, &l), TN_OK);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(tn_loader_position(l), 2 * i);
        assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
        memcpy(first[i], bound(b, n, "y"), sizeof first[i]);
    }
    assert_true(memcmp(first[0], first[5], sizeof first[0]) != 0); /* the second epoch */
    uint64_t r = 1;
    for (int t = 0; t < 200; t++) { /* while the thread fills, and before it has begun */
        int at = rnd_below(&r, 38);
        assert_int_equal(tn_loader_seek(l, 2 * at), TN_OK);
        for (int i = at; i < at + rnd_below(&r, 3); i++) {
            assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
            assert_memory_equal(bound(b, n, "y"), first[i], sizeof first[i]);
        }
    }
    tn_loader_free(l);
    o.ring = 5, o.no_thread = 1; /* another ring, from an odd place on: the same batches */
    assert_int_equal(tn_loader_new(ctx, d, &o, &l), TN_OK);
    assert_int_equal(tn_loader_seek(l, 3), TN_OK);
    assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
    assert_memory_equal(bound(b, n, "y"), &first[1][10], 5 * 10 * sizeof(int32_t));
    assert_fails(ctx, tn_loader_seek(l, -1), TN_ERR_INVAL, "position -1", "a negative position");
    tn_loader_free(l);
    tn_data_free(ctx, d);
    tn_ctx_free(ctx);
}

/* ---- streams ---- */

static void test_windows(void **state) {
    (void)state;
    int32_t tokens[1000];
    for (int i = 0; i < 1000; i++) tokens[i] = i;
    tn_io_tensor array = { .name = "tokens", .dtype = TN_I32, .shape = { .rank = 1, .dim = { 1000 } }, .data = tokens };
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_data *d;
    tn_loader *l;
    const tn_binding *b;
    int n;
    int64_t ring;
    const tn_loader_input inputs[] = { { "x", "tokens", 0 }, { "target", "tokens", 1 } };
    assert_int_equal(tn_data_arrays(ctx, &array, 1, &d), TN_OK);
    for (int64_t stride = 0; stride <= 7; stride += 7) {
        tn_loader_opts o = {
            .batch = 3, .ring = 2, .inputs = inputs, .n_inputs = 2, .window = 16, .stride = stride, .shuffle = stride > 0
        };
        assert_int_equal(tn_loader_new(ctx, d, &o, &l), TN_OK);
        int64_t step = stride ? stride : 16, windows = (1000 - 17) / step + 1;
        assert_int_equal(tn_loader_batches(l), windows / 3);
        for (int call = 0; call < 60; call++) {
            assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
            const int32_t *x = bound(b, n, "x"), *t = bound(b, n, "target");
            for (int i = 0; i < 2 * 3; i++) {
                assert_true(x[i * 16] % step == 0 && x[i * 16] / step < windows);
                for (int k = 0; k < 16; k++) assert_true(x[i * 16 + k] == x[i * 16] + k && t[i * 16 + k] == x[i * 16 + k] + 1);
            }
        }
        tn_loader_free(l);
    }
    tn_loader_opts all = { .batch = 1, .inputs = inputs, .n_inputs = 2, .window = 999 };
    assert_int_equal(tn_loader_new(ctx, d, &all, &l), TN_OK); /* the one window that there is */
    assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
    assert_int_equal(((int32_t *)bound(b, n, "target"))[998], 999);
    tn_loader_free(l);
    all.window = 1000;
    assert_fails(ctx, tn_loader_new(ctx, d, &all, &l), TN_ERR_SHAPE, "a batch has 1 examples, the data set 0",
                 "a window too long");
    tn_data_free(ctx, d);
    tn_ctx_free(ctx);
}

/* ---- callbacks ---- */

typedef struct maker {
    int64_t refuse; /* this example; -1: none */
} maker;
static int make(void *ud, int64_t i, void *const *out) {
    const maker *m = ud;
    if (i == m->refuse) return 42;
    float *x = out[0];
    for (int j = 0; x && j < 6; j++) x[j] = (float)(i * 6 + j);
    if (out[1]) memcpy(out[1], &(int64_t){ -i }, 8);
    return 0;
}

static void test_callback(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_data *d;
    tn_loader *l;
    const tn_binding *b;
    int n;
    int64_t ring;
    const tn_io_tensor arrays[] = { { .name = "x", .dtype = TN_F32, .shape = { .rank = 2, .dim = { 2, 3 } } },
                                    { .name = "id", .dtype = TN_I64, .shape = { .rank = 0 } } };
    maker m = { -1 };
    assert_int_equal(tn_data_callback(ctx, arrays, 2, 50, make, &m, &d), TN_OK);
    assert_int_equal(tn_data_count(d), 2);
    assert_int_equal(tn_data_get(d, 0)->shape.dim[0], 50);
    assert_int_equal(tn_data_get(d, 0)->shape.dim[2], 3);
    assert_null(tn_data_get(d, 2));
    assert_int_equal(tn_loader_new(ctx, d, &(tn_loader_opts){ .batch = 5, .ring = 1, .shuffle = 1 }, &l), TN_OK);
    for (int call = 0; call < 25; call++) {
        assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
        const float *x = bound(b, n, "x");
        const int64_t *id = bound(b, n, "id");
        for (int k = 0; k < 5; k++)
            for (int j = 0; j < 6; j++) assert_true(x[k * 6 + j] == (float)(-id[k] * 6 + j));
    }
    tn_loader_free(l);
    m.refuse = 12;
    const tn_loader_input one = { "just_x", "x", 0 };
    assert_int_equal(tn_loader_new(ctx, d, &(tn_loader_opts){ .batch = 5, .ring = 1, .inputs = &one, .n_inputs = 1 }, &l),
                     TN_OK);
    assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
    assert_string_equal(b[0].name, "just_x");
    assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK);
    assert_fails(ctx, tn_loader_next(l, &b, &n, &ring), TN_ERR_INVAL, "returned 42 for example 12", "what it refuses");
    assert_int_equal(tn_loader_next(l, &b, &n, &ring), TN_OK); /* and on */
    assert_true(((float *)b[0].data)[0] == 15 * 6);
    tn_loader_free(l);
    tn_data_free(ctx, d);
    tn_ctx_free(ctx);
}

/* ---- files, and a program that is fed ---- */

static void test_training(void **state) {
    (void)state;
    static float x[EXAMPLES][WIDTH];
    static int32_t y[EXAMPLES];
    tn_io_tensor arrays[2];
    counting count;
    tn_ctx *ctx = counting_ctx(&count);
    tn_data *d;
    tn_loader *l;
    test_dir_make();
    make_arrays(x, y, arrays);
    assert_int_equal(tn_io_safetensors_save(ctx, in_dir("set.safetensors"), arrays, 2), TN_OK);
    assert_int_equal(tn_data_open(ctx, in_dir("set.safetensors"), &d), TN_OK);
    assert_int_equal(tn_loader_new(ctx, d, &(tn_loader_opts){ .batch = 8, .ring = 4, .shuffle = 1, .seed = 1 }, &l), TN_OK);
    /* A state that adds up all labels it was given. */
    tn_graph *g = tn_graph_new(ctx, "sum");
    tn_tensor labels = tn_input(g, "y", TN_I32, TN_DIMS(8)), rows = tn_input(g, "x", TN_F32, TN_DIMS(8, WIDTH));
    tn_tensor total = tn_state(g, "total", TN_F32, (tn_shape){ .rank = 0 }, NULL);
    tn_tensor sum = tn_sum(tn_cast(labels, TN_F32), TN_ALL_AXES, 0), of_rows = tn_sum(rows, TN_ALL_AXES, 0);
    tn_assign(total, tn_add(total, tn_add(sum, of_rows)));
    tn_output(tn_add(sum, of_rows), "now");
    tn_program *p;
    tn_session *s;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    long before = 0;
    double want = 0;
    for (int call = 0; call < 30; call++) {
        const tn_binding *b;
        int n;
        int64_t batches;
        if (call == 2) before = count.requests;
        assert_int_equal(tn_loader_next(l, &b, &n, &batches), TN_OK);
        const int32_t *labels_now = bound(b, n, "y");
        for (int i = 0; i < 32; i++)
            for (int j = 0; j <= WIDTH; j++) want += j ? labels_now[i] * 10 + j - 1 : labels_now[i];
        if (tn_run_n(s, batches, b, n, batches)) fail_msg("%s", tn_ctx_error(ctx));
    }
    assert_int_equal(count.requests, before); /* the loader takes no memory while it runs; nor do runs */
    float got;
    assert_int_equal(tn_session_get(s, "total", &got, sizeof got), TN_OK);
    assert_true(got == (float)want);
    tn_session_free(s);
    tn_program_free(p);
    tn_graph_free(g);
    tn_loader_free(l);
    tn_data_free(ctx, d);
    assert_fails(ctx, tn_data_open(ctx, in_dir("none"), &d), TN_ERR_IO, "none", "a missing file");
    test_dir_remove();
    tn_ctx_free(ctx);
    assert_int_equal(count.live, 0);
}

/* ---- bad input ---- */

static void test_bad(void **state) {
    (void)state;
    static float x[EXAMPLES][WIDTH];
    static int32_t y[EXAMPLES];
    tn_io_tensor arrays[2];
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_data *d;
    tn_loader *l;
    make_arrays(x, y, arrays);
    assert_int_equal(tn_data_arrays(ctx, arrays, 2, &d), TN_OK);
    const tn_loader_input none = { "z", "z", 0 }, ahead = { "x", "x", 2 };
    const struct {
        tn_loader_opts o;
        tn_status want;
        const char *text;
    } cases[] = {
        { { .batch = 0 }, TN_ERR_INVAL, "batch 0" },
        { { .batch = 1, .ring = -1 }, TN_ERR_INVAL, "ring -1" },
        { { .batch = 104 }, TN_ERR_SHAPE, "a batch has 104 examples, the data set 103" },
        { { .batch = 1, .first = 104 }, TN_ERR_SHAPE, "examples from 104 on" },
        { { .batch = 1, .first = 100, .count = 4 }, TN_ERR_SHAPE, "examples from 100 on, 4 of them; the data set has 103" },
        { { .batch = 1, .inputs = &none, .n_inputs = 1 }, TN_ERR_INVAL, "no array \"z\"" },
        { { .batch = 1, .inputs = &ahead, .n_inputs = 1 }, TN_ERR_INVAL, "shift 2" },
        { { .batch = 1, .ring = INT64_MAX / 4 }, TN_ERR_INVAL, "does not fit into memory" },
        { { .batch = 1, .window = INT64_MAX }, TN_ERR_SHAPE, "too many bytes" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(ctx, tn_loader_new(ctx, d, &cases[i].o, &l), cases[i].want, cases[i].text, cases[i].text);
    tn_data_free(ctx, d);
    arrays[1].name = "x";
    assert_fails(ctx, tn_data_arrays(ctx, arrays, 2, &d), TN_ERR_INVAL, "two arrays are \"x\"", "names");
    arrays[1].name = "y", arrays[1].shape.dim[0] = 50;
    assert_int_equal(tn_data_arrays(ctx, arrays, 2, &d), TN_OK);
    assert_fails(ctx, tn_loader_new(ctx, d, &(tn_loader_opts){ .batch = 1 }, &l), TN_ERR_SHAPE,
                 "\"y\" has 50 examples, the ones before 103", "lengths");
    tn_data_free(ctx, d);
    arrays[1].shape.rank = 0;
    assert_fails(ctx, tn_data_arrays(ctx, arrays, 2, &d), TN_ERR_SHAPE, "\"y\" has 0 axes", "no axis");
    arrays[1].shape = (tn_shape){ .rank = 3, .dim = { INT64_MAX, INT64_MAX, 4 } };
    assert_fails(ctx, tn_data_arrays(ctx, arrays, 2, &d), TN_ERR_SHAPE, "more bytes than fit", "bytes");
    arrays[1].shape = (tn_shape){ .rank = 1, .dim = { 4 } }, arrays[1].data = NULL;
    assert_fails(ctx, tn_data_arrays(ctx, arrays, 2, &d), TN_ERR_INVAL, "\"y\" has no data", "no data");
    tn_ctx_free(ctx);
}

static void test_no_memory(void **state) {
    (void)state;
    static float x[EXAMPLES][WIDTH];
    static int32_t y[EXAMPLES];
    tn_io_tensor arrays[2];
    counting count;
    tn_ctx *ctx = counting_ctx(&count);
    make_arrays(x, y, arrays);
    size_t live = count.live;
    int failed = 0;
    for (long k = 0;; k++) {
        tn_data *d = NULL;
        tn_loader *l = NULL;
        count.requests = 0, count.fail_at = k;
        tn_status st = tn_data_arrays(ctx, arrays, 2, &d);
        if (!st) st = tn_loader_new(ctx, d, &(tn_loader_opts){ .batch = 3 }, &l);
        count.fail_at = -1;
        tn_loader_free(l);
        tn_data_free(ctx, d);
        assert_int_equal(count.live, live);
        if (!st) break;
        assert_int_equal(st, TN_ERR_NOMEM);
        failed++;
    }
    assert_true(failed >= 6);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),  cmocka_unit_test(test_rows),      cmocka_unit_test(test_seek),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_callback),  cmocka_unit_test(test_training),
        cmocka_unit_test(test_bad),     cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
