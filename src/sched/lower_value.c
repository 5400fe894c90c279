/* lower_value.c - the instructions that compute a value at an index, inside of a kernel. Operands come first, the next to do on
 * top of a list: graphs may be deeper than the caller's stack.
 *
 * In: the items of lower.c, and which of them have their place already. Out: instructions at the end of the kernel, a register.
 */
#include "loop/build.h"
#include "sched/lower.h"

#include <math.h>

/* ---- buffers and addresses ---- */

enum { LARGE = 1 << 20 /* bytes */ };
/* Several read it, and not only rows that a run names, or in a shape of their own: in the order in which it lies. */
static bool is_elsewhere(const graph *g, val v) {
    int n = graph_n_uses(g, v), others = n;
    for (uint32_t i = graph_get(g, v)->first_use; i; i = g->uses.at[i - 1].next) {
        const use *u = &g->uses.at[i - 1];
        int op = graph_get(g, u->user)->op;
        others -= op == OP_reshape || (op == OP_gather && u->slot == 0);
    }
    return n > 1 && others > 0;
}

int lower_arg(lower *w, int32_t plan_buf, bool write) {
    for (int i = 0; i < w->args.n; i++)
        if (w->args.at[i].buf == plan_buf) {
            kbuf *b = &w->k->bufs.at[i];
            if (b->kind != (write ? KB_OUT : KB_IN)) b->kind = KB_INOUT;
            return i;
        }
    const pbuf *p = &w->s->p->bufs.at[plan_buf];
    bool fixed = p->kind == PB_CONST || (p->kind == PB_STATE && !graph_is_assigned(w->g, p->node));
    VEC_PUSH(w->a, &w->args, (parg){ plan_buf });
    return kernel_buf(w->k, (kbuf){ .dtype = p->dtype,
                                    .kind = write ? KB_OUT : KB_IN,
                                    .fixed = fixed,
                                    .elsewhere = fixed && p->bytes > LARGE && is_elsewhere(w->g, p->node),
                                    .loose = plan_is_loose(w->s->p, p),
                                    .node = p->node,
                                    .elems = graph_elems_ext(w->g, p->node),
                                    .plan_buf = plan_buf });
}

affine lower_local_index(lower *w, const item *it, const affine *idx) {
    const node *n = graph_get(w->g, it->v);
    exts *t = w->k->params;
    affine flat = affine_const(0);
    ext stride = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        if (lower_axis_is_row(w, it->v, i) || n->dims[i] == 1) continue;
        stride = graph_dim_most(w->g, stride);
        flat = view_plus(w->k, flat, idx[i], stride);
        stride = t ? ext_mul(t, stride, n->dims[i]) : stride * n->dims[i];
    }
    /* one copy for each row that is worked on at once: tile drops the loop's own value and keeps the copy's number */
    for (kvar v = 0; v < w->an.n_root_vars; v++)
        if (w->an.alive[v]) flat = view_plus(w->k, flat, affine_var(w->a, v), stride);
    for (int i = 0; i < flat.n && t; i++) /* axes of the run within one axis: no room for the largest has such steps */
        if (!w->k->vars.at[flat.t[i].var].row && !ext_is_lit(flat.t[i].coef) && !w->materialise) w->materialise = it->v;
    return flat;
}

static reg push_load(lower *w, int buf, tn_dtype stored, affine at, const kmask_list *masks, double other, val v) {
    kins in = { .op = K_LOAD,
                .dtype = (uint8_t)dtype_reg(stored),
                .src = (uint8_t)stored,
                .buf = (uint16_t)buf,
                .idx = at,
                .imm = other,
                .node = v };
    if (masks->n) {
        in.mask = arena_copy(w->a, masks->at, sizeof(kmask) * (size_t)masks->n);
        in.mask_lane = ARENA_ARRAY(w->a, int64_t, masks->n);
        in.n_mask = masks->n;
        in.imm_int = dtype_wrap(dtype_reg(stored),
                                dtype_cast_to_int(dtype_is_float(stored) || stored == TN_BOOL ? TN_I64 : stored, other));
    }
    return kernel_push(w->k, in);
}

static reg lower_leaf(lower *w, val v, affine flat, const kmask_list *masks, double other) {
    const node *n = graph_get(w->g, v);
    int buf = lower_arg(w, w->s->buf_of[v], false);
    return push_load(w, buf, (tn_dtype)n->dtype, flat, masks, other, v);
}

