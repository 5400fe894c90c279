/* test_graph.c - graphs in memory: use lists under random rewriting, compaction, copying, comparing, the verifier's messages,
 * dtypes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "ir/kernel.h"
#include "ir/ir_texts.h"

typedef struct fixture {
    arena a;
    guard gd;
} fixture;
static void setup(fixture *f) { arena_init(&f->a, mem_libc(), &f->gd); }
static void teardown(fixture *f) { arena_fini(&f->a); }

static const char *problems(arena *a, const graph *g, int *out_n) {
    str s;
    str_init(&s, a);
    *out_n = graph_check(g, &s);
    return s.s;
}
static void assert_sound(arena *a, const graph *g) {
    int n;
    const char *text = problems(a, g, &n);
    if (n) fail_msg("%s", text);
}
static uint64_t random_next(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

/* ---- use lists and compaction ---- */

/* A random graph of f32[4] values; every rewrite keeps it acyclic by using only smaller ids, except replace, which may point
 * forward to a value that does not depend on the old one. */
static val random_value(graph *g, uint64_t *s, val below) { return 1 + (val)(random_next(s) % (below - 1)); }
static bool depends(const graph *g, val v, val on, uint8_t *seen) {
    if (v == on) return true;
    if (seen[v]) return false;
    seen[v] = 1;
    for (int i = 0; i < graph_get(g, v)->n_in; i++)
        if (depends(g, graph_get(g, v)->in[i], on, seen)) return true;
    return false;
}
static void random_step(arena *a, graph *g, uint64_t *s) {
    val n = (val)g->nodes.n, v = random_value(g, s, n);
    switch (random_next(s) % 6) {
    case 0:
        graph_unary(g, OP_exp, v);
        break;
    case 1:
        graph_binary(g, OP_add, v, random_value(g, s, n));
        break;
    case 2:
        graph_select(g, graph_binary(g, OP_lt, v, v), random_value(g, s, n), v);
        break;
    case 3: {
        node *x = graph_get(g, v);
        if (x->n_in) {
            int slot = (int)(random_next(s) % (uint64_t)x->n_in);
            val to = random_value(g, s, n);
            uint8_t *seen = ARENA_ARRAY(a, uint8_t, n);
            if (graph_get(g, to)->dtype == graph_get(g, x->in[slot])->dtype && !depends(g, to, v, seen))
                graph_set_in(g, v, slot, to);
        }
        break;
    }
    case 4: {
        val to = random_value(g, s, n);
        uint8_t *seen = ARENA_ARRAY(a, uint8_t, n);
        if (graph_get(g, v)->dtype == graph_get(g, to)->dtype && !depends(g, to, v, seen)) graph_replace(g, v, to);
        break;
    }
    default:
        if (random_next(s) % 8 == 0) graph_compact(g);
    }
}
/* Steps that would type-check against the wrong operand dtype jump; they leave the graph as it was. */
static void guarded_step(fixture *f, graph *g, uint64_t *s) {
    if (GUARD_TRY(&f->gd)) random_step(&f->a, g, s);
}
/* Also of a graph that is not in order, which graph_check refuses. */
static void assert_uses(const graph *g) {
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *n = graph_get(g, v);
        assert_int_equal(graph_used_once(g, v), graph_n_uses(g, v) == 1);
        for (int k = 0; k < n->n_in; k++) {
            const use *u = &g->uses.at[n->in_use[k] - 1];
            assert_true(u->user == v && u->slot == k);
        }
    }
}
static void test_rewriting(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fixture f;
        uint64_t s = seed * 0x9e3779b97f4a7c15u;
        setup(&f);
        if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
        graph *g = graph_make(&f.a, "fuzz");
        for (int i = 0; i < 3; i++)
            graph_add(g, &(spec){ .op = i ? OP_input : OP_state,
                                  .dtype = TN_F32,
                                  .rank = 1,
                                  .dims = (int64_t[]){ 4 },
                                  .name = (const char *[]){ "a", "b", "c" }[i] });
        graph_output(g, "y", graph_binary(g, OP_mul, 1, 2));
        graph_output(g, "z", 3);
        for (int step = 0; step < 150; step++) guarded_step(&f, g, &s);
        if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
        for (int round = 0; round < 5; round++) {
            for (int step = 0; step < 20; step++) guarded_step(&f, g, &s);
            if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
            graph *before = graph_clone(g, &f.a, true, NULL);
            assert_uses(g);
            assert_uses(before);
            graph_compact(g);
            assert_sound(&f.a, g);
            const char *why;
            if (!graph_equal(before, g, &f.a, &why)) fail_msg("%s", why);
            int n = g->nodes.n;
            graph_compact(g);
            assert_int_equal(g->nodes.n, n);
            assert_sound(&f.a, g);
        }
        teardown(&f);
    }
}
static void test_compact_order(void **state) {
    (void)state;
    fixture f;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    graph *g = graph_make(&f.a, "order");
    const int64_t dims[] = { 2 };
    val dead = graph_splat(g, TN_F32, 1, dims, 1);
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 1, .dims = dims, .name = "x" });
    val e = graph_unary(g, OP_exp, x), n = graph_unary(g, OP_neg, e), s = graph_unary(g, OP_sin, x),
        late = graph_unary(g, OP_cos, s);
    graph_unary(g, OP_tan, dead);
    graph_output(g, "y", n);
    graph_replace(g, e, late); /* now neg, an early node, reads a late one */
    assert_int_equal(graph_n_uses(g, late), 1);
    assert_int_equal(graph_n_uses(g, e), 0);
    assert_int_equal(graph_n_uses(g, n), 1);
    graph_compact(g);
    assert_sound(&f.a, g);
    const op_code want[] = { OP_NIL, OP_input, OP_sin, OP_cos, OP_neg };
    assert_int_equal(g->nodes.n, COUNT_OF(want));
    for (int i = 1; i < g->nodes.n; i++) assert_int_equal(g->nodes.at[i].op, want[i]);
    assert_true(graph_is_output(g, 4));
    /* a cycle is found, not followed */
    graph_set_in(g, 2, 0, 4);
    if (GUARD_TRY(&f.gd)) {
        graph_compact(g);
        fail_msg("a cycle passed");
    }
    assert_int_equal(f.gd.err.code, TN_ERR_INTERNAL);
    teardown(&f);
}
static void test_shorthands(void **state) {
    (void)state;
    fixture f;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    graph *g = graph_make(&f.a, "s");
    const int64_t dims[] = { 2, 3 }, big[] = { 4, 2, 3 }, zero[] = { 0, 0 }, one[] = { 1, 1 }, id[] = { 0, 1 };
    float data[6] = { 1, 2, 3, 4, 5, 6 };
    val c = graph_const(g, TN_F32, 2, dims, data);
    data[0] = 9;
    assert_true(((const float *)graph_get(g, c)->data)[0] == 1.0f); /* copied */
    assert_int_equal(graph_reshape(g, c, 2, dims), c);
    assert_int_equal(graph_expand(g, c, dims), c);
    assert_int_equal(graph_permute(g, c, id), c);
    assert_int_equal(graph_pad(g, c, zero, zero, 1), c);
    assert_int_equal(graph_slice(g, c, zero, dims, one), c);
    assert_int_equal(graph_flip(g, c, 0), c);
    assert_int_equal(graph_window(g, c, NULL, 0), c);
    assert_int_equal(graph_cast(g, c, TN_F32), c);
    assert_int_equal(graph_reduce(g, OP_sum, c, 0), c);
    assert_int_equal(graph_concat(g, &c, 1, 0), c);
    assert_int_equal(g->nodes.n, 2);
    val b = graph_broadcast(g, c, 3, big);
    assert_string_equal(graph_shape_text(g, &f.a, b), "f32[4,2,3]");
    assert_int_equal(graph_elems(g, b), 24);
    double v = 0;
    val s = graph_splat(g, TN_F32, 2, big, 0.1);
    assert_true(graph_splat_value(g, s, &v) && v == (double)0.1f); /* rounded to the dtype */
    assert_false(graph_splat_value(g, c, &v));
    val i = graph_splat(g, TN_U8, 0, NULL, 300);
    assert_int_equal(graph_get(g, i)->imm_int, 255);
    assert_true(graph_splat_value(g, i, &v) && v == 255);
    val h = graph_splat_like(g, graph_cast(g, c, TN_BF16), 1.0 / 3);
    assert_string_equal(graph_shape_text(g, &f.a, h), "bf16[2,3]");
    val w = graph_window(g, c, (window_axis[]){ { 1, 2, 1, 1 } }, 1),
        o = graph_fold(g, w, (window_axis[]){ { 1, 2, 1, 1 } }, 1, dims);
    assert_string_equal(graph_shape_text(g, &f.a, w), "f32[2,2,2]");
    assert_true(graph_same_shape(g, o, c));
    assert_string_equal(graph_shape_text(g, &f.a, graph_dot(g, c, b, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 2 }, 1)),
                        "f32[2,4,2]");
    assert_string_equal(graph_shape_text(g, &f.a, graph_arg(g, OP_argmax, c, 1)), "i64[2,1]");
    assert_string_equal(graph_shape_text(g, &f.a, graph_iota(g, TN_I32, 1, big, 0)), "i32[4]");
    assert_sound(&f.a, g);
    teardown(&f);
}
static void test_equal(void **state) {
    (void)state;
    static const char *const same[][2] = {
        { "graph @g(x f32[2]) {\n%1 = exp x\n%2 = sin x\n%3 = add %1, %2\nreturn %3\n}",
          "graph @g(x f32[2]) {\n%2 = sin x\n%1 = exp x\n%4 = cos x\n%3 = add %1, %2\nreturn %3\n}" },
        { "graph @g(x f32[2]) {\n%1 = mul x, 2.0\n%2 = mul %1, 2.0\nreturn %2\n}",
          "graph @g(x f32[2]) {\n%0 = const 2.0 f32[2]\n%1 = mul x, %0\n%2 = mul %1, %0\nreturn %2 as \"out0\"\n}" },
        { "graph @g(state x f32[2]) {\nreturn x\n}", "graph @g(state x f32[2] = [0,0]) {\nreturn x\n}" },
    };
    static const char *const base = "graph @g(x f32[2], y f32[2], state w f32[2] = [1,2]) {\n%1 = exp x\n%2 = add %1, y\n%3 = "
                                    "sum %2 axes=[0]\n%4 = const [1,2] f32[2]\n"
                                    "%5 = pad %4 before=[0] after=[1] value=1\nreturn %3, %2 -> w, %5, %1\n}";
    static const char *const changes[][2] = {
        /* one word becomes another: never equal */
        { "@g", "@h" },
        { "(x f32[2]", "(z f32[2]" },
        { "exp x", "sin x" },
        { "add %1, y", "add y, %1" },
        { "add %1, y", "add %1, x" },
        { "axes=[0]", "axes=[]" },
        { "const [1,2]", "const [1,3]" },
        { "value=1", "value=2" },
        { "%3, %2", "%3 as \"o\", %2" },
        { "= [1,2])", "= [1,-2])" },
        { "before=[0] after=[1]", "before=[1] after=[0]" },
        { "%5, %1", "%1, %5" },
        { "-> w, %5", "-> w" },
        { "const [1,2]", "const 1" },
        { "y f32[2], state", "y f32[2], u f32[2], state" },
    };
    fixture f;
    const char *why = NULL;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        graph *x = graph_parse(&f.a, same[i][0], strlen(same[i][0]), "x"),
              *y = graph_parse(&f.a, same[i][1], strlen(same[i][1]), "y");
        if (!graph_equal(x, y, &f.a, &why) || !graph_equal(y, x, &f.a, &why)) fail_msg("%s", why);
    }
    graph *x = graph_parse(&f.a, base, strlen(base), "base");
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        const char *at = strstr(base, changes[i][0]);
        assert_non_null(at);
        char *text = arena_printf(&f.a, "%.*s%s%s", (int)(at - base), base, changes[i][1], at + strlen(changes[i][0]));
        if (!strcmp(changes[i][0], "(x f32[2]")) { /* rename its use too */
            char *use = strstr(text, "exp x");
            assert_non_null(use);
            use[4] = 'z';
        }
        graph *y = graph_parse(&f.a, text, strlen(text), "changed");
        why = NULL;
        if (graph_equal(x, y, &f.a, &why)) fail_msg("equal to %s", text);
        assert_non_null(why);
        assert_false(graph_equal(y, x, &f.a, NULL));
    }
    /* sharing is structure: one exp used twice is not two exps */
    const char *once = "graph @g(x f32[2]) {\n%1 = exp x\n%2 = add %1, %1\nreturn %2\n}",
               *twice = "graph @g(x f32[2]) {\n%1 = exp x\n%3 = exp x\n%2 = add %1, %3\nreturn %2\n}";
    graph *p = graph_parse(&f.a, once, strlen(once), "p"), *q = graph_parse(&f.a, twice, strlen(twice), "q");
    assert_false(graph_equal(p, q, &f.a, NULL));
    assert_false(graph_equal(q, p, &f.a, NULL));
    teardown(&f);
}

