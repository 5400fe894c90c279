/* quantise.c - the cast to bytes of round(x / step) + zero, clamped, without a division: what a quantised layer ends with.
 *
 * 1 / step is two numbers, high and low, and x / step their product with x by a multiply-add: two roundings away from what a
 * division gives at most, and the same whole number but where x is at an edge between two. Both grow with x, so they agree for
 * all x if they do on both sides of each edge, of which there are at most 255: all are tried here. A step for which one
 * differs is divided by. Clamping first keeps all products finite. */
#include <math.h>

#include "emit/x86/select.h"

enum { NEAR = 8 }; /* numbers next to where an edge is expected */

/* What a register is made of by op and a constant, which is the second operand, or of sums and bounds either. */
static reg made_by(const kernel *k, reg r, op_code op, double *constant) {
    const kins *in = &k->ins.at[r];
    if (in->op != K_ALU || in->alu != op || in->dtype != TN_F32) return 0;
    bool second = k->ins.at[in->b].op == K_CONST;
    const kins *c = &k->ins.at[second || op == OP_div ? in->b : in->a];
    if (c->op != K_CONST) return 0;
    *constant = c->imm;
    return second ? in->a : in->b;
}

/* The pattern, from its end to x; 0: it is another. */
static reg find_pattern(const kernel *k, const kins *cast, sel_steps *q) {
    double lo, hi, zero = 0, step;
    reg r = made_by(k, cast->a, OP_min, &hi), next;
    if (r)
        r = made_by(k, r, OP_max, &lo);
    else if ((r = made_by(k, cast->a, OP_max, &lo)))
        r = made_by(k, r, OP_min, &hi);
    if (r && (next = made_by(k, r, OP_add, &zero))) r = next;
    if (!r || k->ins.at[r].op != K_ALU || k->ins.at[r].alu != OP_round) return 0;
    r = made_by(k, k->ins.at[r].a, OP_div, &step);
    double least = (double)dtype_min_int((tn_dtype)cast->dtype), most = (double)dtype_max_int((tn_dtype)cast->dtype);
    if (!r || lo < least || hi > most || lo >= hi || zero < least || zero > most || rint(lo) != lo || rint(hi) != hi ||
        rint(zero) != zero || !((float)step > 0x1p-60f && (float)step < 0x1p60f))
        return 0;
    *q = (sel_steps){ .to = (tn_dtype)cast->dtype, .step = (float)step, .zero = (int)zero, .lo = (int)lo, .hi = (int)hi };
    return r;
}

static float divided(const sel_steps *q, float x) {
    float y = rintf(x / q->step) + (float)q->zero;
    return y < (float)q->lo ? (float)q->lo : y > (float)q->hi ? (float)q->hi : y;
}

static float multiplied(const sel_steps *q, float x) {
    float t = x > q->least ? x : q->least;
    if (t > q->most) t = q->most;
    return rintf(fmaf(t, q->high, t * q->low)) + (float)q->zero;
}

static bool same_at_edges(const sel_steps *q) {
    for (int n = q->lo + 1; n <= q->hi; n++) {
        float x = (float)(((double)(n - q->zero) - 0.5) * (double)q->step);
        int i = 0;
        for (; i < NEAR && divided(q, x) >= (float)n; i++) x = nextafterf(x, -INFINITY);
        for (; i < NEAR && divided(q, x) < (float)n; i++) x = nextafterf(x, INFINITY);
        if (i == NEAR || divided(q, x) != multiplied(q, x)) return false;
        x = nextafterf(x, -INFINITY);
        if (divided(q, x) >= (float)n || divided(q, x) != multiplied(q, x)) return false;
    }
    return true;
}

/* high is not above 1 / step, so that low has its sign and an x of 0 keeps it. */
static bool find_factors(sel_steps *q) {
    double inverse = 1 / (double)q->step;
    q->high = (float)inverse;
    if ((double)q->high > inverse) q->high = nextafterf(q->high, 0);
    q->low = (float)(inverse - (double)q->high);
    q->least = (float)(q->lo - q->zero) * q->step, q->most = (float)(q->hi - q->zero) * q->step;
    return divided(q, q->least) == (float)q->lo && divided(q, q->most) == (float)q->hi &&
           multiplied(q, q->least) == (float)q->lo && multiplied(q, q->most) == (float)q->hi && same_at_edges(q);
}

static bool is_known(const sel_steps *q, const sel_steps *old) {
    return q->to == old->to && q->step == old->step && q->zero == old->zero && q->lo == old->lo && q->hi == old->hi;
}

