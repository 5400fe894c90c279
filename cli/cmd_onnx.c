/* cmd_onnx.c - `tenon onnx-test`: runs folders of ONNX backend tests and compares with the outputs that they have.
 *
 * A folder has model.onnx and test_data_set_0, test_data_set_1 ... with input_0.pb, output_0.pb and so on. A case passes when
 * every output of every set agrees; it is refused when the model cannot be imported or compiled. */
#include "cli.h"
#include "tenon/tenon_onnx.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { CASE_PASSED, CASE_WRONG, CASE_REFUSED } case_result;
static const char *const result_words[] = { "passed", "wrong", "refused" };

typedef struct op_count {
    char *op;
    int n[3];
} op_count;
typedef struct suite_case {
    char *name, *reason;
    case_result result;
    bool immediate, constants; /* checked in immediate mode, too; some inputs are constants */
    double rtol, atol;         /* ONNX's own, or those of data.json */
} suite_case;
typedef struct suite_state {
    cli *c;
    suite_case *cases;
    op_count *ops;
    int n, cap, n_ops, n_by[3], share;
} suite_state;

/* ---- arrays of a data set ---- */

enum { MAX_VALUES = 512 };
typedef struct data_set {
    tn_onnx_value values[MAX_VALUES];
    tn_onnx_arrays *files[MAX_VALUES];
    void *bits[MAX_VALUES];
    int n, n_files, n_bits;
} data_set;

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void data_free(data_set *d) {
    for (int i = 0; i < d->n; i++) free((void *)(uintptr_t)d->values[i].name);
    for (int i = 0; i < d->n_files; i++) tn_onnx_arrays_free(d->files[i]);
    for (int i = 0; i < d->n_bits; i++) free(d->bits[i]);
    free(d);
}

/* Strings become the numbers by which the model holds them. */
static bool take_texts(data_set *d, tn_onnx_model *m, tn_onnx_value *v) {
    int64_t n = shape_count(v->shape), *numbers = d->bits[d->n_bits++] = cli_alloc((size_t)n * 8 + 1);
    for (int64_t i = 0; i < n; i++)
        if (tn_onnx_text_add(m, ((const char *const *)v->data)[i], &numbers[i])) return false;
    v->data = numbers;
    v->dtype = TN_I64;
    return true;
}

/* The arrays of file i under the names by which the graph knows them. NULL: none is missing; else what is wrong. */
static char *data_add(tn_onnx_model *m, tn_ctx *ctx, data_set *d, const char *path, const tn_onnx_port *p) {
    tn_onnx_arrays *a;
    if (tn_onnx_arrays_load(ctx, path, p->kind, &a)) return cli_format("%s", tn_ctx_error(ctx));
    d->files[d->n_files++] = a;
    int n = tn_onnx_arrays_count(a);
    if (n > MAX_VALUES - d->n) return cli_format("%s: too many arrays", path);
    for (int k = 0; k < n; k++) {
        tn_onnx_value *v = &d->values[d->n++];
        if (tn_onnx_array(a, k, v)) return cli_format("%s", tn_ctx_error(ctx));
        if (p->dtype == TN_BF16 && v->dtype == TN_U16) v->dtype = TN_BF16; /* ONNX's own files have bfloat16 as uint16 */
        if (v->dtype == TN_N_DTYPES && !take_texts(d, m, v)) return cli_format("%s", tn_ctx_error(ctx));
        v->name = p->kind == TN_ONNX_SEQUENCE || p->kind == TN_ONNX_OPTIONAL_SEQUENCE ? cli_format("%s[%d]", p->name, k)
                                                                                      : cli_format("%s", p->name);
    }
    return NULL;
}

static char *data_load(tn_ctx *ctx, tn_onnx_model *m, const char *folder, bool inputs, data_set **out) {
    data_set *d = *out = cli_alloc(sizeof *d);
    int n = inputs ? tn_onnx_n_inputs(m) : tn_onnx_n_outputs(m);
    char *wrong = NULL;
    for (int i = 0; i < n && i < MAX_VALUES && !wrong; i++) {
        tn_onnx_port p;
        char *path = cli_format("%s/%s_%d.pb", folder, inputs ? "input" : "output", i);
        if ((inputs ? tn_onnx_input(m, i, &p) : tn_onnx_output(m, i, &p)) == TN_OK && exists(path))
            wrong =
                p.kind == TN_ONNX_OTHER ? cli_format("%s: a type of several levels", p.name) : data_add(m, ctx, d, path, &p);
        free(path);
    }
    return wrong;
}

