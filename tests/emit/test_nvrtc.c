/* test_nvrtc.c - CUDA C compiles: every kernel of networks, of a training step and of random graphs with gradients goes through
 * NVRTC for sm_80 and sm_90, without a GPU, and keeps its values in registers; the program's text of each network goes through
 * nvcc too. What there is no compiler for is skipped.
 *
 * Labels: slow random
 * TENON_FUZZ_SEEDS (default 1000): a hundredth of it random graphs, a fifth of a second each. A short campaign: a fifth of the
 * networks and of attention's, norms' and products' cases, in turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/drive.h"
#include "machine/machine.h"
#include "emit/emit.h"
#include "grad/grad.h"
#include "rt/nvrtc.h"
#include "support/support.h"

static nvrtc *the_nvrtc;
static int n_kernels, n_programs, n_spills, n_nvcc;

static void need_nvrtc(void) {
    err e = { 0 };
    if (the_nvrtc) return;
    if (nvrtc_open(mem_libc(), &the_nvrtc, &e) == TN_OK) return;
    printf("skipped: %s\n", e.text);
    skip();
}

/* Kernels that spill more than so many bytes of registers, as ptxas says. */
static int count_spills(const char *log, int most) {
    int n = 0;
    for (const char *s = log, *line = log; s && (s = strstr(s, " bytes spill stores")); s++) {
        for (line = s; line > log && line[-1] >= '0' && line[-1] <= '9'; line--) {
        }
        n += atoi(line) > most;
    }
    return n;
}

static void compile_for(const char *source, const char *what, int arch, int last) {
    for (; arch <= last; arch += 10) {
        unsigned char *image;
        size_t size;
        char *log;
        err e = { 0 };
        if (nvrtc_compile(the_nvrtc, source, arch, &image, &size, &log, &e)) {
            fprintf(stderr, "%s\n", source);
            fail_msg("%s, sm_%d: %s", what, arch, e.text);
        }
        assert_true(size > 500);
        n_spills += count_spills(log, 0);
        mem_strfree(mem_libc(), log);
        mem_free(mem_libc(), image, size);
        n_programs++;
    }
}

static void compile(const char *source, const char *what) { compile_for(source, what, 80, 90); }

static void compile_graph(graph *g, arena *a, int fusion, const char *what) {
    str text;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = fusion, o.check = 1;
    target gpu = target_common_gpu();
    plan *p = pipeline_run(g, a, &o, &gpu);
    for (int i = 0; i < p->kernels.n; i++) n_kernels += p->kernels.at[i].code == i;
    str_init(&text, a);
    emit_gpu(p, GPU_CUDA, &text);
    compile(text.s, what);
}

static void test_random_graphs(void **state) {
    (void)state;
    need_nvrtc();
    uint64_t first, n = (fuzz_seeds(1000, &first) + 99) / 100;
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        int differentiated;
        char name[64];
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        snprintf(name, sizeof name, "seed %d", (int)seed);
        compile_graph(randcase(&a, seed, &differentiated), &a, (int)(seed % 4), name);
        const char *control = randcontrol(&a, seed, true);
        if (seed % 3 == 0) compile_graph(graph_parse(&a, control, strlen(control), name), &a, (int)(seed / 3 % 4), name);
        arena_fini(&a);
    }
}

static target an_h200(void);

/* Programs with sizes of the run: schedules of the largest sizes that are cut, with and without matrix units, and threads that
 * do an iteration each. */
