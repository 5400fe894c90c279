/* plan_steps.c - every problem of a plan's tree of steps, one a line. In: a plan whose buffers have places. Out: text and the
 * number of problems. Scratch lives in the plan's arena.
 *
 * The checks of one iteration are plan_check's: what it reads of temporaries and outputs it has written itself, so only states
 * go from one iteration to the next, and they are updated behind the last reader of the old value. Here: that the tree has
 * every launch once and in order, that iterations find their own inputs and outputs, and that those which a device may overlap
 * leave each other's memory alone. */
#include "ir/plan.h"

#include <stdio.h>

void plan_problem(plan_problems *x, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_addf(x->out, "plan @%s: %s\n", x->p->g->name, text);
    x->n++;
}

/* ---- the tree ---- */

static void check_launch(plan_problems *c, int i, int launches) {
    const pstep *x = &c->p->steps.at[i];
    if (x->inside) plan_problem(c, "step %d is a launch with %d steps inside", i, x->inside);
    if (x->kernel != launches || x->kernel >= c->p->kernels.n)
        plan_problem(c, "step %d is launch %d, expected %d of %d", i, x->kernel, launches, c->p->kernels.n);
}

static void check_loop(plan_problems *c, int i) {
    const pstep *x = &c->p->steps.at[i];
    if (i > 0) plan_problem(c, "step %d is a loop over the steps of a run, but not around all of it", i);
    if (i == 0 && x->inside < c->p->steps.n - 1)
        plan_problem(c, "step %d stands outside of the loop over the steps of a run", i + 1 + x->inside);
}

static bool is_buffer(const plan *p, int32_t b) { return b >= 0 && b < p->bufs.n; }

/* What a window shows has room for all iterations. */
static void check_window(plan_problems *c, int i, const pring *y, bool *moves) {
    const plan *p = c->p;
    const pstep *x = &p->steps.at[i];
    if (!is_buffer(p, y->buf) || p->bufs.at[y->buf].kind != PB_WINDOW) {
        plan_problem(c, "step %d moves b%d, which is no window", i, y->buf);
        return;
    }
    const pbuf *b = &p->bufs.at[y->buf], *of = &p->bufs.at[b->window_of];
    int64_t reach;
    if (moves[y->buf]) plan_problem(c, "step %d moves b%d, which moves elsewhere, too", i, y->buf);
    moves[y->buf] = true;
    if (!x->times || y->stride != b->bytes || !size_mul(x->times, y->stride, &reach) || reach > of->bytes ||
        b->dtype != of->dtype)
        plan_problem(c, "step %d moves window b%d of %lld bytes by %lld, %lld times, over the %lld bytes of b%d", i, y->buf,
                     (long long)b->bytes, (long long)y->stride, (long long)x->times, (long long)of->bytes, b->window_of);
}

static void check_repeat(plan_problems *c, int i, bool *moves) {
    const plan *p = c->p;
    const pstep *x = &p->steps.at[i];
    if (x->times < 0) plan_problem(c, "step %d is repeated %lld times", i, (long long)x->times);
    if (x->times && x->count >= 0 &&
        (!is_buffer(p, x->count) || p->bufs.at[x->count].dtype != TN_I64 || p->bufs.at[x->count].elems != 1))
        plan_problem(c, "step %d is repeated b%d times, which is not one i64", i, x->count);
    for (int k = 0; k < x->n_rings; k++) check_window(c, i, &x->rings[k], moves);
}

