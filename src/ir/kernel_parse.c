/* kernel_parse.c - reads the text of kernel_text.c back (docs/ir.md), instructions by the texts of kernel.def. In: any bytes.
 * Out: a kernel in the arena whose text is the same; whether it means anything is kernel_check's business. Jumps with
 * TN_ERR_PARSE and a place. */
#include "ir/kernel_text.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_VARS = 4096, MAX_MASKS = 256 };

typedef struct reader {
    arena *a;
    const char *file, *text, *at, *end;
    kernel *k;
} reader;

NORETURN static void fail(const reader *p, const char *expected) {
    int line = 1, col = 1;
    for (const char *c = p->text; c < p->at; c++) {
        col = *c == '\n' ? 1 : col + 1;
        line += *c == '\n';
    }
    guard_fail(p->a->gd, TN_ERR_PARSE, "%s:%d:%d: expected %s", p->file, line, col, expected);
}

/* ---- words ---- */

static void skip_blanks(reader *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

static bool accept(reader *p, const char *what) { /* a word, or signs */
    skip_blanks(p);
    size_t n = strlen(what);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, what, n)) return false;
    if (is_word(what[n - 1]) && p->at + n < p->end && is_word(p->at[n])) return false;
    p->at += n;
    return true;
}

static void expect(reader *p, const char *what) {
    if (!accept(p, what)) fail(p, what);
}

static void buffer_letter(reader *p) { /* the b of b0 */
    skip_blanks(p);
    if (p->at == p->end || *p->at != 'b') fail(p, "a buffer");
    p->at++;
}

static size_t word(reader *p, char *out, size_t size, const char *what) {
    skip_blanks(p);
    size_t n = 0;
    while (p->at + n < p->end && is_word(p->at[n])) n++;
    if (n == 0 || n >= size) fail(p, what);
    memcpy(out, p->at, n);
    out[n] = 0;
    p->at += n;
    return n;
}

static uint64_t digits(reader *p) {
    skip_blanks(p);
    uint64_t v = 0;
    if (p->at == p->end || *p->at < '0' || *p->at > '9') fail(p, "a number");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*p->at - '0'), &v))
            fail(p, "a number of 64 bits");
    return v;
}

static int64_t integer(reader *p) {
    bool minus = accept(p, "-");
    uint64_t v = digits(p);
    if (v > (uint64_t)INT64_MAX + minus) fail(p, "a number of 64 bits");
    return (int64_t)(minus ? 0 - v : v);
}

static int64_t integer_below(reader *p, int64_t lo, int64_t hi, const char *what) {
    skip_blanks(p);
    const char *from = p->at;
    int64_t v = integer(p);
    if (v >= lo && v < hi) return v;
    p->at = from;
    fail(p, what);
}

static double number(reader *p) {
    char text[64];
    skip_blanks(p);
    size_t n = 0;
    while (p->at + n < p->end && n < sizeof text - 1 &&
           (is_word(p->at[n]) || p->at[n] == '.' || p->at[n] == '-' || p->at[n] == '+'))
        n++;
    memcpy(text, p->at, n);
    text[n] = 0;
    const char *rest;
    double v = number_read(text, &rest);
    if (n == 0 || *rest) fail(p, "a number");
    p->at += n;
    return v;
}

static tn_dtype dtype_word(reader *p, int *out_lanes) { /* f32, or f32x8 where lanes may follow */
    char name[16];
    tn_dtype t;
    size_t n = word(p, name, sizeof name, "a dtype");
    char *x = out_lanes ? strchr(name, 'x') : NULL;
    if (out_lanes) *out_lanes = 1;
    if (x) {
        n = (size_t)(x - name);
        long lanes = strtol(x + 1, &x, 10);
        if (*x || lanes < 2 || lanes > 64) fail(p, "2 to 64 lanes");
        *out_lanes = (int)lanes;
    }
    if (!dtype_find(name, n, &t)) fail(p, "a dtype");
    return t;
}

