/* gpulist.h - what lists of all GPU devices have in common: slots with their rings, and a tree of nodes with copies of their
 * arguments. The device gives its lists a gpu_list; handles in it are the device's. A list is used by one thread at a time.
 *
 * Nodes lie in pre-order: what is inside of a repeat or a branch follows it. A device runs the tree by itself where it can
 * (CUDA graphs with conditional nodes), or the host goes through it (gpu_list_walk): launches are queued one behind the other,
 * and the host waits for the device only where it has to know a value: the byte of a leave or a branch, the count of a repeat.
 * A repeat whose number of iterations was recorded needs none. */
#ifndef TN_RT_GPULIST_H
#define TN_RT_GPULIST_H

#include "rt/device.h"

typedef struct gpu_slot {
    void *handle; /* what is bound: the device's name of the memory, and where in it */
    uint64_t at;
    bool bound, window; /* window: a repeat binds it, in each iteration anew */
    size_t stride;      /* bytes from step to step */
    int64_t length;
} gpu_slot;

typedef struct gpu_map {
    device_map what;
    uint64_t at;        /* the argument's place that it was last written for; 0: none */
    uint64_t words[16]; /* as the device wants it */
} gpu_map;

typedef struct gpu_row { /* a number that a launch is given */
    int at;              /* among those of device_api.sizes */
    int64_t value;
} gpu_row;

typedef enum gpu_kind { GPU_LAUNCH, GPU_COPY, GPU_REPEAT, GPU_LEAVE, GPU_BRANCH } gpu_kind;
typedef struct gpu_node {
    gpu_kind kind;
    int end;       /* the node behind it and all that is inside of it */
    int otherwise; /* GPU_BRANCH: the first node for false */
    void *kernel;  /* GPU_LAUNCH; the device's */
    int block_threads;
    int64_t grid_blocks, shared;
    bool waits;       /* of device_launch */
    device_arg *args; /* [n_args]; of a copy: to, from; of a leave and a branch: the byte; of a repeat: its count, if any */
    int n_args;
    gpu_map *maps; /* GPU_LAUNCH: [n_maps] */
    int n_maps;
    gpu_row *rows; /* GPU_LAUNCH: [n_rows] */
    int n_rows;
    size_t size;            /* of a copy */
    int64_t times;          /* GPU_REPEAT: at most; -1: until a leave */
    int times_row;          /* GPU_REPEAT: of device_trips */
    bool backward;          /* GPU_REPEAT: windows begin at the last iteration's place */
    device_window *windows; /* GPU_REPEAT: [n_windows] */
    int n_windows;
    uint64_t version; /* of the bindings that its arguments were last set for; the device's to use */
} gpu_node;

enum { GPU_OPEN = 64 /* repeats and branches inside of each other */ };
typedef struct gpu_list { /* the first member of a device's list */
    mem mem;
    gpu_slot *slots; /* [n_slots] */
    int n_slots, n_unbound;
    gpu_node *nodes; /* [cap] */
    int n_nodes, cap;
    int n_runs;            /* launches and copies among them */
    int open_at[GPU_OPEN]; /* repeats and branches that have not ended */
    int n_open;
    uint64_t version;            /* of bindings and rings; never 0 */
    uint64_t sizes;              /* how often numbers of thread blocks, or others that launches are given, have changed */
    const device_places *places; /* of arguments that have one; NULL: they are where they were recorded */
    int64_t start;               /* the first step of a submit */
    int64_t graph_steps;         /* of the graph that is being made; 0: there is none */
    bool loops;                  /* all nodes are repeated */
    bool open;                   /* .. and there may be more of them */
    bool sealed;
} gpu_list;

/* A device's list of so many bytes, zeros but for the gpu_list at its begin; NULL with e set. Kernels in it are the device's.
 */
