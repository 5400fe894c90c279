/* kernel_text.c - prints kernels as lists of instructions (docs/ir.md), one a line, loops indented, by the texts of kernel.def.
 * kernel_parse.c reads them back. */
#include "ir/kernel_text.h"

/* " + 4", or "4" where it is the first; a parameter is a factor. */
static void print_term(const kernel *k, ext c, kvar v, bool first, str *out) {
    bool minus = (!k->params || ext_is_lit(c)) && c < 0;
    if (!first) str_add(out, minus ? " - " : " + ");
    if (first && minus) str_add(out, "-");
    if (k->params && !ext_is_lit(c))
        ext_print(k->params, c, true, out);
    else if (v < 0 || (c != 1 && c != -1))
        str_addf(out, "%lld", (long long)(c < 0 ? -c : c));
    if (v < 0) return;
    str_addf(out, "%s%s", c == 1 || c == -1 ? "" : "*", k->vars.at[v].name);
}

static void print_affine(const kernel *k, affine x, str *out) {
    for (int i = 0; i < x.n; i++) print_term(k, x.t[i].coef, x.t[i].var, i == 0, out);
    if (x.n == 0 || x.base) print_term(k, x.base, -1, x.n == 0, out);
}

static void print_step(const kins *in, str *out) { /* from lane to lane */
    if (in->lanes > 1) str_addf(out, " step %lld", (long long)in->lane_stride);
}

static void print_place(const kernel *k, const kins *in, str *out) {
    str_addf(out, "b%d[", in->buf);
    print_affine(k, in->idx, out);
    if (in->dyn) {
        str_addf(out, " + %%%u*", in->dyn);
        ext_print(k->params, in->dyn_stride, true, out);
        str_add(out, " of ");
        ext_print(k->params, in->dyn_n, false, out);
    }
    str_add(out, "]");
    print_step(in, out);
}

static void print_imm(const kins *in, str *out) {
    if (dtype_is_float((tn_dtype)in->dtype))
        str_double(out, in->imm);
    else
        str_addf(out, "%lld", (long long)in->imm_int);
}

static void print_masks(const kernel *k, const kins *in, str *out) {
    for (int m = 0; m < in->n_mask; m++) {
        str_add(out, m ? ", " : " where ");
        ext_print(k->params, in->mask[m].lo, false, out);
        str_add(out, " <= ");
        print_affine(k, in->mask[m].e, out);
        if (in->lanes > 1 && in->mask_lane && in->mask_lane[m]) str_addf(out, " step %lld", (long long)in->mask_lane[m]);
        str_add(out, " < ");
        ext_print(k->params, in->mask[m].hi, false, out);
    }
}

const char *kernel_update_name(uint8_t op) { return op == OP_dot ? "fma" : op == OP_NIL ? "set" : op_get((op_code)op)->name; }

static void print_alu(const kins *in, str *out) {
    str_add(out, op_get((op_code)in->alu)->name);
    for (int i = 0; i < op_get((op_code)in->alu)->arity; i++)
        str_addf(out, "%s %%%u", i ? "," : "", i == 0 ? in->a : i == 1 ? in->b : in->c);
}

/* ---- the texts of kernel.def ---- */

static const kfield fields[] = {
#define KERNEL_FIELD(name, kind, member, lo, hi, what) { #name, FIELD_##kind, offsetof(kins, member), lo, hi, what },
#include "ir/kernel.def"
};

static const kfield *find_field(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (strlen(fields[i].name) == n && !memcmp(fields[i].name, name, n)) return &fields[i];
    return NULL;
}

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }

ktoken ktoken_at(const char *at) {
    ktoken t = { .kind = TOKEN_WORD };
    size_t n = 0;
    while (*at == ' ') at++;
    if (!*at) return (ktoken){ .kind = TOKEN_END, .next = at };
    if (*at == '[') return (ktoken){ .kind = TOKEN_OPEN, .next = at + 1 };
    if (*at == ']') return (ktoken){ .kind = TOKEN_CLOSE, .next = at + 1 };
    if (*at == '$' || *at == '<') t.kind = *at++ == '$' ? TOKEN_FIELD : TOKEN_MODE;
    const char *from = at;
    if (t.kind == TOKEN_FIELD)
        while (is_name(*at)) at++;
    else if (t.kind == TOKEN_MODE)
        while (*at && *at != '>') at++;
    else
        do at++;
        while (*at && *at != ' ' && *at != ',' && *at != ']' && from[0] != ',');
    n = (size_t)(at - from);
    if (n >= sizeof t.text) n = sizeof t.text - 1;
    memcpy(t.text, from, n);
    t.next = at + (t.kind == TOKEN_MODE && *at);
    if (t.kind == TOKEN_FIELD) t.field = find_field(from, n);
    return t;
}

