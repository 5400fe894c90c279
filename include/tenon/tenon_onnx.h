/* tenon_onnx.h - ONNX models as graphs.
 *
 * Files are untrusted: every length is checked, nothing recurses on what a file says, and a model takes no more memory than
 * TN_ONNX_MEMORY plus four times its file (and what the graph itself takes). Weights are not copied before they are in the
 * graph: files are mapped.
 *
 * What is read: operator sets 7 to 28 of ai.onnx (docs/onnx.md lists the ops), and the older forms of ops that models of set 6
 * and before share with them; weights in the file or beside it (external data: relative paths, no "..", no symbolic links);
 * local functions; If, Loop and Scan whose conditions and counts are known at import; sequences and optionals whose lengths
 * are. What cannot be done is refused, all of it at once: tn_ctx_error lists op, node and reason.
 *
 * Sizes.   Named dims of inputs ("batch") are given by tn_onnx_opts.dims, and others by their place; those of
 * tn_onnx_opts.ranges are given by each run. What follows from known sizes and constants (Shape, Gather, Concat, Range ...) is
 * computed at import. Where a size depends on the value of an input, tn_onnx_opts.values gives it: the input becomes a
 * constant. Types.   int16 and uint16 are held as i32, uint32 and uint64 as i64 (the latter with the same 64 bits), integers of
 * 4 and 2 bits as i8 and u8, floating-point numbers of 8 and 4 bits as f32, strings as i64 (see tn_onnx_text), and ops on them
 * give the results of their own types. Complex numbers are refused. Indices. An index that is out of range at run time is
 * clamped to the nearest row (tn_gather), or skipped (scatters).
 *
 * Errors.  TN_ERR_PARSE a malformed file; TN_ERR_UNSUPPORTED a right file that says what Tenon cannot do; TN_ERR_IO;
 * TN_ERR_INVAL wrong options; TN_ERR_NOMEM. On an error nothing is returned. Threads. As the context: one at a time. */
#ifndef TENON_ONNX_H
#define TENON_ONNX_H

#include "tenon/tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TN_ONNX_MAX_BYTES 2147483647 /* of the model's own file (protobuf has no more); external data may be larger */
#define TN_ONNX_MAX_NODES 262144     /* of a graph, and of all subgraphs as they are imported, every turn of a loop counted */
#define TN_ONNX_MAX_NAME 1024        /* bytes of a name */
#define TN_ONNX_MAX_DEPTH 8          /* of subgraphs and functions within each other */
#define TN_ONNX_MAX_FOLD 4096        /* elements of operands and results that are computed at import */
#define TN_ONNX_MEMORY 67108864      /* bytes, beside four times the file */

/* ---- a model in memory --------------------------------------------------------------------------------------------------- */

typedef struct tn_onnx_model tn_onnx_model;

/* Maps and checks a file. Until tn_onnx_model_free it must not become shorter (the process would get SIGBUS). */
TN_API TN_CHECK tn_status tn_onnx_open(tn_ctx *ctx, const char *path, tn_onnx_model **out_model);
/* The same from bytes, which stay the caller's and must outlive the model; `name` stands for the path in messages, and external
 * data is looked for in `folder` (NULL = refused). */
TN_API TN_CHECK tn_status tn_onnx_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name, const char *folder,
                                        tn_onnx_model **out_model);
TN_API void tn_onnx_model_free(tn_onnx_model *m); /* before its context; NULL is fine */

typedef enum {
    TN_ONNX_TENSOR,
    TN_ONNX_SEQUENCE,
    TN_ONNX_OPTIONAL,          /* of a tensor */
    TN_ONNX_OPTIONAL_SEQUENCE, /* of a sequence of tensors */
    TN_ONNX_OTHER              /* maps, and what is deeper */
} tn_onnx_kind;
typedef struct {
    const char *name;
    tn_onnx_kind kind;
    const char *type;                /* of elements, in ONNX's words: "float", "uint16", "string" */
    tn_dtype dtype;                  /* they are held as; TN_N_DTYPES when they cannot be */
    int rank;                        /* -1 = not said */
    int64_t dim[TN_MAX_RANK];        /* -1 = not known */
    const char *symbol[TN_MAX_RANK]; /* the name of an unknown dim, or NULL */
} tn_onnx_port;
/* Inputs without initial values, and outputs, in the model's order. */
TN_API int tn_onnx_n_inputs(const tn_onnx_model *m);
TN_API int tn_onnx_n_outputs(const tn_onnx_model *m);
TN_API TN_CHECK tn_status tn_onnx_input(const tn_onnx_model *m, int i, tn_onnx_port *out_port);
TN_API TN_CHECK tn_status tn_onnx_output(const tn_onnx_model *m, int i, tn_onnx_port *out_port);
/* Files of external data that imports have read so far, relative to the model's folder. NULL: there are no more than i. */
TN_API const char *tn_onnx_external(const tn_onnx_model *m, int i);
/* The nodes of the main graph. */
TN_API int tn_onnx_n_nodes(const tn_onnx_model *m);
TN_API const char *tn_onnx_node_op(const tn_onnx_model *m, int i); /* "Conv", "com.microsoft.Gelu"; NULL out of range */

/* Strings are held as i64: the number of a string among those of the model, the same in all its imports; 0 is the empty one.
 * Graphs move and compare numbers; what is computed from the letters of strings is computed at import. */
TN_API TN_CHECK tn_status tn_onnx_text_add(tn_onnx_model *m, const char *text, int64_t *out_number); /* found, or added */
TN_API const char *tn_onnx_text(const tn_onnx_model *m, int64_t number); /* lives as long as m; NULL: there is none */

