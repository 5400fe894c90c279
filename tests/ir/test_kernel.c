/* test_kernel.c - the rows of kernel.def: random instructions of every row print and read back as the same; a small kernel with
 * every row in it is checked and gives what it should; what the check must find in each.
 *
 * Labels: random
 * TENON_FUZZ_SEEDS: how many instructions of each row (default 300); TENON_FUZZ_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "eval/eval_kernel.h"
#include "ir/kernel_text.h"
#include "support/support.h"

/* ---- random instructions ---- */

static int64_t any_number(rng *r) {
    int64_t x = (int64_t)rng_next(r) >> rng_below(r, 63);
    return x == INT64_MIN ? 0 : x;
}

static affine any_affine(rng *r, const kernel *k) {
    affine x = affine_const(rng_below(r, 3) ? any_number(r) >> 2 : 0);
    for (kvar v = 0; v < k->vars.n; v++)
        if (rng_below(r, 2)) x = affine_add(k->a, x, affine_scale(k->a, affine_var(k->a, v), (any_number(r) >> 2) | 1));
    return x;
}

static reg any_reg(rng *r, const kernel *k) { return (reg)(1 + rng_below(r, (uint64_t)k->ins.n - 1)); }

static void any_masks(rng *r, const kernel *k, kins *in) {
    in->n_mask = (int)rng_below(r, 4);
    in->mask = ARENA_ARRAY(k->a, kmask, 4), in->mask_lane = ARENA_ARRAY(k->a, int64_t, 4);
    for (int i = 0; i < in->n_mask; i++) {
        in->mask[i] = (kmask){ any_affine(r, k), any_number(r), any_number(r) };
        in->mask_lane[i] = in->lanes > 1 ? any_number(r) : 0;
    }
}

static uint8_t any_op(rng *r, const kfield *f) {
    for (;;) {
        op_code op = (op_code)rng_below(r, N_OPS);
        bool update = f->kind == FIELD_UPDATE && (op == OP_dot || op == OP_NIL);
        if (update || (f->kind == FIELD_ALU ? op_is_elementwise(op) : op == OP_add || op == OP_max || op == OP_argmin))
            return (uint8_t)op;
    }
}

static void any_field(rng *r, const kernel *k, kins *in, const kfield *f) {
    void *at = (char *)in + f->at;
    uint64_t range = (uint64_t)f->hi - (uint64_t)f->lo;
    reg *operands[] = { &in->a, &in->b, &in->c };
    switch (f->kind) {
    case FIELD_REGISTER:
        *(reg *)at = any_reg(r, k);
        break;
    case FIELD_VARIABLE:
        in->var = (kvar)rng_below(r, (uint64_t)k->vars.n);
        break;
    case FIELD_WHOLE:
        *(int64_t *)at = f->lo == INT64_MIN ? any_number(r) : f->lo + (int64_t)rng_below(r, range);
        break;
    case FIELD_EXT: /* what is left out of the text is 0 */
        *(ext *)at = range ? f->lo + (ext)rng_below(r, 1 << 20) : any_number(r);
        break;
    case FIELD_PACKED:
        in->packed = (uint8_t)(2 + rng_below(r, 3));
        break;
    case FIELD_IMM:
        if (dtype_is_float((tn_dtype)in->dtype))
            in->imm = (double)any_number(r) / 1024;
        else
            in->imm_int = any_number(r);
        break;
    case FIELD_DTYPE:
        in->src = (uint8_t)rng_below(r, TN_N_DTYPES);
        break;
    case FIELD_ALU:
    case FIELD_OP:
    case FIELD_UPDATE:
        in->alu = any_op(r, f);
        for (int i = 0; f->kind == FIELD_ALU && i < op_get((op_code)in->alu)->arity; i++) *operands[i] = any_reg(r, k);
        break;
    case FIELD_PLACE:
        if (rng_below(r, 2)) in->dyn = any_reg(r, k), in->dyn_stride = any_number(r), in->dyn_n = any_number(r);
        in->buf = (uint16_t)rng_below(r, (uint64_t)k->bufs.n);
        in->lane_stride = in->lanes > 1 ? any_number(r) : 0;
        in->idx = any_affine(r, k);
        break;
    case FIELD_AFFINE:
        in->idx = any_affine(r, k);
        break;
    case FIELD_STEP:
        in->lane_stride = in->lanes > 1 ? any_number(r) : 0;
        break;
    case FIELD_MASKS:
        any_masks(r, k, in);
        break;
    case FIELD_BUFFER:
        in->buf = (uint16_t)rng_below(r, (uint64_t)k->bufs.n);
        break;
    }
}

