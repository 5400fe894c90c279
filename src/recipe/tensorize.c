/* tensorize.c - which tile of a contraction a thread block has whose products matrix units make, and how many K blocks it has
 * in shared memory. In: scalar form. Only where the machine has such units and the device's language says what they do.
 *
 * The order of sums is the same for all tiles. */
#include "loop/block_tile.h"
#include "machine/parts.h"
#include "recipe/recipe.h"

#include <math.h>

typedef struct tensor_shape {
    int64_t rows[2];
    int stages;    /* 1: the loop is not pipelined */
    int64_t group; /* tiles of rows that are neighbours in the grid */
    int staged;
    bool bulk; /* K blocks are copied in boxes */
    double cost;
} tensor_shape;

enum { MOST_FORMS = 2 * 3, MOST_SHAPES = 3 * 2 * MOST_FORMS, MOST_GROUP = 8, TURN = 350 /* cycles */ };

typedef struct tensor_work {
    double blocks; /* of K */
    double behind; /* cycles of a multiprocessor for what is computed with a result, and for what that moves besides it */
    bool boxed;    /* results can leave in boxes, and nothing as large is read behind the sums */
    int results;   /* that leave */
} tensor_work;

static double shared_bytes(const tensor_shape *s) { /* results are staged where K blocks lay */
    return (double)(s->stages * (s->rows[0] + s->rows[1]) * 2 * KERNEL_MATRIX);
}

/* How often tiles read an element of the operands. */
static double read_again(const tiler *w, const tensor_shape *s) {
    double rows = (double)tiler_extent(w, w->side[0].row), columns = (double)tiler_extent(w, w->side[1].row);
    double read = fmin(rows, (double)s->rows[0]) + fmin(columns, (double)s->rows[1]);
    return recipe_tile_blocks(w, (double)s->rows[0], (double)s->rows[1]) * read / (rows + columns);
}

/* Instructions of a thread, as recipe_block_tile counts them. On an H200 a K block takes 1.6 times as long as the units alone
 * need for it, but 38 bytes a cycle come from the second-level cache where all multiprocessors copy; a tenth more where one has
 * a thread block that waits for itself and only one K block under way. From the end of a tile to the products of the next one
 * are 3500 cycles and one for 20 results: two blocks on a multiprocessor share them. (8192 x 768 x 3072: 128 x 256 in 79 us,
 * 128 x 128 81; dW of it 98 by two blocks of 128 x 128, 144 by 128 x 64.)
 *
 * A thread block does not go through a K block in less than TURN, nor faster than copies come of so many under way, and those
 * of what others read, too, come sooner: 128 x 4096 x 4096 by 64 x 128 has 18.9 us with 4 stages, 14.8 with 6; 16 x 4096 x
 * 11008 47.7, 40.3; 768 x 768 x 8192, whose operands nine read, 26.6, 27.0.
 *
 * What is computed with results takes its own time where a block is alone; of two, one multiplies meanwhile. (32768 x 768 x
 * 3072 with GELU's derivative, of two more operands: 461 us by 128 x 256, 397 by 128 x 128; with a bias alone 305 and 302.) */
static double cost_of(const tiler *w, const tensor_shape *s, const tensor_work *work, const target *t) {
    static const double written[] = { [NOT_STAGED] = 1.0 / 6, [STAGED_IN_ORDER] = 0.05, [STAGED_IN_BOXES] = 0.03 };
    const machine *m = machine_row_of(t);
    double rows = (double)s->rows[0], columns = (double)s->rows[1], bytes = (rows + columns) * 2 * KERNEL_MATRIX,
           threads = 2 * rows, cores = floor(machine_units(t)), grid_blocks = recipe_tile_blocks(w, rows, columns);
    double room =
        fmin(floor((double)m->shared_bytes / shared_bytes(s)), floor((double)m->registers / (threads * (columns / 2 + 64))));
    room = fmax(1, room);
    double at_once = fmin(room, ceil(grid_blocks / cores)), fill = ceil(grid_blocks / (cores * room)),
           busy = fmin(1, grid_blocks / cores), fetch = part_fetch(m) * m->ghz,
           step = at_once * fmax(1.6 * rows * columns * 2 * KERNEL_MATRIX / m->matrix_f16, bytes * busy / 38);
    if (at_once < 2 && s->stages < 4) step *= 1.1;
    if (s->stages > 1) step = fmax(step, fmax(TURN, fetch * fmin(2.2, 1.2 + 3 / read_again(w, s)) / (s->stages - 1)));
    double latency = fetch * (s->stages == 1 ? work->blocks : 1);
    double behind = work->behind * (at_once < 2 ? 0.6 : 0.45), next = 2800;
    double tile = work->blocks * step + latency + at_once * rows * columns * (behind + written[s->staged]);
    return (fill * (tile + next) - next + 1200) / 6 + recipe_start_cost(grid_blocks, t);
}

