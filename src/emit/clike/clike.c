/* clike.c - instructions as statements of the languages that look like C: one statement an instruction.
 *
 * In: kernels in the second form, and the row of a language (languages.c). Out: the bodies of functions, and
 * what they need of the vocabulary (vocabulary.c). c.c and gpu.c write what stands around them. Vectors, tiles and
 * unrolling are explicit, so a compiler is asked for no more than register allocation and scheduling. No identifier comes from
 * the user's graph. */
#include "emit/clike/clike.h"
#include "emit/functions.h"

#include <math.h>

/* ---- arithmetic ---- */

/* Lanes that an expression works on. */
static int width(const clike *e, const kins *in) { return e->l->gpu ? 1 : in->lanes; }

/* Of each lane in turn, for GPUs. */
static void print_lanes(clike *e, const kins *in) {
    if (e->l->gpu && in->lanes > 1 && !e->lane) str_addf(e->out, "LANES(%d) ", in->lanes);
}

/* "f32x8 v5 = ", or for GPUs "f32x1 v5[8]; LANES(8) v5[l] = ". */
static void print_result(clike *e, const kins *in, reg r) {
    tn_dtype t = dtype_reg((tn_dtype)in->dtype);
    clike_need(e, t, width(e, in));
    if (e->lane <= 1) str_addf(e->out, "%sx%d v%u", clike_reg_type(t), width(e, in), r);
    if (e->lane > 1) {
        clike_register(e, r);
    } else if (e->l->gpu && in->lanes > 1) {
        str_addf(e->out, "[%d]; ", in->lanes);
        print_lanes(e, in);
        clike_register(e, r);
    }
    str_add(e->out, " = ");
}

/* An index that moves from lane to lane. */
static void print_lane_index(clike *e, const kins *in) {
    clike_affine(e, in->idx, 0);
    if (e->l->gpu && in->lanes > 1 && in->lane_stride)
        str_addf(e->out, " + l * %lld%s", (long long)in->lane_stride, e->index_end);
}

static bool is_plain_const(const clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    return in->op == K_CONST && !isnan(in->imm);
}

static void print_alu_value(clike *e, op_code op, tn_dtype src, int lanes, const reg *r, int n) {
    clike_need(e, src, lanes);
    if (clike_infix(op, src)) {
        clike_operand(e, r[0], lanes);
        str_add(e->out, clike_infix(op, src));
        clike_operand(e, r[1], lanes);
        return;
    }
    bool minmax = (op == OP_max || op == OP_min) && src == TN_F32;
    if (minmax && (is_plain_const(e, r[0]) || is_plain_const(e, r[1]))) { /* one instruction: a constant is never NaN */
        bool first = is_plain_const(e, r[0]);
        str_addf(e->out, "%s_f32x%d(", op == OP_max ? "MAXC" : "MINC", lanes);
        clike_operand(e, r[first ? 0 : 1], lanes);
        str_add(e->out, ", ");
        clike_operand(e, r[first ? 1 : 0], lanes);
        str_add(e->out, ")");
        return;
    }
    clike_use_op(e, op, src, lanes);
    str_addf(e->out, "op_%s_%sx%d(", op_get(op)->name, clike_reg_type(src), lanes);
    for (int i = 0; i < n; i++) {
        if (i) str_add(e->out, ", ");
        clike_operand(e, r[i], lanes);
    }
    str_add(e->out, ")");
}

/* A product is a number of the dtype for what follows: without this the compiler would contract it with a sum of another
 * instruction into one rounding or not, as it happens to split and unroll the code around. */
static void print_rounded(clike *e, const kins *in, reg r) {
    const char *expr = op_get((op_code)in->alu)->expr;
    int bytes = in->lanes * (int)dtype_size((tn_dtype)in->dtype);
    if (e->l->gpu || !dtype_is_float((tn_dtype)in->dtype) || bytes > 64 || !(strchr(expr, '*') || function_any(expr))) return;
    str_addf(e->out, "; KEEP_%d(v%u)", bytes, r);
}

static void print_lane(clike *e, reg r, int lane) {
    const kins *in = &e->k->ins.at[r];
    bool part = e->l->gpu && in->op == K_LANES && e->k->ins.at[in->a].lanes > 1;
    if (part) r = in->a, lane = (int)in->first_lane + (in->lanes > 1 ? lane : 0);
    str_addf(e->out, part || in->lanes > 1 ? "v%u[%d]" : "v%u", r, lane);
}

/* Some bits of a word among others. */
static bool print_and_or(clike *e, const kins *in) {
    const kins *and = &e->k->ins.at[in->a];
    const char *name = in->alu == OP_or ? e->l->and_or : in->alu == OP_xor ? e->l->and_xor : NULL;
    if (!name || in->dtype != TN_I32 || in->lanes > 1 || and->op != K_ALU || and->alu != OP_and) return false;
    const reg of[] = { and->a, and->b, in->b };
    str_addf(e->out, "%s(", name);
    for (int i = 0; i < 3; i++) str_add(e->out, i ? ", " : ""), clike_register(e, of[i]);
    str_add(e->out, ")");
    return true;
}

/* Lanes that only products take, which name them themselves. */
static bool is_named(const clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    if (!e->l->gpu || in->op != K_LANES || e->k->ins.at[in->a].lanes == 1) return false;
    for (reg i = r + 1; i < (reg)e->k->ins.n; i++) {
        const kins *user = &e->k->ins.at[i];
        bool product = user->op == K_UPD && user->alu == OP_dot && dtype_is_float((tn_dtype)user->dtype) && !user->packed;
        if ((user->a == r || user->b == r || user->c == r || user->dyn == r) && !product) return false;
    }
    return true;
}

