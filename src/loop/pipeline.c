/* pipeline.c - software pipelining of a loop that fills shared memory and multiplies what is there (double buffering).
 *
 * In: the form of a GPU with a serial loop of a copy to shared memory, a barrier, a loop that reads it, a barrier. Out: the
 * same sums in the same order. Shared memory has two halves: while one is multiplied, the next block is loaded, and stored into
 * the other, so that a barrier a block is enough. Registers carry what is under way from one iteration to the next. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum {
    MOST_BUFFERS = 4,
    MOST_STORES = 16 /* of a thread into one buffer */,
    MOST_READS = 32 /* vectors of a step */,
    LONG = 16 /* steps whose code is written out */,
    FEW = 8 /* blocks */,
    CARRYING = 64 /* sums */
};

typedef struct shared_buffer { /* that the loop fills */
    int buf, n;
    int64_t elems;
    int store[MOST_STORES]; /* instructions */
    const bool *needed;     /* [ins] what is stored is computed from */
    bool carried;           /* its loads may be under way from one iteration to the next */
    int first_read;         /* instruction */
} shared_buffer;

typedef struct pipeliner {
    const kernel *k;
    kernel *o;
    int loop, barrier, inner, inner_end, end; /* instructions: outer loop, barrier before the inner loop, .. */
    kvar block, step;                         /* variables of both loops */
    int64_t trips, steps;
    bool again; /* a loop around does all of it several times */
    int n, n_reads;
    shared_buffer at[MOST_BUFFERS];
    int read[MOST_READS]; /* instructions of the inner loop */
    build_copier c;
} pipeliner;

typedef struct loaded { /* a block, in registers: [buffer][store] */
    reg v[MOST_BUFFERS][MOST_STORES];
} loaded;
typedef struct moment { /* of a load: which block; its bound, where there may be none of that number, or 0 */
    affine at;
    int64_t trips;
} moment;

static const kins *ins_at(const pipeliner *p, int i) { return &p->k->ins.at[i]; }

/* ---- what is pipelined ---- */

static shared_buffer *buffer_of(pipeliner *p, int buf) {
    for (int x = 0; x < p->n; x++)
        if (p->at[x].buf == buf) return &p->at[x];
    return NULL;
}

static bool is_shared(const pipeliner *p, const kins *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && p->k->bufs.at[in->buf].kind == KB_SHARED;
}

static bool add_store(pipeliner *p, int i) {
    const kins *in = ins_at(p, i);
    shared_buffer *x = buffer_of(p, in->buf);
    if (!x && p->n == MOST_BUFFERS) return false;
    if (!x) {
        x = &p->at[p->n++];
        *x = (shared_buffer){ .buf = in->buf, .elems = p->k->bufs.at[in->buf].elems };
    }
    if (x->n == MOST_STORES) return false;
    x->store[x->n++] = i;
    return true;
}

/* From the loop on: loads and what is computed from them, and stores to shared memory, up to a barrier. */
static bool find_copies(pipeliner *p) {
    for (p->barrier = p->loop + 1; ins_at(p, p->barrier)->op != K_BARRIER; p->barrier++) {
        const kins *in = ins_at(p, p->barrier);
        bool loads = in->op == K_LOAD && !is_shared(p, in), stores = in->op == K_STORE && is_shared(p, in);
        if (!kernel_is_pure(in) && !loads && !stores) return false;
        if (stores && !add_store(p, p->barrier)) return false;
    }
    return p->n > 0;
}

/* The loop behind the barrier: reads of those buffers, whose places the loop's variable decides, and sums. */
static bool find_reads(pipeliner *p) {
    p->inner = p->barrier + 1;
    const kins *loop = ins_at(p, p->inner);
    if (loop->op != K_LOOP || loop->par || loop->lo || loop->step != 1) return false;
    p->inner_end = kernel_loop_end(p->k, p->inner), p->step = loop->var, p->steps = loop->hi;
    for (int i = p->inner + 1; i < p->inner_end; i++) {
        const kins *in = ins_at(p, i);
        if (!kernel_is_pure(in) && in->op != K_LANES && in->op != K_UPD && in->op != K_LOAD) return false;
        if (in->op != K_LOAD) continue;
        shared_buffer *x = buffer_of(p, in->buf);
        if (!x || in->dyn || p->n_reads == MOST_READS) return false;
        if (!x->first_read) x->first_read = i;
        p->read[p->n_reads++] = i;
    }
    for (int x = 0; x < p->n; x++)
        if (!p->at[x].first_read) return false;
    return ins_at(p, p->inner_end + 1)->op == K_BARRIER && p->inner_end + 2 == p->end;
}