/* A window is used inside of the repeat that moves it, and is no part of one that comes later. */
static void check_windows(plan_problems *c) {
    const plan *p = c->p;
    bool *moves = ARENA_ARRAY(p->a, bool, p->bufs.n + 1);
    int *from = ARENA_ARRAY(p->a, int, p->bufs.n + 1), *to = ARENA_ARRAY(p->a, int, p->bufs.n + 1), slot = SLOT_IO + p->io.n;
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b];
        if (x->kind != PB_WINDOW) continue;
        if (x->window_of < 0 || x->window_of >= b) plan_problem(c, "b%d is a window of b%d", b, x->window_of);
        if (x->slot != slot++ || x->offset)
            plan_problem(c, "window b%d lies in slot %d at %lld", b, x->slot, (long long)x->offset);
    }
    if (c->n) return;
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i];
        if (x->kind != PSTEP_REPEAT) continue;
        check_repeat(c, i, moves);
        for (int k = 0; k < x->n_rings && !c->n; k++) from[x->rings[k].buf] = i, to[x->rings[k].buf] = pstep_end(p, i);
    }
    for (int i = 0; i < p->steps.n && !c->n; i++) {
        const pstep *x = &p->steps.at[i];
        int32_t read = pstep_is_conditional(x) ? x->cond : x->kind == PSTEP_REPEAT && x->times ? x->count : -1;
        const pkernel *pk = x->kind == PSTEP_LAUNCH ? &p->kernels.at[x->kernel] : NULL;
        for (int k = -1; k < (pk ? pk->k->bufs.n : 0); k++) {
            int32_t b = k < 0 ? read : pk->args[k].buf;
            for (; is_buffer(p, b) && p->bufs.at[b].kind == PB_WINDOW; b = p->bufs.at[b].window_of)
                if (i <= from[b] || i >= to[b]) plan_problem(c, "step %d uses window b%d outside of its loop", i, b);
        }
        for (int k = 0; x->kind == PSTEP_REPEAT && k < x->n_rings; k++) {
            int32_t of = p->bufs.at[x->rings[k].buf].window_of;
            if (p->bufs.at[of].kind == PB_WINDOW && (i <= from[of] || i >= to[of]))
                plan_problem(c, "step %d uses window b%d outside of its loop", i, of);
        }
    }
}

/* repeats: that are open around it. */
static void check_conditional(plan_problems *c, int i, int repeats) {
    const pstep *x = &c->p->steps.at[i];
    const pbuf *b = x->cond >= 0 && x->cond < c->p->bufs.n ? &c->p->bufs.at[x->cond] : NULL;
    if (!b || b->dtype != TN_BOOL || b->elems != 1) plan_problem(c, "step %d reads b%d, which is not one bool", i, x->cond);
    if (x->kind == PSTEP_LEAVE && x->inside) plan_problem(c, "step %d is a leave with %d steps inside", i, x->inside);
    if (x->kind == PSTEP_LEAVE && !repeats) plan_problem(c, "step %d leaves no loop", i);
    if (x->kind == PSTEP_BRANCH && (x->n_then < 0 || x->n_then > x->inside))
        plan_problem(c, "step %d has %d steps inside, %d of them for true", i, x->inside, x->n_then);
}

static void check_tree(plan_problems *c) {
    const plan *p = c->p;
    VEC(int) open = { 0 };
    int launches = 0, repeats = 0;
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i];
        for (; open.n && pstep_end(p, open.at[open.n - 1]) <= i; open.n--)
            repeats -= p->steps.at[open.at[open.n - 1]].kind == PSTEP_REPEAT;
        int end = open.n ? pstep_end(p, open.at[open.n - 1]) : p->steps.n;
        if (x->inside < 0 || x->inside >= end - i)
            plan_problem(c, "step %d has %d steps inside, of %d that follow", i, x->inside, end - 1 - i);
        if (x->kind == PSTEP_LAUNCH) check_launch(c, i, launches++);
        if (x->kind == PSTEP_LOOP) check_loop(c, i);
        if (pstep_is_conditional(x)) check_conditional(c, i, repeats);
        if (x->kind >= N_PSTEPS) plan_problem(c, "step %d is of no kind", i);
        if (x->inside > 0) VEC_PUSH(p->a, &open, i), repeats += x->kind == PSTEP_REPEAT;
    }
    if (launches < p->kernels.n) plan_problem(c, "launch %d is in no step", launches);
}

/* ---- inputs and outputs ---- */

static void check_stride(plan_problems *c, const pring *x, bool gpu) {
    const pbuf *b = &c->p->bufs.at[x->buf];
    int64_t want = plan_ring_stride(b->bytes, b->bytes, gpu);
    if (x->stride != want)
        plan_problem(c, "b%d has %lld bytes, but moves by %lld from iteration to iteration, expected %lld", x->buf,
                     (long long)b->bytes, (long long)x->stride, (long long)want);
}

