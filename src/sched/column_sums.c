/* column_sums.c - sums over all rows of what a kernel has of each row anyway are made there: gradients of a norm's weights and
 * of the bias before it, of rows that the norm's gradient reads and writes.
 *
 * In: a plan for a GPU in scalar form, behind vertical fusion. Out: kernels of rows that go by blocks of rows, with sums of
 * columns in local memory, one a block; what added up all rows adds up those, in a fixed order. Their recipe is recipe/row.c:
 * threads keep the sums in registers (loop/register_cache.c). [order] */
#include "loop/gpu_bind.h"
#include "machine/machine.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"

enum {
    MOST_SUMS = 3,
    MOST_HELD = 72 /* sums of a thread */,
    LEAST_ROWS = 8 /* of a block */,
    WARPS = 8 /* of a processor, which have registers for them */
};

typedef struct rows { /* a kernel of rows: loops, and nests of one loop each with the same extent */
    const pkernel *pk;
    const kernel *k;
    int n, last; /* loops around; where the last nest begins */
    int64_t columns, rows;
} rows;
typedef struct sum { /* of column i0, over the same loops: instructions [from, to) of a row, the last of which adds a value */
    const pkernel *pk;
    const kernel *k;
    int at, from, to, acc; /* at: of the plan */
    int nest;              /* of the kernel of rows: where it is made */
    int *buf;              /* [bufs] which of the kernel of rows */
} sum;

static bool read_rows(const pkernel *pk, rows *out) {
    if (pk->k->params) return false;
    const kernel *k = gpu_compacted(pk->k);
    *out = (rows){ .pk = pk, .k = k, .n = gpu_outer_loops(k), .rows = 1 };
    int from = 1 + out->n, to = k->ins.n - out->n;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op == K_SCATTER) return false;
        if (k->ins.at[i].op != K_LOOP) continue;
        if (k->ins.at[i].lo || (out->last && k->ins.at[i].hi != out->columns)) return false;
        out->last = i, out->columns = k->ins.at[i].hi;
        for (i++; k->ins.at[i].op != K_END; i++)
            if (k->ins.at[i].op == K_LOOP) return false;
    }
    for (int i = 1; i <= out->n; i++) out->rows *= k->ins.at[i].hi - k->ins.at[i].lo;
    return out->n && out->last && out->n < MAX_LOOPS / 2;
}

static bool read_sum(const plan *p, int at, sum *out) {
    const kernel *k = p->kernels.at[at].k;
    int i = 2, loops = 0;
    *out = (sum){ .pk = &p->kernels.at[at], .k = k, .at = at };
    if (k->params || k->ins.n < 8 || k->ins.at[1].op != K_LOOP || k->ins.at[2].op != K_ACC) return false;
    if (k->ins.at[2].alu != OP_add || k->ins.at[2].dtype != TN_F32 || k->ins.at[2].imm != 0) return false;
    for (i = 3; k->ins.at[i].op == K_LOOP; i++) loops++;
    out->acc = 2, out->from = i;
    while (i < k->ins.n && k->ins.at[i].op != K_UPD) {
        const kins *in = &k->ins.at[i];
        if (!kernel_is_pure(in) && (in->op != K_LOAD || in->dyn || in->n_mask)) return false;
        i++;
    }
    if (i == k->ins.n || k->ins.at[i].alu != OP_add || k->ins.at[i].c != (reg)out->acc || !loops) return false;
    out->to = i + 1;
    for (int j = 0; j < loops; j++)
        if (k->ins.at[++i].op != K_END) return false;
    int stores = 0;
    for (i++; i < k->ins.n - 1; i++) {
        stores += k->ins.at[i].op == K_STORE;
        if (!kernel_is_pure(&k->ins.at[i]) && k->ins.at[i].op != K_STORE) return false;
    }
    return stores == 1 && out->to + loops < k->ins.n;
}

/* What variables of the sum are in the kernel of rows. */
static build_places places_of(const rows *r, const sum *s, int nest, arena *a) {
    build_places p = { .n = 0 };
    build_put(&p, s->k->ins.at[1].var, affine_var(a, r->k->ins.at[nest].var));
    for (int i = 0; i < r->n; i++) build_put(&p, s->k->ins.at[3 + i].var, affine_var(a, r->k->ins.at[1 + i].var));
    return p;
}

