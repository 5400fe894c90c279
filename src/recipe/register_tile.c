/* register_tile.c - the register tile of a kernel: which loop runs along vector lanes, which loops are unrolled and by how
 * much, which is split over threads. In: scalar form. Out: the steps vectorize and unroll_jam; recipe.threads.
 *
 * Vectors: the loop along which most memory is contiguous, weighted by how often each access runs: one row loop for the whole
 * kernel, or one inner loop for each nest. Contractions: the MR x NR tile with the least estimated time (FMA issue, loads,
 * latency) over the whole shape, tails included, within the register budget MR * NV + NV + 1 (measured: larger tiles spill). */
#include "loop/operand.h"
#include "recipe/recipe.h"

enum { MAX_MR = 14, MAX_NV = 8 };
enum { FEW_ROWS = 8 };
#define READ_AGAIN 1.1  /* what it costs them to be more than one tile, where what has the lanes comes from afar */
enum { MAX_LONE = 16 }; /* vectors of a tile of one row: the matrix is read in long pieces, and the more the longer */
enum { SHORT_ROW = 512, JOINED = 4 }; /* elements of a row; rows worked on at once */

typedef struct ref { /* one memory access */
    const kins *in;
    uint64_t open; /* loops around it */
    double times;  /* iterations */
    int nest;      /* which top-level nest inside the rows; -1: directly in the rows */
} ref;

typedef struct chooser {
    recipe *r;
    const kernel *k;
    const target *t;
    krole role[MAX_LOOPS]; /* by variable: what was chosen so far */
    int lanes;
    VEC(ref) refs;
    int n_nests;
    uint64_t nest_vars[64];
    uint64_t row_vars;
    const kins *dot; /* the contraction's update, if there is one */
    uint64_t dot_open;
    int64_t tile_m, tile_nvec; /* what the contraction's tile covers; 0 = there is none */
    int64_t most_nv;
    bool tile_split; /* split: bf16 without an instruction for words of it */
} chooser;

static uint64_t vars_of(affine x) {
    uint64_t m = 0;
    for (int i = 0; i < x.n; i++) m |= 1ull << x.t[i].var;
    return m;
}

static void survey(chooser *c) {
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
        if (in->op == K_LOAD || in->op == K_STORE || in->op == K_SCATTER)
            VEC_PUSH(k->a, &c->refs, (ref){ in, open, times[depth], nest });
    }
    c->lanes = c->t->vector_bytes / wide;
    if (c->lanes < 1) c->lanes = 1;
}

/* ---- vector variable ---- */

static bool dyn_depends(const chooser *c, const kins *in, kvar v) { /* the dynamic index changes along v */
    uint64_t seen = 0;
    const kernel *k = c->k;
    reg todo[64];
    int n = 0;
    if (in->dyn) todo[n++] = in->dyn;
    while (n > 0) {
        const kins *x = &k->ins.at[todo[--n]];
        seen |= vars_of(x->idx);
        reg next[4] = { x->a, x->b, x->c, x->dyn };
        for (int i = 0; i < 4; i++)
            if (next[i] && n < 60) todo[n++] = next[i];
    }
    return seen >> v & 1;
}

/* The row along which a load that lies the wrong way for lanes along v is contiguous: squares of it can be turned in registers.
 * Only in kernels of rows and nothing else. */
static kvar transposed_along(const chooser *c, const kins *in, kvar v) {
    int lanes = loop_transpose_lanes((tn_dtype)in->dtype, c->lanes);
    if (c->n_nests || in->op != K_LOAD || in->n_mask || in->dyn || affine_coef(in->idx, v) < 2 || !lanes) return -1;
    for (kvar u = 0; u < c->k->vars.n; u++)
        if (u != v && c->k->vars.at[u].row && affine_coef(in->idx, u) == 1 && c->k->vars.at[u].extent >= lanes &&
            c->k->vars.at[v].extent >= lanes)
            return u;
    return -1;
}

static double ref_score(const chooser *c, const ref *r, kvar v) {
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
    else
        s = store ? -2.5 : transposed_along(c, in, v) >= 0 ? -0.3 : -1.5;
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) s -= 1.5;
    int64_t extent = c->k->vars.at[v].extent;
    if (extent < c->lanes && s > 0) s *= (double)extent / c->lanes;
    return s * r->times;
}

