/* row_tiles_write.c - writes rows of contractions and elementwise work in tiles of thread blocks (bind_row_tiles.c).
 *
 * In: the parts of the scalar kernel and the shape. Out: a new kernel. The threads of a block are a nest of local loops, whose
 * variables are digits of the thread's number; the lowest are its place across. A thread has the rows y, y + down, ..; numbers
 * of a row are in registers of all threads of the row. Operands of contractions lie in shared memory row by row, so that four
 * steps are one load; those whose columns lie side by side in memory lie so in shared memory, too. */
#include "loop/row_tiles.h"

#include <math.h>

enum {
    BATCH = 8 /* loads of a thread that are under way */,
    FEW_TILES = 2,
    MOST_AHEAD = 16 /* vectors of a step */,
    MOST_NEIGHBOURS = 64 /* heads whose blocks begin together */
};

typedef rt_writer writer;

static affine plus(const writer *w, affine x, affine y, int64_t times) { return build_plus(w->o->a, x, y, times); }
static const kins *ins(const writer *w, int i) { return rt_ins(w->w, i); }

static void more_blocks(writer *w, ext n) { w->o->grid_blocks = ext_mul(w->o->params, w->o->grid_blocks, n); }

/* ---- barriers ---- */

static void put_barrier(writer *w) {
    if (w->w->matrix) kernel_push(w->o, (kins){ .op = K_ASYNC, .mode = ASYNC_COPIES });
    build_barrier(w->o);
    memset(w->wrote, 0, sizeof *w->wrote * (size_t)w->o->bufs.n), memset(w->read, 0, sizeof *w->read * (size_t)w->o->bufs.n);
}
static void will_read(writer *w, int buf) {
    if (w->wrote[buf]) put_barrier(w);
    w->read[buf] = true;
}
static void will_write(writer *w, int buf) {
    if (w->read[buf]) put_barrier(w);
    w->wrote[buf] = true;
}

/* Instructions [from, to), or those of them that are needed, touch memory now: a barrier comes first where other threads may
 * have touched it. Buffers that are only read or only written need none, nor does what a thread has in registers; a nest that
 * reads and writes a buffer does so at a thread's own elements. */
static void will_touch(writer *w, int from, int to, const bool *needed) {
    bool needed_first = false;
    for (int round = 0; round < 2; round++) {
        for (int i = from; i < to; i++) {
            const kins *in = ins(w, i);
            bool load = in->op == K_LOAD, store = in->op == K_STORE, own = rt_local(w->w, in);
            if ((needed && !needed[i]) || !(load || store)) continue;
            if (own ? load || !w->w->bufs[in->buf].shared : w->w->k->bufs.at[in->buf].kind != KB_INOUT) continue;
            if (round == 0)
                needed_first |= load ? w->wrote[in->buf] : w->read[in->buf];
            else
                (load ? w->read : w->wrote)[in->buf] = true;
        }
        if (round == 0 && needed_first) put_barrier(w);
    }
}
static int shared(writer *w, int64_t n) { return gpu_shared_buffer(w->o, TN_F32, n); }

/* ---- places ---- */

/* Bits [lo, hi) of the thread's number. */
static affine bits_of(const writer *w, int lo, int hi) { return rt_bits_of(w, lo, hi); }
static affine local_row(const writer *w, int i) { return affine_offset(w->y, i * (w->w->matrix ? 8 : (int64_t)w->w->down)); }
static affine row_at(const writer *w, int i) { return plus(w, w->first_row, local_row(w, i), 1); }
static affine column_at(const writer *w, const rt_nest *n, int g) {
    int64_t each = n->vectors ? w->w->wide : 1;
    return affine_offset(affine_scale(w->o->a, w->x, each), g * each * w->w->across);
}
static int64_t padded(const writer *w, const rt_nest *n) {
    return (int64_t)n->grid_blocks * w->w->across * (n->vectors ? w->w->wide : 1);
}

/* ---- operands into shared memory ---- */

typedef struct copying { /* of an operand: its items, fast along memory, are the threads' */
    const rt_operand *s;
    kvar var[2];    /* fast, slow */
    int64_t n[2];   /* their extents in shared memory, of fast in items of `lanes` lanes; */
    ext real[2];    /* and in memory */
    affine base[2]; /* what they begin at */
    int lanes, log_fast, chunks;
    bool async;
    const rt_nest *of, *tiles; /* tiles: the serial loop, where it is not at its own iteration but at: */
    affine tile;
    bool bounded; /* which there may not be */
    bool behind;  /* it is 0 where this is negative: */
    affine where;
    reg v[BATCH]; /* chunks that are under way */
} copying;

/* The operand of the nest's rows (side 0) or columns (1), along `step`. */
static copying plan_copy(const writer *w, const rt_nest *n, const rt_operand *s, int side, kvar step) {
    copying c = { .s = s, .of = n, .lanes = 1 };
    int along = s->across ? 1 : 0, other = !along; /* which of fast, slow is the contraction's */
    c.var[along] = step, c.var[other] = side ? n->v : w->w->row;
    c.n[along] = (s->steps + RT_WIDE - 1) / RT_WIDE * RT_WIDE, c.real[along] = s->steps;
    c.n[other] = side ? padded(w, n) : w->w->block, c.real[other] = side ? n->n : w->w->rows;
    c.base[along] = affine_const(0), c.base[other] = side ? affine_const(0) : w->first_row;
    if (gpu_any_vectors(w->w->k, s->needed, c.var[0], RT_WIDE) && c.n[0] % RT_WIDE == 0) c.lanes = RT_WIDE;
    c.log_fast = gpu_log2_up(c.n[0] / c.lanes);
    const kins *in = ins(w, s->value);
    bool plain = in->op == K_LOAD && in->src == TN_F32 && !in->dyn && !(in->n_mask && in->imm != 0);
    c.async = plain && w->w->k->bufs.at[in->buf].kind == KB_IN && (c.lanes == 1 || affine_coef(in->idx, c.var[0]) == 1);
    int bits = c.log_fast + gpu_log2_up(c.n[1]);
    c.chunks = bits > w->log_threads ? 1 << (bits - w->log_threads) : 1;
    return c;
}

