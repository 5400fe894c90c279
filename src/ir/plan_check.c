/* plan_check.c - every problem of a finished plan, one a line. In: a plan whose buffers have places. Out: text and the number
 * of problems. Scratch lives in the plan's arena.
 *
 * Lifetimes are computed again, from the instructions of the kernels alone: nothing here trusts what mem/ wrote down but the
 * offsets themselves. What a launch writes is enumerated element by element where that is affordable (kernel_walk.h). */
#include "ir/kernel_walk.h"
#include "ir/plan.h"

#include <stdio.h>

typedef struct life {
    int first, last; /* launches that use it */
    int writer, last_reader;
    int n_writers;
    uint8_t *written; /* [elems], or NULL: not followed */
} life;

typedef struct checker {
    const plan *p;
    plan_problems all;
    life *life;   /* [bufs] */
    int inside;   /* steps that run more than once or not at all are open */
    int64_t room; /* bytes that may still be remembered of branches and loops */
} checker;

/* ---- places ---- */

static int64_t slot_size(const plan *p, int slot) {
    if (slot == SLOT_TEMP) return p->temp_bytes;
    if (slot == SLOT_STATE) return p->state_bytes;
    if (slot == SLOT_SHARED) return p->shared_bytes;
    if (slot == SLOT_CONST) return p->const_bytes;
    return slot >= SLOT_IO && slot - SLOT_IO < p->io.n ? p->io.at[slot - SLOT_IO].bytes : -1;
}

static bool is_used(const checker *c, int b) { return c->life[b].first >= 0 && c->p->bufs.at[b].bytes > 0; }

static void check_place(checker *c, int b) {
    const pbuf *x = &c->p->bufs.at[b];
    if (x->kind == PB_WINDOW) return; /* see plan_steps.c */
    static const int slots[] = { SLOT_TEMP, SLOT_STATE, SLOT_CONST, SLOT_IO, SLOT_IO, SLOT_SHARED };
    bool stays = x->kind == PB_STATE && !graph_is_assigned(c->p->g, x->node);
    int want = stays ? SLOT_SHARED : slots[x->kind] + (x->kind == PB_INPUT || x->kind == PB_OUTPUT ? x->io : 0);
    if (x->slot != want) plan_problem(&c->all, "b%d lies in slot %d, expected %d", b, x->slot, want);
    if (x->offset % PLAN_ALIGN)
        plan_problem(&c->all, "b%d is at offset %lld, which is not a multiple of %d", b, (long long)x->offset, PLAN_ALIGN);
    if (x->bytes != x->elems * (int64_t)dtype_size((tn_dtype)x->dtype))
        plan_problem(&c->all, "b%d has %lld bytes for %lld elements", b, (long long)x->bytes, (long long)x->elems);
    if (x->offset < 0 || x->offset + x->bytes > slot_size(c->p, x->slot))
        plan_problem(&c->all, "b%d ends at byte %lld of slot %d, which has %lld", b, (long long)(x->offset + x->bytes), x->slot,
                     (long long)slot_size(c->p, x->slot));
}

/* A copy in panels has elements of its value alone. */
static void check_panels(checker *c, int b) {
    const pbuf *x = &c->p->bufs.at[b];
    const kpanels *l = x->panels;
    kstep steps[PANEL_LOOPS + 2] = { { l->packed ? l->packed : 1, l->packed_stride }, l->column };
    int64_t up = 0, down = 0, reach, elems = x->node ? graph_elems(c->p->g, x->node) : 0, count = l->width;
    bool ok = l->dtype == graph_get(c->p->g, x->node)->dtype && l->base >= 0 && l->base < elems;
    for (int i = 0; i < l->n_outer + l->n_depth; i++) steps[2 + i] = l->loops[i];
    for (int i = 0; i < 2 + l->n_outer + l->n_depth && ok; i++) {
        int64_t step = steps[i].step, *far = step < 0 ? &down : &up;
        ok = step > -INT64_MAX && size_mul(steps[i].extent - 1, step < 0 ? -step : step, &reach) && size_add(*far, reach, far);
        if (i > 0) ok = ok && size_mul(count, steps[i].extent, &count) && count < INT64_MAX - l->width;
    }
    if (!ok || down > l->base || up >= elems - l->base || kpanels_elems(l) != x->elems)
        plan_problem(&c->all, "b%d has %lld elements in panels, not all of them of its value", b, (long long)x->elems);
}

