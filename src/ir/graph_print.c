/* graph_print.c - the canonical text of a graph (docs/ir.md). In: any graph, also a broken one in a debugger's hands: whatever
 * does not exist prints as "?". Out: text that graph_parse reads back as an equal graph. Scratch memory comes from the string's
 * arena. */
#include "ir/graph.h"
#include "ir/graph_text.h"
#include "ir/region.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct printer {
    const graph *g;
    str *out;
    size_t line;         /* where the current line starts in out */
    uint32_t *number;    /* of a value's name %k; 0 = not printed on a line of its own */
    bool *is_inline;     /* consts printed as literals where they are used */
    uint32_t *region_no; /* of a region's name @rK */
    uint32_t next_number, next_region;
    val *order; /* all nodes by region, then in topological order */
    int *first; /* [regions.n + 1] into order */
} printer;

enum { TYPE_COLUMN = 48, WRAP_COLUMN = 110 };

static void line_end(printer *p) {
    str_add(p->out, "\n");
    p->line = p->out->n;
}
/* Long lists go on in the next line: the parser takes a line end after any comma. */
static void comma(printer *p) {
    if (p->out->n - p->line <= WRAP_COLUMN) {
        str_add(p->out, ", ");
        return;
    }
    str_add(p->out, ",");
    line_end(p);
    str_add(p->out, "      ");
}

/* ---- names ---- */

bool text_is_reserved(const char *s, size_t n) {
    static const char *const words[] = { "graph", "region", "return", "state", "as", "true", "false", "nan", "inf", "rand" };
    tn_dtype t;
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strlen(words[i]) == n && !memcmp(words[i], s, n)) return true;
    return dtype_find(s, n, &t);
}
bool text_is_ident_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool text_is_ident(char c) { return text_is_ident_start(c) || (c >= '0' && c <= '9') || c == '.' || c == '/'; }

static void quoted(str *out, const char *s) {
    str_add(out, "\"");
    for (const char *c = s; *c;) {
        size_t n = utf8_length(c);
        if (*c == '"' || *c == '\\')
            str_addf(out, "\\%c", *c);
        else if (n)
            str_addn(out, c, n);
        else
            str_addf(out, "\\x%02x", (unsigned char)*c);
        c += n ? n : 1;
    }
    str_add(out, "\"");
}
static void name_bare_or_quoted(str *out, const char *s) {
    size_t n = s ? strlen(s) : 0;
    bool bare = n > 0 && text_is_ident_start(s[0]) && !text_is_reserved(s, n);
    for (size_t i = 0; bare && i < n; i++) bare = text_is_ident(s[i]) && !(s[i] == '.' && s[i + 1] == '.');
    if (bare)
        str_add(out, s);
    else
        quoted(out, s ? s : "?");
}

/* ---- numbers and arrays ---- */

