/* tile.c - writes the tiled form: every loop variable with a role gets a main loop over whole tiles and an exact-size tail;
 * every instruction is repeated for the copies of the variables it depends on, and only for those.
 *
 * In: scalar form with roles. Out: a new kernel. A copy is (offset, lanes); a tail of 7 at 8 lanes is the copies 4 and 4, which
 * overlap by one, or 4, 2, 1 where each element counts once, as in sums.
 * Accumulators of a tiled reduction get one partial sum a copy, combined pairwise after the loop: the order does not depend on
 * the thread count. */
#include "loop/build.h"
#include "loop/gpu_bind.h"
#include "loop/loop.h"
#include "loop/peel.h"
#include "loop/schedule.h"

enum { MAX_COPIES = 32 };
typedef struct copy {
    int64_t off;
    int lanes;
} copy;
typedef struct copies {
    int n;
    copy at[MAX_COPIES];
} copies;

typedef struct partial { /* partial accumulators of one ACC over the copies of a tiled reduction */
    kvar var;            /* the tiled reduction variable, or -1 */
    int n;
    int lanes[MAX_COPIES];
} partial;

typedef VEC(reg) reg_list;
enum { MOST_ROOM = 128 }; /* for instructions of the tiled form, until there are more */

typedef struct tiler {
    const kernel *k;
    kernel *o;
    uint64_t jam;  /* variables with a role .. */
    kvar jams[64]; /* .. the same in order */
    int n_jams;
    uint64_t *dep;  /* [ins] variables it depends on (outside its own reduction) */
    copies *active; /* [vars] copies while the loop is open */
    bool *is_fixed; /* [vars] the loop runs once, at this value */
    int64_t *fixed;
    kspan *span, *reach; /* [vars] values while the loop is open; with those of its copies */
    int *inst;           /* [ins] first entry in regs */
    reg_list regs;
    partial *part;  /* [ins] for ACC */
    int *acc_depth; /* [ins] loops open at the ACC */
    bool alike;     /* threads share all loops over the parallel variable alike: pieces of them may be peeled off */
} tiler;

static bool has_role(const kernel *k, kvar v) { return k->vars.at[v].role.unroll > 1 || k->vars.at[v].role.lanes > 1; }

/* ---- analysis of the scalar form ---- */

static void find_deps(tiler *t) {
    const kernel *k = t->k;
    uint64_t open = 0, *acc_open = ARENA_ARRAY(k->a, uint64_t, k->ins.n);
    for (int round = 0; round < 2; round++) { /* an accumulator's dependences are known after its updates */
        open = 0;
        VEC(kvar) stack = { 0 };
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if (in->op == K_LOOP) {
                VEC_PUSH(k->a, &stack, in->var);
                open |= 1ull << in->var;
                continue;
            }
            if (in->op == K_END) {
                open &= ~(1ull << stack.at[--stack.n]);
                continue;
            }
            uint64_t d = loop_vars_of(in) | t->dep[in->a] | t->dep[in->b] | t->dep[in->c] | t->dep[in->dyn];
            if (in->op == K_ACC) {
                acc_open[i] = open;
                t->acc_depth[i] = stack.n;
                continue;
            }
            if (in->op == K_UPD) t->dep[in->c] |= (t->dep[in->a] | t->dep[in->b]) & acc_open[in->c];
            if (in->op == K_ARGUPD) {
                t->dep[in->c] |= t->dep[in->a] & acc_open[in->c];
                t->dep[in->b] |= t->dep[in->c];
                t->dep[in->c] |= t->dep[in->b];
            }
            t->dep[i] = in->op == K_PREFETCH ? 0 : d & open; /* once for all copies */
            if (in->op == K_UPD)                             /* which tiled reduction splits this accumulator */
                for (int s = t->acc_depth[in->c]; s < stack.n; s++)
                    if (has_role(k, stack.at[s])) t->part[in->c].var = stack.at[s];
        }
    }
}

static copies main_copies(krole r) {
    copies c = { .n = r.unroll };
    for (int i = 0; i < r.unroll; i++) c.at[i] = (copy){ (int64_t)i * r.lanes, r.lanes };
    return c;
}

/* again: the last vector may begin in the one before it, and makes some of its elements once more. */
static copies tail_copies(krole r, int64_t rest, bool again) {
    copies c = { 0 };
    int64_t at = 0, left = rest % r.lanes;
    int w = r.lanes, pieces = 0;
    for (int64_t n = left; n; n &= n - 1) pieces++;
    for (; rest - at >= w; at += w) c.at[c.n++] = (copy){ at, w };
    while (left && w / 2 >= left) w /= 2;
    if (again && pieces > 1 && w <= rest) {
        c.at[c.n++] = (copy){ rest - w, w };
    } else if (again && pieces > 2) {
        c.at[c.n++] = (copy){ at, w / 2 };
        c.at[c.n++] = (copy){ rest - w / 2, w / 2 };
    } else {
        for (; w >= 1; w /= 2)
            for (; rest - at >= w; at += w) c.at[c.n++] = (copy){ at, w };
    }
    return c;
}

