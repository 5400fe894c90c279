/* sizes.h - graphs with symbolic dims in sizes of a number: 1 the least ones, 2 the largest ones, else others. */
#ifndef TN_TESTS_SUPPORT_SIZES_H
#define TN_TESTS_SUPPORT_SIZES_H

#include "ir/kernel.h"

static inline const graph *graph_sized(const graph *g, arena *a, uint64_t number) {
    int n = g->params ? g->params->n_dims : 0;
    int64_t *dims = ARENA_ARRAY(a, int64_t, n + 1);
    for (int i = 0; i < n; i++) {
        ext d = exts_dim(g->params, i);
        int64_t lo = ext_lo(g->params, d), hi = ext_hi(g->params, d);
        uint64_t other = hash_bytes((const char *)&i, sizeof i, number) % (uint64_t)(hi - lo + 1);
        dims[i] = number == 1 ? lo : number == 2 ? hi : lo + (int64_t)other;
    }
    return n ? graph_at(g, dims, a) : g;
}

#endif
