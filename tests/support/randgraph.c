/* randgraph.c - random valid graphs: randgraph of support.h.
 *
 * A pool holds the values made so far, each with the interval its elements lie in. A step picks a kind of op, operands from the
 * pool (recent ones more often), brings them into the op's domain with a scale and a shift or a tanh, and puts the result into
 * the pool, scaled down when its interval has grown. So values stay finite, however deep the graph gets. Values that nothing
 * reads at the end become outputs. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>

enum { MAX_OUT_RANK = 6, TAME = 32 };

typedef struct entry {
    val v;
    double lo, hi;
} entry;

typedef struct gen {
    graph *g;
    arena *a;
    rng r, side; /* side: of what is put in without other graphs becoming others */
    randgraph_opts o;
    VEC(entry) pool;
    tn_dtype main_float;
    int n_names;
} gen;

#define MASK(t) (1u << (t))
enum {
    FLOATS = MASK(TN_F32) | MASK(TN_F64) | MASK(TN_F16) | MASK(TN_BF16),
    INTS = MASK(TN_I8) | MASK(TN_I32) | MASK(TN_I64) | MASK(TN_U8) | MASK(TN_I16) | MASK(TN_U16) | MASK(TN_U32) | MASK(TN_U64),
    INDICES = MASK(TN_I32) | MASK(TN_I64),
    BOOLS = MASK(TN_BOOL),
    ANY = FLOATS | INTS | BOOLS
};

static const node *at(const gen *n, entry x) { return graph_get(n->g, x.v); }
static tn_dtype dtype_of(const gen *n, entry x) { return at(n, x)->dtype; }
static int64_t pick(gen *n, int64_t count) { return rng_below(&n->r, count); }
static bool chance(gen *n, double p) { return rng_chance(&n->r, p); }

/* ---- intervals ---- */

static void dtype_interval(tn_dtype t, double *lo, double *hi) {
    *lo = dtype_info(t)->lo;
    *hi = t == TN_I64 ? 0x1p63 : dtype_info(t)->hi;
}

/* The entry of v; integers outside of their dtype wrap around and may be anything. */
static entry make_entry(const gen *n, val v, double lo, double hi) {
    tn_dtype t = graph_get(n->g, v)->dtype;
    if (!dtype_is_float(t)) {
        double a, b;
        dtype_interval(t, &a, &b);
        if (!(lo >= a && hi <= b)) lo = a, hi = b;
    }
    return (entry){ v, lo, hi };
}

static val splat_like(gen *n, entry x, double value) { return graph_splat_like(n->g, x.v, value); }

static entry scaled(gen *n, entry x, double s) {
    val v = graph_binary(n->g, OP_mul, x.v, splat_like(n, x, s));
    return (entry){ v, fmin(x.lo * s, x.hi * s), fmax(x.lo * s, x.hi * s) };
}
static entry shifted(gen *n, entry x, double b) {
    return (entry){ graph_binary(n->g, OP_add, x.v, splat_like(n, x, b)), x.lo + b, x.hi + b };
}

/* x, or something made from it that lies in [lo, hi]. */
static entry fit(gen *n, entry x, double lo, double hi) {
    if (x.lo >= lo && x.hi <= hi) return x;
    if (!dtype_is_float(dtype_of(n, x))) { /* the remainder of a constant, shifted */
        double m = floor(hi - lo + 1);
        entry y = make_entry(n, graph_binary(n->g, OP_mod, x.v, splat_like(n, x, m)), 0, m - 1);
        return lo == 0 ? y
                       : make_entry(n, graph_binary(n->g, OP_add, y.v, splat_like(n, y, ceil(lo))), ceil(lo), ceil(lo) + m - 1);
    }
    double mid = (lo + hi) / 2, half = (hi - lo) / 2 * 0.95;
    if (fmax(fabs(x.lo), fabs(x.hi)) < 8 && chance(n, 0.3)) {
        x = (entry){ graph_unary(n->g, OP_tanh, x.v), -1, 1 };
    } else if (x.hi - x.lo < 1e-3) {
        return shifted(n, scaled(n, x, 0), mid);
    }
    double s = fmin(2 * half / (x.hi - x.lo), 1e4);
    x = scaled(n, x, s);
    double b = mid - (x.lo + x.hi) / 2;
    return fabs(b) < 1e-6 ? x : shifted(n, x, b);
}

/* Keeps magnitudes small: a factor that is a power of two. */
static entry tame(gen *n, entry x) {
    double size = fmax(fabs(x.lo), fabs(x.hi));
    if (!dtype_is_float(dtype_of(n, x)) || !(size > TAME)) return x;
    return scaled(n, x, exp2(-ceil(log2(size / 4))));
}

static entry push(gen *n, entry x) {
    x = tame(n, x);
    VEC_PUSH(n->a, &n->pool, x);
    return x;
}
static entry push_val(gen *n, val v, double lo, double hi) { return push(n, make_entry(n, v, lo, hi)); }

/* ---- sources ---- */

static bool can(const gen *n, uint32_t mask) { return (n->o.dtypes & mask) != 0; }

/* One of the mask's dtypes that the options allow, most often the graph's own float; where they allow none, one of the mask. */
static tn_dtype random_dtype(gen *n, uint32_t mask) {
    if (can(n, mask)) mask &= n->o.dtypes;
    if (mask & MASK(n->main_float) && chance(n, 0.85)) return n->main_float;
    for (;;) {
        tn_dtype t = (tn_dtype)pick(n, TN_N_DTYPES);
        if (mask >> t & 1) return t;
    }
}

