/* tensorize.c - a contraction in tiles of thread blocks whose products matrix units make (tensor cores). The step says the
 * tile; tile writes it (thread_tile.c): here are the sums and what reads them.
 *
 * Operands lie in shared memory as they lie in memory, in 16 bits (pack_shared.c), copied without a register. A warpgroup has
 * 64 rows of the tile and all of its columns; each of its threads the fragment of the sums that kernel_fragment says. Units add
 * 16 products at a time to each sum, in order: so bits do not depend on the tile. */
#include "loop/build.h"
#include "loop/block_tile.h"

enum { STAGED_LANES = 8, STAGED_PITCH = KERNEL_MATRIX + 8 /* four rows begin in other banks */ };
enum { MOST_GROUP = 1024, MOST_COLUMNS = 256, MOST_ROWS = 256, MOST_PIECES = 32 /* that a thread copies of a K block */ };

bool step_tensorize(kernel **k, const loop_step *s, str *why) {
    for (int x = 0; x < 4; x += 2) {
        const loop_step half = { .op = s->op, .n = 2, .arg = s->arg + x }; /* loop n */
        kvar v;
        if (!gpu_take_role(*k, &half, false, &v, why)) return false;
    }
    if (!strcmp(s->arg[0].word, s->arg[2].word)) return step_refuse(why, "%s twice: expected two loops", s->arg[0].word);
    for (int x = 0; x < 4; x += 2) (*k)->vars.at[step_loop(*k, s, x, why)].matrix = (int)s->arg[x + 1].n;
    (*k)->vars.at[step_loop(*k, s, 2, why)].staged = step_flag(s, "boxed")    ? STAGED_IN_BOXES
                                                     : step_flag(s, "staged") ? STAGED_IN_ORDER
                                                                              : NOT_STAGED;
    int64_t group = step_option(s, "group", 0);
    if (group < 0 || group > MOST_GROUP) return step_refuse(why, "a group of %lld tiles", (long long)group);
    (*k)->vars.at[step_loop(*k, s, 0, why)].group = (int)group;
    return true;
}

/* ---- what units can do ---- */

/* The K block is KERNEL_MATRIX steps: whole loops where they make that, else a piece of the innermost one, zeros behind its
 * end.
 */
static k_block block_of(const tiler *w) {
    k_block b = tiler_block(w, KERNEL_MATRIX);
    int64_t n = tiler_extent(w, tiler_at(w, w->loops + w->n_loops - 1)->var);
    if (b.powers && b.steps == KERNEL_MATRIX) return b;
    return (k_block){ .split = KERNEL_MATRIX,
                      .steps = KERNEL_MATRIX,
                      .trips = (n + KERNEL_MATRIX - 1) / KERNEL_MATRIX,
                      .tail = n % KERNEL_MATRIX != 0,
                      .powers = true };
}

bool tiler_read_matrix(tiler *w, str *why) {
    int rows[2];
    for (int x = 0; x < 2; x++) {
        const kvar_info *v = &w->k->vars.at[w->side[x].row];
        int most = x ? MOST_COLUMNS : MOST_ROWS;
        rows[x] = v->matrix;
        if (rows[x] < KERNEL_MATRIX || rows[x] > most)
            return step_refuse(why, "%s: a tile of %d; expected %d to %d", v->name, rows[x], KERNEL_MATRIX, most);
        if (v->role.unroll > 1 || v->threads)
            return step_refuse(why, "%s is unrolled or bound, and matrix units multiply it", v->name);
    }
    for (int i = 0; i < w->n_loops; i++)
        if (w->k->vars.at[tiler_at(w, w->loops + i)->var].threads)
            return step_refuse(why, "threads share a sum that matrix units make");
    /* a thread has two rows and a fourth of the columns of them */
    w->s.t[0] = 2, w->s.t[1] = rows[1] / 4, w->s.n[0] = rows[0] / 2, w->s.n[1] = 4;
    w->s.b = block_of(w);
    for (int x = 0; x < 2; x++)
        if (w->k->vars.at[w->side[x].row].group) w->s.group = w->k->vars.at[w->side[x].row].group;
    return true;
}

