/* interleave.c - the same work on neighbouring vectors, instruction by instruction instead of one vector after the other.
 *
 * In and out: xfn.order after x86_peephole. A function such as exp is a chain of some fifty cycles; a processor works on
 * several of them at once as far as it looks ahead, which is two or three where instructions that wait fill its schedulers. So
 * long runs of the same operations, one for each vector of an unrolled loop, are dealt out in turns, as many as have registers.
 * Each value is computed as before; only the order of independent operations is another. */
#include "emit/x86/ir.h"

enum { LEAST_RUN = 8, MOST_WOVEN = 4, KEPT = 2 /* registers for what lives across */ };

typedef struct weaver {
    xfn *f;
    int32_t *seen; /* [v] a stamp */
    int32_t *out;  /* a woven stretch */
    int32_t stamp;
} weaver;

static const xop *at(const weaver *w, int i) { return &w->f->ops.at[w->f->order[i]]; }

/* Nothing but its result: it may move as long as its operands are there. */
static bool is_pure(const weaver *w, const xop *o) {
    return o->dst && !w->f->v.at[o->dst].is_mutable &&
           (o->op < X86_N_INS || o->op == P_FMA || o->op == P_MOV || o->op == P_CONST);
}

/* The end of the run of pure operations of one instruction of the kernel that begins at i. */
static int run_end(const weaver *w, int i) {
    int end = i;
    while (end < w->f->n_order && is_pure(w, at(w, end)) && at(w, end)->expr == at(w, i)->expr &&
           at(w, end)->block == at(w, i)->block)
        end++;
    return end;
}

/* Whether the run of n operations at j does what the one at i does, with other values, none of them from positions [i, j). */
static bool is_same(weaver *w, int i, int j, int n) {
    w->stamp++;
    for (int p = i; p < j; p++) w->seen[at(w, p)->dst] = w->stamp;
    for (int p = 0; p < n; p++) {
        const xop *x = at(w, i + p), *y = at(w, j + p);
        if (x->op != y->op || x->vl != y->vl || x->lanes != y->lanes || x->imm != y->imm || x->block != y->block) return false;
        if (w->seen[y->a] == w->stamp || w->seen[y->b] == w->stamp || w->seen[y->c] == w->stamp) return false;
    }
    return true;
}

/* How many values that the run makes are alive at once, at most, with the one that it gives. (Constants need no register: they
 * can be read where they lie.) */
static int most_alive(weaver *w, int i, int n) {
    int alive = 1, most = 1, made = ++w->stamp, used = ++w->stamp;
    for (int p = i; p < i + n; p++)
        if (at(w, p)->op != P_CONST) w->seen[at(w, p)->dst] = made;
    w->seen[at(w, i + n - 1)->dst] = used;
    for (int p = i + n - 1; p >= i; p--) { /* from the back: the first met is the last use */
        const vreg r[3] = { at(w, p)->a, at(w, p)->b, at(w, p)->c };
        if (w->seen[at(w, p)->dst] == used) alive--;
        for (int k = 0; k < 3; k++)
            if (r[k] && w->seen[r[k]] == made) w->seen[r[k]] = used, alive++;
        if (alive > most) most = alive;
    }
    return most;
}

void x86_interleave(xfn *f) {
    weaver w = { .f = f, .seen = ARENA_ARRAY(f->a, int32_t, f->v.n), .out = ARENA_ARRAY(f->a, int32_t, f->n_order + 1) };
    for (int i = 0; i < f->n_order;) {
        int n = run_end(&w, i) - i, runs = 1;
        if (n < LEAST_RUN) {
            i += n ? n : 1;
            continue;
        }
        int most = (f->n_vregs_phys - KEPT) / most_alive(&w, i, n);
        if (most > MOST_WOVEN) most = MOST_WOVEN;
        while (runs < most && run_end(&w, i + runs * n) == i + (runs + 1) * n && is_same(&w, i, i + runs * n, n)) runs++;
        for (int p = 0; p < n && runs > 1; p++)
            for (int r = 0; r < runs; r++) w.out[p * runs + r] = f->order[i + r * n + p];
        if (runs > 1) memcpy(&f->order[i], w.out, sizeof *w.out * (size_t)(runs * n));
        i += runs * n;
    }
}
