/* nests.c - kernels that go by blocks of rows (kvar_info.block): each loop directly inside, a nest, is taken out as a kernel of
 * its own, for the rows of one block, is tiled as any other kernel is, and comes back to its place (step nests).
 *
 * In: scalar form, as sched/row_join.c writes it: loops over rows, the loop over blocks, perhaps a second one for the last
 * rows, and in these nothing but nests, whose outermost loop runs over the rows of the block. Out: tiled form. Loops that stay
 * around a nest are variables without a loop in the kernel of its own. */
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/nest_pack.h"

typedef struct part { /* a nest as a kernel of its own */
    kernel *k;
    kvar *of; /* [n_vars] variables of the whole kernel */
    int n_vars, n_bufs;
    nest_operands alike; /* what all blocks read alike, fixed in k */
} part;

bool loop_has_blocks(const kernel *k) {
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].block) return true;
    return false;
}

/* ---- taking out ---- */

/* Instruction i with the variables and registers of another kernel. */
static kins moved(arena *a, const kins *from, const kvar *to, const reg *at) {
    kins in = *from;
    in.a = at[in.a], in.b = at[in.b], in.c = at[in.c], in.dyn = at[in.dyn];
    if (in.op == K_LOOP) in.var = to[in.var];
    build_rename(a, &in, to);
    return in;
}

static void mark(bool *used, affine x) {
    for (int i = 0; i < x.n; i++) used[x.t[i].var] = true;
}

/* Sizes that are given at run time are those around a nest: it is tiled as if they were the largest ones. */
static int64_t most(const kernel *k, ext e) { return ext_hi(k->params, e); }

/* The variables that the nest names, in their order; those of its own loops keep what they are. */
static kvar *take_vars(const kernel *k, int loop, int end, part *p) {
    bool *used = ARENA_ARRAY(k->a, bool, k->vars.n), *own = ARENA_ARRAY(k->a, bool, k->vars.n);
    kvar *to = ARENA_ARRAY(k->a, kvar, k->vars.n);
    for (int i = loop; i < end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) used[in->var] = own[in->var] = true;
        mark(used, in->idx);
        for (int m = 0; m < in->n_mask; m++) mark(used, in->mask[m].e);
    }
    p->of = ARENA_ARRAY(k->a, kvar, k->vars.n);
    for (kvar v = 0; v < k->vars.n; v++) {
        if (!used[v]) continue;
        kvar_info x = k->vars.at[v];
        x.extent = most(k, x.extent);
        if (!own[v]) x.row = x.reduce = x.block = false;
        to[v] = p->k->vars.n, p->of[p->n_vars++] = v;
        VEC_PUSH(k->a, &p->k->vars, x);
    }
    return to;
}

/* Perfectly nested outer loops are rows. */
static void mark_rows(kernel *k) {
    for (int i = 1, end = k->ins.n - 1; k->ins.at[i].op == K_LOOP && kernel_loop_end(k, i) == end; i++, end--) {
        kvar_info *v = &k->vars.at[k->ins.at[i].var];
        if (v->reduce) return;
        v->row = true;
    }
}

/* What the nest does with each buffer. A local one is its own when the rows of the block do not tell its elements apart: then
 * rows number its copies. */
static void take_bufs(part *p, kvar row) {
    kernel *k = p->k;
    for (int b = 0; b < k->bufs.n; b++) {
        kbuf *x = &k->bufs.at[b];
        bool reads = false, writes = false, rows = x->kind != KB_LOCAL;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *in = &k->ins.at[i];
            if (!kernel_touches(in) || in->buf != b) continue;
            reads |= in->op != K_STORE, writes |= in->op != K_LOAD;
            rows |= affine_coef(in->idx, row) != 0;
        }
        x->fixed = x->fixed && !writes;
        if (!reads && !writes) {
            x->kind = KB_LOCAL, x->fixed = false, x->elems = 0;
        } else if (rows) {
            x->kind = reads && writes ? KB_INOUT : writes ? KB_OUT : KB_IN;
        } else {
            for (int i = 1; i < k->ins.n; i++)
                if (kernel_touches(&k->ins.at[i]) && k->ins.at[i].buf == b)
                    for (kvar v = 0; v < k->vars.n; v++)
                        if (k->vars.at[v].row && !affine_coef(k->ins.at[i].idx, v))
                            k->ins.at[i].idx = build_plus(k->a, k->ins.at[i].idx, affine_var(k->a, v), x->elems);
        }
    }
}