/* The operand of side x in pieces of 4 to 16 bytes, along the contraction or along the rows. */
static bool find_copy(tiler *w, int x, str *why) {
    tile_operand *s = &w->side[x];
    const kins *in = tiler_at(w, s->operand);
    kvar inner = tiler_at(w, w->loops + w->n_loops - 1)->var;
    int64_t in_block = w->s.b.whole ? tiler_extent(w, inner) : KERNEL_MATRIX;
    const char *name = x ? "B" : "A";
    if (in->op != K_LOAD || in->dyn || in->packed || (in->src != TN_BF16 && in->src != TN_F16) || (in->n_mask && in->imm != 0))
        return step_refuse(why, "operand %s is not read from memory as bf16 or f16", name);
    for (s->vector = 8; s->vector > 1; s->vector /= 2) {
        s->along = inner;
        if (in_block % s->vector == 0 && tiler_is_wide(w, s, inner, s->vector)) return true;
        s->along = s->row;
        if (tiler_is_wide(w, s, s->row, s->vector)) return true;
    }
    s->vector = 0;
    return step_refuse(why, "operand %s does not lie in pieces of 4 bytes", name);
}

/* Results leave in boxes where each is one element of 16 bits of every sum. */
static bool are_boxed(const tiler *w, str *why) {
    bool boxed = w->s.bulk;
    int stores = 0;
    for (int i = w->end + 1; i < w->k->ins.n && boxed; i++) {
        const kins *in = tiler_at(w, i);
        if (in->op == K_STORE) boxed = ++stores <= 2 && dtype_size((tn_dtype)in->dtype) == 2 && !in->dyn && !in->n_mask;
    }
    return boxed ||
           step_refuse(why, "boxed: K blocks do not come in boxes, or results are not one or two of 16 bits for each sum");
}

bool tiler_matrix_access(tiler *w, str *why) {
    if (tiler_at(w, w->acc)->dtype != TN_F32 || tiler_at(w, w->upd)->packed) return step_refuse(why, "the sums are no f32");
    for (int x = 0; x < 2; x++) {
        if (!find_copy(w, x, why)) return false;
        int64_t pieces = tiler_rows(w, x) * KERNEL_MATRIX / w->side[x].vector / (w->s.n[0] * w->s.n[1]);
        if (pieces > MOST_PIECES)
            return step_refuse(why, "a thread copies %lld pieces of operand %s; the limit is %d", (long long)pieces,
                               x ? "B" : "A", MOST_PIECES);
        w->side[x].lanes = !x ? 1 : w->s.staged == STAGED_IN_ORDER ? STAGED_LANES : 2, w->side[x].pitch = KERNEL_MATRIX;
        w->side[x].tail = tiler_extent(w, w->side[x].row) % (tiler_rows(w, x) * (x ? 1 : w->s.group)) != 0;
    }
    if (tiler_at(w, w->side[0].operand)->src != tiler_at(w, w->side[1].operand)->src)
        return step_refuse(why, "one operand is bf16, and the other f16");
    return w->s.staged != STAGED_IN_BOXES || are_boxed(w, why);
}

/* ---- the kernel ---- */

/* Operand x of step q of a block, from row `first` on. */
static reg put_matrix(tile_writer *w, int x, affine first, int q) {
    const tile_operand *s = &w->w->side[x];
    bool by_row = s->along == s->row;
    kins in = { .op = K_MATRIX, .dtype = TN_I64, .buf = (uint16_t)s->buf, .mode = by_row ? MN_MAJOR : K_MAJOR };
    in.idx = affine_offset(affine_scale(w->o->a, first, KERNEL_MATRIX), q * KERNEL_MATRIX_STEPS * (by_row ? KERNEL_MATRIX : 1));
    return kernel_push(w->o, in);
}

void tiler_multiply_matrices(tile_writer *w, reg acc) {
    int warpgroups = w->w->s.n[0] * w->w->s.n[1] / KERNEL_WARPGROUP, bits = 0;
    while (1 << bits < warpgroups) bits++;
    affine first = affine_scale(w->o->a, tiler_number(w, w->thread_bits - bits, bits, 0), KERNEL_MATRIX);
    for (int q = 0; q < KERNEL_MATRIX / KERNEL_MATRIX_STEPS; q++) {
        kins in = { .op = K_MMA, .dtype = TN_F32, .lanes = w->o->ins.at[acc].lanes, .c = acc };
        in.a = put_matrix(w, 0, first, q);
        in.b = put_matrix(w, 1, affine_const(0), q);
        kernel_push(w->o, in);
    }
}

