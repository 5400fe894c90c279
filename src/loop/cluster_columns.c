/* cluster_columns.c - binds rows with contractions inside to clusters of thread blocks: each block of a cluster has some of the
 * columns of every contraction, and so reads some of the weights only, for all rows of the cluster; what it computed is written
 * to the shared memory of all of them. A thread has a tile of rows and columns and a part of the sum; the parts are added in
 * shared memory, in order. The weights of the next layer are under way meanwhile. What else there is to do for a row, one of
 * the blocks does.
 *
 * In: scalar form whose rows are its outermost loop, or which is one row, with contractions among what it does for a row. Out:
 * the form of a GPU with clusters. Exchange and loading ahead are part of this step, as in thread_columns.c. */
#include "loop/build.h"
#include "loop/cluster_columns.h"

#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"

/* ---- which contractions, in which shape ---- */

/* Which operand of the sum is the weights: it runs along columns, the other one does not; -1: neither. */
static int weights_of(const kernel *k, int n_rows, const row_contraction *c) {
    kvar j = k->ins.at[c->loop].var;
    for (int l = 0; l < 2; l++) {
        const kins *w = &k->ins.at[c->load[l]], *x = &k->ins.at[c->load[1 - l]];
        bool rows = false;
        for (int r = 0; r < n_rows; r++) rows |= affine_coef(w->idx, k->ins.at[1 + r].var) != 0;
        if (!rows && affine_coef(w->idx, j) == 1 && affine_coef(x->idx, j) == 0 && k->bufs.at[w->buf].kind == KB_IN &&
            w->src == TN_F32 && x->dtype == TN_F32)
            return l;
    }
    return -1;
}

bool cluster_takes(const kernel *k, int n_rows, const row_contraction *c) {
    if (n_rows > 1 || weights_of(k, n_rows, c) < 0 || k->ins.at[c->acc].dtype != TN_F32) return false;
    bool *stored = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    for (int i = c->loop; i < c->end; i++)
        if (k->ins.at[i].op == K_STORE) stored[k->ins.at[i].buf] = true;
    for (int i = c->loop; i < c->end; i++)
        if (k->ins.at[i].op == K_LOAD && (stored[k->ins.at[i].buf] || k->ins.at[i].dyn)) return false;
    return true;
}

bool cluster_comes_out(const cluster_shape *s, const row_contraction *c) {
    int64_t across = cluster_across_of(s, c), steps = c->depth / s->split_k;
    if (c->n % (s->cluster * s->lanes) || !gpu_is_power(across)) return false;
    if (c->depth % s->split_k || steps % CLUSTER_STEPS || steps * s->lanes > CLUSTER_MOST_WEIGHTS) return false;
    return s->rows * s->lanes <= CLUSTER_MOST_SUMS;
}

/* Buffers that are written are not read again, unless they are local: thread blocks would have to wait for each other. */
static bool is_possible(cluster_parts *p) {
    const kernel *k = p->k;
    if (p->l.c.n < 2 || !row_layers_are_free(k, 1, &p->l)) return false;
    for (int i = 0; i < p->l.c.n; i++) {
        const row_contraction *c = &p->l.c.at[i];
        if (c->n != p->l.c.at[0].n || !cluster_takes(k, 1, c)) return false;
        for (int j = c->loop; j < c->end; j++) {
            const kins *in = &k->ins.at[j];
            if (loop_is_local(k, in)) p->common[in->buf] = true;
        }
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_INOUT) return false;
    int next = 0, from = 2;
    for (int i = 2; i < k->ins.n - 1; i++) {
        const kins *in = &k->ins.at[i];
        if (next < p->l.sections.n && i == p->l.sections.at[next].loop) {
            from = i = p->l.sections.at[next++].end;
            continue;
        }
        if (in->op == K_SCATTER) return false;
        for (int j = from; j < k->ins.n - 1 && in->op == K_STORE && p->common[in->buf]; j++) {
            if (next < p->l.sections.n && j == p->l.sections.at[next].loop) break;
            if (k->ins.at[j].op == K_LOAD && k->ins.at[j].buf == in->buf) return false;
        }
    }
    return true;
}

