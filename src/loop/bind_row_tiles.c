/* bind_row_tiles.c - binds rows of contractions and elementwise work to thread blocks of a GPU: a block has some rows, a
 * thread a tile of rows and columns of each nest. Operands of contractions come through shared memory; what else lies between
 * the nests stays in registers. row_tiles_write.c writes it.
 *
 * In: scalar form whose body is nests over one loop of columns each - elementwise work, combining, contractions - and serial
 * loops over such nests, as online_softmax leaves them. Out: the form of a GPU. Rows and columns need not divide;
 * how many rows there are, and tiles of a serial loop, may be a run's.
 *
 * skip_masked: a tile in which a comparison of indices makes all scores -inf (causal attention, windows) is left out; what it
 * would add to the result is 0 times an operand, which is looked at for what is not finite. matrix: matrix units multiply
 * (row_tiles_matrix.c). Order-changing: partial sums of threads are combined. */
#include "loop/row_tiles.h"

#include <math.h>

enum { MOST_WORK = 256 /* instructions of elementwise work, each as often as it is read */ };

/* ---- reading ---- */

static bool read_range(row_tiles *w, int from, int to, int tiles);

static bool holds_loops(const row_tiles *w, int loop, int end) {
    int loops = 0;
    for (int i = loop + 1; i < end; i++) loops += rt_ins(w, i)->op == K_LOOP;
    return loops > 1 || (loops == 1 && w->k->vars.at[rt_ins(w, loop)->var].reduce);
}

static bool read_nest(row_tiles *w, int loop, int tiles) {
    rt_nest n = { .loop = loop, .end = kernel_loop_end(w->k, loop), .v = rt_ins(w, loop)->var, .tiles = tiles };
    int updates = 0, index = w->nests.n;
    n.n = w->k->vars.at[n.v].extent;
    if (holds_loops(w, loop, n.end)) {
        if (tiles) return step_refuse(w->why, "a serial loop inside of another one");
        n.kind = RT_TILES;
        VEC_PUSH(w->k->a, &w->nests, n);
        w->nest_of[loop] = index + 1;
        return read_range(w, loop + 1, n.end, index + 1);
    }
    for (int i = loop; i <= n.end; i++) {
        const kins *in = rt_ins(w, i);
        w->nest_of[i] = index + 1;
        if (i > loop && in->op == K_LOOP) n.inner = i;
        if (in->op == K_ACC) n.acc = i;
        if (in->op == K_UPD && in->alu == OP_dot) n.upd = i;
        updates += in->op == K_UPD;
        if (tiles && in->op == K_STORE && w->k->bufs.at[in->buf].kind == KB_INOUT)
            return step_refuse(w->why, "a serial loop writes b%d, which is read, too", in->buf);
        if (in->op == K_SCATTER || in->op == K_ARGUPD || in->op == K_BLOCK_REDUCE || in->op == K_BARRIER)
            return step_refuse(w->why, "a nest does something else than compute, load, store, add up and take maxima");
    }
    if (!ext_is_lit(n.n) || (n.inner && !ext_is_lit(w->k->vars.at[rt_ins(w, n.inner)->var].extent)))
        return step_refuse(w->why, "a run says how many iterations a nest has");
    n.kind = n.inner ? RT_PRODUCT : w->k->vars.at[n.v].reduce ? RT_REDUCE : RT_ELEMENTS;
    if (n.kind == RT_PRODUCT &&
        (!n.acc || !n.upd || (int)rt_ins(w, n.upd)->c != n.acc || !w->k->vars.at[rt_ins(w, n.inner)->var].reduce ||
         rt_ins(w, n.acc)->dtype != TN_F32 || n.acc > n.inner))
        return step_refuse(w->why, "a nest with a loop inside is no contraction of f32");
    if (n.kind == RT_REDUCE && (updates != 1 || n.acc))
        return step_refuse(w->why, "a reduction that is not one sum or maximum");
    if (n.kind == RT_ELEMENTS && updates) return step_refuse(w->why, "elementwise work that changes a number of the row");
    VEC_PUSH(w->k->a, &w->nests, n);
    return true;
}

