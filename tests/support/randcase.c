/* randcase.c - the graphs that the bulk tests run: random ones, large contractions among them, every second one with gradients.
 */
#include "grad/grad.h"
#include "support/support.h"
#include "ir/region.h"

/* An input of a contraction, and what it is widened to: f32, or narrow numbers that may go by words. */
static val operand_of(graph *g, const char *name, tn_dtype t, tn_dtype wide, const int64_t *dims) {
    val v = graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = 3, .dims = dims });
    return t == wide ? v : graph_cast(g, v, wide);
}

/* A contraction large enough for panels in local memory and for threads, with operands as they come and something behind it. */
static graph *contraction_of(arena *a, uint64_t seed) {
    rng r = rng_make(seed);
    graph *g = graph_make(a, "contraction");
    int64_t m = rng_between(&r, 1, 120), k = rng_between(&r, 1, 40), n = rng_between(&r, 1, 300),
            b = rng_chance(&r, 0.3) ? rng_between(&r, 1, 3) : 1;
    int64_t swap[] = { 0, 2, 1 }, zero[] = { 0 }, ca[] = { 2 }, cb[] = { 1 };
    bool tx = rng_chance(&r, 0.3), ty = rng_chance(&r, 0.3);
    rng kinds = rng_make(seed + 1);
    bool narrow = rng_chance(&kinds, 0.5), bytes = rng_chance(&kinds, 0.6);
    tn_dtype wide = narrow && bytes ? TN_I32 : TN_F32, of_x = wide, of_y = wide;
    if (narrow) of_x = !bytes ? TN_BF16 : rng_chance(&kinds, 0.6) ? TN_U8 : TN_I8;
    if (narrow) of_y = !bytes ? TN_BF16 : rng_chance(&kinds, 0.6) ? TN_I8 : TN_U8;
    val x = operand_of(g, "x", of_x, wide, (int64_t[]){ b, tx ? k : m, tx ? m : k });
    val y = operand_of(g, "y", of_y, wide, (int64_t[]){ b, ty ? n : k, ty ? k : n });
    if (tx) x = graph_permute(g, x, swap);
    if (ty) y = graph_permute(g, y, swap);
    if (rng_chance(&r, 0.2) && wide == TN_F32) x = graph_unary(g, OP_tanh, x);
    val v = graph_dot(g, x, y, zero, zero, 1, ca, cb, 1);
    if (rng_chance(&r, 0.5)) v = graph_binary(g, OP_max, v, graph_splat_like(g, v, wide == TN_F32 ? 0.1 : 1));
    if (rng_chance(&r, 0.3))
        v = graph_binary(g, OP_sub, v, graph_broadcast(g, graph_reduce(g, OP_reduce_max, v, 4), 3, graph_get(g, v)->dims));
    if (rng_chance(&r, 0.3)) v = graph_permute(g, v, swap);
    if (rng_chance(&r, 0.2)) v = graph_reduce(g, OP_sum, v, 1ull << rng_below(&r, 3));
    graph_output(g, "out", v);
    graph_compact(g);
    return g;
}

/* The sum of the squares of all float outputs, differentiated by all float inputs: gradients become further outputs. Returns
 * false when there is nothing to differentiate. Jumps where grad_build does. */
