/* block_tile_write.c - writes a contraction in tiles (block_tile.c).
 *
 * In: the parts of the scalar kernel and the shape. Out: a new kernel. The threads of a group are a nest of local loops, whose
 * variables are digits of the thread's number: so a thread's place in the tile and its places in the copies of the operands are
 * all sums of them, and one nest serves all. With two blocks in shared memory, registers take the operands of the next block
 * while this one is multiplied, and a barrier a block is enough. Several threads along the contraction leave partial tiles in
 * shared memory, which are summed in order. */
#include "loop/block_tile.h"

enum { LONG = 16 /* steps whose code is written out */, FEW = 8 /* blocks */, CARRYING = 64 /* sums */ };

typedef struct digit { /* of a number whose bits are a thread's and a chunk's */
    int lo, bits;
    kvar var;
} digit;

typedef struct writer {
    const tiler *w;
    kernel *o;
    digit digit[24];
    int n_digits, log_group;
    affine tile[2];   /* first m, n of the group */
    affine thread[2]; /* the thread's number down, across */
    affine z;
    int part_buf;
    gpu_copier c;
} writer;

static int log2_of(int64_t n) {
    int l = 0;
    while (n > 1) n /= 2, l++;
    return l;
}

static kvar open(writer *w, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(w->o, name, n, false, false);
    kernel_push(w->o, (kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .par = (uint8_t)par });
    return v;
}
/* Two iterations at a time, of n. */
static kvar open_pairs(writer *w, int64_t n) {
    kvar v = open(w, "s", n / 2 * 2, PAR_SERIAL);
    w->o->ins.at[w->o->ins.n - 1].step = 2;
    return v;
}
static void close(writer *w, int n) {
    for (int i = 0; i < n; i++) kernel_push(w->o, (kins){ .op = K_END });
}

static affine plus(const writer *w, affine x, affine y, int64_t times) {
    return affine_add(w->o->a, x, affine_scale(w->o->a, y, times));
}
static affine plus_var(const writer *w, affine x, kvar v, int64_t times) { return plus(w, x, affine_var(w->o->a, v), times); }

/* ---- digits ---- */

/* Bits [lo, lo + bits) of chunk * threads + the thread's number. */
static affine number(const writer *w, int lo, int bits, int64_t chunk) {
    int64_t high = lo > w->log_group ? chunk >> (lo - w->log_group) : chunk << (w->log_group - lo);
    affine x = affine_const(high & (((int64_t)1 << bits) - 1));
    for (int d = 0; d < w->n_digits; d++)
        if (w->digit[d].lo >= lo && w->digit[d].lo < lo + bits)
            x = plus_var(w, x, w->digit[d].var, (int64_t)1 << (w->digit[d].lo - lo));
    return x;
}

typedef struct field { /* bits of a copy's number; what they count */
    int lo, bits;
    int dim; /* of the block, or -1: the row */
    int64_t times;
} field;
typedef struct layout {
    field field[TN_MAX_RANK + 4];
    int n, bits;
} layout;

static void add_field(layout *l, int dim, int64_t count, int64_t times) {
    int bits = log2_of(count);
    if (bits) l->field[l->n++] = (field){ l->bits, bits, dim, times };
    l->bits += bits;
}

static int block_dims(const tiler *w) { return w->s.b.whole + (w->s.b.split > 1); }
static kvar dim_var(const tiler *w, int d) { return tiler_at(w, w->loops + w->n_loops - block_dims(w) + d)->var; }
static int64_t dim_size(const tiler *w, int d) {
    return d == 0 && w->s.b.split > 1 ? w->s.b.split : tiler_extent(w, dim_var(w, d));
}
static int64_t rows_of(const tiler *w, int x) { return (int64_t)w->s.t[x] * w->s.n[x]; }

/* A load of the operand lies closer together along v than along other variables of the copy. */
static bool lies_along(const tiler *w, const bool *needed, kvar v) {
    for (int i = 1; i < w->k->ins.n; i++) {
        int64_t coef = needed[i] && tiler_at(w, i)->op == K_LOAD ? affine_coef(tiler_at(w, i)->idx, v) : 0;
        if (coef == 1 || coef == -1) return true;
    }
    return false;
}

/* What the bits of a copy's number count, the fastest first: neighbouring threads read neighbouring memory. Along the
 * contraction two of them stand side by side, the next ones in other rows: so they write to different banks. */
