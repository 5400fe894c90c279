/* bind_rows.c - binds rows to the thread blocks of a GPU: each iteration of the outer loops is a block's, and nests of the row
 * are shared out among its threads.
 *
 * In: scalar form. Out: the form of a GPU. What stands between the nests is computed by every thread for itself; what a nest
 * writes and another reads is separated by a barrier; a sum over a shared loop is a thread's own sum over its share, then
 * combined in a fixed order. A kernel without outer loops is one row.
 *
 * A long row is a cluster's: each of its blocks has a part of the elements in every nest, and of the local buffers; what the
 * blocks have summed goes to all of them, and each adds it up in the same order.
 *
 * How each nest is shared out this step finds by itself, as the cheapest by a count of instructions: chains of kernels have
 * hundreds of nests, whose loops share their names, so that a step for each of them could not say which it means. */
#include "loop/build.h"
#include "loop/bind_rows.h"

#include "loop/gpu_bind.h"
#include "machine/machine.h"

typedef enum deal_kind {
    DEAL_NONE, /* every thread does all of it */
    DEAL_BODY, /* the loop is serial, its body is dealt */
    DEAL_PARALLEL /* the first `n` loops of the nest are dealt, the rest is a thread's own */,
    DEAL_SUM /* the same, and what they accumulate is combined afterwards */
} deal_kind;
typedef struct dealing {
    deal_kind kind;
    int n;
    double cost;
} dealing;

enum { COMBINE_COST = 12 /* of each halving when threads combine their sums */ };

static double rounds(const kernel *k, int i, int n, int block_threads) {
    double p = 1;
    for (int d = 0; d < n; d++) p *= (double)(k->ins.at[i + d].hi - k->ins.at[i + d].lo);
    return p < 1 ? 0 : p <= block_threads ? 1 : p / block_threads;
}

/* Whether the first n loops of the nest at i write places of their own in each iteration: where what one iteration leaves to
 * itself lies in local memory that all share, threads would be in each other's way. */
static bool writes_apart(const kernel *k, int i, int n, int end) {
    for (int at = i + n; at < end; at++) {
        const kins *in = &k->ins.at[at];
        if ((in->op != K_STORE && in->op != K_SCATTER) || !kbuf_is_local(&k->bufs.at[in->buf])) continue;
        for (int d = 0; d < n; d++) {
            const kins *loop = &k->ins.at[i + d];
            if (loop->hi - loop->lo > loop->step && (in->dyn || !affine_coef(in->idx, loop->var))) return false;
        }
    }
    return true;
}

/* How the nest at i is bound to the threads of a thread block, at the least cost. */
static dealing choose(const kernel *k, int i, int block_threads) {
    int end = kernel_loop_end(k, i), n = gpu_perfect_loops(k, i);
    double steps = (double)(k->ins.at[i].hi - k->ins.at[i].lo);
    bool sums = k->vars.at[k->ins.at[i].var].reduce,
         writes = loop_find_op(k, i, end, K_STORE) || loop_find_op(k, i, end, K_SCATTER);
    kvar fast = k->ins.at[i + n - 1].var;
    dealing best = { .kind = DEAL_BODY, .n = 1, .cost = steps * (loop_rows_cost(k, i + 1, end, block_threads) + 2) };
    if (!sums && writes_apart(k, i, n, end)) {
        double cost = rounds(k, i, n, block_threads) * (loop_thread_cost(k, i + n, end - n + 1, fast) + 4);
        if (cost <= best.cost || !loop_find_op(k, i + n, end, K_LOOP)) best = (dealing){ DEAL_PARALLEL, n, cost };
        return best;
    }
    if (!sums || writes) return best;
    double share = rounds(k, i, n, block_threads) * (loop_thread_cost(k, i + n, end - n + 1, fast) + 4) +
                   COMBINE_COST * (double)gpu_log2(block_threads);
    double alone = loop_thread_cost(k, i, end, -1);
    return share < alone ? (dealing){ DEAL_SUM, n, share } : (dealing){ DEAL_NONE, 0, alone };
}

double loop_rows_cost(const kernel *k, int from, int to, int block_threads) {
    double sum = 0;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP) {
            sum += loop_thread_cost(k, i, i + 1, -1);
            continue;
        }
        sum += choose(k, i, block_threads).cost;
        i = kernel_loop_end(k, i);
    }
    return sum;
}