/* Traffic as if everything but its own local buffers were far away, for all blocks: what the kernel had when it was one. */
static void take_counts(part *p, const kernel *whole, int64_t blocks) {
    p->k->flops = whole->flops;
    for (int b = 0; b < p->k->bufs.n; b++) {
        const kbuf *x = &p->k->bufs.at[b];
        bool between = whole->bufs.at[b].kind == KB_LOCAL;
        uint64_t bytes = (uint64_t)(x->elems * (between ? blocks : 1)) * dtype_size((tn_dtype)x->dtype);
        if (x->kind == KB_LOCAL) continue;
        if (x->kind != KB_OUT) p->k->bytes_read += bytes;
        if (x->kind != KB_IN) p->k->bytes_written += bytes;
    }
}

/* The loop over the rows of a block of one goes. */
static void drop_lone_row(kernel *k) {
    kvar row = k->ins.at[1].var;
    if (k->vars.at[row].extent != 1) return;
    k->vars.at[row].row = false;
    for (int i = 1; i < k->ins.n; i++) build_set_var(k->a, &k->ins.at[i], row, affine_const(0));
    k->ins.at[1].op = k->ins.at[k->ins.n - 1].op = K_NIL;
    loop_compact(k);
}

static int64_t count_blocks(const kernel *k) {
    int64_t n = 1;
    for (int i = 1; i < k->ins.n && k->ins.at[i].op == K_LOOP; i++) {
        n *= most(k, k->params ? k->ins.at[i].hi : k->vars.at[k->ins.at[i].var].extent);
        if (k->vars.at[k->ins.at[i].var].block) break;
    }
    return n;
}

static part take(const kernel *k, int loop) {
    int end = kernel_loop_end(k, loop) + 1;
    part p = { .k = kernel_make(k->a, k->name), .n_bufs = k->bufs.n };
    reg *at = ARENA_ARRAY(k->a, reg, k->ins.n);
    kvar *to = take_vars(k, loop, end, &p);
    for (int b = 0; b < k->bufs.n; b++) {
        VEC_PUSH(k->a, &p.k->bufs, k->bufs.at[b]);
        p.k->bufs.at[b].elems = most(k, k->bufs.at[b].elems);
    }
    for (int i = loop; i < end; i++) at[i] = kernel_push(p.k, moved(k->a, &k->ins.at[i], to, at));
    mark_rows(p.k);
    take_bufs(&p, to[k->ins.at[loop].var]);
    take_counts(&p, k, count_blocks(k));
    nest_pack_find(k, loop, end, &p.alike);
    nest_pack_fix(p.k, p.of, p.n_vars, &p.alike);
    drop_lone_row(p.k);
    return p;
}

bool loop_next_nest(const kernel *k, knest *x) {
    for (int i = x->loop ? kernel_loop_end(k, x->loop) + 1 : 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_END) x->inside = false;
        if (in->op != K_LOOP) continue;
        if (x->inside) {
            x->loop = i, x->all++, x->n++;
            return true;
        }
        x->inside = k->vars.at[in->var].block, x->rest = in->lo != 0, x->n = -1;
    }
    return false;
}

kernel *loop_nest(const kernel *k, int n) {
    for (knest x = { 0 }; loop_next_nest(k, &x);)
        if (n-- == 0) return take(k, x.loop).k;
    return NULL;
}

/* ---- putting back ---- */

typedef struct blocks {
    const kernel *k;
    kernel *o;
    nest_panels_list panels; /* filled before the blocks */
} blocks;

/* A value in panels: nests that read it in the same order share a buffer. */
static int put_panels(blocks *w, const part *p, const kernel *x, int b) {
    const kbuf *own = &x->bufs.at[b];
    for (int i = 0; i < p->alike.n; i++)
        if (p->alike.at[i].buf == own->panels_of) return nest_pack_panels(w->o, &w->panels, &p->alike.at[i], x, b);
    for (int i = w->k->bufs.n; i < w->o->bufs.n; i++) {
        const kbuf *y = &w->o->bufs.at[i];
        if (y->panels && y->panels_of == own->panels_of && kpanels_equal(y->panels, own->panels)) return i;
    }
    return kernel_buf(w->o, *own);
}

