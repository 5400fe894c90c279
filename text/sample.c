/* sample.c - which token comes next. In: logits, and what of their distribution is kept. Out: an id. */
#include "text.h"

#include <math.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static bool likelier(candidate a, candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

/* c[0..n) is a heap, the likeliest at its root, but for c[i]. */
static void sink(candidate *c, size_t n, size_t i) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && likelier(c[child + 1], c[child])) child++;
        if (!likelier(c[child], c[i])) return;
        candidate x = c[i];
        c[i] = c[child], c[child] = x;
    }
}

/* In [0, 1) with 53 bits: splitmix64. */
static double uniform(uint64_t *random) { return (double)(text_mix(*random += 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53; }

/* The first candidate at which the weights add up to `share` of `total`. */
static int32_t pick(const candidate *c, size_t n, float top, double heat, double share) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if ((sum += exp(((double)c[i].logit - (double)top) / heat)) > share) return c[i].id;
    for (size_t i = n; i--;) /* rounded away: the last one that is possible at all */
        if (c[i].logit > -INFINITY) return c[i].id;
    return c[0].id;
}

/* The likeliest ones at the end of c, in rising order: c[*out_from .. n). Their weights' sum. */
static double keep(candidate *c, size_t n, const tn_text_sample_opts *o, float top, double all, size_t *out_from) {
    size_t most = o->top_k && (size_t)o->top_k < n ? (size_t)o->top_k : n, left = n;
    double sum = 0, limit = o->top_p > 0 ? o->top_p : 1;
    for (size_t i = n / 2; i--;) sink(c, n, i);
    while (left > n - most && (most < n || sum < limit * all)) {
        candidate x = c[0];
        c[0] = c[--left], c[left] = x;
        sink(c, left, 0);
        sum += exp(((double)x.logit - (double)top) / o->temperature);
    }
    *out_from = left;
    if (most == n || limit >= 1) return sum;
    double part = 0; /* of the k likeliest, those that make up p of their sum */
    for (size_t i = n; i-- > left;)
        if ((part += exp(((double)c[i].logit - (double)top) / o->temperature)) >= limit * sum) {
            *out_from = i;
            return part;
        }
    return sum;
}

tn_status tn_text_sample(tn_ctx *ctx, const float *logits, size_t n, const tn_text_sample_opts *opts, uint64_t *random,
                         int32_t *out_id) {
    if (!ctx) return TN_ERR_INVAL;
    if (!logits || !opts || !random || !out_id || !n || n > TN_TEXT_MAX_TOKENS)
        return text_fail(ctx, TN_ERR_INVAL, "tn_text_sample: an argument is NULL, or there are %zu logits", n);
    if (!(opts->temperature >= 0) || opts->top_k < 0 || !(opts->top_p >= 0 && opts->top_p <= 1))
        return text_fail(ctx, TN_ERR_INVAL,
                         "tn_text_sample: temperature %g, top_k %d, top_p %g: none is below 0, top_p at most 1",
                         opts->temperature, opts->top_k, opts->top_p);
    size_t best = 0, room = 0, from = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return text_fail(ctx, TN_ERR_INVAL, "tn_text_sample: logit %zu is %g", i, (double)logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    *out_id = (int32_t)best;
    double share = uniform(random), all = 0; /* also where nothing is drawn: a token a number */
    if (opts->temperature == 0 || logits[best] == -INFINITY) return TN_OK;
    candidate *c = NULL;
    if (!text_grow(ctx, &c, &room, n, sizeof *c)) return TN_ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        c[i] = (candidate){ logits[i], (int32_t)i };
        all += exp(((double)logits[i] - (double)logits[best]) / opts->temperature);
    }
    if (opts->top_k || (opts->top_p > 0 && opts->top_p < 1)) all = keep(c, n, opts, logits[best], all, &from);
    *out_id = pick(c + from, n - from, logits[best], opts->temperature, share * all);
    text_free(ctx, c, room, sizeof *c);
    return TN_OK;
}
