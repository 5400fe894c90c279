/* test_control.c - if, while and scan in compiled programs: graphs by hand and random ones with nested bodies give the
 * evaluator's values, exactly, in every mode that has them, at every fusion level, with one thread and several, also many steps
 * in one call over rings; their plans print, read back, verify and evaluate, those for GPUs, too. TENON_DEVICE: on that device.
 *
 * Values are whole numbers below 2^24 in f32 and i64, so that no rounding hides a wrong order.
 * Labels: random threads
 * TENON_FUZZ_SEEDS: how many random graphs (default 300), a tenth of them where code is made by the C compiler (TENON_CPU=c);
 * TENON_FUZZ_FIRST: the first seed. A short campaign: a third of the values for graphs by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "drive/drive.h"
#include "support/plan_run.h"

static const char *const graphs[] = {
    /* both parts, results that are parameters, one that nobody reads */
    "graph @choice(c bool[], x f32[5], n i64[]) {\n"
    "  region @yes(%a f32[5], %b i64[]) {\n    %y = mul %a, 2.0\n    %m = add %b, 1\n    return %m, %y, %b\n  }\n"
    "  region @no(%p f32[5], %q i64[]) {\n    return %q, %p, %q\n  }\n"
    "  %1 = if c, x, n then=@yes else=@no i64[]\n  %2 = proj %1 index=1 f32[5]\n  %3 = add %2, x\n"
    "  return %1 as \"m\", %3 as \"y\", %2 as \"z\"\n}\n",
    /* the state changes places: Fibonacci's numbers */
    "graph @fibonacci(n i64[]) {\n  %1 = const 0 i64[]\n  %2 = const 1 i64[]\n"
    "  region @c(%ca i64[], %cb i64[], %ci i64[]) {\n    %ct = gt %ci, 0\n    return %ct\n  }\n"
    "  region @b(%ba i64[], %bb i64[], %bi i64[]) {\n    %bs = add %ba, %bb\n    %bn = sub %bi, 1\n    return %bb, %bs, %bn\n  "
    "}\n"
    "  %3 = while %1, %2, n cond=@c body=@b i64[]\n  %4 = proj %3 index=1 i64[]\n  return %3 as \"f\", %4 as \"next\"\n}\n",
    /* swapped in each iteration; the same result under two names; a condition that is part of the state */
    "graph @swap(x f32[3,4], y f32[3,4]) {\n  %1 = const true bool[]\n  %2 = const 7 i64[]\n"
    "  region @c(%ca f32[3,4], %cb f32[3,4], %cg bool[], %ci i64[]) {\n    return %cg\n  }\n"
    "  region @b(%ba f32[3,4], %bb f32[3,4], %bg bool[], %bi i64[]) {\n    %bn = sub %bi, 1\n    %bt = gt %bn, 0\n"
    "    return %bb, %ba, %bt, %bn\n  }\n"
    "  %3 = while x, y, %1, %2 cond=@c body=@b f32[3,4]\n  %4 = proj %3 index=1 f32[3,4]\n  %5 = proj %3 index=1 f32[3,4]\n"
    "  %6 = proj %3 index=0 f32[3,4]\n  return %3 as \"a\", %4 as \"b\", %5 as \"again\", %6 as \"first\"\n}\n",
    /* no iteration; results that are constants, ranges and views */
    "graph @views(x f32[2,6]) {\n  %1 = const 9 i64[]\n"
    "  region @c(%ca i64[], %cx f32[2,6]) {\n    %ct = lt %ca, 3\n    return %ct\n  }\n"
    "  region @b(%ba i64[], %bx f32[2,6]) {\n    %bn = add %ba, 1\n    return %bn, %bx\n  }\n"
    "  %2 = while %1, x cond=@c body=@b i64[]\n  %3 = proj %2 index=1 f32[2,6]\n  %4 = gt %2, 0\n"
    "  region @yes(%p f32[2,6]) {\n    %q = reshape %p f32[3,4]\n    %r = const 2.0 f32[4]\n    return %q, %r\n  }\n"
    "  region @no(%s f32[2,6]) {\n    %t = const 1.0 f32[3,4]\n    %u = iota axis=0 f32[4]\n    return %t, %u\n  }\n"
    "  %5 = if %4, %3 then=@yes else=@no f32[3,4]\n  %6 = proj %5 index=1 f32[4]\n  %7 = reshape %5 f32[12]\n"
    "  return %6 as \"r\", %7 as \"q\", %2 as \"n\"\n}\n",
    /* a state that no iteration changes, which is used up in each one otherwise */
    "graph @scan(x f32[6], b f32[6]) {\n  %1 = const 0 i64[]\n  %2 = floor x\n  %3 = floor b\n"
    "  region @c(%ci i64[], %cx f32[6], %cb f32[6]) {\n    %ct = lt %ci, 5\n    return %ct\n  }\n"
    "  region @s(%bi i64[], %bx f32[6], %bb f32[6]) {\n    %bn = add %bi, 1\n    %bm = mul %bx, 2.0\n    %by = add %bm, %bb\n"
    "    return %bn, %by, %bb\n  }\n"
    "  %4 = while %1, %2, %3 cond=@c body=@s i64[]\n  %5 = proj %4 index=1 f32[6]\n  return %5 as \"y\"\n}\n",
    /* a condition that the loop carries on: no launch in it reads that, and its memory must stay */
    "graph @carried(c bool[], x f32[3,64]) {\n  %1 = const 4 i64[]\n  %2 = floor x\n  %3 = not c\n"
    "  region @c(%ci i64[], %cx f32[3,64], %cg bool[]) {\n    %ct = gt %ci, 0\n    return %ct\n  }\n"
    "  region @yes(%p f32[3,64], %q f32[3,64]) {\n    return %p\n  }\n"
    "  region @no(%s f32[3,64], %t f32[3,64]) {\n    return %t\n  }\n"
    "  region @b(%bi i64[], %bx f32[3,64], %bg bool[]) {\n    %bn = sub %bi, 1\n    %b1 = sum %bx axes=[0] f32[1,64]\n"
    "    %b2 = expand %b1 f32[3,64]\n    %b3 = max %b2, -64.0\n    %b4 = min %b3, 64.0\n"
    "    %b5 = if %bg, %b4, %bx then=@yes else=@no f32[3,64]\n    return %bn, %b5, %bg\n  }\n"
    "  %4 = while %1, %2, %3 cond=@c body=@b i64[]\n  %5 = proj %4 index=1 f32[3,64]\n"
    "  return %5 as \"y\", %4 as \"n\"\n}\n",
    /* a training loop inside a step: the state of the session goes through a while; arrays without elements go along */
    "graph @train(x f32[17,5], state w f32[5,1], state n i64[]) {\n  %1 = const 0 i64[]\n  %2 = const 0.0 f32[0,3]\n"
    "  region @c(%ci i64[], %cw f32[5,1], %cx f32[17,5], %ce f32[0,3]) {\n    %ct = lt %ci, 4\n    return %ct\n  }\n"
    "  region @b(%bi i64[], %bw f32[5,1], %bx f32[17,5], %be f32[0,3]) {\n    %bn = add %bi, 1\n"
    "    %b1 = dot %bx, %bw contract=[1]x[0] f32[17,1]\n    %b2 = max %b1, -1.0\n    %b3 = min %b2, 1.0\n"
    "    %b4 = dot %bx, %b3 contract=[0]x[0] f32[5,1]\n    %b5 = sub %bw, %b4\n    %b6 = floor %b5\n    %b7 = max %b6, -64.0\n"
    "    %b8 = min %b7, 64.0\n    %b9 = neg %be\n    return %bn, %b8, %bx, %b9\n  }\n"
    "  %3 = floor x\n  %4 = while %1, w, %3, %2 cond=@c body=@b i64[]\n  %5 = proj %4 index=1 f32[5,1]\n"
    "  %6 = proj %4 index=3 f32[0,3]\n  %7 = add n, %4\n  return %5 as \"w\", %6 as \"empty\", %5 -> w, %7 -> n\n}\n",
    /* forward and backward, with a count that is a value, a condition, results that are carried and stacked, that are
     * parameters, of which one stack goes from one loop to the next */
    "graph @stacks(x f32[6,4], h f32[4], m i64[]) {\n  %n = const 6 i64[]\n  %x = floor x\n  %h = floor h\n"
    "  region @b(%c f32[4], %xt f32[4], %w f32[4]) {\n    %1 = add %c, %w\n    %2 = sub %1, %xt\n    %y = mul %2, 2.0\n"
    "    return %2, %y, %2, %c, %xt, %w\n  }\n"
    "  %s = scan %n, %h, %x, %h body=@b carry=1 steps=1 length=6 f32[4]\n  %ys = proj %s index=1 f32[6,4]\n"
    "  %hs = proj %s index=2 f32[6,4]\n  %cs = proj %s index=3 f32[6,4]\n  %xs = proj %s index=4 f32[6,4]\n"
    "  %ws = proj %s index=5 f32[6,4]\n"
    "  region @b2(%c2 f32[4], %i2 i64[], %xt2 f32[4], %yt2 f32[4]) {\n    %a1 = sub %yt2, %c2\n    %a2 = min %a1, %xt2\n"
    "    %j2 = add %i2, 1\n    return %a2, %j2, %i2, %a2\n  }\n"
    "  region @c2(%c3 f32[4], %i3 i64[], %xt3 f32[4], %yt3 f32[4]) {\n    %b1 = lt %i3, 3\n    return %b1\n  }\n"
    "  %z = const 0 i64[]\n  %s2 = scan m, %h, %z, %hs, %ys body=@b2 cond=@c2 carry=2 steps=2 length=6 reverse=1 f32[4]\n"
    "  %is = proj %s2 index=2 i64[6]\n  %as = proj %s2 index=3 f32[6,4]\n"
    "  return %s as \"a\", %ys as \"b\", %s2 as \"c\", %is as \"d\", %as as \"e\", %cs as \"f\", %xs as \"g\", %ws as "
    "\"i\"\n}\n",
    /* slices of more than 64 KB that are no whole vectors: GPUs load wide from what begins at one */
    "graph @loose(x f32[3,16387], h f32[16387]) {\n  %n = const 3 i64[]\n  %x = floor x\n  %h = floor h\n"
    "  region @b(%c f32[16387], %xt f32[16387]) {\n    %1 = add %c, %xt\n    %2 = sub %1, %c\n    return %1, %2\n  }\n"
    "  %s = scan %n, %h, %x body=@b carry=1 steps=1 length=3 f32[16387]\n  %ys = proj %s index=1 f32[3,16387]\n"
    "  return %s as \"a\", %ys as \"b\"\n}\n",
    /* no carried value; no iteration; constants as stacks; arrays without elements; a loop in a loop over its slices */
    "graph @nested(x f32[2,3,5], e f32[4,0]) {\n  %n = const 4 i64[]\n  %x = floor x\n  %t = const [1.0, 2.0] f32[2]\n"
    "  region @i(%c f32[], %v f32[5], %s f32[]) {\n    %a1 = sum %v axes=[0] f32[1]\n    %a2 = reshape %a1 f32[]\n"
    "    %a3 = sub %a2, %c\n    %a4 = add %a3, %s\n    return %a4, %a4, %v\n  }\n"
    "  region @o(%m f32[3,5], %q f32[], %k i64[]) {\n    %z = const 0.0 f32[]\n"
    "    %b = scan %k, %z, %m, %q body=@i carry=1 steps=1 length=3 reverse=1 f32[]\n    %b1 = proj %b index=1 f32[3]\n"
    "    %b2 = proj %b index=2 f32[3,5]\n    return %b1, %b, %b2\n  }\n"
    "  %1 = scan %n, %x, %t, %n body=@o carry=0 steps=2 length=2 f32[2,3]\n  %2 = proj %1 index=1 f32[2]\n"
    "  %3 = proj %1 index=2 f32[2,3,5]\n"
    "  region @e(%c5 f32[5], %v5 f32[0]) {\n    %w5 = neg %c5\n    return %w5, %v5, %w5\n  }\n"
    "  %f = const 3.0 f32[5]\n  %5 = scan %n, %f, e body=@e carry=1 steps=1 length=4 f32[5]\n  %6 = proj %5 index=1 f32[4,0]\n"
    "  %7 = proj %5 index=2 f32[4,5]\n  %o = const -1 i64[]\n"
    "  region @u(%c8 f32[5]) {\n    %w8 = neg %c8\n    return %w8, %w8\n  }\n"
    "  %8 = scan %o, %f body=@u carry=1 steps=0 length=7 f32[5]\n  %9 = proj %8 index=1 f32[7,5]\n"
    "  return %1 as \"a\", %2 as \"b\", %3 as \"c\", %5 as \"d\", %6 as \"f\", %7 as \"g\", %8 as \"h\", %9 as \"i\"\n}\n",
    /* a count and a condition that are constants in memory (without passes), which no launch reads */
    "graph @constant(x f32[5], h f32[3]) {\n  %1 = const [3] i64[1]\n  %n = reshape %1 i64[]\n  %2 = const [false] bool[1]\n"
    "  %c = reshape %2 bool[]\n  %h = floor h\n"
    "  region @b(%a f32[3]) {\n    %3 = mul %a, 2.0\n    return %3, %a\n  }\n"
    "  %s = scan %n, %h body=@b carry=1 steps=0 length=5 f32[3]\n  %t = proj %s index=1 f32[5,3]\n"
    "  region @yes(%p f32[5]) {\n    return %p\n  }\n  region @no(%q f32[5]) {\n    %4 = neg %q\n    return %4\n  }\n"
    "  %i = if %c, x then=@yes else=@no f32[5]\n  return %s as \"y\", %t as \"ys\", %i as \"z\"\n}\n",
};

