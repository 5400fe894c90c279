/* gpulist.h - what lists of all GPU devices have in common: slots with their rings, and nodes with copies of their arguments.
 * The device gives its lists a gpu_list; handles in it are the device's. A list is used by one thread at a time. */
#ifndef TN_RT_GPULIST_H
#define TN_RT_GPULIST_H

#include "rt/device.h"

typedef struct gpu_slot {
    void *handle; /* what is bound: the device's name of the memory, and where in it */
    uint64_t at;
    bool bound;
    size_t stride; /* bytes from step to step */
    int64_t length;
} gpu_slot;

typedef struct gpu_node { /* a launch, or a copy when `kernel` is NULL */
    void *kernel;
    int block_threads;
    int64_t grid_blocks, shared;
    device_arg *args; /* [n_args]; of a copy: to, from */
    int n_args;
    size_t size;      /* of a copy */
    uint64_t version; /* of the bindings that its arguments were last set for; the device's to use */
} gpu_node;

typedef struct gpu_list { /* the first member of a device's list */
    mem mem;
    gpu_slot *slots; /* [n_slots] */
    int n_slots, n_unbound;
    gpu_node *nodes; /* [cap] */
    int n_nodes, cap;
    uint64_t version; /* of bindings and rings; never 0 */
    int64_t start;    /* the first step of a submit */
    bool loops;       /* all nodes are repeated */
    bool open;        /* .. and there may be more of them */
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
tn_status gpu_list_end(gpu_list *l, err *e);
tn_status gpu_list_seal(gpu_list *l, err *e);
tn_status gpu_list_ready(const gpu_list *l, int64_t steps, err *e); /* sealed, all slots bound; so many steps are possible */
tn_status gpu_list_profile(const gpu_list *l, int n, err *e);       /* ready, and of n operations */
void gpu_list_bind(gpu_list *l, int slot, void *handle, uint64_t at);
void gpu_list_ring(gpu_list *l, int slot, size_t stride, int64_t length);
bool gpu_slot_moves(const gpu_slot *s);
bool gpu_slot_written(const gpu_list *l, int slot); /* by any launch */
bool gpu_list_moves(const gpu_list *l);             /* whether any slot moves on from step to step */
/* Where an argument is in a step of a submit, from the start of what is bound. */
uint64_t gpu_list_place(const gpu_list *l, const device_arg *a, int64_t step);

/* A device that repeats one step by itself keeps a step of each slot that moves, one behind the other: what was before the step
 * is copied in, what it wrote out. Where slot i is kept, from the start of 16 bytes for the count; of i = n_slots: how much
 * there is. fits: no launch reaches beyond the step of a slot. */
uint64_t gpu_loop_place(const gpu_list *l, int i);
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
