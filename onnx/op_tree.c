/* op_tree.c - tree ensembles: all samples go down all trees at once, a level at a time, by gathers; leaves stay where they are.
 *
 * Nodes of all trees are in one array; the trees' weights are a row for each of them, zeros where there is none. */
#include "ml.h"

#include <float.h>

enum { MAX_NODES = 1 << 20, MAX_DEPTH = 128 };
typedef enum { LEQ, LT, GTE, GT, EQ, NEQ, LEAF } tree_mode;

typedef struct trees {
    int n, n_trees, depth;
    int64_t targets;
    int64_t *feature, *yes, *no, *mode, *missing, *root;
    double *split;
    double *weights; /* [n,targets] */
    bool *has;       /* [n,targets] */
} trees;

static trees tree_room(onnx_call *c, int n, int64_t targets) {
    onnx_env *env = c->im->env;
    if (n < 1 || n > MAX_NODES || targets < 1 || targets > 1 << 16 || (int64_t)n * targets > 1 << 24)
        onnx_refuse(c, "%d nodes, %lld targets", n, (long long)targets);
    return (trees){ .n = n,
                    .targets = targets,
                    .feature = ONNX_NEW(env, int64_t, n),
                    .yes = ONNX_NEW(env, int64_t, n),
                    .no = ONNX_NEW(env, int64_t, n),
                    .mode = ONNX_NEW(env, int64_t, n),
                    .missing = ONNX_NEW(env, int64_t, n),
                    .root = ONNX_NEW(env, int64_t, n),
                    .split = ONNX_NEW(env, double, n),
                    .weights = ONNX_NEW(env, double, n *targets),
                    .has = ONNX_NEW(env, bool, n *targets) };
}

/* Levels below a root; a node that is met twice (a cycle, a graph) or does not exist is refused. */
static void measure(onnx_call *c, trees *t, int64_t features) {
    int64_t *now = ONNX_NEW(c->im->env, int64_t, t->n + 1), *next = ONNX_NEW(c->im->env, int64_t, t->n + 1), n_now = 0;
    bool *seen = ONNX_NEW(c->im->env, bool, t->n);
    for (int i = 0; i < t->n_trees; i++) now[n_now++] = t->root[i];
    for (int level = 0; n_now; level++) {
        int64_t n_next = 0, *swap = now;
        t->depth = level;
        for (int64_t i = 0; i < n_now; i++) {
            int64_t k = now[i];
            if (k < 0 || k >= t->n || seen[k] || level > MAX_DEPTH)
                onnx_refuse(c, "its nodes are no trees of at most %d levels", MAX_DEPTH);
            seen[k] = true;
            if (t->mode[k] == LEAF) {
                t->yes[k] = t->no[k] = k, t->feature[k] = 0;
                continue;
            }
            if (t->feature[k] < 0 || t->feature[k] >= features)
                onnx_refuse(c, "feature %lld of %lld", (long long)t->feature[k], (long long)features);
            if (n_next + 2 > t->n) onnx_refuse(c, "its nodes are no trees");
            next[n_next++] = t->yes[k], next[n_next++] = t->no[k];
        }
        now = next, next = swap, n_now = n_next;
    }
}

/* ---- running ---- */

static tn_tensor table(onnx_call *c, const int64_t *v, int n, tn_tensor at) {
    return tn_gather(onnx_ints_const(c, v, n), at, 0);
}

static tn_tensor decide(onnx_call *c, const trees *t, tn_tensor x, tn_tensor split, tn_tensor at) {
    static tn_tensor (*const f[])(tn_tensor, tn_tensor) = { (tn_le), (tn_lt), (tn_ge), (tn_gt), (tn_eq), (tn_ne) };
    tn_tensor y = { .graph = NULL }, mode = table(c, t->mode, t->n, at);
    bool used[LEAF] = { false }, missing = false;
    for (int i = 0; i < t->n; i++) {
        if (t->mode[i] != LEAF) used[t->mode[i]] = true;
        missing |= t->mode[i] != LEAF && t->missing[i];
    }
    for (int m = 0; m < LEAF; m++)
        if (used[m]) y = y.graph ? tn_select(tn_eq(mode, onnx_scalar(mode, m)), f[m](x, split), y) : f[m](x, split);
    if (!y.graph) return tn_full(c->g, TN_BOOL, tn_tensor_shape(at), 0);
    tn_tensor nan = tn_ne(x, x), to = tn_ne(table(c, t->missing, t->n, at), onnx_scalar(mode, 0));
    if (used[NEQ] || missing) y = tn_select(nan, missing ? to : tn_full(c->g, TN_BOOL, TN_SCALAR, 0), y);
    return y;
}

