/* stage.c - staging in fast memory: a large contraction is done in stretches; for each, the part of the right operand that it
 * needs (a panel) is copied into local memory, where the register tile reads it as one sequential stream. In and out: scalar
 * form with roles.
 *
 * Applies to kernels of the form: rows (.., m, n), accumulator, contraction loops, epilogue, where n runs along the lanes, m is
 * unrolled, and the right operand is used by many rows. The nest becomes
 *
 *     outer rows                     those that the panel depends on, or whose sums together do not fit
 *       panels                       a few tiles of n each
 *         sums = 0                   one for each inner row and column
 *         stretches                  outer contraction loops, pieces of one of them
 *           panel = operand          this stretch, the panel's columns
 *           inner rows, tiles of the panel: sums += product over the stretch
 *         inner rows, tiles of the panel: epilogue of the sums
 *
 * without sums where one stretch is enough. The panel stays in the second-level cache and is read as a stream; the rows come
 * from further away, once a panel, and stay in the first level for all of its tiles (measured at 1024 x 1024 x 1024: rows that
 * are read for every tile cost ten percent, sums three, panels in the first-level cache do not pay for either). An operand
 * whose columns do not lie side by side is turned by the copy.
 *
 * Few rows take about as long for a stretch as the next one takes to come from memory: their tiles fetch it, each its share,
 * while they work (measured at 32 x 4096 x 4096 on one core: a quarter faster with a copied operand, a fifth with a fixed one).
 *
 * A fixed operand (kbuf.fixed) is laid out in panels before any run: nothing is copied, and few rows are enough, or one, which
 * reads some narrow panels at once, each a stream that nothing interrupts. */
#include "kopt/kopt.h"

enum {
    MIN_TILES = 3,         /* tiles of rows that share a panel */
    MIN_TURNED = 8,        /* rows that share one whose columns are turned */
    COPY_ROWS = 2,         /* so many rows of a contraction take as long as copying its panel .. */
    TURN_ROWS = 6,         /* .. or turning it */
    MAX_TILES = 4,         /* of a panel */
    MOST_AHEAD = 16,       /* tiles of rows that fetch what is copied next .. */
    MOST_AHEAD_FIXED = 64, /* .. or the next of a stream */
    FAR_COPIES = 2,        /* times the second-level cache: nearer, the copy does not wait long */
    LEAST_AHEAD = 16,      /* steps of the loop in which they do it */
    AHEAD_BYTES = 384,     /* of a row of a panel that is copied: long pieces of memory come faster */
    STREAM_VECTORS = 2,    /* side by side in a panel for one row */
    LEAST_PAIRS = 4,       /* of vectors at once, or the sums wait for themselves */
    LEAST_ROWS = 8,        /* of a stretch */
    LEAST_STEPS = 32,      /* of a stretch that is cut to be fetched ahead */
    LEAST_NEAR = 48,       /* steps of a stretch that is cut for the first level */
    MOST_ASKED = 16,       /* the same, when measuring */
    MAX_LOCAL = 256 << 10  /* bytes of sums, and of a panel: they live on the stack */
};

#define STREAM_COST 0.3 /* of one stream from afar, beside many */

typedef struct subst {
    kvar v;
    affine value;
} subst;

typedef struct stager {
    kernel *k;
    const target *machine;
    bool only_fixed; /* only where nothing is copied */
    /* the kernel's form */
    VEC(kvar) rows;                 /* row loops but n, outermost first */
    VEC(kvar) depth;                /* contraction loops, outermost first */
    kvar m, n;                      /* m: -1 for a single row */
    int acc, contraction, end, upd; /* instructions: accumulator, first contraction loop and its end, update */
    reg panel_load;
    /* what was chosen */
    int n_out;     /* the first rows stay outside */
    kvar cut;      /* the outermost inner row in pieces: the loop over them, or -1 */
    int64_t tiles; /* of n, in a panel */
    kvar nb, nt;   /* panel; tile in it */
    bool whole;    /* one stretch: no sums */
    int level;     /* stretches are pieces of depth.at[level] */
    int64_t piece, inner_rows;
    bool streams;       /* the tiles of a panel are worked on at once */
    bool ahead;         /* the next stretch is fetched */
    int panel, sums;    /* local buffers; panel: or one of a fixed value in panels */
    kpanels *fixed;     /* its layout; NULL: panels are copied */
    affine fixed_row;   /* place in it by depth and outer loops */
    int64_t fixed_tile; /* elements of a panel of it */
    /* being written */
    int64_t tiles_now;        /* of this panel */
    int64_t columns;          /* of each of them */
    affine column, tile;      /* what n stands for; which tile that is in */
    kernel out;               /* only its instructions */
    reg *map;                 /* [k->ins.n] */
    VEC(subst) substs, outer; /* of the part being written; of all parts */
} stager;

static const kins *ins(const stager *t, int i) { return &t->k->ins.at[i]; }
static int64_t extent_of(const stager *t, kvar v) { return t->k->vars.at[v].extent; }
static krole role_of(const stager *t, kvar v) { return t->k->vars.at[v].role; }
static int tile_rows(const stager *t) { return t->m >= 0 ? role_of(t, t->m).unroll : 1; }
static int64_t width_of(const stager *t) { return (int64_t)role_of(t, t->n).unroll * role_of(t, t->n).lanes; }
static tn_dtype operand_dtype(const stager *t) { /* in a panel */
    const kins *load = ins(t, (int)t->panel_load);
    return load->parts ? TN_I32 : (tn_dtype)load->src;
}
static int64_t operand_size(const stager *t) { return (int64_t)dtype_size(operand_dtype(t)); }
static int64_t sum_size(const stager *t) { return (int64_t)dtype_size((tn_dtype)ins(t, t->acc)->dtype); }

