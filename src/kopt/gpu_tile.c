/* gpu_tile.c - a contraction in tiles: a group copies a part of both operands to its fast memory, each thread multiplies out a
 * small tile of the result in registers.
 *
 * In: a scalar kernel that is one contraction with what is computed before and behind it. Out: a new kernel, or NULL when the
 * kernel is of another kind or the tiles would not pay. Sizes need not divide: loads and stores are masked, and what lies
 * behind the end of the contraction counts as zero. */
#include "kopt/kopt.h"

#include <math.h>

enum { MAX_BLOCK = 32 /* steps of the contraction a copy holds */, MAX_SIDE = 8 };

typedef struct shape {
    int tm, tn, ty, tx; /* tile of a thread; threads down and across */
    double cost;
} shape;

typedef struct tiler {
    const kernel *k;
    kernel *o;
    const target *t;
    int n_outer, acc, loops, n_loops, upd, end; /* instructions: accumulator, contraction loops, update, end of the outermost */
    kvar m, n;
    bool swapped; /* operand a goes with n */
    bool *needed[2];
    shape s;
    int block_loops; /* innermost contraction loops that a copy holds whole */
    int64_t split;   /* and this many steps of the next one */
    int64_t block;   /* steps in all */
    bool k_tail, m_tail, n_tail;
    int side_buf[2]; /* fast memory of the operand that goes with m, with n */
    int64_t pitch[2];
    /* where things are while writing */
    affine tile[2]; /* first m, n of the group */
    affine k_first; /* of the split loop */
    kvar ty, tx;
    reg *to;
} tiler;

static const kins *at(const tiler *w, int i) { return &w->k->ins.at[i]; }
static int64_t extent(const tiler *w, kvar v) { return w->k->vars.at[v].extent; }

/* ---- what kind of kernel it is ---- */

static bool find_parts(tiler *w) {
    const kernel *k = w->k;
    int i = 1 + w->n_outer, last = k->ins.n - w->n_outer;
    for (; i < last && at(w, i)->op != K_LOOP; i++) {
        if (at(w, i)->op == K_STORE || (at(w, i)->op == K_ACC && w->acc)) return false;
        if (at(w, i)->op == K_ACC) w->acc = i;
    }
    if (!w->acc || i >= last) return false;
    w->loops = i, w->end = kopt_loop_end(k, i);
    for (; at(w, i)->op == K_LOOP && k->vars.at[at(w, i)->var].reduce && kopt_loop_end(k, i) == w->end - w->n_loops; i++)
        w->n_loops++;
    for (; i < w->end - w->n_loops + 1; i++) {
        const kins *in = at(w, i);
        if (in->op == K_LOOP || in->op == K_STORE || w->upd) return false;
        if (in->op == K_UPD && (in->alu != OP_dot || (int)in->c != w->acc)) return false;
        if (in->op == K_UPD) w->upd = i;
        if (in->op == K_LOAD && k->bufs.at[in->buf].kind != KB_IN) return false;
    }
    if (!w->upd) return false;
    for (i = w->end + 1; i < last; i++)
        if (at(w, i)->op == K_LOOP || at(w, i)->op == K_ACC || at(w, i)->op == K_UPD || at(w, i)->op == K_SCATTER) return false;
    return true;
}

/* Instructions that register r is computed from, itself among them. */
static void mark_needed(const tiler *w, reg r, bool *needed) {
    if (r == 0 || needed[r]) return;
    const kins *in = at(w, (int)r);
    needed[r] = true;
    mark_needed(w, in->a, needed), mark_needed(w, in->b, needed), mark_needed(w, in->c, needed),
        mark_needed(w, in->dyn, needed);
}

static bool uses(const kins *in, kvar v) {
    if (affine_coef(in->idx, v)) return true;
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) return true;
    return false;
}
static bool side_uses(const tiler *w, const bool *needed, kvar v) {
    for (int i = 1; i < w->k->ins.n; i++)
        if (needed[i] && uses(at(w, i), v)) return true;
    return false;
}

static bool stored_along(const tiler *w, kvar v) {
    for (int i = w->end; i < w->k->ins.n; i++)
        if (at(w, i)->op == K_STORE && affine_coef(at(w, i)->idx, v) == 1) return true;
    return false;
}

