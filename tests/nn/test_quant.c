/* test_quant.c - tenon_quant.h against plain loops: every dtype with scales per tensor, per axis and per group, halves, NaN and
 * infinities, gradients, numbers of 4 bits, refused calls. Labels: devices */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"
#include "tenon/tenon_quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { D0 = 3, D1 = 7, D2 = 5, N = D0 * D1 * D2 };

typedef struct layout { /* of scales beside [D0,D1,D2] */
    const char *name;
    int axis;
    int64_t group;
    tn_shape shape;
} layout;
static const layout layouts[] = {
    { "tensor", 0, 0, { 0, { 0 } } },
    { "one element", 0, 0, { 1, { 1 } } },
    { "axis 1", 1, 0, { 1, { D1 } } },
    { "axis -1", -1, 0, { 1, { D2 } } },
    { "groups without rest", 0, 1, { 3, { D0, D1, D2 } } },
    { "groups of an axis", 1, 7, { 3, { D0, 1, D2 } } },
    { "groups with a rest", 1, 3, { 3, { D0, 3, D2 } } },
    { "groups with a rest of the last axis", -1, 2, { 3, { D0, D1, 3 } } },
};
/* Which scale element (i,j,k) has. */
static int64_t scale_at(const layout *l, int i, int j, int k) {
    int64_t at[3] = { i, j, k }, a = (l->axis + 3) % 3;
    if (l->shape.rank == 0 || l->shape.dim[0] == 1) return 0;
    if (!l->group) return at[a];
    at[a] /= l->group;
    return (at[0] * l->shape.dim[1] + at[1]) * l->shape.dim[2] + at[2];
}

typedef struct range {
    tn_dtype t;
    int bits;
    double lo, hi;
} range;
static const range ranges[] = {
    { TN_I8, 0, -128, 127 },
    { TN_U8, 0, 0, 255 },
    { TN_I16, 0, -32768, 32767 },
    { TN_U16, 0, 0, 65535 },
    { TN_I32, 0, -0x1p31, 0x1p31 - 1 },
    { TN_I8, 4, -8, 7 },
    { TN_U8, 4, 0, 15 },
    { TN_I8, 2, -2, 1 },
    { TN_U16, 12, 0, 4095 },
};

static double quantised(double v, double zero, const range *r) {
    double y = rint(v) + zero;
    return isnan(y) ? 0 : fmin(fmax(y, r->lo), r->hi);
}

/* Elements that are multiples of half a scale, so that halves are met and f16 has them all; some beyond the range, some not
 * finite. */
static void fill(trial *t, double *x, const double *scale, const layout *l, const range *r, bool inexact) {
    for (int i = 0, n = 0; i < D0; i++)
        for (int j = 0; j < D1; j++)
            for (int k = 0; k < D2; k++, n++) {
                double steps = (double)rng_between(&t->r, -40, 40) / 2;
                if (inexact) steps += rng_range(&t->r, -0.4, 0.4);
                if (n % 11 == 3 && r->bits < 16) steps = n % 2 ? 1e5 : -1e5;
                x[n] = steps * scale[scale_at(l, i, j, k)];
            }
    x[20] = NAN, x[40] = INFINITY, x[60] = -INFINITY;
}

static void by_layout_and_dtype(void **state) {
    (void)state;
    static const tn_dtype types[] = { TN_F64, TN_F32, TN_F16, TN_BF16 };
    for (size_t a = 0; a < COUNT_OF(layouts); a++)
        for (size_t b = 0; b < COUNT_OF(ranges); b++) {
            const layout *l = &layouts[a];
            const range *r = &ranges[b];
            tn_dtype type = types[(a + b) % COUNT_OF(types)];
            trial *t = trial_open(a * 100 + b);
            bool has_zero = (a + b) % 3 && r->t != TN_I32;
            tn_tensor x0 = trial_floats(t, TN_DIMS(D0, D1, D2), -1, 1), s0 = trial_floats(t, l->shape, 0.1, 4);
            tn_tensor z = trial_ints(t, r->t == TN_I32 ? TN_I8 : r->t, l->shape, r->lo < 0 ? -1 : 0, r->lo < 0 ? 1 : 3);
            double *x = trial_values(t, x0), *s = trial_values(t, s0), want[N], back[N];
            if (type != TN_F64)
                for (int64_t i = 0; i < trial_count(s0); i++) s[i] = ldexp(1, (int)rng_between(&t->r, -3, 2));
            fill(t, x, s, l, r, type == TN_F64);
            const int64_t *zero = trial_whole(t, z);
            tn_quantize_opts o = { .axis = l->axis, .group = l->group, .bits = r->bits };
            if (has_zero) o.zero = z;
            tn_tensor wide = tn_cast(x0, type), q = tn_quantize(wide, tn_cast(s0, type == TN_F64 ? TN_F64 : TN_F32), r->t, o);
            tn_tensor y[] = { q, tn_dequantize(q, tn_cast(s0, type), o) };
            assert_int_equal(tn_tensor_dtype(q), r->t);
            assert_int_equal(tn_tensor_dtype(y[1]), type);
            const double *rounded = trial_values(t, wide);
            for (int i = 0, n = 0; i < D0; i++)
                for (int j = 0; j < D1; j++)
                    for (int k = 0; k < D2; k++, n++) {
                        int64_t at = scale_at(l, i, j, k);
                        double point = has_zero ? (double)zero[at] : 0;
                        want[n] = quantised(rounded[n] / s[at], point, r), back[n] = (want[n] - point) * s[at];
                    }
            trial_near(l->name, trial_values(t, q), want, N, 0);
            if (type == TN_F64 || type == TN_F32)
                trial_near(l->name, trial_values(t, y[1]), back, N, r->t == TN_I32 ? 1e-7 : 0);
            trial_compiled(t, y, 2, 0);
            trial_close(t);
        }
}

