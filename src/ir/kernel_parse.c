/* kernel_parse.c - reads the text of kernel_text.c back (docs/ir.md). In: any bytes. Out: a kernel in the arena whose text is
 * the same; whether it means anything is kernel_check's business. Jumps with TN_ERR_PARSE and a place. */
#include "ir/kernel.h"

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

static bool buffer_follows(reader *p) { /* and no word that begins like one */
    skip_blanks(p);
    return p->end - p->at > 1 && p->at[0] == 'b' && p->at[1] >= '0' && p->at[1] <= '9';
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

static void place_text(reader *p, kins *in) {
    buffer_letter(p);
    in->buf = (uint16_t)integer_below(p, 0, p->k->bufs.n, "a buffer of the kernel");
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

static void load_text(reader *p, kins *in, bool *out_from) {
    place_text(p, in);
    if (accept(p, "parts")) {
        in->parts = (uint8_t)integer_below(p, 2, 5, "2 to 4 parts");
        expect(p, "apart");
        in->part_stride = integer(p);
    }
    *out_from = accept(p, "from");
    if (*out_from) in->src = (uint8_t)dtype_word(p, NULL);
    masks_text(p, in);
    if (in->n_mask) expect(p, "else");
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

static void loop_text(reader *p, kins *in) {
    in->op = K_LOOP;
    in->var = var_word(p);
    expect(p, "=");
    in->lo = integer(p);
    expect(p, "..");
    in->hi = integer(p);
    expect(p, "step");
    in->step = integer_below(p, 1, INT64_MAX, "a step of at least 1");
    static const char *const pars[] = { "parallel", "last-thread", "grid", "groups", "local" };
    for (uint8_t i = 0; i < COUNT_OF(pars) && !in->par; i++)
        if (accept(p, pars[i])) in->par = (uint8_t)(i + 1);
    if (in->par >= PAR_GRID && accept(p, "of")) {
        in->n_groups = integer_below(p, 1, INT64_MAX, "a number of groups");
        expect(p, "from");
        in->first_group = integer_below(p, 0, INT64_MAX, "the first group");
    }
    if (accept(p, "if")) in->a = register_word(p);
}

static void update_text(reader *p, kins *in) {
    in->op = K_UPD;
    in->c = register_word(p);
    if (accept(p, ",")) in->op = K_ARGUPD, in->b = register_word(p);
    in->alu = (uint8_t)op_word(p, in->op == K_UPD);
    in->a = register_word(p);
    if (in->op == K_ARGUPD) {
        expect(p, "at");
        in->idx = affine_text(p);
        in->lane_stride = step_text(p);
    } else if (in->alu == OP_dot) {
        expect(p, ",");
        in->b = register_word(p);
        if (accept(p, "parts")) in->parts = (uint8_t)integer_below(p, 2, 5, "2 to 4 parts");
    }
}

static void alu_text(reader *p, kins *in, bool *out_src) {
    in->op = K_ALU;
    in->alu = (uint8_t)op_word(p, false);
    int n = op_get((op_code)in->alu)->arity;
    reg *operand[3] = { &in->a, &in->b, &in->c };
    if (!op_is_elementwise((op_code)in->alu)) fail(p, "an elementwise op");
    for (int i = 0; i < n; i++) {
        if (i) expect(p, ",");
        *operand[i] = register_word(p);
    }
    *out_src = accept(p, "on");
    if (*out_src) in->src = (uint8_t)dtype_word(p, NULL);
    if (accept(p, "coarse")) in->mode = ALU_APPROXIMATE;
}

static void computed_text(reader *p, kins *in) { /* what stands behind "%n =" */
    bool src = true, imm = false;
    if (accept(p, "const")) {
        in->op = K_CONST, imm = true, src = false;
    } else if (accept(p, "acc")) {
        in->op = K_ACC, in->alu = (uint8_t)op_word(p, true), imm = true, src = false;
    } else if (accept(p, "index")) {
        in->op = K_INDEX, in->idx = affine_text(p), in->lane_stride = step_text(p), src = false;
    } else if (accept(p, "load")) {
        in->op = K_LOAD;
        load_text(p, in, &src);
        imm = in->n_mask > 0;
    } else if (accept(p, "cast")) {
        in->op = K_CAST, in->a = register_word(p);
        expect(p, "from");
        in->src = (uint8_t)dtype_word(p, NULL);
    } else if (accept(p, "wrap")) {
        in->op = K_WRAP, in->a = register_word(p);
        expect(p, "to");
        in->src = (uint8_t)dtype_word(p, NULL);
    } else if (accept(p, "random")) {
        in->op = K_RANDOM, in->a = register_word(p), src = false;
        expect(p, "stream");
        in->stream = integer(p);
        expect(p, "at");
        in->idx = affine_text(p), in->lane_stride = step_text(p);
    } else if (accept(p, "across")) {
        in->op = K_HSUM, in->a = register_word(p), in->alu = (uint8_t)op_word(p, false), src = false;
        expect(p, "of");
        in->combined = integer(p);
        expect(p, "lanes");
    } else if (accept(p, "zip")) {
        in->op = K_ZIP, in->a = register_word(p), src = false;
        expect(p, ",");
        in->b = register_word(p);
        expect(p, "pieces"), expect(p, "of");
        in->piece = integer(p);
        in->mode = accept(p, "low") ? ZIP_LOW : ZIP_HIGH;
        if (in->mode == ZIP_HIGH) expect(p, "high");
    } else if (accept(p, "group")) {
        in->op = K_GSUM, in->a = register_word(p);
        src = false;
        if (accept(p, ",")) in->op = K_GARG, in->b = register_word(p);
        in->alu = (uint8_t)op_word(p, false);
        if (in->op == K_GARG) {
            expect(p, "on");
            in->src = (uint8_t)dtype_word(p, NULL), src = true;
        } else if (accept(p, "of")) {
            in->neighbours = integer_below(p, 1, 1025, "a number of threads");
        }
    } else if (accept(p, "lanes")) {
        in->op = K_LANES, in->a = register_word(p), src = false;
        expect(p, "from");
        in->first_lane = integer(p);
    } else {
        alu_text(p, in, &src);
    }
    if (imm) imm_text(p, in);
    if (in->op == K_LOAD && accept(p, "ahead")) in->mode = LOAD_HOISTED;
    if (in->op == K_LOAD && accept(p, "early")) in->mode = LOAD_UNMASKED;
    if (in->op == K_LOAD && accept(p, "anew")) in->mode = LOAD_REMATERIALISED;
    int lanes;
    in->dtype = (uint8_t)dtype_word(p, &lanes);
    in->lanes = (uint8_t)lanes;
    if (!src) in->src = in->op == K_LOAD || in->op == K_ALU ? in->dtype : 0;
    if (imm && dtype_is_float((tn_dtype)in->dtype)) in->imm_int = 0;
    if (imm && !dtype_is_float((tn_dtype)in->dtype)) in->imm = 0;
}

static void instruction_text(reader *p) {
    kins in = { .lanes = 1 };
    bool typed = true;
    if (accept(p, "%")) {
        integer_below(p, p->k->ins.n, (int64_t)p->k->ins.n + 1, "the number of the instruction");
        expect(p, "=");
        computed_text(p, &in);
        typed = false;
    } else if (accept(p, "loop")) {
        loop_text(p, &in);
        typed = false;
    } else if (accept(p, "end")) {
        in.op = K_END, typed = false;
    } else if (accept(p, "barrier")) {
        in.op = K_BARRIER, typed = false;
        in.mode = accept(p, "cluster") ? BARRIER_CLUSTER : BARRIER_BLOCK;
        if (!in.mode && buffer_follows(p)) {
            buffer_letter(p);
            in.mode = BARRIER_MBARRIER, in.buf = (uint16_t)integer_below(p, 0, p->k->bufs.n, "a buffer of the kernel");
        }
    } else if (accept(p, "store")) {
        in.op = K_STORE;
        place_text(p, &in);
        expect(p, ",");
        in.a = register_word(p);
        masks_text(p, &in);
        in.mode = accept(p, "past") ? STORE_NONTEMPORAL : accept(p, "counted") ? STORE_COUNTED : STORE_PLAIN;
    } else if (accept(p, "prefetch")) {
        in.op = K_PREFETCH;
        place_text(p, &in);
        in.mode = accept(p, "second") ? PREFETCH_L2 : accept(p, "written") ? PREFETCH_WRITE : PREFETCH_L1;
    } else if (accept(p, "scatter")) {
        in.op = K_SCATTER;
        place_text(p, &in);
        expect(p, "+=");
        in.a = register_word(p);
        masks_text(p, &in);
    } else {
        expect(p, "update");
        update_text(p, &in);
    }
    if (typed) {
        int lanes;
        in.dtype = (uint8_t)dtype_word(p, &lanes);
        in.lanes = (uint8_t)lanes;
    }
    kernel_push(p->k, in);
}

/* ---- header ---- */

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
