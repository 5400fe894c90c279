/* kernel.h - the kernel language: what one launch does, as a list of op codes in structured loops over affine indices.
 *
 * A kernel has two forms of the same structure. Lowering (sched/) writes the *scalar* form: every instruction has one lane,
 * loops have step 1, an accumulator is one value. The steps of a schedule (loop/) give each loop variable a role (krole) and
 * write the *tiled* form: instructions repeated for a register tile, several lanes, loop steps above 1, exact-size tails.
 * Emitters read the tiled form: one instruction, one statement.
 *
 * A kernel for GPUs (block_threads > 0) is the text of one thread, which all threads of all `grid_blocks` thread blocks run.
 * Bound loops distribute their iterations over thread blocks, over the threads of a block or over all threads of the grid.
 * Loops with the same binding that stand directly in one another are bound as one, the innermost fastest. A nest bound to the
 * threads of a block that has exactly as many iterations as the block has threads gives each thread one iteration: barriers may
 * stand inside, and further such loops. Where `cluster` is not 0, each `cluster` consecutive thread blocks form a cluster: they
 * have barriers and distributed shared memory in common, of which each has a copy: stores write all, loads read the own.
 *
 * Packed operands. Processors multiply narrow numbers in twos and fours: a lane of 32 bits holds two bf16, two 16-bit integers
 * or four 8-bit ones, the first in the lowest bits, and an update adds all of their products, that of the last element first. A
 * LOAD with `packed` packs such lanes, dtype i32; a K_UPD by OP_dot with `packed` multiplies them. f32: two bf16. i32: two
 * 16-bit integers, to which LOAD widens i8 and u8, or four 8-bit ones, u8 in a and i8 in b.
 *
 * Instructions are in program order; a register is the index of the instruction that makes it (0 = nil). ACC makes a mutable
 * register, which UPD changes. Registers hold f32, f64, i32 or i64 lanes; bool is an i32 mask (-1 or 0); LOAD and STORE convert
 * f16, bf16, i8 and u8. Sizes, coefficients and offsets are exts (ext.h): literals, or parameters. The arena owns all. */
#ifndef TN_IR_KERNEL_H
#define TN_IR_KERNEL_H

#include "ir/ext.h"
#include "ir/graph.h"

typedef uint32_t reg;
typedef int32_t kvar; /* loop variable, index into kernel.vars */

typedef struct kterm {
    kvar var;
    ext coef;
} kterm;
typedef struct affine { /* base + sum of coef * var; terms sorted by var, no zero coef */
    ext base;
    int n;
    const kterm *t;
} affine;

typedef struct kmask { /* lo <= e < hi */
    affine e;
    ext lo, hi;
} kmask;

typedef enum kop { /* rows of kernel.def, where each is described */
                   K_NIL,
#define KERNEL_INS(op, text, flags, uses, check, eval) K_##op,
#include "ir/kernel.def"
                   N_KOPS
} kop;

enum { KOP_MAKES = 1, KOP_TYPED = 2, KOP_PURE = 4, KOP_MEMORY = 8, KOP_SYNC = 16, KOP_PAIR = 32 };
typedef enum kuse_type { USE_NONE, USE_DTYPE, USE_SRC, USE_I64 } kuse_type;
typedef enum kuse_lanes { USE_LANES, USE_ONE, USE_ANY } kuse_lanes;
typedef struct kuse { /* a register that an instruction needs */
    size_t at;        /* offset of the reg in kins */
    kuse_type type;
    kuse_lanes lanes;
} kuse;
typedef struct kop_info {
    const char *text;
    unsigned flags; /* KOP_ */
    kuse uses[2];
} kop_info;
extern const kop_info kop_table[]; /* of kops */
static inline const kop_info *kop_get(uint8_t op) { return &kop_table[op < N_KOPS ? op : (int)K_NIL]; }

