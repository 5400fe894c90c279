/* plan_panels.c - values that no run changes, laid out for the kernel that reads them: buffers of a plan beside the one that
 * holds the value as it is. In: what packing asks for (kpanels). Out: buffers, and the bytes in them; nothing is allocated for
 * those. */
#include "ir/plan.h"

int64_t kpanels_elems(const kpanels *x) {
    int64_t n = x->padded ? (x->column.extent + x->width - 1) / x->width * x->width : x->column.extent;
    for (int i = 0; i < x->n_outer + x->n_depth; i++) n *= x->loops[i].extent;
    return n;
}

static bool same_steps(const kstep *x, const kstep *y, int n) {
    for (int i = 0; i < n; i++)
        if (x[i].extent != y[i].extent || x[i].step != y[i].step) return false;
    return true;
}

bool kpanels_equal(const kpanels *x, const kpanels *y) {
    return x->dtype == y->dtype && x->packed == y->packed && x->packed_stride == y->packed_stride && x->base == y->base &&
           x->width == y->width && x->padded == y->padded && x->n_outer == y->n_outer && x->n_depth == y->n_depth &&
           same_steps(&x->column, &y->column, 1) && same_steps(x->loops, y->loops, x->n_outer + x->n_depth);
}

int32_t plan_panels(plan *p, int32_t of, const kpanels *x) {
    for (int32_t i = p->bufs.at[of].next_panels; i; i = p->bufs.at[i].next_panels)
        if (kpanels_equal(p->bufs.at[i].panels, x)) return i;
    pbuf b = p->bufs.at[of];
    b.panels = x, b.copy = true;
    if (x->packed) b.dtype = TN_I32;
    b.elems = kpanels_elems(x);
    b.bytes = b.elems * (int64_t)dtype_size((tn_dtype)b.dtype);
    if (b.kind == PB_STATE) { /* constants get their places when it is known which of them are used */
        b.offset = p->shared_bytes;
        p->shared_bytes += plan_room(b.bytes);
    }
    VEC_PUSH(p->a, &p->bufs, b); /* it comes before the copies that there were */
    return p->bufs.at[of].next_panels = p->bufs.n - 1;
}

/* ---- values that are read in panels only ---- */

/* Launches that read each buffer; one that sees several states as one buffer reads all of them. */
static int *count_readers(const plan *p) {
    int *n = ARENA_ARRAY(p->a, int, p->bufs.n + 1);
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++)
            if (p->kernels.at[i].args[a].buf >= 0) n[plan_base(p, p->kernels.at[i].args[a].buf)]++; /* through a window, too */
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *all = &p->bufs.at[i];
        if (all->kind != PB_STATES) continue;
        for (int b = 0; b < p->bufs.n; b++) {
            const pbuf *x = &p->bufs.at[b];
            if (x->slot == SLOT_SHARED && x->offset >= all->offset && x->offset < all->offset + all->bytes) n[b]++;
        }
    }
    return n;
}

bool plan_reads(const plan *p, int32_t b) {
    bool reads = false;
    for (int i = 0; i < p->bufs.n; i++) reads |= p->bufs.at[i].kind == PB_STATES;
    for (int i = 0; i < p->kernels.n && !reads; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) reads |= plan_base(p, p->kernels.at[i].args[a].buf) == b;
    return reads;
}

/* Of the copies that have the whole value, the one that most launches read, or 0. Where states are seen as one buffer, whose
 * kernels know their distances, one of the value's size. */
static int32_t best_copy(const plan *p, const pbuf *b, const int *readers, bool same_size) {
    int32_t best = 0;
    for (int32_t i = b->next_panels; i; i = p->bufs.at[i].next_panels) {
        const pbuf *c = &p->bufs.at[i];
        if (!kpanels_whole(c->panels, b->elems) || (same_size && c->bytes != b->bytes)) continue;
        if (!best || readers[i] >= readers[best]) best = i; /* of equals the first that was made */
    }
    return best;
}

static void unlink_copy(plan *p, pbuf *b, int32_t copy) {
    int32_t *next = &b->next_panels;
    while (*next != copy) next = &p->bufs.at[*next].next_panels;
    *next = p->bufs.at[copy].next_panels;
}

/* Buffers whose `to` is another one go. Copies alone do, and nothing but arguments and other copies names those. */
static void remove_copies(plan *p, int32_t *to) {
    int n = 0;
    for (int i = 0; i < p->bufs.n; i++) {
        if (to[i] != i) continue;
        p->bufs.at[n] = p->bufs.at[i];
        to[i] = n++;
    }
    for (int i = 0; i < n; i++) p->bufs.at[i].next_panels = to[p->bufs.at[i].next_panels];
    p->bufs.n = n;
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) {
            int32_t *buf = &p->kernels.at[i].args[a].buf;
            if (*buf >= 0) *buf = to[*buf];
        }
}