static void test_sizes_of_the_run(void **state) {
    (void)state;
    static const char *const texts[] = {
        "graph @mlp<B 1..512>(x f32[B,784], w f32[784,512], b f32[1,512], v f32[512,10]) {\n  %1 = dot x, w f32[B,512]\n"
        "  %2 = expand b f32[B,512]\n  %3 = add %1, %2 f32[B,512]\n  %4 = max %3, 0.0 f32[B,512]\n"
        "  %5 = dot %4, v f32[B,10]\n  return %5 as \"y\"\n}\n",
        "graph @units<B 1..1024>(x bf16[B,512], w bf16[512,512]) {\n  %1 = dot x, w bf16[B,512]\n"
        "  %2 = max %1, 0.0 bf16[B,512]\n  return %2 as \"y\"\n}\n",
        "graph @boxes<B 1..64, L 1..512>(x f32[B,L,64], w bf16[64,256], v bf16[256,64]) {\n" /* none of sizes of a run */
        "  %1 = cast x bf16[B,L,64]\n  %2 = dot %1, w contract=[2]x[0] bf16[B,L,256]\n  %3 = max %2, 0.0 bf16[B,L,256]\n"
        "  %4 = dot %3, v contract=[2]x[0] bf16[B,L,64]\n  %5 = cast %4 f32[B,L,64]\n  %6 = add x, %5 f32[B,L,64]\n"
        "  return %6 as \"y\"\n}\n",
        "graph @softmax<B 1..64, L 1..512>(x f32[B,L], y f32[B,2048]) {\n  %1 = reduce_max x axes=[1] f32[B,1]\n"
        "  %2 = expand %1 f32[B,L]\n  %3 = sub x, %2 f32[B,L]\n  %4 = exp %3 f32[B,L]\n  %5 = sum %4 axes=[1] f32[B,1]\n"
        "  %6 = expand %5 f32[B,L]\n  %7 = div %4, %6 f32[B,L]\n  %8 = exp y f32[B,2048]\n"
        "  %9 = sum %8 axes=[1] f32[B,1]\n  %10 = expand %9 f32[B,2048]\n  %11 = div %8, %10 f32[B,2048]\n"
        "  return %7 as \"z\", %11 as \"u\"\n}\n",
        "graph @scores<B 1..8, L 1..512>(q f32[B,L,64], k f32[B,L,64], i i64[B,L], t f32[1000,64]) {\n"
        "  %1 = dot q, k batch=[0]x[0] contract=[2]x[2] f32[B,L,L]\n  %2 = exp %1 f32[B,L,L]\n"
        "  %3 = dot %2, k batch=[0]x[0] contract=[2]x[1] f32[B,L,64]\n  %4 = gather t, i axis=0 f32[B,L,64]\n"
        "  %5 = add %3, %4 f32[B,L,64]\n  %6 = sum %5 axes=[0,1,2] f32[1,1,1]\n  return %5 as \"y\", %6 as \"z\"\n}\n",
        "graph @places<B 1..9, L 2..40>(x f32[B,L,6]) {\n"
        "  %1 = slice x start=[0,L - floor(L / 2),0] step=[1,1,1] f32[B,floor(L / 2),6]\n"
        "  %2 = concat x, %1 axis=1 f32[B,L + floor(L / 2),6]\n"
        "  %3 = pad x before=[0,40 - L,0] after=[2,1,0] value=0.5 f32[B + 2,41,6]\n  %4 = exp %3 f32[B + 2,41,6]\n"
        "  return %2 as \"y\", %4 as \"z\"\n}\n",
    };
    need_nvrtc();
    for (size_t i = 0; i < 3 * COUNT_OF(texts); i++) {
        arena a;
        guard gd;
        str text;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s\n%s", gd.err.text, texts[i / 3]);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target gpu = target_common_gpu();
        if (i % 3 == 1) gpu.matrix_units = true, gpu.shared_most = 99 << 10, gpu.cluster = 8, gpu.clusters = 16;
        if (i % 3 == 2) gpu = an_h200(), gpu.cluster = 8, gpu.clusters = 16, gpu.bulk = true;
        o.check = 1;
        str_init(&text, &a);
        emit_gpu(pipeline_run(graph_parse(&a, texts[i / 3], strlen(texts[i / 3]), "t"), &a, &o, &gpu), GPU_CUDA, &text);
        compile_for(text.s, texts[i / 3], gpu.cluster ? 90 : 80, 90);
        arena_fini(&a);
    }
}

/* Whether the buffer is restricted in the text of the kernel. */
static bool is_restricted(const char *text, int kernel, int buf) {
    char name[32], word[48];
    snprintf(name, sizeof name, "tn_kernel_%d(", kernel);
    const char *from = strstr(text, name), *to = from ? strchr(from, '{') : NULL;
    assert_non_null(to);
    for (const char *end = ",)"; *end; end++) {
        snprintf(word, sizeof word, "__restrict__ b%d%c", buf, *end);
        const char *at = strstr(from, word);
        if (at && at < to) return true;
    }
    return false;
}

/* Memory that a kernel writes and reads is not restricted: a compiler would keep what threads read before they met. */
static void test_read_back(void **state) {
    (void)state;
    int read_back = 0, others = 0;
    for (uint64_t seed = 400; seed < 440; seed++) { /* 435: in place, wrong on an H200 once */
        arena a;
        guard gd;
        int differentiated;
        str text;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %d: %s", (int)seed, gd.err.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target gpu = target_common_gpu();
        o.fusion = 3;
        plan *p = pipeline_run(randcase(&a, seed, &differentiated), &a, &o, &gpu);
        str_init(&text, &a);
        emit_gpu(p, GPU_CUDA, &text);
        for (int i = 0; i < p->kernels.n; i++) {
            const kernel *k = p->kernels.at[i].k;
            for (int b = 0; b < k->bufs.n && p->kernels.at[i].code == i; b++) {
                bool loaded = false;
                for (int j = 1; j < k->ins.n; j++) loaded |= k->ins.at[j].op == K_LOAD && k->ins.at[j].buf == b;
                if (kbuf_is_local(&k->bufs.at[b]) || k->bufs.at[b].kind == KB_IN) continue;
                if (loaded) assert_false(is_restricted(text.s, i, b));
                read_back += loaded, others += !loaded && is_restricted(text.s, i, b);
            }
        }
        arena_fini(&a);
    }
    assert_true(read_back > 5 && others > 5);
}

/* Kernels that do not need each other, each with groups of its own: products, whose threads meet, and updates; products on
 * matrix units, each of which waits for its own sums. */
static void check_beside(const char *text, bool matrix_units) {
    arena a;
    guard gd;
    str out;
    need_nvrtc();
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target gpu = target_common_gpu();
    gpu.shared_most = 227 << 10, gpu.matrix_units = matrix_units, gpu.machine = machine_find("sm_90", true);
    o.check = 1, o.fusion = 3;
    plan *p = pipeline_run(graph_parse(&a, text, strlen(text), "beside"), &a, &o, &gpu);
    str_init(&out, &a);
    emit_gpu(p, GPU_CUDA, &out);
    assert_int_equal(matrix_units, strstr(out.s, " settle(v") != NULL);
    assert_true(p->kernels.n < 4);
    assert_non_null(strstr(out.s, "(group - "));
    compile(out.s, "beside");
    arena_fini(&a);
}

