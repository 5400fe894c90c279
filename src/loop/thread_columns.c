/* thread_columns.c - binds rows with contractions inside to thread blocks, in which every thread has its place for the whole
 * kernel: a column, and a part of the sum, which neighbours combine. What comes next from memory that is only read, such as the
 * weights of the next layers, is loaded before the threads wait for each other; a block may have several rows, for which such
 * values are loaded once. Loops of contractions load for later iterations.
 *
 * In: scalar form whose rows are its outer loops, with contractions among what it does for a row. Out: the form of a GPU.
 *
 * Loading ahead is part of this step: which register holds what of which later layer is known only while the layers are
 * written. */
#include "loop/build.h"
#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "loop/row_contraction.h"

enum {
    AHEAD = 96 /* registers for what comes later */,
    MAX_AHEAD = 8 /* contractions; */,
    LOOP_AHEAD = 4 /* in loops, whose text is longer by as many */,
    MOST_PARTS = 32
};

typedef struct placer {
    const kernel *k;
    kernel *o;
    int n_rows, rows, block_threads, split_k; /* loops over rows; rows of a thread block; its threads; threads a sum */
    row_layers l;
    row_writer w;
    kvar column, part;
    VEC(kvar) again; /* variables of loops that this writes */
    reg **ahead;     /* [c][ahead of c] what is loaded already */
    int started;     /* contractions whose memory is being read; */
    int barred;      /* not those from here on */
    kvar loop;       /* this variable is loop_is, */
    affine loop_is;
    reg loop_reg; /* or, for loads, what this holds, at most loop_end - 1; 0: nothing */
    int64_t loop_end;
    row_section
        *next; /* once a sum's terms are added, iteration next_is of contraction next_i is loaded in their place; or NULL */
    int next_u, next_i;
    affine next_is;
    int kept[TN_N_DTYPES]; /* buffers of what is loaded ahead in loops, or -1 */
} placer;

/* ---- writing ---- */

static kvar open(placer *p, const char *name, int64_t n, kpar par, bool fresh) {
    kvar v = -1;
    for (int i = 0; i < p->again.n && !fresh; i++)
        if (p->o->vars.at[p->again.at[i]].extent == n && p->o->vars.at[p->again.at[i]].name[0] == name[0]) v = p->again.at[i];
    if (v >= 0) return build_open(p->o, v, 0, n, par), v;
    v = build_loop(p->o, name, n, par);
    VEC_PUSH(p->o->a, &p->again, v);
    return v;
}

typedef struct spot { /* where in a row_contraction */
    const row_contraction *c;
    affine column, step;    /* values of its two variables */
    bool pads, tails, read; /* columns or steps there may not be; step has a value */
    bool ahead;             /* loads are to begin now */
    int row;
} spot;

/* Read where the contraction's result is written over it: by the thread that writes alone. */
static bool is_written_over(const placer *p, const row_contraction *c, const kins *in) {
    for (int i = c->loop + 1; i < c->end; i++)
        if (p->k->ins.at[i].op == K_STORE && p->k->ins.at[i].buf == in->buf) return true;
    return false;
}

static reg copy(placer *p, int i, const spot *s, const reg *to) {
    kins in = p->k->ins.at[i];
    const kernel *k = p->k;
    kvar j = k->ins.at[s->c->loop].var, kk = k->ins.at[s->c->inner].var;
    arena *a = p->o->a;
    build_operands(&in, to);
    bool moves = affine_coef(in.idx, j) != 0, steps = affine_coef(in.idx, kk) != 0;
    p->w.copy = affine_const(s->row);
    if (p->w.n_rows) p->w.row_is.base = s->row;
    gpu_row_place(&p->w, &in);
    build_set_var(a, &in, j, s->column);
    if (p->loop_reg && affine_coef(in.idx, p->loop)) {
        in.dyn = p->loop_reg, in.dyn_stride = affine_coef(in.idx, p->loop), in.dyn_n = p->loop_end;
        in.idx = affine_set_var(a, in.idx, p->loop, affine_const(0));
    }
    if (p->loop >= 0) in.idx = affine_set_var(a, in.idx, p->loop, p->loop_is);
    if (s->read) in.idx = affine_set_var(a, in.idx, kk, s->step);
    if (in.op == K_LOAD && s->pads && (moves || in.n_mask)) build_mask(a, &in, s->column, 0, s->c->n, 0);
    if (in.op == K_LOAD && s->tails && steps) build_mask(a, &in, s->step, 0, s->c->depth, 0);
    if (p->split_k > 1 && (in.op == K_STORE || (in.op == K_LOAD && !s->read && is_written_over(p, s->c, &in))))
        build_mask(a, &in, affine_var(a, p->part), 0, 1, 0);
    if (in.op == K_STORE && s->pads) build_mask(a, &in, s->column, 0, s->c->n, 0);
    if (in.op == K_LOAD && p->k->bufs.at[in.buf].kind == KB_IN && s->ahead) in.mode = LOAD_HOISTED;
    return kernel_push(p->o, in);
}