/* The fast and the slow place of a chunk. */
static void place_of(const writer *w, const copying *c, int chunk, affine out[2]) {
    int split = c->log_fast < w->log_threads ? c->log_fast : w->log_threads, more = c->log_fast - split;
    out[0] = affine_offset(bits_of(w, 0, split), (int64_t)(chunk & ((1 << more) - 1)) << split);
    out[1] = affine_offset(bits_of(w, split, w->log_threads), (int64_t)(chunk >> more) << (w->log_threads - split));
}

/* Masks items behind the last one. */
static void bound_items(const copying *c, build_places *p, const affine at[2], bool full) {
    if (c->n[0] / c->lanes != (int64_t)1 << c->log_fast && full) build_bound(p, at[0], c->n[0] / c->lanes, 0);
    if (((int64_t)1 << gpu_log2_up(c->n[1])) != c->n[1] || c->chunks == 1) build_bound(p, at[1], c->n[1], 0);
}

static int64_t most_of(const kernel *k, affine x) {
    int64_t most = x.base;
    for (int i = 0; i < x.n; i++)
        if (x.t[i].coef > 0) most += x.t[i].coef * (ext_hi(k->params, k->vars.at[x.t[i].var].extent) - 1);
    return most > 0 ? most : 0;
}

static reg load_chunk(writer *w, copying *c, int chunk) {
    const rt_operand *s = c->s;
    affine at[2], where[2];
    build_places p = { .along = c->var[0], .lanes = c->lanes, .varies = gpu_varying(w->w->k, s->needed, c->var[0]) };
    place_of(w, c, chunk, at);
    where[0] = plus(w, c->base[0], at[0], c->lanes), where[1] = plus(w, c->base[1], at[1], 1);
    for (int i = 0; i < 2; i++) build_put(&p, c->var[i], where[i]);
    for (int i = 0; i < 2; i++)
        if (c->n[i] != c->real[i] && (c->var[i] != w->w->row || rt_row_tail(w->w)))
            build_bound(&p, where[i], c->real[i], i == 0 && c->lanes > 1);
    bound_items(c, &p, at, true);
    will_touch(w, c->of->loop + 1, s->value + 1, s->needed);
    if (c->tiles) build_put(&p, c->tiles->v, c->tile);
    if (c->bounded) build_bound(&p, c->tile, c->tiles->n, 0);
    if (c->behind) build_bound(&p, c->where, 1 + most_of(w->o, c->where), 0);
    for (int i = c->of->loop + 1; i <= s->value; i++)
        if (s->needed[i]) build_copy(&w->c, i, &p);
    int along = s->across ? 1 : 0;
    const kins *in = ins(w, s->value);
    bool plain = in->op == K_LOAD && in->n_mask == 0;
    reg v = w->c.to[s->value];
    if (c->async) w->o->ins.at[v].mode = LOAD_ASYNC;
    return c->async || c->n[along] == c->real[along] || plain
               ? v
               : build_before(w->o, v, TN_I32, where[along], along == 0, c->real[along], 0);
}

static void store_chunk(writer *w, const copying *c, int chunk) {
    affine at[2];
    build_places p = { .n = 0 };
    place_of(w, c, chunk, at);
    bound_items(c, &p, at, true);
    affine place = plus(w, affine_scale(w->o->a, at[0], c->lanes), at[1], c->s->pitch);
    reg store = build_store(w->o, c->s->buf, place, c->v[chunk % BATCH]);
    build_bounds(w->o->a, &w->o->ins.at[store], &p);
}

static void copy_chunks(writer *w, copying *c, int from) {
    if (c->async) { /* nothing waits */
        will_write(w, c->s->buf);
        for (int i = 0; i < c->chunks; i++) c->v[i % BATCH] = load_chunk(w, c, i), store_chunk(w, c, i);
        return;
    }
    for (; from < c->chunks; from += BATCH) {
        for (int i = from; i < c->chunks && i < from + BATCH; i++) c->v[i % BATCH] = load_chunk(w, c, i);
        will_write(w, c->s->buf);
        for (int i = from; i < c->chunks && i < from + BATCH; i++) store_chunk(w, c, i);
    }
}

/* Several operands: the first loads of all are under way before anything is stored. */
static void copy_all(writer *w, copying *c, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < c[i].chunks && j < BATCH && !c[i].async; j++) c[i].v[j] = load_chunk(w, &c[i], j);
    for (int i = 0; i < n; i++) {
        if (!c[i].async) will_write(w, c[i].s->buf);
        for (int j = 0; j < c[i].chunks && j < BATCH && !c[i].async; j++) store_chunk(w, &c[i], j);
        copy_chunks(w, &c[i], BATCH);
    }
}

