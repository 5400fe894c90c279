/* graph_parse.c - text to graph (docs/ir.md has the grammar). In: {text, n}, any bytes. Out: a graph in the arena given whose
 * every node passed graph_infer, or a jump with TN_ERR_PARSE and, for every error, "file:line:col: message", the line and a
 * caret. One pass, no recursion.
 *
 * After an error parsing goes on behind the statement. The name that it would have defined stands for 0, and statements that
 * use such a name are passed over in silence: each mistake is reported once. */
#include "ir/graph_lex.h"
#include "ir/region.h"

/* ---- adding nodes ---- */

static const char *place(parser *p, const token *t) {
    if (!p->where || p->where_line != t->line) {
        p->where = arena_printf(p->a, "%.256s:%d", p->file, t->line);
        p->where_line = t->line;
    }
    return p->where;
}
/* Adds a node; its rule's complaint points at `t`, a type that differs from the one given at that type. */
static val add_node(parser *p, const token *t, const spec *s, const type_text *given) {
    tn_status code;
    type_text r = { 0 };
    if (p->g->nodes.n > TEXT_MAX_NODES) lex_fail_at(p, t, "more than %d values in a graph", TEXT_MAX_NODES);
    const char *text = graph_infer(p->g, s, p->a, &code, &r.dtype, &r.rank, r.dims);
    if (text) lex_fail_at(p, t, "%s", text);
    if (given && given->given &&
        (given->dtype != r.dtype || given->rank != r.rank ||
         (r.rank && memcmp(given->dims, r.dims, (size_t)r.rank * sizeof *r.dims))))
        lex_fail_at(p, &given->at, "%s gives %s%s here, not %s%s", op_get(s->op)->name, dtype_name(r.dtype),
                    graph_dims_text(p->g, p->a, r.rank, r.dims), dtype_name(given->dtype),
                    graph_dims_text(p->g, p->a, given->rank, given->dims));
    p->g->here = place(p, t);
    return graph_add(p->g, s);
}

/* ---- statements ---- */

typedef struct operand {
    val v; /* 0 = a literal: its token is in `at` */
    token at;
} operand;
typedef struct attr { /* key=value, with value an int, a number, a list, a pair of lists, @region or "string" */
    token key, value;
    char kind; /* '1' number or word, 'e' of dims (list[0][0]), '[' list, 'x' pair of lists, '@', '"' */
    int n[2];
    int64_t list[2][TN_MAX_RANK];
    bool used;
} attr;
enum { MAX_ATTRS = 8 };
typedef struct statement {
    token name, op_at;
    op_code op;
    VEC(operand) in;
    attr attrs[MAX_ATTRS];
    int n_attrs;
    int n_windows;
    int64_t windows[TN_MAX_RANK][4];
    type_text type;
    bool has_value; /* of a const */
    lexer_state value;
    int64_t values[2 + 4 * TN_MAX_RANK]; /* the op's attributes as node.attr wants them */
    int n_values;
} statement;

