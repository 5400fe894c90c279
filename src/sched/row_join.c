/* row_join.c - implementation of row_join.h: what kernels do with their buffers row by row, why one cannot follow, and the
 * kernel that they become. */
#include "loop/build.h"
#include "sched/row_join.h"

#include "sched/sched.h"

enum { MAX_ALL = 640 /* plan buffers that a chain touches */, MAX_INS = 8000 };

/* ---- what a kernel does to its buffers ---- */

int row_shared_loops(const kernel *k) {
    int n = 0;
    while (n < ROW_MOST_SHARED && k->ins.at[1 + n].op == K_LOOP && k->vars.at[k->ins.at[1 + n].var].row &&
           kernel_loop_end(k, 1 + n) == k->ins.n - 1 - n)
        n++;
    return n;
}

ext row_extent(const kernel *k, int i) { return k->vars.at[k->ins.at[1 + i].var].extent; }

int64_t row_count(const kernel *k, int shared) {
    int64_t n = 1;
    for (int i = 0; i < shared; i++) n *= ext_hi(k->params, row_extent(k, i));
    return n;
}

bool row_same(const kernel *x, const kernel *y, int shared) {
    if (row_shared_loops(y) < shared) return false;
    for (int i = 0; i < shared; i++)
        if (row_extent(x, i) != row_extent(y, i)) return false;
    return true;
}

static bool is_shared(const kernel *k, int shared, kvar v) {
    for (int i = 0; i < shared; i++)
        if (k->ins.at[1 + i].var == v) return true;
    return false;
}

/* Whether what is no shared loop of the index stays below the stride, where either may be a run's. */
static bool is_below(const kernel *k, int shared, const kins *in, ext stride) {
    ext end = in->idx.base + 1;
    if (!k->params || in->dyn || !ext_is_lit(in->idx.base) || in->idx.base < 0) return false;
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        if (is_shared(k, shared, t.var)) continue;
        if (ext_lo(k->params, t.coef) < 0) return false;
        end = ext_add(k->params, end, ext_mul(k->params, ext_sub(k->params, k->vars.at[t.var].extent, 1), t.coef));
    }
    return ext_lo(k->params, stride) >= 0 && ext_never_less(k->params, stride, end);
}

/* Whether the access stays in the elements of its row, and how many those are: as many in all runs, unless of_run. */
static bool is_apart(const kernel *k, int shared, const kins *in, ext elems, bool of_run, ext *out_stride) {
    ext stride = shared ? affine_coef(in->idx, k->ins.at[shared].var) : elems, want = stride;
    *out_stride = stride;
    if (in->dyn && (!ext_is_lit(in->dyn_n) || !ext_is_lit(in->dyn_stride))) return false;
    int64_t lo = in->idx.base, hi = lo, reach = in->dyn ? (in->dyn_n - 1) * in->dyn_stride : 0;
    if ((!ext_is_lit(stride) && !of_run) || !ext_is_lit(lo)) return false;
    for (int i = shared - 1; i >= 0; i--) {
        if (affine_coef(in->idx, k->ins.at[1 + i].var) != want) return false;
        want = ext_mul(k->params, want, row_extent(k, i));
    }
    if (!ext_is_lit(stride)) return is_below(k, shared, in, stride);
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        if (is_shared(k, shared, t.var)) continue;
        if (!ext_is_lit(t.coef)) return false;
        int64_t last = (ext_hi(k->params, k->vars.at[t.var].extent) - 1) * t.coef;
        lo += last < 0 ? last : 0, hi += last > 0 ? last : 0;
    }
    lo += reach < 0 ? reach : 0, hi += reach > 0 ? reach : 0;
    return stride > 0 && lo >= 0 && hi < stride;
}

