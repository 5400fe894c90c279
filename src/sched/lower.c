/* lower.c - a group becomes a kernel in scalar form: loops over rows, and inside them one nest after another.
 *
 * In: a group that group_analyse accepted. A kernel's body is a list of items in order of value id: reductions to one value a
 * row stay in registers; values that several nests need, or that a contraction makes a whole row of, are kept in local memory;
 * roots are stored. Everything else is computed where it is used. Out: the kernel and which plan buffer each of its buffers is.
 */
#include "sched/sched.h"

#include <math.h>

typedef enum item_kind { ITEM_SCALAR, ITEM_LOCAL, ITEM_ROOT } item_kind;
typedef struct item {
    val v;
    item_kind kind;
    int root; /* index among the group's roots */
    reg r;    /* ITEM_SCALAR: where it is, once computed */
    int buf;  /* ITEM_LOCAL: kernel buffer */
    bool stored;
} item;

typedef struct memo {
    val v;
    const affine *idx;
    kmask_list masks; /* where it is right; elsewhere a load gave the border's value */
    reg r;
} memo;

typedef struct lower {
    sched *s;
    group *gr;
    int gi;
    graph *g;
    arena *a;
    analysis an;
    kernel *k;
    split_list var_of;
    VEC(item) items;
    VEC(memo) memos;
    VEC(parg) args;
    val blame; /* set: lowering failed because of this value */
} lower;

static reg lower_value(lower *w, val v, const affine *idx, kmask_list *masks);

/* ---- facts ---- */

static bool var_is_row(const lower *w, kvar v) { return v < w->an.n_root_vars && w->an.alive[v]; }

static item *find_item(lower *w, val v) {
    for (int i = 0; i < w->items.n; i++)
        if (w->items.at[i].v == v) return &w->items.at[i];
    return NULL;
}

static const affine *first_index(const lower *w, val v) {
    const affine *first = NULL;
    for (int i = w->an.bucket[v % VISIT_BUCKETS]; i; i = w->an.visits.at[i - 1].next) /* from the last one back */
        if (w->an.visits.at[i - 1].v == v) first = w->an.visits.at[i - 1].idx;
    return first;
}

/* Axis of an inside value that runs along a row (all its loop variables are rows). */
static bool axis_is_row(const lower *w, val v, int axis) {
    const affine *idx = first_index(w, v);
    if (!idx) return false;
    affine x = idx[axis];
    if (x.n == 0 || x.base) return false;
    int64_t extent = 1;
    for (int i = 0; i < x.n; i++) {
        if (!var_is_row(w, x.t[i].var)) return false;
        extent *= w->an.k->vars.at[x.t[i].var].extent;
    }
    return extent == graph_get(w->g, v)->dims[axis];
}

static bool all_axes_row(const lower *w, val v) {
    const node *n = graph_get(w->g, v);
    for (int i = 0; i < n->rank; i++)
        if (n->dims[i] != 1 && !axis_is_row(w, v, i)) return false;
    return true;
}

static bool is_anchor(const lower *w, val v) {
    op_class c = op_get((op_code)graph_get(w->g, v)->op)->cls;
    return c == CL_REDUCE || c == CL_ARG || c == CL_DOT;
}

static bool inside(const lower *w, val v) {
    if (sched_inside(w->s, w->gi, v)) return true;
    for (int i = 0; i < w->gr->roots.n; i++)
        if (w->gr->roots.at[i] == v) return true;
    return false;
}

static int n_inside_users(const lower *w, val v, val *one) {
    int n = 0;
    val last = 0;
    for (uint32_t u = graph_get(w->g, v)->first_use; u; u = w->g->uses.at[u - 1].next) {
        val user = w->g->uses.at[u - 1].user;
        if (!inside(w, user) || user == last) continue;
        last = user;
        *one = user;
        n++;
    }
    return n;
}

/* ---- items ---- */

static void add_item(lower *w, item it) {
    VEC_PUSH(w->a, &w->items, it);
    for (int i = w->items.n - 1; i > 0 && w->items.at[i].v < w->items.at[i - 1].v; i--) {
        item t = w->items.at[i];
        w->items.at[i] = w->items.at[i - 1], w->items.at[i - 1] = t;
    }
}

/* The elementwise chain on top of a contraction or reduction that nothing else needs below: stored instead of the bare result.
 */
