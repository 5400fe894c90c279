/* attention_pairs.c - the gradients of keys and of values become one kernel: both go through the same scores, which are made
 * once then, of operands that are brought once.
 *
 * In: a plan for a GPU whose attention is in kernels of its own (attention_fusion.c), in scalar form. Out: the plan with fewer
 * kernels: the first one of a pair, beside one of its nests what the other one computes with the same scores, and the other
 * one's last contraction behind all. Their recipe is recipe/attention.c, whose model decides. */
#include "loop/build.h"
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"

#include <math.h>

enum { MOST_NESTS = 8, MOST_COLUMNS = KERNEL_MATRIX /* of a gradient: sums of wider ones have no room beside each other */ };

typedef struct nest { /* instructions; inner: of a contraction's sum, or 0 */
    int loop, end, acc, inner, inner_end;
} nest;
typedef struct attention { /* a kernel */
    const pkernel *pk;
    const kernel *k;
    int n_outer, n;
    nest at[MOST_NESTS];
    int contractions;
    bool power, alone; /* alone: nothing stands between its nests */
} attention;

static bool read(const pkernel *pk, attention *out) {
    const kernel *k = pk->k;
    *out = (attention){ .pk = pk, .k = k, .n_outer = gpu_outer_loops(k), .alone = true };
    for (int i = 1 + out->n_outer; i < k->ins.n - out->n_outer; i++) {
        if (k->ins.at[i].op != K_LOOP) {
            out->alone = false;
            continue;
        }
        if (out->n == MOST_NESTS) return false;
        nest *x = &out->at[out->n++];
        *x = (nest){ .loop = i, .end = kernel_loop_end(k, i) };
        for (; i < x->end; i++) {
            const kins *in = &k->ins.at[i];
            out->power |= in->op == K_ALU && in->alu == OP_exp;
            if (in->op == K_ACC) x->acc = i;
            if (in->op != K_LOOP || i == x->loop) continue;
            if (x->inner) return false;
            x->inner = i, x->inner_end = kernel_loop_end(k, i), out->contractions++;
        }
    }
    return out->power && out->contractions > 1;
}

typedef struct pair {
    plan *p;
    attention a, b;
    const nest *scores[2], *last; /* the nests with the same scores; b's last one */
    kernel *o;
    build_copier of[2];
    build_places rows; /* what b's variables of rows are */
    int *buf;          /* [b's bufs] in o */
    parg *args;
} pair;

/* ---- what is the same ---- */

static void put_rows(pair *x) {
    for (int i = 1; i <= x->a.n_outer; i++)
        build_put(&x->rows, x->b.k->ins.at[i].var, affine_var(x->p->a, x->a.k->ins.at[i].var));
}

static bool same_loop(const kins *l, const kins *m) { return l->lo == m->lo && l->hi == m->hi; }

static bool same_place(const nest *x, reg a, const nest *y, reg b) {
    return a && b ? (int)a - x->loop == (int)b - y->loop : a == b;
}

/* Contraction y of b is contraction x of a, instruction by instruction. */
static bool same_scores(const pair *p, const nest *x, const nest *y) {
    const kernel *k = p->a.k, *l = p->b.k;
    if (!x->inner || !y->inner || x->inner_end - x->loop != y->inner_end - y->loop || x->acc - x->loop != y->acc - y->loop)
        return false;
    build_places at = p->rows;
    build_put(&at, l->ins.at[y->loop].var, affine_var(p->p->a, k->ins.at[x->loop].var));
    build_put(&at, l->ins.at[y->inner].var, affine_var(p->p->a, k->ins.at[x->inner].var));
    for (int i = 0; i <= x->inner_end - x->loop; i++) {
        const kins *in = &k->ins.at[x->loop + i], *other = &l->ins.at[y->loop + i];
        bool same = in->op == other->op && in->alu == other->alu && in->dtype == other->dtype && in->src == other->src &&
                    in->imm == other->imm && !in->n_mask && !other->n_mask && !in->dyn && !other->dyn &&
                    same_place(x, in->a, y, other->a) && same_place(x, in->b, y, other->b);
        if (in->op == K_LOAD)
            same = same && p->a.pk->args[in->buf].buf == p->b.pk->args[other->buf].buf && p->a.pk->args[in->buf].buf >= 0 &&
                   affine_equal(in->idx, build_moved(p->p->a, &at, other->idx));
        else if (in->op == K_LOOP)
            same = in->op == other->op && same_loop(in, other);
        else if (in->op == K_END)
            same = other->op == K_END;
        else if (in->op != K_ACC && in->op != K_UPD)
            return false;
        if (!same) return false;
    }
    return true;
}