/* Shortest text that the dtype reads back as the same value. */
static void number(str *out, tn_dtype t, const void *data, int64_t i) {
    if (t == TN_BOOL) {
        str_add(out, dtype_load_int(t, data, i) ? "true" : "false");
        return;
    }
    if (!dtype_is_float(t)) {
        str_addf(out, t == TN_U64 ? "%llu" : "%lld", (long long)dtype_load_int(t, data, i));
        return;
    }
    size_t size = dtype_size(t);
    double v = dtype_load(t, data, i);
    uint64_t bits = 0, back = 0;
    memcpy(&bits, (const char *)data + (size_t)i * size, size);
    if (isnan(v)) {
        dtype_store(t, &back, 0, (double)NAN);
        if (bits == back)
            str_add(out, "nan");
        else
            str_addf(out, "0x%llx", (unsigned long long)bits);
        return;
    }
    char text[40];
    for (int digits = 1; digits <= 17 && !isinf(v); digits++) {
        number_write(text, sizeof text, digits, v);
        dtype_store(t, &back, 0, number_read(text, NULL));
        if (back == bits) break;
    }
    if (isinf(v))
        snprintf(text, sizeof text, v < 0 ? "-inf" : "inf");
    else if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    str_add(out, text);
}
static void literal(str *out, const node *n) {
    uint64_t e = 0;
    tn_dtype t = (tn_dtype)n->dtype;
    if ((unsigned)t >= TN_N_DTYPES) {
        str_add(out, "?");
        return;
    }
    if (dtype_is_float(t))
        dtype_store(t, &e, 0, n->imm);
    else
        dtype_store_int(t, &e, 0, n->imm_int);
    number(out, t, &e, 0);
}
static void array(printer *p, const node *n) {
    int64_t elems = 1;
    bool known = (unsigned)n->dtype < TN_N_DTYPES;
    for (int i = 0; i < n->rank && known; i++) known = size_mul(elems, n->dims[i], &elems);
    if (!known || (elems && !n->data)) {
        str_add(p->out, "[?]");
    } else if (elems <= TEXT_LIST_MAX) {
        str_add(p->out, "[");
        for (int64_t i = 0; i < elems; i++) {
            if (i) comma(p);
            number(p->out, (tn_dtype)n->dtype, n->data, i);
        }
        str_add(p->out, "]");
    } else {
        static const char digit[] = "0123456789abcdef";
        const unsigned char *b = n->data;
        size_t size = (size_t)elems * dtype_size((tn_dtype)n->dtype);
        str_add(p->out, "x\"");
        bool is_bool = n->dtype == TN_BOOL;
        for (size_t i = 0; i < size; i++) {
            unsigned char c = is_bool ? b[i] != 0 : b[i];
            str_addn(p->out, (const char[]){ digit[c >> 4], digit[c & 15] }, 2);
        }
        str_add(p->out, "\"");
    }
}

/* ---- one value ---- */

static void type(printer *p, const node *n) {
    str_add(p->out, dtype_name((tn_dtype)n->dtype));
    str_add(p->out, graph_dims_text(p->g, p->out->a, n->rank, n->dims));
}
static void reference(printer *p, val v) {
    if (v == 0 || v >= (val)p->g->nodes.n) {
        str_add(p->out, "%?");
        return;
    }
    const node *n = graph_get(p->g, v);
    if (n->op == OP_input || n->op == OP_state)
        name_bare_or_quoted(p->out, n->name);
    else if (p->is_inline[v])
        literal(p->out, n);
    else
        str_addf(p->out, "%%%u", p->number[v]);
}

static void size(printer *p, ext e) {
    if (ext_is_lit(e) || !p->g->params || ext_index(e) >= p->g->params->at.n)
        str_addf(p->out, "%lld", (long long)e);
    else
        ext_print_plain(p->g->params, e, p->out);
}

