/* test_modes.c - the headline test: random graphs, half of them with gradients, give the same result in every mode and at every
 * fusion level, within the bound that an error analysis proves against the double-precision evaluator.
 *
 * Labels: slow random
 * TENON_FUZZ_SEEDS (default 200) graphs; where code is made by the C compiler (TENON_CPU=c), six times a graph and once per op
 * in immediate mode, a twentieth of them. TENON_CC names the compiler. A failure is reduced and printed as a .tn text.
 * TENON_FUZZ_JOIN=n: n short graphs are one program, which runs in one of the compiled configurations in turn: for devices
 * whose compilers take a tenth of a second a program and as much a kernel. */
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
    int within; /* percent of the temporaries that it may have: others are computed again */
} config;
static const config configs[] = {
    { TN_MODE_IMMEDIATE, 0, 1, 1 }, { TN_MODE_GRAPH, 0, 2, 0 },        { TN_MODE_COMPILED, 1, 1, 0 },
    { TN_MODE_COMPILED, 2, 1, 1 },  { TN_MODE_COMPILED, 3, 2, 0 },     { TN_MODE_LOOP, 3, 1, 0 },
    { TN_MODE_GRAPH, 0, 1, 0, 60 }, { TN_MODE_COMPILED, 3, 1, 0, 75 },
};

static const size_t joined_configs[] = { 4, 5, 2, 4, 5, 3, 4, 5 };

typedef struct run {
    tn_ctx *ctx;
    config c;
    uint64_t seed;
    char text[1024];
    bool verbose;
} run;

/* TENON_FUZZ_JOIN, or 0 */
static int joined(void) {
    const char *join = getenv("TENON_FUZZ_JOIN");
    return join ? atoi(join) : 0;
}

static int n_within; /* programs that kept within their limit by computing values again */

/* *p again, in less memory if there is a way. */
static bool compile_within(const run *r, const graph *g, tn_compile_opts *o, tn_program **p) {
    const plan *x = (*p)->plan;
    tn_program *less = NULL;
    o->memory_limit = (uint64_t)(x->state_bytes + x->shared_bytes + x->const_bytes + x->temp_bytes * r->c.within / 100);
    if (!o->memory_limit) return true;
    tn_status st = drive_compile(r->ctx, g, o, &less);
    if (st) return st == TN_ERR_NOMEM && strstr(tn_ctx_error(r->ctx), "memory_limit is");
    n_within += less->plan->again.n > 0;
    tn_program_free(*p);
    *p = less;
    return true;
}

static int value_input(const graph *g, val v) {
    for (int i = 0; i < g->inputs.n; i++)
        if (g->inputs.at[i] == v) return i;
    return -1;
}

