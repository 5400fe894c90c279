/* vertical_fusion.c - consecutive kernels of a plan become one kernel for a GPU, where each row of a later one needs that row
 * alone of what the earlier ones made: a thread block takes its rows through all of them, and what lies between stays in its
 * shared memory.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels, still in
 * scalar form (row_join.h writes them). Without rows (everything in one thread block) any kernels may follow each other. Which
 * kernels is a matter of time, estimated from shapes and the target only: machine/parts.h adds up what a chain waits for. The
 * cost of the kernel that it would become is not asked: cost_gpu.c finds chains on an H200 up to four times faster than they
 * are (a pool and a linear layer 2.2 us for 8.8, a network of depth 64 6.3 for 12.1), single kernels within a tenth. */
#include "sched/vertical_fusion.h"

#include "sched/fusion.h"
#include "loop/cluster_columns.h"
#include "sched/row_join.h"

#include <math.h>

enum { FEW_ARGS = 60 /* buffers of a chain where the target does not say */, N_ROWS = 4 };
#define GAIN 0.85 /* a chain has to be that much faster: the model is rough */

typedef struct link { /* a kernel, with so many loops over rows shared */
    row_link row;
    double alone, among;   /* time, in nanoseconds: as a launch of its own, or among others; */
    double inside[N_ROWS]; /* as part of a chain, a thread block having 1 << i rows; */
    double clustered;      /* of one by clusters of thread blocks, besides its contraction: */
    row_contraction layer; /* that; n = 0: it has none */
} link;

static const link *link_make(const plan *p, const pkernel *pk, int shared, const target *t) {
    link l = { .row = row_link_make(p, pk, shared) };
    const kernel *k = pk->k;
    l.alone = vertical_alone(k, t), l.among = vertical_among(k, t);
    for (int i = 0; i < N_ROWS; i++) l.inside[i] = vertical_inside(k, shared, row_count(k, shared), 1 << i, t);
    l.clustered = vertical_clustered(k, shared, row_count(k, shared), t, &l.layer);
    return arena_copy(p->a, &l, sizeof l);
}

typedef struct chain {
    row_chain row;
    bool clustered; /* by clusters of thread blocks it is fastest */
} chain;
typedef struct chooser {
    plan *p;
    const target *t;
    double after_ns;    /* what a launch of its own costs */
    int64_t room;       /* shared memory of a thread block */
    int most_args;      /* of a kernel */
    const link **links; /* [kernels x (ROW_MOST_SHARED + 1)], made when they are needed */
    row_uses uses;
    double *shapes; /* [n_shapes] what the contractions of a chain take by clusters, together; */
    double *layer;  /* and the one of layer_n x layer_depth for layer_rows rows: most layers of a network are alike */
    int n_shapes;
    int64_t layer_n, layer_depth, layer_rows;
    VEC(pkernel) out;
} chooser;

static const link *link_of(chooser *w, int i, int shared) {
    const link **l = &w->links[i * (ROW_MOST_SHARED + 1) + shared];
    if (!*l) *l = link_make(w->p, &w->p->kernels.at[i], shared, w->t);
    return *l;
}

/* Only thread blocks that run together see what they write and read again: it is local. */
static bool is_private(const chooser *w, const row_chain *c) {
    for (int i = 0; i < c->all.n; i++)
        if (c->all.at[i].reads && c->all.at[i].writes && !row_is_private(c, &w->uses, &c->all.at[i])) return false;
    return true;
}

/* What all contractions of the chain, this one being the last, take in the shape that is best for them. */
static double add_layer(chooser *w, const row_contraction *c, int64_t rows) {
    if (c->n != w->layer_n || c->depth != w->layer_depth || rows != w->layer_rows) {
        w->n_shapes = recipe_cluster_costs(c, (double)rows, w->t, w->layer);
        w->layer_n = c->n, w->layer_depth = c->depth, w->layer_rows = rows;
    }
    double least = INFINITY;
    for (int i = 0; i < w->n_shapes; i++) {
        w->shapes[i] += w->layer[i];
        if (w->shapes[i] < least) least = w->shapes[i];
    }
    return least;
}

