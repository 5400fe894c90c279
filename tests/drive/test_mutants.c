/* test_mutants.c - plants defects in plans that the pipeline made and requires that each is caught: by kernel_check, by
 * plan_check, or by running the plan against the reference evaluator. A row of `defects` is one kind of defect; it is planted
 * once in every plan that has a place for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/plan_run.h"

static const char *const graphs[] = {
    /* a layer with a softmax, and a training step of its bias */
    "graph @layer(x f32[61,37], w f32[37,53], state b f32[53] = rand(3), state n i64[]) {\n"
    "  %1 = dot x, w contract=[1]x[0] f32[61,53]\n  %2 = reshape b f32[1,53]\n  %3 = expand %2 f32[61,53]\n  %4 = add %1, %3\n"
    "  %5 = max %4, 0.0\n  %6 = reduce_max %5 axes=[1]\n  %7 = expand %6 f32[61,53]\n  %8 = sub %5, %7\n  %9 = exp %8\n"
    "  %10 = sum %9 axes=[1]\n  %11 = expand %10 f32[61,53]\n  %12 = div %9, %11\n  %13 = sum %12 axes=[0]\n  %14 = reshape "
    "%13 f32[53]\n"
    "  %15 = sub b, %14\n  %16 = add n, 1\n  return %12 as \"y\", %15 -> b, %16 -> n\n}\n",
    /* borders, windows, gathers, integers, random numbers, arg reductions */
    "graph @mixed(x f32[3,19], t f32[7,13], i i32[5], u i8[19], state c i64[]) {\n"
    "  %1 = pad x before=[1,2] after=[1,2] value=0.5 f32[5,23]\n  %2 = window %1 (axis=1 size=3 stride=2) f32[5,11,3]\n  %3 = "
    "prod %2 axes=[2]\n"
    "  %4 = reshape %3 f32[5,11]\n  %5 = gather t, i axis=0 f32[5,13]\n  %6 = slice %5 start=[0,1] step=[1,1] f32[5,11]\n  %7 "
    "= sub %4, %6\n"
    "  %8 = argmax %7 axis=1\n  %9 = random c stream=7 f32[5,11]\n  %10 = lt %9, %7\n  %11 = select %10, %7, %9\n  %12 = "
    "scatter_add t, i, %5 axis=0\n"
    "  %13 = mul u, 97\n  %14 = cast %13 f32[19]\n  %15 = add c, 3\n  %16 = concat %11, %4 axis=0\n"
    "  return %16 as \"y\", %8 as \"best\", %12 as \"table\", %14 as \"squares\", %15 -> c\n}\n",
    /* a border along the lanes: loads keep their masks */
    "graph @border(x f32[9,5]) {\n"
    "  %1 = pad x before=[0,3] after=[0,3] value=0.5 f32[9,11]\n  %2 = mul %1, 3.0\n  return %2 as \"y\"\n}\n",
    /* a chain through memory, with lifetimes that meet */
    "graph @chain(x f32[40,70], y f32[70,33], z f32[40,33]) {\n"
    "  %1 = dot x, y contract=[1]x[0] f32[40,33]\n  %2 = sub %1, z\n  %3 = permute %2 perm=[1,0]\n  %4 = dot %2, %3 "
    "contract=[1]x[0] f32[40,40]\n"
    "  %5 = tanh %4\n  %6 = dot %5, x contract=[1]x[0] f32[40,70]\n  %7 = sum %6 axes=[0]\n  %8 = reduce_max %6 axes=[1]\n  %9 "
    "= dot %6, y contract=[1]x[0] f32[40,33]\n"
    "  %10 = sub %9, %2\n  return %10 as \"a\", %7 as \"b\", %8 as \"c\"\n}\n",
};

/* ---- finding a place ---- */

