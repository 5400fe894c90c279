/* prefetch.c - what comes from afar is fetched while there is something else to do. In and out: tiled form.
 *
 * Rows that are read several times come once, and while the later loops work on a row, memory waits: they fetch what the first
 * loop of the next row will read. Applies to a row loop around several loops.
 *
 * Results of short contractions are fetched before their sums are made: lines that are written in part are read first, one
 * after the other as the stores leave the core, which takes longer than the sums (the gradient of the weights of a convolution
 * 3x3 7x7x512, 49 terms: a tenth). So is what sums are added to, or a parameter that they change: it is loaded where it is
 * used, behind the sums, which need the registers. Rows of an operand whose lines are few and come from beyond the second cache
 * are fetched a tile ahead: the processor sees no stream in them. Panels are read from end to end: what comes some bytes later
 * is fetched, also where it is another page, at whose end processors wait. */
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "machine/machine.h"

enum { MOST_STREAMS = 4, MOST_LINES = 8, MOST_RESULTS = 32, MOST_AHEAD = 1 << 20 };

typedef struct rows { /* a row loop and the loops directly in it */
    int loop, end;
    int child[16], n;
} rows;

static bool find_rows(const kernel *k, int i, rows *out) {
    *out = (rows){ .loop = i, .end = kernel_loop_end(k, i) };
    if (!k->vars.at[k->ins.at[i].var].row) return false;
    for (int j = i + 1; j < out->end; j++) {
        if (k->ins.at[j].op != K_LOOP) continue;
        if (out->n == (int)COUNT_OF(out->child)) return false;
        out->child[out->n++] = j;
        int end = kernel_loop_end(k, j);
        for (j++; j < end; j++)
            if (k->ins.at[j].op == K_LOOP) return false;
    }
    return out->n >= 2;
}

/* What the loop at i does for one element of a row. */
static double work(const kernel *k, int i) {
    double n = 0;
    int64_t step = k->ins.at[i].step;
    for (; k->ins.at[i].op != K_END; i++) n += k->ins.at[i].op == K_ALU ? op_get((op_code)k->ins.at[i].alu)->flops : 1;
    return n / (double)step;
}

static int longest_after_first(const kernel *k, const rows *r) {
    int best = 1;
    for (int i = 2; i < r->n; i++)
        if (work(k, r->child[i]) > work(k, r->child[best])) best = i;
    return r->child[best];
}

/* Loads of the first loop that start a stream: the first of neighbours. */
static int list_streams(const kernel *k, const rows *r, int *out) {
    const kins *first = &k->ins.at[r->child[0]];
    kvar row = k->ins.at[r->loop].var;
    int n = 0;
    for (int i = r->child[0] + 1; k->ins.at[i].op != K_END; i++) {
        const kins *in = &k->ins.at[i];
        uint8_t kind = k->bufs.at[in->buf].kind; /* local: rows of a block, which may have left the first cache since */
        if (in->op != K_LOAD || in->n_mask || in->dyn || (kind != KB_IN && kind != KB_LOCAL) ||
            affine_coef(in->idx, row) <= 0 || affine_coef(in->idx, first->var) != 1)
            continue;
        bool known = n == MOST_STREAMS;
        for (int s = 0; s < n && !known; s++) {
            const kins *x = &k->ins.at[out[s]];
            int64_t apart = in->idx.base - x->idx.base;
            known =
                x->buf == in->buf && apart >= 0 && apart < first->step && affine_equal(affine_offset(x->idx, apart), in->idx);
        }
        if (!known) out[n++] = i;
    }
    return n;
}

/* The line of element `at` of what the access touches. */
static kins fetch(const kins *access, uint8_t type, affine at, kprefetch mode) {
    return (kins){ .op = K_PREFETCH,
                   .dtype = type,
                   .src = type,
                   .lanes = 1,
                   .mode = (uint8_t)mode,
                   .buf = access->buf,
                   .idx = at,
                   .node = access->node };
}

/* One iteration of `loop` fetches what the same elements of the next rows lie in. */
static void list_fetches(const kernel *k, const rows *r, int loop, const kins *load, kins *out, int *n) {
    kvar row = k->ins.at[r->loop].var, from = k->ins.at[r->child[0]].var, to = k->ins.at[loop].var;
    int64_t size = (int64_t)dtype_size((tn_dtype)load->src), bytes = k->ins.at[loop].step * size;
    affine next = affine_offset(load->idx, affine_coef(load->idx, row) * k->ins.at[r->loop].step);
    next = affine_set_var(k->a, next, from, affine_var(k->a, to));
    for (int64_t b = 0; b < bytes && *n < MOST_STREAMS * MOST_LINES; b += MACHINE_LINE_BYTES)
        out[(*n)++] = fetch(load, load->src, affine_offset(next, b / size), PREFETCH_L1);
}

