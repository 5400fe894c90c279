/* memory.c - what is fetched ahead, and what is written past the caches. In: tiled form. */
#include "recipe/recipe.h"

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

void recipe_nontemporal(recipe *r) {
    const kernel *k = r->k;
    uint64_t last = (uint64_t)machine_last_bytes(r->t);
    if (k->bytes_read + k->bytes_written <= last) return;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_OUT && bytes_of(&k->bufs.at[b]) > last / 3)
            recipe_try(r, "nontemporal b%d %d", b, r->t->vector_bytes);
}