static void check_rings(plan_problems *c, const pstep *loop) {
    const plan *p = c->p;
    bool *moves = ARENA_ARRAY(p->a, bool, p->bufs.n + 1), gpu = plan_is_for_gpus(p);
    for (int i = 0; i < loop->n_rings; i++) {
        const pring *x = &loop->rings[i];
        if (x->buf < 0 || x->buf >= p->bufs.n) {
            plan_problem(c, "the loop moves buffer b%d of %d", x->buf, p->bufs.n);
            continue;
        }
        const pbuf *b = &p->bufs.at[x->buf];
        if (b->kind != PB_INPUT && b->kind != PB_OUTPUT)
            plan_problem(c, "the loop moves b%d, which is neither input nor output", x->buf);
        else if (b->offset)
            plan_problem(c, "the loop moves b%d, which is not at the begin of its slot", x->buf);
        if (i && x->buf <= loop->rings[i - 1].buf) plan_problem(c, "the loop moves b%d twice or out of order", x->buf);
        moves[x->buf] = true;
        check_stride(c, x, gpu);
    }
    for (int i = 0; i < p->io.n; i++)
        if (p->io.at[i].bytes > 0 && !moves[p->io.at[i].buf])
            plan_problem(c, "\"%s\" (b%d) does not move in the loop", p->io.at[i].name, p->io.at[i].buf);
}

/* ---- iterations that overlap ---- */

static bool is_before(const void *x, const void *y, const void *ud) {
    const pbuf *b = ((const plan *)ud)->bufs.at;
    return b[*(const int *)x].offset < b[*(const int *)y].offset;
}

static void check_overlap(plan_problems *c) {
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
                plan_problem(c, "iterations may overlap, but launch %d (%s) leaves b%d to the next one", i, pk->k->name, at);
            if (x->kind == PB_TEMP && x->bytes > 0 && !used[at]) VEC_PUSH(p->a, &temps, at);
            used[at] = true;
        }
    }
    merge_sort(p->a, temps.at, temps.n, sizeof *temps.at, is_before, p);
    for (int i = 1; i < temps.n; i++) {
        const pbuf *x = &p->bufs.at[temps.at[i - 1]], *y = &p->bufs.at[temps.at[i]];
        if (y->offset < x->offset + x->bytes)
            plan_problem(c, "iterations may overlap, but b%d and b%d share bytes", temps.at[i - 1], temps.at[i]);
    }
}

static bool is_counted(const pstep *x) { return x->kind == PSTEP_REPEAT && x->times && x->count >= 0; }

/* What is used inside of the repeat at step i, before which there are so many launches, lives to its end. */
static void extend_over_repeat(const plan *p, int i, int launches, plan_life_fn f, void *ud) {
    int end = launches;
    for (int j = i + 1; j < pstep_end(p, i); j++) end += p->steps.at[j].kind == PSTEP_LAUNCH;
    for (int j = i + 1; j < pstep_end(p, i); j++) {
        const pstep *x = &p->steps.at[j];
        if (pstep_is_conditional(x)) f(plan_base(p, x->cond), launches, end - 1, ud);
        if (is_counted(x)) f(plan_base(p, x->count), launches, end - 1, ud);
        if (x->kind != PSTEP_LAUNCH) continue;
        const pkernel *pk = &p->kernels.at[x->kernel];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->args[b].buf >= 0) f(plan_base(p, pk->args[b].buf), launches, end - 1, ud);
    }
}

void plan_window_lives(const plan *p, plan_life_fn f, void *ud) {
    int launches = 0;
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i];
        int end = launches;
        for (int j = i + 1; x->kind == PSTEP_REPEAT && x->n_rings && j < pstep_end(p, i); j++)
            end += p->steps.at[j].kind == PSTEP_LAUNCH;
        for (int k = 0; x->kind == PSTEP_REPEAT && k < x->n_rings && end > launches; k++)
            f(plan_base(p, x->rings[k].buf), launches, end - 1, ud);
        launches += x->kind == PSTEP_LAUNCH;
    }
}

