/* code.c - operations with registers to machine code. In: xfn after x86_alloc. Out: a function at the end of f->s:
 *     void kernel(char *const *buffer (rdi), int64_t tid (rsi), int64_t nt (rdx))
 * Behind the buffers' addresses is that of the values of the plan's parameters, where the kernel has any.
 * It may change every register but rsp and rbp. rax, rcx and rdx are scratch for addresses.
 *
 * A small frame is on the stack. A larger one is in the thread's scratch memory, at a fixed distance behind the addresses of
 * the buffers, and rbp is its base: callers' stacks may be small. */
#include "emit/x86/ir.h"

typedef struct coder {
    xfn *f;
    x86_asm *s;
    int base;      /* of the frame: rsp or rbp */
    int ends[256]; /* labels of the open P_IFs */
    int n_ends;
} coder;

static int32_t small(coder *c, int64_t v) {
    if (v < INT32_MIN || v > INT32_MAX) x86_unsupported(c->f, "an offset of more than 31 bits");
    return (int32_t)v;
}

static x86_opnd home(const coder *c, vreg r) { /* of a spilled value */
    const xvreg *v = &c->f->v.at[r];
    return v->remat ? x86_m(X86_POOL, v->slot) : x86_m(c->base, v->slot);
}
static x86_opnd rm_of(coder *c, vreg r) {
    int p = c->f->v.at[r].phys;
    return p >= 0 ? x86_r(p) : home(c, r);
}
static int reg_of(coder *c, vreg r) {
    int p = c->f->v.at[r].phys;
    if (p < 0) x86_unsupported(c->f, "an operand without a register");
    return p < 0 ? 0 : p;
}

/* ---- general registers ---- */

static int greg_of(coder *c, greg r, int into) {
    const xgreg *g = &c->f->g.at[r];
    if (g->phys >= 0) return g->phys;
    if (g->kind == G_LOCAL)
        x86_put(c->s, X86_LEA, 0, into, 0, x86_m(c->base, small(c, g->at)), 0);
    else
        x86_put(c->s, X86_MOV, 0, into, 0, x86_m(c->base, g->slot), 0);
    return into;
}

static x86_opnd address(coder *c, const xmem *m) {
    x86_opnd o = { .is_mem = true };
    const xgreg *b = &c->f->g.at[m->base];
    int64_t disp = m->disp;
    if (b->kind == G_LOCAL) {
        o.m.base = (int8_t)c->base;
        disp += b->at;
    } else {
        o.m.base = (int8_t)greg_of(c, m->base, RAX);
    }
    o.m.index = m->index ? (int8_t)greg_of(c, m->index, RCX) : X86_NO_REG;
    o.m.disp = small(c, disp);
    return o;
}

static void imul(coder *c, int r, int64_t by) {
    if (by >= INT32_MIN && by <= INT32_MAX) {
        if (by != 1) x86_put(c->s, X86_IMULI, 0, r, 0, x86_r(r), (int32_t)by);
        return;
    }
    x86_put(c->s, X86_IMUL, 0, r, 0, x86_m(X86_POOL, x86_pool(c->s, &by, 8)), 0);
}

/* rax = greg + disp */
static void value_in_rax(coder *c, const xmem *m) {
    if (!m->base) {
        x86_movabs(c->s, RAX, m->disp);
        return;
    }
    int r = greg_of(c, m->base, RAX);
    if (m->disp || r != RAX) x86_put(c->s, X86_LEA, 0, RAX, 0, x86_m(r, small(c, m->disp)), 0);
}

/* ---- loops and branches ---- */

static void set_greg(coder *c, greg r, int from) { /* from a register */
    const xgreg *g = &c->f->g.at[r];
    if (g->phys < 0)
        x86_put(c->s, X86_MOV_ST, 0, from, 0, x86_m(c->base, g->slot), 0);
    else if (g->phys != from)
        x86_put(c->s, X86_MOV, 0, g->phys, 0, x86_r(from), 0);
}

static void load_ext(coder *c, int r, ext e) {
    if (ext_is_lit(e)) {
        x86_movabs(c->s, r, e);
        return;
    }
    x86_put(c->s, X86_MOV, 0, r, 0, x86_m(c->base, X_PARAMS), 0);
    x86_put(c->s, X86_MOV, 0, r, 0, x86_m(r, 8 * ext_index(e)), 0);
}

/* r into [0, n) */
static void clamp(coder *c, int r, int other, ext n) {
    x86_put(c->s, X86_XOR32, 0, other, 0, x86_r(other), 0);
    x86_put(c->s, X86_TEST, 0, r, 0, x86_r(r), 0);
    x86_put(c->s, X86_CMOVL, 0, r, 0, x86_r(other), 0);
    load_ext(c, other, ext_is_lit(n) ? n - 1 : n);
    if (!ext_is_lit(n)) x86_put(c->s, X86_ADDI, 0, 0, 0, x86_r(other), -1);
    x86_put(c->s, X86_CMP, 0, r, 0, x86_r(other), 0);
    x86_put(c->s, X86_CMOVG, 0, r, 0, x86_r(other), 0);
}

