/* vectorize.c - iterations of a loop run in the lanes of a vector; tile.c writes them out. In and out: scalar form.
 *
 * A vectorized reduction has a partial sum a lane, so the terms of its sum come in another order; other loops keep every bit.
 */
#include "loop/loop.h"
#include "loop/schedule.h"

enum { MOST_LANES = 64, MOST_BOUND = 1 << 30 };

const bool *loop_inside(const kernel *k, kvar v) {
    bool *inside = ARENA_ARRAY(k->a, bool, k->ins.n);
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].var == v)
            for (int end = kernel_loop_end(k, i); i < end; i++) inside[i] = true;
    return inside;
}

bool loop_keeps_order(const kernel *k, kvar v, str *why) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ARGUPD && affine_coef(in->idx, v))
            return !step_refuse(why, "loop %s finds the index of a best value one by one", k->vars.at[v].name);
        if (in->op == K_SCATTER && k->vars.at[v].reduce)
            return !step_refuse(why, "loop %s adds to places that may meet", k->vars.at[v].name);
    }
    const bool *inside = loop_inside(k, v);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (inside[i] && in->op == K_UPD && in->alu == OP_NIL && !inside[in->c])
            return !step_refuse(why, "an iteration of %s begins with what the one before it left", k->vars.at[v].name);
        bool local = in->op == K_STORE && k->bufs.at[in->buf].kind == KB_LOCAL;
        if (inside[i] && local && !affine_coef(in->idx, v))
            return !step_refuse(why, "iterations of %s use b%d in turn", k->vars.at[v].name, in->buf);
    }
    return false;
}

/* Loops around or inside of the loop of v. */
static bool is_nested(const kernel *k, kvar v, kvar u) {
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || (k->ins.at[i].var != v && k->ins.at[i].var != u)) continue;
        for (int j = i + 1, end = kernel_loop_end(k, i); j < end; j++)
            if (k->ins.at[j].op == K_LOOP && k->ins.at[j].var != k->ins.at[i].var &&
                (k->ins.at[j].var == v || k->ins.at[j].var == u))
                return true;
    }
    return false;
}

bool loop_splits_sum(const kernel *k, kvar v, str *why) {
    for (kvar u = 0; u < k->vars.n && k->vars.at[v].reduce; u++) {
        const kvar_info *x = &k->vars.at[u];
        if (u != v && x->reduce && (x->role.lanes > 1 || x->role.unroll > 1) && is_nested(k, v, u))
            return !step_refuse(why, "the sum over %s and %s is in parts along %s already", k->vars.at[v].name, x->name,
                                x->name);
    }
    const bool *inside = loop_inside(k, v);
    bool *adds = ARENA_ARRAY(k->a, bool, k->ins.n); /* [ins] accumulators */
    for (int round = 0; round < 2 && k->vars.at[v].reduce; round++)
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if (in->op != K_UPD) continue;
            if (inside[i]) adds[in->c] = true;
            if (round && !inside[i] && adds[in->c])
                return !step_refuse(why, "sum %%%u goes on outside of %s", in->c, k->vars.at[v].name);
        }
    return false;
}

/* Whether x moves by a literal along v. */
static bool is_literal_along(affine x, kvar v) { return ext_is_lit(affine_coef(x, v)); }

/* A bound that a run gives, and that lanes of 32 bits are not compared with. */
static bool is_far(const kernel *k, ext x) {
    return !ext_is_lit(x) && (ext_lo(k->params, x) < -MOST_BOUND || ext_hi(k->params, x) > MOST_BOUND);
}

const char *loop_lanes_of_run(const kernel *k, const kins *in) {
    for (kvar v = 0; v < k->vars.n; v++) {
        if (k->vars.at[v].role.lanes <= 1) continue;
        bool apart = !is_literal_along(in->idx, v), masked = false, far = false;
        for (int m = 0; m < in->n_mask; m++) {
            const kmask *x = &in->mask[m];
            apart = apart || !is_literal_along(x->e, v);
            masked = masked || affine_coef(x->e, v) != 0;
            far = far || is_far(k, x->lo) || is_far(k, x->hi);
        }
        if (apart || (masked && (far || affine_coef(in->idx, v) < 0 || affine_coef(in->idx, v) > 1))) return k->vars.at[v].name;
    }
    return NULL;
}

bool step_vectorize(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kvar v = step_loop(k, s, 0, why);
    int64_t lanes = s->arg[1].n;
    if (v < 0 || loop_keeps_order(k, v, why)) return false;
    if (lanes < 1 || lanes > MOST_LANES || (lanes & (lanes - 1)))
        return step_refuse(why, "%lld lanes: expected a power of two up to %d", (long long)lanes, MOST_LANES);
    if (lanes > 1 && loop_splits_sum(k, v, why)) return false;
    for (kvar u = 0; u < k->vars.n; u++)
        if (u != v && lanes > 1 && k->vars.at[u].role.lanes > 1 && is_nested(k, v, u))
            return step_refuse(why, "loop %s of the same nest is vectorized already", k->vars.at[u].name);
    k->vars.at[v].role.lanes = (int)lanes;
    return true;
}
