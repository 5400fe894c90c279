/* ext_prove.c - whether one symbolic size is never less than another, for all values of the dims.
 *
 * In: a table and two exts. Out: true where it is proven. Method: the difference is a polynomial over rows that are neither
 * sums nor products. Divisions, minima and maxima are replaced one after the other by what bounds them from the side that makes
 * the difference smaller. Where that proves nothing, it is tried once more with sizes that are the less the larger a dim is,
 * such as 7 - n, as they stand in products: they are at least 0. Then each dim is its least value plus a number that is not
 * negative: where no coefficient is negative, or what is negative is small enough, nothing is below zero; nor where nothing is
 * at any ends of the intervals of what is in no term twice. Polynomials beyond the fixed size are not proven. */
#include "ir/ext.h"

enum { MOST_TERMS = 64, MOST_FACTORS = 6, MOST_DEPTH = 8 };

typedef struct term {
    int64_t coef;
    int n;
    ext at[MOST_FACTORS]; /* rows, ascending */
} term;
typedef struct poly {
    int n;
    term at[MOST_TERMS];
    bool failed; /* it does not fit */
    bool less;   /* factors as 7 - n are none of its sums */
} poly;

static void clear(poly *p) { p->n = 0, p->failed = false; }

static bool same_factors(const term *x, const term *y) {
    return x->n == y->n && !memcmp(x->at, y->at, sizeof *x->at * (size_t)x->n);
}

static void add_term(poly *p, const term *x) {
    for (int i = 0; i < p->n; i++) {
        if (!same_factors(&p->at[i], x)) continue;
        p->failed |= __builtin_add_overflow(p->at[i].coef, x->coef, &p->at[i].coef);
        if (p->at[i].coef == 0) p->at[i] = p->at[--p->n];
        return;
    }
    if (x->coef == 0) return;
    if (p->n == MOST_TERMS)
        p->failed = true;
    else
        p->at[p->n++] = *x;
}

static void add_scaled(poly *p, const poly *x, int64_t by) {
    p->failed |= x->failed;
    for (int i = 0; i < x->n; i++) {
        term y = x->at[i];
        p->failed |= __builtin_mul_overflow(y.coef, by, &y.coef);
        add_term(p, &y);
    }
}

static void multiply_term(poly *p, const term *x, const term *y) {
    term z = { .n = x->n + y->n };
    if (z.n > MOST_FACTORS) {
        p->failed = true;
        return;
    }
    p->failed |= __builtin_mul_overflow(x->coef, y->coef, &z.coef);
    for (int i = 0, j = 0; i + j < z.n;) {
        bool first = j == y->n || (i < x->n && x->at[i] <= y->at[j]);
        z.at[i + j] = first ? x->at[i] : y->at[j];
        i += first, j += !first;
    }
    add_term(p, &z);
}

static void multiply(poly *out, const poly *x, const poly *y) {
    out->failed |= x->failed || y->failed;
    for (int i = 0; i < x->n; i++)
        for (int j = 0; j < y->n && !out->failed; j++) multiply_term(out, &x->at[i], &y->at[j]);
}

/* A sum from which rows are taken off. */
static bool is_less(const exts *t, ext e) {
    const ext_row *r = ext_is_lit(e) ? NULL : exts_row(t, e);
    if (r && r->op == EXT_ADD) return is_less(t, r->a) || is_less(t, r->b);
    return r && r->op == EXT_MUL && ext_is_lit(r->b) && r->b < 0;
}

static void of_ext(const exts *t, ext e, bool less, poly *out);
static void of_factor(const exts *t, ext e, bool less, poly *out) {
    if (!less || ext_is_lit(e) || exts_row(t, e)->op != EXT_ADD || ext_lo(t, e) < 0 || !is_less(t, e)) {
        of_ext(t, e, less, out);
        return;
    }
    clear(out), out->less = less;
    add_term(out, &(term){ .coef = 1, .n = 1, .at = { e } });
}
static void of_ext(const exts *t, ext e, bool less, poly *out) {
    const ext_row *r = ext_is_lit(e) ? NULL : exts_row(t, e);
    clear(out), out->less = less;
    if (!r)
        add_term(out, &(term){ .coef = e });
    else if (r->op == EXT_ADD || r->op == EXT_MUL) {
        poly *x = ARENA_NEW(t->scratch, poly), *y = ARENA_NEW(t->scratch, poly);
        void (*of)(const exts *t, ext e, bool less, poly *out) = r->op == EXT_MUL ? of_factor : of_ext;
        of(t, r->a, less, x), of(t, r->b, less, y);
        if (r->op == EXT_MUL)
            multiply(out, x, y);
        else
            add_scaled(out, x, 1), add_scaled(out, y, 1);
    } else
        add_term(out, &(term){ .coef = 1, .n = 1, .at = { e } });
}

