/* gpu_map.c - elementwise kernels for GPUs: a thread takes a vector of neighbouring elements; what is left over of a single
 * loop is dealt to the first threads.
 *
 * In: a scalar kernel whose outer loops hold plain instructions only. Out: a new kernel, or NULL when its memory cannot be
 * accessed in aligned vectors along the innermost loop, or it is too small for that. */
#include "kopt/gpu_copy.h"

/* Lanes along v that make all accesses which move with it aligned vectors of at most 16 bytes; else 1. */
static int lanes_along(const kernel *k, int from, int to, kvar v) {
    int size = 2;
    const bool *varies = gpu_varying(k, NULL, v);
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        int bytes = in->op == K_LOAD || in->op == K_STORE ? (int)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype) : 1;
        if (!gpu_is_plain(k, in) || (in->op == K_RANDOM && varies[in->a])) return 1;
        if (bytes > size && varies[i]) size = bytes;
    }
    int lanes = 16 / size;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_LOAD || in->op == K_STORE) && ((in->dyn && varies[in->dyn]) || !gpu_aligned(k, in, v, lanes)))
            return 1;
    }
    return lanes;
}

kernel *kopt_gpu_map(const kernel *k, int n_outer, const target *t) {
    if (n_outer < 1 || k->vars.n > 50) return NULL;
    int from = 1 + n_outer, to = k->ins.n - n_outer, group = t->group < 256 ? t->group : 256;
    kvar v = k->ins.at[n_outer].var;
    int lanes = lanes_along(k, from, to, v);
    int64_t along = k->vars.at[v].extent / lanes, all = along, left = k->vars.at[v].extent % lanes;
    if (lanes == 1 || (left && n_outer > 1)) return NULL;
    for (int i = 1; i < n_outer; i++) all *= k->ins.at[i].hi;
    if (all < t->grid / 8) return NULL;
    kernel *o = gpu_kernel(k, group);
    for (int i = 1; i < n_outer; i++) {
        kins in = k->ins.at[i];
        in.par = PAR_GRID;
        kernel_push(o, in);
    }
    kvar vector = kernel_var(o, "v", along, false, false);
    kernel_push(o, (kins){ .op = K_LOOP, .var = vector, .hi = along, .step = 1, .par = PAR_GRID });
    gpu_copier c = { k, o, ARENA_ARRAY(k->a, reg, k->ins.n) };
    gpu_places p = { .along = v, .lanes = lanes, .varies = gpu_varying(k, NULL, v) };
    gpu_put(&p, v, affine_scale(k->a, affine_var(k->a, vector), lanes));
    for (int i = from; i < to; i++) gpu_copy(&c, i, &p);
    for (int i = 0; i < n_outer; i++) kernel_push(o, (kins){ .op = K_END });
    if (left) {
        kvar rest = kernel_var(o, "rest", left, false, false);
        gpu_places scalar = { .along = v, .lanes = 1, .varies = p.varies };
        kernel_push(o, (kins){ .op = K_LOOP, .var = rest, .hi = left, .step = 1, .par = PAR_GRID });
        gpu_put(&scalar, v, affine_offset(affine_var(k->a, rest), along * lanes));
        for (int i = from; i < to; i++) gpu_copy(&c, i, &scalar);
        kernel_push(o, (kins){ .op = K_END });
    }
    o->groups = (all + group - 1) / group;
    return o;
}
