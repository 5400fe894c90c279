/* stage.c - staging in fast memory: the right operand of a large contraction is copied, one panel as wide as the register tile
 * at a time, into local memory, where the tile reads it as one sequential stream. In and out: scalar form with roles.
 *
 * Applies to kernels of the form: rows (.., m, n), accumulator, contraction loops, epilogue, where n runs along the lanes, m is
 * unrolled, and the operand's rows lie far apart. Where n is a whole number of blocks of a few tiles, a block is staged at once
 * and the loops inside stay as they are: the left operand's rows are then read from memory once a block. Elsewhere the n loop
 * becomes the outermost and one tile's panel is staged. */
#include "kopt/kopt.h"

enum { FAR_APART = 128, MIN_TILES = 8 }; /* elements between rows of the operand; m tiles that share a panel */

static const kins *load_of(const kernel *k, reg r) {
    const kins *in = &k->ins.at[r];
    return in->op == K_LOAD ? in : NULL;
}

typedef struct shape {
    kvar m, n;
    int upd;
    reg panel; /* the load that is staged */
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
    return apart >= FAR_APART && tiles >= MIN_TILES &&
           depth * width * (int64_t)dtype_size((tn_dtype)b->src) <= t->l2_bytes / 2; /* its stack */
}

/* ---- writing the staged kernel ---- */

typedef struct stager {
    kernel *k;
    shape s;
    kins panel_load;
    VEC(kvar) depth; /* contraction loops the panel runs along, outermost first */
    kernel out;      /* only its instructions */
    reg *map;        /* [k->ins.n] */
    int panel, sums; /* local buffers */
    int64_t panel_elems;
    kvar block;          /* loop over blocks of n, or -1: one tile's panel at a time */
    int64_t block_width; /* columns of a block */
} stager;

enum { ROW_PAD = 16 }; /* elements between rows of a staged block: rows a power of two apart would share few cache sets */
static int64_t row_stride(const stager *t) { return t->block_width + ROW_PAD; }

/* One stretch of the contraction: [base, base + length) of its only loop, or all of it. */
typedef struct stretch {
    bool whole;
    kvar block; /* loop over stretches of equal length, or -1 */
    int64_t base, length;
    bool first, last;
} stretch;

static affine contraction_value(stager *t, const stretch *x, kvar fresh) {
    affine v = affine_offset(affine_var(t->k->a, fresh), x->base);
    if (x->block >= 0) v = affine_add(t->k->a, v, affine_scale(t->k->a, affine_var(t->k->a, x->block), x->length));
    return v;
}

static void copy_panel(stager *t, const stretch *x) {
    kernel *k = t->k;
    affine place = affine_const(0), source = t->panel_load.idx;
    int64_t elems = 1;
    kvar to[16];
    for (int i = t->depth.n - 1; i >= 0; i--) {
        int64_t extent = x->whole ? k->vars.at[t->depth.at[i]].extent : x->length;
        to[i] = kernel_var(k, "p", extent, false, false);
        place = affine_add(k->a, place, affine_scale(k->a, affine_var(k->a, to[i]), elems));
        source =
            affine_set_var(k->a, source, t->depth.at[i], x->whole ? affine_var(k->a, to[i]) : contraction_value(t, x, to[i]));
        elems *= extent;
    }
    for (int i = 0; i < t->depth.n; i++)
        kernel_push(&t->out, (kins){ .op = K_LOOP, .var = to[i], .hi = k->vars.at[to[i]].extent, .step = 1 });
    kins load = t->panel_load;
    if (t->block >= 0) {
        kvar q = kernel_var(k, "q", t->block_width, false, false);
        k->vars.at[q].role = (krole){ 1, k->vars.at[t->s.n].role.lanes };
        kernel_push(&t->out, (kins){ .op = K_LOOP, .var = q, .hi = t->block_width, .step = 1 });
        source = affine_set_var(
            k->a, source, t->s.n,
            affine_add(k->a, affine_var(k->a, q), affine_scale(k->a, affine_var(k->a, t->block), t->block_width)));
        place = affine_add(k->a, affine_scale(k->a, place, row_stride(t)), affine_var(k->a, q));
    } else {
        place = affine_add(k->a, place, affine_scale(k->a, affine_var(k->a, t->s.n), t->panel_elems));
    }
    load.idx = source;
    reg r = kernel_push(&t->out, load);
    kernel_push(&t->out,
                (kins){ .op = K_STORE, .dtype = load.src, .buf = (uint16_t)t->panel, .idx = place, .a = r, .node = load.node });
    for (int i = 0; i < t->depth.n + (t->block >= 0); i++) kernel_push(&t->out, (kins){ .op = K_END });
}

static affine panel_place(stager *t, const kvar *vars) {
    affine n = affine_var(t->k->a, t->s.n), place = t->block >= 0 ? n : affine_scale(t->k->a, n, t->panel_elems);
    int64_t elems = t->block >= 0 ? row_stride(t) : 1;
    for (int i = t->depth.n - 1; i >= 0; i--) {
        place = affine_add(t->k->a, place, affine_scale(t->k->a, affine_var(t->k->a, vars[i]), elems));
        elems *= t->k->vars.at[vars[i]].extent;
    }
    return place;
}

