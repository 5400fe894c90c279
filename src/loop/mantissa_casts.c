/* mantissa_casts.c - whole numbers of few bits become floats by their bits: those of n, behind 2^23's, are the float 2^23 + n,
 * less 2^23. GPUs convert at a half or less of the rate of such instructions. In and out: scalar form, or that of a GPU; no bit
 * changes.
 *
 * What is subtracted next is subtracted at once: all of it is exact.
 *
 * Of vectors of bytes, in the form of a GPU, a second time: bits stay where the word that was loaded has them, which saves
 * their way to the lowest ones. They are 2^b times as much then, b being where they begin in the half of the word; a
 * multiply-add takes that back with what is subtracted, exactly. */
#include "loop/byte_bits.h"
#include "loop/loop.h"
#include "loop/schedule.h"

#define OFFSET 0x1p23
enum { OFFSET_BITS = 0x4b000000, MOST = 1 << 22 };

/* A cast to f32 of a number in 0 .. MOST - 1. */
static bool takes_few_bits(const kernel *k, const kins *cast) {
    const kins *masked = &k->ins.at[cast->a], *mask = &k->ins.at[masked->b];
    return cast->op == K_CAST && dtype_reg((tn_dtype)cast->src) == TN_I32 && cast->dtype == TN_F32 && masked->op == K_ALU &&
           masked->alu == OP_and && mask->op == K_CONST && mask->imm_int > 0 && mask->imm_int < MOST;
}

/* Whether a constant whole number, *out, is subtracted, so small that the difference is exact. */
static bool is_difference(const kernel *k, const kins *in, double *out) {
    const kins *b = &k->ins.at[in->b];
    if (in->op != K_ALU || in->alu != OP_sub || in->dtype != TN_F32 || b->op != K_CONST) return false;
    *out = b->imm;
    return b->imm > -MOST && b->imm < MOST && b->imm == (double)(int64_t)b->imm;
}

static const kins *operand(const kernel *k, reg r, kop op, op_code alu) {
    const kins *in = &k->ins.at[r];
    return in->op == op && (op != K_ALU || in->alu == alu) ? in : NULL;
}

bool byte_bits_find(const kernel *k, const kins *in, byte_bits *out) {
    const kins *bits, *both, *masked, *shifted, *whole = operand(k, in->a, K_LOAD, OP_NIL);
    if (in->op == K_CAST && in->dtype == TN_F32 && in->lanes >= 4 && whole && whole->lanes == in->lanes &&
        (whole->src == TN_I8 || whole->src == TN_U8)) {
        int64_t sign = whole->src == TN_I8 ? 128 : 0;
        *out = (byte_bits){ .load = in->a, .mask = 255, .flip = sign, .less = (double)sign };
        return true;
    }
    if (in->op != K_ALU || in->alu != OP_sub || in->lanes < 4 || k->ins.at[in->b].op != K_CONST ||
        !(bits = operand(k, in->a, K_BITCAST, OP_NIL)))
        return false;
    if (!(both = operand(k, bits->a, K_ALU, OP_or)) || k->ins.at[both->b].imm_int != OFFSET_BITS) return false;
    if (!(masked = operand(k, both->a, K_ALU, OP_and)) || k->ins.at[masked->b].op != K_CONST) return false;
    *out = (byte_bits){ .load = masked->a, .mask = k->ins.at[masked->b].imm_int, .less = k->ins.at[in->b].imm - OFFSET };
    if ((shifted = operand(k, masked->a, K_ALU, OP_shift_right))) {
        const kins *by = &k->ins.at[shifted->b];
        if (by->op != K_INDEX || by->idx.n || by->lanes > 1) return false;
        out->load = shifted->a, out->shift = by->idx.base;
    }
    const kins *load = operand(k, out->load, K_LOAD, OP_NIL);
    return load && load->src == TN_U8 && load->lanes == in->lanes && out->shift >= 0 && out->mask << out->shift < 256;
}

reg byte_bits_lane(build_copier *c, const byte_bits *w, int l, int64_t exponent, val of) {
    kernel *o = c->o;
    int64_t up = byte_bits_at(w, l) - w->shift, at = byte_bits_at(w, l), set = exponent + (w->flip << at);
    reg byte = build_lane(o, c->to[w->load], l), x;
    if (up) byte = build_op(o, OP_shift_left, byte, build_number(o, TN_I32, (double)up));
    x = build_op(o, OP_and, byte, build_number(o, TN_I32, (double)(w->mask << at)));
    if (set) x = build_op(o, w->flip ? OP_xor : OP_or, x, build_number(o, TN_I32, (double)set));
    return kernel_push(o, (kins){ .op = K_BITCAST, .dtype = TN_F32, .src = TN_I32, .lanes = 1, .a = x, .node = of });
}

static reg in_place(build_copier *c, const byte_bits *w, val of) {
    kernel *o = c->o;
    int lanes = c->k->ins.at[w->load].lanes;
    reg all = build_acc(o, OP_add, TN_F32, 0, lanes);
    for (int l = 0; l < lanes; l++) {
        int64_t at = byte_bits_at(w, l);
        reg x = byte_bits_lane(c, w, l, OFFSET_BITS, of);
        double scale = 1 / (double)((int64_t)1 << at), less = OFFSET * scale + w->less;
        if (at) {
            reg sum = build_acc(o, OP_add, TN_F32, 0, 1);
            build_update(o, OP_add, build_number(o, TN_F32, -less), 0, sum);
            build_update(o, OP_dot, x, build_number(o, TN_F32, scale), sum);
            x = sum;
        } else {
            x = build_op(o, OP_sub, x, build_number(o, TN_F32, less));
        }
        build_put_lanes(o, all, l, x);
    }
    return all;
}

/* Bits of vectors of bytes, where they lie. */
static bool keep_in_place(kernel **kk, str *why) {
    const kernel *k = *kk;
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) {
        byte_bits w;
        if (byte_bits_find(k, &k->ins.at[i], &w))
            c.to[i] = in_place(&c, &w, k->ins.at[i].node), any = true;
        else
            build_copy(&c, i, &none);
    }
    if (any) *kk = o;
    return any || step_refuse(why, "no bits of vectors of bytes became f32");
}

bool step_mantissa_casts(kernel **kk, const loop_step *s, str *why) {
    (void)s;
    const kernel *k = *kk;
    if (k->block_threads) return keep_in_place(kk, why);
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    reg *raw = ARENA_ARRAY(k->a, reg, k->ins.n); /* 2^23 more than what instruction i of k is */
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        double less;
        if (takes_few_bits(k, in)) {
            kins bits = { .op = K_BITCAST, .dtype = TN_F32, .src = TN_I32, .lanes = in->lanes, .node = in->node };
            bits.a = build_op(o, OP_or, c.to[in->a], build_number(o, TN_I32, OFFSET_BITS));
            raw[i] = kernel_push(o, bits), any = true;
            c.to[i] = build_op(o, OP_sub, raw[i], build_number(o, TN_F32, OFFSET));
        } else if (raw[in->a] && is_difference(k, in, &less)) {
            c.to[i] = build_op(o, OP_sub, raw[in->a], build_number(o, TN_F32, OFFSET + less));
        } else {
            build_copy(&c, i, &none);
        }
    }
    if (!any) return step_refuse(why, "no whole number of few bits becomes an f32");
    loop_sweep(o); /* sums with constants have taken their places */
    *kk = o;
    return true;
}