void *gpu_list_new(mem m, size_t size, int n_slots, err *e);
void gpu_list_free(gpu_list *l, size_t size);
/* The launch as a node without a kernel. most_threads: of a thread block. */
tn_status gpu_list_launch(gpu_list *l, const device_launch *what, int most_threads, gpu_node **out, err *e);
tn_status gpu_list_copy(gpu_list *l, device_arg to, device_arg from, size_t size, err *e);
tn_status gpu_list_loop(gpu_list *l, err *e);
tn_status gpu_list_repeat(gpu_list *l, const device_trips *what, err *e);
tn_status gpu_list_leave(gpu_list *l, int slot, size_t offset, err *e);
tn_status gpu_list_branch(gpu_list *l, int slot, size_t offset, err *e);
tn_status gpu_list_otherwise(gpu_list *l, err *e);
tn_status gpu_list_end(gpu_list *l, err *e);
tn_status gpu_list_seal(gpu_list *l, err *e);
tn_status gpu_list_ready(const gpu_list *l, int64_t steps, err *e); /* sealed, all slots bound; so many steps are possible */
tn_status gpu_list_profile(const gpu_list *l, int n, err *e);       /* ready, and of n operations */
void gpu_list_bind(gpu_list *l, int slot, void *handle, uint64_t at);
void gpu_list_places(gpu_list *l, const device_places *places);
void gpu_list_sizes(gpu_list *l, const int64_t *blocks, const int64_t *rows);
void gpu_list_ring(gpu_list *l, int slot, size_t stride, int64_t length);
bool gpu_slot_moves(const gpu_slot *s);
bool gpu_slot_written(const gpu_list *l, int slot); /* by any launch */
bool gpu_list_moves(const gpu_list *l);             /* whether any slot moves on from step to step */
/* Where an argument is in a step of a submit, from the start of what is bound. */
uint64_t gpu_list_place(const gpu_list *l, const device_arg *a, int64_t step);

static inline bool gpu_is_run(const gpu_node *n) { return n->kind <= GPU_COPY; }
static inline bool gpu_list_has_control(const gpu_list *l) { return l->n_runs < l->n_nodes; }
/* Launches of a step, repeats written out, where that depends on no value, they are `most` at most and each does something;
 * else 0. */
int gpu_list_unrolled(const gpu_list *l, int most);
/* The first launch or copy from node i on. */
static inline int gpu_next_run(const gpu_list *l, int i) {
    while (i < l->n_nodes && !gpu_is_run(&l->nodes[i])) i++;
    return i;
}
/* Windows of a repeat in iteration i, or of all repeats in the first one of each. */
void gpu_list_move(gpu_list *l, const gpu_node *repeat, int64_t i, int64_t step);
void gpu_list_rewind(gpu_list *l, int64_t step);

/* How a device does what the host asks for on its way through a list; both return a code of the driver, 0: it is done. */
typedef struct gpu_walker {
    int (*run)(void *ud, int from, int to, int64_t step);                /* launches and copies: queues them */
    int (*read)(void *ud, const device_arg *a, int64_t step, void *out); /* a->size bytes, when all before has run */
} gpu_walker;
int gpu_list_walk(gpu_list *l, int64_t step, const gpu_walker *w, void *ud); /* one step of a submit */

/* A device that repeats `at_once` steps by itself keeps these steps of each slot that moves, one behind the other: what was
 * before a step is copied in, what it wrote out. Where step `step` of slot i is kept, from the start of 16 bytes for the count;
 * of i = n_slots: how much there is. fits: no launch reaches beyond the step of a slot. */
uint64_t gpu_loop_place(const gpu_list *l, int i, int step, int at_once);
bool gpu_slot_used(const gpu_list *l, int slot); /* by any launch */
bool gpu_loop_fits(const gpu_list *l);

/* Which launches have to wait for which. Launch k is node k % n_nodes in step k / n_nodes; it waits for before[first[k]] ..
 * before[first[k + 1] - 1], and so for all that those wait for:
 * what touches the same bytes, or simply the one before it where that is faster. */
typedef struct gpu_order {
    int n, cap;
    int *first;  /* [n + 1] */
    int *before; /* [cap] */
} gpu_order;
tn_status gpu_list_order(const gpu_list *l, int steps, gpu_order *out, err *e);
void gpu_order_free(const gpu_list *l, gpu_order *o);

#endif
