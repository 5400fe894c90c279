/* channels_last.c - convolutions whose channels stand before the positions (NCHW) read an image with the channels last (NHWC).
 *
 * Matrix units take blocks of steps of a contraction that lie one behind the other in memory, 16 bytes at least. The channels
 * of a padded image do once it is padded in that order, and so do the weights: a convolution is a product then, whose steps
 * go over offsets and channels (implicit GEMM).
 *
 * In: a dot of f16 or bf16 of a window over a pad, contracted along its offsets and one more axis, of whole K blocks. Out: the
 * same of a pad of a permute, and of weights in the same order: known ones, or that are in that order already. Few channels,
 * which no piece of 8 bytes has, become more, of zeros. [order] of additions. */
#include "ir/kernel.h"
#include "pass/rewrite.h"

typedef struct conv {
    node dot, window, pad;
    int side;      /* operand of the dot that is the window */
    int n, c;      /* windows; the axis of the channels */
    int64_t of[4]; /* the axes of the weights that belong to the offsets, in their order, and to the channels */
} conv;

enum { MOST_WINDOWS = 3, PIECE = 4 /* channels */, MANY = 1 << 18 /* results */ };

static bool find_conv(const graph *g, val v, int side, conv *out) {
    const node *d = graph_get(g, v);
    *out = (conv){ .dot = *d, .side = side, .c = -1 };
    if (d->op != OP_dot || d->attr[0] || d->in[0] == d->in[1] || (d->dtype != TN_BF16 && d->dtype != TN_F16)) return false;
    out->window = *graph_get(g, d->in[side]);
    if (out->window.op != OP_window || out->window.dtype != d->dtype || !graph_used_once(g, d->in[side])) return false;
    out->pad = *graph_get(g, out->window.in[0]), out->n = (int)out->window.attr[0];
    int rank = out->pad.rank;
    if (out->pad.op != OP_pad || !graph_used_once(g, out->window.in[0]) || out->n > MOST_WINDOWS || d->attr[1] != out->n + 1)
        return false;
    for (int i = 0; i <= out->n; i++) {
        int64_t axis = d->attr[2 + side * d->attr[1] + i], other = d->attr[2 + !side * d->attr[1] + i];
        if (axis < rank && out->c >= 0) return false; /* an offset is not contracted */
        if (axis < rank) out->c = (int)axis;
        out->of[axis < rank ? out->n : axis - rank] = other;
    }
    for (int i = 0; i < out->n; i++)
        if (out->window.attr[1 + 4 * i] == out->c) return false;
    return out->c >= 0;
}

static int64_t channels(const conv *c) { return c->pad.dims[c->c]; }

/* Channels that no piece of a copy has whole, such as the 3 of a picture: the border, which is made in memory anyhow, has more
 * of them, of zeros, and so have the weights. (7 x 7 of 3 channels to 64 of 112 x 112 results on an H200: 29.0 to 6.2 us.) */
static val more_channels(graph *g, const conv *c) {
    int rank = c->pad.rank;
    int64_t none[TN_MAX_RANK] = { 0 }, after[TN_MAX_RANK], more[TN_MAX_RANK] = { 0 }, n = PIECE - channels(c) % PIECE;
    memcpy(after, c->pad.attr + rank, (size_t)rank * sizeof *after);
    after[c->c] += n, more[c->of[c->n]] = n;
    val in[2], x = graph_pad(g, c->pad.in[0], c->pad.attr, after, c->pad.imm);
    in[c->side] = remake(g, &c->window, &x, 0, NULL);
    in[!c->side] = graph_pad(g, c->dot.in[!c->side], none, more, 0);
    return remake(g, &c->dot, in, 0, NULL);
}

static val channels_last(graph *g, val v, arena *scratch) {
    conv c;
    if (!find_conv(g, v, 0, &c) && !find_conv(g, v, 1, &c)) return 0;
    bool few = channels(&c) % PIECE && c.pad.imm == 0 && graph_elems(g, v) >= MANY;
    if (c.c == c.pad.rank - 1) return few ? more_channels(g, &c) : 0;
    if (channels(&c) % KERNEL_MATRIX && !few) return 0;
    int rank = c.pad.rank, n_steps = c.n + 1, n = 0;
    int64_t perm[TN_MAX_RANK], before[TN_MAX_RANK], after[TN_MAX_RANK], steps[2][MOST_WINDOWS + 1], order[TN_MAX_RANK];
    window_axis w[MOST_WINDOWS];
    for (int i = 0; i < rank; i++) perm[i] = i < c.c ? i : i < rank - 1 ? i + 1 : c.c;
    for (int i = 0; i < rank; i++) before[i] = c.pad.attr[perm[i]], after[i] = c.pad.attr[rank + perm[i]];
    for (int i = 0; i < c.n; i++) {
        const int64_t *a = c.window.attr + 1 + 4 * i;
        w[i] = (window_axis){ a[0] > c.c ? a[0] - 1 : a[0], a[1], a[2], a[3] };
    }
    for (int i = 0; i < n_steps; i++) steps[0][i] = i < c.n ? rank + i : rank - 1, steps[1][i] = i;
    val weights = c.dot.in[!c.side];
    int rank_w = graph_get(g, weights)->rank, free_w = rank_w - n_steps, free_x = rank - 1;
    for (; n < n_steps; n++) order[n] = c.of[n];
    for (int i = 0; i < rank_w; i++) {
        bool step = false;
        for (int j = 0; j < n_steps; j++) step |= c.of[j] == i;
        if (!step) order[n++] = i;
    }
    weights = permute_known(g, weights, order, scratch);
    if (!weights) return 0;
    val x = graph_pad(g, graph_permute(g, c.pad.in[0], perm), before, after, c.pad.imm),
        y = graph_dot(g, graph_window(g, x, w, c.n), weights, NULL, NULL, 0, steps[0], steps[1], n_steps);
    if (c.side == 0) return y;
    for (int i = 0; i < free_w + free_x; i++) order[i] = i < free_w ? free_x + i : i - free_w;
    return graph_permute(g, y, order);
}

bool pass_channels_last(graph *g, arena *scratch) { return rewrite_each(g, scratch, channels_last); }
