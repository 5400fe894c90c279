/* eval_kernel.c - the interpreter of kernels. In: a kernel and the memory of its buffers, or a plan and memory of all its
 * slots. Out: memory changed as the generated code would change it. Scratch comes from the caller's arena.
 *
 * A register is `lanes` cells; masks are -1 or 0. Instructions are run one by one from the list, loops by jumping: slow and
 * obvious. The threads of a thread block run one after the other from meeting to meeting, in an order that changes each time,
 * so that what depends on their order shows; so do the thread blocks of a cluster, which have one memory here. */
#include "eval/eval_kernel.h"

#include "eval/eval.h"
#include "eval/eval_race.h"

#include <math.h>

typedef union cell {
    double f;
    int64_t i;
} cell;

typedef struct nest {     /* loops that stand directly in one another, whose iterations are dealt as one */
    int head, n;          /* the outermost, how many */
    int64_t size;         /* iterations */
    int64_t first, count; /* thread blocks that they are bound to */
} nest;

typedef struct place { /* of a register among a thread's cells */
    int at, by;        /* by: 0 where one lane stands for all, else 1 */
} place;

typedef struct machine {
    const kernel *k;
    arena *a;
    unsigned char **base; /* [bufs] */
    cell *cells;          /* of all registers */
    const place *regs;    /* [ins] of all threads */
    int *end;             /* [ins] K_LOOP: its K_END; K_END: its K_LOOP */
    nest *nests;          /* [ins] K_LOOP that is dealt: the nest it is in */
    int64_t *var;         /* [vars] */
    int64_t *iteration;   /* [ins] K_LOOP that starts a dealt nest: the iteration that is run */
    int at, tid;          /* instruction to run next, thread of the thread block */
    int64_t gid;          /* thread block */
    int64_t *async;       /* [bufs] elements of a cluster's memory that asynchronous stores wrote */
    race_log *races;      /* NULL: not the form of a GPU */
    race_thread passed;
} machine;

NORETURN static void fail_at(const machine *m, int r, const char *what, int64_t at, int64_t n) {
    guard_fail(m->a->gd, TN_ERR_INTERNAL, "kernel %s, instruction %%%d: %s %lld of %lld", m->k->name, r, what, (long long)at,
               (long long)n);
}

static inline int64_t affine_at(const machine *m, affine x) {
    uint64_t v = (uint64_t)x.base;
    for (int i = 0; i < x.n; i++) v += (uint64_t)x.t[i].coef * (uint64_t)m->var[x.t[i].var];
    return (int64_t)v;
}

/* In the scalar form, row variables in the index of local memory only number the copies that tiling makes. */
static inline int64_t place_at(const machine *m, const kins *in) {
    if (m->k->tiled || m->k->bufs.at[in->buf].kind != KB_LOCAL) return affine_at(m, in->idx);
    int64_t at = in->idx.base;
    for (int i = 0; i < in->idx.n; i++)
        if (!m->k->vars.at[in->idx.t[i].var].row) at += in->idx.t[i].coef * m->var[in->idx.t[i].var];
    return at;
}

static inline cell *cells_of(const machine *m, reg r) { return m->cells + m->regs[r].at; }
static inline cell lane_of(const machine *m, reg r, int lane) { return cells_of(m, r)[lane * m->regs[r].by]; }

static bool is_float(uint8_t t) { return dtype_is_float((tn_dtype)t); }

static inline cell fit(uint8_t dtype, cell x) { /* to the register's width */
    if (dtype == TN_F32) x.f = (double)(float)x.f;
    if (dtype == TN_I32) x.i = (int32_t)(uint32_t)(uint64_t)x.i;
    return x;
}

/* ---- memory ---- */

static cell read_cell(const kbuf *b, const unsigned char *base, int64_t at) {
    if (is_float(b->dtype)) return (cell){ .f = dtype_load((tn_dtype)b->dtype, base, at) }; /* fits as it is */
    cell x = { .i = dtype_load_int((tn_dtype)b->dtype, base, at) };
    if (b->dtype == TN_BOOL) x.i = -x.i;
    return fit((uint8_t)dtype_reg((tn_dtype)b->dtype), x);
}

static void write_cell(const kbuf *b, unsigned char *base, int64_t at, cell x) {
    if (is_float(b->dtype))
        dtype_store((tn_dtype)b->dtype, base, at, x.f);
    else if (b->dtype == TN_BOOL)
        base[at] = (unsigned char)(x.i & 1);
    else
        dtype_store_int((tn_dtype)b->dtype, base, at, x.i);
}

static int64_t checked(const machine *m, int r, const kins *in, int64_t at) {
    if (at < 0 || at >= m->k->bufs.at[in->buf].elems)
        fail_at(m, r, in->op == K_LOAD ? "reads element" : "writes element", at, m->k->bufs.at[in->buf].elems);
    return at;
}

/* A thread block's accesses: two that race fail whatever came of them. */
static void watch(machine *m, int r, const kins *in, int64_t at, bool store) {
    if (!m->races) return;
    int g = m->k->cluster ? (int)(m->gid % m->k->cluster) : 0;
    int64_t other = (store ? race_store : race_load)(m->races, g, in->buf, at, &m->passed);
    if (other)
        guard_fail(
            m->a->gd, TN_ERR_INTERNAL,
            "kernel %s, instruction %%%d: thread %lld %s element %lld of b%d, which %s accesses without a barrier between",
            m->k->name, r, (long long)m->passed.thread, store ? "writes" : "reads", (long long)at, in->buf,
            other > 0 ? arena_printf(m->a, "thread %lld", (long long)other) : "more than one thread");
}

static bool masks_hold(const machine *m, const kins *in, int lane) {
    for (int i = 0; i < in->n_mask; i++) {
        int64_t e = affine_at(m, in->mask[i].e) + lane * in->mask_lane[i];
        if (e < in->mask[i].lo || e >= in->mask[i].hi) return false;
    }
    return true;
}

