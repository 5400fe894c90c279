/* same_bits.c - whether two schedules of a kernel give the same bits, by their steps alone: what changes the order of sums, or
 * where they are rounded, must be the same in both, in the same order; all else may differ. So bits never depend on tuning. */
#include "loop/schedule.h"

/* -1: not a loop of the scalar kernel, such as one that a step made. */
static kvar named(const kernel *k, const char *name) {
    for (kvar v = 0; v < k->vars.n; v++)
        if (!strcmp(k->vars.at[v].name, name)) return v;
    return -1;
}

static bool adds_up(const kernel *k, const loop_step *s) {
    kvar v = named(k, s->arg[0].word);
    return v < 0 || k->vars.at[v].reduce;
}

/* Vectors, copies or threads along a sum: it has parts then. */
static bool splits_sum(const kernel *k, const schedule *s) {
    for (int i = 0; i < s->steps.n; i++) {
        const loop_step *x = &s->steps.at[i];
        if ((x->op == STEP_vectorize || x->op == STEP_unroll_jam || x->op == STEP_split_k) && adds_up(k, x)) return true;
    }
    return false;
}

static bool moves(const loop_step *s) { return s->op == STEP_pack || s->op == STEP_accumulate || s->op == STEP_split; }

/* Steps that may differ. Blocks of a sum go on from the sum of the block before, where it has no parts. */
static bool is_free(const kernel *k, const loop_step *s, bool parts) {
    switch (s->op) {
    case STEP_vectorize:
    case STEP_unroll_jam:
    case STEP_split:
        return !adds_up(k, s);
    case STEP_pack:
    case STEP_accumulate:
    case STEP_pack_shared:
        return !parts;
    case STEP_parallel:
    case STEP_bind:
    case STEP_prepack:
    case STEP_lay_out:
    case STEP_lay_out_table:
    case STEP_tile:
    case STEP_pipeline:
    case STEP_join_bytes:
    case STEP_skip_masked:
    case STEP_prefetch_rows:
    case STEP_prefetch_results:
    case STEP_prefetch_ahead:
    case STEP_nontemporal:
        return true;
    default:
        return false;
    }
}

static bool same_nests(const kernel *k, const loop_step *x, const loop_step *y, str *why) {
    if (x->n_nests != y->n_nests) return step_refuse(why, "steps of %d nests, not %d", y->n_nests, x->n_nests);
    for (int i = 0; i < x->n_nests; i++)
        if (!schedule_same_bits(k, &x->nest[i], &y->nest[i], why)) return false;
    return true;
}

static bool same_step(const kernel *k, const loop_step *x, const loop_step *y, str *why) {
    if (x->op == STEP_tensorize && y->op == x->op)
        return true; /* units add the same 16 products at a time, whatever the tile */
    bool same = x->op == y->op && x->n == y->n;
    for (int i = 0; i < x->n && same; i++)
        same = x->arg[i].kind == y->arg[i].kind && x->arg[i].n == y->arg[i].n && !strcmp(x->arg[i].word, y->arg[i].word);
    if (same && x->op == STEP_nests) return same_nests(k, x, y, why);
    if (same) return true;
    str got;
    str_init(&got, why->a);
    step_print(y, &got);
    return step_refuse(why, "\"%s\" may change the order of sums, or where they are rounded", got.s);
}

/* The next step from *i on that may not differ, or NULL. */
static const loop_step *next_fixed(const kernel *k, const schedule *s, bool parts, int *i) {
    while (*i < s->steps.n && is_free(k, &s->steps.at[*i], parts)) ++*i;
    return *i < s->steps.n ? &s->steps.at[(*i)++] : NULL;
}

bool schedule_same_bits(const kernel *k, const schedule *x, const schedule *y, str *why) {
    bool parts = splits_sum(k, x) || splits_sum(k, y), moved = false;
    for (int i = 0, j = 0;;) {
        int from = j;
        const loop_step *p = next_fixed(k, x, parts, &i), *q = next_fixed(k, y, parts, &j);
        if (!p && !q) return true;
        for (; from < j; from++) moved = moved || (&y->steps.at[from] != q && moves(&y->steps.at[from]));
        if (!p || !q) {
            str text;
            str_init(&text, why->a);
            step_print(p ? p : q, &text);
            return step_refuse(why, "\"%s\" is %s", text.s, p ? "missing" : "one more");
        }
        if (!same_step(k, p, q, why)) return false;
        if (moved && q->op < STEP_tile && q->op != STEP_nests)
            return step_refuse(why, "%s comes behind a step that moves loops", step_get((step_op)q->op)->name);
    }
}
