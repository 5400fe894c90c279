/* op.c - tn_op: the builder of any op by its name, for importers and bindings of other languages.
 *
 * In: an op's name, operands, attributes by name, all unchecked. Out: what the op's own builder returns. Attributes are brought
 * into the order of the op's row below; the public builder of the op checks their values, so a mistake reads the same whichever
 * way it was made. */
#include "api/api.h"

enum { MAX_ATTRS = 4 };

/* Attributes: a word each, "name:type", with "?" when it may be left out. tn_ir_op.operands and .builder show both texts. */
typedef struct builder_row {
    op_code op;
    const char *operands, *attrs;
} builder_row;
static const builder_row rows[] = {
    { OP_cast, "x", "dtype:dtype" },
    { OP_bitcast, "x", "dtype:dtype" },
    { OP_sum, "x", "axes:ints? keep:bool?" },
    { OP_prod, "x", "axes:ints? keep:bool?" },
    { OP_reduce_max, "x", "axes:ints? keep:bool?" },
    { OP_reduce_min, "x", "axes:ints? keep:bool?" },
    { OP_argmax, "x", "axis:int keep:bool?" },
    { OP_argmin, "x", "axis:int keep:bool?" },
    { OP_reshape, "x", "shape:ints" },
    { OP_permute, "x", "perm:ints" },
    { OP_expand, "x", "shape:ints" },
    { OP_pad, "x", "before:ints after:ints value:number?" },
    { OP_slice, "x", "start:ints stop:ints step:ints?" },
    { OP_flip, "x", "axes:ints" },
    { OP_window, "x", "axes:ints size:ints stride:ints? dilation:ints?" },
    { OP_concat, "xs", "axis:int" },
    { OP_dot, "a b", "batch_a:ints? batch_b:ints? contract_a:ints contract_b:ints" },
    { OP_gather, "x index", "axis:int" },
    { OP_scatter_add, "base index updates", "axis:int" },
    { OP_scatter_set, "base index updates", "axis:int" },
    { OP_scatter_mul, "base index updates", "axis:int" },
    { OP_scatter_max, "base index updates", "axis:int" },
    { OP_scatter_min, "base index updates", "axis:int" },
    { OP_iota, "", "dtype:dtype shape:ints axis:int" },
    { OP_random, "counter", "stream:long shape:ints" },
};
static const builder_row elementwise_rows[] = { { OP_NIL, "x", "" }, { OP_NIL, "x y", "" }, { OP_NIL, "x y z", "" } };

static const builder_row *find_row(op_code op) {
    if (op_is_elementwise(op)) return &elementwise_rows[op_get(op)->arity - 1];
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].op == op) return &rows[i];
    return NULL;
}
const char *api_op_operands(op_code op) {
    const builder_row *r = find_row(op);
    return r ? r->operands : NULL;
}
const char *api_op_attrs(op_code op) {
    const builder_row *r = find_row(op);
    return r ? r->attrs : NULL;
}

/* ---- attributes in the order of the row ---- */

typedef struct attr_word {
    const char *name, *type;
    int n_name;
    bool optional, number, list;
} attr_word;
static bool next_word(const char **text, attr_word *out) {
    const char *s = *text + (**text == ' '), *colon = strchr(s, ':');
    if (!colon) return false;
    size_t n = strcspn(colon + 1, " ");
    *out = (attr_word){ s, colon + 1, (int)(colon - s), colon[n] == '?', colon[1] == 'n', !strncmp(colon + 1, "ints", 4) };
    *text = colon + 1 + n;
    return true;
}
static bool has_name(const attr_word *w, const tn_attr *a) {
    return a->name && strlen(a->name) == (size_t)w->n_name && !strncmp(a->name, w->name, (size_t)w->n_name);
}

/* What is wrong with an attribute's value, or NULL. */
static const char *check_value(const attr_word *w, const tn_attr *a) {
    if (w->number) return NULL;
    if (a->n < 0 || a->n > TN_MAX_RANK) return "has more entries than a shape, or fewer than none";
    if (a->n && !a->ints) return "is NULL";
    if (w->list) return NULL;
    if (a->n != 1) return "is one whole number, not a list";
    bool wide = w->type[0] == 'l';
    return !wide && (a->ints[0] < INT32_MIN || a->ints[0] > INT32_MAX) ? "is out of range" : NULL;
}

