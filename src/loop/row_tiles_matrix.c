/* row_tiles_matrix.c - rows of contractions whose products matrix units make (bind_row_tiles.c with `matrix`).
 *
 * In: the parts of the scalar kernel; all contractions in one serial loop of tiles, as online_softmax leaves them. A warpgroup
 * has 64 rows; a thread what kernel_fragment says of all sums, two rows of pairs of columns, so that elementwise work and
 * combining of rows are those of bind_row_tiles. Operands lie in shared memory in 16 bits, as matrices are there: blocks of 64
 * steps, tiles of 64 rows in them. What a contraction takes of the row's own values goes there from memory with work on the
 * way, or is a fragment: sums of one contraction have the places that rows of the next one have.
 *
 * Operands are f16 or bf16 in the scalar kernel, too: nothing is rounded that is not rounded there. */
#include "loop/row_tiles.h"

enum { PIECE = 8 /* elements that a thread copies at once */, LOG_TILE = 6 };

static bool is_narrow(uint8_t dtype) { return dtype == TN_F16 || dtype == TN_BF16; }

/* ---- the last contractions ---- */

/* Its sums begin with what it has from the tile before. */
static bool goes_on(const row_tiles *w, const rt_nest *n) {
    bool on = false;
    for (int i = n->loop + 1; i < n->inner; i++) on |= rt_ins(w, i)->op == K_UPD;
    return on;
}

const rt_nest *rt_last(const row_tiles *w, const rt_nest *tiles, int l) {
    const rt_nest *last = NULL;
    for (int i = w->nests.n - 1, at = rt_n_last(w, tiles); i >= 0 && at > l; i--) {
        const rt_nest *n = &w->nests.at[i];
        if (n->kind == RT_PRODUCT && n->loop > tiles->loop && n->end < tiles->end) last = n, at--;
    }
    return last;
}

/* The last one counts in any case. */
int rt_n_last(const row_tiles *w, const rt_nest *tiles) {
    int n_on = 0, n = 0;
    for (int i = 0; i < w->nests.n; i++) {
        const rt_nest *x = &w->nests.at[i];
        if (x->kind != RT_PRODUCT || x->loop < tiles->loop || x->end > tiles->end) continue;
        n++, n_on += goes_on(w, x);
    }
    return n_on > 1 ? n_on : n > 0;
}

/* ---- reading ---- */

/* The nest that fills the buffer on the way to shared memory; NULL: its values are in registers. */
static const rt_nest *copy_of(const row_tiles *w, int buf) {
    for (int i = 0; i < w->nests.n; i++) {
        const rt_nest *n = &w->nests.at[i];
        if (n->kind == RT_COPY && rt_ins(w, n->store)->buf == buf) return n;
    }
    return NULL;
}

/* An operand from memory, in pieces of 16 bytes. */
static bool read_loaded(row_tiles *w, const rt_nest *n, rt_operand *s, int side) {
    const kins *in = rt_ins(w, s->value);
    kvar step = rt_ins(w, n->inner)->var, fast = s->across ? n->v : step;
    if (in->op != K_LOAD || !is_narrow(in->src) || in->dyn || (in->n_mask && in->imm != 0) ||
        w->k->bufs.at[in->buf].kind != KB_IN)
        return step_refuse(w->why, "an operand of a contraction is not read from memory as bf16 or f16");
    int64_t extent = fast == step ? s->steps : s->rows;
    bool masked = false;
    for (int m = 0; m < in->n_mask; m++) masked |= affine_coef(in->mask[m].e, fast) != 0;
    if ((!side && s->across) || masked || extent % PIECE || affine_coef(in->idx, fast) != 1 ||
        !gpu_any_vectors(w->k, s->needed, fast, PIECE))
        return step_refuse(w->why, "an operand of a contraction does not lie in pieces of %d numbers", PIECE);
    s->dtype = in->src;
    return true;
}

