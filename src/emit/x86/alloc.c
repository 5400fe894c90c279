/* alloc.c - registers by linear scan. In: xfn.order. Out: for each vector and general register its machine register, or the
 * place in the frame (or, for constants, in the pool) where it lives instead.
 *
 * An interval runs from the definition to the last use; what enters a loop from outside lives to the loop's end. When registers
 * run out, the value with the fewest uses for its length, weighted by loop depth, gives its own up for its whole life:
 * instructions read it in memory where they can, elsewhere a copy that lives for one operation is put in, and the scan starts
 * again. Before that, what a loop adds up gets another name behind the loop, so that it is that which is given up. */
#include "emit/x86/ir.h"

enum { MAX_ROUNDS = 12 };

/* rax, rcx, rdx serve addresses and indices that have no register; rsp and rbp hold the frame. */
static const int8_t general[] = { RSI, RDI, R8, R9, R10, R11, RBX, R12, R13, R14, R15 };

typedef struct scan {
    xfn *f;
    vreg vec[32]; /* who is there */
    greg gen[16];
    uint32_t vec_free, gen_free;            /* a bit a register */
    int32_t *vec_ends, *gen_ends;           /* [n_order] whose interval ends at a position: the first, */
    int32_t *vec_ends_next, *gen_ends_next; /* [v], [g] .. and who is next */
    bool spilled;                           /* something new has lost its register */
} scan;

static float weight_of(int depth) {
    static const float powers[] = { 1, 8, 64, 512, 4096, 32768, 262144 };
    return powers[depth > 6 ? 6 : depth];
}

/* ---- intervals ---- */

/* The loop, or what has code of what is around it; 0 when nothing does. */
static int32_t with_code(const xfn *f, int32_t l) {
    while (l > 0 && f->loops.at[l].fixed) l = f->loops.at[l].parent;
    return l < 0 ? 0 : l;
}

/* What begins in a loop begins in all those around it. */
static int32_t live_to(const xfn *f, int32_t start, int32_t pos, int32_t loop) {
    int32_t end = pos;
    for (const xloop *l; loop > 0 && start < (l = &f->loops.at[loop])->first; loop = l->outer) end = l->last;
    return end;
}

static void use_v(xfn *f, vreg r, int32_t pos, int32_t loop) {
    if (!r) return;
    xvreg *v = &f->v.at[r];
    int32_t end = live_to(f, v->start, pos, loop);
    if (end > v->end) v->end = end;
    v->weight += f->loops.at[loop].weight;
}
static void use_g(xfn *f, greg r, int32_t pos, int32_t loop) {
    if (!r) return;
    xgreg *g = &f->g.at[r];
    int32_t end = live_to(f, g->start, pos, loop);
    if (end > g->end) g->end = end;
    g->weight += f->loops.at[loop].weight;
}

static void find_loops(xfn *f) {
    f->loops.at[0].weight = 1;
    for (int i = 1; i < f->loops.n; i++) { /* parents are older than their children */
        xloop *l = &f->loops.at[i];
        l->outer = with_code(f, l->parent);
        l->depth = f->loops.at[l->outer].depth + 1;
        l->weight = weight_of(l->depth);
    }
    for (int i = 0; i < f->n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        if (o->op == P_LOOP) f->loops.at[o->loop].first = i;
        if (o->op == P_END) f->loops.at[o->loop].last = i;
    }
}

