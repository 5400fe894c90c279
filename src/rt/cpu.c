/* cpu.c - the device cpu: machine code, or generated C compiled by the system's compiler, run by a pool of threads in host
 * memory.
 *
 * A buffer is host memory, a module a loaded shared object, an entry a function. A list is a flat array of operations over a
 * table of slot addresses, with jumps where steps depend on values; submit walks it and returns when it is done, so a ticket is
 * complete as soon as it exists. The
 * device owns a pool and a small cache when the context gave none.
 * fork(): the child may go on using the device (its pool starts new threads) when no thread was inside it at that moment. */
#include "rt/device.h"
#include "rt/aligned.h"
#include "rt/cache.h"
#include "rt/cc.h"
#include "rt/copying.h"
#include "rt/cpuinfo.h"
#include "rt/jit.h"
#include "rt/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { BUFFER_ALIGN = 64, PAGE = 4096 };

typedef struct cpu {
    device base;
    mem mem;
    char *compiler;
    const char *arch; /* flag for it; NULL = this processor's */
    cache *cache;
    bool own_cache; /* nothing is kept: every build is a fresh one */
    jit *jit;
    pool *pool;
    bool own_pool;
    device_caps caps;
    _Atomic uint64_t ticket;
    pthread_mutex_t lock; /* of what follows: the compiler is looked at when the first kernel is built */
    cc *cc;
    char variant[768]; /* of cache keys; constant once cc is set */
} cpu;

struct buffer {
    aligned block;
    size_t size;
};

typedef enum op_kind { OP_LAUNCH, OP_COPY, OP_JUMP, OP_JUMP_UNLESS, OP_ENTER, OP_NEXT, OP_WINDOW } op_kind;
typedef struct op {
    op_kind kind;
    cpu_entry entry;
    char *const *slot; /* of the list */
    bool parallel, loops;
    int dst, src; /* slots of a copy */
    size_t dst_offset, src_offset, size;
    int to; /* of a jump: operation; of one that depends on a byte: dst and dst_offset */
    /* A repeat that is counted, of so many around it. OP_ENTER: at most `times`, or the i64 at dst and dst_offset, where dst >=
     * 0, or that at src and src_offset. OP_NEXT: jumps when no iteration is left. OP_WINDOW: slot dst is `size` bytes further
     * in slot src in each. */
    int depth;
    int64_t times;
} op;

/* What is open while a list is recorded. Jumps out of it are a chain by op.to until its end is known. */
typedef enum open_kind { OPEN_LOOP, OPEN_REPEAT, OPEN_BRANCH, OPEN_OTHERWISE } open_kind;
typedef struct open_block {
    open_kind kind;
    int first; /* operation */
    int exits; /* the last jump out of it, -1: none */
} open_block;
enum { MOST_OPEN = 64 };

typedef struct ring {
    char *base; /* what is bound */
    size_t stride;
    int64_t length;
} ring;

struct list {
    cpu *dev;
    int n_slots, n_unbound;
    char **slot; /* [n_slots] in this iteration */
    ring *rings; /* [n_slots] */
    bool *bound; /* [n_slots] */
    op *ops;     /* [cap] */
    team *team;  /* NULL: no operation is parallel */
    int n_ops, n_jumps, cap;
    open_block open[MOST_OPEN];
    int n_open;
    int64_t start;
    struct trips {
        int64_t done, all;
    } trips[MOST_OPEN]; /* of the repeats that run */
    bool loops;         /* an operation does */
    bool looped;        /* all of it is */
    bool sealed;
};

/* ---- open ---- */

static void cpu_close(device *base) {
    cpu *d = (cpu *)base;
    if (!d) return;
    if (d->own_pool) pool_close(d->pool);
    cc_close(d->cc);
    jit_close(d->jit);
    if (d->own_cache) cache_close(d->cache);
    mem_strfree(d->mem, d->compiler);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->mem, d, sizeof *d);
}

/* Instruction sets that there is machine code for; a processor with one runs those behind it, too. c_only: the vectors and the
 * rounding of another processor, in C, so that sums have the same bits as there. */
