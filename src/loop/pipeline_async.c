/* pipeline_async.c - software pipelining of a loop whose copies and products go on by themselves, in stages.
 *
 * In: the form of a GPU with a serial loop of asynchronous copies to shared memory, a wait for them, a barrier, products of
 * what is there, a wait for them, a barrier. Out: the same products in the same order; shared memory has n stages. While a
 * block is multiplied, the products of the one before may be under way, and the copies of n - 2 blocks: the stage that these go
 * to had its products done before the last barrier, so that one barrier a block is enough. A turn of the loop goes through all
 * stages, so that places are constants.
 *
 * Copies in boxes say themselves when they are there: so the barrier comes behind the block's products, when those of the block
 * before are done, and copies of n - 1 blocks are under way. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_STAGES = 8 };

typedef struct stager {
    const kernel *k;
    kernel *o;
    int loop, copied, products, end; /* instructions: the loop, the wait for copies, the first behind the barrier, its end */
    int64_t stages, trips;
    bool *staged; /* [bufs] that the loop fills */
    bool boxes;   /* copies are of boxes */
    build_copier c;
} stager;

static const kins *ins_at(const stager *p, int i) { return &p->k->ins.at[i]; }
static bool waits(const kins *in, kasync what) { return in->op == K_ASYNC && in->mode == what && !in->pending; }

static bool find_at(stager *p, const kernel *k, int i) {
    const kins *loop = &k->ins.at[i];
    if (loop->op != K_LOOP || loop->par || loop->lo || loop->step != 1) return false;
    *p = (stager){
        .k = k, .loop = i, .end = kernel_loop_end(k, i), .trips = loop->hi, .staged = ARENA_ARRAY(k->a, bool, k->bufs.n + 1)
    };
    for (i++; i < p->end && !waits(ins_at(p, i), ASYNC_COPIES); i++) {
        const kins *in = ins_at(p, i);
        bool copy = in->op == K_STORE && ins_at(p, i - 1)->op == K_LOAD && ins_at(p, i - 1)->mode >= LOAD_ASYNC;
        if (!copy && !kernel_is_pure(in) && (in->op != K_LOAD || in->mode < LOAD_ASYNC)) return false;
        if (copy) p->staged[in->buf] = true, p->boxes |= ins_at(p, i - 1)->mode == LOAD_BULK;
    }
    p->copied = i, p->products = i + 2;
    if (i + 1 >= p->end || ins_at(p, i + 1)->op != K_BARRIER) return false;
    for (i = p->products; i < p->end - 2; i++)
        if (!kernel_is_pure(ins_at(p, i)) && ins_at(p, i)->op != K_MMA) return false;
    return i == p->end - 2 && waits(ins_at(p, i), ASYNC_PRODUCTS) && ins_at(p, i + 1)->op == K_BARRIER;
}

/* Instructions [from, to) for the block `at`, whose stage is that one; trips: there may be no such block, 0: there is. */
static void write_part(stager *p, int from, int to, affine at, int64_t stage, int64_t trips) {
    build_places places = { .n = 0 };
    build_put(&places, ins_at(p, p->loop)->var, at);
    for (int i = from; i < to; i++) {
        const kins *in = ins_at(p, i);
        places.n_mask = 0;
        if (trips && in->op == K_LOAD) build_bound(&places, at, trips, 0);
        reg r = build_copy(&p->c, i, &places);
        kins *out = &p->o->ins.at[r];
        if ((in->op == K_STORE || in->op == K_MATRIX) && p->staged[in->buf])
            out->idx = affine_offset(out->idx, stage * p->k->bufs.at[in->buf].elems);
    }
}

static void write_async(stager *p, kasync what, int64_t pending) {
    kernel_push(p->o, (kins){ .op = K_ASYNC, .mode = (uint8_t)what, .pending = pending });
}

/* Blocks that are copied ahead of the one that is multiplied. */
static int64_t copied_ahead(const stager *p) { return p->stages - (p->boxes ? 1 : 2); }

/* The products of block `at`, and a wait for those of the block before; n is its number but for whole turns. */
static void write_products(stager *p, affine at, int64_t n) {
    write_part(p, p->products, p->end - 2, at, n % p->stages, 0);
    write_async(p, ASYNC_PRODUCTS, 1);
}

/* Block `at`. more: the block that is copied meanwhile is there, or behind `trips`. barrier: for what was copied
 * before. */
static void write_block(stager *p, affine at, int64_t n, bool more, int64_t trips, bool barrier) {
    int64_t ahead = copied_ahead(p);
    write_async(p, ASYNC_COPIES, ahead - 1);
    if (p->boxes) write_products(p, at, n);
    if (barrier || !p->boxes) build_barrier(p->o);
    if (more) write_part(p, p->loop + 1, p->copied, affine_offset(at, ahead), (n + ahead) % p->stages, trips);
    write_async(p, ASYNC_COMMIT, 0);
    if (!p->boxes) write_products(p, at, n);
}

static kernel *staged(stager *p) {
    kernel *o = p->o = kernel_clone(p->k, p->k->a);
    build_places none = { .n = 0 };
    int64_t ahead = copied_ahead(p), turns = p->trips / p->stages, rest = p->trips % p->stages;
    bool again = false;
    o->ins.n = 1;
    p->c = build_copier_make(p->k, o);
    for (int b = 0; b < p->k->bufs.n; b++)
        if (p->staged[b]) o->bufs.at[b].elems *= p->stages;
    for (int i = 1; i < p->loop; i++) {
        again |= ins_at(p, i)->op == K_LOOP && !ins_at(p, i)->par && kernel_loop_end(p->k, i) > p->loop;
        build_copy(&p->c, i, &none);
    }
    for (int64_t n = 0; n < ahead; n++) {
        if (p->boxes && n + 1 == ahead) build_barrier(o); /* what lay in the last stages before may be in use up to here */
        if (n < p->trips) write_part(p, p->loop + 1, p->copied, affine_const(n), n, 0);
        write_async(p, ASYNC_COMMIT, 0);
    }
    if (turns) {
        affine first = build_times(o->a, build_loop(o, "s", turns, PAR_SERIAL), p->stages);
        for (int64_t n = 0; n < p->stages; n++) {
            bool there = rest >= ahead || n + ahead < p->stages + rest; /* also in the last turn */
            write_block(p, affine_offset(first, n), n, there || turns > 1, there ? 0 : p->trips, true);
        }
        build_ends(o, 1);
    }
    for (int64_t n = 0; n < rest; n++) {
        bool more = n + ahead < rest;
        write_block(p, affine_const(turns * p->stages + n), n, more, 0, more);
    }
    write_async(p, ASYNC_PRODUCTS, 0);
    if (again) build_barrier(o);
    for (int i = p->end + 1; i < p->k->ins.n; i++) build_copy(&p->c, i, &none);
    return o;
}

bool gpu_pipeline_async(kernel **k, int64_t stages, str *why) {
    stager p;
    int i = 1;
    if (stages < 3 || stages > MOST_STAGES)
        return step_refuse(why, "%lld stages of asynchronous copies: expected 3 to %d", (long long)stages, MOST_STAGES);
    while (i < (*k)->ins.n && !find_at(&p, *k, i)) i++;
    if (i == (*k)->ins.n) return step_refuse(why, "no loop copies to shared memory by itself and multiplies what is there");
    if (p.trips < 2) return step_refuse(why, "there is one K block");
    p.stages = stages;
    *k = staged(&p);
    return true;
}