/* What is linear in the lanes holds for all where it does for the first and the last. */
static inline bool all_masks_hold(const machine *m, const kins *in) {
    for (int i = 0; i < in->n_mask; i++) {
        int64_t e = affine_at(m, in->mask[i].e), last = e + (in->lanes - 1) * in->mask_lane[i];
        if (e < in->mask[i].lo || e >= in->mask[i].hi || last < in->mask[i].lo || last >= in->mask[i].hi) return false;
    }
    return true;
}

/* Elements from `at` on, a lane each, of which all are accessed and inside. */
static inline bool is_whole(const machine *m, const kins *in, int64_t at) {
    int64_t last = at + (in->lanes - 1) * in->lane_stride, n = m->k->bufs.at[in->buf].elems;
    return at >= 0 && at < n && last >= 0 && last < n && all_masks_hold(m, in);
}

/* The word whose first part is element at. */
static cell read_word(machine *m, int r, const kins *in, int64_t at) {
    uint32_t word = 0;
    int bits = 32 / in->packed;
    for (int p = 0; p < in->packed; p++) {
        int64_t e = checked(m, r, in, at + p * in->packed_stride);
        uint16_t h;
        int64_t part;
        watch(m, r, in, e, false);
        if (in->src == TN_BF16)
            memcpy(&h, m->base[in->buf] + 2 * e, sizeof h), part = h;
        else
            part = dtype_load_int((tn_dtype)in->src, m->base[in->buf], e);
        word |= ((uint32_t)part & (bits == 8 ? 0xffu : 0xffffu)) << (p * bits);
    }
    return (cell){ .i = (int32_t)word };
}

static void load_whole(machine *m, int r, const kins *in, int64_t at) {
    const kbuf *b = &m->k->bufs.at[in->buf];
    const unsigned char *base = m->base[in->buf];
    cell *to = cells_of(m, (reg)r);
    int n = in->lanes;
    int64_t step = in->lane_stride;
    if (b->dtype == TN_F32)
        for (int l = 0; l < n; l++) {
            float x;
            memcpy(&x, base + (at + l * step) * (int64_t)sizeof x, sizeof x);
            to[l].f = (double)x;
        }
    else
        for (int l = 0; l < n; l++) to[l] = read_cell(b, base, at + l * step);
    for (int l = 0; l < n && m->races; l++) watch(m, r, in, at + l * step, false);
}

static void run_load(machine *m, int r, const kins *in) {
    const kbuf *b = &m->k->bufs.at[in->buf];
    int64_t at = place_at(m, in);
    if (!in->dyn && !in->packed && is_whole(m, in, at)) {
        load_whole(m, r, in, at);
        return;
    }
    for (int l = 0; l < in->lanes; l++) {
        if (!masks_hold(m, in, l)) {
            if (in->mode == LOAD_UNMASKED) /* nobody may use it */
                cells_of(m, (reg)r)[l] = is_float(in->dtype) ? (cell){ .f = NAN } : (cell){ .i = 0x5a5a };
            else if (is_float(in->dtype))
                cells_of(m, (reg)r)[l].f = in->imm;
            else
                cells_of(m, (reg)r)[l].i = in->src == TN_BOOL ? -(in->imm_int != 0) : in->imm_int;
            cells_of(m, (reg)r)[l] = fit(in->dtype, cells_of(m, (reg)r)[l]);
            continue;
        }
        int64_t e = at + l * in->lane_stride;
        if (in->dyn) {
            int64_t d = lane_of(m, in->dyn, l).i;
            e += (d < 0 ? 0 : d >= in->dyn_n ? in->dyn_n - 1 : d) * in->dyn_stride;
        }
        if (in->packed) {
            cells_of(m, (reg)r)[l] = read_word(m, r, in, e);
            continue;
        }
        cells_of(m, (reg)r)[l] = read_cell(b, m->base[in->buf], checked(m, r, in, e));
        watch(m, r, in, e, false);
    }
}

static void run_store(machine *m, int r, const kins *in) {
    int64_t at = place_at(m, in);
    bool whole = is_whole(m, in, at);
    for (int l = 0; l < in->lanes; l++)
        if (whole || masks_hold(m, in, l)) {
            if (in->mode == STORE_ASYNC) m->async[in->buf]++;
            int64_t e = whole ? at + l * in->lane_stride : checked(m, r, in, at + l * in->lane_stride);
            watch(m, r, in, e, true);
            write_cell(&m->k->bufs.at[in->buf], m->base[in->buf], e, lane_of(m, in->a, l));
        }
}

static void run_scatter(machine *m, int r, const kins *in) {
    const kbuf *b = &m->k->bufs.at[in->buf];
    uint8_t t = (uint8_t)dtype_reg((tn_dtype)b->dtype);
    for (int l = 0; l < in->lanes; l++) {
        int64_t d = lane_of(m, in->dyn, l).i;
        if (d < 0 || d >= in->dyn_n || !masks_hold(m, in, l)) continue;
        int64_t at = checked(m, r, in, affine_at(m, in->idx) + l * in->lane_stride + d * in->dyn_stride);
        watch(m, r, in, at, true);
        cell old = read_cell(b, m->base[in->buf], at), x = lane_of(m, in->a, l);
        op_code op = kernel_scatter_op(in);
        if (op && is_float(t))
            x.f = eval_element_float(op, old.f, x.f, 0);
        else if (op)
            x.i = eval_element_int(op, TN_I64, old.i, x.i, 0);
        write_cell(b, m->base[in->buf], at, fit(t, x));
    }
}

/* ---- arithmetic ---- */

