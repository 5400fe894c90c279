/* lane_ops.c - the primitives that expressions are made of, as operations over one chunk of lanes.
 *
 * In: values (vreg and type). Out: a new value. Values are numbered: the same operation on the same registers is written once
 * in a scope. All operations act on whole registers: lanes above the chunk's hold rubbish that nobody reads. */
#include "emit/x86/ir.h"

static bool wide(xtype t) { return t == XF64 || t == XI64 || t == XM64; }
static bool is_float(xtype t) { return t == XF32 || t == XF64; }

static xval made(xfn *f, x86_id id, xtype vl_of, xtype t, int lanes, vreg a, vreg b, int imm) {
    return (xval){ x86_value(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)x86_vl(vl_of, lanes), .a = a, .b = b, .imm = imm }),
                   t };
}

static xval ones(xfn *f) { return (xval){ x86_const_bits(f, XI64, UINT64_MAX), XI32 }; }

/* ---- masks ---- */

/* The low halves of 64-bit lanes. */
static xval narrow(xfn *f, xval a, int lanes) {
    if (lanes == 1) return (xval){ a.r, XI32 };
    if (lanes == 2) return made(f, X86_PSHUFD, XI64, XI32, 2, a.r, 0, 0x08);
    if (lanes == 4) {
        xval high = made(f, X86_EXTRACTF128, XI64, XI64, 4, a.r, 0, 1);
        return made(f, X86_SHUFPS, XI32, XI32, 4, a.r, high.r, 0x88);
    }
    return made(f, X86_PMOVQD, XI64, XI32, lanes, a.r, 0, 0);
}

xval x86_mask32(xfn *f, xval m, int lanes) {
    if (m.t != XM64) return m;
    xval r = narrow(f, m, lanes);
    if (r.r != m.r) {
        xop *def = &f->ops.at[f->v.at[r.r].def];
        def->type = XM64, def->extra = (int32_t)m.r;
    }
    return r;
}

xval x86_mask64(xfn *f, xval m, int lanes) {
    if (m.t == XM64) return m;
    const xop *def = &f->ops.at[f->v.at[m.r].def];
    if (def->type == XM64 && !f->v.at[m.r].is_mutable) return (xval){ (vreg)def->extra, XM64 };
    return made(f, X86_PMOVSXDQ, XI64, XM64, lanes, m.r, 0, 0);
}

/* ---- two operands ---- */

static xval negated_mask(xfn *f, xval m, int lanes) { return made(f, X86_PXOR, m.t, m.t, lanes, m.r, ones(f).r, 0); }

static xval compare(xfn *f, char op, xval a, xval b, int lanes) {
    xtype mt = wide(a.t) ? XM64 : XI32;
    if (is_float(a.t)) {
        int how = op == '<' ? 1 : op == 'l' ? 2 : op == '=' ? 0 : 4;
        return made(f, a.t == XF32 ? X86_CMPPS : X86_CMPPD, a.t, mt, lanes, a.r, b.r, how);
    }
    x86_id gt = wide(a.t) ? X86_PCMPGTQ : X86_PCMPGTD, eq = wide(a.t) ? X86_PCMPEQQ : X86_PCMPEQD;
    switch (op) {
    case '<':
        return made(f, gt, a.t, mt, lanes, b.r, a.r, 0);
    case 'l':
        return negated_mask(f, made(f, gt, a.t, mt, lanes, a.r, b.r, 0), lanes);
    case '=':
        return made(f, eq, a.t, mt, lanes, a.r, b.r, 0);
    default:
        return negated_mask(f, made(f, eq, a.t, mt, lanes, a.r, b.r, 0), lanes);
    }
}

static xval mul64(xfn *f, xval a, xval b, int lanes) {
    if (f->level == X86_AVX512) return made(f, X86_PMULLQ, XI64, XI64, lanes, a.r, b.r, 0);
    xval low = made(f, X86_PMULUDQ, XI64, XI64, lanes, a.r, b.r, 0);
    xval ah = x86_shift(f, X86_PSRLQ, a, 32, lanes), bh = x86_shift(f, X86_PSRLQ, b, 32, lanes);
    xval x = made(f, X86_PMULUDQ, XI64, XI64, lanes, ah.r, b.r, 0), y = made(f, X86_PMULUDQ, XI64, XI64, lanes, a.r, bh.r, 0);
    xval high = x86_shift(f, X86_PSLLQ, made(f, X86_PADDQ, XI64, XI64, lanes, x.r, y.r, 0), 32, lanes);
    return made(f, X86_PADDQ, XI64, XI64, lanes, low.r, high.r, 0);
}

