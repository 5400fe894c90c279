/* test_losses.c - losses beyond the plain ones against direct computations in double, and their gradients against central
 * differences: cross-entropy with options, CTC by adding up all alignments, focal, cosine, triplet, dice, probabilities. */
#include "nn/env.h"

static double log_sum(const double *x, int64_t n) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - most);
    return most + log(sum);
}

/* PyTorch's definition: rows and classes weighted, the mean over the weights of the rows that count. */
static void test_cross_entropy(void **state) {
    env *e = *state;
    for (int k = 0; k < 8; k++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(3, 4, 5), -3, 3),
                  labels = random_labels(e, k & 1 ? TN_I32 : TN_I64, TN_DIMS(3, 4), 5);
        tn_nn_cross_entropy_opts o = { .smoothing = k & 2 ? 0.2 : 0, .ignores = 1, .ignored = -100 };
        double weights[5] = { 1, 0.5, 2, 1.5, 0.25 }, total = 0, sum = 0;
        if (k & 4) o.weights = tn_const(e->g, TN_F64, TN_DIMS(5), weights);
        int64_t *label = e->in[1].i;
        label[2] = label[7] = -100;
        tn_tensor y = tn_nn_cross_entropy_with(x, labels, o);
        expect_ok(e);
        for (int r = 0; r < 12; r++) {
            const double *row = e->in[0].f + r * 5;
            if (label[r] < 0) continue;
            double all = log_sum(row, 5), w = k & 4 ? weights[label[r]] : 1;
            total += w, sum += (1 - o.smoothing) * w * (all - row[label[r]]);
            for (int c = 0; c < 5; c++) sum += o.smoothing / 5 * (k & 4 ? weights[c] : 1) * (all - row[c]);
        }
        expect_values(e, "cross entropy", y, &(double){ sum / total });
        expect_gradients(e, "cross entropy", y);
    }
    open_graph(e); /* nothing counts, and nothing is asked for: the plain one */
    tn_tensor x = random_input(e, TN_DIMS(2, 3), -3, 3), labels = random_labels(e, TN_I64, TN_DIMS(2), 3);
    tn_tensor plain =
        tn_sub(tn_nn_cross_entropy_with(x, labels, (tn_nn_cross_entropy_opts){ 0 }), tn_nn_cross_entropy(x, labels));
    expect_values(e, "plain", plain, &(double){ 0 });
    e->in[1].i[0] = e->in[1].i[1] = 7;
    tn_tensor none =
        tn_nn_cross_entropy_with(x, labels, (tn_nn_cross_entropy_opts){ .ignores = 1, .ignored = 7, .smoothing = 0.1 });
    expect_values(e, "no rows", none, &(double){ 0 });
    expect_gradients(e, "no rows", none);
    tn_nn_cross_entropy_with(x, labels, (tn_nn_cross_entropy_opts){ .smoothing = 1.5 });
    assert_int_equal(tn_graph_status(e->g), TN_ERR_INVAL);
}

static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void test_elementwise(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(4, 5), -4, 4), t = random_input(e, TN_DIMS(4, 5), 0, 1);
    double *xv = e->in[0].f, *tv = e->in[1].f, focal[3] = { 0 }, bce = 0, smooth = 0;
    tn_tensor p = tn_sigmoid(x);
    static const double alpha[3] = { 0.25, -1, 0.5 }, gamma[3] = { 2, 1.5, 0 };
    for (int i = 0; i < 20; i++) {
        double q = sigmoid(xv[i]), d = fabs(xv[i] - tv[i]), loss = tv[i] * softplus(-xv[i]) + (1 - tv[i]) * softplus(xv[i]);
        for (int k = 0; k < 3; k++)
            focal[k] += loss / 20 * pow(1 - (q * tv[i] + (1 - q) * (1 - tv[i])), gamma[k]) *
                        (alpha[k] >= 0 ? alpha[k] * tv[i] + (1 - alpha[k]) * (1 - tv[i]) : 1);
        bce += loss / 20, smooth += (d < 0.7 ? d * d / 2 / 0.7 : d - 0.35) / 20;
    }
    for (int k = 0; k < 3; k++) {
        tn_tensor y = tn_nn_focal(x, t, alpha[k], gamma[k]);
        expect_values(e, "focal", y, &focal[k]);
        expect_gradients(e, "focal", y);
    }
    expect_values(e, "bce", tn_nn_bce(p, t), &bce);
    expect_gradients(e, "bce", tn_nn_bce(p, t));
    expect_values(e, "smooth l1", tn_nn_smooth_l1(x, t, 0.7), &smooth);
    expect_gradients(e, "smooth l1", tn_nn_smooth_l1(x, t, 0.7));
    expect_values(e, "l1", tn_sub(tn_nn_smooth_l1(x, t, 0), tn_nn_l1(x, t)), &(double){ 0 });
    /* at the ends a probability counts 100, and its gradient is finite */
    tn_tensor ends = tn_const(e->g, TN_F64, TN_DIMS(4), (double[]){ 0, 1, 0, 1 }),
              right = tn_const(e->g, TN_F64, TN_DIMS(4), (double[]){ 0, 1, 1, 0 });
    tn_tensor loss = tn_nn_bce(ends, right), d;
    expect_values(e, "ends", loss, &(double){ 50 });
    assert_int_equal(tn_grad(loss, &ends, 1, &d), TN_OK);
    for (int i = 0; i < 4; i++) assert_true(isfinite(value_of(e, d)[i]));
    tn_nn_focal(x, t, 0.5, 0.5);
    assert_int_equal(tn_graph_status(e->g), TN_ERR_INVAL);
}

