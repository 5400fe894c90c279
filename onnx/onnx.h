/* onnx.h - what the files of onnx/ share: an arena with a budget, errors that jump to the caller, the protobuf reader, models.
 *
 * Public headers only. Everything that an import takes is in one arena, and goes with it. An error is recorded in the context
 * and jumps to the guard of the public function (or, while a node is imported, to that of the node, which notes a refusal). */
#ifndef ONNX_ONNX_H
#define ONNX_ONNX_H

#include "tenon/tenon_onnx.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ONNX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ONNX_NORETURN __attribute__((noreturn))
#define ONNX_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- memory and errors ---- */

typedef struct onnx_chunk onnx_chunk;
typedef struct onnx_env {
    tn_ctx *ctx;
    onnx_chunk *chunks, *spare; /* spare: of what was given back, or NULL */
    size_t taken, budget;       /* bytes */
    jmp_buf *guard;             /* of the innermost caller that survives an error */
    tn_status status;           /* what was recorded before the jump */
    const char *file;           /* in messages */
    const uint8_t *base;        /* of the file, for offsets in messages */
} onnx_env;

/* Runs body(arg) under a guard: TN_OK, or the status of the error that ended it. */
tn_status onnx_try(onnx_env *env, void (*body)(void *arg), void *arg);
void onnx_fail(onnx_env *env, tn_status code, const char *fmt, ...) ONNX_PRINTF(3, 4) ONNX_NORETURN;
void onnx_again(onnx_env *env, tn_status s) ONNX_NORETURN; /* hands an error that was caught and recorded to the outer guard */
/* Zeroed; never NULL: jumps when there is no memory or the budget is spent. */
void *onnx_new(onnx_env *env, size_t n, size_t size);
void *onnx_room(onnx_env *env, size_t n, size_t size); /* not zeroed */
#define ONNX_NEW(env, type, n) ((type *)onnx_new(env, (size_t)(n), sizeof(type)))
char *onnx_format(onnx_env *env, const char *fmt, ...) ONNX_PRINTF(2, 3);
typedef struct onnx_mark { /* what was taken after it can be given back */
    onnx_chunk *chunk;
    size_t used, taken;
} onnx_mark;
onnx_mark onnx_here(const onnx_env *env);
void onnx_back(onnx_env *env, onnx_mark m);
void onnx_release(onnx_env *env); /* all of it */

/* ---- protobuf ---- */

typedef struct onnx_span {
    const uint8_t *at;
    size_t n;
} onnx_span;
typedef enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } onnx_wire;
typedef struct onnx_field {
    uint32_t number;
    onnx_wire wire;
    uint64_t value; /* of the wires with a number */
    onnx_span bytes;
} onnx_field;
/* The next field of the message that is left in s; false at its end; a malformed one is an error. */
bool onnx_next(onnx_env *env, onnx_span *s, onnx_field *out);
/* Number of fields of each number below n_counts. Checks the whole message (not those in it). */
void onnx_count(onnx_env *env, onnx_span s, int *counts, int n_counts);
onnx_span onnx_bytes(onnx_env *env, const onnx_field *f); /* an error unless the field has that wire */
int64_t onnx_int(onnx_env *env, const onnx_field *f);
float onnx_float(onnx_env *env, const onnx_field *f);
const char *onnx_string(onnx_env *env, const onnx_field *f); /* a copy: UTF-8 without zeros, at most TN_ONNX_MAX_NAME */
/* Elements of a repeated number, packed or not: one field's worth, written to out (may be NULL). Returns how many. width: bytes
 * of an element, 0 = varints; out has 8 bytes for each varint, else width. */
size_t onnx_numbers(onnx_env *env, const onnx_field *f, int width, void *out);

/* ---- models ---- */

/* TensorProto.DataType */
enum {
    ELEM_NONE,
    ELEM_F32,
    ELEM_U8,
    ELEM_I8,
    ELEM_U16,
    ELEM_I16,
    ELEM_I32,
    ELEM_I64,
    ELEM_STRING,
    ELEM_BOOL,
    ELEM_F16,
    ELEM_F64,
    ELEM_U32,
    ELEM_U64,
    ELEM_C64,
    ELEM_C128,
    ELEM_BF16,
    ELEM_F8E4M3FN,
    ELEM_F8E4M3FNUZ,
    ELEM_F8E5M2,
    ELEM_F8E5M2FNUZ,
    ELEM_U4,
    ELEM_I4,
    ELEM_F4E2M1,
    ELEM_F8E8M0,
    ELEM_U2,
    ELEM_I2,
    ELEM_N
};
const char *onnx_elem_name(int elem);
tn_dtype onnx_elem_dtype(int elem);          /* how it is held; TN_N_DTYPES = not at all */
size_t onnx_elem_bytes(int elem, int64_t n); /* of n elements in a file; 0 where that is not fixed */
bool onnx_elem_widened(int elem);            /* held in a wider type, or with another sign */
int onnx_elem_of(tn_dtype t);
/* Floating-point numbers of 8 and fewer bits; those that Tenon has no dtype for are held as f32. */
typedef struct onnx_minifloat {
    int exponent_bits, mantissa_bits, bias;
    float most;                  /* the largest number */
    bool has_inf, has_nan, zero; /* zero: there is a zero, and a sign */
    bool unsigned_zero;          /* "UZ": the bits of -0 are NaN */
} onnx_minifloat;
const onnx_minifloat *onnx_minifloat_of(int elem); /* NULL: it is none */
float onnx_minifloat_load(int elem, uint8_t bits);

