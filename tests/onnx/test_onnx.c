/* test_onnx.c - files by hand: what they say is what the graph computes; truncated, mutated and malformed files; external data;
 * refusals listed at once; every failing allocation. The ops themselves are checked by test_backend.sh. */
#include "onnx_bytes.h"

#include <glob.h>
#include <math.h>
#include <sys/stat.h>

/* y = relu((x w) reshaped to [batch * 3]), the shape computed by the model itself. */
static bytes sample(void) {
    static const float w[12] = { 1, -2, 3, 4, 5, -6, 7, 8, 9, -1, 0.5f, 2 };
    static const int64_t three = 3, zero = 0;
    bytes g = { .n = 0 };
    put_port(&g, 11, "x", F32, (int64_t[]){ -1, 4 }, 2);
    bytes tw = tensor_message("w", F32, (int64_t[]){ 4, 3 }, 2, w, sizeof w),
          t0 = tensor_message("zero", I64, NULL, 0, &zero, 8), t3 = tensor_message("three", I64, NULL, 0, &three, 8),
          axes = tensor_message("axes", I64, (int64_t[]){ 1 }, 1, &zero, 8);
    put_message(&g, 5, &tw), put_message(&g, 5, &t0), put_message(&g, 5, &t3), put_message(&g, 5, &axes);
    put_node(&g, "MatMul x w -> h");
    put_node(&g, "Shape h -> s");
    put_node(&g, "Gather s zero -> rows");
    put_node(&g, "Mul rows three -> n");
    put_node(&g, "Unsqueeze n axes -> shape");
    put_node(&g, "Reshape h shape -> flat");
    put_node(&g, "Relu flat -> y");
    put_port(&g, 12, "y", F32, (int64_t[]){ -1 }, 1);
    return model_message(&g, 13);
}

static tn_onnx_opts batch_of(tn_onnx_dim *d, int64_t n) {
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    *d = (tn_onnx_dim){ "batch", n };
    o.dims = d, o.n_dims = 1;
    return o;
}

static void test_sample(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes b = sample();
    tn_onnx_model *m;
    tn_graph *g;
    tn_onnx_port p;
    assert_int_equal(tn_onnx_parse(ctx, b.at, b.n, "sample", NULL, &m), TN_OK);
    assert_int_equal(tn_onnx_n_inputs(m), 1);
    assert_int_equal(tn_onnx_n_outputs(m), 1);
    assert_int_equal(tn_onnx_n_nodes(m), 7);
    assert_int_equal(tn_onnx_input(m, 0, &p), TN_OK);
    assert_true(p.rank == 2 && p.dim[0] == -1 && p.dim[1] == 4 && p.dtype == TN_F32);
    assert_string_equal(p.symbol[0], "batch");
    assert_fails(ctx, tn_onnx_import(m, NULL, &g), TN_ERR_UNSUPPORTED, "--dim 'batch=1'", "a dim without a size");
    tn_onnx_dim d;
    tn_onnx_opts o = batch_of(&d, 2);
    for (int parameters = 0; parameters < 2; parameters++) {
        o.parameters = parameters;
        assert_int_equal(tn_onnx_import(m, &o, &g), TN_OK);
        assert_int_equal(tn_graph_n_params(g), parameters);
        tn_program *prog;
        tn_session *s;
        assert_int_equal(tn_compile(g, NULL, &prog), TN_OK);
        assert_int_equal(tn_session_new(prog, &s), TN_OK);
        float x[8], y[6];
        uint64_t seed = 5;
        for (int i = 0; i < 8; i++) x[i] = (float)(rnd_below(&seed, 2001) - 1000) / 100;
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y })), TN_OK);
        static const float w[12] = { 1, -2, 3, 4, 5, -6, 7, 8, 9, -1, 0.5f, 2 };
        for (int i = 0; i < 6; i++) {
            double want = 0;
            for (int k = 0; k < 4; k++) want += (double)x[i / 3 * 4 + k] * (double)w[k * 3 + i % 3];
            assert_true(fabs((double)y[i] - (want > 0 ? want : 0)) < 1e-4);
        }
        tn_session_free(s);
        tn_program_free(prog);
        tn_graph_free(g);
    }
    /* A dim by its place: one that has only a name, and one that the model says. */
    d = (tn_onnx_dim){ "x[0]", 5 }, o.parameters = 0;
    assert_int_equal(tn_onnx_import(m, &o, &g), TN_OK);
    tn_graph_free(g);
    tn_onnx_dim both[] = { { "batch", 2 }, { "x[1]", 7 } };
    o.dims = both, o.n_dims = 2;
    assert_fails(ctx, tn_onnx_import(m, &o, &g), TN_ERR_UNSUPPORTED, "MatMul", "x of 2 x 7 by w of 4 x 3");
    tn_onnx_model_free(m);
    tn_ctx_free(ctx);
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes g = { .n = 0 };
    tn_onnx_model *m;
    tn_graph *got;
    tn_onnx_refusal r;
    put_port(&g, 11, "x", F32, (int64_t[]){ 2, 3 }, 2);
    put_port(&g, 11, "shape", I64, (int64_t[]){ 1 }, 1);
    put_node(&g, "Blur x -> a");
    put_node(&g, "Relu a -> b");
    bytes odd = node_message("Softmax x -> c");
    put_attr_int(&odd, "sharpness", 3);
    put_message(&g, 1, &odd);
    put_node(&g, "Reshape x shape -> d");
    put_node(&g, "Sharpen b -> e");
    put_port(&g, 12, "e", F32, (int64_t[]){ 2, 3 }, 2);
    bytes b = model_message(&g, 17);
    assert_int_equal(tn_onnx_parse(ctx, b.at, b.n, "odd", NULL, &m), TN_OK);
    assert_fails(ctx, tn_onnx_import(m, NULL, &got), TN_ERR_UNSUPPORTED, "Blur (a): this op is not known", "a list");
    static const char *const want[][2] = { { "Blur", "not known" },
                                           { "Softmax", "attribute sharpness is not known" },
                                           { "Reshape", "depends on the value of an input" },
                                           { "Sharpen", "not known" } };
    assert_int_equal(tn_onnx_n_refused(m), 4); /* Relu only follows from Blur */
    assert_non_null(strstr(tn_ctx_error(ctx), "sizes depend on the values of 'shape'"));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tn_onnx_refused(m, i, &r), TN_OK);
        assert_string_equal(r.op, want[i][0]);
        assert_non_null(strstr(r.reason, want[i][1]));
    }
    assert_int_equal(tn_onnx_refused(m, 4, &r), TN_ERR_INVAL);
    tn_onnx_model_free(m);
    tn_ctx_free(ctx);
}

