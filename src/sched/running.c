/* running.c - running sums in rows that are too long for one thread (pass/wide_scans.c) have a kernel that a thread block makes
 * at once (loop/scan_rows.c).
 *
 * In: a group and the scalar kernel that it has become. Out: which of its values must be in memory for it to be such a kernel;
 * written out as any other sum it has as many terms as the square of a row. */
#include "loop/gpu_bind.h"
#include "recipe/recipe.h"
#include "sched/sched.h"

bool sched_is_running(const sched *s, const node *n, int64_t least) {
    if (op_get((op_code)n->op)->cls != CL_REDUCE || graph_get(s->g, n->in[0])->op != OP_select) return false;
    const node *x = graph_get(s->g, n->in[0]), *mask = graph_get(s->g, sched_behind_moves(s, x->in[0]));
    if (op_get((op_code)mask->op)->cls != CL_CMP || graph_get(s->g, x->in[1])->op != OP_expand) return false;
    if (graph_get(s->g, mask->in[0])->op != OP_iota || graph_get(s->g, mask->in[1])->op != OP_iota) return false;
    for (int i = 1; i < x->rank; i++)
        if (n->attr[0] == (int64_t)1 << i && x->dims[i] >= least && x->dims[i - 1] == x->dims[i]) return true;
    return false;
}

static bool may_be_stored(const sched *s, val v) {
    return !s->materialised[v] && s->place[v] != PLACE_LEAF && s->place[v] != PLACE_ROOT && graph_get(s->g, v)->n_in > 0;
}

/* In this order: what is summed, another sum, a view of what is summed, the running sums themselves. */
val sched_beside_running_sums(const sched *s, const val *inside, int n, const kernel *k) {
    enum { LEAST = 32 };
    val running = 0, other = 0;
    for (int i = 0; i < n; i++) {
        const node *m = graph_get(s->g, inside[i]);
        op_class cls = op_get((op_code)m->op)->cls;
        if (sched_is_running(s, m, LEAST))
            running = inside[i];
        else if ((cls == CL_REDUCE || cls == CL_ARG || cls == CL_GATHER || cls == CL_RANDOM) && may_be_stored(s, inside[i]))
            other = inside[i];
    }
    if (!running) return 0;
    recipe r = recipe_make(kernel_clone(k, s->scratch), s->opts.t);
    recipe_fuse_loops(&r);
    if (gpu_has_running_rows(r.k, &(int64_t){ 0 })) return 0;
    val terms = graph_get(s->g, graph_get(s->g, graph_get(s->g, running)->in[0])->in[1])->in[0],
        x = sched_behind_moves(s, terms);
    return may_be_stored(s, x) ? x : other ? other : may_be_stored(s, terms) ? terms : may_be_stored(s, running) ? running : 0;
}