static val frontier(const lower *w, val v) {
    for (;;) {
        val user = 0;
        for (int i = 0; i < w->gr->roots.n; i++)
            if (w->gr->roots.at[i] == v) return v;
        if (n_inside_users(w, v, &user) != 1) return v;
        const node *u = graph_get(w->g, user);
        if (!(op_is_elementwise((op_code)u->op) || u->op == OP_cast) || !graph_same_shape(w->g, user, v)) return v;
        for (int i = 0; i < u->n_in; i++) { /* its other operands must not wait for a later item */
            val x = u->in[i];
            if (x != v && sched_inside(w->s, w->gi, x) && graph_get(w->g, x)->op != OP_const &&
                !op_is_move((op_code)graph_get(w->g, x)->op))
                return v;
            if (x != v && op_is_move((op_code)graph_get(w->g, x)->op) && inside(w, graph_get(w->g, x)->in[0])) return v;
        }
        v = user;
    }
}

/* v can be kept: every reader wants the same row of it, and names the rest of its place without the rows' variables. */
static bool is_keepable(const lower *w, val v) {
    const affine *first = first_index(w, v);
    if (!first) return false;
    for (int i = w->an.bucket[v % VISIT_BUCKETS]; i; i = w->an.visits.at[i - 1].next) {
        const visit *x = &w->an.visits.at[i - 1];
        for (int d = 0; x->v == v && d < graph_get(w->g, v)->rank; d++) {
            if (axis_is_row(w, v, d) && !affine_equal(x->idx[d], first[d])) return false;
            for (int t = 0; t < x->idx[d].n && !axis_is_row(w, v, d); t++)
                if (var_is_row(w, x->idx[d].t[t].var)) return false;
        }
    }
    return true;
}

/* Items whose evaluation reaches v without passing another item. */
static void count_reach(lower *w, val v, bool *seen, int *count) {
    if (seen[v] || !inside(w, v)) return;
    seen[v] = true;
    count[v]++;
    if (find_item(w, v)) return;
    const node *n = graph_get(w->g, v);
    for (int i = 0; i < n->n_in; i++) count_reach(w, n->in[i], seen, count);
}

static int subtree_flops(lower *w, val v, int limit) {
    if (!inside(w, v) || find_item(w, v) || limit <= 0) return 0;
    const node *n = graph_get(w->g, v);
    int sum = op_is_elementwise((op_code)n->op) ? op_get((op_code)n->op)->flops
              : n->op == OP_random              ? 40
              : is_anchor(w, v)                 ? 100
                                                : 0;
    for (int i = 0; i < n->n_in && sum < 100; i++) sum += subtree_flops(w, n->in[i], limit - 1);
    return sum;
}

static int64_t local_elems(const lower *w, val v) {
    const node *n = graph_get(w->g, v);
    int64_t e = 1;
    for (int i = 0; i < n->rank; i++)
        if (!axis_is_row(w, v, i)) e *= n->dims[i];
    return e;
}

static int64_t local_bytes(const lower *w, val v) {
    return local_elems(w, v) * (int64_t)dtype_size(kernel_reg_dtype((tn_dtype)graph_get(w->g, v)->dtype));
}

static int64_t items_bytes(const lower *w) {
    int64_t bytes = 0;
    for (int i = 0; i < w->items.n; i++)
        if (w->items.at[i].kind == ITEM_LOCAL) bytes += local_bytes(w, w->items.at[i].v);
    return bytes;
}

/* On GPUs computing long rows again costs less than a kernel more. */
static bool is_worth_memory(lower *w, val v) {
    if (!is_keepable(w, v) || subtree_flops(w, v, 40) < 8) return false;
    return !w->s->opts.rows_only || all_axes_row(w, v) || items_bytes(w) + local_bytes(w, v) <= w->s->opts.local_bytes;
}

