/* ext.h - extents, coefficients, offsets and sizes of kernels: a literal, or a row of a table of parameters.
 *
 * An ext is 64 bits wide. A literal is itself; the lowest EXT_MOST_ROWS numbers stand for the rows of a table, so that code for
 * literal kernels reads and computes exts as the integers that they are. Whoever reads a field of a kernel as a number first
 * makes sure that the kernel has no parameters (kernel.params is NULL) or takes them by this interface.
 *
 * A row is a dim (a name with a range, given before each run) or an expression of earlier rows and literals. Equal expressions
 * are one row. Each row has an interval that holds for all values of the dims, and a number that divides all its values.
 *
 * In: names and ranges of dims, arithmetic. Out: values, for given dims; proofs, for all of them; text. The table's arena owns
 * everything. Arithmetic that does not fit leaves its reason in exts.problem and gives 0: look once, at the end. */
#ifndef TN_IR_EXT_H
#define TN_IR_EXT_H

#include "base/base.h"

typedef int64_t ext;

enum { EXT_MOST_ROWS = 1 << 16, EXT_MOST_SIZE = 256 };
#define EXT_LEAST (INT64_MIN + EXT_MOST_ROWS) /* the least literal */

typedef enum ext_op { EXT_DIM, EXT_ADD, EXT_MUL, EXT_FLOOR, EXT_CEIL, EXT_MIN, EXT_MAX } ext_op; /* FLOOR, CEIL: of a / b */
typedef struct ext_row {
    ext_op op;
    ext a, b;
    const char *name; /* EXT_DIM */
    int64_t lo, hi;   /* of all its values; at the ends of int64_t: no bound is known */
    int64_t divisor;  /* divides all of them */
    int number;       /* EXT_DIM: among the dims */
    int size;         /* rows and literals of the expression, written out */
} ext_row;
typedef struct exts {
    arena *a, *scratch; /* scratch: of one proof */
    VEC(ext_row) at;
    int n_dims;
    const char *problem; /* the first, or NULL */
} exts;

static inline bool ext_is_lit(ext e) { return e >= EXT_LEAST; }

exts *exts_make(arena *a);
exts *exts_clone(const exts *t, arena *a);
bool exts_equal(const exts *x, const exts *y); /* NULL: no table */
const ext_row *exts_row(const exts *t, ext e); /* of what is no literal */

/* lo <= value <= hi, a multiple of `divisor`; 0 <= lo. The name is copied. A dim of the same name and range is that dim. */
ext ext_dim(exts *t, const char *name, int64_t lo, int64_t hi, int64_t divisor);
ext exts_dim(const exts *t, int i); /* the i-th */
bool ext_find_dim(const exts *t, const char *name, size_t n, ext *out);

/* Literals are folded: t may be NULL where both operands are literals. Division is by what is at least 1 for all values. */
ext ext_add_rows(exts *t, ext x, ext y); /* of which one is a row, or whose sum does not fit */
ext ext_mul_rows(exts *t, ext x, ext y);
static inline ext ext_add(exts *t, ext x, ext y) {
    ext v;
    bool lit = ext_is_lit(x) && ext_is_lit(y) && !__builtin_add_overflow(x, y, &v) && ext_is_lit(v);
    return lit ? v : ext_add_rows(t, x, y);
}
static inline ext ext_mul(exts *t, ext x, ext y) {
    ext v;
    bool lit = ext_is_lit(x) && ext_is_lit(y) && !__builtin_mul_overflow(x, y, &v) && ext_is_lit(v);
    return lit ? v : ext_mul_rows(t, x, y);
}
ext ext_sub(exts *t, ext x, ext y);
ext ext_floor_div(exts *t, ext x, ext y);
ext ext_ceil_div(exts *t, ext x, ext y);
/* Whether x is known to be a multiple of y, and of what. */
bool ext_divides(exts *t, ext x, ext y, ext *out);
ext ext_min(exts *t, ext x, ext y);
ext ext_max(exts *t, ext x, ext y);

/* The same expression of dims of the same names, perhaps of another table. */
bool ext_equal(const exts *t, ext x, const exts *u, ext y);

/* For all values of the dims. */
int64_t ext_lo(const exts *t, ext e);
int64_t ext_hi(const exts *t, ext e);
int64_t ext_divisor(const exts *t, ext e); /* 0 where e is 0 */
/* Whether x >= y is proven: false says nothing. */
bool ext_never_less(const exts *t, ext x, ext y);
bool ext_is_size(exts *t, ext e); /* 0 or more; the interval of a row knows it from then on */

/* Values of all rows into out[rows], for dims[n_dims]. False, with the reason unless why is NULL, where a dim is out of its
 * range or a value does not fit 64 bits. */
bool exts_at(const exts *t, const int64_t *dims, int64_t *out, str *why);
static inline int64_t ext_of(ext e, const int64_t *rows) { return ext_is_lit(e) ? e : rows[e - INT64_MIN]; }
static inline int ext_index(ext e) { return (int)(e - INT64_MIN); } /* of what is no literal */

/* "$batch*64": sums and products, floor(x / y), ceil(x / y), min(x, y), max(x, y). `factor`: in brackets where it is a sum or a
 * product, so that "*" may follow. t is NULL: e is a literal. */
void ext_print(const exts *t, ext e, bool factor, str *out);
void ext_print_plain(const exts *t, ext e, str *out); /* "batch*64": dims without the $ */
/* "batch 1..64, length 1..512 by 8": the dims, as kernels and graphs declare them. */
void exts_print_dims(const exts *t, str *out);

#endif