static layout layout_of(const tiler *w, int x) {
    layout l = { .n = 0 };
    const tile_operand *s = &w->side[x];
    int last = block_dims(w) - 1;
    bool row_last = s->wide ? s->along == s->row : lies_along(w, s->needed, s->row);
    if (row_last) add_field(&l, -1, rows_of(w, x) / (s->wide ? s->wide : 1), s->wide ? s->wide : 1);
    if (s->wide && !row_last) {
        int64_t pieces = dim_size(w, last) / s->wide, near = pieces > 1 ? 2 : 1;
        add_field(&l, last, near, s->wide);
        add_field(&l, -1, rows_of(w, x), 1);
        add_field(&l, last, pieces / near, s->wide * near);
        last--;
    }
    for (int d = last; d >= 0; d--) add_field(&l, d, dim_size(w, d), 1);
    if (!row_last && !s->wide) add_field(&l, -1, rows_of(w, x), 1);
    return l;
}

/* A thread's number, lowest bits first: 8 threads across and 4 down are neighbours, then come the others, then z. Of the rows
 * one bit comes first: then both operands are the same for pairs of neighbours, whose loads from shared memory are one. */
static void thread_fields(const tiler *w, layout *l) {
    int near_x = w->s.n[1] < 8 ? w->s.n[1] : 8, near_y = w->s.n[0] < 32 / near_x ? w->s.n[0] : 32 / near_x,
        pair = near_y < 2 ? near_y : 2;
    add_field(l, 0, pair, 1), add_field(l, 1, near_x, 1), add_field(l, 0, near_y / pair, pair);
    add_field(l, 1, w->s.n[1] / near_x, near_x), add_field(l, 0, w->s.n[0] / near_y, near_y);
    add_field(l, 2, w->s.z, 1);
}

/* The nest of a thread's digits, cut wherever some field begins. */
static int open_threads(writer *w) {
    const tiler *t = w->w;
    layout l[4] = { { .n = 0 } };
    int n = 1;
    uint64_t cuts = 1;
    thread_fields(t, &l[0]);
    w->log_group = l[0].bits;
    if (t->s.b.powers) l[n++] = layout_of(t, 0), l[n++] = layout_of(t, 1);
    if (t->s.z > 1) {
        add_field(&l[n], 1, rows_of(t, 1) / t->side[1].lanes, 1), add_field(&l[n], 0, rows_of(t, 0), 1);
        n++;
    }
    for (int i = 0; i < n; i++) {
        for (int f = 0; f < l[i].n; f++) cuts |= (uint64_t)1 << l[i].field[f].lo;
        cuts |= (uint64_t)1 << l[i].bits;
    }
    int loops = 0;
    for (int hi = w->log_group; hi > 0; loops++) {
        int lo = hi - 1;
        while (!(cuts >> lo & 1)) lo--;
        w->digit[w->n_digits++] = (digit){ lo, hi - lo, open(w, "t", (int64_t)1 << (hi - lo), PAR_LOCAL) };
        hi = lo;
    }
    affine *count[3] = { &w->thread[0], &w->thread[1], &w->z };
    for (int i = 0; i < 3; i++) *count[i] = affine_const(0);
    for (int f = 0; f < l[0].n; f++) {
        const field *d = &l[0].field[f];
        *count[d->dim] = plus(w, *count[d->dim], number(w, d->lo, d->bits, 0), d->times);
    }
    return loops;
}

/* ---- from memory to shared memory ---- */

/* v where the step of the contraction exists, else 0. */
static reg zero_behind(writer *w, reg v, affine e, int64_t lane, int64_t n) {
    tn_dtype t = (tn_dtype)tiler_at(w->w, w->w->acc)->dtype;
    uint8_t lanes = w->o->ins.at[v].lanes;
    if (lanes == 1) lane = 0;
    reg i = kernel_push(w->o, (kins){ .op = K_INDEX, .dtype = TN_I64, .idx = e, .lanes = lanes, .lane_stride = lane });
    reg end = kernel_push(w->o, (kins){ .op = K_CONST, .dtype = TN_I64, .imm_int = n });
    reg zero = kernel_push(w->o, (kins){ .op = K_CONST, .dtype = (uint8_t)t });
    reg in = kernel_push(w->o,
                         (kins){ .op = K_ALU, .alu = OP_lt, .dtype = TN_I32, .src = TN_I64, .a = i, .b = end, .lanes = lanes });
    return kernel_push(w->o, (kins){ .op = K_ALU,
                                     .alu = OP_select,
                                     .dtype = (uint8_t)t,
                                     .src = (uint8_t)t,
                                     .a = in,
                                     .b = v,
                                     .c = zero,
                                     .lanes = lanes });
}

typedef struct where { /* in a block */
    affine row, dim[TN_MAX_RANK + 2];
} where;

typedef struct moment { /* the innermost loop around a block: its iteration; and how many there are, for loads that are early */
    affine at;
    int64_t trips;
} moment;

static affine step_of(const writer *w, const where *at) {
    affine step = affine_const(0);
    int64_t stride = 1;
    for (int d = block_dims(w->w) - 1; d >= 0; d--) {
        step = plus(w, step, at->dim[d], stride);
        stride *= dim_size(w->w, d);
    }
    return step;
}