static void test_beside(void **state) {
    (void)state;
    check_beside("graph @g(x f32[512,256], a f32[256,512], b f32[256,512], g f32[5000], h f32[70], state v f32[5000],"
                 " state w f32[70]) {\n %1 = dot x, a f32[512,512]\n %2 = dot x, b f32[512,512]\n"
                 " %3 = sub v, g f32[5000]\n %4 = sub w, h f32[70]\n"
                 " return %1 as \"y\", %2 as \"z\", %3 -> v, %4 -> w\n}",
                 false);
    check_beside("graph @g(x bf16[1024,512], a bf16[512,512], b bf16[512,512]) {\n %1 = cast x f32[1024,512]\n"
                 " %2 = cast a f32[512,512]\n %3 = cast b f32[512,512]\n %4 = dot %1, %2 contract=[1]x[0] f32[1024,512]\n"
                 " %5 = dot %1, %3 contract=[1]x[0] f32[1024,512]\n %6 = cast %4 bf16[1024,512]\n"
                 " %7 = cast %5 bf16[1024,512]\n return %6 as \"y\", %7 as \"z\"\n}",
                 true);
}

/* Groups that run together: since sm_90, in CUDA C alone. */
static void test_clusters(void **state) {
    (void)state;
    static const char *const types[] = { "f32", "f16", "i8", "i64" };
    need_nvrtc();
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        arena a;
        guard gd;
        str text;
        char *log;
        unsigned char *image;
        size_t size;
        err e = { 0 };
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", types[i], gd.err.text);
        static const char k[] =
            "kernel @k(b0 in f32[2048], b1 out f32[2048], b2 distributed %s[1024]) tiled blocks 16 threads 32 cluster 8 {\n"
            "var g = 2 var m = 8 var i = 32 loop g = 0 .. 2 step 1 blocks loop m = 0 .. 8 step 1 blocks\n"
            "loop i = 0 .. 32 step 1 block-threads %%4 = load b0[1024*g + 128*m + 4*i] step 1 f32x4\n"
            "%%5 = cast %%4 from f32 %sx4 store b2[128*m + 4*i] step 1, %%5 %sx4 end barrier cluster\n"
            "loop i = 0 .. 32 step 1 block-threads %%10 = load b2[1023 - 128*m - i]%s %s\n"
            "%%11 = cast %%10 from %s f32 store b1[1024*g + 128*m + i], %%11 f32 end end end }";
        const char *t = types[i], *r = i == 2 ? "i32" : i == 1 ? "f32" : t;
        str_init(&text, &a);
        str_addf(&text, k, t, r, t, strcmp(t, r) ? arena_printf(&a, " from %s", t) : "", r, r);
        kernel *parsed = kernel_parse(&a, text.s, text.n, "t");
        str out;
        str_init(&out, &a);
        if (kernel_check(parsed, &out)) fail_msg("%s", out.s);
        plan p = { .a = &a };
        VEC_PUSH(&a, &p.kernels, (pkernel){ .k = parsed });
        emit_gpu(&p, GPU_CUDA, &out);
        if (nvrtc_compile(the_nvrtc, out.s, 90, &image, &size, &log, &e)) fail_msg("%s: %s", out.s, e.text);
        mem_strfree(mem_libc(), log);
        mem_free(mem_libc(), image, size);
        arena_fini(&a);
    }
}

/* Softmax and a norm with long rows are a cluster's, each thread with its part of a row in registers; or a group's, two numbers
 * in each. */
static void test_clustered_rows(void **state) {
    (void)state;
    static const struct {
        tn_dtype t;
        int64_t n;
    } cases[] = { { TN_BF16, 65536 }, { TN_BF16, 131072 }, { TN_F32, 65536 }, { TN_F32, 262144 },
                  { TN_F16, 49152 },  { TN_BF16, 32768 },  { TN_F16, 24576 } };
    need_nvrtc();
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        if (!campaign_has(i, 5)) continue;
        arena a;
        guard gd;
        str text;
        char *log;
        unsigned char *image;
        size_t size;
        err e = { 0 };
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s", i, gd.err.text);
        graph *g = graph_make(&a, "rows");
        int64_t dims[] = { 300, cases[i / 2].n };
        val x = graph_add(g, &(spec){ .op = OP_input, .dtype = cases[i / 2].t, .name = "x", .rank = 2, .dims = dims });
        val top = graph_reduce(g, i % 2 ? OP_sum : OP_reduce_max, x, 2);
        val d = graph_binary(g, OP_sub, x, graph_expand(g, top, dims)), y = i % 2 ? d : graph_unary(g, OP_exp, d);
        val sum = graph_reduce(g, OP_sum, i % 2 ? graph_binary(g, OP_mul, d, d) : y, 2);
        graph_output(g, "y", graph_binary(g, OP_div, y, graph_expand(g, sum, dims)));
        target t = target_common_gpu();
        t.cluster = 8, t.clusters = 15, t.resident_threads = 132 << 10;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        assert_int_equal(p->kernels.n, 1);
        bool packed = cases[i / 2].n <= 32768;
        assert_true(packed ? p->kernels.at[0].k->block_threads == 512 : p->kernels.at[0].k->cluster > 1);
        str_init(&text, &a);
        emit_gpu(p, GPU_CUDA, &text);
        if (nvrtc_compile(the_nvrtc, text.s, 90, &image, &size, &log, &e)) fail_msg("%s", e.text);
        if (count_spills(log, 0)) fail_msg("case %zu: %s", i, log);
        assert_int_equal(strstr(text.s, "asm volatile(\"\" : \"+r\"") != NULL, packed);
        assert_int_equal(strstr(text.s, "= load_ahead((const uint4 *)") != NULL, packed); /* before anything is computed */
        assert_int_equal(strstr(text.s, "prefetch.global.L2") != NULL, cases[i / 2].n < 262144); /* but where parts are large */
        mem_strfree(mem_libc(), log);
        mem_free(mem_libc(), image, size);
        arena_fini(&a);
    }
}