/* ---- comparing ---- */

static bool close_to(const suite_case *k, tn_dtype t, double got, double want) {
    if (isnan(want)) return isnan(got);
    if (got == want) return true;
    bool floats = tn_dtype_get_info(t)->kind == TN_KIND_FLOAT;
    double rtol = t == TN_BF16 && k->rtol < 0x1p-7 ? 0x1p-7 : k->rtol; /* of bf16 a step of the type, which is coarser */
    return floats && fabs(got - want) <= k->atol + rtol * fabs(want);
}

/* NULL: they agree. */
static char *compare(const suite_case *k, const tn_onnx_value *want, tn_dtype dtype, tn_shape shape, const void *got) {
    char *a = shape_text(dtype, shape), *b = shape_text(want->dtype, want->shape), *text = NULL;
    int64_t n = shape_count(shape);
    if (strcmp(a, b)) text = cli_format("output %s is %s, expected %s", want->name, a, b);
    size_t size = tn_dtype_size(dtype);
    for (int64_t i = 0; i < n && !text; i++) {
        const char *x = (const char *)got + (size_t)i * size, *y = (const char *)want->data + (size_t)i * size;
        if (memcmp(x, y, size) && (dtype == TN_I64 || !close_to(k, dtype, tn_ir_load(dtype, x, 0), tn_ir_load(dtype, y, 0))))
            text = cli_format("output %s[%lld] is %.9g, expected %.9g", want->name, (long long)i, tn_ir_load(dtype, x, 0),
                              tn_ir_load(dtype, y, 0));
    }
    free(a), free(b);
    return text;
}

static const tn_onnx_value *find_value(const data_set *d, const char *name) {
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->values[i].name, name)) return &d->values[i];
    return NULL;
}

/* Compiled: the program's outputs against the file's. */
static char *run_compiled(cli *c, tn_graph *g, const data_set *in, const data_set *want, const suite_case *k,
                          case_result *result) {
    tn_compile_opts o = cli_compile_opts(c);
    tn_program *p = NULL;
    tn_session *s = NULL;
    char *text = NULL;
    *result = CASE_REFUSED;
    if (tn_compile(g, &o, &p) || tn_session_new(p, &s)) {
        tn_program_free(p);
        return cli_format("%s", tn_ctx_error(c->ctx));
    }
    ports io = ports_new(c, p);
    int seen = 0;
    for (int i = 0; i < io.n && !text; i++) {
        const tn_onnx_value *v = io.kind[i] == 'i' ? find_value(in, io.name[i]) : NULL;
        if (io.kind[i] == 'i' && !v) text = cli_format("the test has no value of input %s", io.name[i]);
        if (v && io.value[i].bytes) memcpy(io.value[i].data, v->data, io.value[i].bytes);
    }
    ports_bind(c, s, &io);
    ports_poison(&io);
    if (!text && tn_session_run(s)) text = cli_format("%s", tn_session_error(s));
    if (!text) *result = CASE_WRONG;
    for (int i = 0; i < io.n && !text; i++) {
        const tn_onnx_value *v = io.kind[i] == 'o' ? find_value(want, io.name[i]) : NULL;
        if (v) seen++, text = compare(k, v, io.value[i].dtype, io.value[i].shape, io.value[i].data);
    }
    if (!text && seen != want->n) text = cli_format("%d of %d outputs were made", seen, want->n);
    if (!text) *result = CASE_PASSED;
    ports_free(&io);
    tn_session_free(s);
    tn_program_free(p);
    return text;
}

static char *read_immediate(cli *c, tn_graph *g, const data_set *want, const suite_case *k, case_result *result) {
    char *text = NULL;
    *result = CASE_WRONG;
    for (int i = 0; i < tn_ir_n_outputs(g) && !text; i++) {
        const char *name;
        tn_tensor x, state;
        cli_need(c, tn_ir_get_output(g, i, &name, &x, &state));
        const tn_onnx_value *v = name ? find_value(want, name) : NULL;
        void *data = cli_alloc(tn_tensor_bytes(x) + 1);
        if (v && !tn_tensor_read(x, data, tn_tensor_bytes(x)))
            text = compare(k, v, tn_tensor_dtype(x), tn_tensor_shape(x), data);
        free(data);
    }
    if (!text) *result = CASE_PASSED;
    return text;
}

/* ---- cases ---- */