/* Nothing is contracted unless it is written so. There are many of them: a statement a lane compiles faster than a loop.
 * Products that follow each other with one vector go there and back over its lanes: the arithmetic of a GPU keeps an operand
 * from one instruction to the next. */
static void print_fma(clike *e, const kins *in) {
    if (in->b == e->vector) e->back = !e->back;
    e->vector = in->b;
    for (int i = 0, n = in->lanes; i < n; i++) {
        int l = e->back ? n - 1 - i : i;
        str_add(e->out, i ? " " : "");
        print_lane(e, in->c, l);
        str_addf(e->out, " = %s(", e->l->fma[in->dtype == TN_F64]);
        print_lane(e, in->a, l), str_add(e->out, ", ");
        print_lane(e, in->b, l), str_add(e->out, ", ");
        print_lane(e, in->c, l), str_add(e->out, ");");
    }
    str_add(e->out, "\n");
}

/* Lanes of the widest multiply-adds that take the element which r loads, if narrower ones of the block take it as well; else 0.
 */
static int shared_broadcast(const clike *e, reg r) {
    const kins *all = e->k->ins.at;
    int wide = 0, narrow = 0;
    if (e->l->gpu || all[r].op != K_LOAD || all[r].lanes > 1 || !dtype_is_float((tn_dtype)all[r].dtype)) return 0;
    for (reg i = r + 1; i < (reg)e->k->ins.n && all[i].op != K_LOOP && all[i].op != K_END; i++) {
        if (all[i].op != K_UPD || all[i].alu != OP_dot || all[i].packed || (all[i].a != r && all[i].b != r)) continue;
        int lanes = all[i].lanes;
        if (lanes > wide) wide = lanes;
        if (lanes > 1 && (!narrow || lanes < narrow)) narrow = lanes;
    }
    return narrow && narrow < wide ? wide : 0;
}

/* Its broadcast, whose first lanes serve for the narrow ones: gcc would keep the element and two broadcasts in three registers,
 * and have two too few for the tile. */
static void print_shared_broadcast(clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    int wide = shared_broadcast(e, r), bytes = wide * (int)dtype_size(dtype_reg((tn_dtype)in->dtype));
    if (!wide) return;
    clike_need(e, (tn_dtype)in->dtype, wide);
    clike_line(e);
    str_addf(e->out, "%sx%d w%u = ", clike_reg_type((tn_dtype)in->dtype), wide, r);
    clike_operand(e, r, wide);
    if (bytes >= 16 && bytes <= 64) str_addf(e->out, "; KEEP_%d(w%u)", bytes, r);
    str_add(e->out, ";\n");
}

static void print_factor(clike *e, const kins *in, reg r) {
    int wide = shared_broadcast(e, r), lanes = in->lanes;
    if (!wide || lanes == 1) {
        clike_operand(e, r, lanes);
    } else if (lanes == wide) {
        str_addf(e->out, "w%u", r);
    } else {
        str_addf(e->out, "__builtin_shufflevector(w%u, w%u", r, r);
        for (int l = 0; l < lanes; l++) str_addf(e->out, ", %d", l);
        str_add(e->out, ")");
    }
}

static void print_update(clike *e, const kins *in) {
    tn_dtype t = (tn_dtype)in->dtype;
    int lanes = width(e, in);
    if (in->alu == OP_dot && e->l->gpu && dtype_is_float(t) && !in->packed) {
        print_fma(e, in);
        return;
    }
    print_lanes(e, in);
    clike_register(e, in->c);
    if (in->alu == OP_NIL) {
        str_add(e->out, " = "), clike_operand(e, in->a, in->lanes), str_add(e->out, ";\n");
        return;
    }
    if (in->packed) {
        clike_need(e, TN_F32, lanes), clike_need(e, TN_I32, lanes);
        str_addf(e->out, " = DOT_%s_x%d(", t == TN_F32 ? "bf16" : in->packed == 2 ? "i16" : "i8", lanes);
        clike_operand(e, in->a, in->lanes), str_add(e->out, ", ");
        clike_operand(e, in->b, in->lanes), str_add(e->out, ", ");
        clike_register(e, in->c), str_add(e->out, ");\n");
        return;
    }
    if (in->alu == OP_dot && !dtype_is_float(t)) {
        clike_use_op(e, OP_add, t, lanes);
        str_addf(e->out, " = op_add_%sx%d(", clike_reg_type(t), lanes);
        clike_register(e, in->c);
        str_add(e->out, ", ");
        print_alu_value(e, OP_mul, t, lanes, (const reg[]){ in->a, in->b }, 2);
        str_add(e->out, ");\n");
        return;
    }
    if (in->alu == OP_dot) {
        str_addf(e->out, " = MAC_%sx%d(", clike_reg_type(t), lanes);
        print_factor(e, in, in->a), str_add(e->out, ", ");
        print_factor(e, in, in->b), str_add(e->out, ", ");
        clike_register(e, in->c), str_add(e->out, ");\n");
        return;
    }
    if (clike_infix((op_code)in->alu, t) && in->alu != OP_sub) {
        str_add(e->out, in->alu == OP_add ? " += " : " *= ");
        clike_operand(e, in->a, in->lanes);
        print_rounded(e, in, in->c);
        str_add(e->out, ";\n");
        return;
    }
    str_add(e->out, " = ");
    reg r[2] = { in->c, in->a };
    print_alu_value(e, (op_code)in->alu, t, lanes, r, 2);
    str_add(e->out, ";\n");
}