/* Of all threads, in nests whose elements lie apart from thread to thread. */
double loop_rows_lines(const kernel *k, int from, int to, int block_threads) {
    double sum = 0;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        dealing d = choose(k, i, block_threads);
        int end = kernel_loop_end(k, i);
        if (d.kind == DEAL_PARALLEL || d.kind == DEAL_SUM) {
            kvar fast = k->ins.at[i + d.n - 1].var;
            double lines = loop_thread_lines(k, i, end, fast), together = loop_thread_lines(k, i, end, -1);
            if (lines > together) sum += lines;
        }
        i = end;
    }
    return sum;
}

/* ---- writing ---- */

static bool is_shared(const row_writer *w, int buf) { return w->k->bufs.at[buf].kind != KB_IN; }

static void clear(row_writer *w) {
    memset(w->wrote, 0, sizeof(bool) * (size_t)w->k->bufs.n);
    memset(w->read, 0, sizeof(bool) * (size_t)w->k->bufs.n);
}

void gpu_row_barrier(row_writer *w, kbarrier mode) {
    kernel_push(w->o, (kins){ .op = K_BARRIER, .mode = (uint8_t)mode });
    clear(w);
}

void gpu_row_settle(row_writer *w) {
    bool any = false;
    for (int b = 0; b < w->k->bufs.n; b++) any |= w->wrote[b];
    if (any && !w->quiet) gpu_row_barrier(w, BARRIER_BLOCK);
}

/* Instructions [from, to) touch memory now: a barrier first where other threads may have touched it. */
void gpu_row_touch(row_writer *w, int from, int to) {
    bool needs_barrier = false;
    if (w->quiet) return;
    for (int round = 0; round < 2; round++) {
        for (int i = from; i < to; i++) {
            const kins *in = &w->k->ins.at[i];
            bool store = in->op == K_STORE || in->op == K_SCATTER;
            if ((in->op != K_LOAD && !store) || !is_shared(w, in->buf)) continue;
            if (round == 0) {
                needs_barrier |= w->wrote[in->buf] || (store && w->read[in->buf]);
            } else {
                w->wrote[in->buf] |= store;
                w->read[in->buf] |= in->op != K_STORE;
            }
        }
        if (round == 0 && needs_barrier) gpu_row_barrier(w, BARRIER_BLOCK);
    }
}

void gpu_row_place(const row_writer *w, kins *in) {
    if (!w->n_rows) return;
    build_set_var(w->o->a, in, w->row, w->row_is);
    if (kernel_touches(in) && kbuf_is_local(&w->o->bufs.at[in->buf]) &&
        w->o->bufs.at[in->buf].elems != w->k->bufs.at[in->buf].elems)
        in->idx = build_plus(w->o->a, in->idx, w->copy, w->k->bufs.at[in->buf].elems);
}

/* The elements of a thread block of a cluster. */
static void place_part(const row_writer *w, kins *in) {
    const kernel *o = w->o;
    int64_t n = o->vars.at[w->own].extent;
    affine own = affine_var(o->a, w->own), all = affine_add(o->a, build_times(o->a, w->member, n), own);
    bool local = (in->op == K_LOAD || in->op == K_STORE) && kbuf_is_local(&o->bufs.at[in->buf]);
    if (local) in->idx = affine_set_var(o->a, in->idx, w->split, own);
    build_set_var(o->a, in, w->split, all);
}

static reg copy(row_writer *w, int i, kpar par) {
    kins in = w->k->ins.at[i];
    build_operands(&in, w->to);
    if (in.op == K_LOOP) in.par = (uint8_t)par;
    gpu_row_place(w, &in);
    if (w->cluster > 1 && w->split >= 0) place_part(w, &in);
    return w->to[i] = kernel_push(w->o, in);
}

static void copy_all(row_writer *w, int from, int to) {
    for (int i = from; i < to; i++) copy(w, i, PAR_SERIAL);
}

static void open_one(row_writer *w) {
    if (w->one < 0) w->one = kernel_var(w->o, "one", 1, false, false);
    build_open(w->o, w->one, 0, 1, PAR_BLOCK_THREADS);
}

/* The thread is of the first thread block of a cluster. */
static void by_one_thread(row_writer *w, int i) {
    gpu_row_touch(w, i, i + 1);
    open_one(w);
    reg r = copy(w, i, PAR_SERIAL); /* which may move the list */
    if (w->cluster > 1) build_mask(w->o->a, &w->o->ins.at[r], affine_var(w->o->a, w->member), 0, 1, 0);
    build_ends(w->o, 1);
}

