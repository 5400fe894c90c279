/* x86_select.c - kernel instructions to operations over virtual registers: what c.c writes as text, in the same order of
 * operations. In: a tiled kernel. Out: the lists of xfn. What has no form here is noted in xfn.unsupported. */
#include "emit/x86_ir.h"

#include <math.h>

enum { MAX_CHUNKS = 16, MAX_BODY = 400 };

typedef struct kval { /* a kernel register */
    uint8_t t, lanes, cl, n;
    vreg r[MAX_CHUNKS];
} kval;

typedef struct selector {
    xfn *f;
    const kernel *k;
    kval *at;       /* [ins] */
    int64_t *local; /* [bufs] frame offsets of the local buffers; -1 for the others */
    bool *bcast;    /* [ins] one lane, used by wider instructions */
    bool wide8;     /* some vector has 8-byte lanes: all are split alike */
    int vec;        /* lanes of a chunk at most */
} selector;

static xtype xt(tn_dtype t) {
    t = kernel_reg_dtype(t);
    return t == TN_F32 ? XF32 : t == TN_F64 ? XF64 : t == TN_I64 ? XI64 : XI32;
}
static bool is_wide(xtype t) { return t == XF64 || t == XI64 || t == XM64; }

void x86_unsupported(xfn *f, const char *what) {
    if (!f->unsupported) f->unsupported = what;
}

/* ---- operations and their numbers ---- */

static int32_t innermost(const xfn *f) {
    for (int i = f->open.n - 1; i > 0; i--)
        if (!f->loops.at[f->open.at[i]].fixed) return f->open.at[i];
    return 0;
}
static int32_t loop_above(const xfn *f, int32_t l) {
    for (l = f->loops.at[l].parent; l > 0 && f->loops.at[l].fixed; l = f->loops.at[l].parent) {
    }
    return l < 0 ? 0 : l;
}

vreg x86_new(xfn *f, int vl) {
    VEC_PUSH(f->a, &f->v, (xvreg){ .vl = (uint8_t)vl, .loop = f->pre_of >= 0 ? loop_above(f, f->pre_of) : innermost(f) });
    return (vreg)(f->v.n - 1);
}

xop *x86_add(xfn *f, xop op) {
    op.loop = op.op == P_LOOP || op.op == P_END ? op.loop : f->pre_of >= 0 ? loop_above(f, f->pre_of) : innermost(f);
    op.block = f->block;
    VEC_PUSH(f->a, &f->ops, op);
    int32_t at = f->ops.n - 1;
    if (op.dst && !f->v.at[op.dst].def) f->v.at[op.dst].def = at;
    if (f->pre_of >= 0)
        VEC_PUSH(f->a, &f->loops.at[f->pre_of].pre, at);
    else
        VEC_PUSH(f->a, &f->seq, at);
    return &f->ops.at[at];
}

static uint32_t hash_op(const xop *o) {
    uint32_t h =
        o->op * 0x9E3779B1u ^ o->a * 0x85EBCA6Bu ^ o->b * 0xC2B2AE35u ^ o->c * 0x27D4EB2Fu ^ (uint32_t)o->imm * 0x165667B1u;
    return (h ^ h >> 15 ^ o->vl) & 255;
}

vreg x86_value(xfn *f, xop op) {
    bool fixed = !(f->v.at[op.a].is_mutable || f->v.at[op.b].is_mutable || f->v.at[op.c].is_mutable);
    uint32_t h = hash_op(&op);
    for (int32_t e = fixed ? f->bucket[h] : 0; e; e = f->numbered_next.at[e - 1]) {
        const xop *o = &f->ops.at[f->numbered.at[e - 1]];
        if (o->op == op.op && o->vl == op.vl && o->a == op.a && o->b == op.b && o->c == op.c && o->imm == op.imm &&
            o->lanes == op.lanes)
            return o->dst;
    }
    op.dst = x86_new(f, op.vl);
    x86_add(f, op);
    if (fixed) {
        VEC_PUSH(f->a, &f->numbered, f->ops.n - 1);
        VEC_PUSH(f->a, &f->numbered_next, f->bucket[h]);
        VEC_PUSH(f->a, &f->numbered_hash, (int32_t)h);
        f->bucket[h] = f->numbered.n;
    }
    return op.dst;
}

static void open_scope(xfn *f) {
    VEC_PUSH(f->a, &f->scopes, f->numbered.n);
    f->block = ++f->n_blocks;
}
static void close_scope(xfn *f) {
    int to = f->scopes.at[--f->scopes.n];
    while (f->numbered.n > to) {
        int e = --f->numbered.n;
        f->bucket[f->numbered_hash.at[e]] = f->numbered_next.at[e];
        f->numbered_next.n--, f->numbered_hash.n--;
    }
    f->block = ++f->n_blocks;
}

/* Constants are made in front of the innermost loop that runs long enough for it to pay. */
static vreg const_at(xfn *f, int32_t pool, bool full, int vl) {
    int32_t l = innermost(f);
    while (l > 0 && f->loops.at[l].trips < 8 && !f->loops.at[l].par) l = loop_above(f, l);
    for (int i = f->consts.n - 1; i >= 0; i--)
        if (f->consts.at[i].loop == l && f->consts.at[i].pool == pool) return f->consts.at[i].v;
    int32_t before = f->pre_of;
    f->pre_of = l;
    vreg r = x86_new(f, vl);
    x86_add(f, (xop){ .op = P_CONST, .vl = (uint8_t)vl, .dst = r, .imm = pool });
    f->pre_of = before;
    f->v.at[r].full = full;
    VEC_PUSH(f->a, &f->consts, (xconst){ l, pool, r });
    return r;
}

static int32_t pool_of(xfn *f, xtype t, uint64_t bits) {
    unsigned char bytes[64];
    size_t size = t == XF32 || t == XI32 ? 4 : 8;
    for (size_t i = 0; i < (size_t)f->vb; i += size) memcpy(bytes + i, &bits, size);
    return x86_pool(f->s, bytes, (size_t)f->vb);
}

static int full_vl(const xfn *f) { return f->vb == 64 ? 2 : f->vb == 32 ? 1 : 0; }

