/* c_functions.c - a text of functions.def as a C function over vectors of so many lanes. In: the text. Out: C in the templates'
 * names, such as SEL_f32x8. Memory: the arena of the output. A text that is wrong fails the guard: the table is ours. */
#include "emit/emit.h"
#include "emit/functions.h"

typedef struct cval { /* a value as C text that may stand anywhere */
    const char *s;
    char type;         /* f, i */
    bool literal;      /* a bare number: one lane that fits beside a vector */
    const char *x, *y; /* of a product of f32: its factors */
} cval;
typedef struct ctext {
    arena *a;
    const function_row *f;
    const char *p;
    int lanes;
    const char *fma;
    char types[26]; /* of the names so far, or 0 */
} ctext;

static cval read_or(ctext *t);

static void wrong(ctext *t, const char *what) {
    guard_fail(t->a->gd, TN_ERR_INTERNAL, "the text of %s: %s at '%s'", t->f->word, what, t->p);
}
static bool take(ctext *t, char c) {
    while (*t->p == ' ') t->p++;
    if (*t->p != c) return false;
    t->p++;
    return true;
}
static void expect(ctext *t, char c) {
    if (!take(t, c)) wrong(t, "a bracket is missing");
}

static const char *type_name(char type) { return type == 'f' ? "f32" : "i32"; }

/* All lanes of it. */
static const char *full(ctext *t, cval v) {
    return v.literal ? arena_printf(t->a, "K_%sx%d(%s)", type_name(v.type), t->lanes, v.s) : v.s;
}

static cval value(const char *s, char type) { return (cval){ .s = s, .type = type }; }

static cval literal(ctext *t, char type) {
    int64_t i;
    double v = function_number(&t->p, &i);
    expect(t, ')');
    if (type == 'i')
        return (cval){ .s = arena_printf(t->a, "((int32_t)0x%xu)", (unsigned)(uint32_t)i), .type = 'i', .literal = true };
    str s;
    str_init(&s, t->a);
    emit_float(&s, TN_F32, v);
    return (cval){ .s = arena_printf(t->a, "(%s)", s.s), .type = 'f', .literal = true };
}

/* x y + z, one of them negative where so much is asked for; x and y of a product. */
static cval contracted(ctext *t, cval product, bool minus_product, cval z, bool minus_z) {
    return value(arena_printf(t->a, "%s(%s%s, %s, %s%s)", t->fma, minus_product ? "-" : "", product.x, product.y,
                              minus_z ? "-" : "", z.s),
                 'f');
}

static cval binary(ctext *t, char op, cval a, cval b) {
    if (a.type != b.type) wrong(t, "operands of two types");
    if (t->fma && a.x && (op == '+' || op == '-')) return contracted(t, a, false, b, op == '-');
    if (t->fma && b.x && (op == '+' || op == '-')) return contracted(t, b, op == '-', a, false);
    if (a.literal && b.literal) a.s = full(t, a), a.literal = false;
    if (a.type == 'i' && (op == '+' || op == '-')) /* wraps around */
        return value(arena_printf(t->a, "((i32x%d)((u32x%d)%s %c (u32x%d)%s))", t->lanes, t->lanes, full(t, a), op, t->lanes,
                                  full(t, b)),
                     'i');
    cval r = value(arena_printf(t->a, "(%s %c %s)", a.s, op, b.s), a.type);
    if (op == '*' && r.type == 'f') r.x = a.s, r.y = b.s;
    return r;
}

static cval shift(ctext *t, const char *word) {
    int64_t n;
    cval v = read_or(t);
    expect(t, ',');
    function_number(&t->p, &n);
    expect(t, ')');
    bool left = word[2] == 'L', arithmetic = word[1] == 'A';
    const char *s = arithmetic ? arena_printf(t->a, "(%s >> %d)", full(t, v), (int)n)
                               : arena_printf(t->a, "((i32x%d)((u32x%d)%s %s %d))", t->lanes, t->lanes, full(t, v),
                                              left ? "<<" : ">>", (int)n);
    return value(s, 'i');
}

/* Types of result and operand by which the template is named; 0: as the last operand's. */
static const struct {
    const char *word;
    char result, named;
} words[] = {
    { "LT", 'i', 0 },      { "LE", 'i', 0 },     { "EQ", 'i', 0 },     { "NE", 'i', 0 },      { "SEL", 0, 0 },
    { "NOT", 'i', 'i' },   { "ABS", 'f', 'f' },  { "DIV", 'f', 'f' },  { "SQRT", 'f', 'f' },  { "RINT", 'f', 'f' },
    { "FLOOR", 'f', 'f' }, { "FROM", 'f', 'f' }, { "BITS", 'i', 'f' }, { "FLOAT", 'f', 'f' }, { "SIGNED", 'f', 'f' },
    { "MINC", 'f', 'f' },  { "MAXC", 'f', 'f' },
};

