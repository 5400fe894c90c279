/* test_plan_text.c - plans print and read back: the same text, the same kernels, no problems, and the interpreter computes the
 * same bits, and the code generators write the same source. Random graphs, half of them differentiated, and all builtin models
 * at every fusion level, for processors and GPUs; texts with mistakes.
 *
 * Labels: random long
 * TENON_FUZZ_SEEDS: how many graphs (default 500); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "emit/emit.h"
#include "support/plan_run.h"

/* Every third machine is a GPU. */
static target any_target(uint64_t seed) {
    if (seed % 3) return plan_target(seed / 3);
    target t = target_common_gpu();
    t.block_threads = 32, t.cluster = seed / 3 % 3 == 1 ? 4 : 0, t.clusters = t.cluster ? 16 : 0,
    t.resident_threads = seed / 9 % 2 ? 512 : 1 << 17;
    return t;
}

static void fill_input(const pio *io, void *to, rng *r) {
    int64_t n = io->bytes / (int64_t)dtype_size((tn_dtype)io->dtype);
    for (int64_t i = 0; i < n; i++)
        if (dtype_is_float((tn_dtype)io->dtype))
            dtype_store((tn_dtype)io->dtype, to, i, rng_range(r, -2, 2));
        else
            dtype_store_int((tn_dtype)io->dtype, to, i, rng_below(r, io->dtype == TN_BOOL ? 2 : 5));
}

/* Both run on the same inputs and states; what q has of constants comes from its text. The loop of p goes several times over
 * rings of inputs and outputs; q goes once for each of them, with the inputs of that iteration, and must give the same bits. */
enum { MOST_STEPS = 4, MOST_BYTES = 1 << 16 /* of inputs and outputs of a plan that goes several times */ };

static void fill_ring(const pio *io, int64_t stride, int64_t length, void *to, rng *r) {
    for (int64_t k = 0; k < length; k++) fill_input(io, (char *)to + k * stride, r);
}

/* How often p goes, and the rings of its inputs and outputs in n memories: length 0 = the same in each iteration. */
static int64_t make_rings(const plan *p, eval_memory *m, arena *a, rng *r, int64_t *length, int64_t *stride) {
    int64_t bytes = p->temp_bytes;
    for (int i = 0; i < p->io.n; i++) bytes += p->io.at[i].bytes;
    int64_t steps = plan_loop(p) && bytes <= MOST_BYTES ? rng_between(r, 1, MOST_STEPS) : 1;
    for (int i = 0; i < p->io.n; i++) {
        const pio *io = &p->io.at[i];
        length[i] = rng_below(r, 2) ? rng_between(r, 1, io->is_output ? steps : 3) : 0; /* a trace, or a ring of batches */
        stride[i] = plan_ring_stride(io->bytes, io->bytes, plan_is_for_gpus(p));
        int64_t room = length[i] ? length[i] : 1;
        m->io[i] = arena_alloc(a, (size_t)(room * stride[i] + 1));
        memset(m->io[i], EVAL_POISON, (size_t)(room * stride[i]));
        if (!io->is_output) fill_ring(io, stride[i], room, m->io[i], r);
    }
    return steps;
}

