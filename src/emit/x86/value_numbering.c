/* value_numbering.c - operations, numbered so that none is written twice in a scope; constants, addresses and dynamic indices,
 * each made as far out in the loop nest as it can be. In: requests of the selector. Out: the lists of xfn. */
#include "emit/x86/select.h"

void x86_unsupported(xfn *f, const char *what) {
    if (!f->unsupported) f->unsupported = what;
}

/* ---- operations and their numbers ---- */

/* The innermost open loop that is one, or 0. */
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
    VEC_PUSH(f->keep, &f->v, (xvreg){ .vl = (uint8_t)vl, .loop = f->pre_of >= 0 ? loop_above(f, f->pre_of) : innermost(f) });
    return (vreg)(f->v.n - 1);
}

xop *x86_add(xfn *f, xop op) {
    op.loop = op.op == P_LOOP || op.op == P_END ? op.loop : f->pre_of >= 0 ? loop_above(f, f->pre_of) : innermost(f);
    op.block = f->block, op.expr = f->expr;
    VEC_PUSH(f->keep, &f->ops, op);
    int32_t at = f->ops.n - 1;
    if (op.dst && !f->v.at[op.dst].def) f->v.at[op.dst].def = at;
    if (f->pre_of >= 0)
        VEC_PUSH(f->a, &f->loops.at[f->pre_of].pre, at);
    else
        VEC_PUSH(f->keep, &f->seq, at);
    return &f->ops.at[at];
}

static uint32_t hash_op(const xop *o) {
    uint32_t h =
        o->op * 0x9E3779B1u ^ o->a * 0x85EBCA6Bu ^ o->b * 0xC2B2AE35u ^ o->c * 0x27D4EB2Fu ^ (uint32_t)o->imm * 0x165667B1u;
    return (h ^ h >> 15 ^ o->vl) & 255;
}

int x86_vl(xtype t, int lanes) {
    int bytes = lanes * (t == XF32 || t == XI32 ? 4 : 8);
    return bytes <= 16 ? 0 : bytes <= 32 ? 1 : 2;
}

vreg x86_numbered(xfn *f, xop op) {
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
        VEC_PUSH(f->keep, &f->numbered, f->ops.n - 1);
        VEC_PUSH(f->keep, &f->numbered_next, f->bucket[h]);
        VEC_PUSH(f->keep, &f->numbered_hash, (int32_t)h);
        f->bucket[h] = f->numbered.n;
    }
    return op.dst;
}

void x86_open_scope(xfn *f) {
    VEC_PUSH(f->keep, &f->scopes, f->numbered.n);
    f->block = ++f->n_blocks;
}
void x86_close_scope(xfn *f) {
    int to = f->scopes.at[--f->scopes.n];
    while (f->numbered.n > to) {
        int e = --f->numbered.n;
        f->bucket[f->numbered_hash.at[e]] = f->numbered_next.at[e];
        f->numbered_next.n--, f->numbered_hash.n--;
    }
    f->block = ++f->n_blocks;
}

/* Constants are made in front of the innermost loop that runs long enough for it to pay. */
vreg x86_const_at(xfn *f, int32_t pool, bool full, int vl) {
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
    VEC_PUSH(f->keep, &f->consts, (xconst){ l, pool, r });
    return r;
}

int32_t x86_pool_of(xfn *f, xtype t, uint64_t bits) {
    unsigned char bytes[64];
    size_t size = t == XF32 || t == XI32 ? 4 : 8;
    for (size_t i = 0; i < (size_t)f->vb; i += size) memcpy(bytes + i, &bits, size);
    return x86_pool(f->s, bytes, (size_t)f->vb);
}

int x86_full_vl(const xfn *f) { return f->vb == 64 ? 2 : f->vb == 32 ? 1 : 0; }

vreg x86_const_bits(xfn *f, xtype t, uint64_t bits) { return x86_const_at(f, x86_pool_of(f, t, bits), true, x86_full_vl(f)); }

