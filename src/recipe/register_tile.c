/* register_tile.c - the register tile of a kernel: which loop runs along vector lanes (vector_loop.c), which loops are unrolled
 * and by how much (contraction_tile.c: of a contraction), which is split over threads. In: scalar form. Out: the steps
 * vectorize and unroll_jam; recipe.threads. One row loop has the lanes for the whole kernel, or one inner loop for each nest.
 */
#include "loop/contraction.h"
#include "recipe/register_tile.h"

enum { SHORT_ROW = 512, JOINED = 4, SHORT_SUM = 64 }; /* elements of a row; rows worked on at once; terms of a sum */
enum { LEAST_PAIRED = 24 };                           /* rows that share words of pairs of bytes */
enum { MOST_JOINED = 4 };                             /* loops whose iterations are columns of panels */
#define COPIED_ROWS 5.0                               /* of a contraction: they take as long as copying what they share .. */
#define JOIN_MARGIN 0.05                              /* .. and it should bring more than that */

static int alu_weight(const tile_chooser *c, uint64_t var) {
    int n = 0;
    uint64_t open = 0;
    kvar stack[64];
    int depth = 0;
    for (int i = 1; i < c->k->ins.n; i++) {
        const kins *in = &c->k->ins.at[i];
        if (in->op == K_LOOP) stack[depth++] = in->var, open |= 1ull << in->var;
        if (in->op == K_END) open &= ~(1ull << stack[--depth]);
        if (!(open & var)) continue;
        if (in->op == K_ALU) n += op_get((op_code)in->alu)->flops;
        if (in->op == K_RANDOM) n += 40;
    }
    return n;
}

static bool tile_transposed(tile_chooser *c, kvar vec) {
    const kernel *k = c->k;
    for (int i = 0; i < c->refs.n; i++) {
        const kins *in = c->refs.at[i].in;
        kvar u = tile_turned_along(c, in, vec);
        if (u < 0) continue;
        int lanes = loop_transpose_lanes((tn_dtype)in->dtype, c->lanes);
        int squares = c->t->n_vector_regs >= 32 && k->vars.at[vec].extent >= 2 * lanes ? 2 : 1; /* whole lines of the result */
        c->role[vec] = (krole){ squares, lanes };
        c->role[u] = (krole){ k->vars.at[u].extent >= 2 * lanes ? 2 * lanes : lanes, 1 }; /* a whole cache line */
        return true;
    }
    return false;
}

/* All loads gather lanes that lie apart, and results are written as vectors: whole lines of them at once. */
static bool gathers(const tile_chooser *c, kvar vec) {
    bool any = false;
    for (int i = 0; i < c->refs.n; i++) {
        const kins *in = c->refs.at[i].in;
        int64_t coef = affine_coef(in->idx, vec);
        any |= in->op == K_LOAD && coef > 1;
        if (in->op == K_LOAD ? coef == 1 : coef != 1) return false;
    }
    return any;
}

static void tile_plain(tile_chooser *c, kvar vec) {
    const kernel *k = c->k;
    if (tile_transposed(c, vec)) return;
    int64_t steps = k->vars.at[vec].extent / c->lanes;
    int weight = alu_weight(c, 1ull << vec);
    int unroll = k->vars.at[vec].reduce ? 4 : weight > 24 ? 1 : weight > 8 ? 2 : 4;
    if (unroll == 1 && gathers(c, vec)) unroll = 2;
    while (unroll > 1 && steps < unroll) unroll /= 2;
    c->role[vec] = (krole){ unroll, c->lanes };
}

static bool is_inside_dot(const tile_chooser *c, kvar v) { return c->dot && (c->dot_open >> v & 1); }

/* Short rows that are summed along: a row waits at the end of each of its sums, so several are worked on at once, with fewer
 * partial sums each. The order of a sum depends on the shape alone. */
