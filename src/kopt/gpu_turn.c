/* gpu_turn.c - elementwise kernels for GPUs that read across what they write (transposes, permutes): through fast memory, so
 * that neighbouring threads are neighbours in memory on both sides.
 *
 * In: a scalar kernel whose outer loops hold plain instructions only, some loads of which lie along another loop than the
 * innermost one. Out: a new kernel, or NULL when there is nothing to turn or it is too small. A group has a square of both
 * loops: first the loads along their own loop, then, after a barrier, everything along the innermost one. */
#include "kopt/gpu_copy.h"

enum { MAX_TURNED = 4 };

typedef struct turner {
    const kernel *k;
    const target *t;
    int n_outer, from, to;
    kvar u, v; /* the loop that turned loads lie along; the innermost */
    int turned[MAX_TURNED], n_turned, buf[MAX_TURNED];
    int lanes;
    int64_t side, pitch; /* of the square */
    int across, down;    /* threads */
} turner;

static bool is_load(const kins *in) { return in->op == K_LOAD; }

/* The loop, other than v, along which the load lies; -1: none. */
static kvar lies_along(const turner *w, const kins *in) {
    for (int i = 1; i < w->n_outer; i++)
        if (affine_coef(in->idx, w->k->ins.at[i].var) == 1) return w->k->ins.at[i].var;
    return -1;
}

static bool find_turned(turner *w) {
    w->u = -1;
    for (int i = w->from; i < w->to; i++) {
        const kins *in = &w->k->ins.at[i];
        if (!gpu_is_plain(w->k, in)) return false;
        int64_t apart = affine_coef(in->idx, w->v);
        if (in->op == K_STORE && apart != 1) return false;
        if (!is_load(in) || apart == 0 || apart == 1) continue;
        kvar u = lies_along(w, in);
        if (u < 0 || (w->u >= 0 && u != w->u) || in->dyn || w->n_turned == MAX_TURNED) return false;
        if (w->k->bufs.at[in->buf].kind != KB_IN) return false; /* what it reads, another thread may write */
        w->u = u;
        w->turned[w->n_turned++] = i;
    }
    return w->n_turned > 0;
}

static bool is_turned(const turner *w, int i) {
    for (int x = 0; x < w->n_turned; x++)
        if (w->turned[x] == i) return true;
    return false;
}

/* Lanes of 16 bytes on both sides, or 1. */
static int choose_lanes(const turner *w) {
    int size = 4;
    for (int i = w->from; i < w->to; i++) {
        const kins *in = &w->k->ins.at[i];
        if (in->op == K_RANDOM) return 1;
        if ((in->op == K_LOAD || in->op == K_STORE) && dtype_size((tn_dtype)w->k->bufs.at[in->buf].dtype) > 4) size = 8;
    }
    int lanes = 16 / size;
    if (w->k->vars.at[w->u].extent % lanes || w->k->vars.at[w->v].extent % lanes) return 1;
    for (int i = w->from; i < w->to; i++) {
        const kins *in = &w->k->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        if (in->dyn || !gpu_aligned(w->k, in, is_turned(w, i) ? w->u : w->v, lanes)) return 1;
    }
    return lanes;
}

static bool choose_square(turner *w) {
    int group = w->t->group < 256 ? w->t->group : 256;
    int64_t elems = 1, bytes = 0;
    w->lanes = choose_lanes(w);
    w->side = w->lanes > 1 ? 16 * w->lanes : 32;
    w->across = (int)(w->side / w->lanes), w->pitch = w->side + 1;
    if (group < 2 * w->across || w->k->vars.at[w->u].extent < 16 || w->k->vars.at[w->v].extent < 16) return false;
    w->down = group / w->across;
    for (int i = 1; i <= w->n_outer; i++) elems *= w->k->ins.at[i].hi;
    for (int x = 0; x < w->n_turned; x++)
        bytes += w->side * w->pitch * (int64_t)dtype_size((tn_dtype)w->k->ins.at[w->turned[x]].dtype);
    return elems >= 1 << 12 && bytes <= w->t->group_bytes;
}

static kvar open(kernel *o, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(o, name, n, false, false);
    kernel_push(o, (kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .par = (uint8_t)par });
    return v;
}

/* Where chunk c of a thread is: `fast` counts along neighbours, `slow` across. */
typedef struct spot {
    affine fast, slow;
} spot;
static spot spot_of(const turner *w, arena *a, kvar y, kvar x, int c) {
    return (spot){ affine_scale(a, affine_var(a, x), w->lanes), affine_offset(affine_var(a, y), (int64_t)c * w->down) };
}

