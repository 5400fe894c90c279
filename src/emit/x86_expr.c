/* x86_expr.c - the text of an expression (vocabulary: ir/ops.def) read and turned into primitives as it is read.
 *
 * In: text, and values for x, y, z. Out: the value. Functions that are compositions of others are texts in the same vocabulary,
 * with three words more: I(c) an integer of the type's width, names for partial results, and shifts. The polynomials are those
 * of c_prelude.c, in the same order of operations. */
#include "emit/x86_ir.h"

#include <math.h>

static const struct {
    const char *word;
    const char *text; /* assignments, then the value */
} definitions[] = {
    { "EXP", "x=MINC(K(89),MAXC(K(-104),x));t=x*K(1.44269504089)+K(12582912);m=t-K(12582912);n=BITS(t)-I(0x4b400000);"
             "r=x-m*K(0.693145751953125);r=r-m*K(1.428606765330187e-6);"
             "p=r*K(1.3814599861e-03)+K(8.3687154117e-03);p=p*r+K(4.1668387930e-02);p=p*r+K(1.6666520643e-01);"
             "p=p*r+K(4.9999993448e-01);p=p*(r*r)+r+K(1);h=SAR(n,1);p*FROM(SHL(h+I(127),23))*FROM(SHL(n-h+I(127),23))" },
    { "TANH", "s=x;x=MINC(K(9.01),MAXC(K(-9.01),x));z=x*x;p=z*K(-1.2225274037e-11)+K(3.0614413076e-08);"
              "p=p*z+K(2.8019674646e-05);p=p*z+K(3.8689329323e-03);p=p*z+K(1.3680397959e-01);p=p*z+K(1);"
              "q=z*K(1.2882203148e-06)+K(3.9396983059e-04);q=q*z+K(2.7248053428e-02);q=q*z+K(4.7013730037e-01);q=q*z+K(1);"
              "SIGNED(DIV(x*p,q),s)" },
    { "ERF", "z=x*x;a=ABS(x);s=z*K(-5.9538836140e-04)+K(4.9859746206e-03);s=s*z-K(2.6761749579e-02);s=s*z+K(1.1281683679e-01);"
             "s=s*z-K(3.7612481278e-01);s=s*z+K(1.1283791478);s=s*x;b=MINC(K(3.95),MAXC(K(0),a));"
             "l=b*K(2.0044928777e-04)-K(3.0870376999e-03);l=l*b+K(2.2399738215e-02);l=l*b-K(1.0428603508e-01);"
             "l=l*b-K(6.3678327370e-01);l=l*b-K(1.1279095276);l=l*b-K(1.3982720896e-04);e=SIGNED(K(1)-EXP(l),x);"
             "SEL(LT(a,K(0.9)),s,e)" },
    { "FROM_HALF", "s=SHL(x&I(0x8000),16);r=x&I(0x7fff);v=BITS(FROM(SHL(r,13))*FROM(I(0x77800000)));"
                   "FROM(s|SEL(LE(I(0x7c00),r),SHL(r&I(0x3ff),13)|I(0x7f800000),v))" },
    { "TO_HALF", "u=BITS(x);a=u&I(0x7fffffff);s=SHR(u,16)&I(0x8000);n=SHR(a+I(0xfff)+(SHR(a,13)&I(1)),13)-I(114688);"
                 "d=BITS(FROM(a)+K(0.5))-I(0x3f000000);r=SEL(LT(a,I(0x38800000)),d,n);r=SEL(LE(I(0x47800000),a),I(0x7c00),r);"
                 "SEL(LT(I(0x7f800000),a),I(0x7e00),r)|s" },
    { "FROM_BF16", "FROM(SHL(x,16))" },
    { "TO_BF16", "u=BITS(x);a=u&I(0x7fffffff);r=SHR(u+I(0x7fff)+(SHR(u,16)&I(1)),16);n=SHR(u,16)|I(0x40);"
                 "SEL(LT(I(0x7f800000),a),n,r)&I(0xffff)" },
    { "WRAP_I8", "SAR(SHL(x,24),24)" },
    { "WRAP_U8", "x&I(255)" },
};

