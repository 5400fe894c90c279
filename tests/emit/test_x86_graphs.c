/* test_x86_graphs.c - random graphs, half of them with gradients, as machine code: against the reference evaluator within
 * proven bounds, at every fusion level, in every mode of launching, and as on processors whose caches hold next to nothing, so
 * that small graphs are panels, streams of rows and stores past the caches. No compiler is needed, so there are many.
 *
 * Labels: random
 * A quarter of TENON_FUZZ_SEEDS (default 300) graphs a level: drive/test_modes runs them all on the best one.
 * TENON_FUZZ_FIRST: the first seed. A failure is reduced and printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/plan_run.h"

typedef struct config {
    tn_mode mode;
    int fusion, threads, no_passes;
    bool small; /* caches */
} config;
static const config configs[] = {
    { TN_MODE_IMMEDIATE, 0, 1, 1, false }, { TN_MODE_GRAPH, 0, 2, 0, false },    { TN_MODE_COMPILED, 1, 1, 0, false },
    { TN_MODE_COMPILED, 2, 1, 1, false },  { TN_MODE_COMPILED, 3, 2, 0, false }, { TN_MODE_LOOP, 3, 1, 0, false },
    { TN_MODE_GRAPH, 0, 1, 0, true },      { TN_MODE_COMPILED, 3, 2, 0, true },  { TN_MODE_LOOP, 3, 1, 0, true },
};

typedef struct run {
    tn_ctx *ctx;
    device **small; /* [threads] */
    config c;
    uint64_t seed;
    char text[1024];
} run;

static int n_fallbacks, n_programs, n_past, n_ahead, n_panels; /* of kernels for small caches */

/* The device cpu with other caches. */
static device_api small_cpu;
static int64_t small_l1, small_l2;
static void small_caps(const device *d, device_caps *c) {
    device_cpu.get_caps(d, c);
    c->l1_bytes = small_l1, c->l2_bytes = small_l2;
}
static void choose_caches(uint64_t seed) {
    static const int64_t l1[] = { 64, 256, 1 << 10 }, l2[] = { 64, 1 << 10, 16 << 10 };
    small_l1 = l1[seed % 3], small_l2 = l2[seed % 3];
}
static device *small_device(tn_ctx *ctx, int threads) {
    device *d;
    err e = { 0 };
    if (ctx_device(ctx, "cpu", threads, &d, &e)) fail_msg("%s", e.text);
    small_cpu = *d->api;
    small_cpu.get_caps = small_caps;
    d->api = &small_cpu; /* the context knows the other one by its table, and opens it when it is asked for */
    return d;
}

static void count_forms(const plan *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        for (int b = 0; b < k->bufs.n; b++) n_panels += k->bufs.at[b].kind == KB_LOCAL;
        for (int j = 1; j < k->ins.n; j++) {
            n_ahead += k->ins.at[j].op == K_PREFETCH;
            n_past += k->ins.at[j].op == K_STORE && k->ins.at[j].mode == STORE_NONTEMPORAL;
        }
    }
}

static void count_fallbacks(void *ud, tn_log_level level, const char *text) {
    (void)ud, (void)level;
    if (!strstr(text, "no machine code")) return;
    if (n_fallbacks++ < 20) fprintf(stderr, "%s\n", text);
}

static const void *input_data(const graph *g, const sample *in, const char *name) {
    for (int k = 0; k < g->inputs.n; k++)
        if (!strcmp(graph_get(g, g->inputs.at[k])->name, name)) return in->data[k];
    return NULL;
}

static tn_status compile(const run *r, const graph *g, const tn_compile_opts *opts, tn_program **out) {
    tn_compile_opts o;
    if (!r->c.small) return drive_compile(r->ctx, g, opts, out);
    choose_caches(r->seed);
    tn_status st = drive_resolve(r->ctx, opts, &o);
    return st ? st : drive_compile_on(r->ctx, r->small[opts->threads], g, &o, out, &r->ctx->err);
}

/* At the beginning of a line of memory, or behind it. */
static void *output_memory(arena *a, size_t bytes, bool behind) {
    char *p = arena_alloc(a, bytes + 128);
    return p + (64 - (uintptr_t)p % 64) + (behind ? 16 : 0);
}

/* Runs g as configured and compares all named outputs; the reference is given, or made. Returns whether all agree; else r->text
 * says what does not. */
