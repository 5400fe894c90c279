/* scatter.c - scatters on GPUs: the thread blocks share out the places, and the adds to each place keep a fixed order.
 *
 * In: scalar form that writes the base, where it is not in place, and then walks the adds (sched's lower_scatter; what is
 * written instead of added is an add here, too). Out: the form of a GPU. Two steps, both
 * without atomic operations, whose result follows from the shape and their numbers alone:
 *
 * - scatter_owned: a block has a range of the places and a block of the columns, and each thread columns of its own. It looks
 * at all indices, a lane each, and goes through those of its range in their order, which is the scalar kernel's.
 * - scatter_private: with few places and columns every thread takes its share of the adds, neighbours side by side, into sums
 * of its own in shared memory. Those are combined halves first. */
#include "loop/build.h"
#include "loop/scatter.h"

enum {
    CHUNKS = 4 /* of indices, one a lane, that are under way together */,
    ADDS = 4 /* the same, when a chunk's are looked at in turn */,
    AHEAD = 32 /* values that a thread has under way */,
    MOST_VARS = 20
};

static const kins *at(const scatter *w, int i) { return &w->k->ins.at[i]; }
static const kins *add(const scatter *w) { return at(w, w->at); }
static const kins *column(const scatter *w, int i) { return at(w, w->adds + 1 + i); }

/* ---- what kind of kernel it is ---- */

/* A perfect nest of loops from i on, none or all of which reduce: how many. */
static int nest(const scatter *w, int i, bool reduce) {
    int n = at(w, i)->op == K_LOOP && w->k->vars.at[at(w, i)->var].reduce == reduce ? gpu_perfect_loops(w->k, i) : 0;
    for (int l = 0; l < n; l++)
        if (at(w, i + l)->lo != 0) return l;
    return n;
}

static bool find_nests(scatter *w, int from, int to) {
    const kernel *k = w->k;
    w->base = from, w->base_loops = nest(w, from, false), w->adds = from;
    if (w->base_loops) w->base_end = kernel_loop_end(k, from), w->adds = w->base_end + 1;
    if (w->adds >= to || nest(w, w->adds, true) != 1) return false;
    w->end = kernel_loop_end(k, w->adds), w->columns = nest(w, w->adds + 1, false);
    w->first = w->adds + 1 + w->columns, w->at = w->end - w->columns - 1;
    if (w->end + 1 != to || add(w)->op != K_SCATTER || add(w)->n_mask) return false;
    for (int i = w->first; i < w->at; i++)
        if (!gpu_is_plain(k, at(w, i)) || at(w, i)->op == K_STORE) return false;
    int stores = !w->base_loops;
    for (int i = from + w->base_loops; i < w->base_end - w->base_loops + 1; i++) {
        const kins *in = at(w, i);
        if (!gpu_is_plain(k, in)) return false;
        stores += in->op == K_STORE;
        if (in->op == K_STORE && (in->buf != add(w)->buf || in->n_mask || i != w->base_end - w->base_loops)) return false;
    }
    return stores == 1;
}

/* What the index is computed from; it is the same for all columns. */
static bool find_index(scatter *w) {
    w->of_index = ARENA_ARRAY(w->k->a, bool, w->k->ins.n);
    w->of_index[add(w)->dyn] = true;
    build_mark_needed(w->k, w->at, w->of_index);
    for (int i = w->first; i < w->at; i++)
        for (int c = 0; c < w->columns && w->of_index[i]; c++)
            if (gpu_uses(at(w, i), column(w, c)->var)) return false;
    return (int)add(w)->dyn >= w->first;
}

