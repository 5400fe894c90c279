/* peephole.c - the final order of operations, without dead ones; multiply-adds; loads that become operands.
 *
 * In: the lists of x86_select. Out: xfn.order. Within one instruction of the kernel (the polynomials of exp, tanh and erf) a
 * product all of whose uses are sums or differences is contracted into them: what gcc does with the text of clike.c, which
 * keeps products of different instructions apart, so that both back ends agree bit for bit. */
#include "emit/x86/ir.h"

typedef struct fuser {
    xfn *f;
    int *uses;         /* [v] */
    int *first, *next; /* users of a register: 1 + 3 * position + operand */
    int *stores;       /* [order] stores in front of this position */
} fuser;

static void order_all(xfn *f) {
    f->order = ARENA_ARRAY(f->a, int32_t, f->ops.n + 1);
    const xloop *all = &f->loops.at[0];
    for (int i = 0; i < all->pre.n; i++) f->order[f->n_order++] = all->pre.at[i];
    for (int i = 0; i < f->seq.n; i++) {
        const xop *o = &f->ops.at[f->seq.at[i]];
        if (o->op == P_LOOP)
            for (int j = 0; j < f->loops.at[o->loop].pre.n; j++) f->order[f->n_order++] = f->loops.at[o->loop].pre.at[j];
        f->order[f->n_order++] = f->seq.at[i];
    }
}

static bool is_store(const xop *o) { return o->has_mem && !o->dst && (o->op < X86_N_INS || o->op == P_STNARROW); }
static bool has_effect(const xfn *f, const xop *o) {
    if (is_store(o)) return true;
    if (o->op == P_LOOP || o->op == P_END || o->op == P_IF || o->op == P_IFLAST || o->op == P_ENDIF || o->op == P_PREFETCH)
        return true;
    return o->dst && f->v.at[o->dst].is_mutable;
}

static void drop_dead(xfn *f, int *uses) {
    int *guses = ARENA_ARRAY(f->a, int, f->g.n + 1);
    for (int i = 0; i < f->n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        uses[o->a]++, uses[o->b]++, uses[o->c]++;
        if (o->op != P_DYN && o->has_mem) guses[o->mem.base]++, guses[o->mem.index]++;
    }
    int n = 0;
    for (int i = f->n_order - 1; i >= 0; i--) {
        xop *o = &f->ops.at[f->order[i]];
        bool used = o->op == P_DYN ? guses[o->mem.index] > 0 : o->dst && uses[o->dst] > 0;
        if (used || has_effect(f, o)) continue;
        o->dead = true;
        uses[o->a]--, uses[o->b]--, uses[o->c]--;
        if (o->op != P_DYN && o->has_mem) guses[o->mem.base]--, guses[o->mem.index]--;
    }
    for (int i = 0; i < f->n_order; i++)
        if (!f->ops.at[f->order[i]].dead) f->order[n++] = f->order[i];
    f->n_order = n;
}

static void list_users(fuser *u) {
    xfn *f = u->f;
    u->first = ARENA_ARRAY(f->a, int, f->v.n);
    u->next = ARENA_ARRAY(f->a, int, 3 * f->n_order + 4);
    u->stores = ARENA_ARRAY(f->a, int, f->n_order + 1);
    for (int i = f->n_order - 1; i >= 0; i--) {
        const xop *o = &f->ops.at[f->order[i]];
        const vreg r[3] = { o->a, o->b, o->c };
        for (int k = 2; k >= 0; k--)
            if (r[k]) u->next[1 + 3 * i + k] = u->first[r[k]], u->first[r[k]] = 1 + 3 * i + k;
    }
    for (int i = 0; i < f->n_order; i++) u->stores[i + 1] = u->stores[i] + is_store(&f->ops.at[f->order[i]]);
}

static xop *user(const fuser *u, int e) { return &u->f->ops.at[u->f->order[(e - 1) / 3]]; }

static bool is_sum(const xop *o, bool pd) {
    return o->op == (pd ? X86_ADDPD : X86_ADDPS) || o->op == (pd ? X86_SUBPD : X86_SUBPS);
}

/* Whether the sum can take in the product at position i. */
static bool takes(const fuser *u, const xop *sum, vreg product, const xop *m, int i, int at) {
    const xfn *f = u->f;
    if (!is_sum(sum, m->op == X86_MULPD) || sum->expr != m->expr || sum->block != m->block || sum->vl != m->vl ||
        sum->a == sum->b)
        return false;
    if (sum->a != product && sum->b != product) return false;
    const vreg r[2] = { m->a, m->b };
    for (int k = 0; k < 2; k++)
        if (f->v.at[r[k]].is_mutable)
            for (int p = i + 1; p < at; p++)
                if (f->ops.at[f->order[p]].dst == r[k]) return false;
    return true;
}

