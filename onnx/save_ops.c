/* save_ops.c - the ops of the graph language as nodes of ONNX.
 *
 * In: a value whose operands have names. Out: nodes that compute it, and its name. What is said exactly there (integer division
 * by zero, indices out of range, the sign of a remainder) is said exactly here, by more nodes. Integers of 8 and
 * 16 bits, u32 and bf16 go through i32, i64 and f32, which more runtimes have kernels for; u64 has no wider type. */
#include "save.h"

#include <math.h>

typedef struct operands {
    const char *x, *y, *z;
    tn_dtype t; /* of x as it is computed with */
    int rank;
} operands;

void save_refuse(saver *s, int i, const char *what) {
    const tn_ir_value *v = &s->values[i];
    onnx_fail(s->env, TN_ERR_UNSUPPORTED, "%s %%%d%s%s%s: %s", v->op, i + 1, v->name ? " (" : "", v->name ? v->name : "",
              v->name ? ")" : "", what);
}

static const tn_ir_value *operand(const saver *s, int i, int k) { return &s->values[s->values[i].operands[k] - 1]; }
static const char *name_of(saver *s, int i, int k) {
    const char *name = s->names[s->values[i].operands[k]];
    if (!name) save_refuse(s, i, "an operand is not in its body");
    return name;
}
static bool is_float(tn_dtype t) { return tn_dtype_get_info(t)->kind == TN_KIND_FLOAT; }
/* What a type is computed in where ONNX or its runtimes lack it: small integers, bf16. */
static tn_dtype wider(tn_dtype t) {
    const tn_dtype_info *i = tn_dtype_get_info(t);
    if (i->kind == TN_KIND_BOOL || i->kind == TN_KIND_FLOAT) return t == TN_BF16 ? TN_F32 : t;
    return i->bytes < 4 ? TN_I32 : t == TN_U32 ? TN_I64 : t;
}
static bool is_small(tn_dtype t) { return wider(t) != t; }
static const char *cast(saver *s, const char *x, tn_dtype t) {
    return SAVE(s, .op = "Cast", .in = { x }, .attr = { { .name = "to", .i = onnx_elem_of(t) } });
}
/* Attributes stand only where they are needed: other readers refuse those that they do not know. */
static const char *reshape(saver *s, const char *x, tn_shape shape) {
    bool zero = false;
    tn_ir_dim d;
    for (int i = 0; i < shape.rank; i++) zero |= shape.dim[i] == 0 || (!tn_ir_get_dim(s->g, shape.dim[i], &d) && d.lo <= 0);
    return SAVE(s, .op = "Reshape", .in = { x, save_sizes(s, shape.dim, shape.rank) },
                .attr = { { .name = zero ? "allowzero" : NULL, .i = 1 } });
}
static const char *expand(saver *s, const char *x, tn_shape shape) {
    return SAVE(s, .op = "Expand", .in = { x, save_sizes(s, shape.dim, shape.rank) });
}
static const char *permute(saver *s, const char *x, const int64_t *perm, int rank) {
    bool same = true;
    for (int i = 0; i < rank; i++) same &= perm[i] == i;
    return same ? x : SAVE(s, .op = "Transpose", .in = { x }, .attr = { { .name = "perm", .list = perm, .n = rank } });
}

/* ---- elementwise ---- */

static const char *two(saver *s, const char *op, const char *x, const char *y) { return SAVE(s, .op = op, .in = { x, y }); }
static const char *where(saver *s, const char *c, const char *x, const char *y) {
    return SAVE(s, .op = "Where", .in = { c, x, y });
}

/* log(1 + x) without losing x: with u = 1 + x, x log(u) / (u - 1), which is x where u is 1 (Kahan). */
static const char *log1p_of(saver *s, const operands *o) {
    const char *one = save_number(s, o->t, 1, o->rank), *u = two(s, "Add", o->x, one), *flat = two(s, "Equal", u, one);
    const char *rest = two(s, "Sub", u, one), *log = SAVE(s, .op = "Log", .in = { u });
    const char *infinite = two(s, "Equal", u, save_number(s, o->t, INFINITY, o->rank));
    const char *y = two(s, "Mul", log, two(s, "Div", o->x, where(s, flat, one, rest)));
    return where(s, flat, o->x, where(s, infinite, o->x, y));
}
/* exp(x) - 1 the same way: with u = exp(x), (u - 1) x / log(u). */
static const char *expm1_of(saver *s, const operands *o) {
    const char *one = save_number(s, o->t, 1, o->rank), *u = SAVE(s, .op = "Exp", .in = { o->x }),
               *flat = two(s, "Equal", u, one);
    const char *rest = two(s, "Sub", u, one), *log = SAVE(s, .op = "Log", .in = { u });
    const char *y = two(s, "Mul", rest, two(s, "Div", o->x, where(s, flat, one, log)));
    const char *far = two(s, "Greater", SAVE(s, .op = "Abs", .in = { o->x }), save_number(s, o->t, 1, o->rank));
    return where(s, flat, o->x, where(s, far, rest, y)); /* far from 0 nothing is lost, and u may be 0 or infinite */
}

