/* boxes.c - implementation of boxes.h: goes through the pieces of all threads, and through the rows that they make. */
#include "ir/boxes.h"

enum { LANES = 8 /* of a piece: 16 bytes */, ROW = KERNEL_MATRIX, MOST_EDGES = 2, MOST_LOOPS = 32, MOST_ROWS = 256 };

typedef struct place { /* a piece in memory: what threads and constants add up to */
    int64_t at, edge[MOST_EDGES];
    bool there;
} place;
typedef struct side { /* what a run copies into one shared buffer, or sends from it */
    const kins *in;   /* the first instruction with a place in memory */
    int to;
    affine at;                     /* of all threads, without its base */
    const kmask *edge[MOST_EDGES]; /* masks that differ from thread to thread */
    int n_edges, along;            /* along: the one that ends rows, or -1 */
    int n;                         /* pieces, and as many places */
    int64_t first;                 /* element of the buffer */
    place *places;
} side;
typedef struct finder {
    const kernel *k;
    str *why;
    reg from, to;
    const kins *loop[MOST_LOOPS]; /* round it, outermost first */
    int n_loops;
    bool *of_threads, *single; /* [vars] single: it is always 0 */
    int64_t *value;            /* [vars] the thread's */
    side side[2];
    int n_sides;
    bool sent; /* to memory */
    kmaps *maps;
    kboxes *out;
} finder;

static bool refuse(const finder *f, const char *what) {
    str_add(f->why, what);
    return false;
}

/* ---- terms ---- */

static affine common(const finder *f, affine x) { /* to all threads */
    x.base = 0;
    for (int i = x.n - 1; i >= 0; i--)
        if (f->of_threads[x.t[i].var] || f->single[x.t[i].var]) x = affine_without(f->k->a, x, x.t[i].var);
    return x;
}
static int64_t own(const finder *f, affine x) { /* the rest, of the thread at hand */
    int64_t v = x.base;
    for (int i = 0; i < x.n; i++)
        if (f->of_threads[x.t[i].var]) v += x.t[i].coef * f->value[x.t[i].var];
    return v;
}
static bool differs(const finder *f, const kins *in, int m) { /* mask m, from thread to thread */
    bool any = in->mask_lane[m] != 0;
    for (int i = 0; i < in->mask[m].e.n; i++) any |= f->of_threads[in->mask[m].e.t[i].var];
    return any;
}
static const kins *loop_of(const finder *f, kvar v) {
    for (int i = 0; i < f->n_loops; i++)
        if (f->loop[i]->var == v) return f->loop[i];
    return NULL;
}
/* The terms at their largest; INT64_MAX: some may be negative. */
static int64_t most(const finder *f, affine x) {
    int64_t v = 0;
    for (int i = 0; i < x.n; i++) {
        const kins *loop = loop_of(f, x.t[i].var);
        if (!loop || loop->lo < 0 || x.t[i].coef < 0) return INT64_MAX;
        if (loop->hi > loop->lo) v += x.t[i].coef * (loop->lo + (loop->hi - loop->lo - 1) / loop->step * loop->step);
    }
    return v;
}

/* The same where the run's masks hold: one of them may bound a part of it. */
static int64_t most_masked(const finder *f, affine x) {
    int64_t v = most(f, x);
    for (int m = 0; m < f->out->n_mask && v != INT64_MAX; m++) {
        const kmask *mask = &f->out->mask[m];
        if (mask->e.n == 0) continue;
        int64_t c = affine_coef(x, mask->e.t[0].var), by = c / mask->e.t[0].coef;
        if (by < 1 || c % mask->e.t[0].coef) continue;
        affine rest = affine_add(f->k->a, x, affine_scale(f->k->a, mask->e, -by));
        int64_t offset = rest.base;
        rest.base = 0;
        int64_t with = most(f, rest);
        if (with != INT64_MAX && with + offset + by * (mask->hi - 1) < v) v = with + offset + by * (mask->hi - 1);
    }
    return v;
}

/* ---- the run ---- */

/* Of a copy: the instruction with a place in memory, and the one with a place in shared memory. */
static const kins *in_memory(const finder *f, reg r) { return &f->k->ins.at[r + f->sent]; }
static const kins *in_shared(const finder *f, reg r) { return &f->k->ins.at[r + !f->sent]; }

