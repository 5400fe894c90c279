/* legalize_sse.c - what a processor with SSE2 only lacks, by what it has: blends, roundings, 64-bit comparisons, widening
 * moves, products of 32-bit integers, broadcasts. In: an operation. Out: operations with a legacy form, and the value. Results
 * are the same in every bit as those of the instruction. */
#include "emit/x86/select.h"

static vreg two(xfn *f, x86_id id, vreg a, vreg b) { return x86_numbered(f, (xop){ .op = (uint16_t)id, .a = a, .b = b }); }
static vreg with(xfn *f, x86_id id, vreg a, int imm) {
    return x86_numbered(f, (xop){ .op = (uint16_t)id, .a = a, .imm = imm });
}

static vreg less(xfn *f, x86_id cmp, vreg a, vreg b) {
    return x86_numbered(f, (xop){ .op = (uint16_t)cmp, .a = a, .b = b, .imm = 1 });
}

/* c ? b : a, bit by bit: masks are all ones or all zeros */
static vreg blend(xfn *f, vreg a, vreg b, vreg c) { return two(f, X86_POR, two(f, X86_PAND, c, b), two(f, X86_PANDN, c, a)); }

/* The even products, and the odd ones moved there, interleaved. */
static vreg product32(xfn *f, vreg a, vreg b) {
    vreg even = two(f, X86_PMULUDQ, a, b), odd = two(f, X86_PMULUDQ, with(f, X86_PSRLQ, a, 32), with(f, X86_PSRLQ, b, 32));
    return two(f, X86_PUNPCKLDQ, with(f, X86_PSHUFD, even, 0x08), with(f, X86_PSHUFD, odd, 0x08));
}

static vreg equal64(xfn *f, vreg a, vreg b) {
    vreg halves = two(f, X86_PCMPEQD, a, b);
    return two(f, X86_PAND, halves, with(f, X86_PSHUFD, halves, 0xB1));
}

/* The upper half decides, unless both are equal: then b - a borrows into it when b is less below. */
static vreg greater64(xfn *f, vreg a, vreg b) {
    vreg borrow = two(f, X86_PAND, two(f, X86_PCMPEQD, a, b), two(f, X86_PSUBQ, b, a));
    return with(f, X86_PSHUFD, two(f, X86_POR, two(f, X86_PCMPGTD, a, b), borrow), 0xF5);
}

/* To nearest even, up or down: the text of c_prelude.c. */
static vreg rounded(xfn *f, vreg x, int how, xtype t) {
    bool s = t == XF32;
    x86_id add = s ? X86_ADDPS : X86_ADDPD, sub = s ? X86_SUBPS : X86_SUBPD, cmp = s ? X86_CMPPS : X86_CMPPD;
    vreg big = x86_const(f, t, s ? 0x1p23 : 0x1p52, 0), zero = x86_const(f, t, 0, 0);
    vreg mask = x86_const_bits(f, t, s ? 0x7fffffffu : 0x7fffffffffffffffu);
    vreg sign = two(f, X86_PANDN, mask, x), a = two(f, X86_PAND, x, mask);
    vreg near = two(f, X86_POR, two(f, sub, two(f, add, a, big), big), sign);
    vreg r = blend(f, x, near, less(f, cmp, a, big));
    if (how == 8) return r;
    vreg off = how == 9 ? less(f, cmp, x, r) : less(f, cmp, r, x);
    vreg step = blend(f, zero, x86_const(f, t, 1, 0), off);
    return two(f, X86_POR, two(f, X86_PAND, two(f, how == 9 ? sub : add, r, step), mask), sign);
}

/* 1 or 2 bytes to 4. */
static vreg widened(xfn *f, vreg a, int bytes, bool sign) {
    vreg zero = x86_const_bits(f, XI32, 0);
    if (bytes == 1) a = two(f, X86_PUNPCKLBW, a, sign ? a : zero);
    a = two(f, X86_PUNPCKLWD, a, sign ? a : zero);
    return sign ? with(f, X86_PSRAD, a, 32 - 8 * bytes) : a;
}

/* Whether the operation has no legacy form; then *out is its value by others. */
static bool legalized(xfn *f, const xop *op, vreg *out) {
    vreg a = op->a, b = op->b;
    if (op->op >= X86_N_INS || op->has_mem || x86_has_legacy((x86_id)op->op)) return false;
    switch (op->op) {
    case X86_BLENDVPS:
    case X86_BLENDVPD:
        *out = blend(f, a, b, op->c);
        return true;
    case X86_PMULLD:
        *out = product32(f, a, b);
        return true;
    case X86_PCMPEQQ:
        *out = equal64(f, a, b);
        return true;
    case X86_PCMPGTQ:
        *out = greater64(f, a, b);
        return true;
    case X86_ROUNDPS:
    case X86_ROUNDPD:
        *out = rounded(f, a, op->imm, op->op == X86_ROUNDPS ? XF32 : XF64);
        return true;
    case X86_PMOVSXDQ:
        *out = two(f, X86_PUNPCKLDQ, a, with(f, X86_PSRAD, a, 31));
        return true;
    case X86_PMOVSXBD:
    case X86_PMOVZXBD:
        *out = widened(f, a, 1, op->op == X86_PMOVSXBD);
        return true;
    case X86_PMOVZXWD:
        *out = widened(f, a, 2, false);
        return true;
    case X86_BROADCASTSS:
        *out = with(f, X86_PSHUFD, a, 0);
        return true;
    case X86_BROADCASTSD:
    case X86_MOVDDUP:
        *out = with(f, X86_PSHUFD, a, 0x44);
        return true;
    default:
        x86_unsupported(f, x86_table[op->op].name);
        return false;
    }
}

vreg x86_value(xfn *f, xop op) {
    vreg other;
    return f->level == X86_SSE && legalized(f, &op, &other) ? other : x86_numbered(f, op);
}