/* Layers by clusters keep their tiles, and the weights of the layer to come, in registers. */
static void test_clustered_layers(void **state) {
    (void)state;
    need_nvrtc();
    arena a;
    guard gd;
    str text;
    char *log;
    unsigned char *image;
    size_t size;
    err e = { 0 };
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph *g = graph_make(&a, "layers");
    int64_t square[] = { 256, 256 };
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 2, .dims = square });
    for (int l = 0; l < 8; l++) {
        spec w = { .op = OP_state, .dtype = TN_F32, .name = arena_printf(&a, "w%d", l), .rank = 2, .dims = square };
        x = graph_unary(g, OP_tanh, graph_dot(g, x, graph_add(g, &w), NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
    }
    graph_output(g, "y", x);
    target t = target_common_gpu();
    t.cluster = 8, t.clusters = 15;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    plan *p = pipeline_run(g, &a, &o, &t);
    assert_int_equal(p->kernels.n, 1);
    assert_true(p->kernels.at[0].k->cluster > 1);
    str_init(&text, &a);
    emit_gpu(p, GPU_CUDA, &text);
    if (nvrtc_compile(the_nvrtc, text.s, 90, &image, &size, &log, &e)) fail_msg("%s", e.text);
    assert_int_equal(count_spills(log, 0), 0);
    mem_strfree(mem_libc(), log);
    mem_free(mem_libc(), image, size);
    arena_fini(&a);
}

/* Causal attention of `type` from end to end. */
/* n is 0: a run says how many positions there are, and heads. */
static const char *attention_of(arena *a, const char *type, long long b, long long n, long long d) {
    str text;
    str_init(&text, a);
    if (!n) {
        const char *sizes[][2] = { { "1001", "B" }, { "1002", "L" }, { "@a(", "@a<B 1..64, L 1..2048>(" } };
        const char *as = attention_of(a, type, 1001, 1002, d);
        for (const char *at = as; *at;) {
            size_t i = 0;
            while (i < COUNT_OF(sizes) && strncmp(at, sizes[i][0], strlen(sizes[i][0])) != 0) i++;
            if (i < COUNT_OF(sizes))
                str_add(&text, sizes[i][1]), at += strlen(sizes[i][0]);
            else
                str_addf(&text, "%c", *at++);
        }
        return text.s;
    }
    const char *scores = arena_printf(a, "[%lld,%lld,%lld]", b, n, n), *row = arena_printf(a, "[%lld,%lld,1]", b, n),
               *wide = arena_printf(a, "%s[%lld,%lld,%lld]", type, b, n, d);
    str_addf(&text, "graph @a(q %s, k %s, v %s) {\n %%1 = dot q, k batch=[0]x[0] contract=[2]x[2] %s%s\n", wide, wide, wide,
             type, scores);
    str_addf(&text, " %%2 = iota axis=1 i32%s\n %%3 = iota axis=2 i32%s\n %%4 = le %%3, %%2 bool%s\n", scores, scores, scores);
    str_addf(&text, " %%5 = select %%4, %%1, -inf %s%s\n %%6 = reduce_max %%5 axes=[2] %s%s\n", type, scores, type, row);
    str_addf(&text, " %%7 = expand %%6 %s%s\n %%8 = sub %%5, %%7 %s%s\n %%9 = exp %%8 %s%s\n", type, scores, type, scores, type,
             scores);
    str_addf(&text, " %%10 = sum %%9 axes=[2] %s%s\n %%11 = expand %%10 %s%s\n", type, row, type, scores);
    str_addf(&text, " %%12 = div %%9, %%11 %s%s\n %%13 = dot %%12, v batch=[0]x[0] contract=[2]x[1] %s\n", type, scores, wide);
    str_add(&text, " return %13 as \"y\"\n}");
    return text.s;
}

/* Attention by tiles, with as much shared memory as an H200 and as little as a GPU must have. */
static void test_attention(void **state) {
    (void)state;
    static const int64_t sizes[][3] = { { 8, 1024, 64 },  { 48, 1024, 64 }, { 16, 512, 128 },
                                        { 8, 1024, 256 }, { 64, 300, 33 },  { 0, 0, 64 } };
    need_nvrtc();
    for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
        if (!campaign_has(i, 5)) continue;
        const int64_t *n = sizes[i / 2];
        arena a;
        guard gd;
        str source;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s", i, gd.err.text);
        str_init(&source, &a);
        const char *text = attention_of(&a, "f32", n[0], n[1], n[2]);
        target gpu = target_common_gpu();
        gpu.resident_threads = 132 << 10, gpu.shared_most = i % 2 ? 0 : 227 << 10;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(graph_parse(&a, text, strlen(text), "attention"), &a, &o, &gpu);
        emit_gpu(p, GPU_CUDA, &source);
        if (i % 2 == 0) assert_int_equal(p->kernels.n, 1);
        int arch = 80 + (int)(i / 2 + i) % 2 * 10; /* in turns: both are compiled with much and with little */
        compile_for(source.s, "attention", arch, arch);
        assert_int_equal(n_spills, 0);
        arena_fini(&a);
    }
}