static bool find_loops(finder *f) {
    const kernel *k = f->k;
    int64_t threads = 1;
    for (reg r = 1; r < f->from; r++) {
        if (k->ins.at[r].op == K_END) f->n_loops--;
        if (k->ins.at[r].op != K_LOOP) continue;
        if (f->n_loops == MOST_LOOPS) return refuse(f, "too many loops are round a copy");
        f->loop[f->n_loops++] = &k->ins.at[r];
    }
    for (int i = 0; i < f->n_loops; i++) {
        f->single[f->loop[i]->var] = f->loop[i]->lo == 0 && f->loop[i]->hi <= f->loop[i]->step;
        if (f->loop[i]->par != PAR_BLOCK_THREADS) continue;
        f->of_threads[f->loop[i]->var] = true, threads *= f->loop[i]->hi;
    }
    return (threads == k->block_threads && !k->params) || refuse(f, "not each thread has a part of a copy");
}

static bool find_run(finder *f) {
    f->sent = f->out->sent = kernel_is_sent(f->k, &f->k->ins.at[f->from]);
    for (f->to = f->from; f->to + 1 < (reg)f->k->ins.n && kernel_is_bulk(&f->k->ins.at[f->to]) &&
                          kernel_is_sent(f->k, &f->k->ins.at[f->to]) == f->sent;
         f->to += 2) {
        const kins *load = &f->k->ins.at[f->to], *memory = in_memory(f, f->to), *shared = in_shared(f, f->to);
        int x = 0;
        if (load->lanes != LANES || dtype_size((tn_dtype)load->src) != 2)
            return refuse(f, "an operand does not lie in pieces of 16 bytes");
        if (load[1].op != K_STORE || shared->n_mask || !f->k->bufs.at[shared->buf].swizzled ||
            f->k->bufs.at[memory->buf].kind != (f->sent ? KB_OUT : KB_IN))
            return refuse(f, "not every thread has pieces of an operand");
        while (x < f->n_sides && f->side[x].to != shared->buf) x++;
        if (x == 2) return refuse(f, "a block of more than two operands");
        side *s = &f->side[x];
        if (x == f->n_sides) f->n_sides++, *s = (side){ .in = memory, .to = shared->buf, .at = common(f, memory->idx) };
        if (s->in->buf != memory->buf || !affine_equal(s->at, common(f, memory->idx)) || common(f, shared->idx).n)
            return refuse(f, "the pieces of an operand are not beside each other in memory");
        if (s->n == 0 || shared->idx.base < s->first) s->first = shared->idx.base;
        s->n += f->k->block_threads;
    }
    f->out->end = f->to;
    return true;
}

/* Masks of all threads are those of the first copy; others are edges. */
static bool find_masks(finder *f) {
    kmask *all = NULL;
    for (reg r = f->from; r < f->to; r += 2) {
        const kins *in = in_memory(f, r);
        side *s = f->side[0].to == in_shared(f, r)->buf ? &f->side[0] : &f->side[1];
        int n = 0, edges = 0;
        if (!all) all = ARENA_ARRAY(f->k->a, kmask, in->n_mask + 1), f->out->mask = all;
        for (int m = 0; m < in->n_mask; m++) {
            const kmask *x = &in->mask[m];
            if (differs(f, in, m)) {
                if (edges == MOST_EDGES) return refuse(f, "an operand has too many edges");
                if (in == s->in) s->edge[s->n_edges++] = x;
                if (edges >= s->n_edges || s->edge[edges]->lo != x->lo || s->edge[edges]->hi != x->hi ||
                    !affine_equal(common(f, s->edge[edges]->e), common(f, x->e)))
                    return refuse(f, "the pieces of an operand have several edges");
                edges++;
            } else if (r == f->from) {
                all[f->out->n_mask++] = *x;
            } else if (n >= f->out->n_mask || x->lo != all[n].lo || x->hi != all[n].hi || !affine_equal(x->e, all[n].e)) {
                return refuse(f, "a block is copied in part");
            }
            n += !differs(f, in, m);
        }
        if (n != f->out->n_mask || edges != s->n_edges) return refuse(f, "a block is copied in part");
    }
    return true;
}