/* The divisor without 0 and, with a sign, -1, for runtimes that stop at INT_MIN / -1; zero and minus: where it was so. */
static const char *safe_divisor(saver *s, const operands *o, const char **zero, const char **minus) {
    *zero = two(s, "Equal", o->y, save_number(s, o->t, 0, o->rank));
    *minus = o->t == TN_U64 ? *zero : two(s, "Equal", o->y, save_number(s, o->t, -1, o->rank));
    return where(s, two(s, "Or", *zero, *minus), save_number(s, o->t, 1, o->rank), o->y);
}
static const char *div_of(saver *s, const operands *o) {
    const char *zero, *minus;
    if (is_float(o->t)) return two(s, "Div", o->x, o->y);
    const char *by = safe_divisor(s, o, &zero, &minus), *y = two(s, "Div", o->x, by);
    if (o->t != TN_U64) y = where(s, minus, SAVE(s, .op = "Neg", .in = { o->x }), y);
    return where(s, zero, save_number(s, o->t, 0, o->rank), y);
}
/* Mod with fmod has the sign of x: the divisor is added where that is not y's. */
static const char *mod_of(saver *s, const operands *o) {
    const char *zero, *minus, *none = save_number(s, o->t, 0, o->rank);
    if (!is_float(o->t)) {
        const char *by = safe_divisor(s, o, &zero, &minus);
        return where(s, two(s, "Or", zero, minus), none, two(s, "Mod", o->x, by));
    }
    const char *r = SAVE(s, .op = "Mod", .in = { o->x, o->y }, .attr = { { .name = "fmod", .i = 1 } });
    const char *other = two(s, "Xor", two(s, "Less", r, none), two(s, "Less", o->y, none));
    const char *moved = two(s, "And", other, SAVE(s, .op = "Not", .in = { two(s, "Equal", r, none) }));
    return where(s, moved, two(s, "Add", r, o->y), r);
}
static const char *rsqrt_of(saver *s, const operands *o) {
    return SAVE(s, .op = "Reciprocal", .in = { SAVE(s, .op = "Sqrt", .in = { o->x }) });
}
static const char *exp2_of(saver *s, const operands *o) { return two(s, "Pow", save_number(s, o->t, 2, o->rank), o->x); }
static const char *log2_of(saver *s, const operands *o) {
    return two(s, "Mul", SAVE(s, .op = "Log", .in = { o->x }), save_number(s, o->t, 1.4426950408889634, o->rank));
}
/* 1 - Erf loses what is small, so erfc(a) = exp(-a^2) P(q) / (1 + 2 a) with q = (a - 2) / (a + 2) (M. M. Shepherd and J. G.
 * Laframboise, 1981); P is fitted at Chebyshev's points of 0 <= a <= 28, after which every type has 0, to 6e-17. With h, a in
 * steps of 1/64, h^2 is exact and exp(-a^2) = exp(-h^2) exp((h - a) (h + a)). Half types go through f32. */
static const char *erfc_of(saver *s, const operands *o) {
    static const double fit[] = { -1.1251845904341763e-08, -1.87698534210329e-08,   8.053382197841346e-08,
                                  2.0637103743828742e-07,  -1.1455763539925152e-07, -8.937211700265515e-07,
                                  -8.548047891582489e-07,  1.5343604837543476e-06,  5.33457982053952e-06,
                                  3.701976085547793e-06,   -1.3544409667536769e-05, -3.642255795573437e-05,
                                  -1.4936499304847576e-06, 0.0001510395052237317,   0.00020636382053266809,
                                  -0.00045434095864567604, -0.0014568134918994554,  0.001271338985293287,
                                  0.008722653839304656,    -0.008034015083831175,   -0.05422000099051941,
                                  0.16405128003348565,     -0.16603039761531435,    -0.09276382658574639,
                                  1.2769783815525289 };
    tn_dtype t = o->t == TN_F16 ? TN_F32 : o->t;
    const char *x = t == o->t ? o->x : cast(s, o->x, t), *last = save_number(s, t, 28, o->rank);
    const char *number_2 = save_number(s, t, 2, o->rank), *steps = save_number(s, t, 64, o->rank);
    const char *a = SAVE(s, .op = "Abs", .in = { x });
    a = where(s, two(s, "Greater", a, last), last, a);
    const char *q = two(s, "Div", two(s, "Sub", a, number_2), two(s, "Add", a, number_2));
    const char *p = save_number(s, t, fit[0], o->rank);
    for (int i = 1; i < ONNX_COUNT(fit); i++) p = two(s, "Add", two(s, "Mul", p, q), save_number(s, t, fit[i], o->rank));
    const char *h = two(s, "Div", SAVE(s, .op = "Round", .in = { two(s, "Mul", a, steps) }), steps);
    const char *rest = two(s, "Mul", two(s, "Sub", h, a), two(s, "Add", h, a));
    const char *square = SAVE(s, .op = "Neg", .in = { two(s, "Mul", h, h) });
    const char *e = two(s, "Mul", SAVE(s, .op = "Exp", .in = { square }), SAVE(s, .op = "Exp", .in = { rest }));
    const char *below = two(s, "Add", two(s, "Add", a, a), save_number(s, t, 1, o->rank));
    const char *y = two(s, "Mul", two(s, "Div", e, below), p);
    y = where(s, two(s, "Less", x, save_number(s, t, 0, o->rank)), two(s, "Sub", number_2, y), y);
    return t == o->t ? y : cast(s, y, o->t);
}
/* The larger absolute value, and the smaller one divided by it; both 0: 0. */
static const char *ratio(saver *s, const operands *o, const char **larger) {
    const char *a = SAVE(s, .op = "Abs", .in = { o->x }), *b = SAVE(s, .op = "Abs", .in = { o->y });
    const char *none = save_number(s, o->t, 0, o->rank), *m = two(s, "Max", a, b), *zero = two(s, "Equal", m, none);
    *larger = m;
    return two(s, "Div", two(s, "Min", a, b), where(s, zero, save_number(s, o->t, 1, o->rank), m));
}
static const char *hypot_of(saver *s, const operands *o) {
    const char *m, *q = ratio(s, o, &m);
    const char *square = two(s, "Add", two(s, "Mul", q, q), save_number(s, o->t, 1, o->rank));
    return two(s, "Mul", m, SAVE(s, .op = "Sqrt", .in = { square }));
}
static const char *atan2_of(saver *s, const operands *o) {
    const char *m, *r = SAVE(s, .op = "Atan", .in = { ratio(s, o, &m) }), *none = save_number(s, o->t, 0, o->rank);
    const char *steep = two(s, "Less", SAVE(s, .op = "Abs", .in = { o->y }), SAVE(s, .op = "Abs", .in = { o->x }));
    r = where(s, steep, two(s, "Sub", save_number(s, o->t, 1.5707963267948966, o->rank), r), r);
    r = where(s, two(s, "Less", o->y, none), two(s, "Sub", save_number(s, o->t, 3.141592653589793, o->rank), r), r);
    return where(s, two(s, "Less", o->x, none), SAVE(s, .op = "Neg", .in = { r }), r);
}

