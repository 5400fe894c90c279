/* test_gpulist.c - which launches of a GPU's list wait for which: random lists against the definition, pair by pair, and every
 * allocation failing. */
#include "rt_util.h"

#include "rt/gpulist.h"

static unsigned seed = 99;
static int random_below(int n) { return (int)((seed = seed * 1664525u + 1013904223u) >> 16) % n; }

enum { SLOTS = 3, BYTES = 64, MOST = 24, PLACES = 4 };
static char memory[SLOTS][BYTES];

/* Places of a random size, so many copies of them; 0: none. */
static const device_places *make_places(int copies) {
    static struct device_place at[PLACES];
    static device_places places;
    for (int i = 0; i < PLACES; i++) at[i] = (struct device_place){ (size_t)random_below(3) * 8, (size_t)random_below(3) * 8 };
    places = (device_places){ at, random_below(SLOTS), copies, 16, random_below(2) };
    return copies ? &places : NULL;
}

static gpu_list *make_list(mem m, int nodes, bool ring) {
    err e;
    gpu_list *l = gpu_list_new(m, sizeof *l, SLOTS, &e);
    assert_non_null(l);
    for (int i = 0; i < nodes; i++) {
        device_arg args[3];
        gpu_node *n;
        for (int k = 0; k < 3; k++)
            args[k] = (device_arg){ random_below(SLOTS), (size_t)random_below(6) * 8, (size_t)random_below(3) * 8,
                                    random_below(3) == 0, random_below(2) * (1 + random_below(PLACES)) };
        device_launch what = {
            .entry = memory, .block_threads = 32, .grid_blocks = 1, .args = args, .n_args = 1 + random_below(3)
        };
        assert_int_equal(gpu_list_launch(l, &what, 64, &n, &e), TN_OK);
        n->kernel = memory;
    }
    assert_int_equal(gpu_list_seal(l, &e), TN_OK);
    for (int s = 0; s < SLOTS; s++) gpu_list_bind(l, s, memory[s == 2 ? 1 : s], s == 2 ? 16 : 0); /* two slots overlap */
    if (ring) gpu_list_ring(l, 0, 16, 2);
    return l;
}

/* Whether the argument is where the list's places say: results of other slots in all steps but the last. */
static bool has_place(const gpu_list *l, const device_arg *a, int64_t step) {
    if (!l->places || !a->place) return false;
    return a->slot == l->places->slot ||
           (l->places->results && step + 1 < l->graph_steps && !gpu_slot_moves(&l->slots[a->slot]));
}
static size_t size_at(const gpu_list *l, const device_arg *a, int64_t step) {
    return has_place(l, a, step) ? l->places->at[a->place - 1].size : a->size;
}
static const void *handle_at(const gpu_list *l, const device_arg *a, int64_t step) {
    return l->slots[has_place(l, a, step) ? l->places->slot : a->slot].handle;
}

static bool touch(const gpu_list *l, int late, int early) { /* a byte that both touch and one writes */
    const gpu_node *x = &l->nodes[late % l->n_nodes], *y = &l->nodes[early % l->n_nodes];
    for (int i = 0; i < x->n_args; i++)
        for (int j = 0; j < y->n_args; j++) {
            const device_arg *a = &x->args[i], *b = &y->args[j];
            int64_t step_a = late / l->n_nodes, step_b = early / l->n_nodes;
            size_t n = size_at(l, a, step_a), m = size_at(l, b, step_b);
            if (!a->written && !b->written) continue;
            if (handle_at(l, a, step_a) != handle_at(l, b, step_b)) continue;
            for (size_t p = 0; p < n; p++)
                for (size_t q = 0; q < m; q++)
                    if (gpu_list_place(l, a, step_a) + p == gpu_list_place(l, b, step_b) + q) return true;
        }
    return false;
}