static bool shares_place(const checker *c, int x, int y) { /* y takes over the place of x in the launch that reads x last */
    return c->p->bufs.at[y].inplace_of == x && c->life[x].last == c->life[y].first;
}

static bool both_stay(const checker *c, int x, int y) { /* states, also seen as parts of a larger buffer */
    bool states = c->p->bufs.at[x].kind == PB_STATES || c->p->bufs.at[y].kind == PB_STATES;
    return states && c->life[x].n_writers == 0 && c->life[y].n_writers == 0;
}

/* Buffers by the place where they begin: `end` is where each ends as long as it lives, else -1, in a tree of largest ends. */
typedef struct places {
    const plan *p;
    int *order, *rank; /* [n] buffers by slot and offset; [bufs] its inverse */
    int64_t *end;      /* [2 * leaves] */
    int n, leaves;
} places;

static void set_end(places *x, int b, int64_t end) {
    int i = x->leaves + x->rank[b];
    x->end[i] = end;
    while (i /= 2) x->end[i] = x->end[2 * i] > x->end[2 * i + 1] ? x->end[2 * i] : x->end[2 * i + 1];
}

/* The first of [from, to) that ends behind `at`, or -1. */
static int next_beyond(const places *x, int from, int to, int64_t at) {
    for (int i = x->leaves + from; from < to; i++) {
        if (x->end[i] > at) {
            while (i < x->leaves) i = x->end[2 * i] > at ? 2 * i : 2 * i + 1;
            return i - x->leaves < to ? i - x->leaves : -1;
        }
        while (i & 1)
            if (!(i /= 2)) return -1;
    }
    return -1;
}

static bool is_before(const void *x, const void *y, const void *ud) {
    const pbuf *a = &((const plan *)ud)->bufs.at[*(const int *)x], *b = &((const plan *)ud)->bufs.at[*(const int *)y];
    return a->slot != b->slot ? a->slot < b->slot : a->offset < b->offset;
}