/* ---- random graphs ---- */

enum { MOST_VALUES = 40, ROWS = 3 };
typedef struct scope { /* names by type: f f32[ROWS,C], n i64[], b bool[] */
    int f[MOST_VALUES], n[MOST_VALUES], b[MOST_VALUES];
    int n_f, n_n, n_b;
} scope;
typedef struct writer {
    arena *a;
    rng r;
    str regions; /* that are written */
    int next, columns;
} writer;

static int pick(writer *w, const int *of, int n) { return of[rng_below(&w->r, n)]; }
static void keep(int *at, int *n, int v) {
    if (*n < MOST_VALUES) at[(*n)++] = v;
}

/* A whole number between -64 and 64. */
static void clamp(writer *w, scope *s, str *out, int v) {
    int lo = w->next++, hi = w->next++;
    str_addf(out, "    %%v%d = max %%v%d, -64.0\n    %%v%d = min %%v%d, 64.0\n", lo, v, hi, lo);
    keep(s->f, &s->n_f, hi);
}

static void put_value(writer *w, scope *s, str *out) {
    static const char *const two[] = { "add", "sub", "max", "min" }, *const one[] = { "neg", "abs" };
    int v = w->next++, c = w->columns;
    switch (rng_below(&w->r, 7)) {
    case 0:
    case 1:
        str_addf(out, "    %%v%d = %s %%v%d, %%v%d\n", v, two[rng_below(&w->r, 4)], pick(w, s->f, s->n_f),
                 pick(w, s->f, s->n_f));
        clamp(w, s, out, v);
        return;
    case 2:
        str_addf(out, "    %%v%d = %s %%v%d\n", v, one[rng_below(&w->r, 2)], pick(w, s->f, s->n_f));
        keep(s->f, &s->n_f, v);
        return;
    case 3: /* the sums of the columns, in each row */
        str_addf(out, "    %%v%d = sum %%v%d axes=[0] f32[1,%d]\n", v, pick(w, s->f, s->n_f), c);
        str_addf(out, "    %%v%d = expand %%v%d f32[%d,%d]\n", w->next, v, ROWS, c);
        clamp(w, s, out, w->next++);
        return;
    case 4: { /* a b^T a */
        int x = pick(w, s->f, s->n_f), y = w->next++;
        str_addf(out, "    %%v%d = dot %%v%d, %%v%d contract=[1]x[1] f32[%d,%d]\n", v, x, pick(w, s->f, s->n_f), ROWS, ROWS);
        str_addf(out, "    %%v%d = min %%v%d, 9.0\n    %%v%d = max %%v%d, -9.0\n", y, v, w->next, y);
        str_addf(out, "    %%v%d = dot %%v%d, %%v%d contract=[1]x[0] f32[%d,%d]\n", w->next + 1, w->next, x, ROWS, c);
        w->next += 2;
        clamp(w, s, out, w->next - 1);
        return;
    }
    case 5:
        str_addf(out, "    %%v%d = add %%v%d, %lld\n", v, pick(w, s->n, s->n_n), (long long)rng_between(&w->r, -3, 3));
        keep(s->n, &s->n_n, v);
        return;
    default:
        str_addf(out, "    %%v%d = %s %%v%d, %lld\n", v, rng_below(&w->r, 2) ? "lt" : "gt", pick(w, s->n, s->n_n),
                 (long long)rng_between(&w->r, -2, 6));
        keep(s->b, &s->n_b, v);
    }
}

