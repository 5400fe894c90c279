/* concat_slice.c - concat and slice undo each other; pads that are added side by side are a concat; what follows a concat
 * element by element is done with its parts. In: any graph. Out: fewer concats and slices over them, and no padding that is
 * only added. Exact, since elements are only picked and placed, but for the sign of a zero that was added to a pad's. */
#include "pass/rewrite.h"

/* slice(concat(x0, x1, ..)) that lies inside one operand -> slice of that operand. */
static val slice_of_concat(graph *g, const node *n) {
    node c = *graph_get(g, n->in[0]);
    if (c.op != OP_concat) return 0;
    int axis = (int)c.attr[0];
    const int64_t *start = n->attr, *step = n->attr + n->rank;
    if (n->dims[axis] == 0) return 0;
    int64_t first = start[axis], last = first + (n->dims[axis] - 1) * step[axis], at = 0;
    for (int i = 0; i < c.n_in; i++) {
        int64_t size = graph_get(g, c.in[i])->dims[axis];
        if (first >= at && last < at + size) {
            int64_t moved[TN_MAX_RANK];
            memcpy(moved, start, (size_t)n->rank * sizeof *moved);
            moved[axis] -= at;
            return graph_slice(g, c.in[i], moved, n->dims, step);
        }
        at += size;
    }
    return 0;
}

/* y continues x: slices of one value with equal starts, steps and counts but along axis, where y starts one step after x's
 * last. */
static bool continues(const graph *g, val x, val y, int axis) {
    const node *a = graph_get(g, x), *b = graph_get(g, y);
    if (a->op != OP_slice || b->op != OP_slice || a->in[0] != b->in[0]) return false;
    for (int i = 0; i < a->rank; i++) {
        if (i == axis) continue;
        if (a->attr[i] != b->attr[i] || a->attr[a->rank + i] != b->attr[a->rank + i]) return false;
    }
    int64_t step_a = a->attr[a->rank + axis], step_b = b->attr[a->rank + axis];
    return step_a == step_b && a->attr[axis] + a->dims[axis] * step_a == b->attr[axis];
}

enum { FEW = 36 /* parts: a tile of 4 of Winograd's */ };

/* Whether x is only taken apart and put together: it need not be in memory for its own sake. */
static bool is_passed_on(const graph *g, val x) {
    for (uint32_t r = graph_get(g, x)->first_use; r; r = g->uses.at[r - 1].next) {
        op_code op = (op_code)graph_get(g, g->uses.at[r - 1].user)->op;
        if (op != OP_concat && op != OP_slice) return false;
    }
    return !graph_is_output(g, x);
}

/* A concat among the operands of n whose own come up: not one of many that is needed again, for concats of concats would get as
 * many operands as elements, nor one that is in memory anyway, for it is copied by one kernel, and its parts by one each. */
static bool is_nested(const graph *g, const node *n, int i) {
    const node *x = graph_get(g, n->in[i]);
    return x->op == OP_concat && x->attr[0] == n->attr[0] &&
           (graph_used_once(g, n->in[i]) || (n->n_in * x->n_in <= FEW && is_passed_on(g, n->in[i])));
}

/* Operands of concats along the same axis come up, empty ones go, adjacent slices of one value join. Returns their number. */
static int collect_parts(graph *g, const node *n, int axis, val *out, bool *out_changed) {
    int n_out = 0;
    for (int i = 0; i < n->n_in; i++) {
        const node *x = graph_get(g, n->in[i]);
        bool nested = is_nested(g, n, i);
        const val *part = nested ? x->in : &n->in[i];
        int n_parts = nested ? x->n_in : 1;
        *out_changed |= nested;
        for (int k = 0; k < n_parts; k++) {
            if (graph_get(g, part[k])->dims[axis] == 0)
                *out_changed = true;
            else
                out[n_out++] = part[k];
        }
    }
    return n_out;
}

static int join_slices(graph *g, int axis, val *part, int n, bool *out_changed) {
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        if (n_out == 0 || !continues(g, part[n_out - 1], part[i], axis)) {
            part[n_out++] = part[i];
            continue;
        }
        node a = *graph_get(g, part[n_out - 1]);
        int64_t count[TN_MAX_RANK];
        memcpy(count, a.dims, a.rank * sizeof *count);
        count[axis] += graph_get(g, part[i])->dims[axis];
        val whole = graph_slice(g, a.in[0], a.attr, count, a.attr + a.rank);
        *out_changed = true;
        part[n_out - 1] = whole; /* x itself when the slices cover it */
    }
    return n_out;
}