/* The first best wins; a NaN wins over everything and the first NaN stays. */
static void print_arg_update(clike *e, const kins *in) {
    tn_dtype t = (tn_dtype)in->dtype;
    const char *type = clike_reg_type(t), *lane = e->l->gpu && in->lanes > 1 ? "[l]" : "";
    const char *c = arena_printf(e->out->a, "v%u%s", in->c, lane), *at = arena_printf(e->out->a, "v%u%s", in->b, lane);
    int l = width(e, in);
    clike_need(e, t, l), clike_need(e, TN_I64, l);
    print_lanes(e, in);
    str_addf(e->out, "{ %sx%d x = ", type, l);
    clike_operand(e, in->a, l);
    str_addf(e->out, "; i32x%d first = EQ_i64x%d(%s, K_i64x%d(-1));", l, l, at, l);
    str_addf(e->out, " i32x%d better = first | LT_%sx%d(%s);", l, type, l,
             in->alu == OP_argmax ? arena_printf(e->out->a, "%s, x", c) : arena_printf(e->out->a, "x, %s", c));
    if (dtype_is_float(t))
        str_addf(e->out, " better = (better | NE_%sx%d(x, x)) & ~(NE_%sx%d(%s, %s) & ~first);", type, l, type, l, c, c);
    str_addf(e->out, " %s = SEL_%sx%d(better, x, %s);", c, type, l, c);
    str_addf(e->out, " %s = SEL_i64x%d(better, K_i64x%d(", at, l, l);
    clike_affine(e, in->idx, 0);
    str_addf(e->out, "), %s); }\n", at);
}

static void print_cast_value(clike *e, tn_dtype to, tn_dtype from, reg r, int lanes) {
    tn_dtype rt = dtype_reg(to), rf = dtype_reg(from);
    clike_need(e, rt, lanes), clike_need(e, rf, lanes);
    const char *tt = clike_reg_type(rt), *tf = clike_reg_type(rf);
    reg x = r;
    if (to == TN_BOOL) {
        if (from == TN_BOOL)
            clike_operand(e, x, lanes);
        else {
            str_addf(e->out, "NE_%sx%d(", tf, lanes);
            clike_operand(e, x, lanes);
            str_addf(e->out, ", K_%sx%d(0))", tf, lanes);
        }
        return;
    }
    const char *sign = from == TN_BOOL ? "-" : "";
    if (dtype_is_float(from) && dtype_is_int(to)) {
        str_addf(e->out, "to_%s_%sx%d(", dtype_name(to), tf, lanes);
        clike_operand(e, x, lanes);
        str_add(e->out, ")");
        return;
    }
    bool wrap = dtype_is_narrow_int(to);
    if (wrap) str_addf(e->out, "wrap_%s_x%d(", dtype_name(to), lanes);
    if (rt == rf)
        str_addf(e->out, "%s(", sign);
    else if (lanes == 1)
        str_addf(e->out, "(%sx1)(%s", tt, sign);
    else
        str_addf(e->out, "__builtin_convertvector(%s", sign);
    clike_operand(e, x, lanes);
    if (rt != rf && lanes > 1) str_addf(e->out, ", %sx%d", tt, lanes);
    str_add(e->out, wrap ? "))" : ")");
}

/* The value is hidden from the compiler: where it unrolls a loop it would else compute x * index + y in two roundings, and in
 * one where it does not, so that the bits would depend on how a loop is split over threads. */
static void print_index(clike *e, const kins *in, reg r) {
    const char *type = clike_reg_type((tn_dtype)in->dtype);
    bool wide = in->lanes > 1;
    if (e->l->gpu && wide) {
        print_result(e, in, r);
        str_addf(e->out, "(%sx1)(", type);
        print_lane_index(e, in);
        str_add(e->out, ");\n");
        return;
    }
    clike_need(e, (tn_dtype)in->dtype, in->lanes);
    clike_need(e, (tn_dtype)in->dtype, 1);
    str_addf(e->out, "%sx1 %s%u = (%sx1)(", type, wide ? "n" : "v", r, type);
    clike_affine(e, in->idx, 0);
    str_add(e->out, ");");
    if (!e->l->gpu) str_addf(e->out, " HIDE(%s%u);", wide ? "n" : "v", r);
    if (wide) {
        str_addf(e->out, " const %sx%d d%u = { ", type, in->lanes, r);
        for (int l = 0; l < in->lanes; l++) str_addf(e->out, "%s%lld", l ? ", " : "", (long long)(l * in->lane_stride));
        str_addf(e->out, " }; %sx%d v%u = K_%sx%d(n%u) + d%u;", type, in->lanes, r, type, in->lanes, r, r);
    }
    str_add(e->out, "\n");
}

static void print_random(clike *e, const kins *in, reg r) {
    clike_need(e, TN_F32, width(e, in)), clike_need(e, TN_I64, 1);
    e->needs.random = true;
    if (e->l->gpu) {
        print_result(e, in, r);
        str_addf(e->out, "random_at(v%u, %lld%s, ", in->a, (long long)in->stream, e->l->wide_end);
        print_lane_index(e, in);
        str_add(e->out, ");\n");
        return;
    }
    if (in->lanes >= 4) {
        str_addf(e->out, "f32x%d v%u; random_lanes(v%u, %lld%s, ", in->lanes, r, in->a, (long long)in->stream, e->l->wide_end);
        clike_affine(e, in->idx, 0);
        str_addf(e->out, ", %lld, %d, (float *)&v%u);\n", (long long)in->lane_stride, in->lanes, r);
        return;
    }
    str_addf(e->out, "f32x%d v%u = ", in->lanes, r);
    if (in->lanes > 1) str_add(e->out, "{ ");
    for (int l = 0; l < in->lanes; l++) {
        str_addf(e->out, "%srandom_at(v%u, %lld%s, ", l ? ", " : "", in->a, (long long)in->stream, e->l->wide_end);
        clike_affine(e, in->idx, l * in->lane_stride);
        str_add(e->out, ")");
    }
    str_add(e->out, in->lanes > 1 ? " };\n" : ";\n");
}

