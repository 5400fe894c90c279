/* kernel_equal.c - whether two kernels are the same code: everything but names, what the values are called in the graph, and
 * the counts for statistics. In: two kernels of any form. */
#include "ir/kernel.h"

static bool same_number(double x, double y) { return !memcmp(&x, &y, sizeof x); } /* -0 is not 0; a NaN is itself */

static bool same_masks(const kins *x, const kins *y) {
    if (x->n_mask != y->n_mask) return false;
    for (int i = 0; i < x->n_mask; i++)
        if (!affine_equal(x->mask[i].e, y->mask[i].e) || x->mask[i].lo != y->mask[i].lo || x->mask[i].hi != y->mask[i].hi ||
            x->mask_lane[i] != y->mask_lane[i])
            return false;
    return true;
}

static bool same_ins(const kins *x, const kins *y) {
    return x->op == y->op && x->alu == y->alu && x->dtype == y->dtype && x->src == y->src && x->par == y->par &&
           x->lanes == y->lanes && x->buf == y->buf && x->a == y->a && x->b == y->b && x->c == y->c && x->dyn == y->dyn &&
           x->dyn_stride == y->dyn_stride && x->dyn_n == y->dyn_n && affine_equal(x->idx, y->idx) &&
           x->lane_stride == y->lane_stride && same_masks(x, y) && x->var == y->var && x->lo == y->lo && x->hi == y->hi &&
           x->step == y->step && same_number(x->imm, y->imm) && x->imm_int == y->imm_int;
}

static bool same_var(const kvar_info *x, const kvar_info *y) {
    return x->extent == y->extent && x->row == y->row && x->reduce == y->reduce && x->role.unroll == y->role.unroll &&
           x->role.lanes == y->role.lanes;
}

bool kernel_equal(const kernel *x, const kernel *y) {
    if (x->ins.n != y->ins.n || x->vars.n != y->vars.n || x->bufs.n != y->bufs.n || x->tiled != y->tiled ||
        x->par_var != y->par_var || x->group != y->group || x->groups != y->groups || x->flops != y->flops ||
        x->bytes_read != y->bytes_read || x->bytes_written != y->bytes_written)
        return false;
    for (int i = 0; i < x->bufs.n; i++) {
        const kbuf *a = &x->bufs.at[i], *b = &y->bufs.at[i];
        if (a->dtype != b->dtype || a->kind != b->kind || a->elems != b->elems) return false;
    }
    for (int i = 0; i < x->vars.n; i++)
        if (!same_var(&x->vars.at[i], &y->vars.at[i])) return false;
    for (int i = 1; i < x->ins.n; i++)
        if (!same_ins(&x->ins.at[i], &y->ins.at[i])) return false;
    return true;
}