typedef enum kpar { /* who runs the iterations of a loop */
                    PAR_SERIAL,
                    PAR_THREADS,      /* CPU: split over threads in whole steps */
                    PAR_LAST,         /* CPU: once, by the last thread */
                    PAR_GRID_THREADS, /* GPU: all threads of the grid (blockIdx.x * blockDim.x + threadIdx.x); outermost */
                    PAR_BLOCKS, /* GPU: a thread block each (blockIdx.x); outermost, as many iterations as there are blocks */
                    PAR_BLOCK_THREADS /* GPU: the threads of a block (threadIdx.x) */
} kpar;
typedef enum kload { /* when a LOAD is issued */
                     LOAD_PLAIN,
                     LOAD_HOISTED,        /* for later use: not put off behind a barrier */
                     LOAD_UNMASKED,       /* hoisted, and no value is used where a mask does not hold */
                     LOAD_REMATERIALISED, /* what was computed from the element before is computed again */
                     LOAD_ASYNC, /* GPU: the store behind it puts it in shared memory; done when threads have met (cp.async) */
                     LOAD_BULK   /* the same by one thread for all, in boxes of matrices (TMA), or out of there: boxes.h */
} kload;
typedef enum kstore {
    STORE_PLAIN,
    STORE_NONTEMPORAL, /* CPU: past the caches, where the buffer begins with a line */
    STORE_ASYNC        /* GPU: to all copies of a cluster's buffer, each of which counts it (st.async with mbarrier) */
} kstore;
typedef enum kscatter { SCATTER_ADD, SCATTER_SET /* the last one stays */, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } kscatter;
typedef enum kbarrier {                  /* who waits for each other; what they wrote before, all of them see */
                        BARRIER_BLOCK,   /* all threads of the block */
                        BARRIER_CLUSTER, /* of the cluster */
                        BARRIER_MBARRIER /* the thread block goes on when its copy of buf is full: each element by one
                                            asynchronous store since the last time */
} kbarrier;
typedef enum kprefetch { /* where to */
                         PREFETCH_L1,
                         PREFETCH_L2,
                         PREFETCH_WRITE /* into the first cache, to be written */
} kprefetch;
typedef enum kzip { ZIP_LOW, ZIP_HIGH } kzip;
typedef enum kmajor { K_MAJOR, MN_MAJOR } kmajor; /* what of a matrix lies along memory: the contraction, or its rows */
typedef enum kasync { ASYNC_COMMIT, ASYNC_COPIES, ASYNC_PRODUCTS } kasync;
typedef enum kalu { ALU_PLAIN, ALU_APPROXIMATE, ALU_COARSE } kalu; /* the result will be rounded to f16 or bf16; to bf16 */

typedef struct kins {
    uint8_t op;    /* kop */
    uint8_t alu;   /* op_code for ALU, UPD, ARGUPD, LANE_REDUCE */
    uint8_t dtype; /* of the register; of memory for STORE and SCATTER */
    uint8_t src;   /* CAST, WRAP: the other dtype; LOAD: dtype in memory */
    union {
        uint8_t par;  /* LOOP: kpar */
        uint8_t mode; /* LOAD: kload; STORE: kstore; SCATTER: kscatter; BARRIER: kbarrier; PREFETCH: kprefetch; ZIP: kzip; ALU:
                         kalu; MATRIX: kmajor; ASYNC: kasync */
    };
    uint8_t lanes;  /* 1 in scalar form */
    uint8_t packed; /* LOAD, UPD by OP_dot: elements in a lane of 32 bits, see above; 0: one */
    uint16_t buf;   /* LOAD, STORE, SCATTER, PREFETCH, BARRIER, MATRIX: index into kernel.bufs */
    reg a, b, c;    /* operands; UPD: c = accumulator; ARGUPD: b = index accumulator, c = value accumulator */
    reg dyn;        /* LOAD, SCATTER: register with the dynamic index */
    ext dyn_stride;
    union {
        ext dyn_n;    /* LOAD, SCATTER: range of dyn */
        ext n_blocks; /* LOOP */
    };
    affine idx;            /* element index, or INDEX/RANDOM's value */
    int64_t lane_stride;   /* change of idx from lane to lane (LOAD, STORE, INDEX, RANDOM, ARGUPD, SCATTER) */
    int64_t packed_stride; /* LOAD: from packed element to packed element */
    kmask *mask;           /* LOAD, STORE, SCATTER: [n_mask], all must hold */
    int64_t *mask_lane;    /* [n_mask] change of each mask's e from lane to lane */
    int n_mask;
    kvar var;   /* LOOP */
    ext lo, hi; /* LOOP */
    int64_t step;
    double imm;
    union {
        int64_t imm_int;    /* CONST, ACC, LOAD of integers */
        ext first_block;    /* LOOP */
        int64_t stream;     /* RANDOM */
        int64_t combined;   /* LANE_REDUCE: lanes of a */
        int64_t first_lane; /* LANES */
        int64_t piece;      /* ZIP: lanes */
        int64_t pending;    /* ASYNC: groups */
        int64_t width;      /* BLOCK_REDUCE: threads, or 0; lane_stride apart, up to 1: side by side */
    };
    val node; /* graph value this computes, for explain and debugging; 0 = none */
} kins;
uint8_t kernel_scatter_mode(op_code op);   /* kscatter of a graph's scatter */
op_code kernel_scatter_op(const kins *in); /* what a SCATTER combines by; OP_NIL: it replaces */

