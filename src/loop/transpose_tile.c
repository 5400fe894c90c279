/* transpose_tile.c - elementwise kernels that read across what they write (transposes, permutes): through shared memory, so
 * that neighbouring threads of a GPU are neighbours in memory on both sides.
 *
 * In: scalar form, whose outer loops hold elementwise work only, some loads of which lie along another loop than the innermost
 * one. Out: the form of a GPU. A thread block has a square of both loops: first the loads along their own loop, then, after a
 * barrier, everything along the innermost one. Reading, barrier and writing are one step, because which load stands before the
 * barrier follows from the two loops alone. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum {
    MOST_LANES = 8,
    MOST_VARS = 50,
    LEAST_SIDE = 2,
    MOST_SIDE = 256,
    MOST_CHUNKS = 64 /* pieces of a square that one thread writes out */
};

typedef struct transposer {
    const kernel *k;
    int n_outer, from, to;
    kvar u, v; /* the loop that turned loads lie along; the innermost */
    int transposed[GPU_MOST_TRANSPOSED], n_transposed, buf[GPU_MOST_TRANSPOSED];
    int lanes;
    int64_t side, pitch; /* of the square */
    int across, down;    /* threads */
} transposer;

/* The loop, other than the innermost, along which the load lies; -1: none. */
static kvar lies_along(const kernel *k, int n_outer, const kins *in) {
    for (int i = 1; i < n_outer; i++)
        if (affine_coef(in->idx, k->ins.at[i].var) == 1) return k->ins.at[i].var;
    return -1;
}

int gpu_transposed_loads(const kernel *k, kvar *u, int at[GPU_MOST_TRANSPOSED], str *why) {
    int n_outer = gpu_outer_loops(k), n = 0;
    *u = -1;
    if (n_outer < 2) return step_refuse(why, "there are not two loops of independent iterations that hold the whole kernel");
    kvar v = k->ins.at[n_outer].var;
    for (int i = 1 + n_outer; i < k->ins.n - n_outer; i++) {
        const kins *in = &k->ins.at[i];
        if (!gpu_is_plain(k, in)) return step_refuse(why, "instruction %%%d is no elementwise work", i);
        int64_t apart = affine_coef(in->idx, v);
        if (in->op == K_STORE && apart != 1)
            return step_refuse(why, "b%d is not written along %s", in->buf, k->vars.at[v].name);
        if (in->op != K_LOAD || apart == 0 || apart == 1) continue;
        kvar along = lies_along(k, n_outer, in);
        if (along < 0 || (*u >= 0 && along != *u) || in->dyn || n == GPU_MOST_TRANSPOSED)
            return step_refuse(why, "load %%%d does not lie along one loop, the same for all that lie across", i);
        if (k->bufs.at[in->buf].kind != KB_IN) return step_refuse(why, "another thread may write what %%%d reads", i);
        *u = along, at[n++] = i;
    }
    if (!n) step_refuse(why, "no load lies across what is written");
    return n;
}

bool gpu_transposed_lanes(const kernel *k, int64_t lanes, str *why) {
    kvar u, v = k->ins.at[gpu_outer_loops(k)].var;
    int transposed[GPU_MOST_TRANSPOSED], n = gpu_transposed_loads(k, &u, transposed, why), next = 0;
    if (!n) return false;
    if (k->vars.at[u].extent % lanes || k->vars.at[v].extent % lanes)
        return step_refuse(why, "the loops do not come out in vectors of %lld", (long long)lanes);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_RANDOM) return step_refuse(why, "random numbers are not made in vectors here");
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        bool across = next < n && transposed[next] == i;
        next += across;
        if (in->dyn || !gpu_aligned(k, in, across ? u : v, (int)lanes))
            return step_refuse(why, "b%d cannot be accessed in aligned vectors of %lld", in->buf, (long long)lanes);
    }
    return true;
}

/* Where chunk c of a thread is: `fast` counts along neighbours, `slow` across. */
typedef struct spot {
    affine fast, slow;
} spot;
static spot spot_of(const transposer *w, arena *a, kvar y, kvar x, int c) {
    return (spot){ build_times(a, x, w->lanes), affine_offset(affine_var(a, y), (int64_t)c * w->down) };
}

static build_places places_at(const transposer *w, arena *a, affine u0, affine v0, affine u, affine v, kvar along) {
    build_places p = { .along = along, .lanes = w->lanes };
    u = affine_add(a, u0, u), v = affine_add(a, v0, v);
    build_put(&p, w->u, u), build_put(&p, w->v, v);
    if (w->k->vars.at[w->u].extent % w->side) build_bound(&p, u, w->k->vars.at[w->u].extent, along == w->u);
    if (w->k->vars.at[w->v].extent % w->side) build_bound(&p, v, w->k->vars.at[w->v].extent, along == w->v);
    return p;
}

