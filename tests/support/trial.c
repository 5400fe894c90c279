/* trial.c - see trial.h. Memory of values belongs to the trial's arena. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"

#include "drive/objects.h"
#include "ir/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

trial *trial_open(uint64_t seed) {
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->ctx = test_ctx();
    t->g = tn_graph_new(t->ctx, "trial");
    t->r = rng_make(seed);
    arena_init(&t->a, mem_libc(), &t->gd);
    return t;
}
void trial_close(trial *t) {
    tn_graph_free(t->g);
    tn_ctx_free(t->ctx);
    arena_fini(&t->a);
    free(t);
}

static void expect_ok(trial *t) {
    if (tn_graph_status(t->g)) fail_msg("%s", tn_ctx_error(t->ctx));
}
static tn_tensor new_input(trial *t, tn_dtype dtype, tn_shape s) {
    char name[16];
    assert_true(t->n < TRIAL_INPUTS);
    snprintf(name, sizeof name, "in%d", t->n);
    tn_tensor x = tn_input(t->g, name, dtype, s);
    expect_ok(t);
    t->in[t->n++] = x;
    return x;
}
int64_t trial_count(tn_tensor x) { return graph_elems(x.graph->ir, x.id); }

tn_tensor trial_floats(trial *t, tn_shape s, double lo, double hi) {
    tn_tensor x = new_input(t, TN_F64, s);
    int64_t n = trial_count(x);
    double *v = ARENA_ARRAY(&t->a, double, n + 1);
    for (int64_t i = 0; i < n; i++) v[i] = rng_range(&t->r, lo, hi);
    t->value[t->n - 1].f = v;
    return x;
}
tn_tensor trial_ints(trial *t, tn_dtype dtype, tn_shape s, int64_t lo, int64_t hi) {
    tn_tensor x = new_input(t, dtype, s);
    int64_t n = trial_count(x), *v = ARENA_ARRAY(&t->a, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++) v[i] = rng_between(&t->r, lo, hi);
    t->value[t->n - 1].i = v;
    return x;
}

static eval_value *evaluate(trial *t, arena *a) {
    expect_ok(t);
    if (GUARD_TRY(&t->gd)) return eval_graph(t->g->ir, a, t->value);
    fail_msg("%s", t->gd.err.text);
    return NULL;
}
int64_t *trial_whole(trial *t, tn_tensor input) {
    for (int i = 0; i < t->n; i++)
        if (t->in[i].id == input.id) return t->value[i].i;
    fail_msg("not an input");
    return NULL;
}
static double *as_doubles(trial *t, tn_tensor x, eval_value v) {
    int64_t n = trial_count(x);
    double *out = ARENA_ARRAY(&t->a, double, n + 1);
    for (int64_t i = 0; i < n; i++) out[i] = v.f ? v.f[i] : (double)v.i[i];
    return out;
}
double *trial_values(trial *t, tn_tensor x) {
    expect_ok(t);
    for (int i = 0; i < t->n; i++)
        if (t->in[i].id == x.id) return t->value[i].f ? t->value[i].f : as_doubles(t, x, t->value[i]);
    return as_doubles(t, x, evaluate(t, &t->a)[x.id]);
}

void trial_near(const char *what, const double *got, const double *want, int64_t n, double tol) {
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        if (!(fabs(got[i] - want[i]) <= tol * (1 + fabs(want[i]))))
            fail_msg("%s[%lld] is %.17g, expected %.17g", what, (long long)i, got[i], want[i]);
    }
}

static double loss_at(trial *t, tn_tensor loss) {
    arena scratch;
    arena_init(&scratch, mem_libc(), &t->gd);
    double v = evaluate(t, &scratch)[loss.id].f[0];
    arena_fini(&scratch);
    return v;
}
void trial_gradients(trial *t, tn_tensor y, double tol) {
    tn_tensor xs[TRIAL_INPUTS], dx[TRIAL_INPUTS];
    int n = 0, at[TRIAL_INPUTS];
    for (int i = 0; i < t->n; i++)
        if (t->value[i].f) at[n] = i, xs[n++] = t->in[i];
    tn_tensor w = trial_floats(t, tn_tensor_shape(y), -1, 1);
    tn_tensor loss = tn_sum(tn_mul(y, w), TN_ALL_AXES, 0);
    if (tn_grad(loss, xs, n, dx)) fail_msg("%s", tn_ctx_error(t->ctx));
    for (int k = 0; k < n; k++) {
        const double *got = trial_values(t, dx[k]);
        int64_t count = trial_count(xs[k]);
        for (int64_t j = 0; j < count && j < 16; j++) {
            int64_t i = count <= 16 ? j : rng_below(&t->r, count);
            double *p = &t->value[at[k]].f[i], old = *p, h = 1e-5;
            *p = old + h;
            double up = loss_at(t, loss);
            *p = old - h;
            double down = loss_at(t, loss), want = (up - down) / (2 * h);
            *p = old;
            if (!(fabs(got[i] - want) <= tol * (1 + fabs(want))))
                fail_msg("gradient of input %d at %lld is %.12g, expected %.12g", k, (long long)i, got[i], want);
        }
    }
}

static double read_at(tn_dtype type, const void *data, int64_t i) {
    return dtype_is_float(type) ? dtype_load(type, data, i) : (double)dtype_load_int(type, data, i);
}
void trial_compiled(trial *t, const tn_tensor *ys, int n, double tol) {
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_GRAPH };
    void *data[TRIAL_INPUTS], *out[TRIAL_INPUTS];
    double *want[TRIAL_INPUTS], got;
    tn_binding b[2 * TRIAL_INPUTS];
    char names[TRIAL_INPUTS][16];
    assert_true(n <= TRIAL_INPUTS);
    int n_bindings = 0;
    for (int k = 0; k < n; k++) {
        snprintf(names[k], sizeof names[k], "out%d", k);
        want[k] = trial_values(t, ys[k]);
        out[k] = calloc((size_t)trial_count(ys[k]) + 1, 8);
        tn_output(ys[k], names[k]);
        b[n_bindings++] = (tn_binding){ names[k], out[k] };
    }
    for (int i = 0; i < t->n; i++) {
        tn_dtype type = tn_tensor_dtype(t->in[i]);
        int64_t count = trial_count(t->in[i]);
        data[i] = calloc((size_t)count + 1, 8);
        for (int64_t j = 0; j < count; j++) {
            if (dtype_is_float(type))
                dtype_store(type, data[i], j, t->value[i].f[j]);
            else
                dtype_store_int(type, data[i], j, t->value[i].i[j]);
        }
        b[n_bindings++] = (tn_binding){ tn_tensor_name(t->in[i]), data[i] };
    }
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        tn_compile_opts opts = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *s;
        if (m && fuzz_by_c()) break;
        opts.mode = modes[m], opts.device = test_device();
        if (tn_compile(t->g, &opts, &p) || tn_session_new(p, &s) || tn_run(s, b, n_bindings))
            fail_msg("%s", tn_ctx_error(t->ctx));
        for (int k = 0; k < n; k++)
            for (int64_t i = 0; i < trial_count(ys[k]); i++) {
                got = read_at(tn_tensor_dtype(ys[k]), out[k], i);
                trial_near("compiled", &got, &want[k][i], 1, tol);
            }
        tn_session_free(s), tn_program_free(p);
    }
    for (int k = 0; k < n; k++) free(out[k]);
    for (int i = 0; i < t->n; i++) free(data[i]);
}

void trial_refused(trial *t, const char *text) {
    assert_int_not_equal(tn_graph_status(t->g), TN_OK);
    if (!strstr(tn_ctx_error(t->ctx), text)) fail_msg("\"%s\" does not say \"%s\"", tn_ctx_error(t->ctx), text);
}
