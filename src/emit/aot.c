/* aot.c - a plan as one C file that needs no library but libm: interface, data, kernels, an init and a run function.
 *
 * In: a plan whose buffers have their places. Out: text in the caller's arena. Everything static: state and temporaries are a
 * struct of the host's, constants and initial states are typed arrays. Names of the graph reach the text sanitised only, or
 * escaped in a string. */
#include "emit/emit.h"

enum { MAX_NAME = 40, MAX_COMMENT = 60, PER_LINE = 12, ARENA_ALIGN = 64 };

typedef struct aot {
    const plan *p;
    str *out;
    const char *name;   /* prefix of everything with external linkage */
    const char **param; /* [io.n] parameter names of the run function */
    bool *zero;         /* [bufs.n] all bytes are zero: no array */
} aot;

/* Types of the interface: exactly those of <stdint.h>, without including it. */
static const char *const c_types[TN_N_DTYPES] = { "float",           "double",         "__UINT16_TYPE__",
                                                  "__UINT16_TYPE__", "__INT8_TYPE__",  "__INT32_TYPE__",
                                                  "__INT64_TYPE__",  "__UINT8_TYPE__", "__UINT8_TYPE__" };

/* ---- names ---- */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static char *identifier(arena *a, const char *prefix, const char *text) {
    char *s = arena_printf(a, "%s%.*s", prefix, MAX_NAME, text ? text : "");
    for (char *c = s; *c; c++)
        if (!is_letter(*c) && !is_digit(*c)) *c = '_';
    return s;
}

/* The prefixes keep clear of keywords and macros, whatever the graph calls its inputs. */
static void name_params(aot *t) {
    arena *a = t->out->a;
    t->param = ARENA_ARRAY(a, const char *, t->p->io.n + 1);
    for (int i = 0; i < t->p->io.n; i++) {
        char *base = identifier(a, t->p->io.at[i].is_output ? "out_" : "in_", t->p->io.at[i].name);
        t->param[i] = base;
        for (int j = 0, n = 1; j < i; j++) {
            if (strcmp(t->param[j], t->param[i])) continue;
            t->param[i] = arena_printf(a, "%s_%d", base, ++n);
            j = -1;
        }
    }
}

static void print_comment_name(str *out, const char *name) {
    int n = 0;
    for (const char *c = name; *c && n < MAX_COMMENT; c++, n++)
        str_addn(out, is_letter(*c) || is_digit(*c) || strchr(" _-+.:[]", *c) ? c : "?", 1);
    if (name[n]) str_add(out, "...");
}

static void print_string(str *out, const char *s) {
    str_add(out, "\"");
    for (; *s; s++) {
        if (is_letter(*s) || is_digit(*s) || strchr(" _-+.:/", *s))
            str_addn(out, s, 1);
        else
            str_addf(out, "\\%03o", (unsigned)(unsigned char)*s);
    }
    str_add(out, "\"");
}

/* ---- data ---- */

static void print_element(str *out, tn_dtype t, const void *data, int64_t i) {
    switch (t) {
    case TN_F32:
        emit_float(out, t, (double)((const float *)data)[i]);
        return;
    case TN_F64:
        emit_float(out, t, ((const double *)data)[i]);
        return;
    case TN_F16:
    case TN_BF16:
        str_addf(out, "0x%x", (unsigned)((const uint16_t *)data)[i]);
        return;
    case TN_I8:
        str_addf(out, "%d", ((const int8_t *)data)[i]);
        return;
    case TN_I32:
        str_addf(out, ((const int32_t *)data)[i] == INT32_MIN ? "-2147483647 - 1" : "%d", ((const int32_t *)data)[i]);
        return;
    case TN_I64:
        str_addf(out, ((const int64_t *)data)[i] == INT64_MIN ? "-9223372036854775807LL - 1" : "%lldLL",
                 (long long)((const int64_t *)data)[i]);
        return;
    default:
        str_addf(out, "%u", ((const uint8_t *)data)[i]);
    }
}