static bool agrees(graph *g, const reference *given, run *r) {
    arena a;
    guard gd;
    tn_program *p = NULL;
    tn_session *s = NULL;
    bool ok = false;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) {
        snprintf(r->text, sizeof r->text, "guard: %s", gd.err.text);
        goto done;
    }
    const reference ref = given ? *given : reference_make(g, &a, r->seed);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = r->c.mode, o.fusion = r->c.fusion, o.threads = r->c.threads, o.no_passes = r->c.no_passes;
    snprintf(r->text, sizeof r->text, "failed");
    if (compile(r, g, &o, &p) || tn_session_new(p, &s)) {
        snprintf(r->text, sizeof r->text, "%s", tn_ctx_error(r->ctx));
        goto done;
    }
    n_programs++;
    if (r->c.small) count_forms(p->plan);
    void **at = arena_array(&a, (size_t)p->n_io + 1, sizeof *at);
    for (int i = 0; i < p->n_io; i++) {
        at[i] = p->io[i].is_output ? output_memory(&a, (size_t)p->io[i].bytes + 64, r->seed % 2)
                                   : (void *)(uintptr_t)input_data(g, &ref.in, p->io[i].name);
        if (p->io[i].is_output) memset(at[i], 0xee, (size_t)p->io[i].bytes + 64);
        if (tn_session_bind(s, i, at[i])) goto done;
    }
    if (r->c.mode == TN_MODE_LOOP ? tn_run_n(s, 1, NULL, 0, 0) : tn_session_run(s)) {
        snprintf(r->text, sizeof r->text, "%s", tn_ctx_error(r->ctx));
        goto done;
    }
    for (int i = 0; i < g->outputs.n; i++) {
        const output *w = &g->outputs.at[i];
        char why_not[512];
        for (int k = 0; w->name && k < p->n_io; k++) {
            if (!p->io[k].is_output || strcmp(p->io[k].name, w->name) != 0) continue;
            const unsigned char *end = (const unsigned char *)at[k] + p->io[k].bytes;
            for (int x = 0; x < 64; x++)
                if (end[x] != 0xee) {
                    snprintf(r->text, sizeof r->text, "output \"%s\": written past its end", w->name);
                    goto done;
                }
            if (compare(g, w->v, at[k], ref.want[w->v], ref.bound[w->v], 4, why_not, sizeof why_not) >= 0) {
                snprintf(r->text, sizeof r->text, "%s: %s", w->name, why_not);
                goto done;
            }
        }
    }
    ok = true;
done:
    tn_session_free(s);
    tn_program_free(p);
    arena_fini(&a);
    return ok;
}

static bool fails(graph *g, void *ud) { return !agrees(g, NULL, ud); }

static void random_graphs(const char *cpu) {
    uint64_t first, n = (fuzz_seeds(300, &first) + 3) / 4;
    int bad = 0, runs = 0, differentiated = 0;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = cpu, .log = count_fallbacks, .compiler = "/nowhere/no-compiler" };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    device *small[] = { NULL, small_device(ctx, 1), small_device(ctx, 2) };
    n_fallbacks = n_programs = n_past = n_ahead = n_panels = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        graph *g = randcase(&a, seed, &differentiated);
        const reference ref = reference_make(g, &a, seed);
        for (size_t c = 0; c < COUNT_OF(configs); c++) {
            run r = { .ctx = ctx, .small = small, .c = configs[c], .seed = seed };
            runs++;
            if (agrees(g, &ref, &r)) continue;
            bad++;
            fprintf(stderr, "seed %d, config %d: %s\n", (int)seed, (int)c, r.text);
            if (!getenv("TENON_FUZZ_NO_REDUCE")) reduce_and_print(g, &a, fails, &r);
            break;
        }
        arena_fini(&a);
    }
    printf("%s: %d runs of %d random graphs, %d differentiated, %d programs, %d of them without machine code; for small caches "
           "%d stores past them, %d fetches ahead, %d buffers of panels and rows\n",
           cpu, runs, (int)n, differentiated, n_programs, n_fallbacks, n_past, n_ahead, n_panels);
    tn_ctx_free(ctx);
    assert_int_equal(bad, 0);
    assert_int_equal(n_fallbacks, 0);
    if (n >= 40) assert_true(n_past > 0 && n_ahead > 0 && n_panels > 0);
}

static bool runs_here(const char *isa) {
    tn_device_info info;
    tn_ctx *ctx = tn_ctx_new(&(tn_config){ .struct_size = sizeof(tn_config), .cpu = isa });
    bool ok = tn_device_get_info(ctx, 0, &info) == TN_OK;
    tn_ctx_free(ctx);
    return ok;
}

static void test_sse2(void **state) {
    (void)state;
    if (!runs_here("sse2")) skip();
    random_graphs("sse2");
}

static void test_avx2(void **state) {
    (void)state;
    if (!runs_here("avx2")) skip();
    random_graphs("avx2");
}
static void test_avx512(void **state) {
    (void)state;
    if (!runs_here("avx512")) skip();
    random_graphs("avx512");
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sse2), cmocka_unit_test(test_avx2),
                                        cmocka_unit_test(test_avx512) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