static void join_rows(tile_chooser *c, const kvar *inner) {
    const kernel *k = c->k;
    kvar row = -1;
    bool sums = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ARGUPD || in->op == K_SCATTER) return;
        if (in->op == K_LOOP && k->vars.at[in->var].row) row = in->var;
    }
    for (int n = 0; n < c->n_nests; n++) {
        if (inner[n] < 0 || k->vars.at[inner[n]].extent > SHORT_ROW) return;
        sums = sums || k->vars.at[inner[n]].reduce;
    }
    if (!sums || c->dot || row < 0 || k->vars.at[row].extent < 2 * JOINED) return;
    if (k->bytes_read + k->bytes_written > 8 * (uint64_t)c->t->l2_bytes)
        return; /* from afar, one row after the other is faster */
    bool join = k->vars.at[row].extent >= 2 * JOINED * (int64_t)c->t->threads;
    if (join) c->role[row].unroll = JOINED;
    for (int n = 0; n < c->n_nests; n++) {
        krole *r = &c->role[inner[n]];
        if (k->vars.at[inner[n]].reduce)
            r->unroll = r->unroll < 2 ? 1 : 2;
        else if (join)
            r->unroll = 1;
    }
}

/* Short sums in the lanes of a row of few vectors: each term waits for the one before it, so several rows around are worked on
 * at once. */
static void sums_beside(tile_chooser *c, kvar vec) {
    const kernel *k = c->k;
    double terms = 1;
    kvar around = -1;
    bool sums = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ARGUPD || in->op == K_SCATTER || in->op == K_RANDOM) return;
        sums = sums || in->op == K_UPD;
        if (in->op != K_LOOP || in->var == vec) continue;
        if (!k->vars.at[in->var].row)
            terms *= (double)k->vars.at[in->var].extent;
        else
            around = in->var;
    }
    if (!sums || c->dot || c->n_nests != 1 || around < 0 || terms > SHORT_SUM || c->role[vec].unroll > 1) return;
    if (k->vars.at[around].extent >= 2 * JOINED * (int64_t)c->t->threads) c->role[around].unroll = JOINED;
}

static void choose_roles(tile_chooser *c) {
    const kernel *k = c->k;
    double row_score, inner_score = 0;
    kvar row = tile_vector_loop(c, c->row_vars, -1, &row_score), inner[64];
    for (int n = 0; n < c->n_nests; n++) {
        double s;
        inner[n] = tile_vector_loop(c, c->nest_vars[n], n, &s);
        inner_score += s;
    }
    if (c->lanes == 1) return;
    if (row < 0 && inner_score <= 0) row = tile_gathered_row(c);
    if (row >= 0 && row_score >= inner_score) {
        if (is_inside_dot(c, row))
            tile_contraction(c, row, k->vars.at[row].extent, false);
        else
            tile_plain(c, row), sums_beside(c, row);
        return;
    }
    for (int n = 0; n < c->n_nests; n++) {
        if (inner[n] < 0) continue;
        if (!is_inside_dot(c, inner[n]))
            tile_plain(c, inner[n]);
        else if (k->vars.at[inner[n]].reduce)
            tile_inner_product(c, inner[n]);
        else
            tile_contraction(c, inner[n], k->vars.at[inner[n]].extent, false);
    }
    join_rows(c, inner);
}

/* ---- threads ---- */

static kvar choose_parallel(const tile_chooser *c) {
    const kernel *k = c->k;
    kvar par = -1;
    if (!recipe_is_worth_sharing(c->k, c->t)) return -1;
    double best = 0;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op != K_STORE && k->ins.at[i].op != K_ACC;
         i++) { /* rows, and what was hoisted between them */
        if (k->ins.at[i].op != K_LOOP) continue;
        if (!k->vars.at[k->ins.at[i].var].row) break;
        const kvar_info *v = &k->vars.at[k->ins.at[i].var];
        int64_t step = (int64_t)v->role.unroll * v->role.lanes;
        double balance = loop_balance_of(k, k->ins.at[i].var, step, c->t->threads);
        if (v->extent > step && balance > best + 0.05) best = balance, par = k->ins.at[i].var;
    }
    return par;
}

kvar recipe_result_row(const kernel *k) {
    kvar row = -1;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op != K_ACC; i++)
        if (k->ins.at[i].op == K_LOOP && k->vars.at[k->ins.at[i].var].row) row = k->ins.at[i].var;
    for (int i = 1; i < k->ins.n && row >= 0; i++)
        if (k->ins.at[i].op == K_STORE && affine_coef(k->ins.at[i].idx, row) != 1) row = -1;
    return row;
}

