/* join_maps.c - in a loop of a plan, a kernel whose every element needs of the kernel before it that element alone becomes one
 * with it: iterations are short, and a launch takes longer than what it does.
 *
 * In: scalar kernels that are one nest each, over as many rows. Out: the second one's body stands behind the first one's, and
 * has what that stored from its registers; what nothing else reads is not stored any more (unread.c). Without control flow
 * kernels become one in the scheduler, by what it costs (vertical_fusion.c). */
#include "loop/build.h"
#include "loop/loop.h"
#include "mem/inplace.h"
#include "mem/mem.h"

enum { MOST_BUFS = 32, MOST_INS = 400 };

typedef struct joint {
    plan *p;
    const pkernel *x, *y; /* the first, the second */
    int at_x, at_y, n;    /* instructions: their nests; loops of these */
    kvar *to;             /* [y's vars] x's in their place */
} joint;

/* The nest behind values alone, which is the rest of the kernel; 0: it is none. */
static int nest_of(const kernel *k, int *n_loops) {
    int at = 1, n = 0;
    while (at < k->ins.n && kernel_is_pure(&k->ins.at[at])) at++;
    while (at + n < k->ins.n && k->ins.at[at + n].op == K_LOOP && k->vars.at[k->ins.at[at + n].var].row) n++;
    *n_loops = n;
    for (int i = at + n; i < k->ins.n - n; i++)
        if (!kernel_is_pure(&k->ins.at[i]) && k->ins.at[i].op != K_LOAD && k->ins.at[i].op != K_STORE) return 0;
    for (int i = k->ins.n - n; i < k->ins.n; i++)
        if (k->ins.at[i].op != K_END) return 0;
    return n ? at : 0;
}

/* y's instruction in x's loops. */
static kins as_first(const joint *j, kins in) {
    build_rename(j->p->a, &in, j->to);
    return in;
}

/* All accesses to the buffer, b of x and c of y, are to the element at hand. */
static bool at_one_place(const joint *j, int b, int c) {
    affine place = affine_const(0);
    bool any = false;
    for (int second = 0; second < 2; second++) {
        const kernel *k = second ? j->y->k : j->x->k;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if (!kernel_has_buffer(in) || in->buf != (second ? c : b)) continue;
            if (in->dyn || in->n_mask) return false;
            affine own = second ? as_first(j, *in).idx : in->idx;
            if (any && !affine_equal(place, own)) return false;
            place = own, any = true;
        }
    }
    for (int l = 0; any && l < j->n; l++) { /* another one in each iteration */
        const kins *loop = &j->x->k->ins.at[j->at_x + l];
        if (loop->hi - loop->lo > 1 && !affine_coef(place, loop->var)) return false;
    }
    return true;
}

static bool can_join(joint *j) {
    const kernel *k = j->x->k, *l = j->y->k;
    int n;
    if (k->params || l->params || k->bufs.n + l->bufs.n > MOST_BUFS || k->ins.n + l->ins.n > MOST_INS) return false;
    if (!(j->at_x = nest_of(k, &j->n)) || !(j->at_y = nest_of(l, &n)) || n != j->n) return false;
    j->to = ARENA_ARRAY(j->p->a, kvar, l->vars.n + 1);
    for (int i = 0; i < n; i++) {
        const kins *a = &k->ins.at[j->at_x + i], *b = &l->ins.at[j->at_y + i];
        j->to[b->var] = a->var;
        if (a->lo != b->lo || a->hi != b->hi || a->step != b->step || a->a || b->a) return false;
    }
    bool shared = false;
    for (int b = 0; b < k->bufs.n; b++)
        for (int c = 0; c < l->bufs.n; c++) {
            int32_t x = j->x->args[b].buf, y = j->y->args[c].buf;
            if (x < 0 || y < 0 || plan_base(j->p, x) != plan_base(j->p, y)) continue;
            shared |= x == y;
            if (k->bufs.at[b].kind == KB_IN && l->bufs.at[c].kind == KB_IN) continue;
            if (x != y || k->bufs.at[b].dtype != l->bufs.at[c].dtype || !at_one_place(j, b, c)) return false;
        }
    return shared;
}

