/* stage.c - staging in fast memory: the right operand of a large contraction is copied, one panel as wide as the register tile at a time, into
 * local memory, where the tile reads it as one sequential stream. In and out: scalar form with roles.
 *
 * Applies to kernels of the form: rows (.., m, n), accumulator, contraction loops, epilogue, where n runs along the lanes, m is unrolled, and
 * the operand's rows lie far apart. The n loop becomes the outermost of the two, so that a panel is used for all m before the next. */
#include "kopt/kopt.h"

enum { FAR_APART = 1024, MIN_TILES = 4 }; /* elements between rows of the operand; m tiles that share a panel */

static const kins *load_of(const kernel *k, reg r) {
    const kins *in = &k->ins.at[r];
    return in->op == K_LOAD ? in : NULL;
}

typedef struct shape {
    kvar m, n;
    int upd;
    reg panel;              /* the load that is staged */
} shape;

static bool recognise(const kernel *k, const target *t, shape *s) {
    *s = (shape){ .m = -1, .n = -1 };
    int i = 1;
    kvar last = -1;
    for (; i < k->ins.n && k->ins.at[i].op != K_ACC; i++) { /* rows, and what was hoisted between them */
        if (k->ins.at[i].op != K_LOOP) continue;
        if (!k->vars.at[k->ins.at[i].var].row) return false;
        kvar v = last = k->ins.at[i].var;
        if (k->vars.at[v].role.lanes > 1)
            s->n = v;
        else if (k->vars.at[v].role.unroll > 1)
            s->m = v;
    }
    if (s->m < 0 || s->n < 0 || last != s->n) return false;
    for (; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_UPD) continue;
        if (k->ins.at[i].alu != OP_dot || s->upd) return false;
        s->upd = i;
    }
    if (!s->upd) return false;
    reg side[2] = { k->ins.at[s->upd].a, k->ins.at[s->upd].b };
    for (int x = 0; x < 2; x++) {
        const kins *in = load_of(k, side[x]);
        if (in && affine_coef(in->idx, s->n) == 1 && !affine_coef(in->idx, s->m) && !in->n_mask && !in->dyn) s->panel = side[x];
    }
    if (!s->panel) return false;
    const kins *b = &k->ins.at[s->panel];
    int64_t depth = 1, apart = 0, width = (int64_t)k->vars.at[s->n].role.unroll * k->vars.at[s->n].role.lanes;
    for (int x = 0; x < b->idx.n; x++) {
        const kvar_info *v = &k->vars.at[b->idx.t[x].var];
        if (v->row && b->idx.t[x].var != s->n) return false; /* one panel for all rows */
        if (!v->reduce) continue;
        depth *= v->extent;
        if (apart == 0 || b->idx.t[x].coef < apart) apart = b->idx.t[x].coef;
    }
    int64_t tiles = k->vars.at[s->m].extent / k->vars.at[s->m].role.unroll;
    return apart >= FAR_APART && tiles >= MIN_TILES && depth * width * (int64_t)dtype_size((tn_dtype)b->src) <= t->l2_bytes / 2;
}

void kopt_stage(kernel *k, const target *t) {
    shape s;
    if (k->vars.n > 60 || !recognise(k, t, &s)) return;
    kins b = k->ins.at[s.panel];
    /* loops of the copy: fresh variables, one for each contraction loop the operand runs along, in the order they are nested */
    VEC(kvar) from = { 0 }, to = { 0 };
    for (int i = 1; i < s.upd; i++) {
        if (k->ins.at[i].op != K_LOOP || !k->vars.at[k->ins.at[i].var].reduce || !affine_coef(b.idx, k->ins.at[i].var)) continue;
        VEC_PUSH(k->a, &from, k->ins.at[i].var);
        VEC_PUSH(k->a, &to, kernel_var(k, "p", k->vars.at[k->ins.at[i].var].extent, false, false));
    }
    int64_t elems = 1;
    affine place = affine_const(0), place_k = affine_const(0), source = b.idx;
    for (int i = from.n - 1; i >= 0; i--) {
        place = affine_add(k->a, place, affine_scale(k->a, affine_var(k->a, to.at[i]), elems));
        place_k = affine_add(k->a, place_k, affine_scale(k->a, affine_var(k->a, from.at[i]), elems));
        source = affine_set_var(k->a, source, from.at[i], affine_var(k->a, to.at[i]));
        elems *= k->vars.at[from.at[i]].extent;
    }
    place = affine_add(k->a, place, affine_scale(k->a, affine_var(k->a, s.n), elems));
    place_k = affine_add(k->a, place_k, affine_scale(k->a, affine_var(k->a, s.n), elems));
    int buf = kernel_buf(k, (kbuf){ .dtype = b.src, .kind = KB_LOCAL, .node = b.node, .elems = elems, .plan_buf = -1 });

    kernel fresh = { .a = k->a };
    VEC_PUSH(k->a, &fresh.ins, (kins){ 0 });
    reg *map = ARENA_ARRAY(k->a, reg, k->ins.n);
    kins n_loop = { 0 };
    for (int i = 1; i < s.upd; i++)
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].var == s.n) n_loop = k->ins.at[i];
    kernel_push(&fresh, n_loop);
    for (int i = 0; i < to.n; i++)
        kernel_push(&fresh, (kins){ .op = K_LOOP, .var = to.at[i], .hi = k->vars.at[to.at[i]].extent, .step = 1 });
    kins load = b;
    load.idx = source;
    reg r = kernel_push(&fresh, load);
    kernel_push(&fresh, (kins){ .op = K_STORE, .dtype = b.src, .buf = (uint16_t)buf, .idx = place, .a = r, .node = b.node });
    for (int i = 0; i < to.n; i++) kernel_push(&fresh, (kins){ .op = K_END });
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        if (in.op == K_LOOP && in.var == s.n) continue; /* now outermost; the END count stays the same */
        in.a = map[in.a], in.b = map[in.b], in.c = map[in.c], in.dyn = map[in.dyn];
        if (i == (int)s.panel) in.buf = (uint16_t)buf, in.idx = place_k;
        map[i] = kernel_push(&fresh, in);
    }
    kernel_push(&fresh, (kins){ 0 });
    fresh.ins.n--;
    k->ins.at = fresh.ins.at, k->ins.n = fresh.ins.n, k->ins.cap = fresh.ins.cap;
    if (k->par_var >= 0) k->par_var = s.n;
}