/* 2 to the power y, 1 where that is no positive number of the type: there `far` holds. */
static const char *power_of_two(saver *s, const operands *o, const char **far) {
    int64_t bits = o->t == TN_I64 ? 63 : 31, *powers = ONNX_NEW(s->env, int64_t, 63);
    powers[0] = 1;
    for (int i = 1; i < bits; i++) powers[i] = 2 * powers[i - 1];
    const char *most = save_number(s, o->t, (double)(bits - 1), o->rank), *none = save_number(s, o->t, 0, o->rank);
    *far = two(s, "Or", two(s, "Less", o->y, none), two(s, "Less", most, o->y));
    const char *table = save_constant(s, NULL, TN_I64, TN_DIMS(bits), powers);
    const char *p = SAVE(s, .op = "Gather", .in = { table, where(s, *far, none, o->y) });
    return o->t == TN_I64 ? p : cast(s, p, o->t);
}
static const char *shift_u64(saver *s, const operands *o, const char *direction) {
    const char *none = save_number(s, TN_U64, 0, o->rank), *far = two(s, "Less", save_number(s, TN_U64, 63, o->rank), o->y);
    const char *y = SAVE(s, .op = "BitShift", .in = { o->x, where(s, far, none, o->y) },
                         .attr = { { .name = "direction", .text = direction } });
    return where(s, far, none, y);
}
/* By the highest bit that the type has: its lowest one stays. */
static const char *shift_left_of(saver *s, const operands *o) {
    if (o->t == TN_U64) return shift_u64(s, o, "LEFT");
    int64_t bits = o->t == TN_I64 ? 63 : 31;
    const char *far, *p = power_of_two(s, o, &far), *none = save_number(s, o->t, 0, o->rank);
    const char *half = save_number(s, o->t, o->t == TN_I64 ? 0x1p62 : 0x1p30, o->rank),
               *two_ = save_number(s, o->t, 2, o->rank);
    const char *top = two(s, "Mul", two(s, "Mul", o->x, half), two_);
    const char *at_top = two(s, "Equal", o->y, save_number(s, o->t, (double)bits, o->rank));
    return where(s, at_top, top, where(s, far, none, two(s, "Mul", o->x, p)));
}
static const char *shift_right_of(saver *s, const operands *o) {
    if (o->t == TN_U64) return shift_u64(s, o, "RIGHT");
    const char *far, *p = power_of_two(s, o, &far), *none = save_number(s, o->t, 0, o->rank);
    const char *q = two(s, "Div", two(s, "Sub", o->x, two(s, "Mod", o->x, p)), p);
    const char *sign = where(s, two(s, "Less", o->x, none), save_number(s, o->t, -1, o->rank), none);
    return where(s, far, sign, q);
}
static const char *neg_of(saver *s, const operands *o) {
    return o->t == TN_U64 ? two(s, "Sub", save_number(s, o->t, 0, o->rank), o->x) : SAVE(s, .op = "Neg", .in = { o->x });
}
static const char *trunc_of(saver *s, const operands *o) {
    const char *below = two(s, "Less", o->x, save_number(s, o->t, 0, o->rank));
    return where(s, below, SAVE(s, .op = "Ceil", .in = { o->x }), SAVE(s, .op = "Floor", .in = { o->x }));
}
static const char *ne_of(saver *s, const operands *o) { return SAVE(s, .op = "Not", .in = { two(s, "Equal", o->x, o->y) }); }
static const char *relu_of(saver *s, const operands *o) {
    if (is_float(o->t)) return SAVE(s, .op = "Relu", .in = { o->x });
    return two(s, "Max", o->x, save_number(s, o->t, 0, o->rank));
}
static const char *logic(saver *s, const operands *o, const char *of_bools, const char *of_bits) {
    return two(s, o->t == TN_BOOL ? of_bools : of_bits, o->x, o->y);
}
static const char *and_of(saver *s, const operands *o) { return logic(s, o, "And", "BitwiseAnd"); }
static const char *or_of(saver *s, const operands *o) { return logic(s, o, "Or", "BitwiseOr"); }
static const char *xor_of(saver *s, const operands *o) { return logic(s, o, "Xor", "BitwiseXor"); }
static const char *select_of(saver *s, const operands *o) { return where(s, o->x, o->y, o->z); }
static const char *same_of(saver *s, const operands *o) { return SAVE(s, .op = "Identity", .in = { o->x }); }
static const char *second_of(saver *s, const operands *o) { return SAVE(s, .op = "Identity", .in = { o->y }); }