static int n_modes(const ktoken *t) {
    char word[32];
    int n = 0;
    while (kmode_word(t, n, word, sizeof word)) n++;
    return n;
}

/* All fields that the row's text has, with whatever they may be; those in brackets half of the time. */
static kins any_ins(rng *r, const kernel *k, kop op) {
    const kop_info *row = kop_get((uint8_t)op);
    kins in = { .op = (uint8_t)op, .lanes = 1 };
    if (row->flags & KOP_TYPED) in.lanes = (uint8_t)(1u << rng_below(r, 5)), in.dtype = (uint8_t)rng_below(r, TN_N_DTYPES);
    for (ktoken t = ktoken_at(row->text); t.kind != TOKEN_END; t = ktoken_at(t.next)) {
        if (t.kind == TOKEN_FIELD) assert_non_null(t.field);
        if (t.kind == TOKEN_FIELD) any_field(r, k, &in, t.field);
        if (t.kind == TOKEN_MODE) in.mode = (uint8_t)rng_below(r, (uint64_t)n_modes(&t));
        if (t.kind != TOKEN_OPEN) continue;
        const kfield *f = kfield_first(t.next);
        int said = kfield_implied(&in, f);
        if (said < 0 ? rng_below(r, 2) : said) continue;
        if (f->kind == FIELD_DTYPE) in.src = in.dtype;
        while (t.kind != TOKEN_CLOSE) t = ktoken_at(t.next);
    }
    return in;
}

static void test_every_row_reads_back(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(300, &first);
    for (int op = K_NIL + 1; op < N_KOPS; op++)
        for (uint64_t seed = first; seed < first + n; seed++) {
            arena a;
            guard gd;
            rng r = rng_make(seed * N_KOPS + (uint64_t)op);
            str x, y;
            arena_init(&a, mem_libc(), &gd);
            if (!GUARD_TRY(&gd))
                fail_msg("%s: seed %llu: %s", kop_get((uint8_t)op)->text, (unsigned long long)seed, gd.err.text);
            str_init(&x, &a), str_init(&y, &a);
            kernel *k = kernel_make(&a, "any");
            for (int i = 0; i < 3; i++) kernel_buf(k, (kbuf){ .kind = (uint8_t)i, .elems = 9, .plan_buf = -1 });
            for (int i = 0; i < 3; i++) kernel_var(k, "i", 7, false, false);
            for (int i = 0; i < 3; i++) kernel_push(k, (kins){ .op = K_CONST, .dtype = TN_I32, .imm_int = i });
            kernel_push(k, any_ins(&r, k, (kop)op));
            kernel_print(k, &x);
            kernel *back = kernel_parse(&a, x.s, x.n, "printed");
            kernel_print(back, &y);
            assert_string_equal(x.s, y.s);
            if (!kernel_equal(k, back)) fail_msg("other after reading: %s", x.s);
            arena_fini(&a);
        }
    printf("%d instructions, %llu random ones of each read back\n", N_KOPS - 1, (unsigned long long)n);
}

/* ---- each in a kernel ---- */

enum { N = 8 };
typedef double (*want_fn)(const double *x, int i);
static double same(const double *x, int i) { return x[i]; }
static double back(const double *x, int i) { return x[N - 1 - i]; }
static double steps(const double *x, int i) { return (void)x, 3 + 2 * i; }
static double constant(const double *x, int i) { return (void)x, (void)i, 2.5; }
static double square(const double *x, int i) { return x[i] * x[i]; }
static double byte(const double *x, int i) { return (int8_t)(uint8_t)(int64_t)x[i]; }
static double uniform(const double *x, int i) { return (void)x, (double)random_uniform_at(5, 3, i); }
static double sum(const double *x, int i) {
    double s = 0;
    (void)i;
    for (int j = 0; j < N; j++) s += x[j];
    return s;
}
static double largest_at(const double *x, int i) {
    int best = 0;
    (void)i;
    for (int j = 1; j < N; j++)
        if (x[j] > x[best]) best = j;
    return best;
}
static double twice(const double *x, int i) { return 2 * x[i]; } /* the exponent one larger */
static double upper(const double *x, int i) { return x[4 + i]; }
static double interleaved(const double *x, int i) {
    static const int from[] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    return x[from[i]];
}
static double third(const double *x, int i) { return i == 2 ? x[0] : 0; }