/* Column after column, so that few values of a column are held at a time. */
static void write_results(tile_writer *w, reg acc) {
    const tiler *t = w->w;
    tile_results r = tiler_find_results(t);
    reg *to[2] = { w->c.to, ARENA_ARRAY(w->o->a, reg, t->k->ins.n) };
    for (int j = 0; j < t->s.t[1] / 2; j++)
        for (int h = 0; h < 2; h++) {
            affine row = affine_offset(build_plus(w->o->a, w->tile[0], w->thread[0], 1), 8 * h),
                   column = affine_offset(build_plus(w->o->a, w->tile[1], w->thread[1], 1), 8 * j);
            w->c.to = to[h];
            tiler_write_result(w, &r, row, column, build_lanes(w->o, acc, 4 * j + 2 * h, 2), h == 0, j == 0);
            if (h == 0 && j == 0) memcpy(to[1], to[0], sizeof *to[0] * (size_t)t->k->ins.n);
        }
}

/* Threads side by side have a row, in vectors; the ones behind them the next rows. */
tile_layout tiler_staged_layout(void) {
    tile_layout l = { .n = 0 };
    tiler_add_field(&l, 1, KERNEL_MATRIX / STAGED_LANES, STAGED_LANES);
    tiler_add_field(&l, 0, KERNEL_WARPGROUP * STAGED_LANES / KERNEL_MATRIX, 1);
    return l;
}

/* The thread's first row and column of those; its others are KERNEL_MATRIX / STAGED_TURNS rows apart. */
enum { STAGED_TURNS = KERNEL_MATRIX * KERNEL_MATRIX / STAGED_LANES / KERNEL_WARPGROUP };
static void staged_places(const tile_writer *w, affine *row, affine *column) {
    tile_layout l = tiler_staged_layout();
    *row = affine_scale(w->o->a, tiler_number(w, l.bits, w->thread_bits - l.bits, 0), KERNEL_MATRIX);
    *row = build_plus(w->o->a, *row, tiler_number(w, l.field[1].lo, l.field[1].bits, 0), 1);
    *column = affine_scale(w->o->a, tiler_number(w, 0, l.field[0].bits, 0), STAGED_LANES);
}

/* The same by way of shared memory, where K blocks lay, KERNEL_MATRIX columns at a time: there threads have results in the
 * order of memory. */
static void write_staged(tile_writer *w, reg acc) {
    const tiler *t = w->w;
    tile_results r = tiler_find_results(t);
    reg *to[STAGED_TURNS] = { w->c.to };
    for (int c = 1; c < STAGED_TURNS; c++) to[c] = ARENA_ARRAY(w->o->a, reg, t->k->ins.n);
    int buf = build_buffer(w->o, TN_F32, KB_SHARED, tiler_rows(t, 0) * STAGED_PITCH);
    w->o->bufs.at[buf].late = true;
    affine first, column, fragment = build_plus(w->o->a, w->thread[1], w->thread[0], STAGED_PITCH);
    staged_places(w, &first, &column);
    for (int p = 0; p < tiler_rows(t, 1) / KERNEL_MATRIX; p++) {
        build_barrier(w->o);
        for (int j = 0; j < KERNEL_MATRIX / 8; j++)
            for (int h = 0; h < 2; h++) {
                reg v = build_lanes(w->o, acc, 4 * (j + p * KERNEL_MATRIX / 8) + 2 * h, 2);
                build_store(w->o, buf, affine_offset(fragment, 8 * j + 8 * h * STAGED_PITCH), v);
            }
        build_barrier(w->o);
        for (int c = 0; c < STAGED_TURNS; c++) {
            affine row = affine_offset(first, c * KERNEL_MATRIX / STAGED_TURNS);
            w->c.to = to[c];
            reg v = build_load(w->o, buf, build_plus(w->o->a, column, row, STAGED_PITCH), STAGED_LANES);
            tiler_write_result(w, &r, build_plus(w->o->a, w->tile[0], row, 1),
                               affine_offset(build_plus(w->o->a, w->tile[1], column, 1), p * KERNEL_MATRIX), v, c == 0, p == 0);
            for (int i = 1; i < STAGED_TURNS && p == 0 && c == 0; i++)
                memcpy(to[i], to[0], sizeof *to[0] * (size_t)t->k->ins.n);
        }
    }
}

/* ---- results that leave in boxes ---- */

typedef struct boxed { /* a result: where a thread block has some columns of it, 64 behind the other */
    int store, buf;    /* store: in the scalar kernel */
} boxed;