/* Operands of contractions in [from, to) that move with the serial loop (as `moving` says; NULL: there is none). ahead: of its
 * next iteration, or of the first one before it; else of its own. */
typedef enum when { NOW, FIRST, NEXT } when;
static void copy_operands(writer *w, int from, int to, const rt_nest *tiles, bool moving, when ahead) {
    copying c[8];
    int n = 0;
    for (int i = 0; i < w->w->nests.n; i++) {
        rt_nest *x = &w->w->nests.at[i];
        if (x->kind != RT_PRODUCT || x->loop < from || x->loop >= to) continue;
        for (int side = 0; side < 2 && n < 8; side++)
            if (x->side[side].value && (!tiles || gpu_any_uses(w->w->k, x->side[side].needed, tiles->v) == moving)) {
                c[n] = plan_copy(w, x, &x->side[side], side, ins(w, x->inner)->var);
                if (ahead != NOW) c[n].tiles = tiles;
                if (ahead == NEXT) c[n].tile = affine_offset(affine_var(w->o->a, tiles->v), 1), c[n].bounded = true;
                n++;
            }
    }
    copy_all(w, c, n);
}

/* ---- elementwise ---- */

/* [ins] where registers are for a row, and vector g of its nests. */
static reg *at_place(const writer *w, int row, int g) { return rt_at_place(w, row, g); }

static void hold(writer *w, const kins *in, const rt_nest *n, int row, int g, reg v) {
    const rt_buf *b = &w->w->bufs[in->buf];
    reg *held = &w->held[in->buf][row * n->grid_blocks + g];
    int lanes = n->vectors ? w->w->wide : 1;
    if (b->held && !b->carried) *held = v;
    if (b->carried && !*held) *held = build_acc(w->o, OP_NIL, (uint8_t)dtype_reg((tn_dtype)in->dtype), 0, lanes);
    if (b->carried) build_update(w->o, OP_NIL, v, 0, *held);
    if (!b->shared) return;
    reg store = build_store(w->o, in->buf, plus(w, column_at(w, n, g), local_row(w, row), b->pitch), v);
    kins *out = &w->o->ins.at[store];
    out->lanes = (uint8_t)lanes, out->lane_stride = n->vectors;
    if (padded(w, n) == n->n) return;
    build_mask(w->o->a, out, column_at(w, n, g), 0, n->n, n->vectors);
}

/* Whether instruction i is the comparison that tiles are skipped by, of its own nest. */
static bool is_skip(const writer *w, int i) {
    const kins *c = ins(w, i), *s = ins(w, w->w->skip);
    if (c->op != K_ALU || c->alu != s->alu || ins(w, (int)c->a)->op != K_INDEX || ins(w, (int)c->b)->op != K_INDEX)
        return false;
    kvar own = w->w->nests.at[w->w->nest_of[i] - 1].v, other = w->w->nests.at[w->w->nest_of[w->w->skip] - 1].v;
    affine d = plus(w, ins(w, (int)c->a)->idx, ins(w, (int)c->b)->idx, -1),
           e = plus(w, ins(w, (int)s->a)->idx, ins(w, (int)s->b)->idx, -1);
    return affine_equal(affine_set_var(w->o->a, d, own, affine_var(w->o->a, other)), e);
}

/* Instruction i at a row, and at vector g of nest n (NULL: a number of the row, which all vectors have). */
static void copy_at(writer *w, int i, const rt_nest *n, int row, int g) {
    const kins *in = ins(w, i);
    build_copier c = { w->w->k, w->o, at_place(w, row, g) };
    bool store = in->op == K_STORE;
    if (w->whole && n && in->op == K_ALU && in->alu == OP_select && is_skip(w, (int)in->a)) {
        c.to[i] = c.to[in->b];
        return;
    }
    if (w->tiles && n && w->w->number_of[i]) { /* the same in all rows */
        c.to[i] = row ? at_place(w, 0, g)[i] : rt_matrix_number(w, i, column_at(w, n, g));
        return;
    }
    if (rt_local(w->w, in)) {
        if (store)
            hold(w, in, n, row, g, c.to[in->a]);
        else
            c.to[i] = w->held[in->buf][row * n->grid_blocks + g];
        return;
    }
    build_places p = { .n = 0 };
    if (w->tiles) build_put(&p, w->tiles->v, w->tile);
    build_put(&p, w->w->row, row_at(w, row));
    if (rt_row_tail(w->w) && (store || gpu_uses(in, w->w->row))) build_bound(&p, row_at(w, row), w->w->rows, 0);
    if (store && !n && w->w->across > 1) build_bound(&p, w->x, 1, 0); /* a number of the row */
    if (n) {
        p.along = n->v, p.lanes = n->vectors ? w->w->wide : 1, p.varies = n->varies;
        build_put(&p, n->v, column_at(w, n, g));
        if (padded(w, n) != n->n && (store || gpu_uses(in, n->v))) build_bound(&p, column_at(w, n, g), n->n, 1);
    }
    build_copy(&c, i, &p);
    for (int x = 1; x < w->most_blocks && !n; x++) at_place(w, row, x)[i] = c.to[i];
}

static void copy_elements(writer *w, const rt_nest *n, int from, int to) {
    will_touch(w, from, to, NULL);
    for (int row = 0; row < w->w->tr; row++)
        for (int g = 0; g < n->grid_blocks; g++)
            for (int i = from; i < to; i++) copy_at(w, i, n, row, g);
}

/* ---- rows combined ---- */

