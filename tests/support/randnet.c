/* randnet.c - random networks: layers as users stack them (linear, activations, norms, attention, convolution and pooling,
 * rotations, embeddings, residuals), with some widths that repeat, and for most of them a training step: loss, gradients, an
 * optimiser's update of all states. What the passes, fusion, chains of kernels and in-place updates were made for, in small. */
#include "grad/grad.h"
#include "support/support.h"

typedef struct net {
    graph *g;
    arena *a;
    rng r;
    ext rows;
    int64_t width, count; /* count: of rows, or the most */
    int n_weights;
    bool inputs, narrow; /* weights are inputs; bf16 states */
    VEC(val) weights;
} net;

/* Small random weights: a state, or an input where the network only infers. */
static val weight(net *n, int rank, const int64_t *dims) {
    spec s = { .op = n->inputs ? OP_input : OP_state, .dtype = TN_F32, .rank = rank, .dims = dims };
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= dims[i];
    s.name = arena_printf(n->a, "w%d", n->n_weights++);
    if (n->narrow) s.dtype = TN_BF16;
    if (!n->inputs) {
        void *data = arena_alloc(n->a, (size_t)count * dtype_size(s.dtype) + 1);
        fill_random(&n->r, s.dtype, data, count, -0.5, 0.5);
        s.data = data;
    }
    val v = graph_add(n->g, &s);
    VEC_PUSH(n->a, &n->weights, v);
    return graph_cast(n->g, v, TN_F32);
}

static val dot(net *n, val x, val y) { /* last axis of x with the first of y */
    int64_t cx[] = { graph_get(n->g, x)->rank - 1 }, cy[] = { 0 };
    return graph_dot(n->g, x, y, NULL, NULL, 0, cx, cy, 1);
}
static val like(net *n, val small, val large) {
    const node *l = graph_get(n->g, large);
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < l->rank; i++) dims[i] = l->dims[i];
    return graph_broadcast(n->g, small, l->rank, dims);
}
static val by_row(net *n, op_code op, val x, op_code how) { /* x how reduce(x) along the last axis */
    val s = graph_reduce(n->g, op, x, 1ull << (graph_get(n->g, x)->rank - 1));
    return graph_binary(n->g, how, x, like(n, s, x));
}
static val times(net *n, val x, double c) { return graph_binary(n->g, OP_mul, x, graph_splat_like(n->g, x, c)); }
static val plus(net *n, val x, double c) { return graph_binary(n->g, OP_add, x, graph_splat_like(n->g, x, c)); }

