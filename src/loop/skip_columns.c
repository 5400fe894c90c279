/* skip_columns.c - what follows a mask row by row leaves out the columns that the mask throws away in all rows of a block:
 * causal attention. In and out: tiled form, in blocks of rows.
 *
 * A nest writes scores, -inf where a comparison of indices does not hold. In all rows of a block those are the columns from a
 * bound on that is affine in the loops around the block. Nests behind it take the maximum of a row, powers of the scores less
 * that maximum, their sum, and multiply: each of these loops goes in pieces of columns, which run only up to the bound. What
 * they would have written there are zeros, and the contraction that multiplies by them leaves the pieces out, too.
 *
 * Bits are the same: -inf changes no maximum, +0 no sum. Where a row has a NaN, or its maximum is not finite, each of its sums
 * is the NaN that it would be, as its first piece is never left out. A zero times what is not finite is NaN: a nest before the
 * blocks adds up the other operand times 0, and where that is not 0 nothing is left out. As with skip_zeros, a sum of -0 may
 * stay so. */
#include "loop/loop.h"
#include "loop/schedule.h"
#include "loop/index_compare.h"
#include "loop/zero_tile.h"

#include <math.h>

enum { LEAST_PIECE = 64, GOOD_PIECE = 128, MOST_PIECE = 256, MOST_LOOPS = 16, MOST_TILES = 16 };

/* What a register or buffer is known to be in the columns that are masked, or as a whole. */
typedef enum kind {
    ANY,
    LOW,     /* -inf there */
    ZERO,    /* 0 there; buffer: not written there */
    POWER,   /* so, too, and 1 where the row's maximum was */
    MAXIMUM, /* of a row that is LOW */
    SUM      /* of a row of POWER: 1 at least; or a number through it. Or NaN */
} kind;

typedef struct finder {
    kernel *k;
    int from, to;     /* a loop over blocks */
    int scores;       /* buffer of the scores */
    int64_t n, piece; /* columns of a row; of a piece */
    affine bound;     /* a column c is masked in all rows where c + bound > 0 */
    bool bounded;
    uint8_t *buf, *reg;   /* [bufs], [ins]: kind */
    affine *row;          /* [ins] the row that it is of */
    VEC(int) loops;       /* that go in pieces */
    VEC(zero_tile) tiles; /* that do, too */
} finder;

/* ---- where scores are masked ---- */

/* The least and the greatest value of a variable in loops from instruction `from` on; false: there are none. */
static bool range_of(const kernel *k, kvar v, int from, int to, int64_t *lo, int64_t *hi) {
    bool found = false;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP || in->var != v || in->hi <= in->lo) continue;
        int64_t last = in->lo + (in->hi - in->lo - 1) / in->step * in->step;
        if (!found || in->lo < *lo) *lo = in->lo;
        if (!found || last > *hi) *hi = last;
        found = true;
    }
    return found;
}

/* The least value over the loops inside the block. */
static affine least(const finder *f, affine x) {
    kernel *k = f->k;
    affine out = affine_const(x.base);
    for (int i = 0; i < x.n; i++) {
        int64_t lo, hi, coef = x.t[i].coef;
        if (range_of(k, x.t[i].var, f->from + 1, f->to, &lo, &hi))
            out.base += coef * (coef < 0 ? hi : lo);
        else
            out = affine_add(k->a, out, affine_scale(k->a, affine_var(k->a, x.t[i].var), coef));
    }
    return out;
}

static affine remainder_of(const kernel *k, affine x, int64_t n) { /* the terms that no row is made of */
    affine out = affine_const(((x.base % n) + n) % n);
    for (int i = 0; i < x.n; i++)
        if (x.t[i].coef % n) out = affine_add(k->a, out, affine_scale(k->a, affine_var(k->a, x.t[i].var), x.t[i].coef));
    return out;
}

static int64_t greatest(const finder *f, affine x) {
    int64_t n = x.base, lo, hi;
    for (int i = 0; i < x.n; i++) {
        if (!range_of(f->k, x.t[i].var, 1, f->k->ins.n, &lo, &hi)) return INT64_MAX - MOST_PIECE;
        n += x.t[i].coef * (x.t[i].coef < 0 ? lo : hi);
    }
    return n;
}

