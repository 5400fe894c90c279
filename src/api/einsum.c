/* einsum.c - Einstein summation: one string says which axes are multiplied, summed over and kept.
 *
 * In: a string and operands. Out: diagonals as strided slices, sums over labels of one operand, contractions of two, and one
 * permutation. More than two operands are contracted in the order that costs least: by dynamic programming over sets of
 * operands up to EXACT of them (Pfeifer, Haegeman and Verstraete, Phys. Rev. E 90, 2014), beyond by taking the pair that frees
 * the most memory again and again.
 *
 * A set of labels is a mask of 64 bits: 52 letters and the TN_MAX_RANK axes that "..." may stand for. */
#include "api/api.h"

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

enum { LETTERS = 52, LABELS = LETTERS + TN_MAX_RANK, EXACT = 8, MOST = 64 };
_Static_assert(LABELS <= 64, "a set of labels is a mask of 64 bits");

typedef struct term {
    uint8_t label[TN_MAX_RANK];
    int n;
    val x;
} term;

typedef struct einsum {
    graph *g;
    const char *spec;
    term *in; /* [n] */
    int n;
    term out;
    ext size[LABELS];     /* of each label; 0 in `used`: none */
    double count[LABELS]; /* the same as a number, at most */
    uint64_t used;
} einsum;

static uint64_t bit(int label) { return (uint64_t)1 << label; }
static uint64_t labels_of(const term *t) {
    uint64_t m = 0;
    for (int i = 0; i < t->n; i++) m |= bit(t->label[i]);
    return m;
}
static int find_label(const term *t, int label) {
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label) return i;
    return -1;
}
static void drop_label(term *t, int at) {
    for (int i = at; i + 1 < t->n; i++) t->label[i] = t->label[i + 1];
    t->n--;
}

/* ---- the string ---- */

static void __attribute__((noreturn)) spec_fail(const einsum *e, const char *at, const char *what) {
    FAIL(e->g, TN_ERR_INVAL, "\"%s\", character %d: %s", e->spec, (int)(at - e->spec) + 1, what);
}

static int letter_of(char c) { return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1; }

/* Reads the labels of one operand, up to a comma, an arrow or the end. dots: how many axes "..." stands for; -1: as many as
 * rank leaves. Returns what follows. */
static const char *read_term(const einsum *e, const char *s, int rank, int dots, term *t) {
    int letters = 0;
    bool seen = false;
    for (const char *k = s; *k && *k != ',' && *k != '-'; k++) letters += letter_of(*k) >= 0;
    if (dots < 0) dots = rank - letters;
    t->n = 0;
    for (; *s && *s != ',' && *s != '-'; s++) {
        if (*s == ' ') continue;
        bool ellipsis = s[0] == '.' && s[1] == '.' && s[2] == '.';
        if (!ellipsis && letter_of(*s) < 0) spec_fail(e, s, "expected a letter, \"...\", a comma or \"->\"");
        if (ellipsis && seen) spec_fail(e, s, "\"...\" stands twice in one term");
        if (ellipsis && dots < 0) spec_fail(e, s, "the operand has fewer axes than its term has letters");
        if (t->n + (ellipsis ? dots : 1) > TN_MAX_RANK) spec_fail(e, s, "a term of more than 12 axes");
        for (int i = 0; ellipsis && i < dots; i++) t->label[t->n++] = (uint8_t)(LETTERS + TN_MAX_RANK - dots + i);
        if (!ellipsis) t->label[t->n++] = (uint8_t)letter_of(*s);
        if (ellipsis) s += 2;
        seen = seen || ellipsis;
    }
    return s;
}

static const char *read_operands(einsum *e, const val *in) {
    const char *s = e->spec;
    for (int i = 0; i < e->n; i++) {
        const char *first = s;
        term *t = &e->in[i];
        int rank = graph_get(e->g, in[i])->rank;
        t->x = in[i];
        s = read_term(e, s, rank, -1, t);
        if (t->n != rank)
            FAIL(e->g, TN_ERR_SHAPE, "\"%s\", character %d: %d labels for operand %d, %s", e->spec, (int)(first - e->spec) + 1,
                 t->n, i + 1, graph_shape_text(e->g, e->g->a, in[i]));
        if (i + 1 < e->n) {
            if (*s != ',') spec_fail(e, s, "expected a comma: fewer terms than operands");
            s++;
        }
    }
    if (*s == ',') spec_fail(e, s, "more terms than operands");
    return s;
}