typedef bool (*place_fn)(const kernel *k, reg r);
static kins *find(plan *p, place_fn ok, kernel **out_k) {
    for (int i = 0; i < p->kernels.n; i++) {
        kernel *k = p->kernels.at[i].k;
        for (reg r = 1; r < (reg)k->ins.n; r++)
            if (ok(k, r)) {
                if (out_k) *out_k = k;
                return &k->ins.at[r];
            }
    }
    return NULL;
}
static const kins *at(const kernel *k, reg r) { return &k->ins.at[r]; }
static bool is_alu(const kernel *k, reg r, op_code op) { return at(k, r)->op == K_ALU && at(k, r)->alu == op; }

static bool long_loop(const kernel *k, reg r) {
    return at(k, r)->op == K_LOOP && at(k, r)->par != PAR_LAST && at(k, r)->hi - at(k, r)->lo > at(k, r)->step;
}
static bool store(const kernel *k, reg r) { return at(k, r)->op == K_STORE; }
static bool store_along(const kernel *k, reg r) { return at(k, r)->op == K_STORE && at(k, r)->idx.n > 0; }
static bool load_along(const kernel *k, reg r) { return at(k, r)->op == K_LOAD && at(k, r)->idx.n > 0 && !at(k, r)->dyn; }
static bool wide_load(const kernel *k, reg r) { return at(k, r)->op == K_LOAD && at(k, r)->lanes > 1 && at(k, r)->lane_stride; }
static bool wide_store(const kernel *k, reg r) { return at(k, r)->op == K_STORE && at(k, r)->lanes > 1; }
static bool masked_load(const kernel *k, reg r) { return at(k, r)->op == K_LOAD && at(k, r)->n_mask; }
static bool dynamic_load(const kernel *k, reg r) { return at(k, r)->op == K_LOAD && at(k, r)->dyn; }
static bool scatter(const kernel *k, reg r) { return at(k, r)->op == K_SCATTER; }
static bool subtraction(const kernel *k, reg r) { return is_alu(k, r, OP_sub) && at(k, r)->a != at(k, r)->b; }
static bool selection(const kernel *k, reg r) { return is_alu(k, r, OP_select); }
static bool comparison(const kernel *k, reg r) { return is_alu(k, r, OP_lt) && at(k, r)->src == TN_F32; }
static bool exponential(const kernel *k, reg r) { return is_alu(k, r, OP_exp) || is_alu(k, r, OP_tanh); }
static bool sum_acc(const kernel *k, reg r) {
    return at(k, r)->op == K_ACC && at(k, r)->alu == OP_add && at(k, r)->dtype == TN_F32;
}
static bool prod_acc(const kernel *k, reg r) { return at(k, r)->op == K_ACC && at(k, r)->alu == OP_mul; }
static bool max_acc(const kernel *k, reg r) { return at(k, r)->op == K_ACC && at(k, r)->alu == OP_max; }
static bool plain_update(const kernel *k, reg r) { return at(k, r)->op == K_UPD && at(k, r)->alu == OP_add; }
static bool fma_update(const kernel *k, reg r) { return at(k, r)->op == K_UPD && at(k, r)->alu == OP_dot; }
static bool arg_update(const kernel *k, reg r) { return at(k, r)->op == K_ARGUPD; }
static bool across(const kernel *k, reg r) { return at(k, r)->op == K_LANE_REDUCE; }
static bool random_ins(const kernel *k, reg r) { return at(k, r)->op == K_RANDOM; }
static bool wrapped(const kernel *k, reg r) { /* and not only stored: a store wraps too */
    bool only_stored = true;
    for (reg u = r + 1; u < (reg)k->ins.n; u++)
        if (at(k, u)->op != K_STORE && (at(k, u)->a == r || at(k, u)->b == r)) only_stored = false;
    return at(k, r)->op == K_WRAP && !only_stored;
}
static bool int_cast(const kernel *k, reg r) { return at(k, r)->op == K_CAST && at(k, r)->src == TN_I8; }
static bool parallel_loop(const kernel *k, reg r) { return at(k, r)->op == K_LOOP && at(k, r)->par == PAR_THREADS; }
static bool loop_end(const kernel *k, reg r) { return at(k, r)->op == K_END; }
static bool whole_store(const kernel *k,
                        reg r) { /* the second of two stores that stand next to each other in one unrolled body */
    return r > 1 && store(k, r) && store(k, r - 1) && at(k, r)->buf == at(k, r - 1)->buf &&
           !affine_equal(at(k, r)->idx, at(k, r - 1)->idx);
}
/* An op whose second operand could be mistaken for the instruction before it. Not a maximum: of a row's maximum, that of
 * another element changes nothing. */