/* Which loops of the base's nest are the places and which the columns. */
static bool find_places(scatter *w) {
    w->places = add(w)->dyn_n, w->n_adds = at(w, w->adds)->hi, w->n_columns = 1, w->place_var = -1;
    int64_t elems = 1, spread = (w->places - 1) * add(w)->dyn_stride;
    for (int c = 0; c < w->columns; c++) {
        w->n_columns *= column(w, c)->hi;
        spread += affine_coef(add(w)->idx, column(w, c)->var) * (column(w, c)->hi - 1);
        if (affine_coef(add(w)->idx, column(w, c)->var) < 1) return false;
    }
    for (int i = 0; i < w->base_loops; i++) elems *= at(w, w->base + i)->hi;
    if (!w->base_loops) elems = w->places * w->n_columns;
    if (w->places < 1 || w->n_adds < 1 || w->n_columns < 1 || elems != w->places * w->n_columns || spread != elems - 1)
        return false;
    if (affine_coef(add(w)->idx, at(w, w->adds)->var)) return false;
    if (!w->base_loops) return true;
    const kins *store = at(w, w->base_end - w->base_loops);
    if (store->idx.base != add(w)->idx.base) return false;
    for (int i = 1; i <= w->n_outer; i++)
        if (affine_coef(store->idx, at(w, i)->var) != affine_coef(add(w)->idx, at(w, i)->var)) return false;
    w->flat = w->base_loops == 1 && affine_coef(store->idx, at(w, w->base)->var) == 1;
    if (w->flat) return true;
    int matched = 0;
    for (int i = 0; i < w->base_loops; i++) {
        const kins *loop = at(w, w->base + i);
        int64_t coef = affine_coef(store->idx, loop->var);
        bool found = false;
        for (int c = 0; c < w->columns; c++)
            found |= coef == affine_coef(add(w)->idx, column(w, c)->var) && loop->hi == column(w, c)->hi;
        matched += found;
        if (found) continue;
        if (coef != add(w)->dyn_stride || loop->hi != w->places || w->place_var >= 0) return false;
        w->place_var = loop->var;
    }
    return matched == w->columns && (w->places == 1 || w->place_var >= 0);
}

/* ---- writing ---- */

static kvar open(scatter *w, const char *name, int64_t n, kpar par, int unroll) {
    kvar v = build_loop(w->o, name, n, par);
    if (unroll > 1) w->o->vars.at[v].role.unroll = unroll < n ? unroll : (int)n;
    return v;
}
static affine scaled(scatter *w, kvar v, int64_t by) { return build_times(w->o->a, v, by); }
static affine plus(scatter *w, affine x, affine y) { return affine_add(w->o->a, x, y); }

/* The base at a place and columns, of which p says what the columns' variables become. Returns its register. */
static reg write_base(scatter *w, build_places p, affine place, bool store) {
    if (!w->base_loops) { /* it is there */
        affine at = plus(w, build_moved(w->o->a, &p, add(w)->idx), affine_scale(w->o->a, place, add(w)->dyn_stride));
        reg there = build_load(w->o, add(w)->buf, at, 1);
        build_bounds(w->o->a, &w->o->ins.at[there], &p);
        return there;
    }
    int last = w->base_end - w->base_loops;
    if (w->flat) {
        affine flat = affine_scale(w->o->a, place, add(w)->dyn_stride);
        for (int c = 0; c < w->columns; c++)
            flat = plus(w, flat, affine_scale(w->o->a, p.value[c], affine_coef(add(w)->idx, p.var[c])));
        build_put(&p, at(w, w->base)->var, flat);
    }
    if (w->place_var >= 0) build_put(&p, w->place_var, place);
    for (int i = 0; i < w->base_loops && !w->flat; i++) { /* named as the columns are there */
        const kins *loop = at(w, w->base + i);
        for (int c = 0; c < w->columns && loop->var != w->place_var; c++)
            if (affine_coef(at(w, last)->idx, loop->var) == affine_coef(add(w)->idx, column(w, c)->var))
                build_put(&p, loop->var, p.value[c]);
    }
    for (int i = w->base + w->base_loops; i < last + store; i++) build_copy(&w->copy, i, &p);
    return w->copy.to[at(w, last)->a];
}

/* The part of the body that the index needs (`index`), or the rest of it, for one add. */
static void write_part(scatter *w, const build_places *p, bool index) {
    for (int i = w->first; i < w->at; i++)
        if (w->of_index[i] == index) build_copy(&w->copy, i, p);
}

/* That the adds' loop is at this one, which may not exist. */
static const build_places *place_add(scatter *w, build_places *p, affine which, bool tail) {
    *p = (build_places){ .n = 0 };
    build_put(p, at(w, w->adds)->var, which);
    if (tail) build_bound(p, which, w->n_adds, 0);
    return p;
}

/* The index of an add less the first place of the range. */
static reg write_index(scatter *w, const build_places *p, affine low) {
    write_part(w, p, true);
    reg d = w->copy.to[add(w)->dyn];
    if (w->ranges == 1) return d;
    return build_op(w->o, OP_sub, d, build_index(w->o, at(w, (int)add(w)->dyn)->dtype, low));
}

