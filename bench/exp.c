/* exp.c - `tenon bench exp write-vs-move|dot-sum-dot`: two experiments, as plain C loops and as graphs at every fusion
 * level.
 *
 * write-vs-move: a result is wanted transposed. Write it where it belongs, with long strides ("odd write"), or write it row by
 * row and move it afterwards? Once for an elementwise result, once for a product.
 * dot-sum-dot: h = x w1, s = sum of h over its rows, y = s w2. Each step by itself with its result in memory; with one
 * movement: h transposed before it is summed, so that each sum runs along a row; with two: w2 transposed, too, before the
 * second product, so that each of its sums runs along a row; h never stored; and, because sums may be exchanged, the sum first.
 * On a device the graphs run there; the plain loops stay on the host, and the rows say so. */
#include "suite.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double eps = FLT_EPSILON / 2;

/* The sizes of a case: bench_case.row.size is n; everything else follows. */
static int64_t size_of(const bench_case *k) { return k->row.size; }

/* ---- write-vs-move ------------------------------------------------------------------------------------------------------- */

static float transform(float x) { return x > -0.5f ? 1.5f * x + 0.75f : 0; } /* relu(1.5 x + 0.75) */

/* In blocks, as the fastest plain transposition does it. */
static void move_transposed(const float *a, float *out, int64_t n) {
    enum { BLOCK = 16 };
    for (int64_t i0 = 0; i0 < n; i0 += BLOCK)
        for (int64_t j0 = 0; j0 < n; j0 += BLOCK)
            for (int64_t i = i0; i < i0 + BLOCK && i < n; i++)
                for (int64_t j = j0; j < j0 + BLOCK && j < n; j++) out[j * n + i] = a[i * n + j];
}
static void map_odd(const bench_case *k, float *out) {
    const float *x = k->data[0];
    int64_t n = size_of(k);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[j * n + i] = transform(x[i * n + j]);
}
static void map_then_move(const bench_case *k, float *out) {
    const float *x = k->data[0];
    float *scratch = k->data[2];
    int64_t n = size_of(k);
    for (int64_t i = 0; i < n * n; i++) scratch[i] = transform(x[i]);
    move_transposed(scratch, out, n);
}
/* One row of x w, four rows of w at a time. */
static void product_row(const float *x, const float *w, int64_t n, float *row) {
    int64_t l = 0;
    for (int64_t j = 0; j < n; j++) row[j] = 0;
    for (; l + 4 <= n; l += 4)
        for (int64_t j = 0; j < n; j++)
            row[j] += x[l] * w[l * n + j] + x[l + 1] * w[(l + 1) * n + j] + x[l + 2] * w[(l + 2) * n + j] +
                      x[l + 3] * w[(l + 3) * n + j];
    for (; l < n; l++)
        for (int64_t j = 0; j < n; j++) row[j] += x[l] * w[l * n + j];
}
static void product_odd(const bench_case *k, float *out) {
    const float *x = k->data[0], *w = k->data[1];
    float *row = k->data[2];
    int64_t n = size_of(k);
    for (int64_t i = 0; i < n; i++) {
        product_row(x + i * n, w, n, row);
        for (int64_t j = 0; j < n; j++) out[j * n + i] = row[j];
    }
}
static void product_then_move(const bench_case *k, float *out) {
    const float *x = k->data[0], *w = k->data[1];
    float *scratch = k->data[2];
    int64_t n = size_of(k);
    for (int64_t i = 0; i < n; i++) product_row(x + i * n, w, n, scratch + i * n);
    move_transposed(scratch, out, n);
}
static int want_map(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c;
    (void)s;
    const float *x = k->data[0];
    int64_t n = size_of(k);
    expect_output(want, "y", n * n);
    for (int64_t i = 0; i < n * n; i++) {
        double v = 1.5 * (double)x[i % n * n + i / n] + 0.75;
        want->want[i] = v > 0 ? v : 0;
        want->bound[i] = 4 * eps * (fabs(v) + 1);
    }
    return 1;
}
static int want_product(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c;
    (void)s;
    const float *x = k->data[0], *w = k->data[1];
    int64_t n = size_of(k);
    expect_output(want, "y", n * n);
    double *left = case_array(n * n), *y = case_array(n * n);
    float *right = buffer_new((size_t)(n * n) * sizeof(float));
    for (int sizes = 0; sizes < 2; sizes++) { /* the product, then that of the absolute values */
        for (int64_t i = 0; i < n * n; i++) {
            left[i] = sizes ? fabs((double)x[i]) : (double)x[i];
            right[i] = sizes ? fabsf(w[i]) : w[i];
            y[i] = 0;
        }
        product_double(left, right, n, n, n, y);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                *(sizes ? &want->bound[j * n + i] : &want->want[j * n + i]) =
                    y[i * n + j] * (sizes ? eps * ((double)n + 2) : 1);
    }
    free(left), free(y), buffer_free(right);
    return 1;
}
static void build_map(bench_case *k) {
    tn_tensor x = tn_input(k->graph, "x", TN_F32, TN_DIMS(size_of(k), size_of(k)));
    tn_output(tn_transpose(tn_relu(tn_add_scalar(tn_mul_scalar(x, 1.5), 0.75)), 0, 1), "y");
}
static void build_product(bench_case *k) {
    tn_tensor x = tn_input(k->graph, "x", TN_F32, TN_DIMS(size_of(k), size_of(k))),
              w = tn_input(k->graph, "w", TN_F32, TN_DIMS(size_of(k), size_of(k)));
    tn_output(tn_transpose(tn_matmul(x, w), 0, 1), "y");
}

