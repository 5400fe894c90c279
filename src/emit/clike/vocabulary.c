/* vocabulary.c - the functions that the statements of clike.c call: an op of the table for a type and a number of lanes,
 * conversions, clamped addresses.
 *
 * In: what the statements need, counted while they were written. Out: a program's text, the vocabulary first, without what
 * nothing calls. */
#include "emit/clike/clike.h"

/* Words of an op's expression get the type they work on: SEL( becomes SEL_f32x8(. */
static void print_expr(str *out, const char *expr, const char *suffix) {
    for (const char *p = expr; *p;) {
        if (*p >= 'A' && *p <= 'Z') {
            const char *q = p;
            while ((*q >= 'A' && *q <= 'Z') || (*q >= '0' && *q <= '9')) q++;
            str_addn(out, p, (size_t)(q - p));
            if (*q == '(') str_addf(out, "_%s", suffix);
            p = q;
        } else {
            str_addn(out, p++, 1);
        }
    }
}

static void print_op_function(const clike_language *l, const used_op *u, str *out) {
    const op_info *info = op_get((op_code)u->op);
    const char *type = clike_reg_type((tn_dtype)u->src);
    const char *result = info->cls == CL_CMP || info->cls == CL_LOG ? "i32" : type;
    str_addf(out, "INL %sx%d op_%s_%sx%d(", result, u->lanes, info->name, type, u->lanes);
    for (int i = 0; i < info->arity; i++)
        str_addf(out, "%s%sx%d %c", i ? ", " : "", u->op == OP_select && i == 0 ? "i32" : type, u->lanes, "xyz"[i]);
    if (l->extreme[0] && u->src == TN_I64 && u->lanes == 1 && (u->op == OP_max || u->op == OP_min)) {
        /* The larger and the smaller of two come of one comparison, by six instructions: of min.s64 and max.s64, which
         * compilers make of all other texts, ptxas makes four each. */
        const char *pairs = u->op == OP_max ? "a, c, a, p; selp.b32 b, d, b" : "a, a, c, p; selp.b32 b, b, d";
        str_addf(out,
                 ") { i64x1 z; asm(\"{ .reg .pred p; .reg .b32 a, b, c, d; mov.b64 {a, b}, %%1; mov.b64 {c, d}, %%2; "
                 "setp.lt.s64 p, %%1, %%2; selp.b32 %s, p; mov.b64 %%0, {a, b}; }\" : \"=l\"(z) : \"l\"(x), \"l\"(y)); "
                 "return z; }\n",
                 pairs);
        return;
    }
    str_add(out, ") { return ");
    const char *extreme = u->src != TN_F32 || u->lanes > 1 ? NULL
                          : u->op == OP_max                ? l->extreme[0]
                          : u->op == OP_min                ? l->extreme[1]
                                                           : NULL;
    if (extreme) {
        str_addf(out, "%s(x, y); }\n", extreme);
        return;
    }
    if (!l->gpu && u->src == TN_F32 && u->lanes > 1 && (u->op == OP_max || u->op == OP_min)) { /* one instruction but for NaN */
        const char *t = arena_printf(out->a, "f32x%d", u->lanes);
        str_addf(out, "SEL_%s(NE_%s(x, x), x, %s_%s(x, y)); }\n", t, t, u->op == OP_max ? "MAXC" : "MINC", t);
        return;
    }
    bool wraps =
        !dtype_is_float((tn_dtype)u->src) && (u->op == OP_add || u->op == OP_sub || u->op == OP_mul || u->op == OP_neg);
    if (wraps) {
        const char *w = arena_printf(out->a, "(u%sx%d)", type + 1, u->lanes);
        const char *sign = u->op == OP_add ? "+" : u->op == OP_mul ? "*" : "-";
        if (info->arity == 1)
            str_addf(out, "(%sx%d)(%s%sx); }\n", type, u->lanes, sign, w);
        else
            str_addf(out, "(%sx%d)(%sx %s %sy); }\n", type, u->lanes, w, sign, w);
        return;
    }
    print_expr(out, info->expr, arena_printf(out->a, "%sx%d", type, u->lanes));
    str_add(out, "; }\n");
}

