/* vertical_fusion.c - consecutive kernels of a plan become one kernel for a GPU, where each row of a later one needs that row
 * alone of what the earlier ones made: a thread block takes its rows through all of them, and what lies between stays in its
 * shared memory.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels, still in
 * scalar form (row_join.h writes them). Rows may be tiles: outermost loops are cut into as many (row_cut.c). Without rows
 * (everything in one thread block) any kernels may follow each other. Which kernels is a matter of time, estimated from shapes
 * and the target only: machine/parts.h adds up what a chain waits for. The cost of the kernel that it would become is not
 * asked: cost_gpu.c finds chains on an H200 up to four times faster than they are (a pool and a linear layer 2.2 us for 8.8, a
 * network of depth 64 6.3 for 12.1), single kernels within a tenth. */
#include "sched/vertical_fusion.h"

#include "sched/fusion.h"
#include "loop/cluster_columns.h"
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"
#include "sched/row_join.h"

#include <math.h>

enum {
    FEW_ARGS = 60, /* buffers of a chain where the target does not say */
    N_ROWS = 4,
    MOST_KEPT = 8,    /* kernels of a chain whose rows stay in registers: more would not have room there */
    MOST_BETWEEN = 8, /* kernels that one moves past */
    LEAST_TILE = 128, /* bytes */
    NUMBERS = 32      /* bytes */
};
#define GAIN 0.85      /* a chain has to be that much faster: the model is rough */
#define KEPT_GAIN 0.97 /* .. where threads keep their rows, which then takes no more of anything */

typedef struct link { /* a kernel that shares some loops over rows */
    row_link row;
    double alone, among;   /* time, in nanoseconds: as a launch of its own, or among others; */
    double inside[N_ROWS]; /* as the last of a chain, a thread block having 1 << i rows; */
    double before[N_ROWS]; /* where another one follows, that reads its results; */
    double clustered;      /* of one by clusters of thread blocks, besides its contraction: */
    row_contraction layer; /* that; n = 0: it has none */
    int64_t kept; /* elements of a row that each thread can keep its share of: of all nests; 0: its rows are not such */
} link;

/* Elements of a row, where all nests are single loops over as many, none a contraction: a thread has the same ones in each. */
static int64_t kept_elems(const kernel *k, int shared) {
    int64_t n = 0;
    for (int i = 1 + shared, end = 0; i < k->ins.n - shared; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_SCATTER || in->op == K_ARGUPD || (in->op == K_UPD && in->alu == OP_dot)) return 0;
        if (in->op != K_LOOP) continue;
        if (i < end || in->lo != 0 || !ext_is_lit(in->hi) || (n && in->hi != n)) return 0;
        end = kernel_loop_end(k, i), n = in->hi;
    }
    return n;
}

/* The kernel with what it and another one have in common, one of which makes it, as local buffers: in a chain that lies in
 * shared memory. */
static const kernel *link_beside(const plan *p, const pkernel *pk, const pkernel *other, const kernel *k) {
    kernel *o = arena_copy(p->a, k, sizeof *k);
    o->bufs.at = arena_copy(p->a, k->bufs.at, sizeof *k->bufs.at * (size_t)k->bufs.n);
    for (int i = 0; i < k->bufs.n; i++)
        for (int j = 0; j < other->k->bufs.n; j++)
            if (pk->args[i].buf >= 0 && pk->args[i].buf == other->args[j].buf &&
                (k->bufs.at[i].kind != KB_IN || other->k->bufs.at[j].kind != KB_IN))
                o->bufs.at[i].kind = KB_LOCAL;
    return o;
}

/* Times are those of the largest sizes. */
static const link *link_make(const plan *p, int i, int shared, const target *t) {
    const pkernel *pk = &p->kernels.at[i];
    link l = { .row = row_link_make(p, pk, shared, false) };
    const kernel *k = kernel_at_most(pk->k, p->a), *behind = i ? link_beside(p, pk, pk - 1, k) : k,
                 *between = i + 1 < p->kernels.n ? link_beside(p, pk, pk + 1, behind) : behind;
    l.alone = vertical_alone(k, t), l.among = vertical_among(k, t);
    for (int r = 0; r < N_ROWS; r++) {
        l.inside[r] = vertical_inside(k, behind, shared, row_count(k, shared), 1 << r, t);
        l.before[r] = smaller(l.inside[r], vertical_inside(k, between, shared, row_count(k, shared), 1 << r, t));
    }
    l.clustered = vertical_clustered(k, shared, row_count(k, shared), t, &l.layer);
    l.kept = shared ? kept_elems(k, shared) : 0;
    return arena_copy(p->a, &l, sizeof l);
}

