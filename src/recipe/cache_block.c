/* cache_block.c - cache blocking of a contraction: whether the operand with the lanes is packed into panels (src/loop/pack.c),
 * of how many tiles and how much of the contraction, and which loop threads share then. In: scalar form with a register tile.
 *
 * Packing pays where many rows use the operand and its columns of one tile lie far apart in memory. A panel stays in the
 * second-level cache and is read as a stream; the rows come from further away, once a panel, and stay in the first level for
 * all of its tiles (measured at 1024 x 1024 x 1024: rows that are read for every tile cost ten percent, sums three, panels in
 * the first-level cache do not pay for either).
 *
 * Few rows take about as long for a piece of the contraction as the next one takes to come from memory: their tiles fetch it,
 * each its share, while they work (measured at 32 x 4096 x 4096 on one core: a quarter faster with a copied operand, a fifth
 * with a constant one).
 *
 * An operand that is computed of what is loaded is computed by the copy: two tiles of rows and more work than a load are
 * enough.
 *
 * Where the rows of the result are short, those of an image, say, several of them are the columns of a panel (recipe.join). So
 * many are taken that few vectors are cut short, and that panel and sums stay in the second-level cache.
 *
 * A constant operand is laid out in panels before any run: nothing is copied, and few rows are enough, or one, which reads some
 * narrow panels at once, each a stream that nothing interrupts. */
#include "loop/contraction.h"
#include "recipe/register_tile.h"

#include <stdio.h>

enum {
    MIN_TILES = 3,         /* tiles of rows that share a panel */
    MIN_TURNED = 8,        /* rows that share one whose columns are turned, where sums along the lanes would do, too .. */
    LEAST_SHARED = 2,      /* .. or where nothing else has vectors */
    COPY_ROWS = 2,         /* of a contraction: they take as long as copying its panel .. */
    TURN_ROWS = 6,         /* .. or turning it */
    MAX_TILES = 4,         /* of a panel */
    MOST_AHEAD = 16,       /* tiles of rows that fetch what is copied next .. */
    MOST_AHEAD_FIXED = 64, /* .. or the next of a stream */
    FAR_COPIES = 2,        /* times the second-level cache: nearer, the copy does not wait long */
    LEAST_AHEAD = 16,      /* steps of the loop in which they do it */
    AHEAD_LINES = 6,       /* of a row of a panel that is copied: long pieces of memory come faster */
    STREAM_VECTORS = 2,    /* side by side in a panel for one row */
    LEAST_PAIRS = 4,       /* of vectors at once, or the sums wait for themselves */
    LEAST_ROWS = 8,        /* of a stretch */
    LEAST_STEPS = 32,      /* of a stretch that is cut to be fetched ahead */
    LOAD_WORK = 1,
    STORE_WORK = 1,     /* in operations on a vector */
    LEAST_NEAR = 48,    /* steps of a stretch that is cut for the first level */
    MOST_JOINED = 4,    /* loops */
    MOST_BLOCKS = 1024, /* sizes of them that are looked at */
    LEAST_JOINED = 32   /* steps of a K block */
};

/* So many rows of a contraction take as long as copying a short row of what they share, in pieces of vectors; or element by
 * element, for each lane; or as keeping sums in memory from one K block to the next. */
enum { JOINED_ROWS = 5, GATHERED_ROWS = 2, SUM_ROWS = 3 };

#define STREAM_COST 0.3 /* of one stream from afar, beside many */

typedef struct blocker {
    recipe *r;
    contraction c;
    bool fixed;     /* the operand is constant .. */
    kpanels layout; /* .. and lies so in panels */
    int n_out;      /* the first rows stay outside */
    int64_t cut;    /* iterations of a piece of the outermost inner row; 0: it is whole */
    int64_t tiles;  /* of n, in a panel */
    bool whole;     /* all of the contraction at once: no sums wait in memory */
    int level;      /* pieces are of depth.at[level] */
    int64_t piece, inner_rows;
    bool streams;             /* the tiles of a panel are worked on at once */
    bool ahead;               /* the next piece is fetched */
    kvar joined[MOST_JOINED]; /* the rows that are columns, too; how many: recipe.join */
    int64_t block;            /* of the outermost of them, in a panel */
    kvar nb, rb;              /* the loops over panels and pieces of rows that packing made, or -1 */
} blocker;

