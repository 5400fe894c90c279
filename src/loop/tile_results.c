/* tile_results.c - what a thread computes from the sums of its tile, and stores (thread_tile.c, split_k.c). In: the
 * instructions behind the contraction of the scalar kernel. Out: the same at other places, in vectors along n. */
#include "loop/block_tile.h"

affine tiler_vector_at(const tile_writer *w, int x, int g) {
    const tiler *t = w->w;
    return affine_offset(affine_scale(w->o->a, w->thread[x], t->side[x].lanes), (int64_t)g * t->side[x].lanes * t->s.n[x]);
}

tile_results tiler_find_results(const tiler *w) {
    const kernel *k = w->k;
    tile_results r = { .seen = ARENA_ARRAY(k->a, reg, k->ins.n) };
    for (int x = 0; x < 2; x++) {
        r.on[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
        r.on[x][w->acc] = true;
        for (int i = 1; i < k->ins.n; i++) r.on[x][i] |= k->ins.at[i].op == K_STORE;
        gpu_mark_varying(k, 1 + w->n_outer, k->ins.n - w->n_outer, w->side[x].row, r.on[x]);
    }
    return r;
}

void tiler_write_result(tile_writer *w, tile_results *r, affine m, affine n, reg v, bool first_m, bool first_n) {
    const tiler *t = w->w;
    int last = t->k->ins.n - t->n_outer;
    build_places p = { .along = t->side[1].row, .lanes = t->side[1].lanes, .varies = r->on[1] };
    build_put(&p, t->side[0].row, m), build_put(&p, t->side[1].row, n);
    for (int i = 1 + t->n_outer; i < last; i++) {
        if (i == t->loops) i = t->end + 1;
        if (i >= last) break;
        if (i == t->acc) {
            w->c.to[i] = v;
            continue;
        }
        if ((!r->on[0][i] && !first_m) || (!r->on[1][i] && !first_n)) {
            if (!r->on[0][i] && r->on[1][i]) w->c.to[i] = r->seen[i];
            continue;
        }
        p.n_mask = 0;
        if (t->side[0].tail && r->on[0][i]) build_bound(&p, m, tiler_extent(t, t->side[0].row), 0);
        if (t->side[1].tail && r->on[1][i]) build_bound(&p, n, tiler_extent(t, t->side[1].row), 1);
        if (r->n_idle) build_bound(&p, r->idle, 1, 0);
        r->seen[i] = build_copy(&w->c, i, &p);
    }
}
