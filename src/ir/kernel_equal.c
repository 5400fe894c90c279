/* kernel_equal.c - whether two kernels are the same code: everything but names, what the values are called in the graph, and
 * the counts for statistics; and a hash of the same. In: kernels of any form. */
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
    return x->op == y->op && x->alu == y->alu && x->dtype == y->dtype && x->src == y->src && x->mode == y->mode &&
           x->lanes == y->lanes && x->packed == y->packed && x->packed_stride == y->packed_stride && x->buf == y->buf &&
           x->a == y->a && x->b == y->b && x->c == y->c && x->dyn == y->dyn && x->dyn_stride == y->dyn_stride &&
           x->dyn_n == y->dyn_n && affine_equal(x->idx, y->idx) && x->lane_stride == y->lane_stride && same_masks(x, y) &&
           x->var == y->var && x->lo == y->lo && x->hi == y->hi && x->step == y->step && same_number(x->imm, y->imm) &&
           x->imm_int == y->imm_int;
}

static bool same_var(const kvar_info *x, const kvar_info *y) {
    return x->extent == y->extent && x->row == y->row && x->reduce == y->reduce && x->block == y->block &&
           x->role.unroll == y->role.unroll && x->role.lanes == y->role.lanes && x->threads == y->threads &&
           x->matrix == y->matrix && x->staged == y->staged && x->group == y->group && x->steps == y->steps &&
           x->bulk == y->bulk;
}

bool kernel_equal(const kernel *x, const kernel *y) {
    if (x->ins.n != y->ins.n || x->vars.n != y->vars.n || x->bufs.n != y->bufs.n || x->tiled != y->tiled ||
        x->par_var != y->par_var || x->block_threads != y->block_threads || x->grid_blocks != y->grid_blocks ||
        x->cluster != y->cluster || x->turns != y->turns || x->flops != y->flops || x->bytes_read != y->bytes_read ||
        x->bytes_written != y->bytes_written || !exts_equal(x->params, y->params))
        return false;
    for (int i = 0; i < x->bufs.n; i++) {
        const kbuf *a = &x->bufs.at[i], *b = &y->bufs.at[i];
        if (a->dtype != b->dtype || a->kind != b->kind || a->fixed != b->fixed || a->swizzled != b->swizzled ||
            a->loose != b->loose || a->late != b->late || a->elsewhere != b->elsewhere || a->elems != b->elems)
            return false;
        if (!a->panels != !b->panels) return false;
        if (a->panels && (a->panels_of != b->panels_of || !kpanels_equal(a->panels, b->panels))) return false;
    }
    for (int i = 0; i < x->vars.n; i++)
        if (!same_var(&x->vars.at[i], &y->vars.at[i])) return false;
    for (int i = 1; i < x->ins.n; i++)
        if (!same_ins(&x->ins.at[i], &y->ins.at[i])) return false;
    return true;
}

static uint64_t hash_affine(affine x, uint64_t h) {
    h = hash_bytes(&x.base, sizeof x.base, h);
    for (int i = 0; i < x.n; i++) {
        int64_t term[2] = { x.t[i].var, x.t[i].coef };
        h = hash_bytes(term, sizeof term, h);
    }
    return h;
}

static uint64_t hash_ins(const kins *x, uint64_t h) {
    int64_t words[] = { x->op, x->alu, x->dtype, x->src,        x->mode,  x->lanes,       x->buf,          x->a,
                        x->b,  x->c,   x->dyn,   x->dyn_stride, x->dyn_n, x->lane_stride, x->n_mask,       x->var,
                        x->lo, x->hi,  x->step,  x->imm_int,    x->idx.n, x->packed,      x->packed_stride };
    h = hash_bytes(words, sizeof words, h);
    h = hash_affine(x->idx, hash_bytes(&x->imm, sizeof x->imm, h));
    for (int i = 0; i < x->n_mask; i++) {
        int64_t mask[] = { x->mask[i].lo, x->mask[i].hi, x->mask_lane[i], x->mask[i].e.n };
        h = hash_affine(x->mask[i].e, hash_bytes(mask, sizeof mask, h));
    }
    return h;
}

uint64_t kernel_hash(const kernel *k, uint64_t seed) {
    int64_t head[] = { k->ins.n,
                       k->vars.n,
                       k->bufs.n,
                       k->tiled,
                       k->par_var,
                       k->block_threads,
                       k->grid_blocks,
                       k->cluster,
                       k->turns,
                       (int64_t)k->flops,
                       (int64_t)k->bytes_read,
                       (int64_t)k->bytes_written };
    uint64_t h = hash_bytes(head, sizeof head, seed);
    for (int i = 0; k->params && i < k->params->at.n; i++) {
        const ext_row *r = &k->params->at.at[i];
        int64_t row[] = { r->op, r->a, r->b, r->lo, r->hi, r->divisor };
        h = hash_bytes(row, sizeof row, h);
    }
    for (int i = 0; i < k->bufs.n; i++) {
        int64_t words[] = { k->bufs.at[i].dtype, k->bufs.at[i].kind,
                            k->bufs.at[i].fixed + 2 * k->bufs.at[i].swizzled + 4 * k->bufs.at[i].loose + 8 * k->bufs.at[i].late,
                            k->bufs.at[i].elems };
        h = hash_bytes(words, sizeof words, h);
    }
    for (int i = 0; i < k->vars.n; i++) {
        const kvar_info *v = &k->vars.at[i];
        int64_t words[] = { v->extent,     v->row,     v->reduce + 2 * v->block,   v->role.unroll,
                            v->role.lanes, v->threads, v->steps + (v->bulk << 16), v->matrix + (v->staged << 16),
                            v->group };
        h = hash_bytes(words, sizeof words, h);
    }
    for (int i = 1; i < k->ins.n; i++) h = hash_ins(&k->ins.at[i], h);
    return h;
}