typedef struct op_args {
    op_code op;
    const tn_attr *attrs, *slot[MAX_ATTRS]; /* slot: of the row's words, NULL = left out */
    int n_attrs;
    const tn_tensor *in;
    int n_in;
} op_args;

/* Fills o->slot; false when something is wrong, which the graph has then. */
static bool take_attrs(tn_graph *g, const call *c, op_args *o, const char *words) {
    attr_word w;
    int used = 0;
    const char *text = words;
    for (int k = 0; next_word(&text, &w); k++) {
        for (int i = 0; i < o->n_attrs; i++) {
            if (!has_name(&w, &o->attrs[i])) continue;
            const char *wrong = o->slot[k] ? "is given twice" : check_value(&w, &o->attrs[i]);
            if (wrong) return api_fail(g, c, TN_ERR_INVAL, "attribute %.*s %s", w.n_name, w.name, wrong), false;
            o->slot[k] = &o->attrs[i];
            used++;
        }
        if (!o->slot[k] && !w.optional)
            return api_fail(g, c, TN_ERR_INVAL, "attribute %.*s is missing", w.n_name, w.name), false;
    }
    if (used == o->n_attrs) return true;
    return api_fail(g, c, TN_ERR_INVAL, "there is an attribute that the op does not have; it has: %s", *words ? words : "none"),
           false;
}

/* ---- from a row to a builder ---- */

static int one(const op_args *o, int k) { return o->slot[k] ? (int)o->slot[k]->ints[0] : 0; }
static const int64_t *ints_of(const op_args *o, int k) { return o->slot[k] ? o->slot[k]->ints : NULL; }
static int count(const op_args *o, int k) { return o->slot[k] ? o->slot[k]->n : 0; }
static tn_shape shape(const op_args *o, int k) {
    tn_shape s = { .rank = o->slot[k]->n };
    memcpy(s.dim, o->slot[k]->ints, sizeof(int64_t) * (size_t)s.rank);
    return s;
}
/* Lists that have to be as long as the first one of the op. */
static bool equal_counts(const op_args *o, int n_lists) {
    for (int k = 1; k < n_lists; k++)
        if (o->slot[k] && o->slot[k]->n != o->slot[0]->n) return false;
    return true;
}
typedef tn_tensor (*reduce_fn)(tn_tensor, const int64_t *, int, int);
static tn_tensor reduce(const op_args *o, reduce_fn build) {
    return build(o->in[0], ints_of(o, 0), o->slot[0] ? o->slot[0]->n : -1, one(o, 1));
}

