/* expr.c - the nodes of an expression (emit/expression.h) as primitives over vectors. In: text, and values for x, y, z. Out:
 * the value. */
#include "emit/expression.h"
#include "emit/functions.h"
#include "emit/x86/ir.h"

typedef struct expr_values {
    xfn *f;
    xtype t;
    int lanes;
    xval *of;       /* [nodes] */
    xval names[26]; /* of the letters; register 0: not yet */
} expr_values;

static xtype int_of(xtype t) { return t == XF32 || t == XI32 ? XI32 : XI64; }

/* The table's text, whose functions of floats are of f32 only; NULL when there is none. */
static const char *definition(const expr_values *v, const char *word) {
    const function_row *fn = function_find(word, strlen(word));
    if (!fn || (strchr(fn->sig, 'f') && v->t != XF32)) return NULL;
    if (!strcmp(word, "SCALED") && v->f->level == X86_AVX512) return NULL; /* that one is an instruction, too */
    if (!fn->fma || v->f->level == X86_SSE) return fn->text;
    return strcmp(word, "FMA") ? fn->fma : NULL; /* that one is an instruction */
}

static xval call(expr_values *v, const expr_node *n) {
    xval args[EXPR_MOST_IN] = { { 0 } };
    for (int i = 0; i < n->n_in; i++) args[i] = v->of[n->in[i]];
    const char *text = definition(v, n->word);
    if (text) return x86_expr(v->f, text, v->t, args, v->lanes);
    return x86_word(v->f, n->word, v->t, args, n->n_in, v->lanes);
}

static xval negated(expr_values *e, xval x) {
    xfn *f = e->f;
    if (x.t == XI32 || x.t == XI64) return x86_bin(f, '-', (xval){ x86_const(f, x.t, 0, 0), x.t }, x, e->lanes);
    xval sign = { x86_const_bits(f, x.t, x.t == XF32 ? 0x80000000u : 0x8000000000000000u), x.t };
    xval v = x86_bin(f, '^', x, sign, e->lanes);
    f->ops.at[f->v.at[v.r].def].neg = true;
    return v;
}

static xval shifted(expr_values *v, const expr_node *n) {
    x86_id id = n->word[2] == 'L' ? X86_PSLLD : n->word[1] == 'H' ? X86_PSRLD : X86_PSRAD;
    return x86_shift(v->f, id, v->of[n->in[0]], (int)n->integer, v->lanes);
}

static xval named(expr_values *v, char letter) {
    xval x = v->names[letter - 'a'];
    if (x.r) return x;
    x86_unsupported(v->f, "an expression's text");
    return (xval){ x86_const(v->f, v->t, 0, 0), v->t };
}

static xval value(expr_values *v, const expr_node *n) {
    switch ((expr_kind)n->kind) {
    case EXPR_FLOAT:
        return (xval){ x86_const(v->f, v->t, n->number, n->integer), v->t };
    case EXPR_INTEGER:
        return (xval){ x86_const(v->f, int_of(v->t), n->number, n->integer), int_of(v->t) };
    case EXPR_NAME:
        return named(v, n->letter);
    case EXPR_ASSIGN:
        return v->names[n->letter - 'a'] = v->of[n->in[0]];
    case EXPR_NEGATE:
        return negated(v, v->of[n->in[0]]);
    case EXPR_BINARY:
        return x86_bin(v->f, n->op, v->of[n->in[0]], v->of[n->in[1]], v->lanes);
    case EXPR_SHIFT:
        return shifted(v, n);
    case EXPR_CALL:
        return call(v, n);
    }
    return (xval){ 0 };
}

xval x86_expr(xfn *f, const char *text, xtype t, const xval *xyz, int lanes) {
    expression e = { 0 };
    expression_read(f->a, text, &e);
    expr_values v = { .f = f, .t = t, .lanes = lanes, .of = ARENA_ARRAY(f->a, xval, e.nodes.n) };
    for (int i = 0; i < 3; i++) v.names["xyz"[i] - 'a'] = xyz[i];
    for (int i = 0; i < e.nodes.n; i++) v.of[i] = value(&v, &e.nodes.at[i]);
    return v.of[e.nodes.n - 1];
}

xval x86_half_nan(xfn *f, xval x, int lanes) {
    const xval args[3] = { x };
    return x86_expr(f, "SEL(NE(x,x),FROM(BITS(x)&I(0x80000000)|I(0x7fc00000)),x)", XF32, args, lanes);
}