/* ---- results ---- */

/* Whether the load may go behind the stores from there to `to`: none of them writes what it reads. */
static bool may_pass(const kernel *k, const kins *load, int from, int to) {
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_STORE || in->buf != load->buf) continue;
        int64_t apart = in->idx.base - load->idx.base, lanes = load->lanes > in->lanes ? load->lanes : in->lanes;
        bool known = load->lane_stride == 1 && in->lane_stride == 1 && affine_equal(affine_offset(load->idx, apart), in->idx);
        if (!known || (apart < lanes && apart > -lanes)) return false;
    }
    return true;
}

/* Where the load before the loop is used first, in the straight line of code behind it; 0: in the loop, or elsewhere. */
static int first_use_behind(const kernel *k, int load, int end) {
    for (int i = load + 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool uses = build_takes(in, (reg)load);
        if (uses || (i > end && (in->op == K_LOOP || in->op == K_END))) return uses && i > end ? i : 0;
    }
    return 0;
}

/* Loads of buffer `buf` directly before the loop that are used behind it alone go to where they are used: in registers they
 * would be in the way of sums. Returns how many. */
static int sink_loads(kernel *k, int loop, int end, int buf) {
    int n = 0, from = loop;
    int *before = ARENA_ARRAY(k->a, int, k->ins.n); /* the instruction that it goes before, or 0 */
    while (from > 1 && k->ins.at[from - 1].op != K_LOOP && k->ins.at[from - 1].op != K_END) from--;
    for (int i = from; i < loop; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || in->buf != buf || in->dyn || in->mode || in->lanes < 2) continue;
        int at = first_use_behind(k, i, end);
        if (at && may_pass(k, in, i, at)) before[i] = at, n++;
    }
    if (!n) return 0;
    kins *old = arena_copy(k->a, k->ins.at, sizeof(kins) * (size_t)k->ins.n);
    reg *to = ARENA_ARRAY(k->a, reg, k->ins.n);
    int n_ins = k->ins.n;
    k->ins.n = from;
    for (int i = 0; i < from; i++) to[i] = (reg)i;
    for (int i = from; i < n_ins; i++) {
        for (int j = from; j < loop && i > end; j++)
            if (before[j] == i) to[j] = kernel_push(k, old[j]);
        if (before[i]) continue;
        kins in = old[i];
        build_operands(&in, to);
        to[i] = kernel_push(k, in);
    }
    return n;
}

/* The step of the next loop around it that is no sum's and that the index knows, times how far it moves; 0: there is none. */
static int64_t next_rows(const kernel *k, int loop, affine idx) {
    for (int i = loop - 1, closed = 0; i > 0; i--) {
        const kins *in = &k->ins.at[i];
        closed += in->op == K_END;
        if (in->op != K_LOOP || closed-- > 0) continue;
        closed = 0;
        if (!k->vars.at[in->var].reduce && affine_coef(idx, in->var)) return in->step * affine_coef(idx, in->var);
    }
    return 0;
}

/* Lines of buffer `buf` that the loop reads word by word in the next tile of rows, if they are not too many. */
static int list_next(const kernel *k, int loop, int end, int buf, kins *out) {
    const kins *l = &k->ins.at[loop];
    int n = 0;
    for (int i = loop + 1; i < end; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) return 0; /* whose variable the index may know */
        if (in->op != K_LOAD || in->buf != buf) continue;
        int64_t apart = affine_coef(in->idx, l->var), next = next_rows(k, loop, in->idx), size = (int64_t)dtype_size(in->src),
                bytes = (l->hi - l->lo) * apart * size;
        if (in->lanes > 1 || in->n_mask || in->dyn || apart <= 0 || !next || k->params) return 0;
        affine at = affine_offset(affine_set_var(k->a, in->idx, l->var, affine_const(l->lo)), next);
        for (int64_t b = 0; b < bytes; b += MACHINE_LINE_BYTES) {
            if (n == MOST_RESULTS) return 0;
            out[n++] = fetch(in, in->src, affine_offset(at, b / size), PREFETCH_L1);
        }
    }
    return n;
}