static void put_body(writer *w, scope *s, str *out, int steps, int depth);

static const char *type_of(const writer *w, char t) {
    return t == 'n' ? "i64[]" : t == 'b' ? "bool[]" : arena_printf(w->a, "f32[%d,%d]", ROWS, w->columns);
}

/* Opens a region with parameters of these types, which are all that its scope has. */
static int open_region(writer *w, const char *types, scope *s, str *out) {
    int id = w->next++;
    *s = (scope){ 0 };
    str_addf(out, "  region @r%d(", id);
    for (const char *t = types; *t; t++) {
        int v = w->next++;
        str_addf(out, "%s%%v%d %s", t > types ? ", " : "", v, type_of(w, *t));
        *t == 'f' ? keep(s->f, &s->n_f, v) : *t == 'n' ? keep(s->n, &s->n_n, v) : keep(s->b, &s->n_b, v);
    }
    str_add(out, ") {\n");
    return id;
}

static int any_of(writer *w, const scope *s, char t) {
    return t == 'f' ? pick(w, s->f, s->n_f) : t == 'n' ? pick(w, s->n, s->n_n) : pick(w, s->b, s->n_b);
}

/* first: the first result, -1: any. params: the first parameter of a body, of the same types, whose results often are some; or
 * -1. */
static void close_region(writer *w, const char *types, const scope *s, int first, int params, str *out) {
    str_add(out, "    return ");
    for (const char *t = types; *t; t++) {
        int v = t == types && first >= 0 ? first : any_of(w, s, *t);
        if (t > types && params >= 0 && rng_chance(&w->r, 0.4)) v = params + (int)(t - types);
        str_addf(out, "%s%%v%d", t > types ? ", " : "", v);
    }
    str_add(out, "\n  }\n");
}

