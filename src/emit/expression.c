/* expression.c - reads a text in the vocabulary of ir/ops.def and emit/functions.def. In: the text. Out: its nodes. Binary
 * operators bind as in C, from * to |, and to the left. Memory: the arena. */
#include "emit/expression.h"

#include "emit/functions.h"

typedef struct expr_reader {
    arena *a;
    const char *text, *p;
    expression *out;
} expr_reader;

static int read_binary(expr_reader *r, int level);

static void wrong(expr_reader *r, const char *what) {
    guard_fail(r->a->gd, TN_ERR_INTERNAL, "the expression %s: %s at '%s'", r->text, what, r->p);
}

static bool take(expr_reader *r, char c) {
    while (*r->p == ' ') r->p++;
    if (*r->p != c) return false;
    r->p++;
    return true;
}

static void expect(expr_reader *r, char c) {
    if (!take(r, c)) wrong(r, "a bracket or semicolon is missing");
}

static int add(expr_reader *r, expr_node n) {
    VEC_PUSH(r->a, &r->out->nodes, n);
    return r->out->nodes.n - 1;
}

static bool is_shift(const char *word) { return !strcmp(word, "SHL") || !strcmp(word, "SHR") || !strcmp(word, "SAR"); }

static void read_number(expr_reader *r, expr_node *n) { n->number = function_number(&r->p, &n->integer); }

/* What stands in the brackets behind a word. */
static int read_call(expr_reader *r, const char *word, size_t length) {
    expr_node n = { .kind = EXPR_CALL };
    if (length >= sizeof n.word) wrong(r, "a word is too long");
    memcpy(n.word, word, length);
    if (!strcmp(n.word, "K") || !strcmp(n.word, "I")) {
        n.kind = n.word[0] == 'K' ? EXPR_FLOAT : EXPR_INTEGER;
        read_number(r, &n);
    } else if (is_shift(n.word)) {
        n.kind = EXPR_SHIFT, n.n_in = 1;
        n.in[0] = read_binary(r, 0);
        expect(r, ',');
        read_number(r, &n);
    } else {
        do {
            if (n.n_in == EXPR_MOST_IN) wrong(r, "more operands than three");
            n.in[n.n_in++] = read_binary(r, 0);
        } while (take(r, ','));
    }
    expect(r, ')');
    return add(r, n);
}

static int read_unary(expr_reader *r) {
    if (take(r, '-')) {
        int x = read_unary(r);
        return add(r, (expr_node){ .kind = EXPR_NEGATE, .n_in = 1, .in = { x } });
    }
    if (take(r, '(')) {
        int x = read_binary(r, 0);
        expect(r, ')');
        return x;
    }
    const char *word = r->p;
    while ((*r->p >= 'A' && *r->p <= 'Z') || *r->p == '_' || (r->p > word && *r->p >= '0' && *r->p <= '9')) r->p++;
    if (r->p > word) {
        size_t length = (size_t)(r->p - word);
        expect(r, '(');
        return read_call(r, word, length);
    }
    if (*r->p < 'a' || *r->p > 'z') wrong(r, "an unknown name");
    return add(r, (expr_node){ .kind = EXPR_NAME, .letter = *r->p++ });
}

/* Operators of this level and of those that bind tighter. */
static int read_binary(expr_reader *r, int level) {
    static const char *const operators[] = { "|", "^", "&", "+-", "*" };
    if (level == (int)COUNT_OF(operators)) return read_unary(r);
    int x = read_binary(r, level + 1);
    for (;;) {
        const char *op = operators[level];
        while (*op && !take(r, *op)) op++;
        if (!*op) return x;
        int y = read_binary(r, level + 1);
        x = add(r, (expr_node){ .kind = EXPR_BINARY, .op = *op, .n_in = 2, .in = { x, y } });
    }
}

void expression_read(arena *a, const char *text, expression *out) {
    expr_reader r = { .a = a, .text = text, .p = text, .out = out };
    for (;;) {
        while (*r.p == ' ') r.p++;
        if (!(r.p[0] >= 'a' && r.p[0] <= 'z' && r.p[1] == '=')) break;
        char letter = r.p[0];
        r.p += 2;
        int x = read_binary(&r, 0);
        expect(&r, ';');
        add(&r, (expr_node){ .kind = EXPR_ASSIGN, .letter = letter, .n_in = 1, .in = { x } });
    }
    int value = read_binary(&r, 0);
    while (*r.p == ' ') r.p++;
    if (*r.p || value != out->nodes.n - 1) wrong(&r, "its end");
}