static inline cell alu_of(op_code op, op_class cls, uint8_t src, uint8_t dtype, cell x, cell y, cell z) {
    cell r;
    if (op == OP_select) return x.i ? y : z;
    if (cls == CL_LOG)
        r.i = ~x.i;
    else if (cls == CL_CMP)
        r.i = -(is_float(src) ? eval_element_compare(op, x.f, y.f) : eval_element_int(op, TN_I64, x.i, y.i, 0));
    else if (is_float(src))
        r.f = eval_element_float(op, x.f, y.f, z.f);
    else
        r.i = eval_element_int(op, TN_I64, x.i, y.i, z.i);
    return fit(dtype, r);
}

static cell alu(op_code op, uint8_t src, uint8_t dtype, cell x, cell y, cell z) {
    return alu_of(op, op_get(op)->cls, src, dtype, x, y, z);
}

static cell cast(tn_dtype to, tn_dtype from, cell x) {
    cell r;
    if (from == TN_BOOL) x.i = x.i != 0;
    if (to == TN_BOOL)
        r.i = -(is_float((uint8_t)from) ? x.f != 0 : x.i != 0);
    else if (dtype_is_float(to))
        r.f = is_float((uint8_t)from) ? x.f : dtype_cast_int_to_float(to, from, x.i);
    else if (dtype_is_float(from))
        r.i = dtype_cast_to_int(to, x.f);
    else
        r.i = dtype_wrap(to, x.i);
    return fit((uint8_t)dtype_reg(to), r);
}

static cell wrap(tn_dtype t, cell x) {
    if (dtype_is_float(t))
        x.f = dtype_round(t, x.f);
    else
        x.i = dtype_wrap(t, x.i);
    return x;
}

/* Part p of a word, as a number of its own. */
static int64_t part_of(const kins *in, int64_t word, int p, bool is_signed) {
    uint32_t w = (uint32_t)(uint64_t)word >> (32 / in->packed * p);
    return in->packed == 2 ? (int16_t)(uint16_t)w : is_signed ? (int8_t)(uint8_t)w : (uint8_t)w;
}

static cell add_parts(const kins *in, cell acc, int64_t a, int64_t b) {
    for (int p = in->packed - 1; p >= 0; p--) {
        int64_t x = part_of(in, a, p, false), y = part_of(in, b, p, true);
        if (in->dtype == TN_F32) /* the product is exact in float, what it is added to is not */
            acc.f = (double)(float)((double)bf16_to_f32((uint16_t)x) * (double)bf16_to_f32((uint16_t)y) + acc.f);
        else
            acc = fit(in->dtype, (cell){ .i = acc.i + x * y });
    }
    return acc;
}

static void run_update(machine *m, int r, const kins *in) {
    (void)r;
    cell *acc = cells_of(m, in->c);
    const cell *a = cells_of(m, in->a), *b = cells_of(m, in->b);
    int n = in->lanes, a_by = m->regs[in->a].by, b_by = m->regs[in->b].by;
    if (in->packed)
        for (int l = 0; l < n; l++) acc[l] = add_parts(in, acc[l], a[l * a_by].i, b[l * b_by].i);
    else if (in->alu == OP_NIL)
        for (int l = 0; l < n; l++) acc[l] = a[l * a_by];
    else if (in->alu != OP_dot)
        for (int l = 0; l < n; l++) acc[l] = alu((op_code)in->alu, in->dtype, in->dtype, acc[l], a[l * a_by], a[l * a_by]);
    else if (in->dtype == TN_F64)
        for (int l = 0; l < n; l++) acc[l].f = fma(a[l * a_by].f, b[l * b_by].f, acc[l].f);
    else if (in->dtype == TN_F32) /* the product is exact in double */
        for (int l = 0; l < n; l++) acc[l].f = (double)(float)(a[l * a_by].f * b[l * b_by].f + acc[l].f);
    else
        for (int l = 0; l < n; l++) {
            uint64_t sum = (uint64_t)a[l * a_by].i * (uint64_t)b[l * b_by].i + (uint64_t)acc[l].i;
            acc[l] = fit(in->dtype, (cell){ .i = (int64_t)sum });
        }
}

/* The first best wins; a NaN wins over everything and the first NaN stays. */
static void run_arg_update(machine *m, int r, const kins *in) {
    (void)r;
    cell *best = cells_of(m, in->c), *index = cells_of(m, in->b);
    bool most = in->alu == OP_argmax;
    for (int l = 0; l < in->lanes; l++) {
        cell x = lane_of(m, in->a, l);
        bool better = index[l].i == -1;
        if (is_float(in->dtype) && !better)
            better = !isnan(best[l].f) && (isnan(x.f) || (most ? x.f > best[l].f : x.f < best[l].f));
        else if (!better)
            better = most ? x.i > best[l].i : x.i < best[l].i;
        if (!better) continue;
        best[l] = x;
        index[l].i = affine_at(m, in->idx) + l * in->lane_stride;
    }
}

static void run_lane_reduce(machine *m, int r, const kins *in) {
    cell h[64];
    memcpy(h, cells_of(m, in->a), sizeof *h * (size_t)in->combined);
    for (int half = (int)in->combined / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; l++) h[l] = alu((op_code)in->alu, in->dtype, in->dtype, h[l], h[l + half], h[l]);
    cells_of(m, (reg)r)[0] = h[0];
}

static void run_const(machine *m, int r, const kins *in) {
    cell x = is_float(in->dtype) ? (cell){ .f = in->imm } : (cell){ .i = in->imm_int };
    for (int l = 0; l < in->lanes; l++) cells_of(m, (reg)r)[l] = fit(in->dtype, x);
}

static void run_index(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++)
        cells_of(m, (reg)r)[l] = fit(in->dtype, (cell){ .i = affine_at(m, in->idx) + l * in->lane_stride });
}

static void run_alu(machine *m, int r, const kins *in) {
    op_code op = (op_code)in->alu;
    op_class cls = op_get(op)->cls;
    for (int l = 0; l < in->lanes; l++)
        cells_of(m, (reg)r)[l] =
            alu_of(op, cls, in->src, in->dtype, lane_of(m, in->a, l), lane_of(m, in->b, l), lane_of(m, in->c, l));
}