/* ---- values ---- */

kvar lower_open_loop(lower *w, kvar v) {
    build_open(w->k, v, 0, w->k->vars.at[v].extent, PAR_SERIAL);
    return v;
}
void lower_open_loops(lower *w, int from) {
    for (kvar v = from; v < w->k->vars.n; v++) lower_open_loop(w, v);
}
void lower_close_loops(lower *w, int n, int n_memos) {
    build_ends(w->k, n);
    w->memos.n = n_memos;
}

static reg push_const(lower *w, tn_dtype t, double f, int64_t i) {
    kins in = { .op = K_CONST, .dtype = (uint8_t)dtype_reg(t) };
    if (dtype_is_float(t))
        in.imm = f;
    else
        in.imm_int = t == TN_BOOL ? -(i != 0) : dtype_wrap(dtype_reg(t), i);
    return kernel_push(w->k, in);
}

static void reduce_identity(op_code op, tn_dtype t, double *f, int64_t *i) {
    int64_t hi = dtype_max_int(t), lo = dtype_min_int(t);
    *f = 0, *i = 0;
    if (op == OP_prod) *f = 1, *i = 1;
    if (op == OP_reduce_max || op == OP_argmax) *f = -INFINITY, *i = lo; /* of the dtype: what no elements give */
    if (op == OP_reduce_min || op == OP_argmin) *f = INFINITY, *i = hi;
}
static op_code reduce_alu(op_code op) {
    return op == OP_sum ? OP_add : op == OP_prod ? OP_mul : op == OP_reduce_max ? OP_max : OP_min;
}

static reg wrap_narrow(lower *w, reg r, tn_dtype t) {
    if (!dtype_is_narrow_int(t)) return r;
    return kernel_push(w->k, (kins){ .op = K_WRAP, .dtype = TN_I32, .src = (uint8_t)t, .a = r });
}

static void need(task *x, val v, const affine *idx, kmask_list masks) { x->in[x->n_in++] = (want){ v, idx, masks }; }

static void begin_reduce(lower *w, task *t) {
    const val v = t->of.v;
    const node *n = graph_get(w->g, v), *x = graph_get(w->g, n->in[0]);
    bool arg = op_get((op_code)n->op)->cls == CL_ARG;
    uint64_t axes = arg ? 1ull << n->attr[0] : (uint64_t)n->attr[0];
    kins acc = { .op = K_ACC, .dtype = (uint8_t)dtype_reg((tn_dtype)x->dtype), .node = v };
    reduce_identity((op_code)n->op, (tn_dtype)x->dtype, &acc.imm, &acc.imm_int);
    acc.alu = (uint8_t)(arg ? n->op : reduce_alu((op_code)n->op));
    t->acc[0] = kernel_push(w->k, acc);
    if (arg) t->acc[1] = kernel_push(w->k, (kins){ .op = K_ACC, .dtype = TN_I64, .alu = n->op, .imm_int = -1, .node = v });
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    int from = w->k->vars.n;
    t->n_memos = w->memos.n;
    for (int i = 0; i < x->rank; i++)
        in[i] =
            (axes >> i & 1) ? group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, x->dims[i], "r", false, true) : t->of.idx[i];
    t->n_loops = w->k->vars.n - from;
    lower_open_loops(w, from);
    need(t, n->in[0], in, (kmask_list){ 0 });
}

static reg finish_reduce(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    bool arg = t->acc[1] != 0;
    kins in = { .op = arg ? K_ARGUPD : K_UPD,
                .alu = arg ? (uint8_t)n->op : (uint8_t)reduce_alu((op_code)n->op),
                .dtype = w->k->ins.at[t->acc[0]].dtype,
                .a = t->r[0],
                .b = t->acc[1],
                .c = t->acc[0],
                .node = t->of.v };
    if (arg) in.idx = t->in[0].idx[n->attr[0]];
    kernel_push(w->k, in);
    lower_close_loops(w, t->n_loops, t->n_memos);
    return arg ? t->acc[1] : wrap_narrow(w, t->acc[0], (tn_dtype)n->dtype);
}