static bool take_operand(parser *p, operand *out) {
    *out = (operand){ .at = p->t };
    if (lex_is_literal(p)) {
        lex_next(p);
        return true;
    }
    if (p->t.kind != T_VALUE && p->t.kind != T_IDENT && p->t.kind != T_STRING) return false;
    entry *e = names_find(p, p->t.kind == T_VALUE ? '%' : 'i', p->t.s, p->t.ns);
    if (!e && p->t.kind == T_VALUE) FAIL(p, "value %.*s is not defined before this line", SHOW(&p->t));
    if (!e) FAIL(p, "there is no input or state named %.*s", SHOW(&p->t));
    if (!e->id) lex_give_up(p);
    out->v = e->id;
    if (graph_get(p->g, out->v)->region != p->region)
        FAIL(p,
             p->region ? "%.*s is outside this region: pass it in as an operand"
                       : "%.*s is inside a region: return it from there",
             SHOW(&p->t));
    lex_next(p);
    return true;
}
static int parse_list(parser *p, int64_t *out) {
    int n = 0;
    lex_expect(p, '[', "[");
    while (!lex_is(p, ']')) {
        if (n == TN_MAX_RANK) FAIL(p, "more than %d numbers", TN_MAX_RANK);
        out[n++] =
            p->g->params && (lex_is(p, '(') || (p->t.ns && *p->t.s != '-')) ? lex_dim(p) : lex_take_int(p, "a whole number");
        if (!lex_is(p, ',')) break;
        lex_next(p);
    }
    lex_expect(p, ']', ", or ]");
    return n;
}
static void parse_attr(parser *p, statement *s) {
    if (s->n_attrs == MAX_ATTRS) FAIL(p, "more than %d attributes", MAX_ATTRS);
    attr *a = &s->attrs[s->n_attrs];
    a->key = p->t;
    for (int i = 0; i < s->n_attrs; i++)
        if (s->attrs[i].key.ns == a->key.ns && !memcmp(s->attrs[i].key.s, a->key.s, a->key.ns))
            FAIL(p, "attribute %.*s is given twice", SHOW(&a->key));
    lex_next(p);
    lex_next(p); /* the = that the caller saw */
    a->value = p->t;
    if (lex_is(p, '[')) {
        a->kind = '[';
        a->n[0] = parse_list(p, a->list[0]);
        if (lex_is_word(p, "x")) {
            lex_next(p);
            a->kind = 'x';
            a->n[1] = parse_list(p, a->list[1]);
        }
    } else if (lex_is_literal(p) || p->t.kind == T_AT || p->t.kind == T_STRING) {
        a->kind = p->t.kind == T_AT ? '@' : p->t.kind == T_STRING ? '"' : '1';
        lex_next(p);
    } else if (p->g->params) {
        a->kind = 'e', a->list[0][0] = lex_dim(p);
    } else {
        lex_unexpected(p, "the attribute's value");
    }
    s->n_attrs++;
}
/* (axis=1 size=3 stride=1 dilation=1); stride and dilation may be left out. */
static void parse_window(parser *p, statement *s) {
    static const char *const keys[4] = { "axis", "size", "stride", "dilation" };
    token start = p->t;
    bool seen[4] = { 0 };
    if (s->n_windows == TN_MAX_RANK) FAIL(p, "more than %d windows", TN_MAX_RANK);
    int64_t *w = s->windows[s->n_windows++];
    w[2] = w[3] = 1;
    lex_next(p);
    while (!lex_is(p, ')')) {
        int k = 0;
        while (k < 4 && !lex_is_word(p, keys[k])) k++;
        if (k == 4) lex_unexpected(p, "axis=, size=, stride=, dilation= or )");
        if (seen[k]) FAIL(p, "%s is given twice", keys[k]);
        seen[k] = true;
        lex_next(p);
        lex_expect(p, '=', "=");
        w[k] = lex_take_int(p, "a whole number");
    }
    lex_next(p);
    if (!seen[0] || !seen[1]) lex_fail_at(p, &start, "a window needs axis= and size=");
}
static void end_line(parser *p) {
    if (p->t.kind == T_LINE)
        lex_skip_lines(p);
    else if (p->t.kind != T_END && !lex_is(p, '}'))
        lex_unexpected(p, "the end of the line");
    p->after = lex_save(p);
    p->ended = true;
}

/* ---- attributes of each op ---- */