/* Both loops at instruction i; false where they are none of that kind, or the buffers are used elsewhere, too. */
static bool find_at(pipeliner *p, const kernel *k, int i) {
    *p = (pipeliner){ .k = k, .loop = i };
    const kins *loop = ins_at(p, i);
    if (loop->op != K_LOOP || loop->par || loop->lo || loop->step != 1) return false;
    p->end = kernel_loop_end(k, i), p->block = loop->var, p->trips = loop->hi;
    if (!find_copies(p) || !find_reads(p)) return false;
    for (int j = 1; j < k->ins.n; j++)
        if ((j < i || j > p->end) && is_shared(p, ins_at(p, j)) && buffer_of(p, ins_at(p, j)->buf)) return false;
    for (int j = 1; j < i; j++) {
        const kins *in = ins_at(p, j);
        p->again |= in->op == K_LOOP && !in->par && kernel_loop_end(k, j) > i;
    }
    return true;
}

/* Whether a load may be under way from one iteration to the next: where something was computed from it, that would wait for it
 * at once; but for the zero that stands behind the last element. */
static bool may_be_carried(const pipeliner *p, const shared_buffer *x) {
    const kins *in = ins_at(p, (int)ins_at(p, x->store[0])->a);
    if (in->op == K_ALU && in->alu == OP_select) in = ins_at(p, (int)in->b);
    return in->op == K_LOAD && in->src == in->dtype && !in->dyn;
}

static void find_needed(const pipeliner *p, shared_buffer *x) {
    bool *needed = ARENA_ARRAY(p->k->a, bool, p->k->ins.n);
    for (int i = 0; i < x->n; i++) needed[ins_at(p, x->store[i])->a] = true;
    build_mark_needed(p->k, p->barrier, needed);
    x->needed = needed, x->carried = may_be_carried(p, x);
}

/* ---- pieces of it, once more ---- */

/* A mask of the thread alone: it has no part in the copy. */
static bool is_of_thread(const pipeliner *p, const kmask *m) {
    for (int t = 0; t < m->e.n; t++)
        for (int i = 1; i < p->loop; i++)
            if (ins_at(p, i)->op == K_LOOP && ins_at(p, i)->var == m->e.t[t].var && ins_at(p, i)->par != PAR_BLOCK_THREADS)
                return false;
    return affine_coef(m->e, p->block) == 0;
}

/* The bound of the moment comes behind those of the block, and before that of the thread. */
static void bound_load(const pipeliner *p, int i, kins *in) {
    int n = in->n_mask;
    if (n == 1) in->mode = LOAD_UNMASKED;
    if (n < 2 || !is_of_thread(p, &ins_at(p, i)->mask[n - 2])) return;
    kmask mask = in->mask[n - 1];
    int64_t lane = in->mask_lane[n - 1];
    in->mask[n - 1] = in->mask[n - 2], in->mask_lane[n - 1] = in->mask_lane[n - 2];
    in->mask[n - 2] = mask, in->mask_lane[n - 2] = lane;
}

static void load_block(pipeliner *p, int x, const moment *when, loaded *out) {
    build_places places = { .n = 0 };
    build_put(&places, p->block, when->at);
    if (when->trips) build_bound(&places, when->at, when->trips, 0);
    for (int i = p->loop + 1; i < p->barrier; i++) {
        if (!p->at[x].needed[i]) continue;
        reg r = build_copy(&p->c, i, &places);
        if (when->trips && ins_at(p, i)->op == K_LOAD) bound_load(p, i, &p->o->ins.at[r]);
    }
    for (int i = 0; i < p->at[x].n; i++) out->v[x][i] = p->c.to[ins_at(p, p->at[x].store[i])->a];
}