/* p with row `from` replaced by (by + plus) / over. Each term with it must be a multiple of `over` and have it once. */
static bool replace(const exts *t, const poly *p, ext from, ext by, int64_t plus, int64_t over, poly *out) {
    poly *x = ARENA_NEW(t->scratch, poly), *one = ARENA_NEW(t->scratch, poly);
    of_ext(t, by, p->less, x);
    add_term(x, &(term){ .coef = plus });
    clear(out), out->failed = p->failed, out->less = p->less;
    for (int i = 0; i < p->n; i++) {
        term *rest = &one->at[0];
        int times = 0;
        one->n = 1, *rest = (term){ .coef = p->at[i].coef };
        for (int j = 0; j < p->at[i].n; j++)
            if (p->at[i].at[j] == from)
                times++;
            else
                rest->at[rest->n++] = p->at[i].at[j];
        if (times > 1 || (times && rest->coef % over)) return false;
        if (times) rest->coef /= over;
        if (times)
            multiply(out, one, x);
        else
            add_term(out, rest);
    }
    return !out->failed;
}

/* The sign of all terms with row e, whose other factors are never negative; 0 where there are both. */
static int sign_of(const exts *t, const poly *p, ext e) {
    int sign = 0;
    for (int i = 0; i < p->n; i++) {
        bool has = false;
        for (int j = 0; j < p->at[i].n; j++) {
            has |= p->at[i].at[j] == e;
            if (p->at[i].at[j] != e && ext_lo(t, p->at[i].at[j]) < 0) return 0;
        }
        int own = p->at[i].coef < 0 ? -1 : 1;
        if (!has) continue;
        if (sign && sign != own) return 0;
        sign = own;
    }
    return sign;
}

static int64_t span_of(const exts *t, ext e) { /* hi - lo; INT64_MAX: not known */
    int64_t n;
    return ext_hi(t, e) == INT64_MAX || __builtin_sub_overflow(ext_hi(t, e), ext_lo(t, e), &n) ? INT64_MAX : n;
}

/* Each factor is its least value plus what is at least 0: the sum of what is negative then, at its largest, and the constant.
 */
static bool is_positive(const exts *t, const poly *p) {
    poly *sum = ARENA_NEW(t->scratch, poly), *x = ARENA_NEW(t->scratch, poly), *y = ARENA_NEW(t->scratch, poly),
         *factor = ARENA_NEW(t->scratch, poly);
    for (int i = 0; i < p->n && !sum->failed; i++) {
        clear(x);
        add_term(x, &(term){ .coef = p->at[i].coef });
        for (int j = 0; j < p->at[i].n; j++) {
            int64_t lo = ext_lo(t, p->at[i].at[j]);
            if (lo == INT64_MIN) return false;
            clear(factor), clear(y);
            add_term(factor, &(term){ .coef = lo });
            add_term(factor, &(term){ .coef = 1, .n = 1, .at = { p->at[i].at[j] } });
            multiply(y, x, factor);
            *x = *y;
        }
        add_scaled(sum, x, 1);
    }
    int64_t least = 0;
    for (int i = 0; i < sum->n; i++) {
        int64_t v = sum->at[i].coef;
        if (v > 0 && sum->at[i].n) continue;
        for (int j = 0; j < sum->at[i].n; j++)
            if (span_of(t, sum->at[i].at[j]) == INT64_MAX || __builtin_mul_overflow(v, span_of(t, sum->at[i].at[j]), &v))
                return false;
        if (__builtin_add_overflow(least, v, &least)) return false;
    }
    return !sum->failed && least >= 0;
}

/* Where no term has a row twice, p is linear in each, and so least where each is at an end of its interval. */
static bool is_positive_at_ends(const exts *t, const poly *p) {
    enum { MOST_ROWS = 6 };
    ext row[MOST_ROWS];
    int n = 0;
    for (int i = 0; i < p->n; i++)
        for (int j = 0, k = 0; j < p->at[i].n; j++, k = 0) {
            ext e = p->at[i].at[j];
            while (k < n && row[k] != e) k++;
            if ((k == n && n == MOST_ROWS) || (j && p->at[i].at[j - 1] == e) || span_of(t, e) == INT64_MAX) return false;
            if (k == n) row[n++] = e;
        }
    for (int ends = 0; ends < 1 << n; ends++) {
        int64_t sum = 0;
        for (int i = 0; i < p->n; i++) {
            int64_t v = p->at[i].coef;
            for (int j = 0, k = 0; j < p->at[i].n; j++, k = 0) {
                while (row[k] != p->at[i].at[j]) k++;
                if (__builtin_mul_overflow(v, ends >> k & 1 ? ext_hi(t, row[k]) : ext_lo(t, row[k]), &v)) return false;
            }
            if (__builtin_add_overflow(sum, v, &sum)) return false;
        }
        if (sum < 0) return false;
    }
    return true;
}

static bool never_negative(const exts *t, const poly *p, int depth);

