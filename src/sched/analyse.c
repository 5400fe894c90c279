/* analyse.c - can a group be one kernel, and which loops do its members share? Walks from the roots to the leaves with symbolic
 * indices.
 *
 * In: a group of sched.h. Out: an analysis: every place where an inside value is read, and the root axes that may be rows. A
 * reshape that cuts a loop in two adds a split to the group and the walk starts again. Nothing is written to the plan. A walk
 * may be kept: when a value joins the group, it goes on where it had stopped. */
#include "sched/sched.h"

enum { MAX_SPLITS = 12, MAX_VISITS = 1024 };
/* Times that a contraction reads an element of what is padded: below it, a loop in pieces costs less than the padded image.
 * With many reads only where the border is a small part, because its rows are one thread's, and on GPUs not at all: they check
 * in each load. */
enum { FEW_READS = 64, MANY_READS = 300, SMALL_BORDER = 32 };
/* Times that a contraction may read what is computed as it is loaded (a tile of rows has all of them); work on an element;
 * elements below which a kernel of its own costs nothing. */
enum { PACKED_COLUMNS = 16 /* of the result, at least */ };
enum { SOFTMAX_STEPS = 5 /* from the sums of its rows to what it is read by */ };
enum { SUM_STEPS = 16 /* from integer sums to the bytes that are made of them */ };
enum { PROLOGUE_READS = 4, SCALE_READS = 64, PROLOGUE_FLOPS = 2, PROLOGUE_ELEMS = 4096 };

typedef struct pending { /* of a value, not walked yet */
    val v;
    const affine *idx;
    bool under_dot, masked;
    int64_t dot_work; /* multiply-adds of the innermost contraction around it */
    prologue_use use; /* by a contraction that packs it if that pays: the operand with the columns of the result; else 0 */
} pending;
typedef struct stop { /* where a kept walk stopped: at a value that is not inside, or at what takes it as it lies */
    pending at;
    val of;
    int next; /* the one before of its bucket: number + 1, 0 = none */
} stop;
struct walk {
    sched *s;
    group *gr;
    int gi;
    analysis *an;
    arena *keep;       /* of the splits, which outlive the analysis */
    bool again;        /* a split was added */
    VEC(pending) todo; /* the next one last */
    struct kept {      /* of a kept walk */
        analysis an;
        VEC(stop) stops;
        int bucket[VISIT_BUCKETS];
    } * kept, before; /* NULL: it is not; before a value joined */
    int n_vars;       /* then; -1: it cannot be undone */
};
typedef struct walk walk;

/* Work of tensors too large to be computed is as much as can be counted. */
static int64_t times(int64_t a, int64_t b) { return size_mul(a, b, &a) ? a : INT64_MAX; }
static void add_work(analysis *an, int64_t n) {
    if (!size_add(an->work, n, &an->work)) an->work = INT64_MAX;
}

affine group_axis_vars(sched *s, group *gr, kernel *k, split_list *var_of, val owner, int axis, ext extent, const char *name,
                       bool row, bool reduce) {
    if (extent == 1) return affine_const(0);
    exts *t = k->params;
    ext cuts[MAX_SPLITS + 2]; /* strides at which the axis is cut, descending, ending in 1 */
    int n = 0;
    for (int i = 0; i < gr->splits.n; i++)
        if (gr->splits.at[i].node == owner && gr->splits.at[i].axis == axis) cuts[n++] = gr->splits.at[i].inner;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && (t ? ext_never_less(t, cuts[j], cuts[j - 1]) : cuts[j] > cuts[j - 1]); j--) {
            ext old = cuts[j];
            cuts[j] = cuts[j - 1], cuts[j - 1] = old;
        }
    cuts[n++] = 1;
    affine sum = affine_const(0);
    ext whole = extent, outer = 0;
    for (int i = 0; i < n; i++) {
        if (!t)
            outer = whole / cuts[i];
        else if (!ext_divides(t, whole, cuts[i], &outer))
            guard_fail(s->a->gd, TN_ERR_INTERNAL, "%%%u: axis %d is split at what does not divide it", owner, axis);
        kvar v = kernel_var(k, name, outer, row, reduce);
        VEC_PUSH(k->a, var_of, (split){ owner, axis, cuts[i] });
        affine own = affine_var(s->a, v);
        sum = view_plus(k, sum, own, cuts[i]);
        whole = cuts[i];
    }
    return sum;
}