static void begin_dot(lower *w, task *t) {
    const val v = t->of.v;
    const node *n = graph_get(w->g, v), *x = graph_get(w->g, n->in[0]);
    int nb = (int)n->attr[0], nc = (int)n->attr[1];
    const int64_t *ca = n->attr + 2 + 2 * nb;
    tn_dtype rt = dtype_reg((tn_dtype)n->dtype);
    t->acc[0] = kernel_push(w->k, (kins){ .op = K_ACC, .dtype = (uint8_t)rt, .alu = OP_add, .node = v });
    affine kv[TN_MAX_RANK], *ia = ARENA_ARRAY(w->a, affine, TN_MAX_RANK), *ib = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    int from = w->k->vars.n;
    t->n_memos = w->memos.n;
    for (int i = 0; i < nc; i++)
        kv[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, TN_MAX_RANK + i, x->dims[ca[i]], "k", false, true);
    t->n_loops = w->k->vars.n - from;
    lower_open_loops(w, from);
    dot_operand_index(w->g, v, t->of.idx, kv, ia, ib);
    need(t, n->in[0], ia, (kmask_list){ 0 });
    need(t, n->in[1], ib, (kmask_list){ 0 });
}

static reg finish_dot(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    kernel_push(w->k, (kins){ .op = K_UPD,
                              .alu = OP_dot,
                              .dtype = w->k->ins.at[t->acc[0]].dtype,
                              .a = t->r[0],
                              .b = t->r[1],
                              .c = t->acc[0],
                              .node = t->of.v });
    lower_close_loops(w, t->n_loops, t->n_memos);
    return wrap_narrow(w, t->acc[0], (tn_dtype)n->dtype);
}

static reg push_bound(lower *w, ext e) {
    return ext_is_lit(e) ? push_const(w, TN_I32, 0, e)
                         : kernel_push(w->k, (kins){ .op = K_INDEX, .dtype = TN_I32, .idx = affine_const(e) });
}

static reg mask_register(lower *w, const kmask_list *masks) {
    reg all = 0;
    for (int i = 0; i < masks->n; i++) {
        const kmask *m = &masks->at[i];
        reg e = kernel_push(w->k, (kins){ .op = K_INDEX, .dtype = TN_I32, .idx = m->e });
        reg lo = push_bound(w, m->lo), hi = push_bound(w, m->hi);
        reg ge = kernel_push(w->k, (kins){ .op = K_ALU, .alu = OP_le, .dtype = TN_I32, .src = TN_I32, .a = lo, .b = e });
        reg lt = kernel_push(w->k, (kins){ .op = K_ALU, .alu = OP_lt, .dtype = TN_I32, .src = TN_I32, .a = e, .b = hi });
        reg both = kernel_push(w->k, (kins){ .op = K_ALU, .alu = OP_and, .dtype = TN_I32, .src = TN_I32, .a = ge, .b = lt });
        all = all ? kernel_push(w->k, (kins){ .op = K_ALU, .alu = OP_and, .dtype = TN_I32, .src = TN_I32, .a = all, .b = both })
                  : both;
    }
    return all;
}

/* Memory read through views only: the border's value can come with the masked load. */
static bool is_plain_read(const lower *w, val v) {
    while (sched_inside(w->s, w->gi, v)) {
        const node *n = graph_get(w->g, v);
        if (!op_is_move((op_code)n->op) || n->op == OP_pad) return false;
        v = n->in[0];
    }
    return graph_get(w->g, v)->op != OP_const || !graph_get(w->g, v)->splat;
}

/* Through movement to memory. */
static reg lower_read(lower *w, val v, const affine *idx, const kmask_list *masks, double other) {
    const affine *at = idx;
    while (sched_inside(w->s, w->gi, v)) {
        const node *n = graph_get(w->g, v);
        val u = n->in[0];
        if (n->op == OP_reshape && !lower_has(w, u)) return lower_leaf(w, u, view_flat(w->k, w->g, v, at), masks, other);
        affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
        kmask_list none = { 0 };
        view_fail f;
        if (!view_operand(w->k, w->g, v, at, in, &none, &f)) {
            w->materialise = u;
            return push_const(w, (tn_dtype)n->dtype, 0, 0);
        }
        at = in, v = u;
    }
    item *it = lower_find_item(w, v);
    if (it && it->kind == ITEM_ROOT) return lower_leaf(w, v, view_flat(w->k, w->g, v, at), masks, other);
    return lower_leaf(w, v, view_flat(w->k, w->g, v, at), masks, other);
}