/* -1 where the place is one of the range and the add exists, else 0. */
static reg write_inside(scatter *w, reg d, affine which, bool tail) {
    kernel *o = w->o;
    uint8_t t = o->ins.at[d].dtype;
    reg zero = build_number(o, t, 0), low = build_op(o, OP_le, zero, d), end = build_number(o, t, (double)w->range);
    reg high = build_op(o, OP_lt, d, end), both = build_op(o, OP_and, low, high);
    if (!tail) return both;
    reg i = build_index(o, TN_I64, which), last = build_number(o, TN_I64, (double)w->n_adds);
    return build_op(o, OP_and, both, build_op(o, OP_lt, i, last));
}

/* ---- owned ---- */

/* The columns of one add or of one place: the innermost loop is bound to the threads, the others as `par` says. Returns how
 * many loops are open. */
static int open_columns(scatter *w, kvar block, kpar par, build_places *p) {
    for (int c = 0; c + 1 < w->columns; c++) {
        kvar v = open(w, "j", column(w, c)->hi, par, 0);
        build_put(p, column(w, c)->var, affine_var(w->o->a, v));
    }
    kvar e = open(w, "e", w->width / w->lanes, PAR_BLOCK_THREADS, 0);
    if (!w->columns) return 1;
    const kins *last = column(w, w->columns - 1);
    affine at_column = scaled(w, e, w->lanes);
    if (block >= 0) at_column = plus(w, at_column, scaled(w, block, w->width));
    build_put(p, last->var, at_column);
    if (last->hi % w->width) build_bound(p, at_column, last->hi, 1);
    p->along = last->var, p->lanes = w->lanes, p->varies = w->varies;
    return w->columns;
}

/* One add, whose place in the range is d. */
static void write_add(scatter *w, build_places p, reg d, kvar range, kvar block) {
    arena *a = w->o->a;
    int64_t last = w->places - (w->ranges - 1) * w->range;
    int loops = open_columns(w, block, PAR_SERIAL, &p); /* the index's part has been written for this add */
    write_part(w, &p, false);
    kins in = build_at(&w->copy, w->at, &p);
    in.dyn = d, in.dyn_n = w->range;
    if (range >= 0) in.idx = plus(w, in.idx, scaled(w, range, w->range * in.dyn_stride));
    build_bounds(a, &in, &p);
    kins in_last = in; /* range, which is shorter */
    if (last < w->range) {
        in_last.dyn_n = last;
        build_mask(a, &in, affine_var(a, range), 0, w->ranges - 1, 0);
        build_mask(a, &in_last, affine_var(a, range), w->ranges - 1, w->ranges, 0);
    }
    kernel_push(w->o, in);
    if (last < w->range) kernel_push(w->o, in_last);
    build_ends(w->o, loops);
}

/* A chunk in which one is of the range: all threads look at its indices in turn. */
static void write_chunk(scatter *w, affine first, affine low, bool tail, kvar range, kvar block) {
    build_places *p = ARENA_ARRAY(w->o->a, build_places, ADDS);
    reg d[ADDS], here[ADDS];
    for (int q = 0; q < ADDS; q++) {
        affine which = affine_offset(first, q);
        d[q] = write_index(w, place_add(w, &p[q], which, tail), low);
        here[q] = write_inside(w, d[q], which, tail);
    }
    for (int q = 0; q < ADDS; q++) {
        build_if(w->o, "s", 1, here[q]);
        write_add(w, p[q], d[q], range, block);
        build_ends(w->o, 1);
    }
}

/* Every thread block looks at all the indices, its threads at as many at once. */
static void write_search(scatter *w, kvar range, kvar block) {
    int loops = 2;
    if (w->block_threads > w->warp) open(w, "w", w->block_threads / w->warp, PAR_BLOCK_THREADS, 0), loops++;
    affine lane = affine_var(w->o->a, open(w, "l", w->warp, PAR_BLOCK_THREADS, 0));
    int64_t step = (int64_t)CHUNKS * w->warp;
    bool tail = w->n_adds % step != 0;
    affine first = scaled(w, open(w, "u", gpu_pieces(w->n_adds, step), PAR_SERIAL, 0), step), low = scaled(w, range, w->range);
    reg any[CHUNKS];
    for (int q = 0; q < CHUNKS; q++) {
        affine which = affine_offset(plus(w, first, lane), q * w->warp);
        build_places p;
        any[q] = write_inside(w, write_index(w, place_add(w, &p, which, tail), low), which, tail);
    }
    for (int q = 0; q < CHUNKS; q++)
        any[q] =
            kernel_push(w->o, (kins){ .op = K_BLOCK_REDUCE, .alu = OP_min, .dtype = TN_I32, .a = any[q], .width = w->warp });
    for (int q = 0; q < CHUNKS; q++) {
        affine iteration = scaled(w, build_if(w->o, "s", w->warp / ADDS, any[q]), ADDS);
        write_chunk(w, affine_offset(plus(w, first, iteration), q * w->warp), low, tail, range, block);
        build_ends(w->o, 1);
    }
    build_ends(w->o, loops);
}