typedef struct element_row {
    const char *op, *onnx;
    const char *(*write)(saver *s, const operands *o);
} element_row;
static const element_row elements[] = {
    { "neg", NULL, neg_of },
    { "abs", "Abs", NULL },
    { "sign", "Sign", NULL },
    { "floor", "Floor", NULL },
    { "ceil", "Ceil", NULL },
    { "round", "Round", NULL },
    { "trunc", NULL, trunc_of },
    { "exp2", NULL, exp2_of },
    { "log2", NULL, log2_of },
    { "erfc", NULL, erfc_of },
    { "atan2", NULL, atan2_of },
    { "hypot", NULL, hypot_of },
    { "shift_left", NULL, shift_left_of },
    { "shift_right", NULL, shift_right_of },
    { "sqrt", "Sqrt", NULL },
    { "rsqrt", NULL, rsqrt_of },
    { "exp", "Exp", NULL },
    { "log", "Log", NULL },
    { "log1p", NULL, log1p_of },
    { "expm1", NULL, expm1_of },
    { "sin", "Sin", NULL },
    { "cos", "Cos", NULL },
    { "tan", "Tan", NULL },
    { "asin", "Asin", NULL },
    { "acos", "Acos", NULL },
    { "atan", "Atan", NULL },
    { "sinh", "Sinh", NULL },
    { "cosh", "Cosh", NULL },
    { "tanh", "Tanh", NULL },
    { "asinh", "Asinh", NULL },
    { "acosh", "Acosh", NULL },
    { "atanh", "Atanh", NULL },
    { "erf", "Erf", NULL },
    { "relu", NULL, relu_of },
    { "sigmoid", "Sigmoid", NULL },
    { "softplus", "Softplus", NULL },
    { "not", "Not", NULL },
    { "stop_gradient", NULL, same_of },
    { "again", NULL, same_of },
    { "straight_through", NULL, second_of },
    { "add", "Add", NULL },
    { "sub", "Sub", NULL },
    { "mul", "Mul", NULL },
    { "div", NULL, div_of },
    { "pow", "Pow", NULL },
    { "mod", NULL, mod_of },
    { "max", "Max", NULL },
    { "min", "Min", NULL },
    { "lt", "Less", NULL },
    { "le", "LessOrEqual", NULL },
    { "gt", "Greater", NULL },
    { "ge", "GreaterOrEqual", NULL },
    { "eq", "Equal", NULL },
    { "ne", NULL, ne_of },
    { "and", NULL, and_of },
    { "or", NULL, or_of },
    { "xor", NULL, xor_of },
    { "select", NULL, select_of },
};

static const char *element(saver *s, int i, const element_row *row) {
    const tn_ir_value *v = &s->values[i];
    bool select = !strcmp(row->op, "select"), wide = is_small(operand(s, i, 0)->dtype) && !select;
    const char *in[3] = { NULL };
    for (int k = 0; k < v->n_operands; k++)
        in[k] = wide ? cast(s, name_of(s, i, k), wider(operand(s, i, 0)->dtype)) : name_of(s, i, k);
    operands o = { in[0], in[1], in[2], wider(operand(s, i, 0)->dtype), v->shape.rank };
    const char *y = row->write ? row->write(s, &o) : SAVE(s, .op = row->onnx, .in = { in[0], in[1], in[2] });
    return wide && is_small(v->dtype) ? cast(s, y, v->dtype) : y;
}

/* ---- reductions ---- */

static const char *reduction(saver *s, int i, const char *op) {
    const tn_ir_value *v = &s->values[i];
    int64_t axes[TN_MAX_RANK];
    int n = 0;
    for (int k = 0; k < v->shape.rank; k++)
        if (s->details[i].attr[0] >> k & 1) axes[n++] = k;
    const char *x = name_of(s, i, 0);
    if (is_small(v->dtype)) x = cast(s, x, wider(v->dtype));
    const char *y = SAVE(s, .op = op, .in = { x, save_ints(s, axes, n) },
                         .attr = { { .name = "keepdims", .i = 1 }, { .name = n ? NULL : "noop_with_empty_axes", .i = 1 } });
    return is_small(v->dtype) ? cast(s, y, v->dtype) : y;
}
static const char *sum_of(saver *s, int i) { return reduction(s, i, "ReduceSum"); }
static const char *prod_of(saver *s, int i) { return reduction(s, i, "ReduceProd"); }
static const char *reduce_max_of(saver *s, int i) { return reduction(s, i, "ReduceMax"); }
static const char *reduce_min_of(saver *s, int i) { return reduction(s, i, "ReduceMin"); }
static const char *arg(saver *s, int i, const char *op) {
    const char *x = name_of(s, i, 0);
    if (is_small(operand(s, i, 0)->dtype)) x = cast(s, x, wider(operand(s, i, 0)->dtype));
    return SAVE(s, .op = op, .in = { x },
                .attr = { { .name = "axis", .i = s->details[i].attr[0] }, { .name = "keepdims", .i = 1 } });
}
static const char *argmax_of(saver *s, int i) { return arg(s, i, "ArgMax"); }
static const char *argmin_of(saver *s, int i) { return arg(s, i, "ArgMin"); }

/* ---- movement ---- */