static bool read_range(row_tiles *w, int from, int to, int tiles) {
    for (int i = from; i < to; i++) {
        const kins *in = rt_ins(w, i);
        bool number = in->op == K_STORE && !tiles && !rt_local(w, in);
        if ((in->op == K_STORE && !number) || in->op == K_SCATTER || in->op == K_ARGUPD || rt_local(w, in))
            return step_refuse(w->why, "between its nests a row does more than compute with numbers of its own");
        if (in->op != K_LOOP) continue;
        if (!read_nest(w, i, tiles)) return false;
        i = kernel_loop_end(w->k, i);
    }
    return true;
}

/* ---- contractions ---- */

/* Instructions that register r is computed from inside the nest, itself among them. */
static bool *find_needed(const row_tiles *w, const rt_nest *n, reg r) {
    bool *needed = ARENA_ARRAY(w->k->a, bool, w->k->ins.n);
    needed[r] = true;
    build_mark_needed(w->k, (int)r + 1, needed);
    for (int i = 0; i <= n->loop; i++) needed[i] = false;
    return needed;
}

/* They compute with a number of the row, which threads have of their own rows alone. */
static bool takes_numbers(const row_tiles *w, const rt_nest *n, const bool *needed) {
    for (int i = n->loop + 1; i < n->end; i++) {
        const kins *in = rt_ins(w, i);
        reg of[4] = { in->a, in->b, in->c, in->dyn };
        for (int x = 0; x < 4 && (!needed || needed[i]); x++)
            if (of[x] && (int)of[x] < n->loop && rt_ins(w, (int)of[x])->op != K_CONST) return true;
    }
    return false;
}

static bool read_product(row_tiles *w, rt_nest *n) {
    const kins *upd = rt_ins(w, n->upd);
    kvar step = rt_ins(w, n->inner)->var;
    int64_t steps = w->k->vars.at[step].extent;
    bool *needed[2] = { find_needed(w, n, upd->a), find_needed(w, n, upd->b) };
    int columns = gpu_any_uses(w->k, needed[1], n->v), rows = !columns;
    reg of[2] = { upd->a, upd->b };
    if (gpu_any_uses(w->k, needed[0], n->v) == gpu_any_uses(w->k, needed[1], n->v) ||
        gpu_any_uses(w->k, needed[columns], w->row))
        return step_refuse(w->why, "not one operand of a contraction depends on its columns, and the other one on rows");
    const kins *a = rt_ins(w, (int)of[rows]);
    n->side[0] = (rt_operand){ .value = (int)of[rows], .needed = needed[rows], .rows = w->block, .steps = steps };
    n->side[1] = (rt_operand){ .value = (int)of[columns], .needed = needed[columns], .rows = n->n, .steps = steps };
    for (int i = n->loop; i < n->upd; i++) {
        const kins *in = rt_ins(w, i);
        bool own = rt_local(w, in) && in->op == K_LOAD && i > n->inner;
        if (own && !(i == (int)of[rows] && loop_is_own(in, step)))
            return step_refuse(w->why, "a contraction computes with what it takes of the row");
        if ((needed[0][i] || needed[1][i]) &&
            (i == n->acc || in->op == K_LOOP || (in->op == K_LOAD && i < n->inner && rt_local(w, in))))
            return step_refuse(w->why, "an operand of a contraction depends on its sum");
    }
    n->side[0].pitch = gpu_round_up(steps, RT_WIDE) + RT_WIDE;
    if (rt_local(w, a)) {
        rt_buf *b = &w->bufs[a->buf];
        if (b->shared && b->pitch != n->side[0].pitch)
            return step_refuse(w->why, "two contractions take a buffer of different lengths");
        b->shared = true, b->pitch = n->side[0].pitch;
        n->side[0].value = 0, n->side[0].buf = a->buf;
    }
    for (int side = 0; side < 2; side++)
        if (n->side[side].value && takes_numbers(w, n, n->side[side].needed))
            return step_refuse(w->why, "an operand of a contraction is computed with a number of the row");
    n->side[1].across = gpu_lies_along(w->k, needed[columns], n->v) && !gpu_lies_along(w->k, needed[columns], step);
    n->vectors = n->side[1].across || w->matrix, n->placed = true;
    return true;
}

