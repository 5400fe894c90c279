/* params.c - the schedule of a kernel with sizes that are given at run time. */
#include "recipe/recipe.h"

enum {
    CONTRACTION_ROWS = 16, /* of a block: a few register tiles .. */
    EXACT_ROWS = 8,        /* .. the rest is one block of exactly its rows, which reads the other operand once .. */
    FEW_ELEMS = 2048,      /* .. else a block has as many elements: they hide what starting it takes */
    MOST_ROWS = 256
};

static bool has_contraction(const kernel *k) { return loop_products(k, 1, k->ins.n) > 0; }

static int64_t power_up_to(int64_t n) {
    int64_t p = 1;
    while (2 * p <= n) p *= 2;
    return p;
}

/* Work on a row: instructions and their iterations, where there are as many as there can be. */
static int64_t rows_of_block(const kernel *k, kvar v) {
    int64_t hi = ext_hi(k->params, k->vars.at[v].extent), rows = CONTRACTION_ROWS;
    double row = 1;
    for (int b = 0; b < k->bufs.n; b++) {
        double own = (double)ext_hi(k->params, k->bufs.at[b].elems) / (double)(hi > 0 ? hi : 1);
        if (k->bufs.at[b].kind != KB_IN && own > row) row = own;
    }
    if (!has_contraction(k)) rows = (int64_t)(FEW_ELEMS / row) + 1;
    if (rows > MOST_ROWS) rows = MOST_ROWS;
    return power_up_to(rows < hi ? rows : hi > 1 ? hi : 1);
}

/* Rows of rows are rows: those of a batch of sequences, too. */
void recipe_fuse_rows(recipe *r) {
    for (int i = 1; i + 1 < r->k->ins.n && r->k->ins.at[i + 1].op == K_LOOP; i++) {
        const kvar_info *outer = &r->k->vars.at[r->k->ins.at[i].var], *inner = &r->k->vars.at[r->k->ins.at[i + 1].var];
        if (ext_is_lit(outer->extent) || ext_is_lit(inner->extent)) continue;
        if (recipe_try(r, "fuse_loops %s %s", outer->name, inner->name)) i = 0;
    }
}

void recipe_block_rows(recipe *r) {
    recipe_fuse_rows(r);
    for (int i = 1; i < r->k->ins.n && r->k->ins.at[i].op == K_LOOP; i++) {
        kvar v = r->k->ins.at[i].var;
        if (ext_is_lit(r->k->vars.at[v].extent)) continue;
        for (int64_t n = rows_of_block(r->k, v); n > 0; n /= 2) {
            int64_t exact = n < EXACT_ROWS ? n : EXACT_ROWS;
            if (has_contraction(r->k) && exact > 1 &&
                recipe_try(r, "block_rows %s %lld exact=%lld", r->k->vars.at[v].name, (long long)n, (long long)exact))
                return;
            if (recipe_try(r, "block_rows %s %lld", r->k->vars.at[v].name, (long long)n)) return;
        }
    }
}

/* What a step of the schedule for the largest sizes says for all: along a loop whose iterations a run gives, tiles are powers
 * of two. */
static void do_for_all(recipe *r, const loop_step *s) {
    const char *name = s->n ? s->arg[0].word : "";
    kvar v = 0;
    while (v < r->k->vars.n && strcmp(r->k->vars.at[v].name, name)) v++;
    int64_t n = s->n > 1 ? s->arg[1].n : 1;
    switch (s->op) {
    case STEP_hoist:
        recipe_try(r, "hoist");
        return;
    case STEP_fuse_loops:
    case STEP_reorder: {
        str text;
        str_init(&text, r->k->a);
        step_print(s, &text);
        recipe_try(r, "%s", text.s);
        return;
    }
    case STEP_vectorize:
    case STEP_unroll_jam:
        if (v == r->k->vars.n) return;
        if (!ext_is_lit(r->k->vars.at[v].extent)) n = power_up_to(n);
        if (n > 1) recipe_try(r, "%s %s %lld", step_get((step_op)s->op)->name, name, (long long)n);
        return;
    default:
        return;
    }
}

/* Threads share whole tiles: whether there may be more than one. */
static bool has_tiles(const kernel *k, kvar v) {
    const kvar_info *x = &k->vars.at[v];
    return x->row && ext_hi(k->params, x->extent) >= 2 * (int64_t)x->role.unroll * x->role.lanes;
}

static const char *lanes_of_run(const kernel *k) {
    const char *name = NULL;
    for (int i = 1; i < k->ins.n && !name; i++) name = loop_lanes_of_run(k, &k->ins.at[i]);
    return name;
}

/* Accesses that go through neighbours along v; -1: those of one lie as far apart as a run says, or an index of its own. */
static int neighbours(const kernel *k, kvar v, int *out_bytes) {
    int n = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (!kernel_touches(in)) continue;
        if (in->dyn || !ext_is_lit(affine_coef(in->idx, v))) return -1;
        int bytes = (int)dtype_size((tn_dtype)in->dtype);
        n += affine_coef(in->idx, v) == 1, *out_bytes = bytes > *out_bytes ? bytes : *out_bytes;
    }
    return n;
}