/* Of GPUs an array's elements; of C halves of a vector, down to two lanes. In both the same are combined. */
static void print_hsum(clike *e, const kins *in, reg r) {
    tn_dtype t = (tn_dtype)in->dtype;
    int lanes = (int)in->combined;
    const char *type = clike_reg_type(t), *sign = clike_infix((op_code)in->alu, t), *of = arena_printf(e->out->a, "v%u", in->a);
    const char *open = sign ? "" : arena_printf(e->out->a, "op_%s_%s", op_get((op_code)in->alu)->name, type);
    const char *between = sign ? sign : ", ";
    clike_need(e, t, 1);
    if (!e->l->gpu) clike_need(e, t, lanes);
    if (!sign) clike_use_op(e, (op_code)in->alu, t, 1);
    str_addf(e->out, "%sx1 v%u; {", type, r);
    for (; !e->l->gpu && lanes > 4; lanes /= 2) {
        int half = lanes / 2;
        clike_need(e, t, half);
        if (!sign) clike_use_op(e, (op_code)in->alu, t, half);
        str_addf(e->out, " const %sx%d h%d = %s", type, half, half, open);
        if (!sign) str_addf(e->out, "x%d(", half);
        for (int l = 0; l < lanes; l++) {
            if (l % half == 0) str_addf(e->out, "%s__builtin_shufflevector(%s, %s", l ? between : "", of, of);
            str_addf(e->out, ", %d%s", l, l % half == half - 1 ? ")" : "");
        }
        str_addf(e->out, "%s;", sign ? "" : ")");
        of = arena_printf(e->out->a, "h%d", half);
    }
    if (!e->l->gpu && lanes == 4) { /* the upper two beside the lower two: an instruction for both */
        if (!sign) clike_use_op(e, (op_code)in->alu, t, 4);
        str_addf(e->out, " const %sx4 h2 = %s%s%s%s__builtin_shufflevector(%s, %s, 2, 3, 0, 1)%s;", type, open,
                 sign ? "" : "x4(", of, between, of, of, sign ? "" : ")");
        of = "h2", lanes = 2;
    }
    str_addf(e->out, " %sx1 h[%d]; for (int l = 0; l < %d; l++) h[l] = %s[l];", type, lanes, lanes, of);
    for (int half = lanes / 2; half >= 1; half /= 2)
        str_addf(e->out, " for (int l = 0; l < %d; l++) h[l] = %s%sh[l]%sh[l + %d]%s;", half, open, sign ? "" : "x1(", between,
                 half, sign ? "" : ")");
    str_addf(e->out, " v%u = h[0];", r);
    if (!e->l->gpu) str_addf(e->out, " (void)v%u;", r); /* a mask may have left nothing that reads it */
    str_add(e->out, " }\n");
}

/* Copies of a contraction's body that share one step of the loop counter: on a core that another program shares, the front end
 * is the limit, and every instruction that does no arithmetic counts. */
static int contraction_unroll(const clike *e, reg loop) {
    const kins *in = &e->k->ins.at[loop];
    bool tile = false, dot = false;
    for (reg r = loop + 1; e->k->ins.at[r].op != K_END; r++) {
        if (e->k->ins.at[r].op == K_LOOP) return 1;
        tile |= e->k->ins.at[r].op == K_LOAD && clike_feeds_contraction(e, r);
        dot |= e->k->ins.at[r].op == K_UPD && e->k->ins.at[r].alu == OP_dot;
    }
    if (!ext_is_lit(in->lo) || !ext_is_lit(in->hi)) return 1;
    int64_t steps = (in->hi - in->lo) / in->step;
    if (dot && steps <= 8) return (int)steps; /* all of it: what the loops around it do not change can move out */
    return !tile || steps < 16 ? 1 : steps < 64 ? 4 : 8;
}

/* Copies of the body of a serial loop on a GPU: as the variable says, one where threads meet in it; 0: the compiler's choice.
 */
static int serial_unroll(const clike *e, reg loop) {
    int role = e->k->vars.at[e->k->ins.at[loop].var].role.unroll, depth = 0;
    bool barrier = false, memory = false; /* in shared memory, where a language has no shuffles: many barriers */
    for (reg r = loop; r < (reg)e->k->ins.n; r++) {
        kop op = (kop)e->k->ins.at[r].op;
        depth += (op == K_LOOP) - (op == K_END);
        barrier |= op == K_BARRIER, memory |= op == K_BLOCK_REDUCE && !e->l->shuffle;
        if (depth == 0) break;
    }
    if (role > 1 && !memory) return role;
    return e->k->cluster || barrier || memory; /* bodies of clusters are long enough */
}

static void print_zip(clike *e, const kins *in, reg r) {
    clike_need(e, (tn_dtype)in->dtype, in->lanes);
    str_addf(e->out, "%sx%d v%u = __builtin_shufflevector(v%u, v%u", clike_reg_type((tn_dtype)in->dtype), in->lanes, r, in->a,
             in->b);
    for (int l = 0; l < in->lanes; l++) {
        bool of_b;
        int from = kernel_zip_lane(in, l, &of_b);
        str_addf(e->out, ", %d", from + (of_b ? in->lanes : 0));
    }
    str_add(e->out, ");\n");
}

