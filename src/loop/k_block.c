/* k_block.c - the steps of a contraction that shared memory holds at a time, and how wide its operands can be read. In: the
 * parts of the scalar kernel (block_tile.c). */
#include "loop/block_tile.h"

/* The innermost loops of the contraction that a copy of about `steps` steps holds whole, and how much of the next one. */
k_block tiler_block(const tiler *w, int64_t steps) {
    k_block b = { .split = 1, .steps = 1, .powers = true };
    while (b.whole < w->n_loops) {
        int64_t n = tiler_extent(w, tiler_at(w, w->loops + w->n_loops - 1 - b.whole)->var);
        if (b.steps * n > steps) {
            b.split = 1;
            while (b.split * 2 * b.steps <= steps) b.split *= 2;
            b.tail = n % b.split != 0;
            b.trips = (n + b.split - 1) / b.split;
            break;
        }
        b.powers = b.powers && gpu_is_power(n);
        b.steps *= n;
        b.whole++;
    }
    b.steps *= b.split;
    if (b.split == 1) { /* the innermost loop around is that of a variable */
        b.tail = false;
        int around = w->loops + w->n_loops - 1 - b.whole;
        b.trips = b.whole < w->n_loops ? tiler_extent(w, tiler_at(w, around)->var) : 1;
    }
    return b;
}

bool tiler_is_wide(const tiler *w, const tile_operand *s, kvar v, int lanes) {
    bool any = false;
    for (int i = 1; i < w->k->ins.n; i++)
        any |= s->needed[i] && tiler_at(w, i)->op == K_LOAD && affine_coef(tiler_at(w, i)->idx, v) != 0;
    return any && lanes > 1 && gpu_any_vectors(w->k, s->needed, v, lanes);
}
