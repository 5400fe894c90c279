/* graph_parse.c - text to graph (docs/ir.md has the grammar). In: {text, n}, any bytes. Out: a graph in the arena given whose
 * every node passed graph_infer, or a jump with TN_ERR_PARSE and "file:line:col: message", the line and a caret.
 *
 * One pass, no recursion; nothing is allocated by a number in the text before that number is checked. */
#include "ir/graph.h"
#include "ir/graph_text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

typedef enum token_kind {
    T_END,
    T_LINE,
    T_IDENT,
    T_VALUE /* %name */,
    T_AT /* @name */,
    T_STRING,
    T_HEX /* x"..." */,
    T_NUMBER,
    T_ARROW,
    T_DOTS,
    T_PUNCT
} token_kind;
typedef struct token {
    token_kind kind;
    char c;       /* T_PUNCT */
    size_t at, n; /* bytes of the text */
    int line;
    size_t line_at; /* start of its line */
    const char *s;  /* name without sigil, or contents of a string; s[ns] may be anything */
    size_t ns;
} token;

typedef struct entry { /* of the table of names */
    const char *s;
    size_t n;
    char kind; /* '%' value, 'i' input, '@' region, 's' symbol, 'o' output, 'a' assigned state */
    uint32_t id;
    int line;
} entry;

typedef struct parser {
    arena *a;
    graph *g;
    const char *text, *file;
    size_t n;
    size_t pos; /* lexer */
    int line;
    size_t line_at;
    token t;      /* the token to look at */
    entry *names; /* open addressing, capacity a power of two */
    size_t n_names, cap_names;
    VEC(int) depth;  /* of regions */
    VEC(bool) taken; /* regions that an op names already */
    int region;      /* being parsed */
    size_t filled;   /* bytes so far from rand and single values */
    const char *where;
    int where_line;
} parser;

/* ---- errors ---- */

