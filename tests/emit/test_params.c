/* test_params.c - the C of kernels whose sizes are given at run time: one function, compiled once, against the evaluator at
 * many values of its dims, bit for bit, by one thread and several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "emit/emit.h"
#include "eval/eval_kernel.h"
#include "loop/schedule.h"
#include "support/support.h"

enum { MOST = 8192 }; /* floats of a buffer */

static const struct {
    const char *name, *text, *steps;
} cases[] = {
    { "products",
      "kernel @mm<m 1..40, k 0..64 by 2, n 1..50>(b0 in f32[$m*$k], b1 in f32[$k*$n], b2 out f32[$m*$n]) scalar {\n"
      "  var i = $m row\n  var j = $n row\n  var l = $k reduce\n  loop i = 0 .. $m step 1\n    loop j = 0 .. $n step 1\n"
      "      %3 = acc add 0  f32\n      loop l = 0 .. $k step 1\n        %5 = load b0[$k*i + l]  f32\n"
      "        %6 = load b1[j + $n*l]  f32\n        update %3 fma %5, %6  f32\n      end\n      store b2[$n*i + j], %3  f32\n"
      "    end\n  end\n}\n",
      "parallel i; tile" },
    { "rows less their largest",
      "kernel @rows<m 1..40, n 1..50>(b0 in f32[$m*$n], b1 in f32[1], b2 out f32[$m*$n], b3 local f32[$n]) scalar {\n"
      "  var i = $m row\n  var j = $n\n  var l = $n\n  loop i = 0 .. $m step 1\n    %2 = acc max -inf  f32\n"
      "    loop j = 0 .. $n step 1\n      %4 = load b0[$n*i + j]  f32\n      update %2 max %4  f32\n"
      "      store b3[$n*i + j], %4  f32\n    end\n    loop l = 0 .. $n step 1\n      %9 = load b3[$n*i + l]  f32\n"
      "      %10 = sub %9, %2  f32\n      store b2[$n*i + l], %10  f32\n    end\n  end\n}\n",
      "parallel i; tile" },
    { "moved, in tiles of eight",
      "kernel @tiles<n 1..600>(b0 in f32[$n], b1 in f32[1], b2 out f32[ceil($n / 8)*8 + max($n, 7)]) scalar {\n"
      "  var i = ceil($n / 8) row\n  var j = 8 row\n  var l = floor($n / 3)\n  var h = min($n, 5)\n"
      "  loop i = 0 .. ceil($n / 8) step 1\n    loop j = 0 .. 8 step 1\n      %3 = const 2.5  f32\n"
      "      store b2[8*i + j], %3  f32\n    end\n  end\n  loop l = 0 .. floor($n / 3) step 1\n"
      "    %8 = load b0[3*l] where 2 <= l + ($n*2) < ($n*2 + 9) else -1  f32\n    store b2[l + (ceil($n / 8)*8)], %8  f32\n"
      "  end\n  loop h = 0 .. min($n, 5) step 1\n    %12 = load b0[-h + ($n - 1)]  f32\n    store b2[h + ($n - min($n, 5))], "
      "%12  f32\n"
      "  end\n}\n",
      "tile" },
};

typedef void (*kernel_fn)(float *const *b, const int64_t *dims, int64_t tid, int64_t nt);

static char dir[256];
static int setup(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/tenon-test-XXXXXX", tmp ? tmp : "/tmp");
    return !mkdtemp(dir);
}
static int teardown(void **state) {
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return system(command);
}

static void *compile(kernel *k, size_t i, kernel_fn *out) {
    arena *a = k->a;
    plan p = { .a = a };
    target t = { .kind = TARGET_CPU, .vector_bytes = 16, .threads = 2 };
    str text;
    str_init(&text, a);
    VEC_PUSH(a, &p.kernels, (pkernel){ .k = k });
    emit_c_kernels(&p, NULL, &text);
    str_add(&text,
            "void run(float *const *b, const int64_t *dims, int64_t tid, int64_t nt) { kernel_0(b[0], b[1], b[2], dims, tid, "
            "nt); }\n");
    const char *source = arena_printf(a, "%s/%d.c", dir, (int)i), *built = arena_printf(a, "%s/%d.so", dir, (int)i);
    FILE *f = fopen(source, "w");
    assert_non_null(f);
    fputs(text.s, f);
    assert_int_equal(fclose(f), 0);
    if (system(arena_printf(a, "cc -O1 -w -ffp-contract=off -mfma -shared -fPIC '%s' -o '%s'", source, built)))
        fail_msg("%s", text.s);
    void *library = dlopen(built, RTLD_NOW);
    assert_non_null(library);
    *(void **)out = dlsym(library, "run");
    assert_non_null(*(void **)out);
    return library;
}

static void check_values(const kernel *k, kernel_fn run, const int64_t *dims, rng *r, arena *a) {
    float *b[3], *want = ARENA_ARRAY(a, float, MOST), *own[3];
    for (int i = 0; i < 3; i++) {
        b[i] = ARENA_ARRAY(a, float, MOST);
        for (int j = 0; j < MOST; j++) b[i][j] = (float)rng_range(r, -4, 4);
        own[i] = b[i];
    }
    own[2] = memcpy(want, b[2], sizeof *want * MOST);
    eval_kernel_at(k, dims,
                   (unsigned char *[]){ (unsigned char *)own[0], (unsigned char *)own[1], (unsigned char *)want, NULL }, a);
    int64_t nt = 1 + rng_below(r, 4);
    for (int64_t tid = 0; tid < (k->par_var >= 0 ? nt : 1); tid++) run(b, dims, tid, k->par_var >= 0 ? nt : 1);
    for (int j = 0; j < MOST; j++)
        if (memcmp(&b[2][j], &want[j], sizeof(float)))
            fail_msg("kernel %s, dims %lld %lld: element %d is %g, not %g", k->name, (long long)dims[0], (long long)dims[1], j,
                     (double)b[2][j], (double)want[j]);
}

static void check_case(size_t i, arena *a) {
    kernel *k = kernel_parse(a, cases[i].text, strlen(cases[i].text), "case");
    schedule steps = schedule_parse_steps(a, cases[i].steps, strlen(cases[i].steps), "steps");
    str why;
    kernel_fn run;
    rng r = rng_make(7 + i);
    str_init(&why, a);
    if (kernel_check(k, &why)) fail_msg("%s: %s", cases[i].name, why.s);
    if (!schedule_try(&k, &steps, &why)) fail_msg("%s: %s", cases[i].name, why.s);
    void *library = compile(k, i, &run);
    for (int n = 0; n < 60; n++) {
        int64_t dims[3];
        for (int j = 0; j < k->params->at.n; j++) {
            const ext_row *d = &k->params->at.at[j];
            if (d->op != EXT_DIM) continue;
            int64_t steps_up = (d->hi - d->lo) / d->divisor;
            dims[d->number] = n == 0 ? d->lo : n == 1 ? d->hi : d->lo + d->divisor * rng_below(&r, steps_up + 1);
        }
        check_values(k, run, dims, &r, a);
    }
    dlclose(library);
}

static void test_kernels(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", cases[i].name, gd.err.text);
        check_case(i, &a);
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kernels) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