static void check_same_values(const plan *p, const plan *q, arena *a, rng *r) {
    eval_memory *m = eval_memory_make(p, a), *n = eval_memory_make(q, a);
    int64_t *length = ARENA_ARRAY(a, int64_t, p->io.n + 1), *stride = ARENA_ARRAY(a, int64_t, p->io.n + 1);
    memcpy(n->state, m->state, (size_t)p->state_bytes), memcpy(n->shared, m->shared, (size_t)p->shared_bytes);
    assert_memory_equal(m->consts, n->consts, (size_t)p->const_bytes);
    int64_t steps = make_rings(p, m, a, r, length, stride);
    eval_plan_n(p, m, steps, length, a);
    for (int64_t step = 0; step < steps; step++) {
        for (int i = 0; i < p->io.n; i++)
            if (!p->io.at[i].is_output)
                memcpy(n->io[i], (char *)m->io[i] + (length[i] ? step % length[i] * stride[i] : 0), (size_t)p->io.at[i].bytes);
        eval_plan(q, n, a);
        for (int i = 0; i < p->io.n; i++) {
            bool last = step + (length[i] ? length[i] : 1) >= steps; /* nothing is written over it */
            if (p->io.at[i].is_output && last)
                assert_memory_equal((char *)m->io[i] + (length[i] ? step % length[i] * stride[i] : 0), n->io[i],
                                    (size_t)p->io.at[i].bytes);
        }
    }
    assert_memory_equal(m->state, n->state, (size_t)p->state_bytes);
}

static void check_same_tables(const plan *p, const plan *q) {
    assert_int_equal(p->io.n, q->io.n);
    for (int i = 0; i < p->io.n; i++) {
        const pio *x = &p->io.at[i], *y = &q->io.at[i];
        assert_string_equal(x->name, y->name);
        assert_true(x->is_output == y->is_output && x->node == y->node && x->dtype == y->dtype && x->buf == y->buf &&
                    x->bytes == y->bytes && p->bufs.at[x->buf].io == q->bufs.at[x->buf].io);
    }
    assert_int_equal(p->states.n, q->states.n);
    for (int i = 0; i < p->states.n; i++) {
        const pstate *x = &p->states.at[i], *y = &q->states.at[i];
        assert_string_equal(x->name, y->name);
        assert_true(x->node == y->node && x->buf == y->buf && x->given == y->given);
        assert_int_equal(graph_is_assigned(p->g, x->node), graph_is_assigned(q->g, y->node));
        assert_int_equal(p->bufs.at[x->buf].next_panels, q->bufs.at[y->buf].next_panels);
    }
    assert_true(p->threads == q->threads && p->fusion == q->fusion);
}

static void check_same_kernels(const plan *p, const plan *q, str *problems) {
    assert_int_equal(p->kernels.n, q->kernels.n);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *x = &p->kernels.at[i], *y = &q->kernels.at[i];
        const kernel *k = y->k; /* the same text as x->k */
        if (kernel_check(k, problems)) fail_msg("%s", problems->s);
        assert_true(x->barrier == y->barrier && x->code == y->code && !strcmp(x->k->name, k->name));
        for (int b = 0; b < k->bufs.n; b++) {
            assert_int_equal(x->args[b].buf, y->args[b].buf);
            if (y->args[b].buf >= 0) assert_int_equal(x->k->bufs.at[b].node, k->bufs.at[b].node);
        }
    }
}

static void check_same_steps(const plan *p, const plan *q) {
    assert_int_equal(p->steps.n, q->steps.n);
    for (int i = 0; i < p->steps.n; i++) {
        const pstep *x = &p->steps.at[i], *y = &q->steps.at[i];
        assert_true(x->kind == y->kind && x->inside == y->inside && x->kernel == y->kernel && x->overlaps == y->overlaps);
        assert_int_equal(x->n_rings, y->n_rings);
        for (int k = 0; k < x->n_rings; k++)
            assert_true(x->rings[k].buf == y->rings[k].buf && x->rings[k].stride == y->rings[k].stride);
    }
}

static void check_same_source(const plan *p, const plan *q, const target *t, arena *a) {
    str x, y;
    str_init(&x, a), str_init(&y, a);
    if (t->kind == TARGET_GPU)
        emit_gpu(p, GPU_CUDA, &x), emit_gpu(q, GPU_CUDA, &y);
    else
        emit_c(p, t, &x), emit_c(q, t, &y);
    assert_string_equal(x.s, y.s);
}