enum { SHOWN_BEFORE = 60, SHOWN = 100 };
static void fail_at(parser *p, const token *t, const char *fmt, ...) PRINTF_LIKE(3, 4) NORETURN;
static void fail_at(parser *p, const token *t, const char *fmt, ...) {
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
#define FAIL(p, ...) fail_at(p, &(p)->t, __VA_ARGS__)
/* Tokens in messages are cut: names can be long. */
#define SHOW(t) (int)((t)->n > 40 ? 40 : (t)->n), p->text + (t)->at

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
            fail_at(p, &bad, "unknown escape; there are \\\", \\\\ and \\xHH");
        }
    }
    t->s = s, t->ns = n;
}
static void next(parser *p) {
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

static bool is_punct(const parser *p, char c) { return p->t.kind == T_PUNCT && p->t.c == c; }
static bool is_word(const parser *p, const char *word) {
    return p->t.kind == T_IDENT && p->t.ns == strlen(word) && !memcmp(p->t.s, word, p->t.ns);
}
static void unexpected(parser *p, const char *wanted) NORETURN;
static void unexpected(parser *p, const char *wanted) {
    if (p->t.kind == T_END) FAIL(p, "expected %s, but the text ends here", wanted);
    if (p->t.kind == T_LINE) FAIL(p, "expected %s, but the line ends here", wanted);
    if (p->t.kind == T_PUNCT && ((unsigned char)p->t.c < 0x20 || (unsigned char)p->t.c >= 0x7f))
        FAIL(p, "expected %s, got byte 0x%02x", wanted, (unsigned char)p->t.c);
    FAIL(p, "expected %s, got '%.*s'", wanted, SHOW(&p->t));
}
static void expect(parser *p, char c, const char *wanted) {
    if (!is_punct(p, c)) unexpected(p, wanted);
    next(p);
}
static void skip_lines(parser *p) {
    while (p->t.kind == T_LINE) next(p);
}
static bool take_comma(parser *p) {
    if (!is_punct(p, ',')) return false;
    next(p);
    skip_lines(p);
    return true;
}
static const char *name_copy(parser *p, const token *t) {
    if (memchr(t->s, 0, t->ns)) fail_at(p, t, "a name cannot hold a zero byte");
    char *s = arena_alloc(p->a, t->ns + 1);
    if (t->ns) memcpy(s, t->s, t->ns);
    return s;
}

/* ---- names ---- */

static entry *name_slot(entry *at, size_t cap, char kind, const char *s, size_t n) {
    size_t i = (size_t)hash_bytes(s, n, (uint64_t)kind) & (cap - 1);
    while (at[i].kind && !(at[i].kind == kind && at[i].n == n && !memcmp(at[i].s, s, n))) i = (i + 1) & (cap - 1);
    return &at[i];
}
static entry *name_find(parser *p, char kind, const char *s, size_t n) {
    entry *e = p->cap_names ? name_slot(p->names, p->cap_names, kind, s, n) : NULL;
    return e && e->kind ? e : NULL;
}
static void name_add(parser *p, char kind, const token *t, const char *s, size_t n, uint32_t id, const char *what) {
    entry *e = name_find(p, kind, s, n);
    if (e) fail_at(p, t, "%s %.*s is defined twice; the first is in line %d", what, (int)(n > 40 ? 40 : n), s, e->line);
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

static int64_t int_of(parser *p, const token *t) {
    bool negative = t->ns && t->s[0] == '-';
    int64_t v = 0;
    bool ok = t->kind == T_NUMBER && t->ns > negative;
    for (size_t i = negative; ok && i < t->ns; i++)
        ok = is_digit(t->s[i]) && !__builtin_mul_overflow(v, 10, &v) && !__builtin_sub_overflow(v, t->s[i] - '0', &v);
    if (!ok || (!negative && v == INT64_MIN)) fail_at(p, t, "expected a whole number of 64 bits, got '%.*s'", SHOW(t));
    return negative ? v : -v;
}
static int64_t take_int(parser *p, const char *wanted) {
    if (p->t.kind != T_NUMBER) unexpected(p, wanted);
    int64_t v = int_of(p, &p->t);
    next(p);
    return v;
}
static double double_of(parser *p, const token *t) {
    char s[TEXT_MAX_NAME + 1];
    memcpy(s, t->s, t->ns);
    s[t->ns] = 0;
    if (t->kind == T_IDENT && !strcmp(s, "nan")) return (double)NAN;
    if (t->kind == T_IDENT && !strcmp(s, "inf")) return (double)INFINITY;
    if (t->kind != T_NUMBER || (t->ns > 1 && s[1] == 'x') || (t->ns > 2 && s[2] == 'x'))
        fail_at(p, t, "expected a number, got '%.*s'", SHOW(t));
    if (!strcmp(s, "-inf")) return -(double)INFINITY;
    double v = strtod(s, NULL);
    if (isinf(v)) fail_at(p, t, "'%.*s' is too large; write inf for infinity", SHOW(t));
    return v;
}
static bool starts_literal(const parser *p) {
    return p->t.kind == T_NUMBER || is_word(p, "true") || is_word(p, "false") || is_word(p, "nan") || is_word(p, "inf");
}
static uint64_t bits_of(parser *p, const token *t, tn_dtype dtype) {
    uint64_t v = 0;
    size_t digits = 2 * dtype_size(dtype);
    if (t->ns < 3 || t->ns - 2 > digits)
        fail_at(p, t, "expected at most %zu hexadecimal digits for %s", digits, dtype_name(dtype));
    for (size_t i = 2; i < t->ns; i++) v = v << 4 | (uint64_t)hex_value(t->s[i]);
    return v;
}
/* One element of an array; 0x... is the bit pattern of a float. */
static void store_literal(parser *p, const token *t, tn_dtype dtype, void *data, int64_t i) {
    bool yes = t->ns == 4 && t->kind == T_IDENT && !memcmp(t->s, "true", 4);
    if (yes || (t->kind == T_IDENT && t->ns == 5 && !memcmp(t->s, "false", 5))) {
        if (dtype != TN_BOOL) fail_at(p, t, "'%.*s' is not a number of %s", SHOW(t), dtype_name(dtype));
        dtype_store_int(dtype, data, i, yes);
    } else if (dtype == TN_BOOL) {
        fail_at(p, t, "expected true or false, got '%.*s'", SHOW(t));
    } else if (!dtype_is_float(dtype)) {
        int64_t v = int_of(p, t);
        dtype_store_int(dtype, data, i, v);
        if (dtype_load_int(dtype, data, i) != v) fail_at(p, t, "%lld does not fit %s", (long long)v, dtype_name(dtype));
    } else if (t->kind == T_NUMBER && t->ns > 1 && t->s[0] == '0' && t->s[1] == 'x') {
        uint64_t v = bits_of(p, t, dtype);
        size_t size = dtype_size(dtype);
        memcpy((char *)data + (size_t)i * size, &v, size);
    } else {
        double v = double_of(p, t);
        dtype_store(dtype, data, i, v);
        if (isinf(dtype_load(dtype, data, i)) && !isinf(v))
            fail_at(p, t, "'%.*s' is too large for %s", SHOW(t), dtype_name(dtype));
    }
}

typedef struct type_text {
    bool given;
    token at;
    tn_dtype dtype;
    int rank;
    int64_t dims[TN_MAX_RANK];
} type_text;

static int64_t parse_dim(parser *p) {
    if (p->t.kind == T_IDENT) {
        entry *e = name_find(p, 's', p->t.s, p->t.ns);
        if (!e)
            FAIL(p, "symbolic dim %.*s is not declared; declare it as graph @name<%.*s 1..64>(...)", SHOW(&p->t), SHOW(&p->t));
        next(p);
        return -(int64_t)e->id;
    }
    token t = p->t;
    int64_t d = take_int(p, "a dim");
    if (d < 0) fail_at(p, &t, "a dim of %lld; expected 0 or more", (long long)d);
    return d;
}
static void parse_type(parser *p, type_text *out) {
    *out = (type_text){ .given = true, .at = p->t };
    if (p->t.kind != T_IDENT || !dtype_find(p->t.s, p->t.ns, &out->dtype)) unexpected(p, "a type such as f32[2,3]");
    next(p);
    expect(p, '[', "[ and the dims");
    while (!is_punct(p, ']')) {
        if (out->rank == TN_MAX_RANK) FAIL(p, "more than %d dims", TN_MAX_RANK);
        out->dims[out->rank++] = parse_dim(p);
        if (!is_punct(p, ',')) break;
        next(p);
    }
    expect(p, ']', ", or ]");
}
/* Elements of a type that is going to be stored; fails when there are too many to count. */
static int64_t elems_of(parser *p, const type_text *t) {
    int64_t n = (int64_t)dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] < 0) fail_at(p, &t->at, "an array with a symbolic dim cannot be stored");
        if (!size_mul(n, t->dims[i], &n)) fail_at(p, &t->at, "this type has more bytes than 63 bits can count");
    }
    return n / (int64_t)dtype_size(t->dtype);
}