static void print_part(clike *e, const kins *in, reg r) {
    if (in->lanes > 1 && !e->l->gpu) guard_fail(e->out->a->gd, TN_ERR_INTERNAL, "kernel %s: lanes of lanes in C", e->k->name);
    print_result(e, in, r);
    if (in->lanes > 1)
        str_addf(e->out, "v%u[l + %lld];\n", in->a, (long long)in->first_lane);
    else if (e->k->ins.at[in->a].lanes > 1)
        str_addf(e->out, "v%u[%lld];\n", in->a, (long long)in->first_lane);
    else
        str_addf(e->out, "v%u;\n", in->a);
}

static void open_block(clike *e, bool braces) {
    VEC_PUSH(e->out->a, &e->braces, braces);
    e->indent += braces;
}

/* The loops of a dealt nest are one block, which the first of them opens. */
static bool inside_bound(const kins *in) {
    return in->op == K_LOOP && in->par >= PAR_GRID_THREADS && in[-1].op == K_LOOP && in[-1].par == in->par;
}

/* Iterations of a bound loop, in words. */
static void print_trips(clike *e, const kins *in) {
    if (ext_is_lit(in->lo) && ext_is_lit(in->hi)) {
        str_addf(e->out, "%lld%s", (long long)(in->hi > in->lo ? in->hi - in->lo : 1), e->index_end);
        return;
    }
    str_add(e->out, "(");
    clike_ext(e, in->hi);
    str_add(e->out, " - ");
    clike_ext(e, in->lo);
    str_add(e->out, ")");
}

static bool has_sizes_of_run(const kins *in, int n) {
    bool has = false;
    for (int i = 0; i < n; i++) has |= !ext_is_lit(in[i].lo) || !ext_is_lit(in[i].hi);
    return has;
}

/* A nest whose sizes a run gives: as many thread blocks as iterations, or any number of threads of the grid or of a block. */
static void print_param_bound(clike *e, const kins *in, reg r, int n) {
    if (in->par == PAR_BLOCKS && in->n_blocks) { /* of some of the thread blocks */
        str_addf(e->out, "if (group >= "), clike_ext(e, in->first_block);
        str_addf(e->out, " && group - "), clike_ext(e, in->first_block);
        str_addf(e->out, " < "), clike_ext(e, in->n_blocks);
        str_addf(e->out, ") { const %s n%u = group - ", e->index, r), clike_ext(e, in->first_block);
        str_add(e->out, ";");
    } else if (in->par == PAR_BLOCKS) {
        str_addf(e->out, "{ const %s n%u = group;", e->index, r);
    } else {
        bool grid = in->par == PAR_GRID_THREADS;
        str_addf(e->out, "for (%s n%u = %s; n%u < ", e->index, r, grid ? "thread" : "tid", r);
        for (int i = 0; i < n; i++) str_add(e->out, i ? " * " : ""), print_trips(e, &in[i]);
        str_addf(e->out, "; n%u += ", r);
        if (grid) clike_ext(e, e->k->grid_blocks), str_add(e->out, " * ");
        str_addf(e->out, "%d) {", e->k->block_threads);
    }
    for (int i = n - 1; i >= 0; i--) {
        str_addf(e->out, " const %s i%d = n%u", e->index, in[i].var, r);
        for (int j = i + 1; j < n; j++) str_add(e->out, " / "), print_trips(e, &in[j]);
        if (i > 0) str_add(e->out, " % "), print_trips(e, &in[i]);
        if (in[i].lo) str_add(e->out, " + "), clike_ext(e, in[i].lo);
        str_add(e->out, ";");
    }
    str_add(e->out, "\n");
    open_block(e, true);
}

/* Sums of products of which each thread of a block has the same small number: what all of them read is under way at once. */
static bool sums_in_turns(const kernel *k, reg r, int64_t size, int64_t all) {
    enum { MOST = 8 };
    int inner = (int)r + kernel_nest(k, r) - 1, end = kernel_loop_end(k, inner);
    bool sums = false;
    if (k->ins.at[r].par != PAR_BLOCK_THREADS || size % all || size / all < 2 || size / all > MOST) return false;
    for (int i = inner + 1; i < end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP || in->op == K_STORE || in->op == K_SCATTER) return false;
        sums |= in->op == K_UPD && in->alu == OP_dot;
    }
    return sums;
}

int clike_turns(const clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    int inner = (int)r + kernel_nest(e->k, r) - 1, all = e->k->block_threads;
    if (in->par != PAR_BLOCK_THREADS || in->dyn_n || has_sizes_of_run(in, kernel_nest(e->k, r))) return 0;
    for (int i = inner + 1; i < kernel_loop_end(e->k, inner); i++)
        if (e->k->ins.at[i].op == K_LOOP) return 0;
    int64_t size = kernel_nest_size(e->k, r);
    return sums_in_turns(e->k, r, size, all) ? (int)(size / all) : size <= all;
}

