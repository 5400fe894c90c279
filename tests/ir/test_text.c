/* test_text.c - the text form: round trips, canonical text, every parser message with its place, and hostile bytes.
 *
 * Labels: long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "ir/graph.h"
#include "ir/ir_texts.h"

/* Parses under a guard; NULL with the message in err. */
static graph *try_parse(arena *a, const char *text, size_t n, err *e) {
    guard gd;
    graph *volatile g = NULL;
    a->gd = &gd;
    if (GUARD_TRY(&gd)) g = graph_parse(a, text, n, "t.tn");
    if (!g) *e = gd.err;
    return g;
}
static graph *must_parse(arena *a, const char *text) {
    err e;
    graph *g = try_parse(a, text, strlen(text), &e);
    if (!g) fail_msg("%s", e.text);
    return g;
}
static const char *print(arena *a, const graph *g) {
    str s;
    str_init(&s, a);
    graph_print(g, &s);
    return s.s;
}
static void assert_sound(arena *a, const graph *g) {
    str s;
    str_init(&s, a);
    if (graph_check(g, &s)) fail_msg("%s", s.s);
}
static void assert_equal_graphs(arena *a, const graph *x, const graph *y) {
    const char *why = NULL;
    if (!graph_equal(x, y, a, &why)) fail_msg("%s\n%s\n%s", why, print(a, x), print(a, y));
}

static void round_trip(arena *a, const char *text) {
    guard gd;
    graph *g = must_parse(a, text);
    a->gd = &gd;
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    assert_sound(a, g);
    const char *once = print(a, g);
    graph *h = must_parse(a, once);
    assert_string_equal(once, print(a, h));
    assert_equal_graphs(a, g, h);
    assert_equal_graphs(a, h, g);
    val *map = ARENA_ARRAY(a, val, g->nodes.n);
    graph *c = graph_clone(g, a, true, map);
    assert_equal_graphs(a, g, c);
    assert_string_equal(once, print(a, c));
    a->gd = &gd;
    if (!GUARD_TRY(&gd)) fail_msg("%s", gd.err.text);
    graph_compact(c);
    assert_sound(a, c);
    assert_equal_graphs(a, g, c);
    assert_equal_graphs(a, g, must_parse(a, print(a, c)));
}
static void test_round_trip(void **state) {
    (void)state;
    bool seen[N_OPS] = { 0 };
    for (int i = 0; i < IR_N_TEXTS; i++) {
        arena a;
        if (i == IR_TEXT_BROKEN) continue;
        arena_init(&a, mem_libc(), NULL);
        round_trip(&a, ir_texts[i]);
        graph *g = must_parse(&a, ir_texts[i]);
        for (int k = 1; k < g->nodes.n; k++) seen[g->nodes.at[k].op] = true;
        arena_fini(&a);
    }
    for (int op = OP_NIL + 1; op < N_OPS; op++)
        if (!seen[op]) fail_msg("no text uses %s", op_get((op_code)op)->name);
}

static void test_canonical(void **state) {
    (void)state;
    arena a;
    arena_init(&a, mem_libc(), NULL);
    graph *g = must_parse(&a, "graph @g(x f32[2,3],\n state w f32[2] = [1,5e-1\n]) { %a=sum x axes=[1]\n %r = reshape %a "
                              "f32[2] ; c\n %c = const 0.1 f32[2]\n"
                              "%b=mul %c,%r label=\"m\"\n%d = div %b, 0.1\nreturn %b, %d->w\n}");
    assert_string_equal(print(&a, g), "graph @g(x f32[2,3], state w f32[2] = [1.0, 0.5]) {\n"
                                      "  %1 = sum x axes=[1]                           f32[2,1]\n"
                                      "  %2 = reshape %1                               f32[2]\n"
                                      "  %3 = mul 0.1, %2 label=\"m\"                    f32[2]\n"
                                      "  %4 = div %3, 0.1                              f32[2]\n"
                                      "  return %3 as \"out0\", %4 -> w\n"
                                      "}\n");
    arena_fini(&a);
}

