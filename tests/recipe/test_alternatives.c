/* test_alternatives.c - whatever the tuning database says, the bits are the same: every schedule that tuning would measure,
 * those next to them, and texts that were changed at random, most of which are no schedules of the kernel; contractions,
 * convolutions with gradients, maps, reductions and kernels by blocks of rows, in one and two threads. Planted schedules are
 * really used. A short campaign: a quarter of the contractions and convolutions, in turns.
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
#include "machine/cost.h"
#include "recipe/recipe.h"
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
    int runs, heeded, ignored;
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
            for (int k = 0; k < n; k++) printf("  kernel %d: %s\n", k, e[k].schedule);
            fail_msg("@%s, %d threads, %s %d: other bits of %s than with the recipe's schedule", t->g->ir->name, t->o.threads,
                     what, which, p->io[i].name);
        }
    for (int i = 0; i < p->plan->kernels.n; i++)
        t->heeded += p->plan->kernels.at[i].tuned != NULL, t->ignored += p->plan->kernels.at[i].ignored != NULL;
    tn_program_free(p);
}

typedef struct lists {
    arena a;
    guard gd;
    int n, most;
    tuning_entry entry[MOST_KERNELS];
    int count[MOST_KERNELS];
    recipe_candidate *at[MOST_KERNELS];
} lists;

static int n_listed, n_worth;

/* In the order of the model, and none is left out whose prediction is below 1.5 times the least. */
static void check_rank(const tn_program *p, const recipe_candidate *at, int n, arena *a) {
    recipe_candidate *all = arena_copy(a, at, sizeof *at * (size_t)n + 1);
    machine m = machine_of(&p->target);
    int worth = recipe_rank(&p->target, a, all, n), found = 0;
    assert_true(worth >= 0 && worth <= n);
    for (int i = 0; i < n; i++) {
        assert_true(all[i].ns == cost_kernel(all[i].k, &m, NULL, a).ns);
        assert_true(i == 0 || all[i].ns >= all[i - 1].ns);
        for (int j = 0; j < n; j++) found += all[i].text == at[j].text;
    }
    assert_int_equal(found, n);
    for (int i = 0; i < n; i++) assert_int_equal(i < worth, all[i].ns < 1.5 * all[0].ns);
    n_listed += n, n_worth += worth;
}

/* The candidates of each kernel, from the schedules in l->entry on. */
static void list_candidates(const tn_program *p, lists *l) {
    if (!GUARD_TRY(&l->gd)) fail_msg("%s", l->gd.err.text);
    l->n = l->most = 0;
    for (int i = 0; i < p->plan->kernels.n; i++) {
        const pkernel *pk = &p->plan->kernels.at[i];
        if (pk->code != i || l->n == MOST_KERNELS) continue;
        if (!l->entry[l->n].schedule) {
            str text;
            str_init(&text, &l->a);
            schedule_print_steps(pk->schedule, &text);
            l->entry[l->n].schedule = text.s;
        }
        l->entry[l->n].key = kernel_hash(pk->scalar, p->target.tuning_seed);
        l->at[l->n] = ARENA_ARRAY(&l->a, recipe_candidate, MOST);
        l->count[l->n] = recipe_candidates(pk->scalar, &p->target, l->entry[l->n].schedule, &l->a, l->at[l->n], MOST);
        check_rank(p, l->at[l->n], l->count[l->n], &l->a);
        if (l->count[l->n] > l->most) l->most = l->count[l->n];
        l->n++;
    }
}

/* Each is heeded: none is refused, none is ignored. */
static void try_candidates(trial *t, const lists *l, const char *what) {
    tuning_entry e[MOST_KERNELS];
    int ignored = t->ignored, heeded = t->heeded;
    for (int c = 0; c < l->most; c++) {
        for (int k = 0; k < l->n; k++) {
            e[k] = l->entry[k];
            if (l->count[k]) e[k].schedule = l->at[k][c % l->count[k]].text;
        }
        check_choices(t, e, l->n, what, c);
    }
    assert_int_equal(t->ignored, ignored);
    assert_true(t->heeded > heeded || l->most == 0);
}