static void choose_items(lower *w) {
    for (int i = 0; i < w->gr->roots.n; i++) add_item(w, (item){ .v = w->gr->roots.at[i], .kind = ITEM_ROOT, .root = i });
    int n_nodes = w->g->nodes.n;
    for (int i = 0; i < w->an.visits.n; i++) {
        val v = w->an.visits.at[i].v;
        if (!is_anchor(w, v) || find_item(w, v)) continue;
        if (all_axes_row(w, v)) {
            val u =
                frontier(w, v); /* an epilogue right after the loop needs no item: value by value it is the root's own nest */
            item *it = find_item(w, u);
            if (it && it->kind == ITEM_ROOT && all_axes_row(w, u)) continue;
            add_item(w, (item){ .v = v, .kind = ITEM_SCALAR });
        } else {
            val u = frontier(w, v);
            if (!find_item(w, u)) add_item(w, (item){ .v = u, .kind = ITEM_LOCAL });
        }
    }
    for (;;) { /* what several items would compute again, when it is worth memory */
        int *count = ARENA_ARRAY(w->a, int, n_nodes);
        for (int i = 0; i < w->items.n; i++) {
            bool *seen = ARENA_ARRAY(w->a, bool, n_nodes);
            const node *n = graph_get(w->g, w->items.at[i].v);
            for (int j = 0; j < n->n_in; j++) count_reach(w, n->in[j], seen, count);
        }
        val best = 0;
        for (val v = 1; v < (val)n_nodes; v++)
            if (count[v] > 1 && !find_item(w, v) && op_is_elementwise((op_code)graph_get(w->g, v)->op) && is_worth_memory(w, v))
                best = v;
        if (!best) break;
        if (all_axes_row(w, best))
            add_item(w, (item){ .v = best, .kind = ITEM_SCALAR });
        else
            add_item(w, (item){ .v = best, .kind = ITEM_LOCAL });
    }
    int64_t bytes = 0;
    for (int i = 0; i < w->items.n; i++)
        if (w->items.at[i].kind == ITEM_LOCAL) {
            bytes += local_bytes(w, w->items.at[i].v);
            if (bytes > w->s->opts.local_bytes && !w->blame) w->blame = w->items.at[i].v;
        }
}

/* ---- buffers and addresses ---- */

static bool is_assigned(const lower *w, val state) {
    for (int i = 0; i < w->g->outputs.n; i++)
        if (w->g->outputs.at[i].state == state) return true;
    return false;
}

static int kernel_arg(lower *w, int32_t plan_buf, bool write) {
    for (int i = 0; i < w->args.n; i++)
        if (w->args.at[i].buf == plan_buf) {
            kbuf *b = &w->k->bufs.at[i];
            if (b->kind != (write ? KB_OUT : KB_IN)) b->kind = KB_INOUT;
            return i;
        }
    const pbuf *p = &w->s->p->bufs.at[plan_buf];
    VEC_PUSH(w->a, &w->args, (parg){ plan_buf });
    return kernel_buf(w->k, (kbuf){ .dtype = p->dtype,
                                    .kind = write ? KB_OUT : KB_IN,
                                    .fixed = p->kind == PB_CONST || (p->kind == PB_STATE && !is_assigned(w, p->node)),
                                    .node = p->node,
                                    .elems = p->elems,
                                    .plan_buf = plan_buf });
}

static affine local_index(lower *w, const item *it, const affine *idx) {
    const node *n = graph_get(w->g, it->v);
    affine flat = affine_const(0);
    int64_t stride = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        if (axis_is_row(w, it->v, i) || n->dims[i] == 1) continue;
        flat = affine_add(w->a, flat, affine_scale(w->a, idx[i], stride));
        stride *= n->dims[i];
    }
    /* one copy for each row that is worked on at once: kopt drops the loop's own value and keeps the copy's number */
    for (kvar v = 0; v < w->an.n_root_vars; v++)
        if (w->an.alive[v]) flat = affine_add(w->a, flat, affine_scale(w->a, affine_var(w->a, v), stride));
    return flat;
}

static reg push_load(lower *w, int buf, tn_dtype stored, affine at, kmask_list *masks, double other, val v) {
    kins in = { .op = K_LOAD,
                .dtype = (uint8_t)kernel_reg_dtype(stored),
                .src = (uint8_t)stored,
                .buf = (uint16_t)buf,
                .idx = at,
                .imm = other,
                .node = v };
    if (masks->n) {
        in.mask = arena_copy(w->a, masks->at, sizeof(kmask) * (size_t)masks->n);
        in.mask_lane = ARENA_ARRAY(w->a, int64_t, masks->n);
        in.n_mask = masks->n;
        in.imm_int = dtype_cast_to_int(TN_I64, other);
    }
    return kernel_push(w->k, in);
}

static reg lower_leaf(lower *w, val v, affine flat, kmask_list *masks, double other) {
    const node *n = graph_get(w->g, v);
    int buf = kernel_arg(w, w->s->buf_of[v], false);
    return push_load(w, buf, (tn_dtype)n->dtype, flat, masks, other, v);
}

/* ---- values ---- */

