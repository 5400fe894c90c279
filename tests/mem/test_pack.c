/* test_pack.c - places of temporaries: random lifetimes and sizes, against the definition: largest first, each at the lowest
 * place where nothing is that lives at the same time. For GPUs: what launches that may overlap have does not share a place, and
 * what that takes.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many plans (default 400); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "run/run.h"
#include "mem/mem.h"
#include "support/support.h"

/* In a loop whose iterations may overlap, or not. */
static void pack(plan *p, int64_t roomy, bool overlap) {
    mem_steps(p, true, false);
    plan_loop(p)->overlaps = overlap;
    mem_pack(p, roomy);
}

/* Every kernel has the buffers that begin or end there. */
static plan *random_plan(arena *a, rng *r) {
    plan *p = ARENA_NEW(a, plan);
    p->a = a, p->g = graph_make(a, "g");
    int n_kernels = (int)rng_between(r, 1, 40), n_bufs = (int)rng_between(r, 0, 120);
    int64_t most = rng_chance(r, 0.3) ? 600 : 20000, life = rng_between(r, 0, n_kernels);
    for (int b = 0; b < n_bufs; b++) {
        pbuf x = { .kind = rng_chance(r, 0.9) ? PB_TEMP : PB_STATE, .dtype = TN_U8, .inplace_of = -1, .io = -1 };
        x.elems = x.bytes = rng_chance(r, 0.1) ? 0 : rng_between(r, 1, most);
        x.first = (int32_t)rng_below(r, n_kernels), x.last = x.first + (int32_t)rng_below(r, life + 1);
        if (x.last >= n_kernels) x.last = n_kernels - 1;
        VEC_PUSH(a, &p->bufs, x);
    }
    for (int i = 0; i < n_kernels; i++) {
        pkernel pk = { .k = kernel_make(a, "k"), .args = ARENA_ARRAY(a, parg, n_bufs + 1), .code = i };
        for (int b = 0; b < n_bufs; b++)
            if (p->bufs.at[b].first == i || p->bufs.at[b].last == i) {
                kernel_buf(pk.k, (kbuf){ .kind = p->bufs.at[b].first == i ? KB_OUT : KB_IN, .plan_buf = b });
                pk.args[pk.k->bufs.n - 1].buf = b;
            }
        VEC_PUSH(a, &p->kernels, pk);
    }
    return p;
}

static bool is_placed(const pbuf *b) { return b->kind == PB_TEMP && b->bytes > 0; }

static int64_t lowest_place(const plan *p, const int *placed, int n, const pbuf *x, int apart) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const pbuf *y = &p->bufs.at[placed[i]];
        bool together = x->first <= y->last + apart && y->first <= x->last + apart;
        if (!together || at >= y->offset + plan_room(y->bytes) || y->offset >= at + plan_room(x->bytes)) continue;
        at = y->offset + plan_room(y->bytes), i = -1; /* from the beginning */
    }
    return at;
}

static void check_places(const plan *p, arena *a, int apart, uint64_t seed) {
    int *placed = ARENA_ARRAY(a, int, p->bufs.n + 1), n = 0;
    int64_t bytes = 0, bound = 0;
    bool *done = ARENA_ARRAY(a, bool, p->bufs.n + 1);
    for (;;) {
        int next = -1;
        for (int b = 0; b < p->bufs.n; b++)
            if (is_placed(&p->bufs.at[b]) && !done[b] && (next < 0 || p->bufs.at[b].bytes > p->bufs.at[next].bytes)) next = b;
        if (next < 0) break;
        const pbuf *x = &p->bufs.at[next];
        int64_t want = lowest_place(p, placed, n, x, apart);
        if (x->offset != want)
            fail_msg("seed %llu: buffer %d is at %lld, expected %lld", (unsigned long long)seed, next, (long long)x->offset,
                     (long long)want);
        if (want + plan_room(x->bytes) > bytes) bytes = want + plan_room(x->bytes);
        done[next] = true, placed[n++] = next;
    }
    for (int i = 0; i < p->kernels.n; i++) {
        int64_t live = 0;
        for (int k = 0; k < n; k++)
            if (p->bufs.at[placed[k]].first <= i && i <= p->bufs.at[placed[k]].last)
                live += plan_room(p->bufs.at[placed[k]].bytes);
        if (live > bound) bound = live;
    }
    assert_int_equal(p->temp_bytes, bytes);
    assert_int_equal(p->temp_bound, bound);
}

ARENA_TEST(test_places) {
    uint64_t first, n = fuzz_seeds(400, &first);
    for (uint64_t seed = first; seed < first + n; seed++) {
        rng r = rng_make(seed);
        plan *p = random_plan(a, &r);
        bool roomy = rng_chance(&r, 0.2);
        pack(p, roomy ? INT64_MAX : 0, true);
        check_places(p, a, roomy || p->temp_bound == 0 ? p->kernels.n : 0, seed);
    }
    printf("count: places of temporaries: %llu random plans\n", (unsigned long long)n);
}

/* ---- launches that may overlap ---- */

enum { BYTES = 1000 };

static int32_t add_buffer(plan *p) {
    VEC_PUSH(p->a, &p->bufs,
             (pbuf){ .kind = PB_TEMP, .dtype = TN_U8, .elems = BYTES, .bytes = BYTES, .inplace_of = -1, .io = -1 });
    return p->bufs.n - 1;
}