void plan_pack_values(plan *p) {
    const int *readers = count_readers(p);
    int32_t *to = ARENA_ARRAY(p->a, int32_t, p->bufs.n + 1);
    bool seen_as_one = false;
    for (int i = 0; i < p->bufs.n; i++) to[i] = i, seen_as_one |= p->bufs.at[i].kind == PB_STATES;
    for (int i = 0; i < p->bufs.n; i++) {
        pbuf *b = &p->bufs.at[i];
        if (b->panels || readers[i]) continue;
        int32_t best = best_copy(p, b, readers, seen_as_one && b->slot == SLOT_SHARED);
        if (!best) continue;
        const pbuf *c = &p->bufs.at[best];
        b->panels = c->panels, b->dtype = c->dtype, b->elems = c->elems, b->bytes = c->bytes;
        unlink_copy(p, b, best);
        to[best] = i;
    }
    remove_copies(p, to);
}

/* Loops, columns and parts, in any order, count through the value without gaps. */
bool kpanels_whole(const kpanels *x, int64_t elems) {
    kstep steps[PANEL_LOOPS + 2] = { x->column, { x->packed, x->packed_stride } };
    int n = 1 + (x->packed > 0);
    int64_t next = 1;
    for (int i = 0; i < x->n_outer + x->n_depth; i++) steps[n++] = x->loops[i];
    if (x->base != 0 || (x->packed && dtype_size((tn_dtype)x->dtype) * x->packed > sizeof(uint32_t))) return false;
    for (int found = 0, left = n; left > 0; left--) { /* each time the one with the next step */
        for (found = 0; found < left; found++)
            if (steps[found].extent == 1 || steps[found].step == next) break;
        if (found == left) return false;
        next *= steps[found].extent;
        steps[found] = steps[left - 1];
    }
    return next == elems;
}

/* ---- bytes ---- */

typedef struct filler {
    const kpanels *x;
    size_t size;   /* of an element of the value */
    char *to;      /* in the panels */
    int64_t width; /* of the panel that is being filled */
    bool back;     /* from the panels to the value */
} filler;

/* See read_word in eval_kernel.c. */
static void fill_word(const filler *f, char *from, char *to) {
    uint32_t word = 0;
    if (f->back) memcpy(&word, to, sizeof word);
    for (int p = 0, bits = 32 / f->x->packed; p < f->x->packed; p++) {
        char *at = from + p * f->x->packed_stride * (int64_t)f->size;
        uint16_t part = (uint16_t)(word >> (p * bits));
        uint8_t low = (uint8_t)part;
        if (f->back)
            memcpy(at, f->size == 1 ? (const void *)&low : &part, f->size);
        else if (f->size == 2)
            memcpy(&part, at, sizeof part);
        else
            part = (uint16_t)dtype_load_int((tn_dtype)f->x->dtype, at, 0);
        if (!f->back) word |= (uint32_t)(bits == 8 ? part & 0xff : part) << (p * bits);
    }
    if (!f->back) memcpy(to, &word, sizeof word);
}

static void copy(const filler *f, char *value, char *panel, size_t bytes) {
    memcpy(f->back ? value : panel, f->back ? panel : value, bytes);
}

/* Words of two bytes that follow each other in memory: the same bytes, widened. */
static bool fill_widened(const filler *f, const char *from, int64_t columns) {
    if (f->back || f->size != 1 || f->x->packed != 2 || f->x->packed_stride != 1 || f->x->column.step != 2) return false;
    const int8_t *x = (const int8_t *)from;
    const uint8_t *u = (const uint8_t *)from;
    uint32_t *to = (uint32_t *)(void *)f->to;
    if (f->x->dtype == TN_I8)
        for (int64_t i = 0; i < columns; i++) to[i] = (uint16_t)x[2 * i] | (uint32_t)(uint16_t)x[2 * i + 1] << 16;
    else
        for (int64_t i = 0; i < columns; i++) to[i] = u[2 * i] | (uint32_t)u[2 * i + 1] << 16;
    return true;
}

/* Words of a byte each of four rows. */
static bool fill_joined(const filler *f, const char *from, int64_t columns) {
    if (f->back || f->size != 1 || f->x->packed != 4 || f->x->column.step != 1) return false;
    const uint8_t *x = (const uint8_t *)from;
    uint32_t *to = (uint32_t *)(void *)f->to;
    int64_t next = f->x->packed_stride;
    for (int64_t i = 0; i < columns; i++)
        to[i] = x[i] | (uint32_t)x[i + next] << 8 | (uint32_t)x[i + 2 * next] << 16 | (uint32_t)x[i + 3 * next] << 24;
    return true;
}

static void fill_row(filler *f, char *from, int64_t columns) {
    int64_t step = f->x->column.step * (int64_t)f->size;
    size_t size = f->x->packed ? sizeof(uint32_t) : f->size, filled = (size_t)columns * size, all = (size_t)f->width * size;
    if (f->x->packed) {
        if (!fill_widened(f, from, columns) && !fill_joined(f, from, columns))
            for (int64_t i = 0; i < columns; i++) fill_word(f, from + i * step, f->to + (size_t)i * size);
    } else if (f->x->column.step == 1) {
        copy(f, from, f->to, filled);
    } else {
        for (int64_t i = 0; i < columns; i++) copy(f, from + i * step, f->to + (size_t)i * f->size, f->size);
    }
    if (!f->back) memset(f->to + filled, 0, all - filled);
    f->to += all;
}