/* ---- dot-sum-dot: x f32[n,n], w1 f32[n,n], w2 f32[n,n], y f32[n] ----------------------------------------------------------
 */

static void times_w2(const bench_case *k, const float *s, float *out) { product_row(s, k->data[2], size_of(k), out); }
/* data[3] is scratch f32[3 n + 2, n]: h, its transpose, s, and the transpose of w2. */
static void three_steps(const bench_case *k, float *out) {
    int64_t n = size_of(k);
    float *h = k->data[3], *s = h + 2 * n * n;
    for (int64_t i = 0; i < n; i++) product_row((const float *)k->data[0] + i * n, k->data[1], n, h + i * n);
    for (int64_t j = 0; j < n; j++) s[j] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) s[j] += h[i * n + j];
    times_w2(k, s, out);
}
static float eight_parts(const float *part) {
    return part[0] + part[1] + part[2] + part[3] + part[4] + part[5] + part[6] + part[7];
}
/* s: h moved, then summed along its rows. */
static float *sum_moved(const bench_case *k) {
    int64_t n = size_of(k);
    float *h = k->data[3], *moved = h + n * n, *s = h + 2 * n * n;
    for (int64_t i = 0; i < n; i++) product_row((const float *)k->data[0] + i * n, k->data[1], n, h + i * n);
    move_transposed(h, moved, n);
    for (int64_t j = 0; j < n; j++) {
        float part[8] = { 0 };
        for (int64_t i = 0; i < n; i++) part[i & 7] += moved[j * n + i];
        s[j] = eight_parts(part);
    }
    return s;
}
static void one_movement(const bench_case *k, float *out) { times_w2(k, sum_moved(k), out); }
static void two_movements(const bench_case *k, float *out) {
    int64_t n = size_of(k);
    const float *s = sum_moved(k);
    float *moved = (float *)k->data[3] + 2 * n * n + n;
    move_transposed(k->data[2], moved, n);
    for (int64_t j = 0; j < n; j++) {
        float part[8] = { 0 };
        for (int64_t i = 0; i < n; i++) part[i & 7] += s[i] * moved[j * n + i];
        out[j] = eight_parts(part);
    }
}
static void nothing_stored(const bench_case *k, float *out) {
    int64_t n = size_of(k);
    float *row = k->data[3], *s = row + 2 * n * n;
    for (int64_t j = 0; j < n; j++) s[j] = 0;
    for (int64_t i = 0; i < n; i++) {
        product_row((const float *)k->data[0] + i * n, k->data[1], n, row);
        for (int64_t j = 0; j < n; j++) s[j] += row[j];
    }
    times_w2(k, s, out);
}
static void sum_first(const bench_case *k, float *out) {
    int64_t n = size_of(k);
    const float *x = k->data[0];
    float *t = k->data[3], *s = t + n;
    for (int64_t j = 0; j < n; j++) t[j] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) t[j] += x[i * n + j];
    product_row(t, k->data[1], n, s);
    times_w2(k, s, out);
}
static int want_dots(cli *c, bench_case *k, tn_session *unused, expected *want) {
    (void)c;
    (void)unused;
    const float *x = k->data[0], *w1 = k->data[1], *w2 = k->data[2];
    int64_t n = size_of(k);
    double *t = case_array(2 * n), *s = t + n, top = 0;
    expect_output(want, "y", n);
    for (int64_t i = 0; i < n * n; i++) t[i % n] += (double)x[i];
    for (int64_t i = 0; i < n * n; i++) s[i % n] += t[i / n] * (double)w1[i];
    for (int64_t i = 0; i < n * n; i++) want->want[i % n] += s[i / n] * (double)w2[i];
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(want->want[i]));
    /* Errors of so many independent roundings largely cancel: far fewer than n of the largest result are left. */
    for (int64_t i = 0; i < n; i++) want->bound[i] = ((double)n + 16) * eps * top;
    free(t);
    return 1;
}
static void build_dots(bench_case *k, int movements, bool sum_before) {
    tn_shape square = TN_DIMS(size_of(k), size_of(k));
    tn_tensor x = tn_input(k->graph, "x", TN_F32, square), w1 = tn_input(k->graph, "w1", TN_F32, square),
              w2 = tn_input(k->graph, "w2", TN_F32, square), s;
    if (sum_before)
        s = tn_matmul(tn_sum(x, TN_INTS(0), 0), w1);
    else if (movements)
        s = tn_sum(tn_transpose(tn_matmul(x, w1), 0, 1), TN_INTS(1), 0);
    else
        s = tn_sum(tn_matmul(x, w1), TN_INTS(0), 0);
    tn_output(movements > 1 ? tn_matmul(tn_transpose(w2, 0, 1), s) : tn_matmul(s, w2), "y");
}
static void build_steps(bench_case *k) { build_dots(k, 0, false); }
static void build_moved(bench_case *k) { build_dots(k, 1, false); }
static void build_moved_twice(bench_case *k) { build_dots(k, 2, false); }
static void build_sum_first(bench_case *k) { build_dots(k, 0, true); }