static const struct {
    const char *isa, *arch; /* arch: of the C compiler */
    int vector_bytes, n_vector_regs, packed;
    bool c_only;
} levels[] = { { "avx512bf16", "-march=x86-64-v4", 64, 32, 4, false }, { "avx512vnni", "-march=x86-64-v4", 64, 32, 4, false },
               { "avx512", "-march=x86-64-v4", 64, 32, 2, false },     { "avx2", "-march=x86-64-v3", 32, 16, 2, false },
               { "neon", "-march=x86-64-v3", 16, 32, 0, true }, /* which multiplies and adds with one rounding */
               { "sse2", "-march=x86-64", 16, 16, 0, false },          { "scalar", "-march=x86-64", 4, 16, 0, true } };

static tn_status no_such_code(const cpu *d, const char *want, size_t best, err *e) {
    char names[96] = "";
    for (size_t i = best; i < COUNT_OF(levels); i++)
        if (!levels[i].c_only) strcat(strcat(names, levels[i].isa), ", ");
    return err_set(e, TN_ERR_INVAL, "there is no code generator '%s' on this processor (%s); there are: x86, %sc%s", want,
                   d->caps.isa, names, *names ? ", and c- with an instruction set, neon or scalar" : "");
}

/* How programs become code here: the choice of tn_config.cpu against what the processor can do. */
static tn_status choose_code(cpu *d, const char *want, err *e) {
    size_t best = 0, n = COUNT_OF(levels), i;
    char usual[sizeof d->caps.code];
    memcpy(usual, d->caps.code, sizeof usual);
    while (best < n && strcmp(levels[best].isa, d->caps.isa) != 0) best++;
    if (!want || !*want) want = "x86";
    bool any = !strcmp(want, "c") || !strcmp(want, "x86"), c = *want == 'c' && (!want[1] || want[1] == '-');
    for (i = best; i < n; i++)
        if (!strcmp(any ? usual : c ? want + 2 : want, levels[i].isa) && (c || !levels[i].c_only)) break;
    if (i == n && !any) return no_such_code(d, want, best, e);
    snprintf(d->caps.code, sizeof d->caps.code, "%s", c || i == n ? "c" : levels[i].isa);
    if (i == n) return TN_OK;
    if (c && !any) d->arch = levels[i].arch;
    d->caps.packed = levels[i].packed, d->caps.bf16_sums = !strcmp(levels[i].isa, "avx512bf16");
    if (i > best) d->caps.vector_bytes = levels[i].vector_bytes, d->caps.n_vector_regs = levels[i].n_vector_regs;
    return TN_OK;
}

static tn_status cpu_open(const device_opts *opts, device **out, err *e) {
    *out = NULL;
    cpu *d = mem_alloc(opts->mem, sizeof *d);
    if (!d) return err_set(e, TN_ERR_NOMEM, "out of memory for the device cpu");
    d->base.api = &device_cpu;
    d->mem = opts->mem;
    pthread_mutex_init(&d->lock, NULL);
    d->cache = opts->cache;
    tn_status st = TN_OK;
    d->compiler = mem_strdup(d->mem, opts->compiler && *opts->compiler ? opts->compiler : "cc");
    if (!d->compiler) st = err_set(e, TN_ERR_NOMEM, "out of memory for the device cpu");
    if (st == TN_OK && !d->cache) {
        st = cache_open(&(cache_opts){ .mem = d->mem, .log = opts->log, .log_ud = opts->log_ud }, &d->cache, e);
        d->own_cache = st == TN_OK;
    }
    cpuinfo_fill(&d->caps);
    if (st == TN_OK) st = choose_code(d, opts->cpu, e);
    if (st == TN_OK) st = jit_open(d->mem, opts->name_code, &d->jit, e);
    d->pool = opts->pool;
    if (st == TN_OK && !d->pool) {
        st = pool_open(d->mem, NULL, &d->pool, e);
        d->own_pool = st == TN_OK;
    }
    int threads = 0;
    if (st == TN_OK) st = pool_want(d->pool, opts->threads, &threads, e);
    if (st) {
        cpu_close(&d->base);
        return st;
    }
    d->caps.host_memory = true;
    d->caps.threads = threads;
    *out = &d->base;
    return TN_OK;
}

static void cpu_get_caps(const device *base, device_caps *out) { *out = ((const cpu *)base)->caps; }
static void cpu_describe(const device *base, device_caps *out) {
    cpu_get_caps(base, out);
    cpuinfo_describe(out);
    size_t n = strlen(out->detail);
    snprintf(out->detail + n, sizeof out->detail - n, ", %d thread%s", out->threads, out->threads == 1 ? "" : "s");
}

/* ---- memory ---- */