static void eight_bit_floats(void **state) {
    (void)state;
    trial *t = trial_open(3);
    tn_tensor x = trial_floats(t, TN_DIMS(4, 6), -600, 600), s = trial_floats(t, TN_DIMS(4), 0.5, 2);
    trial_values(t, x)[2] = INFINITY;
    tn_quantize_opts o = { .axis = 0 };
    tn_tensor f = tn_cast(x, TN_F32), scale = tn_cast(s, TN_F32), q = tn_quantize(f, scale, TN_F8E4M3, o);
    tn_tensor y[] = { tn_dequantize(q, scale, o), tn_dequantize(tn_quantize(f, scale, TN_F8E5M2, o), scale, o) };
    const double *v = trial_values(t, f), *w = trial_values(t, scale), *got = trial_values(t, y[0]);
    for (int i = 0; i < 24; i++) {
        double want = fmin(fmax(v[i] / w[i / 6], -448), 448) * w[i / 6];
        if (fabs(got[i] - want) > fabs(want) / 16 + w[i / 6] * 0x1p-10) fail_msg("element %d: %g for %g", i, got[i], v[i]);
    }
    trial_compiled(t, y, 2, 1e-6);
    trial_close(t);
}

static void gradients(void **state) {
    (void)state;
    for (size_t a = 0; a < COUNT_OF(layouts); a++) {
        const layout *l = &layouts[a];
        trial *t = trial_open(a + 1);
        tn_tensor q = trial_ints(t, TN_I8, TN_DIMS(D0, D1, D2), -128, 127);
        tn_tensor s = trial_floats(t, l->shape, 0.1, 2), z = trial_floats(t, l->shape, -4, 4);
        tn_quantize_opts o = { .zero = z, .axis = l->axis, .group = l->group };
        tn_tensor y = tn_dequantize(q, s, o);
        trial_compiled(t, &y, 1, 1e-12);
        trial_gradients(t, y, 1e-6);
        trial_close(t);
    }
}

/* Through quantised values, by the formulas; a zero point of 3 of u8 with 4 bits: from -3 to 12 scales. */
static void straight_through(void **state) {
    (void)state;
    for (size_t a = 0; a < COUNT_OF(layouts); a++) {
        const layout *l = &layouts[a];
        trial *t = trial_open(a + 1);
        tn_tensor x = trial_floats(t, TN_DIMS(D0, D1, D2), -8, 8), s = trial_floats(t, l->shape, 0.3, 0.7);
        tn_tensor w = trial_floats(t, TN_DIMS(D0, D1, D2), -1, 1), z = trial_ints(t, TN_U8, l->shape, 3, 3), dx[2];
        double *v = trial_values(t, x), *scale = trial_values(t, s), *g = trial_values(t, w);
        double value[N], of_x[N], of_s[N] = { 0 };
        v[0] = 12 * scale[scale_at(l, 0, 0, 0)], v[1] = -3 * scale[scale_at(l, 0, 0, 1)]; /* the ends are inside */
        tn_quantize_opts o = { .zero = z, .axis = l->axis, .group = l->group, .bits = 4 };
        tn_tensor y = tn_fake_quantize(x, s, TN_U8, o), same = tn_dequantize(tn_quantize(x, s, TN_U8, o), s, o);
        assert_int_equal(tn_grad(tn_sum(tn_mul(y, w), TN_ALL_AXES, 0), (tn_tensor[]){ x, s }, 2, dx), TN_OK);
        for (int i = 0, n = 0; i < D0; i++)
            for (int j = 0; j < D1; j++)
                for (int k = 0; k < D2; k++, n++) {
                    int64_t at = scale_at(l, i, j, k);
                    double u = v[n] / scale[at], r = fmin(fmax(rint(u), -3), 12);
                    bool inside = u >= -3 && u <= 12;
                    value[n] = r * scale[at], of_x[n] = inside ? g[n] : 0;
                    of_s[at] += g[n] * (inside ? r - u : r);
                }
        trial_near("value", trial_values(t, y), value, N, 0);
        trial_near("as through whole numbers", trial_values(t, same), value, N, 0);
        trial_near("gradient of x", trial_values(t, dx[0]), of_x, N, 1e-12);
        trial_near("gradient of scale", trial_values(t, dx[1]), of_s, trial_count(s), 1e-10);
        trial_compiled(t, (tn_tensor[]){ y, dx[0], dx[1] }, 3, 1e-10);
        trial_close(t);
    }
}