/* ---- which columns a thread has ---- */

/* Nests that share a buffer in registers have the same columns. *more: another nest has them now. */
static bool place(row_tiles *w, int i, bool *more) {
    rt_nest *n = &w->nests.at[i];
    for (int j = n->loop; j < n->end; j++) {
        const kins *in = rt_ins(w, j);
        bool operand = n->kind == RT_PRODUCT && j > n->inner && j < kernel_loop_end(w->k, n->inner);
        if (!rt_local(w, in) || operand) continue;
        rt_buf *b = &w->bufs[in->buf];
        if (!loop_is_own(in, n->v))
            return step_refuse(w->why, "a nest needs other elements than its own of what a row has computed");
        const rt_nest *other = b->nest ? &w->nests.at[b->nest - 1] : NULL;
        if (other && n->placed && (other->vectors != n->vectors || other->n != n->n))
            return step_refuse(w->why, "two nests share a buffer and have other columns");
        if (other && !n->placed) n->vectors = other->vectors, n->placed = *more = true;
        if (n->placed && !other) b->nest = i + 1, *more = true;
    }
    return true;
}

static bool has_columns(const rt_nest *n) { return n->kind != RT_TILES && n->kind != RT_COPY; }

/* What contractions do not decide is in vectors. */
static bool place_all(row_tiles *w) {
    for (int b = 0; b < w->k->bufs.n; b++) w->bufs[b].nest = 0;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < w->nests.n; i++)
            if (has_columns(&w->nests.at[i]) && !place(w, i, &more)) return false;
        for (int i = 0; i < w->nests.n && !more; i++) {
            rt_nest *n = &w->nests.at[i];
            if (has_columns(n) && !n->placed) n->vectors = n->placed = more = true;
        }
    }
    return true;
}

/* Contractions alone load it. */
static bool is_operand_only(const row_tiles *w, int buf) {
    for (int i = w->from; i < w->to; i++) {
        const kins *in = rt_ins(w, i);
        if (in->op != K_LOAD || in->buf != buf) continue;
        const rt_nest *n = &w->nests.at[w->nest_of[i] - 1];
        if (n->kind != RT_PRODUCT || i < n->inner || i > n->upd) return false;
    }
    return true;
}

/* Elementwise work whose only result is what a contraction takes. */
static void find_copies(row_tiles *w) {
    for (int i = 0; i < w->nests.n; i++) {
        rt_nest *n = &w->nests.at[i];
        int stores = 0;
        bool takes = false;
        if (n->kind != RT_ELEMENTS) continue;
        for (int j = n->loop; j < n->end; j++) {
            const kins *in = rt_ins(w, j);
            if (in->op == K_STORE) stores++, n->store = j;
            takes |= in->op == K_LOAD && rt_local(w, in);
        }
        const kins *s = rt_ins(w, n->store);
        if (stores == 1 && !takes && rt_local(w, s) && w->bufs[s->buf].shared && loop_is_own(s, n->v) &&
            is_operand_only(w, s->buf) && !takes_numbers(w, n, NULL))
            n->kind = RT_COPY;
    }
}