#define CPU(n, body) "kernel @t(b0 in f32[8], b1 inout f32[" n "]) tiled {\n var i = 8\n" body "}\n"
#define GPU(body)                                                                                                              \
    "kernel @t(b0 in f32[8], b1 inout f32[8], b2 shared f32[8]) tiled blocks 1 threads 8 {\n var i = 8\n loop i = 0 .. 8 "     \
    "step 1 "                                                                                                                  \
    "block-threads\n %2 = load b0[i]  f32\n" body " end\n}\n"

/* Ones times a matrix whose rows begin with the 8 numbers and go on with zeros. */
#define PRODUCT                                                                                                                \
    "kernel @k(b0 in f32[8], b1 out f32[8], b2 shared f16[4096] swizzled, b3 shared f16[4096] swizzled) tiled blocks 1 "       \
    "threads 128 {\n var i = 4096\n var r = 64\n var s = 8\n var t = 128\n loop i = 0 .. 4096 step 1 block-threads\n"          \
    " %2 = const 1.0  f32\n %3 = const 0.0  f32\n store b2[i], %2  f16\n store b3[i], %3  f16\n end\n barrier\n"               \
    " loop r = 0 .. 64 step 1 block-threads\n loop s = 0 .. 8 step 1 block-threads\n %10 = load b0[s]  f32\n"                  \
    " store b3[64*r + s], %10  f16\n end\n end\n barrier\n loop t = 0 .. 128 step 1 block-threads\n %16 = acc add 0.0  "       \
    "f32x32\n %17 = matrix b2[0] k-major  i64\n %18 = matrix b3[0] k-major  i64\n multiply %16, %17, %18  f32x32\n"            \
    " async products\n %21 = lanes %16 from 0  f32\n store b1[0], %21 where 0 <= t < 1  f32\n end\n}\n"

/* The same where rows come from registers: of step s those are s / 2 of the first row. */
#define FRAGMENT                                                                                                               \
    "kernel @k(b0 in f32[8], b1 out f32[8], b2 shared f16[4096] swizzled) tiled blocks 1 threads 128 {\n var i = 4096\n"       \
    " var s = 8\n var t = 128\n loop i = 0 .. 4096 step 1 block-threads\n %2 = const 0.0  f32\n store b2[i], %2  f16\n end\n"  \
    " barrier\n loop s = 0 .. 8 step 1 block-threads\n %7 = load b0[s]  f32\n store b2[s], %7  f16\n end\n barrier\n"          \
    " loop t = 0 .. 128 step 1 block-threads\n %12 = acc add 0.0  f32x32\n %13 = acc set 0.0  f32x16\n"                        \
    " %14 = index t step 0  i32x2\n %15 = cast %14 from i32  f32x2\n put %13 at 8, %15  f32x2\n"                               \
    " %17 = fragment %13 from 8 as f16  i64x8\n %18 = matrix b2[0] k-major  i64\n multiply %12, %17, %18  f32x32\n"            \
    " async products\n %21 = lanes %12 from 0  f32\n store b1[0], %21 where 0 <= t < 1  f32\n end\n}\n"
static double by_place(const double *in, int i) {
    (void)i;
    double sum = 0;
    for (int s = 0; s < 8; s++) sum += s / 2 * in[s];
    return sum;
}

