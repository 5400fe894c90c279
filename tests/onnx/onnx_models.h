/* onnx_models.h - small models from texts, imported, compiled and run.
 *
 * A node is "Op a b -> y z ; axis:i=1 ; mode:s=max ; sizes:l=1,2 ; scale:f=0.5 ; names:t=a,b"; the op of another domain is
 * "com.microsoft.Gelu". */
#ifndef TESTS_ONNX_ONNX_MODELS_H
#define TESTS_ONNX_ONNX_MODELS_H

#include "onnx_bytes.h"

typedef struct array {
    const char *name;
    int elem, rank;
    int64_t dim[6];
    const void *data;
    size_t bytes;
    bool weight, known; /* an initializer; an input that is a constant of the graph */
} array;

/* A body of a loop, by its name in the list of the test, which ends with no name: "body:g=name". */
typedef struct subgraph {
    const char *name, *in, *out, *nodes[8];
} subgraph;
static const subgraph *subgraphs;
static inline void put_subgraph(bytes *attr, const char *name);

static inline void put_attr_text(bytes *node, char *text) {
    bytes a = { .n = 0 };
    char *name = strtok(text, ":"), *kind = strtok(NULL, "="), *value = strtok(NULL, "");
    assert_non_null(name), assert_non_null(kind);
    if (!value) value = kind + strlen(kind);
    float f = (float)atof(value);
    char *rest = value, *item;
    put_text(&a, 1, name);
    switch (*kind) {
    case 'i':
        put_int(&a, 3, (uint64_t)atoll(value)), put_int(&a, 20, 2);
        break;
    case 'f':
        put_varint(&a, 2 << 3 | 5);
        memcpy(a.at + a.n, &f, 4), a.n += 4;
        put_int(&a, 20, 1);
        break;
    case 's':
        put_text(&a, 4, value), put_int(&a, 20, 3);
        break;
    case 'l':
        while ((item = strtok_r(rest, ",", &rest))) put_int(&a, 8, (uint64_t)atoll(item));
        put_int(&a, 20, 7);
        break;
    case 'v':
        while ((item = strtok_r(rest, ",", &rest))) {
            f = (float)atof(item);
            put_varint(&a, 7 << 3 | 5);
            memcpy(a.at + a.n, &f, 4), a.n += 4;
        }
        put_int(&a, 20, 6);
        break;
    case 'g':
        put_subgraph(&a, value), put_int(&a, 20, 5);
        break;
    default:
        while ((item = strtok_r(rest, ",", &rest))) put_text(&a, 9, item);
        put_int(&a, 20, 8);
    }
    put_message(node, 5, &a);
}

static inline void put_node_text(bytes *graph, const char *text) {
    bytes n = { .n = 0 };
    char copy[1024], *parts[32], *rest = copy, *word;
    int n_parts = 0;
    assert_true(strlen(text) < sizeof copy);
    strcpy(copy, text);
    for (char *p = strstr(rest, " ; "); p; rest = p + 3, p = strstr(rest, " ; ")) *p = 0, parts[n_parts++] = rest;
    parts[n_parts++] = rest;
    char *words = parts[0], *op = strtok_r(words, " ", &words), *dot = strrchr(op, '.');
    bool results = false;
    if (dot) *dot = 0, put_text(&n, 7, op), op = dot + 1;
    put_text(&n, 4, op);
    while ((word = strtok_r(words, " ", &words))) {
        if (!strcmp(word, "->"))
            results = true;
        else
            put_text(&n, results ? 2 : 1, strcmp(word, "_") ? word : "");
    }
    for (int i = 1; i < n_parts; i++) put_attr_text(&n, parts[i]);
    put_message(graph, 1, &n);
}

static inline void put_subgraph(bytes *attr, const char *name) {
    bytes *g = calloc(1, sizeof *g);
    const subgraph *s = subgraphs;
    char words[256], *rest = words, *word;
    while (s->name && strcmp(s->name, name)) s++;
    assert_non_null(s->name), assert_non_null(g);
    for (int k = 0; k < 8 && s->nodes[k]; k++) put_node_text(g, s->nodes[k]);
    for (int k = 0; k < 2; k++) {
        snprintf(words, sizeof words, "%s", k ? s->out : s->in), rest = words;
        while ((word = strtok_r(rest, " ", &rest))) put_port(g, k ? 12 : 11, word, F32, NULL, 0);
    }
    put_message(attr, 6, g);
    free(g);
}

