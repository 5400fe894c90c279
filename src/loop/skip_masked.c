/* skip_masked.c - the sums of a tile that a mask throws away altogether are not made: the contraction loop of the tile has a
 * condition. In and out: tiled form.
 *
 * Applies where all that a loop makes are sums, each used, perhaps scaled, by selects alone whose condition compares indices:
 * keys that come after a query (causal attention), a band, a triangle. Over the lanes and rows of a tile the difference of the
 * two indices has a least value, which is affine in the loops around: if even that does not satisfy the comparison, no sum is
 * used. The greater side may have a number of the run added (attention to as much of a cache as is used so far). Exact: what
 * the selects give instead of the sums does not depend on them.
 *
 * And where all that a loop does is add what such a select makes 0, or take the maximum of what it makes -inf: the loop goes in
 * pieces, each with a condition. A sum that begins with +0 never comes to -0, which adding 0 would change. */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/index_compare.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "loop/zero_tile.h"

#include <math.h>

enum {
    LEAST_PIECE = 32, /* iterations */
    MOST_PIECE = 128,
    LEAST_UPDATES = 64, /* of a loop: fewer are as fast as the question */
    LEAST_OF_RUN = 16,  /* the same where a run decides: a cache is long, and most of it comes from memory */
    MOST_BETWEEN = 5    /* operations between a sum and its select, such as a scale, or adding up parts of it */
};

typedef struct bound { /* some sum is used only where this is at most 0, or `run` */
    affine e;
    reg run;
    bool known;
} bound;

/* An index, or a number. */
static bool line_of(const kernel *k, reg r, index_line *out) {
    const kins *in = &k->ins.at[r];
    if (in->op == K_INDEX)
        *out = (index_line){ in->idx, in->lanes > 1 ? in->lane_stride : 0, in->lanes, 0 };
    else if (in->op == K_CONST && !dtype_is_float((tn_dtype)in->dtype))
        *out = (index_line){ affine_const(in->imm_int), 0, 1, 0 };
    else
        return false;
    return true;
}

/* Whether no index that the affine gives is negative. */
static bool counts_up(affine e) {
    bool up = e.base >= 0;
    for (int i = 0; i < e.n; i++) up &= e.t[i].coef >= 0;
    return up;
}

/* The same, or a number of the run, or one added to an index: where that wraps round, below 0, no index is less. */
static bool greater_line(const kernel *k, reg r, index_line *out) {
    const kins *in = &k->ins.at[r];
    if (line_of(k, r, out)) return true;
    if (in->dtype != TN_I32) return false;
    bool sum = in->op == K_ALU && in->alu == OP_add;
    reg index = sum ? (k->ins.at[in->a].op == K_INDEX ? in->a : in->b) : 0, run = !sum ? r : index == in->a ? in->b : in->a;
    if (k->ins.at[run].lanes > 1) return false;
    *out = (index_line){ affine_const(0), 0, 1, run };
    if (!sum) return true;
    if (!line_of(k, index, out) || !counts_up(out->e) || out->step < 0) return false;
    out->run = run;
    return true;
}

bool index_compare(const kernel *k, reg r, bool not, index_line *out) {
    const kins *in = &k->ins.at[r];
    bool less = in->alu == OP_le || in->alu == OP_lt, equal = in->alu == OP_le || in->alu == OP_ge;
    index_line a, b;
    if (in->op != K_ALU || (!less && in->alu != OP_ge && in->alu != OP_gt)) return false;
    if (!line_of(k, less != not ? in->a : in->b, &a) || !greater_line(k, less != not ? in->b : in->a, &b)) return false;
    if (b.run && !counts_up(a.e)) return false;
    affine e = affine_offset(build_plus(k->a, a.e, b.e, -1), equal == not ); /* x < y: x - y + 1 <= 0 */
    *out = (index_line){ e, a.step - b.step, a.lanes > b.lanes ? a.lanes : b.lanes, b.run };
    return true;
}

/* Where condition r holds (or does not: `not`) for some lane. Of both sides of an `and` one is enough. */
static bool can_hold(const kernel *k, reg r, bool not, index_line *out) {
    const kins *in = &k->ins.at[r];
    if (in->op == K_ALU && in->alu == OP_and) return !not &&(can_hold(k, in->a, false, out) || can_hold(k, in->b, false, out));
    if (!index_compare(k, r, not, out)) return false;
    out->e = affine_offset(out->e, out->step < 0 ? out->step * (out->lanes - 1) : 0);
    return true;
}

