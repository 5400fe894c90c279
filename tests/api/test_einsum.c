/* test_einsum.c - tn_einsum against loops over all labels: fixed strings of every kind, random strings of one to twelve
 * operands, gradients, the order of contraction by its work, refused strings. Labels: devices random */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/trial.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TERMS = 12 };
typedef struct plain { /* labels as characters, "..." written out as digits */
    char term[MAX_TERMS][16], out[16];
    int n;
} plain;

/* Terms of spec; n_dots: axes that "..." has at most, dots[i] in operand i. */
static plain read_plain(const char *spec, const tn_tensor *xs) {
    plain p = { .n = 0 };
    int most = 0, letters[26 * 2] = { 0 }, at = 0;
    const char *arrow = strstr(spec, "->"), *s = spec;
    for (; *s && s != arrow; s++) {
        if (*s == ',') {
            p.n++, at = 0;
        } else if (*s == '.') {
            int all = 0;
            for (const char *k = s + 3; *k && *k != ',' && *k != '-'; k++) all += *k != ' ';
            int dots = tn_tensor_shape(xs[p.n]).rank - all - at;
            for (int i = 0; i < dots; i++) p.term[p.n][at++] = (char)('9' - dots + 1 + i);
            if (dots > most) most = dots;
            s += 2;
        } else if (*s != ' ') {
            p.term[p.n][at++] = *s;
            letters[*s >= 'a' ? *s - 'a' + 26 : *s - 'A']++;
        }
    }
    p.n++, at = 0;
    if (!arrow) {
        for (int i = 0; i < most; i++) p.out[at++] = (char)('9' - most + 1 + i);
        for (int i = 0; i < 52; i++)
            if (letters[i] == 1) p.out[at++] = (char)(i < 26 ? 'A' + i : 'a' + i - 26);
    } else {
        for (s = arrow + 2; *s; s++) {
            if (*s == '.') {
                for (int i = 0; i < most; i++) p.out[at++] = (char)('9' - most + 1 + i);
                s += 2;
            } else if (*s != ' ') {
                p.out[at++] = *s;
            }
        }
    }
    return p;
}

/* Every assignment of all labels: the product of the operands' elements is added where the result's labels say. */
static void by_loops(trial *t, const plain *p, const tn_tensor *xs, double *out) {
    int64_t size[128] = { 0 }, at[128] = { 0 };
    char labels[64];
    const double *v[MAX_TERMS];
    int n = 0;
    bool empty = false;
    for (int i = 0; i < p->n; i++) {
        v[i] = trial_values(t, xs[i]);
        for (int k = 0; p->term[i][k]; k++) {
            int c = p->term[i][k];
            int64_t d = tn_tensor_shape(xs[i]).dim[k];
            if (!memchr(labels, c, (size_t)n)) labels[n++] = (char)c, size[c] = d;
            if (size[c] == 1) size[c] = d;
        }
    }
    for (int i = 0; i < n; i++) empty = empty || size[(int)labels[i]] == 0;
    while (!empty) {
        double product = 1;
        int64_t to = 0;
        for (int i = 0; i < p->n; i++) {
            int64_t from = 0;
            for (int k = 0; p->term[i][k]; k++) {
                int64_t d = tn_tensor_shape(xs[i]).dim[k];
                from = from * d + (d == 1 ? 0 : at[(int)p->term[i][k]]);
            }
            product *= v[i][from];
        }
        for (int k = 0; p->out[k]; k++) to = to * size[(int)p->out[k]] + at[(int)p->out[k]];
        out[to] += product;
        int k = 0;
        while (k < n && ++at[(int)labels[k]] == size[(int)labels[k]]) at[(int)labels[k++]] = 0;
        if (k == n) break;
    }
}

static void check_spec(trial *t, const char *spec, const tn_tensor *xs, int n, bool compiled) {
    tn_tensor y = tn_einsum(spec, xs, n);
    if (!y.id) fail_msg("%s", tn_ctx_error(t->ctx));
    plain p = read_plain(spec, xs);
    int64_t count = trial_count(y);
    double *want = ARENA_ARRAY(&t->a, double, count + 1);
    by_loops(t, &p, xs, want);
    assert_int_equal(tn_tensor_shape(y).rank, (int)strlen(p.out));
    trial_near(spec, trial_values(t, y), want, count, 1e-11);
    if (compiled) trial_compiled(t, &y, 1, 1e-11);
}