/* Value of a const or an initial state: [..], x"..", rand(seed) or one literal. It is skipped first and read when its type is
 * known. */
typedef struct lexer_state {
    size_t pos, line_at;
    int line;
    token t;
} lexer_state;
static lexer_state lexer_save(const parser *p) { return (lexer_state){ p->pos, p->line_at, p->line, p->t }; }
static void lexer_restore(parser *p, const lexer_state *s) {
    p->pos = s->pos, p->line_at = s->line_at, p->line = s->line;
    p->t = s->t;
}
static void skip_value(parser *p) {
    if (is_punct(p, '[')) {
        while (!is_punct(p, ']')) {
            if (p->t.kind == T_END) unexpected(p, "]");
            next(p);
        }
    } else if (is_word(p, "rand")) {
        next(p);
        expect(p, '(', "( and the seed");
        take_int(p, "a seed");
        if (!is_punct(p, ')')) unexpected(p, ")");
    } else if (!starts_literal(p) && p->t.kind != T_HEX) {
        unexpected(p, "a value: a number, [numbers], x\"bytes\" or rand(seed)");
    }
    next(p);
}
static void *fill_alloc(parser *p, const token *t, const type_text *type, int64_t elems) {
    size_t size = (size_t)elems * dtype_size(type->dtype);
    if (size > TEXT_MAX_FILL - p->filled)
        fail_at(p, t, "values made from rand or one number take more than %d bytes in all", TEXT_MAX_FILL);
    p->filled += size;
    return arena_alloc(p->a, size);
}
static void *read_list(parser *p, const type_text *type, int64_t elems) {
    token start = p->t;
    next(p);
    skip_lines(p);
    /* what is in the text bounds what is allocated */
    if ((uint64_t)elems > p->n - start.at) fail_at(p, &start, "expected %lld values", (long long)elems);
    char *data = arena_alloc(p->a, (size_t)elems * dtype_size(type->dtype));
    int64_t n = 0;
    while (!is_punct(p, ']')) {
        if (n == elems) FAIL(p, "more than the %lld values that the type has", (long long)elems);
        if (!starts_literal(p)) unexpected(p, "a number");
        store_literal(p, &p->t, type->dtype, data, n++);
        next(p);
        if (take_comma(p)) continue;
        skip_lines(p);
        break;
    }
    if (!is_punct(p, ']')) unexpected(p, ", or ]");
    if (n != elems) fail_at(p, &start, "expected %lld values, got %lld", (long long)elems, (long long)n);
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
    next(p);
    next(p);
    int64_t seed = int_of(p, &p->t);
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
/* Reads the value that skip_value passed over, as the fields of a spec. */
static void read_value(parser *p, const lexer_state *value, const type_text *type, bool array, spec *s) {
    lexer_state here = lexer_save(p);
    lexer_restore(p, value);
    if (starts_literal(p)) {
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
        if (is_punct(p, '['))
            s->data = read_list(p, type, elems);
        else
            s->data = p->t.kind == T_HEX ? read_hex(p, type, elems) : read_rand(p, type, elems);
    }
    lexer_restore(p, &here);
}

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
    if (p->g->nodes.n > TEXT_MAX_NODES) fail_at(p, t, "more than %d values in a graph", TEXT_MAX_NODES);
    const char *text = graph_infer(p->g, s, p->a, &code, &r.dtype, &r.rank, r.dims);
    if (text) fail_at(p, t, "%s", text);
    if (given && given->given &&
        (given->dtype != r.dtype || given->rank != r.rank ||
         (r.rank && memcmp(given->dims, r.dims, (size_t)r.rank * sizeof *r.dims))))
        fail_at(p, &given->at, "%s gives %s%s here, not %s%s", op_get(s->op)->name, dtype_name(r.dtype),
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
    char kind; /* '1' number or word, '[' list, 'x' pair of lists, '@', '"' */
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
    if (starts_literal(p)) {
        next(p);
        return true;
    }
    if (p->t.kind != T_VALUE && p->t.kind != T_IDENT && p->t.kind != T_STRING) return false;
    entry *e = name_find(p, p->t.kind == T_VALUE ? '%' : 'i', p->t.s, p->t.ns);
    if (!e && p->t.kind == T_VALUE) FAIL(p, "value %.*s is not defined before this line", SHOW(&p->t));
    if (!e) FAIL(p, "there is no input or state named %.*s", SHOW(&p->t));
    out->v = e->id;
    if (graph_get(p->g, out->v)->region != p->region)
        FAIL(p,
             p->region ? "%.*s is outside this region: pass it in as an operand"
                       : "%.*s is inside a region: return it from there",
             SHOW(&p->t));
    next(p);
    return true;
}
static int parse_list(parser *p, int64_t *out) {
    int n = 0;
    expect(p, '[', "[");
    while (!is_punct(p, ']')) {
        if (n == TN_MAX_RANK) FAIL(p, "more than %d numbers", TN_MAX_RANK);
        out[n++] = take_int(p, "a whole number");
        if (!is_punct(p, ',')) break;
        next(p);
    }
    expect(p, ']', ", or ]");
    return n;
}
static void parse_attr(parser *p, statement *s) {
    if (s->n_attrs == MAX_ATTRS) FAIL(p, "more than %d attributes", MAX_ATTRS);
    attr *a = &s->attrs[s->n_attrs];
    a->key = p->t;
    for (int i = 0; i < s->n_attrs; i++)
        if (s->attrs[i].key.ns == a->key.ns && !memcmp(s->attrs[i].key.s, a->key.s, a->key.ns))
            FAIL(p, "attribute %.*s is given twice", SHOW(&a->key));
    next(p);
    next(p); /* the = that the caller saw */
    a->value = p->t;
    if (is_punct(p, '[')) {
        a->kind = '[';
        a->n[0] = parse_list(p, a->list[0]);
        if (is_word(p, "x")) {
            next(p);
            a->kind = 'x';
            a->n[1] = parse_list(p, a->list[1]);
        }
    } else if (starts_literal(p) || p->t.kind == T_AT || p->t.kind == T_STRING) {
        a->kind = p->t.kind == T_AT ? '@' : p->t.kind == T_STRING ? '"' : '1';
        next(p);
    } else {
        unexpected(p, "the attribute's value");
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
    next(p);
    while (!is_punct(p, ')')) {
        int k = 0;
        while (k < 4 && !is_word(p, keys[k])) k++;
        if (k == 4) unexpected(p, "axis=, size=, stride=, dilation= or )");
        if (seen[k]) FAIL(p, "%s is given twice", keys[k]);
        seen[k] = true;
        next(p);
        expect(p, '=', "=");
        w[k] = take_int(p, "a whole number");
    }
    next(p);
    if (!seen[0] || !seen[1]) fail_at(p, &start, "a window needs axis= and size=");
}
static void end_line(parser *p) {
    if (p->t.kind == T_LINE)
        skip_lines(p);
    else if (p->t.kind != T_END && !is_punct(p, '}'))
        unexpected(p, "the end of the line");
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
    if (!a) fail_at(p, &s->op_at, "%s needs %s=%s", op_get(s->op)->name, key, what);
    if (a->kind != kind) fail_at(p, &a->value, "expected %s=%s", key, what);
    return a;
}
static void put(statement *s, int64_t v) { s->values[s->n_values++] = v; }
static void put_int(parser *p, statement *s, const char *key) {
    put(s, int_of(p, &need_attr(p, s, key, '1', "NUMBER")->value));
}
static void put_mask(parser *p, statement *s) {
    attr *a = need_attr(p, s, "axes", '[', "[AXES]");
    int64_t mask = 0;
    for (int i = 0; i < a->n[0]; i++) {
        if (a->list[0][i] < 0 || a->list[0][i] >= TN_MAX_RANK)
            fail_at(p, &a->value, "axis %lld; expected 0 to the rank less 1", (long long)a->list[0][i]);
        if (mask >> a->list[0][i] & 1) fail_at(p, &a->value, "axis %lld is given twice", (long long)a->list[0][i]);
        mask |= (int64_t)1 << a->list[0][i];
    }
    put(s, mask);
}
static void put_list(parser *p, statement *s, const char *key, int rank) {
    attr *a = need_attr(p, s, key, '[', "[NUMBERS]");
    if (a->n[0] != rank) fail_at(p, &a->value, "expected %d numbers, one an axis of the operand, got %d", rank, a->n[0]);
    for (int i = 0; i < rank; i++) put(s, a->list[0][i]);
}
static void put_dot(parser *p, statement *s, int rank_a) {
    static const char what[] = "[AXES]x[AXES]";
    attr *b = find_attr(s, "batch") ? need_attr(p, s, "batch", 'x', what) : NULL, *c = NULL;
    if (b || find_attr(s, "contract")) c = need_attr(p, s, "contract", 'x', what);
    attr matmul = { .n = { 1, 1 }, .list = { { rank_a - 1 }, { 0 } } }; /* neither given: last axis of a, first of b */
    if (!c) c = &matmul;
    if (b && b->n[0] != b->n[1]) fail_at(p, &b->value, "expected as many axes of operand 0 as of operand 1");
    if (c->n[0] != c->n[1]) fail_at(p, &c->value, "expected as many axes of operand 0 as of operand 1");
    if ((b ? b->n[0] : 0) + c->n[0] > TN_MAX_RANK) fail_at(p, &c->value, "more than %d axes", TN_MAX_RANK);
    put(s, b ? b->n[0] : 0);
    put(s, c->n[0]);
    for (int side = 0; b && side < 2; side++)
        for (int i = 0; i < b->n[side]; i++) put(s, b->list[side][i]);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < c->n[side]; i++) put(s, c->list[side][i]);
}
static void put_region(parser *p, statement *s, const char *key) {
    attr *a = need_attr(p, s, key, '@', "@REGION");
    entry *e = name_find(p, '@', a->value.s, a->value.ns);
    if (!e) fail_at(p, &a->value, "region %.*s is not defined before this line", SHOW(&a->value));
    if ((int)e->id == p->region) fail_at(p, &a->value, "region %.*s cannot be inside itself", SHOW(&a->value));
    if (p->taken.at[e->id]) fail_at(p, &a->value, "region %.*s belongs to another op already", SHOW(&a->value));
    p->taken.at[e->id] = true;
    int depth = p->depth.at[e->id] + 1;
    if (depth > TEXT_MAX_NESTING) fail_at(p, &a->value, "regions are nested more than %d deep", TEXT_MAX_NESTING);
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
    case OP_scatter_add:
    case OP_iota:
        put_int(p, s, "axis");
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
        fail_at(p, &lit->at, "%s takes no number here; give it a line of its own, such as %%c = const 0.5 f32[2,3]", o->name);
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
        fail_at(p, &lit->at,
                "the type of this number cannot be inferred; give it a line of its own, such as %%c = const 0.5 f32[2,3]");
    spec c = { .op = OP_const, .dtype = type.dtype, .rank = type.rank, .dims = type.dims, .region = p->region };
    lexer_state value = { .pos = lit->at.at + lit->at.n, .line_at = lit->at.line_at, .line = lit->at.line, .t = lit->at };
    read_value(p, &value, &type, false, &c);
    return add_node(p, &lit->at, &c, NULL);
}

/* ---- %k = op ... ---- */

static void parse_operands(parser *p, statement *s) {
    operand x;
    if (s->op == OP_const) {
        s->value = lexer_save(p);
        s->has_value = true;
        skip_value(p);
        return;
    }
    if (op_get(s->op)->arity == 0) return;
    if (!take_operand(p, &x)) unexpected(p, "an operand");
    VEC_PUSH(p->a, &s->in, x);
    while (take_comma(p)) {
        if (!take_operand(p, &x)) unexpected(p, "an operand");
        VEC_PUSH(p->a, &s->in, x);
    }
}
static bool next_is_equals(const parser *p) {
    parser ahead = *p;
    skip_blank(&ahead);
    return peek(&ahead, 0) == '=';
}
static void parse_rest(parser *p, statement *s) {
    for (;;) {
        if (is_punct(p, '(') && (s->op == OP_window || s->op == OP_fold))
            parse_window(p, s);
        else if (p->t.kind == T_IDENT && next_is_equals(p))
            parse_attr(p, s);
        else
            break;
    }
    if (p->t.kind == T_IDENT) parse_type(p, &s->type);
    end_line(p);
}
static bool needs_type(op_code op) {
    switch (op) {
    case OP_cast:
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
    if (p->t.kind != T_IDENT) unexpected(p, "an op");
    if (p->t.ns < sizeof name) memcpy(name, p->t.s, p->t.ns);
    op_code op = op_find(name);
    if (op == OP_NIL) FAIL(p, "there is no op named '%.*s' (tenon ops lists them)", SHOW(&p->t));
    if (op == OP_input || op == OP_state) FAIL(p, "an %s is declared in the list after the graph's name", name);
    if (op == OP_param) FAIL(p, "parameters are declared in the list after the region's name");
    next(p);
    return op;
}
static void parse_statement(parser *p) {
    statement st = { .name = p->t }, *s = &st;
    next(p);
    expect(p, '=', "=");
    s->op_at = p->t;
    s->op = take_op(p);
    parse_operands(p, s);
    parse_rest(p, s);
    if (needs_type(s->op) && !s->type.given)
        fail_at(p, &s->op_at, "%s needs the result's type, such as f32[2,3], at the end of the line", op_get(s->op)->name);
    put_attrs(p, s);
    for (int i = 0; i < s->in.n; i++)
        if (!s->in.at[i].v) s->in.at[i].v = add_literal(p, s, i);
    spec n = {
        .op = s->op, .dtype = s->type.dtype, .n_in = s->in.n, .attr = s->values, .n_attr = s->n_values, .region = p->region
    };
    if (needs_type(s->op) && s->op != OP_cast) n.rank = s->type.rank, n.dims = s->type.dims;
    val *in = ARENA_ARRAY(p->a, val, s->in.n);
    for (int i = 0; i < s->in.n; i++) in[i] = s->in.at[i].v;
    n.in = in;
    if (s->op == OP_pad) n.imm = double_of(p, &need_attr(p, s, "value", '1', "NUMBER")->value);
    if (s->has_value) read_value(p, &s->value, &s->type, false, &n);
    attr *label = find_attr(s, "label");
    if (label) n.name = name_copy(p, &need_attr(p, s, "label", '"', "\"TEXT\"")->value);
    for (int i = 0; i < s->n_attrs; i++)
        if (!s->attrs[i].used)
            fail_at(p, &s->attrs[i].key, "%s has no attribute '%.*s'", op_get(s->op)->name, SHOW(&s->attrs[i].key));
    val v = add_node(p, &s->op_at, &n, &s->type);
    name_add(p, '%', &s->name, s->name.s, s->name.ns, v, "value");
}

/* ---- header, regions, return ---- */

static void parse_symbols(parser *p) {
    if (!is_punct(p, '<')) return;
    do {
        next(p);
        token t = p->t;
        if (t.kind != T_IDENT) unexpected(p, "a symbolic dim such as B 1..64");
        if (text_is_reserved(t.s, t.ns)) FAIL(p, "%.*s is a reserved word", SHOW(&t));
        if (p->g->symbols.n == TEXT_MAX_SYMBOLS) FAIL(p, "more than %d symbolic dims", TEXT_MAX_SYMBOLS);
        next(p);
        symbol s = { .name = name_copy(p, &t) };
        s.lo = take_int(p, "a range such as 1..64");
        if (p->t.kind != T_DOTS) unexpected(p, "..");
        next(p);
        s.hi = take_int(p, "the end of the range");
        if (s.lo < 0 || s.hi < s.lo)
            fail_at(p, &t, "the range of %.*s is %lld..%lld; expected 0 <= low <= high", SHOW(&t), (long long)s.lo,
                    (long long)s.hi);
        VEC_PUSH(p->a, &p->g->symbols, s);
        name_add(p, 's', &t, t.s, t.ns, (uint32_t)p->g->symbols.n, "symbolic dim");
    } while (is_punct(p, ','));
    expect(p, '>', ", or >");
}
static void parse_input(parser *p) {
    bool is_state = is_word(p, "state");
    spec s = { .op = is_state ? OP_state : OP_input };
    type_text type;
    if (is_state) next(p);
    token t = p->t;
    if (t.kind != T_IDENT && t.kind != T_STRING) unexpected(p, "the name of an input");
    if (t.kind == T_IDENT && text_is_reserved(t.s, t.ns))
        FAIL(p, "%.*s is a reserved word; as a name it stands in quotes", SHOW(&t));
    next(p);
    parse_type(p, &type);
    if (is_punct(p, '=')) {
        if (!is_state) FAIL(p, "only a state has an initial value");
        next(p);
        lexer_state value = lexer_save(p);
        skip_value(p);
        read_value(p, &value, &type, true, &s);
    }
    s.name = name_copy(p, &t);
    s.dtype = type.dtype, s.rank = type.rank, s.dims = type.dims;
    name_add(p, 'i', &t, t.s, t.ns, add_node(p, &t, &s, NULL), "input");
}
static void parse_param(parser *p, int index) {
    type_text type;
    token t = p->t;
    if (t.kind != T_VALUE) unexpected(p, "a parameter such as %x f32[2,3]");
    if (index == TEXT_MAX_PARAMS) FAIL(p, "more than %d parameters", TEXT_MAX_PARAMS);
    next(p);
    parse_type(p, &type);
    int64_t at = index;
    spec s = {
        .op = OP_param, .dtype = type.dtype, .rank = type.rank, .dims = type.dims, .attr = &at, .n_attr = 1, .region = p->region
    };
    name_add(p, '%', &t, t.s, t.ns, add_node(p, &t, &s, NULL), "value");
}
/* ( item, item ) {, where an item is an input or, in a region, a parameter */
static void parse_signature(parser *p) {
    expect(p, '(', "(");
    skip_lines(p);
    for (int i = 0; !is_punct(p, ')'); i++) {
        if (p->region)
            parse_param(p, i);
        else
            parse_input(p);
        if (take_comma(p)) continue;
        skip_lines(p);
        break;
    }
    expect(p, ')', ", or )");
    skip_lines(p);
    expect(p, '{', "{");
    skip_lines(p);
}
static void parse_output(parser *p, int index) {
    operand x;
    output o = { 0 };
    token t = p->t;
    if (!take_operand(p, &x)) unexpected(p, "a value");
    if (!x.v) fail_at(p, &t, "expected a value, got a number; give it a line of its own, such as %%c = const 0.5 f32[2,3]");
    o.v = x.v;
    if (p->region) {
        if (index == TEXT_MAX_PARAMS) fail_at(p, &t, "more than %d results", TEXT_MAX_PARAMS);
        graph_region_result(p->g, p->region, x.v);
        return;
    }
    token name = p->t;
    if (is_word(p, "as")) {
        next(p);
        name = p->t;
        if (name.kind != T_STRING) unexpected(p, "the output's name in quotes");
        if (!name.ns) FAIL(p, "an output needs a name");
        o.name = name_copy(p, &name);
        next(p);
    }
    if (p->t.kind == T_ARROW) {
        next(p);
        token target = p->t;
        operand state;
        if (!take_operand(p, &state) || !state.v || graph_get(p->g, state.v)->op != OP_state)
            fail_at(p, &target, "expected a state");
        o.state = state.v;
        if (!graph_same_shape(p->g, o.v, o.state) || graph_get(p->g, o.v)->dtype != graph_get(p->g, o.state)->dtype)
            fail_at(p, &t, "state %.*s is %s and cannot take %s", SHOW(&target), graph_shape_text(p->g, p->a, o.state),
                    graph_shape_text(p->g, p->a, o.v));
        name_add(p, 'a', &target, target.s, target.ns, o.state, "the new value of state");
    }
    if (!o.name && !o.state) o.name = arena_printf(p->a, "out%d", index);
    if (o.name) name_add(p, 'o', &name, o.name, strlen(o.name), o.v, "output");
    VEC_PUSH(p->a, &p->g->outputs, o);
}
static void parse_return(parser *p) {
    next(p);
    if (p->t.kind == T_LINE || is_punct(p, '}')) {
        end_line(p);
    } else {
        int i = 0;
        do parse_output(p, i++);
        while (take_comma(p));
        end_line(p);
    }
    expect(p, '}', "} after return");
}
static void parse_region_start(parser *p) {
    if (p->region) FAIL(p, "a region inside a region: define it before this one");
    next(p);
    token t = p->t;
    if (t.kind != T_AT) unexpected(p, "@ and the region's name");
    next(p);
    p->region = graph_region(p->g, name_copy(p, &t));
    VEC_PUSH(p->a, &p->depth, 0);
    VEC_PUSH(p->a, &p->taken, false);
    name_add(p, '@', &t, t.s, t.ns, (uint32_t)p->region, "region");
    parse_signature(p);
}

graph *graph_parse(arena *a, const char *text, size_t n, const char *file) {
    parser p = { .a = a, .text = text, .n = n, .file = file ? file : "text", .line = 1 };
    VEC_PUSH(a, &p.depth, 0);
    VEC_PUSH(a, &p.taken, false);
    next(&p);
    skip_lines(&p);
    if (!is_word(&p, "graph")) unexpected(&p, "graph @name(...) {");
    next(&p);
    if (p.t.kind != T_AT) unexpected(&p, "@ and the graph's name");
    p.g = graph_make(a, name_copy(&p, &p.t));
    next(&p);
    parse_symbols(&p);
    parse_signature(&p);
    for (bool open = true; open;) {
        if (p.t.kind == T_VALUE) {
            parse_statement(&p);
        } else if (is_word(&p, "region")) {
            parse_region_start(&p);
        } else if (is_word(&p, "return")) {
            parse_return(&p);
            open = p.region != 0;
            p.region = 0;
            if (open) end_line(&p);
        } else {
            unexpected(&p, "%name = op ..., a region or return");
        }
    }
    skip_lines(&p);
    if (p.t.kind != T_END) unexpected(&p, "the end of the text");
    p.g->here = NULL;
    return p.g;
}
