/* graph.h - the graph language: typed values computed by ops from src/ir/ops.def.
 *
 * In: calls of graph_add (from the builders, the parser, grad, passes). Out: arrays of nodes that print, parse, verify,
 * evaluate. A value is the 4-byte id of the node that makes it; 0 is nil. Between passes ids are in topological order and every
 * node is reachable from an output (graph_compact); a pass may append nodes and redirect uses, and leaves compaction to its
 * runner. The graph's arena owns nodes, dims, attributes, names and constants. */
#ifndef TN_IR_GRAPH_H
#define TN_IR_GRAPH_H

#include "base/base.h"
#include "ir/dtype.h"
#include "ir/ext.h"

typedef enum op_code {
    OP_NIL,
#define UNARY(name, ...) OP_##name,
#define BINARY(name, ...) OP_##name,
#define TERNARY(name, ...) OP_##name,
#define OP(name, ...) OP_##name,
#include "ir/ops.def"
    N_OPS
} op_code;

/* The class decides shape rule and lowering. CL_FLT .. CL_ANY are the dtype classes of elementwise ops. */
typedef enum op_class {
    CL_NIL,
    CL_FLT,
    CL_NUM,
    CL_BIT,
    CL_INT,
    CL_LOG,
    CL_CMP,
    CL_ANY,
    CL_CAST,
    CL_REDUCE,
    CL_ARG,
    CL_MOVE,
    CL_FOLD,
    CL_JOIN,
    CL_DOT,
    CL_GATHER,
    CL_SCATTER,
    CL_SOURCE,
    CL_RANDOM,
    CL_CTRL
} op_class;

typedef struct op_info {
    const char *name;
    op_class cls;
    int arity;              /* -1 = any number */
    int flops;              /* of one element (elementwise only) */
    double ulp;             /* f32 error bound (elementwise only) */
    double lo, hi;          /* operand range for tests (elementwise only) */
    const char *expr;       /* elementwise: the expression's text; others: the attributes' meaning */
    const char *doc, *grad; /* grad: the gradients' text */
} op_info;
const op_info *op_get(op_code op);
op_code op_find(const char *name); /* OP_NIL when there is none */
/* Functions with an error of their own, and sums, which may take a product before it is rounded: what kalu may say of. */
static inline bool op_is_approximable(op_code op) {
    return op == OP_add || op == OP_sub || (op_get(op)->cls == CL_FLT && op_get(op)->ulp > 0.5);
}
static inline bool op_is_elementwise(op_code op) { return op_get(op)->cls >= CL_FLT && op_get(op)->cls <= CL_ANY; }
static inline bool op_is_scatter(op_code op) { return op_get(op)->cls == CL_SCATTER; }
static inline bool op_is_move(op_code op) { return op_get(op)->cls == CL_MOVE; }

typedef uint32_t val;

typedef struct node {
    uint8_t op; /* op_code */
    uint8_t dtype;
    uint8_t rank;
    uint8_t splat; /* const with one value everywhere: imm */
    uint16_t n_attr;
    uint16_t region; /* 0 = the graph itself */
    int32_t n_in;
    val *in;             /* [n_in]; change through graph_set_in only */
    uint32_t *in_use;    /* [n_in] the operand's record in its value's use list, + 1; 0 = none */
    const ext *dims;     /* [rank]; a negative one is a row of graph.params */
    const int64_t *attr; /* [n_attr], see ops.def; places and sizes may be rows of graph.params */
    double imm;          /* const splat (floats), pad value */
    int64_t imm_int;     /* const splat (integers, bool) */
    const void *data;    /* const array or initial state, row-major in its dtype; may be NULL */
    const char *name;    /* inputs and states: required; others: label or NULL */
    const char *where;   /* "file:line" of the builder's call, or NULL */
    uint32_t first_use;  /* head of the use list: use record + 1, 0 = none */
    int32_t first_out;   /* head of the list of outputs that read it: index into graph.outputs + 1, 0 = none */
    int32_t update;      /* of a state: the output that assigns it, index into graph.outputs + 1, 0 = none */
} node;

typedef struct use { /* one operand slot of one node */
    val user;
    int32_t slot;
    uint32_t prev, next; /* record + 1, 0 = end */
} use;

typedef struct output {
    const char *name; /* NULL for a pure state update */
    val v;
    val state;         /* the state that takes the value at the end of a run, or 0 */
    const char *where; /* as node.where */
    int32_t next;      /* of the outputs that read v: index + 1, 0 = end */
} output;

typedef struct region { /* body of a CTRL op: nodes with node.region = its index */
    const char *name;
    val *params; /* OP_param nodes */
    int n_params;
    val *results;
    int n_results;
} region;

