/* contract_bf16.c - contractions of f32 read and give numbers of 16 bits; what is between them stays f32. (contract_f16.c is
 * it, too.)
 *
 * In: any graph. Out: contractions of f32, and folds of their results, in bf16 or f16. What a contraction reads is rounded
 * once, where it is computed, for all its readers: before movement, concat and maxima, which give the same then. Constants are
 * stored rounded, tables of gathers, too. All else is computed in f32; inputs, states, parameters of bodies and outputs keep
 * their types. Contractions over one product, few that share nothing (depthwise convolutions), or of what is made of integers
 * and constants alone (quantised numbers, positions), stay as they are. Rounds to the shorter type. */
#include "pass/rewrite.h"

enum { FEW_TERMS = 64 }; /* less than a head of attention has */

typedef enum made_of {
    OTHERS,
    FIXED,
    INTEGERS
} made_of; /* FIXED: constants and states alone; INTEGERS: with integers among them */
typedef struct halving {
    graph *g;
    tn_dtype t;
    uint8_t *made; /* by value, as all of these: made_of */
    bool *asked;   /* a contraction reads it */
    val *half;     /* the same in t, or 0 */
    val end;       /* of the values before the pass; those behind are casts of the same in t to f32 */
} halving;

static bool is_source(const node *n) { return op_get(n->op)->cls == CL_SOURCE || op_get(n->op)->cls == CL_CTRL; }

/* Rounding before it is rounding behind it. */
static bool lets_pass(const halving *h, const node *n) {
    if (n->op == OP_pad) return dtype_round(h->t, n->imm) == n->imm;
    return op_is_move(n->op) || n->op == OP_concat || n->op == OP_gather || n->op == OP_reduce_max || n->op == OP_reduce_min;
}

static int n_values(const node *n) { return n->op == OP_gather || n->op == OP_again ? 1 : n->n_in; }

static made_of made_of_what(const halving *h, const node *n) {
    made_of m = FIXED;
    if (n->op == OP_const || n->op == OP_state) return FIXED;
    if (n->op == OP_iota || (n->op == OP_cast && dtype_is_int(graph_get(h->g, n->in[0])->dtype))) return INTEGERS;
    if (n->op != OP_cast && !op_is_elementwise(n->op) && !lets_pass(h, n)) return OTHERS;
    for (int i = 0; i < n_values(n); i++) {
        made_of x = h->made[n->in[i]];
        if (x == OTHERS) return OTHERS;
        if (x > m) m = x;
    }
    return m;
}

/* One product, or a few of a row with a row, as in depthwise convolutions: nothing is multiplied twice. */
static bool has_few_terms(const graph *g, const node *dot) {
    int64_t nb = dot->attr[0], nc = dot->attr[1], batch = 1, terms = 1;
    const node *x = graph_get(g, dot->in[0]);
    for (int i = 0; i < nb; i++) batch *= graph_dim_most(g, x->dims[dot->attr[2 + i]]);
    for (int i = 0; i < nc; i++) terms *= graph_dim_most(g, x->dims[dot->attr[2 + 2 * nb + i]]);
    return terms == 1 ||
           (terms < FEW_TERMS && (graph_elems(g, dot->in[0]) <= batch * terms || graph_elems(g, dot->in[1]) <= batch * terms));
}

static bool is_halved(const halving *h, const node *n) {
    const graph *g = h->g;
    if (n->dtype != TN_F32) return false;
    const node *x = n->n_in ? graph_get(g, n->in[0]) : n;
    if (n->op == OP_gather) return x->op == OP_const && x->rank > 1;
    if (n->op == OP_fold) {
        while (op_is_move(x->op)) x = graph_get(g, x->in[0]);
        return x->op == OP_dot && is_halved(h, x);
    }
    return n->op == OP_dot && h->made[n->in[0]] != INTEGERS && h->made[n->in[1]] != INTEGERS && !has_few_terms(g, n);
}

static val half_const(graph *g, const node *n, tn_dtype t) {
    if (n->splat) return graph_splat(g, t, n->rank, n->dims, n->imm);
    int64_t count = 1;
    for (int i = 0; i < n->rank; i++) count *= n->dims[i];
    void *data = arena_array(g->a, (size_t)count, dtype_size(t));
    for (int64_t i = 0; i < count; i++) dtype_store(t, data, i, dtype_load(TN_F32, n->data, i));
    return graph_add(g, &(spec){ .op = OP_const, .dtype = t, .rank = n->rank, .dims = n->dims, .data = data });
}

static val half_of(const halving *h, val v) { return v < h->end ? h->half[v] : graph_get(h->g, v)->in[0]; }

static void halve(halving *h, val v, bool computed) {
    graph *g = h->g;
    node n = *graph_get(g, v);
    if (n.op == OP_const) {
        h->half[v] = half_const(g, &n, h->t);
    } else if (computed) {
        val *in = ARENA_ARRAY(g->a, val, n.n_in);
        for (int i = 0; i < n.n_in; i++) in[i] = i < n_values(&n) ? half_of(h, n.in[i]) : n.in[i];
        h->half[v] = remake(g, &n, in, n.rank, n.dims);
        graph_get(g, h->half[v])->name = n.name;
    } else {
        h->half[v] = graph_cast(g, v, h->t);
    }
    if (is_source(&n)) return;
    graph_replace(g, v, graph_cast(g, h->half[v], TN_F32));
    if (!computed) graph_set_in(g, h->half[v], 0, v);
}

bool contract_in(graph *g, arena *scratch, tn_dtype t) {
    const char *here = g->here;
    val end = (val)g->nodes.n;
    halving h = {
        g, t, ARENA_ARRAY(scratch, uint8_t, end), ARENA_ARRAY(scratch, bool, end), ARENA_ARRAY(scratch, val, end), end
    };
    bool changed = false, *computed = ARENA_ARRAY(scratch, bool, end);
    for (val v = 1; v < end; v++) h.made[v] = (uint8_t)made_of_what(&h, graph_get(g, v));
    for (val v = end - 1; v > 0; v--) {
        const node *n = graph_get(g, v);
        computed[v] = is_halved(&h, n) || (h.asked[v] && lets_pass(&h, n));
        for (int i = 0; computed[v] && i < n_values(n); i++) h.asked[n->in[i]] = true;
    }
    for (val v = 1; v < end; v++) {
        if (!computed[v] && !h.asked[v]) continue;
        g->here = graph_get(g, v)->where, g->current = graph_get(g, v)->region;
        halve(&h, v, computed[v]);
        changed = true;
    }
    g->here = here, g->current = 0;
    return changed;
}

bool pass_contract_bf16(graph *g, arena *scratch) { return contract_in(g, scratch, TN_BF16); }
