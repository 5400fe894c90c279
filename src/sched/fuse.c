/* fuse.c - which values are kept in memory and which are computed inside a kernel.
 *
 * Values are decided from the outputs backwards, so all users of a value are decided before it. A value joins the kernel of its
 * users when that is one kernel, the fusion level allows it, group_analyse finds a common loop structure and the cost rules
 * below agree; a view or another value that costs no more to compute than to load may be computed in several kernels. What is
 * left becomes the root of a kernel of its own. Convexity holds by construction: a value inside a kernel has no user outside
 * it. Levels: 0 views only; 1 elementwise onto the op before it (linear + bias + ReLU); 2 everything that needs no extra work;
 * 3 also recomputation, kernels with several results and, later, kernels joined row by row (sched/row_block.c,
 * sched/vertical_fusion.c). */
#include "machine/machine.h"
#include "sched/sched.h"

enum { SMALL_PART = 16, FEW_ROWS = 8, SMALL_WORK = 1 << 15, WIDE_ROW = 1024, MANY_LOOPS = 48 };
enum { FEW_BLOCKS = 64, BLOCK_WORK = 1 << 15 }; /* of a GPU; of one of them */
enum { FAR_OPERAND = 1 << 16 /* elements */ };
enum { MANY_PLACES = 8, TRIP_FLOPS = 6 /* for an element to memory and back */ };
enum { MANY_STEPS = 1 << 12, MOST_PARTS = 64, TILED_WORK = 1 << 22 /* multiply-adds, on a GPU */, NEAR = 6, MANY_USES = 64 };

static int new_group(sched *s, val root) {
    VEC_PUSH(s->a, &s->groups, (group){ 0 });
    group *gr = &s->groups.at[s->groups.n - 1];
    VEC_PUSH(s->a, &gr->roots, root);
    s->place[root] = PLACE_ROOT;
    s->group_of[root] = s->groups.n - 1;
    return s->groups.n - 1;
}

/* Lists in s->readers the groups that read v, looking through users that are computed everywhere. */
static void reading_groups(sched *s, val v) {
    VEC(uint32_t) open = { 0 }; /* the uses to look at next: of v, of a user of v, of a user of that one .. */
    arena_reset(s->scratch);
    VEC_PUSH(s->scratch, &open, graph_get(s->g, v)->first_use);
    while (open.n) {
        uint32_t u = open.at[open.n - 1];
        if (!u) {
            open.n--;
            continue;
        }
        val user = s->g->uses.at[u - 1].user;
        open.at[open.n - 1] = s->g->uses.at[u - 1].next;
        if (graph_get(s->g, user)->op == OP_again && s->g->uses.at[u - 1].slot) continue; /* which reads nothing of v */
        if (s->place[user] == PLACE_EVERYWHERE || s->place[user] == PLACE_ALIAS) {
            if (sched_mark(&s->values, user)) VEC_PUSH(s->scratch, &open, graph_get(s->g, user)->first_use);
        } else if (s->group_of[user] >= 0 && sched_mark(&s->of_groups, (uint32_t)s->group_of[user])) {
            VEC_PUSH(s->a, &s->readers, s->group_of[user]);
        }
    }
}

static bool is_cast(const node *n) { return op_get((op_code)n->op)->cls == CL_CAST; }

static bool is_compute(const node *n) {
    op_class c = op_get((op_code)n->op)->cls;
    return op_is_elementwise((op_code)n->op) || c == CL_CAST || c == CL_REDUCE || c == CL_ARG || c == CL_DOT ||
           c == CL_GATHER || c == CL_RANDOM;
}