/* Local buffers of the nest's own grow with the rows that are worked on at once; new ones come last. */
static const int *put_bufs(blocks *w, const part *p, const kernel *x) {
    int *to = ARENA_ARRAY(w->o->a, int, x->bufs.n + 1);
    for (int b = 0; b < x->bufs.n; b++) {
        const kbuf *from = &x->bufs.at[b];
        to[b] = from->panels ? put_panels(w, p, x, b) : b < p->n_bufs ? b : kernel_buf(w->o, *from);
        if (b >= p->n_bufs || from->panels) continue;
        kbuf *own = &w->o->bufs.at[b];
        if (own->kind == KB_LOCAL && from->kind == KB_LOCAL && from->elems > own->elems) own->elems = from->elems;
    }
    return to;
}

static const kvar *put_vars(blocks *w, const part *p, const kernel *x) {
    kvar *to = ARENA_ARRAY(w->o->a, kvar, x->vars.n);
    bool *own = ARENA_ARRAY(w->o->a, bool, x->vars.n);
    for (int i = 1; i < x->ins.n; i++)
        if (x->ins.at[i].op == K_LOOP) own[x->ins.at[i].var] = true;
    for (kvar v = 0; v < x->vars.n; v++) {
        kvar_info info = x->vars.at[v];
        to[v] = v < p->n_vars ? p->of[v] : kernel_var_like(w->o, &info);
        if (!own[v]) continue;
        memcpy(info.name, w->o->vars.at[to[v]].name, sizeof info.name);
        w->o->vars.at[to[v]] = info;
    }
    return to;
}

static void put_nest(blocks *w, int loop, const kernel *x) {
    part p = take(w->k, loop);
    if (p.alike.n) x = nest_pack_unfix(x, p.of, p.n_vars, &p.alike);
    const kvar *to = put_vars(w, &p, x);
    const int *buf = put_bufs(w, &p, x);
    reg *at = ARENA_ARRAY(w->o->a, reg, x->ins.n);
    for (int i = 1; i < x->ins.n; i++) {
        kins in = moved(w->o->a, &x->ins.at[i], to, at);
        if (kernel_touches(&in) || in.op == K_PREFETCH) in.buf = (uint16_t)buf[in.buf];
        at[i] = kernel_push(w->o, in);
    }
}

static void put_loop(blocks *w, int i) {
    kins in = w->k->ins.at[i];
    if (in.var == w->o->par_var) in.par = in.lo == 0 ? PAR_THREADS : PAR_LAST;
    kernel_push(w->o, in);
}

kernel *loop_put_nests(const kernel *k, kernel *const *tiled) {
    blocks w = { .k = k, .o = kernel_make(k->a, k->name) };
    kernel *o = w.o;
    knest next = { 0 };
    for (kvar v = 0; v < k->vars.n; v++) VEC_PUSH(o->a, &o->vars, k->vars.at[v]);
    for (int b = 0; b < k->bufs.n; b++) VEC_PUSH(o->a, &o->bufs, k->bufs.at[b]);
    o->flops = k->flops, o->bytes_read = k->bytes_read, o->bytes_written = k->bytes_written;
    o->tiled = true, o->par_var = k->par_var, o->params = k->params;
    bool more = loop_next_nest(k, &next);
    for (int i = 1; i < k->ins.n; i++) {
        if (more && i == next.loop) {
            put_nest(&w, i, *tiled++);
            i = kernel_loop_end(k, i);
            more = loop_next_nest(k, &next);
        } else if (k->ins.at[i].op == K_LOOP) {
            put_loop(&w, i);
        } else { /* an end */
            kernel_push(o, k->ins.at[i]);
        }
    }
    nest_pack_fill(o, &w.panels);
    for (int b = o->bufs.n - 1; b >= k->bufs.n; b--)
        if (o->bufs.at[b].panels) loop_take_place(o, b);
    return o;
}
