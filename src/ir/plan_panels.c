/* plan_panels.c - values that no run changes, laid out for the kernel that reads them: buffers of a plan beside the one that
 * holds the value as it is. In: what kopt/ asks for (kpanels). Out: buffers, and the bytes in them; nothing is allocated for
 * those. */
#include "ir/plan.h"

int64_t kpanels_elems(const kpanels *x) {
    int64_t n = (x->column.extent + x->width - 1) / x->width * x->width;
    for (int i = 0; i < x->n_outer + x->n_depth; i++) n *= x->loops[i].extent;
    return n;
}

static bool same_steps(const kstep *x, const kstep *y, int n) {
    for (int i = 0; i < n; i++)
        if (x[i].extent != y[i].extent || x[i].step != y[i].step) return false;
    return true;
}

static bool same_panels(const kpanels *x, const kpanels *y) {
    return x->dtype == y->dtype && x->parts == y->parts && x->part_stride == y->part_stride && x->base == y->base &&
           x->width == y->width && x->n_outer == y->n_outer && x->n_depth == y->n_depth &&
           same_steps(&x->column, &y->column, 1) && same_steps(x->loops, y->loops, x->n_outer + x->n_depth);
}

int32_t plan_panels(plan *p, int32_t of, const kpanels *x) {
    const pbuf *value = &p->bufs.at[of];
    for (int32_t i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        if (b->panels && b->kind == value->kind && b->node == value->node && same_panels(b->panels, x)) return i;
    }
    pbuf b = *value;
    b.panels = x;
    if (x->parts) b.dtype = TN_I32;
    b.elems = kpanels_elems(x);
    b.bytes = b.elems * (int64_t)dtype_size((tn_dtype)b.dtype);
    if (b.kind == PB_STATE) { /* constants get their places when it is known which of them are used */
        b.offset = p->state_bytes;
        p->state_bytes += plan_room(b.bytes);
    }
    VEC_PUSH(p->a, &p->bufs, b);
    return p->bufs.n - 1;
}

/* ---- bytes ---- */

typedef struct filler {
    const kpanels *x;
    size_t size; /* of an element of the value */
    char *to;
} filler;

/* See read_word in eval_kernel.c. */
static void fill_word(const filler *f, const char *from, char *to) {
    uint32_t word = 0;
    for (int p = 0, bits = 32 / f->x->parts; p < f->x->parts; p++) {
        const char *at = from + p * f->x->part_stride * (int64_t)f->size;
        uint16_t part;
        if (f->size == 2)
            memcpy(&part, at, sizeof part);
        else
            part = (uint16_t)dtype_load_int((tn_dtype)f->x->dtype, at, 0);
        word |= (uint32_t)(bits == 8 ? part & 0xff : part) << (p * bits);
    }
    memcpy(to, &word, sizeof word);
}

static void fill_row(filler *f, const char *from, int64_t columns) {
    int64_t step = f->x->column.step * (int64_t)f->size;
    size_t size = f->x->parts ? sizeof(uint32_t) : f->size, filled = (size_t)columns * size, all = (size_t)f->x->width * size;
    if (f->x->parts)
        for (int64_t i = 0; i < columns; i++) fill_word(f, from + i * step, f->to + (size_t)i * size);
    else if (f->x->column.step == 1)
        memcpy(f->to, from, filled);
    else
        for (int64_t i = 0; i < columns; i++) memcpy(f->to + (size_t)i * f->size, from + i * step, f->size);
    memset(f->to + filled, 0, all - filled);
    f->to += all;
}

/* Whole rows of 16 bytes or a few times that, as they lie. */
static void fill_rows(filler *f, const char *from, const kstep *s) {
    int64_t step = s->step * (int64_t)f->size, bytes = f->x->width * (int64_t)f->size;
    for (int64_t k = 0; k < s->extent; k++, from += step)
        for (int64_t i = 0; i < bytes; i += 16, f->to += 16) memcpy(f->to, from + i, 16);
}

static void fill_panel(filler *f, int i, const char *from, int64_t columns) { /* depth loops from i on */
    const kstep *s = &f->x->loops[i];
    bool whole = columns == f->x->width && f->x->column.step == 1 && !f->x->parts && columns * (int64_t)f->size % 16 == 0;
    if (i == f->x->n_outer + f->x->n_depth)
        fill_row(f, from, columns);
    else if (whole && i == f->x->n_outer + f->x->n_depth - 1)
        fill_rows(f, from, s);
    else
        for (int64_t k = 0; k < s->extent; k++) fill_panel(f, i + 1, from + k * s->step * (int64_t)f->size, columns);
}

static void fill_panels(filler *f, int i, const char *from) { /* outer loops from i on */
    const kpanels *x = f->x;
    if (i < x->n_outer) {
        for (int64_t k = 0; k < x->loops[i].extent; k++) fill_panels(f, i + 1, from + k * x->loops[i].step * (int64_t)f->size);
        return;
    }
    for (int64_t c = 0; c < x->column.extent; c += x->width) {
        int64_t left = x->column.extent - c;
        fill_panel(f, i, from + c * x->column.step * (int64_t)f->size, left < x->width ? left : x->width);
    }
}

void pbuf_fill(const pbuf *b, const void *value, void *out) {
    size_t size = dtype_size((tn_dtype)(b->panels ? b->panels->dtype : b->dtype));
    if (!b->panels)
        memcpy(out, value, (size_t)b->bytes);
    else
        fill_panels(&(filler){ b->panels, size, out }, 0, (const char *)value + b->panels->base * (int64_t)size);
}