/* Columns of several rows are copied in each run, whatever they are copied from. */
static void find_layout(blocker *t) { t->fixed = !t->r->t->no_panels && !t->r->join && contraction_layout(&t->c, &t->layout); }

static int64_t sums_limit(const blocker *t) { /* sums that fit */
    int64_t bytes = t->r->t->l2_bytes / 2 < MACHINE_STACK_BYTES ? t->r->t->l2_bytes / 2 : MACHINE_STACK_BYTES;
    return bytes / contraction_sum_size(&t->c);
}

static bool shares_enough(const blocker *t) {
    return t->fixed || contraction_rows_from(&t->c, t->n_out) / contraction_tile_rows(&t->c) >= MIN_TILES;
}

/* Elements between steps along the contraction, where they are closest together. */
static int64_t apart(const blocker *t, const kins *load) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < t->c.depth.n; i++) {
        int64_t c = affine_coef(load->idx, t->c.depth.at[i]);
        if (c < 0) c = -c;
        if (c && c < least) least = c;
    }
    return least;
}

/* What is computed at the load is computed again by each tile of rows. A copy computes it once, stores it, and is read by all
 * of them. */
static bool saves_work(const blocker *t) {
    uint64_t loops = 0;
    for (int i = 0; i < t->c.depth.n; i++) loops |= 1ull << t->c.depth.at[i];
    int64_t work = LOAD_WORK + operand_flops(t->c.k, &t->c.packed, loops), rows = contraction_tile_rows(&t->c),
            tiles = (contraction_rows_from(&t->c, t->n_out) + rows - 1) / rows;
    return tiles * work > work + STORE_WORK + tiles * LOAD_WORK;
}

/* Both operands lie along a contraction loop: there may be vectors, too. */
static bool lies_along_sum(const blocker *t) {
    const kins *upd = contraction_ins(&t->c, t->c.upd), *a = contraction_ins(&t->c, (int)upd->a),
               *b = contraction_ins(&t->c, (int)upd->b);
    for (int i = 0; i < t->c.depth.n; i++) {
        kvar v = t->c.depth.at[i];
        bool computed = a->op != K_LOAD || b->op != K_LOAD;
        if (computed || (affine_coef(a->idx, v) == 1 && affine_coef(b->idx, v) == 1)) return true;
    }
    return false;
}

/* In place, the operand's columns of one tile lie far apart in memory: worth a copy when they do not all stay in the
 * first-level cache anyway. */
static bool pays(const blocker *t) {
    const kins *b = contraction_ins(&t->c, (int)t->c.load);
    int64_t row = apart(t, b);
    if (b->n_mask && !contraction_computes(&t->c) && !t->r->join) return false; /* checks are peeled off in place */
    if (t->r->join) return contraction_rows_from(&t->c, t->n_out) >= LEAST_SHARED;
    if (affine_coef(b->idx, t->c.n) != 1)
        return contraction_rows_from(&t->c, t->n_out) >= (lies_along_sum(t) ? MIN_TURNED : LEAST_SHARED);
    if (contraction_computes(&t->c) && !t->fixed) return saves_work(t);
    if (b->packed) return shares_enough(t); /* in place, each tile of rows would make the words again */
    if (row == INT64_MAX || row <= contraction_tile_columns(&t->c)) return false; /* one panel as it lies */
    return contraction_depth_from(&t->c, 0) * row * contraction_elem_size(&t->c) > t->r->t->l1_bytes / 2 && shares_enough(t);
}

