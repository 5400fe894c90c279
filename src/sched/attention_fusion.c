/* attention_fusion.c - two contractions with a softmax between them become one kernel for a GPU, which goes through the scores
 * tile by tile (loop/online_softmax.c): they are never stored.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels, in
 * scalar form (row_join.h writes them); their recipe is recipe/attention.c. What decides, from shapes and the target alone: the
 * step must be possible, and nothing may take longer than kernel by kernel, or than a thread block for each row. */
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"
#include "sched/vertical_fusion.h"

#include <math.h>

enum { MOST_LINKS = 6 };
#define MEASURED 1.3            /* times what the model says, of four kernels on an H200 */
#define ROOM ((int64_t)1 << 50) /* for scores: they only stand in the scalar form */

static int contractions(const kernel *k) {
    int n = 0;
    for (int i = 1; i < k->ins.n; i++) n += k->ins.at[i].op == K_UPD && k->ins.at[i].alu == OP_dot;
    return n;
}

/* The longest chain of so many kernels at most that can be joined. */
static row_chain grow(plan *p, const target *t, int first, int shared, int most) {
    row_chain c = row_chain_make(p, first, shared);
    for (int i = first; i < p->kernels.n && c.n < most; i++) {
        const kernel *k = p->kernels.at[i].k;
        if (!row_same(p->kernels.at[first].k, k, shared)) break;
        row_link l = row_link_make(p, &p->kernels.at[i], shared);
        if (row_objection(&c, &l, k, ROOM, t->buffers ? t->buffers : ROW_MOST_ARGS)) break;
        row_append(&c, arena_copy(p->a, &l, sizeof l), k);
    }
    return c;
}

/* What its kernels take otherwise, in nanoseconds: each as a launch, or row by row in one. INFINITY where scores would come
 * from memory again: memory that grows with the square of positions is not worth the time. */
static double otherwise(const row_chain *c, const target *t) {
    double alone = 0, rows = machine_row_of(t)->after_ns;
    for (int i = 0; i < c->n; i++) {
        const kernel *k = c->p->kernels.at[c->first + i].k;
        if (i + 1 < c->n && (double)k->bytes_written > (double)t->l2_bytes) return INFINITY;
        alone += MEASURED * vertical_alone(k, t);
        rows += vertical_inside(k, c->shared, row_count(k, c->shared), 1, t);
    }
    return fmin(alone, rows);
}

/* Kernels that became one, or 0. */
static int try_chain(plan *p, const target *t, const row_uses *uses, int first, int shared, pkernel *out) {
    for (int most = MOST_LINKS; most > 1;) {
        row_chain c = grow(p, t, first, shared, most);
        int products = 0;
        for (int i = 0; i < c.n; i++) products += contractions(p->kernels.at[first + i].k);
        if (c.n < 2 || products < 2) return 0;
        recipe_form form = { .cost = otherwise(&c, t) / machine_row_of(t)->count_ns };
        if (products == 2) {
            *out = row_join(&c, uses, &(row_form){ .room = ROOM });
            if (recipe_attention(out->k, t, &form)) {
                row_commit(&c, uses, out,
                           "scores go from one contraction to the next tile by tile, and are never stored: one launch");
                return c.n;
            }
        }
        most = c.n - 1;
    }
    return 0;
}

void fuse_attention(plan *p, const target *t) {
    row_uses uses = row_find_uses(p);
    VEC(pkernel) out = { 0 };
    for (int i = 0; i < p->kernels.n;) {
        pkernel made = p->kernels.at[i];
        int n = 0;
        for (int shared = row_shared_loops(made.k); shared > 0 && !n; shared--) n = try_chain(p, t, &uses, i, shared, &made);
        VEC_PUSH(p->a, &out, n ? made : p->kernels.at[i]);
        i += n ? n : 1;
    }
    p->kernels.at = out.at, p->kernels.n = out.n, p->kernels.cap = out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
