/* test_plan_steps.c - the tree of steps of a plan: what plan_check must find of defects that are planted in it, and what the
 * interpreter makes of loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/plan_run.h"

/* Some launches; the last has loops and branches inside; the first has no state that a run changes, the second a training
 * step's. */
static const char *const graphs[] = {
    "graph @net(x f32[17,1033], w f32[1033,24], u f32[24,40], v f32[40,24]) {\n  %1 = dot x, w contract=[1]x[0] f32[17,24]\n"
    "  %2 = tanh %1\n  %3 = dot %2, u contract=[1]x[0] f32[17,40]\n  %4 = dot %3, v contract=[1]x[0] f32[17,24]\n"
    "  %5 = dot %4, u contract=[1]x[0] f32[17,40]\n  %6 = sum %5 axes=[0]\n  return %5 as \"y\", %6 as \"columns\"\n}\n",
    "graph @step(x f32[16,24], state w f32[24,40] = rand(3), state n i64[]) {\n  %1 = dot x, w contract=[1]x[0] f32[16,40]\n"
    "  %2 = tanh %1\n  %3 = dot x, %2 contract=[0]x[0] f32[24,40]\n  %4 = sub w, %3\n  %5 = add n, 1\n"
    "  return %2 as \"y\", %4 -> w, %5 -> n\n}\n",
    "graph @control(c bool[], x f32[40], i i64[], state w f32[40]) {\n"
    "  region @c(%ca i64[], %cx f32[40]) {\n    %ct = lt %ca, 3\n    return %ct\n  }\n"
    "  region @yes(%p f32[40]) {\n    %q = mul %p, 2.0\n    return %q\n  }\n"
    "  region @no(%s f32[40]) {\n    %t = add %s, 1.0\n    return %t\n  }\n"
    "  region @b(%ba i64[], %bx f32[40]) {\n    %bn = add %ba, 1\n    %bt = gt %ba, 1\n"
    "    %bi = if %bt, %bx then=@yes else=@no f32[40]\n    %bs = tanh %bi\n    return %bn, %bs\n  }\n"
    "  %1 = while i, x cond=@c body=@b i64[]\n  %2 = proj %1 index=1 f32[40]\n  %3 = add %2, w\n  %4 = tanh %3\n"
    "  return %3 as \"y\", %4 -> w, %1 as \"n\"\n}\n",
    "graph @scan(x f32[6,40], h f32[40], n i64[]) {\n  %1 = tanh x\n"
    "  region @b(%c f32[40], %t f32[40]) {\n    %2 = add %c, %t\n    %3 = tanh %2\n    return %3, %2\n  }\n"
    "  %4 = scan n, h, %1 body=@b carry=1 steps=1 length=6 f32[40]\n  %5 = proj %4 index=1 f32[6,40]\n  %6 = exp %5\n"
    "  return %4 as \"y\", %6 as \"z\"\n}\n",
};
enum { NET, TRAIN, CONTROL, SCAN };

static plan *make_plan(arena *a, int which, bool gpu, tn_mode mode) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.fusion = 0, o.mode = mode, o.check = 1;
    target t = gpu ? target_common_gpu() : plan_target(4); /* two threads */
    return pipeline_run(graph_parse(a, graphs[which], strlen(graphs[which]), "t"), a, &o, &t);
}

/* ---- planted defects ---- */

static pstep *loop(plan *p) { return &p->steps.at[0]; }
static pring *ring(plan *p, int i) { return (pring *)(uintptr_t)&loop(p)->rings[i]; }
static void swap(pstep *x, pstep *y) {
    pstep z = *x;
    *x = *y, *y = z;
}
static void insert(plan *p, int at, pstep x) {
    VEC_PUSH(p->a, &p->steps, x);
    for (int i = p->steps.n - 1; i > at; i--) p->steps.at[i] = p->steps.at[i - 1];
    p->steps.at[at] = x;
}
static int32_t buffer_of(const plan *p, pbuf_kind kind, int nth) {
    for (int i = 0; i < p->bufs.n; i++)
        if (p->bufs.at[i].kind == kind && p->bufs.at[i].bytes > 0 && nth-- == 0) return i;
    fail_msg("no such buffer");
    return -1;
}
static int large_ring(plan *p) { /* of a buffer that does not end at a multiple of 16 bytes */
    for (int i = 0; i < loop(p)->n_rings; i++)
        if (ring(p, i)->stride != p->bufs.at[ring(p, i)->buf].bytes) return i;
    fail_msg("no such ring");
    return -1;
}

