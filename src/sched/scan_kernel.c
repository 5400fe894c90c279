/* scan_kernel.c - a scan whose body is one elementwise kernel becomes a kernel of its own: its rows outside, and inside of each
 * a loop over the iterations, which hands the state on in registers.
 *
 * In: the steps of the scan so far: copies of what is carried, a repeat with one launch in it. Out: one launch in their place,
 * or everything as it was.
 * Each element of the state is computed from itself, from slices at any place and from what all iterations see; so the elements
 * are independent of each other, and the loops may change places. Same operations on the same values: the same bits. */
#include "loop/build.h"
#include "sched/sched.h"

/* Elements of the state. Rows of slices that are longer do better one after the other. */
enum { MOST_ROW = 4096 };

typedef struct fused {
    sched *s;
    const scan_steps *x;
    const pstep *repeat;
    const pkernel *old;
    int n_loops;    /* of the old kernel: its first instructions, and as many ends behind the body */
    bool no_copies; /* the launches before it are not needed */
    kernel *k;
    VEC(parg) args;
    kvar t;
    reg *map;          /* [ins of the old kernel] */
    reg *acc, *last;   /* [carried] the state; what the body gives, in the old kernel; 0: it stays */
    const kins **from; /* [carried] where that is stored */
} fused;

static int32_t plan_buf_of(const fused *f, const kins *in) { return f->old->args[in->buf].buf; }
static const pring *ring_of(const fused *f, int32_t buf) {
    for (int i = 0; i < f->repeat->n_rings; i++)
        if (f->repeat->rings[i].buf == buf) return &f->repeat->rings[i];
    return NULL;
}
static int state_of(const fused *f, int32_t buf) {
    for (int i = 0; i < f->x->n_carry; i++)
        if (f->x->state[i] == buf) return i;
    return -1;
}
static bool is_next(const fused *f, int32_t buf) {
    for (int i = 0; i < f->x->n_carry; i++)
        if (f->x->next[i] == buf) return true;
    return false;
}

/* Loops directly in one another around instructions without any, and the elements of a row. */
static bool find_loops(fused *f) {
    const kernel *k = f->old->k;
    ext elems = 1;
    int64_t most = 1;
    while (1 + f->n_loops < k->ins.n && k->ins.at[1 + f->n_loops].op == K_LOOP) {
        const kvar_info *v = &k->vars.at[k->ins.at[1 + f->n_loops++].var];
        if (!v->row || !size_mul(most, graph_dim_most(f->s->g, v->extent), &most)) return false;
        elems = ext_mul(f->s->g->params, elems, v->extent);
    }
    for (int i = 1 + f->n_loops; i < k->ins.n - f->n_loops; i++) {
        uint8_t op = k->ins.at[i].op;
        if (!kernel_is_pure(&k->ins.at[i]) && op != K_LOAD && op != K_STORE && op != K_RANDOM) return false;
    }
    if (most > MOST_ROW) return false;
    for (int i = 0; i < f->x->n_carry; i++) { /* the state is what the rows go over, all of it */
        const pbuf *b = &f->s->p->bufs.at[f->x->state[i]];
        if (plan_elems(f->s->p, f->x->state[i]) != elems || b->dtype == TN_BOOL) return false;
    }
    return true;
}

/* Whether each store goes to the next state or to a slice, and where the next state is made. */
static bool find_stores(fused *f) {
    const kernel *k = f->old->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_STORE) continue;
        int32_t buf = plan_buf_of(f, in);
        if (in->n_mask || (!ring_of(f, buf) && !is_next(f, buf)) || state_of(f, buf) >= 0) return false;
        for (int c = 0; c < f->x->n_carry; c++)
            if (f->x->next[c] == buf) f->last[c] = in->a, f->from[c] = in;
    }
    for (int c = 0; c < f->x->n_carry; c++)
        if (!f->from[c] && f->x->next[c] != f->x->state[c]) return false;
    return true;
}

/* Whether the kernel may read what is carried where it comes from: all of it goes on to a register. */
static bool needs_no_copies(const fused *f) {
    for (int c = 0; c < f->x->n_carry; c++)
        if (!f->from[c] || state_of(f, f->x->first[c]) >= 0) return false;
    return true;
}