static reg load_operand(writer *w, int x, const where *at, const moment *when, affine idle, int64_t n_idle) {
    const tiler *t = w->w;
    const tile_operand *s = &t->side[x];
    gpu_places p = { .along = s->along, .lanes = s->wide };
    bool along_row = s->wide && s->along == s->row;
    int n = block_dims(t);
    affine row = plus(w, w->tile[x], at->row, 1), last = affine_const(0);
    if (s->wide) p.varies = gpu_varying(t->k, s->needed, s->along);
    for (int d = 0; d < n; d++) {
        bool split = d == 0 && t->s.b.split > 1;
        if (split) last = plus(w, at->dim[0], when->at, t->s.b.split);
        gpu_put(&p, dim_var(t, d), split ? last : at->dim[d]);
    }
    if (t->s.b.split == 1 && t->s.b.whole < t->n_loops)
        gpu_put(&p, tiler_at(t, t->loops + t->n_loops - 1 - t->s.b.whole)->var, when->at);
    gpu_put(&p, s->row, row);
    int64_t lane = s->wide && !along_row && n == 1 && t->s.b.split > 1 ? 1 : 0, end = n ? tiler_extent(t, dim_var(t, 0)) : 0;
    if (s->tail) gpu_bound(&p, row, tiler_extent(t, s->row), along_row);
    if (t->s.b.tail) gpu_bound(&p, last, end, lane);
    if (when->trips) gpu_bound(&p, when->at, when->trips, 0);
    if (n_idle) gpu_bound(&p, idle, 1, 0);
    for (int i = 1; i < t->upd; i++) {
        if (!s->needed[i]) continue;
        reg r = gpu_copy(&w->c, i, &p);
        kins *in = &w->o->ins.at[r];
        if (when->trips && in->op == K_LOAD && in->n_mask == 1) in->mode = LOAD_UNMASKED;
    }
    const kins *operand = tiler_at(t, s->operand);
    bool plain = operand->op == K_LOAD && operand->n_mask == 0;
    return t->s.b.tail && !plain ? zero_behind(w, w->c.to[s->operand], last, lane, end) : w->c.to[s->operand];
}

static void store_operand(writer *w, int x, const where *at, reg v, affine half, affine idle, int64_t n_idle) {
    const tiler *t = w->w;
    const tile_operand *s = &t->side[x];
    kins in = { .op = K_STORE, .dtype = tiler_at(t, t->acc)->dtype, .buf = (uint16_t)s->buf, .a = v };
    in.idx = plus(w, plus(w, at->row, step_of(w, at), s->pitch), half, t->s.b.steps * s->pitch);
    if (s->wide) in.lanes = (uint8_t)s->wide, in.lane_stride = s->along == s->row ? 1 : s->pitch;
    if (n_idle) {
        in.mask = ARENA_ARRAY(w->o->a, kmask, 1), in.mask_lane = ARENA_ARRAY(w->o->a, int64_t, 1), in.n_mask = 1;
        in.mask[0] = (kmask){ idle, 0, 1 };
    }
    kernel_push(w->o, in);
}

/* The thread's part of a copy: chunks that it loads now and stores later. */
typedef struct staged {
    where at[MAX_CHUNKS];
    reg v[MAX_CHUNKS];
    int n;
    affine idle; /* not 0 for threads that have none */
    int64_t n_idle;
} staged;

static void load_block(writer *w, int x, const moment *when, staged *out) {
    layout l = layout_of(w->w, x);
    *out = (staged){ .n = l.bits > w->log_group ? 1 << (l.bits - w->log_group) : 1 };
    if (l.bits < w->log_group) {
        out->n_idle = 1 << (w->log_group - l.bits);
        out->idle = number(w, l.bits, w->log_group - l.bits, 0);
    }
    for (int c = 0; c < out->n; c++) {
        where *at = &out->at[c];
        at->row = affine_const(0);
        for (int d = 0; d < block_dims(w->w); d++) at->dim[d] = affine_const(0);
        for (int f = 0; f < l.n; f++) {
            affine *e = l.field[f].dim < 0 ? &at->row : &at->dim[l.field[f].dim];
            *e = plus(w, *e, number(w, l.field[f].lo, l.field[f].bits, c), l.field[f].times);
        }
        out->v[c] = load_operand(w, x, at, when, out->idle, out->n_idle);
    }
}
static void store_block(writer *w, int x, const staged *s, affine half) {
    for (int c = 0; c < s->n; c++) store_operand(w, x, &s->at[c], s->v[c], half, s->idle, s->n_idle);
}

