/* null.c - the device null: it accepts everything, does nothing and counts. The skeleton of a device.
 *
 * Buffers have a size but no memory: uploads vanish, downloads are zeros. Any source builds, any entry is found. What a real
 * device would refuse for its form (ranges, slots, unsealed or unbound lists) is refused here too. null-cuda and null-opencl
 * are the same for programs of GPUs, where there is none. */
#include "rt/null.h"
#include "ir/target.h"
#include "rt/copying.h"

#include <stdatomic.h>
#include <stdio.h>

typedef struct counters { /* the fields of null_counts, in their order, as one array of atomics */
    _Atomic uint64_t at[sizeof(null_counts) / sizeof(uint64_t)];
} counters;
#define ADD(d, field, n)                                                                                                       \
    atomic_fetch_add_explicit(&(d)->counts.at[offsetof(null_counts, field) / sizeof(uint64_t)], (uint64_t)(n),                 \
                              memory_order_relaxed)

typedef struct null {
    device base;
    mem mem;
    int threads;
    _Atomic uint64_t ticket;
    counters counts;
} null;

struct buffer {
    size_t size;
    bool adopted; /* the caller's */
};
struct module {
    char entry; /* its address stands for every entry */
};
struct list {
    null *dev;
    int n_slots, n_unbound;
    bool *bound; /* [n_slots] */
    uint64_t launches, parallel_launches, copies, copy_bytes;
    bool loops;       /* all of it is repeated */
    int open;         /* loops and branches that have not ended */
    bool entry_loops; /* a launch repeats itself */
    bool sealed;
};

static tn_status open_as(const device_api *api, const device_opts *opts, device **out, err *e) {
    null *d = mem_alloc(opts->mem, sizeof *d);
    *out = d ? &d->base : NULL;
    if (!d) return err_set(e, TN_ERR_NOMEM, "out of memory for the device null");
    d->base.api = api;
    d->mem = opts->mem;
    d->threads = opts->threads > 0 ? opts->threads : 1;
    return TN_OK;
}
static tn_status null_open(const device_opts *o, device **out, err *e) { return open_as(&device_null, o, out, e); }
static tn_status cuda_open(const device_opts *o, device **out, err *e) { return open_as(&device_null_cuda, o, out, e); }
static tn_status opencl_open(const device_opts *o, device **out, err *e) { return open_as(&device_null_opencl, o, out, e); }

static void null_close(device *base) {
    null *d = (null *)base;
    if (d) mem_free(d->mem, d, sizeof *d);
}
static void null_get_caps(const device *base, device_caps *out) {
    *out = (device_caps){ .threads = ((const null *)base)->threads,
                          .vector_bytes = 16,
                          .n_vector_regs = 16,
                          .l1_bytes = 32 << 10,
                          .l2_bytes = 512 << 10,
                          .l3_bytes = 8 << 20 };
    snprintf(out->name, sizeof out->name, "null");
    snprintf(out->detail, sizeof out->detail, "does nothing, counts everything");
    snprintf(out->isa, sizeof out->isa, "generic");
}

/* Of a GPU as most are, for programs that are to be read and not to be run. */
static void gpu_caps(const device *base, device_caps *out, const char *language, bool local_barriers) {
    target t = target_common_gpu();
    null_get_caps(base, out);
    out->gpu = true, out->local_barriers = local_barriers, out->overlaps = out->denormals = !strcmp(language, "cuda");
    out->threads = t.threads, out->vector_bytes = t.vector_bytes, out->n_vector_regs = t.n_vector_regs;
    out->l1_bytes = t.l1_bytes, out->l2_bytes = t.l2_bytes;
    out->block_threads = t.block_threads, out->max_block_threads = t.max_block_threads, out->shared_bytes = t.shared_bytes;
    out->shared_most = strcmp(language, "cuda") ? 0 : 99 << 10; /* the least since sm_80 */
    out->resident_threads = t.resident_threads, out->buffers = t.buffers;
    snprintf(out->name, sizeof out->name, "null-%s", language);
    snprintf(out->code, sizeof out->code, "%s", language);
}
static void cuda_caps(const device *base, device_caps *out) { gpu_caps(base, out, "cuda", true); }
static void opencl_caps(const device *base, device_caps *out) { gpu_caps(base, out, "opencl", false); }