/* Whether it is not a row. */
static bool check_order(gpu_list *l, int steps) {
    static bool reach[MOST * 3][MOST * 3], needed[MOST * 3][MOST * 3];
    gpu_order o;
    err e;
    bool row = true;
    int exact = 0;
    l->graph_steps = steps;
    assert_int_equal(gpu_list_order(l, steps, &o, &e), TN_OK);
    int n = l->n_nodes * steps;
    assert_int_equal(o.n, n);
    memset(reach, 0, sizeof reach), memset(needed, 0, sizeof needed);
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < k; i++)
            if (touch(l, k, i)) {
                needed[k][i] = true;
                for (int j = 0; j < i; j++) needed[k][j] |= needed[i][j];
            }
        for (int i = o.first[k]; i < o.first[k + 1]; i++) {
            int b = o.before[i];
            assert_true(b >= 0 && b < k && !reach[k][b]); /* nothing twice */
            reach[k][b] = true;
            for (int j = 0; j < b; j++) reach[k][j] |= reach[b][j];
        }
        for (int j = 0; j < k; j++) assert_true(reach[k][j] || !needed[k][j]);
        exact += memcmp(reach[k], needed[k], sizeof reach[k]) == 0;
        row &= o.first[k + 1] - o.first[k] == (k > 0) && (!k || o.before[o.first[k]] == k - 1);
    }
    assert_true(row || exact >= n); /* no more than needed, or a row */
    gpu_order_free(l, &o);
    return !row;
}

static void test_order(void **state) {
    (void)state;
    int free_orders = 0;
    for (int round = 0; round < 300; round++) {
        counted memory_of = { 0 };
        gpu_list *l = make_list(counted_mem(&memory_of), 1 + random_below(MOST), round % 3 == 0);
        gpu_list_places(l, make_places(round % 4));
        free_orders += check_order(l, 1);
        free_orders += check_order(l, 3);
        gpu_list_free(l, sizeof *l);
        assert_int_equal(memory_of.alive, 0);
    }
    assert_true(free_orders > 60 && free_orders < 600);
}

static void test_long_lists(void **state) {
    (void)state;
    counted memory_of = { 0 };
    gpu_list *l;
    gpu_order o;
    err e;
    l = make_list(counted_mem(&memory_of), 700, false);
    assert_int_equal(gpu_list_order(l, 2, &o, &e), TN_OK);
    for (int k = 1; k < 1400; k++) assert_true(o.first[k + 1] - o.first[k] == 1 && o.before[o.first[k]] == k - 1);
    gpu_order_free(l, &o);
    gpu_list_free(l, sizeof *l);
    assert_int_equal(memory_of.alive, 0);
}

static void test_out_of_memory(void **state) {
    (void)state;
    counted memory_of = { 0 };
    gpu_list *l;
    gpu_order o;
    err e;
    l = make_list(counted_mem(&memory_of), MOST, false);
    int64_t alive = memory_of.alive, failed = 0;
    for (;; failed++) {
        memory_of.calls = 0, memory_of.fail_at = failed + 1;
        tn_status st = gpu_list_order(l, 3, &o, &e);
        memory_of.fail_at = 0;
        if (st == TN_OK) break;
        assert_int_equal(st, TN_ERR_NOMEM);
        assert_int_equal(memory_of.alive, alive);
    }
    assert_true(failed >= 3);
    gpu_order_free(l, &o);
    gpu_list_free(l, sizeof *l);
    assert_int_equal(memory_of.alive, 0);
}

/* A result that the next step overwrites is apart from it; one that moves, and the last step's, are where they are bound. What
 * sizes of a run leave of a step is all that it touches. */