static bool find_buffers(row_tiles *w) {
    for (int i = 0; i < w->nests.n; i++)
        if (w->nests.at[i].kind == RT_PRODUCT && !read_product(w, &w->nests.at[i])) return false;
    find_copies(w);
    if (w->matrix && !rt_matrix_read(w)) return false;
    if (!place_all(w)) return false;
    for (int i = w->from; i < w->to; i++) {
        const kins *in = rt_ins(w, i);
        if (!rt_local(w, in)) continue;
        const rt_nest *n = &w->nests.at[w->nest_of[i] - 1];
        rt_buf *b = &w->bufs[in->buf];
        b->stores += in->op == K_STORE;
        b->held |= n->kind != RT_COPY && (in->op == K_STORE || n->kind != RT_PRODUCT || i < n->inner || i > n->upd);
    }
    for (int i = 0; i < w->nests.n; i++) {
        rt_nest *n = &w->nests.at[i];
        if (!has_columns(n)) continue;
        int64_t each = (int64_t)w->across * (n->vectors ? w->wide : 1);
        n->grid_blocks = (int)(n->n > each * RT_MOST_SIDE ? RT_MOST_SIDE + 1 : (n->n + each - 1) / each);
        if (w->matrix) n->grid_blocks = n->grid_blocks < 2 ? 2 : 2 << gpu_log2(n->grid_blocks - 1); /* lanes of a fragment */
        int columns = n->grid_blocks * (n->vectors ? w->wide : 1);
        if (n->grid_blocks > RT_MOST_SIDE || columns * w->tr > RT_MOST_TILE)
            return step_refuse(w->why, "a thread has %d x %d elements or more; the limit is %d", w->tr, columns, RT_MOST_TILE);
        if (n->kind == RT_REDUCE && n->n % each)
            return step_refuse(w->why, "%lld columns do not come out for %d threads across", (long long)n->n, w->across);
    }
    for (int b = 0; b < w->k->bufs.n; b++) w->bufs[b].carried = w->bufs[b].held && w->bufs[b].stores > 1;
    return true;
}

/* ---- columns from instruction to instruction ---- */

static void find_varying(row_tiles *w) {
    for (int i = 0; i < w->nests.n; i++) {
        rt_nest *n = &w->nests.at[i];
        bool *varies = ARENA_ARRAY(w->k->a, bool, w->k->ins.n);
        varies[n->acc] = n->acc > 0;
        gpu_mark_varying(w->k, n->loop + 1, n->end, n->v, varies);
        n->varies = varies;
    }
}

/* ---- what is masked ---- */

static bool is_infinity(const row_tiles *w, reg r) {
    return rt_ins(w, (int)r)->op == K_CONST && rt_ins(w, (int)r)->imm == -INFINITY;
}

/* A comparison of indices. */
static bool is_order(const row_tiles *w, reg r) {
    const kins *c = rt_ins(w, (int)r);
    bool order = c->op == K_ALU && (c->alu == OP_le || c->alu == OP_lt || c->alu == OP_ge || c->alu == OP_gt);
    return order && rt_ins(w, (int)c->a)->op == K_INDEX && rt_ins(w, (int)c->b)->op == K_INDEX && rt_ins(w, (int)c->b)->idx.n;
}

/* The comparison of indices without which the value is -inf; 0: none. */
static int find_comparison(const row_tiles *w, reg r) {
    const kins *in = rt_ins(w, (int)r);
    if (in->op != K_ALU || in->alu != OP_select || !is_infinity(w, in->c)) return 0;
    if (is_order(w, in->a)) return (int)in->a;
    return find_comparison(w, in->b);
}

/* Scores of a tile only go through exp(score - number of the row) into sums: a score of -inf adds nothing. */
static bool only_powers(const row_tiles *w, int buf) {
    for (int i = w->from; i < w->to; i++) {
        const kins *in = rt_ins(w, i);
        if (in->op != K_LOAD || in->buf != buf) continue;
        const rt_nest *n = &w->nests.at[w->nest_of[i] - 1];
        if (n->kind == RT_REDUCE && rt_ins(w, n->end - 1)->op == K_UPD && rt_ins(w, n->end - 1)->alu == OP_max) continue;
        if (n->kind != RT_ELEMENTS) return false;
        int last = i;
        for (int j = i + 1; j < n->end; j++) {
            const kins *x = rt_ins(w, j);
            bool takes = (int)x->a == last || (int)x->b == last || (int)x->c == last;
            if (x->op == K_ALU && x->alu == OP_sub && (int)x->a == last && (int)x->b < n->loop)
                last = j;
            else if (x->op == K_ALU && x->alu == OP_exp && takes)
                last = -j;
            else if (takes)
                return false;
        }
        if (last > 0) return false;
    }
    return true;
}