/* Contraction inside: its rows must cover the batch and left axes, so that the right axis is one run of memory. */
static bool dot_rows_ok(const sched *s, const analysis *an) {
    for (int i = 0; i < an->visits.n; i++) {
        const visit *x = &an->visits.at[i];
        const node *n = graph_get(s->g, x->v);
        if (n->op != OP_dot) continue;
        int lead = graph_get(s->g, n->in[0])->rank - (int)n->attr[1];
        int64_t right = 1;
        for (int d = 0; d < n->rank; d++) {
            affine e = x->idx[d];
            bool row = n->dims[d] == 1;
            for (int t = 0; t < e.n && !row; t++) row = e.t[t].var < an->n_root_vars && an->alive[e.t[t].var];
            if (!row && d < lead) return false;
            if (!row) right *= graph_dim_most(s->g, n->dims[d]);
        }
        if (right > WIDE_ROW) return false;
    }
    return true;
}

/* Both operands of the contraction inside are large: beside other sums neither is packed, and one of them is read again for
 * every few rows of the other. */
static bool reads_from_afar(const sched *s, const analysis *an) {
    for (int i = 0; i < an->visits.n; i++) {
        const node *n = graph_get(s->g, an->visits.at[i].v);
        if (n->op == OP_dot && graph_elems(s->g, n->in[0]) >= FAR_OPERAND && graph_elems(s->g, n->in[1]) >= FAR_OPERAND)
            return true;
    }
    return false;
}

/* The contraction inside multiplies bytes: without panels of words they are multiplied one by one. */
static bool multiplies_bytes(const sched *s, const analysis *an) {
    if (!s->opts.t || !s->opts.t->packed) return false;
    for (int i = 0; i < an->visits.n; i++) {
        const node *n = graph_get(s->g, an->visits.at[i].v), *x = graph_get(s->g, n->in[0]);
        if (n->op == OP_dot && n->dtype == TN_I32 && is_cast(x) && dtype_size((tn_dtype)graph_get(s->g, x->in[0])->dtype) == 1)
            return true;
    }
    return false;
}

/* Operations on an element of v, down to what is stored or has loops of its own; *dot: that is a contraction, in whose result's
 * place v would be stored. */
static int64_t flops_of(const sched *s, val v, int steps, bool *dot) {
    const node *n = graph_get(s->g, v);
    int64_t flops = 0;
    *dot |= n->op == OP_dot;
    if (op_is_move((op_code)n->op) && steps) return flops_of(s, n->in[0], steps - 1, dot);
    if (!(op_is_elementwise((op_code)n->op) || is_cast(n)) || !steps) return 0;
    for (int i = 0; i < n->n_in; i++)
        if (s->place[n->in[i]] == PLACE_NONE) flops += flops_of(s, n->in[i], steps - 1, dot);
    return flops + op_get((op_code)n->op)->flops;
}

/* The kernel reads v at many places, each of which would compute it: a norm before Winograd's transform of an image, say. */
static bool repeats_work(const sched *s, val v, val root, const analysis *after) {
    int64_t places = 0, again, once, flops;
    bool dot = false;
    if (op_is_move((op_code)graph_get(s->g, v)->op)) return false;
    for (int i = 0; i < after->visits.n; i++) places += after->visits.at[i].v == v;
    if (places < MANY_PLACES) return false;
    flops = flops_of(s, v, NEAR, &dot);
    return size_mul(places * flops, graph_elems(s->g, root), &again) &&
           size_mul(flops + (dot ? 0 : TRIP_FLOPS), graph_elems(s->g, v), &once) && again > once;
}

/* A border of a run's size that strides set apart: which neighbours of the result lie in it is found one by one, where what is
 * stored with its border is read as vectors. */
static bool scatters_border(const sched *s, const node *n, const analysis *after) {
    int last = n->rank - 1;
    if (n->op != OP_pad || s->opts.rows_only || last < 0 || ext_is_lit(n->dims[last])) return false;
    for (int i = 0; i < after->visits.n; i++)
        if (graph_get(s->g, after->visits.at[i].v) == n &&
            affine_coef(after->visits.at[i].idx[last], after->n_root_vars - 1) > 1)
            return true;
    return false;
}