static void check_plan_text(const plan *p, const target *t, arena *a, rng *r) {
    str x, y, problems;
    str_init(&x, a), str_init(&y, a), str_init(&problems, a);
    plan_print(p, &x);
    plan *q = plan_parse(a, x.s, x.n, "plan");
    plan_print(q, &y);
    assert_string_equal(x.s, y.s);
    check_same_tables(p, q);
    check_same_kernels(p, q, &problems);
    check_same_steps(p, q);
    if (plan_check(q, &problems)) fail_msg("%s", problems.s);
    check_same_values(p, q, a, r);
    check_same_source(p, q, t, a);
}

static void test_random_plans(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(500, &first), constants = 0, panels = 0, kernels = 0, loops = 0, overlaps = 0;
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_LOOP, TN_MODE_GRAPH, TN_MODE_LOOP };
    int differentiated = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        rng r = rng_make(seed);
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        graph *g = randcase(&a, seed, &differentiated);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = (int)(seed % 4), o.no_passes = seed / 4 % 5 == 0, o.mode = modes[seed / 3 % COUNT_OF(modes)];
        target t = any_target(seed);
        plan *p = pipeline_run(g, &a, &o, &t);
        for (int i = 0; i < p->bufs.n; i++) constants += p->bufs.at[i].kind == PB_CONST, panels += p->bufs.at[i].panels != NULL;
        kernels += (uint64_t)p->kernels.n;
        loops += plan_loop(p) != NULL, overlaps += plan_loop(p) && plan_loop(p)->overlaps;
        check_plan_text(p, &t, &a, &r);
        arena_fini(&a);
    }
    printf("count: %llu plans of random graphs read back, %d of them differentiated: %llu launches, %llu constants, %llu in "
           "panels; %llu have a loop, %llu one whose iterations may overlap\n",
           (unsigned long long)n, differentiated, (unsigned long long)kernels, (unsigned long long)constants,
           (unsigned long long)panels, (unsigned long long)loops, (unsigned long long)overlaps);
}

static char *graph_text(const char *model, size_t *n) {
    char command[512], *text = NULL;
    size_t room = 0;
    snprintf(command, sizeof command, "%s/tenon emit %s --target=graph --no-passes --quiet", BUILD_DIR, model);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    for (*n = 0;;) {
        if (room - *n < 4096) text = realloc(text, room = 2 * room + 8192);
        size_t got = fread(text + *n, 1, room - *n, f);
        if (!got) break;
        *n += got;
    }
    assert_int_equal(pclose(f), 0);
    return text;
}

static void test_builtin_models(void **state) {
    (void)state;
    static const char *const models[] = {
        "@mlp:3x16x8",       "@linear:8x24x16",          "@matmul:24x32x20",       "@product:8x8x8",
        "@product_nt:8x9x8", "@product_tn:8x9x8",        "@linear_softmax:8x16x8", "@relu:8x9",
        "@softmax:4x33",     "@layernorm:4x32",          "@conv:1x6x6x3x4",        "@conv1d:1x64x1x1x8",
        "@maxpool:1x4x4x3",  "@fractional_pool:1x9x2x5", "@attention:1x8x8",       "@cnn:1",
        "@digits:1",         "@digits-train:2",          "@classifier-train:2"
    };
    bool few = TEST_SANITIZED || campaign_is_short();
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        size_t n;
        char *text = graph_text(models[i], &n);
        for (int fusion = 0; fusion < 4; fusion++)
            for (uint64_t machine = 0; machine < 4; machine++) {
                if (few && machine != (i + (size_t)fusion) % 4) continue; /* each level and machine, not each pair */
                arena a;
                guard gd;
                rng r = rng_make(i);
                arena_init(&a, mem_libc(), &gd);
                if (!GUARD_TRY(&gd)) fail_msg("%s, fusion %d: %s", models[i], fusion, gd.err.text);
                tn_compile_opts o = TN_COMPILE_DEFAULTS;
                o.fusion = fusion;
                target t = any_target(machine);
                check_plan_text(pipeline_run(graph_parse(&a, text, n, models[i]), &a, &o, &t), &t, &a, &r);
                arena_fini(&a);
            }
        free(text);
    }
    printf("count: plans of %d models, 4 fusion levels, %s\n", (int)COUNT_OF(models),
           few ? "each for one of 4 machines" : "4 machines");
}