/* A large buffer starts on a huge page and asks for huge pages before it is touched for the first time: faults cost more than
 * any kernel saves. Where a good part of the last one is needed, it is the buffer's too. Clearing it, or touching what
 * the system has cleared, then also maps all of it, so that no run does. */
static tn_status cpu_alloc(device *base, size_t size, buffer **out, err *e) {
    mem m = ((cpu *)base)->mem;
    *out = NULL;
    buffer *b = mem_alloc(m, sizeof *b);
    bool huge = size >= HUGE_PAGE, zeroed = false;
    size_t end = size % HUGE_PAGE, room = huge && end > HUGE_PAGE / 4 && size < SIZE_MAX / 2 ? size - end + HUGE_PAGE : size;
    if (!b || !aligned_fresh(m, room, huge ? HUGE_PAGE : BUFFER_ALIGN, &b->block, &zeroed)) {
        mem_free(m, b, sizeof *b);
        return err_set(e, TN_ERR_NOMEM, "out of memory: a buffer of %zu bytes asked for", size);
    }
    b->size = size;
    size_t whole = huge ? room & ~(size_t)(HUGE_PAGE - 1) : 0;
    if (whole) madvise(b->block.data, whole, MADV_HUGEPAGE);
    if (whole && size > whole)
        madvise(b->block.data + whole, size - whole, MADV_NOHUGEPAGE); /* the host may have asked for it */
    if (zeroed)
        for (size_t i = 0; i < size; i += PAGE) ((volatile char *)b->block.data)[i] = 0;
    else
        memset(b->block.data, 0, size);
    *out = b;
    return TN_OK;
}
static tn_status cpu_adopt(device *base, uint64_t at, size_t size, buffer **out, err *e) {
    buffer *b = *out = mem_alloc(((cpu *)base)->mem, sizeof *b);
    if (!b) return err_set(e, TN_ERR_NOMEM, "out of memory: a buffer");
    b->block.data = (char *)(uintptr_t)at, b->size = size; /* block.raw is NULL: nothing to free */
    return TN_OK;
}
static void cpu_free(device *base, buffer *b) {
    mem m = ((cpu *)base)->mem;
    if (!b) return;
    aligned_free(m, &b->block);
    mem_free(m, b, sizeof *b);
}
static void *cpu_map(device *base, buffer *b) {
    (void)base;
    return b->block.data;
}

static tn_status cpu_upload(device *base, buffer *b, size_t offset, const void *src, size_t size, err *e) {
    (void)base;
    tn_status st = copying_check("upload", b->size, offset, src, size, e);
    if (st == TN_OK && size) memcpy(b->block.data + offset, src, size);
    return st;
}
static tn_status cpu_download(device *base, const buffer *b, size_t offset, void *dst, size_t size, err *e) {
    (void)base;
    tn_status st = copying_check("download", b->size, offset, dst, size, e);
    if (st == TN_OK && size) memcpy(dst, b->block.data + offset, size);
    return st;
}

/* ---- modules ---- */

struct module { /* one of the two */
    code *code;
    jit_code *jit;
};

static tn_status find_compiler(cpu *d, err *e) {
    pthread_mutex_lock(&d->lock);
    tn_status st = d->cc ? TN_OK : cc_open(d->mem, d->compiler, d->arch, 0, &d->cc, e);
    if (st == TN_OK && !*d->variant) {
        device_caps caps;
        cpu_describe(&d->base, &caps);
        snprintf(d->variant, sizeof d->variant, "cpu %s %016llx; %s", caps.isa, (unsigned long long)caps.id,
                 cc_identity(d->cc));
    }
    pthread_mutex_unlock(&d->lock);
    return st;
}

typedef struct job {
    cpu *dev;
    const char *source;
    size_t n_source;
} job;
static tn_status run_compiler(void *ud, unsigned char **out_image, size_t *out_size, err *e) {
    const job *j = ud;
    return cc_compile(j->dev->cc, cache_temp_dir(j->dev->cache), j->source, j->n_source, out_image, out_size, e);
}

static tn_status cpu_build(device *base, const char *source, size_t n_source, bool no_cache, module **out, bool *out_hit,
                           err *e) {
    cpu *d = (cpu *)base;
    *out = NULL;
    if (out_hit) *out_hit = false;
    tn_status st = find_compiler(d, e);
    if (st) return st;
    module *m = mem_alloc(d->mem, sizeof *m);
    if (!m) return err_set(e, TN_ERR_NOMEM, "out of memory for a module");
    job j = { d, source, n_source };
    cache_key key = { d->variant, source, n_source };
    st = cache_get(d->cache, &key, no_cache || d->own_cache, run_compiler, &j, &m->code, out_hit, e);
    if (st == TN_OK)
        *out = m;
    else
        mem_free(d->mem, m, sizeof *m);
    return st;
}

