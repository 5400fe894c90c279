/* build.h - what steps write kernels with: loops, masks, sums, and instructions at other values of their loops. Everything is
 * allocated from the kernel's arena. */
#ifndef TN_LOOP_BUILD_H
#define TN_LOOP_BUILD_H

#include "ir/kernel.h"

/* A loop over variable v, lo .. hi; over a variable of its own, 0 .. n; the ends of n loops; a barrier of the thread block. */
void build_open(kernel *o, kvar v, ext lo, ext hi, kpar par);
kvar build_loop(kernel *o, const char *name, int64_t n, kpar par);
kvar build_if(kernel *o, const char *name, int64_t n, reg condition); /* a loop that is left out where it is 0 */
void build_ends(kernel *o, int n);
void build_barrier(kernel *o);
void build_mbarrier(kernel *o, int buf); /* waits until asynchronous stores have filled the buffer */
/* All of kernel k in a loop over v, 0 .. n. */
void build_around(kernel *k, kvar v, int64_t n);
/* The n values, whose number is a power of two, combined by op: halves first. Changes v. */
reg build_halves(kernel *o, reg *v, int n, uint8_t op, uint8_t dtype, val of);

/* ---- an instruction each: of the type and as wide as its operands are ---- */

reg build_number(kernel *o, uint8_t dtype, double x);
reg build_index(kernel *o, uint8_t dtype, affine e);
reg build_count(kernel *o, uint8_t dtype, ext n); /* a number, which a run may give */
/* An elementwise op of a, or of a and b (0: of a alone); a select. */
reg build_op(kernel *o, op_code op, reg a, reg b);
reg build_select(kernel *o, reg condition, reg a, reg b);
reg build_lane(kernel *o, reg a, int lane);
/* n lanes of a vector, from `first` on; the vector itself where it has n, and a number that is the same in all lanes. */
reg build_lanes(kernel *o, reg a, int first, int n);
void build_put_lanes(kernel *o, reg all, int first, reg a); /* lanes of `all`, from `first` on, become those of a */
reg build_lane_reduce(kernel *o, op_code op, reg a);        /* a itself where it has one lane */
/* Elements of a buffer side by side. */
reg build_load(kernel *o, int buf, affine at, int lanes);
reg build_store(kernel *o, int buf, affine at, reg a);
/* An accumulator that begins with `first`; c = c op a; OP_dot: c += a * b; OP_NIL: c = a. */
reg build_acc(kernel *o, op_code op, uint8_t dtype, double first, int lanes);
void build_update(kernel *o, op_code op, reg a, reg b, reg c);
/* v where e, which moves by `lane` from lane to lane, is less than n; else what accumulator `like` begins with, or (0) zero.
 * index: the type to compare in. */
reg build_before(kernel *o, reg v, uint8_t index, affine e, int64_t lane, int64_t n, reg like);
/* Parts of a value in memory, so far apart, combined in order. */
reg build_parts(kernel *o, op_code op, int buf, affine at, int64_t n, int64_t apart, int lanes);
/* The numbers that are carried from iteration to iteration by registers of their own: to[i] = v[i]; such registers, with v in
 * them. */
void build_carry(kernel *o, const reg *v, const reg *to, int n);
void build_carried(kernel *o, const reg *v, reg *to, int n);

/* Local memory of a thread, or of a thread block. */
int build_buffer(kernel *o, uint8_t dtype, kbuf_kind kind, int64_t elems);

/* n * v; x + n * y. */
static inline affine build_times(arena *a, kvar v, int64_t n) { return affine_scale(a, affine_var(a, v), n); }
static inline affine build_plus(arena *a, affine x, affine y, int64_t n) { return affine_add(a, x, affine_scale(a, y, n)); }

/* The instruction with other operands (to[r] for r); whether one of them is r; whether of[] holds for one of them. */
static inline void build_operands(kins *in, const reg *to) {
    in->a = to[in->a], in->b = to[in->b], in->c = to[in->c], in->dyn = to[in->dyn];
}
static inline bool build_takes(const kins *in, reg r) { return in->a == r || in->b == r || in->c == r || in->dyn == r; }
static inline bool build_takes_any(const kins *in, const bool *of) {
    return of[in->a] || of[in->b] || of[in->c] || of[in->dyn];
}
/* The instruction where v has that value, in its index and its masks; with other variables (to[v] for v). */
void build_set_var(arena *a, kins *in, kvar v, affine value);
void build_rename(arena *a, kins *in, const kvar *to);
/* x where v has that value, in a kernel whose sizes may be a run's. */
affine build_set(const kernel *k, affine x, kvar v, affine value);
/* One mask more, behind the others, whose index moves by `lane` from lane to lane. */
void build_mask(arena *a, kins *in, affine e, int64_t lo, int64_t hi, int64_t lane);

/* ---- instructions of a kernel once more, in another one ---- */

typedef struct build_copier {
    const kernel *k; /* of the instructions */
    kernel *o;
    reg *to; /* [k->ins] where a register of k is in o */
} build_copier;
build_copier build_copier_make(const kernel *k, kernel *o);

enum { BUILD_MOST_BOUNDS = 6 };
typedef struct build_places { /* what variables become, which of them may lie behind their end, and along which lanes run */
    kvar var[MAX_LOOPS];
    affine value[MAX_LOOPS];
    int n;
    kmask mask[BUILD_MOST_BOUNDS]; /* of loads and stores, besides their own */
    int64_t mask_lane[BUILD_MOST_BOUNDS];
    int n_mask;
    kvar along;
    int lanes;          /* up to 1: none */
    const bool *varies; /* [k->ins] from lane to lane: gpu_varying */
} build_places;
static inline void build_put(build_places *p, kvar v, affine value) { p->var[p->n] = v, p->value[p->n++] = value; }
static inline void build_bound(build_places *p, affine e, int64_t n, int64_t lane) {
    p->mask_lane[p->n_mask] = lane;
    p->mask[p->n_mask++] = (kmask){ e, 0, n };
}
/* The value at those places, of literals. */
affine build_moved(arena *a, const build_places *p, affine x);
/* Their bounds behind the masks of an instruction. */
void build_bounds(arena *a, kins *in, const build_places *p);
/* Instruction i there; the same as the next one of o: returns its register, which c->to has then, too. */
kins build_at(const build_copier *c, int i, const build_places *p);
reg build_copy(build_copier *c, int i, const build_places *p);

/* What has another size that is given at run time than the extent of loop v, lengths of buffers apart; NULL: nothing. */
const char *build_other_params(const kernel *k, kvar v);

/* Marks what the marked instructions before `end` are computed from. */
void build_mark_needed(const kernel *k, int end, bool *needed);

#endif