/* Whether elements may be made twice by neighbouring vectors of one tile: all of these read before any of them writes, so both
 * make the same. */
static bool makes_again(const kernel *k, int loop, int end) {
    return !k->vars.at[k->ins.at[loop].var].reduce && !loop_find_op(k, loop, end, K_SCATTER);
}

/* One for each copy of whole tiles, and one for each narrower vector where some run may have it: what a run has none of stays
 * what it begins with. */
static void plan_partials_of_run(partial *p, krole r, int64_t divisor) {
    for (int c = 0; c < r.unroll; c++) p->lanes[p->n++] = r.lanes;
    for (int lanes = r.lanes; divisor % lanes; p->lanes[p->n++] = lanes) lanes /= 2;
}

static void plan_partials(tiler *t) {
    for (int i = 1; i < t->k->ins.n; i++) {
        partial *p = &t->part[i];
        if (t->k->ins.at[i].op != K_ACC) continue;
        p->n = 1, p->lanes[0] = 1;
        if (p->var < 0) continue;
        krole r = t->k->vars.at[p->var].role;
        ext extent = t->k->vars.at[p->var].extent;
        int64_t step = (int64_t)r.unroll * r.lanes;
        p->n = 0;
        if (!ext_is_lit(extent)) {
            plan_partials_of_run(p, r, ext_divisor(t->k->params, extent));
            continue;
        }
        if (extent >= step)
            for (int c = 0; c < r.unroll; c++) p->lanes[p->n++] = r.lanes;
        copies tail = tail_copies(r, extent % step, false);
        int wide = 0;
        for (int c = 0; c < tail.n; c++) {
            if (tail.at[c].lanes == r.lanes && wide++ < p->n && extent >= step) continue; /* joins a main copy */
            p->lanes[p->n++] = tail.at[c].lanes;
        }
        if (p->n == 0) p->n = 1, p->lanes[0] = 1; /* nothing to add up */
    }
}

/* ---- instances ---- */

typedef struct where { /* one choice of a copy for each tiled variable */
    uint8_t pick[64];
} where;

static int count_combos(const tiler *t, uint64_t set) {
    int n = 1;
    for (int i = 0; i < t->n_jams; i++)
        if (set >> t->jams[i] & 1) n *= t->active[t->jams[i]].n;
    return n;
}

static int combo_index(const tiler *t, uint64_t set, const where *w) {
    int index = 0;
    for (int i = 0; i < t->n_jams; i++)
        if (set >> t->jams[i] & 1) index = index * t->active[t->jams[i]].n + w->pick[t->jams[i]];
    return index;
}

static void unpack_combo(const tiler *t, uint64_t set, int index, where *w) {
    for (int i = t->n_jams - 1; i >= 0; i--) {
        kvar v = t->jams[i];
        if (!(set >> v & 1)) continue;
        w->pick[v] = (uint8_t)(index % t->active[v].n);
        index /= t->active[v].n;
    }
}

static uint64_t tiled(const tiler *t, uint64_t dep) { return dep & t->jam; }

static int lanes_at(const tiler *t, uint64_t set, const where *w) {
    for (int i = 0; i < t->n_jams; i++) {
        kvar v = t->jams[i];
        if ((set >> v & 1) && t->k->vars.at[v].role.lanes > 1) return t->active[v].at[w->pick[v]].lanes;
    }
    return 1;
}

static reg operand(const tiler *t, reg r, const where *w) {
    if (!r) return 0;
    return t->regs.at[t->inst[r] + combo_index(t, tiled(t, t->dep[r]), w)];
}

/* Row variables only number the copies of local memory; the copies lie side by side along the lanes, or else one after the
 * other. */
static affine local_place(const tiler *t, const kins *in, affine x) {
    const kernel *k = t->k;
    int64_t width = 1;
    ext elems = k->bufs.at[in->buf].elems;
    kvar vec = -1;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row && affine_coef(x, v) && has_role(k, v)) {
            if (k->vars.at[v].role.lanes > 1) vec = v;
            width *= (int64_t)k->vars.at[v].role.unroll * k->vars.at[v].role.lanes;
        }
    affine out = affine_const(x.base);
    for (int i = 0; i < x.n; i++)
        if (!k->vars.at[x.t[i].var].row) out = build_plus(k->a, out, affine_var(k->a, x.t[i].var), x.t[i].coef);
    if (vec >= 0) out = affine_scale_params(k->a, k->params, out, width);
    ext stride = vec >= 0 ? (int64_t)k->vars.at[vec].role.unroll * k->vars.at[vec].role.lanes : elems;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row && affine_coef(x, v) && has_role(k, v)) {
            out = build_plus(k->a, out, affine_var(k->a, v), v == vec ? 1 : stride);
            if (v != vec) stride = ext_mul(k->params, stride, (int64_t)k->vars.at[v].role.unroll * k->vars.at[v].role.lanes);
        }
    return out;
}

