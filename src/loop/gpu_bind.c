/* gpu_bind.c - see gpu_bind.h. All memory is of the scalar kernel's arena. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

bool gpu_uses(const kins *in, kvar v) {
    if (affine_coef(in->idx, v)) return true;
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) return true;
    return false;
}

bool gpu_any_uses(const kernel *k, const bool *among, kvar v) {
    for (int i = 1; i < k->ins.n; i++)
        if (among[i] && gpu_uses(&k->ins.at[i], v)) return true;
    return false;
}

bool gpu_lies_along(const kernel *k, const bool *among, kvar v) {
    for (int i = 1; i < k->ins.n; i++) {
        int64_t apart = among[i] && k->ins.at[i].op == K_LOAD ? affine_coef(k->ins.at[i].idx, v) : 0;
        if (apart == 1 || apart == -1) return true;
    }
    return false;
}

bool gpu_any_vectors(const kernel *k, const bool *among, kvar v, int lanes) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (among[i] && in->op == K_LOAD && (in->dyn || !gpu_aligned(k, in, v, lanes))) return false;
    }
    return ext_divisor(k->params, k->vars.at[v].extent) % lanes == 0;
}

bool *gpu_varying(const kernel *k, const bool *among, kvar v) {
    bool *varies = ARENA_ARRAY(k->a, bool, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (among && !among[i]) continue;
        varies[i] = gpu_uses(in, v) || build_takes_any(in, varies);
    }
    return varies;
}

void gpu_mark_varying(const kernel *k, int from, int to, kvar v, bool *varies) {
    for (int i = from; i < to; i++) varies[i] |= gpu_uses(&k->ins.at[i], v) || build_takes_any(&k->ins.at[i], varies);
}

bool gpu_aligned(const kernel *k, const kins *original, kvar v, int lanes) {
    kins in = *original;
    affine wide = build_times(k->a, v, lanes);
    if (!gpu_uses(&in, v)) return true;
    in.lanes = (uint8_t)lanes, in.lane_stride = affine_coef(in.idx, v);
    in.idx = build_set(k, in.idx, v, wide);
    in.mask_lane = ARENA_ARRAY(k->a, int64_t, in.n_mask + 1);
    in.mask = ARENA_ARRAY(k->a, kmask, in.n_mask + 1);
    for (int m = 0; m < in.n_mask; m++) {
        const kmask *old = &original->mask[m];
        in.mask_lane[m] = affine_coef(old->e, v);
        in.mask[m] = (kmask){ build_set(k, old->e, v, wide), old->lo, old->hi };
    }
    return kernel_aligned(k, &in, lanes);
}

kernel *gpu_kernel(const kernel *k, int block_threads) {
    kernel *o = kernel_make(k->a, k->name);
    o->vars.at = k->vars.at, o->vars.n = k->vars.n, o->vars.cap = k->vars.n; /* grows into memory of its own */
    o->bufs.at = k->bufs.at, o->bufs.n = k->bufs.n, o->bufs.cap = k->bufs.n;
    o->flops = k->flops, o->bytes_read = k->bytes_read, o->bytes_written = k->bytes_written;
    o->block_threads = block_threads, o->grid_blocks = 1, o->tiled = true;
    return o;
}

int gpu_open_rows(const kernel *k, kernel *o, int n, kvar but, kvar nor) {
    int opened = 0;
    for (int i = 1; i <= n; i++) {
        kins in = k->ins.at[i];
        if (in.var == but || in.var == nor) continue;
        in.par = PAR_BLOCKS;
        o->grid_blocks =
            o->params ? ext_mul(o->params, o->grid_blocks, ext_sub(o->params, in.hi, in.lo)) : o->grid_blocks * (in.hi - in.lo);
        kernel_push(o, in);
        opened++;
    }
    return opened;
}

affine gpu_open_pieces(kernel *o, int64_t n, int64_t piece) {
    int64_t pieces = (n + piece - 1) / piece;
    o->grid_blocks *= pieces;
    return build_times(o->a, build_loop(o, "g", pieces, PAR_BLOCKS), piece);
}