/* The same for all rows of the thread block, and in memory that is only read. */
static bool is_common(const placer *p, int i) {
    const kins *in = &p->k->ins.at[i];
    bool moves = false;
    for (int r = 0; r < p->n_rows; r++) {
        kvar v = p->k->ins.at[1 + r].var;
        moves |= affine_coef(in->idx, v) != 0;
        for (int m = 0; m < in->n_mask; m++) moves |= affine_coef(in->mask[m].e, v) != 0;
    }
    return in->op == K_CONST || (in->op == K_LOAD && !moves && !in->dyn && p->k->bufs.at[in->buf].kind == KB_IN);
}

static int64_t steps_of(const placer *p, const row_contraction *c) { return (c->depth + p->split_k - 1) / p->split_k; }
static int64_t rounds_of(const placer *p, const row_contraction *c) {
    return (c->n + p->block_threads / p->split_k - 1) / (p->block_threads / p->split_k);
}
static bool is_whole(const placer *p, const row_contraction *c) { return steps_of(p, c) <= ROW_WHOLE && rounds_of(p, c) == 1; }

/* Step number `step` of this thread's sum, counted from `base`: neighbours have four terms in turn where that comes out even.
 */
static affine step_of(const placer *p, const row_contraction *c, affine base, int64_t step) {
    int64_t at_once = c->depth % (4 * p->split_k) == 0 ? 4 : 1, at = step / at_once * at_once * p->split_k + step % at_once;
    affine x = build_plus(p->o->a, base, affine_var(p->o->a, p->part), at_once);
    return affine_offset(x, at);
}

static spot spot_of(const placer *p, const row_contraction *c, affine column) {
    return (spot){ .c = c,
                   .column = column,
                   .pads = rounds_of(p, c) * (p->block_threads / p->split_k) != c->n,
                   .tails = c->depth % p->split_k != 0 };
}

/* What a contraction needs of read-only memory, in the order of its instructions; of loads in the sum, all steps if these are
 * few. */
static void load_common(placer *p, int number) {
    const row_contraction *c = &p->l.c.at[number];
    spot s = spot_of(p, c, affine_var(p->o->a, p->column));
    s.ahead = true;
    int64_t steps = steps_of(p, c);
    reg *to = p->ahead[number] = ARENA_ARRAY(p->o->a, reg, (c->end - c->loop) + 2 * steps),
        *none = ARENA_ARRAY(p->o->a, reg, p->k->ins.n);
    for (int l = 0; l < 2; l++)
        for (int64_t i = 0; is_whole(p, c) && i < steps && is_common(p, c->load[l]); i++) {
            s.read = true, s.step = step_of(p, c, affine_const(0), i);
            to[(c->end - c->loop) + l * steps + i] = copy(p, c->load[l], &s, none);
        }
    s.read = false;
    for (int i = c->loop + 1; i < c->end; i++)
        if ((i < c->inner || i > c->last) && p->k->ins.at[i].op == K_LOAD && is_common(p, i))
            to[i - c->loop] = copy(p, i, &s, none);
}

static int look_ahead(const placer *p, const row_contraction *c) {
    int64_t n = AHEAD / (steps_of(p, c) + 1);
    return n < 1 ? 1 : n > MAX_AHEAD ? MAX_AHEAD : (int)n;
}

/* What load_common read for a contraction of a loop goes where iterations later find it: in memory of the thread, at places
 * that are known when it is compiled, which is registers. back: from there. */