static affine sums_place(stager *t) { /* one row of the tile's width for every m */
    kernel *k = t->k;
    int64_t m = k->vars.at[t->s.m].extent;
    if (t->block >= 0)
        return affine_add(k->a, affine_scale(k->a, affine_var(k->a, t->s.m), t->block_width), affine_var(k->a, t->s.n));
    return affine_add(k->a, affine_var(k->a, t->s.m), affine_scale(k->a, affine_var(k->a, t->s.n), m));
}

static reg load_sums(stager *t, const kins *acc) {
    return kernel_push(&t->out, (kins){ .op = K_LOAD,
                                        .dtype = acc->dtype,
                                        .src = acc->dtype,
                                        .buf = (uint16_t)t->sums,
                                        .idx = sums_place(t),
                                        .node = acc->node });
}

/* The original loops without n, over one stretch; sums are kept in local memory between stretches. */
static void copy_loops(stager *t, const stretch *x) {
    kernel *k = t->k;
    int upd = t->s.upd, contraction = 0, end = 0;
    reg acc = k->ins.at[upd].c;
    kvar vars[16];
    for (int i = 0; i < t->depth.n; i++) vars[i] = x->whole ? t->depth.at[i] : kernel_var(k, "k", x->length, false, true);
    for (int i = (int)acc; i < upd; i++)
        if (k->ins.at[i].op == K_LOOP && !contraction) contraction = i;
    end = kopt_loop_end(k, contraction);
    bool skip = false;
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        if (in.op == K_LOOP && in.var == t->s.n) {
            if (t->block < 0) continue; /* outermost now; its END is counted once, at the very end */
            in.hi = t->block_width;
        }
        if (skip && in.op != K_END) continue;
        in.a = t->map[in.a], in.b = t->map[in.b], in.c = t->map[in.c], in.dyn = t->map[in.dyn];
        if (!x->whole) {
            if (in.op == K_LOOP && in.var == t->depth.at[0]) in.var = vars[0], in.lo = 0, in.hi = x->length;
            in.idx = affine_set_var(k->a, in.idx, t->depth.at[0], contraction_value(t, x, vars[0]));
        }
        if (t->block >= 0)
            in.idx = affine_set_var(
                k->a, in.idx, t->s.n,
                affine_add(k->a, affine_var(k->a, t->s.n), affine_scale(k->a, affine_var(k->a, t->block), t->block_width)));
        if (i == (int)t->s.panel) in.buf = (uint16_t)t->panel, in.idx = panel_place(t, vars);
        t->map[i] = kernel_push(&t->out, in);
        if (i != end || x->whole) continue;
        const kins *a = &k->ins.at[acc];
        if (!x->first) {
            reg old = load_sums(t, a);
            t->map[acc] = kernel_push(&t->out, (kins){ .op = K_ALU,
                                                       .alu = OP_add,
                                                       .dtype = a->dtype,
                                                       .src = a->dtype,
                                                       .a = old,
                                                       .b = t->map[acc],
                                                       .node = a->node });
        }
        if (!x->last) {
            kernel_push(&t->out, (kins){ .op = K_STORE,
                                         .dtype = a->dtype,
                                         .buf = (uint16_t)t->sums,
                                         .idx = sums_place(t),
                                         .a = t->map[acc],
                                         .node = a->node });
            skip = true;
        }
    }
    if (t->block < 0) t->out.ins.n--; /* the END of the n loop */
}

static void stage_stretch(stager *t, stretch x) {
    if (x.block >= 0)
        kernel_push(&t->out, (kins){ .op = K_LOOP, .var = x.block, .hi = t->k->vars.at[x.block].extent, .step = 1 });
    copy_panel(t, &x);
    copy_loops(t, &x);
    if (x.block >= 0) kernel_push(&t->out, (kins){ .op = K_END });
}

/* Columns of a block: up to six tiles, such that blocks divide n evenly and waste the least on narrow tiles, and that the sums
 * of a stretch fit the second-level cache; 0 = no blocks. */
static int64_t choose_block(const stager *t, int64_t l2_bytes) {
    krole n = t->k->vars.at[t->s.n].role, m = t->k->vars.at[t->s.m].role;
    int64_t extent = t->k->vars.at[t->s.n].extent, rows = t->k->vars.at[t->s.m].extent, depth = 1, best = 0;
    for (int i = 0; i < t->depth.n; i++) depth *= t->k->vars.at[t->depth.at[i]].extent;
    double best_cost =
        1.25 * kopt_tile_cost(m.unroll, n.unroll) / n.unroll; /* of a vector; more is worse than a panel a tile */
    for (int vectors = 2 * n.unroll; vectors <= 6 * n.unroll; vectors++) {
        int64_t columns = (int64_t)vectors * n.lanes;
        if (columns >= extent || extent % columns) continue;
        if (depth * columns * 4 > l2_bytes / 4 && rows * columns * 4 > l2_bytes / 2) continue;
        double cost = vectors / n.unroll * kopt_tile_cost(m.unroll, n.unroll);
        if (vectors % n.unroll) cost += kopt_tile_cost(m.unroll, vectors % n.unroll);
        if (cost / vectors < best_cost) best = columns, best_cost = cost / vectors;
    }
    return best;
}

