/* test_pass.c - every graph pass on the files of tests/pass/<pass>/: structure and values before and after.
 *
 * A file is directive lines, a graph, then `; expect` and a graph, or `; expect-unchanged`:
 *     ; run: fold,dce       passes, each repeated until it changes nothing; `all` is the standard list
 *     ; exact               values must agree to the sign of zero, on inputs with NaN, infinities and zeros of both signs
 *     ; tolerance: 1e-6     relative to the largest value (default 1e-12: the evaluator computes in double)
 * The result must equal the expected graph up to renumbering and, always, evaluate to the same values as the input on random
 * inputs, in several sizes of symbolic dims. TENON_BLESS=1 rewrites the expectations; the values are still compared.
 *
 * Labels: long */
#include "eval/eval.h"
#include "grad/grad.h"
#include "pass/pass.h"
#include "support/sizes.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- random values ------------------------------------------------------------------------------------------------------- */

static uint64_t rand_next(uint64_t *s) {
    uint64_t z = *s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double rand_float(uint64_t *s, bool special) {
    static const double odd[] = { 0.0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 0.5 };
    uint64_t r = rand_next(s);
    if (special && r % 2) return odd[(r >> 8) % COUNT_OF(odd)];
    double x = (double)(rand_next(s) >> 11) * 0x1p-53 * 3 + 0.01;
    return r & 2 ? x : -x;
}

static int64_t rand_int(uint64_t *s, tn_dtype t, bool special) {
    uint64_t r = rand_next(s);
    if (special && r % 4 == 0) return r & 8 ? INT64_MAX : INT64_MIN; /* wrapped to the dtype by the store */
    return t == TN_BOOL ? (int64_t)(r >> 8 & 1) : t == TN_U8 ? (int64_t)((r >> 8) % 256) : (int64_t)((r >> 8) % 19) - 9;
}

static eval_value *rand_inputs(const graph *g, arena *a, uint64_t seed, bool special) {
    eval_value *in = ARENA_ARRAY(a, eval_value, g->inputs.n + 1);
    for (int k = 0; k < g->inputs.n; k++) {
        val v = g->inputs.at[k];
        tn_dtype t = (tn_dtype)graph_get(g, v)->dtype;
        int64_t n = graph_elems(g, v);
        char *data = arena_array(a, (size_t)n + 1, dtype_size(t));
        uint64_t s = hash_bytes(graph_get(g, v)->name, strlen(graph_get(g, v)->name), seed);
        for (int64_t i = 0; i < n; i++) {
            if (dtype_is_float(t))
                dtype_store(t, data, i, rand_float(&s, special));
            else
                dtype_store_int(t, data, i, rand_int(&s, t, special));
        }
        in[k] = eval_load(g, a, v, data);
    }
    return in;
}

/* ---- comparison of values ------------------------------------------------------------------------------------------------ */

typedef struct check {
    bool exact;
    double tolerance;
} check;

static bool same_float(double x, double y, double scale, const check *c) {
    if (isnan(x) || isnan(y)) return isnan(x) && isnan(y);
    if (c->exact) return x == y && signbit(x) == signbit(y);
    return x == y || fabs(x - y) <= c->tolerance * scale;
}

/* Values of all outputs of two graphs on the same inputs. Returns NULL or what differs. */
static const char *compare_values(const graph *x, const graph *y, arena *a, uint64_t seed, const check *c) {
    if (x->outputs.n != y->outputs.n || x->inputs.n != y->inputs.n) return "number of inputs or outputs";
    eval_value *in = rand_inputs(x, a, seed, c->exact);
    eval_value *before = eval_graph(x, a, in), *after = eval_graph(y, a, in);
    for (int k = 0; k < x->outputs.n; k++) {
        val v = x->outputs.at[k].v, w = y->outputs.at[k].v;
        if (graph_get(x, v)->dtype != graph_get(y, w)->dtype) return arena_printf(a, "dtype of output %d", k);
        int64_t n = graph_elems(x, v);
        if (n != graph_elems(y, w)) return arena_printf(a, "shape of output %d", k);
        double scale = 0;
        for (int64_t i = 0; i < n && before[v].f; i++)
            if (isfinite(before[v].f[i])) scale = fmax(scale, fabs(before[v].f[i]));
        for (int64_t i = 0; i < n; i++) {
            if (before[v].f && !same_float(before[v].f[i], after[w].f[i], scale, c))
                return arena_printf(a, "output %d, element %lld: %.17g before, %.17g after", k, (long long)i, before[v].f[i],
                                    after[w].f[i]);
            if (before[v].i && before[v].i[i] != after[w].i[i])
                return arena_printf(a, "output %d, element %lld: %lld before, %lld after", k, (long long)i,
                                    (long long)before[v].i[i], (long long)after[w].i[i]);
        }
    }
    return NULL;
}

/* ---- one file ------------------------------------------------------------------------------------------------------------ */

typedef struct test_file {
    const char *path;
    char *text;
    size_t n_text;
    char *expect; /* the line "; expect..." in text */
    char *run;
    bool unchanged;
    check check;
} test_file;

static char *read_text(arena *a, const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    if (!f) guard_fail(a->gd, TN_ERR_IO, "%s: cannot be read", path);
    str s;
    str_init(&s, a);
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) str_addn(&s, part, n);
    fclose(f);
    *out_n = s.n;
    return s.s;
}