/* What the thread blocks of a cluster have, in r, becomes one value: halves first. Each sum has memory of its own, so that
 * nobody writes what another still reads. */
static reg combine_groups(row_writer *w, reg r, uint8_t op) {
    kernel *o = w->o;
    int part = build_buffer(o, TN_F32, KB_DISTRIBUTED, w->cluster);
    reg parts[KERNEL_MOST_CLUSTER];
    open_one(w);
    reg store = build_store(o, part, affine_var(o->a, w->member), r);
    o->ins.at[store].mode = STORE_ASYNC;
    build_ends(o, 1);
    build_mbarrier(o, part);
    for (int g = 0; g < w->cluster; g++) parts[g] = build_load(o, part, affine_const(g), 1);
    return build_halves(o, parts, w->cluster, op, TN_F32, o->ins.at[r].node);
}

/* What the threads accumulated in the nest [from, to) becomes one value. Made outside, so the nest holds no other accumulators
 * that live on. */
static void combine(row_writer *w, int from, int to) {
    for (int i = from; i < to; i++) {
        const kins *in = &w->k->ins.at[i];
        if ((in->op != K_UPD && in->op != K_ARGUPD) || (int)in->c >= from) continue;
        const kins *acc = &w->k->ins.at[in->c];
        if (w->o->ins.at[w->to[in->c]].op != K_ACC) continue; /* done, by another update of the same */
        if (in->op == K_UPD) {
            kins sum = { .op = K_BLOCK_REDUCE, .alu = acc->alu, .dtype = acc->dtype, .a = w->to[in->c], .node = acc->node };
            w->to[in->c] = kernel_push(w->o, sum);
            if (w->cluster > 1) w->to[in->c] = combine_groups(w, w->to[in->c], acc->alu);
        } else {
            kins arg = { .op = K_BLOCK_ARGREDUCE,
                         .alu = in->alu,
                         .dtype = TN_I64,
                         .src = in->dtype,
                         .a = w->to[in->c],
                         .b = w->to[in->b],
                         .node = acc->node };
            w->to[in->b] = kernel_push(w->o, arg);
        }
        clear(w);
    }
}

/* A serial loop with barriers inside: the next iteration may touch what this one did, so a barrier ends each. */
static void write_serial(row_writer *w, int i, int end) {
    bool outermost = !w->quiet && !loop_find_op(w->k, i, end, K_STORE);
    if (outermost) { /* a scatter: the same thread is always at the same element */
        gpu_row_touch(w, i, end);
        w->quiet = true;
    }
    bool *wrote = arena_copy(w->o->a, w->wrote, sizeof(bool) * (size_t)w->k->bufs.n),
         *read = arena_copy(w->o->a, w->read, sizeof(bool) * (size_t)w->k->bufs.n);
    copy(w, i, PAR_SERIAL);
    gpu_row_range(w, i + 1, end);
    gpu_row_settle(w);
    build_ends(w->o, 1);
    if (outermost) w->quiet = false;
    for (int b = 0; b < w->k->bufs.n; b++) w->wrote[b] |= wrote[b], w->read[b] |= read[b];
}

/* The nest is one loop. */
static void write_part(row_writer *w, int i, int end) {
    kins loop = w->k->ins.at[i];
    loop.hi /= w->cluster, loop.par = PAR_BLOCK_THREADS;
    w->split = loop.var, w->own = loop.var = kernel_var(w->o, "p", loop.hi, false, false);
    kernel_push(w->o, loop);
    copy_all(w, i + 1, end + 1);
    w->split = -1;
}

static void write_nest(row_writer *w, int i, int end) {
    dealing d = choose(w->most, i, w->block_threads);
    if (w->sums && gpu_row_is_sums(w, i)) {
        gpu_row_touch(w, i, end);
        gpu_row_sums(w, i);
        return;
    }
    if (d.kind == DEAL_BODY) {
        write_serial(w, i, end);
        return;
    }
    gpu_row_touch(w, i, end);
    if (w->cluster > 1) {
        write_part(w, i, end);
    } else {
        for (int n = 0; n < d.n; n++) copy(w, i + n, PAR_BLOCK_THREADS);
        copy_all(w, i + d.n, end + 1);
    }
    if (d.kind == DEAL_SUM) combine(w, i, end);
}

