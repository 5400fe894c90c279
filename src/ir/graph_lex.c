/* graph_lex.c - implementation of graph_lex.h: bytes to tokens, and the parts of the grammar below a statement. Nothing is
 * allocated by a number in the text before that number is checked. */
#include "ir/graph_lex.h"

#include <math.h>
#include <stdlib.h>

/* ---- errors ---- */

enum { SHOWN_BEFORE = 60, SHOWN = 100 };
void lex_fail_at(parser *p, const token *t, const char *fmt, ...) {
    err message; /* formatted first: it may be longer than what the guard takes */
    char line[SHOWN + 1], caret[SHOWN + 1];
    va_list ap;
    va_start(ap, fmt);
    err_vset(&message, TN_ERR_PARSE, fmt, ap);
    va_end(ap);
    size_t col = t->at - t->line_at, from = col > SHOWN_BEFORE ? col - SHOWN_BEFORE : 0, k = 0;
    for (; k < SHOWN && t->line_at + from + k < p->n && p->text[t->line_at + from + k] != '\n'; k++) {
        unsigned char c = (unsigned char)p->text[t->line_at + from + k];
        line[k] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
    }
    line[k] = 0;
    memset(caret, ' ', col - from);
    caret[col - from] = 0;
    guard_fail(p->a->gd, TN_ERR_PARSE, "%.256s:%d:%zu: %.1400s\n  %s\n  %s^", p->file, t->line, col + 1, message.text, line,
               caret);
}

void lex_give_up(parser *p) { guard_fail(p->a->gd, TN_ERR_PARSE, "%s", ""); }

/* ---- lexer ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
static char peek(const parser *p, size_t k) { return p->pos + k < p->n ? p->text[p->pos + k] : 0; }

static void skip_blank(parser *p) {
    for (; p->pos < p->n; p->pos++) {
        char c = p->text[p->pos];
        if (c == ';')
            while (p->pos + 1 < p->n && p->text[p->pos + 1] != '\n') p->pos++;
        else if (c != ' ' && c != '\t' && c != '\r')
            break;
    }
}
static size_t ident_length(const parser *p, size_t at, bool digit_first) {
    size_t k = at;
    if (k < p->n && !text_is_ident_start(p->text[k]) && !(digit_first && is_digit(p->text[k]))) return 0;
    while (k < p->n && text_is_ident(p->text[k]) && !(p->text[k] == '.' && k + 1 < p->n && p->text[k + 1] == '.')) k++;
    return k - at;
}
/* -? digits [. digits] [e [+-] digits], 0x hex, -inf */
static size_t number_length(const parser *p) {
    size_t k = peek(p, 0) == '-';
    if (peek(p, k) == 'i' && peek(p, k + 1) == 'n' && peek(p, k + 2) == 'f') return k + 3;
    if (peek(p, k) == '0' && peek(p, k + 1) == 'x') {
        k += 2;
        while (is_hex(peek(p, k))) k++;
        return k;
    }
    if (!is_digit(peek(p, k))) return 0;
    while (is_digit(peek(p, k))) k++;
    if (peek(p, k) == '.' && peek(p, k + 1) != '.') {
        k++;
        while (is_digit(peek(p, k))) k++;
    }
    if (peek(p, k) == 'e' || peek(p, k) == 'E') {
        size_t e = k + 1;
        if (peek(p, e) == '+' || peek(p, e) == '-') e++;
        if (is_digit(peek(p, e))) {
            k = e;
            while (is_digit(peek(p, k))) k++;
        }
    }
    return k;
}
static int hex_value(char c) { return is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10; }

