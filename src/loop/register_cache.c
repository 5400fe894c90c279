/* register_cache.c - register caching: where each thread of a block works on the same few vectors of a row in every nest, its
 * share of the row is written out, so that what one nest loads or computes the next ones still have, and local buffers become
 * the threads' own. `shared`: long parts that are only loaded lie in shared memory, at places of their threads alone, so that
 * no thread waits for another one and none needs registers for them. `early`: what a row reads in 16 bits is all on its way
 * before its first nest, for thread blocks whose rows follow each other.
 *
 * In and out: the form of a GPU, behind vectorize_nests. A nest is taken when it is one loop of which each thread has the same
 * few iterations, in the last of which some threads may have none; a buffer when all that touch it are such nests, each thread
 * at elements of its own. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_TURNS = 64, MOST_VARS = 50, FEW_TURNS = 4 /* that are written out where no register holds their part */ };

/* Iterations of a thread of the nest at `head`, if it is one to take; else 0. In the last some threads may have none. */
static int iterations_of(const kernel *k, int head, int most) {
    const kins *in = &k->ins.at[head];
    if (in->op != K_LOOP || in->par != PAR_BLOCK_THREADS || in->lo != 0 || in->hi < k->block_threads ||
        in->hi > (int64_t)most * k->block_threads)
        return 0;
    int end = kernel_loop_end(k, head);
    for (int i = head + 1; i < end; i++)
        if (k->ins.at[i].op == K_LOOP || (in[i - head].op == K_LOAD && in[i - head].mode)) return 0;
    return (int)((in->hi + k->block_threads - 1) / k->block_threads);
}

/* Buffers in which every thread touches elements of its own alone, the same in each nest: how many of them; 0: it is not such a
 * buffer. */
static int *find_own(const kernel *k, const int *nest, int most) {
    int *own = ARENA_ARRAY(k->a, int, k->bufs.n + 1), *lanes = ARENA_ARRAY(k->a, int, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) own[b] = k->bufs.at[b].kind == KB_SHARED ? -1 : 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) || own[in->buf] == 0) continue;
        const kins *loop = &k->ins.at[nest[i]];
        int elems = nest[i] ? iterations_of(k, nest[i], most) * in->lanes : 0;
        bool fits = elems && in->op != K_SCATTER && !in->dyn && !in->n_mask && (in->lanes == 1 || in->lane_stride == 1) &&
                    affine_equal(in->idx, build_times(k->a, loop->var, in->lanes));
        bool other = own[in->buf] > 0 && (own[in->buf] != elems || lanes[in->buf] != in->lanes);
        own[in->buf] = fits && !other ? elems : 0, lanes[in->buf] = in->lanes;
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (own[b] < 0) own[b] = 0;
    return own;
}

/* Barriers stay where a thread reads what another one wrote. */
static bool needs_barriers(const kernel *k, const int *own) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_LOAD || in->op == K_SCATTER) && k->bufs.at[in->buf].kind != KB_IN &&
            k->bufs.at[in->buf].kind != KB_LOCAL && k->bufs.at[in->buf].kind != KB_DISTRIBUTED && !own[in->buf])
            return true;
    }
    return false;
}

/* A thread's long part of a row is kept as it lies in memory, two numbers of 16 bits in a register. All of it is on its way
 * before the first of it is used, in a nest of its own: compilers put off part of the loads of a nest that computes, too, and
 * memory has less to do. Each nest after the first widens it, and computes what it needs of it, anew. */
static bool is_packed(const kernel *k, const kins *load, int iterations, int64_t long_part) {
    const kbuf *b = &k->bufs.at[load->buf];
    return load->op == K_LOAD && (b->kind == KB_IN || b->kind == KB_INOUT) && dtype_size((tn_dtype)b->dtype) == 2 &&
           load->lanes * iterations > long_part && !load->n_mask && !load->dyn;
}

typedef struct register_cacher {
    const kernel *k;
    int most;          /* iterations of a thread */
    int64_t long_part; /* elements of a thread, more of which are packed */
    bool shared;       /* these lie in shared memory */
    bool early;        /* all that a row reads, also what one nest alone does, is on its way before the first of it is used */
    build_copier c;
    int *nest;            /* [ins] the loop around, of those to take */
    int *own;             /* [bufs] elements of a thread */
    int *held;            /* [bufs] the buffer with a thread's part of it, if that is packed; else 0, which is no such buffer */
    bool *read;           /* [bufs] it has been read there */
    int fetch, fetch_end; /* instructions that fetch a later row, which wait until this one is on its way; none: the same */
} register_cacher;