/* What is done for one row alone, as a loop over rows. */
static const kernel *with_row(const kernel *k) {
    kernel *o = kernel_clone(k, k->a);
    kvar v = kernel_var(o, "r", 1, true, false);
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (in->op == K_STORE && !kbuf_is_local(&k->bufs.at[in->buf])) /* a row behind the only one is masked out */
            in->idx = build_plus(k->a, in->idx, affine_var(k->a, v), k->bufs.at[in->buf].elems);
    }
    build_around(o, v, 1);
    return o;
}

bool cluster_find(cluster_parts *p, const kernel *k, str *why) {
    int n_rows = gpu_outer_loops(k);
    *p = (cluster_parts){ .k = n_rows ? k : with_row(k) };
    if (n_rows > 1) return step_refuse(why, "there are %d loops of rows; expected one at most", n_rows);
    if (p->k->ins.at[1].hi < 1 || p->k->ins.at[1].lo) return step_refuse(why, "the loop of rows is empty or cut");
    p->common = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    row_layers_find(p->k, 1, &p->l);
    return is_possible(p) ||
           step_refuse(why, "the kernel is not two contractions of rows or more, of as many columns each, that a "
                            "cluster can share out");
}

typedef struct writer {
    const kernel *k;
    kernel *o;
    row_layers l;
    cluster_shape s;
    int64_t all_rows;
    int64_t clusters;
    bool *common; /* [bufs] local ones that contractions touch: all thread blocks have them */
    bool pads;    /* rows of the last cluster there are not */
    row_writer w;
    kvar g, member, part, block, column;
    int partial, kept; /* buffers: of parts of sums; of what the next contraction needs, or -1 */
    reg *ahead;        /* what the next contraction needs is in these registers; NULL: it has not been loaded */
} writer;

static int rows_of_group(const writer *p) { return (cluster_rows_of(&p->s) + p->s.cluster - 1) / p->s.cluster; }

/* ---- writing ---- */

static affine sum(const writer *p, affine x, affine y) { return affine_add(p->o->a, x, y); }
static affine times(const writer *p, kvar v, int64_t n) { return build_times(p->o->a, v, n); }

static kvar open(writer *p, const char *name, int64_t n, kpar par) {
    kvar v = build_loop(p->o, name, n, par);
    p->o->vars.at[v].row = par == PAR_BLOCKS && name[0] == 'g';
    return v;
}

static affine row_at(const writer *p, affine copy) { return sum(p, times(p, p->g, cluster_rows_of(&p->s)), copy); }

static bool has_row(const writer *p, const kins *in) { return affine_coef(in->idx, p->k->ins.at[1].var) != 0; }

typedef struct spot {
    const row_contraction *c;
    affine copy;      /* row of the cluster; */
    bool may_end;     /* which may be behind its last one */
    kvar loop;        /* this variable is .. */
    affine iteration; /* .. this */
    reg dyn;          /* or what this register holds, at most dyn_n - 1 */
    int64_t dyn_n;
    build_copier *copier;
    const bool *varies; /* [scalar ins] along columns */
    int fills;          /* a buffer of the cluster that asynchronous stores fill, or -1 */
} spot;

/* Instruction i for the columns of the thread. */
static reg put(writer *p, int i, const spot *s, build_places at) {
    const kins *in = &p->k->ins.at[i];
    bool memory = in->op == K_LOAD || in->op == K_STORE, global = memory && p->k->bufs.at[in->buf].kind != KB_LOCAL;
    build_put(&at, p->k->ins.at[1].var, row_at(p, s->copy));
    if (s->loop >= 0) build_put(&at, s->loop, s->dyn && memory ? affine_const(0) : s->iteration);
    if (s->may_end && memory) build_bound(&at, s->copy, cluster_rows_of(&p->s), 0);
    if (global && p->pads && has_row(p, in)) build_bound(&at, row_at(p, s->copy), p->all_rows, 0);
    reg r = build_copy(s->copier, i, &at);
    kins *out = &p->o->ins.at[r];
    if (memory && !global) out->idx = sum(p, out->idx, affine_scale(p->o->a, s->copy, p->k->bufs.at[in->buf].elems));
    if (in->op == K_STORE && !global && in->buf == s->fills) out->mode = STORE_ASYNC;
    int64_t stride = s->loop >= 0 ? affine_coef(in->idx, s->loop) : 0;
    if (memory && s->dyn && stride) out->dyn = s->dyn, out->dyn_stride = stride, out->dyn_n = s->dyn_n;
    return r;
}