static void run_cast(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++)
        cells_of(m, (reg)r)[l] = cast((tn_dtype)in->dtype, (tn_dtype)in->src, lane_of(m, in->a, l));
}

static void run_bitcast(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++) {
        cell x = lane_of(m, in->a, l);
        if (is_float(in->src)) x.i = eval_bits_of((tn_dtype)in->src, x.f);
        cells_of(m, (reg)r)[l] = is_float(in->dtype) ? (cell){ .f = eval_float_of((tn_dtype)in->dtype, x.i) } : x;
    }
}

static void run_wrap(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++) cells_of(m, (reg)r)[l] = wrap((tn_dtype)in->src, lane_of(m, in->a, l));
}

static void run_random(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++) {
        int64_t at = affine_at(m, in->idx) + l * in->lane_stride;
        cells_of(m, (reg)r)[l].f = (double)random_uniform_at(lane_of(m, in->a, l).i, in->stream, at);
    }
}

static void run_zip(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++) {
        bool of_b;
        int from = kernel_zip_lane(in, l, &of_b);
        cells_of(m, (reg)r)[l] = cells_of(m, of_b ? in->b : in->a)[from];
    }
}

static void run_lanes(machine *m, int r, const kins *in) {
    for (int l = 0; l < in->lanes; l++) cells_of(m, (reg)r)[l] = cells_of(m, in->a)[in->first_lane + l];
}

static void run_put(machine *m, int r, const kins *in) {
    (void)r;
    for (int l = 0; l < in->lanes; l++) cells_of(m, in->c)[in->first_lane + l] = lane_of(m, in->a, l);
}

/* The number of its first element stands for a matrix. */
static void run_matrix(machine *m, int r, const kins *in) { cells_of(m, (reg)r)[0].i = affine_at(m, in->idx); }

static double matrix_element(machine *m, int r, reg matrix, int64_t row, int64_t step) {
    const kins *in = &m->k->ins.at[matrix];
    int64_t at = cells_of(m, matrix)[0].i + kernel_matrix_place(in, row, step);
    watch(m, r, in, at, false);
    return read_cell(&m->k->bufs.at[in->buf], m->base[in->buf], checked(m, r, in, at)).f;
}

/* A fragment as a thread has it after the exchange: a row's 16 steps in 4 cells, those of the row 8 below in the next 4. */
static double fragment_element(const machine *m, reg fragment, int half, int step) {
    const kins *in = &m->k->ins.at[fragment];
    uint16_t bits = (uint16_t)((uint64_t)cells_of(m, fragment)[4 * half + step / 4].i >> (step % 4 * 16));
    return (double)(in->src == TN_F16 ? half_to_f32(bits) : bf16_to_f32(bits));
}

static void exchange_fragments(const machine *threads, int n, int r) {
    const kins *in = &threads[0].k->ins.at[r];
    for (int t = 0; t < n; t++)
        for (int half = 0; half < 2; half++)
            for (int step = 0; step < KERNEL_MATRIX_STEPS; step++) {
                const machine *from = &threads[t / 4 * 4 + step % 8 / 2];
                float x = (float)cells_of(from, in->a)[in->first_lane + step / 8 * 4 + half * 2 + step % 2].f;
                uint64_t bits = in->src == TN_F16 ? half_from_f32(x) : bf16_from_f32(x);
                cell *to = &cells_of(&threads[t], (reg)r)[4 * half + step / 4];
                if (step % 4 == 0) to->i = 0;
                to->i = (int64_t)((uint64_t)to->i | bits << (step % 4 * 16));
            }
}

/* In double, rounded once: units add up more coarsely, each kind in its own way. Lanes come in fours: two columns of B in a row
 * of A, then in the one 8 below. */
static void run_mma(machine *m, int r, const kins *in) {
    double a[2][KERNEL_MATRIX_STEPS], b[2][KERNEL_MATRIX_STEPS];
    bool fragment = m->k->ins.at[in->a].op == K_FRAGMENT;
    for (int l = 0; l < in->lanes; l++) {
        int row, column, below = l / 2 % 2;
        kernel_fragment(m->tid, l, &row, &column);
        double sum = cells_of(m, in->c)[l].f, *x = a[below], *y = b[l % 2];
        for (int step = 0; step < KERNEL_MATRIX_STEPS && l < 4; step++)
            x[step] = fragment ? fragment_element(m, in->a, below, step) : matrix_element(m, r, in->a, row, step);
        for (int step = 0; step < KERNEL_MATRIX_STEPS && !below; step++) y[step] = matrix_element(m, r, in->b, column, step);
        for (int step = 0; step < KERNEL_MATRIX_STEPS; step++) sum += x[step] * y[step];
        cells_of(m, in->c)[l].f = (double)(float)sum;
    }
}

static void run_nothing(machine *m, int r, const kins *in) { (void)m, (void)r, (void)in; }

static void run_flow(machine *m, int r, const kins *in) { /* run_on and meet do these */
    guard_fail(m->a->gd, TN_ERR_INTERNAL, "kernel %s, instruction %%%d: op code %d cannot run", m->k->name, r, in->op);
}

typedef void (*run_fn)(machine *m, int r, const kins *in);
static const run_fn run_row[N_KOPS] = {
    [K_NIL] = run_flow,
#define KERNEL_INS(op, text, flags, uses, check, eval) [K_##op] = run_##eval,
#include "ir/kernel.def"
};

/* ---- kernels and plans ---- */