static void test_pairs(void **state) {
    env *e = *state;
    open_graph(e);
    tn_tensor x = random_input(e, TN_DIMS(6, 4), -1, 1), y = random_input(e, TN_DIMS(6, 4), -1, 1),
              z = random_input(e, TN_DIMS(6, 4), -1, 1);
    tn_tensor same = tn_const(e->g, TN_F64, TN_DIMS(6), (double[]){ 1, -1, 1, -1, -1, 1 });
    const double *a = e->in[0].f, *b = e->in[1].f, *c = e->in[2].f;
    double cosine[6], embedding = 0, triplet = 0;
    for (int r = 0; r < 6; r++) {
        double ab = 0, aa = 0, bb = 0, near = 0, far = 0;
        for (int i = r * 4; i < r * 4 + 4; i++) {
            ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
            near += pow(a[i] - b[i] + 1e-6, 2), far += pow(a[i] - c[i] + 1e-6, 2);
        }
        cosine[r] = ab / sqrt(aa * bb);
        embedding += (r == 1 || r == 3 || r == 4 ? fmax(0, cosine[r] - 0.1) : 1 - cosine[r]) / 6;
        triplet += fmax(0, sqrt(near) - sqrt(far) + 0.5) / 6;
    }
    expect_values(e, "cosine", tn_nn_cosine_similarity(x, y, 1), cosine);
    expect_gradients(e, "cosine", tn_nn_cosine_similarity(x, y, -1));
    expect_values(e, "cosine embedding", tn_nn_cosine_embedding(x, y, same, 0.1), &embedding);
    expect_gradients(e, "cosine embedding", tn_nn_cosine_embedding(x, y, same, 0.1));
    expect_values(e, "triplet", tn_nn_triplet(x, y, z, 0.5), &triplet);
    expect_gradients(e, "triplet", tn_nn_triplet(x, y, z, 0.5));
    tn_tensor zero = tn_full(e->g, TN_F64, TN_DIMS(1, 4), 0);
    expect_values(e, "cosine of zeros", tn_nn_cosine_similarity(zero, zero, 1), &(double){ 0 });
    open_graph(e);
    tn_tensor p = random_input(e, TN_DIMS(3, 2, 5), 0, 1), t = random_input(e, TN_DIMS(3, 2, 5), 0, 1);
    double dice = 0;
    for (int n = 0; n < 3; n++) {
        double both = 0, each = 0;
        for (int i = n * 10; i < n * 10 + 10; i++) both += e->in[0].f[i] * e->in[1].f[i], each += e->in[0].f[i] + e->in[1].f[i];
        dice += (1 - (2 * both + 1) / (each + 1)) / 3;
    }
    expect_values(e, "dice", tn_nn_dice(p, t, 1), &dice);
    expect_gradients(e, "dice", tn_nn_dice(p, t, 1));
}

/* ---- CTC ---- */