vreg x86_const_bits(xfn *f, xtype t, uint64_t bits) { return const_at(f, pool_of(f, t, bits), true, full_vl(f)); }

static uint64_t value_bits(xtype t, double fv, int64_t iv) {
    uint64_t bits = (uint64_t)iv;
    float s = (float)fv;
    if (t == XF32) {
        uint32_t w;
        memcpy(&w, &s, 4);
        bits = w;
    }
    if (t == XF64) memcpy(&bits, &fv, 8);
    if (t == XI32) bits &= 0xffffffffu;
    return bits;
}
vreg x86_const(xfn *f, xtype t, double fv, int64_t iv) { return x86_const_bits(f, t, value_bits(t, fv, iv)); }

/* 0, stride, 2 * stride .. from lane `first` on. */
static vreg const_steps(xfn *f, xtype t, int lanes, int64_t first, int64_t stride, int64_t base) {
    unsigned char bytes[64] = { 0 };
    size_t size = is_wide(t) ? 8 : 4, n = (size_t)f->vb;
    for (int l = 0; l < lanes; l++) {
        int64_t v = base + (first + l) * stride;
        uint64_t bits = value_bits(t, (double)v, v);
        memcpy(bytes + (size_t)l * size, &bits, size);
    }
    return const_at(f, x86_pool(f->s, bytes, n), false, x86_vl(t, lanes));
}

int x86_import(xfn *f, const char *name) {
    for (int i = 0; i < f->imports->names.n; i++)
        if (!strcmp(f->imports->names.at[i], name)) return i;
    VEC_PUSH(f->a, &f->imports->names, name);
    return f->imports->names.n - 1;
}

/* ---- addresses ---- */

static greg new_greg(xfn *f, xgreg g) {
    VEC_PUSH(f->a, &f->g, g);
    return f->g.n - 1;
}

static greg base_of(xfn *f, int buf, const int64_t *local) {
    for (int i = 1; i < f->g.n; i++)
        if ((f->g.at[i].kind == G_BUF || f->g.at[i].kind == G_LOCAL) && f->g.at[i].loop == buf) return i;
    bool is_local = local[buf] >= 0;
    return new_greg(f, (xgreg){ .kind = is_local ? G_LOCAL : G_BUF, .loop = buf, .at = is_local ? local[buf] : buf });
}

static greg induction(xfn *f, greg parent, int32_t loop, int64_t coef) {
    xloop *l = &f->loops.at[loop];
    for (int i = 0; i < l->ivs.n; i++) {
        const xgreg *g = &f->g.at[l->ivs.at[i]];
        if (g->parent == parent && g->coef == coef) return l->ivs.at[i];
    }
    greg g = new_greg(f, (xgreg){ .kind = G_IV, .parent = parent, .loop = loop, .coef = coef });
    VEC_PUSH(f->a, &f->loops.at[loop].ivs, g);
    return g;
}

/* base + scale * x as an address; a value when base is 0. */
static xmem address(xfn *f, greg base, affine x, int64_t scale) {
    xmem m = { .base = base, .disp = x.base * scale };
    int left = x.n;
    for (int i = 1; i < f->open.n && left > 0; i++) {
        const xloop *l = &f->loops.at[f->open.at[i]];
        int64_t coef = affine_coef(x, l->var) * scale;
        if (!coef) continue;
        left--;
        m.disp += coef * (l->lo + l->offset * l->step);
        if (!l->fixed) m.base = induction(f, m.base, f->open.at[i], coef * l->step);
    }
    if (left) x86_unsupported(f, "an index over a loop that is not open");
    return m;
}

static xmem element(selector *s, const kins *in, affine x, int64_t size) {
    greg base = base_of(s->f, in->buf, s->local);
    return address(s->f, base, x, size);
}

/* The register that holds clamp(v) * stride, made where v is known. */
static greg dynamic(xfn *f, vreg v, xdyn d) {
    int32_t l = innermost(f), front = -1;
    while (l > 0 && l != f->v.at[v].loop) front = l, l = loop_above(f, l);
    if (l != f->v.at[v].loop) front = -1;
    for (int i = f->dyns.n - 1; i >= 0; i--) {
        const xdyn *o = &f->dyns.at[i];
        if (o->v == v && o->lane == d.lane && o->n == d.n && o->stride == d.stride && o->clamp == d.clamp &&
            f->g.at[o->g].loop == front && f->g.at[o->g].at == (front >= 0 ? 0 : f->block))
            return o->g;
    }
    d.v = v;
    d.g = new_greg(f, (xgreg){ .kind = G_DYN, .loop = front, .at = front >= 0 ? 0 : f->block });
    VEC_PUSH(f->a, &f->dyns, d);
    int32_t before = f->pre_of;
    if (front >= 0) f->pre_of = front;
    x86_add(f, (xop){ .op = P_DYN, .a = v, .extra = f->dyns.n - 1, .mem = { .index = d.g } });
    f->pre_of = before;
    return d.g;
}

/* ---- operands ---- */

static int chunk(const selector *s, int lanes) { return lanes < s->vec ? lanes : s->vec; }

static kval shaped(const selector *s, xtype t, int lanes) {
    kval v = { .t = (uint8_t)t, .lanes = (uint8_t)lanes, .cl = (uint8_t)chunk(s, lanes) };
    v.n = (uint8_t)(lanes / v.cl);
    if (v.n > MAX_CHUNKS) {
        x86_unsupported(s->f, "a vector of too many registers");
        v.n = 1;
    }
    return v;
}

static xval operand(selector *s, reg r, int lanes, int i) {
    const kval *v = &s->at[r];
    xval x = { v->r[v->n > 1 ? i : 0], (xtype)v->t };
    if (!r || !x.r) {
        x86_unsupported(s->f, "an operand without a value");
        return (xval){ x86_const(s->f, XI32, 0, 0), XI32 };
    }
    if (v->lanes == lanes || lanes == 1) return x;
    if (v->lanes != 1) {
        x86_unsupported(s->f, "operands of different lanes");
        return x;
    }
    return (xval){ x86_broadcast(s->f, x), x.t };
}

