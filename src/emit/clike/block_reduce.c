/* block_reduce.c - what the threads of a thread block do together, in the languages of GPUs: barriers, values that they
 * combine, the place of the best one.
 *
 * In: instructions whose threads meet. Out: statements, and in the clike which types' memory the kernel needs for them. */
#include "emit/clike/clike.h"

/* x = x combined with y */
static void print_combined(clike *e, const kins *in, const char *x, const char *y) {
    tn_dtype t = (tn_dtype)in->dtype;
    const char *sign = clike_infix((op_code)in->alu, t);
    if (!sign) clike_use_op(e, (op_code)in->alu, t, 1);
    if (sign)
        str_addf(e->out, "%s = %s%s%s;", x, x, sign, y);
    else
        str_addf(e->out, "%s = op_%s_%sx1(%s, %s);", x, op_get((op_code)in->alu)->name, clike_reg_type(t), x, y);
}

const char *clike_barrier(const clike *e) {
    const char *meet = e->l->barrier32 && e->k->block_threads == 32 ? e->l->barrier32 : "BARRIER";
    return e->asyncs ? arena_printf(e->out->a, "%s%s", e->l->async_wait, meet) : meet;
}

/* Each so many neighbours, or threads so far apart, combine their values, halves first. */
void clike_block_part(clike *e, const kins *in, reg r) {
    tn_dtype t = (tn_dtype)in->dtype;
    const char *type = clike_reg_type(t), *v = arena_printf(e->out->a, "v%u", r),
               *met = arena_printf(e->out->a, "met_%s", type);
    int n = (int)in->width, apart = in->lane_stride ? (int)in->lane_stride : 1;
    clike_need(e, t, 1);
    str_addf(e->out, "%sx1 %s = ", type, v);
    if (e->l->least32 && n == 32 && apart == 1 && t == TN_I32 && in->alu == OP_min) {
        str_addf(e->out, e->l->least32, arena_printf(e->out->a, "v%u", in->a));
        str_add(e->out, ";\n");
        return;
    }
    str_addf(e->out, "v%u;", in->a);
    if (e->l->shuffle && n * apart <= 32) {
        for (int half = n / 2; half > 0; half /= 2) {
            str_addf(e->out, " { const int h = %d; ", half * apart);
            print_combined(e, in, v, arena_printf(e->out->a, e->l->shuffle, v));
            str_add(e->out, " }");
        }
        str_add(e->out, "\n");
        return;
    }
    e->reduces[t] = true;
    const char *place =
                   apart > 1 ? arena_printf(e->out->a, "tid / %d %% %d", apart, n) : arena_printf(e->out->a, "tid %% %d", n),
               *times = apart > 1 ? arena_printf(e->out->a, " * %d", apart) : "";
    str_addf(e->out, " %s[tid] = %s; BARRIER for (int h = %d; h > 0; h /= 2) { if (%s < h) ", met, v, n / 2, place);
    print_combined(e, in, arena_printf(e->out->a, "%s[tid]", met), arena_printf(e->out->a, "%s[tid + h%s]", met, times));
    str_addf(e->out, " BARRIER } %s = %s[tid - %s%s]; BARRIER\n", v, met, place, times);
}

/* Values that follow each other are combined at once: threads meet once for all of them. */
static bool goes_with(const clike *e, reg r) {
    const kins *in = &e->k->ins.at[r], *last = in - 1;
    return last->op == K_BLOCK_REDUCE && in->op == K_BLOCK_REDUCE && !(last->width || last->b || in->width || in->b) &&
           last->alu == in->alu && last->dtype == in->dtype && e->k->ins.at[in->a].op != K_BLOCK_REDUCE;
}

/* v = v combined with those of n threads of 32, of values [r, r + many). */
static void print_shuffles(clike *e, reg r, int many, int n) {
    str_addf(e->out, "for (int h = %d; h > 0; h /= 2) {", n / 2);
    for (int i = 0; i < many; i++) {
        const char *v = arena_printf(e->out->a, "v%u", r + (reg)i);
        str_add(e->out, " ");
        print_combined(e, &e->k->ins.at[r], v, arena_printf(e->out->a, e->l->shuffle, v));
    }
    str_add(e->out, " } ");
}

/* Sums of 4 to 32 threads' values, a power of two: each exchange leaves a thread half of the values, which has them with those
 * of the other half of threads, until it has one: shuffles are a thread's fewest units on GPUs. Sums are those of
 * print_shuffles, bit by bit. Threads of 32 that have value i are those from i * 32 / many on. */