/* How many places lie in slots before this one, or in it and begin before `at`. */
static int count_before(const places *x, int slot, int64_t at) {
    int lo = 0, hi = x->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const pbuf *y = &x->p->bufs.at[x->order[mid]];
        if (y->slot < slot || (y->slot == slot && y->offset < at))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void begin_life(checker *c, places *x, int b) {
    const pbuf *own = &c->p->bufs.at[b];
    int r = count_before(x, own->slot, INT64_MIN), to = count_before(x, own->slot, own->offset + own->bytes);
    for (; (r = next_beyond(x, r, to, own->offset)) >= 0; r++) {
        int o = x->order[r], first = o < b ? o : b;
        if (!both_stay(c, b, o) && !shares_place(c, b, o) && !shares_place(c, o, b))
            plan_problem(&c->all, "b%d and b%d live at once and overlap", first, o + b - first);
    }
    set_end(x, b, own->offset + own->bytes);
}

static bool begins_first(const void *x, const void *y, const void *ud) {
    return ((const life *)ud)[*(const int *)x].first < ((const life *)ud)[*(const int *)y].first;
}
static bool ends_first(const void *x, const void *y, const void *ud) {
    return ((const life *)ud)[*(const int *)x].last < ((const life *)ud)[*(const int *)y].last;
}

/* Goes through the launches: who begins to live meets those that do. Only temporaries end. */
static void check_overlaps(checker *c) {
    const plan *p = c->p;
    places x = { .p = p, .leaves = 1 };
    VEC(int) temps = { 0 }, others = { 0 };
    for (int i = 0; i < p->bufs.n; i++) {
        if (p->bufs.at[i].bytes == 0 || p->bufs.at[i].kind == PB_WINDOW) continue;
        if (p->bufs.at[i].kind != PB_TEMP)
            VEC_PUSH(p->a, &others, i);
        else if (is_used(c, i))
            VEC_PUSH(p->a, &temps, i);
    }
    x.n = temps.n + others.n;
    while (x.leaves < x.n) x.leaves *= 2;
    x.order = ARENA_ARRAY(p->a, int, x.n + 1), x.rank = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    x.end = ARENA_ARRAY(p->a, int64_t, 2 * x.leaves);
    for (int i = 0; i < 2 * x.leaves; i++) x.end[i] = -1;
    for (int i = 0; i < x.n; i++) x.order[i] = i < others.n ? others.at[i] : temps.at[i - others.n];
    merge_sort(p->a, x.order, x.n, sizeof *x.order, is_before, p);
    for (int i = 0; i < x.n; i++) x.rank[x.order[i]] = i;
    int *ending = ARENA_ARRAY(p->a, int, temps.n + 1), done = 0;
    for (int i = 0; i < temps.n; i++) ending[i] = temps.at[i];
    merge_sort(p->a, temps.at, temps.n, sizeof *temps.at, begins_first, c->life);
    merge_sort(p->a, ending, temps.n, sizeof *ending, ends_first, c->life);
    for (int i = 0; i < others.n; i++) begin_life(c, &x, others.at[i]);
    for (int i = 0; i < temps.n; i++) {
        while (c->life[ending[done]].last < c->life[temps.at[i]].first) set_end(&x, ending[done++], -1);
        begin_life(c, &x, temps.at[i]);
    }
}

/* ---- launches ---- */

typedef struct marks {
    uint8_t *at;
    int64_t n, missing, first_missing;
} marks;
static void visit_write(const visit_at *v, void *ud) {
    marks *m = ud;
    if (v->at >= 0 && v->at < m->n) m->at[v->at] = 1;
}
static void visit_read(const visit_at *v, void *ud) {
    marks *m = ud;
    if (v->at < 0 || v->at >= m->n || m->at[v->at]) return;
    if (m->missing++ == 0) m->first_missing = v->at;
}

/* Elements that the launch reads must have been written; what it writes is marked, in the order of its instructions. A nest
 * that reads what an earlier nest of the same kernel wrote is in order too. */
static void follow(checker *c, int launch, const pkernel *pk, int arg) {
    int32_t b = pk->args[arg].buf;
    const kernel *k = pk->k;
    life *l = &c->life[b];
    int *open = ARENA_ARRAY(c->p->a, int, k->ins.n), n_open = 0;
    for (reg r = 1; r < (reg)k->ins.n && l->written; r++) {
        const kins *in = &k->ins.at[r];
        if (in->op == K_LOOP) open[n_open++] = (int)r;
        if (in->op == K_END && n_open > 0) n_open--;
        if ((in->op != K_LOAD && in->op != K_STORE) || in->buf != arg)
            continue; /* a scatter needs what a store wrote before it */
        marks m = { .at = l->written, .n = c->p->bufs.at[b].elems };
        bool whole = kernel_walk(k, r, open, n_open, in->op == K_LOAD ? visit_read : visit_write, &m);
        if (m.missing && c->p->bufs.at[b].kind != PB_STATE)
            plan_problem(&c->all, "launch %d (%s) reads element %lld of b%d, which nothing has written", launch, k->name,
                         (long long)m.first_missing, b);
        if (!whole && in->op == K_STORE) l->written = NULL;
    }
}

static bool writes(const kernel *k, int arg) {
    for (int i = 1; i < k->ins.n; i++)
        if ((k->ins.at[i].op == K_STORE || k->ins.at[i].op == K_SCATTER) && k->ins.at[i].buf == arg) return true;
    return false;
}
static bool reads(const kernel *k, int arg) {
    for (int i = 1; i < k->ins.n; i++)
        if ((k->ins.at[i].op == K_LOAD || k->ins.at[i].op == K_SCATTER) && k->ins.at[i].buf == arg) return true;
    return false;
}
static bool reads_first(const kernel *k, int arg) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].buf == arg &&
            (k->ins.at[i].op == K_LOAD || k->ins.at[i].op == K_STORE || k->ins.at[i].op == K_SCATTER))
            return k->ins.at[i].op != K_STORE;
    return false;
}

