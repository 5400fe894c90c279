/* select.c - kernel instructions to operations over virtual registers: what c.c writes as text, in the same order of
 * operations. In: a tiled kernel. Out: the lists of xfn. What has no form here is noted in xfn.unsupported. */
#include "emit/x86/select.h"

#include <math.h>

enum { MAX_BODY = 400, FETCHED = 1 << 10 /* bytes */ };

/* ---- arithmetic ---- */

/* What r is where the low bits of *index, which all of it is computed of, are i; false: it is not computed so, or by more than
 * a few operations. */
static bool of_low_bits(const kernel *k, reg r, int steps, int i, float *out, reg *index) {
    const kins *in = &k->ins.at[r];
    float x, y;
    if (in->op == K_CONST) *out = (float)(dtype_is_float((tn_dtype)in->dtype) ? in->imm : (double)in->imm_int);
    if (in->op == K_CONST || steps == 0) return in->op == K_CONST && fabsf(*out) < 0x1p20F;
    if (in->op == K_CAST) return in->dtype == TN_F32 && in->src == TN_I32 && of_low_bits(k, in->a, steps - 1, i, out, index);
    if (in->op != K_ALU || (in->dtype != TN_F32 && in->dtype != TN_I32) || in->src != in->dtype) return false;
    if (in->alu == OP_and) {
        const kins *b = &k->ins.at[in->b];
        if (b->op != K_CONST || b->imm_int < 0 || b->imm_int > 15 || (*index && *index != in->a)) return false;
        *index = in->a, *out = (float)(i & b->imm_int);
        return true;
    }
    if (in->alu != OP_add && in->alu != OP_sub && in->alu != OP_mul) return false;
    if (!of_low_bits(k, in->a, steps - 1, i, &x, index) || !of_low_bits(k, in->b, steps - 1, i, &y, index)) return false;
    *out = in->alu == OP_add ? x + y : in->alu == OP_sub ? x - y : x * y;
    if (in->dtype == TN_I32) *out += 0; /* which has no -0 */
    return in->dtype == TN_F32 || fabsf(*out) < 0x1p20F;
}

/* A number that is computed of 4 bits is looked up: they choose a lane of a vector. */
static bool sel_table(selector *s, reg r) {
    enum { STEPS = 4 };
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    float table[16];
    reg index = 0;
    if (f->level != X86_AVX512 || in->dtype != TN_F32 || s->vec != 16 || in->lanes % 16) return false;
    for (int i = 0; i < 16; i++)
        if (!of_low_bits(s->k, r, STEPS, i, &table[i], &index) || !index || s->k->ins.at[index].lanes != in->lanes)
            return false;
    kval out = sel_shaped(s, XF32, in->lanes);
    vreg t = x86_const_at(f, x86_pool(f->s, table, sizeof table), false, 2);
    for (int c = 0; c < out.n; c++)
        out.r[c] = x86_value(f, (xop){ .op = X86_PERMPS, .vl = 2, .a = sel_operand(s, index, in->lanes, c).r, .b = t });
    s->at[r] = out;
    return true;
}

static void sel_alu(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    if (sel_table(s, r)) return;
    op_code op = (op_code)in->alu;
    int arity = op_get(op)->arity;
    reg regs[3] = { in->a, in->b, in->c };
    kval out = sel_shaped(s, XI32, in->lanes);
    for (int c = 0; c < out.n; c++) {
        xval x[3] = { { 0 } };
        for (int i = 0; i < arity; i++) x[i] = sel_operand(s, regs[i], in->lanes, c);
        xval v = x86_copied(s->f, sel_combine(s, op, (tn_dtype)in->src, out.cl, regs, x));
        out.t = (uint8_t)v.t, out.r[c] = v.r;
    }
    s->at[r] = out;
}

/* A register's x as a narrow dtype would have it. */
static const char *wrapped(tn_dtype t) {
    static const char *const how[TN_N_DTYPES] = { [TN_F16] = "FROM_HALF(TO_HALF(x))",
                                                  [TN_BF16] = "FROM_BF16(TO_BF16(x))",
                                                  [TN_F8E4M3] = "FROM_F8E4M3(TO_F8E4M3(x))",
                                                  [TN_F8E5M2] = "FROM_F8E5M2(TO_F8E5M2(x))",
                                                  [TN_I8] = "WRAP_I8(x)",
                                                  [TN_U8] = "WRAP_U8(x)",
                                                  [TN_I16] = "WRAP_I16(x)",
                                                  [TN_U16] = "WRAP_U16(x)" };
    return how[t];
}