/* The rows' operand that the row has computed. */
static bool read_own(row_tiles *w, rt_operand *s) {
    rt_buf *b = &w->bufs[s->buf];
    const rt_nest *copy = copy_of(w, s->buf);
    s->dtype = w->k->bufs.at[s->buf].dtype;
    if (!is_narrow(s->dtype)) return step_refuse(w->why, "a contraction takes values of the row that are not bf16 or f16");
    if (!copy) {
        if (s->steps % KERNEL_MATRIX_STEPS) return step_refuse(w->why, "a tile is not whole steps of matrix units");
        b->shared = false, s->buf = -1;
        return true;
    }
    bool *needed = ARENA_ARRAY(w->k->a, bool, w->k->ins.n);
    for (int i = copy->loop + 1; i < copy->store; i++) needed[i] = true;
    if (s->steps % PIECE || !gpu_any_vectors(w->k, needed, copy->v, PIECE))
        return step_refuse(w->why, "what a contraction takes does not lie in pieces of %d numbers", PIECE);
    return true;
}

/* What nests in the tiles load of f32 numbers that each column has one of, whatever the row. */
static void find_numbers(row_tiles *w) {
    w->number_of = ARENA_ARRAY(w->k->a, int, w->k->ins.n);
    for (int i = w->from; i < w->to; i++) {
        const kins *in = rt_ins(w, i);
        const rt_nest *n = w->nest_of[i] ? &w->nests.at[w->nest_of[i] - 1] : NULL;
        if (!n || !n->tiles || in->op != K_LOAD || in->src != TN_F32 || in->n_mask || in->dyn || gpu_uses(in, w->row) ||
            w->k->bufs.at[in->buf].kind != KB_IN || affine_coef(in->idx, n->v) != 1 || n->n % RT_WIDE)
            continue;
        if (n->kind == RT_PRODUCT && i > n->inner && i < n->upd) continue; /* an operand */
        bool *needed = ARENA_ARRAY(w->k->a, bool, w->k->ins.n);
        needed[i] = true;
        if (!gpu_any_vectors(w->k, needed, n->v, RT_WIDE)) continue;
        for (int j = 0; j < w->numbers.n && !w->number_of[i]; j++) {
            const rt_number *x = &w->numbers.at[j];
            const rt_nest *other = &w->nests.at[x->nest - 1];
            affine same = affine_set_var(w->k->a, in->idx, n->v, affine_var(w->k->a, other->v));
            if (rt_ins(w, x->load)->buf == in->buf && other->n == n->n && affine_equal(rt_ins(w, x->load)->idx, same))
                w->number_of[i] = j + 1;
        }
        if (w->number_of[i]) continue;
        VEC_PUSH(w->k->a, &w->numbers, ((rt_number){ .load = i, .nest = w->nest_of[i] }));
        w->number_of[i] = w->numbers.n;
    }
}

bool rt_matrix_read(row_tiles *w) {
    int tiles = 0;
    for (int i = 0; i < w->nests.n; i++) {
        rt_nest *n = &w->nests.at[i];
        n->vectors = n->placed = true;
        if (n->kind != RT_PRODUCT) continue;
        if (!n->tiles || (tiles && n->tiles != tiles))
            return step_refuse(w->why, "contractions are not all in one loop of tiles");
        tiles = n->tiles;
        if (n->n > RT_MOST_SIDE * PIECE || n->side[0].steps > 2 * KERNEL_MATRIX)
            return step_refuse(w->why, "%lld columns along %lld: the limit is %d, and %d", (long long)n->n,
                               (long long)n->side[0].steps, RT_MOST_SIDE * PIECE, 2 * KERNEL_MATRIX);
        bool own = !n->side[0].value;
        if (!(own ? read_own(w, &n->side[0]) : read_loaded(w, n, &n->side[0], 0)) || !read_loaded(w, n, &n->side[1], 1))
            return false;
        if (n->side[0].dtype != n->side[1].dtype) return step_refuse(w->why, "one operand is bf16, and the other f16");
        for (int j = n->loop + 1; j < n->inner; j++) {
            const kins *in = rt_ins(w, j);
            if (in->op == K_UPD && (in->alu != OP_add || rt_ins(w, n->acc)->imm != 0))
                return step_refuse(w->why, "a sum begins with something else than a value");
        }
    }
    find_numbers(w);
    return true;
}

/* ---- operands into shared memory ---- */