/* A schedule with a number, a step or a letter changed; or with another kernel's. */
static const char *garbled(trial *t, const lists *l, const char *text, arena *a) {
    static const char letters[] = "0123456789ik nbp;{}=_ ";
    size_t n = strlen(text);
    char *s = arena_alloc(a, 2 * n + 64);
    memcpy(s, text, n + 1);
    for (int times = (int)rng_between(&t->r, 1, 3); times > 0 && n > 0; times--) {
        size_t at = (size_t)rng_below(&t->r, (int)n);
        switch (rng_below(&t->r, 5)) {
        case 0: /* another number */
            for (size_t i = 0; i < n; i++, at = (at + 1) % n)
                if (s[at] >= '0' && s[at] <= '9') break;
            s[at] = (char)('0' + rng_below(&t->r, 10));
            break;
        case 1: { /* a step less */
            char *from = s + at, *end;
            while (from > s && from[-1] != ';') from--;
            end = from + strcspn(from, ";");
            memmove(from, *end ? end + 1 : end, strlen(*end ? end + 1 : end) + 1);
            break;
        }
        case 2:
            s[at] = letters[rng_below(&t->r, (int)sizeof letters - 1)];
            break;
        case 3:
            s[at] = 0; /* cut off */
            break;
        default:
            return l->entry[rng_below(&t->r, l->n)].schedule;
        }
        n = strlen(s);
    }
    return s;
}

static void try_anything(trial *t, lists *l, int times) {
    tuning_entry e[MOST_KERNELS];
    if (!GUARD_TRY(&l->gd)) fail_msg("%s", l->gd.err.text);
    for (int c = 0; c < times; c++) {
        for (int k = 0; k < l->n; k++) {
            e[k] = l->entry[k];
            int n = l->count[k] ? rng_below(&t->r, l->count[k]) : 0;
            e[k].schedule = garbled(t, l, l->count[k] ? l->at[k][n].text : e[k].schedule, &l->a);
        }
        check_choices(t, e, l->n, "anything", c);
    }
}

static int total_runs, total_heeded, total_ignored;

static void check_graph(tn_ctx *ctx, tn_graph *g, int threads, uint64_t seed) {
    trial t = { .ctx = ctx, .g = g, .o = TN_COMPILE_DEFAULTS, .r = rng_make(seed) };
    static lists l; /* large */
    l = (lists){ 0 };
    arena_init(&l.a, mem_libc(), &l.gd);
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
        if (l.count[k]) l.entry[k].schedule = l.at[k][rng_below(&t.r, l.count[k])].text;
    list_candidates(p, &l);
    try_candidates(&t, &l, "second candidate");
    try_anything(&t, &l, 12);
    for (int i = 0; i < p->n_io; i++) free(t.in[i]), free(t.want[i]), free(t.got[i]);
    tn_program_free(p);
    total_runs += t.runs, total_heeded += t.heeded, total_ignored += t.ignored;
    arena_fini(&l.a);
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
            if (!campaign_has(5 * i + (size_t)way, 4)) continue;
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
        for (int threads = 1; threads <= 2; threads++)
            if (campaign_has(i + 2 * (size_t)threads, 4)) check_graph(ctx, g, threads, 1000 + i);
        tn_graph_free(g);
    }
    tn_ctx_free(ctx);
}

/* A contraction and what follows it row by row: kernels by blocks of rows, whose nests have schedules of their own. */
static void test_blocks(void **state) {
    (void)state;
    static const int64_t sizes[][3] = { { 64, 64, 64 }, { 37, 50, 20 }, { 100, 128, 30 } };
    tn_ctx *ctx = test_ctx();
    int blocks = 0;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        tn_graph *g = tn_graph_new(ctx, "blocks");
        tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(sizes[i][0], sizes[i][1])),
                  w = tn_input(g, "w", TN_F32, TN_DIMS(sizes[i][1], sizes[i][2]));
        tn_output(tn_nn_softmax(tn_relu(tn_matmul(x, w)), -1), "y");
        for (int threads = 1; threads <= 2; threads++) check_graph(ctx, g, threads, 3000 + i);
        trial t = { .ctx = ctx, .g = g, .o = TN_COMPILE_DEFAULTS };
        t.o.threads = 2; /* not those of a large machine, for which other kernels pay */
        tn_program *p = compile(&t);
        blocks += schedule_nests(p->plan->kernels.at[0].schedule) != NULL;
        tn_program_free(p);
        tn_graph_free(g);
    }
    assert_true(blocks > 0);
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
    printf("count: %d of %d schedules next to recipes' are worth measuring by the cost model\n", n_worth, n_listed);
    assert_true(n_worth > n_listed / 4 && n_worth < n_listed);
    printf("count: %d runs with schedules of a tuning database: %d heeded, %d ignored\n", total_runs, total_heeded,
           total_ignored);
    assert_true(total_runs > campaign(1000, 250) && total_heeded > campaign(2000, 500) && total_ignored > campaign(200, 50));
}

static char *kernels_text(trial *t, tn_program **out) {
    char *text;
    *out = compile(t);
    assert_int_equal(tn_program_text(*out, "kernels", &text), TN_OK);
    return text;
}

