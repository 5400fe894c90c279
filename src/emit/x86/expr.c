/* expr.c - the text of an expression (vocabulary: ir/ops.def, emit/functions.def) read and turned into primitives as it is
 * read. In: text, and values for x, y, z. Out: the value. */
#include "emit/functions.h"
#include "emit/x86/ir.h"

typedef struct reader {
    xfn *f;
    const char *p;
    xtype t;
    int lanes;
    xval names[26]; /* of the letters; register 0: not yet */
} reader;

static xval read_or(reader *r);

static void skip(reader *r) {
    while (*r->p == ' ') r->p++;
}
static bool take(reader *r, char c) {
    skip(r);
    if (*r->p != c) return false;
    r->p++;
    return true;
}

static xtype int_of(xtype t) { return t == XF32 || t == XI32 ? XI32 : XI64; }

static xval read_literal(reader *r, xtype t) {
    int64_t i;
    double v = function_number(&r->p, &i);
    if (!take(r, ')')) x86_unsupported(r->f, "an expression's literal");
    return (xval){ x86_const(r->f, t, v, i), t };
}

/* The table's text, whose functions of floats are of f32 only; NULL when there is none. */
static const char *definition(const reader *r, const char *word) {
    const function_row *fn = function_find(word, strlen(word));
    if (!fn || (strchr(fn->sig, 'f') && r->t != XF32)) return NULL;
    if (!strcmp(word, "SCALED") && r->f->level == X86_AVX512) return NULL; /* that one is an instruction, too */
    if (!fn->fma || r->f->level == X86_SSE) return fn->text;
    return strcmp(word, "FMA") ? fn->fma : NULL; /* that one is an instruction */
}

static xval read_call(reader *r, const char *at, size_t n) {
    char word[16] = { 0 };
    xval args[3] = { { 0 } };
    int n_args = 0, amount = 0;
    memcpy(word, at, n < sizeof word ? n : sizeof word - 1);
    if (!strcmp(word, "K")) return read_literal(r, r->t);
    if (!strcmp(word, "I")) return read_literal(r, int_of(r->t));
    bool shift = !strcmp(word, "SHL") || !strcmp(word, "SHR") || !strcmp(word, "SAR");
    do {
        if (shift && n_args == 1) {
            int64_t i;
            function_number(&r->p, &i);
            amount = (int)i;
        } else if (n_args < 3) {
            args[n_args] = read_or(r);
        }
        n_args++;
    } while (take(r, ','));
    if (!take(r, ')')) x86_unsupported(r->f, "an expression's brackets");
    if (shift)
        return x86_shift(r->f, word[2] == 'L' ? X86_PSLLD : word[1] == 'H' ? X86_PSRLD : X86_PSRAD, args[0], amount, r->lanes);
    const char *text = definition(r, word);
    if (text) return x86_expr(r->f, text, r->t, args, r->lanes);
    return x86_word(r->f, word, r->t, args, n_args, r->lanes);
}

static xval read_unary(reader *r) {
    xfn *f = r->f;
    skip(r);
    if (take(r, '-')) {
        xval x = read_unary(r);
        if (x.t == XI32 || x.t == XI64) return x86_bin(f, '-', (xval){ x86_const(f, x.t, 0, 0), x.t }, x, r->lanes);
        xval sign = { x86_const_bits(f, x.t, x.t == XF32 ? 0x80000000u : 0x8000000000000000u), x.t };
        xval v = x86_bin(f, '^', x, sign, r->lanes);
        f->ops.at[f->v.at[v.r].def].neg = true;
        return v;
    }
    if (take(r, '(')) {
        xval x = read_or(r);
        if (!take(r, ')')) x86_unsupported(f, "an expression's brackets");
        return x;
    }
    const char *at = r->p;
    while ((*r->p >= 'A' && *r->p <= 'Z') || (*r->p >= 'a' && *r->p <= 'z') || *r->p == '_' ||
           (r->p > at && *r->p >= '0' && *r->p <= '9'))
        r->p++;
    int n = (int)(r->p - at);
    if (n > 0 && take(r, '(')) return read_call(r, at, (size_t)n);
    if (n == 1 && *at >= 'a' && *at <= 'z' && r->names[*at - 'a'].r) return r->names[*at - 'a'];
    x86_unsupported(f, "an expression's text");
    return (xval){ x86_const(f, r->t, 0, 0), r->t };
}

static xval read_product(reader *r) {
    xval x = read_unary(r);
    while (take(r, '*')) {
        xval y = read_unary(r);
        x = x86_bin(r->f, '*', x, y, r->lanes);
    }
    return x;
}
static xval read_sum(reader *r) {
    xval x = read_product(r);
    for (;;) {
        skip(r);
        char c = *r->p;
        if (c != '+' && c != '-') return x;
        r->p++;
        xval y = read_product(r);
        x = x86_bin(r->f, c, x, y, r->lanes);
    }
}
static xval read_and(reader *r) {
    xval x = read_sum(r);
    while (take(r, '&')) {
        xval y = read_sum(r);
        x = x86_bin(r->f, '&', x, y, r->lanes);
    }
    return x;
}
static xval read_xor(reader *r) {
    xval x = read_and(r);
    while (take(r, '^')) {
        xval y = read_and(r);
        x = x86_bin(r->f, '^', x, y, r->lanes);
    }
    return x;
}
static xval read_or(reader *r) {
    xval x = read_xor(r);
    while (take(r, '|')) {
        xval y = read_xor(r);
        x = x86_bin(r->f, '|', x, y, r->lanes);
    }
    return x;
}

xval x86_expr(xfn *f, const char *text, xtype t, const xval *xyz, int lanes) {
    reader r = { .f = f, .p = text, .t = t, .lanes = lanes };
    for (int i = 0; i < 3; i++) r.names["xyz"[i] - 'a'] = xyz[i];
    for (;;) {
        skip(&r);
        if (r.p[0] >= 'a' && r.p[0] <= 'z' && r.p[1] == '=') {
            char name = r.p[0];
            r.p += 2;
            r.names[name - 'a'] = read_or(&r);
            if (!take(&r, ';')) break;
            continue;
        }
        xval v = read_or(&r);
        skip(&r);
        if (*r.p) break;
        return v;
    }
    x86_unsupported(f, "an expression's end");
    return (xval){ x86_const(f, t, 0, 0), t };
}

xval x86_half_nan(xfn *f, xval x, int lanes) {
    const xval args[3] = { x };
    return x86_expr(f, "SEL(NE(x,x),FROM(BITS(x)&I(0x80000000)|I(0x7fc00000)),x)", XF32, args, lanes);
}