/* ---- errors ---- */

typedef struct bad {
    const char *text;
    int line, col;
    const char *message; /* a part of it */
} bad;
#define G(body) "graph @g(x f32[2,3], y f32[2,3], i i32[4], state w f32[2]) {\n" body "\n}\n"
static const bad bads[] = {
    { "", 1, 1, "expected graph @name(...) {, but the text ends here" },
    { "grph @g() {", 1, 1, "expected graph" },
    { "graph g() {", 1, 7, "expected @ and the graph's name" },
    { "graph @ () {", 1, 7, "expected a name after @" },
    { "graph @g {", 1, 10, "expected (" },
    { "graph @g() {\n", 2, 1, "the text ends here" },
    { "graph @g() {\n  return\n}\nx", 4, 1, "expected the end of the text" },
    { "graph @g() {\n  return", 2, 9, "the text ends here" },
    { "graph @g(x) { return }", 1, 11, "a type such as f32[2,3]" },
    { "graph @g(x f33[2]) {", 1, 12, "a type such as" },
    { "graph @g(x f32[2) {", 1, 17, "expected , or ]" },
    { "graph @g(x f32[-2]) {", 1, 16, "a dim of -2" },
    { "graph @g(x f32[1.5]) {", 1, 16, "expected a whole number" },
    { "graph @g(x f32[99999999999999999999]) {", 1, 16, "whole number of 64 bits" },
    { "graph @g(x f32[N]) {", 1, 16, "symbolic dim N is not declared" },
    { "graph @g(x f32[1,1,1,1,1,1,1,1,1,1,1,1,1]) {", 1, 40, "more than 12 dims" },
    { "graph @g(x f32[9223372036854775807,2]) {", 1, 10, "more bytes than 63 bits" },
    { "graph @g(x f32[2], x f32[2]) {", 1, 20, "input x is defined twice; the first is in line 1" },
    { "graph @g(f32 f32[2]) {", 1, 10, "f32 is a reserved word" },
    { "graph @g(x f32[2] = 1) {", 1, 19, "only a state has an initial value" },
    { "graph @g(state w f32[2] = [1]) {", 1, 27, "expected 2 values, got 1" },
    { "graph @g(state w f32[2] = [1,2,3]) {", 1, 32, "more than the 2 values" },
    { "graph @g(state w f32[2] = [1 2]) {", 1, 30, "expected , or ]" },
    { "graph @g(state w u8[2] = [1,256]) {", 1, 29, "256 does not fit u8" },
    { "graph @g(state w i32[1] = [1.5]) {", 1, 28, "expected a whole number" },
    { "graph @g(state w f32[1] = [1e39]) {", 1, 28, "too large for f32" },
    { "graph @g(state w f64[1] = [1e999]) {", 1, 28, "too large; write inf" },
    { "graph @g(state w f32[1] = [true]) {", 1, 28, "is not a number of f32" },
    { "graph @g(state w bool[1] = [1]) {", 1, 29, "expected true or false" },
    { "graph @g(state w f32[1] = [0x123456789]) {", 1, 28, "at most 8 hexadecimal digits" },
    { "graph @g(state w f32[1000000000] = [1]) {", 1, 36, "expected 1000000000 values" },
    { "graph @g(state w f32[1000000000] = rand(1)) {", 1, 36, "more than 268435456 bytes" },
    { "graph @g(state w f32[1] = x\"00\") {", 1, 27, "expected 8 hexadecimal digits, got 2" },
    { "graph @g(state w u8[1] = x\"0g\") {", 1, 26, "not two hexadecimal digits" },
    { "graph @g(state w u8[1] = rand()) {", 1, 31, "expected a seed" },
    { "graph @g(state w f32[1] = [1\n", 2, 1, "the text ends here" },
    { "graph @g<B>(x f32[2]) {", 1, 11, "a range such as 1..64" },
    { "graph @g<B 5..3>(x f32[2]) {", 1, 10, "expected 0 <= low <= high" },
    { "graph @g<B 1..2, B 1..2>(x f32[2]) {", 1, 18, "symbolic dim B is defined twice" },
    { "graph @g<B 1..2>(state w f32[B]) {", 1, 24, "symbolic" },
    { "graph @g(\"a\\q\" f32[2]) {", 1, 12, "unknown escape" },
    { "graph @g(\"a f32[2]) {\n", 1, 10, "does not end in its line" },
    { G("%1 = neg z"), 2, 10, "there is no input or state named z" },
    { G("%1 = neg %2"), 2, 10, "value %2 is not defined before this line" },
    { G("%1 = neg %1"), 2, 10, "value %1 is not defined" },
    { G("%1 = neg x\n%1 = neg x"), 3, 1, "value 1 is defined twice; the first is in line 2" },
    { G("%1 = negg x"), 2, 6, "there is no op named 'negg'" },
    { G("%1 = input"), 2, 6, "declared in the list after the graph's name" },
    { G("%1 = param"), 2, 6, "after the region's name" },
    { G("%1 neg x"), 2, 4, "expected =" },
    { G("%1 = neg"), 2, 9, "expected an operand, but the line ends" },
    { G("%1 = neg x,"), 3, 1, "expected an operand" },
    { G("%1 = neg x y"), 2, 12, "a type such as" },
    { G("%1 = neg x f32[2,3] f32[2,3]"), 2, 21, "the end of the line" },
    { G("%1 = neg x f32[3,2]"), 2, 12, "neg gives f32[2,3] here, not f32[3,2]" },
    { G("%1 = neg x f64[2,3]"), 2, 12, "neg gives f32[2,3] here, not f64[2,3]" },
    { G("%1 = add x"), 2, 6, "expected 2 operands, got 1" },
    { G("%1 = add x, i"), 2, 6, "add(x f32[2,3], i i32[4]): expected operands of equal shape" },
    { G("%1 = add x, true"), 2, 13, "'true' is not a number of f32" },
    { G("%1 = add i, 1.5"), 2, 13, "expected a whole number" },
    { G("%1 = add 1, 2"), 2, 10, "the type of this number cannot be inferred" },
    { G("%1 = lt 1, 2 bool[2]"), 2, 9, "the type of this number cannot be inferred" },
    { G("%1 = neg 1"), 2, 10, "neg takes no number here" },
    { G("%1 = exp i"), 2, 6, "exp(i i32[4]): expected a float dtype, got i32" },
    { G("%1 = and x, y"), 2, 6, "expected an integer dtype or bool, got f32" },
    { G("%1 = cast x"), 2, 6, "cast needs the result's type" },
    { G("%1 = reshape x f32[7]"), 2, 6, "has 6 elements, the result [7] would have 7" },
    { G("%1 = expand x f32[4,3]"), 2, 6, "only axes of size 1" },
    { G("%1 = sum x"), 2, 6, "sum needs axes=[AXES]" },
    { G("%1 = sum x axes=1"), 2, 17, "expected axes=[AXES]" },
    { G("%1 = sum x axes=[1,1]"), 2, 17, "axis 1 is given twice" },
    { G("%1 = sum x axes=[2]"), 2, 6, "beyond rank 2" },
    { G("%1 = sum x axes=[-1]"), 2, 17, "axis -1" },
    { G("%1 = sum x axes=[0] axes=[1]"), 2, 21, "attribute axes is given twice" },
    { G("%1 = sum x axes=[0] axis=1"), 2, 21, "sum has no attribute 'axis'" },
    { G("%1 = argmax x axis=2"), 2, 6, "axis 2; expected 0 to 1" },
    { G("%1 = permute x perm=[0]"), 2, 21, "expected 2 numbers" },
    { G("%1 = permute x perm=[0,0]"), 2, 6, "perm axis 0 is given twice" },
    { G("%1 = pad x before=[0,0] after=[0,-1] value=0"), 2, 6, "padded by 0 and -1" },
    { G("%1 = slice x start=[0,1] step=[1,1] f32[2,3]"), 2, 6, "leave the axis of size 3" },
    { G("%1 = slice x start=[0,0] step=[1,0] f32[2,3]"), 2, 6, "has step 0" },
    { G("%1 = window x (axis=0 size=3)"), 2, 6, "longer than axis 0 of size 2" },
    { G("%1 = window x (axis=0)"), 2, 15, "a window needs axis= and size=" },
    { G("%1 = window x (axis=0 axis=1)"), 2, 23, "axis is given twice" },
    { G("%1 = window x (axis=0 size=1 foo=1)"), 2, 30, "expected axis=, size=" },
    { G("%1 = concat x, i axis=0"), 2, 6, "operand 1 is i32, operand 0 is f32" },
    { G("%1 = dot x, y"), 2, 6, "expected contracted axes of equal size" },
    { G("%1 = dot x, y contract=[0,1]x[0]"), 2, 24, "as many axes" },
    { G("%1 = dot x, y batch=[0]x[0]"), 2, 6, "dot needs contract=" },
    { G("%1 = dot x, y contract=[0]"), 2, 24, "expected contract=[AXES]x[AXES]" },
    { G("%1 = gather x, y axis=0"), 2, 6, "expected an index of i32 or i64, got f32" },
    { G("%1 = random i stream=0 f32[2]"), 2, 6, "expected a counter of i64[]" },
    { G("%1 = const f32[2]"), 2, 12, "a value: a number" },
    { G("%1 = const 1"), 2, 6, "const needs the result's type" },
    { G("%1 = const [1,2] f32[3]"), 2, 12, "expected 3 values, got 2" },
    { G("%1 = iota axis=1 f32[2]"), 2, 6, "axis 1; expected 0 to 0" },
    { G("return x as y"), 2, 13, "the output's name in quotes" },
    { G("return x as \"\""), 2, 13, "an output needs a name" },
    { G("return x as \"a\", y as \"a\""), 2, 23, "output a is defined twice" },
    { G("return i as \"x\""), 2, 13, "output x has the name of the input in line 1" },
    { "graph @g(a f32[2], out1 f32[2]) {\n  return a, a\n}", 2, 14, "output out1 has the name of the input in line 1" },
    { "graph @g(a f32[2],\n  state a f32[2]) {", 2, 9, "input a is defined twice; the first is in line 1" },
    { G("return 1.0"), 2, 8, "expected a value, got a number" },
    { G("return x -> y"), 2, 13, "expected a state" },
    { G("return x -> w"), 2, 8, "state w is f32[2] and cannot take f32[2,3]" },
    { G("return w -> w, w -> w"), 2, 21, "the new value of state w is defined twice" },
    { G("return x\n%1 = neg x"), 3, 1, "expected } after return" },
    { G("region @r() {\nregion @s() {"), 3, 1, "a region inside a region" },
    { G("region @r(%a f32[2]) {\n%1 = add %a, w\nreturn %1\n}"), 3, 14, "w is outside this region" },
    { G("region @r(%a f32[2]) {\nreturn %a\n}\n%1 = neg %a"), 5, 10, "is inside a region" },
    { G("region @r(a f32[2]) {"), 2, 11, "a parameter such as" },
    { G("%1 = if x then=@r else=@r"), 2, 16, "region @r is not defined" },
    { G("region @r() {\nreturn\n}\n%1 = if x then=@r else=@r"), 5, 24, "belongs to another op" },
    { G("%1 = proj x index=0"), 2, 6, "expected an op with several results, got input" },
    { G("\x01"), 2, 1, "got byte 0x01" },
    { "graph @g(x f32[2]) {\n  %1 = if x then=@\"a b\" else=@b\n", 2, 18, "is not defined" },
};

