/* stream.c - few vectors times a matrix in memory: some rows of the matrix at a time are read from end to end, and the sums
 * wait in the caches. Tile by tile, the same matrix would be read in short pieces, each on a page of its own. In and out:
 * scalar form with roles.
 *
 * Applies to kernels of the form: row loop m (or none, for one vector), row loop n (the lanes), accumulator, one contraction
 * loop, epilogue, where the matrix is contiguous along n and does not fit the cache. It becomes: pieces of the contraction, n,
 * m. Each piece goes on from the sums of the one before: every bit is that of one loop. */
#include "kopt/kopt.h"

enum {
    MOST_VECTORS = 8,
    MANY_ROWS = 16, /* of the matrix, side by side .. */
    LESS_ROWS = 8,  /* .. or for one vector, or where more do not find places in the first cache */
    MOST_ROWS = 64,
    GAP_LINES = 5,       /* between the sums of two vectors then: no tile is as wide */
    MAX_SUMS = 256 << 10 /* bytes on the stack */
};

typedef struct streamer {
    kernel *k;
    kvar m, n, depth;                    /* m: -1 for one vector */
    int64_t rows;                        /* of the matrix, read side by side */
    int64_t apart;                       /* elements from one vector's sums to the next one's */
    int row, acc, contraction, end, upd; /* instructions */
    int sums;
    kernel out; /* only its instructions */
    reg *map;
} streamer;

static const kins *ins(const streamer *s, int i) { return &s->k->ins.at[i]; }
static int64_t extent_of(const streamer *s, kvar v) { return v >= 0 ? s->k->vars.at[v].extent : 1; }

static bool find_rows(streamer *s) {
    int i = 1;
    for (; i < s->k->ins.n && ins(s, i)->op != K_ACC; i++) {
        if (ins(s, i)->op == K_END || ins(s, i)->op == K_STORE || ins(s, i)->op == K_SCATTER) return false;
        if (ins(s, i)->op != K_LOOP) continue;
        if (s->m >= 0 || !s->k->vars.at[ins(s, i)->var].row) return false;
        if (!s->row) s->row = i;
        s->m = s->n, s->n = ins(s, i)->var;
    }
    s->acc = i;
    return s->row && i < s->k->ins.n && s->k->vars.at[s->n].role.lanes > 1;
}

static bool find_contraction(streamer *s) {
    for (int i = s->acc + 1; i < s->k->ins.n; i++) {
        if (ins(s, i)->op == K_ACC || ins(s, i)->op == K_ARGUPD || ins(s, i)->op == K_SCATTER) return false;
        if (ins(s, i)->op == K_LOOP) {
            if (s->contraction) return false;
            s->contraction = i;
        }
        if (ins(s, i)->op != K_UPD) continue;
        if (s->upd || ins(s, i)->alu != OP_dot || !s->contraction) return false;
        s->upd = i;
    }
    if (!s->upd) return false;
    s->depth = ins(s, s->contraction)->var;
    s->end = kernel_loop_end(s->k, s->contraction);
    return s->upd < s->end;
}

static bool recognise(streamer *s, const target *t) {
    if (!find_rows(s) || !find_contraction(s)) return false;
    const kins *a = ins(s, (int)ins(s, s->upd)->a), *b = ins(s, (int)ins(s, s->upd)->b);
    const kins *matrix = affine_coef(a->idx, s->n) ? a : b, *vectors = matrix == a ? b : a;
    if (a->op != K_LOAD || b->op != K_LOAD || matrix->n_mask || matrix->dyn || affine_coef(matrix->idx, s->n) != 1 ||
        affine_coef(vectors->idx, s->n) || (s->m >= 0 && affine_coef(matrix->idx, s->m)))
        return false;
    int64_t depth = extent_of(s, s->depth), width = extent_of(s, s->n), m = extent_of(s, s->m),
            elem = (int64_t)dtype_size((tn_dtype)matrix->src) * (matrix->parts ? matrix->parts : 1),
            bytes = depth * width * elem, sum = (int64_t)dtype_size((tn_dtype)ins(s, s->acc)->dtype);
    const kchoice *asked = t->choice;
    if (m == 1 && width <= (int64_t)s->k->vars.at[s->n].role.unroll * s->k->vars.at[s->n].role.lanes)
        return false; /* is so in place */
    /* Rows a power of two apart drive each other out of the first cache, and so do sums that lie like them. (Where it has 12
     * places for lines 4 KB apart, 16 rows are still better than 8: 4 and 16 cores of a Xeon, 8x1024x1024: by an eighth and a
     * twelfth.) */
    bool crowded = m > 1 && loop_places(t->l1_bytes, affine_coef(matrix->idx, s->depth) * elem) <= LESS_ROWS;
    s->rows = m == 1 || crowded ? LESS_ROWS : MANY_ROWS;
    s->apart = width + (crowded ? GAP_LINES * LOOP_LINE_BYTES / sum : 0);
    if (asked && asked->rows >= 4 && asked->rows <= MOST_ROWS) s->rows = asked->rows;
    return m <= MOST_VECTORS && depth >= 4 * s->rows && affine_coef(matrix->idx, s->depth) >= width &&
           ((asked && asked->way == WAY_STREAM) || bytes > (m == 1 ? t->l1_bytes : t->l2_bytes)) &&
           m * s->apart * sum <= MAX_SUMS;
}