static xval copied(xfn *f, xval x) { /* a value of its own of a register that will change */
    if (!f->v.at[x.r].is_mutable) return x;
    vreg r = x86_new(f, f->v.at[x.r].vl);
    x86_add(f, (xop){ .op = P_MOV, .vl = f->v.at[x.r].vl, .dst = r, .a = x.r });
    return (xval){ r, x.t };
}

static xval const_val(xfn *f, xtype t, double fv, int64_t iv) { return (xval){ x86_const(f, t, fv, iv), t }; }

/* ---- loads ---- */

static xval word(xfn *f, x86_id id, int vl, xmem m, xtype t) {
    vreg r = x86_new(f, vl);
    x86_add(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .dst = r, .has_mem = true, .mem = m });
    return (xval){ r, t };
}

/* Memory words to register words: n neighbouring ones. Narrow ones come as 32-bit integers. */
static xval load_raw(selector *s, tn_dtype stored, xmem m, int n, bool spread) {
    xfn *f = s->f;
    size_t size = dtype_size(stored);
    xtype t = size >= 4 ? xt(stored) : XI32;
    if (size >= 4) {
        int bytes = n * (int)size;
        if (n == 1 && spread) {
            int vl = full_vl(f);
            xval x = word(f, size == 4 ? X86_BROADCASTSS : vl ? X86_BROADCASTSD : X86_MOVDDUP, vl, m, t);
            f->v.at[x.r].full = true;
            return x;
        }
        return word(f, bytes == 4 ? X86_MOVSS : bytes == 8 ? X86_MOVSD : X86_MOVUPS, x86_vl(t, n), m, t);
    }
    bool sign = stored == TN_I8;
    if (n == 1 || (n == 2 && size == 1)) {
        vreg r = x86_new(f, 0);
        int how = size == 2 || n == 2 ? 3 : sign ? 2 : 1;
        x86_add(f, (xop){ .op = P_LDNARROW, .dst = r, .imm = how, .has_mem = true, .mem = m });
        if (n == 2) r = x86_value(f, (xop){ .op = sign ? X86_PMOVSXBD : X86_PMOVZXBD, .a = r });
        return (xval){ r, XI32 };
    }
    x86_id id = size == 2 ? X86_PMOVZXWD : sign ? X86_PMOVSXBD : X86_PMOVZXBD;
    if (n == 2) { /* two words: 4 bytes */
        xval x = word(f, X86_MOVSS, 0, m, XI32);
        return (xval){ x86_value(f, (xop){ .op = (uint16_t)id, .a = x.r }), XI32 };
    }
    return word(f, id, x86_vl(XI32, n), m, XI32);
}

static xval from_stored(xfn *f, tn_dtype stored, xval raw, int n) {
    xval args[3] = { raw };
    switch (stored) {
    case TN_F16:
        return x86_expr(f, "FROM_HALF(x)", XF32, args, n);
    case TN_BF16:
        return x86_expr(f, "FROM_BF16(x)", XF32, args, n);
    case TN_BOOL:
        return x86_bin(f, '-', const_val(f, XI32, 0, 0), raw, n);
    default:
        return raw;
    }
}

static void open_masks(selector *s, const kins *in, int lane) {
    xfn *f = s->f;
    for (int m = 0; m < in->n_mask; m++) {
        xmem e = address(f, 0, in->mask[m].e, 1);
        e.disp += lane * in->mask_lane[m] - in->mask[m].lo;
        VEC_PUSH(f->a, &f->bounds, in->mask[m].hi - in->mask[m].lo);
        x86_add(f, (xop){ .op = P_IF, .has_mem = true, .mem = e, .extra = f->bounds.n - 1 });
        open_scope(f);
    }
}
static void close_ifs(xfn *f, int n) {
    for (int i = 0; i < n; i++) {
        x86_add(f, (xop){ .op = P_ENDIF });
        close_scope(f);
    }
}

/* The lanes for which all masks hold. */
static xval lane_mask(selector *s, const kins *in, int first, int n) {
    xfn *f = s->f;
    xval all = { 0 };
    for (int m = 0; m < in->n_mask; m++) {
        xmem e = address(f, 0, in->mask[m].e, 1);
        int64_t lo = in->mask[m].lo, hi = in->mask[m].hi, stride = in->mask_lane[m];
        if (lo < -(1ll << 30) || hi > 1ll << 30 || stride > 1 << 20 || stride < -(1 << 20))
            x86_unsupported(f, "a mask over a huge range");
        vreg g = x86_new(f, 0);
        x86_add(f, (xop){ .op = P_FROMG, .type = XI32, .dst = g, .has_mem = true, .mem = { .base = e.base } });
        xval at = { x86_broadcast(f, (xval){ g, XI32 }), XI32 };
        at = x86_bin(f, '+', at, (xval){ const_steps(f, XI32, n, first, stride, e.disp), XI32 }, n);
        xval in_range = x86_bin(f, '~', x86_bin(f, '<', at, const_val(f, XI32, 0, lo), n),
                                x86_bin(f, '<', at, const_val(f, XI32, 0, hi), n), n);
        all = m ? x86_bin(f, '&', all, in_range, n) : in_range;
    }
    return all;
}

/* Four-byte and eight-byte words a stride apart, gathered without a detour through memory. */
static xval load_strided(selector *s, tn_dtype stored, xmem m, int64_t stride, int n) {
    xfn *f = s->f;
    bool big = dtype_size(stored) == 8;
    int per = big ? 2 : 4;
    vreg part[4] = { 0 };
    for (int l = 0; l < n; l++) {
        xmem at = m;
        at.disp += l * stride;
        if (l % per == 0) {
            part[l / per] = word(f, big ? X86_MOVSD : X86_MOVSS, 0, at, XI32).r;
            continue;
        }
        vreg r = x86_new(f, 0);
        x86_add(f, (xop){ .op = big ? X86_MOVHPS : X86_INSERTPS,
                          .dst = r,
                          .a = part[l / per],
                          .imm = l % per << 4,
                          .has_mem = true,
                          .mem = at });
        part[l / per] = r;
    }
    int parts = (n + per - 1) / per;
    for (int half = 1; half < parts; half *= 2) /* pairs to 256, then 512 bits */
        for (int i = 0; i < parts; i += 2 * half)
            part[i] = x86_value(f, (xop){ .op = half == 1 ? X86_INSERTF128 : X86_INSERTF64X4,
                                          .vl = (uint8_t)half,
                                          .a = part[i],
                                          .b = part[i + half],
                                          .imm = 1 });
    return (xval){ part[0], xt(stored) };
}

