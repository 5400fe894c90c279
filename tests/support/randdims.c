/* randdims.c - random graphs with symbolic dims: randdims of support.h.
 *
 * A random graph without control flow is built once more, with a dim wherever an input, an iota or a constant of one value has
 * a certain size; other constants and states of that size become inputs. Shapes follow by the rules of the ops; sizes that an
 * op has as an attribute (of a reshape, an expand, a slice) are made of those of its operand. Where the dim has its largest
 * value, the graph is the one that it was made of; smaller ones have slices that stay at the end of their axis, and wider
 * borders. Some graphs have results besides that are the longer the less a dim is. A graph in which two sizes were equal by
 * chance alone has no such form. */
#include "ir/region.h"
#include "support/support.h"

typedef struct lift {
    graph *g;
    const graph *from;
    arena *a;
    exts *t;
    int n;
    int64_t size[2]; /* of the dims */
    ext dim[2];
    val *map; /* [from->nodes.n] */
    rng r;
} lift;

static ext by_size(const lift *l, int64_t size) {
    for (int i = 0; i < l->n; i++)
        if (l->size[i] == size) return l->dim[i];
    return size;
}

/* Sizes of a reshape: groups of axes that hold as many elements; in each, a size is that of an axis of the operand, or what
 * the others leave over. */
static void reshaped(const lift *l, const node *old, const node *x, const node *x_new, ext *out) {
    int i = 0, j = 0;
    while (i < old->rank || j < x->rank) {
        int i0 = i, j0 = j, open = -1;
        int64_t pi = i < old->rank ? old->dims[i++] : 1, pj = j < x->rank ? x->dims[j++] : 1;
        while (pi != pj && (i < old->rank || j < x->rank))
            if ((pi < pj && i < old->rank) || j == x->rank)
                pi *= old->dims[i++];
            else
                pj *= x->dims[j++];
        ext total = 1, known = 1;
        uint32_t used = 0;
        for (int k = j0; k < j; k++) total = ext_mul(l->t, total, x_new->dims[k]);
        for (int k = i0; k < i; k++) {
            int same = j0;
            while (same < j && ((used >> same & 1) || x->dims[same] != old->dims[k])) same++;
            out[k] = same < j ? x_new->dims[same] : old->dims[k];
            if (same < j)
                used |= 1u << same;
            else if (open < 0 || old->dims[k] > old->dims[open])
                open = k;
        }
        for (int k = i0; k < i; k++)
            if (k != open) known = ext_mul(l->t, known, out[k]);
        ext rest;
        if (open >= 0 && known != 0 && ext_divides(l->t, total, known, &rest)) out[open] = rest;
    }
}

static ext sliced(const lift *l, const node *old, ext at, int i, int64_t x, ext x_new) {
    int64_t start = old->attr[i], step = old->attr[old->rank + i], last = start + (old->dims[i] - 1) * step + 1;
    if (ext_is_lit(x_new) || !ext_is_lit(at) || old->dims[i] == 0) return old->dims[i];
    return ext_ceil_div(l->t, ext_add(l->t, x_new, last - x - start), step);
}

/* Places of a slice that stays as far from the end of its axis, and of a border that is wider where the dim is smaller. */
static void move_places(lift *l, const node *old, const node *x, const node *x_new, int64_t *attr) {
    for (int i = 0; i < old->rank; i++) {
        ext less = ext_sub(l->t, x->dims[i], x_new->dims[i]); /* than the largest size */
        if (ext_is_lit(x_new->dims[i]) || ext_lo(l->t, less) < 0 || rng_below(&l->r, 3)) continue;
        if (old->op == OP_pad)
            attr[i] = ext_add(l->t, attr[i], less);
        else if (ext_lo(l->t, ext_sub(l->t, attr[i], less)) >= 0)
            attr[i] = ext_sub(l->t, attr[i], less);
    }
}

static void lifted_dims(const lift *l, val v, const ext *attr, ext *out) {
    const node *n = graph_get(l->from, v), *x = n->n_in ? graph_get(l->from, n->in[0]) : NULL;
    const node *x_new = x ? graph_get(l->g, l->map[n->in[0]]) : NULL;
    if (n->op == OP_reshape) {
        reshaped(l, n, x, x_new, out);
        return;
    }
    for (int i = 0; i < n->rank; i++)
        out[i] = n->op == OP_slice                       ? sliced(l, n, attr[i], i, x->dims[i], x_new->dims[i])
                 : n->op == OP_expand && x->dims[i] != 1 ? x_new->dims[i]
                                                         : by_size(l, n->dims[i]);
}

static bool has_size(const lift *l, const node *n) {
    for (int i = 0; i < n->rank; i++)
        if (!ext_is_lit(by_size(l, n->dims[i]))) return true;
    return false;
}