static void write_owned(scatter *w) {
    arena *a = w->o->a;
    kvar range = -1, block = -1;
    int loops = w->n_outer;
    w->o->grid_blocks *= w->ranges * w->blocks;
    if (w->ranges > 1) range = open(w, "g", w->ranges, PAR_BLOCKS, 0), loops++;
    if (w->blocks > 1) block = open(w, "b", w->blocks, PAR_BLOCKS, 0), loops++;
    build_places p = { .n = 0 };
    int lanes = w->lanes;
    w->lanes = 1; /* vectorize_nests makes vectors of these */
    if (w->base_loops) {
        kvar i = open(w, "i", w->range, PAR_BLOCK_THREADS, 0);
        affine place = affine_var(a, i);
        if (range >= 0) place = plus(w, place, scaled(w, range, w->range));
        int columns = open_columns(w, block, PAR_BLOCK_THREADS, &p);
        if (w->places % w->range) build_bound(&p, place, w->places, 0);
        write_base(w, p, place, true);
        build_ends(w->o, columns + 1);
        build_barrier(w->o);
    }
    w->lanes = lanes;
    if (w->ranges > 1) {
        write_search(w, range, block);
    } else {
        build_places all = { .n = 0 };
        kvar s = open(w, "s", w->n_adds, PAR_SERIAL, ADDS);
        build_put(&all, at(w, w->adds)->var, affine_var(a, s));
        write_add(w, all, write_index(w, &all, affine_const(0)), -1, block);
        build_ends(w->o, 1);
    }
    build_ends(w->o, loops);
}

/* ---- private ---- */

/* Sums of a thread's own, one for each place and column, stand `block_threads` apart. */
static affine own_sum(scatter *w, affine place, const build_places *p, affine thread) {
    affine x = affine_scale(w->o->a, place, w->n_columns);
    int64_t inner = 1;
    for (int c = w->columns - 1; c >= 0; c--) {
        x = plus(w, x, affine_scale(w->o->a, p->value[c], inner));
        inner *= column(w, c)->hi;
    }
    return plus(w, affine_scale(w->o->a, x, w->block_threads), thread);
}

static int open_serial_columns(scatter *w, build_places *p) {
    for (int c = 0; c < w->columns; c++) {
        kvar v = open(w, "j", column(w, c)->hi, PAR_SERIAL, 0);
        p->var[c] = column(w, c)->var, p->value[c] = affine_var(w->o->a, v);
    }
    return w->columns;
}

/* One of the columns. */
static void place_column(scatter *w, build_places *p, int64_t column_number) {
    p->n = w->columns;
    for (int c = w->columns - 1; c >= 0; c--) {
        p->var[c] = column(w, c)->var, p->value[c] = affine_const(column_number % column(w, c)->hi);
        column_number /= column(w, c)->hi;
    }
}