static void note(const plan *p, row_link *l, const pkernel *pk, int shared, bool of_run, const kins *in) {
    int32_t buf = pk->args[in->buf].buf;
    const kbuf *b = &pk->k->bufs.at[in->buf];
    ext stride;
    bool apart = is_apart(pk->k, shared, in, b->elems, of_run, &stride);
    row_access *x = l->at;
    while (x < l->at + l->n && x->buf != buf) x++;
    if (x == l->at + l->n) {
        l->n++;
        *x = (row_access){ .buf = buf, .apart = true, .stride = stride, .elems = b->elems, .dtype = b->dtype };
        x->state = b->fixed && p->bufs.at[buf].kind == PB_STATE;
    }
    x->apart &= apart && stride == x->stride;
    x->reads |= in->op != K_STORE;
    x->writes |= in->op != K_LOAD;
}

/* Iterations of the loops over rows that are not shared; -1: a run says how many. */
static int64_t inner_rows(const kernel *k, int shared) {
    int64_t n = 1;
    for (int i = shared; i < row_shared_loops(k); i++) {
        if (!ext_is_lit(row_extent(k, i))) return -1;
        n *= row_extent(k, i);
    }
    return n;
}

row_link row_link_make(const plan *p, const pkernel *pk, int shared, bool of_run) {
    row_link l = { .at = ARENA_ARRAY(p->a, row_access, pk->k->bufs.n + 1) };
    const kernel *k = pk->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
        if (pk->args[in->buf].buf >= 0) note(p, &l, pk, shared, of_run, in);
    }
    int64_t inner = inner_rows(k, shared);
    for (int b = 0; b < k->bufs.n; b++) {
        if (k->bufs.at[b].kind != KB_LOCAL || !k->bufs.at[b].elems) continue;
        if (inner < 0 || (!ext_is_lit(k->bufs.at[b].elems) && (!of_run || inner != 1)))
            return l.local = INT64_MAX / 2, l; /* no room has a literal size */
        l.local += ext_hi(k->params, k->bufs.at[b].elems) * inner * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
    }
    return l;
}

row_uses row_find_uses(const plan *p) {
    row_uses u = { ARENA_ARRAY(p->a, int, p->bufs.n + 1), ARENA_ARRAY(p->a, int, p->bufs.n + 1),
                   ARENA_ARRAY(p->a, int, p->bufs.n + 1) };
    for (int b = 0; b < p->bufs.n; b++) u.arg_of[b] = -1;
    for (int b = 0; b < p->bufs.n; b++) u.first[b] = u.last[b] = -1;
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) {
            int32_t b = p->kernels.at[i].args[a].buf;
            if (b < 0) continue;
            if (u.first[b] < 0) u.first[b] = i;
            u.last[b] = i;
        }
    return u;
}

/* ---- which kernels ---- */

row_chain row_chain_make(plan *p, int first, int shared) { return (row_chain){ .p = p, .first = first, .shared = shared }; }

static int find_all(const row_chain *c, int32_t buf) {
    for (int i = 0; i < c->all.n; i++)
        if (c->all.at[i].buf == buf) return i;
    return -1;
}

const char *row_objection(const row_chain *c, const row_link *l, const kernel *k, int64_t room, int most_args) {
    const plan *p = c->p;
    if (c->n == ROW_MOST_LINKS || c->ins + k->ins.n > MAX_INS) return "the chain is long enough";
    if (c->local + l->local > room) return "too little shared memory";
    int args = c->args + 1;
    if (c->all.n + l->n > MAX_ALL) return "the chain is long enough";
    for (int i = 0; i < l->n; i++) {
        const row_access *x = &l->at[i];
        int a = find_all(c, x->buf);
        args += a < 0 && !x->state;
        if (a < 0) continue;
        const row_access *y = &c->all.at[a];
        if (!x->writes && !y->writes) continue;
        if (p->bufs.at[x->buf].kind == PB_STATE) return "a state that is updated there is also read";
        if (!x->apart || !y->apart || x->stride != y->stride) return "its rows need other rows of what was made before";
        if (x->dtype != y->dtype || x->elems != y->elems) return "it sees a buffer as something else";
    }
    return args > (most_args < ROW_MOST_ARGS ? most_args : ROW_MOST_ARGS) ? "too many buffers" : NULL;
}