xval x86_bin(xfn *f, char op, xval a, xval b, int lanes) {
    static const struct {
        char op;
        uint16_t id[4]; /* XF32 XF64 XI32 XI64 */
    } table[] = {
        { '+', { X86_ADDPS, X86_ADDPD, X86_PADDD, X86_PADDQ } },
        { '-', { X86_SUBPS, X86_SUBPD, X86_PSUBD, X86_PSUBQ } },
        { '*', { X86_MULPS, X86_MULPD, X86_PMULLD, 0 } },
        { '/', { X86_DIVPS, X86_DIVPD, 0, 0 } },
        { 'M', { X86_MAXPS, X86_MAXPD, 0, 0 } },
        { 'm', { X86_MINPS, X86_MINPD, 0, 0 } },
        { '&', { X86_PAND, X86_PAND, X86_PAND, X86_PAND } },
        { '|', { X86_POR, X86_POR, X86_POR, X86_POR } },
        { '^', { X86_PXOR, X86_PXOR, X86_PXOR, X86_PXOR } },
        { '~', { X86_PANDN, X86_PANDN, X86_PANDN, X86_PANDN } },
    };
    if (strchr("<l=n", op)) return compare(f, op, a, b, lanes);
    if (a.t == XM64 || b.t == XM64) { /* both as masks of one width */
        if (a.t != b.t) a = x86_mask32(f, a, lanes), b = x86_mask32(f, b, lanes);
        x86_id id = op == '&' ? X86_PAND : op == '|' ? X86_POR : op == '~' ? X86_PANDN : X86_PXOR;
        return made(f, id, a.t, a.t, lanes, a.r, b.r, 0);
    }
    if (op == '*' && a.t == XI64) return mul64(f, a, b, lanes);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].op == op && table[i].id[a.t]) return made(f, (x86_id)table[i].id[a.t], a.t, a.t, lanes, a.r, b.r, 0);
    x86_unsupported(f, "an operator of an expression");
    return a;
}

xval x86_sel(xfn *f, xval m, xval a, xval b, int lanes) {
    if (a.t != b.t) a = x86_mask32(f, a, lanes), b = x86_mask32(f, b, lanes); /* masks of two widths */
    m = wide(a.t) ? x86_mask64(f, m, lanes) : x86_mask32(f, m, lanes);
    xop op = { .op = wide(a.t) ? X86_BLENDVPD : X86_BLENDVPS, .vl = (uint8_t)x86_vl(a.t, lanes), .a = b.r, .b = a.r, .c = m.r };
    return (xval){ x86_value(f, op), a.t };
}

xval x86_shift(xfn *f, x86_id id, xval a, int n, int lanes) { return made(f, id, a.t, a.t, lanes, a.r, 0, n); }

/* ---- conversions ---- */

static xval lane_op(xfn *f, int kind, xval a, xval b, xtype to, int lanes) {
    xop op = { .op = P_LANEOP, .imm = kind, .lanes = (uint8_t)lanes, .a = a.r, .b = b.r };
    int x = x86_vl(a.t, lanes), y = x86_vl(to, lanes);
    op.vl = (uint8_t)(x > y ? x : y);
    return (xval){ x86_value(f, op), to };
}

xval x86_convert(xfn *f, xval a, xtype to, int lanes) {
    bool z = f->level == X86_AVX512;
    if (a.t == to) return a;
    switch (a.t) {
    case XF32:
        if (to == XF64) return made(f, X86_CVTPS2PD, to, to, lanes, a.r, 0, 0);
        if (to == XI32) return made(f, X86_CVTTPS2DQ, to, to, lanes, a.r, 0, 0);
        return z ? made(f, X86_CVTTPS2QQ, to, to, lanes, a.r, 0, 0) : lane_op(f, L_F32_I64, a, (xval){ 0 }, to, lanes);
    case XF64:
        if (to == XF32) return made(f, X86_CVTPD2PS, a.t, to, lanes, a.r, 0, 0);
        if (to == XI32) return made(f, X86_CVTTPD2DQ, a.t, to, lanes, a.r, 0, 0);
        return z ? made(f, X86_CVTTPD2QQ, to, to, lanes, a.r, 0, 0) : lane_op(f, L_F64_I64, a, (xval){ 0 }, to, lanes);
    case XI32:
        if (to == XF32) return made(f, X86_CVTDQ2PS, to, to, lanes, a.r, 0, 0);
        if (to == XF64) return made(f, X86_CVTDQ2PD, to, to, lanes, a.r, 0, 0);
        return made(f, X86_PMOVSXDQ, XI64, to, lanes, a.r, 0, 0);
    default:
        if (to == XI32) {
            xval r = narrow(f, a, lanes);
            return (xval){ r.r, XI32 };
        }
        if (to == XF32)
            return z ? made(f, X86_CVTQQ2PS, a.t, to, lanes, a.r, 0, 0) : lane_op(f, L_I64_F32, a, (xval){ 0 }, to, lanes);
        return z ? made(f, X86_CVTQQ2PD, to, to, lanes, a.r, 0, 0) : lane_op(f, L_I64_F64, a, (xval){ 0 }, to, lanes);
    }
}

