/* ext.c - the table of parameters: rows, their intervals and divisors, values and text. In and out: ext.h. Rows are looked up
 * one by one: a program has as many as it has different symbolic sizes, tens or hundreds. */
#include "ir/ext.h"

static int64_t no_bound(bool up) { return up ? INT64_MAX : INT64_MIN; }
static bool has_bounds(const exts *t, ext e) {
    return ext_is_lit(e) || (exts_row(t, e)->lo > INT64_MIN && exts_row(t, e)->hi < INT64_MAX);
}

static arena *scratch_of(arena *a) {
    arena *s = ARENA_NEW(a, arena);
    arena_child(s, a);
    return s;
}

exts *exts_make(arena *a) {
    exts *t = ARENA_NEW(a, exts);
    t->a = a, t->scratch = scratch_of(a);
    return t;
}

exts *exts_clone(const exts *t, arena *a) {
    exts *c = arena_copy(a, t, sizeof *t);
    c->a = a, c->scratch = scratch_of(a);
    c->at.at = arena_copy(a, t->at.at, sizeof *t->at.at * (size_t)t->at.n), c->at.cap = t->at.n;
    for (int i = 0; i < c->at.n; i++)
        if (c->at.at[i].name) c->at.at[i].name = arena_strdup(a, c->at.at[i].name);
    return c;
}

bool exts_equal(const exts *x, const exts *y) {
    if (!x || !y) return x == y;
    if (x->at.n != y->at.n) return false;
    for (int i = 0; i < x->at.n; i++) {
        const ext_row *r = &x->at.at[i], *s = &y->at.at[i];
        if (r->op != s->op || r->a != s->a || r->b != s->b || r->lo != s->lo || r->hi != s->hi || r->divisor != s->divisor ||
            !r->name != !s->name || (r->name && strcmp(r->name, s->name) != 0))
            return false;
    }
    return true;
}

const ext_row *exts_row(const exts *t, ext e) {
    if (ext_is_lit(e) || ext_index(e) >= t->at.n) guard_fail(t->a->gd, TN_ERR_INTERNAL, "ext: there is no such parameter");
    return &t->at.at[ext_index(e)];
}

int64_t ext_lo(const exts *t, ext e) { return ext_is_lit(e) ? e : exts_row(t, e)->lo; }
int64_t ext_hi(const exts *t, ext e) { return ext_is_lit(e) ? e : exts_row(t, e)->hi; }
int64_t ext_divisor(const exts *t, ext e) { return ext_is_lit(e) ? (e < 0 ? -e : e) : exts_row(t, e)->divisor; }

/* ---- rows ---- */

static ext fail(exts *t, const char *problem) {
    if (t && !t->problem) t->problem = problem;
    return 0;
}

static bool is_row(const ext_row *x, const ext_row *r) {
    bool swaps = r->op != EXT_FLOOR && r->op != EXT_CEIL;
    return x->op == r->op && ((x->a == r->a && x->b == r->b) || (swaps && x->a == r->b && x->b == r->a));
}

static ext push(exts *t, ext_row r) {
    for (int i = 0; i < t->at.n && r.op != EXT_DIM; i++)
        if (is_row(&t->at.at[i], &r)) return INT64_MIN + i;
    if (t->at.n == EXT_MOST_ROWS) return fail(t, "too many symbolic sizes");
    VEC_PUSH(t->a, &t->at, r);
    return INT64_MIN + t->at.n - 1;
}

ext exts_dim(const exts *t, int i) {
    for (int r = 0; r < t->at.n; r++)
        if (t->at.at[r].op == EXT_DIM && t->at.at[r].number == i) return INT64_MIN + r;
    guard_fail(t->a->gd, TN_ERR_INTERNAL, "ext: there is no dim %d", i);
}

bool ext_find_dim(const exts *t, const char *name, size_t n, ext *out) {
    for (int i = 0; i < t->at.n; i++) {
        const ext_row *r = &t->at.at[i];
        if (r->op != EXT_DIM || strlen(r->name) != n || memcmp(r->name, name, n) != 0) continue;
        *out = INT64_MIN + i;
        return true;
    }
    return false;
}

