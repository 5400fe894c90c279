/* norm_products.c - a vector that is divided by its length on the way to products with large matrices (recipe/dot_rows.c), such
 * as an RMS norm's, is not stored by a kernel of a GPU of its own: those that multiply it take the vector as it was, add up its
 * squares beside their products, and multiply their sums by the factor that all of its elements share.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the same with fewer kernels. The
 * factor leaves the sums: results agree within rounding, and what was stored in 16 bits is not rounded. */
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"

/* Elements of the vector that a thread has: with more, threads have fewer registers for what is under way. (An H200, a token of
 * a Llama 2048 wide: of bf16, 32 elements, 825 us and 790; of 4 bits with the norms, and more rows a thread
 * (recipe/dot_rows.c), 654 and 598.) */
enum { MOST_SHARE = 64 };

typedef struct norm { /* acc; loops over the vector { update acc }; loop j { store out[j] = a product, of which `factor` is one
                         } */
    const kernel *k;
    int acc, loops, from, to; /* the body of the loops that sum */
    int map, map_end;         /* loop j, its end */
    int store;
    kvar j;
    affine at; /* where all loads of the sum are */
    int64_t n;
    bool *depends, *varies; /* [ins] on the sum; from element to element */
    reg factor;
} norm;

/* Whether the index goes through 0 .. n - 1, each once, as the loops [from, from + loops) do. */
static bool counts(const kernel *k, affine e, int from, int loops, int64_t n) {
    int64_t next = 1;
    if (e.base) return false;
    for (int found = 0; found < loops; found++) {
        int64_t extent = 0;
        for (int l = from; l < from + loops && !extent; l++)
            if (affine_coef(e, k->ins.at[l].var) == next && k->ins.at[l].lo == 0) extent = k->ins.at[l].hi;
        if (extent < 2) return false;
        next *= extent;
    }
    return next == n && e.n == loops;
}

/* The factor of value v that depends on the sum alone; 0: v is no product with one such. */
static reg factor_of(const norm *w, reg v) {
    const kins *in = &w->k->ins.at[v];
    if (!w->depends[v]) return 0;
    if (!w->varies[v]) return v;
    if (in->op != K_ALU || in->alu != OP_mul || w->depends[in->a] == w->depends[in->b]) return 0;
    return factor_of(w, w->depends[in->a] ? in->a : in->b);
}

static bool find_sum(norm *w) {
    const kernel *k = w->k;
    int i = 1;
    for (; i < k->ins.n && k->ins.at[i].op != K_LOOP; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ACC ? w->acc != 0 || in->alu != OP_add || in->dtype != TN_F32 : in->op != K_CONST) return false;
        if (in->op == K_ACC) w->acc = i;
    }
    w->loops = i < k->ins.n ? gpu_perfect_loops(k, i) : 0;
    if (!w->acc || !w->loops || !k->vars.at[k->ins.at[i].var].reduce) return false;
    int end = kernel_loop_end(k, i);
    w->from = i + w->loops, w->to = end - w->loops + 1;
    bool any = false;
    for (int b = w->from; b < w->to; b++) {
        const kins *in = &k->ins.at[b];
        if (in->op == K_UPD) {
            if (b != w->to - 1 || (in->alu != OP_add && in->alu != OP_dot)) return false;
        } else if (in->op == K_LOAD) {
            if (in->dyn || in->n_mask || (any && !affine_equal(in->idx, w->at))) return false;
            w->at = in->idx, any = true;
        } else if (!kernel_is_pure(in) || in->op == K_RANDOM || in->op == K_INDEX) {
            return false;
        }
    }
    for (w->map = end + 1; w->map < k->ins.n && k->ins.at[w->map].op != K_LOOP; w->map++)
        if (!kernel_is_pure(&k->ins.at[w->map])) return false;
    return any && w->map < k->ins.n;
}

