/* kernel_parse.c - reads the text of kernel_text.c back (docs/ir.md), instructions by the texts of kernel.def. In: any bytes.
 * Out: a kernel in the arena whose text is the same; whether it means anything is kernel_check's business. Jumps with
 * TN_ERR_PARSE and a place. */
#include "ir/kernel_text.h"
#include "ir/reader.h"

#include <stdio.h>

enum { MAX_VARS = 4096, MAX_MASKS = 256 };

static op_code op_word(reader *p, bool may_set) {
    char name[32];
    read_word(p, name, sizeof name, "an op");
    op_code op = !strcmp(name, "fma") ? OP_dot : op_find(name);
    if (op == OP_NIL && !(may_set && !strcmp(name, "set"))) read_fail(p, "an op");
    return op;
}

static reg register_word(reader *p) {
    read_expect(p, "%");
    return (reg)read_int_in(p, 1, p->k->ins.n, "a register above");
}

static kvar var_word(reader *p) {
    char name[32];
    read_blanks(p);
    const char *from = p->at;
    read_word(p, name, sizeof name, "a loop variable");
    for (kvar v = 0; v < p->k->vars.n; v++)
        if (!strcmp(p->k->vars.at[v].name, name)) return v;
    p->at = from;
    read_fail(p, "a loop variable");
}

/* ---- sizes: literals, and expressions of the kernel's dims ---- */

enum { MAX_EXT_DEPTH = 16 }; /* brackets in brackets */

static ext sum_text(reader *p, int depth);

static ext call_text(reader *p, int depth, const char *between, ext (*fn)(exts *t, ext x, ext y)) {
    read_expect(p, "(");
    ext x = sum_text(p, depth + 1);
    read_expect(p, between);
    ext y = sum_text(p, depth + 1);
    read_expect(p, ")");
    return fn(p->k->params, x, y);
}

static ext dim_word(reader *p) {
    char name[32];
    ext e;
    const char *from = p->at;
    size_t n = read_word(p, name, sizeof name, "a dim");
    if (p->k->params && ext_find_dim(p->k->params, name, n, &e)) return e;
    p->at = from;
    read_fail(p, "a dim of the kernel");
}

static ext literal_text(reader *p) { return read_int_in(p, EXT_LEAST, INT64_MAX, "a number of 64 bits"); }

static bool factor_text(reader *p, int depth, ext *out) { /* false: what comes next is none */
    static const struct {
        const char *name, *between;
        ext (*fn)(exts *t, ext x, ext y);
    } calls[] = {
        { "floor", "/", ext_floor_div }, { "ceil", "/", ext_ceil_div }, { "min", ",", ext_min }, { "max", ",", ext_max }
    };
    if (depth > MAX_EXT_DEPTH) read_fail(p, "fewer brackets");
    if (read_accept(p, "$")) {
        *out = dim_word(p);
        return true;
    }
    if (!p->k->params) return false;
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        const char *from = p->at;
        if (read_accept(p, calls[i].name)) {
            reader q = *p;
            if (read_accept(&q, "(")) {
                *out = call_text(p, depth, calls[i].between, calls[i].fn);
                return true;
            }
            p->at = from;
        }
    }
    if (!read_accept(p, "(")) return false;
    *out = sum_text(p, depth + 1);
    read_expect(p, ")");
    return true;
}

static ext product_text(reader *p, int depth) {
    ext x;
    if (!factor_text(p, depth, &x)) x = literal_text(p);
    while (p->k->params && read_accept(p, "*")) {
        ext y;
        if (!factor_text(p, depth, &y)) y = literal_text(p);
        x = ext_mul(p->k->params, x, y);
    }
    return x;
}

static ext sum_text(reader *p, int depth) {
    ext x = product_text(p, depth);
    while (p->k->params) {
        bool minus = read_accept(p, "-");
        if (!minus && !read_accept(p, "+")) break;
        ext y = product_text(p, depth);
        x = minus ? ext_sub(p->k->params, x, y) : ext_add(p->k->params, x, y);
    }
    return x;
}

static void expect_fits(const reader *p, const char *from) {
    reader at = *p;
    at.at = from;
    if (p->k->params && p->k->params->problem) read_fail(&at, arena_printf(p->a, "another size: %s", p->k->params->problem));
}