/* Uses first, from the back: whether an induction is needed is known when the loop's start is reached. */
static void find_intervals(xfn *f) {
    for (int i = 1; i < f->v.n; i++)
        f->v.at[i].start = -1, f->v.at[i].end = -1, f->v.at[i].weight = f->v.at[i].brief ? 1e30f : 0;
    for (int i = 1; i < f->g.n; i++) {
        xgreg *g = &f->g.at[i];
        g->start = g->kind == G_IV || g->kind == G_COUNT ? f->loops.at[g->loop].first : -1;
        g->end = -1, g->weight = 0;
    }
    for (int i = 0; i < f->n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        int32_t loop = with_code(f, o->loop);
        use_v(f, o->a, i, loop), use_v(f, o->b, i, loop), use_v(f, o->c, i, loop);
        if (o->dst) {
            xvreg *v = &f->v.at[o->dst];
            if (v->start < 0) v->start = i;
            use_v(f, o->dst, i, loop);
        }
        if (o->op == P_DYN) {
            f->g.at[o->mem.index].start = i;
            use_g(f, o->mem.index, i, loop);
        } else if (o->has_mem) {
            use_g(f, o->mem.base, i, loop), use_g(f, o->mem.index, i, loop);
        }
    }
    for (int i = f->g.n - 1; i > 0; i--) { /* parents are older than their children */
        xgreg *g = &f->g.at[i];
        if (g->kind == G_COUNT) g->end = g->start;
        if (g->kind == G_SUM && g->end >= 0) use_g(f, g->parent, 0, 0);
        if ((g->kind != G_IV && g->kind != G_COUNT) || g->end < 0) continue;
        const xloop *l = &f->loops.at[g->loop];
        if (g->end < l->last) g->end = l->last;
        g->weight += l->weight;
        use_g(f, g->parent, l->first, l->outer);
    }
}

/* ---- the scan ---- */

static bool is_remat(const xfn *f, vreg r) { return !f->v.at[r].is_mutable && f->ops.at[f->v.at[r].def].op == P_CONST; }

/* What it costs to take a value's register for each position that it would be free: constants are read in the pool for less. */
static float cost_of(const xfn *f, vreg r) {
    const xvreg *v = &f->v.at[r];
    float cost = v->weight / (float)(v->end - v->start + 4);
    return is_remat(f, r) ? cost / 2 : cost;
}

static void lose(scan *s, vreg r) {
    s->f->v.at[r].phys = -1;
    s->f->v.at[r].spilled = s->spilled = true;
    if (s->f->v.at[r].brief) x86_unsupported(s->f, "more values in one operation than registers");
}

static void take_vec(scan *s, vreg r, int prefer) {
    xfn *f = s->f;
    xvreg *v = &f->v.at[r];
    int at = -1;
    if (s->vec_free) at = prefer >= 0 && (s->vec_free >> prefer & 1) ? prefer : __builtin_ctz(s->vec_free);
    if (at < 0) {
        float least = cost_of(f, r);
        for (int p = 0; p < f->n_vregs_phys; p++) {
            float cost = cost_of(f, s->vec[p]);
            if (cost < least) least = cost, at = p;
        }
        lose(s, at >= 0 ? s->vec[at] : r);
    }
    v->phys = (int8_t)at;
    if (at >= 0) s->vec[at] = r, s->vec_free &= ~(1u << at);
}

static void take_gen(scan *s, greg r) {
    xfn *f = s->f;
    xgreg *g = &f->g.at[r];
    int at = -1;
    if (g->end < 0 || g->kind == G_LOCAL) return;
    for (size_t p = 0; p < COUNT_OF(general) && at < 0 && s->gen_free; p++)
        if (s->gen_free >> general[p] & 1) at = general[p];
    if (at < 0) {
        float least = g->weight;
        for (size_t p = 0; p < COUNT_OF(general); p++)
            if (f->g.at[s->gen[general[p]]].weight < least) least = f->g.at[s->gen[general[p]]].weight, at = general[p];
        if (at >= 0) f->g.at[s->gen[at]].phys = -1;
    }
    g->phys = (int8_t)at;
    if (at >= 0) s->gen[at] = r, s->gen_free &= ~(1u << at);
}

static void list_ends(scan *s) {
    xfn *f = s->f;
    s->vec_ends = ARENA_ARRAY(f->a, int32_t, f->n_order + 1), s->vec_ends_next = ARENA_ARRAY(f->a, int32_t, f->v.n);
    s->gen_ends = ARENA_ARRAY(f->a, int32_t, f->n_order + 1), s->gen_ends_next = ARENA_ARRAY(f->a, int32_t, f->g.n);
    for (int i = 1; i < f->v.n; i++) {
        int32_t end = f->v.at[i].end;
        if (end >= 0) s->vec_ends_next[i] = s->vec_ends[end], s->vec_ends[end] = i;
    }
    for (int i = 1; i < f->g.n; i++) {
        int32_t end = f->g.at[i].end;
        if (end >= 0) s->gen_ends_next[i] = s->gen_ends[end], s->gen_ends[end] = i;
    }
}