/* Tiles that are multiplied at a time read some rows of A and some columns of B: of as many tiles a group of several rows reads
 * less than a row of the grid does, where its columns fill the machine. Where all operands stay in the second-level cache, any
 * order will do. */
static int64_t group_of(const tiler *w, const tensor_shape *s, const target *t) {
    int64_t tiles[2], best = 1;
    double units = machine_units(t), least = INFINITY, elements = 0;
    for (int x = 0; x < 2; x++) {
        tiles[x] = (tiler_extent(w, w->side[x].row) + s->rows[x] - 1) / s->rows[x];
        elements += (double)(tiles[x] * s->rows[x]);
    }
    if (elements * recipe_tile_depth(w) * 2 < (double)machine_row_of(t)->level[LEVEL_L2].bytes / 2) return 1;
    for (int64_t group = 1; group <= MOST_GROUP && tiles[0] % group == 0; group *= 2) {
        double columns = fmin((double)tiles[1], units / (double)group), rows = fmax((double)group, units / columns),
               read = rows * (double)s->rows[0] + columns * (double)s->rows[1];
        if (read < 0.9 * least) least = read, best = group;
    }
    return best;
}

/* All shapes, the cheapest first. */
static int list(const tiler *w, const tensor_work *work, bool bulk, const target *t, tensor_shape *out) {
    int n = 0;
    for (int64_t rows = KERNEL_MATRIX; 2 * rows <= t->block_threads && rows <= 128; rows *= 2)
        for (int64_t columns = KERNEL_MATRIX; columns <= 256; columns *= 2)
            for (int form = 0; form < (work->blocks > 1 ? MOST_FORMS : 2); form++) {
                static const int stages[] = { 3, 4, 6 };
                tensor_shape s = { .rows = { rows, columns },
                                   .stages = work->blocks > 1 ? stages[form / 2] : 1,
                                   .staged = form % 2 == 0         ? NOT_STAGED
                                             : bulk && work->boxed ? STAGED_IN_BOXES
                                                                   : STAGED_IN_ORDER,
                                   .bulk = bulk };
                int at = n;
                if (shared_bytes(&s) > (double)target_shared_most(t) || (s.stages > 4 && s.stages > work->blocks)) continue;
                s.cost = cost_of(w, &s, work, t), s.group = group_of(w, &s, t);
                for (n++; at > 0 && out[at - 1].cost > s.cost; at--) out[at] = out[at - 1];
                out[at] = s;
            }
    return n;
}

/* The steps, where the kernel takes them. */
static const char *steps_of(const tiler *w, const tensor_shape *s, const kernel *k) {
    static const char *const staged[] = { "", " staged", " boxed" };
    const char *names[2], *group = s->group > 1 ? arena_printf(k->a, " group=%lld", (long long)s->group) : "",
                          *depth = k->vars.at[tiler_at(w, w->loops + w->n_loops - 1)->var].name;
    for (int x = 0; x < 2; x++) names[x] = k->vars.at[w->side[x].row].name;
    const char *text =
        arena_printf(k->a, "tensorize %s %lld %s %lld%s%s; pack_shared %s %d%s; tile", names[0], (long long)s->rows[0],
                     names[1], (long long)s->rows[1], staged[s->staged], group, depth, KERNEL_MATRIX, s->bulk ? " bulk" : "");
    return s->stages > 1 ? arena_printf(k->a, "%s; pipeline %d", text, s->stages) : text;
}

static bool takes(const kernel *k, const char *steps) {
    str why;
    str_init(&why, k->a);
    schedule s = schedule_parse_steps(k->a, steps, strlen(steps), "recipe");
    kernel *tried = kernel_clone(k, k->a);
    return schedule_try(&tried, &s, &why);
}

/* Cycles of a multiprocessor, of whose lanes each does an operation a cycle, and whose part of memory's bytes comes meanwhile.
 */