/* An input on whose value a size depends becomes a constant where its value is given; the other stays an input. */
static void test_constant_input(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes g = { .n = 0 };
    put_port(&g, 11, "x", F32, (int64_t[]){ 2, 3 }, 2);
    put_port(&g, 11, "shape", I64, (int64_t[]){ 1 }, 1);
    put_node(&g, "Reshape x shape -> y");
    put_port(&g, 12, "y", F32, (int64_t[]){ 6 }, 1);
    bytes b = model_message(&g, 17);
    int64_t six = 6, four = 4;
    float x[6] = { 1, 2, 3, 4, 5, 6 }, y[6];
    tn_onnx_value v[] = { { "x", TN_F32, TN_DIMS(2, 3), x }, { "shape", TN_I64, TN_DIMS(1), &six } };
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    o.values = v, o.n_values = 2;
    tn_onnx_model *m;
    tn_graph *got;
    assert_int_equal(tn_onnx_parse(ctx, b.at, b.n, "r", NULL, &m), TN_OK);
    assert_int_equal(tn_onnx_import(m, &o, &got), TN_OK);
    assert_true(!tn_onnx_input_is_constant(m, 0) && tn_onnx_input_is_constant(m, 1));
    tn_graph_free(got);
    o.immediate = 1;
    assert_int_equal(tn_onnx_import(m, &o, &got), TN_OK);
    assert_int_equal(tn_graph_status(got), TN_OK);
    tn_graph_free(got);
    o.immediate = 0;
    v[1].data = &four;
    assert_fails(ctx, tn_onnx_import(m, &o, &got), TN_ERR_UNSUPPORTED, "Reshape", "a wrong shape");
    v[0].dtype = TN_F64;
    assert_fails(ctx, tn_onnx_import(m, &o, &got), TN_ERR_INVAL, "f64, expected f32", "a wrong dtype");
    (void)y;
    tn_onnx_model_free(m);
    tn_ctx_free(ctx);
}

