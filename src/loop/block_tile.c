/* block_tile.c - GEMM tiling: a contraction in tiles of thread blocks, as the roles of its loops say. A block copies a part of
 * both operands, a K block, to its shared memory (pack_shared); its threads (bind) multiply out a small tile of the result each
 * (unroll_jam); several may share a sum (split_k).
 *
 * In: scalar form that is one contraction with what is computed before and behind it. Out: its parts, and the shape of the
 * tiles, for thread_tile.c. */
#include "loop/block_tile.h"

enum { MOST_VARS = 36 };

static bool find_parts(tiler *w) {
    const kernel *k = w->k;
    int i = 1 + w->n_outer, last = k->ins.n - w->n_outer;
    for (; i < last && tiler_at(w, i)->op != K_LOOP; i++) {
        if (tiler_at(w, i)->op == K_STORE || (tiler_at(w, i)->op == K_ACC && w->acc)) return false;
        if (tiler_at(w, i)->op == K_ACC) w->acc = i;
    }
    if (!w->acc || i >= last) return false;
    w->loops = i, w->end = kernel_loop_end(k, i);
    w->n_loops = k->vars.at[tiler_at(w, i)->var].reduce ? gpu_perfect_loops(k, i) : 0;
    for (i += w->n_loops; i < w->end - w->n_loops + 1; i++) {
        const kins *in = tiler_at(w, i);
        if (in->op == K_LOOP || in->op == K_STORE || w->upd) return false;
        if (in->op == K_UPD && (in->alu != OP_dot || (int)in->c != w->acc)) return false;
        if (in->op == K_UPD) w->upd = i;
        if (in->op == K_LOAD && k->bufs.at[in->buf].kind != KB_IN) return false;
    }
    if (!w->upd) return false;
    for (i = w->end + 1; i < last; i++) {
        uint8_t op = tiler_at(w, i)->op;
        if (op == K_LOOP || op == K_ACC || op == K_UPD || op == K_SCATTER) return false;
    }
    return true;
}

/* ---- the shape ---- */

tile_problem tiler_problem(const tile_shape *s) {
    int64_t rows[2] = { (int64_t)s->t[0] * s->n[0], (int64_t)s->t[1] * s->n[1] },
            threads = (int64_t)s->n[0] * s->n[1] * s->split_k;
    int64_t most = s->b.steps * (rows[0] > rows[1] ? rows[0] : rows[1]) / threads;
    if (s->t[0] * s->t[1] > MAX_TILE) return TILE_SUMS;
    if (s->b.steps % s->split_k || (s->split_k > 1 && s->b.steps / s->split_k < 2)) return TILE_SPLIT;
    return s->b.powers && most > MAX_CHUNKS ? TILE_COPIES : TILE_FITS;
}

static bool can_share(const tile_shape *s, str *why) {
    switch (tiler_problem(s)) {
    case TILE_FITS:
        return true;
    case TILE_SUMS:
        return step_refuse(why, "%d x %d sums of a thread; the limit is %d", s->t[0], s->t[1], MAX_TILE);
    case TILE_SPLIT:
        return step_refuse(why, "%d threads do not share out a K block of %lld", s->split_k, (long long)s->b.steps);
    case TILE_COPIES:
        break;
    }
    return step_refuse(why, "a thread copies more than %d pieces of a K block of %lld", MAX_CHUNKS, (long long)s->b.steps);
}

