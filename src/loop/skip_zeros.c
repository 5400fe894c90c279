/* skip_zeros.c - where a stretch of one operand is zero in all rows of a tile, the products of that stretch are not made. In
 * and out: tiled form, in blocks of rows.
 *
 * The contraction loop of a register tile goes in pieces; the loop over a piece has a condition: the values that it would
 * broadcast, added up without their signs, are not 0. In causal attention half of the weights are 0 as their scores were -inf.
 * A zero times what is not finite is NaN: a nest before the blocks adds up the other operand times 0, and where that is not 0
 * all products are made. Bits are the same, but that a sum that has come to -0 by underflow may stay so where zeros would have
 * made it +0. */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "loop/zero_tile.h"

enum { LEAST_PIECE = 32, MOST_PIECE = 128, GOOD_PIECE = 64, MOST_LANES = 16 };

static bool list_load(const kernel *k, reg r, int *list, int *n, int most) {
    const kins *in = &k->ins.at[r];
    if (in->op != K_LOAD || in->n_mask || in->dyn || in->packed || in->dtype != TN_F32) return false;
    for (int i = 0; i < *n; i++)
        if (list[i] == (int)r) return true;
    if (*n == most) return false;
    list[(*n)++] = (int)r;
    return true;
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
    int most = 1;
    *t = (zero_tile){ .loop = loop, .end = kernel_loop_end(k, loop) };
    if (l->par || l->a || l->lo || l->step != 1 || !k->vars.at[l->var].reduce) return false;
    for (int i = loop + 1; i < t->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOAD || in->op == K_PREFETCH) continue;
        if (in->op != K_UPD || in->alu != OP_dot || in->packed || (int)in->c > loop || in->dtype != TN_F32) return false;
        bool first = k->ins.at[in->a].lanes == 1;
        reg one = first ? in->a : in->b, vector = first ? in->b : in->a;
        if (k->ins.at[one].lanes != 1 || k->ins.at[vector].lanes == 1 || affine_coef(k->ins.at[one].idx, l->var) != 1 ||
            !list_load(k, one, t->row, &t->n_rows, ZERO_TILE_ROWS) ||
            !list_load(k, vector, t->column, &t->n_columns, ZERO_TILE_COLUMNS))
            return false;
        if (k->ins.at[vector].lanes > most) most = k->ins.at[vector].lanes;
    }
    return t->n_rows && choose_piece(t, l->hi, most);
}

/* ---- is the other operand finite? ---- */

static bool column_loops(const kernel *k, const zero_tile *t, const int *open, int n_open, int block, int *out, int *n) {
    *n = 0;
    for (int d = 0; d <= n_open; d++) {
        int at = d < n_open ? open[d] : t->loop;
        bool used = false;
        for (int i = 0; i < t->n_columns; i++) used |= affine_coef(k->ins.at[t->column[i]].idx, k->ins.at[at].var) != 0;
        if (!used || d < block) continue;
        if (d == block || k->ins.at[at].par) return false;
        out[(*n)++] = at;
    }
    return true;
}

/* Whether the vectors lie in local memory that the blocks fill: before them nobody can look at it. */
static bool filled_in_blocks(const kernel *k, const zero_tile *t, int first) {
    for (int i = first; i < k->ins.n; i++)
        for (int c = 0; k->ins.at[i].op == K_STORE && c < t->n_columns; c++)
            if (k->ins.at[i].buf == k->ins.at[t->column[c]].buf) return true;
    return false;
}

bool zero_tile_columns(const kernel *k, const zero_tile *t, int first, int *loops, int *n) {
    int open[MAX_LOOPS + 1], n_open, block = 0;
    if (k->vars.n >= MAX_LOOPS || filled_in_blocks(k, t, first)) return false;
    n_open = kernel_open_loops(k, (reg)t->loop, open);
    while (block < n_open && !k->vars.at[k->ins.at[open[block]].var].block) block++;
    return block < n_open && column_loops(k, t, open, n_open, block, loops, n);
}

static kins update(reg acc, reg a, reg b, int lanes) {
    return (
        kins){ .op = K_UPD, .alu = OP_dot, .dtype = TN_F32, .src = TN_F32, .lanes = (uint8_t)lanes, .a = a, .b = b, .c = acc };
}
static kins number(double x) { return (kins){ .op = K_CONST, .dtype = TN_F32, .src = TN_F32, .lanes = 1, .imm = x }; }