typedef struct checkpoint { /* values that are computed again for gradients: from first on, before end */
    val first, end;
} checkpoint;

typedef struct name_table { /* of open addresses: index into the list + 1 */
    int32_t *at;
    uint64_t mask;
    int n; /* entries of the list that are in it */
} name_table;

typedef struct graph {
    arena *a; /* owner of everything below */
    const char *name;
    VEC(node) nodes; /* nodes.at[0] is nil */
    VEC(use) uses;
    VEC(val) inputs; /* inputs, then states mixed, in declaration order */
    VEC(output) outputs;
    exts *params;                /* symbolic dims and expressions of them; NULL: all dims are literals */
    VEC(region) regions;         /* regions.at[0] is the graph itself, empty */
    VEC(checkpoint) checkpoints; /* in the order in which they end; forgotten when the graph is compacted */
    uint32_t free_use;           /* list of recycled use records */
    const char *here;            /* place of the builder call in progress, for node.where */
    int current; /* region of new nodes without operands that name none: of the body that is being built or rewritten */
    node *spare; /* [spare_cap] what nodes.at was before the last move of graph_compact, for the next one */
    int spare_cap;
    name_table input_names, output_names;
    VEC(uint32_t) work; /* scratch of graph_compact, kept so that compacting again and again does not grow the arena */
} graph;

graph *graph_make(arena *a, const char *name);
static inline node *graph_get(const graph *g, val v) { return &g->nodes.at[v]; }

/* What graph_add needs; unused fields stay zero. dims are read for: reshape, expand, slice, fold, sources, param,
 * random. A splat's value is rounded to its dtype. Nodes with operands go to the region of operand 0. */
typedef struct spec {
    op_code op;
    tn_dtype dtype; /* sources, cast */
    const val *in;
    int n_in;
    int rank;
    const int64_t *dims;
    const int64_t *attr;
    int n_attr;
    bool splat;
    double imm;
    int64_t imm_int;
    const void *data; /* not copied */
    const char *name; /* copied */
    int region;
} spec;
/* Appends a node after checking operands, dims, dtypes and attributes by the op's rule (infer.c). Jumps with TN_ERR_SHAPE or
 * TN_ERR_DTYPE and a text that shows what was given. */
val graph_add(graph *g, const spec *s);
spec graph_spec(const graph *g, val v); /* what would make node v again */
/* The rule alone: fills dtype, rank, dims (room for TN_MAX_RANK) of the result. Returns an error text in `a`, or NULL. Used by
 * graph_add and by graph_check. */
const char *graph_infer(const graph *g, const spec *s, arena *a, tn_status *out_code, tn_dtype *out_dtype, int *out_rank,
                        int64_t *out_dims);

/* Shorthands, all through graph_add. Operands of elementwise ops have equal shapes: the builders broadcast. */
val graph_unary(graph *g, op_code op, val x);
val graph_binary(graph *g, op_code op, val x, val y);
val graph_select(graph *g, val c, val x, val y);
val graph_splat(graph *g, tn_dtype t, int rank, const int64_t *dims, double value);
val graph_splat_like(graph *g, val x, double value);
val graph_const(graph *g, tn_dtype t, int rank, const int64_t *dims, const void *data); /* data is copied */
val graph_cast(graph *g, val x, tn_dtype t);                                            /* x itself when it has the dtype */
val graph_bitcast(graph *g, val x, tn_dtype t);                                         /* as graph_cast */
val graph_reduce(graph *g, op_code op, val x, uint64_t axes);                           /* x itself when axes = 0 */
val graph_arg(graph *g, op_code op, val x, int axis);
val graph_reshape(graph *g, val x, int rank,
                  const int64_t *dims); /* x itself when nothing changes; so for expand, permute, ... */
val graph_permute(graph *g, val x, const int64_t *perm);
val graph_expand(graph *g, val x, const int64_t *dims);              /* same rank */
val graph_broadcast(graph *g, val x, int rank, const int64_t *dims); /* NumPy rule: reshape to add leading 1s, then expand */
val graph_pad(graph *g, val x, const int64_t *before, const int64_t *after, double value);
val graph_slice(graph *g, val x, const int64_t *start, const int64_t *count, const int64_t *step);
val graph_flip(graph *g, val x, uint64_t axes);
val graph_again(graph *g, val x, val after);
int graph_n_read(const node *n); /* operands that are read: an again only waits for its second one */
/* Of a value that is computed again while all of its operands are there: the one that is read by way of an again. No table, no
 * source if there is another; -1 if there are constants of one value alone. */