/* Whether the text, planted for the first kernel of the graph, is heeded; its bits and kernels are not checked here. */
static bool is_heeded(trial *t, tuning_entry e, const char *text, const char *want_why) {
    tn_program *q;
    e.schedule = text;
    plant(t->ctx, &e, 1);
    tn_string_free(t->ctx, kernels_text(t, &q));
    const pkernel *pk = &q->plan->kernels.at[0];
    bool heeded = pk->tuned != NULL;
    if (heeded == (want_why != NULL) || (want_why && (!pk->ignored || !strstr(pk->ignored, want_why))))
        fail_msg("\"%s\": %s", text, pk->ignored ? pk->ignored : "no reason");
    tn_program_free(q);
    return heeded;
}

/* The tile of a planted schedule is in the kernel, whatever letters its loops have; a text that is not possible, or that may
 * change bits, changes nothing, and the reason is kept; another key's neither. */
static void test_used(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    trial t = { .ctx = ctx, .g = contraction(ctx, (const int[]){ 64, 128, 64 }, 0, TN_F32), .o = TN_COMPILE_DEFAULTS };
    t.o.threads = 1;
    tn_program *p, *q;
    char *model = kernels_text(&t, &p), *text;
    tuning_entry e = { .key = kernel_hash(p->plan->kernels.at[0].scalar, p->target.tuning_seed),
                       .schedule = "hoist; vectorize i1 4; unroll_jam x0 3; tile; multiply_add" };
    assert_null(p->plan->kernels.at[0].tuned);
    plant(ctx, &e, 1);
    text = kernels_text(&t, &q);
    assert_string_not_equal(text, model);
    assert_string_equal(q->plan->kernels.at[0].tuned, e.schedule);
    int rows = 0;
    for (int v = 0; v < q->plan->kernels.at[0].k->vars.n; v++) rows += q->plan->kernels.at[0].k->vars.at[v].role.unroll == 3;
    assert_int_equal(rows, 1);
    tn_string_free(ctx, text);
    assert_int_equal(tn_program_text(q, "explain", &text), TN_OK);
    assert_non_null(strstr(text, "measured by tuning\n   schedule: hoist; vectorize i1 4; unroll_jam i0 3; tile"));
    tn_string_free(ctx, text), tn_program_free(q);
    static const char *const impossible[][2] = {
        { "", "\"hoist\" is missing" },
        { "vectorise", "there is no step \"vectorise\"" },
        { "hoist; vectorize i1 4; multiply_add", "the kernel is not tiled yet" },
        { "hoist; vectorize i1 4; tile", "\"multiply_add\" is missing" },
        { "vectorize i1 4; tile; multiply_add", "\"multiply_add\" may change" },
        { "hoist; vectorize k2 4; tile; multiply_add", "\"vectorize k2 4\" may change" },
        { "hoist; unroll_jam k2 2; vectorize i1 4; tile; multiply_add", "\"unroll_jam k2 2\" may change" },
        { "hoist; vectorize i1 4; packed_dot 2; tile; multiply_add", "\"packed_dot 2\" may change" },
        { "hoist; vectorize i1 3; tile; multiply_add", "3 lanes" },
        { "hoist; unroll_jam i0 16; unroll_jam i1 16; vectorize i1 4; pack b9 k2 8; tile; multiply_add", "no buffer b9" },
        { "hoist; vectorize i1 4; pack b1 k2 8; hoist; tile; multiply_add", "" },
        { "gpu_tile 8 8 8 8 8", "there is no step" },
        { "hoist; nests { { tile } }; tile; multiply_add", "may change" },
    };
    for (size_t i = 0; i < COUNT_OF(impossible); i++) {
        e.schedule = impossible[i][0];
        is_heeded(&t, e, impossible[i][0], impossible[i][1]);
        text = kernels_text(&t, &q);
        assert_string_equal(text, model);
        tn_string_free(ctx, text), tn_program_free(q);
    }
    assert_true(is_heeded(&t, e, "hoist; vectorize i1 4; pack b1 k2 8 tiles=2; unroll_jam i0 1; tile; multiply_add",
                          "no row is unrolled") == false);
    assert_true(is_heeded(&t, e, "hoist;unroll_jam i0 2;vectorize i1 4;pack b1 k2 8 tiles=2;tile;multiply_add", NULL));
    e.key++, e.schedule = "hoist; vectorize i1 4; unroll_jam i0 3; tile; multiply_add";
    plant(ctx, &e, 1);
    text = kernels_text(&t, &q);
    assert_string_equal(text, model);
    assert_null(q->plan->kernels.at[0].tuned);
    assert_null(q->plan->kernels.at[0].ignored);
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
                                        cmocka_unit_test(test_contractions),  cmocka_unit_test(test_convolutions),
                                        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_maps) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