static void write_reduction(writer *w, const rt_nest *n) {
    int upd = n->end - 1;
    while (ins(w, upd)->op != K_UPD) upd--;
    const kins *u = ins(w, upd);
    copy_elements(w, n, n->loop + 1, upd);
    for (int row = 0; row < w->w->tr; row++) {
        reg v = at_place(w, row, 0)[u->a];
        for (int g = 1; g < n->grid_blocks; g++) v = build_op(w->o, (op_code)u->alu, v, at_place(w, row, g)[u->a]);
        v = build_lane_reduce(w->o, (op_code)u->alu, v);
        if (w->w->across > 1)
            v = kernel_push(w->o, (kins){ .op = K_BLOCK_REDUCE,
                                          .alu = u->alu,
                                          .dtype = u->dtype,
                                          .a = v,
                                          .width = w->w->across,
                                          .lane_stride = w->apart });
        build_update(w->o, (op_code)u->alu, v, 0, at_place(w, row, 0)[u->c]);
    }
}

/* ---- contractions ---- */

/* What a thread multiplies in four steps: vectors along the contraction of its rows, and of its columns; across: vectors of
 * columns, step by step. */
typedef struct parts {
    reg row[RT_MOST_SIDE], column[RT_WIDE * RT_MOST_SIDE];
    int rows, columns;
} parts;

static parts load_parts(writer *w, const rt_nest *n, affine step) {
    const rt_operand *a = &n->side[0], *b = &n->side[1];
    affine four = affine_scale(w->o->a, step, RT_WIDE);
    parts p = { .rows = w->w->tr, .columns = n->grid_blocks * (b->across ? RT_WIDE : 1) };
    for (int i = 0; i < p.rows; i++) p.row[i] = build_load(w->o, a->buf, plus(w, four, local_row(w, i), a->pitch), RT_WIDE);
    for (int i = 0; i < p.columns; i++) {
        affine column = column_at(w, n, i % n->grid_blocks);
        affine at =
            b->across ? plus(w, column, affine_offset(four, i / n->grid_blocks), b->pitch) : plus(w, four, column, b->pitch);
        p.column[i] = build_load(w->o, b->buf, at, RT_WIDE);
    }
    return p;
}

/* Four steps of all sums of a thread. */
static void multiply_parts(writer *w, const rt_nest *n, const parts *p) {
    bool across = n->side[1].across;
    for (int l = 0; l < RT_WIDE; l++) {
        reg column[RT_MOST_SIDE];
        for (int g = 0; g < n->grid_blocks; g++)
            column[g] = across ? p->column[l * n->grid_blocks + g] : build_lane(w->o, p->column[g], l);
        for (int row = 0; row < p->rows; row++) {
            reg x = build_lane(w->o, p->row[row], l);
            for (int g = 0; g < n->grid_blocks; g++) { /* there and back: two products in a row share an operand */
                int j = row % 2 ? n->grid_blocks - 1 - g : g;
                build_update(w->o, OP_dot, x, column[j], at_place(w, row, j)[n->acc]);
            }
        }
    }
}

static void carry(writer *w, const parts *from, const parts *to) {
    build_carry(w->o, from->row, to->row, from->rows), build_carry(w->o, from->column, to->column, from->columns);
}

/* All steps; what the next four multiply is read while these are multiplied: few threads wait for shared memory otherwise. */
static void multiply_steps(writer *w, const rt_nest *n, int64_t steps) {
    int vectors = w->w->tr + n->grid_blocks * (n->side[1].across ? RT_WIDE : 1);
    if (vectors > MOST_AHEAD || steps < 2) { /* there are no registers for those of two steps */
        kvar step = build_loop(w->o, "k", steps, PAR_SERIAL);
        parts now = load_parts(w, n, affine_var(w->o->a, step));
        multiply_parts(w, n, &now);
        build_ends(w->o, 1);
        return;
    }
    parts now = load_parts(w, n, affine_const(0)), held = now;
    for (int i = 0; i < now.rows; i++) held.row[i] = build_acc(w->o, OP_NIL, TN_F32, 0, RT_WIDE);
    for (int i = 0; i < now.columns; i++) held.column[i] = build_acc(w->o, OP_NIL, TN_F32, 0, RT_WIDE);
    carry(w, &now, &held);
    kvar step = build_loop(w->o, "k", steps - 1, PAR_SERIAL);
    w->o->vars.at[step].role.unroll = steps < 4 ? 1 : 2;
    parts next = load_parts(w, n, affine_offset(affine_var(w->o->a, step), 1));
    multiply_parts(w, n, &held);
    carry(w, &next, &held);
    build_ends(w->o, 1);
    multiply_parts(w, n, &held);
}

/* What a contraction of matrix units goes on from. */
static void begin_results(writer *w, const rt_nest *n) {
    for (int g = 0; g < n->grid_blocks; g++)
        for (int row = 0; row < w->w->tr; row++)
            for (int i = n->loop + 1; i < n->inner; i++)
                if (i != n->acc && ins(w, i)->op != K_UPD) copy_at(w, i, n, row, g);
}

