/* values.c - typed arrays on the host: parsed from the command line or an .npy file, filled at random, printed, saved. */
#include "cli.h"
#include "tenon/tenon_io.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_next(uint64_t *state) { /* splitmix64, Steele et al. 2014 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

/* The number below which a share u of a normal distribution lies, by rational functions: M. J. Wichura, AS 241 (1988), to about
 * 1e-16. A logarithm is needed for a share of 0.15 of all numbers only, and no sine. */
static double rational(const double *a, const double *b, double x) {
    double p = a[7], q = b[7];
    for (int i = 6; i >= 0; i--) p = p * x + a[i], q = q * x + b[i];
    return p / q;
}
static double normal_below(double u) {
    static const double middle[2][8] = { { 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                           1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                           3.3430575583588128105e4, 2.5090809287301226727e3 },
                                         { 1, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
                                           2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
                                           5.2264952788528545610e3 } },
                        tail[2][8] = { { 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
                                         3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
                                         2.27238449892691845833e-2, 7.74545014278341407640e-4 },
                                       { 1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
                                         1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
                                         1.05075007164441684324e-9 } },
                        far[2][8] = { { 6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
                                        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                        2.71155556874348757815e-5, 2.01033439929228813265e-7 },
                                      { 1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
                                        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
                                        2.04426310338993978564e-15 } };
    double q = u - 0.5;
    if (fabs(q) <= 0.425) return q * rational(middle[0], middle[1], 0.180625 - q * q);
    double r = sqrt(-log(q < 0 ? u : 1 - u));
    double x = r <= 5 ? rational(tail[0], tail[1], r - 1.6) : rational(far[0], far[1], r - 5);
    return q < 0 ? -x : x;
}
double random_gauss(uint64_t *state) { /* of the middles of 2^52 pieces: neither 0 nor 1 */
    return normal_below(((double)(random_next(state) >> 12) + 0.5) * 0x1p-52);
}

bool dtype_parse(const char *text, size_t n, tn_dtype *out) {
    for (int t = 0; t < TN_N_DTYPES; t++) {
        const char *name = tn_dtype_name((tn_dtype)t);
        if (strlen(name) == n && !memcmp(name, text, n)) return *out = (tn_dtype)t, true;
    }
    return false;
}

int64_t shape_count(tn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    return n;
}

