/* gpu_chain.c - consecutive kernels of a plan become one kernel for a GPU, where each row of a later one needs that row alone
 * of what the earlier ones made: a group takes its rows through all of them, and what lies between stays in its fast memory.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels, still in
 * scalar form: the loops over rows are shared, buffers that nothing else reads are local. Without rows (everything in one
 * group) any kernels may follow each other. Which kernels is a matter of time, estimated from shapes and the target only. */
#include "kopt/gpu_chain.h"
#include "kopt/gpu_cluster.h"

#include <math.h>

enum {
    MAX_SHARED = 3 /* loops over rows */,
    MAX_LINKS = 160 /* kernels of a chain */,
    MAX_ALL = 640 /* plan buffers that a chain touches */,
    MAX_ARGS = 240 /* buffers of a chain; */,
    FEW_ARGS = 60 /* where the target does not say */,
    MAX_INS = 8000,
    N_ROWS = 4
};
#define GAIN 0.85 /* a chain has to be that much faster: the model is rough */

/* ---- what a kernel does to its buffers ---- */

typedef struct access { /* all that a kernel does with one plan buffer */
    int32_t buf;
    bool reads, writes, apart; /* apart: row r touches only its own `stride` elements, from r * stride on */
    bool state;                /* part of the buffer of all states, which no run changes */
    int64_t stride, elems;
    uint8_t dtype;
} access;

typedef struct link { /* a kernel, with so many loops over rows shared */
    access *at;
    int n;
    double alone, among;   /* time, in nanoseconds: as a launch of its own, or among others; */
    double inside[N_ROWS]; /* as part of a chain, a group having 1 << i rows; */
    double clustered;      /* of one by clusters of groups, besides its contraction: */
    contraction layer;     /* that; n = 0: it has none */
    int64_t local;         /* bytes of its own local buffers */
} link;

static int shared_loops(const kernel *k) { /* that could be */
    int n = 0;
    while (n < MAX_SHARED && k->ins.at[1 + n].op == K_LOOP && k->vars.at[k->ins.at[1 + n].var].row &&
           kopt_loop_end(k, 1 + n) == k->ins.n - 1 - n)
        n++;
    return n;
}

static int64_t extent(const kernel *k, int i) { return k->vars.at[k->ins.at[1 + i].var].extent; }

static int64_t rows_of(const kernel *k, int shared) {
    int64_t n = 1;
    for (int i = 0; i < shared; i++) n *= extent(k, i);
    return n;
}

static bool is_shared(const kernel *k, int shared, kvar v) {
    for (int i = 0; i < shared; i++)
        if (k->ins.at[1 + i].var == v) return true;
    return false;
}

/* Whether the access stays in the elements of its row, and how many those are. */
static bool is_apart(const kernel *k, int shared, const kins *in, int64_t elems, int64_t *out_stride) {
    int64_t stride = shared ? affine_coef(in->idx, k->ins.at[shared].var) : elems, want = stride;
    *out_stride = stride;
    int64_t lo = in->idx.base, hi = lo, reach = in->dyn ? (in->dyn_n - 1) * in->dyn_stride : 0;
    for (int i = shared - 1; i >= 0; i--) {
        if (affine_coef(in->idx, k->ins.at[1 + i].var) != want) return false;
        want *= extent(k, i);
    }
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        if (is_shared(k, shared, t.var)) continue;
        int64_t last = (k->vars.at[t.var].extent - 1) * t.coef;
        lo += last < 0 ? last : 0, hi += last > 0 ? last : 0;
    }
    lo += reach < 0 ? reach : 0, hi += reach > 0 ? reach : 0;
    return stride > 0 && lo >= 0 && hi < stride;
}

static const access *find(const link *l, int32_t buf) {
    for (int i = 0; i < l->n; i++)
        if (l->at[i].buf == buf) return &l->at[i];
    return NULL;
}

static void note(const plan *p, link *l, const pkernel *pk, int shared, const kins *in) {
    int32_t buf = pk->args[in->buf].buf;
    const kbuf *b = &pk->k->bufs.at[in->buf];
    int64_t stride;
    bool apart = is_apart(pk->k, shared, in, b->elems, &stride);
    access *x = l->at;
    while (x < l->at + l->n && x->buf != buf) x++;
    if (x == l->at + l->n) {
        l->n++;
        *x = (access){ .buf = buf, .apart = true, .stride = stride, .elems = b->elems, .dtype = b->dtype };
        x->state = b->fixed && p->bufs.at[buf].kind == PB_STATE;
    }
    x->apart &= apart && stride == x->stride;
    x->reads |= in->op != K_STORE;
    x->writes |= in->op != K_LOAD;
}