/* ---- the verifier ---- */

/* Graph to break: ids 1 x f32[2,3], 2 w state f32[2,3], 3 n state i64[], 4 exp, 5 add, 6 sum, 7 const array, 8 const 2.0, 9
 * select... as printed by the comment on each line. */
static const char victim_text[] = "graph @v<B 1..4>(x f32[2,3], state w f32[2,3], state n i64[], c bool[]) {\n" /* 1 2 3 4 */
                                  "region @r(%a f32[2,3]) {\n%s = sin %a\nreturn %s\n}\n" /* 5 param, 6 sin */
                                  "region @t(%b f32[2,3]) {\nreturn %b\n}\n"              /* 7 param */
                                  "%1 = exp x label=\"e\"\n"                              /* 8 */
                                  "%2 = add %1, w\n"                                      /* 9 */
                                  "%3 = sum %2 axes=[1]\n"                                /* 10 */
                                  "%4 = permute %2 perm=[1,0]\n"                          /* 11 */
                                  "%5 = const [1,2,3,4,5,6] f32[2,3]\n"                   /* 12 */
                                  "%6 = dot %2, %4 contract=[1]x[0]\n"                    /* 13 */
                                  "%7 = if c, %2 then=@r else=@t\n"                       /* 14 */
                                  "%8 = window %2 (axis=1 size=2)\n"                      /* 15 */
                                  "%9 = slice %2 start=[0,1] step=[1,1] f32[2,2]\n"       /* 16 */
                                  "%10 = concat %2, %5 axis=0\n"                          /* 17 */
                                  "%11 = proj %7 index=0\n"                               /* 18 */
                                  "%12 = random n stream=1 f32[2,3]\n"                    /* 19 */
                                  "return %1 as \"e\", %2 -> w, %3 as \"s\", n -> n, %6, %8, %9, %10, %11, %12\n}";

