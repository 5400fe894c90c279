/* device.h - the one way to run anything: a recorded list of launches, copies and loops over buffers, submitted and waited for
 * by ticket. A plan's steps (ir/plan.h) are recorded one by one.
 *
 * A device is a struct of function pointers; `null` (does nothing, counts everything) is the skeleton to copy. The run half:
 * every function returns a status and fills the caller's err; nothing jumps. Devices and modules are safe (many threads); a
 * list is used by one thread at a time. Immediate mode is a list of one launch. */
#ifndef TN_RT_DEVICE_H
#define TN_RT_DEVICE_H

#include "base/base.h"

typedef struct device device;
typedef struct buffer buffer; /* device memory: an arena that the planner sub-allocates in multiples of 256 bytes */
typedef struct module module; /* built code with named entries */
typedef struct list list;

/* Machine code made by the compile half. Names live as long as the call. */
typedef struct device_symbol {
    const char *name;
    size_t offset, size;
} device_symbol;
typedef struct device_image {
    const unsigned char *bytes;
    size_t n_bytes;
    const device_symbol *functions; /* [n_functions] entries among them */
    int n_functions;
    const device_symbol *imports; /* [n_imports] 8-byte cells that want an address */
    int n_imports;
} device_image;

typedef struct device_opts {
    mem mem;
    int threads;          /* CPU: threads of the pool, 0 = as many as the process may use */
    const char *compiler; /* CPU: C compiler, absolute path or looked up in PATH */
    const char *cpu;      /* CPU: code generator as in tn_config.cpu; NULL = the default */
    bool name_code;       /* CPU: debuggers and profilers are told the names of loaded machine code */
    struct cache *cache;  /* kernel cache shared by all devices of a context; NULL = none */
    struct pool *pool;    /* threads shared by all devices of a context; NULL = the device's own */
    void (*log)(void *ud, tn_log_level level, const char *text);
    void *log_ud;
} device_opts;

typedef struct device_caps {
    char name[64];    /* "cpu" */
    char detail[256]; /* "AMD EPYC, avx2, 2 threads" */
    char isa[16];     /* cpu: "avx512bf16", "avx512vnni", "avx512", "avx2", "sse2", "neon", "generic" */
    char code[16];    /* how programs become code: an isa (see load), or the language of build: "c", "cuda", "opencl" */
    bool host_memory; /* slots may be bound to host pointers directly */
    int threads;
    int vector_bytes; /* widest useful vector */
    int n_vector_regs;
    int packed;                           /* CPU: as in ir/target.h */
    bool bf16_sums;                       /* CPU: likewise */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* data caches of one core; l3 shared */
    bool gpu;                             /* code runs in thread blocks of threads; what follows says how many */
    int block_threads;                    /* most threads of a thread block, a power of two */
    int max_block_threads;                /* that it takes at all; 0: block_threads */
    int64_t shared_bytes;                 /* shared memory of a thread block */
    int64_t shared_most;                  /* the same for launches that ask for it; 0: group_bytes */
    int64_t resident_threads;             /* threads that keep the device busy */
    int buffers;                          /* that a launch may have */
    int cluster, clusters;                /* thread blocks that can run together, 0: none; clusters of 8 that run at a time */
    bool local_barriers; /* a thread block may have barriers where others do not come: PoCL 3.1 writes elsewhere then */
    bool overlaps, matrix_units, bulk, denormals; /* as in ir/target.h */
    double ghz, memory_rate;                      /* likewise */
    const struct machine *machine;                /* its row of machine/machine.def; NULL: it computes on the processor, too */
    uint64_t id;                                  /* part of every cache key: what code built for this device depends on */
} device_caps;

/* What an argument of a kernel is: bytes from what is bound to a slot. Launches that touch the same bytes, one of them writing,
 * run in the order of the list; others may overlap. */
typedef struct device_arg {
    int slot;
    size_t offset, size;
    bool written;
    int place; /* GPU: of device_places, from 1 on, where there are any; 0: it stays at offset */
} device_arg;
/* Where arguments are in what is bound to `slot`. Iteration i of a loop has them (i % copies) * stride bytes further on: so
 * many iterations have nothing in common there. Results of other slots, if they have places, too, are there in an iteration
 * whose results the next ones overwrite. */
typedef struct device_places {
    const struct device_place { size_t offset, size; } * at;
    int slot, copies;
    size_t stride;
    bool results;
} device_places;
/* A matrix of 2-byte elements that fills an argument: code copies boxes of so many rows and 128 bytes of it (device_caps.bulk).
 */
