/* merge.c - kernels with several results (fusion level 3): groups of elementwise ops with loops of equal extents that share
 * operands, or take parts of the rows of one, become one; so do a product of matrix units and those that take its results.
 *
 * In: groups of fuse.c. Out: the same, some merged into others and dead. For each group the ones that share a value with it
 * come from lists of readers by value. Two groups may not merge when one needs the other by way of a third: an order of all
 * groups, in which a group stands behind those that it needs, is kept right from merge to merge, so that only what stands
 * between the two has to be looked at. */
#include "sched/sched.h"

/* What a group may spend on others that share operands but cannot join it; an analysis that fails costs as much as some of
 * those. Far more than any group of a usual network needs. */
enum { MOST_ROOTS = 8, MANY_TRIES = 256, FAILED_COST = 16, MANY_STEPS = 1 << 12, SMALL_PART = 16 };

typedef struct readers { /* of a value: at reader[from] .. reader[end - 1], ascending */
    int from, end;
} readers;

typedef struct merger {
    sched *s;
    members of;
    val_list *reads;          /* [groups] */
    bool *may;                /* [groups] merge, unless it is dead */
    readers *readers;         /* [nodes] into reader: groups that may merge and go by this value's rows */
    int *reader, *next_alive; /* next_alive: of a dead one, an entry that all entries before are dead up to */
    /* the order: a list with labels that ascend */
    int *before, *behind; /* [groups + 1] the last entry is the list's head */
    int64_t *label;
    /* what the group at `from` needs by way of others, as far as looked at */
    int from, steps;
    marks met, around; /* [groups]: needed; needed by one of those */
    VEC(int) heap;     /* of those met, the one with the largest label first */
    int_list looked;   /* those whose reads were followed */
    val_list concats;  /* whose parts are still to be met */
} merger;

/* ---- facts ---- */

members sched_members(const sched *s) {
    int n_groups = s->groups.n, n_nodes = s->g->nodes.n;
    members m = { ARENA_ARRAY(s->a, int, n_groups + 2), ARENA_ARRAY(s->a, val, n_nodes) };
    for (int v = 1; v < n_nodes; v++)
        if (s->group_of[v] >= 0) m.first[s->group_of[v] + 2]++;
    for (int i = 1; i < n_groups + 2; i++) m.first[i] += m.first[i - 1];
    for (int v = 1; v < n_nodes; v++)
        if (s->group_of[v] >= 0) m.at[m.first[s->group_of[v] + 1]++] = (val)v;
    return m;
}

/* Values in memory that group gi reads, once each unless under several names, in order of a walk from its roots. */
static void find_reads(sched *s, int gi, val_list *out) {
    val_list stack = { 0 };
    sched_unmark(&s->values);
    for (int r = s->groups.at[gi].roots.n - 1; r >= 0; r--) VEC_PUSH(s->scratch, &stack, s->groups.at[gi].roots.at[r]);
    while (stack.n) {
        val v = stack.at[--stack.n];
        const node *n = graph_get(s->g, v);
        if (!sched_mark(&s->values, v)) continue;
        bool root = s->place[v] == PLACE_ROOT && s->group_of[v] == gi;
        /* What another kernel computes inside, or nobody, stands behind an again only: it waits for what that is made of. */
        bool waits = s->place[v] == PLACE_INSIDE || s->place[v] == PLACE_NONE;
        if (root || waits || sched_inside(s, gi, v)) {
            for (int i = n->n_in - 1; i >= 0; i--) VEC_PUSH(s->scratch, &stack, n->in[i]);
            continue;
        }
        for (; s->place[v] == PLACE_ALIAS; v = graph_get(s->g, v)->in[0])
            if (graph_get(s->g, v)->op == OP_again) VEC_PUSH(s->scratch, &stack, graph_get(s->g, v)->in[1]);
        VEC_PUSH(s->a, out, v);
    }
}

static bool is_concat(const sched *s, val v) { return s->place[v] == PLACE_ROOT && graph_get(s->g, v)->op == OP_concat; }

/* Group that makes memory value v, or -1: a leaf; many make a concat. */
static int maker(const sched *s, val v) { return s->place[v] != PLACE_ROOT || is_concat(s, v) ? -1 : s->group_of[v]; }

/* A product on a GPU, whose threads have time for what is computed with its results: of f32, or of matrix units. In an
 * iteration what follows a product of f32 is one launch already (mem/join_maps.c). */