static int random_dims(gen *n, int64_t *dims) {
    static const uint8_t size[] = { 1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33 };
    int rank = (int)pick(n, 5);
    int64_t count = 1;
    for (int d = 0; d < rank; d++) {
        dims[d] = size[pick(n, (int64_t)COUNT_OF(size))];
        if (!n->o.no_zero_size && chance(n, 0.005)) dims[d] = 0;
        if (count * dims[d] > n->o.max_elems / 2) dims[d] = 1;
        count *= dims[d] ? dims[d] : 1;
    }
    return rank;
}

static val source(gen *n, op_code op, tn_dtype t, int rank, const int64_t *dims, const void *data) {
    spec s = { .op = op, .dtype = t, .rank = rank, .dims = dims, .data = data };
    s.name = arena_printf(n->a, "%c%d", op == OP_state ? 's' : 'x', n->n_names++);
    return graph_add(n->g, &s);
}

static void *random_data(gen *n, tn_dtype t, int64_t count, double lo, double hi) {
    void *data = arena_alloc(n->a, (size_t)count * dtype_size(t) + 1);
    fill_random(&n->r, t, data, count, lo, hi);
    return data;
}

/* An input, state, constant, splat or iota of the dtype and dims. */
static entry new_source(gen *n, tn_dtype t, int rank, const int64_t *dims) {
    double lo = t == TN_BOOL                     ? 0
                : dtype_is_float(t)              ? -2
                : dtype_is_unsigned((tn_dtype)t) ? 1
                                                 : -4,
           hi = t == TN_BOOL        ? 1
                : dtype_is_float(t) ? 2
                                    : 8;
    int64_t count = 1;
    for (int d = 0; d < rank; d++) count *= dims[d];
    int kind = (int)pick(n, 10);
    if (kind == 0 && !n->o.no_states) {
        bool zeros = chance(n, 0.2);
        return push_val(n, source(n, OP_state, t, rank, dims, zeros ? NULL : random_data(n, t, count, lo, hi)), fmin(lo, 0),
                        hi);
    }
    if (kind == 1) return push_val(n, graph_const(n->g, t, rank, dims, random_data(n, t, count, lo, hi)), lo, hi);
    if (kind == 2) {
        double v = t == TN_BOOL ? (double)pick(n, 2) : dtype_is_float(t) ? rng_range(&n->r, 0.25, 2) : (double)(1 + pick(n, 8));
        return push_val(n, graph_splat(n->g, t, rank, dims, v), v, v);
    }
    if (kind == 3 && rank > 0 && t != TN_BOOL) {
        int axis = (int)pick(n, rank);
        return push_val(n, graph_iota(n->g, t, rank, dims, axis), 0, fmax(0, (double)dims[axis] - 1));
    }
    return push_val(n, source(n, OP_input, t, rank, dims, NULL), lo, hi);
}

static entry random_source(gen *n, uint32_t mask) {
    int64_t dims[TN_MAX_RANK];
    int rank = random_dims(n, dims);
    return new_source(n, random_dtype(n, mask), rank, dims);
}

/* A value of the pool with an allowed dtype and rank >= min_rank; a new source when there is none. */
static entry choose_ranked(gen *n, uint32_t mask, int min_rank) {
    for (int tries = 0; tries < 30 && n->pool.n > 0; tries++) {
        int64_t k = chance(n, 0.5) ? n->pool.n - 1 - pick(n, n->pool.n < 4 ? n->pool.n : 4) : pick(n, n->pool.n);
        entry x = n->pool.at[k];
        if (mask >> dtype_of(n, x) & 1 && at(n, x)->rank >= min_rank) return x;
    }
    int64_t dims[TN_MAX_RANK];
    int rank = random_dims(n, dims);
    while (rank < min_rank) dims[rank++] = 1 + pick(n, 5);
    return new_source(n, random_dtype(n, mask), rank, dims);
}
static entry choose(gen *n, uint32_t mask) { return choose_ranked(n, mask, 0); }

static bool can_broadcast(const node *from, const node *to) {
    if (from->rank > to->rank) return false;
    for (int d = 0; d < from->rank; d++) {
        int64_t size = from->dims[d];
        if (size != 1 && size != to->dims[to->rank - from->rank + d]) return false;
    }
    return true;
}

/* A value of dtype t in the shape of x: x's neighbour in the pool, a smaller one broadcast, or a source. */
static entry partner(gen *n, entry x, tn_dtype t) {
    for (int tries = 0; tries < 12; tries++) {
        entry y = n->pool.at[pick(n, n->pool.n)];
        const node *yn = at(n, y), *xn = at(n, x);
        if (yn->dtype != t || !can_broadcast(yn, xn) || (y.v == x.v && !chance(n, 0.1))) continue;
        y.v = graph_broadcast(n->g, y.v, xn->rank, xn->dims);
        return y;
    }
    const node *xn = at(n, x);
    return new_source(n, t, xn->rank, xn->dims);
}

/* ---- elementwise ---- */

static uint32_t class_mask(op_class c) {
    switch (c) {
    case CL_FLT:
        return FLOATS;
    case CL_NUM:
    case CL_CMP:
        return FLOATS | INTS;
    case CL_BIT:
        return INTS | BOOLS;
    case CL_INT:
        return INTS;
    case CL_LOG:
        return BOOLS;
    default:
        return FLOATS | INTS | BOOLS;
    }
}

