/* contraction.c - implementation of contraction.h. */
#include "loop/contraction.h"

int contraction_tile_rows(const contraction *c) { return c->m >= 0 ? contraction_role(c, c->m).unroll : 1; }
int64_t contraction_tile_columns(const contraction *c) {
    return (int64_t)contraction_role(c, c->n).unroll * contraction_role(c, c->n).lanes;
}
int64_t contraction_rows_from(const contraction *c, int first) {
    int64_t n = 1;
    for (int i = first; i < c->rows.n; i++) n *= contraction_extent(c, c->rows.at[i]);
    return n;
}
int64_t contraction_depth_from(const contraction *c, int first) {
    int64_t n = 1;
    for (int i = first; i < c->depth.n; i++) n *= contraction_extent(c, c->depth.at[i]);
    return n;
}
int64_t contraction_full_tiles(const contraction *c) { return contraction_extent(c, c->n) / contraction_tile_columns(c); }
tn_dtype contraction_dtype(const contraction *c) {
    const kins *x = contraction_ins(c, (int)c->packed.value);
    if (x->op == K_LOAD) return x->packed ? TN_I32 : (tn_dtype)x->src;
    return (tn_dtype)(x->op == K_WRAP ? x->src : x->dtype); /* a rounded value stays narrow */
}
int64_t contraction_elem_size(const contraction *c) { return (int64_t)dtype_size(contraction_dtype(c)); }
int64_t contraction_sum_size(const contraction *c) { return (int64_t)dtype_size((tn_dtype)contraction_ins(c, c->acc)->dtype); }

static bool find_rows(contraction *t) {
    int i = 1;
    t->m = t->n = -1;
    for (; i < t->k->ins.n && contraction_ins(t, i)->op != K_ACC; i++) { /* rows, and what was hoisted between them */
        if (contraction_ins(t, i)->op == K_STORE || contraction_ins(t, i)->op == K_SCATTER ||
            contraction_ins(t, i)->op == K_END)
            return false;
        if (contraction_ins(t, i)->op != K_LOOP) continue;
        kvar v = contraction_ins(t, i)->var;
        if (!t->k->vars.at[v].row || t->n >= 0) return false; /* n is the innermost */
        if (contraction_role(t, v).lanes > 1) {
            t->n = v;
            continue;
        }
        if (contraction_role(t, v).unroll > 1) t->m = v;
        VEC_PUSH(t->k->a, &t->rows, v);
    }
    t->acc = i;
    return i < t->k->ins.n && t->n >= 0;
}

static bool find_contraction(contraction *t) {
    for (int i = t->acc + 1; i < t->k->ins.n; i++) {
        const kins *in = contraction_ins(t, i);
        if (in->op == K_LOOP && t->k->vars.at[in->var].reduce) {
            if (t->upd) return false;
            if (!t->first) t->first = i;
            VEC_PUSH(t->k->a, &t->depth, in->var);
        }
        if (in->op == K_ACC || in->op == K_ARGUPD) return false;
        if (in->op != K_UPD) continue;
        if (in->alu != OP_dot || t->upd || (int)in->c != t->acc) return false;
        t->upd = i;
    }
    if (!t->upd || !t->first) return false;
    t->end = kernel_loop_end(t->k, t->first);
    return t->upd < t->end;
}

/* The operand that runs along n and not along m: memory, or what is computed of it. Not one that was moved out of a contraction
 * loop on which it does not depend: panels go with all of them. */
static void find_panel(contraction *t) {
    int inner = t->upd;
    while (t->k->ins.at[inner].op != K_LOOP) inner--;
    reg side[2] = { contraction_ins(t, t->upd)->a, contraction_ins(t, t->upd)->b };
    for (int x = 0; x < 2; x++) {
        operand o;
        if ((int)side[x] < inner || !operand_find(t->k, side[x], &o)) continue;
        if (!(o.vars >> t->n & 1) || (t->m >= 0 && (o.vars >> t->m & 1))) continue;
        t->packed = o, t->load = o.load;
    }
}