int graph_again_slot(const graph *g, const node *n);
typedef struct window_axis {
    int64_t axis, size, stride, dilation;
} window_axis;
val graph_window(graph *g, val x, const window_axis *w, int n);
val graph_fold(graph *g, val x, const window_axis *w, int n, const int64_t *dims /* of the result, rank - n */);
val graph_concat(graph *g, const val *xs, int n, int axis);
val graph_dot(graph *g, val a, val b, const int64_t *batch_a, const int64_t *batch_b, int nb, const int64_t *contract_a,
              const int64_t *contract_b, int nc);
val graph_gather(graph *g, val x, val index, int axis);
val graph_scatter(graph *g, op_code op, val base, val index, val updates, int axis, int batch); /* batch: leading axes of all */
val graph_scatter_add(graph *g, val base, val index, val updates, int axis, int batch);
val graph_iota(graph *g, tn_dtype t, int rank, const int64_t *dims, int axis);
val graph_size(graph *g, tn_dtype t, ext size); /* t[]: what a run gives */

/* Facts. */
int64_t graph_elems(const graph *g, val v); /* product of dims, symbolic ones at their most; graph_add checks that it fits */
ext graph_elems_ext(const graph *g, val v); /* the same as an expression; adds rows to graph.params */
static inline int64_t graph_dim_most(const graph *g, ext d) { return ext_is_lit(d) ? d : ext_hi(g->params, d); }
bool graph_is_dim(const graph *g, ext d);          /* of this graph, 0 or more for all values */
const char *graph_dim_text(const graph *g, ext d); /* "8", "batch*2" */
exts *graph_params(graph *g);                      /* made when there are none yet */
bool graph_same_shape(const graph *g, val x, val y);
int graph_n_uses(const graph *g, val v);     /* operand slots, outputs and region results that read v */
bool graph_used_once(const graph *g, val v); /* the same = 1, without counting all of them */
bool graph_is_read(const graph *g, val v);   /* the same > 0 */
bool graph_is_output(const graph *g, val v);
bool graph_is_assigned(const graph *g, val state);                                    /* an output gives it a new value */
bool graph_splat_value(const graph *g, val v, double *out);                           /* true for a const splat */
const char *graph_shape_text(const graph *g, arena *a, val v);                        /* "f32[8,128]" */
const char *graph_dims_text(const graph *g, arena *a, int rank, const int64_t *dims); /* "[8,128]" */

/* graph_names.c: index into graph.inputs or graph.outputs of what has the name, or -1. */
int graph_find_input(graph *g, const char *name); /* inputs and states */
int graph_find_output(graph *g, const char *name);

/* Changing. Use lists stay right through these; nothing else writes node.in or outputs. (graph_compact makes the lists again.)
 */
void graph_set_in(graph *g, val user, int slot, val v);
void graph_replace(graph *g, val old, val v); /* every use of old, outputs and region results included, becomes v (same shape
                                                 and dtype); v must not depend on old */
void graph_output(graph *g, const char *name, val v);
void graph_assign(graph *g, val state, val v);
void graph_sink(graph *g, const char *name, val v, val state); /* either, or both at once; the name is not copied */
void graph_set_output(graph *g, int i, val v);                 /* output i reads v from now on */

/* Fills out (room for nodes.n) with ids in a stable topological order, region bodies before their op; only_live leaves out what
 * no output needs, except inputs. Returns their number. Never fails: a use that closes a cycle (a broken graph) is passed over.
 */
int graph_order(const graph *g, arena *a, bool only_live, val *out);
/* Drops what no output needs (inputs and states stay) and renumbers in topological order: stable, inputs first. */
void graph_compact(graph *g);
/* Deep copy into another arena, dead nodes included; constant data is shared unless copy_data. map (may be NULL, else
 * [nodes.n]) gets new ids. */
graph *graph_clone(const graph *g, arena *a, bool copy_data, val *map);
/* Same up to renumbering of what the outputs need: names of inputs and outputs, ops, dims, attributes, constants (splats by
 * value: one node used twice equals two). Labels and places do not count. why (may be NULL) gets the first difference. */
bool graph_equal(const graph *x, const graph *y, arena *a, const char **why);

/* graph_print.c, graph_parse.c: the canonical text of docs/ir.md. */
void graph_print(const graph *g, str *out);
graph *graph_parse(arena *a, const char *text, size_t n,
                   const char *file); /* jumps with TN_ERR_PARSE: "file:line:col: message" and a caret */

/* graph_check.c: every problem, one a line "op %id (name) at file:line: ..." into out. Returns their number. */
int graph_check(const graph *g, str *out);

#endif
