/* c.c - a plan as one C translation unit with GNU vector extensions: functions and entries round the statements of clike.c.
 *
 * In: tiled kernels. Out: text; gcc -O2 or clang -O1 suffice for it. */
#include "emit/clike/clike.h"

/* ---- kernels and entries ---- */

enum { STACK_BYTES = 4096, ARRAY_ALIGN = 64 };

/* Elements of an array: as many as it has for any values of the dims. */
static int64_t array_elems(const kernel *k, const kbuf *b) {
    int64_t n = ext_hi(k->params, b->elems);
    if (n > INT64_MAX / 64) guard_fail(k->a->gd, TN_ERR_UNSUPPORTED, "kernel %s: local memory without a bound", k->name);
    return n > 0 ? n : 1;
}

static int64_t array_bytes(const kernel *k, const kbuf *b) {
    int64_t n = array_elems(k, b) * (int64_t)dtype_size((tn_dtype)b->dtype);
    return (n + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
}

int64_t emit_c_scratch(const kernel *k) {
    int64_t bytes = 0;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) bytes += array_bytes(k, &k->bufs.at[b]);
    return bytes > STACK_BYTES ? bytes : 0;
}

static void print_arrays(clike *e, const kernel *k) {
    int64_t at = 0, scratch = emit_c_scratch(k);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        const char *type = clike_memory_type((tn_dtype)kb->dtype);
        if (kb->kind != KB_LOCAL) continue;
        if (scratch)
            str_addf(e->out,
                     "    %s *const __restrict b%d = (%s *)__builtin_assume_aligned(scratch + %lldL, %d);\n    (void)b%d;\n",
                     type, b, type, (long long)at, ARRAY_ALIGN, b);
        else
            str_addf(e->out, "    %s b%d[%lld] __attribute__((aligned(%d), unused));\n", type, b, (long long)array_elems(k, kb),
                     ARRAY_ALIGN);
        at += array_bytes(k, kb);
    }
}

/* Parameters that no instruction touches, as loads that nothing needed leave them: compilers are told. */
static void print_unused(clike *e, const kernel *k) {
    bool *used = ARENA_ARRAY(e->out->a, bool, k->bufs.n + 1);
    for (int r = 1; r < k->ins.n; r++)
        if (kernel_has_buffer(&k->ins.at[r])) used[k->ins.at[r].buf] = true;
    for (int b = 0; b < k->bufs.n; b++)
        if (!used[b] && k->bufs.at[b].kind != KB_LOCAL) str_addf(e->out, "    (void)b%d;\n", b);
}

static void print_kernel(clike *e, const kernel *k, int id) {
    e->k = k;
    str_addf(e->out, "static NOIPA __attribute__((noinline, unused)) void kernel_%d(", id);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        if (kb->kind == KB_LOCAL) continue;
        str_addf(e->out, "%s%s *__restrict b%d, ", kb->kind == KB_IN ? "const " : "", clike_memory_type((tn_dtype)kb->dtype),
                 b);
    }
    if (k->params) str_add(e->out, "const int64_t *__restrict dims, ");
    str_addf(e->out, "%sint64_t tid, int64_t nt) {\n    (void)tid, (void)nt;\n", emit_c_scratch(k) ? "char *scratch, " : "");
    clike_params(e);
    print_unused(e, k);
    print_arrays(e, k);
    e->indent = 1;
    for (reg r = 1; r < (reg)k->ins.n; r++) clike_instruction(e, r);
    str_add(e->out, "}\n");
}

int64_t emit_c_most_scratch(const plan *p) {
    int64_t most = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        int64_t bytes = emit_c_scratch(p->kernels.at[i].k);
        if (bytes > most) most = bytes;
    }
    return most;
}

void emit_c_kernels(const plan *p, const export_form *form, str *out) {
    str body;
    str_init(&body, out->a);
    clike e = clike_make(&clike_c, &body);
    e.needs.lanes[1] = true, e.needs.form = form;
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].code == i) print_kernel(&e, p->kernels.at[i].k, i);
    clike_program(&e, out);
}

static void print_call(const plan *p, int i, str *out) {
    const pkernel *pk = &p->kernels.at[i];
    str_addf(out, "kernel_%d(", pk->code);
    for (int b = 0; b < pk->k->bufs.n; b++) {
        const kbuf *kb = &pk->k->bufs.at[b];
        if (kb->kind == KB_LOCAL) continue;
        const pbuf *pb = &p->bufs.at[pk->args[b].buf];
        str_addf(out, "(%s%s *)(s[%d] + %lldL), ", kb->kind == KB_IN ? "const " : "", clike_memory_type((tn_dtype)kb->dtype),
                 pb->slot, (long long)pb->offset);
    }
    if (pk->k->params) str_addf(out, "(const int64_t *)(s[%d] + %lldL), ", SLOT_RING, (long long)plan_dims_at(p->io.n));
    if (emit_c_scratch(pk->k)) str_add(out, "scratch, ");
}