/* Of a kernel without sums, whose lanes would go along what lies as far apart as a run says (what it transposes): they go along
 * the loop in which most accesses have neighbours instead. */
static void give_lanes(recipe *r) {
    const kernel *k = r->k;
    kvar best = -1;
    int most = 0, bytes = 4;
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op == K_UPD || k->ins.at[i].op == K_ARGUPD || k->ins.at[i].op == K_SCATTER) return;
        if (k->ins.at[i].op != K_LOOP) continue;
        kvar v = k->ins.at[i].var;
        int n = k->vars.at[v].row ? neighbours(k, v, &bytes) : -1;
        if (n > most && ext_hi(k->params, k->vars.at[v].extent) >= r->t->vector_bytes / bytes) most = n, best = v;
    }
    if (best < 0) return;
    const char *name = k->vars.at[best].name;
    if (k->vars.at[best].role.unroll > 1 && !recipe_try(r, "unroll_jam %s 1", name)) return;
    if (recipe_try(r, "vectorize %s %d", name, r->t->vector_bytes / bytes) && lanes_of_run(r->k))
        recipe_do(r, "vectorize %s 1", name);
}

/* Lanes stay where the elements of all accesses lie a literal apart. */
static void drop_lanes_of_run(recipe *r) {
    bool any = false;
    for (const char *name; (name = lanes_of_run(r->k)); any = true) recipe_do(r, "vectorize %s 1", name);
    if (any) give_lanes(r);
}

/* The kernel of the largest sizes; what has no iterations then, since it grows as others shrink, has one. */
static kernel *largest(const kernel *k) {
    kernel *most = (kernel *)(uintptr_t)kernel_at_most(k, k->a); /* a copy, as it has parameters */
    for (int i = 1; i < most->ins.n; i++) {
        kins *in = &most->ins.at[i];
        if (in->op == K_LOOP && in->hi <= in->lo && !ext_is_lit(k->ins.at[i].hi))
            in->hi = in->lo + 1, most->vars.at[in->var].extent = in->hi;
    }
    return most;
}

/* Rows with sums over a size of the run, which may be a few elements: several rows at once, so that their chains of sums do not
 * wait for each other; tile does so where they are (src/loop/tile.c). (Softmax of 3968 x 31, a core of a Zen 5: 165, 109 and 94
 * us for 1, 2 and 4 rows.) */
static void unroll_short_rows(recipe *r) {
    enum { ROWS = 4 };
    const kernel *k = r->k;
    int at = 1, most = 1, n = ROWS;
    bool sums = false;
    if (r->t->threads > 1) return; /* which share whole tiles */
    while (at < k->ins.n && k->ins.at[at].op != K_LOOP) at++;
    while (at + 1 < k->ins.n && k->ins.at[at + 1].op == K_LOOP && kernel_loop_end(k, at + 1) == kernel_loop_end(k, at) - 1)
        at++;
    if (at == k->ins.n) return;
    const kvar_info *row = &k->vars.at[k->ins.at[at].var];
    if (!row->row || row->role.unroll > 1 || row->role.lanes > 1) return;
    for (int i = at + 1, end = kernel_loop_end(k, at); i < end; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        const kvar_info *x = &k->vars.at[k->ins.at[i].var];
        if (ext_is_lit(x->extent)) return;
        if (x->role.unroll > most) most = x->role.unroll;
        sums |= x->reduce && x->role.lanes > 1;
        for (i++; k->ins.at[i].op != K_END; i++)
            if (k->ins.at[i].op == K_LOOP) return; /* a contraction, whose tile has rows */
    }
    while (n > 1 && n * most > r->t->n_vector_regs / 2) n /= 2;
    if (sums && n > 1) recipe_try(r, "unroll_jam %s %d", row->name, n);
}

void recipe_params(recipe *r) {
    const kernel *k = r->k;
    target alone = *r->t;
    alone.threads = 1;
    recipe most = recipe_make(largest(k), &alone);
    recipe_tile_in_place(&most);
    for (int i = 0; i < most.s->steps.n; i++) do_for_all(r, &most.s->steps.at[i]);
    drop_lanes_of_run(r);
    unroll_short_rows(r);
    k = r->k;
    kernel *before = kernel_clone(k, k->a);
    int n = r->s->steps.n;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op == K_LOOP && recipe_is_worth_sharing(k, r->t); i++)
        if (has_tiles(k, k->ins.at[i].var) && recipe_try(r, "parallel %s", k->vars.at[k->ins.at[i].var].name)) break;
    if (recipe_try(r, "tile")) return;
    r->k = before, r->s->steps.n = n; /* what threads would share is not proven to be apart */
    recipe_do(r, "tile");
}
