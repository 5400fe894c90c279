/* test_loop_state.c - states of loops: which copies are left in the loop, and values against the evaluator, for CPUs and GPUs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/plan_run.h"

/* A while over two states f32[3,4], 4 times; the body has %p and %q, x and the counter %i, and gives %r and %s. */
static const char loop[] =
    "graph @g(a f32[3,4], b f32[3,4], x f32[3,4]) {\n"
    "  %%0 = const 0 i64[]\n%s"
    "  region @more(%%p0 f32[3,4], %%q0 f32[3,4], %%i0 i64[], %%x0 f32[3,4]) {\n"
    "    %%c0 = max %%i0, -1\n    %%c = lt %%c0, 4\n    return %%c\n  }\n" /* of a plain counter it is a scan */
    "  region @body(%%p f32[3,4], %%q f32[3,4], %%i i64[], %%x1 f32[3,4]) {\n"
    "%s"
    "    %%n = add %%i, 1\n    return %%r, %%s, %%n, %%x1\n  }\n"
    "  %%w = while a, b, %%0, x cond=@more body=@body f32[3,4]\n  %%v = proj %%w index=1 f32[3,4]\n"
    "  return %%w as \"p\", %%v as \"q\"\n}\n";

typedef struct row {
    const char *what, *body;
    int copies;       /* in an iteration */
    const char *head; /* regions of the body */
} row;
static const row rows[] = {
    { "each from itself", "%r = mul %p, %x1\n%s = sub %q, %x1\n", 0 },
    { "one from both", "%r = mul %p, %x1\n%s = add %r, %q\n", 0 },
    { "a value for both", "%r = mul %p, %x1\n%s = reshape %r f32[3,4]\n", 1 },
    { "they change places", "%r = reshape %q f32[3,4]\n%s = reshape %p f32[3,4]\n", 3 },
    { "one takes the other's place", "%r = reshape %q f32[3,4]\n%s = add %p, %q\n", 2 },
    { "from other places", "%r = mul %p, %x1\n%f = flip %q axes=[1] f32[3,4]\n%s = add %f, %x1\n", 1 },
    { "the old one is read afterwards",
      "%t = sum %p axes=[0,1] f32[1,1]\n%e = expand %t f32[3,4]\n%r = mul %p, %x1\n%u = mul %e, %r\n%s = add %u, %q\n", 1 },
    { "through a contraction",
      "%r = mul %p, %x1\n%k = permute %x1 perm=[1,0] f32[4,3]\n"
      "%d = dot %q, %k contract=[1]x[0] f32[3,3]\n%s = dot %d, %x1 contract=[1]x[0] f32[3,4]\n",
      0 },
    { "in a branch", "%z = lt %i, 2\n%r = if %z, %p then=@y else=@n f32[3,4]\n%s = add %q, %x1\n",
      2, /* the counter is read after it is counted on */
      "region @y(%a1 f32[3,4]) {\n%b1 = neg %a1\nreturn %b1\n}\nregion @n(%a2 f32[3,4]) {\n%b2 = exp %a2\nreturn %b2\n}\n" },
};

static const char *text_of(arena *a, const row *r) { return arena_printf(a, loop, r->head ? r->head : "", r->body); }

/* Copies that are directly in the outermost loop, after its condition. */
static int copies_in(const plan *p) {
    int n = 0, at = 0;
    while (at < p->steps.n - 1 && p->steps.at[at].kind != PSTEP_REPEAT) at++;
    for (int i = at + 1; i <= at + p->steps.at[at].inside; i += 1 + p->steps.at[i].inside)
        if (p->steps.at[i].kind == PSTEP_LAUNCH)
            n += !strncmp(p->kernels.at[p->steps.at[i].kernel].k->name, "copy", strlen("copy"));
    return n;
}

static target gpu_target(void) {
    return (target){
        .kind = TARGET_GPU, .block_threads = 64, .shared_bytes = 16 << 10, .resident_threads = 4096, .vector_bytes = 16
    };
}

ARENA_TEST(test_copies) {
    int first_wrong = -1;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *text = text_of(a, &rows[i]);
        graph *g = graph_parse(a, text, strlen(text), rows[i].what);
        for (int gpu = 0; gpu < 2; gpu++) {
            plan_config c = { .seed = i + 1, .fusion = 2, .t = gpu ? gpu_target() : plan_target(3) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s: %s", rows[i].what, c.text);
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            o.fusion = 2;
            int got = copies_in(pipeline_run(g, a, &o, &c.t));
            if (got != rows[i].copies && first_wrong < 0) first_wrong = (int)i;
            if (got != rows[i].copies) printf("%s: %d copies, expected %d\n", rows[i].what, got, rows[i].copies);
        }
    }
    assert_int_equal(first_wrong, -1);
}

/* A scan over x f32[5,3,3] that carries p and q; it is several kernels. */
static const char scanned[] = "graph @g(a f32[3,3], b f32[3,3], x f32[5,3,3]) {\n"
                              "  %%0 = const 5 i64[]\n"
                              "  region @body(%%p f32[3,3], %%q f32[3,3], %%x1 f32[3,3]) {\n"
                              "    %%d = dot %%p, %%x1 contract=[1]x[0] f32[3,3]\n%s  }\n"
                              "  %%w = scan %%0, a, b, x body=@body carry=2 steps=1 length=5 f32[3,3]\n"
                              "  %%v = proj %%w index=1 f32[3,3]\n  %%y = proj %%w index=2 f32[5,3,3]\n"
                              "  return %%w as \"p\", %%v as \"q\", %%y as \"y\"\n}\n";
static const row scans[] = {
    { "one stacked, too; the other through a contraction", "%r = tanh %d\n%s = mul %q, %r\n    return %r, %s, %s\n", 1 },
    { "stacked and read again",
      "%r = tanh %d\n%s = mul %q, %r\n%f = flip %s axes=[1] f32[3,3]\n%t = add %r, %f\n    return %t, %s, %s\n", 0 },
    { "stacked; others read the old one later",
      "%s = mul %q, %x1\n%f = flip %q axes=[1] f32[3,3]\n%r = add %d, %f\n    return %r, %s, %s\n", 1 },
    { "stacked; from other places", "%f = flip %q axes=[1] f32[3,3]\n%s = add %f, %d\n%r = tanh %d\n    return %r, %s, %s\n",
      1 },
};

ARENA_TEST(test_stacked) {
    int first_wrong = -1;
    for (size_t i = 0; i < COUNT_OF(scans); i++) {
        const char *text = arena_printf(a, scanned, scans[i].body);
        graph *g = graph_parse(a, text, strlen(text), scans[i].what);
        for (int gpu = 0; gpu < 2; gpu++) {
            plan_config c = { .seed = i + 1, .fusion = 2, .t = gpu ? gpu_target() : plan_target(3) };
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("%s: %s", scans[i].what, c.text);
            tn_compile_opts o = TN_COMPILE_DEFAULTS;
            o.fusion = 2;
            int got = copies_in(pipeline_run(g, a, &o, &c.t));
            if (got != scans[i].copies && first_wrong < 0) first_wrong = (int)i;
            if (got != scans[i].copies) printf("%s: %d copies, expected %d\n", scans[i].what, got, scans[i].copies);
        }
    }
    assert_int_equal(first_wrong, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies), cmocka_unit_test(test_stacked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
