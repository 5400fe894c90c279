/* lower.c - a group becomes a kernel in scalar form: loops over rows, and inside them one nest after another.
 *
 * In: a group that group_analyse accepted. A kernel's body is a list of items in order of value id: reductions to one value a
 * row stay in registers; values that several nests need, or that a contraction makes a whole row of, are kept in local memory;
 * roots are stored. Everything else is computed where it is used. Out: the kernel and which plan buffer each of its buffers is.
 */
#include "sched/lower.h"

/* ---- facts ---- */

static bool all_axes_row(const lower *w, val v) {
    const node *n = graph_get(w->g, v);
    for (int i = 0; i < n->rank; i++)
        if (n->dims[i] != 1 && !lower_axis_is_row(w, v, i)) return false;
    return true;
}

static bool is_anchor(const lower *w, val v) {
    op_class c = op_get((op_code)graph_get(w->g, v)->op)->cls;
    return c == CL_REDUCE || c == CL_ARG || c == CL_DOT;
}

static int n_inside_users(const lower *w, val v, val *one) {
    int n = 0;
    val last = 0;
    for (uint32_t u = graph_get(w->g, v)->first_use; u; u = w->g->uses.at[u - 1].next) {
        val user = w->g->uses.at[u - 1].user;
        if (!lower_has(w, user) || user == last) continue;
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
        if (!(op_is_elementwise((op_code)u->op) || op_get((op_code)u->op)->cls == CL_CAST) || !graph_same_shape(w->g, user, v))
            return v;
        for (int i = 0; i < u->n_in; i++) { /* its other operands must not wait for a later item */
            val x = u->in[i];
            if (x != v && sched_inside(w->s, w->gi, x) && graph_get(w->g, x)->op != OP_const &&
                !op_is_move((op_code)graph_get(w->g, x)->op))
                return v;
            if (x != v && op_is_move((op_code)graph_get(w->g, x)->op) && lower_has(w, graph_get(w->g, x)->in[0])) return v;
        }
        v = user;
    }
}

/* v can be kept: every reader wants the same row of it, and names the rest of its place without the rows' variables. */
static bool is_keepable(const lower *w, val v) {
    const affine *first = lower_first_index(w, v);
    if (!first) return false;
    for (int i = w->an.bucket[v % VISIT_BUCKETS]; i; i = w->an.visits.at[i - 1].next) {
        const visit *x = &w->an.visits.at[i - 1];
        for (int d = 0; x->v == v && d < graph_get(w->g, v)->rank; d++) {
            if (lower_axis_is_row(w, v, d) && !affine_equal(x->idx[d], first[d])) return false;
            for (int t = 0; t < x->idx[d].n && !lower_axis_is_row(w, v, d); t++)
                if (lower_var_is_row(w, x->idx[d].t[t].var)) return false;
        }
    }
    return true;
}

/* Counts in sched.count the items whose evaluation reaches v without passing another item; lists what was counted. */
static void count_reach(lower *w, val v, val_list *counted) {
    val_list todo = { 0 }; /* the next one last */
    VEC_PUSH(w->a, &todo, v);
    while (todo.n) {
        val x = todo.at[--todo.n];
        if (!lower_has(w, x) || !sched_mark(&w->s->values, x)) continue;
        if (w->s->count[x]++ == 0) VEC_PUSH(w->a, counted, x);
        const node *n = graph_get(w->g, x);
        for (int i = n->n_in - 1; i >= 0 && !lower_find_item(w, x); i--) VEC_PUSH(w->a, &todo, n->in[i]);
    }
}

static int subtree_flops(lower *w, val v, int limit) {
    if (!lower_has(w, v) || lower_find_item(w, v) || limit <= 0) return 0;
    const node *n = graph_get(w->g, v);
    int sum = op_is_elementwise((op_code)n->op) ? op_get((op_code)n->op)->flops
              : n->op == OP_random              ? 40
              : is_anchor(w, v)                 ? 100
                                                : 0;
    for (int i = 0; i < n->n_in && sum < 100; i++) sum += subtree_flops(w, n->in[i], limit - 1);
    return sum;
}

/* Steps in local memory are numbers: those of the largest sizes. */
static ext local_elems(const lower *w, val v) {
    const node *n = graph_get(w->g, v);
    ext e = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        if (lower_axis_is_row(w, v, i) || n->dims[i] == 1) continue;
        e = graph_dim_most(w->g, e);
        e = ext_mul(w->g->params, e, n->dims[i]);
    }
    return e;
}

