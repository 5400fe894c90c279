/* loop_panels.c - a matrix that all iterations of a loop multiply by lies in panels before the loop: each column of panels as a
 * tile reads it, one row behind the other, so that no iteration packs or turns it again.
 *
 * In: a plan with control flow, kernels in scalar form. Out: for each such matrix one more kernel before the repeat, which
 * writes the panels into a temporary; the loop over columns of the product becomes two, over panels and columns of one. Every
 * sum has its terms in the same order. A matrix that no run changes is laid out before all runs instead (loop/pack.c). */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"

enum {
    LEAST_TIMES = 4, /* iterations: one packs as well as the loop would */
    LEAST_PANEL_ROWS = 8
};

typedef struct product { /* of a launch in a repeat */
    int repeat;          /* steps */
    int kernel;
    reg load; /* of the matrix, [depth][n] or [n][depth] */
    kvar n, depth;
    int64_t width; /* of a panel */
} product;

static const kins *ins_of(const plan *p, const product *x, reg i) { return &p->kernels.at[x->kernel].k->ins.at[i]; }

/* Whether a launch in the repeat writes it. */
static bool is_written(const plan *p, int repeat, int32_t buf) {
    for (int i = repeat + 1; i < pstep_end(p, repeat); i++) {
        if (p->steps.at[i].kind != PSTEP_LAUNCH) continue;
        const pkernel *pk = &p->kernels.at[p->steps.at[i].kernel];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->k->bufs.at[b].kind != KB_IN && plan_base(p, pk->args[b].buf) == plan_base(p, buf)) return true;
    }
    return false;
}

static bool is_only_use(const kernel *k, reg load, kvar n) {
    int loops = 0, uses = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        loops += in->op == K_LOOP && in->var == n;
        uses += kernel_has_buffer(in) && in->buf == k->ins.at[load].buf;
    }
    return loops == 1 && uses == 1;
}

/* The loops around the update: rows, and the contraction's as the innermost. What depends on which. */
static bool find_loops(const kernel *k, reg upd, const kins *x, product *out) {
    const kins *w = &k->ins.at[out->load];
    int *open = ARENA_ARRAY(k->a, int, k->ins.n), depth = kernel_open_loops(k, upd, open);
    int64_t rows = 1;
    out->n = out->depth = -1;
    for (int i = 0; i < depth; i++) {
        kvar v = k->ins.at[open[i]].var;
        const kvar_info *info = &k->vars.at[v];
        bool along_w = affine_coef(w->idx, v) != 0, along_x = affine_coef(x->idx, v) != 0;
        if (info->reduce) {
            if (i != depth - 1 || !along_w || !along_x) return false;
            out->depth = v;
        } else if (!info->row || along_w == along_x) {
            return false;
        } else if (along_x) {
            if (!size_mul(rows, info->extent, &rows)) return false;
        } else if (out->n >= 0) {
            return false;
        } else {
            out->n = v;
        }
    }
    if (out->n < 0 || out->depth < 0 || rows < LEAST_PANEL_ROWS || w->idx.n != 2 || w->idx.base) return false;
    int64_t n = k->vars.at[out->n].extent, m = k->vars.at[out->depth].extent, along_n = affine_coef(w->idx, out->n),
            along_m = affine_coef(w->idx, out->depth);
    return (along_n == 1 && along_m == n) || (along_m == 1 && along_n == m);
}

static bool is_matrix(const plan *p, const target *t, product *x, reg upd, reg load, reg other) {
    const pkernel *pk = &p->kernels.at[x->kernel];
    const kins *w = &pk->k->ins.at[load], *by = &pk->k->ins.at[other];
    if (w->op != K_LOAD || by->op != K_LOAD || w->n_mask || w->dyn || w->buf == by->buf) return false;
    const kbuf *b = &pk->k->bufs.at[w->buf];
    x->load = load;
    if (b->kind != KB_IN || b->fixed || b->loose || (b->dtype != TN_F32 && b->dtype != TN_F64)) return false;
    if (!find_loops(pk->k, upd, by, x) || !is_only_use(pk->k, load, x->n)) return false;
    int64_t size = (int64_t)dtype_size((tn_dtype)b->dtype), columns = pk->k->vars.at[x->n].extent;
    x->width = t->vector_bytes / size * (t->n_vector_regs >= 32 ? 4 : 2);
    if (columns % x->width || columns <= x->width || b->elems != columns * pk->k->vars.at[x->depth].extent) return false;
    if (b->elems * size <= t->l1_bytes || p->bufs.at[pk->args[w->buf].buf].kind == PB_WINDOW) return false;
    return !is_written(p, x->repeat, pk->args[w->buf].buf);
}

static bool find_product(const plan *p, const target *t, product *x) {
    const kernel *k = p->kernels.at[x->kernel].k;
    if (k->params || k->vars.n >= MAX_LOOPS) return false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_UPD || in->alu != OP_dot) continue;
        if (is_matrix(p, t, x, (reg)i, in->b, in->a) || is_matrix(p, t, x, (reg)i, in->a, in->b)) return true;
    }
    return false;
}

/* ---- */

static affine in_panels(arena *a, kvar panel, kvar depth, kvar column, int64_t m, int64_t width) {
    affine at = affine_add(a, affine_scale(a, affine_var(a, panel), m * width), affine_scale(a, affine_var(a, depth), width));
    return affine_add(a, at, affine_var(a, column));
}