ext ext_dim(exts *t, const char *name, int64_t lo, int64_t hi, int64_t divisor) {
    ext known;
    if (lo < 0 || hi < lo || divisor < 1 || lo % divisor || hi % divisor) return fail(t, "a dim that is no range of sizes");
    if (ext_find_dim(t, name, strlen(name), &known)) {
        const ext_row *r = exts_row(t, known);
        bool same = r->lo == lo && r->hi == hi && r->divisor == divisor;
        return same ? known : fail(t, "two dims of one name");
    }
    return push(t, (ext_row){ .op = EXT_DIM,
                              .name = arena_strdup(t->a, name),
                              .lo = lo,
                              .hi = hi,
                              .divisor = divisor,
                              .size = 1,
                              .number = t->n_dims++ });
}

static int64_t gcd(int64_t x, int64_t y) {
    while (y) {
        int64_t r = x % y;
        x = y, y = r;
    }
    return x;
}

/* A literal of two: the value; false where it does not fit. */
static bool fold(ext_op op, int64_t x, int64_t y, int64_t *out) {
    bool floors = x % (y ? y : 1) && x < 0, ceils = x % (y ? y : 1) && x > 0;
    switch (op) {
    case EXT_ADD:
        return !__builtin_add_overflow(x, y, out);
    case EXT_MUL:
        return !__builtin_mul_overflow(x, y, out);
    case EXT_FLOOR:
        return y >= 1 && (*out = x / y - floors, true);
    case EXT_CEIL:
        return y >= 1 && (*out = x / y + ceils, true);
    case EXT_MIN:
        *out = x < y ? x : y;
        return true;
    case EXT_MAX:
        *out = x > y ? x : y;
        return true;
    default:
        return false;
    }
}

/* The interval of an expression: the least and the largest of what the ends of the operands' give. Every op is monotonic in
 * each operand where the other one stays. */
static void find_bounds(const exts *t, ext_row *r) {
    int64_t x[2] = { ext_lo(t, r->a), ext_hi(t, r->a) }, y[2] = { ext_lo(t, r->b), ext_hi(t, r->b) };
    r->lo = no_bound(true), r->hi = no_bound(false);
    for (int i = 0; i < 4; i++) {
        int64_t v;
        bool known = has_bounds(t, r->a) && has_bounds(t, r->b) && fold(r->op, x[i / 2], y[i % 2], &v) && v >= EXT_LEAST;
        if (!known) {
            r->lo = no_bound(false), r->hi = no_bound(true);
            return;
        }
        if (v < r->lo) r->lo = v;
        if (v > r->hi) r->hi = v;
    }
}

static void find_divisor(const exts *t, ext_row *r) {
    int64_t x = ext_divisor(t, r->a), y = ext_divisor(t, r->b), n;
    r->divisor = 1;
    if (r->op == EXT_MUL)
        r->divisor = __builtin_mul_overflow(x, y, &n) || n == 0 ? 1 : n;
    else if (r->op != EXT_FLOOR && r->op != EXT_CEIL)
        r->divisor = gcd(x, y) ? gcd(x, y) : 1;
    else if (ext_is_lit(r->b) && x % r->b == 0)
        r->divisor = x / r->b ? x / r->b : 1;
}

static int size_of(const exts *t, ext e) { return ext_is_lit(e) ? 1 : exts_row(t, e)->size; }

static ext make(exts *t, ext_op op, ext x, ext y) {
    int64_t v;
    bool swap = op != EXT_FLOOR && op != EXT_CEIL && ext_is_lit(x);
    ext_row r = { .op = op, .a = swap ? y : x, .b = swap ? x : y };
    if (ext_is_lit(x) && ext_is_lit(y)) {
        return fold(op, x, y, &v) && v >= EXT_LEAST ? v : fail(t, "a size does not fit 64 bits");
    }
    find_bounds(t, &r);
    find_divisor(t, &r);
    if (r.lo == r.hi) return r.lo;
    r.size = 1 + size_of(t, x) + size_of(t, y);
    if (r.size > EXT_MOST_SIZE) return fail(t, "a symbolic size of too many terms");
    return push(t, r);
}

/* x = row op literal, of that op. */
static const ext_row *with_literal(const exts *t, ext x, ext_op op) {
    const ext_row *r = ext_is_lit(x) ? NULL : exts_row(t, x);
    return r && r->op == op && ext_is_lit(r->b) ? r : NULL;
}

/* An order of expressions that does not depend on when their rows were made. */
static int compare(const exts *t, ext x, ext y) {
    const ext_row *r = ext_is_lit(x) ? NULL : exts_row(t, x), *s = ext_is_lit(y) ? NULL : exts_row(t, y);
    if (x == y) return 0;
    if (!r || !s) return r ? -1 : s ? 1 : x < y ? -1 : 1; /* literals last */
    if (r->op != s->op) return (int)r->op - (int)s->op;
    if (r->op == EXT_DIM) return r->number - s->number;
    int a = compare(t, r->a, s->a);
    return a ? a : compare(t, r->b, s->b);
}