static int64_t local_bytes(const lower *w, val v) {
    return graph_dim_most(w->g, local_elems(w, v)) * (int64_t)dtype_size(dtype_reg((tn_dtype)graph_get(w->g, v)->dtype));
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

/* The last value that several items would compute again and that is worth memory, or 0. */
static val repeated_value(lower *w) {
    val_list counted = { 0 };
    val best = 0;
    for (int i = 0; i < w->items.n; i++) {
        const node *n = graph_get(w->g, w->items.at[i].v);
        sched_unmark(&w->s->values);
        for (int j = 0; j < n->n_in; j++) count_reach(w, n->in[j], &counted);
    }
    for (int i = 0; i < counted.n; i++) {
        val v = counted.at[i];
        if (w->s->count[v] > 1 && v > best && !lower_find_item(w, v) && op_is_elementwise((op_code)graph_get(w->g, v)->op) &&
            is_worth_memory(w, v))
            best = v;
        w->s->count[v] = 0;
    }
    return best;
}

static void choose_items(lower *w) {
    for (int i = 0; i < w->gr->roots.n; i++) add_item(w, (item){ .v = w->gr->roots.at[i], .kind = ITEM_ROOT, .root = i });
    for (int i = 0; i < w->an.visits.n; i++) {
        val v = w->an.visits.at[i].v;
        if (!is_anchor(w, v) || lower_find_item(w, v)) continue;
        if (all_axes_row(w, v)) {
            val u =
                frontier(w, v); /* an epilogue right after the loop needs no item: value by value it is the root's own nest */
            item *it = lower_find_item(w, u);
            if (it && it->kind == ITEM_ROOT && all_axes_row(w, u)) continue;
            add_item(w, (item){ .v = v, .kind = ITEM_SCALAR });
        } else {
            val u = frontier(w, v);
            if (!lower_find_item(w, u)) add_item(w, (item){ .v = u, .kind = ITEM_LOCAL });
        }
    }
    for (val v; (v = repeated_value(w));) add_item(w, (item){ .v = v, .kind = all_axes_row(w, v) ? ITEM_SCALAR : ITEM_LOCAL });
    int64_t bytes = 0;
    for (int i = 0; i < w->items.n; i++)
        if (w->items.at[i].kind == ITEM_LOCAL) {
            bytes += local_bytes(w, w->items.at[i].v);
            if (bytes > w->s->opts.local_bytes && !w->materialise) w->materialise = w->items.at[i].v;
        }
}

/* ---- nests ---- */

/* Natural index of an item: rows, and fresh loops over its other axes. */
static void item_index(lower *w, val v, affine *idx) {
    const node *n = graph_get(w->g, v);
    const affine *at = lower_first_index(w, v);
    for (int i = 0; i < n->rank; i++)
        idx[i] = lower_axis_is_row(w, v, i)
                     ? at[i]
                     : group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, n->dims[i], "j", false, false);
}

static void store_root(lower *w, item *it, const affine *idx, reg r) {
    const node *n = graph_get(w->g, it->v);
    group *gr = w->gr;
    affine at[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) at[i] = idx[i];
    val to = it->v;
    if (gr->dest) {
        to = gr->dest;
        for (int i = 0; i < n->rank; i++) at[i] = view_moved(w->k, at[i], w->s->part_at[it->v][i]);
    }
    int buf = lower_arg(w, w->s->buf_of[to], true);
    kernel_push(w->k, (kins){ .op = K_STORE,
                              .dtype = n->dtype,
                              .buf = (uint16_t)buf,
                              .idx = view_flat(w->k, w->g, to, at),
                              .a = r,
                              .node = it->v });
}

static void lower_item(lower *w, item *it) {
    affine idx[TN_MAX_RANK];
    kmask_list none = { 0 };
    if (it->kind == ITEM_SCALAR) {
        const affine *at = lower_first_index(w, it->v);
        reg r = lower_inside(w, it->v, at);
        lower_find_item(w, it->v)->r = r;
        return;
    }
    int from = w->k->vars.n, memos = w->memos.n;
    item_index(w, it->v, idx);
    int n_loops = w->k->vars.n - from;
    lower_open_loops(w, from);
    reg r = lower_inside(w, it->v, idx);
    if (it->kind == ITEM_LOCAL) {
        tn_dtype t = (tn_dtype)graph_get(w->g, it->v)->dtype;
        if (dtype_is_narrow_float(t)) t = TN_F32; /* no need to round what stays in the kernel */
        it->buf = kernel_buf(
            w->k,
            (kbuf){ .dtype = (uint8_t)t, .kind = KB_LOCAL, .node = it->v, .elems = local_elems(w, it->v), .plan_buf = -1 });
        VEC_PUSH(w->a, &w->args, (parg){ -1 });
        kernel_push(w->k, (kins){ .op = K_STORE,
                                  .dtype = (uint8_t)t,
                                  .buf = (uint16_t)it->buf,
                                  .idx = lower_local_index(w, it, idx),
                                  .a = r,
                                  .node = it->v });
    } else {
        store_root(w, it, idx, r);
    }
    it->stored = true;
    if (n_loops == 0) VEC_PUSH(w->a, &w->memos, (memo){ it->v, arena_copy(w->a, idx, sizeof idx), none, r });
    lower_close_loops(w, n_loops, n_loops ? memos : w->memos.n);
}

