/* asm.c - implementation of asm.h. In: rows of ins.def with operands. Out: bytes in the arena. */
#include "emit/x86/asm.h"

const x86_ins x86_table[X86_N_INS] = {
    { 0 },
#define INS(id, name, ename, form, map, pp, w, ew, op, ext, rv, mv) { name, ename, form, map, pp, w, ew, op, ext, rv, mv },
#include "emit/x86/ins.def"
};

bool x86_has_legacy(x86_id id) {
    const x86_ins *i = &x86_table[id];
    bool plain =
        i->form == F_RVM || i->form == F_RM || i->form == F_MR || i->form == F_RVMI || i->form == F_RMI || i->form == F_VMI;
    return plain && i->map == 1 && i->w >= 0 && i->rv != KK && i->mv != KK && id != X86_MOVDDUP; /* that one is SSE3 */
}

void x86_asm_init(x86_asm *s, arena *a, bool trace) {
    memset(s, 0, sizeof *s);
    s->a = a;
    s->trace = trace;
}

static void reserve(x86_asm *s, size_t n) {
    if (s->n + n <= s->cap) return;
    size_t cap = s->cap ? s->cap * 2 : 4096;
    while (cap < s->n + n) cap *= 2;
    unsigned char *at = arena_alloc(s->a, cap);
    if (s->n) memcpy(at, s->at, s->n);
    s->at = at, s->cap = cap;
}
/* Bytes are written through a pointer of their own: through x86_asm, each would wait for the one before. */
static unsigned char *byte(unsigned char *at, unsigned b) {
    *at = (unsigned char)b;
    return at + 1;
}
static unsigned char *word32(unsigned char *at, int32_t v) {
    memcpy(at, &v, 4);
    return at + 4;
}
static void add_fixup(x86_asm *s, const unsigned char *at, int tail, int kind, int to) {
    VEC_PUSH(s->a, &s->fixups, (x86_fixup){ (uint32_t)(at - s->at), (uint32_t)tail, kind, to });
}

/* ---- encoding ---- */

static unsigned bit(int r, int n) { return r < 0 ? 0 : (unsigned)r >> n & 1; }

static int imm_bytes(const x86_ins *i, int32_t imm) {
    switch (i->form) {
    case F_RVMI:
    case F_RMI:
    case F_MRI:
    case F_VMI:
    case F_RVMR:
        return 1;
    case G_RMI:
    case G_MI4:
        return 4;
    case G_MI:
        return i->op == 0x81 && imm >= -128 && imm <= 127 ? 1 : 4;
    default:
        return 0;
    }
}

static unsigned char *modrm(x86_asm *s, unsigned char *at, int reg, const x86_opnd *rm, bool evex, int tail) {
    unsigned r = (unsigned)(reg & 7) << 3;
    if (!rm->is_mem) return byte(at, 0xC0 | r | (unsigned)(rm->r & 7));
    const x86_mem *m = &rm->m;
    if (m->base < X86_NO_REG) { /* rip-relative */
        at = byte(at, r | 5);
        add_fixup(s, at, tail, m->base, m->disp);
        return word32(at, 0);
    }
    unsigned base = (unsigned)m->base & 7;
    bool sib = m->index != X86_NO_REG || base == 4;
    unsigned mod = m->disp == 0 && base != 5 ? 0 : !evex && m->disp >= -128 && m->disp <= 127 ? 1 : 2;
    at = byte(at, mod << 6 | r | (sib ? 4 : base));
    if (sib) at = byte(at, (unsigned)m->scale << 6 | (m->index == X86_NO_REG ? 4u : (unsigned)m->index & 7) << 3 | base);
    if (mod == 1) at = byte(at, (unsigned)m->disp & 255);
    return mod == 2 ? word32(at, m->disp) : at;
}

static unsigned char *put_legacy(x86_asm *s, unsigned char *at, const x86_ins *i, int reg, const x86_opnd *rm, int tail,
                                 uint32_t op) {
    static const unsigned char prefixes[] = { 0, 0x66, 0xF3, 0xF2 };
    if (i->pp) at = byte(at, prefixes[i->pp]);
    unsigned b = rm->is_mem ? bit(rm->m.base, 3) : bit(rm->r, 3), x = rm->is_mem ? bit(rm->m.index, 3) : 0;
    unsigned rex = (unsigned)i->w << 3 | bit(reg, 3) << 2 | x << 1 | b;
    if (rex || (i->rv == KB && reg > 3)) at = byte(at, 0x40 | rex);
    if (i->map == 1) at = byte(at, 0x0F);
    return modrm(s, byte(at, op), reg, rm, false, tail);
}