static const char *cost_objection(const sched *s, val root, const node *n, const group *before, const analysis *after) {
    if (after->n_dots > 1) return "one contraction a kernel: each gets its own tiles";
    if (after->n_dots && !dot_rows_ok(s, after)) return "the contraction would lose its rows";
    if (after->packs && after->n_reduces) return "beside other sums a contraction packs no operand";
    if (after->n_dots && after->n_reduces && !s->opts.rows_only && multiplies_bytes(s, after))
        return "beside other sums bytes are multiplied one by one";
    if (after->n_dots && after->n_reduces && !s->opts.rows_only && reads_from_afar(s, after))
        return "beside other sums a contraction packs no operand, and both are large";
    if (!s->opts.rows_only && after->n_reduces > 1 && sched_is_running(s, n, 2))
        return "what each row begins with, row by row, takes lanes apart";
    if (after->rows < before->rows && after->rows < FEW_ROWS && after->work > SMALL_WORK)
        return "too few rows would be left to share out";
    if (after->loops > MANY_LOOPS && after->loops > before->loops) /* such as the norm of all gradients; lowering adds some */
        return "the kernel has many loops already";
    if (s->opts.rows_only && after->n_dots && after->n_reduces && after->work > TILED_WORK)
        return "beside other sums a contraction has no tiles";
    int64_t sums = op_get((op_code)n->op)->cls == CL_REDUCE;
    for (int i = 0; i < n->rank && sums; i++) sums *= graph_dim_most(s->g, n->dims[i]);
    if (s->opts.rows_only && after->rows < FEW_ROWS && sums >= FEW_ROWS && after->work > SMALL_WORK)
        return "one row would have all of these sums";
    if (s->opts.rows_only && op_get((op_code)graph_get(s->g, root)->op)->cls == CL_REDUCE && after->rows < FEW_BLOCKS &&
        graph_elems(s->g, root) >= FEW_ROWS * after->rows && after->work > BLOCK_WORK * after->rows)
        return "a few rows would have all of these sums";
    if (after->n_dots && n->op == OP_dot && after->rows < before->rows && after->n_reduces && s->opts.fusion < 2)
        return "fusion level";
    return NULL;
}

static const char *level_objection(const sched *s, val v) {
    const node *n = graph_get(s->g, v);
    if (op_is_move((op_code)n->op)) return NULL;
    if (s->opts.fusion == 0) return "fusion level 0 fuses nothing";
    if (s->opts.fusion >= 2) return NULL;
    val user = s->g->uses.at[n->first_use - 1].user; /* level 1: elementwise onto the op before it */
    const node *u = graph_get(s->g, user);
    if (!op_is_elementwise((op_code)u->op) || !graph_same_shape(s->g, v, user))
        return "fusion level 1 fuses elementwise ops with the op before them";
    if (op_get((op_code)n->op)->cls == CL_REDUCE || op_get((op_code)n->op)->cls == CL_ARG)
        return "fusion level 1 leaves reductions alone";
    return NULL;
}

/* Updates that are gathered and scaled, say, row by row: the scatter's inner loop has vectors of them. What reads the base
 * would keep it from being written in place. */
static bool scatter_takes(const sched *s, val root, val v) {
    const node *n = graph_get(s->g, v), *to = graph_get(s->g, root);
    const op_class cls = op_get((op_code)n->op)->cls;
    bool cheap = op_is_elementwise((op_code)n->op) && op_get((op_code)n->op)->flops <= 1;
    if (s->opts.rows_only || v == to->in[0] || v == to->in[1] || to->attr[0] != to->attr[1]) return false;
    if (!cheap && cls != CL_GATHER && n->op != OP_reshape && n->op != OP_expand) return false;
    if (to->rank < 2 || graph_dim_most(s->g, to->dims[to->rank - 1]) < 16) return false;
    const val base = sched_behind_moves(s, to->in[0]);
    for (int i = 0; i < n->n_in && graph_get(s->g, base)->op != OP_const; i++)
        if (sched_behind_moves(s, n->in[i]) == base) return false;
    for (uint32_t u = n->first_use; u; u = s->g->uses.at[u - 1].next) { /* gathers take from memory */
        const use *by = &s->g->uses.at[u - 1];
        if (by->slot == 0 && graph_get(s->g, by->user)->op == OP_gather) return false;
    }
    return true;
}