typedef struct device_map {
    int arg;
    int64_t pitch, rows, box_rows; /* pitch: elements from row to row */
} device_map;
enum { DEVICE_MOST_MAPS = 24 };
/* What runs. CPU code finds the slots by itself; entries for GPUs take arguments, and a shape. */
typedef struct device_launch {
    void *entry;
    bool parallel;          /* CPU: all threads of the pool enter it */
    bool loops;             /* CPU: it has a loop over the steps of a submit in it, and is told how many */
    int block_threads;      /* GPU: threads of a thread block */
    int64_t grid_blocks;    /* GPU: may be 0 */
    int64_t shared;         /* GPU: bytes of shared memory that the launch asks for, besides what the code has */
    bool waits;             /* GPU: its code waits by itself for the launches before it, and may begin while they end */
    const device_arg *args; /* GPU: [n_args], copied */
    int n_args;
    const device_map *maps; /* GPU: [n_maps], copied; behind the arguments */
    int n_maps;
    const int *rows; /* GPU: [n_rows], copied; behind them: 64-bit numbers, by their places among those of `sizes` */
    int n_rows;
} device_launch;

/* What an entry takes on a GPU; 0 = unknown. */
typedef struct device_usage {
    int registers;         /* of a thread */
    int64_t spilled;       /* bytes of a thread's registers and arrays that live in memory */
    int64_t shared;        /* bytes of a thread block's shared memory */
    int resident, threads; /* thread blocks that a multiprocessor holds at a time, and threads it has room for */
} device_usage;
enum { DEVICE_MOST_REPEATS = 256 };
/* When an operation of a list ran: seconds from a point in time that all operations of a run share. */
typedef struct device_span {
    double begin, end;
} device_span;

/* What a device did at a time, for traces. Seconds of now_seconds(). */
typedef struct device_work {
    const char *what; /* "fill": the host copies to where the device reads; "upload", "download"; "run": a submit */
    size_t bytes;
    double begin, end;
} device_work;

/* How often a repeat of a list is done, and slots that move in it. */
typedef struct device_window { /* in iteration i: what is bound to slot of, offset + i * stride bytes further on */
    int slot, of;
    size_t offset, stride;
    /* Where a run gives the stride: 1 + its place among the numbers of `sizes`; with host memory: 1 + the slot of an i64, and
     * where in it. Else 0. */
    int stride_row, stride_in;
    size_t stride_at;
} device_window;
typedef struct device_trips {
    int64_t times;           /* at most */
    int times_row, times_in; /* where a run gives it: as stride_row and stride_in of a window */
    size_t times_at;
    int count; /* slot of an i64 that may be less; -1: there is none */
    size_t count_offset;
    bool backward;                /* iterations count down */
    const device_window *windows; /* [n_windows] */
    int n_windows;
} device_trips;

