/* test_choices.c - however kernels are cut, the bits are the same: every candidate that tuning would measure, candidates of
 * candidates, and choices of random numbers, most of which fit nothing; contractions, convolutions with gradients, maps and
 * reductions, in one and two threads. Planted choices are really used.
 *
 * Labels: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/drive.h"
#include "kopt/kopt.h"
#include "rt/tuning.h"
#include "support/support.h"
#include "tenon/tenon_nn.h"

enum { MOST = 64, MOST_KERNELS = 64, MOST_SLOTS = 16 };

typedef struct trial {
    tn_ctx *ctx;
    tn_graph *g;
    tn_compile_opts o;
    rng r;
    void *in[MOST_SLOTS], *want[MOST_SLOTS], *got[MOST_SLOTS];
    int runs;
} trial;

static void plant(tn_ctx *ctx, const tuning_entry *e, int n) {
    tuning *t;
    device *first; /* the context's database is read with the first device, and would take the place of e */
    err why;
    assert_int_equal(ctx_device(ctx, "cpu", 1, &first, &why), TN_OK);
    assert_int_equal(tuning_with(ctx->mem, NULL, e, n, &t, &why), TN_OK);
    t->older = atomic_load(&ctx->tuning);
    atomic_store(&ctx->tuning, t);
}

static tn_program *compile(trial *t) {
    tn_program *p;
    if (tn_compile(t->g, &t->o, &p)) fail_msg("%s", tn_ctx_error(t->ctx));
    return p;
}

static void run(trial *t, tn_program *p, void **out) {
    tn_session *s;
    if (tn_session_new(p, &s)) fail_msg("%s", tn_ctx_error(t->ctx));
    for (int i = 0; i < p->n_io; i++) {
        if (p->io[i].is_output) memset(out[i], 0xee, (size_t)p->io[i].bytes);
        assert_int_equal(tn_session_bind(s, i, p->io[i].is_output ? out[i] : t->in[i]), TN_OK);
    }
    if (tn_session_run(s)) fail_msg("%s", tn_ctx_error(t->ctx));
    tn_session_free(s);
    t->runs++;
}

/* Runs with these choices for its kernels; the bits must be those of the model. */
static void check_choices(trial *t, const tuning_entry *e, int n, const char *what, int which) {
    plant(t->ctx, e, n);
    tn_program *p = compile(t);
    run(t, p, t->got);
    for (int i = 0; i < p->n_io; i++)
        if (p->io[i].is_output && memcmp(t->got[i], t->want[i], (size_t)p->io[i].bytes)) {
            for (int k = 0; k < n; k++) {
                arena a;
                guard gd;
                arena_init(&a, mem_libc(), &gd);
                printf("  kernel %d: %s\n", k, kopt_choice_text(e[k].choice, &a));
                arena_fini(&a);
            }
            fail_msg("@%s, %d threads, %s %d: other bits of %s than with the model's choice", t->g->ir->name, t->o.threads,
                     what, which, p->io[i].name);
        }
    tn_program_free(p);
}

typedef struct lists {
    int n, most;
    tuning_entry entry[MOST_KERNELS];
    int count[MOST_KERNELS];
    kchoice at[MOST_KERNELS][MOST];
} lists;

/* The candidates of each kernel, from the choices in l->entry on. */
static void list_candidates(const tn_program *p, lists *l) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    l->n = l->most = 0;
    for (int i = 0; i < p->plan->kernels.n; i++) {
        const pkernel *pk = &p->plan->kernels.at[i];
        if (pk->code != i || l->n == MOST_KERNELS) continue;
        l->entry[l->n].key = kernel_hash(pk->scalar, p->target.tuning_seed);
        l->count[l->n] = kopt_candidates(pk->scalar, &p->target, l->entry[l->n].choice, &a, l->at[l->n], MOST);
        if (l->count[l->n] > l->most) l->most = l->count[l->n];
        l->n++;
    }
    arena_fini(&a);
}

static void try_candidates(trial *t, const lists *l, const char *what) {
    tuning_entry e[MOST_KERNELS];
    for (int c = 0; c < l->most; c++) {
        for (int k = 0; k < l->n; k++) {
            e[k] = l->entry[k];
            if (l->count[k]) e[k].choice = l->at[k][c % l->count[k]];
        }
        check_choices(t, e, l->n, what, c);
    }
}

static void try_anything(trial *t, const lists *l, int times) {
    tuning_entry e[MOST_KERNELS];
    for (int c = 0; c < times; c++) {
        for (int k = 0; k < l->n; k++) {
            e[k].key = l->entry[k].key;
            e[k].choice = (kchoice){ .mr = (uint8_t)rng_below(&t->r, 16),
                                     .nv = (uint8_t)rng_below(&t->r, 9),
                                     .way = (uint8_t)rng_below(&t->r, 5),
                                     .tiles = (uint8_t)rng_below(&t->r, 20),
                                     .rows = (uint16_t)(rng_below(&t->r, 2) ? rng_below(&t->r, 65536) : rng_below(&t->r, 300)),
                                     .par = (uint8_t)rng_below(&t->r, 8),
                                     .unroll = (uint8_t)rng_below(&t->r, 10) };
            if (c == 0) memset(&e[k].choice, 255, sizeof e[k].choice);
        }
        check_choices(t, e, l->n, "anything", c);
    }
}