/* A store of the scores: from which column on it is masked. */
static bool widen_bound(finder *f, const kins *store) {
    kernel *k = f->k;
    const kins *select = &k->ins.at[store->a];
    index_line e;
    if (select->op != K_ALU || select->alu != OP_select || !index_compare(k, select->a, false, &e) || e.run) return false;
    const kins *low = &k->ins.at[select->c];
    if (low->op != K_CONST || low->imm != -INFINITY || (store->lanes > 1 && (store->lane_stride != 1 || e.step != 1)))
        return false;
    affine column = remainder_of(k, store->idx, f->n);
    if (store->n_mask || greatest(f, column) + store->lanes > f->n) return false;
    affine b = least(f, affine_add(k->a, e.e, affine_scale(k->a, column, -1)));
    if (f->bounded && !affine_equal(affine_offset(f->bound, b.base - f->bound.base), b)) return false;
    if (!f->bounded || b.base < f->bound.base) f->bound = b;
    return f->bounded = true;
}

/* The buffer of the scores, and how many columns it has: of the first loop that takes a maximum. */
static bool find_scores(finder *f) {
    const kernel *k = f->k;
    int loop = 0;
    f->scores = -1;
    for (int i = f->from + 1; i < f->to && f->scores < 0; i++) {
        const kins *in = &k->ins.at[i], *load = &k->ins.at[in->a];
        if (in->op == K_LOOP) loop = i;
        if (in->op != K_UPD || in->alu != OP_max || (int)in->a < loop || load->op != K_LOAD) continue;
        if (load->dtype != TN_F32 || k->bufs.at[load->buf].kind != KB_LOCAL || k->ins.at[loop].lo) continue;
        f->scores = load->buf, f->n = k->ins.at[loop].hi;
    }
    for (int i = f->from + 1; i < f->to && f->scores >= 0; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_STORE || in->op == K_SCATTER) && in->buf == f->scores && (in->op == K_SCATTER || !widen_bound(f, in)))
            return false;
    }
    return f->bounded && greatest(f, f->bound) <= 0; /* the first column is nobody's to leave out */
}

/* ---- what becomes of them ---- */

/* An access to columns of a row, one iteration of the loop after the other; the row in *row. */
static bool is_column(const finder *f, const kins *in, const kins *loop, affine *row) {
    const kernel *k = f->k;
    affine column = remainder_of(k, in->idx, f->n);
    if (in->n_mask || in->dyn || in->packed || (in->lanes > 1 && in->lane_stride != 1)) return false;
    if (column.n != 1 || column.t[0].var != loop->var || column.t[0].coef != 1 || column.base + in->lanes > loop->step)
        return false;
    *row = affine_add(k->a, in->idx, affine_scale(k->a, column, -1));
    return true;
}

static bool is_finite_const(const kins *in) { return in->op == K_CONST && isfinite(in->imm); }

/* The kind of a value, whose operands have theirs. */
static kind kind_of(const finder *f, const kins *in, affine *row) {
    const uint8_t a = f->reg[in->a], b = f->reg[in->b];
    const kins *x = &f->k->ins.at[in->a], *y = &f->k->ins.at[in->b];
    *row = f->row[a != ANY ? in->a : in->b];
    bool same = affine_equal(f->row[in->a], f->row[in->b]);
    if (in->op == K_LANE_REDUCE) return (a == MAXIMUM && in->alu == OP_max) || (a == SUM && in->alu == OP_add) ? (kind)a : ANY;
    bool zero_a = a == ZERO || a == POWER, zero_b = b == ZERO || b == POWER;
    if (in->op == K_WRAP && dtype_is_float(in->src)) return zero_a ? ZERO : ANY;
    if (in->op != K_ALU) return ANY;
    switch (in->alu) {
    case OP_max:
        return a == MAXIMUM && b == MAXIMUM && same ? MAXIMUM : ANY;
    case OP_add:
        return a == SUM && b == SUM && same ? SUM : ANY;
    case OP_sub:
        return a == LOW && b == MAXIMUM && same ? LOW : ANY;
    case OP_exp:
        return a == LOW && x->op == K_ALU && x->alu == OP_sub ? POWER : ANY;
    case OP_div:
        if (b == SUM && same && zero_a) return ZERO;
        return b == SUM && is_finite_const(x) ? SUM : ANY; /* finite, too, but where it is NaN */
    case OP_mul:
        if (zero_a && (is_finite_const(y) || (b == SUM && same))) return ZERO;
        return zero_b && (is_finite_const(x) || (a == SUM && same)) ? ZERO : ANY;
    default:
        return ANY;
    }
}

static bool is_zero(uint8_t x) { return x == ZERO || x == POWER; }
static bool reads_zeros(const finder *f, const kins *in) { return in->op == K_LOAD && is_zero(f->buf[in->buf]); }