const char *kmode_word(const ktoken *modes, int n, char *out, size_t size) {
    const char *at = modes->text;
    for (; n > 0; n--) {
        at = strchr(at, '|');
        if (!at) return NULL;
        at++;
    }
    size_t length = strcspn(at, "|");
    if (length >= size) return NULL;
    memcpy(out, at, length);
    out[length] = 0;
    return out;
}

const kfield *kfield_first(const char *open) {
    for (ktoken t = ktoken_at(open); t.kind != TOKEN_END && t.kind != TOKEN_CLOSE; t = ktoken_at(t.next))
        if (t.kind == TOKEN_FIELD) return t.field;
    return NULL;
}

int kfield_implied(const kins *in, const kfield *f) {
    if (f->kind == FIELD_IMM) return in->n_mask > 0;
    if (f->kind == FIELD_BUFFER) return in->mode == BARRIER_MBARRIER;
    return in->op == K_UPD && f->at == offsetof(kins, b) ? in->alu == OP_dot : -1;
}

static int64_t whole(const kins *in, const kfield *f) { return *(const int64_t *)(const void *)((const char *)in + f->at); }
static reg reg_of(const kins *in, const kfield *f) { return *(const reg *)(const void *)((const char *)in + f->at); }

static bool is_said(const kins *in, const kfield *f) {
    int implied = kfield_implied(in, f);
    if (implied >= 0) return implied;
    if (f->kind == FIELD_REGISTER) return reg_of(in, f) != 0;
    return f->kind == FIELD_WHOLE || f->kind == FIELD_EXT ? whole(in, f) != 0
           : f->kind == FIELD_PACKED                      ? in->packed != 0
                                                          : in->src != in->dtype;
}

static void print_field(const kernel *k, const kins *in, const kfield *f, str *out) {
    if (f->kind != FIELD_STEP && f->kind != FIELD_MASKS && out->s[out->n - 1] != ' ') str_add(out, " ");
    switch (f->kind) {
    case FIELD_REGISTER:
        str_addf(out, "%%%u", reg_of(in, f));
        break;
    case FIELD_VARIABLE:
        str_add(out, k->vars.at[in->var].name);
        break;
    case FIELD_WHOLE:
        str_addf(out, "%lld", (long long)whole(in, f));
        break;
    case FIELD_EXT:
        ext_print(k->params, *(const ext *)(const void *)((const char *)in + f->at), false, out);
        break;
    case FIELD_PACKED:
        str_addf(out, "%d", in->packed);
        break;
    case FIELD_IMM:
        print_imm(in, out);
        break;
    case FIELD_DTYPE:
        str_add(out, dtype_name((tn_dtype)in->src));
        break;
    case FIELD_OP:
        str_add(out, op_get((op_code)in->alu)->name);
        break;
    case FIELD_UPDATE:
        str_add(out, kernel_update_name(in->alu));
        break;
    case FIELD_ALU:
        print_alu(in, out);
        break;
    case FIELD_AFFINE:
        print_affine(k, in->idx, out);
        break;
    case FIELD_STEP:
        print_step(in, out);
        break;
    case FIELD_PLACE:
        print_place(k, in, out);
        break;
    case FIELD_MASKS:
        print_masks(k, in, out);
        break;
    case FIELD_BUFFER:
        str_addf(out, "b%d", in->buf);
        break;
    }
}

static const char *past_option(const char *at) {
    ktoken t = ktoken_at(at);
    while (t.kind != TOKEN_CLOSE && t.kind != TOKEN_END) t = ktoken_at(t.next);
    return t.next;
}

static void print_ins(const kernel *k, reg r, str *out) {
    const kins *in = &k->ins.at[r];
    const kop_info *op = kop_get(in->op);
    char word[32];
    if (op->flags & KOP_MAKES) str_addf(out, "%%%u = ", r);
    for (ktoken t = ktoken_at(op->text); t.kind != TOKEN_END; t = ktoken_at(t.next)) {
        const char *mode = t.kind == TOKEN_MODE ? kmode_word(&t, in->mode, word, sizeof word) : NULL;
        if (t.kind == TOKEN_FIELD) print_field(k, in, t.field, out);
        if (t.kind == TOKEN_OPEN && !is_said(in, kfield_first(t.next))) t.next = past_option(t.next);
        if (t.kind == TOKEN_WORD || (mode && *mode)) {
            bool joined = out->s[out->n - 1] == ' ' || t.text[0] == ',';
            str_addf(out, "%s%s", joined ? "" : " ", mode ? mode : t.text);
        }
    }
    if (op->flags & KOP_TYPED) {
        str_addf(out, "  %s", dtype_name((tn_dtype)in->dtype));
        if (in->lanes > 1) str_addf(out, "x%d", in->lanes);
    }
    str_add(out, "\n");
}