static const link *link_make(const plan *p, const pkernel *pk, int shared, const target *t) {
    link l = { .at = ARENA_ARRAY(p->a, access, pk->k->bufs.n + 1) };
    const kernel *k = pk->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
        if (pk->args[in->buf].buf >= 0) note(p, &l, pk, shared, in);
    }
    int64_t inner = 1;
    for (int i = shared; i < shared_loops(k); i++) inner *= extent(k, i);
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL)
            l.local += k->bufs.at[b].elems * inner * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
    l.alone = gpu_chain_alone(k, t), l.among = gpu_chain_among(k, t);
    for (int i = 0; i < N_ROWS; i++) l.inside[i] = gpu_chain_inside(k, shared, rows_of(k, shared), 1 << i, t);
    l.clustered = gpu_chain_clustered(k, shared, rows_of(k, shared), t, &l.layer);
    return arena_copy(p->a, &l, sizeof l);
}

/* ---- which kernels ---- */

typedef struct chain {
    plan *p;
    const target *t;
    int first, n, shared;
    const link **links;   /* [n] */
    access *all;          /* [n_all] everything they touch */
    int n_all, ins, args; /* args: of all, those that need a buffer of their own */
    int64_t local;        /* bytes of their own local buffers */
    bool clustered;       /* by clusters of groups it is fastest */
} chain;
typedef struct chooser {
    plan *p;
    const target *t;
    int64_t room;              /* fast memory of a group */
    const link **links;        /* [kernels x (MAX_SHARED + 1)], made when they are needed */
    int *first_use, *last_use; /* [plan bufs] kernels */
    double *shapes;            /* [GPU_CLUSTER_SHAPES] what the contractions of a chain take by clusters */
    VEC(pkernel) out;
} chooser;

static int find_all(const chain *c, int32_t buf) {
    for (int i = 0; i < c->n_all; i++)
        if (c->all[i].buf == buf) return i;
    return -1;
}

/* Why the kernel cannot follow; NULL: it can. */
static const char *objection(const chain *c, const link *l, const kernel *k, int64_t room) {
    const plan *p = c->p;
    if (c->n == MAX_LINKS || c->ins + k->ins.n > MAX_INS) return "the chain is long enough";
    if (c->local + l->local > room) return "too little fast memory";
    int args = c->args + 1;
    if (c->n_all + l->n > MAX_ALL) return "the chain is long enough";
    for (int i = 0; i < l->n; i++) {
        const access *x = &l->at[i];
        int a = find_all(c, x->buf);
        args += a < 0 && !x->state;
        if (a < 0) continue;
        const access *y = &c->all[a];
        if (!x->writes && !y->writes) continue;
        if (p->bufs.at[x->buf].kind == PB_STATE) return "a state that is updated there is also read";
        if (!x->apart || !y->apart || x->stride != y->stride) return "its rows need other rows of what was made before";
        if (x->dtype != y->dtype || x->elems != y->elems) return "it sees a buffer as something else";
    }
    int most = c->t->buffers ? c->t->buffers : FEW_ARGS;
    return args > (most < MAX_ARGS ? most : MAX_ARGS) ? "too many buffers" : NULL;
}

static bool same_rows(const kernel *x, const kernel *y, int shared) {
    if (shared_loops(y) < shared) return false;
    for (int i = 0; i < shared; i++)
        if (extent(x, i) != extent(y, i)) return false;
    return true;
}

static void append(chain *c, const link *l, const kernel *k) {
    for (int i = 0; i < l->n; i++) {
        int a = find_all(c, l->at[i].buf);
        if (a < 0) {
            c->all[c->n_all++] = l->at[i];
            c->args += !l->at[i].state;
            continue;
        }
        access *y = &c->all[a];
        y->apart &= l->at[i].apart && l->at[i].stride == y->stride;
        y->reads |= l->at[i].reads, y->writes |= l->at[i].writes;
    }
    c->links[c->n++] = l;
    c->ins += k->ins.n;
    c->local += l->local;
}

static void decide(plan *p, val from, val to, bool fused, const char *reason) {
    VEC_PUSH(p->a, &p->decisions, (why){ from, to, fused, reason });
}