static bool is_product(const sched *s, int x) {
    const group *gr = &s->groups.at[x];
    const node *n = graph_get(s->g, gr->roots.at[0]);
    const uint8_t t = n->dtype;
    if (gr->n_dots != 1 || !s->opts.t || s->opts.t->kind != TARGET_GPU) return false;
    return (t == TN_F32 && !n->region) || (s->opts.t->matrix_units && (t == TN_BF16 || t == TN_F16));
}

/* x computes with results of y, and with nothing else as large: a trip through memory is saved, and none is added to what the
 * product waits for. */
static bool only_takes(const merger *m, int x, int y) {
    const sched *s = m->s;
    bool takes = false;
    for (int i = 0; i < m->reads[x].n; i++) {
        val v = m->reads[x].at[i];
        bool made = maker(s, v) == y;
        takes |= made;
        if (!made && graph_elems(s->g, v) > graph_elems(s->g, s->groups.at[x].roots.at[0]) / SMALL_PART) return false;
    }
    return takes;
}

static bool may_merge(const merger *m, int x) {
    const sched *s = m->s;
    const group *gr = &s->groups.at[x];
    if (s->control[graph_get(s->g, gr->roots.at[0])->region]) return false; /* one may need another by way of it */
    if (gr->dead || gr->dest || (gr->n_dots && !is_product(s, x)) || gr->n_reduces || gr->splits.n || gr->roots.n >= MOST_ROOTS)
        return false;
    if (op_get((op_code)graph_get(s->g, gr->roots.at[0])->op)->cls == CL_SCATTER) return false;
    for (int i = 0; i < m->reads[x].n; i++)
        if (is_concat(s, m->reads[x].at[i])) return false; /* as if it needed all kernels */
    return true;
}

static bool fit_together(const merger *m, int x, int y) {
    const group *a = &m->s->groups.at[x], *b = &m->s->groups.at[y];
    if ((a->n_dots && !only_takes(m, y, x)) || (b->n_dots && !only_takes(m, x, y))) return false;
    return graph_same_shape(m->s->g, a->roots.at[0], b->roots.at[0]) && a->roots.n + b->roots.n <= MOST_ROOTS;
}

/* ---- the order ---- */

static void take_out(merger *m, int x) {
    m->behind[m->before[x]] = m->behind[x];
    m->before[m->behind[x]] = m->before[x];
}

static void number_all(merger *m) {
    int head = m->s->groups.n;
    int64_t label = 0;
    for (int x = m->behind[head]; x != head; x = m->behind[x]) m->label[x] = label += (int64_t)1 << 40;
}

/* Puts these, in this order, before x. */
static void put_before(merger *m, const int *list, int n, int x) {
    int head = m->s->groups.n, left = m->before[x];
    int64_t lo = left == head ? 0 : m->label[left], step = (m->label[x] - lo) / (n + 1);
    for (int i = 0; i < n; i++) {
        m->before[list[i]] = left, m->behind[list[i]] = x;
        m->behind[left] = m->before[x] = list[i];
        m->label[list[i]] = lo + step * (i + 1);
        left = list[i];
    }
    if (n && step == 0) number_all(m);
}

/* Groups were made from the outputs backwards: what a group needs was made after it. */
static void order_groups(merger *m) {
    int head = m->s->groups.n;
    for (int x = 0; x <= head; x++) m->before[x] = x == head ? 0 : x + 1, m->behind[x] = x == 0 ? head : x - 1;
    number_all(m);
}

static bool is_later(const merger *m, int x, int y) { return m->label[x] > m->label[y]; }

static void meet(merger *m, int x) {
    if (!sched_mark(&m->met, (uint32_t)x)) return;
    VEC_PUSH(m->s->a, &m->heap, x);
    for (int i = m->heap.n - 1; i > 0 && is_later(m, m->heap.at[i], m->heap.at[(i - 1) / 2]); i = (i - 1) / 2) {
        int t = m->heap.at[i];
        m->heap.at[i] = m->heap.at[(i - 1) / 2], m->heap.at[(i - 1) / 2] = t;
    }
}

static int take_latest(merger *m) {
    int x = m->heap.at[0], n = --m->heap.n;
    m->heap.at[0] = m->heap.at[n];
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_later(m, m->heap.at[child + 1], m->heap.at[child])) child++;
        if (!is_later(m, m->heap.at[child], m->heap.at[i])) break;
        int t = m->heap.at[i];
        m->heap.at[i] = m->heap.at[child], m->heap.at[child] = t;
    }
    return x;
}