/* ---- texts with mistakes ---- */

#define HEAD "plan @p fusion=3 threads=2 temp=0 bound=0 state=0 shared=0 const=256 {\n"
#define X "  buffer b0 input f32[4] slot=6 offset=0 bytes=16 ; %1 \"x\"\n"
#define Y "  buffer b1 output f32[4] slot=7 offset=0 bytes=16 ; %2 \"y\"\n"
#define COPY                                                                                                                   \
    "}\nkernel @k(b0 in f32[4], b1 out f32[4]) tiled {\n  %1 = load b0[0] step 1  f32x4\n  store b1[0] step 1, %1  f32x4\n}\n"

static void test_bad_texts(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        { "", "t:1:1: expected plan" },
        { "plan @p fusion=4 ", "t:1:16: expected a fusion level, 0 to 3" },
        { "plan @p fusion=3 threads=2 temp=-1", "t:1:33: expected a number of bytes" },
        { HEAD "  value %0", "t:2:10: expected the number of a value" },
        { HEAD "  value %70000 f32[1]", "t:2:10: expected the number of a value" },
        { HEAD "  value %1 f32[1] = x\"00112\"", "t:2:28: expected two hexadecimal digits a byte of the value" },
        { HEAD "  value %1 f32[9999999999] = x\"00\"", "t:2:32: expected the bytes of the value" },
        { HEAD "  value %1 i8[1] = x\"00\" value %1 i8[1]", "t:2:40: expected a value that has no data yet" },
        { HEAD "  buffer b0 heap", "t:2:13: expected temp, state, const, input, output, states or window" },
        { HEAD X "  buffer b0 temp", "t:3:11: expected a buffer's number, larger than those above" },
        { HEAD "  buffer b0 input f32[4] slot=7 offset=0 bytes=16 ; %1 \"x\"",
          "t:2:55: expected slots of inputs and outputs in order" },
        { HEAD X "  buffer b1 const f32[5] slot=3 offset=0 bytes=20 ; %1\n",
          "t:3:55: expected a value of the same type as before" },
        { HEAD X "  buffer b1 temp f32[4] slot=0 offset=0 bytes=16 live=0..0 inplace=b1", "t:3:70: expected another buffer" },
        { HEAD X "  buffer b1 temp f32[4] slot=0 offset=0 bytes=16 live=0..0 inplace=b2\n}",
          "t:4:1: expected the buffer whose place another one takes" },
        { HEAD X Y "  launch k1(", "t:4:11: expected the number of this launch or one above" },
        { HEAD X Y "  launch k0(in b2", "t:4:17: expected a buffer of the plan" },
        { HEAD X Y "  launch k0(at b0", "t:4:13: expected in, out or inout" },
        { HEAD X Y "  launch k0(in b0) ; k\n" COPY, "t:4:9: expected a launch with the arguments of its kernel" },
        { HEAD X Y "  launch k0(in b0, out b1, in b0) ; k\n" COPY,
          "t:4:9: expected a launch with no more arguments than its kernel" },
        { HEAD X Y "  launch k0(in b0, in b1) ; k\n" COPY, "t:4:9: expected a launch with the arguments of its kernel" },
        { HEAD X Y "  launch k0(in b0, out b1) ; k\n}", "t:5:2: expected kernel" },
        { HEAD X Y "  launch k0(in b0, out b1) ; k\n" COPY "kernel", "t:10:1: expected the end of the text" },
        { HEAD "  barrier\n}", "t:3:1: expected launch" },
        { HEAD X Y "  loop 3 {", "t:4:8: expected {" },
        { HEAD X Y "  branch b2 {", "t:4:11: expected a buffer of the plan" },
        { HEAD X Y "  branch b0 {\n  }\n  else {", "t:6:9: expected launch" },
        { HEAD X Y "  branch b0 {\n  } else {\n  } else {", "t:6:5: expected launch" },
        { HEAD X Y "  leave if b0", "t:4:9: expected unless" },
        { HEAD X Y "  leave unless b2", "t:4:17: expected a buffer of the plan" },
        { HEAD X Y "  loop steps ring() {", "t:4:19: expected a buffer" },
        { HEAD X Y "  loop steps ring(b2 stride=16) {", "t:4:20: expected a buffer of the plan" },
        { HEAD X Y "  loop steps ring(b0 stride=-16) {", "t:4:29: expected a number of bytes" },
        { HEAD X Y "  loop steps ring(b0 stride=16 b1 stride=16) {", "t:4:32: expected )" },
        { HEAD X Y "  loop steps overlap 2 ring(b0 stride=16) {", "t:4:24: expected {" },
        { HEAD X Y "  loop steps {\n    launch k0(in b0, out b1) ; k\n" COPY, "t:7:1: expected launch" },
        { HEAD X Y "  launch k0(in b0, out b1) ; k\n  }\n" COPY, "t:6:1: expected kernel" },
        { HEAD "  buffer b0 state f32[4] slot=2 offset=0 bytes=16 panels 0 columns 4 step 1 ; %1 \"w\"\n}",
          "t:2:58: expected columns of a panel" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (GUARD_TRY(&gd)) {
            plan_parse(&a, bad[i].text, strlen(bad[i].text), "t");
            fail_msg("accepted: %s", bad[i].text);
        }
        if (strcmp(gd.err.text, bad[i].message)) fail_msg("%s, not %s: %s", gd.err.text, bad[i].message, bad[i].text);
        assert_int_equal(gd.err.code, TN_ERR_PARSE);
        arena_fini(&a);
    }
}