/* A whole part: x = a / b, where b divides a. */
static const ext_row *whole_part(const exts *t, ext x) {
    const ext_row *r = with_literal(t, x, EXT_FLOOR);
    return r && ext_divisor(t, r->a) % r->b == 0 && exts_row(t, r->a)->op != EXT_ADD ? r : NULL;
}

/* Factors in order, their whole parts over one number: floor(n / 2)*floor(m / 4) is n*m over 8. */
enum { MOST_FACTORS = 16 };
typedef struct product {
    int n;
    ext at[MOST_FACTORS];
    int64_t part;
} product;

static bool has_parts(const exts *t, ext x) { /* factors that products take apart */
    ext_op op = exts_row(t, x)->op;
    return op != EXT_ADD && op != EXT_MUL && op != EXT_FLOOR;
}

static bool add_factors(const exts *t, ext x, product *out) {
    const ext_row *r = exts_row(t, x), *whole = whole_part(t, x);
    if (r->op == EXT_MUL && !ext_is_lit(r->b)) return add_factors(t, r->a, out) && add_factors(t, r->b, out);
    if (whole && has_parts(t, whole->a)) {
        if (!size_mul(out->part, whole->b, &out->part)) return false;
        x = whole->a;
    }
    if (out->n == MOST_FACTORS) return false;
    int i = out->n++;
    for (; i > 0 && compare(t, out->at[i - 1], x) > 0; i--) out->at[i] = out->at[i - 1];
    out->at[i] = x;
    return true;
}

/* What factor x takes of a number that divides the product. */
static int64_t share_of(const exts *t, ext x, int64_t part) { return has_parts(t, x) ? gcd(ext_divisor(t, x), part) : 1; }

/* One row, whatever the order in which it was multiplied, and whose whole parts: ((floor(a / 2)*b)*c)*literal. */
static ext make_product(exts *t, const product *p) {
    int64_t part = p->part, literal = 1; /* of factors, and products of them, that have one value */
    ext e = 0;
    bool any = false;
    for (int i = 0; i < p->n; i++) {
        int64_t own = share_of(t, p->at[i], part);
        ext x = own > 1 ? make(t, EXT_FLOOR, p->at[i], own) : p->at[i];
        bool joined = any && !ext_is_lit(x);
        part /= own;
        if (joined) x = make(t, EXT_MUL, e, x);
        if (!ext_is_lit(x)) {
            e = x, any = true;
            continue;
        }
        if (__builtin_mul_overflow(literal, x, &literal)) return fail(t, "a size does not fit 64 bits");
        any = any && !joined;
    }
    return any ? ext_mul(t, e, literal) : literal;
}

enum { MOST_SUMMANDS = 16 };
typedef struct sum {
    int n;
    struct {
        ext of;
        int64_t times, part; /* of * times / part */
    } at[MOST_SUMMANDS];
    int64_t literal;
} sum;

static bool add_summands(exts *t, ext x, int64_t times, sum *out) {
    const ext_row *r = ext_is_lit(x) ? NULL : exts_row(t, x);
    if (!r) return !__builtin_mul_overflow(x, times, &x) && !__builtin_add_overflow(out->literal, x, &out->literal);
    if (r->op == EXT_ADD) {
        ext last = r->b; /* the table may move */
        return add_summands(t, r->a, times, out) && add_summands(t, last, times, out);
    }
    bool scaled = r->op == EXT_MUL && ext_is_lit(r->b);
    ext of = scaled ? r->a : x;
    if (scaled && __builtin_mul_overflow(times, r->b, &times)) return false;
    if (scaled && exts_row(t, of)->op == EXT_ADD) return add_summands(t, of, times, out);
    const ext_row *whole = whole_part(t, of);
    int64_t part = whole ? whole->b : 1;
    if (whole) of = whole->a;
    product p = { .part = 1 };
    if (!whole && add_factors(t, of, &p) && p.part > 1) {
        part = p.part, p.part = 1;
        of = make_product(t, &p);
    }
    int i = 0, order = 1;
    while (i < out->n && (order = compare(t, out->at[i].of, of)) < 0) i++;
    if (i < out->n && order == 0) {
        int64_t own = out->at[i].part, both = gcd(own, part);
        if (__builtin_mul_overflow(out->at[i].times, part / both, &out->at[i].times) ||
            __builtin_mul_overflow(times, own / both, &times) || __builtin_mul_overflow(own, part / both, &out->at[i].part))
            return false;
        return !__builtin_add_overflow(out->at[i].times, times, &out->at[i].times);
    }
    if (out->n == MOST_SUMMANDS) return false;
    memmove(&out->at[i + 1], &out->at[i], sizeof out->at[0] * (size_t)(out->n++ - i));
    out->at[i].of = of, out->at[i].times = times, out->at[i].part = part;
    return true;
}

