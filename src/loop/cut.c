/* cut.c - implementation of cut.h. All memory is of the scalar kernel's arena; sizes that are computed here are more rows of
 * its table. */
#include "loop/cut.h"
#include "loop/build.h"
#include "loop/gpu_bind.h"

/* Each store fills its buffer row by row: it has as many elements as rows of the loop, so far apart. */
static bool fills_rows(const kernel *k, const kins *store, kvar v) {
    const kbuf *b = &k->bufs.at[store->buf];
    if (kbuf_is_local(b)) return true;
    ext row = affine_coef(store->idx, v);
    return store->op == K_STORE && !store->dyn && row > 0 && ext_is_lit(row) &&
           ext_mul(k->params, k->vars.at[v].extent, row) == b->elems;
}

kernel *loop_most(const kernel *k) {
    const kins *loop = &k->ins.at[1];
    if (!gpu_outer_loops(k) || loop->lo != 0 || ext_is_lit(loop->hi) || loop->hi != k->vars.at[loop->var].extent) return NULL;
    if (build_other_params(k, loop->var) || ext_hi(k->params, loop->hi) == INT64_MAX) return NULL;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_STORE || in->op == K_SCATTER) && !fills_rows(k, in, loop->var)) return NULL;
    }
    return (kernel *)(uintptr_t)kernel_at_most(k, k->a); /* a copy, as it has parameters */
}

/* ---- what a schedule made of it, cut ---- */

static bool is_cut(const kernel *o, const kins *in) {
    return kernel_touches(in) && !kbuf_is_local(&o->bufs.at[in->buf]) && !ext_is_lit(o->bufs.at[in->buf].elems);
}

/* How many iterations of the loop at `head` reach what there is; its own number where one has to do them all. */
static ext reached(const kernel *o, int head) {
    const kins *loop = &o->ins.at[head];
    ext most = 0;
    for (int i = head + 1; i < kernel_loop_end(o, head); i++) {
        const kins *in = &o->ins.at[i];
        if ((in->op != K_STORE && in->op != K_SCATTER) || kbuf_is_local(&o->bufs.at[in->buf])) continue;
        int64_t row = affine_coef(in->idx, loop->var);
        if (!is_cut(o, in) || row < 1 || in->idx.base < 0 || in->lane_stride < 0) return loop->hi;
        for (int t = 0; t < in->idx.n; t++)
            if (in->idx.t[t].coef < 0) return loop->hi;
        ext n = ext_ceil_div(o->params, o->bufs.at[in->buf].elems, row);
        most = most ? ext_max(o->params, most, n) : n;
    }
    return most && loop->lo == 0 ? ext_min(o->params, most, loop->hi) : loop->hi;
}

/* The nests of the grid end with the last row. */
static void cut_grid(kernel *o) {
    ext blocks = 0;
    int nests = 0, of_blocks = 0;
    for (int i = 1; i < o->ins.n; i++) {
        kpar par = (kpar)o->ins.at[i].par;
        if (o->ins.at[i].op != K_LOOP) continue;
        if (par == PAR_GRID_THREADS || par == PAR_BLOCKS) nests++, of_blocks += par == PAR_BLOCKS;
        i = kernel_loop_end(o, i);
    }
    if (o->cluster || !nests || (of_blocks && nests > 1)) return;
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (in->op != K_LOOP) continue;
        int end = kernel_loop_end(o, i);
        ext n = 0;
        if (in->par == PAR_GRID_THREADS || in->par == PAR_BLOCKS)
            in->hi = reached(o, i), n = ext_sub(o->params, in->hi, in->lo);
        for (int l = kernel_nest(o, (reg)i) - 1; l > 0; l--) n = ext_mul(o->params, n, in[l].hi - in[l].lo);
        if (in->par == PAR_GRID_THREADS) n = ext_ceil_div(o->params, n, o->block_threads);
        blocks = blocks ? ext_max(o->params, blocks, n) : n;
        i = end;
    }
    o->grid_blocks = of_blocks ? blocks : ext_min(o->params, blocks, o->grid_blocks);
}

kernel *loop_cut(const kernel *k, const kernel *made) {
    kernel *o = kernel_clone(made, k->a);
    o->params = k->params;
    for (int b = 0; b < k->bufs.n; b++)
        if (!kbuf_is_local(&o->bufs.at[b])) o->bufs.at[b].elems = k->bufs.at[b].elems;
    for (int i = 1; i < o->ins.n; i++) {
        kins *in = &o->ins.at[i];
        if (!is_cut(o, in) || in->op == K_PREFETCH) continue;
        if ((in->op != K_LOAD && in->op != K_STORE) || in->dyn || in->packed) return NULL;
        if (in->op == K_LOAD && !in->n_mask) in->imm = 0, in->imm_int = 0;
        build_mask(k->a, in, in->idx, 0, o->bufs.at[in->buf].elems);
        in->mask_lane[in->n_mask - 1] = in->lanes > 1 ? in->lane_stride : 0;
    }
    cut_grid(o);
    return o;
}

/* ---- all others ---- */

/* The kernel inside of a loop of one iteration. */
static kernel *inside_one(const kernel *k) {
    kernel *o = gpu_kernel(k, 0);
    kvar one = kernel_var(o, "one", 1, false, false);
    o->params = k->params;
    kernel_push(o, (kins){ .op = K_LOOP, .var = one, .hi = 1, .step = 1 });
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        in.a += in.a ? 1 : 0, in.b += in.b ? 1 : 0, in.c += in.c ? 1 : 0, in.dyn += in.dyn ? 1 : 0;
        kernel_push(o, in);
    }
    build_ends(o, 1);
    return o;
}

kernel *loop_bind_params(const kernel *k, int block_threads, int64_t threads) {
    kernel *o = gpu_compacted(kernel_clone(k, k->a));
    int n_outer = gpu_outer_loops(o);
    if (!n_outer) o = inside_one(o), n_outer = 1;
    ext n = 1;
    for (int i = 1; i <= n_outer; i++) {
        kins *in = &o->ins.at[i];
        in->par = PAR_GRID_THREADS;
        n = ext_mul(o->params, n, ext_sub(o->params, in->hi, in->lo));
    }
    int64_t most = threads / block_threads;
    o->grid_blocks = ext_min(o->params, ext_ceil_div(o->params, n, block_threads), most < 1 ? 1 : most);
    o->block_threads = block_threads, o->par_var = -1, o->tiled = true;
    return o;
}