/* r times what an index is multiplied by. */
static void scale(coder *c, int r, int other, int64_t stride, ext by) {
    imul(c, r, stride);
    if (by) load_ext(c, other, by), x86_put(c->s, X86_IMUL, 0, r, 0, x86_r(other), 0);
}

/* Where RAX is taken. */
static void start_sum(coder *c, greg r) {
    const xgreg *g = &c->f->g.at[r];
    load_ext(c, RCX, g->by), imul(c, RCX, g->coef);
    if (g->parent) x86_put(c->s, X86_ADD, 0, RCX, 0, x86_r(greg_of(c, g->parent, RDX)), 0);
    set_greg(c, r, RCX);
}

static void start_counted(coder *c, xloop *l) {
    x86_asm *s = c->s;
    load_ext(c, RAX, l->first_value);
    x86_put(s, X86_MOV_ST, 0, RAX, 0, x86_m(c->base, l->par_slot), 0);
    load_ext(c, RCX, l->end_value);
    x86_put(s, X86_SUB, 0, RCX, 0, x86_m(c->base, l->par_slot), 0);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RCX), 0);
    x86_jump(s, X86_JLE, l->end_label);
    set_greg(c, l->count, RCX);
}

/* rcx = whole steps of the loop, which begins at 0 */
static void steps_in_rcx(coder *c, const xloop *l) {
    load_ext(c, RCX, l->end_value);
    if (l->step == 1) return;
    x86_put(c->s, X86_MOV, 0, RAX, 0, x86_r(RCX), 0);
    x86_put(c->s, X86_CQO, 0, 0, 0, x86_r(0), 0);
    x86_put(c->s, X86_IDIV, 0, 0, 0, x86_m(X86_POOL, x86_pool(c->s, &l->step, 8)), 0);
    x86_put(c->s, X86_MOV, 0, RCX, 0, x86_r(RAX), 0);
}

static void start_par(coder *c, xloop *l) {
    x86_asm *s = c->s;
    if (l->counted) steps_in_rcx(c, l);
    for (int part = 0; part < 2; part++) {
        x86_put(s, X86_MOV, 0, RAX, 0, x86_m(c->base, X_TID), 0);
        if (part) x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), 1);
        if (l->counted)
            x86_put(s, X86_IMUL, 0, RAX, 0, x86_r(RCX), 0);
        else
            imul(c, RAX, l->trips);
        x86_put(s, X86_CQO, 0, 0, 0, x86_r(0), 0);
        x86_put(s, X86_IDIV, 0, 0, 0, x86_m(c->base, X_NT), 0);
        if (l->counted) imul(c, RAX, l->step);
        if (!part) x86_put(s, X86_MOV_ST, 0, RAX, 0, x86_m(c->base, l->par_slot), 0);
    }
    x86_put(s, X86_SUB, 0, RAX, 0, x86_m(c->base, l->par_slot), 0);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), 0);
    x86_jump(s, X86_JLE, l->end_label);
    set_greg(c, l->count, RAX);
}

static void start_loop(coder *c, xloop *l) {
    xfn *f = c->f;
    l->label = x86_label(c->s), l->end_label = x86_label(c->s);
    if (l->par) {
        start_par(c, l);
    } else if (l->counted) {
        start_counted(c, l);
    } else if (f->g.at[l->count].phys >= 0) {
        x86_put(c->s, X86_MOVI32, 0, 0, 0, x86_r(f->g.at[l->count].phys), small(c, l->trips));
    } else {
        x86_put(c->s, X86_MOVI, 0, 0, 0, x86_m(c->base, f->g.at[l->count].slot), small(c, l->trips));
    }
    for (int i = 0; i < l->ivs.n; i++) {
        const xgreg *g = &f->g.at[l->ivs.at[i]];
        if (g->end < 0) continue;
        if (l->par || l->counted) {
            x86_put(c->s, X86_MOV, 0, RCX, 0, x86_m(c->base, l->par_slot), 0);
            imul(c, RCX, l->counted ? g->coef / l->step : g->coef); /* counted by iterations, not by steps */
            if (g->by) load_ext(c, RAX, g->by), x86_put(c->s, X86_IMUL, 0, RCX, 0, x86_r(RAX), 0);
            if (g->parent) x86_put(c->s, X86_ADD, 0, RCX, 0, x86_r(greg_of(c, g->parent, RAX)), 0);
            set_greg(c, l->ivs.at[i], RCX);
        } else if (g->parent) {
            set_greg(c, l->ivs.at[i], greg_of(c, g->parent, RAX));
        } else if (g->phys >= 0) {
            x86_movabs(c->s, g->phys, 0);
        } else {
            x86_put(c->s, X86_MOVI, 0, 0, 0, x86_m(c->base, g->slot), 0);
        }
    }
    if (f->loops.at[0].trips) x86_align(c->s, 16);
    x86_bind(c->s, l->label);
}

static x86_opnd greg_place(const coder *c, const xgreg *g) { return g->phys >= 0 ? x86_r(g->phys) : x86_m(c->base, g->slot); }