/* The row variables to tile: one that only operand a depends on and one for b; threads that are neighbours store along n. */
static bool choose_variables(tiler *w) {
    double best[2] = { 0, 0 };
    kvar v[2] = { -1, -1 };
    for (int i = 1; i <= w->n_outer; i++) {
        kvar u = at(w, i)->var;
        bool a = side_uses(w, w->needed[0], u), b = side_uses(w, w->needed[1], u);
        double score = (double)(extent(w, u) < 128 ? extent(w, u) : 128) * (stored_along(w, u) ? 2 : 1);
        if (a != b && score > best[b]) best[b] = score, v[b] = u;
    }
    if (v[0] < 0 || v[1] < 0) return false;
    w->swapped = stored_along(w, v[0]);
    w->m = v[w->swapped], w->n = v[!w->swapped];
    return true;
}

static void choose_block(tiler *w) {
    w->block = 1, w->split = 1;
    while (w->block_loops < w->n_loops) {
        kvar v = at(w, w->loops + w->n_loops - 1 - w->block_loops)->var;
        if (w->block * extent(w, v) > MAX_BLOCK) {
            w->split = 16 / w->block;
            if (w->split < 1) w->split = 1;
            w->k_tail = extent(w, v) % w->split != 0;
            break;
        }
        w->block *= extent(w, v);
        w->block_loops++;
    }
    w->block *= w->split;
}

/* Instructions of a thread, weighed as in gpu.c, times the waves of groups. */
static double cost_of(const tiler *w, const shape *s) {
    double steps = 1, others = 1, bm = s->tm * s->ty, bn = s->tn * s->tx, group = s->ty * s->tx;
    for (int i = 0; i < w->n_loops; i++) steps *= (double)extent(w, at(w, w->loops + i)->var);
    for (int i = 1; i <= w->n_outer; i++)
        if (at(w, i)->var != w->m && at(w, i)->var != w->n) others *= (double)extent(w, at(w, i)->var);
    double groups = others * ceil((double)extent(w, w->m) / bm) * ceil((double)extent(w, w->n) / bn),
           thread = steps * (s->tm * s->tn + 2 * (s->tm + s->tn) + 8 * (bm + bn) / group) + 40 * ceil(steps / (double)w->block),
           waves = groups * group / (double)w->t->grid;
    return (waves < 1 ? 1 : waves) * (thread + 12 * s->tm * s->tn) + kopt_gpu_start_cost(groups, w->t);
}

static void choose_shape(tiler *w) {
    int64_t size = (int64_t)dtype_size((tn_dtype)at(w, w->acc)->dtype);
    int least = w->t->group < 64 ? w->t->group : 64;
    w->s.cost = INFINITY;
    for (int tm = 1; tm <= MAX_SIDE; tm *= 2)
        for (int tn = 1; tn <= MAX_SIDE; tn *= 2)
            for (int ty = 2; ty <= 32; ty *= 2)
                for (int tx = 4; tx <= 32; tx *= 2) {
                    shape s = { tm, tn, ty, tx, 0 };
                    if (ty * tx < least || ty * tx > w->t->group) continue;
                    if (w->block * (tm * ty + tn * tx + 2) * size > w->t->group_bytes) continue;
                    s.cost = cost_of(w, &s);
                    if (s.cost < w->s.cost) w->s = s;
                }
}

/* ---- writing ---- */

static kvar open(tiler *w, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(w->o, name, n, false, false);
    kernel_push(w->o, (kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .par = (uint8_t)par });
    return v;
}
static void close(tiler *w, int n) {
    for (int i = 0; i < n; i++) kernel_push(w->o, (kins){ .op = K_END });
}

static affine sum(const tiler *w, affine x, kvar v, int64_t times) {
    return affine_add(w->o->a, x, affine_scale(w->o->a, affine_var(w->o->a, v), times));
}

typedef struct places { /* what variables become, and which of them may lie behind their end */
    kvar var[64];
    affine value[64];
    int n;
    kmask mask[3];
    int n_mask;
} places;
static void put(places *p, kvar v, affine value) { p->var[p->n] = v, p->value[p->n++] = value; }
static void bound(places *p, affine e, int64_t n) { p->mask[p->n_mask++] = (kmask){ e, 0, n }; }

static affine moved(const tiler *w, const places *p, affine x) {
    for (int i = 0; i < p->n; i++) x = affine_set_var(w->o->a, x, p->var[i], p->value[i]);
    return x;
}

