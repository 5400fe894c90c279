/* reduce_columns.c - sums over rows: neighbouring threads of a GPU have neighbouring columns, and the rows are shared out, too.
 *
 * In: scalar form with one nest of reducing loops whose loads lie along the innermost outer loop (bias gradients, means over a
 * batch, one vector times a matrix). Out: the form of a GPU. The parts of a column are combined through shared memory, in
 * order.
 *
 * A thread may read several rows before it computes with the first: where a root or a division takes branches, compilers leave
 * each row's loads behind what is computed with the row before, and a thread waits for memory at every row.
 *
 * A fixed value may be laid out in panels of the columns of a thread block, so that lines of memory are read whole, by one
 * block. */
#include "loop/build.h"
#include "loop/reduce_columns.h"

#include "loop/loop.h"

enum { MOST_VARS = 50, MOST_LANES = 8, MOST_UNROLL = 64, MOST_AHEAD = 8 /* of a nest of a row */ };

static const kins *at(const column *w, int i) { return column_at(w, i); }
static int64_t trips(const kins *loop) { return column_trips(loop); }
static ext times(const kernel *k, ext x, ext y) { return k->params ? ext_mul(k->params, x, y) : x * y; }

/* In a nest of a row, what other nests have made lies in memory of the thread block. */
static bool is_plain(const column *w, const kins *in) {
    return gpu_is_plain(w->k, in) || (!w->n_outer && (in->op == K_LOAD || in->op == K_STORE));
}

static bool find_parts(column *w) {
    int i = w->from;
    for (; i < w->to && at(w, i)->op != K_LOOP; i++) {
        if (at(w, i)->op == K_ACC && w->n_acc < COLUMN_MOST_SUMS)
            w->acc[w->n_acc++] = i;
        else if (!is_plain(w, at(w, i)) || at(w, i)->op == K_STORE)
            return false;
    }
    if (!w->n_acc || i >= w->to) return false;
    w->loops = i, w->end = kernel_loop_end(w->k, i);
    w->n_loops = w->k->vars.at[at(w, i)->var].reduce ? gpu_perfect_loops(w->k, i) : 0;
    bool along = false;
    for (i += w->n_loops; i < w->end - w->n_loops + 1; i++) {
        const kins *in = at(w, i);
        int64_t apart = in->op == K_LOAD ? affine_coef(in->idx, w->v) : 0;
        if (in->op == K_UPD ? (int)in->c >= w->loops : !is_plain(w, in) || in->op == K_STORE) return false;
        if (in->op == K_RANDOM || in->dyn || (apart != 0 && apart != 1)) return false;
        along |= apart == 1;
    }
    for (i = w->end + 1; i < w->to; i++)
        if (!is_plain(w, at(w, i))) return false;
    return along && w->n_loops > 0;
}

bool column_find(column *w, const kernel *k, str *why) {
    int n_outer = gpu_outer_loops(k);
    *w = (column){ .k = k, .n_outer = n_outer, .from = 1 + n_outer, .to = k->ins.n - n_outer };
    if (n_outer < 1 || k->vars.n > MOST_VARS)
        return step_refuse(why, "the kernel has %d loops, %d of them rows; expected 1 row or more and %d loops at most",
                           k->vars.n, n_outer, MOST_VARS);
    w->v = k->ins.at[n_outer].var;
    if (!find_parts(w)) return step_refuse(why, "the kernel is not sums of what lies along %s", k->vars.at[w->v].name);
    for (int i = 1; i < w->end; i++)
        if (at(w, i)->op == K_LOOP && ext_is_lit(at(w, i)->hi) && trips(at(w, i)) < 1)
            return step_refuse(why, "a loop is empty");
    return ext_is_lit(k->vars.at[w->v].extent) || step_refuse(why, "a run gives how many columns there are");
}