/* What divides all of a sum. */
static int64_t content(const sum *all) {
    int64_t g = all->literal;
    for (int i = 0; i < all->n; i++) g = gcd(all->at[i].times, g);
    return g < 0 ? -g : g;
}

/* A sum is one row, whatever the order in which it was added, times what divides all of it: ((a*2 + b) + literal)*2. */
ext ext_add_rows(exts *t, ext x, ext y) {
    if (x == 0 || y == 0) return x ? x : y;
    if (ext_is_lit(x) && ext_is_lit(y)) return make(t, EXT_ADD, x, y);
    sum all = { 0 };
    if (!add_summands(t, x, 1, &all) || !add_summands(t, y, 1, &all)) return make(t, EXT_ADD, x, y);
    ext e = 0;
    bool any = false;
    int left = all.literal != 0;
    for (int i = 0; i < all.n; i++) {
        int64_t both = gcd(all.at[i].part, all.at[i].times < 0 ? -all.at[i].times : all.at[i].times);
        left += all.at[i].times != 0, all.at[i].part /= both, all.at[i].times /= both;
    }
    int64_t by = left > 1 ? content(&all) : 1;
    all.literal /= by;
    for (int i = 0; i < all.n; i++) {
        if (!all.at[i].times) continue;
        ext of = all.at[i].part > 1 ? ext_floor_div(t, all.at[i].of, all.at[i].part) : all.at[i].of;
        ext one = ext_mul(t, of, all.at[i].times / by);
        ext next = any && !ext_is_lit(one) ? make(t, EXT_ADD, e, one) : one;
        if (!ext_is_lit(next)) {
            e = next, any = true;
            continue;
        }
        if (__builtin_add_overflow(all.literal, next, &all.literal)) return fail(t, "a size does not fit 64 bits");
        any = any && ext_is_lit(one); /* else the sum so far went into the literal */
    }
    e = !any ? all.literal : all.literal ? make(t, EXT_ADD, e, all.literal) : e;
    return by > 1 ? ext_mul(t, e, by) : e;
}

/* Of the whole parts among the factors of x *by takes what it can: floor(n / 4)*2 is floor(n / 2). False: there is none. */
static bool absorbs(exts *t, ext x, int64_t by, ext *out) {
    product p = { .part = 1 };
    if (ext_is_lit(x) || !add_factors(t, x, &p)) return false;
    int64_t both = gcd(p.part, by < 0 ? -by : by);
    if (both <= 1) return false;
    p.part /= both;
    *out = ext_mul(t, make_product(t, &p), by / both);
    return true;
}

/* A product of symbolic factors is one row, whatever the order in which it was multiplied: ((a*b)*c)*literal. */
ext ext_mul_rows(exts *t, ext x, ext y) {
    if (ext_is_lit(x) && !ext_is_lit(y)) return ext_mul(t, y, x);
    if (y == 0 || y == 1) return y ? x : 0;
    const ext_row *r = with_literal(t, x, EXT_MUL), *row = ext_is_lit(x) ? NULL : exts_row(t, x);
    if (ext_is_lit(y) && y < 0 && row && row->op == EXT_ADD) { /* so that what is taken off falls away */
        ext a = row->a, b = row->b;
        a = ext_mul(t, a, y);
        return ext_add(t, a, ext_mul(t, b, y));
    }
    ext e;
    if (ext_is_lit(y) && !r && absorbs(t, x, y, &e)) return e;
    if (ext_is_lit(y)) return r ? ext_mul(t, r->a, make(t, EXT_MUL, r->b, y)) : make(t, EXT_MUL, x, y);
    if (r) return ext_mul(t, ext_mul(t, r->a, y), r->b);
    if ((r = with_literal(t, y, EXT_MUL))) return ext_mul(t, ext_mul(t, x, r->a), r->b);
    product p = { .part = 1 };
    if (!add_factors(t, x, &p) || !add_factors(t, y, &p)) return fail(t, "a symbolic size of too many factors");
    return make_product(t, &p);
}