static void read_directives(arena *a, test_file *t) {
    t->check.tolerance = 1e-12;
    for (char *line = t->text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, "; run: ", 7) == 0) t->run = arena_printf(a, "%.*s", (int)strcspn(line + 7, "\n"), line + 7);
        if (strncmp(line, "; exact\n", 8) == 0) t->check.exact = true;
        if (strncmp(line, "; tolerance: ", 13) == 0) t->check.tolerance = atof(line + 13);
        if (strncmp(line, "; expect", 8) != 0) continue;
        t->expect = line;
        t->unchanged = strncmp(line, "; expect-unchanged", 18) == 0;
        break;
    }
    if (!t->run) guard_fail(a->gd, TN_ERR_PARSE, "%s: no line '; run: pass,...'", t->path);
    if (!t->expect && !getenv("TENON_BLESS")) guard_fail(a->gd, TN_ERR_PARSE, "%s: no line '; expect'", t->path);
}

static void run_list(graph *g, arena *a, char *list) {
    char *rest = NULL;
    for (char *name = strtok_r(list, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        if (strcmp(name, "all") == 0) {
            pass_run_all(g, a, true);
            continue;
        }
        const pass_info *p = pass_find(name);
        if (!p) guard_fail(a->gd, TN_ERR_PARSE, "no pass named '%s'", name);
        for (int i = 0;; i++) {
            graph *before = graph_clone(g, a, false, NULL);
            const char *why = "";
            bool changed = pass_run(g, p, a, true);
            if (!changed && !graph_equal(before, g, a, &why))
                guard_fail(a->gd, TN_ERR_VERIFY, "%s hides a change: %s", name, why);
            if (!changed) break;
            if (i == 30) guard_fail(a->gd, TN_ERR_VERIFY, "%s does not settle", name);
        }
    }
}

static void bless(arena *a, const test_file *t, const graph *result, bool unchanged) {
    str s;
    str_init(&s, a);
    str_addn(&s, t->text, t->expect ? (size_t)(t->expect - t->text) : t->n_text);
    if (unchanged) {
        str_add(&s, "; expect-unchanged\n");
    } else {
        str_add(&s, "; expect\n");
        graph_print(result, &s);
    }
    FILE *f = fopen(t->path, "wb");
    if (!f || fwrite(s.s, 1, s.n, f) != s.n || fclose(f) != 0) guard_fail(a->gd, TN_ERR_IO, "%s: cannot be written", t->path);
}

static void test_one(arena *a, const char *path) {
    test_file t = { .path = path };
    t.text = read_text(a, path, &t.n_text);
    read_directives(a, &t);
    size_t n_input = t.expect ? (size_t)(t.expect - t.text) : t.n_text;
    graph *input = graph_parse(a, t.text, n_input, path);
    graph_compact(input);
    graph *g = graph_clone(input, a, false, NULL);
    run_list(g, a, t.run);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        const char *differs = compare_values(graph_sized(input, a, seed), graph_sized(g, a, seed), a, seed, &t.check);
        if (differs) guard_fail(a->gd, TN_ERR_VERIFY, "%s: values differ with seed %d: %s", path, (int)seed, differs);
    }
    const char *why = "";
    bool unchanged = graph_equal(input, g, a, &why);
    if (getenv("TENON_BLESS")) {
        bless(a, &t, g, unchanged);
        return;
    }
    if (t.unchanged && unchanged) return;
    if (!t.unchanged) {
        const char *line_end = strchr(t.expect, '\n');
        graph *want = graph_parse(a, line_end ? line_end : "", line_end ? strlen(line_end) : 0, path);
        graph_compact(want);
        if (graph_equal(want, g, a, &why)) return;
    }
    str text;
    str_init(&text, a);
    graph_print(g, &text);
    print_error("%s\n", text.s);
    guard_fail(a->gd, TN_ERR_VERIFY, "%s: %s; the result is above", path, why);
}