static gpu_places places_at(const turner *w, arena *a, affine u0, affine v0, affine u, affine v, kvar along) {
    gpu_places p = { .along = along, .lanes = w->lanes };
    u = affine_add(a, u0, u), v = affine_add(a, v0, v);
    gpu_put(&p, w->u, u), gpu_put(&p, w->v, v);
    if (w->k->vars.at[w->u].extent % w->side) gpu_bound(&p, u, w->k->vars.at[w->u].extent, along == w->u);
    if (w->k->vars.at[w->v].extent % w->side) gpu_bound(&p, v, w->k->vars.at[w->v].extent, along == w->v);
    return p;
}

/* The turned loads, along u, to fast memory: element (u, v) of the square is at u * pitch + v. */
static void write_loads(turner *w, kernel *o, affine u0, affine v0, kvar y, kvar x) {
    arena *a = o->a;
    gpu_copier c = { w->k, o, ARENA_ARRAY(a, reg, w->k->ins.n) };
    bool *varies = gpu_varying(w->k, NULL, w->u);
    for (int n = 0; n < w->side / w->down; n++)
        for (int i = 0; i < w->n_turned; i++) {
            spot s = spot_of(w, a, y, x, n);
            gpu_places p = places_at(w, a, u0, v0, s.fast, s.slow, w->u);
            p.varies = varies;
            reg r = gpu_copy(&c, w->turned[i], &p);
            kernel_push(o, (kins){ .op = K_STORE,
                                   .dtype = o->ins.at[r].dtype,
                                   .buf = (uint16_t)w->buf[i],
                                   .idx = affine_add(a, affine_scale(a, s.fast, w->pitch), s.slow),
                                   .a = r,
                                   .lanes = (uint8_t)w->lanes,
                                   .lane_stride = w->lanes > 1 ? w->pitch : 0 });
        }
}

static void write_rest(turner *w, kernel *o, affine u0, affine v0, kvar y, kvar x) {
    arena *a = o->a;
    bool *varies = gpu_varying(w->k, NULL, w->v);
    for (int n = 0; n < w->side / w->down; n++) {
        gpu_copier c = { w->k, o, ARENA_ARRAY(a, reg, w->k->ins.n) };
        spot s = spot_of(w, a, y, x, n);
        gpu_places p = places_at(w, a, u0, v0, s.slow, s.fast, w->v);
        p.varies = varies;
        for (int i = w->from; i < w->to; i++) {
            int turned = 0;
            while (turned < w->n_turned && w->turned[turned] != i) turned++;
            if (turned == w->n_turned) {
                gpu_copy(&c, i, &p);
                continue;
            }
            uint8_t type = w->k->ins.at[i].dtype;
            c.to[i] = kernel_push(o, (kins){ .op = K_LOAD,
                                             .dtype = type,
                                             .src = type,
                                             .buf = (uint16_t)w->buf[turned],
                                             .idx = affine_add(a, affine_scale(a, s.slow, w->pitch), s.fast),
                                             .lanes = (uint8_t)w->lanes,
                                             .lane_stride = w->lanes > 1 });
        }
    }
}

kernel *kopt_gpu_turn(const kernel *k, int n_outer, const target *t) {
    turner w = { .k = k, .t = t, .n_outer = n_outer, .from = 1 + n_outer, .to = k->ins.n - n_outer };
    if (n_outer < 2 || k->vars.n > 50) return NULL;
    w.v = k->ins.at[n_outer].var;
    if (!find_turned(&w) || !choose_square(&w)) return NULL;
    kernel *o = gpu_kernel(k, w.across * w.down);
    affine first[2];
    int opened = 2;
    for (int i = 0; i < w.n_turned; i++) {
        uint8_t type = k->ins.at[w.turned[i]].dtype;
        w.buf[i] = kernel_buf(o, (kbuf){ .dtype = type, .kind = KB_GROUP, .elems = w.side * w.pitch, .plan_buf = -1 });
    }
    for (int i = 1; i <= n_outer; i++) {
        kins in = k->ins.at[i];
        if (in.var == w.u || in.var == w.v) continue;
        in.par = PAR_GROUPS;
        o->groups *= in.hi;
        kernel_push(o, in);
        opened++;
    }
    for (int x = 0; x < 2; x++) {
        int64_t n = (k->vars.at[x ? w.v : w.u].extent + w.side - 1) / w.side;
        first[x] = affine_scale(o->a, affine_var(o->a, open(o, "g", n, PAR_GROUPS)), w.side);
        o->groups *= n;
    }
    kvar y = open(o, "y", w.down, PAR_LOCAL), x = open(o, "x", w.across, PAR_LOCAL);
    write_loads(&w, o, first[0], first[1], y, x);
    kernel_push(o, (kins){ .op = K_BARRIER });
    write_rest(&w, o, first[0], first[1], y, x);
    for (int i = 0; i < opened + 2; i++) kernel_push(o, (kins){ .op = K_END });
    return o;
}