static void fixed_strings(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int n;
        tn_shape s[4];
    } cases[] = {
        { "ij,jk->ik", 2, { TN_DIMS(3, 4), TN_DIMS(4, 5) } },
        { "ij,jk", 2, { TN_DIMS(3, 4), TN_DIMS(4, 5) } },
        { "ba", 1, { TN_DIMS(3, 4) } },
        { "ij->ji", 1, { TN_DIMS(3, 4) } },
        { "ii->i", 1, { TN_DIMS(5, 5) } },
        { "ii", 1, { TN_DIMS(5, 5) } },
        { "iji->ij", 1, { TN_DIMS(3, 4, 3) } },
        { "iijj->ij", 1, { TN_DIMS(3, 3, 2, 2) } },
        { "iii->i", 1, { TN_DIMS(3, 3, 3) } },
        { "ij->", 1, { TN_DIMS(3, 4) } },
        { "->", 1, { TN_SCALAR } },
        { "i,j->ij", 2, { TN_DIMS(3), TN_DIMS(4) } },
        { "i,i->i", 2, { TN_DIMS(3), TN_DIMS(3) } },
        { "i,->i", 2, { TN_DIMS(3), TN_SCALAR } },
        { "...ij,...jk->...ik", 2, { TN_DIMS(2, 3, 4), TN_DIMS(5, 2, 4, 3) } },
        { "...ij,...jk", 2, { TN_DIMS(2, 1, 3, 4), TN_DIMS(5, 4, 3) } },
        { " i ... , j ... -> ... j i", 2, { TN_DIMS(3, 2, 1), TN_DIMS(4, 2, 5) } },
        { "...->", 1, { TN_DIMS(2, 3) } },
        { "b...i,b...->i", 2, { TN_DIMS(2, 3, 4), TN_DIMS(2, 3) } },
        { "ij,ij->i", 2, { TN_DIMS(3, 1), TN_DIMS(1, 4) } },
        { "ij,jk,kl->il", 3, { TN_DIMS(2, 7), TN_DIMS(7, 3), TN_DIMS(3, 5) } },
        { "ij,jk,kl,li->", 4, { TN_DIMS(2, 3), TN_DIMS(3, 4), TN_DIMS(4, 5), TN_DIMS(5, 2) } },
        { "bhqd,bhkd->bhqk", 2, { TN_DIMS(2, 2, 3, 4), TN_DIMS(2, 2, 5, 4) } },
        { "i,i,i->i", 3, { TN_DIMS(4), TN_DIMS(4), TN_DIMS(1) } },
        { "ij,jk->ik", 2, { TN_DIMS(3, 0), TN_DIMS(0, 5) } },
        { "ij,kj->ik", 2, { TN_DIMS(0, 3), TN_DIMS(4, 3) } },
        { "bij,k->bk", 2, { TN_DIMS(2, 3, 4), TN_DIMS(5) } },
    };
    int n_done = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        trial *t = trial_open(i + 1);
        tn_tensor xs[4];
        for (int k = 0; k < cases[i].n; k++) xs[k] = trial_floats(t, cases[i].s[k], -1, 1);
        check_spec(t, cases[i].spec, xs, cases[i].n, true);
        trial_gradients(t, tn_einsum(cases[i].spec, xs, cases[i].n), 1e-6);
        trial_close(t);
        n_done++;
    }
    printf("count: %d strings of einsum\n", n_done);
}