static bool find_scores(pair *x) {
    for (int i = 0; i < x->a.n; i++)
        if (same_scores(x, &x->a.at[i], &x->b.at[0])) x->scores[0] = &x->a.at[i], x->scores[1] = &x->b.at[0];
    x->last = &x->b.at[1];
    return x->scores[0] && x->last->inner && x->b.k->ins.at[x->last->loop].hi <= MOST_COLUMNS &&
           x->a.k->ins.at[x->a.at[x->a.n - 1].loop].hi <= MOST_COLUMNS;
}

/* Neither needs what the other one makes; they may make parts of one buffer. */
static bool are_apart(const pair *x) {
    const pkernel *a = x->a.pk, *b = x->b.pk;
    for (int i = 0; i < a->k->bufs.n; i++)
        for (int j = 0; j < b->k->bufs.n; j++) {
            const pbuf *p = a->args[i].buf >= 0 ? &x->p->bufs.at[a->args[i].buf] : NULL,
                       *q = b->args[j].buf >= 0 ? &x->p->bufs.at[b->args[j].buf] : NULL;
            uint8_t kinds[2] = { a->k->bufs.at[i].kind, b->k->bufs.at[j].kind };
            if (!p || !q || (kinds[0] == KB_IN && kinds[1] == KB_IN)) continue;
            bool same = p == q || p->inplace_of == b->args[j].buf || q->inplace_of == a->args[i].buf;
            if (same && !(p == q && kinds[0] == KB_OUT && kinds[1] == KB_OUT)) return false;
        }
    return true;
}

/* ---- both in one ---- */

static void map_buffers(pair *x) {
    const kernel *k = x->a.k, *l = x->b.k;
    x->args = ARENA_ARRAY(x->p->a, parg, k->bufs.n + l->bufs.n), x->buf = ARENA_ARRAY(x->p->a, int, l->bufs.n + 1);
    memcpy(x->args, x->a.pk->args, sizeof *x->args * (size_t)k->bufs.n);
    for (int b = 0; b < l->bufs.n; b++) {
        int at = 0;
        while (at < k->bufs.n && (x->a.pk->args[at].buf != x->b.pk->args[b].buf || x->b.pk->args[b].buf < 0)) at++;
        if (at == k->bufs.n) x->args[x->o->bufs.n] = x->b.pk->args[b], at = kernel_buf(x->o, l->bufs.at[b]);
        x->buf[b] = at;
    }
}

static bool same_value(const kins *x, const kins *y) {
    return x->op == y->op && x->alu == y->alu && x->dtype == y->dtype && x->src == y->src && x->mode == y->mode &&
           x->buf == y->buf && x->a == y->a && x->b == y->b && x->c == y->c && x->imm == y->imm && x->imm_int == y->imm_int &&
           !x->dyn && !y->dyn && !x->n_mask && !y->n_mask && affine_equal(x->idx, y->idx);
}

/* Instruction i of b, unless it is there from instruction `from` of the new kernel on. */
static void add(pair *x, int i, const build_places *at, int from) {
    kins in = build_at(&x->of[1], i, at);
    if (kernel_has_buffer(&in)) in.buf = (uint16_t)x->buf[in.buf];
    bool value = kernel_is_pure(&in) || (in.op == K_LOAD && x->o->bufs.at[in.buf].kind == KB_IN);
    for (int j = from; j < x->o->ins.n && value; j++)
        if (same_value(&in, &x->o->ins.at[j])) {
            x->of[1].to[i] = (reg)j;
            return;
        }
    x->of[1].to[i] = kernel_push(x->o, in);
}

static void add_last(pair *x) {
    const kernel *l = x->b.k;
    build_places at = x->rows;
    kvar of[2] = { l->ins.at[x->last->loop].var, l->ins.at[x->last->inner].var }, to[2];
    for (int v = 0; v < 2; v++) {
        to[v] = kernel_var_like(x->o, &l->vars.at[of[v]]);
        build_put(&at, of[v], affine_var(x->o->a, to[v]));
    }
    for (int i = x->last->loop; i <= x->last->end; i++) {
        add(x, i, &at, x->o->ins.n);
        if (l->ins.at[i].op == K_LOOP) x->o->ins.at[x->o->ins.n - 1].var = to[i == x->last->inner];
    }
}

static double iterations(const kernel *k, int n_outer, const nest *x) {
    double n = (double)k->ins.at[x->loop].hi * (double)k->ins.at[x->inner].hi;
    for (int i = 1; i <= n_outer; i++) n *= (double)k->ins.at[i].hi;
    return n;
}