static int64_t attr_space[8];
static const int64_t *attrs(int n, int64_t a, int64_t b, int64_t c, int64_t d) {
    (void)n;
    attr_space[0] = a, attr_space[1] = b, attr_space[2] = c, attr_space[3] = d;
    return attr_space;
}
#define NODE(v) (&g->nodes.at[v])
#define BREAKS                                                                                                                 \
    B(NODE(9)->in[1] = 99, "add %9 at v.tn:10: operand 1 is %99, which does not exist")                                        \
    B(NODE(9)->in[1] = 0, "operand 1 is %0, which does not exist")                                                             \
    B(NODE(9)->in[1] = 12, "operand 1 is %12, which comes later")                                                              \
    B(NODE(9)->in[1] = 9, "operand 1 is %9, which comes later")                                                                \
    B(NODE(9)->in[1] = 6, "operand 1 is %6 of region 1, not of region 0")                                                      \
    B(NODE(9)->in[1] = 3, "expected operands of equal shape, operand 0 is [2,3], operand 1 is []")                             \
    B(NODE(9)->n_in = 1, "expected 2 operands, got 1")                                                                         \
    B(NODE(9)->n_in = -1, "a list of -1 operands without operands")                                                            \
    B(NODE(9)->in = NULL, "a list of 2 operands without operands")                                                             \
    B(NODE(8)->op = 0, "op number 0 does not exist")                                                                           \
    B(NODE(8)->op = 255, "op number 255 does not exist")                                                                       \
    B(NODE(8)->op = OP_not, "not %8 (e) at v.tn:9: not(x f32[2,3]): expected bool, got f32")                                   \
    B(NODE(8)->dtype = 77, "dtype number 77 does not exist")                                                                   \
    B(NODE(8)->dtype = TN_F64, "the type is f64[2,3], its operands give f32[2,3]")                                             \
    B(NODE(8)->rank = 1, "the type is f32[2], its operands give f32[2,3]")                                                     \
    B(NODE(8)->rank = 200, "rank 200; at most 12")                                                                             \
    B(NODE(8)->dims = NULL, "dims or attributes are missing")                                                                  \
    B(NODE(8)->dims = attrs(2, 3, 2, 0, 0), "the type is f32[3,2], its operands give f32[2,3]")                                \
    B(NODE(8)->dims = attrs(2, INT64_MIN, 3, 0, 0), "the type is f32[B,3], its operands give f32[2,3]")                        \
    B(NODE(8)->dims = attrs(2, -7, 3, 0, 0), "dim 0 is -7; expected 0 or more")                                                \
    B(NODE(8)->region = 9, "region 9 does not exist")                                                                          \
    B(NODE(8)->region = 1, "operand 0 is %1 of region 0, not of region 1")                                                     \
    B(NODE(8)->splat = 1, "only a const has one value everywhere")                                                             \
    B(NODE(8)->data = "x", "only a const or a state has data")                                                                 \
    B(NODE(10)->attr = attrs(1, 8, 0, 0, 0), "axes mask 0x8 names axes beyond rank 2")                                         \
    B(NODE(10)->attr = attrs(1, -1, 0, 0, 0), "axes mask 0xffffffffffffffff names axes beyond rank 2")                         \
    B(NODE(10)->attr = attrs(1, 1, 0, 0, 0), "the type is f32[2,1], its operands give f32[1,3]")                               \
    B(NODE(10)->n_attr = 0, "expected 1 attribute values, got 0")                                                              \
    B(NODE(10)->attr = NULL, "dims or attributes are missing")                                                                 \
    B(NODE(11)->attr = attrs(2, 0, 0, 0, 0), "perm axis 0 is given twice")                                                     \
    B(NODE(11)->attr = attrs(2, 0, 2, 0, 0), "perm axis 2; expected 0 to 1")                                                   \
    B(NODE(11)->n_attr = 1, "expected 2 attribute values, got 1")                                                              \
    B(NODE(12)->data = NULL, "expected one value or an array")                                                                 \
    B(NODE(13)->attr = attrs(4, 0, 1, 0, 0), "expected contracted axes of equal size")                                         \
    B(NODE(13)->attr = attrs(4, 0, 1, 5, 0), "contracted axis 5; expected 0 to 1")                                             \
    B(NODE(13)->attr = attrs(4, -1, 2, 1, 0), "expected attributes nb, nc")                                                    \
    B(NODE(13)->n_attr = 3, "expected attributes nb, nc")                                                                      \
    B(NODE(14)->attr = attrs(2, 1, 7, 0, 0), "a region does not exist")                                                        \
    B(NODE(14)->attr = attrs(2, 1, 1, 0, 0), "region 1 belongs to several ops")                                                \
    B(NODE(14)->in[0] = 3, "expected operand 0 to be bool[]")                                                                  \
    B(NODE(14)->in[1] = 10, "parameter 0 of region then is f32[2,3]; operand 1 differs")                                       \
    B(g->regions.at[1].n_params = 0, "region then has 0 parameters, 1 operands go to it")                                      \
    B(g->regions.at[1].n_params = 0, "param %5 at v.tn:2: is missing among the parameters of region 1")                        \
    B(g->regions.at[1].n_results = 0, "the regions have 0 and 1 results; expected as many, at least 1")                        \
    B(g->regions.at[1].results[0] = 9, "result 0 of region 1 is %9, which is not of that region")                              \
    B(g->regions.at[1].results[0] = 999, "result 0 of region 1 is %999")                                                       \
    B(g->regions.at[1].results[0] = 15, "region 1 comes later")                                                                \
    B(g->regions.at[1].params[0] = 6, "parameter 0 of region 1 is %6, which is not that parameter")                            \
    B(NODE(15)->attr = attrs(5, 1, 1, 9, 1) /* stride stays 0 */, "stride 1, dilation 0; expected 1 or more")                  \
    B((attrs(5, 1, 1, 9, 1), attr_space[4] = 1, NODE(15)->attr = attr_space), "a window of 9 with dilation 1 is longer")       \
    B(NODE(15)->n_attr = 2, "expected attributes n, n x (axis, size, stride, dilation), got 2 values")                         \
    B(NODE(16)->attr = attrs(4, 0, 2, 1, 1), "axis 1: 2 elements from 2 in steps of 1 leave the axis of size 3")               \
    B(NODE(16)->attr = attrs(4, -1, 1, 1, 1), "axis 0 starts at -1")                                                           \
    B(NODE(16)->attr = attrs(4, 0, 1, 1, INT64_MAX), "leave the axis of size 3")                                               \
    B(NODE(17)->attr = attrs(1, 2, 0, 0, 0), "axis 2; expected 0 to 1")                                                        \
    B(NODE(18)->attr = attrs(1, 1, 0, 0, 0), "result 1; there are 1")                                                          \
    B(NODE(18)->in[0] = 9, "expected an op with several results, got add")                                                     \
    B(NODE(19)->in[0] = 9, "expected a counter of i64[]")                                                                      \
    B(NODE(1)->name = NULL, "expected a name")                                                                                 \
    B(NODE(1)->name = "", "input 0 has an empty name")                                                                         \
    B(NODE(1)->name = "w", "inputs 0 and 1 are both named w")                                                                  \
    B(g->inputs.at[0] = 2, "state %2 (w) at v.tn:1: is twice in the list of inputs")                                           \
    B(g->inputs.at[0] = 2, "input %1 (x) at v.tn:1: is missing in the list of inputs")                                         \
    B(g->inputs.at[0] = 9, "add %9 at v.tn:10: is in the list of inputs")                                                      \
    B(g->inputs.at[0] = 900, "input 0 is %900, which does not exist")                                                          \
    B(g->inputs.n = 0, "is missing in the list of inputs")                                                                     \
    B(g->outputs.at[0].v = 0, "output 0 is %0, which does not exist")                                                          \
    B(g->outputs.at[0].v = 77, "output 0 is %77, which does not exist")                                                        \
    B(g->outputs.at[0].v = 6, "sin %6 at v.tn:3: output 0 is inside a region")                                                 \
    B(g->outputs.at[0].name = NULL, "output 0 has neither a name nor a state")                                                 \
    B(g->outputs.at[0].name = "", "output 0 has an empty name")                                                                \
    B(g->outputs.at[0].name = "s", "outputs 0 and 2 are both named s")                                                         \
    B(g->outputs.at[1].state = 1, "output 1 updates %1, which is not a state")                                                 \
    B(g->outputs.at[1].state = 800, "output 1 updates %800, which is not a state")                                             \
    B(g->outputs.at[1].state = 3, "state %3 (n) at v.tn:1: takes a value of another type, %9")                                 \
    B(g->outputs.at[1].state = 3, "state %3 (n) at v.tn:1: is assigned twice")                                                 \
    B(g->params->at.at[0].hi = 0, "symbolic dim B has the range 1..0")                                                         \
    B(g->params->at.at[0].name = "", "symbolic dim 0 has an empty name")                                                       \
    B(NODE(8)->first_use = 0, "its use list has 0 entries, 1 operands are this value")                                         \
    B(NODE(8)->first_use = 1000, "its use list names record 1000 of")                                                          \
    B(NODE(8)->first_use = NODE(1)->first_use, "which is in a list already")                                                   \
    B(NODE(9)->in[0] = 2, "exp %8 (e) at v.tn:9: its use list says operand 0 of %9, which is not so")                          \
    B(g->uses.at[NODE(9)->first_use - 1].next = 0, "its use list has 1 entries")                                               \
    B(g->uses.at[NODE(9)->first_use - 1].prev = 3, "links back to 3, not to 0")                                                \
    B(g->uses.at[NODE(9)->first_use - 1].slot = 7, "its use list says operand 7 of")                                           \
    B(g->uses.at[NODE(9)->first_use - 1].user = 4000, "of %4000, which is not so")                                             \
    B(NODE(9)->in_use[0]++, "does not know its use record")                                                                    \
    B(g->uses.at[g->uses.at[NODE(9)->first_use - 1].next - 1].next = NODE(9)->first_use, "which is in a list already")