void gpu_row_range(row_writer *w, int from, int to) {
    for (int i = from; i < to; i++) {
        const kins *in = &w->k->ins.at[i];
        if (in->op == K_LOOP) {
            int end = kernel_loop_end(w->k, i);
            write_nest(w, i, end);
            i = end;
        } else if (in->op == K_STORE || in->op == K_SCATTER) {
            by_one_thread(w, i);
        } else {
            gpu_row_touch(w, i, i + 1);
            copy(w, i, PAR_SERIAL);
        }
    }
}

/* The lines of a load's elements that the thread block has, `ahead` rows later, are fetched by a thread each. */
static void fetch_lines(row_writer *w, const kins *load, const kins *loop, kvar row, int64_t ahead) {
    /* The second cache does not keep larger parts, and then enough warps have lines under way that memory is busy without
     * prefetches: with fetching, softmax of 32768 x 1024 f32 was at 0.82 of a copy, without at 0.94 or more
     * before. */
    enum { LINE = MACHINE_GPU_LINE_BYTES, MOST = 112 << 10, MOST_OF_WARP = 2 << 10 };
    kernel *o = w->o;
    int64_t size = (int64_t)dtype_size((tn_dtype)load->src), part = loop->hi / (w->cluster > 1 ? w->cluster : 1);
    if (part * size > (w->block_threads * (w->cluster > 1 ? w->cluster : 1) > 32 ? MOST : MOST_OF_WARP)) return;
    kins fetch = { .op = K_PREFETCH, .dtype = load->src, .src = load->src, .lanes = 1, .mode = PREFETCH_L2, .buf = load->buf };
    kvar line = build_loop(o, "f", (part * size + LINE - 1) / LINE, PAR_BLOCK_THREADS);
    affine first = build_times(o->a, line, LINE / size);
    if (w->cluster > 1) first = build_plus(o->a, first, affine_var(o->a, w->member), part);
    fetch.idx = affine_set_var(o->a, load->idx, loop->var, first);
    fetch.idx = affine_set_var(o->a, fetch.idx, row, affine_offset(affine_var(o->a, row), ahead));
    fetch.node = load->node;
    kernel_push(o, fetch);
    build_ends(o, 1);
}

/* A thread block loads its row, then it computes, and memory would wait for it meanwhile: so it has the row fetched that a
 * thread block will begin with when those at work are done. What all rows share is there anyway. */
static void fetch_later_row(row_writer *w, int n_rows, int64_t ahead) {
    const kernel *k = w->k;
    kvar row = k->ins.at[1].var;
    bool *fetched = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    const kins *loop = NULL;
    if (n_rows != 1 || ahead < 1 || k->ins.at[1].hi < 2 * ahead) return;
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) loop = in;
        kbuf_kind kind = (kbuf_kind)k->bufs.at[in->buf].kind;
        if (in->op != K_LOAD || !loop || in->dyn || in->n_mask || (kind != KB_IN && kind != KB_INOUT) || fetched[in->buf])
            continue;
        if (in->idx.n != 2 || affine_coef(in->idx, row) < 1 || affine_coef(in->idx, loop->var) != 1) continue;
        fetched[in->buf] = true;
        fetch_lines(w, in, loop, row, ahead);
    }
}

/* Whether a cluster can share out rows: nests are single loops over the same n elements, each at places of its own in what the
 * kernel writes; what is summed is f32. */
bool loop_rows_split(const kernel *k, int n_rows, int block_threads) {
    int from = 1 + n_rows, to = k->ins.n - n_rows;
    for (int i = from; i < to; i++) {
        const kins *head = &k->ins.at[i];
        bool store = head->op == K_STORE || head->op == K_SCATTER, load = head->op == K_LOAD;
        if (head->op == K_SCATTER || ((load || store) && kbuf_is_local(&k->bufs.at[head->buf]))) return false;
        if (load && k->bufs.at[head->buf].kind != KB_IN) return false;
        if (head->op != K_LOOP) continue;
        dealing d = choose(k, i, block_threads);
        if ((d.kind != DEAL_PARALLEL && d.kind != DEAL_SUM) || d.n != 1) return false;
        affine own = affine_var(k->a, head->var);
        for (i++; k->ins.at[i].op != K_END; i++) {
            const kins *in = &k->ins.at[i];
            bool memory = in->op == K_LOAD || in->op == K_STORE, local = memory && kbuf_is_local(&k->bufs.at[in->buf]);
            if (in->op == K_LOOP || in->op == K_ARGUPD || in->op == K_SCATTER) return false;
            if (in->op == K_UPD && in->dtype != TN_F32) return false;
            if (local && (in->dyn || in->n_mask || !affine_equal(in->idx, own))) return false;
            if (in->op == K_LOAD && !local && k->bufs.at[in->buf].kind != KB_IN) return false;
        }
    }
    return true;
}