bool ext_divides(exts *t, ext x, ext y, ext *out) {
    if (x == 0 || x == y) return *out = x ? 1 : 0, true;
    if (ext_is_lit(y) && y < 0 && y > EXT_LEAST) return ext_divides(t, x, -y, out) && (*out = ext_mul(t, *out, -1), true);
    if (ext_is_lit(y)) {
        if (y == 0 || ext_divisor(t, x) % y) return false;
        return *out = ext_is_lit(x) ? x / y : ext_floor_div(t, x, y), true;
    }
    const ext_row *r = ext_is_lit(x) ? NULL : exts_row(t, x);
    ext q;
    if (!r || r->op != EXT_MUL) return false;
    if (ext_divides(t, r->a, y, &q)) return *out = ext_mul(t, q, r->b), true;
    if (!ext_is_lit(r->b) && ext_divides(t, r->b, y, &q)) return *out = ext_mul(t, r->a, q), true;
    const ext_row *s = exts_row(t, y); /* a product: one factor after the other */
    return s->op == EXT_MUL && ext_divides(t, x, s->b, &q) && ext_divides(t, q, s->a, out);
}

ext ext_sub(exts *t, ext x, ext y) { return x == y ? 0 : ext_add(t, x, ext_mul(t, y, -1)); }

/* x / y where the factors of x, one after the other, leave nothing of y: floor(h / 4)*w by 2 is floor(h / 8)*w. Sums take what
 * others leave. */
static bool divides_factors(exts *t, ext x, int64_t y, ext *out) {
    const ext_row *r = ext_is_lit(x) ? NULL : exts_row(t, x);
    product p = { .part = 1 }, left;
    if (!r || r->op != EXT_MUL || ext_is_lit(r->b) || !add_factors(t, x, &p) || !size_mul(p.part, y, &p.part)) return false;
    int64_t rest = p.part, own;
    for (int i = 0; i < p.n; i++) rest /= share_of(t, p.at[i], rest);
    left.n = 0, left.part = p.part / rest, *out = 1;
    for (int i = 0; i < p.n; i++) {
        if (has_parts(t, p.at[i]) || (own = gcd(ext_divisor(t, p.at[i]), rest)) == 1)
            left.at[left.n++] = p.at[i];
        else
            rest /= own, *out = ext_mul(t, *out, ext_floor_div(t, p.at[i], own));
    }
    *out = rest == 1 ? ext_mul(t, *out, make_product(t, &left)) : 0;
    return rest == 1;
}

static ext divide(exts *t, ext_op op, ext x, ext y) {
    if (ext_lo(t, y) < 1) return fail(t, "a size is divided by what may be less than 1");
    const ext_row *r = ext_is_lit(y) ? with_literal(t, x, EXT_MUL) : NULL;
    ext whole;
    if (x == y) return 1;
    if (y == 1) return x;
    if (!ext_is_lit(y) && ext_divides(t, x, y, &whole)) return whole;
    const ext_row *s = ext_is_lit(y) ? with_literal(t, x, op) : NULL;
    int64_t both;
    if (s && size_mul(s->b, y, &both)) return divide(t, op, s->a, both); /* a part of a part */
    s = ext_is_lit(y) ? with_literal(t, x, EXT_ADD) : NULL;
    if (s && (ext_divisor(t, s->a) % y == 0 || s->b % y == 0)) { /* (n + 3)/4 is n/4 + 3/4 where 4 divides n or 3 */
        ext rest;
        whole = s->a, rest = make(t, op, s->b, y);
        return ext_add(t, divide(t, op, whole, y), rest);
    }
    if (ext_is_lit(y) && ext_divisor(t, x) % y == 0) op = EXT_FLOOR;
    if (r && r->b % y == 0) return ext_mul(t, r->a, r->b / y);
    if (r && (both = gcd(r->b < 0 ? -r->b : r->b, y)) > 1) return divide(t, op, ext_mul(t, r->a, r->b / both), y / both);
    return ext_is_lit(y) && divides_factors(t, x, y, &whole) ? whole : make(t, op, x, y);
}

ext ext_floor_div(exts *t, ext x, ext y) { return divide(t, EXT_FLOOR, x, y); }
ext ext_ceil_div(exts *t, ext x, ext y) { return divide(t, EXT_CEIL, x, y); }