bool column_lanes(const column *w, int lanes) {
    if (w->k->vars.at[w->v].extent % lanes) return false;
    for (int i = w->from; i < w->end; i++)
        if (at(w, i)->op == K_LOAD && (at(w, i)->dyn || !gpu_aligned(w->k, at(w, i), w->v, lanes))) return false;
    return true;
}

/* ---- panels ---- */

/* Whether load i is of a fixed value that all other outer loops share, in the order of the loops. */
bool column_takes_panels(const column *w, int i) {
    const kins *in = at(w, i);
    if (in->op != K_LOAD || in->n_mask || affine_coef(in->idx, w->v) != 1) return false;
    const kbuf *b = &w->k->bufs.at[in->buf];
    int n = 1;
    for (int l = 0; l < w->n_loops; l++)
        n += affine_coef(in->idx, at(w, w->loops + l)->var) != 0 && at(w, w->loops + l)->lo == 0;
    return b->fixed && n == in->idx.n && n == 1 + w->n_loops;
}

static void make_panels(column *w, kernel *o) {
    const kins *in = at(w, w->panels);
    int64_t columns = w->k->vars.at[w->v].extent; /* threads behind the last one read on in their row */
    kpanels x = { in->idx.base, w->columns, .column = { columns, 1 }, .dtype = in->src, .padded = columns % w->columns != 0 };
    for (; x.n_depth < w->n_loops; x.n_depth++) {
        const kins *loop = at(w, w->loops + x.n_depth);
        x.loops[x.n_depth] = (kstep){ loop->hi, affine_coef(in->idx, loop->var) };
    }
    kbuf b = w->k->bufs.at[in->buf];
    b.panels = arena_copy(o->a, &x, sizeof x), b.panels_of = in->buf, b.elems = kpanels_elems(&x), b.plan_buf = -1;
    w->panel_buf = kernel_buf(o, b);
}

/* The place in the panels of thread block g, for what loop variables are now. */
static affine in_panels(const column *w, arena *a, const build_places *p, kvar g, affine own) {
    int64_t apart = w->columns;
    affine x = own;
    for (int l = w->n_loops - 1; l >= 0; apart *= at(w, w->loops + l)->hi, l--) {
        affine is = affine_var(a, at(w, w->loops + l)->var);
        for (int i = 0; i < p->n; i++)
            if (p->var[i] == at(w, w->loops + l)->var) is = p->value[i];
        x = build_plus(a, x, is, apart);
    }
    return build_plus(a, x, affine_var(a, g), apart);
}

/* ---- writing ---- */

static build_copier copier(const column *w, kernel *o) {
    build_copier c = build_copier_make(w->k, o);
    if (w->outer) memcpy(c.to, w->outer, sizeof(reg) * (size_t)w->k->ins.n);
    return c;
}

/* Where one of the rows is that a thread reads together: its instructions have these places. */
typedef struct row_at {
    build_copier c;
    build_places p;
    affine row, first; /* first: of the columns of thread block g */
    kvar g;
    int number; /* of those that are read together */
    ext end;    /* of the rows, where some threads go past it; else 0 */
} row_at;

/* Instruction i of the body of the loops. */
static void write_ins(column *w, kernel *o, int i, row_at *x) {
    const kins *in = at(w, i);
    build_copier *c = &x->c;
    if (in->op == K_UPD && x->end) {
        reg kept[2] = { c->to[in->a], c->to[in->b] };
        c->to[in->a] = build_before(o, kept[0], TN_I64, x->row, 0, x->end, c->to[in->c]);
        if (in->alu == OP_dot) c->to[in->b] = build_before(o, kept[1], TN_I64, x->row, 0, x->end, c->to[in->c]);
        build_copy(c, i, &x->p);
        c->to[in->a] = kept[0];
        if (in->alu == OP_dot) c->to[in->b] = kept[1];
        return;
    }
    if (i == w->kept) {
        c->to[i] = build_load(o, w->kept_buf, affine_const(x->number * w->lanes), w->lanes);
        o->ins.at[c->to[i]].dtype = in->dtype;
        return;
    }
    reg r = build_copy(c, i, &x->p);
    if (i == w->panels) o->ins.at[r].buf = (uint16_t)w->panel_buf, o->ins.at[r].idx = in_panels(w, o->a, &x->p, x->g, x->first);
}