static affine place_index(const tiler *t, affine x, const where *w, bool local, int64_t *lane_stride) {
    kterm *kept = x.n ? ARENA_ARRAY(t->o->a, kterm, x.n) : NULL;
    affine out = { x.base, 0, kept };
    exts *sizes = t->k->params;
    *lane_stride = 0;
    for (int i = 0; i < x.n; i++) {
        kvar v = x.t[i].var;
        ext c = x.t[i].coef;
        if (t->jam >> v & 1) {
            copy at = t->active[v].at[w->pick[v]];
            out.base = ext_add(sizes, out.base, ext_mul(sizes, c, at.off));
            if (at.lanes > 1) *lane_stride = c;
        }
        if (local && t->k->vars.at[v].row) continue;
        if (t->is_fixed[v])
            out.base = ext_add(sizes, out.base, ext_mul(sizes, c, t->fixed[v]));
        else
            kept[out.n++] = x.t[i];
    }
    return out;
}

/* Masks that hold for the values at hand go; whether none of the others is known not to hold. */
static bool settle_masks(const tiler *t, kins *in) {
    int n = 0;
    for (int m = 0; m < in->n_mask && !t->k->params; m++) {
        int known = loop_mask_known(&in->mask[m], in->mask_lane[m], in->lanes, t->span);
        if (known < 0) return false;
        if (known > 0) continue;
        in->mask[n] = in->mask[m], in->mask_lane[n++] = in->mask_lane[m];
    }
    if (!t->k->params) in->n_mask = n;
    return true;
}

static kins border_value(const kins *load) {
    kins c = {
        .op = K_CONST, .dtype = load->dtype, .lanes = 1, .imm = load->imm, .imm_int = load->imm_int, .node = load->node
    };
    if (load->src == TN_BOOL) c.imm_int = -(load->imm_int != 0);
    return c;
}

static int partial_slot(const tiler *t, reg acc, const where *w) {
    const partial *p = &t->part[acc];
    if (p->var < 0) return 0;
    copy c = t->active[p->var].at[w->pick[p->var]];
    int pick = w->pick[p->var];
    if (pick < p->n && p->lanes[pick] == c.lanes) return pick;
    for (int i = 0; i < p->n; i++)
        if (p->lanes[i] == c.lanes) return i;
    return 0;
}

/* Instruction i for the copies w; a load that no mask allows is its border's value. */
static kins instance(const tiler *t, int i, const where *w) {
    const kins *s = &t->k->ins.at[i];
    kins in = *s;
    bool local = loop_is_local(t->k, s);
    uint64_t set = tiled(t, t->dep[i]);
    in.a = operand(t, s->a, w), in.b = operand(t, s->b, w), in.c = operand(t, s->c, w), in.dyn = operand(t, s->dyn, w);
    in.lanes = (uint8_t)lanes_at(t, set, w);
    in.idx = place_index(t, local ? local_place(t, s, s->idx) : s->idx, w, local, &in.lane_stride);
    if (s->n_mask) {
        in.mask = arena_copy(t->o->a, s->mask, sizeof(kmask) * (size_t)s->n_mask);
        in.mask_lane = ARENA_ARRAY(t->o->a, int64_t, s->n_mask);
        for (int m = 0; m < s->n_mask; m++) in.mask[m].e = place_index(t, s->mask[m].e, w, false, &in.mask_lane[m]);
        if (!settle_masks(t, &in)) in = border_value(&in);
        if (in.op == K_LOAD && !in.n_mask && !in.dyn && !in.lane_stride) in.lanes = 1; /* what all lanes read */
    }
    return in;
}

static reg accumulator(const tiler *t, reg acc, const where *w) {
    return t->regs.at[t->inst[acc] + combo_index(t, tiled(t, t->dep[acc]), w) * t->part[acc].n + partial_slot(t, acc, w)];
}

static void emit_instance(tiler *t, int i, const where *w) {
    const kins *s = &t->k->ins.at[i];
    kins in = instance(t, i, w);
    uint64_t set = tiled(t, t->dep[i]);
    if (s->op == K_UPD) {
        in.c = accumulator(t, s->c, w);
        in.lanes = t->o->ins.at[in.c].lanes;
    }
    if (s->op == K_ACC) {
        for (int p = 0; p < t->part[i].n; p++) {
            kins acc = in;
            if (t->part[i].lanes[p] > 1) acc.lanes = (uint8_t)t->part[i].lanes[p];
            t->regs.at[t->inst[i] + combo_index(t, set, w) * t->part[i].n + p] = kernel_push(t->o, acc);
        }
        return;
    }
    t->regs.at[t->inst[i] + combo_index(t, set, w)] = kernel_push(t->o, in);
}

/* ---- loads that are turned ---- */