static bool next_thread(finder *f) {
    for (int i = f->n_loops - 1; i >= 0; i--) {
        if (!f->of_threads[f->loop[i]->var]) continue;
        if (++f->value[f->loop[i]->var] < f->loop[i]->hi) return true;
        f->value[f->loop[i]->var] = 0;
    }
    return false;
}

/* Where each piece of a shared buffer comes from. */
static bool find_places(finder *f) {
    for (int x = 0; x < f->n_sides; x++) f->side[x].places = ARENA_ARRAY(f->k->a, place, f->side[x].n);
    do {
        for (reg r = f->from; r < f->to; r += 2) {
            const kins *in = in_memory(f, r);
            side *s = f->side[0].to == in_shared(f, r)->buf ? &f->side[0] : &f->side[1];
            int64_t to = own(f, in_shared(f, r)->idx) - s->first, i = to / LANES;
            if (to < 0 || to % LANES || i >= s->n || s->places[i].there)
                return refuse(f, "the pieces of an operand leave gaps in shared memory");
            s->places[i] = (place){ .at = own(f, in->idx), .there = true };
            for (int m = 0, edge = 0; m < in->n_mask; m++)
                if (differs(f, in, m)) s->places[i].edge[edge++] = own(f, in->mask[m].e);
        }
    } while (next_thread(f));
    return true;
}

/* ---- boxes ---- */

static int find_map(finder *f, const kmap *x) {
    for (int i = 0; i < f->maps->n; i++) {
        const kmap *y = &f->maps->at[i];
        if (x->buf == y->buf && x->pitch == y->pitch && x->rows == y->rows && x->box_rows == y->box_rows) return i;
    }
    if (f->maps->n == KERNEL_MOST_MAPS) return -1;
    f->maps->at[f->maps->n] = *x;
    return f->maps->n++;
}

/* Rows of 128 bytes in shared memory, each of which lies in one piece; the first ones of them so far apart, that many to a box.
 */
static bool find_rows(finder *f, const side *s, kmap *out) {
    int64_t per_row = ROW / LANES, rows = s->n / per_row, elems = f->k->bufs.at[s->in->buf].elems;
    const place *p = s->places;
    if (s->n % per_row || rows < 2 || s->first % (s->n * LANES)) return refuse(f, "a block is no whole number of rows");
    for (int64_t i = 0; i < s->n; i++)
        if (p[i].at != p[i / per_row * per_row].at + i % per_row * LANES)
            return refuse(f, "rows of an operand do not lie in pieces of 128 bytes");
    *out = (kmap){ .buf = s->in->buf, .pitch = p[per_row].at - p[0].at, .box_rows = 1 };
    while (out->box_rows < rows && out->box_rows < MOST_ROWS &&
           p[out->box_rows * per_row].at - p[(out->box_rows - 1) * per_row].at == out->pitch)
        out->box_rows++;
    if (out->pitch < ROW || out->pitch % LANES || out->box_rows % 8 || rows % out->box_rows)
        return refuse(f, "rows of an operand are not equally far apart, in steps of 16 bytes");
    for (int64_t i = 0; i < rows; i++)
        if (i % out->box_rows && p[i * per_row].at - p[(i - 1) * per_row].at != out->pitch)
            return refuse(f, "rows of an operand are not equally far apart");
    if (elems % out->pitch) return refuse(f, "an operand is no whole number of rows");
    out->rows = elems / out->pitch;
    return true;
}

/* The terms that go along rows, and those that count them. */
static void split_terms(const finder *f, affine at, int64_t pitch, affine *x, affine *y) {
    *x = *y = affine_const(0);
    for (int i = 0; i < at.n; i++) {
        affine term =
            affine_scale(f->k->a, affine_var(f->k->a, at.t[i].var), at.t[i].coef % pitch ? at.t[i].coef : at.t[i].coef / pitch);
        affine *to = at.t[i].coef % pitch ? x : y;
        *to = affine_add(f->k->a, *to, term);
    }
}

/* The column of piece i: where an edge along rows says, or what is left behind whole rows. */
static int64_t column(const side *s, const kmap *map, int i) {
    return s->along < 0 ? s->places[i].at % map->pitch : s->places[i].edge[s->along];
}