static void check_arg(checker *c, int launch, const pkernel *pk, int arg) {
    const kbuf *kb = &pk->k->bufs.at[arg];
    int32_t b = pk->args[arg].buf;
    if (kbuf_is_local(kb)) {
        if (b >= 0)
            plan_problem(&c->all, "launch %d (%s): local buffer b%d is bound to plan buffer b%d", launch, pk->k->name, arg, b);
        return;
    }
    if (b < 0 || b >= c->p->bufs.n) {
        plan_problem(&c->all, "launch %d (%s): buffer b%d is not bound", launch, pk->k->name, arg);
        return;
    }
    const pbuf *pb = &c->p->bufs.at[b];
    int32_t base = plan_base(c->p, b);
    life *l = &c->life[base];
    bool write = writes(pk->k, arg);
    if (!kb->panels != !pb->panels || (kb->panels && !kpanels_equal(kb->panels, pb->panels)))
        plan_problem(&c->all, "launch %d (%s) reads b%d in another order than it is packed in", launch, pk->k->name, b);
    if (kb->elems > pb->elems || dtype_size((tn_dtype)kb->dtype) != dtype_size((tn_dtype)pb->dtype))
        plan_problem(&c->all, "launch %d (%s) sees b%d as %s[%lld], it is %s[%lld]", launch, pk->k->name, b,
                     dtype_name((tn_dtype)kb->dtype), (long long)kb->elems, dtype_name((tn_dtype)pb->dtype),
                     (long long)pb->elems);
    if (kb->kind == KB_OUT && reads(pk->k, arg) && reads_first(pk->k, arg))
        plan_problem(&c->all, "launch %d (%s) reads b%d, declared as written only", launch, pk->k->name, b);
    pbuf_kind held = c->p->bufs.at[base].kind;
    if (write && (held == PB_INPUT || held == PB_CONST || (base != b && held != PB_TEMP && held != PB_OUTPUT)))
        plan_problem(&c->all, "launch %d (%s) writes b%d, an input or a constant", launch, pk->k->name, b);
    if (reads_first(pk->k, arg) && l->n_writers == 0 && (held == PB_TEMP || held == PB_OUTPUT) && pb->bytes > 0)
        plan_problem(&c->all, "launch %d (%s) reads b%d before anything writes it", launch, pk->k->name, b);
    for (int o = 0; o < arg; o++)
        if (plan_base(c->p, pk->args[o].buf) == base && !kbuf_is_local(&pk->k->bufs.at[o]) && (write || writes(pk->k, o)))
            plan_problem(&c->all, "launch %d (%s) has b%d under two names and writes it", launch, pk->k->name, b);
    if (l->first < 0) l->first = launch;
    l->last = launch;
    bool old = pb->kind == PB_STATE && kb->node == pb->node; /* else: its new value */
    if (old && reads_first(pk->k, arg) && l->n_writers > 0)
        plan_problem(&c->all, "launch %d (%s) reads state b%d after it was updated", launch, pk->k->name, b);
    if (pb->kind == PB_STATE && !old && !write && l->n_writers == 0)
        plan_problem(&c->all, "launch %d (%s) reads the new value of state b%d before the update", launch, pk->k->name, b);
    if (old && reads(pk->k, arg)) l->last_reader = launch;
    if (base == b) follow(c, launch, pk, arg);
    if (base != b && write) l->written = NULL;
    if (write && pb->kind == PB_STATE && c->inside)
        plan_problem(&c->all, "launch %d (%s) updates state b%d inside of a loop or a branch", launch, pk->k->name, b);
    if (write) l->writer = launch, l->n_writers++;
}

