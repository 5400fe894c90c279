/* pack.c - packing and cache blocking: a large contraction is done in K blocks; for each, the part of the operand with the
 * lanes that it needs (a panel) is copied into local memory, where the register tile reads it as one sequential stream. In and
 * out: scalar form with roles.
 *
 * Applies to kernels of the form: rows (.., m, n), accumulator, contraction loops, epilogue, where n runs along the lanes and m
 * is unrolled. The nest becomes
 *
 *     outer rows                     those that the panel depends on, or whose sums together do not fit
 *       panels                       a few tiles of n each
 *         sums = 0                   one for each inner row and column
 *         K blocks                   outer contraction loops, pieces of one of them
 *           panel = operand          this K block, the panel's columns
 *           inner rows, tiles of the panel: sums += product over the K block
 *         inner rows, tiles of the panel: epilogue of the sums
 *
 * without sums where one K block is enough. An operand whose columns do not lie side by side is transposed by the copy. An
 * operand that is computed of what is loaded (dequantised weights, masked or scaled values) is computed by the copy, once for
 * each panel. With join=q the q row loops around the lanes are columns of the panel as well (the rows of an image whose windows
 * are convolved): a panel has `block` iterations of the outermost of them, one row of columns behind the other, and the
 * register tile walks through all of them as one. All else must walk through memory along these loops as one, too. A constant
 * operand (kbuf.fixed) is laid out in panels before any run: nothing is copied. With `ahead` the tiles of rows fetch the next K
 * block, each its share, while they work. Each K block goes on from the sums of the one before: every bit is that of one loop.
 *
 * accumulate is the same without panels: a matrix that is contiguous along n, times one vector or a few (GEMV, skinny GEMM), is
 * read row by row from end to end, some rows at a time, while the sums wait. Tile by tile, it would be read in short pieces,
 * each on a page of its own. Loops are outer contraction loops (groups of rows), pieces of the innermost one, n, m. */
#include "loop/build.h"
#include "loop/contraction.h"
#include "loop/loop.h"
#include "loop/schedule.h"

enum {
    MOST_LOCAL = 1 << 20 /* bytes of sums, and of a panel */,
    MOST_LOOPS = 30,
    MOST_VARS = 50, /* of accumulate */
    MOST_JOINED = 4,
    COPY_UNROLL = 4 /* vectors of a row that is copied */
};

typedef struct packer {
    contraction c;
    /* the arguments */
    int n_out;    /* the first rows stay outside */
    int n_joined; /* rows around the lanes that are columns, too, outermost first .. */
    kvar joined[MOST_JOINED];
    int64_t block; /* .. iterations of the outermost of them in a panel */
    kvar cut;      /* the outermost inner row in pieces: the loop over them, or -1 */
    int64_t tiles; /* of n, in a panel */
    kvar nb, nt;   /* panel; tile in it, or column where rows are joined */
    bool whole;    /* all of the contraction at once: no sums wait */
    int level;     /* K blocks are pieces of depth.at[level] */
    int64_t piece, inner_rows;
    bool ahead;         /* the next K block is fetched */
    int panel, sums;    /* local buffers; panel: or a constant operand's */
    bool in_place;      /* no panels: the operand is read as it lies, along n inside of the K blocks, which m is inside of */
    int64_t stride;     /* then: elements from one row's sums to the next one's */
    kpanels *fixed;     /* its layout; NULL: panels are copied */
    affine full_row;    /* place in it by depth and outer loops */
    affine tail_row;    /* the same in the last panel, which has the columns that are left */
    int64_t fixed_tile; /* elements of a panel of it */
    /* being written */
    int64_t tiles_now;       /* of this panel; columns of it where rows are joined */
    int64_t rows_now;        /* of the outermost joined loop */
    int64_t columns;         /* of each tile, or row */
    affine column, tile;     /* what n stands for; which tile that is in */
    affine row[MOST_JOINED]; /* what the joined rows stand for */
    affine in_row;           /* and where that is in a row of the panel */
    affine fixed_row;        /* full_row or tail_row */
    kernel out;              /* only its instructions */
    int begin;               /* instructions before that are there already */
    build_copier copy;
    build_places at, outer; /* what variables are in the part being written; in all parts */
} packer;

static affine add_scaled(const packer *t, affine x, kvar v, int64_t *scale) { /* *scale: for the loop around this one */
    arena *a = t->c.k->a;
    x = build_plus(a, x, affine_var(a, v), *scale);
    *scale *= contraction_extent(&t->c, v);
    return x;
}

