/* Labels: random long
 * test_loop.c - every schedule step on the files of tests/loop/<step>/: structure, and values before and after.
 *
 * A file is directive lines, a kernel, and what becomes of it:
 *     # run: vectorize i1 16; unroll_jam i0 4    the steps
 *     kernel @k(..) scalar { .. }
 *     # expect                                   and a kernel, or
 *     # refused: a part of the reason            of the last step
 * The kernel that comes out must be the same code as the expected one, pass kernel_check and, evaluated on random memory,
 * compute what the first one does: bit for bit where all steps are exact. TENON_BLESS=1 rewrites the expected kernels; the
 * values are still compared. */
#include "eval/eval_kernel.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "support/support.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char *read_file(arena *a, const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = arena_alloc(a, *n + 1);
    if (fread(text, 1, *n, f) != *n) *n = 0;
    fclose(f);
    return text;
}

/* ---- memory ---- */

/* plain: the memory of the kernel with values as they lie; NULL: this is that kernel. */
static unsigned char **make_memory(const kernel *k, unsigned char **plain, arena *a, uint64_t seed) {
    unsigned char **base = ARENA_ARRAY(a, unsigned char *, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        rng r = rng_make(seed + (uint64_t)b);
        base[b] = arena_array(a, (size_t)x->elems + 64, dtype_size((tn_dtype)x->dtype));
        if (x->panels && plain) { /* the value in its other order */
            pbuf packed = { .dtype = x->dtype, .elems = x->elems, .panels = x->panels };
            pbuf_fill(&packed, plain[x->panels_of], base[b]);
            continue;
        }
        for (int64_t i = 0; i < x->elems; i++) {
            if (x->kind == KB_OUT || kbuf_is_local(x)) continue;
            if (dtype_is_float((tn_dtype)x->dtype))
                dtype_store((tn_dtype)x->dtype, base[b], i, rng_range(&r, -2, 2));
            else
                dtype_store_int((tn_dtype)x->dtype, base[b], i, rng_between(&r, x->dtype == TN_U8 ? 0 : -9, 9));
        }
    }
    return base;
}

/* What other sums may differ by. Results of 16 bits may be rounded the other way, and so may what nests hand over in them. */
static double tolerance(const kernel *k) {
    double least = 1e-4;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        if (!kbuf_is_local(x) && x->kind != KB_IN && x->dtype == TN_BF16) least = fmax(least, 0x1p-7);
        if (!kbuf_is_local(x) && x->kind != KB_IN && x->dtype == TN_F16) least = fmax(least, 0x1p-10);
        if (x->kind == KB_LOCAL && x->dtype == TN_BF16) least = fmax(least, 0x1p-5);
        if (x->kind == KB_LOCAL && x->dtype == TN_F16) least = fmax(least, 0x1p-8);
    }
    return least;
}

/* Returns what differs, or NULL. */
static const char *compare_literal(const kernel *x, const kernel *y, arena *a, uint64_t seed, bool exact) {
    unsigned char **one = make_memory(x, NULL, a, seed), **two = make_memory(y, one, a, seed);
    eval_kernel(x, one, a);
    eval_kernel(y, two, a);
    for (int b = 0; b < x->bufs.n; b++) {
        const kbuf *buf = &x->bufs.at[b];
        if (buf->kind != KB_OUT && buf->kind != KB_INOUT) continue;
        for (int64_t i = 0; i < buf->elems; i++) {
            double p = dtype_load((tn_dtype)buf->dtype, one[b], i), q = dtype_load((tn_dtype)buf->dtype, two[b], i);
            bool same = exact ? p == q || (isnan(p) && isnan(q)) : fabs(p - q) <= tolerance(x) * (1 + fabs(p));
            if (!same) return arena_printf(a, "b%d[%lld] is %.9g, and was %.9g", b, (long long)i, q, p);
        }
    }
    return NULL;
}