xval x86_call(xfn *f, const char *name, xval a, xval b, xval mask, int lanes) {
    xop op = { .op = P_CALL, .imm = x86_import(f, name), .type = (uint8_t)a.t, .lanes = (uint8_t)lanes };
    op.a = a.r, op.b = b.r, op.c = mask.r;
    op.vl = (uint8_t)x86_vl(a.t, lanes);
    f->calls = true;
    return (xval){ x86_value(f, op), a.t };
}

xval x86_low(xfn *f, xval a, int at, int lanes) {
    int size = wide(a.t) ? 8 : 4, offset = at * size, bytes = lanes * size;
    vreg r = a.r;
    if (offset == 0) return a;
    if (bytes == 32 && offset == 32)
        return (xval){ x86_value(f, (xop){ .op = X86_EXTRACTF64X4, .vl = 2, .a = r, .imm = 1 }), a.t };
    if (bytes > 16 || offset % bytes) {
        x86_unsupported(f, "lanes across registers");
        return a;
    }
    if (offset >= 16) {
        r = x86_value(f, (xop){ .op = X86_EXTRACTF128, .vl = offset >= 32 ? 2 : 1, .a = r, .imm = offset / 16 });
        offset %= 16;
    }
    int e = offset / 4;
    if (e)
        r = x86_value(f, (xop){ .op = X86_PSHUFD,
                                .vl = 0,
                                .a = r,
                                .imm = e | ((e + 1) & 3) << 2 | ((e + 2) & 3) << 4 | ((e + 3) & 3) << 6 });
    return (xval){ r, a.t };
}

vreg x86_broadcast(xfn *f, xval a) {
    if (f->v.at[a.r].full) return a.r;
    int vl = f->vb == 64 ? 2 : f->vb == 32 ? 1 : 0;
    x86_id id = !wide(a.t) ? X86_BROADCASTSS : vl ? X86_BROADCASTSD : X86_MOVDDUP;
    vreg r = x86_value(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .a = a.r });
    f->v.at[r].full = true;
    return r;
}

/* ---- integer division ---- */

static xval divide(xfn *f, xval a, xval b, int lanes, bool mod) {
    int kind = a.t == XI64 ? (mod ? L_MOD64 : L_DIV64) : (mod ? L_MOD32 : L_DIV32);
    return lane_op(f, kind, a, b, a.t, lanes);
}

/* ---- words of the vocabulary ---- */

/* Functions of f64; of f32, in the lanes of a mask. */
static const struct {
    const char *word, *name;
} libm[] = {
    { "EXP", "exp" },       { "LOG", "log" },       { "LOG1P", "log1p" },    { "EXPM1", "expm1" }, { "SIN", "sin" },
    { "COS", "cos" },       { "TAN", "tan" },       { "ASIN", "asin" },      { "ACOS", "acos" },   { "ATAN", "atan" },
    { "SINH", "sinh" },     { "COSH", "cosh" },     { "TANH", "tanh" },      { "ASINH", "asinh" }, { "ACOSH", "acosh" },
    { "ATANH", "atanh" },   { "ERF", "erf" },       { "POW", "pow" },        { "MOD", "fmod" },    { "LIBM_SIN", "sinf" },
    { "LIBM_COS", "cosf" }, { "LIBM_TAN", "tanf" }, { "LIBM_MOD", "fmodf" }, { "EXP2", "exp2" },   { "LOG2", "log2" },
    { "ERFC", "erfc" },     { "ATAN2", "atan2" },   { "HYPOT", "hypot" },
};

