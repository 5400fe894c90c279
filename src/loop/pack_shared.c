/* pack_shared.c - operands of a contraction come through shared memory, a K block at a time. The step says how long that is;
 * tile writes it (thread_tile.c): here are the copies.
 *
 * The threads of a block share out a copy: each has the pieces whose numbers have the thread's number in their lowest bits. A
 * piece is a vector where the operand lies so. Loads stand before all stores, so that they wait together. What lies behind the
 * end of the contraction counts as zero. */
#include "loop/block_tile.h"

bool step_pack_shared(kernel **k, const loop_step *s, str *why) {
    kvar v;
    if (!gpu_take_role(*k, s, true, &v, why)) return false;
    (*k)->vars.at[v].steps = (int)s->arg[1].n, (*k)->vars.at[v].bulk = step_flag(s, "bulk");
    return true;
}

/* ---- what a block is ---- */

static int block_dims(const tiler *w) { return w->s.b.whole + (w->s.b.split > 1); }
static kvar dim_var(const tiler *w, int d) { return tiler_at(w, w->loops + w->n_loops - block_dims(w) + d)->var; }
static int64_t dim_size(const tiler *w, int d) {
    return d == 0 && w->s.b.split > 1 ? w->s.b.split : tiler_extent(w, dim_var(w, d));
}

/* The fastest first: neighbouring threads read neighbouring memory. Along the contraction two of them stand side by side, the
 * next ones in other rows: so they write to different banks. */
tile_layout tiler_copy_layout(const tiler *w, int x) {
    tile_layout l = { .n = 0 };
    const tile_operand *s = &w->side[x];
    int last = block_dims(w) - 1, vector = s->vector ? s->vector : 1;
    bool row_last = s->vector ? s->along == s->row : gpu_lies_along(w->k, s->needed, s->row);
    int64_t together = row_last && w->s.matrix ? KERNEL_MATRIX : tiler_rows(w, x);
    if (row_last) tiler_add_field(&l, -1, together / vector, vector);
    if (row_last) tiler_add_field(&l, FIELD_TILE, tiler_rows(w, x) / together, together);
    if (s->vector && !row_last) {
        int64_t pieces = dim_size(w, last) / s->vector, near = w->s.matrix ? pieces : pieces > 1 ? 2 : 1;
        tiler_add_field(&l, last, near, s->vector);
        tiler_add_field(&l, -1, tiler_rows(w, x), 1);
        tiler_add_field(&l, last, pieces / near, s->vector * near);
        last--;
    }
    for (int d = last; d >= 0; d--) tiler_add_field(&l, d, dim_size(w, d), 1);
    if (!row_last && !s->vector) tiler_add_field(&l, -1, tiler_rows(w, x), 1);
    return l;
}

/* ---- a piece ---- */

typedef struct piece {                      /* of a block: where, and its value */
    affine row, tile, dim[TN_MAX_RANK + 2]; /* tile: of a matrix, times its rows; else 0 */
    reg v;
} piece;
typedef struct staged { /* the thread's pieces, which it loads now and stores later */
    piece at[MAX_CHUNKS];
    int n;
    affine idle; /* not 0 for threads that have none */
    int64_t n_idle;
} staged;

/* The operand's value there, in K block s; idle: of the thread's other bits, 0 where it has a piece. */
static reg load_piece(tile_writer *w, int x, const piece *at, affine s, const staged *of) {
    const tiler *t = w->w;
    const tile_operand *o = &t->side[x];
    build_places p = { .along = o->along, .lanes = o->vector };
    bool along_row = o->vector && o->along == o->row, split = t->s.b.split > 1;
    int n = block_dims(t);
    affine row = build_plus(w->o->a, build_plus(w->o->a, w->tile[x], at->tile, 1), at->row, 1), last = affine_const(0);
    if (o->vector) p.varies = gpu_varying(t->k, o->needed, o->along);
    if (split) last = build_plus(w->o->a, at->dim[0], s, t->s.b.split);
    for (int d = 0; d < n; d++) build_put(&p, dim_var(t, d), split && d == 0 ? last : at->dim[d]);
    if (!split && t->s.b.whole < t->n_loops) build_put(&p, tiler_at(t, t->loops + t->n_loops - 1 - t->s.b.whole)->var, s);
    build_put(&p, o->row, row);
    int64_t lane = o->vector && !along_row && n == 1 && split ? 1 : 0, end = n ? tiler_extent(t, dim_var(t, 0)) : 0;
    if (o->tail) build_bound(&p, row, tiler_extent(t, o->row), along_row);
    if (t->s.b.tail) build_bound(&p, last, end, lane);
    if (of->n_idle) build_bound(&p, of->idle, 1, 0);
    for (int i = 1; i < t->upd; i++)
        if (o->needed[i]) build_copy(&w->c, i, &p);
    const kins *operand = tiler_at(t, o->operand);
    bool plain = operand->op == K_LOAD && operand->n_mask == 0;
    reg v = w->c.to[o->operand];
    return t->s.b.tail && !plain ? build_before(w->o, v, TN_I64, last, lane, end, 0) : v;
}

