/* dims.c - symbolic dims: the handles that shapes take, and the values that a session runs with.
 *
 * In: names, ranges and values from the host. Out: rows of the graph's table of parameters, whose numbers are the handles;
 * values in the session (run/dims.c). */
#include "api/api.h"
#include "run/run.h"

#include <stdio.h>

/* ---- handles ---- */

typedef struct dim_args {
    const char *name;
    int64_t lo, hi, multiple_of;
    int64_t x, y; /* of arithmetic */
    ext (*fn)(exts *t, ext x, ext y);
    ext out;
} dim_args;

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)

static val build_dim(graph *g, const val *in, void *args) {
    dim_args *a = args;
    exts *t = graph_params(g);
    (void)in;
    if (!a->name || !a->name[0]) FAIL(g, TN_ERR_INVAL, "a dim without a name");
    if (a->lo < 0 || a->hi < a->lo)
        FAIL(g, TN_ERR_INVAL, "dim %s: the range %lld..%lld; expected 0 <= lo <= hi", a->name, (long long)a->lo,
             (long long)a->hi);
    if (a->multiple_of < 1 || a->lo % a->multiple_of || a->hi % a->multiple_of)
        FAIL(g, TN_ERR_INVAL, "dim %s: the ends of its range, %lld and %lld, must be multiples of %lld", a->name,
             (long long)a->lo, (long long)a->hi, (long long)a->multiple_of);
    ext known;
    if (ext_find_dim(t, a->name, strlen(a->name), &known)) {
        const ext_row *r = exts_row(t, known);
        if (r->lo != a->lo || r->hi != a->hi || r->divisor != a->multiple_of)
            FAIL(g, TN_ERR_INVAL,
                 "dim %s is %lld..%lld, a multiple of %lld, already; here it is %lld..%lld, a multiple of %lld", a->name,
                 (long long)r->lo, (long long)r->hi, (long long)r->divisor, (long long)a->lo, (long long)a->hi,
                 (long long)a->multiple_of);
        a->out = known;
        return 0;
    }
    if (t->n_dims == TN_MAX_DIMS) FAIL(g, TN_ERR_INVAL, "dim %s: a graph has at most %d dims", a->name, TN_MAX_DIMS);
    a->out = ext_dim(t, a->name, a->lo, a->hi, a->multiple_of);
    return 0;
}

static void check_handle(graph *g, ext e, int operand) {
    if (ext_is_lit(e)) return;
    if (!g->params || ext_index(e) >= g->params->at.n) FAIL(g, TN_ERR_INVAL, "operand %d is no dim of this graph", operand);
}
static val build_arithmetic(graph *g, const val *in, void *args) {
    dim_args *a = args;
    exts *t = graph_params(g);
    (void)in;
    check_handle(g, a->x, 0), check_handle(g, a->y, 1);
    a->out = a->fn(t, a->x, a->y);
    if (t->problem) FAIL(g, TN_ERR_INVAL, "%s", t->problem);
    return 0;
}

static int64_t built(tn_graph *g, const char *name, build_fn fn, dim_args *a) {
    if (!g) return -1;
    if (g->immediate) {
        api_fail(g, &(call){ .name = name }, TN_ERR_UNSUPPORTED, "an immediate graph computes at once: its dims are numbers");
        return -1;
    }
    a->out = -1;
    api_build(g, &(call){ .name = name }, fn, a);
    return a->out;
}

