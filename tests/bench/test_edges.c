/* test_edges.c - cache sizes from curves of latencies: a sharp one made up, and one measured on a virtual machine whose last
 * level is shared, so that its climb out of the second level goes on by little steps and its last edge is round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../bench/edges.c" /* the program is no library; this part of it is pure */

static void between(double x, double least, double most) {
    if (x < least || x > most) fail_msg("%g is not between %g and %g", x, least, most);
}

static void add_point(curve *k, double bytes, double ns) {
    k->bytes[k->n] = bytes;
    for (int i = 0; i < EDGES_PASSES; i++) k->passes[k->n][i] = ns * (i ? 1.5 : 1); /* two passes were disturbed */
    k->n++;
}

static void test_sharp(void **state) {
    (void)state;
    static const double size[] = { 48 << 10, 2 << 20, 32 << 20, 1e30 }, ns[] = { 1.1, 3.9, 14, 100 };
    curve k = { 0 };
    for (double bytes = 8192; bytes < 256 << 20; bytes *= pow(2, 1.0 / EDGES_DOUBLING)) {
        int level = 0;
        while (bytes > size[level] * 1.0001) level++;
        add_point(&k, bytes, ns[level]);
    }
    curve_smooth(&k);
    int from = 0;
    for (int level = 0; level < 3; level++) {
        double found = 0;
        from = curve_edge(&k, from, &found);
        between(found / size[level], 0.95, 1.1);
    }
    double none = -1;
    assert_int_equal(curve_edge(&k, from, &none), k.n);
    assert_true(none == -1);
}

/* An EPYC (32 KB, 512 KB, 32 MB shared with other machines), the best of one pass, from 8192 bytes on. */
static const double epyc[] = {
    1.24, 1.23, 1.23, 1.23, 1.23, 1.23, 1.23, 1.23, 1.23, 1.23, 1.24, 1.24, 1.24, 1.25, 1.24, 1.24, 1.24, 1.81, 3.57, 3.7,
    3.69, 3.72, 3.72, 3.72, 3.72, 3.73, 3.72, 3.72, 3.72, 3.72, 3.73, 3.73, 3.74, 3.74, 3.74, 3.75, 3.74, 3.78, 8.46, 6.75,
    7.33, 4,    4.5,  5.03, 4.82, 5.33, 6.46, 7.04, 7.64, 8.57, 9.2,  9.83, 11,   12.4, 12.6, 13,   13.5, 14.1, 14.4, 14.1,
    14.4, 14.6, 14.7, 14.9, 15.2, 15.4, 15.6, 15.5, 15.7, 15.7, 15.9, 16.1, 17.2, 18.5, 16.9, 17.1, 17.8, 17.5, 21.3, 22.7,
    17.8, 18.8, 20.5, 22.7, 23.6, 37.1, 36.6, 81.7, 80.1, 72.8, 99.5, 88.4, 105,  94.3, 109,  112,  113,  125,  133,  129,
    125,  128,  119,  127,  121,  120,  126,  129,  123,  122,  132,  129,  125,  126,  132,  126,  127,  131,  127,  127,
};
static void test_shared(void **state) {
    (void)state;
    curve k = { 0 };
    for (size_t i = 0; i < sizeof epyc / sizeof *epyc; i++) add_point(&k, 8192 * pow(2, (double)i / EDGES_DOUBLING), epyc[i]);
    curve_smooth(&k);
    double l1 = 0, l2 = 0, l3 = 0;
    int from = curve_edge(&k, 0, &l1);
    from = curve_edge(&k, from, &l2);
    curve_edge(&k, from, &l3);
    between(l1, 0.75 * 32768, 1.25 * 32768);
    between(l2, 0.75 * 524288, 1.25 * 524288);
    between(l3, 12e6, 18e6); /* where the curve has half of its climb from 17 to 130 ns; not 1.8 MB */
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sharp), cmocka_unit_test(test_shared) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