/* Loads of one place a thread in several nests, before anything is stored there. */
static bool is_again(const register_cacher *h, int load) {
    const kernel *k = h->k;
    const kins *in = &k->ins.at[load];
    bool again = false, stored = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *other = &k->ins.at[i];
        stored |= (other->op == K_STORE || other->op == K_SCATTER) && other->buf == in->buf;
        if (other->op == K_LOAD && other->buf == in->buf && stored) return false;
        if (other->op != K_LOAD || other->buf != in->buf || h->nest[i] == h->nest[load]) continue;
        if (!h->nest[i] || other->lanes != in->lanes) return false;
        affine same =
            affine_set_var(k->a, other->idx, k->ins.at[h->nest[i]].var, affine_var(k->a, k->ins.at[h->nest[load]].var));
        if (!affine_equal(same, in->idx)) return false;
        again = true;
    }
    return again;
}

/* The loops of a nest, dealt: turn after turn of all threads; then, where it does not come out, one of some of them. */
typedef struct turns {
    affine turn, place; /* of a thread; of all, which the variable of the nest becomes */
    int loops;          /* that are open */
} turns;

static bool open_turns(register_cacher *h, int head, bool last, turns *out) {
    kernel *o = h->c.o;
    int64_t threads = h->k->block_threads, full = h->k->ins.at[head].hi / threads, rest = h->k->ins.at[head].hi % threads;
    if (last && !rest) return false;
    *out = (turns){ .turn = affine_const(full), .loops = last ? 1 : 2 };
    if (!last) {
        kvar turn = build_loop(o, "s", full, PAR_SERIAL);
        o->vars.at[turn].role.unroll = (int)(h->shared && full > FEW_TURNS ? FEW_TURNS : full);
        out->turn = affine_var(o->a, turn);
    }
    kvar thread = build_loop(o, "t", last ? rest : threads, PAR_BLOCK_THREADS);
    out->place = affine_add(o->a, affine_scale(o->a, out->turn, threads), affine_var(o->a, thread));
    return true;
}

static bool is_held(const register_cacher *h, int load) {
    const kins *in = &h->k->ins.at[load];
    return h->nest[load] && is_packed(h->k, in, iterations_of(h->k, h->nest[load], h->most), h->long_part) &&
           (is_again(h, load) || (h->early && h->k->bufs.at[in->buf].kind == KB_IN));
}

/* Where a thread's part of a row that is held packed lies. */
static affine held_at(const register_cacher *h, const turns *at, int lanes) {
    return affine_scale(h->c.o->a, h->shared ? at->place : at->turn, lanes);
}

/* What the nest is the first to load of rows that are held packed. Returns whether there is anything. */
static bool load_packed(register_cacher *h, int head, int iterations) {
    kernel *o = h->c.o;
    bool any = false, first = false;
    for (int i = head + 1; h->nest[i] == head; i++) first |= is_held(h, i) && !h->held[h->k->ins.at[i].buf];
    for (int i = head + 1; first && (h->early ? i < h->k->ins.n : h->nest[i] == head); i++) {
        const kins *in = &h->k->ins.at[i];
        turns at;
        if (!is_held(h, i) || h->held[in->buf] || h->k->ins.at[h->nest[i]].hi != h->k->ins.at[head].hi) continue;
        any = true;
        int64_t elems = (h->shared ? h->k->ins.at[head].hi : iterations) * in->lanes;
        int buf = h->held[in->buf] = build_buffer(o, in->src, h->shared ? KB_SHARED : KB_LOCAL, elems);
        for (int last = 0; last < 2; last++) {
            build_places p = { .n = 0 };
            if (!open_turns(h, head, last, &at)) continue;
            build_put(&p, h->k->ins.at[h->nest[i]].var, at.place);
            kins store = { .op = K_STORE, .dtype = in->src, .buf = (uint16_t)buf, .lanes = in->lanes, .lane_stride = 1 };
            store.a = build_copy(&h->c, i, &p), store.node = in->node;
            store.idx = held_at(h, &at, in->lanes);
            o->ins.at[store.a].mode = h->shared ? LOAD_ASYNC : LOAD_HOISTED;
            kernel_push(o, store);
            build_ends(o, at.loops);
        }
    }
    return any;
}

