/* rewrite.c - the loop over the graph that most passes use, and small questions about nodes.
 * In: a compacted graph. Out: the same graph with appended nodes and redirected uses. The graph's arena owns new nodes. */
#include "pass/rewrite.h"

bool is_static(const graph *g, val v) {
    const node *n = graph_get(g, v);
    for (int i = 0; g->params && i < n->rank; i++) /* without params all are literals */
        if (n->dims[i] < 0) return false;
    for (int i = 0; g->params && i < n->n_attr; i++)
        if (!ext_is_lit(n->attr[i])) return false;
    return true;
}

bool is_splat(const graph *g, val v) {
    const node *n = graph_get(g, v);
    return n->op == OP_const && n->splat;
}

bool splat_is(const graph *g, val v, double c) {
    if (!is_splat(g, v)) return false;
    const node *n = graph_get(g, v);
    if (dtype_is_float(n->dtype)) return memcmp(&n->imm, &c, sizeof c) == 0;
    return n->imm_int == (int64_t)c;
}

bool splat_same(const graph *g, val x, val y) {
    const node *a = graph_get(g, x), *b = graph_get(g, y);
    if (!is_splat(g, x) || !is_splat(g, y) || a->dtype != b->dtype) return false;
    return dtype_is_float(a->dtype) ? memcmp(&a->imm, &b->imm, sizeof a->imm) == 0 : a->imm_int == b->imm_int;
}

val splat_resize(graph *g, val v, int rank, const int64_t *dims) {
    node n = *graph_get(g, v);
    return graph_add(
        g,
        &(spec){
            .op = OP_const, .dtype = n.dtype, .rank = rank, .dims = dims, .splat = true, .imm = n.imm, .imm_int = n.imm_int });
}

val permute_known(graph *g, val x, const int64_t *perm, arena *scratch) {
    const node n = *graph_get(g, x);
    int64_t dims[TN_MAX_RANK], stride[TN_MAX_RANK], at[TN_MAX_RANK] = { 0 }, elems = graph_elems(g, x), from = 0;
    bool in_order = true;
    for (int i = 0; i < n.rank; i++) in_order &= perm[i] == i;
    if (in_order || n.op != OP_const || !n.data) return in_order ? x : 0;
    size_t size = dtype_size((tn_dtype)n.dtype);
    char *data = arena_array(scratch, (size_t)elems + 1, size);
    for (int i = 0; i < n.rank; i++) {
        dims[i] = n.dims[perm[i]], stride[i] = 1;
        for (int j = (int)perm[i] + 1; j < n.rank; j++) stride[i] *= n.dims[j];
    }
    for (int64_t i = 0; i < elems; i++) {
        memcpy(data + (size_t)i * size, (const char *)n.data + (size_t)from * size, size);
        for (int d = n.rank - 1; d >= 0; d--) {
            from += stride[d];
            if (++at[d] < dims[d]) break;
            from -= dims[d] * stride[d], at[d] = 0;
        }
    }
    return graph_const(g, (tn_dtype)n.dtype, n.rank, dims, data);
}

val zeros(graph *g, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_const, .dtype = t, .rank = rank, .dims = dims, .splat = true });
}

bool same_dims(int rank_x, const int64_t *x, int rank_y, const int64_t *y) {
    return rank_x == rank_y && (rank_x == 0 || memcmp(x, y, (size_t)rank_x * sizeof *x) == 0);
}

bool same_attr(const node *x, const node *y) {
    return x->n_attr == y->n_attr && (x->n_attr == 0 || memcmp(x->attr, y->attr, x->n_attr * sizeof *x->attr) == 0) &&
           memcmp(&x->imm, &y->imm, sizeof x->imm) == 0 && x->imm_int == y->imm_int;
}

val remake(graph *g, const node *n, const val *in, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = n->op,
                                 .dtype = n->dtype,
                                 .in = in,
                                 .n_in = n->n_in,
                                 .rank = rank,
                                 .dims = dims,
                                 .attr = n->attr,
                                 .n_attr = n->n_attr,
                                 .imm = n->imm,
                                 .imm_int = n->imm_int,
                                 .region = n->region });
}

bool unit_reshape(const node *x, const node *y, int map[TN_MAX_RANK]) {
    int i = 0;
    for (int j = 0; j < y->rank; j++) {
        map[j] = -1;
        if (y->dims[j] == 1) continue;
        while (i < x->rank && x->dims[i] == 1) i++;
        if (i == x->rank || x->dims[i] != y->dims[j]) return false;
        map[j] = i++;
    }
    while (i < x->rank && x->dims[i] == 1) i++;
    return i == x->rank;
}

bool touches_dims(const graph *g, val v) {
    const node *n = graph_get(g, v);
    bool any = !is_static(g, v);
    for (int i = 0; i < n->n_in && !any; i++) any = !is_static(g, n->in[i]);
    return any;
}

/* Sources and control flow are never rewritten, nodes nobody reads not worth it. */
static bool is_candidate(const graph *g, val v, bool dims) {
    const node *n = graph_get(g, v);
    op_class cls = op_get(n->op)->cls;
    if (cls == CL_NIL || cls == CL_CTRL || n->op == OP_input || n->op == OP_state) return false;
    return graph_is_read(g, v) && (dims || !touches_dims(g, v));
}

/* v and what only v needed: their operands become the grave, a constant that compaction drops with them. The stack holds nodes
 * that nothing reads; each enters it once, when its last reader lets go of it. */
static void erase_dead(graph *g, arena *scratch, val v, val placeholder) {
    VEC(val) stack = { 0 };
    VEC_PUSH(scratch, &stack, v);
    while (stack.n > 0) {
        val dead = stack.at[--stack.n];
        for (int i = 0; i < graph_get(g, dead)->n_in; i++) {
            val x = graph_get(g, dead)->in[i];
            graph_set_in(g, dead, i, placeholder);
            const node *n = graph_get(g, x);
            if (x != placeholder && n->n_in > 0 && !graph_is_read(g, x)) VEC_PUSH(scratch, &stack, x);
        }
    }
}

static bool rewrite(graph *g, arena *scratch, rewrite_fn rule, bool dims) {
    val placeholder = 0;
    const char *here = g->here;
    /* Every rule makes some measure smaller, so the growth bound is never met; it keeps a defective rule from looping. */
    int64_t bound = 16 * (int64_t)g->nodes.n + 1024;
    for (int v = 1; v < g->nodes.n && v < bound; v++) {
        if (!is_candidate(g, (val)v, dims)) continue;
        int n_before = g->nodes.n;
        const char *name = graph_get(g, (val)v)->name;
        g->here = graph_get(g, (val)v)->where;
        g->current = graph_get(g, (val)v)->region;
        val r = rule(g, (val)v, scratch);
        g->current = 0;
        if (r == 0 || r == (val)v) continue;
        node *fresh = graph_get(g, r);
        if (r >= (val)n_before && name && !fresh->name) fresh->name = name;
        graph_replace(g, (val)v, r);
        if (placeholder == 0) placeholder = zeros(g, TN_BOOL, 0, NULL);
        erase_dead(g, scratch, (val)v, placeholder);
    }
    g->here = here;
    return placeholder != 0;
}

bool rewrite_each(graph *g, arena *scratch, rewrite_fn rule) { return rewrite(g, scratch, rule, false); }
bool rewrite_dims(graph *g, arena *scratch, rewrite_fn rule) { return rewrite(g, scratch, rule, true); }
