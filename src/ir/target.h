/* target.h - facts about the machine that code is made for: a plain struct, filled by rt/ (or by hand in tests), read by
 * machine/, recipe/ and emit/. */
#ifndef TN_IR_TARGET_H
#define TN_IR_TARGET_H

#include <stdbool.h>
#include <stdint.h>

/* A line of text before each kernel of a program for GPUs: devices may compile what stands between two of them apart. */
#define TARGET_NEXT_KERNEL "\n/* ---- */\n"

typedef struct ktuned {
    uint64_t key;         /* kernel_hash of the scalar form, from target.tuning_seed */
    const char *schedule; /* steps as text, which anybody may have written */
} ktuned;
typedef struct ktuning { /* never changes once made */
    const ktuned *at;    /* [n], by key */
    int n;
} ktuning;

typedef enum target_kind { TARGET_CPU, TARGET_GPU } target_kind;
enum { PANELS_FOR_ANY_ROWS = 1, PANELS_NEVER }; /* .. but for those that are panels for any number of rows; all of them */
typedef struct target {
    int vector_bytes; /* CPU: widest vector register: 16, 32, 64 */
    int n_vector_regs;
    int threads; /* CPU: threads a run may use; GPU: 1 */
    int64_t l1_bytes, l2_bytes;
    target_kind kind;
    int block_threads;                     /* GPU: most threads of a thread block, a power of two */
    int max_block_threads;                 /* GPU: the same for what has few registers and long rows; 0: block_threads */
    int64_t shared_bytes;                  /* GPU: shared memory of a thread block */
    int64_t shared_most;                   /* GPU: the same for what asks for it; 0: group_bytes */
    int64_t resident_threads;              /* GPU: threads that keep the machine busy */
    int buffers;                           /* GPU: that a kernel may have; 0: few enough anyway */
    int cluster;                           /* GPU: thread blocks that can run together, a power of two; 0: none */
    int clusters;                          /* GPU: of 8 thread blocks that run at a time */
    bool overlaps;                         /* GPU: launches of a list that need nothing of each other run at a time */
    bool matrix_units;                     /* GPU: its language has products of matrices (tensor cores) */
    bool bulk;                             /* GPU: one thread copies boxes of matrices for all (TMA) */
    double ghz, memory_rate;               /* GPU: what it tells of its clock, and of memory, bytes a nanosecond; 0: nothing */
    bool denormals;                        /* GPU: numbers below 2^-126 are as exact and as fast as others */
    bool local_barriers;                   /* GPU: a thread block may have barriers where others do not come */
    const struct machine *machine;         /* what its row of machine/ says; NULL = as most are */
    const ktuning *tuning;                 /* schedules that were measured; NULL = none */
    uint64_t tuning_seed;                  /* whatever else they depend on: machine, code generator */
    const struct schedule_list *schedules; /* given by hand, by kernel; NULL = none */
    int packed;     /* CPU: of words of narrow numbers that are multiplied at once (kernel.h), at most: 0, 2 or 4 */
    bool bf16_sums; /* CPU: one instruction adds the products of a word of two bf16 */
    int no_panels;  /* fixed operands are read as they lie in memory .. */
} target;
/* CPU: bytes are multiplied as pairs of 16 bits, by an instruction for the products and one for their sum: there is no VNNI.
 * Not with vectors of 64 bytes, where that was not measured. */
static inline bool target_multiplies_pairs(const target *t) { return t->packed == 2 && t->vector_bytes < 64; }
/* GPU: bytes of shared memory that a thread block may have where it pays to have few of them at a time. */
static inline int64_t target_shared_most(const target *t) {
    return t->shared_most > t->shared_bytes ? t->shared_most : t->shared_bytes;
}

/* A GPU as most are: what code for one is shown and checked with where there is none. */
static inline target target_common_gpu(void) {
    return (target){ .kind = TARGET_GPU,
                     .vector_bytes = 16,
                     .n_vector_regs = 64,
                     .threads = 1,
                     .l1_bytes = 32 << 10,
                     .l2_bytes = 4 << 20,
                     .block_threads = 256,
                     .max_block_threads = 1024,
                     .shared_bytes = 48 << 10,
                     .resident_threads = 128 << 10,
                     .buffers = 256,
                     .overlaps = true,
                     .local_barriers = true };
}

#endif