static void end_loop(coder *c, const xloop *l) {
    xfn *f = c->f;
    for (int i = 0; i < l->ivs.n; i++) {
        const xgreg *g = &f->g.at[l->ivs.at[i]];
        if (g->end < 0) continue;
        if (g->by) {
            load_ext(c, RAX, g->by), imul(c, RAX, g->coef);
            x86_put(c->s, X86_ADD, 0, RAX, 0, greg_place(c, g), 0);
            set_greg(c, l->ivs.at[i], RAX);
        } else if (g->coef >= INT32_MIN && g->coef <= INT32_MAX) {
            x86_put(c->s, X86_ADDI, 0, 0, 0, greg_place(c, g), (int32_t)g->coef);
        } else {
            x86_put(c->s, X86_MOV, 0, RAX, 0, x86_m(X86_POOL, x86_pool(c->s, &g->coef, 8)), 0);
            x86_put(c->s, X86_ADD, 0, RAX, 0, greg_place(c, g), 0);
            set_greg(c, l->ivs.at[i], RAX);
        }
    }
    if (l->counted && l->step > 1)
        x86_put(c->s, X86_SUBI, 0, 0, 0, greg_place(c, &f->g.at[l->count]), (int32_t)l->step);
    else
        x86_put(c->s, X86_DEC, 0, 0, 0, greg_place(c, &f->g.at[l->count]), 0);
    x86_jump(c->s, X86_JNE, l->label);
    x86_bind(c->s, l->end_label);
}

static void open_if(coder *c, const xop *o) {
    x86_asm *s = c->s;
    int end = x86_label(s);
    if (c->n_ends == (int)COUNT_OF(c->ends)) {
        x86_unsupported(c->f, "branches nested too deep");
        return;
    }
    c->ends[c->n_ends++] = end;
    if (o->op == P_IFLAST) {
        x86_put(s, X86_MOV, 0, RAX, 0, x86_m(c->base, X_TID), 0);
        x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), 1);
        x86_put(s, X86_CMP, 0, RAX, 0, x86_m(c->base, X_NT), 0);
        x86_jump(s, X86_JNE, end);
        return;
    }
    xbound b = c->f->bounds.at[o->extra];
    value_in_rax(c, &o->mem);
    if (!ext_is_lit(b.lo) || !ext_is_lit(b.hi)) {
        load_ext(c, RCX, b.lo), x86_put(s, X86_CMP, 0, RAX, 0, x86_r(RCX), 0), x86_jump(s, X86_JL, end);
        load_ext(c, RCX, b.hi), x86_put(s, X86_CMP, 0, RAX, 0, x86_r(RCX), 0), x86_jump(s, X86_JGE, end);
        return;
    }
    int64_t n = b.hi < b.lo ? 0 : b.hi - b.lo;
    if (n <= INT32_MAX)
        x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), (int32_t)n);
    else
        x86_put(s, X86_CMP, 0, RAX, 0, x86_m(X86_POOL, x86_pool(s, &n, 8)), 0);
    x86_jump(s, X86_JAE, end);
}

/* ---- operations lane by lane ---- */

static void spill_to(coder *c, vreg r, int vl, int32_t at) {
    if (!r) return;
    x86_put(c->s, X86_MOVUPS_ST, vl, reg_of(c, r), 0, x86_m(c->base, at), 0);
}
static void fetch(coder *c, const xop *o) {
    int d = reg_of(c, o->dst);
    x86_put(c->s, X86_MOVUPS, c->f->v.at[o->dst].vl, d, 0, x86_m(c->base, 128), 0);
}

/* rdx = the mask's bits */
static void mask_bits(coder *c, vreg mask, int lanes) {
    int m = reg_of(c, mask);
    if (c->f->level == X86_AVX512) {
        x86_put(c->s, X86_PMOVD2M, lanes > 8 ? 2 : lanes > 4, 1, 0, x86_r(m), 0);
        x86_put(c->s, X86_KMOVW, 0, RDX, 0, x86_r(1), 0);
    } else {
        x86_put(c->s, X86_MOVMSKPS, lanes > 4, RDX, 0, x86_r(m), 0);
    }
}

/* Around calls: the registers in use into the frame, and back. */
static void save_registers(coder *c, const xop *o, bool back) {
    const xfn *f = c->f;
    int full = f->vb == 64 ? 2 : f->vb == 32 ? 1 : 0;
    int64_t gsave = f->save_at + (int64_t)f->n_vregs_phys * f->vb;
    for (int p = 0; p < f->n_vregs_phys; p++)
        if (o->live >> p & 1)
            x86_put(c->s, back ? X86_MOVUPS : X86_MOVUPS_ST, full, p, 0, x86_m(c->base, (int32_t)(f->save_at + p * f->vb)), 0);
    for (int p = RSI; p <= R11; p++)
        if (o->glive >> p & 1) x86_put(c->s, back ? X86_MOV : X86_MOV_ST, 0, p, 0, x86_m(c->base, (int32_t)(gsave + p * 8)), 0);
}

