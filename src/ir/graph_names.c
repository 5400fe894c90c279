/* graph_names.c - inputs, states and outputs by name. In: a graph. Out: indices. The tables follow the lists of the graph when
 * they are asked; they live in its arena. */
#include "ir/graph.h"

static const char *input_name(const graph *g, int i) { return graph_get(g, g->inputs.at[i])->name; }
static const char *output_name(const graph *g, int i) { return g->outputs.at[i].name; }

typedef const char *(*name_of)(const graph *g, int i);

/* The place of a name, or the free one where it belongs. */
static int32_t *place_of(const graph *g, const name_table *t, name_of of, const char *name) {
    uint64_t i = hash_bytes(name, strlen(name), 0) & t->mask;
    while (t->at[i] && strcmp(of(g, t->at[i] - 1), name) != 0) i = (i + 1) & t->mask;
    return &t->at[i];
}

static int find(graph *g, name_table *t, name_of of, int n, const char *name) {
    if (!t->at || t->n > n || 2 * (uint64_t)n > t->mask) { /* begins anew, with room for as many again */
        uint64_t mask = 15;
        while (mask < 4 * (uint64_t)n) mask = 2 * mask + 1;
        *t = (name_table){ .at = ARENA_ARRAY(g->a, int32_t, mask + 1), .mask = mask };
    }
    for (; t->n < n; t->n++) {
        const char *own = of(g, t->n);
        int32_t *place = own ? place_of(g, t, of, own) : NULL;
        if (place && !*place) *place = t->n + 1;
    }
    return *place_of(g, t, of, name) - 1;
}

int graph_find_input(graph *g, const char *name) { return find(g, &g->input_names, input_name, g->inputs.n, name); }
int graph_find_output(graph *g, const char *name) { return find(g, &g->output_names, output_name, g->outputs.n, name); }