/* Whole rows of 16 bytes or a few times that, as they lie. */
static void fill_rows(filler *f, const char *from, const kstep *s) {
    int64_t step = s->step * (int64_t)f->size, bytes = f->x->width * (int64_t)f->size;
    for (int64_t k = 0; k < s->extent; k++, from += step)
        for (int64_t i = 0; i < bytes; i += 16, f->to += 16) memcpy(f->to, from + i, 16);
}

/* Bytes that follow each other along the innermost loop, and lie apart along the columns: some lines of each column at a time.
 */
enum { TURNED_COLUMNS = 64, TURNED = 64, SQUARE = 8 };

/* Rows of eight bytes become columns, and these become rows. */
static void turn(uint64_t x[SQUARE]) {
    static const uint64_t halves[] = { 0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff };
    for (int d = SQUARE / 2, h = 2; d > 0; d /= 2, h--)
        for (int i = 0; i < SQUARE; i++) {
            if (i & d) continue;
            uint64_t t = (x[i] >> 8 * d ^ x[i + d]) & halves[h];
            x[i + d] ^= t, x[i] ^= t << 8 * d;
        }
}

static void fill_turned(filler *f, char *from, int64_t rows) {
    const kpanels *x = f->x;
    int parts = x->packed ? x->packed : 1, n = (int)x->width * parts, whole = n / SQUARE * SQUARE;
    char *value[TURNED_COLUMNS];
    for (int j = 0; j < n; j++) value[j] = from + j / parts * x->column.step + j % parts * x->packed_stride;
    for (int64_t first = 0; first < rows; first += TURNED) {
        int64_t end = first + TURNED < rows ? first + TURNED : rows, squares = end - (end - first) % SQUARE;
        for (int j = 0; j < whole; j += SQUARE)
            for (int64_t k = first; k < squares; k += SQUARE) {
                uint64_t square[SQUARE];
                char *to = f->to + k * n + j;
                for (int i = 0; i < SQUARE; i++) memcpy(&square[i], f->back ? to + i * n : value[j + i] + k, SQUARE);
                turn(square);
                for (int i = 0; i < SQUARE; i++) memcpy(f->back ? value[j + i] + k : to + i * n, &square[i], SQUARE);
            }
        for (int j = 0; j < n; j++)
            for (int64_t k = j < whole ? squares : first; k < end; k++) copy(f, value[j] + k, f->to + k * n + j, 1);
    }
    f->to += rows * n;
}

static bool is_turned(const filler *f, const kstep *s, int64_t columns) {
    const kpanels *x = f->x;
    return f->size == 1 && s->step == 1 && columns == x->width && x->column.step > 1 && (!x->packed || x->packed == 4) &&
           x->width * (x->packed ? x->packed : 1) <= TURNED_COLUMNS;
}

static void fill_panel(filler *f, int i, char *from, int64_t columns) { /* depth loops from i on */
    const kstep *s = &f->x->loops[i];
    bool whole = columns == f->x->width && f->x->column.step == 1 && !f->x->packed && columns * (int64_t)f->size % 16 == 0;
    if (i == f->x->n_outer + f->x->n_depth)
        fill_row(f, from, columns);
    else if (whole && !f->back && i == f->x->n_outer + f->x->n_depth - 1)
        fill_rows(f, from, s);
    else if (i == f->x->n_outer + f->x->n_depth - 1 && is_turned(f, s, columns))
        fill_turned(f, from, s->extent);
    else
        for (int64_t k = 0; k < s->extent; k++) fill_panel(f, i + 1, from + k * s->step * (int64_t)f->size, columns);
}

static void fill_panels(filler *f, int i, char *from) { /* outer loops from i on */
    const kpanels *x = f->x;
    if (i < x->n_outer) {
        for (int64_t k = 0; k < x->loops[i].extent; k++) fill_panels(f, i + 1, from + k * x->loops[i].step * (int64_t)f->size);
        return;
    }
    for (int64_t c = 0; c < x->column.extent; c += x->width) {
        int64_t left = x->column.extent - c, columns = left < x->width ? left : x->width;
        f->width = x->padded ? x->width : columns;
        fill_panel(f, i, from + c * x->column.step * (int64_t)f->size, columns);
    }
}

void pbuf_fill(const pbuf *b, const void *value, void *out) {
    size_t size = dtype_size((tn_dtype)(b->panels ? b->panels->dtype : b->dtype));
    if (!b->panels) {
        memcpy(out, value, (size_t)b->bytes);
        return;
    }
    char *from = (char *)(uintptr_t)value; /* which is read alone */
    fill_panels(&(filler){ b->panels, size, out, 0, false }, 0, from + b->panels->base * (int64_t)size);
}

void pbuf_unpack(const pbuf *b, const void *bytes, void *out) { /* the panels are read alone */
    fill_panels(&(filler){ b->panels, dtype_size((tn_dtype)b->panels->dtype), (char *)(uintptr_t)bytes, 0, true }, 0, out);
}
