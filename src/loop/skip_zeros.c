/* skip_zeros.c - where a stretch of one operand is zero in all rows of a tile, the products of that stretch are not made. In
 * and out: tiled form, in blocks of rows.
 *
 * The contraction loop of a register tile goes in pieces; the loop over a piece has a condition: the values that it would
 * broadcast, added up without their signs, are not 0. In causal attention half of the weights are 0 as their scores were -inf.
 * A zero times what is not finite is NaN: a nest before the blocks adds up the other operand times 0, and where that is not 0
 * all products are made. Bits are the same, but that a sum that has come to -0 by underflow may stay so where zeros would have
 * made it +0. */
#include "ir/kernel_walk.h"
#include "loop/schedule.h"
#include "loop/zero_tile.h"

enum { LEAST_PIECE = 32, MOST_PIECE = 128, GOOD_PIECE = 64, MOST_LANES = 16 };

/* Adds load r to the list, which is ordered by registers' first uses. */
static bool list_load(const kernel *k, reg r, reg *list, int *n, int most) {
    const kins *in = &k->ins.at[r];
    if (in->op != K_LOAD || in->n_mask || in->dyn || in->packed || in->dtype != TN_F32) return false;
    for (int i = 0; i < *n; i++)
        if (list[i] == r) return true;
    if (*n == most) return false;
    list[(*n)++] = r;
    return true;
}

static kins *taken(const kernel *k, const reg *list, int n) {
    kins *in = ARENA_ARRAY(k->a, kins, n + 1);
    for (int i = 0; i < n; i++) in[i] = k->ins.at[list[i]];
    return in;
}

/* Pieces that divide the loop, with a whole number of vectors: as long as comes next to the best. */
static bool choose_piece(zero_tile *t, int64_t trips, int most_lanes) {
    int64_t best = 0;
    for (int64_t p = LEAST_PIECE; p <= MOST_PIECE && p < trips; p++) {
        int64_t off = p > GOOD_PIECE ? p - GOOD_PIECE : GOOD_PIECE - p,
                least = best > GOOD_PIECE ? best - GOOD_PIECE : GOOD_PIECE - best;
        if (trips % p == 0 && p % 8 == 0 && (!best || off < least)) best = p;
    }
    t->piece = best;
    for (t->lanes = most_lanes < MOST_LANES ? most_lanes : MOST_LANES; best % t->lanes; t->lanes /= 2) {
    }
    return best > 0 && trips >= 2 * best;
}

bool zero_tile_find(const kernel *k, int loop, zero_tile *t) {
    const kins *l = &k->ins.at[loop];
    reg row[ZERO_TILE_ROWS], column[ZERO_TILE_COLUMNS];
    int most = 1;
    *t = (zero_tile){ .loop = loop, .var = l->var, .end = kernel_loop_end(k, loop) };
    if (l->par || l->a || l->lo || l->step != 1 || !k->vars.at[l->var].reduce) return false;
    for (int i = loop + 1; i < t->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOAD || in->op == K_PREFETCH) continue;
        if (in->op != K_UPD || in->alu != OP_dot || in->packed || (int)in->c > loop || in->dtype != TN_F32) return false;
        bool first = k->ins.at[in->a].lanes == 1;
        reg one = first ? in->a : in->b, vector = first ? in->b : in->a;
        if (k->ins.at[one].lanes != 1 || k->ins.at[vector].lanes == 1 || affine_coef(k->ins.at[one].idx, l->var) != 1 ||
            !list_load(k, one, row, &t->n_rows, ZERO_TILE_ROWS) ||
            !list_load(k, vector, column, &t->n_columns, ZERO_TILE_COLUMNS))
            return false;
        if (k->ins.at[vector].lanes > most) most = k->ins.at[vector].lanes;
    }
    t->row = taken(k, row, t->n_rows), t->column = taken(k, column, t->n_columns);
    return t->n_rows && choose_piece(t, l->hi, most);
}

/* ---- is the other operand finite? ---- */

static bool column_loops(const kernel *k, zero_tile *t, const int *open, int n_open, int block) {
    t->n_loops = 0, t->loops = ARENA_ARRAY(k->a, kins, n_open + 1);
    for (int d = 0; d <= n_open; d++) {
        const kins *loop = &k->ins.at[d < n_open ? open[d] : t->loop];
        bool used = false;
        for (int i = 0; i < t->n_columns; i++) used |= affine_coef(t->column[i].idx, loop->var) != 0;
        if (!used || d < block) continue;
        if (d == block || loop->par) return false;
        t->loops[t->n_loops++] = (kins){ .op = K_LOOP, .var = loop->var, .lo = loop->lo, .hi = loop->hi, .step = loop->step };
    }
    return true;
}

/* Whether the vectors lie in local memory that the blocks fill: before them nobody can look at it. */
static bool filled_in_blocks(const kernel *k, const zero_tile *t, int first) {
    for (int i = first; i < k->ins.n; i++)
        for (int c = 0; k->ins.at[i].op == K_STORE && c < t->n_columns; c++)
            if (k->ins.at[i].buf == t->column[c].buf) return true;
    return false;
}

