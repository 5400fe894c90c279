/* graph_text.h - what the printer and the parser of graph text must agree on. */
#ifndef TN_IR_GRAPH_TEXT_H
#define TN_IR_GRAPH_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    TEXT_LIST_MAX = 4096,     /* elements of an array printed as numbers; longer ones print as hexadecimal bytes */
    TEXT_MAX_NODES = 1 << 20, /* limits of the parser */
    TEXT_MAX_NAME = 1024,
    TEXT_MAX_NESTING = 32,
    TEXT_MAX_SYMBOLS = 256,
    TEXT_MAX_PARAMS = 4096, /* of one region; results too */
    TEXT_MAX_FILL = 1 << 28 /* bytes made from rand(seed) or one value, all together */
};

/* Identifiers: a letter or _, then letters, digits, _ . and /, but not "..". Reserved words are quoted when they name
 * something. */
bool text_is_reserved(const char *s, size_t n);
bool text_is_ident_start(char c);
bool text_is_ident(char c);

#endif