static bool try_inside(sched *s, val v, int gi) {
    const node *n = graph_get(s->g, v);
    group *gr = &s->groups.at[gi];
    val root = gr->roots.at[0];
    const char *no = level_objection(s, v);
    if (no) return sched_decide(s, v, root, false, no);
    if (op_get((op_code)graph_get(s->g, root)->op)->cls == CL_SCATTER) {
        if (!scatter_takes(s, root, v)) return sched_decide(s, v, root, false, "a scatter reads memory");
        s->place[v] = PLACE_INSIDE;
        s->group_of[v] = gi;
        return sched_decide(s, v, root, true, "computed where it is added, never stored");
    }
    const analysis *after;
    bool ok = true;
    if (!gr->known) after = group_keep(s, gi, &ok);
    if (!ok) return sched_decide(s, v, root, false, after->reason);
    group before = *gr;
    s->place[v] = PLACE_INSIDE;
    s->group_of[v] = gi;
    after = group_join(s, gi, v, &ok);
    no = ok ? cost_objection(s, root, n, &before, after) : after->reason;
    if (!no && s->opts.fusion == 1 && after->rows < before.rows && !op_is_move((op_code)n->op))
        no = "fusion level 1 keeps whole kernels elementwise";
    bool repeats = !no && !s->opts.rows_only && repeats_work(s, v, root, after);
    if (repeats) s->materialised[v] = "read at many places: computed once and stored, it is less work";
    if (!no && !repeats && scatters_border(s, n, after))
        repeats = true, s->materialised[v] = "strides would set its border apart, which is found one by one then";
    if (no || repeats) {
        s->place[v] = PLACE_NONE;
        s->group_of[v] = -1;
        *gr = before;
        group_leave(s);
        return repeats ? false : sched_decide(s, v, root, false, no);
    }
    return sched_decide(s, v, root, true, "computed where it is used, never stored");
}

/* A row or a column, say, beside a matrix: no trip through memory to speak of. Looks through views. */
static bool is_small(const sched *s, val v, int64_t elems) {
    for (;; v = graph_get(s->g, v)->in[0]) {
        if (graph_elems(s->g, v) <= elems / SMALL_PART) return true;
        if (!op_is_move((op_code)graph_get(s->g, v)->op)) return false;
    }
}

/* Looks through casts, which are computed again wherever what they cast is in memory. */
static bool in_memory_anyway(const sched *s, val v) {
    for (;; v = graph_get(s->g, v)->in[0]) {
        const node *n = graph_get(s->g, v);
        bool two_users = n->first_use && s->g->uses.at[n->first_use - 1].next;
        if (s->place[v] == PLACE_LEAF || s->place[v] == PLACE_ROOT || two_users) return true;
        if (!is_cast(n) || s->place[v] != PLACE_NONE) return false;
    }
}

/* Few steps from what is stored or has a kernel of its own: values that are computed again do not grow into chains. */
static bool is_near_memory(const sched *s, val v) {
    for (int steps = 0; steps < NEAR; steps++) {
        const node *n = graph_get(s->g, v);
        if (s->place[v] == PLACE_LEAF || s->place[v] == PLACE_ROOT) return true;
        if (!op_is_elementwise((op_code)n->op) && !is_cast(n) && !op_is_move((op_code)n->op)) return true;
        val large = n->in[0];
        for (int i = 1; i < n->n_in; i++)
            if (graph_elems(s->g, n->in[i]) > graph_elems(s->g, large)) large = n->in[i];
        v = large;
    }
    return false;
}

/* A contraction takes it, perhaps converted, in another order or with arithmetic that is not stored: it would be computed for
 * each of its sums. More than MANY_USES of them count as one. */