static ext ext_text(reader *p) {
    read_blanks(p);
    const char *from = p->at;
    ext e = sum_text(p, 0);
    expect_fits(p, from);
    return e;
}

/* A size of a buffer or a variable. */
static ext size_text(reader *p, int64_t least, const char *what) {
    read_blanks(p);
    const char *from = p->at;
    ext e = ext_text(p);
    if (!ext_is_lit(e) || e >= least) return e;
    p->at = from;
    read_fail(p, what);
}

static affine affine_text(reader *p) { /* 5*i0 - i1 + 4 */
    affine x = { 0 };
    for (bool first = true;; first = false) {
        const char *from = p->at;
        expect_fits(p, from);
        bool minus = read_accept(p, "-");
        if (!first && !minus && !read_accept(p, "+")) return x;
        read_blanks(p);
        if (p->at < p->end && *p->at == '%') { /* the dynamic part of an address */
            p->at = from;
            return x;
        }
        ext c = 1;
        bool is_var = p->at < p->end && !(*p->at >= '0' && *p->at <= '9');
        bool is_param = is_var && p->k->params && factor_text(p, 0, &c);
        if (!is_var) c = (int64_t)read_digits(p);
        if (!is_var || is_param) is_var = read_accept(p, "*");
        if (p->k->params && !is_param && !ext_is_lit(minus ? -c : c)) read_fail(p, "a number of 64 bits");
        if (minus) c = is_param ? ext_mul(p->k->params, c, -1) : (int64_t)(0 - (uint64_t)c);
        affine term = is_var ? affine_scale_params(p->a, p->k->params, affine_var(p->a, var_word(p)), c) : affine_const(c);
        x = affine_add_params(p->a, p->k->params, x, term);
    }
}

static int64_t step_text(reader *p) { return read_accept(p, "step") ? read_int(p) : 0; }

/* ---- instructions ---- */

static uint16_t buffer_word(reader *p) {
    read_buffer_letter(p);
    return (uint16_t)read_int_in(p, 0, p->k->bufs.n, "a buffer of the kernel");
}

static void place_text(reader *p, kins *in) {
    in->buf = buffer_word(p);
    read_expect(p, "[");
    in->idx = affine_text(p);
    if (read_accept(p, "+")) {
        in->dyn = register_word(p);
        read_expect(p, "*");
        if (!factor_text(p, 0, &in->dyn_stride)) in->dyn_stride = literal_text(p);
        read_expect(p, "of");
        in->dyn_n = ext_text(p);
    }
    read_expect(p, "]");
    in->lane_stride = step_text(p);
}

static void masks_text(reader *p, kins *in) {
    VEC(kmask) masks = { 0 };
    VEC(int64_t) lanes = { 0 };
    if (read_accept(p, "where")) {
        do {
            kmask m;
            if (masks.n == MAX_MASKS) read_fail(p, "fewer masks");
            m.lo = ext_text(p);
            read_expect(p, "<=");
            m.e = affine_text(p);
            VEC_PUSH(p->a, &lanes, step_text(p));
            read_expect(p, "<");
            m.hi = ext_text(p);
            VEC_PUSH(p->a, &masks, m);
        } while (read_accept(p, ","));
    }
    in->mask = masks.at, in->mask_lane = lanes.at, in->n_mask = masks.n;
}

/* The number of a const, acc or masked load: its dtype stands behind it, so both readings are kept. */
static void imm_text(reader *p, kins *in) {
    const char *from = p->at;
    in->imm = read_number(p);
    const char *to = p->at;
    p->at = from;
    read_blanks(p);
    bool whole = true;
    for (const char *c = p->at; c < to; c++) whole = whole && ((*c >= '0' && *c <= '9') || (*c == '-' && c == p->at));
    in->imm_int = whole ? read_int(p) : 0;
    p->at = to;
}

static void alu_text(reader *p, kins *in) {
    in->alu = (uint8_t)op_word(p, false);
    int n = op_get((op_code)in->alu)->arity;
    reg *operand[3] = { &in->a, &in->b, &in->c };
    if (!op_is_elementwise((op_code)in->alu)) read_fail(p, "an elementwise op");
    for (int i = 0; i < n; i++) {
        if (i) read_expect(p, ",");
        *operand[i] = register_word(p);
    }
}

