/* cse.c - common subexpressions: nodes that compute the same from the same operands become one.
 *
 * In: a compacted graph (ids in topological order, so operands are merged before their readers). Out: later twins' uses go to
 * the first of them, which makes the result independent of hash values. Exact: the same op on the same values; random included,
 * since its bits depend on counter, stream and index alone. Inputs, states, parameters and ops with regions keep their
 * identity. Operands of commutative ops are compared in order of id; max and min then may give either zero of max(0, -0). */
#include "pass/rewrite.h"
#include "ir/region.h"

enum { MAX_DATA = 1 << 16 }; /* bytes of constant data that are compared; larger arrays are the same only when shared */

static bool is_commutative(op_code op) {
    return op == OP_add || op == OP_mul || op == OP_max || op == OP_min || op == OP_and || op == OP_or || op == OP_xor ||
           op == OP_eq || op == OP_ne;
}

static size_t data_bytes(const graph *g, val v) {
    const node *n = graph_get(g, v);
    if (n->op != OP_const || !n->data || !is_static(g, v)) return 0;
    int64_t bytes;
    return size_mul(graph_elems(g, v), (int64_t)dtype_size(n->dtype), &bytes) && bytes <= MAX_DATA ? (size_t)bytes : 0;
}

static void ordered_operands(const node *n, val out[2]) {
    bool swap = is_commutative(n->op) && n->in[1] < n->in[0];
    out[0] = n->in[swap];
    out[1] = n->in[!swap];
}

static uint64_t node_hash(const graph *g, val v) {
    const node *n = graph_get(g, v);
    uint64_t head[6] = { n->op, n->dtype, n->rank, n->region, (uint64_t)n->imm_int, n->splat };
    memcpy(&head[5], &n->imm, n->op == OP_pad || n->splat ? sizeof n->imm : 0);
    uint64_t h = hash_bytes(head, sizeof head, 0);
    h = hash_bytes(n->dims, n->rank * sizeof *n->dims, h);
    h = hash_bytes(n->attr, n->n_attr * sizeof *n->attr, h);
    if (n->n_in == 2) {
        val in[2];
        ordered_operands(n, in);
        return hash_bytes(in, sizeof in, h);
    }
    h = hash_bytes(n->in, (size_t)n->n_in * sizeof *n->in, h);
    return data_bytes(g, v) ? hash_bytes(n->data, data_bytes(g, v), h) : h;
}

static bool node_same(const graph *g, val x, val y) {
    const node *a = graph_get(g, x), *b = graph_get(g, y);
    if (a->op != b->op || a->dtype != b->dtype || a->region != b->region || a->n_in != b->n_in || a->splat != b->splat)
        return false;
    if (!same_dims(a->rank, a->dims, b->rank, b->dims) || !same_attr(a, b)) return false;
    if (a->n_in == 2) {
        val in_a[2], in_b[2];
        ordered_operands(a, in_a);
        ordered_operands(b, in_b);
        return in_a[0] == in_b[0] && in_a[1] == in_b[1];
    }
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i] != b->in[i]) return false;
    if (a->data == b->data) return true;
    size_t n = data_bytes(g, x);
    return a->data && b->data && n > 0 && memcmp(a->data, b->data, n) == 0;
}

static bool keeps_identity(const node *n) {
    return n->op == OP_NIL || n->op == OP_input || n->op == OP_state || n->op == OP_param || node_regions(n) > 0;
}

bool pass_cse(graph *g, arena *scratch) {
    bool changed = false;
    uint64_t mask = 15;
    while (mask < 2 * (uint64_t)g->nodes.n) mask = 2 * mask + 1;
    val *slot = ARENA_ARRAY(scratch, val, mask + 1);
    for (int i = 1; i < g->nodes.n; i++) {
        val v = (val)i;
        if (keeps_identity(graph_get(g, v))) continue;
        uint64_t h = node_hash(g, v) & mask;
        while (slot[h] && !node_same(g, slot[h], v)) h = (h + 1) & mask;
        if (!slot[h]) {
            slot[h] = v;
        } else if (graph_is_read(g, v)) {
            graph_replace(g, v, slot[h]);
            changed = true;
        }
    }
    return changed;
}