static int total_runs, total_lists;

static void check_graph(tn_ctx *ctx, tn_graph *g, int threads, uint64_t seed) {
    trial t = { .ctx = ctx, .g = g, .o = TN_COMPILE_DEFAULTS, .r = rng_make(seed) };
    lists l = { 0 };
    t.o.threads = threads, t.o.check = 1;
    plant(ctx, NULL, 0);
    tn_program *p = compile(&t);
    assert_true(p->n_io <= MOST_SLOTS);
    for (int i = 0; i < p->n_io; i++) {
        int64_t n = p->io[i].bytes / (int64_t)tn_dtype_size((tn_dtype)p->io[i].dtype);
        t.in[i] = calloc((size_t)p->io[i].bytes + 1, 1);
        t.want[i] = malloc((size_t)p->io[i].bytes + 1), t.got[i] = malloc((size_t)p->io[i].bytes + 1);
        fill_random(&t.r, (tn_dtype)p->io[i].dtype, t.in[i], n, -1, 1);
    }
    run(&t, p, t.want);
    list_candidates(p, &l);
    try_candidates(&t, &l, "candidate");
    for (int k = 0; k < l.n; k++) /* and from one of them on */
        if (l.count[k]) l.entry[k].choice = l.at[k][rng_below(&t.r, l.count[k])];
    list_candidates(p, &l);
    try_candidates(&t, &l, "second candidate");
    try_anything(&t, &l, 12);
    for (int i = 0; i < p->n_io; i++) free(t.in[i]), free(t.want[i]), free(t.got[i]);
    tn_program_free(p);
    total_runs += t.runs, total_lists += l.most > 0;
}

static tn_graph *contraction(tn_ctx *ctx, const int *s, int transposed, tn_dtype type) {
    tn_graph *g = tn_graph_new(ctx, "contraction");
    tn_tensor x = tn_input(g, "x", type, TN_DIMS(s[0], s[2])), b = tn_input(g, "b", type, TN_DIMS(s[1]));
    tn_tensor w = transposed ? tn_transpose(tn_input(g, "w", type, TN_DIMS(s[1], s[2])), 0, 1)
                             : tn_input(g, "w", type, TN_DIMS(s[2], s[1]));
    tn_output(tn_relu(tn_add(tn_matmul(x, w), b)), "y");
    return g;
}

static void test_contractions(void **state) {
    (void)state;
    static const int shapes[][3] = { { 1, 1, 1 },      { 7, 13, 5 },      { 31, 33, 65 },   { 53, 131, 70 }, { 64, 128, 64 },
                                     { 67, 135, 520 }, { 1, 300, 520 },   { 5, 610, 530 },  { 8, 520, 401 }, { 97, 200, 1100 },
                                     { 45, 77, 2600 }, { 200, 144, 700 }, { 36, 23, 1500 }, { 0, 7, 9 } };
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int way = 0; way < 4; way++) {
            tn_graph *g = contraction(ctx, shapes[i], way / 2, way % 2 && i % 3 == 0 ? TN_F64 : TN_F32);
            check_graph(ctx, g, 1 + way % 2, i * 4 + (size_t)way);
            tn_graph_free(g);
        }
    tn_ctx_free(ctx);
}

static tn_graph *convolution(tn_ctx *ctx, int n, int size, int in, int out, int kernel, int stride, int groups) {
    tn_graph *g = tn_graph_new(ctx, "conv");
    int pad = kernel / 2, after = (size + 2 * pad - kernel) / stride + 1;
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(n, size, size, in)),
              tg = tn_input(g, "g", TN_F32, TN_DIMS(n, after, after, out));
    tn_tensor y = tn_nn_conv2d(x,
                               (tn_nn_conv_opts){ .out_channels = out,
                                                  .kernel = { kernel, kernel },
                                                  .stride = { stride, stride },
                                                  .padding = { pad, pad },
                                                  .groups = groups },
                               "c");
    tn_tensor by[2] = { x, tn_graph_param(g, 0) }, d[2];
    if (tn_grad(tn_sum(tn_mul(y, tg), TN_INTS(0, 1, 2, 3), 0), by, 2, d)) fail_msg("%s", tn_ctx_error(ctx));
    tn_output(y, "y"), tn_output(d[0], "dx"), tn_output(d[1], "dw");
    return g;
}

