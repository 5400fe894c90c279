/* nest_pack.h - an operand that all blocks of rows read alike is packed once, before the loop over blocks: hoisting of a pack.
 *
 * A nest of a kernel that goes by blocks of rows is tiled as a kernel of its own. There such an operand is constant, so that
 * the recipes lay it out in panels as they lay out weights; the panels are local memory, filled by a nest of their own, which
 * is put before the first loop over blocks, inside the loops around it. Threads that share blocks fill panels of their own. */
#ifndef TN_LOOP_NEST_PACK_H
#define TN_LOOP_NEST_PACK_H

#include "ir/kernel.h"

enum { NEST_PACK_ROWS = 64 /* of all blocks, at least */, NEST_PACK_MOST = 256 << 20 /* of an operand, at most */ };

typedef struct nest_operand { /* of a nest */
    int buf;
    affine outer; /* of its index: the part of the loops around the blocks, in variables of the whole kernel */
} nest_operand;
typedef VEC(nest_operand) nest_operands;

/* Which operands of the nest, whose variables are those of the whole kernel still, all blocks read alike. */
void nest_pack_find(const kernel *whole, int loop, int end, nest_operands *out);
/* What they are as long as the nest is tiled: constant, at the same place in each iteration of the loops around. of: [vars of
 * the nest] in the whole kernel. */
void nest_pack_fix(kernel *nest, const kvar *of, int n_vars, const nest_operands *x);
/* The tiled nest, with what it reads as it lies at its places again; of: as above, [n_vars]. */
const kernel *nest_pack_unfix(const kernel *tiled, const kvar *of, int n_vars, const nest_operands *x);

typedef struct nest_panels { /* panels that were filled for some nest */
    int buf, local;          /* of what; local buffer of the whole kernel */
    int lanes;               /* of its vectors */
    const kpanels *layout;
    affine outer;
} nest_panels;
typedef VEC(nest_panels) nest_panels_list;

/* The local buffer of o with the panels of operand x that buffer b of a tiled nest stands for. */
int nest_pack_panels(kernel *o, nest_panels_list *all, const nest_operand *x, const kernel *tiled, int b);
/* Puts the nests that fill all panels before the first loop over blocks. */
void nest_pack_fill(kernel *o, const nest_panels_list *all);

#endif