/* The nest that stores that element, the last one where it is a number of the row; 0: none, -1: another one of the buffer. */
static int stored_in(const rows *r, int buf, const sum *s, const kins *load, reg *value, arena *a) {
    int found = 0;
    for (int i = 1 + r->n, nest = 0, end = 0; i < r->k->ins.n - r->n; i++) {
        const kins *in = &r->k->ins.at[i];
        if (in->op == K_LOOP) nest = i, end = kernel_loop_end(r->k, i);
        if (in->op != K_STORE || in->buf != buf) continue;
        build_places p = places_of(r, s, i < end ? nest : r->last, a);
        bool late = i > end && i > r->last;
        if (found || late || in->n_mask || !affine_equal(in->idx, build_moved(a, &p, load->idx))) return -1;
        found = i < end ? nest : r->last, *value = in->a;
    }
    return found;
}

static bool reads_the_same(const rows *r, int buf, const sum *s, const kins *load, arena *a) {
    for (int i = 1 + r->n, nest = r->last; i < r->k->ins.n - r->n; i++) {
        const kins *in = &r->k->ins.at[i];
        if (in->op == K_LOOP) nest = i;
        if (in->op != K_LOAD || in->buf != buf || in->n_mask || in->dyn) continue;
        build_places p = places_of(r, s, nest, a);
        if (affine_equal(in->idx, build_moved(a, &p, load->idx))) return true;
    }
    return false;
}

/* All that it reads the kernel of rows has, and nothing becomes another value before it is its turn. */
static bool belongs(const plan *p, int at, const rows *r, sum *s) {
    arena *a = p->a;
    if (s->to - s->from < 2 || s->at <= at || s->k->ins.at[1].hi != r->columns || s->k->ins.at[1].lo) return false;
    if (s->from - 3 != r->n) return false;
    for (int i = 0; i < r->n; i++) {
        const kins *x = &s->k->ins.at[3 + i], *y = &r->k->ins.at[1 + i];
        if (x->lo != y->lo || x->hi != y->hi) return false;
    }
    s->buf = ARENA_ARRAY(a, int, s->k->bufs.n + 1), s->nest = r->last;
    for (int i = s->from; i < s->to; i++) {
        const kins *load = &s->k->ins.at[i];
        int b = 0, nest;
        reg value;
        if (load->op != K_LOAD) continue;
        while (b < r->k->bufs.n && (r->pk->args[b].buf != s->pk->args[load->buf].buf || r->pk->args[b].buf < 0)) b++;
        if (b == r->k->bufs.n) return false;
        s->buf[load->buf] = b;
        nest = r->k->bufs.at[b].kind == KB_IN ? 0 : stored_in(r, b, s, load, &value, a);
        if (nest < 0 || (!nest && (r->k->bufs.at[b].kind != KB_IN || !reads_the_same(r, b, s, load, a)))) return false;
        if (nest && s->nest != r->last && s->nest != nest) return false;
        if (nest) s->nest = nest;
    }
    for (int m = at + 1; m < s->at; m++)
        if (row_disturbs(p, m, s->at)) return false;
    return true;
}

/* ---- the kernel by blocks of rows ---- */

typedef struct writer {
    plan *p;
    const rows *r;
    kernel *o;
    build_copier c;
    build_places at; /* the innermost row */
    const sum *sums;
    int n, local[MOST_SUMS], part[MOST_SUMS]; /* buffers: of a block's sums; of all */
    affine block;
} writer;

static reg load_sum(writer *w, int i, kvar column) { return build_load(w->o, w->local[i], affine_var(w->o->a, column), 1); }
static kvar open_columns(writer *w) { return build_loop(w->o, "c", w->r->columns, PAR_SERIAL); }