/* What reads, and what plan_check says of it. */
#define LOOP(rings, steps) HEAD X Y "  loop steps" rings " {\n" steps "  }\n" COPY
#define RINGS " ring(b0 stride=16, b1 stride=16)"
#define LAUNCH "    launch k0(in b0, out b1) ; k\n"

static void test_bad_plans(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } bad[] = {
        { HEAD X Y "  launch k0(in b0, out b1) ; k\n" COPY, NULL },
        { HEAD X "  buffer b1 output f32[4] slot=7 offset=256 bytes=16 ; %2 \"y\"\n  launch k0(in b0, out b1) ; k\n" COPY,
          "b1 ends at byte 272" },
        { HEAD X Y "}", "output b1 is never written" },
        { HEAD X "  buffer b1 input f32[4] slot=7 offset=0 bytes=16 ; %2 \"y\"\n  launch k0(in b0, out b1) ; k\n" COPY,
          "writes b1, an input or a constant" },
        { HEAD "  buffer b0 const f32[4] slot=3 offset=0 bytes=16 ; %1\n  buffer b1 output f32[4] slot=6 offset=0 bytes=16 ; "
               "%2 \"y\"\n"
               "  launch k0(in b0, out b1) ; k\n" COPY,
          "b0 has no value" },
        { HEAD "  value %1 f32[4] = x\"00000000000000000000000000000000\"\n"
               "  buffer b0 const f32[4] slot=3 offset=512 bytes=16 ; %1\n}",
          "b0 ends at byte 528 of slot 3" },
        { HEAD "  value %1 f32[4] = x\"00000000000000000000000000000000\"\n"
               "  buffer b0 const f32[8] slot=3 offset=0 bytes=32 copy panels 2 columns 4 step 1 depth 2 step 4 ; %1\n}",
          "not all of them of its value" },
        { LOOP(RINGS, LAUNCH), NULL },
        { LOOP(RINGS " overlap 2", LAUNCH), NULL },
        { LOOP("", LAUNCH), "\"x\" (b0) does not move in the loop" },
        { LOOP(" ring(b0 stride=16, b1 stride=12)", LAUNCH), "moves by 12 from iteration to iteration, expected 16" },
        { LOOP(RINGS, "    loop steps {\n" LAUNCH "    }\n"), "step 1 is a loop over the steps of a run, but not around all" },
        { HEAD X Y "  loop steps" RINGS " {\n  }\n  launch k0(in b0, out b1) ; k\n" COPY, "step 1 stands outside of the loop" },
        { HEAD X Y "  launch k0(in b0, out b1) ; k\n  loop steps" RINGS " {\n  }\n" COPY, "step 1 is a loop over the steps" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        arena a;
        guard gd;
        str out;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
        str_init(&out, &a);
        int n = plan_check(plan_parse(&a, bad[i].text, strlen(bad[i].text), "t"), &out);
        assert_int_equal(n > 0, bad[i].problem != NULL);
        if (n && !strstr(out.s, bad[i].problem)) fail_msg("%s: not in: %s", bad[i].problem, out.s);
        arena_fini(&a);
    }
}