/* Meets the makers of v, which x reads. */
static void follow_read(merger *m, int x, val v) {
    const sched *s = m->s;
    int y = maker(s, v);
    m->steps++;
    if (y >= 0) {
        if (x != m->from) sched_mark(&m->around, (uint32_t)y);
        meet(m, y);
    }
    if (is_concat(s, v) || s->place[v] == PLACE_JOINED) VEC_PUSH(s->a, &m->concats, v);
    while (m->concats.n) {
        const node *n = graph_get(s->g, m->concats.at[--m->concats.n]);
        for (int i = 0; i < n->n_in; i++, m->steps++)
            if (s->place[n->in[i]] == PLACE_JOINED)
                VEC_PUSH(s->a, &m->concats, n->in[i]);
            else
                sched_mark(&m->around, (uint32_t)s->group_of[n->in[i]]), meet(m, s->group_of[n->in[i]]);
    }
}

/* x, which stands later, needs y by way of another group. Looks at what stands between the two. */
static bool path_around(merger *m, int x, int y) {
    if (m->from != x) {
        m->from = x, m->steps = 0, m->heap.n = m->looked.n = 0;
        sched_unmark(&m->met), sched_unmark(&m->around);
        for (int i = 0; i < m->reads[x].n; i++) follow_read(m, x, m->reads[x].at[i]);
    }
    while (m->heap.n && is_later(m, m->heap.at[0], y) && m->steps < MANY_STEPS) {
        int z = take_latest(m);
        VEC_PUSH(m->s->a, &m->looked, z);
        for (int i = 0; i < m->reads[z].n; i++) follow_read(m, z, m->reads[z].at[i]);
    }
    return m->steps >= MANY_STEPS || sched_marked(&m->around, (uint32_t)y);
}

/* x and y become x: what the later of the two needs and stands between them moves before the earlier one, whose place x takes.
 */
static void join_places(merger *m, int x, int y, int early) {
    int n = 0;
    int *moved = ARENA_ARRAY(m->s->scratch, int, m->looked.n);
    for (int i = m->looked.n - 1; i >= 0; i--) /* the latest one was looked at first */
        if (is_later(m, m->looked.at[i], early)) take_out(m, moved[n++] = m->looked.at[i]);
    put_before(m, moved, n, early);
    if (early == y) {
        take_out(m, x);
        m->before[x] = m->before[y], m->behind[x] = m->behind[y];
        m->behind[m->before[x]] = m->before[m->behind[x]] = x;
        m->label[x] = m->label[y];
    } else {
        take_out(m, y);
    }
    m->from = -1;
}

/* ---- candidates ---- */

/* x goes by v's rows: its results have v's shape, or x may take a part of each row. The parts that kernels of their own would
 * read are far from each other: memory sends, and the processor fetches ahead, what lies between. */
static bool by_same_rows(const merger *m, val v, int x) {
    const graph *g = m->s->g;
    const val r = m->s->groups.at[x].roots.at[0];
    const node *a = graph_get(g, v), *b = graph_get(g, r);
    if (graph_same_shape(g, v, r)) return true;
    if (a->rank != b->rank || a->rank < 2 || memcmp(a->dims, b->dims, (a->rank - 1u) * sizeof *a->dims)) return false;
    return graph_elems(g, r) < graph_elems(g, v) && graph_elems(g, v) <= MOST_ROOTS * graph_elems(g, r);
}

static void list_readers(merger *m) {
    sched *s = m->s;
    int *room = ARENA_ARRAY(s->a, int, s->g->nodes.n + 1), all = 0;
    for (int fill = 0; fill < 2; fill++) {
        for (int y = 0; y < s->groups.n; y++)
            for (int i = 0; m->may[y] && i < m->reads[y].n; i++) {
                val v = m->reads[y].at[i];
                if (!by_same_rows(m, v, y)) continue;
                if (fill)
                    m->reader[m->readers[v].end] = y, m->next_alive[m->readers[v].end] = m->readers[v].end + 1,
                    m->readers[v].end++;
                else
                    room[v]++, all++;
            }
        if (fill) break;
        m->reader = ARENA_ARRAY(s->a, int, all), m->next_alive = ARENA_ARRAY(s->a, int, all);
        for (int v = 0, at = 0; v < s->g->nodes.n; at += room[v++]) m->readers[v] = (readers){ at, at };
    }
}

