/* dims.c - sizes that a run gives, at import: arithmetic of handles (tn_dim), and nodes that compute with them.
 *
 * In: nodes whose operands are known but for such sizes, as shape-computing parts of models have them. Out: numbers and
 * handles, element by element, which is exact: what arithmetic of dims cannot say is left to the graph, where a run computes
 * it, and a handler that needs it at import refuses it. */
#include "import.h"

bool onnx_is_open(tn_shape s) {
    for (int i = 0; i < s.rank; i++)
        if (onnx_is_dim(s.dim[i])) return true;
    return false;
}

void onnx_dim_range(onnx_call *c, int64_t x, int64_t *out_lo, int64_t *out_hi) {
    *out_lo = *out_hi = x;
    if (onnx_is_dim(x) && tn_dim_range(c->im->g, x, out_lo, out_hi)) onnx_refuse_graph(c);
}

/* Of numbers, by ONNX's rules. */
static bool plain(char op, int64_t x, int64_t y, int64_t *v) {
    bool whole = y && !(x == INT64_MIN && y == -1), ok = true;
    switch (op) {
    case '+':
        ok = !__builtin_add_overflow(x, y, v);
        break;
    case '-':
        ok = !__builtin_sub_overflow(x, y, v);
        break;
    case '*':
        ok = !__builtin_mul_overflow(x, y, v);
        break;
    case '/':
        *v = whole ? x / y : 0;
        return whole && !onnx_is_dim(*v);
    case '%':
        *v = whole ? x % y : 0;
        if (*v && (*v < 0) != (y < 0)) *v += y;
        return whole;
    case '^':
        *v = y > 0 ? x / y + (x % y > 0) : 0;
        return y > 0;
    default:
        *v = (op == '<') == (x < y) ? x : y;
    }
    return ok && !onnx_is_dim(*v);
}

int64_t onnx_dim(onnx_call *c, char op, int64_t x, int64_t y) {
    tn_graph *g = c->im->g;
    int64_t v;
    if (!onnx_is_dim(x) && !onnx_is_dim(y)) {
        if (!plain(op, x, y, &v)) onnx_refuse(c, "its sizes overflow");
        return v;
    }
    v = op == '+'   ? tn_dim_add(g, x, y)
        : op == '-' ? x == y ? 0 : tn_dim_add(g, x, tn_dim_mul(g, y, -1))
        : op == '*' ? tn_dim_mul(g, x, y)
        : op == '/' ? tn_dim_floor_div(g, x, y)
        : op == '^' ? tn_dim_ceil_div(g, x, y)
        : op == '<' ? tn_dim_min(g, x, y)
                    : tn_dim_max(g, x, y);
    if (tn_graph_status(g)) onnx_refuse_graph(c);
    return v;
}
int64_t onnx_dim_product(onnx_call *c, const int64_t *dims, int n) {
    int64_t v = 1;
    for (int i = 0; i < n; i++) v = onnx_dim(c, '*', v, dims[i]);
    return v;
}

/* ---- operands and results ---- */

/* Element i of i64 or i32, which is known. */
static bool is_whole(int elem) { return elem == ELEM_I64 || elem == ELEM_I32; }
static int64_t element(const onnx_val *v, int64_t i) {
    int32_t narrow;
    int64_t wide;
    if (v->sizes) return v->sizes[i];
    if (v->elem == ELEM_I64)
        memcpy(&wide, (const char *)v->data + i * 8, 8);
    else
        memcpy(&narrow, (const char *)v->data + i * 4, 4), wide = narrow;
    return onnx_is_dim(wide) ? ONNX_LEAST : wide;
}

int64_t *onnx_sizes(onnx_call *c, int i, const char *what, int *out_n) {
    const onnx_val *v = onnx_in(c, i);
    int64_t *out = v->sizes ? ONNX_NEW(c->im->env, int64_t, v->n + 1) : onnx_known_ints(c, i, what, out_n);
    for (int64_t k = 0; k < v->n; k++) out[k] = v->sizes ? v->sizes[k] : out[k] < ONNX_LEAST ? ONNX_LEAST : out[k];
    *out_n = (int)v->n;
    return out;
}
const int64_t *onnx_sizes_of(onnx_call *c, const char *name, int i, int *out_n) {
    if (onnx_has(c, i) && !onnx_attr_ints(c, name, out_n)) return onnx_sizes(c, i, name, out_n);
    const int64_t *v = onnx_ints_of(c, name, i, out_n);
    if (!v) return NULL;
    int64_t *out = ONNX_NEW(c->im->env, int64_t, *out_n + 1);
    for (int k = 0; k < *out_n; k++) out[k] = v[k] < ONNX_LEAST ? ONNX_LEAST : v[k];
    return out;
}