static int lanes_of(const kins *in) { return in->lanes > 1 ? in->lanes : 1; }

/* Whether lane l of a load reads what `store`, which stands below it, writes in one of its lanes. */
static bool stores_lane(const kins *load, int l, const kins *store) {
    if (store->dyn || load->idx.n != store->idx.n) return false;
    if (!affine_equal(load->idx, affine_offset(store->idx, load->idx.base - store->idx.base))) return false;
    int64_t apart = load->idx.base - store->idx.base + l * load->lane_stride;
    if (apart == 0) return true;
    return store->lane_stride && apart % store->lane_stride == 0 && apart / store->lane_stride > 0 &&
           apart / store->lane_stride < lanes_of(store);
}

/* A state that a kernel both reads and writes: each element is read at its own place, before it is written. The lanes of what
 * reads and writes may differ: a block of a matrix may be read along its rows and written along its columns. */
static void check_state_in_place(checker *c, int launch, const pkernel *pk, int arg) {
    const kernel *k = pk->k;
    VEC(int) stores = { 0 };
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_STORE && k->ins.at[i].buf == arg) VEC_PUSH(c->p->a, &stores, i);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || in->buf != arg) continue;
        bool own = !in->dyn; /* masked lanes read nothing */
        for (int l = 0; own && l < lanes_of(in); l++) {
            own = false;
            for (int s = 0; s < stores.n && !own; s++) own = stores.at[s] > i && stores_lane(in, l, &k->ins.at[stores.at[s]]);
        }
        if (!own)
            plan_problem(&c->all, "launch %d (%s) updates state b%d in place but reads it elsewhere", launch, k->name,
                         pk->args[arg].buf);
    }
}

static void check_results(checker *c) {
    const plan *p = c->p;
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        const life *l = &c->life[i];
        if (b->kind != PB_OUTPUT || b->elems == 0) continue;
        if (l->n_writers == 0) plan_problem(&c->all, "output b%d is never written", i);
        for (int64_t e = 0; l->n_writers && l->written && e < graph_elems(p->g, b->node); e++)
            if (!l->written[e]) {
                plan_problem(&c->all, "element %lld of output b%d is never written", (long long)e, i);
                break;
            }
    }
    for (int i = 0; i < p->states.n; i++) {
        const pstate *s = &p->states.at[i];
        bool assigned = graph_is_assigned(p->g, s->node);
        const life *l = &c->life[s->buf];
        if (p->bufs.at[s->buf].elems == 0) continue;
        if (!assigned && l->n_writers)
            plan_problem(&c->all, "state \"%s\" is written by launch %d, but the graph never assigns it", s->name, l->writer);
        if (assigned && l->n_writers != 1)
            plan_problem(&c->all, "state \"%s\" is written by %d launches, expected one", s->name, l->n_writers);
        if (assigned && l->n_writers && l->last_reader > l->writer)
            plan_problem(&c->all, "state \"%s\" is read by launch %d after launch %d updated it", s->name, l->last_reader,
                         l->writer);
    }
}

/* ---- the flow: what has been written for sure where branches join and loops are left ---- */

typedef struct known { /* of a buffer */
    int n_writers;
    uint8_t *written;
} known;

typedef struct open_step {
    int step;
    known *before, *then, *left; /* [bufs] at its begin; at the end of a branch's first part; at a loop's first leave */
} open_step;
typedef VEC(open_step) open_steps;
enum { MOST_REMEMBERED = 64 << 20 }; /* bytes; what is beyond is not followed any more */

static known *remember(checker *c) {
    known *k = ARENA_ARRAY(c->p->a, known, c->p->bufs.n + 1);
    for (int b = 0; b < c->p->bufs.n; b++) {
        const life *l = &c->life[b];
        k[b].n_writers = l->n_writers;
        if (l->written) c->room -= c->p->bufs.at[b].elems;
        if (l->written && c->room >= 0) k[b].written = arena_copy(c->p->a, l->written, (size_t)c->p->bufs.at[b].elems + 1);
    }
    return k;
}