static bool used_twice(const kernel *k, reg r) {
    return at(k, r)->op == K_ALU && op_get((op_code)at(k, r)->alu)->arity == 2 && at(k, r)->alu != OP_max &&
           at(k, r)->b != r - 1 && at(k, r)->a != r - 1 && at(k, r - 1)->op == K_LOAD &&
           at(k, r - 1)->lanes == at(k, r)->lanes && at(k, r - 1)->dtype == at(k, r)->src &&
           (at(k, at(k, r)->b)->op != K_LOAD || at(k, at(k, r)->b)->buf != at(k, r - 1)->buf);
}

/* ---- defects: each changes p and says whether there was a place for it ---- */

#define DEFECT(name) static bool name(plan *p)
#define AT(place, ...)                                                                                                         \
    {                                                                                                                          \
        kernel *k = NULL;                                                                                                      \
        kins *in = find(p, place, &k);                                                                                         \
        if (!in) return false;                                                                                                 \
        (void)k;                                                                                                               \
        __VA_ARGS__;                                                                                                           \
        return true;                                                                                                           \
    }

static affine scaled_term(plan *p, affine x, int64_t more) { /* its first coefficient changed */
    return affine_add(p->a, x, affine_scale(p->a, affine_var(p->a, x.t[0].var), more));
}
static void drop(kins *in) { *in = (kins){ .op = K_CONST, .dtype = TN_F32, .lanes = 1 }; }