/* Float to integer: truncates and saturates, NaN gives 0. */
static xval saturate(xfn *f, xval x, tn_dtype to, int n) {
    int64_t lo = dtype_min_int(to), hi = dtype_max_int(to);
    double below = (double)(hi / 2 + 1) * 2; /* hi + 1, which is a power of two */
    xtype it = to == TN_I64 ? XI64 : XI32;
    xval low = x86_bin(f, '<', x, x86_const_val(f, x.t, (double)lo, 0), n);
    xval high = x86_bin(f, 'l', x86_const_val(f, x.t, below, 0), x, n), nan = x86_bin(f, 'n', x, x, n);
    xval bad = x86_bin(f, '|', x86_bin(f, '|', low, high, n), nan, n);
    xval r = x86_convert(f, x86_sel(f, bad, x86_const_val(f, x.t, 0, 0), x, n), it, n);
    r = x86_sel(f, low, x86_const_val(f, it, 0, lo), r, n);
    return x86_sel(f, high, x86_const_val(f, it, 0, hi), r, n);
}

/* Whether a value is NaN or one that integer type t has when truncated: a min and a max of constants made it. */
static bool is_clamped(const kernel *k, reg r, tn_dtype t) {
    bool below = false, above = false;
    for (int i = 0; i < 2; i++) {
        const kins *in = &k->ins.at[r];
        if (in->op != K_ALU || (in->alu != OP_min && in->alu != OP_max)) return false;
        bool second = k->ins.at[in->b].op == K_CONST;
        const kins *bound = &k->ins.at[second ? in->b : in->a];
        if (bound->op != K_CONST || bound->imm < (double)dtype_min_int(t) || bound->imm > (double)dtype_max_int(t))
            return false;
        *(in->alu == OP_min ? &below : &above) = true;
        r = second ? in->a : in->b;
    }
    return below && above;
}

static xval cast(xfn *f, tn_dtype to, tn_dtype from, xval x, int n, bool clamped) {
    if (to == TN_BOOL) return from == TN_BOOL ? x : x86_bin(f, 'n', x, x86_const_val(f, x.t, 0, 0), n);
    if (clamped && from == TN_F32 && dtype_is_narrow_int(to)) /* of NaN the instruction makes a number whose low bits are 0 */
        return x86_expr(f, wrapped(to), XI32, (xval[3]){ x86_convert(f, x, XI32, n) }, n);
    if (dtype_is_float(from) && dtype_is_int(to)) return saturate(f, x, to, n);
    if (from == TN_BOOL) x = x86_bin(f, '-', x86_const_val(f, XI32, 0, 0), x86_mask32(f, x, n), n);
    x = x86_convert(f, x, xt(to), n);
    return dtype_is_narrow_int(to) ? x86_expr(f, wrapped(to), XI32, (xval[3]){ x }, n) : x;
}

static xval wrap(xfn *f, tn_dtype t, xval x, int n) {
    xval args[3] = { x };
    if (t == TN_F16 && f->level != X86_SSE) {
        xop there = { .op = X86_CVTPS2PH, .vl = (uint8_t)x86_vl(XF32, n), .a = x86_half_nan(f, x, n).r };
        return (xval){ x86_value(f, (xop){ .op = X86_CVTPH2PS, .vl = there.vl, .a = x86_value(f, there) }), XF32 };
    }
    return x86_expr(f, wrapped(t), xt(t), args, n);
}

static void sel_convert(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    if (in->op == K_CAST && sel_table(s, r)) return;
    kval out = sel_shaped(s, XI32, in->lanes);
    bool clamped = in->op == K_CAST && is_clamped(s->k, in->a, (tn_dtype)in->dtype);
    int zero = 0;
    reg again = sel_find_steps_again(s, in, &zero), counted = again ? again : sel_find_steps(s, in);
    for (int c = 0; c < out.n; c++) {
        xval x = sel_operand(s, counted ? counted : in->a, in->lanes, c);
        xval v = again                 ? sel_quantise_again(s, x, zero, out.cl)
                 : counted             ? sel_quantise(s, x, out.cl)
                 : in->op == K_CAST    ? cast(s->f, (tn_dtype)in->dtype, (tn_dtype)in->src, x, out.cl, clamped)
                 : in->op == K_BITCAST ? (xval){ x.r, xt((tn_dtype)in->dtype) }
                                       : wrap(s->f, (tn_dtype)in->src, x, out.cl);
        v = x86_copied(s->f, v);
        out.t = (uint8_t)v.t, out.r[c] = v.r;
    }
    s->at[r] = out;
}