/* A string at p->pos (its opening quote); fills t->s with the contents, escapes replaced when there are any. */
static void lex_string(parser *p, token *t) {
    size_t start = p->pos + 1, k = start;
    bool escapes = false;
    for (; k < p->n && p->text[k] != '"' && p->text[k] != '\n'; k++)
        if (p->text[k] == '\\') escapes = true, k++;
    if (k >= p->n || p->text[k] != '"') {
        p->t = *t;
        FAIL(p, "this string does not end in its line");
    }
    t->s = p->text + start, t->ns = k - start;
    p->pos = k + 1;
    if (!escapes) return;
    char *s = arena_alloc(p->a, t->ns + 1);
    size_t n = 0;
    for (size_t i = start; i < k; i++) {
        if (p->text[i] != '\\') {
            s[n++] = p->text[i];
        } else if (p->text[i + 1] == '"' || p->text[i + 1] == '\\') {
            s[n++] = p->text[++i];
        } else if (p->text[i + 1] == 'x' && i + 3 < k && is_hex(p->text[i + 2]) && is_hex(p->text[i + 3])) {
            s[n++] = (char)(hex_value(p->text[i + 2]) << 4 | hex_value(p->text[i + 3]));
            i += 3;
        } else {
            token bad = *t;
            bad.at = i, bad.n = 2;
            lex_fail_at(p, &bad, "unknown escape; there are \\\", \\\\ and \\xHH");
        }
    }
    t->s = s, t->ns = n;
}
void lex_next(parser *p) {
    skip_blank(p);
    token t = { .at = p->pos, .n = 1, .line = p->line, .line_at = p->line_at };
    size_t n;
    char c = peek(p, 0);
    if (p->pos >= p->n) {
        t.kind = T_END, t.n = 0;
    } else if (c == '\n') {
        t.kind = T_LINE;
        p->line++;
        p->line_at = p->pos + 1;
    } else if (c == 'x' && peek(p, 1) == '"') {
        p->pos++;
        lex_string(p, &t);
        t.kind = T_HEX, t.n = p->pos - t.at;
    } else if (c == '"') {
        lex_string(p, &t);
        t.kind = T_STRING, t.n = p->pos - t.at;
    } else if (c == '%' || c == '@') {
        if (c == '@' && peek(p, 1) == '"') {
            p->pos++;
            lex_string(p, &t);
            t.n = p->pos - t.at;
        } else {
            t.s = p->text + p->pos + 1, t.ns = ident_length(p, p->pos + 1, c == '%');
            t.n = t.ns + 1;
        }
        t.kind = c == '%' ? T_VALUE : T_AT;
    } else if (c == '-' && peek(p, 1) == '>') {
        t.kind = T_ARROW, t.n = 2;
    } else if (c == '.' && peek(p, 1) == '.') {
        t.kind = T_DOTS, t.n = 2;
    } else if ((n = ident_length(p, p->pos, false))) {
        t.kind = T_IDENT, t.n = n, t.s = p->text + p->pos, t.ns = n;
    } else if ((n = number_length(p))) {
        t.kind = T_NUMBER, t.n = n, t.s = p->text + p->pos, t.ns = n;
    } else {
        t.kind = T_PUNCT, t.c = c;
    }
    p->pos = t.at + t.n;
    p->t = t;
    if ((t.kind == T_VALUE && t.ns == 0) || (t.kind == T_AT && t.ns == 0 && t.n == 1)) FAIL(p, "expected a name after %c", c);
    if (t.kind != T_HEX && t.ns > TEXT_MAX_NAME) FAIL(p, "a name or number of more than %d bytes", TEXT_MAX_NAME);
}

bool lex_before_equals(const parser *p) {
    parser ahead = *p;
    skip_blank(&ahead);
    return peek(&ahead, 0) == '=';
}
bool lex_is(const parser *p, char c) { return p->t.kind == T_PUNCT && p->t.c == c; }
bool lex_is_word(const parser *p, const char *word) {
    return p->t.kind == T_IDENT && p->t.ns == strlen(word) && !memcmp(p->t.s, word, p->t.ns);
}
void lex_unexpected(parser *p, const char *wanted) {
    if (p->t.kind == T_END) FAIL(p, "expected %s, but the text ends here", wanted);
    if (p->t.kind == T_LINE) FAIL(p, "expected %s, but the line ends here", wanted);
    if (p->t.kind == T_PUNCT && ((unsigned char)p->t.c < 0x20 || (unsigned char)p->t.c >= 0x7f))
        FAIL(p, "expected %s, got byte 0x%02x", wanted, (unsigned char)p->t.c);
    FAIL(p, "expected %s, got '%.*s'", wanted, SHOW(&p->t));
}
void lex_expect(parser *p, char c, const char *wanted) {
    if (!lex_is(p, c)) lex_unexpected(p, wanted);
    lex_next(p);
}
void lex_skip_lines(parser *p) {
    while (p->t.kind == T_LINE) lex_next(p);
}
bool lex_take_comma(parser *p) {
    if (!lex_is(p, ',')) return false;
    lex_next(p);
    lex_skip_lines(p);
    return true;
}
const char *lex_name(parser *p, const token *t) {
    if (memchr(t->s, 0, t->ns)) lex_fail_at(p, t, "a name cannot hold a zero byte");
    char *s = arena_alloc(p->a, t->ns + 1);
    if (t->ns) memcpy(s, t->s, t->ns);
    return s;
}