static val linear(net *n, val x, int64_t to) {
    const node *v = graph_get(n->g, x);
    int64_t dims[] = { v->dims[v->rank - 1], to };
    val y = dot(n, x, weight(n, 2, dims));
    return rng_chance(&n->r, 0.7) ? graph_binary(n->g, OP_add, y, like(n, weight(n, 1, &to), y)) : y;
}
static val sigmoid(net *n, val x) {
    val d = plus(n, graph_unary(n->g, OP_exp, graph_unary(n->g, OP_neg, x)), 1);
    return graph_binary(n->g, OP_div, graph_splat_like(n->g, d, 1), d);
}
static val activation(net *n, val x) {
    static const op_code ops[] = { OP_tanh, OP_erf, OP_abs, OP_sin };
    int64_t k = rng_below(&n->r, 7);
    if (k < 2) return graph_binary(n->g, OP_max, x, graph_splat_like(n->g, x, 0));
    if (k == 2) return graph_binary(n->g, OP_mul, x, sigmoid(n, x));
    return graph_unary(n->g, ops[k - 3], x);
}
static val softmax(net *n, val x) {
    return by_row(n, OP_sum, graph_unary(n->g, OP_exp, by_row(n, OP_reduce_max, x, OP_sub)), OP_div);
}
static val norm(net *n, val x) {
    graph *g = n->g;
    const node *v = graph_get(g, x);
    int64_t width = v->dims[v->rank - 1];
    uint64_t last = 1ull << (v->rank - 1);
    if (rng_chance(&n->r, 0.6))
        x = graph_binary(g, OP_sub, x, like(n, times(n, graph_reduce(g, OP_sum, x, last), 1.0 / (double)width), x));
    val square = times(n, graph_reduce(g, OP_sum, graph_binary(g, OP_mul, x, x), last), 1.0 / (double)width);
    val y = graph_binary(g, OP_mul, x, like(n, graph_unary(g, OP_rsqrt, plus(n, square, 0.1)), x));
    return rng_chance(&n->r, 0.5) ? graph_binary(g, OP_mul, y, like(n, weight(n, 1, &width), y)) : y;
}
/* Heads of rows x rows, perhaps causal. */
static val attention(net *n, val x) {
    graph *g = n->g;
    int64_t heads = n->width % 2 ? 1 : rng_between(&n->r, 1, 2), each = n->width / heads, turn[] = { 1, 0, 2 };
    val part[3];
    for (int i = 0; i < 3; i++)
        part[i] = graph_permute(g, graph_reshape(g, linear(n, x, n->width), 3, (int64_t[]){ n->rows, heads, each }), turn);
    int64_t zero[] = { 0 }, one[] = { 1 }, two[] = { 2 };
    val scores = times(n, graph_dot(g, part[0], part[1], zero, zero, 1, two, two, 1), 0.5);
    if (rng_chance(&n->r, 0.5)) {
        int64_t dims[] = { heads, n->rows, n->rows };
        val row = graph_iota(g, TN_I32, 3, dims, 1), column = graph_iota(g, TN_I32, 3, dims, 2);
        scores = graph_select(g, graph_binary(g, OP_ge, row, column), scores, graph_splat_like(g, scores, -1e4));
    }
    val mixed = graph_dot(g, softmax(n, scores), part[2], zero, zero, 1, two, one, 1);
    mixed = graph_reshape(g, graph_permute(g, mixed, turn), 2, (int64_t[]){ n->rows, n->width });
    return linear(n, mixed, n->width);
}
/* A row is a picture of height x width of one channel: 3x3 or 2x2 taps, perhaps padded, then perhaps the largest of 2x2. */
static val convolution(net *n, val x) {
    graph *g = n->g;
    int64_t h = rng_between(&n->r, 4, 7), w = rng_between(&n->r, 4, 7), c = rng_between(&n->r, 1, 3),
            f = rng_between(&n->r, 1, 5), k = rng_between(&n->r, 1, 3);
    x = graph_reshape(g, linear(n, x, h * w * c), 4, (int64_t[]){ n->rows, h, w, c });
    if (rng_chance(&n->r, 0.6)) {
        int64_t border[] = { 0, k / 2, k / 2, 0 };
        x = graph_pad(g, x, border, border, 0);
    }
    int64_t stride = rng_between(&n->r, 1, 2);
    x = graph_window(g, x, (window_axis[]){ { 1, k, stride, 1 }, { 2, k, stride, 1 } }, 2); /* [b h w c i j] */
    int64_t cx[] = { 3, 4, 5 }, cy[] = { 0, 1, 2 };
    x = graph_dot(g, x, weight(n, 4, (int64_t[]){ c, k, k, f }), NULL, NULL, 0, cx, cy, 3);
    x = activation(n, x);
    const node *v = graph_get(g, x);
    if (v->dims[1] >= 2 && v->dims[2] >= 2 && rng_chance(&n->r, 0.5)) {
        x = graph_window(g, x, (window_axis[]){ { 1, 2, 2, 1 }, { 2, 2, 2, 1 } }, 2);
        x = graph_reduce(g, rng_chance(&n->r, 0.7) ? OP_reduce_max : OP_sum, x, 3ull << 4);
        v = graph_get(g, x);
    }
    int64_t all = v->dims[1] * v->dims[2] * v->dims[3];
    return linear(n, graph_reshape(g, x, 2, (int64_t[]){ n->rows, all }), n->width);
}

static val half_of(net *n, val x, int axis, int64_t which) {
    const node *v = graph_get(n->g, x);
    int64_t start[TN_MAX_RANK] = { 0 }, step[TN_MAX_RANK], count[TN_MAX_RANK];
    for (int i = 0; i < v->rank; i++) step[i] = 1, count[i] = v->dims[i];
    start[axis] = which, count[axis] = 1;
    return graph_slice(n->g, x, start, count, step);
}
/* Two pieces turned by an angle for each of their columns. */
static void turn(net *n, val *x, val *y, val angle) {
    graph *g = n->g;
    val a = *x, b = *y, c = like(n, graph_unary(g, OP_cos, angle), a), s = like(n, graph_unary(g, OP_sin, angle), a);
    *x = graph_binary(g, OP_sub, graph_binary(g, OP_mul, a, c), graph_binary(g, OP_mul, b, s));
    *y = graph_binary(g, OP_add, graph_binary(g, OP_mul, a, s), graph_binary(g, OP_mul, b, c));
}
/* Halves or quarters of each row, or every second or fourth of its elements, are turned and put together again: as positions
 * are told to attention, and as transforms of tiles or signals go. */