static tn_status cpu_load(device *base, const device_image *image, module **out, err *e) {
    cpu *d = (cpu *)base;
    *out = NULL;
    module *m = mem_alloc(d->mem, sizeof *m);
    if (!m) return err_set(e, TN_ERR_NOMEM, "out of memory for a module");
    tn_status st = jit_load(d->jit, image, &m->jit, e);
    if (st == TN_OK)
        *out = m;
    else
        mem_free(d->mem, m, sizeof *m);
    return st;
}

static void cpu_drop(device *base, module *m) {
    cpu *d = (cpu *)base;
    if (!m) return;
    cache_drop(d->cache, m->code);
    jit_drop(d->jit, m->jit);
    mem_free(d->mem, m, sizeof *m);
}

static tn_status cpu_find(device *base, module *m, const char *entry, void **out_entry, err *e) {
    (void)base;
    *out_entry = m->jit ? jit_find(m->jit, entry) : code_symbol(m->code, entry);
    return *out_entry ? TN_OK : err_set(e, TN_ERR_INVAL, "the module has no entry '%s'", entry);
}

/* ---- lists ---- */

static void cpu_discard(list *l) {
    if (!l) return;
    mem m = l->dev->mem;
    team_close(l->team);
    mem_free(m, l->slot, (size_t)l->n_slots * sizeof *l->slot);
    mem_free(m, l->rings, (size_t)l->n_slots * sizeof *l->rings);
    mem_free(m, l->bound, (size_t)l->n_slots * sizeof *l->bound);
    mem_free(m, l->ops, (size_t)l->cap * sizeof *l->ops);
    mem_free(m, l, sizeof *l);
}

static tn_status cpu_record(device *base, int n_slots, list **out, err *e) {
    cpu *d = (cpu *)base;
    *out = NULL;
    if (n_slots < 0) return err_set(e, TN_ERR_INVAL, "a list of %d slots", n_slots);
    list *l = mem_alloc(d->mem, sizeof *l);
    if (!l) return err_set(e, TN_ERR_NOMEM, "out of memory for a list");
    l->dev = d;
    l->n_slots = l->n_unbound = n_slots;
    l->slot = mem_alloc(d->mem, (size_t)n_slots * sizeof *l->slot);
    l->bound = mem_alloc(d->mem, (size_t)n_slots * sizeof *l->bound);
    l->rings = mem_alloc(d->mem, (size_t)n_slots * sizeof *l->rings);
    if (!l->slot || !l->bound || !l->rings) {
        cpu_discard(l);
        return err_set(e, TN_ERR_NOMEM, "out of memory for a list of %d slots", n_slots);
    }
    *out = l;
    return TN_OK;
}

static tn_status add_op(list *l, const op *o, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed: nothing can be added to it");
    if (l->looped && !l->n_open) return err_set(e, TN_ERR_INVAL, "a loop is all of its list: nothing can be added behind it");
    if (l->n_ops == l->cap) {
        if (l->cap > INT32_MAX / 2) return err_set(e, TN_ERR_NOMEM, "a list outgrew %d operations", l->cap);
        int cap = l->cap ? l->cap * 2 : 8;
        op *ops = mem_realloc(l->dev->mem, l->ops, (size_t)l->cap * sizeof *ops, (size_t)cap * sizeof *ops);
        if (!ops) return err_set(e, TN_ERR_NOMEM, "out of memory for a list of %d operations", cap);
        l->ops = ops;
        l->cap = cap;
    }
    l->ops[l->n_ops++] = *o;
    l->n_jumps += o->kind >= OP_JUMP;
    return TN_OK;
}
static tn_status cpu_launch(list *l, const device_launch *what, err *e) {
    if (!what->entry) return err_set(e, TN_ERR_INVAL, "a launch without an entry");
    op o = { .slot = l->slot, .parallel = what->parallel && l->dev->caps.threads > 1, .loops = what->loops };
    if (o.parallel && !l->team) {
        tn_status st = team_open(l->dev->pool, l->dev->caps.threads, &l->team, e);
        if (st) return st;
    }
    l->loops |= o.loops;
    memcpy(&o.entry, &what->entry, sizeof what->entry); /* POSIX's way from dlsym to a function pointer */
    return add_op(l, &o, e);
}
static tn_status cpu_copy(list *l, int dst_slot, size_t dst_offset, int src_slot, size_t src_offset, size_t size, err *e) {
    if (dst_slot < 0 || dst_slot >= l->n_slots || src_slot < 0 || src_slot >= l->n_slots)
        return err_set(e, TN_ERR_INVAL, "a copy from slot %d to slot %d of a list of %d", src_slot, dst_slot, l->n_slots);
    op o = {
        .kind = OP_COPY, .dst = dst_slot, .src = src_slot, .dst_offset = dst_offset, .src_offset = src_offset, .size = size
    };
    return add_op(l, &o, e);
}