/* Returns what a launch writes that reads buffers x and y; -1: none. */
static int32_t add_launch(plan *p, int32_t x, int32_t y) {
    pkernel pk = { .k = kernel_make(p->a, "k"), .args = ARENA_ARRAY(p->a, parg, 3), .code = p->kernels.n };
    int32_t used[] = { add_buffer(p), x, y };
    for (int i = 0; i < 3; i++) {
        if (used[i] < 0) continue;
        kernel_buf(pk.k, (kbuf){ .kind = i ? KB_IN : KB_OUT, .plan_buf = used[i] });
        pk.args[pk.k->bufs.n - 1].buf = used[i];
    }
    VEC_PUSH(p->a, &p->kernels, pk);
    return used[0];
}

static plan *empty_plan(arena *a) {
    plan *p = ARENA_NEW(a, plan);
    p->a = a, p->g = graph_make(a, "g");
    return p;
}

static plan *branches(arena *a, int n_branches, int length) {
    plan *p = empty_plan(a);
    int32_t first = add_launch(p, -1, -1), all = first;
    for (int b = 0; b < n_branches; b++) {
        int32_t x = first;
        for (int i = 0; i < length; i++) x = add_launch(p, x, -1);
        all = add_launch(p, x, all);
    }
    return p;
}

/* Launches in a row share places, unless steps may overlap. */
ARENA_TEST(test_row) {
    plan *p = branches(a, 1, 40);
    pack(p, INT64_MAX, false);
    assert_int_equal(p->temp_bytes, p->temp_bound);
    pack(p, INT64_MAX, true);
    assert_int_equal(p->temp_bytes, p->bufs.n * plan_room(BYTES));
    assert_true(plan_loop(p)->overlaps);
    pack(p, 41 * BYTES, true);
    assert_int_equal(p->temp_bytes, p->temp_bound);
    assert_false(plan_loop(p)->overlaps); /* there was no room for it */
}

/* Launches of different branches share none. */
ARENA_TEST(test_branches) {
    plan *p = branches(a, 2, 3);
    pack(p, INT64_MAX, false);
    for (int i = 1; i <= 3; i++)
        for (int j = 5; j <= 7; j++)
            if (p->bufs.at[i].offset == p->bufs.at[j].offset) fail_msg("buffers %d and %d share a place", i, j);
    pack(p, 0, false);
    assert_int_equal(p->temp_bytes, p->temp_bound);
}

/* Many branches, and random plans: never more than twice the size. */
ARENA_TEST(test_bound) {
    uint64_t first, n = fuzz_seeds(400, &first);
    for (uint64_t seed = first; seed < first + n; seed++) {
        rng r = rng_make(seed);
        plan *p = seed % 4 ? random_plan(a, &r) : branches(a, (int)rng_between(&r, 1, 40), (int)rng_between(&r, 1, 20));
        pack(p, 0, false);
        int64_t packed = p->temp_bytes;
        pack(p, INT64_MAX, false);
        if (p->temp_bytes > 2 * packed)
            fail_msg("seed %llu: %lld bytes, packed %lld", (unsigned long long)seed, (long long)p->temp_bytes,
                     (long long)packed);
        for (int x = 0; x < p->bufs.n; x++)
            for (int y = 0; y < x; y++) {
                const pbuf *b = &p->bufs.at[x], *c = &p->bufs.at[y];
                if (!is_placed(b) || !is_placed(c) || b->first > c->last || c->first > b->last) continue;
                assert_true(b->offset >= c->offset + c->bytes || c->offset >= b->offset + b->bytes);
            }
    }
}

/* A network for a GPU, of layers that are kernels of their own; with `counter` it counts its steps. */
static const plan *network(arena *a, tn_mode mode, bool counter) {
    enum { LAYERS = 14 /* whose results fit the second cache */, SIZE = 256 };
    static const int64_t dims[] = { SIZE, SIZE }, last[] = { 1 }, first[] = { 0 };
    graph *g = graph_make(a, "net");
    target t = target_common_gpu();
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = mode, o.fusion = 3, o.check = 1;
    val x = graph_add(g, &(spec){ .op = OP_input, .dtype = TN_F32, .name = "x", .rank = 2, .dims = dims });
    for (int i = 0; i < LAYERS; i++) {
        val w = graph_add(
            g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = arena_printf(a, "w%d", i), .rank = 2, .dims = dims });
        x = graph_unary(g, OP_tanh, graph_dot(g, x, w, NULL, NULL, 0, last, first, 1));
    }
    graph_output(g, "y", x);
    if (counter) {
        val n = graph_add(g, &(spec){ .op = OP_state, .dtype = TN_F32, .name = "n" });
        graph_assign(g, n, graph_binary(g, OP_add, n, graph_splat_like(g, n, 1)));
    }
    return pipeline_run(g, a, &o, &t);
}

ARENA_TEST(test_network) {
    const plan *once = network(a, TN_MODE_COMPILED, false), *steps = network(a, TN_MODE_LOOP, false),
               *counted = network(a, TN_MODE_LOOP, true);
    assert_int_equal(once->kernels.n, 14);
    assert_int_equal(once->temp_bytes, once->temp_bound);
    assert_true(steps->temp_bytes >= 13 * (256 << 10)); /* not the output */
    assert_int_equal(counted->temp_bytes, counted->temp_bound);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_places), cmocka_unit_test(test_row),
                                        cmocka_unit_test(test_branches), cmocka_unit_test(test_bound),
                                        cmocka_unit_test(test_network) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