static void print_var(const kernel *k, const kvar_info *v, str *out) {
    str_addf(out, "  var %s = ", v->name);
    ext_print(k->params, v->extent, false, out);
    str_addf(out, "%s%s%s", v->row ? " row" : "", v->reduce ? " reduce" : "", v->block ? " block" : "");
    if (v->role.lanes > 1) str_addf(out, " lanes %d", v->role.lanes);
    if (v->role.unroll > 1) str_addf(out, " unroll %d", v->role.unroll);
    if (v->threads) str_addf(out, " threads %d", v->threads);
    if (v->matrix)
        str_addf(out, " matrix %d%s", v->matrix, v->staged == STAGED_IN_BOXES ? " boxed" : v->staged ? " staged" : "");
    if (v->group) str_addf(out, " group %d", v->group);
    if (v->steps) str_addf(out, " steps %d%s", v->steps, v->bulk ? " bulk" : "");
    str_add(out, "\n");
}

void kpanels_print(const kpanels *x, str *out) {
    str_addf(out, "%lld columns %lld step %lld", (long long)x->width, (long long)x->column.extent, (long long)x->column.step);
    for (int i = 0; i < x->n_outer + x->n_depth; i++)
        str_addf(out, " %s %lld step %lld", i < x->n_outer ? "outer" : "depth", (long long)x->loops[i].extent,
                 (long long)x->loops[i].step);
    if (x->base) str_addf(out, " base %lld", (long long)x->base);
    if (x->packed)
        str_addf(out, " packed %d stride %lld from %s", x->packed, (long long)x->packed_stride, dtype_name((tn_dtype)x->dtype));
    if (x->padded) str_add(out, " padded");
}

static void print_buf(const kernel *k, int b, str *out) {
    static const char *const modes[] = { "in", "out", "inout", "local", "shared", "distributed" };
    const kbuf *x = &k->bufs.at[b];
    str_addf(out, "b%d %s %s[", b, x->fixed ? "fixed" : modes[x->kind], dtype_name((tn_dtype)x->dtype));
    ext_print(k->params, x->elems, false, out);
    str_addf(out, "]%s%s%s", x->swizzled ? " swizzled" : "", x->late ? " late" : "", x->loose ? " loose" : "");
    if (x->elsewhere) str_add(out, " elsewhere");
    if (!x->panels) return;
    str_add(out, " panels ");
    if (x->panels_of != b) str_addf(out, "of b%d ", x->panels_of);
    kpanels_print(x->panels, out);
}

static void print_dims(const kernel *k, str *out) { /* <batch 1..64, seq 8..512 by 8> */
    if (!k->params || !k->params->n_dims) return;
    str_add(out, "<");
    exts_print_dims(k->params, out);
    str_add(out, ">");
}

void kernel_print(const kernel *k, str *out) {
    str_addf(out, "kernel @%s", k->name);
    print_dims(k, out);
    str_add(out, "(");
    for (int b = 0; b < k->bufs.n; b++) {
        if (b) str_add(out, ", ");
        print_buf(k, b, out);
    }
    str_addf(out, ") %s", k->tiled ? "tiled" : "scalar");
    if (k->par_var >= 0) str_addf(out, " parallel %s", k->vars.at[k->par_var].name);
    if (k->block_threads) str_add(out, " blocks "), ext_print(k->params, k->grid_blocks, false, out);
    if (k->block_threads) str_addf(out, " threads %d", k->block_threads);
    if (k->cluster) str_addf(out, " cluster %d", k->cluster);
    if (k->turns) str_addf(out, " turns %lld", (long long)k->turns);
    str_add(out, " {\n");
    for (kvar v = 0; v < k->vars.n; v++) print_var(k, &k->vars.at[v], out);
    int depth = 1;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        if (k->ins.at[r].op == K_END) depth--;
        for (int i = 0; i < depth; i++) str_add(out, "  ");
        print_ins(k, r, out);
        if (k->ins.at[r].op == K_LOOP) depth++;
    }
    str_add(out, "}\n");
}