static double work_behind(const tiler *w, const target *t) {
    const machine *m = machine_row_of(t);
    double operations = 0, bytes = 0;
    int stores = 0;
    for (int i = w->end + 1; i < w->k->ins.n; i++) {
        const kins *in = tiler_at(w, i);
        bool whole = in->op == K_LOAD || in->op == K_STORE;
        for (int x = 0; x < 2 && whole; x++) whole = affine_coef(in->idx, w->side[x].row) != 0; /* not a row, or a column */
        operations += in->op == K_ALU || in->op == K_CAST || in->op == K_WRAP;
        if (whole && (in->op == K_LOAD || stores++)) bytes += (double)dtype_size((tn_dtype)w->k->bufs.at[in->buf].dtype);
    }
    return operations / m->fma_pipes + bytes * machine_units(t) * m->ghz / machine_rate(m, LEVEL_MEMORY, false);
}

/* One or two results of 16 bits for each sum, and what is read with them is of a row, or of a column: fragments of it lie
 * apart.
 */
static bool can_leave_in_boxes(const tiler *w, int *results) {
    int stores = 0;
    for (int i = w->end + 1; i < w->k->ins.n; i++) {
        const kins *in = tiler_at(w, i);
        bool whole = in->op == K_LOAD && affine_coef(in->idx, w->side[0].row) && affine_coef(in->idx, w->side[1].row);
        stores += in->op == K_STORE;
        if (whole || in->dyn || (in->op == K_STORE && (dtype_size((tn_dtype)in->dtype) != 2 || in->n_mask))) return false;
    }
    *results = stores;
    return stores == 1 || stores == 2;
}

/* Both operands come from memory in 16 bits; and K blocks. */
static bool find(tiler *w, const kernel *k, const target *t, tensor_work *out) {
    bool *needed[2];
    str why;
    str_init(&why, k->a);
    if (!tiler_find(w, k, needed, &why) || !recipe_tile_rows(w, needed)) return false;
    for (int x = 0; x < 2; x++) {
        uint8_t dtype = tiler_at(w, w->side[x].operand)->src;
        if (tiler_at(w, w->side[x].operand)->op != K_LOAD || (dtype != TN_BF16 && dtype != TN_F16)) return false;
    }
    *out = (tensor_work){ .blocks = ceil(recipe_tile_depth(w) / KERNEL_MATRIX), .behind = work_behind(w, t) };
    out->boxed = can_leave_in_boxes(w, &out->results);
    return true;
}

/* A tile that has a multiprocessor to itself: the first K blocks of the next one come while its results are written. (8192 x
 * 768 x 3072: 72 to 66 us; with 128 x 128 no gain.) */
static bool wants_turns(const tensor_shape *s) { return s->rows[0] == 128 && s->rows[1] == 256 && s->staged; }

/* Two boxes of each result beside the stages, where there is room. (32768 x 2304 x 768: 188 to 183 us, x 768 x 768: 69 to 66,
 * x 50304 x 768: 4070 to 3985.) */
static bool has_room_apart(const tensor_shape *s, const tensor_work *work, const target *t) {
    int64_t boxes = 2 * work->results * s->rows[0] * KERNEL_MATRIX * 2;
    return s->staged == STAGED_IN_BOXES && shared_bytes(s) + (double)boxes <= (double)target_shared_most(t);
}

bool recipe_tensorize(const kernel *k, const target *t, recipe_form *best) {
    tiler w;
    tensor_work work;
    tensor_shape all[MOST_SHAPES];
    if (!t->matrix_units || machine_row_of(t)->matrix_f16 <= 0 || !find(&w, k, t, &work)) return false;
    const char *steps;
    for (int boxed = work.boxed; t->bulk && boxed >= 0; boxed--) {
        work.boxed = boxed;
        if (!list(&w, &work, true, t, all) || all[0].cost >= best->cost || !takes(k, steps = steps_of(&w, &all[0], k)))
            continue;
        const char *turns = arena_printf(k->a, "%s; take_turns %d%s", steps, (int)machine_units(t),
                                         has_room_apart(&all[0], &work, t) ? " apart" : "");
        *best = (recipe_form){ all[0].cost, wants_turns(&all[0]) && takes(k, turns) ? turns : steps };
        return true;
    }
    int n = list(&w, &work, false, t, all);
    for (int i = 0; i < n && all[i].cost < best->cost; i++) {
        if (!takes(k, steps = steps_of(&w, &all[i], k)))
            all[i].stages = 1, steps = steps_of(&w, &all[i], k); /* its blocks may be in two loops */
        if (!takes(k, steps)) continue;
        *best = (recipe_form){ all[i].cost, steps };
        return true;
    }
    return false;
}