static const char *cast_of(saver *s, int i) { return cast(s, name_of(s, i, 0), s->values[i].dtype); }
static const char *reshape_of(saver *s, int i) { return reshape(s, name_of(s, i, 0), s->values[i].shape); }
static const char *expand_of(saver *s, int i) { return expand(s, name_of(s, i, 0), s->values[i].shape); }
static const char *permute_of(saver *s, int i) {
    return permute(s, name_of(s, i, 0), s->details[i].attr, s->values[i].shape.rank);
}
static const char *pad_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    return SAVE(s, .op = "Pad",
                .in = { name_of(s, i, 0), save_sizes(s, s->details[i].attr, 2 * v->shape.rank),
                        save_number(s, v->dtype, s->details[i].imm, 0) });
}
/* Behind the last entry, where a run gives sizes: first + (n - 1) * step + 1. */
static const char *end_of(saver *s, int i, const char *first) {
    const tn_shape shape = s->values[i].shape;
    const int64_t *step = s->details[i].attr + shape.rank;
    int64_t more[TN_MAX_RANK];
    for (int k = 0; k < shape.rank; k++) {
        tn_ir_dim d;
        bool empty = shape.dim[k] == 0 || (!tn_ir_get_dim(s->g, shape.dim[k], &d) && d.lo <= 0);
        if (empty && step[k] > 1) save_refuse(s, i, "steps along an axis that may be empty");
        more[k] = 1 - step[k];
    }
    const char *n = two(s, "Mul", save_sizes(s, shape.dim, shape.rank), save_ints(s, step, shape.rank));
    return two(s, "Add", two(s, "Add", first, n), save_ints(s, more, shape.rank));
}
static const char *slice_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    int rank = v->shape.rank;
    const int64_t *start = s->details[i].attr, *step = start + rank;
    int64_t stop[TN_MAX_RANK], axes[TN_MAX_RANK], from[TN_MAX_RANK];
    bool of_run = false;
    for (int k = 0; k < rank; k++) {
        int64_t n = v->shape.dim[k];
        from[k] = n ? start[k] : 0, axes[k] = k;
        of_run |= n < 0 || start[k] < 0;
        if (n >= 0 && start[k] >= 0) stop[k] = n ? start[k] + (n - 1) * step[k] + 1 : 0;
    }
    const char *more[] = { save_ints(s, step, rank) }, *first = save_sizes(s, from, rank),
               *end = of_run ? end_of(s, i, first) : save_ints(s, stop, rank);
    return SAVE(s, .op = "Slice", .in = { name_of(s, i, 0), first, end, save_ints(s, axes, rank) }, .more = more, .n_more = 1);
}
static const char *flip_of(saver *s, int i) {
    int64_t from[TN_MAX_RANK], to[TN_MAX_RANK], by[TN_MAX_RANK], axes[TN_MAX_RANK];
    int n = 0;
    for (int k = 0; k < s->values[i].shape.rank; k++)
        if (s->details[i].attr[0] >> k & 1) from[n] = -1, to[n] = INT64_MIN, by[n] = -1, axes[n++] = k;
    const char *more[] = { save_ints(s, by, n) };
    return SAVE(s, .op = "Slice", .in = { name_of(s, i, 0), save_ints(s, from, n), save_ints(s, to, n), save_ints(s, axes, n) },
                .more = more, .n_more = 1);
}
static const char *concat_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    const char **in = ONNX_NEW(s->env, const char *, v->n_operands + 1);
    for (int k = 0; k < v->n_operands; k++) in[k] = name_of(s, i, k);
    return SAVE(s, .op = "Concat", .more = in, .n_more = v->n_operands,
                .attr = { { .name = "axis", .i = s->details[i].attr[0] } });
}

/* Places of windows along an axis: position times stride plus offset times dilation. */
static int64_t *window_places(saver *s, const int64_t *w, int64_t positions) {
    int64_t *at = ONNX_NEW(s->env, int64_t, positions * w[1] + 1);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t k = 0; k < w[1]; k++) at[p * w[1] + k] = p * w[2] + k * w[3];
    return at;
}
/* Each axis becomes positions and offsets by a gather; the offsets then go to the end. */
static const char *window_of(saver *s, int i) {
    const int64_t *a = s->details[i].attr;
    tn_shape out = s->values[i].shape;
    int n = (int)a[0], rank = out.rank - n, at[TN_MAX_RANK], behind[TN_MAX_RANK] = { 0 };
    const char *x = name_of(s, i, 0);
    int64_t perm[TN_MAX_RANK];
    for (int k = 0; k < rank; k++) at[k] = k;
    for (int w = 0; w < n; w++) {
        int axis = (int)a[1 + 4 * w];
        int64_t positions = out.dim[axis];
        if (positions < 0) save_refuse(s, i, "windows along an axis whose size a run gives");
        const char *index =
            save_constant(s, NULL, TN_I64, TN_DIMS(positions, a[2 + 4 * w]), window_places(s, a + 1 + 4 * w, positions));
        x = SAVE(s, .op = "Gather", .in = { x, index }, .attr = { { .name = "axis", .i = at[axis] } });
        for (int k = 0; k < rank; k++) at[k] += k > axis;
        for (int k = 0; k < w; k++) behind[k] += behind[k] > at[axis];
        behind[w] = at[axis] + 1;
    }
    for (int k = 0; k < rank; k++) perm[k] = at[k];
    for (int w = 0; w < n; w++) perm[rank + w] = behind[w];
    return permute(s, x, perm, out.rank);
}

