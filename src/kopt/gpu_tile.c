/* gpu_tile.c - a contraction in tiles: a group copies a part of both operands to its fast memory, each thread multiplies out a
 * small tile of the result in registers.
 *
 * In: a scalar kernel that is one contraction with what is computed before and behind it. Out: a new kernel, or NULL when the
 * kernel is of another kind or the tiles would not pay. Sizes need not divide: loads and stores are masked, and what lies
 * behind the end of the contraction counts as zero.
 *
 * This file finds the parts of the kernel and chooses the shape of the tiles; gpu_tile_write.c writes them. */
#include "loop/gpu_copy.h"
#include "kopt/gpu_tile.h"

#include <math.h>

/* ---- what kind of kernel it is ---- */

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

static bool side_uses(const tiler *w, const bool *needed, kvar v) {
    for (int i = 1; i < w->k->ins.n; i++)
        if (needed[i] && gpu_uses(tiler_at(w, i), v)) return true;
    return false;
}

static bool stored_along(const tiler *w, kvar v) {
    for (int i = w->end; i < w->k->ins.n; i++)
        if (tiler_at(w, i)->op == K_STORE && affine_coef(tiler_at(w, i)->idx, v) == 1) return true;
    return false;
}

/* The row variables to tile: one that only operand a depends on and one for b; threads that are neighbours store along n. */
static bool choose_variables(tiler *w, bool *const needed[2]) {
    double best[2] = { 0, 0 };
    kvar v[2] = { -1, -1 };
    for (int i = 1; i <= w->n_outer; i++) {
        kvar u = tiler_at(w, i)->var;
        bool a = side_uses(w, needed[0], u), b = side_uses(w, needed[1], u);
        double score = (double)(tiler_extent(w, u) < 128 ? tiler_extent(w, u) : 128) * (stored_along(w, u) ? 2 : 1);
        if (a != b && score > best[b]) best[b] = score, v[b] = u;
    }
    if (v[0] < 0 || v[1] < 0) return false;
    bool swapped = stored_along(w, v[0]);
    for (int x = 0; x < 2; x++) {
        side *s = &w->side[x];
        s->row = v[x ^ (int)swapped], s->needed = needed[x ^ (int)swapped];
        s->operand = (int)((x ^ (int)swapped) ? tiler_at(w, w->upd)->b : tiler_at(w, w->upd)->a);
    }
    return true;
}

/* ---- how wide its operands can be read ---- */

