/* block_tile.c - GEMM tiling: a contraction in tiles of thread blocks. A block copies a part of both operands, a K block, to
 * its shared memory; each thread multiplies out a small tile of the result in registers, as unroll_jam says.
 *
 * In: scalar form that is one contraction with what is computed before and behind it. Out: the form of a GPU. Sizes need not
 * divide: loads and stores are masked, and what lies behind the end of the contraction counts as zero.
 *
 * Copying to shared memory, double buffering and split-K are parameters of this step and no steps of their own: where a thread
 * finds its operands follows from the digits of one number, its own (block_tile_write.c), which all three decide on together.
 */
#include "loop/block_tile.h"

enum { MOST_VARS = 36, MOST_THREADS_ALONG = 1024 };

static bool find_parts(tiler *w) {
    const kernel *k = w->k;
    int i = 1 + w->n_outer, last = k->ins.n - w->n_outer;
    for (; i < last && tiler_at(w, i)->op != K_LOOP; i++) {
        if (tiler_at(w, i)->op == K_STORE || (tiler_at(w, i)->op == K_ACC && w->acc)) return false;
        if (tiler_at(w, i)->op == K_ACC) w->acc = i;
    }
    if (!w->acc || i >= last) return false;
    w->loops = i, w->end = kernel_loop_end(k, i);
    for (;
         tiler_at(w, i)->op == K_LOOP && k->vars.at[tiler_at(w, i)->var].reduce && kernel_loop_end(k, i) == w->end - w->n_loops;
         i++)
        w->n_loops++;
    for (; i < w->end - w->n_loops + 1; i++) {
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

/* Instructions that register r is computed from, itself among them. Operands stand before what uses them. */
static void mark_needed(const tiler *w, reg r, bool *needed) {
    needed[r] = true;
    for (; r > 0; r--) {
        const kins *in = tiler_at(w, (int)r);
        if (needed[r]) needed[in->a] = needed[in->b] = needed[in->c] = needed[in->dyn] = true;
    }
    needed[0] = false;
}

bool tiler_uses(const tiler *w, const bool *needed, kvar v) {
    for (int i = 1; i < w->k->ins.n; i++)
        if (needed[i] && gpu_uses(tiler_at(w, i), v)) return true;
    return false;
}

/* ---- how wide its operands can be read ---- */

/* Whether the operand can be loaded with `lanes` lanes along v: loads that move with v do so by one, in aligned pieces. */
static bool is_wide(const tiler *w, const tile_operand *s, kvar v, int lanes) {
    bool any = false;
    if (lanes < 2 || tiler_extent(w, v) % lanes) return false;
    for (int i = 1; i < w->k->ins.n; i++) {
        const kins *in = tiler_at(w, i);
        if (!s->needed[i] || in->op != K_LOAD) continue;
        if (in->dyn || !gpu_aligned(w->k, in, v, lanes)) return false;
        any |= affine_coef(in->idx, v) != 0;
    }
    return any;
}

/* ---- the shape ---- */

/* The innermost loops of the contraction that a copy of about `steps` steps holds whole, and how much of the next one. */
k_block tiler_block(const tiler *w, int64_t steps) {
    k_block b = { .split = 1, .steps = 1, .powers = true };
    while (b.whole < w->n_loops) {
        int64_t n = tiler_extent(w, tiler_at(w, w->loops + w->n_loops - 1 - b.whole)->var);
        if (b.steps * n > steps) {
            b.split = 1;
            while (b.split * 2 * b.steps <= steps) b.split *= 2;
            b.tail = n % b.split != 0;
            b.trips = (n + b.split - 1) / b.split;
            break;
        }
        b.powers = b.powers && gpu_is_power(n);
        b.steps *= n;
        b.whole++;
    }
    b.steps *= b.split;
    if (b.split == 1) { /* the innermost loop around is that of a variable */
        b.tail = false;
        int around = w->loops + w->n_loops - 1 - b.whole;
        b.trips = b.whole < w->n_loops ? tiler_extent(w, tiler_at(w, around)->var) : 1;
    }
    return b;
}

tile_problem tiler_problem(const tile_shape *s) {
    int64_t rows[2] = { (int64_t)s->t[0] * s->n[0], (int64_t)s->t[1] * s->n[1] }, threads = (int64_t)s->n[0] * s->n[1] * s->z;
    int64_t most = s->b.steps * (rows[0] > rows[1] ? rows[0] : rows[1]) / threads;
    if (s->t[0] * s->t[1] > MAX_TILE) return TILE_SUMS;
    if (s->b.steps % s->z || (s->z > 1 && s->b.steps / s->z < 2)) return TILE_SPLIT;
    return s->b.powers && most > MAX_CHUNKS ? TILE_COPIES : TILE_FITS;
}

static bool can_share(const tile_shape *s, str *why) {
    switch (tiler_problem(s)) {
    case TILE_FITS:
        return true;
    case TILE_SUMS:
        return step_refuse(why, "%d x %d sums of a thread; the limit is %d", s->t[0], s->t[1], MAX_TILE);
    case TILE_SPLIT:
        return step_refuse(why, "%d threads do not share out a K block of %lld", s->z, (long long)s->b.steps);
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
    for (int x = 0; x < 2; x++) needed[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
    mark_needed(w, tiler_at(w, w->upd)->a, needed[0]);
    mark_needed(w, tiler_at(w, w->upd)->b, needed[1]);
    if (needed[0][w->acc] || needed[1][w->acc]) return step_refuse(why, "an operand depends on the sum");
    for (int i = 1; i <= w->n_outer + w->n_loops; i++)
        if (tiler_at(w, i <= w->n_outer ? i : w->loops + i - w->n_outer - 1)->hi < 1)
            return step_refuse(why, "a loop is empty");
    return true;
}

/* How the operands are copied and read: in vectors where they lie so. */
static void find_access(tiler *w) {
    int most = 16 / (int)dtype_size((tn_dtype)tiler_at(w, w->acc)->dtype);
    for (int x = 0; x < 2; x++) {
        tile_operand *s = &w->side[x];
        int64_t rows = (int64_t)w->s.t[x] * w->s.n[x];
        s->lanes = w->s.t[x] < most ? w->s.t[x] : most;
        s->pitch = rows + most;
        s->tail = tiler_extent(w, s->row) % rows != 0;
        if (!w->s.b.powers) continue;
        kvar inner = tiler_at(w, w->loops + w->n_loops - 1)->var;
        int64_t in_block = w->s.b.whole ? tiler_extent(w, inner) : w->s.b.split;
        if (rows % most == 0 && is_wide(w, s, s->row, most))
            s->wide = most, s->along = s->row;
        else if (in_block % most == 0 && is_wide(w, s, inner, most))
            s->wide = most, s->along = inner;
    }
}

/* The operand that goes with loop v, which the other one does not depend on. */
static bool take_operand(tiler *w, int x, kvar v, bool *const needed[2], str *why) {
    bool a = tiler_uses(w, needed[0], v), b = tiler_uses(w, needed[1], v), outer = false;
    for (int i = 1; i <= w->n_outer; i++) outer |= tiler_at(w, i)->var == v;
    const char *name = w->k->vars.at[v].name;
    if (!outer || a == b) return step_refuse(why, "%s is not a row that one operand of the contraction depends on", name);
    w->side[x].row = v, w->side[x].needed = needed[b];
    w->side[x].operand = (int)(b ? tiler_at(w, w->upd)->b : tiler_at(w, w->upd)->a);
    return true;
}

static bool take_shape(tiler *w, const loop_step *s, str *why) {
    tile_shape *x = &w->s;
    int64_t z = step_option(s, "split_k", 1), steps = s->arg[4].n, n[2] = { s->arg[1].n, s->arg[3].n };
    for (int i = 0; i < 2; i++) {
        int unroll = w->k->vars.at[w->side[i].row].role.unroll;
        if (n[i] > MOST_THREADS_ALONG || !gpu_is_power(n[i]))
            return step_refuse(why, "%lld threads: expected a power of two", (long long)n[i]);
        if (!gpu_is_power(unroll) || unroll > MAX_SIDE)
            return step_refuse(why, "%s is unrolled by %d: expected a power of two up to %d",
                               w->k->vars.at[w->side[i].row].name, unroll, MAX_SIDE);
        x->n[i] = (int)n[i], x->t[i] = unroll;
    }
    if (z > GPU_MOST_THREADS || !gpu_is_power(z) || steps < 1 || steps > GPU_MOST_THREADS || !gpu_is_power(steps))
        return step_refuse(why, "a K block of %lld, split-K of %lld: expected powers of two", (long long)steps, (long long)z);
    x->z = (int)z, x->b = tiler_block(w, steps), x->doubled = step_flag(s, "double_buffer");
    if (x->doubled && !tiler_can_double(x)) return step_refuse(why, "there is one K block, or its size is no power of two");
    return can_share(x, why);
}

/* Rows are unrolled, and nothing else is. */
static bool can_unroll(const kernel *k, kvar m, kvar n, str *why) {
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].role.lanes > 1 || (v != m && v != n && k->vars.at[v].role.unroll > 1))
            return step_refuse(why, "loop %s is vectorized or unrolled, which this step does not write", k->vars.at[v].name);
    return true;
}

bool step_block_tile(kernel **kk, const loop_step *s, str *why) {
    kernel *k = gpu_compacted(*kk), plain = *k;
    kvar m = step_loop(k, s, 0, why), n = m < 0 ? -1 : step_loop(k, s, 2, why);
    bool *needed[2];
    tiler w;
    if (m < 0 || n < 0 || !can_unroll(k, m, n, why)) return false;
    if (!tiler_find(&w, k, needed, why) || !take_operand(&w, 0, m, needed, why) || !take_operand(&w, 1, n, needed, why))
        return false;
    if (w.side[0].needed == w.side[1].needed)
        return step_refuse(why, "%s and %s are of the same operand", k->vars.at[m].name, k->vars.at[n].name);
    if (!take_shape(&w, s, why)) return false;
    int threads = w.s.n[0] * w.s.n[1] * w.s.z;
    plain.vars.at = arena_copy(k->a, k->vars.at, sizeof *k->vars.at * (size_t)k->vars.n), plain.vars.cap = plain.vars.n;
    plain.vars.at[m].role.unroll = plain.vars.at[n].role.unroll = 1; /* written out here */
    if (!gpu_can_bind(&plain, -1, threads, why)) return false;
    w.k = &plain;
    find_access(&w);
    *kk = tiler_write(&w);
    return true;
}