/* The kernel that lays the matrix out in buffer `to`. */
static pkernel layout_of(const plan *p, const product *x, int32_t from, int32_t to) {
    const kernel *k = p->kernels.at[x->kernel].k;
    const kins *w = ins_of(p, x, x->load);
    pkernel pk = plan_copy(p, from, to);
    kernel *o = kernel_make(p->a, arena_printf(p->a, "panels_%u", p->bufs.at[from].node));
    int64_t n = k->vars.at[x->n].extent, m = k->vars.at[x->depth].extent;
    kvar panel = kernel_var(o, "i", n / x->width, true, false), row = kernel_var(o, "j", m, true, false),
         column = kernel_var(o, "k", x->width, true, false);
    for (int b = 0; b < pk.k->bufs.n; b++) kernel_buf(o, pk.k->bufs.at[b]);
    for (kvar v = 0; v < o->vars.n; v++) build_open(o, v, 0, o->vars.at[v].extent, PAR_SERIAL);
    affine at = affine_add(p->a, affine_scale(p->a, affine_var(p->a, panel), x->width), affine_var(p->a, column));
    kins load = { .op = K_LOAD, .dtype = w->dtype, .src = w->src, .node = w->node };
    load.idx = affine_add(p->a, affine_scale(p->a, at, affine_coef(w->idx, x->n)),
                          affine_scale(p->a, affine_var(p->a, row), affine_coef(w->idx, x->depth)));
    reg r = kernel_push(o, load);
    kernel_push(o, (kins){ .op = K_STORE,
                           .dtype = w->src,
                           .buf = 1,
                           .idx = in_panels(p->a, panel, row, column, m, x->width),
                           .a = r,
                           .node = w->node });
    build_ends(o, o->vars.n);
    o->bytes_read = pk.k->bytes_read, o->bytes_written = pk.k->bytes_written;
    pk.k = o;
    return pk;
}

/* One more kernel and its launch, before step `at`, whose first launch is that of kernel `first`. */
static void launch_before(plan *p, int at, int first, pkernel pk) {
    for (int i = 0; i < p->steps.n; i++) {
        pstep *s = &p->steps.at[i];
        if (s->kind == PSTEP_LAUNCH && s->kernel >= first) s->kernel++;
        if (i >= at || i + s->inside < at) continue;
        if (s->kind == PSTEP_BRANCH && at <= i + s->n_then) s->n_then++;
        s->inside++;
    }
    VEC_PUSH(p->a, &p->kernels, pk);
    memmove(&p->kernels.at[first + 1], &p->kernels.at[first], sizeof pk * (size_t)(p->kernels.n - 1 - first));
    p->kernels.at[first] = pk;
    pstep launch = { .kind = PSTEP_LAUNCH, .kernel = first };
    VEC_PUSH(p->a, &p->steps, launch);
    memmove(&p->steps.at[at + 1], &p->steps.at[at], sizeof launch * (size_t)(p->steps.n - 1 - at));
    p->steps.at[at] = launch;
    for (int i = first; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}

static void lay_out(plan *p, const target *t, const product *x) {
    pkernel *pk = &p->kernels.at[x->kernel];
    int b = ins_of(p, x, x->load)->buf, first = INT32_MAX;
    int32_t from = pk->args[b].buf;
    int64_t m = pk->k->vars.at[x->depth].extent;
    const pbuf *own = &p->bufs.at[from];
    pbuf panels = { .kind = PB_TEMP, .node = own->node, .dtype = own->dtype, .elems = own->elems, .bytes = own->bytes };
    panels.slot = SLOT_TEMP, panels.inplace_of = panels.io = -1;
    VEC_PUSH(p->a, &p->bufs, panels);
    int32_t to = p->bufs.n - 1;
    pkernel layout = layout_of(p, x, from, to);
    recipe r = recipe_make(pk->k, t);
    recipe_do(&r, "split %s %lld", pk->k->vars.at[x->n].name, (long long)x->width);
    pk->k = r.k;
    kins *load = &pk->k->ins.at[x->load + 1]; /* behind the loop over panels */
    load->idx = in_panels(p->a, pk->k->vars.n - 1, x->depth, x->n, m, x->width);
    pk->k->bufs.at[b].plan_buf = to, pk->args[b].buf = to;
    for (int i = x->repeat + 1; i < pstep_end(p, x->repeat); i++)
        if (p->steps.at[i].kind == PSTEP_LAUNCH && p->steps.at[i].kernel < first) first = p->steps.at[i].kernel;
    VEC_PUSH(
        p->a, &p->decisions,
        ((why){ p->bufs.at[from].node, 0, false, "all iterations of a loop multiply by it: it lies in panels before them" }));
    launch_before(p, x->repeat, first, layout);
}

void lay_out_for_loops(plan *p, const target *t) {
    for (int r = 0; r < p->steps.n; r++) {
        if (p->steps.at[r].kind != PSTEP_REPEAT || p->steps.at[r].times < LEAST_TIMES) continue;
        for (int i = r + 1; i < pstep_end(p, r); i++) {
            product x = { .repeat = r, .kernel = p->steps.at[i].kernel };
            if (p->steps.at[i].kind != PSTEP_LAUNCH || !find_product(p, t, &x)) continue;
            lay_out(p, t, &x);
            r++, i++; /* one launch more before it */
        }
    }
}
