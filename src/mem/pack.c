/* pack.c - offsets of temporaries in one arena, and of constants in another. A temporary lives from the kernel that first
 * writes it to the one that last uses it; two that live at once never overlap. Largest first, each at the lowest free place.
 * In and out: mem.h. */
#include "mem/mem.h"

static void find_lifetimes(plan *p) {
    for (int b = 0; b < p->bufs.n; b++) p->bufs.at[b].first = p->bufs.at[b].last = -1;
    for (int i = 0; i < p->kernels.n; i++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++) {
            int32_t b = p->kernels.at[i].args[a].buf;
            if (b < 0) continue;
            if (p->bufs.at[b].first < 0) p->bufs.at[b].first = i;
            p->bufs.at[b].last = i;
        }
}

static bool is_live(const pbuf *b) { return b->kind == PB_TEMP && b->first >= 0 && b->bytes > 0; }

static void find_bound(plan *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        int64_t sum = 0;
        for (int b = 0; b < p->bufs.n; b++)
            if (is_live(&p->bufs.at[b]) && p->bufs.at[b].first <= i && i <= p->bufs.at[b].last)
                sum += plan_room(p->bufs.at[b].bytes);
        if (sum > p->temp_bound) p->temp_bound = sum;
    }
}

static void place(plan *p, int32_t *placed, int n, int32_t b, int apart) {
    pbuf *x = &p->bufs.at[b];
    x->offset = 0;
    for (bool moved = true; moved;) { /* past every placed neighbour in time that is in the way */
        moved = false;
        for (int i = 0; i < n; i++) {
            const pbuf *y = &p->bufs.at[placed[i]];
            bool in_time = x->first <= y->last + apart && y->first <= x->last + apart;
            bool in_space = x->offset < y->offset + plan_room(y->bytes) && y->offset < x->offset + plan_room(x->bytes);
            if (!in_time || !in_space) continue;
            x->offset = y->offset + plan_room(y->bytes);
            moved = true;
        }
    }
    placed[n] = b;
    if (x->offset + plan_room(x->bytes) > p->temp_bytes) p->temp_bytes = x->offset + plan_room(x->bytes);
}

void mem_constants(plan *p) {
    find_lifetimes(p);
    p->const_bytes = 0;
    for (int i = 0; i < p->bufs.n; i++) {
        pbuf *b = &p->bufs.at[i];
        if (b->kind != PB_CONST) continue;
        if (b->first < 0) b->bytes = b->elems = 0;
        b->offset = p->const_bytes;
        p->const_bytes += plan_room(b->bytes);
    }
}

/* How many launches a place stays empty: launches that share no memory may overlap on a device that does such things. */
static int distance(const plan *p, int64_t roomy) {
    int64_t all = 0;
    for (int b = 0; b < p->bufs.n; b++)
        if (is_live(&p->bufs.at[b])) all += plan_room(p->bufs.at[b].bytes);
    return all <= roomy ? p->kernels.n : 0;
}

void mem_pack(plan *p, int64_t roomy) {
    mem_constants(p);
    find_bound(p);
    int32_t *order = ARENA_ARRAY(p->a, int32_t, p->bufs.n), *placed = ARENA_ARRAY(p->a, int32_t, p->bufs.n);
    int n = 0, apart = distance(p, roomy);
    for (int32_t b = 0; b < p->bufs.n; b++)
        if (is_live(&p->bufs.at[b])) order[n++] = b;
    for (int i = 1; i < n; i++) /* by size, then by age: stable */
        for (int j = i; j > 0 && p->bufs.at[order[j]].bytes > p->bufs.at[order[j - 1]].bytes; j--) {
            int32_t t = order[j];
            order[j] = order[j - 1], order[j - 1] = t;
        }
    for (int i = 0; i < n; i++) place(p, placed, i, order[i], apart);
}
