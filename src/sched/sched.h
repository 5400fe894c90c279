/* sched.h - graph to plan: which values are kept in memory, which ops share a kernel, and each kernel's loops in scalar form.
 *
 * In: a compacted graph, for GPUs without symbolic dims and regions, after the passes of stage TARGET
 * (pass/passes.def), which becomes the plan's. Out: a plan whose buffers have no place yet (mem/) and whose kernels are in
 * scalar form (recipe/ tiles them). The plan's arena owns everything. */
#ifndef TN_SCHED_SCHED_H
#define TN_SCHED_SCHED_H

#include "ir/plan.h"
#include "ir/target.h"

typedef struct sched_opts {
    int fusion;          /* 0..3 */
    int64_t local_bytes; /* stack memory a kernel may use for values of one row */
    bool rows_only;      /* the machine shares out rows alone: what is inside of one is done by few threads (GPU) */
    const target *t;     /* NULL: a common processor */
    bool walks_anew;     /* for tests: keeps no walk (group_join) */
} sched_opts;

plan *sched_plan(graph *g, arena *a, const sched_opts *o);

/* ---- inside sched/ ---- */

typedef struct split { /* the loop over `axis` of `node` becomes two: extent / inner and inner */
    val node;
    int axis;
    ext inner;
} split;
typedef VEC(split) split_list;
typedef VEC(val) val_list;
typedef VEC(int) int_list;

/* A set of values or groups that is emptied at once: walks go over a few of many. */
typedef struct marks {
    uint32_t *at; /* [most] in the set when equal to `now` */
    uint32_t now;
} marks;

/* A group becomes one kernel: roots are written to memory, everything else inside is computed on the way. */
typedef struct group {
    val_list roots;    /* ascending ids; equal rank; row axes have equal extents */
    uint32_t row_axes; /* mask over root axes: outer loops shared by everything inside */
    split_list splits;
    int n_dots, n_reduces;
    int64_t work; /* elements computed inside, roughly */
    int64_t rows; /* of the last analysis that went well .. */
    int loops;
    bool known;   /* .. which was of the group as it is */
    bool dead;    /* merged into another */
    bool control; /* its root is an if or a while: see control.c */
    val dest;     /* roots are parts of this concat and written there (sched.part_at) instead of buffers of their own */
} group;

/* PLACE_JOINED: a concat whose parts are parts of a larger one. */
enum { PLACE_NONE, PLACE_LEAF, PLACE_ROOT, PLACE_INSIDE, PLACE_EVERYWHERE, PLACE_ALIAS, PLACE_JOINED };
typedef struct sched {
    plan *p;
    graph *g;
    arena *a;
    arena *scratch; /* of the analyses that decide about one value */
    arena *walked;  /* of the walk that is kept, */
    struct walk *walk;
    sched_opts opts;
    uint8_t *place;            /* [nodes] PLACE_* */
    int *group_of;             /* [nodes] PLACE_ROOT, PLACE_INSIDE: index into groups, else -1 */
    const char **materialised; /* [nodes] why it must be kept in memory; NULL: it need not */
    ext **part_at;             /* [nodes] of a part of a concat: where it begins there, by axis; else NULL */
    int32_t *buf_of;           /* [nodes] plan buffer of what lives in memory, or -1 */
    VEC(group) groups;
    marks values, of_groups; /* of the walk that is going on */
    int_list readers;        /* of the value that is being placed: groups */
    int *part_of;            /* [nodes] see kinship in fuse.c */
    int *count;              /* [nodes] all 0 between uses */
    bool *control;           /* [regions] has an if or a while, which fuse.c and merge.c do not look through */
} sched;
static inline bool sched_marked(const marks *m, uint32_t i) { return m->at[i] == m->now; }
static inline bool sched_mark(marks *m, uint32_t i) { /* whether it is new */
    bool fresh = m->at[i] != m->now;
    m->at[i] = m->now;
    return fresh;
}
static inline void sched_unmark(marks *m) { m->now++; } /* fewer walks than 2^32 in one plan */
/* Whether v is computed inside group gi rather than loaded. */
static inline bool sched_inside(const sched *s, int gi, val v) {
    return s->place[v] == PLACE_EVERYWHERE || (s->place[v] == PLACE_INSIDE && s->group_of[v] == gi);
}

/* view.c: what v is a view of. */
val sched_behind_moves(const sched *s, val v);
/* view.c: the index of a movement op's operand; idx has one entry an axis of v. */
typedef struct view_fail { /* a reshape that needs loop `var` split with this inner extent to stay affine; inner 0 = it cannot
                            */
    kvar var;
    ext inner;
} view_fail;
typedef VEC(kmask) kmask_list;
affine view_moved(const kernel *k, affine x, ext by);             /* x + by */
affine view_plus(const kernel *k, affine x, affine y, ext times); /* x + y * times */
bool view_operand(const kernel *k, const graph *g, val v, const affine *idx, affine *out_idx, kmask_list *masks,
                  view_fail *fail);
affine view_flat(const kernel *k, const graph *g, val v, const affine *idx); /* row-major element index */

/* analyse.c: walks a group from its roots with symbolic indices. Rows are the root axes that everything inside can share as
 * outer loops: each reduction and contraction inside is needed at exactly the row it is computed for. */