/* Kernels with sizes that are given at run time: for many values of the dims. */
static const char *compare_values(const kernel *x, const kernel *y, arena *a, uint64_t seed, bool exact) {
    enum { VALUES = 24, DIMS = 4 };
    int64_t dims[DIMS];
    if (!x->params) return compare_literal(x, y, a, seed, exact);
    rng r = rng_make(seed);
    for (int n = 0; n < VALUES; n++) {
        for (int i = 0; i < x->params->n_dims && i < DIMS; i++) {
            const ext_row *d = exts_row(x->params, exts_dim(x->params, i));
            dims[i] = d->lo + rng_below(&r, (d->hi - d->lo) / d->divisor + 1) * d->divisor;
        }
        const char *differs = compare_literal(kernel_at(x, dims, a), kernel_at(y, dims, a), a, seed, exact);
        if (differs) return arena_printf(a, "the first dim is %lld: %s", (long long)dims[0], differs);
    }
    return NULL;
}

/* ---- one file ---- */

typedef struct file {
    const char *path;
    bool refused; /* what it asked for */
} file;

static int n_applied, n_refused;

static const char *line_after(const char *text, const char *key, char *out, size_t size) {
    const char *at = strstr(text, key);
    if (!at) return NULL;
    at += strlen(key);
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    return at + strcspn(at, "\n");
}

static bool is_exact(const loop_step *s) {
    bool exact = step_get((step_op)s->op)->order == STEP_EXACT;
    for (int n = 0; n < s->n_nests; n++)
        for (int i = 0; i < s->nest[n].steps.n; i++) exact = exact && is_exact(&s->nest[n].steps.at[i]);
    return exact;
}

static void test_one(arena *a, void *ud) {
    const file *f = ud;
    size_t n;
    char *text = read_file(a, f->path, &n), run[512], reason[512] = "";
    if (!text) guard_fail(a->gd, TN_ERR_INVAL, "%s: cannot be read", f->path);
    const char *body = line_after(text, "# run: ", run, sizeof run), *want = strstr(text, "# expect\n");
    bool refused = line_after(text, "# refused: ", reason, sizeof reason) != NULL, exact = true, done = true;
    if (!body || (!want && !refused))
        guard_fail(a->gd, TN_ERR_INVAL, "%s: expected \"# run:\" and \"# expect\" or \"# refused:\"", f->path);
    const char *end = want ? want : strstr(text, "# refused: ");
    kernel *before = kernel_parse(a, body, (size_t)(end - body), f->path), *k = kernel_clone(before, a);
    str out, why;
    str_init(&out, a);
    str_init(&why, a);
    if (kernel_check(before, &out)) guard_fail(a->gd, TN_ERR_INVAL, "%s: the kernel is not sound: %s", f->path, out.s);
    schedule_list list;
    char *steps = arena_printf(a, "schedule @k { %s }", run);
    schedule_parse(a, steps, strlen(steps), f->path, &list);
    const schedule *s = &list.at.at[0];
    for (int i = 0; i < s->steps.n && done; i++) {
        kernel *was = kernel_clone(k, a);
        const loop_step *x = &s->steps.at[i];
        exact = exact && is_exact(x);
        done = step_apply(&k, x, &why);
        if (!done && !refused) guard_fail(a->gd, TN_ERR_INVAL, "%s: step %d is refused: %s", f->path, i + 1, why.s);
        if (!done && i + 1 < s->steps.n)
            guard_fail(a->gd, TN_ERR_INVAL, "%s: step %d, not the last, is refused: %s", f->path, i + 1, why.s);
        str p, q;
        str_init(&p, a);
        str_init(&q, a);
        kernel_print(was, &p);
        kernel_print(k, &q);
        if (!done && strcmp(p.s, q.s) != 0) guard_fail(a->gd, TN_ERR_INVAL, "%s: a refused step changed the kernel", f->path);
    }
    if (refused) {
        if (done) guard_fail(a->gd, TN_ERR_INVAL, "%s: the last step should be refused", f->path);
        if (!strstr(why.s, reason))
            guard_fail(a->gd, TN_ERR_INVAL, "%s: refused with \"%s\"; expected \"%s\"", f->path, why.s, reason);
        n_refused++;
        return;
    }
    if (kernel_check(k, &out)) guard_fail(a->gd, TN_ERR_INVAL, "%s: what comes out is not sound: %s", f->path, out.s);
    const char *differs = compare_values(before, k, a, (uint64_t)n, exact);
    if (differs) guard_fail(a->gd, TN_ERR_INVAL, "%s: %s", f->path, differs);
    str got;
    str_init(&got, a);
    kernel_print(k, &got);
    differs = compare_values(before, kernel_parse(a, got.s, got.n, f->path), a, (uint64_t)n, exact);
    if (differs)
        guard_fail(a->gd, TN_ERR_INVAL, "%s: read back from its text, the kernel computes something else: %s", f->path,
                   differs);
    if (getenv("TENON_BLESS")) {
        FILE *o = fopen(f->path, "w");
        if (!o) guard_fail(a->gd, TN_ERR_INVAL, "%s: cannot be written", f->path);
        fprintf(o, "%.*s# expect\n%s", (int)(end - text), text, got.s);
        fclose(o);
    } else {
        const char *expected = want + strlen("# expect\n");
        kernel *e = kernel_parse(a, expected, strlen(expected), f->path);
        str shown;
        str_init(&shown, a);
        kernel_print(e, &shown);
        if (strcmp(shown.s, got.s) != 0) guard_fail(a->gd, TN_ERR_INVAL, "%s: got\n%s", f->path, got.s);
    }
    n_applied++;
}