void group_root_index(sched *s, group *gr, int r, kernel *k, split_list *var_of, affine *out) {
    val first = gr->roots.at[0], root = gr->roots.at[r];
    const node *n0 = graph_get(s->g, first), *n = graph_get(s->g, root);
    for (int i = 0; i < n->rank; i++) {
        if (r == 0) {
            out[i] = group_axis_vars(s, gr, k, var_of, first, i, n->dims[i], "i", false, false);
        } else if (n->rank == n0->rank && n->dims[i] == n0->dims[i] && n->dims[i] != 1) { /* the first root's variables again */
            out[i] = affine_const(0);
            for (kvar v = 0; v < k->vars.n; v++)
                if (var_of->at[v].node == first && var_of->at[v].axis == i)
                    out[i] = view_plus(k, out[i], affine_var(s->a, v), var_of->at[v].inner);
        } else {
            out[i] = group_axis_vars(s, gr, k, var_of, root, i, n->dims[i], "j", false, false);
        }
    }
}

static bool fail(walk *w, val materialise, const char *text) {
    w->an->reason = text;
    w->an->materialise = materialise;
    return false;
}

static bool add_split(walk *w, view_fail f) {
    if (f.inner == 0 || w->gr->splits.n >= MAX_SPLITS) return false;
    split owner = w->an->var_of.at[f.var];
    exts *t = w->an->k->params;
    split cut = { owner.node, owner.axis, t ? ext_mul(t, owner.inner, f.inner) : owner.inner * f.inner };
    ext q;
    for (int i = 0; i < w->gr->splits.n; i++) {
        split *o = &w->gr->splits.at[i];
        if (o->node != cut.node || o->axis != cut.axis) continue;
        bool nest = t ? ext_divides(t, o->inner, cut.inner, &q) || ext_divides(t, cut.inner, o->inner, &q)
                      : o->inner % cut.inner == 0 || cut.inner % o->inner == 0;
        if (o->inner == cut.inner || !nest) return false;
    }
    VEC_PUSH(w->keep, &w->gr->splits, cut);
    w->again = true;
    return true;
}

static uint64_t vars_of(affine x) {
    uint64_t m = 0;
    for (int i = 0; i < x.n; i++) m |= 1ull << x.t[i].var;
    return m;
}

/* x runs over a whole axis of this extent, by root variables alone: one, or the parts of a split axis. */
static bool is_whole_axis(const analysis *an, affine x, int64_t extent) {
    exts *p = an->k->params;
    ext covered = 1;
    if (x.base || x.n == 0) return false;
    for (int t = x.n - 1; t >= 0; t--) {
        if (x.t[t].coef != covered || x.t[t].var >= an->n_root_vars) return false;
        ext own = an->k->vars.at[x.t[t].var].extent;
        covered = p ? ext_mul(p, covered, own) : covered * own;
    }
    return covered == extent;
}

static void kill_rows(analysis *an, affine x) {
    for (int t = 0; t < x.n; t++)
        if (x.t[t].var < an->n_root_vars) an->alive[x.t[t].var] = false;
}

/* The kept index of a reduction or contraction decides which root variables can stay rows: those that run over one of its axes.
 */
static void narrow_rows(walk *w, val u, const affine *idx) {
    analysis *an = w->an;
    const node *n = graph_get(w->s->g, u);
    for (kvar v = 0; v < an->n_root_vars; v++) {
        int axes = 0;
        bool whole = true;
        for (int i = 0; i < n->rank; i++) {
            if (affine_coef(idx[i], v) == 0) continue;
            axes++;
            whole = whole && is_whole_axis(an, idx[i], n->dims[i]);
            if (whole && idx[i].n > 1) VEC_PUSH(w->s->a, &an->joint, vars_of(idx[i]));
        }
        if (axes != 1 || !whole) an->alive[v] = false;
    }
    for (int i = an->bucket[u % VISIT_BUCKETS]; i; i = an->visits.at[i - 1].next) {
        const visit *x = &an->visits.at[i - 1]; /* read at two places: at most the axes where both agree are rows */
        for (int d = 0; x->v == u && d < n->rank; d++)
            if (!affine_equal(x->idx[d], idx[d])) kill_rows(an, x->idx[d]), kill_rows(an, idx[d]);
    }
}