/* ---- malformed files ---- */

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
        size_t n;
    } cases[] = {
        { "", "it has 0 graphs", 0 },
        { "\x3a", "ends within a number", 1 },
        { "\x3a\x05\x0a", "longer than what holds it", 3 },
        { "\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than what holds it", 11 },
        { "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 64 bits", 13 },
        { "\x00\x01", "without a number", 2 },
        { "\x0b\x01", "unknown kind", 2 },
        { "\x38\x01", "a number where bytes belong", 2 },
        { "\x3a\x00\x3a\x00", "it has 2 graphs", 4 },
        { "\x3a\x04\x12\x02\xff\xff", "not UTF-8", 6 },
        { "\x3a\x05\x2a\x03\x08\xff\x01\x10\x01", "", 8 },
    };
    tn_ctx *ctx = tn_ctx_new(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_onnx_model *m;
        uint8_t *exact = malloc(cases[i].n + !cases[i].n);
        memcpy(exact, cases[i].bytes, cases[i].n);
        assert_fails(ctx, tn_onnx_parse(ctx, exact, cases[i].n, "bad", NULL, &m), TN_ERR_PARSE, cases[i].text, cases[i].bytes);
        assert_null(m);
        free(exact);
    }
    tn_ctx_free(ctx);
}

/* Every dim of every input stays open. */
static void import_open(tn_ctx *ctx, tn_onnx_model *m) {
    enum { MOST = 16 };
    tn_onnx_range ranges[MOST];
    char names[MOST][TN_ONNX_MAX_NAME + 16];
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_graph *g;
    for (int i = 0; i < tn_onnx_n_inputs(m); i++) {
        tn_onnx_port p;
        assert_int_equal(tn_onnx_input(m, i, &p), TN_OK);
        for (int k = 0; k < p.rank && o.n_ranges < MOST; k++) {
            snprintf(names[o.n_ranges], sizeof names[0], "%s[%d]", p.name, k);
            ranges[o.n_ranges] = (tn_onnx_range){ names[o.n_ranges], 2, 6, 1 }, o.n_ranges++;
        }
    }
    o.ranges = ranges;
    if (tn_onnx_import(m, &o, &g)) {
        assert_true(strlen(tn_ctx_error(ctx)) > 5);
        return;
    }
    assert_int_equal(tn_graph_check(g), TN_OK);
    tn_graph_free(g);
}

/* Any result but a crash, a leak, or an error without a text; memory stays bounded. */
static int import_bytes(tn_ctx *ctx, const uint8_t *at, size_t n) {
    tn_onnx_model *m;
    tn_graph *g;
    tn_onnx_dim d;
    tn_onnx_opts o = batch_of(&d, 3);
    uint8_t *exact = malloc(n + !n); /* so that the sanitizer sees the first byte too far */
    memcpy(exact, at, n);
    tn_status s = tn_onnx_parse(ctx, exact, n, "m", NULL, &m);
    if (!s) {
        s = tn_onnx_import(m, &o, &g);
        if (!s) tn_graph_free(g);
        if (s) assert_true(strlen(tn_ctx_error(ctx)) > 5);
        import_open(ctx, m);
        tn_onnx_model_free(m);
        return free(exact), s == TN_OK;
    }
    if (s) assert_true(strlen(tn_ctx_error(ctx)) > 5);
    free(exact);
    return s == TN_OK;
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    bytes b = sample();
    uint8_t changed[BYTES];
    uint64_t seed = 11;
    int accepted = 0, rounds = 10000;
    assert_true(import_bytes(ctx, b.at, b.n));
    for (int i = 0; i < rounds; i++) accepted += import_bytes(ctx, changed, mutate(&seed, b.at, b.n, changed, sizeof changed));
    assert_in_range(accepted, rounds / 100, rounds * 3 / 4);
    printf("count: %d mutated ONNX files\n", rounds);
    for (size_t n = 0; n < b.n; n++) (void)import_bytes(ctx, b.at, n);
    tn_ctx_free(ctx);
    assert_int_equal(c.live, 0);
}

/* The same of real models, one and a few ops each: what handlers do with attributes and shapes that no exporter writes. */
static void test_mutated_models(void **state) {
    (void)state;
    glob_t files;
    counting c;
    uint64_t seed = 23;
    int rounds = 0, accepted = 0, each = 8;
    uint8_t *good = malloc(1 << 16), *changed = malloc(1 << 16);
    if (glob("/usr/share/libonnx-testdata/data/*/*/model.onnx", 0, NULL, &files)) {
        free(good), free(changed);
        skip();
    }
    tn_ctx *ctx = counting_ctx(&c);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        FILE *f = fopen(files.gl_pathv[i], "rb");
        assert_non_null(f);
        size_t n = fread(good, 1, 1 << 15, f);
        bool whole = feof(f);
        fclose(f);
        for (int k = 0; whole && k < each; k++, rounds++)
            accepted += import_bytes(ctx, changed, mutate(&seed, good, n, changed, 1 << 16));
    }
    tn_ctx_free(ctx);
    assert_int_equal(c.live, 0);
    assert_true(rounds > 1000 && accepted > 0 && accepted < rounds);
    printf("count: %d mutated models of ONNX's backend tests\n", rounds);
    globfree(&files);
    free(good), free(changed);
}