bool contraction_find(kernel *k, contraction *out) {
    *out = (contraction){ .k = k };
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL && k->bufs.at[b].elems > 0) return false;
    if (!find_rows(out) || !find_contraction(out) || out->depth.n > CONTRACTION_MOST_DEPTH) return false;
    find_panel(out);
    return true;
}

/* What is computed without the packed operand: [ins]. */
static bool *find_others(const kernel *k, int upd, reg packed) {
    bool *needed = ARENA_ARRAY(k->a, bool, k->ins.n);
    for (int i = k->ins.n - 1; i > 0; i--) {
        const kins *in = &k->ins.at[i];
        needed[i] = needed[i] || (in->op != K_LOAD && !kernel_is_pure(in));
        if (!needed[i]) continue;
        const reg from[] = { in->a, in->b, in->c, in->dyn };
        for (int x = 0; x < 4; x++)
            if (i != upd || from[x] != packed) needed[from[x]] = true;
    }
    return needed;
}

static bool walks_as_one(const kins *in, kvar outer, kvar inner, int64_t extent) {
    bool same = affine_coef(in->idx, outer) == extent * affine_coef(in->idx, inner);
    for (int m = 0; m < in->n_mask && same; m++)
        same = affine_coef(in->mask[m].e, outer) == extent * affine_coef(in->mask[m].e, inner);
    return same;
}

int contraction_joinable(const kernel *k, int upd, reg packed, kvar n, int64_t *columns) {
    const bool *others = find_others(k, upd, packed);
    int joined = 0, i = upd;
    int64_t extent = k->vars.at[n].extent;
    while (i > 0 && !(k->ins.at[i].op == K_LOOP && k->ins.at[i].var == n)) i--;
    while (--i > 0) { /* outwards */
        const kins *in = &k->ins.at[i];
        if (in->op == K_END) break;
        if (in->op != K_LOOP) continue;
        bool one = k->vars.at[in->var].row;
        for (int x = 1; x < k->ins.n && one; x++) one = !others[x] || walks_as_one(&k->ins.at[x], in->var, n, extent);
        if (!one) break;
        extent *= k->vars.at[in->var].extent, joined++;
    }
    if (columns) *columns = extent;
    return joined;
}

/* ---- sums in memory ---- */

int contraction_sums(const contraction *c, int64_t n) {
    const kins *acc = contraction_ins(c, c->acc);
    return kernel_buf(c->k, (kbuf){ .dtype = acc->dtype, .kind = KB_LOCAL, .node = acc->node, .elems = n, .plan_buf = -1 });
}

static kins access_sum(const contraction *c, kop op, int sums, affine place) {
    const kins *acc = contraction_ins(c, c->acc);
    return (kins){
        .op = (uint8_t)op, .dtype = acc->dtype, .src = acc->dtype, .buf = (uint16_t)sums, .idx = place, .node = acc->node
    };
}

reg contraction_load_sum(const contraction *c, kernel *o, int sums, affine place) {
    return kernel_push(o, access_sum(c, K_LOAD, sums, place));
}

void contraction_store_sum(const contraction *c, kernel *o, int sums, affine place, reg v) {
    kins store = access_sum(c, K_STORE, sums, place);
    store.a = v;
    kernel_push(o, store);
}

void contraction_clear_sum(const contraction *c, kernel *o, int sums, affine place) {
    const kins *acc = contraction_ins(c, c->acc);
    kins zero = { .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int, .node = acc->node };
    contraction_store_sum(c, o, sums, place, kernel_push(o, zero));
}

void contraction_resume_sum(const contraction *c, reg to, kernel *o, int sums, affine place) {
    const kins *acc = contraction_ins(c, c->acc);
    kins add = { .op = K_UPD, .alu = OP_add, .dtype = acc->dtype, .src = acc->dtype, .c = to, .node = acc->node };
    add.a = contraction_load_sum(c, o, sums, place);
    kernel_push(o, add);
}

