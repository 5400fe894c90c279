/* skip_masked.c - the sums of a tile that a mask throws away altogether are not made: the contraction loop of the tile has a
 * condition. In and out: tiled form.
 *
 * Applies where all that a loop makes are sums, each used, perhaps scaled, by selects alone whose condition compares indices:
 * keys that come after a query (causal attention), a band, a triangle. Over the lanes and rows of a tile the difference of the
 * two indices has a least value, which is affine in the loops around: if even that does not satisfy the comparison, no sum is
 * used. Exact: what the selects give instead of the sums does not depend on them. */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"

enum {
    LEAST_UPDATES = 64, /* of a loop: fewer are as fast as the question */
    MOST_BETWEEN = 4    /* operations between a sum and its select, such as a scale */
};

typedef struct bound { /* some sum is used only where this is at most 0 */
    affine e;
    bool known;
} bound;

typedef struct line { /* values of lanes: e, e + step, .. */
    affine e;
    int64_t step;
    int lanes;
} line;

static bool line_of(const kernel *k, reg r, line *out) {
    const kins *in = &k->ins.at[r];
    if (in->op == K_INDEX)
        *out = (line){ in->idx, in->lanes > 1 ? in->lane_stride : 0, in->lanes };
    else if (in->op == K_CONST && !dtype_is_float((tn_dtype)in->dtype))
        *out = (line){ affine_const(in->imm_int), 0, 1 };
    else
        return false;
    return true;
}

/* x - y + more <= 0 for some lane. */
static bool least(const kernel *k, reg x, reg y, int64_t more, affine *out) {
    line a, b;
    if (!line_of(k, x, &a) || !line_of(k, y, &b)) return false;
    int64_t step = a.step - b.step, lanes = a.lanes > b.lanes ? a.lanes : b.lanes;
    affine e = build_plus(k->a, a.e, b.e, -1);
    *out = affine_offset(e, more + (step < 0 ? step * (lanes - 1) : 0));
    return true;
}

/* Where condition r holds (or does not: `not`) for some lane. Of both sides of an `and` one is enough. */
static bool can_hold(const kernel *k, reg r, bool not, affine *out) {
    const kins *in = &k->ins.at[r];
    if (in->op != K_ALU) return false;
    switch (in->alu) {
    case OP_le:
        return not ? least(k, in->b, in->a, 1, out) : least(k, in->a, in->b, 0, out);
    case OP_lt:
        return not ? least(k, in->b, in->a, 0, out) : least(k, in->a, in->b, 1, out);
    case OP_ge:
        return not ? least(k, in->a, in->b, 1, out) : least(k, in->b, in->a, 0, out);
    case OP_gt:
        return not ? least(k, in->a, in->b, 0, out) : least(k, in->b, in->a, 1, out);
    case OP_and:
        return !not &&(can_hold(k, in->a, false, out) || can_hold(k, in->b, false, out));
    default:
        return false;
    }
}

/* The bound of all sums so far, with one more that is e: the same but for a constant. */
static bool widen(bound *b, affine e) {
    if (b->known && !affine_equal(affine_offset(b->e, e.base - b->e.base), e)) return false;
    if (!b->known || e.base < b->e.base) b->e = e;
    return b->known = true;
}

static bool uses(const kins *in, reg r) { return in->a == r || in->b == r || in->c == r || in->dyn == r; }

/* Whether all uses of value r behind the loop are selects, each of which widens the bound, or pure work on it that such selects
 * use. */
static bool is_selected(const kernel *k, reg r, int end, int depth, bound *b) {
    for (int i = end + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        affine e;
        if (!uses(in, r)) continue;
        bool select = in->op == K_ALU && in->alu == OP_select && in->a != r && (in->b == r) != (in->c == r);
        if (select && can_hold(k, in->a, in->c == r, &e) && widen(b, e)) continue;
        if (!kernel_is_pure(in) || depth == 0 || !is_selected(k, (reg)i, i, depth - 1, b)) return false;
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
    return updates && updates * trips >= LEAST_UPDATES && is_open(k, loop, out->e);
}

static void put_condition(kernel *k, int loop, affine e) {
    const reg at = (reg)loop;
    val of = k->ins.at[loop].node;
    kins in[] = { { .op = K_INDEX, .dtype = TN_I32, .src = TN_I32, .lanes = 1, .idx = e, .node = of },
                  { .op = K_CONST, .dtype = TN_I32, .src = TN_I32, .lanes = 1, .node = of },
                  { .op = K_ALU, .alu = OP_le, .dtype = TN_I32, .src = TN_I32, .lanes = 1, .a = at, .b = at + 1, .node = of } };
    loop_insert(k, loop, in, 3);
    k->ins.at[loop + 3].a = at + 2;
}

bool step_skip_masked(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int n = 0;
    (void)s;
    for (int i = 1; i < k->ins.n; i++) {
        bound b = { 0 };
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].par) continue;
        int end = kernel_loop_end(k, i);
        if (!find_bound(k, i, end, &b)) continue;
        if (b.e.n) put_condition(k, i, b.e), n++, i += 3;
        i = kernel_loop_end(k, i);
    }
    return n || step_refuse(why, "no loop makes only sums that a comparison of indices may throw away");
}
