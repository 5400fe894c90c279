/* model.c - messages of onnx.proto to structures: graphs, nodes, attributes, types, functions.
 *
 * In: a message. Out: structures in the arena. Each reader counts the fields of its message first, takes room once and fills
 * it. Subgraphs of If, Loop and Scan stay messages until their node is imported: how deep a file nests costs nothing here. */
#include "onnx.h"

#define EACH(env, s, f) for (onnx_field f; onnx_next(env, &(s), &(f));)

/* ---- types ---- */

static void read_dim(onnx_env *env, onnx_span s, tn_onnx_port *p) {
    int i = p->rank++;
    p->dim[i] = -1;
    EACH(env, s, f) {
        if (f.number == 1) p->dim[i] = onnx_int(env, &f);
        if (f.number == 2) p->symbol[i] = onnx_string(env, &f);
    }
    if (p->symbol[i] && !*p->symbol[i]) p->symbol[i] = NULL;
    if (p->dim[i] < 0) p->dim[i] = -1;
}

static void read_shape(onnx_env *env, onnx_span s, tn_onnx_port *p) {
    p->rank = 0;
    EACH(env, s, f) {
        if (f.number != 1) continue;
        if (p->rank == TN_MAX_RANK)
            onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: %s has more than %d dims", env->file, p->name, TN_MAX_RANK);
        read_dim(env, onnx_bytes(env, &f), p);
    }
}

static void read_tensor_type(onnx_env *env, onnx_span s, tn_onnx_port *p, int *elem) {
    EACH(env, s, f) {
        int64_t v = f.number == 1 ? onnx_int(env, &f) : 0;
        if (f.number == 1) *elem = v > 0 && v < ELEM_N ? (int)v : ELEM_NONE;
        if (f.number == 2) read_shape(env, onnx_bytes(env, &f), p);
    }
}

/* TypeProto: a tensor, a sequence or an optional of tensors, or an optional sequence; what is deeper is OTHER. */
static void read_type(onnx_env *env, onnx_span s, tn_onnx_port *p, int *elem) {
    p->kind = TN_ONNX_TENSOR;
    for (int level = 0; level < 3; level++) {
        onnx_span inner = { NULL, 0 }, type = { NULL, 0 };
        uint32_t what = 0;
        EACH(env, s, f) if (f.number != 6) what = f.number, inner = onnx_bytes(env, &f);
        if (what == 1) {
            read_tensor_type(env, inner, p, elem);
            return;
        }
        p->kind = what == 4 && p->kind == TN_ONNX_OPTIONAL ? TN_ONNX_OPTIONAL_SEQUENCE
                  : level                                  ? TN_ONNX_OTHER
                  : what == 4                              ? TN_ONNX_SEQUENCE
                  : what == 9                              ? TN_ONNX_OPTIONAL
                                                           : TN_ONNX_OTHER;
        if (p->kind == TN_ONNX_OTHER) return;
        EACH(env, inner, f) if (f.number == 1) type = onnx_bytes(env, &f);
        s = type;
    }
    p->kind = TN_ONNX_OTHER;
}

static void read_port(onnx_env *env, onnx_span s, tn_onnx_port *p, int *elem) {
    onnx_span type = { NULL, 0 };
    *p = (tn_onnx_port){ .name = "", .rank = -1 };
    *elem = ELEM_NONE;
    EACH(env, s, f) {
        if (f.number == 1) p->name = onnx_string(env, &f);
        if (f.number == 2) type = onnx_bytes(env, &f);
    }
    read_type(env, type, p, elem);
    p->type = onnx_elem_name(*elem);
    p->dtype = onnx_elem_dtype(*elem);
}

/* ---- nodes ---- */

static size_t list_length(onnx_env *env, onnx_span s, uint32_t number, int width) {
    size_t n = 0;
    EACH(env, s, f) if (f.number == number) n += onnx_numbers(env, &f, width, NULL);
    return n;
}

static void read_lists(onnx_env *env, onnx_span s, onnx_attr *a, const int *counts) {
    size_t ints = list_length(env, s, 8, 0), floats = list_length(env, s, 7, 4), i = 0, k = 0, t = 0;
    if (ints > INT32_MAX || floats > INT32_MAX) onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: a list is too long", env->file);
    if (counts[8]) a->ints = ONNX_NEW(env, int64_t, ints + 1); /* a packed list may be empty */
    if (counts[7]) a->floats = ONNX_NEW(env, float, floats + 1);
    if (counts[9]) a->strings = ONNX_NEW(env, onnx_span, counts[9]);
    EACH(env, s, f) {
        if (f.number == 8) i += onnx_numbers(env, &f, 0, a->ints + i);
        if (f.number == 7) k += onnx_numbers(env, &f, 4, a->floats + k);
        if (f.number == 9) a->strings[t++] = onnx_bytes(env, &f);
    }
    a->n = (int)(a->type == ATTR_FLOATS ? k : a->type == ATTR_STRINGS ? t : i);
}