typedef struct copying { /* pieces of an operand, fast along memory, are the threads' */
    const rt_operand *s;
    const rt_nest *of;  /* with the instructions up to s->value, .. */
    const bool *needed; /* .. those of them that are */
    kvar fast, slow;
    int64_t n_fast, n_slow, real_fast, real_slow; /* in elements; real: in memory */
    bool rows;                                    /* slow are rows of the block */
    int log_fast;
} copying;

static copying plan_copy(const row_tiles *w, const rt_nest *n, const rt_operand *s, int side, kvar step, kvar row) {
    copying c = { .s = s, .of = n, .needed = s->needed, .rows = !side };
    int64_t rows = side ? n->n : w->block, steps = gpu_round_up(s->steps, KERNEL_MATRIX_STEPS);
    c.fast = s->across ? row : step, c.slow = s->across ? step : row;
    c.n_fast = s->across ? rows : steps, c.n_slow = s->across ? steps : rows;
    c.real_fast = s->across ? rows : s->steps, c.real_slow = s->across ? s->steps : rows;
    c.log_fast = gpu_log2_up(c.n_fast / PIECE);
    return c;
}

/* Rows of its matrix that lie in shared memory. */
static int64_t rows_of(const row_tiles *w, const rt_nest *n, int side) {
    return gpu_round_up(side ? n->n : w->block, KERNEL_MATRIX);
}

uint64_t rt_matrix_cuts(const row_tiles *w) {
    uint64_t cuts = 1 | 1u << 2 | 1u << 3 | 1u << 5 | 1u << 7;
    for (int i = 0; i < w->nests.n; i++)
        for (int side = 0; side < 2 && w->nests.at[i].kind == RT_PRODUCT; side++) {
            const rt_nest *n = &w->nests.at[i];
            const rt_operand *s = &n->side[side];
            if (!s->value && !copy_of(w, s->buf)) continue;
            copying c = plan_copy(w, n, s, side, 0, 1);
            cuts |= (uint64_t)1 << c.log_fast | (uint64_t)1 << (c.log_fast + LOG_TILE);
            int64_t vectors = n->grid_blocks * PIECE / RT_WIDE; /* as what is skipped is looked at */
            cuts |= (uint64_t)1 << gpu_log2_up(s->across ? vectors : (s->steps + RT_WIDE - 1) / RT_WIDE);
        }
    return cuts;
}

static copying plan_operand(const row_tiles *t, const rt_nest *n, int side) {
    return plan_copy(t, n, &n->side[side], side, rt_ins(t, n->inner)->var, side ? n->v : t->row);
}

/* Whether operand `side` of x is what y's is: the same elements of memory, and the same places in shared memory, whatever the
 * contractions call its rows and steps. (Keys make scores, and are multiplied with those for the queries' gradient.) */
static bool same_operand(const row_tiles *t, const rt_nest *x, const rt_nest *y, int side) {
    copying c = plan_operand(t, x, side), d = plan_operand(t, y, side);
    const kins *a = rt_ins(t, c.s->value), *b = rt_ins(t, d.s->value);
    const kvar from[2] = { c.fast, c.slow }, to[2] = { d.fast, d.slow };
    int64_t fast[2], slow[2]; /* from a tile to the next one */
    if (!c.s->value || !d.s->value || a->buf != b->buf || a->src != b->src || a->n_mask != b->n_mask || x->tiles != y->tiles ||
        c.n_fast != d.n_fast || c.n_slow != d.n_slow || c.real_fast != d.real_fast || c.real_slow != d.real_slow)
        return false;
    for (int m = -1; m < a->n_mask; m++) {
        affine e = m < 0 ? a->idx : a->mask[m].e, f = m < 0 ? b->idx : b->mask[m].e;
        for (int v = 0; v < 2; v++) e = affine_set_var(t->k->a, e, from[v], affine_var(t->k->a, to[v]));
        if (!affine_equal(e, f) || (m >= 0 && (a->mask[m].lo != b->mask[m].lo || a->mask[m].hi != b->mask[m].hi))) return false;
    }
    for (int of = 0; of < 2; of++) {
        int64_t tile = KERNEL_MATRIX * KERNEL_MATRIX, block = KERNEL_MATRIX * rows_of(t, of ? y : x, side);
        bool across = (of ? d : c).s->across;
        fast[of] = across ? tile : block, slow[of] = across ? block : tile;
    }
    return (c.n_fast <= KERNEL_MATRIX || fast[0] == fast[1]) && (c.n_slow <= KERNEL_MATRIX || slow[0] == slow[1]);
}