static void expire(scan *s, int32_t pos) { /* what ends here, and has not lost its register */
    for (int32_t r = s->vec_ends[pos]; r; r = s->vec_ends_next[r]) {
        int p = s->f->v.at[r].phys;
        if (p >= 0 && s->vec[p] == (vreg)r) s->vec[p] = 0, s->vec_free |= 1u << p;
    }
    for (int32_t r = s->gen_ends[pos]; r; r = s->gen_ends_next[r]) {
        int p = s->f->g.at[r].phys;
        if (p >= 0 && s->gen[p] == r) s->gen[p] = 0, s->gen_free |= 1u << p;
    }
}

/* Whether the result may stand in a register that an operand leaves: the code reads all operands before it writes. */
static bool shares(const xop *o) { return o->op < X86_N_INS || o->op == P_FMA || o->op == P_MOV; }

/* The result of an instruction of two operands replaces the first, or, when that lives on and order does not matter, the
 * second.
 */
static vreg two_operand_place(const scan *s, const xop *o) {
    int first = s->f->v.at[o->a].phys;
    return o->b && first >= 0 && s->vec[first] && x86_commutes(o->op) ? o->b : o->a;
}

/* A multiply-add replaces one of its operands: the first, in this order, that does not live on. */
static vreg fma_place(const scan *s, const xop *o) {
    const vreg operands[3] = { o->c, o->a, o->b };
    for (int i = 0; i < 3; i++) {
        int at = operands[i] ? s->f->v.at[operands[i]].phys : -1;
        if (at >= 0 && !s->vec[at]) return operands[i];
    }
    return 0;
}

static void scan_op(scan *s, int32_t pos) {
    xfn *f = s->f;
    xop *o = &f->ops.at[f->order[pos]];
    if (pos) expire(s, pos - 1); /* a result that nothing uses, too */
    if (shares(o)) expire(s, pos);
    if (o->op == P_LOOP) {
        const xloop *l = &f->loops.at[o->loop];
        for (int i = 0; i < l->ivs.n; i++) take_gen(s, l->ivs.at[i]);
        take_gen(s, l->count);
    }
    if (o->op == P_DYN) take_gen(s, o->mem.index);
    if (o->dst && f->v.at[o->dst].start == pos && !f->v.at[o->dst].spilled) {
        vreg like = o->op == P_FMA ? fma_place(s, o) : o->op == P_MOV ? o->a : 0;
        if (f->level == X86_SSE && o->op < X86_N_INS) like = two_operand_place(s, o);
        take_vec(s, o->dst, like ? f->v.at[like].phys : -1);
    }
    if (o->op != P_CALL) return;
    o->live = o->glive = 0;
    for (int p = 0; p < f->n_vregs_phys; p++)
        if (s->vec[p] && s->vec[p] != o->dst && f->v.at[s->vec[p]].end > pos) o->live |= 1u << p;
    for (int p = 0; p < 16; p++)
        if (s->gen[p] && f->g.at[s->gen[p]].end > pos) o->glive |= 1u << p;
}

static void scan_all(scan *s) {
    xfn *f = s->f;
    for (int i = 1; i < f->v.n; i++) f->v.at[i].phys = -1;
    for (int i = 1; i < f->g.n; i++) f->g.at[i].phys = -1;
    for (size_t p = 0; p < COUNT_OF(general); p++) s->gen_free |= 1u << general[p];
    list_ends(s);
    s->vec_free = f->n_vregs_phys == 32 ? UINT32_MAX : (1u << f->n_vregs_phys) - 1;
    for (int i = 1; i < f->g.n; i++)
        if (f->g.at[i].kind == G_BUF || f->g.at[i].kind == G_SUM) take_gen(s, i);
    for (int32_t i = 0; i < f->n_order; i++) scan_op(s, i);
}

/* ---- what has no register ---- */

static bool in_memory(const xfn *f, vreg r) { return r && f->v.at[r].spilled; }

/* Which operand of the operation may be in memory: bits 1 a, 2 b, 4 c. */
static int memory_operands(const xop *o) {
    if (o->op == P_MOV) return 1;
    if (o->op == P_DOT && !o->has_mem) return 2;
    if (o->has_mem || (o->op >= X86_N_INS && o->op != P_FMA)) return 0;
    if (o->op == P_FMA) return 2 | 4;
    int form = x86_table[o->op].form;
    return form == F_RM || form == F_RMI ? 1 : form == F_RVM || form == F_RVMK || form == F_RVMI || form == F_RVMR ? 2 : 0;
}