void zero_tile_check(kernel *k, const zero_tile *t, const int *loops, int n, int flag, int at, kins_writer *w) {
    reg zero = kins_put(w, number(0)), acc = 0;
    int lanes = 1;
    for (int i = 0; i < t->n_columns; i++)
        if (k->ins.at[t->column[i]].lanes > lanes) lanes = k->ins.at[t->column[i]].lanes;
    reg sums[8] = { 0 };
    for (int l = lanes, s = 0; l >= 1; l /= 2, s++)
        sums[s] = kins_put(w, (kins){ .op = K_ACC, .alu = OP_add, .dtype = TN_F32, .src = TN_F32, .lanes = (uint8_t)l });
    for (int i = 0; i < n; i++) {
        kins loop = k->ins.at[loops[i]];
        kins_put(w, (kins){ .op = K_LOOP, .var = loop.var, .lo = loop.lo, .hi = loop.hi, .step = loop.step });
    }
    for (int i = 0; i < t->n_columns; i++) {
        kins load = k->ins.at[t->column[i]];
        int s = 0;
        for (int l = lanes; l > load.lanes; l /= 2) s++;
        reg v = kins_put(w, load);
        kins_put(w, update(sums[s], zero, v, load.lanes));
    }
    for (int i = 0; i < n; i++) kins_put(w, (kins){ .op = K_END });
    for (int l = lanes, s = 0; l >= 1; l /= 2, s++) {
        reg x = sums[s];
        if (l > 1)
            x = kins_put(w, (kins){ .op = K_LANE_REDUCE, .alu = OP_add, .dtype = TN_F32, .lanes = 1, .a = x, .combined = l });
        acc = !acc ? x
                   : kins_put(
                         w, (kins){ .op = K_ALU, .alu = OP_add, .dtype = TN_F32, .src = TN_F32, .lanes = 1, .a = acc, .b = x });
    }
    kins_put(w, (kins){ .op = K_STORE,
                        .dtype = TN_F32,
                        .src = TN_F32,
                        .lanes = 1,
                        .buf = (uint16_t)flag,
                        .a = acc,
                        .idx = affine_const(at) });
}

/* ---- pieces ---- */

affine zero_tile_in_piece(kernel *k, affine x, kvar v, kvar piece, int64_t length) {
    affine to = affine_add(k->a, build_times(k->a, piece, length), affine_var(k->a, v));
    return affine_set_var(k->a, x, v, to);
}

/* The loop over pieces, and what says whether the next one is needed; returns that. */
static reg open_piece(kernel *k, const zero_tile *t, kvar piece, int flag, kins_writer *w) {
    kvar v = k->ins.at[t->loop].var;
    reg sum = 0;
    kins_put(w, (kins){ .op = K_LOOP, .var = piece, .hi = k->vars.at[piece].extent, .step = 1 });
    for (int i = 0; i < t->n_rows; i++)
        for (int64_t at = 0; at < t->piece; at += t->lanes) {
            kins load = k->ins.at[t->row[i]];
            load.lanes = (uint8_t)t->lanes, load.lane_stride = t->lanes > 1;
            load.idx = affine_offset(
                affine_set_var(k->a, zero_tile_in_piece(k, load.idx, v, piece, t->piece), v, affine_const(0)), at);
            kins abs = { .op = K_ALU, .alu = OP_abs, .dtype = TN_F32, .src = TN_F32, .lanes = load.lanes, .node = load.node };
            kins add = { .op = K_ALU, .alu = OP_add, .dtype = TN_F32, .src = TN_F32, .lanes = load.lanes, .node = load.node };
            abs.a = kins_put(w, load);
            add.b = kins_put(w, abs), add.a = sum;
            sum = sum ? kins_put(w, add) : add.b;
        }
    if (t->lanes > 1)
        sum = kins_put(
            w, (kins){ .op = K_LANE_REDUCE, .alu = OP_add, .dtype = TN_F32, .lanes = 1, .a = sum, .combined = t->lanes });
    reg other = kins_put(
        w, (kins){ .op = K_LOAD, .dtype = TN_F32, .src = TN_F32, .lanes = 1, .buf = (uint16_t)flag, .idx = affine_const(0) });
    sum = kins_put(w, (kins){ .op = K_ALU, .alu = OP_add, .dtype = TN_F32, .src = TN_F32, .lanes = 1, .a = sum, .b = other });
    reg zero = kins_put(w, number(0));
    return kins_put(w, (kins){ .op = K_ALU, .alu = OP_ne, .dtype = TN_I32, .src = TN_F32, .lanes = 1, .a = sum, .b = zero });
}

static void cut_loop(kernel *k, const zero_tile *t, int flag) {
    kvar v = k->ins.at[t->loop].var, piece = kernel_var(k, "kz", k->ins.at[t->loop].hi / t->piece, false, true);
    kins_writer w = { ARENA_ARRAY(k->a, kins, 3 * ZERO_TILE_ROWS * MOST_PIECE), 0, (reg)t->loop };
    reg cond = open_piece(k, t, piece, flag, &w);
    for (int i = t->loop + 1; i < t->end; i++) {
        kins *in = &k->ins.at[i];
        if (in->op == K_LOAD || in->op == K_PREFETCH) in->idx = zero_tile_in_piece(k, in->idx, v, piece, t->piece);
    }
    loop_insert(k, t->end, &(kins){ .op = K_END }, 1);
    loop_insert(k, t->loop, w.at, w.n);
    k->ins.at[t->loop + w.n].a = cond, k->ins.at[t->loop + w.n].hi = t->piece;
}

static bool skip_zeros(kernel *k, int *loop, int first) {
    zero_tile t;
    int columns[MAX_LOOPS + 1], n_columns;
    if (!zero_tile_find(k, *loop, &t) || !zero_tile_columns(k, &t, first, columns, &n_columns)) return false;
    int flag = kernel_buf(k, (kbuf){ .dtype = TN_F32, .kind = KB_LOCAL, .elems = 1, .plan_buf = -1 });
    kins_writer w = { ARENA_ARRAY(k->a, kins, ZERO_TILE_CHECK), 0, (reg)first };
    zero_tile_check(k, &t, columns, n_columns, flag, 0, &w);
    cut_loop(k, &t, flag);
    loop_insert(k, first, w.at, w.n);
    *loop = kernel_loop_end(k, t.loop + w.n);
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