static int is_kernel_file(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 2 && strcmp(e->d_name + n - 2, ".k") == 0;
}

/* Every step has a folder with files that apply it and files in which it is refused. */
static void test_files(void **state) {
    (void)state;
    int failed = 0;
    for (int op = 1; op < STEP_COUNT; op++) {
        char folder[1024], path[2048];
        struct dirent **entry = NULL;
        snprintf(folder, sizeof folder, "%s/loop/%s", TESTS_DIR, step_get((step_op)op)->name);
        int n = scandir(folder, &entry, is_kernel_file, alphasort), applied = n_applied, refusals = n_refused;
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
            err e;
            if (with_arena(test_one, &(file){ .path = path }, &e) != TN_OK) {
                print_error("%s\n", e.text);
                failed++;
            }
            free(entry[i]);
        }
        free(entry);
        bool never = op == STEP_hoist || op == STEP_tile || op == STEP_multiply_add; /* nothing can be wrong with these */
        if (n_applied == applied || (n_refused == refusals && !never)) {
            print_error("%s: %d files apply the step and %d refuse it; expected one of each\n", folder, n_applied - applied,
                        n_refused - refusals);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
    print_message("count: %d files of schedule steps applied, %d refused\n", n_applied, n_refused);
}

/* ---- random schedules ---- */

static const char *random_step(const kernel *k, rng *r, arena *a);

/* Steps of each nest; few are sound in all of them, so most nests are tiled as they are. */
static const char *random_nests(const kernel *k, rng *r, arena *a) {
    str s;
    str_init(&s, a);
    str_add(&s, "nests {");
    for (int n = 0;; n++) {
        const kernel *nest = loop_nest(k, n);
        if (!nest) break;
        kernel *now = kernel_clone(nest, a);
        str why;
        str_init(&why, a);
        str_add(&s, " {");
        for (int i = 0; i < 4 && now->vars.n; i++) {
            const char *line = random_step(now, r, a);
            loop_step x = step_parse(a, line);
            if (x.op != STEP_tile && x.op != STEP_parallel && step_apply(&now, &x, &why)) str_addf(&s, " %s;", line);
        }
        str_add(&s, " tile }");
    }
    str_add(&s, " }");
    return s.s;
}

/* A step with arguments that may suit the kernel. */
static const char *random_step(const kernel *k, rng *r, arena *a) {
    static const int sizes[] = { 1, 2, 3, 4, 5, 8, 16 };
    bool blocks = !k->tiled && loop_has_blocks(k);
    int op = blocks && rng_chance(r, 0.5) ? STEP_nests : (int)rng_between(r, 1, STEP_COUNT - 1),
        size = sizes[rng_below(r, COUNT_OF(sizes))];
    const char *v = k->vars.at[rng_below(r, k->vars.n)].name, *u = k->vars.at[rng_below(r, k->vars.n)].name;
    int b = (int)rng_below(r, k->bufs.n);
    const char *name = step_get((step_op)op)->name;
    switch (op) {
    case STEP_reorder:
    case STEP_fuse_loops:
        return arena_printf(a, "%s %s %s", name, v, u);
    case STEP_split:
    case STEP_block_rows:
    case STEP_vectorize:
    case STEP_unroll_jam:
        return arena_printf(a, "%s %s %d", name, v, size);
    case STEP_accumulate:
        return arena_printf(a, "%s %s %d stride=%d", name, v, size, (int)rng_between(r, 30, 90));
    case STEP_packed_dot:
        return arena_printf(a, "%s %d", name, size);
    case STEP_pack:
        if (rng_chance(r, 0.3))
            return arena_printf(a, "%s b%d %s %d join=%d block=%d rows=%d%s", name, b, v, size, (int)rng_between(r, 1, 2),
                                (int)rng_between(r, 1, 4), rng_chance(r, 0.5) ? 0 : size, rng_chance(r, 0.3) ? " whole" : "");
        return arena_printf(a, "%s b%d %s %d tiles=%d outer=%d rows=%d%s%s%s%s", name, b, v, size, (int)rng_between(r, 1, 3),
                            (int)rng_below(r, 2), rng_chance(r, 0.5) ? 0 : size, rng_chance(r, 0.3) ? " whole" : "",
                            rng_chance(r, 0.3) ? " constant" : "", rng_chance(r, 0.3) ? " streams" : "",
                            rng_chance(r, 0.3) ? " ahead" : "");
    case STEP_nests:
        return blocks ? random_nests(k, r, a) : "nests { }";
    case STEP_parallel:
    case STEP_unroll:
        return arena_printf(a, "%s %s", name, v);
    case STEP_lay_out:
        return arena_printf(a, "%s b%d %s", name, b, v);
    case STEP_lay_out_table:
        return arena_printf(a, "%s b%d %d%s", name, b, size, rng_chance(r, 0.5) ? " words" : "");
    case STEP_prepack:
    case STEP_join_bytes:
    case STEP_prefetch_results:
        return arena_printf(a, "%s b%d", name, b);
    case STEP_prefetch_ahead:
    case STEP_nontemporal:
        return arena_printf(a, "%s b%d 64", name, b);
    case STEP_scan_rows:
    case STEP_bind_grid:
    case STEP_vectorize_nests:
    case STEP_coarsen:
    case STEP_pipeline:
    case STEP_take_turns:
        return arena_printf(a, "%s %d%s", name, size, op == STEP_take_turns && rng_chance(r, 0.5) ? " apart" : "");
    case STEP_bind_rows:
        return arena_printf(a, "%s %d cluster=%d prefetch=%d", name, size, 1 << rng_below(r, 3), (int)rng_below(r, 3));
    case STEP_transpose_tile:
        return arena_printf(a, "%s %s %s %d lanes=%d threads=%d", name, v, u, size, 1 << rng_below(r, 3), 8 * size);
    case STEP_online_softmax:
        return rng_chance(r, 0.3) ? arena_printf(a, "%s %d narrow", name, 32 << rng_below(r, 3))
                                  : arena_printf(a, "%s %d", name, size);
    case STEP_bind:
    case STEP_split_k:
        return arena_printf(a, "%s %s %d", name, v, 1 << rng_below(r, 4));
    case STEP_tensorize:
        return arena_printf(a, "%s %s %d %s %d%s group=%d", name, v, 32 << rng_below(r, 3), u, 64 << rng_below(r, 2),
                            rng_chance(r, 0.5) ? " staged" : "", 1 << rng_below(r, 2));
    case STEP_pack_shared:
        return arena_printf(a, "%s %s %d%s", name, v, 1 << rng_below(r, 6), rng_chance(r, 0.3) ? " bulk" : "");
    case STEP_bind_row_tiles:
        if (rng_chance(r, 0.3)) return arena_printf(a, "%s 64 32 4 matrix%s", name, rng_chance(r, 0.3) ? " skip_masked" : "");
        return arena_printf(a, "%s %d %d %d%s", name, 1 << rng_below(r, 6), 1 << rng_below(r, 4), 1 << rng_below(r, 4),
                            rng_chance(r, 0.3) ? " skip_masked" : "");
    case STEP_reduce_columns:
        return arena_printf(a, "%s %s %d %s %d lanes=%d unroll=%d%s", name, v, 1 << rng_below(r, 4), u, 1 << rng_below(r, 4),
                            1 << rng_below(r, 3), (int)rng_between(r, 1, 4), rng_chance(r, 0.2) ? " panels=0" : "");
    case STEP_scatter_private:
        return arena_printf(a, "%s %d %d warp=%d", name, size, (int)rng_between(r, 1, 9), 4 << rng_below(r, 3));
    case STEP_scatter_owned:
        return arena_printf(a, "%s %d %d warp=%d columns=%d lanes=%d", name, size, (int)rng_between(r, 1, 9),
                            4 << rng_below(r, 3), (int)rng_below(r, 20), 1 << rng_below(r, 3));
    case STEP_thread_columns:
        return arena_printf(a, "%s %d rows=%d split_k=%d", name, size, 1 << rng_below(r, 3), 1 << rng_below(r, 3));
    case STEP_cluster_columns:
        return arena_printf(a, "%s %d rows=%d blocks=%d split_k=%d lanes=%d", name, 2 << rng_below(r, 2),
                            (int)rng_between(r, 1, 3), 1 << rng_below(r, 2), 1 << rng_below(r, 3), 1 << rng_below(r, 2));
    case STEP_register_cache:
        return arena_printf(a, "%s %d packed=%d%s", name, size, 2 * size, rng_chance(r, 0.5) ? " shared" : "");
    default:
        return name;
    }
}

/* The i-th step of those that may make tiles of thread blocks: few schedules of random steps do. */
static const char *tile_step(const kernel *k, int i, rng *r, arena *a) {
    static const char *const names[] = { "unroll_jam", "unroll_jam", "bind", "bind", "split_k", "pack_shared" };
    kvar v = (kvar)(i % 2), sum = k->vars.n - 1;
    if (i == 6) return "tile";
    if (i > 6) return "pipeline 2";
    if (i == 4 && rng_chance(r, 0.5)) i = 5;
    return arena_printf(a, "%s %s %d", names[i], k->vars.at[i < 4 ? v : sum].name, 1 << rng_below(r, i == 4 ? 2 : 5));
}

typedef struct random_run {
    const char *path;
    uint64_t seed;
    int applied;
} random_run;

/* Whatever is not refused computes what the kernel did, and is sound. */
static void try_random(arena *a, void *ud) {
    random_run *x = ud;
    rng r = rng_make(x->seed);
    size_t n;
    char *text = read_file(a, x->path, &n);
    const char *body = strstr(text, "kernel @"), *end = strstr(body, "\n}\n") + 3;
    kernel *before = kernel_parse(a, body, (size_t)(end - body), x->path), *k = kernel_clone(before, a);
    bool exact = true;
    str why, done, problems;
    str_init(&why, a);
    str_init(&done, a);
    str_init(&problems, a);
    bool tiles = before->vars.n > 2 && rng_chance(&r, 0.2);
    for (int i = 0; i < 16 && !before->tiled; i++) {
        const char *line = tiles && i < 8 ? tile_step(before, i, &r, a) : i == 12 && !k->tiled ? "tile" : random_step(k, &r, a);
        loop_step s = step_parse(a, line);
        if (s.op == STEP_tile && i < 8 && !tiles) continue;
        if (!step_apply(&k, &s, &why)) continue;
        exact = exact && is_exact(&s);
        str_addf(&done, "%s; ", line);
        x->applied++;
    }
    if (kernel_check(k, &problems))
        guard_fail(a->gd, TN_ERR_INTERNAL, "%s, seed %llu: %s\n%s", x->path, (unsigned long long)x->seed, done.s, problems.s);
    const char *differs = compare_values(before, k, a, x->seed, exact);
    if (differs)
        guard_fail(a->gd, TN_ERR_INTERNAL, "%s, seed %llu: %s\n%s", x->path, (unsigned long long)x->seed, done.s, differs);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(2000, &first);
    int failed = 0, applied = 0, n_paths = 0;
    static char paths[1024][512];
    for (int op = 1; op < STEP_COUNT; op++) {
        char folder[400];
        struct dirent **entry = NULL;
        snprintf(folder, sizeof folder, "%s/loop/%s", TESTS_DIR, step_get((step_op)op)->name);
        int files = scandir(folder, &entry, is_kernel_file, alphasort);
        for (int i = 0; i < files; i++) {
            if (n_paths < (int)COUNT_OF(paths))
                snprintf(paths[n_paths++], sizeof paths[0], "%s/%.80s", folder, entry[i]->d_name);
            free(entry[i]);
        }
        free(entry);
    }
    assert_true(n_paths > 40);
    for (uint64_t seed = first; seed < first + n && failed < 5; seed++) {
        random_run x = { paths[seed % (uint64_t)n_paths], seed, 0 };
        err e;
        if (with_arena(try_random, &x, &e) != TN_OK) {
            print_error("%s, seed %llu: %s\n", x.path, (unsigned long long)seed, e.text);
            failed++;
        }
        applied += x.applied;
    }
    assert_int_equal(failed, 0);
    assert_true((uint64_t)applied > n);
    print_message("count: %llu random schedules of %d steps\n", (unsigned long long)n, applied);
}

/* A thread copies far more of an operand than it has loads under way at once: a file with that kernel would have a thousand
 * lines. */
static void copies_much(arena *a, void *ud) {
    static const char text[] =
        "kernel @k(b0 in f32[2048], b1 in f32[49152], b2 local f32[96], b3 out f32[384]) scalar {\n  var r0 = 4 row\n"
        "  var i1 = 96\n  var k2 = 512 reduce\n  var i3 = 96\n  loop r0 = 0 .. 4 step 1\n    loop i1 = 0 .. 96 step 1\n"
        "      %3 = acc add 0.0  f32\n      loop k2 = 0 .. 512 step 1\n        %5 = load b0[512*r0 + k2]  f32\n"
        "        %6 = load b1[96*k2 + i1]  f32\n        update %3 fma %5, %6  f32\n      end\n      store b2[i1], %3  f32\n    "
        "end\n"
        "    loop i3 = 0 .. 96 step 1\n      %12 = load b2[i3]  f32\n      %13 = abs %12  f32\n      store b3[96*r0 + i3], %13 "
        " f32\n"
        "    end\n  end\n}\n";
    (void)ud;
    kernel *before = kernel_parse(a, text, sizeof text - 1, "k"), *k = kernel_clone(before, a);
    str why, problems;
    str_init(&why, a), str_init(&problems, a);
    loop_step s = step_parse(a, "bind_row_tiles 4 2 2");
    if (!step_apply(&k, &s, &why)) guard_fail(a->gd, TN_ERR_INTERNAL, "%s", why.s);
    int loads = 0;
    for (int i = 1; i < k->ins.n; i++) loads += k->ins.at[i].op == K_LOAD && k->ins.at[i].buf == 1;
    if (kernel_check(k, &problems)) guard_fail(a->gd, TN_ERR_INTERNAL, "%s", problems.s);
    const char *differs = compare_values(before, k, a, 1, false);
    if (differs || loads <= 128) guard_fail(a->gd, TN_ERR_INTERNAL, "%d loads: %s", loads, differs ? differs : "too few");
}

static void test_many_copies(void **state) {
    (void)state;
    err e;
    if (with_arena(copies_much, NULL, &e) != TN_OK) fail_msg("%s", e.text);
}

/* What is no schedule is refused at its place. */
static void bad_text(arena *a, void *ud) {
    schedule_list list;
    schedule_parse(a, ud, strlen(ud), "t", &list);
}
static void test_bad_texts(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "schedule", "t:1:9: expected @" },
        { "schedule @k", "t:1:12: expected {" },
        { "schedule @k {", "t:1:14: expected }" },
        { "schedule @k { tile", "t:1:19: expected }" },
        { "plan @k {}", "t:1:1: expected schedule @kernel" },
        { "schedule @k { tyle }", "t:1:15: there is no step \"tyle\"; the steps are reorder" },
        { "schedule @k {\n  vectorize i }", "t:2:3: \"vectorize i\": expected vectorize loop n" },
        { "schedule @k { vectorize 8 i }", "t:1:15: \"vectorize 8 i\"" },
        { "schedule @k { hoist i }", "expected hoist and no argument" },
        { "schedule @k { pack b1 k 8 tails=2 }", "tails=2" },
        { "schedule @k { pack b1 k 8 whole tiles=2 tiles }", "expected pack buf loop n" },
        { "schedule @k { vectorize i 99999999999999999999 }", "t:1:27: a number beyond 64 bits" },
        { "schedule @k { vectorize i 8x }", "expected a number" },
        { "schedule @k { vectorize thisnameislongerthanany 8 }", "is longer than any name" },
        { "schedule @k { nests }", "t:1:21: expected { and the steps of each nest" },
        { "schedule @k { nests { tile } }", "t:1:23: expected {" },
        { "schedule @k { nests { { nests { } } } }", "nests in a nest" },
        { "schedule @k { nests { { tile }", "t:1:31: expected {" },
        { "schedule @k { tile { } }", "tile has no steps inside" },
        { "schedule @k { tile } schedule @k { tile }", "t:1:22: a second schedule for @k" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        err e;
        assert_int_equal(with_arena(bad_text, (void *)(uintptr_t)cases[i].text, &e), TN_ERR_PARSE);
        if (!strstr(e.text, cases[i].message)) fail_msg("\"%s\" gives \"%s\"", cases[i].text, e.text);
    }
}

