/* test_state.c - the states of a session in files: training goes on from a saved state exactly as it would have without the
 * break; files that do not fit change nothing. */
#include "io_test.h"

/* w -= 0.1 * x * w, n += 1, and an array of zero size: three states, one output. */
static tn_graph *make_graph(tn_ctx *ctx, bool counter, tn_shape shape, tn_dtype counter_dtype) {
    static const float init[6] = { 1, 2, 3, 4, 5, 6 };
    tn_graph *g = tn_graph_new(ctx, "train");
    tn_tensor x = tn_input(g, "x", TN_F32, shape);
    tn_tensor w = tn_param(g, "enc/w", TN_F32, shape, init);
    tn_assign(w, tn_sub(w, tn_mul_scalar(tn_mul(x, w), 0.1)));
    tn_output(tn_sum(w, TN_ALL_AXES, 0), "loss");
    if (counter) {
        tn_tensor n = tn_state(g, "n", counter_dtype, TN_SCALAR, NULL);
        tn_assign(n, tn_add_scalar(n, 1));
        tn_state(g, "empty", TN_F16, TN_DIMS(0, 4), NULL);
    }
    return g;
}

typedef struct made {
    tn_graph *g;
    tn_program *p;
    tn_session *s;
} made;
static made make(tn_ctx *ctx, bool counter, tn_shape shape, tn_dtype counter_dtype) {
    made m = { .g = make_graph(ctx, counter, shape, counter_dtype) };
    if (tn_compile(m.g, NULL, &m.p) || tn_session_new(m.p, &m.s)) fail_msg("%s", tn_ctx_error(ctx));
    return m;
}
static void unmake(made *m) {
    tn_session_free(m->s);
    tn_program_free(m->p);
    tn_graph_free(m->g);
}

static float step(tn_ctx *ctx, tn_session *s, int i) {
    float x[6], loss = 0;
    for (int k = 0; k < 6; k++) x[k] = (float)((i * 7 + k * 3) % 5) - 1.5f;
    if (tn_run(s, TN_BIND({ "x", x }, { "loss", &loss }))) fail_msg("%s", tn_ctx_error(ctx));
    return loss;
}

static void test_resume(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    made a = make(ctx, true, TN_DIMS(2, 3), TN_I64), b = make(ctx, true, TN_DIMS(2, 3), TN_I64);
    for (int i = 0; i < 5; i++) step(ctx, a.s, i);
    if (tn_io_save_state(ctx, a.s, in_dir("run.safetensors"))) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_io_load_state(ctx, b.s, in_dir("run.safetensors"))) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 5; i < 9; i++) {
        float want = step(ctx, a.s, i), got = step(ctx, b.s, i);
        assert_memory_equal(&got, &want, sizeof want); /* bit by bit */
    }
    int64_t n = 0;
    assert_int_equal(tn_session_get(b.s, "n", &n, sizeof n), TN_OK);
    assert_int_equal(n, 9);

    tn_io_tensors *t; /* what other programs see in the file */
    assert_int_equal(tn_io_safetensors_load(ctx, in_dir("run.safetensors"), &t), TN_OK);
    assert_int_equal(tn_io_tensors_count(t), 3);
    assert_int_equal(*(const int64_t *)tn_io_tensors_find(t, "n")->data, 5);
    assert_int_equal(tn_io_tensors_find(t, "enc/w")->shape.dim[1], 3);
    assert_int_equal(tn_io_tensors_find(t, "empty")->shape.dim[0], 0);
    tn_io_tensors_free(t);

    made c = make(ctx, false, TN_DIMS(2, 3), TN_I64); /* a program with fewer states takes what it knows */
    assert_int_equal(tn_io_load_state(ctx, c.s, in_dir("run.safetensors")), TN_OK);
    for (int i = 5; i < 9; i++) step(ctx, c.s, i);
    float w[2][6];
    assert_int_equal(tn_session_get(a.s, "enc/w", w[0], sizeof w[0]), TN_OK);
    assert_int_equal(tn_session_get(c.s, "enc/w", w[1], sizeof w[1]), TN_OK);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    unmake(&a), unmake(&b), unmake(&c);
    tn_ctx_free(ctx);
}

/* Initial values of a graph from a file: a program that is compiled afterwards goes on from there; a file that does not fit
 * leaves the graph as it was. */