/* The probability of all paths of `steps` classes that read as the labels: every path is walked. */
static double all_alignments(const double *log_p, int64_t row, int64_t classes, int steps, const int64_t *label, int64_t n,
                             int64_t blank) {
    int64_t path[8] = { 0 }, paths = 1;
    double sum = 0;
    for (int t = 0; t < steps; t++) paths *= classes;
    for (int64_t k = 0; k < paths; k++) {
        int64_t rest = k, read = 0, last = -1;
        double p = 0;
        bool fits = true;
        for (int t = 0; t < steps; t++, rest /= classes) {
            path[t] = rest % classes;
            p += log_p[t * row + path[t]];
            if (path[t] != blank && path[t] != last) fits = fits && read < n && label[read] == path[t], read++;
            last = path[t];
        }
        if (fits && read == n) sum += exp(p);
    }
    return -log(sum);
}

static void test_ctc(void **state) {
    env *e = *state;
    enum { T = 6, B = 5, C = 3, S = 3 };
    for (int blank = 0; blank < C; blank++) {
        open_graph(e);
        tn_tensor x = random_input(e, TN_DIMS(T, B, C), -2, 2), log_p = tn_nn_log_softmax(x, -1);
        int64_t label[B][S], steps[B] = { 6, 5, 4, 6, 1 }, sizes[B] = { 3, 2, 1, 0, 1 };
        for (int i = 0; i < B * S; i++) label[i / S][i % S] = (blank + 1 + (i % 4 == 3 ? 1 : i % 2)) % C;
        label[0][0] = label[0][1]; /* equal neighbours need a blank between */
        tn_tensor y = tn_nn_ctc(log_p, tn_const(e->g, TN_I64, TN_DIMS(B, S), label), tn_const(e->g, TN_I64, TN_DIMS(B), steps),
                                tn_const(e->g, TN_I64, TN_DIMS(B), sizes), blank);
        expect_ok(e);
        const double *lp = value_of(e, log_p);
        double want = 0;
        for (int b = 0; b < B; b++)
            want += all_alignments(lp + b * C, B * C, C, (int)steps[b], label[b], sizes[b], blank) /
                    (double)(sizes[b] ? sizes[b] : 1) / B;
        expect_values(e, "ctc", y, &want);
        expect_gradients(e, "ctc", y);
    }
}

static void test_ctc_ends(void **state) {
    env *e = *state;
    open_graph(e); /* two equal labels do not fit into two steps; one sequence of two */
    tn_tensor x = random_input(e, TN_DIMS(2, 1, 3), -2, 2), log_p = tn_nn_log_softmax(x, -1), d;
    tn_tensor labels = tn_const(e->g, TN_I32, TN_DIMS(1, 2), (int32_t[]){ 1, 1 }),
              two = tn_const(e->g, TN_I32, TN_DIMS(1), (int32_t[]){ 2 });
    tn_tensor y = tn_nn_ctc(log_p, labels, two, two, 0);
    expect_values(e, "impossible", y, &(double){ INFINITY });
    assert_int_equal(tn_grad(y, &x, 1, &d), TN_OK);
    for (int i = 0; i < 6; i++) assert_true(value_of(e, d)[i] == 0);
    tn_tensor none = tn_nn_ctc(log_p, tn_full(e->g, TN_I32, TN_DIMS(1, 0), 0), two, tn_full(e->g, TN_I32, TN_DIMS(1), 0), 2);
    const double *lp = value_of(e, log_p);
    expect_values(e, "no labels", none, &(double){ -lp[2] - lp[5] });
    /* a class that cannot be: -inf is no NaN */
    tn_tensor never =
        tn_const(e->g, TN_F64, TN_DIMS(2, 1, 3), (double[]){ log(0.5), log(0.5), -INFINITY, log(0.25), log(0.75), -INFINITY });
    tn_tensor one = tn_full(e->g, TN_I32, TN_DIMS(1), 1), z = tn_nn_ctc(never, labels, two, one, 0);
    expect_values(e, "zero probability", z, &(double){ -log(0.5 * 0.75 + 0.5 * 0.25 + 0.5 * 0.75) });
    tn_nn_ctc(log_p, labels, two, two, 3);
    assert_int_equal(tn_graph_status(e->g), TN_ERR_INVAL);
    open_graph(e);
    tn_nn_ctc(random_input(e, TN_DIMS(2, 2, 3), 0, 1), tn_full(e->g, TN_I32, TN_DIMS(3, 2), 1),
              tn_full(e->g, TN_I32, TN_DIMS(2), 1), tn_full(e->g, TN_I32, TN_DIMS(2), 1), 0);
    assert_int_equal(tn_graph_status(e->g), TN_ERR_SHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_elementwise), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_ctc),           cmocka_unit_test(test_ctc_ends),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