static void test_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        arena a;
        err e;
        char where[64];
        arena_init(&a, mem_libc(), NULL);
        if (try_parse(&a, bads[i].text, strlen(bads[i].text), &e)) fail_msg("parsed: %s", bads[i].text);
        assert_int_equal(e.code, TN_ERR_PARSE);
        snprintf(where, sizeof where, "t.tn:%d:%d: ", bads[i].line, bads[i].col);
        if (strncmp(e.text, where, strlen(where)) || !strstr(e.text, bads[i].message))
            fail_msg("expected %s... %s\ngot %s", where, bads[i].message, e.text);
        /* the caret stands under the column (lines here are short) */
        const char *last = strrchr(e.text, '\n');
        assert_non_null(last);
        assert_int_equal(strlen(last + 1), bads[i].col + 2);
        assert_int_equal(last[strlen(last) - 1], '^');
        arena_fini(&a);
    }
}

/* Every mistake of a text once, in order, each with its place; what only follows from one is not reported. */
static void expect_errors(const char *text, int n, const char *const *want) {
    arena a;
    err e;
    arena_init(&a, mem_libc(), NULL);
    if (try_parse(&a, text, strlen(text), &e)) fail_msg("parsed: %s", text);
    const char *at = e.text;
    int found = 0;
    for (; (at = strstr(at, "t.tn:")); found++, at++)
        if (found >= n || strncmp(at, want[found], strlen(want[found]))) fail_msg("error %d of\n%s", found + 1, e.text);
    if (found != n) fail_msg("%d errors, not %d:\n%s", found, n, e.text);
    arena_fini(&a);
}
#define EXPECT_ERRORS(text, ...)                                                                                               \
    expect_errors((text), (int)COUNT_OF(((const char *const[]){ __VA_ARGS__ })), (const char *const[]){ __VA_ARGS__ })