/* Contractions deeper than a panel that fits the first-level cache are done in stretches. */
static void stage_all(stager *t, const target *machine) {
    kernel *k = t->k;
    int64_t width = (int64_t)k->vars.at[t->s.n].role.unroll * k->vars.at[t->s.n].role.lanes,
            size = (int64_t)dtype_size((tn_dtype)t->panel_load.src);
    int64_t depth = k->vars.at[t->depth.at[0]].extent, m = k->vars.at[t->s.m].extent,
            columns = t->block >= 0 ? t->block_width : width, stride = t->block >= 0 ? row_stride(t) : 1,
            /* a block streams from the second-level cache past the rows of one tile; a panel stays in the first */
        fit = (t->block >= 0 ? machine->l2_bytes / 4 : machine->l1_bytes / 2) / (columns * size) / 64 * 64;
    if (fit > 512) fit = 512;
    bool single = t->depth.n == 1 && k->ins.at[t->s.upd].dtype == TN_F32 && m * columns * 4 <= machine->l2_bytes / 2;
    if (!single || fit < 64 || depth < 2 * fit) {
        int64_t elems = 1;
        for (int i = 0; i < t->depth.n; i++) elems *= k->vars.at[t->depth.at[i]].extent;
        t->panel_elems = k->bufs.at[t->panel].elems = elems * stride;
        stage_stretch(t, (stretch){ .whole = true, .block = -1, .first = true, .last = true });
        return;
    }
    t->panel_elems = k->bufs.at[t->panel].elems = fit * stride;
    t->sums = kernel_buf(k, (kbuf){ .dtype = TN_F32,
                                    .kind = KB_LOCAL,
                                    .node = t->panel_load.node,
                                    .elems = t->block >= 0 ? m * columns : m,
                                    .plan_buf = -1 });
    int64_t blocks = (depth + fit - 1) / fit;
    stage_stretch(t, (stretch){ .block = -1, .length = fit, .first = true });
    if (blocks > 2)
        stage_stretch(t, (stretch){ .block = kernel_var(k, "kb", blocks - 2, false, false), .base = fit, .length = fit });
    stage_stretch(t, (stretch){ .block = -1, .base = fit * (blocks - 1), .length = depth - fit * (blocks - 1), .last = true });
}

void kopt_stage(kernel *k, const target *t) {
    stager st = { .k = k };
    if (k->vars.n > 50 || !recognise(k, t, &st.s)) return;
    st.panel_load = k->ins.at[st.s.panel];
    for (int i = 1; i < st.s.upd; i++)
        if (k->ins.at[i].op == K_LOOP && k->vars.at[k->ins.at[i].var].reduce &&
            affine_coef(st.panel_load.idx, k->ins.at[i].var) && st.depth.n < 16)
            VEC_PUSH(k->a, &st.depth, k->ins.at[i].var);
    if (st.depth.n == 0 || st.depth.n > 8) return;
    int n_contraction = 0;
    for (int i = 1; i < k->ins.n; i++) n_contraction += k->ins.at[i].op == K_LOOP && k->vars.at[k->ins.at[i].var].reduce;
    if (n_contraction != st.depth.n) return;
    st.panel =
        kernel_buf(k, (kbuf){ .dtype = st.panel_load.src, .kind = KB_LOCAL, .node = st.panel_load.node, .plan_buf = -1 });
    st.map = ARENA_ARRAY(k->a, reg, k->ins.n);
    st.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &st.out.ins, (kins){ 0 });
    st.block = -1;
    st.block_width = choose_block(&st, t->l2_bytes);
    bool parallel = k->par_var >= 0;
    kins outer = { 0 };
    for (int i = 1; i < st.s.upd; i++)
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].var == st.s.n) outer = k->ins.at[i];
    if (st.block_width) {
        st.block = kernel_var(k, "nb", k->vars.at[st.s.n].extent / st.block_width, true, false);
        outer = (kins){ .op = K_LOOP, .var = st.block, .hi = k->vars.at[st.block].extent, .step = 1 };
    }
    kernel_push(&st.out, outer);
    stage_all(&st, t);
    kernel_push(&st.out, (kins){ .op = K_END });
    k->ins.at = st.out.ins.at, k->ins.n = st.out.ins.n, k->ins.cap = st.out.ins.cap;
    if (st.block >= 0) { /* loops inside a block index local memory like any other */
        k->vars.at[st.s.n].extent = st.block_width;
        k->vars.at[st.s.n].row = false;
    }
    if (st.block >= 0 || st.sums) k->vars.at[st.s.m].row = false;
    if (parallel) k->par_var = st.block >= 0 ? st.block : st.s.n;
}
