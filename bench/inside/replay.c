/* replay.c - inside_replay: bytes of a kernel at each memory level, by the cost model and as src/drive/replay.c counts them.
 *
 * In: a compiled program for the CPU. Out: both, where caches have what the kernel left there, and where they have nothing. */
#include "bench/inside/inside.h"

#include "drive/drive.h"
#include "drive/replay.h"

static void count(const kernel *k, const machine *m, arena *a, inside_bytes *out) {
    replay_bytes r;
    replay_kernel(k, m, a, &r, &out->cold_counted);
    memcpy(out->counted, r.counted, sizeof out->counted);
    cost c = cost_kernel(k, m, NULL, a);
    memcpy(out->predicted, c.bytes, sizeof out->predicted);
    double *far = ARENA_ARRAY(a, double, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) far[b] = 1e15; /* no cache keeps anything for so long */
    out->cold_predicted = cost_kernel(k, m, far, a).bytes[LEVEL_MEMORY];
}

typedef struct replay_job {
    arena a;
    guard gd;
} replay_job;

static tn_status run_job(replay_job *j, const tn_program *p, int i, int64_t l3_bytes, inside_bytes *out, err *e) {
    if (GUARD_TRY(&j->gd)) {
        machine m = machine_of(&p->target);
        if (l3_bytes) m.level[LEVEL_L3].bytes = l3_bytes;
        count(p->plan->kernels.at[i].k, &m, &j->a, out);
        return TN_OK;
    }
    return err_set(e, j->gd.err.code, "%s", j->gd.err.text);
}

tn_status inside_replay(const tn_program *p, int i, int64_t l3_bytes, inside_bytes *out) {
    err e = { 0 };
    if (!p) return TN_ERR_INVAL;
    if (!p->plan || p->target.kind != TARGET_CPU || p->target.threads > 1 || i < 0 || i >= p->plan->kernels.n || !out ||
        l3_bytes < 0) {
        err_set(&e, TN_ERR_INVAL,
                "inside_replay: a kernel of a program for the CPU and one thread, a size and an out are needed");
        return ctx_report(p->ctx, &e);
    }
    replay_job j = { 0 };
    *out = (inside_bytes){ .name = p->plan->kernels.at[i].k->name, .repeats = p->plan->kernels.at[i].code != i };
    arena_init(&j.a, p->ctx->mem, &j.gd);
    tn_status st = run_job(&j, p, i, l3_bytes, out, &e);
    arena_fini(&j.a);
    return st ? ctx_report(p->ctx, &e) : TN_OK;
}