static tn_status open_block_of(list *l, open_kind kind, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed: nothing can be added to it");
    if (l->n_open == MOST_OPEN) return err_set(e, TN_ERR_INVAL, "loops and branches nested deeper than %d", MOST_OPEN);
    l->open[l->n_open++] = (open_block){ kind, l->n_ops, -1 };
    return TN_OK;
}

static tn_status cpu_loop(list *l, err *e) {
    if (!l->sealed && (l->looped || l->n_ops || l->n_open))
        return err_set(e, TN_ERR_INVAL, "a loop is all of its list: something is before it");
    tn_status st = open_block_of(l, OPEN_LOOP, e);
    if (st == TN_OK) l->looped = true;
    return st;
}
static tn_status cpu_repeat(list *l, const device_trips *what, err *e) {
    int depth = l->n_open;
    tn_status st = TN_OK;
    if (what)
        st = add_op(l,
                    &(op){ .kind = OP_ENTER,
                           .dst = what->count,
                           .dst_offset = what->count_offset,
                           .times = what->times,
                           .depth = depth,
                           .src = what->times_in - 1,
                           .src_offset = what->times_at },
                    e);
    if (st == TN_OK) st = open_block_of(l, OPEN_REPEAT, e);
    if (st || !what) return st;
    open_block *b = &l->open[depth];
    st = add_op(l, &(op){ .kind = OP_NEXT, .depth = depth, .to = -1 }, e);
    if (st) return st;
    b->exits = l->n_ops - 1;
    for (int i = 0; i < what->n_windows && !st; i++) {
        const device_window *w = &what->windows[i];
        if (w->slot < 0 || w->slot >= l->n_slots || w->of < 0 || w->of >= l->n_slots || w->slot == w->of)
            return err_set(e, TN_ERR_INVAL, "slot %d of a list of %d moves over slot %d", w->slot, l->n_slots, w->of);
        l->n_unbound -= !l->bound[w->slot];
        l->bound[w->slot] = true;
        st = add_op(l,
                    &(op){ .kind = OP_WINDOW,
                           .dst = w->slot,
                           .src = w->of,
                           .src_offset = w->offset,
                           .size = w->stride_in ? w->stride_at : w->stride,
                           .dst_offset = (size_t)w->stride_in,
                           .depth = depth,
                           .times = what->backward },
                    e);
    }
    return st;
}

/* A jump out of block b, when the byte at the place is 0. */
static tn_status add_exit(list *l, open_block *b, int slot, size_t offset, err *e) {
    if (slot < 0 || slot >= l->n_slots) return err_set(e, TN_ERR_INVAL, "slot %d of a list of %d", slot, l->n_slots);
    op o = { .kind = OP_JUMP_UNLESS, .dst = slot, .dst_offset = offset, .to = b->exits };
    tn_status st = add_op(l, &o, e);
    if (st == TN_OK) b->exits = l->n_ops - 1;
    return st;
}

static tn_status cpu_leave(list *l, int slot, size_t offset, err *e) {
    int i = l->n_open - 1;
    while (i >= 0 && l->open[i].kind != OPEN_REPEAT) i--;
    if (i < 0) return err_set(e, TN_ERR_INVAL, "a leave outside of any repeat");
    return add_exit(l, &l->open[i], slot, offset, e);
}

static tn_status cpu_branch(list *l, int slot, size_t offset, err *e) {
    tn_status st = open_block_of(l, OPEN_BRANCH, e);
    if (st) return st;
    st = add_exit(l, &l->open[l->n_open - 1], slot, offset, e);
    if (st) l->n_open--;
    return st;
}