static char *run_mode(suite_state *t, tn_onnx_model *m, const data_set *in, const data_set *want, bool immediate,
                      const suite_case *k, case_result *result) {
    tn_onnx_opts o = TN_ONNX_DEFAULTS;
    tn_graph *g;
    o.values = in->values, o.n_values = in->n, o.immediate = immediate;
    *result = CASE_REFUSED;
    if (tn_onnx_import(m, &o, &g)) return cli_format("%s", tn_ctx_error(t->c->ctx));
    char *text = immediate ? read_immediate(t->c, g, want, k, result) : run_compiled(t->c, g, in, want, k, result);
    tn_graph_free(g);
    return text;
}

static char *run_set(suite_state *t, tn_onnx_model *m, const char *folder, suite_case *k) {
    data_set *in, *want = NULL;
    k->result = CASE_REFUSED;
    char *text = data_load(t->c->ctx, m, folder, true, &in);
    if (!text) text = data_load(t->c->ctx, m, folder, false, &want);
    if (!text) text = run_mode(t, m, in, want, false, k, &k->result);
    for (int i = 0; i < tn_onnx_n_inputs(m); i++) k->constants |= tn_onnx_input_is_constant(m, i);
    if (!text && t->share && t->n % t->share == 0) {
        text = run_mode(t, m, in, want, true, k, &k->result);
        k->immediate = true;
        if (text) { /* what a graph says is not refused one op at a time */
            char *more = cli_format("immediate mode: %s", text);
            free(text);
            text = more;
        }
    }
    data_free(in);
    if (want) data_free(want);
    return text;
}

static void count_op(suite_state *t, const char *op, case_result r) {
    for (int i = 0; i < t->n_ops; i++)
        if (!strcmp(t->ops[i].op, op)) {
            t->ops[i].n[r]++;
            return;
        }
    t->ops = realloc(t->ops, sizeof *t->ops * ((size_t)t->n_ops + 1));
    if (!t->ops) cli_fail(t->c, "out of memory");
    t->ops[t->n_ops] = (op_count){ .op = cli_format("%s", op) };
    t->ops[t->n_ops++].n[r] = 1;
}
/* Every op once, however many nodes it has. */
static void count_ops(suite_state *t, const tn_onnx_model *m, case_result r) {
    for (int i = 0; i < tn_onnx_n_nodes(m); i++) {
        bool again = false;
        for (int k = 0; k < i && !again; k++) again = !strcmp(tn_onnx_node_op(m, i), tn_onnx_node_op(m, k));
        if (!again) count_op(t, tn_onnx_node_op(m, i), r);
    }
}

/* "rtol" and "atol" of data.json, which ONNX's own folders have where another tolerance is right. */
static void read_tolerance(const char *folder, suite_case *k) {
    char *path = cli_format("%s/data.json", folder), text[1024];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    const char *rtol = strstr(text, "\"rtol\":"), *atol_at = strstr(text, "\"atol\":");
    k->rtol = rtol ? strtod(rtol + 7, NULL) : 1e-3;
    k->atol = atol_at ? strtod(atol_at + 7, NULL) : 1e-7;
    free(path);
}

static void run_case(suite_state *t, const char *folder) {
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->cases = realloc(t->cases, sizeof *t->cases * (size_t)t->cap);
        if (!t->cases) cli_fail(t->c, "out of memory");
    }
    suite_case *k = &t->cases[t->n];
    const char *slash = strrchr(folder, '/');
    *k = (suite_case){ .name = cli_format("%s", slash ? slash + 1 : folder), .result = CASE_REFUSED };
    read_tolerance(folder, k);
    char *path = cli_format("%s/model.onnx", folder);
    tn_onnx_model *m = NULL;
    int sets = 0;
    if (tn_onnx_open(cli_ctx(t->c), path, &m)) k->reason = cli_format("%s", tn_ctx_error(t->c->ctx));
    for (; m && !k->reason; sets++) {
        char *set = cli_format("%s/test_data_set_%d", folder, sets);
        bool there = exists(set);
        if (there) k->reason = run_set(t, m, set, k);
        free(set);
        if (!there) break;
    }
    if (m && !k->reason && !sets) k->reason = cli_format("no test_data_set_0");
    count_ops(t, m, k->result);
    t->n_by[k->result]++;
    t->n++;
    tn_onnx_model_free(m);
    free(path);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_visible(const struct dirent *e) { return e->d_name[0] != '.'; }