/* ---- after an error ---- */

/* "%name =", return, region or } at the start of a line. */
static bool begins_statement(const parser *p, size_t at) {
    parser ahead = *p;
    ahead.pos = at;
    skip_blank(&ahead);
    const char *s = p->text + ahead.pos;
    size_t left = p->n - ahead.pos;
    if (left && *s == '}') return true;
    if (left >= 6 && (!memcmp(s, "return", 6) || !memcmp(s, "region", 6))) return true;
    if (!left || *s != '%') return false;
    ahead.pos += 1 + ident_length(p, ahead.pos + 1, true);
    return lex_before_equals(&ahead);
}

void lex_skip_rest(parser *p, const token *from, bool item) {
    bool at_line = p->t.kind == T_LINE && p->pos == p->t.at + 1;
    size_t k = from->at, least = at_line ? p->t.at : p->pos;
    int depth = 0;
    char last = 0;
    p->line = from->line, p->line_at = from->line_at;
    for (; k < p->n; k++) {
        char c = p->text[k];
        if (c == '"')
            for (k++; k < p->n && p->text[k] != '"' && p->text[k] != '\n'; k++) k += p->text[k] == '\\' && k + 1 < p->n;
        if (c == ';')
            while (k < p->n && p->text[k] != '\n') k++;
        if (k < p->n && p->text[k] == '\n') c = '\n';
        if (item && depth <= 0 && k > from->at && (c == ',' || c == ')' || c == '\n')) break;
        depth += (c == '[' || c == '(') - (c == ']' || c == ')');
        if (c != '\n') {
            if (c != ' ' && c != '\t' && c != '\r' && c != ';') last = c;
            continue;
        }
        p->line++, p->line_at = k + 1;
        if (!item && k >= least && ((depth <= 0 && last != ',') || begins_statement(p, k + 1))) break;
    }
    p->pos = item || k >= p->n ? (k < p->n ? k : p->n) : k + 1;
    p->t = (token){ .kind = T_LINE, .at = p->pos, .line = p->line, .line_at = p->line_at };
    if (item) lex_next(p);
}

/* ---- names ---- */

static entry *name_slot(entry *at, size_t cap, char kind, const char *s, size_t n) {
    size_t i = (size_t)hash_bytes(s, n, (uint64_t)kind) & (cap - 1);
    while (at[i].kind && !(at[i].kind == kind && at[i].n == n && !memcmp(at[i].s, s, n))) i = (i + 1) & (cap - 1);
    return &at[i];
}
entry *names_find(parser *p, char kind, const char *s, size_t n) {
    entry *e = p->cap_names ? name_slot(p->names, p->cap_names, kind, s, n) : NULL;
    return e && e->kind ? e : NULL;
}
void names_add(parser *p, char kind, const token *t, const char *s, size_t n, uint32_t id, const char *what) {
    entry *e = names_find(p, kind, s, n);
    if (e) lex_fail_at(p, t, "%s %.*s is defined twice; the first is in line %d", what, (int)(n > 40 ? 40 : n), s, e->line);
    if (2 * (p->n_names + 1) > p->cap_names) {
        size_t cap = p->cap_names ? p->cap_names * 2 : 64;
        entry *bigger = ARENA_ARRAY(p->a, entry, cap);
        for (size_t i = 0; i < p->cap_names; i++)
            if (p->names[i].kind) *name_slot(bigger, cap, p->names[i].kind, p->names[i].s, p->names[i].n) = p->names[i];
        p->names = bigger, p->cap_names = cap;
    }
    *name_slot(p->names, p->cap_names, kind, s, n) = (entry){ s, n, kind, id, t->line };
    p->n_names++;
}

/* ---- numbers, types, arrays ---- */

