/* attention_fusion.c - two contractions with a softmax between them become one kernel for a GPU, which goes through the scores
 * tile by tile (loop/online_softmax.c): they are never stored. So do several that make scores and one that takes them, as
 * attention's gradients are (pass/recompute_weights.c). Rows of few scores stay in registers, also where they are stored.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels, in
 * scalar form (row_join.h writes them); their recipe is recipe/attention.c. What decides, from shapes and the target alone: the
 * step must be possible, and nothing may take longer than kernel by kernel, or than a thread block for each row. */
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"
#include "sched/vertical_fusion.h"

#include <math.h>

enum { MOST_LINKS = 10, MOST_SHORT = 6 /* of rows without powers */, MOST_COLUMNS = 128 };
#define MEASURED 1.3            /* times what the model says, of four kernels on an H200 */
#define ROOM ((int64_t)1 << 50) /* for scores: they only stand in the scalar form */

/* Weights of attention are powers. */
static bool has_power(const kernel *k) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_ALU && k->ins.at[i].alu == OP_exp) return true;
    return false;
}

static int contractions(const kernel *k) { return loop_products(k, 1, k->ins.n); }

/* One contraction of few steps to few columns. */
static bool makes_short_rows(const kernel *k, int shared) {
    if (contractions(k) != 1) return false;
    for (int i = 1 + shared; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && k->ins.at[i].hi > MOST_COLUMNS) return false;
    return true;
}

/* The kernel with its outer loops, whose order is free, in another one: loop i is what loop order[i] was. */
static kernel *reordered(const kernel *k, const int *order, int n) {
    kernel *o = kernel_clone(k, k->a);
    for (int i = 0; i < n; i++) o->ins.at[1 + i] = k->ins.at[1 + order[i]];
    return o;
}

/* Whether kernel i, with its rows in some order, can follow the chain; then it has that order. */
static bool append(row_chain *c, const target *t, int i) {
    static const int orders[][ROW_MOST_SHARED] = {
        { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 }
    };
    pkernel *pk = &c->p->kernels.at[i];
    kernel *own = pk->k;
    int loops = row_shared_loops(own);
    for (int o = 0; o < (int)COUNT_OF(orders) && (o == 0 || loops == ROW_MOST_SHARED); o++) {
        if (o) pk->k = reordered(own, orders[o], loops);
        if (!row_same(c->p->kernels.at[c->first].k, pk->k, c->shared)) continue;
        row_link l = row_link_make(c->p, pk, c->shared, true);
        if (row_objection(c, &l, pk->k, ROOM, t->buffers ? t->buffers : ROW_MOST_ARGS)) continue;
        row_append(c, arena_copy(c->p->a, &l, sizeof l), pk->k);
        return true;
    }
    pk->k = own;
    return false;
}

/* The longest chain of at most `most` kernels that can be joined, with no more contractions than the recipe takes. */
static row_chain grow(plan *p, const target *t, int first, int shared, int most) {
    row_chain c = row_chain_make(p, first, shared);
    for (int i = first, products = 0; i < p->kernels.n && c.n < most; i++) {
        products += contractions(p->kernels.at[i].k);
        if (products > ATTENTION_PRODUCTS || !append(&c, t, i)) break;
    }
    return c;
}

/* Sums of products that are no contraction, since a mask leaves terms out: what one query's weights make of the values. */
static bool is_weighted_sum(const kernel *k) {
    kvar column = -1, term = -1;
    int by = 0; /* loads of the nest at hand that differ from term to term; 2: and from result to result */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && k->vars.at[in->var].reduce)
            term = in->var, by = 0;
        else if (in->op == K_LOOP)
            column = in->var;
        ext step = in->op == K_LOAD && term >= 0 ? affine_coef(in->idx, term) : 0;
        if (step && !affine_coef(in->idx, column)) by |= 1;
        if (step && step != 1 && affine_coef(in->idx, column)) by |= 2; /* rows of a matrix that a norm sums lie along them */
        if (in->op == K_UPD && in->alu == OP_add && by == 3) return true;
    }
    return false;
}