/* Any sizes: a nest dealt to the threads. */
static void copy_dealt(writer *w, int x, const moment *when) {
    const tile_operand *s = &w->w->side[x];
    where at;
    int n = block_dims(w->w);
    bool row_last = lies_along(w->w, s->needed, s->row);
    if (!row_last) at.row = affine_var(w->o->a, open(w, "r", rows_of(w->w, x), PAR_LOCAL));
    for (int d = 0; d < n; d++) at.dim[d] = affine_var(w->o->a, open(w, "c", dim_size(w->w, d), PAR_LOCAL));
    if (row_last) at.row = affine_var(w->o->a, open(w, "r", rows_of(w->w, x), PAR_LOCAL));
    reg v = load_operand(w, x, &at, when, affine_const(0), 0);
    store_operand(w, x, &at, v, affine_const(0), affine_const(0), 0);
    close(w, n + 1);
}

/* ---- the products ---- */

typedef struct sums {
    reg at[MAX_SIDE][MAX_SIDE]; /* [row][vector of columns] */
} sums;

/* First of the rows (or columns) that the thread loads as vector g. */
static affine vector_at(const writer *w, int x, int g) {
    const tiler *t = w->w;
    return affine_offset(affine_scale(w->o->a, w->thread[x], t->side[x].lanes), (int64_t)g * t->side[x].lanes * t->s.n[x]);
}

typedef struct parts { /* of one step: what a thread reads of both operands, in vectors */
    reg of[2][MAX_SIDE];
} parts;

static int64_t own_steps(const tiler *t) { return t->s.b.steps / t->s.z; } /* of a block */

/* Vector g of what operand x has in a step; `step` counts the thread's own. */
static reg load_vector(writer *w, int x, int g, affine step, affine half) {
    const tiler *t = w->w;
    const tile_operand *s = &t->side[x];
    uint8_t type = tiler_at(t, t->acc)->dtype;
    affine at = plus(w, step, w->z, own_steps(t)),
           first = plus(w, affine_scale(w->o->a, at, s->pitch), half, t->s.b.steps * s->pitch);
    return kernel_push(w->o, (kins){ .op = K_LOAD,
                                     .dtype = type,
                                     .src = type,
                                     .buf = (uint16_t)s->buf,
                                     .idx = plus(w, first, vector_at(w, x, g), 1),
                                     .lanes = (uint8_t)s->lanes,
                                     .lane_stride = s->lanes > 1 });
}

/* All that a step multiplies; the first vectors are `first`, where that is not NULL. */
static parts load_step(writer *w, affine step, affine half, const reg *first) {
    const tiler *t = w->w;
    parts p;
    for (int x = 0; x < 2; x++)
        for (int g = 0; g < t->s.t[x] / t->side[x].lanes; g++)
            p.of[x][g] = first && g == 0 ? first[x] : load_vector(w, x, g, step, half);
    return p;
}

static void multiply_step(writer *w, const sums *acc, const parts *p) {
    const tiler *t = w->w;
    uint8_t type = tiler_at(t, t->acc)->dtype;
    int vectors = t->s.t[1] / t->side[1].lanes;
    for (int i = 0; i < t->s.t[0]; i++) {
        int lanes = t->side[0].lanes;
        reg a = p->of[0][i / lanes];
        if (lanes > 1) a = kernel_push(w->o, (kins){ .op = K_LANES, .dtype = type, .a = a, .first_lane = i % lanes });
        for (int g = 0; g < vectors; g++) { /* there and back: two products in a row share an operand */
            int j = i % 2 ? vectors - 1 - g : g;
            kernel_push(w->o, (kins){ .op = K_UPD,
                                      .alu = OP_dot,
                                      .dtype = type,
                                      .a = a,
                                      .b = p->of[1][j],
                                      .c = acc->at[i][j],
                                      .lanes = (uint8_t)t->side[1].lanes });
        }
    }
}

/* What a thread multiplies: its steps [from, to) of the contraction, one after the other, all of its tile. */
static void write_steps(writer *w, const sums *acc, affine half, int64_t from, int64_t to, int unroll) {
    if (from == to) return;
    kvar k = kernel_var(w->o, "k", to, false, false);
    kernel_push(w->o, (kins){ .op = K_LOOP, .var = k, .lo = from, .hi = to, .step = 1, .par = PAR_SERIAL });
    w->o->vars.at[k].role.unroll = unroll;
    parts p = load_step(w, affine_var(w->o->a, k), half, NULL);
    multiply_step(w, acc, &p);
    close(w, 1);
}

static int unroll_of(int64_t steps) { return steps <= LONG ? (int)steps : 8; }

static void write_products(writer *w, const sums *acc, affine half) {
    int64_t steps = own_steps(w->w);
    write_steps(w, acc, half, 0, steps, unroll_of(steps));
}

static void meet(writer *w) { kernel_push(w->o, (kins){ .op = K_BARRIER }); }