typedef struct transposed {
    kvar along;  /* the unrolled variable along which memory is contiguous */
    int64_t gap; /* elements from lane to lane */
    int lanes;
} transposed_load;

/* The masks hold for the n copies along v from the first on. */
static bool masks_hold(const tiler *t, const kins *s, const where *at, kvar v, int first, int n) {
    if (s->n_mask && t->k->params) return false;
    where w = *at;
    for (w.pick[v] = (uint8_t)first; w.pick[v] < first + n; w.pick[v]++)
        for (int m = 0; m < s->n_mask; m++) {
            int64_t lane_stride = 0;
            kmask mask = s->mask[m];
            mask.e = place_index(t, mask.e, &w, false, &lane_stride);
            if (loop_mask_known(&mask, lane_stride, n, t->span) <= 0) return false;
        }
    return true;
}

/* A load whose lanes lie apart in memory, while copies of another variable lie side by side, as many as there are lanes. */
static bool find_transpose(const tiler *t, const kins *s, uint64_t set, const where *w, transposed_load *out) {
    if (s->op != K_LOAD || s->dyn || t->k->bufs.at[s->buf].kind == KB_LOCAL) return false;
    *out = (transposed_load){ .along = -1, .lanes = lanes_at(t, set, w) };
    if (out->lanes != loop_transpose_lanes((tn_dtype)s->dtype, out->lanes)) return false;
    for (kvar v = 0; v < t->k->vars.n; v++) {
        if (!(set >> v & 1)) continue;
        if (t->k->vars.at[v].role.lanes > 1)
            out->gap = affine_coef(s->idx, v);
        else if (affine_coef(s->idx, v) == 1)
            out->along = v;
    }
    if (out->along < 0 || out->gap == 1 || !ext_is_lit(out->gap)) return false;
    int first = w->pick[out->along] / out->lanes * out->lanes;
    return first + out->lanes <= t->active[out->along].n && masks_hold(t, s, w, out->along, first, out->lanes);
}

/* Rows of a square of lanes x lanes values become columns: pieces of 1, 2, .. lanes are exchanged between rows 1, 2, .. apart.
 */
static void transpose_square(tiler *t, reg *r, int lanes, const kins *load) {
    for (int piece = 1; piece < lanes; piece *= 2) {
        reg next[16];
        bool across = piece * (int)dtype_size((tn_dtype)load->dtype) >= 16; /* chunks wider than 16 bytes: columns stay apart */
        for (int b = 0; b < lanes; b += 2 * piece)
            for (int k = 0; k < piece; k++)
                for (int high = 0; high < 2; high++)
                    next[across ? b + k + high * piece : b + 2 * k + high] =
                        kernel_push(t->o, (kins){ .op = K_ZIP,
                                                  .dtype = load->dtype,
                                                  .src = load->dtype,
                                                  .lanes = (uint8_t)lanes,
                                                  .a = r[b + k],
                                                  .b = r[b + k + piece],
                                                  .piece = piece,
                                                  .mode = high ? ZIP_HIGH : ZIP_LOW,
                                                  .node = load->node });
        memcpy(r, next, sizeof *r * (size_t)lanes);
    }
}

/* The load for all copies that are turned together, when w is the first of them; nothing for the others. */
static void emit_transposed(tiler *t, int i, const where *at, const transposed_load *x) {
    const kins *s = &t->k->ins.at[i];
    if (at->pick[x->along] % x->lanes) return;
    where w = *at;
    kins in = *s;
    reg r[16];
    in.n_mask = 0;
    in.lanes = (uint8_t)x->lanes;
    in.idx = place_index(t, s->idx, &w, false, &in.lane_stride);
    in.lane_stride = 1;
    for (int l = 0; l < x->lanes; l++) {
        kins row = in;
        row.idx.base = ext_add(t->k->params, in.idx.base, l * x->gap);
        r[l] = kernel_push(t->o, row);
    }
    transpose_square(t, r, x->lanes, s);
    for (int l = 0; l < x->lanes; l++, w.pick[x->along]++)
        t->regs.at[t->inst[i] + combo_index(t, tiled(t, t->dep[i]), &w)] = r[l];
}

static int reserve_regs(tiler *t, int n) { /* returns the first */
    int first = t->regs.n;
    for (int c = 0; c < n; c++) VEC_PUSH(t->k->a, &t->regs, 0);
    return first;
}

static void reserve(tiler *t, int i, uint64_t set) {
    int n = count_combos(t, set) * (t->k->ins.at[i].op == K_ACC ? t->part[i].n : 1);
    t->inst[i] = reserve_regs(t, n);
}

/* Variables an instruction is repeated over: what it depends on; for an update also the copies of its reduction. */
static uint64_t repeat_set(const tiler *t, int i) {
    const kins *in = &t->k->ins.at[i];
    uint64_t set = tiled(t, t->dep[i]);
    if (in->op == K_UPD) {
        set |= tiled(t, t->dep[in->c]);
        if (t->part[in->c].var >= 0) set |= 1ull << t->part[in->c].var;
    }
    return set;
}

