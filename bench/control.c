/* control.c - `tenon bench control`: loops of many short iterations, each beside a loop in C by hand in the same rounds: scans
 * over a state of 4 numbers (elementwise; with all states stacked; through a matrix), a while loop, a scan inside of a scan.
 * Times are of all iterations; rival_ratio is the C loop's time over ours. */
#include "suite.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { WIDE = 4 };
typedef float f4 __attribute__((vector_size(16)));

typedef enum loop_kind { ELEMENTWISE, STACKED, MATRIX, WHILE, NESTED } loop_kind;
typedef struct loop_work {
    const char *name;
    loop_kind kind;
    void (*plain)(const bench_case *k, float *out);
} loop_work;

enum { INNER = 10 }; /* iterations of the inner loop of NESTED */

static int64_t steps_of(const bench_case *k) { return k->row.size; }
static const float *data(const bench_case *k, int i) { return k->data[i]; }
static f4 load4(const float *x) {
    f4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* ---- by hand: x f32[steps,4], a f32[4] (MATRIX: f32[4,4]) to f32[4], or f32[steps,4] ---- */

static void plain_elementwise(const bench_case *k, float *out) {
    f4 s = { 0 }, a = load4(data(k, 1));
    for (int64_t t = 0; t < steps_of(k); t++) s = a * s + load4(data(k, 0) + WIDE * t);
    memcpy(out, &s, sizeof s);
}
static void plain_stacked(const bench_case *k, float *out) {
    f4 s = { 0 }, a = load4(data(k, 1));
    for (int64_t t = 0; t < steps_of(k); t++) {
        s = a * s + load4(data(k, 0) + WIDE * t);
        memcpy(out + WIDE * t, &s, sizeof s);
    }
}
static void plain_matrix(const bench_case *k, float *out) {
    const float *w = data(k, 1);
    f4 s = { 0 }, w0 = load4(w), w1 = load4(w + 4), w2 = load4(w + 8), w3 = load4(w + 12);
    for (int64_t t = 0; t < steps_of(k); t++)
        s = (s[0] * w0 + s[1] * w1) + (s[2] * w2 + s[3] * w3) + load4(data(k, 0) + WIDE * t);
    memcpy(out, &s, sizeof s);
}
static void plain_while(const bench_case *k, float *out) {
    f4 s = { 0 }, a = load4(data(k, 1)), x = load4(data(k, 0));
    for (int64_t i = 0; i < steps_of(k); i++) s = a * s + x;
    memcpy(out, &s, sizeof s);
}
static void plain_nested(const bench_case *k, float *out) {
    f4 s = { 0 }, a = load4(data(k, 1));
    for (int64_t t = 0; t < steps_of(k) / INNER; t++) {
        f4 x = load4(data(k, 0) + WIDE * t);
        for (int i = 0; i < INNER; i++) s = a * s + x;
    }
    memcpy(out, &s, sizeof s);
}

static const loop_work works[] = { { "scan", ELEMENTWISE, plain_elementwise },
                                   { "scan, states stacked", STACKED, plain_stacked },
                                   { "scan, 4x4 matrix", MATRIX, plain_matrix },
                                   { "while", WHILE, plain_while },
                                   { "scan in scan", NESTED, plain_nested } };

/* ---- as graphs ---- */

typedef struct body_data {
    tn_tensor a, x;
    int64_t steps;
    loop_kind kind;
} body_data;

static void body(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    const body_data *d = ud;
    tn_tensor x = d->kind == NESTED ? d->x : in[1];
    out[0] = tn_add(d->kind == MATRIX ? tn_matmul(in[0], d->a) : tn_mul(in[0], d->a), x);
    if (d->kind == STACKED) out[1] = out[0];
}
static void body_outer(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    body_data d = *(const body_data *)ud;
    d.x = in[1];
    tn_scan(g, &(tn_scan_opts){ .carry = in, .n_carry = 1, .length = INNER }, body, &d, out);
}
static void go_on(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    out[0] = tn_lt(in[1], tn_full(g, TN_I64, TN_SCALAR, (double)((const body_data *)ud)->steps));
}
static void body_while(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    (void)g;
    const body_data *d = ud;
    out[0] = tn_add(tn_mul(in[0], d->a), d->x);
    out[1] = tn_add_scalar(in[1], 1);
}

static void build(tn_graph *g, const loop_work *w, int64_t steps) {
    int64_t n = w->kind == WHILE ? 1 : w->kind == NESTED ? steps / INNER : steps;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(n, WIDE)), out[2];
    body_data d = { .steps = steps, .kind = w->kind };
    d.a = w->kind == MATRIX ? tn_input(g, "a", TN_F32, TN_DIMS(WIDE, WIDE)) : tn_input(g, "a", TN_F32, TN_DIMS(WIDE));
    if (w->kind == WHILE) {
        d.x = tn_reshape(x, TN_DIMS(WIDE));
        tn_tensor init[] = { tn_full(g, TN_F32, TN_DIMS(WIDE), 0), tn_full(g, TN_I64, TN_SCALAR, 0) };
        tn_while(g, init, 2, go_on, body_while, &d, 0, out);
    } else {
        tn_tensor zeros = tn_full(g, TN_F32, TN_DIMS(WIDE), 0);
        tn_scan_opts o = { .carry = &zeros, .n_carry = 1, .xs = &x, .n_xs = 1, .n_ys = w->kind == STACKED };
        tn_scan(g, &o, w->kind == NESTED ? body_outer : body, &d, out);
    }
    tn_output(out[w->kind == STACKED], "y");
}