static void match_loops(machine *m) {
    VEC(int) open = { 0 };
    for (int i = 1; i < m->k->ins.n; i++) {
        if (m->k->ins.at[i].op == K_LOOP) VEC_PUSH(m->a, &open, i);
        if (m->k->ins.at[i].op != K_END) continue;
        if (open.n == 0) guard_fail(m->a->gd, TN_ERR_INTERNAL, "kernel %s, instruction %%%d: no loop to close", m->k->name, i);
        m->end[i] = open.at[--open.n];
        m->end[m->end[i]] = i;
    }
    if (open.n)
        guard_fail(m->a->gd, TN_ERR_INTERNAL, "kernel %s, instruction %%%d: the loop is not closed", m->k->name,
                   open.at[open.n - 1]);
}

static void find_nests(machine *m) {
    const kernel *k = m->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        nest *x = &m->nests[i];
        if (in->op != K_LOOP || in->par < PAR_GRID_THREADS) continue;
        if (in[-1].op == K_LOOP && in[-1].par == in->par) {
            *x = x[-1];
            continue;
        }
        *x = (nest){ .head = i, .n = kernel_nest(k, (reg)i), .size = kernel_nest_size(k, (reg)i) };
        x->count = kernel_nest_blocks(k, (reg)i, &x->first);
    }
}

/* The next iteration of a nest that is this thread's: its variables. False when there is none. */
static bool deal(machine *m, const nest *x, bool first) {
    const kins *in = &m->k->ins.at[x->head];
    int64_t gid = m->gid - x->first;
    int64_t id = in->par == PAR_BLOCKS          ? gid
                 : in->par == PAR_BLOCK_THREADS ? m->tid
                                                : gid * m->k->block_threads + m->tid,
            all = in->par == PAR_BLOCKS          ? x->count
                  : in->par == PAR_BLOCK_THREADS ? m->k->block_threads
                                                 : x->count * m->k->block_threads,
            rest = first ? id : m->iteration[x->head] + all;
    if (gid < 0 || gid >= x->count || rest >= x->size) return false;
    m->iteration[x->head] = rest;
    for (int i = x->n - 1; i >= 0; i--) {
        int64_t trips = (in[i].hi - in[i].lo + in[i].step - 1) / in[i].step;
        m->var[in[i].var] = in[i].lo + rest % trips * in[i].step;
        rest /= trips;
    }
    return true;
}

/* Of the loop that begins or ends at m->at: to just before what is run next. */
static void run_iterations(machine *m, const kins *in) {
    int i = m->at, other = m->end[i];
    const kins *loop = in->op == K_LOOP ? in : &m->k->ins.at[other];
    if (loop->par >= PAR_GRID_THREADS) {
        const nest *x = &m->nests[in->op == K_LOOP ? i : other];
        m->at = deal(m, x, in->op == K_LOOP) ? x->head + x->n - 1 : m->end[x->head];
    } else if (in->op == K_LOOP) {
        m->var[in->var] = in->lo;
        if (in->lo >= in->hi || (in->a && !cells_of(m, in->a)[0].i)) m->at = other;
    } else {
        m->var[loop->var] += loop->step;
        if (m->var[loop->var] < loop->hi && loop->par != PAR_LAST) m->at = other;
    }
}

/* From m->at to the next meeting of the thread block's threads or the end. */
static void run_on(machine *m) {
    const kernel *k = m->k;
    for (; m->at < k->ins.n; m->at++) {
        const kins *in = &k->ins.at[m->at];
        run_fn run = run_row[in->op < N_KOPS ? in->op : K_NIL];
        if (run != run_flow)
            run(m, m->at, in);
        else if (in->op == K_LOOP || in->op == K_END)
            run_iterations(m, in);
        else if (kernel_syncs(in))
            return;
        else
            run_flow(m, m->at, in);
    }
}

/* Whether (x, i) beats (y, j). */
static bool beats(const kins *in, cell x, int64_t i, cell y, int64_t j) {
    bool most = in->alu == OP_argmax;
    if (i < 0 || j < 0) return i >= 0;
    if (is_float(in->src)) {
        if (isnan(x.f) || isnan(y.f)) return isnan(x.f) && (!isnan(y.f) || i < j);
        return x.f == y.f ? i < j : most ? x.f > y.f : x.f < y.f;
    }
    return x.i == y.i ? i < j : most ? x.i > y.i : x.i < y.i;
}

/* All threads stand at the meeting r: what they get from each other. */
static void combine(machine *m, const machine *threads, int n, int r) {
    const kins *in = &m->k->ins.at[r];
    if (in->op == K_BARRIER) return;
    if (in->op == K_FRAGMENT) {
        exchange_fragments(threads, n, r);
        return;
    }
    cell *x = ARENA_ARRAY(m->a, cell, n), *y = ARENA_ARRAY(m->a, cell, n);
    for (int t = 0; t < n; t++) x[t] = cells_of(&threads[t], in->a)[0], y[t] = cells_of(&threads[t], in->b)[0];
    if (in->op == K_BLOCK_REDUCE && in->b) {
        cell all = y[0];
        for (int t = 0; t < n; t++) {
            cells_of(&threads[t], (reg)r)[0] = all;
            all = alu((op_code)in->alu, in->dtype, in->dtype, all, x[t], all);
        }
        return;
    }
    int wide = in->op == K_BLOCK_REDUCE && in->width ? (int)in->width : n; /* so many combine theirs */
    int apart = in->op == K_BLOCK_REDUCE && in->lane_stride ? (int)in->lane_stride : 1;
    for (int half = wide / 2; half >= 1; half /= 2)
        for (int t = 0; t + half * apart < n; t++) {
            if (t / apart % wide >= half) continue;
            if (in->op == K_BLOCK_REDUCE)
                x[t] = alu((op_code)in->alu, in->dtype, in->dtype, x[t], x[t + half * apart], x[t]);
            else if (beats(in, x[t + half], y[t + half].i, x[t], y[t].i))
                x[t] = x[t + half], y[t] = y[t + half];
        }
    for (int t = 0; t < n; t++)
        cells_of(&threads[t], (reg)r)[0] = in->op == K_BLOCK_REDUCE ? x[t - t / apart % wide * apart] : y[0];
}

