/* block.c - a kernel that turns what it reads (rows of memory become columns) works on blocks of the turned variable: the
 * memory pages and cache lines of a block are used whole before the next. In and out: scalar form with roles.
 *
 * Squares go straight to their places, although rows of the result that lie a power of two apart share few places in the
 * caches. Turned into local memory and written from there in runs of 512 bytes, 2048 x 512 f32 took less time on a Zen 3 while
 * all of it stayed in the third level (183 to 293 against 395 to 397 us, the machine being shared), but up to twice the time
 * where 8 MB of something else passed in between, as in a program (486 to 1027 against 406 to 465 us). */
#include "kopt/kopt.h"

enum { BLOCK = 256 }; /* elements in a run of the result; as many pages are read at a time, which a second-level TLB holds */

static bool turns(const kernel *k, kvar v) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || affine_coef(in->idx, v) < 2) continue;
        for (kvar u = 0; u < k->vars.n; u++)
            if (u != v && k->vars.at[u].role.unroll >= 4 && affine_coef(in->idx, u) == 1) return true;
    }
    return false;
}

static kvar turned_variable(const kernel *k) {
    kvar found = -1;
    for (kvar v = 0; v < k->vars.n; v++) {
        if (!k->vars.at[v].row) return -1;
        if (k->vars.at[v].role.lanes > 1 && turns(k, v)) found = v;
    }
    return found;
}

void kopt_block(kernel *k) {
    kvar v = turned_variable(k);
    if (v < 0 || k->vars.n > 60) return;
    int64_t extent = k->vars.at[v].extent, piece = BLOCK, lanes = (int64_t)k->vars.at[v].role.lanes * k->vars.at[v].role.unroll;
    while (piece > lanes && extent % piece) piece -= lanes;
    if (extent <= BLOCK || piece < 2 * lanes) return;
    kvar b = kernel_var(k, "vb", extent / piece, true, false);
    k->vars.at[v].extent = piece;
    affine value = affine_add(k->a, affine_scale(k->a, affine_var(k->a, b), piece), affine_var(k->a, v));
    kernel out = { .a = k->a };
    VEC_PUSH(k->a, &out.ins, (kins){ 0 });
    kernel_push(&out, (kins){ .op = K_LOOP, .var = b, .hi = k->vars.at[b].extent, .step = 1 });
    for (int i = 1; i < k->ins.n; i++) {
        kins in = k->ins.at[i];
        in.a += in.a > 0, in.b += in.b > 0, in.c += in.c > 0, in.dyn += in.dyn > 0; /* one instruction in front */
        if (in.op == K_LOOP && in.var == v) in.hi = piece;
        in.idx = affine_set_var(k->a, in.idx, v, value);
        for (int m = 0; m < in.n_mask; m++) in.mask[m].e = affine_set_var(k->a, in.mask[m].e, v, value);
        kernel_push(&out, in);
    }
    kernel_push(&out, (kins){ .op = K_END });
    k->ins.at = out.ins.at, k->ins.n = out.ins.n, k->ins.cap = out.ins.cap;
    if (k->par_var >= 0 && k->vars.at[b].extent >= 2) k->par_var = b;
}