void onnx_put_sizes(onnx_call *c, int k, int elem, tn_shape shape, const int64_t *v) {
    int64_t n = onnx_count_of(shape);
    bool any = false;
    for (int64_t i = 0; i < n; i++) any |= onnx_is_dim(v[i]);
    int32_t *narrow = !any && elem == ELEM_I32 ? ONNX_NEW(c->im->env, int32_t, n + 1) : NULL;
    for (int64_t i = 0; narrow && i < n; i++) narrow[i] = (int32_t)v[i];
    onnx_put_known(c, k, elem, shape, any ? NULL : narrow ? (const void *)narrow : v);
    if (any && k < c->n_out) c->out[k]->sizes = v;
}

/* ---- nodes that move elements ---- */

/* The evaluator moves numbers: a handle is one that no size is, and is exact in a double. */
#define TAG (INT64_C(1) << 52)

static bool take(onnx_call *c, bool (*fold)(onnx_call *c)) {
    onnx_call t = *c;
    bool all = !strcmp(c->row->name, "Concat"), last = !strcmp(c->row->name, "Where");
    int elem = onnx_elem(c, last ? 1 : 0);
    if (!is_whole(elem)) return false;
    t.in = ONNX_NEW(c->im->env, onnx_val *, c->n_in);
    for (int i = 0; i < c->n_in; i++) {
        const onnx_val *v = c->in[i];
        if (!v) continue;
        bool tagged = all || (i == 0) != last;
        if (tagged ? v->elem != elem : v->sizes != NULL) return false;
        t.in[i] = c->in[i];
        if (!tagged) continue;
        onnx_val *copy = t.in[i] = onnx_val_new(c->im, TN_ONNX_TENSOR, ELEM_I64);
        int64_t *tags = ONNX_NEW(c->im->env, int64_t, v->n + 1);
        for (int64_t k = 0; k < v->n; k++) {
            tags[k] = element(v, k);
            if (tags[k] >= TAG || (tags[k] <= -TAG && !onnx_is_dim(tags[k]))) return false;
            if (onnx_is_dim(tags[k])) tags[k] = tags[k] - INT64_MIN + TAG;
        }
        copy->shape = v->shape, copy->n = v->n, copy->data = tags;
    }
    if (!fold(&t)) return false;
    for (int k = 0; k < c->n_out; k++) {
        const onnx_val *v = c->out[k];
        if (!v) continue;
        int64_t *sizes = ONNX_NEW(c->im->env, int64_t, v->n + 1);
        for (int64_t i = 0; i < v->n; i++) {
            memcpy(&sizes[i], (const char *)v->data + i * 8, 8);
            if (sizes[i] >= TAG) sizes[i] = sizes[i] - TAG + INT64_MIN;
        }
        onnx_put_sizes(c, k, elem, v->shape, sizes);
    }
    return true;
}

/* ---- arithmetic ---- */

enum { COMPARES = 'A' }; /* codes from it on give bools */
static const struct {
    char name[15], op;
} ops[] = { { "Add", '+' },       { "Sum", '+' },
            { "Sub", '-' },       { "Mul", '*' },
            { "Div", '/' },       { "Mod", '%' },
            { "Min", '<' },       { "Max", '>' },
            { "Neg", '-' },       { "Equal", 'E' },
            { "Less", 'L' },      { "LessOrEqual", 'M' },
            { "Greater", 'G' },   { "GreaterOrEqual", 'H' },
            { "ReduceSum", '+' }, { "ReduceProd", '*' },
            { "ReduceMin", '<' }, { "ReduceMax", '>' } };

/* False: it cannot be said, or not for all values. */
static bool apply(onnx_call *c, char op, int64_t x, int64_t y, int64_t *v) {
    int64_t lo[3], hi[3];
    bool open = onnx_is_dim(x) || onnx_is_dim(y);
    if (op < COMPARES && !open) return plain(op, x, y, v);
    onnx_dim_range(c, x, &lo[0], &hi[0]), onnx_dim_range(c, y, &lo[1], &hi[1]);
    if ((op == '/' && lo[0] < 0) || ((op == '/' || op == '%') && lo[1] < 1)) return false;
    if (op < COMPARES) {
        *v = op == '%' ? onnx_dim(c, '-', x, onnx_dim(c, '*', onnx_dim(c, '/', x, y), y)) : onnx_dim(c, op, x, y);
        return true;
    }
    if (open) {
        onnx_dim_range(c, onnx_dim(c, '-', x, y), &lo[2], &hi[2]);
        x = lo[2], y = hi[2]; /* of the difference, from here on */
    } else {
        x = y = x < y ? -1 : x > y;
    }
    bool below = y<0, above = x> 0, same = x == 0 && y == 0, least = x >= 0, most = y <= 0;
    *v = op == 'E' ? same : op == 'L' ? below : op == 'M' ? most : op == 'G' ? above : least;
    return *v || (op == 'E' ? below || above : op == 'L' ? least : op == 'M' ? above : op == 'G' ? most : below);
}