/* ---- the tables ---------------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *name, *variant;
    void (*plain)(const bench_case *k, float *out); /* or build, at each fusion level */
    void (*build)(bench_case *k);
    int (*expect)(cli *c, bench_case *k, tn_session *s, expected *want);
    const char *inputs[4]; /* square matrices */
    int scratch;           /* squares of scratch memory behind them (plain loops) */
    int outputs;           /* 2: n x n, 1: n */
} way;

static const way write_vs_move[] = {
    { "map", "C, odd write", map_odd, NULL, want_map, { "x", "w" }, 1, 2 },
    { "map", "C, write then move", map_then_move, NULL, want_map, { "x", "w" }, 1, 2 },
    { "map", "graph", NULL, build_map, want_map, { "x" }, 0, 2 },
    { "product", "C, odd write", product_odd, NULL, want_product, { "x", "w" }, 1, 2 },
    { "product", "C, write then move", product_then_move, NULL, want_product, { "x", "w" }, 1, 2 },
    { "product", "graph", NULL, build_product, want_product, { "x", "w" }, 0, 2 },
};
static const way dot_sum_dot[] = {
    { "dot-sum-dot", "C, three steps", three_steps, NULL, want_dots, { "x", "w1", "w2" }, 3, 1 },
    { "dot-sum-dot", "C, one movement", one_movement, NULL, want_dots, { "x", "w1", "w2" }, 3, 1 },
    { "dot-sum-dot", "C, two movements", two_movements, NULL, want_dots, { "x", "w1", "w2" }, 3, 1 },
    { "dot-sum-dot", "C, nothing stored", nothing_stored, NULL, want_dots, { "x", "w1", "w2" }, 3, 1 },
    { "dot-sum-dot", "C, sum first", sum_first, NULL, want_dots, { "x", "w1", "w2" }, 3, 1 },
    { "dot-sum-dot", "graph", NULL, build_steps, want_dots, { "x", "w1", "w2" }, 0, 1 },
    { "dot-sum-dot", "graph, one movement", NULL, build_moved, want_dots, { "x", "w1", "w2" }, 0, 1 },
    { "dot-sum-dot", "graph, two movements", NULL, build_moved_twice, want_dots, { "x", "w1", "w2" }, 0, 1 },
    { "dot-sum-dot", "graph, sum first", NULL, build_sum_first, want_dots, { "x", "w1", "w2" }, 0, 1 },
};