/* The operand of an earlier contraction that lies in shared memory and is the same; NULL: none. */
static const rt_operand *find_brought(const row_tiles *t, int nest, int side) {
    for (int i = 0; i < nest; i++) {
        const rt_nest *n = &t->nests.at[i];
        if (n->kind == RT_PRODUCT && n->side[side].buf >= 0 && same_operand(t, n, &t->nests.at[nest], side))
            return &n->side[side];
    }
    return NULL;
}

/* Stages of what moves with the serial loop. */
static int stages_of(const row_tiles *t, const rt_nest *n) { return rt_most(t, &t->nests.at[n->tiles - 1]) > 1 ? 2 : 1; }

void rt_matrix_buffers(rt_writer *w) {
    const row_tiles *t = w->w;
    for (int i = 0; i < t->nests.n; i++) {
        rt_nest *n = &t->nests.at[i];
        for (int side = 0; side < 2 && n->kind == RT_PRODUCT; side++) {
            rt_operand *s = &n->side[side];
            bool moving = s->value && gpu_any_uses(t->k, s->needed, t->nests.at[n->tiles - 1].v);
            const rt_operand *same;
            kbuf *b;
            if (s->buf < 0) continue;
            s->elems = gpu_round_up(s->steps, KERNEL_MATRIX) * rows_of(t, n, side);
            same = s->value ? find_brought(t, i, side) : NULL;
            if (same && same->elems == s->elems) {
                s->buf = same->buf, s->brought = true;
                continue;
            }
            if (s->value) s->buf = gpu_shared_buffer(w->o, s->dtype, 0);
            b = &w->o->bufs.at[s->buf];
            b->dtype = s->dtype, b->swizzled = true, b->elems = s->elems * (moving ? stages_of(t, n) : 1);
        }
    }
    for (int i = 0; i < t->numbers.n; i++) {
        rt_number *x = &w->w->numbers.at[i];
        const rt_nest *n = &t->nests.at[x->nest - 1];
        x->buf = gpu_shared_buffer(w->o, TN_F32, (int)n->n * stages_of(t, n));
    }
}

typedef struct place {     /* of a piece */
    affine fast, slow, at; /* elements along memory; where in shared memory */
} place;

/* Of the thread's piece `chunk`. Tiles of 64 rows, and blocks of 64 steps, lie one behind the other. */
static place place_of(const rt_writer *w, const copying *c, int64_t rows, int chunk) {
    arena *a = w->o->a;
    int low = c->log_fast < 3 ? c->log_fast : 3, middle = c->log_fast + LOG_TILE;
    if (middle > w->log_threads) middle = w->log_threads;
    affine in_tile = rt_bits_of(w, 0, low), tile = rt_bits_of(w, low, c->log_fast);
    affine near = rt_bits_of(w, c->log_fast, middle), far = rt_bits_of(w, middle, w->log_threads);
    int64_t first = (int64_t)chunk << (w->log_threads - c->log_fast), block = KERNEL_MATRIX * rows;
    int64_t fast_apart = c->s->across ? KERNEL_MATRIX * KERNEL_MATRIX : block,
            slow_apart = c->s->across ? block : KERNEL_MATRIX * KERNEL_MATRIX;
    place p = { .fast = build_plus(a, affine_scale(a, in_tile, PIECE), tile, KERNEL_MATRIX),
                .slow = affine_offset(build_plus(a, near, far, KERNEL_MATRIX), first) };
    p.at = build_plus(a, affine_scale(a, in_tile, PIECE), tile, fast_apart);
    p.at = build_plus(a, build_plus(a, p.at, near, KERNEL_MATRIX), far, slow_apart);
    p.at = affine_offset(p.at, first / KERNEL_MATRIX * slow_apart + first % KERNEL_MATRIX * KERNEL_MATRIX);
    return p;
}

/* Masks pieces behind the last one. */
static void bound_items(const copying *c, build_places *p, const place *at, int64_t slow) {
    if (PIECE << c->log_fast != c->n_fast) build_bound(p, at->fast, c->n_fast, 0);
    if (slow != c->n_slow) build_bound(p, at->slow, c->n_slow, 0);
}

