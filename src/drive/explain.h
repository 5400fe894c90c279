/* explain.h - what the compiler did to the memory hierarchy, as one model that views print: text for people, JSON for programs.
 *
 * In: a compiled program that has a plan. Out: the model, in the caller's arena; it points into the program and lives no
 * longer. What stands in the plan itself (buffers, decisions, what a kernel computes) views read there. */
#ifndef TN_DRIVE_EXPLAIN_H
#define TN_DRIVE_EXPLAIN_H

#include "drive/drive.h"
#include "drive/replay.h"
#include "loop/gpu_access.h"

typedef struct explain_in_place { /* a kernel writes value in the place of `over`, which nothing needs any more */
    val value, over;
} explain_in_place;

typedef struct explain_kernel {
    const pkernel *launch;
    const pkernel *code; /* the first launch with the same code: the one that has schedule and tuning */
    cost cost;           /* predicted by the machine model */
    explain_in_place *in_place;
    int n_in_place;
    int *decisions; /* indices into plan.decisions about values that it computes, ascending */
    int n_decisions;
    /* GPUs: what the driver says of the compiled kernel, 0 where it does not; the share of a multiprocessor's threads that are
     * resident; what neighbouring threads touch together. */
    device_usage usage;
    double occupancy;
    gpu_access *accesses;
    int n_accesses;
} explain_kernel;

typedef struct explain_buffer { /* one with a place in an arena */
    int index;                  /* in plan.bufs */
    int64_t alignment;          /* of its offset: the largest power of two that divides it, at most a page */
    int64_t line;               /* the first one of its page that it lies in */
} explain_buffer;

typedef struct explain_value {
    int32_t buffer; /* in plan.bufs, that holds it; -1: none does */
    int kernel;     /* the first that computes it; -1: none does */
    int n_kernels;  /* that compute it */
    int64_t bytes;
    double stored_ns; /* of one that is not stored: what writing it and reading it in each of these kernels would take */
} explain_value;

typedef struct explain_edge { /* a kernel reads from memory what an earlier one makes */
    int from, to;
    val value;
    int decision;  /* why they are not one kernel: index into plan.decisions; -1: nothing was noted */
    int64_t bytes; /* of the value .. */
    double ns;     /* .. and about what writing it and reading it once takes, of all threads, by the machine's row */
} explain_edge;

/* Decisions by the value that they are about: the first of each value, the next of each decision; number + 1, 0 = none. */
typedef struct explain_reasons {
    int *first, *next; /* [nodes], [decisions] */
} explain_reasons;

typedef struct explain {
    const tn_program *program;
    const plan *plan;
    uint64_t program_bytes, session_bytes; /* of the device: what sessions share; what each takes beside inputs and outputs */
    explain_kernel *kernels;               /* [plan.kernels.n] */
    explain_value *values;                 /* [nodes of plan.g] */
    explain_edge *edges;                   /* by `to`, then `from` as far as the kernel's arguments go */
    int n_edges;
    explain_buffer *buffers; /* by index */
    int n_buffers;
    val *unused; /* inputs that no result depends on */
    int n_unused;
} explain;

/* explain.c. Jumps when there is no memory. */
const explain *explain_make(const tn_program *p, arena *a);

/* explain_edges.c: values and edges of x->plan; m: where it runs. */
void explain_find_edges(explain *x, const explain_reasons *r, const struct machine *m, arena *a);
explain_reasons explain_list_reasons(const plan *p, arena *a);

void explain_print(const explain *x, str *out); /* explain_text.c */
enum { EXPLAIN_SHORT = 40 };
void explain_short_json(const explain *x, arena *a, str *out); /* sums, and the codes that take longest, so many at most */
void explain_json(const explain *x, arena *a, str *out); /* explain_json.c; on the CPU with bytes as replay.h counts them */
void explain_passes(const tn_program *p, arena *a, str *out); /* explain_passes.c: JSON of what each pass changed; jumps */

#endif