static void none_through_whole_numbers(void **state) {
    (void)state;
    trial *t = trial_open(9);
    tn_tensor x = trial_floats(t, TN_DIMS(6), -8, 8), s = trial_floats(t, TN_SCALAR, 0.3, 0.7), dx[1];
    tn_tensor y = tn_dequantize(tn_quantize(x, s, TN_I8, (tn_quantize_opts){ 0 }), s, (tn_quantize_opts){ 0 });
    assert_int_equal(tn_grad(tn_sum(y, TN_ALL_AXES, 0), &x, 1, dx), TN_OK);
    trial_near("gradient", trial_values(t, dx[0]), (double[6]){ 0 }, 6, 0);
    trial_close(t);
}

static void numbers_of_4_bits(void **state) {
    (void)state;
    static const tn_dtype types[] = { TN_I8, TN_U8, TN_I16, TN_U16, TN_I32, TN_I64 };
    static const struct {
        int axis;
        int64_t group;
    } ways[] = { { 0, 0 }, { 1, 0 }, { 1, 2 }, { 1, 4 }, { 1, 12 }, { -1, 6 }, { 2, 18 } };
    const int dims[3] = { 2, 12, 18 }, n = 2 * 12 * 18;
    for (size_t a = 0; a < COUNT_OF(ways); a++)
        for (size_t b = 0; b < COUNT_OF(types); b++) {
            trial *t = trial_open(a * 10 + b);
            int axis = ways[a].axis < 0 ? 2 : ways[a].axis, group = (int)(ways[a].group ? ways[a].group : 2);
            tn_tensor x = trial_ints(t, types[b], TN_DIMS(2, 12, 18), types[b] == TN_U8 || types[b] == TN_U16 ? 0 : -100, 100);
            tn_tensor p = tn_pack_4bit(x, ways[a].axis, ways[a].group);
            tn_tensor y[] = { p, tn_unpack_4bit(p, ways[a].axis, ways[a].group, 0),
                              tn_unpack_4bit(p, ways[a].axis, ways[a].group, 1) };
            const double *v = trial_values(t, x);
            double packed[2 * 12 * 18] = { 0 }, plain[2 * 12 * 18], with_sign[2 * 12 * 18];
            int inner = axis == 2 ? 1 : axis == 1 ? 18 : 12 * 18;
            assert_int_equal(tn_tensor_dtype(p), TN_U8);
            for (int i = 0; i < n; i++) {
                int four = (int)v[i] & 15, at = i / inner % dims[axis], in_group = at % group;
                int byte = at / group * (group / 2) + in_group % (group / 2);
                plain[i] = four, with_sign[i] = four < 8 ? four : four - 16;
                packed[(i / inner / dims[axis] * (dims[axis] / 2) + byte) * inner + i % inner] +=
                    in_group < group / 2 ? four : 16 * four;
            }
            trial_near("packed", trial_values(t, p), packed, n / 2, 0);
            trial_near("plain", trial_values(t, y[1]), plain, n, 0);
            trial_near("with a sign", trial_values(t, y[2]), with_sign, n, 0);
            trial_compiled(t, y, 3, 0);
            trial_close(t);
        }
}