static bool blocked(const chooser *c,
                    kvar v) { /* loops that must keep their order: arg reductions along v, scatter's index loops */
    for (int i = 1; i < c->k->ins.n; i++) {
        const kins *in = &c->k->ins.at[i];
        if (in->op == K_ARGUPD && affine_coef(in->idx, v)) return true;
        if (in->op == K_SCATTER && (c->k->vars.at[v].reduce || dyn_depends(c, in, v))) return true;
    }
    return false;
}

static double score(const chooser *c, kvar v, int nest) {
    if (blocked(c, v)) return -1e30;
    double s = 0;
    for (int i = 0; i < c->refs.n; i++)
        if (nest < 0 || c->refs.at[i].nest == nest) s += ref_score(c, &c->refs.at[i], v);
    return s;
}

static kvar best_of(const chooser *c, uint64_t candidates, int nest, double *out_score) {
    kvar best = -1;
    *out_score = 0;
    for (kvar v = 0; v < c->k->vars.n; v++) {
        if (!(candidates >> v & 1) || c->k->vars.at[v].extent < 2) continue;
        double s = score(c, v, nest);
        if (s > *out_score) best = v, *out_score = s;
    }
    return best;
}

/* ---- contraction tiles ---- */

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
static const kins *plain_load(const chooser *c, reg r) {
    const kins *in = &c->k->ins.at[r];
    while (in->op == K_CAST || in->op == K_WRAP) in = &c->k->ins.at[in->a];
    return in->op == K_LOAD ? in : NULL;
}

/* The same, or the load that most of what an operand is computed of comes from. */
static const kins *operand_load(const chooser *c, reg r) {
    const kins *plain = plain_load(c, r);
    operand o;
    return plain ? plain : operand_find(c->k, r, &o) ? &c->k->ins.at[o.load] : NULL;
}

/* Windows whose taps are the innermost loop share loads along this row; -1: there are none. */
static kvar sliding_row(const chooser *c, const kins *x, const kins *weight, kvar vec) {
    const kins *in = c->dot;
    while (in->op != K_LOOP) in--;
    bool inside = false, each = affine_coef(weight->idx, vec) && affine_coef(x->idx, vec);
    for (kvar v = 0; v < c->k->vars.n; v++)
        inside |= c->k->vars.at[v].row && affine_coef(weight->idx, v) && affine_coef(x->idx, v);
    return (inside && !each) || !c->k->vars.at[in->var].reduce ? -1 : loop_slides_along(c->k, x, weight, in->var);
}

