/* save.c - a graph as a file of ONNX.
 *
 * In: a graph that checks. Out: a model of operator set 18: its nodes in the order in which the values were built, its
 * constants and states as initializers, in the file or beside it. A file is written under a temporary name and then takes its
 * place. */
#include "save.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { OPSET = 18, IR_VERSION = 8, EXTERNAL_BYTES = 1024, ALIGNMENT = 64 };

/* ---- what there is ---- */

static void read_values(saver *s) {
    s->n_values = tn_ir_n_values(s->g);
    s->values = ONNX_NEW(s->env, tn_ir_value, s->n_values + 1), s->details = ONNX_NEW(s->env, tn_ir_detail, s->n_values + 1);
    s->wanted = ONNX_NEW(s->env, bool, s->n_values + 1), s->names = ONNX_NEW(s->env, const char *, s->n_values + 2);
    s->projections = ONNX_NEW(s->env, const char **, s->n_values + 2);
    for (int i = 0; i < s->n_values; i++) {
        if (tn_ir_get_value(s->g, i, &s->values[i]) || tn_ir_get_detail(s->g, i, &s->details[i]))
            onnx_fail(s->env, TN_ERR_INVAL, "tn_onnx_save: value %d cannot be read", i);
        if (!tn_dtype_get_info(s->values[i].dtype)->arithmetic)
            save_refuse(s, i, "operator set 18 has no floats of 8 bits: cast it");
        if (s->details[i].body) s->wanted[i] = true; /* bodies as a whole */
    }
}

static bool is_kept(const saver *s, int output) { /* in the form that is asked for */
    const char *name;
    tn_tensor v, state;
    return !tn_ir_get_output(s->g, output, &name, &v, &state) && (name || (state.id && s->opts.training));
}
static void find_wanted(saver *s) {
    tn_tensor v;
    for (int i = 0; i < tn_ir_n_outputs(s->g); i++)
        if (is_kept(s, i) && !tn_ir_get_output(s->g, i, NULL, &v, NULL)) s->wanted[v.id - 1] = true;
    for (int i = s->n_values - 1; i >= 0; i--)
        for (int k = 0; s->wanted[i] && k < s->values[i].n_operands; k++) s->wanted[s->values[i].operands[k] - 1] = true;
}

/* '%' and more of them, until no name of the graph begins so. */
static void choose_prefix(saver *s) {
    char text[16] = "%";
    for (size_t n = 1; n < sizeof text - 1; n++) {
        bool taken = false;
        const char *name;
        for (int i = 0; i < s->n_values; i++) taken |= s->values[i].name && !strncmp(s->values[i].name, text, n);
        for (int i = 0; i < tn_ir_n_outputs(s->g); i++)
            taken |= !tn_ir_get_output(s->g, i, &name, NULL, NULL) && name && !strncmp(name, text, n);
        if (!taken) break;
        text[n] = '%';
    }
    s->prefix = onnx_format(s->env, "%s", text);
}

/* ---- values ---- */

static bool is_source(const saver *s, int i) { return !strcmp(s->values[i].op, "input") || !strcmp(s->values[i].op, "state"); }

static void save_inputs(saver *s, save_bytes *ports) {
    for (int i = 0; i < s->n_values; i++) {
        const tn_ir_value *v = &s->values[i];
        if (!is_source(s, i)) continue;
        bool state = !strcmp(v->op, "state");
        s->names[i + 1] = v->name;
        if (state && s->wanted[i]) save_constant(s, v->name, v->dtype, v->shape, s->details[i].data);
        bool assigned = false;
        tn_tensor to;
        for (int k = 0; state && s->wanted[i] && k < tn_ir_n_outputs(s->g); k++)
            assigned |= !tn_ir_get_output(s->g, k, NULL, NULL, &to) && to.id == v->tensor.id;
        if (state && !(assigned && s->opts.training)) continue;
        save_bytes port = save_port(s, v->name, onnx_elem_of(v->dtype), v->shape);
        save_data(s->env, ports, 11, port.at, port.n);
    }
}