static unsigned char *put_vex(x86_asm *s, unsigned char *at, const x86_ins *i, int vl, int reg, int vvvv, const x86_opnd *rm,
                              int tail) {
    unsigned b = rm->is_mem ? bit(rm->m.base, 3) : bit(rm->r, 3), x = rm->is_mem ? bit(rm->m.index, 3) : 0;
    unsigned last = (~(unsigned)(vvvv < 0 ? 0 : vvvv) & 15) << 3 | (unsigned)vl << 2 | i->pp;
    if (i->map == 1 && !i->w && !b && !x) {
        at = byte(at, 0xC5);
        at = byte(at, (bit(reg, 3) ^ 1) << 7 | last);
    } else {
        at = byte(at, 0xC4);
        at = byte(at, (bit(reg, 3) ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | i->map);
        at = byte(at, (unsigned)i->w << 7 | last);
    }
    return modrm(s, byte(at, i->op), reg, rm, false, tail);
}

static unsigned char *put_evex(x86_asm *s, unsigned char *at, const x86_ins *i, int vl, int reg, int vvvv, const x86_opnd *rm,
                               int tail) {
    unsigned b = rm->is_mem ? bit(rm->m.base, 3) : bit(rm->r, 3), x = rm->is_mem ? bit(rm->m.index, 3) : bit(rm->r, 4);
    unsigned v = (unsigned)(vvvv < 0 ? 0 : vvvv);
    at = byte(at, 0x62);
    at = byte(at, (bit(reg, 3) ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (bit(reg, 4) ^ 1) << 4 | i->map);
    at = byte(at, (unsigned)i->ew << 7 | (~v & 15) << 3 | 4 | i->pp);
    at = byte(at, (unsigned)vl << 5 | (~v >> 4 & 1) << 3 | (i->form == F_RVMK ? 1u : i->form == F_RMZ ? 0x81u : 0u));
    return modrm(s, byte(at, i->op), reg, rm, true, tail);
}

void x86_put(x86_asm *s, x86_id id, int vl, int reg, int vvvv, x86_opnd rm, int32_t imm) {
    const x86_ins *i = &x86_table[id];
    reserve(s, 32);
    uint32_t start = (uint32_t)s->n;
    unsigned char *at = s->at + start;
    bool evex = false;
    int n_imm = imm_bytes(i, imm);
    if (i->rv == KX && i->mv != KV) vl = 0;
    if (i->form == G_RAW) {
        for (unsigned k = 0; k < i->ext; k++) at = byte(at, i->op >> 8 * k & 255);
    } else if (i->form == G_O) {
        if (reg > 7) at = byte(at, 0x41);
        at = byte(at, i->op + ((unsigned)reg & 7));
    } else if (i->form >= G_RM) {
        if (i->form == G_MI || i->form == G_MI4 || i->form == G_M) reg = i->ext;
        at = put_legacy(s, at, i, reg, &rm, n_imm, n_imm == 1 ? 0x83 : i->op);
    } else if (s->legacy) {
        if (i->form == F_VMI) rm = x86_r(reg), reg = i->ext;
        at = put_legacy(s, at, i, reg, &rm, n_imm, i->op);
    } else {
        if (i->form == F_RM || i->form == F_RMZ || i->form == F_MR || i->form == F_RMI || i->form == F_MRI) vvvv = 0;
        if (i->form == F_VMI) vvvv = reg, reg = i->ext;
        evex = i->w < 0 || vl == 2 || reg > 15 || vvvv > 15 || (!rm.is_mem && rm.r > 15);
        if (evex)
            at = put_evex(s, at, i, vl, reg, vvvv, &rm, n_imm);
        else
            at = put_vex(s, at, i, vl, reg, vvvv, &rm, n_imm);
    }
    if (n_imm == 1) at = byte(at, (unsigned)imm & 255);
    if (n_imm == 4) at = word32(at, imm);
    s->n = (size_t)(at - s->at);
    if (s->trace)
        VEC_PUSH(s->a, &s->records, (x86_record){ start, (uint16_t)id, (int8_t)vl, (int8_t)reg, (int8_t)vvvv, evex, imm, rm });
}

void x86_movabs(x86_asm *s, int reg, int64_t v) {
    if (v == 0) {
        x86_put(s, X86_XOR32, 0, reg, 0, x86_r(reg), 0);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        x86_put(s, X86_MOVI, 0, 0, 0, x86_r(reg), (int32_t)v);
    } else { /* from the pool: no further form for a rare case */
        int32_t at = x86_pool(s, &v, 8);
        x86_put(s, X86_MOV, 0, reg, 0, x86_m(X86_POOL, at), 0);
    }
}

/* ---- labels ---- */

int x86_label(x86_asm *s) {
    VEC_PUSH(s->a, &s->labels, UINT32_MAX);
    return s->labels.n - 1;
}
void x86_bind(x86_asm *s, int label) { s->labels.at[label] = (uint32_t)s->n; }

void x86_jump(x86_asm *s, x86_id id, int label) {
    const x86_ins *i = &x86_table[id];
    reserve(s, 16);
    uint32_t start = (uint32_t)s->n, to = s->labels.at[label];
    int64_t back = (int64_t)to - (int64_t)start - 2;
    if (s->trace) {
        x86_record r = { .at = start, .id = (uint16_t)id, .imm = label };
        VEC_PUSH(s->a, &s->records, r);
    }
    unsigned char *at = s->at + start;
    if (id != X86_CALL && to != UINT32_MAX && back >= -128) {
        at = byte(byte(at, i->op), (unsigned)back & 255);
    } else {
        if (id == X86_CALL || id == X86_JMP)
            at = byte(at, id == X86_CALL ? 0xE8 : 0xE9);
        else
            at = byte(byte(at, 0x0F), i->op + 0x10);
        add_fixup(s, at, 0, 0, label);
        at = word32(at, 0);
    }
    s->n = (size_t)(at - s->at);
}

void x86_align(x86_asm *s, size_t to) {
    static const unsigned char nops[9][9] = { { 0x90 },
                                              { 0x66, 0x90 },
                                              { 0x0F, 0x1F, 0x00 },
                                              { 0x0F, 0x1F, 0x40, 0x00 },
                                              { 0x0F, 0x1F, 0x44, 0x00, 0x00 },
                                              { 0x66, 0x0F, 0x1F, 0x44, 0x00, 0x00 },
                                              { 0x0F, 0x1F, 0x80, 0x00, 0x00, 0x00, 0x00 },
                                              { 0x0F, 0x1F, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00 },
                                              { 0x66, 0x0F, 0x1F, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00 } };
    reserve(s, to);
    size_t left = (to - s->n % to) % to;
    while (left > 0) {
        size_t k = left < 9 ? left : 9;
        memcpy(s->at + s->n, nops[k - 1], k);
        s->n += k, left -= k;
    }
}

/* ---- pool ---- */

/* As many lists as entries, so that each is short. */
static void grow_pool_hash(x86_asm *s) {
    s->n_pool_hash = s->n_pool_hash ? 2 * s->n_pool_hash : 256;
    s->pool_hash = ARENA_ARRAY(s->a, int, s->n_pool_hash);
    for (int e = 0; e < s->pool_key.n; e++) {
        int *first = &s->pool_hash[s->pool_key.at[e] & (s->n_pool_hash - 1)];
        s->pool_next.at[e] = *first;
        *first = e + 1;
    }
}

int32_t x86_pool(x86_asm *s, const void *bytes, size_t n) {
    if ((uint32_t)s->pool_key.n >= s->n_pool_hash) grow_pool_hash(s);
    uint32_t key = (uint32_t)hash_bytes(bytes, n, n), h = key & (s->n_pool_hash - 1);
    for (int e = s->pool_hash[h]; e; e = s->pool_next.at[e - 1]) {
        uint32_t at = s->pool_index.at[e - 1];
        if (at % n == 0 && at + n <= (uint32_t)s->pool.n && !memcmp(s->pool.at + at, bytes, n)) return (int32_t)at;
    }
    while ((size_t)s->pool.n % n) VEC_PUSH(s->a, &s->pool, 0);
    int32_t at = s->pool.n;
    for (size_t i = 0; i < n; i++) VEC_PUSH(s->a, &s->pool, ((const unsigned char *)bytes)[i]);
    VEC_PUSH(s->a, &s->pool_index, (uint32_t)at);
    VEC_PUSH(s->a, &s->pool_key, key);
    VEC_PUSH(s->a, &s->pool_next, s->pool_hash[h]);
    s->pool_hash[h] = s->pool_index.n;
    return at;
}

size_t x86_finish(x86_asm *s, size_t *out_text) {
    *out_text = s->n;
    size_t pool = (s->n + 63) & ~(size_t)63, cells = (pool + (size_t)s->pool.n + 7) & ~(size_t)7;
    reserve(s, cells + 8 * (size_t)s->n_cells - s->n);
    memset(s->at + s->n, 0, cells + 8 * (size_t)s->n_cells - s->n);
    if (s->pool.n) memcpy(s->at + pool, s->pool.at, (size_t)s->pool.n);
    for (int i = 0; i < s->fixups.n; i++) {
        const x86_fixup *f = &s->fixups.at[i];
        size_t to = f->kind == X86_POOL   ? pool + (size_t)f->to
                    : f->kind == X86_CELL ? cells + 8 * (size_t)f->to
                                          : s->labels.at[f->to];
        int32_t rel = (int32_t)((int64_t)to - (int64_t)(f->at + 4 + f->tail));
        memcpy(s->at + f->at, &rel, 4);
    }
    s->n = cells + 8 * (size_t)s->n_cells;
    return cells;
}

/* ---- listing ---- */

static void print_reg(int r, x86_kind kind, int vl, str *out) {
    static const char *const r64[] = { "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                       "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15" };
    static const char *const r32[] = { "eax", "ecx", "edx",  "ebx",  "esp",  "ebp",  "esi",  "edi",
                                       "r8d", "r9d", "r10d", "r11d", "r12d", "r13d", "r14d", "r15d" };
    static const char *const r16[] = { "ax",  "cx",  "dx",   "bx",   "sp",   "bp",   "si",   "di",
                                       "r8w", "r9w", "r10w", "r11w", "r12w", "r13w", "r14w", "r15w" };
    static const char *const r8[] = { "al",  "cl",  "dl",   "bl",   "spl",  "bpl",  "sil",  "dil",
                                      "r8b", "r9b", "r10b", "r11b", "r12b", "r13b", "r14b", "r15b" };
    if (kind == KR || kind == KG || kind == KW || kind == KB) {
        str_add(out, (kind == KR ? r64 : kind == KG ? r32 : kind == KW ? r16 : r8)[r & 15]);
        return;
    }
    if (kind == KK) {
        str_addf(out, "k%d", r);
        return;
    }
    int width = kind == KV ? vl : kind == KH ? vl - 1 : kind == KQ ? vl - 2 : 0;
    str_addf(out, "%cmm%d", "xyz"[width < 0 ? 0 : width], r);
}

static void print_rm(const x86_asm *s, const x86_record *r, x86_kind kind, str *out) {
    if (!r->rm.is_mem) {
        print_reg(r->rm.r, kind, r->vl, out);
        return;
    }
    const x86_mem *m = &r->rm.m;
    (void)s;
    if (m->base < X86_NO_REG) {
        str_addf(out, "[%s+0x%x]", m->base == X86_POOL ? "pool" : "cell", (unsigned)m->disp);
        return;
    }
    str_add(out, "[");
    print_reg(m->base, KR, 0, out);
    if (m->index != X86_NO_REG) {
        str_add(out, "+");
        print_reg(m->index, KR, 0, out);
        str_addf(out, "*%d", 1 << m->scale);
    }
    if (m->disp) str_addf(out, "%c0x%x", m->disp < 0 ? '-' : '+', m->disp < 0 ? 0u - (unsigned)m->disp : (unsigned)m->disp);
    str_add(out, "]");
}

void x86_print(const x86_asm *s, const x86_record *r, str *out) {
    const x86_ins *i = &x86_table[r->id];
    x86_kind rv = (x86_kind)i->rv, mv = (x86_kind)i->mv;
    bool legacy = s->legacy && i->form < G_RM;
    str_add(out, r->evex && i->ename[0] ? i->ename : i->name + legacy); /* without its v */
    str_add(out, i->form == G_RAW ? "" : " ");
    switch (i->form) {
    case F_RVM:
    case F_RVMK:
    case F_RVMI:
    case F_RVMR:
        print_reg(r->reg, rv, r->vl, out), str_add(out, i->form == F_RVMK ? "{k1}," : ",");
        if (!legacy) print_reg(r->vvvv, rv == KK ? KV : rv, r->vl, out), str_add(out, ",");
        print_rm(s, r, mv, out);
        break;
    case F_RM:
    case F_RMZ:
    case F_RMI:
    case G_RM:
    case G_RMI:
        print_reg(r->reg, rv, r->vl, out), str_add(out, i->form == F_RMZ ? "{k1}{z}," : ",");
        print_rm(s, r, mv, out);
        break;
    case F_MR:
    case F_MRI:
    case G_MR:
        print_rm(s, r, mv, out), str_add(out, ",");
        print_reg(r->reg, rv, r->vl, out);
        break;
    case F_VMI:
        if (!legacy) print_reg(r->vvvv, KV, r->vl, out), str_add(out, ",");
        print_rm(s, r, mv, out);
        break;
    case G_MI:
    case G_MI4:
    case G_M:
        print_rm(s, r, mv, out);
        break;
    case G_O:
        print_reg(r->reg, KR, 0, out);
        break;
    case G_J:
        str_addf(out, "0x%x", (unsigned)s->labels.at[r->imm]);
        return;
    default:
        return;
    }
    if (i->form == F_RVMR)
        str_add(out, ","), print_reg(r->imm >> 4 & 15, KV, r->vl, out);
    else if (imm_bytes(i, r->imm) && i->form >= G_RM && i->w)
        str_addf(out, ",0x%llx", (unsigned long long)(int64_t)r->imm);
    else if (imm_bytes(i, r->imm))
        str_addf(out, ",0x%x", i->form < G_RM ? (unsigned)r->imm & 255 : (unsigned)r->imm);
}
