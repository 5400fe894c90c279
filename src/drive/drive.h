/* drive.h - the conductor: the only place that knows the order of the stages, and what programs and sessions are made of. */
#ifndef TN_DRIVE_DRIVE_H
#define TN_DRIVE_DRIVE_H

#include "drive/objects.h"
#include "ir/plan.h"
#include "ir/target.h"

enum { WHY_BYTES = 640 };

/* A compiled graph: immutable, shared by sessions. Its arena owns plan, source and texts. */
struct tn_program {
    tn_ctx *ctx;
    arena arena;
    guard gd;
    tn_compile_opts opts; /* as resolved */
    target target;
    device *dev;
    graph *graph; /* as given; immediate programs run it node by node */
    plan *plan;
    const char *source; /* NULL: the plan went straight to machine code */
    size_t n_source;
    const char *code; /* what it was written for: "c", or an instruction set */
    device_image *image;
    module *module;
    void *main_entry;
    void **kernel_entry; /* [plan.kernels.n] */
    bool parallel;       /* any kernel is split over threads */
    size_t scratch;      /* bytes in SLOT_SCRATCH, of all threads */
    buffer *consts;
    buffer *shared; /* SLOT_SHARED of its sessions; NULL: these states have no initial values, and each session takes its own */
    const pio *io;  /* inputs, then outputs: the slots of tenon.h */
    int n_io;
    const int *io_by_name; /* [n_io] slots in the order of their names */
    const pstate *states;  /* buf: index into plan.bufs; -1 in immediate programs */
    int n_states;
    char why[WHY_BYTES]; /* of the device, when it was chosen here; else empty */
    tn_program_stats stats;
};

struct tn_session {
    tn_program *p;
    buffer *temp, *state, *scratch;
    buffer *shared;        /* the program's until this session sets one of these states: then a copy of its own */
    list *list;            /* everything a run does */
    int64_t *ring;         /* SLOT_RING: see emit/c.c */
    void **bound;          /* [n_io] host pointers of the next run; NULL = an input that is not bound */
    void **kept;           /* [n_io] those that tn_session_bind gave, or NULL; a call of tn_run hides them for its run */
    uint8_t *io_flags;     /* [n_io] of src/api/bind.c */
    int *by_address;       /* [n_io] slots, likewise */
    bool of_call;          /* bound has what a call of tn_run bound, not kept */
    void **spare;          /* [n_io] memory of outputs that nobody bound, and an address for inputs without bytes */
    buffer **io_buf;       /* [n_io] device memory, on devices that cannot use host pointers; else NULL */
    size_t *io_room;       /* [n_io] its bytes: more than one batch of a ring */
    int64_t *trace;        /* [n_io] steps bound by tn_session_bind_trace, or 0 */
    struct immediate *imm; /* immediate programs: */
    struct node_place *at; /* [graph.nodes.n] where each value is: */
    void **own;            /* [graph.nodes.n] memory of this session, or .. */
    buffer **own_buf;      /* .. of the device, where that has its own; else NULL */
    void **staged;         /* [graph.outputs.n] the next value of a state waits here when another needs the old one, too */
    err err;               /* the last error of this session: sessions of one program may run, and fail, at the same time */
};

/* Compile half: a plan in the form that the program's device takes: an image or a source. In a. */
typedef struct drive_code {
    device_image *image;
    const char *source, *name; /* name: as tn_program.code */
    size_t n_source;
    size_t scratch; /* bytes in SLOT_SCRATCH, of all threads */
} drive_code;
void drive_emit(const tn_program *p, const plan *what, arena *a, drive_code *out);

/* choose.c: the device "auto". why[WHY_BYTES]: the device's name, then what a run would take on each. */
tn_status drive_choose(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, device **out, char *why, err *e);
/* Microseconds that a run would take on a device like this, and those of them that go to transfers. */
tn_status drive_estimate(mem m, const graph *g, const tn_compile_opts *opts, const device_caps *c, double *out_us,
                         double *out_transfer, err *e);

/* pipeline.c. Jumps through a->gd. */
plan *pipeline_run(const graph *g, arena *a, const tn_compile_opts *opts, const target *t);
/* The arguments of a kernel that kopt made of one with the first n_before of its buffers, which had the arguments pk->args. */
void pipeline_args(plan *p, pkernel *pk, int n_before);

/* compile.c, session.c: run half. drive_compile opens the device that opts name and reports in ctx->err. drive_compile_on takes
 * resolved options and an open device, so it may run on any thread; so may all that follows. */
tn_status drive_compile(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, tn_program **out);
tn_status drive_compile_on(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, tn_program **out, err *e);
/* The same with other choices (NULL = the model's) than the context's. */
tn_status drive_compile_tuned(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, const ktuning *choices,
                              tn_program **out, err *e);