/* The register gets the value: the operation that made it writes there, when it is new. */
static void assign(xfn *f, vreg acc, xval v, int n_before) {
    int32_t def = f->v.at[v.r].def;
    bool last = !f->v.at[v.r].is_mutable && def >= n_before && def == f->ops.n - 1 && f->seq.at[f->seq.n - 1] == def;
    xop *o = &f->ops.at[def];
    if (last && (f->v.at[o->a].is_mutable || f->v.at[o->b].is_mutable || f->v.at[o->c].is_mutable))
        o->dst = acc; /* not numbered */
    else
        x86_add(f, (xop){ .op = P_MOV, .vl = f->v.at[acc].vl, .dst = acc, .a = v.r });
}

static void sel_acc(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    xtype t = xt((tn_dtype)in->dtype);
    kval out = sel_shaped(s, t, in->lanes);
    int32_t pool = x86_pool_of(f, t, x86_value_bits(t, in->imm, in->imm_int));
    for (int c = 0; c < out.n; c++) {
        int vl = x86_vl(t, out.cl);
        out.r[c] = x86_new(f, vl);
        f->v.at[out.r[c]].is_mutable = true;
        x86_add(f, (xop){ .op = P_CONST, .vl = (uint8_t)vl, .dst = out.r[c], .imm = pool });
    }
    s->at[r] = out;
}

/* The number in the high half of a word of two bf16, or the low one; the rest of the word is below its last place. */
static xval bf16_part(xfn *f, xval word, bool high, int n) {
    xval x = high ? x86_bin(f, '&', word, x86_const_val(f, XI32, 0, -65536), n) : x86_shift(f, X86_PSLLD, word, 16, n);
    return (xval){ x.r, XF32 };
}

/* acc + a * b for all parts of words. */
static void sel_update_packed(selector *s, const kins *in) {
    xfn *f = s->f;
    const kval *acc = &s->at[in->c];
    x86_id id = in->dtype == TN_F32 ? X86_DPBF16PS : in->packed == 4 ? X86_DPBUSD : X86_DPWSSD;
    bool has = f->packed >= (id == X86_DPBF16PS ? X86_AVX512_BF16 : X86_AVX512_VNNI);
    if (!has && in->packed == 4) x86_unsupported(f, "sums of four products");
    for (int c = 0; c < acc->n; c++) {
        xval a = sel_operand(s, in->a, in->lanes, c), b = sel_operand(s, in->b, in->lanes, c);
        xval old = { acc->r[c], (xtype)acc->t };
        uint8_t vl = (uint8_t)x86_vl(old.t, acc->cl);
        if (has) {
            x86_add(f, (xop){ .op = P_DOT, .vl = vl, .imm = (int32_t)id, .dst = old.r, .a = a.r, .b = b.r, .c = old.r });
        } else if (id == X86_DPWSSD) {
            xval p = { x86_value(f, (xop){ .op = X86_PMADDWD, .vl = vl, .a = a.r, .b = b.r }), XI32 };
            int n_before = f->ops.n;
            assign(f, old.r, x86_bin(f, '+', old, p, acc->cl), n_before);
        }
        for (int p = 1; p >= 0 && !has && id == X86_DPBF16PS; p--) {
            xval x = bf16_part(f, a, p, acc->cl), y = bf16_part(f, b, p, acc->cl);
            if (f->level != X86_SSE) {
                x86_add(f, (xop){ .op = P_FMA, .vl = vl, .dst = old.r, .a = x.r, .b = y.r, .c = old.r });
                continue;
            }
            xval product = x86_bin(f, '*', x, y, acc->cl); /* exact */
            int n_before = f->ops.n;
            assign(f, old.r, x86_bin(f, '+', old, product, acc->cl), n_before);
        }
    }
}

static void sel_update(selector *s, const kins *in) {
    xfn *f = s->f;
    if (in->packed) {
        sel_update_packed(s, in);
        return;
    }
    const kval *acc = &s->at[in->c];
    tn_dtype t = (tn_dtype)in->dtype;
    for (int c = 0; c < acc->n; c++) {
        int n_before = f->ops.n;
        xval old = { acc->r[c], (xtype)acc->t }, v;
        if (in->alu == OP_dot && dtype_is_float(t) && f->level != X86_SSE) {
            vreg a = sel_operand(s, in->a, in->lanes, c).r, b = sel_operand(s, in->b, in->lanes, c).r;
            x86_add(f, (xop){ .op = P_FMA,
                              .vl = (uint8_t)x86_vl(old.t, acc->cl),
                              .imm = t == TN_F64 ? 4 : 0,
                              .dst = old.r,
                              .a = a,
                              .b = b,
                              .c = old.r });
            continue;
        }
        if ((in->alu == OP_max || in->alu == OP_min) && dtype_is_float(t) && f->level == X86_AVX512) {
            static const uint16_t ids[2][2] = { { X86_MAXPS_K, X86_MINPS_K }, { X86_MAXPD_K, X86_MINPD_K } };
            vreg x = sel_operand(s, in->a, in->lanes, c).r;
            x86_add(f, (xop){ .op = ids[t == TN_F64][in->alu == OP_min],
                              .vl = (uint8_t)x86_vl(old.t, acc->cl),
                              .dst = old.r,
                              .a = old.r,
                              .b = x });
            continue;
        }
        if (in->alu == OP_NIL) {
            v = sel_operand(s, in->a, in->lanes, c);
        } else if (in->alu == OP_dot) {
            xval p = x86_bin(f, '*', sel_operand(s, in->a, in->lanes, c), sel_operand(s, in->b, in->lanes, c), acc->cl);
            v = x86_bin(f, '+', old, p, acc->cl);
        } else {
            xval x[3] = { old, sel_operand(s, in->a, in->lanes, c) };
            v = sel_combine(s, (op_code)in->alu, t, acc->cl, (const reg[]){ in->c, in->a }, x);
        }
        if (v.r != old.r) assign(f, old.r, v, n_before);
    }
}