/* The value as the kernels want it. */
static const uint8_t *in_order(const aot *t, const pbuf *b) {
    const void *value = graph_get(t->p->g, b->node)->data;
    if (!b->panels || !value) return value;
    uint8_t *bytes = arena_alloc(t->out->a, (size_t)b->bytes);
    pbuf_fill(b, value, bytes);
    return bytes;
}

/* Constants and initial states; trailing zeros are left to C. */
static void print_arrays(aot *t) {
    for (int b = 0; b < t->p->bufs.n; b++) {
        const pbuf *pb = &t->p->bufs.at[b];
        if (pb->kind != PB_CONST && pb->kind != PB_STATE) continue;
        tn_dtype dt = (tn_dtype)pb->dtype;
        int64_t used = 0, size = (int64_t)dtype_size(dt);
        if (pb->kind == PB_CONST && pb->first < 0) continue; /* no kernel uses it */
        const uint8_t *data = in_order(t, pb);
        for (int64_t i = 0; data && i < pb->elems * size; i++)
            if (data[i]) used = i / size + 1;
        t->zero[b] = used == 0;
        if (used == 0 && pb->kind == PB_STATE) continue;
        str_addf(t->out, "static const %s data_%d[%lld] __attribute__((aligned(%d))) = { ", c_types[dt], b,
                 (long long)(pb->elems > 0 ? pb->elems : 1), ARENA_ALIGN);
        for (int64_t i = 0; i < used; i++) {
            str_add(t->out, i == 0 ? (used > PER_LINE ? "\n    " : "") : i % PER_LINE ? ", " : ",\n    ");
            print_element(t->out, dt, data, i);
        }
        str_add(t->out, used == 0 ? "0 };\n" : used > PER_LINE ? "\n};\n" : " };\n");
    }
}

/* ---- interface ---- */

static void print_prototype(const aot *t) {
    str_addf(t->out, "void %s_run(struct %s_ctx *ctx", t->name, t->name);
    for (int i = 0; i < t->p->io.n; i++) {
        const pio *io = &t->p->io.at[i];
        str_addf(t->out, ", %s%s *%s", io->is_output ? "" : "const ", c_types[io->dtype], t->param[i]);
    }
    str_add(t->out, ")");
}

static int64_t array_size(const aot *t, int i) {
    int64_t n = t->p->bufs.at[t->p->io.at[i].buf].elems;
    return n > 0 ? n : 1;
}

static void print_example(const aot *t) {
    str *out = t->out;
    int shown = -1;
    str_addf(out, " *     #define %s_INTERFACE\n *     #include \"%s.c\"\n *     #include <stdio.h>\n *     int main(void) {\n",
             t->name, t->name);
    str_addf(out, " *         static struct %s_ctx ctx;\n", t->name);
    for (int i = 0; i < t->p->io.n; i++) {
        const pio *io = &t->p->io.at[i];
        if (shown < 0 && io->is_output && t->p->bufs.at[io->buf].elems > 0) shown = i;
        str_addf(out, " *         static %s %s[%lld];\n", c_types[io->dtype], t->param[i], (long long)array_size(t, i));
    }
    str_addf(out, " *         %s_init(&ctx);\n *         %s_run(&ctx", t->name, t->name);
    for (int i = 0; i < t->p->io.n; i++) str_addf(out, ", %s", t->param[i]);
    str_add(out, ");\n");
    if (shown >= 0) str_addf(out, " *         printf(\"%%g\\n\", (double)%s[0]);\n", t->param[shown]);
    str_addf(out, " *     }\n *\n *     cc -O2 main.c %s.c -lm\n *\n", t->name);
}