/* The result, or 0: it takes an operand. */
static reg begin_pad(lower *w, task *t) {
    const node *n = graph_get(w->g, t->of.v);
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    kmask_list all = { 0 };
    view_fail f;
    view_operand(w->k, w->g, t->of.v, t->of.idx, in, &t->border, &f);
    for (int i = 0; i < t->of.masks.n; i++) VEC_PUSH(w->a, &all, t->of.masks.at[i]);
    for (int i = 0; i < t->border.n; i++) VEC_PUSH(w->a, &all, t->border.at[i]);
    if (is_plain_read(w, n->in[0])) return lower_read(w, n->in[0], in, &all, n->imm);
    need(t, n->in[0], in, all);
    return 0;
}

static reg finish_pad(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    if (t->border.n == 0) return t->r[0];
    reg m = mask_register(w, &t->border);
    tn_dtype t_pad = (tn_dtype)n->dtype;
    reg other = push_const(w, t_pad, n->imm, dtype_is_float(t_pad) ? 0 : dtype_cast_to_int(t_pad, n->imm));
    uint8_t rt = (uint8_t)dtype_reg((tn_dtype)n->dtype);
    return kernel_push(
        w->k,
        (kins){ .op = K_ALU, .alu = OP_select, .dtype = rt, .src = rt, .a = m, .b = t->r[0], .c = other, .node = t->of.v });
}

static reg begin_move(lower *w, task *t) {
    const node *n = graph_get(w->g, t->of.v);
    val u = n->in[0];
    if (n->op == OP_pad) return begin_pad(w, t);
    if (n->op == OP_reshape && !lower_has(w, u))
        return lower_leaf(w, u, view_flat(w->k, w->g, t->of.v, t->of.idx), &t->of.masks, 0);
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    kmask_list none = { 0 };
    view_fail f;
    if (!view_operand(w->k, w->g, t->of.v, t->of.idx, in, &none, &f)) {
        w->materialise = u;
        return push_const(w, (tn_dtype)n->dtype, 0, 0);
    }
    need(t, u, in, t->of.masks);
    return 0;
}

ext lower_stride(const lower *w, const node *x, int axis) {
    ext stride = 1;
    for (int i = axis + 1; i < x->rank; i++) stride = ext_mul(w->g->params, stride, x->dims[i]);
    return stride;
}

static void begin_gather(lower *w, task *t) {
    const node *n = graph_get(w->g, t->of.v), *index = graph_get(w->g, n->in[1]);
    affine *ii = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    for (int i = 0; i < index->rank; i++) ii[i] = t->of.idx[n->attr[0] + i];
    need(t, n->in[1], ii, t->of.masks);
}

static reg finish_gather(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v), *x = graph_get(w->g, n->in[0]), *index = graph_get(w->g, n->in[1]);
    const affine *idx = t->of.idx;
    int axis = (int)n->attr[0];
    affine ix[TN_MAX_RANK];
    for (int i = 0; i < x->rank; i++) ix[i] = i < axis ? idx[i] : i == axis ? affine_const(0) : idx[i - 1 + index->rank];
    kmask_list masks = { 0 };
    for (int m = 0; m < t->of.masks.n; m++) VEC_PUSH(w->a, &masks, t->of.masks.at[m]);
    if (!ext_is_lit(x->dims[axis]) && ext_lo(w->g->params, x->dims[axis]) < 1) /* zeros where there is nothing to pick */
        VEC_PUSH(w->a, &masks, ((kmask){ { .base = x->dims[axis] }, 1, ext_hi(w->g->params, x->dims[axis]) + 1 }));
    reg r = lower_leaf(w, n->in[0], view_flat(w->k, w->g, n->in[0], ix), &masks, 0);
    kins *load = &w->k->ins.at[r];
    load->dyn = t->r[0], load->dyn_stride = lower_stride(w, x, axis), load->dyn_n = x->dims[axis];
    return r;
}

/* Functions with an error of their own need no more of f32 than their results keep; sums may take a product unrounded. */
static kalu precision_of(const node *n) {
    if (!dtype_is_narrow_float(n->dtype) || !op_is_approximable((op_code)n->op)) return ALU_PLAIN;
    return n->dtype == TN_BF16 ? ALU_COARSE : ALU_APPROXIMATE;
}

