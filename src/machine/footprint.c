/* footprint.c - implementation of footprint.h. */
#include "machine/footprint.h"

#include <math.h>

/* ---- loops ---- */

static double trips_of(const kernel *k, const kins *in, int threads) {
    double n = larger(0, ceil((double)(in->hi - in->lo) / (double)in->step));
    if (in->par == PAR_SERIAL && in->var == k->par_var) return ceil(n / threads);
    return in->par == PAR_THREADS ? ceil(n / threads) : n;
}

static void find_loops(footprint *f, int threads) {
    const kernel *k = f->k;
    f->loop_of = ARENA_ARRAY(f->a, int, k->ins.n + 1);
    VEC_PUSH(f->a, &f->loops,
             ((fp_loop){ .ins = 0, .end = k->ins.n, .var = -1, .step = 1, .trips = 1, .runs = 1, .parent = -1 }));
    int now = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        f->loop_of[i] = now;
        if (in->op == K_LOOP) {
            double trips = trips_of(k, in, threads);
            fp_loop l = { i, 0, now, in->var, in->step, trips, trips * f->loops.at[now].runs };
            now = f->loops.n;
            VEC_PUSH(f->a, &f->loops, l);
        } else if (in->op == K_END) {
            f->loops.at[now].end = i;
            f->loop_of[i] = now;
            now = f->loops.at[now].parent;
        }
    }
}

static bool is_inside(const footprint *f, int l, int outer) {
    return f->loops.at[l].ins >= f->loops.at[outer].ins && f->loops.at[l].end <= f->loops.at[outer].end;
}

/* ---- accesses ---- */

static void add_span(fp_access *x, int64_t stride, double n) {
    if (stride < 0) stride = -stride;
    if (n <= 1 || stride == 0) return;
    for (int i = 0; i < x->n_spans; i++)
        if (x->spans[i].stride == stride) {
            x->spans[i].n += n - 1;
            return;
        }
    if (x->n_spans < FP_SPANS)
        x->spans[x->n_spans++] = (fp_span){ stride, n };
    else
        x->spans[FP_SPANS - 1].n *= n;
}

static bool lies_alike(const footprint *f, const fp_access *x, const kins *in, int loop) {
    const kins *y = &f->k->ins.at[x->ins];
    if (x->loop != loop || y->buf != in->buf || y->op != in->op || y->lane_stride != in->lane_stride || y->dyn != in->dyn ||
        y->mode != in->mode || y->idx.n != in->idx.n)
        return false;
    for (int i = 0; i < in->idx.n; i++)
        if (y->idx.t[i].var != in->idx.t[i].var || y->idx.t[i].coef != in->idx.t[i].coef) return false;
    return true;
}

typedef VEC(int64_t) bases;

static bool is_less(const void *x, const void *y, const void *ud) {
    (void)ud;
    return *(const int64_t *)x < *(const int64_t *)y;
}

/* Bases as spans: neighbours that touch are one run, and runs lie as far apart as the nearest two. */
static void spans_of_bases(footprint *f, fp_access *x, bases *b, int64_t wide) {
    merge_sort(f->a, b->at, b->n, sizeof *b->at, is_less, NULL);
    int64_t first = b->at[0], end = first + wide, gap = 0;
    double runs = 1, length = 0;
    int64_t start = first;
    for (int i = 1; i < b->n; i++) {
        if (b->at[i] <= end) {
            if (b->at[i] + wide > end) end = b->at[i] + wide;
            continue;
        }
        length += (double)(end - start);
        if (!gap || b->at[i] - start < gap) gap = b->at[i] - start;
        start = b->at[i], end = start + wide, runs++;
    }
    length += (double)(end - start);
    x->lo = first, x->hi = b->at[b->n - 1] + wide;
    int64_t mean = (int64_t)(length / runs + 0.5);
    if (mean > wide) add_span(x, x->size, (double)mean);
    if (runs > 1) add_span(x, gap * x->size, runs);
}