static void store_blocks(pipeliner *p, const loaded *from, affine half) {
    for (int x = 0; x < p->n; x++)
        for (int i = 0; i < p->at[x].n; i++) {
            kins in = *ins_at(p, p->at[x].store[i]);
            in.a = from->v[x][i], in.idx = build_plus(p->o->a, in.idx, half, p->at[x].elems);
            kernel_push(p->o, in);
        }
}

typedef struct reads { /* what a step multiplies */
    reg v[MOST_READS];
} reads;

static reg read_vector(pipeliner *p, int i, affine step, affine half) {
    kins in = *ins_at(p, i);
    in.idx = build_plus(p->o->a, affine_set_var(p->o->a, in.idx, p->step, step), half, buffer_of(p, in.buf)->elems);
    return kernel_push(p->o, in);
}

/* All that a step reads; `first`, where that is not NULL, has the first vector of each buffer. */
static reads read_step(pipeliner *p, affine step, affine half, const reg *first) {
    reads out = { .v = { 0 } };
    for (int i = 0; i < p->n_reads; i++) {
        const shared_buffer *x = buffer_of(p, ins_at(p, p->read[i])->buf);
        bool is_first = first && x->first_read == p->read[i];
        out.v[i] = is_first ? first[x - p->at] : read_vector(p, p->read[i], step, half);
    }
    return out;
}

static void multiply(pipeliner *p, const reads *from) {
    build_places none = { .n = 0 };
    for (int i = 0; i < p->n_reads; i++) p->c.to[p->read[i]] = from->v[i];
    for (int i = p->inner + 1; i < p->inner_end; i++)
        if (ins_at(p, i)->op != K_LOAD) build_copy(&p->c, i, &none);
}

/* Steps [from, to) of a block, one after the other. */
static void write_steps(pipeliner *p, affine half, int64_t from, int64_t to, int unroll) {
    if (from == to) return;
    kvar k = build_loop(p->o, "k", to, PAR_SERIAL);
    p->o->ins.at[p->o->ins.n - 1].lo = from;
    p->o->vars.at[k].role.unroll = unroll;
    reads r = read_step(p, affine_var(p->o->a, k), half, NULL);
    multiply(p, &r);
    build_ends(p->o, 1);
}

/* ---- what is under way from one step, and one iteration, to the next ---- */

/* Registers of their own for n values: v has them afterwards. */
static void make_carried(pipeliner *p, reg *v, int n) {
    reg to[MOST_READS];
    build_carried(p->o, v, to, n);
    memcpy(v, to, sizeof *to * (size_t)n);
}
/* Buffer after buffer. */
static void make_carried_reads(pipeliner *p, reads *r) {
    for (int from = 0, to; from < p->n_reads; from = to) {
        for (to = from + 1; to < p->n_reads && ins_at(p, p->read[to])->buf == ins_at(p, p->read[from])->buf; to++) {
        }
        make_carried(p, r->v + from, to - from);
    }
}

/* The first block into shared memory, the second one into registers that carry it, where they may. */
static void begin(pipeliner *p, loaded *ahead) {
    loaded *s = ARENA_NEW(p->o->a, loaded);
    moment when = { .trips = 0 };
    for (int x = 0; x < p->n; x++) load_block(p, x, &when, s);
    when.at = affine_const(1);
    for (int x = 0; x < p->n; x++) {
        if (p->at[x].carried) load_block(p, x, &when, ahead);
        if (p->at[x].carried && p->trips > 2) make_carried(p, ahead->v[x], p->at[x].n);
    }
    store_blocks(p, s, affine_const(0));
    build_barrier(p->o);
}

/* What no register carries. */
static void load_uncarried(pipeliner *p, const moment *when, loaded *ahead) {
    for (int x = 0; x < p->n; x++)
        if (!p->at[x].carried) load_block(p, x, when, ahead);
}

/* The block behind the next one, into the registers that carried this one. */
static void load_ahead(pipeliner *p, const moment *when, const loaded *ahead) {
    loaded *s = ARENA_NEW(p->o->a, loaded);
    for (int x = 0; x < p->n; x++)
        if (p->at[x].carried) load_block(p, x, when, s);
    for (int x = 0; x < p->n; x++)
        if (p->at[x].carried) build_carry(p->o, s->v[x], ahead->v[x], p->at[x].n);
}

