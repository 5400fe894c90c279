/* kernel.c - construction of kernels and arithmetic on affine indices. In and out: kernel.h. The kernel's arena owns all. */
#include "ir/kernel.h"

enum { MAKES = KOP_MAKES, TYPED = KOP_TYPED, PURE = KOP_PURE, MEMORY = KOP_MEMORY, SYNC = KOP_SYNC, PAIR = KOP_PAIR };
#define USES(...)                                                                                                              \
    { __VA_ARGS__ }
#define USE(field, type, lanes)                                                                                                \
    { offsetof(kins, field), USE_##type, USE_##lanes }
#define NOTHING                                                                                                                \
    {                                                                                                                          \
        { 0 }                                                                                                                  \
    }
const kop_info kop_table[N_KOPS] = {
    [K_NIL] = { .text = "" },
#define KERNEL_INS(op, text, flags, uses, check, eval) [K_##op] = { text, flags, uses },
#include "ir/kernel.def"
};
#undef USES
#undef USE
#undef NOTHING

kernel *kernel_make(arena *a, const char *name) {
    kernel *k = ARENA_NEW(a, kernel);
    k->a = a;
    k->name = name;
    k->par_var = -1;
    VEC_PUSH(a, &k->ins, (kins){ 0 });
    return k;
}

/* name and number, as much of them as there is room for: snprintf is slow here */
static void name_var(char *out, size_t size, const char *name, int number) {
    char digits[12];
    size_t n = 0, m = 0;
    while (n + 1 < size && name[n]) out[n] = name[n], n++;
    do digits[m++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (m > 0 && n + 1 < size) out[n++] = digits[--m];
    out[n] = 0;
}

kvar kernel_var(kernel *k, const char *name, ext extent, bool row, bool reduce) {
    kvar_info v = { .extent = extent, .row = row, .reduce = reduce, .role = { 1, 1 } };
    name_var(v.name, sizeof v.name, name, k->vars.n);
    VEC_PUSH(k->a, &k->vars, v);
    return k->vars.n - 1;
}

kvar kernel_var_like(kernel *k, const kvar_info *v) {
    char name[sizeof v->name];
    int n = 0;
    for (; n < 4 && v->name[n] && (v->name[n] < '0' || v->name[n] > '9'); n++) name[n] = v->name[n];
    name[n] = 0;
    kvar own = kernel_var(k, name, v->extent, v->row, v->reduce);
    k->vars.at[own].block = v->block, k->vars.at[own].role = v->role;
    k->vars.at[own].threads = v->threads, k->vars.at[own].steps = v->steps, k->vars.at[own].bulk = v->bulk;
    return own;
}

reg kernel_push(kernel *k, kins in) {
    if (in.lanes == 0) in.lanes = 1;
    VEC_PUSH(k->a, &k->ins, in);
    return (reg)(k->ins.n - 1);
}

int kernel_buf(kernel *k, kbuf b) {
    VEC_PUSH(k->a, &k->bufs, b);
    return k->bufs.n - 1;
}

kernel *kernel_clone(const kernel *k, arena *a) {
    kernel *c = arena_copy(a, k, sizeof *k);
    c->a = a;
    c->ins.at = arena_copy(a, k->ins.at, sizeof *k->ins.at * (size_t)k->ins.n), c->ins.cap = k->ins.n;
    c->vars.at = arena_copy(a, k->vars.at, sizeof *k->vars.at * (size_t)k->vars.n), c->vars.cap = k->vars.n;
    c->bufs.at = arena_copy(a, k->bufs.at, sizeof *k->bufs.at * (size_t)k->bufs.n), c->bufs.cap = k->bufs.n;
    for (int i = 1; i < c->ins.n; i++)
        if (c->ins.at[i].n_mask)
            c->ins.at[i].mask = arena_copy(a, c->ins.at[i].mask, sizeof(kmask) * (size_t)c->ins.at[i].n_mask);
    return c;
}

int kernel_nest(const kernel *k, reg r) {
    int n = 1, par = k->ins.at[r].par;
    while (par >= PAR_GRID_THREADS && k->ins.at[r + (reg)n].op == K_LOOP && k->ins.at[r + (reg)n].par == par) n++;
    return n;
}

int64_t kernel_nest_size(const kernel *k, reg r) {
    int64_t size = 1;
    for (int i = 0, n = kernel_nest(k, r); i < n; i++) {
        const kins *in = &k->ins.at[r + (reg)i];
        size *= in->hi <= in->lo ? 0 : (in->hi - in->lo + in->step - 1) / in->step;
    }
    return size;
}

int64_t kernel_nest_blocks(const kernel *k, reg r, int64_t *out_first) {
    const kins *in = &k->ins.at[r];
    *out_first = in->n_blocks ? in->first_block : 0;
    return in->n_blocks ? in->n_blocks : k->grid_blocks;
}

int64_t kernel_shared_bytes(const kernel *k) { return kbufs_shared_bytes(k->bufs.at, k->bufs.n); }

int64_t kbuf_place(const kbuf *b, int64_t *end) {
    int64_t at = (*end + kbuf_align(b) - 1) / kbuf_align(b) * kbuf_align(b);
    *end = at + (b->elems * (int64_t)dtype_size((tn_dtype)b->dtype) + 15) / 16 * 16;
    return at;
}

int64_t kbufs_shared_bytes(const kbuf *at, int n_bufs) {
    int64_t n[2] = { 0, 0 };
    for (int b = 0; b < n_bufs; b++)
        if (at[b].kind >= KB_SHARED) kbuf_place(&at[b], &n[at[b].late]);
    return n[0] > n[1] ? n[0] : n[1];
}

bool kbufs_any_late(const kbuf *at, int n) {
    for (int b = 0; b < n; b++)
        if (at[b].late) return true;
    return false;
}

int64_t kernel_dynamic_shared(const kernel *k) {
    int64_t n = kernel_shared_bytes(k);
    return n > KERNEL_STATIC_SHARED || kbufs_any_late(k->bufs.at, k->bufs.n) ? n : 0;
}

static bool divides(const kernel *k, ext e, int64_t n) { return ext_divisor(k->params, e) % n == 0; }

/* Whether x is a multiple of n in every iteration. */
static bool is_multiple(const kernel *k, affine x, int64_t n) {
    if (!divides(k, x.base, n)) return false;
    for (int t = 0; t < x.n; t++) {
        if (divides(k, x.t[t].coef, n)) continue;
        for (int i = 1; i < k->ins.n; i++) {
            const kins *l = &k->ins.at[i];
            if (l->op != K_LOOP || l->var != x.t[t].var) continue;
            if (!ext_is_lit(x.t[t].coef) || !ext_is_lit(l->lo)) return false;
            if (x.t[t].coef * l->lo % n || x.t[t].coef * l->step % n) return false;
        }
    }
    return true;
}

/* Whether every step of a ring of it begins at a multiple of n elements. */
static bool steps_aligned(const kernel *k, const kbuf *b, int n) {
    int64_t most = ext_hi(k->params, b->elems);
    if (kbuf_is_local(b) || most % n == 0) return true;
    return !b->loose && most >= KERNEL_WIDE_BYTES / (int64_t)dtype_size((tn_dtype)b->dtype);
}

bool kernel_aligned(const kernel *k, const kins *in, int n) {
    if (n == 1) return true;
    if (!steps_aligned(k, &k->bufs.at[in->buf], n)) return false;
    if (in->lane_stride != 1 || in->lanes % n || !is_multiple(k, in->idx, n)) return false;
    if (in->dyn && (k->ins.at[in->dyn].lanes > 1 || !divides(k, in->dyn_stride, n))) return false;
    for (int m = 0; m < in->n_mask; m++) {
        if (in->mask_lane[m] == 0) continue;
        if (in->mask_lane[m] != 1 || !divides(k, in->mask[m].lo, n) || !divides(k, in->mask[m].hi, n) ||
            !is_multiple(k, in->mask[m].e, n))
            return false;
    }
    return true;
}

int kernel_zip_lane(const kins *zip, int l, bool *of_b) {
    int piece = (int)zip->piece, chunk = 16 / (int)dtype_size((tn_dtype)zip->dtype);
    if (chunk < 2 * piece) chunk = 2 * piece;
    int in_chunk = l % chunk, pair = in_chunk / (2 * piece);
    *of_b = in_chunk / piece % 2;
    return l - in_chunk + (zip->mode == ZIP_HIGH ? chunk / 2 : 0) + pair * piece + in_chunk % piece;
}

affine affine_const(int64_t c) { return (affine){ .base = c }; }

affine affine_var(arena *a, kvar v) {
    kterm *t = ARENA_NEW(a, kterm);
    *t = (kterm){ v, 1 };
    return (affine){ 0, 1, t };
}

/* Literals need no table, nor a check of the result: indexes are added up more often than anything else is done. */
static ext sum_of(exts *e, ext x, ext y) { return e ? ext_add(e, x, y) : x + y; }
static ext product_of(exts *e, ext x, ext y) { return e ? ext_mul(e, x, y) : x * y; }

affine affine_add_params(arena *a, exts *e, affine x, affine y) {
    if (x.n == 0) return (affine){ sum_of(e, x.base, y.base), y.n, y.t };
    if (y.n == 0) return (affine){ sum_of(e, x.base, y.base), x.n, x.t };
    kterm *t = ARENA_ARRAY(a, kterm, x.n + y.n);
    int n = 0, i = 0, j = 0;
    while (i < x.n || j < y.n) {
        kterm m;
        if (j == y.n || (i < x.n && x.t[i].var < y.t[j].var))
            m = x.t[i++];
        else if (i == x.n || y.t[j].var < x.t[i].var)
            m = y.t[j++];
        else {
            m = (kterm){ x.t[i].var, sum_of(e, x.t[i].coef, y.t[j].coef) };
            i++, j++;
        }
        if (m.coef) t[n++] = m;
    }
    return (affine){ sum_of(e, x.base, y.base), n, t };
}

affine affine_scale_params(arena *a, exts *e, affine x, ext s) {
    if (s == 0) return affine_const(0);
    if (s == 1) return x;
    kterm *t = ARENA_ARRAY(a, kterm, x.n);
    for (int i = 0; i < x.n; i++) t[i] = (kterm){ x.t[i].var, product_of(e, x.t[i].coef, s) };
    return (affine){ product_of(e, x.base, s), x.n, t };
}

affine affine_offset(affine x, int64_t c) {
    x.base += c;
    return x;
}

affine affine_without(arena *a, affine x, kvar v) {
    kterm *t = ARENA_ARRAY(a, kterm, x.n + 1);
    int n = 0;
    for (int i = 0; i < x.n; i++)
        if (x.t[i].var != v) t[n++] = x.t[i];
    return (affine){ x.base, n, t };
}

ext affine_coef(affine x, kvar v) {
    for (int i = 0; i < x.n; i++)
        if (x.t[i].var == v) return x.t[i].coef;
    return 0;
}

affine affine_set_var(arena *a, affine x, kvar v, affine value) {
    int64_t c = affine_coef(x, v);
    if (c == 0) return x;
    kterm *t = ARENA_ARRAY(a, kterm, x.n);
    int n = 0;
    for (int i = 0; i < x.n; i++)
        if (x.t[i].var != v) t[n++] = x.t[i];
    return affine_add(a, (affine){ x.base, n, t }, affine_scale(a, value, c));
}

bool affine_equal(affine x, affine y) {
    if (x.base != y.base || x.n != y.n) return false;
    for (int i = 0; i < x.n; i++)
        if (x.t[i].var != y.t[i].var || x.t[i].coef != y.t[i].coef) return false;
    return true;
}

int kernel_loop_end(const kernel *k, int i) {
    int depth = 0;
    for (; i < k->ins.n; i++) {
        depth += k->ins.at[i].op == K_LOOP;
        if (k->ins.at[i].op == K_END && --depth == 0) return i;
    }
    guard_fail(k->a->gd, TN_ERR_INTERNAL, "kernel %s: a loop is not closed", k->name);
}

uint8_t kernel_scatter_mode(op_code op) {
    return op == OP_scatter_set   ? SCATTER_SET
           : op == OP_scatter_mul ? SCATTER_MUL
           : op == OP_scatter_max ? SCATTER_MAX
           : op == OP_scatter_min ? SCATTER_MIN
                                  : SCATTER_ADD;
}
op_code kernel_scatter_op(const kins *in) {
    static const op_code ops[] = { OP_add, OP_NIL, OP_mul, OP_max, OP_min };
    return ops[in->mode];
}