/* Without an arrow: the axes of "...", then the letters that stand once, upper case first. */
static void implied_result(einsum *e) {
    int count[LABELS] = { 0 };
    for (int i = 0; i < e->n; i++)
        for (int k = 0; k < e->in[i].n; k++) count[e->in[i].label[k]]++;
    for (int i = 0; i < LABELS; i++) {
        int label = i < TN_MAX_RANK ? LETTERS + i : (i - TN_MAX_RANK + 26) % LETTERS;
        if (label >= LETTERS ? !count[label] : count[label] != 1) continue;
        if (e->out.n == TN_MAX_RANK) spec_fail(e, e->spec + strlen(e->spec), "a result of more than 12 axes");
        e->out.label[e->out.n++] = (uint8_t)label;
    }
}

static void read_result(einsum *e, const char *s) {
    uint64_t all = 0;
    int dots = 0;
    for (int i = 0; i < e->n; i++) all |= labels_of(&e->in[i]);
    for (int i = LETTERS; i < LABELS; i++) dots += (all >> i & 1) != 0;
    if (!*s) {
        implied_result(e);
        return;
    }
    if (s[1] != '>') spec_fail(e, s, "expected \"->\"");
    const char *end = read_term(e, s + 2, 0, dots, &e->out);
    if (*end) spec_fail(e, end, "the result is one term");
    for (const char *k = s + 2; *k; k++) {
        int label = letter_of(*k);
        if (label < 0) continue;
        if (!(all & bit(label))) spec_fail(e, k, "no operand has this label");
        for (const char *j = s + 2; j < k; j++)
            if (*j == *k) spec_fail(e, k, "the result has this label twice");
    }
}

/* ---- one operand ---- */

/* A label that stands twice: every (d + 1)-th element of the two axes, laid side by side as one. */
static void take_diagonals(const einsum *e, term *t, int number) {
    graph *g = e->g;
    for (int i = 0; i < t->n; i++)
        for (int k = i + 1; k < t->n; k++) {
            if (t->label[i] != t->label[k]) continue;
            const node *x = graph_get(g, t->x);
            int64_t perm[TN_MAX_RANK], dims[TN_MAX_RANK], start[TN_MAX_RANK] = { 0 }, step[TN_MAX_RANK], d = x->dims[i], all;
            int at = 0, rank = x->rank;
            if (d != x->dims[k] || !ext_is_lit(d) || !size_mul(d, d, &all))
                FAIL(g, TN_ERR_SHAPE, "\"%s\": a diagonal of axes %d and %d of operand %d, of sizes %s and %s", e->spec, i, k,
                     number, graph_dim_text(g, d), graph_dim_text(g, x->dims[k]));
            for (int j = 0; j < rank; j++)
                if (j != i && j != k) dims[at] = x->dims[j], step[at] = 1, perm[at++] = j;
            perm[at] = i, perm[at + 1] = k, dims[at] = all;
            t->x = graph_reshape(g, graph_permute(g, t->x, perm), rank - 1, dims);
            dims[at] = d, step[at] = d + 1;
            t->x = graph_slice(g, t->x, start, dims, step);
            uint8_t label = t->label[i];
            drop_label(t, k), drop_label(t, i);
            t->label[t->n++] = label;
            i = -1; /* axes have moved: from the first again */
            break;
        }
}

static val drop_axis(graph *g, val x, int axis) {
    const node *n = graph_get(g, x);
    int64_t dims[TN_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < n->rank; i++)
        if (i != axis) dims[rank++] = n->dims[i];
    return graph_reshape(g, x, rank, dims);
}

