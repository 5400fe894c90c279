/* dot_rows.c - few vectors times a large matrix on GPUs (GEMV), whose rows lie in memory as they are summed: a thread block has
 * neighbouring rows of the matrix, so that it loads the vector once for them, and each thread enough of a row at a time that
 * memory is busy. In: scalar form, whose rows are its outer loops.
 *
 * Shapes measured on an H200, a token of a Llama of 4 layers, 2048 wide, in microseconds, before, with rows one by one, and so:
 * weights of 4 bits in groups of 32 960 and 316, of 8 bits 362 and 299, of bf16 366 and 341. Twice as many bytes a thread at a
 * time have the vector's elements so far apart that they take longer than the matrix.
 *
 * Of bytes and parts of them a thread has so many rows that what it does for the vector, a norm among it, and for adding up
 * over threads is little beside some five instructions a weight (16 layers: 4 bits 654 and 598, 8 bits 727 and 653). Parts of a
 * byte have half the elements and twice the rows, where all threads then have as many (610 and 582). Where they have not (896
 * wide) that was tried and is slower: 611 and 806. Of whole bytes all matrices have the same share (8 bits, 16 layers, 657 and
 * 647; twice the share for many rows before), and of few rows all thread blocks are there at once (637 and 619).
 *
 * Where numbers below all others are as fast as those, bits are multiplied as they lie in words (loop/bit_sums.c; 16 layers, 4
 * bits 533 and 471, 896 wide 602 and 570; 8 bits 615 and 606, 896 wide 649 and 655, so not of short rows of bytes). */
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"

enum {
    PIECE = 16,      /* bytes of a row that a thread loads at a time; of bytes, half: the vector's are wider */
    SHARE = 64,      /* .. and all of it has, at least */
    FEW_SHARE = 32,  /* elements of bytes and parts of them that a thread has, at least; of parts and many rows, twice */
    MANY = 8192,     /* rows */
    BUSY = 256,      /* threads of a processor, at least; of bytes, half */
    THERE = 512,     /* .. that are there at once, of bytes (emit/gpu.c) */
    WIDE = 2048,     /* elements of a row of bytes whose bits are multiplied, at least */
    LARGE = 96 << 10 /* elements of a matrix, at least */
};

typedef struct dot_rows {
    kvar parts; /* the innermost loop, over parts of a byte; -1: elements are whole */
    int64_t n_parts, size, elements, rows, last;
    int sums;    /* of a row: of several matrices */
    bool beside; /* the vector is summed, too */
} dot_rows;

/* Bytes of an element of the matrix, the first that instructions [from, to) load along both variables; 0: there is none. */
static int64_t element_of(const kernel *k, int from, int to, kvar row, kvar inner, kvar parts) {
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || in->dyn || in->n_mask || k->bufs.at[in->buf].kind != KB_IN) continue;
        if (affine_coef(in->idx, row) && affine_coef(in->idx, inner) == 1 && (parts < 0 || !gpu_uses(in, parts)))
            return (int64_t)dtype_size((tn_dtype)in->src);
    }
    return 0;
}

static bool find(const kernel *k, dot_rows *out) {
    int n = gpu_outer_loops(k), at = 1 + n;
    if (k->params || n < 1) return false;
    while (at < k->ins.n && k->ins.at[at].op != K_LOOP) at++;
    int loops = at < k->ins.n ? gpu_perfect_loops(k, at) : 0, end = loops ? kernel_loop_end(k, at) : 0;
    if (!loops || !k->vars.at[k->ins.at[at].var].reduce) return false;
    for (int i = end; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP) return false;
    int sums = 0;
    bool beside = false;
    const bool *varies = gpu_varying(k, NULL, k->ins.at[n].var);
    for (int i = at; i < end; i++) {
        const kins *in = &k->ins.at[i];
        bool own = varies[in->a] || varies[in->b];
        sums += in->op == K_UPD && in->alu == OP_dot && own, beside |= in->op == K_UPD && !own;
    }
    const kins *inner = &k->ins.at[at + loops - 1];
    kvar row = k->ins.at[n].var;
    *out = (dot_rows){
        .parts = -1, .n_parts = 1, .elements = 1, .rows = 1, .last = k->ins.at[n].hi, .sums = sums, .beside = beside
    };
    for (int i = at; i < at + loops; i++) out->elements *= k->ins.at[i].hi - k->ins.at[i].lo;
    for (int i = 1; i <= n; i++) out->rows *= k->ins.at[i].hi - k->ins.at[i].lo;
    out->size = element_of(k, at, end, row, inner->var, -1);
    if (out->size || loops < 2 || inner->hi > 4) return out->size > 0;
    out->size = element_of(k, at, end, row, inner[-1].var, inner->var);
    out->parts = inner->var, out->n_parts = inner->hi, out->elements /= inner->hi;
    return out->size == 1;
}

