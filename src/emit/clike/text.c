/* text.c - the words that statements are made of: types, indices, numbers, registers, signs. */
#include "emit/clike/clike.h"
#include "emit/emit.h"

#include <math.h>

const char *clike_reg_type(tn_dtype t) {
    t = dtype_reg(t);
    return t == TN_F32 ? "f32" : t == TN_F64 ? "f64" : t == TN_I64 ? "i64" : "i32";
}
const char *clike_memory_type(tn_dtype t) { return dtype_info(t)->word; }
const char *clike_narrow_float(tn_dtype t) {
    return t == TN_F16 ? "HALF" : t == TN_BF16 ? "BF16" : t == TN_F8E4M3 ? "F8E4M3" : "F8E5M2";
}

void clike_need(clike *e, tn_dtype t, int lanes) {
    e->needs.lanes[lanes] = true;
    e->needs.f64 |= t == TN_F64;
    e->needs.i64 |= t == TN_I64 || t == TN_F64;
}

void clike_line(clike *e) {
    for (int i = 0; i < e->indent; i++) str_add(e->out, "    ");
}

/* ---- indices ---- */

/* The last two terms count one number: a loop that steps over as many as the one inside it has, as blocks by two. */
static bool counts_on(const clike *e, affine x) {
    if (!e->l->gpu || x.n < 2 || !ext_is_lit(x.base)) return false;
    if (x.t[x.n - 1].coef != x.t[x.n - 2].coef || x.t[x.n - 1].coef < 2) return false;
    for (int i = 1; i < e->k->ins.n; i++) {
        const kins *in = &e->k->ins.at[i];
        if (in->op == K_LOOP && in->var == x.t[x.n - 2].var)
            return in->par == PAR_SERIAL && in->step > 1 && in->step == e->k->vars.at[x.t[x.n - 1].var].extent;
    }
    return false;
}

/* Such a number is made once, with what of the constant belongs to it: said so, compilers share it between addresses. */
void clike_affine(clike *e, affine x, int64_t extra) {
    bool any = false;
    if (counts_on(e, x)) {
        int64_t coef = x.t[x.n - 1].coef, base = x.base + extra;
        kvar v[2] = { x.t[x.n - 2].var, x.t[x.n - 1].var };
        x.n -= 2, x.base = base % coef, extra = 0;
        clike_affine(e, x, 0);
        str_addf(e->out, " + (i%d + i%d + %lld) * %lld%s", v[0], v[1], (long long)(base / coef), (long long)coef, e->index_end);
        return;
    }
    for (int i = 0; i < x.n; i++) {
        kterm t = x.t[i];
        if (!ext_is_lit(t.coef))
            str_addf(e->out, "%si%d * e%d", any ? " + " : "", t.var, ext_index(t.coef));
        else if (t.coef == 1)
            str_addf(e->out, "%si%d", any ? " + " : "", t.var);
        else
            str_addf(e->out, "%si%d * %lld%s", any ? " + " : "", t.var, (long long)t.coef, e->index_end);
        any = true;
    }
    if (!ext_is_lit(x.base)) {
        str_addf(e->out, "%se%d", any ? " + " : "", ext_index(x.base));
        any = true, x.base = 0;
    }
    int64_t base = x.base + extra;
    if (!any)
        str_addf(e->out, "%lld%s", (long long)base, e->index_end);
    else if (base)
        str_addf(e->out, " %c %lld%s", base < 0 ? '-' : '+', (long long)(base < 0 ? -base : base), e->index_end);
}

void clike_ext(clike *e, ext x) {
    if (ext_is_lit(x))
        str_addf(e->out, "%lld%s", (long long)x, e->index_end);
    else
        str_addf(e->out, "e%d", ext_index(x));
}

static void print_row(clike *e, const ext_row *r) {
    static const char *const how[] = {
        [EXT_ADD] = "A + B",
        [EXT_MUL] = "A * B",
        [EXT_FLOOR] = "A >= 0 ? A / B : -((B - 1 - A) / B)",
        [EXT_CEIL] = "A > 0 ? (A + B - 1) / B : -(-A / B)",
        [EXT_MIN] = "A < B ? A : B",
        [EXT_MAX] = "A > B ? A : B",
    };
    for (const char *c = how[r->op]; *c; c++)
        if (*c == 'A' || *c == 'B')
            clike_ext(e, *c == 'A' ? r->a : r->b);
        else
            str_addf(e->out, "%c", *c);
}

void clike_params(clike *e) {
    const exts *t = e->k->params;
    for (int i = 0; t && i < t->at.n; i++) {
        str_addf(e->out, "    const int64_t e%d = ", i);
        if (t->at.at[i].op == EXT_DIM)
            str_addf(e->out, "dims[%d]", t->at.at[i].number);
        else
            print_row(e, &t->at.at[i]);
        str_addf(e->out, ";\n    (void)e%d;\n", i);
    }
}

static void print_not_finite(clike *e, tn_dtype t, double f) {
    if (t == TN_F64)
        str_addf(e->out, "FROM_f64x1(0x%s%s)",
                 isnan(f) ? "7ff8000000000000"
                 : f > 0  ? "7ff0000000000000"
                          : "fff0000000000000",
                 e->l->wide_end);
    else
        str_addf(e->out, "FROM_f32x1(0x%s)", isnan(f) ? "7fc00000" : f > 0 ? "7f800000" : "ff800000");
}

void clike_value(clike *e, tn_dtype t, double f, int64_t i) {
    if (t == TN_I64)
        str_addf(e->out, i == INT64_MIN ? "(%lld%s - 1)" : "%lld%s", (long long)(i == INT64_MIN ? i + 1 : i), e->l->wide_end);
    else if (t == TN_I32)
        str_addf(e->out, i == INT32_MIN ? "(-2147483647 - 1)" : "%lld", (long long)i);
    else if (e->l->gpu && !isfinite(f)) /* these languages have no word for it that all compilers know */
        print_not_finite(e, t, f);
    else
        emit_float(e->out, t == TN_F64 ? TN_F64 : TN_F32, f);
}

/* A register of several lanes is an array for GPUs, and what uses it stands in a loop over them. */
void clike_register(clike *e, reg r) {
    bool array = e->l->gpu && e->k->ins.at[r].lanes > 1;
    str_addf(e->out, array && e->lane ? "v%u[%d]" : array ? "v%u[l]" : "v%u", r, e->lane - 1);
}

void clike_operand(clike *e, reg r, int lanes) {
    const kins *in = &e->k->ins.at[r];
    if (in->lanes == lanes || e->l->gpu)
        clike_register(e, r);
    else
        str_addf(e->out, "K_%sx%d(v%u)", clike_reg_type(dtype_reg((tn_dtype)in->dtype)), lanes, r);
}

void clike_use_op(clike *e, op_code op, tn_dtype src, int lanes) {
    src = dtype_reg(src);
    e->needs.ops[op] = true;
    for (int i = 0; i < e->ops.n; i++)
        if (e->ops.at[i].op == op && e->ops.at[i].src == src && e->ops.at[i].lanes == lanes) return;
    VEC_PUSH(e->out->a, &e->ops, (used_op){ (uint8_t)op, (uint8_t)src, (uint8_t)lanes });
}

/* Integers go through functions, which wrap around. */
const char *clike_infix(op_code op, tn_dtype t) {
    if (!dtype_is_float(t)) return NULL;
    return op == OP_add ? " + " : op == OP_sub ? " - " : op == OP_mul ? " * " : NULL;
}