/* Memory that this kernel itself writes, seen through reshapes. */
static bool is_own_root(const walk *w, val v) {
    while (w->s->place[v] == PLACE_ALIAS) v = graph_get(w->s->g, v)->in[0];
    return w->s->place[v] == PLACE_ROOT && w->s->group_of[v] == w->gi;
}

static bool stops_at(walk *w, pending at, val of) {
    if (!w->kept) return true;
    int *bucket = &w->kept->bucket[of % VISIT_BUCKETS];
    VEC_PUSH(w->s->a, &w->kept->stops, (stop){ at, of, *bucket });
    *bucket = w->kept->stops.n;
    return true;
}

/* Values are walked from the top of a stack: operands are put there from the last one to the first. */
static bool walk_later(walk *w, pending x) {
    VEC_PUSH(w->s->a, &w->todo, x);
    return true;
}

static const affine *anchor_operand_index(walk *w, val v, const affine *idx) {
    const node *n = graph_get(w->s->g, v), *x = graph_get(w->s->g, n->in[0]);
    uint64_t axes = op_get((op_code)n->op)->cls == CL_ARG ? 1ull << n->attr[0] : (uint64_t)n->attr[0];
    affine *in = ARENA_ARRAY(w->s->a, affine, x->rank + 1);
    for (int i = 0; i < x->rank; i++)
        in[i] = (axes >> i & 1) ? group_axis_vars(w->s, w->gr, w->an->k, &w->an->var_of, v, i, x->dims[i], "r", false, true)
                                : idx[i];
    return in;
}

static bool walk_reduce(walk *w, val v, const affine *idx, int64_t dot_work) {
    const node *n = graph_get(w->s->g, v);
    w->an->n_reduces++;
    add_work(w->an, graph_elems(w->s->g, n->in[0]));
    narrow_rows(w, v, idx);
    return walk_later(w, (pending){ .v = n->in[0], .idx = anchor_operand_index(w, v, idx), .dot_work = dot_work });
}

/* Splits a dot's index into those of its operands; contraction axes get the variables in kv. */
void dot_operand_index(const graph *g, val v, const affine *idx, const affine *kv, affine *ia, affine *ib) {
    const node *n = graph_get(g, v), *x = graph_get(g, n->in[0]), *y = graph_get(g, n->in[1]);
    int nb = (int)n->attr[0], nc = (int)n->attr[1], at = nb;
    const int64_t *ba = n->attr + 2, *bb = ba + nb, *ca = bb + nb, *cb = ca + nc;
    uint32_t used_a = 0, used_b = 0;
    for (int i = 0; i < nb; i++) {
        ia[ba[i]] = ib[bb[i]] = idx[i];
        used_a |= 1u << ba[i], used_b |= 1u << bb[i];
    }
    for (int i = 0; i < nc; i++) {
        ia[ca[i]] = ib[cb[i]] = kv[i];
        used_a |= 1u << ca[i], used_b |= 1u << cb[i];
    }
    for (int i = 0; i < x->rank; i++)
        if (!(used_a >> i & 1)) ia[i] = idx[at++];
    for (int i = 0; i < y->rank; i++)
        if (!(used_b >> i & 1)) ib[i] = idx[at++];
}

/* Whether v is made of a reduction in a few steps, as a softmax is. */
static bool is_of_rows(const graph *g, val v, int steps) {
    const node *n = graph_get(g, v);
    op_class c = op_get((op_code)n->op)->cls;
    if (c == CL_REDUCE || steps == 0) return c == CL_REDUCE;
    if (!op_is_elementwise((op_code)n->op) && n->op != OP_cast && !op_is_move((op_code)n->op)) return false;
    for (int i = 0; i < n->n_in; i++)
        if (is_of_rows(g, n->in[i], steps - 1)) return true;
    return false;
}