static void take_in(xop *sum, vreg product, const xop *m, bool negated) {
    bool pd = m->op == X86_MULPD, sub = sum->op == (pd ? X86_SUBPD : X86_SUBPS), first = sum->a == product;
    int how = pd ? 4 : 0;
    if (negated != (sub && !first)) how |= 1;
    if (sub && first) how |= 2;
    sum->c = first ? sum->b : sum->a;
    sum->a = m->a, sum->b = m->b;
    sum->op = P_FMA, sum->imm = how;
}

static bool has_products(const xfn *f) {
    for (int i = 0; i < f->n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        if (o->op == X86_MULPS || o->op == X86_MULPD) return true;
    }
    return false;
}

static void contract(fuser *u) {
    xfn *f = u->f;
    for (int i = 0; i < f->n_order; i++) {
        xop *m = &f->ops.at[f->order[i]];
        if (m->dead || (m->op != X86_MULPS && m->op != X86_MULPD) || f->v.at[m->dst].is_mutable) continue;
        bool all = u->first[m->dst] != 0;
        for (int e = u->first[m->dst]; e && all; e = u->next[e]) {
            const xop *o = user(u, e);
            if (o->neg) {
                int only = u->first[o->dst];
                all = o->expr == m->expr && only && !u->next[only] && takes(u, user(u, only), o->dst, m, i, (only - 1) / 3);
            } else {
                all = takes(u, o, m->dst, m, i, (e - 1) / 3);
            }
        }
        if (!all) continue;
        for (int e = u->first[m->dst]; e; e = u->next[e]) {
            xop *o = user(u, e);
            if (o->neg) {
                take_in(user(u, u->first[o->dst]), o->dst, m, true);
                o->dead = true;
            } else {
                take_in(o, m->dst, m, false);
            }
        }
        m->dead = true;
    }
}

/* ---- loads as operands ---- */

bool x86_commutes(int op) {
    switch (op) {
    case X86_ADDPS:
    case X86_ADDPD:
    case X86_MULPS:
    case X86_MULPD:
    case X86_PAND:
    case X86_POR:
    case X86_PXOR:
    case X86_PADDD:
    case X86_PADDQ:
    case X86_PMULLD:
    case X86_PMULLQ:
    case X86_PMULUDQ:
    case X86_PMADDWD:
    case X86_PCMPEQD:
    case X86_PCMPEQQ:
        return true;
    default:
        return false;
    }
}

static bool accept(xop *o, vreg r, const xop *load) {
    if (o->has_mem) return false;
    if (o->op == P_FMA) {
        if (o->vl != load->vl || (o->a == r) + (o->b == r) + (o->c == r) != 1) return false;
        if (o->a == r) o->a = o->b, o->b = r;
        *(o->b == r ? &o->b : &o->c) = 0;
    } else if (o->op == P_DOT) {
        if (o->vl != load->vl || o->a == r || o->c == r || o->b != r) return false;
        o->b = 0;
    } else if (o->op < X86_N_INS) {
        const x86_ins *t = &x86_table[o->op];
        int size = (16 << o->vl) >> (t->mv == KH ? 1 : t->mv == KQ ? 2 : 0);
        if (t->mv > KQ || size != 16 << load->vl) return false;
        if (t->form == F_RM || t->form == F_RMI) {
            o->a = 0;
        } else if (t->form == F_RVM || t->form == F_RVMK || t->form == F_RVMI || t->form == F_RVMR) {
            if (o->a == o->b || o->c == r) return false;
            if (o->a == r && x86_commutes(o->op)) o->a = o->b, o->b = r;
            if (o->b != r) return false;
            o->b = 0;
        } else {
            return false;
        }
    } else {
        return false;
    }
    o->has_mem = true, o->mem = load->mem;
    return true;
}

static void fold_loads(fuser *u) {
    xfn *f = u->f;
    memset(u->uses, 0, (size_t)f->v.n * sizeof *u->uses);
    for (int i = 0; i < f->n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        if (!o->dead) u->uses[o->a]++, u->uses[o->b]++, u->uses[o->c]++;
    }
    list_users(u);
    for (int i = 0; i < f->n_order; i++) {
        xop *l = &f->ops.at[f->order[i]];
        if (l->dead || l->op != X86_MOVUPS || !l->has_mem || f->v.at[l->dst].is_mutable || u->uses[l->dst] != 1) continue;
        int e = u->first[l->dst];
        if (!e) continue;
        xop *o = user(u, e);
        if (o->block == l->block && u->stores[(e - 1) / 3] == u->stores[i] && accept(o, l->dst, l)) l->dead = true;
    }
}

static void compact(xfn *f) {
    int n = 0;
    for (int i = 0; i < f->n_order; i++)
        if (!f->ops.at[f->order[i]].dead) f->order[n++] = f->order[i];
    f->n_order = n;
}

void x86_peephole(xfn *f) {
    fuser u = { .f = f, .uses = ARENA_ARRAY(f->a, int, f->v.n) };
    order_all(f);
    drop_dead(f, u.uses);
    if (f->level == X86_SSE) return; /* no multiply-add; operands in memory would have to be aligned */
    if (has_products(f)) {
        list_users(&u);
        contract(&u);
        compact(f);
    }
    fold_loads(&u);
    compact(f);
}