/* Straight-line code, copy by copy of the outermost unrolled variable: the left operand's values then live for a short while
 * only. */
static void emit_segment(tiler *t, int from, int to, kvar major) {
    for (int i = from; i < to; i++) reserve(t, i, repeat_set(t, i));
    uint64_t transposed = major >= 0 ? 1ull << major : 0;
    int turns = major >= 0 ? t->active[major].n : 1;
    for (int turn = 0; turn < turns; turn++)
        for (int i = from; i < to; i++) {
            uint64_t set = repeat_set(t, i), rest = set & ~transposed;
            if (rest == set && turn) continue;
            int n = count_combos(t, rest);
            uint64_t saved = t->dep[i];
            t->dep[i] = set;
            for (int c = 0; c < n; c++) {
                where w = { 0 };
                unpack_combo(t, rest, c, &w);
                if (major >= 0) w.pick[major] = (uint8_t)turn;
                transposed_load x;
                if (find_transpose(t, &t->k->ins.at[i], set, &w, &x))
                    emit_transposed(t, i, &w, &x);
                else
                    emit_instance(t, i, &w);
            }
            t->dep[i] = saved;
        }
}

/* ---- reductions ---- */

static reg combine(tiler *t, const kins *acc, reg x, reg y, int lanes) {
    reg r = build_op(t->o, (op_code)acc->alu, x, y);
    t->o->ins.at[r].lanes = (uint8_t)lanes, t->o->ins.at[r].node = acc->node;
    return r;
}

static reg combine_partials(tiler *t, const kins *acc, const partial *p, const reg *parts, int own_lanes) {
    reg level[MAX_COPIES], sums[MAX_COPIES] = { 0 };
    int n_sums = 0;
    bool across = t->k->vars.at[p->var].role.lanes > 1; /* lanes run along the reduction */
    for (int i = 0; i < p->n;) {
        int lanes = p->lanes[i], n = 0;
        for (; i < p->n && p->lanes[i] == lanes; i++) level[n++] = parts[i];
        while (n > 1) { /* pairwise */
            int m = 0;
            for (int j = 0; j < n; j += 2)
                level[m++] = j + 1 < n ? combine(t, acc, level[j], level[j + 1], across ? lanes : own_lanes) : level[j];
            n = m;
        }
        if (across && lanes > 1) {
            level[0] = build_lane_reduce(t->o, (op_code)acc->alu, level[0]);
            t->o->ins.at[level[0]].node = acc->node;
        }
        sums[n_sums++] = level[0];
    }
    reg r = sums[0];
    for (int i = 1; i < n_sums; i++) r = combine(t, acc, r, sums[i], across ? 1 : own_lanes);
    return r;
}

/* After a loop: accumulators made at this level whose partial values the loop changed become one value. */
static void finish_accumulators(tiler *t, int block_from, int loop, int end) {
    for (int i = block_from; i < loop; i++) {
        const kins *acc = &t->k->ins.at[i];
        partial *p = &t->part[i];
        if (acc->op != K_ACC || p->var < 0) continue;
        bool here = false;
        for (int j = loop; j < end && !here; j++) here = t->k->ins.at[j].op == K_UPD && t->k->ins.at[j].c == (reg)i;
        if (!here) continue;
        uint64_t set = tiled(t, t->dep[i]);
        int n = count_combos(t, set), old = t->inst[i], fresh = reserve_regs(t, n);
        for (int c = 0; c < n; c++) {
            where w = { 0 };
            unpack_combo(t, set, c, &w);
            reg r = combine_partials(t, acc, p, &t->regs.at[old + c * p->n], lanes_at(t, set, &w));
            t->regs.at[fresh + c] = r;
        }
        t->inst[i] = fresh;
    }
}

/* ---- loops ---- */

static void tile_block(tiler *t, int from, int to, kvar major);

static void open_out(tiler *t, kvar v, ext lo, ext hi, int64_t step, int par) {
    kernel_push(t->o, (kins){ .op = K_LOOP, .var = v, .lo = lo, .hi = hi, .step = step, .par = (uint8_t)par });
}

static void set_values(tiler *t, kvar v, int64_t lo, int64_t hi) {
    const copies *c = &t->active[v];
    const copy *last = &c->at[c->n - 1];
    t->span[v] = (kspan){ lo, hi };
    t->reach[v] = (kspan){ lo, hi + last->off + last->lanes - 1 };
}

/* One iteration; with par it is the last thread's. */
static void tile_once(tiler *t, int loop, int end, kvar major, int64_t at, bool par) {
    kvar v = t->k->ins.at[loop].var;
    t->is_fixed[v] = !par, t->fixed[v] = at;
    set_values(t, v, at, at);
    if (par) open_out(t, v, at, at + 1, 1, PAR_LAST);
    tile_block(t, loop + 1, end, major);
    if (par) build_ends(t->o, 1);
    t->is_fixed[v] = false;
}