static reg finish_elementwise(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    if (n->op == OP_stop_gradient) return t->r[0];
    int value = n->op == OP_select ? 1 : 0; /* operand whose dtype names the operation */
    tn_dtype src = (tn_dtype)graph_get(w->g, n->in[value])->dtype;
    kins in = { .op = K_ALU,
                .alu = n->op,
                .dtype = (uint8_t)dtype_reg((tn_dtype)n->dtype),
                .src = (uint8_t)dtype_reg(src),
                .mode = (uint8_t)precision_of(n),
                .a = t->r[0],
                .b = t->r[1],
                .c = t->r[2],
                .node = t->of.v };
    return wrap_narrow(w, kernel_push(w->k, in), (tn_dtype)n->dtype);
}

/* f32 as a narrow float would have it; what is too large for the 8-bit ones is their largest number. */
static reg round_narrow(lower *w, reg r, tn_dtype t) {
    kins bound = { .op = K_ALU, .dtype = TN_F32, .src = TN_F32 };
    for (int side = 0; side < 2 && dtype_is_fp8(t); side++) {
        bound.alu = side ? OP_max : OP_min;
        bound.a = r, bound.b = push_const(w, TN_F32, side ? dtype_info(t)->lo : dtype_info(t)->hi, 0);
        r = kernel_push(w->k, bound);
    }
    return kernel_push(w->k, (kins){ .op = K_WRAP, .dtype = TN_F32, .src = (uint8_t)t, .a = r });
}

static reg finish_cast(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    tn_dtype to = (tn_dtype)n->dtype, from = (tn_dtype)graph_get(w->g, n->in[0])->dtype;
    if (n->op == OP_bitcast)
        return dtype_reg(to) == dtype_reg(from) ? (to == from ? t->r[0] : wrap_narrow(w, t->r[0], to))
                                                : kernel_push(w->k, (kins){ .op = K_BITCAST,
                                                                            .dtype = (uint8_t)dtype_reg(to),
                                                                            .src = (uint8_t)dtype_reg(from),
                                                                            .a = t->r[0],
                                                                            .node = t->of.v });
    bool widens = dtype_is_float(to) ? dtype_is_narrow_float(from) : dtype_is_narrow_int(from);
    if (widens && dtype_reg(from) == to) return t->r[0]; /* it is that in the register */
    reg r =
        kernel_push(w->k, (kins){ .op = K_CAST, .dtype = (uint8_t)to, .src = (uint8_t)from, .a = t->r[0], .node = t->of.v });
    return dtype_is_narrow_float(to) ? round_narrow(w, r, to) : r;
}

static reg lower_source(lower *w, val v, const affine *idx, const kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    if (n->op == OP_const && n->splat) return push_const(w, (tn_dtype)n->dtype, n->imm, n->imm_int);
    if (n->op == OP_iota) {
        tn_dtype t = (tn_dtype)n->dtype;
        tn_dtype as = dtype_is_float(t) ? TN_I64 : dtype_reg(t);
        reg r = kernel_push(w->k, (kins){ .op = K_INDEX, .dtype = (uint8_t)as, .idx = idx[n->attr[0]], .node = v });
        if (as != t && dtype_is_float(t))
            r = kernel_push(w->k, (kins){ .op = K_CAST, .dtype = (uint8_t)t, .src = TN_I64, .a = r });
        return wrap_narrow(w, r, t);
    }
    return lower_leaf(w, v, view_flat(w->k, w->g, v, idx), masks, 0);
}

/* Writes what stands before the operands and lists these; or returns the result where there are none. */
static reg begin(lower *w, task *t) {
    const node *n = graph_get(w->g, t->of.v);
    op_class cls = op_get((op_code)n->op)->cls;
    switch (cls) {
    case CL_REDUCE:
    case CL_ARG:
        begin_reduce(w, t);
        return 0;
    case CL_DOT:
        begin_dot(w, t);
        return 0;
    case CL_GATHER:
        begin_gather(w, t);
        return 0;
    case CL_SOURCE:
        return lower_source(w, t->of.v, t->of.idx, &t->of.masks);
    case CL_MOVE:
        return begin_move(w, t);
    default:
        for (int i = 0; i < n->n_in; i++) need(t, n->in[i], t->of.idx, cls == CL_RANDOM ? (kmask_list){ 0 } : t->of.masks);
        return 0;
    }
}

