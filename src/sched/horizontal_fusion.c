/* horizontal_fusion.c - kernels for a GPU that do not need each other become one launch, whose thread blocks they share out:
 * each has thread blocks of its own (kernel.h: K_LOOP), which run beside those of the others. Two products of one operand, or
 * what an optimiser does to all parameters, keep the machine busy then, and start once.
 *
 * In: a plan with kernels in the form of a GPU, before buffers have their places. Out: fewer of them. A kernel comes earlier
 * than those between, if it touches nothing that they write, nor writes what they touch. Which ones: of one kind (all
 * elementwise, or thread blocks of as many threads with about as much shared memory), and none that keeps the machine busy
 * alone, in the least of its sizes. */
#include "ir/boxes.h"
#include "loop/build.h"
#include "machine/machine.h"
#include "sched/fusion.h"

enum {
    AHEAD = 64 /* kernels, to look through */,
    MOST_BESIDE = 64,
    MOST_INS = 8000,
    FEW_ARGS = 60,
    MOST_ROOMS = 32,
    EXCHANGED = 12 /* bytes a thread */,
    MAP_ARGS = 16,
    LITTLE = 256 << 10 /* flops of a thread block */,
    FULL = 256 /* threads that a thread block has at least, where they all fit at a time */
};

typedef struct kind { /* of a kernel */
    bool joins, maps; /* maps: nothing but loops of the grid, for thread blocks of any size */
    bool lone;        /* one thread block, which does it all */
    int64_t fast;     /* bytes of its thread blocks' memory */
    int args;         /* buffers, and matrices whose boxes are copied, each as large as MAP_ARGS of them */
} kind;

/* What a launch has of the memory of thread blocks and threads. A thread block is of one kernel, so each buffer serves one
 * after the other's and is as large as the largest of them. */
typedef struct rooms {
    int n, threads, exchanged; /* bytes */
    bool lent[MOST_ROOMS];     /* to the kernel at hand */
    kbuf at[MOST_ROOMS];
} rooms;

typedef struct beside {
    plan *p;
    const target *t;
    kind *kinds;                /* [kernels] */
    const bool *waited;         /* [kernels] by others (waited_for); NULL: all are */
    bool apart;                 /* those are no launch with the rest */
    bool *taken;                /* [kernels] */
    int *written, *made, *read; /* [plan bufs] by what stands before the kernel in question: number of the search, */
    int search;                 /* which is this; made: written, and not read first: a part of it */
    int *set, n;                /* what becomes one launch .. */
    int block_threads;          /* .. and threads of its thread blocks; 0: any number */
    int64_t elements;           /* .. and of elementwise work */
    rooms rooms;                /* .. and what it has of their memory */
    int *now;                   /* [kernels] where they stand in out, or -1 */
    VEC(pkernel) out;
} beside;

/* ---- which ---- */

static bool is_bound(const kins *in) { return in->op == K_LOOP && (in->par == PAR_GRID_THREADS || in->par == PAR_BLOCKS); }

/* Where a run gives sizes: nests of thread blocks, of which each has as many as it has iterations, with memory of known size.
 */
static bool has_blocks_alone(const kernel *k) {
    bool alone = true;
    for (int i = 1; i < k->ins.n; i++) alone = alone && (k->ins.at[i].op != K_LOOP || k->ins.at[i].par != PAR_GRID_THREADS);
    for (int b = 0; b < k->bufs.n; b++) alone = alone && (k->bufs.at[b].kind < KB_SHARED || ext_is_lit(k->bufs.at[b].elems));
    return alone;
}

/* All that it does stands in nests that are bound to thread blocks or threads; values before them are any thread's. Or one
 * thread block does it. */