static void land(list *l, int exits) { /* these jumps lead here */
    for (int next; exits >= 0; exits = next) next = l->ops[exits].to, l->ops[exits].to = l->n_ops;
}

static tn_status cpu_otherwise(list *l, err *e) {
    open_block *b = l->n_open ? &l->open[l->n_open - 1] : NULL;
    if (!b || b->kind != OPEN_BRANCH) return err_set(e, TN_ERR_INVAL, "an otherwise outside of a branch");
    tn_status st = add_op(l, &(op){ .kind = OP_JUMP, .to = -1 }, e);
    if (st) return st;
    land(l, b->exits);
    b->kind = OPEN_OTHERWISE, b->exits = l->n_ops - 1;
    return TN_OK;
}

static tn_status cpu_end(list *l, err *e) {
    if (!l->n_open) return err_set(e, TN_ERR_INVAL, "the end of a loop that has not begun");
    const open_block *b = &l->open[l->n_open - 1];
    if (b->kind == OPEN_REPEAT) {
        tn_status st = add_op(l, &(op){ .kind = OP_JUMP, .to = b->first }, e);
        if (st) return st;
    }
    land(l, b->exits);
    l->n_open--;
    return TN_OK;
}

static tn_status cpu_seal(list *l, err *e) {
    if (l->sealed) return err_set(e, TN_ERR_INVAL, "the list is sealed already");
    if (l->n_open) return err_set(e, TN_ERR_INVAL, "the list has a loop without an end");
    l->sealed = true;
    return TN_OK;
}

static void cpu_bind_host(list *l, int slot, void *ptr) {
    if (slot < 0 || slot >= l->n_slots) return;
    l->n_unbound -= !l->bound[slot];
    l->bound[slot] = true;
    l->slot[slot] = l->rings[slot].base = ptr;
}
static void cpu_ring(list *l, int slot, size_t stride, int64_t length) {
    if (slot < 0 || slot >= l->n_slots) return;
    l->rings[slot].stride = stride, l->rings[slot].length = length < 1 ? 1 : length;
}
static void cpu_start(list *l, int64_t step) { l->start = step; }
static void cpu_bind(list *l, int slot, buffer *b, size_t offset) { cpu_bind_host(l, slot, b->block.data + offset); }

/* ---- running ---- */

typedef struct member { /* one of the threads at it */
    cpu_par par;
    pool_turn *turn;
} member;
static int32_t next_share(const cpu_par *par, int64_t left) { return pool_next(((const member *)par)->turn, left <= 1); }

static void enter(const void *ud, int64_t steps, pool_turn *turn) {
    const op *o = ud;
    member m = { { turn->nt, next_share, turn->me }, turn };
    o->entry(o->slot, &m.par, steps);
}

static tn_status run_op(list *l, const op *o, int64_t steps, err *e) {
    if (o->kind == OP_COPY) {
        if (o->size) memmove(l->slot[o->dst] + o->dst_offset, l->slot[o->src] + o->src_offset, o->size);
        return TN_OK;
    }
    int64_t own = o->loops ? steps : 1;
    if (o->parallel) return team_run(l->team, enter, o, own, e);
    pool_turn alone = pool_alone();
    enter(o, own, &alone);
    return TN_OK;
}

static tn_status check_ready(const list *l, int64_t steps, err *e) {
    if (!l->sealed) return err_set(e, TN_ERR_INVAL, "the list is not sealed");
    if (l->n_unbound) return err_set(e, TN_ERR_INVAL, "%d of the list's %d slots are not bound", l->n_unbound, l->n_slots);
    if (steps != 1 && !l->loops && !l->looped)
        return err_set(e, TN_ERR_INVAL, "%lld steps of a list without a loop", (long long)steps);
    return TN_OK;
}

static void enter_repeat(list *l, const op *o) {
    struct trips *t = &l->trips[o->depth];
    *t = (struct trips){ 0, o->times };
    int64_t count;
    if (o->src >= 0) memcpy(&t->all, l->slot[o->src] + o->src_offset, sizeof t->all);
    if (o->dst < 0) return;
    memcpy(&count, l->slot[o->dst] + o->dst_offset, sizeof count);
    if (count < t->all) t->all = count;
}
static void move_window(list *l, const op *o, int64_t at) {
    size_t stride = o->size;
    if (o->dst_offset) memcpy(&stride, l->slot[o->dst_offset - 1] + o->size, sizeof stride);
    l->slot[o->dst] = l->slot[o->src] + o->src_offset + (size_t)at * stride;
}

