/* vector_loop.c - which loop runs along vector lanes: the one along which most memory is contiguous, weighted by how often each
 * access runs. In: scalar form. */
#include "recipe/register_tile.h"

enum { NEAR = 4 }; /* elements between the lanes of windows */

/* How often what an access touches changes: as often as it runs, but for loads that stay as they are while inner loops run
 * (which may leave them out: checks are peeled off). */
static double changes(const kernel *k, const kins *in, const kvar *open, int depth) {
    uint64_t vars = loop_vars(in->idx);
    double n = 1;
    bool always = in->op != K_LOAD || in->dyn;
    for (int d = depth - 1; d >= 0; d--) {
        always |= (bool)(vars >> open[d] & 1);
        if (always) n *= (double)k->vars.at[open[d]].extent;
    }
    return n;
}

void tile_survey(tile_chooser *c) {
    const kernel *k = c->k;
    uint64_t open = 0;
    kvar stack[64];
    double times[65] = { 1 };
    int depth = 0, wide = 4, nest = -1, nest_depth = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) {
            if (k->vars.at[in->var].row && nest < 0) {
                c->row_vars |= 1ull << in->var;
            } else {
                if (nest < 0) {
                    nest = c->n_nests < 63 ? c->n_nests++ : 62;
                    nest_depth = depth;
                }
                c->nest_vars[nest] |= 1ull << in->var;
            }
            stack[depth] = in->var;
            times[depth + 1] = times[depth] * (double)k->vars.at[in->var].extent;
            depth++;
            open |= 1ull << in->var;
            continue;
        }
        if (in->op == K_END) {
            depth--;
            open &= ~(1ull << stack[depth]);
            if (nest >= 0 && depth == nest_depth) nest = -1;
            continue;
        }
        bool repeated = depth > 0; /* what was hoisted out of all loops is done once and stays scalar */
        if (repeated && in->op != K_STORE && in->op != K_SCATTER && in->op != K_CONST && dtype_size((tn_dtype)in->dtype) > 4)
            wide = 8;
        if (in->op == K_UPD && in->alu == OP_dot) c->dot = in, c->dot_open = open;
        if (kernel_touches(in)) VEC_PUSH(k->a, &c->refs, (ref){ in, open, changes(k, in, stack, depth), nest });
        if (in->op == K_ALU) VEC_PUSH(k->a, &c->work, (ref){ in, open, times[depth] * op_get((op_code)in->alu)->flops, nest });
    }
    c->lanes = c->t->vector_bytes / wide;
    if (c->lanes < 1) c->lanes = 1;
}

static bool dyn_depends(const tile_chooser *c, const kins *in, kvar v) { /* the dynamic index changes along v */
    uint64_t seen = 0;
    const kernel *k = c->k;
    reg todo[64];
    int n = 0;
    if (in->dyn) todo[n++] = in->dyn;
    while (n > 0) {
        const kins *x = &k->ins.at[todo[--n]];
        seen |= loop_vars(x->idx);
        reg next[4] = { x->a, x->b, x->c, x->dyn };
        for (int i = 0; i < 4; i++)
            if (next[i] && n < 60) todo[n++] = next[i];
    }
    return seen >> v & 1;
}

/* Only in kernels of rows and nothing else. */
kvar tile_turned_along(const tile_chooser *c, const kins *in, kvar v) {
    int lanes = loop_transpose_lanes((tn_dtype)in->dtype, c->lanes);
    if (c->n_nests || in->op != K_LOAD || in->dyn || affine_coef(in->idx, v) < 2 || !lanes) return -1;
    for (kvar u = 0; u < c->k->vars.n; u++)
        if (u != v && c->k->vars.at[u].row && affine_coef(in->idx, u) == 1 && c->k->vars.at[u].extent >= lanes &&
            c->k->vars.at[v].extent >= lanes)
            return u;
    return -1;
}