/* One size a label: where operands have 1 and others more, the 1 stretches, so that these operands go without the label. */
static void find_sizes(einsum *e) {
    for (int i = 0; i < e->n; i++)
        for (int k = 0; k < e->in[i].n; k++) {
            int label = e->in[i].label[k];
            ext d = graph_get(e->g, e->in[i].x)->dims[k], *size = &e->size[label];
            if (!(e->used & bit(label)) || *size == 1)
                *size = d;
            else if (d != 1 && d != *size)
                FAIL(e->g, TN_ERR_SHAPE, "\"%s\": label %c has size %s, and %s in operand %d", e->spec,
                     label >= LETTERS ? '.'
                     : label < 26     ? 'a' + label
                                      : 'A' + label - 26,
                     graph_dim_text(e->g, *size), graph_dim_text(e->g, d), i + 1);
            e->used |= bit(label);
        }
    for (int i = 0; i < LABELS; i++) e->count[i] = e->used & bit(i) ? (double)graph_dim_most(e->g, e->size[i]) : 1;
    for (int i = 0; i < e->n; i++)
        for (int k = e->in[i].n - 1; k >= 0; k--)
            if (graph_get(e->g, e->in[i].x)->dims[k] != e->size[e->in[i].label[k]]) {
                e->in[i].x = drop_axis(e->g, e->in[i].x, k);
                drop_label(&e->in[i], k);
            }
}

/* Sums over the labels that are not wanted. */
static void sum_others(const einsum *e, term *t, uint64_t wanted) {
    uint64_t axes = 0;
    for (int i = 0; i < t->n; i++)
        if (!(wanted & bit(t->label[i]))) axes |= (uint64_t)1 << i;
    if (!axes) return;
    t->x = graph_reduce(e->g, OP_sum, t->x, axes);
    for (int i = t->n - 1; i >= 0; i--)
        if (axes >> i & 1) t->x = drop_axis(e->g, t->x, i), drop_label(t, i);
}

/* ---- two operands ---- */

/* x with the axes of `like`, 1 where it has none of them: for products without sums. */
static val aligned(const einsum *e, const term *t, const term *like) {
    int64_t perm[TN_MAX_RANK], dims[TN_MAX_RANK];
    int n = 0;
    for (int i = 0; i < like->n; i++) {
        int k = find_label(t, like->label[i]);
        dims[i] = k < 0 ? 1 : graph_get(e->g, t->x)->dims[k];
        if (k >= 0) perm[n++] = k;
    }
    return graph_reshape(e->g, graph_permute(e->g, t->x, perm), like->n, dims);
}

static term multiply(const einsum *e, const term *a, const term *b) {
    term y = *a;
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < b->n; i++)
        if (find_label(a, b->label[i]) < 0) y.label[y.n++] = b->label[i];
    for (int i = 0; i < y.n; i++) dims[i] = e->size[y.label[i]];
    y.x = graph_binary(e->g, OP_mul, graph_expand(e->g, aligned(e, a, &y), dims), graph_expand(e->g, aligned(e, b, &y), dims));
    return y;
}

/* Shared labels that are still wanted are batch axes; the other shared ones are summed over. */
static term contract(const einsum *e, const term *a, const term *b, uint64_t wanted) {
    int64_t batch_a[TN_MAX_RANK], batch_b[TN_MAX_RANK], sum_a[TN_MAX_RANK], sum_b[TN_MAX_RANK];
    int nb = 0, nc = 0;
    term y = { .n = 0 };
    for (int i = 0; i < a->n; i++) {
        int k = find_label(b, a->label[i]);
        if (k < 0) continue;
        if (wanted & bit(a->label[i]))
            batch_a[nb] = i, batch_b[nb] = k, y.label[nb++] = a->label[i];
        else
            sum_a[nc] = i, sum_b[nc++] = k;
    }
    if (a->n + b->n - nb - 2 * nc > TN_MAX_RANK)
        FAIL(e->g, TN_ERR_SHAPE, "\"%s\": a product on the way would have more than %d axes", e->spec, TN_MAX_RANK);
    if (!nc) return multiply(e, a, b);
    y.n = nb;
    for (int i = 0; i < a->n; i++)
        if (find_label(b, a->label[i]) < 0) y.label[y.n++] = a->label[i];
    for (int i = 0; i < b->n; i++)
        if (find_label(a, b->label[i]) < 0) y.label[y.n++] = b->label[i];
    y.x = graph_dot(e->g, a->x, b->x, batch_a, batch_b, nb, sum_a, sum_b, nc);
    return y;
}

/* ---- the order ---- */

static double elements(const einsum *e, uint64_t labels) {
    double n = 1;
    for (; labels; labels &= labels - 1) n *= e->count[__builtin_ctzll(labels)];
    return n;
}

typedef struct order {
    double cost[1 << EXACT];
    uint64_t labels[1 << EXACT]; /* of the product of a set of operands */
    uint8_t left[1 << EXACT];    /* one part of the best split */
} order;