/* `n` attribute values from `at`; values that a broken node lacks print as "?". */
static void list(printer *p, const node *n, int64_t at, int64_t count) {
    str_add(p->out, "[");
    for (int64_t i = 0; i < count && i <= TN_MAX_RANK; i++) {
        if (i) str_add(p->out, ",");
        if (at + i >= 0 && at + i < n->n_attr)
            size(p, n->attr[at + i]);
        else
            str_add(p->out, "?");
    }
    str_add(p->out, "]");
}
static void named_list(printer *p, const char *key, const node *n, int64_t at, int64_t count) {
    str_addf(p->out, " %s=", key);
    list(p, n, at, count);
}
static void named_int(printer *p, const char *key, const node *n, int at) {
    str_addf(p->out, at < n->n_attr ? " %s=" : " %s=?", key);
    if (at < n->n_attr) size(p, n->attr[at]);
}
static void named_region(printer *p, const char *key, const node *n, int at) {
    if (at < n->n_attr && n->attr[at] > 0 && n->attr[at] < p->g->regions.n)
        str_addf(p->out, " %s=@r%u", key, p->region_no[n->attr[at]]);
    else
        str_addf(p->out, " %s=@?", key);
}
static void named_mask(printer *p, const node *n) {
    uint64_t mask = n->n_attr ? (uint64_t)n->attr[0] : 0;
    const char *sep = "";
    str_add(p->out, " axes=[");
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) {
            str_addf(p->out, "%s%d", sep, i);
            sep = ",";
        }
    str_add(p->out, "]");
}
static void windows(printer *p, const node *n) {
    for (int i = 1; i + 3 < n->n_attr; i += 4)
        str_addf(p->out, " (axis=%lld size=%lld stride=%lld dilation=%lld)", (long long)n->attr[i], (long long)n->attr[i + 1],
                 (long long)n->attr[i + 2], (long long)n->attr[i + 3]);
}
static void dot_axes(printer *p, const node *n) {
    int64_t nb = n->n_attr > 0 ? n->attr[0] : 0, nc = n->n_attr > 1 ? n->attr[1] : 0;
    if (nb < 0 || nb > TN_MAX_RANK) nb = 0;
    if (nb) {
        named_list(p, "batch", n, 2, nb);
        str_add(p->out, "x");
        list(p, n, 2 + nb, nb);
    }
    named_list(p, "contract", n, 2 + 2 * nb, nc);
    str_add(p->out, "x");
    list(p, n, 2 + 2 * nb + nc, nc);
}
static void attributes(printer *p, const node *n) {
    int rank = n->rank;
    switch (n->op) {
    case OP_sum:
    case OP_prod:
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_flip:
        named_mask(p, n);
        break;
    case OP_argmax:
    case OP_argmin:
    case OP_concat:
    case OP_gather:
    case OP_iota:
        named_int(p, "axis", n, 0);
        break;
    case OP_scatter_add:
    case OP_scatter_set:
    case OP_scatter_mul:
    case OP_scatter_max:
    case OP_scatter_min:
        named_int(p, "axis", n, 0);
        if (n->n_attr < 2 || n->attr[1]) named_int(p, "batch", n, 1);
        break;
    case OP_permute:
        named_list(p, "perm", n, 0, rank);
        break;
    case OP_pad:
        named_list(p, "before", n, 0, rank);
        named_list(p, "after", n, rank, rank);
        str_add(p->out, " value=");
        str_double(p->out, n->imm);
        break;
    case OP_slice:
        named_list(p, "start", n, 0, rank);
        named_list(p, "step", n, rank, rank);
        break;
    case OP_window:
    case OP_fold:
        windows(p, n);
        break;
    case OP_dot:
        dot_axes(p, n);
        break;
    case OP_random:
        named_int(p, "stream", n, 0);
        break;
    case OP_proj:
        named_int(p, "index", n, 0);
        break;
    case OP_if:
        named_region(p, "then", n, 0);
        named_region(p, "else", n, 1);
        break;
    case OP_while:
        named_region(p, "cond", n, 0);
        named_region(p, "body", n, 1);
        break;
    case OP_scan:
        named_region(p, "body", n, SCAN_BODY);
        if (n->n_attr <= SCAN_COND || n->attr[SCAN_COND]) named_region(p, "cond", n, SCAN_COND);
        named_int(p, "carry", n, SCAN_CARRY);
        named_int(p, "steps", n, SCAN_STEPS);
        named_int(p, "length", n, SCAN_LENGTH);
        if (n->n_attr <= SCAN_REVERSE || n->attr[SCAN_REVERSE]) named_int(p, "reverse", n, SCAN_REVERSE);
        if (n->n_attr <= SCAN_RECOMPUTE || n->attr[SCAN_RECOMPUTE]) named_int(p, "recompute", n, SCAN_RECOMPUTE);
        break;
    default:
        break;
    }
}
static void statement(printer *p, const char *indent, val v) {
    node whole = *graph_get(p->g, v), *n = &whole;
    if (!n->attr) n->n_attr = 0; /* broken */
    if (!n->in) n->n_in = 0;
    str_addf(p->out, "%s%%%u = %s", indent, p->number[v], op_get((op_code)n->op)->name);
    for (int i = 0; i < n->n_in; i++) {
        if (i)
            comma(p);
        else
            str_add(p->out, " ");
        reference(p, n->in[i]);
    }
    if (n->op == OP_const) {
        str_add(p->out, " ");
        if (n->splat)
            literal(p->out, n);
        else
            array(p, n);
    }
    attributes(p, n);
    if (n->name) {
        str_add(p->out, " label=");
        quoted(p->out, n->name);
    }
    do str_add(p->out, " ");
    while (p->out->n - p->line < TYPE_COLUMN);
    type(p, n);
    line_end(p);
}