/* One block in shared memory. */
static void write_single(writer *w, const sums *acc) {
    const tiler *t = w->w;
    bool loop = t->s.b.whole < t->n_loops;
    moment when = { .trips = 0 };
    if (loop) when.at = affine_var(w->o->a, open(w, "s", t->s.b.trips, PAR_SERIAL));
    staged *s = ARENA_ARRAY(w->o->a, staged, 2);
    for (int x = 0; x < 2; x++) {
        if (t->s.b.powers)
            load_block(w, x, &when, &s[x]);
        else
            copy_dealt(w, x, &when);
    }
    for (int x = 0; x < 2 && t->s.b.powers; x++) store_block(w, x, &s[x], affine_const(0));
    meet(w);
    write_products(w, acc, affine_const(0));
    meet(w);
    close(w, loop);
}

/* ---- what is under way from one step, and one iteration, to the next ---- */

/* Whether a load of a block may be under way from one iteration to the next: where it would compute with what it loads, it
 * would wait for it at once. */
static bool may_be_carried(const tiler *t, int x) {
    const kins *in = tiler_at(t, t->side[x].operand);
    return in->op == K_LOAD && in->src == in->dtype && !in->dyn;
}

/* Registers that are set to v, n of them. */
static void carry(writer *w, const reg *v, int n, const reg *to) {
    for (int i = 0; i < n; i++) {
        const kins *in = &w->o->ins.at[v[i]];
        kernel_push(w->o, (kins){ .op = K_UPD, .dtype = in->dtype, .a = v[i], .c = to[i], .lanes = in->lanes });
    }
}
static void make_carried(writer *w, const reg *v, int n, reg *out) {
    reg to[MAX_CHUNKS];
    for (int i = 0; i < n; i++) {
        const kins *in = &w->o->ins.at[v[i]];
        to[i] = kernel_push(w->o, (kins){ .op = K_ACC, .dtype = in->dtype, .lanes = in->lanes });
    }
    carry(w, v, n, to);
    memcpy(out, to, sizeof *to * (size_t)n);
}

/* The first block, and the second one into registers that carry it, where they may. */
static void load_first(writer *w, moment *when, staged *s, staged *ahead, bool *carried) {
    for (int x = 0; x < 2; x++) load_block(w, x, when, &s[x]);
    when->at = affine_const(1);
    for (int x = 0; x < 2; x++) {
        carried[x] = may_be_carried(w->w, x);
        if (carried[x]) load_block(w, x, when, &ahead[x]);
        if (carried[x] && w->w->s.b.trips > 2) make_carried(w, ahead[x].v, ahead[x].n, ahead[x].v);
    }
}

/* The block behind the next one, into the registers that carried this one. */
static void load_ahead(writer *w, const moment *when, staged *s, const staged *ahead, const bool *carried) {
    for (int x = 0; x < 2; x++)
        if (carried[x]) load_block(w, x, when, &s[x]);
    for (int x = 0; x < 2; x++)
        if (carried[x]) carry(w, s[x].v, s[x].n, ahead[x].v);
}

/* Two blocks: loop s by two, loop h = 0 .. 2: block s + h is multiplied in half h while the next one comes, which is loaded
 * when the one before has been stored. The loop begins some steps late, so that threads do not meet where it begins again; of
 * what its first step multiplies, registers carry the first vectors to it: with them it begins while the others are read. */
static void write_late(writer *w, const sums *acc, bool again) {
    const tiler *t = w->w;
    int64_t trips = t->s.b.trips, steps = own_steps(t), late = steps < 8 ? 1 : 3;
    int unroll = steps <= LONG ? (int)steps : 8;
    affine begin = affine_const(late), zero = affine_const(0), one = affine_const(1);
    moment when = { .trips = 0 };
    staged *s = ARENA_ARRAY(w->o->a, staged, 2), *ahead = ARENA_ARRAY(w->o->a, staged, 2);
    bool carried[2];
    load_first(w, &when, s, ahead, carried);
    for (int x = 0; x < 2; x++) store_block(w, x, &s[x], zero);
    meet(w);
    write_steps(w, acc, zero, 0, late, (int)late);
    if (trips > 2) {
        reg first[2];
        for (int x = 0; x < 2; x++) first[x] = load_vector(w, x, 0, begin, zero);
        for (int x = 0; x < 2; x++) make_carried(w, &first[x], 1, &first[x]);
        kvar pair = open_pairs(w, trips - 1), h = open(w, "h", 2, PAR_SERIAL);
        affine half = affine_var(w->o->a, h), other = affine_offset(affine_scale(w->o->a, half, -1), 1);
        moment next = { affine_offset(plus_var(w, half, pair, 1), 1), trips },
               second = { affine_offset(next.at, 1), trips % 2 ? trips : 0 }; /* all of an even number are there */
        for (int x = 0; x < 2; x++)
            if (!carried[x]) load_block(w, x, &next, &ahead[x]);
        parts p = load_step(w, begin, half, first);
        multiply_step(w, acc, &p);
        write_steps(w, acc, half, late + 1, steps, unroll);
        for (int x = 0; x < 2; x++) store_block(w, x, &ahead[x], other);
        meet(w);
        load_ahead(w, &second, s, ahead, carried);
        write_steps(w, acc, other, 0, late - 1, (int)late);
        p = load_step(w, affine_const(late - 1), other, NULL);
        reg v[2];
        for (int x = 0; x < 2; x++) v[x] = load_vector(w, x, 0, begin, other);
        multiply_step(w, acc, &p);
        for (int x = 0; x < 2; x++) carry(w, &v[x], 1, &first[x]);
        close(w, 2);
    }
    if (trips % 2 == 0) { /* these steps are few: short code */
        when.at = affine_const(trips - 1);
        for (int x = 0; x < 2; x++)
            if (!carried[x]) load_block(w, x, &when, &ahead[x]);
        write_steps(w, acc, zero, late, steps, 2);
        for (int x = 0; x < 2; x++) store_block(w, x, &ahead[x], one);
        meet(w);
        write_steps(w, acc, one, 0, steps, 2);
    } else {
        write_steps(w, acc, zero, late, steps, 2);
        if (again) meet(w);
    }
}