typedef struct visit { /* where an inside value is read: its index in terms of loop variables */
    val v;
    const affine *idx;
    bool under_dot;
    int next; /* the one before of its bucket: number + 1, 0 = none */
} visit;
enum { VISIT_BUCKETS = 256 };
typedef struct analysis {
    kernel *k; /* owner of the loop variables; variables of root axes come first */
    VEC(visit) visits;
    int bucket[VISIT_BUCKETS]; /* last visit of the values that are equal modulo this: number + 1, 0 = none */
    split_list var_of;         /* which (node, axis) a variable belongs to, by variable */
    bool alive[MAX_LOOPS];     /* by root variable: still a row */
    int n_root_vars;
    VEC(uint64_t) joint; /* sets of root variables that are rows together or not at all */
    int n_dots, n_reduces;
    bool packs;   /* a contraction's operand is computed as it is packed */
    int64_t work; /* elements computed inside */
    int64_t rows; /* product of the row extents */
    int loops;
    const char *reason; /* why not, when analysis failed */
    val materialise;    /* and the value that should be in memory instead */
} analysis;
bool group_analyse(sched *s, int gi, arena *a, analysis *out); /* in a */
/* The same, kept until another walk is: while only group_join puts values inside, and group_leave takes the last one out again,
 * the walk goes on from where it was. Whoever changes what a group has, or where its values are, in another way calls
 * group_forget. */
const analysis *group_keep(sched *s, int gi, bool *out_ok);
const analysis *group_join(sched *s, int gi, val v, bool *out_ok); /* v is inside now */
void group_leave(sched *s);
void group_forget(sched *s);
/* Splits a dot's index into those of its operands; contraction axis i has index kv[i]. */
void dot_operand_index(const graph *g, val v, const affine *idx, const affine *kv, affine *ia, affine *ib);
/* Index of root r of group gi by the root variables of `k`, which are made on the first call; also used by lower.c so that ids
 * agree. */
void group_root_index(sched *s, group *gr, int r, kernel *k, split_list *var_of, affine *out_idx);
/* Index of `axis` of `owner` as fresh loop variables, split as the group asks. */
affine group_axis_vars(sched *s, group *gr, kernel *k, split_list *var_of, val owner, int axis, ext extent, const char *name,
                       bool row, bool reduce);

/* prologue.c: whether it takes no longer, or hardly, to compute a value, of which there are so many elements, each time that a
 * panel of a contraction's operand is packed than to store it and read it again. */
typedef struct prologue_use {
    int64_t work, elems; /* multiply-adds of the contraction; elements of its operand */
    int flops;           /* of an element of that, down to the value */
} prologue_use;
bool sched_packs_computed(const sched *s, tn_dtype t, int64_t elems, const prologue_use *by);
/* Whether computing v in each of `kernels` kernels takes no longer than storing it and reading it there. */
bool sched_computes_again(const sched *s, val v, int kernels);
/* Whether an operand of type t, of so many elements, is better stored for the matrix units that multiply it than computed by
 * threads that multiply it themselves; work: multiply-adds. */
bool sched_feeds_matrix_units(const sched *s, tn_dtype t, int64_t elems, int64_t work);
/* Whether a cast makes bytes of sums of integers: behind these it takes no trip through memory, and bytes are what is copied
 * into a border, or kept for another kernel. */
bool sched_belongs_to_sums(const sched *s, const node *cast);

/* fuse.c: fills place, group_of, groups. */
void sched_fuse(sched *s);
/* running.c: whether a mask leaves out of a sum what is behind each element, which is one of so many that are summed. */
bool sched_is_running(const sched *s, const node *n, int64_t least);
/* The same: what of a group for a GPU must be in memory, so that a thread block makes its running sums; 0: nothing, or it has
 * none. */
val sched_beside_running_sums(const sched *s, const val *inside, int n, const kernel *k);
/* decide.c: a buffer of v's type, which v has from now on; *fill: where there is room for it, which moves on. */
int32_t sched_add_buf(sched *s, pbuf_kind kind, val v, int slot, int64_t *fill);
bool sched_decide(sched *s, val v, val user, bool fused, const char *reason); /* notes it for explain; returns fused */

/* merge.c: kernels with several results. */
void sched_merge(sched *s);
/* The values of every group, ascending: those of group i are at[first[i]] .. at[first[i + 1] - 1]. Inside or root. */
typedef struct members {
    int *first; /* [groups + 1] */
    val *at;
} members;
members sched_members(const sched *s);

/* Inside of lowering. */
typedef struct lowering {
    members inside;
    val_list to_materialise;                               /* because groups cannot be lowered after all */
    void (*region)(sched *s, int r, struct lowering *low); /* makes the groups of a region kernels and steps */
} lowering;

/* control.c: if and while. control_force: what they need in memory; before sched_fuse. control_groups: groups of their own;
 * after it. control_buffers: of what has several results. control_lower: kernels and steps of such a group. */
void control_force(sched *s);
void control_groups(sched *s);
void control_buffers(sched *s);
void control_lower(sched *s, int gi, lowering *low);

/* scan_kernel.c: the steps of a scan, a repeat whose body is written but for what hands the state on, become one launch where
 * the body is one elementwise kernel; whether they did. */
typedef struct scan_steps {
    int step, before; /* the repeat; the first of the launches before it that copy what is carried to where it lies */
    int n_carry;
    const int32_t *first, *state, *next; /* [n_carry] buffers: what is copied, what an iteration begins with, what it gives */
} scan_steps;
bool sched_scan_kernel(sched *s, const scan_steps *x);
void sched_count(pkernel *pk); /* count.c: flops and traffic of a kernel in scalar form */

/* lower.c: the kernel of a group in scalar form and its arguments. Returns NULL with *out_blame = the value to keep in memory
 * when the group cannot be lowered after all. */
kernel *lower_group(sched *s, int gi, parg **out_args, val *out_materialise);

#endif