void plan_extend_lives(const plan *p, plan_life_fn f, void *ud) {
    int launches = 0; /* before step i */
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i];
        if (pstep_is_conditional(x)) f(plan_base(p, x->cond), launches, launches - 1, ud);
        if (is_counted(x)) f(plan_base(p, x->count), launches, launches - 1, ud);
        if (x->kind == PSTEP_REPEAT) extend_over_repeat(p, i, launches, f, ud);
        launches += x->kind == PSTEP_LAUNCH;
    }
}

ext plan_elems(const plan *p, int32_t b) { return p->params ? graph_elems_ext(p->g, p->bufs.at[b].node) : p->bufs.at[b].elems; }

bool plan_is_loose(const plan *p, const pbuf *b) {
    if (b->kind != PB_WINDOW || !p->params) return b->kind == PB_WINDOW && b->bytes % 16;
    return ext_divisor(p->params, graph_elems_ext(p->g, b->node)) * (int64_t)dtype_size((tn_dtype)b->dtype) % 16;
}

pkernel plan_copy(const plan *p, int32_t from, int32_t to) {
    bool copies = from >= 0;
    const pbuf *src = &p->bufs.at[copies ? from : to];
    tn_dtype t = dtype_reg((tn_dtype)src->dtype);
    kernel *k = kernel_make(p->a, arena_printf(p->a, "%s_%u", copies ? "copy" : "zero", src->node));
    pkernel pk = { .k = k, .args = ARENA_ARRAY(p->a, parg, 2), .code = p->kernels.n, .root = src->node };
    ext elems = plan_elems(p, pk.args[0].buf = copies ? from : to);
    kbuf b = { .dtype = src->dtype, .kind = KB_IN, .node = src->node, .elems = elems, .plan_buf = from };
    b.loose = plan_is_loose(p, src);
    k->params = ext_is_lit(elems) ? NULL : p->params;
    pk.args[1].buf = to;
    if (copies) kernel_buf(k, b);
    b.kind = KB_OUT, b.plan_buf = to, b.loose = plan_is_loose(p, &p->bufs.at[to]);
    int out = kernel_buf(k, b);
    kvar v = kernel_var(k, "i", elems, true, false);
    kernel_push(k, (kins){ .op = K_LOOP, .var = v, .hi = elems, .step = 1 });
    kins value = { .op = K_CONST, .dtype = (uint8_t)t };
    if (copies) value.op = K_LOAD, value.src = src->dtype, value.idx = affine_var(p->a, v);
    reg r = kernel_push(k, value);
    kernel_push(k, (kins){ .op = K_STORE, .dtype = src->dtype, .buf = (uint16_t)out, .idx = affine_var(p->a, v), .a = r });
    kernel_push(k, (kins){ .op = K_END });
    k->bytes_read = copies ? (uint64_t)src->bytes : 0, k->bytes_written = (uint64_t)src->bytes;
    return pk;
}

bool plan_is_one_function(const plan *p) {
    if (!plan_has_control(p)) return true;
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].k->par_var >= 0) return false;
    return plan_loop(p) != NULL;
}

int plan_depth(const plan *p) {
    VEC(int) open = { 0 };
    int depth = 0, most = 0;
    for (int i = 0; i < p->steps.n; i++) {
        for (; open.n && pstep_end(p, open.at[open.n - 1]) <= i; open.n--) depth--;
        if (p->steps.at[i].kind != PSTEP_REPEAT) continue;
        VEC_PUSH(p->a, &open, i);
        if (++depth > most) most = depth;
    }
    return most;
}

bool plan_is_for_gpus(const plan *p) {
    for (int i = 0; i < p->kernels.n; i++)
        if (!p->kernels.at[i].k->block_threads) return false;
    return p->kernels.n > 0;
}

int plan_check_steps(const plan *p, str *out) {
    plan_problems c = { .p = p, .out = out };
    check_tree(&c);
    if (!c.n) check_windows(&c);
    const pstep *loop = plan_loop(p);
    if (loop) check_rings(&c, loop);
    if (loop && loop->overlaps) check_overlap(&c);
    return c.n;
}
