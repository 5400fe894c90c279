/* op_text.c - strings, which are known at import: normalised, joined, split, read and written as numbers, looked up.
 *
 * What comes out are numbers of strings (texts.c), or numbers. Strings that an input has are constants of the graph. */
#include "import.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *text_at(onnx_call *c, int64_t number) {
    const char *text = tn_onnx_text(c->im->m, number);
    if (!text) onnx_refuse(c, "a string that is none of the model's");
    return text;
}
static int64_t number_of(onnx_call *c, const char *text) { return onnx_text_number(c->im->env, c->im->m, text, strlen(text)); }
static int64_t *known_texts(onnx_call *c, int i, int *out_n) {
    if (onnx_elem(c, i) != ELEM_STRING) onnx_refuse(c, "operand %d is %s, not string", i, onnx_elem_name(onnx_elem(c, i)));
    return onnx_known_ints(c, i, "strings", out_n);
}
static char *copy_of(onnx_call *c, const char *text, size_t n) {
    char *copy = onnx_new(c->im->env, n + 1, 1);
    return n ? memcpy(copy, text, n) : copy;
}

/* ---- numbers ---- */

typedef struct in_locale { /* of C, whatever the host's is */
    locale_t c, before;
} in_locale;
static in_locale enter_locale(onnx_call *c) {
    in_locale l = { newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0 };
    if (!l.c) onnx_fail(c->im->env, TN_ERR_NOMEM, "out of memory: the C locale");
    l.before = uselocale(l.c);
    return l;
}
static void leave_locale(in_locale l) {
    uselocale(l.before);
    freelocale(l.c);
}

static void texts_to_numbers(onnx_call *c, int to) {
    int n;
    int64_t *in = known_texts(c, 0, &n);
    const char *bad = NULL, **texts = ONNX_NEW(c->im->env, const char *, n + 1);
    double *v = ONNX_NEW(c->im->env, double, n + 1);
    if (onnx_elem_widened(to) || to == ELEM_I64 || to == ELEM_BOOL)
        onnx_refuse(c, "a cast of strings to %s", onnx_elem_name(to));
    for (int i = 0; i < n; i++) texts[i] = text_at(c, in[i]);
    in_locale l = enter_locale(c);
    for (int i = 0; i < n; i++) {
        char *end;
        v[i] = strtod(texts[i], &end);
        if (end == texts[i] || *end || strpbrk(texts[i], "xX(")) bad = texts[i];
    }
    leave_locale(l);
    if (bad) onnx_refuse(c, "'%.40s' is no number", bad);
    onnx_put(c, 0, tn_cast(tn_const(c->g, TN_F64, onnx_shape(c, 0), v), onnx_elem_dtype(to)), to);
}

/* The fewest digits that are read back as the same value, as NumPy writes them. */
static void write_float(char *out, size_t size, double v, bool single) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*e", digits - 1, v);
        double back = strtod(out, NULL);
        if (single ? (float)back == (float)v : back == v) {
            int exponent = atoi(strchr(out, 'e') + 1), after = digits - 1 - exponent;
            if (exponent >= -4 && exponent < 16) snprintf(out, size, "%.*f", after < 1 ? 1 : after, v);
            return;
        }
    }
}
static void numbers_to_texts(onnx_call *c) {
    int n, elem = onnx_elem(c, 0);
    if (elem != ELEM_F32 && elem != ELEM_F64 && elem != ELEM_I64 && elem != ELEM_I32)
        onnx_refuse(c, "a cast of %s to strings", onnx_elem_name(elem));
    const double *v = onnx_is_float(elem) ? onnx_known_floats(c, 0, "operand", &n) : NULL;
    const int64_t *whole = v ? NULL : onnx_known_ints(c, 0, "operand", &n);
    char(*texts)[40] = onnx_new(c->im->env, (size_t)n + 1, sizeof *texts);
    int64_t *out = ONNX_NEW(c->im->env, int64_t, n + 1);
    in_locale l = enter_locale(c);
    for (int i = 0; i < n; i++) {
        if (whole)
            snprintf(texts[i], sizeof texts[i], "%lld", (long long)whole[i]);
        else if (isfinite(v[i]))
            write_float(texts[i], sizeof texts[i], v[i], elem == ELEM_F32);
        else
            snprintf(texts[i], sizeof texts[i], isnan(v[i]) ? "nan" : v[i] < 0 ? "-inf" : "inf");
    }
    leave_locale(l);
    for (int i = 0; i < n; i++) out[i] = number_of(c, texts[i]);
    onnx_put_known(c, 0, ELEM_STRING, onnx_shape(c, 0), out);
}
void onnx_cast_text(onnx_call *c, int to) {
    if (onnx_elem(c, 0) == to)
        onnx_put_val(c, 0, onnx_in(c, 0));
    else if (to == ELEM_STRING)
        numbers_to_texts(c);
    else
        texts_to_numbers(c, to);
}