/* Whether edges are where the matrix ends, along rows or behind the last one. */
static bool are_ends(const finder *f, side *s, const kmap *map, affine x, affine y) {
    s->along = -1;
    for (int e = 0; e < s->n_edges; e++)
        if (s->edge[e]->hi == map->pitch && affine_equal(common(f, s->edge[e]->e), x)) s->along = e;
    for (int e = 0; e < s->n_edges; e++)
        if (s->edge[e]->lo || (e != s->along && (!affine_equal(common(f, s->edge[e]->e), y) || s->edge[e]->hi != map->rows)))
            return false;
    for (int i = 0; i < s->n; i++) {
        int64_t rows = s->places[i].at - column(s, map, i);
        if (rows % map->pitch || column(s, map, i) < 0 || rows < 0) return false;
        for (int e = 0; e < s->n_edges; e++)
            if (e != s->along && s->places[i].edge[e] != rows / map->pitch) return false;
    }
    return true;
}

static bool add_boxes(finder *f, side *s) {
    kmap map;
    affine x, y;
    int64_t per_row = ROW / LANES, elems = s->n * LANES, last = 0;
    if (!find_rows(f, s, &map)) return false;
    split_terms(f, s->at, map.pitch, &x, &y);
    if (!are_ends(f, s, &map, x, y)) return refuse(f, "an operand has an edge that is not the end of its buffer");
    for (int i = 0; i < s->n; i += (int)(per_row * map.box_rows)) {
        int64_t at = s->places[i].at, first = column(s, &map, i);
        if (f->out->n == KERNEL_MOST_BOXES) return refuse(f, "a block has too many boxes");
        kbox *b = &f->out->at[f->out->n++];
        *b = (kbox){ .map = find_map(f, &map), .buf = s->to, .at = s->first + i * LANES, .elems = elems };
        if (b->map < 0) return refuse(f, "a kernel copies of too many matrices");
        b->x = affine_offset(x, first), b->y = affine_offset(y, (at - first) / map.pitch);
        if (first > last) last = first;
    }
    int64_t end = most_masked(f, x);
    if (most(f, y) == INT64_MAX || end == INT64_MAX || (s->along < 0 && end + last + ROW > map.pitch))
        return refuse(f, "a box goes over the end of a row");
    f->out->stage = s->first / elems, f->out->bytes += 2 * elems;
    return true;
}

bool kernel_boxes(const kernel *k, reg r, kmaps *maps, kboxes *out, str *why) {
    finder f = { .k = k,
                 .why = why,
                 .from = r,
                 .of_threads = ARENA_ARRAY(k->a, bool, k->vars.n + 1),
                 .single = ARENA_ARRAY(k->a, bool, k->vars.n + 1),
                 .value = ARENA_ARRAY(k->a, int64_t, k->vars.n + 1),
                 .maps = maps,
                 .out = out };
    *out = (kboxes){ .n = 0 };
    if (!find_loops(&f) || !find_run(&f) || !find_masks(&f) || !find_places(&f)) return false;
    for (int x = 0; x < f.n_sides; x++) {
        int64_t stage = out->stage;
        if (!add_boxes(&f, &f.side[x])) return false;
        if (x && stage != out->stage) return refuse(&f, "the operands of a block go to different stages");
    }
    return true;
}

bool kernel_maps(const kernel *k, kmaps *out, int *stages, str *why) {
    kboxes boxes;
    *out = (kmaps){ .n = 0 }, *stages = 0;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        if (!kernel_is_bulk(&k->ins.at[r])) continue;
        if (!kernel_boxes(k, r, out, &boxes, why)) return false;
        if (!boxes.sent && boxes.stage >= *stages) *stages = (int)boxes.stage + 1;
        r = boxes.end - 1;
    }
    return true;
}

/* ---- turns ---- */

/* Results that lie late fit behind the stages that the first copies fill; other results have a place of their own. */
static bool find_results(const kernel *k, const kboxes *last, kturns *out) {
    int64_t end[2] = { 0, 0 }, at = -1;
    int apart = 0, late = 0;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        if (x->kind < KB_SHARED || x->late) continue;
        int64_t begin = kbuf_place(x, &end[0]), elems = 0;
        for (int i = 0; i < last->n; i++)
            if (last->at[i].buf == b) elems = last->at[i].elems;
        apart += elems == 0;
        if (elems) at = begin + (last->stage + 1) * elems * 2;
    }
    out->late = end[1] = at;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].late) kbuf_place(&k->bufs.at[b], &end[1]), late++;
    out->apart = !late;
    return at >= 0 && (late ? !apart && end[1] <= end[0] : apart > 0);
}