/* Lane by lane: strides, masks of single lanes, an index of each lane's own. */
static xval load_lanes(selector *s, const kins *in, int first, int n) {
    xfn *f = s->f;
    tn_dtype stored = (tn_dtype)in->src;
    int64_t size = (int64_t)dtype_size(stored);
    affine x = in->idx;
    xmem m = element(s, in, x, size);
    m.disp += first * in->lane_stride * size;
    bool own_index = in->dyn && s->at[in->dyn].lanes > 1;
    if (in->dyn && !own_index)
        m.index = dynamic(
            f, operand(s, in->dyn, 1, 0).r,
            (xdyn){ .n = in->dyn_n, .stride = in->dyn_stride * size, .clamp = true, .wide = is_wide((xtype)s->at[in->dyn].t) });
    if (!own_index && !in->n_mask && size >= 4) return load_strided(s, stored, m, in->lane_stride * size, n);
    xlload l = { .stride = in->lane_stride * size, .bytes = (uint8_t)size, .sign = stored == TN_I8 };
    vreg mask = 0, dyn = 0;
    if (in->n_mask) mask = x86_mask32(f, lane_mask(s, in, first, n), n).r;
    if (own_index) {
        dyn = operand(s, in->dyn, in->lanes, first / (s->at[in->dyn].cl)).r;
        if (s->at[in->dyn].lanes != in->lanes) x86_unsupported(f, "an index of other lanes");
        l.n = in->dyn_n, l.dyn_stride = in->dyn_stride * size, l.dyn_wide = is_wide((xtype)s->at[in->dyn].t);
    }
    xtype t = size == 8 ? xt(stored) : size == 4 ? xt(stored) : XI32;
    if (mask && !own_index && in->lane_stride == 1 && size >= 4 && f->level == X86_AVX2) {
        vreg r = x86_new(f, x86_vl(t, n));
        vreg wide = size == 8 ? x86_mask64(f, (xval){ mask, XI32 }, n).r : mask;
        if (n * size >= 16) {
            x86_add(f, (xop){ .op = size == 8 ? X86_MASKLOADQ : X86_MASKLOADD,
                              .vl = (uint8_t)x86_vl(t, n),
                              .dst = r,
                              .a = wide,
                              .has_mem = true,
                              .mem = m });
            return (xval){ r, t };
        }
    }
    VEC_PUSH(f->a, &f->lloads, l);
    vreg r = x86_new(f, x86_vl(t, n));
    x86_add(f, (xop){ .op = P_LLOAD,
                      .vl = (uint8_t)x86_vl(t, n),
                      .lanes = (uint8_t)n,
                      .dst = r,
                      .a = mask,
                      .b = dyn,
                      .has_mem = true,
                      .mem = m,
                      .extra = f->lloads.n - 1 });
    return (xval){ r, t };
}

static bool lanes_vary(const selector *s, const kins *in) {
    for (int m = 0; m < in->n_mask; m++)
        if (in->mask_lane[m]) return true;
    return in->lane_stride != 1 || (in->dyn && s->at[in->dyn].lanes > 1);
}

static void sel_load(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    tn_dtype stored = (tn_dtype)in->src;
    xtype t = xt((tn_dtype)in->dtype);
    int64_t size = (int64_t)dtype_size(stored);
    kval out = shaped(s, t, in->lanes);
    int64_t imm = stored == TN_BOOL ? -(in->imm_int != 0) : in->imm_int;
    if (in->lanes > 1 && lanes_vary(s, in)) {
        for (int c = 0; c < out.n; c++) {
            xval v = from_stored(f, stored, load_lanes(s, in, c * out.cl, out.cl), out.cl);
            if (in->n_mask) v = x86_sel(f, lane_mask(s, in, c * out.cl, out.cl), v, const_val(f, t, in->imm, imm), out.cl);
            out.r[c] = v.r;
        }
        s->at[r] = out;
        return;
    }
    xmem m = element(s, in, in->idx, size);
    if (in->dyn)
        m.index = dynamic(
            f, operand(s, in->dyn, 1, 0).r,
            (xdyn){ .n = in->dyn_n, .stride = in->dyn_stride * size, .clamp = true, .wide = is_wide((xtype)s->at[in->dyn].t) });
    if (in->n_mask) {
        int32_t pool = pool_of(f, t, value_bits(t, in->imm, imm));
        for (int c = 0; c < out.n; c++) {
            out.r[c] = x86_new(f, x86_vl(t, out.cl));
            f->v.at[out.r[c]].is_mutable = true;
            x86_add(f, (xop){ .op = P_CONST, .vl = (uint8_t)x86_vl(t, out.cl), .dst = out.r[c], .imm = pool });
        }
        open_masks(s, in, 0);
    }
    for (int c = 0; c < out.n; c++) {
        xmem at = m;
        at.disp += c * out.cl * size;
        xval v = from_stored(f, stored, load_raw(s, stored, at, out.cl, in->lanes == 1 && s->bcast[r] && !in->n_mask), out.cl);
        if (in->n_mask)
            x86_add(f, (xop){ .op = P_MOV, .vl = (uint8_t)x86_vl(t, out.cl), .dst = out.r[c], .a = v.r });
        else
            out.r[c] = v.r;
    }
    if (in->n_mask) close_ifs(f, in->n_mask);
    for (int c = 0; c < out.n && in->n_mask; c++) out.r[c] = copied(f, (xval){ out.r[c], t }).r;
    s->at[r] = out;
}

/* ---- stores ---- */

static void store_op(xfn *f, x86_id id, int vl, vreg a, xmem m, int imm) {
    x86_add(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .a = a, .has_mem = true, .mem = m, .imm = imm });
}