/* A thread's share of the adds: as many values under way as it has adds for. */
static void write_share(scatter *w, int fast, affine thread, affine low) {
    int columns = (int)w->n_columns, ahead = AHEAD / columns, n = 0;
    while (ahead > 1 && w->n_adds < 2 * (int64_t)ahead * w->block_threads) ahead /= 2;
    int64_t step = (int64_t)ahead * w->block_threads;
    bool tail = w->n_adds % step != 0;
    affine first = plus(w, scaled(w, open(w, "u", gpu_pieces(w->n_adds, step), PAR_SERIAL, 0), step), thread);
    reg d[AHEAD], x[AHEAD];
    for (int q = 0; q < ahead; q++) {
        affine which = affine_offset(first, (int64_t)q * w->block_threads);
        for (int c = 0; c < columns; c++, n++) {
            build_places p;
            place_add(w, &p, which, tail);
            build_places all = p;
            place_column(w, &all, c);
            build_put(&all, p.var[0], p.value[0]);
            if (c == 0) d[q] = write_index(w, &all, low);
            write_part(w, &all, false);
            x[n] = w->copy.to[add(w)->a];
        }
    }
    n = 0;
    for (int q = 0; q < ahead; q++)
        for (int c = 0; c < columns; c++, n++) {
            build_places p = { .n = 0 };
            place_column(w, &p, c);
            kins in = { .op = K_SCATTER,
                        .dtype = w->o->bufs.at[fast].dtype,
                        .buf = (uint16_t)fast,
                        .idx = own_sum(w, affine_const(0), &p, thread),
                        .a = x[n],
                        .dyn = d[q],
                        .dyn_stride = (int64_t)columns * w->block_threads,
                        .dyn_n = w->range,
                        .lanes = 1 };
            if (tail) build_mask(w->o->a, &in, affine_offset(first, (int64_t)q * w->block_threads), 0, w->n_adds, 0);
            kernel_push(w->o, in);
        }
    build_ends(w->o, 1);
}

/* A warp combines what all threads have of a place, and adds it to the base. */
static void write_sums(scatter *w, int fast, kvar warp, kvar lane, affine low) {
    arena *a = w->o->a;
    const uint8_t dtype = w->o->bufs.at[fast].dtype;
    int warps = w->block_threads / w->warp;
    kvar q = open(w, "q", w->range / warps, PAR_SERIAL, 4);
    affine local = scaled(w, q, warps);
    if (warp >= 0) local = plus(w, local, affine_var(a, warp));
    affine place = plus(w, local, low);
    build_places p = { .n = w->columns };
    int loops = 1 + open_serial_columns(w, &p);
    reg sum = build_parts(w->o, OP_add, fast, own_sum(w, local, &p, affine_var(a, lane)), warps, w->warp, 1);
    sum = kernel_push(w->o, (kins){ .op = K_BLOCK_REDUCE, .alu = OP_add, .dtype = dtype, .a = sum, .width = w->warp });
    if (w->places != w->ranges * w->range) build_bound(&p, place, w->places, 0);
    build_places first = p; /* in place, threads but the first do not read what that one writes */
    if (!w->base_loops) build_bound(&first, affine_var(a, lane), 1, 0);
    reg base = write_base(w, first, place, false);
    kins in = { .op = K_STORE, .dtype = add(w)->dtype, .buf = add(w)->buf, .lanes = 1 };
    in.a = build_op(w->o, OP_add, base, sum);
    in.idx = plus(w, build_moved(a, &p, add(w)->idx), affine_scale(a, place, add(w)->dyn_stride));
    build_bound(&p, affine_var(a, lane), 1, 0);
    build_bounds(a, &in, &p);
    kernel_push(w->o, in);
    build_ends(w->o, loops);
}

static void write_private(scatter *w) {
    arena *a = w->o->a;
    const uint8_t dtype = (uint8_t)dtype_reg((tn_dtype)add(w)->dtype);
    int loops = w->n_outer + 1;
    kvar range = -1, warp = -1;
    w->o->grid_blocks *= w->ranges;
    if (w->ranges > 1) range = open(w, "g", w->ranges, PAR_BLOCKS, 0), loops++;
    if (w->block_threads > w->warp) warp = open(w, "w", w->block_threads / w->warp, PAR_BLOCK_THREADS, 0), loops++;
    kvar lane = open(w, "l", w->warp, PAR_BLOCK_THREADS, 0);
    affine thread = affine_var(a, lane), low = range >= 0 ? scaled(w, range, w->range) : affine_const(0);
    if (warp >= 0) thread = plus(w, thread, scaled(w, warp, w->warp));
    int64_t sums = w->range * w->n_columns;
    int fast = gpu_shared_buffer(w->o, dtype, sums * w->block_threads);
    reg zero = build_number(w->o, dtype, 0);
    kvar i = open(w, "i", sums, PAR_SERIAL, 8);
    build_store(w->o, fast, plus(w, scaled(w, i, w->block_threads), thread), zero);
    build_ends(w->o, 1);
    write_share(w, fast, thread, low);
    build_barrier(w->o);
    write_sums(w, fast, warp, lane, low);
    build_ends(w->o, loops);
}

/* ---- the steps ---- */

