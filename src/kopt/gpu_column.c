/* gpu_column.c - sums over rows for GPUs: neighbouring threads have neighbouring columns, and the rows are shared out, too.
 *
 * In: a scalar kernel with one nest of reducing loops whose loads lie along the innermost outer loop (bias gradients, means
 * over a batch, one vector times a matrix). Out: a new kernel, or NULL when it is of another kind or would cost more. The parts
 * of a column are combined through fast memory, in order.
 *
 * Where a group has so few columns that what it reads of a row is no whole line of memory, and the value is fixed, it is laid
 * out in panels of those columns: lines are read whole, by one group. On an H200 36 products of a vector and a matrix of
 * 1024 x 1024 took 60 us before that, at 2.5 TB/s, and 36 after, at 4.2. */
#include "kopt/kopt.h"
#include "loop/bind_rows.h"
#include "loop/gpu_copy.h"

enum {
    MAX_SUMS = 4,
    UNROLL = 8,
    LEAST_WIDE = 8 /* columns of a group */,
    MANY_ROWS = 8 /* of a thread */,
    UNDER_WAY = 32 /* words of a thread that come at once, where there are few threads */,
    LINE = 128 /* bytes of memory that are best read together */,
    LEAST_PANELS = 32 << 10 /* bytes */
};

typedef struct column {
    const kernel *k;
    const target *t;
    int n_outer, from, to, loops, n_loops, end; /* `end`: of the outermost reducing loop */
    kvar v;
    int split; /* the reducing loop that is shared out */
    int acc[MAX_SUMS], buf[MAX_SUMS], n_acc;
    int lanes, across;
    int64_t parts, wide, groups; /* wide: columns of a group */
    int panels, panel_buf;       /* a load of a fixed value that is in panels, or 0; the buffer that has them */
} column;

static const kins *at(const column *w, int i) { return &w->k->ins.at[i]; }
static int64_t trips(const kins *loop) { return loop->hi - loop->lo; }

static bool find_parts(column *w) {
    int i = w->from;
    for (; i < w->to && at(w, i)->op != K_LOOP; i++) {
        if (at(w, i)->op == K_ACC && w->n_acc < MAX_SUMS)
            w->acc[w->n_acc++] = i;
        else if (!gpu_is_plain(w->k, at(w, i)) || at(w, i)->op == K_STORE)
            return false;
    }
    if (!w->n_acc || i >= w->to) return false;
    w->loops = i, w->end = kernel_loop_end(w->k, i);
    while (at(w, i)->op == K_LOOP && w->k->vars.at[at(w, i)->var].reduce && kernel_loop_end(w->k, i) == w->end - w->n_loops)
        i++, w->n_loops++;
    bool along = false;
    for (; i < w->end - w->n_loops + 1; i++) {
        const kins *in = at(w, i);
        int64_t apart = in->op == K_LOAD ? affine_coef(in->idx, w->v) : 0;
        if (in->op == K_UPD ? (int)in->c >= w->loops : !gpu_is_plain(w->k, in) || in->op == K_STORE) return false;
        if (in->op == K_RANDOM || in->dyn || (apart != 0 && apart != 1)) return false;
        along |= apart == 1;
    }
    for (i = w->end + 1; i < w->to; i++)
        if (!gpu_is_plain(w->k, at(w, i))) return false;
    return along && w->n_loops > 0;
}

static int lanes_along(const column *w) {
    int size = 4;
    for (int i = w->loops; i < w->end; i++)
        if (at(w, i)->op == K_LOAD && dtype_size((tn_dtype)at(w, i)->src) > 4) size = 8;
    for (int lanes = 16 / size; lanes > 1; lanes /= 2) {
        bool fits = w->k->vars.at[w->v].extent % lanes == 0;
        for (int i = w->from; i < w->end && fits; i++)
            fits = at(w, i)->op != K_LOAD || (!at(w, i)->dyn && gpu_aligned(w->k, at(w, i), w->v, lanes));
        if (fits) return lanes;
    }
    return 1;
}

/* ---- panels ---- */