static op_code op_word(reader *p, bool may_set) {
    char name[32];
    word(p, name, sizeof name, "an op");
    op_code op = !strcmp(name, "fma") ? OP_dot : op_find(name);
    if (op == OP_NIL && !(may_set && !strcmp(name, "set"))) fail(p, "an op");
    return op;
}

static reg register_word(reader *p) {
    expect(p, "%");
    return (reg)integer_below(p, 1, p->k->ins.n, "a register above");
}

static kvar var_word(reader *p) {
    char name[32];
    skip_blanks(p);
    const char *from = p->at;
    word(p, name, sizeof name, "a loop variable");
    for (kvar v = 0; v < p->k->vars.n; v++)
        if (!strcmp(p->k->vars.at[v].name, name)) return v;
    p->at = from;
    fail(p, "a loop variable");
}

static affine affine_text(reader *p) { /* 5*i0 - i1 + 4 */
    affine x = { 0 };
    for (bool first = true;; first = false) {
        const char *from = p->at;
        bool minus = accept(p, "-");
        if (!first && !minus && !accept(p, "+")) return x;
        skip_blanks(p);
        if (p->at < p->end && *p->at == '%') { /* the dynamic part of an address */
            p->at = from;
            return x;
        }
        int64_t c = 1;
        bool is_var = p->at < p->end && !(*p->at >= '0' && *p->at <= '9');
        if (!is_var) {
            c = (int64_t)digits(p);
            is_var = accept(p, "*");
        }
        if (minus) c = (int64_t)(0 - (uint64_t)c);
        x = affine_add(p->a, x, is_var ? affine_scale(p->a, affine_var(p->a, var_word(p)), c) : affine_const(c));
    }
}

static int64_t step_text(reader *p) { return accept(p, "step") ? integer(p) : 0; }

/* ---- instructions ---- */

static uint16_t buffer_word(reader *p) {
    buffer_letter(p);
    return (uint16_t)integer_below(p, 0, p->k->bufs.n, "a buffer of the kernel");
}

static void place_text(reader *p, kins *in) {
    in->buf = buffer_word(p);
    expect(p, "[");
    in->idx = affine_text(p);
    if (accept(p, "+")) {
        in->dyn = register_word(p);
        expect(p, "*");
        in->dyn_stride = integer(p);
        expect(p, "of");
        in->dyn_n = integer(p);
    }
    expect(p, "]");
    in->lane_stride = step_text(p);
}

static void masks_text(reader *p, kins *in) {
    VEC(kmask) masks = { 0 };
    VEC(int64_t) lanes = { 0 };
    if (accept(p, "where")) {
        do {
            kmask m;
            if (masks.n == MAX_MASKS) fail(p, "fewer masks");
            m.lo = integer(p);
            expect(p, "<=");
            m.e = affine_text(p);
            VEC_PUSH(p->a, &lanes, step_text(p));
            expect(p, "<");
            m.hi = integer(p);
            VEC_PUSH(p->a, &masks, m);
        } while (accept(p, ","));
    }
    in->mask = masks.at, in->mask_lane = lanes.at, in->n_mask = masks.n;
}

/* The number of a const, acc or masked load: its dtype stands behind it, so both readings are kept. */
static void imm_text(reader *p, kins *in) {
    const char *from = p->at;
    in->imm = number(p);
    const char *to = p->at;
    p->at = from;
    skip_blanks(p);
    bool whole = true;
    for (const char *c = p->at; c < to; c++) whole = whole && ((*c >= '0' && *c <= '9') || (*c == '-' && c == p->at));
    in->imm_int = whole ? integer(p) : 0;
    p->at = to;
}

static void alu_text(reader *p, kins *in) {
    in->alu = (uint8_t)op_word(p, false);
    int n = op_get((op_code)in->alu)->arity;
    reg *operand[3] = { &in->a, &in->b, &in->c };
    if (!op_is_elementwise((op_code)in->alu)) fail(p, "an elementwise op");
    for (int i = 0; i < n; i++) {
        if (i) expect(p, ",");
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
        *(int64_t *)at = f->hi == INT64_MAX && f->lo == INT64_MIN ? integer(p) : integer_below(p, f->lo, f->hi, f->what);
        break;
    case FIELD_PARTS:
        in->parts = (uint8_t)integer_below(p, 2, 5, "2 to 4 parts");
        break;
    case FIELD_IMM:
        imm_text(p, in);
        break;
    case FIELD_DTYPE:
        in->src = (uint8_t)dtype_word(p, NULL);
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
        if (*word && accept(p, word)) {
            in->mode = i;
            return;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " or " : "", word);
    }
    if (needed) fail(p, all);
}