static void write_product(writer *w, const rt_nest *n) {
    const rt_operand *a = &n->side[0], *b = &n->side[1];
    if (w->w->matrix) {
        const rt_nest *begun = w->sums[n - w->w->nests.at] ? NULL : rt_matrix_beside(w, n);
        if (!w->sums[n - w->w->nests.at]) begin_results(w, n);
        if (begun) begin_results(w, begun);
        rt_matrix_product(w, n);
        copy_elements(w, n, kernel_loop_end(w->w->k, n->inner) + 1, n->end);
        return;
    }
    will_touch(w, n->loop + 1, n->inner, NULL);
    for (int row = 0; row < w->w->tr; row++)
        for (int g = 0; g < n->grid_blocks; g++)
            for (int i = n->loop + 1; i < n->inner; i++) copy_at(w, i, n, row, g);
    will_read(w, a->buf), will_read(w, b->buf);
    if (w->ahead && n->tiles) copy_operands(w, w->asked, n->loop, w->ahead, true, NEXT), w->asked = n->loop;
    multiply_steps(w, n, (a->steps + RT_WIDE - 1) / RT_WIDE);
    copy_elements(w, n, kernel_loop_end(w->w->k, n->inner) + 1, n->end);
}

/* ---- tiles that are skipped ---- */

/* x over the rows of a block and the columns of a tile at its least, or largest. */
static affine extreme(const writer *w, const rt_nest *n, affine x, bool least) {
    arena *a = w->o->a;
    bool row = (affine_coef(x, w->w->row) < 0) == least, column = (affine_coef(x, n->v) < 0) == least;
    x = affine_set_var(a, x, w->w->row, affine_offset(w->first_row, row ? w->w->block - 1 : 0));
    return affine_set_var(a, x, n->v, affine_const(column ? n->n - 1 : 0));
}

static bool is_least(const kins *c) { return c->alu == OP_le || c->alu == OP_lt; }

/* What has to be at most, or least, 0 in a tile for the comparison to hold anywhere, or everywhere. */
static affine difference_of(const writer *w, bool anywhere) {
    const kins *c = ins(w, w->w->skip), *x = ins(w, (int)c->a), *y = ins(w, (int)c->b);
    const rt_nest *n = &w->w->nests.at[w->w->nest_of[w->w->skip] - 1];
    return extreme(w, n, plus(w, x->idx, y->idx, -1), is_least(c) == anywhere);
}

/* Tiles that count come before those that do not. */
static bool counts_first(const writer *w, const rt_nest *tiles) {
    int64_t moves = affine_coef(difference_of(w, true), tiles->v);
    return is_least(ins(w, w->w->skip)) ? moves >= 0 : moves <= 0;
}

static reg holds_at(writer *w, const rt_nest *tiles, affine tile, affine difference) {
    const kins *c = ins(w, w->w->skip);
    reg d = build_index(w->o, ins(w, (int)c->a)->dtype, affine_set_var(w->o->a, difference, tiles->v, tile));
    return build_op(w->o, (op_code)c->alu, d, build_number(w->o, w->o->ins.at[d].dtype, 0));
}

/* Whether the comparison holds anywhere in the tile. */
static reg tile_counts(writer *w, const rt_nest *tiles, affine tile) {
    return holds_at(w, tiles, tile, difference_of(w, true));
}

/* Whether it holds everywhere. */
static reg tile_is_whole(writer *w, const rt_nest *tiles, affine tile) {
    return holds_at(w, tiles, tile, difference_of(w, false));
}

/* A number that is not negative where it holds nowhere. */
static affine is_behind(writer *w, const rt_nest *tiles, affine tile) {
    const kins *c = ins(w, w->w->skip);
    affine d = affine_set_var(w->o->a, difference_of(w, true), tiles->v, tile);
    if (!is_least(c)) d = affine_scale(w->o->a, d, -1);
    return affine_offset(d, c->alu == OP_le || c->alu == OP_ge ? -1 : 0);
}

static const rt_nest *last_product(const writer *w, const rt_nest *tiles) {
    int n = rt_n_last(w->w, tiles);
    return n ? rt_last(w->w, tiles, n - 1) : NULL;
}

/* 0 times what the tiles that do not count would have multiplied with: several at a time, for nothing else hides how long
 * memory takes. (Keys' gradients of 32 times 12 heads of 1024 positions, an H200: 309 to 292 us with four.) All of this takes a
 * sixth of attention's time there: forward 245 us, and 210 without looking, gradients 273 and 230, 430 and 345. */
static void look_at_skipped(writer *w, const rt_nest *tiles, int l) {
    enum { TILES = 4, LOADS = 16 };
    const rt_nest *n = rt_last(w->w, tiles, l);
    copying c = plan_copy(w, n, &n->side[1], 1, ins(w, n->inner)->var);
    int64_t all = rt_most(w->w, tiles);
    int group = all < TILES ? (int)all : TILES, step = counts_first(w, tiles) ? 1 : -1;
    int most = n->n > KERNEL_MATRIX ? LOADS / 2 : LOADS; /* beside a wide result there are no registers for more */
    reg loads[LOADS];
    c.async = false, c.tiles = tiles, c.bounded = ext_divisor(w->o->params, tiles->n) % group != 0, c.behind = true;
    affine at = affine_var(w->o->a, build_loop(w->o, "ks", ext_ceil_div(w->o->params, tiles->n, group), PAR_SERIAL)),
           first = plus(w, affine_const(step < 0 ? all - 1 : 0), at, step * group);
    reg counts = tile_counts(w, tiles, affine_offset(first, step * (group - 1)));
    build_if(w->o, "once", 1, build_op(w->o, OP_not, counts, 0));
    for (int from = 0; from < group * c.chunks; from += most) {
        for (int i = from; i < group * c.chunks && i < from + most; i++) {
            c.tile = affine_offset(first, step * (i / c.chunks)), c.where = is_behind(w, tiles, c.tile);
            loads[i - from] = load_chunk(w, &c, i % c.chunks);
        }
        for (int i = from; i < group * c.chunks && i < from + most; i++)
            build_update(w->o, OP_dot, w->zeros, loads[i - from], w->broken[l]);
    }
    build_ends(w->o, 2);
}