static void test_all_errors(void **state) {
    (void)state;
    EXPECT_ERRORS(G("%1 = neg z\n%2 = exp %1\n%3 = add %2, i\n%4 = sum x\n%5 = negg x\n%6 = neg x\nreturn %1, %7\n"),
                  "t.tn:2:10: there is no input or state named z", "t.tn:5:6: sum needs axes",
                  "t.tn:6:6: there is no op named");
    EXPECT_ERRORS("graph @g(a f33[2], b f32[2], c f32[N],\n  state d f32[2] = [1], e f32[2]) {\n%1 = add a, c\n%2 = add b, d\n"
                  "%3 = add b, e\n%4 = add b, f\nreturn %1, %2, %3\n}",
                  "t.tn:1:12: expected a type such as", "t.tn:1:36: symbolic dim N", "t.tn:2:20: expected 2 values",
                  "t.tn:6:13: there is no input or state named f");
    EXPECT_ERRORS(G("%1 = const [1, 2,\n 3 4,\n 5] f32[5]\n%2 = neg %1\n%3 = neg \"x\n%4 = add x,\n z\n%5 = neg"
                    " \"\\q\"\n%@ = neg x\nfoo = neg x\n%6 = neg y\nreturn %6"),
                  "t.tn:3:4: expected , or ]", "t.tn:6:10: this string does not end",
                  "t.tn:8:2: there is no input or state named z", "t.tn:9:11: unknown escape",
                  "t.tn:10:1: expected a name after %", "t.tn:11:1: expected %name = op");
    EXPECT_ERRORS(G("region @r(%a f32[2], b) {\n%1 = neg %c\nreturn %1\n}\nregion @s(%p f32[2]) {\nreturn %p\n}\n"
                    "%k = neg q\n%2 = if %k, w then=@r else=@s f32[2]\n%3 = neg %2\nreturn %3, w as \"x\"\n"),
                  "t.tn:2:22: expected a parameter", "t.tn:3:10: value %c is not defined",
                  "t.tn:9:10: there is no input or state");
    EXPECT_ERRORS(G("%1 = neg z\nreturn %1\n}\nmore"), "t.tn:2:10: there is no input",
                  "t.tn:5:1: expected the end of the text");
    /* the first twenty, and no more than a text holds */
    char many[4000] = "graph @g(x f32[2]) {\n", line[4000];
    for (int i = 0; i < 30; i++) sprintf(many + strlen(many), "%%%d = neg z%d\n", i, i);
    arena a;
    err e;
    arena_init(&a, mem_libc(), NULL);
    assert_null(try_parse(&a, many, strlen(many), &e));
    assert_non_null(strstr(e.text, "t.tn:21:"));
    assert_null(strstr(e.text, "t.tn:22:"));
    assert_non_null(strstr(e.text, "there may be more errors"));
    strcpy(many, "graph @g(x f32[2]) {\n");
    memset(line, 'z', 90), line[90] = 0;
    for (int i = 0; i < 19; i++) sprintf(many + strlen(many), "%%%d = neg %s%d\n", i, line, i);
    assert_null(try_parse(&a, many, strlen(many), &e));
    assert_true(strlen(e.text) < sizeof e.text);
    arena_fini(&a);
}