static void field_text(reader *p, kins *in, const kfield *f) {
    void *at = (char *)in + f->at;
    switch (f->kind) {
    case FIELD_REGISTER:
        *(reg *)at = register_word(p);
        break;
    case FIELD_VARIABLE:
        in->var = var_word(p);
        break;
    case FIELD_WHOLE:
        *(int64_t *)at = f->hi == INT64_MAX && f->lo == INT64_MIN ? read_int(p) : read_int_in(p, f->lo, f->hi, f->what);
        break;
    case FIELD_EXT:
        *(ext *)at = ext_text(p);
        break;
    case FIELD_PACKED:
        in->packed = (uint8_t)read_int_in(p, 2, 5, "2 to 4 elements a lane");
        break;
    case FIELD_IMM:
        imm_text(p, in);
        break;
    case FIELD_DTYPE:
        in->src = (uint8_t)read_dtype(p, NULL);
        break;
    case FIELD_OP:
    case FIELD_UPDATE:
        in->alu = (uint8_t)op_word(p, f->kind == FIELD_UPDATE);
        break;
    case FIELD_ALU:
        alu_text(p, in);
        break;
    case FIELD_AFFINE:
        in->idx = affine_text(p);
        break;
    case FIELD_STEP:
        in->lane_stride = step_text(p);
        break;
    case FIELD_PLACE:
        place_text(p, in);
        break;
    case FIELD_MASKS:
        masks_text(p, in);
        break;
    case FIELD_BUFFER:
        in->buf = buffer_word(p);
        break;
    }
}

static void mode_text(reader *p, kins *in, const ktoken *modes) {
    char word[32], all[sizeof modes->text + 16] = "";
    const char *first = kmode_word(modes, 0, word, sizeof word);
    bool needed = first && *first;
    for (uint8_t i = 0; kmode_word(modes, i, word, sizeof word); i++) {
        if (*word && read_accept(p, word)) {
            in->mode = i;
            return;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " or " : "", word);
    }
    if (needed) read_fail(p, all);
}

/* What a text of kernel.def says; *out_src_is_dtype: a [.. $src] was left out. */
static void template_text(reader *p, kins *in, const char *text, bool *out_src_is_dtype) {
    for (ktoken t = ktoken_at(text); t.kind != TOKEN_END; t = ktoken_at(t.next)) {
        if (t.kind == TOKEN_WORD) read_expect(p, t.text);
        if (t.kind == TOKEN_FIELD) field_text(p, in, t.field);
        if (t.kind == TOKEN_MODE) mode_text(p, in, &t);
        if (t.kind != TOKEN_OPEN) continue;
        const kfield *f = kfield_first(t.next);
        const char *from = p->at;
        int said = kfield_implied(in, f);
        if (said < 0) {
            said = read_accept(p, ktoken_at(t.next).text);
            p->at = from;
        }
        if (said) continue;
        if (f->kind == FIELD_DTYPE) *out_src_is_dtype = true;
        while (t.kind != TOKEN_CLOSE) t = ktoken_at(t.next);
    }
}

static bool pair_follows(const reader *p) { /* two registers with a comma between */
    reader q = *p;
    if (!read_accept(&q, "%")) return false;
    while (q.at < q.end && *q.at >= '0' && *q.at <= '9') q.at++;
    return read_accept(&q, ",");
}

/* The row that the text begins with, one that makes a register or not. */
static kop row_text(reader *p, bool makes) {
    for (int op = K_NIL + 1; op < N_KOPS; op++) {
        const kop_info *row = kop_get((uint8_t)op);
        ktoken first = ktoken_at(row->text);
        const char *from = p->at;
        if (!(row->flags & KOP_MAKES) == makes || first.kind != TOKEN_WORD || !read_accept(p, first.text)) continue;
        if (op + 1 < N_KOPS && (kop_get((uint8_t)(op + 1))->flags & KOP_PAIR) && pair_follows(p)) op++;
        p->at = from;
        return (kop)op;
    }
    if (!makes) read_fail(p, "an instruction");
    return K_ALU;
}