static build_places columns(const writer *p, const spot *s) {
    build_places at = { .along = p->k->ins.at[s->c->loop].var, .lanes = p->s.lanes, .varies = s->varies };
    affine first = sum(p, times(p, p->member, cluster_columns_of(&p->s, s->c)), times(p, p->column, p->s.lanes));
    build_put(&at, at.along, first);
    return at;
}

static affine step_at(const writer *p, const row_contraction *c, int64_t step) {
    return affine_offset(times(p, p->part, c->depth / p->s.split_k), step);
}

/* Loads outside of the sum that can begin before it: the same for all rows. */
static bool is_early(const writer *p, const row_contraction *c, int i) {
    const kins *in = &p->k->ins.at[i];
    return in->op == K_LOAD && (i < c->inner || i > c->last) && p->k->bufs.at[in->buf].kind == KB_IN && in->src == TN_F32 &&
           !has_row(p, in) && !in->n_mask;
}

/* The buffer of the cluster that the contraction writes whole, if that is the only one that it touches behind the sum: then who
 * has all of it knows that nobody reads what the sums were of. Else -1. */
static int filled_by(const writer *p, const row_contraction *c) {
    int b = -1;
    for (int i = c->loop + 1; i < c->end; i++) {
        const kins *in = &p->k->ins.at[i];
        if ((in->op != K_LOAD && in->op != K_STORE) || (i >= c->inner && i <= c->last) || !p->common[in->buf]) continue;
        const kbuf *kb = &p->k->bufs.at[in->buf];
        bool whole = kb->dtype == TN_F32 && kb->elems == c->n && in->idx.base == 0 && in->idx.n == 1 &&
                     affine_coef(in->idx, p->k->ins.at[c->loop].var) == 1;
        if (in->op == K_LOAD || b >= 0 || !whole) return -1;
        b = in->buf;
    }
    return b;
}

static spot spot_of(writer *p, const row_contraction *c, kvar loop, affine iteration) {
    bool *varies = ARENA_ARRAY(p->k->a, bool, p->k->ins.n);
    build_copier *copier = ARENA_NEW(p->k->a, build_copier);
    *copier = build_copier_make(p->k, p->o);
    varies[c->acc] = true;
    gpu_mark_varying(p->k, c->loop + 1, c->end, p->k->ins.at[c->loop].var, varies);
    return (spot){ .c = c,
                   .copy = affine_const(0),
                   .loop = loop,
                   .iteration = iteration,
                   .copier = copier,
                   .varies = varies,
                   .fills = filled_by(p, c) };
}

/* The weights of a contraction, [steps], then what else can begin early, in the order of its instructions. */
static reg *load_early(writer *p, const spot *s) {
    const row_contraction *c = s->c;
    int64_t steps = c->depth / p->s.split_k;
    int w = c->load[weights_of(p->k, 1, c)];
    reg *to = ARENA_ARRAY(p->k->a, reg, steps + c->end - c->loop);
    for (int64_t i = 0; i < steps; i++) {
        build_places at = columns(p, s);
        build_put(&at, p->k->ins.at[c->inner].var, step_at(p, c, i));
        to[i] = put(p, w, s, at);
    }
    for (int i = c->loop + 1; i < c->end; i++)
        if (is_early(p, c, i)) to[steps + i - c->loop] = put(p, i, s, columns(p, s));
    for (int64_t i = 0; i < steps + c->end - c->loop; i++)
        if (to[i]) p->o->ins.at[to[i]].mode = LOAD_HOISTED;
    return to;
}