/* ---- StringNormalizer ---- */

static char *in_case(onnx_call *c, const char *text, bool upper) {
    char *out = copy_of(c, text, strlen(text));
    for (char *k = out; *k; k++) {
        if (*k & 0x80) onnx_refuse(c, "the case of '%.40s'", text);
        if (upper && *k >= 'a' && *k <= 'z') *k = (char)(*k - 32);
        if (!upper && *k >= 'A' && *k <= 'Z') *k = (char)(*k + 32);
    }
    return out;
}
static bool is_stopped(onnx_call *c, const onnx_attr *words, const char *text, bool sensitive) {
    for (int i = 0; words && i < words->n; i++) {
        const char *word = copy_of(c, (const char *)words->strings[i].at, words->strings[i].n);
        if (!strcmp(word, text)) return true;
        if (!sensitive && !strcmp(in_case(c, word, false), in_case(c, text, false))) return true;
    }
    return false;
}
void onnx_op_string_normalizer(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    const onnx_attr *words = onnx_attr_find(c, "stopwords");
    bool sensitive = onnx_attr_int(c, "is_case_sensitive", 0);
    bool upper = onnx_attr_is(c, "case_change_action", "NONE", "UPPER"),
         lower = onnx_attr_is(c, "case_change_action", "NONE", "LOWER");
    const onnx_attr *locale = onnx_attr_find(c, "locale");
    int n;
    int64_t *in = known_texts(c, 0, &n), *out = ONNX_NEW(c->im->env, int64_t, n + 1), kept = 0;
    if (locale && locale->s.n && (locale->s.n < 2 || memcmp(locale->s.at, "en", 2))) onnx_refuse(c, "attribute locale");
    if (s.rank < 1 || s.rank > 2 || (s.rank == 2 && s.dim[0] != 1)) onnx_refuse(c, "its shape");
    if (words && words->type != ATTR_STRINGS) onnx_refuse(c, "attribute stopwords");
    if (!upper && !lower && !onnx_attr_is(c, "case_change_action", "NONE", "NONE"))
        onnx_refuse(c, "attribute case_change_action");
    for (int i = 0; i < n; i++) {
        const char *text = text_at(c, in[i]);
        if (is_stopped(c, words, text, sensitive)) continue;
        out[kept++] = upper || lower ? number_of(c, in_case(c, text, upper)) : in[i];
    }
    if (!kept) out[kept++] = number_of(c, "");
    s.dim[s.rank - 1] = kept;
    onnx_put_known(c, 0, ELEM_STRING, s, out);
}

/* ---- StringConcat, StringSplit ---- */