static void put_call(coder *c, const xop *o) {
    enum { MASK = 192 }; /* in the scratch bytes, behind operands and result */
    x86_asm *s = c->s;
    int size = o->type == XF32 ? 4 : 8, none = x86_label(s);
    if (o->c) {
        mask_bits(c, o->c, o->lanes);
        x86_put(s, X86_TESTI32, 0, 0, 0, x86_r(RDX), (int32_t)((1u << o->lanes) - 1));
        x86_jump(s, X86_JE, none);
        x86_put(s, X86_MOV32_ST, 0, RDX, 0, x86_m(c->base, MASK), 0);
    }
    save_registers(c, o, false);
    spill_to(c, o->a, o->vl, 0);
    spill_to(c, o->b, o->vl, 64);
    if (c->f->level != X86_SSE) x86_put(s, X86_VZEROUPPER, 0, 0, 0, x86_r(0), 0);
    for (int l = 0; l < o->lanes; l++) {
        int skip = x86_label(s);
        if (o->c) {
            x86_put(s, X86_TESTI32, 0, 0, 0, x86_m(c->base, MASK), 1 << l);
            x86_jump(s, X86_JE, skip);
        }
        x86_put(s, size == 4 ? X86_MOVSS : X86_MOVSD, 0, 0, 0, x86_m(c->base, l * size), 0);
        if (o->b) x86_put(s, size == 4 ? X86_MOVSS : X86_MOVSD, 0, 1, 0, x86_m(c->base, 64 + l * size), 0);
        x86_put(s, X86_CALLM, 0, 0, 0, x86_m(X86_CELL, o->imm), 0);
        x86_put(s, size == 4 ? X86_MOVSS_ST : X86_MOVSD_ST, 0, 0, 0, x86_m(c->base, 128 + l * size), 0);
        x86_bind(s, skip);
    }
    save_registers(c, o, true);
    fetch(c, o);
    x86_bind(s, none);
}

/* rax / rcx and the remainder with the sign of the divisor, 0 for a zero divisor; quotient in rax, remainder in rdx. */
static void put_divide(coder *c, bool mod) {
    x86_asm *s = c->s;
    int zero = x86_label(s), minus = x86_label(s), done = x86_label(s);
    x86_put(s, X86_TEST, 0, RCX, 0, x86_r(RCX), 0);
    x86_jump(s, X86_JE, zero);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RCX), -1);
    x86_jump(s, X86_JE, minus);
    x86_put(s, X86_CQO, 0, 0, 0, x86_r(0), 0);
    x86_put(s, X86_IDIV, 0, 0, 0, x86_r(RCX), 0);
    if (mod) {
        x86_put(s, X86_TEST, 0, RDX, 0, x86_r(RDX), 0);
        x86_jump(s, X86_JE, done);
        x86_put(s, X86_MOV, 0, RAX, 0, x86_r(RDX), 0);
        x86_put(s, X86_XOR, 0, RAX, 0, x86_r(RCX), 0);
        x86_jump(s, X86_JNS, done);
        x86_put(s, X86_ADD, 0, RDX, 0, x86_r(RCX), 0);
    }
    x86_jump(s, X86_JMP, done);
    x86_bind(s, minus);
    x86_put(s, X86_NEG, 0, 0, 0, x86_r(RAX), 0);
    x86_put(s, X86_XOR32, 0, RDX, 0, x86_r(RDX), 0);
    x86_jump(s, X86_JMP, done);
    x86_bind(s, zero);
    x86_put(s, X86_XOR32, 0, RAX, 0, x86_r(RAX), 0);
    x86_put(s, X86_XOR32, 0, RDX, 0, x86_r(RDX), 0);
    x86_bind(s, done);
}

static void put_lane_op(coder *c, const xop *o) {
    x86_asm *s = c->s;
    spill_to(c, o->a, o->vl, 0);
    spill_to(c, o->b, o->vl, 64);
    for (int l = 0; l < o->lanes; l++) {
        bool div = o->imm >= L_DIV32, wide = o->imm == L_DIV64 || o->imm == L_MOD64;
        int size = wide ? 8 : 4;
        x86_opnd a = x86_m(c->base, l * size), b = x86_m(c->base, 64 + l * size), r = x86_m(c->base, 128 + l * size);
        if (div) {
            x86_put(s, wide ? X86_MOV : X86_MOVSXD, 0, RAX, 0, a, 0);
            x86_put(s, wide ? X86_MOV : X86_MOVSXD, 0, RCX, 0, b, 0);
            bool mod = o->imm == L_MOD32 || o->imm == L_MOD64;
            put_divide(c, mod);
            x86_put(s, wide ? X86_MOV_ST : X86_MOV32_ST, 0, mod ? RDX : RAX, 0, r, 0);
        } else if (o->imm == L_F32_I64 || o->imm == L_F64_I64) {
            a = x86_m(c->base, l * (o->imm == L_F32_I64 ? 4 : 8)), r = x86_m(c->base, 128 + l * 8);
            x86_put(s, o->imm == L_F32_I64 ? X86_CVTTSS2SI : X86_CVTTSD2SI, 0, RAX, 0, a, 0);
            x86_put(s, X86_MOV_ST, 0, RAX, 0, r, 0);
        } else {
            bool f32 = o->imm == L_I64_F32;
            int d = reg_of(c, o->dst); /* its old value is in memory by now */
            a = x86_m(c->base, l * 8), r = x86_m(c->base, 128 + l * (f32 ? 4 : 8));
            x86_put(s, X86_PXOR, 0, d, d, x86_r(d), 0);
            x86_put(s, f32 ? X86_CVTSI2SS : X86_CVTSI2SD, 0, d, d, a, 0);
            x86_put(s, f32 ? X86_MOVSS_ST : X86_MOVSD_ST, 0, d, 0, r, 0);
        }
    }
    fetch(c, o);
}

