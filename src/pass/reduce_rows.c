/* reduce_rows.c - a reduction of everything over several sizes of the run becomes one along its rows and one of what these
 * give: a GPU has a thread block for each row, and had one for all.
 *
 * In: sum, prod, reduce_max, reduce_min of 2^16 elements at most or more to one, of which a run gives several sizes. Out: the
 * same along the last axes that may have ROW elements, then along the others. [order] for sum and prod. Partial sums of f16 and
 * bf16 stay in f32. */
#include "pass/rewrite.h"

enum { ROW = 512, LEAST = 1 << 16 };

static val split(graph *g, val v, arena *scratch) {
    (void)scratch;
    const node n = *graph_get(g, v);
    if (op_get((op_code)n.op)->cls != CL_REDUCE) return 0;
    const node x = *graph_get(g, n.in[0]);
    uint64_t axes = (uint64_t)n.attr[0], rows = 0;
    int64_t row = 1, all = 1;
    int of_run = 0;
    for (int i = x.rank - 1; i >= 0; i--) {
        int64_t most = ext_is_lit(x.dims[i]) ? x.dims[i] : ext_hi(g->params, x.dims[i]);
        if (most != 1 && !mask_has(axes, i)) return 0;
        of_run += !ext_is_lit(x.dims[i]);
        if (row < ROW && mask_has(axes, i)) rows |= UINT64_C(1) << i, row *= most < LEAST ? most : LEAST;
        if (all < LEAST) all *= most < LEAST ? most : LEAST;
    }
    if (of_run < 2 || all < LEAST || !(axes & ~rows)) return 0;
    bool narrow = dtype_is_narrow_float((tn_dtype)n.dtype) && (n.op == OP_sum || n.op == OP_prod);
    val in = narrow ? graph_cast(g, n.in[0], TN_F32) : n.in[0];
    return graph_cast(g, graph_reduce(g, (op_code)n.op, graph_reduce(g, (op_code)n.op, in, rows), axes & ~rows),
                      (tn_dtype)n.dtype);
}

bool pass_reduce_rows(graph *g, arena *scratch) { return rewrite_dims(g, scratch, split); }