static cval read_call(ctext *t, const char *at, size_t n) {
    char word[16] = { 0 }, result = 'f', named = 'f';
    memcpy(word, at, n < sizeof word ? n : sizeof word - 1);
    if (!strcmp(word, "K")) return literal(t, 'f');
    if (!strcmp(word, "I")) return literal(t, 'i');
    if (!strcmp(word, "SHL") || !strcmp(word, "SHR") || !strcmp(word, "SAR")) return shift(t, word);
    str s;
    str_init(&s, t->a);
    char last = 0;
    do {
        cval v = read_or(t);
        str_addf(&s, "%s%s", last ? ", " : "", full(t, v));
        last = v.type;
    } while (take(t, ','));
    expect(t, ')');
    const function_row *f = function_find(word, strlen(word));
    bool known = f != NULL || !strncmp(word, "LIBM_", 5);
    if (f) result = f->sig[0];
    for (size_t i = 0; i < COUNT_OF(words) && !known; i++) {
        if (strcmp(words[i].word, word)) continue;
        known = true;
        named = words[i].named ? words[i].named : last;
        result = words[i].result ? words[i].result : last;
    }
    if (!known) wrong(t, "an unknown word");
    return value(arena_printf(t->a, "%s_%sx%d(%s)", word, type_name(named), t->lanes, s.s), result);
}

static cval read_unary(ctext *t) {
    if (take(t, '-')) {
        cval v = read_unary(t);
        return value(arena_printf(t->a, "(-%s)", full(t, v)), v.type);
    }
    if (take(t, '(')) {
        cval v = read_or(t);
        expect(t, ')');
        return v;
    }
    const char *at = t->p;
    while ((*t->p >= 'A' && *t->p <= 'Z') || *t->p == '_' || (t->p > at && *t->p >= '0' && *t->p <= '9')) t->p++;
    size_t n = (size_t)(t->p - at);
    if (n > 0 && take(t, '(')) return read_call(t, at, n);
    if (*t->p < 'a' || *t->p > 'z' || !t->types[*t->p - 'a']) wrong(t, "an unknown name");
    char name = *t->p++;
    return value(arena_printf(t->a, "%c", name), t->types[name - 'a']);
}

static cval read_product(ctext *t) {
    cval v = read_unary(t);
    while (take(t, '*')) v = binary(t, '*', v, read_unary(t));
    return v;
}
static cval read_sum(ctext *t) {
    cval v = read_product(t);
    for (;;) {
        if (take(t, '+'))
            v = binary(t, '+', v, read_product(t));
        else if (take(t, '-'))
            v = binary(t, '-', v, read_product(t));
        else
            return v;
    }
}
static cval read_and(ctext *t) {
    cval v = read_sum(t);
    while (take(t, '&')) v = binary(t, '&', v, read_sum(t));
    return v;
}
static cval read_xor(ctext *t) {
    cval v = read_and(t);
    while (take(t, '^')) v = binary(t, '^', v, read_and(t));
    return v;
}
static cval read_or(ctext *t) {
    cval v = read_xor(t);
    while (take(t, '|')) v = binary(t, '|', v, read_xor(t));
    return v;
}

void emit_function(str *out, const function_row *f, const char *text, int lanes, const char *fma) {
    ctext t = { .a = out->a, .f = f, .p = text, .lanes = lanes, .fma = fma };
    str_addf(out, "INL %sx%d %s_f32x%d(", type_name(f->sig[0]), lanes, f->word, lanes);
    for (int i = 0; f->sig[i + 1]; i++) {
        str_addf(out, "%s%sx%d %c", i ? ", " : "", type_name(f->sig[i + 1]), lanes, "xyz"[i]);
        t.types["xyz"[i] - 'a'] = f->sig[i + 1];
    }
    str_add(out, ") {\n");
    for (;;) {
        while (*t.p == ' ') t.p++;
        if (!(t.p[0] >= 'a' && t.p[0] <= 'z' && t.p[1] == '=')) break;
        char name = t.p[0], *type = &t.types[name - 'a'];
        t.p += 2;
        cval v = read_or(&t);
        expect(&t, ';');
        if (*type && *type != v.type) wrong(&t, "a name of another type");
        str_addf(out, "    %s%s%c = %s;\n", *type ? "" : type_name(v.type), *type ? "" : arena_printf(t.a, "x%d ", lanes), name,
                 full(&t, v));
        *type = v.type;
    }
    cval v = read_or(&t);
    if (*t.p || v.type != f->sig[0]) wrong(&t, "its end");
    str_addf(out, "    return %s;\n}\n", full(&t, v));
}