/* The comparison without which a value of a nest in the tiles is 0, or (low) -inf; 0: none, or none within *left instructions.
 * What is NaN there otherwise does not count: the comparison threw it away, or all of its row is NaN. */
static int find_zero(const row_tiles *w, reg r, bool low, int *left) {
    const kins *in = rt_ins(w, (int)r);
    int found = 0;
    if (!r || --*left < 0) return 0;
    if (rt_local(w, in)) {
        for (int i = (int)r - 1; i >= w->from; i--)
            if (rt_ins(w, i)->op == K_STORE && rt_ins(w, i)->buf == in->buf) return find_zero(w, rt_ins(w, i)->a, low, left);
        return 0;
    }
    if (low) {
        found = find_comparison(w, r);
        if (!found && in->op == K_ALU && in->alu == OP_sub) found = find_zero(w, in->a, true, left);
        return found;
    }
    if (in->op == K_WRAP || in->op == K_CAST) return find_zero(w, in->a, false, left);
    if (in->op != K_ALU) return 0;
    if (in->alu == OP_exp) return find_zero(w, in->a, true, left);
    if (in->alu == OP_select && rt_ins(w, (int)in->c)->op == K_CONST && rt_ins(w, (int)in->c)->imm == 0)
        found = is_order(w, in->a) ? (int)in->a : find_zero(w, in->b, false, left);
    if (in->alu == OP_mul || in->alu == OP_div) found = find_zero(w, in->a, false, left);
    if (in->alu == OP_mul && !found) found = find_zero(w, in->b, false, left);
    return found;
}

/* Where tiles only add products up: the comparison without which the last contractions take 0 of the row. */
static int find_weight_skip(const row_tiles *w) {
    int last = 0, found = 0;
    for (int i = 0; i < w->nests.n; i++) {
        const rt_nest *n = &w->nests.at[i];
        if (n->tiles && n->kind == RT_REDUCE) return 0;
        if (n->tiles && n->kind == RT_PRODUCT) last = i;
    }
    if (w->nests.at[last].kind != RT_PRODUCT) return 0;
    const rt_nest *tiles = &w->nests.at[w->nests.at[last].tiles - 1];
    for (int l = 0; l < rt_n_last(w, tiles); l++) {
        const kins *upd = rt_ins(w, rt_last(w, tiles, l)->upd);
        int left = MOST_WORK, c = find_zero(w, rt_local(w, rt_ins(w, (int)upd->a)) ? upd->a : upd->b, false, &left);
        if (!c || (l && c != found)) return 0;
        found = c;
    }
    return found;
}

static bool find_skip(row_tiles *w) {
    for (int i = 0; i < w->nests.n; i++) {
        const rt_nest *n = &w->nests.at[i];
        if (n->kind != RT_PRODUCT || !n->tiles) continue;
        for (int j = n->upd; j < n->end; j++) {
            const kins *in = rt_ins(w, j);
            if (in->op != K_STORE || !rt_local(w, in)) continue;
            int c = find_comparison(w, in->a);
            if (c && only_powers(w, in->buf)) w->skip = c;
        }
        break; /* the first one has the scores */
    }
    if (!w->skip) w->skip = find_weight_skip(w);
    const rt_nest *tiles = NULL;
    for (int i = 0; i < w->nests.n; i++)
        if (w->nests.at[i].kind == RT_PRODUCT && w->nests.at[i].tiles) tiles = &w->nests.at[w->nests.at[i].tiles - 1];
    for (int l = 0; l < (tiles ? rt_n_last(w, tiles) : 1); l++) {
        const rt_nest *last = tiles ? rt_last(w, tiles, l) : NULL;
        if (!w->skip || !last || !last->side[1].across || last->n % RT_WIDE)
            return step_refuse(w->why,
                               "no comparison of indices makes scores of a tile -inf, or the last contraction's columns do not "
                               "lie side by side in vectors");
        if (last->grid_blocks * w->across > w->down * w->across)
            return step_refuse(w->why, "a row of the last contraction's operand has more vectors than there are threads");
    }
    return true;
}