static const struct {
    uint8_t op;
    int n;
    const char *text;
    want_fn want;
} cases[] = {
    { K_LOOP, 8, CPU("8", " loop i = 0 .. 8 step 1\n %2 = load b0[i]  f32\n store b1[i], %2  f32\n end\n"), same },
    { K_END, 8,
      CPU("8", " loop i = 0 .. 8 step 4\n %2 = load b0[-i + 7] step -1  f32x4\n store b1[i] step 1, %2  f32x4\n end\n"), back },
    { K_CONST, 8, CPU("8", " %1 = const 2.5  f32x8\n store b1[0] step 1, %1  f32x8\n"), constant },
    { K_INDEX, 8, CPU("8", " %1 = index 3 step 2  i32x8\n %2 = cast %1 from i32  f32x8\n store b1[0] step 1, %2  f32x8\n"),
      steps },
    { K_LOAD, 8, CPU("8", " %1 = load b0[7] step -1  f32x8\n store b1[0] step 1, %1  f32x8\n"), back },
    { K_STORE, 8, CPU("8", " %1 = load b0[0] step 1  f32x8\n store b1[7] step -1, %1  f32x8\n"), back },
    { K_ALU, 8, CPU("8", " %1 = load b0[0] step 1  f32x8\n %2 = mul %1, %1  f32x8\n store b1[0] step 1, %2  f32x8\n"), square },
    { K_BITCAST, 8,
      CPU("8", " %1 = load b0[0] step 1  f32x8\n %2 = bitcast %1 from f32  i32x8\n %3 = const 8388608  i32x8\n"
               " %4 = add %2, %3  i32x8\n %5 = bitcast %4 from i32  f32x8\n store b1[0] step 1, %5  f32x8\n"),
      twice },
    { K_CAST, 8, CPU("8", " %1 = index 3 step 2  i64x8\n %2 = cast %1 from i64  f32x8\n store b1[0] step 1, %2  f32x8\n"),
      steps },
    { K_WRAP, 8,
      CPU("8", " %1 = load b0[0] step 1  f32x8\n %2 = cast %1 from f32  i32x8\n %3 = wrap %2 to i8  i32x8\n"
               " %4 = cast %3 from i32  f32x8\n store b1[0] step 1, %4  f32x8\n"),
      byte },
    { K_RANDOM, 8,
      CPU("8", " %1 = const 5  i64\n %2 = random %1 stream 3 at 0 step 1  f32x8\n store b1[0] step 1, %2  f32x8\n"), uniform },
    { K_ACC, 1,
      CPU("1", " %1 = acc add 0.0  f32\n loop i = 0 .. 8 step 1\n %3 = load b0[i]  f32\n update %1 add %3  f32\n end\n"
               " store b1[0], %1  f32\n"),
      sum },
    { K_UPD, 1,
      CPU("1", " %1 = acc add 0.0  f32\n %2 = const 1.0  f32\n loop i = 0 .. 8 step 1\n %4 = load b0[i]  f32\n"
               " update %1 fma %4, %2  f32\n end\n store b1[0], %1  f32\n"),
      sum },
    { K_ARGUPD, 1,
      CPU("1", " %1 = acc argmax 0.0  f32\n %2 = acc argmax -1  i64\n loop i = 0 .. 8 step 1\n %4 = load b0[i]  f32\n"
               " update %1, %2 argmax %4 at i  f32\n end\n %7 = cast %2 from i64  f32\n store b1[0], %7  f32\n"),
      largest_at },
    { K_LANE_REDUCE, 1,
      CPU("1", " %1 = load b0[0] step 1  f32x8\n %2 = lane-reduce %1 add of 8 lanes  f32\n store b1[0], %2  f32\n"), sum },
    { K_LANES, 4, CPU("4", " %1 = load b0[0] step 1  f32x8\n %2 = lanes %1 from 4  f32x4\n store b1[0] step 1, %2  f32x4\n"),
      upper },
    { K_ZIP, 8,
      CPU("8", " %1 = load b0[0] step 1  f32x4\n %2 = load b0[4] step 1  f32x4\n %3 = zip %1, %2 pieces of 1 low  f32x4\n"
               " %4 = zip %1, %2 pieces of 1 high  f32x4\n store b1[0] step 1, %3  f32x4\n store b1[4] step 1, %4  f32x4\n"),
      interleaved },
    { K_SCATTER, 8, CPU("8", " %1 = const 2  i64\n %2 = load b0[0]  f32\n scatter b1[0 + %1*1 of 8] += %2  f32\n"), third },
    { K_BARRIER, 8, GPU(" store b2[i], %2  f32\n barrier\n %5 = load b2[-i + 7]  f32\n store b1[i], %5  f32\n"), back },
    { K_BLOCK_REDUCE, 8, GPU(" %3 = block-reduce %2 add  f32\n store b1[i], %3  f32\n"), sum },
    { K_BLOCK_ARGREDUCE, 8,
      GPU(" %3 = index i  i64\n %4 = block-reduce %2, %3 argmax on f32  i64\n %5 = cast %4 from i64  f32\n store b1[i], %5  "
          "f32\n"),
      largest_at },
    { K_MATRIX, 1, PRODUCT, sum },
    { K_MMA, 1, PRODUCT, sum },
    { K_ASYNC, 1, PRODUCT, sum },
    { K_PUT, 1, FRAGMENT, by_place },
    { K_FRAGMENT, 1, FRAGMENT, by_place },
    { K_PREFETCH, 8, CPU("8", " prefetch b0[64] l2  f32\n %2 = load b0[0] step 1  f32x8\n store b1[0] step 1, %2  f32x8\n"),
      same },
};