/* Reads a step into registers that hold the one before, which is multiplied. */
static void multiply_ahead(writer *w, const sums *acc, const parts *p, affine step, affine half) {
    parts next = load_step(w, step, half, NULL);
    multiply_step(w, acc, p);
    for (int x = 0; x < 2; x++) carry(w, next.of[x], w->w->s.t[x] / w->w->side[x].lanes, p->of[x]);
}

/* Multiplies step after step what `p` holds, which the last one leaves there: behind each is read what the next one needs. */
static void write_ahead(writer *w, const sums *acc, const parts *p, affine half, int unroll) {
    int64_t steps = own_steps(w->w) - 1;
    if (steps == 0) return;
    kvar k = kernel_var(w->o, "k", steps, false, false);
    kernel_push(w->o, (kins){ .op = K_LOOP, .var = k, .hi = steps, .step = 1, .par = PAR_SERIAL });
    w->o->vars.at[k].role.unroll = unroll < steps ? unroll : (int)steps;
    multiply_ahead(w, acc, p, affine_offset(affine_var(w->o->a, k), 1), half);
    close(w, 1);
}

/* The same for smaller tiles, whose threads have registers left: what a step multiplies is read while the one before is
 * multiplied, also where threads meet in between; blocks are loaded when the one before has been stored. Registers carry both
 * from one iteration to the next: so no thread begins one waiting, and memory has the time of a whole block. */
static void write_carried(writer *w, const sums *acc, bool again) {
    const tiler *t = w->w;
    int64_t trips = t->s.b.trips, steps = own_steps(t);
    affine first = affine_const(0), zero = affine_const(0), one = affine_const(1);
    moment when = { .trips = 0 };
    staged *s = ARENA_ARRAY(w->o->a, staged, 2), *ahead = ARENA_ARRAY(w->o->a, staged, 2);
    bool carried[2];
    int unroll = trips > FEW ? 2 : unroll_of(steps); /* of the last blocks: short code where they are few of many */
    load_first(w, &when, s, ahead, carried);
    for (int x = 0; x < 2; x++) store_block(w, x, &s[x], zero);
    meet(w);
    parts p = load_step(w, first, zero, NULL);
    for (int x = 0; x < 2; x++) make_carried(w, p.of[x], t->s.t[x] / t->side[x].lanes, p.of[x]);
    if (trips > 2) {
        kvar pair = open(w, "s", (trips - 1) / 2, PAR_SERIAL), h = open(w, "h", 2, PAR_SERIAL);
        affine half = affine_var(w->o->a, h), other = affine_offset(affine_scale(w->o->a, half, -1), 1);
        moment next = { affine_offset(plus_var(w, half, pair, 2), 1), trips },
               second = { affine_offset(next.at, 1), trips % 2 ? trips : 0 }; /* all of an even number are there */
        for (int x = 0; x < 2; x++)
            if (!carried[x]) load_block(w, x, &next, &ahead[x]);
        write_ahead(w, acc, &p, half, unroll_of(steps));
        for (int x = 0; x < 2; x++) store_block(w, x, &ahead[x], other);
        meet(w);
        parts q = load_step(w, first, other, NULL);
        load_ahead(w, &second, s, ahead, carried);
        multiply_step(w, acc, &p);
        for (int x = 0; x < 2; x++) carry(w, q.of[x], t->s.t[x] / t->side[x].lanes, p.of[x]);
        close(w, 2);
    }
    if (trips % 2 == 0) {
        when.at = affine_const(trips - 1);
        for (int x = 0; x < 2; x++)
            if (!carried[x]) load_block(w, x, &when, &ahead[x]);
        write_ahead(w, acc, &p, zero, unroll);
        for (int x = 0; x < 2; x++) store_block(w, x, &ahead[x], one);
        meet(w);
        multiply_ahead(w, acc, &p, first, one);
        write_ahead(w, acc, &p, one, unroll);
    } else {
        write_ahead(w, acc, &p, zero, unroll);
        if (again) meet(w);
    }
    multiply_step(w, acc, &p);
}