static kvar open_loop(lower *w, kvar v) {
    int64_t extent = w->k->vars.at[v].extent;
    kernel_push(w->k, (kins){ .op = K_LOOP, .var = v, .lo = 0, .hi = extent, .step = 1 });
    return v;
}
static void open_loops(lower *w, int from) {
    for (kvar v = from; v < w->k->vars.n; v++) open_loop(w, v);
}
static void close_loops(lower *w, int n, int n_memos) {
    for (int i = 0; i < n; i++) kernel_push(w->k, (kins){ .op = K_END });
    w->memos.n = n_memos;
}

static reg push_const(lower *w, tn_dtype t, double f, int64_t i) {
    kins in = { .op = K_CONST, .dtype = (uint8_t)kernel_reg_dtype(t) };
    if (dtype_is_float(t))
        in.imm = f;
    else
        in.imm_int = t == TN_BOOL ? -(i != 0) : i;
    return kernel_push(w->k, in);
}

static void reduce_identity(op_code op, tn_dtype t, double *f, int64_t *i) {
    int64_t hi = t == TN_I64  ? INT64_MAX
                 : t == TN_I8 ? INT8_MAX
                 : t == TN_U8 ? UINT8_MAX
                              : INT32_MAX,
            lo = t == TN_U8 ? 0 : -hi - 1;
    *f = 0, *i = 0;
    if (op == OP_prod) *f = 1, *i = 1;
    if (op == OP_reduce_max || op == OP_argmax) *f = -INFINITY, *i = lo; /* of the dtype: what no elements give */
    if (op == OP_reduce_min || op == OP_argmin) *f = INFINITY, *i = hi;
}
static op_code reduce_alu(op_code op) {
    return op == OP_sum ? OP_add : op == OP_prod ? OP_mul : op == OP_reduce_max ? OP_max : OP_min;
}

static reg wrap_narrow(lower *w, reg r, tn_dtype t) {
    if (t != TN_I8 && t != TN_U8) return r;
    return kernel_push(w->k, (kins){ .op = K_WRAP, .dtype = TN_I32, .src = (uint8_t)t, .a = r });
}

static reg lower_reduce(lower *w, val v, const affine *idx) {
    const node *n = graph_get(w->g, v), *x = graph_get(w->g, n->in[0]);
    bool arg = op_get((op_code)n->op)->cls == CL_ARG;
    uint64_t axes = arg ? 1ull << n->attr[0] : (uint64_t)n->attr[0];
    tn_dtype rt = kernel_reg_dtype((tn_dtype)x->dtype);
    kins acc = { .op = K_ACC, .dtype = (uint8_t)rt, .node = v };
    reduce_identity((op_code)n->op, (tn_dtype)x->dtype, &acc.imm, &acc.imm_int);
    acc.alu = (uint8_t)(arg ? n->op : reduce_alu((op_code)n->op));
    reg c = kernel_push(w->k, acc), ci = 0;
    if (arg) ci = kernel_push(w->k, (kins){ .op = K_ACC, .dtype = TN_I64, .alu = n->op, .imm_int = -1, .node = v });
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    int from = w->k->vars.n, memos = w->memos.n;
    for (int i = 0; i < x->rank; i++)
        in[i] = (axes >> i & 1) ? group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, x->dims[i], "r", false, true) : idx[i];
    int n_loops = w->k->vars.n - from;
    open_loops(w, from);
    kmask_list none = { 0 };
    reg e = lower_value(w, n->in[0], in, &none);
    if (arg)
        kernel_push(w->k, (kins){ .op = K_ARGUPD,
                                  .alu = n->op,
                                  .dtype = (uint8_t)rt,
                                  .a = e,
                                  .b = ci,
                                  .c = c,
                                  .idx = in[n->attr[0]],
                                  .node = v });
    else
        kernel_push(w->k, (kins){ .op = K_UPD, .alu = acc.alu, .dtype = (uint8_t)rt, .a = e, .c = c, .node = v });
    close_loops(w, n_loops, memos);
    return arg ? ci : wrap_narrow(w, c, (tn_dtype)n->dtype);
}

