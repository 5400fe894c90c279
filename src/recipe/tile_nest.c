/* tile_nest.c - the schedule of a nest, a decision a line: up to the step tile. A kernel is one nest, or goes by blocks of rows
 * with several in a block (nests.c). */
#include "recipe/recipe.h"

/* A contraction of narrow numbers multiplies by packs of as many as the processor can, if they suit the kernel. This depends on
 * the graph and on what the processor has, not on how the kernel is cut: the sum of two bf16 products goes on from the second
 * of them, and every way to cut the kernel has to do the same. */
static void packed_dot(recipe *r) {
    bool four = r->t->packed >= 4 && recipe_try(r, "packed_dot 4");
    if (!four && (r->t->packed < 2 || !recipe_try(r, "packed_dot 2"))) return;
    recipe_slide_words(r);
    if (four || !target_multiplies_pairs(r->t) || r->t->no_panels) return;
    for (int b = 0; b < r->k->bufs.n; b++) recipe_try(r, "prepack b%d", b);
}

/* Tiles with a transposed panel are faster than sums along the lanes, where enough rows share it. Both take the terms of a sum
 * in different orders: which it is, the model alone says, as for one thread. */
static bool copy_and_pack(recipe *r) {
    recipe before = *r;
    schedule s = *r->s;
    kernel *k = r->k, was = *k;
    kvar_info *vars = arena_copy(k->a, k->vars.at, sizeof *vars * (size_t)k->vars.n);
    kbuf *bufs = arena_copy(k->a, k->bufs.at, sizeof *bufs * (size_t)k->bufs.n);
    if (!recipe_register_tile_packed(r)) return false; /* and has changed nothing */
    kins *list = arena_copy(k->a, k->ins.at, sizeof *list * (size_t)k->ins.n);
    packed_dot(r);
    if (recipe_pack(r, false)) return true;
    *r = before, *r->s = s, *k = was;
    k->vars.at = vars, k->vars.cap = k->vars.n;
    k->bufs.at = bufs, k->bufs.cap = k->bufs.n;
    k->ins.at = list, k->ins.cap = k->ins.n;
    return false;
}

static bool sums_along_lanes(const kernel *k) {
    bool found = false;
    for (kvar v = 0; v < k->vars.n; v++) found |= k->vars.at[v].reduce && k->vars.at[v].role.lanes > 1;
    return found;
}

static void tile_and_pack(recipe *r) {
    const target *t = r->t;
    target model = *t;
    bool other = t->threads > 1 || r->vectors;
    model.threads = 1;
    recipe trial = *r;
    trial.t = &model, trial.rows = trial.vectors = 0;
    if (other) {
        trial.k = kernel_clone(r->k, r->k->a);
        trial.s = arena_copy(r->k->a, r->s, sizeof *r->s);
        trial.s->steps.at = arena_copy(r->k->a, r->s->steps.at, sizeof *r->s->steps.at * (size_t)r->s->steps.n);
        trial.s->steps.cap = r->s->steps.n;
    }
    if (copy_and_pack(&trial)) {
        if (!other) {
            *r = trial, r->t = t;
            return;
        }
        if (copy_and_pack(r)) return;
        model.threads = t->threads;
        r->t = &model, r->rows = r->vectors = 0;
        bool done = copy_and_pack(r);
        if (!done) *r = trial;
        r->t = t;
        return;
    }
    if (!other) *r = trial, r->t = t;
    recipe_register_tile(r);
    packed_dot(r);
    if (recipe_pack(r, true) || recipe_gemv(r) || recipe_pack(r, false)) return;
    if (r->lone || sums_along_lanes(r->k))
        recipe_try(r, "group_sums"); /* else threads decide whether it is packed: bits would differ */
}

static void put_in_order(recipe *r) {
    recipe_order(r);
    recipe_along_terms(r);
    recipe_slide(r);
    recipe_fuse_loops(r);
    if (r->k->vars.n <= MAX_LOOPS) recipe_do(r, "hoist");
}

void recipe_tile_nest(recipe *r) {
    put_in_order(r);
    recipe_lay_out(r);
    tile_and_pack(r);
    recipe_transpose(r);
    if (r->threads >= 0) recipe_do(r, "parallel %s", r->k->vars.at[r->threads].name);
    recipe_do(r, "tile");
}

void recipe_tile_in_place(recipe *r) {
    put_in_order(r);
    recipe_register_tile(r);
    recipe_transpose(r);
}

/* Of each sum, the loops that its terms run over, their extents or their roles. */
static uint64_t hash_sums(const kernel *k, uint64_t h, bool roles) {
    int open[MAX_LOOPS + 1], depth = 0;
    uint8_t packed = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth <= MAX_LOOPS) open[depth] = i;
        depth += in->op == K_LOOP ? 1 : in->op == K_END ? -1 : 0;
        if (in->op != K_UPD && in->op != K_ARGUPD) continue;
        if (in->packed > packed) packed = in->packed;
        for (int d = 0; d < depth && d <= MAX_LOOPS; d++) {
            const kvar_info *v = &k->vars.at[k->ins.at[open[d]].var];
            int64_t words[] = { in->alu, roles ? v->role.unroll : v->extent, roles ? v->role.lanes : 1 };
            bool counts = roles ? v->role.unroll > 1 || v->role.lanes > 1 : true;
            if (open[d] > (int)in->c && v->reduce && counts) h = hash_bytes(words, sizeof words, h);
        }
    }
    return hash_bytes(&packed, sizeof packed, h);
}

uint64_t recipe_sums_order(kernel *k, const target *t) {
    target alone = *t;
    alone.threads = 1;
    recipe r = recipe_make(k, &alone);
    put_in_order(&r);
    recipe_lay_out(&r);
    uint64_t h = hash_sums(r.k, 0, false);
    tile_and_pack(&r);
    return hash_sums(r.k, h, true);
}