/* What update `in` of the loop makes of its accumulator; ANY: something else, too. */
static kind update_of(const finder *f, const kins *in, int at, int end) {
    const kernel *k = f->k;
    const kins *acc = &k->ins.at[in->c];
    const uint8_t x = f->reg[in->a];
    for (int i = f->from; i < f->to; i++) /* nothing else changes it */
        if (k->ins.at[i].op == K_UPD && k->ins.at[i].c == in->c && (i < at || i > end)) return ANY;
    if (in->alu == OP_max) return x == LOW && k->ins.at[in->a].op == K_LOAD && acc->imm == -INFINITY ? MAXIMUM : ANY;
    return in->alu == OP_add && x == POWER && acc->imm == 0 ? SUM : ANY;
}

/* Whether an update of the loop does nothing in columns that are masked. */
static bool is_harmless(const finder *f, const kins *in) {
    const uint8_t x = f->reg[in->a];
    return (x == LOW && in->alu == OP_max) || (is_zero(x) && in->alu == OP_add);
}

/* An innermost loop over the columns of rows: whether all that it does with zeros can be left out; notes what it makes. */
static bool find_column_loop(finder *f, int at, int end) {
    kernel *k = f->k;
    const kins *loop = &k->ins.at[at];
    bool goes = !loop->par && !loop->a && !loop->lo && loop->hi == f->n && f->n % loop->step == 0 && f->piece % loop->step == 0,
         zeros = false, known = false;
    for (int i = at + 1; i < end; i++) {
        const kins *in = &k->ins.at[i];
        affine row = { 0 };
        zeros |= reads_zeros(f, in);
        if (in->op == K_PREFETCH) continue;
        if (in->op == K_LOAD) {
            f->reg[i] = is_column(f, in, loop, &row) ? f->buf[in->buf] : ANY, f->row[i] = row;
            known |= f->reg[i] != ANY;
            goes &= f->reg[i] != ANY || !reads_zeros(f, in);
        } else if (in->op == K_STORE) {
            goes &= is_zero(f->reg[in->a]) && is_column(f, in, loop, &row) && k->bufs.at[in->buf].kind == KB_LOCAL;
        } else if (in->op == K_UPD) {
            kind made = update_of(f, in, at, end);
            bool again = f->reg[in->c] != ANY;
            goes &= is_harmless(f, in) && (!again || (f->reg[in->c] == made && affine_equal(f->row[in->c], f->row[in->a])));
            f->reg[in->c] = (uint8_t)made, f->row[in->c] = f->row[in->a];
        } else {
            f->reg[i] = (uint8_t)kind_of(f, in, &row), f->row[i] = row;
            goes &= kernel_is_pure(in);
        }
    }
    for (int i = at + 1; i < end && !goes; i++)
        if (k->ins.at[i].op == K_UPD) f->reg[k->ins.at[i].c] = ANY;
    if (!goes || !known) return !zeros; /* stays as it is */
    for (int i = at + 1; i < end; i++)
        if (k->ins.at[i].op == K_STORE) f->buf[k->ins.at[i].buf] = f->reg[k->ins.at[i].a];
    VEC_PUSH(k->a, &f->loops, at);
    return true;
}

/* The contraction that multiplies by the zeros. */
static bool find_product(finder *f, int at) {
    zero_tile t;
    int zeros = 0;
    if (!zero_tile_find(f->k, at, &t)) return false;
    for (int i = 0; i < t.n_rows; i++) {
        const kins *in = &t.row[i];
        affine column = remainder_of(f->k, in->idx, f->n);
        zeros += reads_zeros(f, in) && column.base == 0 && column.n == 1 && column.t[0].coef == 1;
    }
    if (zeros < t.n_rows || f->k->ins.at[at].hi != f->n || f->piece % t.piece || f->tiles.n == MOST_TILES) return false;
    VEC_PUSH(f->k->a, &f->tiles, t);
    return true;
}

/* Buffers that become ZERO have no other stores than those of the loops that go. */
static bool stores_are_known(const finder *f) {
    const kernel *k = f->k;
    for (int i = f->from + 1; i < f->to; i++) {
        bool known = false;
        if (k->ins.at[i].op == K_SCATTER && f->buf[k->ins.at[i].buf] != ANY) return false;
        if (k->ins.at[i].op != K_STORE || !is_zero(f->buf[k->ins.at[i].buf])) continue;
        for (int l = 0; l < f->loops.n; l++) known |= f->loops.at[l] < i && i < kernel_loop_end(k, f->loops.at[l]);
        if (!known) return false;
    }
    return true;
}