static bool lie_along_sum(const tile_chooser *c, const kins *a, const kins *b) {
    bool along = false;
    for (kvar v = 0; v < c->k->vars.n; v++)
        along |=
            c->k->vars.at[v].reduce && (c->dot_open >> v & 1) && affine_coef(a->idx, v) == 1 && affine_coef(b->idx, v) == 1;
    return along;
}

/* Iterations of the rows that operand x does not depend on: they share what is copied of it. */
static int64_t rows_beside(const tile_chooser *c, const kins *x) {
    int64_t n = 1;
    for (kvar v = 0; v < c->k->vars.n; v++)
        if ((c->dot_open >> v & 1) && c->k->vars.at[v].row && !affine_coef(x->idx, v)) n *= c->k->vars.at[v].extent;
    return n;
}

/* Rows of the result are no whole vectors, and many of them joined are nearly. What lies as vectors in place is copied for
 * that: with few rows, the copies take as long as what they bring. */
static bool pays_to_join(const tile_chooser *c, const kins *x, kvar row, int64_t columns) {
    int64_t extent = c->k->vars.at[row].extent;
    if (tile_makes_pairs(c) && rows_beside(c, x) >= LEAST_PAIRED)
        return true; /* each tile of rows would make the words again */
    double apart = (double)tile_steps(extent, c->lanes) * (double)(columns / extent),
           one = (double)tile_steps(columns, c->lanes);
    return apart > one * (1 + COPIED_ROWS / (double)rows_beside(c, x) + JOIN_MARGIN);
}

/* The row of the result that lies along memory and that one operand alone depends on, where that operand can be read as vectors
 * of it only when it is copied: both operands lie along a contraction loop, its elements lie apart, or its rows are short; or
 * where it is computed, which the copy does once.
 * *columns: of the row, with those that are joined with it; *join: how many these are. */
static kvar packed_row(const tile_chooser *c, int *join, int64_t *columns) {
    *join = 0;
    if (!c->dot) return -1;
    const kins *a = tile_operand_load(c, c->dot->a), *b = tile_operand_load(c, c->dot->b);
    kvar row = recipe_result_row(c->k);
    if (!a || !b || a->dyn || b->dyn || row < 0 || !affine_coef(a->idx, row) == !affine_coef(b->idx, row)) return -1;
    const kins *x = affine_coef(a->idx, row) ? a : b;
    reg value = x == a ? c->dot->a : c->dot->b;
    bool along = lie_along_sum(c, a, b), apart = affine_coef(x->idx, row) != 1, computed = &c->k->ins.at[value] != x;
    int upd = (int)(c->dot - c->k->ins.at), joinable = contraction_joinable(c->k, upd, value, row, columns);
    if (joinable && joinable <= MOST_JOINED && (along || apart || pays_to_join(c, x, row, *columns))) *join = joinable;
    if (!*join) *columns = c->k->vars.at[row].extent;
    return *columns < c->lanes || !(along || apart || computed || *join) ? -1 : row;
}

/* For the steps: what was chosen goes to the kernel. */
static void tile(tile_chooser *c) {
    for (kvar v = 0; v < c->k->vars.n; v++) {
        const char *name = c->k->vars.at[v].name;
        if (c->role[v].lanes > 1) recipe_do(c->r, "vectorize %s %d", name, c->role[v].lanes);
        if (c->role[v].unroll > 1) recipe_do(c->r, "unroll_jam %s %d", name, c->role[v].unroll);
    }
    c->r->threads = choose_parallel(c);
}

static tile_chooser make(recipe *r) {
    tile_chooser c = { .r = r, .k = r->k, .t = r->t };
    for (kvar v = 0; v < r->k->vars.n; v++) c.role[v] = r->k->vars.at[v].role;
    tile_survey(&c);
    return c;
}

bool recipe_register_tile_packed(recipe *r) {
    if (r->k->vars.n > MAX_LOOPS) return false;
    tile_chooser c = make(r);
    int64_t columns;
    kvar row = c.lanes > 1 ? packed_row(&c, &r->join, &columns) : -1;
    if (row < 0) return false;
    tile_contraction(&c, row, columns, r->join > 0);
    tile(&c);
    return true;
}

void recipe_register_tile(recipe *r) {
    if (r->k->vars.n > MAX_LOOPS) return;
    tile_chooser c = make(r);
    choose_roles(&c);
    tile(&c);
}