static ext extreme(exts *t, ext_op op, ext x, ext y) {
    bool known = has_bounds(t, x) && has_bounds(t, y);
    if (x == y || (known && ext_lo(t, x) >= ext_hi(t, y))) return op == EXT_MIN ? y : x;
    if (known && ext_lo(t, y) >= ext_hi(t, x)) return op == EXT_MIN ? x : y;
    return make(t, op, x, y);
}

ext ext_min(exts *t, ext x, ext y) { return extreme(t, EXT_MIN, x, y); }
ext ext_max(exts *t, ext x, ext y) { return extreme(t, EXT_MAX, x, y); }

bool ext_equal(const exts *t, ext x, const exts *u, ext y) {
    if (ext_is_lit(x) || ext_is_lit(y) || (t == u && x == y)) return x == y;
    if (!t || !u) return false;
    const ext_row *r = exts_row(t, x), *s = exts_row(u, y);
    if (r->op != s->op) return false;
    if (r->op == EXT_DIM) return !strcmp(r->name, s->name) && r->lo == s->lo && r->hi == s->hi && r->divisor == s->divisor;
    return ext_equal(t, r->a, u, s->a) && ext_equal(t, r->b, u, s->b);
}

/* ---- values ---- */

bool exts_at(const exts *t, const int64_t *dims, int64_t *out, str *why) {
    for (int i = 0; i < t->at.n; i++) {
        const ext_row *r = &t->at.at[i];
        if (r->op == EXT_DIM) {
            out[i] = dims[r->number];
            if (out[i] >= r->lo && out[i] <= r->hi && out[i] % r->divisor == 0) continue;
            if (!why) return false;
            str_addf(why, "dim %s is %lld: expected %lld to %lld", r->name, (long long)out[i], (long long)r->lo,
                     (long long)r->hi);
            if (r->divisor > 1) str_addf(why, ", a multiple of %lld", (long long)r->divisor);
            return false;
        }
        if (fold(r->op, ext_of(r->a, out), ext_of(r->b, out), &out[i]) && ext_is_lit(out[i])) continue;
        if (!why) return false;
        str_add(why, "a size does not fit 64 bits: ");
        ext_print(t, INT64_MIN + i, false, why);
        return false;
    }
    return true;
}

/* ---- text ---- */

/* mark: what stands before the name of a dim. */
static void print(const exts *t, ext e, bool factor, const char *mark, str *out);

static void print_call(const exts *t, const ext_row *r, const char *mark, str *out) {
    static const char *const names[] = { [EXT_FLOOR] = "floor", [EXT_CEIL] = "ceil", [EXT_MIN] = "min", [EXT_MAX] = "max" };
    str_addf(out, "%s(", names[r->op]);
    print(t, r->a, r->op < EXT_MIN, mark, out);
    str_add(out, r->op < EXT_MIN ? " / " : ", ");
    print(t, r->b, r->op < EXT_MIN, mark, out);
    str_add(out, ")");
}

static void print(const exts *t, ext e, bool factor, const char *mark, str *out) {
    const ext_row *r = !t || ext_is_lit(e) ? NULL : exts_row(t, e);
    bool infix = r && (r->op == EXT_ADD || r->op == EXT_MUL);
    if (!r)
        str_addf(out, "%lld", (long long)e);
    else if (r->op == EXT_DIM)
        str_addf(out, "%s%s", mark, r->name);
    else if (!infix)
        print_call(t, r, mark, out);
    else {
        bool minus = r->op == EXT_ADD && ext_is_lit(r->b) && r->b < 0;
        if (factor) str_add(out, "(");
        print(t, r->a, r->op == EXT_MUL, mark, out);
        str_add(out, r->op == EXT_MUL ? "*" : minus ? " - " : " + ");
        print(t, minus ? -r->b : r->b, true, mark, out);
        if (factor) str_add(out, ")");
    }
}

void ext_print(const exts *t, ext e, bool factor, str *out) { print(t, e, factor, "$", out); }
void ext_print_plain(const exts *t, ext e, str *out) { print(t, e, false, "", out); }

void exts_print_dims(const exts *t, str *out) {
    for (int i = 0; i < t->n_dims; i++) {
        const ext_row *r = exts_row(t, exts_dim(t, i));
        str_addf(out, "%s%s %lld..%lld", i ? ", " : "", r->name, (long long)r->lo, (long long)r->hi);
        if (r->divisor > 1) str_addf(out, " by %lld", (long long)r->divisor);
    }
}