/* The interval of op over the operands' boxes, from a grid of samples: the functions are smooth in their domains. */
static entry sampled(gen *n, val v, op_code op, const entry *x, int n_in) {
    enum { GRID = 16 };
    double lo = INFINITY, hi = -INFINITY;
    bool is_float = dtype_is_float(graph_get(n->g, v)->dtype);
    for (int i = 0; i <= GRID; i++) {
        for (int j = 0; j <= (n_in > 1 ? GRID : 0); j++) {
            double a = x[0].lo + (x[0].hi - x[0].lo) * i / GRID, b = n_in > 1 ? x[1].lo + (x[1].hi - x[1].lo) * j / GRID : 0;
            double f = is_float ? eval_element_float(op, a, b, 0) : 0;
            lo = fmin(lo, f), hi = fmax(hi, f);
        }
    }
    double slack = (hi - lo) / GRID;
    return make_entry(n, v, lo - slack, hi + slack);
}

/* Intervals of integer ops: exact for + - *, a power of two round the operands for the others. */
static entry int_interval(gen *n, val v, op_code op, const entry *x, int n_in) {
    double size = fmax(fabs(x[0].lo), fabs(x[0].hi));
    if (n_in > 1) size = fmax(size, fmax(fabs(x[1].lo), fabs(x[1].hi)));
    if (op == OP_mul) return make_entry(n, v, -size * size, size * size);
    if (op == OP_add || op == OP_sub) return make_entry(n, v, -2 * size, 2 * size);
    if (op == OP_shift_left) return make_entry(n, v, -INFINITY, INFINITY); /* whatever the type holds */
    double reach = exp2(ceil(log2(size + 1)));
    return make_entry(n, v, -reach, reach);
}

static entry elementwise_result(gen *n, val v, op_code op, const entry *x, int n_in) {
    if (dtype_of(n, (entry){ v, 0, 0 }) == TN_BOOL) return make_entry(n, v, 0, 1);
    if (!dtype_is_float(graph_get(n->g, v)->dtype)) return int_interval(n, v, op, x, n_in);
    return sampled(n, v, op, x, n_in);
}

static entry domain(gen *n, op_code op, entry x) {
    const op_info *info = op_get(op);
    if (!dtype_is_float(dtype_of(n, x)) || info->cls == CL_ANY) return x;
    bool has_poles = info->cls == CL_FLT || op == OP_div || op == OP_mod;
    return has_poles ? fit(n, x, info->lo, info->hi) : x;
}

static void step_unary(gen *n) {
    static const uint8_t rows[] = {
#define UNARY(name, ...) OP_##name,
#define BINARY(...)
#define TERNARY(...)
#define OP(...)
#include "ir/ops.def"
    };
    op_code op = (op_code)rows[pick(n, (int64_t)COUNT_OF(rows))];
    if (!can(n, class_mask(op_get(op)->cls))) return;
    entry x = domain(n, op, choose(n, class_mask(op_get(op)->cls)));
    push(n, elementwise_result(n, graph_unary(n->g, op, x.v), op, &x, 1));
}

/* Compares with an offset, so that equal values do not meet after different roundings; == only on whole numbers. */
static entry compare_values(gen *n, op_code op, entry x) {
    if (dtype_is_float(dtype_of(n, x))) {
        if (op == OP_eq || op == OP_ne) x.v = graph_unary(n->g, OP_round, x.v);
        /* most values lie near 0, far inside of their interval */
        double lo = x.lo < 1 && x.hi > -1 ? fmax(x.lo, -1) : x.lo, hi = x.lo < 1 && x.hi > -1 ? fmin(x.hi, 1) : x.hi;
        double c = op == OP_eq || op == OP_ne ? rint(rng_range(&n->r, lo, hi)) : rng_range(&n->r, lo, hi) + 0.0137;
        if (chance(n, 0.5)) return make_entry(n, graph_binary(n->g, op, x.v, splat_like(n, x, c)), 0, 1);
        entry y = partner(n, x, dtype_of(n, x));
        if (op == OP_eq || op == OP_ne)
            y.v = graph_unary(n->g, OP_round, y.v);
        else
            y = shifted(n, y, 0.0137 + (double)pick(n, 3));
        return make_entry(n, graph_binary(n->g, op, x.v, y.v), 0, 1);
    }
    entry y = partner(n, x, dtype_of(n, x));
    return make_entry(n, graph_binary(n->g, op, x.v, y.v), 0, 1);
}

static void step_binary(gen *n) {
    static const uint8_t rows[] = {
#define UNARY(...)
#define BINARY(name, ...) OP_##name,
#define TERNARY(...)
#define OP(...)
#include "ir/ops.def"
    };
    op_code op = (op_code)rows[pick(n, (int64_t)COUNT_OF(rows))];
    if (!can(n, class_mask(op_get(op)->cls))) return;
    entry x = choose(n, class_mask(op_get(op)->cls));
    if (op_get(op)->cls == CL_CMP) {
        push(n, compare_values(n, op, x));
        return;
    }
    entry y = domain(n, op, partner(n, x, dtype_of(n, x)));
    x = domain(n, op, x);
    bool swap = chance(n, 0.3);
    entry in[2] = { swap ? y : x, swap ? x : y };
    push(n, elementwise_result(n, graph_binary(n->g, op, in[0].v, in[1].v), op, in, 2));
}

static void step_select(gen *n) {
    entry x = choose(n, ANY), y = partner(n, x, dtype_of(n, x));
    entry c = { 0 };
    if (dtype_of(n, x) != TN_BOOL && chance(n, 0.6))
        c = compare_values(n, (op_code)(chance(n, 0.5) ? OP_lt : OP_ge), x);
    else
        c = partner(n, x, TN_BOOL);
    push_val(n, graph_select(n->g, c.v, x.v, y.v), fmin(x.lo, y.lo), fmax(x.hi, y.hi));
}

