/* builders.h - the functions of the public headers that take or give tensors, for `tenon ops --builders`. The build writes the
 * rows (cmake/gen_builders.c). */
#ifndef TN_CLI_BUILDERS_H
#define TN_CLI_BUILDERS_H

typedef struct builder_row {
    const char *name, *header, *declaration, *doc;
} builder_row;
extern const builder_row builder_rows[]; /* the last one has no name */

#endif