/* The leaves where x [N,F] ends: i64[N,T]. */
static tn_tensor descend(onnx_call *c, const trees *t, tn_tensor x, tn_shape s) {
    tn_shape both = TN_DIMS(s.dim[0], t->n_trees);
    tn_tensor at = tn_expand(tn_reshape(onnx_ints_const(c, t->root, t->n_trees), TN_DIMS(1, t->n_trees)), both);
    tn_tensor flat = tn_reshape(x, TN_DIMS(onnx_dim(c, '*', s.dim[0], s.dim[1]))),
              row = tn_mul_scalar(tn_iota(c->g, TN_I64, both, 0), (double)s.dim[1]);
    tn_tensor splits = tn_cast(tn_const(c->g, TN_F64, TN_DIMS(t->n), t->split), tn_tensor_dtype(x));
    for (int level = 0; level < t->depth; level++) {
        tn_tensor v = tn_gather(flat, tn_add(row, table(c, t->feature, t->n, at)), 0);
        at = tn_select(decide(c, t, v, tn_gather(splits, at, 0), at), table(c, t->yes, t->n, at), table(c, t->no, t->n, at));
    }
    return at;
}

/* Weights of the leaves over all trees: f[N,targets]. */
static tn_tensor aggregate(onnx_call *c, const trees *t, tn_tensor at, tn_dtype type) {
    bool least = onnx_attr_is(c, "aggregate_function", "SUM", "MIN"),
         most = onnx_attr_is(c, "aggregate_function", "SUM", "MAX");
    bool average = onnx_attr_is(c, "aggregate_function", "SUM", "AVERAGE");
    if (!least && !most && !average && !onnx_attr_is(c, "aggregate_function", "SUM", "SUM"))
        onnx_refuse(c, "attribute aggregate_function");
    double none = least ? (double)FLT_MAX : most ? -(double)FLT_MAX : 0;
    for (int64_t i = 0; i < t->n * t->targets; i++)
        if (!t->has[i]) t->weights[i] = none;
    tn_tensor w = tn_cast(tn_const(c->g, TN_F64, TN_DIMS(t->n, t->targets), t->weights), type), v = tn_gather(w, at, 0);
    if (least || most) return (least ? (tn_reduce_min) : (tn_reduce_max))(v, TN_INTS(1), 0);
    tn_tensor y = tn_sum(v, TN_INTS(1), 0);
    return average ? tn_mul_scalar(y, 1.0 / t->n_trees) : y;
}

/* ---- the forms up to version 3 ---- */

static const int64_t *ints_of(onnx_call *c, const char *name, int n) {
    int given;
    const int64_t *v = onnx_attr_ints(c, name, &given);
    if (!v || given != n) onnx_refuse(c, "%s has %d numbers, expected %d", name, given, n);
    return v;
}
/* A list of floats, or a tensor: "<name>_as_tensor". */
static double *numbers_of(onnx_call *c, const char *name, int *out_n) {
    const char *other = onnx_format(c->im->env, "%s_as_tensor", name);
    const float *v = onnx_attr_floats(c, name, out_n);
    const onnx_attr *a = onnx_attr_find(c, other);
    onnx_tensor t;
    double *out;
    if (a && a->type == ATTR_TENSOR) {
        onnx_read_tensor(c->im->env, a->t, &t);
        if ((t.elem != ELEM_F32 && t.elem != ELEM_F64) || t.n > MAX_NODES) onnx_refuse(c, "attribute %s", other);
        const void *data = onnx_tensor_data(c->im->env, c->im->m, &t);
        out = ONNX_NEW(c->im->env, double, t.n + 1);
        for (int64_t i = 0; i < t.n; i++) out[i] = onnx_load(onnx_elem_dtype(t.elem), data, i);
        *out_n = (int)t.n;
        return out;
    }
    out = ONNX_NEW(c->im->env, double, *out_n + 1);
    for (int i = 0; i < *out_n; i++) out[i] = (double)v[i];
    return out;
}
static int mode_of(onnx_call *c, onnx_span s) {
    static const char *const words[] = {
        "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF"
    };
    for (int i = 0; i < ONNX_COUNT(words); i++)
        if (s.n == strlen(words[i]) && !memcmp(s.at, words[i], s.n)) return i;
    onnx_refuse(c, "a mode of its nodes");
}

