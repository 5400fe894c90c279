/* turned_operands.c - an operand of a contraction with sizes of a run lies in memory with its columns side by side: literal
 * sizes would be copied into panels as they are read (loop/pack.c), which takes none of a run. Vectors run along the columns
 * then, not along a short sum, whose lanes had to be added up for each result.
 *
 * In: a dot of floats whose right operand is summed along its last axis, that is short, and read for several rows, as the keys
 * of attention are. Out: the same of the operand permuted, in memory. Exact but for the order of sums, which is the target's.
 */
#include "pass/rewrite.h"

enum { SHORT = 128 /* terms, at most */, MANY = 8 /* rows, at least */, COLUMNS = 16 /* at least, of a vector */ };

static bool is_many(const graph *g, const node *x, uint64_t skipped) {
    int64_t most = 1;
    for (int i = 0; i < x->rank && most < MANY; i++)
        if (!mask_has(skipped, i)) most *= graph_dim_most(g, x->dims[i]);
    return most >= MANY;
}

typedef struct product { /* of operands a and b, the latter summed along its last axis */
    val a, b;
    int64_t axes[2][TN_MAX_RANK], contracted;
    int n, column; /* of batch axes; the last axis of b that is a result's */
} product;

/* Entries [from, from + count) along the first batch axis. */
static val part(graph *g, val x, int64_t axis, ext from, ext count) {
    int64_t start[TN_MAX_RANK] = { 0 }, n[TN_MAX_RANK], step[TN_MAX_RANK];
    const node *of = graph_get(g, x);
    for (int i = 0; i < of->rank; i++) n[i] = of->dims[i], step[i] = 1;
    start[axis] = from, n[axis] = count;
    return graph_slice(g, x, start, n, step);
}

static val plain(graph *g, const product *x, val a, val b) {
    return graph_dot(g, a, b, x->axes[0], x->axes[1], x->n, &x->contracted, &(int64_t){ graph_get(g, b)->rank - 1 }, 1);
}

static val turned(graph *g, const product *x, val a, val b) {
    int64_t perm[TN_MAX_RANK], axes[TN_MAX_RANK];
    int rank = graph_get(g, b)->rank, n = 0;
    for (int i = 0; i < rank - 1; i++)
        if (i != x->column) perm[n++] = i;
    perm[n++] = rank - 1, perm[n++] = x->column;
    for (int i = 0; i < x->n; i++) axes[i] = x->axes[1][i] - (x->axes[1][i] > x->column);
    b = graph_unary(g, OP_stop_gradient, graph_permute(g, b, perm)); /* which a kernel computes */
    return graph_dot(g, a, b, x->axes[0], axes, x->n, &x->contracted, &(int64_t){ rank - 2 }, 1);
}

static val rewrite(graph *g, val v, arena *scratch) {
    const node d = *graph_get(g, v);
    (void)scratch;
    if (d.op != OP_dot || d.attr[0] < 1 || d.attr[1] != 1 || !touches_dims(g, v)) return 0;
    if (d.dtype != TN_F32 && d.dtype != TN_F64) return 0;
    product x = { .a = d.in[0], .b = d.in[1], .n = (int)d.attr[0], .column = -1, .contracted = d.attr[2 + 2 * d.attr[0]] };
    const node a = *graph_get(g, x.a), b = *graph_get(g, x.b);
    uint64_t own = UINT64_C(1) << (b.rank - 1), others = UINT64_C(1) << x.contracted;
    for (int i = 0; i < x.n; i++) {
        x.axes[0][i] = d.attr[2 + i], x.axes[1][i] = d.attr[2 + x.n + i];
        others |= UINT64_C(1) << x.axes[0][i], own |= UINT64_C(1) << x.axes[1][i];
    }
    for (int i = 0; i < b.rank; i++)
        if (!mask_has(own, i)) x.column = i;
    if (x.column < 0 || d.attr[3 + 2 * x.n] != b.rank - 1 || op_get((op_code)b.op)->cls == CL_SOURCE) return 0;
    if (graph_dim_most(g, b.dims[b.rank - 1]) > SHORT || graph_dim_most(g, b.dims[x.column]) < COLUMNS) return 0;
    if (!is_many(g, &a, others) || (a.op == OP_slice && b.op == OP_slice)) return 0; /* such as the part that this leaves */
    ext columns = b.dims[x.column], all = a.dims[x.axes[0][0]];
    exts *t = g->params;
    if (ext_lo(t, columns) >= COLUMNS) return turned(g, &x, x.a, x.b);
    ext any = ext_min(t, ext_floor_div(t, columns, COLUMNS), 1), n = ext_mul(t, all, any), rest = ext_sub(t, all, n);
    if (!ext_is_size(t, rest)) return 0;
    val parts[2] = { plain(g, &x, part(g, x.a, x.axes[0][0], 0, rest), part(g, x.b, x.axes[1][0], 0, rest)),
                     turned(g, &x, part(g, x.a, x.axes[0][0], rest, n), part(g, x.b, x.axes[1][0], rest, n)) };
    return graph_concat(g, parts, 2, 0);
}

bool pass_turned_operands(graph *g, arena *scratch) { return rewrite_dims(g, scratch, rewrite); }