bool tiler_find(tiler *w, const kernel *k, bool *needed[2], str *why) {
    *w = (tiler){ .k = k, .n_outer = gpu_outer_loops(k) };
    if (w->n_outer < 2 || k->vars.n > MOST_VARS)
        return step_refuse(why, "the kernel has %d loops, %d of them rows; expected 2 rows or more and %d loops at most",
                           k->vars.n, w->n_outer, MOST_VARS);
    if (!find_parts(w)) return step_refuse(why, "the kernel is not one contraction with elementwise work around it");
    for (int x = 0; x < 2; x++) {
        needed[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
        needed[x][x ? tiler_at(w, w->upd)->b : tiler_at(w, w->upd)->a] = true;
        build_mark_needed(k, w->upd, needed[x]);
    }
    if (needed[0][w->acc] || needed[1][w->acc]) return step_refuse(why, "an operand depends on the sum");
    for (int i = 1; i <= w->n_outer + w->n_loops; i++)
        if (tiler_at(w, i <= w->n_outer ? i : w->loops + i - w->n_outer - 1)->hi < 1)
            return step_refuse(why, "a loop is empty");
    return true;
}

bool tiler_stores_along(const tiler *w, kvar v) {
    for (int i = w->end; i < w->k->ins.n; i++)
        if (tiler_at(w, i)->op == K_STORE && affine_coef(tiler_at(w, i)->idx, v) == 1) return true;
    return false;
}

void tiler_take_rows(tiler *w, const kvar v[2], bool *const needed[2]) {
    bool swapped = tiler_stores_along(w, v[0]);
    for (int x = 0; x < 2; x++) {
        int of = x ^ (int)swapped;
        w->side[x].row = v[of], w->side[x].needed = needed[of];
        w->side[x].operand = (int)(of ? tiler_at(w, w->upd)->b : tiler_at(w, w->upd)->a);
    }
}

/* ---- from the roles of the loops ---- */

/* How the operands are copied and read: in vectors where they lie so. */
static void find_access(tiler *w) {
    int most = 16 / (int)dtype_size((tn_dtype)tiler_at(w, w->acc)->dtype);
    for (int x = 0; x < 2; x++) {
        tile_operand *s = &w->side[x];
        int64_t rows = tiler_rows(w, x);
        s->lanes = w->s.t[x] < most ? w->s.t[x] : most;
        s->pitch = rows + most; /* neighbours along the contraction lie in different banks */
        s->tail = tiler_extent(w, s->row) % rows != 0;
        if (!w->s.b.powers) continue;
        kvar inner = tiler_at(w, w->loops + w->n_loops - 1)->var;
        int64_t in_block = w->s.b.whole ? tiler_extent(w, inner) : w->s.b.split;
        if (rows % most == 0 && tiler_is_wide(w, s, s->row, most))
            s->vector = most, s->along = s->row;
        else if (in_block % most == 0 && tiler_is_wide(w, s, inner, most))
            s->vector = most, s->along = inner;
    }
}

/* The bound rows: one that operand a alone depends on, and one for b. */
static bool read_rows(tiler *w, bool *const needed[2], str *why) {
    const kernel *k = w->k;
    kvar row[2] = { -1, -1 };
    for (kvar v = 0; v < k->vars.n; v++) w->s.matrix |= k->vars.at[v].matrix > 0, w->s.staged |= k->vars.at[v].staged;
    for (kvar v = 0; v < k->vars.n; v++) {
        if (!(w->s.matrix ? k->vars.at[v].matrix : k->vars.at[v].threads) || k->vars.at[v].reduce) continue;
        bool a = gpu_any_uses(w->k, needed[0], v), b = gpu_any_uses(w->k, needed[1], v), outer = false;
        for (int i = 1; i <= w->n_outer; i++) outer |= tiler_at(w, i)->var == v;
        if (!outer || a == b)
            return step_refuse(why, "%s is not a row that one operand of the contraction depends on", k->vars.at[v].name);
        if (row[b] >= 0)
            return step_refuse(why, "%s and %s are of the same operand", k->vars.at[row[b]].name, k->vars.at[v].name);
        row[b] = v;
    }
    if (row[0] < 0 || row[1] < 0)
        return step_refuse(why, "no row of operand %s is bound to threads: bind or tensorize does that",
                           row[0] < 0 ? "A" : "B");
    tiler_take_rows(w, row, needed);
    return true;
}

static bool read_shape(tiler *w, str *why) {
    tile_shape *x = &w->s;
    int steps = 0;
    for (int i = 0; i < 2; i++) {
        const kvar_info *v = &w->k->vars.at[w->side[i].row];
        if (!gpu_is_power(v->role.unroll) || v->role.unroll > MAX_SIDE)
            return step_refuse(why, "%s is unrolled by %d: expected a power of two up to %d", v->name, v->role.unroll,
                               MAX_SIDE);
        x->n[i] = v->threads, x->t[i] = v->role.unroll;
    }
    x->group = 1;
    if (x->matrix && !tiler_read_matrix(w, why)) return false;
    x->split_k = 1;
    for (int i = 0; i < w->n_loops; i++) {
        const kvar_info *v = &w->k->vars.at[tiler_at(w, w->loops + i)->var];
        if (v->threads) x->split_k = v->threads;
        if (v->steps) steps = v->steps, x->bulk = v->bulk;
    }
    if (!steps) return step_refuse(why, "the operands do not come through shared memory: pack_shared does that");
    if (x->matrix && steps != KERNEL_MATRIX)
        return step_refuse(why, "a K block of %d: matrix units read %d steps", steps, KERNEL_MATRIX);
    if (x->bulk && !x->matrix) return step_refuse(why, "threads multiply what is copied in boxes; matrix units could");
    if (!x->matrix) x->b = tiler_block(w, steps);
    return x->matrix || can_share(x, why);
}

/* The kernel without roles, which are written out; false where others than those of a tile are there. */
static bool without_roles(const tiler *w, kernel *plain, str *why) {
    kernel *k = plain;
    *k = *w->k;
    k->vars.at = arena_copy(k->a, k->vars.at, sizeof *k->vars.at * (size_t)k->vars.n), k->vars.cap = k->vars.n;
    for (kvar v = 0; v < k->vars.n; v++) {
        kvar_info *x = &k->vars.at[v];
        bool row = v == w->side[0].row || v == w->side[1].row;
        if (x->role.lanes > 1 || (x->role.unroll > 1 && !row))
            return step_refuse(why, "loop %s is vectorized or unrolled, which threads do not write", x->name);
        x->role.unroll = 1, x->threads = x->steps = x->matrix = x->group = x->staged = 0, x->bulk = false;
    }
    return k->par_var < 0 || step_refuse(why, "threads of a processor share the loops already");
}

bool tiler_read(tiler *w, const kernel *k, str *why) {
    bool *needed[2];
    kernel *plain = ARENA_NEW(k->a, kernel);
    if (!tiler_find(w, k, needed, why) || !read_rows(w, needed, why) || !read_shape(w, why)) return false;
    if (!without_roles(w, plain, why) || !gpu_can_bind(plain, -1, (int64_t)w->s.n[0] * w->s.n[1] * w->s.split_k, why))
        return false;
    w->k = plain;
    if (w->s.matrix) return tiler_matrix_access(w, why);
    find_access(w);
    return true;
}