/* The row's part of sum i, behind what nest it is of does. */
static void add_row(writer *w, int i) {
    const sum *s = &w->sums[i];
    const kernel *k = w->r->k;
    kernel *o = w->o;
    build_copier from = build_copier_make(s->k, o);
    build_places *at = ARENA_NEW(o->a, build_places);
    kvar column = k->ins.at[s->nest].var;
    *at = places_of(w->r, s, s->nest, o->a);
    for (int v = 0; v < at->n; v++) at->value[v] = build_moved(o->a, &w->at, at->value[v]);
    for (int j = s->from; j < s->to - 1; j++) {
        const kins *in = &s->k->ins.at[j];
        reg value;
        bool made = in->op == K_LOAD && k->bufs.at[s->buf[in->buf]].kind != KB_IN &&
                    stored_in(w->r, s->buf[in->buf], s, in, &value, o->a) > 0;
        if (made) {
            kins wrap = { .op = K_WRAP, .dtype = in->dtype, .src = in->src, .lanes = 1, .a = w->c.to[value] };
            from.to[j] = in->src == in->dtype ? wrap.a : kernel_push(o, wrap);
        } else {
            kins copy = build_at(&from, j, at);
            if (copy.op == K_LOAD) copy.buf = (uint16_t)s->buf[copy.buf];
            from.to[j] = kernel_push(o, copy);
        }
    }
    reg total = build_op(o, OP_add, load_sum(w, i, column), from.to[s->k->ins.at[s->to - 1].a]);
    build_store(o, w->local[i], affine_var(o->a, column), total);
}

static kernel *write_rows(writer *w, int64_t block) {
    const kernel *k = w->r->k;
    kernel *o = w->o = kernel_clone(k, w->p->a);
    const build_places none = { .n = 0 };
    int n = w->r->n;
    kins inner = k->ins.at[n];
    kvar column, outer;
    o->ins.n = 1, w->c = build_copier_make(k, o);
    for (int i = 0; i < w->n; i++) {
        w->local[i] = build_buffer(o, TN_F32, KB_LOCAL, w->r->columns);
        w->part[i] = build_buffer(o, TN_F32, KB_OUT, w->r->rows / block * w->r->columns);
    }
    w->block = affine_const(0);
    for (int i = 1; i < n; i++) {
        build_copy(&w->c, i, &none);
        w->block = build_plus(o->a, affine_scale(o->a, w->block, k->ins.at[i].hi), affine_var(o->a, k->ins.at[i].var), 1);
    }
    outer = kernel_var(o, "rb", inner.hi / block, true, false);
    build_open(o, outer, 0, inner.hi / block, PAR_SERIAL);
    w->block = build_plus(o->a, affine_scale(o->a, w->block, inner.hi / block), affine_var(o->a, outer), 1);
    column = open_columns(w);
    for (int i = 0; i < w->n; i++) build_store(o, w->local[i], affine_var(o->a, column), build_number(o, TN_F32, 0));
    build_ends(o, 1);
    o->vars.at[inner.var].extent = inner.hi = block, o->vars.at[inner.var].row = false;
    kernel_push(o, inner);
    w->at = none;
    build_put(&w->at, inner.var, build_plus(o->a, affine_var(o->a, inner.var), affine_var(o->a, outer), block));
    for (int i = 1 + n, nest = 0; i < k->ins.n - n; i++) {
        if (k->ins.at[i].op == K_LOOP) nest = i;
        for (int j = 0; j < w->n && k->ins.at[i].op == K_END; j++)
            if (w->sums[j].nest == nest) add_row(w, j);
        build_copy(&w->c, i, &w->at);
    }
    build_ends(o, 1);
    column = open_columns(w);
    for (int i = 0; i < w->n; i++)
        build_store(o, w->part[i], build_plus(o->a, affine_var(o->a, column), w->block, w->r->columns), load_sum(w, i, column));
    build_ends(o, 1 + n);
    o->name = arena_printf(o->a, "%s_sums", k->name);
    return o;
}