static reg lower_dot(lower *w, val v, const affine *idx) {
    const node *n = graph_get(w->g, v), *x = graph_get(w->g, n->in[0]);
    int nb = (int)n->attr[0], nc = (int)n->attr[1];
    const int64_t *ca = n->attr + 2 + 2 * nb;
    tn_dtype rt = kernel_reg_dtype((tn_dtype)n->dtype);
    reg c = kernel_push(w->k, (kins){ .op = K_ACC, .dtype = (uint8_t)rt, .alu = OP_add, .node = v });
    affine kv[TN_MAX_RANK], *ia = ARENA_ARRAY(w->a, affine, TN_MAX_RANK), *ib = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    int from = w->k->vars.n, memos = w->memos.n;
    for (int i = 0; i < nc; i++)
        kv[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, TN_MAX_RANK + i, x->dims[ca[i]], "k", false, true);
    int n_loops = w->k->vars.n - from;
    open_loops(w, from);
    dot_operand_index(w->g, v, idx, kv, ia, ib);
    kmask_list none = { 0 };
    reg ra = lower_value(w, n->in[0], ia, &none), rb = lower_value(w, n->in[1], ib, &none);
    kernel_push(w->k, (kins){ .op = K_UPD, .alu = OP_dot, .dtype = (uint8_t)rt, .a = ra, .b = rb, .c = c, .node = v });
    close_loops(w, n_loops, memos);
    return wrap_narrow(w, c, (tn_dtype)n->dtype);
}

