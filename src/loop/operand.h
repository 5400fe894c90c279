/* operand.h - an operand of a contraction: a value in memory, or what is computed of values in memory element by element (its
 * prologue: dequantised weights, scaled rows). In: a kernel in scalar form, which owns all memory. */
#ifndef TN_LOOP_OPERAND_H
#define TN_LOOP_OPERAND_H

#include "ir/kernel.h"

typedef struct operand {
    reg value;         /* what the update multiplies by */
    reg load;          /* the load that reaches most elements; `value` itself where nothing is computed */
    uint64_t vars;     /* loop variables that the value depends on */
    const bool *needs; /* [value + 1] the instructions that compute it */
} operand;

/* False where the value is not computed of loads from inputs alone: then it cannot be computed elsewhere. For kernels of at
 * most MAX_LOOPS variables. */
bool operand_find(const kernel *k, reg value, operand *out);
/* The loops that each instruction depends on which computes it: [value + 1]. */
uint64_t *operand_loops(const kernel *k, const operand *o);
/* Arithmetic of an element that depends on one of these loops: what is done again wherever the value is computed again. */
int operand_flops(const kernel *k, const operand *o, uint64_t loops);

#endif