static void print_head(const aot *t) {
    str *out = t->out;
    str_addf(out,
             "/* %s.c - a tensor graph compiled to C: no library but libm, no allocation, one thread, x86-64 or any machine of "
             "gcc or clang.\n",
             t->name);
    str_add(out, " *\n * The file is its own header. A complete program, main.c:\n *\n");
    print_example(t);
    if (t->p->io.n)
        str_add(out, " * Arrays are row-major and must not overlap; every pointer to one with elements must be valid.\n *\n");
    for (int i = 0; i < t->p->io.n; i++) {
        str_addf(out, " *     %-10s %s \"", t->param[i],
                 graph_shape_text(t->p->g, out->a, t->p->bufs.at[t->p->io.at[i].buf].node));
        print_comment_name(out, t->p->io.at[i].name);
        str_add(out, "\"\n");
    }
    if (t->p->io.n) str_add(out, " *\n");
    str_add(out, " * f16 and bf16 are passed as their 16 bits, bool as bytes 0 and 1.\n *\n");
    if (t->p->states.n)
        str_addf(out,
                 " * The context holds %d states (parameters, counters): %s_init gives them their initial values, %s_run reads "
                 "and updates them,\n"
                 " * and ctx.state + %s_state_table[i].offset is where the values of state i are.\n",
                 t->p->states.n, t->name, t->name, t->name);
    str_add(out, " * A context is aligned to 64 bytes: static, automatic, or from aligned_alloc(64, sizeof), and used by one "
                 "thread at a time.\n *\n"
                 " * -march=native makes use of wider vectors. It also contracts x * y + z to one rounding, as -ffp-contract "
                 "says, so that results of\n"
                 " * different builds agree up to rounding only. Without it gcc notes that passing vectors has changed in "
                 "version 4.6: they never leave\n"
                 " * this file; -Wno-psabi silences the note. */\n");
}

/* Behind them are the arrays of a kernel. */
static int64_t temp_bytes(const plan *p) { return (p->temp_bytes + ARENA_ALIGN) / ARENA_ALIGN * ARENA_ALIGN; }

static void print_interface(const aot *t) {
    const plan *p = t->p;
    str *out = t->out;
    const char *n = t->name;
    int64_t state = (p->state_bytes + p->shared_bytes + ARENA_ALIGN) / ARENA_ALIGN * ARENA_ALIGN,
            temp = temp_bytes(p) + emit_c_most_scratch(p);
    str_addf(out, "#ifndef %s_DECLARED\n#define %s_DECLARED\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n", n, n);
    str_addf(out, "struct %s_ctx {\n    unsigned char state[%lld], temp[%lld];\n} __attribute__((aligned(%d)));\n", n,
             (long long)state, (long long)temp, ARENA_ALIGN);
    str_addf(out, "enum { %s_state_count = %d };\n", n, p->states.n);
    str_addf(out, "struct %s_state {\n    const char *name, *dtype;\n    unsigned long long offset, bytes;\n};\n", n);
    str_addf(out, "extern const struct %s_state %s_state_table[%d];\n", n, n, p->states.n + 1); /* the last row is empty */
    str_addf(out, "void %s_init(struct %s_ctx *ctx);\n", n, n);
    print_prototype(t);
    str_add(out, ";\n#ifdef __cplusplus\n}\n#endif\n#endif\n");
}

/* ---- functions ---- */

/* In ctx.state: states that runs change, then the others. */
static long long state_place(const aot *t, const pbuf *b) {
    return (long long)(b->offset + (b->slot == SLOT_SHARED ? t->p->state_bytes : 0));
}

static void print_state_table(const aot *t) {
    str_addf(t->out, "const struct %s_state %s_state_table[%d] = {\n", t->name, t->name, t->p->states.n + 1);
    for (int i = 0; i < t->p->states.n; i++) {
        const pstate *s = &t->p->states.at[i];
        const pbuf *pb = &t->p->bufs.at[s->buf];
        str_add(t->out, "    { ");
        print_string(t->out, s->name);
        str_addf(t->out, ", \"%s\", %lld, %lld },\n", dtype_name((tn_dtype)pb->dtype), state_place(t, pb),
                 (long long)pb->elems * (long long)dtype_size((tn_dtype)pb->dtype));
    }
    str_add(t->out, "    { 0, 0, 0, 0 }\n};\n");
}

static void print_init(const aot *t) {
    str_addf(t->out, "void %s_init(struct %s_ctx *ctx) {\n    __builtin_memset(ctx->state, 0, sizeof ctx->state);\n", t->name,
             t->name);
    for (int b = 0; b < t->p->bufs.n; b++) {
        const pbuf *pb = &t->p->bufs.at[b];
        if (pb->kind == PB_STATE && !t->zero[b])
            str_addf(t->out, "    __builtin_memcpy(ctx->state + %lld, data_%d, sizeof data_%d);\n", state_place(t, pb), b, b);
    }
    str_add(t->out, "}\n");
}