static kind kind_of(const kernel *k, const target *t) {
    int64_t least = ext_lo(k->params, k->grid_blocks);
    kind x = { .joins = k->block_threads > 0 && k->cluster == 0 && k->turns == 0 && least > 0 &&
                        least <= t->resident_threads / k->block_threads,
               .maps = true };
    bool all_bound = true;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool value = kernel_is_pure(in) || (in->op == K_LOAD && k->bufs.at[in->buf].kind == KB_IN);
        int end = is_bound(in) ? kernel_loop_end(k, i) : i;
        all_bound = all_bound && (value || is_bound(in));
        for (; i <= end; i++) {
            in = &k->ins.at[i];
            x.maps = x.maps && !kernel_syncs(in) && (in->op != K_LOOP || in->par < PAR_BLOCKS);
            x.joins = x.joins && (t->local_barriers || !kernel_syncs(in));
        }
        i = end;
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind >= KB_SHARED && ext_is_lit(k->bufs.at[b].elems))
            x.fast += k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype), x.maps = false;
    x.lone = !all_bound && k->grid_blocks == 1, x.maps = x.maps && all_bound;
    x.joins = x.joins && (all_bound || x.lone) && (!k->params || has_blocks_alone(k));
    return x;
}

static void pass_by(beside *w, const pkernel *pk) {
    for (int b = 0; b < pk->k->bufs.n; b++) {
        int32_t buf = pk->args[b].buf;
        if (buf < 0) continue;
        uint8_t how = pk->k->bufs.at[b].kind;
        if (how != KB_OUT) w->read[buf] = w->search;
        if (how != KB_IN) (how == KB_OUT ? w->made : w->written)[buf] = w->search;
    }
}

/* Nothing that was passed by minds if it comes first. Several that make one buffer each make a part of it, as of a concat. */
static bool can_come(const beside *w, const pkernel *pk) {
    for (int b = 0; b < pk->k->bufs.n; b++) {
        int32_t buf = pk->args[b].buf;
        if (buf < 0) continue;
        uint8_t how = pk->k->bufs.at[b].kind;
        if (w->written[buf] == w->search || (how != KB_OUT && w->made[buf] == w->search) ||
            (how != KB_IN && w->read[buf] == w->search))
            return false;
    }
    return true;
}

static int arguments(const pkernel *pk) {
    kmaps maps;
    str reason;
    int n = 0, stages;
    str_init(&reason, pk->k->a);
    kernel_maps(pk->k, &maps, &stages, &reason);
    for (int b = 0; b < pk->k->bufs.n; b++) n += pk->args[b].buf >= 0;
    return n + maps.n * MAP_ARGS;
}

static bool serves(const kbuf *o, const kbuf *b) {
    return o->kind == b->kind && o->dtype == b->dtype && o->swizzled == b->swizzled && o->late == b->late;
}

/* Room for a kernel more. Returns whether a thread block may have it all, with what threads that reduce exchange. */
static bool add_rooms(rooms *r, const kernel *k, const target *t) {
    memset(r->lent, 0, sizeof r->lent);
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_BLOCK_REDUCE || k->ins.at[i].op == K_BLOCK_ARGREDUCE)
            r->exchanged = EXCHANGED * (k->block_threads > r->threads ? k->block_threads : r->threads);
    if (r->threads < k->block_threads) r->threads = k->block_threads;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *want = &k->bufs.at[b];
        int i = 0;
        if (want->kind < KB_SHARED) continue;
        while (i < r->n && (r->lent[i] || !serves(&r->at[i], want))) i++;
        if (i == MOST_ROOMS) return false;
        if (i == r->n) r->at[r->n++] = *want;
        r->lent[i] = true;
        if (r->at[i].elems < want->elems) r->at[i].elems = want->elems;
    }
    return kbufs_shared_bytes(r->at, r->n) + r->exchanged <= target_shared_most(t);
}

/* Of elementwise work, each of which is a thread's. */
static int64_t elements_of(const kernel *k, const kind *x) {
    return x->maps && !k->params ? k->grid_blocks * k->block_threads : 0;
}