/* In double, with what rounding may do: of each step's terms a few places, which the steps after it shrink. */
static int expect(cli *c, bench_case *k, tn_session *s, expected *want) {
    (void)c, (void)s;
    const loop_work *w = k->ud;
    const float *x = data(k, 0), *a = data(k, 1);
    double state[WIDE] = { 0 }, off[WIDE] = { 0 };
    int64_t n = steps_of(k);
    expect_output(want, "y", w->kind == STACKED ? n * WIDE : WIDE);
    for (int64_t t = 0; t < n; t++) {
        double next[WIDE], sizes[WIDE], carried[WIDE];
        const float *now = x + WIDE * (w->kind == WHILE ? 0 : w->kind == NESTED ? t / INNER : t);
        for (int i = 0; i < WIDE; i++) {
            next[i] = (double)now[i], sizes[i] = fabs(next[i]), carried[i] = 0;
            for (int j = w->kind == MATRIX ? 0 : i; j < (w->kind == MATRIX ? WIDE : i + 1); j++) {
                double by = (double)(w->kind == MATRIX ? a[WIDE * j + i] : a[i]);
                next[i] += state[j] * by, sizes[i] += fabs(state[j] * by), carried[i] += off[j] * fabs(by);
            }
        }
        for (int i = 0; i < WIDE; i++) {
            state[i] = next[i], off[i] = carried[i] + 3 * (double)FLT_EPSILON * sizes[i];
            int64_t at = w->kind == STACKED ? t * WIDE + i : i;
            want->want[at] = state[i], want->bound[at] = off[i];
        }
    }
    return 1;
}

static void give_data(bench_case *k, const loop_work *w, int64_t steps, uint64_t seed) {
    int64_t n = w->kind == WHILE ? 1 : w->kind == NESTED ? steps / INNER : steps;
    case_input(k, "x", case_floats(n * WIDE, 1, &seed));
    case_input(k, "a", case_floats(w->kind == MATRIX ? WIDE * WIDE : WIDE, w->kind == MATRIX ? 0.24 : 0.99, &seed));
    k->expect = expect;
    k->ud = w;
    k->row.size = steps;
}

static void measure(suite *s, const loop_work *w, int64_t steps) {
    if (!suite_wants(s, w->name)) return;
    bench_case k[2] = { case_new(s, "control", w->name, "graph"), case_new(s, "control", w->name, "C loop") };
    build(k[0].graph, w, steps);
    for (int i = 0; i < 2; i++) give_data(&k[i], w, steps, s->seed);
    k[1].plain = w->plain;
    k[1].out_count = w->kind == STACKED ? steps * WIDE : WIDE;
    int first = s->n_rows;
    suite_run(s, k, 2);
    for (int i = first; i + 1 < s->n_rows; i += 2) {
        s->rows[i].rival_ratio = s->rows[i + 1].median_us / s->rows[i].median_us;
        s->rows[i].rival_best_ratio = s->rows[i + 1].best_us / s->rows[i].best_us;
    }
}

static const char *line_of(const bench_row *r, char *buffer, size_t n) {
    snprintf(buffer, n, "%s, %s", r->name, r->variant);
    return buffer;
}
static double x_of(const bench_row *r) { return (double)r->size; }
static double y_of(const bench_row *r) { return r->median_us * 1e3 / (double)r->size; }

int bench_control(cli *c) {
    suite s = suite_begin(c, "bench control");
    if (!s.device) s.n_threads = 1, s.threads[0] = cli_text(c, "threads", NULL) ? s.threads[0] : 1;
    s.note = "size: iterations; rival_ratio: the time of the C loop over ours";
    int64_t sizes[8];
    int n = cli_ints(c, "sizes", "10000", sizes, COUNT_OF(sizes), INNER, 1 << 24);
    for (int i = 0; i < n; i++)
        for (size_t w = 0; w < COUNT_OF(works); w++) measure(&s, &works[w], sizes[i] / INNER * INNER);
    suite_report(&s);
    rows_plot(c,
              &(chart){ .title = "Loops of short iterations, beside C",
                        .x_label = "iterations",
                        .x_of = x_of,
                        .panel = { { "ns an iteration (median)", line_of, y_of } } },
              s.rows, s.n_rows);
    suite_end(&s);
    return CLI_OK;
}