static void test_graph(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    made a = make(ctx, true, TN_DIMS(2, 3), TN_I64), other = make(ctx, true, TN_DIMS(2, 3), TN_I32);
    for (int i = 0; i < 5; i++) step(ctx, a.s, i);
    if (tn_io_save_state(ctx, a.s, in_dir("graph.safetensors"))) fail_msg("%s", tn_ctx_error(ctx));
    tn_graph *g = make_graph(ctx, true, TN_DIMS(2, 3), TN_I64);
    assert_int_equal(tn_graph_n_states(g), 3);
    assert_string_equal(tn_tensor_name(tn_graph_state(g, 1)), "n");
    assert_int_equal(tn_graph_state(g, 3).id, 0);
    if (tn_io_load_graph(ctx, g, in_dir("graph.safetensors"))) fail_msg("%s", tn_ctx_error(ctx));
    made b = { .g = g };
    if (tn_compile(b.g, NULL, &b.p) || tn_session_new(b.p, &b.s)) fail_msg("%s", tn_ctx_error(ctx));
    for (int i = 5; i < 9; i++) {
        float want = step(ctx, a.s, i), got = step(ctx, b.s, i);
        assert_memory_equal(&got, &want, sizeof want);
    }
    char *before, *after;
    assert_int_equal(tn_graph_print(other.g, &before), TN_OK);
    assert_int_equal(tn_io_load_graph(ctx, other.g, in_dir("graph.safetensors")), TN_ERR_DTYPE);
    assert_non_null(strstr(tn_ctx_error(ctx), "\"n\" is i64[], the graph needs i32[]"));
    assert_int_equal(tn_graph_print(other.g, &after), TN_OK);
    assert_string_equal(before, after);
    assert_int_equal(tn_io_load_graph(ctx, other.g, in_dir("nowhere.safetensors")), TN_ERR_IO);
    assert_int_equal(tn_io_load_graph(ctx, NULL, "x"), TN_ERR_INVAL);
    tn_graph *wrong = make_graph(ctx, true, TN_DIMS(2, 3), TN_I64); /* its own first error, whatever the file has */
    tn_sum(tn_graph_state(wrong, 0), TN_INTS(7), 0);
    assert_int_equal(tn_ctx_fail(ctx, TN_ERR_IO, "an older error"), TN_ERR_IO);
    assert_int_equal(tn_io_load_graph(ctx, wrong, in_dir("graph.safetensors")), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_ctx_error(ctx), "axis 7"));
    tn_graph_free(wrong);
    tn_graph *now = tn_graph_immediate(ctx, "now"); /* values of the file at once, also of the array of zero size */
    tn_tensor n = tn_state(now, "n", TN_I64, TN_SCALAR, NULL);
    tn_state(now, "empty", TN_F16, TN_DIMS(0, 4), NULL);
    int64_t count = 0;
    if (tn_io_load_graph(ctx, now, in_dir("graph.safetensors"))) fail_msg("%s", tn_ctx_error(ctx));
    assert_int_equal(tn_tensor_read(n, &count, sizeof count), TN_OK);
    assert_int_equal(count, 5);
    tn_graph_free(now);
    assert_int_equal(tn_graph_write_states(g, NULL), TN_ERR_INVAL);
    assert_int_equal(tn_graph_write_states(g, (const void *[]){ &count, NULL, NULL }), TN_ERR_INVAL);
    assert_non_null(strstr(tn_ctx_error(ctx), "data is NULL"));
    tn_string_free(ctx, before), tn_string_free(ctx, after);
    unmake(&a), unmake(&b), unmake(&other);
    tn_ctx_free(ctx);
}

/* A file that does not fit is refused with both sides named, and no state changes: not even those that would have fitted. */
static void test_misfits(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    made small = make(ctx, false, TN_DIMS(2, 3), TN_I64), full = make(ctx, true, TN_DIMS(2, 3), TN_I64);
    made turned = make(ctx, true, TN_DIMS(3, 2), TN_I64), narrow = make(ctx, true, TN_DIMS(2, 3), TN_I32);
    step(ctx, small.s, 0), step(ctx, full.s, 0);
    assert_int_equal(tn_io_save_state(ctx, small.s, in_dir("small")), TN_OK);
    assert_int_equal(tn_io_save_state(ctx, full.s, in_dir("full")), TN_OK);
    float before[6], after[6];
    made *sessions[] = { &full, &turned, &narrow, &full, &full };
    const char *files[] = { "small", "full", "full", "cut", "absent" };
    const tn_status want[] = { TN_ERR_INVAL, TN_ERR_SHAPE, TN_ERR_DTYPE, TN_ERR_PARSE, TN_ERR_IO };
    const char *text[] = { "is not in the file, which has 1 tensors", "\"enc/w\" is f32[2,3], the session needs f32[3,2]",
                           "\"n\" is i64[], the session needs i32[]", "truncated", "No such file" };
    char bytes[4096];
    FILE *f = fopen(in_dir("full"), "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    write_bytes(in_dir("cut"), bytes, n - 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tn_session_get(sessions[i]->s, "enc/w", before, sizeof before), TN_OK);
        assert_fails(ctx, tn_io_load_state(ctx, sessions[i]->s, in_dir(files[i])), want[i], text[i], files[i]);
        assert_int_equal(tn_session_get(sessions[i]->s, "enc/w", after, sizeof after), TN_OK);
        assert_memory_equal(before, after, sizeof before);
    }
    assert_int_equal(tn_io_save_state(ctx, NULL, in_dir("x")), TN_ERR_INVAL);
    assert_int_equal(tn_io_load_state(NULL, full.s, in_dir("x")), TN_ERR_INVAL);
    unmake(&small), unmake(&full), unmake(&turned), unmake(&narrow);
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_resume), cmocka_unit_test(test_graph),
                                        cmocka_unit_test(test_misfits) };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
