/* nests.c - the schedule of a kernel that goes by blocks of rows: each nest in a block is tiled as if it were alone, for one
 * thread; threads share the blocks, or the loops around them. */
#include "recipe/recipe.h"

typedef struct nests {
    recipe *r;
    kernel **tiled;  /* by nest */
    schedule *steps; /* the same */
    krole *like;     /* by nest of the loop over blocks: the register tile, rows and vectors */
} nests;

/* A nest of the last rows takes panels that are as wide as those of the others: one copy of the operand serves both. n_vars:
 * variables that the nest had before it was tiled. */
static krole tile_like(const kernel *x, int n_vars) {
    krole tile = { 0 };
    int lanes = 1;
    for (kvar v = 0; v < x->vars.n; v++)
        if (x->vars.at[v].role.lanes > lanes) lanes = x->vars.at[v].role.lanes;
    for (int b = 0; b < x->bufs.n; b++)
        if (x->bufs.at[b].panels) tile.lanes = (int)(x->bufs.at[b].panels->width / lanes);
    for (kvar v = 0; v < n_vars && tile.lanes; v++) /* packing made rows of the tile variables that are no rows of the kernel */
        if (!x->vars.at[v].reduce && x->vars.at[v].role.lanes == 1 && x->vars.at[v].role.unroll > tile.unroll)
            tile.unroll = x->vars.at[v].role.unroll;
    return tile;
}

static void tile_nest(nests *w, const knest *at) {
    const kernel *k = w->r->k;
    int n = at->all - 1, rows = (int)k->vars.at[k->ins.at[at->loop].var].extent;
    target own = *w->r->t;
    own.threads = 1;
    recipe r = recipe_make(loop_nest(k, n), &own);
    krole *like = &w->like[at->n];
    if (at->rest && like->lanes) r.rows = like->unroll < rows ? like->unroll : rows, r.vectors = like->lanes;
    int n_vars = r.k->vars.n;
    recipe_tile_nest(&r);
    if (!at->rest) *like = tile_like(r.k, n_vars);
    w->tiled[n] = r.k, w->steps[n] = *r.s, w->r->laid_out |= r.laid_out;
    w->steps[n].name = NULL;
}

/* Threads share the outermost loop that they share most evenly. */
static kvar choose_parallel(const kernel *k, const target *t) {
    kvar best = -1;
    double most = 0;
    if (!recipe_is_worth_sharing(k, t)) return -1;
    if (k->params) return ext_hi(k->params, k->ins.at[1].hi) > 1 ? k->ins.at[1].var : -1;
    for (int i = 1; k->ins.at[i].op == K_LOOP; i++) {
        const kvar v = k->ins.at[i].var;
        int64_t whole = k->ins.at[i].hi, extent = k->vars.at[v].extent;
        double balance = loop_balance(whole, (double)(extent - whole), t->threads);
        if (whole > 1 && balance > most + 0.05) most = balance, best = v;
        if (k->vars.at[v].block) break;
    }
    return best;
}

void recipe_nests(recipe *r) {
    arena *a = r->k->a;
    int n = r->k->ins.n;
    nests w = { r, ARENA_ARRAY(a, kernel *, n), ARENA_ARRAY(a, schedule, n), ARENA_ARRAY(a, krole, n) };
    knest at = { 0 };
    kvar par = choose_parallel(r->k, r->t);
    if (par >= 0) recipe_do(r, "parallel %s", r->k->vars.at[par].name);
    while (loop_next_nest(r->k, &at)) tile_nest(&w, &at);
    VEC_PUSH(a, &r->s->steps, (loop_step){ .op = STEP_nests, .n_nests = at.all, .nest = w.steps });
    r->k = loop_put_nests(r->k, w.tiled); /* that is the step, and the nests are tiled already */
}
