/* randcontrol.c - random graphs with control flow: randcontrol of support.h. Ifs, whiles and scans in one another, of whole
 * numbers below 2^24 in f32 and i64, so that no rounding hides a wrong order. */
#include "support/support.h"

enum { MOST_VALUES = 40, ROWS = 3, LENGTH = 3 };
typedef struct scope { /* names by type: f f32[ROWS,C], n i64[], b bool[] */
    int f[MOST_VALUES], n[MOST_VALUES], b[MOST_VALUES];
    int n_f, n_n, n_b;
} scope;
typedef struct writer {
    arena *a;
    rng r;
    str regions; /* that are written */
    int next;
    const char *columns; /* a number, or the dim n */
    bool dims;           /* the length of scans is the dim t */
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
    int v = w->next++;
    const char *c = w->columns;
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
        str_addf(out, "    %%v%d = sum %%v%d axes=[0] f32[1,%s]\n", v, pick(w, s->f, s->n_f), c);
        str_addf(out, "    %%v%d = expand %%v%d f32[%d,%s]\n", w->next, v, ROWS, c);
        clamp(w, s, out, w->next++);
        return;
    case 4: { /* a b^T a */
        int x = pick(w, s->f, s->n_f), y = w->next++;
        str_addf(out, "    %%v%d = dot %%v%d, %%v%d contract=[1]x[1] f32[%d,%d]\n", v, x, pick(w, s->f, s->n_f), ROWS, ROWS);
        str_addf(out, "    %%v%d = min %%v%d, 9.0\n    %%v%d = max %%v%d, -9.0\n", y, v, w->next, y);
        str_addf(out, "    %%v%d = dot %%v%d, %%v%d contract=[1]x[0] f32[%d,%s]\n", w->next + 1, w->next, x, ROWS, c);
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
    return t == 'n' ? "i64[]" : t == 'b' ? "bool[]" : arena_printf(w->a, "f32[%d,%s]", ROWS, w->columns);
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
    const char *length = w->dims ? "t" : "3", *stack = arena_printf(w->a, "f32[%s,%d,%s]", length, ROWS, w->columns);
    for (int i = 0; i <= LENGTH; i++) x[i] = w->next++;
    for (int i = 0; i < (w->dims ? 1 : LENGTH); i++)
        str_addf(out, "    %%v%d = reshape %%v%d f32[1,%d,%s]\n", x[i], pick(w, s->f, s->n_f), ROWS, w->columns);
    if (w->dims)
        str_addf(out, "    %%v%d = expand %%v%d %s\n    %%v%d = iota axis=0 %s\n    %%v%d = add %%v%d, %%v%d\n", x[1], x[0],
                 stack, x[2], stack, x[LENGTH], x[1], x[2]);
    else
        str_addf(out, "    %%v%d = concat %%v%d, %%v%d, %%v%d axis=0 %s\n", x[LENGTH], x[0], x[1], x[2], stack);
    int count = pick(w, s->n, s->n_n);
    if (rng_chance(&w->r, 0.5))
        str_addf(out, "    %%v%d = const %d i64[]\n", count = w->next++, w->dims ? (int)rng_between(&w->r, 0, 12) : 3);
    int op = w->next++;
    str_addf(out, "    %%v%d = scan %%v%d, ", op, count);
    put_operands(w, s, out, "fn", false);
    str_addf(out, ", %%v%d", x[LENGTH]);
    put_operands(w, s, out, "fb", true);
    str_addf(out, " body=@r%d ", b);
    if (leaves) str_addf(out, "cond=@r%d ", c);
    str_addf(out, "carry=2 steps=1 length=%s%s %s\n", length, rng_below(&w->r, 2) ? " reverse=1" : "", type_of(w, 'f'));
    put_results(w, s, out, "fn", op);
    for (int k = 0; more[k]; k++) {
        int y = w->next++, z = w->next++, v = w->next++;
        const char *dims = more[k] == 'n' ? "" : arena_printf(w->a, ",%d,%s", ROWS, w->columns);
        const char *type = more[k] == 'n' ? "i64" : "f32";
        str_addf(out, "    %%v%d = proj %%v%d index=%d %s[%s%s]\n", y, op, k + 2, type, length, dims);
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

const char *randcontrol(arena *a, uint64_t seed, bool dims) {
    static const char *const widths[] = { "1", "5", "16", "37", "64" };
    writer w = { .a = a, .r = rng_make(seed), .dims = dims };
    scope s = { .f = { 0, 1, 2 }, .n_f = 3, .n = { 3, 4 }, .n_n = 2, .b = { 5 }, .n_b = 1 };
    str main, all;
    str_init(&w.regions, a), str_init(&main, a), str_init(&all, a);
    const char *most = widths[rng_below(&w.r, 5)], *declared = "";
    w.next = 6, w.columns = dims ? "n" : most;
    if (dims) declared = arena_printf(a, "<n %d..%s, t %d..7>", (int)rng_below(&w.r, 2), most, (int)rng_below(&w.r, 2));
    put_body(&w, &s, &main, (int)rng_between(&w.r, 2, 8), 0);
    put_while(&w, &s, &main, 1);
    str_addf(&all, "graph @g%llu%s(x f32[3,%s], y f32[3,%s], c bool[], i i64[], %sw f32[3,%s], state k i64[]) {\n",
             (unsigned long long)seed, declared, w.columns, w.columns, dims ? "" : "state ", w.columns);
    str_add(&all, "    %v0 = floor x\n    %v1 = floor y\n");
    str_addf(&all, "    %%v2 = %s\n    %%v3 = max i, -5\n    %%v4 = add k, 1\n", dims ? "floor w" : "add w, 0.0");
    str_add(&all, "    %v5 = not c\n");
    str_addn(&all, w.regions.s, w.regions.n), str_addn(&all, main.s, main.n);
    int last = s.f[s.n_f - 1], f = pick(&w, s.f, s.n_f), n = pick(&w, s.n, s.n_n), b = pick(&w, s.b, s.n_b);
    str_addf(&all, "    return %%v%d as \"last\", %%v%d as \"f\", %%v%d as \"n\", %%v%d as \"b\", ", last, f, n, b);
    if (!dims) str_addf(&all, "%%v%d -> w, ", pick(&w, s.f, s.n_f));
    str_addf(&all, "%%v%d -> k\n}\n", pick(&w, s.n, s.n_n));
    return all.s;
}