/* Bytes changed, taken away and doubled: what still reads prints and reads back, and the checks survive it. */
static void check_damaged(const char *text, size_t n, rng *r, int *read) {
    static const char signs[] = "0123456789-b%[]()=;\"kx .,";
    arena a;
    guard gd;
    char *bytes = malloc(2 * n);
    size_t at = (size_t)rng_below(r, (int64_t)n), m = n;
    assert_non_null(bytes);
    memcpy(bytes, text, n);
    if (rng_below(r, 2)) { /* another digit */
        while (at < n && (bytes[at] < '0' || bytes[at] > '9')) at++;
        if (at < n) bytes[at] = (char)('0' + rng_below(r, 10));
    } else {
        if (rng_below(r, 3) == 0)
            m -= (size_t)rng_below(r, (int64_t)(n - at)), memmove(bytes + at, text + at + (n - m), m - at);
        else if (rng_below(r, 3) == 0)
            memcpy(bytes + at, text, n), m = at + n;
        for (int64_t i = rng_below(r, 4); i >= 0; i--) bytes[rng_below(r, (int64_t)m)] = signs[rng_below(r, sizeof signs - 1)];
    }
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        str x, y, problems;
        bool good = true;
        str_init(&x, &a), str_init(&y, &a), str_init(&problems, &a);
        plan *p = plan_parse(&a, bytes, m, "t");
        plan_print(p, &x);
        plan_print(plan_parse(&a, x.s, x.n, "printed"), &y);
        assert_string_equal(x.s, y.s);
        for (int i = 0; i < p->kernels.n; i++) good = good && kernel_check(p->kernels.at[i].k, &problems) == 0;
        if (good) plan_check(p, &problems);
        ++*read;
    } else if (gd.err.code != TN_ERR_PARSE && gd.err.code != TN_ERR_NOMEM) {
        fail_msg("%s", gd.err.text);
    }
    arena_fini(&a);
    free(bytes);
}

static void test_damaged_texts(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(500, &first);
    int differentiated = 0, read = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        str text;
        rng r = rng_make(seed);
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        str_init(&text, &a);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = (int)(seed % 4);
        target t = any_target(seed);
        plan_print(pipeline_run(randcase(&a, seed, &differentiated), &a, &o, &t), &text);
        for (int i = 0; i < 4; i++) check_damaged(text.s, text.n, &r, &read);
        arena_fini(&a);
    }
    printf("count: %llu damaged plans, of which %d still read\n", (unsigned long long)(4 * n), read);
    assert_true(n < 100 || read > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bad_texts), cmocka_unit_test(test_bad_plans),
                                        cmocka_unit_test(test_random_plans), cmocka_unit_test(test_damaged_texts),
                                        cmocka_unit_test(test_builtin_models) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