/* Whether load i is of a fixed value that all other outer loops share, in the order of the loops. */
static bool takes_panels(const column *w, int i) {
    const kins *in = at(w, i);
    if (in->op != K_LOAD || in->n_mask || affine_coef(in->idx, w->v) != 1) return false;
    const kbuf *b = &w->k->bufs.at[in->buf];
    int n = 1;
    for (int l = 0; l < w->n_loops; l++)
        n += affine_coef(in->idx, at(w, w->loops + l)->var) != 0 && at(w, w->loops + l)->lo == 0;
    int64_t size = (int64_t)dtype_size((tn_dtype)b->dtype);
    return b->fixed && n == in->idx.n && n == 1 + w->n_loops && b->elems * size >= LEAST_PANELS && w->wide * size < LINE;
}

static void choose_panels(column *w) {
    for (int i = w->loops; i < w->end && !w->panels; i++)
        if (takes_panels(w, i)) w->panels = i;
}

static void make_panels(column *w, kernel *o) {
    const kins *in = at(w, w->panels);
    int64_t columns = w->k->vars.at[w->v].extent; /* threads behind the last one read on in their row */
    kpanels x = { in->idx.base, w->wide, .column = { columns, 1 }, .dtype = in->src, .padded = columns % w->wide != 0 };
    for (; x.n_depth < w->n_loops; x.n_depth++) {
        const kins *loop = at(w, w->loops + x.n_depth);
        x.loops[x.n_depth] = (kstep){ loop->hi, affine_coef(in->idx, loop->var) };
    }
    kbuf b = w->k->bufs.at[in->buf];
    b.panels = arena_copy(o->a, &x, sizeof x), b.panels_of = in->buf, b.elems = kpanels_elems(&x), b.plan_buf = -1;
    w->panel_buf = kernel_buf(o, b);
}

/* The place in the panels of group g, for what loop variables are now. */
static affine in_panels(const column *w, arena *a, const gpu_places *p, kvar g, affine own) {
    int64_t apart = w->wide;
    affine x = own;
    for (int l = w->n_loops - 1; l >= 0; apart *= at(w, w->loops + l)->hi, l--) {
        affine is = affine_var(a, at(w, w->loops + l)->var);
        for (int i = 0; i < p->n; i++)
            if (p->var[i] == at(w, w->loops + l)->var) is = p->value[i];
        x = affine_add(a, x, affine_scale(a, is, apart));
    }
    return affine_add(a, x, affine_scale(a, affine_var(a, g), apart));
}

/* As wide as leaves a group for every processor; the rest of the threads share the rows. */
static double choose_shape(column *w) {
    double cores = (double)w->t->grid / 1024, steps = 1, others = 1;
    int most = lanes_along(w), group = w->t->group < 256 ? w->t->group : 256;
    for (int i = 0; i < w->n_loops; i++) {
        steps *= (double)trips(at(w, w->loops + i));
        if (trips(at(w, w->loops + i)) > trips(at(w, w->loops + w->split))) w->split = i;
    }
    for (int i = 1; i < w->n_outer; i++) others *= (double)trips(at(w, i));
    int64_t rows = trips(at(w, w->loops + w->split)), n = w->k->vars.at[w->v].extent;
    int lanes = most > 1 && rows >= MANY_ROWS * group / 4 ? 2 : 1; /* where a group has few columns */
    for (w->lanes = most, w->across = 32; w->lanes * w->across > LEAST_WIDE;
         *(w->across > LEAST_WIDE || w->lanes <= lanes ? &w->across : &w->lanes) /= 2) {
        int64_t wide = (int64_t)w->lanes * w->across;
        if (others * (double)((n + wide - 1) / wide) >= 1.5 * cores && w->across <= group) break;
    }
    while (w->across > group) w->across /= 2;
    w->wide = (int64_t)w->lanes * w->across;
    for (w->parts = 1; w->parts * 2 * w->across <= group && w->parts < rows;) w->parts *= 2;
    double groups = others * (double)((n + w->wide - 1) / w->wide), threads = (double)(w->parts * w->across),
           waves = groups * threads / (double)w->t->grid,
           thread = steps / (double)w->parts * loop_thread_cost(w->k, w->loops + w->n_loops, w->end - w->n_loops + 1, w->v) +
                    w->n_acc * (2 * (double)w->parts + 12) + 12;
    w->groups = (int64_t)groups;
    choose_panels(w);
    return (waves < 1 ? 1 : waves) * thread * (w->lanes > 1 ? 0.6 * w->lanes : 1) + recipe_start_cost(groups, w->t);
}

static kvar open(kernel *o, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(o, name, n, false, false);
    kernel_push(o, (kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .par = (uint8_t)par });
    return v;
}

