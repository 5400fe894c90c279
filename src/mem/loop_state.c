/* loop_state.c - what a loop carries from iteration to iteration is written where it lies, by the kernel that computes it.
 *
 * In: repeats that end with copies of new values to the state. Out: a copy goes where the new value may be written over the old
 * one: no kernel between the two reads the old one, and its own kernel reads each element before it writes it. Who reads the
 * new value reads the state. A new value that is a slice of a stack is written to both places. */
#include "loop/loop.h"
#include "mem/inplace.h"
#include "mem/mem.h"

typedef struct carried {
    plan *p;
    int repeat, step; /* of the plan's steps: the loop, and the copy, which is directly in it */
    int first, copy;  /* kernels: the first one of the loop, and the copy */
    int last;         /* of the loop */
    int32_t value, state;
} carried;

/* A kernel that copies all of a buffer: plan_copy. */
static bool is_copy(const pkernel *pk, int32_t *out_from, int32_t *out_to) {
    const kernel *k = pk->k;
    if (k->ins.n != 5 || k->bufs.n != 2 || k->ins.at[1].op != K_LOOP || k->ins.at[2].op != K_LOAD || k->ins.at[3].op != K_STORE)
        return false;
    *out_from = pk->args[k->ins.at[2].buf].buf, *out_to = pk->args[k->ins.at[3].buf].buf;
    return k->ins.at[3].a == 2 && !k->ins.at[2].n_mask && !k->ins.at[3].n_mask && !k->ins.at[2].dyn &&
           affine_equal(k->ins.at[2].idx, k->ins.at[3].idx) && k->ins.at[1].hi == k->bufs.at[0].elems && *out_from != *out_to;
}

/* Whether steps look into it, or windows move over it. */
static bool is_watched(const plan *p, int32_t buf) {
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *s = &p->steps.at[i];
        if ((pstep_is_conditional(s) && s->cond == buf) || (s->kind == PSTEP_REPEAT && s->times && s->count == buf))
            return true;
    }
    for (int b = 0; b < p->bufs.n; b++)
        if (p->bufs.at[b].kind == PB_WINDOW && p->bufs.at[b].window_of == buf) return true;
    return false;
}

/* The kernel that computes the value, if it is launched once in each iteration and all that reads the value follows it there;
 * else -1. */
static int writer_of(const carried *c) {
    const plan *p = c->p;
    int writer = -1;
    for (int i = 0; i < p->kernels.n; i++) {
        int b = inplace_arg(&p->kernels.at[i], c->value);
        if (b < 0) continue;
        bool reads = p->kernels.at[i].k->bufs.at[b].kind == KB_IN;
        if (i < c->first || i > c->last || reads != (writer >= 0)) return -1;
        if (!reads) writer = i;
    }
    for (int i = c->repeat + 1; i < c->step; i += 1 + p->steps.at[i].inside)
        if (p->steps.at[i].kind == PSTEP_LAUNCH && p->steps.at[i].kernel == writer) return writer < c->copy ? writer : -1;
    return -1;
}

static bool may_write(const carried *c, int writer) {
    const plan *p = c->p;
    for (int i = c->first; i <= c->last; i++) {
        const pkernel *pk = &p->kernels.at[i];
        int s = inplace_arg(pk, c->state);
        if (s < 0 || i == c->copy) continue;
        if (pk->k->bufs.at[s].kind != KB_IN || (i > writer && i < c->copy)) return false;
        if (i == writer && !inplace_is_legal(pk->k, s, inplace_arg(pk, c->value))) return false;
    }
    return true;
}

