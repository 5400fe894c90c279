/* Bytes at each memory level against counts by hand; no kernel is predicted to beat what its machine's units can do; and what
 * has more work, fewer threads or a slower machine is never predicted to be faster.
 *
 * Labels: long */
#include "drive/drive.h"
#include "machine/cost.h"
#include "machine/footprint.h"
#include "support/plan_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct fixture {
    arena a;
    guard gd;
} fixture;

static machine zen(int threads) {
    target t = { .vector_bytes = 64, .n_vector_regs = 32, .threads = threads, .l1_bytes = 48 << 10, .l2_bytes = 1 << 20 };
    t.machine = machine_row("zen5");
    return machine_of(&t);
}

static cost cost_of_text(fixture *f, const machine *m, const double *distance, const char *fmt, ...) {
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cost_kernel(kernel_parse(&f->a, text, strlen(text), "test"), m, distance, &f->a);
}

static bool near(double x, double want, double tolerance) { return fabs(x - want) <= tolerance * want + 1e-9; }

static const char add_text[] =
    "kernel @add(b0 in f32[%d], b1 out f32[%d]) tiled {\n  var i0 = %d row lanes 16\n"
    "  loop i0 = 0 .. %d step 16\n    %%2 = load b0[i0] step 1  f32x16\n    %%3 = add %%2, %%2  f32x16\n"
    "    store b1[i0] step 1, %%3  f32x16\n  end\n}\n";

/* A stream: each byte once, from as far as it has to come. */
static void streams(fixture *f) {
    machine m = zen(1);
    static const struct {
        int n;
        machine_level from;
    } cases[] = { { 1024, LEVEL_L1 }, { 32 << 10, LEVEL_L2 }, { 1 << 20, LEVEL_L3 }, { 16 << 20, LEVEL_MEMORY } };
    double last = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int n = cases[i].n;
        double bytes = 8.0 * n, distance[] = { bytes, bytes };
        cost c = cost_of_text(f, &m, distance, add_text, n, n, n, n);
        for (int l = 0; l < MACHINE_LEVELS; l++) assert_true(near(c.bytes[l], l <= (int)cases[i].from ? bytes : 0, 0.01));
        assert_true(c.ns > last && c.ns >= c.start_ns);
        assert_true(c.ns / n < 64 && (cases[i].from == LEVEL_L1 || c.ns >= bytes / (m.level[cases[i].from].read * 1.01)));
        last = c.ns;
    }
}

/* A row that is read twice comes once if it stays, else twice. */
static void rows_that_stay(fixture *f) {
    static const char text[] =
        "kernel @rows(b0 in f32[%d], b1 out f32[64]) tiled {\n  var i0 = 64 row\n  var r1 = %d reduce lanes 16\n"
        "  var r2 = %d reduce lanes 16\n  loop i0 = 0 .. 64 step 1\n    %%2 = acc max -inf  f32x16\n    loop r1 = 0 .. %d step "
        "16\n"
        "      %%4 = load b0[%d*i0 + r1] step 1  f32x16\n      update %%2 max %%4  f32x16\n    end\n    %%7 = acc add 0.0  "
        "f32x16\n"
        "    loop r2 = 0 .. %d step 16\n      %%9 = load b0[%d*i0 + r2] step 1  f32x16\n      update %%7 add %%9  f32x16\n    "
        "end\n"
        "    %%12 = add %%2, %%7  f32x16\n    %%13 = lane-reduce %%12 add of 16 lanes  f32\n    store b1[i0], %%13  f32\n  "
        "end\n}\n";
    machine m = zen(1);
    for (int n = 1024; n <= 64 << 10; n *= 64) { /* rows of 4 KB and of 256 KB */
        double all = 256.0 * n, distance[] = { 1e9, 1e9 };
        cost c = cost_of_text(f, &m, distance, text, 64 * n, n, n, n, n, n, n);
        assert_true(near(c.bytes[LEVEL_L1], 2 * all, 0.01));
        assert_true(near(c.bytes[LEVEL_L2], n == 1024 ? all : 2 * all, 0.01));
        assert_true(near(c.bytes[LEVEL_MEMORY], all, 0.01)); /* both rows stay in the second cache */
    }
}

