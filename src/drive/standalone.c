/* standalone.c - a program as one C file that needs no library: the generated code, its constants and initial states, one
 * function.
 *
 * In: a compiled program. Out: text in the caller's string. The function runs one step on the calling thread; states live in
 * the file's own memory from call to call. */
#include "drive/drive.h"
#include "ir/dtype.h"

#include <ctype.h>

/* What a caller writes for an element, without any header. */
static const char *c_type(tn_dtype t) {
    static const char *const names[TN_N_DTYPES] = { "float", "double",    "unsigned short", "unsigned short", "signed char",
                                                    "int",   "long long", "unsigned char",  "unsigned char" };
    return names[t];
}

/* A name made of what C allows; `index` tells apart those that had to be changed. */
static char *c_name(arena *a, const char *prefix, const char *name, int index) {
    char *s = arena_printf(a, "%s%s", prefix, name && *name ? name : "graph");
    bool changed = false;
    for (char *c = s; *c; c++) {
        if (isalnum((unsigned char)*c) || *c == '_') continue;
        *c = '_';
        changed = true;
    }
    return changed && index >= 0 ? arena_printf(a, "%s_%d", s, index) : s;
}

static void print_prototype(const tn_program *p, const char *name, str *out) {
    str_addf(out, "void %s_run(", name);
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        str_addf(out, "%s%s%s *%s", i ? ", " : "", io->is_output ? "" : "const ", c_type((tn_dtype)io->dtype),
                 c_name(out->a, io->is_output ? "out_" : "in_", io->name, i));
    }
    str_add(out, p->n_io ? ")" : "void)");
}

static void print_head(const tn_program *p, const char *name, str *out) {
    str_addf(out, "/* Graph @%s as one C file. Declare and call\n *\n *     ", p->plan->g->name);
    print_prototype(p, name, out);
    str_add(out, ";\n *\n * with row-major arrays that do not overlap:\n");
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        const char *made = io->is_output ? "out_" : "in_";
        str_addf(out, " *     %-12s %s\n", c_name(out->a, made, io->name, i),
                 graph_shape_text(p->plan->g, out->a, p->plan->bufs.at[io->buf].node));
    }
    if (p->plan->states.n)
        str_add(out, " * Parameters and other states live in this file and keep their values from call to call.\n");
    str_add(out, " * One thread at a time. Compile with optimisation, and for the machine: cc -O2 -march=native */\n");
    str_add(out, "#if defined(__GNUC__) && !defined(__clang__)\n#pragma GCC diagnostic ignored \"-Wpsabi\"\n#endif\n");
    str_addf(out, "#define tn_main %s_main_\n", name); /* several such files fit in one program */
    for (int i = 0; i < p->plan->kernels.n; i++) str_addf(out, "#define tn_kernel_%d %s_kernel_%d_\n", i, name, i);
}

/* The bytes of one arena: what its buffers hold at first. */
static void print_data(const tn_program *p, const char *name, pbuf_kind kind, int64_t size, str *out) {
    size_t n = (size_t)size / 4 + 1;
    uint32_t *words = ARENA_ARRAY(out->a, uint32_t, n + 1);
    size_t used = 0;
    for (int i = 0; i < p->plan->bufs.n; i++) {
        const pbuf *b = &p->plan->bufs.at[i];
        const void *data = b->kind == kind ? graph_get(p->plan->g, b->node)->data : NULL;
        if (data) memcpy((char *)words + b->offset, data, (size_t)b->bytes);
    }
    for (size_t i = 0; i < n; i++)
        if (words[i]) used = i + 1;
    /* 64 bytes more: a vector read of a tail stays inside */
    str_addf(out, "static word_ %s[%zu] __attribute__((aligned(64)))", name, n + 16);
    if (used) str_add(out, " = {");
    for (size_t i = 0; i < used; i++) str_addf(out, "%s0x%xu,", i % 12 ? "" : "\n", (unsigned)words[i]);
    str_add(out, used ? "\n};\n" : ";\n");
}

void standalone_print(const tn_program *p, str *out) {
    const char *name = c_name(out->a, "", p->plan->g->name, -1);
    if (isdigit((unsigned char)*name)) name = arena_printf(out->a, "_%s", name);
    print_head(p, name, out);
    str_addn(out, p->source, p->n_source);
    str_add(out, "\ntypedef uint32_t word_ __attribute__((may_alias));\n");
    print_data(p, "state_", PB_STATE, p->plan->state_bytes, out);
    print_data(p, "const_", PB_CONST, p->plan->const_bytes, out);
    str_addf(out, "static word_ temp_[%lld] __attribute__((aligned(64)));\n", (long long)p->plan->temp_bytes / 4 + 17);
    print_prototype(p, name, out);
    str_add(out, " {\n    int64_t sync[8] = { 0 };\n    tn_par par = { 0, 1, sync };\n");
    str_addf(out, "    static const int64_t ring[%d] = { 0 };\n", 2 * p->n_io + 1); /* read when there are several steps only */
    str_addf(out, "    char *slot[] = { (char *)temp_, (char *)state_, (char *)const_, (char *)ring");
    for (int i = 0; i < p->n_io; i++) {
        const pio *io = &p->io[i];
        str_addf(out, ", (char *)%s", c_name(out->a, io->is_output ? "out_" : "in_", io->name, i));
    }
    str_add(out, " };\n    tn_main(slot, &par, 1);\n}\n");
}
