/* api.h - what the public entry points share: taking a call in, setting the one guard, recording errors.
 *
 * Every builder is a plain function over ids, run by api_build: it checks the operands, sets the guard, runs the function and
 * turns a jump into the graph's sticky error. So no builder has a setjmp of its own, and no local variable of one survives a
 * jump. */
#ifndef TN_API_API_H
#define TN_API_API_H

#include "drive/objects.h"

/* Runs fn(arg) under the guard. Returns TN_OK, or the code of the jump (the text is in gd->err). The only GUARD_TRY of the
 * library's front half. */
tn_status api_try(guard *gd, void (*fn)(void *arg), void *arg);

/* One builder call, as error texts show it: "file.c:12: tn_add(x f32[2,3], f32[4]): <what is wrong>". Every operand is checked
 * (there, not poisoned, of this graph) before the builder's function runs. */
typedef struct call {
    const char *name;    /* "tn_add" */
    const tn_tensor *in; /* operands */
    int n_in;
    const tn_tensor *more; /* further operands, or NULL */
    int n_more;
    bool same; /* the result is the operand itself, not its value */
} call;
/* in: ids of all operands. args: the builder's own arguments (and results). Returns the result's id (0 for builders without
 * one). Jumps on errors. */
typedef val (*build_fn)(graph *g, const val *in, void *args);

/* Runs fn in graph g (NULL = the graph of the first operand that has one). Returns the poisoned tensor on error. Computes the
 * new nodes of an immediate graph. */
tn_tensor api_build(tn_graph *g, const call *c, build_fn fn, void *args);

/* What a builder of graph g gives out for node v. Immediate mode: an input or state that was there before changes its value
 * later, so that what is its value now must be a node of its own. Jumps. */
val api_result(const tn_graph *g, val v);

/* capture.c: a body that is being built (control.c), and what it and others of the same op use of the outside. */
typedef struct api_captures {
    VEC(val) from; /* values of the body around, or of the graph */
    int n_own;     /* parameters before theirs */
} api_captures;
typedef struct api_body {
    struct api_body *around;
    api_captures *in;
    int region;
} api_body;
/* The region's parameters for the first n captured values. */
void api_body_params(graph *g, const api_body *b, int n);
/* What value v is in the innermost body that is being built. Jumps. */
val api_capture(tn_graph *g, val v);

/* Jumps unless v is exactly a value of t (always, for floats): a scalar written in C must not change silently on its way into
 * an integer tensor. */
void api_check_value(graph *g, tn_dtype t, double v);
/* v everywhere, in x's dtype and shape, checked so. */
val api_scalar_like(graph *g, val x, double v);
/* One elementwise op of operands that are checked and broadcast. Jumps. */
val api_add_elementwise(graph *g, op_code op, const val *in);

/* op.c: names of the operands and attributes that tn_op takes; NULL = not built by its name. */
const char *api_op_operands(op_code op);
const char *api_op_attrs(op_code op);
/* build.c: the builder of an elementwise op, which has as many operands. */
tn_tensor api_elementwise(op_code op, const tn_tensor *in, int n);

/* Records the first error of a graph in it, and the text in its context, prefixed with the call as above. Returns code. */
tn_status api_fail(tn_graph *g, const call *c, tn_status code, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* The context's last error becomes e. Returns e->code. */
tn_status api_report(tn_ctx *ctx, const err *e);

/* Of a session (bind.c). session_done takes what a call of src/drive returned, with its text in s->err. Both report in
 * the context and return the code. session_ready: the bindings that stay are in force, every input has one, none overlap. */
tn_status session_done(tn_session *s, tn_status code);
tn_status session_fail(const tn_session *s, tn_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
tn_status session_ready(tn_session *s, const char *fn);
tn_status session_slot_error(const tn_session *s, const char *fn, int slot);
/* The slot is at data, with n_steps of a trace, or (b, which the session then owns) in memory of the device. */
tn_status session_keep(tn_session *s, int slot, void *data, int64_t n_steps, struct buffer *b);

#endif
