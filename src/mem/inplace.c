/* inplace.c - results written over what they are computed from.
 *
 * Legal when the old contents have no later reader, nothing is written there later (such as for a loop's next iteration) and,
 * within the kernel, every element is read, at the same index and in the same nest, before it is written: all reads of the old
 * buffer stand before the first write of the new one and use exactly its index. In and out: mem.h.
 *
 * A scatter writes its base first. Over the base itself that writes what is there, and is left out: the updates alone move.
 *
 * What uses a buffer is listed once and kept right: a buffer that takes the place of another hands its uses over. */
#include "mem/inplace.h"
#include "loop/loop.h"
#include "mem/mem.h"

typedef VEC(int) int_list;
typedef struct use_range {
    int first_write, last_write, last_read; /* kernels, or -1 */
    bool windowed;                          /* loops use parts of it */
    int_list kernels;                       /* that use it; one may stand there twice */
} use_range;

typedef struct places {
    plan *p;
    use_range *range;  /* [bufs] */
    int32_t *of_value; /* [nodes] the temporary or output that holds a value at first, or -1 */
    int32_t *of_state; /* [nodes] the buffer of a state, or -1 */
    bool control;      /* of the plan's steps some read buffers */
    int64_t small;     /* elements of results that make no kernel wait for another that it does not need */
} places;

int inplace_arg(const pkernel *pk, int32_t buf) {
    for (int b = 0; b < pk->k->bufs.n; b++)
        if (pk->args[b].buf == buf) return b;
    return -1;
}

bool inplace_is_legal(const kernel *k, int from, int to) {
    const kins *store = NULL;
    if (k->bufs.at[from].dtype != k->bufs.at[to].dtype) return false; /* one buffer has one type */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_SCATTER && (in->buf == from || (in->buf == to && !store))) return false;
        if (in->op == K_STORE && in->buf == to) {
            if (store) return false;
            store = in;
        }
    }
    if (!store) return false;
    bool written = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in == store) written = true;
        if (in->op == K_STORE && in->buf == from) return false;
        if (in->op != K_LOAD || in->buf != from) continue;
        if (written || in->dyn || in->n_mask || !affine_equal(in->idx, store->idx)) return false;
    }
    return true;
}

/* Before a scatter, nests that store what they have loaded from the same place, and nothing else, go. */
static void drop_copies(kernel *k, int buf) {
    bool scatters = false;
    for (int i = 1; i < k->ins.n; i++) scatters = scatters || (k->ins.at[i].op == K_SCATTER && k->ins.at[i].buf == buf);
    if (!scatters) return;
    for (int i = 1; i < k->ins.n; i++) {
        int first = i;
        while (k->ins.at[first].op == K_LOOP && k->ins.at[first + 1].op == K_LOOP) first++;
        const kins *load = &k->ins.at[first + 1], *store = load + 1;
        if (k->ins.at[i].op != K_LOOP || first + 3 >= k->ins.n) continue;
        if (load->op != K_LOAD || store->op != K_STORE || store[1].op != K_END || load->buf != buf || store->buf != buf ||
            store->a != (reg)(first + 1) || !affine_equal(load->idx, store->idx))
            continue;
        int end = kernel_loop_end(k, i);
        if (end != first + 3 + (first - i)) continue;
        while (i <= end) k->ins.at[i++].op = K_NIL;
        i--;
    }
    loop_compact(k);
}

static void merge_args(pkernel *pk, int from, int to) {
    kernel *k = pk->k;
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (kernel_touches(in) && in->buf == from) in->buf = (uint16_t)to;
    }
    k->bufs.at[to].kind = KB_INOUT;
    k->bufs.at[from].kind = KB_LOCAL; /* no longer used: an empty local */
    k->bufs.at[from].elems = 0;
    pk->args[from].buf = -1;
    drop_copies(k, to);
    kernel_count_traffic(k);
}

void inplace_rebind(pkernel *pk, int32_t from, int32_t to) {
    int b = inplace_arg(pk, from), other = inplace_arg(pk, to);
    if (b < 0) return;
    pk->args[b].buf = to;
    if (other >= 0) merge_args(pk, other, b);
}

