/* nest.c - the order of a contraction's loops: the loop along which the operands lie closest together becomes the innermost,
 * so that it walks through memory and may be joined with the next one. Windows of results with few columns are an exception: a
 * tile of one vector a row has a load for each multiply-add, and loads are what it waits for; neighbours that walk through the
 * taps together share them (tile.c). In and out: scalar form.
 *
 * Changes the order of summation, the same way wherever the kernel runs. */
#include "loop/operand.h"
#include "recipe/recipe.h"

#include <stdio.h>

enum { ENOUGH_ROWS = 7 }; /* that share what a window loads */

static int64_t apart(const kins *load, kvar v) { /* 0: stands still */
    int64_t c = load->op == K_LOAD ? affine_coef(load->idx, v) : 0;
    return c < 0 ? -c : c;
}

/* Loops i .. i + n - 1 are perfectly nested contraction loops around one update. */
static int nest_at(const kernel *k, int i) {
    int n = 0;
    for (int end = k->ins.n; k->ins.at[i + n].op == K_LOOP && k->vars.at[k->ins.at[i + n].var].reduce; n++) {
        int e = kernel_loop_end(k, i + n);
        if (n && e != end - 1) break;
        end = e;
    }
    return n;
}

/* The n loops from instruction i on come in the order of `now`, if that is another one. */
static void put_in_order(recipe *r, int i, int n, const kvar *now) {
    char names[256] = "";
    size_t at = 0;
    bool same = true;
    for (int x = 0; x < n; x++) same = same && r->k->ins.at[i + x].var == now[x];
    for (int x = 0; x < n && !same; x++)
        at += (size_t)snprintf(names + at, sizeof names - at, " %s", r->k->vars.at[now[x]].name);
    if (!same) recipe_do(r, "reorder%s", names);
}

/* What an operand is read by: of a computed one the load that reaches most. */
static const kins *read_by(const kernel *k, reg r) {
    operand o;
    return &k->ins.at[k->ins.at[r].op != K_LOAD && operand_find(k, r, &o) ? o.load : r];
}

/* One of few iterations of loop v, all of which are computed of the same load, such as the two halves of a byte: they share it
 * where v is innermost. */
static bool shares_load(const kernel *k, reg r, kvar v) {
    enum { FEW = 4 };
    return k->ins.at[r].op == K_ALU && k->vars.at[v].extent <= FEW && !affine_coef(read_by(k, r)->idx, v);
}

static int64_t distance(const kernel *k, reg a, reg b, kvar v) { /* of the operand that moves less */
    int64_t x = apart(read_by(k, a), v), y = apart(read_by(k, b), v);
    return shares_load(k, a, v) || shares_load(k, b, v) ? 0 : x == 0 || (y != 0 && y < x) ? y : x;
}

enum { MOST_NESTED = 12 }; /* contraction loops; also the most that one step takes */

void recipe_order(recipe *r) {
    const kernel *k = r->k;
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0;
        kvar now[MOST_NESTED];
        if (n < 2 || n > MOST_NESTED) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot) upd = j;
        if (!upd) continue;
        reg a = k->ins.at[upd].a, b = k->ins.at[upd].b;
        for (int x = 0; x < n; x++) { /* insertion sort: farthest apart first */
            kvar v = k->ins.at[i + x].var;
            int y = x;
            for (; y > 0 && distance(k, a, b, now[y - 1]) < distance(k, a, b, v); y--) now[y] = now[y - 1];
            now[y] = v;
        }
        put_in_order(r, i, n, now);
        i += n - 1;
    }
}

/* Rows from instruction i on, perfectly nested. */
static int rows_at(const kernel *k, int i) {
    int n = 0;
    for (int end = k->ins.n; k->ins.at[i + n].op == K_LOOP && k->vars.at[k->ins.at[i + n].var].row; n++) {
        int e = kernel_loop_end(k, i + n);
        if (n && e != end - 1) break;
        end = e;
    }
    return n;
}