void null_get_counts(const device *base, null_counts *out) {
    const null *d = (const null *)base;
    uint64_t plain[COUNT_OF(d->counts.at)];
    for (size_t i = 0; i < COUNT_OF(plain); i++) plain[i] = atomic_load_explicit(&d->counts.at[i], memory_order_relaxed);
    memcpy(out, plain, sizeof *out);
}

/* ---- memory ---- */

static tn_status null_alloc(device *base, size_t size, buffer **out, err *e) {
    null *d = (null *)base;
    *out = mem_alloc(d->mem, sizeof **out);
    if (!*out) return err_set(e, TN_ERR_NOMEM, "out of memory for a buffer");
    (*out)->size = size;
    ADD(d, buffers, 1);
    ADD(d, bytes, size);
    return TN_OK;
}
static void null_free(device *base, buffer *b) {
    null *d = (null *)base;
    if (!b) return;
    ADD(d, buffers, b->adopted ? 0 : -1);
    ADD(d, bytes, b->adopted ? 0 : -b->size);
    mem_free(d->mem, b, sizeof *b);
}
static tn_status null_adopt(device *base, uint64_t at, size_t size, buffer **out, err *e) {
    null *d = (null *)base;
    (void)at;
    *out = mem_alloc(d->mem, sizeof **out);
    if (!*out) return err_set(e, TN_ERR_NOMEM, "out of memory for a buffer");
    (*out)->size = size, (*out)->adopted = true;
    return TN_OK;
}
static tn_status null_follow(device *base, uint64_t stream, bool behind, err *e) {
    (void)base, (void)stream, (void)behind, (void)e;
    return TN_OK;
}
static void *null_map(device *base, buffer *b) {
    (void)base, (void)b;
    return NULL;
}
static tn_status null_upload(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    null *d = (null *)base;
    (void)src;
    tn_status st = copying_check("upload", b->size, offset, src, size, e);
    if (st) return st;
    ADD(d, uploads, 1);
    ADD(d, upload_bytes, size);
    return TN_OK;
}
static tn_status null_download(device *base, const buffer *b, size_t offset, void *dst, size_t size, err *e) {
    null *d = (null *)base;
    tn_status st = copying_check("download", b->size, offset, dst, size, e);
    if (st) return st;
    if (size) memset(dst, 0, size);
    ADD(d, downloads, 1);
    ADD(d, download_bytes, size);
    return TN_OK;
}

/* ---- modules ---- */

static tn_status null_build(device *base, const char *source, size_t n_source, bool no_cache, module **out, bool *out_hit,
                            err *e) {
    null *d = (null *)base;
    (void)source, (void)no_cache;
    if (out_hit) *out_hit = false;
    *out = mem_alloc(d->mem, sizeof **out);
    if (!*out) return err_set(e, TN_ERR_NOMEM, "out of memory for a module");
    ADD(d, builds, 1);
    ADD(d, modules, 1);
    ADD(d, source_bytes, n_source);
    return TN_OK;
}
static void null_drop(device *base, module *m) {
    null *d = (null *)base;
    if (!m) return;
    ADD(d, modules, -1);
    mem_free(d->mem, m, sizeof *m);
}
static tn_status null_find(device *base, module *m, const char *entry, void **out_entry, err *e) {
    (void)base, (void)entry, (void)e;
    *out_entry = &m->entry;
    return TN_OK;
}

/* ---- lists ---- */

