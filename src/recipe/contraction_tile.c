/* contraction_tile.c - the register tile of a contraction: the MR x NR tile with the least estimated time (FMA issue, loads,
 * latency) over the whole shape, tails included, within the register budget MR * NV + NV + 1 (measured: larger tiles spill).
 * In: scalar form and the loop with the lanes. Out: roles. */
#include "loop/operand.h"
#include "recipe/register_tile.h"

enum { MAX_MR = 14, MAX_NV = 8 };
enum { FEW_ROWS = 8 };
enum { LONG_ROW = 16 };  /* vectors: shorter ones would be sums of lanes for the most part */
#define READ_AGAIN 1.1   /* what it costs them to be more than one tile, where what has the lanes comes from afar */
enum { LEAST_WAYS = 8 }; /* of a first-level cache: lines that find places side by side, whatever their distance */
enum { MAX_LONE = 16 };  /* vectors of a tile of one row: the matrix is read in long pieces, and the more the longer */
/* The same where the matrix is computed: sums, those of a group, its scales, bytes and what is made of them share 16 or 32
 * registers. (GPT-2's token with 8 bits, one core of a Zen 4, 8, 6, 4 and 3 vectors: AVX-512 7.2, 6.6, 6.6 and 6.7 ms,
 * AVX2 8.5, 7.5, 6.7 and 7.2; with 4 bits 7.2, 7.2, 6.9 and 7.0, AVX2 14.1, 13.7, 13.1 and 13.0.) */
enum { MAX_COMPUTED = 4 };

/* Time of one step along the contraction for an mr x nv tile: FMAs (two a cycle). A core that two programs share gives each of
 * them fewer instructions (three a cycle), one of its own more than the FMAs need: what these do not cover counts half. Four
 * cycles of latency: as many accumulators as are on the way, eight, fill them nearly (measured on Zen 3, 3x3 convolutions
 * 56x56x64, 28x28x128 and 14x14x256: 4 x 2 has 97 to 99 % of the peak, 4 x 3 98 %, 5 x 2 97 %), fewer do not (7x7x512: 7 x 1 74
 * %, 4 x 3 95 %). */
double recipe_tile_cost(const machine *m, int mr, int nv) {
    double fma = mr * nv / m->fma_pipes, all = (mr * nv + mr + nv) / m->issue_shared, cost = fma > all ? fma : (fma + all) / 2,
           least = m->fma_cycles * (mr * nv < m->fma_cycles * m->fma_pipes ? 1.25 : 1.05);
    return cost > least ? cost : least;
}

/* The same where rows are joined: there are as many columns at a time as come out even, if there are many; of few, what is no
 * whole vector goes in `tail` steps of its own. The panel and the rows come from the second-level cache, which one half of the
 * time covers (measured on Zen 5 at 3x3 convolutions of 14x14x256: 3 x 7 has 61 % of the peak, 6 x 4 87 %; on Zen 3 at
 * 7x7x512: 14 x 1 47 %, 6 x 2 58 %). */
static double joined_cost(const machine *x, int64_t m, int64_t nvec, int tail, int mr, int nv) {
    const machine_cache *l2 = &x->level[LEVEL_L2];
    double vector = (double)x->vector_bytes / l2->read * x->ghz / 2, word = vector * 4 / x->vector_bytes, t = 0;
    int64_t full = nvec - (tail > 0);
    double tiles = nvec > MAX_NV ? (double)nvec / nv : (double)((full + nv - 1) / nv), alone = nvec > MAX_NV ? 0 : tail;
    for (int64_t left = m, rows = mr; left > 0; left = rows == mr ? m % mr : 0, rows = m % mr)
        t += (double)(left / rows) * (tiles * (recipe_tile_cost(x, (int)rows, nv) + nv * vector + (double)rows * word) +
                                      alone * (recipe_tile_cost(x, (int)rows, 1) + vector + (double)rows * word));
    return t;
}

static double shape_cost(const machine *x, int64_t m, int64_t nvec, int mr, int nv) {
    double full_m = (double)(m / mr), full_n = (double)(nvec / nv);
    int rest_m = (int)(m % mr), rest_n = (int)(nvec % nv);
    double t = full_m * full_n * recipe_tile_cost(x, mr, nv);
    if (rest_m) t += full_n * recipe_tile_cost(x, rest_m, nv);
    if (rest_n) t += full_m * recipe_tile_cost(x, mr, rest_n);
    if (rest_m && rest_n) t += recipe_tile_cost(x, rest_m, rest_n);
    return t;
}

/* The load that an operand is, but for its type; NULL: it is none. */
static const kins *plain_load(const tile_chooser *c, reg r) {
    const kins *in = &c->k->ins.at[r];
    while (in->op == K_CAST || in->op == K_WRAP) in = &c->k->ins.at[in->a];
    return in->op == K_LOAD ? in : NULL;
}

