/* kernel_text.c - prints kernels as lists of op codes (docs/ir.md): one instruction a line, loops indented. kernel_parse.c
 * reads them back. */
#include "ir/kernel.h"

static void print_affine(const kernel *k, affine x, str *out) {
    bool any = false;
    for (int i = 0; i < x.n; i++) {
        int64_t c = x.t[i].coef;
        if (any) str_add(out, c < 0 ? " - " : " + ");
        if (!any && c < 0) str_add(out, "-");
        if (c != 1 && c != -1) str_addf(out, "%lld*", (long long)(c < 0 ? -c : c));
        str_add(out, k->vars.at[x.t[i].var].name);
        any = true;
    }
    if (!any)
        str_addf(out, "%lld", (long long)x.base);
    else if (x.base)
        str_addf(out, " %c %lld", x.base < 0 ? '-' : '+', (long long)(x.base < 0 ? -x.base : x.base));
}

static void print_step(const kins *in, str *out) { /* from lane to lane */
    if (in->lanes > 1) str_addf(out, " step %lld", (long long)in->lane_stride);
}

static void print_place(const kernel *k, const kins *in, str *out) {
    str_addf(out, "b%d[", in->buf);
    print_affine(k, in->idx, out);
    if (in->dyn) str_addf(out, " + %%%u*%lld of %lld", in->dyn, (long long)in->dyn_stride, (long long)in->dyn_n);
    str_add(out, "]");
    print_step(in, out);
}

static void print_type(const kins *in, str *out) {
    str_add(out, dtype_name((tn_dtype)in->dtype));
    if (in->lanes > 1) str_addf(out, "x%d", in->lanes);
}

static void print_imm(const kins *in, str *out) {
    if (dtype_is_float((tn_dtype)in->dtype))
        str_double(out, in->imm);
    else
        str_addf(out, "%lld", (long long)in->imm_int);
}

static void print_masks(const kernel *k, const kins *in, str *out) {
    for (int m = 0; m < in->n_mask; m++) {
        str_addf(out, "%s %lld <= ", m ? "," : " where", (long long)in->mask[m].lo);
        print_affine(k, in->mask[m].e, out);
        if (in->lanes > 1 && in->mask_lane && in->mask_lane[m]) str_addf(out, " step %lld", (long long)in->mask_lane[m]);
        str_addf(out, " < %lld", (long long)in->mask[m].hi);
    }
}

const char *kernel_update_name(uint8_t op) { return op == OP_dot ? "fma" : op == OP_NIL ? "set" : op_get((op_code)op)->name; }