static void sel_arg_update(selector *s, const kins *in) {
    xfn *f = s->f;
    const kval *best = &s->at[in->c], *index = &s->at[in->b];
    tn_dtype t = (tn_dtype)in->dtype;
    int n = best->cl;
    xmem e = x86_address(f, 0, in->idx, 1);
    vreg g = x86_new(f, 0);
    x86_add(f, (xop){ .op = P_FROMG, .type = XI64, .dst = g, .has_mem = true, .mem = e });
    xval at = { in->lanes > 1 ? x86_broadcast(f, (xval){ g, XI64 }) : g, XI64 };
    for (int c = 0; c < best->n; c++) {
        xval x = sel_operand(s, in->a, in->lanes, c), b = { best->r[c], (xtype)best->t }, i = { index->r[c], XI64 };
        if (x.t == XM64) x = x86_mask32(f, x, n);
        xval first = x86_bin(f, '=', i, x86_const_val(f, XI64, 0, -1), n);
        xval better = x86_bin(f, '|', first, in->alu == OP_argmax ? x86_bin(f, '<', b, x, n) : x86_bin(f, '<', x, b, n), n);
        if (dtype_is_float(t)) {
            xval has_nan = x86_bin(f, '~', first, x86_bin(f, 'n', b, b, n), n);
            better = x86_bin(f, '~', has_nan, x86_bin(f, '|', better, x86_bin(f, 'n', x, x, n), n), n);
        }
        xval new_best = x86_sel(f, better, x, b, n), new_index = x86_sel(f, better, at, i, n);
        assign(f, index->r[c], new_index, f->ops.n);
        assign(f, best->r[c], new_best, f->ops.n);
    }
}

static void sel_hsum(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    const kval *v = &s->at[in->a];
    xval part[MAX_CHUNKS];
    int lanes = (int)in->combined, n = lanes / v->cl, cl = v->cl;
    if (v->lanes != lanes) x86_unsupported(f, "a sum of some of the lanes");
    for (int i = 0; i < v->n; i++) {
        part[i] = (xval){ v->r[i], (xtype)v->t };
        if (part[i].t == XM64) part[i] = x86_mask32(f, part[i], cl);
    }
    for (int half = n / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] = sel_combine(s, (op_code)in->alu, (tn_dtype)in->dtype, cl, NULL,
                                  (const xval[]){ part[i], part[i + half], { 0 } });
    for (int half = cl / 2; half >= 1; half /= 2) {
        xval high = x86_low(f, part[0], half, half);
        part[0] = sel_combine(s, (op_code)in->alu, (tn_dtype)in->dtype, half, NULL, (const xval[]){ part[0], high, { 0 } });
    }
    kval out = sel_shaped(s, part[0].t, 1);
    out.r[0] = x86_copied(f, part[0]).r;
    s->at[r] = out;
}

static void sel_lanes(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    const kval *v = &s->at[in->a];
    int first = (int)in->first_lane;
    kval out = sel_shaped(s, (xtype)v->t, in->lanes);
    for (int c = 0; c < out.n; c++) {
        int at = first + c * out.cl;
        xval x = x86_low(s->f, (xval){ v->r[at / v->cl], (xtype)v->t }, at % v->cl, out.cl);
        out.r[c] = x86_copied(s->f, x).r;
    }
    s->at[r] = out;
}

/* Pieces smaller than 16 bytes are interleaved inside 16 bytes; pieces of 16 bytes are the halves of a register, or registers.
 */