static val concat_parts(graph *g, const node *n, arena *scratch) {
    int axis = (int)n->attr[0], room = 0;
    bool changed = n->n_in == 1;
    for (int i = 0; i < n->n_in; i++) room += is_nested(g, n, i) ? graph_get(g, n->in[i])->n_in : 1;
    val *part = ARENA_ARRAY(scratch, val, room + 1);
    int n_parts = collect_parts(g, n, axis, part, &changed);
    if (n_parts == 0) return zeros(g, n->dtype, n->rank, n->dims);
    n_parts = join_slices(g, axis, part, n_parts, &changed);
    if (!changed) return 0;
    return n_parts == 1 ? part[0] : graph_concat(g, part, n_parts, axis);
}

/* Whether n pads with zeros. */
static bool is_zero_pad(const node *n) { return n->op == OP_pad && n->imm == 0; }

/* pad(x) + pad(y), where x ends at what y begins with along one axis and they are alike along the others -> pad(concat(x, y)).
 */
static val sum_of_pads(graph *g, const node *n) {
    node p = *graph_get(g, n->in[0]), q = *graph_get(g, n->in[1]);
    if (!is_zero_pad(&p) || !is_zero_pad(&q) || !graph_used_once(g, n->in[0]) || !graph_used_once(g, n->in[1])) return 0;
    int axis = -1, rank = n->rank;
    for (int i = 0; i < rank; i++) {
        if (p.attr[i] == q.attr[i] && p.attr[rank + i] == q.attr[rank + i]) continue;
        if (axis >= 0) return 0;
        axis = i;
    }
    if (axis < 0) return 0;
    node first = p.attr[axis] < q.attr[axis] ? p : q, second = p.attr[axis] < q.attr[axis] ? q : p;
    int64_t before[TN_MAX_RANK], after[TN_MAX_RANK];
    memcpy(before, first.attr, (size_t)rank * sizeof *before);
    memcpy(after, second.attr + rank, (size_t)rank * sizeof *after);
    if (n->dims[axis] - first.attr[rank + axis] != second.attr[axis]) return 0;
    val both = graph_concat(g, (val[]){ first.in[0], second.in[0] }, 2, axis);
    return graph_pad(g, both, before, after, 0);
}

/* f(concat(x, y), splat, expand(z)) -> concat(f(x, ..), f(y, ..)) where z has one element along the axis, or the operand is a
 * concat of equal parts. Of few parts: a chain of ops over a concat of concats of concats would become as many as its elements.
 */
static val elementwise_of_concat(graph *g, const node *n, arena *scratch) {
    int of = -1, axis = 0;
    for (int i = 0; i < n->n_in && of < 0; i++)
        if (graph_get(g, n->in[i])->op == OP_concat) of = i;
    if (of < 0 || !graph_used_once(g, n->in[of])) return 0;
    const node c = *graph_get(g, n->in[of]);
    if (c.n_in > FEW) return 0;
    axis = (int)c.attr[0];
    for (int i = 0; i < n->n_in; i++) {
        const node *x = graph_get(g, n->in[i]);
        bool even = x->op == OP_expand && graph_get(g, x->in[0])->dims[axis] == 1;
        bool alike = x->op == OP_concat && x->attr[0] == axis && x->n_in == c.n_in && graph_used_once(g, n->in[i]);
        for (int k = 0; k < c.n_in && alike; k++)
            alike = graph_get(g, x->in[k])->dims[axis] == graph_get(g, c.in[k])->dims[axis];
        if (!(i == of || is_splat(g, n->in[i]) || even || alike)) return 0;
    }
    val *part = ARENA_ARRAY(scratch, val, c.n_in), in[3];
    for (int k = 0; k < c.n_in; k++) {
        node shape = *graph_get(g, c.in[k]);
        for (int i = 0; i < n->n_in; i++) {
            node x = *graph_get(g, n->in[i]);
            in[i] = x.op == OP_concat       ? x.in[k]
                    : is_splat(g, n->in[i]) ? splat_resize(g, n->in[i], shape.rank, shape.dims)
                                            : graph_expand(g, x.in[0], shape.dims);
        }
        part[k] = remake(g, n, in, shape.rank, shape.dims);
    }
    return graph_concat(g, part, c.n_in, axis);
}

static val rewrite(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    if (n.op == OP_slice) return slice_of_concat(g, &n);
    if (n.op == OP_concat) return concat_parts(g, &n, scratch);
    val sum = n.op == OP_add ? sum_of_pads(g, &n) : 0;
    return sum ? sum : op_is_elementwise(n.op) ? elementwise_of_concat(g, &n, scratch) : 0;
}

bool pass_concat_slice(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