/* Kernel i uses what it has as kind; kernels are noted in launch order. */
static void note_use(places *w, int32_t buf, kbuf_kind kind, int i) {
    use_range *r = &w->range[buf];
    if (kind != KB_IN) r->last_write = i;
    if (kind != KB_IN && r->first_write < 0) r->first_write = i;
    if (kind != KB_OUT) r->last_read = i;
    VEC_PUSH(w->p->a, &r->kernels, i);
}

/* What a step reads, or the next iteration of a loop, is not used up by the launches before. */
static void read_later(int32_t buf, int from, int to, void *ud) {
    use_range *r = &((places *)ud)->range[buf];
    if (r->first_write < from && r->last_read <= to) r->last_read = to + 1;
}

static void windowed(int32_t buf, int from, int to, void *ud) {
    use_range *r = &((places *)ud)->range[buf];
    r->windowed = true;
    if (r->first_write < 0 || r->first_write > from) r->first_write = from;
    if (r->last_write < to) r->last_write = to;
    if (r->last_read < to) r->last_read = to;
}

static places list_uses(plan *p) {
    places w = { .p = p,
                 .control = plan_has_control(p),
                 .range = ARENA_ARRAY(p->a, use_range, p->bufs.n),
                 .of_value = ARENA_ARRAY(p->a, int32_t, p->g->nodes.n),
                 .of_state = ARENA_ARRAY(p->a, int32_t, p->g->nodes.n) };
    for (int v = 0; v < p->g->nodes.n; v++) w.of_value[v] = w.of_state[v] = -1;
    for (int32_t b = p->bufs.n - 1; b >= 0; b--) {
        const pbuf *x = &p->bufs.at[b];
        w.range[b] = (use_range){ .first_write = -1, .last_write = -1, .last_read = -1 };
        if (x->kind == PB_TEMP || x->kind == PB_OUTPUT) w.of_value[x->node] = b;
    }
    for (int s = 0; s < p->states.n; s++) w.of_state[p->states.at[s].node] = p->states.at[s].buf;
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++)
            if (pk->args[b].buf >= 0) note_use(&w, pk->args[b].buf, (kbuf_kind)pk->k->bufs.at[b].kind, i);
    }
    if (w.control) plan_window_lives(p, windowed, &w);
    if (w.control) plan_extend_lives(p, read_later, &w);
    return w;
}

/* What uses `from` uses `to` instead, which nothing uses between the two. */
static void rebind(places *w, int32_t from, int32_t to) {
    use_range *x = &w->range[from], *y = &w->range[to];
    for (int i = 0; i < x->kernels.n; i++) {
        pkernel *pk = &w->p->kernels.at[x->kernels.at[i]];
        if (inplace_arg(pk, from) < 0) continue;
        inplace_rebind(pk, from, to);
        VEC_PUSH(w->p->a, &y->kernels, x->kernels.at[i]);
    }
    for (int i = 0; i < w->p->steps.n && w->control; i++) {
        pstep *s = &w->p->steps.at[i];
        if (pstep_is_conditional(s) && s->cond == from) s->cond = to;
        if (s->kind == PSTEP_REPEAT && s->times && s->count == from) s->count = to;
    }
    if (y->first_write < 0) y->first_write = x->first_write;
    if (x->last_write > y->last_write) y->last_write = x->last_write;
    if (x->last_read > y->last_read) y->last_read = x->last_read;
    *x = (use_range){ .first_write = -1, .last_write = -1, .last_read = -1 };
}

static void add_copy(places *w, int32_t from, int32_t to) {
    plan *p = w->p;
    VEC_PUSH(p->a, &p->steps, ((pstep){ .kind = PSTEP_LAUNCH, .kernel = p->kernels.n }));
    VEC_PUSH(p->a, &p->kernels, plan_copy(p, from, to));
    note_use(w, from, KB_IN, p->kernels.n - 1);
    note_use(w, to, KB_OUT, p->kernels.n - 1);
}