uint64_t x86_value_bits(xtype t, double fv, int64_t iv) {
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
vreg x86_const(xfn *f, xtype t, double fv, int64_t iv) { return x86_const_bits(f, t, x86_value_bits(t, fv, iv)); }

/* 0, stride, 2 * stride .. from lane `first` on. */
vreg x86_const_steps(xfn *f, xtype t, int lanes, int64_t first, int64_t stride, int64_t base) {
    unsigned char bytes[64] = { 0 };
    size_t size = is_wide(t) ? 8 : 4, n = (size_t)f->vb;
    for (int l = 0; l < lanes; l++) {
        int64_t v = base + (first + l) * stride;
        uint64_t bits = x86_value_bits(t, (double)v, v);
        memcpy(bytes + (size_t)l * size, &bits, size);
    }
    return x86_const_at(f, x86_pool(f->s, bytes, n), false, x86_vl(t, lanes));
}

int x86_import(xfn *f, const char *name) {
    for (int i = 0; i < f->imports->names.n; i++)
        if (!strcmp(f->imports->names.at[i], name)) return i;
    VEC_PUSH(f->keep, &f->imports->names, name);
    return f->imports->names.n - 1;
}

/* ---- addresses ---- */

greg x86_greg(xfn *f, xgreg g) {
    VEC_PUSH(f->keep, &f->g, g);
    return f->g.n - 1;
}

greg x86_base_of(xfn *f, int buf, const int64_t *local) {
    for (int i = 1; i < f->g.n; i++)
        if ((f->g.at[i].kind == G_BUF || f->g.at[i].kind == G_LOCAL) && f->g.at[i].loop == buf) return i;
    bool is_local = local[buf] >= 0;
    return x86_greg(f, (xgreg){ .kind = is_local ? G_LOCAL : G_BUF, .loop = buf, .at = is_local ? local[buf] : buf });
}

static greg induction(xfn *f, greg parent, int32_t loop, int64_t coef, ext by) {
    xloop *l = &f->loops.at[loop];
    for (int i = 0; i < l->ivs.n; i++) {
        const xgreg *g = &f->g.at[l->ivs.at[i]];
        if (g->parent == parent && g->coef == coef && g->by == by) return l->ivs.at[i];
    }
    greg g = x86_greg(f, (xgreg){ .kind = G_IV, .parent = parent, .loop = loop, .coef = coef, .by = by });
    VEC_PUSH(f->a, &f->loops.at[loop].ivs, g);
    return g;
}

/* Adds times * e, which no loop changes. */
static void add_term(xfn *f, xmem *m, ext e, int64_t times) {
    if (ext_is_lit(e)) {
        m->disp += e * times;
        return;
    }
    if (!times) return;
    const ext_row *r = exts_row(f->k->params, e);
    if (r->op == EXT_ADD && (ext_is_lit(r->a) || ext_is_lit(r->b))) { /* literals go where they cost nothing */
        add_term(f, m, r->a, times), add_term(f, m, r->b, times);
        return;
    }
    for (int i = 1; i < f->g.n; i++) {
        const xgreg *g = &f->g.at[i];
        if (g->kind != G_SUM || g->parent != m->base || g->coef != times || g->by != e) continue;
        m->base = i;
        return;
    }
    m->base = x86_greg(f, (xgreg){ .kind = G_SUM, .parent = m->base, .coef = times, .by = e });
}

/* base + scale * x as an address; a value when base is 0. */
xmem x86_address(xfn *f, greg base, affine x, int64_t scale) {
    xmem m = { .base = base };
    int left = x.n;
    add_term(f, &m, x.base, scale);
    for (int i = 1; i < f->open.n; i++) {
        const xloop *l = &f->loops.at[f->open.at[i]];
        ext coef = affine_coef(x, l->var);
        if (!coef) continue;
        left--;
        add_term(f, &m, coef, scale * (l->lo + l->offset * l->step));
    }
    for (int i = 1; i < f->open.n; i++) {
        const xloop *l = &f->loops.at[f->open.at[i]];
        ext coef = affine_coef(x, l->var);
        if (!coef || l->fixed) continue;
        bool lit = ext_is_lit(coef);
        m.base = induction(f, m.base, f->open.at[i], scale * l->step * (lit ? coef : 1), lit ? 0 : coef);
    }
    if (left > 0) x86_unsupported(f, "an index over a loop that is not open");
    return m;
}

/* The register that holds clamp(v) * stride, made where v is known. */
greg x86_dynamic(xfn *f, vreg v, xdyn d) {
    int32_t l = innermost(f), front = -1;
    while (l > 0 && l != f->v.at[v].loop) front = l, l = loop_above(f, l);
    if (l != f->v.at[v].loop) front = -1;
    for (int i = f->dyns.n - 1; i >= 0; i--) {
        const xdyn *o = &f->dyns.at[i];
        if (o->v == v && o->lane == d.lane && o->n == d.n && o->stride == d.stride && o->by == d.by && o->clamp == d.clamp &&
            f->g.at[o->g].loop == front && f->g.at[o->g].at == (front >= 0 ? 0 : f->block))
            return o->g;
    }
    d.v = v;
    d.g = x86_greg(f, (xgreg){ .kind = G_DYN, .loop = front, .at = front >= 0 ? 0 : f->block });
    VEC_PUSH(f->keep, &f->dyns, d);
    int32_t before = f->pre_of;
    if (front >= 0) f->pre_of = front;
    x86_add(f, (xop){ .op = P_DYN, .a = v, .extra = f->dyns.n - 1, .mem = { .index = d.g } });
    f->pre_of = before;
    return d.g;
}

/* ---- values ---- */

xval x86_copied(xfn *f, xval x) { /* a value of its own of a register that will change */
    if (!f->v.at[x.r].is_mutable) return x;
    vreg r = x86_new(f, f->v.at[x.r].vl);
    x86_add(f, (xop){ .op = P_MOV, .vl = f->v.at[x.r].vl, .dst = r, .a = x.r });
    return (xval){ r, x.t };
}

xval x86_const_val(xfn *f, xtype t, double fv, int64_t iv) { return (xval){ x86_const(f, t, fv, iv), t }; }

void x86_close_ifs(xfn *f, int n) {
    for (int i = 0; i < n; i++) {
        x86_add(f, (xop){ .op = P_ENDIF });
        x86_close_scope(f);
    }
}
