/* ctc.c - connectionist temporal classification (Graves et al., ICML 2006). In: log probabilities of every step, sequences of
 * labels, both of their own lengths. Out: the mean loss; its gradient is that of the forward recursion.
 *
 * The recursion runs over steps (tn_scan) for all sequences and all places of the extended labels (blank, label, blank, ..,
 * blank) at once, in logarithms. What cannot be reached has the finite logarithm NEVER instead of -inf, whose differences would
 * be NaN. */
#include "nn.h"

#include <math.h>

static const double NEVER = -1e30;

typedef struct ctc {
    int64_t batch, places; /* 2 S + 1 */
    tn_tensor skips;       /* bool[B,L]: from two places before, over a blank between different labels */
    tn_tensor steps;       /* i64[B,1] */
} ctc;

/* x[:, i] at place i + by, `front` before it. */
static tn_tensor moved(tn_tensor x, int64_t by, int64_t places, double front) {
    return tn_slice_axis(tn_pad(x, (int64_t[]){ 0, by }, (int64_t[]){ 0, 0 }, 2, front), 1, 0, places, 1);
}

/* carry: alpha f[B,L]; slices: log probabilities of the labels f[B,L] and the step i64[]. */
static void step(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out) {
    const ctc *c = ud;
    tn_tensor a = in[0], b = moved(a, 1, c->places, NEVER), d = moved(a, 2, c->places, NEVER), never = nn_scalar(a, NEVER);
    (void)g;
    d = tn_select(c->skips, d, never);
    tn_tensor most = tn_stop_gradient(tn_max(a, tn_max(b, d)));
    tn_tensor sum = tn_add(tn_exp(tn_sub(a, most)), tn_add(tn_exp(tn_sub(b, most)), tn_exp(tn_sub(d, most))));
    tn_tensor next = tn_max_scalar(tn_add(tn_add(most, tn_log(sum)), in[1]), NEVER);
    out[0] = tn_select(tn_lt(in[2], c->steps), next, a);
}

/* Labels with blanks between: i64[B,2S+1]. */
static tn_tensor extended(tn_tensor labels, int64_t blank) {
    tn_shape s = tn_tensor_shape(labels);
    tn_tensor rows = tn_reshape(tn_cast(labels, TN_I64), TN_DIMS(s.dim[0], s.dim[1], 1));
    tn_tensor none = tn_full(labels.graph, TN_I64, TN_DIMS(s.dim[0], s.dim[1], 1), (double)blank);
    tn_tensor pairs = tn_concat((tn_tensor[]){ none, rows }, 2, 2);
    pairs = tn_reshape(pairs, TN_DIMS(s.dim[0], nn_times(labels.graph, 2, s.dim[1])));
    return tn_concat((tn_tensor[]){ pairs, tn_full(labels.graph, TN_I64, TN_DIMS(s.dim[0], 1), (double)blank) }, 2, 1);
}

static bool checked(tn_tensor log_p, tn_tensor labels, tn_tensor steps, tn_tensor sizes, tn_shape *s, tn_shape *l) {
    const char *fn = "tn_nn_ctc";
    tn_graph *g = log_p.graph;
    if (!nn_check(log_p, fn, 3, s) || !nn_given(g, labels, fn) || !nn_given(g, steps, fn) || !nn_given(g, sizes, fn))
        return false;
    *l = tn_tensor_shape(labels);
    tn_shape n = tn_tensor_shape(steps), m = tn_tensor_shape(sizes);
    bool fits = s->rank == 3 && l->rank == 2 && n.rank == 1 && m.rank == 1 && l->dim[0] == s->dim[1] && n.dim[0] == s->dim[1] &&
                m.dim[0] == s->dim[1];
    if (!fits) nn_fail(g, TN_ERR_SHAPE, "%s: expected log_p [T,B,C], labels [B,S], steps [B] and sizes [B]", fn);
    return fits;
}

tn_tensor tn_nn_ctc(tn_tensor log_p, tn_tensor labels, tn_tensor steps, tn_tensor sizes, int64_t blank) {
    tn_shape s, l;
    tn_graph *g = log_p.graph;
    if (!checked(log_p, labels, steps, sizes, &s, &l)) return (tn_tensor){ g, 0 };
    char classes[NN_SIZE_TEXT], length[NN_SIZE_TEXT];
    if (blank < 0 || blank >= nn_least(g, s.dim[2]) || nn_least(g, s.dim[0]) < 1)
        return nn_fail(g, TN_ERR_INVAL, "tn_nn_ctc: blank %lld of %s classes, %s steps", (long long)blank,
                       nn_size_text(g, s.dim[2], classes), nn_size_text(g, s.dim[0], length));
    tn_dtype t = tn_tensor_dtype(log_p), wide = t == TN_F64 ? t : TN_F32;
    int64_t n = s.dim[1], places = nn_plus(g, nn_times(g, 2, l.dim[1]), 1);
    tn_tensor label = extended(labels, blank), place = tn_iota(g, TN_I64, TN_DIMS(n, places), 1);
    tn_tensor before = moved(label, 2, places, (double)blank);
    ctc c = { n, places, .steps = tn_reshape(tn_cast(steps, TN_I64), TN_DIMS(n, 1)) };
    c.skips = tn_and(tn_ne(label, tn_full(g, TN_I64, TN_SCALAR, (double)blank)), tn_ne(label, before));
    tn_tensor index = tn_expand(tn_reshape(label, TN_DIMS(1, n, places)), TN_DIMS(s.dim[0], n, places));
    tn_tensor own = tn_max_scalar(tn_take_along(tn_cast(log_p, wide), index, 2), NEVER);
    /* before the first step only a blank in front of everything: place 0, from which the first two are reached */
    tn_tensor start = tn_select(tn_eq(place, tn_full(g, TN_I64, TN_SCALAR, 0)), tn_full(g, wide, TN_SCALAR, 0),
                                tn_full(g, wide, TN_SCALAR, NEVER));
    tn_tensor end, xs[2] = { own, tn_iota(g, TN_I64, TN_DIMS(s.dim[0]), 0) };
    tn_scan(g, &(tn_scan_opts){ .carry = &start, .n_carry = 1, .xs = xs, .n_xs = 2 }, step, &c, &end);
    if (!end.id) return end;
    tn_tensor size = tn_reshape(tn_cast(sizes, TN_I64), TN_DIMS(n, 1)), last = tn_mul_scalar(size, 2);
    tn_tensor ends = tn_or(tn_eq(place, last), tn_eq(place, tn_sub_scalar(last, 1)));
    tn_tensor loss = tn_neg(tn_nn_logsumexp(tn_select(ends, end, nn_scalar(end, NEVER)), 1, 0));
    tn_tensor divisor = tn_max_scalar(tn_cast(tn_reshape(size, TN_DIMS(n)), wide), 1);
    tn_tensor possible = tn_lt(loss, nn_scalar(loss, -NEVER / 2));
    loss = tn_select(possible, tn_div(loss, divisor), nn_scalar(loss, INFINITY));
    return tn_cast(tn_mean(loss, TN_ALL_AXES, 0), t);
}