/* r where the row exists, else what changes no sum. */
static reg neutral_behind(column *w, kernel *o, reg r, affine row, int64_t rows, const kins *acc) {
    const uint8_t dtype = (uint8_t)kernel_reg_dtype((tn_dtype)o->ins.at[r].dtype), lanes = o->ins.at[r].lanes;
    reg i = kernel_push(o, (kins){ .op = K_INDEX, .dtype = TN_I64, .idx = row });
    reg end = kernel_push(o, (kins){ .op = K_CONST, .dtype = TN_I64, .imm_int = rows });
    reg neutral = kernel_push(o, (kins){ .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int });
    reg is = kernel_push(o, (kins){ .op = K_ALU, .alu = OP_lt, .dtype = TN_I32, .src = TN_I64, .a = i, .b = end });
    (void)w;
    return kernel_push(
        o,
        (kins){ .op = K_ALU, .alu = OP_select, .dtype = dtype, .src = dtype, .a = is, .b = r, .c = neutral, .lanes = lanes });
}

/* They wait for memory. */
static bool few_threads(const column *w) { return w->groups * w->parts * w->across * 2 <= w->t->grid; }

/* A thread's own share of the rows; first: its first column, of those of group g. */
static void write_share(column *w, kernel *o, gpu_copier *c, kvar g, affine first, kvar part) {
    arena *a = o->a;
    affine col = affine_add(a, affine_scale(a, affine_var(a, g), w->wide), first);
    const kins *split = at(w, w->loops + w->split);
    int64_t rows = trips(split), share = (rows + w->parts - 1) / w->parts;
    bool tail = rows % w->parts != 0;
    gpu_places p = { .along = w->v, .lanes = w->lanes };
    bool *varies = gpu_varying(w->k, NULL, w->v);
    p.varies = varies;
    for (int i = 0; i < w->n_acc; i++) varies[w->acc[i]] = true;
    for (int i = w->loops; i < w->end; i++) varies[i] |= at(w, i)->op == K_UPD;
    gpu_put(&p, w->v, col);
    if (w->k->vars.at[w->v].extent % w->wide) gpu_bound(&p, col, w->k->vars.at[w->v].extent, 1);
    for (int i = w->from; i < w->loops; i++) gpu_copy(c, i, &p);
    affine row = affine_const(0);
    for (int i = 0; i < w->n_loops; i++) {
        if (i != w->split) {
            kernel_push(o, *at(w, w->loops + i));
            continue;
        }
        kvar s = open(o, "s", share, PAR_SERIAL);
        int unroll = few_threads(w) ? UNDER_WAY / w->lanes : UNROLL;
        if (i == w->n_loops - 1 && share > 1) o->vars.at[s].role.unroll = share < unroll ? (int)share : unroll;
        row = affine_offset(affine_add(a, affine_scale(a, affine_var(a, s), w->parts), affine_var(a, part)), split->lo);
        gpu_put(&p, split->var, row);
        if (tail) gpu_bound(&p, row, split->hi, 0);
    }
    for (int i = w->loops + w->n_loops; i < w->end - w->n_loops + 1; i++) {
        const kins *in = at(w, i);
        if (in->op == K_UPD && tail) {
            reg kept[2] = { c->to[in->a], c->to[in->b] };
            c->to[in->a] = neutral_behind(w, o, c->to[in->a], row, split->hi, at(w, (int)in->c));
            if (in->alu == OP_dot) c->to[in->b] = neutral_behind(w, o, kept[1], row, split->hi, at(w, (int)in->c));
            gpu_copy(c, i, &p);
            c->to[in->a] = kept[0];
            if (in->alu == OP_dot) c->to[in->b] = kept[1];
        } else {
            reg r = gpu_copy(c, i, &p);
            if (i == w->panels) o->ins.at[r].buf = (uint16_t)w->panel_buf, o->ins.at[r].idx = in_panels(w, a, &p, g, first);
        }
    }
    for (int i = 0; i < w->n_loops; i++) kernel_push(o, (kins){ .op = K_END });
}