reg sel_find_steps(selector *s, const kins *cast) {
    sel_steps q;
    bool narrow = cast->op == K_CAST && cast->src == TN_F32 && dtype_size((tn_dtype)cast->dtype) == 1 &&
                  dtype_is_narrow_int((tn_dtype)cast->dtype);
    reg x = narrow && s->f->level != X86_SSE ? find_pattern(s->k, cast, &q) : 0;
    if (!x) return 0;
    if (!is_known(&q, &s->steps)) {
        q.found = find_factors(&q);
        s->steps = q;
    }
    return s->steps.found ? x : 0;
}

reg sel_find_steps_again(selector *s, const kins *cast, int *out_zero) {
    const kins *in = &s->k->ins.at[cast->a], *zero = &s->k->ins.at[in->b];
    *out_zero = 0;
    if (cast->op != K_CAST || cast->dtype != TN_F32) return 0;
    if (in->op == K_ALU && in->alu == OP_sub && in->dtype == TN_I32 && zero->op == K_CONST) {
        if (zero->imm_int < -255 || zero->imm_int > 255) return 0;
        *out_zero = (int)zero->imm_int, in = &s->k->ins.at[in->a];
    }
    reg x = sel_find_steps(s, in);
    return x && s->steps.lo == 0 ? x : 0; /* NaN is 0, then */
}

/* x within its bounds, or the lower one alone, in steps, not yet rounded. */
static xval count_steps(selector *s, xval x, bool both, int n) {
    xfn *f = s->f;
    const sel_steps *q = &s->steps;
    xval least = x86_const_val(f, XF32, q->least, 0), most = x86_const_val(f, XF32, q->most, 0);
    /* NaN becomes 0: the lower bound, or what is no number has bits that are 0 in a byte. */
    xval t = q->lo == 0 ? x86_bin(f, 'M', x, least, n) : x86_bin(f, 'M', least, x, n);
    if (both) t = x86_bin(f, 'm', most, t, n);
    xval high = x86_const_val(f, XF32, q->high, 0);
    if (q->low != 0) {
        xval rest = x86_bin(f, '*', t, x86_const_val(f, XF32, q->low, 0), n);
        t.r = x86_value(f, (xop){ .op = P_FMA, .vl = (uint8_t)x86_vl(XF32, n), .a = t.r, .b = high.r, .c = rest.r });
    } else {
        t = x86_bin(f, '*', t, high, n);
    }
    return t;
}

xval sel_quantise_again(selector *s, xval x, int zero, int n) {
    xfn *f = s->f;
    xval t = x86_expr(f, "RINT(x)", XF32, (xval[3]){ count_steps(s, x, true, n) }, n);
    return x86_bin(f, '+', t, x86_const_val(f, XF32, s->steps.zero - zero, 0), n); /* also where it is 0: no -0 is left */
}

/* What is too large is more than 255 without a sign, also as what no integer is made into. */
bool sel_saturates(const selector *s) { return s->steps.to == TN_U8 && s->steps.lo == 0 && s->steps.hi == UINT8_MAX; }

xval sel_quantise_below(selector *s, xval x, int n) {
    xfn *f = s->f;
    xval t = count_steps(s, x, false, n);
    xval whole = { x86_value(f, (xop){ .op = X86_CVTPS2DQ, .vl = (uint8_t)x86_vl(XF32, n), .a = t.r }), XI32 };
    return s->steps.zero ? x86_bin(f, '+', whole, x86_const_val(f, XI32, 0, s->steps.zero), n) : whole;
}

xval sel_quantise(selector *s, xval x, int n) {
    xfn *f = s->f;
    const sel_steps *q = &s->steps;
    const char *wrap = q->to == TN_I8 ? "WRAP_I8(x)" : "WRAP_U8(x)";
    xval t = count_steps(s, x, true, n);
    if (q->lo != 0 && q->zero != 0) {
        t = x86_bin(f, '+', x86_expr(f, "RINT(x)", XF32, (xval[3]){ t }, n), x86_const_val(f, XF32, q->zero, 0), n);
        return x86_expr(f, wrap, XI32, (xval[3]){ x86_convert(f, t, XI32, n) }, n);
    }
    xval whole = { x86_value(f, (xop){ .op = X86_CVTPS2DQ, .vl = (uint8_t)x86_vl(XF32, n), .a = t.r }), XI32 };
    if (q->lo != 0) return x86_expr(f, wrap, XI32, (xval[3]){ whole }, n);
    return q->zero ? x86_bin(f, '+', whole, x86_const_val(f, XI32, 0, q->zero), n) : whole;
}