static xval abs_mask(xfn *f, xtype t) {
    return (xval){ x86_const_bits(f, t, t == XF32 ? 0x7fffffffu : 0x7fffffffffffffffu), t };
}

static xval word_abs(xfn *f, xval x, int lanes) {
    if (is_float(x.t)) return x86_bin(f, '&', x, abs_mask(f, x.t), lanes);
    xval zero = { x86_const(f, x.t, 0, 0), x.t };
    return x86_sel(f, x86_bin(f, '<', x, zero, lanes), x86_bin(f, '-', zero, x, lanes), x, lanes);
}

static xval word_signed(xfn *f, xval x, xval s, int lanes) {
    xval m = abs_mask(f, x.t);
    return x86_bin(f, '|', x86_bin(f, '&', x, m, lanes), x86_bin(f, '~', m, s, lanes), lanes);
}

static xval word_round(xfn *f, xval x, int how, int lanes) {
    return made(f, x.t == XF32 ? X86_ROUNDPS : X86_ROUNDPD, x.t, x.t, lanes, x.r, 0, how);
}

static xval word_mod(xfn *f, xval x, xval y, int lanes) { /* of f64 */
    xval r = x86_call(f, "fmod", x, y, (xval){ 0 }, lanes), zero = { x86_const(f, x.t, 0, 0), x.t };
    xval differ = x86_bin(f, '^', x86_bin(f, '<', r, zero, lanes), x86_bin(f, '<', y, zero, lanes), lanes);
    xval moved = x86_sel(f, differ, x86_bin(f, '+', r, y, lanes), r, lanes);
    return x86_sel(f, x86_bin(f, '=', r, zero, lanes), word_signed(f, r, y, lanes), moved, lanes);
}

/* ---- shifts by vectors ---- */

/* One bit of the distance after the other, for instructions that shift all lanes by one constant. */
static xval shift_bitwise(xfn *f, x86_id by, xval x, xval y, int lanes) {
    xval zero = { x86_const(f, x.t, 0, 0), x.t };
    for (int bit = 1; bit < (wide(x.t) ? 64 : 32); bit *= 2) {
        xval set = x86_bin(f, '&', y, (xval){ x86_const(f, x.t, bit, bit), x.t }, lanes);
        x = x86_sel(f, x86_bin(f, '=', set, zero, lanes), x, x86_shift(f, by, x, bit, lanes), lanes);
    }
    return x;
}

/* Bits of y that shift everything out, for what takes the others only. */
static xval too_far(xfn *f, xval y, int lanes) {
    int bits = wide(y.t) ? 64 : 32;
    xval rest = x86_bin(f, '&', y, (xval){ x86_const(f, y.t, ~(bits - 1), ~(int64_t)(bits - 1)), y.t }, lanes);
    return x86_bin(f, 'n', rest, (xval){ x86_const(f, y.t, 0, 0), y.t }, lanes);
}

static xval word_left(xfn *f, xval x, xval y, int lanes) {
    if (f->level != X86_SSE) return made(f, wide(x.t) ? X86_PSLLVQ : X86_PSLLVD, x.t, x.t, lanes, x.r, y.r, 0);
    xval zero = { x86_const(f, x.t, 0, 0), x.t };
    return x86_sel(f, too_far(f, y, lanes), zero, shift_bitwise(f, wide(x.t) ? X86_PSLLQ : X86_PSLLD, x, y, lanes), lanes);
}

/* Of 64 bits there is an arithmetic shift in AVX-512 only: elsewhere that of the bits which differ from the sign. */
static xval word_right(xfn *f, xval x, xval y, int lanes) {
    bool sse = f->level == X86_SSE;
    const xop *by = &f->ops.at[f->v.at[y.r].def];
    int32_t bits32;
    if (by->op == P_CONST && !f->v.at[y.r].is_mutable && f->v.at[y.r].full && !wide(x.t)) {
        memcpy(&bits32, f->s->pool.at + by->imm, sizeof bits32);
        if (bits32 >= 0 && bits32 < 32) return bits32 ? x86_shift(f, X86_PSRAD, x, bits32, lanes) : x;
    }
    if (!sse && !wide(x.t)) return made(f, X86_PSRAVD, x.t, x.t, lanes, x.r, y.r, 0);
    if (f->level == X86_AVX512) return made(f, X86_PSRAVQ, x.t, x.t, lanes, x.r, y.r, 0);
    xval zero = { x86_const(f, x.t, 0, 0), x.t }, sign = x86_bin(f, '<', x, zero, lanes);
    sign.t = x.t; /* ones or zeros */
    xval bits = x86_bin(f, '^', x, sign, lanes);
    if (sse)
        bits =
            x86_sel(f, too_far(f, y, lanes), zero, shift_bitwise(f, wide(x.t) ? X86_PSRLQ : X86_PSRLD, bits, y, lanes), lanes);
    else
        bits = made(f, X86_PSRLVQ, x.t, x.t, lanes, bits.r, y.r, 0);
    return x86_bin(f, '^', bits, sign, lanes);
}