/* The parts of a column, and what comes behind. */
static void write_columns(column *w, kernel *o, affine first) {
    arena *a = o->a;
    gpu_copier c = { w->k, o, ARENA_ARRAY(a, reg, w->k->ins.n) };
    kvar e = open(o, "e", w->wide, PAR_LOCAL);
    affine col = affine_add(a, first, affine_var(a, e));
    gpu_places p = { .n = 0 };
    gpu_put(&p, w->v, col);
    if (w->k->vars.at[w->v].extent % w->wide) gpu_bound(&p, col, w->k->vars.at[w->v].extent, 0);
    for (int i = w->from; i < w->to; i++) {
        if (i == w->loops) i = w->end + 1;
        if (i >= w->to) break;
        if (at(w, i)->op != K_ACC) {
            gpu_copy(&c, i, &p);
            continue;
        }
        int n = 0;
        while (w->acc[n] != i) n++;
        reg sum = 0;
        for (int64_t part = 0; part < w->parts; part++) {
            uint8_t type = at(w, i)->dtype;
            reg r = kernel_push(o, (kins){ .op = K_LOAD,
                                           .dtype = type,
                                           .src = type,
                                           .buf = (uint16_t)w->buf[n],
                                           .idx = affine_offset(affine_var(a, e), part * w->wide) });
            kins add = { .op = K_ALU, .alu = at(w, i)->alu, .dtype = type, .src = type, .a = sum, .b = r };
            sum = sum ? kernel_push(o, add) : r;
        }
        c.to[i] = sum;
    }
    kernel_push(o, (kins){ .op = K_END });
}

static kernel *write(column *w) {
    const kernel *k = w->k;
    kernel *o = gpu_kernel(k, (int)w->parts * w->across);
    arena *a = o->a;
    for (int i = 0; i < w->n_acc; i++)
        w->buf[i] = kernel_buf(
            o, (kbuf){ .dtype = at(w, w->acc[i])->dtype, .kind = KB_GROUP, .elems = w->parts * w->wide, .plan_buf = -1 });
    for (int i = 1; i < w->n_outer; i++) {
        kins in = *at(w, i);
        in.par = PAR_GROUPS;
        kernel_push(o, in);
    }
    o->groups = w->groups;
    int64_t tiles = (k->vars.at[w->v].extent + w->wide - 1) / w->wide;
    kvar g = open(o, "g", tiles, PAR_GROUPS);
    affine first = affine_scale(a, affine_var(a, g), w->wide);
    kvar part = open(o, "p", w->parts, PAR_LOCAL), x = open(o, "x", w->across, PAR_LOCAL);
    affine own = affine_scale(a, affine_var(a, x), w->lanes);
    gpu_copier c = { k, o, ARENA_ARRAY(a, reg, k->ins.n) };
    if (w->panels) make_panels(w, o);
    write_share(w, o, &c, g, own, part);
    for (int i = 0; i < w->n_acc; i++)
        kernel_push(o, (kins){ .op = K_STORE,
                               .dtype = at(w, w->acc[i])->dtype,
                               .buf = (uint16_t)w->buf[i],
                               .idx = affine_add(a, own, affine_scale(a, affine_var(a, part), w->wide)),
                               .a = c.to[w->acc[i]],
                               .lanes = (uint8_t)w->lanes,
                               .lane_stride = w->lanes > 1 });
    kernel_push(o, (kins){ .op = K_BARRIER });
    write_columns(w, o, first);
    for (int i = 0; i < w->n_outer + 2; i++) kernel_push(o, (kins){ .op = K_END });
    if (w->panels) loop_take_place(o, w->panel_buf);
    return o;
}

kernel *kopt_gpu_column(const kernel *k, int n_outer, const target *t, double *out_cost) {
    column w = { .k = k, .t = t, .n_outer = n_outer, .from = 1 + n_outer, .to = k->ins.n - n_outer };
    if (n_outer < 1 || k->vars.n > 50) return NULL;
    w.v = k->ins.at[n_outer].var;
    if (!find_parts(&w)) return NULL;
    for (int i = 1; i < w.end; i++)
        if (at(&w, i)->op == K_LOOP && trips(at(&w, i)) < 1) return NULL;
    double cost = choose_shape(&w);
    if (!(cost < *out_cost) || w.parts < 2) return NULL;
    int64_t bytes = 0;
    for (int i = 0; i < w.n_acc; i++) bytes += w.parts * w.wide * (int64_t)dtype_size((tn_dtype)at(&w, w.acc[i])->dtype);
    if (bytes > t->group_bytes) return NULL;
    *out_cost = cost;
    return write(&w);
}