/* The turned loads, along u, to shared memory: element (u, v) of the square is at u * pitch + v. */
static void write_loads(transposer *w, kernel *o, affine u0, affine v0, kvar y, kvar x) {
    arena *a = o->a;
    build_copier c = build_copier_make(w->k, o);
    bool *varies = gpu_varying(w->k, NULL, w->u);
    for (int n = 0; n < w->side / w->down; n++)
        for (int i = 0; i < w->n_transposed; i++) {
            spot s = spot_of(w, a, y, x, n);
            build_places p = places_at(w, a, u0, v0, s.fast, s.slow, w->u);
            p.varies = varies;
            reg r = build_copy(&c, w->transposed[i], &p);
            reg store = build_store(o, w->buf[i], affine_add(a, affine_scale(a, s.fast, w->pitch), s.slow), r);
            o->ins.at[store].lane_stride = w->lanes > 1 ? w->pitch : 0;
        }
}

static void write_rest(transposer *w, kernel *o, affine u0, affine v0, kvar y, kvar x) {
    arena *a = o->a;
    bool *varies = gpu_varying(w->k, NULL, w->v);
    for (int n = 0; n < w->side / w->down; n++) {
        build_copier c = build_copier_make(w->k, o);
        spot s = spot_of(w, a, y, x, n);
        build_places p = places_at(w, a, u0, v0, s.slow, s.fast, w->v);
        p.varies = varies;
        for (int i = w->from; i < w->to; i++) {
            int transposed = 0;
            while (transposed < w->n_transposed && w->transposed[transposed] != i) transposed++;
            if (transposed == w->n_transposed) {
                build_copy(&c, i, &p);
                continue;
            }
            affine place = affine_add(a, affine_scale(a, s.slow, w->pitch), s.fast);
            c.to[i] = build_load(o, w->buf[transposed], place, w->lanes);
        }
    }
}

/* Loops over the squares, and over the threads of one; returns how many are open. */
static int open_squares(transposer *w, kernel *o, affine first[2], kvar thread[2]) {
    int opened = 4 + gpu_open_rows(w->k, o, w->n_outer, w->u, w->v);
    for (int x = 0; x < 2; x++) first[x] = gpu_open_pieces(o, w->k->vars.at[x ? w->v : w->u].extent, w->side);
    thread[0] = build_loop(o, "y", w->down, PAR_BLOCK_THREADS), thread[1] = build_loop(o, "x", w->across, PAR_BLOCK_THREADS);
    return opened;
}

static kernel *write_squares(transposer *w) {
    const kernel *k = w->k;
    kernel *o = gpu_kernel(k, w->across * w->down);
    affine first[2];
    kvar thread[2];
    for (int i = 0; i < w->n_transposed; i++) {
        w->buf[i] = gpu_shared_buffer(o, k->ins.at[w->transposed[i]].dtype, w->side * w->pitch);
    }
    int opened = open_squares(w, o, first, thread);
    write_loads(w, o, first[0], first[1], thread[0], thread[1]);
    build_barrier(o);
    write_rest(w, o, first[0], first[1], thread[0], thread[1]);
    build_ends(o, opened);
    return o;
}

bool step_transpose_tile(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = *kk;
    int64_t side = s->arg[2].n, lanes = step_option(s, "lanes", 1), threads = step_option(s, "threads", 256);
    transposer w = { .k = k, .n_outer = gpu_outer_loops(k), .u = step_loop(k, s, 0, why), .v = step_loop(k, s, 1, why) };
    kvar along;
    if (w.u < 0 || w.v < 0 || !gpu_can_bind(k, -1, threads, why)) return false;
    if (k->vars.n > MOST_VARS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_VARS);
    if (!(w.n_transposed = gpu_transposed_loads(k, &along, w.transposed, why))) return false;
    if (along != w.u || k->ins.at[w.n_outer].var != w.v)
        return step_refuse(why, "what is read lies along %s, what is written along %s", k->vars.at[along].name,
                           k->vars.at[k->ins.at[w.n_outer].var].name);
    if (side < LEAST_SIDE || side > MOST_SIDE || !gpu_is_power(side))
        return step_refuse(why, "a tile of %lld: expected a power of two from %d to %d", (long long)side, LEAST_SIDE,
                           MOST_SIDE);
    if (!gpu_is_power(lanes) || lanes > MOST_LANES)
        return step_refuse(why, "vectors of %lld: expected a power of two up to %d", (long long)lanes, MOST_LANES);
    if (lanes > 1 && !gpu_transposed_lanes(k, lanes, why)) return false;
    w.from = 1 + w.n_outer, w.to = k->ins.n - w.n_outer, w.lanes = (int)lanes, w.side = side, w.pitch = side + 1;
    w.across = (int)(side / lanes), w.down = w.across ? (int)(threads / w.across) : 0;
    if (w.across < 1 || w.down < 1 || side % w.down || side / w.down > MOST_CHUNKS)
        return step_refuse(why, "%lld threads do not share out a tile of %lld x %lld in vectors of %lld", (long long)threads,
                           (long long)side, (long long)side, (long long)lanes);
    *kk = write_squares(&w);
    return true;
}