/* A thread's own share of the rows; first: its first column, of those of thread block g. */
static void write_share(column *w, kernel *o, build_copier *c, kvar g, affine first, kvar part) {
    arena *a = o->a;
    affine col = g < 0 ? first : affine_add(a, build_times(a, g, w->columns), first);
    const kins *split = at(w, w->loops + w->split);
    int64_t together = w->down * w->ahead;
    bool of_run = !ext_is_lit(split->hi);
    ext share = of_run ? ext_ceil_div(w->k->params, ext_sub(w->k->params, split->hi, split->lo), together)
                       : (trips(split) + together - 1) / together,
        end = of_run || trips(split) % together ? split->hi : 0; /* where some threads go past it */
    build_places p = { .along = w->v, .lanes = w->lanes };
    bool *varies = gpu_varying(w->k, NULL, w->v);
    p.varies = varies;
    for (int i = 0; i < w->n_acc; i++) varies[w->acc[i]] = true;
    for (int i = w->loops; i < w->end; i++) varies[i] |= at(w, i)->op == K_UPD;
    build_put(&p, w->v, col);
    if (w->k->vars.at[w->v].extent % w->columns) build_bound(&p, col, w->k->vars.at[w->v].extent, 1);
    for (int i = w->from; i < w->loops; i++) build_copy(c, i, &p);
    row_at *x = ARENA_ARRAY(a, row_at, w->ahead);
    for (int i = 0; i < w->n_loops; i++) {
        if (i != w->split) {
            kernel_push(o, *at(w, w->loops + i));
            continue;
        }
        kvar s = build_loop(o, "s", share, PAR_SERIAL);
        if (i == w->n_loops - 1 && (of_run || share > 1))
            o->vars.at[s].role.unroll = !of_run && share < w->unroll ? (int)share : w->unroll;
        for (int u = 0; u < w->ahead; u++) {
            affine row =
                affine_offset(affine_add(a, build_times(a, s, together), affine_var(a, part)), split->lo + u * w->down);
            x[u] = (row_at){ *c, p, row, first, g, u, end };
            x[u].c.to = arena_copy(a, c->to, sizeof(reg) * (size_t)w->k->ins.n);
            build_put(&x[u].p, split->var, row);
            if (end) build_bound(&x[u].p, row, end, 0);
        }
    }
    for (int loads = 1; loads >= 0; loads--) /* of all rows that are read together, and then what each computes */
        for (int u = 0; u < w->ahead; u++)
            for (int i = w->loops + w->n_loops; i < w->end - w->n_loops + 1; i++)
                if ((at(w, i)->op == K_LOAD) == loads) write_ins(w, o, i, &x[u]);
    build_ends(o, w->n_loops);
}

/* The parts of a column, and what comes behind. */
static void write_columns(column *w, kernel *o, affine first) {
    arena *a = o->a;
    build_copier c = copier(w, o);
    kvar e = build_loop(o, "e", w->columns, PAR_BLOCK_THREADS);
    affine col = affine_add(a, first, affine_var(a, e));
    build_places p = { .n = 0 };
    build_put(&p, w->v, col);
    if (w->k->vars.at[w->v].extent % w->columns) build_bound(&p, col, w->k->vars.at[w->v].extent, 0);
    for (int i = w->from; i < w->to; i++) {
        if (i == w->loops) i = w->end + 1;
        if (i >= w->to) break;
        if (at(w, i)->op != K_ACC) {
            build_copy(&c, i, &p);
            continue;
        }
        int n = 0;
        while (w->acc[n] != i) n++;
        c.to[i] = build_parts(o, (op_code)at(w, i)->alu, w->buf[n], affine_var(a, e), w->down, w->columns, 1);
    }
    build_ends(o, 1);
}