/* Files of the first versions leave the type out: it follows from what is there. */
static int type_of(const int *counts) {
    static const int fields[][2] = { { 7, ATTR_FLOATS }, { 8, ATTR_INTS },   { 9, ATTR_STRINGS }, { 5, ATTR_TENSOR },
                                     { 6, ATTR_GRAPH },  { 4, ATTR_STRING }, { 2, ATTR_FLOAT },   { 3, ATTR_INT } };
    for (int i = 0; i < ONNX_COUNT(fields); i++)
        if (counts[fields[i][0]]) return fields[i][1];
    return 0;
}

static void read_attr(onnx_env *env, onnx_span s, onnx_attr *a) {
    int counts[24];
    onnx_count(env, s, counts, 24);
    a->name = "";
    a->type = type_of(counts);
    onnx_span whole = s;
    EACH(env, s, f) {
        switch (f.number) {
        case 1:
            a->name = onnx_string(env, &f);
            break;
        case 2:
            a->f = onnx_float(env, &f);
            break;
        case 3:
            a->i = onnx_int(env, &f);
            break;
        case 4:
            a->s = onnx_bytes(env, &f);
            break;
        case 5:
            a->t = onnx_bytes(env, &f);
            break;
        case 6:
            a->g = onnx_bytes(env, &f);
            break;
        case 20:
            a->type = (int)(onnx_int(env, &f) & 0xff);
            break;
        case 21:
            a->refers = onnx_string(env, &f);
            break;
        default:
            break;
        }
    }
    read_lists(env, whole, a, counts);
}

static void read_node(onnx_env *env, onnx_span s, onnx_node *n) {
    int counts[8];
    onnx_count(env, s, counts, 8);
    *n = (onnx_node){ .name = "", .op = "", .domain = "" };
    n->in = ONNX_NEW(env, const char *, counts[1]);
    n->out = ONNX_NEW(env, const char *, counts[2]);
    n->attrs = ONNX_NEW(env, onnx_attr, counts[5]);
    EACH(env, s, f) {
        switch (f.number) {
        case 1:
            n->in[n->n_in++] = onnx_string(env, &f);
            break;
        case 2:
            n->out[n->n_out++] = onnx_string(env, &f);
            break;
        case 3:
            n->name = onnx_string(env, &f);
            break;
        case 4:
            n->op = onnx_string(env, &f);
            break;
        case 5:
            read_attr(env, onnx_bytes(env, &f), &n->attrs[n->n_attrs++]);
            break;
        case 7:
            n->domain = onnx_string(env, &f);
            break;
        default:
            break;
        }
    }
    if (!strcmp(n->domain, "ai.onnx")) n->domain = "";
}

static void check_count(onnx_env *env, int n) {
    if (n > TN_ONNX_MAX_NODES)
        onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: more than %d nodes or arrays in a graph", env->file, TN_ONNX_MAX_NODES);
}

void onnx_read_graph(onnx_env *env, onnx_span s, onnx_graph *g) {
    int counts[16];
    onnx_count(env, s, counts, 16);
    check_count(env, counts[1]), check_count(env, counts[5]), check_count(env, counts[11]), check_count(env, counts[12]);
    if (counts[15]) onnx_fail(env, TN_ERR_UNSUPPORTED, "%s: sparse initial values", env->file);
    *g = (onnx_graph){ .name = "" };
    g->nodes = ONNX_NEW(env, onnx_node, counts[1]);
    g->inits = ONNX_NEW(env, onnx_tensor, counts[5]);
    g->inputs = ONNX_NEW(env, tn_onnx_port, counts[11]);
    g->in_elem = ONNX_NEW(env, int, counts[11]);
    g->outputs = ONNX_NEW(env, tn_onnx_port, counts[12]);
    g->out_elem = ONNX_NEW(env, int, counts[12]);
    EACH(env, s, f) {
        switch (f.number) {
        case 1:
            read_node(env, onnx_bytes(env, &f), &g->nodes[g->n_nodes++]);
            break;
        case 2:
            g->name = onnx_string(env, &f);
            break;
        case 5:
            onnx_read_tensor(env, onnx_bytes(env, &f), &g->inits[g->n_inits++]);
            break;
        case 11:
            read_port(env, onnx_bytes(env, &f), &g->inputs[g->n_inputs], &g->in_elem[g->n_inputs]), g->n_inputs++;
            break;
        case 12:
            read_port(env, onnx_bytes(env, &f), &g->outputs[g->n_outputs], &g->out_elem[g->n_outputs]), g->n_outputs++;
            break;
        default:
            break;
        }
    }
}

