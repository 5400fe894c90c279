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
double random_gauss(uint64_t *state) {
    double u = 1 - random_unit(state), v = random_unit(state); /* u in (0, 1]: its logarithm is finite */
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
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
