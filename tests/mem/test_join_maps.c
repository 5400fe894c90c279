/* test_join_maps.c - kernels of loops that become one: how many launches an iteration has, and values against the evaluator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/plan_run.h"

/* A scan over x f32[5,3,4] that carries p f32[3,4]; the body gives %r, the next state, and %s f32[3,8], which is stacked. */
static const char scanned[] = "graph @g(a f32[3,4], x f32[5,3,4], w f32[4,4]) {\n"
                              "  %%0 = const 5 i64[]\n"
                              "  region @body(%%p f32[3,4], %%x1 f32[3,4], %%w1 f32[4,4]) {\n"
                              "    %%d = dot %%p, %%w1 contract=[1]x[0] f32[3,4]\n%s    return %%r, %%s\n  }\n"
                              "  %%v = scan %%0, a, x, w body=@body carry=1 steps=1 length=5 f32[3,4]\n"
                              "  %%y = proj %%v index=1 f32[5,3,8]\n"
                              "  return %%v as \"p\", %%y as \"y\"\n}\n";
typedef struct row {
    const char *what, *body;
    int launches; /* in an iteration */
} row;
static const row rows[] = {
    { "parts of an array, of what is carried on",
      "%u = add %d, %x1\n%r = tanh %u\n%m = mul %r, %u\n%n = exp %u\n%s = concat %m, %n axis=1 f32[3,8]\n", 2 },
    { "the same of parts that change places",
      "%u = add %d, %x1\n%r = tanh %u\n%f = flip %r axes=[1] f32[3,4]\n%n = exp %f\n%s = concat %r, %n axis=1 f32[3,8]\n", 3 },
    { "of bytes that become numbers again",
      "%u = add %d, %x1\n%h = cast %u bf16[3,4]\n%c = cast %h f32[3,4]\n%r = tanh %c\n%n = exp %c\n"
      "%s = concat %r, %n axis=1 f32[3,8]\n",
      2 },
};

static int launches_in(const plan *p) {
    int n = 0, at = 0;
    while (at < p->steps.n - 1 && p->steps.at[at].kind != PSTEP_REPEAT) at++;
    for (int i = at + 1; i <= at + p->steps.at[at].inside; i++) n += p->steps.at[i].kind == PSTEP_LAUNCH;
    return n;
}

ARENA_TEST(test_launches) {
    int first_wrong = -1;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *text = arena_printf(a, scanned, rows[i].body);
        graph *g = graph_parse(a, text, strlen(text), rows[i].what);
        plan_config c = { .seed = i + 1, .fusion = 3 };
        c.t = (target){
            .kind = TARGET_GPU, .block_threads = 64, .shared_bytes = 16 << 10, .resident_threads = 4096, .vector_bytes = 16
        };
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s: %s", rows[i].what, c.text);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = 3, o.check = 1;
        int got = launches_in(pipeline_run(g, a, &o, &c.t));
        if (got != rows[i].launches && first_wrong < 0) first_wrong = (int)i;
        if (got != rows[i].launches) printf("%s: %d launches, expected %d\n", rows[i].what, got, rows[i].launches);
    }
    assert_int_equal(first_wrong, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_launches) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