static void print_bound(clike *e, const kins *in, reg r) {
    int n_loops = kernel_nest(e->k, r);
    bool grid = in->par == PAR_GRID_THREADS && !ext_is_lit(e->k->grid_blocks);
    bool some = in->par == PAR_BLOCKS && in->n_blocks && !(ext_is_lit(in->n_blocks) && ext_is_lit(in->first_block));
    if (grid || some || has_sizes_of_run(in, n_loops)) {
        print_param_bound(e, in, r, n_loops);
        return;
    }
    const char *end = e->index_end, *id = in->par == PAR_GRID_THREADS ? "thread" : in->par == PAR_BLOCKS ? "group" : "tid";
    int64_t first, grid_blocks = kernel_nest_blocks(e->k, r, &first);
    int64_t size = kernel_nest_size(e->k, r), rest = 1,
            all = in->par == PAR_GRID_THREADS ? grid_blocks * e->k->block_threads
                  : in->par == PAR_BLOCKS     ? grid_blocks
                                              : e->k->block_threads;
    if (first)
        id = arena_printf(e->out->a, "(%s - %lld%s)", id,
                          (long long)(in->par == PAR_GRID_THREADS ? first * e->k->block_threads : first), end);
    if (in->dyn_n && size > all)
        str_addf(e->out, "for (%s n%u = %s < %lld%s ? %s : %lld%s; n%u >= 0 && n%u < %lld%s; n%u += %lld%s) {", e->index, r, id,
                 (long long)all, end, id, (long long)size, end, r, r, (long long)size, end, r, (long long)all, end);
    else if (in->dyn_n)
        str_addf(e->out, "if (%s >= 0 && %s < %lld%s) { const %s n%u = %s;", id, id, (long long)size, end, e->index, r, id);
    else if (sums_in_turns(e->k, r, size, all))
        str_addf(e->out, "UNROLL(%lld) for (%s t%u = 0; t%u < %lld%s; t%u++) { const %s n%u = %s + t%u * %lld%s;",
                 (long long)(size / all), e->index, r, r, (long long)(size / all), end, r, e->index, r, id, r, (long long)all,
                 end);
    else if (size > all)
        str_addf(e->out, "for (%s n%u = %s; n%u < %lld%s; n%u += %lld%s) {", e->index, r, id, r, (long long)size, end, r,
                 (long long)all, end);
    else if (size < all)
        str_addf(e->out, "if (%s < %lld%s) { const %s n%u = %s;", id, (long long)size, end, e->index, r, id);
    else
        str_addf(e->out, "{ const %s n%u = %s;", e->index, r, id);
    for (int i = kernel_nest(e->k, r) - 1; i >= 0; i--) {
        int64_t trips = in[i].hi > in[i].lo ? in[i].hi - in[i].lo : 1;
        str_addf(e->out, " const %s i%d = n%u", e->index, in[i].var, r);
        if (rest > 1) str_addf(e->out, " / %lld%s", (long long)rest, end);
        if (i > 0) str_addf(e->out, " %% %lld%s", (long long)trips, end);
        if (in[i].lo) str_addf(e->out, " + %lld%s", (long long)in[i].lo, end);
        str_add(e->out, ";");
        rest *= trips;
    }
    str_add(e->out, "\n");
    open_block(e, true);
}

/* A loop whose bounds are parameters; one that threads share in whole steps. */
static void print_param_loop(clike *e, const kins *in) {
    int v = in->var;
    str_add(e->out, "for (int64_t ");
    for (int end = 0; end < (in->par ? 2 : 1); end++) {
        str_addf(e->out, end ? ", end%d = " : "i%d = ", v);
        clike_ext(e, in->lo);
        if (!in->par) break;
        str_add(e->out, " + (");
        clike_ext(e, in->hi);
        str_add(e->out, " - ");
        clike_ext(e, in->lo);
        str_addf(e->out, ") / %lldL * %s / nt * %lldL", (long long)in->step, end ? "(tid + 1)" : "tid", (long long)in->step);
    }
    str_addf(e->out, "; i%d < ", v);
    if (in->a) str_addf(e->out, "(v%u == 0 ? i%d : ", in->a, v);
    if (in->par)
        str_addf(e->out, "end%d", v);
    else
        clike_ext(e, in->hi);
    str_addf(e->out, "%s; i%d += %lldL) {\n", in->a ? ")" : "", v, (long long)in->step);
}

static const char *approximate_name(const clike_language *l, const kins *in) {
    for (size_t i = 0; in->mode && i < sizeof l->approximate / sizeof *l->approximate && l->approximate[i].name; i++)
        if (l->approximate[i].op == (op_code)in->alu)
            return in->mode == ALU_COARSE ? l->approximate[i].coarse : l->approximate[i].name;
    return NULL;
}

/* Of weights that units multiply with: what is subtracted is multiplied by log2(e) once, for all that it is subtracted from.
 * That product's rounding, which grows with it, is in all weights of a row alike, and in their sum. */
static bool is_exp_of_difference(const clike *e, const kins *in, reg r) {
    const kins *of = &e->k->ins.at[in->a];
    bool weight = false;
    if (!e->l->exp_of_difference || in->mode != ALU_COARSE || in->alu != OP_exp) return false;
    for (reg i = r + 1; i < (reg)e->k->ins.n && !weight; i++) weight = e->k->ins.at[i].op == K_FRAGMENT;
    return weight && of->op == K_ALU && of->alu == OP_sub && of->lanes == in->lanes;
}

static bool is_used_once(const clike *e, reg r) {
    int uses = 0;
    for (reg i = r + 1; i < (reg)e->k->ins.n && uses < 2; i++) {
        const kins *user = &e->k->ins.at[i];
        uses += (user->a == r) + (user->b == r) + (user->c == r) + (user->dyn == r);
    }
    return uses < 2;
}

/* The operand of an approximate sum that is a product, to be rounded with the sum; 0: none. Of two that which nothing else
 * uses: it need not be computed then. */
static int product_operand(const clike *e, const kins *in) {
    reg operand[3] = { 0, in->a, in->b };
    int side = 0;
    if (!e->l->contracts || !in->mode || (in->alu != OP_add && in->alu != OP_sub)) return 0;
    for (int i = 1; i <= 2; i++) {
        const kins *product = &e->k->ins.at[operand[i]];
        bool is_product = product->op == K_ALU && product->alu == OP_mul && product->lanes == in->lanes;
        if (is_product && (!side || !is_used_once(e, operand[side]))) side = i;
    }
    return side;
}