static void check_one(int which, const char *expected) {
    fixture f;
    int n;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    graph *g = graph_parse(&f.a, victim_text, strlen(victim_text), "v.tn");
    assert_sound(&f.a, g);
    memset(attr_space, 0, sizeof attr_space);
    int i = 0;
#define B(change, message)                                                                                                     \
    if (i++ == which) change;
    BREAKS
#undef B
    const char *text = problems(&f.a, g, &n);
    if (n < 1 || !strstr(text, expected)) fail_msg("break %d: expected %s, got %d problems:\n%s", which, expected, n, text);
    int lines = 0;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, n);
    str s; /* a broken graph can still be looked at */
    str_init(&s, &f.a);
    graph_print(g, &s);
    assert_true(s.n > 0);
    teardown(&f);
}
static void test_broken(void **state) {
    (void)state;
#define B(change, message) message,
    static const char *const messages[] = { BREAKS };
#undef B
    assert_true(COUNT_OF(messages) >= 60);
    for (size_t i = 0; i < COUNT_OF(messages); i++) check_one((int)i, messages[i]);
}
static void test_every_problem(void **state) {
    (void)state;
    fixture f;
    int n;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    graph *g = graph_parse(&f.a, victim_text, strlen(victim_text), "v.tn");
    NODE(8)->dtype = TN_F64;
    NODE(10)->n_attr = 0;
    g->outputs.at[0].name = "s";
    NODE(17)->first_use = 500;
    const char *text = problems(&f.a, g, &n);
    assert_non_null(strstr(text, "the type is f64[2,3]"));
    assert_non_null(strstr(text, "expected operands of equal dtype, got f64 and f32"));
    assert_non_null(strstr(text, "expected 1 attribute values, got 0"));
    assert_non_null(strstr(text, "both named s"));
    assert_non_null(strstr(text, "record 500"));
    g->outputs.at[0].name = "x";
    assert_non_null(strstr(problems(&f.a, g, &n), "input %1 (x) at v.tn:1: output 0 at v.tn:"));
    assert_true(n >= 5);
    teardown(&f);
}
/* Random bytes in random fields: the verifier and the printer only ever report. */
static void test_broken_at_random(void **state) {
    (void)state;
    uint64_t s = 12345;
    int found = 0;
    for (int round = 0; round < 3000; round++) {
        fixture f;
        int n;
        setup(&f);
        if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
        graph *g = graph_parse(&f.a, victim_text, strlen(victim_text), "v.tn");
        node *x = NODE(1 + random_next(&s) % 19);
        uint32_t junk = (uint32_t)(random_next(&s) % (random_next(&s) % 2 ? 25 : UINT32_MAX));
        switch (random_next(&s) % 10) {
        case 0:
            x->op = (uint8_t)junk;
            break;
        case 1:
            x->dtype = (uint8_t)junk;
            break;
        case 2:
            x->rank = (uint8_t)(junk % 3);
            break;
        case 3:
            x->region = (uint16_t)junk;
            break;
        case 4:
            if (x->n_in) x->in[junk % (uint32_t)x->n_in] = (val)random_next(&s) % 25;
            break;
        case 5:
            x->first_use = junk;
            break;
        case 6:
            g->uses.at[junk % (uint32_t)g->uses.n].next = (uint32_t)random_next(&s) % 40;
            break;
        case 7:
            g->uses.at[junk % (uint32_t)g->uses.n].user = (val)random_next(&s);
            break;
        case 8:
            g->outputs.at[junk % (uint32_t)g->outputs.n].v = junk;
            break;
        default:
            x->n_attr = (uint16_t)(x->n_attr ? junk % x->n_attr : 0);
        }
        problems(&f.a, g, &n);
        found += n > 0;
        str text;
        str_init(&text, &f.a);
        graph_print(g, &text);
        teardown(&f);
    }
    assert_true(found > 1500);
}