/* Where element i of shape s lies in an operand that broadcasts to it. */
static int64_t place(tn_shape s, tn_shape from, int64_t i) {
    int64_t at = 0, step = 1;
    for (int k = 1; k <= s.rank; k++) {
        int64_t size = s.dim[s.rank - k], own = k <= from.rank ? from.dim[from.rank - k] : 1;
        if (own != 1) at += i % size * step;
        step *= own, i /= size;
    }
    return at;
}
static bool broadcast(tn_shape *s, tn_shape other) {
    tn_shape out = { .rank = s->rank > other.rank ? s->rank : other.rank };
    for (int k = 1; k <= out.rank; k++) {
        int64_t a = k <= s->rank ? s->dim[s->rank - k] : 1, b = k <= other.rank ? other.dim[other.rank - k] : 1;
        if (a != b && a != 1 && b != 1) return false;
        out.dim[out.rank - k] = a == 1 ? b : a;
    }
    *s = out;
    return onnx_count_of(out) <= TN_ONNX_MAX_FOLD;
}

static bool fits(onnx_call *c, int elem, int64_t v) {
    int64_t lo, hi;
    onnx_dim_range(c, v, &lo, &hi);
    return elem != ELEM_I32 || (lo >= INT32_MIN && hi <= INT32_MAX);
}

static bool reduce(onnx_call *c, char op) {
    const onnx_val *x = c->in[0];
    int64_t keep = onnx_attr_int(c, "keepdims", 1), v;
    int n;
    const int64_t *axes = onnx_ints_of(c, "axes", 1, &n);
    if (!is_whole(x->elem) || x->shape.rank != 1 || x->n < 1 || (axes && (n != 1 || axes[0] < -1 || axes[0] > 0))) return false;
    if (!axes && onnx_attr_int(c, "noop_with_empty_axes", 0)) return false;
    v = element(x, 0);
    for (int64_t i = 1; i < x->n; i++)
        if (!apply(c, op, v, element(x, i), &v)) return false;
    if (!fits(c, x->elem, v)) return false;
    int64_t *out = ONNX_NEW(c->im->env, int64_t, 1);
    *out = v;
    onnx_put_sizes(c, 0, x->elem, keep ? TN_DIMS(1) : TN_SCALAR, out);
    return true;
}

static bool elementwise(onnx_call *c, char op) {
    int elem = onnx_elem(c, 0);
    tn_shape s = onnx_shape(c, 0);
    bool negate = c->n_in == 1 && op == '-';
    if (!is_whole(elem)) return false;
    for (int i = 1; i < c->n_in; i++)
        if (onnx_elem(c, i) != elem || !broadcast(&s, onnx_shape(c, i))) return false;
    int64_t n = onnx_count_of(s), *out = ONNX_NEW(c->im->env, int64_t, n + 1);
    uint8_t *truth = ONNX_NEW(c->im->env, uint8_t, n + 1);
    for (int64_t i = 0; i < n; i++) {
        out[i] = negate ? 0 : element(c->in[0], place(s, onnx_shape(c, 0), i));
        for (int k = negate ? 0 : 1; k < c->n_in; k++)
            if (!apply(c, op, out[i], element(c->in[k], place(s, onnx_shape(c, k), i)), &out[i])) return false;
        if (!fits(c, elem, out[i])) return false;
        truth[i] = out[i] != 0;
    }
    if (op > COMPARES)
        onnx_put_known(c, 0, ELEM_BOOL, s, truth);
    else
        onnx_put_sizes(c, 0, elem, s, out);
    return true;
}

static bool cast(onnx_call *c) {
    const onnx_val *x = c->in[0];
    int64_t to = onnx_attr_need_int(c, "to");
    if (!is_whole((int)to) || !x->sizes) return false;
    for (int64_t i = 0; i < x->n; i++)
        if (!fits(c, (int)to, x->sizes[i])) return false;
    onnx_put_sizes(c, 0, (int)to, x->shape, x->sizes);
    return true;
}

bool onnx_fold_sizes(onnx_call *c, bool (*fold)(onnx_call *c)) {
    bool any = false;
    int64_t n = 0;
    for (int i = 0; i < c->n_in; i++) {
        const onnx_val *v = c->in[i];
        if (v && !v->data && !v->sizes) return false;
        any |= v && v->sizes, n += v ? v->n : 0;
    }
    if (!any || n > TN_ONNX_MAX_FOLD || c->row->domain) return false;
    if (c->row->flags & ROW_TAKE) return take(c, fold);
    if (!strcmp(c->row->name, "Cast")) return cast(c);
    for (int i = 0; i < ONNX_COUNT(ops); i++) {
        if (strcmp(c->row->name, ops[i].name)) continue;
        if (ops[i].name[0] == 'R' && ops[i].name[2] == 'd') return reduce(c, ops[i].op);
        if (c->node->n_attrs && (ops[i].op != '%' || onnx_attr_int(c, "fmod", 0))) return false;
        return elementwise(c, ops[i].op);
    }
    return false;
}
