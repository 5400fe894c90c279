/* target.h - facts about the machine that code is made for: a plain struct, filled by rt/ (or by hand in tests), read by kopt/
 * and emit/. */
#ifndef TN_IR_TARGET_H
#define TN_IR_TARGET_H

#include <stdint.h>

typedef enum target_kind { TARGET_CPU, TARGET_GPU } target_kind;
typedef struct target {
    int vector_bytes; /* CPU: widest vector register: 16, 32, 64 */
    int n_vector_regs;
    int threads; /* CPU: threads a run may use; GPU: 1 */
    int64_t l1_bytes, l2_bytes;
    target_kind kind;
    int group;           /* GPU: most threads of a group, a power of two */
    int64_t group_bytes; /* GPU: fast memory of a group */
    int64_t grid;        /* GPU: threads that keep the machine busy */
} target;

#endif