static reg copy(tiler *w, int i, const places *p) {
    kins in = *at(w, i);
    int n = in.n_mask;
    in.a = w->to[in.a], in.b = w->to[in.b], in.c = w->to[in.c], in.dyn = w->to[in.dyn];
    in.idx = moved(w, p, in.idx);
    bool memory = in.op == K_LOAD || in.op == K_STORE;
    kmask *mask = ARENA_ARRAY(w->o->a, kmask, n + 3);
    for (int m = 0; m < n; m++) mask[m] = (kmask){ moved(w, p, in.mask[m].e), in.mask[m].lo, in.mask[m].hi };
    for (int m = 0; m < p->n_mask && memory; m++) mask[n++] = p->mask[m];
    if (in.n_mask == 0 && in.op == K_LOAD) in.imm = 0, in.imm_int = 0;
    in.mask = mask, in.n_mask = n;
    in.mask_lane = ARENA_ARRAY(w->o->a, int64_t, n + 1);
    return w->to[i] = kernel_push(w->o, in);
}

/* v where the step of the contraction exists, else 0. */
static reg zero_behind(tiler *w, reg v, tn_dtype t, affine e, int64_t n) {
    reg i = kernel_push(w->o, (kins){ .op = K_INDEX, .dtype = TN_I64, .idx = e });
    reg end = kernel_push(w->o, (kins){ .op = K_CONST, .dtype = TN_I64, .imm_int = n });
    reg zero = kernel_push(w->o, (kins){ .op = K_CONST, .dtype = (uint8_t)t });
    reg in = kernel_push(w->o, (kins){ .op = K_ALU, .alu = OP_lt, .dtype = TN_I32, .src = TN_I64, .a = i, .b = end });
    return kernel_push(
        w->o, (kins){ .op = K_ALU, .alu = OP_select, .dtype = (uint8_t)t, .src = (uint8_t)t, .a = in, .b = v, .c = zero });
}

/* A load of the operand lies closer together along v than along other variables of the copy. */
static bool lies_along(const tiler *w, const bool *needed, kvar v) {
    for (int i = 1; i < w->k->ins.n; i++)
        if (needed[i] && at(w, i)->op == K_LOAD && (affine_coef(at(w, i)->idx, v) == 1 || affine_coef(at(w, i)->idx, v) == -1))
            return true;
    return false;
}

/* The group's copy of one operand: side 0 goes with m, side 1 with n. */
static void write_copy(tiler *w, int side) {
    const bool *needed = w->needed[side ^ w->swapped];
    kvar row = side ? w->n : w->m;
    int64_t rows = side ? (int64_t)w->s.tn * w->s.tx : (int64_t)w->s.tm * w->s.ty, stride = 1;
    bool row_last = lies_along(w, needed, row), tail = side ? w->n_tail : w->m_tail;
    places p = { 0 };
    affine step = affine_const(0), last = affine_const(0);
    kvar r = row_last ? -1 : open(w, "r", rows, PAR_LOCAL), kv[TN_MAX_RANK + 2];
    int n = w->block_loops + (w->split > 1);
    for (int i = 0; i < n; i++) {
        bool first = i == 0 && w->split > 1;
        kv[i] = open(w, "c", first ? w->split : extent(w, at(w, w->loops + w->n_loops - (n - i))->var), PAR_LOCAL);
    }
    if (row_last) r = open(w, "r", rows, PAR_LOCAL);
    for (int i = n - 1; i >= 0; i--) {
        bool first = i == 0 && w->split > 1;
        kvar v = at(w, w->loops + w->n_loops - (n - i))->var;
        step = sum(w, step, kv[i], stride);
        if (first) last = sum(w, w->k_first, kv[i], 1);
        put(&p, v, first ? last : affine_var(w->o->a, kv[i]));
        stride *= first ? w->split : extent(w, v);
    }
    affine place = sum(w, w->tile[side], r, 1);
    put(&p, row, place);
    kvar split_var = at(w, w->loops + w->n_loops - n)->var;
    if (tail) bound(&p, place, extent(w, row));
    if (w->k_tail) bound(&p, last, extent(w, split_var));
    for (int i = 1; i < w->upd; i++)
        if (needed[i]) copy(w, i, &p);
    int operand = (int)((side ^ (int)w->swapped) ? at(w, w->upd)->b : at(w, w->upd)->a);
    reg v = w->to[operand];
    tn_dtype t = (tn_dtype)at(w, w->acc)->dtype;
    bool plain = at(w, operand)->op == K_LOAD && at(w, operand)->n_mask == 0;
    if (w->k_tail && !plain) v = zero_behind(w, v, t, last, extent(w, split_var));
    kernel_push(w->o, (kins){ .op = K_STORE,
                              .dtype = (uint8_t)t,
                              .buf = (uint16_t)w->side_buf[side],
                              .idx = sum(w, affine_scale(w->o->a, step, w->pitch[side]), r, 1),
                              .a = v });
    close(w, n + 1);
}