/* Runs body(a, arg) under a guard; false with a printed message when it jumped. */
static bool guarded(void (*body)(arena *, const char *), const char *arg) {
    guard gd;
    arena a;
    volatile bool good = false;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        body(&a, arg);
        good = true;
    } else {
        print_error("%s\n", gd.err.text);
    }
    arena_fini(&a);
    return good;
}

/* ---- folders ------------------------------------------------------------------------------------------------------------- */

static int is_tn_file(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 3 && strcmp(e->d_name + n - 3, ".tn") == 0;
}

static int test_folder(const char *name) {
    char folder[1024], path[2048];
    struct dirent **entry = NULL;
    int n_failed = 0;
    snprintf(folder, sizeof folder, "%s/pass/%s", TESTS_DIR, name);
    int n = scandir(folder, &entry, is_tn_file, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        n_failed += !guarded(test_one, path);
        free(entry[i]);
    }
    free(entry);
    if (n < 3) print_error("%s: %d files; expected 3 or more\n", folder, n);
    return n < 3 ? n_failed + 1 : n_failed;
}

static void test_files(void **state) {
    (void)state;
    int n_passes, n_failed = 0;
    const pass_info *p = pass_table(&n_passes);
    for (int i = 0; i < n_passes; i++) n_failed += test_folder(p[i].name);
    n_failed += test_folder("all");
    assert_int_equal(n_failed, 0);
}

/* Every file of src/pass is a pass with a row, or the machinery. */
static void test_mirror(void **state) {
    (void)state;
    DIR *d = opendir(TESTS_DIR "/../src/pass");
    assert_non_null(d);
    int n_files = 0, n_passes;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 3 || strcmp(e->d_name + n - 2, ".c") != 0 || !strcmp(e->d_name, "pass.c") || !strcmp(e->d_name, "rewrite.c"))
            continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(n - 2), e->d_name);
        if (!pass_find(name)) print_error("src/pass/%s has no row in passes.def\n", e->d_name);
        assert_non_null(pass_find(name));
        n_files++;
    }
    closedir(d);
    const pass_info *p = pass_table(&n_passes);
    assert_int_equal(n_files, n_passes);
    for (int i = 0; i < n_passes; i++) assert_true(*p[i].doc && *p[i].regions && pass_find(p[i].name) == &p[i]);
    assert_null(pass_find("no such pass"));
}

/* ---- what gradients leave behind ----------------------------------------------------------------------------------------- */

static int64_t largest_value(const graph *g) {
    int64_t most = 0;
    for (int v = 1; v < g->nodes.n; v++) {
        op_code op = graph_get(g, (val)v)->op;
        bool is_view = op == OP_window || op == OP_pad || op == OP_expand; /* never stored */
        if (!is_view && graph_elems(g, (val)v) > most) most = graph_elems(g, (val)v);
    }
    return most;
}

static int count_op(const graph *g, op_code op) {
    int n = 0;
    for (int v = 1; v < g->nodes.n; v++) n += graph_get(g, (val)v)->op == op;
    return n;
}

typedef struct conv_case {
    int64_t n, c, o, h, w, kh, kw, stride, dilation, pad;
} conv_case;

/* Convolution as the layers build it (pad, window, dot, permute), its loss and its gradients. */
static graph *conv_graph(arena *a, const conv_case *k) {
    graph *g = graph_make(a, "conv");
    val x = graph_add(
        g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 4, .dims = (int64_t[]){ k->n, k->c, k->h, k->w }, .name = "x" });
    val f = graph_add(
        g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 4, .dims = (int64_t[]){ k->o, k->c, k->kh, k->kw }, .name = "f" });
    val p = graph_pad(g, x, (int64_t[]){ 0, 0, k->pad, k->pad }, (int64_t[]){ 0, 0, k->pad, k->pad }, 0);
    window_axis w[2] = { { 2, k->kh, k->stride, k->dilation }, { 3, k->kw, k->stride, k->dilation } };
    val d = graph_dot(g, graph_window(g, p, w, 2), f, NULL, NULL, 0, (int64_t[]){ 1, 4, 5 }, (int64_t[]){ 1, 2, 3 }, 3);
    val y = graph_permute(g, d, (int64_t[]){ 0, 3, 1, 2 });
    val loss = graph_reduce(g, OP_sum, graph_unary(g, OP_tanh, y), 15);
    loss = graph_reshape(g, loss, 0, NULL);
    val grads[2];
    grad_build(g, loss, (val[]){ x, f }, 2, grads);
    graph_output(g, "loss", loss);
    graph_output(g, "dx", grads[0]);
    graph_output(g, "df", grads[1]);
    graph_compact(g);
    return g;
}