static void save_output(saver *s, save_bytes *ports, const char *name, tn_tensor v) {
    save_emit(s, (save_node){ .op = "Identity", .in = { s->names[v.id] }, .out = &name, .n_out = 1 });
    save_bytes port = save_port(s, name, onnx_elem_of(tn_tensor_dtype(v)), tn_tensor_shape(v));
    save_data(s->env, ports, 12, port.at, port.n);
}
static void save_outputs(saver *s, save_bytes *ports) {
    for (int i = 0; i < tn_ir_n_outputs(s->g); i++) {
        const char *name;
        tn_tensor v, state;
        if (!is_kept(s, i) || tn_ir_get_output(s->g, i, &name, &v, &state)) continue;
        if (name) save_output(s, ports, name, v);
        if (state.id && s->opts.training) save_output(s, ports, onnx_format(s->env, "%s.next", tn_tensor_name(state)), v);
    }
}

/* ---- files ---- */

typedef struct save_file {
    onnx_env *env;
    FILE *f;
    const char *path, *temporary;
} save_file;
static void open_file(save_file *out, onnx_env *env, const char *path) {
    *out = (save_file){ .env = env, .path = path, .temporary = onnx_format(env, "%.2000s.%d.tmp", path, (int)getpid()) };
    out->f = fopen(out->temporary, "wb");
    if (!out->f) onnx_fail(env, TN_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}
static void drop_file(save_file *out) {
    if (!out->f) return;
    fclose(out->f);
    remove(out->temporary);
    out->f = NULL;
}
static void write_all(save_file *out, const void *data, size_t n) {
    if (n && fwrite(data, 1, n, out->f) != n) {
        int why = errno;
        drop_file(out);
        onnx_fail(out->env, TN_ERR_IO, "%s: cannot write: %s", out->path, strerror(why));
    }
}
static void close_file(save_file *out) {
    bool bad = fflush(out->f) || fsync(fileno(out->f));
    bad |= fclose(out->f) != 0;
    out->f = NULL;
    if (bad || rename(out->temporary, out->path)) {
        int why = errno;
        remove(out->temporary);
        onnx_fail(out->env, TN_ERR_IO, "%s: cannot write: %s", out->path, strerror(why));
    }
}

/* ---- the model ---- */

/* What stands before an array's bytes; where external, all of it. */
static save_bytes array_head(onnx_env *env, const save_array *a, const char *location, uint64_t offset) {
    save_bytes b = { 0 };
    for (int i = 0; i < a->shape.rank; i++) save_int(env, &b, 1, (uint64_t)a->shape.dim[i]);
    save_int(env, &b, 2, (uint64_t)a->elem);
    save_text(env, &b, 8, a->name);
    if (!location) {
        save_head(env, &b, 9, a->bytes);
        return b;
    }
    const char *pairs[][2] = { { "location", location },
                               { "offset", onnx_format(env, "%llu", (unsigned long long)offset) },
                               { "length", onnx_format(env, "%zu", a->bytes) } };
    for (int i = 0; i < ONNX_COUNT(pairs); i++) {
        save_bytes entry = { 0 };
        save_text(env, &entry, 1, pairs[i][0]), save_text(env, &entry, 2, pairs[i][1]);
        save_data(env, &b, 13, entry.at, entry.n);
    }
    save_int(env, &b, 14, 1);
    return b;
}

typedef struct save_args {
    onnx_env env;
    const tn_graph *g;
    const char *path;
    tn_onnx_save_opts opts;
    save_file model, data;
} save_args;

/* Heads of all arrays, and the arrays that go beside the model. Returns the bytes that the arrays take within the graph. */
static size_t place_arrays(save_args *a, saver *s, save_bytes *heads, bool external) {
    size_t total = 0;
    uint64_t offset = 0;
    static const char zeros[ALIGNMENT];
    const char *slash = strrchr(a->path, '/'), *location = onnx_format(&a->env, "%.1000s.data", slash ? slash + 1 : a->path);
    if (external) open_file(&a->data, &a->env, onnx_format(&a->env, "%.2000s.data", a->path));
    int i = 0;
    for (const save_array *k = s->arrays; k; k = k->next, i++) {
        bool out = external && k->bytes >= EXTERNAL_BYTES;
        heads[i] = array_head(&a->env, k, out ? location : NULL, offset);
        size_t size = heads[i].n + (out ? 0 : k->bytes);
        save_bytes tag = { 0 };
        save_head(&a->env, &tag, 5, size);
        total += tag.n + size;
        if (!out) continue;
        size_t gap = (size_t)(-k->bytes & (ALIGNMENT - 1));
        write_all(&a->data, k->data, k->bytes), write_all(&a->data, zeros, gap);
        offset += k->bytes + gap;
    }
    return total;
}

static void write_model(save_args *a, saver *s, const save_bytes *ports) {
    save_bytes head = { 0 }, set = { 0 }, name = { 0 };
    int n = 0;
    size_t whole = s->nodes->n + ports->n;
    for (const save_array *k = s->arrays; k; k = k->next) n++, whole += k->bytes + 1024;
    save_bytes *heads = ONNX_NEW(&a->env, save_bytes, n + 1);
    bool external = a->opts.external || whole > TN_ONNX_MAX_BYTES;
    save_text(&a->env, &name, 2, "graph");
    size_t bytes = s->nodes->n + name.n + ports->n + place_arrays(a, s, heads, external);
    if (external) close_file(&a->data);
    save_int(&a->env, &head, 1, IR_VERSION);
    save_text(&a->env, &head, 2, "tenon");
    save_int(&a->env, &set, 2, OPSET);
    save_data(&a->env, &head, 8, set.at, set.n);
    save_head(&a->env, &head, 7, bytes);
    open_file(&a->model, &a->env, a->path);
    write_all(&a->model, head.at, head.n);
    write_all(&a->model, s->nodes->at, s->nodes->n);
    write_all(&a->model, name.at, name.n);
    int i = 0;
    for (const save_array *k = s->arrays; k; k = k->next, i++) {
        bool out = external && k->bytes >= EXTERNAL_BYTES;
        save_bytes tag = { 0 };
        save_head(&a->env, &tag, 5, heads[i].n + (out ? 0 : k->bytes));
        write_all(&a->model, tag.at, tag.n), write_all(&a->model, heads[i].at, heads[i].n);
        if (!out) write_all(&a->model, k->data, k->bytes);
    }
    write_all(&a->model, ports->at, ports->n);
    close_file(&a->model);
}

static void save_all(void *arg) {
    save_args *a = arg;
    save_bytes nodes = { 0 }, ports = { 0 };
    saver s = { .env = &a->env, .g = a->g, .opts = a->opts, .nodes = &nodes, .main = &nodes };
    s.last = &s.arrays;
    read_values(&s);
    find_wanted(&s);
    choose_prefix(&s);
    save_inputs(&s, &ports);
    for (int i = 0; i < s.n_values; i++)
        if (s.wanted[i] && !s.details[i].body && !is_source(&s, i)) save_value(&s, i);
    save_outputs(&s, &ports);
    write_model(a, &s, &ports);
}

tn_status tn_onnx_save(const tn_graph *g, const char *path, const tn_onnx_save_opts *opts) {
    if (!g) return TN_ERR_INVAL;
    tn_ctx *ctx = tn_graph_ctx(g);
    if (!path) return tn_ctx_fail(ctx, TN_ERR_INVAL, "tn_onnx_save: the path is NULL");
    tn_status s = tn_graph_check(g);
    if (s) return s;
    save_args a = {
        .env = { .ctx = ctx, .file = path, .budget = SIZE_MAX / 4 }, .g = g, .path = path, .opts = TN_ONNX_SAVE_DEFAULTS
    };
    if (opts) memcpy(&a.opts, opts, opts->struct_size < sizeof a.opts ? opts->struct_size : sizeof a.opts);
    s = onnx_try(&a.env, save_all, &a);
    drop_file(&a.model), drop_file(&a.data);
    onnx_release(&a.env);
    return s;
}