static void sel_zip(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    const kval *a = &s->at[in->a], *b = &s->at[in->b];
    int size = (int)dtype_size((tn_dtype)in->dtype), piece = (int)in->piece * size, high = in->mode;
    kval out = sel_shaped(s, (xtype)a->t, in->lanes);
    if (a->t == XM64 || a->t != b->t || a->n != out.n || b->n != out.n || piece > 16 ||
        (piece == 16 && in->lanes * size != 32) || out.cl * size < 16) {
        x86_unsupported(s->f, "interleaved lanes of this shape");
        return;
    }
    for (int c = 0; c < out.n; c++) {
        x86_id small = piece == 4 ? (high ? X86_UNPCKHPS : X86_UNPCKLPS) : (high ? X86_UNPCKHPD : X86_UNPCKLPD);
        int vl = x86_vl((xtype)a->t, out.cl);
        if (piece == 16 && out.n == 2) {
            out.r[c] = x86_copied(s->f, (xval){ (c ? b : a)->r[high], (xtype)a->t }).r;
            continue;
        }
        xop op = { .op = (uint16_t)small, .vl = (uint8_t)vl, .a = a->r[c], .b = b->r[c] };
        if (piece == 16) {
            op.op = s->f->level == X86_AVX512 ? X86_SHUFF32X4 : X86_PERM2F128;
            op.imm = s->f->level == X86_AVX512 ? 3 * high : high ? 0x31 : 0x20;
        }
        out.r[c] = x86_value(s->f, op);
    }
    s->at[r] = out;
}

/* ---- indices and random numbers ---- */

static xval index_value(selector *s, affine idx, xtype t) { /* of one lane */
    xfn *f = s->f;
    xmem e = x86_address(f, 0, idx, 1);
    if (!e.base) return x86_const_val(f, t, (double)e.disp, e.disp);
    vreg g = x86_new(f, 0);
    x86_add(f, (xop){ .op = P_FROMG, .type = (uint8_t)t, .dst = g, .has_mem = true, .mem = e });
    return (xval){ g, t };
}

static void sel_index(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xtype t = xt((tn_dtype)in->dtype);
    kval out = sel_shaped(s, t, in->lanes);
    xval one = index_value(s, in->idx, t);
    for (int c = 0; c < out.n; c++) {
        out.r[c] = one.r;
        if (in->lanes == 1) break;
        xval steps = { x86_const_steps(s->f, t, out.cl, c * out.cl, in->lane_stride, 0), t };
        out.r[c] = x86_bin(s->f, '+', (xval){ x86_broadcast(s->f, one), t }, steps, out.cl).r;
    }
    s->at[r] = out;
}

/* Philox4x32-10 in 64-bit lanes, whose upper halves may hold anything. */
static xval philox(xfn *f, xval i, xval counter, int64_t stream, int n) {
    xval m0 = x86_const_val(f, XI64, 0, 0xD2511F53), m1 = x86_const_val(f, XI64, 0, 0xCD9E8D57);
    xval w0 = x86_const_val(f, XI64, 0, 0x9E3779B9), w1 = x86_const_val(f, XI64, 0, 0xBB67AE85);
    xval c0 = i, c1 = x86_shift(f, X86_PSRLQ, i, 32, n), c2 = x86_const_val(f, XI64, 0, stream);
    xval c3 = x86_const_val(f, XI64, 0, (int64_t)((uint64_t)stream >> 32));
    xval k0 = counter, k1 = x86_shift(f, X86_PSRLQ, counter, 32, n);
    uint8_t vl = (uint8_t)x86_vl(XI64, n);
    for (int round = 0; round < 10; round++) {
        xval a = { x86_value(f, (xop){ .op = X86_PMULUDQ, .vl = vl, .a = c0.r, .b = m0.r }), XI64 };
        xval b = { x86_value(f, (xop){ .op = X86_PMULUDQ, .vl = vl, .a = c2.r, .b = m1.r }), XI64 };
        c0 = x86_bin(f, '^', x86_bin(f, '^', x86_shift(f, X86_PSRLQ, b, 32, n), c1, n), k0, n);
        c2 = x86_bin(f, '^', x86_bin(f, '^', x86_shift(f, X86_PSRLQ, a, 32, n), c3, n), k1, n);
        c1 = b, c3 = a;
        k0 = x86_bin(f, '+', k0, w0, n), k1 = x86_bin(f, '+', k1, w1, n);
    }
    return (xval){ x86_shift(f, X86_PSRLD, (xval){ c0.r, XI64 }, 8, n).r, XI64 };
}

