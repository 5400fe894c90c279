/* import.h - what the ops of an import share: values, calls, the table of ops, and helpers that read operands and attributes.
 *
 * A value is a tensor of the graph, or an array that is known at import ("host"), which becomes a constant of the graph when a
 * tensor is asked for. A handler reads its operands and attributes and puts its results. What it cannot do it refuses: that
 * jumps to the importer, which notes op, node and reason, and goes on with the next node. Attributes that a handler does not
 * ask for are refused afterwards: what is not understood is not ignored. */
#ifndef ONNX_IMPORT_H
#define ONNX_IMPORT_H

#include "onnx.h"
#include "tenon/tenon_index.h"
#include "tenon/tenon_nn.h"

/* What DequantizeLinear made a value of: whole * scale. */
typedef struct onnx_steps {
    tn_tensor whole;   /* i32, less the zero point */
    tn_tensor filters; /* the same as onnx_filters, where it may be weights of a convolution; else no tensor */
    tn_tensor scale;   /* f32: a scalar, or one for each index of axis */
    int axis;          /* -1: a scalar */
    tn_tensor bytes;   /* i32, with the one zero point that all have, where that is known; else no tensor */
    int zero;          /* it */
    const void *data;  /* bytes whose zero points are known to be 0; NULL: they are not, or the bytes are not known */
    int elem;          /* of data */
} onnx_steps;
/* Bytes x with a zero point z times weights w: the sum of (x - z) w is that of x w, of which the parts are narrow, less z times
 * the sum of w. */
typedef struct onnx_zero {
    int value;      /* of the first operand, also where it is padded */
    tn_tensor less; /* i32, one for each result of a row: to be subtracted from the sums; or no tensor */
} onnx_zero;
typedef struct onnx_body onnx_body;
struct onnx_body { /* of a loop of the graph, while it is built */
    const onnx_body *outer;
};
typedef struct onnx_val onnx_val;
struct onnx_val {
    tn_onnx_kind kind;
    int elem;
    tn_shape shape;
    int64_t n;            /* elements */
    tn_tensor t;          /* id 0: not in the graph (yet) */
    const void *data;     /* row-major, as Tenon holds the type; not aligned; NULL: not known */
    const int64_t *sizes; /* of i64 or i32, where data is NULL: numbers and at least one size that a run gives; or NULL */
    uint64_t deps;        /* inputs of the model that the value depends on: bit i of tn_onnx_input(i), 63 for all after it */
    bool refused;         /* what it comes from was */
    onnx_val **items;     /* of a sequence, or the value of an optional */
    int n_items;
    const onnx_steps *steps; /* of 8 bits; NULL: the value is not of that kind */
    const onnx_body *made;   /* the body of a loop that t belongs to; NULL: the graph itself */
};

typedef struct onnx_scope onnx_scope;
typedef struct onnx_noted onnx_noted;
typedef struct onnx_row onnx_row;
typedef const onnx_row *onnx_finder(const char *domain, const char *op); /* NULL: there is none */

typedef struct onnx_import {
    tn_onnx_model *m;
    onnx_env *env;
    tn_onnx_opts opts;
    onnx_finder *find_row;
    tn_graph *g;
    onnx_scope *scope;
    const onnx_opset *opsets;
    int n_opsets, depth, done; /* done: nodes */
    const char *path;          /* of the subgraph, for messages: "loop/" */
    onnx_noted *noted, **last;
    int n_noted;
    uint64_t needs;        /* inputs whose values sizes depend on */
    uint64_t constants;    /* inputs that are constants */
    bool *seen;            /* of each range: an input has such a dim */
    bool stopped;          /* the graph itself has an error */
    const onnx_body *body; /* whose nodes are imported; NULL: the graph's own, or turns that are written out */
} onnx_import;

typedef struct onnx_call {
    onnx_import *im;
    const onnx_node *node;
    const onnx_row *row;
    int opset;
    tn_graph *g;  /* where tensors go: the graph, or one that is evaluated at once */
    bool folding; /* the latter */
    onnx_val **in, **out;
    int n_in, n_out;
    uint64_t asked; /* attributes that the handler asked for */
} onnx_call;

typedef enum {
    ROW_HOST = 1,   /* results need no graph where the operands are known */
    ROW_MOVE = 2,   /* values go through unchanged: any type */
    ROW_ORDER = 4,  /* right for types held in a wider one */
    ROW_WRAP = 8,   /* the same, after the result is brought back into the type's range; also for uint64 */
    ROW_KEEP = 16,  /* never computed at import: work that is not linear in its operands */
    ROW_LISTS = 32, /* takes sequences and optionals */
    ROW_ANY = 64,   /* its handler looks at the types */
    ROW_DIMS = 128, /* operands may have sizes that a run gives: its handler calculates with onnx_dim alone */
    ROW_TAKE = 256, /* results are elements of the first operand (Concat: of all; Where: of the last two) */
} onnx_row_flags;