/* Iterations [lo, hi): whole tiles, and the rest. Threads share the tiles of the main piece. */
static void tile_piece(tiler *t, int loop, int end, kvar major, int64_t lo, int64_t hi, bool main) {
    const kins *in = &t->k->ins.at[loop];
    kvar v = in->var;
    krole role = t->k->vars.at[v].role;
    bool par = t->k->par_var == v && in->par == PAR_SERIAL;
    int64_t step = (int64_t)role.unroll * role.lanes, full = (hi - lo) / step, rest = (hi - lo) % step, at = lo;
    t->active[v] = main_copies(role);
    if (main ? full == 1 && !par && in->par == PAR_SERIAL : par || full == 1) {
        for (; at < lo + full * step; at += step) tile_once(t, loop, end, major, at, par);
    } else if (full > 0 || step == 1) {
        set_values(t, v, lo, lo + (full - 1) * step);
        open_out(t, v, lo, lo + full * step, step, par ? PAR_THREADS : in->par);
        tile_block(t, loop + 1, end, major);
        build_ends(t->o, 1);
    }
    if (rest == 0) return;
    t->active[v] = tail_copies(role, rest, makes_again(t->k, loop, end));
    tile_once(t, loop, end, major, lo + full * step, par);
}

/* 1 where rows of sums over a size of the run, without loops inside of these, have fewer elements than pay for going through
 * several at once, else 0: long rows come from memory, one after the other. (Softmax of 131072 x 512, a core of a Zen 5: 20 ms
 * one by one, 38 by twos.) The literal 1 of other loops. */
static ext are_short(const tiler *t, int loop, int end) {
    enum { SHORT = 64 };
    ext most = 0;
    exts *x = t->k->params;
    krole role = t->k->vars.at[t->k->ins.at[loop].var].role;
    if (role.unroll < 2 || role.lanes > 1) return 1; /* lanes are columns, which lie side by side */
    for (int i = loop + 1; i < end; i++) {
        const kins *in = &t->k->ins.at[i];
        if (in->op != K_LOOP) continue;
        if (ext_is_lit(in->hi) || in->lo != 0 || (most && most != in->hi)) return 1;
        most = in->hi;
        for (i++; t->k->ins.at[i].op != K_END; i++)
            if (t->k->ins.at[i].op == K_LOOP) return 1;
    }
    return most ? ext_min(x, ext_max(x, ext_sub(x, SHORT, most), 0), 1) : 1;
}

/* The same where a run gives the ends: whole tiles, then at most one of each power of two below; long rows go one by one,
 * unless threads share them, which share whole tiles. */
static void tile_piece_of_run(tiler *t, int loop, int end, kvar major) {
    const kins *in = &t->k->ins.at[loop];
    exts *x = t->k->params;
    kvar v = in->var;
    krole role = t->k->vars.at[v].role;
    bool par = t->k->par_var == v && in->par == PAR_SERIAL;
    int64_t step = (int64_t)role.unroll * role.lanes;
    ext at = in->lo, all = ext_sub(x, in->hi, in->lo), some = par ? all : ext_mul(x, all, are_short(t, loop, end));
    for (int64_t n = step; n > 0; n /= 2) {
        ext count = n == 1 ? all : some; /* of a multiple no run has a rest */
        ext to = ext_add(x, in->lo, ext_divisor(x, count) % n ? ext_mul(x, ext_floor_div(x, count, n), n) : count);
        if (to == at) continue;
        t->active[v] = main_copies(n < role.lanes ? (krole){ 1, (int)n } : (krole){ (int)(n / role.lanes), role.lanes });
        open_out(t, v, at, to, n, !par ? in->par : n == step ? PAR_THREADS : PAR_LAST);
        tile_block(t, loop + 1, end, major);
        build_ends(t->o, 1);
        at = to;
    }
}

/* ---- sliding windows ---- */

typedef struct tap { /* one multiply-add of a window */
    kins x, weight;
    int64_t at; /* of x, in or beyond the border */
    reg acc;
} tap;
typedef VEC(tap) tap_list;

/* A short contraction loop over the elements of a window, whose neighbours (copies of a row variable) have most of them in
 * common. */
static const kins *window_update(const tiler *t, int loop, int end, kvar major) {
    const kins *in = &t->k->ins.at[loop], *upd = NULL;
    if (t->k->params || major < 0 || in->par != PAR_SERIAL || in->hi - in->lo > LOOP_MOST_TAPS || in->hi - in->lo < 2 ||
        has_role(t->k, in->var))
        return NULL;
    for (int i = loop + 1; i < end; i++) {
        const kins *x = &t->k->ins.at[i];
        if (x->op == K_UPD && x->alu == OP_dot && !upd)
            upd = x;
        else if (x->op != K_LOAD || x->dyn)
            return NULL;
    }
    if (!upd || (int)upd->a <= loop || (int)upd->b <= loop || t->part[upd->c].var >= 0) return NULL;
    const kins *x = &t->k->ins.at[upd->a], *weight = &t->k->ins.at[upd->b];
    if (loop_slides_along(t->k, x, weight, in->var) != major) return NULL;
    return upd;
}