static attr *find_attr(statement *s, const char *key) {
    for (int i = 0; i < s->n_attrs; i++)
        if (s->attrs[i].key.ns == strlen(key) && !memcmp(s->attrs[i].key.s, key, s->attrs[i].key.ns)) {
            s->attrs[i].used = true;
            return &s->attrs[i];
        }
    return NULL;
}
static attr *need_attr(parser *p, statement *s, const char *key, char kind, const char *what) {
    attr *a = find_attr(s, key);
    if (!a) lex_fail_at(p, &s->op_at, "%s needs %s=%s", op_get(s->op)->name, key, what);
    if (a->kind != kind) lex_fail_at(p, &a->value, "expected %s=%s", key, what);
    return a;
}
static void put(statement *s, int64_t v) { s->values[s->n_values++] = v; }
static void put_int(parser *p, statement *s, const char *key) {
    put(s, lex_int(p, &need_attr(p, s, key, '1', "NUMBER")->value));
}
static void put_size(parser *p, statement *s, const char *key) {
    attr *a = find_attr(s, key);
    if (a && a->kind == 'e')
        put(s, a->list[0][0]);
    else
        put_int(p, s, key);
}
static void put_optional_int(parser *p, statement *s, const char *key, int64_t other) {
    if (find_attr(s, key))
        put_int(p, s, key);
    else
        put(s, other);
}
static void put_mask(parser *p, statement *s) {
    attr *a = need_attr(p, s, "axes", '[', "[AXES]");
    int64_t mask = 0;
    for (int i = 0; i < a->n[0]; i++) {
        if (a->list[0][i] < 0 || a->list[0][i] >= TN_MAX_RANK)
            lex_fail_at(p, &a->value, "axis %lld; expected 0 to the rank less 1", (long long)a->list[0][i]);
        if (mask >> a->list[0][i] & 1) lex_fail_at(p, &a->value, "axis %lld is given twice", (long long)a->list[0][i]);
        mask |= (int64_t)1 << a->list[0][i];
    }
    put(s, mask);
}
static void put_list(parser *p, statement *s, const char *key, int rank) {
    attr *a = need_attr(p, s, key, '[', "[NUMBERS]");
    if (a->n[0] != rank) lex_fail_at(p, &a->value, "expected %d numbers, one an axis of the operand, got %d", rank, a->n[0]);
    for (int i = 0; i < rank; i++) put(s, a->list[0][i]);
}
static void put_dot(parser *p, statement *s, int rank_a) {
    static const char what[] = "[AXES]x[AXES]";
    attr *b = find_attr(s, "batch") ? need_attr(p, s, "batch", 'x', what) : NULL, *c = NULL;
    if (b || find_attr(s, "contract")) c = need_attr(p, s, "contract", 'x', what);
    attr matmul = { .n = { 1, 1 }, .list = { { rank_a - 1 }, { 0 } } }; /* neither given: last axis of a, first of b */
    if (!c) c = &matmul;
    if (b && b->n[0] != b->n[1]) lex_fail_at(p, &b->value, "expected as many axes of operand 0 as of operand 1");
    if (c->n[0] != c->n[1]) lex_fail_at(p, &c->value, "expected as many axes of operand 0 as of operand 1");
    if ((b ? b->n[0] : 0) + c->n[0] > TN_MAX_RANK) lex_fail_at(p, &c->value, "more than %d axes", TN_MAX_RANK);
    put(s, b ? b->n[0] : 0);
    put(s, c->n[0]);
    for (int side = 0; b && side < 2; side++)
        for (int i = 0; i < b->n[side]; i++) put(s, b->list[side][i]);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < c->n[side]; i++) put(s, c->list[side][i]);
}
static void put_region(parser *p, statement *s, const char *key) {
    attr *a = need_attr(p, s, key, '@', "@REGION");
    entry *e = names_find(p, '@', a->value.s, a->value.ns);
    if (!e) lex_fail_at(p, &a->value, "region %.*s is not defined before this line", SHOW(&a->value));
    if ((int)e->id == p->region) lex_fail_at(p, &a->value, "region %.*s cannot be inside itself", SHOW(&a->value));
    if (p->broken.at[e->id]) lex_give_up(p);
    if (p->taken.at[e->id]) lex_fail_at(p, &a->value, "region %.*s belongs to another op already", SHOW(&a->value));
    p->taken.at[e->id] = true;
    int depth = p->depth.at[e->id] + 1;
    if (depth > TEXT_MAX_NESTING) lex_fail_at(p, &a->value, "regions are nested more than %d deep", TEXT_MAX_NESTING);
    if (depth > p->depth.at[p->region]) p->depth.at[p->region] = depth;
    put(s, e->id);
}
static void put_attrs(parser *p, statement *s) {
    int rank = s->in.n && s->in.at[0].v ? graph_get(p->g, s->in.at[0].v)->rank : 0;
    switch (s->op) {
    case OP_sum:
    case OP_prod:
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_flip:
        put_mask(p, s);
        break;
    case OP_argmax:
    case OP_argmin:
    case OP_concat:
    case OP_gather:
    case OP_iota:
        put_int(p, s, "axis");
        break;
    case OP_scatter_add:
    case OP_scatter_set:
    case OP_scatter_mul:
    case OP_scatter_max:
    case OP_scatter_min:
        put_int(p, s, "axis");
        put_optional_int(p, s, "batch", 0);
        break;
    case OP_permute:
        put_list(p, s, "perm", rank);
        break;
    case OP_pad:
        put_list(p, s, "before", rank);
        put_list(p, s, "after", rank);
        break;
    case OP_slice:
        put_list(p, s, "start", rank);
        put_list(p, s, "step", rank);
        break;
    case OP_window:
    case OP_fold:
        put(s, s->n_windows);
        for (int i = 0; i < s->n_windows; i++)
            for (int k = 0; k < 4; k++) put(s, s->windows[i][k]);
        break;
    case OP_dot:
        put_dot(p, s, rank);
        break;
    case OP_random:
        put_int(p, s, "stream");
        break;
    case OP_proj:
        put_int(p, s, "index");
        break;
    case OP_if:
        put_region(p, s, "then");
        put_region(p, s, "else");
        break;
    case OP_while:
        put_region(p, s, "cond");
        put_region(p, s, "body");
        break;
    case OP_scan:
        put_region(p, s, "body");
        if (find_attr(s, "cond"))
            put_region(p, s, "cond");
        else
            put(s, 0);
        put_int(p, s, "carry");
        put_int(p, s, "steps");
        put_size(p, s, "length");
        put_optional_int(p, s, "reverse", 0);
        put_optional_int(p, s, "recompute", 0);
        break;
    default:
        break;
    }
}