/* The sum of what the blocks have. */
static kernel *write_sum(const plan *p, const sum *s, int64_t blocks) {
    const kernel *k = s->k;
    kernel *o = kernel_clone(k, p->a);
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    int64_t columns = k->ins.at[1].hi;
    int loops = s->from - 3, kept = 0;
    o->ins.n = 1, o->bufs.n = 0;
    kernel_buf(o, (kbuf){ .dtype = TN_F32, .kind = KB_IN, .elems = blocks * columns, .node = s->pk->root, .plan_buf = -1 });
    build_copy(&c, 1, &none), build_copy(&c, 2, &none);
    kvar part = kernel_var(o, "p", blocks, false, true);
    build_open(o, part, 0, blocks, PAR_SERIAL);
    reg x = build_load(o, 0, build_plus(o->a, affine_var(o->a, k->ins.at[1].var), affine_var(o->a, part), columns), 1);
    build_update(o, OP_add, x, 0, c.to[2]);
    build_ends(o, 1);
    for (int i = s->to + loops; i < k->ins.n; i++) {
        kins in = build_at(&c, i, &none);
        if (in.op == K_STORE) kept = in.buf, in.buf = 1;
        c.to[i] = kernel_push(o, in);
    }
    kernel_buf(o, k->bufs.at[kept]);
    o->bytes_read = (uint64_t)(blocks * columns) * sizeof(float), o->flops = (uint64_t)(blocks * columns);
    return o;
}

/* Rows of a block: as many as leave a warp's work for all that have room, a power of two. 0: too few. */
static int64_t choose_block(const rows *r, const target *t) {
    int64_t n = r->k->ins.at[r->n].hi, block = 1;
    while (n % (2 * block) == 0 && r->rows / (2 * block) * 10 >= 9 * WARPS * (int64_t)machine_units(t)) block *= 2;
    return block < LEAST_ROWS ? 0 : block;
}

static void commit(writer *w, int at, int64_t block) {
    plan *p = w->p;
    pkernel *pk = &p->kernels.at[at];
    const kernel *k = write_rows(w, block);
    parg *args = ARENA_ARRAY(p->a, parg, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) args[b] = b < w->r->k->bufs.n ? pk->args[b] : (parg){ -1 };
    for (int i = 0; i < w->n; i++) {
        const sum *s = &w->sums[i];
        pkernel *of = &p->kernels.at[s->at];
        kernel *last = write_sum(p, s, w->r->rows / block);
        pbuf part = { .kind = PB_TEMP, .node = of->root, .dtype = TN_F32, .elems = k->bufs.at[w->part[i]].elems };
        part.bytes = part.elems * (int64_t)sizeof(float), part.first = part.last = part.inplace_of = part.io = -1;
        args[w->part[i]].buf = p->bufs.n;
        int32_t result = -1;
        for (int b = 0; b < s->k->bufs.n; b++)
            if (s->k->bufs.at[b].kind != KB_IN && of->args[b].buf >= 0) result = of->args[b].buf;
        parg *own = ARENA_ARRAY(p->a, parg, 2);
        own[0].buf = p->bufs.n, own[1].buf = result;
        VEC_PUSH(p->a, &p->bufs, part);
        row_decide(p, pk->root, of->root, true, "sums of columns that the rows have anyway: each block of rows has a part");
        of->k = last, of->args = own;
    }
    pk->k = w->o, pk->args = args;
}

void fuse_column_sums(plan *p, const target *t) {
    for (int i = 0; i < p->kernels.n; i++) {
        rows r;
        sum all[MOST_SUMS];
        int n = 0, cluster = 1;
        bool in_shared = false;
        if (!read_rows(&p->kernels.at[i], &r)) continue;
        int64_t block = choose_block(&r, t);
        int threads = block ? recipe_row_threads(r.k, r.n, t, &cluster, &in_shared) : 0;
        if (!threads || cluster > 1 || in_shared || r.columns > (int64_t)threads * MOST_HELD) continue;
        for (int j = i + 1; j < p->kernels.n && n < MOST_SUMS && (n + 1) * r.columns <= (int64_t)threads * MOST_HELD; j++)
            if (read_sum(p, j, &all[n]) && belongs(p, i, &r, &all[n])) n++;
        writer *w = ARENA_NEW(p->a, writer);
        *w = (writer){ .p = p, .r = &r, .sums = all, .n = n };
        if (n) commit(w, i, block);
    }
}