static void search(const einsum *e, order *o) {
    int full = (1 << e->n) - 1;
    for (int set = 1; set <= full; set++) {
        uint64_t in = 0, outside = labels_of(&e->out);
        for (int i = 0; i < e->n; i++) *(set >> i & 1 ? &in : &outside) |= labels_of(&e->in[i]);
        o->labels[set] = in & outside;
    }
    for (int set = 1; set <= full; set++) {
        o->cost[set] = 0;
        bool first = true;
        for (int part = (set - 1) & set; part; part = (part - 1) & set) {
            int rest = set ^ part;
            if (part < rest) continue; /* each split once; the first operand is on the right of none but this */
            double cost =
                o->cost[part] + o->cost[rest] + elements(e, o->labels[part] | o->labels[rest]) + elements(e, o->labels[set]);
            if (!first && cost >= o->cost[set]) continue;
            first = false, o->cost[set] = cost, o->left[set] = (uint8_t)rest;
        }
    }
}

static term by_search(const einsum *e, const order *o, int set) {
    if (!(set & (set - 1))) return e->in[__builtin_ctz((unsigned)set)];
    int left = o->left[set], right = set ^ left;
    term a = by_search(e, o, left), b = by_search(e, o, right);
    return contract(e, &a, &b, o->labels[set]);
}

static term contract_exactly(const einsum *e) {
    order o;
    search(e, &o);
    return by_search(e, &o, (1 << e->n) - 1);
}

/* The pair whose product needs the least more memory than it frees; of equal ones, the cheapest. */
static term contract_greedily(einsum *e) {
    while (e->n > 1) {
        double best = 0, best_cost = 0;
        uint64_t best_wanted = 0;
        int left = -1, right = -1;
        for (int i = 0; i < e->n; i++)
            for (int j = i + 1; j < e->n; j++) {
                uint64_t wanted = labels_of(&e->out), a = labels_of(&e->in[i]), b = labels_of(&e->in[j]);
                for (int k = 0; k < e->n; k++) wanted |= k == i || k == j ? 0 : labels_of(&e->in[k]);
                double more = elements(e, (a | b) & wanted) - elements(e, a) - elements(e, b), cost = elements(e, a | b);
                if (left >= 0 && (more > best || (more == best && cost >= best_cost))) continue;
                left = i, right = j, best = more, best_cost = cost, best_wanted = wanted;
            }
        e->in[left] = contract(e, &e->in[left], &e->in[right], best_wanted);
        for (int k = right; k + 1 < e->n; k++) e->in[k] = e->in[k + 1];
        e->n--;
    }
    return e->in[0];
}

/* ---- the builder ---- */

typedef struct einsum_args {
    const char *spec;
    int n;
} einsum_args;

static val build_einsum(graph *g, const val *in, void *args) {
    const einsum_args *a = args;
    einsum e = { .g = g, .spec = a->spec, .n = a->n };
    if (!a->spec) FAIL(g, TN_ERR_INVAL, "the string is NULL");
    if (a->n > MOST) FAIL(g, TN_ERR_UNSUPPORTED, "%d operands, above %d", a->n, MOST);
    e.in = ARENA_ARRAY(g->a, term, a->n);
    read_result(&e, read_operands(&e, in));
    for (int i = 0; i < e.n; i++) take_diagonals(&e, &e.in[i], i + 1);
    find_sizes(&e);
    for (int i = 0; i < e.n; i++) {
        uint64_t wanted = labels_of(&e.out);
        for (int k = 0; k < e.n; k++) wanted |= k == i ? 0 : labels_of(&e.in[k]);
        sum_others(&e, &e.in[i], wanted);
    }
    term y = e.n <= EXACT ? contract_exactly(&e) : contract_greedily(&e);
    sum_others(&e, &y, labels_of(&e.out));
    int64_t perm[TN_MAX_RANK];
    for (int i = 0; i < e.out.n; i++) perm[i] = find_label(&y, e.out.label[i]);
    return graph_permute(g, y.x, perm);
}

tn_tensor tn_einsum(const char *text, const tn_tensor *xs, int n) {
    if (!xs || n < 1) return (tn_tensor){ NULL, 0 }; /* no graph to tell */
    return api_build(NULL, &(call){ .name = "tn_einsum", .in = xs, .n_in = n }, build_einsum, &(einsum_args){ text, n });
}