static vreg brief_copy(xfn *f, int32_t *order, int *n, vreg of) {
    xop o = { .op = P_MOV, .vl = f->v.at[of].vl, .a = of };
    if (is_remat(f, of)) o = (xop){ .op = P_CONST, .vl = f->v.at[of].vl, .imm = f->ops.at[f->v.at[of].def].imm };
    VEC_PUSH(f->keep, &f->v, (xvreg){ .vl = f->v.at[of].vl, .brief = true, .def = f->ops.n });
    o.dst = (vreg)(f->v.n - 1);
    VEC_PUSH(f->keep, &f->ops, o);
    order[(*n)++] = f->ops.n - 1;
    return o.dst;
}

static void rewrite_op(xfn *f, int32_t at, int32_t *order, int *n) {
    xop *o = &f->ops.at[at];
    if (o->op == P_CONST && in_memory(f, o->dst) && is_remat(f, o->dst)) return; /* made again where it is used */
    if (o->op != P_MOV && in_memory(f, o->a) && !in_memory(f, o->b) && o->b && (o->op == P_FMA || x86_commutes(o->op))) {
        vreg t = o->a;
        o->a = o->b, o->b = t;
    }
    int allowed = memory_operands(o);
    if (o->op == P_MOV && in_memory(f, o->dst)) allowed = 0;
    const vreg old[3] = { o->a, o->b, o->c };
    vreg now[3] = { o->a, o->b, o->c };
    int32_t loop = o->loop;
    for (int k = 0; k < 3; k++) {
        if (!in_memory(f, old[k])) continue;
        if (allowed >> k & 1) {
            allowed = 0; /* one at most */
            continue;
        }
        for (int j = 0; j < k && now[k] == old[k]; j++)
            if (old[j] == old[k] && now[j] != old[j]) now[k] = now[j];
        if (now[k] != old[k]) continue;
        now[k] = brief_copy(f, order, n, old[k]);
        f->ops.at[f->ops.n - 1].loop = loop;
    }
    o = &f->ops.at[at];
    o->a = now[0], o->b = now[1], o->c = now[2];
    order[(*n)++] = at;
    vreg d = o->dst;
    if (!in_memory(f, d) || o->op == P_MOV) return;
    VEC_PUSH(f->keep, &f->v, (xvreg){ .vl = f->v.at[d].vl, .brief = true, .def = at });
    f->ops.at[at].dst = (vreg)(f->v.n - 1);
    VEC_PUSH(f->keep, &f->ops, (xop){ .op = P_MOV, .vl = f->v.at[d].vl, .dst = d, .a = (vreg)(f->v.n - 1), .loop = loop });
    order[(*n)++] = f->ops.n - 1;
}

static void rewrite(xfn *f) {
    int32_t *order = ARENA_ARRAY(f->a, int32_t, 5 * f->n_order + 1);
    int n = 0;
    for (int i = 0; i < f->n_order; i++) rewrite_op(f, f->order[i], order, &n);
    f->order = order, f->n_order = n;
}

static void place(xfn *f) {
    for (int i = 1; i < f->v.n; i++) {
        xvreg *v = &f->v.at[i];
        if (!v->spilled) continue;
        v->remat = is_remat(f, (vreg)i);
        if (v->remat) {
            v->slot = f->ops.at[v->def].imm;
        } else {
            f->frame = (f->frame + f->vb - 1) & ~(int64_t)(f->vb - 1);
            v->slot = (int32_t)f->frame;
            f->frame += f->vb;
        }
    }
    f->frame = (f->frame + 7) & ~(int64_t)7;
    for (int i = 1; i < f->g.n; i++) {
        xgreg *g = &f->g.at[i];
        if (g->end < 0 || g->phys >= 0 || g->kind == G_LOCAL) continue;
        g->slot = (int32_t)f->frame;
        f->frame += 8;
    }
    for (int i = 1; i < f->loops.n; i++)
        if (f->loops.at[i].par || f->loops.at[i].counted) f->loops.at[i].par_slot = (int32_t)f->frame, f->frame += 8;
    if (!f->calls) return;
    f->save_at = f->frame = (f->frame + 63) & ~(int64_t)63;
    f->frame += (int64_t)f->n_vregs_phys * f->vb + 16 * 8;
}

