/* nest_pack.c - implementation of nest_pack.h. */
#include "loop/build.h"
#include "loop/nest_pack.h"
#include "loop/loop.h"

/* ---- which operands ---- */

static bool *own_loops(const kernel *k, int loop, int end) {
    bool *own = ARENA_ARRAY(k->a, bool, k->vars.n + 1);
    for (int i = loop; i < end; i++)
        if (k->ins.at[i].op == K_LOOP) own[k->ins.at[i].var] = true;
    return own;
}

/* The part of a load's index that the loops around the blocks make up. Returns whether the rest are loops of the nest but that
 * over the rows of the block. */
static bool read_alike(const kernel *k, const bool *own, kvar row, affine idx, affine *outer) {
    *outer = affine_const(0);
    for (int i = 0; i < idx.n; i++) {
        kterm t = idx.t[i];
        if (t.var == row || k->vars.at[t.var].block) return false;
        if (!own[t.var]) *outer = build_plus(k->a, *outer, affine_var(k->a, t.var), t.coef);
    }
    return true;
}

/* Enough rows share the panels, and several blocks do. */
static bool pays(const kernel *k, int loop) {
    if (k->params) return false; /* there may be one block */
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].block) {
            int64_t blocks = k->vars.at[v].extent, rows = k->vars.at[k->ins.at[loop].var].extent;
            return blocks > 1 && blocks * rows >= NEST_PACK_ROWS;
        }
    return false;
}

void nest_pack_find(const kernel *k, int loop, int end, nest_operands *out) {
    const bool *own = own_loops(k, loop, end);
    if (!pays(k, loop)) return;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        nest_operand found = { .buf = -1 };
        bool ok = x->kind == KB_IN && !x->fixed && x->elems <= NEST_PACK_MOST / (int64_t)dtype_size((tn_dtype)x->dtype);
        for (int i = loop; i < end && ok; i++) {
            const kins *in = &k->ins.at[i];
            affine outer = { 0 };
            if (in->op != K_LOAD || in->buf != b) continue;
            ok = !in->dyn && !in->n_mask && read_alike(k, own, k->ins.at[loop].var, in->idx, &outer) &&
                 (found.buf < 0 || affine_equal(outer, found.outer));
            found = (nest_operand){ b, outer };
        }
        if (ok && found.buf >= 0) VEC_PUSH(k->a, out, found);
    }
}

static const nest_operand *operand_of(const nest_operands *x, const kins *in) {
    for (int i = 0; i < x->n && (in->op == K_LOAD || in->op == K_PREFETCH); i++)
        if (x->at[i].buf == in->buf) return &x->at[i];
    return NULL;
}

static affine in_nest(const kernel *nest, const kvar *of, int n_vars, affine x) {
    affine y = affine_const(x.base);
    for (kvar v = 0; v < n_vars; v++) y = build_plus(nest->a, y, affine_var(nest->a, v), affine_coef(x, of[v]));
    return y;
}

void nest_pack_fix(kernel *nest, const kvar *of, int n_vars, const nest_operands *x) {
    for (int i = 1; i < nest->ins.n; i++) {
        kins *in = &nest->ins.at[i];
        const nest_operand *o = operand_of(x, in);
        if (o) in->idx = build_plus(nest->a, in->idx, in_nest(nest, of, n_vars, o->outer), -1);
    }
    for (int i = 0; i < x->n; i++) nest->bufs.at[x->at[i].buf].fixed = true;
}

const kernel *nest_pack_unfix(const kernel *tiled, const kvar *of, int n_vars, const nest_operands *x) {
    kernel *k = kernel_clone(tiled, tiled->a);
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        const nest_operand *o = operand_of(x, in);
        if (o && !k->bufs.at[in->buf].panels) in->idx = affine_add(k->a, in->idx, in_nest(k, of, n_vars, o->outer));
    }
    return k;
}

/* ---- the nests that fill panels ---- */

static int most_lanes(const kernel *k) {
    int lanes = 1;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].role.lanes > lanes) lanes = k->vars.at[v].role.lanes;
    return lanes;
}

int nest_pack_panels(kernel *o, nest_panels_list *all, const nest_operand *x, const kernel *tiled, int buf) {
    const kbuf *b = &tiled->bufs.at[buf];
    for (int i = 0; i < all->n; i++)
        if (all->at[i].buf == x->buf && affine_equal(all->at[i].outer, x->outer) && kpanels_equal(all->at[i].layout, b->panels))
            return all->at[i].local;
    kbuf local = { .dtype = b->dtype, .kind = KB_LOCAL, .node = b->node, .elems = kpanels_elems(b->panels), .plan_buf = -1 };
    VEC_PUSH(o->a, all, (nest_panels){ x->buf, kernel_buf(o, local), most_lanes(tiled), b->panels, x->outer });
    return all->at[all->n - 1].local;
}

typedef struct filler { /* a kernel of its own with the nests of one buffer of panels */
    kernel *k;
    const kpanels *x;
    kins load;
    affine outer;
    int lanes; /* of a vector */
} filler;

static affine add_term(kernel *k, affine x, kvar v, int64_t coef) { return build_plus(k->a, x, affine_var(k->a, v), coef); }
static void open(kernel *k, kvar v, int64_t lo, int64_t hi) { build_open(k, v, lo, hi, PAR_SERIAL); }