typedef struct node_ids { /* nodes of a tree stand together, most of them in the order of their ids */
    const int64_t *tree, *id;
    int n;
    int64_t steps; /* of searches, which are bounded */
} node_ids;
static int64_t find_node(onnx_call *c, node_ids *t, int64_t tree, int64_t want, int64_t near) {
    int64_t guess = near - t->id[near] + want;
    if (t->tree[near] == tree && want >= 0 && want < t->n && guess >= 0 && guess < t->n && t->tree[guess] == tree &&
        t->id[guess] == want)
        return guess;
    for (int64_t i = near; i < t->n && t->tree[i] == tree && t->steps < 1 << 26; i++, t->steps++)
        if (t->id[i] == want) return i;
    for (int64_t i = near - 1; i >= 0 && t->tree[i] == tree && t->steps < 1 << 26; i--, t->steps++)
        if (t->id[i] == want) return i;
    onnx_refuse(c, "node %lld of tree %lld is not there", (long long)want, (long long)tree);
}

/* kind: "target" or "class". */
static trees read_trees(onnx_call *c, const char *kind, int64_t targets) {
    int n, n_leaves, n_values, n_weights, n_missing;
    const int64_t *tree = onnx_attr_ints(c, "nodes_treeids", &n),
                  *missing = onnx_attr_ints(c, "nodes_missing_value_tracks_true", &n_missing);
    const onnx_attr *modes = onnx_attr_find(c, "nodes_modes");
    trees t = tree_room(c, n, targets);
    const int64_t *id = ints_of(c, "nodes_nodeids", n), *feature = ints_of(c, "nodes_featureids", n),
                  *yes = ints_of(c, "nodes_truenodeids", n), *no = ints_of(c, "nodes_falsenodeids", n);
    const double *split = numbers_of(c, "nodes_values", &n_values);
    (void)onnx_attr_find(c, "nodes_hitrates"), (void)onnx_attr_find(c, "nodes_hitrates_as_tensor"); /* how often: a hint */
    if (!modes || modes->type != ATTR_STRINGS || modes->n != n || n_values != n || (n_missing && n_missing != n))
        onnx_refuse(c, "its nodes");
    node_ids ids = { tree, id, n, 0 };
    for (int i = 0; i < n; i++) {
        if (!i || tree[i] != tree[i - 1]) {
            if (t.n_trees > 1 << 14) onnx_refuse(c, "more than %d trees", 1 << 14);
            for (int k = 0; k < t.n_trees; k++)
                if (tree[t.root[k]] == tree[i]) onnx_refuse(c, "a tree in two pieces");
            t.root[t.n_trees++] = i;
        }
        t.mode[i] = mode_of(c, modes->strings[i]);
        t.feature[i] = feature[i], t.split[i] = split[i], t.missing[i] = n_missing ? missing[i] : 0;
        if (t.mode[i] == LEAF) continue;
        t.yes[i] = find_node(c, &ids, tree[i], yes[i], i), t.no[i] = find_node(c, &ids, tree[i], no[i], i);
    }
    char *of[3];
    static const char *const suffixes[] = { "treeids", "nodeids", "ids" };
    for (int i = 0; i < 3; i++) of[i] = onnx_format(c->im->env, "%s_%s", kind, suffixes[i]);
    const int64_t *leaf_tree = onnx_attr_ints(c, of[0], &n_leaves), *leaf = ints_of(c, of[1], n_leaves),
                  *to = ints_of(c, of[2], n_leaves);
    const double *w = numbers_of(c, onnx_format(c->im->env, "%s_weights", kind), &n_weights);
    if (!leaf_tree || n_weights != n_leaves) onnx_refuse(c, "its weights");
    int64_t first = 0;
    for (int i = 0; i < n_leaves; i++) {
        if (!i || leaf_tree[i] != leaf_tree[i - 1])
            for (int k = 0; k < t.n_trees; k++)
                if (tree[t.root[k]] == leaf_tree[i]) first = t.root[k];
        int64_t at = find_node(c, &ids, leaf_tree[i], leaf[i], first);
        if (to[i] < 0 || to[i] >= targets) onnx_refuse(c, "target %lld of %lld", (long long)to[i], (long long)targets);
        t.weights[at * targets + to[i]] += w[i], t.has[at * targets + to[i]] = true;
        first = at;
    }
    return t;
}