/* ---- sums, and what becomes of them ---- */

typedef struct written { /* a value that a loop changes */
    int32_t start, last; /* the first and the last position that write it */
    int32_t ifs;         /* conditions around the first */
    vreg after;          /* its name behind the loop */
} written;

/* The outermost loop that writes it and begins behind its first value; 0 where there is none. */
static int32_t changing_loop(const xfn *f, const written *w) {
    int32_t home = with_code(f, f->ops.at[f->order[w->start]].loop), l = with_code(f, f->ops.at[f->order[w->last]].loop);
    while (l > 0 && f->loops.at[l].outer != home) l = f->loops.at[l].outer;
    return l > 0 && !f->loops.at[l].par ? l : 0;
}

/* Sums have another name behind the loop that adds up. Where what follows the loop has too few registers, that is what loses
 * its own, stored and read once; a sum without one would wait for memory in each step of the loop. Returns whether there are
 * any. */
static bool rename_after_loops(xfn *f) {
    written *w = ARENA_ARRAY(f->a, written, f->v.n);
    int32_t *ifs = ARENA_ARRAY(f->a, int32_t, f->n_order + 1), *order;
    int n = 0, n_renamed = 0, n_v = f->v.n, n_order = f->n_order;
    for (int i = 1; i < n_v; i++) w[i] = (written){ .start = -1 };
    for (int i = 0, depth = 0; i < n_order; i++) {
        const xop *o = &f->ops.at[f->order[i]];
        depth += (o->op == P_IF || o->op == P_IFLAST) - (o->op == P_ENDIF);
        ifs[i] = depth;
        if (!o->dst || !f->v.at[o->dst].is_mutable) continue;
        written *x = &w[o->dst];
        if (x->start < 0) x->start = i, x->ifs = depth;
        x->last = i;
    }
    for (int i = 1; i < n_v; i++) {
        int32_t l = w[i].start < 0 ? 0 : changing_loop(f, &w[i]);
        if (!l || f->v.at[i].end <= f->loops.at[l].last || ifs[f->loops.at[l].last] != w[i].ifs) continue;
        xvreg copy = f->v.at[i];
        copy.is_mutable = false, copy.def = f->ops.n, copy.loop = f->loops.at[l].outer;
        VEC_PUSH(f->keep, &f->v, copy);
        w[i].after = (vreg)(f->v.n - 1), w[i].last = f->loops.at[l].last;
        VEC_PUSH(f->keep, &f->ops, (xop){ .op = P_MOV, .vl = copy.vl, .dst = w[i].after, .a = (vreg)i, .loop = copy.loop });
        n_renamed++;
    }
    if (!n_renamed) return false;
    order = ARENA_ARRAY(f->a, int32_t, n_order + n_renamed);
    for (int i = 0, first = f->ops.n - n_renamed; i < n_order; i++) {
        xop *o = &f->ops.at[f->order[i]];
        vreg *const read[3] = { &o->a, &o->b, &o->c };
        for (int k = 0; k < 3; k++) {
            vreg r = *read[k];
            if (r && (int)r < n_v && w[r].after && i > w[r].last) *read[k] = w[r].after;
        }
        order[n++] = f->order[i];
        for (int m = first; o->op == P_END && m < first + n_renamed; m++)
            if (w[f->ops.at[m].a].last == i) order[n++] = m;
    }
    f->order = order, f->n_order = n;
    return true;
}

static void scan_anew(scan *s, xfn *f) {
    find_loops(f);
    find_intervals(f);
    *s = (scan){ .f = f };
    scan_all(s);
}

void x86_alloc(xfn *f) {
    scan s;
    scan_anew(&s, f);
    if (s.spilled && rename_after_loops(f)) {
        for (int i = 1; i < f->v.n; i++) f->v.at[i].spilled = false;
        scan_anew(&s, f);
    }
    for (int round = 1; s.spilled && !f->unsupported; round++) {
        if (round == MAX_ROUNDS) x86_unsupported(f, "registers that do not settle");
        rewrite(f);
        scan_anew(&s, f);
    }
    place(f);
}