#define DEFECT(name) static void name(plan *p)
DEFECT(launch_dropped) { p->steps.n--, loop(p)->inside--; }
DEFECT(launch_twice) { VEC_PUSH(p->a, &p->steps, p->steps.at[p->steps.n - 1]), loop(p)->inside++; }
DEFECT(launches_swapped) { swap(&p->steps.at[1], &p->steps.at[2]); }
DEFECT(launch_of_no_kernel) { p->steps.at[p->steps.n - 1].kernel = p->kernels.n; }
DEFECT(launch_outside) { loop(p)->inside--; }
DEFECT(launch_before) { insert(p, 0, p->steps.at[1]); }
DEFECT(loop_too_long) { loop(p)->inside++; }
DEFECT(loop_of_negative_size) { loop(p)->inside = -1; }
DEFECT(launch_with_steps_inside) { p->steps.at[1].inside = 1; }
DEFECT(loop_in_a_loop) {
    pstep x = *loop(p);
    x.inside = 1;
    insert(p, p->steps.n - 1, x), loop(p)->inside++;
}
DEFECT(loop_behind) { VEC_PUSH(p->a, &p->steps, ((pstep){ .kind = PSTEP_LOOP })); }
DEFECT(steps_dropped) { p->steps.n = 0; }
DEFECT(ring_too_near) { ring(p, 0)->stride -= 4; }
DEFECT(ring_too_far) { ring(p, 0)->stride += 4; }
DEFECT(ring_stands) { ring(p, 0)->stride = 0; }
DEFECT(ring_backwards) { ring(p, 1)->stride *= -1; }
DEFECT(ring_of_bytes_on_gpu) { ring(p, large_ring(p))->stride = p->bufs.at[ring(p, large_ring(p))->buf].bytes; }
DEFECT(ring_dropped) { loop(p)->n_rings--; }
DEFECT(ring_twice) { *ring(p, 1) = *ring(p, 0); }
DEFECT(rings_swapped) {
    pring x = *ring(p, 0);
    *ring(p, 0) = *ring(p, 1), *ring(p, 1) = x;
}
DEFECT(ring_of_a_temporary) { ring(p, loop(p)->n_rings - 1)->buf = buffer_of(p, PB_TEMP, 0); }
DEFECT(ring_of_a_state) { ring(p, 0)->buf = buffer_of(p, PB_STATE, 0); }
DEFECT(ring_of_no_buffer) { ring(p, loop(p)->n_rings - 1)->buf = p->bufs.n; }
DEFECT(ring_of_a_negative_buffer) { ring(p, 0)->buf = -1; }
DEFECT(ring_inside_its_slot) { p->bufs.at[ring(p, 0)->buf].offset = PLAN_ALIGN; }
DEFECT(update_in_an_overlap) { loop(p)->overlaps = true; }
DEFECT(place_shared_in_an_overlap) { loop(p)->overlaps = true; }
DEFECT(bytes_shared_in_an_overlap) {
    pbuf *x = &p->bufs.at[buffer_of(p, PB_TEMP, 0)], *y = &p->bufs.at[buffer_of(p, PB_TEMP, 1)];
    pbuf *late = x->offset < y->offset ? y : x;
    late->offset -= PLAN_ALIGN;
}

/* The nth step of a kind. */
static int find(const plan *p, pstep_kind kind, int nth) {
    for (int i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind == kind && nth-- == 0) return i;
    fail_msg("no such step");
    return -1;
}
static pstep *step(plan *p, pstep_kind kind) { return &p->steps.at[find(p, kind, 0)]; }
static void take_out(plan *p, int at) {
    for (int i = 0; i < at; i++)
        if (pstep_end(p, i) > at) p->steps.at[i].inside--;
    for (int i = at; i + 1 < p->steps.n; i++) p->steps.at[i] = p->steps.at[i + 1];
    p->steps.n--;
}
/* The buffer that the last launch of a loop writes, and the kernel's number for it. */
static parg *last_written(plan *p) {
    int at = find(p, PSTEP_REPEAT, 0), i = pstep_end(p, at) - 1;
    const pkernel *pk = &p->kernels.at[p->steps.at[i].kernel];
    return &pk->args[pk->k->bufs.n - 1];
}
static void share_place(plan *p, int32_t x, int32_t y) {
    p->bufs.at[y].slot = p->bufs.at[x].slot, p->bufs.at[y].offset = p->bufs.at[x].offset;
}