static void print_contracted(clike *e, const kins *in, int side) {
    const kins *product = &e->k->ins.at[side == 1 ? in->a : in->b];
    bool minus = in->alu == OP_sub;
    str_addf(e->out, "%s(%s", e->l->fma[0], minus && side == 2 ? "-" : "");
    clike_register(e, product->a), str_add(e->out, ", ");
    clike_register(e, product->b), str_add(e->out, minus && side == 1 ? ", -" : ", ");
    clike_register(e, side == 1 ? in->b : in->a), str_add(e->out, ")");
}

static void print_loop(clike *e, const kins *in, reg r) {
    if (in->par >= PAR_GRID_THREADS) {
        print_bound(e, in, r);
        return;
    }
    int v = in->var, unroll = in->par ? 1 : e->l->gpu ? serial_unroll(e, r) : contraction_unroll(e, r);
    if (unroll > (e->l->gpu ? 0 : 1)) {
        str_addf(e->out, "UNROLL(%d)\n", unroll);
        clike_line(e);
    }
    if (!ext_is_lit(in->lo) || !ext_is_lit(in->hi)) {
        print_param_loop(e, in);
    } else if (in->par == PAR_LAST) {
        str_addf(e->out, "if (tid == nt - 1) { const int64_t i%d = %lldL;\n", v, (long long)in->lo);
    } else if (in->par) {
        int64_t steps = (in->hi - in->lo) / in->step;
        str_addf(e->out,
                 "for (int64_t i%d = %lldL + %lldL * tid / nt * %lldL, end%d = %lldL + %lldL * (tid + 1) / nt * %lldL; i%d < "
                 "end%d; i%d += %lldL) {\n",
                 v, (long long)in->lo, (long long)steps, (long long)in->step, v, (long long)in->lo, (long long)steps,
                 (long long)in->step, v, v, v, (long long)in->step);
    } else {
        str_addf(e->out, "for (%s i%d = ", e->index, v);
        if (in->a) str_addf(e->out, "v%u == 0 ? %lld%s : ", in->a, (long long)in->hi, e->index_end);
        str_addf(e->out, "%lld%s; i%d < %lld%s; i%d += %lld%s) {\n", (long long)in->lo, e->index_end, v, (long long)in->hi,
                 e->index_end, v, (long long)in->step, e->index_end);
    }
    open_block(e, true);
    if (!e->l->gpu && unroll > 1) clike_forget_taps(e, r, unroll);
}

/* The number of the only element that a nest which begins with index r adds to a sum, or 0: vectors without it add what a
 * select makes +0, and a sum that begins with +0 never comes to -0, which that would change. */
static reg only_element(const clike *e, reg r) {
    const kins *k = e->k->ins.at, *index = &k[r];
    reg hot = 0, picked = 0, part = 0, sum = 0, number = 0, i = r + 1;
    if (!e->l->gpu || k[r - 1].op != K_LOOP || index->dtype != TN_I32 || index->lanes < 4 || index->lane_stride != 1) return 0;
    for (; k[i].op != K_END; i++) {
        const kins *in = &k[i], *zero = &k[in->c];
        bool eq = in->op == K_ALU && in->alu == OP_eq && (in->a == r || in->b == r);
        if (sum ||
            (in->op == K_UPD && (!part || in->a != part || in->alu != OP_add || k[in->c].imm != 0 || signbit(k[in->c].imm))))
            return 0;
        if (in->op == K_UPD)
            sum = i;
        else if (eq)
            hot = i, number = in->a == r ? in->b : in->a;
        else if (hot && in->op == K_ALU && in->alu == OP_select && in->a == hot && zero->op == K_CONST &&
                 dtype_is_float((tn_dtype)zero->dtype) && zero->imm == 0 && !signbit(zero->imm))
            picked = i;
        else if (picked && in->op == K_LANE_REDUCE && in->a == picked && in->alu == OP_add && in->combined == index->lanes)
            part = i;
        else if (in->op != K_LOAD && in->op != K_ALU && in->op != K_CAST)
            return 0;
    }
    return sum && number < r && k[number].lanes <= 1 ? number : 0;
}

static void print_instruction(clike *e, reg r);

/* A few lanes are a statement each, which compiles faster than a loop. */
void clike_instruction(clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    if (e->bulk.stages && clike_bulk_copy(e, r)) return;
    if (is_named(e, r) || clike_is_kept(e, in) || clike_is_async(e, in)) return;
    bool apart = e->l->gpu && in->lanes > 1 && in->lanes <= 4 &&
                 (in->op == K_CONST || in->op == K_ACC || in->op == K_ALU || (in->op == K_UPD && in->alu == OP_NIL));
    for (int l = 0; l < (apart ? in->lanes : 1); l++) {
        e->lane = apart ? l + 1 : 0;
        print_instruction(e, r);
    }
    e->lane = 0;
}