/* Texts are in the row: a pointer to one takes four times its room in the library, for the loader sets it. */
struct onnx_row {
    void (*run)(onnx_call *c);
    union {
        tn_tensor (*unary)(tn_tensor);
        tn_tensor (*binary)(tn_tensor, tn_tensor);
    } build;
    char name[35];
    int8_t min_in, max_in; /* max -1: any number */
    uint8_t domain;        /* the length of its name: all are different */
    uint16_t flags;
};
onnx_finder onnx_find_row;
/* table.c has onnx_find_row; it is given, since ops with subgraphs need the importer in turn. */
tn_status onnx_import_model(tn_onnx_model *m, const tn_onnx_opts *opts, onnx_finder *find_row, tn_graph **out);
void onnx_op_unary(onnx_call *c);
void onnx_op_binary(onnx_call *c);

void ONNX_NORETURN onnx_refuse(onnx_call *c, const char *fmt, ...) ONNX_PRINTF(2, 3);
void ONNX_NORETURN onnx_refuse_graph(onnx_call *c); /* for what c->g says */

/* ---- operands ---- */

bool onnx_has(const onnx_call *c, int i); /* operand i is given */
onnx_val *onnx_in(onnx_call *c, int i);   /* refuses where it is not */
tn_tensor onnx_t(onnx_call *c, int i);    /* as a tensor of c->g */
tn_tensor onnx_val_tensor(onnx_call *c, onnx_val *v);
tn_shape onnx_shape(onnx_call *c, int i);
int onnx_rank(onnx_call *c, int i);
int onnx_elem(onnx_call *c, int i);
bool onnx_is_float(int elem);
/* Known values; refuses, and notes which inputs would have to be given. */
const void *onnx_known(onnx_call *c, int i, const char *what);
int64_t *onnx_known_ints(onnx_call *c, int i, const char *what, int *out_n); /* any integer type */
int64_t onnx_known_int(onnx_call *c, int i, const char *what);               /* one element */
double *onnx_known_floats(onnx_call *c, int i, const char *what, int *out_n);
double onnx_load(tn_dtype t, const void *data, int64_t i); /* as tn_ir_load, of arrays that need not be aligned */

onnx_val *onnx_named(onnx_call *c, const char *name, size_t n); /* the value of that name; NULL: there is none */

/* ---- sizes that a run gives (dims.c): handles of tn_dim, in shapes and in onnx_val.sizes ---- */

#define ONNX_LEAST (INT64_MIN + (1 << 16)) /* the least number: handles are below */
static inline bool onnx_is_dim(int64_t size) { return size < ONNX_LEAST; }
bool onnx_is_open(tn_shape s); /* a dim of it is such a size */
/* x and y as op says: + - * / (down; y > 0) ^ (up) < (the smaller) > (the larger). */
int64_t onnx_dim(onnx_call *c, char op, int64_t x, int64_t y);
int64_t onnx_dim_product(onnx_call *c, const int64_t *dims, int n);
/* Between which all values are. */
void onnx_dim_range(onnx_call *c, int64_t x, int64_t *out_lo, int64_t *out_hi);
void onnx_put_sizes(onnx_call *c, int k, int elem, tn_shape shape, const int64_t *v); /* in the arena */
/* Computes a node whose operands are known but for such sizes; fold does it where all are known. False: it goes into the graph.
 */
bool onnx_fold_sizes(onnx_call *c, bool (*fold)(onnx_call *c));
/* As onnx_known_ints and onnx_ints_of, such sizes among them; what is less than ONNX_LEAST is that. */
int64_t *onnx_sizes(onnx_call *c, int i, const char *what, int *out_n);
const int64_t *onnx_sizes_of(onnx_call *c, const char *name, int i, int *out_n);

/* ---- attributes ---- */

const onnx_attr *onnx_attr_find(onnx_call *c, const char *name); /* NULL when not given */
int64_t onnx_attr_int(onnx_call *c, const char *name, int64_t fallback);
double onnx_attr_float(onnx_call *c, const char *name, double fallback);
bool onnx_attr_is(onnx_call *c, const char *name, const char *fallback, const char *word); /* a string */
const int64_t *onnx_attr_ints(onnx_call *c, const char *name, int *out_n);                 /* NULL when not given */
int64_t onnx_attr_need_int(onnx_call *c, const char *name);
int onnx_axis(onnx_call *c, int64_t axis, int rank); /* 0 .. rank-1; negative counts from the end */
/* The attribute, or (opset since and later) the operand i of the same meaning. NULL: neither. */
const int64_t *onnx_ints_of(onnx_call *c, const char *name, int i, int *out_n);

