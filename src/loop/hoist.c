/* hoist.c - loop-invariant code motion: what does not depend on a loop's variable is computed before it. In, out: scalar form.
 *
 * Only pure instructions move, and loads only from buffers the kernel never writes. Nothing moves out of a loop that may run
 * zero times. */
#include "loop/build.h"
#include "loop/schedule.h"
#include "loop/loop.h"

typedef struct hoist {
    kernel *k;
    uint64_t *deps; /* [ins] variables a register depends on */
    int *target;    /* [ins] index of the K_LOOP it moves in front of, or 0 */
    VEC(kins) out;
    reg *to;
} hoist;

static bool can_move(const kernel *k, const kins *in) {
    if (in->op == K_MATRIX) return false; /* cheaper to say again than to keep */
    return in->op == K_LOAD ? k->bufs.at[in->buf].kind == KB_IN && in->mode < LOAD_ASYNC : kernel_is_pure(in);
}

/* Loops that are bound to the threads of a GPU together stay a perfect nest: nothing moves in between. */
static bool splits_nest(const kernel *k, const int *loops, int t) {
    const kins *in = &k->ins.at[loops[t]];
    return t > 0 && in->par >= PAR_GRID_THREADS && loops[t - 1] == loops[t] - 1 && in[-1].par == in->par;
}

/* Where each register has its value: behind its instruction; an accumulator's is behind the last update. */
static int *find_settled(const kernel *k) {
    int *settled = ARENA_ARRAY(k->a, int, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        settled[i] = i;
        if (in->op == K_UPD || in->op == K_ARGUPD) settled[in->c] = i;
        if (in->op == K_ARGUPD) settled[in->b] = i;
    }
    return settled;
}

static int later(int a, int b) { return a > b ? a : b; }

static bool runs_always(const kernel *k, const kins *loop) { return ext_lo(k->params, k->vars.at[loop->var].extent) > 0; }

static void find_targets(hoist *h) {
    const kernel *k = h->k;
    int loops[64], depth = 0;
    int *settled = find_settled(k), *after = ARENA_ARRAY(k->a, int, k->ins.n); /* the instruction that it has to stay behind */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) {
            if (depth < 64) loops[depth] = i;
            depth++;
        }
        if (in->op == K_END) depth--;
        uint64_t d = loop_vars_of(in) | h->deps[in->a] | h->deps[in->b] | h->deps[in->c] | h->deps[in->dyn];
        h->deps[i] = d;
        after[i] = settled[i];
        if (!can_move(k, in) || depth > 64) continue;
        after[i] = later(later(after[in->a], after[in->b]), later(after[in->c], after[in->dyn]));
        int t = depth;
        while (t > 0 && !(d >> k->ins.at[loops[t - 1]].var & 1) && !k->ins.at[loops[t - 1]].a &&
               runs_always(k, &k->ins.at[loops[t - 1]]) && loops[t - 1] > after[i])
            t--;
        while (t < depth && splits_nest(k, loops, t)) t++;
        if (t < depth) h->target[i] = loops[t];
    }
}

static void copy_one(hoist *h, int i) {
    kins in = h->k->ins.at[i];
    build_operands(&in, h->to);
    h->to[i] = (reg)h->out.n;
    VEC_PUSH(h->k->a, &h->out, in);
}

static void hoist_all(kernel *k) {
    hoist h = { .k = k,
                .deps = ARENA_ARRAY(k->a, uint64_t, k->ins.n),
                .target = ARENA_ARRAY(k->a, int, k->ins.n),
                .to = ARENA_ARRAY(k->a, reg, k->ins.n) };
    find_targets(&h);
    VEC_PUSH(k->a, &h.out, (kins){ 0 });
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op == K_LOOP)
            for (int j = i + 1, end = kernel_loop_end(k, i); j < end; j++)
                if (h.target[j] == i) copy_one(&h, j);
        if (!h.target[i]) copy_one(&h, i);
    }
    k->ins.at = h.out.at, k->ins.n = h.out.n, k->ins.cap = h.out.cap;
}

bool step_hoist(kernel **k, const loop_step *s, str *why) {
    (void)s;
    if ((*k)->vars.n > 64) return step_refuse(why, "the kernel has %d loops; the limit is 64", (*k)->vars.n);
    hoist_all(*k);
    return true;
}
