/* sort.c - sort, argsort, top-k: compositions.
 *
 * A sort is a bitonic network (Batcher 1968): compare and exchange, min and max of two slices, in an order that does not depend
 * on the values. So it is made of ops that run in vectors on every device, fuse, and need no rule of their own. Keys are
 * sorted: integers in the order of the values. For values alone a key is an integer of the value's width, which tells all of
 * the value. For positions it has 64 bits, the value's order above its position: no two are equal, which makes the order
 * stable, and the position is read off the sorted key. Positions of values of 64 bits take two sorts, by their lower and then
 * by their upper 32 bits.
 *
 * The network is laid out so that exchanges meet along an outer axis: the sequence is cut into columns, which lie side by side
 * in memory and are sorted all at once, and then merged. All that stays in a tile of rows of columns is done tile by tile, and
 * exchanges from tile to tile in tiles, too, of as many rows, each a tile as it lies in memory, and neighbours: a GPU keeps
 * either kind (sched/row_cut.c). */
#include "api/api.h"

#include <math.h>

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

enum {
    LANES_BYTES = 64, /* neighbours in memory that make an exchange fast: columns of a sequence; 8 or 16 keys */
    FEW = 4,          /* elements of exchanges done at once; as many as there are lanes .. */
    MOST = LANES_BYTES / 4,
    MANY_BYTES = 1 << 20, /* .. where the keys are so many that each pass over them waits for memory */
    TILE = 1 << 12,       /* keys side by side, exchanges among which follow each other without waiting for memory; .. */
    LARGE_TILE = 1 << 13, /* .. of so long a sequence that tiles of as many rows would be narrow */
    LARGE = 1 << 22,
    MOST_BESIDE = 1024 /* keys of rows that lie side by side */
};
static const double WORD = 4294967296.0; /* values of 32 bits */

typedef struct keys { /* [outer, length, inner], i32 or i64; outer is 1 where a run gives inner */
    val at;
    ext outer;
    int64_t length;
    ext inner;
} keys;

/* ---- shorthands ---- */

static ext times(graph *g, ext a, ext b) { return ext_is_lit(a) && ext_is_lit(b) ? a * b : ext_mul(graph_params(g), a, b); }
static int64_t key_bytes(const graph *g, val x) { return (int64_t)dtype_size((tn_dtype)graph_get(g, x)->dtype); }
static int lanes_of(const graph *g, val x) { return LANES_BYTES / (int)key_bytes(g, x); }
/* Keys side by side; as many as make exchanges fast, where a run gives how many. */
static int64_t width_of(const graph *g, keys k) { return ext_is_lit(k.inner) ? k.inner : lanes_of(g, k.at); }
static val reshape4(graph *g, val x, ext a, ext b, ext c, ext d) { return graph_reshape(g, x, 4, (ext[]){ a, b, c, d }); }
static val first_of(graph *g, val x, ext outer, ext count, ext inner) {
    return graph_slice(g, x, (int64_t[3]){ 0 }, (ext[]){ outer, count, inner }, (int64_t[]){ 1, 1, 1 });
}
static val number(graph *g, val like, double v) { return graph_splat_like(g, like, v); }
static val binary(graph *g, op_code op, val x, double y) { return graph_binary(g, op, x, number(g, x, y)); }
static double last_key(const graph *g, val like) { return key_bytes(g, like) < 8 ? INT32_MAX : 0x1p63; }

