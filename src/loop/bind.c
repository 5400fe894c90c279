/* bind.c - thread binding: threads of a thread block share the iterations of a row. The step says so and tile writes it
 * (thread_tile.c); here is where each thread finds its place.
 *
 * The threads of a block are a nest of loops, whose variables are digits of the thread's number: so a thread's place in the
 * tile and its places in the copies of the operands are all sums of them, and one nest serves all. */
#include "loop/build.h"
#include "loop/block_tile.h"

bool gpu_take_role(const kernel *k, const loop_step *s, bool sum, kvar *v, str *why) {
    int64_t n = s->arg[1].n;
    *v = step_loop(k, s, 0, why);
    if (*v < 0) return false;
    if (k->vars.at[*v].reduce != sum)
        return step_refuse(why, sum ? "loop %s is no sum" : "loop %s is a sum, which split_k shares out", k->vars.at[*v].name);
    if (n > GPU_MOST_THREADS || !gpu_is_power(n))
        return step_refuse(why, "%lld: expected a power of two up to %d", (long long)n, GPU_MOST_THREADS);
    return true;
}

bool step_bind(kernel **k, const loop_step *s, str *why) {
    kvar v;
    if (!gpu_take_role(*k, s, false, &v, why)) return false;
    (*k)->vars.at[v].threads = (int)s->arg[1].n;
    return true;
}

/* ---- digits ---- */

int gpu_log2(int64_t n) {
    int l = 0;
    while (n > 1) n /= 2, l++;
    return l;
}

int gpu_digits_open(kernel *o, gpu_digits *d, int bits, uint64_t cuts) {
    for (int lo = bits, hi = bits; hi > 0; hi = lo) {
        for (lo--; !(cuts >> lo & 1);) lo--;
        d->at[d->n].lo = lo, d->at[d->n++].var = build_loop(o, "t", (int64_t)1 << (hi - lo), PAR_BLOCK_THREADS);
    }
    return d->n;
}

affine gpu_digits_at(kernel *o, const gpu_digits *d, int lo, int hi) {
    affine x = affine_const(0);
    for (int i = 0; i < d->n; i++)
        if (d->at[i].lo >= lo && d->at[i].lo < hi)
            x = build_plus(o->a, x, affine_var(o->a, d->at[i].var), (int64_t)1 << (d->at[i].lo - lo));
    return x;
}

affine tiler_number(const tile_writer *w, int lo, int bits, int64_t chunk) {
    int64_t high = lo > w->thread_bits ? chunk >> (lo - w->thread_bits) : chunk << (w->thread_bits - lo);
    return affine_offset(gpu_digits_at(w->o, &w->digits, lo, lo + bits), high & (((int64_t)1 << bits) - 1));
}

void tiler_add_field(tile_layout *l, int dim, int64_t count, int64_t times) {
    int bits = gpu_log2(count);
    if (bits) l->field[l->n++] = (tile_field){ l->bits, bits, dim, times };
    l->bits += bits;
}

/* A thread's number, lowest bits first: 8 threads across and 4 down are neighbours, then come the others, then z. Of the rows
 * one bit comes first: then both operands are the same for pairs of neighbours, whose loads from shared memory are one. */
static tile_layout thread_fields(const tile_shape *s) {
    tile_layout l = { .n = 0 };
    if (s->matrix) { /* as kernel_fragment has them: pairs of columns, rows of 8, warps, warpgroups */
        tiler_add_field(&l, 1, 4, 2), tiler_add_field(&l, 0, 8, 1), tiler_add_field(&l, 0, 4, 16);
        tiler_add_field(&l, 0, s->n[0] * s->n[1] / KERNEL_WARPGROUP, KERNEL_MATRIX);
        return l;
    }
    int near_x = s->n[1] < 8 ? s->n[1] : 8, near_y = s->n[0] < 32 / near_x ? s->n[0] : 32 / near_x,
        pair = near_y < 2 ? near_y : 2;
    tiler_add_field(&l, 0, pair, 1), tiler_add_field(&l, 1, near_x, 1), tiler_add_field(&l, 0, near_y / pair, pair);
    tiler_add_field(&l, 1, s->n[1] / near_x, near_x), tiler_add_field(&l, 0, s->n[0] / near_y, near_y);
    tiler_add_field(&l, 2, s->split_k, 1);
    return l;
}

static uint64_t cuts_of(const tile_layout *l) {
    uint64_t cuts = (uint64_t)1 << l->bits;
    for (int f = 0; f < l->n; f++) cuts |= (uint64_t)1 << l->field[f].lo;
    return cuts;
}

int tiler_open_threads(tile_writer *w, const tile_layout *l, int n) {
    tile_layout threads = thread_fields(&w->w->s);
    uint64_t cuts = 1 | cuts_of(&threads);
    for (int i = 0; i < n; i++) cuts |= cuts_of(&l[i]);
    w->thread_bits = threads.bits;
    int loops = gpu_digits_open(w->o, &w->digits, w->thread_bits, cuts);
    affine *count[3] = { &w->thread[0], &w->thread[1], &w->split_k };
    for (int i = 0; i < 3; i++) *count[i] = affine_const(0);
    for (int f = 0; f < threads.n; f++) {
        const tile_field *d = &threads.field[f];
        *count[d->dim] = build_plus(w->o->a, *count[d->dim], tiler_number(w, d->lo, d->bits, 0), d->times);
    }
    return loops;
}