static void count(pair *x) {
    const kernel *k = x->a.k, *l = x->b.k;
    x->o->flops = k->flops + l->flops - (uint64_t)(2 * iterations(l, x->b.n_outer, x->scores[1]));
    x->o->bytes_read = k->bytes_read + l->bytes_read, x->o->bytes_written = k->bytes_written + l->bytes_written;
    for (int b = 0; b < l->bufs.n; b++) {
        uint64_t bytes = (uint64_t)l->bufs.at[b].elems * dtype_size((tn_dtype)l->bufs.at[b].dtype);
        if (x->buf[b] < k->bufs.n && l->bufs.at[b].kind == KB_IN && x->o->bytes_read > bytes) x->o->bytes_read -= bytes;
    }
}

static pkernel join(pair *x) {
    const kernel *k = x->a.k;
    build_places none = { .n = 0 };
    pkernel to = *x->a.pk;
    val *fused = ARENA_ARRAY(x->p->a, val, to.n_fused + x->b.pk->n_fused + 1);
    x->o = kernel_clone(k, x->p->a);
    map_buffers(x);
    x->of[0] = build_copier_make(k, x->o), x->of[1] = build_copier_make(x->b.k, x->o);
    build_places keys = x->rows;
    build_put(&keys, x->b.k->ins.at[x->scores[1]->loop].var, affine_var(x->p->a, k->ins.at[x->scores[0]->loop].var));
    x->o->ins.n = 1;
    for (int i = 1, from = 0; i < k->ins.n; i++) {
        if (i == x->scores[0]->loop) from = x->o->ins.n;
        if (i == x->scores[0]->end) {
            x->of[1].to[x->scores[1]->acc] = x->of[0].to[x->scores[0]->acc];
            for (int j = x->scores[1]->inner_end + 1; j < x->scores[1]->end; j++) add(x, j, &keys, from);
        }
        if (i == k->ins.n - x->a.n_outer) add_last(x);
        build_copy(&x->of[0], i, &none);
    }
    x->o->name = arena_printf(x->p->a, "%s_pair", k->name);
    count(x);
    for (int i = 0; i < to.n_fused + x->b.pk->n_fused; i++)
        fused[i] = i < to.n_fused ? to.fused[i] : x->b.pk->fused[i - to.n_fused];
    to.k = x->o, to.args = x->args, to.fused = fused, to.n_fused += x->b.pk->n_fused;
    return to;
}

/* Kernel j as a part of kernel i, where that is possible and faster. */
static bool try_pair(plan *p, const target *t, int i, int j, const attention *a, const attention *b, pkernel *out) {
    pair *x = ARENA_NEW(p->a, pair);
    *x = (pair){ .p = p, .a = *a, .b = *b };
    if (b->contractions != 2 || b->n != 2 || !b->alone || a->n_outer != b->n_outer || !are_apart(x)) return false;
    for (int l = 1; l <= a->n_outer; l++)
        if (!same_loop(&a->k->ins.at[l], &b->k->ins.at[l])) return false;
    put_rows(x);
    if (!find_scores(x)) return false;
    for (int m = (i < j ? i : j) + 1; m < (i < j ? j : i); m++)
        if (p->kernels.at[m].k && (row_disturbs(p, m, j) || row_disturbs(p, j, m))) return false;
    recipe_form alone = { .cost = INFINITY }, other = { .cost = INFINITY };
    if (!recipe_attention(a->k, t, &alone) || !recipe_attention(b->k, t, &other)) return false;
    *out = join(x);
    recipe_form both = { .cost = alone.cost + other.cost };
    return recipe_attention(out->k, t, &both);
}

void fuse_attention_pairs(plan *p, const target *t) {
    attention *all = t->matrix_units ? ARENA_ARRAY(p->a, attention, p->kernels.n + 1) : NULL; /* pk NULL: it is none, or gone */
    for (int i = 0; i < p->kernels.n && all; i++)
        if (!read(&p->kernels.at[i], &all[i])) all[i].pk = NULL;
    int n = 0;
    for (int i = 0; i < p->kernels.n && all; i++)
        for (int j = 0; j < p->kernels.n && all[i].pk; j++) {
            pkernel made;
            if (i == j || !all[j].pk || !try_pair(p, t, i, j, &all[i], &all[j], &made)) continue;
            row_decide(p, p->kernels.at[j].root, p->kernels.at[i].root, true,
                       "both go through the same scores, tile by tile: one launch");
            p->kernels.at[i] = made, p->kernels.at[j].k = NULL, all[i].pk = all[j].pk = NULL;
        }
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].k) p->kernels.at[n++] = p->kernels.at[i];
    p->kernels.n = n;
    for (int i = 0; i < n; i++) p->kernels.at[i].code = i;
}