/* Runs g as configured and compares all named outputs and all states; the reference is given, or made. Returns whether
 * everything agrees; else r->text says what. */
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
    o.mode = r->c.mode, o.fusion = r->c.fusion, o.threads = r->c.threads, o.no_passes = r->c.no_passes, o.check = 1;
    o.device = test_device(), o.no_cache = joined() > 0;
    if (!test_device_is_cpu()) o.threads = 0;
    if (drive_compile(r->ctx, g, &o, &p) || (r->c.within && !compile_within(r, g, &o, &p)) || tn_session_new(p, &s)) {
        snprintf(r->text, sizeof r->text, "%s", tn_ctx_error(r->ctx));
        goto done;
    }
    for (int i = 0; i < p->n_io; i++) {
        if (p->io[i].is_output) continue;
        val v = 0;
        for (int k = 0; k < g->inputs.n; k++)
            if (!strcmp(graph_get(g, g->inputs.at[k])->name, p->io[i].name)) v = g->inputs.at[k];
        if (tn_session_bind(s, i, ref.in.data[value_input(g, v)])) goto done;
    }
    void **out = arena_array(&a, (size_t)p->n_io, sizeof *out);
    for (int i = 0; i < p->n_io; i++) {
        if (!p->io[i].is_output) continue;
        out[i] = arena_alloc(&a, (size_t)p->io[i].bytes + 64);
        memset(out[i], 0xee, (size_t)p->io[i].bytes + 64);
        if (tn_session_bind(s, i, out[i])) goto done;
    }
    if (r->c.mode == TN_MODE_LOOP ? tn_run_n(s, 1, NULL, 0, 0) : tn_session_run(s)) {
        snprintf(r->text, sizeof r->text, "%s", tn_ctx_error(r->ctx));
        goto done;
    }
    for (int i = 0; i < g->outputs.n; i++) {
        const output *w = &g->outputs.at[i];
        void *got = NULL;
        char why_not[512];
        size_t bytes = (size_t)graph_elems(g, w->v) * dtype_size((tn_dtype)graph_get(g, w->v)->dtype);
        if (w->name)
            for (int k = 0; k < p->n_io; k++)
                if (p->io[k].is_output && !strcmp(p->io[k].name, w->name)) {
                    got = out[k];
                    for (int x = 0; x < 64; x++)
                        if (((unsigned char *)got)[bytes + (size_t)x] != 0xee) {
                            snprintf(r->text, sizeof r->text, "output \"%s\": written past its end", w->name);
                            goto done;
                        }
                }
        if (w->state) {
            got = arena_alloc(&a, bytes + 1);
            if (tn_session_get(s, graph_get(g, w->state)->name, got, bytes)) {
                snprintf(r->text, sizeof r->text, "%s", tn_ctx_error(r->ctx));
                goto done;
            }
        }
        if (compare(g, w->v, got, ref.want[w->v], ref.bound[w->v], 4, why_not, sizeof why_not) >= 0) {
            snprintf(r->text, sizeof r->text, "%s: %s", w->name ? w->name : graph_get(g, w->state)->name, why_not);
            goto done;
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

static void test_random_graphs(void **state) {
    (void)state;
    const char *cpu = getenv("TENON_CPU");
    bool slow = fuzz_by_c();
    uint64_t first, seeds = (fuzz_seeds(200, &first) + (slow ? 19 : 0)) / (slow ? 20 : 1);
    int bad = 0, runs = 0, differentiated = 0;
    tn_config cfg = { .struct_size = sizeof cfg, .cpu = getenv("TENON_CPU"), .compiler = getenv("TENON_CC") };
    tn_ctx *ctx = tn_ctx_new(&cfg);
    assert_non_null(ctx);
    uint64_t many = joined() ? (uint64_t)joined() : 1, programs = 0;
    for (uint64_t seed = first; seed < first + seeds; seed += many, programs++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        if (many > first + seeds - seed) many = first + seeds - seed;
        graph *g = joined() ? randcases(&a, seed, (int)many, &differentiated) : randcase(&a, seed, &differentiated);
        const reference ref = reference_make(g, &a, seed);
        for (size_t c = 0; c < COUNT_OF(configs); c++) {
            if (joined() && c != joined_configs[programs % COUNT_OF(joined_configs)]) continue;
            run r = { .ctx = ctx, .c = configs[c], .seed = seed };
            runs++;
            if (agrees(g, &ref, &r)) continue;
            bad++;
            fprintf(stderr, "seed %llu, mode %d, fusion %d, threads %d, no_passes %d, within %d %%: %s\n",
                    (unsigned long long)seed, r.c.mode, r.c.fusion, r.c.threads, r.c.no_passes, r.c.within, r.text);
            if (!getenv("TENON_FUZZ_NO_REDUCE")) reduce_and_print(g, &a, fails, &r);
            fprintf(stderr, "  after reduction: %s\n", r.text);
        }
        arena_fini(&a);
    }
    tn_ctx_free(ctx);
    printf(
        "count: %llu random graphs (%d with gradients) compiled to %s, %d runs in %zu configurations, %d of them with values "
        "computed again to keep within a limit, %d failed\n",
        (unsigned long long)seeds, differentiated,
        slow  ? "C"
        : cpu ? cpu
              : "machine code",
        runs, COUNT_OF(configs), n_within, bad);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_graphs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
