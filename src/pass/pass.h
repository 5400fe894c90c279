/* pass.h - graph-to-graph rewriting. One file a pass, one row in passes.def; no pass calls another.
 *
 * In: a compacted, verified graph. A pass appends nodes and redirects uses (graph_replace, graph_set_in); the runner compacts,
 * and in checked runs verifies the graph and its use lists. Every pass says in its row what it does about regions. */
#ifndef TN_PASS_PASS_H
#define TN_PASS_PASS_H

#include "ir/graph.h"

typedef bool (*pass_fn)(graph *g, arena *scratch); /* returns whether anything changed */
typedef enum pass_stage {
    STAGE_CANON,
    STAGE_LOWER,
    STAGE_GPU,
    STAGE_UNITS,
    STAGE_CPU,
    STAGE_TARGET,
    STAGE_ASKED
} pass_stage; /* see passes.def */
typedef struct pass_info {
    const char *name, *doc, *regions;
    pass_stage stage;
    pass_fn run;
} pass_info;
const pass_info *pass_table(int *out_n);
const pass_info *pass_find(const char *name);

/* Runs one pass and compacts. check: verify afterwards, jump with TN_ERR_INTERNAL naming the pass when the graph is broken. */
bool pass_run(graph *g, const pass_info *p, arena *scratch, bool check);
/* The stages CANON and LOWER, repeated until nothing changes or `rounds` is reached. */
void pass_run_all(graph *g, arena *scratch, bool check);
void pass_run_stage(graph *g, pass_stage stage, arena *scratch, bool check); /* once, in order */
const char *pass_stage_name(pass_stage stage);
/* Marks the weights of attention that contractions take, by node: recompute_weights is worth it where none is stored. */
void recompute_weights_taken(const graph *g, bool *taken);

#endif
