/* scan_rows.c - running sums: rows of which each element is the sum of those up to it, or before it, are a thread block's.
 *
 * In: scalar form, where outer loops go over the elements of a row (one loop, or several as digits of the element's number) and
 * a sum, product, maximum or minimum leaves out by a select the terms behind the element: as many terms as the square of the
 * row. Out: the form of a GPU with as many terms as elements. A thread has neighbours, which it combines one after the other,
 * and gets from the others what all before them have (block-reduce behind). No element is combined with one behind it. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

enum { MOST_LANES = 32, MOST_DIGITS = 6, LEAST = 32 /* elements: threads make shorter rows one by one */ };

typedef struct running {
    const kernel *k;
    int n_outer, acc, loop, end; /* instructions; of the loop over the terms */
    kvar r;
    int64_t n; /* terms */
    affine at; /* the element, of which terms up to it stay; its loops, the fastest first: */
    kvar digit[MOST_DIGITS];
    int n_digits;
    reg term;
    op_code op;
    bool strict; /* without the element itself */
} running;

static bool is_row(const running *f, kvar v) {
    for (int d = 0; d < f->n_digits; d++)
        if (f->digit[d] == v) return true;
    return false;
}
static int64_t extent(const running *f, int digit) { return f->k->vars.at[f->digit[digit]].extent; }

/* Whether outer loops say which element it is: all n of them, or one loop any of them. */
static bool find_digits(running *f) {
    int64_t all = 1;
    for (int i = 0; i < f->at.n && f->n_digits < MOST_DIGITS; i++)
        for (int o = 1; o <= f->n_outer; o++) {
            kvar v = f->k->ins.at[o].var;
            if (is_row(f, v) || affine_coef(f->at, v) != all) continue;
            f->digit[f->n_digits++] = v, all *= f->k->vars.at[v].extent;
            break;
        }
    return f->n_digits > 0 && f->n_digits == f->at.n && (f->n_digits == 1 || (all == f->n && f->at.base == 0));
}

/* r <= at or r < at */
static bool is_mask(running *f, const kins *in) {
    op_code op = (op_code)in->alu;
    bool turned = op == OP_ge || op == OP_gt;
    f->strict = op == OP_lt || op == OP_gt;
    if (in->op != K_ALU || (!turned && !f->strict && op != OP_le)) return false;
    const kins *term = &f->k->ins.at[turned ? in->b : in->a], *element = &f->k->ins.at[turned ? in->a : in->b];
    f->at = element->idx;
    return term->op == K_INDEX && affine_equal(term->idx, affine_var(f->k->a, f->r)) && element->op == K_INDEX &&
           find_digits(f);
}

/* The update adds a term, or what the accumulator begins with where the mask does not hold. */
static bool is_masked(running *f, const kins *update) {
    const kins *acc = &f->k->ins.at[f->acc], *s = &f->k->ins.at[update->a], *none = &f->k->ins.at[s->c];
    if (s->op != K_ALU || s->alu != OP_select || none->op != K_CONST || !is_mask(f, &f->k->ins.at[s->a])) return false;
    if (dtype_is_float((tn_dtype)acc->dtype) ? none->imm != acc->imm : none->imm_int != acc->imm_int) return false;
    f->term = s->b, f->op = (op_code)acc->alu;
    for (int d = 0; d < f->n_digits; d++)
        if (gpu_varying(f->k, NULL, f->digit[d])[f->term]) return false;
    return update->alu == acc->alu && (int)update->c == f->acc && !update->packed &&
           (f->op == OP_add || f->op == OP_mul || f->op == OP_max || f->op == OP_min);
}

static bool find(running *f, str *why) {
    const kernel *k = f->k;
    int update = 0;
    f->n_outer = gpu_outer_loops(k);
    if (f->n_outer < 1 || k->params) return step_refuse(why, "no loop of a known size holds the whole kernel");
    for (int i = 1 + f->n_outer; i < k->ins.n - f->n_outer; i++) {
        const kins *in = &k->ins.at[i];
        int *once = in->op == K_ACC ? &f->acc : in->op == K_LOOP ? &f->loop : in->op == K_UPD ? &update : NULL;
        if (in->op == K_END) continue;
        if (once ? *once != 0 : !gpu_is_plain(k, in) || in->dyn || in->op == K_RANDOM)
            return step_refuse(why, "instruction %%%d: expected one sum and elementwise work", i);
        if (once) *once = i;
    }
    if (!f->acc || !f->loop || f->acc > f->loop) return step_refuse(why, "there is no sum");
    f->end = kernel_loop_end(k, f->loop), f->r = k->ins.at[f->loop].var, f->n = k->ins.at[f->loop].hi;
    if (update < f->loop || update > f->end || !is_masked(f, &k->ins.at[update]))
        return step_refuse(why, "no term of the sum over %s is left out by outer loops alone", k->vars.at[f->r].name);
    return true;
}

/* Along the row, to whose elements the sum belongs, too. */
static bool *varying(const running *f) {
    bool *varies = gpu_varying(f->k, NULL, f->digit[0]);
    varies[f->acc] = true;
    gpu_mark_varying(f->k, f->end, f->k->ins.n, f->digit[0], varies);
    return varies;
}