/* Which buffer of the first kernel, which gets y's in front of those that it lacks, is buffer c of the second. */
static int take_buffer(kernel *o, parg *args, const pkernel *y, int c) {
    const kbuf *from = &y->k->bufs.at[c];
    for (int b = 0; b < o->bufs.n && y->args[c].buf >= 0; b++) {
        if (args[b].buf != y->args[c].buf) continue;
        kbuf *to = &o->bufs.at[b];
        if (from->kind != to->kind) to->kind = KB_INOUT;
        if (from->kind != KB_IN) to->node = from->node;
        return b;
    }
    args[o->bufs.n] = y->args[c];
    return kernel_buf(o, *from);
}

/* What the first kernel stored last where the load reads, if registers have it as memory does; else 0. */
static reg stored(const kernel *o, const kins *load) {
    if (dtype_reg((tn_dtype)o->bufs.at[load->buf].dtype) != o->bufs.at[load->buf].dtype) return 0;
    for (int i = o->ins.n - 1; i > 0; i--)
        if (o->ins.at[i].op == K_STORE && o->ins.at[i].buf == load->buf)
            return affine_equal(o->ins.at[i].idx, load->idx) ? o->ins.at[i].a : 0;
    return 0;
}

/* A buffer that is only written again needs no more to be read. */
static void set_kinds(kernel *o) {
    for (int b = 0; b < o->bufs.n; b++) {
        bool loads = false, stores = false;
        for (int i = 1; i < o->ins.n; i++) {
            if (!kernel_has_buffer(&o->ins.at[i]) || o->ins.at[i].buf != b) continue;
            loads |= o->ins.at[i].op == K_LOAD, stores |= o->ins.at[i].op == K_STORE;
        }
        if (loads || stores) o->bufs.at[b].kind = loads && stores ? KB_INOUT : stores ? KB_OUT : KB_IN;
    }
}

static void join(const joint *j, pkernel *out) {
    plan *p = j->p;
    const kernel *l = j->y->k;
    kernel *o = kernel_clone(j->x->k, p->a);
    parg *args = ARENA_ARRAY(p->a, parg, o->bufs.n + l->bufs.n + 1);
    reg *map = ARENA_ARRAY(p->a, reg, l->ins.n);
    int *buf = ARENA_ARRAY(p->a, int, l->bufs.n + 1);
    memcpy(args, j->x->args, sizeof *args * (size_t)o->bufs.n);
    for (int c = 0; c < l->bufs.n; c++) buf[c] = take_buffer(o, args, j->y, c);
    o->name = l->name, o->ins.n -= j->n;
    for (int i = 1; i < l->ins.n - j->n; i++) {
        if (l->ins.at[i].op == K_LOOP) continue;
        kins in = as_first(j, l->ins.at[i]);
        build_operands(&in, map);
        if (kernel_has_buffer(&in)) in.buf = (uint16_t)buf[in.buf];
        reg had = in.op == K_LOAD && !in.dyn && !in.n_mask ? stored(o, &in) : 0;
        map[i] = had ? had : kernel_push(o, in);
    }
    build_ends(o, j->n);
    set_kinds(o);
    o->flops += l->flops;
    kernel_count_traffic(o);
    VEC(val) fused = { 0 };
    for (int f = 0; f < j->x->n_fused; f++) VEC_PUSH(p->a, &fused, j->x->fused[f]);
    for (int f = 0; f < j->y->n_fused; f++) VEC_PUSH(p->a, &fused, j->y->fused[f]);
    VEC_PUSH(p->a, &p->decisions, ((why){ j->x->root, j->y->root, true, "each element needs that element alone: one kernel" }));
    pkernel to = *j->y;
    to.k = o, to.args = args, to.fused = fused.at, to.n_fused = fused.n;
    *out = to;
}

static void visit_loop(plan *p, int repeat) {
    for (int i = repeat + 1; pstep_end(p, i) < pstep_end(p, repeat);) {
        int next = pstep_end(p, i);
        const pstep *x = &p->steps.at[i], *y = &p->steps.at[next];
        joint j = { .p = p };
        pkernel both;
        bool launches = x->kind == PSTEP_LAUNCH && y->kind == PSTEP_LAUNCH;
        if (launches) j.x = &p->kernels.at[x->kernel], j.y = &p->kernels.at[y->kernel];
        if (!launches || !can_join(&j)) {
            i = next;
            continue;
        }
        join(&j, &both);
        p->kernels.at[y->kernel] = both;
        inplace_drop(p, i);
    }
}

void mem_join_maps(plan *p) {
    for (int i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind == PSTEP_REPEAT) visit_loop(p, i);
}