static bool follow_scores(finder *f) {
    kernel *k = f->k;
    f->buf[f->scores] = LOW;
    for (int i = f->from + 1; i < f->to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) {
            int end = kernel_loop_end(k, i);
            if (loop_find_op(k, i + 1, end, K_LOOP)) continue; /* not innermost */
            if (!find_product(f, i) && !find_column_loop(f, i, end)) return false;
            i = end;
        } else if (reads_zeros(f, in)) {
            return false;
        } else if (in->op == K_ALU || in->op == K_LANE_REDUCE) {
            affine row;
            f->reg[i] = (uint8_t)kind_of(f, in, &row), f->row[i] = row;
        }
    }
    return f->loops.n && stores_are_known(f);
}

static bool find(finder *f, kernel *k, int from) {
    static const int64_t pieces[] = { GOOD_PIECE, MOST_PIECE, LEAST_PIECE };
    for (size_t p = 0; p < COUNT_OF(pieces); p++) {
        *f = (finder){ .k = k, .from = from, .to = kernel_loop_end(k, from), .piece = pieces[p] };
        f->buf = ARENA_ARRAY(k->a, uint8_t, k->bufs.n), f->reg = ARENA_ARRAY(k->a, uint8_t, k->ins.n);
        f->row = ARENA_ARRAY(k->a, affine, k->ins.n);
        if (!find_scores(f)) return false;
        if (f->n % f->piece == 0 && f->n >= 2 * f->piece && follow_scores(f)) return true;
    }
    return false;
}

/* ---- writing ---- */

/* The loop in pieces: piece c runs where the bound of its first column is at most `extra`: 0, or more than any column. */
static void cut(const finder *f, int at, int64_t length, int extra) {
    kernel *k = f->k;
    piece_cut c = zero_tile_cut(k, at, length);
    reg index = build_index(k, TN_I32, build_plus(k->a, f->bound, affine_var(k->a, c.piece), length)),
        most = extra >= 0 ? build_load(k, extra, affine_const(0), 1) : build_number(k, TN_I32, 0);
    zero_tile_close(k, &c, build_op(k, OP_le, index, most));
}

/* Before the blocks: extra[0] = 0 where all that the zeros are multiplied by is finite, else n. */
static void check_products(const finder *f, int flags, int extra) {
    kernel *k = f->k;
    for (int i = 0; i < f->tiles.n; i++) zero_tile_check(k, &f->tiles.at[i], flags, i);
    reg sum = build_parts(k, OP_add, flags, affine_const(0), f->tiles.n, 1, 1), zero = build_number(k, TN_F32, 0),
        broken = build_op(k, OP_ne, sum, zero), all = build_number(k, TN_I32, (double)f->n), none = build_number(k, TN_I32, 0);
    build_store(k, extra, affine_const(0), build_select(k, broken, all, none));
}

static bool skip_columns(kernel *k, int block, int first) {
    finder f;
    if (k->vars.n + MOST_TILES + MOST_LOOPS > MAX_LOOPS || !find(&f, k, block) || f.loops.n > MOST_LOOPS) return false;
    for (int i = 0; i < f.tiles.n; i++)
        if (!zero_tile_columns(k, &f.tiles.at[i], first)) return false;
    int flags = f.tiles.n ? build_buffer(k, TN_F32, KB_LOCAL, f.tiles.n) : -1,
        extra = f.tiles.n ? build_buffer(k, TN_I32, KB_LOCAL, 1) : -1;
    for (int i = f.to - 1; i > f.from; i--) { /* the last one first: places of the others stay */
        for (int l = 0; l < f.loops.n; l++)
            if (f.loops.at[l] == i) cut(&f, i, f.piece, extra);
        for (int t = 0; t < f.tiles.n; t++)
            if (f.tiles.at[t].loop == i) cut(&f, i, f.tiles.at[t].piece, extra);
    }
    loop_insertion check = loop_insert_begin(k, first);
    if (f.tiles.n) check_products(&f, flags, extra);
    loop_insert_end(k, &check);
    return true;
}

/* The n-th loop over blocks; 0: there are fewer. */
static int block_loop(const kernel *k, int n) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && k->vars.at[k->ins.at[i].var].block && n-- == 0) return i;
    return 0;
}

bool step_skip_columns(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int n = 0;
    (void)s;
    if (!block_loop(k, 0)) return step_refuse(why, "the kernel does not go by blocks of rows");
    for (int b = 0; block_loop(k, b); b++) n += skip_columns(k, block_loop(k, b), block_loop(k, 0));
    return n || step_refuse(why, "no loop only follows scores that a comparison of indices masks");
}