typedef struct when { /* iteration of the serial loop; which may lie behind the last one; where its operands go */
    const rt_nest *tiles;
    affine tile, stage;
    bool bounded;
} when;

static void copy_operand(rt_writer *w, const copying *c, int side, int value, bool computed, const when *x) {
    const row_tiles *t = w->w;
    kernel *o = w->o;
    int64_t rows = rows_of(t, c->of, side), all = (int64_t)1 << (w->log_threads - c->log_fast);
    int chunks = (int)((c->n_slow + all - 1) / all);
    for (int chunk = 0; chunk < chunks; chunk++) {
        place at = place_of(w, c, rows, chunk);
        build_places p = { .along = c->fast, .lanes = PIECE, .varies = gpu_varying(t->k, c->needed, c->fast) };
        affine slow = c->rows ? build_plus(o->a, w->first_row, at.slow, 1) : at.slow;
        build_put(&p, c->fast, at.fast), build_put(&p, c->slow, slow);
        if (x->tiles) build_put(&p, x->tiles->v, x->tile);
        bound_items(c, &p, &at, chunks * all);
        if (c->real_fast != c->n_fast) build_bound(&p, at.fast, c->real_fast, 1);
        if (c->real_slow != c->n_slow) build_bound(&p, slow, c->real_slow, 0);
        if (c->rows && rt_row_tail(t)) build_bound(&p, slow, t->rows, 0);
        if (x->bounded) build_bound(&p, x->tile, x->tiles->n, 0);
        for (int i = c->of->loop + 1; i <= value; i++)
            if (c->needed[i]) build_copy(&w->c, i, &p);
        reg v = w->c.to[value];
        if (!computed) o->ins.at[v].mode = LOAD_ASYNC;
        if (computed && c->real_fast != c->n_fast) v = build_before(o, v, TN_I32, at.fast, 1, c->real_fast, 0);
        reg store = build_store(o, c->s->buf, build_plus(o->a, at.at, x->stage, c->s->elems), v);
        build_places only = { .n = 0 };
        bound_items(c, &only, &at, chunks * all);
        build_bounds(o->a, &o->ins.at[store], &only);
    }
}

/* Where numbers of the columns lie in shared memory. */
static affine number_at(rt_writer *w, const rt_nest *n, affine column, affine stage) {
    return build_plus(w->o->a, column, stage, n->n);
}

static void copy_number(rt_writer *w, const rt_number *x, const when *at) {
    const rt_nest *n = &w->w->nests.at[x->nest - 1];
    bool *needed = ARENA_ARRAY(w->o->a, bool, w->w->k->ins.n);
    affine thread = rt_bits_of(w, 0, w->log_threads), column = affine_scale(w->o->a, thread, RT_WIDE);
    needed[x->load] = true;
    build_places p = { .along = n->v, .lanes = RT_WIDE, .varies = gpu_varying(w->w->k, needed, n->v) }, only = { .n = 0 };
    build_put(&p, n->v, column), build_put(&p, at->tiles->v, at->tile);
    if (n->n / RT_WIDE != (int64_t)1 << w->log_threads)
        build_bound(&p, thread, n->n / RT_WIDE, 0), build_bound(&only, thread, n->n / RT_WIDE, 0);
    if (at->bounded) build_bound(&p, at->tile, at->tiles->n, 0);
    reg v = build_copy(&w->c, x->load, &p), store;
    w->o->ins.at[v].mode = LOAD_ASYNC;
    store = build_store(w->o, x->buf, number_at(w, n, column, at->stage), v);
    build_bounds(w->o->a, &w->o->ins.at[store], &only);
}

reg rt_matrix_number(rt_writer *w, int load, affine column) {
    const rt_number *x = &w->w->numbers.at[w->w->number_of[load] - 1];
    kins in = { .op = K_LOAD, .dtype = TN_F32, .src = TN_F32, .buf = (uint16_t)x->buf, .lanes = 2, .lane_stride = 1 };
    in.idx = number_at(w, &w->w->nests.at[x->nest - 1], column, w->stage), in.node = rt_ins(w->w, load)->node;
    return kernel_push(w->o, in);
}