static val rotation(net *n, val x) {
    graph *g = n->g;
    bool twice = rng_chance(&n->r, 0.5), apart = rng_chance(&n->r, 0.5);
    int64_t parts = twice ? 4 : 2, each = (n->width + parts - 1) / parts, wide = parts * each;
    int first = apart ? 2 : 1, second = twice ? first + 1 : first; /* axes of the pieces: before their columns, or after them */
    int64_t dims[5] = { n->rows, 0, 0, 0, 0 };
    dims[first] = 2, dims[second] = 2, dims[apart ? 1 : second + 1] = each;
    x = graph_reshape(g, wide == n->width ? x : linear(n, x, wide), twice ? 4 : 3, dims);
    val piece[4], angle = weight(n, 1, &each);
    for (int i = 0; i < parts; i++) {
        piece[i] = half_of(n, x, first, twice ? i / 2 : i);
        if (twice) piece[i] = half_of(n, piece[i], second, i % 2);
    }
    if (apart) angle = graph_reshape(g, angle, twice ? 3 : 2, (int64_t[]){ each, 1, 1 });
    for (int i = 0; i < parts; i += 2) turn(n, &piece[i], &piece[i + 1], angle);
    for (int i = 0; i < 2 && twice; i++) turn(n, &piece[i], &piece[i + 2], angle);
    for (int i = 0; i < parts && twice; i += 2) piece[i / 2] = graph_concat(g, piece + i, 2, second);
    x = graph_concat(g, piece, 2, first);
    if (rng_chance(&n->r, 0.5)) x = activation(n, x);
    x = graph_reshape(g, x, 2, (int64_t[]){ n->rows, wide });
    return wide == n->width ? x : linear(n, x, n->width);
}

static val layer(net *n, val x, int64_t kind) {
    val y = kind < 4    ? activation(n, linear(n, x, n->width))
            : kind < 6  ? norm(n, x)
            : kind < 7  ? attention(n, x)
            : kind < 8  ? convolution(n, x)
            : kind < 9  ? linear(n, activation(n, linear(n, x, rng_between(&n->r, 1, 24))), n->width)
            : kind < 10 ? softmax(n, x)
                        : rotation(n, x);
    return rng_chance(&n->r, 0.3) ? graph_binary(n->g, OP_add, x, y) : y;
}

/* Rows of a table where an index says, or an input. */
static val first(net *n) {
    graph *g = n->g;
    int64_t dims[] = { n->rows, n->width };
    if (rng_chance(&n->r, 0.75))
        return graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 2, .dims = dims });
    val index = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_I32, .name = "x", .rank = 1, .dims = dims });
    val table = weight(n, 2, (int64_t[]){ rng_between(&n->r, 1, 9), n->width });
    return graph_gather(g, table, index, 0);
}

static val loss_of(net *n, val y) {
    graph *g = n->g;
    int64_t dims[] = { n->rows, n->width }, one[] = { n->rows, 1 };
    val each;
    if (rng_chance(&n->r, 0.5)) { /* cross-entropy with classes */
        val label = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_I32, .name = "t", .rank = 2, .dims = one });
        val hit = graph_binary(g, OP_eq, like(n, label, y), graph_iota(g, TN_I32, 2, dims, 1));
        val shifted = by_row(n, OP_reduce_max, y, OP_sub);
        val total = graph_unary(g, OP_log, graph_reduce(g, OP_sum, graph_unary(g, OP_exp, shifted), 2));
        each = graph_select(g, hit, graph_binary(g, OP_sub, like(n, total, y), shifted), graph_splat_like(g, y, 0));
    } else {
        val target = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "t", .rank = 2, .dims = dims });
        val d = graph_binary(g, OP_sub, y, target);
        each = graph_binary(g, OP_mul, d, d);
    }
    return times(n, graph_reshape(g, graph_reduce(g, OP_sum, each, 3), 0, NULL), 1.0 / (double)n->count);
}

