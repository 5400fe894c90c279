/* thread_tile.c - writes a contraction in tiles: a thread block has one in shared memory, each of its threads a small one in
 * registers, as unroll_jam says.
 *
 * In: the parts of the scalar kernel and the shape (block_tile.c). Out: a new kernel. Sizes need not divide: loads and stores
 * are masked. */
#include "ir/boxes.h"
#include "loop/build.h"
#include "loop/block_tile.h"

enum { LONG = 16 /* steps whose code is written out */ };

/* ---- the products ---- */

typedef struct parts { /* of one step: what a thread reads of both operands, in vectors */
    reg of[2][MAX_SIDE];
} parts;

static int64_t own_steps(const tiler *t) { return t->s.b.steps / t->s.split_k; } /* of a block */

/* Vector g of what operand x has in a step; `step` counts the thread's own. */
static reg load_vector(tile_writer *w, int x, int g, affine step) {
    const tiler *t = w->w;
    const tile_operand *s = &t->side[x];
    affine at = affine_scale(w->o->a, build_plus(w->o->a, step, w->split_k, own_steps(t)), s->pitch);
    return build_load(w->o, s->buf, affine_add(w->o->a, at, tiler_vector_at(w, x, g)), s->lanes);
}

static void multiply_step(tile_writer *w, const tile_sums *acc, const parts *p) {
    const tiler *t = w->w;
    int vectors = t->s.t[1] / t->side[1].lanes, lanes = t->side[0].lanes;
    for (int i = 0; i < t->s.t[0]; i++) {
        reg row = p->of[0][i / lanes];
        if (lanes > 1) row = build_lane(w->o, row, i % lanes);
        for (int g = 0; g < vectors; g++) { /* there and back: two products in a row share an operand */
            int j = i % 2 ? vectors - 1 - g : g;
            build_update(w->o, OP_dot, row, p->of[1][j], acc->at[i][j]);
        }
    }
}

/* What a thread multiplies of a K block: its steps, one after the other, all of its tile. */
static void write_products(tile_writer *w, const tile_sums *acc) {
    const tiler *t = w->w;
    int64_t steps = own_steps(t);
    kvar k = build_loop(w->o, "k", steps, PAR_SERIAL);
    w->o->vars.at[k].role.unroll = steps <= LONG ? (int)steps : 8;
    parts p;
    for (int x = 0; x < 2; x++)
        for (int g = 0; g < t->s.t[x] / t->side[x].lanes; g++) p.of[x][g] = load_vector(w, x, g, affine_var(w->o->a, k));
    multiply_step(w, acc, &p);
    build_ends(w->o, 1);
}

/* A barrier behind which `what` is complete: matrix units and their copies are asynchronous. */
static void complete(tile_writer *w, kasync what) {
    if (w->w->s.matrix) kernel_push(w->o, (kins){ .op = K_ASYNC, .mode = (uint8_t)what });
    build_barrier(w->o);
}

static void write_blocks(tile_writer *w, const tile_sums *acc) {
    const tiler *t = w->w;
    bool one = t->s.matrix && t->s.b.trips == 1 && t->s.b.whole + 1 < t->n_loops; /* the loop around is that of K blocks then */
    bool loop = t->s.b.whole < t->n_loops && !one;
    affine s = loop ? affine_var(w->o->a, build_loop(w->o, "s", t->s.b.trips, PAR_SERIAL)) : affine_const(0);
    tiler_copy_blocks(w, s);
    complete(w, ASYNC_COPIES);
    if (t->s.matrix)
        tiler_multiply_matrices(w, acc->at[0][0]);
    else
        write_products(w, acc);
    complete(w, ASYNC_PRODUCTS);
    build_ends(w->o, loop);
}

/* ---- all of it ---- */

static void write_results(tile_writer *w, const tile_sums *acc) {
    const tiler *t = w->w;
    tile_results r = tiler_find_results(t);
    int vectors = t->s.t[1] / t->side[1].lanes, lanes = t->side[0].lanes;
    reg *seen[MAX_SIDE]; /* of what depends on n only */
    for (int j = 0; j < vectors; j++) seen[j] = ARENA_ARRAY(w->o->a, reg, t->k->ins.n);
    for (int i = 0; i < t->s.t[0]; i++)
        for (int j = 0; j < vectors; j++) {
            affine row = affine_offset(tiler_vector_at(w, 0, i / lanes), i % lanes);
            r.seen = seen[j];
            tiler_write_result(w, &r, build_plus(w->o->a, w->tile[0], row, 1),
                               build_plus(w->o->a, w->tile[1], tiler_vector_at(w, 1, j), 1), acc->at[i][j], i == 0, j == 0);
        }
}