/* Where a row of a constant operand lies in a panel that is `columns` wide. */
static affine row_place(packer *t, const kpanels *x, int64_t columns) {
    const kins *b = contraction_ins(&t->c, (int)t->c.load);
    int64_t scale = columns;
    affine row = affine_const(0);
    for (int i = t->c.depth.n - 1; i >= 0; i--)
        if (contraction_in_panel(&t->c, t->c.depth.at[i])) row = add_scaled(t, row, t->c.depth.at[i], &scale);
    scale = scale / columns * x->column.extent;
    for (int i = t->c.rows.n - 1; i >= 0; i--)
        if (affine_coef(b->idx, t->c.rows.at[i])) row = add_scaled(t, row, t->c.rows.at[i], &scale);
    return row;
}

/* What is in panels, as it lies there: of a constant operand what is loaded, else what is computed of that. */
static reg in_panels(const packer *t) { return t->fixed ? t->c.load : t->c.packed.value; }
static tn_dtype panel_dtype(const packer *t) {
    const kins *load = contraction_ins(&t->c, (int)t->c.load);
    return !t->fixed ? contraction_dtype(&t->c) : load->packed ? TN_I32 : (tn_dtype)load->src;
}

static void place_constant(packer *t, const kpanels *x) {
    int64_t tail = x->column.extent % x->width;
    t->full_row = row_place(t, x, x->width);
    if (tail) t->tail_row = row_place(t, x, tail);
    t->fixed_tile = x->width;
    for (int i = 0; i < x->n_depth; i++) t->fixed_tile *= x->loops[x->n_outer + i].extent;
    t->fixed = arena_copy(t->c.k->a, x, sizeof *x);
}

/* ---- writing ---- */

static void open_part(packer *t, kvar v, int64_t lo, int64_t hi) { build_open(&t->out, v, lo, hi, PAR_SERIAL); }
static void open_loop(packer *t, kvar v) { open_part(t, v, 0, contraction_extent(&t->c, v)); }
static void open_tiles(packer *t) { open_part(t, t->nt, 0, t->tiles_now); }

/* One K block: values of the contraction loops that it fixes, and a piece of depth.at[level]. */
typedef struct k_block {
    kvar *outer;  /* [level] loops that stand for the first contraction loops */
    affine first; /* of the piece */
    int64_t length;
    kvar at[CONTRACTION_MOST_DEPTH]; /* from level on: what runs over the piece, and over the loops inside */
} k_block;

/* Elements of a row of the panel, where rows are joined. */
static int64_t row_elems(const packer *t) {
    int64_t n = t->block * contraction_extent(&t->c, t->c.n);
    for (int i = 1; i < t->n_joined; i++) n *= contraction_extent(&t->c, t->joined[i]);
    return n;
}

/* Where an element of the panel lies: row of the panel x columns. `at` runs over the contraction loops from level on; copied:
 * over columns instead of n, or -1. */
static affine panel_place(packer *t, const kvar *at, kvar copied) {
    arena *a = t->c.k->a;
    affine row = affine_const(0);
    int64_t scale = 1;
    if (t->fixed) {
        affine column = affine_add(a, affine_scale(a, t->tile, t->fixed_tile), affine_var(a, t->c.n));
        return affine_add(a, build_moved(a, &t->at, t->fixed_row), column);
    }
    for (int i = t->c.depth.n - 1; i >= t->level; i--) {
        row = build_plus(a, row, affine_var(a, at[i]), scale);
        scale *= contraction_extent(&t->c, at[i]);
    }
    if (t->n_joined) return affine_add(a, affine_scale(a, row, row_elems(t)), t->in_row);
    int64_t elems = t->c.k->bufs.at[t->panel].elems;
    row = build_plus(a, row, affine_var(a, t->nt), elems / t->tiles);
    if (copied >= 0) return affine_add(a, affine_scale(a, row, contraction_tile_columns(&t->c)), affine_var(a, copied));
    return build_plus(a, row, affine_var(a, t->c.n), elems); /* a copy for each column */
}

/* `at` runs over the piece and the contraction loops inside. */
static void set_k_block(packer *t, const k_block *x, const kvar *at) {
    arena *a = t->c.k->a;
    t->at = t->outer;
    for (int i = 0; i < t->n_joined; i++) build_put(&t->at, t->joined[i], t->row[i]);
    if (!t->in_place) build_put(&t->at, t->c.n, t->column);
    for (int i = 0; i < t->level; i++) build_put(&t->at, t->c.depth.at[i], affine_var(a, x->outer[i]));
    for (int i = t->level; i < t->c.depth.n; i++) {
        affine value = affine_var(a, at[i]);
        if (i == t->level) value = affine_add(a, x->first, value);
        if (at[i] != t->c.depth.at[i] || value.base || value.n > 1) build_put(&t->at, t->c.depth.at[i], value);
    }
}