/* Entries [first, first + count) of axis, out of rank 4. */
static val part(graph *g, val x, int axis, int64_t first, int64_t count) {
    const node *n = graph_get(g, x);
    int64_t start[4] = { 0 }, size[4], step[4] = { 1, 1, 1, 1 };
    memcpy(size, n->dims, sizeof size);
    start[axis] = first, size[axis] = count;
    return graph_slice(g, x, start, size, step);
}
static int64_t power_above(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

/* ---- the network ---- */

/* Exchanges at distances n / 2 .. 1 among n slices; up: from 1 on. */
static void exchange(graph *g, val *slice, int n, bool up) {
    for (int step = 1; step < n; step *= 2) {
        int half = up ? step : n / 2 / step;
        for (int i = 0; i < n; i++) {
            if (i & half) continue;
            val low = graph_binary(g, OP_min, slice[i], slice[i | half]);
            slice[i | half] = graph_binary(g, OP_max, slice[i], slice[i | half]);
            slice[i] = low;
        }
    }
}

/* What is merged with what comes before it is sorted from its end: by keys with all bits turned. */
typedef struct turning {
    int turned;      /* of entries that are exchanged, those with this bit of their number are turned, and no more then; */
    bool odd, later; /* turned are then those of odd numbers along the first axis; the later half along the last */
} turning;

/* 0 and -1, of x's shape. */
static val odd_ones(graph *g, val x) {
    const node *n = graph_get(g, x);
    return graph_unary(g, OP_neg, binary(g, OP_and, graph_iota(g, (tn_dtype)n->dtype, n->rank, n->dims, 0), 1));
}
static val later_half(graph *g, val x) {
    const node *n = graph_get(g, x);
    int last = n->rank - 1;
    val first = binary(g, OP_lt, graph_iota(g, TN_I64, n->rank, n->dims, last), (double)(n->dims[last] / 2));
    return graph_select(g, first, number(g, x, 0), number(g, x, -1));
}

/* Entries 0 .. n of axis, in the order of axes perm, are exchanged, and lie next to each other along axis `to` then. */
static val exchange_along(graph *g, val x, int axis, int n, bool up, const int64_t *perm, int to, const turning *t) {
    const node *m = graph_get(g, x);
    int64_t start[TN_MAX_RANK] = { 0 }, size[TN_MAX_RANK], step[TN_MAX_RANK];
    int rank = m->rank;
    val slice[MOST];
    for (int i = 0; i < rank; i++) size[i] = m->dims[i], step[i] = 1;
    size[axis] = 1;
    for (int i = 0; i < n; i++) {
        start[axis] = i;
        val y = graph_slice(g, x, start, size, step), mask = 0;
        bool back = t && (i & t->turned);
        if (t && (t->odd || t->later)) mask = t->odd ? odd_ones(g, y) : later_half(g, y);
        if (back) mask = mask ? binary(g, OP_xor, mask, -1) : number(g, y, -1);
        if (mask) y = graph_binary(g, OP_xor, y, mask);
        slice[i] = perm ? graph_permute(g, y, perm) : y;
    }
    exchange(g, slice, n, up);
    return graph_concat(g, slice, n, to);
}

static int most_together(const graph *g, keys k) {
    return graph_dim_most(g, k.outer) * k.length * graph_dim_most(g, k.inner) * key_bytes(g, k.at) < MANY_BYTES
               ? FEW
               : lanes_of(g, k.at);
}

/* Bitonic runs of `run` keys become sorted: exchanges at strides run / 2 .. 1. */
static keys sort_runs(graph *g, keys k, int64_t run) {
    for (int64_t stride = run / 2; stride >= 1; stride /= 2) {
        int64_t blocks = k.outer * k.length / (2 * stride), width = width_of(g, k), lanes = lanes_of(g, k.at);
        if (stride * width < lanes && blocks >= lanes) { /* the rest on the transpose */
            int64_t row = 2 * stride * k.inner;
            val x = graph_permute(g, graph_reshape(g, k.at, 2, (int64_t[]){ blocks, row }), (int64_t[]){ 1, 0 });
            keys t = sort_runs(g, (keys){ x, 1, 2 * stride, blocks * k.inner }, 2 * stride);
            k.at = graph_permute(g, graph_reshape(g, t.at, 2, (int64_t[]){ row, blocks }), (int64_t[]){ 1, 0 });
            return k;
        }
        int n = 2, most = most_together(g, k);
        while (n < most && stride > 1 && (stride / 2 * width >= lanes || blocks < lanes)) n *= 2, stride /= 2;
        val x = graph_reshape(g, k.at, 3, (ext[]){ k.outer * k.length / (n * stride), n, times(g, stride, k.inner) });
        k.at = exchange_along(g, x, 1, n, false, NULL, 1, NULL);
    }
    return k;
}

/* a and b, [outer, n, inner], are sorted along n, a power of two: so is the result, k.length = 2 n. Of many, the exchanges at
 * strides n and n / 2 .. are done together, those of the second half on what is turned round at last. */
static keys join(graph *g, keys k, val a, val b) {
    int64_t n = k.length / 2, at_once = 1, most = most_together(g, k) == FEW ? 1 : lanes_of(g, k.at) / 2;
    while (at_once < most && n / at_once > 1 && (n / at_once / 2 * width_of(g, k) >= lanes_of(g, k.at) || k.inner == 1))
        at_once *= 2;
    int64_t stride = n / at_once;
    val low[MOST], *high = low + at_once;
    a = reshape4(g, a, k.outer, at_once, stride, k.inner), b = reshape4(g, b, k.outer, at_once, stride, k.inner);
    b = graph_flip(g, b, 1 << 1 | 1 << 2);
    for (int i = 0; i < at_once; i++) {
        val x = part(g, a, 1, i, 1), y = part(g, b, 1, i, 1);
        low[i] = graph_binary(g, OP_min, x, y);
        high[at_once - 1 - i] = graph_binary(g, OP_max, x, y);
    }
    exchange(g, low, (int)at_once, false), exchange(g, high, (int)at_once, false);
    for (int i = 0; i < at_once && stride > 1; i++) high[i] = graph_flip(g, high[i], 1 << 2);
    k.at = graph_concat(g, low, (int)(2 * at_once), 1);
    return sort_runs(g, k, stride);
}

/* Sorts along the length, a power of two. */
static keys sort_columns(graph *g, keys k) {
    int64_t first = most_together(g, k) < k.length ? most_together(g, k) : k.length, length = k.length;
    ext outer = k.outer;
    val slice[MOST], x = reshape4(g, k.at, 1, outer * length / first, first, k.inner);
    for (int i = 0; i < first; i++) slice[i] = part(g, x, 2, i, 1);
    for (int run = 2; run <= first; run *= 2)
        for (int at = 0; at < first; at += run) {
            for (int i = at, j = at + run - 1; i < j; i++, j--) {
                val low = graph_binary(g, OP_min, slice[i], slice[j]);
                slice[j] = graph_binary(g, OP_max, slice[i], slice[j]), slice[i] = low;
            }
            exchange(g, slice + at, run / 2, false), exchange(g, slice + at + run / 2, run / 2, false);
        }
    k.at = graph_concat(g, slice, (int)first, 2);
    for (int64_t run = 2 * first; run <= length; run *= 2) {
        x = reshape4(g, k.at, outer * length / run, 2, run / 2, k.inner);
        k.outer = outer * length / run, k.length = run;
        k = join(g, k, part(g, x, 1, 0, 1), part(g, x, 1, 1, 1));
    }
    k.outer = outer, k.length = length;
    return k;
}

static keys padded(graph *g, keys k, int64_t length) {
    k.at = graph_reshape(g, k.at, 3, (int64_t[]){ k.outer, k.length, k.inner });
    k.at = graph_pad(g, k.at, (int64_t[]){ 0, 0, 0 }, (int64_t[]){ 0, length - k.length, 0 }, last_key(g, k.at));
    k.length = length;
    return k;
}

/* ---- tiles ---- */

typedef struct tiling {
    int64_t tile, tiles; /* keys of a tile; how many there are */
    int lanes;           /* columns */
    int bits;            /* of the numbers of entries that are exchanged at once, at most */
} tiling;

static int log2_of(int64_t n) {
    int bits = 0;
    while ((int64_t)1 << bits < n) bits++;
    return bits;
}
static int passes_of(const tiling *t, int64_t n) { return (log2_of(n) + t->bits - 1) / t->bits; }

/* Entries that pass i of those for n exchanges at once. */
static int64_t together(const tiling *t, int64_t n, int i) {
    int passes = passes_of(t, n);
    return (int64_t)1 << (log2_of(n) + passes - 1 - i) / passes;
}

/* x: runs of `rows` rows of `columns` keys, exchanged along the rows in tiles of them; columns of the sequence are exchanged
 * before, if among > 1, so many. What is turned is turned back first. */
static val exchange_rows(graph *g, val x, const tiling *t, int64_t runs, int64_t rows, int64_t columns, int among,
                         const turning *turn) {
    int64_t width = t->tile / rows, across = columns / width, done = 1;
    int passes = passes_of(t, rows);
    if (among > 1) {
        x = graph_reshape(g, x, 6, (int64_t[]){ runs, rows, across, width / t->lanes, among, t->lanes / among });
        x = exchange_along(g, x, 4, among, true, (int64_t[]){ 0, 2, 1, 3, 4, 5 }, 4, turn);
    } else if (passes == 1) {
        return exchange_along(g, graph_reshape(g, x, 3, (int64_t[]){ runs, rows, columns }), 1, (int)rows, false, NULL, 1,
                              turn);
    }
    for (int i = 0; i < passes; i++) {
        int64_t n = together(t, rows, i), rest = rows / done / n;
        if (i == 0 && among < 2) {
            x = graph_reshape(g, x, 5, (int64_t[]){ runs, n, rest, across, width });
            x = exchange_along(g, x, 1, (int)n, false, (int64_t[]){ 0, 3, 1, 2, 4 }, 2, turn);
        } else if (i + 1 < passes) {
            x = graph_reshape(g, x, 3, (int64_t[]){ runs * across * done, n, rest * width });
            x = exchange_along(g, x, 1, (int)n, false, NULL, 1, NULL);
        } else {
            x = graph_reshape(g, x, 5, (int64_t[]){ runs, across, done, n, width });
            x = exchange_along(g, x, 3, (int)n, false, (int64_t[]){ 0, 2, 3, 1, 4 }, 2, NULL);
        }
        done *= n;
    }
    return x;
}

/* Bitonic runs of `rows` tiles become sorted along their columns, and along `among` neighbouring columns before. */
static val sort_run_of_tiles(graph *g, val x, const tiling *t, int64_t rows, int among, const turning *turn) {
    int64_t most = t->tile / (2 * t->lanes), of_tile = t->tile / t->lanes, left = of_tile;
    if (rows == 1) {
        x = graph_reshape(g, x, 3, (int64_t[]){ t->tiles * of_tile, among, t->lanes / among });
        x = exchange_along(g, x, 1, among, true, NULL, 1, turn);
    }
    for (int64_t n, runs = t->tiles / rows; rows > 1; rows /= n, runs *= n, among = 1, turn = NULL) {
        n = rows < most ? rows : most;
        x = exchange_rows(g, x, t, runs, n, rows / n * t->tile, among, turn);
    }
    for (int i = 0; i < passes_of(t, of_tile); i++) {
        int64_t n = together(t, of_tile, i);
        x = graph_reshape(g, x, 3, (int64_t[]){ t->tiles * (of_tile / left), n, left / n * t->lanes });
        x = exchange_along(g, x, 1, (int)n, false, NULL, 1, NULL);
        left /= n;
    }
    return x;
}

/* [outer, length], a power of two above the lanes. Columns are sorted: within tiles, then runs of tiles are merged. Then
 * columns are merged, and stay where they are: the result is what lies column by column, by their numbers with bits reversed.
 */
static val sort_tiles(graph *g, keys k) {
    int64_t lanes = lanes_of(g, k.at);
    tiling t = { .tile = k.length < LARGE ? TILE : LARGE_TILE, .lanes = (int)lanes };
    t.bits = log2_of(most_together(g, k));
    if (t.tile > k.length) t.tile = k.length;
    t.tiles = k.outer * k.length / t.tile;
    int64_t of_column = k.length / t.tile, rows_of_all = k.outer * k.length / lanes;
    int64_t dims[TN_MAX_RANK] = { k.outer, k.length / lanes }, reversed[TN_MAX_RANK] = { 0 };
    int rank = 2;
    for (int n = 1; n < lanes; n *= 2) dims[rank++] = 2;
    for (int i = 1; i < rank; i++) reversed[i] = rank - i;
    val x = graph_reshape(g, k.at, 2, (int64_t[]){ of_column > 1 ? t.tiles : rows_of_all, of_column > 1 ? t.tile : lanes });
    x = graph_binary(g, OP_xor, x, of_column > 1 ? odd_ones(g, x) : later_half(g, x));
    x = sort_columns(g, (keys){ x, t.tiles, t.tile / lanes, lanes }).at;
    for (int64_t rows = 2; rows <= of_column; rows *= 2) {
        int64_t at_first = rows < t.tile / (2 * lanes) ? rows : t.tile / (2 * lanes);
        turning turn = { .turned = (int)together(&t, at_first, 0) / 2, .odd = rows < of_column };
        if (!turn.odd) { /* by columns from there on */
            x = graph_reshape(g, x, 2, (int64_t[]){ rows_of_all, lanes });
            x = graph_binary(g, OP_xor, x, later_half(g, x));
        }
        x = sort_run_of_tiles(g, x, &t, rows, 1, &turn);
    }
    for (int n = 2; n <= lanes; n *= 2)
        x = sort_run_of_tiles(g, x, &t, of_column, n, &(turning){ .turned = 1, .later = n < lanes });
    return graph_permute(g, graph_reshape(g, x, rank, dims), reversed);
}

static keys sort_all(graph *g, keys k) {
    ext inner = k.inner;
    int64_t lanes = lanes_of(g, k.at);
    k = padded(g, k, power_above(k.length));
    if (width_of(g, k) >= lanes || k.length <= lanes) return sort_columns(g, k);
    if (inner > 1) k.at = graph_permute(g, k.at, (int64_t[]){ 0, 2, 1 });
    k.outer *= inner, k.inner = 1;
    k.at = sort_tiles(g, k);
    k.outer /= inner, k.inner = inner;
    if (inner == 1) return k;
    k.at = graph_reshape(g, k.at, 3, (int64_t[]){ k.outer, inner, k.length });
    k.at = graph_permute(g, k.at, (int64_t[]){ 0, 2, 1 });
    return k;
}

/* The `most` first ones, sorted: columns of as many are sorted; of two columns the lower half stays. */
static keys sort_first(graph *g, keys k, int64_t most) {
    int64_t length = power_above(most), columns = (k.length + length - 1) / length;
    ext inner = k.inner;
    if (columns <= 2) return sort_all(g, k);
    k = padded(g, k, columns * length);
    k.length = length, k.inner = times(g, columns, inner);
    k = sort_columns(g, k);
    while (columns > 1) {
        int64_t half = (columns + 1) / 2;
        val x = reshape4(g, k.at, k.outer, length, columns, inner);
        if (columns % 2) x = graph_pad(g, x, (int64_t[4]){ 0 }, (int64_t[]){ 0, 0, 1, 0 }, last_key(g, x));
        val b = graph_flip(g, part(g, x, 2, half, half), 2);
        k.at = graph_binary(g, OP_min, part(g, x, 2, 0, half), b);
        columns = half, k.inner = times(g, half, inner);
        k = sort_runs(g, k, length);
    }
    return k;
}

/* ---- keys ---- */

/* ---- few of many ---- */

/* Neighbours make a group. Among all keys the first `most` lie in the `most` groups that begin first, for each of those has a
 * key before all of any other group: so these groups are looked for, and then among their keys. */
enum { GROUP = 16, MANY = 2 * GROUP /* groups pay where there are so many times more keys */ };

static int64_t groups_of(int64_t n) { return (n + GROUP - 1) / GROUP; }

/* x [outer, n, inner]: the least of each group, [outer, groups, inner]; the last one may be short. */
static val least_of_groups(graph *g, val x) {
    const node *n = graph_get(g, x);
    ext outer = n->dims[0], inner = n->dims[2];
    int64_t whole = n->dims[1] / GROUP, rest = n->dims[1] - whole * GROUP;
    ext size[3] = { outer, whole * GROUP, inner };
    int64_t start[3] = { 0 }, step[3] = { 1, 1, 1 };
    val part[2] = { graph_slice(g, x, start, size, step) };
    part[0] = graph_reduce(g, OP_reduce_min, reshape4(g, part[0], outer, whole, GROUP, inner), 1 << 2);
    part[0] = graph_reshape(g, part[0], 3, (int64_t[]){ outer, whole, inner });
    if (!rest) return part[0];
    start[1] = whole * GROUP, size[1] = rest;
    part[1] = graph_reduce(g, OP_reduce_min, graph_slice(g, x, start, size, step), 1 << 1);
    return graph_concat(g, part, 2, 1);
}

/* The positions of all keys of groups: [outer, count, inner] to [outer, count * GROUP, inner]; some may be behind the last. */
static val members(graph *g, val group) {
    const node *n = graph_get(g, group);
    ext outer = n->dims[0], inner = n->dims[2];
    int64_t count = n->dims[1];
    ext dims[4] = { outer, count, GROUP, inner };
    val first = binary(g, OP_mul, reshape4(g, group, outer, count, 1, inner), GROUP);
    val at = graph_binary(g, OP_add, graph_expand(g, first, dims), graph_iota(g, TN_I64, 4, dims, 2));
    return graph_reshape(g, at, 3, (int64_t[]){ outer, count * GROUP, inner });
}

static val first_keys(graph *g, keys k, int64_t count) {
    ext outer = k.outer, inner = k.inner;
    bool of_run = !ext_is_lit(outer) || !ext_is_lit(inner);
    if (of_run) { /* all sequences lie side by side */
        k.at = graph_permute(g, graph_reshape(g, k.at, 3, (ext[]){ outer, k.length, inner }), (int64_t[]){ 1, 0, 2 });
        k.outer = 1, k.inner = times(g, outer, inner);
    }
    k = sort_first(g, k, count);
    val r = graph_reshape(g, k.at, 3, (ext[]){ k.outer, k.length, k.inner });
    r = first_of(g, r, k.outer, count, k.inner);
    if (!of_run) return r;
    return graph_permute(g, graph_reshape(g, r, 3, (ext[]){ count, outer, inner }), (int64_t[]){ 1, 0, 2 });
}

static val take(graph *g, val x, val index);

/* The first `count` keys, sorted, of keys whose positions are their places. */
static val few_keys(graph *g, keys k, int64_t count) {
    if (k.length <= MANY * count) return first_keys(g, k, count);
    k.at = graph_reshape(g, k.at, 3, (int64_t[]){ k.outer, k.length, k.inner });
    val least = least_of_groups(g, k.at);
    val best = first_keys(g, (keys){ least, k.outer, groups_of(k.length), k.inner }, count);
    val at = members(g, binary(g, OP_div, binary(g, OP_and, best, WORD - 1), GROUP));
    val real = binary(g, OP_lt, at, (double)k.length);
    val key = take(g, k.at, binary(g, OP_min, at, (double)(k.length - 1)));
    key = graph_select(g, real, key, number(g, key, last_key(g, key)));
    return first_keys(g, (keys){ key, k.outer, count * GROUP, k.inner }, count);
}

/* Integers in the order of x, of 32 bits where x has no more: NaNs behind all numbers, -0 like 0. */
static val ordered(graph *g, val x, bool descending) {
    tn_dtype t = (tn_dtype)graph_get(g, x)->dtype;
    if (dtype_is_narrow_float(t)) x = graph_cast(g, x, t = TN_F32);
    val r = x;
    if (dtype_is_float(t)) {
        double lowest = t == TN_F32 ? -2147483648.0 : -9223372036854775808.0;
        val zero = number(g, x, 0), bits;
        bits = graph_bitcast(g, graph_select(g, graph_binary(g, OP_eq, x, zero), zero, x), t == TN_F32 ? TN_I32 : TN_I64);
        val low = graph_binary(g, OP_sub, number(g, bits, lowest), bits); /* minus the bits of -x */
        r = graph_select(g, binary(g, OP_lt, bits, 0), low, bits);
        r = graph_select(g, graph_binary(g, OP_ne, x, x), number(g, bits, -lowest), r);
    }
    if (dtype_is_unsigned(t) && dtype_size(t) >= 4) { /* with the highest bit flipped in the order of numbers with a sign */
        r = graph_bitcast(g, x, dtype_size(t) < 8 ? TN_I32 : TN_I64);
        r = graph_binary(g, OP_xor, r, number(g, r, dtype_size(t) < 8 ? -0x1p31 : -0x1p63));
    }
    r = graph_cast(g, r, dtype_size(t) < 8 ? TN_I32 : TN_I64);
    return descending ? graph_binary(g, OP_sub, number(g, r, -1), r) : r;
}

/* A digit of 32 bits above its position. */
static val key_of(graph *g, val digit, val at) {
    return graph_binary(g, OP_add, binary(g, OP_mul, graph_cast(g, digit, TN_I64), WORD), at);
}

/* The first `count` keys, in order: [outer, count, inner]. */
static val sorted_keys(graph *g, keys k, int64_t count) {
    const ext outer = k.outer, inner = k.inner;
    int64_t lanes = lanes_of(g, k.at);
    int64_t beside = 1; /* so many short rows lie side by side, as many as fit in a tile; or all */
    if (ext_is_lit(outer) && width_of(g, k) < lanes && k.length <= MOST_BESIDE) {
        while (beside * inner * power_above(k.length) < LARGE_TILE && outer % (2 * beside) == 0) beside *= 2;
        if (beside * inner < lanes && outer >= lanes) beside = outer;
    }
    if (beside > 1) {
        k.at = graph_permute(g, reshape4(g, k.at, outer / beside, beside, k.length, inner), (int64_t[]){ 0, 2, 1, 3 });
        k.inner *= beside, k.outer /= beside;
    }
    val r = first_keys(g, k, count);
    if (beside > 1) {
        r = graph_permute(g, reshape4(g, r, k.outer, count, beside, inner), (int64_t[]){ 0, 2, 1, 3 });
        r = graph_reshape(g, r, 3, (int64_t[]){ outer, count, inner });
    }
    return r;
}

/* The positions of the first `count` of [outer, n, inner] digits of 32 bits, in order. */
static val order_of(graph *g, val digit, const ext dims[3], int64_t count) {
    keys k = { key_of(g, digit, graph_iota(g, TN_I64, 3, dims, 1)), dims[0], dims[1], dims[2] };
    return binary(g, OP_and, sorted_keys(g, k, count), WORD - 1);
}

/* x times a size. */
static val by_size(graph *g, val x, ext size) {
    if (ext_is_lit(size)) return binary(g, OP_mul, x, (double)size);
    val n = graph_reshape(g, graph_size(g, TN_I64, size), 3, (int64_t[]){ 1, 1, 1 });
    return graph_binary(g, OP_mul, x, graph_expand(g, n, graph_get(g, x)->dims));
}

/* x[o, index[o, k, i], i] */
static val take(graph *g, val x, val index) {
    const node *n = graph_get(g, x), *m = graph_get(g, index);
    ext outer = n->dims[0], length = n->dims[1], inner = n->dims[2];
    ext dims[3] = { m->dims[0], m->dims[1], m->dims[2] };
    val at = by_size(g, index, inner);
    if (inner != 1) at = graph_binary(g, OP_add, at, graph_iota(g, TN_I64, 3, dims, 2));
    if (outer != 1) at = graph_binary(g, OP_add, at, by_size(g, graph_iota(g, TN_I64, 3, dims, 0), times(g, length, inner)));
    val flat = graph_reshape(g, x, 1, (ext[]){ times(g, times(g, outer, length), inner) });
    ext taken = times(g, times(g, dims[0], dims[1]), dims[2]);
    return graph_reshape(g, graph_gather(g, flat, graph_reshape(g, at, 1, &taken), 0), 3, dims);
}

/* The positions of the first `count` of x [outer, n, inner], of 32 bits or less, in order. What is far from them is read once,
 * and not written. Groups that begin alike come in their order, as their keys would. */
static val few_of(graph *g, val x, const ext dims[3], int64_t count, bool descending) {
    val least = least_of_groups(g, ordered(g, x, descending));
    int64_t n_groups = groups_of(dims[1]);
    ext of_groups[3] = { dims[0], n_groups, dims[2] };
    keys groups = { key_of(g, least, graph_iota(g, TN_I64, 3, of_groups, 1)), dims[0], n_groups, dims[2] };
    val at = members(g, binary(g, OP_and, few_keys(g, groups, count), WORD - 1));
    val real = binary(g, OP_lt, at, (double)dims[1]);
    val key = key_of(g, ordered(g, take(g, x, binary(g, OP_min, at, (double)(dims[1] - 1))), descending), at);
    key = graph_select(g, real, key, number(g, key, last_key(g, key)));
    return binary(g, OP_and, first_keys(g, (keys){ key, dims[0], count * GROUP, dims[2] }, count), WORD - 1);
}

/* Sorted by their lower and then by their upper halves. */
static val order_of_pairs(graph *g, val digit, const ext dims[3], int64_t count) {
    val low = binary(g, OP_and, digit, WORD - 1), high = binary(g, OP_div, graph_binary(g, OP_sub, digit, low), WORD);
    val first = order_of(g, binary(g, OP_sub, low, WORD / 2), dims, dims[1]);
    val second = order_of(g, take(g, high, first), dims, count);
    return take(g, first, second);
}
static val order_of_all(graph *g, val digit, const ext dims[3], int64_t count) {
    return key_bytes(g, digit) < 8 ? order_of(g, digit, dims, count) : order_of_pairs(g, digit, dims, count);
}

/* Bits of floats as integers in their order, and back: those of negative numbers are turned, but for the sign. */
static val turned_bits(graph *g, val bits) {
    val turned = binary(g, OP_xor, binary(g, OP_xor, bits, -1), key_bytes(g, bits) < 8 ? -0x1p31 : -0x1p63);
    return graph_select(g, binary(g, OP_lt, bits, 0), turned, bits);
}

/* Integers in the order of x that tell all of x but which NaN it is; -0 comes before 0. */
static val whole_keys(graph *g, val x, bool descending) {
    tn_dtype t = (tn_dtype)graph_get(g, x)->dtype;
    if (!dtype_is_float(t)) return ordered(g, x, descending);
    if (dtype_is_narrow_float(t)) x = graph_cast(g, x, t = TN_F32);
    val r = turned_bits(g, graph_bitcast(g, x, t == TN_F32 ? TN_I32 : TN_I64));
    r = graph_select(g, graph_binary(g, OP_ne, x, x), number(g, r, last_key(g, r)), r);
    return descending ? graph_binary(g, OP_sub, number(g, r, -1), r) : r;
}
static val value_of(graph *g, val key, tn_dtype t, bool descending) {
    if (descending) key = graph_binary(g, OP_sub, number(g, key, -1), key);
    if (dtype_is_float(t)) return graph_cast(g, graph_bitcast(g, turned_bits(g, key), t == TN_F64 ? TN_F64 : TN_F32), t);
    if (!dtype_is_unsigned(t) || dtype_size(t) < 4) return graph_cast(g, key, t);
    return graph_bitcast(g, binary(g, OP_xor, key, dtype_size(t) < 8 ? -0x1p31 : -0x1p63), t);
}

/* x [outer, n, inner] sorted: keys alone, without positions, in half the bytes. Gradients go by positions, which nothing else
 * reads: without a gradient that sort is dead. */
static val sort_values(graph *g, val x, const ext dims[3], bool descending) {
    tn_dtype t = (tn_dtype)graph_get(g, x)->dtype;
    val r =
        value_of(g, sorted_keys(g, (keys){ whole_keys(g, x, descending), dims[0], dims[1], dims[2] }, dims[1]), t, descending);
    if (!dtype_is_float(t)) return r;
    val at = order_of_all(g, ordered(g, x, descending), dims, dims[1]);
    return graph_binary(g, OP_straight_through, take(g, x, at), r);
}

/* ---- builders ---- */

/* dims of x around axis, as [outer, n, inner] */
static int fold_dims(graph *g, val x, int64_t axis, ext dims[3]) {
    const node *n = graph_get(g, x);
    int64_t a = axis < 0 ? axis + n->rank : axis;
    if (a < 0 || a >= n->rank) FAIL(g, TN_ERR_SHAPE, "axis %lld is out of range for rank %d", (long long)axis, n->rank);
    dims[0] = dims[2] = 1, dims[1] = n->dims[a];
    for (int i = 0; i < n->rank; i++)
        if (i != a) dims[i < a ? 0 : 2] = times(g, dims[i < a ? 0 : 2], n->dims[i]);
    return (int)a;
}
static val with_axis(graph *g, val r, val x, int axis, ext count) {
    const node *n = graph_get(g, x);
    ext dims[TN_MAX_RANK];
    for (int i = 0; i < n->rank; i++) dims[i] = i == axis ? count : n->dims[i];
    return graph_reshape(g, r, n->rank, dims);
}

typedef struct order_args {
    int64_t axis;
    bool descending, all; /* all: count is the axis' size */
    bool immediate;       /* the graph is immediate: what is built is computed */
    ext count;
} order_args;

/* What comes behind all values, or like the last ones. */
static double behind_all(tn_dtype t, bool descending) {
    if (dtype_is_float(t)) return descending ? -INFINITY : (double)NAN;
    return t == TN_BOOL ? !descending : descending ? -0x1p64 : 0x1p64; /* the ends of its range */
}

/* x with its axis in the middle, as [outer, n, inner]. Where a run gives n, it is filled up to the most that n may be: what
 * fills it comes last, as equal values stay in their order. */
static val folded(graph *g, val x, const order_args *o, ext dims[3]) {
    x = graph_reshape(g, x, 3, dims);
    if (ext_is_lit(dims[1])) return x;
    ext most = graph_dim_most(g, dims[1]), after[3] = { 0, ext_sub(g->params, most, dims[1]), 0 };
    dims[1] = most;
    return graph_pad(g, x, (ext[3]){ 0 }, after, behind_all((tn_dtype)graph_get(g, x)->dtype, o->descending));
}

static val ordered_positions(graph *g, val x, const order_args *o, ext dims[3], int64_t count) {
    tn_dtype t = (tn_dtype)graph_get(g, x)->dtype;
    x = folded(g, x, o, dims);
    if (dtype_size(t) < 8 && dims[1] > MANY * count) return few_of(g, x, dims, count, o->descending);
    return order_of_all(g, ordered(g, x, o->descending), dims, count);
}

static void need_few(graph *g, ext n, int axis) {
    if (graph_dim_most(g, n) >= (int64_t)1 << 31)
        FAIL(g, TN_ERR_UNSUPPORTED, "%lld along axis %d; sorted are fewer than 2^31", (long long)graph_dim_most(g, n), axis);
}

static val build_order(graph *g, const val *in, void *args) {
    const order_args *o = args;
    ext dims[3];
    int axis = fold_dims(g, in[0], o->axis, dims);
    ext n = dims[1], count = o->all ? n : o->count;
    if (ext_is_lit(count) ? count < 0 : !graph_is_dim(g, count)) FAIL(g, TN_ERR_INVAL, "k is %lld", (long long)count);
    if (count != n && (ext_is_lit(n) && ext_is_lit(count) ? count > n : !ext_never_less(g->params, n, count)))
        FAIL(g, TN_ERR_SHAPE, "%s of the %s along axis %d", graph_dim_text(g, count), graph_dim_text(g, n), axis);
    need_few(g, n, axis);
    if (count == 0 || dims[0] == 0 || dims[2] == 0) {
        val none = graph_splat(g, TN_I64, 3, (ext[]){ dims[0], count, dims[2] }, 0);
        return with_axis(g, none, in[0], axis, count);
    }
    val r = ordered_positions(g, in[0], o, dims, graph_dim_most(g, count));
    return with_axis(g, ext_is_lit(count) ? r : first_of(g, r, dims[0], count, dims[2]), in[0], axis, count);
}

static val build_take(graph *g, const val *in, void *args) {
    const int64_t *axis_at = args;
    ext dims[3], of_index[3];
    const node *x = graph_get(g, in[0]), *index = graph_get(g, in[1]);
    int axis = fold_dims(g, in[0], *axis_at, dims);
    if (index->dtype != TN_I32 && index->dtype != TN_I64)
        FAIL(g, TN_ERR_DTYPE, "indices are %s, must be i32 or i64", dtype_name((tn_dtype)index->dtype));
    bool fits = x->rank == index->rank;
    for (int i = 0; fits && i < x->rank; i++) fits = i == axis || x->dims[i] == index->dims[i];
    if (!fits) FAIL(g, TN_ERR_SHAPE, "shapes differ outside of axis %d", axis);
    fold_dims(g, in[1], axis, of_index);
    if (dims[1] == 0 && of_index[1] > 0) FAIL(g, TN_ERR_SHAPE, "axis %d has no entry to take", axis);
    val at = graph_cast(g, graph_reshape(g, in[1], 3, of_index), TN_I64);
    val last = ext_is_lit(dims[1]) ? number(g, at, (double)(dims[1] - 1))
                                   : binary(g, OP_sub, by_size(g, number(g, at, 1), dims[1]), 1);
    at = graph_binary(g, OP_min, graph_binary(g, OP_max, at, number(g, at, 0)), last);
    return with_axis(g, take(g, graph_reshape(g, in[0], 3, dims), at), in[1], axis, of_index[1]);
}

static val build_sort(graph *g, const val *in, void *args) {
    const order_args *o = args;
    ext dims[3];
    int axis = fold_dims(g, in[0], o->axis, dims);
    ext n = dims[1];
    need_few(g, n, axis);
    if (!dims[0] || !n || !dims[2]) return in[0];
    if (o->immediate && dtype_is_float((tn_dtype)graph_get(g, in[0])->dtype))
        return build_take(g, (val[]){ in[0], build_order(g, in, args) }, &(int64_t){ o->axis });
    val x = sort_values(g, folded(g, in[0], o, dims), dims, o->descending);
    return with_axis(g, ext_is_lit(n) ? x : first_of(g, x, dims[0], n, dims[2]), in[0], axis, n);
}

static tn_tensor order(const char *name, tn_tensor x, order_args o) {
    return api_build(NULL, &(call){ .name = name, .in = &x, .n_in = 1 }, build_order, &o);
}

tn_tensor tn_take_along(tn_tensor x, tn_tensor index, int axis) {
    return api_build(NULL, &(call){ .name = "tn_take_along", .in = (tn_tensor[]){ x, index }, .n_in = 2 }, build_take,
                     &(int64_t){ axis });
}
tn_tensor tn_argsort(tn_tensor x, int axis, int descending) {
    return order("tn_argsort", x, (order_args){ .axis = axis, .descending = descending, .all = true });
}
tn_tensor tn_sort(tn_tensor x, int axis, int descending) {
    return api_build(
        NULL, &(call){ .name = "tn_sort", .in = &x, .n_in = 1 }, build_sort,
        &(order_args){ .axis = axis, .descending = descending, .all = true, .immediate = x.graph && x.graph->immediate });
}
tn_tensor tn_top_k(tn_tensor x, int64_t k, int axis, int largest, tn_tensor *out_index) {
    tn_tensor index = order("tn_top_k", x, (order_args){ .axis = axis, .descending = largest, .count = k });
    if (out_index) *out_index = index;
    return tn_take_along(x, index, axis);
}
