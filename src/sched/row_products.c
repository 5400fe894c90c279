/* row_products.c - kernels of a GPU that multiply one vector by large matrices (recipe/dot_rows.c) become one where each needs
 * the same row of the one before it alone, such as a gate and what it lets through: their sums are made in one loop, which
 * reads the vector once and all matrices at a time.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the same with fewer kernels. No bit
 * changes: each sum takes its terms in the order that it had. */
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"

typedef struct two_nests { /* of a row: what stands between them, and behind the second */
    int loops, at[2], end[2];
} two_nests;

static bool find_nests(const kernel *k, int n_rows, two_nests *out) {
    int n = 0;
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        if (n == 2) return false;
        out->at[n] = i, out->end[n] = i = kernel_loop_end(k, i), n++;
    }
    if (n < 2) return false;
    out->loops = gpu_perfect_loops(k, out->at[0]);
    if (out->loops != gpu_perfect_loops(k, out->at[1])) return false;
    for (int l = 0; l < out->loops; l++) {
        const kins *x = &k->ins.at[out->at[0] + l], *y = &k->ins.at[out->at[1] + l];
        if (!k->vars.at[x->var].reduce || x->lo != y->lo || x->hi != y->hi) return false;
    }
    return true;
}

/* Whether the second nest can be made before what stands between the two: it needs nothing of it but its sums. */
static bool can_move_up(const kernel *k, const two_nests *w) {
    for (int i = w->at[1] + w->loops; i < w->end[1]; i++) {
        const kins *in = &k->ins.at[i];
        const reg operand[] = { in->a, in->b, in->c, in->dyn };
        for (size_t o = 0; o < COUNT_OF(operand); o++) {
            int from = (int)operand[o];
            if (k->ins.at[from].op == K_ACC && !(in->op == K_UPD && in->c == operand[o])) return false;
            if (from > w->at[0] && from < w->at[1] && k->ins.at[from].op != K_ACC) return false;
        }
        for (int j = w->end[0]; in->op == K_LOAD && j < w->at[1]; j++)
            if (k->ins.at[j].op == K_STORE && k->ins.at[j].buf == in->buf) return false;
    }
    return true;
}

/* A store that another one hides, or of what lies in local memory: nothing loads it. */
static bool is_hidden(const kernel *k, int at) {
    const kins *store = &k->ins.at[at];
    bool hidden = kbuf_is_local(&k->bufs.at[store->buf]);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) || in->buf != store->buf || i == at) continue;
        if (in->op != K_STORE) return false;
        hidden |= i > at && affine_equal(in->idx, store->idx);
    }
    return store->op == K_STORE && hidden;
}

/* What the first nest, from instruction `from` of o on, has loaded already; 0: nothing. */
static reg loaded(const kernel *o, int from, const kins *load) {
    for (int i = from; load->op == K_LOAD && !load->dyn && !load->n_mask && i < o->ins.n; i++) {
        const kins *in = &o->ins.at[i];
        if (in->op == K_LOAD && in->buf == load->buf && !in->dyn && !in->n_mask && affine_equal(in->idx, load->idx))
            return (reg)i;
    }
    return 0;
}

/* The kernel with both nests as one; NULL: it has others, or the second needs what the first makes. */
static kernel *with_one_nest(const kernel *k) {
    two_nests w;
    int n_rows = gpu_outer_loops(k);
    if (!find_nests(k, n_rows, &w) || !can_move_up(k, &w)) return NULL;
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    build_copier c = build_copier_make(k, o);
    build_places same = { .n = 0 }, second = { .n = 0 };
    for (int l = 0; l < w.loops; l++)
        build_put(&second, k->ins.at[w.at[1] + l].var, affine_var(k->a, k->ins.at[w.at[0] + l].var));
    for (int i = 1; i < w.at[0]; i++) build_copy(&c, i, &same);
    for (int i = w.end[0] + 1; i < w.at[1]; i++)
        if (k->ins.at[i].op == K_ACC) build_copy(&c, i, &same);
    int from = o->ins.n;
    for (int i = w.at[0]; i < w.end[0] - w.loops + 1; i++) build_copy(&c, i, &same);
    for (int i = w.at[1] + w.loops; i < w.end[1] - w.loops + 1; i++) {
        kins in = build_at(&c, i, &second);
        reg known = loaded(o, from, &in);
        c.to[i] = known ? known : kernel_push(o, in);
    }
    build_ends(o, w.loops);
    for (int i = w.end[0] + 1; i < k->ins.n; i++) {
        if (i == w.at[1]) i = w.end[1] + 1;
        if (k->ins.at[i].op != K_ACC && !is_hidden(k, i)) build_copy(&c, i, &same);
    }
    return o;
}

/* Kernels i and i + 1 as one, *out; false: they stay as they are. */
static bool join(plan *p, const target *t, const row_uses *uses, int i, pkernel *out) {
    const pkernel *x = &p->kernels.at[i], *y = x + 1;
    if (i + 1 == p->kernels.n || !row_same(x->k, y->k, 1) || row_shared_loops(x->k) != 1 || row_shared_loops(y->k) != 1 ||
        !recipe_dot_rows_share(x->k, t) || !recipe_dot_rows_share(y->k, t))
        return false;
    row_chain c = row_chain_make(p, i, 1);
    row_link first = row_link_make(p, x, 1, false), second = row_link_make(p, y, 1, false);
    row_append(&c, &first, x->k);
    if (row_read_again(&c, &second, row_count(y->k, 1)) == 0 ||
        row_objection(&c, &second, y->k, 0, t->buffers ? t->buffers : ROW_MOST_ARGS))
        return false;
    row_append(&c, &second, y->k);
    *out = row_join(&c, uses, &(row_form){ .forward = true, .halves = true });
    kernel *one = with_one_nest(out->k);
    if (!one || !recipe_dot_rows_share(one, t)) return false;
    out->k = one;
    row_commit(&c, uses, out, "a row of the next needs that row alone: one launch, in which all sums are made in one loop");
    return true;
}

void fuse_row_products(plan *p, const target *t) {
    row_uses uses = row_find_uses(p);
    VEC(pkernel) out = { 0 };
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel made;
        bool joined = join(p, t, &uses, i, &made);
        VEC_PUSH(p->a, &out, joined ? made : p->kernels.at[i]);
        i += joined;
    }
    p->kernels.at = out.at, p->kernels.n = out.n, p->kernels.cap = out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