/* Whether contraction v of several matrices may go by blocks of rows with what is before or behind it (sched/row_block.c), as
 * attention does: each block would compute an operand again. A sum of all its matrices goes by no rows of one. */
static bool goes_by_rows(const walk *w, val v) {
    const graph *g = w->s->g;
    const int64_t matrices = graph_get(g, v)->attr[0];
    if (matrices == 0) return false;
    for (int i = 0; i < w->gr->roots.n; i++)
        for (uint32_t u = graph_get(g, w->gr->roots.at[i])->first_use; u; u = g->uses.at[u - 1].next) {
            const node *user = graph_get(g, g->uses.at[u - 1].user);
            if (op_get((op_code)user->op)->cls == CL_REDUCE && user->attr[0] >> matrices) return true;
        }
    return is_of_rows(g, graph_get(g, v)->in[0], SOFTMAX_STEPS) || is_of_rows(g, graph_get(g, v)->in[1], SOFTMAX_STEPS);
}

/* How contraction v uses operand `in` if it can be packed: vectors run along the result's innermost loop, which is one of the
 * n free axes of v from `first` on that this operand brings. Zeros if not. */
static prologue_use packed_use(const walk *w, val v, const affine *idx, int first, int n, int64_t work, val in) {
    const node *x = graph_get(w->s->g, v);
    kvar lanes = w->an->n_root_vars - 1;
    int64_t columns = 1;
    bool along = false;
    for (int i = first; i < first + n && lanes >= 0; i++)
        along |= affine_coef(idx[i], lanes) == 1, columns = times(columns, x->dims[i]);
    return along && columns >= PACKED_COLUMNS ? (prologue_use){ work, graph_elems(w->s->g, in), 0 } : (prologue_use){ 0 };
}

/* Neighbours in the first root, whose loops a processor has, are no neighbours in the result of a contraction. */
static bool is_turned(const walk *w, const node *n, const affine *idx) {
    kvar inner = w->an->n_root_vars - 1;
    int last = n->rank - 1;
    while (inner >= 0 && w->an->k->vars.at[inner].extent == 1) inner--;
    while (last >= 0 && n->dims[last] == 1) last--;
    return inner >= 0 && last >= 0 && affine_coef(idx[last], inner) != 1;
}

static bool walk_dot(walk *w, val v, const affine *idx) {
    const node *n = graph_get(w->s->g, v), *x = graph_get(w->s->g, n->in[0]);
    if (w->s->g->params && !w->s->opts.rows_only && is_turned(w, n, idx)) /* else its operand comes in panels (loop/pack.c) */
        return fail(w, v,
                    "vectors go along the result of a contraction, which lies another way round, and a run gives its sizes");
    int nb = (int)n->attr[0], nc = (int)n->attr[1];
    const int64_t *ca = n->attr + 2 + 2 * nb;
    affine kv[TN_MAX_RANK], *ia = ARENA_ARRAY(w->s->a, affine, TN_MAX_RANK), *ib = ARENA_ARRAY(w->s->a, affine, TN_MAX_RANK);
    int64_t depth = 1;
    for (int i = 0; i < nc; i++) {
        kv[i] = group_axis_vars(w->s, w->gr, w->an->k, &w->an->var_of, v, TN_MAX_RANK + i, x->dims[ca[i]], "k", false, true);
        depth = times(depth, graph_dim_most(w->s->g, x->dims[ca[i]]));
    }
    int64_t work = times(depth, graph_elems(w->s->g, v));
    w->an->n_dots++;
    add_work(w->an, work);
    narrow_rows(w, v, idx);
    dot_operand_index(w->s->g, v, idx, kv, ia, ib);
    int right = x->rank - nc; /* the first free axis of the right operand */
    prologue_use a = { 0 }, b = { 0 };
    if (!goes_by_rows(w, v)) {
        a = packed_use(w, v, idx, nb, right - nb, work, n->in[0]);
        b = packed_use(w, v, idx, right, n->rank - right, work, n->in[1]);
    }
    return walk_later(w, (pending){ n->in[1], ib, true, false, work, b }) &&
           walk_later(w, (pending){ n->in[0], ia, true, false, work, a });
}