static bool fits(const beside *w, int first, int i, int args, int ins) {
    const kind *x = &w->kinds[first], *y = &w->kinds[i];
    const kernel *k = w->p->kernels.at[i].k;
    int most = w->t->buffers ? w->t->buffers : FEW_ARGS;
    if (!y->joins || args + y->args > most || ins + k->ins.n > MOST_INS) return false;
    bool sized = k->params || w->p->kernels.at[first].k->params; /* as many threads in all */
    if ((!y->maps || sized) && w->block_threads && w->block_threads != k->block_threads) return false;
    if (x->maps != y->maps && !x->lone && !y->lone) return false;
    int threads = y->maps ? w->block_threads : k->block_threads; /* much elementwise work goes slowly by small thread blocks */
    if (threads && 2 * threads < w->t->block_threads && w->elements + elements_of(k, y) > w->t->resident_threads) return false;
    return x->maps || x->lone || y->lone || (x->fast <= 2 * y->fast && y->fast <= 2 * x->fast);
}

static double work_of(const kernel *k) { /* of a thread block; little is none */
    double flops = (double)k->flops / (double)k->grid_blocks;
    return flops < LITTLE ? 0 : flops;
}

/* Whether a kernel with later readers may share a launch: its readers then wait for the other kernel, too, so the thread
 * blocks of that may do no more work than its own. */
static bool may_wait(const beside *w, int i, int j) {
    const kernel *k = w->p->kernels.at[i].k, *l = w->p->kernels.at[j].k;
    if (!w->waited || w->waited[i] == w->waited[j]) return true;
    return !w->apart && !k->params && !l->params && (w->waited[i] ? work_of(l) <= work_of(k) : work_of(k) <= work_of(l));
}

/* Those of one code follow each other: their text is written once (emit/clike/shares.c). */
static void sort_set(beside *w) {
    int *sorted = ARENA_ARRAY(w->p->a, int, w->n), n = 0;
    for (int i = 0; i < w->n; i++)
        for (int j = i; j < w->n && w->set[i] >= 0; j++) {
            if (j > i && (w->set[j] < 0 || w->p->kernels.at[w->set[j]].code != w->p->kernels.at[w->set[i]].code)) continue;
            sorted[n++] = w->set[j];
            if (j > i) w->set[j] = -1;
        }
    memcpy(w->set, sorted, sizeof *sorted * (size_t)n);
}

static void find_set(beside *w, int first) {
    plan *p = w->p;
    int args = w->kinds[first].args, ins = p->kernels.at[first].k->ins.n;
    w->n = 0, w->set[w->n++] = first, w->search++;
    const kernel *k = p->kernels.at[first].k;
    w->block_threads = w->kinds[first].maps && !k->params ? 0 : k->block_threads;
    w->rooms = (rooms){ 0 }, w->elements = elements_of(k, &w->kinds[first]);
    if (!w->kinds[first].joins || !add_rooms(&w->rooms, k, w->t)) return;
    pass_by(w, &p->kernels.at[first]);
    for (int i = first + 1; i < p->kernels.n && i <= first + AHEAD && w->n < MOST_BESIDE; i++) {
        const pkernel *pk = &p->kernels.at[i];
        if (w->taken[i]) continue;
        rooms with = w->rooms;
        if (may_wait(w, first, i) && fits(w, first, i, args, ins) && can_come(w, pk) && add_rooms(&with, pk->k, w->t)) {
            w->set[w->n++] = i, w->taken[i] = true, w->rooms = with, w->elements += elements_of(pk->k, &w->kinds[i]);
            args += w->kinds[i].args, ins += pk->k->ins.n;
            if (!w->kinds[i].maps || pk->k->params) w->block_threads = pk->k->block_threads;
        }
        pass_by(w, pk);
    }
    sort_set(w);
}

/* Whether what nobody waits for takes far longer than launches do. Beside others these would be waited for; by themselves they
 * are a few launches more. (An H200, a training step of a transformer, in which gradients of weights are 1.3 GFLOP: beside
 * those of activations 405 us, behind them 379; of a small convolutional network, 42 MFLOP, 52 and 56.) */
static bool are_long(const plan *p, const bool *waited, const target *t) {
    enum { LAUNCHES = 8 };
    const machine *m = machine_row_of(t);
    double flops = 0;
    for (int i = 0; i < p->kernels.n; i++)
        if (!waited[i] && !p->kernels.at[i].k->params) flops += (double)p->kernels.at[i].k->flops;
    return flops >= LAUNCHES * m->start_ns * machine_gflops(m);
}

/* ---- writing ---- */