/* To and from memory of the thread, at places that are known when it is compiled, which is registers. */
static void keep(writer *p, const row_contraction *c, const reg *from, reg *to) {
    int64_t n = c->depth / p->s.split_k + c->end - c->loop, at = 0;
    if (p->kept < 0) p->kept = build_buffer(p->o, TN_F32, KB_LOCAL, 0);
    for (int64_t i = 0; i < n; i++) {
        if (!from[i]) continue;
        int lanes = p->o->ins.at[from[i]].lanes;
        reg r = to ? build_load(p->o, p->kept, affine_const(at), lanes) : build_store(p->o, p->kept, affine_const(at), from[i]);
        if (to) to[i] = r;
        at += lanes;
    }
    if (at > p->o->bufs.at[p->kept].elems) p->o->bufs.at[p->kept].elems = at;
}

/* Where a part of a row's sums is. */
static affine partial(const writer *p, const row_contraction *c, affine part, affine copy) {
    affine row = sum(p, affine_scale(p->o->a, part, cluster_rows_of(&p->s)), copy);
    return sum(p, affine_scale(p->o->a, row, cluster_columns_of(&p->s, c)), times(p, p->column, p->s.lanes));
}

/* What the thread adds up of its rows and columns: one row at a time, so that the text of a layer is short. */
static void write_sums(writer *p, spot *s, const reg *early) {
    const row_contraction *c = s->c;
    int w = weights_of(p->k, 1, c), x = c->load[1 - w];
    kvar step = p->k->ins.at[c->inner].var, iteration = open(p, "r", p->s.rows, PAR_SERIAL);
    kins acc = p->k->ins.at[c->acc], update = p->k->ins.at[c->update];
    acc.lanes = update.lanes = (uint8_t)p->s.lanes;
    s->copy = sum(p, times(p, p->block, p->s.rows), affine_var(p->o->a, iteration));
    update.c = kernel_push(p->o, acc);
    bool *along = ARENA_ARRAY(p->k->a, bool, p->k->ins.n);
    along[x] = true;
    for (int64_t at = 0; at < c->depth / p->s.split_k; at += CLUSTER_STEPS) {
        build_places place = { .along = step, .lanes = CLUSTER_STEPS, .varies = along };
        build_put(&place, step, step_at(p, c, at));
        reg four = put(p, x, s, place);
        for (int e = 0; e < CLUSTER_STEPS; e++) {
            reg one = build_lane(p->o, four, e);
            update.a = (int)p->k->ins.at[c->update].a == x ? one : early[at + e];
            update.b = (int)p->k->ins.at[c->update].b == x ? one : early[at + e];
            kernel_push(p->o, update);
        }
    }
    build_store(p->o, p->partial, partial(p, c, affine_var(p->o->a, p->part), s->copy), update.c);
    build_ends(p->o, 1);
}

/* The parts of one row's sum, halves first. */
static reg add_parts(writer *p, const spot *s) {
    reg r[32];
    for (int i = 0; i < p->s.split_k; i++) {
        r[i] = build_load(p->o, p->partial, partial(p, s->c, affine_const(i), s->copy), p->s.lanes);
        if (s->may_end) build_mask(p->o->a, &p->o->ins.at[r[i]], s->copy, 0, cluster_rows_of(&p->s), 0);
    }
    return build_halves(p->o, r, p->s.split_k, OP_add, TN_F32, p->k->ins.at[s->c->acc].node);
}

/* What is done with the sums, and where they go. */
static void write_results(writer *p, spot *s, const reg *early) {
    const row_contraction *c = s->c;
    int at_once = p->s.split_k * p->s.blocks, rows = cluster_rows_of(&p->s), iterations = (rows + at_once - 1) / at_once;
    int64_t steps = c->depth / p->s.split_k;
    kvar iteration = open(p, "t", iterations, PAR_SERIAL);
    s->copy = sum(p, times(p, p->part, p->s.blocks), affine_var(p->o->a, p->block));
    s->copy = sum(p, s->copy, times(p, iteration, at_once));
    s->may_end = rows % at_once != 0;
    s->copier->to[c->acc] = add_parts(p, s);
    for (int i = c->loop + 1; i < c->end; i++) {
        if (i == c->acc || (i >= c->inner && i <= c->last)) continue;
        s->copier->to[i] = early[steps + i - c->loop] ? early[steps + i - c->loop] : put(p, i, s, columns(p, s));
    }
    s->may_end = false;
    build_ends(p->o, 1);
}

