/* open.c - the public objects: models that were opened, their inputs and outputs, and files of single arrays.
 *
 * In: paths and bytes. Out: objects that own an arena and mappings. */
#include "onnx.h"

#include <stdio.h>

/* ---- models ---- */

static void env_init(onnx_env *env, tn_ctx *ctx, const char *file, onnx_span bytes) {
    *env = (onnx_env){ .ctx = ctx, .file = file, .base = bytes.at };
    env->budget = TN_ONNX_MEMORY + (bytes.n > SIZE_MAX / 8 ? SIZE_MAX / 2 : 4 * bytes.n);
}

typedef struct open_args {
    tn_onnx_model *m;
    const char *path, *folder; /* path NULL: the bytes are there */
} open_args;

static void open_body(void *arg) {
    open_args *a = arg;
    tn_onnx_model *m = a->m;
    m->env.file = onnx_format(&m->env, "%.1024s", m->env.file);
    if (a->path) {
        onnx_map(&m->env, a->path, true, &m->map);
        m->bytes = (onnx_span){ m->map.bytes, m->map.size };
        const char *slash = strrchr(a->path, '/');
        a->folder = slash ? onnx_format(&m->env, "%.*s", (int)(slash - a->path + 1), a->path) : "";
    }
    if (m->bytes.n > TN_ONNX_MAX_BYTES)
        onnx_fail(&m->env, TN_ERR_UNSUPPORTED, "%s: %zu bytes, more than %d", m->env.file, m->bytes.n, TN_ONNX_MAX_BYTES);
    const char *file = m->env.file;
    onnx_env kept = m->env;
    env_init(&m->env, kept.ctx, file, m->bytes);
    m->env.chunks = kept.chunks, m->env.spare = kept.spare, m->env.taken = kept.taken, m->env.guard = kept.guard;
    m->folder = a->folder ? onnx_format(&m->env, "%s", a->folder) : NULL;
    onnx_read_model(m);
}

static tn_status open_model(tn_ctx *ctx, open_args *a, onnx_span bytes, const char *name, tn_onnx_model **out) {
    tn_onnx_model *m = tn_ctx_realloc(ctx, NULL, 0, sizeof *m);
    if (!m) return tn_ctx_fail(ctx, TN_ERR_NOMEM, "out of memory: a model");
    *m = (tn_onnx_model){ .bytes = bytes };
    env_init(&m->env, ctx, name, bytes);
    env_init(&m->work, ctx, name, bytes);
    a->m = m;
    tn_status s = onnx_try(&m->env, open_body, a);
    if (s)
        tn_onnx_model_free(m);
    else
        *out = m;
    return s;
}

tn_status tn_onnx_open(tn_ctx *ctx, const char *path, tn_onnx_model **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (!path || !out) return tn_ctx_fail(ctx, TN_ERR_INVAL, "tn_onnx_open: the path or the result is NULL");
    *out = NULL;
    return open_model(ctx, &(open_args){ .path = path }, (onnx_span){ NULL, 0 }, path, out);
}

tn_status tn_onnx_parse(tn_ctx *ctx, const void *bytes, size_t n, const char *name, const char *folder, tn_onnx_model **out) {
    if (!ctx) return TN_ERR_INVAL;
    if ((!bytes && n) || !name || !out) return tn_ctx_fail(ctx, TN_ERR_INVAL, "tn_onnx_parse: an argument is NULL");
    *out = NULL;
    return open_model(ctx, &(open_args){ .folder = folder }, (onnx_span){ bytes, n }, name, out);
}

void tn_onnx_model_free(tn_onnx_model *m) {
    if (!m) return;
    onnx_externals_free(m);
    onnx_unmap(&m->map);
    onnx_release(&m->work);
    tn_ctx *ctx = m->env.ctx;
    onnx_release(&m->env);
    (void)tn_ctx_realloc(ctx, m, sizeof *m, 0);
}

