/* names.c - names of a graph's tensors: scopes that stand in front of them, states that are given again, finding by name.
 *
 * In: texts of the host, which are copied. Out: what builders of states and labels read in the graph (build.c). */
#include "api/api.h"

#include <stdio.h>

#define FAIL(g, ...) guard_fail((g)->a->gd, __VA_ARGS__)
enum { MAX_SCOPE = 512 };

typedef struct scope_args {
    tn_graph *graph;
    const char *name;
    int length; /* of the name, which may have been cut off */
} scope_args;

static val build_push(graph *g, const val *in, void *args) {
    (void)in;
    const scope_args *a = args;
    tn_graph *on = a->graph;
    if (a->length < 1) FAIL(g, TN_ERR_INVAL, "the scope has no name");
    const char *around = tn_graph_scope(on), *scope = arena_printf(g->a, "%s%s/", around ? around : "", a->name);
    if (a->length >= MAX_SCOPE || strlen(scope) >= MAX_SCOPE)
        FAIL(g, TN_ERR_INVAL, "the scopes \"%.40s...\" are longer than %d bytes", scope, MAX_SCOPE - 1);
    VEC_PUSH(g->a, &on->scopes, on->scope);
    on->scope = scope;
    return 0;
}
void tn_graph_push(tn_graph *g, const char *format, ...) {
    char name[MAX_SCOPE] = "";
    scope_args a = { .graph = g, .name = name };
    if (format) {
        va_list ap;
        va_start(ap, format);
        a.length = vsnprintf(name, sizeof name, format, ap);
        va_end(ap);
    }
    api_build(g, &(call){ .name = "tn_graph_push", .same = true }, build_push, &a);
}
void tn_graph_pop(tn_graph *g) {
    if (!g) return;
    if (g->scopes.n)
        g->scope = g->scopes.at[--g->scopes.n];
    else if (!g->err.code) /* after an error no scope is pushed */
        api_fail(g, &(call){ .name = "tn_graph_pop" }, TN_ERR_INVAL, "there is no scope");
}
const char *tn_graph_scope(const tn_graph *g) { return g && g->scope ? g->scope : ""; }

int tn_graph_reuse(tn_graph *g, int on) {
    if (!g) return 0;
    int before = g->reuses_states;
    if (on >= 0) g->reuses_states = on != 0;
    return before;
}

tn_tensor tn_graph_find(tn_graph *g, const char *name) {
    tn_tensor none = { g, 0 };
    if (!g || !name || g->err.code) return none;
    for (int i = 0; i < g->ir->inputs.n; i++)
        if (!strcmp(graph_get(g->ir, g->ir->inputs.at[i])->name, name)) return (tn_tensor){ g, g->ir->inputs.at[i] };
    for (int i = 0; i < g->ir->outputs.n; i++)
        if (g->ir->outputs.at[i].name && !strcmp(g->ir->outputs.at[i].name, name))
            return (tn_tensor){ g, g->ir->outputs.at[i].v };
    for (val v = (val)g->ir->nodes.n - 1; v > 0; v--) {
        const node *n = graph_get(g->ir, v);
        if (n->name && !n->region && !strcmp(n->name, name)) return (tn_tensor){ g, v };
    }
    return none;
}