/* Columns of a matrix: a line for each element, unless all lines of the column stay until its neighbour's turn. */
static void columns(fixture *f) {
    static const char text[] =
        "kernel @columns(b0 in f32[%d], b1 out f32[64]) tiled {\n  var i0 = 64 row\n  var r1 = %d reduce\n"
        "  loop i0 = 0 .. 64 step 1\n    %%2 = acc add 0.0  f32\n    loop r1 = 0 .. %d step 1\n"
        "      %%4 = load b0[i0 + 64*r1]  f32\n      update %%2 add %%4  f32\n    end\n"
        "    store b1[i0], %%2  f32\n  end\n}\n";
    machine m = zen(1);
    double distance[] = { 1e9, 1e9 };
    cost few = cost_of_text(f, &m, distance, text, 64 * 256, 256, 256),
         many = cost_of_text(f, &m, distance, text, 64 * 4096, 4096, 4096);
    assert_true(near(few.bytes[LEVEL_L2], 64 * 256 * 4, 0.05));
    assert_true(near(many.bytes[LEVEL_L2], 64.0 * 4096 * 64, 0.05)); /* 4096 lines do not stay in 48 KB .. */
    assert_true(near(many.bytes[LEVEL_L3], 64.0 * 4096 * 4, 0.05));  /* .. but in 1 MB */
    assert_true(many.latency_ns > many.issue_ns);                    /* one sum, one addition after the other */
}

/* What the units could do at best: multiply-adds, and memory that has to be moved. */
static double least_ns(const kernel *k, const machine *m) {
    double fma = 0, runs[MAX_LOOPS + 2] = { 1 };
    int depth = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) {
            runs[depth + 1] = runs[depth] * fmax(0, ceil((double)(in->hi - in->lo) / (double)in->step));
            depth++;
        }
        if (in->op == K_END) depth--;
        if (in->op == K_UPD && in->alu == OP_dot) fma += runs[depth] * k->ins.at[in->c].lanes * 4;
    }
    return fma / (m->fma_pipes * m->pipe_bytes) / m->ghz / (k->par_var >= 0 ? m->cores : 1);
}

static int n_gpu;

static bool writes_past(const kernel *k) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_STORE && k->ins.at[i].mode == STORE_NONTEMPORAL) return true;
    return false;
}

static void plans(fixture *f, uint64_t seed, int *out_kernels) {
    int differentiated;
    graph *g = randcase(&f->a, seed, &differentiated);
    target t = plan_target(seed);
    if (seed % 5 == 0) t = target_common_gpu();
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = (int)(seed % 4);
    plan *p = pipeline_run(g, &f->a, &o, &t);
    machine m = machine_of(&t), slow = m;
    slow.ghz /= 2;
    for (int l = 0; l < MACHINE_LEVELS; l++)
        slow.level[l].read /= 2, slow.level[l].write /= 2, slow.level[l].all /= 2, slow.level[l].ns *= 2;
    cost *c = ARENA_ARRAY(&f->a, cost, p->kernels.n + 1), *other = ARENA_ARRAY(&f->a, cost, p->kernels.n + 1);
    cost_plan(p, &m, &f->a, c), cost_plan(p, &slow, &f->a, other);
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        assert_true(isfinite(c[i].ns) && c[i].ns >= c[i].start_ns && c[i].start_ns > 0);
        if (!k->block_threads) assert_true(c[i].ns >= 0.99 * least_ns(k, &m));
        if (k->block_threads) { /* two flops for each multiply-add of all multiprocessors */
            assert_true(c[i].ns >= 0.9 * (double)k->flops / (2 * m.fma_pipes * m.cores * m.ghz));
            assert_true(c[i].bytes[LEVEL_MEMORY] <= 1.01 * c[i].bytes[LEVEL_L2] + 1);
            n_gpu++;
        }
        assert_true(other[i].ns >= c[i].ns * 0.999);
        for (int l = 0; l < MACHINE_LEVELS; l++) assert_true(isfinite(c[i].bytes[l]) && c[i].bytes[l] >= 0);
        if (!k->block_threads && !writes_past(k)) /* what comes from farther away passes the nearer levels */
            for (int l = LEVEL_L3; l < MACHINE_LEVELS; l++) assert_true(c[i].bytes[l] <= c[i].bytes[l - 1] * 1.5 + 4096);
        ++*out_kernels;
    }
}

static void in_arena(void (*run)(fixture *f)) {
    fixture f;
    arena_init(&f.a, mem_libc(), &f.gd);
    if (GUARD_TRY(&f.gd)) {
        run(&f);
    } else {
        printf("%s\n", f.gd.err.text);
        fail();
    }
    arena_fini(&f.a);
}

static void bytes_by_hand(void **state) {
    (void)state;
    in_arena(streams);
    in_arena(rows_that_stay);
    in_arena(columns);
}

static uint64_t plan_seed;
static int n_kernels;
static void one_plan(fixture *f) { plans(f, plan_seed, &n_kernels); }

static void random_plans_are_possible(void **state) {
    (void)state;
    for (plan_seed = 1; plan_seed <= 300; plan_seed++) in_arena(one_plan);
    assert_true(n_kernels > 300 && n_gpu > 30);
    printf("count: %d kernels of 300 random graphs priced\n", n_kernels);
}

