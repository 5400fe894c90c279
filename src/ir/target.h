/* target.h - facts about the machine that code is made for: a plain struct, filled by rt/ (or by hand in tests), read by kopt/
 * and emit/. */
#ifndef TN_IR_TARGET_H
#define TN_IR_TARGET_H

#include <stdint.h>

typedef struct target {
    int vector_bytes; /* widest vector register: 16, 32, 64 */
    int n_vector_regs;
    int threads; /* threads a run may use */
    int64_t l1_bytes, l2_bytes;
} target;

#endif
