/* run.h - what runs programs: sessions, immediate mode, profiles, tuning. Every function returns a status; of sessions with its
 * text in the session's err. */
#ifndef TN_RUN_RUN_H
#define TN_RUN_RUN_H

#include "drive/drive.h"

typedef struct own_states { /* what a session, or several, have instead of the program's states that no run changes */
    buffer *buf;
    int sessions; /* atomic */
} own_states;

typedef struct session_form { /* how a session runs its program, or the special one */
    tn_program *p;
    list *list;                 /* everything a run does */
    int64_t *rows;              /* [plan.params.at.n] values of all its parameters; NULL: it has none. Usual: the session's */
    int64_t *grids;             /* [kernels] thread blocks of the launches, likewise */
    struct device_place *place; /* [plan.bufs.n] of temporaries, where steps may overlap: each has memory of its own */
    device_places places;       /* copies: 0: they are too large for that */
} session_form;

struct tn_session {
    tn_program *p;
    session_form usual, special[DRIVE_MOST_SPECIAL]; /* of the program's */
    session_form *now;                               /* the one for the run's sizes */
    buffer *temp, *state, *scratch;
    bool moved;             /* sizes are to be brought to the device before the next run; immediate: .sized is made again */
    buffer *shared;         /* states that no run changes: the program's, or .. */
    own_states *own_states; /* .. those of this session, since it has set one or shares another's; NULL: the program's */
    bool unread;            /* shared states that the program does not read may lie as another program reads them */
    bool loops;             /* a list does all so often as a submit says */
    int64_t *ring;          /* SLOT_RING: see emit/c.c */
    int64_t *dims, *rows;   /* behind it: the values of the program's dims, -1: not given yet; of all its parameters */
    int64_t *io_bytes;      /* [n_io] for these dims; NULL: the program has no dims */
    void **bound;           /* [n_io] host pointers of the next run; NULL = an input that is not bound */
    void **kept;            /* [n_io] those that tn_session_bind gave, or NULL; a call of tn_run hides them for its run */
    uint8_t *io_flags;      /* [n_io] of src/api/bind.c */
    int *by_address;        /* [n_io] slots, likewise */
    bool of_call;           /* bound has what a call of tn_run bound, not kept */
    void **spare;           /* [n_io] memory of outputs that nobody bound, and an address for inputs without bytes */
    buffer **io_buf;        /* [n_io] device memory, on devices that cannot use host pointers; else NULL */
    buffer **adopted;       /* [n_io] memory of the device that tn_session_bind_device gave, at kept[i]; elements may be NULL */
    bool *in_place;         /* [n_io] the list uses adopted[i] instead of io_buf[i] */
    size_t *io_room;        /* [n_io] its bytes: more than one batch of a ring */
    size_t *io_stride;      /* [n_io] bytes there from step to step */
    int64_t *trace;         /* [n_io] steps bound by tn_session_bind_trace, or 0 */
    struct immediate *imm;  /* immediate programs: */
    struct sized_graph *sized; /* with the dims of the run; NULL: the program has none */
    struct bodies *bodies;     /* places of results of control flow; NULL: there is none */
    struct node_place *at;     /* [graph.nodes.n + bodies.n] where each value is: */
    void **own;                /* [likewise] memory of this session, or .. */
    buffer **own_buf;          /* .. of the device, where that has its own; else NULL */
    void **staged;             /* [graph.outputs.n] the next value of a state waits here when another needs the old one, too */
    err err;                   /* the last error of this session: sessions of one program may run, and fail, at the same time */
};

/* run.c: sessions of any program. from: whose states it shares, or NULL. */
tn_status session_new(tn_program *p, const tn_session *from, tn_session **out, err *e);
void session_free(tn_session *s);
tn_status session_run(tn_session *s, int64_t steps);

/* session.c: of compiled programs. bare: without memory for inputs and outputs, which are bound to buffers of the caller. */
tn_status session_open(tn_program *p, bool bare, const tn_session *from, tn_session **out, err *e);
tn_status session_shell(tn_program *p, bool bare, const tn_session *from, tn_session **out, err *e); /* its slots alone */
void session_close(tn_session *s);
tn_status session_submit(tn_session *s, int64_t steps);
/* A list of what a run does, with the session's memory bound: every kernel a launch of its own, or what the program has
 * instead. On errors *out may be a list, too. */