static bool is_operand(sched *s, val v) {
    VEC(val) open = { 0 };
    arena_reset(s->scratch);
    sched_unmark(&s->values);
    for (int at = -1; at < open.n; at++) {
        if (at >= 0) v = open.at[at];
        for (uint32_t u = graph_get(s->g, v)->first_use; u; u = s->g->uses.at[u - 1].next) {
            val user = s->g->uses.at[u - 1].user;
            const node *n = graph_get(s->g, user);
            bool stored = s->place[user] == PLACE_ROOT || s->place[user] == PLACE_LEAF,
                 passed_on = is_cast(n) || op_is_move((op_code)n->op) || (op_is_elementwise((op_code)n->op) && !stored);
            if (n->op == OP_dot) return true;
            if (!passed_on || !sched_mark(&s->values, user)) continue;
            VEC_PUSH(s->scratch, &open, user);
            if (open.n > MANY_USES) return true;
        }
    }
    return false;
}

/* One number that more than one is computed with: every thread would compute it again, for none of the loads that it saves. */
static bool is_shared_number(const sched *s, val v, const int_list *groups) {
    bool shared = false;
    for (int i = 0; i < groups->n && graph_elems(s->g, v) == 1; i++)
        shared |= graph_elems(s->g, s->groups.at[groups->at[i]].roots.at[0]) > 1;
    return shared;
}

/* v is computed from that value, constants and small ones alone, by few operations. */
static bool is_computed_from(const sched *s, val v, val from) {
    val open[NEAR + 1] = { v };
    int n_open = v != from;
    bool found = v == from;
    for (int at = 0; at < n_open; at++) {
        const node *n = graph_get(s->g, open[at]);
        if (s->place[open[at]] != PLACE_NONE || (!op_is_elementwise((op_code)n->op) && !is_cast(n))) return false;
        for (int i = 0; i < n->n_in; i++) {
            val x = n->in[i];
            bool known = x == from || (s->place[x] == PLACE_EVERYWHERE && !graph_get(s->g, x)->n_in) ||
                         is_small(s, x, graph_elems(s->g, open[at]));
            found |= x == from;
            for (int k = 0; k < n_open; k++) known |= open[k] == x;
            if (known) continue;
            if (n_open > NEAR) return false;
            open[n_open++] = x;
        }
    }
    return found;
}

/* Another operand of n is computed from operand i: f(x) beside x loads x alone. */
static bool is_loaded_beside(const sched *s, const node *n, int i) {
    for (int k = 0; k < n->n_in; k++) {
        val x = n->in[k];
        if (x != n->in[i] && s->place[x] == PLACE_NONE && is_computed_from(s, x, n->in[i])) return true;
    }
    return false;
}

/* Views, and at level 3 values that cost no more to compute than to load: one operand in memory, little arithmetic. A small
 * operand more is let pass where the large one is in memory anyway and no contraction, which reads its operands many times,
 * is among the users: what is normalised by the columns of a batch. */
static bool cheap_everywhere(sched *s, val v, const int_list *groups) {
    const node *n = graph_get(s->g, v);
    if (op_is_move((op_code)n->op)) return true;
    if (s->opts.fusion < 3 || !(op_is_elementwise((op_code)n->op) || is_cast(n))) return false;
    int loads = 0;
    bool dots = false, small = false, anyway = true;
    for (int i = 0; i < groups->n; i++) dots |= s->groups.at[groups->at[i]].n_dots > 0;
    if (!is_cast(n) && op_get((op_code)n->op)->flops > 2 &&
        ((dots && is_operand(s, v)) || is_shared_number(s, v, groups) || !is_near_memory(s, v) ||
         !sched_computes_again(s, v, groups->n)))
        return false;
    for (int i = 0; i < n->n_in; i++) {
        if (s->place[n->in[i]] == PLACE_EVERYWHERE || (i && n->in[i] == n->in[0] && !(dots && is_operand(s, v)))) continue;
        if (!dots && is_small(s, n->in[i], graph_elems(s->g, v))) {
            small = true;
            continue;
        }
        if (is_loaded_beside(s, n, i)) continue;
        loads++;
        anyway = in_memory_anyway(s, n->in[i]);
        if (dtype_size((tn_dtype)graph_get(s->g, n->in[i])->dtype) > dtype_size((tn_dtype)n->dtype) * 4) return false;
    }
    return loads <= 1 && (anyway || !small);
}