row_writer gpu_row_writer(const kernel *k, int threads) {
    row_writer w = { .k = k, .o = gpu_kernel(k, threads), .block_threads = threads, .one = -1, .split = -1 };
    kernel *o = w.o;
    w.most = kernel_at_most(k, k->a), o->params = k->params;
    o->bufs.at = arena_copy(k->a, k->bufs.at, sizeof(kbuf) * (size_t)k->bufs.n), o->bufs.cap = k->bufs.n;
    for (int b = 0; b < o->bufs.n; b++)
        if (o->bufs.at[b].kind == KB_LOCAL) o->bufs.at[b].kind = KB_SHARED, o->bufs.at[b].elems = w.most->bufs.at[b].elems;
    w.to = ARENA_ARRAY(k->a, reg, k->ins.n);
    w.wrote = ARENA_ARRAY(k->a, bool, k->bufs.n + 1), w.read = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    return w;
}

static kernel *write_rows(const kernel *k, int n_rows, int block_threads, int cluster, int64_t ahead, bool sums) {
    row_writer w = gpu_row_writer(k, block_threads);
    w.sums = sums;
    kernel *o = w.o;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) o->bufs.at[b].elems /= cluster;
    for (int i = 1; i <= n_rows; i++) {
        const kins *in = &k->ins.at[i];
        o->grid_blocks = ext_mul(k->params, o->grid_blocks, ext_sub(k->params, in->hi, in->lo));
        copy(&w, i, PAR_BLOCKS);
    }
    if (cluster > 1) {
        o->cluster = w.cluster = cluster, o->grid_blocks *= cluster;
        w.member = build_loop(o, "m", cluster, PAR_BLOCKS);
    }
    fetch_later_row(&w, n_rows, ahead);
    if (sums) gpu_row_sums_ahead(&w, 1 + n_rows, k->ins.n - n_rows);
    gpu_row_range(&w, 1 + n_rows, k->ins.n - n_rows);
    build_ends(o, n_rows + (cluster > 1));
    return o;
}

kernel *loop_bind_rows(const kernel *k, int threads) {
    k = gpu_compacted(kernel_clone(k, k->a));
    kernel *o = gpu_outer_loops(k) ? write_rows(k, gpu_outer_loops(k), threads, 1, 0, false) : NULL;
    return o && ext_hi(o->params, o->grid_blocks) <= INT32_MAX ? o : NULL;
}

/* Whether all nests come out in as many parts as a cluster has blocks. */
static bool comes_out(const kernel *k, int n_rows, int64_t cluster, str *why) {
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && (in->lo != 0 || in->hi % cluster))
            return step_refuse(why, "%lld iterations of %s do not come out in %lld parts", (long long)in->hi,
                               k->vars.at[in->var].name, (long long)cluster);
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL && k->bufs.at[b].elems % cluster)
            return step_refuse(why, "%lld elements of b%d do not come out in %lld parts", (long long)k->bufs.at[b].elems, b,
                               (long long)cluster);
    return true;
}

bool step_bind_rows(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    int64_t threads = s->arg[0].n, cluster = step_option(s, "cluster", 1), ahead = step_option(s, "prefetch", 0);
    int n_rows = gpu_outer_loops(k);
    if (!gpu_can_bind(k, -1, threads, why)) return false;
    if (cluster < 1 || cluster > KERNEL_MOST_CLUSTER || !gpu_is_power(cluster))
        return step_refuse(why, "clusters of %lld thread blocks: expected a power of two up to %d", (long long)cluster,
                           KERNEL_MOST_CLUSTER);
    if (cluster > 1 && !loop_rows_split(k, n_rows, (int)threads))
        return step_refuse(why, "a cluster cannot share out the rows: not all nests are single loops over places of their own, "
                                "with sums of f32");
    if (cluster > 1 && !comes_out(k, n_rows, cluster, why)) return false;
    if (step_flag(s, "sums") && (k->params || !loop_row_sums(k, n_rows, (int)threads)))
        return step_refuse(why, "no nest makes sums that %lld threads can share", (long long)threads);
    *kk = write_rows(k, n_rows, (int)threads, (int)cluster, ahead, step_flag(s, "sums"));
    return true;
}
