/* vectorize_nests.c - vectors for the nests of rows: where a nest bound to the threads of a block has several iterations a
 * thread, each thread takes neighbouring elements at once.
 *
 * In and out: the form of a GPU. A nest is taken when all of its memory accesses that move with the innermost loop are aligned
 * vectors; the step is refused when none is. What accumulates takes the sum over the lanes, halves first; sums of products are
 * one of each lane until the nest ends. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_LANES = 16, MOST_VARS = 60 };

typedef struct nest {
    int head, inner, end; /* instructions: the first and the last of its loops, the end of the last */
    int lanes;
} nest;

static bool adds_up(const kins *in) {
    return in->op == K_UPD && (in->alu == OP_add || in->alu == OP_max || in->alu == OP_min || in->alu == OP_mul ||
                               (in->alu == OP_dot && dtype_is_float((tn_dtype)in->dtype)));
}

/* Whether the body can be done in vectors along the innermost loop. */
static bool can_vectorize(const kernel *k, const nest *n) {
    const kins *loop = &k->ins.at[n->inner];
    const bool *varies = gpu_varying(k, NULL, loop->var);
    int accesses = 0;
    for (int i = n->inner + 1; i < n->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->lanes != 1 || (!adds_up(in) && !gpu_is_plain(k, in) && in->op != K_LOAD && in->op != K_STORE)) return false;
        if (adds_up(in) && ((int)in->c > n->head || (in->alu == OP_dot && !varies[in->a] && !varies[in->b]))) return false;
        if (in->op == K_RANDOM && varies[in->a]) return false;
        accesses += (in->op == K_LOAD || in->op == K_STORE) && gpu_uses(in, loop->var);
    }
    if (!accesses || loop->hi % n->lanes || loop->lo ||
        kernel_nest_size(k, (reg)n->head) < (int64_t)n->lanes * k->block_threads)
        return false;
    for (int i = n->inner + 1; i < n->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        if ((in->dyn && varies[in->dyn]) || !gpu_aligned(k, in, loop->var, n->lanes)) return false;
        if (in->op == K_STORE && !gpu_uses(in, loop->var)) return false;
    }
    return true;
}

static nest nest_at(const kernel *k, int head, int lanes) {
    nest n = { .lanes = lanes, .head = head, .inner = head + kernel_nest(k, (reg)head) - 1 };
    n.end = kernel_loop_end(k, n.inner);
    return n;
}

static bool is_head(const kernel *k, int i) {
    const kins *in = &k->ins.at[i];
    return in->op == K_LOOP && in->par == PAR_BLOCK_THREADS && !(in[-1].op == K_LOOP && in[-1].par == PAR_BLOCK_THREADS);
}

/* A sum of products is one of each lane, which are combined behind the nest, if nothing else is added to it. */
static bool has_lane_sums(const kernel *k, const nest *n, const bool *varies, reg acc) {
    int end = kernel_loop_end(k, n->head);
    const kins *first = &k->ins.at[acc];
    if (first->op != K_ACC || (int)acc > n->head || first->lanes > 1 || first->imm != 0) return false;
    for (int i = (int)acc + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool update = in->op == K_UPD && in->c == acc, inside = i > n->inner && i < n->end;
        if (update && (!inside || in->alu != OP_dot || !(varies[in->a] || varies[in->b]))) return false;
        if (!update && i < end && build_takes(in, acc)) return false;
    }
    return true;
}

/* acc = acc op the lanes of a (of a * b) combined; or, of each lane, acc + a * b. */
static void write_update(build_copier *c, int i, int lanes) {
    kins in = c->k->ins.at[i];
    uint8_t op = in.alu == OP_dot ? OP_add : in.alu;
    reg a = c->to[in.a], b = c->to[in.b];
    if (c->o->ins.at[c->to[in.c]].lanes == lanes) {
        in.a = a, in.b = b, in.c = c->to[in.c], in.lanes = (uint8_t)lanes;
        c->to[i] = kernel_push(c->o, in);
        return;
    }
    if (in.alu == OP_dot) a = build_op(c->o, OP_mul, a, b), c->o->ins.at[a].lanes = (uint8_t)lanes;
    kins all = { .op = K_LANE_REDUCE, .alu = op, .dtype = in.dtype, .a = a, .combined = lanes, .node = in.node };
    reg sum = kernel_push(c->o, all);
    in.alu = op, in.a = sum, in.b = 0, in.c = c->to[in.c];
    c->to[i] = kernel_push(c->o, in);
}

static void write_nest(build_copier *c, const nest *n) {
    const kernel *k = c->k;
    build_places p = { .along = k->ins.at[n->inner].var, .lanes = n->lanes };
    p.varies = gpu_varying(k, NULL, p.along);
    for (int i = n->inner + 1; i < n->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_UPD && has_lane_sums(k, n, p.varies, in->c)) c->o->ins.at[c->to[in->c]].lanes = (uint8_t)n->lanes;
    }
    for (int i = n->head; i < n->inner; i++) c->to[i] = kernel_push(c->o, k->ins.at[i]);
    kins loop = k->ins.at[n->inner];
    loop.hi /= n->lanes;
    loop.var = kernel_var(c->o, "v", loop.hi, false, false);
    kernel_push(c->o, loop);
    build_put(&p, p.along, build_times(c->o->a, loop.var, n->lanes));
    for (int i = n->inner + 1; i < n->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_UPD && (p.varies[in->a] || p.varies[in->b]))
            write_update(c, i, n->lanes);
        else if (in->op == K_UPD)
            for (int l = 0; l < n->lanes; l++) build_copy(c, i, &p); /* the same value for each of them */
        else
            build_copy(c, i, &p);
    }
}

/* Behind the nest. */
static void combine_lanes(build_copier *c, int head) {
    for (int i = 1; i < head; i++) {
        if (c->k->ins.at[i].op != K_ACC || c->k->ins.at[i].lanes > 1 || c->o->ins.at[c->to[i]].op != K_ACC) continue;
        if (c->o->ins.at[c->to[i]].lanes > 1) c->to[i] = build_lane_reduce(c->o, (op_code)c->k->ins.at[i].alu, c->to[i]);
    }
}

bool step_vectorize_nests(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int64_t lanes = s->arg[0].n;
    if (lanes < 2 || lanes > MOST_LANES || !gpu_is_power(lanes))
        return step_refuse(why, "%lld elements: expected a power of two from 2 to %d", (long long)lanes, MOST_LANES);
    kernel *o = gpu_kernel(k, k->block_threads);
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    bool any = false;
    int head = 0; /* of the last nest */
    for (int i = 1; i < k->ins.n; i++) {
        if (o->vars.n < MOST_VARS && is_head(k, i)) {
            nest n = nest_at(k, i, (int)lanes); /* the same lanes in all: then a thread has the same elements in all of them */
            if (can_vectorize(k, &n)) {
                write_nest(&c, &n);
                i = n.end - 1, head = n.head;
                any = true;
                continue;
            }
        }
        build_copy(&c, i, &none);
        if (head && i == kernel_loop_end(k, head)) combine_lanes(&c, head), head = 0;
    }
    if (!any) return step_refuse(why, "no nest of a thread block can be read and written in vectors of %lld", (long long)lanes);
    k->ins = o->ins, k->vars = o->vars;
    return true;
}