static void keep(placer *p, row_section *s, int u, int i, bool back) {
    const row_contraction *c = &p->l.c.at[s->first + i];
    int n = (int)(c->end - c->loop + 2 * steps_of(p, c));
    const reg *from = p->ahead[s->first + i];
    reg *to = ARENA_ARRAY(p->o->a, reg, n);
    int32_t **slot = &s->slot[u * s->n + i];
    if (!*slot) *slot = ARENA_ARRAY(p->o->a, int32_t, n);
    for (int j = 0; j < n; j++) {
        if (!from[j]) continue;
        uint8_t t = p->o->ins.at[from[j]].dtype;
        if (p->kept[t] < 0) p->kept[t] = build_buffer(p->o, t, KB_LOCAL, 0);
        if (!(*slot)[j]) (*slot)[j] = (int32_t)++p->o->bufs.at[p->kept[t]].elems;
        affine at = affine_const((*slot)[j] - 1);
        to[j] = back ? build_load(p->o, p->kept[t], at, 1) : build_store(p->o, p->kept[t], at, from[j]);
    }
    if (back) p->ahead[s->first + i] = to;
}

static void start_loop(placer *p, row_section *s) {
    int ahead = look_ahead(p, &p->l.c.at[s->first]), unroll = (ahead < LOOP_AHEAD ? ahead : LOOP_AHEAD) / s->n;
    s->unroll = unroll < 1 ? 1 : unroll > s->times ? (int)s->times : unroll;
    s->slot = ARENA_ARRAY(p->o->a, int32_t *, s->unroll * s->n);
    p->loop = s->var;
    for (int u = 0; u < s->unroll; u++)
        for (int i = 0; i < s->n; i++) {
            if (rounds_of(p, &p->l.c.at[s->first + i]) > 1) continue;
            p->loop_is = affine_const(u);
            load_common(p, s->first + i);
            keep(p, s, u, i, false);
        }
    p->loop = -1;
    p->started = p->barred = s->first + s->n;
}

/* Reading for contractions before `to` begins. */
static void start(placer *p, int to) {
    while (p->started < to && p->started < p->barred) {
        row_section *s = p->l.sections.at;
        while (s->first + s->n <= p->started) s++;
        if (s->var >= 0) {
            start_loop(p, s);
            continue;
        }
        if (rounds_of(p, &p->l.c.at[p->started]) == 1) load_common(p, p->started);
        p->started++;
    }
}

/* Steps [from, to) of the sum, counted from base, for all rows; sums[row * ROW_SUMS + i]. */
static void write_steps(placer *p, const row_contraction *c, const reg *ahead, affine column, affine base, int from, int to,
                        const reg *sums, int n_sums) {
    spot s = spot_of(p, c, column);
    reg *regs = ARENA_ARRAY(p->o->a, reg, p->k->ins.n), *common = ARENA_ARRAY(p->o->a, reg, 2 * (to - from));
    int64_t steps = steps_of(p, c);
    s.read = true;
    for (int l = 0; l < 2; l++)
        for (int i = from; i < to && is_common(p, c->load[l]); i++) {
            s.step = step_of(p, c, base, i), s.ahead = true;
            common[l * (to - from) + i - from] =
                ahead ? ahead[(c->end - c->loop) + l * steps + i] : copy(p, c->load[l], &s, regs);
        }
    s.ahead = false;
    for (s.row = 0; s.row < p->rows; s.row++)
        for (int i = from; i < to; i++) {
            s.step = step_of(p, c, base, i);
            for (int l = 0; l < 2; l++) {
                reg r = common[l * (to - from) + i - from];
                regs[c->load[l]] = r ? r : copy(p, c->load[l], &s, regs);
            }
            regs[c->acc] = sums[s.row * ROW_SUMS + i % n_sums];
            kins in = p->k->ins.at[c->update];
            in.a = regs[in.a], in.b = regs[in.b], in.c = regs[in.c];
            kernel_push(p->o, in);
        }
}

static reg add_up(placer *p, const row_contraction *c, const reg *sums, int n) {
    kins acc = p->k->ins.at[c->acc];
    reg r[ROW_SUMS];
    memcpy(r, sums, sizeof *r * (size_t)n);
    kins all = { .op = K_BLOCK_REDUCE, .alu = OP_add, .dtype = acc.dtype, .width = p->split_k, .node = acc.node };
    all.a = build_halves(p->o, r, n, OP_add, acc.dtype, acc.node);
    return p->split_k == 1 ? all.a : kernel_push(p->o, all);
}

/* What the iteration after those under way needs, for what this contraction has used up; at the end the last one's again, which
 * costs less than to ask each time. */
static void load_next(placer *p) {
    row_section *s = p->next;
    if (!s) return;
    p->next = NULL, p->loop_end = s->times;
    p->loop_reg = build_index(p->o, TN_I32, p->next_is);
    load_common(p, s->first + p->next_i);
    keep(p, s, p->next_u, p->next_i, false);
    p->loop_reg = 0;
}