/* Neighbours have tiles side by side; or of a group of rows one below the other, then the columns beside them. */
static int open_blocks(tile_writer *w) {
    const tiler *t = w->w;
    int n = gpu_open_rows(t->k, w->o, t->n_outer, t->side[0].row, t->side[1].row);
    int64_t group = t->s.group * tiler_rows(t, 0);
    w->tile[0] = gpu_open_pieces(w->o, tiler_extent(t, t->side[0].row), group);
    w->tile[1] = gpu_open_pieces(w->o, tiler_extent(t, t->side[1].row), tiler_rows(t, 1));
    if (t->s.group > 1) w->tile[0] = build_plus(w->o->a, w->tile[0], gpu_open_pieces(w->o, group, tiler_rows(t, 0)), 1), n++;
    return n + 2;
}

static int open_threads(tile_writer *w) {
    const tiler *t = w->w;
    tile_layout l[3];
    int n = 0;
    for (int x = 0; x < 2 && t->s.b.powers; x++) l[n++] = tiler_copy_layout(t, x);
    if (t->s.split_k > 1) l[n++] = tiler_partial_layout(t);
    if (t->s.staged) l[n++] = tiler_staged_layout();
    return tiler_open_threads(w, l, n);
}

/* Vectors of columns, row by row; or one register with the fragment that a matrix unit leaves to the thread. */
static void open_sums(tile_writer *w, tile_sums *acc) {
    const tiler *t = w->w;
    kins in = *tiler_at(t, t->acc);
    in.lanes = (uint8_t)(t->s.matrix ? t->s.t[0] * t->s.t[1] : t->side[1].lanes);
    for (int i = 0; i < (t->s.matrix ? 1 : t->s.t[0]); i++)
        for (int j = 0; j < (t->s.matrix ? 1 : t->s.t[1] / t->side[1].lanes); j++) acc->at[i][j] = kernel_push(w->o, in);
}

static void write_sums(tile_writer *w) {
    const tiler *t = w->w;
    tile_sums acc;
    int around = t->n_loops - t->s.b.whole - 1;
    open_sums(w, &acc);
    if (around < 0) around = 0;
    for (int i = 0; i < around; i++) kernel_push(w->o, *tiler_at(t, t->loops + i));
    write_blocks(w, &acc);
    build_ends(w->o, around);
    if (t->s.matrix)
        tiler_write_fragments(w, acc.at[0][0]);
    else if (t->s.split_k > 1)
        tiler_write_partials(w, &acc);
    else
        write_results(w, &acc);
}

static void write_tiles(tile_writer *w) {
    int opened = open_blocks(w);
    opened += open_threads(w);
    write_sums(w);
    build_ends(w->o, opened);
}

/* Whether what threads copy can be copied in boxes. */
static bool are_boxes(const kernel *o, str *why) {
    str reason;
    kmaps maps;
    int stages;
    str_init(&reason, o->a);
    return kernel_maps(o, &maps, &stages, &reason) || step_refuse(why, "bulk: %s", reason.s);
}

bool gpu_tile_contraction(kernel **k, str *why) {
    tiler t;
    if (!tiler_read(&t, gpu_compacted(*k), why)) return false;
    kernel *o = gpu_kernel(t.k, t.s.n[0] * t.s.n[1] * t.s.split_k);
    for (int x = 0; x < 2; x++) {
        kbuf b = {
            .dtype = tiler_at(&t, t.acc)->dtype, .kind = KB_SHARED, .elems = t.s.b.steps * t.side[x].pitch, .plan_buf = -1
        };
        if (t.s.matrix)
            b.dtype = tiler_at(&t, t.side[x].operand)->src, b.elems = t.s.b.steps * tiler_rows(&t, x), b.swizzled = true;
        t.side[x].buf = kernel_buf(o, b);
    }
    tile_writer w = { .w = &t, .o = o, .c = build_copier_make(t.k, o) };
    write_tiles(&w);
    if (t.s.bulk && !are_boxes(o, why)) return false;
    *k = o;
    return true;
}