/* What a thread multiplies: one step of the contraction after the other, all of its tile. */
static void write_products(tiler *w, reg acc[MAX_SIDE][MAX_SIDE]) {
    tn_dtype t = (tn_dtype)at(w, w->acc)->dtype;
    reg side[2][MAX_SIDE];
    kvar k = open(w, "k", w->block, PAR_SERIAL);
    for (int x = 0; x < 2; x++)
        for (int i = 0; i < (x ? w->s.tn : w->s.tm); i++) {
            affine e = affine_scale(w->o->a, affine_var(w->o->a, k), w->pitch[x]);
            e = affine_offset(sum(w, e, x ? w->tx : w->ty, 1), (int64_t)i * (x ? w->s.tx : w->s.ty));
            side[x][i] = kernel_push(
                w->o,
                (kins){ .op = K_LOAD, .dtype = (uint8_t)t, .src = (uint8_t)t, .buf = (uint16_t)w->side_buf[x], .idx = e });
        }
    for (int i = 0; i < w->s.tm; i++)
        for (int j = 0; j < w->s.tn; j++)
            kernel_push(w->o, (kins){ .op = K_UPD,
                                      .alu = OP_dot,
                                      .dtype = (uint8_t)t,
                                      .a = w->swapped ? side[1][j] : side[0][i],
                                      .b = w->swapped ? side[0][i] : side[1][j],
                                      .c = acc[i][j] });
    close(w, 1);
}

/* What comes behind the contraction, for each element of the thread's tile; what depends on m or n alone, once. */
static void write_results(tiler *w, reg acc[MAX_SIDE][MAX_SIDE]) {
    int last = w->k->ins.n - w->n_outer, before = 1 + w->n_outer;
    bool *on[2] = { ARENA_ARRAY(w->o->a, bool, w->k->ins.n), ARENA_ARRAY(w->o->a, bool, w->k->ins.n) };
    reg *seen[MAX_SIDE]; /* [j][instruction]: of what depends on n only */
    for (int j = 0; j < w->s.tn; j++) seen[j] = ARENA_ARRAY(w->o->a, reg, w->k->ins.n);
    on[0][w->acc] = on[1][w->acc] = true;
    for (int i = before; i < last; i++) {
        const kins *in = at(w, i);
        for (int x = 0; x < 2; x++)
            on[x][i] |= in->op == K_STORE || uses(in, x ? w->n : w->m) || on[x][in->a] || on[x][in->b] || on[x][in->c] ||
                        on[x][in->dyn];
    }
    for (int i = 0; i < w->s.tm; i++)
        for (int j = 0; j < w->s.tn; j++) {
            places p = { 0 };
            affine m = affine_offset(sum(w, w->tile[0], w->ty, 1), (int64_t)i * w->s.ty),
                   n = affine_offset(sum(w, w->tile[1], w->tx, 1), (int64_t)j * w->s.tx);
            put(&p, w->m, m), put(&p, w->n, n);
            for (int r = before; r < last; r++) {
                if (r == w->loops) r = w->end + 1;
                if (r >= last) break;
                if (r == w->acc) {
                    w->to[r] = acc[i][j];
                    continue;
                }
                if ((!on[0][r] && i > 0) || (!on[1][r] && j > 0)) {
                    if (!on[0][r] && on[1][r]) w->to[r] = seen[j][r];
                    continue;
                }
                p.n_mask = 0;
                if (w->m_tail && on[0][r]) bound(&p, m, extent(w, w->m));
                if (w->n_tail && on[1][r]) bound(&p, n, extent(w, w->n));
                seen[j][r] = copy(w, r, &p);
            }
        }
}