void rt_matrix_copy(rt_writer *w, bool moving, affine tile, bool bounded, affine stage) {
    const row_tiles *t = w->w;
    for (int i = 0; i < t->numbers.n && moving; i++) {
        const rt_nest *tiles = &t->nests.at[t->nests.at[t->numbers.at[i].nest - 1].tiles - 1];
        copy_number(w, &t->numbers.at[i], &(when){ .tiles = tiles, .tile = tile, .stage = stage, .bounded = bounded });
    }
    for (int i = 0; i < t->nests.n; i++) {
        const rt_nest *n = &t->nests.at[i];
        for (int side = 0; side < 2 && n->kind == RT_PRODUCT; side++) {
            const rt_operand *s = &n->side[side];
            const rt_nest *tiles = &t->nests.at[n->tiles - 1];
            if (!s->value || s->brought || gpu_any_uses(t->k, s->needed, tiles->v) != moving) continue;
            copying c = plan_operand(t, n, side);
            when x = {
                .tiles = moving ? tiles : NULL, .tile = tile, .stage = moving ? stage : affine_const(0), .bounded = bounded
            };
            copy_operand(w, &c, side, s->value, false, &x);
        }
    }
}

void rt_matrix_copy_nest(rt_writer *w, const rt_nest *n) {
    const row_tiles *t = w->w;
    const kins *store = rt_ins(t, n->store);
    const rt_nest *taker = NULL;
    for (int i = 0; i < t->nests.n; i++)
        if (t->nests.at[i].kind == RT_PRODUCT && !t->nests.at[i].side[0].value && t->nests.at[i].side[0].buf == store->buf)
            taker = &t->nests.at[i];
    if (!taker) return;
    bool *needed = ARENA_ARRAY(w->o->a, bool, t->k->ins.n);
    for (int i = n->loop + 1; i < n->store; i++) needed[i] = true;
    copying c = plan_copy(t, taker, &taker->side[0], 0, n->v, t->row);
    c.of = n, c.needed = needed;
    copy_operand(w, &c, 0, (int)store->a, true, &(when){ .tile = affine_const(0), .stage = affine_const(0) });
}

/* ---- products ---- */

/* Sums as the contraction begins: 0, or values. */
static reg begin_sums(rt_writer *w, const rt_nest *n) {
    const kins *acc = rt_ins(w->w, n->acc);
    int vectors = n->grid_blocks;
    reg sums = build_acc(w->o, OP_add, TN_F32, acc->imm, 4 * vectors);
    for (int g = 0; g < vectors; g++)
        for (int row = 0; row < w->w->tr; row++)
            for (int i = n->loop + 1; i < n->inner; i++) {
                const kins *in = rt_ins(w->w, i);
                if (in->op == K_UPD) build_put_lanes(w->o, sums, 4 * g + 2 * row, rt_at_place(w, row, g)[in->a]);
            }
    return sums;
}

static reg put_matrix(rt_writer *w, const rt_operand *s, affine first, int64_t rows, int q) {
    int block = q / (KERNEL_MATRIX / KERNEL_MATRIX_STEPS), in_block = q % (KERNEL_MATRIX / KERNEL_MATRIX_STEPS);
    kins in = { .op = K_MATRIX, .dtype = TN_I64, .buf = (uint16_t)s->buf, .mode = s->across ? MN_MAJOR : K_MAJOR };
    in.idx =
        affine_offset(first, block * KERNEL_MATRIX * rows + in_block * KERNEL_MATRIX_STEPS * (s->across ? KERNEL_MATRIX : 1));
    return kernel_push(w->o, in);
}

/* The weights of a contraction that are in registers. */
static int weights_of(const row_tiles *w, const rt_nest *n) {
    const kins *upd = rt_ins(w, n->upd), *a = rt_ins(w, (int)upd->a);
    return rt_local(w, a) ? a->buf : rt_ins(w, (int)upd->b)->buf;
}