/* Bits of whole numbers, there and back: bits of rounded ones would differ by more than rounding. */
static void step_bitcast(gen *n) {
    if (n->o.no_bitcast) return;
    entry x = choose(n, 1u << TN_I32 | 1u << TN_I64);
    tn_dtype t = dtype_of(n, x);
    val bits = graph_bitcast(n->g, x.v, t == TN_I32 ? TN_F32 : TN_F64);
    push_val(n, graph_bitcast(n->g, bits, t), x.lo, x.hi);
}

static void step_cast(gen *n) {
    entry x = choose(n, ANY);
    tn_dtype t = random_dtype(n, chance(n, 0.5) ? FLOATS : ANY), from = dtype_of(n, x);
    if (dtype_is_float(t) && dtype_is_int(from)) x = fit(n, x, -16, 16);
    if (dtype_is_int(t) && dtype_is_float(from)) x = fit(n, x, dtype_is_unsigned((tn_dtype)t) ? 0 : -20, 20);
    if (dtype_is_int(t) && dtype_is_float(from) && chance(n, 0.5)) x.v = graph_unary(n->g, OP_round, x.v);
    if (t == TN_BOOL && dtype_is_float(from)) x.v = graph_unary(n->g, OP_round, x.v);
    double lo = x.lo, hi = x.hi, a, b;
    dtype_interval(t, &a, &b);
    if (!dtype_is_float(t) && dtype_is_float(from)) lo = fmax(a, floor(lo)), hi = fmin(b, ceil(hi));
    push_val(n, graph_cast(n->g, x.v, t), lo, hi);
}

/* ---- reductions ---- */

static uint64_t random_axes(gen *n, int rank) {
    uint64_t axes = 0;
    for (int d = 0; d < rank; d++)
        if (chance(n, 0.5)) axes |= 1u << d;
    return axes ? axes : 1u << pick(n, rank);
}
static double axes_count(const gen *n, entry x, uint64_t axes) {
    double count = 1;
    for (int d = 0; d < at(n, x)->rank; d++)
        if (axes >> d & 1) count *= (double)at(n, x)->dims[d];
    return count;
}

/* Half types overflow early: brings the magnitude of x down so that `terms` of them stay below 1000. */
static entry before_sum(gen *n, entry x, double terms) {
    double size = fmax(fabs(x.lo), fabs(x.hi)) * fmax(terms, 1);
    return dtype_is_float(dtype_of(n, x)) && size > 1000 ? scaled(n, x, exp2(-ceil(log2(size / 1000)))) : x;
}

static void drop_ones(gen *n, entry x) { /* half the time, reduced axes disappear */
    const node *xn = at(n, x);
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    for (int d = 0; d < xn->rank; d++)
        if (xn->dims[d] != 1) dims[rank++] = xn->dims[d];
    if (chance(n, 0.5)) x.v = graph_reshape(n->g, x.v, rank, dims);
    push(n, x);
}

static void step_reduce(gen *n) {
    static const uint8_t ops[] = { OP_sum, OP_sum, OP_sum, OP_prod, OP_reduce_max, OP_reduce_max, OP_reduce_min };
    entry x = choose_ranked(n, FLOATS | INTS, 1);
    uint64_t axes = random_axes(n, at(n, x)->rank);
    double count = axes_count(n, x, axes);
    op_code op = (op_code)ops[pick(n, (int64_t)COUNT_OF(ops))];
    if (count == 0 && op != OP_prod) op = OP_sum; /* the maximum of nothing is not finite */
    bool is_float = dtype_is_float(dtype_of(n, x));
    if (op == OP_sum) x = before_sum(n, x, count);
    if (op == OP_prod && is_float) x = fit(n, x, 1 - 0.5 / fmax(count, 1), 1 + 0.5 / fmax(count, 1));
    val v = graph_reduce(n->g, op, x.v, axes);
    if (op == OP_sum)
        drop_ones(n, make_entry(n, v, fmin(0, x.lo * count), fmax(0, x.hi * count)));
    else if (op == OP_prod)
        drop_ones(n, make_entry(n, v, is_float ? 0.4 : -INFINITY, is_float ? 1.8 : INFINITY));
    else
        drop_ones(n, make_entry(n, v, x.lo, x.hi));
}

static void step_arg(gen *n) {
    entry x = choose_ranked(n, FLOATS | INTS, 1);
    int axis = (int)pick(n, at(n, x)->rank);
    if (at(n, x)->dims[axis] == 0) return;
    op_code op = chance(n, 0.5) ? OP_argmax : OP_argmin;
    drop_ones(n, make_entry(n, graph_arg(n->g, op, x.v, axis), 0, (double)at(n, x)->dims[axis] - 1));
}

/* ---- movement ---- */

static val move_reshape(gen *n, const node *x, val v) {
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    for (int d = 0; d < x->rank; d++) { /* merge, split or copy axes */
        int64_t size = x->dims[d];
        if (d + 1 < x->rank && chance(n, 0.3)) size *= x->dims[++d];
        int64_t f = 2 + pick(n, 4);
        if (rank + 2 < MAX_OUT_RANK && size > 0 && size % f == 0 && chance(n, 0.5)) {
            dims[rank++] = f;
            size /= f;
        }
        if (size != 1 || chance(n, 0.5)) dims[rank++] = size;
        if (rank + 2 < MAX_OUT_RANK && chance(n, 0.1)) dims[rank++] = 1;
    }
    return graph_reshape(n->g, v, rank, dims);
}

static val move_permute(gen *n, const node *x, val v) {
    int64_t perm[TN_MAX_RANK];
    for (int d = 0; d < x->rank; d++) perm[d] = d;
    for (int d = x->rank - 1; d > 0; d--) {
        int64_t k = pick(n, d + 1), t = perm[d];
        perm[d] = perm[k];
        perm[k] = t;
    }
    return graph_permute(n->g, v, perm);
}