static void write_tiles(tiler *w) {
    kernel *o = w->o;
    const kins *acc = at(w, w->acc);
    int n_groups = 0, n_serial = 0;
    reg c[MAX_SIDE][MAX_SIDE];
    int64_t bm = (int64_t)w->s.tm * w->s.ty, bn = (int64_t)w->s.tn * w->s.tx;
    for (int i = 1; i <= w->n_outer; i++) {
        kins in = *at(w, i);
        if (in.var == w->m || in.var == w->n) continue;
        in.par = PAR_GROUPS;
        o->groups *= in.hi;
        kernel_push(o, in);
        n_groups++;
    }
    int64_t tiles[2] = { (extent(w, w->m) + bm - 1) / bm, (extent(w, w->n) + bn - 1) / bn };
    for (int x = 0; x < 2; x++) {
        w->tile[x] = sum(w, affine_const(0), open(w, "t", tiles[x], PAR_GROUPS), x ? bn : bm);
        o->groups *= tiles[x];
    }
    w->ty = open(w, "y", w->s.ty, PAR_LOCAL), w->tx = open(w, "x", w->s.tx, PAR_LOCAL);
    for (int i = 0; i < w->s.tm; i++)
        for (int j = 0; j < w->s.tn; j++) c[i][j] = kernel_push(o, *acc);
    for (; n_serial < w->n_loops - w->block_loops - (w->split > 1); n_serial++) kernel_push(o, *at(w, w->loops + n_serial));
    if (w->split > 1) {
        int64_t steps = (extent(w, at(w, w->loops + n_serial)->var) + w->split - 1) / w->split;
        w->k_first = sum(w, affine_const(0), open(w, "s", steps, PAR_SERIAL), w->split);
        n_serial++;
    }
    write_copy(w, 0), write_copy(w, 1);
    kernel_push(o, (kins){ .op = K_BARRIER });
    write_products(w, c);
    kernel_push(o, (kins){ .op = K_BARRIER });
    close(w, n_serial);
    write_results(w, c);
    close(w, n_groups + 4);
}

kernel *kopt_gpu_tile(const kernel *k, int n_outer, const target *t, double *out_cost) {
    tiler w = { .k = k, .t = t, .n_outer = n_outer };
    if (n_outer < 2 || k->vars.n > 40 || !find_parts(&w)) return NULL;
    for (int x = 0; x < 2; x++) w.needed[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
    mark_needed(&w, at(&w, w.upd)->a, w.needed[0]);
    mark_needed(&w, at(&w, w.upd)->b, w.needed[1]);
    if (w.needed[0][w.acc] || w.needed[1][w.acc] || !choose_variables(&w)) return NULL;
    for (int i = 1; i <= n_outer + w.n_loops; i++)
        if (at(&w, i <= n_outer ? i : w.loops + i - n_outer - 1)->hi < 1) return NULL;
    choose_block(&w);
    choose_shape(&w);
    if (!(w.s.cost < *out_cost)) return NULL;
    *out_cost = w.s.cost;
    kernel *o = w.o = kernel_make(k->a, k->name);
    o->vars.at = k->vars.at, o->vars.n = k->vars.n, o->vars.cap = k->vars.n; /* grows into memory of its own */
    o->bufs.at = k->bufs.at, o->bufs.n = k->bufs.n, o->bufs.cap = k->bufs.n;
    o->flops = k->flops, o->bytes_read = k->bytes_read, o->bytes_written = k->bytes_written;
    o->group = w.s.ty * w.s.tx, o->groups = 1, o->tiled = true;
    w.to = ARENA_ARRAY(k->a, reg, k->ins.n);
    w.m_tail = extent(&w, w.m) % ((int64_t)w.s.tm * w.s.ty) != 0, w.n_tail = extent(&w, w.n) % ((int64_t)w.s.tn * w.s.tx) != 0;
    for (int x = 0; x < 2; x++) {
        w.pitch[x] = (x ? (int64_t)w.s.tn * w.s.tx : (int64_t)w.s.tm * w.s.ty) + 1;
        w.side_buf[x] = kernel_buf(
            o, (kbuf){ .dtype = at(&w, w.acc)->dtype, .kind = KB_GROUP, .elems = w.block * w.pitch[x], .plan_buf = -1 });
    }
    write_tiles(&w);
    return o;
}