static const link *link_of(chooser *w, int i, int shared) {
    const link **l = &w->links[i * (MAX_SHARED + 1) + shared];
    if (!*l) *l = link_make(w->p, &w->p->kernels.at[i], shared, w->t);
    return *l;
}

static chain chain_make(chooser *w, int first, int shared) {
    chain c = { .p = w->p, .t = w->t, .first = first, .shared = shared };
    c.links = ARENA_ARRAY(w->p->a, const link *, MAX_LINKS);
    c.all = ARENA_ARRAY(w->p->a, access, MAX_ALL);
    return c;
}

/* Only groups that run together see what they write and read again: it is local. */
static bool is_private(const chooser *w, const chain *c) {
    for (int i = 0; i < c->n_all; i++) {
        const access *x = &c->all[i];
        bool temp = w->p->bufs.at[x->buf].kind == PB_TEMP && x->apart;
        if (x->reads && x->writes && (!temp || w->first_use[x->buf] < c->first || w->last_use[x->buf] >= c->first + c->n))
            return false;
    }
    return true;
}

static void add_layer(const chooser *w, const contraction *c, int64_t rows) {
    gpu_cluster_add_layer(c, (double)rows, w->t, w->shapes);
}

static double least_shape(const chooser *w) {
    double least = INFINITY;
    for (int i = 0; i < GPU_CLUSTER_SHAPES; i++)
        if (w->shapes[i] > 0 && w->shapes[i] < least) least = w->shapes[i]; /* 0: the target has not so many */
    return least;
}

/* The longest chain from kernel `first` on that pays, with so many shared loops: its gain, in nanoseconds. */
static double grow(chooser *w, int first, int shared, chain *out, const char **out_end) {
    plan *p = w->p;
    const kernel *k0 = p->kernels.at[first].k;
    double alone = 0, among = 0, inside[N_ROWS] = { 0 }, clustered = 0, best = 0;
    int best_n = 0;
    int64_t columns = 0;
    bool best_clustered = false;
    int64_t last_extent = shared ? extent(k0, shared - 1) : 1;
    chain c = chain_make(w, first, shared);
    *out_end = NULL;
    memset(w->shapes, 0, sizeof *w->shapes * GPU_CLUSTER_SHAPES);
    for (int i = first; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        if (!same_rows(k0, k, shared)) break;
        const link *l = link_of(w, i, shared);
        if ((*out_end = objection(&c, l, k, w->room))) break;
        append(&c, l, k);
        alone += l->alone, among += l->among;
        clustered += columns && l->layer.n && l->layer.n != columns ? INFINITY : l->clustered;
        if (l->layer.n && isfinite(clustered)) columns = l->layer.n, add_layer(w, &l->layer, rows_of(k, shared));
        double summed = columns ? least_shape(w) : INFINITY; /* nothing else is done faster by clusters */
        double least = INFINITY;
        for (int r = 0; r < N_ROWS; r++) {
            inside[r] += l->inside[r];
            if (inside[r] < least && (r == 0 || (shared && last_extent % (1 << r) == 0))) least = inside[r];
        }
        bool chained =
            alone * GAIN > least + GPU_LAUNCH_NS; /* else steps that follow each other may overlap, launch by launch */
        bool by_clusters = clustered + summed < least && (chained || clustered + summed < among) && is_private(w, &c);
        if (by_clusters) least = clustered + summed;
        least += GPU_LAUNCH_NS;
        if (c.n > 1 && alone * GAIN - least > best) best = alone * GAIN - least, best_n = c.n, best_clustered = by_clusters;
        if (least - alone * GAIN > best + 8 * GPU_LAUNCH_NS) { /* it will not be made up for */
            *out_end = "a group takes longer for its rows of this than a launch of its own";
            break;
        }
    }
    *out = chain_make(w, first, shared);
    out->clustered = best_clustered;
    for (int i = 0; i < best_n; i++) append(out, c.links[i], p->kernels.at[first + i].k);
    if (best_n < c.n && !*out_end) *out_end = "a group takes longer for its rows of this than a launch of its own";
    return best;
}

/* ---- writing ---- */

