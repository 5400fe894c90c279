/* packed_dot.c - packed operands: a contraction of narrow numbers takes two or four neighbours of its innermost loop at once
 * (kernel.h). In and out: scalar form with roles, lanes along a row of the result.
 *
 * Applies where an update in the innermost loop of a contraction multiplies two bf16, or two bytes, as they are loaded; where
 * the operand without the lanes lies along that loop, so that a word of it is a word of memory; and where the loop comes out
 * even. The other operand may lie in any way: its words are put together from its rows, by the loads in place, or once by the
 * copy in panels (pack.c, plan_panels.c). This depends on the graph and on what the processor has, not on how the kernel is
 * cut: the sum of two bf16 products goes on from the second of them, and every way to cut the kernel has to do the same. */
#include "loop/build.h"
#include "loop/schedule.h"
#include "loop/loop.h"

typedef struct packer {
    kernel *k;
    int loop, end, upd; /* instructions */
    kvar depth, lanes;
    reg row, column; /* loads: without the lanes, with them */
} packer;

static kins *ins(const packer *p, int i) { return &p->k->ins.at[i]; }

/* The load whose elements the register holds, widened at most. */
static reg loaded(const packer *p, reg r) {
    const kins *in = ins(p, (int)r);
    if (in->op == K_CAST && in->src != in->dtype && dtype_reg((tn_dtype)in->src) == (tn_dtype)in->dtype) {
        r = in->a;
        if (ins(p, (int)r)->src != in->src) return 0;
        in = ins(p, (int)r);
    }
    return in->op == K_LOAD && !in->dyn && (int)r > p->loop && (int)r < p->end ? r : 0;
}

static bool find_update(packer *p) {
    for (int i = 1; i < p->k->ins.n; i++) {
        if (ins(p, i)->op != K_UPD || ins(p, i)->alu != OP_dot) continue;
        if (p->upd) return false;
        p->upd = i;
    }
    if (!p->upd) return false;
    for (p->loop = p->upd; ins(p, p->loop)->op != K_LOOP; p->loop--)
        if (ins(p, p->loop)->op == K_END || p->loop == 1) return false;
    p->end = kernel_loop_end(p->k, p->loop);
    p->depth = ins(p, p->loop)->var;
    for (int i = p->loop + 1; i < p->end; i++)
        if (ins(p, i)->op != K_LOAD && ins(p, i)->op != K_CAST && i != p->upd) return false;
    const kvar_info *v = &p->k->vars.at[p->depth];
    return v->reduce && v->role.lanes == 1 && v->role.unroll == 1;
}

static bool masked_along(const kins *load, kvar v) {
    for (int m = 0; m < load->n_mask; m++)
        if (affine_coef(load->mask[m].e, v)) return true;
    return false;
}

static bool find_operands(packer *p) {
    const kins *upd = ins(p, p->upd);
    reg a = loaded(p, upd->a), b = loaded(p, upd->b);
    p->lanes = -1;
    for (kvar v = 0; v < p->k->vars.n; v++)
        if (p->k->vars.at[v].role.lanes > 1) p->lanes = v;
    if (!a || !b || p->lanes < 0) return false;
    bool first = affine_coef(ins(p, (int)a)->idx, p->lanes) != 0;
    p->row = first ? b : a, p->column = first ? a : b;
    const kins *row = ins(p, (int)p->row), *column = ins(p, (int)p->column);
    return !affine_coef(row->idx, p->lanes) && affine_coef(column->idx, p->lanes) && affine_coef(row->idx, p->depth) == 1 &&
           affine_coef(column->idx, p->depth) && !column->n_mask && !masked_along(row, p->depth) &&
           !masked_along(row, p->lanes) && row->imm == 0 && row->imm_int == 0;
}

static bool is_byte(uint8_t t) { return t == TN_I8 || t == TN_U8; }

/* Whether that many numbers make a word. */
static bool makes_packed(const packer *p, int64_t packed, str *why) {
    uint8_t x = ins(p, (int)p->row)->src, y = ins(p, (int)p->column)->src, sum = ins(p, p->upd)->dtype;
    int64_t n = p->k->vars.at[p->depth].extent;
    bool bf16 = x == TN_BF16 && y == TN_BF16 && sum == TN_F32, bytes = is_byte(x) && is_byte(y) && sum == TN_I32;
    if (!(packed == 2 && (bf16 || bytes)) && !(packed == 4 && bytes && x != y)) /* one with a sign, one without */
        return step_refuse(why,
                           "%lld products of %s and %s added to %s: there are two of bf16 to f32, two of i8 or u8 to i32, "
                           "and four of u8 and i8 to i32",
                           (long long)packed, dtype_name((tn_dtype)x), dtype_name((tn_dtype)y), dtype_name((tn_dtype)sum));
    if (n <= LOOP_MOST_TAPS && !bytes) return step_refuse(why, "%lld terms are too few", (long long)n);
    if (n % packed) return step_refuse(why, "%lld terms do not come out in packs of %lld", (long long)n, (long long)packed);
    return true;
}

static void pack_load(const packer *p, reg r, int packed) {
    kins *in = ins(p, (int)r);
    int64_t step = affine_coef(in->idx, p->depth);
    affine word = build_times(p->k->a, p->depth, packed);
    in->idx = affine_set_var(p->k->a, in->idx, p->depth, word);
    in->dtype = TN_I32;
    in->packed = (uint8_t)packed, in->packed_stride = step;
}

/* A word is all of it: the loop goes, so that what is around it is the innermost. */
static void leave_loop(const packer *p) {
    for (int i = p->loop + 1; i < p->end; i++) {
        kins *in = ins(p, i);
        in->idx = affine_without(p->k->a, in->idx, p->depth);
        for (int m = 0; m < in->n_mask; m++) in->mask[m].e = affine_without(p->k->a, in->mask[m].e, p->depth);
    }
    ins(p, p->loop)->op = ins(p, p->end)->op = K_NIL;
    loop_compact(p->k);
}

bool step_packed_dot(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    packer p = { .k = k };
    if (!find_update(&p)) return step_refuse(why, "the kernel is not one contraction that multiplies what it loads");
    if (!find_operands(&p))
        return step_refuse(
            why, "no operand without lanes lies along the innermost contraction loop, or a bounds check is in the way");
    if (!makes_packed(&p, s->arg[0].n, why)) return false;
    int packed = (int)s->arg[0].n;
    pack_load(&p, p.row, packed), pack_load(&p, p.column, packed);
    kins *upd = ins(&p, p.upd);
    /* The one without a sign first, or what lies along windows, where the order is free (tile.c). */
    bool transposed = packed == 4 ? ins(&p, (int)p.row)->src == TN_I8 : ins(&p, (int)p.column)->packed_stride == 1;
    upd->a = transposed ? p.column : p.row, upd->b = transposed ? p.row : p.column;
    upd->packed = (uint8_t)packed;
    k->vars.at[p.depth].extent /= packed;
    ins(&p, p.loop)->hi /= packed;
    if (k->vars.at[p.depth].extent == 1) leave_loop(&p);
    loop_sweep(k);
    return true;
}