/* One more result: a part of x that is the longer the less the dim is. */
static void output_less(lift *l, val x) {
    const node *n = graph_get(l->g, x);
    ext start[TN_MAX_RANK] = { 0 }, size[TN_MAX_RANK], step[TN_MAX_RANK];
    int axis = n->rank ? (int)rng_below(&l->r, (uint32_t)n->rank) : 0;
    if (!n->rank || n->dtype == TN_BOOL || !ext_is_lit(n->dims[axis]) || n->dims[axis] < 2) return;
    for (int i = 0; i < n->rank; i++) size[i] = n->dims[i], step[i] = 1;
    ext dim = l->dim[rng_below(&l->r, (uint32_t)l->n)], first = ext_sub(l->t, dim, ext_lo(l->t, dim));
    start[axis] = ext_min(l->t, first, n->dims[axis] - 1), size[axis] = ext_sub(l->t, n->dims[axis], start[axis]);
    val part = graph_slice(l->g, x, start, size, step);
    graph_output(l->g, arena_printf(l->a, "less%u", x), graph_binary(l->g, OP_add, part, part));
}

static void build(lift *l) {
    for (val v = 1; v < (val)l->from->nodes.n; v++) {
        spec s = graph_spec(l->from, v);
        ext *dims = ARENA_ARRAY(l->a, ext, s.rank + 1);
        val *in = ARENA_ARRAY(l->a, val, s.n_in + 1);
        for (int i = 0; i < s.n_in; i++) in[i] = l->map[s.in[i]];
        int64_t *attr = arena_copy(l->a, s.attr, sizeof *attr * (size_t)s.n_attr);
        if (s.op == OP_slice || s.op == OP_pad)
            move_places(l, graph_get(l->from, v), graph_get(l->from, s.in[0]), graph_get(l->g, in[0]), attr);
        lifted_dims(l, v, attr, dims);
        bool known = (s.op == OP_const && !s.splat) || s.op == OP_state;
        if (known && has_size(l, graph_get(l->from, v))) s.op = OP_input, s.data = NULL, s.name = arena_printf(l->a, "c%u", v);
        s.dims = dims, s.in = in, s.attr = attr;
        l->map[v] = graph_add(l->g, &s);
        if (v > 1 && l->g->outputs.n < 2 && !rng_below(&l->r, 6)) output_less(l, l->map[v]);
    }
    for (int i = 0; i < l->from->outputs.n; i++) {
        const output *o = &l->from->outputs.at[i];
        val state = o->state && graph_get(l->g, l->map[o->state])->op == OP_state ? l->map[o->state] : 0;
        if (state && !graph_same_shape(l->g, state, l->map[o->v])) state = 0; /* of one size by chance */
        if (o->name || state) graph_sink(l->g, o->name, l->map[o->v], state);
    }
    if (l->g->outputs.n == 0) graph_output(l->g, "y", l->map[l->from->nodes.n - 1]);
    graph_compact(l->g);
}

/* With dims from `lo` on; NULL: it has no such form. */
static graph *lift_from(const graph *from, arena *a, uint64_t seed, const int64_t *size, int n, int64_t lo) {
    guard gd, *outer = a->gd;
    lift l = { .from = from, .a = a, .n = n, .g = graph_make(a, from->name), .r = rng_make(seed) };
    static const char *const names[] = { "n", "m" };
    l.t = graph_params(l.g);
    l.map = ARENA_ARRAY(a, val, from->nodes.n);
    for (int i = 0; i < n; i++) l.size[i] = size[i], l.dim[i] = ext_dim(l.t, names[i], lo < size[i] ? lo : 1, size[i], 1);
    a->gd = &gd;
    bool ok = GUARD_TRY(&gd);
    if (ok) build(&l);
    a->gd = outer;
    return ok && !l.t->problem ? l.g : NULL;
}

graph *randdims(arena *a, uint64_t seed) {
    rng r = rng_make(seed ^ 0x5eed);
    const graph *g = randgraph(a, seed, &(randgraph_opts){ .no_zero_size = true });
    VEC(int64_t) sizes = { 0 };
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *n = graph_get(g, v);
        if (n->region || node_regions(n)) return NULL;
        for (int i = 0; i < n->rank && n->op == OP_input; i++)
            if (n->dims[i] > 1) VEC_PUSH(a, &sizes, n->dims[i]);
    }
    for (int tries = 0; tries < 6 && sizes.n; tries++) {
        int64_t size[2];
        for (int i = 0; i < 2; i++) size[i] = sizes.at[rng_below(&r, sizes.n)];
        int n = size[0] != size[1] && tries < 2 ? 2 : 1;
        static const int64_t lo[] = { 0, 2, 4 };
        graph *made = lift_from(g, a, seed, size, n, lo[tries % 3]);
        if (made) return made;
    }
    return NULL;
}
