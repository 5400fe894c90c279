/* kopt.c - the order of the steps, and what they share. */
#include "kopt/kopt.h"

/* Tiles with a turned panel are faster than sums along the lanes, where enough rows share it. Both take the terms of a sum in
 * different orders: which it is, the model alone says, as for one thread. */
static bool turn_and_stage(kernel *k, const target *t) {
    kernel before = *k;
    kvar_info *vars = arena_copy(k->a, k->vars.at, sizeof *vars * (size_t)k->vars.n);
    if (!kopt_choose_turned(k, t)) return false; /* and has changed nothing */
    kins *list = arena_copy(k->a, k->ins.at, sizeof *list * (size_t)k->ins.n);
    kopt_words(k, t);
    if (kopt_stage(k, t)) return true;
    *k = before;
    k->vars.at = vars, k->vars.cap = k->vars.n;
    k->ins.at = list, k->ins.cap = k->ins.n;
    return false;
}

static void choose_and_stage(kernel *k, const target *t) {
    target model = *t;
    bool other = t->choice || t->threads > 1;
    model.choice = NULL, model.threads = 1;
    kernel *trial = other ? kernel_clone(k, k->a) : k;
    if (turn_and_stage(trial, &model)) {
        if (!other || turn_and_stage(k, t)) return;
        model.threads = t->threads;
        if (!turn_and_stage(k, &model)) *k = *trial;
        return;
    }
    int way = t->choice ? t->choice->way : WAY_MODEL;
    kopt_choose(k, t);
    kopt_words(k, t);
    if (way == WAY_PLACE || (way == WAY_MODEL && kopt_stage_fixed(k, t))) return;
    if (way != WAY_STAGE && kopt_stream(k, t)) return;
    kopt_stage(k, t);
}

static void put_in_order(kernel *k, const target *t) {
    kopt_order(k);
    kopt_slide(k, t);
    loop_fuse_loops(k);
    loop_hoist(k);
}

kernel *kopt_tile_nest(kernel *k, const target *t) {
    put_in_order(k, t);
    choose_and_stage(k, t);
    kopt_block(k);
    return loop_tile(k);
}

/* Of each sum, the loops that its terms run over, their extents or their roles. */
static uint64_t hash_sums(const kernel *k, uint64_t h, bool roles) {
    int open[MAX_LOOPS + 1], depth = 0;
    uint8_t parts = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth <= MAX_LOOPS) open[depth] = i;
        depth += in->op == K_LOOP ? 1 : in->op == K_END ? -1 : 0;
        if (in->op != K_UPD && in->op != K_ARGUPD) continue;
        if (in->parts > parts) parts = in->parts;
        for (int d = 0; d < depth && d <= MAX_LOOPS; d++) {
            const kvar_info *v = &k->vars.at[k->ins.at[open[d]].var];
            int64_t words[] = { in->alu, roles ? v->role.unroll : v->extent, roles ? v->role.lanes : 1 };
            bool counts = roles ? v->role.unroll > 1 || v->role.lanes > 1 : true;
            if (open[d] > (int)in->c && v->reduce && counts) h = hash_bytes(words, sizeof words, h);
        }
    }
    return hash_bytes(&parts, sizeof parts, h);
}

uint64_t kopt_sums_order(kernel *k, const target *t) {
    target alone = *t;
    alone.threads = 1, alone.choice = NULL;
    put_in_order(k, t);
    uint64_t h = hash_sums(k, 0, false);
    choose_and_stage(k, &alone);
    return hash_sums(k, h, true);
}

kernel *kopt_run(kernel *k, const target *t) {
    if (t->kind == TARGET_GPU) return kopt_gpu(k, t);
    kernel *o = kopt_has_blocks(k) ? kopt_tile_blocks(k, t) : kopt_tile_nest(k, t);
    loop_multiply_add(o);
    loop_prefetch(o, t);
    loop_nontemporal(o, t);
    return o;
}
