/* gemv.c - few vectors times a matrix in memory (GEMV, skinny GEMM): whether some rows of the matrix at a time are read from
 * end to end while the sums wait in the caches (src/loop/pack.c). In: scalar form with a register tile. */
#include "loop/contraction.h"
#include "recipe/recipe.h"

enum {
    MOST_VECTORS = 8,
    MANY_ROWS = 16, /* of the matrix, side by side .. */
    LESS_ROWS = 8,  /* .. or for one vector, or where more do not find places in the first cache */
    GAP_LINES = 5   /* between the sums of two vectors then: no tile is as wide */
};

bool recipe_gemv(recipe *r) {
    contraction c;
    const target *t = r->t;
    if (r->k->vars.n > 50 || !contraction_find(r->k, &c)) return false;
    const kins *matrix = contraction_matrix(&c);
    if (!matrix) return false;
    kvar v = c.depth.at[c.depth.n - 1], n = c.n;
    bool one = c.rows.n == 0;
    int64_t depth = contraction_depth_from(&c, 0), width = contraction_extent(&c, n),
            m = one ? 1 : contraction_extent(&c, c.rows.at[0]),
            elem = (int64_t)dtype_size((tn_dtype)matrix->src) * (matrix->packed ? matrix->packed : 1),
            bytes = depth * width * elem, sum = contraction_sum_size(&c);
    if (m == 1 && width <= contraction_tile_columns(&c)) return false; /* is so in place */
    /* Rows a power of two apart drive each other out of the first cache, and so do sums that lie like them. (Where it has 12
     * places for lines 4 KB apart, 16 rows are still better than 8: 4 and 16 cores of a Xeon, 8x1024x1024: by an eighth and a
     * twelfth.) */
    bool crowded = m > 1 && loop_places(t->l1_bytes, affine_coef(matrix->idx, v) * elem) <= LESS_ROWS;
    int64_t rows = m == 1 || crowded ? LESS_ROWS : MANY_ROWS,
            stride = width + (crowded ? GAP_LINES * MACHINE_LINE_BYTES / sum : 0);
    if (rows > contraction_extent(&c, v)) rows = contraction_extent(&c, v); /* of a group */
    if (m > MOST_VECTORS || (c.depth.n > 1 && rows < LESS_ROWS) || depth < 4 * rows || m * stride * sum > MACHINE_STACK_BYTES)
        return false;
    if (bytes <= (m == 1 ? t->l1_bytes : t->l2_bytes)) return false;
    const char *lanes = r->k->vars.at[n].name;
    if (one && contraction_role(&c, n).unroll != 2) recipe_do(r, "unroll_jam %s 2", lanes);
    recipe_do(r, "accumulate %s %lld stride=%lld", r->k->vars.at[v].name, (long long)rows, (long long)stride);
    if (r->threads >= 0) r->threads = n;
    return true;
}
