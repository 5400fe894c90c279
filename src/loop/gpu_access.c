/* gpu_access.c - how the threads of a GPU kernel lie in memory: what the 32 that run together touch with one access.
 *
 * In: a kernel in the form of a GPU. Out: its different accesses to buffers outside the kernel. Exact for the first 32 threads
 * of a nest, with all other variables at their beginning and buffers that begin at a sector. */
#include "loop/gpu_access.h"

enum {
    TOGETHER = 32 /* threads that run in step */,
    LANES = 16 /* of each, at most */,
    SECTOR = 32 /* bytes that memory moves at least */
};

typedef struct counter {
    const kernel *k;
    int head, n_loops; /* the parallel nest that deals iterations to neighbouring threads; head 0: none */
} counter;

/* Element of thread t, by the nest's variables: the innermost runs fastest. */
static int64_t element(const counter *c, const kins *in, int64_t t) {
    affine x = in->idx;
    int64_t e = x.base;
    for (int i = 0; i < x.n; i++) { /* others are at their first iteration */
        for (int l = 1; l < c->k->ins.n; l++)
            if (c->k->ins.at[l].op == K_LOOP && c->k->ins.at[l].var == x.t[i].var) {
                e += x.t[i].coef * c->k->ins.at[l].lo;
                break;
            }
    }
    for (int i = c->n_loops - 1; i >= 0 && c->head; i--) {
        const kins *loop = &c->k->ins.at[c->head + i];
        int64_t n = loop->hi - loop->lo;
        if (n > 0) e += affine_coef(x, loop->var) * (t % n), t /= n;
    }
    return e;
}

static int add_new(int64_t *set, int n, int64_t x) {
    for (int i = 0; i < n; i++)
        if (set[i] == x) return n;
    set[n] = x;
    return n + 1;
}

static gpu_access measure(const counter *c, const kins *in, int64_t *elements, int64_t *sectors) {
    const kbuf *b = &c->k->bufs.at[in->buf];
    int64_t size = (int64_t)dtype_size((tn_dtype)b->dtype);
    int n_elements = 0, n_sectors = 0;
    int64_t threads = c->head ? kernel_nest_size(c->k, (reg)c->head) : 1;
    if (threads > c->k->block_threads) threads = c->k->block_threads;
    if (threads > TOGETHER) threads = TOGETHER;
    for (int64_t t = 0; t < threads; t++) {
        int64_t first = element(c, in, t);
        for (int lane = 0; lane < in->lanes && lane < LANES; lane++) {
            int64_t e = first + lane * in->lane_stride, byte = e * size;
            n_elements = add_new(elements, n_elements, e);
            n_sectors = add_new(sectors, n_sectors, byte >= 0 ? byte / SECTOR : -1 - (-1 - byte) / SECTOR);
        }
    }
    return (gpu_access){ .buf = in->buf,
                         .store = in->op != K_LOAD,
                         .indexed = in->dyn != 0,
                         .threads = (int)threads,
                         .bytes = (int)(n_elements * size),
                         .sectors = n_sectors };
}

static bool same(const gpu_access *x, const gpu_access *y) {
    return x->buf == y->buf && x->store == y->store && x->indexed == y->indexed && x->threads == y->threads &&
           x->bytes == y->bytes && x->sectors == y->sectors;
}

int gpu_accesses(const kernel *k, arena *a, gpu_access **out) {
    gpu_access *list = ARENA_ARRAY(a, gpu_access, k->ins.n + 1);
    int *open = ARENA_ARRAY(a, int, k->ins.n + 1), n = 0, depth = 0;
    int64_t *sets = ARENA_ARRAY(a, int64_t, 2 * TOGETHER * LANES);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) open[depth++] = i;
        if (in->op == K_END) depth--;
        if ((in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) || kbuf_is_local(&k->bufs.at[in->buf])) continue;
        counter c = { .k = k };
        for (int d = 0; d < depth; d++) { /* the innermost nest that is bound to threads, from its first loop on */
            kpar par = (kpar)k->ins.at[open[d]].par;
            bool inner = d > 0 && open[d - 1] == open[d] - 1 && k->ins.at[open[d - 1]].par == par;
            if ((par == PAR_BLOCK_THREADS || par == PAR_GRID_THREADS) && !inner)
                c.head = open[d], c.n_loops = kernel_nest(k, (reg)open[d]);
        }
        gpu_access x = measure(&c, in, sets, sets + TOGETHER * LANES);
        int j = 0;
        while (j < n && !same(&list[j], &x)) j++;
        if (j == n) list[n++] = x;
    }
    *out = list;
    return n;
}