xval x86_word(xfn *f, const char *name, xtype t, const xval *x, int n, int lanes) {
    static const struct {
        const char *word;
        char op;
    } binary[] = { { "LT", '<' }, { "LE", 'l' }, { "EQ", '=' }, { "NE", 'n' }, { "MAXC", 'M' }, { "MINC", 'm' } };
    for (size_t i = 0; i < COUNT_OF(binary); i++)
        if (n == 2 && !strcmp(name, binary[i].word)) return x86_bin(f, binary[i].op, x[0], x[1], lanes);
    if (n == 3 && !strcmp(name, "SEL")) return x86_sel(f, x[0], x[1], x[2], lanes);
    if (n == 1 && !strcmp(name, "NOT")) return negated_mask(f, x[0], lanes);
    if (n == 1 && !strcmp(name, "ABS")) return word_abs(f, x[0], lanes);
    if (n == 1 && !strcmp(name, "BITS")) return (xval){ x[0].r, x[0].t == XF32 ? XI32 : XI64 };
    if (n == 1 && !strcmp(name, "FROM")) return (xval){ x[0].r, x[0].t == XI32 ? XF32 : XF64 };
    if (n == 1 && !strcmp(name, "FLOAT")) return x86_convert(f, x[0], x[0].t == XI32 ? XF32 : XF64, lanes);
    if (n == 2 && !strcmp(name, "SIGNED")) return word_signed(f, x[0], x[1], lanes);
    if (n == 2 && !strcmp(name, "DIV"))
        return is_float(x[0].t) ? x86_bin(f, '/', x[0], x[1], lanes) : divide(f, x[0], x[1], lanes, false);
    if (n == 2 && !strcmp(name, "MOD"))
        return is_float(x[0].t) ? word_mod(f, x[0], x[1], lanes) : divide(f, x[0], x[1], lanes, true);
    if (n == 2 && !strcmp(name, "LSHIFT")) return word_left(f, x[0], x[1], lanes);
    if (n == 2 && !strcmp(name, "RSHIFT")) return word_right(f, x[0], x[1], lanes);
    if (n == 1 && is_float(x[0].t)) {
        if (!strcmp(name, "SQRT")) return made(f, t == XF32 ? X86_SQRTPS : X86_SQRTPD, t, t, lanes, x[0].r, 0, 0);
        if (!strcmp(name, "RINT")) return word_round(f, x[0], 8, lanes);
        if (!strcmp(name, "FLOOR")) return word_round(f, x[0], 9, lanes);
        if (!strcmp(name, "CEIL")) return word_round(f, x[0], 10, lanes);
    }
    if (n == 3 && !strcmp(name, "FMA")) {
        xop fma = { .op = P_FMA, .vl = (uint8_t)x86_vl(t, lanes), .imm = t == XF64 ? 4 : 0 };
        fma.a = x[0].r, fma.b = x[1].r, fma.c = x[2].r;
        return (xval){ x86_value(f, fma), t };
    }
    if (n == 2 && !strcmp(name, "SCALED")) {
        xval one = { x86_const(f, t, 1, 1), t }, magic = { x86_const(f, t, 12583166, 0), t };
        vreg power = x86_bin(f, '-', x[1], magic, lanes).r;
        return made(f, X86_SCALEFPS, t, t, lanes, x86_bin(f, '+', x[0], one, lanes).r, power, 0);
    }
    bool some = !strncmp(name, "LIBM_", 5); /* the mask comes first */
    const xval none = { 0 }, *arg = x + some;
    for (size_t i = 0; i < COUNT_OF(libm) && (some || t == XF64); i++)
        if (!strcmp(name, libm[i].word))
            return x86_call(f, libm[i].name, arg[0], n - some > 1 ? arg[1] : none, some ? x[0] : none, lanes);
    x86_unsupported(f, "a word of an expression");
    return x[0];
}