typedef struct joiner {
    chain *c;
    kernel *o;
    VEC(parg) args;
    int *arg_of; /* [plan bufs] buffer of o, or -1 */
    const int *first_use, *last_use;
    int *last;     /* [bufs of o] local buffers that may be used again: the last link that uses them, else INT32_MAX; */
    bool *layer;   /* [bufs of o] made for a contraction, of a chain by clusters: for others of those alone */
    int64_t bytes; /* of local buffers */
    kvar rows[MAX_SHARED];
    struct {
        int buf;           /* of o, or -1; */
        int64_t offset;    /* where it begins, in bytes */
    } states[TN_N_DTYPES]; /* those that no run changes, as one buffer */
} joiner;

static affine moved(const joiner *w, affine x, const kvar *to) {
    affine y = affine_const(x.base);
    for (int i = 0; i < x.n; i++)
        y = affine_add(w->o->a, y, affine_scale(w->o->a, affine_var(w->o->a, to[x.t[i].var]), x.t[i].coef));
    return y;
}

static affine without_rows(const joiner *w, affine x) {
    for (int i = 0; i < w->c->shared; i++) x = affine_set_var(w->o->a, x, w->rows[i], affine_const(0));
    return x;
}

/* Only the chain sees it, and each row its own part. */
static bool can_be_local(const joiner *w, int a) {
    const chain *c = w->c;
    const access *x = &c->all[a];
    return c->p->bufs.at[x->buf].kind == PB_TEMP && x->apart && x->writes && w->first_use[x->buf] >= c->first &&
           w->last_use[x->buf] < c->first + c->n;
}

static bool is_layer(const joiner *w, int i) { return w->c->clustered && w->c->links[i]->layer.n; }

/* A local buffer for links [first, last], an old one where its time is over. */
static int local_buffer(joiner *w, kbuf b, int first, int last) {
    for (int i = 0; i < w->o->bufs.n; i++) {
        const kbuf *o = &w->o->bufs.at[i];
        if (o->kind != KB_LOCAL || w->last[i] >= first || o->dtype != b.dtype || o->elems != b.elems) continue;
        if (w->layer[i] != is_layer(w, first)) continue;
        w->last[i] = last;
        return i;
    }
    b.kind = KB_LOCAL, b.plan_buf = -1;
    VEC_PUSH(w->o->a, &w->args, (parg){ -1 });
    w->last[w->o->bufs.n] = last, w->layer[w->o->bufs.n] = is_layer(w, first);
    w->bytes += b.elems * (int64_t)dtype_size((tn_dtype)b.dtype);
    return kernel_buf(w->o, b);
}