/* ---- the whole ---- */

static bool is_literal_slot(const graph *g, const node *user, int slot) {
    const op_info *o = op_get((op_code)user->op);
    if (!op_is_elementwise((op_code)user->op) || o->arity < 2 || user->n_in != o->arity) return false;
    if (o->cls != CL_CMP) return true; /* the result's type is printed, and gives the literal's */
    val other = user->in[1 - slot];
    return other < (val)g->nodes.n && !(graph_get(g, other)->op == OP_const && graph_get(g, other)->splat);
}
static void find_inline(printer *p) {
    const graph *g = p->g;
    p->is_inline = ARENA_ARRAY(p->out->a, bool, g->nodes.n);
    for (int i = 1; i < g->nodes.n; i++) {
        const node *n = &g->nodes.at[i];
        for (int k = 0; n->in && k < n->n_in; k++) {
            if (n->in[k] == 0 || n->in[k] >= (val)g->nodes.n) continue;
            const node *c = graph_get(g, n->in[k]);
            if (c->op == OP_const && c->splat && !c->name) p->is_inline[n->in[k]] = true;
        }
    }
    for (int i = 1; i < g->nodes.n; i++) /* one use that needs a name takes it back */
        for (int k = 0; g->nodes.at[i].in && k < g->nodes.at[i].n_in; k++) {
            val v = g->nodes.at[i].in[k];
            if (v < (val)g->nodes.n && !is_literal_slot(g, &g->nodes.at[i], k)) p->is_inline[v] = false;
        }
    for (int i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].v < (val)g->nodes.n) p->is_inline[g->outputs.at[i].v] = false;
    for (int i = 1; i < g->regions.n; i++)
        for (int k = 0; k < g->regions.at[i].n_results; k++)
            if (g->regions.at[i].results[k] < (val)g->nodes.n) p->is_inline[g->regions.at[i].results[k]] = false;
}
/* Sorts the nodes by region, keeping the topological order in each. */
static void find_order(printer *p) {
    const graph *g = p->g;
    arena *a = p->out->a;
    val *all = ARENA_ARRAY(a, val, g->nodes.n);
    int n = graph_order(g, a, false, all), regions = g->regions.n;
    p->order = ARENA_ARRAY(a, val, g->nodes.n);
    p->first = ARENA_ARRAY(a, int, regions + 2);
    for (int i = 0; i < n; i++) {
        int r = graph_get(g, all[i])->region;
        if (r < regions) p->first[r + 2]++;
    }
    for (int r = 0; r < regions; r++) p->first[r + 2] += p->first[r + 1];
    for (int i = 0; i < n; i++) {
        int r = graph_get(g, all[i])->region;
        if (r < regions) p->order[p->first[r + 1]++] = all[i];
    }
}
static void body(printer *p, const char *indent, int r) {
    for (int i = p->first[r]; i < p->first[r + 1]; i++) {
        val v = p->order[i];
        const node *n = graph_get(p->g, v);
        if (n->op == OP_input || n->op == OP_state || n->op == OP_param || p->is_inline[v]) continue;
        p->number[v] = ++p->next_number;
        statement(p, indent, v);
    }
}
static void print_region(printer *p, int i) {
    const region *r = &p->g->regions.at[i];
    p->region_no[i] = ++p->next_region;
    str_addf(p->out, "  region @r%u(", p->region_no[i]);
    for (int k = 0; k < r->n_params; k++) {
        if (k) comma(p);
        if (r->params[k] == 0 || r->params[k] >= (val)p->g->nodes.n) {
            str_add(p->out, "%?");
            continue;
        }
        p->number[r->params[k]] = ++p->next_number;
        str_addf(p->out, "%%%u ", p->number[r->params[k]]);
        type(p, graph_get(p->g, r->params[k]));
    }
    str_add(p->out, ") {");
    line_end(p);
    body(p, "    ", i);
    str_add(p->out, "    return");
    for (int k = 0; k < r->n_results; k++) {
        if (k)
            comma(p);
        else
            str_add(p->out, " ");
        reference(p, r->results[k]);
    }
    line_end(p);
    str_add(p->out, "  }");
    line_end(p);
}
/* A region stands before the ops that name it: print those whose own regions are printed, until none is left. A round that
 * prints none means regions inside themselves (a broken graph): then the rest comes in order. */