static bool find_norm(norm *w, const kernel *k) {
    *w = (norm){ .k = k };
    if (k->params || gpu_outer_loops(k) || !find_sum(w)) return false;
    const kins *map = &k->ins.at[w->map];
    w->map_end = kernel_loop_end(k, w->map), w->j = map->var, w->n = map->hi;
    if (w->map_end != k->ins.n - 1 || k->vars.at[w->j].reduce || map->lo ||
        !counts(k, w->at, w->from - w->loops, w->loops, w->n))
        return false;
    w->depends = ARENA_ARRAY(k->a, bool, k->ins.n), w->varies = gpu_varying(k, NULL, w->j);
    w->depends[w->acc] = true;
    for (int i = w->to; i < w->map_end; i++) {
        const kins *in = &k->ins.at[i];
        w->depends[i] = build_takes_any(in, w->depends);
        if (i <= w->map) continue;
        bool store = in->op == K_STORE && !w->store && affine_equal(in->idx, affine_var(k->a, w->j)) && !in->n_mask && !in->dyn;
        if (store) w->store = i;
        if (!store && (in->op == K_LOAD ? in->dyn || in->n_mask || kbuf_is_local(&k->bufs.at[in->buf])
                                        : !kernel_is_pure(in) || in->op == K_RANDOM))
            return false;
    }
    return w->store && w->varies[k->ins.at[w->store].a] && k->bufs.at[k->ins.at[w->store].buf].kind == KB_OUT &&
           (w->factor = factor_of(w, k->ins.at[w->store].a));
}

/* ---- kernels that multiply it ---- */

typedef struct user {
    const kernel *k;
    int y;                    /* its buffer of what the norm makes */
    int rows, at, loops, end; /* of the nest */
    affine e;
} user;

/* Whether all that it does with the vector is to add up products with it, each element once a sum. */
static bool find_user(user *u, const norm *w, const kernel *k, int y, const target *t) {
    *u = (user){ .k = k, .y = y, .rows = gpu_outer_loops(k) };
    int64_t share = recipe_dot_rows_share(k, t);
    if (!share || share > MOST_SHARE) return false;
    for (u->at = 1 + u->rows; k->ins.at[u->at].op != K_LOOP;) u->at++;
    u->loops = gpu_perfect_loops(k, u->at), u->end = kernel_loop_end(k, u->at);
    bool any = false;
    bool *of = ARENA_ARRAY(k->a, bool, k->ins.n); /* made of the vector */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool body = i >= u->at + u->loops && i < u->end;
        if (kernel_touches(in) && in->buf == y) {
            if (in->op != K_LOAD || !body || in->dyn || in->n_mask || (any && !affine_equal(in->idx, u->e))) return false;
            u->e = in->idx, any = of[i] = true;
        } else if (in->op == K_UPD && body) {
            if (in->alu != OP_dot || of[in->a] == of[in->b]) return false;
        } else if (build_takes_any(in, of)) {
            return false;
        }
    }
    return any && counts(k, u->e, u->at, u->loops, w->n);
}

/* The buffers of the norm in o, which may be bound there already. */
static int *join_buffers(const norm *w, const pkernel *of, kernel *o, pkernel *to) {
    const kernel *k = w->k;
    int *buf = ARENA_ARRAY(k->a, int, k->bufs.n + 1), n = o->bufs.n;
    parg *args = ARENA_ARRAY(k->a, parg, n + k->bufs.n + 1);
    memcpy(args, to->args, sizeof *args * (size_t)n);
    for (int b = 0; b < k->bufs.n; b++) {
        buf[b] = -1;
        if (b == k->ins.at[w->store].buf || of->args[b].buf < 0) continue;
        for (int x = 0; x < o->bufs.n; x++)
            if (args[x].buf == of->args[b].buf) buf[b] = x;
        if (buf[b] >= 0) continue;
        args[o->bufs.n] = of->args[b];
        buf[b] = kernel_buf(o, k->bufs.at[b]);
    }
    to->args = args;
    return buf;
}

static reg copy(build_copier *c, int i, const int *buf, const affine *at, kvar j) {
    kins in = c->k->ins.at[i];
    in.a = c->to[in.a], in.b = c->to[in.b], in.c = c->to[in.c];
    if (in.op == K_LOAD) in.buf = (uint16_t)buf[in.buf], in.idx = j < 0 ? *at : affine_set_var(c->o->a, in.idx, j, *at);
    if (in.op == K_INDEX) in.idx = affine_set_var(c->o->a, in.idx, j, *at);
    return c->to[i] = kernel_push(c->o, in);
}

/* Value v of the norm but for the factor. */
static reg product(const norm *w, build_copier *c, reg v) {
    const kins *in = &w->k->ins.at[v];
    if (!w->depends[v]) return c->to[v];
    reg other = w->depends[in->a] ? in->b : in->a, rest = w->depends[in->a] ? in->a : in->b;
    return rest == w->factor ? c->to[other] : build_op(c->o, OP_mul, product(w, c, rest), c->to[other]);
}