static int last_link(const joiner *w, int32_t buf) {
    int last = 0;
    for (int i = 0; i < w->c->n; i++)
        if (find(w->c->links[i], buf)) last = i;
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
    for (int i = 0; i < w->c->n_all; i++) {
        const access *x = &w->c->all[i];
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
static int joined_buffer(joiner *w, int link_no, const pkernel *pk, int b, int64_t inner, int64_t room) {
    const kbuf *kb = &pk->k->bufs.at[b];
    kbuf own = *kb;
    int32_t buf = pk->args[b].buf;
    if (buf < 0) {
        own.elems *= inner;
        return local_buffer(w, own, link_no, link_no);
    }
    int a = find_all(w->c, buf);
    if (a < 0) { /* bound, but not touched */
        own.kind = KB_LOCAL, own.elems = 0;
        return local_buffer(w, own, link_no, link_no);
    }
    const access *x = &w->c->all[a];
    if (w->arg_of[buf] >= 0) return w->arg_of[buf];
    if (x->state && w->states[x->dtype].buf >= 0) return w->arg_of[buf] = w->states[x->dtype].buf;
    int64_t bytes = x->stride * (int64_t)dtype_size((tn_dtype)x->dtype);
    if (can_be_local(w, a) && w->bytes + bytes <= room) {
        own.elems = x->stride;
        return w->arg_of[buf] = local_buffer(w, own, link_no, last_link(w, buf));
    }
    own.kind = x->writes ? x->reads ? KB_INOUT : KB_OUT : KB_IN;
    return w->arg_of[buf] = chain_arg(w, own, buf);
}

static void join_vars(joiner *w, const kernel *k, kvar *to) {
    for (kvar v = 0; v < k->vars.n; v++) {
        char name[12];
        int n = 0;
        to[v] = -1;
        for (int i = 0; i < w->c->shared; i++)
            if (k->ins.at[1 + i].var == v) to[v] = w->rows[i];
        if (to[v] >= 0) continue;
        for (; n < 4 && (k->vars.at[v].name[n] < '0' || k->vars.at[v].name[n] > '9') && k->vars.at[v].name[n]; n++)
            name[n] = k->vars.at[v].name[n];
        name[n] = 0;
        to[v] = kernel_var(w->o, name, k->vars.at[v].extent, false, k->vars.at[v].reduce);
    }
}

/* The place in a local buffer of a link: one for each inner row, since they may be worked on at once. */
static affine local_place(const joiner *w, const kernel *k, const kins *in, const kvar *to, int inner_rows) {
    affine x = in->idx;
    int64_t apart = k->bufs.at[in->buf].elems;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row) x = affine_set_var(w->o->a, x, v, affine_const(0));
    x = moved(w, x, to);
    for (int i = inner_rows - 1; i >= w->c->shared; i--) {
        x = affine_add(w->o->a, x, affine_scale(w->o->a, affine_var(w->o->a, to[k->ins.at[1 + i].var]), apart));
        apart *= extent(k, i);
    }
    return x;
}

/* Of a plan buffer in the buffer of o that it has become part of, in elements. */
static int64_t place_in_states(const joiner *w, int32_t from, int buf) {
    tn_dtype t = (tn_dtype)w->o->bufs.at[buf].dtype;
    if (from < 0 || w->states[t].buf != buf) return 0;
    return (w->c->p->bufs.at[from].offset - w->states[t].offset) / (int64_t)dtype_size(t);
}

static void join_link(joiner *w, int link_no, int64_t room) {
    const pkernel *pk = &w->c->p->kernels.at[w->c->first + link_no];
    const kernel *k = pk->k;
    kvar *to = ARENA_ARRAY(w->o->a, kvar, k->vars.n + 1);
    int *buf = ARENA_ARRAY(w->o->a, int, k->bufs.n + 1), shared = w->c->shared, loops = shared_loops(k);
    reg *at = ARENA_ARRAY(w->o->a, reg, k->ins.n);
    int64_t inner = 1;
    for (int i = shared; i < loops; i++) inner *= extent(k, i);
    join_vars(w, k, to);
    for (int b = 0; b < k->bufs.n; b++) buf[b] = joined_buffer(w, link_no, pk, b, inner, room);
    for (int i = 1 + shared; i < k->ins.n - shared; i++) {
        kins in = k->ins.at[i];
        bool memory = in.op == K_LOAD || in.op == K_STORE || in.op == K_SCATTER;
        in.a = at[in.a], in.b = at[in.b], in.c = at[in.c], in.dyn = at[in.dyn];
        if (in.op == K_LOOP) in.var = to[in.var];
        in.idx = memory && pk->args[in.buf].buf < 0 ? local_place(w, k, &k->ins.at[i], to, loops) : moved(w, in.idx, to);
        if (memory) {
            int32_t from = pk->args[in.buf].buf;
            bool plan_local = from >= 0 && w->o->bufs.at[buf[in.buf]].kind == KB_LOCAL;
            in.buf = (uint16_t)buf[in.buf];
            in.idx.base += place_in_states(w, from, in.buf);
            if (plan_local) in.idx = without_rows(w, in.idx);
        }
        if (in.n_mask) in.mask = arena_copy(w->o->a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = moved(w, in.mask[m].e, to);
        at[i] = kernel_push(w->o, in);
    }
}

/* Traffic at the border, without what is local now. */
static void count(joiner *w) {
    const chain *c = w->c;
    for (int i = 0; i < c->n; i++) {
        const kernel *k = c->p->kernels.at[c->first + i].k;
        uint64_t less_read = 0, less_written = 0;
        for (int j = 0; j < c->links[i]->n; j++) {
            const access *x = &c->links[i]->at[j];
            uint64_t bytes = (uint64_t)c->p->bufs.at[x->buf].bytes;
            if (w->o->bufs.at[w->arg_of[x->buf]].kind != KB_LOCAL) continue;
            less_read += x->reads ? bytes : 0, less_written += x->writes ? bytes : 0;
        }
        w->o->flops += k->flops;
        w->o->bytes_read += k->bytes_read > less_read ? k->bytes_read - less_read : 0;
        w->o->bytes_written += k->bytes_written > less_written ? k->bytes_written - less_written : 0;
    }
}

/* Local buffers leave the plan. */
static pkernel finish(const joiner *w) {
    const chain *c = w->c;
    plan *p = c->p;
    pkernel to = { .k = w->o, .args = w->args.at, .root = p->kernels.at[c->first + c->n - 1].root };
    VEC(val) fused = { 0 };
    for (int i = 0; i < c->n; i++) {
        const pkernel *pk = &p->kernels.at[c->first + i];
        for (int j = 0; j < pk->n_fused; j++) VEC_PUSH(p->a, &fused, pk->fused[j]);
        if (i)
            decide(p, pk[-1].root, pk->root, true,
                   "a row of the next needs that row alone: one launch, rows stay in fast memory");
    }
    for (int a = 0; a < c->n_all; a++) {
        pbuf *b = &p->bufs.at[c->all[a].buf];
        if (w->o->bufs.at[w->arg_of[c->all[a].buf]].kind == KB_LOCAL) b->bytes = 0, b->elems = 0;
    }
    to.fused = fused.at, to.n_fused = fused.n;
    return to;
}

static pkernel join(const chooser *ch, chain *c) {
    plan *p = c->p;
    const pkernel *last = &p->kernels.at[c->first + c->n - 1];
    joiner w = { .c = c, .o = kernel_make(p->a, arena_printf(p->a, "%s_chain", last->k->name)) };
    int n_bufs = 0;
    w.first_use = ch->first_use, w.last_use = ch->last_use;
    w.arg_of = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    for (int i = 0; i < p->bufs.n; i++) w.arg_of[i] = -1;
    for (int i = 0; i < c->n; i++) n_bufs += p->kernels.at[c->first + i].k->bufs.n;
    w.last = ARENA_ARRAY(p->a, int, n_bufs + TN_N_DTYPES), w.layer = ARENA_ARRAY(p->a, bool, n_bufs + TN_N_DTYPES);
    for (int t = 0; t < TN_N_DTYPES; t++) join_states(&w, (tn_dtype)t);
    for (int i = 0; i < c->shared; i++) {
        w.rows[i] = kernel_var(w.o, "r", extent(p->kernels.at[c->first].k, i), true, false);
        kernel_push(w.o, (kins){ .op = K_LOOP, .var = w.rows[i], .hi = w.o->vars.at[w.rows[i]].extent, .step = 1 });
    }
    for (int i = 0; i < c->n; i++) join_link(&w, i, ch->room - c->local);
    for (int i = 0; i < c->shared; i++) kernel_push(w.o, (kins){ .op = K_END });
    count(&w);
    gpu_chain_roll(p, w.o, c->shared, c->clustered);
    for (int b = w.args.n; b < w.o->bufs.n; b++) VEC_PUSH(p->a, &w.args, (parg){ w.o->bufs.at[b].plan_buf });
    return finish(&w);
}

static void find_uses(chooser *w) {
    plan *p = w->p;
    w->first_use = ARENA_ARRAY(p->a, int, p->bufs.n + 1), w->last_use = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    for (int b = 0; b < p->bufs.n; b++) w->first_use[b] = w->last_use[b] = -1;
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) {
            int32_t b = p->kernels.at[i].args[a].buf;
            if (b < 0) continue;
            if (w->first_use[b] < 0) w->first_use[b] = i;
            w->last_use[b] = i;
        }
}

void kopt_gpu_chain(plan *p, const target *t) {
    chooser w = { .p = p, .t = t, .room = t->group_bytes - 16 * t->group };
    w.links = ARENA_ARRAY(p->a, const link *, p->kernels.n *(MAX_SHARED + 1) + 1);
    w.shapes = ARENA_ARRAY(p->a, double, GPU_CLUSTER_SHAPES);
    find_uses(&w);
    for (int i = 0; i < p->kernels.n;) {
        chain best = { .n = 1 };
        double most = 0;
        const char *end = NULL;
        for (int shared = shared_loops(p->kernels.at[i].k); shared >= 0; shared--) {
            chain c;
            const char *reason;
            double gain = grow(&w, i, shared, &c, &reason);
            if (gain > most) most = gain, best = c, end = reason;
            if (!end && most == 0) end = reason;
        }
        if (i + best.n < p->kernels.n && end)
            decide(p, p->kernels.at[i + best.n - 1].root, p->kernels.at[i + best.n].root, false, end);
        VEC_PUSH(p->a, &w.out, best.n > 1 ? join(&w, &best) : p->kernels.at[i]);
        i += best.n;
    }
    p->kernels.at = w.out.at, p->kernels.n = w.out.n, p->kernels.cap = w.out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