/* The columns of thread block g (-1: there is one), behind each of which two loops are open. */
static void write_block(column *w, kernel *o, kvar g) {
    arena *a = o->a;
    for (int i = 0; i < w->n_acc; i++) w->buf[i] = gpu_shared_buffer(o, at(w, w->acc[i])->dtype, w->down * w->columns);
    kvar part = build_loop(o, "p", w->down, PAR_BLOCK_THREADS), x = build_loop(o, "x", w->across, PAR_BLOCK_THREADS);
    affine own = build_times(a, x, w->lanes);
    build_copier c = copier(w, o);
    if (w->panels) make_panels(w, o);
    write_share(w, o, &c, g, own, part);
    for (int i = 0; i < w->n_acc; i++)
        build_store(o, w->buf[i], build_plus(a, own, affine_var(a, part), w->columns), c.to[w->acc[i]]);
    build_barrier(o);
    write_columns(w, o, g < 0 ? affine_const(0) : build_times(a, g, w->columns));
}

static kernel *write(column *w) {
    const kernel *k = w->k;
    kernel *o = gpu_kernel(k, (int)w->down * w->across);
    o->params = k->params;
    gpu_open_rows(k, o, w->n_outer - 1, -1, -1);
    o->grid_blocks = w->grid_blocks;
    int64_t tiles = (k->vars.at[w->v].extent + w->columns - 1) / w->columns;
    write_block(w, o, build_loop(o, "g", tiles, PAR_BLOCKS));
    build_ends(o, w->n_outer + 2);
    if (w->panels) loop_take_place(o, w->panel_buf);
    return o;
}

/* ---- a nest of a row ---- */

bool column_find_nest(column *w, const kernel *k, int i, int threads) {
    const kins *loop = &k->ins.at[i];
    *w = (column){ .k = k, .from = i + 1, .to = kernel_loop_end(k, i), .v = loop->var, .lanes = MOST_LANES };
    if (k->vars.at[w->v].reduce || loop->lo || !find_parts(w) || w->n_loops != 1 || trips(at(w, w->loops)) < 1) return false;
    while (w->lanes > 1 && !column_lanes(w, w->lanes)) w->lanes /= 2;
    for (w->across = 1; (int64_t)w->across * w->lanes < loop->hi;) w->across *= 2;
    w->columns = (int64_t)w->across * w->lanes, w->down = threads / w->across;
    int64_t turns = w->down ? gpu_pieces(trips(at(w, w->loops)), w->down) : 0;
    w->unroll = 1;
    for (w->ahead = 1; w->ahead < MOST_AHEAD && 2 * w->ahead <= turns;) w->ahead *= 2;
    return w->lanes > 1 && w->down > 1;
}

bool column_keep(column *w, kernel *o, const reg *outer) {
    const kins *split = at(w, w->loops);
    for (int i = w->loops + 1; i < w->end; i++) {
        const kins *in = at(w, i);
        bool is = in->op == K_LOAD && affine_coef(in->idx, w->v) == 1 && affine_coef(in->idx, split->var) && !in->dyn &&
                  !in->n_mask && w->k->bufs.at[in->buf].kind == KB_IN;
        if (is) w->kept = w->kept ? -1 : i;
    }
    if (w->kept < 1 || trips(split) != w->down * w->ahead || w->k->vars.at[w->v].extent != w->columns)
        return w->kept = 0, false;
    arena *a = o->a;
    build_copier c = { w->k, o, (reg *)(uintptr_t)outer };
    kins load = *at(w, w->kept);
    w->kept_buf = build_buffer(o, load.src, KB_LOCAL, (int64_t)w->ahead * w->lanes);
    kvar part = build_loop(o, "p", w->down, PAR_BLOCK_THREADS), x = build_loop(o, "x", w->across, PAR_BLOCK_THREADS),
         u = build_loop(o, "u", w->ahead, PAR_SERIAL);
    o->vars.at[u].role.unroll = w->ahead;
    build_places p = { .along = w->v, .lanes = w->lanes, .varies = gpu_varying(w->k, NULL, w->v) };
    build_put(&p, w->v, build_times(a, x, w->lanes));
    build_put(&p, split->var, affine_offset(build_plus(a, affine_var(a, part), affine_var(a, u), w->down), split->lo));
    load = build_at(&c, w->kept, &p);
    load.mode = LOAD_HOISTED;
    reg r = kernel_push(o, load);
    build_store(o, w->kept_buf, build_times(a, u, w->lanes), r);
    build_ends(o, 3);
    return true;
}