/* What is known from here on: both: what holds in `k` and now; else: what holds in k. Who is not followed any more is not. */
static void recall(checker *c, const known *k, bool both) {
    for (int b = 0; b < c->p->bufs.n; b++) {
        life *l = &c->life[b];
        if (!both || k[b].n_writers < l->n_writers) l->n_writers = k[b].n_writers;
        if (!l->written || !k[b].written) l->written = NULL;
        for (int64_t e = 0; l->written && e < c->p->bufs.at[b].elems; e++)
            l->written[e] = (uint8_t)(both ? l->written[e] & k[b].written[e] : k[b].written[e]);
    }
}

static void close_step(checker *c, const open_step *o) {
    const pstep *x = &c->p->steps.at[o->step];
    if (x->kind == PSTEP_BRANCH) recall(c, o->then ? o->then : o->before, true);
    if (x->kind == PSTEP_REPEAT && o->left) recall(c, o->left, false);
    if (x->kind == PSTEP_REPEAT && o->before) recall(c, o->before, true); /* no iteration */
    if (x->kind == PSTEP_REPEAT && !o->left && !x->times)
        plan_problem(&c->all, "step %d is a loop that nothing leaves", o->step);
    c->inside -= x->kind != PSTEP_LOOP;
}

static void check_condition(checker *c, int i, open_steps *open) {
    int32_t b = plan_base(c->p, pstep_is_conditional(&c->p->steps.at[i]) ? c->p->steps.at[i].cond : c->p->steps.at[i].count);
    pbuf_kind kind = c->p->bufs.at[b].kind;
    const life *l = &c->life[b];
    if ((kind == PB_TEMP || kind == PB_OUTPUT) && (l->n_writers == 0 || (l->written && !l->written[0])))
        plan_problem(&c->all, "step %d reads b%d, which nothing has written", i, b);
    int at = open->n - 1;
    while (c->p->steps.at[i].kind == PSTEP_LEAVE && at >= 0 && c->p->steps.at[open->at[at].step].kind != PSTEP_REPEAT) at--;
    if (c->p->steps.at[i].kind == PSTEP_LEAVE && !open->at[at].left) open->at[at].left = remember(c);
}

static void check_launch(checker *c, int i) {
    const plan *p = c->p;
    const pkernel *pk = &p->kernels.at[i];
    for (int a = 0; a < pk->k->bufs.n; a++) {
        check_arg(c, i, pk, a);
        if (!kbuf_is_local(&pk->k->bufs.at[a]) && pk->args[a].buf >= 0 && pk->args[a].buf < p->bufs.n &&
            p->bufs.at[pk->args[a].buf].kind == PB_STATE && writes(pk->k, a) && reads(pk->k, a))
            check_state_in_place(c, i, pk, a);
    }
}

/* The steps of one run, in order; of a loop one iteration, for the others find no less. */
static void check_flow(checker *c) {
    const plan *p = c->p;
    open_steps open = { 0 };
    for (int i = 0; i <= p->steps.n; i++) {
        for (; open.n && pstep_end(p, open.at[open.n - 1].step) == i; open.n--) close_step(c, &open.at[open.n - 1]);
        if (i == p->steps.n) return;
        open_step *around = open.n ? &open.at[open.n - 1] : NULL;
        const pstep *x = &p->steps.at[i], *y = around ? &p->steps.at[around->step] : NULL;
        if (y && y->kind == PSTEP_BRANCH && i == around->step + 1 + y->n_then)
            around->then = remember(c), recall(c, around->before, false);
        if (x->kind == PSTEP_LAUNCH) check_launch(c, x->kernel);
        if (pstep_is_conditional(x)) check_condition(c, i, &open);
        if (x->kind == PSTEP_LAUNCH || x->kind == PSTEP_LEAVE) continue;
        open_step mine = { .step = i };
        bool counted = x->kind == PSTEP_REPEAT && x->times && x->count >= 0;
        if (counted) check_condition(c, i, &open);
        if (x->kind == PSTEP_BRANCH || counted) mine.before = remember(c);
        c->inside += x->kind != PSTEP_LOOP;
        VEC_PUSH(p->a, &open, mine);
    }
}