/* Operands of the types, then the op's results in the scope. */
static void put_results(writer *w, scope *s, str *out, const char *types, int op) {
    for (int k = 0; types[k]; k++) {
        int v = k ? w->next++ : op;
        if (k && rng_chance(&w->r, 0.3)) continue; /* nobody reads it */
        if (k) str_addf(out, "    %%v%d = proj %%v%d index=%d %s\n", v, op, k, type_of(w, types[k]));
        types[k] == 'f' ? keep(s->f, &s->n_f, v) : types[k] == 'n' ? keep(s->n, &s->n_n, v) : keep(s->b, &s->n_b, v);
    }
}

static void put_operands(writer *w, const scope *s, str *out, const char *types, bool comma) {
    for (const char *t = types; *t; t++) str_addf(out, "%s%%v%d", comma || t > types ? ", " : "", any_of(w, s, *t));
}

static void put_if(writer *w, scope *s, str *out, int depth) {
    static const char *const results[] = { "f", "nf", "ffn", "fbn" };
    const char *types = results[rng_below(&w->r, 4)];
    int id[2];
    for (int part = 0; part < 2; part++) {
        str body;
        scope inner;
        str_init(&body, w->a);
        id[part] = open_region(w, "fnbf", &inner, &body);
        put_body(w, &inner, &body, (int)rng_below(&w->r, 4), depth + 1);
        close_region(w, types, &inner, -1, -1, &body);
        str_addn(&w->regions, body.s, body.n);
    }
    int op = w->next++;
    str_addf(out, "    %%v%d = if %%v%d", op, pick(w, s->b, s->n_b));
    put_operands(w, s, out, "fnbf", true);
    str_addf(out, " then=@r%d else=@r%d %s\n", id[0], id[1], type_of(w, types[0]));
    put_results(w, s, out, types, op);
}

