/* drive.h - the conductor: the only place that knows the order of the stages, and what programs are made of. */
#ifndef TN_DRIVE_DRIVE_H
#define TN_DRIVE_DRIVE_H

#include "drive/objects.h"
#include "emit/emit.h"
#include "ir/boxes.h"
#include "ir/plan.h"
#include "ir/target.h"
#include "machine/cost.h"
#include "pass/watch.h"
#include "rt/file.h"

enum { WHY_BYTES = 640, DRIVE_MOST_SPECIAL = 6 };

/* A constant whose value is in tn_program.consts alone, packed: its node in the program's graph, its buffer in the plan. */
typedef struct packed_constant {
    val node;
    int32_t buf;
} packed_constant;

typedef struct given_rows { /* of a plan's table: values that a kernel for GPUs is given */
    int n;
    const int *at;
} given_rows;

/* A compiled graph: immutable, shared by sessions. Its arena owns plan and texts. */
struct tn_program {
    tn_ctx *ctx;
    arena arena;
    guard gd;
    tn_compile_opts opts; /* as resolved */
    target target;
    device *dev;
    graph *graph;      /* as given; immediate programs run it node by node */
    const graph *most; /* immediate programs: the same with each size at its most, which memory is taken for */
    plan *plan;
    const char *code; /* what it was written for: "c", or an instruction set */
    module *module;
    void *main_entry;
    void **kernel_entry;    /* [plan.kernels.n] */
    const kmaps *maps;      /* [plan.kernels.n] of kernels for GPUs */
    const given_rows *rows; /* [plan.kernels.n]; NULL: all sizes are literals */
    const ext *elems;       /* [plan.bufs.n] of what small sizes keep apart from step to step (run/dims.c); NULL: nothing is */
    bool parallel;          /* any kernel is split over threads */
    size_t scratch;         /* bytes in SLOT_SCRATCH, of all threads */
    buffer *consts;
    packed_constant *packed; /* [n_packed] */
    int n_packed;
    buffer *shared; /* SLOT_SHARED of its sessions; NULL: these states have no initial values, and each session takes its own */
    const pio *io;  /* inputs, then outputs: the slots of tenon.h */
    int n_io;
    const int *io_by_name; /* [n_io] slots in the order of their names */
    const pstate *states;  /* buf: index into plan.bufs; -1 in immediate programs */
    int n_states;
    tn_program *special[DRIVE_MOST_SPECIAL]; /* for small sizes (special.c), with the same states, inputs and outputs; */
    int n_special;
    const int64_t *only; /* of such a program: [n_dims] what each dim of the other is there; -1: anything. Without a module: */
    int first_code;      /* its kernels are numbered from here on in the other's */
    char why[WHY_BYTES]; /* of the device, when it was chosen here; else empty */
    tn_program_stats stats;
    file_view file; /* that it comes from (load.c), where constants lie; then nothing is left that explains it */
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
/* The passes alone; w (may be NULL) is told of each that changes something. */
void pipeline_passes(graph *g, arena *a, const tn_compile_opts *opts, const target *t, const pass_watch *w);
/* The arguments of a kernel that recipes made of one with the first n_before of its buffers, which had the arguments pk->args.
 */
void pipeline_args(plan *p, pkernel *pk, int n_before);

/* options.c: what compiling has to know of a device; choices may be NULL. */
target drive_target(const device_caps *c, const ktuning *tuned);
/* Defaults filled in; errors in ctx->err. */
tn_status drive_resolve(tn_ctx *ctx, const tn_compile_opts *opts, tn_compile_opts *out);

/* special.c: the special programs of one for a range of sizes. drive_takes_special: it may have some, and then has no weights
 * in panels. drive_wants_special: what was planned may be one, of so many launches at most. drive_add_special: it has it.
 * drive_find_special: the one for these dims, or -1. */
bool drive_takes_special(const graph *g, const tn_compile_opts *o, const device *dev, const target *t);
bool drive_wants_special(const tn_program *p, const tn_program *special, int most);
void drive_add_special(tn_program *p, tn_program *special);
int drive_find_special(const tn_program *p, const int64_t *dims);
size_t drive_temp_room(const tn_program *p); /* bytes of a session's temporaries, in all of them */

/* compile.c. drive_compile opens the device that opts name and reports in ctx->err. drive_compile_on takes resolved options and
 * an open device, so it may run on any thread; so may all that follows. */
tn_status drive_compile(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, tn_program **out);
tn_status drive_compile_on(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, tn_program **out, err *e);
/* The same with other choices (NULL = the model's) than the context's. */
tn_status drive_compile_tuned(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, const ktuning *tuned,
                              tn_program **out, err *e);
void drive_program_free(tn_program *p);
tn_status drive_build(tn_program *p, const drive_code *code, err *e); /* entries of a plan's code */
void drive_sort_names(tn_program *p);                                 /* makes p->io_by_name */

/* save.c: a program as the pieces of a file, in a and in the program's memory. Jumps. load.c: the program of such a file,
 * which it then owns, in any case; *out is NULL, and nothing wrong, where the program was made of something else. */
typedef struct drive_made_of {
    const char *key;          /* a text of the caller's, or NULL */
    const char *const *files; /* [n_files] which none may change .. */
    int n_files;
    uint64_t before;  /* .. from here on: ns since 1970 */
    const char *boot; /* file_boot_id, where the file is not synced; NULL: it is */
    bool *out_whole;  /* set where all of the file was found to be whole, as in no boot before; NULL: nobody asks */
} drive_made_of;
typedef VEC(file_piece) drive_saved;
void drive_save(const tn_program *p, const drive_made_of *made_of, arena *a, drive_saved *out);
void drive_save_boot(int fd); /* in a file that was found to be whole */
tn_status drive_load(tn_ctx *ctx, file_view f, const drive_made_of *made_of, tn_program **out, err *e);

/* export.c: the program as files, for a processor of the table, or a GPU of the other one (of OpenCL there is one form: cpu is
 * not read). Jumps, also where a file for a processor is asked of a program for another device. */
typedef struct drive_processor {
    const char *name;
    int vector_bytes, n_vector_regs; /* 0: as the program's target */
    const char *flags;               /* of a C compiler; NULL: none */
} drive_processor;
const drive_processor *drive_find_processor(const char *name); /* NULL name: "native"; NULL: there is none */
const drive_processor *drive_find_gpu(const char *name);       /* for CUDA; NULL name: "sm_80" */
void drive_export(const tn_program *p, const export_form *f, const drive_processor *cpu, int threads, arena *a,
                  export_files *out);

/* memory.c: the bytes that buffer b of a plan holds when its value is this one, put where it lies in `to`. */
tn_status drive_upload(const tn_program *p, buffer *to, const pbuf *b, const void *value, err *e);
/* Refuses what the device has no room for. io: bytes of inputs and outputs. */
tn_status drive_check_room(const tn_program *p, size_t temp, size_t state, size_t io, err *e);

/* states.c: state i of a program. */
bool drive_is_shared(const tn_program *p, int i); /* no run changes it */
/* One state in memory of the slot that the state lies in; set: and its copies in other orders. */
tn_status drive_get_state(const tn_program *p, const buffer *from, int i, void *out, err *e);
tn_status drive_set_state(const tn_program *p, buffer *to, int i, const void *value, err *e);
tn_status drive_share_states(tn_program *p, err *e); /* makes p->shared, when any of them has an initial value */
/* From now on initial values in the program's graphs are those in p->shared; NULL where they are packed there. Jumps. */
void drive_keep_values(tn_program *p);
/* A copy of one of the program's graphs that has all initial values, in a. Jumps. */
const graph *drive_with_values(const tn_program *p, const graph *g, arena *a);
bool drive_is_large_constant(const graph *g, val v); /* one that drive_keep_values finds a place */
size_t drive_value_bytes(const graph *g, val v);
/* All constants of a plan for the program's device; *out may be there after an error, too. */
tn_status drive_constants(const tn_program *p, const plan *what, buffer **out, err *e);

/* costs.c: what the cost model says of each launch of the plan, or (alone) of each kernel that runs again and again by itself.
 * out: [plan.kernels.n] */
tn_status drive_costs(const tn_program *p, bool alone, cost *out, err *e);

#endif
