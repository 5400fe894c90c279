/* special.c - programs for small sizes of a program for GPUs: the least ones, such as one sequence of one token, and the least
 * few of one dim, such as any number of sequences of two tokens. These are literals there, so that layers become few launches.
 *
 * In: a program for a range of sizes, and the graph that it was made of. Out: its special programs, which read and write the
 * program's states, inputs and outputs where they lie, none in panels. There is none where it would have them elsewhere, where
 * it needs as many launches, and where it has large constants, which are its own. */
#include "drive/drive.h"
#include "ir/kernel.h"

enum {
    WIDE_RANGE = 256,      /* times the least product of the dims: that of the largest, or one program is enough */
    CONST_BYTES = 1 << 20, /* of a special program, at most */
    RESULT_BYTES = 1 << 18 /* of a step */
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

bool drive_wants_special(const tn_program *p, const tn_program *special, int most) {
    const plan *x = p->plan, *y = special->plan;
    bool same = p->n_io == special->n_io && p->n_states == special->n_states && x->state_bytes == y->state_bytes &&
                x->shared_bytes == y->shared_bytes;
    for (int i = 0; i < p->n_io && same; i++)
        same = p->io[i].is_output == special->io[i].is_output && !strcmp(p->io[i].name, special->io[i].name);
    for (int i = 0; i < p->n_states && same; i++)
        same = !strcmp(p->states[i].name, special->states[i].name) &&
               lies_alike(&x->bufs.at[p->states[i].buf], &y->bufs.at[special->states[i].buf]);
    return same && y->const_bytes <= CONST_BYTES && y->kernels.n <= most;
}

void drive_add_special(tn_program *p, tn_program *special) {
    p->special[p->n_special++] = special;
    if (special->stats.arena_bytes > p->stats.arena_bytes) p->stats.arena_bytes = special->stats.arena_bytes;
}

int drive_find_special(const tn_program *p, const int64_t *dims) {
    for (int i = 0; i < p->n_special; i++) {
        bool fits = true;
        for (int d = 0; d < p->plan->params->n_dims && fits; d++)
            fits = p->special[i]->only[d] < 0 || p->special[i]->only[d] == dims[d];
        if (fits) return i;
    }
    return -1;
}

/* With room for small results of steps at a time. */
static int64_t temp_room(const tn_program *p) {
    int64_t room = plan_temp_room(p->plan), results = 0;
    const pstep *loop = plan_loop(p->plan);
    for (int b = 0; b < p->plan->bufs.n && p->elems; b++)
        if (p->elems[b] && p->plan->bufs.at[b].kind == PB_OUTPUT) results += plan_room(p->plan->bufs.at[b].bytes);
    return p->elems && loop && loop->overlaps > 1 && results <= RESULT_BYTES ? room + loop->overlaps * results : room;
}

size_t drive_temp_room(const tn_program *p) {
    int64_t most = temp_room(p);
    for (int i = 0; i < p->n_special; i++)
        if (temp_room(p->special[i]) > most) most = temp_room(p->special[i]);
    return (size_t)most;
}