/* A copy that turns goes square by square through registers: lanes along the columns, loads along the contraction loop that
 * lies along memory. Returns a loop for the columns, or -1 where there is no such loop. */
static kvar transpose_in_squares(packer *t, const kins *load, const kvar *at) {
    int lanes = loop_transpose_lanes((tn_dtype)load->dtype, contraction_role(&t->c, t->c.n).lanes);
    for (int i = t->level; i < t->c.depth.n && lanes; i++) {
        if (affine_coef(load->idx, t->c.depth.at[i]) != 1 || contraction_extent(&t->c, at[i]) < lanes) continue;
        kvar column = kernel_var(t->c.k, "c", t->columns, false, false);
        t->c.k->vars.at[column].role = (krole){ 1, lanes };
        t->c.k->vars.at[at[i]].role =
            (krole){ contraction_extent(&t->c, at[i]) >= 2 * lanes ? 2 * lanes : lanes, 1 }; /* a cache line */
        return column;
    }
    return -1;
}

/* What joined rows and the columns stand for: the loops of a copy over them, or (NULL) the columns of the panel as one. */
static void stand_for(packer *t, const kvar *rows, kvar column) {
    arena *a = t->c.k->a;
    affine first = build_times(a, t->nb, t->block);
    int64_t scale = contraction_extent(&t->c, t->c.n);
    if (!t->n_joined) return;
    t->column = t->in_row = affine_var(a, column);
    for (int i = t->n_joined - 1; i >= 0; i--, scale *= contraction_extent(&t->c, t->joined[i + 1])) {
        if (rows) t->in_row = build_plus(a, t->in_row, affine_var(a, rows[i]), scale);
        t->row[i] = affine_add(a, i ? affine_const(0) : first, rows ? affine_var(a, rows[i]) : affine_const(0));
    }
}

static reg push_operand(packer *t) {
    for (reg r = 1; r <= t->c.packed.value; r++)
        if (t->c.packed.needs[r]) build_copy(&t->copy, (int)r, &t->at);
    return t->copy.to[t->c.packed.value];
}

typedef struct copy {                                          /* the loops of one */
    kvar at[CONTRACTION_MOST_DEPTH], row[MOST_JOINED], column; /* column: -1 where n is */
} copy;

static void open_columns(packer *t, const copy *x) {
    if (!t->n_joined) open_tiles(t);
    for (int i = 0; i < t->n_joined; i++) open_loop(t, x->row[i]);
    if (x->column >= 0) open_loop(t, x->column);
}

/* Loops of a copy of x; returns whether those over columns are outside. */
static bool make_copy(packer *t, const k_block *x, copy *out) {
    kernel *k = t->c.k;
    const kins *load = contraction_ins(&t->c, (int)t->c.load);
    bool transposed = affine_coef(load->idx, t->c.n) != 1;
    for (int i = t->level; i < t->c.depth.n; i++)
        out->at[i] = kernel_var(k, "p", i == t->level ? x->length : contraction_extent(&t->c, t->c.depth.at[i]), false, false);
    out->column = transposed ? transpose_in_squares(t, load, out->at) : -1;
    if (!t->n_joined) return transposed;
    transposed = out->column >= 0;
    for (int i = 0; i < t->n_joined; i++)
        out->row[i] = kernel_var(k, "r", i ? contraction_extent(&t->c, t->joined[i]) : t->rows_now, false, false);
    if (!transposed) {
        out->column = kernel_var(k, "c", t->columns, false, false);
        k->vars.at[out->column].role = (krole){ COPY_UNROLL, contraction_role(&t->c, t->c.n).lanes };
    }
    return transposed;
}

