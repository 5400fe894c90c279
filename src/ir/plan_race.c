/* plan_race.c - proves that threads meet often enough: between two barriers no element is written by one thread and touched by
 * another in a different launch. (Inside one launch that is kernel_check's part.) Element by element, from the kernels' own
 * indices: it knows nothing of how barriers are chosen. In: a checked plan. Out: problems. Scratch in the plan's arena. */
#include "ir/kernel_walk.h"
#include "ir/plan.h"

enum { NOBODY = 0, ANY = 255, MOST = 4 << 20 /* bytes of a slot that are followed */ };
enum { GRAIN_BITS = 2 }; /* marks are of 4 bytes: a shift, since this file is compiled for size, with divisions */

typedef struct footprint { /* of one slot, since the last barrier: thread + 1, or ANY */
    uint8_t *wrote, *read;
    int64_t n;
} footprint;

typedef struct race {
    const plan *p;
    footprint *slots;
    /* the access being followed */
    const kernel *k;
    const kins *in, *loop;
    const pbuf *b;
    bool record;
    int64_t found;
    int thread;            /* that makes all of the access, or ANY; NOBODY: the parallel variable says which */
    int64_t *limit;        /* [threads] values of the parallel variable below which iterations are that thread's */
    int64_t size;          /* of an element, in bytes */
    VEC(uint8_t *) marked; /* of footprints, since the last barrier */
} race;

static void start_access(race *c) {
    int64_t threads = c->p->threads;
    c->size = (int64_t)dtype_size((tn_dtype)c->b->dtype);
    c->thread = NOBODY;
    if (c->k->par_var < 0)
        c->thread = 1;
    else if (!c->loop || !affine_coef(c->in->idx, c->k->par_var))
        c->thread = ANY;
    else if (c->loop->par == PAR_LAST)
        c->thread = c->p->threads;
    if (c->thread != NOBODY) return;
    int64_t steps = (c->loop->hi - c->loop->lo) / c->loop->step;
    for (int t = 0; t < threads; t++) c->limit[t] = c->loop->lo + steps * (t + 1) / threads * c->loop->step;
}

static int thread_of(const race *c, const visit_at *v) {
    if (c->thread != NOBODY) return c->thread;
    for (int t = 0; t < c->p->threads; t++)
        if (v->var[c->k->par_var] < c->limit[t]) return t + 1;
    return ANY;
}

static void visit(const visit_at *v, void *ud) {
    race *c = ud;
    footprint *f = &c->slots[c->b->slot];
    int64_t from = c->b->offset + v->at * c->size;
    int me = thread_of(c, v);
    for (int64_t g = from >> GRAIN_BITS; g <= (from + c->size - 1) >> GRAIN_BITS && g < f->n; g++) {
        uint8_t *mine = c->in->op == K_LOAD ? &f->read[g] : &f->wrote[g];
        if (c->record) {
            if (*mine == NOBODY) VEC_PUSH(c->p->a, &c->marked, mine);
            *mine = *mine == NOBODY || *mine == me ? (uint8_t)me : ANY;
            continue;
        }
        bool races_with_writer = f->wrote[g] != NOBODY && (f->wrote[g] != me || me == ANY),
             races_with_reader = c->in->op != K_LOAD && f->read[g] != NOBODY && (f->read[g] != me || me == ANY);
        if ((races_with_writer || races_with_reader) && c->found < 0) c->found = v->at;
    }
}

static void follow(race *c, int launch, bool record, str *out, int *n) {
    const pkernel *pk = &c->p->kernels.at[launch];
    c->k = pk->k, c->record = record;
    int *open = ARENA_ARRAY(c->p->a, int, c->k->ins.n), n_open = 0;
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        c->in = &c->k->ins.at[r];
        if (c->in->op == K_LOOP) open[n_open++] = (int)r;
        if (c->in->op == K_END && n_open > 0) n_open--;
        if (c->in->op != K_LOAD && c->in->op != K_STORE && c->in->op != K_SCATTER) continue;
        if (pk->args[c->in->buf].buf < 0 || c->in->dyn) continue;
        c->b = &c->p->bufs.at[pk->args[c->in->buf].buf];
        if (c->slots[c->b->slot].n == 0) continue;
        c->loop = NULL, c->found = -1;
        for (int i = 0; i < n_open; i++)
            if (c->k->ins.at[open[i]].par) c->loop = &c->k->ins.at[open[i]];
        start_access(c);
        kernel_walk(c->k, r, open, n_open, visit, c);
        if (c->found < 0) continue;
        str_addf(out, "launch %d (%s): element %lld of b%d is touched by another thread too, and no barrier is between\n",
                 launch, c->k->name, (long long)c->found, pk->args[c->in->buf].buf);
        ++*n;
        return;
    }
}

int plan_check_races(const plan *p, str *out) {
    int n = 0, n_slots = plan_slots(p);
    if (p->threads < 2 || p->threads > 250) return 0;
    race c = { .p = p, .slots = ARENA_ARRAY(p->a, footprint, n_slots) };
    c.limit = ARENA_ARRAY(p->a, int64_t, p->threads);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        footprint *f = &c.slots[b->slot];
        int64_t end = (b->offset + b->bytes + (1 << GRAIN_BITS) - 1) >> GRAIN_BITS;
        if (b->slot != SLOT_CONST && end > f->n && b->offset + b->bytes <= MOST) f->n = end;
    }
    for (int s = 0; s < n_slots; s++) {
        c.slots[s].wrote = ARENA_ARRAY(p->a, uint8_t, c.slots[s].n + 1);
        c.slots[s].read = ARENA_ARRAY(p->a, uint8_t, c.slots[s].n + 1);
    }
    for (int i = 0; i < p->kernels.n; i++) {
        if (p->kernels.at[i].barrier)
            while (c.marked.n) *c.marked.at[--c.marked.n] = NOBODY;
        else
            follow(&c, i, false, out, &n);
        follow(&c, i, true, out, &n);
    }
    return n;
}