/* Lines of buffer `buf` that the straight line of code behind the loop writes or reads. */
static int list_results(const kernel *k, int end, int buf, kins *out) {
    int n = 0;
    for (int i = end + 1; i < k->ins.n && k->ins.at[i].op != K_LOOP && k->ins.at[i].op != K_END; i++) {
        const kins *in = &k->ins.at[i];
        bool reads = in->op == K_LOAD;
        uint8_t type = reads ? in->src : in->dtype;
        int64_t size = (int64_t)dtype_size((tn_dtype)type);
        if ((in->op != K_STORE && !reads) || in->buf != buf || in->lane_stride != 1 || in->n_mask || in->dyn) continue;
        bool known = n == MOST_RESULTS;
        for (int r = 0; r < n && !known; r++) {
            int64_t apart = in->idx.base - out[r].idx.base;
            known = apart >= 0 && apart * size < MACHINE_LINE_BYTES && affine_equal(affine_offset(out[r].idx, apart), in->idx);
        }
        if (!known) out[n++] = fetch(in, type, in->idx, k->bufs.at[buf].kind == KB_IN ? PREFETCH_L1 : PREFETCH_WRITE);
    }
    return n;
}

bool step_prefetch_results(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why), any = 0;
    bool next = step_flag(s, "next");
    if (buf < 0) return false;
    for (int i = 1; i < k->ins.n; i++) {
        kins fetches[MOST_RESULTS];
        if (k->ins.at[i].op != K_LOOP || !k->vars.at[k->ins.at[i].var].reduce) continue;
        int end = kernel_loop_end(k, i);
        if (!loop_products(k, i, end)) continue;
        int sunk = next ? 0 : sink_loads(k, i, end, buf);
        i -= sunk, end -= sunk;
        int n = next ? list_next(k, i, end, buf, fetches) : list_results(k, end, buf, fetches);
        if (n) loop_insert(k, i, fetches, n);
        i = end + n, any += n;
    }
    if (next && !any) return step_refuse(why, "no loop of a contraction reads b%d word by word, in few lines for a tile", buf);
    return any || step_refuse(why, "b%d is not read or written in vectors behind the loop of a contraction", buf);
}

/* The line of what is read n bytes behind the load; false: one of `from` .. at - 1 fetches it already. */
static bool ahead_of(const kernel *k, int from, int at, int64_t n, kins *out) {
    const kins *in = &k->ins.at[at];
    int64_t size = (int64_t)dtype_size((tn_dtype)in->src);
    *out = fetch(in, in->src, affine_offset(in->idx, n / size), PREFETCH_L1);
    for (int i = from; i < at; i++) {
        const kins *x = &k->ins.at[i];
        int64_t apart = out->idx.base - x->idx.base;
        if (x->op == K_PREFETCH && x->buf == in->buf && apart >= 0 && apart * size < MACHINE_LINE_BYTES &&
            affine_equal(affine_offset(x->idx, apart), out->idx))
            return false;
    }
    return true;
}

bool step_prefetch_ahead(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why), any = 0;
    int64_t n = s->arg[1].n;
    if (buf < 0) return false;
    if (n < MACHINE_LINE_BYTES || n > MOST_AHEAD)
        return step_refuse(why, "%lld bytes: expected %d to %d", (long long)n, MACHINE_LINE_BYTES, MOST_AHEAD);
    if (!k->bufs.at[buf].panels) return step_refuse(why, "b%d does not lie in the order of the loops", buf);
    for (int i = 1, from = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        kins line;
        if (in->op == K_LOOP || in->op == K_END) from = i;
        if (in->op != K_LOAD || in->buf != buf || in->lanes < 2 || in->lane_stride != 1 || in->n_mask || in->dyn ||
            !ahead_of(k, from, i, n, &line))
            continue;
        loop_insert(k, i, &line, 1);
        i++, any++;
    }
    return any || step_refuse(why, "b%d is not read in vectors", buf);
}

bool step_prefetch_rows(kernel **kk, const loop_step *st, str *why) {
    kernel *k = *kk;
    int any = 0;
    (void)st;
    for (int i = 1; i < k->ins.n; i++) {
        rows r;
        int streams[MOST_STREAMS], n = 0;
        kins fetches[MOST_STREAMS * MOST_LINES];
        if (k->ins.at[i].op != K_LOOP || !find_rows(k, i, &r)) continue;
        int loop = longest_after_first(k, &r);
        for (int s = 0, n_streams = list_streams(k, &r, streams); s < n_streams; s++)
            list_fetches(k, &r, loop, &k->ins.at[streams[s]], fetches, &n);
        if (n) loop_insert(k, loop + 1, fetches, n);
        i = r.end + n, any += n;
    }
    return any || step_refuse(why, "no loop over rows has several loops in it, the first of which reads memory");
}