void row_append(row_chain *c, const row_link *l, const kernel *k) {
    for (int i = 0; i < l->n; i++) {
        int a = find_all(c, l->at[i].buf);
        if (a < 0) {
            VEC_PUSH(c->p->a, &c->all, l->at[i]);
            c->args += !l->at[i].state;
            continue;
        }
        row_access *y = &c->all.at[a];
        y->apart &= l->at[i].apart && l->at[i].stride == y->stride;
        y->reads |= l->at[i].reads, y->writes |= l->at[i].writes;
    }
    VEC_PUSH(c->p->a, &c->links, l);
    c->n++;
    c->ins += k->ins.n;
    c->local += l->local;
}

int64_t row_read_again(const row_chain *c, const row_link *l, int64_t rows) {
    int64_t bytes = 0;
    for (int i = 0; i < l->n; i++) {
        const row_access *x = &l->at[i];
        int a = x->reads && x->apart ? find_all(c, x->buf) : -1;
        if (a >= 0 && c->all.at[a].apart && c->all.at[a].stride == x->stride)
            bytes += x->stride * rows * (int64_t)dtype_size((tn_dtype)x->dtype);
    }
    return bytes;
}

bool row_is_private(const row_chain *c, const row_uses *uses, const row_access *x) {
    return c->p->bufs.at[x->buf].kind == PB_TEMP && x->apart && x->writes && uses->first[x->buf] >= c->first &&
           uses->last[x->buf] < c->first + c->n;
}

void row_decide(plan *p, val from, val to, bool fused, const char *reason) {
    VEC_PUSH(p->a, &p->decisions, (why){ from, to, fused, reason });
}

/* ---- writing ---- */

typedef struct joiner {
    const row_chain *c;
    const row_uses *uses;
    const row_form *form;
    kernel *o;
    VEC(parg) args;
    int *arg_of;   /* [plan bufs] buffer of o, or -1 */
    int *last;     /* [bufs of o] local buffers that may be used again: the last link that uses them, else INT32_MAX; */
    uint8_t *kind; /* [bufs of o] and the kind of the links that may do so */
    int64_t bytes; /* of local buffers */
    kvar rows[ROW_MOST_SHARED];
    affine row; /* what the innermost shared loop of a link stands for */
    struct {
        affine idx;
        reg value; /* 0: none */
    } * stored;    /* [bufs of o] what lies there is in this register, too: f32, stored once a row */
    struct {
        int buf;           /* of o, or -1; */
        int64_t offset;    /* where it begins, in bytes */
    } states[TN_N_DTYPES]; /* those that no run changes, as one buffer */
} joiner;

static affine moved(const joiner *w, affine x, const affine *to) {
    affine y = affine_const(x.base);
    for (int i = 0; i < x.n; i++) y = view_plus(w->o, y, to[x.t[i].var], x.t[i].coef);
    return y;
}

/* The place in what a row, or a block of them, has of a buffer. Where no rows are shared, the block is one row of everything.
 */
static affine in_block(const joiner *w, affine x, int buf) {
    arena *a = w->o->a;
    for (int i = 0; i < w->c->shared; i++) x = affine_set_var(a, x, w->rows[i], affine_const(0));
    if (w->c->shared == 0 && w->form->block) x = affine_add(a, x, affine_scale(a, w->row, w->o->bufs.at[buf].elems));
    return x;
}

static uint8_t kind_of(const joiner *w, int link) { return w->form->kind ? w->form->kind[link] : 0; }

/* A local buffer as b, whose time is over at link `first`, or -1. */
static int old_buffer(const joiner *w, const kbuf *b, int first) {
    for (int i = 0; i < w->o->bufs.n; i++) {
        const kbuf *o = &w->o->bufs.at[i];
        if (o->kind == KB_LOCAL && w->last[i] < first && o->dtype == b->dtype && o->elems == b->elems &&
            w->kind[i] == kind_of(w, first))
            return i;
    }
    return -1;
}

static int64_t bytes_of(const joiner *w, const kbuf *b) {
    return ext_hi(w->o->params, b->elems) * (int64_t)dtype_size((tn_dtype)b->dtype);
}

