/* mantissa_casts.c - whole numbers of few bits become floats by their bits: those of n, behind 2^23's, are the float 2^23 + n,
 * less 2^23. GPUs convert at a half or less of the rate of such instructions. In and out: scalar form, or that of a GPU; no bit
 * changes.
 *
 * What is subtracted next is subtracted at once: all of it is exact. */
#include "loop/build.h"
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

bool step_mantissa_casts(kernel **kk, const loop_step *s, str *why) {
    (void)s;
    const kernel *k = *kk;
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
    *kk = o;
    return true;
}