static void put_lane_load(coder *c, const xop *o) {
    x86_asm *s = c->s;
    const xlload *l = &c->f->lloads.at[o->extra];
    int word = l->bytes < 4 ? 4 : l->bytes;
    if (o->b) spill_to(c, o->b, c->f->v.at[o->b].vl, 0);
    if (o->a) {
        mask_bits(c, o->a, o->lanes);
        int d = reg_of(c, o->dst);
        x86_put(s, X86_PXOR, o->vl, d, d, x86_r(d), 0);
        x86_put(s, X86_MOVUPS_ST, o->vl, d, 0, x86_m(c->base, 128), 0);
    }
    for (int i = 0; i < o->lanes; i++) {
        int skip = 0;
        if (o->a) {
            skip = x86_label(s);
            x86_put(s, X86_TESTI32, 0, 0, 0, x86_r(RDX), 1 << i);
            x86_jump(s, X86_JE, skip);
        }
        xmem m = o->mem;
        m.disp += i * l->stride;
        if (o->b) {
            x86_put(s, l->dyn_wide ? X86_MOV : X86_MOVSXD, 0, RCX, 0, x86_m(c->base, i * (l->dyn_wide ? 8 : 4)), 0);
            clamp(c, RCX, RAX, l->n);
            scale(c, RCX, RAX, l->dyn_stride, l->dyn_by);
        }
        x86_opnd at = address(c, &m);
        if (o->b) at.m.index = RCX;
        x86_id id = l->bytes == 1   ? (l->sign ? X86_MOVSX8 : X86_MOVZX8)
                    : l->bytes == 2 ? X86_MOVZX16
                    : l->bytes == 4 ? X86_MOV32
                                    : X86_MOV;
        x86_put(s, id, 0, RAX, 0, at, 0);
        x86_put(s, word == 8 ? X86_MOV_ST : X86_MOV32_ST, 0, RAX, 0, x86_m(c->base, 128 + i * word), 0);
        if (o->a) x86_bind(s, skip);
    }
    fetch(c, o);
}

/* ---- single operations ---- */

static void put_move(coder *c, const xop *o) {
    const xvreg *v = &c->f->v.at[o->dst];
    if (v->spilled) {
        x86_put(c->s, X86_MOVUPS_ST, v->vl, reg_of(c, o->a), 0, x86_m(c->base, v->slot), 0);
        return;
    }
    int d = reg_of(c, o->dst);
    x86_opnd a = rm_of(c, o->a);
    if (a.is_mem || a.r != d) x86_put(c->s, a.is_mem ? X86_MOVUPS : X86_MOVAPS, o->vl, d, 0, a, 0);
}

static void put_const(coder *c, const xop *o) {
    xfn *f = c->f;
    int d = reg_of(c, o->dst);
    bool zero = true;
    for (int i = 0; i < 16 << o->vl && zero; i++) zero = f->s->pool.at[o->imm + i] == 0;
    if (zero)
        x86_put(c->s, X86_PXOR, d > 15 ? o->vl : o->vl > 1 ? 1 : o->vl, d, d, x86_r(d), 0);
    else
        x86_put(c->s, X86_MOVUPS, o->vl, d, 0, x86_m(X86_POOL, o->imm), 0);
}

/* The form is chosen so that the operand that the result replaces needs no copy. */
static void put_fma(coder *c, const xop *o) {
    static const uint16_t ids[2][4][3] = { /* double; negate, subtract; 132 213 231 */
                                           { { X86_FMADD132PS, X86_FMADD213PS, X86_FMADD231PS },
                                             { X86_FNMADD132PS, X86_FNMADD213PS, X86_FNMADD231PS },
                                             { X86_FMSUB132PS, X86_FMSUB213PS, X86_FMSUB231PS },
                                             { X86_FNMSUB132PS, X86_FNMSUB213PS, X86_FNMSUB231PS } },
                                           { { X86_FMADD132PD, X86_FMADD213PD, X86_FMADD231PD },
                                             { X86_FNMADD132PD, X86_FNMADD213PD, X86_FNMADD231PD },
                                             { X86_FMSUB132PD, X86_FMSUB213PD, X86_FMSUB231PD },
                                             { X86_FNMSUB132PD, X86_FNMSUB213PD, X86_FNMSUB231PD } }
    };
    const uint16_t *id = ids[o->imm >> 2 & 1][o->imm & 3];
    x86_asm *s = c->s;
    vreg a = o->a, b = o->b, add = o->c;
    const xvreg *v = c->f->v.at;
    bool mem_b = o->has_mem && !b, mem_c = o->has_mem && !add;
    if (!mem_b && v[a].phys < 0 && v[b].phys >= 0) a = o->b, b = o->a; /* the one that is in memory second */
    x86_opnd m = o->has_mem ? address(c, &o->mem) : x86_r(0);
    int d = reg_of(c, o->dst), ra = reg_of(c, a);
    x86_opnd rb = mem_b ? m : rm_of(c, b);
    x86_opnd rc = mem_c ? m : rm_of(c, add);
    if (rc.is_mem) { /* 213: d = b * d + [c] */
        if (d == rb.r && d != ra) {
            x86_put(s, (x86_id)id[1], o->vl, d, ra, rc, 0);
        } else {
            if (d != ra) x86_put(s, X86_MOVAPS, o->vl, d, 0, x86_r(ra), 0);
            x86_put(s, (x86_id)id[1], o->vl, d, rb.r, rc, 0);
        }
    } else if (d == rc.r) {
        x86_put(s, (x86_id)id[2], o->vl, d, ra, rb, 0);
    } else if (d == ra) {
        x86_put(s, (x86_id)id[0], o->vl, d, rc.r, rb, 0);
    } else if (!rb.is_mem && d == rb.r) {
        x86_put(s, (x86_id)id[1], o->vl, d, ra, rc, 0);
    } else {
        x86_put(s, X86_MOVAPS, o->vl, d, 0, rc, 0);
        x86_put(s, (x86_id)id[2], o->vl, d, ra, rb, 0);
    }
}