/* Its first value counts down, so it ends. */
static void put_while(writer *w, scope *s, str *out, int depth) {
    static const char *const states[] = { "nf", "nffn", "nfbf" };
    const char *types = states[rng_below(&w->r, 3)];
    str cond, body;
    scope inner;
    str_init(&cond, w->a), str_init(&body, w->a);
    int c = open_region(w, types, &inner, &cond), first = inner.n[0], count = w->next++;
    str_addf(&cond, "    %%v%d = gt %%v%d, 0\n    return %%v%d\n  }\n", count, first, count);
    int b = open_region(w, types, &inner, &body);
    count = w->next++;
    str_addf(&body, "    %%v%d = sub %%v%d, 1\n", count, inner.n[0]);
    keep(inner.b, &inner.n_b, w->next);
    str_addf(&body, "    %%v%d = gt %%v%d, 1\n", w->next, inner.n[0]);
    w->next++;
    put_body(w, &inner, &body, (int)rng_below(&w->r, 5), depth + 1);
    close_region(w, types, &inner, count, b + 1, &body);
    str_addn(&w->regions, cond.s, cond.n), str_addn(&w->regions, body.s, body.n);
    int lo = w->next++, hi = w->next++, op = w->next++;
    str_addf(out, "    %%v%d = max %%v%d, -1\n    %%v%d = min %%v%d, 4\n", lo, pick(w, s->n, s->n_n), hi, lo);
    str_addf(out, "    %%v%d = while %%v%d", op, hi);
    put_operands(w, s, out, types + 1, true);
    str_addf(out, " cond=@r%d body=@r%d i64[]\n", c, b);
    put_results(w, s, out, types, op);
}