/* One launch argument table: slot k of a list is a base pointer; entries address slots by index with literal offsets. */
typedef struct device_api {
    const char *name;
    tn_status (*open)(const device_opts *opts, device **out, err *e);
    void (*close)(device *d);
    void (*get_caps)(const device *d, device_caps *out); /* what compiling needs: not detail, l3_bytes and id .. */
    void (*describe)(const device *d, device_caps *out); /* .. which may take long to find out; NULL = get_caps has all */

    void (*room)(device *d, size_t *out_free, size_t *out_total);     /* bytes; NULL where memory is the host's */
    tn_status (*alloc)(device *d, size_t size, buffer **out, err *e); /* zeroed; size 0 is fine */
    void (*free)(device *d, buffer *b);
    void *(*map)(device *d, buffer *b); /* host address, or NULL when not host-visible */
    /* Memory of the caller's as a buffer, which free leaves alone; on the CPU it may be read-only. */
    tn_status (*adopt)(device *d, uint64_t at, size_t size, buffer **out, err *e);
    /* Order with a stream of the caller's: what is submitted from now on runs behind what is queued there so far; or, behind,
     * what is queued there from now on runs behind what was submitted. NULL on devices without streams. */
    tn_status (*follow)(device *d, uint64_t stream, bool behind, err *e);
    /* In order with submits. */
    tn_status (*upload)(device *d, buffer *b, size_t offset, const void *src, size_t size, err *e);
    /* An upload that may run beside what was submitted before, which must not touch these bytes; what is submitted from now on
     * finds them. NULL where nothing can run beside. */
    tn_status (*send)(device *d, buffer *b, size_t offset, const void *src, size_t size, err *e);
    tn_status (*download)(device *d, const buffer *b, size_t offset, void *dst, size_t size, err *e);

    /* Source text to module; `key` names it in the cache (hash of text, options, compiler, device). no_cache builds afresh.
     * Safe. out_hit (may be NULL) tells whether the cache had it. The module is kept alive by a count: drop each one that was
     * built. */
    tn_status (*build)(device *d, const char *source, size_t n_source, bool no_cache, module **out, bool *out_hit, err *e);
    /* Machine code to module, in microseconds and without a cache; NULL on devices that take source only. Safe. */
    tn_status (*load)(device *d, const device_image *image, module **out, err *e);
    void (*drop)(device *d, module *m);
    tn_status (*find)(device *d, module *m, const char *entry, void **out_entry, err *e);

    void (*usage)(device *d, void *entry, int block_threads, device_usage *out); /* NULL where nothing is known */

    tn_status (*record)(device *d, int n_slots, list **out, err *e);
    tn_status (*launch)(list *l, const device_launch *what, err *e);
    tn_status (*copy)(list *l, int dst_slot, size_t dst_offset, int src_slot, size_t src_offset, size_t size, err *e);
    /* What is recorded between loop and end is repeated, as often as a submit says. It is all of a list. */
    tn_status (*loop)(list *l, err *e);
    /* Between repeat and end: repeated until a leave, or as often as `what` says: then windows are bound anew in each
     * iteration, and nothing else may bind their slots. leave: the innermost repeat ends when the byte at the place is 0.
     * Between branch and end: done when the byte is not 0; what is behind an otherwise, when it is. Bytes and counts are read
     * when all before has run: by the device where it can, else by the host, which waits for it there and only there. */
    tn_status (*repeat)(list *l, const device_trips *what, err *e); /* what: NULL: until a leave */
    tn_status (*leave)(list *l, int slot, size_t offset, err *e);
    tn_status (*branch)(list *l, int slot, size_t offset, err *e);
    tn_status (*otherwise)(list *l, err *e);
    tn_status (*end)(list *l, err *e);
    tn_status (*seal)(list *l, err *e);
    void (*bind)(list *l, int slot, buffer *b, size_t offset);
    void (*bind_host)(list *l, int slot, void *ptr); /* only with caps.host_memory */
    /* Iteration i of the loop finds what is bound to the slot (i % length) * stride bytes further on. */
    void (*ring)(list *l, int slot, size_t stride, int64_t length);
    /* GPU: where arguments that have a place are from now on, NULL: where they were recorded. It stays the caller's, and is
     * read until the next call. Function NULL where launches have no shape. */
    void (*places)(list *l, const device_places *places);
    /* GPU: how many thread blocks each launch has from now on, in the order of the list: [launches], and the numbers that
     * launches choose from; behind the call of places for these sizes. NULL likewise. Nothing is allocated. */
    void (*sizes)(list *l, const int64_t *blocks, const int64_t *rows);
    void (*start)(list *l, int64_t step); /* the first iteration of later submits, 0 at first */
    void (*discard)(list *l);

    /* Refused unless the list is sealed and every slot is bound. On the CPU submit runs the list before it returns, allocates
     * nothing, takes no lock and makes no system call unless pool threads went to sleep or lost their processors. */
    tn_status (*submit)(list *l, int64_t steps, uint64_t *out_ticket, err *e); /* steps: iterations; 1 without a loop */
    tn_status (*wait)(device *d, uint64_t ticket, err *e);
    /* Runs the list once, waits, and tells when each of its n operations ran. For measuring: what lies between operations may
     * take longer than in a submit. repeats: [n] how often each operation runs before the next one does, from 1 to
     * DEVICE_MOST_REPEATS; a span then ends as if it had been once, in the mean of them. NULL: once. */
    tn_status (*profile)(list *l, const int *repeats, device_span *out, int n, err *e);
    /* Writes down what is done from now on, the first `cap` things; at = NULL: waits for all of it, tells how many there are,
     * and ends. One thread at a time. NULL where nothing is written down. */
    tn_status (*watch)(device *d, device_work *at, int cap, int *out_n, err *e);
} device_api;

/* Every device starts with its table. */
struct device {
    const device_api *api;
};

extern const device_api device_cpu, device_cuda, device_opencl, device_null, device_null_cuda, device_null_opencl;
const device_api *const *device_table(int *out_n); /* rt/devices.c */
/* Those, and the ones without hardware that no list has: null-cuda, null-opencl. NULL: there is none of that name. */
const device_api *device_find(const char *name);

/* What generated CPU code sees (the C emitter prints the same declarations into its text):
 *     void entry(char *const *slot, const tn_par *par, int64_t steps)
 * The work between two barriers has nt shares. With nt > 1 a thread asks next for the number of a share and does it, again and
 * again until that is negative. Then it goes on behind the barrier, or, below -1, returns: rt/pool.h says more. left: 1 in the
 * last such region. me: the thread, one of nt: its part of memory that each thread has for itself. */
typedef struct cpu_par {
    int64_t nt;
    int32_t (*next)(const struct cpu_par *par, int64_t left);
    int64_t me;
} cpu_par;
typedef void (*cpu_entry)(char *const *slot, const cpu_par *par, int64_t steps);

#endif