typedef enum kbuf_kind {
    KB_IN,
    KB_OUT,
    KB_INOUT,
    KB_LOCAL /* a thread's own */,
    KB_SHARED /* shared memory of a thread block */,
    KB_DISTRIBUTED /* of a cluster: a copy in each of its thread blocks; a store goes to all of them, a load to the thread
                      block's own */
} kbuf_kind;
/* A matrix laid out for its reader: panels of `width` columns, one after the other,
 *     [outer loops] [panels] [depth loops] [width]
 * The last panel has the columns that are left; padded: `width` columns, too, zeros behind them. Steps are those of the value
 * as it lies in memory otherwise. Elements are those of the value, or words of them (i32), as a LOAD with parts makes them. */
enum { PANEL_LOOPS = 12 };
typedef struct kstep {
    int64_t extent, step; /* in elements */
} kstep;
typedef struct kpanels {
    int64_t base, width;
    kstep column;
    int32_t n_outer, n_depth;
    uint8_t dtype, packed; /* of the value; its elements in a lane of 32 bits, or 0 */
    bool padded;
    int64_t packed_stride;
    kstep loops[PANEL_LOOPS]; /* outer, then depth */
} kpanels;
int64_t kpanels_elems(const kpanels *x);
bool kpanels_equal(const kpanels *x, const kpanels *y);
/* "64 columns 512 step 1 depth 784 step 512", as kernels and plans print it behind "panels". */
void kpanels_print(const kpanels *x, str *out);

typedef struct kbuf { /* a piece of memory the kernel touches */
    uint8_t dtype;
    uint8_t kind;
    bool swizzled;         /* KB_SHARED, of 2 bytes: where matrix units read it, see kernel_swizzled */
    bool late;             /* KB_SHARED, KB_DISTRIBUTED: lies over those that are not, of which nothing is needed any more */
    bool loose;            /* a part of a larger one, which begins at any element: see KERNEL_WIDE_BYTES */
    bool fixed;            /* KB_IN: no run changes it (a constant, a state that the graph never assigns) */
    bool elsewhere;        /* fixed, large, and read by others, as it lies */
    val node;              /* graph value it holds */
    ext elems;             /* length in elements */
    int32_t plan_buf;      /* of local ones: -1 */
    const kpanels *panels; /* KB_IN, fixed: the value of buffer panels_of in another order; NULL: as the value lies */
    int32_t panels_of;
} kbuf;
/* Lives no longer than the launch. */
static inline bool kbuf_is_local(const kbuf *b) { return b->kind >= KB_LOCAL; }

/* How tiling treats a loop variable: the body is repeated `unroll` times, each `lanes` wide. */
typedef struct krole {
    int unroll; /* >= 1 */
    int lanes;  /* >= 1, power of two; at most one variable of a nest has lanes > 1 */
} krole;

enum { MAX_LOOPS = 64 }; /* variables of a kernel in the scalar form: sets of them are words */
enum { NOT_STAGED, STAGED_IN_ORDER, STAGED_IN_BOXES };
typedef struct kvar_info {
    char name[12];
    ext extent;
    bool row;    /* shared outer loop of the whole kernel: iterations are independent */
    bool reduce; /* iterations are combined by accumulators, or one needs what the one before wrote */
    bool block;  /* a row whose iterations are blocks of rows: each loop directly inside takes the rows of the block through its
                    part of the work, and is tiled by itself */
    krole role;
    int threads; /* GPU: of a thread block, that share a row, or a sum (split-K); 0: it is not bound */
    int matrix;  /* GPU: a thread block has so many of these rows, which matrix units multiply; 0: threads do */
    int group;   /* GPU: blocks of so many tiles of these rows are neighbours in the grid; 0, 1: those of columns are */
    int staged;  /* GPU: of columns that matrix units multiply: results go through shared memory, or leave it in boxes */
    int steps;   /* GPU: of a sum: so many at a time have their operands in shared memory (K block); 0: they have not */
    bool bulk;   /* .. to which they are copied in boxes */
} kvar_info;

