/* test_copied_operand.c - contractions whose operand cannot be read as vectors where it lies: strided, reversed and transposed
 * views, and windows of images with channels first, whose rows are short. Vectors run along rows of the result nevertheless,
 * and every value is the reference evaluator's.
 *
 * Labels: random */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/plan_run.h"

static val an_input(graph *g, const char *name, tn_dtype t, int rank, const int64_t *dims) {
    return graph_add(g, &(spec){ .op = OP_input, .dtype = (uint8_t)t, .name = name, .rank = rank, .dims = dims });
}

typedef struct layer { /* a convolution */
    int64_t images, in, out, height, width, kernel, stride, dilation, padding, groups;
    bool normed; /* of relu(scale x + shift), both one a channel */
} layer;

static val a_channel(graph *g, const char *name, int64_t channels, const int64_t *dims) { /* one number each, everywhere */
    val x = graph_reshape(g, an_input(g, name, TN_F32, 1, &channels), 4, (int64_t[]){ 1, channels, 1, 1 });
    return graph_expand(g, x, dims);
}

static val relu(graph *g, val x) { return graph_binary(g, OP_max, x, graph_splat_like(g, x, 0)); }

/* relu(convolution of x[images, in, height, width] + one b a channel), with channels first; weights on either side. */
static graph *convolution(arena *a, const layer *l, bool weights_first) {
    int64_t dx[] = { l->images, l->in, l->height, l->width }, in = l->in / l->groups, out = l->out / l->groups,
            dw[] = { l->groups, out, in, l->kernel, l->kernel }, border[] = { 0, 0, l->padding, l->padding };
    graph *g = graph_make(a, "convolution");
    val x = an_input(g, "x", TN_F32, 4, dx), w = an_input(g, "w", TN_F32, 5, dw);
    if (l->normed)
        x = relu(g, graph_binary(g, OP_add, graph_binary(g, OP_mul, x, a_channel(g, "scale", l->in, dx)),
                                 a_channel(g, "shift", l->in, dx)));
    x = graph_pad(g, x, border, border, 0);
    window_axis axes[] = { { 2, l->kernel, l->stride, l->dilation }, { 3, l->kernel, l->stride, l->dilation } };
    val v = graph_window(g, x, axes, 2);
    const int64_t *dv = graph_get(g, v)->dims;
    int64_t grouped[] = { l->images, l->groups, in, dv[2], dv[3], l->kernel, l->kernel };
    v = graph_reshape(g, v, 7, grouped);
    const int64_t bx[] = { 1 }, bw[] = { 0 }, cx[] = { 2, 5, 6 }, cw[] = { 2, 3, 4 };
    val y = weights_first ? graph_dot(g, w, v, bw, bx, 1, cw, cx, 3) : graph_dot(g, v, w, bx, bw, 1, cx, cw, 3);
    const int64_t first[] = { 2, 0, 1, 3, 4 }, last[] = { 1, 0, 4, 2, 3 };
    y = graph_permute(g, y, weights_first ? first : last); /* of [groups, out, images, ..] or [groups, images, .., out] */
    y = graph_reshape(g, y, 4, (int64_t[]){ l->images, l->out, grouped[3], grouped[4] });
    y = graph_binary(g, OP_add, y, a_channel(g, "b", l->out, graph_get(g, y)->dims));
    graph_output(g, "y", relu(g, y));
    return g;
}

static bool has_lanes(const plan *p, int lanes) { /* in the kernel with the contraction */
    for (int i = 0; i < p->kernels.n; i++) {
        const kernel *k = p->kernels.at[i].k;
        for (int j = 1; j < k->ins.n; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot && k->ins.at[j].lanes >= lanes) return true;
    }
    return false;
}

static plan *plan_of(arena *a, graph *g, const target *t) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 3, o.check = 1;
    return pipeline_run(g, a, &o, t);
}

static const target machine_at_hand = {
    .vector_bytes = 32, .n_vector_regs = 16, .threads = 1, .l1_bytes = 32 << 10, .l2_bytes = 256 << 10
};

/* Layers of well-known networks, made small: all of them multiply whole vectors. */
ARENA_TEST(test_layers_have_vectors) {
    static const layer layers[] = {
        { 1, 16, 32, 28, 28, 1, 2, 1, 0, 1, false },  { 1, 16, 32, 14, 14, 3, 1, 1, 1, 1, false },
        { 1, 32, 16, 7, 7, 3, 1, 1, 1, 1, false },    { 1, 16, 32, 28, 28, 3, 2, 1, 1, 1, false },
        { 1, 3, 16, 56, 56, 7, 2, 1, 3, 1, false },   { 2, 16, 16, 14, 14, 3, 1, 2, 2, 1, false },
        { 1, 3, 16, 64, 64, 11, 4, 1, 2, 1, false },  { 1, 32, 64, 14, 14, 1, 1, 1, 0, 1, true },
        { 1, 16, 16, 28, 28, 3, 1, 1, 1, 16, false }, { 1, 16, 16, 28, 28, 3, 2, 1, 1, 4, false },
    };
    for (size_t i = 0; i < 2 * COUNT_OF(layers); i++) {
        plan *p = plan_of(a, convolution(a, &layers[i / 2], i & 1), &machine_at_hand);
        if (!has_lanes(p, 8)) fail_msg("layer %d has no vectors along its result", (int)i / 2);
    }
}

