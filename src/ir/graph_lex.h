/* graph_lex.h - what the files of the graph parser share: its state, tokens, messages with a place, names, numbers, types,
 * arrays.
 *
 * In: {text, n}, any bytes. Tokens point into the text (or, for strings with escapes, into the arena). All failures jump with
 * TN_ERR_PARSE and "file:line:col: message", the line and a caret. */
#ifndef TN_IR_GRAPH_LEX_H
#define TN_IR_GRAPH_LEX_H

#include "ir/graph.h"
#include "ir/graph_text.h"

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
    char kind;   /* '%' value, 'i' input, '@' region, 's' symbol, 'o' output, 'a' assigned state */
    uint32_t id; /* 0: what the name stands for has an error */
    int line;
} entry;

/* Value of a const or an initial state: [..], x"..", rand(seed) or one literal. It is skipped first and read when its type is
 * known. */
typedef struct lexer_state {
    size_t pos, line_at;
    int line;
    token t;
} lexer_state;

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
    /* Errors: see graph_parse. */
    str errors;
    int n_errors, n_hidden;
    VEC(bool) broken;   /* regions with an error in them */
    bool structure;     /* what is being parsed: without it nothing that follows makes sense */
    bool closing, done; /* a return has been seen; the text's end */
    token start;        /* of the statement or item */
    token defining;     /* its name, or T_END */
    bool ended;         /* the statement's last line has been passed; what follows is at .. */
    lexer_state after;
} parser;

typedef struct type_text {
    bool given;
    token at;
    tn_dtype dtype;
    int rank;
    int64_t dims[TN_MAX_RANK];
} type_text;

void lex_fail_at(parser *p, const token *t, const char *fmt, ...) PRINTF_LIKE(3, 4) NORETURN;
#define FAIL(p, ...) lex_fail_at(p, &(p)->t, __VA_ARGS__)
/* Tokens in messages are cut: names can be long. */
#define SHOW(t) (int)((t)->n > 40 ? 40 : (t)->n), p->text + (t)->at
void lex_give_up(parser *p) NORETURN;                        /* what is used here has been complained of already */
void lex_unexpected(parser *p, const char *wanted) NORETURN; /* "expected wanted, got <the token>" */

void lex_next(parser *p);
bool lex_is(const parser *p, char c);
bool lex_is_word(const parser *p, const char *word);
bool lex_is_literal(const parser *p);
bool lex_before_equals(const parser *p); /* the token after this one is = */
void lex_expect(parser *p, char c, const char *wanted);
void lex_skip_lines(parser *p);
bool lex_take_comma(parser *p); /* with the line ends after it */
lexer_state lex_save(const parser *p);
void lex_restore(parser *p, const lexer_state *s);
/* Goes to what follows the statement or item that begins at `from`, past brackets that are open and strings: to the start of a
 * line, or, in a list of items, to the comma or bracket after it. */
void lex_skip_rest(parser *p, const token *from, bool item);

const char *lex_name(parser *p, const token *t); /* copied, terminated */
entry *names_find(parser *p, char kind, const char *s, size_t n);
void names_add(parser *p, char kind, const token *t, const char *s, size_t n, uint32_t id, const char *what);

int64_t lex_int(parser *p, const token *t);
int64_t lex_take_int(parser *p, const char *wanted);
double lex_double(parser *p, const token *t);
ext lex_dim(parser *p); /* a size: of dims, or a number of 0 or more */
void lex_type(parser *p, type_text *out);
void lex_skip_value(parser *p);
/* Reads the value that lex_skip_value passed over, as the fields of a spec; array: one literal fills an array too. */
void lex_read_value(parser *p, const lexer_state *value, const type_text *type, bool array, spec *s);

#endif