/* ---- hostile ---- */

static uint64_t random_next(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}
/* Whatever the bytes: an error with a place, or a sound graph that round-trips. Texts are copied to exact-size blocks, so that
 * a sanitizer sees any read past the end. */
static void feed(const char *text, size_t n, int *parsed) {
    arena a;
    err e;
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, text, n);
    arena_init(&a, mem_libc(), NULL);
    graph *g = try_parse(&a, exact, n, &e);
    if (!g) {
        assert_int_equal(e.code, TN_ERR_PARSE);
        assert_non_null(strchr(e.text, '^'));
    } else {
        ++*parsed;
        assert_sound(&a, g);
        const char *once = print(&a, g);
        assert_equal_graphs(&a, g, must_parse(&a, once));
    }
    arena_fini(&a);
    free(exact);
}
static void test_truncated(void **state) {
    (void)state;
    int parsed = 0;
    for (int i = 0; i < IR_N_TEXTS; i++)
        for (size_t n = 0; n < strlen(ir_texts[i]); n += 3) feed(ir_texts[i], n, &parsed);
    assert_true(parsed < IR_N_TEXTS * 8);
}
static void test_mutated(void **state) {
    (void)state;
    static const char bytes[] = "%@=,[](){}<>\"\\;-.x0159e fiab\n\t\0\xff\x80";
    uint64_t s = 88172645463325252u;
    int parsed = 0;
    for (int round = 0; round < 6000; round++) {
        const char *from = ir_texts[random_next(&s) % IR_N_TEXTS];
        size_t n = strlen(from);
        char *text = malloc(n + 40);
        assert_non_null(text);
        memcpy(text, from, n);
        for (uint64_t k = 1 + random_next(&s) % 3; k > 0; k--) {
            size_t at = random_next(&s) % n;
            char c = bytes[random_next(&s) % (sizeof bytes - 1)];
            switch (random_next(&s) % 4) {
            case 0:
                text[at] = c;
                break;
            case 1:
                memmove(text + at + 1, text + at, n++ - at), text[at] = c;
                break;
            case 2:
                memmove(text + at, text + at + 1, --n - at);
                break;
            default: { /* a piece of the text from elsewhere */
                size_t len = random_next(&s) % 12, to = random_next(&s) % n;
                if (at + len <= n && to + len <= n) memmove(text + to, text + at, len);
            }
            }
        }
        feed(text, n, &parsed);
        free(text);
    }
    assert_true(parsed > 100 && parsed < 5900); /* both ways are taken */
}
/* Failing the k-th allocation: always TN_ERR_NOMEM, never a leak (the sanitizer's business) or a crash. */
typedef struct limited {
    int left;
} limited;
static void *limited_realloc(void *ud, void *ptr, size_t old_size, size_t new_size) {
    limited *l = ud;
    mem m = mem_libc();
    if (new_size && l->left-- <= 0) return NULL;
    return m.realloc(m.ud, ptr, old_size, new_size);
}
static void test_no_memory(void **state) {
    (void)state;
    for (int k = 0; k < 64; k++) {
        limited l = { k };
        arena a;
        err e;
        arena_init(&a, (mem){ limited_realloc, &l }, NULL);
        const char *text = ir_texts[9];
        if (!try_parse(&a, text, strlen(text), &e)) assert_int_equal(e.code, TN_ERR_NOMEM);
        arena_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_canonical), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_all_errors), cmocka_unit_test(test_truncated), cmocka_unit_test(test_mutated),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