/* ---- shape rules: errors that the text form cannot reach ---- */

static void test_limits(void **state) {
    (void)state;
    fixture f;
    setup(&f);
    if (!GUARD_TRY(&f.gd)) fail_msg("%s", f.gd.err.text);
    graph *volatile g = graph_make(&f.a, "g");
    const int64_t huge[] = { INT64_MAX / 4, 1 }, ok[] = { 2, 1 }, zero_huge[] = { 0, INT64_MAX, 2 };
    val x = graph_splat(g, TN_F32, 2, huge, 1);
    assert_int_equal(graph_elems(g, x), INT64_MAX / 4);
    val y = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .rank = 2, .dims = ok, .name = "y" });
    const spec bad[] = {
        { .op = OP_expand, .in = &x, .n_in = 1, .rank = 2, .dims = (int64_t[]){ INT64_MAX / 4, 3 } },
        { .op = OP_const, .dtype = TN_F64, .rank = 1, .dims = huge, .splat = true },
        { .op = OP_const, .dtype = TN_U8, .rank = 3, .dims = zero_huge, .splat = true },
        { .op = OP_const, .dtype = TN_U8, .rank = 1, .dims = (int64_t[]){ -1 }, .splat = true },
        { .op = OP_const, .dtype = TN_U8, .rank = 13, .dims = huge, .splat = true },
        { .op = OP_concat, .in = (val[]){ x, x, x, x, x }, .n_in = 5, .attr = (int64_t[]){ 0 }, .n_attr = 1 },
        { .op = OP_pad, .in = &y, .n_in = 1, .attr = (int64_t[]){ INT64_MAX, 0, 0, 0 }, .n_attr = 4 },
        { .op = OP_pad, .in = &y, .n_in = 1, .attr = (int64_t[]){ 0, 0, INT64_MAX, 0 }, .n_attr = 4 },
        { .op = OP_slice, .in = &y, .n_in = 1, .rank = 2, .dims = ok, .attr = (int64_t[]){ INT64_MAX, 0, 1, 1 }, .n_attr = 4 },
        { .op = OP_slice, .in = &y, .n_in = 1, .rank = 2, .dims = ok, .attr = (int64_t[]){ 0, 0, INT64_MAX, 1 }, .n_attr = 4 },
        { .op = OP_window, .in = &y, .n_in = 1, .attr = (int64_t[]){ 1, 0, INT64_MAX, 1, INT64_MAX }, .n_attr = 5 },
        { .op = OP_window, .in = &y, .n_in = 1, .attr = (int64_t[]){ INT64_MAX }, .n_attr = 1 },
        { .op = OP_dot, .in = (val[]){ x, x }, .n_in = 2, .attr = (int64_t[]){ 0, 0 }, .n_attr = 2 },
        { .op = OP_input, .dtype = TN_F32, .name = "" },
        { .op = OP_neg, .in = &(val){ 77 }, .n_in = 1 },
        { .op = (op_code)200 },
    };
    for (volatile size_t i = 0; i < COUNT_OF(bad); i++) {
        int before = g->nodes.n;
        if (GUARD_TRY(&f.gd)) {
            graph_add(g, &bad[i]);
            fail_msg("spec %zu passed", i);
        }
        assert_true(f.gd.err.code == TN_ERR_SHAPE || f.gd.err.code == TN_ERR_INVAL);
        assert_non_null(strstr(f.gd.err.text, op_get(bad[i].op)->name));
        assert_int_equal(g->nodes.n, before);
    }
    assert_sound(&f.a, g);
    teardown(&f);
}
static void test_symbolic(void **state) {
    (void)state;
    static const struct {
        const char *text, *says; /* NULL: it is fine */
    } cases[] = {
        { "%1 = concat x, x axis=0 f32[B*2,4]", NULL },
        { "%1 = pad x before=[1,0] after=[0,0] value=0 f32[B + 1,4]", NULL },
        { "%1 = slice x start=[0,0] step=[1,1] f32[1,4]", NULL },
        { "%1 = slice x start=[1,0] step=[1,1] f32[B - 1,4]", NULL },
        { "%1 = slice x start=[1,0] step=[1,1] f32[B,4]", "not proven to stay inside its size B" },
        { "%1 = slice x start=[0,0] step=[1,1] f32[2,4]", "not proven" },
        { "%1 = window x (axis=1 size=2)", NULL },
        { "%1 = window x (axis=0 size=2)", "longer than axis 0 of size B" },
        { "%1 = pad x before=[1,0] after=[0,0] value=0 f32[B + 1,4]\n%2 = window %1 (axis=0 size=2) f32[B,4,2]", NULL },
        { "%1 = reshape x f32[B*4]", NULL },
        { "%1 = reshape x f32[2,B,2]", NULL },
        { "%1 = reshape x f32[8]", "for all values of the symbolic dims" },
        { "%1 = reshape x f32[C,4]", "for all values of the symbolic dims" },
        { "%1 = const [1] f32[B]", "symbolic" },
    };
    fixture f;
    setup(&f);
    for (volatile size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!GUARD_TRY(&f.gd)) {
            if (!cases[i].says || !strstr(f.gd.err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, f.gd.err.text);
            continue;
        }
        str text, again;
        str_init(&text, &f.a), str_init(&again, &f.a);
        str_addf(&text, "graph @g<B 1..8, C 1..8>(x f32[B,4]) {\n%s\nreturn %%1\n}", cases[i].text);
        graph *g = graph_parse(&f.a, text.s, text.n, "t");
        if (cases[i].says) fail_msg("accepted: %s", text.s);
        assert_sound(&f.a, g);
        graph_print(g, &again);
        assert_true(graph_equal(g, graph_parse(&f.a, again.s, again.n, "again"), &f.a, NULL));
        const graph *at = graph_at(g, (int64_t[]){ 3, 1 }, &f.a);
        assert_sound(&f.a, at);
        assert_int_equal(graph_get(at, 1)->dims[0], 3);
    }
    teardown(&f);
}