static void put_dot(coder *c, const xop *o) {
    int d = reg_of(c, o->dst), a = reg_of(c, o->a), add = reg_of(c, o->c);
    x86_opnd b = o->has_mem ? address(c, &o->mem) : rm_of(c, o->b);
    if (d != add) x86_put(c->s, X86_MOVAPS, o->vl, d, 0, x86_r(add), 0);
    x86_put(c->s, (x86_id)o->imm, o->vl, d, a, b, 0);
}

static void put_from_general(coder *c, const xop *o) {
    x86_asm *s = c->s;
    int d = reg_of(c, o->dst);
    value_in_rax(c, &o->mem);
    if (o->type == XI32 || o->type == XI64) {
        x86_put(s, o->type == XI64 ? X86_MOVQ : X86_MOVD, 0, d, 0, x86_r(RAX), 0);
    } else {
        x86_put(s, X86_PXOR, 0, d, d, x86_r(d), 0);
        x86_put(s, o->type == XF32 ? X86_CVTSI2SS : X86_CVTSI2SD, 0, d, d, x86_r(RAX), 0);
    }
}

static void put_dynamic(coder *c, const xop *o) {
    const xdyn *d = &c->f->dyns.at[o->extra];
    int r = reg_of(c, o->a);
    x86_put(c->s, d->wide ? X86_MOVQ_ST : X86_MOVD_ST, 0, r, 0, x86_r(RAX), 0);
    if (!d->wide) x86_put(c->s, X86_MOVSXD, 0, RAX, 0, x86_r(RAX), 0);
    if (d->clamp) clamp(c, RAX, RCX, d->n);
    scale(c, RAX, RCX, d->stride, d->by);
    set_greg(c, d->g, RAX);
}

static void put_narrow_load(coder *c, const xop *o) {
    int d = reg_of(c, o->dst);
    x86_put(c->s, o->imm == 1 ? X86_MOVZX8 : o->imm == 2 ? X86_MOVSX8 : X86_MOVZX16, 0, RAX, 0, address(c, &o->mem), 0);
    x86_put(c->s, X86_MOVD, 0, d, 0, x86_r(RAX), 0);
}

static void put_narrow_store(coder *c, const xop *o) {
    x86_put(c->s, X86_MOVD_ST, 0, reg_of(c, o->a), 0, x86_r(RDX), 0);
    x86_put(c->s, o->imm == 1 ? X86_MOV8_ST : X86_MOV16_ST, 0, RDX, 0, address(c, &o->mem), 0);
}

/* d = ra op b, where the instruction computes d = d op b. */
static void put_two_operands(coder *c, const xop *o, int d, int ra, x86_opnd b) {
    x86_asm *s = c->s;
    enum { SPARE = 15 };
    if (!b.is_mem && b.r == d && ra != d && x86_commutes(o->op)) b.r = (int8_t)ra, ra = d;
    if (!b.is_mem && b.r == d && ra != d) {
        x86_put(s, X86_MOVAPS, 0, SPARE, 0, b, 0);
        b.r = SPARE;
    }
    if (d != ra) x86_put(s, X86_MOVAPS, 0, d, 0, x86_r(ra), 0);
    x86_put(s, (x86_id)o->op, 0, d, d, b, o->imm);
}

/* d = max or min of ra and b; lanes of ra that are NaN stay so. */
static void put_extreme(x86_asm *s, const xop *o, int d, int ra, x86_opnd b) {
    enum { UNORDERED = 3, ORDERED = 7 };
    bool pd = o->op == X86_MAXPD_K || o->op == X86_MINPD_K;
    x86_id plain = o->op == X86_MAXPS_K   ? X86_MAXPS
                   : o->op == X86_MINPS_K ? X86_MINPS
                   : o->op == X86_MAXPD_K ? X86_MAXPD
                                          : X86_MINPD;
    x86_put(s, pd ? X86_KCMPPD : X86_KCMPPS, o->vl, 1, ra, x86_r(ra), d == ra ? ORDERED : UNORDERED);
    if (d != ra) x86_put(s, plain, o->vl, d, ra, b, 0), b = x86_r(ra); /* of two NaNs the instruction gives the second */
    x86_put(s, (x86_id)o->op, o->vl, d, ra, b, 0);
}

