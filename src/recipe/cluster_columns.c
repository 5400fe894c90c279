/* cluster_columns.c - rows with contractions inside by clusters of thread blocks: how many blocks a cluster has, and what a
 * thread has of a contraction. In: scalar form whose rows are its outermost loop, or which is one row; only where the target
 * has clusters. */
#include "loop/cluster_columns.h"

#include <math.h>

#include "loop/bind_rows.h"
#include "machine/parts.h"
#include "recipe/columns.h"

static bool fits(const cluster_shape *s, const row_contraction *c, const target *t) {
    if (!cluster_comes_out(s, c)) return false;
    int64_t block_threads = cluster_block_threads(s, c);
    int64_t bytes = 4 * cluster_rows_of(s) * (2 * c->n + s->split_k * cluster_columns_of(s, c)) +
                    16 * block_threads; /* one is read, one written */
    return block_threads >= 64 && block_threads <= t->block_threads && bytes <= t->shared_bytes;
}

static double up(double x, double y) { return ceil(x / y); }

static double layer_cost(const cluster_shape *s, const row_contraction *c, double all_rows, const target *t) {
    const machine *m = machine_row_of(t);
    double clusters = up(all_rows, cluster_rows_of(s)), at_once = floor((double)t->clusters * 8 / s->cluster),
           units = at_once * s->cluster;
    double waves = up(clusters, at_once), block_threads = (double)cluster_block_threads(s, c),
           steps = (double)(c->depth / s->split_k);
    double products = block_threads / m->warp * s->rows * steps, busy = fmin(clusters * s->cluster, units);
    double work = 1 / m->ghz * products * (0.25 * s->lanes + 0.3);
    double sent = (double)cluster_rows_of(s) * (double)cluster_columns_of(s, c) * s->cluster / (block_threads * s->lanes);
    double adds = m->add_ns * s->split_k * up(cluster_rows_of(s), s->split_k * s->blocks);
    double bytes = (double)(cluster_columns_of(s, c) * c->depth) * 4, rate = part_rate(m, busy, machine_units(t));
    return waves * fmax(work + adds + m->cluster_exchange_ns + m->send_ns * sent, bytes / rate);
}

typedef bool (*shape_fn)(const cluster_shape *s, void *ud);

/* All that a target could do. */
static void each_shape(const target *t, shape_fn fn, void *ud) {
    for (int cluster = 2; cluster <= t->cluster; cluster *= 2)
        for (int lanes = 1; lanes <= 4; lanes *= 2)
            for (int split_k = 1; split_k <= 32; split_k *= 2)
                for (int blocks = 1; blocks <= 4; blocks *= 2)
                    for (int rows = 1; rows <= CLUSTER_MOST_ROWS; rows++)
                        if (!fn(&(cluster_shape){ cluster, rows, blocks, split_k, lanes }, ud)) return;
}

typedef struct costing {
    const row_contraction *c;
    const target *t;
    double all_rows, *cost; /* of the next shape */
} costing;

static bool add_cost(const cluster_shape *s, void *ud) {
    costing *x = ud;
    *x->cost++ = fits(s, x->c, x->t) ? layer_cost(s, x->c, x->all_rows, x->t) : INFINITY;
    return true;
}

int recipe_cluster_costs(const row_contraction *c, double all_rows, const target *t, double *costs) {
    costing x = { c, t, all_rows, costs };
    each_shape(t, add_cost, &x);
    return (int)(x.cost - costs);
}

/* ---- choosing ---- */

typedef struct chooser {
    cluster_parts p;
    const target *t;
    cluster_shape s, best;
    double all_rows, cost, count_ns;
} chooser;

static int rows_of_group(const chooser *p) { return (cluster_rows_of(&p->s) + p->s.cluster - 1) / p->s.cluster; }

static int64_t shared_bytes(const chooser *p) {
    const row_contraction *c = &p->p.l.c.at[0];
    int64_t n = p->s.split_k * cluster_rows_of(&p->s) * cluster_columns_of(&p->s, c) * 4 +
                16 * cluster_block_threads(&p->s, c) + recipe_local_bytes(p->p.k);
    for (int b = 0; b < p->p.k->bufs.n; b++) {
        const kbuf *kb = &p->p.k->bufs.at[b];
        if (kb->kind == KB_LOCAL && p->p.common[b])
            n += kb->elems * (int64_t)dtype_size((tn_dtype)kb->dtype) * (cluster_rows_of(&p->s) - 1);
    }
    return n;
}

static bool try_shape(const cluster_shape *s, void *ud) {
    chooser *p = ud;
    p->s = *s;
    for (int i = 0; i < p->p.l.c.n; i++)
        if (!fits(s, &p->p.l.c.at[i], p->t)) return true;
    if (shared_bytes(p) > p->t->shared_bytes) return true;
    double at_once = floor((double)p->t->clusters * 8 / s->cluster), waves = up(up(p->all_rows, cluster_rows_of(s)), at_once);
    double cost = waves * rows_of_group(p) * p->count_ns *
                  recipe_rest_cost(p->p.k, 1, &p->p.l, (int)cluster_block_threads(s, &p->p.l.c.at[0]));
    for (int i = 0; i < p->p.l.sections.n; i++)
        for (int j = 0; j < p->p.l.sections.at[i].n; j++)
            cost += (double)p->p.l.sections.at[i].times *
                    layer_cost(s, &p->p.l.c.at[p->p.l.sections.at[i].first + j], p->all_rows, p->t);
    if (cost < p->cost) p->cost = cost, p->best = *s;
    return true;
}

bool recipe_cluster_columns(const kernel *k, const target *t, recipe_form *out) {
    double count_ns = machine_row_of(t)->count_ns;
    chooser p = { .t = t, .count_ns = count_ns, .cost = out->cost * count_ns };
    str why, steps;
    str_init(&why, k->a);
    str_init(&steps, k->a);
    if (t->cluster < 2 || t->clusters < 1 || !cluster_find(&p.p, k, &why)) return false;
    p.all_rows = (double)p.p.k->ins.at[1].hi;
    each_shape(t, try_shape, &p);
    const cluster_shape *s = &p.best;
    if (s->cluster == 0) return false;
    str_addf(&steps, "cluster_columns %d rows=%d blocks=%d split_k=%d lanes=%d", s->cluster, s->rows, s->blocks, s->split_k,
             s->lanes);
    *out = (recipe_form){ p.cost / count_ns, steps.s };
    return true;
}
