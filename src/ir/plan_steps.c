/* plan_steps.c - every problem of a plan's tree of steps, one a line. In: a plan whose buffers have places. Out: text and the
 * number of problems. Scratch lives in the plan's arena.
 *
 * The checks of one iteration are plan_check's: what it reads of temporaries and outputs it has written itself, so only states
 * go from one iteration to the next, and they are updated behind the last reader of the old value. Here: that the tree has
 * every launch once and in order, that iterations find their own inputs and outputs, and that those which a device may overlap
 * leave each other's memory alone. */
#include "ir/plan.h"

#include <stdio.h>

typedef struct checker {
    const plan *p;
    str *out;
    int n;
} checker;

static void problem(checker *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void problem(checker *c, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_addf(c->out, "plan @%s: %s\n", c->p->g->name, text);
    c->n++;
}

/* ---- the tree ---- */

static void check_tree(checker *c) {
    const plan *p = c->p;
    int launches = 0;
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i];
        if (x->kind == PSTEP_LAUNCH) {
            if (x->inside) problem(c, "step %d is a launch with %d steps inside", i, x->inside);
            if (x->kernel != launches || x->kernel >= p->kernels.n)
                problem(c, "step %d is launch %d, expected %d of %d", i, x->kernel, launches, p->kernels.n);
            launches++;
            continue;
        }
        if (i > 0) problem(c, "step %d is a loop over the steps of a run, but not around all of it", i);
        if (i == 0 && x->inside < p->steps.n - 1)
            problem(c, "step %d stands outside of the loop over the steps of a run", i + 1 + x->inside);
        if (x->inside < 0 || x->inside > p->steps.n - 1 - i)
            problem(c, "step %d has %d steps inside, of %d that follow", i, x->inside, p->steps.n - 1 - i);
    }
    if (launches < p->kernels.n) problem(c, "launch %d is in no step", launches);
}

/* ---- inputs and outputs ---- */

static void check_stride(checker *c, const pring *x) {
    const pbuf *b = &c->p->bufs.at[x->buf];
    int64_t want = plan_ring_stride(b->bytes, plan_is_for_gpus(c->p));
    if (x->stride != want)
        problem(c, "b%d has %lld bytes, but moves by %lld from iteration to iteration, expected %lld", x->buf,
                (long long)b->bytes, (long long)x->stride, (long long)want);
}

static void check_rings(checker *c, const pstep *loop) {
    const plan *p = c->p;
    bool *moves = ARENA_ARRAY(p->a, bool, p->bufs.n + 1);
    for (int i = 0; i < loop->n_rings; i++) {
        const pring *x = &loop->rings[i];
        if (x->buf < 0 || x->buf >= p->bufs.n) {
            problem(c, "the loop moves buffer b%d of %d", x->buf, p->bufs.n);
            continue;
        }
        const pbuf *b = &p->bufs.at[x->buf];
        if (b->kind != PB_INPUT && b->kind != PB_OUTPUT)
            problem(c, "the loop moves b%d, which is neither input nor output", x->buf);
        else if (b->offset)
            problem(c, "the loop moves b%d, which is not at the begin of its slot", x->buf);
        if (i && x->buf <= loop->rings[i - 1].buf) problem(c, "the loop moves b%d twice or out of order", x->buf);
        moves[x->buf] = true;
        check_stride(c, x);
    }
    for (int i = 0; i < p->io.n; i++)
        if (p->io.at[i].bytes > 0 && !moves[p->io.at[i].buf])
            problem(c, "\"%s\" (b%d) does not move in the loop", p->io.at[i].name, p->io.at[i].buf);
}

/* ---- iterations that overlap ---- */

static bool is_before(const void *x, const void *y, const void *ud) {
    const pbuf *b = ((const plan *)ud)->bufs.at;
    return b[*(const int *)x].offset < b[*(const int *)y].offset;
}

static void check_overlap(checker *c) {
    const plan *p = c->p;
    bool *used = ARENA_ARRAY(p->a, bool, p->bufs.n + 1);
    VEC(int) temps = { 0 };
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++) {
            int32_t at = pk->args[b].buf;
            if (at < 0 || at >= p->bufs.n) continue;
            const pbuf *x = &p->bufs.at[at];
            if ((x->kind == PB_STATE || x->kind == PB_STATES) && pk->k->bufs.at[b].kind != KB_IN)
                problem(c, "iterations may overlap, but launch %d (%s) leaves b%d to the next one", i, pk->k->name, at);
            if (x->kind == PB_TEMP && x->bytes > 0 && !used[at]) VEC_PUSH(p->a, &temps, at);
            used[at] = true;
        }
    }
    merge_sort(p->a, temps.at, temps.n, sizeof *temps.at, is_before, p);
    for (int i = 1; i < temps.n; i++) {
        const pbuf *x = &p->bufs.at[temps.at[i - 1]], *y = &p->bufs.at[temps.at[i]];
        if (y->offset < x->offset + x->bytes)
            problem(c, "iterations may overlap, but b%d and b%d share bytes", temps.at[i - 1], temps.at[i]);
    }
}

bool plan_is_for_gpus(const plan *p) {
    bool gpu = p->kernels.n > 0;
    for (int i = 0; i < p->kernels.n; i++) gpu = gpu && p->kernels.at[i].k->block_threads > 0;
    return gpu;
}

int plan_check_steps(const plan *p, str *out) {
    checker c = { .p = p, .out = out };
    check_tree(&c);
    const pstep *loop = plan_loop(p);
    if (loop) check_rings(&c, loop);
    if (loop && loop->overlaps) check_overlap(&c);
    return c.n;
}