typedef struct joint {
    kernel *o;
    VEC(parg) args;
    bool *lent; /* [bufs of o] to the kernel at hand */
} joint;

/* As add_rooms. */
static int lend(joint *w, kbuf b) {
    for (int i = 0; i < w->o->bufs.n; i++) {
        kbuf *o = &w->o->bufs.at[i];
        if (w->lent[i] || !serves(o, &b)) continue;
        w->lent[i] = true;
        if (o->elems < b.elems) o->elems = b.elems;
        return i;
    }
    VEC_PUSH(w->o->a, &w->args, (parg){ -1 });
    w->lent[w->o->bufs.n] = true;
    return kernel_buf(w->o, b);
}

static int bind(joint *w, kbuf b, int32_t buf) {
    if (buf < 0) return lend(w, b);
    for (int i = 0; i < w->o->bufs.n; i++)
        if (w->args.at[i].buf == buf && w->o->bufs.at[i].dtype == b.dtype && w->o->bufs.at[i].elems == b.elems) return i;
    VEC_PUSH(w->o->a, &w->args, (parg){ buf });
    if (b.panels) b.panels_of = w->o->bufs.n;
    return kernel_buf(w->o, b);
}

static affine moved(arena *a, affine x, kvar by) {
    kterm *t = ARENA_ARRAY(a, kterm, x.n);
    for (int i = 0; i < x.n; i++) t[i] = (kterm){ x.t[i].var + by, x.t[i].coef };
    return (affine){ x.base, x.n, t };
}

static void add_kernel(joint *w, const pkernel *pk, ext grid_blocks, bool lone) {
    const kernel *k = pk->k;
    arena *a = w->o->a;
    kvar by = w->o->vars.n;
    reg from = (reg)w->o->ins.n - 1;
    int *buf = ARENA_ARRAY(a, int, k->bufs.n + 1), depth = 0;
    memset(w->lent, 0, sizeof *w->lent * (size_t)w->o->bufs.n);
    for (kvar v = 0; v < k->vars.n; v++) kernel_var_like(w->o, &k->vars.at[v]);
    for (int b = 0; b < k->bufs.n; b++) buf[b] = bind(w, k->bufs.at[b], pk->args[b].buf);
    if (lone) {
        kvar one = kernel_var(w->o, "g", 1, false, false);
        kins loop = {
            .op = K_LOOP, .var = one, .hi = 1, .step = 1, .par = PAR_BLOCKS, .n_blocks = 1, .first_block = w->o->grid_blocks
        };
        from = kernel_push(w->o, loop), depth = 1;
    }
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        in.a += in.a ? from : 0, in.b += in.b ? from : 0, in.c += in.c ? from : 0, in.dyn += in.dyn ? from : 0;
        if (in.op == K_LOOP) in.var += by;
        if (in.op == K_LOOP && depth++ == 0) in.n_blocks = grid_blocks, in.first_block = w->o->grid_blocks;
        if (in.op == K_END) depth--;
        if (kernel_has_buffer(&in)) in.buf = (uint16_t)buf[in.buf];
        in.idx = moved(a, in.idx, by);
        if (in.n_mask) in.mask = arena_copy(a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = moved(a, in.mask[m].e, by);
        kernel_push(w->o, in);
    }
    if (lone) build_ends(w->o, 1);
    w->o->grid_blocks = ext_add(w->o->params, w->o->grid_blocks, grid_blocks);
    w->o->flops += k->flops, w->o->bytes_read += k->bytes_read, w->o->bytes_written += k->bytes_written;
}