int64_t lex_int(parser *p, const token *t) {
    bool negative = t->ns && t->s[0] == '-';
    int64_t v = 0;
    bool ok = t->kind == T_NUMBER && t->ns > negative;
    for (size_t i = negative; ok && i < t->ns; i++)
        ok = is_digit(t->s[i]) && !__builtin_mul_overflow(v, 10, &v) && !__builtin_sub_overflow(v, t->s[i] - '0', &v);
    if (!ok || (!negative && v == INT64_MIN)) lex_fail_at(p, t, "expected a whole number of 64 bits, got '%.*s'", SHOW(t));
    return negative ? v : -v;
}
int64_t lex_take_int(parser *p, const char *wanted) {
    if (p->t.kind != T_NUMBER) lex_unexpected(p, wanted);
    int64_t v = lex_int(p, &p->t);
    lex_next(p);
    return v;
}
double lex_double(parser *p, const token *t) {
    char s[TEXT_MAX_NAME + 1];
    memcpy(s, t->s, t->ns);
    s[t->ns] = 0;
    if (t->kind == T_IDENT && !strcmp(s, "nan")) return (double)NAN;
    if (t->kind == T_IDENT && !strcmp(s, "inf")) return (double)INFINITY;
    if (t->kind != T_NUMBER || (t->ns > 1 && s[1] == 'x') || (t->ns > 2 && s[2] == 'x'))
        lex_fail_at(p, t, "expected a number, got '%.*s'", SHOW(t));
    if (!strcmp(s, "-inf")) return -(double)INFINITY;
    double v = number_read(s, NULL);
    if (isinf(v)) lex_fail_at(p, t, "'%.*s' is too large; write inf for infinity", SHOW(t));
    return v;
}
bool lex_is_literal(const parser *p) {
    return p->t.kind == T_NUMBER || lex_is_word(p, "true") || lex_is_word(p, "false") || lex_is_word(p, "nan") ||
           lex_is_word(p, "inf");
}
static uint64_t bits_of(parser *p, const token *t, tn_dtype dtype) {
    uint64_t v = 0;
    size_t digits = 2 * dtype_size(dtype);
    if (t->ns < 3 || t->ns - 2 > digits)
        lex_fail_at(p, t, "expected at most %zu hexadecimal digits for %s", digits, dtype_name(dtype));
    for (size_t i = 2; i < t->ns; i++) v = v << 4 | (uint64_t)hex_value(t->s[i]);
    return v;
}
static uint64_t lex_unsigned(parser *p, const token *t) {
    uint64_t v = 0;
    bool ok = t->kind == T_NUMBER && t->ns;
    for (size_t i = 0; ok && i < t->ns; i++)
        ok = is_digit(t->s[i]) && !__builtin_mul_overflow(v, 10, &v) &&
             !__builtin_add_overflow(v, (uint64_t)(t->s[i] - '0'), &v);
    if (!ok) lex_fail_at(p, t, "expected a whole number of u64, got '%.*s'", SHOW(t));
    return v;
}
/* One element of an array; 0x... is the bit pattern of a float. */
static void store_literal(parser *p, const token *t, tn_dtype dtype, void *data, int64_t i) {
    bool yes = t->ns == 4 && t->kind == T_IDENT && !memcmp(t->s, "true", 4);
    if (yes || (t->kind == T_IDENT && t->ns == 5 && !memcmp(t->s, "false", 5))) {
        if (dtype != TN_BOOL) lex_fail_at(p, t, "'%.*s' is not a number of %s", SHOW(t), dtype_name(dtype));
        dtype_store_int(dtype, data, i, yes);
    } else if (dtype == TN_BOOL) {
        lex_fail_at(p, t, "expected true or false, got '%.*s'", SHOW(t));
    } else if (dtype == TN_U64) {
        dtype_store_int(dtype, data, i, (int64_t)lex_unsigned(p, t));
    } else if (!dtype_is_float(dtype)) {
        int64_t v = lex_int(p, t);
        dtype_store_int(dtype, data, i, v);
        if (dtype_load_int(dtype, data, i) != v) lex_fail_at(p, t, "%lld does not fit %s", (long long)v, dtype_name(dtype));
    } else if (t->kind == T_NUMBER && t->ns > 1 && t->s[0] == '0' && t->s[1] == 'x') {
        uint64_t v = bits_of(p, t, dtype);
        size_t size = dtype_size(dtype);
        memcpy((char *)data + (size_t)i * size, &v, size);
    } else {
        double v = lex_double(p, t);
        dtype_store(dtype, data, i, v);
        if (isinf(dtype_load(dtype, data, i)) && !isinf(v))
            lex_fail_at(p, t, "'%.*s' is too large for %s", SHOW(t), dtype_name(dtype));
    }
}

/* Dims: literals, and what ext.h prints of the graph's dims: "batch*64 + 1", "floor(length / 2)", "min(batch, 8)". */
enum { MAX_DIM_DEPTH = 16 };
static ext dim_sum(parser *p, int depth);

static ext dim_call(parser *p, int depth, char between, ext (*fn)(exts *t, ext x, ext y)) {
    lex_next(p);
    lex_expect(p, '(', "(");
    ext x = dim_sum(p, depth + 1);
    lex_expect(p, between, between == '/' ? "/" : ",");
    ext y = dim_sum(p, depth + 1);
    lex_expect(p, ')', ")");
    return fn(graph_params(p->g), x, y);
}