/* Casts and wraps for the lane counts in use. */
static void print_conversions(const clike *e, str *out) {
    const prelude_needs *n = &e->needs;
    const char *wide = e->l->wide_end;
    const struct {
        const char *name, *reg, *lo, *hi, *below;
    } ints[] = { { "i8", "i32", "-128", "127", "128.0" },
                 { "u8", "i32", "0", "255", "256.0" },
                 { "i16", "i32", "-32768", "32767", "32768.0" },
                 { "u16", "i32", "0", "65535", "65536.0" },
                 { "i32", "i32", "(-2147483647 - 1)", "2147483647", "2147483648.0" },
                 { "i64", "i64", arena_printf(out->a, "(-9223372036854775807%s - 1)", wide),
                   arena_printf(out->a, "9223372036854775807%s", wide), "9223372036854775808.0" } };
    for (int l = 1; l <= 64; l *= 2) {
        if (!n->lanes[l]) continue;
        str_addf(out,
                 "INL i32x%d wrap_i8_x%d(i32x%d x) { return (i32x%d)((u32x%d)x << 24) >> 24; }\n"
                 "INL i32x%d wrap_u8_x%d(i32x%d x) { return x & 255; }\n"
                 "INL i32x%d wrap_i16_x%d(i32x%d x) { return (i32x%d)((u32x%d)x << 16) >> 16; }\n"
                 "INL i32x%d wrap_u16_x%d(i32x%d x) { return x & 65535; }\n",
                 l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l);
        for (int f = 0; f < (n->f64 ? 2 : 1); f++)
            for (size_t i = 0; i < COUNT_OF(ints); i++) {
                const char *ft = f ? "f64" : "f32", *it = ints[i].reg;
                if (!strcmp(it, "i64") && !n->i64) continue;
                const char *conv = l == 1 ? arena_printf(out->a, "(%sx1)x", it)
                                          : arena_printf(out->a, "__builtin_convertvector(x, %sx%d)", it, l);
                str_addf(out,
                         "INL %sx%d to_%s_%sx%d(%sx%d x) { i32x%d low = LT_%sx%d(x, K_%sx%d(%s)), high = LE_%sx%d(K_%sx%d(%s), "
                         "x), nan = NE_%sx%d(x, x);",
                         it, l, ints[i].name, ft, l, ft, l, l, ft, l, ft, l, ints[i].lo, ft, l, ft, l, ints[i].below, ft, l);
                str_addf(out, " x = SEL_%sx%d(low | high | nan, K_%sx%d(0), x);", ft, l, ft, l);
                str_addf(out, " %sx%d r = %s; r = SEL_%sx%d(low, K_%sx%d(%s), r); return SEL_%sx%d(high, K_%sx%d(%s), r); }\n",
                         it, l, conv, it, l, it, l, ints[i].lo, it, l, it, l, ints[i].hi);
            }
    }
}

static const char address_text[] = "INL int64_t at_clamped(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }\n"
                                   "INL int64_t at_raw(int64_t i, int64_t n) { (void)n; return i; }\n";

void clike_program(clike *e, str *out) {
    str vocabulary;
    str_init(&vocabulary, out->a);
    const export_form *form = e->needs.form;
    for (int i = 0; form && form->freestanding && i < e->ops.n; i++)
        if (e->ops.at[i].src == TN_F64)
            emit_check_freestanding(out, form, op_get((op_code)e->ops.at[i].op)->name, op_get((op_code)e->ops.at[i].op)->expr);
    emit_prelude(&e->needs, e->l, &vocabulary);
    print_conversions(e, &vocabulary);
    str_add(&vocabulary, address_text);
    for (int i = 0; i < e->ops.n; i++) print_op_function(e->l, &e->ops.at[i], &vocabulary);
    emit_pruned(&vocabulary, e->out, out);
    clike_matrix_functions(e, out);
    clike_bulk_functions(e, out);
    str_addn(out, e->out->s, e->out->n);
}