static void print_instruction(clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    tn_dtype t = (tn_dtype)in->dtype;
    if (inside_bound(in)) {
        open_block(e, false);
        return;
    }
    if (in->op == K_END) {
        if (e->only) clike_line(e), str_add(e->out, "}\n"), e->only = 0;
        bool braces = e->braces.at[--e->braces.n];
        while (e->bases.n && e->bases.at[e->bases.n - 1].depth > e->braces.n) e->bases.n--;
        if (!braces) return;
        e->indent--;
    }
    clike_line(e);
    switch (in->op) {
    case K_LOOP:
        print_loop(e, in, r);
        return;
    case K_END:
        str_add(e->out, "}\n");
        return;
    case K_BARRIER:
        clike_bulk_meet(e, r);
        if (in->mode == BARRIER_MBARRIER)
            str_addf(e->out, "WAIT_FULL(%d, %lld)\n", in->buf, (long long)e->k->bufs.at[in->buf].elems * 4);
        else
            str_addf(e->out, "%s\n", in->mode == BARRIER_CLUSTER ? e->l->cluster_barrier : clike_barrier(e));
        clike_bulk_again(e, r);
        return;
    case K_BLOCK_REDUCE:
        if (in->width)
            clike_block_part(e, in, r);
        else if (in->b)
            clike_block_before(e, in, r);
        else
            clike_block_reduce(e, in, r);
        return;
    case K_BLOCK_ARGREDUCE:
        clike_block_argreduce(e, in, r);
        return;
    case K_LANES:
        print_part(e, in, r);
        return;
    case K_CONST:
    case K_ACC:
        print_result(e, in, r);
        str_addf(e->out, "K_%sx%d(", clike_reg_type(t), width(e, in));
        clike_value(e, t, in->imm, in->imm_int);
        str_add(e->out, ");\n");
        return;
    case K_INDEX:
        if ((e->only = only_element(e, r)) != 0) {
            clike_need(e, TN_I32, 1);
            str_add(e->out, "if ((u32x1)"), clike_register(e, e->only), str_add(e->out, " - (u32x1)(");
            clike_affine(e, in->idx, 0);
            str_addf(e->out, ") < %du) {\n", in->lanes);
            clike_line(e);
        }
        print_index(e, in, r);
        return;
    case K_LOAD:
        e->vector = 0, e->back = false; /* products of what is loaded next begin anew */
        clike_load(e, in, r);
        print_shared_broadcast(e, r);
        return;
    case K_STORE:
        clike_store(e, in);
        return;
    case K_SCATTER:
        clike_scatter(e, in);
        return;
    case K_PREFETCH:
        clike_prefetch(e, in);
        return;
    case K_MATRIX:
        clike_matrix(e, in, r);
        return;
    case K_PUT:
        str_addf(e->out, "LANES(%d) v%u[l + %lld] = v%u%s;\n", in->lanes, in->c, (long long)in->first_lane, in->a,
                 e->k->ins.at[in->a].lanes > 1 ? "[l]" : "");
        return;
    case K_FRAGMENT:
        clike_fragment(e, in, r);
        return;
    case K_MMA:
        clike_multiply(e, in, r);
        return;
    case K_ASYNC:
        clike_async(e, in, r);
        return;
    case K_RANDOM:
        print_random(e, in, r);
        return;
    case K_LANE_REDUCE:
        print_hsum(e, in, r);
        return;
    case K_ZIP:
        print_zip(e, in, r);
        return;
    case K_UPD:
        print_update(e, in);
        return;
    case K_ARGUPD:
        print_arg_update(e, in);
        return;
    case K_ALU: {
        reg ops[3] = { in->a, in->b, in->c };
        print_result(e, in, r);
        const char *approximate = approximate_name(e->l, in);
        const kins *of = &e->k->ins.at[in->a];
        if (is_exp_of_difference(e, in, r)) {
            str_addf(e->out, "%s(", e->l->exp_of_difference);
            clike_register(e, of->a), str_add(e->out, ", ");
            clike_register(e, of->b), str_add(e->out, ")");
            break;
        }
        if (approximate) {
            str_addf(e->out, "%s(", approximate);
            clike_register(e, in->a);
            str_add(e->out, ")");
            break;
        }
        if (print_and_or(e, in)) break;
        int side = product_operand(e, in);
        if (side) {
            print_contracted(e, in, side);
            break;
        }
        print_alu_value(e, (op_code)in->alu, (tn_dtype)in->src, width(e, in), ops, op_get((op_code)in->alu)->arity);
        print_rounded(e, in, r);
        break;
    }
    case K_CAST:
        print_result(e, in, r);
        print_cast_value(e, t, (tn_dtype)in->src, in->a, width(e, in));
        break;
    case K_BITCAST:
        print_result(e, in, r);
        clike_need(e, t, width(e, in)), clike_need(e, (tn_dtype)in->src, width(e, in));
        str_addf(e->out, "%s_%sx%d(", dtype_is_float(t) ? "FROM" : "BITS",
                 clike_reg_type(dtype_is_float(t) ? t : (tn_dtype)in->src), width(e, in));
        clike_operand(e, in->a, width(e, in));
        str_add(e->out, ")");
        break;
    case K_WRAP:
        print_result(e, in, r);
        if (in->src == TN_BF16 && e->l->pack_bf16) { /* in the upper half of the word it is the f32 */
            str_addf(e->out, "FROM_f32x1((int32_t)%s(0.0f, ", e->l->pack_bf16);
            clike_register(e, in->a);
            str_add(e->out, "))");
        } else if (dtype_is_float((tn_dtype)in->src)) {
            const char *w = clike_narrow_float((tn_dtype)in->src);
            e->needs.half = true;
            str_addf(e->out, "FROM_%s_f32x%d(TO_%s_f32x%d(", w, width(e, in), w, width(e, in));
            clike_register(e, in->a);
            str_add(e->out, "))");
        } else {
            str_addf(e->out, "wrap_%s_x%d(", dtype_name((tn_dtype)in->src), width(e, in));
            clike_register(e, in->a);
            str_add(e->out, ")");
        }
        break;
    default:
        guard_fail(e->out->a->gd, TN_ERR_INTERNAL, "kernel %s: op code %d has no C form", e->k->name, in->op);
    }
    str_add(e->out, ";\n");
}