static void copy_panel(packer *t, const k_block *x) {
    kernel *k = t->c.k;
    copy loops;
    if (t->fixed || t->in_place) return;
    bool outside = make_copy(t, x, &loops);
    if (outside) open_columns(t, &loops);
    for (int i = t->level; i < t->c.depth.n; i++) open_loop(t, loops.at[i]);
    if (!outside) open_columns(t, &loops);
    stand_for(t, loops.row, loops.column);
    set_k_block(t, x, loops.at);
    if (loops.column >= 0) build_put(&t->at, t->c.n, affine_var(k->a, loops.column));
    reg r = push_operand(t);
    kernel_push(&t->out, (kins){ .op = K_STORE,
                                 .dtype = (uint8_t)contraction_dtype(&t->c),
                                 .buf = (uint16_t)t->panel,
                                 .idx = panel_place(t, loops.at, loops.column),
                                 .a = r,
                                 .node = contraction_ins(&t->c, (int)t->c.packed.value)->node });
    build_ends(&t->out, t->c.depth.n - t->level + (t->n_joined ? t->n_joined : 1) + (loops.column >= 0));
    stand_for(t, NULL, t->nt);
}

static affine sum_place(packer *t) { /* one sum for every inner row, tile and column */
    arena *a = t->c.k->a;
    affine row = affine_var(a, t->nt);
    int64_t scale = t->in_place ? t->stride : t->n_joined ? row_elems(t) : t->tiles;
    for (int i = t->c.rows.n - 1; i >= t->n_out; i--) row = add_scaled(t, row, t->c.rows.at[i], &scale);
    return t->n_joined || t->in_place ? row : build_plus(a, row, affine_var(a, t->c.n), scale); /* a copy for each column */
}

/* The inner rows, and the columns; returns how many loops. */
static int open_rows(packer *t) {
    if (t->in_place) open_tiles(t);
    for (int i = t->n_out; i < t->c.rows.n; i++) open_loop(t, t->c.rows.at[i]);
    if (!t->in_place) open_tiles(t);
    return t->c.rows.n - t->n_out + 1;
}

static void clear_sums(packer *t) {
    int n = open_rows(t);
    contraction_clear_sum(&t->c, &t->out, t->sums, sum_place(t));
    build_ends(&t->out, n);
}

typedef enum part { WHOLE, SUM, FINISH } part; /* everything; up to the sums of a K block; from the sums on */

static bool keeps_loop(const packer *t, part what, int i) {
    kvar v = contraction_ins(&t->c, i)->var;
    for (int r = 0; r < t->n_out; r++)
        if (t->c.rows.at[r] == v) return false;
    for (int r = 0; r < t->n_joined; r++)
        if (t->joined[r] == v) return false;
    if (what == FINISH && i >= t->c.first && i <= t->c.end) return false;
    if (what == SUM && i > t->c.end) return false;
    for (int d = 0; d < t->level; d++)
        if (t->c.depth.at[d] == v) return false;
    return true;
}

static affine flat(const packer *t, const kvar *at, int from, int to, int64_t scale) { /* the loops as one, scaled */
    arena *a = t->c.k->a;
    affine x = affine_const(0);
    for (int i = to - 1; i >= from; i--) {
        x = build_plus(a, x, affine_var(a, at[i]), scale);
        scale *= contraction_extent(&t->c, at[i]);
    }
    return x;
}

