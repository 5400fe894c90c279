/* functions.h - the table of functions.def, and what reading its texts needs. */
#ifndef TN_EMIT_FUNCTIONS_H
#define TN_EMIT_FUNCTIONS_H

#include "base/base.h"

typedef struct function_row {
    const char *word, *sig, *text;
    const char *fma; /* the text where products are added in one rounding; NULL: the same */
} function_row;

enum {
#define FUNCTION(word, sig, text) FUNCTION_##word,
#define FUNCTION_FMA(word, sig, fma, text) FUNCTION_##word,
#include "emit/functions.def"
    N_FUNCTIONS
};
const function_row *function_at(int i);
const function_row *function_find(const char *word, size_t n); /* NULL when there is none */
/* Whether a word of the vocabulary is called in an expression. */
bool function_calls(const char *expr, const char *word);
/* Whether an expression calls any function of the table. */
bool function_any(const char *expr);
/* A decimal or hexadecimal number at *p, whatever the host's locale; moves *p behind it. out_int (may be NULL) gets it as a
 * whole number. */
double function_number(const char **p, int64_t *out_int);

/* c_functions.c: the function, by one of its texts, for so many lanes in C, on top of the templates of c_prelude.c. fma: the
 * language's name for x y + z rounded once, where its compiler contracts nothing; NULL: left to the compiler. */
void emit_function(str *out, const function_row *f, const char *text, int lanes, const char *fma);

#endif
