/* cast_sink.c - fewer casts, on fewer and smaller elements.
 *
 * In: any graph. Out: pairs of casts merged where no value changes; a cast that widens moved below movement ops and gathers
 * (they then move the smaller type), a cast that narrows above them, any cast above expand. All rules are exact: movement does
 * not look at values. */
#include "pass/rewrite.h"

#include <math.h>

/* cast(cast(x: a to b): b to c) is cast(x: a to c) when the first loses nothing and both ways treat a's values alike: integers
 * wrap when narrowed, floats saturate, so an integer that passes through a float must fit the result. */
static bool merges(tn_dtype a, tn_dtype b, tn_dtype c) {
    if (!dtype_holds(b, a)) return false;
    if (dtype_is_float(a) || a == TN_BOOL || c == TN_BOOL) return true;
    return !dtype_is_float(b) || dtype_is_float(c) || dtype_holds(c, a);
}

/* Movement ops that keep each element as often as it is: casting before or after is the same work. */
static bool keeps_count(op_code op) { return op == OP_reshape || op == OP_permute || op == OP_flip; }

static val cast_rules(graph *g, const node *n) {
    node x = *graph_get(g, n->in[0]);
    if (x.dtype == n->dtype) return n->in[0];
    if (x.op == OP_cast) {
        tn_dtype a = graph_get(g, x.in[0])->dtype;
        return merges(a, x.dtype, n->dtype) ? graph_cast(g, x.in[0], n->dtype) : 0;
    }
    bool narrows = dtype_size(n->dtype) < dtype_size(x.dtype);
    bool same_size = dtype_size(n->dtype) == dtype_size(x.dtype);
    bool fewer = x.op == OP_expand && graph_elems(g, x.in[0]) < graph_elems(g, n->in[0]);
    /* At equal size the movement goes down, as it does behind elementwise ops. */
    if (!fewer && !(keeps_count(x.op) && (narrows || same_size))) return 0;
    val in = graph_cast(g, x.in[0], n->dtype);
    return remake(g, &x, &in, x.rank, x.dims);
}

/* Whether what a pad fills with is the same number in the dtype of v: zero is in every dtype. */
static bool is_held(graph *g, const node *pad, val v) {
    tn_dtype t = graph_get(g, v)->dtype;
    if (pad->imm == 0) return !signbit(pad->imm);
    return v && dtype_is_narrow_int(t) && dtype_is_int(pad->dtype) && rint(pad->imm) == pad->imm &&
           pad->imm >= (double)dtype_min_int(t) && pad->imm <= (double)dtype_max_int(t);
}

static val widen_later(graph *g, const node *n) {
    node x = *graph_get(g, n->in[0]);
    bool borders = n->op == OP_pad && is_held(g, n, x.op == OP_cast ? x.in[0] : 0);
    if (x.op != OP_cast || !(keeps_count(n->op) || n->op == OP_slice || n->op == OP_gather || borders)) return 0;
    if (dtype_size(graph_get(g, x.in[0])->dtype) >= dtype_size(x.dtype)) return 0;
    return graph_cast(g, remake(g, n, (val[]){ x.in[0], n->n_in > 1 ? n->in[1] : 0 }, n->rank, n->dims), n->dtype);
}

static val rewrite(graph *g, val v, arena *scratch) {
    (void)scratch;
    node n = *graph_get(g, v);
    if (n.op == OP_cast) return cast_rules(g, &n);
    return op_is_move(n.op) || n.op == OP_gather ? widen_later(g, &n) : 0;
}

bool pass_cast_sink(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