static void test_allocations(void **state) {
    (void)state;
    counting c;
    bytes b = sample();
    for (long k = 0;; k++) {
        tn_ctx *ctx = counting_ctx(&c);
        size_t live = c.live;
        tn_onnx_model *m = NULL;
        tn_graph *g;
        tn_onnx_dim d;
        tn_onnx_opts o = batch_of(&d, 2);
        c.requests = 0, c.fail_at = k;
        tn_status s = tn_onnx_parse(ctx, b.at, b.n, "m", NULL, &m);
        if (!s) s = tn_onnx_import(m, &o, &g);
        long used = c.requests;
        c.fail_at = -1;
        if (!s) tn_graph_free(g);
        tn_onnx_model_free(m);
        assert_true(s == TN_OK || s == TN_ERR_NOMEM);
        assert_int_equal(c.live, live);
        tn_ctx_free(ctx);
        if (used <= k) {
            printf("count: %ld failing allocations of an ONNX import\n", k);
            assert_true(k > 5);
            break;
        }
    }
}

/* ---- external data ---- */

static bytes external_tensor(const char *name, const int64_t *dims, int rank, const char *location, const char *offset) {
    bytes t = tensor_message(name, F32, dims, rank, NULL, 0);
    const char *entries[][2] = { { "location", location }, { "offset", offset } };
    for (int i = 0; i < 2; i++) {
        bytes e = { .n = 0 };
        put_text(&e, 1, entries[i][0]), put_text(&e, 2, entries[i][1]);
        put_message(&t, 13, &e);
    }
    put_int(&t, 14, 1);
    return t;
}

static tn_status load_external(tn_ctx *ctx, const char *location, const char *offset, tn_graph **g) {
    bytes graph = { .n = 0 }, t = external_tensor("w", (int64_t[]){ 2 }, 1, location, offset);
    put_message(&graph, 5, &t);
    put_node(&graph, "Neg w -> y");
    put_port(&graph, 12, "y", F32, (int64_t[]){ 2 }, 1);
    bytes m = model_message(&graph, 13);
    write_bytes(in_dir("m.onnx"), m.at, m.n);
    return tn_onnx_load(ctx, in_dir("m.onnx"), NULL, g);
}

static void test_external(void **state) {
    (void)state;
    test_dir_make();
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g;
    float data[3] = { 9, 1, 2 };
    assert_int_equal(mkdir(in_dir("sub"), 0700), 0);
    write_bytes(in_dir("sub/w.bin"), data, sizeof data);
    write_bytes(in_dir("w.bin"), data, sizeof data);
    assert_int_equal(symlink("w.bin", in_dir("link")), 0);
    assert_int_equal(symlink("sub", in_dir("folder")), 0);
    assert_int_equal(load_external(ctx, "sub/w.bin", "4", &g), TN_OK);
    tn_program *p;
    tn_session *s;
    float y[2];
    assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
    assert_int_equal(tn_session_new(p, &s), TN_OK);
    assert_int_equal(tn_run(s, TN_BIND({ "y", y })), TN_OK);
    assert_true(y[0] == -1 && y[1] == -2);
    tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    static const char *const bad[] = { "../w.bin", "sub/../w.bin", "/etc/hostname", "", "sub/", ".", "./w.bin", "sub//w.bin" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ctx, load_external(ctx, bad[i], "0", &g), TN_ERR_UNSUPPORTED, "external data", bad[i]);
    assert_fails(ctx, load_external(ctx, "link", "0", &g), TN_ERR_IO, "cannot open", "a symbolic link");
    assert_fails(ctx, load_external(ctx, "folder/w.bin", "0", &g), TN_ERR_IO, "cannot open", "a linked folder");
    assert_fails(ctx, load_external(ctx, "absent", "0", &g), TN_ERR_IO, "cannot open", "an absent file");
    assert_fails(ctx, load_external(ctx, "w.bin", "8", &g), TN_ERR_PARSE, "8 bytes at 8", "past the end");
    assert_fails(ctx, load_external(ctx, "w.bin", "18446744073709551615", &g), TN_ERR_PARSE, "w.bin", "far past the end");
    assert_fails(ctx, load_external(ctx, "w.bin", "-4", &g), TN_ERR_PARSE, "offset", "a negative offset");
    tn_ctx_free(ctx);
    test_dir_remove();
}