static xval to_stored(xfn *f, tn_dtype t, xval x, int n) {
    xval args[3] = { x };
    if (t == TN_F16) return x86_expr(f, "TO_HALF(x)", XF32, args, n);
    if (t == TN_BF16) return x86_expr(f, "TO_BF16(x)", XF32, args, n);
    if (t == TN_BOOL) return x86_bin(f, '&', x86_mask32(f, x, n), const_val(f, XI32, 0, 1), n);
    return x;
}

/* 32-bit lanes to n neighbouring bytes or 16-bit words. */
static void store_narrow(xfn *f, xval x, int size, int n, xmem m) {
    unsigned char pick[64];
    if (n >= 16) {
        store_op(f, size == 1 ? X86_PMOVDB : X86_PMOVDW, 2, x.r, m, 0);
        return;
    }
    if (n == 1) {
        store_op(f, size == 1 ? X86_PEXTRB : X86_PEXTRW, 0, x.r, m, 0);
        return;
    }
    for (int i = 0; i < f->vb; i++) pick[i] = (unsigned char)(i % 16 < 4 * size ? i % 16 / size * 4 + i % 16 % size : 0x80);
    vreg p = const_at(f, x86_pool(f->s, pick, (size_t)f->vb), false, full_vl(f));
    vreg r = x86_value(f, (xop){ .op = X86_PSHUFB, .vl = (uint8_t)x86_vl(XI32, n), .a = x.r, .b = p });
    if (n == 8) {
        vreg high = x86_value(f, (xop){ .op = X86_EXTRACTF128, .vl = 1, .a = r, .imm = 1 });
        if (size == 1)
            r = x86_value(f, (xop){ .op = X86_PUNPCKLDQ, .vl = 0, .a = r, .b = high });
        else
            r = x86_value(f, (xop){ .op = X86_PERMQ, .vl = 1, .a = r, .imm = 0x08 });
    }
    int bytes = n * size;
    store_op(f, bytes == 16 ? X86_MOVUPS_ST : bytes == 8 ? X86_MOVSD_ST : bytes == 4 ? X86_MOVSS_ST : X86_PEXTRW, 0, r, m, 0);
}

static void store_chunk(xfn *f, tn_dtype t, xval x, int n, xmem m) {
    int size = (int)dtype_size(t), bytes = n * size;
    x = to_stored(f, t, x, n);
    if (size < 4)
        store_narrow(f, x, size, n, m);
    else
        store_op(f, bytes == 4 ? X86_MOVSS_ST : bytes == 8 ? X86_MOVSD_ST : X86_MOVUPS_ST, x86_vl(x.t, n), x.r, m, 0);
}

static void store_lane(xfn *f, int size, xval x, int lane, xmem m) {
    int per = is_wide(x.t) ? 2 : 4;
    vreg q = lane >= per
                 ? x86_value(f, (xop){ .op = X86_EXTRACTF128, .vl = lane >= 2 * per ? 2 : 1, .a = x.r, .imm = lane / per })
                 : x.r;
    int l = lane % per;
    if (size == 8)
        store_op(f, l ? X86_MOVHPS_ST : X86_MOVSD_ST, 0, q, m, 0);
    else if (size == 4)
        l ? store_op(f, X86_PEXTRD, 0, q, m, l) : store_op(f, X86_MOVSS_ST, 0, q, m, 0);
    else
        store_op(f, size == 2 ? X86_PEXTRW : X86_PEXTRB, 0, q, m, size == 2 ? 2 * l : 4 * l);
}

static void sel_store(selector *s, const kins *in) {
    xfn *f = s->f;
    tn_dtype t = (tn_dtype)in->dtype;
    int64_t size = (int64_t)dtype_size(t);
    xmem m = element(s, in, in->idx, size);
    int cl = chunk(s, in->lanes), n = in->lanes / cl;
    if (in->dyn) x86_unsupported(f, "a store at a dynamic index");
    for (int c = 0; c < n; c++) {
        xval x = operand(s, in->a, in->lanes, c);
        xmem at = m;
        at.disp += c * cl * in->lane_stride * size;
        if (in->lanes == 1 || in->lane_stride == 1) {
            store_chunk(f, t, x, cl, at);
            continue;
        }
        x = to_stored(f, t, x, cl);
        for (int l = 0; l < cl; l++, at.disp += in->lane_stride * size) store_lane(f, (int)size, x, l, at);
    }
}

static xval lane_of(selector *s, reg r, int lane) {
    const kval *v = &s->at[r];
    if (v->lanes == 1) return operand(s, r, 1, 0);
    return x86_low(s->f, (xval){ v->r[lane / v->cl], (xtype)v->t }, lane % v->cl, 1);
}

static void sel_scatter(selector *s, const kins *in) {
    xfn *f = s->f;
    tn_dtype t = (tn_dtype)in->dtype;
    int64_t size = (int64_t)dtype_size(t);
    const kval *dv = &s->at[in->dyn];
    if (dv->lanes != 1) {
        x86_unsupported(f, "a scatter with an index a lane");
        return;
    }
    vreg d = operand(s, in->dyn, 1, 0).r;
    xdyn dyn = { .n = in->dyn_n, .stride = 1, .clamp = false, .wide = is_wide((xtype)dv->t) };
    greg raw = dynamic(f, d, dyn);
    dyn.stride = in->dyn_stride * size;
    greg scaled = dynamic(f, d, dyn);
    VEC_PUSH(f->a, &f->bounds, in->dyn_n);
    x86_add(f, (xop){ .op = P_IF, .has_mem = true, .mem = { .base = raw }, .extra = f->bounds.n - 1 });
    open_scope(f);
    xmem m = element(s, in, in->idx, size);
    m.index = scaled;
    bool whole = in->lane_stride == 1 || in->lanes == 1;
    int cl = whole ? chunk(s, in->lanes) : 1;
    for (int l = 0; l < in->lanes; l += cl, m.disp += cl * in->lane_stride * size) {
        xval old = from_stored(f, t, load_raw(s, t, m, cl, false), cl);
        xval x = whole ? operand(s, in->a, in->lanes, l / cl) : lane_of(s, in->a, l);
        store_chunk(f, t, x86_bin(f, '+', old, x, cl), cl, m);
    }
    close_ifs(f, 1);
}