static target an_h200(void) {
    target gpu = target_common_gpu();
    gpu.machine = machine_row("h200"), gpu.matrix_units = true, gpu.local_barriers = true;
    gpu.resident_threads = 132 << 10, gpu.shared_most = 227 << 10;
    return gpu;
}

/* From architecture `first` on. No kernel spills more than so many bytes from architecture `whole` on, and no product waits for
 * the one before (ptxas says so: C7510). */
static void compile_products(const char *source, const char *what, int first, int whole, int spilled) {
    for (int arch = strstr(source, "copy_box(") ? 90 : first; arch <= 90; arch += 10) {
        unsigned char *image;
        size_t size;
        char *log;
        err e = { 0 };
        if (nvrtc_compile(the_nvrtc, source, arch, &image, &size, &log, &e)) fail_msg("%s: %s", what, e.text);
        if (arch >= whole && count_spills(log, spilled)) fail_msg("%s, sm_%d: %s", what, arch, log);
        assert_null(strstr(log, "C75"));
        mem_strfree(mem_libc(), log);
        mem_free(mem_libc(), image, size);
    }
}

/* And the gradients of a weighted sum of its result. */
static void add_gradients(graph *g) {
    val x[3], out[3], y = g->outputs.at[0].v;
    for (int i = 0; i < 3; i++) x[i] = g->inputs.at[i];
    val loss = graph_binary(g, OP_mul, graph_cast(g, y, TN_F32), graph_cast(g, x[0], TN_F32));
    grad_build(g, graph_reshape(g, graph_reduce(g, OP_sum, loss, 7), 0, NULL), x, 3, out);
    for (int i = 0; i < 3; i++) graph_output(g, (const char *[]){ "dq", "dk", "dv" }[i], out[i]);
}

/* The same by matrix units of an H200, every second one of older GPUs, too. Where gradients are made, the products of scores
 * begin together. */
static void test_attention_by_units(void **state) {
    (void)state;
    static const struct {
        const char *type;
        int64_t n[3];
        bool gradients, older;
    } cases[] = { { "bf16", { 96, 1024, 64 }, true, true },   { "f16", { 16, 2048, 128 }, true, false },
                  { "bf16", { 96, 1024, 64 }, false, true },  { "f16", { 8, 1000, 64 }, false, false },
                  { "bf16", { 16, 8192, 128 }, false, true }, { "bf16", { 2, 500, 128 }, false, false },
                  { "f16", { 64, 300, 40 }, false, true },    { "bf16", { 200, 1024, 32 }, false, false },
                  { "bf16", { 0, 0, 64 }, false, true } };
    need_nvrtc();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!campaign_has(i, 5)) continue;
        arena a;
        guard gd;
        str source;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s", i, gd.err.text);
        str_init(&source, &a);
        const char *text = attention_of(&a, cases[i].type, cases[i].n[0], cases[i].n[1], cases[i].n[2]);
        target gpu = an_h200();
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        graph *g = graph_parse(&a, text, strlen(text), "attention");
        if (cases[i].gradients) add_gradients(g);
        plan *p = pipeline_run(g, &a, &o, &gpu);
        emit_gpu(p, GPU_CUDA, &source);
        if (!cases[i].gradients) assert_int_equal(p->kernels.n, 1);
        assert_int_equal(cases[i].gradients, strstr(source.s, "wait_products<1>") != NULL);
        assert_non_null(strstr(source.s, "multiply_rows_"));
        compile_products(source.s, arena_printf(&a, "case %zu", i), cases[i].older ? 80 : 90, 80,
                         cases[i].gradients ? 640 : 0); /* several thread blocks of a multiprocessor are worth so much */
        arena_fini(&a);
    }
}

/* Shared memory that a launch asks for begins where its kernel needs it to: a name has one alignment in all of a program. (A
 * product in boxes, which lie at multiples of 1024 bytes, and a row of 100 KB, which lies at one of 16: misaligned address.) */
