/* share_sums.c - nests of rows that make several sums of many terms each, such as the scores of a query and what its weights
 * make of the values (bind_rows sums): threads of a block share each sum.
 *
 * In: a nest of the scalar kernel: a loop over results with one reducing loop inside. Where its operand lies along the terms,
 * neighbouring threads have vectors of them, and combine what they have added up; where it lies along the results, threads
 * have vectors of results and every n-th term (reduce_columns.h). A thread loads for several results, or terms, before it
 * computes with the first. */
#include "loop/bind_rows.h"
#include "loop/gpu_bind.h"
#include "loop/reduce_columns.h"

enum { MOST_LANES = 8, MOST_PARTS = 32, MOST_AHEAD = 8, MOST_SUMS = 4 };

typedef struct sums { /* loop { ..; loop inner { } ..; } */
    const kernel *k;
    int loop, end, inner, last;
    int acc[MOST_SUMS], n_acc;
    int lanes, parts, ahead; /* ahead: results whose loads come first */
} sums;

static bool combines(const kins *acc) {
    return acc->alu == OP_max || acc->alu == OP_min || ((acc->alu == OP_add || acc->alu == OP_dot) && acc->imm == 0);
}

static bool find_nest(sums *w) {
    const kernel *k = w->k;
    if (k->vars.at[k->ins.at[w->loop].var].reduce || k->ins.at[w->loop].lo) return false;
    for (int i = w->loop + 1; i < w->end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && !w->inner && k->vars.at[in->var].reduce && in->lo == 0 && in->hi > 0) {
            w->inner = i, w->last = kernel_loop_end(k, i);
        } else if (in->op == K_ACC) {
            if (w->inner || w->n_acc == MOST_SUMS || !dtype_is_float((tn_dtype)in->dtype) || !combines(in)) return false;
            w->acc[w->n_acc++] = i;
        } else if (in->op == K_UPD) {
            if (i > w->last || (int)in->c < w->loop) return false;
        } else if ((in->op == K_STORE && i < w->last) || in->op == K_RANDOM ||
                   !(in->op == K_LOAD || in->op == K_STORE || i == w->last || kernel_is_pure(in))) {
            return false;
        }
    }
    return w->n_acc > 0 && w->last > 0;
}

/* Whether what the inner loop reads lies along it, some of it memory that differs from result to result. */
static bool lies_along(const sums *w, int lanes) {
    const kernel *k = w->k;
    kvar term = k->ins.at[w->inner].var;
    bool any = false;
    for (int i = w->inner + 1; i < w->last; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD) continue;
        if (in->dyn || !gpu_aligned(k, in, term, lanes)) return false;
        any |= affine_coef(in->idx, term) == 1 && gpu_uses(in, k->ins.at[w->loop].var) && !kbuf_is_local(&k->bufs.at[in->buf]);
    }
    return any && k->ins.at[w->inner].hi % lanes == 0;
}

static bool find_sums(sums *w, const kernel *k, int i, int threads) {
    *w = (sums){ .k = k, .loop = i, .end = kernel_loop_end(k, i), .lanes = MOST_LANES, .parts = 1, .ahead = 1 };
    if (!find_nest(w)) return false;
    while (w->lanes > 1 && !lies_along(w, w->lanes)) w->lanes /= 2;
    int64_t terms = k->ins.at[w->inner].hi / w->lanes, results = k->ins.at[i].hi;
    while (w->parts < MOST_PARTS && w->parts < threads && terms % (2 * w->parts) == 0) w->parts *= 2;
    int64_t turns = gpu_pieces(results, threads / w->parts);
    while (w->ahead < MOST_AHEAD && 2 * w->ahead <= turns) w->ahead *= 2;
    return w->lanes > 1 && w->parts > 1;
}

/* Instructions [from, to) for all results; loads first where `loads` is 1. */
static void write_range(const sums *w, build_copier *c, build_places *p, const bool *moves, int from, int to) {
    for (int u = 0; u < w->ahead; u++)
        for (int i = from; i < to; i++) {
            const kins *in = &w->k->ins.at[i];
            bool again = !u || moves[i] || in->op == K_ACC || in->op == K_UPD || i > w->last;
            c[u].to[i] = again ? build_copy(&c[u], i, &p[u]) : c[0].to[i];
        }
}

static void write_loop(const sums *w, build_copier *c, build_places *p, const bool *moves) {
    for (int loads = 1; loads >= 0; loads--)
        for (int i = w->inner + 1; i < w->last; i++)
            if ((w->k->ins.at[i].op == K_LOAD) == loads) write_range(w, c, p, moves, i, i + 1);
}

/* What the neighbours have of each sum becomes one. */
static void combine(const sums *w, kernel *o, build_copier *c) {
    for (int n = 0; n < w->n_acc; n++)
        for (int u = 0; u < w->ahead; u++) {
            const kins *acc = &w->k->ins.at[w->acc[n]];
            uint8_t op = acc->alu == OP_dot ? OP_add : acc->alu;
            kins all = { .op = K_BLOCK_REDUCE, .alu = op, .dtype = acc->dtype, .width = w->parts, .node = acc->node };
            all.a = build_lane_reduce(o, (op_code)op, c[u].to[w->acc[n]]);
            c[u].to[w->acc[n]] = kernel_push(o, all);
        }
}