/* The bound of all sums so far, with one more that is x: the same but for a constant. */
static bool widen(bound *b, index_line x) {
    if (b->known && (!affine_equal(affine_offset(b->e, x.e.base - b->e.base), x.e) || b->run != x.run)) return false;
    if (!b->known || x.e.base < b->e.base) b->e = x.e;
    b->run = x.run;
    return b->known = true;
}

/* Whether all uses of value r behind the loop are selects, each of which widens the bound, or pure work on it that such selects
 * use. */
static bool is_selected(const kernel *k, reg r, int end, int depth, bound *b) {
    for (int i = end + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        index_line e;
        if (!build_takes(in, r)) continue;
        bool select = in->op == K_ALU && in->alu == OP_select && in->a != r && (in->b == r) != (in->c == r);
        if (select && can_hold(k, in->a, in->c == r, &e) && widen(b, e)) continue;
        bool work = kernel_is_pure(in) || in->op == K_LANE_REDUCE;
        if (!work || depth == 0 || !is_selected(k, (reg)i, i, depth - 1, b)) return false;
    }
    return true;
}

/* Loops that are open at instruction `at` have all variables of the affine. */
static bool is_open(const kernel *k, int at, affine e) {
    int open[MAX_LOOPS + 1], n = k->vars.n > MAX_LOOPS ? 0 : kernel_open_loops(k, (reg)at, open);
    for (int i = 0; i < e.n; i++) {
        bool found = false;
        for (int l = 0; l < n && !found; l++) found = k->ins.at[open[l]].var == e.t[i].var;
        if (!found) return false;
    }
    return true;
}

/* Register r is there at instruction `at`. */
static bool is_visible(const kernel *k, reg r, int at) {
    int depth = 0;
    for (int i = (int)r + 1; i < at && depth >= 0; i++)
        depth += k->ins.at[i].op == K_LOOP ? 1 : k->ins.at[i].op == K_END ? -1 : 0;
    return (int)r < at && depth >= 0;
}

/* The loop makes nothing but sums that selects use, and enough of them: *out, where one is used. */
static bool find_bound(const kernel *k, int loop, int end, bound *out) {
    int64_t updates = 0, trips = 1;
    for (int i = loop; i < end; i++) {
        const kins *in = &k->ins.at[i];
        bool harmless = kernel_is_pure(in) || in->op == K_LOAD || in->op == K_PREFETCH || in->op == K_LOOP || in->op == K_END;
        if (in->op == K_LOOP && (in->par || in->a)) return false;
        if (in->op == K_LOOP) trips *= (in->hi - in->lo) / in->step;
        if (harmless) continue;
        if (in->op != K_UPD || (int)in->c > loop) return false;
        updates++;
        if (!is_selected(k, in->c, end, MOST_BETWEEN, out)) return false;
    }
    return updates && updates * trips >= (out->run ? LEAST_OF_RUN : LEAST_UPDATES) && is_open(k, loop, out->e) &&
           is_visible(k, out->run, loop);
}

static void put_condition(kernel *k, int loop, bound b) {
    loop_insertion x = loop_insert_begin(k, loop);
    reg at = build_index(k, TN_I32, b.e), most = b.run ? b.run : build_number(k, TN_I32, 0),
        needed = build_op(k, OP_le, at, most);
    int more = loop_insert_end(k, &x); /* which may move the list */
    k->ins.at[loop + more].a = needed;
}

/* ---- sums of what is masked ---- */

/* Whether accumulator acc stays as it is when it is updated with the constant. */
static bool keeps(const kernel *k, const kins *upd, reg constant) {
    const kins *acc = &k->ins.at[upd->c], *c = &k->ins.at[constant];
    if (c->op != K_CONST || acc->op != K_ACC) return false;
    if (!dtype_is_float((tn_dtype)upd->dtype)) return upd->alu == OP_add && c->imm_int == 0;
    return upd->alu == OP_add ? c->imm == 0 && acc->imm == 0 && !signbit(acc->imm)
                              : isinf(c->imm) && upd->alu == (c->imm < 0 ? OP_max : OP_min);
}