typedef struct chain {
    row_chain row;
    bool clustered; /* by clusters of thread blocks it is fastest */
    bool kept;      /* with rows in the registers of threads it is fastest */
    double shorter; /* the gain of all but the last */
    kernel **cut;   /* [row.n] that take the place of the plan's, whose loops are others; NULL: these are the plan's */
} chain;
typedef struct chooser {
    plan *p;
    const target *t;
    double after_ns;    /* what a launch of its own costs */
    int64_t room;       /* shared memory of a thread block */
    int most_args;      /* of a kernel */
    const link **links; /* [kernels x (ROW_MOST_SHARED + 1)], made when they are needed */
    row_uses uses;
    bool *running;  /* [kernels] running sums of rows, for which a thread block has a form of its own */
    double *shapes; /* [n_shapes] what the contractions of a chain take by clusters, together; */
    double *layer;  /* and the one of layer_n x layer_depth for layer_rows rows: most layers of a network are alike */
    int n_shapes;
    int64_t layer_n, layer_depth, layer_rows;
    VEC(pkernel) out;
} chooser;

static bool is_running(const kernel *k, arena *a, const target *t) {
    recipe r = recipe_make(kernel_clone(k, a), t);
    recipe_fuse_loops(&r);
    return gpu_has_running_rows(r.k, &(int64_t){ 0 });
}

static const link *link_of(chooser *w, int i, int shared) {
    const link **l = &w->links[i * (ROW_MOST_SHARED + 1) + shared];
    if (!*l) *l = link_make(w->p, i, shared, w->t);
    return *l;
}

/* Only thread blocks that run together see what they write and read again: it is local. */
static bool is_private(const chooser *w, const row_chain *c) {
    for (int i = 0; i < c->all.n; i++)
        if (c->all.at[i].reads && c->all.at[i].writes && !row_is_private(c, &w->uses, &c->all.at[i])) return false;
    return true;
}

/* Whether the two may change places: neither writes what the other reads or writes. */
static bool are_independent(const pkernel *x, const pkernel *y) {
    for (int i = 0; i < x->k->bufs.n; i++)
        for (int j = 0; j < y->k->bufs.n; j++)
            if (x->args[i].buf >= 0 && x->args[i].buf == y->args[j].buf &&
                (x->k->bufs.at[i].kind != KB_IN || y->k->bufs.at[j].kind != KB_IN))
                return false;
    return true;
}

/* Elementwise work that needs nothing of the chain's, such as updates of other parameters: such launches become one in which
 * each has thread blocks of its own (horizontal_fusion.c), and none waits for another. (An H200, Adam's updates of a
 * transformer of 4 layers in rows of the weights, a number of each vector behind each row: 17 us.) Where a thread block does
 * all, it may read the same numbers, such as rates, and nothing reads what it makes. */
static bool stands_alone(const chooser *w, const row_chain *c, int i, const link *l) {
    const pkernel *pk = &w->p->kernels.at[i];
    const kernel *k = pk->k;
    if (!c->n || row_read_again(c, &l->row, row_count(k, c->shared)) > (c->shared ? 0 : NUMBERS)) return false;
    for (int j = 1; j < k->ins.n; j++)
        if (k->ins.at[j].op == K_ACC || k->ins.at[j].op == K_UPD || k->ins.at[j].op == K_SCATTER) return false;
    for (int b = 0; b < k->bufs.n && !c->shared; b++)
        if (pk->args[b].buf >= 0 && k->bufs.at[b].kind != KB_IN && w->uses.last[pk->args[b].buf] > i) return false;
    for (int j = c->first; j < i; j++)
        if (!are_independent(&w->p->kernels.at[j], pk)) return false;
    return true;
}

/* Kernel i reads what a launch before the chain makes, and the chain so far does not, whose results others wait for, too: these
 * would wait for that. (The number of an optimiser's step, of which rates are powers, and the update of the first parameter.
 * An H200, a training step of a transformer: 3 us.) */