/* ---- literals as operands ---- */

static val add_literal(parser *p, statement *s, int slot) {
    const op_info *o = op_get(s->op);
    const operand *lit = &s->in.at[slot];
    type_text type = { 0 };
    bool shape = false, dtype = false;
    if (!op_is_elementwise(s->op) || o->arity < 2)
        lex_fail_at(p, &lit->at, "%s takes no number here; give it a line of its own, such as %%c = const 0.5 f32[2,3]",
                    o->name);
    int first = o->arity == 3 ? 1 : 0; /* operands of one dtype; before that the condition */
    for (int i = 0; i < s->in.n; i++) {
        if (!s->in.at[i].v) continue;
        const node *n = graph_get(p->g, s->in.at[i].v);
        if (!shape) {
            type.rank = n->rank;
            if (n->rank) memcpy(type.dims, n->dims, n->rank * sizeof *n->dims);
            shape = true;
        }
        if (i >= first && !dtype) type.dtype = (tn_dtype)n->dtype, dtype = true;
    }
    if (s->type.given && !shape) {
        type.rank = s->type.rank;
        memcpy(type.dims, s->type.dims, sizeof type.dims);
        shape = true;
    }
    if (s->type.given && !dtype && o->cls != CL_CMP) type.dtype = s->type.dtype, dtype = true;
    if (first && slot == 0) type.dtype = TN_BOOL, dtype = true;
    if (!shape || !dtype)
        lex_fail_at(p, &lit->at,
                    "the type of this number cannot be inferred; give it a line of its own, such as %%c = const 0.5 f32[2,3]");
    spec c = { .op = OP_const, .dtype = type.dtype, .rank = type.rank, .dims = type.dims, .region = p->region };
    lexer_state value = { .pos = lit->at.at + lit->at.n, .line_at = lit->at.line_at, .line = lit->at.line, .t = lit->at };
    lex_read_value(p, &value, &type, false, &c);
    return add_node(p, &lit->at, &c, NULL);
}