/* Rows of updates [m,row] added into zeros or a base [n,row] at places [m]. */
static const char *add_rows(saver *s, const char *base, const char *places, const char *updates) {
    return SAVE(s, .op = "ScatterND", .in = { base, places, updates }, .attr = { { .name = "reduction", .text = "add" } });
}
/* The adjoint of a window, an axis at a time, the last first: [..,positions,..,offsets] to rows that are added. */
static const char *fold_of(saver *s, int i) {
    const int64_t *a = s->details[i].attr;
    const tn_ir_value *v = &s->values[i];
    tn_shape now = operand(s, i, 0)->shape;
    if (!save_is_literal(now) || !save_is_literal(v->shape)) save_refuse(s, i, "sizes that a run gives: give them numbers");
    const char *x = name_of(s, i, 0);
    bool small = is_small(v->dtype);
    tn_dtype t = wider(v->dtype);
    if (small) x = cast(s, x, t);
    for (int w = (int)a[0] - 1; w >= 0; w--) {
        int axis = (int)a[1 + 4 * w], last = now.rank - 1, n = 0;
        int64_t perm[TN_MAX_RANK], back[TN_MAX_RANK], rest = 1, m = now.dim[axis] * now.dim[last], size = v->shape.dim[axis];
        perm[n++] = axis, perm[n++] = last;
        for (int k = 0; k < last; k++)
            if (k != axis) perm[n++] = k, rest *= now.dim[k];
        x = reshape(s, permute(s, x, perm, now.rank), TN_DIMS(m, rest));
        const char *at = save_constant(s, NULL, TN_I64, TN_DIMS(m, 1), window_places(s, a + 1 + 4 * w, now.dim[axis]));
        x = add_rows(s, expand(s, save_number(s, t, 0, 2), TN_DIMS(size, rest)), at, x);
        tn_shape turned = { .rank = now.rank - 1 };
        turned.dim[0] = size;
        for (int k = 2; k < now.rank; k++) turned.dim[k - 1] = now.dim[perm[k]];
        for (int k = 0; k < turned.rank; k++) back[k] = k == axis ? 0 : k < axis ? k + 1 : k;
        x = permute(s, reshape(s, x, turned), back, turned.rank);
        now.rank--, now.dim[axis] = size;
    }
    return small ? cast(s, x, v->dtype) : x;
}

/* ---- contractions ---- */

static bool contains(const int64_t *list, int64_t n, int64_t v) {
    for (int64_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}
/* "abc,acd->abd": a letter an axis. */
static const char *equation(saver *s, int i) {
    const int64_t *a = s->details[i].attr, nb = a[0], nc = a[1], *ba = a + 2, *bb = ba + nb, *ca = bb + nb, *cb = ca + nc;
    int ra = operand(s, i, 0)->shape.rank, rb = operand(s, i, 1)->shape.rank, n = 0;
    char la[TN_MAX_RANK + 1] = "", lb[TN_MAX_RANK + 1] = "", out[2 * TN_MAX_RANK + 1] = "", next = 'a';
    for (int k = 0; k < ra; k++) la[k] = next++;
    for (int k = 0; k < rb; k++) {
        lb[k] = 0;
        for (int64_t j = 0; j < nb; j++)
            if (bb[j] == k) lb[k] = la[ba[j]];
        for (int64_t j = 0; j < nc; j++)
            if (cb[j] == k) lb[k] = la[ca[j]];
        if (!lb[k]) lb[k] = next++;
    }
    for (int64_t j = 0; j < nb; j++) out[n++] = la[ba[j]];
    for (int k = 0; k < ra; k++)
        if (!contains(ba, nb, k) && !contains(ca, nc, k)) out[n++] = la[k];
    for (int k = 0; k < rb; k++)
        if (!contains(bb, nb, k) && !contains(cb, nc, k)) out[n++] = lb[k];
    return onnx_format(s->env, "%.*s,%.*s->%.*s", ra, la, rb, lb, n, out);
}
static bool is_matmul(saver *s, int i) {
    const int64_t *a = s->details[i].attr, nb = a[0], nc = a[1];
    int ra = operand(s, i, 0)->shape.rank, rb = operand(s, i, 1)->shape.rank;
    if (nc != 1 || ra != nb + 2 || rb != nb + 2 || a[2 + 2 * nb] != nb + 1 || a[3 + 2 * nb] != nb) return false;
    for (int64_t k = 0; k < nb; k++)
        if (a[2 + k] != k || a[2 + nb + k] != k) return false;
    return true;
}
static const char *dot_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    bool small = is_small(v->dtype);
    const char *x = name_of(s, i, 0), *y = name_of(s, i, 1), *out;
    if (small) x = cast(s, x, wider(v->dtype)), y = cast(s, y, wider(v->dtype));
    if (is_matmul(s, i))
        out = two(s, "MatMul", x, y);
    else
        out = SAVE(s, .op = "Einsum", .in = { x, y }, .attr = { { .name = "equation", .text = equation(s, i) } });
    return small ? cast(s, out, v->dtype) : out;
}

/* ---- by index ---- */

static const char *gather_of(saver *s, int i) {
    tn_dtype t = operand(s, i, 1)->dtype;
    int64_t axis = s->details[i].attr[0], size = operand(s, i, 0)->shape.dim[axis];
    const char *last = size < 0 ? two(s, "Sub", save_sizes(s, &size, -1), save_number(s, TN_I64, 1, 0))
                                : save_number(s, t, (double)(size - 1), 0);
    if (size < 0 && t != TN_I64) last = cast(s, last, t);
    const char *index = two(s, "Max", two(s, "Min", name_of(s, i, 1), last), save_number(s, t, 0, 0));
    return SAVE(s, .op = "Gather", .in = { name_of(s, i, 0), index }, .attr = { { .name = "axis", .i = axis } });
}