/* What a text of kernel.def says; *out_src_is_dtype: a [.. $src] was left out. */
static void template_text(reader *p, kins *in, const char *text, bool *out_src_is_dtype) {
    for (ktoken t = ktoken_at(text); t.kind != TOKEN_END; t = ktoken_at(t.next)) {
        if (t.kind == TOKEN_WORD) expect(p, t.text);
        if (t.kind == TOKEN_FIELD) field_text(p, in, t.field);
        if (t.kind == TOKEN_MODE) mode_text(p, in, &t);
        if (t.kind != TOKEN_OPEN) continue;
        const kfield *f = kfield_first(t.next);
        const char *from = p->at;
        int said = kfield_implied(in, f);
        if (said < 0) {
            said = accept(p, ktoken_at(t.next).text);
            p->at = from;
        }
        if (said) continue;
        if (f->kind == FIELD_DTYPE) *out_src_is_dtype = true;
        while (t.kind != TOKEN_CLOSE) t = ktoken_at(t.next);
    }
}

static bool pair_follows(const reader *p) { /* two registers with a comma between */
    reader q = *p;
    if (!accept(&q, "%")) return false;
    while (q.at < q.end && *q.at >= '0' && *q.at <= '9') q.at++;
    return accept(&q, ",");
}

/* The row that the text begins with, one that makes a register or not. */
static kop row_text(reader *p, bool makes) {
    for (int op = K_NIL + 1; op < N_KOPS; op++) {
        const kop_info *row = kop_get((uint8_t)op);
        ktoken first = ktoken_at(row->text);
        const char *from = p->at;
        if (!(row->flags & KOP_MAKES) == makes || first.kind != TOKEN_WORD || !accept(p, first.text)) continue;
        if (op + 1 < N_KOPS && (kop_get((uint8_t)(op + 1))->flags & KOP_PAIR) && pair_follows(p)) op++;
        p->at = from;
        return (kop)op;
    }
    if (!makes) fail(p, "an instruction");
    return K_ALU;
}