static void test_convolutions(void **state) {
    (void)state;
    static const int convs[][7] = { { 1, 14, 40, 56, 3, 1, 1 }, { 2, 9, 33, 24, 3, 1, 1 },  { 1, 12, 24, 48, 5, 1, 1 },
                                    { 1, 15, 20, 64, 3, 2, 1 }, { 3, 7, 130, 72, 3, 1, 1 }, { 1, 30, 48, 40, 1, 1, 1 },
                                    { 1, 13, 24, 24, 3, 1, 24 } };
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(convs); i++) {
        const int *c = convs[i];
        tn_graph *g = convolution(ctx, c[0], c[1], c[2], c[3], c[4], c[5], c[6]);
        for (int threads = 1; threads <= 2; threads++) check_graph(ctx, g, threads, 1000 + i);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

static void test_maps(void **state) {
    (void)state;
    static const int64_t sizes[][2] = { { 1, 1 }, { 3, 7 }, { 33, 65 }, { 130, 517 }, { 1000, 100 }, { 5, 0 } };
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        tn_graph *g = tn_graph_new(ctx, "maps");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(sizes[i][0], sizes[i][1]));
        tn_output(tn_mul(tn_exp(x), tn_sub(x, tn_full(g, TN_F32, TN_DIMS(1), 0.25))), "map");
        tn_output(tn_nn_softmax(x, -1), "softmax");
        tn_output(tn_sum(tn_sin(x), TN_INTS(0), 0), "columns");
        tn_output(tn_sum(x, TN_INTS(1), 0), "rows");
        tn_output(tn_transpose(tn_neg(x), 0, 1), "turned");
        for (int threads = 1; threads <= 2; threads++) check_graph(ctx, g, threads, 2000 + i);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
    printf("count: %d runs with other choices than the model's\n", total_runs);
    assert_true(total_runs > 1000);
}

static char *kernels_text(trial *t, tn_program **out) {
    char *text;
    *out = compile(t);
    assert_int_equal(tn_program_text(*out, "kernels", &text), TN_OK);
    return text;
}

/* The tile of a planted choice is in the kernel; one that fits nothing changes nothing; another key's neither. */
static void test_used(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    trial t = { .ctx = ctx, .g = contraction(ctx, (const int[]){ 64, 128, 64 }, 0, TN_F32), .o = TN_COMPILE_DEFAULTS };
    t.o.threads = 1;
    tn_program *p, *q;
    char *model = kernels_text(&t, &p), *text;
    tuning_entry e = { .key = kernel_hash(p->plan->kernels.at[0].scalar, p->target.tuning_seed),
                       .choice = { .mr = 3, .nv = 1 } };
    assert_null(p->plan->kernels.at[0].choice);
    plant(ctx, &e, 1);
    text = kernels_text(&t, &q);
    assert_string_not_equal(text, model);
    assert_non_null(q->plan->kernels.at[0].choice);
    int rows = 0;
    for (int v = 0; v < q->plan->kernels.at[0].k->vars.n; v++) rows += q->plan->kernels.at[0].k->vars.at[v].role.unroll == 3;
    assert_int_equal(rows, 1);
    tn_string_free(ctx, text);
    assert_int_equal(tn_program_text(q, "explain", &text), TN_OK);
    assert_non_null(strstr(text, "measured by tuning: tile 3 x 1"));
    tn_string_free(ctx, text), tn_program_free(q);
    static const kchoice impossible[] = {
        { .mr = 14, .nv = 8 }, { 0 }, { .mr = 3 }, { .mr = 255, .nv = 255 }, { .tiles = 200 }
    };
    for (size_t i = 0; i < COUNT_OF(impossible); i++) {
        e.choice = impossible[i];
        plant(ctx, &e, 1);
        text = kernels_text(&t, &q);
        assert_string_equal(text, model);
        tn_string_free(ctx, text), tn_program_free(q);
    }
    e.key++, e.choice = (kchoice){ .mr = 3, .nv = 1 };
    plant(ctx, &e, 1);
    text = kernels_text(&t, &q);
    assert_string_equal(text, model);
    assert_null(q->plan->kernels.at[0].choice);
    tn_string_free(ctx, text), tn_program_free(q);
    tn_string_free(ctx, model), tn_program_free(p), tn_graph_free(t.g), tn_ctx_free(ctx);
}

/* Seven sums wait for each other: 3x3 7x7x512 runs at 74 % of a Zen 3's peak in tiles of 7 x 1, at 95 % in tiles of 4 x 3. */
static void test_few_sums_wait(void **state) {
    (void)state;
    double seven = recipe_tile_cost(machine_find("", false), 7, 1) / 7,
           eight = recipe_tile_cost(machine_find("", false), 4, 2) / 8,
           twelve = recipe_tile_cost(machine_find("", false), 4, 3) / 12;
    assert_true(seven > 1.2 * twelve && seven > 1.2 * eight);
    assert_true(eight < 1.1 * twelve);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_few_sums_wait), cmocka_unit_test(test_used),
                                        cmocka_unit_test(test_contractions), cmocka_unit_test(test_convolutions),
                                        cmocka_unit_test(test_maps) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