typedef struct onnx_tensor {
    const char *name;
    int elem;
    tn_shape shape;
    int64_t n; /* elements */
    onnx_span message;
    onnx_span raw; /* raw_data */
    bool has_raw, external;
    const char *location;
    uint64_t offset, length; /* of external data; length: UINT64_MAX = to the end */
} onnx_tensor;

typedef struct onnx_attr {
    const char *name;
    const char *refers; /* ref_attr_name: inside functions */
    int type;           /* AttributeProto.AttributeType */
    int64_t i;
    float f;
    onnx_span s, t, g; /* string; TensorProto; GraphProto */
    int64_t *ints;
    float *floats;
    onnx_span *strings;
    int n; /* of the lists */
} onnx_attr;
enum { ATTR_FLOAT = 1, ATTR_INT, ATTR_STRING, ATTR_TENSOR, ATTR_GRAPH, ATTR_FLOATS, ATTR_INTS, ATTR_STRINGS };

typedef struct onnx_node {
    const char *name, *op, *domain;
    const char **in, **out;
    int n_in, n_out, n_attrs;
    onnx_attr *attrs;
} onnx_node;

typedef struct onnx_opset {
    const char *domain;
    int64_t version;
} onnx_opset;

typedef struct onnx_graph {
    const char *name;
    onnx_node *nodes;
    onnx_tensor *inits;
    tn_onnx_port *inputs, *outputs;
    int *in_elem, *out_elem;
    int n_nodes, n_inits, n_inputs, n_outputs;
} onnx_graph;

typedef struct onnx_function {
    const char *name, *domain;
    const char **in, **out, **attr_names;
    int n_in, n_out, n_attr_names, n_nodes, n_opsets, n_defaults;
    onnx_node *nodes;
    onnx_opset *opsets;
    onnx_attr *defaults;
} onnx_function;

typedef struct onnx_mapping { /* a file */
    const uint8_t *bytes;
    size_t size;
} onnx_mapping;
typedef struct onnx_external { /* outlives imports */
    onnx_mapping map;
    struct onnx_external *next;
    char location[];
} onnx_external;

struct tn_onnx_model {
    onnx_env env;     /* the model's own arena */
    onnx_env work;    /* of the last import */
    onnx_mapping map; /* of the file, or zeros */
    onnx_span bytes;
    const char *folder; /* of external data, or NULL */
    onnx_external *externals;
    int64_t ir_version;
    onnx_graph graph;
    onnx_opset *opsets;
    onnx_function *functions;
    int n_opsets, n_functions;
    int *input_at; /* inputs of the graph without initial values */
    int n_inputs;
    bool *input_constant; /* of these, in the last import */
    struct onnx_texts {   /* strings are held as i64: their numbers here. Number 0 is the empty one. */
        const char **at;
        int64_t *slots; /* of a table of open addresses: number + 1 */
        int64_t n, cap, n_slots;
    } texts;
    tn_onnx_refusal *refused;
    int n_refused;
};

void onnx_read_model(tn_onnx_model *m);
void onnx_read_graph(onnx_env *env, onnx_span s, onnx_graph *out); /* subgraphs stay messages: attributes have them */
void onnx_read_tensor(onnx_env *env, onnx_span s, onnx_tensor *out);
/* The elements as Tenon holds them, in the arena, or in the file where nothing has to change (not aligned then). m: for
 * external data; NULL = there is none. */
const void *onnx_tensor_data(onnx_env *env, tn_onnx_model *m, const onnx_tensor *t);
/* The number of a string, which is added if it is new. Errors go to env's guard. */
int64_t onnx_text_number(onnx_env *env, tn_onnx_model *m, const char *text, size_t n);
void onnx_array_bytes(onnx_env *env, int elem, const tn_shape *shape, int64_t *out_n, size_t *out_bytes);

/* ---- files ---- */

void onnx_map(onnx_env *env, const char *path, bool follow, onnx_mapping *out); /* a regular file */
void onnx_unmap(onnx_mapping *map);
const onnx_mapping *onnx_external_map(onnx_env *env, tn_onnx_model *m, const char *location);
void onnx_externals_free(tn_onnx_model *m);

#endif
