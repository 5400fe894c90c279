/* coarsen.c - block coarsening: a thread block does the work of n neighbouring ones at once, and loads once what they share.
 *
 * In and out: the form of a GPU. Each keeps its order of sums, so that no bit changes. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST = 16 };

/* The last of the loops over thread blocks; 0: there is none, or the kernel is several side by side. */
static int last_blocks(const kernel *k) {
    int at = 0;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op == K_LOOP && k->ins.at[i].par == PAR_BLOCKS; i++) at = i;
    return at && kernel_loop_end(k, 1) == k->ins.n - 1 ? at : 0;
}

/* Instructions that differ along v; sums do where what is added does. */
static bool *varying(const kernel *k, kvar v) {
    bool *varies = ARENA_ARRAY(k->a, bool, k->ins.n), more = true;
    while (more) {
        more = false;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            bool does = gpu_uses(in, v) || build_takes_any(in, varies);
            if (does && (in->op == K_UPD || in->op == K_ARGUPD) && !varies[in->c]) varies[in->c] = more = true;
            if (does && !varies[i]) varies[i] = more = true;
        }
    }
    return varies;
}

static bool can_coarsen(const kernel *k, int at, int64_t n, const bool *varies, str *why) {
    const kins *loop = &k->ins.at[at];
    if (n < 2 || n > MOST) return step_refuse(why, "%lld thread blocks: expected 2 to %d", (long long)n, MOST);
    if (loop->lo != 0 || !ext_is_lit(loop->hi) || loop->hi % n)
        return step_refuse(why, "iterations of %s do not come out in pieces of %lld", k->vars.at[loop->var].name, (long long)n);
    if (!ext_is_lit(k->grid_blocks)) return step_refuse(why, "a run gives the number of thread blocks");
    if (k->cluster || k->turns) return step_refuse(why, "thread blocks are in clusters, or take turns");
    for (int b = 0; b < k->bufs.n; b++)
        if (kbuf_is_local(&k->bufs.at[b]) && k->bufs.at[b].elems) return step_refuse(why, "b%d is a thread block's own", b);
    for (int i = at + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_SCATTER || in->op == K_MMA || in->op == K_ASYNC || in->op == K_ARGUPD)
            return step_refuse(why, "instruction %%%d is of one thread block", i);
        if (in->op == K_LOOP && varies[i]) return step_refuse(why, "loop %s is another in each", k->vars.at[in->var].name);
    }
    return true;
}

bool step_coarsen(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int64_t n = s->arg[0].n;
    int at = last_blocks(k);
    if (!at) return step_refuse(why, "the kernel has no loop over thread blocks that holds all of it");
    kvar v = k->ins.at[at].var;
    const bool *varies = varying(k, v);
    if (!can_coarsen(k, at, n, varies, why)) return false;
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1, o->grid_blocks /= n;
    build_copier *c = ARENA_ARRAY(k->a, build_copier, n);
    build_places *p = ARENA_ARRAY(k->a, build_places, n);
    kvar piece = kernel_var(o, "c", k->ins.at[at].hi / n, k->vars.at[v].row, false);
    for (int64_t j = 0; j < n; j++) {
        c[j] = build_copier_make(k, o);
        build_put(&p[j], v, affine_offset(build_times(k->a, piece, n), j));
    }
    for (int i = 1; i < k->ins.n; i++) {
        if (i == at) {
            kins loop = k->ins.at[i];
            loop.var = piece, loop.hi /= n;
            kernel_push(o, loop);
            continue;
        }
        build_copy(&c[0], i, &p[0]);
        for (int64_t j = 1; j < n; j++) {
            c[j].to[i] = c[0].to[i];
            if (varies[i]) build_copy(&c[j], i, &p[j]);
        }
    }
    *kk = o;
    return true;
}