/* Whether the contraction around view v, which has a border, reads what is inside of it. Not where vectors of the result would
 * run across the border: they would be cut short there, or checked lane by lane. */
static bool sees_through(const walk *w, val v, int64_t dot_work, const kmask_list *border) {
    const graph *g = w->s->g;
    for (int i = 0; i < border->n && !w->s->opts.rows_only && w->an->n_root_vars; i++)
        if (affine_coef(border->at[i].e, w->an->n_root_vars - 1)) return false;
    int64_t all = graph_elems(g, v), inside = graph_elems(g, graph_get(g, v)->in[0]);
    if (dot_work / FEW_READS <= all) return true;
    return !w->s->opts.rows_only && dot_work / MANY_READS <= all && all - inside <= inside / SMALL_BORDER;
}

/* How many iterations of a contraction's inner loops read each element of what v repeats, one after the other: it is computed
 * before them (loop/hoist.c). Scales of groups are. */
static int64_t repeats_inside(const walk *w, const node *v, const node *of, const affine *idx) {
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++) {
        bool repeats = of->rank == v->rank && of->dims[i] == 1 && v->dims[i] > 1;
        for (int t = 0; t < idx[i].n; t++)
            if (repeats != (bool)w->an->k->vars.at[idx[i].t[t].var].reduce && (repeats || n > 1)) return 1;
        if (repeats) n = times(n, v->dims[i]);
    }
    return n;
}

static bool walk_move(walk *w, pending x) {
    const node *n = graph_get(w->s->g, x.v);
    val u = n->in[0];
    if (n->op == OP_reshape && !sched_inside(w->s, w->gi, u) && !is_own_root(w, u))
        return stops_at(w, x, u); /* memory is flat: any index will do */
    affine *in = ARENA_ARRAY(w->s->a, affine, TN_MAX_RANK);
    kmask_list masks = { 0 };
    view_fail f = { 0 };
    if (!view_operand(w->an->k, w->s->g, x.v, x.idx, in, &masks, &f)) {
        if (add_split(w, f)) return false;
        return fail(w, u, "the reshape between does not keep loops in order");
    }
    if (masks.n && x.under_dot && !sees_through(w, x.v, x.dot_work, &masks)) /* else tiling keeps the checks at the border */
        return fail(w, x.v,
                    "a contraction that reads its operands often does so without bounds checks: the border is made in memory");
    int64_t again = n->op == OP_expand && x.under_dot ? repeats_inside(w, n, graph_get(w->s->g, u), x.idx) : 1;
    x.dot_work /= again, x.use.work /= again, x.use.elems /= again;
    return walk_later(w, (pending){ u, in, x.under_dot, x.masked || masks.n, x.dot_work, x.use });
}

static bool walk_gather(walk *w, pending x) {
    const node *n = graph_get(w->s->g, x.v), *index = graph_get(w->s->g, n->in[1]);
    if (sched_inside(w->s, w->gi, n->in[0]) || is_own_root(w, n->in[0]))
        return fail(w, n->in[0], "gather reads its table at computed places: it must be in memory");
    stops_at(w, x, n->in[0]);
    affine *in = ARENA_ARRAY(w->s->a, affine, TN_MAX_RANK);
    for (int i = 0; i < index->rank; i++) in[i] = x.idx[n->attr[0] + i];
    return walk_later(w, (pending){ n->in[1], in, false, x.masked, x.dot_work, { 0 } });
}

/* A root read back by another root: only at its own row. All roots have the first one's rows. */
static bool walk_root_read(walk *w, val v, const affine *idx) {
    analysis *an = w->an;
    const node *n = graph_get(w->s->g, v);
    narrow_rows(w, v, idx);
    for (int i = 0; i < n->rank; i++)
        for (int t = 0; t < idx[i].n; t++)
            if (idx[i].t[t].var < an->n_root_vars && an->var_of.at[idx[i].t[t].var].axis != i) kill_rows(an, idx[i]);
    return true;
}

/* Work on an operand that the contraction reads so few times that a tile of rows has all of them, or that a GPU computes while
 * memory comes: it is done as the operand is loaded, and what is stored stays as small as it was. Or work that a processor does
 * as it packs the operand. */