static reg mask_register(lower *w, const kmask_list *masks) {
    reg all = 0;
    for (int i = 0; i < masks->n; i++) {
        const kmask *m = &masks->at[i];
        reg e = kernel_push(w->k, (kins){ .op = K_INDEX, .dtype = TN_I32, .idx = m->e });
        reg lo = push_const(w, TN_I32, 0, m->lo), hi = push_const(w, TN_I32, 0, m->hi);
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

static reg lower_read(lower *w, val v, const affine *idx, kmask_list *masks, double other);

static reg lower_pad(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    kmask_list own = { 0 }, all = { 0 };
    view_fail f;
    view_operand(w->k, w->g, v, idx, in, &own, &f);
    for (int i = 0; i < masks->n; i++) VEC_PUSH(w->a, &all, masks->at[i]);
    for (int i = 0; i < own.n; i++) VEC_PUSH(w->a, &all, own.at[i]);
    if (is_plain_read(w, n->in[0])) return lower_read(w, n->in[0], in, &all, n->imm);
    reg x = lower_value(w, n->in[0], in, &all);
    if (own.n == 0) return x;
    reg m = mask_register(w, &own), other = push_const(w, (tn_dtype)n->dtype, n->imm, dtype_cast_to_int(TN_I64, n->imm));
    tn_dtype rt = kernel_reg_dtype((tn_dtype)n->dtype);
    return kernel_push(
        w->k,
        (kins){
            .op = K_ALU, .alu = OP_select, .dtype = (uint8_t)rt, .src = (uint8_t)rt, .a = m, .b = x, .c = other, .node = v });
}

/* Through movement to memory. */
static reg lower_read(lower *w, val v, const affine *idx, kmask_list *masks, double other) {
    const affine *at = idx;
    while (sched_inside(w->s, w->gi, v)) {
        const node *n = graph_get(w->g, v);
        val u = n->in[0];
        if (n->op == OP_reshape && !inside(w, u)) return lower_leaf(w, u, view_flat(w->a, w->g, v, at), masks, other);
        affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
        kmask_list none = { 0 };
        view_fail f;
        if (!view_operand(w->k, w->g, v, at, in, &none, &f)) {
            w->blame = u;
            return push_const(w, (tn_dtype)n->dtype, 0, 0);
        }
        at = in, v = u;
    }
    item *it = find_item(w, v);
    if (it && it->kind == ITEM_ROOT) return lower_leaf(w, v, view_flat(w->a, w->g, v, at), masks, other);
    return lower_leaf(w, v, view_flat(w->a, w->g, v, at), masks, other);
}

static reg lower_gather(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v), *x = graph_get(w->g, n->in[0]), *index = graph_get(w->g, n->in[1]);
    int axis = (int)n->attr[0];
    affine *ii = ARENA_ARRAY(w->a, affine, TN_MAX_RANK), *ix = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    for (int i = 0; i < index->rank; i++) ii[i] = idx[axis + i];
    for (int i = 0; i < x->rank; i++) ix[i] = i < axis ? idx[i] : i == axis ? affine_const(0) : idx[i - 1 + index->rank];
    reg dyn = lower_value(w, n->in[1], ii, masks);
    int64_t stride = 1;
    for (int i = axis + 1; i < x->rank; i++) stride *= x->dims[i];
    reg r = lower_leaf(w, n->in[0], view_flat(w->a, w->g, n->in[0], ix), masks, 0);
    kins *load = &w->k->ins.at[r];
    load->dyn = dyn, load->dyn_stride = stride, load->dyn_n = x->dims[axis];
    return r;
}

/* Functions with an error of their own need no more of f32 than their results keep. */
static bool is_coarse(const node *n) {
    return (n->dtype == TN_F16 || n->dtype == TN_BF16) && op_get((op_code)n->op)->cls == CL_FLT &&
           op_get((op_code)n->op)->ulp > 0.5;
}

static reg lower_elementwise(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    reg r[3] = { 0 };
    for (int i = 0; i < n->n_in; i++) r[i] = lower_value(w, n->in[i], idx, masks);
    if (n->op == OP_stop_gradient) return r[0];
    int value = n->op == OP_select ? 1 : 0; /* operand whose dtype names the operation */
    tn_dtype src = (tn_dtype)graph_get(w->g, n->in[value])->dtype;
    kins in = { .op = K_ALU,
                .alu = n->op,
                .dtype = (uint8_t)kernel_reg_dtype((tn_dtype)n->dtype),
                .src = (uint8_t)kernel_reg_dtype(src),
                .par = is_coarse(n),
                .a = r[0],
                .b = r[1],
                .c = r[2],
                .node = v };
    return wrap_narrow(w, kernel_push(w->k, in), (tn_dtype)n->dtype);
}

static reg lower_cast(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    tn_dtype to = (tn_dtype)n->dtype, from = (tn_dtype)graph_get(w->g, n->in[0])->dtype;
    reg x = lower_value(w, n->in[0], idx, masks);
    reg r = kernel_push(w->k, (kins){ .op = K_CAST, .dtype = (uint8_t)to, .src = (uint8_t)from, .a = x, .node = v });
    if (to == TN_F16 || to == TN_BF16)
        r = kernel_push(w->k, (kins){ .op = K_WRAP, .dtype = TN_F32, .src = (uint8_t)to, .a = r });
    return r;
}

static reg lower_source(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    if (n->op == OP_const && n->splat) return push_const(w, (tn_dtype)n->dtype, n->imm, n->imm_int);
    if (n->op == OP_iota) {
        tn_dtype t = (tn_dtype)n->dtype;
        tn_dtype as = dtype_is_float(t) ? TN_I64 : kernel_reg_dtype(t);
        reg r = kernel_push(w->k, (kins){ .op = K_INDEX, .dtype = (uint8_t)as, .idx = idx[n->attr[0]], .node = v });
        if (as != t && dtype_is_float(t))
            r = kernel_push(w->k, (kins){ .op = K_CAST, .dtype = (uint8_t)t, .src = TN_I64, .a = r });
        return wrap_narrow(w, r, t);
    }
    return lower_leaf(w, v, view_flat(w->a, w->g, v, idx), masks, 0);
}

static reg lower_inside(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    switch (op_get((op_code)n->op)->cls) {
    case CL_REDUCE:
    case CL_ARG:
        return lower_reduce(w, v, idx);
    case CL_DOT:
        return lower_dot(w, v, idx);
    case CL_GATHER:
        return lower_gather(w, v, idx, masks);
    case CL_SOURCE:
        return lower_source(w, v, idx, masks);
    case CL_CAST:
        return lower_cast(w, v, idx, masks);
    case CL_RANDOM: {
        reg counter = lower_value(w, n->in[0], idx, &(kmask_list){ 0 });
        return kernel_push(w->k, (kins){ .op = K_RANDOM,
                                         .dtype = TN_F32,
                                         .a = counter,
                                         .imm_int = n->attr[0],
                                         .idx = view_flat(w->a, w->g, v, idx),
                                         .node = v });
    }
    case CL_MOVE:
        break;
    default:
        return lower_elementwise(w, v, idx, masks);
    }
    if (n->op == OP_pad) return lower_pad(w, v, idx, masks);
    val u = n->in[0];
    if (n->op == OP_reshape && !inside(w, u)) return lower_leaf(w, u, view_flat(w->a, w->g, v, idx), masks, 0);
    affine *in = ARENA_ARRAY(w->a, affine, TN_MAX_RANK);
    kmask_list none = { 0 };
    view_fail f;
    if (!view_operand(w->k, w->g, v, idx, in, &none, &f)) {
        w->blame = u;
        return push_const(w, (tn_dtype)n->dtype, 0, 0);
    }
    return lower_value(w, u, in, masks);
}

static bool memo_fits(const memo *m, val v, int rank, const affine *idx, const kmask_list *masks) {
    if (m->v != v || m->masks.n != masks->n) return false;
    for (int d = 0; d < rank; d++)
        if (!affine_equal(m->idx[d], idx[d])) return false;
    for (int i = 0; i < masks->n; i++) {
        const kmask *x = &m->masks.at[i], *y = &masks->at[i];
        if (!affine_equal(x->e, y->e) || x->lo != y->lo || x->hi != y->hi) return false;
    }
    return true;
}

static reg lower_value(lower *w, val v, const affine *idx, kmask_list *masks) {
    const node *n = graph_get(w->g, v);
    item *it = find_item(w, v);
    if (it && it->kind == ITEM_SCALAR && it->r) return it->r;
    for (int i = w->memos.n - 1; i >= 0; i--)
        if (memo_fits(&w->memos.at[i], v, n->rank, idx, masks)) return w->memos.at[i].r;
    reg r;
    if (it && it->kind == ITEM_LOCAL && it->stored)
        r = push_load(w, it->buf, (tn_dtype)w->k->bufs.at[it->buf].dtype, local_index(w, it, idx), masks, 0, v);
    else if (it && it->kind == ITEM_ROOT && it->stored)
        r = lower_leaf(w, v, view_flat(w->a, w->g, v, idx), masks, 0);
    else if (inside(w, v))
        r = lower_inside(w, v, idx, masks);
    else
        r = lower_leaf(w, v, view_flat(w->a, w->g, v, idx), masks, 0);
    VEC_PUSH(w->a, &w->memos, (memo){ v, arena_copy(w->a, idx, sizeof *idx * (size_t)(n->rank + 1)), *masks, r });
    return r;
}

/* ---- nests ---- */

/* Natural index of an item: rows, and fresh loops over its other axes. */
static void item_index(lower *w, val v, affine *idx) {
    const node *n = graph_get(w->g, v);
    const affine *at = first_index(w, v);
    for (int i = 0; i < n->rank; i++)
        idx[i] =
            axis_is_row(w, v, i) ? at[i] : group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, n->dims[i], "j", false, false);
}