static bool keeps_others(const chooser *w, const row_chain *c, int i) {
    bool waits = false, others = false;
    if (!w->t->overlaps || !c->n || c->shared) return false;
    for (int j = c->first; j <= i; j++) {
        const pkernel *pk = &w->p->kernels.at[j];
        for (int b = 0; b < pk->k->bufs.n; b++) {
            int32_t buf = pk->args[b].buf;
            bool made = buf >= 0 && w->p->bufs.at[buf].kind == PB_TEMP && w->uses.first[buf] < c->first;
            if (made && j < i) return false;
            waits |= made;
            others |= j < i && buf >= 0 && pk->k->bufs.at[b].kind != KB_IN && w->uses.last[buf] > i;
        }
    }
    return waits && others;
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

/* Rows that stay in the registers of threads from kernel to kernel: what several of them read, memory is read once for. */
typedef struct kept_rows {
    int64_t n; /* elements of a row; 0: they do not stay */
    kernel all;
} kept_rows;

/* Before the link is one of the chain. Returns what the chain with it takes. */
static double add_kept(kept_rows *r, const row_chain *c, const link *l, const kernel *k, const target *t) {
    uint64_t again = (uint64_t)row_read_again(c, &l->row, row_count(k, c->shared));
    if (!c->n) r->n = l->kept;
    if (l->kept != r->n || c->n == MOST_KEPT) r->n = 0;
    r->all.flops += k->flops, r->all.bytes_written += k->bytes_written;
    r->all.bytes_read += k->bytes_read > again ? k->bytes_read - again : 0;
    return r->n ? vertical_alone(&r->all, t) : INFINITY;
}

/* The longest chain from kernel `first` on that is faster, with `shared` shared loops: its gain, in nanoseconds. */
static double grow(chooser *w, int first, int shared, chain *out, const char **out_end) {
    plan *p = w->p;
    const kernel *k0 = p->kernels.at[first].k;
    double alone = 0, among = 0, inside[N_ROWS] = { 0 }, clustered = 0, best = 0, last = 0, shorter = 0;
    double summed = INFINITY; /* of the contractions by clusters; nothing else is done faster by them */
    int best_n = 0;
    int64_t columns = 0;
    bool best_clustered = false, best_kept = false;
    kept_rows rows = { 0 };
    int64_t divisor = shared ? ext_divisor(k0->params, row_extent(k0, shared - 1)) : 1; /* of the innermost extent */
    row_chain c = row_chain_make(p, first, shared);
    *out_end = NULL;
    memset(w->shapes, 0, sizeof *w->shapes * RECIPE_CLUSTER_SHAPES);
    for (int i = first; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        if (!row_same(k0, k, shared)) break;
        const link *l = link_of(w, i, shared);
        if (w->running[i]) *out_end = "its rows are running sums, which a thread block makes at once";
        if (stands_alone(w, &c, i, l)) *out_end = "it needs nothing of the rows before it: it runs beside them";
        if (keeps_others(w, &c, i)) *out_end = "others would wait for what it reads";
        if (*out_end || (*out_end = row_objection(&c, &l->row, k, w->room, w->most_args))) break;
        double kept = add_kept(&rows, &c, l, k, w->t);
        row_append(&c, &l->row, k);
        alone += l->alone, among += l->among;
        clustered += columns && l->layer.n && l->layer.n != columns ? INFINITY : l->clustered;
        if (l->layer.n && isfinite(clustered)) {
            columns = l->layer.n;
            summed = add_layer(w, &l->layer, row_count(k, shared));
        }
        double least = INFINITY;
        for (int r = 0; r < N_ROWS; r++) {
            double all = inside[r] + l->inside[r];
            inside[r] += l->before[r];
            if (all < least && (r == 0 || (shared && divisor % (1 << r) == 0))) least = all;
        }
        bool chained = alone * GAIN > least + w->after_ns; /* else steps that follow each other may overlap, launch by launch */
        bool by_clusters = clustered + summed < least && (chained || clustered + summed < among) && is_private(w, &c);
        if (by_clusters) least = clustered + summed;
        least += w->after_ns;
        double gain = alone * GAIN - least, kept_gain = alone * KEPT_GAIN - kept;
        bool is_kept = kept_gain > gain;
        if (is_kept) gain = kept_gain;
        if (c.n > 1 && gain > best) {
            best = gain, shorter = last, best_n = c.n;
            best_clustered = by_clusters && !is_kept, best_kept = is_kept;
        }
        last = c.n > 1 ? gain : 0;
        if (gain + best < -8 * w->after_ns && !rows.n) { /* it will not be made up for */
            *out_end = "a thread block takes longer for its rows of this than a launch of its own";
            break;
        }
    }
    *out = (chain){ row_chain_make(p, first, shared), best_clustered, best_kept, shorter, NULL };
    for (int i = 0; i < best_n; i++) row_append(&out->row, c.links.at[i], p->kernels.at[first + i].k);
    if (best_n < c.n && !*out_end) *out_end = "a thread block takes longer for its rows of this than a launch of its own";
    return best;
}

/* Kernels [i, i + n) of the plan change places with those of `other`. */
static void swap_kernels(chooser *w, int i, int n, kernel **other) {
    for (int j = 0; j < n; j++) {
        pkernel *pk = &w->p->kernels.at[i + j];
        kernel *k = pk->k;
        pk->k = other[j], other[j] = k;
        memset(&w->links[(i + j) * (ROW_MOST_SHARED + 1)], 0, sizeof *w->links * (ROW_MOST_SHARED + 1));
    }
}

/* A chain that gains more than `most`, of kernels whose outermost loops differ, but can be cut into as many rows: tiles of what
 * they all go over. Returns what it gains, or `most`. */
static double grow_cut(chooser *w, int first, double most, chain *out, const char **out_end) {
    kernel *cut[ROW_MOST_LINKS];
    int n;
    int64_t made = (int64_t)w->p->kernels.at[first].k->bytes_written; /* of a tile, one kernel reads it, one writes it */
    for (row_cuts r = row_cuts_make(w->p, first); row_cuts_next(&r);) {
        chain c;
        const char *end;
        bool fits = made >= LEAST_TILE * r.rows && 2 * made / r.rows <= w->room;
        if (!fits || r.rows < 2 || (n = row_cut(&r, w->t, cut)) < 2) continue;
        swap_kernels(w, first, n, cut);
        double gain = grow(w, first, r.n, &c, &end);
        swap_kernels(w, first, n, cut);
        if (gain <= most) continue;
        most = gain, *out = c, *out_end = end;
        for (int i = n; i < c.row.n; i++) cut[i] = w->p->kernels.at[first + i].k; /* the chain went on behind them */
        out->cut = arena_copy(w->p->a, cut, sizeof *cut * (size_t)c.row.n);
    }
    return most;
}

/* The chain from kernel `first` on that gains most; of one kernel: none gains anything. Returns what it gains. */
static double find_chain(chooser *w, int first, chain *out, const char **out_end) {
    double most = 0;
    *out = (chain){ .row.n = 1 }, *out_end = NULL;
    for (int shared = row_shared_loops(w->p->kernels.at[first].k); shared >= (w->p->params ? 1 : 0); shared--) {
        chain c;
        const char *reason;
        double gain = grow(w, first, shared, &c, &reason);
        if (gain > most) most = gain, *out = c, *out_end = reason;
        if (!*out_end && most == 0) *out_end = reason;
    }
    return w->p->params ? most : grow_cut(w, first, most, out, out_end);
}

/* Of a chain of tiles, the last kernel may be worth more as the first of the next one. */
static void leave_last(chooser *w, chain *c, double gain) {
    chain next;
    const char *end;
    row_chain all = c->row, *row = &c->row;
    int after = all.first + all.n;
    if (!c->cut || after == w->p->kernels.n) return;
    if (gain + find_chain(w, after, &next, &end) >= c->shorter + find_chain(w, after - 1, &next, &end)) return;
    *row = row_chain_make(w->p, all.first, all.shared);
    for (int i = 0; i < all.n - 1; i++) row_append(row, all.links.at[i], c->cut[i]);
}

static bool share_large(const pkernel *x, const pkernel *y, int64_t elems) {
    for (int i = 0; i < x->k->bufs.n; i++)
        for (int j = 0; j < y->k->bufs.n; j++)
            if (x->args[i].buf >= 0 && x->args[i].buf == y->args[j].buf && x->k->bufs.at[i].elems >= elems) return true;
    return false;
}

/* Kernel j reads rows that kernel i does, and threads can keep them from one to the other. */
static bool keeps_rows_of(plan *p, int i, int j) {
    const pkernel *x = &p->kernels.at[i], *y = &p->kernels.at[j];
    int shared = row_shared_loops(x->k);
    int64_t n = kept_elems(x->k, shared), rows = row_count(x->k, shared);
    if (!n || !row_same(x->k, y->k, shared) || kept_elems(y->k, shared) != n || !share_large(x, y, n * rows)) return false;
    row_chain c = row_chain_make(p, i, shared);
    row_link first = row_link_make(p, x, shared, false), next = row_link_make(p, y, shared, false);
    row_append(&c, &first, x->k);
    return row_read_again(&c, &next, rows) >= n * rows;
}

/* A kernel that can keep rows of another moves right behind it, where those between have nothing to do with it. */
static void bring_together(plan *p) {
    for (int i = 0; i + 2 < p->kernels.n; i++) {
        if (keeps_rows_of(p, i, i + 1)) continue;
        for (int j = i + 2; j < p->kernels.n && j <= i + 1 + MOST_BETWEEN; j++) {
            if (!keeps_rows_of(p, i, j)) continue;
            const pkernel moved = p->kernels.at[j];
            bool free = true;
            for (int m = i + 1; m < j; m++) free = free && are_independent(&p->kernels.at[m], &moved);
            if (!free) continue;
            memmove(&p->kernels.at[i + 2], &p->kernels.at[i + 1], sizeof moved * (size_t)(j - i - 1));
            p->kernels.at[i + 1] = moved;
            break;
        }
    }
}

/* Whether threads find their share of a row in registers or shared memory, as the recipe of rows will bind it. */
static bool stays_in_registers(const kernel *k, const target *t) {
    int cluster = 1;
    bool in_shared;
    const kernel *o = gpu_compacted(kernel_clone(kernel_at_most(k, k->a), k->a));
    return recipe_row_threads(o, gpu_outer_loops(o), t, &cluster, &in_shared) > 0;
}

/* As many of the chain's kernels, from the first one on, as threads have registers for. Returns how many; 1: none are joined.
 */
static int join_kept(chooser *w, const row_chain *all) {
    plan *p = w->p;
    row_form form = { .forward = true };
    for (int n = all->n; n > 1; n--) {
        row_chain c = row_chain_make(p, all->first, all->shared);
        for (int i = 0; i < n; i++) row_append(&c, all->links.at[i], p->kernels.at[c.first + i].k);
        pkernel pk = row_join(&c, &w->uses, &form);
        if (!stays_in_registers(pk.k, w->t) || !recipe_takes(pk.k, w->t)) continue;
        row_commit(&c, &w->uses, &pk, "a row of the next needs that row alone: one launch, threads keep their share of it");
        VEC_PUSH(p->a, &w->out, pk);
        return n;
    }
    return 1;
}

/* The chain as one kernel; false where a run gives sizes of it, and it has no schedule for them. */
static bool join(chooser *w, chain *c, pkernel *out) {
    plan *p = w->p;
    row_chain *row = &c->row;
    row_form form = { .room = w->room - row->local, .states = !p->params };
    uint8_t *is_layer = ARENA_ARRAY(p->a, uint8_t, row->n);
    for (int i = 0; i < row->n; i++) is_layer[i] = c->clustered && link_of(w, row->first + i, row->shared)->layer.n;
    form.kind = is_layer;
    pkernel pk = row_join(row, &w->uses, &form);
    if (!recipe_takes(pk.k, w->t)) return false;
    row_commit(row, &w->uses, &pk, "a row of the next needs that row alone: one launch, rows stay in shared memory");
    int n = pk.k->bufs.n;
    if (!p->params) vertical_reroll(p, pk.k, row->shared, c->clustered);
    parg *args = ARENA_ARRAY(p->a, parg, pk.k->bufs.n + 1);
    for (int b = 0; b < pk.k->bufs.n; b++) args[b].buf = b < n ? pk.args[b].buf : pk.k->bufs.at[b].plan_buf;
    pk.args = args;
    *out = pk;
    return true;
}

void fuse_vertically(plan *p, const target *t) {
    chooser w = { .p = p,
                  .t = t,
                  .after_ns = machine_row_of(t)->after_ns,
                  .room = target_shared_most(t) - 16 * t->block_threads,
                  .most_args = t->buffers ? t->buffers : FEW_ARGS };
    bring_together(p);
    w.links = ARENA_ARRAY(p->a, const link *, p->kernels.n *(ROW_MOST_SHARED + 1) + 1);
    w.shapes = ARENA_ARRAY(p->a, double, RECIPE_CLUSTER_SHAPES);
    w.layer = ARENA_ARRAY(p->a, double, RECIPE_CLUSTER_SHAPES);
    w.uses = row_find_uses(p);
    w.running = ARENA_ARRAY(p->a, bool, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) w.running[i] = is_running(kernel_at_most(p->kernels.at[i].k, p->a), p->a, t);
    for (int i = 0; i < p->kernels.n;) {
        chain best;
        const char *end;
        double gain = find_chain(&w, i, &best, &end);
        leave_last(&w, &best, gain);
        if (best.cut) swap_kernels(&w, i, best.row.n, best.cut);
        int n = best.row.n;
        pkernel joined = p->kernels.at[i];
        if (best.kept) n = join_kept(&w, &best.row);
        if (n > 1 && !best.kept && !join(&w, &best, &joined)) n = 1, end = "it has no schedule for sizes that a run gives";
        if (i + n < p->kernels.n && end) row_decide(p, p->kernels.at[i + n - 1].root, p->kernels.at[i + n].root, false, end);
        if (n == 1 || !best.kept) VEC_PUSH(p->a, &w.out, joined);
        i += n;
    }
    p->kernels.at = w.out.at, p->kernels.n = w.out.n, p->kernels.cap = w.out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