typedef struct follower { /* the contraction that comes next, for which memory is asked early; c NULL: none */
    const row_contraction *c;
    kvar loop;
    affine iteration; /* iteration of the loop */
    int64_t dyn_n;    /* 0: the turn as it is; else it may be as large as this */
    bool keep;        /* it is in a loop */
} follower;

static void write_contraction(writer *p, const row_contraction *c, kvar loop, affine iteration, const reg *early,
                              const follower *next, bool needs_barrier) {
    spot s = spot_of(p, c, loop, iteration);
    write_sums(p, &s, early);
    p->ahead = NULL;
    if (next->c) {
        spot n = spot_of(p, next->c, next->loop, next->iteration);
        n.dyn_n = next->dyn_n;
        if (n.dyn_n) n.dyn = build_index(p->o, TN_I32, next->iteration);
        p->ahead = load_early(p, &n);
        if (next->keep) keep(p, next->c, p->ahead, NULL);
    }
    build_barrier(p->o);
    write_results(p, &s, early);
    if (needs_barrier && s.fills >= 0)
        build_mbarrier(p->o, s.fills);
    else if (needs_barrier)
        gpu_row_barrier(&p->w, BARRIER_CLUSTER);
}

/* The first contraction of section i: what it needs is loaded now. */
static void begin(writer *p, int i) {
    if (i >= p->l.sections.n || p->ahead) return;
    const row_section *x = &p->l.sections.at[i];
    spot s = spot_of(p, &p->l.c.at[x->first], x->var, affine_const(0));
    p->ahead = load_early(p, &s);
}

static void write_loop(writer *p, const row_section *x) {
    const row_contraction *first = &p->l.c.at[x->first];
    reg *shape_of = p->ahead; /* which registers there are */
    keep(p, first, p->ahead, NULL);
    kvar v = open(p, "l", x->times, PAR_SERIAL);
    affine iteration = affine_var(p->o->a, v);
    for (int i = 0; i < x->n; i++) {
        const row_contraction *c = &p->l.c.at[x->first + i];
        bool last = i + 1 == x->n;
        follower next = { last ? first : c + 1, x->var, last ? affine_offset(iteration, 1) : iteration, last ? x->times : 0,
                          true };
        reg *early = ARENA_ARRAY(p->k->a, reg, c->depth / p->s.split_k + c->end - c->loop);
        keep(p, c, i ? p->ahead : shape_of, early);
        write_contraction(p, c, x->var, iteration, early, &next, true);
    }
    build_ends(p->o, 1);
    p->ahead = NULL;
}

static void mask_rest(writer *p, int from, affine copy) {
    int rows = cluster_rows_of(&p->s);
    for (int i = from; i < p->o->ins.n; i++) {
        kins *in = &p->o->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        uint8_t kind = p->o->bufs.at[in->buf].kind;
        bool of_row = affine_coef(in->idx, p->g) != 0;
        if ((kind == KB_DISTRIBUTED || of_row) && rows % p->s.cluster) build_mask(p->o->a, in, copy, 0, rows, 0);
        if (of_row && p->pads) build_mask(p->o->a, in, row_at(p, copy), 0, p->all_rows, 0);
    }
}

/* Everything else: the thread blocks of the cluster share out its rows. */
static void write_rest(writer *p, int from, int to, bool last) {
    bool common = false;
    if (from >= to) return;
    for (int i = from; i < to; i++) common |= p->k->ins.at[i].op == K_STORE && p->common[p->k->ins.at[i].buf];
    kvar v = open(p, "w", rows_of_group(p), PAR_SERIAL);
    int first = p->o->ins.n;
    p->w.copy = sum(p, times(p, v, p->s.cluster), affine_var(p->o->a, p->member));
    p->w.row_is = row_at(p, p->w.copy);
    gpu_row_range(&p->w, from, to);
    mask_rest(p, first, p->w.copy);
    build_barrier(p->o);
    build_ends(p->o, 1);
    if (common || !last) gpu_row_barrier(&p->w, BARRIER_CLUSTER);
}