static void test_results(void **state) {
    (void)state;
    gpu_list *l;
    gpu_node *n;
    gpu_order o;
    err e;
    const struct device_place at = { 8, 16 };
    const device_places places = { &at, 1, 2, 32, true };
    device_arg y = { 0, 0, 24, true, 1 };
    device_launch what = { .entry = memory, .block_threads = 32, .grid_blocks = 1, .args = &y, .n_args = 1 };
    assert_non_null(l = gpu_list_new(mem_libc(), sizeof *l, SLOTS, &e));
    assert_int_equal(gpu_list_launch(l, &what, 64, &n, &e), TN_OK);
    for (int s = 0; s < SLOTS; s++) gpu_list_bind(l, s, memory[s], (uint64_t)s * 100);
    assert_int_equal(gpu_list_place(l, &y, 0), 0);
    gpu_list_places(l, &places);
    assert_int_equal(gpu_list_place(l, &y, 0), 0); /* of no graph */
    l->graph_steps = 4;
    assert_int_equal(gpu_list_place(l, &y, 0), 108);
    assert_int_equal(gpu_list_place(l, &y, 1), 140);
    assert_int_equal(gpu_list_place(l, &y, 2), 108);
    assert_int_equal(gpu_list_place(l, &y, 3), 0);
    assert_int_equal(gpu_list_order(l, 4, &o, &e), TN_OK);
    assert_int_equal(o.first[4], 1); /* the third step waits for the first */
    gpu_order_free(l, &o);
    gpu_list_ring(l, 0, 16, 9);
    assert_int_equal(gpu_list_place(l, &y, 1), 16);
    assert_int_equal(gpu_list_order(l, 4, &o, &e), TN_OK);
    assert_int_equal(o.first[4], 3); /* 24 bytes of each */
    gpu_order_free(l, &o);
    gpu_list_sizes(l, &(int64_t){ 2 }, NULL);
    l->sizes = 1;
    assert_int_equal(gpu_list_order(l, 4, &o, &e), TN_OK);
    assert_int_equal(o.first[4], 0);
    gpu_order_free(l, &o);
    gpu_list_free(l, sizeof *l);
}

/* Where the steps of slots lie that move, one behind the other, and what does not fit them. */
static void test_loop(void **state) {
    (void)state;
    gpu_list *l;
    gpu_node *n;
    err e;
    device_arg args[2] = { { 0, 8, 16, false }, { 2, 0, 300, true } };
    device_launch what = { .entry = memory, .block_threads = 32, .grid_blocks = 1, .args = args, .n_args = 2 };
    assert_non_null(l = gpu_list_new(mem_libc(), sizeof *l, SLOTS, &e));
    assert_int_equal(gpu_list_launch(l, &what, 64, &n, &e), TN_OK);
    assert_false(gpu_list_moves(l));
    assert_int_equal(gpu_loop_place(l, SLOTS, 0, 4), 256);
    gpu_list_ring(l, 0, 24, 5), gpu_list_ring(l, 1, 0, 5), gpu_list_ring(l, 2, 300, 2);
    assert_true(gpu_slot_moves(&l->slots[0]) && !gpu_slot_moves(&l->slots[1]) && gpu_slot_moves(&l->slots[2]));
    assert_true(!gpu_slot_written(l, 0) && !gpu_slot_written(l, 1) && gpu_slot_written(l, 2));
    assert_true(gpu_slot_used(l, 0) && !gpu_slot_used(l, 1) && gpu_slot_used(l, 2));
    assert_int_equal(gpu_loop_place(l, 0, 0, 1), 256);
    assert_int_equal(gpu_loop_place(l, 2, 0, 1), 512);
    assert_int_equal(gpu_loop_place(l, SLOTS, 0, 1), 1024);
    assert_int_equal(gpu_loop_place(l, 0, 2, 3), 256 + 2 * 256); /* three steps of each, one behind the other */
    assert_int_equal(gpu_loop_place(l, 2, 1, 3), 256 + 3 * 256 + 512);
    assert_int_equal(gpu_loop_place(l, SLOTS, 0, 3), 256 + 3 * 256 + 3 * 512);
    assert_true(gpu_loop_fits(l));
    gpu_list_ring(l, 0, 23, 5);
    assert_false(gpu_loop_fits(l));
    gpu_list_ring(l, 0, 24, 5), gpu_list_ring(l, 2, 299, 2);
    assert_false(gpu_loop_fits(l));
    gpu_list_free(l, sizeof *l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),   cmocka_unit_test(test_long_lists), cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_results), cmocka_unit_test(test_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