/* clang-format off */
DEFECT(loop_ends_early) AT(long_loop, in->hi -= in->step)
DEFECT(loop_ends_late) AT(long_loop, in->hi += in->step)
DEFECT(loop_starts_late) AT(long_loop, in->lo += in->step)
DEFECT(loop_steps_too_far) AT(long_loop, in->step *= 2)
DEFECT(loop_is_left_open) AT(loop_end, drop(in))
DEFECT(store_beside) AT(store, in->idx = affine_offset(in->idx, 1))
DEFECT(load_beside) AT(load_along, in->idx = affine_offset(in->idx, -1))
DEFECT(load_coefficient) AT(load_along, in->idx = scaled_term(p, in->idx, 1))
DEFECT(store_coefficient) AT(store_along, in->idx = scaled_term(p, in->idx, 1))
DEFECT(load_lane_stride) AT(wide_load, in->lane_stride += 1)
DEFECT(load_repeats_a_lane) AT(wide_load, in->lane_stride = 0)
DEFECT(store_lane_stride) AT(wide_store, in->lane_stride += 1)
DEFECT(store_dropped) AT(store, drop(in))
DEFECT(copy_stored_twice) AT(whole_store, in->idx = in[-1].idx)
DEFECT(tail_value_of_main_loop) AT(whole_store, in->a = in[-1].a)
DEFECT(sub_swapped) AT(subtraction, reg t = in->a; in->a = in->b; in->b = t)
DEFECT(select_swapped) AT(selection, reg t = in->b; in->b = in->c; in->c = t)
DEFECT(comparison_turned) AT(comparison, reg t = in->a; in->a = in->b; in->b = t)
DEFECT(function_replaced) AT(exponential, in->alu = OP_sin)
DEFECT(stale_register) AT(used_twice, in->b = (reg)(in - k->ins.at) - 1)
DEFECT(register_from_below) AT(subtraction, in->a = (reg)(in - k->ins.at) + 1)
DEFECT(mask_dropped) AT(masked_load, in->n_mask = 0)
DEFECT(mask_too_wide) AT(masked_load, for (int m = 0; m < in->n_mask; m++) in->mask[m].lo -= 100, in->mask[m].hi += 100)
DEFECT(mask_too_narrow) AT(masked_load, for (int m = 0; m < in->n_mask; m++) in->mask[m].hi = in->mask[m].lo)
DEFECT(border_value) AT(masked_load, in->imm += 3)
DEFECT(sum_starts_at_one) AT(sum_acc, in->imm = 1)
DEFECT(product_starts_at_zero) AT(prod_acc, in->imm = 0)
DEFECT(max_starts_at_zero) AT(max_acc, in->imm = 0)
DEFECT(update_by_another_op) AT(plain_update, in->alu = OP_max)
DEFECT(update_dropped) AT(fma_update, drop(in))
DEFECT(update_of_one_operand) AT(fma_update, in->b = in->a)
DEFECT(argmin_for_argmax) AT(arg_update, in->alu = OP_argmin)
DEFECT(arg_index_off_by_one) AT(arg_update, in->idx = affine_offset(in->idx, 1))
DEFECT(half_the_lanes) AT(across, in->combined /= 2)
DEFECT(another_random_stream) AT(random_ins, in->stream++)
DEFECT(wrap_dropped) AT(wrapped, *in = (kins){ .op = K_ALU, .alu = OP_stop_gradient, .dtype = in->dtype, .src = in->dtype, .lanes = in->lanes, .a = in->a })
DEFECT(cast_from_another_dtype) AT(int_cast, in->src = TN_F32)
DEFECT(gather_stride) AT(dynamic_load, in->dyn_stride += 1)
DEFECT(gather_without_end) AT(dynamic_load, in->dyn_n += 1)
DEFECT(scatter_dropped) AT(scatter, drop(in))
DEFECT(scatter_stores) AT(scatter, in->op = K_STORE; in->dyn = 0)
DEFECT(output_read) AT(load_along, k->bufs.at[in->buf].kind = KB_OUT)
DEFECT(input_written) AT(store, k->bufs.at[in->buf].kind = KB_IN)
DEFECT(serial_store_of_parallel_kernel) AT(parallel_loop, in->par = PAR_SERIAL)
    /* clang-format on */

    DEFECT(threads_share_elements) { /* the parallel variable no longer moves the store */
    for (int i = 0; i < p->kernels.n; i++) {
        kernel *k = p->kernels.at[i].k;
        bool any = false;
        for (reg r = 1; r < (reg)k->ins.n && k->par_var >= 0; r++) {
            if (k->ins.at[r].op != K_STORE || k->bufs.at[k->ins.at[r].buf].kind == KB_LOCAL) continue;
            k->ins.at[r].idx = affine_set_var(p->a, k->ins.at[r].idx, k->par_var, affine_const(0));
            any = true;
        }
        if (any) return true;
    }
    return false;
}