/* The same, or the load that most of what an operand is computed of comes from. */
const kins *tile_operand_load(const tile_chooser *c, reg r) {
    const kins *plain = plain_load(c, r);
    operand o;
    return plain ? plain : operand_find(c->k, r, &o) ? &c->k->ins.at[o.load] : NULL;
}

/* Windows whose taps are the innermost loop share loads along this row; -1: there are none. */
static kvar sliding_row(const tile_chooser *c, const kins *x, const kins *weight, kvar vec) {
    const kins *in = c->dot;
    while (in->op != K_LOOP) in--;
    bool inside = false, each = affine_coef(weight->idx, vec) && affine_coef(x->idx, vec);
    for (kvar v = 0; v < c->k->vars.n; v++)
        inside |= c->k->vars.at[v].row && affine_coef(weight->idx, v) && affine_coef(x->idx, v);
    return (inside && !each) || !c->k->vars.at[in->var].reduce ? -1 : loop_slides_along(c->k, x, weight, in->var);
}

/* Unrolled partner of the vector loop: a loop that the vector operand does not depend on, so that its loads are used again. */
static kvar partner(const tile_chooser *c, kvar vec, bool want_row) {
    const kins *a = tile_operand_load(c, c->dot->a), *b = tile_operand_load(c, c->dot->b);
    if (!a || !b) return -1;
    if (affine_coef(a->idx, vec) && !affine_coef(b->idx, vec)) {
        const kins *t = a;
        a = b, b = t;
    }
    kvar best = plain_load(c, c->dot->a) && plain_load(c, c->dot->b) ? sliding_row(c, a, b, vec) : -1;
    int64_t best_extent = 1;
    if (best >= 0) return best;
    for (kvar v = 0; v < c->k->vars.n; v++) {
        const kvar_info *i = &c->k->vars.at[v];
        if (v == vec || !(c->dot_open >> v & 1) || i->reduce || affine_coef(b->idx, v) || !affine_coef(a->idx, v)) continue;
        if (want_row && !i->row) continue;
        int64_t e = i->extent > 32 ? 32 : i->extent;
        if (e >= best_extent) best = v, best_extent = e; /* the innermost of the long ones */
    }
    return best;
}

/* Words of two bf16 come apart: two registers for each vector of them, and three for the word of a row. */
static bool is_split(const tile_chooser *c, const kins *a, const kins *b) {
    return a && b && plain_load(c, c->dot->a) && plain_load(c, c->dot->b) && a->src == TN_BF16 && b->src == TN_BF16 &&
           c->dot->dtype == TN_F32 && c->t->packed && !c->t->bf16_sums;
}

bool tile_makes_pairs(const tile_chooser *c) {
    const kins *a = plain_load(c, c->dot->a), *b = plain_load(c, c->dot->b);
    return a && b && dtype_size((tn_dtype)a->src) == 1 && dtype_size((tn_dtype)b->src) == 1 && c->dot->dtype == TN_I32 &&
           target_multiplies_pairs(c->t);
}

static bool tile_fits(const tile_chooser *c, int mr, int nv) {
    int loaded = c->tile_split ? 2 * nv + 2
                 : mr == 1     ? 1
                               : nv + c->tile_pairs; /* used once, an operand comes straight from memory */
    return mr >= 1 && nv >= 1 && mr <= MAX_MR && nv <= c->most_nv && mr <= c->tile_m && nv <= c->tile_nvec &&
           mr * nv + loaded + 1 <= c->t->n_vector_regs;
}

bool recipe_is_worth_sharing(const kernel *k, const target *t) {
    return t->threads > 1 && (double)(k->flops + k->bytes_read + k->bytes_written) >= machine_row_of(t)->share_work;
}

/* How evenly threads share a contraction in tiles of mr x nv, along the loop that is best for that. Those that share its rows
 * all read the operand with the lanes, which takes as long as some rows: the more threads there are, the fewer rows each has.
 * And columns of a parameter that one thread reads and updates stay in that core's caches: where few rows are read at a time,
 * as in the forward pass, they are shared out by columns anyway. */
static double shared_balance(const tile_chooser *c, kvar vec, kvar row, int mr, int nv) {
    const int threads = c->t->threads;
    const machine *x = machine_row_of(c->t);
    double best = 0;
    for (kvar v = 0; v < c->k->vars.n; v++) {
        if (!(c->dot_open >> v & 1) || !c->k->vars.at[v].row) continue;
        double balance = loop_balance_of(c->k, v, v == vec ? nv * c->lanes : v == row ? mr : 1, threads);
        if (v == row) balance /= 1 + x->remote_cost + (threads - 1) * x->remote_rows / (double)c->k->vars.at[v].extent;
        if (balance > best) best = balance;
    }
    return best > 0 ? best : 1;
}