static void instruction_text(reader *p) {
    kins in = { .lanes = 1 };
    bool makes = read_accept(p, "%"), src_is_dtype = false;
    if (makes) {
        read_int_in(p, p->k->ins.n, (int64_t)p->k->ins.n + 1, "the number of the instruction");
        read_expect(p, "=");
    }
    in.op = (uint8_t)row_text(p, makes);
    template_text(p, &in, kop_get(in.op)->text, &src_is_dtype);
    if (kop_get(in.op)->flags & KOP_TYPED) {
        int lanes;
        in.dtype = (uint8_t)read_dtype(p, &lanes);
        in.lanes = (uint8_t)lanes;
    }
    if (src_is_dtype) in.src = in.dtype;
    bool has_imm = in.op == K_CONST || in.op == K_ACC || in.op == K_LOAD;
    if (has_imm && dtype_is_float((tn_dtype)in.dtype)) in.imm_int = 0;
    if (has_imm && !dtype_is_float((tn_dtype)in.dtype)) in.imm = 0;
    kernel_push(p->k, in);
}

/* ---- header ---- */

static kstep step_of(reader *p) {
    kstep s = { .extent = read_int_in(p, 1, INT64_MAX, "an extent of at least 1") };
    read_expect(p, "step");
    s.step = read_int(p);
    return s;
}

/* What stands behind "panels": kpanels_print in kernel_text.c. */
const kpanels *kpanels_read(reader *p, uint8_t dtype) {
    kpanels x = { .width = read_int_in(p, 1, INT64_MAX, "columns of a panel"), .dtype = dtype };
    read_expect(p, "columns");
    x.column = step_of(p);
    for (bool depth = false;;) {
        bool outer = !depth && read_accept(p, "outer");
        if (!outer && !read_accept(p, "depth")) break;
        if (x.n_outer + x.n_depth == PANEL_LOOPS) read_fail(p, "fewer loops of panels");
        depth = !outer;
        x.loops[x.n_outer + x.n_depth] = step_of(p);
        x.n_outer += outer, x.n_depth += depth;
    }
    if (read_accept(p, "base")) x.base = read_int(p);
    if (read_accept(p, "packed")) {
        x.packed = (uint8_t)read_int_in(p, 2, 5, "2 to 4 elements a lane");
        read_expect(p, "stride");
        x.packed_stride = read_int(p);
        read_expect(p, "from");
        x.dtype = (uint8_t)read_dtype(p, NULL);
    }
    x.padded = read_accept(p, "padded");
    return arena_copy(p->a, &x, sizeof x);
}

static void buffer_text(reader *p) {
    static const char *const modes[] = { "in", "out", "inout", "local", "shared", "distributed", "fixed" };
    enum { FIXED = 6 };
    kbuf b = { .plan_buf = -1 };
    int mode = 0;
    read_buffer_letter(p);
    read_int_in(p, p->k->bufs.n, (int64_t)p->k->bufs.n + 1, "the next buffer's number");
    while (mode <= FIXED && !read_accept(p, modes[mode])) mode++;
    if (mode > FIXED || p->k->bufs.n == UINT16_MAX) read_fail(p, "in, out, inout, local, shared, distributed or fixed");
    b.fixed = mode == FIXED;
    b.kind = (uint8_t)(b.fixed ? KB_IN : mode);
    b.dtype = (uint8_t)read_dtype(p, NULL);
    read_expect(p, "[");
    b.elems = size_text(p, 0, "a length");
    read_expect(p, "]");
    b.swizzled = b.kind == KB_SHARED && read_accept(p, "swizzled");
    b.late = b.kind >= KB_SHARED && read_accept(p, "late");
    b.loose = b.kind < KB_LOCAL && read_accept(p, "loose");
    b.elsewhere = b.fixed && read_accept(p, "elsewhere");
    if (b.fixed && read_accept(p, "panels")) {
        b.panels_of = p->k->bufs.n;
        if (read_accept(p, "of")) {
            read_buffer_letter(p);
            b.panels_of = (int32_t)read_int_in(p, 0, p->k->bufs.n, "a buffer before this one");
        }
        b.panels = kpanels_read(p, b.dtype);
    }
    kernel_buf(p->k, b);
}