static val move_expand(gen *n, const node *x, val v) {
    int64_t dims[TN_MAX_RANK + 1];
    int rank = x->rank;
    memcpy(dims, x->dims, (size_t)rank * sizeof *dims);
    int64_t count = graph_elems(n->g, v);
    if (rank < MAX_OUT_RANK && chance(n, 0.5)) { /* a new axis */
        int64_t k = pick(n, rank + 1);
        memmove(dims + k + 1, dims + k, (size_t)(rank - k) * sizeof *dims);
        dims[k] = 1;
        v = graph_reshape(n->g, v, ++rank, dims);
    }
    for (int d = 0; d < rank; d++) {
        int64_t f = 1 + pick(n, 7);
        if (dims[d] != 1 || count * f > n->o.max_elems) continue;
        dims[d] = f;
        count *= f;
    }
    return graph_expand(n->g, v, dims);
}

static val move_pad(gen *n, const node *x, val v, double value) {
    int64_t before[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK] = { 0 }, count = 1;
    for (int d = 0; d < x->rank; d++) {
        if (chance(n, 0.6)) before[d] = pick(n, 3), after[d] = pick(n, 3);
        count *= x->dims[d] + before[d] + after[d];
    }
    return count > n->o.max_elems ? v : graph_pad(n->g, v, before, after, value);
}

static val move_slice(gen *n, const node *x, val v) {
    int64_t start[TN_MAX_RANK], count[TN_MAX_RANK], step[TN_MAX_RANK];
    for (int d = 0; d < x->rank; d++) {
        start[d] = 0, count[d] = x->dims[d], step[d] = 1;
        if (x->dims[d] < 2 || chance(n, 0.4)) continue;
        start[d] = pick(n, x->dims[d] / 2 + 1);
        step[d] = 1 + pick(n, 3);
        count[d] = 1 + pick(n, (x->dims[d] - start[d] + step[d] - 1) / step[d]);
        if (!n->o.no_zero_size && chance(n, 0.003)) count[d] = 0;
    }
    return graph_slice(n->g, v, start, count, step);
}

static int random_windows(gen *n, const node *x, window_axis *w) {
    int count = 0;
    int64_t elems = 1;
    for (int d = 0; d < x->rank; d++) elems *= x->dims[d];
    for (int d = 0; d < x->rank && count < 2; d++) {
        if (x->dims[d] < 2 || !chance(n, 0.6) || x->rank + count >= MAX_OUT_RANK + 2) continue;
        window_axis y = { d, 1 + pick(n, x->dims[d] < 4 ? x->dims[d] : 4), 1 + pick(n, 2), 1 + pick(n, 2) };
        if ((y.size - 1) * y.dilation + 1 > x->dims[d] || elems * y.size > n->o.max_elems) continue;
        elems *= y.size;
        w[count++] = y;
    }
    return count;
}

static val move_once(gen *n, val v, bool allow_pad, double pad_value) {
    const node *x = graph_get(n->g, v);
    node copy = *x; /* graph_add may move the nodes */
    switch (pick(n, 7)) {
    case 0:
        return move_reshape(n, &copy, v);
    case 1:
        return move_permute(n, &copy, v);
    case 2:
        return move_expand(n, &copy, v);
    case 3:
        return allow_pad ? move_pad(n, &copy, v, pad_value) : v;
    case 4:
        return move_slice(n, &copy, v);
    case 5:
        return graph_flip(n->g, v, copy.rank ? random_axes(n, copy.rank) : 0);
    default: {
        window_axis w[2];
        int k = random_windows(n, &copy, w);
        return k && copy.rank + k <= MAX_OUT_RANK ? graph_window(n->g, v, w, k) : v;
    }
    }
}

static void step_move(gen *n) {
    entry x = choose(n, ANY);
    int64_t links = chance(n, 0.4) ? 2 + pick(n, 4) : 1;
    double pad = dtype_of(n, x) == TN_BOOL ? (double)pick(n, 2) : (double)pick(n, 3) / (dtype_is_float(dtype_of(n, x)) ? 2 : 1);
    val v = x.v;
    for (int64_t k = 0; k < links; k++) v = move_once(n, v, true, pad);
    if (rng_chance(&n->side, 0.2)) v = graph_again(n->g, v, n->pool.at[rng_below(&n->side, n->pool.n)].v);
    push_val(n, v, fmin(x.lo, fmin(pad, 0)), fmax(x.hi, pad));
}

static void step_fold(gen *n) {
    entry x = choose_ranked(n, FLOATS | INTS, 1);
    node copy = *at(n, x);
    window_axis w[2];
    int k = random_windows(n, &copy, w);
    if (k == 0) return;
    double terms = 1;
    for (int i = 0; i < k; i++) terms *= (double)w[i].size;
    x = before_sum(n, x, terms);
    val v = graph_window(n->g, x.v, w, k);
    if (dtype_is_float(copy.dtype)) {
        entry y = { v, x.lo, x.hi }, z = partner(n, y, copy.dtype);
        if (z.hi <= 4 && z.lo >= -4) {
            v = graph_binary(n->g, OP_mul, v, z.v);
            double size = 4 * fmax(fabs(x.lo), fabs(x.hi));
            x.lo = -size, x.hi = size;
        }
    }
    push_val(n, graph_fold(n->g, v, w, k, copy.dims), fmin(0, x.lo * terms), fmax(0, x.hi * terms));
}