static int64_t share(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

/* In each step along the contraction, a tile of rows fetches its share of the next stretch: of a stream that goes on behind
 * this one; or of the row that will be copied, once more for each tile of the panel. */
static void fetch_ahead(packer *t, const k_block *x, const kvar *at) {
    arena *a = t->c.k->a;
    const kins *b = contraction_ins(&t->c, (int)t->c.load);
    tn_dtype type = t->fixed ? panel_dtype(t) : (tn_dtype)b->src;
    int64_t steps = contraction_depth_from(&t->c, t->level + 1) * (t->whole ? t->piece : x->length),
            line = MACHINE_LINE_BYTES / (int64_t)dtype_size(type), row = t->tiles * contraction_tile_columns(&t->c),
            all = t->fixed ? steps * t->columns : row + line - 1, each = share(all, t->inner_rows),
            once = each * contraction_tile_rows(&t->c);
    affine place = t->fixed ? panel_place(t, at, -1) : build_moved(a, &t->at, b->idx);
    place = affine_set_var(a, place, t->c.n, affine_const(0));
    if (t->fixed) {
        for (int i = t->level; i < t->c.depth.n; i++) place = affine_set_var(a, place, at[i], affine_const(0));
        once = share(once, steps);
        place = affine_add(a, affine_offset(place, t->whole ? t->tiles * all : all), flat(t, at, t->level, t->c.depth.n, once));
    } else {
        place = affine_set_var(a, place, t->nt, affine_const(0));
        place = affine_offset(place, t->whole ? row : x->length * affine_coef(b->idx, t->c.depth.at[t->level]));
    }
    place = affine_add(a, place, flat(t, t->c.rows.at, t->n_out, t->c.rows.n, each));
    kins fetch = {
        .op = K_PREFETCH, .dtype = (uint8_t)type, .src = (uint8_t)type, .lanes = 1, .mode = PREFETCH_L2, .node = b->node
    };
    fetch.buf = t->fixed ? (uint16_t)t->panel : b->buf;
    for (int64_t i = 0; i < once; i += line) {
        fetch.idx = affine_offset(place, i);
        kernel_push(&t->out, fetch);
    }
}

/* The kernel's own instructions once more, for the inner rows: what is needed of them (unused ones are removed at the end). */
static void replay(packer *t, part what, const k_block *x) {
    int kept[64], depth = 0; /* loops that are open for each */
    set_k_block(t, x, x->at);
    for (int i = t->begin; i < t->c.k->ins.n; i++) {
        kins in = build_at(&t->copy, i, &t->at);
        if (in.op == K_LOOP && t->in_place && i < t->c.acc) {
            kept[depth] = depth == 0 ? open_rows(t) : 0;
            depth++;
            continue;
        }
        if (in.op == K_LOOP) {
            kept[depth] = keeps_loop(t, what, i);
            if (!kept[depth++]) continue;
            for (int d = t->level; d < t->c.depth.n; d++)
                if (contraction_ins(&t->c, i)->var == t->c.depth.at[d]) in.var = x->at[d];
            in.hi = contraction_extent(&t->c, in.var);
            if (in.var == t->c.n) in.var = t->nt, in.hi = t->tiles_now;
        } else if (in.op == K_END) {
            build_ends(&t->out, kept[--depth]);
            if (i != t->c.end) continue;
            if (what == SUM) contraction_store_sum(&t->c, &t->out, t->sums, sum_place(t), t->copy.to[t->c.acc]);
            if (what == FINISH) t->copy.to[t->c.acc] = contraction_load_sum(&t->c, &t->out, t->sums, sum_place(t));
            continue;
        } else if ((what == SUM && i > t->c.end) || (what == FINISH && (i == t->c.acc || (i > t->c.first && i < t->c.end)))) {
            continue;
        }
        if (i == (int)in_panels(t) && !t->in_place) {
            in = (kins){ .op = K_LOAD, .dtype = in.dtype, .mode = in.op == K_LOAD ? in.mode : LOAD_PLAIN, .node = in.node };
            in.buf = (uint16_t)t->panel, in.idx = panel_place(t, x->at, -1), in.src = (uint8_t)panel_dtype(t);
        }
        t->copy.to[i] = kernel_push(&t->out, in);
        if (i == t->c.acc && what == SUM) contraction_resume_sum(&t->c, t->copy.to[i], &t->out, t->sums, sum_place(t));
        bool innermost = in.op == K_LOOP && contraction_ins(&t->c, i)->var == t->c.depth.at[t->c.depth.n - 1];
        if (t->ahead && innermost && what != FINISH) fetch_ahead(t, x, x->at);
    }
}

/* The loops of a K block. Where rows are joined, all are its own: what is left of the contraction may walk as one, then. */
static void name_loops(packer *t, k_block *x) {
    for (int i = t->level; i < t->c.depth.n; i++) {
        bool piece = i == t->level && !t->whole;
        x->at[i] = piece         ? kernel_var(t->c.k, "k", x->length, false, true)
                   : t->n_joined ? kernel_var(t->c.k, "k", contraction_extent(&t->c, t->c.depth.at[i]), false, true)
                                 : t->c.depth.at[i];
    }
}

static void do_piece(packer *t, k_block *x) {
    name_loops(t, x);
    copy_panel(t, x);
    replay(t, SUM, x);
}

static void do_k_blocks(packer *t) {
    arena *a = t->c.k->a;
    int64_t extent = contraction_extent(&t->c, t->c.depth.at[t->level]), pieces = extent / t->piece, rest = extent % t->piece;
    kvar outer[8];
    k_block x = { .outer = outer, .length = t->piece, .first = affine_const(0) };
    clear_sums(t);
    for (int i = 0; i < t->level; i++)
        open_loop(t, outer[i] = kernel_var(t->c.k, "ks", contraction_extent(&t->c, t->c.depth.at[i]), false, false));
    kvar piece = kernel_var(t->c.k, "kb", pieces, false, false);
    open_loop(t, piece);
    x.first = build_times(a, piece, t->piece);
    do_piece(t, &x);
    build_ends(&t->out, 1);
    if (rest) {
        x.first = affine_const(extent - rest), x.length = rest;
        do_piece(t, &x);
    }
    build_ends(&t->out, t->level);
    replay(t, FINISH, &x);
}

static void write_panel(packer *t) {
    if (t->whole) {
        k_block x = { .first = affine_const(0), .length = t->piece };
        name_loops(t, &x);
        copy_panel(t, &x);
        replay(t, WHOLE, &x);
    } else {
        do_k_blocks(t);
    }
}

/* Panels [from, to) of `rows` iterations of the outermost joined row each. */
static void write_joined(packer *t, int64_t from, int64_t to, int64_t rows) {
    kernel *k = t->c.k;
    if (from == to || rows == 0) return;
    t->rows_now = rows, t->columns = contraction_extent(&t->c, t->c.n);
    t->tiles_now = row_elems(t) / t->block * rows;
    t->nt = kernel_var(k, "n", t->tiles_now, false, false);
    k->vars.at[t->nt].role = contraction_role(&t->c, t->c.n);
    stand_for(t, NULL, t->nt);
    open_part(t, t->nb, from, to);
    write_panel(t);
    build_ends(&t->out, 1);
}

/* Panels [from, to) of some tiles, `columns` wide each, the first of them `skipped` tiles behind the start. */
static void write_panels(packer *t, int64_t from, int64_t to, int64_t skipped, int64_t tiles, int64_t columns) {
    arena *a = t->c.k->a;
    int64_t width = contraction_tile_columns(&t->c);
    if (from == to) return;
    t->tiles_now = tiles;
    t->columns = columns;
    t->fixed_row = columns == width ? t->full_row : t->tail_row;
    t->tile = affine_add(a, build_times(a, t->nb, t->tiles), affine_var(a, t->nt));
    t->tile = affine_offset(t->tile, skipped);
    t->column = affine_add(a, affine_scale(a, t->tile, width), affine_var(a, t->c.n));
    open_part(t, t->nb, from, to);
    open_part(t, t->c.n, 0, columns);
    write_panel(t);
    build_ends(&t->out, 2);
}

static void write_columns(packer *t) {
    int64_t width = contraction_tile_columns(&t->c), panels = contraction_full_tiles(&t->c) / t->tiles,
            rest = contraction_full_tiles(&t->c) % t->tiles, tail = contraction_extent(&t->c, t->c.n) % width;
    write_panels(t, 0, panels, 0, t->tiles, width);
    if (rest) write_panels(t, panels, panels + 1, 0, rest, width);
    if (tail) write_panels(t, panels, panels + 1, rest, 1, tail);
}

static void write_nest(packer *t) {
    int n = 0;
    for (int i = 0; i < t->n_out; i++, n++) open_loop(t, t->c.rows.at[i]);
    if (t->cut >= 0) open_loop(t, t->cut), n++;
    if (t->n_joined) {
        int64_t rows = contraction_extent(&t->c, t->joined[0]), panels = rows / t->block;
        write_joined(t, 0, panels, t->block);
        write_joined(t, panels, panels + 1, rows % t->block);
    } else {
        write_columns(t);
    }
    build_ends(&t->out, n);
}

static kbuf panel_buffer(const packer *t) {
    const kins *load = contraction_ins(&t->c, (int)t->c.load), *value = contraction_ins(&t->c, (int)t->c.packed.value);
    kbuf b = { .dtype = (uint8_t)panel_dtype(t), .kind = KB_LOCAL, .node = value->node, .plan_buf = -1 };
    b.elems = t->piece * contraction_depth_from(&t->c, t->level + 1) * t->tiles; /* of one column a tile */
    if (t->n_joined) b.elems = b.elems / t->tiles * row_elems(t);
    if (!t->fixed) return b;
    b.kind = KB_IN, b.fixed = true;
    b.panels = t->fixed, b.panels_of = load->buf, b.node = t->c.k->bufs.at[load->buf].node;
    b.elems = kpanels_elems(t->fixed);
    return b;
}

/* ---- the step ---- */

/* Rows that are columns, too. */
static bool read_joined(packer *t, const loop_step *s, str *why) {
    contraction *c = &t->c;
    t->n_joined = (int)step_option(s, "join", 0);
    if (t->n_joined == 0) return true;
    int most = contraction_joinable(c->k, c->upd, c->packed.value, c->n, NULL);
    if (most > MOST_JOINED) most = MOST_JOINED;
    if (t->n_joined < 0 || t->n_joined > most)
        return step_refuse(why, "%d rows cannot be columns: all but the operand walks through memory along %d as one",
                           t->n_joined, most);
    if (step_flag(s, "constant") || step_flag(s, "streams") || step_flag(s, "ahead") || step_option(s, "tiles", 1) != 1)
        return step_refuse(why, "columns of several rows are copied, a panel at a time, which has one tile");
    c->rows.n -= t->n_joined;
    for (int i = 0; i < t->n_joined; i++) t->joined[i] = c->rows.at[c->rows.n + i];
    t->block = step_option(s, "block", contraction_extent(c, t->joined[0]));
    if (t->block < 1 || t->block > contraction_extent(c, t->joined[0]))
        return step_refuse(why, "%lld of the %lld iterations of %s", (long long)t->block,
                           (long long)contraction_extent(c, t->joined[0]), c->k->vars.at[t->joined[0]].name);
    return true;
}

/* The arguments, and whether they suit the kernel. */
static bool read_args(packer *t, const loop_step *s, str *why) {
    contraction *c = &t->c;
    const kins *b = contraction_ins(c, (int)c->load);
    kvar v = step_loop(c->k, s, 1, why);
    int buf = step_buf(c->k, s, 0, why), needed = 0;
    if (v < 0 || buf < 0 || !read_joined(t, s, why)) return false;
    t->level = -1;
    for (int i = 0; i < c->depth.n; i++)
        if (c->depth.at[i] == v) t->level = i;
    if (buf != b->buf) return step_refuse(why, "b%d is not the operand that runs along the lanes: that is b%d", buf, b->buf);
    if (t->level < 0) return step_refuse(why, "%s is no contraction loop", s->arg[1].word);
    for (int i = 0; i < c->rows.n; i++)
        if (contraction_runs_along(c, c->rows.at[i])) needed = i + 1;
    t->piece = s->arg[2].n, t->whole = step_flag(s, "whole"), t->ahead = step_flag(s, "ahead");
    t->tiles = step_option(s, "tiles", 1), t->n_out = (int)step_option(s, "outer", needed);
    if (t->whole && (t->level != 0 || t->piece != contraction_extent(c, v)))
        return step_refuse(why, "the whole contraction is all %lld iterations of its first loop",
                           (long long)contraction_extent(c, c->depth.at[0]));
    if (t->piece < 1 || t->piece > contraction_extent(c, v))
        return step_refuse(why, "K blocks of %lld of the %lld iterations of %s", (long long)t->piece,
                           (long long)contraction_extent(c, v), s->arg[1].word);
    if (t->tiles < 1 || t->tiles > 64) return step_refuse(why, "%lld tiles in a panel: expected 1 to 64", (long long)t->tiles);
    if (t->n_out < needed || t->n_out > c->rows.n)
        return step_refuse(why, "%d outer rows: the panel depends on %d of %d", t->n_out, needed, c->rows.n);
    for (int i = 0; i < t->n_out; i++)
        if (c->rows.at[i] == c->m)
            return step_refuse(why, "row %s is unrolled: it cannot stay outside", c->k->vars.at[c->m].name);
    return true;
}

/* Pieces of the outermost inner row, so that fewer sums wait. */
static bool cut_rows(packer *t, int64_t piece, str *why) {
    kernel *k = t->c.k;
    t->cut = -1;
    if (piece == 0) return true;
    if (t->n_out == t->c.rows.n) return step_refuse(why, "there is no inner row to cut");
    kvar v = t->c.rows.at[t->n_out];
    if (piece < 1 || k->vars.at[v].extent % piece)
        return step_refuse(why, "%lld rows do not come out in pieces of %lld", (long long)k->vars.at[v].extent,
                           (long long)piece);
    t->cut = kernel_var(k, "rb", k->vars.at[v].extent / piece, true, false);
    k->vars.at[v].extent = piece;
    affine first = build_times(k->a, t->cut, piece);
    build_put(&t->outer, v, affine_add(k->a, first, affine_var(k->a, v)));
    return true;
}

static bool fits(packer *t, int64_t rows, str *why) {
    const contraction *c = &t->c;
    int64_t tile = t->n_joined ? row_elems(t) : t->tiles * contraction_tile_columns(c), panel, sums;
    bool ok = size_mul(tile * contraction_elem_size(c), contraction_depth_from(c, t->level + 1), &panel) &&
              size_mul(panel, t->piece, &panel) && size_mul(tile * contraction_sum_size(c), rows, &sums);
    if (!ok || (!t->fixed && panel > MOST_LOCAL)) return step_refuse(why, "a panel has more than %d KiB", MOST_LOCAL >> 10);
    if (!t->whole && sums > MOST_LOCAL) return step_refuse(why, "the sums have more than %d KiB", MOST_LOCAL >> 10);
    return true;
}

static void begin(packer *t) {
    kernel *k = t->c.k;
    t->out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &t->out.ins, (kins){ 0 });
    t->copy = build_copier_make(k, &t->out);
    t->begin = 1;
}