static tn_tensor build_move(tn_graph *g, const call *c, const op_args *o) {
    tn_tensor x = o->in[0];
    int n = count(o, 0);
    if (o->op == OP_reshape) return tn_reshape(x, shape(o, 0));
    if (o->op == OP_permute) return tn_permute(x, ints_of(o, 0), n);
    if (o->op == OP_expand) return tn_expand(x, shape(o, 0));
    if (o->op == OP_flip) return tn_flip(x, ints_of(o, 0), n);
    if (!equal_counts(o, o->op == OP_window ? 4 : o->op == OP_slice ? 3 : 2))
        return api_fail(g, c, TN_ERR_INVAL, "the lists differ in length"), (tn_tensor){ g, 0 };
    if (o->op == OP_pad) return tn_pad(x, ints_of(o, 0), ints_of(o, 1), n, o->slot[2] ? o->slot[2]->number : 0);
    if (o->op == OP_slice) return tn_slice(x, ints_of(o, 0), ints_of(o, 1), ints_of(o, 2), n);
    return tn_window(x, ints_of(o, 0), ints_of(o, 1), ints_of(o, 2), ints_of(o, 3), n);
}
static tn_tensor build_dot(tn_graph *g, const call *c, const op_args *o) {
    if (count(o, 0) != count(o, 1) || count(o, 2) != count(o, 3))
        return api_fail(g, c, TN_ERR_INVAL, "the lists of axes of a and b differ in length"), (tn_tensor){ g, 0 };
    return tn_dot(o->in[0], o->in[1], ints_of(o, 0), ints_of(o, 1), count(o, 0), ints_of(o, 2), ints_of(o, 3), count(o, 2));
}
static tn_tensor build_row(tn_graph *g, const call *c, const op_args *o) {
    switch (o->op) {
    case OP_cast:
        return tn_cast(o->in[0], (tn_dtype)one(o, 0));
    case OP_bitcast:
        return tn_bitcast(o->in[0], (tn_dtype)one(o, 0));
    case OP_sum:
        return reduce(o, tn_sum);
    case OP_prod:
        return reduce(o, tn_prod);
    case OP_reduce_max:
        return reduce(o, tn_reduce_max);
    case OP_reduce_min:
        return reduce(o, tn_reduce_min);
    case OP_argmax:
        return tn_argmax(o->in[0], one(o, 0), one(o, 1));
    case OP_argmin:
        return tn_argmin(o->in[0], one(o, 0), one(o, 1));
    case OP_concat:
        return tn_concat(o->in, o->n_in, one(o, 0));
    case OP_dot:
        return build_dot(g, c, o);
    case OP_gather:
        return tn_gather(o->in[0], o->in[1], one(o, 0));
    case OP_scatter_add:
        return tn_scatter_add(o->in[0], o->in[1], o->in[2], one(o, 0));
    case OP_scatter_set:
        return tn_scatter_set(o->in[0], o->in[1], o->in[2], one(o, 0));
    case OP_scatter_mul:
        return tn_scatter(o->in[0], o->in[1], o->in[2], one(o, 0), TN_SCATTER_MUL);
    case OP_scatter_max:
        return tn_scatter(o->in[0], o->in[1], o->in[2], one(o, 0), TN_SCATTER_MAX);
    case OP_scatter_min:
        return tn_scatter(o->in[0], o->in[1], o->in[2], one(o, 0), TN_SCATTER_MIN);
    case OP_iota:
        return tn_iota(g, (tn_dtype)one(o, 0), shape(o, 1), one(o, 2));
    case OP_random:
        return tn_random_uniform(o->in[0], o->slot[0]->ints[0], shape(o, 1));
    default:
        return op_get(o->op)->cls == CL_MOVE ? build_move(g, c, o) : api_elementwise(o->op, o->in, o->n_in);
    }
}

tn_tensor tn_op(tn_graph *g, const char *name, const tn_tensor *inputs, int n_inputs, const tn_attr *attrs, int n_attrs) {
    tn_tensor poison = { g, 0 };
    if (!g) return poison;
    call c = { .name = "tn_op", .in = inputs, .n_in = inputs && n_inputs > 0 ? n_inputs : 0 };
    op_code op = name ? op_find(name) : OP_NIL;
    const builder_row *row = find_row(op);
    int arity = op_get(op)->arity;
    if (!op) return api_fail(g, &c, TN_ERR_INVAL, "there is no op \"%.64s\"", name ? name : "(null)"), poison;
    if (!row)
        return api_fail(g, &c, TN_ERR_UNSUPPORTED, "%s is not built by its name: it has a builder of its own, or none", name),
               poison;
    if (n_inputs < 0 || (n_inputs && !inputs) || (arity < 0 ? n_inputs < 1 : n_inputs != arity))
        return api_fail(g, &c, TN_ERR_INVAL, "%s takes %s, and %d operands are given", name,
                        *row->operands ? row->operands : "none", n_inputs),
               poison;
    if (n_attrs < 0 || (n_attrs && !attrs))
        return api_fail(g, &c, TN_ERR_INVAL, "attrs is NULL, or there are %d", n_attrs), poison;
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i].graph != g) return api_fail(g, &c, TN_ERR_INVAL, "operand %d is not of this graph", i + 1), poison;
    op_args o = { .op = op, .attrs = attrs, .n_attrs = n_attrs, .in = inputs, .n_in = n_inputs };
    return take_attrs(g, &c, &o, row->attrs) ? build_row(g, &c, &o) : poison;
}
