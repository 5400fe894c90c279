/* test_expression.c - the nodes of an expression: evaluated, they are what C makes of the same text; wrong texts are refused.
 */
#include "emit/expression.h"
#include "support/support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Of a text over integers x, y, z. LT is the only word called. */
static int64_t evaluate(const expression *e, arena *a, int64_t x, int64_t y, int64_t z) {
    int64_t *v = ARENA_ARRAY(a, int64_t, e->nodes.n), names[26] = { ['x' - 'a'] = x, ['y' - 'a'] = y, ['z' - 'a'] = z };
    for (int i = 0; i < e->nodes.n; i++) {
        const expr_node *n = &e->nodes.at[i];
        for (int j = 0; j < n->n_in; j++) assert_in_range(n->in[j], 0, i - 1); /* operands first */
        int64_t p = v[n->in[0]], q = v[n->in[1]];
        switch ((expr_kind)n->kind) {
        case EXPR_FLOAT:
            v[i] = (int64_t)n->number;
            break;
        case EXPR_INTEGER:
            v[i] = n->integer;
            break;
        case EXPR_NAME:
            v[i] = names[n->letter - 'a'];
            break;
        case EXPR_ASSIGN:
            v[i] = names[n->letter - 'a'] = p;
            break;
        case EXPR_NEGATE:
            v[i] = -p;
            break;
        case EXPR_BINARY:
            v[i] = n->op == '+'   ? p + q
                   : n->op == '-' ? p - q
                   : n->op == '*' ? p * q
                   : n->op == '&' ? p & q
                   : n->op == '^' ? p ^ q
                                  : p | q;
            break;
        case EXPR_SHIFT:
            v[i] = n->word[2] == 'L' ? p << n->integer : p >> n->integer;
            break;
        case EXPR_CALL:
            assert_string_equal(n->word, "LT");
            assert_int_equal(n->n_in, 2);
            v[i] = p < q;
        }
    }
    return v[e->nodes.n - 1];
}

#define K(x) (x)
#define I(x) (x)
#define LT(x, y) ((x) < (y))
#define SHL(x, n) ((x) << (n))
#define SAR(x, n) ((x) >> (n))
#define CHECK(text) check(a, #text, (text), x, y, z)

static void check(arena *a, const char *text, int64_t want, int64_t x, int64_t y, int64_t z) {
    expression e = { 0 };
    expression_read(a, text, &e);
    int64_t got = evaluate(&e, a, x, y, z);
    if (got != want) fail_msg("%s of %d %d %d: %d, not %d", text, (int)x, (int)y, (int)z, (int)got, (int)want);
}

ARENA_TEST(test_values_are_those_of_c) {
    rng r = rng_make(7);
    for (int round = 0; round < 200; round++) {
        int64_t x = rng_between(&r, 0, 99), y = rng_between(&r, 0, 99), z = rng_between(&r, 0, 99);
        CHECK(x);
        CHECK(-x);
        CHECK(- -x);
        CHECK(x - y - z);
        CHECK(x - (y - z));
        CHECK(x + y * z);
        CHECK((x + y) * z);
        CHECK(x * -y + z);
        CHECK(x | y ^ z & x);
        CHECK((x & y) + z);
        CHECK(x ^ y & z | x);
        CHECK(x + y - z + x);
        CHECK(-(x + y) * -z);
        CHECK(LT(x, y) | LT(y, z) & x);
        CHECK(LT(-x, y * z));
        CHECK(SHL(x + y, 3) - SAR(z * K(64), 2));
        CHECK(K(-3) * x + I(0x7f) - K(12));
        CHECK(LT(LT(x, y), LT(z, y) + z));
        CHECK(x * y * z - x * y);
    }
}

ARENA_TEST(test_names_change) {
    expression e = { 0 };
    expression_read(a, "q=x+y; x=q*q;q=x-K(1); q*x", &e);
    assert_int_equal(evaluate(&e, a, 2, 3, 0), 24 * 25);
}

static void read_text(arena *a, void *ud) {
    expression e = { 0 };
    expression_read(a, ud, &e);
}

static void test_wrong_texts_are_refused(void **state) {
    (void)state;
    char *texts[] = { "",
                      "x+",
                      "x y",
                      "(x",
                      "x)",
                      "LT(x,y",
                      "LT x",
                      "q=x",
                      "q=x;;q",
                      "K(1",
                      "X",
                      "LT(x,y,z,x)",
                      "A_WORD_OF_TOO_MANY_LETTERS(x)",
                      "SHL(x)",
                      "x//y" };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        err e;
        if (with_arena(read_text, texts[i], &e) != TN_ERR_INTERNAL) fail_msg("\"%s\" was read", texts[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values_are_those_of_c), cmocka_unit_test(test_names_change),
                                        cmocka_unit_test(test_wrong_texts_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