tn_status session_record(tn_session *s, const session_form *w, bool kernels, list **out);
void session_use_sizes(tn_session *s); /* the dims as they are now, on devices with memory of their own */
/* The slot is at data of the host from now on, NULL: at memory that is nobody's; SESSION_MOVED in s->io_flags says so. */
enum { SESSION_MOVED = 1 };
void session_place(tn_session *s, int slot, void *data);
void session_bind(tn_session *s, int slot, buffer *b);
/* Memory of the device instead of the host's, at kept[slot] from the next session_place on; NULL: none. */
void session_adopt(tn_session *s, int slot, buffer *b);
tn_status session_follow(tn_session *s, uint64_t stream); /* a run in order with a stream of the caller's */
tn_status session_queue(tn_session *s);                   /* a run behind what was queued before; nobody waits for it */

/* dims.c: values of dims. session_set_dims: values[n_dims], -1: not given; all or none are taken. Nothing is allocated. */
const exts *session_params(const tn_session *s); /* NULL: the program has none */
tn_status session_set_dims(tn_session *s, const int64_t *values);
/* Temporaries of so many iterations as fit the arena (with dims: and a GPU's cache) have memory of their own; of none: places
 * as planned. */
void session_place_temps(const tn_session *s, session_form *w);
bool session_has_dims(const tn_session *s, const char **out_missing); /* all are given */
static inline int64_t session_bytes(const tn_session *s, int i) { return s->io_bytes ? s->io_bytes[i] : s->p->io[i].bytes; }

/* states.c: state i of a session of a compiled program, and its copies in other orders. */
tn_status session_get(tn_session *s, int i, void *out);
tn_status session_set(tn_session *s, int i, const void *value);
/* All of them; values[i] may be NULL where a state has no bytes. Where memory runs out none is set. */
tn_status session_set_all(tn_session *s, const void *const *values);
/* Those that no run changes: what a new session has; to has those of from, of the same program, until either sets one; none. */
tn_status session_first_states(tn_session *s);
void session_share(tn_session *to, const tn_session *from);
void session_leave_states(tn_session *s);

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

/* immediate_session.c */
tn_status immediate_session(tn_session *s); /* the rest of a session of an immediate program */
void immediate_session_free(tn_session *s);
tn_status immediate_session_get(tn_session *s, val v, void *to);
tn_status immediate_session_set(tn_session *s, val v, const void *from);
tn_status immediate_session_set_all(tn_session *s, const void *const *values);
tn_status immediate_session_run(tn_session *s);

/* immediate_graph.c. Computes what was built since the last call in an immediate graph: nodes in order, then state updates.
 * Opens the device when needed. */
tn_status immediate_graph_update(tn_graph *g);
/* Before the value of an input or state changes. immediate_room makes a buffer for the new one where the old one has none or
 * stays with tensors that share it, else *out is NULL; errors in the context. immediate_renew puts it in place. */
tn_status immediate_room(tn_graph *g, val v, buffer **out);
void immediate_renew(tn_graph *g, val v, buffer *room);
/* An iteration is through: of its values, those from `first` on, the memory of now[0..n) stays alone, and of earlier iterations
 * what these have of old[0..n) no more goes. owners[2 n] begins with zeros: it says whose memory that is. */
void immediate_forget(tn_graph *g, val first, const tn_tensor *old, const tn_tensor *now, int n, val *owners);

/* profile.c: inputs are bound; each: seconds that a kernel is repeated for, 0: once; err in s->err. */
tn_status profile_session(tn_session *s, double seconds, double each, tn_profile **out);
void profile_free(tn_profile *p);
typedef struct kernel_times {
    double median, best, begin, end; /* seconds; begin and end: in the last round */
    cost predicted;
} kernel_times;
struct tn_profile {
    tn_ctx *ctx;
    const tn_program *p;
    kernel_times *kernels; /* [n] in launch order */
    int n;
    tn_profile_summary summary;
};

/* tune.c: opts and tune are checked. Errors in ctx->err. */
tn_status tune_graph(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, const tn_tune_opts *tune, tn_tuning **out);
void tune_free(tn_tuning *t);
typedef struct tuned_variant { /* what was measured */
    const char *schedule;      /* as text; GPUs: a tile, or RECIPE_ITSELF */
    const char *text, *form;   /* what it changes about the recipe's; the kernel it makes */
    double seconds;            /* of a launch */
} tuned_variant;
typedef struct tuned_kernel {
    const char *name, *text;          /* text: what the schedule changes */
    int kernel, launches, candidates; /* kernel: the first with this code, of the plan */
    uint64_t key;
    const char *recipe, *schedule; /* as texts: the recipe's; the one that it has now */
    double share, before, after;   /* seconds of all launches in a run, roughly; of one */
    double flops;                  /* of one */
    VEC(tuned_variant) variants;   /* the model's among them; in the end the fastest first */
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