/* Rows of a panel of some tiles: what leaves most of the second-level cache to sums and operands that pass through. */
static int64_t k_block_limit(const blocker *t, int64_t tiles) {
    int64_t bytes = t->r->t->l2_bytes * 3 / 8, least = t->r->t->l1_bytes * 7 / 8;
    if (bytes > MACHINE_STACK_BYTES) bytes = MACHINE_STACK_BYTES;
    int64_t rows =
        (bytes > least ? bytes : least) / (tiles * contraction_tile_columns(&t->c) * contraction_elem_size(&t->c)) / 8 * 8;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

/* The piece of an extent: a divisor near the limit, or else the limit with a shorter last piece. */
static int64_t divide(int64_t extent, int64_t limit) {
    if (extent <= limit) return extent;
    for (int64_t p = limit; p > limit / 2; p--)
        if (extent % p == 0) return p;
    int64_t pieces = (extent + limit - 1) / limit;
    return (extent + pieces - 1) / pieces;
}

/* Too few to wait for a panel that comes from memory: each of them reads it in the first-level cache, behind the first. */
static bool few_rows(const blocker *t) {
    return t->fixed && contraction_rows_from(&t->c, t->n_out) / contraction_tile_rows(&t->c) < MIN_TILES;
}

/* More tiles read the rows less often; panels should come out even, for each thread, too. */
static int64_t choose_tiles(const blocker *t, int64_t most) {
    int64_t all = contraction_full_tiles(&t->c), best = 1, threads = t->r->threads >= 0 && t->n_out == 0 ? t->r->t->threads : 1;
    double best_cost = 1e300;
    for (int64_t tiles = 1; tiles <= most && tiles <= all; tiles++) {
        int64_t panels = all / tiles, share = (panels + threads - 1) / threads;
        double longest = (double)(share * tiles * threads) / (double)all;
        double cost = (1 + 0.08 / (double)tiles) * (longest > 1 ? longest : 1) + (all % tiles ? 0.02 : 0);
        if (cost < best_cost) best_cost = cost, best = tiles;
    }
    return best;
}

/* The other operand may lie so that each step along the contraction needs another line of the cache, of which a tile of rows
 * takes a part: steps after which the tiles that follow still find the rest of the lines in the first level or, where rows of
 * memory share few of its sets, in the second. */
static int64_t near_limit(const blocker *t) {
    const kins *upd = contraction_ins(&t->c, t->c.upd),
               *x = contraction_ins(&t->c, (int)(upd->a == t->c.packed.value ? upd->b : upd->a));
    if (x->op != K_LOAD || affine_coef(x->idx, t->c.m) != 1 || apart(t, x) == INT64_MAX) return INT64_MAX;
    int64_t step = apart(t, x) * (int64_t)dtype_size((tn_dtype)x->src), near = loop_places(t->r->t->l1_bytes, step),
            far = loop_places(t->r->t->l2_bytes, step) / 4 * 3;
    return near >= LEAST_NEAR ? near : far >= LEAST_NEAR ? far : INT64_MAX;
}

/* Steps of a K block while the next one is fetched: as many that its panel stays in the first level or, with many rows, which
 * would write their sums too often, that both share the second. Of the lines of what is copied, both must find places there. */
static int64_t ahead_limit(const blocker *t, int64_t limit) {
    const kins *b = contraction_ins(&t->c, (int)t->c.load);
    int64_t size = contraction_elem_size(&t->c),
            near = t->r->t->l1_bytes * 3 / 4 / (t->tiles * contraction_tile_columns(&t->c) * size);
    if (t->fixed) return contraction_rows_from(&t->c, t->n_out) / contraction_tile_rows(&t->c) <= MOST_AHEAD ? near : limit / 2;
    int64_t far = loop_places(t->r->t->l2_bytes, apart(t, b) * size) * 3 / 4;
    if (far < LEAST_STEPS) far = LEAST_STEPS;
    return near < far ? near : far;
}

static bool fetches_ahead(const blocker *t) {
    const kins *b = contraction_ins(&t->c, (int)t->c.load);
    int64_t bytes = t->fixed ? kpanels_elems(&t->layout) * contraction_elem_size(&t->c)
                             : t->c.k->bufs.at[b->buf].elems * (int64_t)dtype_size((tn_dtype)b->src);
    int64_t tiles = contraction_rows_from(&t->c, t->n_out) / contraction_tile_rows(&t->c);
    if (bytes <= t->r->t->l2_bytes * (t->fixed ? 1 : FAR_COPIES) ||
        contraction_extent(&t->c, t->c.depth.at[t->c.depth.n - 1]) < LEAST_AHEAD || tiles < 2)
        return false;
    if (t->fixed) return tiles <= MOST_AHEAD_FIXED;
    return tiles <= MOST_AHEAD && !b->packed && affine_coef(b->idx, t->c.n) == 1 && apart(t, b) < INT64_MAX &&
           loop_places(t->r->t->l2_bytes, apart(t, b) * (int64_t)dtype_size((tn_dtype)b->src)) >= LEAST_STEPS;
}

static void choose_k_blocks(blocker *t) {
    int64_t depth = contraction_depth_from(&t->c, 0), most = 2,
            long_row = AHEAD_LINES * MACHINE_LINE_BYTES / (contraction_tile_columns(&t->c) * contraction_elem_size(&t->c));
    t->ahead = fetches_ahead(t);
    while (most < MAX_TILES && depth <= k_block_limit(t, most + 1)) most++;
    if (t->ahead) most = t->fixed ? 1 : long_row > 2 ? long_row : 2;
    t->tiles = choose_tiles(t, most);
    int64_t limit = k_block_limit(t, t->tiles), near = near_limit(t);
    if (few_rows(t)) t->tiles = 1;
    if (t->ahead) limit = ahead_limit(t, limit);
    if (few_rows(t))
        limit = t->r->t->l1_bytes / 2 / (t->tiles * contraction_tile_columns(&t->c) * contraction_elem_size(&t->c));
    if (limit < LEAST_ROWS) limit = LEAST_ROWS;
    if (near < limit) limit = near;
    t->whole = depth <= limit || (t->fixed && contraction_rows_from(&t->c, t->n_out) <= contraction_tile_rows(&t->c));
    if (t->whole) {
        t->level = 0, t->piece = contraction_extent(&t->c, t->c.depth.at[0]);
        return;
    }
    t->level = t->c.depth.n - 1;
    while (t->level > 0 && contraction_depth_from(&t->c, t->level) <= limit) t->level--;
    t->piece = divide(contraction_extent(&t->c, t->c.depth.at[t->level]), limit / contraction_depth_from(&t->c, t->level + 1));
}

static int64_t divisor(int64_t extent, int64_t limit) { /* the largest up to the limit */
    for (int64_t p = limit; p > 1; p--)
        if (extent % p == 0) return p;
    return 1;
}

/* Rows whose sums fit stay inside; the outermost of them is cut where it divides evenly. Returns whether it can be done. */
static bool choose_inner_rows(blocker *t) {
    int64_t limit = sums_limit(t) / (contraction_tile_columns(&t->c) * t->tiles);
    if (contraction_rows_from(&t->c, t->n_out) <= limit) return true;
    for (; t->n_out < t->c.rows.n && contraction_rows_from(&t->c, t->n_out) > limit; t->n_out++) {
        kvar v = t->c.rows.at[t->n_out];
        int64_t rest = contraction_rows_from(&t->c, t->n_out + 1), piece = divisor(contraction_extent(&t->c, v), limit / rest);
        if (piece * rest >= MIN_TILES * contraction_tile_rows(&t->c) && piece >= contraction_role(&t->c, v).unroll &&
            piece > 1) {
            t->cut = piece;
            return t->fixed || piece * rest / contraction_tile_rows(&t->c) >= MIN_TILES;
        }
        if (v == t->c.m) return false; /* unrolled rows stay inside */
    }
    return t->n_out < t->c.rows.n && shares_enough(t);
}

/* Steps of the longest share of one row, in pairs of vectors, n of them at once; in streams, the last columns are a panel of
 * their own. Few at once wait for their sums; from afar they also come slower. */
static double lone_steps(const blocker *t, int64_t n, bool streams) {
    int64_t pair = (int64_t)contraction_role(&t->c, t->c.n).lanes * STREAM_VECTORS,
            panels = contraction_extent(&t->c, t->c.n) / (n * pair), rest = contraction_extent(&t->c, t->c.n) % (n * pair),
            threads = t->r->threads >= 0 && t->n_out == 0 ? t->r->t->threads : 1;
    int64_t steps = (panels + threads - 1) / threads * (n < LEAST_PAIRS ? LEAST_PAIRS : n);
    if (rest) steps += rest < LEAST_PAIRS * pair ? LEAST_PAIRS : (rest + pair - 1) / pair;
    if (streams && rest > pair && rest % pair) steps += LEAST_PAIRS;
    bool near = kpanels_elems(&t->layout) * contraction_elem_size(&t->c) <= t->r->t->l2_bytes;
    return (double)steps * (near ? 1 : 1 + STREAM_COST / (double)(streams ? n : 1));
}

/* One row: its tile is as many panels side by side as it has pairs of vectors. Each comes as a stream of its own, and
 * processors fetch several at a time ahead, of one no more than the rest of a page (measured on one core at 1 x 4096 x 4096,
 * memory read at 34 GB/s: one stream 23 GB/s whatever is fetched ahead by instructions, seven 32). Not where a vector is a
 * line: one core of a Xeon with such vectors reads one stream a tenth faster than eight. */
static void choose_streams(blocker *t) {
    int64_t most = contraction_role(&t->c, t->c.n).unroll / STREAM_VECTORS, best = 1;
    t->tiles = 1, t->whole = true, t->piece = contraction_extent(&t->c, t->c.depth.at[0]);
    if (most < 2 || t->r->t->vector_bytes >= MACHINE_LINE_BYTES || t->r->vectors) return; /* vectors: the width is given */
    double least = lone_steps(t, most, false);
    for (int64_t n = most; n > 1; n--) {
        double steps = lone_steps(t, n, true);
        if (steps < least) least = steps, best = n;
    }
    if (best == 1) return;
    recipe_do(t->r, "unroll_jam %s %d", t->c.k->vars.at[t->c.n].name, STREAM_VECTORS);
    find_layout(t);
    t->tiles = best, t->streams = true;
}

/* ---- rows that are joined ---- */

typedef struct joined_form { /* of panels with `block` iterations of the outermost joined row */
    int64_t block, piece, cut;
    double work; /* of one step of the contraction, for all columns and inner rows: vectors multiplied */
} joined_form;

static int64_t row_columns(const blocker *t) { /* of one iteration of the outermost joined row */
    int64_t n = contraction_extent(&t->c, t->c.n);
    for (int i = 1; i < t->r->join; i++) n *= contraction_extent(&t->c, t->joined[i]);
    return n;
}

/* False where panel or sums do not fit. */
static bool cost_joined(const blocker *t, int64_t block, joined_form *out) {
    const machine *m = machine_row_of(t->r->t);
    const kins *load = contraction_ins(&t->c, (int)t->c.load);
    int lanes = contraction_role(&t->c, t->c.n).lanes;
    int64_t rows = contraction_extent(&t->c, t->joined[0]), width = block * row_columns(t), blocks = rows / block,
            rest = rows % block, depth = contraction_depth_from(&t->c, 0), inner = contraction_rows_from(&t->c, t->n_out),
            bytes = t->r->t->l2_bytes * 3 / 8 < MACHINE_STACK_BYTES ? t->r->t->l2_bytes * 3 / 8 : MACHINE_STACK_BYTES,
            limit = bytes / (width * contraction_elem_size(&t->c)), used = inner;
    *out = (joined_form){ .block = block, .piece = depth <= limit ? depth : limit };
    if (out->piece < depth && out->piece < LEAST_JOINED) return false;
    if (out->piece < depth && inner * width > sums_limit(t)) { /* in pieces, of which each has the panel copied */
        int64_t outer = contraction_extent(&t->c, t->c.rows.at[t->n_out]), below = inner / outer;
        out->cut = divisor(outer, sums_limit(t) / width / below);
        used = out->cut * below;
        if (used < MIN_TILES * contraction_tile_rows(&t->c)) return false;
    }
    double steps = (double)(tile_steps(width, lanes) * blocks + tile_steps(rest * row_columns(t), lanes)),
           copied = (double)(rows * row_columns(t)) / lanes * (double)(inner / used),
           copy = affine_coef(load->idx, t->c.n) == 1 ? JOINED_ROWS : GATHERED_ROWS * lanes,
           read = (double)contraction_elem_size(&t->c) * m->ghz * m->fma_pipes / m->level[LEVEL_L2].read;
    if (out->piece < depth) steps *= 1 + (double)SUM_ROWS / (double)out->piece;
    out->work = steps * (double)inner + copied * copy + (double)((blocks + (rest > 0)) * inner) * read; /* the other operand */
    return true;
}

/* How evenly threads share panels of `block` rows, or else the rows that these are multiplied by: then each copies all. */
static double balance_of_joined(const blocker *t, int64_t block) {
    int threads = t->r->threads >= 0 ? t->r->t->threads : 1;
    int64_t rows = contraction_extent(&t->c, t->joined[0]), inner = contraction_rows_from(&t->c, t->n_out);
    double panels = loop_balance(rows / block, (double)(rows % block) / (double)block, threads),
           others = loop_balance_of(t->c.k, t->c.m, contraction_role(&t->c, t->c.m).unroll, threads) /
                    (1 + (threads - 1) * COPY_ROWS / (double)inner);
    return panels > others ? panels : others;
}

static bool choose_joined(blocker *t) {
    joined_form best = { 0 }, x;
    int64_t rows = contraction_extent(&t->c, t->joined[0]), step = (rows + MOST_BLOCKS - 1) / MOST_BLOCKS;
    for (int64_t block = step; block <= rows; block += step) {
        if (!cost_joined(t, block, &x)) continue;
        x.work /= balance_of_joined(t, block);
        if (!best.block || x.work < best.work) best = x;
    }
    if (!best.block) return false;
    t->block = best.block, t->cut = best.cut, t->tiles = 1;
    t->whole = best.piece == contraction_depth_from(&t->c, 0);
    t->level = t->whole ? 0 : t->c.depth.n - 1;
    while (t->level > 0 && contraction_depth_from(&t->c, t->level) <= best.piece) t->level--;
    t->piece =
        divide(contraction_extent(&t->c, t->c.depth.at[t->level]), best.piece / contraction_depth_from(&t->c, t->level + 1));
    return true;
}

/* Panels are made outside of the unrolled row: not where a row that has panels of its own lies inside of it (a batch, in a
 * result that is permuted). */
static bool unrolls_outside(const blocker *t) {
    for (int i = 0; i < t->n_out; i++)
        if (t->c.rows.at[i] == t->c.m) return true;
    return false;
}

static bool choose(blocker *t, bool only_constant) {
    for (int i = 0; i < t->c.rows.n; i++)
        if (contraction_runs_along(&t->c, t->c.rows.at[i])) t->n_out = i + 1; /* a panel for each of them */
    find_layout(t);
    if ((only_constant && !t->fixed) || unrolls_outside(t)) return false;
    if (t->c.m < 0 ? t->n_out < t->c.rows.n || !t->fixed : t->n_out == t->c.rows.n) return false;
    if (!pays(t)) return false;
    if (t->r->join) return choose_joined(t);
    if (t->c.m < 0) {
        choose_streams(t);
        return true;
    }
    choose_k_blocks(t);
    int n_out = t->n_out;
    if (!t->whole && !choose_inner_rows(t)) { /* one panel of everything, for all rows, where it fits */
        t->n_out = n_out, t->cut = 0;
        t->whole = true, t->level = 0, t->piece = contraction_extent(&t->c, t->c.depth.at[0]);
        if (contraction_depth_from(&t->c, 0) * contraction_tile_columns(&t->c) * t->tiles * contraction_elem_size(&t->c) >
            MACHINE_STACK_BYTES)
            t->tiles = 1;
        if (!t->fixed && contraction_depth_from(&t->c, 0) * contraction_tile_columns(&t->c) * contraction_elem_size(&t->c) >
                             MACHINE_STACK_BYTES)
            return false;
    }
    return true;
}

/* How evenly threads share loop v; each copies the panels of its own, and all of them all panels where v is inside. */
static double balance_of(const blocker *t, kvar v, bool inside) {
    int threads = t->r->t->threads;
    int64_t width = contraction_tile_columns(&t->c), all = contraction_full_tiles(&t->c),
            step = contraction_role(&t->c, v).unroll;
    if (v == t->nb && t->r->join) {
        int64_t rows = contraction_extent(&t->c, t->joined[0]);
        return loop_balance(rows / t->block, (double)(rows % t->block) / (double)t->block, threads);
    }
    if (v == t->nb)
        return loop_balance(all / t->tiles,
                            ((double)(all % t->tiles) + (double)(contraction_extent(&t->c, t->c.n) % width) / (double)width) /
                                (double)t->tiles,
                            threads);
    double balance = loop_balance_of(t->c.k, v, step, threads);
    double copied = t->fixed || !inside                                                     ? 0
                    : affine_coef(contraction_ins(&t->c, (int)t->c.load)->idx, t->c.n) == 1 ? COPY_ROWS
                                                                                            : TURN_ROWS;
    return balance / (1 + (threads - 1) * copied / (double)t->inner_rows);
}

/* Whether the loop over panels has more than one step. */
static bool has_panels(const blocker *t) {
    if (t->r->join) return contraction_extent(&t->c, t->joined[0]) > t->block;
    return contraction_full_tiles(&t->c) > t->tiles;
}

/* The outermost loop that splits evenly. */
static kvar choose_parallel(const blocker *t) {
    double best = 0;
    kvar par = -1;
    for (int i = 0; i < t->c.rows.n + 2; i++) {
        int row = i - (i > t->n_out) - (i > t->n_out + 1);
        kvar v = i == t->n_out ? t->rb : i == t->n_out + 1 ? t->nb : t->c.rows.at[row];
        if (v < 0 || (v == t->nb ? !has_panels(t) : contraction_extent(&t->c, v) <= contraction_role(&t->c, v).unroll))
            continue;
        double balance = balance_of(t, v, i > t->n_out + 1);
        if (balance > best + 0.05) best = balance, par = v;
    }
    return par;
}

bool recipe_pack(recipe *r, bool only_constant) {
    blocker t = { .r = r, .nb = -1, .rb = -1 };
    if (r->k->vars.n > 30 || !contraction_find(r->k, &t.c) || !t.c.load) return false;
    t.c.rows.n -= r->join;
    for (int i = 0; i < r->join; i++) t.joined[i] = t.c.rows.at[t.c.rows.n + i];
    if (!choose(&t, only_constant)) return false;
    kernel *k = r->k;
    const kins *b = contraction_ins(&t.c, (int)t.c.load);
    char more[128];
    snprintf(more, sizeof more, "%s%s%s%s", t.whole ? " whole" : "", t.fixed ? " constant" : "", t.streams ? " streams" : "",
             t.ahead ? " ahead" : "");
    char rows[32] = "", join[64] = "";
    if (t.cut) snprintf(rows, sizeof rows, " rows=%lld", (long long)t.cut);
    if (r->join) snprintf(join, sizeof join, " join=%d block=%lld", r->join, (long long)t.block);
    kvar level = t.c.depth.at[t.level];
    kvar threads = r->threads;
    if (threads >= 0) { /* with the loops that packing will make */
        contraction after = t.c;
        after.k = kernel_clone(k, k->a);
        if (t.cut) {
            kvar v = t.c.rows.at[t.n_out];
            t.rb = kernel_var(after.k, "rb", k->vars.at[v].extent / t.cut, true, false);
            after.k->vars.at[v].extent = t.cut;
        }
        t.nb = kernel_var(after.k, "nb", contraction_full_tiles(&t.c) / t.tiles + 1, true, false);
        t.c = after;
        t.inner_rows = contraction_rows_from(&t.c, t.n_out);
        threads = choose_parallel(&t);
    }
    recipe_do(r, "pack b%d %s %lld tiles=%lld outer=%d%s%s%s", b->buf, k->vars.at[level].name, (long long)t.piece,
              (long long)t.tiles, t.n_out, rows, join, more);
    if (r->join) recipe_fuse_loops(r); /* windows that are copied may walk as one */
    if (t.fixed && contraction_computes(&t.c)) recipe_try(r, "group_sums");
    r->threads = threads;
    return true;
}