static void print_exchanges(clike *e, reg r, int many) {
    int half = 16;
    for (int left = many / 2; left > 0; left /= 2, half /= 2)
        for (int i = 0; i < left; i++)
            str_addf(e->out, "v%u = %s(v%u, v%u, %d); ", r + (reg)i, e->l->halves, r + (reg)i, r + (reg)(i + left), half);
    if (half) print_shuffles(e, r, 1, 2 * half);
}

/* Value r of threads a multiple of `apart` becomes values [r, r + many) of all. */
static void print_spread(clike *e, reg r, int many, int apart) {
    for (int i = many; i-- > 0;) {
        str_addf(e->out, "v%u = ", r + (reg)i);
        str_addf(e->out, e->l->shuffle_from, arena_printf(e->out->a, "v%u", r), arena_printf(e->out->a, "%d", i * apart));
        str_add(e->out, "; ");
    }
}

/* What each 32 threads have, in memory, becomes sums of all: of as many values at a time as 32 threads can load. */
static void print_met(clike *e, reg r, int first, int many, int warps) {
    int most = 32 / warps < many ? 32 / warps : many;
    for (int i = 0; i < many; i += most) {
        str_addf(e->out, "v%u = met_f32[tid %% %d + %d]; ", r + (reg)i, most * warps, (first + i) * warps);
        print_shuffles(e, r + (reg)i, 1, warps);
        if (most > 1) print_spread(e, r + (reg)i, most, warps);
    }
}

/* The largest power of two of n values that threads exchange; 0: they are few. */
static int exchanged(const clike *e, const kins *in, int n) {
    int many = 32;
    while (many > n) many /= 2;
    return e->l->halves && in->dtype == TN_F32 && in->alu == OP_add && many >= 4 ? many : 0;
}

/* Values [r, r + n) of the threads of each 32 become one for all of them, or for those that go on with them. */
static void print_within(clike *e, reg r, int n, int warps) {
    const char *met = arena_printf(e->out->a, "met_%s", clike_reg_type((tn_dtype)e->k->ins.at[r].dtype));
    int at = 0;
    for (int many; (many = exchanged(e, &e->k->ins.at[r], n - at)) > 0; at += many) {
        print_exchanges(e, r + (reg)at, many);
        if (warps == 1) print_spread(e, r + (reg)at, many, 32 / many);
        if (warps > 1 && many < 32) str_addf(e->out, "if (tid %% %d == 0) ", 32 / many);
        if (warps > 1)
            str_addf(e->out, "%s[tid %% 32 / %d * %d + tid / 32 + %d] = v%u; ", met, 32 / many, warps, at * warps, r + (reg)at);
    }
    if (at == n) return;
    print_shuffles(e, r + (reg)at, n - at, 32);
    if (warps == 1) return;
    str_add(e->out, "if (tid % 32 == 0) {");
    for (int i = at; i < n; i++) str_addf(e->out, " %s[tid / 32 + %d] = v%u;", met, i * warps, r + (reg)i);
    str_add(e->out, " } ");
}

/* The same of what each 32 threads have. */
static void print_between(clike *e, reg r, int n, int warps) {
    const char *met = arena_printf(e->out->a, "met_%s", clike_reg_type((tn_dtype)e->k->ins.at[r].dtype));
    int at = 0;
    for (int many; (many = exchanged(e, &e->k->ins.at[r], n - at)) > 0; at += many) print_met(e, r + (reg)at, at, many, warps);
    if (at == n) return;
    for (int i = at; i < n; i++) str_addf(e->out, "v%u = %s[tid %% %d + %d]; ", r + (reg)i, met, warps, i * warps);
    print_shuffles(e, r + (reg)at, n - at, warps);
}

/* All threads of a thread block combine their values: within 32 by shuffles where the language has them, else halves first in
 * memory. */
void clike_block_reduce(clike *e, const kins *in, reg r) {
    enum { MOST = 32 }; /* there is memory for so many of each 32 threads */
    tn_dtype t = (tn_dtype)in->dtype;
    const char *type = clike_reg_type(t), *met = arena_printf(e->out->a, "met_%s", type);
    int warps = e->l->shuffle ? e->k->block_threads / 32 : 0, n = 1;
    reg first = r;
    while (warps && goes_with(e, first)) first--;
    if ((r - first) % MOST) return;
    while (warps && n < MOST && goes_with(e, r + (reg)n)) n++;
    clike_need(e, t, 1);
    if (warps != 1) e->reduces[t] = true;
    for (int i = 0; i < n; i++) str_addf(e->out, "%sx1 v%u = v%u; ", type, r + (reg)i, in[i].a);
    if (!warps) {
        const char *v = arena_printf(e->out->a, "v%u", r);
        str_addf(e->out, "%s[tid] = %s; BARRIER for (int h = %d; h > 0; h /= 2) { if (tid < h) ", met, v,
                 e->k->block_threads / 2);
        print_combined(e, in, arena_printf(e->out->a, "%s[tid]", met), arena_printf(e->out->a, "%s[tid + h]", met));
        str_addf(e->out, " BARRIER } %s = %s[0]; BARRIER\n", v, met);
        return;
    }
    print_within(e, r, n, warps);
    if (warps > 1) {
        str_add(e->out, "BARRIER ");
        print_between(e, r, n, warps);
    }
    str_addf(e->out, "%s\n", clike_barrier(e));
}