static double ref_score(const tile_chooser *c, const ref *r, kvar v) {
    const kins *in = r->in;
    bool store = in->op != K_LOAD;
    if (!(r->open >> v & 1)) return 0;
    int64_t coef = affine_coef(in->idx, v);
    if (c->k->bufs.at[in->buf].kind == KB_LOCAL && c->k->vars.at[v].row) coef = 1; /* laid out as it suits */
    double s;
    if (in->dyn && dyn_depends(c, in, v))
        s = store ? -100 : -2;
    else if (coef == 0)
        s = store ? 0 : 0.2;
    else if (coef == 1)
        s = store ? 1.5 : 1;
    else if (!store && coef >= 2 && coef <= NEAR)
        s = 0.2; /* lanes of a few lines: dearer than neighbours, cheaper than one after the other */
    else
        s = store ? -2.5 : tile_turned_along(c, in, v) >= 0 ? -0.3 : -1.5;
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) s -= coef == 1 ? 0.4 : 0.2; /* what it takes to find the lanes */
    int64_t extent = c->k->vars.at[v].extent;
    if (extent < c->lanes && s > 0) /* few lanes; in a sum, what adds them up takes as long as they do */
        s *= (double)extent / c->lanes * (c->k->vars.at[v].reduce ? 0.25 : 1);
    else if (c->k->vars.at[v].reduce && s > 0) /* what is left over is a sum of its own for each power of two */
        s *= (double)extent / (double)(c->lanes * (extent / c->lanes + __builtin_popcount((unsigned)(extent % c->lanes))));
    return s * r->times;
}

/* Loops that must keep their order: arg reductions along v, what one iteration hands to the next, scatter's index loops. */
static bool blocked(const tile_chooser *c, kvar v) {
    for (int i = 1; i < c->k->ins.n; i++) {
        const kins *in = &c->k->ins.at[i];
        if (in->op == K_ARGUPD && affine_coef(in->idx, v)) return true;
        if (in->op == K_UPD && in->alu == OP_NIL && c->k->vars.at[v].reduce) return true;
        if (in->op == K_SCATTER && (c->k->vars.at[v].reduce || dyn_depends(c, in, v))) return true;
    }
    return false;
}

/* Sums along the lanes of v end with combining the lanes, each time, which takes as long as loading as many elements. */
static double combining(const tile_chooser *c, kvar v, int nest) {
    double sums = 0;
    if (!c->k->vars.at[v].reduce || c->dot) return 0;
    for (int i = 0; i < c->refs.n; i++) {
        const ref *r = &c->refs.at[i];
        double n = r->times / (double)c->k->vars.at[v].extent;
        if ((nest < 0 || r->nest == nest) && (r->open >> v & 1) && n > sums) sums = n;
    }
    return sums * c->lanes;
}

static double score(const tile_chooser *c, kvar v, int nest) {
    if (blocked(c, v)) return -1e30;
    double s = 0;
    for (int i = 0; i < c->refs.n; i++)
        if (nest < 0 || c->refs.at[i].nest == nest) s += ref_score(c, &c->refs.at[i], v);
    double rest = s - combining(c, v, nest);
    return s <= 0 ? s : rest > 0.05 * s ? rest : 0.05 * s;
}

/* What lanes save of the arithmetic inside of v. */
static double saved(const tile_chooser *c, kvar v) {
    double s = 0;
    for (int i = 0; i < c->work.n; i++)
        if (c->work.at[i].open >> v & 1) s += c->work.at[i].times;
    return s;
}

kvar tile_vector_loop(const tile_chooser *c, uint64_t candidates, int nest, double *out_score) {
    kvar best = -1;
    *out_score = 0;
    for (kvar v = 0; v < c->k->vars.n; v++) {
        if (!(candidates >> v & 1) || c->k->vars.at[v].extent < 2) continue;
        double s = score(c, v, nest);
        if (s > *out_score) best = v, *out_score = s;
    }
    return best;
}

/* Where no loop has more lanes side by side than apart: the row along which they are gathered in less time than the arithmetic
 * takes element by element, or -1 (Winograd's transform of an image with channels first, 64 channels of 56 x 56, one core of a
 * Zen 3: 1.7 ms, with lanes 0.3). */
kvar tile_gathered_row(const tile_chooser *c) {
    kvar best = -1;
    double most = 0;
    for (kvar v = 0; v < c->k->vars.n && !c->dot; v++) {
        if (!(c->row_vars >> v & 1) || c->k->vars.at[v].extent < c->lanes) continue;
        double s = score(c, v, -1) + saved(c, v);
        if (s > most) best = v, most = s;
    }
    return best;
}