/* A norm's scale and shift and its ReLU in front of a layer are computed as the operand is copied: one kernel. */
ARENA_TEST(test_norms_are_copied) {
    static const layer layers[] = { { 1, 32, 64, 14, 14, 1, 1, 1, 0, 1, true }, { 1, 32, 64, 28, 28, 1, 2, 1, 0, 1, true } };
    for (size_t i = 0; i < 2 * COUNT_OF(layers); i++) {
        graph *g = convolution(a, &layers[i / 2], i & 1);
        plan_config c = { .seed = i, .fusion = 3, .t = machine_at_hand };
        plan *p = plan_of(a, g, &c.t);
        if (!has_lanes(p, 8)) fail_msg("layer %d has no vectors along its result", (int)i / 2);
        assert_int_equal(p->kernels.n, 1);
        assert_true(p->temp_bytes == 0);
        if (!plan_config_agrees(g, NULL, &c)) fail_msg("layer %d: %s", (int)i / 2, c.text);
    }
}

ARENA_TEST(test_random_layers) {
    for (int round = 0; round < 48; round++) {
        rng r = rng_make((uint64_t)round);
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        layer l = { .images = rng_between(&r, 1, 2), .groups = round % 6 ? 1 : rng_between(&r, 2, 3) };
        l.in = l.groups * rng_between(&r, 1, 9), l.out = l.groups * rng_between(&r, 2, 20);
        l.kernel = rng_between(&r, 1, 3), l.stride = rng_between(&r, 1, 3), l.dilation = rng_between(&r, 1, 2);
        l.normed = rng_chance(&r, 0.3);
        l.padding = rng_between(&r, 0, 2), l.height = rng_between(&r, 5, 20), l.width = rng_between(&r, 5, 40);
        graph *g = convolution(&own, &l, round & 1);
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = plan_target((uint64_t)round) };
        if (!plan_config_agrees(g, NULL, &c))
            fail_msg("round %d, %d x %d x %d x %d to %d, kernel %d, stride %d, dilation %d, padding %d, groups %d: %s", round,
                     (int)l.images, (int)l.in, (int)l.height, (int)l.width, (int)l.out, (int)l.kernel, (int)l.stride,
                     (int)l.dilation, (int)l.padding, (int)l.groups, c.text);
        arena_fini(&own);
    }
}

/* Every second or third column, from the last to the first, and across. */
static val strided_view(graph *g, rng *r, val x, int64_t rows, int64_t columns, int64_t step) {
    if (step > 1) {
        int64_t start[] = { 0, rng_between(r, 0, step - 1) }, steps[] = { 1, step };
        x = graph_slice(g, x, start, (int64_t[]){ rows, columns }, steps);
    }
    return rng_chance(r, 0.4) ? graph_flip(g, x, 1ull << rng_between(r, 0, 1)) : x;
}

ARENA_TEST(test_strided_operands) {
    static const int64_t sizes[][3] = { { 4, 64, 96 }, { 13, 70, 131 }, { 64, 33, 40 }, { 2, 130, 65 }, { 130, 48, 17 } };
    for (int round = 0; round < 30; round++) {
        const int64_t *z = sizes[(size_t)round % COUNT_OF(sizes)];
        rng r = rng_make((uint64_t)round);
        int64_t step = rng_between(&r, 1, 3), left = rng_between(&r, 1, 3);
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = graph_make(&own, "strided");
        val x = an_input(g, "x", TN_F32, 2, (int64_t[]){ z[0], z[1] * left }),
            w = an_input(g, "w", round % 3 ? TN_F32 : TN_BF16, 2, (int64_t[]){ z[1], z[2] * step });
        if (graph_get(g, w)->dtype != TN_F32) w = graph_cast(g, w, TN_F32);
        x = strided_view(g, &r, x, z[0], z[1], left), w = strided_view(g, &r, w, z[1], z[2], step);
        graph_output(g, "y", graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1));
        plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = plan_target((uint64_t)round) };
        if (!plan_config_agrees(g, NULL, &c))
            fail_msg("round %d, %d x %d x %d, steps %d and %d: %s", round, (int)z[0], (int)z[1], (int)z[2], (int)left,
                     (int)step, c.text);
        if (z[2] >= 8) assert_true(has_lanes(plan_of(&own, g, &machine_at_hand), 8));
        arena_fini(&own);
    }
}

/* A transposed convolution whose stride is its window: every pixel becomes a square of them (pixel shuffle). The rows of the
 * result that are the operand's and those that are not take turns. */
ARENA_TEST(test_pixel_shuffle) {
    for (int round = 0; round < 48; round++) {
        rng r = rng_make((uint64_t)round);
        int64_t side = rng_between(&r, 1, 9), up = rng_between(&r, 2, 3), in = rng_between(&r, 1, 9),
                out = rng_between(&r, 1, 9);
        arena own;
        arena_init(&own, mem_libc(), a->gd);
        graph *g = graph_make(&own, "shuffle");
        val x = an_input(g, "x", TN_F32, 4, (int64_t[]){ 2, side, 4, in }),
            w = an_input(g, "w", TN_F32, 4, (int64_t[]){ out, up, up, in });
        val y = graph_dot(g, x, w, NULL, NULL, 0, (int64_t[]){ 3 }, (int64_t[]){ 3 }, 1);
        graph_output(g, "y", graph_permute(g, y, (int64_t[]){ 0, 1, 4, 2, 5, 3 }));
        for (uint64_t t = 0; t < 4; t++) {
            plan_config c = { .seed = (uint64_t)round, .fusion = 3, .t = plan_target(4 * (uint64_t)round + t) };
            if (!plan_config_agrees(g, NULL, &c))
                fail_msg("round %d, 2 x %d x 4 x %d to %d, by %d, vectors of %d bytes: %s", round, (int)side, (int)in, (int)out,
                         (int)up, c.t.vector_bytes, c.text);
        }
        arena_fini(&own);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers_have_vectors), cmocka_unit_test(test_norms_are_copied),
                                        cmocka_unit_test(test_random_layers), cmocka_unit_test(test_strided_operands),
                                        cmocka_unit_test(test_pixel_shuffle) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