/* Comparisons and selections have other forms with 512 bits. */
static bool put_wide_form(coder *c, const xop *o, int d, int ra, x86_opnd b, int rc) {
    x86_asm *s = c->s;
    if (x86_table[o->op].form == F_RVMK) {
        put_extreme(s, o, d, ra, b);
        return true;
    }
    bool evex = o->vl == 2 || d > 15 || ra > 15 || (!b.is_mem && b.r > 15) || rc > 15;
    if (!evex) return false;
    switch (o->op) {
    case X86_CMPPS:
    case X86_CMPPD:
        x86_put(s, o->op == X86_CMPPS ? X86_KCMPPS : X86_KCMPPD, o->vl, 1, ra, b, o->imm);
        break;
    case X86_PCMPGTD:
    case X86_PCMPEQD:
        x86_put(s, X86_KPCMPD, o->vl, 1, ra, b, o->op == X86_PCMPGTD ? 6 : 0);
        break;
    case X86_PCMPGTQ:
    case X86_PCMPEQQ:
        x86_put(s, X86_KPCMPQ, o->vl, 1, ra, b, o->op == X86_PCMPGTQ ? 6 : 0);
        break;
    case X86_BLENDVPS:
    case X86_BLENDVPD: /* c ? b : a, bit by bit: masks are all ones or all zeros */
        if (d == ra) {
            x86_put(s, X86_PTERNLOGD, o->vl, d, rc, b, 0xB8);
        } else if (!b.is_mem && d == b.r) {
            x86_put(s, X86_PTERNLOGD, o->vl, d, rc, x86_r(ra), 0xE2);
        } else {
            if (d != rc) x86_put(s, X86_MOVAPS, o->vl, d, 0, x86_r(rc), 0);
            if (b.is_mem)
                x86_put(s, X86_PTERNLOGD, o->vl, d, ra, b, 0xAC);
            else
                x86_put(s, X86_PTERNLOGD, o->vl, d, b.r, x86_r(ra), 0xCA);
        }
        return true;
    default:
        return false;
    }
    bool wide = o->op == X86_CMPPD || o->op == X86_PCMPGTQ || o->op == X86_PCMPEQQ;
    x86_put(s, wide ? X86_PMOVM2Q : X86_PMOVM2D, o->vl, d, 0, x86_r(1), 0);
    return true;
}

static void put_instruction(coder *c, const xop *o) {
    const x86_ins *t = &x86_table[o->op];
    x86_asm *s = c->s;
    x86_id id = (x86_id)o->op;
    if (s->legacy && !x86_has_legacy(id)) {
        x86_unsupported(c->f, t->name);
        return;
    }
    if (!o->dst) { /* a store */
        int a = reg_of(c, o->a);
        x86_put(s, id, o->vl, a, 0, address(c, &o->mem), o->imm);
        return;
    }
    int d = reg_of(c, o->dst);
    switch (t->form) {
    case F_RM:
    case F_RMI:
        x86_put(s, id, o->vl, d, 0, o->has_mem ? address(c, &o->mem) : rm_of(c, o->a), o->imm);
        break;
    case F_RMZ: /* a: the mask */
        x86_put(s, id == X86_MOVUPD_Z ? X86_PMOVQ2M : X86_PMOVD2M, o->vl, 1, 0, x86_r(reg_of(c, o->a)), 0);
        x86_put(s, id, o->vl, d, 0, address(c, &o->mem), 0);
        break;
    case F_MR:
    case F_MRI:
        x86_put(s, id, o->vl, reg_of(c, o->a), 0, x86_r(d), o->imm);
        break;
    case F_VMI:
        if (s->legacy && reg_of(c, o->a) != d) x86_put(s, X86_MOVAPS, 0, d, 0, x86_r(reg_of(c, o->a)), 0);
        x86_put(s, id, o->vl, d, 0, x86_r(reg_of(c, o->a)), o->imm);
        break;
    default: {
        x86_opnd b = o->has_mem ? address(c, &o->mem) : rm_of(c, o->b);
        int ra = reg_of(c, o->a), rc = o->c ? reg_of(c, o->c) : 0;
        if (s->legacy) {
            put_two_operands(c, o, d, ra, b);
            break;
        }
        if (put_wide_form(c, o, d, ra, b, rc)) break;
        x86_put(s, id, o->vl, d, ra, b, t->form == F_RVMR ? rc << 4 : o->imm);
        break;
    }
    }
}