/* What is not finite there goes into all rows. */
static void add_skipped(writer *w, const rt_nest *tiles, int l) {
    const rt_nest *n = rt_last(w->w, tiles, l);
    copying c = plan_copy(w, n, &n->side[1], 1, ins(w, n->inner)->var);
    int64_t threads = (int64_t)1 << w->log_threads, fast = (int64_t)1 << c.log_fast;
    int buf = shared(w, threads * RT_WIDE), store = n->end - 1;
    build_store(w->o, buf, affine_scale(w->o->a, bits_of(w, 0, w->log_threads), RT_WIDE), w->broken[l]);
    put_barrier(w);
    while (ins(w, store)->op != K_STORE) store--;
    for (int g = 0; g < n->grid_blocks; g++) {
        reg sum = build_parts(w->o, OP_add, buf, column_at(w, n, g), threads / fast, fast * RT_WIDE, w->w->wide);
        for (int row = 0; row < w->w->tr; row++) {
            reg held = w->held[ins(w, store)->buf][row * n->grid_blocks + g];
            build_update(w->o, OP_NIL, build_op(w->o, OP_add, held, sum), 0, held);
        }
    }
}

/* What comes before and behind the tiles for those that are skipped. */
static void begin_skipped(writer *w, const rt_nest *tiles) {
    w->zeros = build_number(w->o, TN_F32, 0);
    for (int l = 0; l < rt_n_last(w->w, tiles); l++) w->broken[l] = build_acc(w->o, OP_add, TN_F32, 0, RT_WIDE);
}
static void end_skipped(writer *w, const rt_nest *tiles) {
    for (int l = 0; l < rt_n_last(w->w, tiles); l++) look_at_skipped(w, tiles, l);
}
static void add_all_skipped(writer *w, const rt_nest *tiles) {
    for (int l = 0; l < rt_n_last(w->w, tiles); l++) add_skipped(w, tiles, l);
}

/* ---- all of it ---- */

static void write_range(writer *w, int from, int to);

/* The first tile's operands come before the loop, those of the next one while this one is worked on: the first contraction's
 * when all have read its own, the last one's when the tile is done. */
static void begin_ahead(writer *w, const rt_nest *n) {
    copy_operands(w, n->loop, n->end, n, true, FIRST);
    put_barrier(w);
    w->ahead = n, w->asked = n->loop;
    const rt_nest *last = last_product(w, n);
    for (int side = 0; side < 2; side++)
        if (last->side[side].value && gpu_any_uses(w->w->k, last->side[side].needed, n->v))
            w->wrote[last->side[side].buf] = true;
}

/* The operands of a tile come when it begins. */
static void begin_now(writer *w, const rt_nest *n) {
    for (int i = 0; i < w->w->nests.n; i++) { /* the iteration before has read them */
        const rt_nest *x = &w->w->nests.at[i];
        if (x->kind == RT_PRODUCT && x->loop > n->loop && x->end < n->end)
            w->read[x->side[0].buf] = w->read[x->side[1].buf] = true;
    }
}

static void end_tile(writer *w, const rt_nest *n) {
    if (w->ahead) {
        const rt_nest *last = last_product(w, n);
        for (int side = 0; side < 2; side++) w->read[last->side[side].buf] = true;
        copy_operands(w, w->asked, n->end, n, true, NEXT);
        for (int b = 0; b < w->w->k->bufs.n; b++) /* the next tile writes what this one has read */
            if (w->read[b] && w->w->bufs[b].shared) put_barrier(w);
        return;
    }
    for (int b = 0; b < w->o->bufs.n; b++)
        if (w->wrote[b]) put_barrier(w);
}

static void write_tiles(writer *w, const rt_nest *n) {
    copy_operands(w, n->loop, n->end, n, false, NOW);
    bool *wrote = arena_copy(w->o->a, w->wrote, sizeof *w->wrote * (size_t)w->o->bufs.n);
    if (last_product(w, n) && (!w->w->skip || counts_first(w, n)))
        begin_ahead(w, n);
    else
        begin_now(w, n);
    if (w->w->skip) begin_skipped(w, n);
    kernel_push(w->o, *ins(w, n->loop));
    if (w->w->skip) build_if(w->o, "once", 1, tile_counts(w, n, affine_var(w->o->a, n->v)));
    if (!w->ahead) copy_operands(w, n->loop, n->end, n, true, NOW);
    write_range(w, n->loop + 1, n->end);
    end_tile(w, n);
    build_ends(w->o, w->w->skip ? 2 : 1);
    if (w->w->skip) end_skipped(w, n);
    for (int b = 0; b < w->o->bufs.n; b++) w->wrote[b] |= wrote[b];
    w->ahead = NULL;
    if (w->w->skip) add_all_skipped(w, n);
}

/* Registers are full: the result is wide, and is rescaled by running maxima. Work that is written twice would not have room. */
static bool is_full(const writer *w, const rt_nest *tiles) {
    bool maxima = false;
    for (int i = tiles->loop; i < tiles->end; i++) maxima |= ins(w, i)->op == K_UPD && ins(w, i)->alu == OP_max;
    return maxima && last_product(w, tiles)->n > KERNEL_MATRIX;
}