/* x [batch.., .., n, ..] as [batch, n, rest]: perm puts the axis (n_axes of them) behind the batch axes. */
static const char *rows_first(saver *s, const char *x, tn_shape shape, int axis, int n_axes, int batch, int64_t *perm,
                              tn_shape *turned) {
    int n = 0;
    for (int k = 0; k < batch; k++) perm[n++] = k;
    for (int k = 0; k < n_axes; k++) perm[n++] = axis + k;
    for (int k = batch; k < shape.rank; k++)
        if (k < axis || k >= axis + n_axes) perm[n++] = k;
    *turned = shape;
    for (int k = 0; k < shape.rank; k++) turned->dim[k] = shape.dim[perm[k]];
    return permute(s, x, perm, shape.rank);
}
static int64_t product(const int64_t *d, int from, int to) {
    int64_t n = 1;
    for (int k = from; k < to; k++) n *= d[k];
    return n;
}
/* Updates out of range go to a row behind the last one of each batch, which is cut off again. */
static const char *scatter_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i], *at = operand(s, i, 1), *u = operand(s, i, 2);
    int axis = (int)s->details[i].attr[0], batch = (int)s->details[i].attr[1], rank = v->shape.rank,
        n_axes = at->shape.rank - batch;
    int64_t perm[TN_MAX_RANK], up_perm[TN_MAX_RANK], back[TN_MAX_RANK];
    tn_shape turned, up_turned;
    if (!save_is_literal(v->shape) || !save_is_literal(at->shape))
        save_refuse(s, i, "sizes that a run gives: give them numbers");
    bool small = is_small(v->dtype);
    const char *base = name_of(s, i, 0), *updates = name_of(s, i, 2);
    if (small) base = cast(s, base, wider(v->dtype)), updates = cast(s, updates, wider(v->dtype));
    base = rows_first(s, base, v->shape, axis, 1, batch, perm, &turned);
    updates = rows_first(s, updates, u->shape, axis, n_axes, batch, up_perm, &up_turned);
    int64_t b = product(turned.dim, 0, batch), n = turned.dim[batch], rest = product(turned.dim, batch + 1, rank),
            m = product(at->shape.dim, batch, at->shape.rank);
    const char *pads = save_ints(s, (int64_t[]){ 0, 0, 0, 0, 1, 0 }, 6);
    base = reshape(s, SAVE(s, .op = "Pad", .in = { reshape(s, base, TN_DIMS(b, n, rest)), pads }), TN_DIMS(b * (n + 1), rest));
    const char *index = name_of(s, i, 1);
    if (at->dtype != TN_I64) index = cast(s, index, TN_I64);
    index = reshape(s, index, TN_DIMS(b, m));
    const char *bad = two(s, "Or", two(s, "Less", index, save_number(s, TN_I64, 0, 2)),
                          two(s, "GreaterOrEqual", index, save_number(s, TN_I64, (double)n, 2)));
    index = where(s, bad, save_number(s, TN_I64, (double)n, 2), index);
    int64_t *offset = ONNX_NEW(s->env, int64_t, b + 1);
    for (int64_t k = 0; k < b; k++) offset[k] = k * (n + 1);
    index = two(s, "Add", index, save_constant(s, NULL, TN_I64, TN_DIMS(b, 1), offset));
    const char *places = reshape(s, index, TN_DIMS(b * m, 1)), *rows = reshape(s, updates, TN_DIMS(b * m, rest));
    bool set = !strcmp(v->op, "scatter_set"); /* the last of several stays, as ONNX's own reference has it */
    const char *y = set ? SAVE(s, .op = "ScatterND", .in = { base, places, rows })
                        : SAVE(s, .op = "ScatterND", .in = { base, places, rows },
                               .attr = { { .name = "reduction", .text = v->op + strlen("scatter_") } });
    const char *axes = save_ints(s, (int64_t[]){ 1 }, 1);
    y = SAVE(s, .op = "Slice",
             .in = { reshape(s, y, TN_DIMS(b, n + 1, rest)), save_ints(s, (int64_t[]){ 0 }, 1), save_ints(s, &n, 1), axes });
    for (int k = 0; k < rank; k++) back[perm[k]] = k;
    y = permute(s, reshape(s, y, turned), back, rank);
    return small ? cast(s, y, v->dtype) : y;
}

/* ---- sources ---- */

static const char *const_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    const tn_ir_detail *d = &s->details[i];
    if (!d->splat) return save_constant(s, NULL, v->dtype, v->shape, d->data);
    tn_shape one = { .rank = v->shape.rank };
    uint64_t data[2] = { 0 };
    for (int k = 0; k < one.rank; k++) one.dim[k] = 1;
    if (is_float(v->dtype))
        tn_ir_store(v->dtype, data, 0, d->imm);
    else
        memcpy(data, &d->imm_int, tn_dtype_size(v->dtype)); /* little-endian */
    const char *x = save_element(s, v->dtype, data, one.rank);
    return memcmp(one.dim, v->shape.dim, sizeof one.dim[0] * (size_t)one.rank) ? expand(s, x, v->shape) : x;
}
static const char *iota_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    int axis = (int)s->details[i].attr[0];
    int64_t from = 0, step = 1, to = v->shape.dim[axis];
    tn_shape column = { .rank = v->shape.rank };
    for (int k = 0; k < column.rank; k++) column.dim[k] = k == axis ? to : 1;
    const char *x = SAVE(s, .op = "Range", .in = { save_ints(s, &from, -1), save_sizes(s, &to, -1), save_ints(s, &step, -1) });
    if (v->dtype != TN_I64) x = cast(s, x, v->dtype);
    return expand(s, reshape(s, x, column), v->shape);
}
static const char *random_of(saver *s, int i) { save_refuse(s, i, "random numbers have no form in ONNX"); }

/* ---- control ---- */

/* All values of a body, whose parameters have the names params. Names of the results go to out. */
static void save_body(saver *s, int body, const char *const *params, const char **out) {
    tn_ir_body b;
    if (tn_ir_get_body(s->g, body, &b)) onnx_fail(s->env, TN_ERR_INVAL, "tn_onnx_save: a body that is not there");
    for (int k = 0; k < b.n_params; k++) s->names[b.params[k]] = params[k];
    for (int i = 0; i < s->n_values; i++)
        if (s->details[i].body == body && strcmp(s->values[i].op, "param")) save_value(s, i);
    for (int k = 0; k < b.n_results; k++) out[k] = s->names[b.results[k]];
}