static bool writes_kind(const plan *p, int launch, pbuf_kind kind) {
    const pkernel *pk = &p->kernels.at[launch];
    for (int b = 0; b < pk->k->bufs.n; b++)
        if (pk->args[b].buf >= 0 && pk->k->bufs.at[b].kind != KB_IN && pk->k->bufs.at[b].kind != KB_LOCAL &&
            p->bufs.at[pk->args[b].buf].kind == kind)
            return true;
    return false;
}
static bool drop_launch_of(plan *p, pbuf_kind kind) {
    for (int i = 0; i < p->kernels.n; i++) {
        if (!writes_kind(p, i, kind)) continue;
        for (int j = i; j + 1 < p->kernels.n; j++) p->kernels.at[j] = p->kernels.at[j + 1];
        p->kernels.n--;
        return true;
    }
    return false;
}
DEFECT(state_update_dropped) { return drop_launch_of(p, PB_STATE); }
DEFECT(output_dropped) { return drop_launch_of(p, PB_OUTPUT); }
DEFECT(temporary_dropped) { return drop_launch_of(p, PB_TEMP); }
DEFECT(launched_twice) { /* a state update */
    for (int i = 0; i < p->kernels.n; i++)
        if (writes_kind(p, i, PB_STATE)) {
            VEC_PUSH(p->a, &p->kernels, p->kernels.at[i]);
            return true;
        }
    return false;
}
DEFECT(launches_swapped) { /* a producer behind its reader */
    for (int i = 0; i + 1 < p->kernels.n; i++) {
        const pkernel *x = &p->kernels.at[i], *y = &p->kernels.at[i + 1];
        for (int b = 0; b < x->k->bufs.n; b++)
            for (int c = 0; c < y->k->bufs.n; c++) {
                if (x->args[b].buf < 0 || x->args[b].buf != y->args[c].buf || x->k->bufs.at[b].kind == KB_IN ||
                    y->k->bufs.at[c].kind == KB_OUT)
                    continue;
                pkernel t = p->kernels.at[i];
                p->kernels.at[i] = p->kernels.at[i + 1], p->kernels.at[i + 1] = t;
                return true;
            }
    }
    return false;
}
static bool live_pair(plan *p, pbuf **out_x, pbuf **out_y) {
    for (int i = 0; i < p->bufs.n; i++)
        for (int j = 0; j < i; j++) {
            pbuf *x = &p->bufs.at[i], *y = &p->bufs.at[j];
            if (x->kind != PB_TEMP || y->kind != PB_TEMP || !x->bytes || !y->bytes || x->first < 0 || y->first < 0) continue;
            if (x->first > y->last || y->first > x->last) continue;
            *out_x = x, *out_y = y;
            return true;
        }
    return false;
}
DEFECT(places_overlap) {
    pbuf *x, *y;
    if (!live_pair(p, &x, &y)) return false;
    if (x->offset > y->offset)
        x->offset = y->offset;
    else
        y->offset = x->offset;
    return true;
}
static pbuf *temporary(plan *p) {
    for (int i = 0; i < p->bufs.n; i++)
        if (p->bufs.at[i].kind == PB_TEMP && p->bufs.at[i].bytes && p->bufs.at[i].first >= 0) return &p->bufs.at[i];
    return NULL;
}
DEFECT(place_not_aligned) {
    pbuf *b = temporary(p);
    if (b) b->offset += 4;
    return b != NULL;
}
DEFECT(arena_too_small) {
    if (!temporary(p)) return false;
    p->temp_bytes -= PLAN_ALIGN;
    return true;
}
DEFECT(wrong_operand) { /* two arguments of one shape exchanged */
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++)
            for (int c = 0; c < b; c++) {
                const kbuf *x = &pk->k->bufs.at[b], *y = &pk->k->bufs.at[c];
                if (x->kind == KB_LOCAL || y->kind == KB_LOCAL || x->elems != y->elems || x->dtype != y->dtype ||
                    pk->args[b].buf == pk->args[c].buf)
                    continue;
                int32_t t = pk->args[b].buf;
                pk->args[b].buf = pk->args[c].buf, pk->args[c].buf = t;
                return true;
            }
    }
    return false;
}
DEFECT(one_buffer_under_two_names) {
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        for (int b = 0; b < pk->k->bufs.n; b++)
            for (int c = 0; c < pk->k->bufs.n; c++) {
                if (pk->k->bufs.at[b].kind != KB_OUT || pk->k->bufs.at[c].kind != KB_IN ||
                    pk->k->bufs.at[b].elems != pk->k->bufs.at[c].elems)
                    continue;
                pk->args[c].buf = pk->args[b].buf;
                return true;
            }
    }
    return false;
}
DEFECT(barrier_left_out) {
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].barrier) {
            p->kernels.at[i].barrier = false;
            return true;
        }
    return false;
}