/* The same with row e = floor(a / c): whole pieces of c are made of those of a divisor of c that p has, too. less: less of e is
 * better. */
static bool never_negative_by_pieces(const exts *t, const poly *p, ext e, bool less, int depth) {
    const ext_row *r = exts_row(t, e);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->at[i].n; j++) {
            const ext_row *o = exts_row(t, p->at[i].at[j]);
            if (o->op != EXT_FLOOR || o->a != r->a || !ext_is_lit(o->b) || o->b >= r->b || r->b % o->b) continue;
            poly *x = ARENA_NEW(t->scratch, poly), *y = ARENA_NEW(t->scratch, poly);
            add_scaled(y, p, r->b / o->b), y->less = p->less;
            if (replace(t, y, e, p->at[i].at[j], less ? 0 : 1 - r->b / o->b, r->b / o->b, x) && never_negative(t, x, depth + 1))
                return true;
        }
    return false;
}

/* The same with row e, a division, minimum or maximum, replaced by its bounds. */
static bool never_negative_without(const exts *t, const poly *p, ext e, int depth) {
    const ext_row *r = exts_row(t, e);
    int sign = sign_of(t, p, e);
    poly *x = ARENA_NEW(t->scratch, poly), *y = ARENA_NEW(t->scratch, poly);
    if (sign == 0) return false;
    if (r->op == EXT_FLOOR || r->op == EXT_CEIL) {
        int64_t c = r->b;
        if (!ext_is_lit(c)) return false;
        if (r->op == EXT_FLOOR && never_negative_by_pieces(t, p, e, sign < 0, depth)) return true;
        bool exact = ext_divisor(t, r->a) % c == 0;
        int64_t off = exact ? 0 : r->op == EXT_FLOOR ? (sign > 0 ? 1 - c : 0) : (sign > 0 ? 0 : c - 1);
        add_scaled(y, p, c), y->less = p->less; /* c times as much has the same sign */
        return replace(t, y, e, r->a, off, c, x) && never_negative(t, x, depth + 1);
    }
    if (!replace(t, p, e, r->a, 0, 1, x) || !replace(t, p, e, r->b, 0, 1, y)) return false;
    bool both = (r->op == EXT_MIN) == (sign > 0), a = never_negative(t, x, depth + 1);
    return both ? a && never_negative(t, y, depth + 1) : a || never_negative(t, y, depth + 1);
}

static bool never_negative(const exts *t, const poly *p, int depth) {
    if (p->failed || depth > MOST_DEPTH) return false;
    if (is_positive(t, p) || is_positive_at_ends(t, p)) return true;
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->at[i].n; j++)
            if (exts_row(t, p->at[i].at[j])->op > EXT_MUL && never_negative_without(t, p, p->at[i].at[j], depth)) return true;
    return false;
}

/* Where 7 - n is a factor, what p has of n alone becomes 7 less as many of these. */
static void replace_dims(const exts *t, poly *p) {
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->at[i].n; j++) {
            const ext_row *sum = exts_row(t, p->at[i].at[j]);
            const ext_row *r = sum->op == EXT_ADD && ext_is_lit(sum->b) && !ext_is_lit(sum->a) ? exts_row(t, sum->a) : NULL;
            if (!r || r->op != EXT_MUL || r->b != -1) continue;
            for (int k = 0; k < p->n; k++) {
                term was = p->at[k];
                int64_t times;
                if (was.n != 1 || was.at[0] != r->a || __builtin_mul_overflow(was.coef, sum->b, &times)) continue;
                add_term(p, &(term){ .coef = times });
                add_term(p, &(term){ .coef = -was.coef, .n = 1, .at = { p->at[i].at[j] } });
                add_term(p, &(term){ .coef = -was.coef, .n = 1, .at = { r->a } });
                return;
            }
        }
}

bool ext_never_less(const exts *t, ext x, ext y) {
    if (x == y) return true;
    if (ext_lo(t, x) >= ext_hi(t, y) && (ext_is_lit(y) || ext_hi(t, y) < INT64_MAX)) return true;
    if (ext_is_lit(x) && ext_is_lit(y)) return x >= y;
    bool proven = false;
    for (int less = 0; less < 2 && !proven; less++) {
        poly *p = ARENA_NEW(t->scratch, poly), *q = ARENA_NEW(t->scratch, poly);
        of_ext(t, x, less, p), of_ext(t, y, less, q);
        add_scaled(p, q, -1);
        if (less) replace_dims(t, p);
        proven = never_negative(t, p, 0);
        arena_reset(t->scratch);
    }
    return proven;
}

bool ext_is_size(exts *t, ext e) {
    if (ext_lo(t, e) >= 0) return true;
    if (ext_is_lit(e) || !ext_never_less(t, e, 0)) return false;
    t->at.at[ext_index(e)].lo = 0;
    return true;
}
