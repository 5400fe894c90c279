/* memory.c - what is fetched ahead, and what is written past the caches. In: tiled form. */
#include "recipe/recipe.h"

enum { AHEAD = 8 << 10 /* bytes: two pages, beyond which a processor does not follow a stream by itself */ };
enum { MOST_TERMS = 512, LEAST_TERMS = 64 /* where a slice of a stack, which is new in each iteration, comes meanwhile */ };

static uint64_t bytes_of(const kbuf *b) { return (uint64_t)b->elems * dtype_size((tn_dtype)b->dtype); }

/* Lines of a large result are read first where they are written in part, as the stores leave the core, which takes longer than
 * a short contraction; and what sums are added to; and short rows of a matrix that is larger than the second cache (one core of
 * a Zen 4, 1 x 1, 7 x 7 x 512 to 2048 of bytes: 0.37 to 0.30 ms; rows of 2 KiB are streams by themselves). Rows that leave the
 * first cache take as long to come as the arithmetic of a norm, from the second one, too. */
void recipe_prefetch(recipe *r) {
    const kernel *k = r->k;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        uint64_t work = (uint64_t)x->elems * 2;
        bool is_afar = !kbuf_is_local(x) && bytes_of(x) > (uint64_t)r->t->l1_bytes;
        if (x->kind == KB_OUT)
            is_afar = is_afar && k->flops <= MOST_TERMS * work &&
                      (bytes_of(x) > (uint64_t)r->t->l2_bytes || k->flops >= LEAST_TERMS * work);
        if (is_afar) recipe_try(r, "prefetch_results b%d", b);
        if (x->kind == KB_IN && x->fixed && bytes_of(x) >= (uint64_t)r->t->l2_bytes)
            recipe_try(r, "prefetch_results b%d next", b);
    }
    if (k->bytes_read + k->bytes_written > (uint64_t)r->t->l1_bytes) recipe_try(r, "prefetch_rows");
}

/* Panels of weights (lay_out.c) come from memory, and a group's arithmetic takes as long as they do: each buffer is fetched as
 * far ahead as the others. (One core of a Zen 5, Llama-3.2-1B's sizes, 4 bits, 8 layers: 13.8 to 11.3 ms; 1 KB ahead 14.1, 2
 * KB 12.7, 4 KB 11.6, 16 KB 11.4.) */
void recipe_prefetch_panels(recipe *r) {
    const kernel *k = r->k;
    uint64_t most = 0;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].panels && bytes_of(&k->bufs.at[b]) > most) most = bytes_of(&k->bufs.at[b]);
    if (!r->laid_out || most <= (uint64_t)r->t->l1_bytes) return;
    for (int b = 0; b < k->bufs.n; b++) {
        uint64_t ahead = bytes_of(&k->bufs.at[b]) * AHEAD / most, line = MACHINE_LINE_BYTES;
        if (k->bufs.at[b].panels)
            recipe_try(r, "prefetch_ahead b%d %lld", b, (long long)(ahead < line ? line : ahead / line * line));
    }
}

void recipe_nontemporal(recipe *r) {
    const kernel *k = r->k;
    uint64_t last = (uint64_t)machine_last_bytes(r->t);
    if (k->bytes_read + k->bytes_written <= last) return;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_OUT && bytes_of(&k->bufs.at[b]) > last / 3)
            recipe_try(r, "nontemporal b%d %d", b, r->t->vector_bytes);
}