/* ---- arithmetic ---- */

static bool is_plain_const(const kernel *k, reg r) { return k->ins.at[r].op == K_CONST && !isnan(k->ins.at[r].imm); }

/* One chunk of an elementwise op; see print_alu_value. */
static xval alu(selector *s, op_code op, tn_dtype src, int lanes, const reg *r, const xval *x) {
    xfn *f = s->f;
    const op_info *info = op_get(op);
    xval a[3] = { x[0], x[1], x[2] };
    if ((op == OP_max || op == OP_min) && src == TN_F32 && r && (is_plain_const(s->k, r[0]) || is_plain_const(s->k, r[1]))) {
        bool first = is_plain_const(s->k, r[0]);
        return x86_bin(f, op == OP_max ? 'M' : 'm', a[first ? 0 : 1], a[first ? 1 : 0], lanes);
    }
    for (int i = 0; i < info->arity; i++)
        if (src == TN_BOOL && a[i].t == XM64) a[i] = x86_mask32(f, a[i], lanes);
    return x86_expr(f, info->expr, xt(src), a, lanes);
}

static void sel_alu(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    op_code op = (op_code)in->alu;
    int arity = op_get(op)->arity;
    reg regs[3] = { in->a, in->b, in->c };
    kval out = shaped(s, XI32, in->lanes);
    for (int c = 0; c < out.n; c++) {
        xval x[3] = { { 0 } };
        for (int i = 0; i < arity; i++) x[i] = operand(s, regs[i], in->lanes, c);
        xval v = copied(s->f, alu(s, op, (tn_dtype)in->src, out.cl, regs, x));
        out.t = (uint8_t)v.t, out.r[c] = v.r;
    }
    s->at[r] = out;
}

/* Float to integer: truncates and saturates, NaN gives 0. */
static xval saturate(xfn *f, xval x, tn_dtype to, int n) {
    static const struct {
        double below;
        int64_t lo, hi;
    } range[TN_N_DTYPES] = { [TN_I8] = { 128, -128, 127 },
                             [TN_U8] = { 256, 0, 255 },
                             [TN_I32] = { 2147483648.0, INT32_MIN, INT32_MAX },
                             [TN_I64] = { 9223372036854775808.0, INT64_MIN, INT64_MAX } };
    xtype it = to == TN_I64 ? XI64 : XI32;
    xval low = x86_bin(f, '<', x, const_val(f, x.t, (double)range[to].lo, 0), n);
    xval high = x86_bin(f, 'l', const_val(f, x.t, range[to].below, 0), x, n), nan = x86_bin(f, 'n', x, x, n);
    xval bad = x86_bin(f, '|', x86_bin(f, '|', low, high, n), nan, n);
    xval r = x86_convert(f, x86_sel(f, bad, const_val(f, x.t, 0, 0), x, n), it, n);
    r = x86_sel(f, low, const_val(f, it, 0, range[to].lo), r, n);
    return x86_sel(f, high, const_val(f, it, 0, range[to].hi), r, n);
}

static xval cast(xfn *f, tn_dtype to, tn_dtype from, xval x, int n) {
    if (to == TN_BOOL) return from == TN_BOOL ? x : x86_bin(f, 'n', x, const_val(f, x.t, 0, 0), n);
    if (dtype_is_float(from) && dtype_is_int(to)) return saturate(f, x, to, n);
    if (from == TN_BOOL) x = x86_bin(f, '-', const_val(f, XI32, 0, 0), x86_mask32(f, x, n), n);
    x = x86_convert(f, x, xt(to), n);
    xval args[3] = { x };
    if (to == TN_I8) return x86_expr(f, "WRAP_I8(x)", XI32, args, n);
    if (to == TN_U8) return x86_expr(f, "WRAP_U8(x)", XI32, args, n);
    return x;
}

static xval wrap(xfn *f, tn_dtype t, xval x, int n) {
    xval args[3] = { x };
    return x86_expr(f,
                    t == TN_F16    ? "FROM_HALF(TO_HALF(x))"
                    : t == TN_BF16 ? "FROM_BF16(TO_BF16(x))"
                    : t == TN_I8   ? "WRAP_I8(x)"
                                   : "WRAP_U8(x)",
                    xt(t), args, n);
}