/* ---- the kernel's form ---- */

static bool find_rows(stager *t) {
    int i = 1;
    t->m = t->n = -1;
    for (; i < t->k->ins.n && ins(t, i)->op != K_ACC; i++) { /* rows, and what was hoisted between them */
        if (ins(t, i)->op == K_STORE || ins(t, i)->op == K_SCATTER || ins(t, i)->op == K_END) return false;
        if (ins(t, i)->op != K_LOOP) continue;
        kvar v = ins(t, i)->var;
        if (!t->k->vars.at[v].row || t->n >= 0) return false; /* n is the innermost */
        if (role_of(t, v).lanes > 1) {
            t->n = v;
            continue;
        }
        if (role_of(t, v).unroll > 1) t->m = v;
        VEC_PUSH(t->k->a, &t->rows, v);
    }
    t->acc = i;
    return i < t->k->ins.n && t->n >= 0;
}

static bool find_contraction(stager *t) {
    for (int i = t->acc + 1; i < t->k->ins.n; i++) {
        const kins *in = ins(t, i);
        if (in->op == K_LOOP && t->k->vars.at[in->var].reduce) {
            if (t->upd) return false;
            if (!t->contraction) t->contraction = i;
            VEC_PUSH(t->k->a, &t->depth, in->var);
        }
        if (in->op == K_ACC || in->op == K_ARGUPD) return false;
        if (in->op != K_UPD) continue;
        if (in->alu != OP_dot || t->upd || (int)in->c != t->acc) return false;
        t->upd = i;
    }
    if (!t->upd || !t->contraction) return false;
    t->end = kernel_loop_end(t->k, t->contraction);
    return t->upd < t->end;
}

/* The operand that runs along n and not along m. */
static bool find_panel(stager *t) {
    reg side[2] = { ins(t, t->upd)->a, ins(t, t->upd)->b };
    for (int x = 0; x < 2; x++) {
        const kins *in = ins(t, (int)side[x]);
        if (in->op == K_LOAD && affine_coef(in->idx, t->n) && !affine_coef(in->idx, t->m) && !in->n_mask && !in->dyn &&
            t->k->bufs.at[in->buf].kind == KB_IN)
            t->panel_load = side[x];
    }
    return t->panel_load != 0;
}

static bool recognise(stager *t) {
    for (int b = 0; b < t->k->bufs.n; b++)
        if (t->k->bufs.at[b].kind == KB_LOCAL && t->k->bufs.at[b].elems > 0) return false;
    return find_rows(t) && find_contraction(t) && t->depth.n <= 5 && find_panel(t);
}

/* ---- fixed operands ---- */

static bool add_loop(const stager *t, kpanels *x, kvar v) {
    if (x->n_outer + x->n_depth == PANEL_LOOPS) return false;
    x->loops[x->n_outer + x->n_depth] = (kstep){ extent_of(t, v), affine_coef(ins(t, (int)t->panel_load)->idx, v) };
    return true;
}

/* Panels with all contraction loops inside, one after the other for the rows that the operand depends on. */
static bool list_loops(const stager *t, kpanels *x) {
    const kins *b = ins(t, (int)t->panel_load);
    int n = 1; /* loops that the index knows */
    *x = (kpanels){ b->idx.base, width_of(t), .column = { extent_of(t, t->n), affine_coef(b->idx, t->n) } };
    x->dtype = b->src, x->parts = b->parts, x->part_stride = b->part_stride;
    for (int i = 0; i < t->rows.n; i++) {
        if (!affine_coef(b->idx, t->rows.at[i])) continue;
        if (!add_loop(t, x, t->rows.at[i])) return false;
        x->n_outer++, n++;
    }
    for (int i = 0; i < t->depth.n; i++, x->n_depth++) {
        if (!add_loop(t, x, t->depth.at[i])) return false;
        n += affine_coef(b->idx, t->depth.at[i]) != 0;
    }
    return n == b->idx.n;
}

static affine add_scaled(const stager *t, affine x, kvar v, int64_t *scale) { /* *scale: for the loop around this one */
    arena *a = t->k->a;
    x = affine_add(a, x, affine_scale(a, affine_var(a, v), *scale));
    *scale *= extent_of(t, v);
    return x;
}

static void find_layout(stager *t) {
    const kins *b = ins(t, (int)t->panel_load);
    t->fixed = NULL, t->fixed_row = affine_const(0);
    const kbuf *own = &t->k->bufs.at[b->buf];
    kpanels x;
    if (!own->fixed || t->machine->no_panels || !list_loops(t, &x)) return;
    if (kpanels_elems(&x) * (x.parts ? x.parts : 1) > 2 * own->elems) return; /* windows that overlap, or many a short panel */
    int64_t scale = x.width;
    for (int i = t->depth.n - 1; i >= 0; i--) t->fixed_row = add_scaled(t, t->fixed_row, t->depth.at[i], &scale);
    t->fixed_tile = scale;
    scale *= (x.column.extent + x.width - 1) / x.width;
    for (int i = t->rows.n - 1; i >= 0; i--)
        if (affine_coef(b->idx, t->rows.at[i])) t->fixed_row = add_scaled(t, t->fixed_row, t->rows.at[i], &scale);
    t->fixed = arena_copy(t->k->a, &x, sizeof x);
}