/* Threads that exchange registers alone do not wait for each other's memory. */
static bool is_barrier(const kins *in) {
    if (in->op == K_FRAGMENT) return false;
    return in->op != K_BLOCK_REDUCE || !in->width || in->width * (in->lane_stride ? in->lane_stride : 1) > 32;
}

/* To the next meeting of the cluster, or the end. */
static void run_group(machine *threads, int n) {
    const kernel *k = threads[0].k;
    for (int round = 0;; round++) {
        for (int i = 0; i < n; i++) run_on(&threads[round % 2 ? n - 1 - i : i]);
        int at = threads[0].at;
        for (int i = 0; i < n; i++)
            if (threads[i].at != at) fail_at(&threads[0], at, "only some threads come here:", i, n);
        if (at == k->ins.n || (k->ins.at[at].op == K_BARRIER && k->ins.at[at].mode)) return;
        combine(&threads[0], threads, n, at);
        for (int i = 0; i < n; i++) threads[i].at++, threads[i].passed.barriers += is_barrier(&k->ins.at[at]);
    }
}

/* `grid_blocks` thread blocks of n threads each that run together. */
static void run_cluster(machine *threads, int grid_blocks, int n) {
    const kernel *k = threads[0].k;
    for (int round = 0; threads[0].at < k->ins.n; round++) {
        for (int g = 0; g < grid_blocks; g++) run_group(threads + (int64_t)(round % 2 ? grid_blocks - 1 - g : g) * n, n);
        int at = threads[0].at;
        for (int g = 0; g < grid_blocks; g++)
            if (threads[(int64_t)g * n].at != at)
                fail_at(&threads[0], at, "only some thread blocks come here:", g, grid_blocks);
        const kins *in = &k->ins.at[at < k->ins.n ? at : 0];
        if (in->op == K_BARRIER && in->mode == BARRIER_MBARRIER) {
            int64_t *async = &threads[0].async[in->buf], all = k->bufs.at[in->buf].elems;
            if (*async != all) fail_at(&threads[0], at, "elements written that are waited for:", *async, all);
            *async = 0;
        }
        for (int i = 0; i < grid_blocks * n; i++)
            threads[i].at++, threads[i].passed.barriers++, threads[i].passed.cluster_barriers++;
    }
}

static void *poisoned(arena *a, int64_t bytes) {
    void *p = arena_alloc(a, bytes > 0 ? (size_t)bytes : 1);
    return memset(p, EVAL_POISON, bytes > 0 ? (size_t)bytes : 1);
}

/* Places of the registers; nil has one: operands that an op does not have. */
static const place *place_registers(const kernel *k, arena *a, int *n_cells) {
    place *regs = ARENA_ARRAY(a, place, k->ins.n);
    *n_cells = 1;
    for (int i = 1; i < k->ins.n; i++) {
        regs[i] = (place){ *n_cells, k->ins.at[i].lanes > 1 };
        *n_cells += k->ins.at[i].lanes;
    }
    return regs;
}

static machine make_thread(const kernel *k, unsigned char *const *base, const place *regs, int n_cells, arena *a) {
    machine m = { .k = k,
                  .a = a,
                  .base = ARENA_ARRAY(a, unsigned char *, k->bufs.n + 1),
                  .cells = ARENA_ARRAY(a, cell, n_cells),
                  .regs = regs };
    m.var = ARENA_ARRAY(a, int64_t, k->vars.n + 1);
    m.iteration = ARENA_ARRAY(a, int64_t, k->block_threads ? k->ins.n : 1);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        m.base[b] = kb->kind == KB_LOCAL ? poisoned(a, kb->elems * (int64_t)dtype_size((tn_dtype)kb->dtype)) : base[b];
    }
    return m;
}

static size_t shared_bytes(const kbuf *b) { return (size_t)b->elems * dtype_size((tn_dtype)b->dtype); }

void eval_kernel(const kernel *k, unsigned char *const *base, arena *a) {
    if (k->params) guard_fail(a->gd, TN_ERR_INVAL, "kernel %s: its dims have no values", k->name);
    int n = k->block_threads ? k->block_threads : 1, grid_blocks = k->cluster ? k->cluster : 1;
    unsigned char **shared = ARENA_ARRAY(a, unsigned char *, k->bufs.n + 1);
    machine *threads = ARENA_ARRAY(a, machine, grid_blocks * n);
    int n_cells;
    const place *regs = place_registers(k, a, &n_cells);
    for (int g = 0; g < grid_blocks; g++) {
        for (int b = 0; b < k->bufs.n; b++) {
            const kbuf *kb = &k->bufs.at[b];
            if (kb->kind == KB_SHARED || (kb->kind == KB_DISTRIBUTED && g == 0))
                shared[b] = arena_alloc(a, shared_bytes(kb) + 1);
            else if (kb->kind != KB_DISTRIBUTED)
                shared[b] = kbuf_is_local(kb) ? NULL : base[b];
        }
        for (int t = 0; t < n; t++) threads[g * n + t] = make_thread(k, shared, regs, n_cells, a);
    }
    threads[0].end = ARENA_ARRAY(a, int, k->ins.n);
    threads[0].nests = ARENA_ARRAY(a, nest, k->ins.n);
    int64_t *async = ARENA_ARRAY(a, int64_t, k->bufs.n + 1);
    race_log *races = k->block_threads ? race_log_make(k, base, a) : NULL;
    match_loops(&threads[0]);
    find_nests(&threads[0]);
    for (int64_t first = 0; first < (k->block_threads ? k->grid_blocks : 1); first += grid_blocks) {
        for (int i = 0; i < grid_blocks * n; i++) {
            machine *m = &threads[i];
            m->end = threads[0].end, m->nests = threads[0].nests, m->at = 1, m->tid = i % n, m->gid = first + i / n,
            m->async = async, m->races = races, m->passed.block = (int32_t)(first + i / n) + 1,
            m->passed.thread = (int32_t)((first + i / n) * n + m->tid) + 1;
            if (races && m->tid == 0) race_log_clear(races, i / n);
            for (int b = 0; b < k->bufs.n && m->tid == 0; b++)
                if (k->bufs.at[b].kind >= KB_SHARED) memset(m->base[b], EVAL_POISON, shared_bytes(&k->bufs.at[b]));
        }
        run_cluster(threads, grid_blocks, n);
    }
}

