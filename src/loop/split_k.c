/* split_k.c - split-K: threads of a block share each sum; their partial sums are added in shared memory, in order. The step
 * says so, tile writes it (thread_tile.c). The order of a sum depends on how many threads share it, and on the K block. */
#include "loop/build.h"
#include "loop/block_tile.h"

bool step_split_k(kernel **k, const loop_step *s, str *why) {
    kvar v;
    if (!gpu_take_role(*k, s, true, &v, why)) return false;
    (*k)->vars.at[v].threads = (int)s->arg[1].n;
    return true;
}

tile_layout tiler_partial_layout(const tiler *w) {
    tile_layout l = { .n = 0 };
    tiler_add_field(&l, 1, tiler_rows(w, 1) / w->side[1].lanes, 1), tiler_add_field(&l, 0, tiler_rows(w, 0), 1);
    return l;
}

static void store_parts(tile_writer *w, const tile_sums *acc, int buf) {
    const tiler *t = w->w;
    int lanes = t->side[1].lanes, down = t->side[0].lanes;
    int64_t width = tiler_rows(t, 1), size = width * tiler_rows(t, 0);
    for (int i = 0; i < t->s.t[0]; i++)
        for (int j = 0; j < t->s.t[1] / lanes; j++) {
            affine row = affine_offset(tiler_vector_at(w, 0, i / down), i % down),
                   at = build_plus(w->o->a, tiler_vector_at(w, 1, j), row, width);
            build_store(w->o, buf, build_plus(w->o->a, at, w->split_k, size), acc->at[i][j]);
        }
    build_barrier(w->o);
}

/* The parts at one place, added in order. */
static reg add_parts(tile_writer *w, int buf, const tile_results *r, affine at) {
    int64_t size = tiler_rows(w->w, 0) * tiler_rows(w->w, 1);
    int first = w->o->ins.n;
    reg sum = build_parts(w->o, OP_add, buf, at, w->w->s.split_k, size, w->w->side[1].lanes);
    for (int i = first; i < w->o->ins.n && r->n_idle; i++)
        if (w->o->ins.at[i].op == K_LOAD) build_mask(w->o->a, &w->o->ins.at[i], r->idle, 0, 1, 0);
    return sum;
}

void tiler_write_partials(tile_writer *w, const tile_sums *acc) {
    const tiler *t = w->w;
    tile_results r = tiler_find_results(t);
    uint8_t type = tiler_at(t, t->acc)->dtype;
    int lanes = t->side[1].lanes;
    int64_t width = tiler_rows(t, 1), size = width * tiler_rows(t, 0);
    int buf = gpu_shared_buffer(w->o, type, t->s.split_k * size);
    if (kernel_shared_bytes(w->o) > KERNEL_STATIC_SHARED) { /* too much side by side: where K blocks lay */
        w->o->bufs.at[buf].late = true;
        build_barrier(w->o);
    }
    store_parts(w, acc, buf);
    tile_layout l = tiler_partial_layout(t);
    int column_bits = l.n && l.field[0].dim == 1 ? l.field[0].bits : 0, idle_bits = w->thread_bits - l.bits;
    if (idle_bits > 0) r.idle = tiler_number(w, l.bits, idle_bits, 0), r.n_idle = 1 << idle_bits;
    for (int c = 0; c < (idle_bits < 0 ? 1 << -idle_bits : 1); c++) {
        affine row = tiler_number(w, column_bits, l.bits - column_bits, c),
               col = affine_scale(w->o->a, tiler_number(w, 0, column_bits, c), lanes);
        reg sum = add_parts(w, buf, &r, build_plus(w->o->a, col, row, width));
        tiler_write_result(w, &r, build_plus(w->o->a, w->tile[0], row, 1), build_plus(w->o->a, w->tile[1], col, 1), sum, true,
                           true);
    }
}