/* A case, or a folder of folders, two levels deep. */
static void run_folder(suite_state *t, const char *folder, int level) {
    char *path = cli_format("%s/model.onnx", folder);
    struct dirent **list;
    if (exists(path)) {
        run_case(t, folder);
    } else if (level < 3) {
        int n = scandir(folder, &list, is_visible, by_name);
        if (n < 0 && !level) cli_fail(t->c, "%s: cannot read the folder", folder);
        for (int i = 0; i < n; i++) {
            char *inner = cli_format("%s/%s", folder, list[i]->d_name);
            struct stat st;
            if (!stat(inner, &st) && S_ISDIR(st.st_mode)) run_folder(t, inner, level + 1);
            free(inner);
            free(list[i]);
        }
        if (n >= 0) free(list);
    }
    free(path);
}

/* ---- the report ---- */

static int by_op(const void *a, const void *b) { return strcmp(((const op_count *)a)->op, ((const op_count *)b)->op); }

static void print_json(const suite_state *t) {
    json j = json_begin(stdout, "onnx-test");
    for (int r = 0; r < 3; r++) json_int(&j, result_words[r], t->n_by[r]);
    json_array(&j, "cases");
    for (int i = 0; i < t->n; i++) {
        json_line(&j, NULL);
        json_text(&j, "name", t->cases[i].name);
        json_text(&j, "result", result_words[t->cases[i].result]);
        json_text(&j, "reason", t->cases[i].reason);
        json_bool(&j, "constant_inputs", t->cases[i].constants);
        json_bool(&j, "immediate", t->cases[i].immediate);
        json_end(&j);
    }
    json_end(&j);
    json_object(&j, "ops");
    for (int i = 0; i < t->n_ops; i++) {
        json_line(&j, t->ops[i].op);
        for (int r = 0; r < 3; r++) json_int(&j, result_words[r], t->ops[i].n[r]);
        json_end(&j);
    }
    json_end(&j);
    json_finish(&j);
}

static void print_text(const suite_state *t) {
    for (int i = 0; i < t->n; i++) {
        if (t->cases[i].result == CASE_PASSED) continue;
        printf("%-8s %s: ", result_words[t->cases[i].result], t->cases[i].name);
        cli_show(stdout, t->cases[i].reason);
        putchar('\n');
    }
    printf("%-28s %8s %8s %8s\n", "op", "passed", "wrong", "refused");
    for (int i = 0; i < t->n_ops; i++)
        printf("%-28s %8d %8d %8d\n", t->ops[i].op, t->ops[i].n[0], t->ops[i].n[1], t->ops[i].n[2]);
    int constants = 0, immediate = 0;
    for (int i = 0; i < t->n; i++) {
        bool passed = t->cases[i].result == CASE_PASSED;
        constants += passed && t->cases[i].constants, immediate += passed && t->cases[i].immediate;
    }
    printf("%d cases: %d passed, %d wrong, %d refused; of those that passed %d have inputs as constants, %d ran in immediate "
           "mode, "
           "too\n",
           t->n, t->n_by[0], t->n_by[1], t->n_by[2], constants, immediate);
}

static int run(cli *c) {
    suite_state t = { .c = c, .share = (int)cli_int(c, "immediate", 8, 0, 1 << 20) };
    (void)cli_ctx(c);
    for (int i = 0; i < c->n_args; i++) run_folder(&t, c->args[i], 0);
    if (t.n_ops) qsort(t.ops, (size_t)t.n_ops, sizeof *t.ops, by_op);
    if (c->json)
        print_json(&t);
    else
        print_text(&t);
    for (int i = 0; i < t.n; i++) free(t.cases[i].name), free(t.cases[i].reason);
    for (int i = 0; i < t.n_ops; i++) free(t.ops[i].op);
    free(t.cases), free(t.ops);
    return t.n_by[CASE_WRONG] || !t.n ? CLI_FAILED : CLI_OK;
}

static const cli_option options[] = {
    { "immediate", 'I', "N", "check every N-th case in immediate mode, too (default 8; 0 = none)" },
    CLI_LEVEL_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_onnx_test = {
    "onnx-test",
    "DIR...",
    "run folders of ONNX backend tests: passed, wrong, refused",
    "A folder has model.onnx and test_data_set_N with input_K.pb and output_K.pb, or has such folders in it. Outputs are "
    "compared with\n"
    "rtol 1e-3 (bf16: 2^-7, a step of the type) and atol 1e-7, or those of the folder's data.json, integers and bools exactly. "
    "Inputs on whose values sizes depend "
    "are constants of the compiled "
    "graph.\n"
    "The exit code is 1 when an output is wrong.\n\n"
    "examples:\n"
    "  tenon onnx-test /usr/share/libonnx-testdata/data/node\n"
    "  tenon onnx-test --json test_add | python3 -m json.tool\n",
    1,
    -1,
    options,
    run,
};
