/* byte_bits.h - bits of bytes that became floats, whose bits stay where the word that was loaded has them: what the steps
 * mantissa_casts and group_sums share. In mantissa_casts.c. */
#ifndef TN_LOOP_BYTE_BITS_H
#define TN_LOOP_BYTE_BITS_H

#include "loop/build.h"

/* A vector of them: (float)(load >> shift & mask ^ flip) - less. */
typedef struct byte_bits {
    reg load;
    int64_t shift, mask, flip; /* flip: of signed bytes, which become those from 0 on */
    double less;
} byte_bits;
bool byte_bits_find(const kernel *k, const kins *in, byte_bits *out);
/* Where those of lane l begin: a word is two halves, so that all bits end below the 23rd. */
static inline int64_t byte_bits_at(const byte_bits *w, int l) { return w->shift + l % 2 * 8; }
/* Those of lane l there, as the bits of a float behind this exponent. */
reg byte_bits_lane(build_copier *c, const byte_bits *w, int l, int64_t exponent, val of);
/* bit_sums.c: sums of products with such vectors, see there. */
bool byte_bits_sum(kernel **k, str *why);

#endif