static void test_alignments(void **state) {
    (void)state;
    need_nvrtc();
    arena a;
    guard gd;
    str source;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str_init(&source, &a);
    static const char text[] = "graph @loss(x bf16[512,256], w bf16[256,50304]) {\n %1 = dot x, w bf16[512,50304]\n"
                               " %2 = cast %1 f32[512,50304]\n %3 = reduce_max %2 axes=[1] f32[512,1]\n"
                               " %4 = expand %3 f32[512,50304]\n %5 = sub %2, %4\n %6 = exp %5\n"
                               " %7 = sum %6 axes=[1] f32[512,1]\n return %1 as \"y\", %7 as \"z\"\n}\n";
    target gpu = an_h200();
    gpu.bulk = true;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    emit_gpu(pipeline_run(graph_parse(&a, text, strlen(text), "loss"), &a, &o, &gpu), GPU_CUDA, &source);
    static const char declares[] = "extern __shared__ __align__(";
    int n[2] = { 0 };
    for (const char *at = source.s; (at = strstr(at, declares)); at++) {
        int align = 0, name = 0;
        sscanf(at + sizeof declares - 1, "%d) unsigned char tn_shared_%d[", &align, &name);
        if (align != name) fail_msg("%.80s", at);
        n[align == 1024] += align == 16 || align == 1024;
    }
    assert_int_equal(n[0], 1);
    assert_int_equal(n[1], 1);
    compile_for(source.s, "alignments", 90, 90);
    arena_fini(&a);
}

/* Gradients of norms keep three operands of a row, and what is made of them, in registers. */
static void test_norm_gradients(void **state) {
    (void)state;
    need_nvrtc();
    arena a;
    guard gd;
    str source;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    str_init(&source, &a);
    static const char text[] =
        "graph @norm(x bf16[8192,768], d bf16[8192,768], w f32[768]) {\n"
        " %1 = cast x f32[8192,768]\n %2 = sum %1 axes=[1] f32[8192,1]\n %3 = mul %2, 0.00130208333\n"
        " %4 = cast %3 bf16[8192,1]\n %5 = expand %4 bf16[8192,768]\n %6 = sub x, %5\n %7 = mul %6, %6\n"
        " %8 = cast %7 f32[8192,768]\n %9 = sum %8 axes=[1] f32[8192,1]\n %10 = mul %9, 0.00130208333\n"
        " %11 = cast %10 bf16[8192,1]\n %12 = add %11, 1e-05\n %13 = rsqrt %12\n %14 = expand %13 bf16[8192,768]\n"
        " %15 = mul %6, %14\n %16 = reshape w f32[1,768]\n %17 = cast %16 bf16[1,768]\n %18 = expand %17 bf16[8192,768]\n"
        " %19 = mul %15, %18\n %20 = mul %19, d\n %21 = cast %20 f32[8192,768]\n %22 = sum %21 axes=[0,1] f32[1,1]\n"
        " %23 = reshape %22 f32[]\n return %23 as \"loss\"\n}";
    graph *g = graph_parse(&a, text, strlen(text), "norm");
    val out, x = g->inputs.at[0];
    grad_build(g, g->outputs.at[0].v, &x, 1, &out);
    graph_output(g, "dx", out);
    target gpu = target_common_gpu();
    gpu.resident_threads = 132 << 10;
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    emit_gpu(pipeline_run(g, &a, &o, &gpu), GPU_CUDA, &source);
    assert_non_null(strstr(source.s, "float b5[24]"));
    compile_products(source.s, "gradients of a norm", 80, 80, 0);
    arena_fini(&a);
}

/* Products of matrix units, as a schedule says: all four layouts, ragged, with what is computed with the sums. Nothing is
 * spilled, and no product waits for the one before (ptxas says so: C7510). */
static void test_matrix_units(void **state) {
    (void)state;
    static const struct {
        int m, n, k, x_turned, w_turned;
        const char *type, *tile;
    } cases[] = {
        { 512, 512, 512, 0, 0, "bf16", "i0 128 i1 256 staged; pack_shared k2 64; tile; pipeline 4" },
        { 512, 512, 512, 1, 1, "f16", "i0 128 i1 128; pack_shared k2 64; tile; pipeline 3" },
        { 500, 310, 70, 0, 1, "bf16", "i0 64 i1 64; pack_shared k2 64; tile" },
        { 504, 312, 800, 1, 0, "bf16", "i0 128 i1 64 staged; pack_shared k2 64; tile; pipeline 5" },
        { 512, 512, 512, 0, 0, "bf16", "i0 128 i1 256 staged; pack_shared k2 64 bulk; tile; pipeline 4" },
        { 504, 312, 800, 1, 1, "f16", "i0 128 i1 128 staged; pack_shared k2 64 bulk; tile; pipeline 3" },
        { 96, 312, 72, 0, 1, "bf16", "i0 64 i1 64; pack_shared k2 64 bulk; tile" },
        { 512, 512, 64, 0, 0, "bf16", "i0 128 i1 256 staged; pack_shared k2 64 bulk; tile" },
        { 512, 512, 512, 0, 1, "bf16", "i0 128 i1 256 staged; pack_shared k2 64 bulk; tile; pipeline 4; take_turns 3" },
        { 512, 512, 512, 0, 0, "bf16", "i0 128 i1 256 boxed; pack_shared k2 64 bulk; tile; pipeline 4; take_turns 3 apart" }
    };
    need_nvrtc();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!campaign_has(i, 5)) continue;
        arena a;
        guard gd;
        str text, source;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s", i, gd.err.text);
        str_init(&text, &a), str_init(&source, &a);
        int m = cases[i].m, n = cases[i].n, k = cases[i].k, xt = cases[i].x_turned, wt = cases[i].w_turned;
        const char *t = cases[i].type;
        str_addf(&text, "graph @g(x %s[%d,%d], w %s[%d,%d], b f32[1,%d]) {\n", t, xt ? k : m, xt ? m : k, t, wt ? n : k,
                 wt ? k : n, n);
        str_addf(&text, " %%1 = cast x f32[%d,%d]\n %%2 = cast w f32[%d,%d]\n", xt ? k : m, xt ? m : k, wt ? n : k, wt ? k : n);
        str_addf(&text, " %%3 = dot %%1, %%2 contract=[%d]x[%d] f32[%d,%d]\n %%4 = expand b f32[%d,%d]\n", xt ? 0 : 1,
                 wt ? 1 : 0, m, n, m, n);
        str_addf(&text, " %%5 = add %%3, %%4 f32[%d,%d]\n %%6 = tanh %%5 f32[%d,%d]\n %%7 = cast %%6 %s[%d,%d]\n", m, n, m, n,
                 t, m, n);
        str_add(&text, " return %7 as \"y\"\n}");
        target gpu = target_common_gpu();
        gpu.shared_most = 227 << 10, gpu.bulk = true;
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        plan *p = pipeline_run(graph_parse(&a, text.s, strlen(text.s), "product"), &a, &o, &gpu);
        assert_int_equal(p->kernels.n, 1);
        o.schedule = arena_printf(&a, "schedule @%s { tensorize %s; hoist; dce }", p->kernels.at[0].k->name, cases[i].tile);
        p = pipeline_run(graph_parse(&a, text.s, strlen(text.s), "product"), &a, &o, &gpu);
        emit_gpu(p, GPU_CUDA, &source);
        assert_int_equal(strstr(cases[i].tile, "bulk") != NULL, strstr(source.s, "copy_box(&") != NULL);
        assert_int_equal(strstr(cases[i].tile, "apart") != NULL, strstr(source.s, "else if (group + 3 < 8)") != NULL);
        compile_products(source.s, arena_printf(&a, "case %zu", i), 80, 90, 0);
        arena_fini(&a);
    }
}