/* ---- choices ---- */

static int64_t rows_from(const stager *t, int first) {
    int64_t n = 1;
    for (int i = first; i < t->rows.n; i++) n *= extent_of(t, t->rows.at[i]);
    return n;
}

static int64_t depth_from(const stager *t, int first) {
    int64_t n = 1;
    for (int i = first; i < t->depth.n; i++) n *= extent_of(t, t->depth.at[i]);
    return n;
}

static int64_t sums_limit(const stager *t) { /* sums that fit */
    int64_t bytes = t->machine->l2_bytes / 2 < MAX_LOCAL ? t->machine->l2_bytes / 2 : MAX_LOCAL;
    return bytes / sum_size(t);
}

static bool shares_enough(const stager *t) { return t->fixed || rows_from(t, t->n_out) / tile_rows(t) >= MIN_TILES; }

/* Elements between steps along the contraction, where they are closest together. */
static int64_t apart(const stager *t, const kins *load) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < t->depth.n; i++) {
        int64_t c = affine_coef(load->idx, t->depth.at[i]);
        if (c < 0) c = -c;
        if (c && c < least) least = c;
    }
    return least;
}

/* In place, the operand's columns of one tile lie far apart in memory: worth a copy when they do not all stay in the
 * first-level cache anyway. */
static bool pays(const stager *t) {
    const kchoice *asked = t->machine->choice;
    const kins *b = ins(t, (int)t->panel_load);
    int64_t row = apart(t, b);
    if (affine_coef(b->idx, t->n) != 1) return rows_from(t, t->n_out) >= MIN_TURNED;
    if (asked && asked->way == WAY_STAGE) return true;
    if (b->parts) return shares_enough(t);                    /* in place, each tile of rows would make the words again */
    if (row == INT64_MAX || row <= width_of(t)) return false; /* one panel as it lies */
    return depth_from(t, 0) * row * operand_size(t) > t->machine->l1_bytes / 2 && shares_enough(t);
}