/* A body as a GraphProto: of an if, what it captures comes by name; of a loop, a turn that ends with the next condition. */
static save_bytes *body_of(saver *s, int body, const char *const *params, int cond) {
    save_bytes nodes = { 0 }, *before = s->nodes, *out = ONNX_NEW(s->env, save_bytes, 1);
    tn_ir_body b;
    if (tn_ir_get_body(s->g, body, &b)) onnx_fail(s->env, TN_ERR_INVAL, "a body that is not there");
    const char **results = ONNX_NEW(s->env, const char *, b.n_results + 1), *go = NULL;
    s->nodes = &nodes;
    save_body(s, body, params, results);
    for (int k = 0; k < b.n_results; k++) results[k] = SAVE(s, .op = "Identity", .in = { results[k] });
    if (cond) save_body(s, cond, results, &go), go = SAVE(s, .op = "Identity", .in = { go });
    s->nodes = before;
    *out = nodes;
    save_text(s->env, out, 2, "body");
    save_bytes port;
    if (cond) {
        const char *turn = save_fresh(s), *was = save_fresh(s);
        port = save_port(s, turn, ELEM_I64, TN_SCALAR), save_data(s->env, out, 11, port.at, port.n);
        port = save_port(s, was, ELEM_BOOL, TN_SCALAR), save_data(s->env, out, 11, port.at, port.n);
        for (int k = 0; k < b.n_params; k++) {
            const tn_ir_value *p = &s->values[b.params[k] - 1];
            port = save_port(s, params[k], onnx_elem_of(p->dtype), p->shape), save_data(s->env, out, 11, port.at, port.n);
        }
        port = save_port(s, go, ELEM_BOOL, TN_SCALAR), save_data(s->env, out, 12, port.at, port.n);
    }
    for (int k = 0; k < b.n_results; k++) {
        const tn_ir_value *r = &s->values[b.results[k] - 1];
        port = save_port(s, results[k], onnx_elem_of(r->dtype), r->shape), save_data(s->env, out, 12, port.at, port.n);
    }
    return out;
}
static const char **results_of(saver *s, int i, int body, int *out_n) {
    tn_ir_body b;
    if (tn_ir_get_body(s->g, body, &b)) save_refuse(s, i, "its body is not there");
    const char **out = ONNX_NEW(s->env, const char *, b.n_results + 1);
    for (int k = 0; k < b.n_results; k++) out[k] = save_fresh(s);
    s->projections[i + 1] = out;
    *out_n = b.n_results;
    return out;
}
static const char *if_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    const int64_t *a = s->details[i].attr;
    const char **in = ONNX_NEW(s->env, const char *, v->n_operands + 1);
    int n;
    for (int k = 1; k < v->n_operands; k++) in[k - 1] = name_of(s, i, k);
    const char **out = results_of(s, i, (int)a[0], &n), *cond = name_of(s, i, 0);
    save_bytes *then = body_of(s, (int)a[0], in, 0), *other = body_of(s, (int)a[1], in, 0);
    return SAVE(s, .op = "If", .in = { cond },
                .attr = { { .name = "then_branch", .graph = then }, { .name = "else_branch", .graph = other } }, .out = out,
                .n_out = n);
}
static const char *while_of(saver *s, int i) {
    const tn_ir_value *v = &s->values[i];
    const int64_t *a = s->details[i].attr;
    const char **in = ONNX_NEW(s->env, const char *, v->n_operands + 1),
               **params = ONNX_NEW(s->env, const char *, v->n_operands + 1), *go;
    int n;
    for (int k = 0; k < v->n_operands; k++) in[k] = name_of(s, i, k), params[k] = save_fresh(s);
    const char **out = results_of(s, i, (int)a[1], &n);
    save_body(s, (int)a[0], in, &go); /* whether there is a first turn */
    save_bytes *body = body_of(s, (int)a[1], params, (int)a[0]);
    return SAVE(s, .op = "Loop", .in = { "", go }, .more = in, .n_more = v->n_operands,
                .attr = { { .name = "body", .graph = body } }, .out = out, .n_out = n);
}
static const char *proj_of(saver *s, int i) {
    const char **all = s->projections[s->values[i].operands[0]];
    return all ? all[s->details[i].attr[0]] : name_of(s, i, 0);
}

/* ---- all of them ---- */

typedef struct op_row {
    const char *op;
    const char *(*write)(saver *s, int i);
} op_row;
static const op_row ops[] = {
    { "cast", cast_of },
    { "sum", sum_of },
    { "prod", prod_of },
    { "reduce_max", reduce_max_of },
    { "reduce_min", reduce_min_of },
    { "argmax", argmax_of },
    { "argmin", argmin_of },
    { "reshape", reshape_of },
    { "permute", permute_of },
    { "expand", expand_of },
    { "pad", pad_of },
    { "slice", slice_of },
    { "flip", flip_of },
    { "window", window_of },
    { "fold", fold_of },
    { "concat", concat_of },
    { "dot", dot_of },
    { "gather", gather_of },
    { "scatter_add", scatter_of },
    { "scatter_set", scatter_of },
    { "scatter_mul", scatter_of },
    { "scatter_max", scatter_of },
    { "scatter_min", scatter_of },
    { "const", const_of },
    { "iota", iota_of },
    { "random", random_of },
    { "if", if_of },
    { "while", while_of },
    { "proj", proj_of },
};

void save_value(saver *s, int i) {
    const char *op = s->values[i].op;
    for (int k = 0; k < ONNX_COUNT(elements); k++)
        if (!strcmp(elements[k].op, op)) {
            s->names[i + 1] = element(s, i, &elements[k]);
            return;
        }
    for (int k = 0; k < ONNX_COUNT(ops); k++)
        if (!strcmp(ops[k].op, op)) {
            s->names[i + 1] = ops[k].write(s, i);
            return;
        }
    save_refuse(s, i, "this op has no form in ONNX");
}