/* An element of the vector, at u->e, and its part of the norm's sum. */
static reg write_element(const norm *w, const user *u, build_copier *c, const int *buf) {
    const kernel *k = w->k;
    for (int i = w->from; i < w->to - 1; i++) copy(c, i, buf, &u->e, -1);
    const kins *upd = &k->ins.at[w->to - 1], *mul = &k->ins.at[upd->a];
    bool squares = upd->alu == OP_add && mul->op == K_ALU && mul->alu == OP_mul;
    reg a = c->to[squares ? mul->a : upd->a], b = squares ? c->to[mul->b] : upd->alu == OP_dot ? c->to[upd->b] : 0;
    build_update(c->o, squares ? OP_dot : (op_code)upd->alu, a, b, c->to[w->acc]);
    for (int i = w->to; i < w->map_end; i++)
        if (k->ins.at[i].op != K_LOOP && k->ins.at[i].op != K_END && !w->depends[i] && i != w->store)
            copy(c, i, buf, &u->e, w->j);
    return product(w, c, k->ins.at[w->store].a);
}

static reg write_factor(const norm *w, build_copier *c, const int *buf) {
    const affine none = affine_const(0);
    for (int i = w->to; i < w->map_end; i++) {
        kop op = (kop)w->k->ins.at[i].op;
        if (op != K_LOOP && op != K_END && op != K_STORE && !w->varies[i]) copy(c, i, buf, &none, w->j);
    }
    return c->to[w->factor];
}

static kernel *write(const norm *w, const user *u, const pkernel *of, pkernel *to) {
    const kernel *k = u->k;
    kernel *o = kernel_clone(k, k->a);
    const build_places same = { .n = 0 };
    build_copier c = build_copier_make(k, o), cn = build_copier_make(w->k, o);
    const int *buf = join_buffers(w, of, o, to);
    reg element = 0;
    o->ins.n = 1;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (i == u->at)
            for (int b = 1; b < w->from - w->loops; b++) copy(&cn, b, buf, NULL, -1); /* constants, and the sum */
        if (in->op == K_LOAD && in->buf == u->y) {
            if (!element) element = write_element(w, u, &cn, buf);
            c.to[i] = element;
            continue;
        }
        build_copy(&c, i, &same);
        if (i != u->end) continue;
        reg factor = write_factor(w, &cn, buf);
        for (int a = 1; a < u->at; a++)
            if (k->ins.at[a].op == K_ACC) c.to[a] = build_op(o, OP_mul, c.to[a], factor);
    }
    o->bufs.at[u->y].kind = KB_LOCAL, o->bufs.at[u->y].elems = 0;
    to->args[u->y].buf = -1;
    o->flops += w->k->flops;
    o->bytes_read += w->k->bytes_read;
    return o;
}

/* ---- the plan ---- */

static int arg_of(const pkernel *pk, int32_t buf) {
    for (int b = 0; b < pk->k->bufs.n; b++)
        if (pk->args[b].buf == buf) return b;
    return -1;
}

/* Kernel i is a norm that only products take: they do without it. */
static bool dissolve(plan *p, const target *t, int i) {
    norm w;
    pkernel *of = &p->kernels.at[i];
    if (!find_norm(&w, of->k)) return false;
    int32_t y = of->args[of->k->ins.at[w.store].buf].buf;
    if (y < 0 || p->bufs.at[y].kind != PB_TEMP || p->bufs.at[y].inplace_of >= 0) return false;
    pkernel *made = ARENA_ARRAY(p->a, pkernel, p->kernels.n);
    int users = 0, last = i;
    for (int j = i + 1; j < p->kernels.n; j++)
        if (arg_of(&p->kernels.at[j], y) >= 0) last = j;
    for (int j = i + 1; j <= last; j++) {
        pkernel *pk = &p->kernels.at[j];
        int at = arg_of(pk, y);
        user u;
        if (row_disturbs(p, j, i)) return false;
        made[j] = *pk;
        if (at < 0) continue;
        if (!find_user(&u, &w, pk->k, at, t)) return false;
        made[j].k = write(&w, &u, of, &made[j]), users++;
        if (!recipe_dot_rows_share(made[j].k, t)) return false;
    }
    if (!users) return false;
    for (int j = i + 1; j <= last; j++) {
        if (made[j].k != p->kernels.at[j].k)
            row_decide(p, of->root, p->kernels.at[j].root, true,
                       "its products take the vector as it was, and their sums the factor");
        p->kernels.at[j] = made[j];
    }
    p->bufs.at[y].bytes = 0, p->bufs.at[y].elems = 0;
    return true;
}

void fuse_norm_products(plan *p, const target *t) {
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++)
        if (!dissolve(p, t, i)) p->kernels.at[n++] = p->kernels.at[i];
    p->kernels.n = n;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