bool zero_tile_columns(const kernel *k, zero_tile *t, int first) {
    int open[MAX_LOOPS + 1], n_open, block = 0;
    if (k->vars.n >= MAX_LOOPS || filled_in_blocks(k, t, first)) return false;
    n_open = kernel_open_loops(k, (reg)t->loop, open);
    while (block < n_open && !k->vars.at[k->ins.at[open[block]].var].block) block++;
    return block < n_open && column_loops(k, t, open, n_open, block);
}

void zero_tile_check(kernel *k, const zero_tile *t, int flag, int at) {
    reg zero = build_number(k, TN_F32, 0), sums[8] = { 0 }, all = 0;
    int lanes = 1, n = 0;
    for (int i = 0; i < t->n_columns; i++)
        if (t->column[i].lanes > lanes) lanes = t->column[i].lanes;
    for (int l = lanes; l >= 1; l /= 2) sums[n++] = build_acc(k, OP_add, TN_F32, 0, l);
    for (int i = 0; i < t->n_loops; i++) kernel_push(k, t->loops[i]);
    for (int i = 0; i < t->n_columns; i++) {
        int s = 0;
        for (int l = lanes; l > t->column[i].lanes; l /= 2) s++;
        build_update(k, OP_dot, zero, kernel_push(k, t->column[i]), sums[s]);
    }
    build_ends(k, t->n_loops);
    for (int s = 0; s < n; s++) {
        reg x = build_lane_reduce(k, OP_add, sums[s]);
        all = s ? build_op(k, OP_add, all, x) : x;
    }
    build_store(k, flag, affine_const(at), all);
}

/* ---- pieces ---- */

piece_cut zero_tile_cut(kernel *k, int loop, int64_t length) {
    int end = kernel_loop_end(k, loop);
    kvar v = k->ins.at[loop].var;
    int64_t n = k->ins.at[loop].hi / length;
    piece_cut c = { .length = length, .piece = kernel_var(k, "kz", n, false, k->vars.at[v].reduce) };
    affine to = build_plus(k->a, affine_var(k->a, v), affine_var(k->a, c.piece), length);
    for (int i = loop + 1; i < end; i++) build_set_var(k->a, &k->ins.at[i], v, to);
    loop_insert(k, end, &(kins){ .op = K_END }, 1);
    c.at = loop_insert_begin(k, loop);
    build_open(k, c.piece, 0, n, PAR_SERIAL);
    return c;
}

void zero_tile_close(kernel *k, const piece_cut *c, reg needed) {
    int more = loop_insert_end(k, &c->at); /* which may move the list */
    kins *loop = &k->ins.at[c->at.at + more];
    loop->a = needed, loop->hi = c->length;
}

/* What says whether a piece is needed: values that it would broadcast are not 0, or vectors are not finite. */
static reg needs_piece(kernel *k, const zero_tile *t, kvar piece, int flag) {
    affine first = build_times(k->a, piece, t->piece);
    kvar v = t->var;
    reg sum = 0;
    for (int i = 0; i < t->n_rows; i++)
        for (int64_t at = 0; at < t->piece; at += t->lanes) {
            kins load = t->row[i];
            load.lanes = (uint8_t)t->lanes, load.lane_stride = t->lanes > 1;
            load.idx = affine_offset(affine_set_var(k->a, load.idx, v, first), at);
            reg x = build_op(k, OP_abs, kernel_push(k, load), 0);
            sum = sum ? build_op(k, OP_add, sum, x) : x;
        }
    sum = build_lane_reduce(k, OP_add, sum);
    sum = build_op(k, OP_add, sum, build_load(k, flag, affine_const(0), 1));
    return build_op(k, OP_ne, sum, build_number(k, TN_F32, 0));
}

static bool skip_zeros(kernel *k, int *loop, int first) {
    zero_tile t;
    if (!zero_tile_find(k, *loop, &t) || !zero_tile_columns(k, &t, first)) return false;
    int flag = build_buffer(k, TN_F32, KB_LOCAL, 1);
    piece_cut c = zero_tile_cut(k, t.loop, t.piece);
    zero_tile_close(k, &c, needs_piece(k, &t, c.piece, flag));
    loop_insertion check = loop_insert_begin(k, first);
    zero_tile_check(k, &t, flag, 0);
    *loop = kernel_loop_end(k, t.loop + loop_insert_end(k, &check));
    return true;
}

bool step_skip_zeros(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int first = 1, n = 0;
    (void)s;
    while (first < k->ins.n && (k->ins.at[first].op != K_LOOP || !k->vars.at[k->ins.at[first].var].block)) first++;
    if (first == k->ins.n) return step_refuse(why, "the kernel does not go by blocks of rows");
    for (int i = first; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP) n += skip_zeros(k, &i, first);
    return n || step_refuse(why, "no loop only multiplies rows by what all rows share");
}