static pkernel join(const beside *w) {
    plan *p = w->p;
    const pkernel *last = &p->kernels.at[w->set[w->n - 1]];
    joint j = { .o = kernel_make(p->a, arena_printf(p->a, "%s_beside", last->k->name)) };
    pkernel to = { .k = j.o, .root = last->root };
    VEC(val) fused = { 0 };
    int n_bufs = 1;
    int64_t threads = 0;
    j.o->tiled = true, j.o->grid_blocks = 0, j.o->block_threads = w->block_threads;
    for (int i = 0; i < w->n; i++) {
        const kernel *k = p->kernels.at[w->set[i]].k;
        if (!w->block_threads && k->block_threads > j.o->block_threads) j.o->block_threads = k->block_threads;
        if (k->params) j.o->params = k->params;
        n_bufs += k->bufs.n, threads += k->params ? 0 : k->grid_blocks * k->block_threads;
    }
    /* elementwise work in small thread blocks, so that little of it keeps the machine busy: there is more of it now */
    while (!w->block_threads && 2 * j.o->block_threads <= w->t->block_threads &&
           threads / (2 * j.o->block_threads) >= w->t->resident_threads / FULL)
        j.o->block_threads *= 2;
    j.lent = ARENA_ARRAY(p->a, bool, n_bufs);
    for (int i = 0; i < w->n; i++) {
        const pkernel *pk = &p->kernels.at[w->set[i]];
        ext blocks = pk->k->grid_blocks;
        if (pk->k->block_threads != j.o->block_threads)
            blocks = (blocks * pk->k->block_threads + j.o->block_threads - 1) / j.o->block_threads;
        add_kernel(&j, pk, blocks, w->kinds[w->set[i]].lone);
        for (int f = 0; f < pk->n_fused; f++) VEC_PUSH(p->a, &fused, pk->fused[f]);
        if (i)
            VEC_PUSH(p->a, &p->decisions,
                     (why){ p->kernels.at[w->set[i - 1]].root, pk->root, true,
                            "neither needs the other: one launch, of which each has thread blocks of its own" });
    }
    to.args = j.args.at, to.fused = fused.at, to.n_fused = fused.n;
    return to;
}

/* Which code each has now: the first of its like that is still alone, or an equal launch of several. */
static void find_codes(beside *w) {
    plan *p = w->p;
    int *owner = ARENA_ARRAY(p->a, int, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) owner[i] = -1;
    for (int i = 0; i < p->kernels.n; i++) {
        if (w->now[i] < 0) continue;
        const pkernel *was = &p->kernels.at[i];
        pkernel *pk = &w->out.at[w->now[i]];
        if (owner[was->code] < 0) {
            owner[was->code] = w->now[i];
            const pkernel *first = &p->kernels.at[was->code];
            pk->scalar = first->scalar, pk->schedule = first->schedule, pk->tuned = first->tuned;
        }
        pk->code = owner[was->code];
    }
    for (int i = 0, known[MOST_BESIDE], n = 0; i < w->out.n; i++) {
        pkernel *pk = &w->out.at[i];
        if (pk->code >= 0) continue;
        pk->code = i;
        for (int j = 0; j < n && pk->code == i; j++)
            if (kernel_equal(w->out.at[known[j]].k, pk->k)) pk->code = known[j];
        if (pk->code == i && n < MOST_BESIDE) known[n++] = i;
    }
}

void fuse_horizontally(plan *p, const target *t) {
    beside w = { .p = p, .t = t };
    w.kinds = ARENA_ARRAY(p->a, kind, p->kernels.n + 1), w.taken = ARENA_ARRAY(p->a, bool, p->kernels.n + 1);
    w.written = ARENA_ARRAY(p->a, int, p->bufs.n + 1), w.read = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    w.made = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    w.set = ARENA_ARRAY(p->a, int, MOST_BESIDE), w.now = ARENA_ARRAY(p->a, int, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++)
        w.kinds[i] = kind_of(p->kernels.at[i].k, t), w.kinds[i].args = arguments(&p->kernels.at[i]);
    if (t->overlaps) w.waited = waited_for(p), w.apart = are_long(p, w.waited, t);
    for (int i = 0; i < p->kernels.n; i++) {
        w.now[i] = -1;
        if (w.taken[i]) continue;
        find_set(&w, i);
        if (w.n == 1) w.now[i] = w.out.n;
        pkernel pk = w.n > 1 ? join(&w) : p->kernels.at[i];
        if (w.n > 1) pk.code = -1;
        VEC_PUSH(p->a, &w.out, pk);
    }
    find_codes(&w);
    p->kernels.at = w.out.at, p->kernels.n = w.out.n, p->kernels.cap = w.out.cap;
}