typedef struct kernel {
    arena *a;
    const char *name;
    exts *params;  /* of the exts below; NULL: all are literals. Such a kernel is one for all values of its dims */
    VEC(kins) ins; /* ins.at[0] is nil */
    VEC(kvar_info) vars;
    VEC(kbuf) bufs;
    bool tiled;
    kvar par_var;                       /* CPU: split over threads, or -1: serial */
    int block_threads;                  /* GPU form: threads of a thread block, a power of two; else 0 */
    ext grid_blocks;                    /* GPU form: how many */
    int cluster;                        /* GPU form: so many thread blocks run together; 0: each alone */
    int64_t turns;                      /* GPU form: so many take turns in the work of all (boxes.h); 0: each has its own */
    uint64_t flops;                     /* of the whole kernel */
    uint64_t bytes_read, bytes_written; /* compulsory traffic at its border */
} kernel;

enum { KERNEL_MOST_CLUSTER = 16 };

kernel *kernel_make(arena *a, const char *name);
kvar kernel_var(kernel *k, const char *name, ext extent, bool row, bool reduce);
kvar kernel_var_like(kernel *k, const kvar_info *v); /* the same under a name of its own */
reg kernel_push(kernel *k, kins in);                 /* appends, returns its register */
int kernel_buf(kernel *k, kbuf b);
kernel *kernel_clone(const kernel *k, arena *a); /* one that can be changed in place while k stays as it is */
/* The dtype registers use for a stored dtype: f16/bf16 -> f32, i8/u8/bool -> i32. */
tn_dtype dtype_reg(tn_dtype t);

/* The K_END that closes the K_LOOP at instruction i. */
int kernel_loop_end(const kernel *k, int i);
static inline bool kernel_makes(const kins *in) { return kop_get(in->op)->flags & KOP_MAKES; }
/* Computes a value from its operands and loop variables alone: no memory, no accumulator. */
static inline bool kernel_is_pure(const kins *in) { return kop_get(in->op)->flags & KOP_PURE; }
/* Whether in.buf says something. */
static inline bool kernel_has_buffer(const kins *in) {
    return in->op == K_LOAD || in->op == K_STORE || in->op == K_SCATTER || in->op == K_PREFETCH || in->op == K_MATRIX ||
           (in->op == K_BARRIER && in->mode == BARRIER_MBARRIER);
}
static inline bool kernel_touches(const kins *in) { return kop_get(in->op)->flags & KOP_MEMORY; }
/* Threads of a block wait for each other there. */
static inline bool kernel_syncs(const kins *in) { return kop_get(in->op)->flags & KOP_SYNC; }

/* Affine arithmetic on literals; results in arena a. */
affine affine_const(int64_t c);
affine affine_var(arena *a, kvar v);
affine affine_offset(affine x, int64_t c);
affine affine_set_var(arena *a, affine x, kvar v, affine value); /* substitutes */
ext affine_coef(affine x, kvar v);
affine affine_without(arena *a, affine x, kvar v); /* its term left out */
bool affine_equal(affine x, affine y);
/* The same where coefficients and bases may be parameters of t (NULL: there are none). */
affine affine_add_params(arena *a, exts *t, affine x, affine y);
affine affine_scale_params(arena *a, exts *t, affine x, ext s);
static inline affine affine_add(arena *a, affine x, affine y) { return affine_add_params(a, NULL, x, y); }
static inline affine affine_scale(arena *a, affine x, int64_t s) { return affine_scale_params(a, NULL, x, s); }

graph *graph_at(const graph *g, const int64_t *dims, arena *a); /* graph_at.c; dims NULL: each size at its most; -1: it stays */
/* kernel_params.c: whether any size, coefficient or offset is a parameter. */
bool kernel_has_params(const kernel *k);
/* kernel.c: bytes_read and bytes_written of a scalar kernel: what its instructions can touch, for the largest dims. */
void kernel_count_traffic(kernel *k);
void kernel_used_rows(const kernel *k, bool *used, bool *given); /* [rows of k->params] in its code; of these, from a run */
/* The kernel where each dim has its largest value: what costs are counted of. k itself where it has no parameters. */
const kernel *kernel_at_most(const kernel *k, arena *a);
/* The kernel for these values of its dims, as if it had been written for them, in arena a. Jumps with
 * TN_ERR_INVAL where a value is out of its range. */
kernel *kernel_at(const kernel *k, const int64_t *dims, arena *a);

/* Loops of the parallel nest that starts at K_LOOP r; 1 for a serial loop. */
int kernel_nest(const kernel *k, reg r);
int64_t kernel_nest_size(const kernel *k, reg r); /* iterations of all of it */
/* The thread blocks that the grid's nest at K_LOOP r runs on: how many, from which on. */
int64_t kernel_nest_blocks(const kernel *k, reg r, int64_t *out_first);