/* A local buffer for links [first, last]. */
static int local_buffer(joiner *w, kbuf b, int first, int last) {
    int old = old_buffer(w, &b, first);
    if (old >= 0) return w->last[old] = last, old;
    b.kind = KB_LOCAL, b.plan_buf = -1;
    VEC_PUSH(w->o->a, &w->args, (parg){ -1 });
    w->last[w->o->bufs.n] = last, w->kind[w->o->bufs.n] = kind_of(w, first);
    w->bytes += bytes_of(w, &b);
    return kernel_buf(w->o, b);
}

static int last_link(const joiner *w, int32_t buf) {
    int last = 0;
    for (int i = 0; i < w->c->n; i++)
        for (int j = 0; j < w->c->links.at[i]->n; j++)
            if (w->c->links.at[i]->at[j].buf == buf) last = i;
    return last;
}

static int chain_arg(joiner *w, kbuf own, int32_t buf) {
    VEC_PUSH(w->o->a, &w->args, (parg){ buf });
    w->last[w->o->bufs.n] = INT32_MAX;
    return kernel_buf(w->o, own);
}

/* The states of one dtype that no run changes become one buffer: few arguments, and what repeated layers have lies at a
 * constant distance. */
static void join_states(joiner *w, tn_dtype t) {
    plan *p = w->c->p;
    int64_t lo = INT64_MAX, hi = 0, size = (int64_t)dtype_size(t);
    int n = 0;
    w->states[t].buf = -1;
    for (int i = 0; i < w->c->all.n && w->form->states; i++) {
        const row_access *x = &w->c->all.at[i];
        const pbuf *b = &p->bufs.at[x->buf];
        if (!x->state || x->dtype != t || b->bytes == 0) continue;
        if (b->offset < lo) lo = b->offset;
        if (b->offset + b->bytes > hi) hi = b->offset + b->bytes;
        n++;
    }
    if (n < 2) return;
    pbuf all = { .kind = PB_STATES, .dtype = (uint8_t)t, .slot = SLOT_SHARED, .offset = lo, .inplace_of = -1, .io = -1 };
    all.elems = (hi - lo) / size, all.bytes = hi - lo;
    VEC_PUSH(p->a, &p->bufs, all);
    w->states[t].offset = lo;
    w->states[t].buf =
        chain_arg(w, (kbuf){ .dtype = (uint8_t)t, .kind = KB_IN, .fixed = true, .elems = all.elems, .plan_buf = p->bufs.n - 1 },
                  p->bufs.n - 1);
}

/* The buffer of the chain that a link's buffer becomes. */
static int joined_buffer(joiner *w, int link_no, const pkernel *pk, int b, int64_t inner) {
    const kbuf *kb = &pk->k->bufs.at[b];
    kbuf own = *kb;
    int32_t buf = pk->args[b].buf;
    if (buf < 0) {
        own.elems = inner == 1 ? own.elems : own.elems * inner;
        return local_buffer(w, own, link_no, link_no);
    }
    int a = find_all(w->c, buf);
    if (a < 0) { /* bound, but not touched */
        own.kind = KB_LOCAL, own.elems = 0;
        return local_buffer(w, own, link_no, link_no);
    }
    const row_access *x = &w->c->all.at[a];
    if (w->arg_of[buf] >= 0) return w->arg_of[buf];
    if (x->state && w->states[x->dtype].buf >= 0) return w->arg_of[buf] = w->states[x->dtype].buf;
    if (row_is_private(w->c, w->uses, x)) {
        own.elems = w->form->block ? x->stride * w->form->block : x->stride;
        if (old_buffer(w, &own, link_no) >= 0 || w->bytes + bytes_of(w, &own) <= w->form->room)
            return w->arg_of[buf] = local_buffer(w, own, link_no, last_link(w, buf));
        own.elems = kb->elems;
    }
    own.kind = x->writes ? x->reads ? KB_INOUT : KB_OUT : KB_IN;
    return w->arg_of[buf] = chain_arg(w, own, buf);
}