void eval_kernel_at(const kernel *k, const int64_t *dims, unsigned char *const *base, arena *a) {
    eval_kernel(kernel_at(k, dims, a), base, a);
}

/* Lanes that lie side by side are touched together. */
static void touch_lanes(const machine *m, int r, const kins *in, int thread, eval_touch_fn f, void *ud) {
    int64_t size = (int64_t)dtype_size((tn_dtype)m->k->bufs.at[in->buf].dtype), at = place_at(m, in);
    eval_touch x = { in->buf, thread, 0, 0, in->op == K_STORE, in->op == K_STORE && in->mode == STORE_NONTEMPORAL };
    int parts = in->packed ? in->packed : 1;
    if (!in->n_mask && parts == 1 && (in->lane_stride == 1 || in->lane_stride == 0 || in->lanes == 1)) {
        int64_t n = in->lane_stride ? in->lanes : 1;
        checked(m, r, in, at + n - 1);
        x.at = size * checked(m, r, in, at), x.bytes = size * n;
        f(&x, ud);
        return;
    }
    for (int l = 0; l < in->lanes; l++) {
        if (!masks_hold(m, in, l)) continue;
        for (int p = 0; p < parts; p++) {
            int64_t e = size * checked(m, r, in, at + l * in->lane_stride + p * in->packed_stride);
            if (x.bytes && e == x.at + x.bytes) {
                x.bytes += size;
                continue;
            }
            if (x.bytes && e >= x.at && e < x.at + x.bytes) continue; /* all lanes read one element */
            if (x.bytes) f(&x, ud);
            x.at = e, x.bytes = size;
        }
    }
    if (x.bytes) f(&x, ud);
}

static void touch_line(const machine *m, const kins *in, int thread, eval_touch_fn f, void *ud) {
    const kbuf *b = &m->k->bufs.at[in->buf];
    int64_t at = affine_at(m, in->idx);
    if (at >= 0 && at < b->elems)
        f(&(eval_touch){ in->buf, thread, at * (int64_t)dtype_size((tn_dtype)b->dtype), 1, false, false }, ud);
}

const char *eval_touches_unknown(const kernel *k) {
    if (k->params) return "a run gives its sizes";
    if (k->block_threads) return "it is a GPU's";
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_SCATTER || (k->ins.at[i].op == K_LOAD && k->ins.at[i].dyn) ||
            (k->ins.at[i].op == K_LOOP && k->ins.at[i].a))
            return "values decide what it touches";
    return NULL;
}

double eval_kernel_steps(const kernel *k) {
    double all = 0, runs[64] = { 1 };
    int depth = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        all += runs[depth];
        if (in->op == K_END && depth > 0) depth--;
        if (in->op != K_LOOP || depth + 1 == (int)COUNT_OF(runs)) continue;
        int64_t n = in->step > 0 ? (in->hi - in->lo + in->step - 1) / in->step : 1;
        runs[depth + 1] = runs[depth] * (in->par == PAR_LAST ? 1 : (double)(n > 0 ? n : 0));
        depth++;
    }
    return all;
}

/* Whose iteration of the parallel loop it is: threads have as many of its whole steps each, the last one has the rest. */
static int thread_at(const machine *m, const kins *loop, int threads) {
    int64_t steps = (loop->hi - loop->lo) / loop->step, i = (m->var[loop->var] - loop->lo) / loop->step;
    return loop->par == PAR_LAST || i >= steps ? threads - 1 : (int)(((i + 1) * threads - 1) / steps);
}

void eval_kernel_touches(const kernel *k, int threads, eval_touch_fn f, void *ud, arena *a) {
    const char *unknown = eval_touches_unknown(k);
    if (unknown) guard_fail(a->gd, TN_ERR_UNSUPPORTED, "kernel %s: %s", k->name, unknown);
    machine m = { .k = k, .a = a, .var = ARENA_ARRAY(a, int64_t, k->vars.n + 1), .end = ARENA_ARRAY(a, int, k->ins.n) };
    match_loops(&m);
    int thread = 0;
    for (m.at = 1; m.at < k->ins.n; m.at++) {
        const kins *in = &k->ins.at[m.at];
        if (in->op == K_LOOP || in->op == K_END) {
            const kins *loop = in->op == K_LOOP ? in : &k->ins.at[m.end[m.at]];
            run_iterations(&m, in);
            if (loop->par == PAR_THREADS || loop->par == PAR_LAST) thread = thread_at(&m, loop, threads);
        } else if (in->op == K_LOAD || in->op == K_STORE) {
            touch_lanes(&m, m.at, in, thread, f, ud);
        } else if (in->op == K_PREFETCH) {
            touch_line(&m, in, thread, f, ud);
        }
    }
}

eval_memory *eval_memory_make(const plan *p, arena *a) {
    eval_memory *m = ARENA_NEW(a, eval_memory);
    m->temp = poisoned(a, p->temp_bytes);
    m->state = arena_alloc(a, (size_t)p->state_bytes + 1);
    m->shared = arena_alloc(a, (size_t)p->shared_bytes + 1);
    m->consts = poisoned(a, p->const_bytes);
    m->io = ARENA_ARRAY(a, void *, p->io.n + 1);
    for (int i = 0; i < p->io.n; i++) m->io[i] = poisoned(a, p->io.at[i].bytes);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        const void *data = graph_get(p->g, b->node)->data;
        if (!data || !b->bytes) continue;
        if (b->kind == PB_STATE) pbuf_fill(b, data, (b->slot == SLOT_SHARED ? m->shared : m->state) + b->offset);
        if (b->kind == PB_CONST) pbuf_fill(b, data, m->consts + b->offset);
    }
    return m;
}