static bool is_prologue(const walk *w, pending at) {
    const graph *g = w->s->g;
    const node *n = graph_get(g, at.v);
    int64_t elems = graph_elems(g, at.v);
    if (w->s->opts.fusion < 2 || elems < PROLOGUE_ELEMS) return false;
    const node *by = graph_get(g, n->in[n->n_in - 1]);
    bool scales = w->s->opts.rows_only && n->op == OP_mul && by->op == OP_const && by->splat; /* a GPU does so tile by tile */
    if (op_get((op_code)n->op)->flops <= PROLOGUE_FLOPS && at.dot_work / (scales ? SCALE_READS : PROLOGUE_READS) <= elems)
        return true;
    if (w->s->opts.fusion < 3 || g->params || !at.use.elems || /* nothing is packed in sizes of a run */
        !sched_packs_computed(w->s, (tn_dtype)n->dtype, elems, &at.use))
        return false;
    w->an->packs = true;
    return true;
}

/* Whether a cast makes bytes of what is wider, for a processor that multiplies several at once (loop/packed_dot.c). */
static bool makes_bytes(const sched *s, const node *cast) {
    return s->opts.t && s->opts.t->packed && dtype_size((tn_dtype)cast->dtype) == 1 && cast->dtype != TN_BOOL &&
           dtype_size((tn_dtype)graph_get(s->g, cast->in[0])->dtype) > 1;
}

/* Whether v is made of a contraction of integers in some steps of elementwise work. */
static bool is_of_integer_sums(const graph *g, val v, int steps) {
    for (; steps; steps--) {
        const node *n = graph_get(g, v);
        if (n->op == OP_dot) return n->dtype == TN_I32;
        if (!op_is_elementwise((op_code)n->op) && n->op != OP_cast && n->op != OP_reshape && n->op != OP_permute) return false;
        op_code first = (op_code)graph_get(g, n->in[0])->op;
        v = n->in[n->n_in > 1 && (first == OP_expand || first == OP_const)];
    }
    return false;
}

bool sched_belongs_to_sums(const sched *s, const node *cast) {
    return makes_bytes(s, cast) && is_of_integer_sums(s->g, cast->in[0], SUM_STEPS);
}

static bool walk_value(walk *w, pending at) {
    sched *s = w->s;
    const val v = at.v;
    const affine *idx = at.idx;
    const node *n = graph_get(s->g, v);
    if (!sched_inside(s, w->gi, v)) {
        if (!is_own_root(w, v)) return stops_at(w, at, v);
        if (s->place[v] == PLACE_ALIAS) return fail(w, v, "a result of the kernel is read in another shape");
        return walk_root_read(w, v, idx);
    }
    int *bucket = &w->an->bucket[v % VISIT_BUCKETS];
    for (int i = *bucket; i; i = w->an->visits.at[i - 1].next) {
        const visit *x = &w->an->visits.at[i - 1];
        if (x->v != v || x->under_dot != at.under_dot) continue;
        bool same = true;
        for (int d = 0; d < n->rank && same; d++) same = affine_equal(x->idx[d], idx[d]);
        if (same) return true;
    }
    if (w->an->visits.n > MAX_VISITS) return fail(w, v, "the kernel would be too large");
    VEC_PUSH(s->a, &w->an->visits, (visit){ v, arena_copy(s->a, idx, sizeof *idx * (size_t)n->rank), at.under_dot, *bucket });
    *bucket = w->an->visits.n;
    op_class cls = op_get((op_code)n->op)->cls;
    switch (cls) {
    case CL_MOVE:
        return walk_move(w, at);
    case CL_REDUCE:
    case CL_ARG:
        if (at.under_dot) return fail(w, v, "a contraction would repeat the reduction for every tile");
        if (at.masked) return fail(w, v, "a border lies between");
        return walk_reduce(w, v, idx, at.dot_work);
    case CL_DOT:
        if (at.under_dot) return fail(w, v, "a contraction's operand is read many times: it is kept in memory");
        if (at.masked) return fail(w, v, "a border lies between");
        return walk_dot(w, v, idx);
    case CL_GATHER:
        if (at.under_dot) return fail(w, v, "a contraction would repeat the gather for every tile");
        return walk_gather(w, at);
    case CL_SOURCE:
        return true;
    case CL_RANDOM:
        break;
    case CL_CAST:
        if (at.under_dot && sched_feeds_matrix_units(s, (tn_dtype)n->dtype, graph_elems(s->g, v), at.dot_work))
            return fail(w, v, "matrix units take their operands from memory");
        if (at.under_dot && makes_bytes(s, n))
            return fail(w, v, "bytes are multiplied by words of memory, and take the least there");
        if (at.masked && sched_belongs_to_sums(s, n))
            return fail(w, v, "bytes are made of sums before they are copied into a border");
        add_work(w->an, graph_elems(s->g, v));
        break;
    default:
        if (!op_is_elementwise((op_code)n->op)) return fail(w, v, "an op of this class is its own kernel");
        at.use.flops += op_get((op_code)n->op)->flops;
        if (at.under_dot && sched_feeds_matrix_units(s, (tn_dtype)n->dtype, graph_elems(s->g, v), at.dot_work))
            return fail(w, v, "pairs of bf16 are multiplied by words of memory");
        if (at.under_dot && !is_prologue(w, at)) return fail(w, v, "a contraction would repeat the work for every tile");
        add_work(w->an, graph_elems(s->g, v));
    }
    for (int i = n->n_in - 1; i >= 0; i--)
        walk_later(w, (pending){ n->in[i], idx, at.under_dot, at.masked, at.dot_work, at.use });
    return true;
}