/* The first later kernel that takes what kernel i makes, one value between kernels; 0: there is none, or it makes several. */
static int next_user(const plan *p, int i) {
    const pkernel *pk = &p->kernels.at[i];
    int32_t made = -1;
    for (int b = 0; b < pk->k->bufs.n; b++) {
        if (pk->args[b].buf < 0 || pk->k->bufs.at[b].kind == KB_IN) continue;
        if (p->bufs.at[pk->args[b].buf].kind != PB_TEMP || pk->k->bufs.at[b].kind != KB_OUT || made >= 0) return 0;
        made = pk->args[b].buf;
    }
    for (int j = i + 1; made >= 0 && j < p->kernels.n; j++)
        for (int x = 0; x < p->kernels.at[j].k->bufs.n; x++)
            if (p->kernels.at[j].args[x].buf == made) return j;
    return 0;
}

static int32_t place_of(const plan *p, int32_t buf) { /* the buffer that it is a part of, or shares its place with */
    for (;;) {
        const pbuf *b = &p->bufs.at[buf];
        int32_t next = b->kind == PB_WINDOW ? b->window_of : b->inplace_of;
        if (next < 0) return buf;
        buf = next;
    }
}

bool row_disturbs(const plan *p, int j, int i) {
    const pkernel *x = &p->kernels.at[j], *y = &p->kernels.at[i];
    for (int a = 0; a < x->k->bufs.n; a++)
        for (int b = 0; b < y->k->bufs.n; b++)
            if (x->args[a].buf >= 0 && y->args[b].buf >= 0 && x->k->bufs.at[a].kind != KB_IN &&
                place_of(p, x->args[a].buf) == place_of(p, y->args[b].buf))
                return true;
    return false;
}

/* Scores, and weights that are made of them, come right before the contraction that takes them, where they can become one
 * kernel with it, such as behind the product that makes the values; what one query's weights are made of right before their
 * sum. */
static void sink_scores(plan *p) {
    enum { SUM = 1 /* a weighted sum, or on the way to one */, WEIGHTS = 2 /* which a contraction takes */ };
    uint8_t *late = ARENA_ARRAY(p->a, uint8_t, p->kernels.n + 1); /* [kernels] */
    for (int i = p->kernels.n - 1; i >= 0; i--) {
        pkernel pk = p->kernels.at[i];
        int to = next_user(p, i);
        const kernel *next = p->kernels.at[to].k;
        bool scores = contractions(pk.k) == 1 && pk.k->bytes_written > pk.k->bytes_read &&
                      (contractions(next) || late[to] == WEIGHTS),
             weights = to && !contractions(pk.k) && has_power(pk.k) && contractions(next) == 1 && row_same(pk.k, next, 1),
             possible = scores || weights || (late[to] == SUM && row_same(pk.k, next, 1));
        late[i] = weights ? WEIGHTS : is_weighted_sum(pk.k) || (late[to] == SUM && possible) ? SUM : 0;
        if (to <= i + 1 || !possible) continue;
        for (int j = i + 1; j < to && possible; j++) possible = !row_disturbs(p, j, i);
        if (!possible) continue;
        size_t n = (size_t)(to - 1 - i);
        memmove(&p->kernels.at[i], &p->kernels.at[i + 1], sizeof pk * n);
        memmove(&late[i], &late[i + 1], sizeof *late * n);
        p->kernels.at[to - 1] = pk, late[to - 1] = weights ? WEIGHTS : scores ? 0 : SUM;
    }
}

/* What its kernels take otherwise, in nanoseconds: each as a launch, or row by row in one. INFINITY where scores would come
 * from memory again: memory that grows with the square of positions is not worth the time. */
static double otherwise(const row_chain *c, const target *t) {
    double alone = 0, rows = machine_row_of(t)->after_ns;
    for (int i = 0; i < c->n; i++) {
        const kernel *k = kernel_at_most(c->p->kernels.at[c->first + i].k, c->p->a);
        if (i + 1 < c->n && (double)k->bytes_written > (double)t->l2_bytes) return INFINITY;
        alone += MEASURED * vertical_alone(k, t);
        rows += vertical_inside(k, k, c->shared, row_count(k, c->shared), 1, t);
    }
    return fmin(alone, rows);
}