static tn_tensor add_base(onnx_call *c, tn_tensor y, int64_t targets) {
    int n;
    double *base = numbers_of(c, "base_values", &n);
    if (!n) return y;
    if (n != targets && n != 1) onnx_refuse(c, "%d base values", n);
    return tn_add(y, tn_cast(tn_const(c->g, TN_F64, TN_DIMS(n), base), tn_tensor_dtype(y)));
}

void onnx_op_tree_ensemble_regressor(onnx_call *c) {
    tn_shape s;
    tn_tensor x = onnx_features(c, &s);
    trees t = read_trees(c, "target", onnx_attr_int(c, "n_targets", 1));
    measure(c, &t, s.dim[1]);
    tn_tensor y = add_base(c, aggregate(c, &t, descend(c, &t, x, s), tn_tensor_dtype(x)), t.targets);
    onnx_put(c, 0, tn_cast(onnx_post_transform(c, y), TN_F32), ELEM_F32);
}

/* Of two classes with weights for one alone, s: the scores are 1 - s and s, or -s and s before a logistic or softmax. Where
 * programs disagree what is meant, it is refused. */
static tn_tensor two_classes(onnx_call *c, const trees *t, tn_tensor y) {
    bool none = onnx_attr_is(c, "post_transform", "NONE", "NONE"), positive = true, used[2] = { false, false };
    for (int64_t i = 0; i < t->n * 2; i++) {
        used[i % 2] |= t->has[i];
        positive &= t->weights[i] >= 0;
    }
    if (used[0] && used[1]) return y;
    if (none != positive || onnx_attr_is(c, "post_transform", "NONE", "PROBIT"))
        onnx_refuse(c, "two classes with weights of one");
    int64_t from[] = { 0, used[1] };
    tn_shape s = tn_tensor_shape(y);
    tn_tensor one = tn_slice(y, from, (int64_t[]){ s.dim[0], used[1] + 1 }, NULL, 2);
    tn_tensor other = none ? tn_sub(onnx_scalar(one, 1), one) : tn_neg(one);
    return tn_concat((tn_tensor[]){ other, one }, 2, 1);
}

void onnx_op_tree_ensemble_classifier(onnx_call *c) {
    tn_shape s;
    int n_ints, n_texts;
    const int64_t *ints = onnx_attr_ints(c, "classlabels_int64s", &n_ints),
                  *texts = onnx_attr_texts(c, "classlabels_strings", &n_texts);
    int64_t classes = n_ints > n_texts ? n_ints : n_texts;
    tn_tensor x = onnx_features(c, &s);
    if (classes < 2) onnx_refuse(c, "%lld classes", (long long)classes);
    trees t = read_trees(c, "class", classes);
    measure(c, &t, s.dim[1]);
    tn_tensor y = add_base(c, aggregate(c, &t, descend(c, &t, x, s), tn_tensor_dtype(x)), classes);
    if (classes == 2) y = two_classes(c, &t, y);
    y = onnx_post_transform(c, y);
    onnx_put_labels(c, tn_argmax(y, 1, 0), ints, n_ints, texts, n_texts);
    onnx_put(c, 1, tn_cast(y, TN_F32), ELEM_F32);
}

/* ---- TreeEnsemble of version 5: branches and leaves in arrays of their own ---- */