/* What is summed lies side by side along row v and apart along row `inner`, results the other way round. */
static bool terms_lie_along(const kernel *k, kvar v, kvar inner) {
    bool sums = false, along = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        int64_t step = affine_coef(in->idx, v), next = affine_coef(in->idx, inner);
        if (in->op == K_UPD && in->alu == OP_dot) return false;
        if (in->op == K_SCATTER || in->op == K_ARGUPD || in->dyn) return false;
        if (in->op == K_STORE && (step == 1 || next != 1)) return false;
        if (in->op == K_LOAD && step != 0 && (step != 1 || next == 1)) return false;
        sums |= in->op == K_UPD;
        along |= in->op == K_LOAD && step == 1 && next > 1;
    }
    return sums && along;
}

/* The row along which the terms of sums lie side by side becomes the innermost, while the lines of the results that are written
 * then stay in the first-level cache (a pool of 3 x 3 with stride 2, 64 channels of 112 x 112 kept last, its results with
 * channels first, one core of a Zen 3 in ResNet-50: 1.15 to 0.45 ms). Exact. */
void recipe_along_terms(recipe *r) {
    const kernel *k = r->k;
    int i = 1, n;
    kvar now[MOST_NESTED];
    while (i < k->ins.n && k->ins.at[i].op != K_LOOP) i++;
    n = i < k->ins.n ? rows_at(k, i) : 0;
    if (n < 2 || n > MOST_NESTED) return;
    for (int x = 0; x < n - 1; x++) {
        kvar v = k->ins.at[i + x].var, inner = k->ins.at[i + n - 1].var;
        if (k->vars.at[v].extent * MACHINE_LINE_BYTES > r->t->l1_bytes / 2 || !terms_lie_along(k, v, inner)) continue;
        for (int y = 0; y < n - 1; y++) now[y] = k->ins.at[i + y + (y >= x)].var;
        now[n - 1] = v;
        put_in_order(r, i, n, now);
        return;
    }
}

void recipe_fuse_loops(recipe *r) {
    for (int i = 1; i + 1 < r->k->ins.n; i++) {
        const kins *in = &r->k->ins.at[i];
        if (in[0].op != K_LOOP || in[1].op != K_LOOP) continue;
        const char *outer = r->k->vars.at[in[0].var].name, *inner = r->k->vars.at[in[1].var].name;
        if (recipe_try(r, "fuse_loops %s %s", outer, inner)) i = 0; /* what it is now may go on */
    }
}

static int64_t columns_of(const kernel *k, const kins *x, const kins *weight) {
    int64_t n = 1;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row && affine_coef(weight->idx, v) && !affine_coef(x->idx, v)) n *= k->vars.at[v].extent;
    return n;
}

/* The row along which both operands lie in memory: windows are made lane by lane (depthwise convolution). */
static kvar lanes_along(const kernel *k, const kins *x, const kins *weight) {
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].row && affine_coef(x->idx, v) == 1 && affine_coef(weight->idx, v) == 1) return v;
    return -1;
}

/* Of n loops from i on, the one over the taps of windows lane by lane that becomes the innermost; -1: none. The farther apart
 * its elements are, the better: then a tile has a few columns of many rows, of which each is read from its beginning to its
 * end, so that it is fetched ahead, and comes into the first cache once for the tile. */
static int farthest_taps(const kernel *k, int i, int n, const kins *x, const kins *weight) {
    int at = -1;
    int64_t rows = 0;
    for (int j = i; j < i + n; j++) {
        kvar v = loop_slides_along(k, x, weight, k->ins.at[j].var);
        if (v < 0 || (at >= 0 && (rows >= ENOUGH_ROWS || k->vars.at[v].extent <= rows))) continue;
        at = j, rows = k->vars.at[v].extent;
    }
    return at;
}

/* A tile of windows lane by lane whose neighbour does not find what they share in the first cache any more: all neighbours with
 * the same lanes first. Loops of rows may change places. */
