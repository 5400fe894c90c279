/* functions.c - the table of functions.def. In: words, texts. Out: rows, numbers. Nothing is allocated. */
#include "emit/functions.h"

static const function_row table[] = {
#define FUNCTION(word, sig, text) { #word, sig, text, NULL },
#define FUNCTION_FMA(word, sig, fma, text) { #word, sig, text, fma },
#include "emit/functions.def"
};

const function_row *function_at(int i) { return &table[i]; }

const function_row *function_find(const char *word, size_t n) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (!strncmp(table[i].word, word, n) && !table[i].word[n]) return &table[i];
    return NULL;
}

static bool in_word(char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

bool function_calls(const char *expr, const char *word) {
    size_t n = strlen(word);
    for (const char *p = expr; (p = strstr(p, word)); p += n)
        if (p[n] == '(' && (p == expr || !in_word(p[-1]))) return true;
    return false;
}

bool function_any(const char *expr) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (function_calls(expr, table[i].word)) return true;
    return false;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* Up to 15 digits and powers of ten to 22 are exact doubles, so one division or multiplication rounds once. */
double function_number(const char **at, int64_t *out_int) {
    static const double powers[] = { 1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const char *p = *at;
    while (*p == ' ') p++;
    bool minus = *p == '-', point = false;
    double v = 0;
    int64_t whole = 0;
    int scale = 0;
    p += minus;
    if (p[0] == '0' && p[1] == 'x') {
        for (p += 2; hex_digit(*p) >= 0; p++) whole = whole * 16 + hex_digit(*p);
        v = (double)whole;
    } else {
        for (; (*p >= '0' && *p <= '9') || *p == '.'; p++) {
            if (*p == '.') {
                point = true;
                continue;
            }
            v = v * 10 + (*p - '0');
            if (whole < INT64_MAX / 16) whole = whole * 10 + (*p - '0');
            scale -= point;
        }
        if (*p == 'e') {
            int sign = *++p == '-' ? -1 : 1, e = 0;
            if (*p == '-' || *p == '+') p++;
            for (; *p >= '0' && *p <= '9'; p++) e = e * 10 + (*p - '0');
            scale += sign * e;
        }
    }
    if (scale < 0) v /= powers[scale < -22 ? 22 : -scale];
    if (scale > 0) v *= powers[scale > 22 ? 22 : scale];
    if (out_int) *out_int = minus ? -whole : whole;
    *at = p;
    return minus ? -v : v;
}