/* The columns of one round, for all rows. */
static void write_columns(placer *p, const row_contraction *c, const reg *ahead, affine column) {
    int steps = (int)steps_of(p, c), n_sums = p->rows == 1 && steps >= 8 ? ROW_SUMS : 1, stretches = steps / ROW_K_BLOCK;
    reg sums[ROW_MOST_ROWS * ROW_SUMS];
    for (int i = 0; i < p->rows * ROW_SUMS; i++)
        if (i % ROW_SUMS < n_sums) sums[i] = kernel_push(p->o, p->k->ins.at[c->acc]);
    if (steps <= ROW_WHOLE) {
        write_steps(p, c, ahead, column, affine_const(0), 0, steps, sums, n_sums);
    } else {
        kvar v = open(p, "s", stretches, PAR_SERIAL, false);
        affine base = build_times(p->o->a, v, ROW_K_BLOCK * p->split_k);
        write_steps(p, c, NULL, column, base, 0, ROW_K_BLOCK, sums, n_sums);
        build_ends(p->o, 1);
        if (steps % ROW_K_BLOCK) write_steps(p, c, NULL, column, affine_const(0), stretches * ROW_K_BLOCK, steps, sums, n_sums);
    }
    load_next(p);
    reg *regs = ARENA_ARRAY(p->o->a, reg, p->k->ins.n), sum[ROW_MOST_ROWS];
    for (int row = 0; row < p->rows; row++) sum[row] = add_up(p, c, sums + row * ROW_SUMS, n_sums);
    spot s = spot_of(p, c, column);
    for (s.row = 0; s.row < p->rows; s.row++) {
        regs[c->acc] = sum[s.row];
        for (int i = c->loop + 1; i < c->end; i++) {
            if (i == c->acc || (i >= c->inner && i <= c->last)) continue;
            if (is_common(p, i) && s.row > 0) continue;
            regs[i] = ahead && ahead[i - c->loop] ? ahead[i - c->loop] : copy(p, i, &s, regs);
        }
    }
}

static void write_contraction(placer *p, int number) {
    const row_contraction *c = &p->l.c.at[number];
    gpu_row_touch(&p->w, c->loop, c->end);
    if (rounds_of(p, c) == 1) {
        write_columns(p, c, p->ahead[number], affine_var(p->o->a, p->column));
        return;
    }
    kvar v = open(p, "c", rounds_of(p, c), PAR_SERIAL, false);
    affine column = build_times(p->o->a, v, p->block_threads / p->split_k);
    write_columns(p, c, NULL, affine_add(p->o->a, column, affine_var(p->o->a, p->column)));
    build_ends(p->o, 1);
}

static void write_iteration(placer *p, row_section *s, int u, int i) {
    if (rounds_of(p, &p->l.c.at[s->first + i]) == 1) keep(p, s, u, i, true);
    write_contraction(p, s->first + i);
}

/* A loop of contractions: in each of its iterations as many of them as are loaded ahead, then those that are left. */
static void write_loop(placer *p, row_section *s) {
    start(p, s->first + 1);
    for (int i = s->loop; i < s->end; i++) { /* an iteration follows the one before */
        const kins *in = &p->k->ins.at[i];
        if (in->op == K_STORE) p->w.wrote[in->buf] = true;
        if (in->op == K_LOAD && p->k->bufs.at[in->buf].kind != KB_IN) p->w.read[in->buf] = true;
    }
    int64_t iterations = s->times / s->unroll;
    kvar v = open(p, "l", iterations, PAR_SERIAL, false);
    affine first = build_times(p->o->a, v, s->unroll);
    p->loop = s->var;
    for (int u = 0; u < s->unroll; u++)
        for (int i = 0; i < s->n; i++) {
            p->loop_is = affine_offset(first, u);
            if (rounds_of(p, &p->l.c.at[s->first + i]) == 1) p->next = s, p->next_u = u, p->next_i = i;
            p->next_is = affine_offset(first, u + s->unroll);
            write_iteration(p, s, u, i);
        }
    build_ends(p->o, 1);
    p->barred = p->l.c.n, p->loop = -1; /* what follows may use the same variable */
    start(p, s->first + s->n + look_ahead(p, &p->l.c.at[s->first]));
    p->loop = s->var;
    for (int u = 0; u < s->times % s->unroll; u++)
        for (int i = 0; i < s->n; i++) {
            p->loop_is = affine_const(iterations * s->unroll + u);
            write_iteration(p, s, u, i);
        }
    p->loop = -1;
}