/* Networks and graphs of all dtypes: whole rows and products, training steps, scatters, random numbers, f64. */
static const char *const networks[] = { "@mlp",
                                        "@mlp:64x64",
                                        "@cnn",
                                        "@digits-train:32",
                                        "@attention",
                                        "@softmax:100x1000",
                                        TESTS_DIR "/sched/scatter_half.tn",
                                        TESTS_DIR "/sched/inplace_types.tn",
                                        TESTS_DIR "/sched/masks.tn",
                                        TESTS_DIR "/sched/gather_constant.tn",
                                        TESTS_DIR "/sched/net_winograd_backward.tn",
                                        TESTS_DIR "/emit/halves.tn" };

/* What the program prints of it. */
static const char *text_of_network(const char *model) {
    static char text[1 << 20];
    char command[1024];
    snprintf(command, sizeof command, "%s/tenon emit %s --target=cuda --quiet", BUILD_DIR, model);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    if (pclose(f)) fail_msg("%s", command);
    return text;
}

static void test_networks(void **state) {
    (void)state;
    need_nvrtc();
    for (size_t i = 0; i < COUNT_OF(networks); i++)
        if (campaign_has(i, 5)) compile(text_of_network(networks[i]), networks[i]);
}

/* Each kernel of the PTX waits for the launches before it before it touches memory. */
static void check_waits(const char *path, const char *what) {
    enum { MOST = 16 << 20 };
    char *text = malloc(MOST);
    FILE *f = fopen(path, "r");
    assert_true(text && f);
    size_t n = fread(text, 1, MOST - 1, f);
    fclose(f);
    text[n] = 0;
    char *entry = strstr(text, ".entry");
    assert_non_null(entry);
    while (entry) {
        char *next = strstr(entry + 1, ".entry");
        if (next) next[-1] = 0;
        const char *wait = strstr(entry, "griddepcontrol.wait"), *load = strstr(entry, "ld.global"),
                   *store = strstr(entry, "st.global");
        if (!wait || (load && load < wait) || (store && store < wait)) fail_msg("%s: it does not wait:\n%s", what, entry);
        entry = next;
    }
    free(text);
}