reg kernel_ends_in_last_turn(const kernel *k, reg r, const kboxes *b) {
    int depth = 0;
    while (--r > 0 && (k->ins.at[r].op != K_LOOP || depth > 0)) /* the loop around it */
        depth += k->ins.at[r].op == K_END ? 1 : k->ins.at[r].op == K_LOOP ? -1 : 0;
    const kins *loop = &k->ins.at[r];
    if (!r || loop->par != PAR_SERIAL || b->n_mask != 1 || b->mask->lo || b->mask->e.n != 1) return 0;
    kterm t = b->mask->e.t[0];
    int64_t step, last;
    bool fits = t.var == loop->var && t.coef > 0 && size_mul(t.coef, loop->step, &step) &&
                size_mul(t.coef, loop->hi - loop->step, &last) && !__builtin_add_overflow(last, b->mask->e.base, &last);
    return fits && last >= b->mask->hi && last - step < b->mask->hi ? r : 0;
}

bool kernel_turns(const kernel *k, kturns *out, str *why) {
    static const char *const problem = "thread blocks cannot take turns: ";
    kmaps maps = { .n = 0 };
    kboxes boxes = { .n = 0 }, one;
    int serial = 0, *open = ARENA_ARRAY(k->a, int, k->ins.n + 1), depth = 0;
    reg done = 0, nests = 0, products = 0, loop;
    uint32_t freed = 0; /* stages, by the last turn .. */
    int end = k->ins.n; /* .. of a loop up to there */
    str_add(why, problem);
    *out = (kturns){ 0 };
    if (k->params || k->cluster || k->turns < 1 || k->turns >= k->grid_blocks) {
        str_add(why, "there are not more parts than thread blocks");
        return false;
    }
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        const kins *in = &k->ins.at[r];
        if (in->op == K_LOOP && in->par == PAR_BLOCKS && in[-1].op != K_LOOP) out->open = r, nests++;
        if (in->op == K_LOOP) serial += open[depth++] = in->par == PAR_SERIAL;
        if (in->op == K_END) serial -= open[--depth];
        if (in->op == K_LOOP && !serial && in->n_blocks) nests = 2;
        bool waits = (in->op == K_ASYNC && in->mode == ASYNC_COPIES) || in->op == K_BARRIER;
        if (waits && out->first && !out->first_end) out->first_end = r;
        if (in->op == K_ASYNC && in->mode == ASYNC_PRODUCTS && !in->pending) done = serial ? 0 : r, out->again = 0;
        if (in->op == K_BARRIER && done && !serial && !out->again) out->again = r;
        if (kernel_is_sent(k, in)) continue;
        if (in->op == K_MATRIX || kernel_is_bulk(in)) done = out->again = 0;
        if (in->op == K_MATRIX) products = r;
        if (in->op == K_BARRIER && in->mode != BARRIER_BLOCK) nests = 2;
        if (!kernel_is_bulk(in)) continue;
        if (!kernel_boxes(k, r, &maps, &one, why)) return false;
        if (!out->first_end) {
            if (serial || one.n_mask || one.stage != (out->first ? boxes.stage + 1 : 0)) nests = 2;
            if (one.stage >= KERNEL_MOST_FIRST) nests = 2;
            if (!out->first) out->first = r;
            boxes = one;
        } else if (one.stage < KERNEL_MOST_FIRST && (loop = kernel_ends_in_last_turn(k, r, &one)) != 0)
            freed |= 1u << one.stage, end = kernel_loop_end(k, (int)loop);
        r = one.end - 1;
    }
    if (nests != 1 || !out->first || !out->again || !find_results(k, &boxes, out)) {
        str_add(
            why,
            "it is no product whose blocks come in boxes, in stages, and whose results are staged beside the first of them");
        return false;
    }
    out->streams = out->apart && freed == (2u << boxes.stage) - 1 && (int)products < end; /* which read no stage that is free */
    return true;
}