static void make_kernel(writer *p) {
    const kernel *k = p->k;
    const row_contraction *c = &p->l.c.at[0];
    p->w = gpu_row_writer(k, (int)cluster_block_threads(&p->s, c));
    kernel *o = p->o = p->w.o;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL && p->common[b])
            o->bufs.at[b].kind = KB_DISTRIBUTED, o->bufs.at[b].elems *= cluster_rows_of(&p->s);
    o->cluster = p->s.cluster, o->grid_blocks = p->clusters * p->s.cluster;
    p->partial = gpu_shared_buffer(o, TN_F32, p->s.split_k * cluster_rows_of(&p->s) * cluster_columns_of(&p->s, c));
    p->kept = -1;
    p->w.n_rows = cluster_rows_of(&p->s), p->w.row = k->ins.at[1].var;
}

static kernel *write(writer *p) {
    const kernel *k = p->k;
    make_kernel(p);
    p->g = open(p, "g", p->clusters, PAR_BLOCKS), p->member = open(p, "m", p->s.cluster, PAR_BLOCKS);
    p->part = open(p, "p", p->s.split_k, PAR_BLOCK_THREADS), p->block = open(p, "q", p->s.blocks, PAR_BLOCK_THREADS);
    p->column = open(p, "c", cluster_across_of(&p->s, &p->l.c.at[0]), PAR_BLOCK_THREADS);
    begin(p, 0);
    int from = 2;
    for (int i = 0; i < p->l.sections.n; i++) {
        const row_section *x = &p->l.sections.at[i];
        write_rest(p, from, x->loop, false);
        from = x->end + 1;
        begin(p, i);
        if (x->var >= 0) {
            write_loop(p, x);
            continue;
        }
        follower next = { .loop = -1 };
        bool last = i + 1 == p->l.sections.n;
        if (!last) next.c = &p->l.c.at[x[1].first], next.loop = x[1].var;
        const reg *early = p->ahead;
        const row_contraction *c = &p->l.c.at[x->first];
        bool stores = false;
        for (int j = c->loop; j < c->end; j++) stores |= k->ins.at[j].op == K_STORE && p->common[k->ins.at[j].buf];
        write_contraction(p, c, -1, affine_const(0), early, &next, stores || !last || from < k->ins.n - 1);
    }
    write_rest(p, from, k->ins.n - 1, true);
    build_ends(p->o, 5);
    return p->o;
}

bool step_cluster_columns(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    int64_t n[5] = { s->arg[0].n, step_option(s, "rows", 1), step_option(s, "blocks", 1), step_option(s, "split_k", 1),
                     step_option(s, "lanes", 1) };
    static const int most[5] = { KERNEL_MOST_CLUSTER, CLUSTER_MOST_ROWS, 4, 32, 4 };
    cluster_parts parts;
    for (int i = 0; i < 5; i++)
        if (n[i] < 1 + (i == 0) || n[i] > most[i] || (i != 1 && !gpu_is_power(n[i])))
            return step_refuse(why, "%lld: expected at most %d, and but for rows a power of two", (long long)n[i], most[i]);
    if (!gpu_can_bind(k, -1, 1, why) || !cluster_find(&parts, k, why)) return false;
    writer p = { .k = parts.k, .l = parts.l, .common = parts.common, .all_rows = parts.k->ins.at[1].hi };
    p.s = (cluster_shape){ (int)n[0], (int)n[1], (int)n[2], (int)n[3], (int)n[4] };
    for (int i = 0; i < p.l.c.n; i++)
        if (!cluster_comes_out(&p.s, &p.l.c.at[i]))
            return step_refuse(why, "a contraction of %lld columns and %lld steps does not come out so",
                               (long long)p.l.c.at[i].n, (long long)p.l.c.at[i].depth);
    if (!gpu_can_bind(k, -1, cluster_block_threads(&p.s, &p.l.c.at[0]), why)) return false;
    p.clusters = (p.all_rows + cluster_rows_of(&p.s) - 1) / cluster_rows_of(&p.s);
    p.pads = p.clusters * cluster_rows_of(&p.s) != p.all_rows;
    *kk = write(&p);
    return true;
}