static fp_access start_access(const footprint *f, int i, int loop) {
    const kins *in = &f->k->ins.at[i];
    const kbuf *b = &f->k->bufs.at[in->buf];
    fp_access x = { .loop = loop, .ins = i, .buf = in->buf, .size = (int64_t)dtype_size((tn_dtype)b->dtype) };
    x.store = in->op == K_STORE || in->op == K_SCATTER;
    x.load = in->op == K_LOAD || in->op == K_SCATTER;
    x.nontemporal = in->op == K_STORE && in->mode == STORE_NONTEMPORAL && !f->k->block_threads;
    x.prefetch = in->op == K_PREFETCH;
    x.random = in->dyn && in->op != K_PREFETCH;
    return x;
}

static void find_accesses(footprint *f) {
    VEC(bases) lists = { 0 };
    for (int i = 1; i < f->k->ins.n; i++) {
        const kins *in = &f->k->ins.at[i];
        if (!kernel_touches(in) && in->op != K_PREFETCH) continue;
        int x = f->at.n - 1, loop = f->loop_of[i];
        while (x >= 0 && !lies_alike(f, &f->at.at[x], in, loop)) x = f->at.at[x].ins > f->loops.at[loop].ins ? x - 1 : -1;
        if (x < 0) {
            x = f->at.n;
            VEC_PUSH(f->a, &f->at, start_access(f, i, loop));
            VEC_PUSH(f->a, &lists, ((bases){ 0 }));
        }
        VEC_PUSH(f->a, &lists.at[x], in->idx.base);
    }
    for (int x = 0; x < f->at.n; x++) {
        fp_access *y = &f->at.at[x];
        const kins *in = &f->k->ins.at[y->ins];
        int64_t lanes = in->op == K_PREFETCH ? f->line / y->size : in->lanes,
                stride = in->op == K_PREFETCH ? 1 : in->lane_stride;
        if (in->op == K_LOAD && in->packed) add_span(y, in->packed_stride * y->size, in->packed);
        bool dense = stride == 1 && lanes > 1;
        spans_of_bases(f, y, &lists.at[x], dense ? lanes : 1);
        if (dense && !(y->n_spans && y->spans[0].stride == y->size)) add_span(y, y->size, (double)lanes);
        if (!dense) add_span(y, stride * y->size, (double)lanes);
    }
}

void fp_make(const kernel *k, arena *a, int threads, int64_t line, footprint *out) {
    *out = (footprint){ .a = a, .k = k, .line = line };
    find_loops(out, threads > 1 && k->par_var >= 0 ? threads : 1);
    find_accesses(out);
}

/* ---- bytes ---- */

static bool uses(const kins *in, kvar v) { return affine_coef(in->idx, v) != 0; }

/* Rows that a dynamic index chooses: as many as there are iterations that it may change in. */
static double random_rows(const footprint *f, const fp_access *x, int l, bool inside) {
    const kins *in = &f->k->ins.at[x->ins];
    double n = in->lanes;
    for (int i = x->loop; i >= 0 && is_inside(f, i, l); i = f->loops.at[i].parent)
        if (!(inside && i == l) && !uses(in, f->loops.at[i].var)) n *= f->loops.at[i].trips;
    return n < (double)in->dyn_n ? n : (double)(in->dyn_n > 0 ? in->dyn_n : 1);
}

static void spans_inside(const footprint *f, const fp_access *x, int l, bool inside, fp_access *out) {
    *out = *x;
    const kins *in = &f->k->ins.at[x->ins];
    for (int i = x->loop; i >= 0 && is_inside(f, i, l); i = f->loops.at[i].parent)
        if (!(inside && i == l) && f->loops.at[i].var >= 0)
            add_span(out, affine_coef(in->idx, f->loops.at[i].var) * f->loops.at[i].step * x->size, f->loops.at[i].trips);
    for (int i = 1; i < out->n_spans; i++) /* nearest first */
        for (int j = i; j > 0 && out->spans[j].stride < out->spans[j - 1].stride; j--) {
            fp_span t = out->spans[j];
            out->spans[j] = out->spans[j - 1], out->spans[j - 1] = t;
        }
}

static double buffer_bytes(const footprint *f, const fp_access *x) {
    double all = (double)(f->k->bufs.at[x->buf].elems * x->size), lines = ceil(all / (double)f->line) * (double)f->line;
    return lines > 0 ? lines : (double)f->line;
}