static void null_discard(list *l) {
    if (!l) return;
    null *d = l->dev;
    ADD(d, lists, -1);
    mem_free(d->mem, l->bound, (size_t)l->n_slots * sizeof *l->bound);
    mem_free(d->mem, l, sizeof *l);
}
static tn_status null_record(device *base, int n_slots, list **out, err *e) {
    null *d = (null *)base;
    *out = NULL;
    if (n_slots < 0) return err_set(e, TN_ERR_INVAL, "a list of %d slots", n_slots);
    list *l = mem_alloc(d->mem, sizeof *l);
    if (!l) return err_set(e, TN_ERR_NOMEM, "out of memory for a list");
    l->dev = d;
    l->n_slots = l->n_unbound = n_slots;
    ADD(d, lists, 1);
    if (!(l->bound = mem_alloc(d->mem, (size_t)n_slots * sizeof *l->bound))) {
        null_discard(l);
        return err_set(e, TN_ERR_NOMEM, "out of memory for a list of %d slots", n_slots);
    }
    *out = l;
    return TN_OK;
}
static tn_status check_open(const list *l, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed: nothing can be added to it");
    if (l->loops && !l->open) return err_set(e, TN_ERR_INVAL, "a loop is all of its list: nothing can be added behind it");
    return TN_OK;
}
static tn_status null_launch(list *l, const device_launch *what, err *e) {
    if (!what->entry) return err_set(e, TN_ERR_INVAL, "a launch without an entry");
    tn_status st = check_open(l, e);
    if (st) return st;
    l->launches++;
    l->parallel_launches += what->parallel;
    l->entry_loops |= what->loops;
    return TN_OK;
}
static tn_status null_copy(list *l, int dst_slot, size_t dst_offset, int src_slot, size_t src_offset, size_t size, err *e) {
    (void)dst_offset, (void)src_offset;
    if (dst_slot < 0 || dst_slot >= l->n_slots || src_slot < 0 || src_slot >= l->n_slots)
        return err_set(e, TN_ERR_INVAL, "a copy from slot %d to slot %d of a list of %d", src_slot, dst_slot, l->n_slots);
    tn_status st = check_open(l, e);
    if (st) return st;
    l->copies++;
    l->copy_bytes += size;
    return TN_OK;
}
static tn_status null_loop(list *l, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed: nothing can be added to it");
    if (l->loops || l->open || l->launches || l->copies)
        return err_set(e, TN_ERR_INVAL, "a loop is all of its list: something is before it");
    l->loops = true, l->open++;
    return TN_OK;
}
static tn_status null_repeat(list *l, const device_trips *what, err *e) {
    tn_status st = check_open(l, e);
    for (int i = 0; what && i < what->n_windows && !st; i++) {
        const device_window *w = &what->windows[i];
        if (w->slot < 0 || w->slot >= l->n_slots || w->of < 0 || w->of >= l->n_slots || w->slot == w->of)
            return err_set(e, TN_ERR_INVAL, "slot %d of a list of %d moves over slot %d", w->slot, l->n_slots, w->of);
        l->n_unbound -= !l->bound[w->slot];
        l->bound[w->slot] = true;
    }
    if (!st) l->open++;
    return st;
}
static tn_status null_condition(list *l, int slot, err *e) {
    if (slot < 0 || slot >= l->n_slots) return err_set(e, TN_ERR_INVAL, "slot %d of a list of %d", slot, l->n_slots);
    return check_open(l, e);
}
static tn_status null_leave(list *l, int slot, size_t offset, err *e) {
    (void)offset;
    return l->open ? null_condition(l, slot, e) : err_set(e, TN_ERR_INVAL, "a leave outside of any repeat");
}
static tn_status null_branch(list *l, int slot, size_t offset, err *e) {
    (void)offset;
    tn_status st = null_condition(l, slot, e);
    if (!st) l->open++;
    return st;
}
static tn_status null_otherwise(list *l, err *e) {
    return l->open ? TN_OK : err_set(e, TN_ERR_INVAL, "an otherwise outside of a branch");
}
static tn_status null_end(list *l, err *e) {
    if (!l->open) return err_set(e, TN_ERR_INVAL, "the end of a loop that has not begun");
    l->open--;
    return TN_OK;
}
static tn_status null_seal(list *l, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed already");
    if (l->open) return err_set(e, TN_ERR_INVAL, "the list has a loop without an end");
    l->sealed = true;
    return TN_OK;
}
static void null_bind_host(list *l, int slot, void *ptr) {
    (void)ptr;
    if (slot < 0 || slot >= l->n_slots) return;
    l->n_unbound -= !l->bound[slot];
    l->bound[slot] = true;
}
static void null_bind(list *l, int slot, buffer *b, size_t offset) {
    (void)b, (void)offset;
    null_bind_host(l, slot, NULL);
}