static void store_piece(tile_writer *w, int x, const piece *at, const staged *of) {
    const tiler *t = w->w;
    const tile_operand *s = &t->side[x];
    kins in = { .op = K_STORE, .dtype = w->o->bufs.at[s->buf].dtype, .buf = (uint16_t)s->buf, .a = at->v, .idx = at->row };
    bool by_row = s->along == s->row;
    int64_t stride = t->s.matrix && !by_row ? 1 : s->pitch;
    if (t->s.matrix) /* kernel_matrix_place */
        in.idx = build_plus(w->o->a, affine_scale(w->o->a, at->row, by_row ? 1 : s->pitch), at->tile, s->pitch);
    for (int d = block_dims(t) - 1; d >= 0; stride *= dim_size(t, d--))
        in.idx = build_plus(w->o->a, in.idx, at->dim[d], stride);
    if (s->vector) in.lanes = (uint8_t)s->vector, in.lane_stride = by_row || t->s.matrix ? 1 : s->pitch;
    if (of->n_idle) build_mask(w->o->a, &in, of->idle, 0, 1, 0);
    kernel_push(w->o, in);
}

/* ---- a block ---- */

static void load_block(tile_writer *w, int x, affine s, staged *out) {
    tile_layout l = tiler_copy_layout(w->w, x);
    *out = (staged){ .n = l.bits > w->thread_bits ? 1 << (l.bits - w->thread_bits) : 1 };
    if (l.bits < w->thread_bits) {
        out->n_idle = 1 << (w->thread_bits - l.bits);
        out->idle = tiler_number(w, l.bits, w->thread_bits - l.bits, 0);
    }
    for (int c = 0; c < out->n; c++) {
        piece *at = &out->at[w->w->s.matrix ? 0 : c]; /* those of matrices are stored at once */
        *at = (piece){ .v = 0 };
        for (int f = 0; f < l.n; f++) {
            affine *e = l.field[f].dim == FIELD_TILE ? &at->tile : l.field[f].dim < 0 ? &at->row : &at->dim[l.field[f].dim];
            *e = build_plus(w->o->a, *e, tiler_number(w, l.field[f].lo, l.field[f].bits, c), l.field[f].times);
        }
        at->v = load_piece(w, x, at, s, out);
        if (!w->w->s.matrix) continue;
        w->o->ins.at[at->v].mode = w->w->s.bulk ? LOAD_BULK : LOAD_ASYNC;
        store_piece(w, x, at, out);
    }
}

/* Any sizes: a nest of loops bound to the threads. */
static void copy_by_loops(tile_writer *w, int x, affine s) {
    const tile_operand *o = &w->w->side[x];
    const staged all = { .n_idle = 0 };
    piece at = { .tile = affine_const(0) };
    int n = block_dims(w->w);
    bool row_last = gpu_lies_along(w->w->k, o->needed, o->row);
    if (!row_last) at.row = affine_var(w->o->a, build_loop(w->o, "r", tiler_rows(w->w, x), PAR_BLOCK_THREADS));
    for (int d = 0; d < n; d++) at.dim[d] = affine_var(w->o->a, build_loop(w->o, "c", dim_size(w->w, d), PAR_BLOCK_THREADS));
    if (row_last) at.row = affine_var(w->o->a, build_loop(w->o, "r", tiler_rows(w->w, x), PAR_BLOCK_THREADS));
    at.v = load_piece(w, x, &at, s, &all);
    store_piece(w, x, &at, &all);
    build_ends(w->o, n + 1);
}

void tiler_copy_blocks(tile_writer *w, affine s) {
    staged *own = ARENA_ARRAY(w->o->a, staged, 2);
    for (int x = 0; x < 2; x++) {
        if (w->w->s.b.powers)
            load_block(w, x, s, &own[x]);
        else
            copy_by_loops(w, x, s);
    }
    for (int x = 0; x < 2 && !w->w->s.matrix; x++)
        for (int c = 0; c < own[x].n; c++) store_piece(w, x, &own[x].at[c], &own[x]);
}