static bool try_everywhere(sched *s, val v, const int_list *groups) {
    if (!cheap_everywhere(s, v, groups)) return false;
    group_forget(s);
    s->place[v] = PLACE_EVERYWHERE;
    for (int i = 0; i < groups->n; i++) {
        analysis an;
        group *gr = &s->groups.at[groups->at[i]];
        int n_splits = gr->splits.n;
        bool scatter = op_get((op_code)graph_get(s->g, gr->roots.at[0])->op)->cls == CL_SCATTER;
        arena_reset(s->scratch);
        if (!scatter && group_analyse(s, groups->at[i], s->scratch, &an)) continue;
        gr->splits.n = n_splits;
        s->place[v] = PLACE_NONE;
        for (int k = 0; k <= i; k++) s->groups.at[groups->at[k]].known = false;
        return false;
    }
    sched_decide(s, v, 0, true, "computed again in each kernel that uses it: cheaper than a trip through memory");
    return true;
}

/* The contraction that v is computed from element by element, and nothing else is; or 0. */
static val contraction_of(const sched *s, val v) {
    const node *n = graph_get(s->g, v);
    if (!op_is_elementwise((op_code)n->op) && !is_cast(n)) return 0;
    for (int i = 0; i < n->n_in; i++) {
        const node *x = graph_get(s->g, n->in[i]);
        bool alone = x->first_use && !s->g->uses.at[x->first_use - 1].next && !graph_is_output(s->g, n->in[i]);
        if (x->op == OP_dot && alone && !s->materialised[n->in[i]] &&
            dtype_size((tn_dtype)n->dtype) <= dtype_size((tn_dtype)x->dtype))
            return n->in[i];
    }
    return 0;
}

/* v has joined group gi, whose loops its contraction cannot have: then v is better done with the contraction's result, one of
 * which is stored either way. */
static bool try_with_contraction(sched *s, val v, int gi, int n_splits) {
    val dot = contraction_of(s, v), root = s->groups.at[gi].roots.at[0];
    int n_decisions = s->p->decisions.n - 1; /* without that v has joined */
    if (!dot || try_inside(s, dot, gi)) return true;
    s->place[v] = PLACE_NONE, s->group_of[v] = -1;
    group_forget(s);
    s->groups.at[gi].splits.n = n_splits, s->groups.at[gi].known = false, s->p->decisions.n = n_decisions;
    return sched_decide(s, v, root, false, "done with the result of its contraction: one of them is stored either way");
}

/* An output that is a concat, or the result of elementwise ops, in another shape. The parts of a concat have kernels of their
 * own either way. The kernel of elementwise ops has the loops of the value, among which its sums have rows (groups of
 * channels). Where what lies side by side there is less than a line of a cache, the loops of the output are better: they go
 * along memory. */
static bool is_output_view(const sched *s, val v) {
    const node *n = graph_get(s->g, v), *x = graph_get(s->g, n->in[0]);
    int times = 0;
    for (const node *y = n;; y = x) { /* the outputs of v, then those of its operand */
        for (int i = y->first_out; i; i = s->g->outputs.at[i - 1].next, times++)
            if (s->g->outputs.at[i - 1].state) return false;
        if (y == x) break;
    }
    bool alone = x->first_use && !s->g->uses.at[x->first_use - 1].next;
    if (times == 1 && alone && x->op == OP_concat && !s->materialised[v]) return true;
    return times == 1 && alone && op_is_elementwise((op_code)x->op) && !s->materialised[v] && x->rank > 0 &&
           graph_dim_most(s->g, x->dims[x->rank - 1]) * (int64_t)dtype_size((tn_dtype)x->dtype) >= MACHINE_LINE_BYTES;
}