/* ---- %k = op ... ---- */

static void parse_operands(parser *p, statement *s) {
    operand x;
    if (s->op == OP_const) {
        s->value = lex_save(p);
        s->has_value = true;
        lex_skip_value(p);
        return;
    }
    if (op_get(s->op)->arity == 0) return;
    if (!take_operand(p, &x)) lex_unexpected(p, "an operand");
    VEC_PUSH(p->a, &s->in, x);
    while (lex_take_comma(p)) {
        if (!take_operand(p, &x)) lex_unexpected(p, "an operand");
        VEC_PUSH(p->a, &s->in, x);
    }
}
static void parse_rest(parser *p, statement *s) {
    for (;;) {
        if (lex_is(p, '(') && (s->op == OP_window || s->op == OP_fold))
            parse_window(p, s);
        else if (p->t.kind == T_IDENT && lex_before_equals(p))
            parse_attr(p, s);
        else
            break;
    }
    if (p->t.kind == T_IDENT) lex_type(p, &s->type);
    end_line(p);
}
static bool needs_type(op_code op) {
    switch (op) {
    case OP_cast:
    case OP_bitcast:
    case OP_reshape:
    case OP_expand:
    case OP_slice:
    case OP_fold:
    case OP_const:
    case OP_iota:
    case OP_random:
        return true;
    default:
        return false;
    }
}
static op_code take_op(parser *p) {
    char name[32] = { 0 };
    if (p->t.kind != T_IDENT) lex_unexpected(p, "an op");
    if (p->t.ns < sizeof name) memcpy(name, p->t.s, p->t.ns);
    op_code op = op_find(name);
    if (op == OP_NIL) FAIL(p, "there is no op named '%.*s' (tenon ops lists them)", SHOW(&p->t));
    if (op == OP_input || op == OP_state) FAIL(p, "an %s is declared in the list after the graph's name", name);
    if (op == OP_param) FAIL(p, "parameters are declared in the list after the region's name");
    lex_next(p);
    return op;
}
static void parse_statement(parser *p) {
    statement st = { .name = p->t }, *s = &st;
    p->defining = p->t;
    lex_next(p);
    lex_expect(p, '=', "=");
    s->op_at = p->t;
    s->op = take_op(p);
    parse_operands(p, s);
    parse_rest(p, s);
    if (needs_type(s->op) && !s->type.given)
        lex_fail_at(p, &s->op_at, "%s needs the result's type, such as f32[2,3], at the end of the line", op_get(s->op)->name);
    put_attrs(p, s);
    for (int i = 0; i < s->in.n; i++)
        if (!s->in.at[i].v) s->in.at[i].v = add_literal(p, s, i);
    spec n = {
        .op = s->op, .dtype = s->type.dtype, .n_in = s->in.n, .attr = s->values, .n_attr = s->n_values, .region = p->region
    };
    if (needs_type(s->op) && op_get(s->op)->cls != CL_CAST) n.rank = s->type.rank, n.dims = s->type.dims;
    val *in = ARENA_ARRAY(p->a, val, s->in.n);
    for (int i = 0; i < s->in.n; i++) in[i] = s->in.at[i].v;
    n.in = in;
    if (s->op == OP_pad) n.imm = lex_double(p, &need_attr(p, s, "value", '1', "NUMBER")->value);
    if (s->has_value) lex_read_value(p, &s->value, &s->type, false, &n);
    attr *label = find_attr(s, "label");
    if (label) n.name = lex_name(p, &need_attr(p, s, "label", '"', "\"TEXT\"")->value);
    for (int i = 0; i < s->n_attrs; i++)
        if (!s->attrs[i].used)
            lex_fail_at(p, &s->attrs[i].key, "%s has no attribute '%.*s'", op_get(s->op)->name, SHOW(&s->attrs[i].key));
    val v = add_node(p, &s->op_at, &n, &s->type);
    names_add(p, '%', &s->name, s->name.s, s->name.ns, v, "value");
}