static const void *tensor_of(onnx_call *c, const char *name, int elem, int *out_n) {
    const onnx_attr *a = onnx_attr_find(c, name);
    onnx_tensor t;
    *out_n = 0;
    if (!a || a->type != ATTR_TENSOR) return NULL;
    onnx_read_tensor(c->im->env, a->t, &t);
    if ((elem && t.elem != elem) || (!elem && t.elem != ELEM_F32 && t.elem != ELEM_F64) || t.n > MAX_NODES)
        onnx_refuse(c, "attribute %s", name);
    const void *data = onnx_tensor_data(c->im->env, c->im->m, &t);
    *out_n = (int)t.n;
    if (elem) return data;
    double *out = ONNX_NEW(c->im->env, double, t.n + 1);
    for (int64_t i = 0; i < t.n; i++) out[i] = onnx_load(onnx_elem_dtype(t.elem), data, i);
    return out;
}

void onnx_op_tree_ensemble(onnx_call *c) {
    tn_shape s;
    int n, n_modes, n_leaves, n_weights, n_roots, n_missing;
    static const char *const transforms[] = { "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT" };
    int64_t after = onnx_attr_int(c, "post_transform", 0), how = onnx_attr_int(c, "aggregate_function", 1);
    const double *split = tensor_of(c, "nodes_splits", 0, &n), *w = tensor_of(c, "leaf_weights", 0, &n_weights);
    const uint8_t *modes = tensor_of(c, "nodes_modes", ELEM_U8, &n_modes);
    const int64_t *to = onnx_attr_ints(c, "leaf_targetids", &n_leaves), *roots = onnx_attr_ints(c, "tree_roots", &n_roots),
                  *missing = onnx_attr_ints(c, "nodes_missing_value_tracks_true", &n_missing);
    (void)onnx_attr_find(c, "nodes_hitrates");
    tn_tensor x = onnx_features(c, &s);
    if (!split || !modes || !w || !to || !roots || n_modes != n || n_weights != n_leaves || n_roots < 1 ||
        (n_missing && n_missing != n) || after != 0 || how != 1)
        onnx_refuse(c, "its attributes (post-transform %s)", after > 0 && after < 5 ? transforms[after] : "NONE");
    int64_t targets = onnx_attr_need_int(c, "n_targets");
    const int64_t *yes = ints_of(c, "nodes_truenodeids", n), *no = ints_of(c, "nodes_falsenodeids", n),
                  *feature = ints_of(c, "nodes_featureids", n);
    const int64_t *yes_leaf = ints_of(c, "nodes_trueleafs", n), *no_leaf = ints_of(c, "nodes_falseleafs", n);
    trees t = tree_room(c, n + n_leaves, targets); /* leaves behind the branches */
    if (n_roots > t.n) onnx_refuse(c, "%d roots", n_roots);
    t.n_trees = n_roots;
    for (int i = 0; i < n + n_leaves; i++) {
        if (i >= n) {
            int64_t k = to[i - n];
            if (k < 0 || k >= targets) onnx_refuse(c, "target %lld of %lld", (long long)k, (long long)targets);
            t.mode[i] = LEAF, t.weights[i * targets + k] = w[i - n], t.has[i * targets + k] = true;
            continue;
        }
        if (modes[i] > NEQ) onnx_refuse(c, "membership of sets");
        t.mode[i] = modes[i], t.feature[i] = feature[i], t.split[i] = split[i], t.missing[i] = n_missing ? missing[i] : 0;
        t.yes[i] = yes[i] + (yes_leaf[i] ? n : 0), t.no[i] = no[i] + (no_leaf[i] ? n : 0);
    }
    for (int i = 0; i < n_roots; i++) {
        int64_t r = roots[i];
        if (r < 0 || r >= n) onnx_refuse(c, "root %lld", (long long)r);
        t.root[i] = yes_leaf[r] && no_leaf[r] && yes[r] == no[r] ? n + yes[r] : r; /* a tree that is a leaf */
    }
    measure(c, &t, s.dim[1]);
    tn_tensor y = aggregate(c, &t, descend(c, &t, x, s), tn_tensor_dtype(x));
    onnx_put(c, 0, y, onnx_elem(c, 0) == ELEM_F64 ? ELEM_F64 : ELEM_F32);
}