/* The longest chain from kernel `first` on that pays, with so many shared loops: its gain, in nanoseconds. */
static double grow(chooser *w, int first, int shared, chain *out, const char **out_end) {
    plan *p = w->p;
    const kernel *k0 = p->kernels.at[first].k;
    double alone = 0, among = 0, inside[N_ROWS] = { 0 }, clustered = 0, best = 0;
    double summed = INFINITY; /* of the contractions by clusters; nothing else is done faster by them */
    int best_n = 0;
    int64_t columns = 0;
    bool best_clustered = false;
    int64_t last_extent = shared ? row_extent(k0, shared - 1) : 1;
    row_chain c = row_chain_make(p, first, shared);
    *out_end = NULL;
    memset(w->shapes, 0, sizeof *w->shapes * RECIPE_CLUSTER_SHAPES);
    for (int i = first; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        if (!row_same(k0, k, shared)) break;
        const link *l = link_of(w, i, shared);
        if ((*out_end = row_objection(&c, &l->row, k, w->room, w->most_args))) break;
        row_append(&c, &l->row, k);
        alone += l->alone, among += l->among;
        clustered += columns && l->layer.n && l->layer.n != columns ? INFINITY : l->clustered;
        if (l->layer.n && isfinite(clustered)) {
            columns = l->layer.n;
            summed = add_layer(w, &l->layer, row_count(k, shared));
        }
        double least = INFINITY;
        for (int r = 0; r < N_ROWS; r++) {
            inside[r] += l->inside[r];
            if (inside[r] < least && (r == 0 || (shared && last_extent % (1 << r) == 0))) least = inside[r];
        }
        bool chained = alone * GAIN > least + w->after_ns; /* else steps that follow each other may overlap, launch by launch */
        bool by_clusters = clustered + summed < least && (chained || clustered + summed < among) && is_private(w, &c);
        if (by_clusters) least = clustered + summed;
        least += w->after_ns;
        if (c.n > 1 && alone * GAIN - least > best) best = alone * GAIN - least, best_n = c.n, best_clustered = by_clusters;
        if (least - alone * GAIN > best + 8 * w->after_ns) { /* it will not be made up for */
            *out_end = "a thread block takes longer for its rows of this than a launch of its own";
            break;
        }
    }
    *out = (chain){ row_chain_make(p, first, shared), best_clustered };
    for (int i = 0; i < best_n; i++) row_append(&out->row, c.links.at[i], p->kernels.at[first + i].k);
    if (best_n < c.n && !*out_end) *out_end = "a thread block takes longer for its rows of this than a launch of its own";
    return best;
}

static pkernel join(chooser *w, chain *c) {
    plan *p = w->p;
    row_chain *row = &c->row;
    row_form form = { .room = w->room - row->local, .states = true };
    uint8_t *is_layer = ARENA_ARRAY(p->a, uint8_t, row->n);
    for (int i = 0; i < row->n; i++) is_layer[i] = c->clustered && link_of(w, row->first + i, row->shared)->layer.n;
    form.kind = is_layer;
    pkernel pk = row_join(row, &w->uses, &form);
    row_commit(row, &w->uses, &pk, "a row of the next needs that row alone: one launch, rows stay in shared memory");
    int n = pk.k->bufs.n;
    vertical_reroll(p, pk.k, row->shared, c->clustered);
    parg *args = ARENA_ARRAY(p->a, parg, pk.k->bufs.n + 1);
    for (int b = 0; b < pk.k->bufs.n; b++) args[b].buf = b < n ? pk.args[b].buf : pk.k->bufs.at[b].plan_buf;
    pk.args = args;
    return pk;
}

void fuse_vertically(plan *p, const target *t) {
    chooser w = { .p = p,
                  .t = t,
                  .after_ns = machine_row_of(t)->after_ns,
                  .room = t->shared_bytes - 16 * t->block_threads,
                  .most_args = t->buffers ? t->buffers : FEW_ARGS };
    w.links = ARENA_ARRAY(p->a, const link *, p->kernels.n *(ROW_MOST_SHARED + 1) + 1);
    w.shapes = ARENA_ARRAY(p->a, double, RECIPE_CLUSTER_SHAPES);
    w.layer = ARENA_ARRAY(p->a, double, RECIPE_CLUSTER_SHAPES);
    w.uses = row_find_uses(p);
    for (int i = 0; i < p->kernels.n;) {
        chain best = { .row.n = 1 };
        double most = 0;
        const char *end = NULL;
        for (int shared = row_shared_loops(p->kernels.at[i].k); shared >= 0; shared--) {
            chain c;
            const char *reason;
            double gain = grow(&w, i, shared, &c, &reason);
            if (gain > most) most = gain, best = c, end = reason;
            if (!end && most == 0) end = reason;
        }
        int n = best.row.n;
        if (i + n < p->kernels.n && end) row_decide(p, p->kernels.at[i + n - 1].root, p->kernels.at[i + n].root, false, end);
        VEC_PUSH(p->a, &w.out, n > 1 ? join(&w, &best) : p->kernels.at[i]);
        i += n;
    }
    p->kernels.at = w.out.at, p->kernels.n = w.out.n, p->kernels.cap = w.out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