static void put_op(coder *c, const xop *o) {
    switch (o->op) {
    case P_LOOP:
        start_loop(c, &c->f->loops.at[o->loop]);
        break;
    case P_END:
        end_loop(c, &c->f->loops.at[o->loop]);
        break;
    case P_IF:
    case P_IFLAST:
        open_if(c, o);
        break;
    case P_ENDIF:
        x86_bind(c->s, c->ends[--c->n_ends]);
        break;
    case P_MOV:
        put_move(c, o);
        break;
    case P_CONST:
        put_const(c, o);
        break;
    case P_FMA:
        put_fma(c, o);
        break;
    case P_DOT:
        put_dot(c, o);
        break;
    case P_FROMG:
        put_from_general(c, o);
        break;
    case P_DYN:
        put_dynamic(c, o);
        break;
    case P_LDNARROW:
        put_narrow_load(c, o);
        break;
    case P_STNARROW:
        put_narrow_store(c, o);
        break;
    case P_PREFETCH:
        x86_put(c->s,
                o->imm == PREFETCH_WRITE ? X86_PREFETCHW
                : o->imm == PREFETCH_L2  ? X86_PREFETCHT1
                                         : X86_PREFETCHT0,
                0, 0, 0, address(c, &o->mem), 0);
        break;
    case P_LLOAD:
        put_lane_load(c, o);
        break;
    case P_LANEOP:
        put_lane_op(c, o);
        break;
    case P_CALL:
        put_call(c, o);
        break;
    default:
        put_instruction(c, o);
    }
}

/* Buffers that are written past the caches have to begin with a line. */
static void put_choice(const xfn *f) {
    const kernel *k = f->k;
    for (int b = 0; b < k->bufs.n; b++) {
        bool nontemporal = false;
        for (int i = 1; i < k->ins.n && !nontemporal; i++)
            nontemporal = k->ins.at[i].op == K_STORE && k->ins.at[i].mode == STORE_NONTEMPORAL && k->ins.at[i].buf == b;
        if (!nontemporal) continue;
        x86_put(f->s, X86_MOV, 0, RAX, 0, x86_m(RDI, b * 8), 0);
        x86_put(f->s, X86_TESTI32, 0, 0, 0, x86_r(RAX), 63);
        x86_jump(f->s, X86_JNE, f->near);
    }
}

/* Whether a kernel has nothing in memory of its own: no value without a register, thread's number, or lanes one by one. */
static bool needs_no_frame(const xfn *f) {
    if (f->frame > X_FRAME || f->k->params) return false;
    for (int i = 0; i < f->n_order; i++) {
        int op = f->ops.at[f->order[i]].op;
        if (op == P_IFLAST || op == P_DYN || op == P_LLOAD || op == P_LANEOP || op == P_CALL) return false;
    }
    return true;
}

static void begin_frame(coder *c) {
    xfn *f = c->f;
    x86_asm *s = c->s;
    x86_put(s, X86_PUSH, 0, RBP, 0, x86_r(0), 0);
    f->frame = (f->frame + 63) & ~(int64_t)63;
    if (c->base == RSP) {
        x86_put(s, X86_MOV, 0, RBP, 0, x86_r(RSP), 0);
        x86_put(s, X86_SUBI, 0, 0, 0, x86_r(RSP), (int32_t)f->frame);
        x86_put(s, X86_ANDI, 0, 0, 0, x86_r(RSP), -64);
    } else {
        x86_put(s, X86_LEA, 0, RBP, 0, x86_m(RDI, f->frame_at), 0);
        f->in_scratch = f->frame;
    }
    x86_put(s, X86_MOV_ST, 0, RSI, 0, x86_m(c->base, X_TID), 0);
    x86_put(s, X86_MOV_ST, 0, RDX, 0, x86_m(c->base, X_NT), 0);
    if (f->k->params) {
        x86_put(s, X86_MOV, 0, RAX, 0, x86_m(RDI, 8 * f->k->bufs.n), 0);
        x86_put(s, X86_MOV_ST, 0, RAX, 0, x86_m(c->base, X_PARAMS), 0);
    }
}

void x86_code(xfn *f) {
    bool on_stack = f->frame <= X_STACK, bare = needs_no_frame(f);
    coder c = { .f = f, .s = f->s, .base = on_stack ? RSP : RBP };
    x86_asm *s = f->s;
    if (f->near >= 0) put_choice(f);
    if (!bare) begin_frame(&c);
    x86_put(s, X86_MOV, 0, RAX, 0, x86_r(RDI), 0);
    for (int i = 1; i < f->g.n; i++) {
        const xgreg *g = &f->g.at[i];
        if (g->kind == G_SUM && g->end >= 0) start_sum(&c, i);
        if (g->kind != G_BUF || g->end < 0) continue;
        int into = g->phys >= 0 ? g->phys : RCX;
        x86_put(s, X86_MOV, 0, into, 0, x86_m(RAX, (int32_t)g->at * 8), 0);
        if (g->phys < 0) set_greg(&c, i, RCX);
    }
    for (int i = 0; i < f->n_order; i++) put_op(&c, &f->ops.at[f->order[i]]);
    if (f->near >= 0) x86_put(s, X86_SFENCE, 0, 0, 0, x86_r(0), 0); /* what is past the caches is in no order */
    if (f->level != X86_SSE) x86_put(s, X86_VZEROUPPER, 0, 0, 0, x86_r(0), 0);
    if (!bare && on_stack) x86_put(s, X86_LEAVE, 0, 0, 0, x86_r(0), 0);
    if (!bare && !on_stack) x86_put(s, X86_POP, 0, RBP, 0, x86_r(0), 0);
    x86_put(s, X86_RET, 0, 0, 0, x86_r(0), 0);
}
