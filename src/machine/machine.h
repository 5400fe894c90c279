/* machine.h - one description of a processor or GPU: what its units issue, what its memory levels hold and deliver, what
 * waiting costs. Recipes, the cost model (cost.h) and the choice of a device read it; nothing else knows a figure of a machine.
 *
 * In: rows of machine.def, which are never changed; what rt/ found out about the machine at hand (ir/target.h). Out: a plain
 * struct. Rates are in bytes a nanosecond (GB/s), times in nanoseconds or cycles, as the fields say. */
#ifndef TN_MACHINE_MACHINE_H
#define TN_MACHINE_MACHINE_H

#include "ir/target.h"

enum {
    MACHINE_LINE_BYTES = 64,         /* a line of a processor's caches */
    MACHINE_SECTOR_BYTES = 32,       /* GPU: the least that memory gives .. */
    MACHINE_GPU_LINE_BYTES = 128,    /* .. and what is best read together */
    MACHINE_STACK_BYTES = 256 << 10, /* that a step may put on the stack of a thread, whichever the machine .. */
    MACHINE_LOCAL_BYTES = 96 << 10,  /* .. and what a plan may: well inside a second-level cache, too */
    MACHINE_PRIVATE_BYTES = 32 << 10 /* GPU: of a thread block's own sums: several blocks share a multiprocessor */
};

/* Where data comes from. GPU: L1 is the first cache of a multiprocessor, L2 the chip's, and there is no L3. */
typedef enum machine_level { LEVEL_L1, LEVEL_L2, LEVEL_L3, LEVEL_MEMORY, MACHINE_LEVELS } machine_level;

typedef struct machine_cache {
    int64_t bytes;      /* that it keeps for one core (L3: for all; GPU L2: for all); 0: no such level, or memory */
    double read, write; /* bytes a nanosecond that one core streams from and to it; write: lines that are read first, too */
    double all;         /* of all cores together; 0: as many times one core's */
    double ns;          /* from the request to the data */
} machine_cache;

typedef struct machine {
    const char *name, *title;
    const char *match; /* what the identity that rt/ found begins with: "AuthenticAMD 26", "sm_90"; NULL: of no machine */
    bool gpu, measured;
    int cores;  /* GPU: multiprocessors */
    double ghz; /* under load */

    /* issue of a core or multiprocessor, in a cycle */
    int vector_bytes;            /* CPU: of the widest vector */
    int pipe_bytes;              /* CPU: of a vector that a unit takes in a cycle: wider ones take several */
    double fma_pipes, alu_pipes; /* CPU: multiplies and multiply-adds; all vector arithmetic. GPU: lanes of f32 */
    double load_pipes, store_pipes;
    int load_bytes, store_bytes;   /* CPU: that a load or store unit takes in a cycle */
    double issue;                  /* instructions; GPU: of warps */
    double issue_shared;           /* CPU: while another program has the core's other thread */
    double fma_cycles, alu_cycles; /* latency of a dependent multiply-add, and of other vector arithmetic */
    double divide_cycles;          /* CPU: that a division of pipe_bytes keeps the divider busy */
    double special;                /* GPU: lanes of exp2, 1/x, rsqrt */
    double window;                 /* CPU: vector instructions that wait for their turn at a time */
    double forward_cycles;         /* CPU: until a load has what several narrower stores have just written */
    double branch_cycles;          /* CPU: of a loop that ends other than predicted */

    machine_cache level[MACHINE_LEVELS];
    int in_flight;      /* CPU: lines that a core waits for at a time, where the prefetcher does not help */
    double last_per_l2; /* CPU: what the last cache keeps for one core, in second-level caches, where level[] does not say */
    double nontemporal; /* CPU: bytes a nanosecond of one core written past the caches */
    double nontemporal_all; /* of all */

    /* threads and launches */
    double start_ns;   /* a kernel: call, constants, first instructions; GPU: launch after launch of a list */
    double barrier_ns; /* a barrier of all threads; GPU: of a thread block, with the first read of what was written before it */
    double submit_ns;  /* a list from submit to wait; a transfer besides its bytes */
    double link;       /* bytes a nanosecond between host and device; 0: one memory */
    double share_work; /* CPU: flops plus bytes below which a second thread costs more than it brings */
    double remote_rows; /* CPU: rows of a contraction that take as long as reading the operand that all threads read .. */
    double remote_cost; /* .. and of all work, what it costs that this is in other cores' caches */

    /* GPU: multiprocessors */
    int warp;            /* threads that run together */
    int threads, blocks; /* that a multiprocessor holds */
    double block_ns;     /* from the start of a thread block to the next one's on the same multiprocessor */
    double l2_kept;      /* of L2: so much of what is touched again is still there */
    int64_t registers;   /* of 4 bytes, of a multiprocessor */
    int64_t shared_bytes;
    double shared_rate; /* bytes a cycle of a multiprocessor's shared memory */
    double shared_ns;   /* its latency */
    double matrix_f16;  /* flops a cycle and multiprocessor of matrix units; 0: none */

    /* GPU: rows that a thread block takes through several layers; parts.h adds them up */
    double warp_barrier_ns;          /* as barrier_ns, of a block of one warp */
    double step_ns, guard_ns;        /* a product of a thread's sum, with its operands; more, where some threads have none */
    double exchange_ns;              /* neighbours of a warp exchange a value */
    double follow_ns;                /* memory comes that follows what came, which takes the latency of its level */
    double long_sum_ns;              /* the longest sum that a thread has by itself: longer ones are shared */
    double count_ns;                 /* an instruction as src/loop/thread_cost.c counts them */
    double tile_bytes;               /* bytes a cycle that a multiprocessor has of operands in tiles, when all read */
    double row_flops;                /* a nanosecond and multiprocessor, of a row's products */
    double plain_flops, tiled_flops; /* .. of a kernel by itself, with operands from memory; in tiles of registers .. */
    double beside_flops, beside_ns;  /* .. and while others run, each of which takes this at least */
    double after_ns;                 /* from the end of a kernel to the work of one that waited for it */
    double cluster_exchange_ns;      /* all of a cluster have each other's results .. */
    double send_ns, add_ns;          /* .. more for each that a thread sends, and for each part of a sum that it adds */
} machine;

/* The rows. machine_find: the first whose match begins the identity, else the common row of the kind. */
const machine *machine_rows(int *out_n);
const machine *machine_row(const char *name); /* NULL: no such row */
const machine *machine_find(const char *identity, bool gpu);
/* The row of a target's machine (the common one where it has none), and the same with what the target knows better: threads,
 * vectors, cache sizes. */
const machine *machine_row_of(const target *t);
machine machine_of(const target *t);

/* Ceilings of all cores together: f32 multiply-adds in flops a nanosecond, 2 each; a level's bytes a nanosecond. */
double machine_gflops(const machine *m);
double machine_rate(const machine *m, machine_level l, bool write);

/* GPU: multiprocessors of the target, at least 1. */
double machine_units(const target *t);

/* What the last cache keeps for one core. */
int64_t machine_last_bytes(const target *t);

static inline double larger(double x, double y) { return x > y ? x : y; }
static inline double smaller(double x, double y) { return x < y ? x : y; }

#endif