/* ---- dtypes ---- */

static void test_dtypes(void **state) {
    (void)state;
    unsigned char raw[17] = { 0 };
    for (int t = 0; t < TN_N_DTYPES; t++) {
        tn_dtype found;
        assert_true(dtype_find(dtype_name((tn_dtype)t), strlen(dtype_name((tn_dtype)t)), &found) && found == (tn_dtype)t);
        for (int i = 0; i < 2; i++) { /* unaligned on purpose */
            dtype_store((tn_dtype)t, raw + 1, i, 1.0);
            assert_true(dtype_load((tn_dtype)t, raw + 1, i) == 1.0);
            assert_int_equal(dtype_load_int((tn_dtype)t, raw + 1, i), 1);
        }
    }
    assert_int_equal(dtype_cast_to_int(TN_I8, 200.5), 127);
    assert_int_equal(dtype_cast_to_int(TN_I8, -200.5), -128);
    assert_int_equal(dtype_cast_to_int(TN_I32, -2.9), -2);
    assert_int_equal(dtype_cast_to_int(TN_U8, -1), 0);
    assert_int_equal(dtype_cast_to_int(TN_I64, 1e300), INT64_MAX);
    assert_int_equal(dtype_cast_to_int(TN_I64, -1e300), INT64_MIN);
    assert_int_equal(dtype_cast_to_int(TN_I64, 9223372036854774784.0), 9223372036854774784);
    assert_int_equal(dtype_cast_to_int(TN_I32, (double)NAN), 0);
    assert_int_equal(dtype_cast_to_int(TN_BOOL, (double)NAN), 1);
    assert_int_equal(dtype_cast_to_int(TN_BOOL, 0.25), 1);
    dtype_store_int(TN_I8, raw, 0, 300);
    assert_int_equal(dtype_load_int(TN_I8, raw, 0), 44);
    dtype_store_int(TN_BOOL, raw, 0, 256);
    assert_int_equal(raw[0], 1);
    /* 1 + 2^-11 + 2^-40 rounds up in f16 although its float is exactly half way */
    dtype_store(TN_F16, raw, 0, 1 + 0x1p-11 + 0x1p-40);
    assert_true(dtype_load(TN_F16, raw, 0) == 1 + 0x1p-10);
    dtype_store(TN_F16, raw, 0, 1 + 0x1p-11);
    assert_true(dtype_load(TN_F16, raw, 0) == 1);
    dtype_store(TN_BF16, raw, 0, 1 + 0x1p-8 + 0x1p-45);
    assert_true(dtype_load(TN_BF16, raw, 0) == 1 + 0x1p-7);
    dtype_store(TN_BF16, raw, 0, -(1 + 0x1p-8 + 0x1p-45));
    assert_true(dtype_load(TN_BF16, raw, 0) == -(1 + 0x1p-7));
    dtype_store(TN_F16, raw, 0, 1e300);
    assert_true(isinf(dtype_load(TN_F16, raw, 0)));
    assert_true(op_find("nothing") == OP_NIL && op_find("dot") == OP_dot);
    for (int op = OP_NIL + 1; op < N_OPS; op++) assert_int_equal(op_find(op_get((op_code)op)->name), op);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewriting), cmocka_unit_test(test_compact_order),    cmocka_unit_test(test_shorthands),
        cmocka_unit_test(test_equal),     cmocka_unit_test(test_broken),           cmocka_unit_test(test_every_problem),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_broken_at_random), cmocka_unit_test(test_symbolic),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