/* Pieces without a gap, each as long as the other, and how they lie: rows of a matrix of which some columns are touched. */
typedef struct fp_pieces {
    double length;
    fp_span apart[FP_SPANS]; /* nearest first */
    int n_apart;
    double times; /* more pieces than these, at places that nobody knows */
} fp_pieces;

/* Neighbours without a gap, or with one shorter than a line, become one piece. */
static void join_pieces(const footprint *f, fp_pieces *p) {
    int n = 0;
    for (int i = 0; i < p->n_apart; i++) {
        fp_span s = p->apart[i];
        if ((double)s.stride <= p->length || s.stride <= f->line)
            p->length += (double)s.stride * (s.n - 1);
        else
            p->apart[n++] = s;
    }
    p->n_apart = n;
}

static fp_pieces pieces_of(const footprint *f, const fp_access *x, int l, bool inside) {
    fp_access y;
    spans_inside(f, x, l, inside, &y);
    fp_pieces p = { .length = (double)x->size, .n_apart = y.n_spans, .times = 1 };
    memcpy(p.apart, y.spans, sizeof p.apart);
    join_pieces(f, &p);
    if (x->random) p.times = random_rows(f, x, l, inside);
    return p;
}

static double number_of(const fp_pieces *p) {
    double n = p->times;
    for (int i = 0; i < p->n_apart; i++) n *= p->apart[i].n;
    return n;
}

static double bytes_of_pieces(const footprint *f, const fp_access *x, const fp_pieces *p) {
    double length = p->length, n = number_of(p), all = buffer_bytes(f, x), line = (double)f->line;
    double lines = n > 1 ? ceil(length / line) : length / line; /* neighbours share the lines at their ends */
    if (n > 1 && length >= line) lines = length / line + 0.5;
    if (lines < 1) lines = n > 1 || length * 2 > line ? 1 : length / line;
    double bytes = n * lines * line;
    return bytes < all ? bytes : all;
}

double fp_bytes(const footprint *f, const fp_access *x, int l, bool inside) {
    fp_pieces p = pieces_of(f, x, l, inside);
    return bytes_of_pieces(f, x, &p);
}

double fp_run(const footprint *f, const fp_access *x, double *out_pieces) {
    fp_pieces p = pieces_of(f, x, 0, false);
    *out_pieces = number_of(&p);
    return p.length;
}

static void range_of(const footprint *f, const fp_access *x, int l, bool inside, double *lo, double *hi) {
    const kins *in = &f->k->ins.at[x->ins];
    *lo = (double)x->lo, *hi = (double)x->hi;
    for (int i = x->loop; i >= 0 && is_inside(f, i, l); i = f->loops.at[i].parent) {
        if ((inside && i == l) || f->loops.at[i].var < 0) continue;
        const kins *loop = &f->k->ins.at[f->loops.at[i].ins];
        double c = (double)affine_coef(in->idx, f->loops.at[i].var),
               by = c * (double)f->loops.at[i].step * (f->loops.at[i].trips - 1);
        *lo += c * (double)loop->lo + (by < 0 ? by : 0), *hi += c * (double)loop->lo + (by > 0 ? by : 0);
    }
}