static ext dim_factor(parser *p, int depth) {
    static const struct {
        const char *name;
        char between;
        ext (*fn)(exts *t, ext x, ext y);
    } calls[] = {
        { "floor", '/', ext_floor_div }, { "ceil", '/', ext_ceil_div }, { "min", ',', ext_min }, { "max", ',', ext_max }
    };
    if (depth > MAX_DIM_DEPTH) FAIL(p, "expected fewer brackets");
    entry *e = p->t.kind == T_IDENT ? names_find(p, 's', p->t.s, p->t.ns) : NULL;
    if (e) {
        lex_next(p);
        return exts_dim(p->g->params, (int)e->id - 1);
    }
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        if (lex_is_word(p, calls[i].name)) return dim_call(p, depth, calls[i].between, calls[i].fn);
    if (p->t.kind == T_IDENT)
        FAIL(p, "symbolic dim %.*s is not declared; declare it as graph @name<%.*s 1..64>(...)", SHOW(&p->t), SHOW(&p->t));
    if (!lex_is(p, '(')) return lex_take_int(p, "a dim");
    lex_next(p);
    ext x = dim_sum(p, depth + 1);
    lex_expect(p, ')', ")");
    return x;
}
static ext dim_product(parser *p, int depth) {
    ext x = dim_factor(p, depth);
    while (lex_is(p, '*')) {
        lex_next(p);
        x = ext_mul(graph_params(p->g), x, dim_factor(p, depth));
    }
    return x;
}
static ext dim_sum(parser *p, int depth) {
    ext x = dim_product(p, depth);
    while (lex_is(p, '+') || lex_is(p, '-')) {
        bool minus = lex_is(p, '-');
        lex_next(p);
        ext y = dim_product(p, depth);
        x = (minus ? ext_sub : ext_add)(graph_params(p->g), x, y);
    }
    return x;
}
ext lex_dim(parser *p) {
    token t = p->t;
    ext d = dim_sum(p, 0);
    if (p->g->params && p->g->params->problem) lex_fail_at(p, &t, "another size: %s", p->g->params->problem);
    if (ext_is_lit(d) && d < 0) lex_fail_at(p, &t, "a dim of %lld; expected 0 or more", (long long)d);
    return d;
}
void lex_type(parser *p, type_text *out) {
    *out = (type_text){ .given = true, .at = p->t };
    if (p->t.kind != T_IDENT || !dtype_find(p->t.s, p->t.ns, &out->dtype)) lex_unexpected(p, "a type such as f32[2,3]");
    lex_next(p);
    lex_expect(p, '[', "[ and the dims");
    while (!lex_is(p, ']')) {
        if (out->rank == TN_MAX_RANK) FAIL(p, "more than %d dims", TN_MAX_RANK);
        out->dims[out->rank++] = lex_dim(p);
        if (!lex_is(p, ',')) break;
        lex_next(p);
    }
    lex_expect(p, ']', ", or ]");
}
/* Elements of a type that is going to be stored; fails when there are too many to count. */
static int64_t elems_of(parser *p, const type_text *t) {
    int64_t n = (int64_t)dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] < 0) lex_fail_at(p, &t->at, "an array with a symbolic dim cannot be stored");
        if (!size_mul(n, t->dims[i], &n)) lex_fail_at(p, &t->at, "this type has more bytes than 63 bits can count");
    }
    return n / (int64_t)dtype_size(t->dtype);
}

/* Value of a const or an initial state: [..], x"..", rand(seed) or one literal. It is skipped first and read when its type is
 * known. */