static void keep_columns(recipe *r, int nest, kvar taps, const kins *x, const kins *weight) {
    const kernel *k = r->k;
    const target *t = r->t;
    kvar row = loop_slides_along(k, x, weight, taps), lanes = lanes_along(k, x, weight);
    int at = nest;
    while (at > 1 && !(k->ins.at[at].op == K_LOOP && k->ins.at[at].var == lanes)) at--;
    const kins *inner = &k->ins.at[at], *outer = inner - 1;
    if (at < 2 || outer->op != K_LOOP || !k->vars.at[outer->var].row || outer->var == row || outer->par || inner->par) return;
    if (kernel_loop_end(k, at - 1) != kernel_loop_end(k, at) + 1) return;
    int64_t size = (int64_t)dtype_size((tn_dtype)x->src), columns = 1, n = loop_sliding_rows(k->vars.at[row].extent),
            apart = affine_coef(x->idx, row);
    int64_t read = (n - 1) * apart / affine_coef(x->idx, taps) + k->vars.at[taps].extent;
    for (kvar v = 0; v < k->vars.n; v++)
        if (k->vars.at[v].reduce && v != taps && affine_coef(x->idx, v)) columns *= k->vars.at[v].extent;
    int64_t all_lanes = (read * columns + n) * k->vars.at[lanes].extent * size,
            all_columns = (read * affine_coef(x->idx, outer->var) / k->vars.at[lanes].extent + n) *
                          k->vars.at[outer->var].extent * MACHINE_LINE_BYTES;
    if (4 * all_lanes <= 3 * t->l1_bytes || all_columns > t->l1_bytes) return;
    put_in_order(r, at - 1, 2, (const kvar[]){ inner->var, outer->var });
}

void recipe_slide(recipe *r) {
    const kernel *k = r->k;
    const target *t = r->t;
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0, at = -1;
        if (n < 2) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot) upd = j;
        if (!upd) continue;
        const kins *x = &k->ins.at[k->ins.at[upd].a], *weight = &k->ins.at[k->ins.at[upd].b];
        int64_t columns = columns_of(k, x, weight),
                lanes = t->vector_bytes / (int64_t)dtype_size((tn_dtype)k->ins.at[upd].dtype);
        bool each = columns == 1 && lanes_along(k, x, weight) >= 0;
        for (int j = i; j < i + n && columns > 1 && columns <= lanes; j++)
            if (loop_slides_along(k, x, weight, k->ins.at[j].var) >= 0) at = j; /* the innermost */
        if (each) at = farthest_taps(k, i, n, x, weight);
        if (each && at >= 0) keep_columns(r, i, k->ins.at[at].var, x, weight);
        if (at >= 0 && n <= MOST_NESTED) {
            kvar now[MOST_NESTED];
            for (int j = 0; j < n; j++) now[j] = k->ins.at[i + j + (i + j >= at && j < n - 1)].var;
            now[n - 1] = k->ins.at[at].var;
            put_in_order(r, i, n, now);
        }
        i += n - 1;
    }
}

void recipe_slide_words(recipe *r) {
    const kernel *k = r->k;
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0;
        if (n < 2 || n > MOST_NESTED) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].packed) upd = j;
        if (!upd) continue;
        const kins *a = &k->ins.at[k->ins.at[upd].a], *b = &k->ins.at[k->ins.at[upd].b];
        kvar now[MOST_NESTED], taps = k->ins.at[i + n - 2].var, row = loop_slides_along(k, a, b, taps);
        if (row < 0) row = loop_slides_along(k, b, a, taps);
        if (row < 0 || k->vars.at[row].role.unroll < 2 || k->vars.at[row].role.lanes > 1) continue;
        for (int j = 0; j < n; j++) now[j] = k->ins.at[i + j].var;
        now[n - 2] = now[n - 1], now[n - 1] = taps;
        put_in_order(r, i, n, now);
        i += n - 1;
    }
}