enum { LENGTH = 3 };
/* Carries a value and a number over a stack of three values. */
static void put_scan(writer *w, scope *s, str *out, int depth) {
    static const char *const stacked[] = { "", "f", "fn", "nff" };
    const char *more = stacked[rng_below(&w->r, 4)], *types = arena_printf(w->a, "fn%s", more);
    str cond, body;
    scope inner;
    bool leaves = rng_chance(&w->r, 0.3);
    str_init(&cond, w->a), str_init(&body, w->a);
    int b = open_region(w, "fnffb", &inner, &body);
    put_body(w, &inner, &body, (int)rng_below(&w->r, 4), depth + 1);
    close_region(w, types, &inner, -1, strncmp(types, "fnffb", strlen(types)) ? -1 : b + 1, &body);
    str_addn(&w->regions, body.s, body.n);
    int c = leaves ? open_region(w, "fnffb", &inner, &cond) : 0, x[LENGTH + 1];
    if (leaves) {
        put_body(w, &inner, &cond, (int)rng_below(&w->r, 3), 3);
        str_addf(&cond, "    return %%v%d\n  }\n", pick(w, inner.b, inner.n_b));
        str_addn(&w->regions, cond.s, cond.n);
    }
    for (int i = 0; i <= LENGTH; i++) x[i] = w->next++;
    for (int i = 0; i < LENGTH; i++)
        str_addf(out, "    %%v%d = reshape %%v%d f32[1,%d,%d]\n", x[i], pick(w, s->f, s->n_f), ROWS, w->columns);
    str_addf(out, "    %%v%d = concat %%v%d, %%v%d, %%v%d axis=0 f32[3,%d,%d]\n", x[LENGTH], x[0], x[1], x[2], ROWS,
             w->columns);
    int count = pick(w, s->n, s->n_n);
    if (rng_chance(&w->r, 0.5)) str_addf(out, "    %%v%d = const 3 i64[]\n", count = w->next++);
    int op = w->next++;
    str_addf(out, "    %%v%d = scan %%v%d, ", op, count);
    put_operands(w, s, out, "fn", false);
    str_addf(out, ", %%v%d", x[LENGTH]);
    put_operands(w, s, out, "fb", true);
    str_addf(out, " body=@r%d ", b);
    if (leaves) str_addf(out, "cond=@r%d ", c);
    str_addf(out, "carry=2 steps=1 length=3%s %s\n", rng_below(&w->r, 2) ? " reverse=1" : "", type_of(w, 'f'));
    put_results(w, s, out, "fn", op);
    for (int k = 0; more[k]; k++) {
        int y = w->next++, z = w->next++, v = w->next++;
        const char *dims = more[k] == 'n' ? "" : arena_printf(w->a, ",%d,%d", ROWS, w->columns);
        const char *type = more[k] == 'n' ? "i64" : "f32";
        str_addf(out, "    %%v%d = proj %%v%d index=%d %s[3%s]\n", y, op, k + 2, type, dims);
        str_addf(out, "    %%v%d = sum %%v%d axes=[0] %s[1%s]\n    %%v%d = reshape %%v%d %s\n", z, y, type, dims, v, z,
                 type_of(w, more[k]));
        if (more[k] == 'f')
            clamp(w, s, out, v);
        else
            keep(s->n, &s->n_n, v);
    }
}

static void put_body(writer *w, scope *s, str *out, int steps, int depth) {
    for (int i = 0; i < steps; i++) {
        double kind = rng_unit(&w->r);
        if (depth < 3 && kind < 0.25)
            put_if(w, s, out, depth);
        else if (depth < 2 && kind < 0.35)
            put_while(w, s, out, depth);
        else if (depth < 2 && kind < 0.5)
            put_scan(w, s, out, depth);
        else
            put_value(w, s, out);
    }
}

static const char *random_text(arena *a, uint64_t seed) {
    static const int widths[] = { 1, 5, 16, 37, 64 };
    writer w = { .a = a, .r = rng_make(seed) };
    scope s = { .f = { 0, 1, 2 }, .n_f = 3, .n = { 3, 4 }, .n_n = 2, .b = { 5 }, .n_b = 1 };
    str main, all;
    str_init(&w.regions, a), str_init(&main, a), str_init(&all, a);
    w.next = 6, w.columns = widths[rng_below(&w.r, 5)];
    put_body(&w, &s, &main, (int)rng_between(&w.r, 2, 8), 0);
    put_while(&w, &s, &main, 1);
    str_addf(&all, "graph @g%llu(x f32[3,%d], y f32[3,%d], c bool[], i i64[], state w f32[3,%d], state k i64[]) {\n",
             (unsigned long long)seed, w.columns, w.columns, w.columns);
    str_add(&all, "    %v0 = floor x\n    %v1 = floor y\n    %v2 = add w, 0.0\n    %v3 = max i, -5\n    %v4 = add k, 1\n");
    str_add(&all, "    %v5 = not c\n");
    str_addn(&all, w.regions.s, w.regions.n), str_addn(&all, main.s, main.n);
    str_addf(&all, "    return %%v%d as \"last\", %%v%d as \"f\", %%v%d as \"n\", %%v%d as \"b\", %%v%d -> w, %%v%d -> k\n}\n",
             s.f[s.n_f - 1], pick(&w, s.f, s.n_f), pick(&w, s.n, s.n_n), pick(&w, s.b, s.n_b), pick(&w, s.f, s.n_f),
             pick(&w, s.n, s.n_n));
    return all.s;
}

/* ---- what must hold ---- */

enum { STEPS = 5, BATCHES = 3 };
typedef struct oracle { /* of STEPS steps over a ring of BATCHES */
    sample in[BATCHES];
    eval_value *want[STEPS];
} oracle;

static oracle ask(const graph *g, arena *a, uint64_t seed) {
    oracle o;
    eval_value *values = ARENA_ARRAY(a, eval_value, g->inputs.n + 1);
    for (int b = 0; b < BATCHES; b++) o.in[b] = sample_make(g, a, seed * BATCHES + (uint64_t)b);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < g->inputs.n; i++) {
            bool later = step && graph_get(g, g->inputs.at[i])->op == OP_state;
            if (!later) values[i] = o.in[step % BATCHES].values[i];
            for (int k = 0; k < g->outputs.n && later; k++)
                if (g->outputs.at[k].state == g->inputs.at[i]) values[i] = o.want[step - 1][g->outputs.at[k].v];
        }
        o.want[step] = eval_graph(g, a, values);
    }
    return o;
}

