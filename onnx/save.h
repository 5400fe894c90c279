/* save.h - what the files of the exporter share: protobuf that grows, names, nodes.
 *
 * A model is written front to back: nodes into one string of bytes, arrays as a list of what the file will have, and at last
 * the file. Everything is in the arena of one call; errors jump to its guard. */
#ifndef ONNX_SAVE_H
#define ONNX_SAVE_H

#include "onnx.h"
#include "tenon/tenon_ir.h"

typedef struct save_bytes {
    uint8_t *at;
    size_t n, cap;
} save_bytes;
void save_int(onnx_env *env, save_bytes *b, uint32_t field, uint64_t v);
void save_data(onnx_env *env, save_bytes *b, uint32_t field, const void *data, size_t n);
void save_text(onnx_env *env, save_bytes *b, uint32_t field, const char *s);
void save_head(onnx_env *env, save_bytes *b, uint32_t field, size_t n); /* of n bytes that follow elsewhere */
/* ValueInfoProto. */

typedef struct save_array { /* an initializer */
    struct save_array *next;
    const char *name;
    int elem;
    tn_shape shape;
    const void *data; /* as in a file */
    size_t bytes;
} save_array;

typedef struct save_size { /* a dim of a run, as a value i64[1] */
    struct save_size *next;
    int64_t dim;
    const char *name;
} save_size;

typedef struct saver {
    onnx_env *env;
    const tn_graph *g;
    tn_onnx_save_opts opts;
    tn_ir_value *values; /* by id - 1 */
    tn_ir_detail *details;
    bool *wanted;              /* by id - 1 */
    const char **names;        /* by id: of the value where it is now; NULL: not made yet */
    const char ***projections; /* by id: all results of an if or while */
    const char *prefix;        /* of names of our own: no name of the graph begins with it */
    int n_values, fresh;
    save_bytes *nodes, *main; /* of the graph or body that is being written; of the graph */
    save_size *sizes;         /* that nodes of the graph have computed */
    save_array *arrays, **last;
} saver;

typedef struct save_attr {
    const char *name, *text; /* text: a string */
    int64_t i;
    const int64_t *list;
    int n; /* of list */
    const save_bytes *graph, *tensor;
} save_attr;
typedef struct save_node {
    const char *op, *in[4]; /* up to the first NULL */
    save_attr attr[3];
    const char *const *more; /* operands after those */
    int n_more;
    const char *const *out; /* results; NULL: one of a fresh name */
    int n_out;
} save_node;
/* Writes a node; returns the name of its first result. */
const char *save_emit(saver *s, save_node n);
#define SAVE(s, ...) save_emit(s, (save_node){ __VA_ARGS__ })
const char *save_fresh(saver *s);
const char *save_ints(saver *s, const int64_t *v, int n);                   /* an initializer i64[n]; n -1: a scalar */
const char *save_number(saver *s, tn_dtype t, double v, int rank);          /* a node: one number, dims of 1 */
const char *save_element(saver *s, tn_dtype t, const void *data, int rank); /* the same of its bytes */
const char *save_constant(saver *s, const char *name, tn_dtype t, tn_shape shape, const void *data);
/* Sizes, of which a run may give some, as save_ints; a dim is read off an input that has it. */
const char *save_sizes(saver *s, const int64_t *v, int n);
bool save_is_literal(tn_shape shape);
save_bytes save_port(saver *s, const char *name, int elem, tn_shape shape);
void save_refuse(saver *s, int i, const char *what) ONNX_NORETURN;

/* save_ops.c: the nodes of value i (id - 1), whose operands have names. Its name goes to s->names. */
void save_value(saver *s, int i);

#endif