typedef struct name {
    const char *at;
    int n;
    xval v;
} name;
typedef struct reader {
    xfn *f;
    const char *p;
    xtype t;
    int lanes;
    name names[24];
    int n_names;
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

/* A decimal or hexadecimal number, whatever the host's locale. Up to 15 digits and powers of ten to 22 are exact doubles, so
 * one division or multiplication rounds once. */
static double read_number(reader *r, int64_t *out_int) {
    static const double powers[] = { 1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    skip(r);
    bool minus = take(r, '-');
    skip(r);
    double v = 0;
    int64_t whole = 0;
    int scale = 0;
    if (r->p[0] == '0' && r->p[1] == 'x') {
        for (r->p += 2;; r->p++) {
            int digit = *r->p >= '0' && *r->p <= '9' ? *r->p - '0' : *r->p >= 'a' && *r->p <= 'f' ? *r->p - 'a' + 10 : -1;
            if (digit < 0) break;
            whole = whole * 16 + digit;
        }
        v = (double)whole;
    } else {
        bool point = false;
        for (; (*r->p >= '0' && *r->p <= '9') || *r->p == '.'; r->p++) {
            if (*r->p == '.') {
                point = true;
                continue;
            }
            v = v * 10 + (*r->p - '0');
            if (whole < INT64_MAX / 16) whole = whole * 10 + (*r->p - '0');
            scale -= point;
        }
        if (*r->p == 'e') {
            r->p++;
            int sign = *r->p == '-' ? -1 : 1, e = 0;
            if (*r->p == '-' || *r->p == '+') r->p++;
            for (; *r->p >= '0' && *r->p <= '9'; r->p++) e = e * 10 + (*r->p - '0');
            scale += sign * e;
        }
    }
    if (scale < 0) v /= powers[scale < -22 ? 22 : -scale];
    if (scale > 0) v *= powers[scale > 22 ? 22 : scale];
    if (out_int) *out_int = minus ? -whole : whole;
    return minus ? -v : v;
}

static xtype int_of(xtype t) { return t == XF32 || t == XI32 ? XI32 : XI64; }

static xval read_literal(reader *r, xtype t) {
    int64_t i;
    double v = read_number(r, &i);
    if (!take(r, ')')) x86_unsupported(r->f, "an expression's literal");
    return (xval){ x86_const(r->f, t, v, i), t };
}

static const char *definition(const char *word, xtype t) {
    for (size_t i = 0; i < COUNT_OF(definitions); i++)
        if (!strcmp(word, definitions[i].word) && (t != XF64 || i >= 3)) return definitions[i].text;
    return NULL;
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
            read_number(r, &i);
            amount = (int)i;
        } else if (n_args < 3) {
            args[n_args] = read_or(r);
        }
        n_args++;
    } while (take(r, ','));
    if (!take(r, ')')) x86_unsupported(r->f, "an expression's brackets");
    if (shift)
        return x86_shift(r->f, word[2] == 'L' ? X86_PSLLD : word[1] == 'H' ? X86_PSRLD : X86_PSRAD, args[0], amount, r->lanes);
    const char *text = definition(word, r->t);
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
    for (int i = r->n_names - 1; i >= 0; i--)
        if (r->names[i].n == n && !memcmp(r->names[i].at, at, (size_t)n)) return r->names[i].v;
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
    for (int i = 0; i < 3; i++)
        if (xyz[i].r) r.names[r.n_names++] = (name){ &"xyz"[i], 1, xyz[i] };
    for (;;) {
        skip(&r);
        if (r.p[0] >= 'a' && r.p[0] <= 'z' && r.p[1] == '=') {
            const char *at = r.p;
            r.p += 2;
            xval v = read_or(&r);
            if (r.n_names < (int)COUNT_OF(r.names)) r.names[r.n_names++] = (name){ at, 1, v };
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