static void expect(const graph *g, val v, const void *got, eval_value want, const char *text, const char *what) {
    char why_not[512];
    if (compare(g, v, got, want, NULL, 1, why_not, sizeof why_not) >= 0) fail_msg("%s: %s\n%s", what, why_not, text);
}

/* The outputs of a run of so many steps are those of the last one, or, traced, of each. */
static void check_run(tn_session *s, const graph *g, arena *a, const oracle *o, int64_t steps, const char *text,
                      const char *what) {
    tn_binding rings[8];
    void *out[8];
    int n = 0;
    for (int i = 0; i < g->inputs.n; i++) {
        const node *in = graph_get(g, g->inputs.at[i]);
        if (in->op == OP_state) {
            size_t bytes = o->in[0].bytes[i];
            if (bytes) assert_int_equal(tn_session_set(s, in->name, o->in[0].data[i], bytes), TN_OK);
            continue;
        }
        size_t bytes = o->in[0].bytes[i];
        char *ring = arena_alloc(a, BATCHES * bytes + 1);
        for (int b = 0; b < BATCHES; b++) memcpy(ring + (size_t)b * bytes, o->in[b].data[i], bytes);
        rings[n++] = (tn_binding){ in->name, ring };
    }
    for (int k = 0; k < g->outputs.n; k++) {
        const output *w = &g->outputs.at[k];
        size_t bytes = (size_t)graph_elems(g, w->v) * dtype_size((tn_dtype)graph_get(g, w->v)->dtype);
        if (!w->name) continue;
        out[k] = memset(arena_alloc(a, STEPS * bytes + 1), 0xee, STEPS * bytes + 1);
        int slot = tn_session_slot(s, w->name);
        assert_int_equal(k % 2 && bytes ? tn_session_bind_trace(s, slot, out[k], STEPS) : tn_session_bind(s, slot, out[k]),
                         TN_OK);
    }
    if (tn_run_n(s, steps, rings, n, BATCHES)) fail_msg("%s: %s\n%s", what, tn_session_error(s), text);
    for (int k = 0; k < g->outputs.n; k++) {
        const output *w = &g->outputs.at[k];
        size_t bytes = (size_t)graph_elems(g, w->v) * dtype_size((tn_dtype)graph_get(g, w->v)->dtype);
        bool trace = k % 2 && bytes;
        for (int64_t step = trace ? 0 : steps - 1; step < steps && w->name; step++)
            expect(g, w->v, (char *)out[k] + (trace ? (size_t)step * bytes : 0), o->want[step][w->v], text, what);
        if (!w->state) continue;
        void *got = arena_alloc(a, bytes + 1);
        assert_int_equal(tn_session_get(s, graph_get(g, w->state)->name, got, bytes), TN_OK);
        expect(g, w->v, got, o->want[steps - 1][w->v], text, what);
    }
}

/* Whatever a kernel reads of another one, explain says why they are two. */
static void check_reasons(const tn_program *p, const char *what) {
    char *said;
    assert_int_equal(tn_program_text(p, "explain.json", &said), TN_OK);
    if (strstr(said, "\"decision\":-1")) fail_msg("%s: an edge between kernels has no reason", what);
    tn_string_free(p->ctx, said);
}

static void check_programs(tn_ctx *ctx, graph *g, arena *a, const oracle *o, const char *text, uint64_t seed) {
    static const tn_mode modes[] = { TN_MODE_COMPILED, TN_MODE_LOOP, TN_MODE_GRAPH };
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        if (!test_device_is_cpu() && m != seed % COUNT_OF(modes)) continue; /* compilers take long */
        tn_compile_opts opts = TN_COMPILE_DEFAULTS;
        tn_program *p;
        tn_session *s;
        opts.mode = modes[m], opts.fusion = (int)((seed + m) % 4), opts.threads = (int)((seed / 4 + m) % 3) + 1, opts.check = 1;
        opts.no_passes = seed % 7 == 0;
        opts.device = test_device();
        if (!test_device_is_cpu()) opts.threads = 0;
        const char *what = arena_printf(a, "seed %llu, mode %d, fusion %d, %d threads", (unsigned long long)seed, (int)modes[m],
                                        opts.fusion, opts.threads);
        if (drive_compile(ctx, g, &opts, &p) || tn_session_new(p, &s)) fail_msg("%s: %s\n%s", what, tn_ctx_error(ctx), text);
        check_reasons(p, what);
        check_run(s, g, a, o, STEPS, text, what);
        check_run(s, g, a, o, 1, text, what); /* rings of the run before are forgotten */
        tn_session_free(s);
        tn_program_free(p);
    }
}