/* Whether the operand can be loaded with `lanes` lanes along v: loads that move with v do so by one, in aligned pieces. */
static bool is_wide(const tiler *w, const side *s, kvar v, int lanes) {
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

static bool is_power(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* The innermost loops of the contraction that a copy of about `steps` steps holds whole, and how much of the next one. */
static block block_of(const tiler *w, int64_t steps) {
    block b = { .split = 1, .steps = 1, .powers = true };
    while (b.whole < w->n_loops) {
        int64_t n = tiler_extent(w, tiler_at(w, w->loops + w->n_loops - 1 - b.whole)->var);
        if (b.steps * n > steps) {
            b.split = 1;
            while (b.split * 2 * b.steps <= steps) b.split *= 2;
            b.tail = n % b.split != 0;
            b.trips = (n + b.split - 1) / b.split;
            break;
        }
        b.powers = b.powers && is_power(n);
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

/* Cycles of a processor that holds several groups at once, times how often it is filled, in units of 6: about an instruction of
 * a thread where all are busy. A step of the contraction is bound by what the arithmetic, the fast memory or a single thread
 * can do. */
static double cost_of(const tiler *w, const shape *s, double size) {
    double others = 1, all = 1, bm = s->t[0] * s->n[0], bn = s->t[1] * s->n[1], threads = s->n[0] * s->n[1] * s->z;
    for (int i = 0; i < w->n_loops; i++) all *= (double)tiler_extent(w, tiler_at(w, w->loops + i)->var);
    for (int i = 1; i <= w->n_outer; i++) {
        kvar v = tiler_at(w, i)->var;
        if (v != w->side[0].row && v != w->side[1].row) others *= (double)tiler_extent(w, v);
    }
    double groups =
               others * ceil((double)tiler_extent(w, w->side[0].row) / bm) * ceil((double)tiler_extent(w, w->side[1].row) / bn),
           warps = ceil(threads / 32), tile = s->t[0] * s->t[1], steps = (double)s->b.steps / s->z,
           loads = ceil(s->t[0] * size / 16) + ceil(s->t[1] * size / 16),
           bytes = fmax(bm * size, 32) + fmax(bn * size, 32), /* sectors of memory */
        cores = (double)w->t->grid / 1024 < 1 ? 1 : floor((double)w->t->grid / 1024);
    double room = fmin(65536 / ((tile * size / 4 + 64) * threads), fmin(2048 / threads, 32));
    room = fmax(1, floor(fmin(room, 4 * (double)w->t->group_bytes / (double)s->bytes)));
    double at_once = fmin(room, ceil(groups / cores)), busy = at_once * warps, fill = ceil(groups / (cores * room));
    double vectors = ceil((double)s->b.steps * bytes / (threads * 16)),
           registers = (tile * size / 4 + (s->doubled ? 4 * vectors : 0) + (s->t[0] + s->t[1]) * size / 2),
           full = registers > (tile * size / 4 > 80 ? 200 : 120) ? 1.06 : 1;
    double step = fmax(busy * (tile * size / 16 + 1.2 * loads + 1.5), tile * size / 4 * 1.1 + 6 * loads) * full,
           work = steps * step * (steps > 16 ? 1.08 : 1), from_memory = at_once * (double)s->b.steps * bytes / 24,
           copies = 0.3 * from_memory + busy * 4 * vectors;
    if (!s->b.powers) copies *= 4;
    double wait = fmax(0, 700 - (s->doubled ? work : 0)),
           each = fmax(work, from_memory) + copies + (at_once < 2 ? 350 : 250) + wait / at_once;
    if (s->z > 1 && groups >= 2 * cores) return INFINITY; /* for results that are too few for all processors */
    double behind = at_once * bm * bn * size / 32 + (s->z > 1 ? 300 + at_once * bm * bn * size * s->z / 64 : 0);
    return (fill * (ceil(all / (double)s->b.steps) * each + behind) + 1200) / 6 + recipe_start_cost(groups, w->t);
}

static bool complete_shape(const tiler *w, shape *s, int64_t size) {
    int64_t rows[2] = { (int64_t)s->t[0] * s->n[0], (int64_t)s->t[1] * s->n[1] };
    for (int x = 0; x < 2; x++)
        if (rows[x] > 8 && rows[x] >= 2 * tiler_extent(w, w->side[x].row)) return false;
    if (s->b.steps % s->z || (s->z > 1 && s->b.steps / s->z < 2)) return false;
    s->doubled = s->b.powers && s->b.trips > 1;
    s->bytes = (s->doubled ? 2 : 1) * s->b.steps * (rows[0] + rows[1] + 2 * (16 / size)) * size;
    if (s->z > 1) s->bytes += s->z * rows[0] * rows[1] * size;
    if (s->bytes > w->t->group_bytes) return false;
    int64_t most = s->b.steps * (rows[0] > rows[1] ? rows[0] : rows[1]) / (s->n[0] * s->n[1] * s->z);
    return !s->b.powers || most <= MAX_CHUNKS;
}

static int64_t size_of(const tiler *w) { return (int64_t)dtype_size((tn_dtype)tiler_at(w, w->acc)->dtype); }

static bool is_possible(const tiler *w, shape *s) {
    int threads = s->n[0] * s->n[1] * s->z, least = w->t->group < 64 ? w->t->group : 64;
    return s->t[0] * s->t[1] <= MAX_TILE && threads >= least && threads <= w->t->group && complete_shape(w, s, size_of(w));
}

/* Every shape that goes, with its cost. */
static void each_shape(tiler *w, void (*see)(tiler *w, const shape *s, void *ud), void *ud) {
    for (int64_t steps = 8; steps <= 256; steps *= 2) {
        block b = block_of(w, steps);
        for (int tile = 0; tile < 25; tile++)
            for (int place = 0; place < 6 * 6 * 5; place++) {
                shape s = { .t = { 1 << tile % 5, 1 << tile / 5 }, .b = b };
                s.n[0] = 1 << place % 6, s.n[1] = 1 << place / 6 % 6, s.z = 1 << place / 36;
                if (!is_possible(w, &s)) continue;
                s.cost = cost_of(w, &s, (double)size_of(w));
                see(w, &s, ud);
            }
    }
}

/* Of equals the last one, which has more columns: rows of memory are wider. But no more than 8 of a thread: on an H200 16 rows
 * of 8 columns were 5 % faster than 8 of 16, for the registers of products lie better in their banks. */
static void keep_cheapest(tiler *w, const shape *s, void *ud) {
    (void)ud;
    if (s->cost < w->s.cost || (s->cost == w->s.cost && s->t[1] <= 8)) w->s = *s;
}

/* The shape that was asked for, when it goes; the order of a sum depends on how many threads share it, and on the steps that
 * they do between them: these are the model's. The cost stays the model's, too, so that no other form of kernel is taken. */
static void heed(tiler *w) {
    const gpu_tile *c = w->t->tile;
    if (!c || !is_power(c->rows) || !is_power(c->columns) || !is_power(c->down) || !is_power(c->across) ||
        !is_power(c->steps) || c->rows > MAX_SIDE || c->columns > MAX_SIDE)
        return;
    shape s = {
        .t = { c->rows, c->columns }, .n = { c->down, c->across }, .z = w->s.z, .b = block_of(w, c->steps), .cost = w->s.cost
    };
    if ((s.z == 1 || s.b.steps == w->s.b.steps) && is_possible(w, &s)) w->s = s;
}

static bool begin(tiler *w, bool *needed[2]) {
    const kernel *k = w->k;
    if (w->n_outer < 2 || k->vars.n > 36 || !find_parts(w)) return false;
    for (int x = 0; x < 2; x++) needed[x] = ARENA_ARRAY(k->a, bool, k->ins.n);
    mark_needed(w, tiler_at(w, w->upd)->a, needed[0]);
    mark_needed(w, tiler_at(w, w->upd)->b, needed[1]);
    if (needed[0][w->acc] || needed[1][w->acc] || !choose_variables(w, needed)) return false;
    for (int i = 1; i <= w->n_outer + w->n_loops; i++)
        if (tiler_at(w, i <= w->n_outer ? i : w->loops + i - w->n_outer - 1)->hi < 1) return false;
    w->s.cost = INFINITY;
    each_shape(w, keep_cheapest, NULL);
    return true;
}

/* The cheapest shapes, one for each tile of a thread and number of steps, in order of their cost. */
typedef struct shapes {
    shape *at;
    int n, cap;
} shapes;

static void keep_several(tiler *w, const shape *s, void *ud) {
    shapes *all = ud;
    int at = 0, old = 0;
    if (s->z != w->s.z || (s->z > 1 && s->b.steps != w->s.b.steps)) return;
    while (old < all->n && (all->at[old].t[0] != s->t[0] || all->at[old].t[1] != s->t[1] || all->at[old].b.steps != s->b.steps))
        old++;
    while (at < all->n && all->at[at].cost <= s->cost) at++;
    if (at > old || at == all->cap) return;
    if (old == all->n) all->n += all->n < all->cap;
    for (int i = old < all->cap ? old : all->cap - 1; i > at; i--) all->at[i] = all->at[i - 1];
    all->at[at] = *s;
}

const char *kopt_gpu_tile_text(gpu_tile x, arena *a) {
    return arena_printf(a, "gpu_tile %d %d %d %d %d", x.rows, x.columns, x.down, x.across, x.steps);
}

bool kopt_gpu_tile_read(const char *text, gpu_tile *out) {
    static const int most[5] = { UINT8_MAX, UINT8_MAX, UINT8_MAX, UINT8_MAX, UINT16_MAX };
    int v[5];
    if (strncmp(text, "gpu_tile", 8) != 0) return false;
    text += 8;
    for (int i = 0; i < 5; i++) {
        if (*text++ != ' ' || *text < '0' || *text > '9') return false;
        for (v[i] = 0; *text >= '0' && *text <= '9' && v[i] <= most[i]; text++) v[i] = 10 * v[i] + *text - '0';
        if (v[i] > most[i]) return false;
    }
    *out = (gpu_tile){ (uint8_t)v[0], (uint8_t)v[1], (uint8_t)v[2], (uint8_t)v[3], (uint16_t)v[4] };
    return *text == 0;
}

int kopt_gpu_tiles(const kernel *k, int n_outer, const target *t, gpu_tile *out, int cap) {
    tiler w = { .k = k, .t = t, .n_outer = n_outer };
    bool *needed[2];
    if (!begin(&w, needed)) return 0;
    shapes all = { .at = ARENA_ARRAY(k->a, shape, cap + 1), .cap = cap };
    each_shape(&w, keep_several, &all);
    for (int i = 0; i < all.n; i++) {
        const shape *s = &all.at[i];
        int64_t steps = 8;
        while (block_of(&w, steps).steps != s->b.steps) steps *= 2;
        out[i] = (gpu_tile){ (uint8_t)s->t[0], (uint8_t)s->t[1], (uint8_t)s->n[0], (uint8_t)s->n[1], (uint16_t)steps };
    }
    return all.n;
}

kernel *kopt_gpu_tile(const kernel *k, int n_outer, const target *t, double *out_cost) {
    tiler w = { .k = k, .t = t, .n_outer = n_outer };
    bool *needed[2];
    if (!begin(&w, needed)) return NULL;
    if (!(w.s.cost < *out_cost)) return NULL;
    *out_cost = w.s.cost;
    heed(&w);
    int most = 16 / (int)size_of(&w);
    for (int x = 0; x < 2; x++) {
        side *s = &w.side[x];
        int64_t rows = (int64_t)w.s.t[x] * w.s.n[x];
        s->lanes = w.s.t[x] < most ? w.s.t[x] : most;
        s->pitch = rows + most;
        s->tail = tiler_extent(&w, s->row) % rows != 0;
        if (!w.s.b.powers) continue;
        kvar inner = tiler_at(&w, w.loops + w.n_loops - 1)->var;
        int64_t in_block = w.s.b.whole ? tiler_extent(&w, inner) : w.s.b.split;
        if (rows % most == 0 && is_wide(&w, s, s->row, most))
            s->wide = most, s->along = s->row;
        else if (in_block % most == 0 && is_wide(&w, s, inner, most))
            s->wide = most, s->along = inner;
    }
    return tiler_write(&w);
}
