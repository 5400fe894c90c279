/* c_functions.c - a text of functions.def as a C function over vectors of so many lanes. In: the text. Out: C in the templates'
 * names, such as SEL_f32x8. Memory: the arena of the output. A text that is wrong fails the guard: the table is ours. */
#include "emit/emit.h"
#include "emit/expression.h"
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
    cval *of; /* [nodes] */
    int lanes;
    const char *fma;
    char types[26]; /* of the names so far, or 0 */
    str *out;
} ctext;

static void wrong(ctext *t, const char *what) { guard_fail(t->a->gd, TN_ERR_INTERNAL, "the text of %s: %s", t->f->word, what); }

static const char *type_name(char type) { return type == 'f' ? "f32" : "i32"; }

/* All lanes of it. */
static const char *full(ctext *t, cval v) {
    return v.literal ? arena_printf(t->a, "K_%sx%d(%s)", type_name(v.type), t->lanes, v.s) : v.s;
}

static cval value(const char *s, char type) { return (cval){ .s = s, .type = type }; }

static cval whole(ctext *t, int64_t i) {
    return (cval){ .s = arena_printf(t->a, "((int32_t)0x%xu)", (unsigned)(uint32_t)i), .type = 'i', .literal = true };
}

static cval number(ctext *t, double v) {
    str s;
    str_init(&s, t->a);
    emit_float(&s, TN_F32, v);
    return (cval){ .s = arena_printf(t->a, "(%s)", s.s), .type = 'f', .literal = true };
}

/* x y + z, one of them negative where asked; x and y of a product. */
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

static cval shift(ctext *t, const expr_node *e) {
    const char *v = full(t, t->of[e->in[0]]);
    bool left = e->word[2] == 'L', arithmetic = e->word[1] == 'A';
    const char *s = arithmetic ? arena_printf(t->a, "(%s >> %d)", v, (int)e->integer)
                               : arena_printf(t->a, "((i32x%d)((u32x%d)%s %s %d))", t->lanes, t->lanes, v, left ? "<<" : ">>",
                                              (int)e->integer);
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

static cval call(ctext *t, const expr_node *e) {
    const function_row *f = function_find(e->word, strlen(e->word));
    char result = f ? f->sig[0] : 'f', named = 'f', last = t->of[e->in[e->n_in - 1]].type;
    bool known = f != NULL || !strncmp(e->word, "LIBM_", 5);
    for (size_t i = 0; i < COUNT_OF(words) && !known; i++) {
        if (strcmp(words[i].word, e->word)) continue;
        known = true;
        named = words[i].named ? words[i].named : last;
        result = words[i].result ? words[i].result : last;
    }
    if (!known) wrong(t, "an unknown word");
    str s;
    str_init(&s, t->a);
    for (int i = 0; i < e->n_in; i++) str_addf(&s, "%s%s", i ? ", " : "", full(t, t->of[e->in[i]]));
    return value(arena_printf(t->a, "%s_%sx%d(%s)", e->word, type_name(named), t->lanes, s.s), result);
}

static cval assign(ctext *t, char letter, cval v) {
    char *type = &t->types[letter - 'a'];
    if (*type && *type != v.type) wrong(t, "a name of another type");
    if (*type)
        str_addf(t->out, "    %c = %s;\n", letter, full(t, v));
    else
        str_addf(t->out, "    %sx%d %c = %s;\n", type_name(v.type), t->lanes, letter, full(t, v));
    *type = v.type;
    return v;
}

static cval node_value(ctext *t, const expr_node *e) {
    const cval *x = &t->of[e->in[0]];
    switch ((expr_kind)e->kind) {
    case EXPR_FLOAT:
        return number(t, e->number);
    case EXPR_INTEGER:
        return whole(t, e->integer);
    case EXPR_NAME:
        if (!t->types[e->letter - 'a']) wrong(t, "an unknown name");
        return value(arena_printf(t->a, "%c", e->letter), t->types[e->letter - 'a']);
    case EXPR_ASSIGN:
        return assign(t, e->letter, *x);
    case EXPR_NEGATE:
        return value(arena_printf(t->a, "(-%s)", full(t, *x)), x->type);
    case EXPR_BINARY:
        return binary(t, e->op, *x, t->of[e->in[1]]);
    case EXPR_SHIFT:
        return shift(t, e);
    case EXPR_CALL:
        return call(t, e);
    }
    return (cval){ 0 };
}

void emit_function(str *out, const function_row *f, const char *text, int lanes, const char *fma) {
    expression e = { 0 };
    expression_read(out->a, text, &e);
    ctext t = { .a = out->a, .f = f, .lanes = lanes, .fma = fma, .out = out };
    t.of = ARENA_ARRAY(t.a, cval, e.nodes.n);
    str_addf(out, "INL %sx%d %s_f32x%d(", type_name(f->sig[0]), lanes, f->word, lanes);
    for (int i = 0; f->sig[i + 1]; i++) {
        str_addf(out, "%s%sx%d %c", i ? ", " : "", type_name(f->sig[i + 1]), lanes, "xyz"[i]);
        t.types["xyz"[i] - 'a'] = f->sig[i + 1];
    }
    str_add(out, ") {\n");
    for (int i = 0; i < e.nodes.n; i++) t.of[i] = node_value(&t, &e.nodes.at[i]);
    cval v = t.of[e.nodes.n - 1];
    if (v.type != f->sig[0]) wrong(&t, "a value of another type");
    str_addf(out, "    return %s;\n}\n", full(&t, v));
}