/* The stores of one vector of sums, written from instruction `from` on, go to shared memory instead. */
static void put_boxed(tile_writer *w, const boxed *all, int from, affine at) {
    for (int n = 0; from < w->o->ins.n; from++) {
        kins *in = &w->o->ins.at[from];
        if (in->op == K_STORE) in->buf = (uint16_t)all[n++].buf, in->idx = at, in->n_mask = 0;
    }
}

/* A thread's pieces of result x, 16 bytes each, of the columns of the tile from `first` on; they begin at element `from`. */
static void send(tile_writer *w, const boxed *x, const tile_results *r, int64_t first, int64_t from) {
    const tiler *t = w->w;
    arena *a = w->o->a;
    affine down, across;
    staged_places(w, &down, &across);
    for (int c = 0; c < STAGED_TURNS; c++) {
        affine row = affine_offset(down, c * KERNEL_MATRIX / STAGED_TURNS), m = build_plus(a, w->tile[0], row, 1),
               n = affine_offset(build_plus(a, w->tile[1], across, 1), first);
        build_places p = { .along = t->side[1].row, .lanes = STAGED_LANES, .varies = r->on[1] };
        build_put(&p, t->side[0].row, m), build_put(&p, t->side[1].row, n);
        if (t->side[0].tail) build_bound(&p, m, tiler_extent(t, t->side[0].row), 0);
        if (t->side[1].tail) build_bound(&p, n, tiler_extent(t, t->side[1].row), 1);
        reg v = build_load(w->o, x->buf, affine_offset(build_plus(a, across, row, KERNEL_MATRIX), from), STAGED_LANES);
        w->o->ins.at[v].mode = LOAD_BULK;
        w->c.to[tiler_at(t, x->store)->a] = v;
        build_copy(&w->c, x->store, &p);
    }
}

/* Fragments go to shared memory as they are, but in 16 bits, and boxes of that to memory: 64 columns at a time, while the ones
 * before them are on the way. */
static void write_boxed(tile_writer *w, reg acc) {
    const tiler *t = w->w;
    tile_results r = tiler_find_results(t);
    reg *to[2] = { w->c.to, ARENA_ARRAY(w->o->a, reg, t->k->ins.n) };
    boxed all[2];
    int n = 0, parts = (int)tiler_rows(t, 1) / KERNEL_MATRIX;
    int64_t part = tiler_rows(t, 0) * KERNEL_MATRIX;
    for (int i = t->end + 1; i < t->k->ins.n; i++) {
        if (tiler_at(t, i)->op != K_STORE) continue;
        all[n] = (boxed){ i, build_buffer(w->o, tiler_at(t, i)->dtype, KB_SHARED, part * (parts > 1 ? 2 : 1)) };
        kbuf *buf = &w->o->bufs.at[all[n++].buf];
        buf->late = buf->swizzled = true;
    }
    affine fragment = build_plus(w->o->a, w->thread[1], w->thread[0], KERNEL_MATRIX),
           row = build_plus(w->o->a, w->tile[0], w->thread[0], 1), column = build_plus(w->o->a, w->tile[1], w->thread[1], 1);
    for (int p = 0; p < parts; p++) {
        build_barrier(w->o);
        for (int j = 0; j < KERNEL_MATRIX / 8; j++)
            for (int h = 0; h < 2; h++) {
                reg v = build_lanes(w->o, acc, 4 * (j + p * KERNEL_MATRIX / 8) + 2 * h, 2);
                w->c.to = to[h];
                int from = w->o->ins.n;
                tiler_write_result(w, &r, affine_offset(row, 8 * h), affine_offset(column, p * KERNEL_MATRIX + 8 * j), v,
                                   h == 0, j + p == 0);
                put_boxed(w, all, from, affine_offset(fragment, p % 2 * part + 8 * h * KERNEL_MATRIX + 8 * j));
                if (h + j + p == 0) memcpy(to[1], to[0], sizeof *to[0] * (size_t)t->k->ins.n);
            }
        build_barrier(w->o);
        for (int x = 0; x < n; x++) send(w, &all[x], &r, p * KERNEL_MATRIX, p % 2 * part);
    }
}

void tiler_write_fragments(tile_writer *w, reg acc) {
    int staged = w->w->s.staged;
    (staged == STAGED_IN_BOXES ? write_boxed : staged ? write_staged : write_results)(w, acc);
}