static void null_ring(list *l, int slot, size_t stride, int64_t length) { (void)l, (void)slot, (void)stride, (void)length; }
static void null_places(list *l, const device_places *places) { (void)l, (void)places; }
static void null_sizes(list *l, const int64_t *blocks, const int64_t *rows) { (void)l, (void)blocks, (void)rows; }
static void null_start(list *l, int64_t step) { (void)l, (void)step; }

static tn_status null_submit(list *l, int64_t steps, uint64_t *out_ticket, err *e) {
    null *d = l->dev;
    if (!l->sealed) return err_set(e, TN_ERR_INVAL, "the list is not sealed");
    if (l->n_unbound) return err_set(e, TN_ERR_INVAL, "%d of the list's %d slots are not bound", l->n_unbound, l->n_slots);
    if (steps != 1 && !l->loops && !l->entry_loops)
        return err_set(e, TN_ERR_INVAL, "%lld steps of a list without a loop", (long long)steps);
    uint64_t times = l->loops ? (uint64_t)steps : 1;
    ADD(d, submits, 1);
    ADD(d, steps, steps);
    ADD(d, launches, l->launches * times);
    ADD(d, parallel_launches, l->parallel_launches * times);
    ADD(d, copies, l->copies * times);
    ADD(d, copy_bytes, l->copy_bytes * times);
    *out_ticket = atomic_fetch_add_explicit(&d->ticket, 1, memory_order_relaxed) + 1;
    return TN_OK;
}
static tn_status null_wait(device *base, uint64_t ticket, err *e) {
    uint64_t last = atomic_load_explicit(&((null *)base)->ticket, memory_order_relaxed);
    return ticket <= last ? TN_OK : err_set(e, TN_ERR_INVAL, "ticket %llu was never given out", (unsigned long long)ticket);
}

static tn_status null_profile(list *l, const int *repeats, device_span *out, int n, err *e) { /* a run that takes no time */
    uint64_t ticket;
    int64_t have = (int64_t)l->launches + (int64_t)l->copies;
    (void)repeats;
    if (n != have) return err_set(e, TN_ERR_INVAL, "a profile of %d operations of a list of %lld", n, (long long)have);
    for (int i = 0; i < n; i++) out[i] = (device_span){ 0, 0 };
    return null_submit(l, 1, &ticket, e);
}

#define NULL_DEVICE(title, opens, caps)                                                                                        \
    {                                                                                                                          \
        .name = title, .open = opens, .close = null_close, .get_caps = caps, .alloc = null_alloc, .free = null_free,           \
        .map = null_map, .adopt = null_adopt, .follow = null_follow, .upload = null_upload, .download = null_download,         \
        .build = null_build, .drop = null_drop, .find = null_find, .record = null_record, .launch = null_launch,               \
        .copy = null_copy, .loop = null_loop, .repeat = null_repeat, .leave = null_leave, .branch = null_branch,               \
        .otherwise = null_otherwise, .end = null_end, .seal = null_seal, .ring = null_ring, .places = null_places,             \
        .sizes = null_sizes, .start = null_start, .bind = null_bind, .bind_host = null_bind_host, .discard = null_discard,     \
        .submit = null_submit, .wait = null_wait, .profile = null_profile,                                                     \
    }

const device_api device_null = NULL_DEVICE("null", null_open, null_get_caps),
                 device_null_cuda = NULL_DEVICE("null-cuda", cuda_open, cuda_caps),
                 device_null_opencl = NULL_DEVICE("null-opencl", opencl_open, opencl_caps);