/* Matrices in shared memory. Units read 8 rows of 128 bytes at once: so that these come from all banks, the 16 bytes at place p
 * of row r lie at p ^ r % 8, which is all that a swizzled buffer is: its elements have their numbers otherwise. */
enum {
    KERNEL_MATRIX = 64 /* rows and columns of a tile */,
    KERNEL_MATRIX_STEPS = 16,
    KERNEL_FRAGMENT = 8 /* elements of a thread of 64 rows and so many steps */,
    KERNEL_WARPGROUP = 128
};
/* Of the numbers of an operand of a multiply. */
static inline tn_dtype kernel_mma_dtype(const kernel *k, const kins *in) {
    return (tn_dtype)(in->op == K_FRAGMENT ? in->src : k->bufs.at[in->buf].dtype);
}
static inline int64_t kernel_swizzled(int64_t element) { return element ^ ((element >> 6 & 7) << 3); }
/* Element (row, step) of a matrix, from its first one on. */
static inline int64_t kernel_matrix_place(const kins *matrix, int64_t row, int64_t step) {
    int64_t in_tile = row % KERNEL_MATRIX, tile = row / KERNEL_MATRIX * KERNEL_MATRIX * KERNEL_MATRIX;
    return tile + (matrix->mode == K_MAJOR ? KERNEL_MATRIX * in_tile + step : KERNEL_MATRIX * step + in_tile);
}
/* Where lane l of thread t's fragment of a product is (PTX: m64nNk16, and m16n8k16 of each warp). */
static inline void kernel_fragment(int t, int l, int *out_row, int *out_column) {
    *out_row = t / 32 % 4 * 16 + t % 32 / 4 + l / 2 % 2 * 8;
    *out_column = l / 4 * 8 + t % 4 * 2 + l % 2;
}

/* Bytes of the memory of a thread block. Where they are more than KERNEL_STATIC_SHARED, a launch asks for all of them. */
enum { KERNEL_STATIC_SHARED = 48 << 10 };
int64_t kernel_shared_bytes(const kernel *k);
int64_t kbufs_shared_bytes(const kbuf *at, int n); /* of those that are shared memory */
bool kbufs_any_late(const kbuf *at, int n);
int64_t kbuf_place(const kbuf *b, int64_t *end); /* where it begins behind `end` bytes, which grow by it */
/* Its buffers lie one behind the other, each at a multiple of this. */
static inline int64_t kbuf_align(const kbuf *b) { return b->swizzled ? 1024 : 16; }
int64_t kernel_dynamic_shared(const kernel *k);

/* On GPUs inputs and outputs begin at multiples of 16 bytes in every step of a ring when they have so many bytes; smaller ones
 * may lie one directly behind the other, and so do all slices that a loop works on (kbuf.loose). */
enum { KERNEL_WIDE_BYTES = 64 << 10 };
/* Whether the lanes of a LOAD or STORE, in pieces of n, lie side by side at multiples of n, all of each masked or nothing. */
bool kernel_aligned(const kernel *k, const kins *in, int n);

/* Where lane l of a K_ZIP comes from: that lane of a, or with *of_b of b. */
int kernel_zip_lane(const kins *zip, int l, bool *of_b);

/* kernel_equal.c: whether both are the same code, whatever they and their values are called. */
bool kernel_equal(const kernel *x, const kernel *y);
uint64_t kernel_hash(const kernel *k, uint64_t seed); /* of what kernel_equal compares */

/* kernel_text.c, kernel_parse.c: prints the list of op codes; parses it back. The text leaves out which graph values the
 * instructions compute, and the counts of flops and bytes. Jumps with TN_ERR_PARSE: "file:line:col: message". */
void kernel_print(const kernel *k, str *out);
const char *kernel_update_name(uint8_t op); /* of K_UPD and K_ACC */
kernel *kernel_parse(arena *a, const char *text, size_t n, const char *file);

/* kernel_check.c, kernel_params.c: every problem, one a line. Registers are defined before use, dtypes agree, loops are closed,
 * indices are within buffers in all iterations, accumulators are updated only inside their scope, and no two iterations of the
 * parallel loop write the same element. Of a kernel with parameters: for all values of its dims. Returns their number. */
int kernel_check(const kernel *k, str *out);
int kernel_check_literal(const kernel *k, str *out); /* k->params is NULL */

#endif
