/* safetensors.h - inside of the safetensors reader: the header's text becomes entries (safetensors_header.c), entries become
 * arrays (safetensors.c). */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H

#include "io.h"

typedef struct st_entry {
    char *name; /* in st_header.text */
    tn_dtype dtype;
    tn_shape shape;
    uint64_t begin, end; /* within the data part */
} st_entry;

typedef struct st_pair {
    char *key, *value; /* in st_header.text */
} st_pair;

/* A checked header. text holds the strings; entries are in the order of the file; by_name is the order of their names. */
typedef struct st_header {
    char *text;
    size_t n_text;
    st_entry *entries;
    int n, cap;
    int *by_name;
    st_pair *metadata;
    int n_metadata, cap_metadata;
} st_header;

/* Parses and checks all of a header: syntax, dtypes, sizes, and that the arrays cover the n_data bytes behind it without gaps
 * or overlaps. r stands at its first byte. *out is filled also on errors: free it either way. */
tn_status st_header_parse(io_reader *r, uint64_t n_data, st_header *out);
void st_header_free(tn_ctx *ctx, st_header *h);

/* As tn_io_tensors_find, but nothing is copied: the data may begin at any address. False: there is none. */
bool st_find(const tn_io_tensors *t, const char *name, tn_io_tensor *out);

/* "F32" for TN_F32; NULL for an unknown dtype. */
const char *st_dtype_name(tn_dtype t);
/* Sorts order[0..n) so that less(ud, order[i], order[i + 1]) or neither is less. In place, no memory, O(n log n). */
void st_sort(int *order, int n, bool (*less)(const void *ud, int a, int b), const void *ud);

#endif