/* ---- writing ---- */

static void push(streamer *s, int i, const affine *depth) { /* instruction i once more, the contraction loop at *depth */
    kins in = *ins(s, i);
    in.a = s->map[in.a], in.b = s->map[in.b], in.c = s->map[in.c], in.dyn = s->map[in.dyn];
    if (depth) in.idx = affine_set_var(s->k->a, in.idx, s->depth, *depth);
    if (depth && in.n_mask) {
        in.mask = arena_copy(s->k->a, in.mask, sizeof(kmask) * (size_t)in.n_mask);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = affine_set_var(s->k->a, in.mask[m].e, s->depth, *depth);
    }
    s->map[i] = kernel_push(&s->out, in);
}

static void open_loop(streamer *s, kvar v) {
    kernel_push(&s->out, (kins){ .op = K_LOOP, .var = v, .hi = extent_of(s, v), .step = 1 });
}

/* n, m, and what was hoisted in front of the accumulator. */
static void open_rows(streamer *s, bool hoisted) {
    open_loop(s, s->n);
    if (s->m >= 0) open_loop(s, s->m);
    for (int i = s->row; i < s->acc && hoisted; i++)
        if (ins(s, i)->op != K_LOOP) push(s, i, NULL);
}
static void close_rows(streamer *s) {
    kernel_push(&s->out, (kins){ .op = K_END });
    if (s->m >= 0) kernel_push(&s->out, (kins){ .op = K_END });
}

static kins access_sum(const streamer *s, kop op) {
    const kins *acc = ins(s, s->acc);
    affine place = affine_var(s->k->a, s->n);
    if (s->m >= 0) place = affine_add(s->k->a, place, affine_scale(s->k->a, affine_var(s->k->a, s->m), s->apart));
    return (kins){
        .op = (uint8_t)op, .dtype = acc->dtype, .src = acc->dtype, .buf = (uint16_t)s->sums, .idx = place, .node = acc->node
    };
}

static void store_sum(streamer *s, reg value) {
    kins store = access_sum(s, K_STORE);
    store.a = value;
    kernel_push(&s->out, store);
}

static void clear_sums(streamer *s) {
    const kins *acc = ins(s, s->acc);
    open_rows(s, false);
    store_sum(s, kernel_push(&s->out, (kins){ .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int }));
    close_rows(s);
}

/* The sums go on over rows [first, first + count). */
static void add_rows(streamer *s, affine first, int64_t count) {
    const kins *acc = ins(s, s->acc);
    kvar inner = kernel_var(s->k, "k", count, false, true);
    affine depth = affine_add(s->k->a, first, affine_var(s->k->a, inner));
    kins add = { .op = K_UPD, .alu = OP_add, .dtype = acc->dtype, .src = acc->dtype, .node = acc->node };
    open_rows(s, true);
    push(s, s->acc, NULL);
    add.a = kernel_push(&s->out, access_sum(s, K_LOAD)), add.c = s->map[s->acc];
    kernel_push(&s->out, add);
    open_loop(s, inner);
    for (int i = s->acc + 1; i <= s->end; i++)
        if (i != s->contraction) push(s, i, &depth);
    store_sum(s, s->map[s->acc]);
    close_rows(s);
}

static void finish(streamer *s) {
    open_rows(s, true);
    s->map[s->acc] = kernel_push(&s->out, access_sum(s, K_LOAD));
    for (int i = s->end + 1; i < s->k->ins.n; i++) push(s, i, NULL); /* with the ENDs of the rows */
}

bool kopt_stream(kernel *k, const target *t) {
    streamer s = { .k = k, .m = -1, .n = -1 };
    if (k->vars.n > 60 || !recognise(&s, t)) return false;
    int64_t depth = extent_of(&s, s.depth), rest = depth % s.rows;
    kbuf sums = { .dtype = ins(&s, s.acc)->dtype, .kind = KB_LOCAL, .node = ins(&s, s.acc)->node, .plan_buf = -1 };
    sums.elems = s.apart * extent_of(&s, s.m);
    s.sums = kernel_buf(k, sums);
    s.map = ARENA_ARRAY(k->a, reg, k->ins.n);
    s.out = (kernel){ .a = k->a };
    VEC_PUSH(k->a, &s.out.ins, (kins){ 0 });
    for (int i = 1; i < s.row; i++) push(&s, i, NULL);
    clear_sums(&s);
    kvar piece = kernel_var(k, "kb", depth / s.rows, false, false);
    open_loop(&s, piece);
    add_rows(&s, affine_scale(k->a, affine_var(k->a, piece), s.rows), s.rows);
    kernel_push(&s.out, (kins){ .op = K_END });
    if (rest) add_rows(&s, affine_const(depth - rest), rest);
    finish(&s);
    k->ins.at = s.out.ins.at, k->ins.n = s.out.ins.n, k->ins.cap = s.out.ins.cap;
    k->vars.at[s.n].row = false; /* local memory is indexed by them */
    if (s.m >= 0)
        k->vars.at[s.m].row = false;
    else
        k->vars.at[s.n].role.unroll = t->choice && t->choice->nv ? k->vars.at[s.n].role.unroll : 2;
    if (k->par_var >= 0) k->par_var = s.n;
    loop_sweep(k);
    return true;
}
