/* plan.h - what runs, in which order, where everything lives: a tree of steps that launch kernels over buffers.
 *
 * In: sched/ decides kernels and makes buffers; mem/ makes the steps and gives buffers their place. Out: emit/ writes code,
 * run/ records the steps in a device's list. Slots are the base pointers of a run (device.h): temporaries, states that runs
 * change, states that none changes (sessions share them) and constants are four arenas; every input and every output has its
 * own. SLOT_SCRATCH: what threads of the CPU keep beside these while they run a kernel, one after the other; how much is known
 * when there is code. SLOT_RING: how inputs and outputs move from step to step (emit/c.c), and behind that the values of the
 * plan's dims, then of the rows of plan.params: a session computes them when it is given dims. Buffers have the sizes that they
 * need at most. */
#ifndef TN_IR_PLAN_H
#define TN_IR_PLAN_H

#include "ir/kernel.h"

/* SLOT_IO + k: the k-th input or output in plan.io order; behind these a slot for each window (plan_slots) */
enum { SLOT_TEMP, SLOT_STATE, SLOT_SHARED, SLOT_CONST, SLOT_SCRATCH, SLOT_RING, SLOT_IO };
enum { PLAN_ALIGN = 256, PLAN_PAGE = 4096, PLAN_MOST_AT_ONCE = 8 /* iterations at a time */ };

/* What a buffer takes in its arena: up to the next aligned place. Arrays of whole pages would all begin at the same place of a
 * page, and lines so far apart share the few places that a cache has for them: they get a place more, so that neighbours begin
 * 4 lines later. */