/* Two threads take half of what one does, and meet. */
static void threads_share(fixture *f) {
    static const char text[] =
        "kernel @exp(b0 in f32[65536], b1 out f32[65536]) tiled parallel i0 {\n  var i0 = 4096 row\n"
        "  var i1 = 16 row lanes 16\n  loop i0 = 0 .. 4096 step 1\n    %2 = load b0[16*i0] step 1  f32x16\n"
        "    %3 = exp %2  f32x16\n    store b1[16*i0] step 1, %3  f32x16\n  end\n}\n";
    machine one = zen(1), two = zen(2);
    kernel *k = kernel_parse(&f->a, text, strlen(text), "test");
    cost x = cost_kernel(k, &one, NULL, &f->a), y = cost_kernel(k, &two, NULL, &f->a);
    assert_true(near(y.issue_ns, x.issue_ns / 2, 0.01));
    assert_true(y.ns < x.ns && y.start_ns > x.start_ns);
}

/* A vector of four a thread of a GPU: what memory takes, and what the launch does where there is little of it. */
static void gpu_streams(fixture *f) {
    static const int64_t grid_blocks[] = { 1, 65536 };
    const machine *m = machine_row("h200");
    for (int i = 0; i < 2; i++) {
        long long threads = grid_blocks[i] * 256;
        const char *text = arena_printf(
            &f->a,
            "kernel @exp(b0 in f32[%lld], b1 out f32[%lld]) tiled blocks %lld threads 256 {\n  var i0 = %lld row\n"
            "  loop i0 = 0 .. %lld step 1 grid-threads\n    %%2 = load b0[4*i0] step 1  f32x4\n    %%3 = exp %%2  f32x4\n"
            "    store b1[4*i0] step 1, %%3  f32x4\n  end\n}\n",
            4 * threads, 4 * threads, (long long)grid_blocks[i], threads, threads);
        kernel *k = kernel_parse(&f->a, text, strlen(text), "test");
        k->bytes_read = k->bytes_written = (uint64_t)threads * 16;
        cost c = cost_kernel(k, m, NULL, &f->a);
        double ns = 2 * (double)threads * 16 / m->level[LEVEL_MEMORY].all;
        assert_true(near(c.bytes[LEVEL_MEMORY], i ? 2 * (double)threads * 16 : 0, 0.01));
        assert_true(i ? c.ns > ns && c.ns < 1.1 * ns + 2 * m->start_ns : c.ns < 2 * m->start_ns);
        assert_int_equal(c.bound, i ? BOUND_MEMORY : BOUND_START);
    }
}

/* A block reads a column of a matrix: pieces of one sector come at half the rate of L2, whichever column it is. */
static void gpu_column(fixture *f) {
    static const int apart[] = { 1, 1024 }; /* elements */
    const machine *m = machine_row("h200");
    double rate[2];
    for (int i = 0; i < 2; i++) {
        const char *text = arena_printf(
            &f->a,
            "kernel @sum(b0 in f32[2097152], b1 out f32[1024]) tiled blocks 1024 threads 256 {\n  var i0 = 1024 row\n"
            "  var r1 = 2048 reduce\n  var one2 = 1\n  loop i0 = 0 .. 1024 step 1 blocks\n    %%2 = acc add 0.0  f32\n"
            "    loop r1 = 0 .. 2048 step 1 block-threads\n      %%4 = load b0[%d*i0 + %d*r1]  f32\n      update %%2 add %%4  "
            "f32\n"
            "    end\n    %%7 = block-reduce %%2 add  f32\n    loop one2 = 0 .. 1 step 1 block-threads\n      store b1[i0], "
            "%%7  f32\n"
            "    end\n  end\n}\n",
            apart[1 - i] > 1 ? 2048 : 1, apart[i]);
        kernel *k = kernel_parse(&f->a, text, strlen(text), "test");
        k->bytes_read = 2097152 * 4, k->bytes_written = 4096;
        cost c = cost_kernel(k, m, NULL, &f->a);
        rate[i] = c.bytes[LEVEL_L2] / c.level_ns[LEVEL_L2];
        assert_true(c.bytes[LEVEL_L2] > (i ? 32 : 4) * 2097152.0);
    }
    assert_true(near(rate[0], 2 * rate[1], 0.05));
}

static void threads_of_gpus(void **state) {
    (void)state;
    in_arena(gpu_streams);
    in_arena(gpu_column);
}

static void two_threads(void **state) {
    (void)state;
    in_arena(threads_share);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_by_hand),
        cmocka_unit_test(two_threads),
        cmocka_unit_test(threads_of_gpus),
        cmocka_unit_test(random_plans_are_possible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