/* Whether the state is read at its own place, and no slice where one is written. */
static bool find_loads(const fused *f) {
    const kernel *k = f->old->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD) continue;
        int32_t buf = plan_buf_of(f, in);
        int c = state_of(f, buf);
        if (c >= 0) {
            const affine *at = f->from[c] ? &f->from[c]->idx : NULL;
            for (int j = 1; j < k->ins.n && !at; j++) /* it stays: then all read it at one place */
                if (k->ins.at[j].op == K_LOAD && plan_buf_of(f, &k->ins.at[j]) == buf) at = &k->ins.at[j].idx;
            if (in->n_mask || in->dyn || !affine_equal(in->idx, *at)) return false;
        }
        for (int j = 1; j < k->ins.n; j++)
            if (k->ins.at[j].op == K_STORE && plan_base(f->s->p, plan_buf_of(f, &k->ins.at[j])) == plan_base(f->s->p, buf))
                return false;
    }
    for (int c = 0; c < f->x->n_carry; c++) { /* what becomes the state is not another part of the old one */
        const kins *made = &k->ins.at[f->last[c]];
        if (f->last[c] && made->op == K_LOAD && state_of(f, plan_buf_of(f, made)) >= 0) return false;
    }
    return true;
}

/* ---- the new kernel ---- */

static uint16_t arg(fused *f, int32_t buf, bool write) {
    for (int i = 0; i < f->args.n; i++) {
        kbuf *b = &f->k->bufs.at[i];
        if (f->args.at[i].buf != buf) continue;
        if (b->kind != (write ? KB_OUT : KB_IN)) b->kind = KB_INOUT;
        return (uint16_t)i;
    }
    const pbuf *p = &f->s->p->bufs.at[buf];
    VEC_PUSH(f->s->a, &f->args, (parg){ buf });
    return (uint16_t)kernel_buf(
        f->k, (kbuf){ .dtype = p->dtype,
                      .kind = write ? KB_OUT : KB_IN,
                      .fixed = p->kind == PB_CONST || (p->kind == PB_STATE && !graph_is_assigned(f->s->g, p->node)),
                      .node = p->node,
                      .elems = plan_elems(f->s->p, buf),
                      .plan_buf = buf });
}

/* Of a slice: its place in the stack. */
static void place(fused *f, kins *in) {
    int32_t buf = plan_buf_of(f, in);
    const pring *ring = ring_of(f, buf);
    if (ring) {
        ext elems = plan_elems(f->s->p, buf), back = ext_mul(f->s->g->params, elems, -1);
        in->idx = view_plus(f->k, in->idx, affine_var(f->s->a, f->t), f->repeat->backward ? back : elems);
        if (f->repeat->backward) {
            in->idx = view_plus(f->k, in->idx, affine_const(ext_mul(f->s->g->params, elems, f->repeat->times)), 1);
            in->idx = view_plus(f->k, in->idx, affine_const(back), 1);
        }
        buf = f->s->p->bufs.at[buf].window_of;
    }
    in->buf = arg(f, buf, in->op == K_STORE);
}

/* At this place of each state; in the middle of the loops. */
static void open_state(fused *f) {
    for (int c = 0; c < f->x->n_carry; c++) {
        if (!f->from[c]) continue;
        const pbuf *b = &f->s->p->bufs.at[f->x->state[c]];
        uint8_t rt = (uint8_t)dtype_reg((tn_dtype)b->dtype);
        reg first = kernel_push(f->k, (kins){ .op = K_LOAD,
                                              .dtype = rt,
                                              .src = b->dtype,
                                              .buf = arg(f, f->no_copies ? f->x->first[c] : f->x->state[c], false),
                                              .idx = f->from[c]->idx,
                                              .node = b->node });
        f->acc[c] = kernel_push(f->k, (kins){ .op = K_ACC, .alu = OP_NIL, .dtype = rt, .node = b->node });
        kernel_push(f->k, (kins){ .op = K_UPD, .alu = OP_NIL, .dtype = rt, .a = first, .c = f->acc[c], .node = b->node });
    }
}