static void sel_random(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    kval out = sel_shaped(s, XF32, in->lanes);
    xval one = index_value(s, in->idx, XI64), counter = sel_operand(s, in->a, 1, 0);
    for (int c = 0; c < out.n; c++) {
        int part = out.cl < f->vb / 8 ? out.cl : f->vb / 8;
        xval word[2];
        for (int p = 0; p < out.cl / part; p++) {
            xval i = one;
            if (in->lanes > 1) {
                xval steps = { x86_const_steps(f, XI64, part, c * out.cl + p * part, in->lane_stride, 0), XI64 };
                i = x86_bin(f, '+', (xval){ x86_broadcast(f, one), XI64 }, steps, part);
            }
            xval k = in->lanes > 1 ? (xval){ x86_broadcast(f, counter), XI64 } : counter;
            word[p] = x86_convert(f, philox(f, i, k, in->stream, part), XI32, part);
        }
        if (out.cl > part)
            word[0].r = x86_value(f, (xop){ .op = f->vb == 64   ? X86_INSERTF64X4
                                                  : f->vb == 32 ? X86_INSERTF128
                                                                : X86_UNPCKLPD,
                                            .vl = (uint8_t)x86_full_vl(f),
                                            .a = word[0].r,
                                            .b = word[1].r,
                                            .imm = f->vb > 16 });
        xval v = x86_convert(f, word[0], XF32, out.cl);
        out.r[c] = x86_bin(f, '*', v, x86_const_val(f, XF32, 0x1p-24, 0), out.cl).r;
    }
    s->at[r] = out;
}

/* ---- loops ---- */

static void sel_range(selector *s, reg from, reg to);

static int open_loop(xfn *f, xloop l) {
    l.parent = f->open.n ? f->open.at[f->open.n - 1] : -1;
    VEC_PUSH(f->keep, &f->loops, l);
    VEC_PUSH(f->keep, &f->open, f->loops.n - 1);
    return f->loops.n - 1;
}

static bool feeds_contraction(const kernel *k, reg r) {
    int n = 0;
    for (reg i = r + 1; i < (reg)k->ins.n && k->ins.at[i].op != K_END; i++)
        n += k->ins.at[i].op == K_UPD && k->ins.at[i].alu == OP_dot && (k->ins.at[i].a == r || k->ins.at[i].b == r);
    return n > 1;
}

/* Whether what is left at the sides of a kernel's tiles is done here: up to a quarter of its work, which is not worth as much
 * code. */
static bool is_side(const selector *s, int64_t trips, int sums) {
    double flops = 2.0 * (double)trips * sums;
    for (int i = 0; i < s->f->open.n; i++) flops *= (double)s->f->loops.at[s->f->open.at[i]].trips;
    return 4 * flops <= (double)s->k->flops;
}

/* Bytes by which loads of vectors move on in one iteration, the most of them. */
static int64_t stride_of(const kernel *k, reg loop) {
    int64_t most = 0;
    for (reg r = loop + 1; k->ins.at[r].op != K_END; r++) {
        const kins *in = &k->ins.at[r];
        int64_t by = in->op == K_LOAD && in->lanes > 1 ? affine_coef(in->idx, k->ins.at[loop].var) : 0;
        if (!ext_is_lit(by)) continue; /* as a run says */
        by = (by < 0 ? -by : by) * (int64_t)dtype_size((tn_dtype)in->src) * k->ins.at[loop].step;
        if (by > most) most = by;
    }
    return most;
}

/* Copies of a contraction's body in one iteration; see contraction_unroll in clike.c. Loads that move on by more than 1 KB an
 * iteration are not fetched ahead by processors that follow each load of the text: one row of 256 x 256 in panels of 256 bytes
 * took 2.05 us on a Zen 5 with 8 copies, 1.05 with 4. */
static int unroll_of(const selector *s, reg loop, int64_t trips) {
    const kernel *k = s->k;
    bool tile = false, dot = false;
    int updates = 0, sums = 0;
    reg r = loop + 1;
    for (; k->ins.at[r].op != K_END; r++) {
        if (k->ins.at[r].op == K_LOOP) return 1;
        tile |= k->ins.at[r].op == K_LOAD && feeds_contraction(k, r);
        dot |= k->ins.at[r].op == K_UPD && k->ins.at[r].alu == OP_dot;
        updates += k->ins.at[r].op == K_UPD;
        sums += k->ins.at[r].op == K_UPD ? k->ins.at[r].lanes : 0;
    }
    if (dot && trips <= 8 && (int64_t)(r - loop) * trips <= MAX_BODY) return (int)trips;
    int n = !tile || trips < 16 ? 1 : trips < 64 || updates > 6 ? 4 : 8; /* a loop's end among so many is lost */
    while (n > 1 && (int)(r - loop) * n > MAX_BODY) n /= 2;
    if (n > 4 && n * stride_of(k, loop) > FETCHED) n = 4;
    return n > 2 && is_side(s, trips, sums) ? 2 : n;
}

