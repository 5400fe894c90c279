/* tree.h - a binary tree over places 0 .. size - 1 (size: a power of two), for what is known about ranges of places. Node 1 is
 * the root, the children of i are 2 i and 2 i + 1, place x is node size + x.
 *
 * A range is a few whole nodes, and lies partly below the nodes on the paths from its ends to the root. What holds for all of a
 * range is noted as `all` in its whole nodes; that something holds for some of their places, as `some` in both. Whether it
 * holds for some place of another range is then answered by `some` of that one's whole nodes and `all` of those on its paths.
 */
#ifndef TN_MEM_TREE_H
#define TN_MEM_TREE_H

#include <stdint.h>

typedef struct tree_range {
    int n_whole, n_path;
    int32_t whole[2 * 32], path[2 * 32];
} tree_range;

static inline int32_t tree_size(int64_t places) {
    int32_t size = 1;
    while (size < places) size *= 2;
    return size;
}

static inline void tree_nodes(int32_t size, int32_t first, int32_t last, tree_range *out) { /* first .. last, both included */
    int32_t l = size + first, r = size + last;
    out->n_whole = out->n_path = 0;
    for (int32_t i = l, j = r; i > 0; i /= 2, j /= 2) {
        out->path[out->n_path++] = i;
        if (j != i) out->path[out->n_path++] = j;
    }
    for (r++; l < r; l /= 2, r /= 2) {
        if (l & 1) out->whole[out->n_whole++] = l++;
        if (r & 1) out->whole[out->n_whole++] = --r;
    }
}

#endif