static void print_place(const aot *t, int buf) {
    const pbuf *pb = &t->p->bufs.at[buf];
    switch (pb->kind) {
    case PB_TEMP:
        str_addf(t->out, "ctx->temp + %lld", (long long)pb->offset);
        return;
    case PB_STATE:
    case PB_STATES:
        str_addf(t->out, "ctx->state + %lld", state_place(t, pb));
        return;
    case PB_CONST:
        str_addf(t->out, "data_%d", buf);
        return;
    case PB_INPUT:
    case PB_OUTPUT:
        str_add(t->out, t->param[pb->io]);
        return;
    }
}

static void print_launch(const aot *t, const pkernel *pk, int indent) {
    str_addf(t->out, "%*skernel_%d(", indent, "", pk->code);
    for (int b = 0; b < pk->k->bufs.n; b++) {
        if (pk->k->bufs.at[b].kind == KB_LOCAL) continue;
        str_add(t->out, pk->k->bufs.at[b].kind == KB_IN ? "(const void *)(" : "(void *)(");
        print_place(t, pk->args[b].buf);
        str_add(t->out, "), ");
    }
    if (emit_c_scratch(pk->k)) str_addf(t->out, "(char *)ctx->temp + %lld, ", (long long)temp_bytes(t->p));
    str_add(t->out, "0, 1);\n");
}

static void print_condition(const aot *t, const pstep *x, int indent) {
    str_addf(t->out, "%*sif (%s*(const unsigned char *)(", indent, "", x->kind == PSTEP_LEAVE ? "!" : "");
    print_place(t, x->cond);
    str_add(t->out, x->kind == PSTEP_LEAVE ? ")) break;\n" : ")) {\n");
}

/* Steps [i, end). A call is one step of a run. */
static void print_steps(const aot *t, int i, int end, int indent) {
    const plan *p = t->p;
    for (; i < end; i = pstep_end(p, i)) {
        const pstep *x = &p->steps.at[i];
        int first = i + 1, then = first + x->n_then;
        if (x->kind == PSTEP_LAUNCH) print_launch(t, &p->kernels.at[x->kernel], indent);
        if (x->kind == PSTEP_LOOP) print_steps(t, first, pstep_end(p, i), indent);
        if (x->kind == PSTEP_REPEAT) str_addf(t->out, "%*sfor (;;) {\n", indent, "");
        if (pstep_is_conditional(x)) print_condition(t, x, indent);
        if (x->kind == PSTEP_BRANCH) {
            print_steps(t, first, then, indent + 4);
            str_addf(t->out, "%*s} else {\n", indent, "");
            first = then;
        }
        if (x->kind != PSTEP_BRANCH && x->kind != PSTEP_REPEAT) continue;
        print_steps(t, first, pstep_end(p, i), indent + 4);
        str_addf(t->out, "%*s}\n", indent, "");
    }
}

static void print_run(const aot *t) {
    print_prototype(t);
    str_add(t->out, " {\n    (void)ctx;\n");
    for (int i = 0; i < t->p->io.n; i++) str_addf(t->out, "    (void)%s;\n", t->param[i]);
    print_steps(t, 0, t->p->steps.n, 4);
    str_add(t->out, "}\n");
}

void emit_c_standalone(const plan *p, const target *machine, const char *name, str *out) {
    aot t = { .p = p, .out = out, .zero = ARENA_ARRAY(out->a, bool, p->bufs.n + 1) };
    bool plain = name && is_letter(*name);
    t.name = identifier(out->a, plain ? "" : "graph_", name);
    name_params(&t);
    print_head(&t);
    print_interface(&t);
    str_addf(out,
             "#ifndef %s_INTERFACE\n#ifdef __FAST_MATH__\n#error \"-ffast-math changes the results of this file\"\n#endif\n",
             t.name);
    str_add(out, "#pragma GCC diagnostic ignored \"-Wpsabi\"\n");
    emit_c_kernels(p, machine, out);
    print_arrays(&t);
    print_state_table(&t);
    print_init(&t);
    print_run(&t);
    str_add(out, "#endif\n");
}
