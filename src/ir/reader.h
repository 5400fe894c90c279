/* reader.h - words, numbers and names of a text: what the parsers of kernels and plans share. In: any bytes. Blanks and line
 * ends only separate words. What does not fit jumps with TN_ERR_PARSE: "file:line:col: expected ..". */
#ifndef TN_IR_READER_H
#define TN_IR_READER_H

#include "ir/kernel.h"

typedef struct reader {
    arena *a;
    const char *file, *text, *at, *end;
    kernel *k; /* the kernel that is being read */
} reader;
reader reader_make(arena *a, const char *text, size_t n, const char *file);

void read_fail(const reader *p, const char *expected) NORETURN; /* at p->at */
void read_blanks(reader *p);
bool read_accept(reader *p, const char *what); /* a word, or signs: whether they come next; then they are passed */
void read_expect(reader *p, const char *what);
void read_end(reader *p); /* nothing follows */
/* A word into out[size], terminated; `what` is expected. Returns its length. */
size_t read_word(reader *p, char *out, size_t size, const char *what);
uint64_t read_digits(reader *p);
int64_t read_int(reader *p);
int64_t read_int_in(reader *p, int64_t lo, int64_t hi, const char *what); /* in [lo, hi) */
double read_number(reader *p);
tn_dtype read_dtype(reader *p, int *out_lanes); /* f32; or f32x8, where out_lanes is not NULL */
void read_buffer_letter(reader *p);             /* the b of b0 */

/* kernel_parse.c: a kernel, and what kpanels_print prints, from here on. */
kernel *kernel_read(reader *p);
const kpanels *kpanels_read(reader *p, uint8_t dtype);

#endif