/* ---- parts of a concat: each is written where it belongs, by kernels of one part or several ---- */

typedef struct open_concat { /* its parts are being listed */
    val v;
    int next;            /* part */
    ext at[TN_MAX_RANK]; /* where that begins */
} open_concat;

static void list_parts(sched *s, val concat, val_list *out) {
    VEC(open_concat) open = { 0 };
    VEC_PUSH(s->scratch, &open, (open_concat){ .v = concat });
    while (open.n) {
        open_concat *o = &open.at[open.n - 1], inner = { 0 };
        const node *n = graph_get(s->g, o->v);
        if (o->next == n->n_in) {
            open.n--;
            continue;
        }
        val x = n->in[o->next++];
        memcpy(inner.at, o->at, sizeof inner.at);
        ext *at = &o->at[n->attr[0]], size = graph_get(s->g, x)->dims[n->attr[0]];
        *at = ext_add(s->g->params, *at, size);
        if (graph_get(s->g, x)->op == OP_concat) {
            s->place[x] = PLACE_JOINED;
            inner.v = x;
            VEC_PUSH(s->scratch, &open, inner);
        } else {
            s->part_at[x] = arena_copy(s->a, inner.at, sizeof inner.at);
            VEC_PUSH(s->a, out, x);
        }
    }
}

typedef struct kinship { /* which parts need the same values: */
    int *part;           /* [nodes] the one that was found to need a value first, if the value is marked */
    int steps;           /* left to go */
} kinship;
/* Marks what v is made of, element by element, as needed by part `me`. Returns the first other part that needs some of it, or
 * -1.
 */
static int find_kin(sched *s, kinship *f, val v, int me) {
    val_list todo = { 0 }; /* the next one last */
    int kin = -1;
    VEC_PUSH(s->scratch, &todo, v);
    while (todo.n) {
        val x = todo.at[--todo.n];
        const node *n = graph_get(s->g, x);
        if (sched_marked(&s->values, x)) {
            if (kin < 0 && f->part[x] != me) kin = f->part[x];
            continue;
        }
        if (f->steps <= 0 || (n->op == OP_const && n->splat)) continue;
        sched_mark(&s->values, x);
        f->part[x] = me;
        f->steps--;
        if (!(op_is_elementwise((op_code)n->op) || is_cast(n) || op_is_move((op_code)n->op))) continue;
        for (int i = n->n_in - 1; i >= 0; i--) VEC_PUSH(s->scratch, &todo, n->in[i]);
    }
    return kin;
}

/* Parts of equal shape that are made from the same values element by element become results of one kernel at level 3: what they
 * have in common is computed once, and what they read is loaded once. */
static void place_parts(sched *s, val concat) {
    val_list parts = { 0 };
    group_forget(s);
    list_parts(s, concat, &parts);
    kinship f = { .part = s->part_of, .steps = MANY_STEPS };
    sched_unmark(&s->values);
    int *group_of = ARENA_ARRAY(s->scratch, int, parts.n);
    const node *n = graph_get(s->g, concat);
    bool alone = s->opts.fusion < 3 || s->control[n->region] || !ext_is_lit(n->dims[n->attr[0]]);
    for (int i = 0; i < parts.n; i++) {
        val x = parts.at[i];
        int kin = alone ? -1 : find_kin(s, &f, x, i), gi = kin < 0 ? -1 : group_of[kin];
        bool joins =
            gi >= 0 && graph_same_shape(s->g, x, s->groups.at[gi].roots.at[0]) && s->groups.at[gi].roots.n < MOST_PARTS;
        if (joins) {
            val_list *roots = &s->groups.at[gi].roots;
            VEC_PUSH(s->a, roots, x);
            for (int j = roots->n - 1; j > 0 && roots->at[j] < roots->at[j - 1]; j--) {
                val t = roots->at[j];
                roots->at[j] = roots->at[j - 1], roots->at[j - 1] = t;
            }
            s->place[x] = PLACE_ROOT, s->group_of[x] = gi;
            sched_decide(s, x, concat, true, "parts of one array that are made from the same values: one kernel");
        } else {
            gi = new_group(s, x);
            s->groups.at[gi].dest = concat;
        }
        group_of[i] = gi;
    }
}