static int find(const kernel *k, int op) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == op) return i;
    return 0;
}

static void check_case(size_t c, arena *a) {
    str problems, x;
    rng r = rng_make(c + 1);
    str_init(&problems, a), str_init(&x, a);
    kernel *k = kernel_parse(a, cases[c].text, strlen(cases[c].text), "case");
    assert_int_not_equal(find(k, cases[c].op), 0);
    kernel_print(k, &x);
    assert_true(kernel_equal(k, kernel_parse(a, x.s, x.n, "printed")));
    if (kernel_check(k, &problems)) fail_msg("%s%s", problems.s, cases[c].text);
    double in[N];
    float data[N], out[N] = { 0 };
    for (int i = 0; i < N; i++) data[i] = (float)((int)rng_below(&r, 1000) - 500 + i), in[i] = (double)data[i];
    unsigned char *base[] = { (unsigned char *)data, (unsigned char *)out, NULL };
    eval_kernel(k, base, a);
    for (int i = 0; i < cases[c].n; i++)
        if ((double)out[i] != (double)(float)cases[c].want(in, i))
            fail_msg("element %d is %g, not %g:\n%s", i, (double)out[i], cases[c].want(in, i), cases[c].text);
}

/* Each register that the row says it needs, taken away; a mode and an op code that there is not. */
static void spoil_case(size_t c, arena *a) {
    const kop_info *row = kop_get(cases[c].op);
    kernel *k = kernel_parse(a, cases[c].text, strlen(cases[c].text), "case");
    kins *in = &k->ins.at[find(k, cases[c].op)], was = *in;
    str problems;
    str_init(&problems, a);
    for (size_t u = 0; u < COUNT_OF(row->uses) && row->uses[u].type != USE_NONE; u++) {
        *(reg *)(void *)((char *)in + row->uses[u].at) = 0;
        if (kernel_check(k, &problems) == 0) fail_msg("a use of %s is not needed", row->text);
        *in = was;
    }
    if (strchr(row->text, '<')) in->mode = 77;
    if (strchr(row->text, '<') && kernel_check(k, &problems) == 0) fail_msg("mode 77 of %s is none", row->text);
    *in = was;
    if (in->op != K_LOOP && in->op != K_END) in->dtype = TN_N_DTYPES;
    if (in->op != K_LOOP && in->op != K_END && kernel_check(k, &problems) == 0) fail_msg("%s of no dtype", row->text);
    *in = was, in->op = N_KOPS;
    assert_int_not_equal(kernel_check(k, &problems), 0);
}

static void test_every_row_is_checked_and_evaluated(void **state) {
    (void)state;
    bool seen[N_KOPS] = { true };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("%s\n%s", gd.err.text, cases[c].text);
        check_case(c, &a);
        spoil_case(c, &a);
        seen[cases[c].op] = true;
        arena_fini(&a);
    }
    for (int op = 0; op < N_KOPS; op++)
        if (!seen[op]) fail_msg("no case for %s", kop_get((uint8_t)op)->text);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_row_reads_back),
                                        cmocka_unit_test(test_every_row_is_checked_and_evaluated) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
