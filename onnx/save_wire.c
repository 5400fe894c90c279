/* save_wire.c - protobuf out: fields appended to bytes, nodes, initializers.
 *
 * In: numbers, texts, arrays that outlive the call. Out: bytes in the arena of the saver. */
#include "save.h"

static uint8_t *room(onnx_env *env, save_bytes *b, size_t n) {
    if (n > b->cap - b->n) {
        size_t cap = b->cap ? 2 * b->cap : 256;
        while (cap < b->n + n) cap *= 2;
        uint8_t *more = onnx_new(env, cap, 1);
        if (b->n) memcpy(more, b->at, b->n);
        b->at = more, b->cap = cap;
    }
    b->n += n;
    return b->at + b->n - n;
}
static void varint(onnx_env *env, save_bytes *b, uint64_t v) {
    for (; v >= 128; v >>= 7) *room(env, b, 1) = (uint8_t)(v | 128);
    *room(env, b, 1) = (uint8_t)v;
}
void save_int(onnx_env *env, save_bytes *b, uint32_t field, uint64_t v) {
    varint(env, b, (uint64_t)field << 3 | WIRE_VARINT);
    varint(env, b, v);
}
void save_head(onnx_env *env, save_bytes *b, uint32_t field, size_t n) {
    varint(env, b, (uint64_t)field << 3 | WIRE_BYTES);
    varint(env, b, n);
}
void save_data(onnx_env *env, save_bytes *b, uint32_t field, const void *data, size_t n) {
    save_head(env, b, field, n);
    if (n) memcpy(room(env, b, n), data, n);
}
void save_text(onnx_env *env, save_bytes *b, uint32_t field, const char *s) { save_data(env, b, field, s, strlen(s)); }

static const char *dim_name(saver *s, int64_t dim) {
    size_t n = tn_dim_text(s->g, dim, NULL, 0);
    char *name = ONNX_NEW(s->env, char, n + 1);
    if (!n || tn_dim_text(s->g, dim, name, n + 1) != n)
        onnx_fail(s->env, TN_ERR_NOMEM, "tn_onnx_save: out of memory: the name of a dim");
    return name;
}
save_bytes save_port(saver *s, const char *name, int elem, tn_shape shape) {
    onnx_env *env = s->env;
    save_bytes out = { 0 }, dims = { 0 }, tensor = { 0 }, type = { 0 };
    for (int i = 0; i < shape.rank; i++) {
        save_bytes dim = { 0 };
        if (shape.dim[i] < 0)
            save_text(env, &dim, 2, dim_name(s, shape.dim[i]));
        else
            save_int(env, &dim, 1, (uint64_t)shape.dim[i]);
        save_data(env, &dims, 1, dim.at, dim.n);
    }
    save_int(env, &tensor, 1, (uint64_t)elem);
    save_data(env, &tensor, 2, dims.at, dims.n);
    save_data(env, &type, 1, tensor.at, tensor.n);
    save_text(env, &out, 1, name);
    save_data(env, &out, 2, type.at, type.n);
    return out;
}

const char *save_fresh(saver *s) { return onnx_format(s->env, "%s%d", s->prefix, ++s->fresh); }

static void save_attribute(saver *s, save_bytes *node, const save_attr *a) {
    save_bytes b = { 0 };
    save_text(s->env, &b, 1, a->name);
    if (a->text) {
        save_text(s->env, &b, 4, a->text);
    } else if (a->graph) {
        save_data(s->env, &b, 6, a->graph->at, a->graph->n);
    } else if (a->tensor) {
        save_data(s->env, &b, 5, a->tensor->at, a->tensor->n);
    } else if (a->list) {
        for (int i = 0; i < a->n; i++) save_int(s->env, &b, 8, (uint64_t)a->list[i]);
    } else {
        save_int(s->env, &b, 3, (uint64_t)a->i);
    }
    int type = a->text ? ATTR_STRING : a->graph ? ATTR_GRAPH : a->tensor ? ATTR_TENSOR : a->list ? ATTR_INTS : ATTR_INT;
    save_int(s->env, &b, 20, (uint64_t)type);
    save_data(s->env, node, 5, b.at, b.n);
}

const char *save_emit(saver *s, save_node n) {
    save_bytes b = { 0 };
    const char *own = n.out ? NULL : save_fresh(s);
    const char *const *out = n.out ? n.out : &own;
    for (int i = 0; i < ONNX_COUNT(n.in) && n.in[i]; i++) save_text(s->env, &b, 1, n.in[i]);
    for (int i = 0; i < n.n_more; i++) save_text(s->env, &b, 1, n.more[i]);
    for (int i = 0; i < (n.out ? n.n_out : 1); i++) save_text(s->env, &b, 2, out[i]);
    save_text(s->env, &b, 4, n.op);
    for (int i = 0; i < ONNX_COUNT(n.attr) && n.attr[i].name; i++) save_attribute(s, &b, &n.attr[i]);
    save_data(s->env, s->nodes, 1, b.at, b.n);
    return out[0];
}

