/* map.c - elementwise kernels on GPUs, and all others of which an iteration of the outer loops is a thread's: how many threads
 * a block has, and whether each takes a vector of 16 bytes. In: scalar form. */
#include "loop/gpu_bind.h"
#include "machine/machine.h"
#include "recipe/recipe.h"

enum { MOST_THREADS = 256, LEAST_THREADS = 32 };

/* Lanes along v that make what moves with it vectors of at most 16 bytes. */
static int lanes_along(const kernel *k, int from, int to, kvar v) {
    int size = 2;
    const bool *varies = gpu_varying(k, NULL, v);
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        int bytes = in->op == K_LOAD || in->op == K_STORE ? (int)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype) : 1;
        if (bytes > size && varies[i]) size = bytes;
    }
    return 16 / size;
}

/* Enough vectors for all threads of the machine. Returns how many elements a thread has. */
static int vectorize(recipe *r, int n_outer) {
    const kernel *k = r->k;
    kvar v = k->ins.at[n_outer].var;
    int lanes = lanes_along(k, 1 + n_outer, k->ins.n - n_outer, v);
    int64_t all = k->vars.at[v].extent / lanes;
    str why;
    str_init(&why, k->a);
    for (int i = 1; i < n_outer; i++) all *= k->ins.at[i].hi;
    if (all < r->t->resident_threads / 8 || !gpu_grid_lanes(k, lanes, &why)) return 1;
    recipe_do(r, "vectorize %s %d", k->vars.at[v].name, lanes);
    return lanes;
}

void recipe_map(recipe *r) {
    const target *t = r->t;
    int n_outer = gpu_outer_loops(r->k), threads = t->block_threads < MOST_THREADS ? t->block_threads : MOST_THREADS;
    double iterations = 1;
    for (int i = 1; i <= n_outer; i++) iterations *= (double)(r->k->ins.at[i].hi - r->k->ins.at[i].lo);
    int lanes = vectorize(r, n_outer), cores = machine_row_of(t)->cores;
    int64_t n = (int64_t)iterations / lanes, enough = t->resident_threads / MOST_THREADS;
    if (lanes > 1) enough = machine_units(t) < cores ? cores : 0; /* for a part of the machine: spread over all of it */
    while (threads > LEAST_THREADS && n / threads < enough) threads /= 2;
    recipe_do(r, "bind_grid %d", threads);
}