static void sel_convert(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    kval out = shaped(s, XI32, in->lanes);
    for (int c = 0; c < out.n; c++) {
        xval x = operand(s, in->a, in->lanes, c);
        xval v = in->op == K_CAST ? cast(s->f, (tn_dtype)in->dtype, (tn_dtype)in->src, x, out.cl)
                                  : wrap(s->f, (tn_dtype)in->src, x, out.cl);
        v = copied(s->f, v);
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
    kval out = shaped(s, t, in->lanes);
    int32_t pool = pool_of(f, t, value_bits(t, in->imm, in->imm_int));
    for (int c = 0; c < out.n; c++) {
        int vl = x86_vl(t, out.cl);
        out.r[c] = x86_new(f, vl);
        f->v.at[out.r[c]].is_mutable = true;
        x86_add(f, (xop){ .op = P_CONST, .vl = (uint8_t)vl, .dst = out.r[c], .imm = pool });
    }
    s->at[r] = out;
}

static void sel_update(selector *s, const kins *in) {
    xfn *f = s->f;
    const kval *acc = &s->at[in->c];
    tn_dtype t = (tn_dtype)in->dtype;
    for (int c = 0; c < acc->n; c++) {
        int n_before = f->ops.n;
        xval old = { acc->r[c], (xtype)acc->t }, v;
        if (in->alu == OP_dot) {
            xval p = x86_bin(f, '*', operand(s, in->a, in->lanes, c), operand(s, in->b, in->lanes, c), acc->cl);
            v = x86_bin(f, '+', old, p, acc->cl);
        } else {
            xval x[3] = { old, operand(s, in->a, in->lanes, c) };
            v = alu(s, (op_code)in->alu, t, acc->cl, (const reg[]){ in->c, in->a }, x);
        }
        if (v.r != old.r) assign(f, old.r, v, n_before);
    }
}

static void sel_arg_update(selector *s, const kins *in) {
    xfn *f = s->f;
    const kval *best = &s->at[in->c], *index = &s->at[in->b];
    tn_dtype t = (tn_dtype)in->dtype;
    int n = best->cl;
    xmem e = address(f, 0, in->idx, 1);
    vreg g = x86_new(f, 0);
    x86_add(f, (xop){ .op = P_FROMG, .type = XI64, .dst = g, .has_mem = true, .mem = e });
    xval at = { in->lanes > 1 ? x86_broadcast(f, (xval){ g, XI64 }) : g, XI64 };
    for (int c = 0; c < best->n; c++) {
        xval x = operand(s, in->a, in->lanes, c), b = { best->r[c], (xtype)best->t }, i = { index->r[c], XI64 };
        if (x.t == XM64) x = x86_mask32(f, x, n);
        xval first = x86_bin(f, '=', i, const_val(f, XI64, 0, -1), n);
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
    int lanes = (int)in->imm_int, n = lanes / v->cl, cl = v->cl;
    if (v->lanes != lanes) x86_unsupported(f, "a sum of some of the lanes");
    for (int i = 0; i < v->n; i++) {
        part[i] = (xval){ v->r[i], (xtype)v->t };
        if (part[i].t == XM64) part[i] = x86_mask32(f, part[i], cl);
    }
    for (int half = n / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] = alu(s, (op_code)in->alu, (tn_dtype)in->dtype, cl, NULL, (const xval[]){ part[i], part[i + half], { 0 } });
    for (int half = cl / 2; half >= 1; half /= 2) {
        xval high = x86_low(f, part[0], half, half);
        part[0] = alu(s, (op_code)in->alu, (tn_dtype)in->dtype, half, NULL, (const xval[]){ part[0], high, { 0 } });
    }
    kval out = shaped(s, part[0].t, 1);
    out.r[0] = copied(f, part[0]).r;
    s->at[r] = out;
}

static void sel_lanes(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    const kval *v = &s->at[in->a];
    int first = (int)in->imm_int;
    kval out = shaped(s, (xtype)v->t, in->lanes);
    for (int c = 0; c < out.n; c++) {
        int at = first + c * out.cl;
        xval x = x86_low(s->f, (xval){ v->r[at / v->cl], (xtype)v->t }, at % v->cl, out.cl);
        out.r[c] = copied(s->f, x).r;
    }
    s->at[r] = out;
}

/* Pieces smaller than 16 bytes are interleaved inside 16 bytes; pieces of 16 bytes are the halves of a register, or registers.
 */
static void sel_zip(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    const kval *a = &s->at[in->a], *b = &s->at[in->b];
    int size = (int)dtype_size((tn_dtype)in->dtype), piece = (int)in->imm_int * size, high = in->par;
    kval out = shaped(s, (xtype)a->t, in->lanes);
    if (a->t == XM64 || a->t != b->t || a->n != out.n || b->n != out.n || piece > 16 ||
        (piece == 16 && in->lanes * size != 32) || out.cl * size < 16) {
        x86_unsupported(s->f, "interleaved lanes of this shape");
        return;
    }
    for (int c = 0; c < out.n; c++) {
        x86_id small = piece == 4 ? (high ? X86_UNPCKHPS : X86_UNPCKLPS) : (high ? X86_UNPCKHPD : X86_UNPCKLPD);
        int vl = x86_vl((xtype)a->t, out.cl);
        if (piece == 16 && out.n == 2) {
            out.r[c] = copied(s->f, (xval){ (c ? b : a)->r[high], (xtype)a->t }).r;
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
    xmem e = address(f, 0, idx, 1);
    if (!e.base) return const_val(f, t, (double)e.disp, e.disp);
    vreg g = x86_new(f, 0);
    x86_add(f, (xop){ .op = P_FROMG, .type = (uint8_t)t, .dst = g, .has_mem = true, .mem = e });
    return (xval){ g, t };
}

static void sel_index(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xtype t = xt((tn_dtype)in->dtype);
    kval out = shaped(s, t, in->lanes);
    xval one = index_value(s, in->idx, t);
    for (int c = 0; c < out.n; c++) {
        out.r[c] = one.r;
        if (in->lanes == 1) break;
        xval steps = { const_steps(s->f, t, out.cl, c * out.cl, in->lane_stride, 0), t };
        out.r[c] = x86_bin(s->f, '+', (xval){ x86_broadcast(s->f, one), t }, steps, out.cl).r;
    }
    s->at[r] = out;
}

/* Philox4x32-10 in 64-bit lanes, whose upper halves may hold anything. */
static xval philox(xfn *f, xval i, xval counter, int64_t stream, int n) {
    xval m0 = const_val(f, XI64, 0, 0xD2511F53), m1 = const_val(f, XI64, 0, 0xCD9E8D57);
    xval w0 = const_val(f, XI64, 0, 0x9E3779B9), w1 = const_val(f, XI64, 0, 0xBB67AE85);
    xval c0 = i, c1 = x86_shift(f, X86_PSRLQ, i, 32, n), c2 = const_val(f, XI64, 0, stream);
    xval c3 = const_val(f, XI64, 0, (int64_t)((uint64_t)stream >> 32));
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
    kval out = shaped(s, XF32, in->lanes);
    xval one = index_value(s, in->idx, XI64), counter = operand(s, in->a, 1, 0);
    for (int c = 0; c < out.n; c++) {
        int part = out.cl < f->vb / 8 ? out.cl : f->vb / 8;
        xval word[2];
        for (int p = 0; p < out.cl / part; p++) {
            xval i = one;
            if (in->lanes > 1) {
                xval steps = { const_steps(f, XI64, part, c * out.cl + p * part, in->lane_stride, 0), XI64 };
                i = x86_bin(f, '+', (xval){ x86_broadcast(f, one), XI64 }, steps, part);
            }
            xval k = in->lanes > 1 ? (xval){ x86_broadcast(f, counter), XI64 } : counter;
            word[p] = x86_convert(f, philox(f, i, k, in->imm_int, part), XI32, part);
        }
        if (out.cl > part)
            word[0].r = x86_value(f, (xop){ .op = f->vb == 64 ? X86_INSERTF64X4 : X86_INSERTF128,
                                            .vl = (uint8_t)full_vl(f),
                                            .a = word[0].r,
                                            .b = word[1].r,
                                            .imm = 1 });
        xval v = x86_convert(f, word[0], XF32, out.cl);
        out.r[c] = x86_bin(f, '*', v, const_val(f, XF32, 0x1p-24, 0), out.cl).r;
    }
    s->at[r] = out;
}

/* ---- loops ---- */

static void sel_range(selector *s, reg from, reg to);

static int open_loop(xfn *f, xloop l) {
    l.parent = f->open.n ? f->open.at[f->open.n - 1] : -1;
    VEC_PUSH(f->a, &f->loops, l);
    VEC_PUSH(f->a, &f->open, f->loops.n - 1);
    return f->loops.n - 1;
}

static bool feeds_contraction(const kernel *k, reg r) {
    int n = 0;
    for (reg i = r + 1; i < (reg)k->ins.n && k->ins.at[i].op != K_END; i++)
        n += k->ins.at[i].op == K_UPD && k->ins.at[i].alu == OP_dot && (k->ins.at[i].a == r || k->ins.at[i].b == r);
    return n > 1;
}

/* Copies of a contraction's body in one iteration; see contraction_unroll in c.c. */
static int unroll_of(const kernel *k, reg loop, int64_t trips) {
    bool tile = false, dot = false;
    reg r = loop + 1;
    for (; k->ins.at[r].op != K_END; r++) {
        if (k->ins.at[r].op == K_LOOP) return 1;
        tile |= k->ins.at[r].op == K_LOAD && feeds_contraction(k, r);
        dot |= k->ins.at[r].op == K_UPD && k->ins.at[r].alu == OP_dot;
    }
    if (dot && trips <= 8 && (int64_t)(r - loop) * trips <= MAX_BODY) return (int)trips;
    int n = !tile || trips < 16 ? 1 : trips < 64 ? 4 : 8;
    while (n > 1 && (int)(r - loop) * n > MAX_BODY) n /= 2;
    return n;
}

static void fixed_iteration(selector *s, const kins *in, int64_t at, reg from, reg to) {
    open_loop(s->f, (xloop){ .var = in->var, .lo = at, .step = 1, .trips = 1, .fixed = true });
    sel_range(s, from, to);
    s->f->open.n--;
}

static void sel_loop(selector *s, reg from, reg to) { /* K_LOOP at from, its K_END at to */
    const kins *in = &s->k->ins.at[from];
    xfn *f = s->f;
    if (in->hi <= in->lo) return;
    int64_t trips = (in->hi - in->lo + in->step - 1) / in->step;
    if (in->par == 2) {
        x86_add(f, (xop){ .op = P_IFLAST });
        open_scope(f);
        fixed_iteration(s, in, in->lo, from + 1, to);
        close_ifs(f, 1);
        return;
    }
    if (!in->par && trips == 1) {
        fixed_iteration(s, in, in->lo, from + 1, to);
        return;
    }
    int unroll = in->par ? 1 : unroll_of(s->k, from, trips);
    if (unroll > 1 && unroll == trips) {
        for (int64_t t = 0; t < trips; t++) fixed_iteration(s, in, in->lo + t * in->step, from + 1, to);
        return;
    }
    int l = open_loop(f, (xloop){ .var = in->var, .lo = in->lo, .step = in->step, .trips = trips / unroll, .par = in->par });
    f->loops.at[l].count = new_greg(f, (xgreg){ .kind = G_COUNT, .loop = l });
    x86_add(f, (xop){ .op = P_LOOP, .loop = l });
    open_scope(f);
    for (int u = 0; u < unroll; u++) {
        f->loops.at[l].offset = u;
        sel_range(s, from + 1, to);
    }
    for (int i = 0; i < f->loops.at[l].ivs.n; i++) f->g.at[f->loops.at[l].ivs.at[i]].coef *= unroll;
    x86_add(f, (xop){ .op = P_END, .loop = l });
    close_scope(f);
    f->open.n--;
    for (int64_t t = trips / unroll * unroll; t < trips; t++) fixed_iteration(s, in, in->lo + t * in->step, from + 1, to);
}

static reg loop_end(const kernel *k, reg i) {
    int depth = 0;
    for (; i < (reg)k->ins.n; i++) {
        depth += k->ins.at[i].op == K_LOOP;
        if (k->ins.at[i].op == K_END && --depth == 0) return i;
    }
    return (reg)k->ins.n;
}

static void sel_const(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
    xtype t = xt((tn_dtype)in->dtype);
    kval out = shaped(s, t, in->lanes);
    for (int c = 0; c < out.n; c++) out.r[c] = x86_const(s->f, t, in->imm, in->imm_int);
    s->at[r] = out;
}

static void sel_one(selector *s, reg r) {
    const kins *in = &s->k->ins.at[r];
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
    case K_ALU:
        sel_alu(s, r);
        break;
    case K_CAST:
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
    case K_HSUM:
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
            reg end = loop_end(s->k, r);
            sel_loop(s, r, end);
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
            if (!memory && (in->op == K_ALU || in->op == K_CAST || in->op == K_LOAD))
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
        s->f->frame += (kb->elems * (int64_t)dtype_size((tn_dtype)kb->dtype) + 63) & ~(int64_t)63;
    }
}

void x86_select(xfn *f) {
    const kernel *k = f->k;
    size_t n = (size_t)k->ins.n + 1;
    selector s = { .f = f, .k = k, .at = ARENA_ARRAY(f->a, kval, n), .bcast = ARENA_ARRAY(f->a, bool, n) };
    f->frame = X_FRAME;
    place_locals(&s);
    f->pre_of = -1;
    VEC_PUSH(f->a, &f->v, (xvreg){ 0 });
    VEC_PUSH(f->a, &f->g, (xgreg){ 0 });
    VEC_PUSH(f->a, &f->ops, (xop){ .dead = true });
    survey(&s);
    open_loop(f, (xloop){ .var = -1, .trips = 1, .fixed = true });
    sel_range(&s, 1, (reg)k->ins.n);
}