/* Two blocks an iteration: block s + h is multiplied in half h, the next one goes into the other half. */
typedef struct turn {
    affine half, other;
    moment next, second; /* the block that comes next, and the one behind it */
} turn;

static turn turn_of(const pipeliner *p, kvar s, int64_t blocks, kvar h) {
    arena *a = p->o->a;
    turn t = { .half = affine_var(a, h) };
    t.other = affine_offset(affine_scale(a, t.half, -1), 1);
    t.next = (moment){ affine_offset(build_plus(a, t.half, affine_var(a, s), blocks), 1), p->trips };
    t.second = (moment){ affine_offset(t.next.at, 1), p->trips % 2 ? p->trips : 0 }; /* all of an even number are there */
    return t;
}

static int unroll_of(int64_t steps) { return steps <= LONG ? (int)steps : 8; }

/* The last block but one is multiplied, and the last one stored, where their number is even. */
static void load_last(pipeliner *p, loaded *ahead) {
    moment last = { .at = affine_const(p->trips - 1) };
    load_uncarried(p, &last, ahead);
}
static void store_last(pipeliner *p, const loaded *ahead) {
    store_blocks(p, ahead, affine_const(1));
    build_barrier(p->o);
}

/* The loop begins some steps late, so that no barrier is needed where it begins again; of what its first step multiplies,
 * registers carry the first vectors to it: with them it begins while the others are read. */
static void write_late(pipeliner *p) {
    int64_t late = p->steps < 8 ? 1 : 3;
    affine first_step = affine_const(late), zero = affine_const(0);
    loaded *ahead = ARENA_NEW(p->o->a, loaded);
    begin(p, ahead);
    write_steps(p, zero, 0, late, (int)late);
    if (p->trips > 2) {
        reg first[MOST_BUFFERS], v[MOST_BUFFERS];
        for (int x = 0; x < p->n; x++) first[x] = read_vector(p, p->at[x].first_read, first_step, zero);
        for (int x = 0; x < p->n; x++) make_carried(p, &first[x], 1);
        kvar s = build_loop(p->o, "s", (p->trips - 1) / 2 * 2, PAR_SERIAL);
        p->o->ins.at[p->o->ins.n - 1].step = 2;
        turn t = turn_of(p, s, 1, build_loop(p->o, "h", 2, PAR_SERIAL));
        load_uncarried(p, &t.next, ahead);
        reads r = read_step(p, first_step, t.half, first);
        multiply(p, &r);
        write_steps(p, t.half, late + 1, p->steps, unroll_of(p->steps));
        store_blocks(p, ahead, t.other);
        build_barrier(p->o);
        load_ahead(p, &t.second, ahead);
        write_steps(p, t.other, 0, late - 1, (int)late);
        r = read_step(p, affine_const(late - 1), t.other, NULL);
        for (int x = 0; x < p->n; x++) v[x] = read_vector(p, p->at[x].first_read, first_step, t.other);
        multiply(p, &r);
        for (int x = 0; x < p->n; x++) build_carry(p->o, &v[x], &first[x], 1);
        build_ends(p->o, 2);
    }
    bool even = p->trips % 2 == 0;
    if (even) load_last(p, ahead);
    write_steps(p, zero, late, p->steps, 2); /* these steps are few: short code */
    if (even) {
        store_last(p, ahead);
        write_steps(p, affine_const(1), 0, p->steps, 2);
    } else if (p->again) {
        build_barrier(p->o);
    }
}

/* Reads a step into registers that hold the one before, which is multiplied. */
static void multiply_ahead(pipeliner *p, const reads *held, affine step, affine half) {
    reads next = read_step(p, step, half, NULL);
    multiply(p, held);
    build_carry(p->o, next.v, held->v, p->n_reads);
}

/* Multiplies step after step what `held` has, which the last one leaves there: behind each is read what the next one needs. */
static void write_ahead(pipeliner *p, const reads *held, affine half, int unroll) {
    int64_t steps = p->steps - 1;
    if (steps == 0) return;
    kvar k = build_loop(p->o, "k", steps, PAR_SERIAL);
    p->o->vars.at[k].role.unroll = unroll < steps ? unroll : (int)steps;
    multiply_ahead(p, held, affine_offset(affine_var(p->o->a, k), 1), half);
    build_ends(p->o, 1);
}