/* A text with another digit, a piece less or a piece twice: what still reads prints and reads back, and the check survives. */
static void check_damaged(const str *text, uint64_t seed) {
    rng r = rng_make(seed);
    for (int i = 0; i < 4; i++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (GUARD_TRY(&gd)) {
            str x, y, z, problems;
            str_init(&x, &a), str_init(&y, &a), str_init(&z, &a), str_init(&problems, &a);
            size_t at = (size_t)rng_below(&r, (int64_t)text->n), n = (size_t)rng_below(&r, 60);
            if (n > text->n - at) n = text->n - at;
            str_addn(&x, text->s, at);
            if (i % 2) str_addn(&x, text->s + at, n), str_addn(&x, text->s + at, n); /* twice */
            str_addn(&x, text->s + at + n, text->n - at - n);
            for (size_t k = at; i == 2 && k < x.n; k++)
                if (x.s[k] >= '0' && x.s[k] <= '9') {
                    x.s[k] = (char)('0' + rng_below(&r, 10));
                    break;
                }
            plan *p = plan_parse(&a, x.s, x.n, "damaged");
            plan_print(p, &y);
            plan_print(plan_parse(&a, y.s, y.n, "printed"), &z);
            assert_string_equal(y.s, z.s);
            bool good = true;
            for (int k = 0; k < p->kernels.n; k++) good = good && kernel_check(p->kernels.at[k].k, &problems) == 0;
            if (good) plan_check(p, &problems);
        } else if (gd.err.code != TN_ERR_PARSE && gd.err.code != TN_ERR_NOMEM) {
            fail_msg("%s", gd.err.text);
        }
        arena_fini(&a);
    }
}

/* The plan, and what its text gives when it is read back, run in the interpreter; one of the texts is damaged, in turns. */
static void check_plans(graph *g, arena *a, const oracle *o, const char *text, uint64_t seed) {
    reference r = { .g = g, .in = o->in[0], .want = o->want[0], .bound = ARENA_ARRAY(a, double *, g->nodes.n) };
    char why_not[4096];
    for (int way = 0; way < 6; way++) { /* the last two: for GPUs */
        tn_compile_opts opts = TN_COMPILE_DEFAULTS;
        int fusion = way < 4 ? way : way == 4 ? 3 : (int)(seed % 3);
        str x, y, problems;
        str_init(&x, a), str_init(&y, a), str_init(&problems, a);
        opts.fusion = fusion, opts.mode = fusion % 2 ? TN_MODE_GRAPH : TN_MODE_LOOP, opts.no_passes = seed % 5 == 0;
        target t = way < 4 ? plan_target(seed) : target_common_gpu();
        opts.check = way >= 4;
        plan *p = pipeline_run(g, a, &opts, &t);
        if (plan_check(p, &problems)) fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, problems.s, text);
        plan_print(p, &x);
        plan *q = plan_parse(a, x.s, x.n, "plan");
        plan_print(q, &y);
        assert_string_equal(x.s, y.s);
        if (way == (int)(seed % 6)) check_damaged(&x, seed);
        if (plan_check(q, &problems)) fail_msg("seed %llu, read back: %s\n%s", (unsigned long long)seed, problems.s, x.s);
        if (!plan_agrees(p, &r, a, why_not, sizeof why_not))
            fail_msg("seed %llu, fusion %d: %s\n%s\n%s", (unsigned long long)seed, fusion, why_not, text, x.s);
    }
}

static void check_text(tn_ctx *ctx, const char *text, uint64_t seed, bool programs) {
    arena a;
    guard gd;
    arena_init(&a, mem_libc(), &gd);
    if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, gd.err.text, text);
    graph *g = graph_parse(&a, text, strlen(text), "t");
    graph_compact(g);
    oracle o = ask(g, &a, seed);
    check_plans(g, &a, &o, text, seed);
    if (programs) check_programs(ctx, g, &a, &o, text, seed);
    arena_fini(&a);
}

static void test_by_hand(void **state) {
    (void)state;
    tn_ctx *ctx = test_ctx();
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        if (test_device_is_simulated() && strstr(graphs[i], "16387"))
            continue; /* 18 s; its kernels are those of short slices */
        for (uint64_t seed = 0; seed < (fuzz_by_c() ? 2 : test_device_is_cpu() ? (uint64_t)campaign(12, 4) : 1); seed++)
            check_text(ctx, graphs[i], seed, true);
    }
    tn_ctx_free(ctx);
}

static void test_random(void **state) {
    (void)state;
    uint64_t first, n = fuzz_seeds(300, &first);
    tn_ctx *ctx = test_ctx();
    for (uint64_t seed = first; seed < first + n; seed++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("seed %llu: %s", (unsigned long long)seed, gd.err.text);
        check_text(ctx, random_text(&a, seed), seed, !fuzz_by_c() || seed % 10 == 0);
        arena_fini(&a);
    }
    tn_ctx_free(ctx);
    printf("count: %llu random graphs with if and while, nested, in 3 modes, over rings of inputs\n", (unsigned long long)n);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_by_hand), cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
