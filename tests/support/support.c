/* support.c - scope, random numbers and inputs, comparison of support.h. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

tn_config test_config(void) { return (tn_config){ .struct_size = sizeof(tn_config), .cpu = getenv("TENON_CPU") }; }

const char *test_device(void) {
    const char *name = getenv("TENON_DEVICE");
    return name && *name ? name : "cpu";
}
bool test_device_is_cpu(void) { return !strcmp(test_device(), "cpu"); }
bool test_device_is_simulated(void) { return !test_device_is_cpu() && getenv("OCLGRIND_DATA_RACES"); }

tn_ctx *test_ctx(void) {
    tn_config cfg = test_config();
    return tn_ctx_new(&cfg);
}

tn_status with_arena(void (*body)(arena *a, void *ud), void *ud, err *out) {
    guard gd;
    arena a;
    arena_init(&a, mem_libc(), &gd);
    tn_status status = TN_OK;
    if (GUARD_TRY(&gd))
        body(&a, ud);
    else
        status = gd.err.code;
    if (out) *out = gd.err;
    arena_fini(&a);
    return status;
}

/* ---- random numbers ---- */

rng rng_make(uint64_t seed) { return (rng){ seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du }; }

uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
int64_t rng_below(rng *r, int64_t n) { return n <= 0 ? 0 : (int64_t)(rng_next(r) % (uint64_t)n); }
int64_t rng_between(rng *r, int64_t lo, int64_t hi) { return lo + rng_below(r, hi - lo + 1); }
double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }
double rng_range(rng *r, double lo, double hi) { return lo + (hi - lo) * rng_unit(r); }
bool rng_chance(rng *r, double p) { return rng_unit(r) < p; }

uint64_t fuzz_seeds(uint64_t n_default, uint64_t *out_first) {
    const char *first = getenv("TENON_FUZZ_FIRST"), *n = getenv("TENON_FUZZ_SEEDS");
    *out_first = first ? strtoull(first, NULL, 10) : 0;
    return n ? strtoull(n, NULL, 10) : n_default;
}

bool campaign_is_short(void) {
    const char *how = getenv("TENON_CAMPAIGN");
    return how && !strcmp(how, "short");
}
int campaign(int full, int short_) { return campaign_is_short() ? short_ : full; }
bool campaign_has(uint64_t i, uint64_t share) {
    const char *turn = getenv("TENON_TURN");
    return !campaign_is_short() || (i + (turn ? strtoull(turn, NULL, 10) : 0)) % share == 0;
}

bool fuzz_by_c(void) {
    const char *cpu = getenv("TENON_CPU");
    return cpu && !strcmp(cpu, "c");
}

static int64_t random_int(rng *r, int64_t lo, int64_t hi) {
    int64_t v = rng_between(r, lo, hi);
    return v != 0 || lo == hi ? v : hi > 0 ? hi : lo;
}

void fill_random(rng *r, tn_dtype t, void *data, int64_t n, double lo, double hi) {
    for (int64_t i = 0; i < n; i++) {
        if (t == TN_BOOL) {
            dtype_store_int(t, data, i, rng_below(r, 2));
        } else if (dtype_is_int(t)) {
            dtype_store_int(t, data, i, random_int(r, (int64_t)ceil(lo), (int64_t)floor(hi)));
        } else {
            double v = rng_range(r, lo, hi), small = (hi - lo) / 1024;
            if (fabs(v) < small) v = hi >= small ? small : -small;
            dtype_store(t, data, i, v);
        }
    }
}

