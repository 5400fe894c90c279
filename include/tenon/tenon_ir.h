/* tenon_ir.h - UNSTABLE: the inside of the compiler, for tools and tests: the op table, passes by name, the reference
 * evaluator.
 *
 * Everything here may change in any release. Threads: a graph is used by one thread at a time, as in tenon.h. */
#ifndef TENON_IR_H
#define TENON_IR_H

#include "tenon/tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the op table -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    const char *kind;   /* "elementwise float", "reduce", "move", ... */
    const char *detail; /* elementwise: the expression over x, y, z; others: the attributes */
    const char *doc;
    int arity;            /* -1 = any number */
    int flops;            /* of one element (elementwise only) */
    double ulp;           /* bound of the f32 kernels' error, in units in the last place (elementwise only) */
    const char *operands; /* their names, separated by spaces; "xs" = any number; NULL = not built by tn_op */
    const char *builder;  /* attributes of tn_op: words "name:type", with "?" where it may be left out; NULL as above */
    const char *gradient; /* elementwise: of each operand, separated by "; ", over G (incoming), X, Y, Z and O (the result) */
} tn_ir_op;
TN_API int tn_ir_n_ops(void);
TN_API TN_CHECK tn_status tn_ir_get_op(int i, tn_ir_op *out_op);

/* ---- passes -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name, *doc, *regions;
    const char *stage; /* canon and lower: the standard list; gpu, cpu, target: before kernels are made for one;
                           asked: on request, for they round */
} tn_ir_pass;
TN_API int tn_ir_n_passes(void);
TN_API TN_CHECK tn_status tn_ir_get_pass(int i, tn_ir_pass *out_pass);
/* Runs passes on the graph in place: "fold,cse" in that order, "all" the standard list until nothing changes, "" only drops
 * what no output needs. check != 0 verifies the graph after each. Tensors held by the caller are invalid afterwards: values are
 * renumbered. When a pass fails, the graph is unchanged. */
TN_API TN_CHECK tn_status tn_ir_run_passes(tn_graph *g, const char *passes, int check);

/* ---- looking at a graph -------------------------------------------------------------------------------------------------- */

typedef struct {
    tn_tensor tensor;
    const char *op;
    const char *name;  /* of inputs and states; the label or NULL elsewhere */
    const char *where; /* "file:line" of the builder's call, or NULL */
    tn_dtype dtype;
    tn_shape shape;
    int n_operands;
    const uint32_t *operands; /* ids of tensors of the same graph; valid until the graph changes */
} tn_ir_value;
/* Values 0 .. n-1 in the order in which they were built: operands come before their users. */
TN_API int tn_ir_n_values(const tn_graph *g);
TN_API TN_CHECK tn_status tn_ir_get_value(const tn_graph *g, int i, tn_ir_value *out_value);
/* What the op of value i is given beside operands (src/ir/ops.def documents attr), and the array of a constant or a state. */
typedef struct {
    const int64_t *attr;
    int n_attr;
    int splat;  /* 1 = a constant with one value everywhere: imm (floats) or imm_int */
    double imm; /* also what op pad fills in */
    int64_t imm_int;
    const void *data; /* row-major; NULL: none, a state of zeros */
    int body;         /* the body that the value belongs to; 0 = the graph itself */
} tn_ir_detail;
TN_API TN_CHECK tn_status tn_ir_get_detail(const tn_graph *g, int i, tn_ir_detail *out_detail);
/* A symbolic dim of a shape or an attribute (a handle, see tn_dim), as an expression. TN_ERR_INVAL: it is a number, or no dim
 * of g. */
typedef struct {
    const char *op;   /* "dim"; or "add", "mul", "floor_div", "ceil_div", "min" or "max" of x and y */
    const char *name; /* of a dim; else NULL */
    int64_t x, y;     /* numbers, or handles */
    int64_t lo, hi;   /* all values are between them; at the ends of int64_t: no bound is known */
    int64_t multiple_of;
} tn_ir_dim;
TN_API TN_CHECK tn_status tn_ir_get_dim(const tn_graph *g, int64_t handle, tn_ir_dim *out_dim);
/* The handle of dim i of g, in the order in which they were made; 0: there are no more. */
TN_API int64_t tn_ir_dim_handle(const tn_graph *g, int i);
/* g for values of all its dims: sizes are numbers, values have the ids that they have in g. NULL on an error (tn_ctx_error).
 * Arrays of constants and states stay g's, which is freed after it. */