/* From a thread's terms to its elements of the result. */
static reg write_scan(const running *f, kernel *o, reg term, int lanes) {
    const kins *acc = &f->k->ins.at[f->acc];
    reg sum[MOST_LANES];
    for (int l = 0; l < lanes; l++) {
        reg x = o->ins.at[term].lanes > 1 ? build_lane(o, term, l) : term;
        sum[l] = l ? build_op(o, f->op, sum[l - 1], x) : x;
    }
    kins none = { .op = K_CONST, .dtype = acc->dtype, .imm = acc->imm, .imm_int = acc->imm_int };
    reg first = kernel_push(o, none);
    kins all = { .op = K_BLOCK_REDUCE, .alu = (uint8_t)f->op, .dtype = acc->dtype, .a = sum[lanes - 1], .b = first };
    all.node = acc->node;
    reg before = kernel_push(o, all);
    for (int l = lanes - 1; l >= 0; l--) {
        int last = l - f->strict;
        sum[l] = last < 0 ? before : build_op(o, f->op, before, sum[last]);
    }
    if (lanes == 1) return sum[0];
    reg out = build_acc(o, OP_NIL, acc->dtype, 0, lanes);
    for (int l = 0; l < lanes; l++) build_put_lanes(o, out, l, sum[l]);
    return out;
}

/* Loops over rows and the threads of one; what the loops over its elements are there, and which element a thread begins with.
 * Returns how many are open. */
static int open_rows(const running *f, kernel *o, int lanes, build_places *row, affine *first) {
    arena *a = o->a;
    int opened = f->n_digits;
    for (int i = 1; i <= f->n_outer; i++) {
        kins in = f->k->ins.at[i];
        if (is_row(f, in.var)) continue;
        in.par = PAR_BLOCKS, o->grid_blocks *= in.hi, opened++;
        kernel_push(o, in);
    }
    *first = affine_const(f->at.base);
    if (f->n_digits == 1) { /* of any part of the elements */
        *first = build_times(a, build_loop(o, "x", o->block_threads, PAR_BLOCK_THREADS), lanes);
        affine at = affine_offset(*first, -f->at.base);
        build_put(row, f->digit[0], at);
        if (f->at.base || extent(f, 0) != f->n) build_bound(row, at, extent(f, 0), 1);
        return opened;
    }
    for (int d = f->n_digits - 1; d >= 0; d--) {
        int step = d ? 1 : lanes;
        affine at = build_times(a, build_loop(o, "x", extent(f, d) / step, PAR_BLOCK_THREADS), step);
        build_put(row, f->digit[d], at);
        *first = build_plus(a, *first, at, affine_coef(f->at, f->digit[d]));
    }
    return opened;
}

static kernel *write_rows(const running *f, int threads) {
    const kernel *k = f->k;
    kernel *o = gpu_kernel(k, threads);
    build_copier c = build_copier_make(k, o);
    int lanes = (int)(f->n / threads);
    build_places row = { .along = f->digit[0], .lanes = lanes, .varies = varying(f) },
                 terms = { .along = f->r, .lanes = lanes, .varies = gpu_varying(k, NULL, f->r) };
    affine first;
    int opened = open_rows(f, o, lanes, &row, &first);
    build_places alike = row; /* what does not move along the row is read in any case */
    alike.n_mask = 0;
    bool *needed = ARENA_ARRAY(k->a, bool, k->ins.n);
    needed[f->term] = true;
    build_mark_needed(k, f->end, needed);
    build_put(&terms, f->r, first);
    for (int i = 1 + f->n_outer; i < f->loop; i++)
        if (i != f->acc) build_copy(&c, i, row.varies[i] ? &row : &alike);
    for (int i = f->loop + 1; i < f->end; i++)
        if (needed[i]) build_copy(&c, i, &terms);
    c.to[f->acc] = write_scan(f, o, c.to[f->term], lanes);
    for (int i = f->end + 1; i < k->ins.n - f->n_outer; i++) build_copy(&c, i, row.varies[i] ? &row : &alike);
    build_ends(o, opened);
    o->flops = k->flops / (uint64_t)f->n;
    return o;
}

bool gpu_has_running_rows(const kernel *k, int64_t *terms) {
    running f = { .k = k };
    str why;
    str_init(&why, k->a);
    return find(&f, &why) && (*terms = f.n) >= LEAST;
}

bool step_scan_rows(kernel **kk, const loop_step *s, str *why) {
    running f = { .k = *kk };
    int64_t threads = s->arg[0].n;
    if (!gpu_can_bind(*kk, -1, threads, why) || !find(&f, why)) return false;
    int64_t lanes = f.n / threads;
    if (lanes * threads != f.n || !gpu_is_power(lanes) || lanes > MOST_LANES || (f.n_digits > 1 && extent(&f, 0) % lanes))
        return step_refuse(why, "%lld elements for %lld threads: expected 1, 2, 4 .. %d neighbours for each", (long long)f.n,
                           (long long)threads, MOST_LANES);
    *kk = write_rows(&f, (int)threads);
    return true;
}