/* Steps [i, end) of tn_main, at this depth of blocks. left: what par->next is told of the last region: how many there are. */
static void print_steps(const plan *p, int i, int end, int depth, const char *left, str *out);

/* The ring: [k] bytes that input or output k advances from step to step, [n + k] the length of its ring. */
static void print_loop(const plan *p, int i, int depth, str *out) {
    int in = 4 * depth + 4;
    str_addf(out, "%*sfor (int64_t step = 0; step < steps; step++) {\n%*sfor (int i = 0; i < %d; i++) s[i] = slot[i];\n",
             in - 4, "", in, "", SLOT_IO + p->io.n);
    str_addf(out, "%*sif (steps > 1) for (int i = 0; i < %d; i++) s[%d + i] += ring[i] * (step %% ring[%d + i]);\n", in, "",
             p->io.n, SLOT_IO, p->io.n);
    print_steps(p, i + 1, pstep_end(p, i), depth + 1, "steps - step", out);
    str_addf(out, "%*s}\n", in - 4, "");
}

static void print_region(const plan *p, int i, int end, int depth, const char *left, str *out) {
    int in = 4 * depth;
    str_addf(out, "%*sSHARES(%s) {\n", in, "", left);
    for (; i < end; i++) {
        int k = p->steps.at[i].kernel;
        str_addf(out, "%*s%s", in + 4, "", p->kernels.at[k].k->par_var >= 0 ? "" : "if (tid == 0) ");
        print_call(p, k, out);
        str_add(out, "tid, par->nt);\n");
    }
    str_addf(out, "%*s}\n%*sif (tid < -1) return;\n", in, "", in, "");
}

static void print_steps(const plan *p, int i, int end, int depth, const char *left, str *out) {
    for (int next; i < end; i = next) {
        bool loop = p->steps.at[i].kind == PSTEP_LOOP;
        next = loop ? pstep_end(p, i) : plan_region_end(p, i, end);
        if (loop)
            print_loop(p, i, depth, out);
        else
            print_region(p, i, next, depth, next < end ? "2" : left, out);
    }
}

/* arrays, scratch: bytes of a thread, at first those of kernels; the slots of a step are behind them. */
static void print_main(const plan *p, int64_t arrays, int64_t scratch, str *out) {
    bool loop = plan_loop(p) != NULL;
    str_add(out, "void tn_main(char *const *slot, const tn_par *par, int64_t steps) {\n");
    if (loop) str_addf(out, "    const int64_t *ring = (const int64_t *)slot[%d];\n", SLOT_RING);
    str_addf(out, "    char *scratch = slot[%d] + par->me * %lldL, *%s = %s;\n    int64_t tid = 0;\n    (void)tid;\n",
             SLOT_SCRATCH, (long long)scratch, loop ? "*s" : "const *s",
             loop ? arena_printf(out->a, "(char **)(scratch + %lldL)", (long long)arrays) : "slot");
    if (!loop) str_add(out, "    (void)scratch, (void)s, (void)steps;\n");
    print_steps(p, 0, p->steps.n, 1, "1", out);
    str_add(out, "}\n");
}

int64_t emit_c(const plan *p, const target *t, str *out) {
    int64_t arrays = emit_c_most_scratch(p), scratch = plan_room(arrays + 8 * (SLOT_IO + p->io.n)); /* slots of a step */
    (void)t;
    emit_c_kernels(p, NULL, out);
    str_add(out, "typedef struct tn_par {\n    int64_t nt;\n    int32_t (*next)(const struct tn_par *, int64_t left);\n    "
                 "int64_t me;\n} tn_par;\n"
                 "/* Shares of the work between two barriers, until there are no more; below -1 this thread is to return. */\n"
                 "#define SHARES(left) for (tid = par->nt > 1 ? par->next(par, left) : 0; tid >= 0; \\\n"
                 "                          tid = par->nt > 1 ? par->next(par, left) : -1)\n");
    for (int i = 0; i < p->kernels.n; i++) {
        str_addf(out,
                 "void tn_kernel_%d(char *const *s, const tn_par *par, int64_t steps) {\n    int64_t tid;\n    (void)steps;\n",
                 i);
        if (emit_c_scratch(p->kernels.at[i].k))
            str_addf(out, "    char *scratch = s[%d] + par->me * %lldL;\n", SLOT_SCRATCH, (long long)scratch);
        str_add(out, "    SHARES(1) ");
        if (p->kernels.at[i].k->par_var < 0) str_add(out, "if (tid == 0) ");
        print_call(p, i, out);
        str_add(out, "tid, par->nt);\n}\n");
    }
    if (!plan_has_control(p)) print_main(p, arrays, scratch, out);
    return scratch;
}