typedef struct plan_run {
    const plan *p;
    eval_memory *m;
    arena *a;
    int64_t *moved;         /* [io.n] bytes, in this iteration */
    unsigned char **window; /* [n_windows] the same: where each is */
    int64_t steps;
    const int64_t *lengths;
} plan_run;

/* Where so many bytes of a buffer are; who: for the text of an error. */
static unsigned char *place_of(const plan_run *r, const pbuf *pb, int64_t bytes, const char *who) {
    const plan *p = r->p;
    const eval_memory *m = r->m;
    unsigned char *slot;
    int64_t size;
    switch (pb->slot) {
    case SLOT_TEMP:
        slot = m->temp, size = p->temp_bytes;
        break;
    case SLOT_STATE:
        slot = m->state, size = p->state_bytes;
        break;
    case SLOT_SHARED:
        slot = m->shared, size = p->shared_bytes;
        break;
    case SLOT_CONST:
        slot = m->consts, size = p->const_bytes;
        break;
    default:
        if (pb->kind == PB_WINDOW) return r->window[pb->slot - SLOT_IO - p->io.n];
        slot = (unsigned char *)m->io[pb->slot - SLOT_IO] + r->moved[pb->slot - SLOT_IO],
        size = p->io.at[pb->slot - SLOT_IO].bytes;
        break;
    }
    if (pb->offset < 0 || pb->offset + bytes > size)
        guard_fail(r->a->gd, TN_ERR_INTERNAL, "%s: a buffer ends at byte %lld of %lld", who, (long long)(pb->offset + bytes),
                   (long long)size);
    return slot + pb->offset;
}

static void run_launch(const plan_run *r, const pkernel *pk) {
    unsigned char **base = ARENA_ARRAY(r->a, unsigned char *, pk->k->bufs.n + 1);
    for (int b = 0; b < pk->k->bufs.n; b++) {
        const kbuf *kb = &pk->k->bufs.at[b];
        if (!kbuf_is_local(kb))
            base[b] =
                place_of(r, &r->p->bufs.at[pk->args[b].buf], kb->elems * (int64_t)dtype_size((tn_dtype)kb->dtype), pk->k->name);
    }
    eval_kernel(pk->k, base, r->a);
}

enum { MOST_ITERATIONS = 100000 };
static bool run_steps(const plan_run *r, int i, int end);

static void step_loop(const plan_run *r, int i) {
    const pstep *x = &r->p->steps.at[i];
    for (int64_t step = 0; step < r->steps; step++) {
        for (int k = 0; k < x->n_rings; k++) {
            int io = r->p->bufs.at[x->rings[k].buf].io;
            r->moved[io] = r->lengths && r->lengths[io] ? step % r->lengths[io] * x->rings[k].stride : 0;
        }
        run_steps(r, i + 1, pstep_end(r->p, i));
    }
}

static void run_counted(const plan_run *r, int i) {
    const pstep *x = &r->p->steps.at[i];
    int64_t times = x->times, count;
    if (x->count >= 0) {
        memcpy(&count, place_of(r, &r->p->bufs.at[x->count], 8, "a count"), sizeof count);
        if (count < times) times = count;
    }
    for (int64_t n = 0; n < times; n++) {
        for (int k = 0; k < x->n_rings; k++) {
            const pbuf *b = &r->p->bufs.at[x->rings[k].buf], *of = &r->p->bufs.at[b->window_of];
            r->window[b->slot - SLOT_IO - r->p->io.n] =
                place_of(r, of, of->bytes, "a window") + (x->backward ? times - 1 - n : n) * x->rings[k].stride;
        }
        if (!run_steps(r, i + 1, pstep_end(r->p, i))) return;
    }
}

static void run_repeat(const plan_run *r, int i) {
    if (r->p->steps.at[i].times) {
        run_counted(r, i);
        return;
    }
    for (int64_t n = 0; run_steps(r, i + 1, pstep_end(r->p, i)); n++)
        if (n == MOST_ITERATIONS)
            guard_fail(r->a->gd, TN_ERR_UNSUPPORTED, "step %d: a loop has not ended after %d iterations", i, MOST_ITERATIONS);
}

/* Steps [i, end). False: the innermost repeat is to end. */
static bool run_steps(const plan_run *r, int i, int end) {
    for (; i < end; i = pstep_end(r->p, i)) {
        const pstep *x = &r->p->steps.at[i];
        bool cond = pstep_is_conditional(x) && *place_of(r, &r->p->bufs.at[x->cond], 1, "a condition");
        int part = i + 1 + x->n_then;
        if (x->kind == PSTEP_LAUNCH) run_launch(r, &r->p->kernels.at[x->kernel]);
        if (x->kind == PSTEP_LOOP) step_loop(r, i);
        if (x->kind == PSTEP_REPEAT) run_repeat(r, i);
        if (x->kind == PSTEP_LEAVE && !cond) return false;
        if (x->kind == PSTEP_BRANCH && !run_steps(r, cond ? i + 1 : part, cond ? part : pstep_end(r->p, i))) return false;
    }
    return true;
}

void eval_plan_n(const plan *p, eval_memory *m, int64_t steps, const int64_t *lengths, arena *a) {
    plan_run r = { p,     m,      a, ARENA_ARRAY(a, int64_t, p->io.n + 1), ARENA_ARRAY(a, unsigned char *, p->n_windows + 1),
                   steps, lengths };
    run_steps(&r, 0, p->steps.n);
}
void eval_plan(const plan *p, eval_memory *m, arena *a) { eval_plan_n(p, m, 1, NULL, a); }