/* What the row has computed, as rows of the units. */
static void put_fragments(rt_writer *w, const rt_nest *n, reg *out) {
    const rt_operand *s = &n->side[0];
    int buf = weights_of(w->w, n);
    int vectors = (int)(s->steps / PIECE);
    reg all = build_acc(w->o, OP_NIL, TN_F32, 0, 4 * vectors);
    for (int g = 0; g < vectors; g++)
        for (int row = 0; row < w->w->tr; row++) build_put_lanes(w->o, all, 4 * g + 2 * row, w->held[buf][row * vectors + g]);
    for (int q = 0; q < vectors / 2; q++)
        out[q] = kernel_push(w->o, (kins){ .op = K_FRAGMENT,
                                           .dtype = TN_I64,
                                           .src = s->dtype,
                                           .lanes = KERNEL_FRAGMENT,
                                           .a = all,
                                           .first_lane = KERNEL_FRAGMENT * q });
}

/* What its operands are made of is there before its tile begins. */
static bool is_ready(const row_tiles *w, const rt_nest *n) {
    const rt_nest *copy = n->side[0].value ? NULL : copy_of(w, n->side[0].buf);
    bool ready = n->side[0].value || (n->side[0].buf >= 0 && copy && !copy->tiles);
    for (int i = n->loop + 1; i < n->inner; i++) ready &= rt_ins(w, i)->op != K_UPD;
    return ready;
}

static void begin_product(rt_writer *w, const rt_nest *n, reg *begun) {
    const rt_operand *a = &n->side[0], *b = &n->side[1];
    kernel *o = w->o;
    reg fragments[2 * KERNEL_MATRIX / KERNEL_MATRIX_STEPS] = { 0 }, sums = *begun = begin_sums(w, n);
    int steps = (int)(gpu_round_up(a->steps, KERNEL_MATRIX_STEPS) / KERNEL_MATRIX_STEPS);
    bool in_registers = a->buf < 0, moving = gpu_any_uses(w->w->k, b->needed, w->tiles->v);
    affine first = affine_scale(o->a, rt_bits_of(w, 7, w->log_threads), KERNEL_MATRIX * KERNEL_MATRIX),
           second = moving ? affine_scale(o->a, w->stage, b->elems) : affine_const(0);
    if (in_registers) put_fragments(w, n, fragments);
    for (int q = 0; q < steps; q++) {
        reg x = in_registers ? fragments[q] : put_matrix(w, a, first, rows_of(w->w, n, 0), q);
        reg y = put_matrix(w, b, second, rows_of(w->w, n, 1), q);
        kernel_push(o, (kins){ .op = K_MMA, .dtype = TN_F32, .lanes = o->ins.at[sums].lanes, .c = sums, .a = x, .b = y });
    }
}

const rt_nest *rt_matrix_beside(const rt_writer *w, const rt_nest *n) {
    int next = (int)(n - w->w->nests.at) + 1;
    const rt_nest *x = next < w->w->nests.n ? &w->w->nests.at[next] : NULL;
    if (!x || x->kind != RT_PRODUCT || x->tiles != n->tiles || w->sums[next]) return NULL;
    if (n->side[0].value || x->side[0].value || n->side[0].buf >= 0 || x->side[0].buf >= 0) return NULL;
    const reg *held = w->held[weights_of(w->w, x)];
    return held && held[0] ? x : NULL;
}

void rt_matrix_product(rt_writer *w, const rt_nest *n) {
    const row_tiles *t = w->w;
    int self = (int)(n - t->nests.at), later = 0;
    bool early = is_ready(t, n);
    if (!w->sums[self]) {
        const rt_nest *beside = rt_matrix_beside(w, n);
        begin_product(w, n, &w->sums[self]);
        if (beside) begin_product(w, beside, &w->sums[self + 1]);
        for (int i = self + 1; i < t->nests.n && early; i++) /* units work on while this one's sums are made scores of */
            if (t->nests.at[i].kind == RT_PRODUCT && is_ready(t, &t->nests.at[i]))
                begin_product(w, &t->nests.at[i], &w->sums[i]);
    }
    for (int i = self + 1; i < t->nests.n; i++) later += w->sums[i] != 0;
    kernel_push(w->o, (kins){ .op = K_ASYNC, .mode = ASYNC_PRODUCTS, .pending = later });
    for (int g = 0; g < n->grid_blocks; g++)
        for (int row = 0; row < t->tr; row++)
            rt_at_place(w, row, g)[n->acc] = build_lanes(w->o, w->sums[self], 4 * g + 2 * row, 2);
    w->sums[self] = 0;
}