static reg finish(lower *w, const task *t) {
    const node *n = graph_get(w->g, t->of.v);
    switch (op_get((op_code)n->op)->cls) {
    case CL_REDUCE:
    case CL_ARG:
        return finish_reduce(w, t);
    case CL_DOT:
        return finish_dot(w, t);
    case CL_GATHER:
        return finish_gather(w, t);
    case CL_CAST:
        return finish_cast(w, t);
    case CL_RANDOM:
        return kernel_push(w->k, (kins){ .op = K_RANDOM,
                                         .dtype = TN_F32,
                                         .a = t->r[0],
                                         .stream = n->attr[0],
                                         .idx = view_flat(w->k, w->g, t->of.v, t->of.idx),
                                         .node = t->of.v });
    case CL_MOVE:
        return n->op == OP_pad ? finish_pad(w, t) : t->r[0];
    default:
        return finish_elementwise(w, t);
    }
}

static bool memo_fits(const memo *m, const want *x, int rank) {
    if (m->v != x->v || m->masks.n != x->masks.n) return false;
    for (int d = 0; d < rank; d++)
        if (!affine_equal(m->idx[d], x->idx[d])) return false;
    for (int i = 0; i < x->masks.n; i++) {
        const kmask *a = &m->masks.at[i], *b = &x->masks.at[i];
        if (!affine_equal(a->e, b->e) || a->lo != b->lo || a->hi != b->hi) return false;
    }
    return true;
}

static reg remember(lower *w, const want *x, reg r) {
    int rank = graph_get(w->g, x->v)->rank;
    VEC_PUSH(w->a, &w->memos, (memo){ x->v, arena_copy(w->a, x->idx, sizeof *x->idx * (size_t)rank), x->masks, r });
    return r;
}

/* What has been computed already, or lies in memory; else 0. */
static reg known_value(lower *w, const want *x) {
    const node *n = graph_get(w->g, x->v);
    item *it = lower_find_item(w, x->v);
    if (it && it->kind == ITEM_SCALAR && it->r) return it->r;
    for (int i = w->memos.n - 1; i >= 0; i--)
        if (memo_fits(&w->memos.at[i], x, n->rank)) return w->memos.at[i].r;
    if (it && it->kind == ITEM_LOCAL && it->stored) {
        tn_dtype stored = (tn_dtype)w->k->bufs.at[it->buf].dtype;
        return remember(w, x, push_load(w, it->buf, stored, lower_local_index(w, it, x->idx), &x->masks, 0, x->v));
    }
    if (lower_has(w, x->v) && !(it && it->kind == ITEM_ROOT && it->stored)) return 0;
    return remember(w, x, lower_leaf(w, x->v, view_flat(w->k, w->g, x->v, x->idx), &x->masks, 0));
}

/* The next step of the innermost open task; its result, once that is there. */
static reg step(lower *w) {
    task *t = &w->open.at[w->open.n - 1];
    reg r = 0;
    if (!t->begun) {
        if (!t->item && (r = known_value(w, &t->of))) return r;
        t->begun = true;
        r = begin(w, t);
    }
    if (!r && t->n_done < t->n_in) {
        task next = { .of = t->in[t->n_done] };
        VEC_PUSH(w->a, &w->open, next);
        return 0;
    }
    if (!r) r = finish(w, t);
    return t->item ? r : remember(w, &t->of, r);
}

static reg lower_tree(lower *w, task top) {
    reg r = 0;
    VEC_PUSH(w->a, &w->open, top);
    while (w->open.n) {
        r = step(w);
        if (!r) continue;
        task *user = --w->open.n ? &w->open.at[w->open.n - 1] : NULL;
        if (user) user->r[user->n_done++] = r;
    }
    return r;
}
reg lower_value(lower *w, val v, const affine *idx) { return lower_tree(w, (task){ .of = { .v = v, .idx = idx } }); }
reg lower_inside(lower *w, val v, const affine *idx) {
    return lower_tree(w, (task){ .of = { .v = v, .idx = idx }, .item = true });
}