bool scatter_find(scatter *w, const kernel *k, str *why) {
    *w = (scatter){ .k = k, .n_outer = gpu_outer_loops(k), .warp = SCATTER_WARP };
    if (k->vars.n > MOST_VARS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_VARS);
    if (!find_nests(w, 1 + w->n_outer, k->ins.n - w->n_outer) || !find_index(w) || !find_places(w))
        return step_refuse(why, "the kernel is not one scatter, behind the nest that writes its base or alone");
    for (int i = 1; i <= w->n_outer; i++)
        if (at(w, i)->hi - at(w, i)->lo < 1) return step_refuse(why, "a loop is empty");
    return true;
}

/* Columns that make all accesses which move with the innermost loop over them aligned vectors; else 1. */
int scatter_lanes(scatter *w) {
    if (!w->columns) return 1;
    const kins *last = column(w, w->columns - 1);
    int size = (int)dtype_size((tn_dtype)add(w)->dtype), lanes = size < 4 ? 1 : 16 / size;
    w->varies = gpu_varying(w->k, NULL, last->var);
    if (last->hi % lanes || !gpu_aligned(w->k, add(w), last->var, lanes) || !w->varies[add(w)->a]) return 1;
    for (int i = w->first; i < w->at; i++) {
        const kins *in = at(w, i);
        if (w->varies[i] && (in->op == K_RANDOM || in->dyn)) return 1;
        if (in->op == K_LOAD && !gpu_aligned(w->k, in, last->var, lanes)) return 1;
    }
    return lanes;
}

static void begin(scatter *w) {
    const kernel *k = w->k;
    w->o = gpu_kernel(k, w->block_threads);
    w->copy = build_copier_make(k, w->o);
    gpu_open_rows(k, w->o, w->n_outer, -1, -1);
}

/* Threads of a block, places of it, and threads that look at indices together. */
static bool take_block(scatter *w, const loop_step *s, str *why) {
    int64_t threads = s->arg[0].n, range = s->arg[1].n, warp = step_option(s, "warp", SCATTER_WARP);
    if (!gpu_can_bind(w->k, -1, threads, why)) return false;
    if (!gpu_is_power(warp) || warp < ADDS || warp > SCATTER_WARP || warp > threads)
        return step_refuse(why, "warps of %lld threads of %lld: expected a power of two from %d to %d", (long long)warp,
                           (long long)threads, ADDS, SCATTER_WARP);
    if (range < 1) return step_refuse(why, "%lld places: expected 1 or more", (long long)range);
    w->warp = (int)warp, w->block_threads = (int)threads, w->range = range, w->ranges = gpu_pieces(w->places, range);
    return true;
}

bool step_scatter_private(kernel **kk, const loop_step *s, str *why) {
    scatter w;
    if (!scatter_find(&w, gpu_compacted(*kk), why) || !take_block(&w, s, why)) return false;
    if (add(&w)->mode != SCATTER_ADD) return step_refuse(why, "the scatter does not add: there are no sums");
    if (w.n_columns > SCATTER_MOST_COLUMNS)
        return step_refuse(why, "%lld columns; the limit is %d", (long long)w.n_columns, SCATTER_MOST_COLUMNS);
    if (w.range % (w.block_threads / w.warp))
        return step_refuse(why, "%lld places do not come out in %d warps", (long long)w.range, w.block_threads / w.warp);
    begin(&w);
    write_private(&w);
    *kk = w.o;
    return true;
}

bool step_scatter_owned(kernel **kk, const loop_step *s, str *why) {
    scatter w;
    int64_t lanes = step_option(s, "lanes", 1), width = step_option(s, "columns", 0);
    if (!scatter_find(&w, gpu_compacted(*kk), why) || !take_block(&w, s, why)) return false;
    int most = scatter_lanes(&w);
    int64_t last = w.columns ? column(&w, w.columns - 1)->hi : 1;
    if (lanes != 1 && lanes != most) return step_refuse(why, "vectors of %lld: expected 1 or %d", (long long)lanes, most);
    if (!width) width = last;
    if (width > last || width % lanes || width < 1)
        return step_refuse(why, "%lld columns of %lld in vectors of %lld", (long long)width, (long long)last, (long long)lanes);
    w.lanes = (int)lanes, w.width = width, w.blocks = gpu_pieces(last, width);
    begin(&w);
    write_owned(&w);
    *kk = w.o;
    return true;
}