/* Sizes with ranges: one program for all. */
static void sizes_of_the_run(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    tn_graph *g = tn_graph_new(ctx, "batches");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(tn_dim(g, "batch", 1, 8, 1), 3));
    tn_tensor s = tn_const(g, TN_F32, TN_DIMS(3), (float[]){ 0.5F, 1, 2 });
    tn_quantize_opts o = { .axis = -1 };
    tn_output(tn_dequantize(tn_quantize(x, s, TN_I8, o), s, o), "y");
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.device = test_device();
    tn_program *p;
    tn_session *session;
    if (tn_compile(g, &opts, &p) || tn_session_new(p, &session)) fail_msg("%s", tn_ctx_error(ctx));
    for (int n = 1; n <= 8; n += 3) {
        float in[24], out[24];
        for (int i = 0; i < 24; i++) in[i] = 0.25F + (float)i, out[i] = -1;
        if (tn_bind_dim(session, "batch", n) || tn_run(session, (tn_binding[]){ { "x", in }, { "y", out } }, 2))
            fail_msg("%s", tn_ctx_error(ctx));
        for (int i = 0; i < 3 * n; i++) {
            float scale = i % 3 == 0 ? 0.5F : i % 3 == 1 ? 1 : 2;
            assert_float_equal(out[i], rintf(in[i] / scale) * scale, 0);
        }
    }
    tn_session_free(session), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
}

static void refused(void (*wrong)(trial *, tn_tensor), const char *text) {
    trial *t = trial_open(1);
    wrong(t, trial_floats(t, TN_DIMS(4, 6), 0, 1));
    trial_refused(t, text);
    trial_close(t);
}
static tn_tensor scale_of(trial *t, int64_t n) { return tn_full(t->g, TN_F32, TN_DIMS(n), 1); }
#define OPTS(...) ((tn_quantize_opts){ __VA_ARGS__ })
static void bad_dtype(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 1), TN_I64, OPTS(0)); }
static void bad_bits(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 1), TN_I8, OPTS(.bits = 9)); }
static void bad_scale(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 4), TN_I8, OPTS(.axis = 1)); }
static void bad_axis(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 4), TN_I8, OPTS(.axis = 2)); }
static void bad_groups(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 4), TN_I8, OPTS(.axis = 1, .group = 3)); }
static void bad_group(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 4), TN_I8, OPTS(.group = -1)); }
static void bad_zero(trial *t, tn_tensor x) { tn_quantize(x, scale_of(t, 1), TN_F8E4M3, OPTS(.zero = scale_of(t, 1))); }
static void bad_scale_dtype(trial *t, tn_tensor x) { (void)t, tn_quantize(x, tn_cast(x, TN_I32), TN_I8, OPTS(0)); }
static void bad_operand(trial *t, tn_tensor x) { tn_quantize(tn_cast(x, TN_I8), scale_of(t, 1), TN_I8, OPTS(0)); }
static void bad_back(trial *t, tn_tensor x) { tn_dequantize(x, scale_of(t, 1), OPTS(0)); }
static void bad_fake(trial *t, tn_tensor x) { tn_fake_quantize(x, scale_of(t, 1), TN_I32, OPTS(0)); }
static void bad_pack(trial *t, tn_tensor x) { (void)t, tn_pack_4bit(x, 0, 2); }
static void bad_odd(trial *t, tn_tensor x) { (void)t, tn_pack_4bit(tn_cast(x, TN_I8), 0, 3); }
static void bad_rest(trial *t, tn_tensor x) { (void)t, tn_pack_4bit(tn_cast(x, TN_I8), 1, 4); }
static void bad_unpack(trial *t, tn_tensor x) { (void)t, tn_unpack_4bit(tn_cast(x, TN_I8), 0, 2, 0); }

static void mistakes_are_named(void **state) {
    (void)state;
    refused(bad_dtype, "tn_quantize: quantised to i64");
    refused(bad_bits, "tn_quantize: 9 bits of i8");
    refused(bad_scale, "tn_quantize: scale of rank 1 and first size 4 for axis 1 of size 6");
    refused(bad_axis, "tn_quantize: axis 2 of a tensor of rank 2");
    refused(bad_groups, "tn_quantize: scale has not the operand's shape with one for each 3 along axis 1");
    refused(bad_group, "tn_quantize: groups of -1 along axis 0");
    refused(bad_zero, "tn_quantize: zero points or bits with f8e4m3");
    refused(bad_scale_dtype, "tn_quantize: scale is i32, must be of floats");
    refused(bad_operand, "tn_quantize: expected a float tensor, got i8");
    refused(bad_back, "tn_dequantize: quantised to f64");
    refused(bad_fake, "tn_fake_quantize: quantised to i32");
    refused(bad_pack, "tn_pack_4bit: expected whole numbers, got f64");
    refused(bad_odd, "tn_pack_4bit: groups of 3, must be of an even number");
    refused(bad_rest, "tn_pack_4bit: axis 1 of size 6, in groups of 4");
    refused(bad_unpack, "tn_unpack_4bit: expected u8, got i8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_layout_and_dtype),
        cmocka_unit_test(eight_bit_floats),
        cmocka_unit_test(gradients),
        cmocka_unit_test(straight_through),
        cmocka_unit_test(none_through_whole_numbers),
        cmocka_unit_test(numbers_of_4_bits),
        cmocka_unit_test(sizes_of_the_run),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