static bench_case make_case(suite *s, const char *command, const way *w, int64_t n, int fusion) {
    uint64_t seed = s->seed; /* every way gets the same numbers */
    bench_case k = case_new(s, command, w->name, w->variant);
    k.row.size = n;
    k.row.fusion = fusion;
    k.plain = w->plain;
    k.out_count = w->outputs == 2 ? n * n : n;
    k.expect = w->expect;
    for (int i = 0; i < 4 && w->inputs[i]; i++) case_input(&k, w->inputs[i], case_floats(n * n, 1, &seed));
    if (w->scratch) case_input(&k, "scratch", buffer_new((size_t)(w->scratch * n * n + 2 * n) * sizeof(float)));
    if (w->build) w->build(&k);
    return k;
}

/* All ways to do the work called `name`, in turns. */
static void measure(suite *s, const char *command, const way *ways, size_t n_ways, const char *name, int64_t n) {
    bench_case cases[SUITE_MAX_CASES + 8];
    int used = 0;
    for (size_t i = 0; i < n_ways; i++) {
        if (strcmp(ways[i].name, name)) continue;
        if (!ways[i].build) {
            cases[used++] = make_case(s, command, &ways[i], n, -1);
            continue;
        }
        bool all = !strcmp(ways[i].variant, "graph"); /* the others at the ends of the scale */
        for (int fusion = 0; fusion <= 3; fusion += all ? 1 : 3) cases[used++] = make_case(s, command, &ways[i], n, fusion);
    }
    suite_run(s, cases, used);
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    int used = r->fusion < 0 ? snprintf(buffer, n, "%s: %s", r->name, r->variant)
                             : snprintf(buffer, n, "%s: %s, fusion %d", r->name, r->variant, (int)r->fusion);
    if (r->device) snprintf(buffer + used, n - (size_t)used, ", %s", r->device);
    return r->threads == 1 ? buffer : NULL;
}
static double x_of(const bench_row *r) { return (double)r->size; }
static double y_of(const bench_row *r) { return r->median_us; }

int bench_exp(cli *c, const char *which) {
    bool move = !strcmp(which, "write-vs-move");
    if (!move && strcmp(which, "dot-sum-dot")) cli_usage(c, "there is no experiment %s (write-vs-move, dot-sum-dot)", which);
    char *command = cli_format("bench exp %s", which);
    suite s = suite_begin(c, command);
    s.note = s.device
                 ? suite_text(&s,
                              "rows of device cpu: plain C loops of one thread on the host; rows of device %s: graphs there, "
                              "a step in a call of many, without transfers",
                              s.device)
                 : "variants named C: plain loops of one thread; graphs: compiled at the fusion level given";
    int64_t sizes[16];
    int n = cli_ints(c, "sizes", "64,256,1024", sizes, COUNT_OF(sizes), 1, 4096);
    for (int i = 0; i < n; i++) {
        if (move) {
            measure(&s, which, write_vs_move, COUNT_OF(write_vs_move), "map", sizes[i]);
            measure(&s, which, write_vs_move, COUNT_OF(write_vs_move), "product", sizes[i]);
        } else
            measure(&s, which, dot_sum_dot, COUNT_OF(dot_sum_dot), "dot-sum-dot", sizes[i]);
    }
    suite_report(&s);
    rows_plot(
        c,
        &(chart){ .title = command,
                  .note = s.note,
                  .x_label = "n (matrices n x n)",
                  .x_of = x_of,
                  .panel = { { s.device ? "microseconds (median)" : "microseconds (median, one thread)", line_of, y_of } } },
        s.rows, s.n_rows);
    suite_end(&s);
    free(command);
    return CLI_OK;
}