/* The kernels from the first one on with their loops as they were. */
static void restore(plan *p, int first, kernel *const *own) {
    for (int i = 0; i < MOST_LINKS && first + i < p->kernels.n; i++) p->kernels.at[first + i].k = own[i];
}

/* How many kernels from the first one on can be one, of which *cost has the nanoseconds; 0: none. Commits to it where `out` is
 * given. */
static int try_chain(plan *p, const target *t, const row_uses *uses, int first, int shared, pkernel *out, double *cost) {
    kernel *own[MOST_LINKS] = { 0 };
    for (int i = 0; i < MOST_LINKS && first + i < p->kernels.n; i++) own[i] = p->kernels.at[first + i].k;
    for (int most = MOST_LINKS; most > 1;) {
        row_chain c = grow(p, t, first, shared, most);
        int products = 0;
        bool powers = false;
        for (int i = 0; i < c.n; i++) {
            products += contractions(p->kernels.at[first + i].k);
            powers |= has_power(p->kernels.at[first + i].k);
        }
        bool one_query = powers && c.n > 1 && products == 1 && is_weighted_sum(p->kernels.at[first + c.n - 1].k);
        bool attention = powers && products > 1, rows = !p->params && c.n > 1 && makes_short_rows(own[0], shared);
        if (!attention && !one_query && (!rows || c.n > MOST_SHORT)) {
            most = rows ? MOST_SHORT : 0;
            restore(p, first, own);
            continue;
        }
        pkernel joined = row_join(&c, uses, &(row_form){ .room = ROOM });
        double other = recipe_has_scores(joined.k) ? INFINITY : otherwise(&c, t); /* small sizes are launches alone */
        recipe_form form = { .cost = other / machine_row_of(t)->count_ns };
        bool tiles = one_query ? recipe_row_sums(joined.k, t, &form) : attention && recipe_attention(joined.k, t, &form);
        if (tiles || (rows && recipe_short_rows(joined.k, t, &form))) {
            *cost = form.cost * machine_row_of(t)->count_ns;
            if (out) {
                *out = joined;
                row_commit(&c, uses, out,
                           tiles ? "scores go from one contraction to the next tile by tile, and are never stored: one launch"
                                 : "threads have whole rows of what a contraction makes: one launch");
            } else {
                restore(p, first, own);
            }
            return c.n;
        }
        most = c.n - 1;
        restore(p, first, own);
    }
    return 0;
}

/* Whether the first kernel had better stay alone: what follows it is faster without it, on matrix units that do not take what a
 * row has stored. */
static bool better_later(plan *p, const target *t, const row_uses *uses, int first, int shared) {
    double with, without;
    if (contractions(p->kernels.at[first].k) || first + 1 == p->kernels.n) return false;
    int n = try_chain(p, t, uses, first, shared, NULL, &with);
    if (!n || row_shared_loops(p->kernels.at[first + 1].k) < shared) return false;
    int m = try_chain(p, t, uses, first + 1, shared, NULL, &without);
    return m >= n - 1 && without + vertical_alone(p->kernels.at[first].k, t) < with;
}

void fuse_attention(plan *p, const target *t) {
    sink_scores(p);
    row_uses uses = row_find_uses(p);
    VEC(pkernel) out = { 0 };
    for (int i = 0; i < p->kernels.n;) {
        pkernel made = p->kernels.at[i];
        int n = 0;
        double cost;
        for (int shared = row_shared_loops(made.k); shared > 0 && !n; shared--)
            if (!better_later(p, t, &uses, i, shared)) n = try_chain(p, t, &uses, i, shared, &made, &cost);
        VEC_PUSH(p->a, &out, n ? made : p->kernels.at[i]);
        i += n ? n : 1;
    }
    p->kernels.at = out.at, p->kernels.n = out.n, p->kernels.cap = out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