/* Rows of a panel of some tiles: what leaves most of the second-level cache to sums and operands that pass through. */
static int64_t stretch_limit(const stager *t, int64_t tiles) {
    int64_t bytes = t->machine->l2_bytes * 3 / 8, least = t->machine->l1_bytes * 7 / 8;
    if (bytes > MAX_LOCAL) bytes = MAX_LOCAL;
    int64_t rows = (bytes > least ? bytes : least) / (tiles * width_of(t) * operand_size(t)) / 8 * 8;
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
static bool few_rows(const stager *t) { return t->fixed && rows_from(t, t->n_out) / tile_rows(t) < MIN_TILES; }

static int64_t full_tiles(const stager *t) { return extent_of(t, t->n) / width_of(t); }

/* More tiles read the rows less often; panels should come out even, for each thread, too. */
static int64_t choose_tiles(const stager *t, int64_t most) {
    int64_t all = full_tiles(t), best = 1, threads = t->k->par_var >= 0 && t->n_out == 0 ? t->machine->threads : 1;
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
 * takes a part: steps after which the tiles that follow still find the rest of the lines in the first level. */
static int64_t near_limit(const stager *t) {
    const kins *upd = ins(t, t->upd), *x = ins(t, (int)(upd->a == t->panel_load ? upd->b : upd->a));
    if (x->op != K_LOAD || affine_coef(x->idx, t->m) != 1 || apart(t, x) == INT64_MAX) return INT64_MAX;
    int64_t limit = loop_places(t->machine->l1_bytes, apart(t, x) * (int64_t)dtype_size((tn_dtype)x->src));
    return limit >= LEAST_NEAR ? limit : INT64_MAX;
}

/* Steps of a stretch while the next one is fetched: so many that its panel stays in the first level or, with many rows, which
 * would write their sums too often, that both share the second. Of the lines of what is copied, both must find places there. */
static int64_t ahead_limit(const stager *t, int64_t limit) {
    const kins *b = ins(t, (int)t->panel_load);
    int64_t size = operand_size(t), near = t->machine->l1_bytes * 3 / 4 / (t->tiles * width_of(t) * size);
    if (t->fixed) return rows_from(t, t->n_out) / tile_rows(t) <= MOST_AHEAD ? near : limit / 2;
    int64_t far = loop_places(t->machine->l2_bytes, apart(t, b) * size) * 3 / 4;
    if (far < LEAST_STEPS) far = LEAST_STEPS;
    return near < far ? near : far;
}

static bool fetches_ahead(const stager *t) {
    const kins *b = ins(t, (int)t->panel_load);
    int64_t bytes = t->fixed ? kpanels_elems(t->fixed) * operand_size(t)
                             : t->k->bufs.at[b->buf].elems * (int64_t)dtype_size((tn_dtype)b->src);
    int64_t tiles = rows_from(t, t->n_out) / tile_rows(t);
    if (bytes <= t->machine->l2_bytes * (t->fixed ? 1 : FAR_COPIES) ||
        extent_of(t, t->depth.at[t->depth.n - 1]) < LEAST_AHEAD || tiles < 2)
        return false;
    if (t->fixed) return tiles <= MOST_AHEAD_FIXED;
    return tiles <= MOST_AHEAD && !b->parts && affine_coef(b->idx, t->n) == 1 && apart(t, b) < INT64_MAX &&
           loop_places(t->machine->l2_bytes, apart(t, b) * (int64_t)dtype_size((tn_dtype)b->src)) >= LEAST_STEPS;
}

static void choose_stretches(stager *t) {
    int64_t depth = depth_from(t, 0), most = 2, long_row = AHEAD_BYTES / (width_of(t) * operand_size(t));
    t->ahead = fetches_ahead(t);
    while (most < MAX_TILES && depth <= stretch_limit(t, most + 1)) most++;
    if (t->ahead) most = t->fixed ? 1 : long_row > 2 ? long_row : 2;
    t->tiles = choose_tiles(t, most);
    const kchoice *asked = t->machine->choice;
    if (asked && asked->tiles && asked->tiles <= MOST_ASKED && asked->tiles <= full_tiles(t)) t->tiles = asked->tiles;
    int64_t limit = stretch_limit(t, t->tiles), near = near_limit(t);
    if (few_rows(t) && !(asked && asked->tiles)) t->tiles = 1;
    if (t->ahead) limit = ahead_limit(t, limit);
    if (few_rows(t)) limit = t->machine->l1_bytes / 2 / (t->tiles * width_of(t) * operand_size(t));
    if (limit < LEAST_ROWS) limit = LEAST_ROWS;
    if (near < limit) limit = near;
    if (asked && asked->rows >= 8 && asked->rows * t->tiles * width_of(t) * operand_size(t) <= MAX_LOCAL) limit = asked->rows;
    t->whole = depth <= limit || (t->fixed && rows_from(t, t->n_out) <= tile_rows(t));
    if (t->whole) {
        t->level = 0, t->piece = extent_of(t, t->depth.at[0]);
        return;
    }
    t->level = t->depth.n - 1;
    while (t->level > 0 && depth_from(t, t->level) <= limit) t->level--;
    t->piece = divide(extent_of(t, t->depth.at[t->level]), limit / depth_from(t, t->level + 1));
}

static int64_t divisor(int64_t extent, int64_t limit) { /* the largest up to the limit */
    for (int64_t p = limit; p > 1; p--)
        if (extent % p == 0) return p;
    return 1;
}

/* Rows whose sums fit stay inside; the outermost of them is cut where it divides evenly. Returns whether it can be done. */
static bool choose_inner_rows(stager *t) {
    int64_t limit = sums_limit(t) / (width_of(t) * t->tiles);
    if (rows_from(t, t->n_out) <= limit) return true;
    for (; t->n_out < t->rows.n && rows_from(t, t->n_out) > limit; t->n_out++) {
        kvar v = t->rows.at[t->n_out];
        int64_t rest = rows_from(t, t->n_out + 1), piece = divisor(extent_of(t, v), limit / rest);
        if (piece * rest < MIN_TILES * tile_rows(t) || piece < role_of(t, v).unroll || piece == 1) continue;
        t->cut = kernel_var(t->k, "rb", extent_of(t, v) / piece, true, false);
        t->k->vars.at[v].extent = piece;
        affine first = affine_scale(t->k->a, affine_var(t->k->a, t->cut), piece);
        VEC_PUSH(t->k->a, &t->outer, (subst){ v, affine_add(t->k->a, first, affine_var(t->k->a, v)) });
        break;
    }
    return t->n_out < t->rows.n && shares_enough(t);
}

/* Steps of the longest share of one row, in pairs of vectors, n of them at once; in streams, the last columns are a panel of
 * their own. Few at once wait for their sums; from afar they also come slower. */
static double lone_steps(const stager *t, int64_t n, bool streams) {
    int64_t pair = (int64_t)role_of(t, t->n).lanes * STREAM_VECTORS, panels = extent_of(t, t->n) / (n * pair),
            rest = extent_of(t, t->n) % (n * pair), threads = t->k->par_var >= 0 && t->n_out == 0 ? t->machine->threads : 1;
    int64_t steps = (panels + threads - 1) / threads * (n < LEAST_PAIRS ? LEAST_PAIRS : n);
    if (rest) steps += rest < LEAST_PAIRS * pair ? LEAST_PAIRS : (rest + pair - 1) / pair;
    if (streams && rest > pair && rest % pair) steps += LEAST_PAIRS;
    bool near = kpanels_elems(t->fixed) * operand_size(t) <= t->machine->l2_bytes;
    return (double)steps * (near ? 1 : 1 + STREAM_COST / (double)(streams ? n : 1));
}

/* One row: its tile is as many panels side by side as it has pairs of vectors. Each comes as a stream of its own, and
 * processors fetch several at a time ahead, of one no more than the rest of a page (measured on one core at 1 x 4096 x 4096,
 * memory read at 34 GB/s: one stream 23 GB/s whatever is fetched ahead by instructions, seven 32). Not where a vector is a
 * line: one core of a Xeon with such vectors reads one stream a tenth faster than eight. */
static void choose_streams(stager *t) {
    krole *role = &t->k->vars.at[t->n].role;
    int64_t most = role->unroll / STREAM_VECTORS, asked = t->machine->choice ? t->machine->choice->tiles : 0, best = 1;
    t->tiles = 1, t->whole = true, t->piece = extent_of(t, t->depth.at[0]), t->inner_rows = 1;
    if (most < 2 || t->machine->vector_bytes >= LOOP_LINE_BYTES) return;
    double least = lone_steps(t, most, false);
    for (int64_t n = most; n > 1; n--) {
        double steps = lone_steps(t, n, true);
        if (steps < least) least = steps, best = n;
    }
    if (asked && asked <= most) best = asked;
    if (best == 1) return;
    role->unroll = STREAM_VECTORS;
    find_layout(t);
    t->tiles = best, t->streams = true;
}

static bool choose(stager *t) {
    const kins *b = ins(t, (int)t->panel_load);
    t->cut = -1;
    for (int i = 0; i < t->rows.n; i++)
        if (affine_coef(b->idx, t->rows.at[i])) t->n_out = i + 1; /* a panel for each of them */
    find_layout(t);
    if (t->only_fixed && !t->fixed) return false;
    if (t->m < 0 ? t->n_out < t->rows.n || !t->fixed : t->n_out == t->rows.n) return false;
    if (!pays(t)) return false;
    if (t->m < 0) {
        choose_streams(t);
        return true;
    }
    choose_stretches(t);
    int n_out = t->n_out;
    if (!t->whole && !choose_inner_rows(t)) { /* one panel of everything, for all rows, where it fits */
        t->n_out = n_out;
        t->whole = true, t->level = 0, t->piece = extent_of(t, t->depth.at[0]);
        if (depth_from(t, 0) * width_of(t) * t->tiles * operand_size(t) > MAX_LOCAL) t->tiles = 1;
        if (!t->fixed && depth_from(t, 0) * width_of(t) * operand_size(t) > MAX_LOCAL) return false;
    }
    t->inner_rows = rows_from(t, t->n_out);
    return true;
}

/* How evenly threads share loop v; each copies the panels of its own, and all of them all panels where v is inside. */
static double balance_of(const stager *t, kvar v, bool inside) {
    int threads = t->machine->threads;
    int64_t width = width_of(t), all = full_tiles(t), step = role_of(t, v).unroll;
    if (v == t->nb)
        return loop_balance(
            all / t->tiles,
            ((double)(all % t->tiles) + (double)(extent_of(t, t->n) % width) / (double)width) / (double)t->tiles, threads);
    double balance = loop_balance_of(t->k, v, step, threads);
    double copied = t->fixed || !inside ? 0 : affine_coef(ins(t, (int)t->panel_load)->idx, t->n) == 1 ? COPY_ROWS : TURN_ROWS;
    return balance / (1 + (threads - 1) * copied / (double)t->inner_rows);
}

/* The outermost loop that splits evenly. */
static kvar choose_parallel(const stager *t) {
    double best = 0;
    int asked = t->machine->choice ? t->machine->choice->par : 0, nth = 0;
    kvar par = -1;
    for (int i = 0; i < t->rows.n + 2; i++) {
        int row = i - (i > t->n_out) - (i > t->n_out + 1);
        kvar v = i == t->n_out ? t->cut : i == t->n_out + 1 ? t->nb : t->rows.at[row];
        if (v < 0 || (v == t->nb ? full_tiles(t) <= t->tiles : extent_of(t, v) <= role_of(t, v).unroll)) continue;
        if (asked == 2 + nth++) return v;
        double balance = balance_of(t, v, i > t->n_out + 1);
        if (balance > best + 0.05) best = balance, par = v;
    }
    return par;
}

/* ---- writing ---- */

static affine apply(const stager *t, affine x) {
    for (int i = 0; i < t->substs.n; i++) x = affine_set_var(t->k->a, x, t->substs.at[i].v, t->substs.at[i].value);
    return x;
}

static void reset_substs(stager *t) {
    t->substs.n = 0;
    for (int i = 0; i < t->outer.n; i++) VEC_PUSH(t->k->a, &t->substs, t->outer.at[i]);
    VEC_PUSH(t->k->a, &t->substs, (subst){ t->n, t->column });
}

static void open_part(stager *t, kvar v, int64_t lo, int64_t hi, kpar par) {
    kernel_push(&t->out, (kins){ .op = K_LOOP, .var = v, .lo = lo, .hi = hi, .step = 1, .par = (uint8_t)par });
}
static void open_loop(stager *t, kvar v) { open_part(t, v, 0, extent_of(t, v), PAR_SERIAL); }
static void open_tiles(stager *t) { open_part(t, t->nt, 0, t->tiles_now, PAR_SERIAL); }
static void close_loops(stager *t, int n) {
    for (int i = 0; i < n; i++) kernel_push(&t->out, (kins){ .op = K_END });
}

static kins translated(const stager *t, int i) {
    kins in = *ins(t, i);
    in.a = t->map[in.a], in.b = t->map[in.b], in.c = t->map[in.c], in.dyn = t->map[in.dyn];
    in.idx = apply(t, in.idx);
    if (in.n_mask) {
        in.mask = arena_copy(t->k->a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = apply(t, in.mask[m].e);
    }
    return in;
}

/* One stretch: values of the contraction loops that it fixes, and a piece of depth.at[level]. */
typedef struct stretch {
    kvar *outer;  /* [level] loops that stand for the first contraction loops */
    affine first; /* of the piece */
    int64_t length;
    kvar inside; /* runs over the piece */
} stretch;

/* Where an element of the panel lies: row of the panel x columns. `at` runs over the contraction loops from level on; copied:
 * over columns instead of n, or -1. */
static affine panel_place(stager *t, const kvar *at, kvar copied) {
    arena *a = t->k->a;
    affine row = affine_const(0);
    int64_t scale = 1;
    if (t->fixed) {
        affine column = affine_add(a, affine_scale(a, t->tile, t->fixed_tile), affine_var(a, t->n));
        return affine_add(a, apply(t, t->fixed_row), column);
    }
    for (int i = t->depth.n - 1; i >= t->level; i--) {
        row = affine_add(a, row, affine_scale(a, affine_var(a, at[i]), scale));
        scale *= extent_of(t, at[i]);
    }
    int64_t elems = t->k->bufs.at[t->panel].elems;
    row = affine_add(a, row, affine_scale(a, affine_var(a, t->nt), elems / t->tiles));
    if (copied >= 0) return affine_add(a, affine_scale(a, row, width_of(t)), affine_var(a, copied));
    return affine_add(a, row, affine_scale(a, affine_var(a, t->n), elems)); /* a copy for each column */
}

static void set_stretch(stager *t, const stretch *x, kvar inside) {
    reset_substs(t);
    if (t->whole) return;
    for (int i = 0; i < t->level; i++)
        VEC_PUSH(t->k->a, &t->substs, (subst){ t->depth.at[i], affine_var(t->k->a, x->outer[i]) });
    VEC_PUSH(t->k->a, &t->substs, (subst){ t->depth.at[t->level], affine_add(t->k->a, x->first, affine_var(t->k->a, inside)) });
}

/* A copy that turns goes square by square through registers: lanes along the columns, loads along the contraction loop that
 * lies along memory. Returns a loop for the columns, or -1 where there is no such loop. */
static kvar turn_in_squares(stager *t, const kins *load, const kvar *at) {
    int lanes = loop_turn_lanes((tn_dtype)load->dtype, role_of(t, t->n).lanes);
    for (int i = t->level; i < t->depth.n && lanes; i++) {
        if (affine_coef(load->idx, t->depth.at[i]) != 1 || extent_of(t, at[i]) < lanes) continue;
        kvar column = kernel_var(t->k, "c", t->columns, false, false);
        t->k->vars.at[column].role = (krole){ 1, lanes };
        t->k->vars.at[at[i]].role = (krole){ extent_of(t, at[i]) >= 2 * lanes ? 2 * lanes : lanes, 1 }; /* a cache line */
        return column;
    }
    return -1;
}

static void copy_panel(stager *t, const stretch *x) {
    kernel *k = t->k;
    if (t->fixed) return;
    kins load = *ins(t, (int)t->panel_load);
    kvar at[8], column = -1;
    bool turned = affine_coef(load.idx, t->n) != 1;
    for (int i = t->level; i < t->depth.n; i++) {
        int64_t length = i == t->level && !t->whole ? x->length : extent_of(t, t->depth.at[i]);
        at[i] = kernel_var(k, "p", length, false, false);
    }
    if (turned) column = turn_in_squares(t, &load, at);
    if (turned) open_tiles(t);
    if (column >= 0) open_loop(t, column);
    for (int i = t->level; i < t->depth.n; i++) open_loop(t, at[i]);
    if (!turned) open_tiles(t);
    set_stretch(t, x, at[t->level]);
    for (int i = t->whole ? t->level : t->level + 1; i < t->depth.n; i++)
        VEC_PUSH(k->a, &t->substs, (subst){ t->depth.at[i], affine_var(k->a, at[i]) });
    load.idx = apply(t, load.idx);
    if (column >= 0) load.idx = affine_set_var(k->a, load.idx, t->n, affine_var(k->a, column));
    reg r = kernel_push(&t->out, load);
    kernel_push(&t->out, (kins){ .op = K_STORE,
                                 .dtype = (uint8_t)operand_dtype(t),
                                 .buf = (uint16_t)t->panel,
                                 .idx = panel_place(t, at, column),
                                 .a = r,
                                 .node = load.node });
    close_loops(t, t->depth.n - t->level + 1 + (column >= 0));
}

static kins access_sums(stager *t, kop op) { /* one sum for every inner row, tile and column */
    arena *a = t->k->a;
    affine row = affine_var(a, t->nt);
    int64_t scale = t->tiles;
    for (int i = t->rows.n - 1; i >= t->n_out; i--) {
        row = affine_add(a, row, affine_scale(a, affine_var(a, t->rows.at[i]), scale));
        scale *= extent_of(t, t->rows.at[i]);
    }
    affine place = affine_add(a, row, affine_scale(a, affine_var(a, t->n), scale)); /* a copy for each column */
    const kins *acc = ins(t, t->acc);
    return (kins){
        .op = (uint8_t)op, .dtype = acc->dtype, .src = acc->dtype, .buf = (uint16_t)t->sums, .idx = place, .node = acc->node
    };
}

/* A stretch goes on from the sum where the one before stopped: the order of summation, and so every bit, is that of one loop.
 */
static void take_sum(stager *t) {
    const kins *acc = ins(t, t->acc);
    kins add = { .op = K_UPD, .alu = OP_add, .dtype = acc->dtype, .src = acc->dtype, .c = t->map[t->acc], .node = acc->node };
    add.a = kernel_push(&t->out, access_sums(t, K_LOAD));
    kernel_push(&t->out, add);
}

static void store_sum(stager *t) {
    kins store = access_sums(t, K_STORE);
    store.a = t->map[t->acc];
    kernel_push(&t->out, store);
}

static void clear_sums(stager *t) {
    int n = 0;
    for (int i = t->n_out; i < t->rows.n; i++, n++) open_loop(t, t->rows.at[i]);
    open_tiles(t), n++;
    const kins *acc = ins(t, t->acc);
    kins zero = { .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int, .node = acc->node };
    kins store = access_sums(t, K_STORE);
    store.a = kernel_push(&t->out, zero);
    kernel_push(&t->out, store);
    close_loops(t, n);
}

typedef enum part { WHOLE, SUM, FINISH } part; /* everything; up to the sums of a stretch; from the sums on */

static bool keeps_loop(const stager *t, part what, int i) {
    kvar v = ins(t, i)->var;
    for (int r = 0; r < t->n_out; r++)
        if (t->rows.at[r] == v) return false;
    if (what == FINISH && i >= t->contraction && i <= t->end) return false;
    if (what == SUM && i > t->end) return false;
    for (int d = 0; d < t->level; d++)
        if (t->depth.at[d] == v) return false;
    return true;
}

static affine flat(const stager *t, const kvar *at, int from, int to, int64_t scale) { /* the loops as one, scaled */
    arena *a = t->k->a;
    affine x = affine_const(0);
    for (int i = to - 1; i >= from; i--) {
        x = affine_add(a, x, affine_scale(a, affine_var(a, at[i]), scale));
        scale *= extent_of(t, at[i]);
    }
    return x;
}

static int64_t share(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

/* In each step along the contraction, a tile of rows fetches its share of the next stretch: of a stream that goes on behind
 * this one; or of the row that will be copied, once more for each tile of the panel. */
static void fetch_ahead(stager *t, const stretch *x, const kvar *at) {
    arena *a = t->k->a;
    const kins *b = ins(t, (int)t->panel_load);
    tn_dtype type = t->fixed ? operand_dtype(t) : (tn_dtype)b->src;
    int64_t steps = depth_from(t, t->level + 1) * (t->whole ? t->piece : x->length),
            line = LOOP_LINE_BYTES / (int64_t)dtype_size(type), row = t->tiles * width_of(t),
            all = t->fixed ? steps * width_of(t) : row + line - 1, each = share(all, t->inner_rows), once = each * tile_rows(t);
    affine place = t->fixed ? panel_place(t, at, -1) : apply(t, b->idx);
    place = affine_set_var(a, place, t->n, affine_const(0));
    if (t->fixed) {
        for (int i = t->level; i < t->depth.n; i++) place = affine_set_var(a, place, at[i], affine_const(0));
        once = share(once, steps);
        place = affine_add(a, affine_offset(place, t->whole ? t->tiles * all : all), flat(t, at, t->level, t->depth.n, once));
    } else {
        place = affine_set_var(a, place, t->nt, affine_const(0));
        place = affine_offset(place, t->whole ? row : x->length * affine_coef(b->idx, t->depth.at[t->level]));
    }
    place = affine_add(a, place, flat(t, t->rows.at, t->n_out, t->rows.n, each));
    kins fetch = { .op = K_PREFETCH, .dtype = (uint8_t)type, .src = (uint8_t)type, .lanes = 1, .par = 1, .node = b->node };
    fetch.buf = t->fixed ? (uint16_t)t->panel : b->buf;
    for (int64_t i = 0; i < once; i += line) {
        fetch.idx = affine_offset(place, i);
        kernel_push(&t->out, fetch);
    }
}

/* The kernel's own instructions once more, for the inner rows: what is needed of them (unused ones are removed at the end). */
static void replay(stager *t, part what, const stretch *x) {
    bool kept[64];
    int depth = 0;
    kvar at[8];
    set_stretch(t, x, x->inside);
    for (int i = t->level; i < t->depth.n; i++) at[i] = i == t->level && !t->whole ? x->inside : t->depth.at[i];
    for (int i = 1; i < t->k->ins.n; i++) {
        kins in = translated(t, i);
        if (in.op == K_LOOP) {
            bool keep = kept[depth++] = keeps_loop(t, what, i);
            if (!keep) continue;
            if (what == SUM && in.var == t->depth.at[t->level]) in.var = x->inside;
            in.hi = extent_of(t, in.var);
            if (in.var == t->n) in.var = t->nt, in.hi = t->tiles_now;
        } else if (in.op == K_END) {
            bool keep = kept[--depth];
            if (keep) kernel_push(&t->out, in);
            if (i == t->end && what == SUM) store_sum(t);
            if (i == t->end && what == FINISH) t->map[t->acc] = kernel_push(&t->out, access_sums(t, K_LOAD));
            continue;
        } else if ((what == SUM && i > t->end) || (what == FINISH && (i == t->acc || (i > t->contraction && i < t->end)))) {
            continue;
        }
        if (i == (int)t->panel_load) {
            in.buf = (uint16_t)t->panel, in.idx = panel_place(t, at, -1);
            in.src = (uint8_t)operand_dtype(t), in.parts = 0, in.part_stride = 0;
        }
        t->map[i] = kernel_push(&t->out, in);
        if (i == t->acc && what == SUM) take_sum(t);
        bool innermost = in.op == K_LOOP && ins(t, i)->var == t->depth.at[t->depth.n - 1];
        if (t->ahead && innermost && what != FINISH) fetch_ahead(t, x, at);
    }
}

static void do_piece(stager *t, stretch *x) {
    x->inside = kernel_var(t->k, "k", x->length, false, true);
    copy_panel(t, x);
    replay(t, SUM, x);
}

static void do_stretches(stager *t) {
    arena *a = t->k->a;
    int64_t extent = extent_of(t, t->depth.at[t->level]), pieces = extent / t->piece, rest = extent % t->piece;
    kvar outer[8];
    stretch x = { .outer = outer, .length = t->piece, .first = affine_const(0) };
    clear_sums(t);
    for (int i = 0; i < t->level; i++)
        open_loop(t, outer[i] = kernel_var(t->k, "ks", extent_of(t, t->depth.at[i]), false, false));
    kvar piece = kernel_var(t->k, "kb", pieces, false, false);
    open_loop(t, piece);
    x.first = affine_scale(a, affine_var(a, piece), t->piece);
    do_piece(t, &x);
    close_loops(t, 1);
    if (rest) {
        x.first = affine_const(extent - rest), x.length = rest;
        do_piece(t, &x);
    }
    close_loops(t, t->level);
    x.inside = t->depth.at[t->level];
    replay(t, FINISH, &x);
}

static void write_panel(stager *t) {
    if (t->whole) {
        stretch x = { .first = affine_const(0), .length = t->piece, .inside = t->depth.at[0] };
        copy_panel(t, &x);
        replay(t, WHOLE, &x);
    } else {
        do_stretches(t);
    }
}

/* Panels [from, to) of some tiles, `columns` wide each, the first of them `skipped` tiles behind the start. */
static void write_panels(stager *t, int64_t from, int64_t to, int64_t skipped, int64_t tiles, int64_t columns) {
    arena *a = t->k->a;
    int64_t width = width_of(t);
    bool apart = t->k->par_var == t->nb && from > 0; /* the last panels are not like the others */
    if (from == to) return;
    t->tiles_now = tiles;
    t->columns = columns;
    t->tile = affine_add(a, affine_scale(a, affine_var(a, t->nb), t->tiles), affine_var(a, t->nt));
    t->tile = affine_offset(t->tile, skipped);
    t->column = affine_add(a, affine_scale(a, t->tile, width), affine_var(a, t->n));
    open_part(t, t->nb, from, to, apart ? PAR_LAST : PAR_SERIAL);
    open_part(t, t->n, 0, columns, PAR_SERIAL);
    write_panel(t);
    close_loops(t, 2);
}

static void write_nest(stager *t) {
    int n = 0;
    int64_t width = width_of(t), panels = full_tiles(t) / t->tiles, rest = full_tiles(t) % t->tiles,
            tail = extent_of(t, t->n) % width;
    for (int i = 0; i < t->n_out; i++, n++) open_loop(t, t->rows.at[i]);
    if (t->cut >= 0) open_loop(t, t->cut), n++;
    write_panels(t, 0, panels, 0, t->tiles, width);
    if (rest) write_panels(t, panels, panels + 1, 0, rest, width);
    if (tail) write_panels(t, panels, panels + 1, rest, 1, tail);
    close_loops(t, n);
}

static kbuf panel_buffer(const stager *t) {
    const kins *load = ins(t, (int)t->panel_load);
    kbuf b = { .dtype = (uint8_t)operand_dtype(t), .kind = KB_LOCAL, .node = load->node, .plan_buf = -1 };
    b.elems = t->piece * depth_from(t, t->level + 1) * t->tiles; /* of one column a tile */
    if (!t->fixed) return b;
    b.kind = KB_IN, b.fixed = true;
    b.panels = t->fixed, b.panels_of = load->buf;
    b.elems = kpanels_elems(t->fixed);
    return b;
}

static kbuf sums_buffer(const stager *t) {
    const kins *acc = ins(t, t->acc);
    return (
        kbuf){ .dtype = acc->dtype, .kind = KB_LOCAL, .node = acc->node, .elems = t->inner_rows * t->tiles, .plan_buf = -1 };
}

static bool stage(kernel *k, const target *machine, bool only_fixed) {
    stager t = { .k = k, .machine = machine, .only_fixed = only_fixed };
    if (k->vars.n > 30 || !recognise(&t) || !choose(&t)) return false;
    t.panel = kernel_buf(k, panel_buffer(&t));
    if (!t.whole) t.sums = kernel_buf(k, sums_buffer(&t));
    t.nb = kernel_var(k, "nb", full_tiles(&t) / t.tiles + 1, true, false);
    t.nt = kernel_var(k, "nt", t.tiles, false, false);
    if (t.streams) k->vars.at[t.nt].role = (krole){ (int)t.tiles, 1 };
    t.map = ARENA_ARRAY(k->a, reg, k->ins.n);
    t.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &t.out.ins, (kins){ 0 });
    if (k->par_var >= 0) k->par_var = choose_parallel(&t);
    write_nest(&t);
    k->ins.at = t.out.ins.at, k->ins.n = t.out.ins.n, k->ins.cap = t.out.ins.cap;
    for (int i = t.n_out; i < t.rows.n; i++) k->vars.at[t.rows.at[i]].row = false; /* local memory is indexed by them */
    loop_sweep(k);
    if (t.fixed) loop_drop_unread(k, k->bufs.at[t.panel].panels_of);
    return true;
}

bool kopt_stage(kernel *k, const target *machine) { return stage(k, machine, false); }
bool kopt_stage_fixed(kernel *k, const target *machine) { return stage(k, machine, true); }