/* Everything else, one row after the other. */
static void write_rest(placer *p, int from, int to) {
    if (from >= to) return;
    if (p->rows == 1) {
        gpu_row_range(&p->w, from, to);
        return;
    }
    gpu_row_touch(&p->w, from, to);
    kvar v = open(p, "w", p->rows, PAR_SERIAL, false);
    p->w.copy = affine_var(p->o->a, v);
    affine row = p->w.row_is;
    p->w.row_is.base = 0;
    p->w.row_is = affine_add(p->o->a, p->w.row_is, p->w.copy);
    gpu_row_range(&p->w, from, to);
    gpu_row_settle(&p->w);
    build_ends(p->o, 1);
    p->w.row_is = row;
}

static void open_rows(placer *p) {
    const kernel *k = p->k;
    p->o->grid_blocks = 1;
    for (int i = 1; i <= p->n_rows; i++) {
        kins in = k->ins.at[i];
        in.par = PAR_BLOCKS;
        if (i == p->n_rows && p->rows > 1) {
            in.var = kernel_var(p->o, "g", in.hi / p->rows, true, false), in.hi /= p->rows;
            p->w.n_rows = p->rows, p->w.row = k->ins.at[i].var;
            p->w.row_is = build_times(p->o->a, in.var, p->rows);
        }
        p->o->grid_blocks *= in.hi;
        kernel_push(p->o, in);
    }
}

static kernel *write(placer *p) {
    const kernel *k = p->k;
    p->w = gpu_row_writer(k, p->block_threads);
    kernel *o = p->o = p->w.o;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) o->bufs.at[b].elems *= p->rows;
    p->ahead = ARENA_ARRAY(k->a, reg *, p->l.c.n);
    open_rows(p);
    p->column = open(p, "t", p->block_threads / p->split_k, PAR_BLOCK_THREADS, true);
    p->part = open(p, "p", p->split_k, PAR_BLOCK_THREADS, true);
    int from = 1 + p->n_rows;
    p->barred = p->l.c.n, p->loop = -1;
    for (int i = 0; i < TN_N_DTYPES; i++) p->kept[i] = -1;
    if (p->l.sections.at[0].loop > from) build_barrier(o); /* or its loops would be of the same nest */
    start(p, look_ahead(p, &p->l.c.at[0]));
    for (int i = 0; i < p->l.sections.n; i++) {
        row_section *s = &p->l.sections.at[i];
        write_rest(p, from, s->loop);
        if (s->var >= 0) {
            write_loop(p, s);
        } else {
            start(p, s->first + 1 + look_ahead(p, &p->l.c.at[s->first]));
            write_contraction(p, s->first);
        }
        from = s->end + 1;
    }
    write_rest(p, from, k->ins.n - p->n_rows);
    build_ends(o, p->n_rows + 2);
    return o;
}

bool step_thread_columns(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    int64_t threads = s->arg[0].n, rows = step_option(s, "rows", 1), split_k = step_option(s, "split_k", 1);
    placer p = { .k = k, .n_rows = gpu_outer_loops(k) };
    if (!gpu_can_bind(k, -1, threads, why)) return false;
    for (int i = 0; i < p.n_rows; i++)
        if (k->ins.at[1 + i].hi < 1 || k->ins.at[1 + i].lo) return step_refuse(why, "a loop of rows is empty or cut");
    row_layers_find(k, p.n_rows, &p.l);
    if (!p.l.c.n) return step_refuse(why, "there is no contraction inside a row");
    if (!gpu_is_power(split_k) || split_k > MOST_PARTS || split_k > threads)
        return step_refuse(why, "%lld threads a sum of %lld: expected a power of two up to %d", (long long)split_k,
                           (long long)threads, MOST_PARTS);
    if (rows < 1 || rows > ROW_MOST_ROWS)
        return step_refuse(why, "%lld rows: expected 1 to %d", (long long)rows, ROW_MOST_ROWS);
    if (rows > 1 && (p.n_rows == 0 || k->ins.at[p.n_rows].hi % rows))
        return step_refuse(why, "the rows do not come out by %lld", (long long)rows);
    if (rows > 1 && !row_layers_are_free(k, p.n_rows, &p.l))
        return step_refuse(why, "a value of a row outlives a contraction: a thread block has one row");
    p.rows = (int)rows, p.block_threads = (int)threads, p.split_k = (int)split_k;
    *kk = write(&p);
    return true;
}
