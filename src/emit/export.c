/* export.c - a plan as C of its own that a host program is linked with: interface, data, kernels, functions of plain pointers.
 *
 * In: a plan whose buffers have their places, what the files shall be like. Out: texts and the bytes of a weights file in the
 * plan's arena. Nothing static but constant data: temporaries, states and weights are in memory that the host hands over.
 * Names of the graph reach the text as identifiers or escaped in a string. */
#include "emit/export.h"

enum { MAX_NAME = 40, MAX_COMMENT = 60, LEAST_ALIGN = 8 };

/* ---- names ---- */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool export_is_name(const char *name) {
    if (!is_letter(*name) || strlen(name) > MAX_NAME) return false;
    while (is_letter(*name) || is_digit(*name) || *name == '_') name++;
    return !*name;
}

static char *identifier(arena *a, const char *prefix, const char *text) {
    char *s = arena_printf(a, "%s%.*s", prefix, MAX_NAME, text ? text : "");
    for (char *c = s; *c; c++)
        if (!is_letter(*c) && !is_digit(*c)) *c = '_';
    return s;
}

char *export_name(arena *a, const char *text) { return identifier(a, text && is_letter(*text) ? "" : "graph_", text); }

static char *upper(arena *a, const char *name) {
    char *s = arena_strdup(a, name);
    for (char *c = s; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    return s;
}

/* The prefixes keep clear of keywords and macros, whatever the graph calls its inputs. */
static void name_params(exporter *x) {
    x->param = ARENA_ARRAY(x->a, const char *, x->p->io.n + 1);
    for (int i = 0; i < x->p->io.n; i++) {
        char *base = identifier(x->a, x->p->io.at[i].is_output ? "out_" : "in_", x->p->io.at[i].name);
        x->param[i] = base;
        for (int j = 0, n = 1; j < i; j++) {
            if (strcmp(x->param[j], x->param[i])) continue;
            x->param[i] = arena_printf(x->a, "%s_%d", base, ++n);
            j = -1;
        }
    }
}

/* ---- sizes that a call gives ---- */

static const ext_row *dim_row(const exporter *x, int d) { return exts_row(x->p->params, exts_dim(x->p->params, d)); }
const char *export_dim_name(const exporter *x, int d) {
    const char *name = dim_row(x, d)->name;
    return strlen(name) > MAX_NAME ? arena_printf(x->a, "dim_%d", d) : identifier(x->a, "dim_", name);
}

void export_print_rows(exporter *x, const char *io, str *out) {
    if (!x->n_dims) return;
    const kernel all = { .params = x->p->params };
    clike e = clike_make(&clike_c, out);
    e.k = &all;
    str_addf(out, "    const int64_t *const dims = %s->dims;\n", io);
    clike_params(&e);
}

/* Another status, behind the others; empty where no call gives sizes. */
const char *export_size_error(const exporter *x) { return x->n_dims ? arena_printf(x->a, ", %s_WRONG_SIZE", x->upper) : ""; }

/* ---- text ---- */

void export_say(const exporter *x, str *out, const char *text) {
    for (const char *c = text; *c; c++) {
        if (*c == '@')
            str_add(out, x->f->name);
        else if (*c == '^')
            str_add(out, x->upper);
        else
            str_addn(out, c, 1);
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

/* ---- what a call costs ---- */

typedef struct work {
    uint64_t flops, read, written;
    bool repeats;
} work;

static void add_work(work *to, work w) {
    to->flops += w.flops, to->read += w.read, to->written += w.written;
    to->repeats |= w.repeats;
}

/* The most that steps [i, end) do; of what repeats until a condition holds, one round. */
static work steps_work(const plan *p, int i, int end) {
    work all = { 0 };
    for (; i < end; i = pstep_end(p, i)) {
        const pstep *s = &p->steps.at[i];
        if (s->kind == PSTEP_LAUNCH) {
            const kernel *k = p->kernels.at[s->kernel].k;
            add_work(&all, (work){ k->flops, k->bytes_read, k->bytes_written, false });
        } else if (s->kind == PSTEP_BRANCH) {
            work then = steps_work(p, i + 1, i + 1 + s->n_then), other = steps_work(p, i + 1 + s->n_then, pstep_end(p, i));
            add_work(&all,
                     (work){ then.flops > other.flops ? then.flops : other.flops,
                             then.read > other.read ? then.read : other.read,
                             then.written > other.written ? then.written : other.written, then.repeats || other.repeats });
        } else {
            work inside = steps_work(p, i + 1, pstep_end(p, i));
            int64_t most = s->kind == PSTEP_REPEAT ? ext_hi(p->params, s->times) : 0;
            uint64_t times = most > 0 ? (uint64_t)most : 1;
            inside.repeats |= s->kind == PSTEP_REPEAT && s->times == 0;
            inside.flops *= times, inside.read *= times, inside.written *= times;
            add_work(&all, inside);
        }
    }
    return all;
}

/* ---- interface ---- */

void export_print_prototype(exporter *x, str *out) {
    say(x, out, "%s @_run(struct @_ctx *ctx", x->f->gpu || x->n_dims ? "int" : "void");
    for (int d = 0; d < x->n_dims; d++) str_addf(out, ", int64_t %s", export_dim_name(x, d));
    for (int i = 0; i < x->p->io.n; i++) {
        const pio *io = &x->p->io.at[i];
        say(x, out, ", %s%s *%s", io->is_output ? "" : "const ", clike_memory_type((tn_dtype)io->dtype), x->param[i]);
    }
    str_add(out, ")");
}

/* Returns the output that is shown, or -1. */
int export_print_example_data(exporter *x, str *out) {
    int shown = -1;
    if (x->f->weights)
        say(x, out,
            " *         static uint64_t weights[^_WEIGHTS_BYTES / 8];\n *         FILE *f = fopen(\"%s\", \"rb\");\n"
            " *         if (!f || fread(weights, ^_WEIGHTS_BYTES, 1, f) != 1) return 1;\n",
            x->f->weights);
    for (int i = 0; i < x->p->io.n; i++) {
        const pio *io = &x->p->io.at[i];
        int64_t n = io_elems(x, i);
        if (shown < 0 && io->is_output && n > 0) shown = i;
        say(x, out, " *         static %s %s[%lld];\n", clike_memory_type((tn_dtype)io->dtype), x->param[i],
            (long long)(n > 0 ? n : 1));
    }
    return shown;
}

/* The largest sizes, for which the arrays have room. */
void export_print_example_arguments(exporter *x, str *out) {
    for (int d = 0; d < x->n_dims; d++) str_addf(out, ", %lld", (long long)dim_row(x, d)->hi);
    for (int i = 0; i < x->p->io.n; i++) str_addf(out, ", %s", x->param[i]);
}

static void print_example(exporter *x, str *out) {
    if (x->f->header)
        say(x, out, " *     #include \"%s\"\n", x->f->header);
    else
        say(x, out, " *     #define ^_INTERFACE\n *     #include \"@.c\"\n");
    say(x, out, " *     #include <stdio.h>\n *     int main(void) {\n *         static unsigned char arena[^_ARENA_BYTES]%s;\n",
        x->state_bytes ? ", state[^_STATE_BYTES]" : "");
    int shown = export_print_example_data(x, out);
    say(x, out, " *         struct @_ctx ctx;\n *         if (@_init(&ctx, arena, sizeof arena, %s, %s)) return 1;\n",
        x->state_bytes ? "state, sizeof state" : "NULL, 0", x->f->weights ? "weights, sizeof weights" : "NULL, 0");
    say(x, out, " *         @_run(&ctx");
    export_print_example_arguments(x, out);
    str_add(out, ");\n");
    if (shown >= 0) str_addf(out, " *         printf(\"%%g\\n\", (double)%s[0]);\n", x->param[shown]);
    say(x, out, " *     }\n *\n *     cc -O2%s%s main.c @.c%s\n *\n", x->f->flags ? " " : "", x->f->flags ? x->f->flags : "",
        x->f->freestanding ? "" : " -lm");
}

void export_print_arrays(exporter *x, str *out) {
    if (x->p->io.n)
        str_add(out, " * Arrays are row-major and must not overlap; every pointer to one with elements must be valid.\n *\n");
    for (int i = 0; i < x->p->io.n; i++) {
        str_addf(out, " *     %-10s %s \"", x->param[i],
                 graph_shape_text(x->p->g, x->a, x->p->bufs.at[x->p->io.at[i].buf].node));
        print_comment_name(out, x->p->io.at[i].name);
        str_add(out, "\"\n");
    }
    if (x->p->io.n) str_add(out, " *\n");
    for (int d = 0; d < x->n_dims; d++) {
        const ext_row *r = dim_row(x, d);
        str_addf(out, " * %s is %lld to %lld%s", export_dim_name(x, d), (long long)r->lo, (long long)r->hi,
                 r->divisor > 1 ? "" : "\n");
        if (r->divisor > 1) str_addf(out, ", a multiple of %lld\n", (long long)r->divisor);
    }
    if (x->n_dims) say(x, out, " * in each call; @_run returns ^_WRONG_SIZE for another one, and does nothing.\n *\n");
    str_add(out, " * f16 and bf16 are passed as their 16 bits, bool as bytes 0 and 1.\n");
}

void export_print_head(exporter *x, str *out) {
    say(x, out,
        "/* @.c - a tensor graph as C99: %s, no allocation, nothing static but constant data. A complete program:\n *\n",
        x->f->freestanding ? "no library at all" : "no library but libm");
    print_example(x, out);
    export_print_arrays(x, out);
    if (x->f->weights)
        say(x, out,
            " *\n * The weights are the bytes of %s, mapped or read to an address that is a multiple of %d: @_init checks "
            "their hash.\n"
            " * With -D^_INCBIN='\"%s\"' the assembler links them with this file, and @_init takes them where it is given "
            "NULL.\n",
            x->f->weights, LEAST_ALIGN, x->f->weights);
    str_add(out, " *\n * gcc and clang contract x * y + z to one rounding as -ffp-contract says, so that results of different "
                 "builds agree up\n"
                 " * to rounding only. */\n");
}

void export_print_work(exporter *x, str *out) {
    work w = steps_work(x->p, 0, x->p->steps.n);
    say(x, out,
        "/* A call of @_run does at most so many arithmetic operations, and reads and writes so many bytes between kernels%s. "
        "*/\n",
        w.repeats ? ",\n * in one round of its loops, whose number depends on the data" : "");
    say(x, out, "#define ^_OPERATIONS %llu\n#define ^_BYTES_READ %llu\n#define ^_BYTES_WRITTEN %llu\n",
        (unsigned long long)w.flops, (unsigned long long)w.read, (unsigned long long)w.written);
}

static void print_counts(exporter *x, str *out) {
    say(x, out, "/* Memory, in bytes. */\n#define ^_ARENA_BYTES %lld /* temporaries: not kept from call to call */\n",
        (long long)x->arena_bytes);
    say(x, out, "#define ^_STATE_BYTES %lld\n#define ^_WEIGHTS_BYTES %lld\n", (long long)x->state_bytes,
        (long long)(x->f->weights ? x->data_bytes : 0));
    export_print_work(x, out);
}

void export_print_io(exporter *x, str *out) {
    say(x, out, "struct @_io { /* as the arguments of @_run */\n");
    if (x->n_dims) str_addf(out, "    int64_t dims[%d];\n", x->n_dims);
    for (int i = 0; i < x->p->io.n; i++) {
        const pio *io = &x->p->io.at[i];
        str_addf(out, "    %s%s *%s;\n", io->is_output ? "" : "const ", clike_memory_type((tn_dtype)io->dtype), x->param[i]);
    }
    say(x, out, "%s};\n", x->p->io.n || x->n_dims ? "" : "    int none;\n");
}

void export_print_ring(exporter *x, str *out) {
    say(x, out,
        "struct @_ring { /* steps after which an array begins again, of those that lie one behind the other; 0: it is one "
        "*/\n");
    for (int i = 0; i < x->p->io.n; i++) str_addf(out, "    size_t %s;\n", x->param[i]);
    say(x, out, "%s};\n/* So many calls of @_run; ring NULL: all with the same arrays. */\n",
        x->p->io.n ? "" : "    size_t none;\n");
}

static void print_loop_interface(exporter *x, str *out) {
    export_print_ring(x, out);
    say(x, out, "%s @_run_n(struct @_ctx *ctx, size_t steps, const struct @_io *io, const struct @_ring *ring);\n",
        x->n_dims ? "int" : "void");
    say(x, out,
        "/* All states through a function of the host's, which returns 0 when it has taken or given all n bytes. Nothing is "
        "known of\n"
        " * states that were loaded in part: begin again with @_init. */\n"
        "int @_save(const struct @_ctx *ctx, int (*write)(void *ud, const void *data, size_t n), void *ud);\n"
        "int @_load(struct @_ctx *ctx, int (*read)(void *ud, void *data, size_t n), void *ud);\n");
}

void export_print_state_struct(exporter *x, str *out) {
    say(x, out, "/* What a run changes, or the host may: states, in the order of memory. */\nenum { @_state_count = %d };\n",
        x->n_states);
    say(x, out,
        "struct @_state {\n    const char *name, *dtype;\n    size_t offset, bytes; /* in ctx.state */\n};\n"
        "extern const struct @_state @_state_table[@_state_count + 1];\n");
}

void export_print_interface(exporter *x, str *out) {
    say(x, out,
        "#ifndef ^_DECLARED\n#define ^_DECLARED\n#include <stddef.h>\n#include <stdint.h>\n"
        "#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    print_counts(x, out);
    say(x, out, "enum { ^_OK, ^_SMALL_ARENA, ^_SMALL_STATE, ^_WRONG_WEIGHTS, ^_WRONG_STATE, ^_BROKEN_STREAM%s };\n",
        export_size_error(x));
    say(x, out,
        "struct @_ctx { /* used by one thread at a time */\n    unsigned char *arena, *state;\n    const unsigned char "
        "*weights;\n");
    if (x->threads > 1)
        say(x, out,
            "    /* Calls piece(arg, i) for each i of 0 .. n - 1, on any threads, and returns when all have returned. NULL, as "
            "@_init\n"
            "     * leaves it: the calling thread does all. No bit of a result depends on it. */\n"
            "    void (*parallel_for)(void *ud, int n, void (*piece)(void *arg, int i), void *arg);\n    void *parallel_ud;\n");
    str_add(out, "};\n");
    export_print_io(x, out);
    export_print_state_struct(x, out);
    say(x, out,
        "/* ^_OK, or what is wrong. States get their initial values. state may be NULL where ^_STATE_BYTES is 0, weights "
        "where\n"
        " * ^_WEIGHTS_BYTES is. */\n"
        "int @_init(struct @_ctx *ctx, void *arena, size_t arena_bytes, void *state, size_t state_bytes, const void *weights,\n"
        "           size_t weights_bytes);\n");
    export_print_prototype(x, out);
    str_add(out, ";\n");
    if (x->f->loop) print_loop_interface(x, out);
    str_add(out, "#ifdef __cplusplus\n}\n#endif\n#endif\n");
}

/* ---- functions ---- */

void export_print_states(exporter *x, str *out) {
    say(x, out, "const struct @_state @_state_table[@_state_count + 1] = {\n");
    for (int i = 0; i < x->p->states.n; i++) {
        const pstate *s = &x->p->states.at[i];
        const pbuf *pb = &x->p->bufs.at[s->buf];
        if (!export_in_state(x, pb)) continue;
        str_add(out, "    { ");
        print_string(out, s->name);
        str_addf(out, ", \"%s\", %lld, %lld },\n", dtype_name((tn_dtype)pb->dtype), (long long)export_state_place(x, pb),
                 (long long)pb->elems * (long long)dtype_size((tn_dtype)pb->dtype));
    }
    str_add(out, "    { 0, 0, 0, 0 }\n};\n");
}

/* Words of 8 bytes, as the target has them: data for another byte order have another hash. */
const char export_hash_text[] = "static uint64_t hash_data(const unsigned char *data, size_t n) {\n"
                                "    uint64_t h = n, word;\n"
                                "    for (size_t i = 0; i + 8 <= n; i += 8) {\n"
                                "        __builtin_memcpy(&word, data + i, 8);\n"
                                "        h = (h ^ word) * 0x9e3779b97f4a7c15u;\n"
                                "        h ^= h >> 29;\n    }\n    return h;\n}\n";
static uint64_t hash_data(const uint8_t *data, size_t n) {
    uint64_t h = n, word;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&word, data + i, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

static void print_linked_weights(exporter *x, str *out) {
    say(x, out,
        "#ifdef ^_INCBIN\n"
        "__asm__(\".pushsection .rodata\\n.balign 64\\n.globl @_weights\\n.hidden @_weights\\n@_weights:\\n\"\n"
        "        \".incbin \\\"\" ^_INCBIN \"\\\"\\n.popsection\");\n"
        "extern const unsigned char @_weights[^_WEIGHTS_BYTES];\n#endif\n");
}

void export_print_weights_check(exporter *x, str *out) {
    say(x, out, "    if (!weights || weights_bytes != ^_WEIGHTS_BYTES || (uintptr_t)weights %% %d) return ^_WRONG_WEIGHTS;\n",
        LEAST_ALIGN);
    say(x, out, "    if (hash_data((const unsigned char *)weights, ^_WEIGHTS_BYTES) != 0x%llxu) return ^_WRONG_WEIGHTS;\n",
        (unsigned long long)hash_data(x->data, (size_t)x->data_bytes));
}

static void print_check_weights(exporter *x, str *out) {
    say(x, out, "#ifdef ^_INCBIN\n    if (!weights) weights = @_weights, weights_bytes = ^_WEIGHTS_BYTES;\n#endif\n");
    export_print_weights_check(x, out);
    str_add(out, "    ctx->weights = (const unsigned char *)weights;\n");
}

void export_print_init(exporter *x, str *out) {
    str_add(out, "static unsigned char *aligned_64(void *at) {\n"
                 "    return (unsigned char *)at + (64 - (uintptr_t)at % 64) % 64;\n}\n");
    if (x->f->weights) str_add(out, export_hash_text);
    if (x->f->weights) print_linked_weights(x, out);
    say(x, out,
        "int @_init(struct @_ctx *ctx, void *arena, size_t arena_bytes, void *state, size_t state_bytes, const void *weights,\n"
        "           size_t weights_bytes) {\n"
        "    if (!arena || arena_bytes < ^_ARENA_BYTES) return ^_SMALL_ARENA;\n"
        "    ctx->arena = aligned_64(arena);\n");
    if (x->threads > 1) str_add(out, "    ctx->parallel_for = 0, ctx->parallel_ud = 0;\n");
    if (x->state_bytes)
        say(x, out,
            "    if (!state || state_bytes < ^_STATE_BYTES) return ^_SMALL_STATE;\n    ctx->state = aligned_64(state);\n");
    else
        str_add(out, "    ctx->state = 0;\n    (void)state, (void)state_bytes;\n");
    if (x->f->weights)
        print_check_weights(x, out);
    else
        say(x, out, "    ctx->weights = %s;\n    (void)weights, (void)weights_bytes;\n",
            !x->data_bytes ? "0"
            : x->f->isa    ? "@_data"
                           : "(const unsigned char *)&data");
    if (x->state_bytes) say(x, out, "    __builtin_memset(ctx->state, 0, %lld);\n", (long long)(x->state_bytes - EXPORT_ALIGN));
    for (int i = 0; i < x->items.n; i++) {
        const pbuf *pb = &x->p->bufs.at[x->items.at[i].buf];
        if (export_in_state(x, pb))
            str_addf(out, "    __builtin_memcpy(ctx->state + %lld, ctx->weights + %lld, %lld);\n",
                     (long long)export_state_place(x, pb), (long long)x->items.at[i].at, (long long)x->items.at[i].bytes);
    }
    say(x, out, "    return ^_OK;\n}\n");
}

static void print_place(exporter *x, int buf, str *out) {
    const pbuf *pb = &x->p->bufs.at[buf];
    if (pb->kind == PB_TEMP)
        str_addf(out, "arena + %lld", (long long)pb->offset);
    else if (pb->kind == PB_INPUT || pb->kind == PB_OUTPUT)
        str_addf(out, "io->%s", x->param[pb->io]);
    else if (pb->kind == PB_WINDOW)
        str_addf(out, "window[%d]", pb->slot - SLOT_IO - x->p->io.n);
    else if (export_in_state(x, pb))
        str_addf(out, "state + %lld", (long long)export_state_place(x, pb));
    else
        str_addf(out, "weights + %lld", (long long)export_data_place(x, pb));
}

/* tid, nt: as text. */
static void print_launch(exporter *x, const pkernel *pk, const char *tid, const char *nt, str *out) {
    const kernel *k = pk->k;
    str_addf(out, "kernel_%d(", pk->code);
    for (int b = 0; b < k->bufs.n; b++) {
        if (k->bufs.at[b].kind == KB_LOCAL) continue;
        const char *constant = k->bufs.at[b].kind == KB_IN ? "const " : "";
        str_addf(out, "(%s%s *)(%svoid *)(", constant, clike_memory_type((tn_dtype)k->bufs.at[b].dtype), constant);
        print_place(x, pk->args[b].buf, out);
        str_add(out, "), ");
    }
    if (k->params) str_add(out, "io->dims, ");
    int64_t most = (x->arena_bytes - EXPORT_ALIGN - x->temp_bytes) / x->threads; /* arrays of kernels, of a thread */
    if (emit_c_scratch(k) && x->threads > 1)
        str_addf(out, "(char *)arena + %lld + %s * %lld, ", (long long)x->temp_bytes, tid, (long long)most);
    else if (emit_c_scratch(k))
        str_addf(out, "(char *)arena + %lld, ", (long long)x->temp_bytes);
    str_addf(out, "%s, %s);\n", tid, nt);
}

static const char locals[] = "    unsigned char *const arena = ctx->arena, *const state = ctx->state;\n"
                             "    const unsigned char *const weights = ctx->weights;\n"
                             "    (void)io, (void)arena, (void)state, (void)weights;\n";

/* Launches that threads may do together, between two barriers: only these are functions of their own, for a region of kernels
 * that are not split is the calling thread's. */
static bool is_shared(const exporter *x, int i, int end) {
    bool shared = false;
    for (; i < end; i++) shared |= x->p->kernels.at[x->p->steps.at[i].kernel].k->par_var >= 0;
    return shared && x->threads > 1;
}

static void print_region(exporter *x, int i, int end, str *out) {
    say(x, out,
        "static void region_%d(void *arg, int tid) {\n    const struct shares *s = (const struct shares *)arg;\n"
        "    struct @_ctx *const ctx = s->ctx;\n    const struct @_io *const io = s->io;\n",
        i);
    str_add(out, locals);
    if (x->p->n_windows) str_add(out, "    unsigned char *const *const window = s->window;\n    (void)window;\n");
    for (; i < end; i++) {
        const pkernel *pk = &x->p->kernels.at[x->p->steps.at[i].kernel];
        str_add(out, pk->k->par_var < 0 ? "    if (tid == 0) " : "    ");
        print_launch(x, pk, "tid", "s->n", out);
    }
    str_add(out, "}\n");
}

static void print_regions(exporter *x, str *out) {
    str regions;
    str_init(&regions, x->a);
    for (int i = 0, next; i < x->p->steps.n; i = next) {
        next = i + 1;
        if (x->p->steps.at[i].kind != PSTEP_LAUNCH) continue;
        next = plan_region_end(x->p, i, x->region_end[i]);
        if (is_shared(x, i, next)) print_region(x, i, next, &regions);
    }
    if (!regions.n) return;
    x->shares = true;
    say(x, out,
        "struct shares {\n    struct @_ctx *ctx;\n    const struct @_io *io;\n    unsigned char *const *window;\n    int "
        "n;\n};\n"
        "static void share(struct shares *s, void (*piece)(void *arg, int i)) {\n"
        "    if (s->n > 1)\n        s->ctx->parallel_for(s->ctx->parallel_ud, s->n, piece, s);\n"
        "    else\n        piece(s, 0);\n}\n");
    str_addn(out, regions.s, regions.n);
}

/* Launches of a list of steps, behind each other; those that threads may do together as a region of them. */
static void print_launches(exporter *x, int i, int end, int indent, str *out) {
    for (int next; i < end; i = next) {
        next = plan_region_end(x->p, i, end);
        if (is_shared(x, i, next)) {
            str_addf(out, "%*sshare(&shares, region_%d);\n", indent, "", i);
            continue;
        }
        for (int k = i; k < next; k++) {
            str_addf(out, "%*s", indent, "");
            print_launch(x, &x->p->kernels.at[x->p->steps.at[k].kernel], "0", "1", out);
        }
    }
}

static const char *value_of(exporter *x, int buf, const char *type, int step, int indent, str *out) {
    str s;
    (void)step, (void)indent, (void)out;
    str_init(&s, x->a);
    str_addf(&s, "*(const %s *)(const void *)(", type);
    print_place(x, buf, &s);
    str_add(&s, ")");
    return s.s;
}

static const export_host host = { print_place, print_launches, value_of, "A = (unsigned char *)(size_t)(B) + (size_t)(C)" };

void export_print_size_check(exporter *x, const char *io, str *out) {
    for (int d = 0; d < x->n_dims; d++) {
        const ext_row *r = dim_row(x, d);
        say(x, out, "    if (%sdims[%d] < %lld || %sdims[%d] > %lld || %sdims[%d] %% %lld) return ^_WRONG_SIZE;\n", io, d,
            (long long)r->lo, io, d, (long long)r->hi, io, d, (long long)r->divisor);
    }
}

void export_print_gather(exporter *x, str *out) {
    say(x, out, " {\n    struct @_io io;\n");
    for (int i = 0; i < x->p->io.n; i++) str_addf(out, "    io.%s = %s;\n", x->param[i], x->param[i]);
    if (!x->p->io.n && !x->n_dims) str_add(out, "    io.none = 0;\n");
    for (int d = 0; d < x->n_dims; d++) str_addf(out, "    io.dims[%d] = %s;\n", d, export_dim_name(x, d));
    export_print_size_check(x, "io.", out);
}

static void print_run_function(exporter *x, str *out) {
    export_print_prototype(x, out);
    export_print_gather(x, out);
    say(x, out, "    run_step(ctx, &io);\n%s}\n", x->n_dims ? arena_printf(x->a, "    return %s_OK;\n", x->upper) : "");
}

void export_print_run(exporter *x, str *out) {
    print_regions(x, out);
    say(x, out, "static void run_step(struct @_ctx *ctx, const struct @_io *io) {\n");
    str_add(out, locals);
    export_print_rows(x, "io", out);
    if (x->p->n_windows) str_addf(out, "    unsigned char *window[%d];\n", x->p->n_windows);
    if (x->shares)
        say(x, out, "    struct shares shares;\n    shares.ctx = ctx, shares.io = io, shares.n = ctx->parallel_for ? %d : 1;\n",
            x->threads);
    if (x->shares) str_add(out, x->p->n_windows ? "    shares.window = window;\n" : "    shares.window = 0;\n");
    export_print_steps(x, &host, 4, out);
    str_add(out, "}\n");
    print_run_function(x, out);
}

/* Arrays of the next step. */
void export_print_move(exporter *x, str *out) {
    for (int i = 0; i < x->p->io.n; i++) {
        str_addf(out, "        if (ring && ring->%s) at.%s += step %% ring->%s * (size_t)", x->param[i], x->param[i],
                 x->param[i]);
        export_print_ext(plan_elems(x->p, x->p->io.at[i].buf), out);
        str_add(out, ";\n");
    }
    if (!x->p->io.n) str_add(out, "        (void)ring;\n");
}

/* Of names, dtypes and sizes of states. */
uint64_t export_layout(const exporter *x) {
    uint64_t layout = 0;
    for (int i = 0; i < x->p->states.n; i++) {
        const pbuf *pb = &x->p->bufs.at[x->p->states.at[i].buf];
        int64_t words[] = { pb->dtype, pb->elems };
        if (export_in_state(x, pb))
            layout =
                hash_bytes(x->p->states.at[i].name, strlen(x->p->states.at[i].name), hash_bytes(words, sizeof words, layout));
    }
    return layout;
}

void export_print_loop(exporter *x, str *out) {
    say(x, out, "%s @_run_n(struct @_ctx *ctx, size_t steps, const struct @_io *io, const struct @_ring *ring) {\n",
        x->n_dims ? "int" : "void");
    export_print_rows(x, "io", out);
    export_print_size_check(x, "io->", out);
    say(x, out, "    for (size_t step = 0; step < steps; step++) {\n        struct @_io at = *io;\n");
    export_print_move(x, out);
    say(x, out, "        run_step(ctx, &at);\n    }\n%s}\n", x->n_dims ? "    return ^_OK;\n" : "");
    say(x, out, "static const uint64_t saved_head[2] = { 0x%llxu, ^_STATE_BYTES };\n", (unsigned long long)export_layout(x));
    str_addf(out, "enum { STATES = %d };\n", x->n_states);
    say(x, out, "%s",
        "int @_save(const struct @_ctx *ctx, int (*write)(void *ud, const void *data, size_t n), void *ud) {\n"
        "    if (write(ud, saved_head, sizeof saved_head)) return ^_BROKEN_STREAM;\n"
        "    for (int i = 0; i < STATES; i++)\n"
        "        if (write(ud, ctx->state + @_state_table[i].offset, @_state_table[i].bytes)) return ^_BROKEN_STREAM;\n"
        "    return ^_OK;\n}\n"
        "int @_load(struct @_ctx *ctx, int (*read)(void *ud, void *data, size_t n), void *ud) {\n"
        "    uint64_t head[2];\n"
        "    if (read(ud, head, sizeof head)) return ^_BROKEN_STREAM;\n"
        "    if (head[0] != saved_head[0] || head[1] != saved_head[1]) return ^_WRONG_STATE;\n"
        "    for (int i = 0; i < STATES; i++)\n"
        "        if (read(ud, ctx->state + @_state_table[i].offset, @_state_table[i].bytes)) return ^_BROKEN_STREAM;\n"
        "    return ^_OK;\n}\n");
}

/* ---- an object ---- */

static void unsupported(const exporter *x, const char *what) {
    guard_fail(x->a->gd, TN_ERR_UNSUPPORTED, "%s as an object: there is no machine code for %s: export it as C", x->f->name,
               what);
}

/* Arrays that stay where they are, and behind that what follows from sizes: read where there are such, or windows. */
static void print_object_ring(exporter *x, str *out) {
    const plan *p = x->p;
    int at = x->n_dims ? (int)(plan_rows_at(p->io.n, p->params) / 8) : 2 * p->io.n, n_rows = x->n_dims ? p->params->at.n : 0;
    if (!x->n_dims && !p->n_windows) return;
    export_print_rows(x, "io", out);
    str_addf(out, "    int64_t ring[%d];\n    slot[%d] = (char *)ring;\n", at + n_rows + 1, SLOT_RING);
    str_addf(out, "    for (int i = 0; i < %d; i++) ring[i] = i >= %d;\n", 2 * p->io.n, p->io.n);
    for (int i = 0; i < n_rows; i++) str_addf(out, "    ring[%d] = e%d;\n", at + i, i);
}

/* The base pointers of a run, as plan.h has them. */
static void print_object_run(exporter *x, str *out) {
    const plan *p = x->p;
    say(x, out,
        "static void run_step(struct @_ctx *ctx, const struct @_io *io) {\n"
        "    static const struct {\n        int64_t threads;\n        const void *none;\n        int64_t thread;\n    } alone "
        "= { 1, 0, 0 };\n"
        "    char *slot[%d];\n    slot[%d] = slot[%d] = (char *)ctx->arena;\n    slot[%d] = (char *)ctx->state;\n",
        plan_slots(p), SLOT_TEMP, SLOT_RING, SLOT_STATE);
    if (x->shared_in_state)
        str_addf(out, "    slot[%d] = (char *)ctx->state + %lld;\n", SLOT_SHARED, (long long)p->state_bytes);
    else
        str_addf(out, "    slot[%d] = (char *)(uintptr_t)ctx->weights + %lld;\n", SLOT_SHARED,
                 (long long)((p->const_bytes + EXPORT_ALIGN - 1) / EXPORT_ALIGN * EXPORT_ALIGN));
    str_addf(out, "    slot[%d] = (char *)(uintptr_t)ctx->weights;\n    slot[%d] = (char *)ctx->arena + %lld;\n    (void)io;\n",
             SLOT_CONST, SLOT_SCRATCH, (long long)x->temp_bytes);
    for (int i = 0; i < p->io.n; i++) str_addf(out, "    slot[%d] = (char *)(uintptr_t)io->%s;\n", SLOT_IO + i, x->param[i]);
    print_object_ring(x, out);
    say(x, out, "    @_code(slot, &alone, 1);\n}\n");
    print_run_function(x, out);
}

void export_object(exporter *x, export_files *out) {
    machine_code code;
    x86_level level;
    const char *reason;
    size_t entry = 0;
    if (x->threads > 1) unsupported(x, "threads of the host");
    if (!emit_x86_level(x->f->isa, &level)) unsupported(x, x->f->isa);
    if (!emit_x86(x->p, level, x->a, &code, NULL, &reason)) unsupported(x, reason);
    for (int i = 0; i < code.functions.n; i++)
        if (!strcmp(code.functions.at[i].name, "tn_main")) entry = code.functions.at[i].offset;
    x->arena_bytes = x->temp_bytes + code.scratch + EXPORT_ALIGN;
    say(x, &out->header,
        "/* @.h - the interface of %s for x86-64 (%s). One file of the host's defines ^_IMPLEMENTATION before it "
        "includes this:\n"
        " * there the few lines are that hand memory to the code.%s */\n",
        x->f->archive ? "a static library" : "an object", x->f->isa,
        code.imports.n ? " The code calls functions of libm: link with -lm." : "");
    export_print_interface(x, &out->header);
    say(x, &out->header,
        "#ifdef ^_IMPLEMENTATION\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
        "extern const unsigned char @_data[];\nvoid @_code(char *const *slot, const void *threads, int64_t steps);\n");
    export_print_states(x, &out->header);
    export_print_init(x, &out->header);
    print_object_run(x, &out->header);
    if (x->f->loop) export_print_loop(x, &out->header);
    str_add(&out->header, "#ifdef __cplusplus\n}\n#endif\n#endif\n");
    str object;
    str_init(&object, x->a);
    emit_elf(&code, entry, x->data, (size_t)x->data_bytes, x->f->name, x->f->archive ? &object : &out->code);
    if (x->f->archive) emit_archive(&object, x->f->name, &out->code);
}

void export_begin(exporter *x, const plan *p, export_form *form) {
    *x = (exporter){
        .a = p->a, .p = p, .f = form, .upper = upper(p->a, form->name), .threads = p->threads > 1 ? p->threads : 1
    };
    x->n_dims = p->params ? p->params->n_dims : 0;
    name_params(x);
    x->region_end = ARENA_ARRAY(p->a, int, p->steps.n + 1);
    export_find_ends(x, 0, p->steps.n);
    export_place_data(x);
    if (!x->data_bytes || form->isa) form->weights = NULL;
}