/* ---- header, regions, return ---- */

static void parse_symbols(parser *p) {
    if (!lex_is(p, '<')) return;
    do {
        lex_next(p);
        token t = p->t;
        if (t.kind != T_IDENT) lex_unexpected(p, "a symbolic dim such as B 1..64");
        if (text_is_reserved(t.s, t.ns)) FAIL(p, "%.*s is a reserved word", SHOW(&t));
        exts *params = graph_params(p->g);
        if (params->n_dims == TEXT_MAX_SYMBOLS) FAIL(p, "more than %d symbolic dims", TEXT_MAX_SYMBOLS);
        lex_next(p);
        const char *name = lex_name(p, &t);
        int64_t lo = lex_take_int(p, "a range such as 1..64"), by = 1;
        if (p->t.kind != T_DOTS) lex_unexpected(p, "..");
        lex_next(p);
        int64_t hi = lex_take_int(p, "the end of the range");
        if (lex_is_word(p, "by")) lex_next(p), by = lex_take_int(p, "what divides the dim");
        if (lo < 0 || hi < lo)
            lex_fail_at(p, &t, "the range of %.*s is %lld..%lld; expected 0 <= low <= high", SHOW(&t), (long long)lo,
                        (long long)hi);
        if (by < 1 || lo % by || hi % by)
            lex_fail_at(p, &t, "%.*s: the ends of its range, %lld and %lld, must be multiples of %lld", SHOW(&t), (long long)lo,
                        (long long)hi, (long long)by);
        names_add(p, 's', &t, t.s, t.ns, (uint32_t)params->n_dims + 1, "symbolic dim");
        ext_dim(params, name, lo, hi, by);
    } while (lex_is(p, ','));
    lex_expect(p, '>', ", or >");
}
static void parse_input(parser *p) {
    bool is_state = lex_is_word(p, "state");
    spec s = { .op = is_state ? OP_state : OP_input };
    type_text type;
    if (is_state) lex_next(p);
    token t = p->t;
    if (t.kind != T_IDENT && t.kind != T_STRING) lex_unexpected(p, "the name of an input");
    if (t.kind == T_IDENT && text_is_reserved(t.s, t.ns))
        FAIL(p, "%.*s is a reserved word; as a name it stands in quotes", SHOW(&t));
    p->defining = t;
    lex_next(p);
    lex_type(p, &type);
    if (lex_is(p, '=')) {
        if (!is_state) FAIL(p, "only a state has an initial value");
        lex_next(p);
        lexer_state value = lex_save(p);
        lex_skip_value(p);
        lex_read_value(p, &value, &type, true, &s);
    }
    s.name = lex_name(p, &t);
    s.dtype = type.dtype, s.rank = type.rank, s.dims = type.dims;
    names_add(p, 'i', &t, t.s, t.ns, add_node(p, &t, &s, NULL), "input");
}
static void try_item(parser *p);
static void parse_param(parser *p, int index) {
    type_text type;
    token t = p->t;
    if (t.kind != T_VALUE) lex_unexpected(p, "a parameter such as %x f32[2,3]");
    if (index == TEXT_MAX_PARAMS) FAIL(p, "more than %d parameters", TEXT_MAX_PARAMS);
    p->defining = t;
    lex_next(p);
    lex_type(p, &type);
    int64_t at = index;
    spec s = {
        .op = OP_param, .dtype = type.dtype, .rank = type.rank, .dims = type.dims, .attr = &at, .n_attr = 1, .region = p->region
    };
    names_add(p, '%', &t, t.s, t.ns, add_node(p, &t, &s, NULL), "value");
}
static void parse_item(parser *p) {
    if (p->region)
        parse_param(p, p->g->regions.at[p->region].n_params);
    else
        parse_input(p);
}
/* ( item, item ) {, where an item is an input or, in a region, a parameter */
static void parse_signature(parser *p) {
    p->structure = true;
    lex_expect(p, '(', "(");
    lex_skip_lines(p);
    while (!lex_is(p, ')')) {
        try_item(p);
        if (lex_take_comma(p)) continue;
        lex_skip_lines(p);
        break;
    }
    lex_expect(p, ')', ", or )");
    lex_skip_lines(p);
    lex_expect(p, '{', "{");
    p->structure = false;
    lex_skip_lines(p);
}
static void parse_output(parser *p, int index) {
    operand x;
    output o = { 0 };
    token t = p->t;
    if (!take_operand(p, &x)) lex_unexpected(p, "a value");
    if (!x.v) lex_fail_at(p, &t, "expected a value, got a number; give it a line of its own, such as %%c = const 0.5 f32[2,3]");
    o.v = x.v;
    if (p->region) {
        if (index == TEXT_MAX_PARAMS) lex_fail_at(p, &t, "more than %d results", TEXT_MAX_PARAMS);
        graph_region_result(p->g, p->region, x.v);
        return;
    }
    token name = p->t;
    if (lex_is_word(p, "as")) {
        lex_next(p);
        name = p->t;
        if (name.kind != T_STRING) lex_unexpected(p, "the output's name in quotes");
        if (!name.ns) FAIL(p, "an output needs a name");
        o.name = lex_name(p, &name);
        lex_next(p);
    }
    if (p->t.kind == T_ARROW) {
        lex_next(p);
        token target = p->t;
        operand state;
        if (!take_operand(p, &state) || !state.v || graph_get(p->g, state.v)->op != OP_state)
            lex_fail_at(p, &target, "expected a state");
        o.state = state.v;
        if (!graph_same_shape(p->g, o.v, o.state) || graph_get(p->g, o.v)->dtype != graph_get(p->g, o.state)->dtype)
            lex_fail_at(p, &t, "state %.*s is %s and cannot take %s", SHOW(&target), graph_shape_text(p->g, p->a, o.state),
                        graph_shape_text(p->g, p->a, o.v));
        names_add(p, 'a', &target, target.s, target.ns, o.state, "the new value of state");
    }
    if (!o.name && !o.state) o.name = arena_printf(p->a, "out%d", index);
    entry *taken = o.name ? names_find(p, 'i', o.name, strlen(o.name)) : NULL;
    if (taken && taken->id && graph_get(p->g, taken->id)->op == OP_input)
        lex_fail_at(p, &name, "output %.40s has the name of the input in line %d: runs find both by it", o.name, taken->line);
    p->g->here = place(p, &t);
    if (o.name) names_add(p, 'o', &name, o.name, strlen(o.name), o.v, "output");
    graph_sink(p->g, o.name, o.v, o.state);
}
static void parse_return(parser *p) {
    p->closing = true;
    lex_next(p);
    if (p->t.kind != T_LINE && !lex_is(p, '}')) {
        int i = 0;
        do parse_output(p, i++);
        while (lex_take_comma(p));
    }
    end_line(p);
}
static void parse_closing(parser *p) {
    p->structure = true;
    lex_expect(p, '}', "} after return");
    p->structure = p->closing = false;
    p->done = !p->region;
    p->region = 0;
    if (!p->done) end_line(p);
}
static void parse_region_start(parser *p) {
    p->structure = true;
    if (p->region) FAIL(p, "a region inside a region: define it before this one");
    lex_next(p);
    token t = p->t;
    if (t.kind != T_AT) lex_unexpected(p, "@ and the region's name");
    lex_next(p);
    p->region = graph_region(p->g, lex_name(p, &t));
    VEC_PUSH(p->a, &p->depth, 0);
    VEC_PUSH(p->a, &p->taken, false);
    VEC_PUSH(p->a, &p->broken, false);
    names_add(p, '@', &t, t.s, t.ns, (uint32_t)p->region, "region");
    parse_signature(p);
}

