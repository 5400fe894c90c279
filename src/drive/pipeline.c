/* pipeline.c - the whole compiler, one stage a line. In: a checked graph. Out: a plan with tiled kernels; everything lives in the arena. */
#include "drive/drive.h"
#include "emit/emit.h"
#include "kopt/kopt.h"
#include "mem/mem.h"
#include "pass/pass.h"
#include "sched/sched.h"

enum { LOCAL_BYTES = 96 << 10 }; /* stack of a kernel: well inside a second-level cache and any thread's stack */

static void run_passes(graph *g, arena *a, const tn_compile_opts *opts) {
    if (!opts->no_passes)
        pass_run_all(g, a, opts->check != 0);
    else /* not an optimisation: the scheduler knows no fold */
        pass_run(g, pass_find("fold_lower"), a, opts->check != 0);
}

plan *pipeline_run(const graph *src, arena *a, const tn_compile_opts *opts, const target *t) {
    graph *g = graph_clone(src, a, true, NULL);
    run_passes(g, a, opts);
    plan *p = sched_plan(g, a, &(sched_opts){ .fusion = opts->fusion, .local_bytes = LOCAL_BYTES });
    mem_inplace(p);
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].k = kopt_run(p->kernels.at[i].k, t);
    mem_pack(p);
    return p;
}