/* Random strings: labels of few sizes, labels twice, "..." with axes of 1 that stretch. */
static void random_strings(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(200, &first);
    if (!test_device_is_cpu() || fuzz_by_c()) n = n / 10 + 1;
    for (uint64_t seed = first; seed < first + n; seed++) {
        trial *t = trial_open(seed);
        int64_t size[6];
        for (int i = 0; i < 6; i++) size[i] = rng_between(&t->r, 1, 3);
        int terms = (int)(rng_chance(&t->r, 0.1) ? rng_between(&t->r, 9, MAX_TERMS) : rng_between(&t->r, 1, 4)), at = 0;
        bool dots = rng_chance(&t->r, 0.3), used[6] = { false };
        char spec[256];
        tn_tensor xs[MAX_TERMS];
        for (int k = 0; k < terms; k++) {
            tn_shape s = { .rank = 0 };
            int rank = (int)rng_between(&t->r, 0, 3);
            if (k) spec[at++] = ',';
            for (int i = 0; i < rank; i++) {
                int label = (int)rng_below(&t->r, 6);
                spec[at++] = (char)('a' + label), used[label] = true;
                s.dim[s.rank++] = size[label];
            }
            if (dots && rng_chance(&t->r, 0.6)) {
                int more = (int)rng_between(&t->r, 0, 2);
                memcpy(spec + at, "...", 3), at += 3;
                for (int i = 0; i < more; i++) s.dim[s.rank++] = rng_chance(&t->r, 0.3) ? 1 : 2;
            }
            xs[k] = trial_floats(t, s, -1, 1);
        }
        bool any_dots = false;
        for (int i = 0; i + 2 < at; i++) any_dots = any_dots || !memcmp(spec + i, "...", 3);
        if (rng_chance(&t->r, 0.7)) {
            memcpy(spec + at, "->", 2), at += 2;
            if (any_dots) memcpy(spec + at, "...", 3), at += 3;
            for (int i = 5; i >= 0; i--)
                if (used[i] && rng_chance(&t->r, 0.5)) spec[at++] = (char)('a' + i);
        }
        spec[at] = 0;
        check_spec(t, spec, xs, terms, seed % 8 == 0);
        trial_close(t);
    }
    printf("count: %d random strings of einsum\n", (int)n);
}

/* A chain whose right end is a vector: from the right it is matrix times vector all the way. */
static void cheapest_order(void **state) {
    (void)state;
    trial *t = trial_open(3);
    tn_tensor xs[] = { trial_floats(t, TN_DIMS(64, 64), -1, 1), trial_floats(t, TN_DIMS(64, 64), -1, 1),
                       trial_floats(t, TN_DIMS(64, 64), -1, 1), trial_floats(t, TN_DIMS(64), -1, 1) };
    tn_output(tn_einsum("ij,jk,kl,l->i", xs, 4), "y");
    tn_program *p;
    tn_program_stats stats;
    if (tn_compile(t->g, NULL, &p)) fail_msg("%s", tn_ctx_error(t->ctx));
    tn_program_get_stats(p, &stats);
    assert_true(stats.flops <= 3 * 2 * 64 * 64 + 1000);
    tn_program_free(p);
    trial_close(t);
}

static void refused(const char *spec, tn_shape a, tn_shape b, const char *text) {
    trial *t = trial_open(1);
    tn_tensor xs[] = { trial_floats(t, a, 0, 1), trial_floats(t, b, 0, 1) };
    assert_int_equal(tn_einsum(spec, xs, 2).id, 0);
    trial_refused(t, text);
    trial_close(t);
}
static void mistakes_are_named(void **state) {
    (void)state;
    refused("ij,jk->iq", TN_DIMS(2, 3), TN_DIMS(3, 4), "\"ij,jk->iq\", character 9: no operand has this label");
    refused("ij,jk->ii", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 9: the result has this label twice");
    refused("ij,jk->ik", TN_DIMS(2, 3), TN_DIMS(4, 4), "label j has size 3, and 4 in operand 2");
    refused("ij,jkl->ik", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 4: 3 labels for operand 2, f64[3,4]");
    refused("ij->ik", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 3: expected a comma: fewer terms than operands");
    refused("ij,jk,k", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 6: more terms than operands");
    refused("ij,j5->i", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 5: expected a letter");
    refused("ij,jk-ik", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 6: expected \"->\"");
    refused("ij,jk->i,k", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 9: the result is one term");
    refused("...i...,jk", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 5: \"...\" stands twice");
    refused("...ijk,jk", TN_DIMS(2, 3), TN_DIMS(3, 4), "character 1: the operand has fewer axes than its term has letters");
    refused("ii,jk", TN_DIMS(2, 3), TN_DIMS(3, 4), "a diagonal of axes 0 and 1 of operand 1, of sizes 2 and 3");
    trial *t = trial_open(1);
    tn_tensor xs[] = { trial_floats(t, TN_DIMS(2), 0, 1), trial_ints(t, TN_I32, TN_DIMS(2), 0, 1) };
    tn_einsum("i,i->", xs, 2);
    trial_refused(t, "tn_einsum(in0 f64[2], in1 i32[2])");
    assert_int_equal(tn_einsum("i", NULL, 1).id, 0);
    trial_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(fixed_strings), cmocka_unit_test(random_strings),
                                        cmocka_unit_test(cheapest_order), cmocka_unit_test(mistakes_are_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