/* The operand with the lanes is fixed and larger than the caches of a core. */
static bool is_from_afar(const tile_chooser *c, kvar vec) {
    const kins *a = tile_operand_load(c, c->dot->a), *b = tile_operand_load(c, c->dot->b);
    if (!a || !b) return false;
    const kbuf *x = &c->k->bufs.at[(affine_coef(b->idx, vec) ? b : a)->buf];
    return x->fixed && x->elems * (int64_t)dtype_size((tn_dtype)x->dtype) > c->t->l2_bytes;
}

/* Rows of the operand without the lanes whose lines find places side by side in the first-level cache: each is read a word at a
 * time, and rows a power of two apart drive each other's lines out (one core of a Zen 3, 1 x 1, 7 x 7 x 1024 to 2048: 14 rows
 * of 4 KiB 11.9 ms, 6 rows 4.7). */
static int64_t rows_side_by_side(const tile_chooser *c, const kins *a, const kins *b, kvar vec, kvar row) {
    const kins *x = a && b ? affine_coef(b->idx, vec) ? a : b : NULL;
    if (!x || row < 0 || x->op != K_LOAD) return INT64_MAX;
    int64_t apart = affine_coef(x->idx, row) * (int64_t)dtype_size((tn_dtype)x->src);
    int64_t places = loop_places(c->t->l1_bytes, apart < 0 ? -apart : apart);
    return places < LEAST_WAYS ? LEAST_WAYS : places;
}

/* Windows of bytes whose taps along the innermost loop are words of the processor (packed_dot.c): the row whose neighbours
 * share them, or -1. A word of each lane is put together of bytes in memory, which takes longer than to multiply it. */
static kvar row_of_words(const tile_chooser *c, const kins *a, const kins *b, kvar vec) {
    const kins *in = c->dot, *x = a, *weight = b;
    if (!a || !b || a->op != K_LOAD || b->op != K_LOAD || c->dot->dtype != TN_I32 || c->t->packed < 2) return -1;
    while (in->op != K_LOOP) in--;
    const kvar_info *taps = &c->k->vars.at[in->var];
    if (affine_coef(b->idx, vec)) x = b, weight = a;
    if (a->src == b->src || dtype_size((tn_dtype)a->src) != 1 || dtype_size((tn_dtype)b->src) != 1 ||
        affine_coef(weight->idx, vec) || affine_coef(x->idx, in->var) != 1 || affine_coef(weight->idx, in->var) != 1 ||
        !taps->reduce || taps->extent % c->t->packed || in[-1].op != K_LOOP || !c->k->vars.at[in[-1].var].reduce)
        return -1;
    for (kvar v = 0; v < c->k->vars.n; v++) /* many filters of one image share its words anyway */
        if (c->k->vars.at[v].row && affine_coef(weight->idx, v) && !affine_coef(x->idx, v) &&
            c->k->vars.at[v].extent >= FEW_ROWS)
            return -1;
    return loop_slides_along(c->k, x, weight, in[-1].var);
}

/* One row of panels has a sum a vector, each of which waits for itself: two parts of each do not, every second term in one. */
static void part_sums(tile_chooser *c) {
    const kins *in = c->dot;
    while (in->op != K_LOOP) in--;
    const kvar_info *v = &c->k->vars.at[in->var];
    if (v->reduce && v->extent % 2 == 0) c->role[in->var] = (krole){ 2, 1 };
}