static void end(packer *t) {
    kernel *k = t->c.k;
    k->ins.at = t->out.ins.at, k->ins.n = t->out.ins.n, k->ins.cap = t->out.ins.cap;
    for (int i = t->n_out; i < t->c.rows.n; i++) k->vars.at[t->c.rows.at[i]].row = false; /* local memory is indexed by them */
    if (t->in_place) k->vars.at[t->c.n].row = false;
    loop_sweep(k);
}

bool step_pack(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    packer t = { 0 };
    kpanels layout;
    if (k->vars.n > MOST_LOOPS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_LOOPS);
    if (!contraction_find(k, &t.c) || !t.c.load)
        return step_refuse(why, "the kernel is no contraction with lanes along a row of the result");
    if (!read_args(&t, s, why)) return false;
    if (step_flag(s, "constant")) {
        if (!contraction_layout(&t.c, &layout))
            return step_refuse(why, "%s does not stay as it is from run to run", s->arg[0].word);
        place_constant(&t, &layout);
    } else if (t.c.m < 0) {
        return step_refuse(why, "no row is unrolled: the copy would be used once");
    }
    int64_t cut = step_option(s, "rows", 0), rows = contraction_rows_from(&t.c, t.n_out);
    if (cut > 0 && t.n_out < t.c.rows.n) rows = rows / contraction_extent(&t.c, t.c.rows.at[t.n_out]) * cut;
    if (!fits(&t, rows, why) || !cut_rows(&t, cut, why)) return false;
    t.inner_rows = contraction_rows_from(&t.c, t.n_out);
    t.panel = kernel_buf(k, panel_buffer(&t));
    if (!t.whole) t.sums = contraction_sums(&t.c, t.inner_rows * (t.n_joined ? row_elems(&t) : t.tiles)); /* or one a tile */
    if (t.n_joined) {
        t.nb = kernel_var(k, "nb", share(contraction_extent(&t.c, t.joined[0]), t.block), true, false);
    } else {
        t.nb = kernel_var(k, "nb", contraction_full_tiles(&t.c) / t.tiles + 1, true, false);
        t.nt = kernel_var(k, "nt", t.tiles, false, false);
    }
    if (step_flag(s, "streams")) k->vars.at[t.nt].role = (krole){ (int)t.tiles, 1 };
    begin(&t);
    write_nest(&t);
    end(&t);
    if (t.fixed) loop_take_place(k, t.panel);
    return true;
}