static bool is_large(const dot_rows *w) { return w->last * w->elements * w->n_parts >= LARGE; }

static bool has_many_rows(const dot_rows *w) { return w->last * w->sums >= MANY; }

static int64_t lanes_of(const dot_rows *w) { return PIECE / w->size / (w->size == 1 ? 2 : 1); }

static int64_t threads_for(const dot_rows *w, const target *t, int64_t share) {
    int64_t row = w->elements * w->n_parts, threads = 32;
    while (threads < t->block_threads && row >= 2 * threads * share) threads *= 2;
    return threads;
}

/* Parts of a byte are twice as many instructions: half the share and twice the rows, if it comes out even. */
static bool has_short_shares(const dot_rows *w, const target *t) {
    int64_t share = (has_many_rows(w) ? 2 * FEW_SHARE : FEW_SHARE) / w->n_parts;
    return w->n_parts > 1 && w->elements % (threads_for(w, t, share) * lanes_of(w)) == 0;
}

static int64_t threads_of(const dot_rows *w, const target *t) {
    int64_t few = has_many_rows(w) && w->n_parts > 1 ? 2 * FEW_SHARE : FEW_SHARE;
    return threads_for(w, t, w->size > 1 ? SHARE / w->size : has_short_shares(w, t) ? few / w->n_parts : few);
}

int64_t recipe_dot_rows_share(const kernel *k, const target *t) {
    recipe r = recipe_make(kernel_clone(k, k->a), t);
    dot_rows w;
    recipe_order(&r);
    recipe_fuse_loops(&r);
    bool is = find(r.k, &w) && is_large(&w) && w.rows == w.last && w.sums > 0;
    return is ? gpu_pieces(w.elements * w.n_parts, threads_of(&w, t)) : 0;
}

bool recipe_dot_rows(recipe *r) {
    dot_rows w;
    if (!find(r->k, &w) || !is_large(&w)) return false;
    int64_t lanes = lanes_of(&w), threads = threads_of(&w, r->t);
    int64_t together = w.size > 1 ? 2 : has_many_rows(&w) ? 8 : 4, busy = (int64_t)machine_units(r->t) * BUSY;
    if (has_short_shares(&w, r->t)) together *= w.n_parts;
    if (w.sums > 1) together /= 2;
    if (w.size == 1) busy /= 2;
    if (w.elements < threads * lanes) return false;
    if (w.beside) busy /= 4; /* thread blocks of one row would sum it for that alone: 786 us a token for 778 */
    while (together > 1 && (w.last % together || w.rows / together * threads < busy)) together /= 2;
    int64_t all = w.rows / together * threads, there = (int64_t)machine_units(r->t) * THERE;
    if (w.size == 1 && w.n_parts == 1 && !has_many_rows(&w) && threads > 32 && all > there && all / 2 <= there) threads /= 2;
    if (w.parts >= 0 && recipe_try(r, "unroll %s", r->k->vars.at[w.parts].name)) recipe_try(r, "mantissa_casts");
    recipe_do(r, "bind_rows %lld", (long long)threads);
    while (lanes > 1 && !recipe_try(r, "vectorize_nests %lld", (long long)lanes)) lanes /= 2;
    if (together > 1) recipe_try(r, "coarsen %lld", (long long)together);
    if (w.size != 1 || lanes == 1) return true;
    bool bits = r->t->denormals && (w.n_parts > 1 || w.elements >= WIDE);
    if (!bits || !recipe_try(r, "group_sums bits")) recipe_try(r, "group_sums");
    recipe_try(r, "mantissa_casts");
    return true;
}