static void store_root(lower *w, item *it, const affine *idx, reg r) {
    const node *n = graph_get(w->g, it->v);
    group *gr = w->gr;
    affine at[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) at[i] = idx[i];
    val target = it->v;
    if (gr->dest) {
        target = gr->dest;
        for (int i = 0; i < n->rank; i++) at[i] = affine_offset(at[i], w->s->part_at[it->v][i]);
    }
    int buf = kernel_arg(w, w->s->buf_of[target], true);
    kernel_push(w->k, (kins){ .op = K_STORE,
                              .dtype = n->dtype,
                              .buf = (uint16_t)buf,
                              .idx = view_flat(w->a, w->g, target, at),
                              .a = r,
                              .node = it->v });
}

static void lower_item(lower *w, item *it) {
    affine idx[TN_MAX_RANK];
    kmask_list none = { 0 };
    if (it->kind == ITEM_SCALAR) {
        const affine *at = first_index(w, it->v);
        reg r = lower_inside(w, it->v, at, &none);
        find_item(w, it->v)->r = r;
        return;
    }
    int from = w->k->vars.n, memos = w->memos.n;
    item_index(w, it->v, idx);
    int n_loops = w->k->vars.n - from;
    open_loops(w, from);
    reg r = lower_inside(w, it->v, idx, &none);
    if (it->kind == ITEM_LOCAL) {
        tn_dtype t = (tn_dtype)graph_get(w->g, it->v)->dtype;
        if (t == TN_F16 || t == TN_BF16) t = TN_F32; /* no need to round what stays in the kernel */
        it->buf = kernel_buf(
            w->k,
            (kbuf){ .dtype = (uint8_t)t, .kind = KB_LOCAL, .node = it->v, .elems = local_elems(w, it->v), .plan_buf = -1 });
        VEC_PUSH(w->a, &w->args, (parg){ -1 });
        kernel_push(w->k, (kins){ .op = K_STORE,
                                  .dtype = (uint8_t)t,
                                  .buf = (uint16_t)it->buf,
                                  .idx = local_index(w, it, idx),
                                  .a = r,
                                  .node = it->v });
    } else {
        store_root(w, it, idx, r);
    }
    it->stored = true;
    if (n_loops == 0) VEC_PUSH(w->a, &w->memos, (memo){ it->v, arena_copy(w->a, idx, sizeof idx), none, r });
    close_loops(w, n_loops, n_loops ? memos : w->memos.n);
}

/* The base is written first, then the adds follow in their order. What the batch axes hold stands apart: they are rows of the
 * whole kernel. */