typedef struct {
    const char *name;
    int64_t size;
} tn_ir_size;
TN_API tn_graph *tn_ir_at(const tn_graph *g, const tn_ir_size *sizes, int n);

/* Bodies of if and while are numbered from 1 (attr of these ops): ids of their parameters and results. */
typedef struct {
    const uint32_t *params, *results;
    int n_params, n_results;
} tn_ir_body;
TN_API TN_CHECK tn_status tn_ir_get_body(const tn_graph *g, int body, tn_ir_body *out_body);
/* Outputs and state updates, in declaration order. name is NULL for an update without a name; state is poisoned for a pure
 * output. */
TN_API int tn_ir_n_outputs(const tn_graph *g);
TN_API TN_CHECK tn_status tn_ir_get_output(const tn_graph *g, int i, const char **out_name, tn_tensor *out_value,
                                           tn_tensor *out_state);

/* ---- the reference evaluator --------------------------------------------------------------------------------------------- */

/* Values of every tensor, computed in double (floats, without rounding between ops) or exactly (integers, bool). */
typedef struct tn_ir_eval tn_ir_eval;
/* Every input must be bound (typed, row-major); a state that is not bound has its initial value. */
TN_API TN_CHECK tn_status tn_ir_evaluate(tn_graph *g, const tn_binding *inputs, int n, tn_ir_eval **out_eval);
/* Row-major doubles (integers converted), or NULL when x is no value of the graph. Valid until tn_ir_eval_free. */
TN_API const double *tn_ir_eval_values(tn_ir_eval *e, tn_tensor x, int64_t *out_n);
TN_API void tn_ir_eval_free(tn_ir_eval *e); /* before its graph's context; NULL is fine */

typedef struct {
    int ok;                  /* every element within its bound */
    int64_t index;           /* the element that misses its bound most, or comes closest to it; -1 for an empty tensor */
    double got, want, bound; /* at that element */
    double max_abs;          /* largest difference anywhere */
} tn_ir_difference;
/* Compares one computed tensor with its op evaluated in double on the *computed* operands: an error of an earlier op is not
 * blamed on a later one. operands[k] and got are typed, row-major arrays. The bound of an element is the op's own (its row in
 * the op table, n * eps * sum |a||b| for contractions, 0 for what must be exact) plus what one rounding of each operand can
 * change. Results of if, while and scan (of a proj, operands are those of the op that it projects): the bound is 8 times what
 * moving each result in the bodies at random within its own bound changes, at most of 8 evaluations. */
TN_API TN_CHECK tn_status tn_ir_compare(tn_graph *g, tn_tensor x, const void *const *operands, const void *got,
                                        tn_ir_difference *out_difference);

/* The text of a plan, as tn_program_text prints it at stage "plan" (n bytes, any; file names it in messages): reads it and
 * checks it and its kernels, then prints stage "plan" (the same text), "deps" or "kernels"; of a plan for GPUs "opencl" or
 * "cuda", too. *out_text is freed by tn_string_free. TN_ERR_PARSE: "file:line:col: expected ..". TN_ERR_INVAL: the problems of
 * the plan, one a line, or no such stage. */
TN_API TN_CHECK tn_status tn_ir_plan_text(tn_ctx *ctx, const char *text, size_t n, const char *file, const char *stage,
                                          char **out_text);

/* One element of a typed array as a double, and back (rounded to nearest even; integers truncate and saturate). */
TN_API double tn_ir_load(tn_dtype t, const void *data, int64_t i);
TN_API void tn_ir_store(tn_dtype t, void *data, int64_t i, double v);

#ifdef __cplusplus
}
#endif
#endif