static bool differentiate(graph *g, arena *a) {
    VEC(val) xs = { 0 };
    val loss = 0;
    for (int i = 0; i < g->inputs.n; i++)
        if (graph_get(g, g->inputs.at[i])->dtype == TN_F32 && graph_get(g, g->inputs.at[i])->op == OP_input)
            VEC_PUSH(a, &xs, g->inputs.at[i]);
    for (int i = 0; i < g->outputs.n; i++) {
        val y = g->outputs.at[i].v;
        const node *n = graph_get(g, y);
        if (!dtype_is_float((tn_dtype)n->dtype)) continue;
        val f = graph_cast(g, y, TN_F32);
        val s = graph_reduce(g, OP_sum, graph_binary(g, OP_mul, f, f), (1ull << graph_get(g, f)->rank) - 1);
        s = graph_reshape(g, s, 0, NULL);
        loss = loss ? graph_binary(g, OP_add, loss, s) : s;
    }
    if (!loss || xs.n == 0) return false;
    val *grads = ARENA_ARRAY(a, val, xs.n);
    grad_build(g, loss, xs.at, xs.n, grads);
    for (int i = 0; i < xs.n; i++) graph_output(g, arena_printf(a, "d_%s", graph_get(g, xs.at[i])->name), grads[i]);
    graph_compact(g);
    return true;
}

/* Whether d could be differentiated; where it could not, it is left in pieces. */
bool try_differentiate(graph *d, arena *a) {
    guard gd, *outer = a->gd;
    a->gd = &gd;
    bool ok = GUARD_TRY(&gd) && differentiate(d, a);
    a->gd = outer;
    return ok;
}

/* Of every second seed with gradients, where there are any. */
static graph *with_gradients(graph *g, arena *a, uint64_t seed, int *differentiated) {
    if (seed % 2 == 0) return g;
    graph *d = graph_clone(g, a, false, NULL);
    if (!try_differentiate(d, a)) return g;
    *differentiated += 1;
    return d;
}

graph *randcase(arena *a, uint64_t seed, int *differentiated) {
    if (seed % 16 == 0 || seed % 16 == 15) return randnet(a, seed, differentiated);
    graph *g = seed % 16 == 3 || seed % 16 == 6 ? contraction_of(a, seed) : randgraph(a, seed, NULL);
    return with_gradients(g, a, seed, differentiated);
}

/* ---- many in one ---- */

/* Appends g to c: names and regions of its own. */
static void append(graph *c, const graph *g, int number, arena *a) {
    val *order = ARENA_ARRAY(a, val, g->nodes.n), *map = ARENA_ARRAY(a, val, g->nodes.n);
    int *regions = ARENA_ARRAY(a, int, g->regions.n);
    for (int r = 1; r < g->regions.n; r++) regions[r] = graph_region(c, g->regions.at[r].name);
    int n = graph_order(g, a, false, order);
    for (int i = 0; i < n; i++) {
        spec s = graph_spec(g, order[i]);
        val *in = ARENA_ARRAY(a, val, s.n_in);
        int64_t *attr = ARENA_ARRAY(a, int64_t, s.n_attr);
        for (int k = 0; k < s.n_in; k++) in[k] = map[s.in[k]];
        for (int k = 0; k < s.n_attr; k++) attr[k] = s.attr[k];
        if (op_get(s.op)->cls == CL_CTRL)
            for (int k = 0; k < s.n_attr; k++) {
                const region *body = &g->regions.at[s.attr[k]];
                attr[k] = regions[s.attr[k]];
                for (int r = 0; r < body->n_results; r++) graph_region_result(c, (int)attr[k], map[body->results[r]]);
            }
        if (s.name) s.name = arena_printf(a, "%s of %d", s.name, number);
        s.in = in, s.attr = attr, s.region = regions[s.region];
        map[order[i]] = graph_add(c, &s);
    }
    for (int i = 0; i < g->outputs.n; i++) {
        const output *o = &g->outputs.at[i];
        graph_sink(c, o->name ? arena_printf(a, "%s of %d", o->name, number) : NULL, map[o->v], o->state ? map[o->state] : 0);
    }
}

graph *randcases(arena *a, uint64_t first, int n, int *differentiated) {
    graph *c = graph_make(a, "randcases");
    for (int i = 0; i < n; i++) {
        uint64_t seed = first + (uint64_t)i;
        append(c, with_gradients(randgraph(a, seed, &(randgraph_opts){ .max_steps = 7 }), a, seed, differentiated), i, a);
    }
    graph_compact(c);
    return c;
}
