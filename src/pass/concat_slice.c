/* concat_slice.c - concat and slice undo each other.
 * In: any graph. Out: fewer concats and slices over them. All rules are exact: elements are only picked and placed. */
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

/* Operands of concats along the same axis come up, empty ones go, adjacent slices of one value join. Returns their number. */
static int collect_parts(graph *g, const node *n, int axis, val *out, bool *out_changed) {
    int n_out = 0;
    for (int i = 0; i < n->n_in; i++) {
        const node *x = graph_get(g, n->in[i]);
        bool is_nested = x->op == OP_concat && x->attr[0] == axis;
        const val *part = is_nested ? x->in : &n->in[i];
        int n_parts = is_nested ? x->n_in : 1;
        *out_changed |= is_nested;
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
    for (int i = 0; i < n->n_in; i++) room += graph_get(g, n->in[i])->op == OP_concat ? graph_get(g, n->in[i])->n_in : 1;
    val *part = ARENA_ARRAY(scratch, val, room + 1);
    int n_parts = collect_parts(g, n, axis, part, &changed);
    if (n_parts == 0) return zeros(g, n->dtype, n->rank, n->dims);
    n_parts = join_slices(g, axis, part, n_parts, &changed);
    if (!changed) return 0;
    return n_parts == 1 ? part[0] : graph_concat(g, part, n_parts, axis);
}

static val rewrite(graph *g, val v, arena *scratch) {
    node n = *graph_get(g, v);
    if (n.op == OP_slice) return slice_of_concat(g, &n);
    if (n.op == OP_concat) return concat_parts(g, &n, scratch);
    return 0;
}

bool pass_concat_slice(graph *g, arena *scratch) { return rewrite_each(g, scratch, rewrite); }