/* nvcc has the system's headers, and warns; machine code of both architectures is test_networks'. */
static void test_nvcc(void **state) {
    (void)state;
    static const char find[] = "nvcc=$(command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2>/dev/null | head -1); [ \"$nvcc\" ]";
    char dir[] = "/tmp/tenon-test-XXXXXX", path[64], command[1024];
    if (system(find)) {
        printf("skipped: no nvcc here\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/x.cu", dir);
    for (size_t i = 0; i < COUNT_OF(networks); i++) {
        if (!campaign_has(i + 1, 5)) continue;
        n_nvcc++;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text_of_network(networks[i]), f);
        assert_int_equal(fclose(f), 0);
        snprintf(command, sizeof command,
                 "%s && cd %s && $nvcc -fmad=false -Werror all-warnings -arch=compute_%d -ptx -o x.ptx x.cu", find, dir,
                 i % 2 ? 80 : 90);
        if (system(command)) fail_msg("nvcc refuses the text of %s, %s", networks[i], path);
        snprintf(command, sizeof command, "%s/x.ptx", dir);
        if (i % 2 == 0) check_waits(command, networks[i]);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void test_refused(void **state) {
    (void)state;
    need_nvrtc();
    unsigned char *image;
    size_t size;
    err e = { 0 };
    assert_int_equal(nvrtc_compile(the_nvrtc, "__global__ void k() { no_such_name(); }", 90, &image, &size, NULL, &e),
                     TN_ERR_BUILD);
    assert_non_null(strstr(e.text, "no_such_name"));
    assert_null(image);
    assert_int_equal(nvrtc_compile(the_nvrtc, "", 1234, &image, &size, NULL, &e), TN_ERR_BUILD);
}

/* Parts compiled side by side are those compiled one by one; when one is refused there is none. */
static void test_parts(void **state) {
    (void)state;
    need_nvrtc();
    enum { N = 5 };
    char text[N][128];
    const char *sources[N];
    unsigned char *images[N], *one;
    size_t sizes[N], size;
    err e = { 0 };
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "extern \"C\" __global__ void k%d(float *x) { x[threadIdx.x] *= %d.0f; }", i, i + 2);
        sources[i] = text[i];
    }
    assert_int_equal(nvrtc_compile_parts(the_nvrtc, sources, N, 90, 3, images, sizes, &e), TN_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(nvrtc_compile(the_nvrtc, sources[i], 90, &one, &size, NULL, &e), TN_OK);
        assert_int_equal(sizes[i], size);
        assert_memory_equal(images[i], one, size);
        mem_free(mem_libc(), one, size), mem_free(mem_libc(), images[i], size);
    }
    sources[3] = "__global__ void k() { no_such_name(); }";
    assert_int_equal(nvrtc_compile_parts(the_nvrtc, sources, N, 90, 2, images, sizes, &e), TN_ERR_BUILD);
    assert_non_null(strstr(e.text, "no_such_name"));
    for (int i = 0; i < N; i++) assert_null(images[i]);
}

static int teardown(void **state) {
    (void)state;
    nvrtc_close(the_nvrtc);
    printf("count: CUDA C: %d kernels of random graphs, %d programs compiled for sm_80 and sm_90, %d spills; %d by nvcc\n",
           n_kernels, n_programs, n_spills, n_nvcc);
    return n_spills ? -1 : 0;
}

/* A kernel that reads large weights asks for the first of them before it waits, and the one before it lets it begin; small ones
 * wait at once. */
static void test_early_weights(void **state) {
    (void)state;
    static const char path[] = "/tmp/tenon-early.tn";
    need_nvrtc();
    for (int large = 0; large < 2; large++) {
        int n = large ? 2048 : 512;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "graph @g(x f32[1,%d], state v f16[%d,%d], state w f16[%d,%d]) {\n", n, n, n, n / 2, n);
        fprintf(f, " %%1 = cast v f32[%d,%d]\n %%2 = dot x, %%1 contract=[1]x[1] f32[1,%d]\n", n, n, n);
        fprintf(f, " %%3 = cast w f32[%d,%d]\n %%4 = dot %%2, %%3 contract=[1]x[1] f32[1,%d]\n", n / 2, n, n / 2);
        fprintf(f, " return %%4 as \"y\"\n}\n");
        assert_int_equal(fclose(f), 0);
        const char *text = text_of_network(path), *first = strstr(text, "tn_kernel_0("), *second = strstr(text, "tn_kernel_1(");
        assert_true(first && second && first < second);
        const char *load = strstr(first, "= load_ahead("), *wait = strstr(first, "wait_on_dependencies("),
                   *lets = strstr(first, "launch_dependents(");
        assert_true(wait && wait < second);
        assert_int_equal(load && load < wait, large);
        assert_int_equal(lets && lets < second, large);
        assert_null(strstr(second, "launch_dependents("));
        compile(text, path);
    }
    remove(path);
}

/* Four sums of a thread block and more are exchanged, fewer are combined one by one. */
static void test_sums_together(void **state) {
    (void)state;
    static const char path[] = "/tmp/tenon-sums.tn";
    need_nvrtc();
    for (int many = 0; many < 2; many++) {
        const char *type = many ? "i8" : "f16";
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "graph @g(x f32[1,2048], state v %s[2048,2048]) {\n %%1 = cast v f32[2048,2048]\n", type);
        fprintf(f, " %%2 = dot x, %%1 contract=[1]x[1] f32[1,2048]\n return %%2 as \"y\"\n}\n");
        assert_int_equal(fclose(f), 0);
        const char *text = text_of_network(path), *kernel = strstr(text, "tn_kernel_0(");
        assert_non_null(kernel);
        assert_int_equal(strstr(kernel, "= halves(") != NULL, many);
        compile(text, path);
    }
    remove(path);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_refused),        cmocka_unit_test(test_parts),
                                        cmocka_unit_test(test_networks),       cmocka_unit_test(test_nvcc),
                                        cmocka_unit_test(test_read_back),      cmocka_unit_test(test_beside),
                                        cmocka_unit_test(test_clusters),       cmocka_unit_test(test_clustered_rows),
                                        cmocka_unit_test(test_attention),      cmocka_unit_test(test_attention_by_units),
                                        cmocka_unit_test(test_matrix_units),   cmocka_unit_test(test_clustered_layers),
                                        cmocka_unit_test(test_norm_gradients), cmocka_unit_test(test_random_graphs),
                                        cmocka_unit_test(test_alignments),     cmocka_unit_test(test_sizes_of_the_run),
                                        cmocka_unit_test(test_early_weights),  cmocka_unit_test(test_sums_together) };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