sample sample_make(const graph *g, arena *a, uint64_t seed) {
    size_t n = (size_t)g->inputs.n;
    sample s = { ARENA_ARRAY(a, void *, n), ARENA_ARRAY(a, size_t, n), ARENA_ARRAY(a, eval_value, n) };
    rng r = rng_make(seed ^ 0x5A5A5A5Au);
    for (int k = 0; k < g->inputs.n; k++) {
        val v = g->inputs.at[k];
        const node *x = graph_get(g, v);
        int64_t count = graph_elems(g, v);
        s.bytes[k] = (size_t)count * dtype_size(x->dtype);
        s.data[k] = arena_alloc(a, s.bytes[k] + 1);
        if (x->op == OP_state) {
            if (x->data && s.bytes[k] > 0) memcpy(s.data[k], x->data, s.bytes[k]);
        } else if (dtype_is_float(x->dtype)) {
            fill_random(&r, x->dtype, s.data[k], count, -2, 2);
        } else {
            fill_random(&r, x->dtype, s.data[k], count, dtype_is_unsigned((tn_dtype)x->dtype) ? 1 : -4, 8);
        }
        s.values[k] = eval_load(g, a, v, s.data[k]);
    }
    return s;
}

/* ---- comparison ---- */

static void mismatch_text(const graph *g, val v, int64_t i, double got, double want, double bound, char *text, size_t n_text) {
    const node *x = graph_get(g, v);
    int n = snprintf(text, n_text, "%%%u = %s %s ", (unsigned)v, op_get(x->op)->name, dtype_name(x->dtype));
    int64_t rest = i, c[TN_MAX_RANK] = { 0 };
    for (int d = x->rank - 1; d >= 0; d--) {
        c[d] = rest % x->dims[d];
        rest /= x->dims[d];
    }
    for (int d = 0; d < x->rank && n >= 0 && (size_t)n < n_text; d++)
        n += snprintf(text + n, n_text - (size_t)n, "%s%lld/%lld", d ? ", " : "at [", (long long)c[d], (long long)x->dims[d]);
    if (n < 0 || (size_t)n >= n_text) return;
    snprintf(text + n, n_text - (size_t)n, "%s: got %.9g, expected %.9g, difference %.3g, allowed %.3g",
             x->rank ? "]" : "(scalar)", got, want, fabs(got - want), bound);
}

static bool close_enough(tn_dtype t, double got, double want, double allowed) {
    if (isinf(allowed)) return true;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    uint64_t cell = 0;
    dtype_store(t, &cell, 0, want);
    double rounded = dtype_load(t, &cell, 0); /* a double beyond the dtype's range is its infinity */
    if (isinf(got) && isfinite(rounded)) {    /* what is allowed may reach beyond the largest number */
        dtype_store(t, &cell, 0, want + copysign(allowed, got));
        return dtype_load(t, &cell, 0) == got;
    }
    if (isinf(rounded) || isinf(got)) return rounded == got;
    return got == rounded || fabs(got - want) <= allowed;
}

int64_t compare(const graph *g, val v, const void *got, eval_value want, const double *bound, double slack, char *text,
                size_t n_text) {
    tn_dtype t = graph_get(g, v)->dtype;
    int64_t count = graph_elems(g, v);
    for (int64_t i = 0; i < count; i++) {
        double allowed = bound ? slack * bound[i] : 0;
        if (want.f) {
            double x = dtype_load(t, got, i);
            if (close_enough(t, x, want.f[i], allowed)) continue;
            mismatch_text(g, v, i, x, want.f[i], allowed, text, n_text);
        } else {
            int64_t x = dtype_load_int(t, got, i);
            /* the difference in double: both sides may be far apart, and where they are exact allowed is 0 */
            if (x == want.i[i] || fabs((double)x - (double)want.i[i]) <= allowed) {
                if (t != TN_BOOL || ((const uint8_t *)got)[i] <= 1) continue;
            }
            mismatch_text(g, v, i, (double)x, (double)want.i[i], allowed, text, n_text);
        }
        return i;
    }
    return -1;
}

double unchecked_share(const graph *g, val v, const double *bound) {
    int64_t count = graph_elems(g, v), open = 0;
    for (int64_t i = 0; i < count; i++) open += isinf(bound[i]) || (graph_get(g, v)->dtype == TN_BOOL && bound[i] > 0);
    return count > 0 ? (double)open / (double)count : 0;
}