/* With 8 x 16 sums a thread's registers are all in use, and what is carried comes to lie in the wrong banks: on an H200 2048
 * cubed took 351 us so, and 330 as above; with 8 x 8 sums 1024 cubed takes 52.1 us so, and 53.2 as above. */
static void write_doubled(writer *w, const sums *acc, bool again) {
    if (w->w->s.t[0] * w->w->s.t[1] > CARRYING)
        write_late(w, acc, again);
    else
        write_carried(w, acc, again);
}

/* ---- the results ---- */

/* What comes behind the contraction at m, n (and the lanes behind it), from the sum v; what does not depend on both is taken
 * from `seen`, [scalar ins], where that is not 0. */
typedef struct results {
    bool *on[2];  /* [scalar ins] depends on m, n */
    bool *varies; /* from lane to lane */
    affine idle;
    int64_t n_idle;
} results;

static results find_results(const tiler *w) {
    results r = { .n_idle = 0 };
    kernel *k = (kernel *)(uintptr_t)w->k;
    for (int x = 0; x < 2; x++) {
        r.on[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
        r.on[x][w->acc] = true;
        for (int i = 1 + w->n_outer; i < k->ins.n - w->n_outer; i++) {
            const kins *in = tiler_at(w, i);
            r.on[x][i] |= in->op == K_STORE || gpu_uses(in, w->side[x].row) || r.on[x][in->a] || r.on[x][in->b] ||
                          r.on[x][in->c] || r.on[x][in->dyn];
        }
    }
    r.varies = r.on[1];
    return r;
}

static void write_result(writer *w, const results *r, affine m, affine n, reg v, bool first_m, bool first_n, reg *seen) {
    const tiler *t = w->w;
    int last = t->k->ins.n - t->n_outer;
    gpu_places p = { .along = t->side[1].row, .lanes = t->side[1].lanes, .varies = r->varies };
    gpu_put(&p, t->side[0].row, m), gpu_put(&p, t->side[1].row, n);
    for (int i = 1 + t->n_outer; i < last; i++) {
        if (i == t->loops) i = t->end + 1;
        if (i >= last) break;
        if (i == t->acc) {
            w->c.to[i] = v;
            continue;
        }
        if ((!r->on[0][i] && !first_m) || (!r->on[1][i] && !first_n)) {
            if (!r->on[0][i] && r->on[1][i]) w->c.to[i] = seen[i];
            continue;
        }
        p.n_mask = 0;
        if (t->side[0].tail && r->on[0][i]) gpu_bound(&p, m, tiler_extent(t, t->side[0].row), 0);
        if (t->side[1].tail && r->on[1][i]) gpu_bound(&p, n, tiler_extent(t, t->side[1].row), 1);
        if (r->n_idle) gpu_bound(&p, r->idle, 1, 0);
        seen[i] = gpu_copy(&w->c, i, &p);
    }
}

static void write_results(writer *w, const sums *acc) {
    const tiler *t = w->w;
    results r = find_results(t);
    int vectors = t->s.t[1] / t->side[1].lanes, lanes = t->side[0].lanes;
    reg *seen[MAX_SIDE]; /* of what depends on n only */
    for (int j = 0; j < vectors; j++) seen[j] = ARENA_ARRAY(w->o->a, reg, t->k->ins.n);
    for (int i = 0; i < t->s.t[0]; i++)
        for (int j = 0; j < vectors; j++) {
            affine m = affine_offset(plus(w, w->tile[0], vector_at(w, 0, i / lanes), 1), i % lanes),
                   n = plus(w, w->tile[1], vector_at(w, 1, j), 1);
            write_result(w, &r, m, n, acc->at[i][j], i == 0, j == 0, seen[j]);
        }
}

/* Partial tiles meet in shared memory; each thread sums the parts of some vectors of it, in order, and goes on from there. */
static void write_meeting_results(writer *w, const sums *acc) {
    const tiler *t = w->w;
    results r = find_results(t);
    uint8_t type = tiler_at(t, t->acc)->dtype;
    int lanes = t->side[1].lanes, down = t->side[0].lanes;
    int64_t width = rows_of(t, 1), size = width * rows_of(t, 0);
    kins access = {
        .dtype = type, .src = type, .buf = (uint16_t)w->part_buf, .lanes = (uint8_t)lanes, .lane_stride = lanes > 1
    };
    for (int i = 0; i < t->s.t[0]; i++)
        for (int j = 0; j < t->s.t[1] / lanes; j++) {
            kins in = access;
            affine row = affine_offset(vector_at(w, 0, i / down), i % down);
            in.op = K_STORE, in.a = acc->at[i][j];
            in.idx = plus(w, plus(w, vector_at(w, 1, j), row, width), w->z, size);
            kernel_push(w->o, in);
        }
    meet(w);
    int x_bits = log2_of(width / lanes), bits = x_bits + log2_of(rows_of(t, 0)),
        chunks = bits > w->log_group ? 1 << (bits - w->log_group) : 1;
    if (bits < w->log_group) {
        r.idle = number(w, bits, w->log_group - bits, 0);
        r.n_idle = 1 << (w->log_group - bits);
    }
    for (int c = 0; c < chunks; c++) {
        affine row = number(w, x_bits, bits - x_bits, c), col = affine_scale(w->o->a, number(w, 0, x_bits, c), lanes);
        reg sum = 0;
        for (int z = 0; z < t->s.z; z++) {
            kins in = access;
            in.op = K_LOAD;
            in.idx = affine_offset(plus(w, col, row, width), z * size);
            if (r.n_idle) {
                in.mask = ARENA_ARRAY(w->o->a, kmask, 1), in.mask_lane = ARENA_ARRAY(w->o->a, int64_t, 1), in.n_mask = 1;
                in.mask[0] = (kmask){ r.idle, 0, 1 };
            }
            reg part = kernel_push(w->o, in);
            kins add = { .op = K_ALU, .alu = OP_add, .dtype = type, .src = type, .a = sum, .b = part, .lanes = (uint8_t)lanes };
            sum = sum ? kernel_push(w->o, add) : part;
        }
        reg *seen = ARENA_ARRAY(w->o->a, reg, t->k->ins.n);
        write_result(w, &r, plus(w, w->tile[0], row, 1), plus(w, w->tile[1], col, 1), sum, true, true, seen);
    }
}

/* ---- all of it ---- */

static int open_groups(writer *w) {
    const tiler *t = w->w;
    int n = 2;
    for (int i = 1; i <= t->n_outer; i++) {
        kins in = *tiler_at(t, i);
        if (in.var == t->side[0].row || in.var == t->side[1].row) continue;
        in.par = PAR_GROUPS;
        w->o->groups *= in.hi;
        kernel_push(w->o, in);
        n++;
    }
    for (int x = 0; x < 2; x++) {
        int64_t rows = rows_of(t, x), tiles = (tiler_extent(t, t->side[x].row) + rows - 1) / rows;
        w->tile[x] = affine_scale(w->o->a, affine_var(w->o->a, open(w, "g", tiles, PAR_GROUPS)), rows);
        w->o->groups *= tiles;
    }
    return n;
}

static void write_tiles(writer *w) {
    const tiler *t = w->w;
    sums acc;
    int opened = open_groups(w), around = t->n_loops - t->s.b.whole - 1;
    opened += open_threads(w);
    for (int i = 0; i < t->s.t[0]; i++)
        for (int j = 0; j < t->s.t[1] / t->side[1].lanes; j++) {
            kins in = *tiler_at(t, t->acc);
            in.lanes = (uint8_t)t->side[1].lanes;
            acc.at[i][j] = kernel_push(w->o, in);
        }
    if (around < 0) around = 0;
    for (int i = 0; i < around; i++) kernel_push(w->o, *tiler_at(t, t->loops + i));
    if (t->s.doubled)
        write_doubled(w, &acc, around > 0);
    else
        write_single(w, &acc);
    close(w, around);
    if (t->s.z > 1)
        write_meeting_results(w, &acc);
    else
        write_results(w, &acc);
    close(w, opened);
}

kernel *tiler_write(tiler *t) {
    const kernel *k = t->k;
    kernel *o = t->o = gpu_kernel(k, t->s.n[0] * t->s.n[1] * t->s.z);
    writer w = { .w = t, .o = o, .c = { k, o, ARENA_ARRAY(k->a, reg, k->ins.n) } };
    uint8_t type = tiler_at(t, t->acc)->dtype;
    for (int x = 0; x < 2; x++)
        t->side[x].buf = kernel_buf(o, (kbuf){ .dtype = type,
                                               .kind = KB_GROUP,
                                               .elems = (t->s.doubled ? 2 : 1) * t->s.b.steps * t->side[x].pitch,
                                               .plan_buf = -1 });
    if (t->s.z > 1)
        w.part_buf = kernel_buf(
            o, (kbuf){ .dtype = type, .kind = KB_GROUP, .elems = t->s.z * rows_of(t, 0) * rows_of(t, 1), .plan_buf = -1 });
    write_tiles(&w);
    return o;
}