/* What compiling has to know of a device; choices may be NULL. */
target drive_target(const device_caps *c, const ktuning *choices);
/* Defaults filled in; errors in ctx->err. */
tn_status drive_resolve(tn_ctx *ctx, const tn_compile_opts *opts, tn_compile_opts *out);
void drive_program_free(tn_program *p);
/* The bytes that buffer b of a plan holds when its value is this one, put where it lies in `to`. */
tn_status drive_upload(const tn_program *p, buffer *to, const pbuf *b, const void *value, err *e);
/* All constants of a plan for the program's device; *out may be there after an error, too. */
tn_status drive_constants(const tn_program *p, const plan *what, buffer **out, err *e);
tn_status drive_session_new(tn_program *p, tn_session **out, err *e);
void drive_session_free(tn_session *s);
tn_status drive_session_run(tn_session *s, int64_t steps); /* err in s->err */
/* states.c: state i of a program, or of a session. */
bool drive_is_shared(const tn_program *p, int i); /* no run changes it */
tn_status drive_session_get(tn_session *s, int i, void *out);
tn_status drive_session_set(tn_session *s, int i, const void *value); /* state i, and its copies in other orders */
/* All of them; values[i] may be NULL where a state has no bytes. Where memory runs out none is set. */
tn_status drive_session_set_all(tn_session *s, const void *const *values);
/* One state in memory of the slot that the state lies in. */
tn_status drive_get_state(const tn_program *p, const buffer *from, int i, void *out, err *e);
tn_status drive_set_state(const tn_program *p, buffer *to, int i, const void *value, err *e);
tn_status drive_share_states(tn_program *p, err *e); /* makes p->shared, when any of them has an initial value */
/* From now on initial values in the program's graphs are those in p->shared; NULL where they are packed there. Jumps. */
void drive_keep_values(tn_program *p);
/* A copy of one of the program's graphs that has all initial values, in a. Jumps. */
const graph *drive_with_values(const tn_program *p, const graph *g, arena *a);
size_t drive_value_bytes(const graph *g, val v);
/* Refuses what the device has no room for. io: bytes of inputs and outputs. */
tn_status drive_check_room(const tn_program *p, size_t temp, size_t state, size_t io, err *e);
/* A list of what a run does, with the session's memory bound: every kernel a launch of its own, or what the program has
 * instead. On errors *out may be a list, too; err in s->err. */
tn_status drive_session_record(tn_session *s, bool kernels, list **out);

/* For immediate mode on devices with memory of their own: a session without any for inputs and outputs, which are bound to
 * buffers; a run is queued behind what was queued before. err in s->err. */
tn_status drive_session_bare(tn_program *p, tn_session **out, err *e);
/* The slot is at data of the host from now on, NULL: at memory that is nobody's; SESSION_MOVED in s->io_flags says so. */
enum { SESSION_MOVED = 1 };
void drive_session_place(tn_session *s, int slot, void *data);
void drive_session_bind(tn_session *s, int slot, buffer *b);
tn_status drive_session_queue(tn_session *s);

/* immediate.c: one op, one program, one run. */
typedef struct immediate immediate;
typedef struct node_place { /* of a value: one of both */
    void *host;
    buffer *buf;
} node_place;
/* e outlives *out: errors of all its calls go there. */
tn_status immediate_new(tn_ctx *ctx, device *dev, const tn_compile_opts *opts, immediate **out, err *e);
void immediate_free(immediate *im);
/* Computes node v of g. at[v] are the places of node values; at[v] itself is written. Buffers are used where they are, host
 * memory is transferred to and from devices that cannot use it. */
tn_status immediate_run(immediate *im, const graph *g, val v, const node_place *at);
void immediate_get_stats(const immediate *im, tn_program_stats *out);
tn_status immediate_session(tn_session *s); /* the rest of a session of an immediate program */
void immediate_session_free(tn_session *s);
tn_status immediate_session_get(tn_session *s, val v, void *to);
tn_status immediate_session_set(tn_session *s, val v, const void *from);
tn_status immediate_session_set_all(tn_session *s, const void *const *values);
tn_status immediate_session_run(tn_session *s);

/* Computes what was built since the last call in an immediate graph: nodes in order, then state updates. Opens the device when
 * needed. */
tn_status immediate_graph_update(tn_graph *g);
/* Before the value of an input or state changes. immediate_room makes a buffer for the new one where the old one has none or
 * stays with tensors that share it, else *out is NULL; errors in the context. immediate_renew puts it in place. */
tn_status immediate_room(tn_graph *g, val v, buffer **out);
void immediate_renew(tn_graph *g, val v, buffer *room);

/* explain.c */
void explain_print(const tn_program *p, str *out);
void explain_json(const tn_program *p, str *out);

/* profile.c: inputs are bound; err in s->err. */
tn_status drive_profile(tn_session *s, double seconds, tn_profile **out);
void drive_profile_free(tn_profile *p);
typedef struct kernel_times {
    double median, best, begin, end; /* seconds; begin and end: in the last round */
} kernel_times;
struct tn_profile {
    tn_ctx *ctx;
    const tn_program *p;
    kernel_times *kernels; /* [n] in launch order */
    int n;
    tn_profile_summary summary;
};

/* tune.c: opts and tune are checked. Errors in ctx->err. */
tn_status drive_tune(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, const tn_tune_opts *tune, tn_tuning **out);
void drive_tuning_free(tn_tuning *t);
typedef struct tuned_way { /* what was measured */
    kchoice choice;
    const char *text, *form; /* the choice; the kernel it makes */
    double seconds;          /* of a launch */
} tuned_way;
typedef struct tuned_kernel {
    const char *name, *text;          /* text: the choice */
    int kernel, launches, candidates; /* kernel: the first with this code, of the plan */
    uint64_t key;
    kchoice choice;
    double share, before, after; /* seconds of all launches in a run, roughly; of one */
    double flops;                /* of one */
    VEC(tuned_way) ways;         /* the model's among them; in the end the fastest first */
    bool measured, changed;
} tuned_kernel;
struct tn_tuning {
    tn_ctx *ctx;
    arena arena;
    guard gd;
    tuned_kernel *kernels; /* [n] in launch order */
    int n;
    tn_tuning_summary summary;
};

#endif
