/* body.h - bodies that callers' functions build: what control.c and function.c share. */
#ifndef TN_API_BODY_H
#define TN_API_BODY_H

#include "api/api.h"

enum { API_MOST_PARAMS = 4096 };

typedef struct builder {
    tn_graph *g;
    const char *name;    /* "tn_scan" */
    const char *where;   /* of the call */
    const tn_tensor *in; /* operands that bodies have parameters for */
    int n_in, n_carry, n_stacks;
    int64_t length; /* of a scan; 0: of its stacks */
    api_captures outside;
    api_body body; /* that is being built */
} builder;

/* Builds one body: its region, or 0 when the graph has failed. like: of what type results are to be, parameters where it is
 * NULL; n_like results are such, and n more are of any type. condition: the one result is bool[]. */
int api_build_body(builder *b, const char *what, tn_body f, void *ud, const val *like, int n_like, int n, bool condition);
/* Whether a call cannot be done: it is wrong, which is an error of the graph, or the graph has failed before. */
bool api_refuse(tn_graph *g, const char *name, bool wrong, const char *text);

#endif