/* ---- convolutions by tiles ---- */

enum { CHANNELS = 60, HIGH = 6, WIDE = 7, POSITIONS = HIGH * WIDE };

static double convolved(const float *x, const float *w, int o, int row, int column) {
    double sum = 0;
    for (int c = 0; c < CHANNELS; c++)
        for (int k = 0; k < 9; k++) {
            int i = row + k / 3 - 1, j = column + k % 3 - 1;
            if (i < 0 || i >= HIGH || j < 0 || j >= WIDE) continue;
            sum += (double)x[(c * HIGH + i) * WIDE + j] * (double)w[(o * CHANNELS + c) * 9 + k];
        }
    return sum;
}

/* Many channels, constant weights that lie between the words of a file: by Winograd's way, with the bits of no plain sum; and
 * by plain sums where the options say so. Both are near the sum. */
static void test_tiles(void **state) {
    (void)state;
    test_dir_make();
    enum { WEIGHTS = CHANNELS * CHANNELS * 9, RESULTS = CHANNELS * POSITIONS };
    tn_ctx *ctx = tn_ctx_new(NULL);
    uint64_t seed = 1;
    static char file[WEIGHTS * sizeof(float) + 2];
    static float w[WEIGHTS], x[RESULTS], y[2][RESULTS];
    for (int i = 0; i < WEIGHTS; i++) w[i] = (float)rnd_below(&seed, 2001) / 1000 - 1;
    for (int i = 0; i < RESULTS; i++) x[i] = (float)rnd_below(&seed, 2001) / 1000 - 1;
    memcpy(file + 2, w, sizeof w);
    write_bytes(in_dir("w.bin"), file, sizeof file);
    bytes graph = { .n = 0 }, t = external_tensor("w", (int64_t[]){ CHANNELS, CHANNELS, 3, 3 }, 4, "w.bin", "2"),
          node = node_message("Conv x w -> y"), pads = { .n = 0 };
    put_text(&pads, 1, "pads"), put_int(&pads, 20, 7);
    for (int i = 0; i < 4; i++) put_int(&pads, 8, 1);
    put_message(&node, 5, &pads), put_message(&graph, 1, &node), put_message(&graph, 5, &t);
    put_port(&graph, 11, "x", F32, (int64_t[]){ 1, CHANNELS, HIGH, WIDE }, 4);
    put_port(&graph, 12, "y", F32, (int64_t[]){ 1, CHANNELS, HIGH, WIDE }, 4);
    bytes m = model_message(&graph, 13);
    write_bytes(in_dir("m.onnx"), m.at, m.n);
    for (int plain = 0; plain < 2; plain++) {
        tn_onnx_opts o = TN_ONNX_DEFAULTS;
        tn_graph *g;
        tn_program *p;
        tn_session *s;
        o.plain_convolutions = plain;
        if (tn_onnx_load(ctx, in_dir("m.onnx"), &o, &g)) fail_msg("%s", tn_ctx_error(ctx));
        assert_int_equal(tn_compile(g, NULL, &p), TN_OK);
        assert_int_equal(tn_session_new(p, &s), TN_OK);
        assert_int_equal(tn_run(s, TN_BIND({ "x", x }, { "y", y[plain] })), TN_OK);
        tn_session_free(s), tn_program_free(p), tn_graph_free(g);
    }
    for (int i = 0; i < RESULTS; i++) {
        double want = convolved(x, w, i / POSITIONS, i % POSITIONS / WIDE, i % WIDE);
        for (int plain = 0; plain < 2; plain++) assert_true(fabs((double)y[plain][i] - want) < 5e-5);
    }
    assert_true(memcmp(y[0], y[1], sizeof y[0]) != 0);
    tn_ctx_free(ctx);
    test_dir_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample),         cmocka_unit_test(test_refusals),  cmocka_unit_test(test_constant_input),
        cmocka_unit_test(test_malformed),      cmocka_unit_test(test_mutations), cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_mutated_models), cmocka_unit_test(test_external),  cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
