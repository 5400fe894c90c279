/* special.c - a program for the least sizes that a run of a program for GPUs can give, such as one sequence of one token: they
 * are literals there, so that layers become few launches.
 *
 * In: a program for a range of sizes, and the graph that it was made of. Out: its special program, which reads and writes the
 * program's states, inputs and outputs where they lie, none in panels. There is none where it would have them elsewhere, where
 * it needs as many launches, and where it has large constants, which are its own. */
#include "drive/drive.h"
#include "ir/kernel.h"

enum {
    WIDE_RANGE = 256,     /* times the least product of the dims: that of the largest, or one program is enough */
    CONST_BYTES = 1 << 20 /* of a special program, at most */
};

bool drive_takes_special(const graph *g, const tn_compile_opts *o, const device *dev, const target *t) {
    double lo = 1, hi = 1;
    if (!g->params || !g->params->n_dims || t->kind != TARGET_GPU || !dev->api->sizes || g->regions.n > 1) return false;
    if (o->mode < TN_MODE_COMPILED || o->fusion < 3 || o->schedule || o->memory_limit) return false;
    for (int d = 0; d < g->params->n_dims; d++) {
        lo *= (double)ext_lo(g->params, exts_dim(g->params, d));
        hi *= (double)ext_hi(g->params, exts_dim(g->params, d));
    }
    return lo > 0 && hi >= WIDE_RANGE * lo;
}

static bool lies_alike(const pbuf *x, const pbuf *y) {
    return !x->panels && !y->panels && x->slot == y->slot && x->offset == y->offset && x->bytes == y->bytes;
}

bool drive_wants_special(const tn_program *p, const tn_program *special) {
    const plan *x = p->plan, *y = special->plan;
    bool same = p->n_io == special->n_io && p->n_states == special->n_states && x->state_bytes == y->state_bytes &&
                x->shared_bytes == y->shared_bytes;
    for (int i = 0; i < p->n_io && same; i++)
        same = p->io[i].is_output == special->io[i].is_output && !strcmp(p->io[i].name, special->io[i].name);
    for (int i = 0; i < p->n_states && same; i++)
        same = !strcmp(p->states[i].name, special->states[i].name) &&
               lies_alike(&x->bufs.at[p->states[i].buf], &y->bufs.at[special->states[i].buf]);
    return same && y->const_bytes <= CONST_BYTES && y->kernels.n < x->kernels.n;
}

const graph *drive_least_graph(const graph *g, arena *a) {
    int64_t *dims = ARENA_ARRAY(a, int64_t, g->params->n_dims);
    for (int d = 0; d < g->params->n_dims; d++) dims[d] = ext_lo(g->params, exts_dim(g->params, d));
    return graph_at(g, dims, a);
}

void drive_count_special(tn_program *p) {
    tn_program_stats *s = &p->stats;
    const tn_program_stats *x = &p->special->stats;
    if (x->arena_bytes > s->arena_bytes) s->arena_bytes = x->arena_bytes;
    s->build_seconds += x->build_seconds, s->compile_seconds += x->compile_seconds;
    s->cache_hits += x->cache_hits, s->cache_misses += x->cache_misses;
}

bool drive_is_special(const tn_program *p, const int64_t *dims) {
    const exts *t = p->plan->params;
    for (int d = 0; p->special && d < t->n_dims; d++)
        if (dims[d] != ext_lo(t, exts_dim(t, d))) return false;
    return p->special;
}

size_t drive_temp_room(const tn_program *p) {
    int64_t own = plan_temp_room(p->plan), other = p->special ? plan_temp_room(p->special->plan) : 0;
    return (size_t)(own > other ? own : other);
}