static void fixed_iteration(selector *s, const kins *in, int64_t at, reg from, reg to) {
    open_loop(s->f, (xloop){ .var = in->var, .lo = at, .step = 1, .trips = 1, .fixed = true });
    sel_range(s, from, to);
    s->f->open.n--;
}

static void sel_loop(selector *s, reg from, reg to);

/* Skipped unless its condition, a comparison, gave -1. */
static void sel_loop_if(selector *s, reg from, reg to) {
    xfn *f = s->f;
    vreg cond = sel_operand(s, s->k->ins.at[from].a, 1, 0).r;
    greg at = x86_dynamic(f, cond, (xdyn){ .n = 1, .stride = 1 });
    VEC_PUSH(f->keep, &f->bounds, ((xbound){ 0, 1 }));
    x86_add(f, (xop){ .op = P_IF, .has_mem = true, .mem = { .base = at, .disp = 1 }, .extra = f->bounds.n - 1 });
    x86_open_scope(f);
    sel_loop(s, from, to);
    x86_close_ifs(f, 1);
}

/* How often the loop runs is known when it is reached. */
static void sel_counted(selector *s, reg from, reg to) {
    enum { GUESS = 64 };
    const kins *in = &s->k->ins.at[from];
    xfn *f = s->f;
    bool last = in->par == PAR_LAST;
    if (in->par == PAR_THREADS && in->lo != 0) x86_unsupported(f, "the first iteration of a loop with bounds of the run");
    if (last) {
        x86_add(f, (xop){ .op = P_IFLAST });
        x86_open_scope(f);
    }
    int l = open_loop(f, (xloop){ .var = in->var,
                                  .step = in->step,
                                  .trips = GUESS,
                                  .par = last ? PAR_SERIAL : in->par,
                                  .counted = true,
                                  .first_value = in->lo,
                                  .end_value = in->hi });
    f->loops.at[l].count = x86_greg(f, (xgreg){ .kind = G_COUNT, .loop = l });
    x86_add(f, (xop){ .op = P_LOOP, .loop = l });
    x86_open_scope(f);
    sel_range(s, from + 1, to);
    x86_add(f, (xop){ .op = P_END, .loop = l });
    x86_close_scope(f);
    f->open.n--;
    if (last) x86_close_ifs(f, 1);
}

static void sel_loop(selector *s, reg from, reg to) { /* K_LOOP at from, its K_END at to */
    const kins *in = &s->k->ins.at[from];
    xfn *f = s->f;
    if (!ext_is_lit(in->lo) || !ext_is_lit(in->hi)) {
        sel_counted(s, from, to);
        return;
    }
    if (in->hi <= in->lo) return;
    int64_t trips = (in->hi - in->lo + in->step - 1) / in->step;
    if (in->par == PAR_LAST) {
        x86_add(f, (xop){ .op = P_IFLAST });
        x86_open_scope(f);
        fixed_iteration(s, in, in->lo, from + 1, to);
        x86_close_ifs(f, 1);
        return;
    }
    if (!in->par && trips == 1) {
        fixed_iteration(s, in, in->lo, from + 1, to);
        return;
    }
    int unroll = in->par ? 1 : unroll_of(s, from, trips);
    if (unroll > 1 && unroll == trips) {
        for (int64_t t = 0; t < trips; t++) fixed_iteration(s, in, in->lo + t * in->step, from + 1, to);
        return;
    }
    int l = open_loop(f, (xloop){ .var = in->var, .lo = in->lo, .step = in->step, .trips = trips / unroll, .par = in->par });
    f->loops.at[l].count = x86_greg(f, (xgreg){ .kind = G_COUNT, .loop = l });
    x86_add(f, (xop){ .op = P_LOOP, .loop = l });
    x86_open_scope(f);
    for (int u = 0; u < unroll; u++) {
        f->loops.at[l].offset = u;
        sel_range(s, from + 1, to);
    }
    for (int i = 0; i < f->loops.at[l].ivs.n; i++) f->g.at[f->loops.at[l].ivs.at[i]].coef *= unroll;
    x86_add(f, (xop){ .op = P_END, .loop = l });
    x86_close_scope(f);
    f->open.n--;
    for (int64_t t = trips / unroll * unroll; t < trips; t++) fixed_iteration(s, in, in->lo + t * in->step, from + 1, to);
}

static void sel_const(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xtype t = xt((tn_dtype)in->dtype);
    kval out = sel_shaped(s, t, in->lanes);
    for (int c = 0; c < out.n; c++) out.r[c] = x86_const(s->f, t, in->imm, in->imm_int);
    s->at[r] = out;
}