static void step_concat(gen *n) {
    entry x = choose_ranked(n, FLOATS | INTS | BOOLS, 1);
    node copy = *at(n, x);
    int axis = (int)pick(n, copy.rank), count = 2 + (int)pick(n, 3);
    if (graph_elems(n->g, x.v) * count > n->o.max_elems) return;
    val xs[4] = { x.v };
    double lo = x.lo, hi = x.hi;
    for (int k = 1; k < count; k++) {
        int64_t dims[TN_MAX_RANK];
        memcpy(dims, copy.dims, (size_t)copy.rank * sizeof *dims);
        entry y;
        if (chance(n, 0.5)) {
            y = partner(n, x, copy.dtype);
        } else {
            dims[axis] = 1 + pick(n, 4);
            y = new_source(n, copy.dtype, copy.rank, dims);
        }
        xs[k] = y.v;
        lo = fmin(lo, y.lo), hi = fmax(hi, y.hi);
    }
    push_val(n, graph_concat(n->g, xs, count, axis), lo, hi);
}

/* ---- contraction, indexed access ---- */

/* Splits the axes of x at random into batch, contracted and free, makes a second operand with them in a random order. */
static void step_dot(gen *n) {
    entry x = choose_ranked(n, FLOATS | MASK(TN_I32), 1);
    node xn = *at(n, x);
    int64_t role[TN_MAX_RANK], dims_b[TN_MAX_RANK], from[TN_MAX_RANK], out = 1, terms = 1;
    int rank_b = 0, out_rank = 0;
    for (int d = 0; d < xn.rank; d++) {
        role[d] = pick(n, 3); /* 0 batch, 1 contract, 2 free */
        if (d == xn.rank - 1 && terms == 1 && chance(n, 0.8)) role[d] = 1;
        if (role[d] == 1)
            terms *= xn.dims[d];
        else
            out *= xn.dims[d], out_rank++;
        if (role[d] == 2) continue;
        from[rank_b] = d;
        dims_b[rank_b++] = xn.dims[d];
    }
    for (int k = (int)pick(n, 3); k > 0 && rank_b < MAX_OUT_RANK && out_rank < MAX_OUT_RANK; k--) {
        static const uint8_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 16, 17 };
        int64_t size = sizes[pick(n, (int64_t)COUNT_OF(sizes))];
        if (out * size > n->o.max_elems || out * size * terms > 100 * n->o.max_elems) continue;
        out *= size, out_rank++;
        from[rank_b] = -1;
        dims_b[rank_b++] = size;
    }
    for (int d = rank_b - 1; d > 0; d--) {
        int64_t k = pick(n, d + 1), t = from[d], s = dims_b[d];
        from[d] = from[k], from[k] = t;
        dims_b[d] = dims_b[k], dims_b[k] = s;
    }
    entry y = new_source(n, xn.dtype, rank_b, dims_b);
    x = before_sum(n, x, (double)terms * fmax(fabs(y.lo), fabs(y.hi)));
    int64_t ba[TN_MAX_RANK], bb[TN_MAX_RANK], ca[TN_MAX_RANK], cb[TN_MAX_RANK];
    int nb = 0, nc = 0;
    for (int d = 0; d < rank_b; d++) {
        if (from[d] < 0) continue;
        if (role[from[d]] == 0)
            ba[nb] = from[d], bb[nb++] = d;
        else
            ca[nc] = from[d], cb[nc++] = d;
    }
    bool swap = chance(n, 0.3);
    val v = swap ? graph_dot(n->g, y.v, x.v, bb, ba, nb, cb, ca, nc) : graph_dot(n->g, x.v, y.v, ba, bb, nb, ca, cb, nc);
    double size = (double)terms * fmax(fabs(x.lo), fabs(x.hi)) * fmax(fabs(y.lo), fabs(y.hi));
    push_val(n, v, -size, size);
}

/* A whole-number tensor to index with; out-of-range values are meant to occur. */
static entry new_index(gen *n) {
    if (chance(n, 0.5)) {
        for (int tries = 0; tries < 8; tries++) {
            entry x = choose(n, INDICES);
            if (at(n, x)->rank <= 2 && graph_elems(n->g, x.v) <= 64) return x;
        }
    }
    int64_t dims[2] = { 1 + pick(n, 7), 1 + pick(n, 3) };
    int rank = (int)pick(n, 3);
    return new_source(n, chance(n, 0.5) ? TN_I64 : TN_I32, rank, dims);
}

static void step_gather(gen *n) {
    entry x = choose_ranked(n, FLOATS | INTS | BOOLS, 1), index = new_index(n);
    node xn = *at(n, x);
    int axis = (int)pick(n, xn.rank);
    if (xn.dims[axis] == 0 || !(MASK(dtype_of(n, index)) & INDICES)) return;
    if (xn.rank - 1 + at(n, index)->rank > MAX_OUT_RANK) return;
    if (graph_elems(n->g, x.v) / xn.dims[axis] * graph_elems(n->g, index.v) > n->o.max_elems) return;
    push_val(n, graph_gather(n->g, x.v, index.v, axis), x.lo, x.hi);
}