/* ---- the whole, and going on after errors ---- */

enum { MAX_ERRORS = 20 };
static void note_error(parser *p, const char *text) {
    if (!*text || (p->structure && p->n_errors)) return; /* of the second kind one is enough: it may be due to another */
    if (p->errors.n + strlen(text) + 64 < sizeof(err){ 0 }.text)
        str_addf(&p->errors, "%s%s", p->errors.n ? "\n" : "", text);
    else
        p->n_hidden++;
    p->n_errors++;
}
/* False after an error in fn, which is noted. Others than those of the text go on to the caller's guard. */
static bool attempt(parser *p, void (*fn)(parser *p)) {
    guard *outer = p->a->gd, inner;
    p->a->gd = &inner;
    p->defining.kind = T_END;
    p->ended = false;
    if (GUARD_TRY(&inner)) {
        fn(p);
        p->a->gd = outer;
        return true;
    }
    p->a->gd = outer;
    if (inner.err.code != TN_ERR_PARSE) guard_fail(outer, inner.err.code, "%s", inner.err.text);
    note_error(p, inner.err.text);
    const token *t = &p->defining;
    char kind = t->kind == T_VALUE ? '%' : 'i';
    if (t->kind != T_END && !names_find(p, kind, t->s, t->ns)) names_add(p, kind, t, t->s, t->ns, 0, "value");
    p->broken.at[p->region] = true;
    return false;
}
static void try_item(parser *p) {
    token start = p->t;
    p->structure = false;
    if (!attempt(p, parse_item)) lex_skip_rest(p, &start, true);
    p->structure = true;
}

