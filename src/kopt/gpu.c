/* gpu.c - scalar form to the form of a GPU: which loops are dealt to whom.
 *
 * In: the scalar kernel. Out: a kernel with group > 0. An iteration of the outer loops is a thread's (several in vectors:
 * gpu_map.c; through fast memory: gpu_turn.c), or a group's (gpu_row.c, gpu_place.c), or a group has a tile of them
 * (gpu_tile.c), or columns (gpu_column.c); a scatter has forms of its own (gpu_scatter.c). The cheapest one by a count of
 * instructions is taken; it depends on shapes and the target only. */
#include "kopt/kopt.h"

#include <math.h>

enum { MAX_PRIVATE = 16 /* elements of a thread's own arrays */, MANY_VARS = 40 };

/* Every group works on one row at a time: the copies of local memory that tiling would make for several rows are not needed. */
static void drop_copies(kernel *k) {
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if ((in->op != K_LOAD && in->op != K_STORE) || k->bufs.at[in->buf].kind != KB_LOCAL) continue;
        for (kvar v = 0; v < k->vars.n; v++)
            if (k->vars.at[v].row) in->idx = affine_set_var(k->a, in->idx, v, affine_const(0));
    }
}

static affine renamed(arena *a, affine x, const kvar *to) {
    affine y = affine_const(x.base);
    for (int i = 0; i < x.n; i++) y = affine_add(a, y, affine_scale(a, affine_var(a, to[x.t[i].var]), x.t[i].coef));
    return y;
}

/* Nests that follow each other need no variables of their own; chains have hundreds of them. */
static void share_variables(kernel *k) {
    kvar_info *vars = ARENA_ARRAY(k->a, kvar_info, k->vars.n + 1);
    kvar *now = ARENA_ARRAY(k->a, kvar, k->vars.n + 1);
    bool *open = ARENA_ARRAY(k->a, bool, k->vars.n + 1);
    int n = 0, depth = 0, *stack = ARENA_ARRAY(k->a, int, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (in->op == K_END) open[stack[--depth]] = false;
        if (in->op == K_LOOP) {
            const kvar_info *own = &k->vars.at[in->var];
            kvar v = 0;
            while (v < n &&
                   (open[v] || vars[v].extent != own->extent || vars[v].row != own->row || vars[v].reduce != own->reduce))
                v++;
            if (v == n) vars[n++] = *own;
            open[v] = true, stack[depth++] = v;
            in->var = now[in->var] = v;
        }
        in->idx = renamed(k->a, in->idx, now);
        for (int m = 0; m < in->n_mask; m++) in->mask[m].e = renamed(k->a, in->mask[m].e, now);
    }
    k->vars.at = vars, k->vars.n = n, k->vars.cap = n;
}

/* Perfectly nested independent loops from the first instruction on that hold the whole kernel. */
static int outer_loops(const kernel *k) {
    int n = 0;
    while (k->ins.at[1 + n].op == K_LOOP && !k->vars.at[k->ins.at[1 + n].var].reduce &&
           kernel_loop_end(k, 1 + n) == k->ins.n - 1 - n)
        n++;
    return n;
}

static double trips(const kernel *k, int n) {
    double p = 1;
    for (int i = 0; i < n; i++) p *= (double)(k->ins.at[1 + i].hi - k->ins.at[1 + i].lo);
    return p;
}

static int64_t private_elems(const kernel *k) {
    int64_t n = 0;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) n += k->bufs.at[b].elems;
    return n;
}

static double waves(double threads, const target *t) {
    double w = threads / (double)t->grid;
    return w < 1 ? 1 : w;
}

/* A processor has fast memory for so many groups; how many times fewer threads that are than it needs to be busy. */
static double crowding(const kernel *k, int group, const target *t) {
    double bytes = 1;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL)
            bytes += (double)k->bufs.at[b].elems * (double)dtype_size((tn_dtype)k->bufs.at[b].dtype);
    double threads = fmax(1, floor(4 * (double)t->group_bytes / bytes)) * group;
    return threads < 1024 ? 1024 / threads : 1;
}

/* One thread an iteration of the outer loops. */
static kernel *flat(kernel *k, int n_outer, const target *t) {
    int64_t n = (int64_t)trips(k, n_outer);
    for (int i = 0; i < n_outer; i++) k->ins.at[1 + i].par = PAR_GRID;
    for (k->group = t->group < 256 ? t->group : 256; k->group > 32 && n / k->group < t->grid / 256;) k->group /= 2;
    k->groups = n < 1 ? 1 : (n + k->group - 1) / k->group;
    k->tiled = true;
    return k;
}

static kernel *finished(kernel *k) {
    kopt_gpu_wide(k);
    kopt_gpu_hold(k);
    loop_hoist(k);
    loop_sweep(k);
    return k;
}

/* Returns how many outer loops there are. */
static int prepare(kernel *k, const target *t) {
    recipe r = recipe_make(k, t);
    recipe_order(&r);
    recipe_fuse_loops(&r);
    drop_copies(k);
    if (k->vars.n > MANY_VARS) share_variables(k);
    k->par_var = -1;
    return outer_loops(k);
}

int kopt_gpu_choices(kernel *k, const target *t, kchoice *out, int cap) {
    return kopt_gpu_tiles(k, prepare(k, t), t, out, cap);
}

kernel *kopt_gpu(kernel *k, const target *t) {
    int n = prepare(k, t), best_group = 0;
    kernel *scatter = kopt_gpu_scatter(k, n, t);
    if (scatter) return finished(scatter);
    double rows = trips(k, n);
    kvar fast = n ? k->ins.at[n].var : -1;
    double best =
        waves(rows, t) * (kopt_gpu_serial_cost(k, 1 + n, k->ins.n - n, fast) + 1) + kopt_gpu_start_cost(rows / 128, t);
    if (private_elems(k) > MAX_PRIVATE || n == 0) best = INFINITY;
    for (int group = t->group < 32 ? t->group : 32; group <= t->group; group *= 2) {
        double cost = waves(rows * group * crowding(k, group, t), t) * (kopt_gpu_rows_cost(k, 1 + n, k->ins.n - n, group) + 8) +
                      kopt_gpu_start_cost(rows, t);
        if (cost < best) best = cost, best_group = group;
    }
    int cluster = 1, held = best_group ? kopt_gpu_hold_group(k, n, t, &cluster) : 0;
    if (held) best_group = held;
    /* Much earlier than when the groups at work are done is worse than not at all, a little earlier does no harm: as many rows
     * later as half of what may be at work. */
    int64_t ahead = held ? t->grid / 2 / (held * cluster) : 0;
    kernel *forms[] = { kopt_gpu_place(k, n, t, &best), kopt_gpu_cluster(k, n, t, &best), kopt_gpu_tile(k, n, t, &best),
                        kopt_gpu_column(k, n, t, &best) },
           *form = NULL;
    for (size_t i = 0; i < COUNT_OF(forms); i++) /* each is there only if it costs less than those before */
        if (forms[i]) form = forms[i];
    if (!form) form = kopt_gpu_turn(k, n, t);
    if (!form && best_group) form = kopt_gpu_rows(k, n, best_group, cluster, ahead);
    if (!form) form = kopt_gpu_map(k, n, t);
    return finished(form ? form : flat(k, n, t));
}
