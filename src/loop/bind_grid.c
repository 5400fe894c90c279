/* bind_grid.c - binds the outer loops to the threads of a GPU: each iteration is a thread's, whatever stands inside. Where the
 * innermost of them is vectorized (vectorize.c), a thread has a vector of neighbouring elements; what is left over of a single
 * loop, the first threads have.
 *
 * In: scalar form. Out: the form of a GPU. Vectors need elementwise work whose memory can be accessed in aligned vectors along
 * the innermost outer loop. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_VARS = 50 };

bool gpu_grid_lanes(const kernel *k, int64_t lanes, str *why) {
    int n_outer = gpu_outer_loops(k);
    if (n_outer < 1) return step_refuse(why, "no loop of independent iterations holds the whole kernel");
    if (k->vars.n > MOST_VARS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_VARS);
    int from = 1 + n_outer, to = k->ins.n - n_outer;
    kvar v = k->ins.at[n_outer].var;
    const char *name = k->vars.at[v].name;
    if (k->vars.at[v].extent % lanes && n_outer > 1)
        return step_refuse(why, "%lld iterations of %s do not come out in vectors of %lld", (long long)k->vars.at[v].extent,
                           name, (long long)lanes);
    const bool *varies = gpu_varying(k, NULL, v);
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        bool memory = in->op == K_LOAD || in->op == K_STORE;
        if (!gpu_is_plain(k, in)) return step_refuse(why, "instruction %%%d is no elementwise work", i);
        if (in->op == K_RANDOM && varies[in->a])
            return step_refuse(why, "the random numbers of %%%d have counters of their own", i);
        if (memory && ((in->dyn && varies[in->dyn]) || !gpu_aligned(k, in, v, (int)lanes)))
            return step_refuse(why, "b%d cannot be accessed in aligned vectors of %lld along %s", in->buf, (long long)lanes,
                               name);
    }
    return true;
}

/* Elements of the nest: what is loaded comes before all that is stored, unless that is read again, so that a thread waits for
 * memory once: a compiler does not know that buffers lie apart. */
static void copy_elements(build_copier *c, const kernel *k, int from, int to, const build_places *p) {
    for (int stores = 0; stores < 2; stores++)
        for (int i = from; i < to; i++) {
            bool last = k->ins.at[i].op == K_STORE;
            for (int j = i + 1; j < to && last; j++)
                last = (k->ins.at[j].op != K_LOAD && k->ins.at[j].op != K_STORE) || k->ins.at[j].buf != k->ins.at[i].buf;
            if (last == (stores == 1)) build_copy(c, i, p);
        }
}

/* Vectors of the innermost outer loop, and what is left over of it. */
static kernel *bind_vectors(const kernel *k, int n_outer, int lanes, int block_threads) {
    int from = 1 + n_outer, to = k->ins.n - n_outer;
    kvar v = k->ins.at[n_outer].var;
    int64_t along = k->vars.at[v].extent / lanes, all = along, left = k->vars.at[v].extent % lanes;
    for (int i = 1; i < n_outer; i++) all *= k->ins.at[i].hi;
    kernel *o = gpu_kernel(k, block_threads);
    for (int i = 1; i < n_outer; i++) {
        kins in = k->ins.at[i];
        in.par = PAR_GRID_THREADS;
        kernel_push(o, in);
    }
    kvar vector = build_loop(o, "v", along, PAR_GRID_THREADS);
    o->vars.at[v].role.lanes = 1;
    build_copier c = build_copier_make(k, o);
    build_places p = { .along = v, .lanes = lanes, .varies = gpu_varying(k, NULL, v) };
    build_put(&p, v, build_times(k->a, vector, lanes));
    copy_elements(&c, k, from, to, &p);
    build_ends(o, n_outer);
    if (left) {
        kvar rest = build_loop(o, "rest", left, PAR_GRID_THREADS);
        build_places scalar = { .along = v, .lanes = 1, .varies = p.varies };
        build_put(&scalar, v, affine_offset(affine_var(k->a, rest), along * lanes));
        copy_elements(&c, k, from, to, &scalar);
        build_ends(o, 1);
    }
    o->grid_blocks = (all + block_threads - 1) / block_threads;
    return o;
}

bool step_bind_grid(kernel **kk, const loop_step *s, str *why) {
    kernel *k = gpu_compacted(*kk);
    int n_outer = gpu_outer_loops(k), block_threads = (int)s->arg[0].n;
    if (n_outer < 1) return step_refuse(why, "no loop of independent iterations holds the whole kernel");
    kvar v = k->ins.at[n_outer].var;
    int lanes = k->vars.at[v].role.lanes;
    if (!gpu_can_bind(k, v, s->arg[0].n, why)) return false;
    if (k->vars.at[v].role.unroll > 1)
        return step_refuse(why, "loop %s is unrolled, which this step does not write", k->vars.at[v].name);
    if (lanes > 1) {
        if (!gpu_grid_lanes(k, lanes, why)) return false;
        *kk = bind_vectors(k, n_outer, lanes, block_threads);
        return true;
    }
    int64_t n = 1;
    for (int i = 1; i <= n_outer; i++) k->ins.at[i].par = PAR_GRID_THREADS, n *= k->ins.at[i].hi - k->ins.at[i].lo;
    k->block_threads = block_threads, k->grid_blocks = n < 1 ? 1 : (n + block_threads - 1) / block_threads;
    k->par_var = -1, k->tiled = true;
    *kk = k;
    return true;
}