DEFECT(leave_dropped) { take_out(p, find(p, PSTEP_LEAVE, 0)); }
DEFECT(leave_outside) {
    pstep x = *step(p, PSTEP_LEAVE);
    take_out(p, find(p, PSTEP_LEAVE, 0)), insert(p, find(p, PSTEP_REPEAT, 0), x), loop(p)->inside++;
}
DEFECT(leave_before_its_condition) {
    int i = find(p, PSTEP_LEAVE, 0);
    swap(&p->steps.at[i - 1], &p->steps.at[i]);
}
DEFECT(leave_with_steps_inside) { step(p, PSTEP_LEAVE)->inside = 1; }
DEFECT(condition_of_numbers) { step(p, PSTEP_LEAVE)->cond = last_written(p)->buf; }
DEFECT(condition_of_no_buffer) { step(p, PSTEP_BRANCH)->cond = p->bufs.n; }
DEFECT(condition_that_nothing_writes) { step(p, PSTEP_LEAVE)->cond = step(p, PSTEP_BRANCH)->cond; }
DEFECT(branch_part_too_long) { step(p, PSTEP_BRANCH)->n_then = step(p, PSTEP_BRANCH)->inside + 1; }
DEFECT(branch_without_else) { step(p, PSTEP_BRANCH)->n_then = step(p, PSTEP_BRANCH)->inside; }
DEFECT(branch_without_then) { step(p, PSTEP_BRANCH)->n_then = 0; }
DEFECT(branch_beyond_its_loop) { step(p, PSTEP_BRANCH)->inside += 9; }
DEFECT(step_of_no_kind) { step(p, PSTEP_LEAVE)->kind = N_PSTEPS; }
DEFECT(state_updated_in_a_loop) { last_written(p)->buf = buffer_of(p, PB_STATE, 0); }
DEFECT(condition_written_over) { /* what the loop carries lies where the branch looks */
    share_place(p, last_written(p)->buf, step(p, PSTEP_BRANCH)->cond);
}
DEFECT(carried_value_written_over) { /* by a value that lives between its uses in two iterations */
    int at = find(p, PSTEP_REPEAT, 0);
    const pkernel *first = &p->kernels.at[p->steps.at[at + 1].kernel]; /* the condition */
    share_place(p, last_written(p)->buf, first->args[first->k->bufs.n - 1].buf);
}

static pring *window(plan *p, int i) { return (pring *)(uintptr_t)&step(p, PSTEP_REPEAT)->rings[i]; }
static pbuf *over(plan *p, int i) { return &p->bufs.at[p->bufs.at[window(p, i)->buf].window_of]; }
DEFECT(too_many_times) { step(p, PSTEP_REPEAT)->times++; }
DEFECT(negative_times) { step(p, PSTEP_REPEAT)->times = -6; }
DEFECT(counted_by_floats) { step(p, PSTEP_REPEAT)->count = window(p, 0)->buf; }
DEFECT(counted_by_no_buffer) { step(p, PSTEP_REPEAT)->count = p->bufs.n; }
DEFECT(window_too_near) { window(p, 0)->stride -= 4; }
DEFECT(window_of_a_value) { window(p, 0)->buf = buffer_of(p, PB_INPUT, 0); }
DEFECT(window_twice) { *window(p, 1) = *window(p, 0); }
DEFECT(window_dropped) { step(p, PSTEP_REPEAT)->n_rings--; }
DEFECT(window_in_another_slot) { p->bufs.at[window(p, 0)->buf].slot++; }
DEFECT(window_over_another_type) { over(p, 0)->dtype = TN_I32; }
DEFECT(window_of_itself) { p->bufs.at[window(p, 1)->buf].window_of = window(p, 1)->buf; }
DEFECT(window_used_outside) {
    pkernel *pk = &p->kernels.at[p->kernels.n - 1];
    pk->args[0].buf = window(p, 0)->buf;
}
DEFECT(stacks_in_one_place) {
    share_place(p, p->bufs.at[window(p, 0)->buf].window_of, p->bufs.at[window(p, 1)->buf].window_of);
}