/* What the variables of a link stand for. */
static void join_vars(joiner *w, const kernel *k, affine *to) {
    for (kvar v = 0; v < k->vars.n; v++) {
        int shared = -1;
        for (int i = 0; i < w->c->shared; i++)
            if (k->ins.at[1 + i].var == v) shared = i;
        if (shared >= 0) {
            to[v] = shared == w->c->shared - 1 ? w->row : affine_var(w->o->a, w->rows[shared]);
            continue;
        }
        kvar_info like = k->vars.at[v];
        like.row = false, like.role = (krole){ 1, 1 };
        to[v] = affine_var(w->o->a, kernel_var_like(w->o, &like));
    }
}

/* The place in a local buffer of a link: one for each inner row, since they may be worked on at once. */
static affine local_place(const joiner *w, const kernel *k, const kins *in, const affine *to, int inner_rows) {
    affine x = in->idx;
    int64_t apart = k->bufs.at[in->buf].elems;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row) x = affine_set_var(w->o->a, x, v, affine_const(0));
    x = moved(w, x, to);
    for (int i = inner_rows - 1; i >= w->c->shared; i--) {
        x = affine_add(w->o->a, x, affine_scale(w->o->a, to[k->ins.at[1 + i].var], apart));
        apart *= row_extent(k, i);
    }
    return x;
}

/* Of a plan buffer in the buffer of o that it has become part of, in elements. */
static int64_t place_in_states(const joiner *w, int32_t from, int buf) {
    tn_dtype t = (tn_dtype)w->o->bufs.at[buf].dtype;
    if (from < 0 || w->states[t].buf != buf) return 0;
    return (w->c->p->bufs.at[from].offset - w->states[t].offset) / (int64_t)dtype_size(t);
}

static const pkernel *link_kernel(const joiner *w, int link_no) { return &w->c->p->kernels.at[w->c->first + link_no]; }

/* Where the instruction, as it will stand in o, loads what a register has. Notes what it stores. */
static reg forwarded(joiner *w, const kins *in, bool once_a_row) {
    bool store = in->op == K_STORE || in->op == K_SCATTER, plain = !in->dyn && !in->n_mask;
    if (!w->form->forward || (!store && in->op != K_LOAD)) return 0;
    if (store) {
        uint8_t t = w->o->bufs.at[in->buf].dtype;
        bool half = w->form->halves && (t == TN_BF16 || t == TN_F16), kept = once_a_row && in->op == K_STORE && plain;
        kins rounded = { .op = K_WRAP, .dtype = TN_F32, .src = t, .a = in->a, .node = in->node };
        reg value = !kept ? 0 : t == TN_F32 ? in->a : half ? kernel_push(w->o, rounded) : 0;
        w->stored[in->buf].idx = in->idx, w->stored[in->buf].value = value;
        return 0;
    }
    plain = plain && in->dtype == TN_F32;
    return plain && w->stored[in->buf].value && affine_equal(in->idx, w->stored[in->buf].idx) ? w->stored[in->buf].value : 0;
}