void tile_contraction(tile_chooser *c, kvar vec, int64_t columns, bool joined) {
    const kernel *k = c->k;
    int64_t nvec = (columns + c->lanes - 1) / c->lanes;
    kvar row = partner(c, vec, true);
    int64_t m = row >= 0 ? k->vars.at[row].extent : 1;
    int best_mr = 1, best_nv = 1;
    double best = 1e300;
    const kins *a = tile_operand_load(c, c->dot->a), *b = tile_operand_load(c, c->dot->b);
    bool shared = recipe_is_worth_sharing(c->k, c->t),
         each = a && b && affine_coef(a->idx, vec) && affine_coef(b->idx, vec); /* lane by lane: neighbours share loads */
    kvar sliding = row_of_words(c, a, b, vec);
    if (sliding >= 0) row = sliding, m = k->vars.at[row].extent, each = true;
    if (each) best_mr = loop_sliding_rows(m);
    c->tile_m = m, c->tile_nvec = nvec, c->tile_split = is_split(c, a, b), c->tile_pairs = tile_makes_pairs(c);
    bool plain = plain_load(c, c->dot->a) && plain_load(c, c->dot->b);
    c->most_nv = m > 1 || !a || !b ? MAX_NV : plain ? MAX_LONE : MAX_COMPUTED;
    int64_t share = (nvec + c->t->threads - 1) / c->t->threads; /* each thread needs a tile */
    if (m == 1 && shared && share < c->most_nv) c->most_nv = share;
    int least_nv = c->r->laid_out && c->t->n_vector_regs >= 32 ? PANEL_VECTORS : 1; /* words of bytes are read all at once */
    if (least_nv > c->most_nv) c->most_nv = least_nv;
    bool once = is_from_afar(c, vec) && m <= FEW_ROWS;
    int64_t near = rows_side_by_side(c, a, b, vec, row);
    int tail = (int)tile_steps(columns % c->lanes, c->lanes);
    for (int nv = least_nv; nv <= c->most_nv && nv <= nvec && !each; nv++)
        for (int mr = 1; mr <= MAX_MR && mr <= m; mr++) {
            if (!tile_fits(c, mr, nv) || (mr > near && mr > 1)) continue;
            const machine *x = machine_row_of(c->t);
            double cost = (joined ? joined_cost(x, m, nvec, tail, mr, nv) : shape_cost(x, m, nvec, mr, nv)) *
                          (once && mr < m ? READ_AGAIN : 1);
            if (shared) cost /= shared_balance(c, vec, row, mr, nv);
            if (cost < best * 0.999) best = cost, best_mr = mr, best_nv = nv;
        }
    if (tile_fits(c, c->r->rows, c->r->vectors)) best_mr = c->r->rows, best_nv = c->r->vectors;
    c->role[vec] = (krole){ best_nv, c->lanes };
    if (c->r->lone && c->t->n_vector_regs >= 32) part_sums(c);
    if (row >= 0) c->role[row] = (krole){ best_mr, 1 };
}

/* A row loop, in which vectors lie along the contraction, that one operand depends on and the other does not. */
static bool has_rows(const tile_chooser *c, const kins *of, const kins *other) {
    for (kvar v = 0; v < c->k->vars.n; v++) {
        const kvar_info *i = &c->k->vars.at[v];
        if (i->row && (c->dot_open >> v & 1) && i->extent > 1 && affine_coef(of->idx, v) && !affine_coef(other->idx, v))
            return true;
    }
    return false;
}

/* A matrix that is larger than the caches of a core, each row of which is used once: it is read from end to end. (One core of a
 * Zen 4, 768 x 50,257 times a vector: four rows at once 11.2 ms in f32, 7.5 in bf16, 5.9 in 8 bits, one row 7.5, 3.1 and 3.4.)
 */
static bool is_read_once(const tile_chooser *c, kvar vec, const kins *a, const kins *b) {
    int64_t depth = 1;
    for (kvar v = 0; v < c->k->vars.n; v++)
        if (c->k->vars.at[v].reduce && (c->dot_open >> v & 1)) depth *= c->k->vars.at[v].extent;
    if (!a || !b || depth < LONG_ROW * c->lanes || c->k->vars.at[vec].extent < c->lanes) return false;
    bool first = has_rows(c, a, b), second = has_rows(c, b, a);
    const kins *matrix = first ? a : b;
    return first != second && c->k->bufs.at[matrix->buf].elems * (int64_t)dtype_size((tn_dtype)matrix->src) > c->t->l2_bytes;
}

/* Vectors along the contraction: several sums at once, for independent chains and reuse of loads. */
void tile_inner_product(tile_chooser *c, kvar vec) {
    const kernel *k = c->k;
    const kins *a = tile_operand_load(c, c->dot->a), *b = tile_operand_load(c, c->dot->b);
    bool once = is_read_once(c, vec, a, b), few = k->vars.at[vec].extent < 2 * c->lanes; /* sums of a row wait for themselves */
    int budget = once ? 2 : 4;                                                           /* rows */
    if (once && !few) {
        int n = MAX_NV;
        while (n > 1 && k->vars.at[vec].extent < (int64_t)n * c->lanes) n /= 2;
        c->role[vec] = (krole){ n, c->lanes };
        return;
    }
    for (int side = 0; side < 2 && a && b; side++) {
        kvar best = -1;
        for (kvar v = 0; v < k->vars.n; v++) {
            const kvar_info *i = &k->vars.at[v];
            if (!i->row || !(c->dot_open >> v & 1) || i->extent < 2 || c->role[v].unroll > 1) continue;
            if (affine_coef((side ? a : b)->idx, v) && !affine_coef((side ? b : a)->idx, v)) best = v;
        }
        if (best < 0) continue;
        int u = side ? 2 : 4;
        if (u > budget) u = budget;
        if (k->vars.at[best].extent < u) u = (int)k->vars.at[best].extent;
        c->role[best].unroll = u;
        budget = budget / u > 0 ? 8 / u : 1;
    }
    c->role[vec] = (krole){ k->vars.at[vec].extent >= 2 * c->lanes && budget > 1 ? 2 : 1, c->lanes };
}