static void print_regions(printer *p) {
    const graph *g = p->g;
    bool progress = true;
    for (int left = g->regions.n - 1; left > 0;) {
        bool forced = !progress;
        progress = false;
        for (int i = 1; i < g->regions.n; i++) {
            if (p->region_no[i]) continue;
            bool ready = true;
            for (int k = p->first[i]; k < p->first[i + 1] && ready; k++) {
                const node *n = graph_get(g, p->order[k]);
                for (int j = 0; n->attr && j < node_regions(n); j++)
                    if (n->attr[j] > 0 && n->attr[j] < g->regions.n && !p->region_no[n->attr[j]]) ready = false;
            }
            if (!ready && !forced) continue;
            print_region(p, i);
            progress = true;
            left--;
        }
    }
}
static void header(printer *p) {
    const graph *g = p->g;
    str_add(p->out, "graph @");
    name_bare_or_quoted(p->out, g->name);
    bool dims = g->params && g->params->n_dims;
    if (dims) str_add(p->out, "<");
    if (dims) exts_print_dims(g->params, p->out);
    str_add(p->out, dims ? ">(" : "(");
    for (int i = 0; i < g->inputs.n; i++) {
        if (i) comma(p);
        if (g->inputs.at[i] == 0 || g->inputs.at[i] >= (val)g->nodes.n) {
            str_add(p->out, "?");
            continue;
        }
        const node *n = graph_get(g, g->inputs.at[i]);
        if (n->op == OP_state) str_add(p->out, "state ");
        name_bare_or_quoted(p->out, n->name);
        str_add(p->out, " ");
        type(p, n);
        if (n->op == OP_state && n->data) {
            str_add(p->out, " = ");
            array(p, n);
        }
    }
    str_add(p->out, ") {");
    line_end(p);
}
void graph_print(const graph *g, str *out) {
    printer p = { .g = g, .out = out, .line = out->n };
    p.number = ARENA_ARRAY(out->a, uint32_t, g->nodes.n);
    p.region_no = ARENA_ARRAY(out->a, uint32_t, g->regions.n);
    find_inline(&p);
    find_order(&p);
    header(&p);
    print_regions(&p);
    body(&p, "  ", 0);
    str_add(out, "  return");
    for (int i = 0; i < g->outputs.n; i++) {
        const output *o = &g->outputs.at[i];
        if (i)
            comma(&p);
        else
            str_add(out, " ");
        reference(&p, o->v);
        if (o->name) {
            str_add(out, " as ");
            quoted(out, o->name);
        }
        if (o->state) {
            str_add(out, " -> ");
            reference(&p, o->state);
        }
    }
    line_end(&p);
    str_add(out, "}\n");
}