static int64_t broadcast_at(tn_shape big, tn_shape s, int64_t i) { /* the element of s beside element i of big */
    int64_t at = 0, stride = 1;
    for (int k = big.rank - 1, j = s.rank - 1; j >= 0; k--, j--) {
        int64_t place = i % big.dim[k];
        i /= big.dim[k];
        if (s.dim[j] != 1) at += place * stride;
        stride *= s.dim[j];
    }
    return at;
}
void onnx_op_string_concat(onnx_call *c) {
    tn_shape a = onnx_shape(c, 0), b = onnx_shape(c, 1), s = a.rank > b.rank ? a : b;
    int n;
    int64_t *x = known_texts(c, 0, &n), *y = known_texts(c, 1, &n);
    for (int i = 1; i <= s.rank; i++) {
        int64_t p = i <= a.rank ? a.dim[a.rank - i] : 1, q = i <= b.rank ? b.dim[b.rank - i] : 1;
        if (p != q && p != 1 && q != 1) onnx_refuse(c, "its shapes");
        s.dim[s.rank - i] = p == 1 ? q : p;
    }
    int64_t count = onnx_count_of(s), *out = ONNX_NEW(c->im->env, int64_t, count + 1);
    for (int64_t i = 0; i < count; i++) {
        const char *left = text_at(c, x[broadcast_at(s, a, i)]), *right = text_at(c, y[broadcast_at(s, b, i)]);
        size_t ln = strlen(left), rn = strlen(right);
        char *both = onnx_new(c->im->env, ln + rn + 1, 1);
        memcpy(both, left, ln), memcpy(both + ln, right, rn);
        out[i] = number_of(c, both);
    }
    onnx_put_known(c, 0, ELEM_STRING, s, out);
}

/* Up to `most` parts of text; parts NULL = only their number. Without a delimiter spaces separate, however many. */
static int64_t split(onnx_call *c, const char *text, const char *by, int64_t most, int64_t *parts) {
    int64_t n = 0;
    size_t width = strlen(by);
    if (!width) text += strspn(text, " ");
    if (!width && !*text) return 0;
    for (;;) {
        const char *end = n + 1 < most ? (width ? strstr(text, by) : strchr(text, ' ')) : NULL;
        const char *stop = end ? end : text + strlen(text), *rest = end ? end + (width ? width : strspn(end, " ")) : NULL;
        if (!width)
            while (!rest && stop > text && stop[-1] == ' ') stop--;
        if (parts) parts[n] = onnx_text_number(c->im->env, c->im->m, text, (size_t)(stop - text));
        n++;
        if (!rest || (!width && !*rest)) return n;
        text = rest;
    }
}
void onnx_op_string_split(onnx_call *c) {
    const onnx_attr *a = onnx_attr_find(c, "delimiter");
    int64_t most = onnx_attr_int(c, "maxsplit", INT32_MAX), widest = 0;
    const char *by = a && a->type == ATTR_STRING ? copy_of(c, (const char *)a->s.at, a->s.n) : "";
    tn_shape s = onnx_shape(c, 0), wide = s;
    int n;
    int64_t *in = known_texts(c, 0, &n), *counts = ONNX_NEW(c->im->env, int64_t, n + 1);
    if (s.rank >= TN_MAX_RANK || most < 0 || (a && a->type != ATTR_STRING)) onnx_refuse(c, "its shape or attributes");
    for (int i = 0; i < n; i++) {
        counts[i] = split(c, text_at(c, in[i]), by, most + 1, NULL);
        if (counts[i] > widest) widest = counts[i];
    }
    if (widest > 4096 || widest * n > 1 << 20) onnx_refuse(c, "%lld parts", (long long)widest);
    int64_t *out = ONNX_NEW(c->im->env, int64_t, widest * n + 1);
    (void)number_of(c, ""); /* number 0: what is not there */
    for (int i = 0; i < n; i++) (void)split(c, text_at(c, in[i]), by, most + 1, out + i * widest);
    wide.dim[wide.rank++] = widest;
    onnx_put_known(c, 0, ELEM_STRING, wide, out);
    onnx_put_known(c, 1, ELEM_I64, s, counts);
}
