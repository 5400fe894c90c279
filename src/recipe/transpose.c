/* transpose.c - a kernel that transposes what it reads (rows of memory become columns) works on blocks of the variable along
 * which it reads across rows: the memory pages and cache lines of a block are used whole before the next. In and out: scalar
 * form with a register tile.
 *
 * Squares go straight to their places, although rows of the result that lie a power of two apart share few places in the
 * caches. Transposed into local memory and written from there in runs of 512 bytes, 2048 x 512 f32 took less time on a Zen 3
 * while all of it stayed in the third level (183 to 293 against 395 to 397 us, the machine being shared), but up to twice the
 * time where 8 MB of something else passed in between, as in a program (486 to 1027 against 406 to 465 us). */
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"

enum { BLOCK = 256 }; /* elements in a run of the result; as many pages are read at a time, which a second-level TLB holds */

static bool turns(const kernel *k, kvar v) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || affine_coef(in->idx, v) < 2) continue;
        for (kvar u = 0; u < k->vars.n; u++)
            if (u != v && k->vars.at[u].role.unroll >= 4 && affine_coef(in->idx, u) == 1) return true;
    }
    return false;
}

static kvar transposed_variable(const kernel *k) {
    kvar found = -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        if (!k->vars.at[v].row) return -1;
        if (k->vars.at[v].role.lanes > 1 && turns(k, v)) found = v;
    }
    return found;
}

void recipe_transpose(recipe *r) {
    const kernel *k = r->k;
    kvar v = transposed_variable(k);
    if (v < 0 || k->vars.n > 60) return;
    int64_t extent = k->vars.at[v].extent, piece = BLOCK, lanes = (int64_t)k->vars.at[v].role.lanes * k->vars.at[v].role.unroll;
    while (piece > lanes && extent % piece) piece -= lanes;
    if (extent <= BLOCK || piece < 2 * lanes) return;
    recipe_do(r, "split %s %lld", k->vars.at[v].name, (long long)piece);
    if (r->threads >= 0) r->threads = r->k->vars.n - 1; /* the loop over the pieces */
}

/* ---- GPUs ---- */

enum { MOST_THREADS = 256, LEAST_EXTENT = 16, LEAST_ELEMS = 1 << 12 };

/* Lanes of 16 bytes on both sides, or 1. */
static int lanes_of(const kernel *k) {
    int size = 4;
    str why;
    str_init(&why, k->a);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_LOAD || in->op == K_STORE) && dtype_size((tn_dtype)k->bufs.at[in->buf].dtype) > 4) size = 8;
    }
    return gpu_transposed_lanes(k, 16 / size, &why) ? 16 / size : 1;
}

/* Squares of 16 threads with a vector each on a side, or of 32 with one element. */
bool recipe_transpose_tile(recipe *r) {
    enum { MOST_VARS = 50 };
    const kernel *k = r->k;
    const target *t = r->t;
    int block_threads = t->block_threads < MOST_THREADS ? t->block_threads : MOST_THREADS, transposed[GPU_MOST_TRANSPOSED],
        n_outer = gpu_outer_loops(k);
    int64_t elems = 1, bytes = 0;
    kvar u, v;
    str why;
    str_init(&why, k->a);
    int n = k->vars.n > MOST_VARS ? 0 : gpu_transposed_loads(k, &u, transposed, &why);
    if (!n) return false;
    int lanes = lanes_of(k), side = lanes > 1 ? 16 * lanes : 32, across = side / lanes;
    v = k->ins.at[n_outer].var;
    if (block_threads < 2 * across || k->vars.at[u].extent < LEAST_EXTENT || k->vars.at[v].extent < LEAST_EXTENT) return false;
    for (int i = 1; i <= n_outer; i++) elems *= k->ins.at[i].hi;
    for (int i = 0; i < n; i++)
        bytes += (int64_t)side * (side + 1) * (int64_t)dtype_size((tn_dtype)k->ins.at[transposed[i]].dtype);
    if (elems < LEAST_ELEMS || bytes > t->shared_bytes) return false;
    const char *across_name = k->vars.at[u].name, *along = k->vars.at[v].name;
    if (lanes > 1)
        recipe_do(r, "transpose_tile %s %s %d lanes=%d threads=%d", across_name, along, side, lanes, block_threads);
    else
        recipe_do(r, "transpose_tile %s %s %d threads=%d", across_name, along, side, block_threads);
    return true;
}
