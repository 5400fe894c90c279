/* lower.h - a kernel in the making: what lower.c (what is kept in registers and memory, nests) and lower_value.c (the
 * instructions of a value) share. Everything lives in the arena for the time of one group. */
#ifndef TN_SCHED_LOWER_H
#define TN_SCHED_LOWER_H

#include "sched/sched.h"

typedef enum item_kind { ITEM_SCALAR, ITEM_LOCAL, ITEM_ROOT } item_kind;
typedef struct item {
    val v;
    item_kind kind;
    int root; /* index among the group's roots */
    reg r;    /* ITEM_SCALAR: where it is, once computed */
    int buf;  /* ITEM_LOCAL: kernel buffer */
    bool stored;
} item;

typedef struct memo {
    val v;
    const affine *idx;
    kmask_list masks; /* where it is right; elsewhere a load gave the border's value */
    reg r;
} memo;

typedef struct want { /* a value at an index, where masks hold */
    val v;
    const affine *idx;
    kmask_list masks;
} want;
/* A value inside of the kernel whose instructions are being written: those of its operands first. */
typedef struct task {
    want of;
    bool item;  /* of the list: a name for it is made elsewhere */
    bool begun; /* its operands are listed */
    want in[3];
    reg r[3]; /* those that are done */
    int n_in, n_done;
    reg acc[2];           /* a reduction: its result; of ARG the best value, its index */
    int n_loops, n_memos; /* loops opened for it; memos before them */
    kmask_list border;    /* a pad's own */
} task;

typedef struct lower {
    sched *s;
    group *gr;
    int gi;
    graph *g;
    arena *a;
    analysis an;
    kernel *k;
    split_list var_of;
    VEC(item) items;
    VEC(memo) memos;
    VEC(task) open; /* each of an operand of the one before it */
    VEC(parg) args;
    val materialise; /* set: lowering failed because of this value */
} lower;

/* lower.c */
/* lower_item.c */
item *lower_find_item(lower *w, val v);
bool lower_var_is_row(const lower *w, kvar v);
const affine *lower_first_index(const lower *w, val v);  /* of its axes, where it is used first; NULL: nowhere */
bool lower_has(const lower *w, val v);                   /* computed inside, or a root */
bool lower_axis_is_row(const lower *w, val v, int axis); /* of an inside value: all its loop variables are rows */

/* lower_value.c */
int lower_arg(lower *w, int32_t plan_buf, bool write); /* the kernel's buffer for it */
affine lower_local_index(lower *w, const item *it, const affine *idx);
ext lower_stride(const lower *w, const node *x, int axis); /* elements from one to the next along the axis */
kvar lower_open_loop(lower *w, kvar v);
void lower_open_loops(lower *w, int from); /* of all variables from there on */
void lower_close_loops(lower *w, int n, int n_memos);
reg lower_value(lower *w, val v, const affine *idx);
reg lower_inside(lower *w, val v, const affine *idx); /* of an item, which is not looked up */

#endif