static void print_ins(const kernel *k, reg r, str *out) {
    static const char *const pars[] = { "", " parallel", " last-thread", " grid", " groups", " local" };
    const kins *in = &k->ins.at[r];
    bool makes = in->op != K_LOOP && in->op != K_END && in->op != K_STORE && in->op != K_UPD && in->op != K_ARGUPD &&
                 in->op != K_SCATTER && in->op != K_BARRIER && in->op != K_PREFETCH;
    if (makes) str_addf(out, "%%%u = ", r);
    switch (in->op) {
    case K_LOOP:
        str_addf(out, "loop %s = %lld .. %lld step %lld%s", k->vars.at[in->var].name, (long long)in->lo, (long long)in->hi,
                 (long long)in->step, pars[in->par <= PAR_LOCAL ? in->par : 0]);
        if (in->n_groups) str_addf(out, " of %lld from %lld", (long long)in->n_groups, (long long)in->first_group);
        if (in->a) str_addf(out, " if %%%u", in->a);
        break;
    case K_END:
        str_add(out, "end");
        break;
    case K_CONST:
    case K_ACC:
        str_add(out, in->op == K_CONST ? "const " : "acc ");
        if (in->op == K_ACC) str_addf(out, "%s ", kernel_update_name(in->alu));
        print_imm(in, out);
        break;
    case K_INDEX:
        str_add(out, "index ");
        print_affine(k, in->idx, out);
        print_step(in, out);
        break;
    case K_LOAD:
        str_add(out, "load ");
        print_place(k, in, out);
        if (in->parts) str_addf(out, " parts %d apart %lld", in->parts, (long long)in->part_stride);
        if (in->src != in->dtype) str_addf(out, " from %s", dtype_name((tn_dtype)in->src));
        print_masks(k, in, out);
        if (in->n_mask) {
            str_add(out, " else ");
            print_imm(in, out);
        }
        if (in->mode) str_add(out, in->mode == LOAD_REMATERIALISED ? " anew" : in->mode == LOAD_UNMASKED ? " early" : " ahead");
        break;
    case K_STORE:
        str_add(out, "store ");
        print_place(k, in, out);
        str_addf(out, ", %%%u", in->a);
        print_masks(k, in, out);
        if (in->mode) str_add(out, in->mode == STORE_COUNTED ? " counted" : " past");
        break;
    case K_PREFETCH:
        str_add(out, "prefetch ");
        print_place(k, in, out);
        if (in->mode) str_add(out, in->mode == PREFETCH_WRITE ? " written" : " second");
        break;
    case K_SCATTER:
        str_add(out, "scatter ");
        print_place(k, in, out);
        str_addf(out, " += %%%u", in->a);
        print_masks(k, in, out);
        break;
    case K_ALU:
        str_add(out, op_get((op_code)in->alu)->name);
        for (int i = 0; i < op_get((op_code)in->alu)->arity; i++)
            str_addf(out, "%s %%%u", i ? "," : "", i == 0 ? in->a : i == 1 ? in->b : in->c);
        if (in->src != in->dtype) str_addf(out, " on %s", dtype_name((tn_dtype)in->src));
        if (in->mode == ALU_APPROXIMATE) str_add(out, " coarse");
        break;
    case K_CAST:
        str_addf(out, "cast %%%u from %s", in->a, dtype_name((tn_dtype)in->src));
        break;
    case K_WRAP:
        str_addf(out, "wrap %%%u to %s", in->a, dtype_name((tn_dtype)in->src));
        break;
    case K_RANDOM:
        str_addf(out, "random %%%u stream %lld at ", in->a, (long long)in->stream);
        print_affine(k, in->idx, out);
        print_step(in, out);
        break;
    case K_UPD:
        str_addf(out, "update %%%u %s %%%u", in->c, kernel_update_name(in->alu), in->a);
        if (in->alu == OP_dot) str_addf(out, ", %%%u", in->b);
        if (in->parts) str_addf(out, " parts %d", in->parts);
        break;
    case K_ARGUPD:
        str_addf(out, "update %%%u, %%%u %s %%%u at ", in->c, in->b, op_get((op_code)in->alu)->name, in->a);
        print_affine(k, in->idx, out);
        break;
    case K_HSUM:
        str_addf(out, "across %%%u %s of %lld lanes", in->a, op_get((op_code)in->alu)->name, (long long)in->combined);
        break;
    case K_ZIP:
        str_addf(out, "zip %%%u, %%%u pieces of %lld %s", in->a, in->b, (long long)in->piece,
                 in->mode == ZIP_HIGH ? "high" : "low");
        break;
    case K_LANES:
        str_addf(out, "lanes %%%u from %lld", in->a, (long long)in->first_lane);
        break;
    case K_BARRIER:
        str_add(out, in->mode == BARRIER_CLUSTER ? "barrier cluster" : "barrier");
        if (in->mode == BARRIER_MBARRIER) str_addf(out, " b%d", in->buf);
        break;
    case K_GSUM:
        str_addf(out, "group %%%u %s", in->a, op_get((op_code)in->alu)->name);
        if (in->neighbours) str_addf(out, " of %lld", (long long)in->neighbours);
        break;
    case K_GARG:
        str_addf(out, "group %%%u, %%%u %s on %s", in->a, in->b, op_get((op_code)in->alu)->name, dtype_name((tn_dtype)in->src));
        break;
    default:
        str_addf(out, "op%d", in->op);
    }
    if (in->op != K_LOOP && in->op != K_END && in->op != K_BARRIER) {
        str_add(out, "  ");
        print_type(in, out);
    }
    str_add(out, "\n");
}

static void print_var(const kvar_info *v, str *out) {
    str_addf(out, "  var %s = %lld%s%s%s", v->name, (long long)v->extent, v->row ? " row" : "", v->reduce ? " reduce" : "",
             v->block ? " block" : "");
    if (v->role.lanes > 1) str_addf(out, " lanes %d", v->role.lanes);
    if (v->role.unroll > 1) str_addf(out, " unroll %d", v->role.unroll);
    str_add(out, "\n");
}

void kernel_print(const kernel *k, str *out) {
    static const char *const modes[] = { "in", "out", "inout", "local", "group", "cluster" };
    str_addf(out, "kernel @%s(", k->name);
    for (int b = 0; b < k->bufs.n; b++)
        str_addf(out, "%sb%d %s %s[%lld]", b ? ", " : "", b, k->bufs.at[b].fixed ? "fixed" : modes[k->bufs.at[b].kind],
                 dtype_name((tn_dtype)k->bufs.at[b].dtype), (long long)k->bufs.at[b].elems);
    str_addf(out, ") %s", k->tiled ? "tiled" : "scalar");
    if (k->par_var >= 0) str_addf(out, " parallel %s", k->vars.at[k->par_var].name);
    if (k->group) str_addf(out, " groups %lld of %d", (long long)k->groups, k->group);
    if (k->cluster) str_addf(out, " cluster %d", k->cluster);
    str_add(out, " {\n");
    for (kvar v = 0; v < k->vars.n; v++) print_var(&k->vars.at[v], out);
    int depth = 1;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        if (k->ins.at[r].op == K_END) depth--;
        for (int i = 0; i < depth; i++) str_add(out, "  ");
        print_ins(k, r, out);
        if (k->ins.at[r].op == K_LOOP) depth++;
    }
    str_add(out, "}\n");
}