static void parse_line(parser *p) {
    lex_skip_lines(p);
    p->start = p->t;
    if (p->closing) {
        parse_closing(p);
    } else if (p->t.kind == T_VALUE) {
        parse_statement(p);
    } else if (lex_is_word(p, "region")) {
        parse_region_start(p);
    } else if (lex_is_word(p, "return")) {
        parse_return(p);
    } else {
        p->structure = p->t.kind == T_END || lex_is(p, '}');
        lex_unexpected(p, "%name = op ..., a region or return");
    }
}
static void parse_header(parser *p) {
    p->structure = true;
    lex_next(p);
    lex_skip_lines(p);
    if (!lex_is_word(p, "graph")) lex_unexpected(p, "graph @name(...) {");
    lex_next(p);
    if (p->t.kind != T_AT) lex_unexpected(p, "@ and the graph's name");
    p->g = graph_make(p->a, lex_name(p, &p->t));
    lex_next(p);
    parse_symbols(p);
    parse_signature(p);
}
static void parse_end(parser *p) {
    lex_skip_lines(p);
    if (p->t.kind != T_END) lex_unexpected(p, "the end of the text");
}

graph *graph_parse(arena *a, const char *text, size_t n, const char *file) {
    parser p = { .a = a, .text = text, .n = n, .file = file ? file : "text", .line = 1 };
    str_init(&p.errors, a);
    VEC_PUSH(a, &p.depth, 0);
    VEC_PUSH(a, &p.taken, false);
    VEC_PUSH(a, &p.broken, false);
    bool going = attempt(&p, parse_header);
    while (going && !p.done && p.n_errors < MAX_ERRORS) {
        p.start = p.t;
        if (attempt(&p, parse_line)) continue;
        going = !p.structure;
        if (p.ended)
            lex_restore(&p, &p.after);
        else if (going)
            lex_skip_rest(&p, &p.start, false);
    }
    if (p.done) attempt(&p, parse_end);
    if (p.n_hidden || p.n_errors == MAX_ERRORS) str_add(&p.errors, "\nthere may be more errors: these are the first");
    if (p.n_errors) guard_fail(a->gd, TN_ERR_PARSE, "%s", p.errors.s);
    p.g->here = NULL;
    return p.g;
}