/* A model whose output is y, of that type and any shape. */
static inline bytes model_of(const char *const *nodes, int n_nodes, const array *in, int n_in, int opset, const char *out,
                             int elem) {
    bytes g = { .n = 0 }, m, set = { .n = 0 };
    for (int i = 0; i < n_in; i++) {
        bytes t = tensor_message(in[i].name, in[i].elem, in[i].dim, in[i].rank, in[i].data, in[i].bytes);
        if (in[i].weight)
            put_message(&g, 5, &t);
        else
            put_port(&g, 11, in[i].name, in[i].elem, in[i].dim, in[i].rank);
    }
    for (int i = 0; i < n_nodes; i++) put_node_text(&g, nodes[i]);
    bytes type = { .n = 0 }, tensor = { .n = 0 }, port = { .n = 0 };
    put_int(&tensor, 1, (uint64_t)elem), put_message(&type, 1, &tensor);
    put_text(&port, 1, out), put_message(&port, 2, &type);
    put_message(&g, 12, &port);
    m = model_message(&g, opset);
    static const char *const domains[] = { "com.microsoft", "ai.onnx.ml" };
    for (int i = 0; i < 2; i++) {
        set.n = 0;
        put_text(&set, 1, domains[i]), put_int(&set, 2, i ? 4 : 1);
        put_message(&m, 8, &set);
    }
    return m;
}

/* Imports, compiles and runs it: the output's bytes in out. Returns how many elements it has. */
static inline int64_t run_model(const char *const *nodes, int n_nodes, const array *in, int n_in, int opset, const char *name,
                                int elem, tn_dtype held, void *out, size_t room) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    bytes b = model_of(nodes, n_nodes, in, n_in, opset, name, elem);
    tn_onnx_value values[16];
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_onnx_model *m;
    tn_graph *g;
    tn_program *p;
    tn_session *s;
    for (int i = 0; i < n_in; i++) {
        if (!in[i].known) continue;
        tn_shape shape = { .rank = in[i].rank };
        memcpy(shape.dim, in[i].dim, sizeof in[i].dim);
        values[o.n_values++] = (tn_onnx_value){ in[i].name, in[i].elem == F32 ? TN_F32 : TN_I64, shape, in[i].data };
    }
    o.values = o.n_values ? values : NULL;
    if (tn_onnx_parse(ctx, b.at, b.n, "model", NULL, &m)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_onnx_import(m, &o, &g)) fail_msg("%s", tn_ctx_error(ctx));
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(ctx));
    int64_t count = -1;
    for (int i = 0; i < tn_program_n_slots(p); i++) {
        char kind;
        const char *slot;
        tn_dtype t;
        tn_shape shape;
        assert_int_equal(tn_program_slot(p, i, &kind, &slot, &t, &shape), TN_OK);
        if (kind == 'o') {
            count = 1;
            for (int k = 0; k < shape.rank; k++) count *= shape.dim[k];
            assert_int_equal(t, held);
            assert_true((size_t)count * tn_dtype_size(t) <= room);
            memset(out, 0x5a, room);
            assert_int_equal(tn_session_bind(s, i, out), TN_OK);
        } else {
            const array *a = NULL;
            for (int k = 0; k < n_in; k++)
                if (!strcmp(in[k].name, slot)) a = &in[k];
            assert_non_null(a);
            assert_int_equal(tn_session_bind(s, i, (void *)(uintptr_t)a->data), TN_OK);
        }
    }
    if (tn_session_run(s)) fail_msg("%s", tn_session_error(s));
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_onnx_model_free(m), tn_ctx_free(ctx);
    return count;
}
#define NODES(...) (const char *const[]){ __VA_ARGS__ }, (int)(sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))
#define ARRAYS(...) (const array[]){ __VA_ARGS__ }, (int)(sizeof((const array[]){ __VA_ARGS__ }) / sizeof(array))

static inline void fill(uint64_t *seed, float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (float)(rnd_below(seed, 4001) - 2000) / 1000;
}
static inline void assert_near(const float *got, const double *want, int n, double tolerance, const char *what) {
    for (int i = 0; i < n; i++)
        if (!((double)got[i] - want[i] <= tolerance && want[i] - (double)got[i] <= tolerance))
            fail_msg("%s[%d] is %.9g, expected %.9g", what, i, (double)got[i], want[i]);
}

#endif