void column_write_nest(column *w, kernel *o, const reg *outer) {
    w->outer = outer;
    write_block(w, o, -1);
    build_ends(o, 2);
}

/* The reducing loop that is shared out. */
static bool take_split(column *w, kvar v, str *why) {
    for (w->split = 0; w->split < w->n_loops; w->split++)
        if (at(w, w->loops + w->split)->var == v) return true;
    return step_refuse(why, "nothing is summed over %s", w->k->vars.at[v].name);
}

static bool take_panels(column *w, int buf, str *why) {
    for (int i = w->loops; i < w->end && !w->panels; i++)
        if (at(w, i)->op == K_LOAD && at(w, i)->buf == buf && column_takes_panels(w, i)) w->panels = i;
    return w->panels || step_refuse(why, "b%d is not a fixed value in the order of the loops", buf);
}

bool step_reduce_columns(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    kvar v = step_loop(k, s, 0, why), r = v < 0 ? -1 : step_loop(k, s, 2, why);
    int64_t across = s->arg[1].n, down = s->arg[3].n, lanes = step_option(s, "lanes", 1), unroll = step_option(s, "unroll", 1),
            panels = step_option(s, "panels", -1), ahead = step_option(s, "ahead", 1);
    column w;
    if (v < 0 || r < 0 || !column_find(&w, k, why)) return false;
    if (w.v != v) return step_refuse(why, "the columns are those of %s", k->vars.at[w.v].name);
    if (!take_split(&w, r, why)) return false;
    if (!gpu_is_power(across) || !gpu_is_power(down) || across > GPU_MOST_THREADS || down > GPU_MOST_THREADS)
        return step_refuse(why, "%lld x %lld threads: expected powers of two", (long long)across, (long long)down);
    if (!gpu_can_bind(k, -1, across * down, why)) return false;
    if (!gpu_is_power(lanes) || lanes > MOST_LANES || !column_lanes(&w, (int)lanes))
        return step_refuse(why, "what is summed cannot be read in aligned vectors of %lld", (long long)lanes);
    if (unroll < 1 || unroll > MOST_UNROLL || ahead < 1 || ahead > MOST_UNROLL)
        return step_refuse(why, "unrolled by %lld, %lld rows ahead: expected 1 to %d", (long long)unroll, (long long)ahead,
                           MOST_UNROLL);
    w.ahead = (int)ahead, w.lanes = (int)lanes, w.across = (int)across, w.down = down, w.columns = lanes * across,
    w.unroll = (int)unroll;
    if (panels >= 0 && !take_panels(&w, panels < k->bufs.n ? (int)panels : k->bufs.n, why)) return false;
    w.grid_blocks = (k->vars.at[v].extent + w.columns - 1) / w.columns;
    for (int i = 1; i < w.n_outer; i++)
        w.grid_blocks =
            times(k, w.grid_blocks, k->params ? ext_sub(k->params, at(&w, i)->hi, at(&w, i)->lo) : trips(at(&w, i)));
    if (k->params && (panels >= 0 || ext_hi(k->params, w.grid_blocks) > INT32_MAX))
        return step_refuse(why,
                           panels >= 0 ? "a run gives sizes: nothing lies in panels" : "there may be too many thread blocks");
    *kk = write(&w);
    return true;
}
