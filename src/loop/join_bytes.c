/* join_bytes.c - bytes in panels of which a few bits at a time are used (weights of 4 bits) are read four vectors at once, as
 * words of 32 bits: a vector of the four is a byte of each word, which lie so in memory. No byte is widened: a shift brings it
 * to where its bits are taken. In and out: tiled form. */
#include "loop/build.h"
#include "loop/lay_out.h"
#include "loop/schedule.h"

enum { BYTES = 4 };

static int64_t most_of(const kernel *k, affine x) {
    int64_t hi = x.base;
    for (int i = 0; i < x.n; i++) {
        if (x.t[i].coef < 0 || !ext_is_lit(k->vars.at[x.t[i].var].extent)) return INT64_MAX;
        hi += x.t[i].coef * (k->vars.at[x.t[i].var].extent - 1);
    }
    return hi;
}

/* Whether all that is read of r are bits below that one: an and with a number, also behind a shift to the right. */
static bool uses_low_bits(const kernel *k, reg r, int64_t bits) {
    for (int i = (int)r + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i], *b = &k->ins.at[in->b];
        if (in->a != r && in->b != r && in->c != r && in->dyn != r) continue;
        if (in->op != K_ALU || in->a != r || in->b == r) return false;
        if (in->alu == OP_and && b->op == K_CONST && b->imm_int >= 0 && b->imm_int < INT64_C(1) << bits) continue;
        if (in->alu != OP_shift_right || b->op != K_INDEX || b->lane_stride || b->idx.base < 0) return false;
        int64_t most = most_of(k, b->idx);
        if (most >= bits || !uses_low_bits(k, (reg)i, bits - most)) return false;
    }
    return true;
}

/* Loads of neighbouring vectors, one behind the other, which begin with a row of a panel. */
static bool reads_row(const kernel *k, int at, int buf, int64_t width) {
    const kins *first = &k->ins.at[at];
    for (int i = 0; i < first->idx.n; i++)
        if (first->idx.t[i].coef % width) return false;
    if (first->idx.base % width || at + BYTES > k->ins.n) return false;
    for (int j = 0; j < BYTES; j++) {
        const kins *in = first + j;
        if (in->op != K_LOAD || in->buf != buf || in->dyn || in->n_mask || in->packed || in->lanes * BYTES != width ||
            in->lane_stride != 1 || !affine_equal(in->idx, affine_offset(first->idx, j * in->lanes)) ||
            !uses_low_bits(k, (reg)(at + j), 8))
            return false;
    }
    return true;
}

static affine divided(arena *a, affine x, int64_t by) {
    kterm *t = ARENA_ARRAY(a, kterm, x.n + 1);
    for (int i = 0; i < x.n; i++) t[i] = (kterm){ x.t[i].var, x.t[i].coef / by };
    return (affine){ .base = x.base / by, .n = x.n, .t = t };
}

const kpanels *loop_joined(arena *a, const kpanels *x) {
    kpanels *o = arena_copy(a, x, sizeof *x);
    int n = x->n_outer + x->n_depth;
    o->loops[o->n_outer++] = (kstep){ x->column.extent / x->width, x->width * x->column.step };
    for (int i = x->n_outer; i < n; i++) o->loops[i + 1] = x->loops[i];
    o->width /= BYTES, o->column.extent = o->width, o->packed = BYTES, o->packed_stride = o->width * x->column.step;
    return o;
}

bool step_join_bytes(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why), found = 0;
    if (buf < 0) return false;
    kbuf *b = &k->bufs.at[buf];
    const kpanels *x = b->panels;
    if (!x || x->dtype != TN_U8 || x->packed || x->width % BYTES || x->column.extent % x->width ||
        x->n_outer + x->n_depth == PANEL_LOOPS)
        return step_refuse(why, "b%d is no bytes in panels, all of the same width", buf);
    for (int i = 1; i < k->ins.n; i++) {
        if (!kernel_has_buffer(&k->ins.at[i]) || k->ins.at[i].buf != buf) continue;
        if (!reads_row(k, i, buf, x->width))
            return step_refuse(why, "b%d is not read by rows of a panel, of which bits are used", buf);
        i += BYTES - 1, found++;
    }
    if (!found) return step_refuse(why, "b%d is not read", buf);
    kins shift[BYTES - 1];
    for (int j = 0; j < BYTES - 1; j++) shift[j] = (kins){ .op = K_CONST, .dtype = TN_I32, .lanes = 1, .imm_int = 8 * (j + 1) };
    loop_insert(k, 1, shift, BYTES - 1);
    for (int i = 1; i < k->ins.n; i++) {
        kins *first = &k->ins.at[i];
        if (first->op != K_LOAD || first->buf != buf) continue;
        for (int j = 1; j < BYTES; j++)
            first[j] = (kins){ .op = K_ALU,
                               .alu = OP_shift_right,
                               .src = TN_I32,
                               .dtype = TN_I32,
                               .lanes = first->lanes,
                               .a = (reg)i,
                               .b = (reg)j,
                               .node = first->node };
        first->idx = divided(k->a, first->idx, BYTES), first->src = TN_I32;
        i += BYTES - 1;
    }
    b->panels = loop_joined(k->a, x), b->dtype = TN_I32, b->elems = kpanels_elems(b->panels);
    return true;
}