/* A new state value goes straight into the state when nothing reads the old one afterwards. */
static bool update_directly(places *w, int32_t state, int32_t value) {
    plan *p = w->p;
    use_range s = w->range[state], v = w->range[value];
    if (p->bufs.at[value].kind != PB_TEMP || v.first_write < 0 || v.first_write != v.last_write || v.windowed) return false;
    if (s.last_write >= 0 || s.last_read > v.first_write) return false;
    pkernel *writer = &p->kernels.at[v.first_write];
    int from = inplace_arg(writer, state), to = inplace_arg(writer, value);
    if (from >= 0 && !inplace_is_legal(writer->k, from, to)) return false;
    rebind(w, value, state);
    p->bufs.at[value].bytes = 0; /* nothing lives there any more */
    p->bufs.at[value].elems = 0;
    return true;
}

static bool uses(const pkernel *pk, int32_t buf, bool writing) {
    int b = inplace_arg(pk, buf);
    return b >= 0 && pk->k->bufs.at[b].kind != (writing ? KB_IN : KB_OUT);
}

enum { NEAR = 64 }; /* kernels of one launch are as near, at most */

/* Kernel i reads what kernel j wrote, or something that was made of it. seen: [i - j + 1] kernels from j on, not looked at
 * again. */
static bool needs(const places *w, int i, int j, bool *seen) {
    const pkernel *pk = &w->p->kernels.at[i];
    seen[i - j] = true;
    for (int b = 0; b < pk->k->bufs.n; b++) {
        if (pk->args[b].buf < 0 || pk->k->bufs.at[b].kind == KB_OUT) continue;
        const int_list *of = &w->range[pk->args[b].buf].kernels;
        for (int n = 0; n < of->n; n++) {
            int by = of->at[n];
            if (by < j || by >= i || seen[by - j] || !uses(&w->p->kernels.at[by], pk->args[b].buf, true)) continue;
            if (by == j || needs(w, by, j, seen)) return true;
        }
    }
    return false;
}

/* Kernel i would have to wait for one that also reads the buffer, and that it does not need: small ones become one launch. */
static bool has_to_wait(const places *w, int i, int32_t buf) {
    const int_list *of = &w->range[buf].kernels;
    for (int n = 0; n < of->n; n++) {
        int j = of->at[n];
        bool seen[NEAR + 1] = { false };
        if (j >= i || i - j > NEAR || !uses(&w->p->kernels.at[j], buf, false)) continue;
        if (!needs(w, i, j, seen)) return true;
    }
    return false;
}

/* Result o of kernel i takes the place of an operand that is used up. */
static void write_over(places *w, int i, int o) {
    plan *p = w->p;
    pkernel *pk = &p->kernels.at[i];
    int32_t ob = pk->args[o].buf;
    if (w->range[ob].first_write != i || w->range[ob].last_write != i || w->range[ob].windowed) return;
    for (int b = 0; b < pk->k->bufs.n; b++) {
        int32_t ib = pk->args[b].buf;
        if (ib < 0 || ib == ob || pk->k->bufs.at[b].kind != KB_IN || p->bufs.at[ib].kind != PB_TEMP) continue;
        if (p->bufs.at[ib].bytes != p->bufs.at[ob].bytes || w->range[ib].last_read != i || w->range[ib].last_write >= i ||
            !inplace_is_legal(pk->k, b, o) || (p->bufs.at[ib].elems <= w->small && has_to_wait(w, i, ib)))
            continue;
        p->bufs.at[ob].inplace_of = ib;
        rebind(w, ob, ib);
        return;
    }
}

void mem_inplace(plan *p, int64_t small) {
    places w = list_uses(p);
    w.small = small;
    for (int i = 0; i < p->g->outputs.n; i++) {
        const output *o = &p->g->outputs.at[i];
        if (!o->state) continue;
        int32_t state = w.of_state[o->state], value = w.of_value[o->v];
        if (!update_directly(&w, state, value)) add_copy(&w, value, state);
    }
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        for (int o = 0; o < pk->k->bufs.n; o++) {
            int32_t ob = pk->args[o].buf;
            if (ob >= 0 && pk->k->bufs.at[o].kind == KB_OUT && p->bufs.at[ob].kind == PB_TEMP && p->bufs.at[ob].bytes > 0)
                write_over(&w, i, o);
        }
    }
}