/* v combined with what the threads before it of each n have, by steps twice as far each time. */
static void print_scan(clike *e, const kins *in, const char *v, int n) {
    const char *type = clike_reg_type((tn_dtype)in->dtype);
    str_addf(e->out, "for (int h = 1; h < %d; h *= 2) { %sx1 o = ", n, type);
    str_addf(e->out, e->l->shuffle_from, v, "tid - h");
    str_addf(e->out, "; if (tid %% %d >= h) { ", n);
    print_combined(e, in, "o", v);
    str_addf(e->out, " %s = o; } }\n", v);
}

/* Each thread gets b combined with what the threads before it have: within 32, then of whole 32s; else all in memory. */
void clike_block_before(clike *e, const kins *in, reg r) {
    tn_dtype t = (tn_dtype)in->dtype;
    arena *a = e->out->a;
    const char *type = clike_reg_type(t), *v = arena_printf(a, "v%u", r), *met = arena_printf(a, "met_%s", type);
    int n = e->k->block_threads, warps = n / 32;
    clike_need(e, t, 1);
    e->reduces[t] = true;
    str_addf(e->out, "%sx1 %s = v%u; { %sx1 x = v%u; ", type, v, in->b, type, in->a);
    if (!e->l->shuffle || warps == 0) {
        str_addf(e->out, "%s[tid] = x; BARRIER for (int h = 1; h < %d; h *= 2) { if (tid >= h) { %sx1 o = %s[tid - h]; ", met,
                 n, type, met);
        print_combined(e, in, "o", "x");
        str_addf(e->out, " x = o; } BARRIER %s[tid] = x; BARRIER } if (tid > 0) { x = %s[tid - 1]; ", met, met);
        print_combined(e, in, v, "x");
        str_add(e->out, " } BARRIER }\n");
        return;
    }
    print_scan(e, in, "x", 32);
    if (warps > 1) {
        str_addf(e->out, "if (tid %% 32 == 31) %s[tid / 32] = x; BARRIER %sx1 all = %s[tid %% %d];\n", met, type, met, warps);
        print_scan(e, in, "all", warps);
        str_addf(e->out, "all = ");
        str_addf(e->out, e->l->shuffle_from, "all", "tid / 32 - 1");
        str_add(e->out, "; if (tid >= 32) { ");
        print_combined(e, in, v, "all");
        str_add(e->out, " }\n");
    }
    str_add(e->out, "x = ");
    str_addf(e->out, e->l->shuffle_from, "x", "tid - 1");
    str_add(e->out, "; if (tid % 32 > 0) { ");
    print_combined(e, in, v, "x");
    str_addf(e->out, " } %s }\n", clike_barrier(e));
}

/* Of equals the lowest index; the first NaN beats everything; -1 is none at all. */
void clike_block_argreduce(clike *e, const kins *in, reg r) {
    tn_dtype t = (tn_dtype)in->src;
    const char *type = clike_reg_type(t), *m = arena_printf(e->out->a, "met_%s", type);
    clike_need(e, t, 1), clike_need(e, TN_I64, 1);
    e->reduces[t] = e->reduces_index = true;
    str_addf(e->out, "i64x1 v%u; %s[tid] = v%u; met_index[tid] = v%u; BARRIER for (int h = %d; h > 0; h /= 2) { if (tid < h) {",
             r, m, in->a, in->b, e->k->block_threads / 2);
    str_addf(e->out, " %sx1 x = %s[tid], y = %s[tid + h]; i64x1 i = met_index[tid], j = met_index[tid + h];", type, m, m);
    str_addf(e->out,
             " if (j >= 0 && (i < 0 || (x != x || y != y ? y != y && (x == x || j < i) : y %c x || (y == x && j < i)))) {"
             " %s[tid] = y; met_index[tid] = j; }",
             in->alu == OP_argmax ? '>' : '<', m);
    str_addf(e->out, " } BARRIER } v%u = met_index[0]; BARRIER\n", r);
}