/* A root is walked as if it were inside. */
static bool walk_root(walk *w, int r) {
    val root = w->gr->roots.at[r];
    affine *idx = ARENA_ARRAY(w->s->a, affine, TN_MAX_RANK);
    group_root_index(w->s, w->gr, r, w->an->k, &w->an->var_of, idx);
    if (r == 0) {
        w->an->n_root_vars = w->an->k->vars.n;
        if (w->an->n_root_vars > (int)COUNT_OF(w->an->alive)) return fail(w, root, "too many loops");
        for (int v = 0; v < w->an->n_root_vars; v++) w->an->alive[v] = true;
    } else {
        narrow_rows(w, root, idx);
    }
    add_work(w->an, graph_elems(w->s->g, root));
    uint8_t place = w->s->place[root];
    int of = w->s->group_of[root];
    w->s->place[root] = PLACE_INSIDE, w->s->group_of[root] = w->gi;
    bool ok = true;
    w->todo.n = 0;
    walk_later(w, (pending){ .v = root, .idx = idx });
    while (ok && w->todo.n) ok = walk_value(w, w->todo.at[--w->todo.n]);
    w->s->place[root] = place, w->s->group_of[root] = of;
    return ok;
}

/* All roots, again whenever that shows that a loop has to be split. */
static bool walk_all(sched *s, group *gr, walk *w) {
    analysis *an = w->an;
    do {
        *an = (analysis){ .k = kernel_make(s->a, "analysis"), .rows = 1 };
        an->k->params = s->g->params;
        w->again = false;
        if (w->kept) w->kept->stops.n = 0, memset(w->kept->bucket, 0, sizeof w->kept->bucket);
        bool ok = true;
        if (op_get((op_code)graph_get(s->g, gr->roots.at[0])->op)->cls == CL_SCATTER) { /* its own nests, in order */
            affine none[TN_MAX_RANK];
            group_root_index(s, gr, 0, an->k, &an->var_of, none);
            an->n_root_vars = an->k->vars.n;
            an->work = graph_elems(s->g, gr->roots.at[0]);
        } else {
            for (int r = 0; r < gr->roots.n && ok; r++) ok = walk_root(w, r);
        }
        if (ok) return true;
    } while (w->again);
    return false;
}