static void var_text(reader *p) {
    kvar_info v = { .role = { 1, 1 } };
    read_word(p, v.name, sizeof v.name, "a name of up to 11 bytes");
    read_expect(p, "=");
    v.extent = ext_text(p);
    v.row = read_accept(p, "row");
    v.reduce = read_accept(p, "reduce");
    v.block = read_accept(p, "block");
    if (read_accept(p, "lanes")) v.role.lanes = (int)read_int_in(p, 2, 65, "2 to 64 lanes");
    if (read_accept(p, "unroll")) v.role.unroll = (int)read_int_in(p, 2, 1025, "2 to 1024 copies");
    if (read_accept(p, "threads")) v.threads = (int)read_int_in(p, 1, 1025, "1 to 1024 threads");
    if (read_accept(p, "matrix")) v.matrix = (int)read_int_in(p, 1, 1025, "1 to 1024 rows");
    if (v.matrix) v.staged = read_accept(p, "staged") ? STAGED_IN_ORDER : read_accept(p, "boxed") ? STAGED_IN_BOXES : 0;
    if (v.matrix && read_accept(p, "group")) v.group = (int)read_int_in(p, 1, 1025, "1 to 1024 tiles");
    if (read_accept(p, "steps")) v.steps = (int)read_int_in(p, 1, 1025, "1 to 1024 steps");
    v.bulk = v.steps && read_accept(p, "bulk");
    if (p->k->vars.n == MAX_VARS) read_fail(p, "fewer variables");
    VEC_PUSH(p->a, &p->k->vars, v);
}

static void dims_text(reader *p) { /* behind "<" */
    p->k->params = exts_make(p->a);
    do {
        char name[32];
        ext known;
        read_blanks(p);
        const char *from = p->at;
        size_t n = read_word(p, name, sizeof name, "a dim's name");
        int64_t lo = read_int_in(p, 0, INT64_MAX, "the least size");
        read_expect(p, "..");
        int64_t hi = read_int_in(p, lo, INT64_MAX, "the largest size, not below the least");
        int64_t by = read_accept(p, "by") ? read_int_in(p, 1, INT64_MAX, "a divisor of at least 1") : 1;
        bool again = ext_find_dim(p->k->params, name, n, &known);
        if (!again && lo % by == 0 && hi % by == 0 && !(name[0] >= '0' && name[0] <= '9')) {
            ext_dim(p->k->params, name, lo, hi, by);
            continue;
        }
        p->at = from;
        read_fail(p, again ? "another name: this dim was declared before" : "a dim whose ends are multiples of its divisor");
    } while (read_accept(p, ","));
    read_expect(p, ">");
}

kernel *kernel_read(reader *p) {
    char name[256], par[16] = "";
    kernel *k = p->k = kernel_make(p->a, "");
    read_expect(p, "kernel");
    read_expect(p, "@");
    read_word(p, name, sizeof name, "a name");
    k->name = arena_strdup(p->a, name);
    if (read_accept(p, "<")) dims_text(p);
    read_expect(p, "(");
    while (!read_accept(p, ")")) {
        if (k->bufs.n) read_expect(p, ",");
        buffer_text(p);
    }
    k->tiled = read_accept(p, "tiled");
    if (!k->tiled) read_expect(p, "scalar");
    if (read_accept(p, "parallel")) read_word(p, par, sizeof par, "a loop variable");
    if (read_accept(p, "blocks")) {
        k->grid_blocks = size_text(p, 0, "a number of thread blocks");
        read_expect(p, "threads");
        k->block_threads = (int)read_int_in(p, 1, 1025, "1 to 1024 threads");
        if (read_accept(p, "cluster")) k->cluster = (int)read_int_in(p, 2, KERNEL_MOST_CLUSTER + 1, "2 to 16 thread blocks");
        if (read_accept(p, "turns")) k->turns = read_int_in(p, 1, INT32_MAX, "a number of thread blocks");
    }
    read_expect(p, "{");
    while (read_accept(p, "var")) var_text(p);
    for (kvar v = 0; v < k->vars.n; v++)
        if (!strcmp(k->vars.at[v].name, par)) k->par_var = v;
    if (par[0] && k->par_var < 0) read_fail(p, "the parallel variable among the variables");
    while (!read_accept(p, "}")) instruction_text(p);
    return k;
}

kernel *kernel_parse(arena *a, const char *text, size_t n, const char *file) {
    reader p = reader_make(a, text, n, file);
    kernel *k = kernel_read(&p);
    read_end(&p);
    return k;
}