/* ---- to graphs ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int64_t size;
} tn_onnx_dim;
typedef struct {
    const char *name;
    int64_t lo, hi, multiple_of; /* as of tn_dim */
} tn_onnx_range;
typedef struct {
    const char *name; /* of an input; "x[2]" is element 2 of a sequence (also an optional one), "x" the value of an optional */
    tn_dtype dtype;
    tn_shape shape;
    const void *data; /* row-major */
} tn_onnx_value;
typedef struct {
    size_t struct_size;      /* sizeof(tn_onnx_opts) */
    const tn_onnx_dim *dims; /* sizes of named dims; "x[0]" is the first dim of input x, whatever the model says of it */
    int n_dims;
    /* Values of inputs (not NULL: sequences and optionals of which there is no value are empty). Where a size depends on one of
     * them, it is a constant of the graph; the others stay inputs, and only give their shapes, where the model does not say
     * them. */
    const tn_onnx_value *values;
    int n_values;
    int constant_inputs; /* 1 = all inputs with values become constants */
    int parameters;      /* 1 = floating-point initializers of rank 1 and more are parameters (tn_param), which can be trained
                            and set in sessions; 0 = constants */
    int immediate;       /* 1 = a graph in immediate mode (tn_graph_immediate): every input needs its value, sizes may depend
                            on any of them */
    int plain_convolutions; /* 1 = each result of a convolution is the sum of its products; 0 = 3x3 layers of many channels with
                               constant f32 weights go by Winograd's way (tn_nn_conv_opts.winograd = 2), which has about the
                               error of the plain sum. Infinities and NaN reach a neighbour, then. */
    /* Dims that every run gives, within a range (names as of dims; what is no letter or digit is _ in the graph's): one program
     * for all, tn_bind_dim or tn_bind_shape says which. Inputs that have one are no constants. TN_ERR_INVAL: no input has such
     * a dim, or its range is wrong. */
    const tn_onnx_range *ranges;
    int n_ranges;
} tn_onnx_opts;
#define TN_ONNX_DEFAULTS TN_VALUE_(tn_onnx_opts, sizeof(tn_onnx_opts), NULL, 0, NULL, 0, 0, 0, 0, 0, NULL, 0)

/* Free the graph with tn_graph_free; it does not refer to the model. Inputs and outputs have the model's names; those of a
 * sequence are "x[0]", "x[1]" ... opts NULL = TN_ONNX_DEFAULTS. */
TN_API TN_CHECK tn_status tn_onnx_import(tn_onnx_model *m, const tn_onnx_opts *opts, tn_graph **out_graph);
/* tn_onnx_open, tn_onnx_import and tn_onnx_model_free. */
TN_API TN_CHECK tn_status tn_onnx_load(tn_ctx *ctx, const char *path, const tn_onnx_opts *opts, tn_graph **out_graph);

/* What the last import of the model could not do: node i of all. Texts live until the next import. TN_ERR_INVAL: no such i. */
typedef struct {
    const char *op, *node, *reason;
} tn_onnx_refusal;
TN_API int tn_onnx_n_refused(const tn_onnx_model *m);
TN_API TN_CHECK tn_status tn_onnx_refused(const tn_onnx_model *m, int i, tn_onnx_refusal *out_refusal);
/* 1 when the last import made a constant of input i (of tn_onnx_input). */
TN_API int tn_onnx_input_is_constant(const tn_onnx_model *m, int i);

/* ---- from graphs --------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t struct_size; /* sizeof(tn_onnx_save_opts) */
    /* States are initializers, and what updates them is left out: the model computes the outputs from the states' initial
     * values. 1 = also the training form: a state that the graph assigns is an input with its initial value as the default, and
     * its next value is an output, "<state>.next". */
    int training;
    int external; /* 1 = arrays of 1 KiB and more in "<path>.data" beside the model; otherwise only where the model would have
                     more than TN_ONNX_MAX_BYTES */
} tn_onnx_save_opts;
#define TN_ONNX_SAVE_DEFAULTS TN_VALUE_(tn_onnx_save_opts, sizeof(tn_onnx_save_opts), 0, 0)

/* Writes the graph as a model of operator set 18, that tn_onnx_load reads back as a graph with the same results. Files are
 * written under a temporary name first. Symbolic dims are named dims there, without their ranges, and what is computed of them
 * is computed by nodes, from the shapes of inputs. TN_ERR_UNSUPPORTED: random numbers; a dim that is no axis of an input by
 * itself; scatters, folds and windows along an axis whose size a run gives. opts NULL = TN_ONNX_SAVE_DEFAULTS. */
TN_API TN_CHECK tn_status tn_onnx_save(const tn_graph *g, const char *path, const tn_onnx_save_opts *opts);

/* ---- arrays in files ----------------------------------------------------------------------------------------------------- */

/* A file of one TensorProto, or, for the other kinds, of one SequenceProto or OptionalProto of tensors or of a sequence: what
 * backend tests keep their inputs and outputs in. An array of strings has the dtype TN_N_DTYPES: its data are const char *[n].
 */
typedef struct tn_onnx_arrays tn_onnx_arrays;
TN_API TN_CHECK tn_status tn_onnx_arrays_load(tn_ctx *ctx, const char *path, tn_onnx_kind kind, tn_onnx_arrays **out_arrays);
TN_API void tn_onnx_arrays_free(tn_onnx_arrays *a);       /* NULL is fine */
TN_API int tn_onnx_arrays_count(const tn_onnx_arrays *a); /* an optional without a value: 0 */
TN_API TN_CHECK tn_status tn_onnx_array(const tn_onnx_arrays *a, int i, tn_onnx_value *out_value);

#ifdef __cplusplus
}
#endif
#endif