/* Accesses are in program order, by the first of each: those in a loop lie side by side. */
static int first_access(const footprint *f, int l) {
    int lo = 0, hi = f->at.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (f->at.at[mid].ins > f->loops.at[l].ins)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Accesses of one buffer inside loop l whose ranges overlap touch the same bytes: the largest of them counts. But those that
 * touch other columns of the same rows, such as a loop for the rest of the columns, touch more together, or share nothing. */
typedef struct fp_share {
    int buf, first; /* access that meets the bytes first */
    double lo, hi, bytes;
    fp_pieces pieces;
    double at; /* where the first piece begins, in bytes */
} fp_share;
typedef VEC(fp_share) shares;

static bool lie_alike(const fp_pieces *x, const fp_pieces *y) {
    if (x->n_apart != y->n_apart || !x->n_apart || x->times != 1 || y->times != 1) return false;
    for (int i = 0; i < x->n_apart; i++)
        if (x->apart[i].stride != y->apart[i].stride || x->apart[i].n != y->apart[i].n) return false;
    return true;
}

/* Adds the pieces of `o` to those of s, which lie alike. False: there are lines between them. */
static bool unite(const footprint *f, fp_share *s, const fp_share *o) {
    double period = (double)s->pieces.apart[0].stride, line = (double)f->line;
    double shift = fmod(o->at - s->at, period);
    if (shift < 0) shift += period; /* o's piece begins so far behind one of s, and so far before the next: */
    double before = period - shift, behind = shift - s->pieces.length;
    if (behind < line) {
        s->pieces.length = larger(s->pieces.length, shift + o->pieces.length);
    } else if (before - o->pieces.length < line) {
        s->pieces.length = larger(s->pieces.length + before, o->pieces.length);
        s->at -= before;
    } else {
        return false;
    }
    join_pieces(f, &s->pieces);
    s->bytes = bytes_of_pieces(f, &f->at.at[s->first], &s->pieces);
    return true;
}

static void find_shares(const footprint *f, int l, bool inside, shares *out) {
    out->n = 0;
    for (int x = first_access(f, l); x < f->at.n && f->at.at[x].ins < f->loops.at[l].end; x++) {
        const fp_access *y = &f->at.at[x];
        if (y->nontemporal) continue;
        fp_share s = { .buf = y->buf, .first = x, .pieces = pieces_of(f, y, l, inside) };
        s.bytes = bytes_of_pieces(f, y, &s.pieces);
        range_of(f, y, l, inside, &s.lo, &s.hi);
        s.at = s.lo * (double)y->size;
        for (int i = 0; i < out->n; i++) {
            fp_share *o = &out->at[i];
            if (o->buf != s.buf || (!y->random && !f->at.at[o->first].random && (s.lo >= o->hi || o->lo >= s.hi))) continue;
            if (lie_alike(&s.pieces, &o->pieces)) {
                if (!unite(f, &s, o)) continue;
            } else if (o->bytes > s.bytes) {
                s.bytes = o->bytes, s.pieces = o->pieces, s.at = o->at;
            }
            s.lo = s.lo < o->lo ? s.lo : o->lo, s.hi = s.hi > o->hi ? s.hi : o->hi;
            if (!y->prefetch || f->at.at[o->first].prefetch) s.first = o->first;
            *o = out->at[--out->n], i = -1;
        }
        VEC_PUSH(f->a, out, s);
    }
}

static double sum_of(const shares *s) {
    double sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->at[i].bytes;
    return sum;
}

/* How much of what a loop's body touches is still there in the next iteration: not all of a little more than fits goes. */
static double stays(double bytes, double cache) {
    double over = bytes / cache;
    return over <= 0.9 ? 1 : over >= 1.4 ? 0 : (1.4 - over) / 0.5;
}

typedef struct flow {
    footprint *f;
    double cache;
    machine_level into;
    const double *distance;
    shares s;
} flow;

static void flow_of(flow *w, int l, double scale) {
    footprint *f = w->f;
    find_shares(f, l, true, &w->s);
    double kept = stays(sum_of(&w->s), w->cache);
    if (kept > 0) {
        find_shares(f, l, false, &w->s);
        for (int i = 0; i < w->s.n; i++) {
            const fp_share *s = &w->s.at[i];
            bool local = kbuf_is_local(&f->k->bufs.at[s->buf]);
            double there = l ? 0 : stays(local || !w->distance ? 0 : w->distance[s->buf], w->cache);
            f->at.at[s->first].bytes[w->into] += s->bytes * scale * kept * (1 - there);
        }
    }
    if (kept >= 1) return;
    double rest = scale * (1 - kept) * f->loops.at[l].trips;
    for (int x = first_access(f, l); x < f->at.n && f->at.at[x].ins < f->loops.at[l].end; x++) {
        fp_access *y = &f->at.at[x];
        if (y->loop == l && !y->nontemporal && !y->prefetch) y->bytes[w->into] += fp_bytes(f, y, l, true) * rest;
    }
    for (int i = l + 1; i < f->loops.n && f->loops.at[i].ins < f->loops.at[l].end; i++)
        if (f->loops.at[i].parent == l) flow_of(w, i, rest);
}

void fp_traffic(footprint *f, double cache_bytes, machine_level into, const double *distance) {
    flow w = { .f = f, .cache = cache_bytes, .into = into, .distance = distance };
    flow_of(&w, 0, 1);
}