/* buf: [bufs of the link] in o. */
static void join_link(joiner *w, int link_no, const int *buf) {
    const pkernel *pk = link_kernel(w, link_no);
    const kernel *k = pk->k;
    affine *to = ARENA_ARRAY(w->o->a, affine, k->vars.n + 1);
    int shared = w->c->shared, loops = row_shared_loops(k);
    reg *at = ARENA_ARRAY(w->o->a, reg, k->ins.n);
    int depth = 0;
    join_vars(w, k, to);
    for (int i = 1 + shared; i < k->ins.n - shared; i++) {
        kins in = k->ins.at[i];
        depth += (in.op == K_LOOP) - (in.op == K_END);
        bool memory = kernel_touches(&in);
        build_operands(&in, at);
        if (in.op == K_LOOP) in.var = to[in.var].t[0].var;
        in.idx = memory && pk->args[in.buf].buf < 0 ? local_place(w, k, &k->ins.at[i], to, loops) : moved(w, in.idx, to);
        if (memory) {
            int32_t from = pk->args[in.buf].buf;
            bool plan_local = from >= 0 && w->o->bufs.at[buf[in.buf]].kind == KB_LOCAL;
            in.buf = (uint16_t)buf[in.buf];
            in.idx.base += place_in_states(w, from, in.buf);
            if (plan_local) in.idx = in_block(w, in.idx, in.buf);
        }
        if (in.n_mask) in.mask = arena_copy(w->o->a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = moved(w, in.mask[m].e, to);
        reg known = forwarded(w, &in, depth == 0);
        at[i] = known ? known : kernel_push(w->o, in);
    }
}

/* What is written, and loaded by no link any more. */
static void only_written(kernel *o) {
    for (int b = 0; b < o->bufs.n; b++) {
        bool read = o->bufs.at[b].kind != KB_INOUT;
        for (int i = 1; i < o->ins.n && !read; i++)
            read = (o->ins.at[i].op == K_LOAD || o->ins.at[i].op == K_SCATTER) && o->ins.at[i].buf == b;
        if (!read) o->bufs.at[b].kind = KB_OUT;
    }
}

static const int *link_buffers(joiner *w, int link_no) {
    const pkernel *pk = link_kernel(w, link_no);
    int *buf = ARENA_ARRAY(w->o->a, int, pk->k->bufs.n + 1);
    int64_t inner = inner_rows(pk->k, w->c->shared);
    for (int b = 0; b < pk->k->bufs.n; b++) buf[b] = joined_buffer(w, link_no, pk, b, inner);
    return buf;
}

static void open_loop(joiner *w, kvar v, ext lo, ext hi) { build_open(w->o, v, lo, hi, PAR_SERIAL); }

/* Blocks [from, to) of `rows` rows each: link by link, each in a loop over the rows of the block. */
static void join_blocks(joiner *w, const int *const *bufs, kvar block, int64_t from, int64_t to, int64_t rows) {
    affine first = affine_scale(w->o->a, affine_var(w->o->a, block), w->c->shared ? w->form->block : 0);
    if (from == to || rows == 0) return;
    open_loop(w, block, from, to);
    for (int i = 0; i < w->c->n; i++) {
        kvar row = kernel_var(w->o, "r", rows, false, false);
        w->row = affine_add(w->o->a, first, affine_var(w->o->a, row));
        open_loop(w, row, 0, rows);
        join_link(w, i, bufs[i]);
        build_ends(w->o, 1);
    }
    build_ends(w->o, 1);
}

static kvar open_rows(joiner *w) { /* returns the last, which stays closed where it goes in blocks; -1: none is shared */
    const kernel *k = link_kernel(w, 0)->k;
    for (int i = 0; i < w->c->shared; i++) {
        ext n = row_extent(k, i), block = i == w->c->shared - 1 ? w->form->block : 0;
        w->rows[i] = kernel_var(w->o, block ? "rb" : "r", block ? (n + block - 1) / block : n, true, false);
        if (!block) open_loop(w, w->rows[i], 0, n);
    }
    return w->c->shared ? w->rows[w->c->shared - 1] : -1;
}

static void write_links(joiner *w) {
    const row_chain *c = w->c;
    const int **bufs = ARENA_ARRAY(w->o->a, const int *, c->n);
    int64_t block = w->form->block, rows = c->shared ? row_extent(link_kernel(w, 0)->k, c->shared - 1) : 1;
    kvar last = open_rows(w);
    for (int i = 0; i < c->n; i++) bufs[i] = link_buffers(w, i);
    if (block) {
        if (last < 0) last = kernel_var(w->o, "rb", 1, true, false);
        w->o->vars.at[last].block = true;
        join_blocks(w, bufs, last, 0, rows / block, block);
        join_blocks(w, bufs, last, rows / block, rows / block + 1, rows % block);
    } else {
        if (last >= 0) w->row = affine_var(w->o->a, last);
        for (int i = 0; i < c->n; i++) join_link(w, i, bufs[i]);
    }
    build_ends(w->o, block && c->shared ? c->shared - 1 : c->shared);
}

/* Bytes of rows that link i reads and one before it has touched. */
static uint64_t read_again(const joiner *w, int i) {
    const row_chain *c = w->c;
    row_chain before = row_chain_make(c->p, c->first, c->shared);
    for (int j = 0; j < i; j++) row_append(&before, c->links.at[j], link_kernel(w, j)->k);
    return (uint64_t)row_read_again(&before, c->links.at[i], row_count(link_kernel(w, i)->k, c->shared));
}

/* Traffic at the border, without what is local now. */
static void count(joiner *w) {
    const row_chain *c = w->c;
    for (int i = 0; i < c->n; i++) {
        const kernel *k = link_kernel(w, i)->k;
        uint64_t less_read = w->form->forward ? read_again(w, i) : 0, less_written = 0;
        for (int j = 0; j < c->links.at[i]->n; j++) {
            const row_access *x = &c->links.at[i]->at[j];
            uint64_t bytes = (uint64_t)c->p->bufs.at[x->buf].bytes;
            if (w->o->bufs.at[w->arg_of[x->buf]].kind != KB_LOCAL) continue;
            less_read += x->reads ? bytes : 0, less_written += x->writes ? bytes : 0;
        }
        w->o->flops += k->flops;
        w->o->bytes_read += k->bytes_read > less_read ? k->bytes_read - less_read : 0;
        w->o->bytes_written += k->bytes_written > less_written ? k->bytes_written - less_written : 0;
    }
}

static pkernel finish(const joiner *w) {
    const row_chain *c = w->c;
    pkernel to = { .k = w->o, .args = w->args.at, .root = link_kernel(w, c->n - 1)->root };
    VEC(val) fused = { 0 };
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < link_kernel(w, i)->n_fused; j++) VEC_PUSH(c->p->a, &fused, link_kernel(w, i)->fused[j]);
    to.fused = fused.at, to.n_fused = fused.n;
    return to;
}