/* Unrolled partner of the vector loop: a loop that the vector operand does not depend on, so that its loads are used again. */
static kvar partner(const chooser *c, kvar vec, bool want_row) {
    const kins *a = operand_load(c, c->dot->a), *b = operand_load(c, c->dot->b);
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
static bool is_split(const chooser *c, const kins *a, const kins *b) {
    return a && b && plain_load(c, c->dot->a) && plain_load(c, c->dot->b) && a->src == TN_BF16 && b->src == TN_BF16 &&
           c->dot->dtype == TN_F32 && c->t->packed && !c->t->bf16_sums;
}

static bool tile_fits(const chooser *c, int mr, int nv) {
    int loaded = c->tile_split ? 2 * nv + 2 : mr == 1 ? 1 : nv; /* used once, an operand comes straight from memory */
    return mr >= 1 && nv >= 1 && mr <= MAX_MR && nv <= c->most_nv && mr <= c->tile_m && nv <= c->tile_nvec &&
           mr * nv + loaded + 1 <= c->t->n_vector_regs;
}

bool recipe_is_worth_sharing(const kernel *k, const target *t) {
    return t->threads > 1 && (double)(k->flops + k->bytes_read + k->bytes_written) >= machine_row_of(t)->share_work;
}
static bool is_worth_sharing(const chooser *c) { return recipe_is_worth_sharing(c->k, c->t); }

/* How evenly threads share a contraction in tiles of mr x nv, along the loop that is best for that. Those that share its rows
 * all read the operand with the lanes, which takes as long as some rows: the more threads there are, the fewer rows each has.
 * And columns of a parameter that one thread reads and updates stay in that core's caches: where few rows are read at a time,
 * as in the forward pass, they are shared out by columns anyway. */
static double shared_balance(const chooser *c, kvar vec, kvar row, int mr, int nv) {
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
static bool is_from_afar(const chooser *c, kvar vec) {
    const kins *a = operand_load(c, c->dot->a), *b = operand_load(c, c->dot->b);
    if (!a || !b) return false;
    const kbuf *x = &c->k->bufs.at[(affine_coef(b->idx, vec) ? b : a)->buf];
    return x->fixed && x->elems * (int64_t)dtype_size((tn_dtype)x->dtype) > c->t->l2_bytes;
}

static void tile_contraction(chooser *c, kvar vec) {
    const kernel *k = c->k;
    int64_t extent = k->vars.at[vec].extent, nvec = (extent + c->lanes - 1) / c->lanes;
    kvar row = partner(c, vec, true);
    int64_t m = row >= 0 ? k->vars.at[row].extent : 1;
    int best_mr = 1, best_nv = 1;
    double best = 1e300;
    const kins *a = operand_load(c, c->dot->a), *b = operand_load(c, c->dot->b);
    bool shared = is_worth_sharing(c),
         each = a && b && affine_coef(a->idx, vec) && affine_coef(b->idx, vec); /* lane by lane: neighbours share loads */
    if (each) best_mr = loop_sliding_rows(m);
    c->tile_m = m, c->tile_nvec = nvec, c->tile_split = is_split(c, a, b);
    c->most_nv = m > 1 ? MAX_NV : MAX_LONE;
    int64_t share = (nvec + c->t->threads - 1) / c->t->threads; /* each thread needs a tile */
    if (m == 1 && shared && share < c->most_nv) c->most_nv = share;
    bool once = is_from_afar(c, vec) && m <= FEW_ROWS;
    for (int nv = 1; nv <= c->most_nv && nv <= nvec && !each; nv++)
        for (int mr = 1; mr <= MAX_MR && mr <= m; mr++) {
            if (!tile_fits(c, mr, nv)) continue;
            double cost = shape_cost(machine_row_of(c->t), m, nvec, mr, nv) * (once && mr < m ? READ_AGAIN : 1);
            if (shared) cost /= shared_balance(c, vec, row, mr, nv);
            if (cost < best * 0.999) best = cost, best_mr = mr, best_nv = nv;
        }
    if (tile_fits(c, c->r->rows, c->r->vectors)) best_mr = c->r->rows, best_nv = c->r->vectors;
    c->role[vec] = (krole){ best_nv, c->lanes };
    if (row >= 0) c->role[row] = (krole){ best_mr, 1 };
}

/* Vectors along the contraction: several sums at once, for independent chains and reuse of loads. */
static void tile_inner_product(chooser *c, kvar vec) {
    const kernel *k = c->k;
    const kins *a = operand_load(c, c->dot->a), *b = operand_load(c, c->dot->b);
    int budget = 4;
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

/* ---- the rest ---- */

static int alu_weight(const chooser *c, uint64_t var) {
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

static bool tile_transposed(chooser *c, kvar vec) {
    const kernel *k = c->k;
    for (int i = 0; i < c->refs.n; i++) {
        const kins *in = c->refs.at[i].in;
        kvar u = transposed_along(c, in, vec);
        if (u < 0) continue;
        int lanes = loop_transpose_lanes((tn_dtype)in->dtype, c->lanes);
        int squares = c->t->n_vector_regs >= 32 && k->vars.at[vec].extent >= 2 * lanes ? 2 : 1; /* whole lines of the result */
        c->role[vec] = (krole){ squares, lanes };
        c->role[u] = (krole){ k->vars.at[u].extent >= 2 * lanes ? 2 * lanes : lanes, 1 }; /* a whole cache line */
        return true;
    }
    return false;
}

static void tile_plain(chooser *c, kvar vec) {
    const kernel *k = c->k;
    if (tile_transposed(c, vec)) return;
    int64_t steps = k->vars.at[vec].extent / c->lanes;
    int weight = alu_weight(c, 1ull << vec);
    int unroll = k->vars.at[vec].reduce ? 4 : weight > 24 ? 1 : weight > 8 ? 2 : 4;
    while (unroll > 1 && steps < unroll) unroll /= 2;
    c->role[vec] = (krole){ unroll, c->lanes };
}

static bool is_inside_dot(const chooser *c, kvar v) { return c->dot && (c->dot_open >> v & 1); }

/* Short rows that are summed along: a row waits at the end of each of its sums, so several are worked on at once, with fewer
 * partial sums each. The order of a sum depends on the shape alone. */
static void join_rows(chooser *c, const kvar *inner) {
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

static void choose_roles(chooser *c) {
    const kernel *k = c->k;
    double row_score, inner_score = 0;
    kvar row = best_of(c, c->row_vars, -1, &row_score), inner[64];
    for (int n = 0; n < c->n_nests; n++) {
        double s;
        inner[n] = best_of(c, c->nest_vars[n], n, &s);
        inner_score += s;
    }
    if (c->lanes == 1) return;
    if (row >= 0 && row_score >= inner_score) {
        if (is_inside_dot(c, row))
            tile_contraction(c, row);
        else
            tile_plain(c, row);
        return;
    }
    for (int n = 0; n < c->n_nests; n++) {
        if (inner[n] < 0) continue;
        if (!is_inside_dot(c, inner[n]))
            tile_plain(c, inner[n]);
        else if (k->vars.at[inner[n]].reduce)
            tile_inner_product(c, inner[n]);
        else
            tile_contraction(c, inner[n]);
    }
    join_rows(c, inner);
}

/* ---- threads ---- */

static kvar choose_parallel(const chooser *c) {
    const kernel *k = c->k;
    kvar par = -1;
    if (!is_worth_sharing(c)) return -1;
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

/* The row of the result that lies along memory and that only one operand depends on, where both operands lie along a
 * contraction loop. */
static kvar transposed_row(const chooser *c) {
    if (!c->dot) return -1;
    const kins *a = operand_load(c, c->dot->a), *b = operand_load(c, c->dot->b);
    bool along = false;
    if (!a || !b || a->dyn || b->dyn) return -1;
    for (kvar v = 0; v < c->k->vars.n; v++)
        along |=
            c->k->vars.at[v].reduce && (c->dot_open >> v & 1) && affine_coef(a->idx, v) == 1 && affine_coef(b->idx, v) == 1;
    if (!along) return -1;
    kvar row = -1;
    for (int i = 1; i < c->k->ins.n; i++) {
        const kins *in = &c->k->ins.at[i];
        if (in->op == K_LOOP && c->k->vars.at[in->var].row) row = in->var; /* the innermost */
        if (in->op == K_ACC) break;
    }
    if (row < 0 || c->k->vars.at[row].extent < c->lanes || !affine_coef(a->idx, row) == !affine_coef(b->idx, row)) return -1;
    if ((affine_coef(a->idx, row) ? a : b)->n_mask) return -1; /* which is copied */
    for (int i = 1; i < c->k->ins.n; i++)
        if (c->k->ins.at[i].op == K_STORE && affine_coef(c->k->ins.at[i].idx, row) != 1) return -1;
    return row;
}

/* For the steps: what was chosen goes to the kernel. */
static void tile(chooser *c) {
    for (kvar v = 0; v < c->k->vars.n; v++) {
        const char *name = c->k->vars.at[v].name;
        if (c->role[v].lanes > 1) recipe_do(c->r, "vectorize %s %d", name, c->role[v].lanes);
        if (c->role[v].unroll > 1) recipe_do(c->r, "unroll_jam %s %d", name, c->role[v].unroll);
    }
    c->r->threads = choose_parallel(c);
}

static chooser make(recipe *r) {
    chooser c = { .r = r, .k = r->k, .t = r->t };
    for (kvar v = 0; v < r->k->vars.n; v++) c.role[v] = r->k->vars.at[v].role;
    survey(&c);
    return c;
}

bool recipe_register_tile_transposed(recipe *r) {
    if (r->k->vars.n > MAX_LOOPS) return false;
    chooser c = make(r);
    kvar row = c.lanes > 1 ? transposed_row(&c) : -1;
    if (row < 0) return false;
    tile_contraction(&c, row);
    tile(&c);
    return true;
}

void recipe_register_tile(recipe *r) {
    if (r->k->vars.n > MAX_LOOPS) return;
    chooser c = make(r);
    choose_roles(&c);
    tile(&c);
}