/* The first reader of v after group `last`, or -1. */
static int reader_after(merger *m, val v, int last) {
    const group *groups = m->s->groups.at;
    int lo = m->readers[v].from, end = m->readers[v].end, hi = end;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (m->reader[mid] <= last)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (int next; lo < end && groups[m->reader[lo]].dead; lo = next) { /* what is dead is passed in ever longer steps */
        next = m->next_alive[lo];
        if (next < end && groups[m->reader[next]].dead) m->next_alive[lo] = m->next_alive[next];
    }
    return lo < end ? m->reader[lo] : -1;
}

/* The first group after `last` that makes what x reads, or goes by the rows of a value that x does; or -1. */
static int candidate_after(merger *m, int x, int last) {
    const sched *s = m->s;
    int best = -1;
    for (int i = 0; i < m->reads[x].n; i++) {
        val v = m->reads[x].at[i];
        int y = maker(s, v);
        if (y > last && m->may[y] && (best < 0 || y < best)) best = y;
        if (!by_same_rows(m, v, x)) continue;
        y = reader_after(m, v, last);
        if (y >= 0 && (best < 0 || y < best)) best = y;
    }
    return best;
}

/* ---- merging ---- */

static val_list both_roots(sched *s, const group *a, const group *b) { /* ascending, as each of them */
    val_list all = { 0 };
    for (int i = 0, j = 0; i < a->roots.n || j < b->roots.n;) {
        bool first = j == b->roots.n || (i < a->roots.n && a->roots.at[i] < b->roots.at[j]);
        VEC_PUSH(s->a, &all, first ? a->roots.at[i++] : b->roots.at[j++]);
    }
    return all;
}

static bool try_merge(merger *m, int x, int y) { /* y into x */
    sched *s = m->s;
    group *a = &s->groups.at[x], *b = &s->groups.at[y];
    val_list before = a->roots;
    a->roots = both_roots(s, a, b);
    for (int i = m->of.first[y]; i < m->of.first[y + 1]; i++) s->group_of[m->of.at[i]] = x;
    analysis an;
    arena_reset(s->scratch);
    if (group_analyse(s, x, s->scratch, &an) && an.rows == graph_elems(s->g, a->roots.at[0])) {
        b->dead = true;
        m->reads[x] = (val_list){ 0 };
        find_reads(s, x, &m->reads[x]);
        return sched_decide(s, b->roots.at[b->roots.n - 1], a->roots.at[0], true,
                            "same loops and shared operands: one kernel with several results");
    }
    for (int i = m->of.first[y]; i < m->of.first[y + 1]; i++) s->group_of[m->of.at[i]] = y;
    a->roots = before;
    return false;
}

static void merge_others_into(merger *m, int x) {
    for (int y = x, tries = MANY_TRIES; may_merge(m, x) && (y = candidate_after(m, x, y)) >= 0;) {
        if (!fit_together(m, x, y)) continue;
        int late = is_later(m, x, y) ? x : y, early = late == x ? y : x;
        if (path_around(m, late, early))
            tries--;
        else if (try_merge(m, x, y))
            join_places(m, x, y, early);
        else
            tries -= FAILED_COST;
        if (tries > 0 && (m->from < 0 || m->steps < MANY_STEPS)) continue;
        sched_decide(m->s, m->s->groups.at[x].roots.at[0], 0, false,
                     "too many kernels share operands with it to try them all for one kernel with several results");
        return;
    }
}

void sched_merge(sched *s) {
    int n = s->groups.n;
    merger m = { .s = s, .of = sched_members(s), .from = -1, .met.now = 1, .around.now = 1 };
    m.reads = ARENA_ARRAY(s->a, val_list, n), m.may = ARENA_ARRAY(s->a, bool, n);
    m.before = ARENA_ARRAY(s->a, int, n + 1), m.behind = ARENA_ARRAY(s->a, int, n + 1);
    m.label = ARENA_ARRAY(s->a, int64_t, n + 1), m.readers = ARENA_ARRAY(s->a, readers, s->g->nodes.n);
    m.met.at = ARENA_ARRAY(s->a, uint32_t, n), m.around.at = ARENA_ARRAY(s->a, uint32_t, n);
    for (int i = 0; i < n; i++) {
        arena_reset(s->scratch);
        find_reads(s, i, &m.reads[i]);
        m.may[i] = may_merge(&m, i);
    }
    order_groups(&m);
    list_readers(&m);
    for (int x = 0; x < n; x++) merge_others_into(&m, x);
}