char *shape_text(tn_dtype t, tn_shape s) {
    char text[TN_MAX_RANK * 21 + 16];
    int n = snprintf(text, sizeof text, "%s[", tn_dtype_name(t));
    for (int i = 0; i < s.rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", i ? "," : "", (long long)s.dim[i]);
    snprintf(text + n, sizeof text - (size_t)n, "]");
    return cli_format("%s", text);
}

value value_new(tn_dtype t, tn_shape shape) {
    int64_t n = shape_count(shape);
    size_t bytes = (size_t)n * tn_dtype_size(t);
    return (value){ .dtype = t, .shape = shape, .n = n, .bytes = bytes, .data = cli_alloc(bytes) };
}

value value_of(cli *c, const tn_ir_value *v) {
    for (int i = 0; i < v->shape.rank; i++)
        if (v->shape.dim[i] < 0)
            cli_fail(c, "%s %%%u%s%s has a symbolic dim: this command needs graphs whose sizes are all known", v->op,
                     v->tensor.id, v->name ? " " : "", v->name ? v->name : "");
    return value_new(v->dtype, v->shape);
}

void value_free(value *v) {
    free(v->data);
    v->data = NULL;
}

static bool is_float(tn_dtype t) { return tn_dtype_get_info(t)->kind == TN_KIND_FLOAT; }

void value_random(value *v, uint64_t *seed, int64_t below) {
    uint64_t n = v->dtype == TN_BOOL ? 2 : (uint64_t)below;
    if (v->dtype == TN_F32) { /* an image of a model takes as long as some models otherwise */
        for (int64_t i = 0; i < v->n; i++) ((float *)v->data)[i] = (float)random_gauss(seed);
        return;
    }
    for (int64_t i = 0; i < v->n; i++) {
        double x = is_float(v->dtype) ? random_gauss(seed) : (double)(random_next(seed) % n);
        tn_ir_store(v->dtype, v->data, i, x);
    }
}

/* "2x3x" before the dtype's name; returns where the name starts. */
static const char *parse_dims(cli *c, const char *name, const char *s, tn_shape *shape) {
    int64_t count = 1;
    while (isdigit((unsigned char)*s)) {
        char *end;
        long long d = strtoll(s, &end, 10);
        if (*end != 'x') cli_usage(c, "%s: expected dims and dtype such as 2x3xf32 before ':'", name);
        if (shape->rank == TN_MAX_RANK) cli_usage(c, "%s: more than %d dims", name, TN_MAX_RANK);
        if (d && count > ((int64_t)1 << 40) / d) cli_usage(c, "%s: the shape is too large", name);
        count *= d;
        shape->dim[shape->rank++] = d;
        s = end + 1;
    }
    return s;
}

static double parse_number(cli *c, const char *name, const char **s) {
    char *end;
    double v;
    if (!strncmp(*s, "true", 4))
        v = 1, end = (char *)*s + 4;
    else if (!strncmp(*s, "false", 5))
        v = 0, end = (char *)*s + 5;
    else
        v = strtod(*s, &end);
    if (end == *s || (*end && *end != ',')) cli_usage(c, "%s: '%s' is no number", name, *s);
    *s = *end ? end + 1 : end;
    return v;
}

/* Whole numbers of 64 bits as they are written: not all of them are doubles. */
static bool take_word(tn_dtype t, const char **s, void *out) {
    char *end;
    if (t != TN_I64 && t != TN_U64) return false;
    errno = 0;
    uint64_t word = t == TN_U64 && **s != '-' ? strtoull(*s, &end, 10) : (uint64_t)strtoll(*s, &end, 10);
    if (errno || end == *s || (*end && *end != ',')) return false;
    memcpy(out, &word, sizeof word);
    *s = *end ? end + 1 : end;
    return true;
}
static void take_number(cli *c, const char *name, const char **s, tn_dtype t, void *out) {
    if (!take_word(t, s, out)) tn_ir_store(t, out, 0, parse_number(c, name, s));
}

static value value_load(cli *c, const char *name, const char *path) {
    value v = { 0 };
    void *data = NULL;
    tn_ctx *ctx = cli_ctx(c);
    tn_status s = tn_io_npy_load(ctx, path, &v.dtype, &v.shape, &data);
    if (s) cli_fail(c, "input %s: %s", name, tn_ctx_error(ctx));
    value copy = value_new(v.dtype, v.shape);
    memcpy(copy.data, data, copy.bytes);
    tn_io_free(ctx, data);
    return copy;
}

char *value_split(cli *c, const char *text, const char **out_spec) {
    const char *eq = strchr(text, '=');
    if (!eq) cli_usage(c, "--input %s: expected NAME=2x3xf32:1,2,... or NAME=@file.npy", text);
    *out_spec = eq + 1;
    return cli_format("%.*s", (int)(eq - text), text);
}

value value_parse(cli *c, const char *name, const char *text) {
    if (text[0] == '@') return value_load(c, name, text + 1);
    tn_shape shape = { 0 };
    tn_dtype t;
    const char *s = parse_dims(c, name, text, &shape);
    size_t len = strcspn(s, ":");
    if (!dtype_parse(s, len, &t))
        cli_usage(c, "%s: '%.*s' is no dtype (2x3xf32:1,2,..., f32:0.5 or @file.npy)", name, (int)len, s);
    if (s[len] != ':') cli_usage(c, "%s: values are missing after %s:", name, text);
    value v = value_new(t, shape);
    int64_t n = 0;
    size_t size = tn_dtype_size(t);
    uint64_t last = 0; /* bytes of an element */
    for (s += len + 1; *s; n++) {
        take_number(c, name, &s, t, &last);
        if (n < v.n) memcpy((char *)v.data + (size_t)n * size, &last, size);
    }
    if (n == 1) {
        for (int64_t i = 1; i < v.n; i++) memcpy((char *)v.data + (size_t)i * size, &last, size);
    } else if (n != v.n)
        cli_usage(c, "%s: %lld values given, the shape has %lld", name, (long long)n, (long long)v.n);
    return v;
}

static void print_element(FILE *f, const value *v, int64_t i) {
    double x = tn_ir_load(v->dtype, v->data, i);
    if (v->dtype == TN_BOOL)
        fputs(x != 0 ? "true" : "false", f);
    else if (v->dtype == TN_I64)
        fprintf(f, "%lld", (long long)((const int64_t *)v->data)[i]);
    else if (v->dtype == TN_U64)
        fprintf(f, "%llu", (unsigned long long)((const uint64_t *)v->data)[i]);
    else if (!is_float(v->dtype))
        fprintf(f, "%.0f", x);
    else if (v->dtype == TN_F64)
        fprintf(f, "%.17g", x);
    else
        fprintf(f, v->dtype == TN_F32 ? "%.9g" : "%.5g", x);
}

static void print_axis(FILE *f, const value *v, int axis, int64_t at, int64_t limit) {
    if (axis == v->shape.rank) {
        print_element(f, v, at);
        return;
    }
    int64_t inner = 1, d = v->shape.dim[axis];
    for (int i = axis + 1; i < v->shape.rank; i++) inner *= v->shape.dim[i];
    bool leaf = axis + 1 == v->shape.rank;
    fputc('[', f);
    for (int64_t i = 0; i < d; i++) {
        if (i) fputs(leaf ? ", " : ",\n", f);
        if (i && !leaf) fprintf(f, "%*s", axis + 1, "");
        if (limit >= 0 && i == limit && d > limit + 1) {
            fprintf(f, "... %lld more", (long long)(d - i));
            break;
        }
        print_axis(f, v, axis + 1, at + i * inner, limit);
    }
    fputc(']', f);
}

void value_print(FILE *f, const value *v, int64_t limit) {
    print_axis(f, v, 0, 0, limit);
    fputc('\n', f);
}

void value_json(json *j, const char *key, const value *v) {
    json_line(j, key);
    json_text(j, "dtype", tn_dtype_name(v->dtype));
    json_array(j, "shape");
    for (int i = 0; i < v->shape.rank; i++) json_int(j, NULL, v->shape.dim[i]);
    json_end(j);
    json_array(j, "data");
    for (int64_t i = 0; i < v->n; i++) {
        if (v->dtype == TN_BOOL)
            json_bool(j, NULL, ((const uint8_t *)v->data)[i] != 0);
        else if (v->dtype == TN_I64)
            json_int(j, NULL, ((const int64_t *)v->data)[i]);
        else if (v->dtype == TN_U64)
            json_word(j, NULL, ((const uint64_t *)v->data)[i]);
        else if (v->dtype == TN_F32)
            json_number(j, NULL, (double)((const float *)v->data)[i]);
        else
            json_number(j, NULL, tn_ir_load(v->dtype, v->data, i));
    }
    json_end(j);
    json_end(j);
}

void value_save(cli *c, const value *v, const char *path) {
    cli_ctx(c);
    cli_need(c, tn_io_npy_save(c->ctx, path, v->dtype, v->shape, v->data));
}