/* A state of zeros like w. */
static val moment(net *n, val w, const char *name) {
    const node *v = graph_get(n->g, w);
    int64_t dims[TN_MAX_RANK];
    for (int i = 0; i < v->rank; i++) dims[i] = v->dims[i];
    spec s = {
        .op = OP_state, .dtype = TN_F32, .rank = v->rank, .dims = dims, .name = arena_printf(n->a, "%s_%s", name, v->name)
    };
    return graph_add(n->g, &s);
}
static void update(net *n, val loss) {
    graph *g = n->g;
    int count = n->weights.n;
    int64_t kind = rng_below(&n->r, 3);
    val *grads = ARENA_ARRAY(n->a, val, count), scale = 0;
    grad_build(g, loss, n->weights.at, count, grads);
    if (rng_chance(&n->r, 0.3)) { /* clipped by the norm of all */
        val sum = graph_splat(g, TN_F32, 0, NULL, 1);
        for (int i = 0; i < count; i++) {
            val d = graph_cast(g, grads[i], TN_F32);
            uint64_t all = (1ull << graph_get(g, d)->rank) - 1;
            sum = graph_binary(g, OP_add, sum,
                               graph_reshape(g, graph_reduce(g, OP_sum, graph_binary(g, OP_mul, d, d), all), 0, NULL));
        }
        scale = graph_unary(g, OP_rsqrt, sum);
    }
    for (int i = 0; i < count; i++) {
        val w = n->weights.at[i], d = graph_cast(g, grads[i], TN_F32), step = d;
        if (scale) d = step = graph_binary(g, OP_mul, d, like(n, scale, d));
        if (kind > 0) {
            val m = moment(n, w, "m"), next = graph_binary(g, OP_add, times(n, m, 0.9), times(n, d, 0.1));
            graph_assign(g, m, next);
            step = next;
        }
        if (kind > 1) {
            val s = moment(n, w, "v"),
                next = graph_binary(g, OP_add, times(n, s, 0.9), times(n, graph_binary(g, OP_mul, d, d), 0.1));
            graph_assign(g, s, next);
            step = graph_binary(g, OP_div, step, plus(n, graph_unary(g, OP_sqrt, next), 0.1));
        }
        val wide = graph_cast(g, w, TN_F32);
        graph_assign(g, w,
                     graph_cast(g, graph_binary(g, OP_sub, wide, times(n, step, 0.05)), (tn_dtype)graph_get(g, w)->dtype));
    }
}

static graph *net_of(arena *a, uint64_t seed, int *differentiated, bool dims) {
    static const int64_t rows[] = { 1, 1, 2, 3, 5, 8, 16, 17, 32, 40 }, widths[] = { 1, 3, 4, 7, 8, 16, 24, 32, 33, 64, 128 };
    net n = { .g = graph_make(a, "net"), .a = a, .r = rng_make(seed) };
    n.rows = n.count = rows[rng_below(&n.r, COUNT_OF(rows))], n.width = widths[rng_below(&n.r, COUNT_OF(widths))];
    if (dims) n.rows = ext_dim(graph_params(n.g), "rows", 1, n.count + 1, 1);
    bool trains = rng_chance(&n.r, 0.6), alike = rng_chance(&n.r, 0.4);
    n.inputs = !trains && rng_chance(&n.r, 0.5), n.narrow = rng_chance(&n.r, 0.15);
    int64_t layers = rng_between(&n.r, 1, n.width > 33 ? 4 : 7), kind = rng_below(&n.r, 11);
    val y = first(&n);
    for (int64_t i = 0; i < layers; i++) {
        if (!alike) kind = rng_below(&n.r, 11);
        y = layer(&n, y, kind);
    }
    if (trains) {
        val loss = loss_of(&n, y);
        graph_output(n.g, "loss", loss);
        if (n.weights.n) update(&n, loss), *differentiated += 1;
    }
    if (!trains || rng_chance(&n.r, 0.5)) graph_output(n.g, "y", y);
    graph_compact(n.g);
    return n.g;
}

graph *randnet(arena *a, uint64_t seed, int *differentiated) { return net_of(a, seed, differentiated, false); }
graph *randnet_dims(arena *a, uint64_t seed, int *differentiated) { return net_of(a, seed, differentiated, true); }