/* The same where matrix units multiply. Operands that move have two stages: the next tile's are on their way while this one is
 * worked on, so that one barrier a tile is enough. Tiles that count come first: back to front where those are the last ones. */
static void write_matrix_tiles(writer *w, const rt_nest *n) {
    int64_t all = rt_most(w->w, n);
    bool skip = w->w->skip != 0, back = skip && !counts_first(w, n), ahead = all > 1,
         odd = ahead && ext_divisor(w->o->params, n->n) % 2;
    affine first = affine_const(back ? all - 1 : 0), at;
    rt_matrix_copy(w, false, affine_const(0), false, affine_const(0));
    if (ahead) rt_matrix_copy(w, true, first, false, affine_const(0));
    if (skip) begin_skipped(w, n);
    w->tiles = n, w->stage = affine_const(0);
    at = affine_var(w->o->a, build_loop(w->o, "kt", ahead ? ext_ceil_div(w->o->params, n->n, 2) : n->n, PAR_SERIAL));
    if (ahead) {
        w->stage = affine_var(w->o->a, build_loop(w->o, "stage", 2, PAR_SERIAL));
        at = plus(w, w->stage, at, 2);
    }
    w->tile = plus(w, first, at, back ? -1 : 1);
    if (odd) {
        reg there = build_index(w->o, TN_I32, at);
        build_if(w->o, "there", 1, build_op(w->o, OP_lt, there, build_count(w->o, TN_I32, n->n)));
    }
    if (skip) build_if(w->o, "once", 1, tile_counts(w, n, w->tile));
    if (!ahead) {
        build_barrier(w->o); /* all have read those before */
        rt_matrix_copy(w, true, w->tile, false, w->stage);
    }
    put_barrier(w);
    affine other = affine_offset(affine_scale(w->o->a, w->stage, -1), 1);
    if (ahead) rt_matrix_copy(w, true, affine_offset(w->tile, back ? -1 : 1), true, other);
    if (skip && all > FEW_TILES && !is_full(w, n)) { /* most tiles that count do so everywhere, and compare nothing */
        reg whole = tile_is_whole(w, n, w->tile);
        build_if(w->o, "whole", 1, whole);
        w->whole = true;
        write_range(w, n->loop + 1, n->end);
        w->whole = false;
        build_ends(w->o, 1);
        build_if(w->o, "part", 1, build_op(w->o, OP_not, whole, 0));
        write_range(w, n->loop + 1, n->end);
        build_ends(w->o, 1);
    } else {
        write_range(w, n->loop + 1, n->end);
    }
    build_ends(w->o, 1 + skip + ahead + odd);
    w->tiles = NULL;
    if (skip) end_skipped(w, n), add_all_skipped(w, n);
}

static void write_copy(writer *w, const rt_nest *n) {
    if (w->w->matrix) {
        rt_matrix_copy_nest(w, n);
        return;
    }
    bool *needed = ARENA_ARRAY(w->o->a, bool, w->w->k->ins.n);
    const kins *s = ins(w, n->store);
    for (int i = n->loop + 1; i < n->store; i++) needed[i] = true;
    rt_operand x = { .value = (int)s->a,
                     .needed = needed,
                     .rows = w->w->block,
                     .steps = n->n,
                     .pitch = w->w->bufs[s->buf].pitch,
                     .buf = s->buf };
    copying c = plan_copy(w, n, &x, 0, n->v);
    copy_all(w, &c, 1);
}

static void write_nest(writer *w, const rt_nest *n) {
    switch (n->kind) {
    case RT_COPY:
        write_copy(w, n);
        return;
    case RT_ELEMENTS:
        copy_elements(w, n, n->loop + 1, n->end);
        return;
    case RT_REDUCE:
        write_reduction(w, n);
        return;
    case RT_PRODUCT:
        if (!n->tiles) copy_operands(w, n->loop, n->end, NULL, false, NOW);
        write_product(w, n);
        return;
    case RT_TILES:
        (w->w->matrix ? write_matrix_tiles : write_tiles)(w, n);
        return;
    }
}

static void write_range(writer *w, int from, int to) {
    for (int i = from; i < to; i++) {
        if (ins(w, i)->op == K_LOOP) {
            const rt_nest *n = &w->w->nests.at[w->w->nest_of[i] - 1];
            write_nest(w, n);
            i = n->end;
        } else {
            will_touch(w, i, i + 1, NULL);
            for (int row = 0; row < w->w->tr; row++) copy_at(w, i, NULL, row, 0);
            w->c.to[i] = at_place(w, 0, 0)[i];
        }
    }
}

/* The first rows have the most tiles that count. */
static bool most_first(const writer *w) {
    const kins *c = ins(w, w->w->skip), *x = ins(w, (int)c->a), *y = ins(w, (int)c->b);
    return (affine_coef(plus(w, x->idx, y->idx, -1), w->w->row) > 0) == is_least(c);
}

static void open_blocks(writer *w) {
    const row_tiles *t = w->w;
    ext blocks = ext_ceil_div(w->o->params, t->rows, t->block);
    affine g = affine_var(w->o->a, build_loop(w->o, "g", blocks, PAR_BLOCKS));
    w->first_row = affine_scale(w->o->a, g, t->block);
    if (t->skip && !most_first(w) && ext_is_lit(blocks))
        w->first_row = affine_offset(affine_scale(w->o->a, g, -t->block), (blocks - 1) * t->block);
    more_blocks(w, blocks);
}