static void sel_one(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    s->f->expr++;
    switch (in->op) {
    case K_CONST:
        sel_const(s, r);
        break;
    case K_INDEX:
        sel_index(s, r);
        break;
    case K_LOAD:
        sel_load(s, r);
        break;
    case K_STORE:
        sel_store(s, in);
        break;
    case K_PREFETCH:
        sel_prefetch(s, in);
        break;
    case K_ALU:
        sel_alu(s, r);
        break;
    case K_CAST:
    case K_BITCAST:
    case K_WRAP:
        sel_convert(s, r);
        break;
    case K_RANDOM:
        sel_random(s, r);
        break;
    case K_ACC:
        sel_acc(s, r);
        break;
    case K_UPD:
        sel_update(s, in);
        break;
    case K_ARGUPD:
        sel_arg_update(s, in);
        break;
    case K_LANE_REDUCE:
        sel_hsum(s, r);
        break;
    case K_LANES:
        sel_lanes(s, r);
        break;
    case K_ZIP:
        sel_zip(s, r);
        break;
    case K_SCATTER:
        sel_scatter(s, in);
        break;
    default:
        x86_unsupported(s->f, "an op code without a machine form");
    }
    if (in->lanes == 1 && s->at[r].t == XM64) s->at[r].t = XI32; /* its lower half, which wider masks start from */
    if (in->lanes == 1 && s->bcast[r] && s->at[r].n == 1 && !s->f->v.at[s->at[r].r[0]].is_mutable && !s->f->unsupported)
        x86_broadcast(s->f, (xval){ s->at[r].r[0], (xtype)s->at[r].t }); /* here, not in the loops that use it */
    if (s->f->unsupported && !s->f->unsupported_at) s->f->unsupported_at = r;
}

static void sel_range(selector *s, reg from, reg to) {
    for (reg r = from; r < to && !s->f->unsupported; r++) {
        if (s->k->ins.at[r].op == K_LOOP) {
            reg end = (reg)kernel_loop_end(s->k, (int)r);
            (s->k->ins.at[r].a ? sel_loop_if : sel_loop)(s, r, end);
            r = end;
        } else {
            sel_one(s, r);
        }
    }
}

static void survey(selector *s) {
    const kernel *k = s->k;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        const kins *in = &k->ins.at[r];
        bool memory = in->op == K_STORE || in->op == K_SCATTER;
        if (in->op == K_LOOP || in->op == K_END) continue;
        if (in->lanes > 1) {
            s->wide8 |= dtype_size((tn_dtype)in->dtype) == 8 || in->op == K_ARGUPD;
            if (!memory && (in->op == K_ALU || in->op == K_CAST || in->op == K_BITCAST || in->op == K_LOAD))
                s->wide8 |= dtype_size((tn_dtype)in->src) == 8;
            const reg ops[3] = { in->a, in->b, in->c };
            for (int i = 0; i < 3 && in->op != K_RANDOM; i++)
                if (ops[i] && k->ins.at[ops[i]].lanes == 1) s->bcast[ops[i]] = true;
        }
        if (in->op == K_RANDOM && in->lanes > 1) s->bcast[in->a] = true;
    }
    s->vec = s->f->vb / (s->wide8 ? 8 : 4);
}

static void place_locals(selector *s) {
    s->local = ARENA_ARRAY(s->f->a, int64_t, s->k->bufs.n + 1);
    for (int b = 0; b < s->k->bufs.n; b++) {
        const kbuf *kb = &s->k->bufs.at[b];
        s->local[b] = -1;
        if (kb->kind != KB_LOCAL) continue;
        s->local[b] = s->f->frame;
        int64_t elems = ext_hi(s->k->params, kb->elems);
        s->f->frame += (elems * (int64_t)dtype_size((tn_dtype)kb->dtype) + 63) & ~(int64_t)63;
    }
}

void x86_select(xfn *f) {
    const kernel *k = f->k;
    size_t n = (size_t)k->ins.n + 1;
    selector s = { .f = f, .k = k, .at = ARENA_ARRAY(f->a, kval, n), .bcast = ARENA_ARRAY(f->a, bool, n) };
    f->frame = X_FRAME;
    place_locals(&s);
    f->pre_of = -1;
    VEC_PUSH(f->keep, &f->v, (xvreg){ 0 });
    VEC_PUSH(f->keep, &f->g, (xgreg){ 0 });
    VEC_PUSH(f->keep, &f->ops, (xop){ .dead = true });
    survey(&s);
    open_loop(f, (xloop){ .var = -1, .trips = 1, .fixed = true });
    sel_range(&s, 1, (reg)k->ins.n);
}