static void extend_life(int32_t buf, int from, int to, void *ud) {
    life *l = &((checker *)ud)->life[buf];
    if (l->first >= 0 && l->first < from && l->last < to) l->last = to;
}

static void window_life(int32_t buf, int from, int to, void *ud) {
    life *l = &((checker *)ud)->life[buf];
    if (l->first < 0 || l->first > from) l->first = from;
    if (l->last < to) l->last = to;
}

plan *plan_at(const plan *p, const int64_t *dims) {
    plan *o = arena_copy(p->a, p, sizeof *p);
    o->params = NULL;
    o->g = graph_at(p->g, dims, p->a);
    o->kernels.at = arena_copy(p->a, p->kernels.at, sizeof *p->kernels.at * (size_t)p->kernels.n);
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].k->params) o->kernels.at[i].k = kernel_at(p->kernels.at[i].k, dims, p->a);
    if (!p->params) return o;
    int64_t *rows = ARENA_ARRAY(p->a, int64_t, p->params->at.n + 1);
    exts_at(p->params, dims, rows, NULL);
    o->steps.at = arena_copy(p->a, p->steps.at, sizeof *p->steps.at * (size_t)p->steps.n);
    for (int i = 0; i < p->steps.n; i++) {
        pstep *x = &o->steps.at[i];
        pring *rings = arena_copy(p->a, x->rings, sizeof *rings * (size_t)x->n_rings);
        for (int k = 0; k < x->n_rings; k++) rings[k].stride = ext_of(rings[k].stride, rows);
        int64_t times = ext_of(x->times, rows);
        x->times = times || !x->times ? times : -1, x->rings = rings; /* 0: until a leave */
    }
    return o;
}

/* Where each dim has its largest value most buffers are full: what grows as a dim shrinks is not. */
static const plan *plan_at_most(const plan *p) {
    int64_t *dims = ARENA_ARRAY(p->a, int64_t, p->params->n_dims + 1);
    for (int i = 0; i < p->params->n_dims; i++) dims[i] = ext_hi(p->params, exts_dim(p->params, i));
    return plan_at(p, dims);
}

int plan_check(const plan *p, str *out) {
    if (p->params) return plan_check(plan_at_most(p), out);
    checker c = { .p = p,
                  .all = { p, out, plan_check_steps(p, out) },
                  .room = MOST_REMEMBERED,
                  .life = ARENA_ARRAY(p->a, life, p->bufs.n + 1) };
    if (c.all.n) return c.all.n;
    for (int b = 0; b < p->bufs.n; b++) {
        pbuf_kind kind = p->bufs.at[b].kind;
        c.life[b] = (life){ -1, -1, -1, -1, 0, NULL };
        if ((kind == PB_TEMP || kind == PB_OUTPUT) && p->bufs.at[b].elems <= WALK_BUDGET)
            c.life[b].written = ARENA_ARRAY(p->a, uint8_t, p->bufs.at[b].elems + 1);
    }
    check_flow(&c);
    if (plan_has_control(p)) plan_window_lives(p, window_life, &c), plan_extend_lives(p, extend_life, &c);
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *x = &p->bufs.at[b];
        bool filled = x->bytes > 0 && (x->kind == PB_CONST || x->kind == PB_STATE);
        if (is_used(&c, b) || filled) check_place(&c, b);
        if (x->panels) check_panels(&c, b);
        if (is_used(&c, b) && x->kind == PB_CONST && !graph_get(p->g, x->node)->data)
            plan_problem(&c.all, "b%d has no value", b);
    }
    check_overlaps(&c);
    check_results(&c);
    return c.all.n ? c.all.n : plan_check_races(p, out);
}