static void check_conv(arena *a, const char *arg) {
    const conv_case *k = (const conv_case *)(const void *)arg;
    graph *before = conv_graph(a, k), *g = graph_clone(before, a, false, NULL);
    pass_run_all(g, a, true);
    check c = { .tolerance = 1e-11 };
    const char *differs = compare_values(before, g, a, 7, &c);
    if (differs) guard_fail(a->gd, TN_ERR_VERIFY, "%s", differs);
    if (count_op(g, OP_fold) != 0) guard_fail(a->gd, TN_ERR_VERIFY, "a fold is left");
    /* stride 1: forward, by the weights, by the data: three contractions and nothing larger than the data or the result */
    int64_t room = k->n * (k->c > k->o ? k->c : k->o) * (k->h + 2 * k->pad) * (k->w + 2 * k->pad);
    if (k->stride == 1 && (count_op(g, OP_dot) != 3 || largest_value(g) > room))
        guard_fail(a->gd, TN_ERR_VERIFY, "%d dots, %lld elements where %lld suffice", count_op(g, OP_dot),
                   (long long)largest_value(g), (long long)room);
}

static void test_conv(void **state) {
    (void)state;
    static const conv_case cases[] = {
        { 2, 3, 4, 7, 6, 3, 3, 1, 1, 1 }, { 2, 3, 4, 7, 6, 3, 2, 1, 1, 0 }, { 1, 2, 3, 9, 8, 3, 3, 1, 2, 2 },
        { 2, 3, 5, 5, 4, 1, 1, 1, 1, 0 }, { 2, 1, 3, 6, 5, 1, 3, 1, 1, 1 }, { 1, 1, 1, 5, 5, 3, 3, 1, 1, 1 },
        { 2, 3, 4, 8, 7, 3, 3, 2, 1, 1 }, { 1, 2, 2, 9, 9, 2, 2, 2, 1, 0 }, { 1, 2, 2, 9, 9, 2, 2, 3, 2, 0 },
    };
    int n_failed = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        bool good = guarded(check_conv, (const char *)&cases[i]);
        if (!good) print_error("convolution %d\n", (int)i);
        n_failed += !good;
    }
    assert_int_equal(n_failed, 0);
}

/* ---- fold over sizes, strides, dilations --------------------------------------------------------------------------------- */

typedef struct fold_case {
    tn_dtype dtype;
    int64_t rows, h, k, stride, dilation;
} fold_case;

static void check_fold(arena *a, const char *arg) {
    const fold_case *k = (const fold_case *)(const void *)arg;
    int64_t positions = (k->h - (k->k - 1) * k->dilation - 1) / k->stride + 1;
    graph *before = graph_make(a, "fold");
    val x = graph_add(
        before,
        &(spec){
            .op = OP_input, .dtype = k->dtype, .rank = 4, .name = "x", .dims = (int64_t[]){ k->rows, positions, 2, k->k } });
    window_axis w = { 1, k->k, k->stride, k->dilation };
    graph_output(before, "y", graph_fold(before, x, &w, 1, (int64_t[]){ k->rows, k->h, 2 }));
    graph_compact(before);
    graph *g = graph_clone(before, a, false, NULL);
    pass_run_all(g, a, true);
    check c = { .tolerance = k->dtype == TN_F16 ? 2e-3 : 1e-12 };
    const char *differs = compare_values(before, g, a, 11, &c);
    if (differs) guard_fail(a->gd, TN_ERR_VERIFY, "%s", differs);
    if (count_op(g, OP_fold) != 0) guard_fail(a->gd, TN_ERR_VERIFY, "a fold is left");
}

static void test_fold(void **state) {
    (void)state;
    static const tn_dtype dtypes[] = { TN_F32, TN_I32, TN_F16, TN_U8 };
    int n_failed = 0, n_cases = 0;
    for (int64_t size = 1; size <= 20; size += size < 5 ? 1 : 7)
        for (int64_t stride = 1; stride <= 6; stride++)
            for (int64_t dilation = 1; dilation <= 3; dilation++) {
                int64_t h = (size - 1) * dilation + 1 + (n_cases % 5) * 2;
                fold_case k = { dtypes[n_cases % 4], n_cases % 7 == 6 ? 0 : 1 + n_cases % 2, h, size, stride, dilation };
                bool good = guarded(check_fold, (const char *)&k);
                if (!good)
                    print_error("fold of %lld by %lld, stride %lld, dilation %lld\n", (long long)h, (long long)size,
                                (long long)stride, (long long)dilation);
                n_failed += !good;
                n_cases++;
            }
    assert_true(n_cases > 100);
    assert_int_equal(n_failed, 0);
}

