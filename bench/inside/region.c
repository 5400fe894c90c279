/* region.c - inside_region: what it costs to start and join the threads of a region, and to meet at a barrier.
 *
 * In: a number of threads, regions and barriers. Out: seconds. The team is the pool that devices run kernels with; it is opened
 * before and closed after the measured regions. */
#include "bench/inside/inside.h"

#include "drive/objects.h"
#include "rt/pool.h"

static void meet(const void *ud, int64_t barriers, pool_turn *turn) {
    (void)ud;
    for (int64_t b = 0; b <= barriers; b++) {
        int share;
        while ((share = pool_next(turn, b == barriers)) >= 0) {
        }
        if (share == POOL_LEAVE) return;
    }
}

static tn_status measure(mem host, int threads, int64_t times, int barriers, double *out_seconds, err *e) {
    pool *p = NULL;
    team *t = NULL;
    tn_status s = pool_open(host, NULL, &p, e);
    if (!s) s = pool_want(p, threads, &threads, e);
    if (!s) s = team_open(p, threads, &t, e);
    for (int i = 0; i < 10 && !s; i++) s = team_run(t, meet, NULL, barriers, e); /* everybody is awake */
    double start = now_seconds();
    for (int64_t i = 0; i < times && !s; i++) s = team_run(t, meet, NULL, barriers, e);
    *out_seconds = now_seconds() - start;
    team_close(t);
    pool_close(p);
    return s;
}

tn_status inside_region(tn_ctx *ctx, int threads, int64_t times, int barriers, double *out_seconds) {
    err e = { 0 };
    if (!ctx) return TN_ERR_INVAL;
    ctx_enter(ctx);
    if (threads < 0 || threads > POOL_MAX_THREADS || times < 0 || barriers < 0 || !out_seconds)
        err_set(&e, TN_ERR_INVAL, "inside_region: threads 0..%d, times and barriers not negative, out_seconds not NULL",
                POOL_MAX_THREADS);
    else if (measure(ctx->mem, threads, times, barriers, out_seconds, &e) == TN_OK)
        return TN_OK;
    return ctx_report(ctx, &e);
}
