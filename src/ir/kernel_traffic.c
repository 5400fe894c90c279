/* kernel_traffic.c - bytes that a kernel must at least read and write; of sizes that are given at run time, for the largest. */
#include "ir/kernel.h"

void kernel_count_traffic(kernel *own) {
    const kernel *k = kernel_at_most(own, own->a);
    own->bytes_read = own->bytes_written = 0;
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        if (kb->kind == KB_LOCAL) continue;
        int64_t touched = 0, trips = 1, loops[64];
        int depth = 0;
        for (int i = 1; i < k->ins.n; i++) {
            /* elements an instruction can touch: the product of the loops its index uses, at most all */
            const kins *in = &k->ins.at[i];
            if (in->op == K_LOOP && depth < 64) loops[depth++] = in->var;
            if (in->op == K_END) depth--;
            if ((in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) || in->buf != b) continue;
            trips = 1;
            for (int t = 0; t < depth; t++)
                if ((affine_coef(in->idx, (kvar)loops[t]) || in->dyn) && !size_mul(trips, k->vars.at[loops[t]].extent, &trips))
                    trips = kb->elems;
            if (!size_add(touched, trips, &touched)) touched = kb->elems;
        }
        if (touched > kb->elems) touched = kb->elems;
        uint64_t bytes = (uint64_t)touched * dtype_size((tn_dtype)kb->dtype);
        if (kb->kind != KB_OUT) own->bytes_read += bytes;
        if (kb->kind != KB_IN) own->bytes_written += bytes;
    }
}