/* ---- deep graphs settle in few rounds ------------------------------------------------------------------------------------ */

enum { DEPTH = 600 };

/* Views and elementwise ops in turn, at the end a slice and a permute that have to travel all the way up. */
static val deep_step(graph *g, val x, val y, int i) {
    int64_t swap[2] = { 1, 0 }, flat = graph_elems(g, x);
    node n = *graph_get(g, x);
    switch (i % 6) {
    case 0:
        return graph_binary(g, OP_add, x, y);
    case 1:
        return graph_permute(g, graph_unary(g, OP_neg, graph_permute(g, x, swap)), swap);
    case 2:
        return graph_reshape(g, graph_unary(g, OP_abs, graph_reshape(g, x, 1, &flat)), n.rank, n.dims);
    case 3:
        return graph_binary(g, OP_max, x, graph_splat_like(g, x, -2));
    case 4:
        return graph_flip(g, graph_unary(g, OP_tanh, graph_flip(g, x, 1)), 1);
    default:
        return graph_slice(g, graph_pad(g, x, (int64_t[]){ 1, 2 }, (int64_t[]){ 0, 1 }, 1), (int64_t[]){ 1, 2 }, n.dims, NULL);
    }
}

static void check_deep(arena *a, const char *arg) {
    (void)arg;
    graph *before = graph_make(a, "deep");
    int64_t dims[2] = { 5, 7 };
    val x = graph_add(before, &(spec){ .op = OP_input, .dtype = TN_F64, .rank = 2, .dims = dims, .name = "x" });
    val y = graph_add(before, &(spec){ .op = OP_input, .dtype = TN_F64, .rank = 2, .dims = dims, .name = "y" });
    for (int i = 0; i < DEPTH; i++) x = deep_step(before, x, y, i);
    x = graph_slice(before, x, (int64_t[]){ 1, 2 }, (int64_t[]){ 2, 3 }, (int64_t[]){ 2, 1 });
    graph_output(before, "z", graph_permute(before, x, (int64_t[]){ 1, 0 }));
    graph_compact(before);
    graph *g = graph_clone(before, a, false, NULL);
    pass_run_all(g, a, true); /* jumps when the rounds do not suffice */
    check c = { .tolerance = 1e-12 };
    const char *differs = compare_values(before, g, a, 3, &c);
    if (differs) guard_fail(a->gd, TN_ERR_VERIFY, "%s", differs);
    int n_moves = 0;
    for (int v = 1; v < g->nodes.n; v++) n_moves += op_is_move(graph_get(g, (val)v)->op);
    /* x and y are cut once each and the result is permuted; all else was detour */
    if (n_moves > 4) guard_fail(a->gd, TN_ERR_VERIFY, "%d movement ops are left", n_moves);
}

static void test_deep(void **state) {
    (void)state;
    assert_true(guarded(check_deep, NULL));
}

/* ---- a value that is an operand very often ------------------------------------------------------------------------------- */

enum { MANY = 20000 };

/* concat(a, b) 20,000 times in one concat, and a half of it: what looks at each operand must not look at all of them each time.
 */
static void check_many(arena *a, const char *arg) {
    (void)arg;
    graph *before = graph_make(a, "many");
    int64_t dims[2] = { 2, 3 };
    val x = graph_add(before, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 2, .dims = dims, .name = "x" });
    val y = graph_add(before, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 2, .dims = dims, .name = "y" });
    val both = graph_concat(before, (val[]){ x, graph_unary(before, OP_exp, y) }, 2, 0);
    val *parts = ARENA_ARRAY(a, val, MANY);
    for (int i = 0; i < MANY; i++) parts[i] = both;
    val all = graph_concat(before, parts, MANY, 0);
    graph_output(before, "all", all);
    graph_output(before, "half", graph_slice(before, all, (int64_t[]){ 4, 0 }, (int64_t[]){ MANY / 2, 3 }, NULL));
    graph_compact(before);
    graph *g = graph_clone(before, a, false, NULL);
    pass_run_all(g, a, true);
    check c = { .exact = true };
    const char *differs = compare_values(before, g, a, 5, &c);
    if (differs) guard_fail(a->gd, TN_ERR_VERIFY, "%s", differs);
}

static void test_many(void **state) {
    (void)state;
    assert_true(guarded(check_many, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mirror), cmocka_unit_test(test_files), cmocka_unit_test(test_conv),
        cmocka_unit_test(test_fold),   cmocka_unit_test(test_deep),  cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
