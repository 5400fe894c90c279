/* models.c - `tenon bench models FILE|DIR...`: ONNX models at batch 1 or as they say, beside other runtimes.
 *
 * Each model runs with random inputs. What its outputs must be comes from the same graph compiled op by op (mode graph, no
 * passes, no fusion); rivals get the file, the inputs and those outputs through a folder of their own. */
#include "suite.h"
#include "tenon/tenon_io.h"
#include "tenon/tenon_onnx.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_MODELS = 64 };
typedef struct models {
    char *path[MAX_MODELS];
    int n;
} models;

static bool ends_in(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void add_models(cli *c, models *m, const char *path, int level) {
    struct stat st;
    struct dirent **list;
    if (stat(path, &st)) cli_fail(c, "%s: there is no such file", path);
    if (!S_ISDIR(st.st_mode)) {
        if (level && !ends_in(path, ".onnx")) return;
        if (m->n == MAX_MODELS) cli_fail(c, "more than %d models", MAX_MODELS);
        m->path[m->n++] = cli_format("%s", path);
        return;
    }
    int n = level < 3 ? scandir(path, &list, NULL, by_name) : 0;
    if (n < 0) cli_fail(c, "%s: cannot read the folder", path);
    for (int i = 0; i < n; i++) {
        char *inner = cli_format("%s/%s", path, list[i]->d_name);
        if (list[i]->d_name[0] != '.') add_models(c, m, inner, level + 1);
        free(inner), free(list[i]);
    }
    if (level < 3) free(list);
}

/* The folder through which rivals get inputs and outputs: in_I.npy by the names in inputs.txt, out.npy. */
static char *folder_of(cli *c, int i) {
    char *dir = cli_format("%s/tenon-models-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir)) cli_fail(c, "%s: cannot make a folder (model %d)", dir, i);
    return dir;
}
static void remove_folder(char *dir) {
    struct dirent **list;
    int n = scandir(dir, &list, NULL, NULL);
    for (int i = 0; i < n; i++) {
        char *path = cli_format("%s/%s", dir, list[i]->d_name);
        if (list[i]->d_name[0] != '.') unlink(path);
        free(path), free(list[i]);
    }
    if (n >= 0) free(list);
    rmdir(dir);
    free(dir);
}

/* The first output, by the plainest program there is of the graph. */
static int expect_plain(cli *c, bench_case *k, tn_session *unused, expected *want) {
    const char *dir = k->ud;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_program *p;
    tn_session *s;
    tn_shape shape = TN_SCALAR;
    (void)unused;
    o.mode = TN_MODE_GRAPH, o.fusion = 0, o.no_passes = 1;
    cli_need(c, tn_compile(k->graph, &o, &p));
    cli_need(c, tn_session_new(p, &s));
    float *y = NULL;
    for (int i = 0; i < tn_program_n_slots(p); i++) {
        char kind;
        const char *name;
        tn_dtype t;
        tn_shape now;
        cli_need(c, tn_program_slot(p, i, &kind, &name, &t, &now));
        for (int j = 0; kind == 'i' && j < SUITE_MAX_PORTS && k->input[j]; j++)
            if (!strcmp(k->input[j], name)) cli_need(c, tn_session_bind(s, i, k->data[j]));
        if (kind != 'o' || y || t != TN_F32) continue;
        shape = now;
        y = buffer_new((size_t)shape_count(shape) * sizeof *y + 1);
        cli_need(c, tn_session_bind(s, i, y));
        for (int j = 0; j < tn_ir_n_outputs(k->graph); j++) { /* the graph's own text, which outlives this program */
            const char *own;
            cli_need(c, tn_ir_get_output(k->graph, j, &own, NULL, NULL));
            if (own && !strcmp(own, name)) want[0].name = own;
        }
    }
    if (!y) cli_fail(c, "%s: no output of f32", k->row.name);
    if (tn_session_run(s)) cli_fail(c, "%s: %s", k->row.name, tn_session_error(s));
    char *path = cli_format("%s/out.npy", dir);
    cli_need(c, tn_io_npy_save(c->ctx, path, TN_F32, shape, y));
    free(path);
    double top = 0, near = model_dtype(c) == TN_F32 ? 1e-3 : 3e-2; /* rounded to 16 bits again and again */
    want[0].n = shape_count(shape);
    want[0].want = case_array(want[0].n), want[0].bound = case_array(want[0].n);
    for (int64_t j = 0; j < want[0].n; j++) top = fmax(top, fabs(want[0].want[j] = (double)y[j]));
    for (int64_t j = 0; j < want[0].n; j++) want[0].bound[j] = near * top + 1e-30;
    buffer_free(y);
    tn_session_free(s), tn_program_free(p);
    return 1;
}

static void *random_input(tn_dtype t, tn_shape shape, uint64_t *seed) {
    int64_t n = shape_count(shape);
    float *x = case_floats(t == TN_I64 ? 2 * n : n, 1.7, seed);
    if (t == TN_F32) return x;
    if (t == TN_I64) {
        int64_t *w = (int64_t *)(void *)x;
        for (int64_t i = 0; i < n; i++) w[i] = i % 97; /* token numbers */
        return w;
    }
    int32_t *v = (int32_t *)(void *)x;
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)(fabs((double)x[i]) * 3);
    return v;
}

/* False: not for this benchmark, with the reason on stderr. */
static bool add_case(suite *s, bench_case *k, const char *path, char *dir, uint64_t *seed) {
    const char *slash = strrchr(path, '/');
    const char *name = suite_text(s, "%s", slash ? slash + 1 : path);
    tn_graph *g;
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_dtype t = model_dtype(s->c);
    o.plain_convolutions = t != TN_F32;
    if (!suite_wants(s, name)) return false;
    if (tn_onnx_load(cli_ctx(s->c), path, &o, &g)) {
        cli_note(s->c, "%s: %s", path, tn_ctx_error(s->c->ctx));
        return false;
    }
    if (t != TN_F32) cli_need(s->c, tn_graph_contract_in(g, t));
    *k = case_new(s, "models", name, NULL);
    tn_graph_free(k->graph);
    k->graph = g, k->mode = TN_MODE_COMPILED, k->expect = expect_plain, k->ud = dir;
    int n = 0;
    char *list = cli_format("%s/inputs.txt", dir);
    FILE *f = cli_create(s->c, list);
    for (int i = 0; i < tn_ir_n_values(g); i++) {
        tn_ir_value v;
        cli_need(s->c, tn_ir_get_value(g, i, &v));
        if (strcmp(v.op, "input")) continue;
        if (n == SUITE_MAX_PORTS || (v.dtype != TN_F32 && v.dtype != TN_I32 && v.dtype != TN_I64))
            cli_fail(s->c, "%s: inputs of other types than f32, i32 and i64", path);
        void *data = random_input(v.dtype, v.shape, seed);
        char *file = cli_format("%s/in_%d.npy", dir, n);
        cli_need(s->c, tn_io_npy_save(s->c->ctx, file, v.dtype, v.shape, data));
        if (!n && v.shape.rank) k->row.batch = v.shape.dim[0];
        case_input(k, suite_text(s, "%s", v.name), data);
        fprintf(f, "%s\n", v.name);
        free(file), n++;
    }
    cli_close(s->c, f, list);
    free(list);
    if (!strpbrk(path, " =\n")) k->rival = cli_format("model file=%s dir=%s", path, dir);
    return true;
}

int bench_models(cli *c) {
    models m = { .n = 0 };
    for (int i = 1; i < c->n_args; i++) add_models(c, &m, c->args[i], 0);
    if (!m.n) cli_usage(c, "bench models needs files or folders of .onnx");
    suite s = suite_begin(c, "models");
    uint64_t seed = s.seed;
    for (int i = 0; i < m.n; i++) {
        char *real = realpath(m.path[i], NULL), *dir = folder_of(c, i);
        bench_case k;
        if (real && add_case(&s, &k, real, dir, &seed)) suite_run(&s, &k, 1);
        remove_folder(dir);
        free(real), free(m.path[i]);
    }
    suite_report(&s);
    suite_end(&s);
    return CLI_OK;
}
