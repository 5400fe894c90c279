/* test_json.c - JSON: values and how they lie, malformed files and the message of each, mutations, every failing allocation. */
#include "io_test.h"

#include <math.h>

static const char sample[] =
    " {\"a\": [1, -2.5e1, true, false, null], \"b\\u00e9\": {\"t\": \"x\\n\\ud83d\\ude00\", \"e\": {}, "
    "\"f\": []},\n\"a\": [[0.125], \"\"], \"n\":123456789012}\r\n";

static void test_values(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    const tn_json *j, *v;
    assert_int_equal(tn_io_json_parse(ctx, sample, strlen(sample), "s", &j), TN_OK);
    assert_true(j->kind == TN_JSON_OBJECT && j->n == 4 && j->all == 16 && !j->key);
    const tn_json *first = j + 1;
    assert_true(first->kind == TN_JSON_ARRAY && first->n == 5 && first->all == 6);
    assert_string_equal(first->key, "a");
    assert_true(first[1].number == 1 && first[2].number == -25 && first[3].kind == TN_JSON_BOOL && first[3].number == 1);
    assert_true(first[4].kind == TN_JSON_BOOL && first[4].number == 0 && first[5].kind == TN_JSON_NULL && !first[5].key);
    const tn_json *second = first + first->all;
    assert_string_equal(second->key, "b\xC3\xA9");
    assert_true((v = tn_io_json_find(second, "t")) && v->kind == TN_JSON_TEXT && v->n == 6);
    assert_string_equal(v->text, "x\n\xF0\x9F\x98\x80");
    assert_true((v = tn_io_json_find(second, "e")) && v->kind == TN_JSON_OBJECT && v->n == 0 && v->all == 1);
    assert_true((v = tn_io_json_find(second, "f")) && v->kind == TN_JSON_ARRAY && v->all == 1);
    assert_true((v = tn_io_json_find(j, "a")) && v->n == 2 && v[1].n == 1 && v[2].number == 0.125 && v[3].n == 0);
    assert_true((v = tn_io_json_find(j, "n")) && v->number == 123456789012.0 && v + 1 == j + j->all);
    assert_true(!tn_io_json_find(j, "t") && !tn_io_json_find(NULL, "t") && !tn_io_json_find(first, "t"));
    tn_io_json_free(ctx, j);
    const char *const alone[] = { "0", "\"\"", "null", "[]", " true ", "-0.5E-2" };
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        assert_int_equal(tn_io_json_parse(ctx, alone[i], strlen(alone[i]), NULL, &j), TN_OK);
        assert_true(j->all == 1);
        tn_io_json_free(ctx, j);
    }
    write_bytes(in_dir("f.json"), sample, strlen(sample));
    assert_int_equal(tn_io_json_load(ctx, in_dir("f.json"), &j), TN_OK);
    assert_true(j->all == 16);
    tn_io_json_free(ctx, j);
    assert_fails(ctx, tn_io_json_load(ctx, in_dir("none.json"), &j), TN_ERR_IO, "none.json", "a missing file");
    tn_ctx_free(ctx);
}

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = { { "", "expected a value" },
                  { "  ", "j: offset 2: expected a value" },
                  { "{", "before a member's name" },
                  { "[1", "expected ',' or ] behind an element, found the end" },
                  { "[1 2]", "expected ',' or ] behind an element" },
                  { "[1,]", "expected a value" },
                  { "{\"a\":1,}", "before a member's name" },
                  { "{\"a\" 1}", "expected ':' behind a member's name" },
                  { "{\"a\":1]", "or } behind a member" },
                  { "{1:2}", "before a member's name" },
                  { "[1]]", "expected the end of the file" },
                  { "01", "expected a value, found \"01\"" },
                  { "1.", "expected a value" },
                  { ".5", "expected a value" },
                  { "1e", "expected a value" },
                  { "+1", "expected a value" },
                  { "--1", "expected a value" },
                  { "0x10", "expected the end" },
                  { "NaN", "expected a value" },
                  { "tru", "expected a value" },
                  { "truefalse", "expected the end" },
                  { "\"a", "a string has no end" },
                  { "\"\\x\"", "unknown escape" },
                  { "\"\\u00\"", "four hexadecimal digits" },
                  { "\"\\u0000\"", "zero character" },
                  { "\"\\ud800\"", "high surrogate" },
                  { "\"\xff\"", "not UTF-8" },
                  { "\"a\nb\"", "control character" } };
    tn_ctx *ctx = tn_ctx_new(NULL);
    const tn_json *j;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(ctx, tn_io_json_parse(ctx, cases[i].text, strlen(cases[i].text), "j", &j), TN_ERR_PARSE, cases[i].message,
                     cases[i].text);
        assert_null(j);
    }
    char deep[2 * TN_IO_MAX_DEPTH + 8] = { 0 };
    for (int n = TN_IO_MAX_DEPTH; n <= TN_IO_MAX_DEPTH + 1; n++) {
        memset(deep, '[', (size_t)n), memset(deep + n, ']', (size_t)n);
        tn_status s = tn_io_json_parse(ctx, deep, 2 * (size_t)n, "j", &j);
        if (n > TN_IO_MAX_DEPTH)
            assert_fails(ctx, s, TN_ERR_PARSE, "more than 64 levels", "depth");
        else
            assert_int_equal(s, TN_OK), tn_io_json_free(ctx, j);
    }
    tn_ctx_free(ctx);
}

/* Whatever was accepted is whole: every value lies inside of the one that has it. */
static void check_values(const tn_json *v) {
    const tn_json *inside = v + 1;
    int32_t n = 0;
    if (v->kind != TN_JSON_ARRAY && v->kind != TN_JSON_OBJECT) {
        assert_true(v->all == 1 && (v->kind == TN_JSON_TEXT ? v->text && strlen(v->text) == (size_t)v->n : !v->text && !v->n));
        return;
    }
    for (; inside < v + v->all; inside += inside->all, n++) {
        assert_true((inside->key != NULL) == (v->kind == TN_JSON_OBJECT) && (!inside->key || strlen(inside->key) < 1000));
        check_values(inside);
    }
    assert_true(inside == v + v->all && n == v->n);
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    uint64_t seed = 5;
    int accepted = 0, rounds = 20000;
    for (int i = 0; i < rounds; i++) {
        uint8_t changed[sizeof sample + 128];
        size_t n = mutate(&seed, (const uint8_t *)sample, strlen(sample), changed, sizeof changed);
        uint8_t *exact = malloc(n + !n);
        const tn_json *j;
        memcpy(exact, changed, n);
        tn_status s = tn_io_json_parse(ctx, exact, n, "m", &j);
        if (s)
            assert_true(s == TN_ERR_PARSE && strlen(tn_ctx_error(ctx)) > 5 && !j);
        else
            check_values(j), tn_io_json_free(ctx, j), accepted++;
        free(exact);
        assert_int_equal(c.live, live);
    }
    assert_in_range(accepted, 1, rounds / 2);
    printf("count: %d mutated JSON files, %d of them accepted\n", rounds, accepted);
    for (long k = 0;; k++) { /* every allocation fails in turn */
        const tn_json *j;
        c.requests = 0, c.fail_at = k;
        tn_status s = tn_io_json_parse(ctx, sample, strlen(sample), "m", &j);
        c.fail_at = -1;
        if (!s) {
            tn_io_json_free(ctx, j);
            assert_true(k >= 2);
            break;
        }
        assert_int_equal(s, TN_ERR_NOMEM);
        assert_int_equal(c.live, live);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values), cmocka_unit_test(test_malformed),
                                        cmocka_unit_test(test_mutations) };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