/* ---- initializers ---- */

const char *save_constant(saver *s, const char *name, tn_dtype t, tn_shape shape, const void *data) {
    save_array *a = ONNX_NEW(s->env, save_array, 1);
    a->name = name ? name : save_fresh(s);
    a->elem = onnx_elem_of(t), a->shape = shape;
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dim[i];
    a->bytes = (size_t)n * tn_dtype_size(t);
    a->data = data ? data : onnx_new(s->env, a->bytes + 1, 1);
    *s->last = a;
    s->last = &a->next;
    return a->name;
}
const char *save_ints(saver *s, const int64_t *v, int n) {
    size_t count = n < 0 ? 1 : (size_t)n;
    int64_t *copy = ONNX_NEW(s->env, int64_t, count + 1);
    if (count) memcpy(copy, v, count * sizeof *v);
    return save_constant(s, NULL, TN_I64, n < 0 ? TN_SCALAR : TN_DIMS(n), copy);
}
/* A node of its own, not an initializer: those of floats are parameters to who imports them so. */
const char *save_element(saver *s, tn_dtype t, const void *data, int rank) {
    save_bytes b = { 0 };
    for (int i = 0; i < rank; i++) save_int(s->env, &b, 1, 1);
    save_int(s->env, &b, 2, (uint64_t)onnx_elem_of(t));
    save_data(s->env, &b, 9, data, tn_dtype_size(t));
    return SAVE(s, .op = "Constant", .attr = { { .name = "value", .tensor = &b } });
}
const char *save_number(saver *s, tn_dtype t, double v, int rank) {
    uint64_t data[2] = { 0 };
    tn_ir_store(t, data, 0, v);
    return save_element(s, t, data, rank);
}

/* ---- sizes of a run ---- */

bool save_is_literal(tn_shape shape) {
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] < 0) return false;
    return true;
}

static const char *size_of(saver *s, int64_t d);
static const char *sized(saver *s, const char *op, const char *x, const char *y) { return SAVE(s, .op = op, .in = { x, y }); }
static const char *axis_of(saver *s, int64_t d, const char *name) {
    for (int i = 0; i < s->n_values; i++) {
        const tn_ir_value *v = &s->values[i];
        for (int k = 0; k < v->shape.rank && !strcmp(v->op, "input"); k++)
            if (v->shape.dim[k] == d)
                return SAVE(s, .op = "Shape", .in = { v->name },
                            .attr = { { .name = "start", .i = k }, { .name = "end", .i = k + 1 } });
    }
    onnx_fail(s->env, TN_ERR_UNSUPPORTED, "tn_onnx_save: no axis of an input has the size %s", name);
}
static const char *computed(saver *s, const tn_ir_dim *d) {
    static const char *const ops[][2] = { { "add", "Add" }, { "mul", "Mul" }, { "floor_div", "Div" },
                                          { "min", "Min" }, { "max", "Max" }, { "ceil_div", "Div" } };
    const char *x = size_of(s, d->x), *y = size_of(s, d->y);
    if (!strcmp(d->op, "ceil_div")) x = sized(s, "Add", x, sized(s, "Sub", y, save_ints(s, (int64_t[]){ 1 }, 1)));
    int i = 0;
    while (strcmp(ops[i][0], d->op)) i++;
    return sized(s, ops[i][1], x, y);
}
/* i64[1] */
static const char *size_of(saver *s, int64_t d) {
    tn_ir_dim dim;
    if (d >= 0 || tn_ir_get_dim(s->g, d, &dim)) return save_ints(s, &d, 1);
    bool kept = s->nodes == s->main; /* a body's values are its own */
    for (const save_size *k = s->sizes; k; k = k->next)
        if (k->dim == d) return k->name;
    const char *name = !strcmp(dim.op, "dim") ? axis_of(s, d, dim.name) : computed(s, &dim);
    if (kept) {
        save_size *k = ONNX_NEW(s->env, save_size, 1);
        *k = (save_size){ s->sizes, d, name };
        s->sizes = k;
    }
    return name;
}
const char *save_sizes(saver *s, const int64_t *v, int n) {
    int count = n < 0 ? 1 : n;
    bool literal = true;
    tn_ir_dim d;
    for (int i = 0; i < count; i++) literal &= v[i] >= 0 || tn_ir_get_dim(s->g, v[i], &d) != TN_OK;
    if (literal) return save_ints(s, v, n);
    if (n < 0) return sized(s, "Squeeze", size_of(s, *v), save_ints(s, (int64_t[]){ 0 }, 1));
    const char **parts = ONNX_NEW(s->env, const char *, count + 1);
    for (int i = 0; i < count; i++) parts[i] = size_of(s, v[i]);
    return count == 1 ? parts[0]
                      : SAVE(s, .op = "Concat", .more = parts, .n_more = count, .attr = { { .name = "axis", .i = 0 } });
}