static void instruction_text(reader *p) {
    kins in = { .lanes = 1 };
    bool makes = accept(p, "%"), src_is_dtype = false;
    if (makes) {
        integer_below(p, p->k->ins.n, (int64_t)p->k->ins.n + 1, "the number of the instruction");
        expect(p, "=");
    }
    in.op = (uint8_t)row_text(p, makes);
    template_text(p, &in, kop_get(in.op)->text, &src_is_dtype);
    if (kop_get(in.op)->flags & KOP_TYPED) {
        int lanes;
        in.dtype = (uint8_t)dtype_word(p, &lanes);
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
    kstep s = { .extent = integer_below(p, 1, INT64_MAX, "an extent of at least 1") };
    expect(p, "step");
    s.step = integer(p);
    return s;
}

/* What stands behind "panels": kpanels_print in kernel_text.c. */
static void panels_text(reader *p, kbuf *b) {
    b->panels_of = p->k->bufs.n;
    if (accept(p, "of")) {
        buffer_letter(p);
        b->panels_of = (int32_t)integer_below(p, 0, p->k->bufs.n, "a buffer before this one");
    }
    kpanels x = { .width = integer_below(p, 1, INT64_MAX, "columns of a panel"), .dtype = b->dtype };
    expect(p, "columns");
    x.column = step_of(p);
    for (bool depth = false;;) {
        bool outer = !depth && accept(p, "outer");
        if (!outer && !accept(p, "depth")) break;
        if (x.n_outer + x.n_depth == PANEL_LOOPS) fail(p, "fewer loops of panels");
        depth = !outer;
        x.loops[x.n_outer + x.n_depth] = step_of(p);
        x.n_outer += outer, x.n_depth += depth;
    }
    if (accept(p, "base")) x.base = integer(p);
    if (accept(p, "parts")) {
        x.parts = (uint8_t)integer_below(p, 2, 5, "2 to 4 parts");
        expect(p, "apart");
        x.part_stride = integer(p);
        expect(p, "from");
        x.dtype = (uint8_t)dtype_word(p, NULL);
    }
    x.padded = accept(p, "padded");
    b->panels = arena_copy(p->a, &x, sizeof x);
}

static void buffer_text(reader *p) {
    static const char *const modes[] = { "in", "out", "inout", "local", "group", "cluster", "fixed" };
    enum { FIXED = 6 };
    kbuf b = { .plan_buf = -1 };
    int mode = 0;
    buffer_letter(p);
    integer_below(p, p->k->bufs.n, (int64_t)p->k->bufs.n + 1, "the next buffer's number");
    while (mode <= FIXED && !accept(p, modes[mode])) mode++;
    if (mode > FIXED || p->k->bufs.n == UINT16_MAX) fail(p, "in, out, inout, local, group, cluster or fixed");
    b.fixed = mode == FIXED;
    b.kind = (uint8_t)(b.fixed ? KB_IN : mode);
    b.dtype = (uint8_t)dtype_word(p, NULL);
    expect(p, "[");
    b.elems = integer_below(p, 0, INT64_MAX, "a length");
    expect(p, "]");
    if (b.fixed && accept(p, "panels")) panels_text(p, &b);
    kernel_buf(p->k, b);
}

static void var_text(reader *p) {
    kvar_info v = { .role = { 1, 1 } };
    word(p, v.name, sizeof v.name, "a name of up to 11 bytes");
    expect(p, "=");
    v.extent = integer(p);
    v.row = accept(p, "row");
    v.reduce = accept(p, "reduce");
    v.block = accept(p, "block");
    if (accept(p, "lanes")) v.role.lanes = (int)integer_below(p, 2, 65, "2 to 64 lanes");
    if (accept(p, "unroll")) v.role.unroll = (int)integer_below(p, 2, 1025, "2 to 1024 copies");
    if (p->k->vars.n == MAX_VARS) fail(p, "fewer variables");
    VEC_PUSH(p->a, &p->k->vars, v);
}

kernel *kernel_parse(arena *a, const char *text, size_t n, const char *file) {
    reader p = { .a = a, .file = file, .text = text, .at = text, .end = text + n, .k = kernel_make(a, "") };
    char name[256], par[16] = "";
    expect(&p, "kernel");
    expect(&p, "@");
    word(&p, name, sizeof name, "a name");
    p.k->name = arena_strdup(a, name);
    expect(&p, "(");
    while (!accept(&p, ")")) {
        if (p.k->bufs.n) expect(&p, ",");
        buffer_text(&p);
    }
    p.k->tiled = accept(&p, "tiled");
    if (!p.k->tiled) expect(&p, "scalar");
    if (accept(&p, "parallel")) word(&p, par, sizeof par, "a loop variable");
    if (accept(&p, "groups")) {
        p.k->groups = integer_below(&p, 0, INT64_MAX, "a number of groups");
        expect(&p, "of");
        p.k->group = (int)integer_below(&p, 1, 1025, "1 to 1024 threads");
        if (accept(&p, "cluster")) p.k->cluster = (int)integer_below(&p, 2, KERNEL_MOST_CLUSTER + 1, "2 to 16 groups");
    }
    expect(&p, "{");
    while (accept(&p, "var")) var_text(&p);
    for (kvar v = 0; v < p.k->vars.n; v++)
        if (!strcmp(p.k->vars.at[v].name, par)) p.k->par_var = v;
    if (par[0] && p.k->par_var < 0) fail(&p, "the parallel variable among the variables");
    while (!accept(&p, "}")) instruction_text(&p);
    skip_blanks(&p);
    if (p.at != p.end) fail(&p, "the end of the text");
    return p.k;
}
