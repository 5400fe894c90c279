/* expression.h - the texts of ops.def and functions.def as lists of nodes, which both emitters walk. */
#ifndef TN_EMIT_EXPRESSION_H
#define TN_EMIT_EXPRESSION_H

#include "base/base.h"

typedef enum expr_kind {
    EXPR_FLOAT,   /* K(1.5): number */
    EXPR_INTEGER, /* I(3): integer */
    EXPR_NAME,    /* x: what letter stands for */
    EXPR_ASSIGN,  /* x=..;: letter stands for in[0] from here on */
    EXPR_NEGATE,  /* -in[0] */
    EXPR_BINARY,  /* in[0] op in[1]: + - * & ^ | */
    EXPR_SHIFT,   /* SHL SHR SAR: in[0] by integer */
    EXPR_CALL     /* another word, of n_in operands */
} expr_kind;

enum { EXPR_MOST_IN = 3, EXPR_MOST_WORD = 16 };
typedef struct expr_node {
    uint8_t kind, n_in;
    char op, letter, word[EXPR_MOST_WORD];
    int in[EXPR_MOST_IN]; /* nodes before this one */
    double number;
    int64_t integer;
} expr_node;

/* Operands stand before what uses them, in the order of the text; the last node is the text's value. */
typedef struct expression {
    VEC(expr_node) nodes;
} expression;

/* Jumps with TN_ERR_INTERNAL where the text is wrong: the tables are ours. */
void expression_read(arena *a, const char *text, expression *out);

#endif