static void step_scatter(gen *n) {
    entry base = choose_ranked(n, FLOATS | INTS, 1), index = new_index(n);
    node bn = *at(n, base), in = *at(n, index);
    int axis = (int)pick(n, bn.rank), rank = 0;
    if (!(MASK(in.dtype) & INDICES) || bn.rank - 1 + in.rank > MAX_OUT_RANK) return;
    int64_t dims[TN_MAX_RANK], count = 1;
    for (int d = 0; d < axis; d++) dims[rank++] = bn.dims[d];
    for (int d = 0; d < in.rank; d++) dims[rank++] = in.dims[d];
    for (int d = axis + 1; d < bn.rank; d++) dims[rank++] = bn.dims[d];
    for (int d = 0; d < rank; d++) count *= dims[d];
    if (count > n->o.max_elems) return;
    entry updates = new_source(n, bn.dtype, rank, dims);
    double terms = (double)graph_elems(n->g, index.v), size = fmax(fabs(updates.lo), fabs(updates.hi)) * terms;
    double base_size = fmax(fabs(base.lo), fabs(base.hi)), factor = fmax(1, fmax(fabs(updates.lo), fabs(updates.hi))),
           product = base_size * pow(factor, terms);
    if (product <= 1e4 && chance(n, 0.3)) { /* of more factors than that the bound knows little */
        push_val(n, graph_scatter(n->g, OP_scatter_mul, base.v, index.v, updates.v, axis, 0), -product, product);
        return;
    }
    bool set = chance(n, 0.3);
    static const op_code others[] = { OP_scatter_set, OP_scatter_max, OP_scatter_min };
    push_val(n, graph_scatter(n->g, set ? others[pick(n, 3)] : OP_scatter_add, base.v, index.v, updates.v, axis, 0),
             set ? fmin(base.lo, updates.lo) : base.lo - size, set ? fmax(base.hi, updates.hi) : base.hi + size);
}

static void step_random(gen *n) {
    if (n->o.no_random || !can(n, MASK(TN_F32))) return;
    int64_t dims[TN_MAX_RANK], stream = pick(n, 6);
    int rank = random_dims(n, dims);
    entry counter = new_source(n, TN_I64, 0, NULL);
    spec s = {
        .op = OP_random, .dtype = TN_F32, .in = &counter.v, .n_in = 1, .rank = rank, .dims = dims, .attr = &stream, .n_attr = 1
    };
    push_val(n, graph_add(n->g, &s), 0, 1);
}

/* ---- patterns that the compiler looks for ---- */

static val over_axis(gen *n, op_code op, val x, val shape_of, int axis) {
    val r = graph_reduce(n->g, op, x, 1u << axis);
    return graph_expand(n->g, r, graph_get(n->g, shape_of)->dims);
}

static void step_softmax(gen *n) {
    entry x = choose_ranked(n, FLOATS, 1);
    int axis = chance(n, 0.7) ? at(n, x)->rank - 1 : (int)pick(n, at(n, x)->rank);
    for (int d = 0; d < at(n, x)->rank && at(n, x)->dims[axis] == 1; d++) axis = d;
    if (at(n, x)->dims[axis] == 0) return;
    double count = (double)at(n, x)->dims[axis];
    val d = graph_binary(n->g, OP_sub, x.v, over_axis(n, OP_reduce_max, x.v, x.v, axis));
    val e = graph_unary(n->g, OP_exp, d), s = over_axis(n, OP_sum, e, x.v, axis);
    if (chance(n, 0.3))
        push_val(n, graph_binary(n->g, OP_sub, d, graph_unary(n->g, OP_log, s)), x.lo - x.hi - log(count), 0);
    else
        push_val(n, graph_binary(n->g, OP_div, e, s), 0, 1);
}

static void step_norm(gen *n) {
    entry x = fit(n, choose_ranked(n, FLOATS, 1), -4, 4);
    int axis = at(n, x)->rank - 1;
    double count = (double)at(n, x)->dims[axis];
    if (count == 0) return;
    val mean = graph_binary(n->g, OP_mul, over_axis(n, OP_sum, x.v, x.v, axis), splat_like(n, x, 1 / count));
    val d = graph_binary(n->g, OP_sub, x.v, mean);
    val square = graph_binary(n->g, OP_mul, graph_binary(n->g, OP_mul, d, d), splat_like(n, x, 1 / count));
    val var = graph_binary(n->g, OP_add, over_axis(n, OP_sum, square, x.v, axis), splat_like(n, x, 0.125));
    push_val(n, graph_binary(n->g, OP_mul, d, graph_unary(n->g, OP_rsqrt, var)), -24, 24);
}

/* dot, bias, activation. */
static void step_linear(gen *n) {
    entry x = choose_ranked(n, FLOATS, 1);
    node xn = *at(n, x);
    int64_t k = xn.dims[xn.rank - 1], rows = k ? graph_elems(n->g, x.v) / k : 0, last = xn.rank - 1, zero = 0;
    int64_t w_dims[2] = { k, 1 + pick(n, 20) };
    if (rows * w_dims[1] > n->o.max_elems) return;
    entry w = new_source(n, xn.dtype, 2, w_dims);
    x = before_sum(n, x, (double)k * 2);
    val y = graph_dot(n->g, x.v, w.v, NULL, NULL, 0, &last, &zero, 1);
    double size = (double)k * fmax(fabs(x.lo), fabs(x.hi)) * fmax(fabs(w.lo), fabs(w.hi));
    entry bias = new_source(n, xn.dtype, 1, w_dims + 1);
    const node *yn = graph_get(n->g, y);
    y = graph_binary(n->g, OP_add, y, graph_broadcast(n->g, bias.v, yn->rank, yn->dims));
    entry out = { y, -size + bias.lo, size + bias.hi };
    if (chance(n, 0.6)) out = (entry){ graph_binary(n->g, OP_max, y, splat_like(n, out, 0)), 0, fmax(out.hi, 0) };
    push(n, out);
}