static void list_taps(tiler *t, const kins *upd, kvar v, int64_t value, tap_list *taps) {
    reg r = (reg)(upd - t->k->ins.at);
    uint64_t saved = t->dep[r], set = repeat_set(t, (int)r);
    t->is_fixed[v] = true, t->fixed[v] = value;
    for (int c = 0, n = count_combos(t, set); c < n; c++) {
        where w = { 0 };
        int64_t stride;
        unpack_combo(t, set, c, &w);
        tap x = { .x = instance(t, (int)upd->a, &w),
                  .weight = instance(t, (int)upd->b, &w),
                  .acc = accumulator(t, upd->c, &w) };
        x.at = place_index(t, t->k->ins.at[upd->a].idx, &w, false, &stride).base;
        VEC_PUSH(t->k->a, taps, x);
    }
    t->dep[r] = saved;
    t->is_fixed[v] = false;
}

/* A register that has the value already, or a new one. */
static reg shared_load(tiler *t, reg_list *made, const kins *in) {
    for (int i = made->n - 1; i >= 0; i--) {
        const kins *old = &t->o->ins.at[made->at[i]];
        if (old->op == in->op && old->buf == in->buf && old->lanes == in->lanes && old->n_mask + in->n_mask == 0 &&
            affine_equal(old->idx, in->idx))
            return made->at[i];
    }
    VEC_PUSH(t->k->a, made, kernel_push(t->o, *in));
    return made->at[made->n - 1];
}

/* All taps of the loop, in the order of their elements: each is loaded once, and waits in a register for the few windows that
 * have it. The terms of a sum keep their order. */
static void emit_window(tiler *t, int loop, const kins *upd) {
    const kins *in = &t->k->ins.at[loop];
    tap_list taps = { 0 };
    reg_list made = { 0 };
    for (int64_t i = in->lo; i < in->hi; i++) list_taps(t, upd, in->var, i, &taps);
    for (int i = 1; i < taps.n; i++)
        for (int j = i; j > 0 && taps.at[j].at < taps.at[j - 1].at; j--) {
            tap swap = taps.at[j];
            taps.at[j] = taps.at[j - 1], taps.at[j - 1] = swap;
        }
    for (int i = 0; i < taps.n; i++) {
        const tap *x = &taps.at[i];
        kins u = *upd;
        u.a = shared_load(t, &made, &x->x), u.b = shared_load(t, &made, &x->weight), u.c = x->acc;
        u.lanes = t->o->ins.at[u.c].lanes;
        kernel_push(t->o, u);
    }
}

static void tile_loop(tiler *t, int loop, int end, kvar major) {
    const kins *in = &t->k->ins.at[loop];
    krole role = t->k->vars.at[in->var].role;
    const kins *upd = window_update(t, loop, end, major);
    kcuts cuts = { 0 };
    if (upd) {
        emit_window(t, loop, upd);
        return;
    }
    if (major < 0 && role.unroll > 1 && role.lanes == 1) major = in->var;
    if (!ext_is_lit(in->lo) || !ext_is_lit(in->hi)) {
        tile_piece_of_run(t, loop, end, major);
        return;
    }
    int64_t step = (int64_t)role.unroll * role.lanes;
    if (in->par == PAR_SERIAL && !t->k->params) loop_peel_cuts(t->k, loop, end, step, t->reach, &cuts);
    int main = loop_peel_main(&cuts);
    if (t->k->par_var == in->var && (!t->alike || !loop_peel_shared(&cuts, step))) cuts.n = main = 0;
    if (cuts.n == 0) cuts = (kcuts){ .n = 2, .at = { in->lo, in->hi } };
    for (int i = 0; i + 1 < cuts.n; i++) tile_piece(t, loop, end, major, cuts.at[i], cuts.at[i + 1], i == main);
}

static void tile_block(tiler *t, int from, int to, kvar major) {
    int segment = from;
    for (int i = from; i < to; i++) {
        if (t->k->ins.at[i].op != K_LOOP) continue;
        emit_segment(t, segment, i, major);
        int end = kernel_loop_end(t->k, i);
        tile_loop(t, i, end, major);
        finish_accumulators(t, from, i, end);
        i = end;
        segment = end + 1;
    }
    emit_segment(t, segment, to, major);
}