bool step_accumulate(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    packer t = { .in_place = true, .cut = -1 };
    contraction *c = &t.c;
    if (k->vars.n > MOST_VARS) return step_refuse(why, "the kernel has %d loops; the limit is %d", k->vars.n, MOST_VARS);
    if (!contraction_find(k, c) || !contraction_matrix(c))
        return step_refuse(why, "the kernel is not a matrix, contiguous along the lanes, times vectors");
    kvar v = step_loop(k, s, 0, why);
    t.level = c->depth.n - 1, t.piece = s->arg[1].n, t.nt = c->n, t.tiles_now = contraction_extent(c, c->n);
    t.stride = step_option(s, "stride", t.tiles_now);
    if (v < 0) return false;
    if (v != c->depth.at[t.level]) return step_refuse(why, "%s is not the innermost contraction loop", s->arg[0].word);
    if (t.piece < 1 || t.piece > contraction_extent(c, v))
        return step_refuse(why, "%lld of the %lld rows of the matrix at a time", (long long)t.piece,
                           (long long)contraction_extent(c, v));
    if (t.stride < t.tiles_now) return step_refuse(why, "sums of one vector have %lld elements", (long long)t.tiles_now);
    int64_t rows = contraction_rows_from(c, 0), bytes;
    if (!size_mul(t.stride, contraction_sum_size(c) * rows, &bytes) || bytes > MOST_LOCAL)
        return step_refuse(why, "the sums have more than %d KiB", MOST_LOCAL >> 10);
    t.sums = contraction_sums(c, t.stride * rows);
    begin(&t);
    for (; k->ins.at[t.begin].op != K_LOOP; t.begin++) build_copy(&t.copy, t.begin, &t.at);
    do_k_blocks(&t);
    end(&t);
    return true;
}