/* ---- panels ---- */

static bool add_loop(const contraction *t, kpanels *x, kvar v) {
    if (x->n_outer + x->n_depth == PANEL_LOOPS) return false;
    x->loops[x->n_outer + x->n_depth] =
        (kstep){ contraction_extent(t, v), affine_coef(contraction_ins(t, (int)t->load)->idx, v) };
    return true;
}

bool contraction_in_panel(const contraction *c, kvar v) {
    return !contraction_computes(c) || affine_coef(contraction_ins(c, (int)c->load)->idx, v) != 0;
}

/* Panels with all contraction loops inside, one after the other for the rows that the operand depends on. */
static bool list_loops(const contraction *t, kpanels *x) {
    const kins *b = contraction_ins(t, (int)t->load);
    int n = 1; /* loops that the index knows */
    *x = (kpanels){ b->idx.base, contraction_tile_columns(t),
                    .column = { contraction_extent(t, t->n), affine_coef(b->idx, t->n) } };
    x->dtype = b->src, x->packed = b->packed, x->packed_stride = b->packed_stride;
    for (int i = 0; i < t->rows.n; i++) {
        if (!affine_coef(b->idx, t->rows.at[i])) continue;
        if (!add_loop(t, x, t->rows.at[i])) return false;
        x->n_outer++, n++;
    }
    for (int i = 0; i < t->depth.n; i++) {
        if (!contraction_in_panel(t, t->depth.at[i])) continue;
        if (!add_loop(t, x, t->depth.at[i])) return false;
        x->n_depth++, n += affine_coef(b->idx, t->depth.at[i]) != 0;
    }
    return n == b->idx.n;
}

bool contraction_layout(const contraction *c, kpanels *out) {
    const kbuf *own = &c->k->bufs.at[contraction_ins(c, (int)c->load)->buf];
    bool once = c->m < 0 && contraction_rows_from(c, 0) == 1; /* else a copy computes it once for all rows */
    if ((contraction_computes(c) && !once) || contraction_ins(c, (int)c->load)->n_mask || !own->fixed || own->panels ||
        !list_loops(c, out))
        return false;
    /* Not where windows overlap, or many a panel is short. */
    return kpanels_elems(out) * (out->packed ? out->packed : 1) <= 2 * own->elems;
}

const kins *contraction_matrix(const contraction *c) {
    kvar m = c->rows.n ? c->rows.at[0] : -1;
    if (c->rows.n > 1 || c->depth.n < 1) return NULL;
    for (int i = c->acc + 1; i < c->k->ins.n; i++) { /* no other loop, and no scatter */
        const kins *in = contraction_ins(c, i);
        if ((in->op == K_LOOP && (i < c->first || i > c->end)) || in->op == K_SCATTER) return NULL;
    }
    operand left, right;
    if (!operand_find(c->k, contraction_ins(c, c->upd)->a, &left) || !operand_find(c->k, contraction_ins(c, c->upd)->b, &right))
        return NULL;
    const kins *a = contraction_ins(c, (int)left.load), *b = contraction_ins(c, (int)right.load);
    const kins *matrix = affine_coef(a->idx, c->n) ? a : b, *vectors = matrix == a ? b : a;
    if (matrix->n_mask || matrix->dyn || affine_coef(matrix->idx, c->n) != 1 || affine_coef(vectors->idx, c->n) ||
        (m >= 0 && affine_coef(matrix->idx, m)))
        return NULL;
    int64_t apart = affine_coef(matrix->idx, c->depth.at[c->depth.n - 1]);
    if (apart < contraction_extent(c, c->n)) return NULL;
    for (int i = c->depth.n - 1; i >= 0; i--) { /* row after row */
        if (affine_coef(matrix->idx, c->depth.at[i]) != apart) return NULL;
        apart *= contraction_extent(c, c->depth.at[i]);
    }
    return matrix;
}
