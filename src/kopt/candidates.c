/* candidates.c - what a kernel could be cut like instead: the list from which `tenon tune` measures. In: the scalar form as
 * sched/ wrote it, and a choice to start from. Out: choices that change one part of it, each of which makes other code; the
 * caller goes on from the best of them. None of them changes a bit of the results: contractions with lanes along a row sum in
 * one order however they are cut, and sums along the lanes are left as the model has them. */
#include "kopt/kopt.h"

enum { MOST_TILES = 14, MOST_GPU_TILES = 24, MOST = 96 };

typedef struct lister {
    const kernel *scalar;
    const target *t;
    kchoice base;
    arena *a;
    VEC(kchoice) all;
} lister;

static void add(lister *l, kchoice c) { VEC_PUSH(l->a, &l->all, c); }

static void list_tiles(lister *l) {
    kernel *k = kernel_clone(l->scalar, l->a);
    kchoice tiles[MOST_TILES];
    recipe r = recipe_make(k, l->t);
    recipe_order(&r);
    recipe_slide(&r);
    recipe_fuse_loops(&r);
    loop_hoist(k);
    int n = recipe_register_tiles(&r, tiles, MOST_TILES);
    for (int i = 0; i < n; i++) {
        kchoice c = l->base;
        c.mr = tiles[i].mr, c.nv = tiles[i].nv;
        add(l, c);
    }
}

static void list_rest(lister *l) {
    static const uint8_t ways[] = { WAY_STAGE, WAY_PLACE, WAY_STREAM }, tiles[] = { 2, 3, 4, 1, 6, 8 },
                         unrolls[] = { 2, 4, 1, 3, 8 };
    static const uint16_t rows[] = { 256, 128, 512, 64, 192, 384, 16, 32, 8, 768, 1024, 2048 };
    kchoice c = l->base;
    for (size_t i = 0; i < COUNT_OF(ways); i++) c.way = ways[i], add(l, c);
    c = l->base;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) c.tiles = tiles[i], add(l, c);
    c = l->base;
    for (size_t i = 0; i < COUNT_OF(rows); i++) c.rows = rows[i], add(l, c);
    c = l->base;
    for (size_t i = 0; i < COUNT_OF(unrolls); i++) c.unroll = unrolls[i], add(l, c);
    c = l->base;
    for (int par = 1; par <= 6 && l->t->threads > 1; par++) c.par = (uint8_t)par, add(l, c);
}

static void list_gpu(lister *l) {
    kchoice tiles[MOST_GPU_TILES];
    int n = kopt_gpu_choices(kernel_clone(l->scalar, l->a), l->t, tiles, MOST_GPU_TILES);
    for (int i = 0; i < n; i++) add(l, tiles[i]);
}

static kernel *made_by(const lister *l, const kchoice *c) {
    target t = *l->t;
    t.choice = c;
    return kopt_run(kernel_clone(l->scalar, l->a), &t, NULL);
}

int kopt_candidates(const kernel *scalar, const target *t, kchoice base, arena *a, kchoice *out, int cap) {
    lister l = { .scalar = scalar, .t = t, .base = base, .a = a };
    kernel *seen[MOST + 1];
    int n = 0, most = cap < MOST ? cap : MOST;
    if (t->kind == TARGET_GPU) {
        list_gpu(&l);
    } else {
        list_tiles(&l);
        list_rest(&l);
    }
    seen[0] = made_by(&l, &base);
    for (int i = 0; i < l.all.n && n < most; i++) {
        kernel *k = made_by(&l, &l.all.at[i]);
        bool known = false;
        for (int s = 0; s <= n; s++) known = known || kernel_equal(seen[s], k);
        if (known) continue;
        out[n++] = l.all.at[i];
        seen[n] = k;
    }
    return n;
}

const char *kopt_choice_text(kchoice c, arena *a) {
    static const char *const ways[] = { "", "operands in place", "in panels", "row by row" };
    str s;
    str_init(&s, a);
    if (c.way == WAY_TILES)
        return arena_printf(a, "tiles of %d x %d, %d x %d of a thread, %d steps", c.mr * c.par, c.nv * c.unroll, c.mr, c.nv,
                            c.rows);
    if (c.mr && c.nv) str_addf(&s, ", tile %d x %d", c.mr, c.nv);
    if (c.way && c.way < COUNT_OF(ways)) str_addf(&s, ", %s", ways[c.way]);
    if (c.tiles) str_addf(&s, ", panels of %d tile%s", c.tiles, c.tiles == 1 ? "" : "s");
    if (c.rows) str_addf(&s, ", stretches of %d", c.rows);
    if (c.unroll) str_addf(&s, ", unrolled %d", c.unroll);
    if (c.par == 1) str_add(&s, ", not split over threads");
    if (c.par >= 2) str_addf(&s, ", threads along loop %d", c.par - 2);
    return s.n ? s.s + 2 : "as the model says";
}

const char *kopt_form_text(const kernel *k, arena *a) {
    str s;
    int64_t bytes = 0, fast = 0;
    str_init(&s, a);
    for (int v = 0; v < k->vars.n && !k->group; v++) { /* of a GPU's kernel most loops are how it moves things */
        const kvar_info *x = &k->vars.at[v];
        if (x->role.unroll > 1 || x->role.lanes > 1)
            str_addf(&s, ", %s %d x %d of %lld", x->name, x->role.unroll, x->role.lanes, (long long)x->extent);
    }
    for (int b = 0; b < k->bufs.n; b++) {
        int64_t size = k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
        *(k->bufs.at[b].kind == KB_LOCAL ? &bytes : &fast) += kbuf_is_local(&k->bufs.at[b]) ? size : 0;
    }
    if (k->group) str_addf(&s, ", %lld groups of %d", (long long)k->groups, k->group);
    if (bytes) str_addf(&s, ", copies of %.1f KiB", (double)bytes / 1024);
    if (fast) str_addf(&s, ", fast memory %.1f KiB", (double)fast / 1024);
    return s.n ? s.s + 2 : "one by one";
}