kernel *loop_tile(const kernel *k) {
    kernel *o = kernel_make(k->a, k->name);
    tiler t = { .k = k, .o = o, .alike = k->par_var < 0 || (!k->params && loop_peel_alike(k, k->par_var)) };
    int n = k->ins.n, nv = k->vars.n + 1;
    if (k->vars.n > MAX_LOOPS)
        guard_fail(k->a->gd, TN_ERR_UNSUPPORTED, "kernel %s has %d loops; the limit is %d", k->name, k->vars.n, MAX_LOOPS);
    t.dep = ARENA_ARRAY(k->a, uint64_t, n);
    t.inst = ARENA_ARRAY(k->a, int, n);
    t.part = ARENA_ARRAY(k->a, partial, n);
    t.acc_depth = ARENA_ARRAY(k->a, int, n);
    t.active = ARENA_ARRAY(k->a, copies, nv);
    t.is_fixed = ARENA_ARRAY(k->a, bool, nv);
    t.fixed = ARENA_ARRAY(k->a, int64_t, nv);
    t.span = ARENA_ARRAY(k->a, kspan, nv);
    t.reach = ARENA_ARRAY(k->a, kspan, nv);
    int room = n;
    for (kvar v = 0; v < k->vars.n && room < MOST_ROOM; v++) room *= k->vars.at[v].role.unroll;
    VEC_PUSH(k->a, &t.regs, 0);
    VEC_RESERVE(o->a, &o->ins, room < MOST_ROOM ? room : MOST_ROOM);
    for (int i = 0; i < n; i++) t.part[i].var = -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        ext most = ext_hi(k->params, k->vars.at[v].extent);
        t.span[v] = t.reach[v] = (kspan){ 0, most - 1 }; /* of a loop around the kernel */
        VEC_PUSH(o->a, &o->vars, k->vars.at[v]);
        if (has_role(k, v)) t.jam |= 1ull << v, t.jams[t.n_jams++] = v;
        t.active[v] = (copies){ 1, { { 0, 1 } } };
    }
    for (int b = 0; b < k->bufs.n; b++) VEC_PUSH(o->a, &o->bufs, k->bufs.at[b]);
    o->par_var = k->par_var, o->params = k->params;
    o->flops = k->flops, o->bytes_read = k->bytes_read, o->bytes_written = k->bytes_written;
    o->tiled = true;
    find_deps(&t);
    plan_partials(&t);
    tile_block(&t, 1, n, -1);
    for (int b = 0; b < k->bufs.n; b++) { /* one copy of local memory for each row worked on at once */
        if (k->bufs.at[b].kind != KB_LOCAL) continue;
        uint64_t rows = 0;
        for (int i = 1; i < n; i++)
            if ((k->ins.at[i].op == K_STORE || k->ins.at[i].op == K_LOAD) && k->ins.at[i].buf == b)
                rows |= loop_vars(k->ins.at[i].idx);
        for (kvar v = 0; v < k->vars.n; v++)
            if ((rows >> v & 1) && k->vars.at[v].row && has_role(k, v))
                o->bufs.at[b].elems *= (int64_t)k->vars.at[v].role.unroll * k->vars.at[v].role.lanes;
    }
    if (!k->params) loop_fold_checks(o);
    return o;
}

/* Where a run gives sizes: tiles of powers of two along them, lanes one after the other in memory whatever the sizes are. Local
 * memory has the room of the largest. */
static bool can_tile_params(kernel *k, str *why) {
    for (kvar v = 0; v < k->vars.n; v++) {
        const kvar_info *x = &k->vars.at[v];
        if (ext_is_lit(x->extent) || !(x->role.unroll & (x->role.unroll - 1))) continue;
        return step_refuse(why, "a run gives the iterations of %s: %d at a time are no power of two", x->name, x->role.unroll);
    }
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (kernel_touches(in) && k->bufs.at[in->buf].kind == KB_LOCAL)
            for (int n = 0; n < in->idx.n; n++)
                if (!k->vars.at[in->idx.t[n].var].row && !ext_is_lit(in->idx.t[n].coef))
                    return step_refuse(why, "a run gives the steps of %%%d in local memory", i);
        const char *name = loop_lanes_of_run(k, in);
        if (name) return step_refuse(why, "a run gives how far apart lanes along %s are in %%%d", name, i);
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) k->bufs.at[b].elems = ext_hi(k->params, k->bufs.at[b].elems);
    return true;
}

bool step_tile(kernel **k, const loop_step *s, str *why) {
    (void)s;
    if ((*k)->params && !can_tile_params(*k, why)) return false;
    if (gpu_has_threads(*k)) return gpu_tile_contraction(k, why);
    for (kvar v = 0; v < (*k)->vars.n; v++)
        if (has_role(*k, v) && (*k)->vars.at[v].reduce && loop_keeps_order(*k, v, why)) return false;
    kernel *o = loop_tile(*k);
    str problems;
    str_init(&problems, o->a);
    if (o->params && o->par_var >= 0 &&
        kernel_check(o, &problems)) /* where no whole tile fits, tiles are one behind the other */
        return step_refuse(why, "threads share %s, whose tiles are not proven to touch other elements",
                           o->vars.at[o->par_var].name);
    *k = o;
    return true;
}