typedef struct defect {
    const char *name;
    void (*plant)(plan *p);
    int graph;
    bool gpu;
    tn_mode mode;
    const char *problem;
} defect;
#define CPU(name, problem)                                                                                                     \
    { #name, name, TRAIN, false, TN_MODE_LOOP, problem }
#define GPU(name, problem)                                                                                                     \
    { #name, name, NET, true, TN_MODE_LOOP, problem }
#define CTL(name, problem)                                                                                                     \
    { #name, name, CONTROL, false, TN_MODE_LOOP, problem }
#define SCN(name, problem)                                                                                                     \
    { #name, name, SCAN, false, TN_MODE_LOOP, problem }
static const defect defects[] = {
    SCN(too_many_times, "7 times, over the"),
    SCN(negative_times, "is repeated -6 times"),
    SCN(counted_by_floats, "which is not one i64"),
    SCN(counted_by_no_buffer, "which is not one i64"),
    SCN(window_too_near, "over the"),
    SCN(window_of_a_value, "which is no window"),
    SCN(window_twice, "which moves elsewhere, too"),
    SCN(window_dropped, "outside of its loop"),
    SCN(window_in_another_slot, "lies in slot"),
    SCN(window_over_another_type, "over the"),
    SCN(window_of_itself, "is a window of b"),
    SCN(window_used_outside, "outside of its loop"),
    SCN(stacks_in_one_place, "overlap"),
    CTL(leave_dropped, "is a loop that nothing leaves"),
    CTL(leave_outside, "leaves no loop"),
    CTL(leave_before_its_condition, "which nothing has written"),
    CTL(leave_with_steps_inside, "is a leave with 1 steps inside"),
    CTL(condition_of_numbers, "which is not one bool"),
    CTL(condition_of_no_buffer, "which is not one bool"),
    CTL(condition_that_nothing_writes, "which nothing has written"),
    CTL(branch_part_too_long, "of them for true"),
    CTL(branch_without_else, "which nothing has written"),
    CTL(branch_without_then, "which nothing has written"),
    CTL(branch_beyond_its_loop, "steps inside, of"),
    CTL(step_of_no_kind, "is of no kind"),
    CTL(state_updated_in_a_loop, "inside of a loop or a branch"),
    CTL(condition_written_over, "overlap"),
    CTL(carried_value_written_over, "overlap"),
    CPU(launch_dropped, "is in no step"),
    CPU(launch_twice, "is launch"),
    CPU(launches_swapped, "step 1 is launch 1, expected 0"),
    CPU(launch_of_no_kernel, "is launch"),
    CPU(launch_outside, "stands outside of the loop"),
    CPU(launch_before, "but not around all of it"),
    CPU(loop_too_long, "of"),
    CPU(loop_of_negative_size, "has -1 steps inside"),
    CPU(launch_with_steps_inside, "is a launch with 1 steps inside"),
    CPU(loop_in_a_loop, "but not around all of it"),
    CPU(loop_behind, "but not around all of it"),
    CPU(steps_dropped, "launch 0 is in no step"),
    CPU(ring_too_near, "from iteration to iteration, expected"),
    CPU(ring_too_far, "from iteration to iteration, expected"),
    CPU(ring_stands, "but moves by 0"),
    GPU(ring_backwards, "but moves by -"),
    GPU(ring_of_bytes_on_gpu, "from iteration to iteration, expected"),
    CPU(ring_dropped, "does not move in the loop"),
    GPU(ring_twice, "twice or out of order"),
    GPU(rings_swapped, "twice or out of order"),
    GPU(ring_of_a_temporary, "which is neither input nor output"),
    CPU(ring_of_a_state, "which is neither input nor output"),
    GPU(ring_of_no_buffer, "moves buffer b"),
    CPU(ring_of_a_negative_buffer, "moves buffer b-1"),
    CPU(ring_inside_its_slot, "which is not at the begin of its slot"),
    { "update_in_an_overlap", update_in_an_overlap, TRAIN, true, TN_MODE_LOOP, "to the next one" },
    { "place_shared_in_an_overlap", place_shared_in_an_overlap, NET, false, TN_MODE_COMPILED, "share bytes" },
    GPU(bytes_shared_in_an_overlap, "share bytes"),
};

static void test_defects(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(defects); i++) {
        const defect *d = &defects[i];
        arena a;
        guard gd;
        str good, bad;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s: %s", d->name, gd.err.text);
        str_init(&good, &a), str_init(&bad, &a);
        plan *p = make_plan(&a, d->graph, d->gpu, d->mode);
        assert_true(p->kernels.n >= 3 && plan_loop(p));
        if (plan_check(p, &good)) fail_msg("%s: a good plan: %s", d->name, good.s);
        d->plant(p);
        if (!plan_check(p, &bad)) fail_msg("%s is not noticed", d->name);
        if (!strstr(bad.s, d->problem)) fail_msg("%s: \"%s\" is not in: %s", d->name, d->problem, bad.s);
        arena_fini(&a);
    }
    printf("count: %d planted defects in the steps of a plan, all caught\n", (int)COUNT_OF(defects));
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_defects) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