static inline int64_t plan_room(int64_t bytes) {
    int64_t room = (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    return room + (room && room % PLAN_PAGE == 0 ? PLAN_ALIGN : 0);
}

/* Bytes from the beginning of SLOT_RING to the values of dims, and to those of all rows. */
static inline int64_t plan_dims_at(int n_io) { return 16 * (int64_t)n_io; }
static inline int64_t plan_rows_at(int n_io, const exts *t) { return plan_dims_at(n_io) + 8 * (int64_t)t->n_dims; }

typedef enum pbuf_kind {
    PB_TEMP,
    PB_STATE,
    PB_CONST,
    PB_INPUT,
    PB_OUTPUT,
    PB_STATES, /* several states that no run changes, seen as one buffer; each has one of its own, too */
    PB_WINDOW  /* a part of buffer window_of, in each iteration of a repeat another one; it has a slot of its own */
} pbuf_kind;
typedef struct pbuf {
    pbuf_kind kind;
    val node; /* value it holds at first */
    uint8_t dtype;
    int64_t elems;
    int64_t bytes;
    int slot;
    int64_t offset;        /* bytes from the slot's base; mem/ fills it for PB_TEMP */
    int32_t first, last;   /* kernels that write it first and use it last (PB_TEMP); mem/ fills them */
    int32_t inplace_of;    /* PB_TEMP: shares the place of this earlier buffer, or -1 */
    int32_t io;            /* PB_INPUT, PB_OUTPUT: index into plan.io */
    int32_t window_of;     /* PB_WINDOW; may be a window itself */
    const kpanels *panels; /* PB_CONST, PB_STATE: packed in this order; NULL: as the value lies */
    int32_t next_panels;   /* PB_CONST, PB_STATE: the next copy of the value, which is packed otherwise, or 0 */
    bool copy;             /* of a value that another buffer has, too */
} pbuf;

typedef struct parg { /* kernel.bufs[i] of a launch: which plan buffer */
    int32_t buf;      /* -1 for KB_LOCAL */
} parg;

typedef struct pkernel {
    kernel *k;
    parg *args;   /* [k->bufs.n] */
    bool barrier; /* all threads meet before it; see mem/barrier.c */
    int code;     /* index of the first kernel with the same code (itself when it is the first) */
    val *fused;   /* graph values computed inside */
    int n_fused;
    val root;                        /* the value it is named after */
    const kernel *scalar;            /* where code is its own index: as it was before tiling */
    const struct schedule *schedule; /* the same: the steps from `scalar` to k; NULL: it has none yet, or is several kernels */
    const char *tuned;   /* the same: the text of the tuning database that it comes from; NULL = from the recipe or by hand */
    const char *ignored; /* the same: why such a text was not heeded; NULL = it was, or there is none */
} pkernel;

/* What a run does, in pre-order: a step with others inside stands before them. Kernels are launched in their order, each once
 * in the tree. */
typedef enum pstep_kind {
    PSTEP_LAUNCH,
    PSTEP_LOOP,   /* over the steps of tn_run_n: the submit says how many. It is around all launches, or there is none */
    PSTEP_REPEAT, /* what is inside, `times` times, or until a leave */
    PSTEP_LEAVE,  /* the innermost repeat ends when the bool `cond` is false */
    PSTEP_BRANCH, /* the first n_then steps inside when the bool `cond` is true, else the others */
    N_PSTEPS
} pstep_kind;
typedef struct pring { /* PSTEP_LOOP: an input or output moves from iteration to iteration, and begins again after a length that
                          a run gives. PSTEP_REPEAT: a window moves over its buffer */
    int32_t buf;
    ext stride; /* bytes */
} pring;
typedef struct pstep {
    pstep_kind kind;
    int32_t inside; /* steps inside, of all depths: they follow */
    int32_t kernel; /* PSTEP_LAUNCH */
    int32_t cond;   /* PSTEP_LEAVE, PSTEP_BRANCH: buffer */
    int32_t n_then; /* PSTEP_BRANCH */
    ext times;      /* PSTEP_REPEAT: at most so often; 0: until a leave */
    int32_t count;  /* PSTEP_REPEAT with times: buffer of one i64, which may be less; -1: there is none */
    bool backward;  /* PSTEP_REPEAT with times: windows begin at the last iteration's place */
    const pring
        *rings; /* PSTEP_LOOP: [n_rings] ascending by buf; every input and output that has bytes. PSTEP_REPEAT: windows */
    int32_t n_rings;
    int overlaps; /* PSTEP_LOOP: a device may run so many iterations at a time, each with temporaries of its own: none needs
                     another's memory but what it reads, and temporaries share no place. 0: they follow one another */
} pstep;

typedef struct pschedule { /* of a kernel as sched/ made it, which may have become part of a launch */
    const char *name;
    const struct schedule *s; /* NULL: it has none yet */
} pschedule;

typedef struct pio {
    const char *name;
    bool is_output;
    val node;
    uint8_t dtype;
    int32_t buf;
    int64_t bytes;
} pio;

typedef struct pstate {
    const char *name;
    val node;
    int32_t buf;
    bool given; /* it has an initial value */
} pstate;

typedef struct why { /* one decision of the scheduler, for explain */
    val producer, consumer;
    bool fused;
    const char *reason;
} why;

typedef struct plan {
    arena *a;
    graph *g;     /* the graph as scheduled */
    exts *params; /* of all kernels; NULL: all sizes are literals */
    VEC(pbuf) bufs;
    VEC(pkernel) kernels; /* in launch order */
    VEC(pstep) steps;
    VEC(pschedule) schedules; /* of all code, in the order of the kernels */
    VEC(pio) io;
    VEC(pstate) states;
    VEC(why) decisions;
    int fusion;
    int threads;                    /* that a run has, unless it has one: what pkernel.barrier is right for */
    int64_t temp_bytes, temp_bound; /* planned size of the temporary arena; lower bound */
    int64_t state_bytes, shared_bytes, const_bytes;
    int n_windows;
    uint64_t unfused_read, unfused_written; /* traffic if every op were its own kernel */
    struct {
        int n;              /* values that are computed again so that memory keeps within a limit */
        int64_t temp_bytes; /* without that, and the work */
        uint64_t flops;
    } again;
} plan;

/* Bytes of temporaries of all iterations that run at a time. */
static inline int64_t plan_temp_room(const plan *p) {
    return p->steps.n && p->steps.at[0].overlaps > 1 ? p->steps.at[0].overlaps * p->temp_bytes : p->temp_bytes;
}
static inline int plan_slots(const plan *p) { return SLOT_IO + p->io.n + p->n_windows; }
/* The buffer that holds what a window shows; other buffers hold their own. */
static inline int32_t plan_base(const plan *p, int32_t b) {
    while (b >= 0 && p->bufs.at[b].kind == PB_WINDOW) b = p->bufs.at[b].window_of;
    return b;
}

/* plan_panels.c: whether a kernel has the buffer, or a part of it. */
bool plan_reads(const plan *p, int32_t b);
/* The same: the buffer that holds the value of constant or state `of` in panels: made when there is none yet, and listed
 * behind `of` (pbuf.next_panels). Returns its index. */
int32_t plan_panels(plan *p, int32_t of, const kpanels *x);
/* A value that no kernel reads as it lies is stored in the order that most launches read it in, which takes the place of its
 * buffer; copies in other orders stay. */
void plan_pack_values(plan *p);
/* Writes the bytes that a buffer holds when its value is this one. */
void pbuf_fill(const pbuf *b, const void *value, void *out);
/* Whether a value of so many elements can be had back from its panels: each element is there, and once; and how. */
bool kpanels_whole(const kpanels *x, int64_t elems);
void pbuf_unpack(const pbuf *b, const void *bytes, void *out);

/* Whether what is launched depends on values. */
static inline bool pstep_is_conditional(const pstep *x) { return x->kind == PSTEP_LEAVE || x->kind == PSTEP_BRANCH; }
static inline bool plan_has_control(const plan *p) {
    for (int i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind > PSTEP_LOOP) return true;
    return false;
}
/* Behind step i and all that is inside. */
static inline int pstep_end(const plan *p, int i) { return i + 1 + p->steps.at[i].inside; }
/* From iteration to iteration of an input or output of so many bytes, with the largest sizes `most`. What GPUs load wide from
 * begins at an aligned place in each; the CPU finds them as the caller has them, one behind the other. */
static inline int64_t plan_ring_stride(int64_t bytes, int64_t most, bool gpu) {
    return gpu && most >= KERNEL_WIDE_BYTES ? (bytes + 15) / 16 * 16 : bytes;
}
/* The loop over the steps of a run, or NULL. */
static inline pstep *plan_loop(const plan *p) { return p->steps.n && p->steps.at[0].kind == PSTEP_LOOP ? p->steps.at : NULL; }
/* A region: launches from step i on, up to the next barrier, other step, or `end`. Where it ends. */
static inline int plan_region_end(const plan *p, int i, int end) {
    for (i++; i < end && p->steps.at[i].kind == PSTEP_LAUNCH && !p->kernels.at[p->steps.at[i].kernel].barrier;) i++;
    return i;
}

/* An op in names of kernels and in reports. Plans compute no gradients any more: what stops them is a copy. */
static inline const char *plan_op_name(op_code op) { return op == OP_stop_gradient ? "copy" : op_get(op)->name; }

/* plan_text.c, plan_parse.c: prints a plan with its kernels and constants; reads that back. The text leaves out what explains
 * the plan (which values kernels compute, decisions, schedules) and what states hold at first. Jumps with TN_ERR_PARSE:
 * "file:line:col: expected ..". */
void plan_print(const plan *p, str *out);
void plan_print_kernels(const plan *p, str *out); /* each once */
plan *plan_parse(arena *a, const char *text, size_t n, const char *file);
void plan_print_deps(const plan *p, str *out); /* plan_deps.c: what each launch must come after, and why */
int plan_check_races(const plan *p, str *out); /* plan_race.c: barriers; called by plan_check */
/* plan_steps.c: what steps other than launches need of lives. Calls f for each buffer that one reads, or that is used inside of
 * a repeat: if it was written first before launch `from`, it lives to launch `to` at least. */
typedef void (*plan_life_fn)(int32_t buf, int from, int to, void *ud);
void plan_extend_lives(const plan *p, plan_life_fn f, void *ud);
/* What windows show is used in all iterations: f gets the buffer, and the launches of the repeat. */
void plan_window_lives(const plan *p, plan_life_fn f, void *ud);
/* plan_steps.c: a kernel that copies a buffer (from < 0: zeros), and its arguments. */
pkernel plan_copy(const plan *p, int32_t from, int32_t to);
ext plan_elems(const plan *p, int32_t b);         /* of the value that a buffer holds at first, in a run */
bool plan_is_loose(const plan *p, const pbuf *b); /* a window that may begin anywhere */
bool plan_is_one_function(const plan *p);         /* on the CPU: there is no control flow, or threads share nothing out */
int plan_depth(const plan *p);                    /* of loops inside of each other */
/* plan_steps.c: a problem of a plan, as a line of *out. */
typedef struct plan_problems {
    const plan *p;
    str *out;
    int n;
} plan_problems;
void plan_problem(plan_problems *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
plan *plan_at(const plan *p, const int64_t *dims); /* plan_check.c: for these values of its dims; buffers keep their room */
bool plan_is_for_gpus(const plan *p);              /* has kernels, and each is one thread's of a GPU */
int plan_check_steps(const plan *p, str *out); /* plan_steps.c: the tree, and what goes from iteration to iteration; likewise */
int plan_check(const plan *p, str *out);       /* plan_check.c: all of that, offsets, liveness, aliases; number of problems */

#endif