/* Where the list goes on behind operation i, which launches nothing. */
static int run_jump(list *l, int i) {
    const op *o = &l->ops[i];
    struct trips *t = &l->trips[o->depth];
    switch (o->kind) {
    case OP_JUMP:
        return o->to;
    case OP_JUMP_UNLESS:
        return l->slot[o->dst][o->dst_offset] ? i + 1 : o->to;
    case OP_ENTER:
        enter_repeat(l, o);
        return i + 1;
    case OP_NEXT:
        return t->done++ < t->all ? i + 1 : o->to;
    default:
        move_window(l, o, o->times ? t->all - t->done : t->done - 1);
        return i + 1;
    }
}

static tn_status run_ops(list *l, int64_t steps, err *e) {
    tn_status st = TN_OK;
    for (int i = 0; i < l->n_ops && !st;) {
        bool jumps = l->ops[i].kind >= OP_JUMP;
        if (!jumps) st = run_op(l, &l->ops[i], steps, e);
        i = jumps ? run_jump(l, i) : i + 1;
    }
    return st;
}

static tn_status run_iterations(list *l, int64_t steps, err *e) {
    tn_status st = TN_OK;
    for (int64_t step = l->start; step < l->start + steps && !st; step++) {
        for (int i = 0; i < l->n_slots; i++) {
            const ring *r = &l->rings[i];
            if (r->stride) l->slot[i] = r->base + r->stride * (size_t)(step % r->length);
        }
        st = run_ops(l, 1, e);
    }
    for (int i = 0; i < l->n_slots; i++) l->slot[i] = l->rings[i].base;
    return st;
}

static tn_status cpu_submit(list *l, int64_t steps, uint64_t *out_ticket, err *e) {
    tn_status ready = check_ready(l, steps, e);
    if (ready) return ready;
    tn_status st = l->looped ? run_iterations(l, steps, e) : run_ops(l, steps, e);
    if (st) return st;
    *out_ticket = atomic_fetch_add_explicit(&l->dev->ticket, 1, memory_order_relaxed) + 1;
    return TN_OK;
}
static tn_status cpu_wait(device *base, uint64_t ticket, err *e) {
    uint64_t last = atomic_load_explicit(&((cpu *)base)->ticket, memory_order_relaxed);
    return ticket <= last ? TN_OK : err_set(e, TN_ERR_INVAL, "ticket %llu was never given out", (unsigned long long)ticket);
}

static tn_status cpu_profile(list *l, const int *repeats, device_span *out, int n, err *e) {
    tn_status st = check_ready(l, 1, e);
    if (st) return st;
    int have = l->n_ops - l->n_jumps;
    if (n != have) return err_set(e, TN_ERR_INVAL, "a profile of %d operations of a list of %d", n, have);
    double start = now_seconds();
    for (int i = 0; i < l->n_ops; i++)
        if (l->ops[i].kind == OP_WINDOW) move_window(l, &l->ops[i], 0);
    for (int i = 0, at = 0; i < n && !st; i++) {
        int times = repeats ? repeats[i] : 1;
        while (l->ops[at].kind >= OP_JUMP) at++; /* each once, whatever loops and branches are round it */
        out[i].begin = now_seconds() - start;
        for (int r = 0; r < times && !st; r++) st = run_op(l, &l->ops[at], 1, e);
        double end = now_seconds() - start;
        out[i].end = times > 1 ? out[i].begin + (end - out[i].begin) / times : end;
        at++;
    }
    return st;
}

const device_api device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .get_caps = cpu_get_caps,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .map = cpu_map,
    .adopt = cpu_adopt,
    .upload = cpu_upload,
    .download = cpu_download,
    .build = cpu_build,
    .load = cpu_load,
    .drop = cpu_drop,
    .find = cpu_find,
    .record = cpu_record,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .loop = cpu_loop,
    .repeat = cpu_repeat,
    .leave = cpu_leave,
    .branch = cpu_branch,
    .otherwise = cpu_otherwise,
    .end = cpu_end,
    .seal = cpu_seal,
    .bind = cpu_bind,
    .bind_host = cpu_bind_host,
    .ring = cpu_ring,
    .start = cpu_start,
    .discard = cpu_discard,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .profile = cpu_profile,
};