/* The loop does nothing but update accumulators with what a select replaces by what keeps them: *out, where one is updated. */
static bool find_masked_terms(const kernel *k, int loop, int end, bound *out) {
    for (int i = loop + 1; i < end; i++) {
        const kins *in = &k->ins.at[i], *term = &k->ins.at[in->a];
        index_line e;
        if (kernel_is_pure(in) || in->op == K_LOAD || in->op == K_PREFETCH) continue;
        if (in->op != K_UPD || (int)in->c > loop || term->op != K_ALU || term->alu != OP_select) return false;
        bool not = keeps(k, in, term->b);
        if (!(not || keeps(k, in, term->c)) || !can_hold(k, term->a, not, &e) || !widen(out, e)) return false;
    }
    return out->known && is_visible(k, out->run, loop);
}

/* ---- results that are masked ---- */

/* What the loop does is store what selects give, a constant where a value is not needed: *out, where one is. */
static bool find_masked_results(const kernel *k, int loop, int end, bound *out) {
    int64_t work = 0;
    for (int i = loop + 1; i < end; i++) {
        const kins *in = &k->ins.at[i], *value = &k->ins.at[in->a];
        index_line e;
        work += in->op == K_UPD;
        if (in->op == K_LOOP && (in->par || in->a)) return false;
        if (in->op == K_ARGUPD || in->op == K_SCATTER || (in->op == K_UPD && (int)in->c < loop)) return false;
        if (in->op != K_STORE) continue;
        if (value->op != K_ALU || value->alu != OP_select || in->n_mask || in->dyn) return false;
        bool not = k->ins.at[value->b].op == K_CONST && (int)value->b < loop;
        if (!not &&!(k->ins.at[value->c].op == K_CONST && (int)value->c < loop)) return false;
        if (!can_hold(k, value->a, not, &e) || !widen(out, e)) return false;
    }
    return work && out->known && out->run && is_visible(k, out->run, loop);
}

/* The loop that stores constants where nothing is needed, from the instructions of the one that may be. */
static void store_constants(kernel *k, const kins *loop, const kins *end, int first, int64_t length, reg unneeded) {
    kins head = *loop;
    head.a = unneeded, head.hi = length;
    kernel_push(k, head);
    for (const kins *in = loop; in < end; in++) {
        kins store = *in;
        if (in->op != K_STORE) continue;
        const kins *value = &loop[(int)in->a - first];
        store.a = (int)value->b < first && k->ins.at[value->b].op == K_CONST ? value->b : value->c;
        kernel_push(k, store);
    }
    build_ends(k, 1);
}

/* ---- pieces ---- */

static bool skip_pieces(kernel *k, int loop, int end) {
    const kins in = k->ins.at[loop];
    bound b = { 0 };
    int64_t length = LEAST_PIECE;
    bool reduce = k->vars.at[in.var].reduce;
    if (in.par || in.a || in.lo || k->vars.n >= MAX_LOOPS || !ext_is_lit(in.hi)) return false;
    if (!(reduce ? find_masked_terms : find_masked_results)(k, loop, end, &b)) return false;
    int64_t along = affine_coef(b.e, in.var);
    while (length < MOST_PIECE && (in.hi % length || length % in.step)) length++;
    if (!along || in.hi % length || length % in.step || in.hi < 2 * length || !is_open(k, loop + 1, b.e)) return false;
    piece_cut c = zero_tile_cut(k, loop, length);
    affine least = affine_offset(build_times(k->a, c.piece, length), along > 0 ? 0 : length - in.step);
    reg at = build_index(k, TN_I32, affine_set_var(k->a, b.e, in.var, least)),
        most = b.run ? b.run : build_number(k, TN_I32, 0), needed = build_op(k, OP_le, at, most);
    if (!reduce) store_constants(k, c.at.rest, c.at.rest + (end - loop), loop, length, build_op(k, OP_gt, at, most));
    zero_tile_close(k, &c, needed);
    return true;
}

bool step_skip_masked(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int n = 0;
    (void)s;
    for (int i = 1; i < k->ins.n; i++) {
        bound b = { 0 };
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].par) continue;
        int end = kernel_loop_end(k, i);
        if (!find_bound(k, i, end, &b)) {
            n += skip_pieces(k, i, end);
            continue;
        }
        if (b.e.n) put_condition(k, i, b), n++, i += b.run ? 2 : 3;
        i = kernel_loop_end(k, i);
    }
    return n || step_refuse(why, "no loop makes only sums that a comparison of indices may throw away");
}
