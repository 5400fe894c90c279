/* combine.c - one chunk of an elementwise op over virtual registers. In: its operands. Out: instructions of the xfn. */
#include "emit/x86/select.h"

#include <math.h>

static bool is_plain_const(const kernel *k, reg r) { return k->ins.at[r].op == K_CONST && !isnan(k->ins.at[r].imm); }

/* One chunk of an elementwise op; see print_alu_value. */
xval sel_combine(selector *s, op_code op, tn_dtype src, int lanes, const reg *r, const xval *x) {
    xfn *f = s->f;
    const op_info *info = op_get(op);
    xval a[3] = { x[0], x[1], x[2] };
    if ((op == OP_max || op == OP_min) && src == TN_F32 && r && (is_plain_const(s->k, r[0]) || is_plain_const(s->k, r[1]))) {
        bool first = is_plain_const(s->k, r[0]);
        return x86_bin(f, op == OP_max ? 'M' : 'm', a[first ? 0 : 1], a[first ? 1 : 0], lanes);
    }
    if ((op == OP_max || op == OP_min) && dtype_is_float(src)) { /* the instruction gives y where x is NaN */
        xval m = x86_bin(f, op == OP_max ? 'M' : 'm', a[0], a[1], lanes);
        return x86_sel(f, x86_bin(f, 'n', a[0], a[0], lanes), a[0], m, lanes);
    }
    for (int i = 0; i < info->arity; i++)
        if (a[i].t == XM64 && xt(src) == XI32 && info->cls != CL_BIT && info->cls != CL_LOG && !(op == OP_select && i == 0))
            a[i] = x86_mask32(f, a[i], lanes);
    return x86_expr(f, info->expr, xt(src), a, lanes);
}