/* Lanes along the columns; columns that do not lie side by side are turned square by square where a loop does. */
static void give_roles(filler *f, kvar column, const kvar *loop) {
    kernel *k = f->k;
    int n = f->x->n_outer + f->x->n_depth, turn = loop_transpose_lanes((tn_dtype)f->load.dtype, f->lanes);
    if (f->x->column.step == 1) {
        k->vars.at[column].role = (krole){ 1, f->lanes };
        return;
    }
    for (int i = f->x->n_outer; i < n && turn; i++) {
        if (f->x->loops[i].step != 1 || f->x->loops[i].extent < turn) continue;
        k->vars.at[loop[i]].role = (krole){ f->x->loops[i].extent >= 2 * turn ? 2 * turn : turn, 1 };
        k->vars.at[column].role = (krole){ 1, turn };
        return;
    }
}

/* Panels [from, to), `columns` wide each. */
static void fill_panels(filler *f, int64_t from, int64_t to, int64_t columns) {
    kernel *k = f->k;
    const kpanels *x = f->x;
    int n = x->n_outer + x->n_depth;
    kvar loop[PANEL_LOOPS], panel, column;
    if (from == to || columns == 0) return;
    for (int i = 0; i < n; i++) loop[i] = kernel_var(k, "p", x->loops[i].extent, false, false);
    panel = kernel_var(k, "nb", to, false, false), column = kernel_var(k, "c", columns, false, false);
    affine place = affine_var(k->a, column), from_place = affine_add(k->a, f->outer, affine_const(x->base));
    from_place = add_term(k, add_term(k, from_place, column, x->column.step), panel, x->column.step * x->width);
    int64_t scale = columns, rows = 1;
    for (int i = n - 1; i >= 0; i--) {
        if (i == x->n_outer - 1) scale = rows * x->column.extent;
        place = add_term(k, place, loop[i], scale), scale *= x->loops[i].extent;
        if (i >= x->n_outer) rows *= x->loops[i].extent;
        from_place = add_term(k, from_place, loop[i], x->loops[i].step);
    }
    place = add_term(k, place, panel, rows * x->width);
    give_roles(f, column, loop);
    bool transposed = x->column.step != 1;
    for (int i = 0; i < x->n_outer; i++) open(k, loop[i], 0, x->loops[i].extent);
    open(k, panel, from, to);
    if (transposed) open(k, column, 0, columns);
    for (int i = x->n_outer; i < n; i++) open(k, loop[i], 0, x->loops[i].extent);
    if (!transposed) open(k, column, 0, columns);
    f->load.idx = from_place;
    kins store = { .op = K_STORE, .dtype = k->bufs.at[1].dtype, .buf = 1, .idx = place, .lanes = 1 };
    store.a = kernel_push(k, f->load), store.node = f->load.node;
    kernel_push(k, store);
    build_ends(k, n + 2);
}

static kins load_of(const kpanels *x) {
    return (kins){ .op = K_LOAD,
                   .dtype = (uint8_t)(x->packed ? TN_I32 : dtype_reg((tn_dtype)x->dtype)),
                   .src = x->dtype,
                   .packed = x->packed,
                   .packed_stride = x->packed ? x->packed_stride : 0,
                   .lanes = 1 };
}

/* of: [vars of the result] in o, the first of them; the others are new. */
static kernel *fill(kernel *o, const nest_panels *p, kvar *of) {
    filler f = { .k = kernel_make(o->a, o->name), .x = p->layout, .load = load_of(p->layout), .lanes = p->lanes };
    f.outer = affine_const(p->outer.base);
    for (int i = 0; i < p->outer.n; i++) {
        kvar_info like = o->vars.at[p->outer.t[i].var];
        like.row = like.reduce = like.block = false, like.role = (krole){ 1, 1 };
        of[i] = p->outer.t[i].var;
        VEC_PUSH(o->a, &f.k->vars, like);
        f.outer = add_term(f.k, f.outer, i, p->outer.t[i].coef);
    }
    kbuf from = o->bufs.at[p->buf], to = o->bufs.at[p->local];
    to.kind = KB_OUT;
    f.load.node = to.node;
    kernel_buf(f.k, from), kernel_buf(f.k, to);
    int64_t full = p->layout->column.extent / p->layout->width, rest = p->layout->column.extent % p->layout->width;
    fill_panels(&f, 0, full, p->layout->width);
    fill_panels(&f, full, full + 1, rest);
    return loop_tile(f.k);
}

/* Appends them to the instructions of `out`, which will stand in o from instruction `first` on. */
static void add_nests(kernel *o, kernel *out, const nest_panels *p, int first) {
    kvar *to = ARENA_ARRAY(o->a, kvar, o->vars.n + 4 * PANEL_LOOPS);
    kernel *k = fill(o, p, to);
    reg *at = ARENA_ARRAY(o->a, reg, k->ins.n);
    for (kvar v = p->outer.n; v < k->vars.n; v++) to[v] = kernel_var_like(o, &k->vars.at[v]);
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        build_operands(&in, at);
        if (in.op == K_LOOP) in.var = to[in.var];
        build_rename(o->a, &in, to);
        if (in.op == K_LOAD || in.op == K_STORE) in.buf = (uint16_t)(in.buf ? p->local : p->buf);
        at[i] = kernel_push(out, in) + (reg)first;
    }
}

void nest_pack_fill(kernel *o, const nest_panels_list *all) {
    kernel out = { .a = o->a };
    int first = 1;
    if (all->n == 0) return;
    while (o->ins.at[first].op != K_LOOP || !o->vars.at[o->ins.at[first].var].block) first++;
    for (int i = 0; i < all->n; i++) add_nests(o, &out, &all->at[i], first);
    loop_insert(o, first, out.ins.at, out.ins.n);
}