/* ---- results ---- */

/* elem ELEM_NONE: that of the first operand, if it is held in t's dtype. */
void onnx_put(onnx_call *c, int k, tn_tensor t, int elem);
void onnx_put_known(onnx_call *c, int k, int elem, tn_shape shape, const void *data); /* data in the arena */
void onnx_put_ints(onnx_call *c, int k, const int64_t *v, int n);                     /* i64[n]; n -1: a scalar */
void onnx_put_val(onnx_call *c, int k, onnx_val *v);
bool onnx_wants(const onnx_call *c, int k); /* result k has a name */
onnx_val *onnx_val_new(onnx_import *im, tn_onnx_kind kind, int elem);
onnx_val *onnx_val_of(onnx_call *c, tn_tensor t, int elem); /* for items of sequences */

/* ---- small graphs ---- */

tn_tensor onnx_scalar(tn_tensor like, double value); /* of that dtype, rank 0 */
tn_tensor onnx_ints_const(onnx_call *c, const int64_t *v, int n);
tn_shape onnx_dims(const int64_t *dims, int rank);
int64_t onnx_count_of(tn_shape s);
tn_tensor onnx_wrap(tn_tensor x, int elem);                      /* a held value back into the range of its type */
tn_tensor onnx_wrap_bits(tn_tensor x, int bits, bool is_signed); /* the low bits, as a number */
bool onnx_elem_wraps(int elem);                                  /* a widened integer, not a string */
tn_tensor onnx_take_along(onnx_call *c, tn_tensor x, tn_tensor index, int axis); /* index clamped */
/* x f32 as numbers of u8 (still f32), by its own range: the scale and the zero point (f32 scalars). */
tn_tensor onnx_dynamic_quantise(onnx_call *c, tn_tensor x, tn_tensor *out_scale, tn_tensor *out_zero);
/* Operand i as i32 less its zero point, operand `zero`: one number, or one for each index of axis. */
tn_tensor onnx_less_zero_point(onnx_call *c, int i, int zero, int axis);
/* The same of weights [O,C,..K..], with zero points for each O: [O,..K..,C]. */
tn_tensor onnx_filters(onnx_call *c, int i, int zero);
/* Operands a and b as integers (b as filters where it has more than two axes), when both were quantised to 8 bits, a by one
 * scale, b by one or one for each index of axis, and sums of that many products fit i32. The product of the scales as f32[n] or
 * f32[]. False: they are floats. */
/* The zero point in operand i, if there is one and it is known; absent, 0. Bytes of operand i, where all its zero points are 0.
 */
bool onnx_known_zero(onnx_call *c, int i, int *out);
const void *onnx_narrow_data(onnx_call *c, int i, int zero);
bool onnx_as_steps(onnx_call *c, int a, int b, int axis, int64_t terms, tn_tensor *out_a, tn_tensor *out_b,
                   tn_tensor *out_scale, onnx_zero *out_zero);
void onnx_cast_text(onnx_call *c, int to);                     /* operand 0: from or to strings, known */
tn_tensor onnx_round_to(tn_tensor x, int elem, bool saturate); /* f32 to a small floating-point type, as it is held */
tn_tensor onnx_not_negative(tn_tensor index, int64_t size);    /* index + size where it is negative */
tn_tensor onnx_accurate(tn_tensor x); /* halves as f32, for what takes several roundings; others as they are */

/* ---- subgraphs ---- */

/* Imports a graph attribute's nodes in a scope of its own: in[i] are its inputs. The results go to out (as many as it has
 * outputs, which must be n_out). */
void onnx_inline(onnx_call *c, const onnx_attr *body, onnx_val **in, int n_in, onnx_val **out, int n_out);
int onnx_body_outputs(onnx_call *c, const onnx_attr *body);
void onnx_call_function(onnx_call *c, const onnx_function *fn);
/* body(arg); where that refuses what there is another way for, the refusal is forgotten and its status returned. */
tn_status onnx_attempt(onnx_call *c, void (*body)(void *arg), void *arg);
bool onnx_known_bool(onnx_call *c, onnx_val *v, const char *what);
onnx_val *onnx_bool(onnx_call *c, bool v);
bool onnx_alike(const onnx_val *a, const onnx_val *b);                /* tensors of one type and shape */
onnx_val *onnx_stacked(onnx_call *c, onnx_val **at, int n, int axis); /* along a new axis */
onnx_val *onnx_part(onnx_call *c, onnx_val *v, int axis, int64_t i);  /* element i of an axis, without it */

#endif