/* Sizes of the run: whether the comparison is of literals, and holds in the first tiles if in any. */
static bool is_skip_of_all(const row_tiles *w) {
    const kins *c = rt_ins(w, w->skip), *of[2] = { rt_ins(w, (int)c->a), rt_ins(w, (int)c->b) };
    bool least = c->alu == OP_le || c->alu == OP_lt, lit = true;
    const rt_nest *tiles = &w->nests.at[w->nests.at[w->nest_of[w->skip] - 1].tiles - 1];
    for (int x = 0; x < 2; x++) {
        lit &= ext_is_lit(of[x]->idx.base);
        for (int i = 0; i < of[x]->idx.n; i++) lit &= ext_is_lit(of[x]->idx.t[i].coef);
    }
    if (ext_is_lit(tiles->n) && ext_is_lit(w->rows) && lit) return true;
    int64_t moves = lit ? affine_coef(of[0]->idx, tiles->v) - affine_coef(of[1]->idx, tiles->v) : 0;
    return (lit && (least ? moves >= 0 : moves <= 0)) || step_refuse(w->why, "a run says which tiles count, or they come last");
}

bool step_bind_row_tiles(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    int64_t block = s->arg[0].n, down = s->arg[1].n, across = s->arg[2].n;
    row_tiles w = {
        .k = k, .why = why, .n_outer = gpu_outer_loops(k), .block = (int)block, .down = (int)down, .across = (int)across
    };
    if (!gpu_is_power(block) || !gpu_is_power(down) || !gpu_is_power(across) || across > 32 || down > GPU_MOST_THREADS ||
        block < down || block > down * RT_MOST_SIDE)
        return step_refuse(
            why, "%lld rows by %lld x %lld threads: expected powers of two, up to %d rows of a thread and 32 threads across",
            (long long)block, (long long)down, (long long)across, RT_MOST_SIDE);
    w.matrix = step_flag(s, "matrix"), w.wide = w.matrix ? 2 : RT_WIDE;
    if (w.matrix && (across != 4 || block != 2 * down || block % KERNEL_MATRIX))
        return step_refuse(why,
                           "%lld rows by %lld x %lld threads: expected %d rows, or a multiple, two of each of 4 threads across",
                           (long long)block, (long long)down, (long long)across, KERNEL_MATRIX);
    if (!gpu_can_bind(k, -1, down * across, why)) return false;
    if (w.n_outer < 1) return step_refuse(why, "the kernel has no rows");
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && (k->ins.at[i].lo != 0 || gpu_may_be_empty(k, i) || k->ins.at[i].a))
            return step_refuse(why, "loop %s is empty, cut or conditional", k->vars.at[k->ins.at[i].var].name);
    w.from = 1 + w.n_outer, w.to = k->ins.n - w.n_outer, w.tr = (int)(block / down);
    w.row = k->ins.at[w.n_outer].var, w.rows = k->vars.at[w.row].extent;
    w.nest_of = ARENA_ARRAY(k->a, int, k->ins.n), w.bufs = ARENA_ARRAY(k->a, rt_buf, k->bufs.n + 1);
    if (!read_range(&w, w.from, w.to, 0)) return false;
    int products = 0;
    for (int i = 0; i < w.nests.n; i++) products += w.nests.at[i].kind == RT_PRODUCT;
    if (!products) return step_refuse(why, "the rows have no contraction");
    for (int i = 0; i < w.nests.n; i++) {
        const rt_nest *n = &w.nests.at[i];
        if (n->kind == RT_TILES && rt_n_last(&w, n) > (w.matrix ? RT_MOST_LAST : 1))
            return step_refuse(why, "%d contractions go on from tile to tile", rt_n_last(&w, n));
    }
    if (!find_buffers(&w)) return false;
    find_varying(&w);
    if (step_flag(s, "skip_masked") && (!find_skip(&w) || !is_skip_of_all(&w))) return false;
    kernel *o = row_tiles_write(&w);
    if (ext_hi(o->params, o->grid_blocks) > INT32_MAX) return step_refuse(why, "there may be too many thread blocks");
    *kk = o;
    return true;
}
