/* graph_check.c - the verifier: what is legal between passes, and a report of everything that is not. In: any graph, however
 * broken. Out: one line a problem. Scratch memory comes from the string's arena. Lines show "op %id (label) at place: problem".
 */
#include "ir/graph.h"
#include "ir/graph_text.h"
#include "ir/region.h"

#include <stdlib.h>

typedef struct checker {
    const graph *g;
    str *out;
    int n;
    bool *sound;   /* of nodes: its own fields may be read */
    int *n_owners; /* of regions: how many ops name it */
    int *depth;    /* of regions: nesting inside it; bodies come first, so it is known when it is asked for */
} checker;

static void problem(checker *c, val v, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void problem(checker *c, val v, const char *fmt, ...) {
    err e;
    va_list ap;
    va_start(ap, fmt);
    err_vset(&e, TN_OK, fmt, ap);
    va_end(ap);
    if (v) {
        const node *n = graph_get(c->g, v);
        str_addf(c->out, "%s %%%u", op_get((op_code)n->op)->name, v);
        if (n->name) str_addf(c->out, " (%.64s)", n->name);
        if (n->where) str_addf(c->out, " at %.256s", n->where);
        str_add(c->out, ": ");
    }
    str_add(c->out, e.text);
    str_add(c->out, "\n");
    c->n++;
}
static bool exists(const graph *g, val v) {
    return v > 0 && v < (val)g->nodes.n && graph_get(g, v)->op != OP_NIL && graph_get(g, v)->op < N_OPS;
}

/* ---- nodes ---- */

static bool check_form(checker *c, val v) {
    const node *n = graph_get(c->g, v);
    int before = c->n;
    if (n->op == OP_NIL || n->op >= N_OPS) problem(c, v, "op number %d does not exist", n->op);
    if (n->dtype >= TN_N_DTYPES) problem(c, v, "dtype number %d does not exist", n->dtype);
    if (n->rank > TN_MAX_RANK) problem(c, v, "rank %d; at most %d", n->rank, TN_MAX_RANK);
    if (n->region >= c->g->regions.n) problem(c, v, "region %d does not exist", n->region);
    if (n->n_in < 0 || (n->n_in && !n->in)) problem(c, v, "a list of %d operands without operands", n->n_in);
    if ((n->rank && !n->dims) || (n->n_attr && !n->attr)) problem(c, v, "dims or attributes are missing");
    for (int i = 0; i < n->rank && n->rank <= TN_MAX_RANK && n->dims; i++)
        if (n->dims[i] < 0 && (ext_is_lit(n->dims[i]) || !c->g->params || ext_index(n->dims[i]) >= c->g->params->at.n))
            problem(c, v, "dim %d is %lld; expected 0 or more", i, (long long)n->dims[i]);
    return c->n == before;
}
static bool check_operands(checker *c, val v) {
    const node *n = graph_get(c->g, v);
    int before = c->n;
    for (int i = 0; i < n->n_in; i++) {
        if (!exists(c->g, n->in[i]))
            problem(c, v, "operand %d is %%%u, which does not exist", i, n->in[i]);
        else if (n->in[i] >= v)
            problem(c, v, "operand %d is %%%u, which comes later", i, n->in[i]);
        else if (graph_get(c->g, n->in[i])->region != n->region)
            problem(c, v, "operand %d is %%%u of region %d, not of region %d", i, n->in[i], graph_get(c->g, n->in[i])->region,
                    n->region);
    }
    return c->n == before;
}
/* Whether what the rule of an op with regions or of a proj looks at can be looked at: regions of sound values that come before.
 */
static bool regions_readable(const checker *c, val v) {
    const node *n = graph_get(c->g, v);
    if (n->op == OP_proj && n->n_in == 1) n = graph_get(c->g, n->in[0]);
    if (n->op != OP_if && n->op != OP_while && n->op != OP_scan) return true;
    if (n->n_attr != (n->op == OP_scan ? SCAN_ATTRS : 2)) return graph_get(c->g, v)->op != OP_proj;
    for (int i = 0; i < node_regions(n); i++) {
        if (n->attr[i] < 1 || n->attr[i] >= c->g->regions.n) continue;
        const region *r = &c->g->regions.at[n->attr[i]];
        for (int k = 0; k < r->n_params + r->n_results; k++) {
            val x = k < r->n_params ? r->params[k] : r->results[k - r->n_params];
            if (!exists(c->g, x) || x >= v || !c->sound[x]) return false;
        }
    }
    return true;
}
static void check_rule(checker *c, val v) {
    const node *n = graph_get(c->g, v);
    spec s = graph_spec(c->g, v);
    tn_status code;
    tn_dtype dtype;
    int rank;
    int64_t dims[TN_MAX_RANK];
    arena *a = c->out->a;
    const char *text = graph_infer(c->g, &s, a, &code, &dtype, &rank, dims);
    if (text)
        problem(c, v, "%s", text);
    else if (dtype != n->dtype || rank != n->rank || (rank && memcmp(dims, n->dims, (size_t)rank * sizeof *dims)))
        problem(c, v, "the type is %s%s, its operands give %s%s", dtype_name((tn_dtype)n->dtype),
                graph_dims_text(c->g, a, n->rank, n->dims), dtype_name(dtype), graph_dims_text(c->g, a, rank, dims));
    if (n->splat && n->op != OP_const) problem(c, v, "only a const has one value everywhere");
    if (n->data && n->op != OP_const && n->op != OP_state) problem(c, v, "only a const or a state has data");
}
static void check_region_use(checker *c, val v) {
    const node *n = graph_get(c->g, v);
    for (int i = 0; i < node_regions(n); i++) {
        if (n->attr[i] < 1 || n->attr[i] >= c->g->regions.n) continue; /* the rule says so */
        const region *r = &c->g->regions.at[n->attr[i]];
        if (c->n_owners[n->attr[i]]++ == 1) problem(c, v, "region %lld belongs to several ops", (long long)n->attr[i]);
        for (int k = 0; k < r->n_params + r->n_results; k++) {
            val x = k < r->n_params ? r->params[k] : r->results[k - r->n_params];
            if (x < v) continue;
            problem(c, v, "region %lld comes later", (long long)n->attr[i]);
            break;
        }
        if (c->depth[n->attr[i]] >= c->depth[n->region]) c->depth[n->region] = c->depth[n->attr[i]] + 1;
    }
    if (c->depth[n->region] > TEXT_MAX_NESTING) problem(c, v, "regions are nested more than %d deep", TEXT_MAX_NESTING);
}

/* ---- use lists ---- */

typedef struct key {
    val user;
    int32_t slot;
} key;
static int key_compare(const void *x, const void *y) {
    const key *a = x, *b = y;
    if (a->user != b->user) return a->user < b->user ? -1 : 1;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}
/* One list, both ways: forward links must agree with backward links, every record with an operand slot. */
static int check_use_list(checker *c, val v, uint8_t *seen) {
    const graph *g = c->g;
    uint32_t prev = 0;
    int n = 0;
    for (uint32_t r = graph_get(g, v)->first_use; r; r = g->uses.at[r - 1].next) {
        if (r > (uint32_t)g->uses.n) return problem(c, v, "its use list names record %u of %d", r, g->uses.n), n;
        if (seen[r - 1]) return problem(c, v, "its use list runs into record %u, which is in a list already", r), n;
        seen[r - 1] = 1;
        const use *u = &g->uses.at[r - 1];
        if (u->prev != prev) problem(c, v, "use record %u links back to %u, not to %u", r, u->prev, prev);
        if (!exists(g, u->user) || !graph_get(g, u->user)->in || u->slot < 0 || u->slot >= graph_get(g, u->user)->n_in ||
            graph_get(g, u->user)->in[u->slot] != v)
            problem(c, v, "its use list says operand %d of %%%u, which is not so", u->slot, u->user);
        else if (!graph_get(g, u->user)->in_use || graph_get(g, u->user)->in_use[u->slot] != r)
            problem(c, v, "operand %d of %%%u does not know its use record %u", u->slot, u->user, r);
        prev = r;
        n++;
    }
    return n;
}
static void check_use_keys(checker *c, val v, key *keys, int n) {
    int k = 0;
    for (uint32_t r = graph_get(c->g, v)->first_use; r && k < n; r = c->g->uses.at[r - 1].next)
        keys[k++] = (key){ c->g->uses.at[r - 1].user, c->g->uses.at[r - 1].slot };
    qsort(keys, (size_t)n, sizeof *keys, key_compare);
    for (int i = 1; i < n; i++)
        if (!key_compare(&keys[i - 1], &keys[i]))
            problem(c, v, "its use list has operand %d of %%%u twice", keys[i].slot, keys[i].user);
}
static void check_uses(checker *c) {
    const graph *g = c->g;
    arena *a = c->out->a;
    int *want = ARENA_ARRAY(a, int, g->nodes.n), most = 0;
    uint8_t *seen = ARENA_ARRAY(a, uint8_t, g->uses.n);
    for (int i = 1; i < g->nodes.n; i++)
        for (int k = 0; g->nodes.at[i].in && k < g->nodes.at[i].n_in; k++)
            if (g->nodes.at[i].in[k] < (val)g->nodes.n) want[g->nodes.at[i].in[k]]++;
    for (int i = 1; i < g->nodes.n; i++) most = want[i] > most ? want[i] : most;
    key *keys = ARENA_ARRAY(a, key, most + 1);
    for (int i = 1; i < g->nodes.n; i++) {
        int before = c->n, n = check_use_list(c, (val)i, seen);
        if (n != want[i]) problem(c, (val)i, "its use list has %d entries, %d operands are this value", n, want[i]);
        if (c->n == before) check_use_keys(c, (val)i, keys, n);
    }
}

/* ---- names, inputs, outputs, regions ---- */

typedef struct name_at {
    const char *name;
    int at;
} name_at;
static int name_compare(const void *x, const void *y) {
    const name_at *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order ? order : a->at < b->at ? -1 : a->at > b->at;
}
static void check_names(checker *c, name_at *names, int n, const char *what) {
    qsort(names, (size_t)n, sizeof *names, name_compare);
    for (int i = 0; i < n; i++) {
        if (!names[i].name[0]) problem(c, 0, "%s %d has an empty name", what, names[i].at);
        if (i && !strcmp(names[i].name, names[i - 1].name))
            problem(c, 0, "%ss %d and %d are both named %.64s", what, names[i - 1].at, names[i].at, names[i].name);
    }
}
static void check_inputs(checker *c) {
    const graph *g = c->g;
    name_at *names = ARENA_ARRAY(c->out->a, name_at, g->inputs.n);
    bool *listed = ARENA_ARRAY(c->out->a, bool, g->nodes.n);
    int n = 0;
    for (int i = 0; i < g->inputs.n; i++) {
        val v = g->inputs.at[i];
        if (!exists(g, v)) {
            problem(c, 0, "input %d is %%%u, which does not exist", i, v);
            continue;
        }
        const node *x = graph_get(g, v);
        if (x->op != OP_input && x->op != OP_state) problem(c, v, "is in the list of inputs");
        if (listed[v]) problem(c, v, "is twice in the list of inputs");
        listed[v] = true;
        names[n++] = (name_at){ x->name ? x->name : "", i };
    }
    for (int i = 1; i < g->nodes.n; i++)
        if ((g->nodes.at[i].op == OP_input || g->nodes.at[i].op == OP_state) && !listed[i])
            problem(c, (val)i, "is missing in the list of inputs");
    check_names(c, names, n, "input");
}
static void check_outputs(checker *c) {
    const graph *g = c->g;
    name_at *names = ARENA_ARRAY(c->out->a, name_at, g->outputs.n);
    bool *assigned = ARENA_ARRAY(c->out->a, bool, g->nodes.n);
    int n = 0;
    for (int i = 0; i < g->outputs.n; i++) {
        const output *o = &g->outputs.at[i];
        if (!o->name && !o->state) problem(c, 0, "output %d has neither a name nor a state", i);
        if (o->name) names[n++] = (name_at){ o->name, i };
        if (!exists(g, o->v)) {
            problem(c, 0, "output %d is %%%u, which does not exist", i, o->v);
            continue;
        }
        if (graph_get(g, o->v)->region) problem(c, o->v, "output %d is inside a region", i);
        if (!o->state) continue;
        if (!exists(g, o->state) || graph_get(g, o->state)->op != OP_state) {
            problem(c, 0, "output %d updates %%%u, which is not a state", i, o->state);
            continue;
        }
        const node *x = graph_get(g, o->state), *y = graph_get(g, o->v);
        if (x->dtype != y->dtype || x->rank != y->rank || x->rank > TN_MAX_RANK || (x->rank && (!x->dims || !y->dims)) ||
            !graph_same_shape(g, o->state, o->v))
            problem(c, o->state, "takes a value of another type, %%%u", o->v);
        if (assigned[o->state]) problem(c, o->state, "is assigned twice");
        assigned[o->state] = true;
    }
    check_names(c, names, n, "output");
}
/* Runs find inputs and outputs by name in one list; the name of a state may be that of an output. */
static void check_slots(checker *c) {
    const graph *g = c->g;
    name_at *in = ARENA_ARRAY(c->out->a, name_at, g->inputs.n);
    int n = 0;
    for (int i = 0; i < g->inputs.n; i++) {
        const node *x = exists(g, g->inputs.at[i]) ? graph_get(g, g->inputs.at[i]) : NULL;
        if (x && x->op == OP_input && x->name) in[n++] = (name_at){ x->name, i };
    }
    qsort(in, (size_t)n, sizeof *in, name_compare);
    for (int i = 0; i < g->outputs.n; i++) {
        const output *o = &g->outputs.at[i];
        int lo = 0, hi = n;
        while (o->name && lo < hi) {
            int mid = lo + (hi - lo) / 2;
            if (strcmp(in[mid].name, o->name) < 0)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (!o->name || lo == n || strcmp(in[lo].name, o->name)) continue;
        const char *at = o->where ? " at " : "";
        problem(c, g->inputs.at[in[lo].at], "output %d%s%.256s has the same name", i, at, o->where ? o->where : "");
    }
}
static void check_params(checker *c) {
    const exts *t = c->g->params;
    name_at *names = ARENA_ARRAY(c->out->a, name_at, t ? t->n_dims + 1 : 1);
    for (int i = 0; t && i < t->n_dims; i++) {
        const ext_row *s = exts_row(t, exts_dim(t, i));
        names[i] = (name_at){ s->name ? s->name : "", i };
        if (s->lo < 0 || s->hi < s->lo)
            problem(c, 0, "symbolic dim %s has the range %lld..%lld", names[i].name, (long long)s->lo, (long long)s->hi);
    }
    check_names(c, names, t ? t->n_dims : 0, "symbolic dim");
    if (t && t->problem) problem(c, 0, "a symbolic size: %s", t->problem);
}
static void check_regions(checker *c) {
    const graph *g = c->g;
    for (int i = 1; i < g->regions.n; i++) {
        const region *r = &g->regions.at[i];
        for (int k = 0; k < r->n_params; k++) {
            const node *p = exists(g, r->params[k]) ? graph_get(g, r->params[k]) : NULL;
            if (!p || p->op != OP_param || p->region != i || p->n_attr != 1 || !p->attr || p->attr[0] != k)
                problem(c, 0, "parameter %d of region %d is %%%u, which is not that parameter", k, i, r->params[k]);
        }
        for (int k = 0; k < r->n_results; k++)
            if (!exists(g, r->results[k]) || graph_get(g, r->results[k])->region != i)
                problem(c, 0, "result %d of region %d is %%%u, which is not of that region", k, i, r->results[k]);
    }
    for (int i = 1; i < g->nodes.n; i++) {
        const node *p = &g->nodes.at[i];
        if (p->op != OP_param || p->region >= g->regions.n || p->n_attr != 1 || !p->attr) continue;
        const region *r = &g->regions.at[p->region];
        if (p->region == 0 || p->attr[0] < 0 || p->attr[0] >= r->n_params || r->params[p->attr[0]] != (val)i)
            problem(c, (val)i, "is missing among the parameters of region %d", p->region);
    }
}

int graph_check(const graph *g, str *out) {
    checker c = { .g = g, .out = out };
    c.n_owners = ARENA_ARRAY(out->a, int, g->regions.n);
    c.depth = ARENA_ARRAY(out->a, int, g->regions.n);
    c.sound = ARENA_ARRAY(out->a, bool, g->nodes.n);
    check_params(&c);
    check_regions(&c);
    for (val v = 1; v < (val)g->nodes.n; v++) {
        const node *n = graph_get(g, v);
        c.sound[v] = check_form(&c, v);
        if (!c.sound[v]) continue;
        if (node_regions(n)) check_region_use(&c, v);
        bool readable = check_operands(&c, v);
        for (int k = 0; k < n->n_in; k++) readable = readable && c.sound[n->in[k]];
        if (readable && regions_readable(&c, v)) check_rule(&c, v); /* else the cause is reported where it is */
    }
    check_inputs(&c);
    check_outputs(&c);
    check_slots(&c);
    check_uses(&c);
    return c.n;
}