/* ---- models ---- */

static void read_opset(onnx_env *env, onnx_span s, onnx_opset *o) {
    *o = (onnx_opset){ .domain = "" };
    EACH(env, s, f) {
        if (f.number == 1) o->domain = onnx_string(env, &f);
        if (f.number == 2) o->version = onnx_int(env, &f);
    }
    if (!strcmp(o->domain, "ai.onnx")) o->domain = "";
}

static void read_function(onnx_env *env, onnx_span s, onnx_function *fn) {
    int counts[12];
    onnx_count(env, s, counts, 12);
    check_count(env, counts[7]);
    *fn = (onnx_function){ .name = "", .domain = "" };
    fn->in = ONNX_NEW(env, const char *, counts[4]);
    fn->out = ONNX_NEW(env, const char *, counts[5]);
    fn->attr_names = ONNX_NEW(env, const char *, counts[6]);
    fn->nodes = ONNX_NEW(env, onnx_node, counts[7]);
    fn->opsets = ONNX_NEW(env, onnx_opset, counts[9]);
    fn->defaults = ONNX_NEW(env, onnx_attr, counts[11]);
    EACH(env, s, f) {
        switch (f.number) {
        case 1:
            fn->name = onnx_string(env, &f);
            break;
        case 4:
            fn->in[fn->n_in++] = onnx_string(env, &f);
            break;
        case 5:
            fn->out[fn->n_out++] = onnx_string(env, &f);
            break;
        case 6:
            fn->attr_names[fn->n_attr_names++] = onnx_string(env, &f);
            break;
        case 7:
            read_node(env, onnx_bytes(env, &f), &fn->nodes[fn->n_nodes++]);
            break;
        case 9:
            read_opset(env, onnx_bytes(env, &f), &fn->opsets[fn->n_opsets++]);
            break;
        case 10:
            fn->domain = onnx_string(env, &f);
            break;
        case 11:
            read_attr(env, onnx_bytes(env, &f), &fn->defaults[fn->n_defaults++]);
            break;
        default:
            break;
        }
    }
}

/* Files before version 4 list initial values among the inputs, too. */
static void find_inputs(tn_onnx_model *m) {
    onnx_graph *g = &m->graph;
    m->input_at = ONNX_NEW(&m->env, int, g->n_inputs);
    m->input_constant = ONNX_NEW(&m->env, bool, g->n_inputs);
    int64_t work = 0;
    for (int i = 0; i < g->n_inputs; i++) {
        bool given = false;
        for (int k = 0; k < g->n_inits && !given; k++) given = !strcmp(g->inputs[i].name, g->inits[k].name);
        if ((work += g->n_inits) > 400000000)
            onnx_fail(&m->env, TN_ERR_UNSUPPORTED, "%s: %d inputs and %d initial values", m->env.file, g->n_inputs, g->n_inits);
        if (!given) m->input_at[m->n_inputs++] = i;
    }
}

void onnx_read_model(tn_onnx_model *m) {
    onnx_env *env = &m->env;
    int counts[32];
    onnx_span s = m->bytes;
    onnx_count(env, s, counts, 32);
    if (counts[7] != 1) onnx_fail(env, TN_ERR_PARSE, "%s: not an ONNX model: it has %d graphs", env->file, counts[7]);
    m->opsets = ONNX_NEW(env, onnx_opset, counts[8]);
    m->functions = ONNX_NEW(env, onnx_function, counts[25]);
    EACH(env, s, f) {
        if (f.number == 1) m->ir_version = onnx_int(env, &f);
        if (f.number == 7) onnx_read_graph(env, onnx_bytes(env, &f), &m->graph);
        if (f.number == 8) read_opset(env, onnx_bytes(env, &f), &m->opsets[m->n_opsets++]);
        if (f.number == 25) read_function(env, onnx_bytes(env, &f), &m->functions[m->n_functions++]);
    }
    find_inputs(m);
}