int tn_onnx_n_inputs(const tn_onnx_model *m) { return m ? m->n_inputs : 0; }
int tn_onnx_n_outputs(const tn_onnx_model *m) { return m ? m->graph.n_outputs : 0; }
tn_status tn_onnx_input(const tn_onnx_model *m, int i, tn_onnx_port *out) {
    if (!m || !out || i < 0 || i >= m->n_inputs) return TN_ERR_INVAL;
    *out = m->graph.inputs[m->input_at[i]];
    return TN_OK;
}
tn_status tn_onnx_output(const tn_onnx_model *m, int i, tn_onnx_port *out) {
    if (!m || !out || i < 0 || i >= m->graph.n_outputs) return TN_ERR_INVAL;
    *out = m->graph.outputs[i];
    return TN_OK;
}
int tn_onnx_n_nodes(const tn_onnx_model *m) { return m ? m->graph.n_nodes : 0; }
const char *tn_onnx_node_op(const tn_onnx_model *m, int i) {
    return m && i >= 0 && i < m->graph.n_nodes ? m->graph.nodes[i].op : NULL;
}
int tn_onnx_n_refused(const tn_onnx_model *m) { return m ? m->n_refused : 0; }
tn_status tn_onnx_refused(const tn_onnx_model *m, int i, tn_onnx_refusal *out) {
    if (!m || !out || i < 0 || i >= m->n_refused) return TN_ERR_INVAL;
    *out = m->refused[i];
    return TN_OK;
}
int tn_onnx_input_is_constant(const tn_onnx_model *m, int i) { return m && i >= 0 && i < m->n_inputs && m->input_constant[i]; }

/* ---- files of arrays ---- */

struct tn_onnx_arrays {
    onnx_env env;
    onnx_mapping map;
    tn_onnx_value *values;
    int n;
};
typedef struct arrays_args {
    tn_onnx_arrays *a;
    const char *path;
    tn_onnx_kind kind;
} arrays_args;

static void add_array(tn_onnx_arrays *a, onnx_span s) {
    onnx_tensor t;
    onnx_read_tensor(&a->env, s, &t);
    const void *data = onnx_tensor_data(&a->env, NULL, &t);
    bool texts = t.elem == ELEM_STRING;
    size_t bytes = (size_t)t.n * (texts ? sizeof(char *) : tn_dtype_size(onnx_elem_dtype(t.elem)));
    void *copy = onnx_new(&a->env, bytes + 1, 1); /* aligned */
    if (bytes) memcpy(copy, data, bytes);
    a->values[a->n++] = (tn_onnx_value){ t.name, texts ? TN_N_DTYPES : onnx_elem_dtype(t.elem), t.shape, copy };
}

static void arrays_body(void *arg) {
    arrays_args *in = arg;
    tn_onnx_arrays *a = in->a;
    onnx_map(&a->env, in->path, true, &a->map);
    onnx_span s = { a->map.bytes, a->map.size };
    a->env.base = s.at;
    a->env.budget = TN_ONNX_MEMORY + 9 * s.n;
    int counts[8];
    onnx_count(&a->env, s, counts, 8);
    if (in->kind == TN_ONNX_OPTIONAL_SEQUENCE) { /* the sequence in it, or nothing */
        onnx_span sequence = { NULL, 0 };
        for (onnx_field f; onnx_next(&a->env, &s, &f);)
            if (f.number == 5) sequence = onnx_bytes(&a->env, &f);
        s = sequence;
        onnx_count(&a->env, s, counts, 8);
    }
    a->values = ONNX_NEW(&a->env, tn_onnx_value, counts[3] + 1);
    if (in->kind == TN_ONNX_TENSOR) {
        add_array(a, s);
        return;
    }
    for (onnx_field f; onnx_next(&a->env, &s, &f);)
        if (f.number == 3) add_array(a, onnx_bytes(&a->env, &f));
}

tn_status tn_onnx_arrays_load(tn_ctx *ctx, const char *path, tn_onnx_kind kind, tn_onnx_arrays **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (!path || !out || kind == TN_ONNX_OTHER) return tn_ctx_fail(ctx, TN_ERR_INVAL, "tn_onnx_arrays_load: wrong arguments");
    *out = NULL;
    tn_onnx_arrays *a = tn_ctx_realloc(ctx, NULL, 0, sizeof *a);
    if (!a) return tn_ctx_fail(ctx, TN_ERR_NOMEM, "out of memory: a file of arrays");
    *a = (tn_onnx_arrays){ .n = 0 };
    env_init(&a->env, ctx, path, (onnx_span){ NULL, 0 });
    tn_status s = onnx_try(&a->env, arrays_body, &(arrays_args){ a, path, kind });
    if (s)
        tn_onnx_arrays_free(a);
    else
        *out = a;
    return s;
}
void tn_onnx_arrays_free(tn_onnx_arrays *a) {
    if (!a) return;
    tn_ctx *ctx = a->env.ctx;
    onnx_unmap(&a->map);
    onnx_release(&a->env);
    (void)tn_ctx_realloc(ctx, a, sizeof *a, 0);
}
int tn_onnx_arrays_count(const tn_onnx_arrays *a) { return a ? a->n : 0; }
tn_status tn_onnx_array(const tn_onnx_arrays *a, int i, tn_onnx_value *out) {
    if (!a || !out || i < 0 || i >= a->n) return TN_ERR_INVAL;
    *out = a->values[i];
    return TN_OK;
}