static void write_sums(const sums *w, row_writer *rows) {
    const kernel *k = w->k;
    kernel *o = rows->o;
    arena *a = o->a;
    const kins *loop = &k->ins.at[w->loop], *inner = &k->ins.at[w->inner];
    int64_t at_once = rows->block_threads / w->parts, turns = gpu_pieces(loop->hi, at_once * w->ahead),
            steps = inner->hi / (w->parts * w->lanes);
    bool *varies = gpu_varying(k, NULL, inner->var), *moves = gpu_varying(k, NULL, loop->var);
    build_copier *c = ARENA_ARRAY(a, build_copier, w->ahead);
    build_places *p = ARENA_ARRAY(a, build_places, w->ahead);
    for (int n = 0; n < w->n_acc; n++) varies[w->acc[n]] = true;
    for (int i = w->inner; i < w->last; i++) varies[i] |= k->ins.at[i].op == K_UPD;
    kvar s = build_loop(o, "s", turns, PAR_SERIAL), t = build_loop(o, "t", at_once, PAR_BLOCK_THREADS),
         part = build_loop(o, "p", w->parts, PAR_BLOCK_THREADS);
    for (int u = 0; u < w->ahead; u++) {
        affine result = affine_offset(build_plus(a, affine_var(a, t), affine_var(a, s), at_once * w->ahead), at_once * u);
        c[u] = (build_copier){ k, o, arena_copy(a, rows->to, sizeof(reg) * (size_t)k->ins.n) };
        p[u] = (build_places){ .along = inner->var, .lanes = w->lanes, .varies = varies };
        build_put(&p[u], loop->var, result);
        if (loop->hi % (at_once * w->ahead)) build_bound(&p[u], result, loop->hi, 0);
    }
    write_range(w, c, p, moves, w->loop + 1, w->inner);
    kvar q = build_loop(o, "q", steps, PAR_SERIAL);
    affine term = build_plus(a, build_times(a, part, w->lanes), affine_var(a, q), w->parts * w->lanes);
    for (int u = 0; u < w->ahead; u++) build_put(&p[u], inner->var, term);
    write_loop(w, c, p, moves);
    build_ends(o, 1);
    combine(w, o, c);
    int from = o->ins.n;
    write_range(w, c, p, moves, w->last + 1, w->end);
    for (int i = from; i < o->ins.n; i++)
        if (o->ins.at[i].op == K_STORE) build_mask(a, &o->ins.at[i], affine_var(a, part), 0, 1, 0);
    build_ends(o, 3);
}

/* Whether each result is stored at a place of its own, and nothing that is stored is read: more than one thread computes it. */
static bool stores_apart(const kernel *k, int i) {
    int end = kernel_loop_end(k, i);
    for (int s = i + 1; s < end; s++) {
        const kins *store = &k->ins.at[s];
        if (store->op != K_STORE) continue;
        if (store->dyn || !affine_coef(store->idx, k->ins.at[i].var)) return false;
        for (int l = i + 1; l < end; l++)
            if (k->ins.at[l].op == K_LOAD && k->ins.at[l].buf == store->buf) return false;
    }
    return true;
}

/* What of the two the nest at i is; false: neither. */
static bool is_sums(const row_writer *w, int i, sums *along, column *across, bool *is_along) {
    if (w->k->params || w->cluster > 1 || w->n_rows || !stores_apart(w->k, i)) return false;
    *is_along = find_sums(along, w->k, i, w->block_threads);
    return *is_along || column_find_nest(across, w->k, i, w->block_threads);
}

bool gpu_row_is_sums(const row_writer *w, int i) {
    sums along;
    column across;
    bool is_along;
    return is_sums(w, i, &along, &across, &is_along);
}

void gpu_row_sums(row_writer *w, int i) {
    sums along;
    column across;
    bool is_along;
    if (!is_sums(w, i, &along, &across, &is_along)) return;
    if (is_along)
        write_sums(&along, w);
    else
        column_write_nest(i == w->kept_at ? w->kept : &across, w->o, w->to);
}

void gpu_row_sums_ahead(row_writer *w, int from, int to) {
    sums along;
    bool is_along;
    int nests = 0;
    for (int i = from; i < to && !w->kept_at; i = w->k->ins.at[i].op == K_LOOP ? kernel_loop_end(w->k, i) + 1 : i + 1) {
        if (w->k->ins.at[i].op != K_LOOP || !nests++) continue; /* the first one begins at once */
        column *across = ARENA_NEW(w->o->a, column);
        if (is_sums(w, i, &along, across, &is_along) && !is_along && column_keep(across, w->o, w->to))
            w->kept = across, w->kept_at = i;
    }
}

int loop_row_sums(const kernel *k, int n_rows, int threads) {
    int n = 0;
    sums along;
    column across;
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        n += stores_apart(k, i) && (find_sums(&along, k, i, threads) || column_find_nest(&across, k, i, threads));
        i = kernel_loop_end(k, i);
    }
    return n;
}