static void write_body(fused *f) {
    const kernel *k = f->old->k;
    for (int i = 1 + f->n_loops; i < k->ins.n - f->n_loops; i++) {
        kins in = k->ins.at[i];
        if (in.op == K_STORE && !ring_of(f, plan_buf_of(f, &in))) continue; /* the state's next value stays in its register */
        build_operands(&in, f->map);
        if (in.op == K_LOAD) {
            int c = state_of(f, plan_buf_of(f, &in));
            if (c >= 0 && f->acc[c]) {
                f->map[i] = f->acc[c];
                continue;
            }
        }
        if (in.op == K_LOAD || in.op == K_STORE) place(f, &in);
        f->map[i] = kernel_push(f->k, in);
    }
}

static void close_state(fused *f) {
    for (int c = 0; c < f->x->n_carry; c++) {
        if (!f->from[c]) continue;
        const pbuf *b = &f->s->p->bufs.at[f->x->state[c]];
        const kins *acc = &f->k->ins.at[f->acc[c]];
        kins set = { .op = K_UPD, .alu = OP_NIL, .dtype = acc->dtype, .a = f->map[f->last[c]], .c = f->acc[c] };
        if (dtype_is_narrow_float(b->dtype)) /* as memory would have it */
            set.a = kernel_push(f->k, (kins){ .op = K_WRAP, .dtype = TN_F32, .src = b->dtype, .a = set.a });
        kernel_push(f->k, set);
    }
    build_ends(f->k, 1);
    for (int c = 0; c < f->x->n_carry; c++)
        if (f->from[c])
            kernel_push(f->k, (kins){ .op = K_STORE,
                                      .dtype = f->s->p->bufs.at[f->x->state[c]].dtype,
                                      .buf = arg(f, f->x->state[c], true),
                                      .idx = f->from[c]->idx,
                                      .a = f->acc[c],
                                      .node = f->from[c]->node });
}

static void write_kernel(fused *f) {
    const kernel *old = f->old->k;
    f->k = kernel_make(f->s->a, arena_printf(f->s->a, "scan_%s", old->name));
    f->k->params = f->s->g->params;
    for (kvar v = 0; v < old->vars.n; v++) kernel_var_like(f->k, &old->vars.at[v]);
    f->t = kernel_var(f->k, "t", f->repeat->times, false, true);
    f->map = ARENA_ARRAY(f->s->a, reg, old->ins.n);
    for (int i = 0; i < f->n_loops; i++) kernel_push(f->k, old->ins.at[1 + i]);
    open_state(f);
    build_open(f->k, f->t, 0, f->repeat->times, PAR_SERIAL);
    write_body(f);
    close_state(f);
    build_ends(f->k, f->n_loops);
    if (!kernel_has_params(f->k)) f->k->params = NULL;
}

bool sched_scan_kernel(sched *s, const scan_steps *x) {
    plan *p = s->p;
    fused f = { .s = s, .x = x, .repeat = &p->steps.at[x->step] };
    if (p->steps.n != x->step + 2 || p->steps.at[x->step + 1].kind != PSTEP_LAUNCH || f.repeat->count >= 0) return false;
    f.old = &p->kernels.at[p->steps.at[x->step + 1].kernel];
    f.acc = ARENA_ARRAY(s->a, reg, x->n_carry + 1), f.last = ARENA_ARRAY(s->a, reg, x->n_carry + 1);
    f.from = ARENA_ARRAY(s->a, const kins *, x->n_carry + 1);
    if (s->opts.fusion < 2 || s->opts.rows_only || !find_loops(&f) || !find_stores(&f) || !find_loads(&f)) return false;
    f.no_copies = needs_no_copies(&f);
    write_kernel(&f);
    pkernel pk = *f.old;
    pk.k = f.k, pk.args = f.args.at;
    sched_count(&pk);
    sched_decide(s, pk.root, 0, true, "all iterations of a scan are one kernel, which keeps the state in registers");
    int step = f.no_copies ? x->before : x->step;
    p->kernels.n -= 1 + x->step - step;
    pk.code = p->kernels.n;
    VEC_PUSH(s->a, &p->kernels, pk);
    p->steps.at[step] = (pstep){ .kind = PSTEP_LAUNCH, .kernel = p->kernels.n - 1 };
    p->steps.n = step + 1;
    return true;
}