int64_t tn_dim(tn_graph *g, const char *name, int64_t lo, int64_t hi, int64_t multiple_of) {
    return built(g, "tn_dim", build_dim, &(dim_args){ .name = name, .lo = lo, .hi = hi, .multiple_of = multiple_of });
}
#define ARITHMETIC(name, fn_)                                                                                                  \
    int64_t name(tn_graph *g, int64_t x, int64_t y) {                                                                          \
        return built(g, #name, build_arithmetic, &(dim_args){ .x = x, .y = y, .fn = fn_ });                                    \
    }
ARITHMETIC(tn_dim_add, ext_add)
ARITHMETIC(tn_dim_mul, ext_mul)
ARITHMETIC(tn_dim_floor_div, ext_floor_div)
ARITHMETIC(tn_dim_ceil_div, ext_ceil_div)
/* Where one of the two is the same in all runs, it is that one: shapes are compared as expressions. */
static ext smaller_of(exts *t, ext x, ext y) {
    return ext_never_less(t, x, y) ? y : ext_never_less(t, y, x) ? x : ext_min(t, x, y);
}
static ext larger_of(exts *t, ext x, ext y) {
    return ext_never_less(t, x, y) ? x : ext_never_less(t, y, x) ? y : ext_max(t, x, y);
}
ARITHMETIC(tn_dim_min, smaller_of)
ARITHMETIC(tn_dim_max, larger_of)

/* ---- as values ---- */

static val build_range(graph *g, const val *in, void *args) {
    dim_args *a = args;
    (void)in;
    check_handle(g, a->x, 0);
    a->lo = ext_lo(g->params, a->x), a->hi = ext_hi(g->params, a->x);
    return 0;
}
tn_status tn_dim_range(tn_graph *g, int64_t x, int64_t *out_lo, int64_t *out_hi) {
    dim_args a = { .x = x, .lo = x, .hi = x };
    if (!g) return TN_ERR_INVAL;
    if (!ext_is_lit(x)) api_build(g, &(call){ .name = "tn_dim_range" }, build_range, &a);
    if (out_lo) *out_lo = a.lo;
    if (out_hi) *out_hi = a.hi;
    return tn_graph_status(g);
}

static val build_value(graph *g, const val *in, void *args) {
    (void)in;
    check_handle(g, *(const ext *)args, 0);
    return graph_size(g, TN_I64, *(const ext *)args);
}
tn_tensor tn_dim_value(tn_graph *g, int64_t x) { return api_build(g, &(call){ .name = "tn_dim_value" }, build_value, &x); }

typedef struct dim_text {
    const exts *t;
    ext x;
    arena scratch;
    str text;
} dim_text;
static void write_text(void *arg) {
    dim_text *d = arg;
    str_init(&d->text, &d->scratch);
    ext_print_plain(d->t, d->x, &d->text);
}
size_t tn_dim_text(const tn_graph *g, int64_t x, char *out, size_t n) {
    if (n) *out = 0;
    if (!g || (!ext_is_lit(x) && (!g->ir->params || ext_index(x) >= g->ir->params->at.n))) return 0;
    dim_text d = { .t = g->ir->params, .x = x };
    arena_init(&d.scratch, g->ctx->mem, g->arena.gd);
    size_t length = api_try(g->arena.gd, write_text, &d) ? 0 : d.text.n;
    if (length && n) snprintf(out, n, "%s", d.text.s);
    arena_fini(&d.scratch);
    return length;
}

/* ---- of programs ---- */

static const exts *params_of(const tn_program *p) { return p->plan ? p->plan->params : p->graph->params; }

int tn_program_n_dims(const tn_program *p) { return p && params_of(p) ? params_of(p)->n_dims : 0; }

tn_status tn_program_dim(const tn_program *p, int i, const char **out_name, int64_t *out_lo, int64_t *out_hi,
                         int64_t *out_multiple_of) {
    if (!p || i < 0 || i >= tn_program_n_dims(p)) return TN_ERR_INVAL;
    const ext_row *r = exts_row(params_of(p), exts_dim(params_of(p), i));
    if (out_name) *out_name = r->name;
    if (out_lo) *out_lo = r->lo;
    if (out_hi) *out_hi = r->hi;
    if (out_multiple_of) *out_multiple_of = r->divisor;
    return TN_OK;
}

/* ---- of sessions ---- */

static const ext_row *find(const exts *t, const char *name) {
    ext e;
    return t && name && ext_find_dim(t, name, strlen(name), &e) ? exts_row(t, e) : NULL;
}

tn_status tn_bind_dim(tn_session *s, const char *name, int64_t value) {
    if (!s) return TN_ERR_INVAL;
    const ext_row *r = find(session_params(s), name);
    if (!r) return session_fail(s, TN_ERR_INVAL, "tn_bind_dim: the program has no dim \"%s\"", name ? name : "(null)");
    int64_t values[TN_MAX_DIMS];
    memcpy(values, s->dims, sizeof *values * (size_t)session_params(s)->n_dims);
    values[r->number] = value < 0 ? INT64_MAX : value;
    return session_done(s, session_set_dims(s, values));
}

/* Dims that are axes of their own take their values; then every axis must be what it is for these. */
tn_status tn_bind_shape(tn_session *s, const char *name, tn_shape shape) {
    if (!s) return TN_ERR_INVAL;
    int slot = tn_session_slot(s, name);
    if (slot < 0)
        return session_fail(s, TN_ERR_INVAL, "tn_bind_shape: no input or output is named \"%s\"", name ? name : "(null)");
    const graph *g = s->p->plan ? s->p->plan->g : s->p->graph;
    const exts *t = session_params(s);
    const node *n = graph_get(g, s->p->io[slot].node);
    if (shape.rank != n->rank)
        return session_fail(s, TN_ERR_SHAPE, "tn_bind_shape: \"%s\" has rank %d; given is rank %d", name, n->rank, shape.rank);
    int64_t values[TN_MAX_DIMS], old[TN_MAX_DIMS];
    if (t) memcpy(values, s->dims, sizeof *values * (size_t)t->n_dims), memcpy(old, values, sizeof old);
    uint64_t own[(TN_MAX_DIMS + 63) / 64] = { 0 }; /* dims that an axis of this shape has given */
    for (int i = 0; i < n->rank; i++) {
        const ext_row *r = ext_is_lit(n->dims[i]) ? NULL : exts_row(t, n->dims[i]);
        if (ext_is_lit(n->dims[i]) && shape.dim[i] != n->dims[i])
            return session_fail(s, TN_ERR_SHAPE, "tn_bind_shape: axis %d of \"%s\" is %lld; given is %lld", i, name,
                                (long long)n->dims[i], (long long)shape.dim[i]);
        if (!r || r->op != EXT_DIM) continue;
        if ((own[r->number / 64] >> r->number % 64 & 1) && values[r->number] != shape.dim[i])
            return session_fail(s, TN_ERR_SHAPE, "tn_bind_shape: dim %s would be %lld and, by axis %d of \"%s\", %lld", r->name,
                                (long long)values[r->number], i, name, (long long)shape.dim[i]);
        values[r->number] = shape.dim[i] < 0 ? INT64_MAX : shape.dim[i];
        own[r->number / 64] |= UINT64_C(1) << r->number % 64;
    }
    if (!t) return TN_OK;
    tn_status code = session_set_dims(s, values);
    if (code) return session_done(s, code);
    const char *missing;
    for (int i = 0; i < n->rank && session_has_dims(s, &missing); i++) {
        int64_t now = ext_of(n->dims[i], s->rows);
        if (now == shape.dim[i]) continue;
        code = session_fail(s, TN_ERR_SHAPE, "tn_bind_shape: axis %d of \"%s\" is %lld for these dims; given is %lld", i, name,
                            (long long)now, (long long)shape.dim[i]);
        tn_status again = session_set_dims(s, old);
        return again ? again : code;
    }
    return TN_OK;
}

tn_status tn_session_shape(const tn_session *s, int slot, tn_shape *out) {
    if (!s || !out) return TN_ERR_INVAL;
    if (slot < 0 || slot >= s->p->n_io)
        return session_fail(s, TN_ERR_INVAL, "tn_session_shape: slot %d of %d", slot, s->p->n_io);
    const graph *g = s->p->plan ? s->p->plan->g : s->p->graph;
    const node *n = graph_get(g, s->p->io[slot].node);
    const char *missing;
    if (!session_has_dims(s, &missing))
        return session_fail(s, TN_ERR_INVAL, "tn_session_shape: dim %s has no value: call tn_bind_dim or tn_bind_shape first",
                            missing);
    *out = (tn_shape){ .rank = n->rank };
    for (int i = 0; i < n->rank; i++) out->dim[i] = ext_is_lit(n->dims[i]) ? n->dims[i] : ext_of(n->dims[i], s->rows);
    return TN_OK;
}