/* For smaller tiles, whose threads have registers left: what a step multiplies is read while the one before is multiplied, also
 * with barriers in between; blocks are loaded when the one before has been stored. Registers carry both from one iteration
 * to the next: so no thread begins one waiting, and memory has the time of a whole block. */
static void write_carried(pipeliner *p) {
    affine zero = affine_const(0), one = affine_const(1);
    loaded *ahead = ARENA_NEW(p->o->a, loaded);
    int unroll = p->trips > FEW ? 2 : unroll_of(p->steps); /* of the last blocks: short code where they are few of many */
    begin(p, ahead);
    reads held = read_step(p, zero, zero, NULL);
    make_carried_reads(p, &held);
    if (p->trips > 2) {
        kvar s = build_loop(p->o, "s", (p->trips - 1) / 2, PAR_SERIAL);
        turn t = turn_of(p, s, 2, build_loop(p->o, "h", 2, PAR_SERIAL));
        load_uncarried(p, &t.next, ahead);
        write_ahead(p, &held, t.half, unroll_of(p->steps));
        store_blocks(p, ahead, t.other);
        build_barrier(p->o);
        reads next = read_step(p, zero, t.other, NULL);
        load_ahead(p, &t.second, ahead);
        multiply(p, &held);
        build_carry(p->o, next.v, held.v, p->n_reads);
        build_ends(p->o, 2);
    }
    bool even = p->trips % 2 == 0;
    if (even) load_last(p, ahead);
    write_ahead(p, &held, zero, unroll);
    if (even) {
        store_last(p, ahead);
        multiply_ahead(p, &held, zero, one);
        write_ahead(p, &held, one, unroll);
    } else if (p->again) {
        build_barrier(p->o);
    }
    multiply(p, &held);
}

/* ---- all of it ---- */

static int64_t sums(const pipeliner *p) {
    int64_t n = 0;
    for (int i = p->inner; i < p->inner_end; i++)
        if (ins_at(p, i)->op == K_UPD) n += ins_at(p, i)->lanes;
    return n;
}

static kernel *pipelined(pipeliner *p) {
    kernel *o = p->o = kernel_clone(p->k, p->k->a);
    build_places none = { .n = 0 };
    o->ins.n = 1;
    p->c = build_copier_make(p->k, o);
    if (p->block == o->vars.n - 2 && p->step == o->vars.n - 1) o->vars.n -= 2; /* their loops are written anew */
    for (int x = 0; x < p->n; x++) o->bufs.at[p->at[x].buf].elems *= 2;
    for (int i = 1; i < p->loop; i++) build_copy(&p->c, i, &none);
    /* With 8 x 16 sums a thread's registers are all in use, and what is carried comes to lie in the wrong banks: on an H200
     * 2048 cubed took 351 us so, and 330 as the other; with 8 x 8 sums 1024 cubed takes 52.1 us so, and 53.2 as the other. */
    if (sums(p) > CARRYING && p->steps > 1)
        write_late(p);
    else
        write_carried(p);
    for (int i = p->end + 1; i < p->k->ins.n; i++) build_copy(&p->c, i, &none);
    return o;
}

bool step_pipeline(kernel **k, const loop_step *s, str *why) {
    pipeliner p;
    int i = 1;
    for (int j = 1; j < (*k)->ins.n; j++)
        if ((*k)->ins.at[j].op == K_ASYNC) return gpu_pipeline_async(k, s->arg[0].n, why);
    if (s->arg[0].n != 2) return step_refuse(why, "%lld blocks in shared memory: expected 2", (long long)s->arg[0].n);
    while (i < (*k)->ins.n && !find_at(&p, *k, i)) i++;
    if (i == (*k)->ins.n)
        return step_refuse(why, "no loop copies to shared memory, each thread its own pieces, and multiplies what is there");
    if (p.trips < 2) return step_refuse(why, "there is one K block");
    for (int x = 0; x < p.n; x++) find_needed(&p, &p.at[x]);
    *k = pipelined(&p);
    return true;
}