/* What the group has, when all of it has been walked. */
static void conclude(const sched *s, group *gr, analysis *an) {
    an->rows = 1;
    /* a split axis is a row only as a whole */
    for (bool changed = true; changed;) {
        changed = false;
        for (kvar v = 0; v < an->n_root_vars; v++)
            for (kvar u = 0; u < an->n_root_vars; u++)
                if (an->alive[v] && !an->alive[u] && an->var_of.at[v].axis == an->var_of.at[u].axis) {
                    an->alive[v] = false;
                    changed = true;
                }
        for (int i = 0; i < an->joint.n; i++) { /* so is an axis of something inside that several root variables make up */
            uint64_t dead = 0;
            for (kvar v = 0; v < an->n_root_vars; v++)
                if ((an->joint.at[i] >> v & 1) && !an->alive[v]) dead = an->joint.at[i];
            for (kvar v = 0; v < an->n_root_vars; v++)
                if ((dead >> v & 1) && an->alive[v]) {
                    an->alive[v] = false;
                    changed = true;
                }
        }
    }
    gr->row_axes = 0;
    for (kvar v = 0; v < an->n_root_vars; v++)
        if (an->alive[v]) {
            gr->row_axes |= 1u << an->var_of.at[v].axis;
            an->rows = times(an->rows, graph_dim_most(s->g, an->k->vars.at[v].extent));
        }
    an->loops = an->k->vars.n;
    gr->n_dots = an->n_dots, gr->n_reduces = an->n_reduces, gr->work = an->work;
    gr->rows = an->rows, gr->loops = an->loops, gr->known = true;
}

bool group_analyse(sched *s, int gi, arena *a, analysis *an) {
    group *gr = &s->groups.at[gi];
    arena *keep = s->a;
    s->a = a;
    gr->known = false;
    bool ok = walk_all(s, gr, &(walk){ .s = s, .gr = gr, .gi = gi, .an = an, .keep = keep });
    s->a = keep;
    if (ok) conclude(s, gr, an);
    return ok;
}

/* ---- kept walks ---- */

void group_forget(sched *s) {
    if (s->walk) s->walk->gi = -1;
}

const analysis *group_keep(sched *s, int gi, bool *out_ok) {
    group *gr = &s->groups.at[gi];
    arena *keep = s->a;
    arena_reset(s->walked);
    s->a = s->walked;
    gr->known = false;
    walk *w = s->walk = ARENA_NEW(s->a, walk);
    *w = (walk){ .s = s, .gr = gr, .gi = gi, .keep = keep, .n_vars = -1, .kept = ARENA_NEW(s->a, struct kept) };
    w->an = &w->kept->an;
    *out_ok = walk_all(s, gr, w);
    s->a = keep;
    if (*out_ok)
        conclude(s, gr, w->an);
    else
        w->gi = -1;
    return w->an;
}

/* Goes on where v was read. The oldest place last, on top. */
static bool walk_on(walk *w, val v) {
    bool ok = true;
    w->todo.n = 0;
    for (int i = w->kept->bucket[v % VISIT_BUCKETS]; i && ok; i = w->kept->stops.at[i - 1].next) {
        const stop x = w->kept->stops.at[i - 1];
        if (x.of != v) continue;
        ok = x.at.v == v                                    ? walk_later(w, x.at)
             : graph_get(w->s->g, x.at.v)->op == OP_reshape ? walk_move(w, x.at)
                                                            : walk_gather(w, x.at);
    }
    while (ok && w->todo.n) ok = walk_value(w, w->todo.at[--w->todo.n]);
    return ok;
}

const analysis *group_join(sched *s, int gi, val v, bool *out_ok) {
    walk *w = s->walk;
    group *gr = &s->groups.at[gi];
    if (!w || w->gi != gi || !gr->known || s->opts.walks_anew) return group_keep(s, gi, out_ok);
    arena *keep = s->a;
    s->a = s->walked;
    gr->known = false;
    w->gr = gr, w->before = *w->kept, w->n_vars = w->an->k->vars.n;
    *out_ok = walk_on(w, v);
    s->a = keep;
    if (*out_ok)
        conclude(s, gr, w->an);
    else if (w->again)
        return group_keep(s, gi, out_ok);
    return w->an;
}

void group_leave(sched *s) {
    walk *w = s->walk;
    if (w->gi < 0 || w->n_vars < 0) {
        w->gi = -1;
        return;
    }
    *w->kept = w->before;
    w->an->k->vars.n = w->n_vars;
}