static void place_value(sched *s, val v) {
    const node *n = graph_get(s->g, v);
    s->readers.n = 0;
    sched_unmark(&s->values), sched_unmark(&s->of_groups);
    reading_groups(s, v);
    const int_list groups = s->readers;
    bool own_kernel =
        s->materialised[v] || graph_is_output(s->g, v) || op_get((op_code)n->op)->cls == CL_SCATTER || n->op == OP_concat;
    if (!own_kernel && groups.n == 0) return; /* nothing reads it */
    if (!own_kernel && groups.n == 1 && (op_is_move((op_code)n->op) || is_compute(n))) {
        int n_splits = s->groups.at[groups.at[0]].splits.n;
        if (is_cast(n) && s->opts.fusion >= 2 && s->groups.at[groups.at[0]].n_dots && sched_belongs_to_sums(s, n)) {
            s->materialised[v] = "bytes made of the sums of another contraction: they are what takes the least memory";
            own_kernel = true;
        } else if (try_inside(s, v, groups.at[0])) {
            if (try_with_contraction(s, v, groups.at[0], n_splits)) return;
            own_kernel = true;
        }
        own_kernel = own_kernel || s->materialised[v];
    }
    if (!own_kernel && try_everywhere(s, v, &groups)) return;
    if (groups.n > 1 && !own_kernel) sched_decide(s, v, 0, false, "several kernels use it");
    if (s->materialised[v]) sched_decide(s, v, 0, false, s->materialised[v]);
    if (n->op == OP_concat) sched_decide(s, v, 0, false, "a concat is stored: kernels write its parts where they belong");
    if (op_get((op_code)n->op)->cls == CL_SCATTER) sched_decide(s, v, 0, false, "a scatter goes to what is in memory");
    if (graph_is_output(s->g, v)) sched_decide(s, v, 0, false, "an output of the graph");
    if (n->op == OP_concat) {
        s->place[v] = PLACE_ROOT;
        place_parts(s, v);
        return;
    }
    if ((n->op == OP_reshape && (!graph_is_output(s->g, v) || is_output_view(s, v))) ||
        (n->op == OP_again && !graph_is_output(s->g, v))) { /* the same bytes under another name */
        s->place[v] = PLACE_ALIAS;
        group_forget(s);
        if (s->place[n->in[0]] == PLACE_NONE)
            s->materialised[n->in[0]] = "its bytes are also those of a view that is read from memory";
        if (s->place[n->in[0]] != PLACE_EVERYWHERE) return;
    }
    new_group(s, v);
}

void sched_fuse(sched *s) {
    for (val v = 1; v < (val)s->g->nodes.n; v++) {
        const node *n = graph_get(s->g, v);
        s->group_of[v] = -1;
        if ((n->op == OP_const && n->splat) || n->op == OP_iota)
            s->place[v] = s->materialised[v] ? PLACE_NONE : PLACE_EVERYWHERE;
        else if (op_get((op_code)n->op)->cls == CL_SOURCE || op_get((op_code)n->op)->cls == CL_CTRL)
            s->place[v] = PLACE_LEAF;
    }
    for (val v = (val)s->g->nodes.n - 1; v > 0; v--)
        if (s->place[v] == PLACE_NONE) place_value(s, v);
    for (int i = 0; i < s->groups.n; i++) {
        analysis an;
        arena_reset(s->scratch);
        group_analyse(s, i, s->scratch, &an);
    }
    if (s->opts.fusion >= 3) sched_merge(s);
}