static void cache_turns(register_cacher *h, int head, const turns *at) {
    const kernel *k = h->k;
    kernel *o = h->c.o;
    kvar var = k->ins.at[head].var;
    build_places *p = ARENA_ARRAY(k->a, build_places, 2), *mine = p + 1;
    build_put(p, var, at->place);
    build_put(mine, var, at->turn);
    for (int i = head + 1; h->nest[i] == head; i++) {
        const kins *in = &k->ins.at[i];
        bool memory = in->op == K_LOAD || in->op == K_STORE;
        reg r = build_copy(&h->c, i, memory && h->own[in->buf] ? mine : p);
        if (in->op != K_LOAD || !h->held[in->buf]) continue;
        kins *load = &o->ins.at[r];
        load->idx = held_at(h, at, in->lanes), load->buf = (uint16_t)h->held[in->buf];
        load->mode = h->read[in->buf] && !h->shared ? LOAD_REMATERIALISED : LOAD_PLAIN;
    }
    build_ends(o, at->loops);
}

static void cache_nest(register_cacher *h, int head) {
    const kernel *k = h->k;
    const build_places none = { .n = 0 };
    turns at;
    if (load_packed(h, head, iterations_of(k, head, h->most))) {
        for (; h->fetch < h->fetch_end; h->fetch++) build_copy(&h->c, h->fetch, &none);
        if (h->shared) kernel_push(h->c.o, (kins){ .op = K_ASYNC, .mode = ASYNC_COPIES });
    }
    for (int last = 0; last < 2; last++)
        if (open_turns(h, head, last, &at)) cache_turns(h, head, &at);
    for (int i = head + 1; h->nest[i] == head; i++)
        if (k->ins.at[i].op == K_LOAD && h->held[k->ins.at[i].buf]) h->read[k->ins.at[i].buf] = true;
}

/* The nests to take; returns how many. */
static int find_nests(register_cacher *h) {
    const kernel *k = h->k;
    int nests = 0;
    h->nest = ARENA_ARRAY(k->a, int, k->ins.n + 1);
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].par != PAR_BLOCK_THREADS) continue;
        int end = kernel_loop_end(k, i), head = iterations_of(k, i, h->most) ? i : 0;
        for (int j = i + 1; j < end; j++) h->nest[j] = head;
        nests += head > 0, i = end;
    }
    return nests;
}

/* All of the kernel, with those nests written out; `barriers`: they stay. */
static void write_kernel(register_cacher *h, bool barriers) {
    const kernel *k = h->k;
    const build_places none = { .n = 0 };
    bool packed = false;
    for (int i = 1; i < k->ins.n; i++) packed |= is_held(h, i);
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op == K_BARRIER && k->ins.at[i].mode == BARRIER_BLOCK && !barriers) continue;
        if (packed && k->ins.at[i].op == K_LOOP && k->ins.at[i + 1].op == K_PREFETCH) {
            if (h->fetch == h->fetch_end) h->fetch = i;
            i = kernel_loop_end(k, i), h->fetch_end = i + 1;
        } else if (i + 1 == k->ins.n || h->nest[i + 1] != i) {
            build_copy(&h->c, i, &none);
        } else {
            cache_nest(h, i);
            i = kernel_loop_end(k, i);
        }
    }
}

bool step_register_cache(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int64_t most = s->arg[0].n;
    if (most < 1 || most > MOST_TURNS)
        return step_refuse(why, "%lld iterations of a thread: expected 1 to %d", (long long)most, MOST_TURNS);
    register_cacher h = { .k = k,
                          .most = (int)most,
                          .long_part = step_option(s, "packed", INT32_MAX),
                          .shared = step_flag(s, "shared"),
                          .early = step_flag(s, "early") };
    if (k->vars.n > MOST_VARS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_VARS);
    if (find_nests(&h) < 2)
        return step_refuse(why, "fewer than two nests have each thread at the same elements, %lld iterations at most",
                           (long long)most);
    h.own = find_own(k, h.nest, h.most), h.held = ARENA_ARRAY(k->a, int, k->bufs.n + 1);
    h.read = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    kernel *o = gpu_kernel(k, k->block_threads);
    h.c = build_copier_make(k, o);
    write_kernel(&h, needs_barriers(k, h.own));
    for (int b = 0; b < k->bufs.n; b++)
        if (h.own[b]) o->bufs.at[b].kind = KB_LOCAL, o->bufs.at[b].elems = h.own[b];
    k->ins = o->ins, k->vars = o->vars, k->bufs = o->bufs;
    return true;
}