/* Where tiles are skipped, blocks with the most work begin first: those of the last rows, of the innermost loop around the rows
 * where that is short. Blocks that read the same tiles stay near each other, so that these come from the second level. (32
 * times 12 heads of 1024 positions, 64 numbers each, an H200: keys' gradients 428 to 320 us against all last rows first, with
 * 10 and 79 % of reads from the second level.) */
static int open_groups(writer *w) {
    const row_tiles *t = w->w;
    int last = t->n_outer - 1; /* loop around the rows */
    bool across = t->skip && last > 0 && ext_hi(w->o->params, ins(w, last)->hi) <= MOST_NEIGHBOURS;
    for (int i = 1; i < t->n_outer; i++) {
        kins in = *ins(w, i);
        if (across && i == last) open_blocks(w);
        in.par = PAR_BLOCKS, more_blocks(w, in.hi);
        kernel_push(w->o, in);
    }
    if (!across) open_blocks(w);
    return t->n_outer;
}

/* The nest of a thread's digits, cut wherever a place of a copy begins. */
static int open_threads(writer *w) {
    const row_tiles *t = w->w;
    int log_across = gpu_log2_up(t->across),
        first = t->down > 1 && t->across > 1; /* a bit of the rows: pairs of threads share loads */
    uint64_t cuts = 1 | (uint64_t)1 << first | (uint64_t)1 << (first + log_across);
    w->log_threads = gpu_log2_up((int64_t)t->across * t->down);
    if (t->matrix) cuts = rt_matrix_cuts(t);
    for (int i = 0; i < t->nests.n; i++) {
        const rt_nest *n = &t->nests.at[i];
        for (int side = 0; side < 2 && n->kind == RT_PRODUCT; side++)
            if (n->side[side].value)
                cuts |= (uint64_t)1 << plan_copy(w, n, &n->side[side], side, ins(w, n->inner)->var).log_fast;
        if (n->kind == RT_COPY)
            cuts |= (uint64_t)1 << gpu_log2_up(n->n) | (uint64_t)1 << gpu_log2_up((n->n + RT_WIDE - 1) / RT_WIDE);
    }
    int loops = gpu_digits_open(w->o, &w->digits, w->log_threads, cuts);
    if (t->matrix) { /* kernel_fragment */
        w->x = bits_of(w, 0, 2), w->y = plus(w, bits_of(w, 2, 5), bits_of(w, 5, w->log_threads), 16);
        return loops;
    }
    w->apart = first ? 2 : 0;
    w->x = bits_of(w, first, first + log_across);
    w->y = plus(w, bits_of(w, 0, first), bits_of(w, first + log_across, w->log_threads), first ? 2 : 1);
    return loops;
}

static void make_buffers(writer *w) {
    row_tiles *t = w->w;
    w->o->bufs.at = arena_copy(w->o->a, t->k->bufs.at, sizeof(kbuf) * (size_t)t->k->bufs.n), w->o->bufs.cap = t->k->bufs.n;
    for (int b = 0; b < t->k->bufs.n; b++) {
        kbuf *x = &w->o->bufs.at[b];
        if (x->kind != KB_LOCAL) continue;
        x->elems = t->bufs[b].shared ? t->block * t->bufs[b].pitch : 0;
        if (t->bufs[b].shared) x->kind = KB_SHARED;
        int nest = t->bufs[b].nest, grid_blocks = nest ? t->nests.at[nest - 1].grid_blocks : 0;
        w->held[b] = ARENA_ARRAY(w->o->a, reg, t->tr * grid_blocks + 1);
    }
    if (t->matrix) {
        rt_matrix_buffers(w);
        return;
    }
    for (int i = 0; i < t->nests.n; i++) {
        rt_nest *n = &t->nests.at[i];
        for (int side = 0; side < 2 && n->kind == RT_PRODUCT; side++) {
            rt_operand *s = &n->side[side];
            if (!s->value) continue;
            int64_t steps = (s->steps + RT_WIDE - 1) / RT_WIDE * RT_WIDE, rows = side ? padded(w, n) : t->block;
            s->pitch = s->across ? rows : steps + RT_WIDE;
            s->buf = shared(w, s->across ? rows * steps : rows * s->pitch);
        }
    }
}

kernel *row_tiles_write(row_tiles *t) {
    const kernel *k = t->k;
    kernel *o = t->o = gpu_kernel(k, t->down * t->across);
    o->params = k->params;
    writer w = {
        .w = t, .o = o, .c = build_copier_make(k, o), .held = ARENA_ARRAY(k->a, reg *, k->bufs.n + 1), .most_blocks = 1
    };
    for (int i = 0; i < t->nests.n; i++)
        if (t->nests.at[i].grid_blocks > w.most_blocks) w.most_blocks = t->nests.at[i].grid_blocks;
    w.to = ARENA_ARRAY(k->a, reg *, t->tr * w.most_blocks);
    for (int i = 0; i < t->tr * w.most_blocks; i++) w.to[i] = ARENA_ARRAY(k->a, reg, k->ins.n);
    w.sums = ARENA_ARRAY(k->a, reg, t->nests.n + 1);
    make_buffers(&w);
    w.wrote = ARENA_ARRAY(k->a, bool, o->bufs.n + 2), w.read = ARENA_ARRAY(k->a, bool, o->bufs.n + 2);
    int opened = open_groups(&w);
    opened += open_threads(&w);
    write_range(&w, t->from, t->to);
    build_ends(o, opened);
    return o;
}