lexer_state lex_save(const parser *p) { return (lexer_state){ p->pos, p->line_at, p->line, p->t }; }
void lex_restore(parser *p, const lexer_state *s) {
    p->pos = s->pos, p->line_at = s->line_at, p->line = s->line;
    p->t = s->t;
}
void lex_skip_value(parser *p) {
    if (lex_is(p, '[')) {
        while (!lex_is(p, ']')) {
            if (p->t.kind == T_END) lex_unexpected(p, "]");
            lex_next(p);
        }
    } else if (lex_is_word(p, "rand")) {
        lex_next(p);
        lex_expect(p, '(', "( and the seed");
        lex_take_int(p, "a seed");
        if (!lex_is(p, ')')) lex_unexpected(p, ")");
    } else if (!lex_is_literal(p) && p->t.kind != T_HEX) {
        lex_unexpected(p, "a value: a number, [numbers], x\"bytes\" or rand(seed)");
    }
    lex_next(p);
}
static void *fill_alloc(parser *p, const token *t, const type_text *type, int64_t elems) {
    size_t size = (size_t)elems * dtype_size(type->dtype);
    if (size > TEXT_MAX_FILL - p->filled)
        lex_fail_at(p, t, "values made from rand or one number take more than %d bytes in all", TEXT_MAX_FILL);
    p->filled += size;
    return arena_alloc(p->a, size);
}
static void *read_list(parser *p, const type_text *type, int64_t elems) {
    token start = p->t;
    lex_next(p);
    lex_skip_lines(p);
    /* what is in the text bounds what is allocated */
    if ((uint64_t)elems > p->n - start.at) lex_fail_at(p, &start, "expected %lld values", (long long)elems);
    char *data = arena_alloc(p->a, (size_t)elems * dtype_size(type->dtype));
    int64_t n = 0;
    while (!lex_is(p, ']')) {
        if (n == elems) FAIL(p, "more than the %lld values that the type has", (long long)elems);
        if (!lex_is_literal(p)) lex_unexpected(p, "a number");
        store_literal(p, &p->t, type->dtype, data, n++);
        lex_next(p);
        if (lex_take_comma(p)) continue;
        lex_skip_lines(p);
        break;
    }
    if (!lex_is(p, ']')) lex_unexpected(p, ", or ]");
    if (n != elems) lex_fail_at(p, &start, "expected %lld values, got %lld", (long long)elems, (long long)n);
    return data;
}
static void *read_hex(parser *p, const type_text *type, int64_t elems) {
    size_t size = (size_t)elems * dtype_size(type->dtype);
    if (p->t.ns % 2 || p->t.ns / 2 != size) FAIL(p, "expected %zu hexadecimal digits, got %zu", 2 * size, p->t.ns);
    unsigned char *data = arena_alloc(p->a, size);
    for (size_t i = 0; i < size; i++) {
        char hi = p->t.s[2 * i], lo = p->t.s[2 * i + 1];
        if (!is_hex(hi) || !is_hex(lo)) FAIL(p, "byte %zu is not two hexadecimal digits", i);
        data[i] = (unsigned char)(hex_value(hi) << 4 | hex_value(lo));
        if (type->dtype == TN_BOOL && data[i] > 1) FAIL(p, "byte %zu: a bool is 00 or 01", i);
    }
    return data;
}
/* rand(seed): floats uniform in [-1, 1), integers 0 to 7, bools with even odds; element i from random_uniform_at(seed, 0, i).
 */
static void *read_rand(parser *p, const type_text *type, int64_t elems) {
    token start = p->t;
    lex_next(p);
    lex_next(p);
    int64_t seed = lex_int(p, &p->t);
    void *data = fill_alloc(p, &start, type, elems);
    for (int64_t i = 0; i < elems; i++) {
        double u = (double)random_uniform_at(seed, 0, i);
        if (dtype_is_float(type->dtype))
            dtype_store(type->dtype, data, i, 2 * u - 1);
        else
            dtype_store_int(type->dtype, data, i, type->dtype == TN_BOOL ? u < 0.5 : (int64_t)(u * 8));
    }
    return data;
}
void lex_read_value(parser *p, const lexer_state *value, const type_text *type, bool array, spec *s) {
    lexer_state here = lex_save(p);
    lex_restore(p, value);
    if (lex_is_literal(p)) {
        uint64_t e = 0;
        store_literal(p, &p->t, type->dtype, &e, 0);
        s->splat = true;
        s->imm = dtype_load(type->dtype, &e, 0);
        s->imm_int = dtype_is_float(type->dtype) ? 0 : dtype_load_int(type->dtype, &e, 0);
        if (array) { /* states have no splat form */
            int64_t elems = elems_of(p, type);
            char *data = fill_alloc(p, &p->t, type, elems);
            size_t size = dtype_size(type->dtype);
            for (int64_t i = 0; i < elems; i++) memcpy(data + (size_t)i * size, &e, size);
            s->splat = false;
            s->data = data;
        }
    } else {
        int64_t elems = elems_of(p, type);
        if (lex_is(p, '['))
            s->data = read_list(p, type, elems);
        else
            s->data = p->t.kind == T_HEX ? read_hex(p, type, elems) : read_rand(p, type, elems);
    }
    lex_restore(p, &here);
}