/* Convolution as window and dot, or a pooling. */
static void step_conv(gen *n) {
    int64_t dims[4] = { 1 + pick(n, 2), 1 + pick(n, 3), 4 + pick(n, 6), 4 + pick(n, 6) };
    entry x = new_source(n, random_dtype(n, FLOATS), 4, dims);
    bool pool = chance(n, 0.4);
    int64_t border[4] = { 0, 0, 1, 1 }, size = 2 + pick(n, 2), stride = 1 + pick(n, 2), dilation = pool ? 1 : 1 + pick(n, 2);
    val p = chance(n, 0.7) ? graph_pad(n->g, x.v, border, border, pool ? -INFINITY : 0) : x.v;
    if ((size - 1) * dilation + 1 > dims[2] || (size - 1) * dilation + 1 > dims[3]) return;
    window_axis w[2] = { { 2, size, stride, dilation }, { 3, size, stride, dilation } };
    val v = graph_window(n->g, p, w, 2); /* [N,C,H,W,kh,kw] */
    if (pool) {
        v = graph_reduce(n->g, OP_reduce_max, v, 1u << 4 | 1u << 5);
        int64_t out[4];
        memcpy(out, graph_get(n->g, v)->dims, sizeof out);
        push_val(n, graph_reshape(n->g, v, 4, out), x.lo, x.hi);
        return;
    }
    int64_t k_dims[4] = { 1 + pick(n, 4), dims[1], size, size }, ca[3] = { 1, 4, 5 }, cb[3] = { 1, 2, 3 };
    entry k = new_source(n, dtype_of(n, x), 4, k_dims);
    v = graph_dot(n->g, v, k.v, NULL, NULL, 0, ca, cb, 3);
    double reach = (double)(dims[1] * size * size) * fmax(fabs(x.lo), fabs(x.hi)) * fmax(fabs(k.lo), fabs(k.hi));
    push_val(n, graph_permute(n->g, v, (int64_t[]){ 0, 3, 1, 2 }), -reach, reach);
}

/* ---- the whole ---- */

static void step(gen *n) {
    static const struct {
        void (*run)(gen *n);
        int weight;
        uint32_t needs;
    } kinds[] = {
        { step_unary, 20, ANY },
        { step_binary, 24, ANY },
        { step_select, 5, ANY },
        { step_cast, 5, ANY },
        { step_bitcast, 1, 1u << TN_I32 | 1u << TN_I64 },
        { step_reduce, 10, FLOATS | INTS },
        { step_arg, 2, FLOATS | INTS },
        { step_move, 16, ANY },
        { step_fold, 2, FLOATS | INTS },
        { step_concat, 4, ANY },
        { step_dot, 7, FLOATS | MASK(TN_I32) },
        { step_gather, 3, ANY },
        { step_scatter, 3, FLOATS | INTS },
        { step_random, 2, ANY },
        { step_softmax, 3, FLOATS },
        { step_norm, 3, FLOATS },
        { step_linear, 4, FLOATS },
        { step_conv, 3, FLOATS },
    };
    int total = 0;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) total += kinds[k].weight;
    int64_t at_weight = pick(n, total);
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        if (at_weight < kinds[k].weight) {
            if (can(n, kinds[k].needs)) kinds[k].run(n);
            return;
        }
        at_weight -= kinds[k].weight;
    }
}

/* Every state takes a new value made from a pool value of its shape, brought back into the interval it was declared with. */
static void assign_states(gen *n) {
    for (int k = 0; k < n->g->inputs.n; k++) {
        val s = n->g->inputs.at[k];
        node sn = *graph_get(n->g, s);
        if (sn.op != OP_state || chance(n, 0.1)) continue;
        entry x = partner(n, (entry){ s, 0, 0 }, sn.dtype);
        if (graph_get(n->g, x.v)->op == OP_state && x.v != s && chance(n, 0.5)) x.v = s; /* swaps of states are rare */
        if (dtype_is_float(sn.dtype))
            x = fit(n, x, -2, 2);
        else if (dtype_is_int(sn.dtype))
            x = fit(n, x, dtype_is_unsigned((tn_dtype)sn.dtype) ? 0 : -4, 8);
        graph_assign(n->g, s, x.v);
    }
}

static void add_outputs(gen *n) {
    int count = 0;
    for (int k = 0; k < n->pool.n; k++) {
        val v = n->pool.at[k].v;
        op_code op = graph_get(n->g, v)->op;
        bool is_source = op == OP_input || op == OP_state || op == OP_const;
        bool leaf = graph_n_uses(n->g, v) == 0 && !is_source;
        if (leaf || chance(n, is_source ? 0.01 : 0.1)) graph_output(n->g, arena_printf(n->a, "y%d", count++), v);
    }
    if (count == 0) graph_output(n->g, "y0", n->pool.at[n->pool.n - 1].v);
}

graph *randgraph(arena *a, uint64_t seed, const randgraph_opts *opts) {
    static const uint8_t floats[] = { TN_F32, TN_F32, TN_F32, TN_F32, TN_F32, TN_F32, TN_F32, TN_F64, TN_F16, TN_BF16 };
    gen n = { .g = graph_make(a, arena_printf(a, "random%llu", (unsigned long long)seed)),
              .a = a,
              .r = rng_make(seed),
              .side = rng_make(~seed) };
    if (opts) n.o = *opts;
    if (!n.o.max_steps) n.o.min_steps = 3, n.o.max_steps = 14;
    if (!n.o.max_elems) n.o.max_elems = 2000;
    n.o.dtypes = n.o.dtypes ? n.o.dtypes | BOOLS : ~0u;
    n.main_float = (tn_dtype)floats[pick(&n, (int64_t)COUNT_OF(floats))];
    int64_t steps = rng_between(&n.r, n.o.min_steps, n.o.max_steps);
    for (int64_t k = 1 + pick(&n, 3); k > 0; k--) random_source(&n, chance(&n, 0.8) ? FLOATS : INTS | BOOLS);
    for (int64_t k = 0; k < steps; k++) step(&n);
    assign_states(&n);
    add_outputs(&n);
    graph_compact(n.g);
    return n.g;
}