/* The base is written first, then the adds follow in their order. What the batch axes hold stands apart: they are rows of the
 * whole kernel. */
static void lower_scatter(lower *w) {
    val v = w->gr->roots.at[0];
    const node *n = graph_get(w->g, v), *index = graph_get(w->g, n->in[1]), *upd = graph_get(w->g, n->in[2]);
    int axis = (int)n->attr[0], batch = (int)n->attr[1], n_index = index->rank - batch, rows = 0;
    affine idx[TN_MAX_RANK], iu[TN_MAX_RANK], ii[TN_MAX_RANK], ix[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) {
        if (i == batch) rows = w->k->vars.n;
        idx[i] = group_axis_vars(w->s, w->gr, w->k, &w->var_of, v, i, n->dims[i], "i", i < batch, false);
    }
    int loops = w->k->vars.n;
    lower_open_loops(w, 0);
    item root = { .v = v };
    store_root(w, &root, idx, lower_value(w, n->in[0], idx));
    lower_close_loops(w, loops - rows, 0);
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
    lower_open_loops(w, from);
    reg dyn = lower_value(w, n->in[1], ii), x = lower_value(w, n->in[2], iu);
    int buf = lower_arg(w, w->s->buf_of[v], true);
    kernel_push(w->k, (kins){ .op = K_SCATTER,
                              .mode = kernel_scatter_mode((op_code)n->op),
                              .dtype = n->dtype,
                              .buf = (uint16_t)buf,
                              .idx = view_flat(w->k, w->g, v, ix),
                              .a = x,
                              .dyn = dyn,
                              .dyn_stride = lower_stride(w, n, axis),
                              .dyn_n = n->dims[axis],
                              .node = v });
    lower_close_loops(w, w->k->vars.n - from, 0);
    lower_close_loops(w, rows, 0);
}

static void lower_rows(lower *w) {
    affine idx[TN_MAX_RANK];
    int n_rows = 0;
    for (int r = 0; r < w->gr->roots.n; r++) group_root_index(w->s, w->gr, r, w->k, &w->var_of, idx);
    for (kvar v = 0; v < w->an.n_root_vars; v++)
        if (w->an.alive[v]) {
            w->k->vars.at[v].row = true;
            lower_open_loop(w, v);
            n_rows++;
        }
    for (int i = 0; i < w->items.n && !w->materialise; i++) lower_item(w, &w->items.at[i]);
    lower_close_loops(w, n_rows, 0);
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

static affine keep_affine(affine x, arena *a) {
    x.t = arena_copy(a, x.t, sizeof *x.t * (size_t)x.n);
    return x;
}

/* The kernel without what making it took: its arena gets a copy of all that it refers to. */
static kernel *keep_kernel(const kernel *k, arena *a) {
    kernel *c = kernel_clone(k, a);
    c->name = arena_strdup(a, k->name);
    for (int i = 1; i < c->ins.n; i++) {
        kins *in = &c->ins.at[i];
        in->idx = keep_affine(in->idx, a);
        kmask *masks = arena_copy(a, in->mask, sizeof *masks * (size_t)in->n_mask);
        for (int m = 0; m < in->n_mask; m++) masks[m].e = keep_affine(masks[m].e, a);
        if (in->n_mask) in->mask = masks, in->mask_lane = arena_copy(a, in->mask_lane, sizeof(int64_t) * (size_t)in->n_mask);
    }
    return c;
}

static void lower_body(lower *w, val root) {
    w->k = kernel_make(w->a, arena_printf(w->a, "%s_%u", plan_op_name((op_code)graph_get(w->g, root)->op), root));
    w->k->params = w->g->params;
    if (op_get((op_code)graph_get(w->g, root)->op)->cls == CL_SCATTER) {
        lower_scatter(w);
    } else {
        choose_items(w);
        if (!w->materialise) lower_rows(w);
        if (!w->materialise && w->k->vars.n > MAX_LOOPS) w->materialise = middle_of(w);
    }
}

kernel *lower_group(sched *s, int gi, parg **out_args, val *out_materialise) {
    arena *keep = s->a;
    lower w = { .s = s, .gr = &s->groups.at[gi], .gi = gi, .g = s->g, .a = s->scratch };
    val root = w.gr->roots.at[w.gr->roots.n - 1];
    arena_reset(s->scratch);
    if (!group_analyse(s, gi, s->scratch, &w.an)) {
        *out_materialise = w.an.materialise ? w.an.materialise : root;
        return NULL;
    }
    s->a = s->scratch;
    lower_body(&w, root);
    s->a = keep;
    *out_materialise = w.materialise;
    if (w.materialise) return NULL;
    if (!kernel_has_params(w.k)) w.k->params = NULL;
    *out_args = arena_copy(keep, w.args.at, sizeof *w.args.at * (size_t)w.args.n);
    return keep_kernel(w.k, keep);
}