static const struct {
    const char *name;
    bool (*plant)(plan *p);
} defects[] = {
#define D(name)                                                                                                                \
    { #name, name }
    D(barrier_left_out),
    D(loop_ends_early),
    D(loop_ends_late),
    D(loop_starts_late),
    D(loop_steps_too_far),
    D(loop_is_left_open),
    D(store_beside),
    D(load_beside),
    D(load_coefficient),
    D(store_coefficient),
    D(load_lane_stride),
    D(load_repeats_a_lane),
    D(store_lane_stride),
    D(store_dropped),
    D(copy_stored_twice),
    D(tail_value_of_main_loop),
    D(sub_swapped),
    D(select_swapped),
    D(comparison_turned),
    D(function_replaced),
    D(stale_register),
    D(register_from_below),
    D(mask_dropped),
    D(mask_too_wide),
    D(mask_too_narrow),
    D(border_value),
    D(sum_starts_at_one),
    D(product_starts_at_zero),
    D(max_starts_at_zero),
    D(update_by_another_op),
    D(update_dropped),
    D(update_of_one_operand),
    D(argmin_for_argmax),
    D(arg_index_off_by_one),
    D(half_the_lanes),
    D(another_random_stream),
    D(wrap_dropped),
    D(cast_from_another_dtype),
    D(gather_stride),
    D(gather_without_end),
    D(scatter_dropped),
    D(scatter_stores),
    D(output_read),
    D(input_written),
    D(serial_store_of_parallel_kernel),
    D(threads_share_elements),
    D(state_update_dropped),
    D(output_dropped),
    D(temporary_dropped),
    D(launched_twice),
    D(launches_swapped),
    D(places_overlap),
    D(place_not_aligned),
    D(arena_too_small),
    D(wrong_operand),
    D(one_buffer_under_two_names),
};

/* ---- running ---- */

typedef enum verdict { NO_PLACE, BY_KERNEL_CHECK, BY_PLAN_CHECK, BY_RUNNING, MISSED } verdict;

static verdict try_defect(const char *text, size_t d, int fusion) {
    arena a;
    guard gd;
    str problems;
    verdict v = BY_RUNNING; /* what a jump means */
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        graph *g = graph_parse(&a, text, strlen(text), "test");
        reference r = reference_make(g, &a, 11);
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        target t = plan_target(28); /* 16-byte vectors would leave no tails of every kind; 8 threads */
        t.vector_bytes = 32;
        o.fusion = fusion, o.check = 1;
        plan *p = pipeline_run(g, &a, &o, &t);
        str_init(&problems, &a);
        char text_of[512];
        if (!defects[d].plant(p)) {
            v = NO_PLACE;
        } else {
            int n = 0;
            for (int i = 0; i < p->kernels.n; i++) n += kernel_check(p->kernels.at[i].k, &problems);
            if (n)
                v = BY_KERNEL_CHECK;
            else if (plan_check(p, &problems))
                v = BY_PLAN_CHECK;
            else if (plan_agrees(p, &r, &a, text_of, sizeof text_of))
                v = MISSED;
        }
    }
    arena_fini(&a);
    return v;
}

static void test_defects(void **state) {
    (void)state;
    int planted = 0, by[MISSED + 1] = { 0 };
    for (size_t d = 0; d < COUNT_OF(defects); d++) {
        int places = 0;
        for (size_t g = 0; g < COUNT_OF(graphs); g++)
            for (int fusion = 0; fusion < 4; fusion += 3) {
                verdict v = try_defect(graphs[g], d, fusion);
                by[v]++;
                places += v != NO_PLACE;
                if (v == MISSED) print_error("%s in graph %zu at fusion level %d is not caught\n", defects[d].name, g, fusion);
            }
        if (!places) print_error("%s: no plan has a place for it\n", defects[d].name);
        assert_true(places > 0);
        planted += places;
    }
    printf("count: %zu kinds of defects, caught %d of %d: %d by kernel_check, %d by plan_check, %d by running\n",
           COUNT_OF(defects), planted - by[MISSED], planted, by[BY_KERNEL_CHECK], by[BY_PLAN_CHECK], by[BY_RUNNING]);
    assert_int_equal(by[MISSED], 0);
}

/* Without a defect nothing is reported: what is caught above is the defect. */
static void test_no_defect(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(graphs); i++)
        for (int fusion = 0; fusion < 4; fusion++) {
            plan_config c = { .seed = 11, .fusion = fusion, .t = plan_target(28) };
            arena a;
            guard gd;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd)) fail_msg("graph %zu: %s", i, gd.err.text);
            graph *g = graph_parse(&a, graphs[i], strlen(graphs[i]), "test");
            if (!plan_config_agrees(g, NULL, &c)) fail_msg("graph %zu, fusion %d: %s", i, fusion, c.text);
            arena_fini(&a);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_no_defect), cmocka_unit_test(test_defects) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