bool gpu_is_plain(const kernel *k, const kins *in) {
    bool memory = in->op == K_LOAD || in->op == K_STORE;
    return memory ? !kbuf_is_local(&k->bufs.at[in->buf]) : kernel_is_pure(in);
}

int gpu_widest(const kernel *k) {
    enum { FIRST_CACHE = 32 << 10 };
    int size[2] = { 0 }; /* of what moves with the innermost loop alone, and comes from the first cache; of the rest */
    kvar inner = -1;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) inner = in->var;
        if ((in->op != K_LOAD && in->op != K_STORE) || kbuf_is_local(&k->bufs.at[in->buf])) continue;
        int bytes = (int)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype);
        int *most = &size[in->idx.n > 1 || k->bufs.at[in->buf].elems * bytes > FIRST_CACHE];
        if (inner >= 0 && bytes > *most && gpu_uses(in, inner)) *most = bytes;
    }
    int widest = size[1] ? size[1] : size[0];
    return widest == 0 ? 4 : widest < 2 ? 2 : widest;
}

int gpu_outer_loops(const kernel *k) {
    int n = 0;
    while (1 + n < k->ins.n && k->ins.at[1 + n].op == K_LOOP && !k->vars.at[k->ins.at[1 + n].var].reduce &&
           kernel_loop_end(k, 1 + n) == k->ins.n - 1 - n)
        n++;
    return n;
}

bool gpu_may_be_empty(const kernel *k, int i) {
    ext n = k->ins.at[i].hi;
    return (i <= gpu_outer_loops(k) ? ext_hi(k->params, n) : ext_lo(k->params, n)) < 1;
}

int gpu_perfect_loops(const kernel *k, int i) {
    int n = 0, end = k->ins.at[i].op == K_LOOP ? kernel_loop_end(k, i) : i;
    while (k->ins.at[i + n].op == K_LOOP && k->vars.at[k->ins.at[i + n].var].reduce == k->vars.at[k->ins.at[i].var].reduce &&
           kernel_loop_end(k, i + n) == end - n)
        n++;
    return n;
}

bool gpu_has_threads(const kernel *k) {
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].threads || k->vars.at[v].steps || k->vars.at[v].matrix) return true;
    return false;
}

bool gpu_can_bind(const kernel *k, kvar but, int64_t threads, str *why) {
    if (threads > GPU_MOST_THREADS || !gpu_is_power(threads))
        return step_refuse(why, "%lld threads: expected a power of two up to %d", (long long)threads, GPU_MOST_THREADS);
    for (kvar v = 0; v < k->vars.n; v++)
        if (v != but && (k->vars.at[v].role.lanes > 1 || k->vars.at[v].role.unroll > 1))
            return step_refuse(why, "loop %s is vectorized or unrolled, which this step does not write", k->vars.at[v].name);
    if (gpu_has_threads(k)) return step_refuse(why, "loops are bound to threads already, which tile writes");
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && (in->step != 1 || in->par))
            return step_refuse(why, "loop %s is cut or bound already", k->vars.at[in->var].name);
    }
    return true;
}

static bool is_by_rows(const kernel *k, const kins *in) {
    if (!loop_is_local(k, in)) return false;
    for (int x = 0; x < in->idx.n; x++)
        if (k->vars.at[in->idx.t[x].var].row) return true;
    return false;
}

kernel *gpu_compacted(kernel *k) {
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) any |= is_by_rows(k, &k->ins.at[i]);
    if (!any) return k;
    k = kernel_clone(k, k->a);
    for (int i = 1; i < k->ins.n; i++) {
        if (!is_by_rows(k, &k->ins.at[i])) continue;
        for (kvar v = 0; v < k->vars.n; v++)
            if (k->vars.at[v].row) k->ins.at[i].idx = affine_set_var(k->a, k->ins.at[i].idx, v, affine_const(0));
    }
    return k;
}