void inplace_drop(plan *p, int step) {
    int gone = p->steps.at[step].kernel;
    for (int i = 0; i < step; i++) {
        pstep *s = &p->steps.at[i];
        if (i + s->inside < step) continue;
        if (s->kind == PSTEP_BRANCH && step <= i + s->n_then) s->n_then--;
        s->inside--;
    }
    p->steps.n--, p->kernels.n--;
    memmove(&p->steps.at[step], &p->steps.at[step + 1], sizeof(pstep) * (size_t)(p->steps.n - step));
    memmove(&p->kernels.at[gone], &p->kernels.at[gone + 1], sizeof(pkernel) * (size_t)(p->kernels.n - gone));
    for (int i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind == PSTEP_LAUNCH && p->steps.at[i].kernel > gone) p->steps.at[i].kernel--;
    for (int i = gone; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}

static bool write_directly(const carried *c) {
    plan *p = c->p;
    pbuf *v = &p->bufs.at[c->value];
    const pbuf *s = &p->bufs.at[c->state];
    if (v->kind != PB_TEMP || v->bytes != s->bytes || v->dtype != s->dtype || s->kind == PB_WINDOW) return false;
    if (is_watched(p, c->value) || is_watched(p, c->state)) return false;
    int writer = writer_of(c);
    if (writer < 0 || !may_write(c, writer)) return false;
    int from = inplace_arg(&p->kernels.at[c->copy], c->value);
    p->kernels.at[c->copy].args[from].buf = -1;
    for (int i = writer; i <= c->last; i++) inplace_rebind(&p->kernels.at[i], c->value, c->state);
    v->bytes = v->elems = 0; /* nothing lives there any more */
    inplace_drop(p, c->step);
    return true;
}

/* The only store to buffer b; 0: there are none, or several. */
static int only_store(const kernel *k, int b) {
    int at = 0;
    for (int i = 1; i < k->ins.n; i++) {
        if (!kernel_has_buffer(&k->ins.at[i]) || k->ins.at[i].buf != b || k->ins.at[i].op == K_LOAD) continue;
        if (at || k->ins.at[i].op != K_STORE) return 0;
        at = i;
    }
    return at;
}

static bool write_both(const carried *c) {
    plan *p = c->p;
    const pbuf *v = &p->bufs.at[c->value], *s = &p->bufs.at[c->state];
    if (v->kind != PB_WINDOW || v->elems != s->elems || v->dtype != s->dtype || s->kind == PB_WINDOW) return false;
    if (is_watched(p, c->state)) return false;
    int writer = writer_of(c), store;
    if (writer < 0 || !may_write(c, writer)) return false;
    pkernel *pk = &p->kernels.at[writer], *copy = &p->kernels.at[c->copy];
    if (!(store = only_store(pk->k, inplace_arg(pk, c->value)))) return false;
    int own = inplace_arg(pk, c->state);
    if (own >= 0) {
        pk->k->bufs.at[own].kind = KB_INOUT;
    } else {
        parg *args = ARENA_ARRAY(p->a, parg, pk->k->bufs.n + 1);
        memcpy(args, pk->args, sizeof *args * (size_t)pk->k->bufs.n);
        args[pk->k->bufs.n] = copy->args[inplace_arg(copy, c->state)];
        own = kernel_buf(pk->k, copy->k->bufs.at[inplace_arg(copy, c->state)]);
        pk->args = args;
    }
    pk->k->bufs.at[own].node = v->node;
    kins more = pk->k->ins.at[store];
    more.buf = (uint16_t)own;
    loop_insert(pk->k, store + 1, &more, 1);
    kernel_count_traffic(pk->k);
    inplace_drop(p, c->step);
    return true;
}

static void visit_loop(plan *p, int repeat) {
    for (int i = repeat + 1; i <= repeat + p->steps.at[repeat].inside;) {
        carried c = { .p = p, .repeat = repeat, .step = i };
        const pstep *s = &p->steps.at[i];
        int next = i + 1 + s->inside;
        if (s->kind == PSTEP_LAUNCH && is_copy(&p->kernels.at[s->kernel], &c.value, &c.state)) {
            c.copy = s->kernel, c.first = INT32_MAX, c.last = -1;
            for (int k = repeat + 1; k <= repeat + p->steps.at[repeat].inside; k++) {
                if (p->steps.at[k].kind != PSTEP_LAUNCH) continue;
                if (p->steps.at[k].kernel < c.first) c.first = p->steps.at[k].kernel;
                if (p->steps.at[k].kernel > c.last) c.last = p->steps.at[k].kernel;
            }
            if (write_directly(&c) || write_both(&c)) next = i; /* the step after it is here now */
        }
        i = next;
    }
}

void mem_loop_states(plan *p) {
    for (int i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind == PSTEP_REPEAT) visit_loop(p, i);
}