void row_commit(const row_chain *c, const row_uses *uses, const pkernel *pk, const char *reason) {
    plan *p = c->p;
    for (int i = c->first + 1; i < c->first + c->n; i++)
        row_decide(p, p->kernels.at[i - 1].root, p->kernels.at[i].root, true, reason);
    for (int a = 0; a < c->all.n; a++) {
        bool bound = false;
        for (int b = 0; b < pk->k->bufs.n && !bound; b++) bound = pk->args[b].buf == c->all.at[a].buf;
        if (bound || !row_is_private(c, uses, &c->all.at[a])) continue;
        p->bufs.at[c->all.at[a].buf].bytes = 0, p->bufs.at[c->all.at[a].buf].elems = 0;
    }
}

pkernel row_join(row_chain *c, const row_uses *uses, const row_form *form) {
    plan *p = c->p;
    const pkernel *last = &p->kernels.at[c->first + c->n - 1];
    joiner w = { .c = c, .uses = uses, .form = form };
    int n_bufs = TN_N_DTYPES;
    w.o = kernel_make(p->a, arena_printf(p->a, "%s_chain", last->k->name));
    w.o->params = p->params;
    w.arg_of = uses->arg_of;
    for (int i = 0; i < c->n; i++) n_bufs += p->kernels.at[c->first + i].k->bufs.n;
    w.last = ARENA_ARRAY(p->a, int, n_bufs), w.kind = ARENA_ARRAY(p->a, uint8_t, n_bufs);
    for (int t = 0; t < TN_N_DTYPES; t++) join_states(&w, (tn_dtype)t);
    w.stored = arena_alloc(p->a, sizeof *w.stored * (size_t)(n_bufs + 1));
    write_links(&w);
    if (form->forward) only_written(w.o);
    count(&w);
    for (int i = 0; i < c->n; i++) /* those of a plan are many: each join takes back its own */
        for (int b = 0; b < link_kernel(&w, i)->k->bufs.n; b++) {
            int32_t buf = link_kernel(&w, i)->args[b].buf;
            if (buf >= 0) w.arg_of[buf] = -1;
        }
    return finish(&w);
}