/* What is printed parses back to the same text. */
ARENA_TEST(test_text) {
    static const char text[] = "schedule @k {\n"
                               "  reorder k4 k5 k3\n"
                               "  vectorize i1 16\n"
                               "  pack b1 k2 256 tiles=2 outer=0 whole constant\n"
                               "  tile\n"
                               "}\n"
                               "schedule @blocks {\n"
                               "  nests {\n"
                               "    { vectorize i1 16; tile }\n"
                               "    { tile }\n"
                               "  }\n"
                               "  multiply_add\n"
                               "}\n"
                               "schedule @other {\n"
                               "}\n";
    schedule_list list;
    str out;
    str_init(&out, a);
    schedule_parse(a, text, sizeof text - 1, "t", &list);
    for (int i = 0; i < list.at.n; i++) schedule_print(&list.at.at[i], &out);
    assert_string_equal(out.s, text);
    static const char dense[] =
        "# a comment\nschedule @k{reorder k4 k5 k3;vectorize i1 16 # lanes\npack b1 k2 256 tiles=2 outer=0 "
        "whole constant;;tile}schedule @blocks{nests{{vectorize i1 16;tile}{tile}}multiply_add}schedule @other{}";
    str again;
    str_init(&again, a);
    schedule_parse(a, dense, sizeof dense - 1, "t", &list);
    for (int i = 0; i < list.at.n; i++) schedule_print(&list.at.at[i], &again);
    assert_string_equal(again.s, text);
    assert_non_null(schedule_find(&list, "other"));
    assert_null(schedule_find(&list, "none"));
    assert_null(schedule_find(NULL, "none"));
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_files), cmocka_unit_test(test_random),
                                        cmocka_unit_test(test_many_copies), cmocka_unit_test(test_bad_texts),
                                        cmocka_unit_test(test_text) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