static void lower_scatter(lower *w) {
    val v = w->gr->roots.at[0];
    const node *n = graph_get(w->g, v), *index = graph_get(w->g, n->in[1]), *upd = graph_get(w->g, n->in[2]);
    int axis = (int)n->attr[0], batch = (int)n->attr[1], n_index = index->rank - batch, rows = 0;
    kmask_list none = { 0 };
    affine idx[TN_MAX_RANK], iu[TN_MAX_RANK], ii[TN_MAX_RANK], ix[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) {
        if (i == batch) rows = w->k->vars.n;
        idx[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, n->dims[i], "i", i < batch, false);
    }
    int loops = w->k->vars.n;
    open_loops(w, 0);
    item root = { .v = v };
    store_root(w, &root, idx, lower_value(w, n->in[0], idx, &none));
    close_loops(w, loops - rows, 0);
    int from = w->k->vars.n;
    for (int i = axis; i < axis + n_index; i++) /* in index order: outermost, so that the sums are deterministic */
        iu[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, n->in[2], i, upd->dims[i], "s", false, true);
    for (int i = 0; i < upd->rank; i++)
        if (i < batch)
            iu[i] = idx[i];
        else if (i < axis || i >= axis + n_index)
            iu[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, n->in[2], i, upd->dims[i], "j", false, false);
    for (int i = 0; i < index->rank; i++) ii[i] = iu[i < batch ? i : axis + i - batch];
    for (int i = 0; i < n->rank; i++) ix[i] = i < axis ? iu[i] : i == axis ? affine_const(0) : iu[i - 1 + n_index];
    open_loops(w, from);
    reg dyn = lower_value(w, n->in[1], ii, &none), x = lower_value(w, n->in[2], iu, &none);
    int64_t stride = 1;
    for (int i = axis + 1; i < n->rank; i++) stride *= n->dims[i];
    int buf = kernel_arg(w, w->s->buf_of[v], true);
    kernel_push(w->k, (kins){ .op = K_SCATTER,
                              .dtype = n->dtype,
                              .buf = (uint16_t)buf,
                              .idx = view_flat(w->a, w->g, v, ix),
                              .a = x,
                              .dyn = dyn,
                              .dyn_stride = stride,
                              .dyn_n = n->dims[axis],
                              .node = v });
    close_loops(w, w->k->vars.n - from, 0);
    close_loops(w, rows, 0);
}

static void lower_rows(lower *w) {
    affine idx[TN_MAX_RANK];
    int n_rows = 0;
    for (int r = 0; r < w->gr->roots.n; r++) group_root_index(w->s, w->gr, r, w->k, &w->var_of, idx);
    for (kvar v = 0; v < w->an.n_root_vars; v++)
        if (w->an.alive[v]) {
            w->k->vars.at[v].row = true;
            open_loop(w, v);
            n_rows++;
        }
    for (int i = 0; i < w->items.n && !w->blame; i++) lower_item(w, &w->items.at[i]);
    close_loops(w, n_rows, 0);
}

/* Where to cut a kernel with too many loops: at a value of whole rows if there is one, since chains of row ops pass through
 * those alone. */
static val middle_of(const lower *w) {
    const item_kind kinds[] = { ITEM_LOCAL, ITEM_SCALAR };
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int i = 0; i < w->items.n; i++) {
            const item *it = &w->items.at[(w->items.n / 2 + i) % w->items.n];
            if (it->kind == kinds[k]) return it->v;
        }
    return 0;
}

kernel *lower_group(sched *s, int gi, parg **out_args, val *out_blame) {
    lower w = { .s = s, .gr = &s->groups.at[gi], .gi = gi, .g = s->g, .a = s->a };
    val root = w.gr->roots.at[w.gr->roots.n - 1];
    *out_blame = 0;
    if (!group_analyse(s, gi, s->a, &w.an)) {
        *out_blame = w.an.blame ? w.an.blame : root;
        return NULL;
    }
    w.k = kernel_make(s->a, arena_printf(s->a, "%s_%u", op_get((op_code)graph_get(s->g, root)->op)->name, root));
    if (graph_get(s->g, root)->op == OP_scatter_add) {
        lower_scatter(&w);
    } else {
        choose_items(&w);
        if (!w.blame) lower_rows(&w);
        if (!w.blame && w.k->vars.n > MAX_LOOPS) w.blame = middle_of(&w);
    }
    if (w.blame) {
        *out_blame = w.blame;
        return NULL;
    }
    *out_args = w.args.at;
    return w.k;
}
