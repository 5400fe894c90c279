/* x86.c - a plan as one image of x86-64 machine code. In: tiled kernels. Out: code, its entries, and what it imports.
 *
 * Kernels take (buffers, tid, nt); the entries have the signature of rt/device.h and the meaning that emit_c gives them. The
 * entries keep all they need in their frame, for kernels change every register; what grows with the plan is in the thread's
 * scratch memory: the addresses of a kernel's buffers, the slots of a step, and the kernel's frame, when that is large. */
#include "emit/x86/ir.h"

enum { USUAL_OPS = 256 }; /* of a kernel */

typedef struct image {
    const plan *p;
    x86_asm s;
    arena *a;
    arena scratch; /* of one kernel */
    machine_code *out;
    x86_names imports;
    int *label;                                                                     /* [kernels] */
    int32_t f_slots, f_tid, f_nt, f_par, f_steps, f_step, f_slot, f_scratch, frame; /* places in the frame of tn_main */
    int32_t f_left;          /* of loops inside of each other: iterations that are left */
    int32_t s_copy, s_frame; /* in scratch memory, behind the addresses of buffers: slots of a step; frames of kernels */
    int64_t most;            /* bytes of the largest of these */
} image;

bool emit_x86_level(const char *isa, x86_level *out) {
    static const struct {
        const char *isa;
        x86_level level;
    } levels[] = { { "avx512bf16", X86_AVX512_BF16 },
                   { "avx512vnni", X86_AVX512_VNNI },
                   { "avx512", X86_AVX512 },
                   { "avx2", X86_AVX2 },
                   { "sse2", X86_SSE } };
    for (size_t i = 0; i < COUNT_OF(levels); i++)
        if (!strcmp(isa, levels[i].isa)) {
            *out = levels[i].level;
            return true;
        }
    return false;
}

static void add_function(image *im, const char *name, size_t from) {
    VEC_PUSH(im->a, &im->out->functions, (machine_name){ name, from, im->s.n - from });
}

/* ---- kernels ---- */

/* near: see xfn. */
static bool put_version(image *im, xfn *f, int i, int label, int near, const char **out_why) {
    const kernel *k = im->p->kernels.at[i].k;
    xfn old = *f; /* its arrays are used again */
    arena_reset(&im->scratch);
    *f = (xfn){ .a = &im->scratch,
                .keep = im->a,
                .s = &im->s,
                .k = k,
                .level = old.level,
                .packed = old.packed,
                .vb = old.vb,
                .n_vregs_phys = old.n_vregs_phys,
                .near = near,
                .frame_at = im->s_frame,
                .imports = &im->imports };
#define AGAIN(array) f->array.at = old.array.at, f->array.cap = old.array.cap
    AGAIN(ops), AGAIN(seq), AGAIN(v), AGAIN(g), AGAIN(loops), AGAIN(open), AGAIN(consts), AGAIN(dyns), AGAIN(lloads),
        AGAIN(bounds);
    AGAIN(numbered), AGAIN(numbered_next), AGAIN(numbered_hash), AGAIN(scopes);
#undef AGAIN
    x86_select(f);
    if (!f->unsupported) {
        x86_peephole(f);
        x86_interleave(f);
        x86_alloc(f);
        x86_align(&im->s, 32);
        size_t from = im->s.n;
        x86_bind(&im->s, label);
        x86_code(f);
        if (f->in_scratch > im->most) im->most = f->in_scratch;
        add_function(im, arena_printf(im->a, "kernel_%d_%s", i, k->name ? k->name : ""), from);
    }
    if (f->unsupported) {
        *out_why = arena_printf(im->a, "kernel %s, instruction %%%u: %s", k->name, (unsigned)f->unsupported_at, f->unsupported);
        return false;
    }
    return true;
}

static bool put_kernel(image *im, xfn *f, int i, const char **out_why) {
    const kernel *k = im->p->kernels.at[i].k;
    bool nontemporal = false;
    for (int j = 1; j < k->ins.n && !nontemporal; j++)
        nontemporal = k->ins.at[j].op == K_STORE && k->ins.at[j].mode == STORE_NONTEMPORAL;
    if (!nontemporal) return put_version(im, f, i, im->label[i], -1, out_why);
    int near = x86_label(&im->s);
    return put_version(im, f, i, near, -1, out_why) && put_version(im, f, i, im->label[i], near, out_why);
}

/* ---- entries ---- */

static void mov_rm(x86_asm *s, int r, int base, int32_t disp) { x86_put(s, X86_MOV, 0, r, 0, x86_m(base, disp), 0); }
static void mov_mr(x86_asm *s, int base, int32_t disp, int r) { x86_put(s, X86_MOV_ST, 0, r, 0, x86_m(base, disp), 0); }

static const int8_t kept[] = { RBX, R12, R13, R14, R15 };

static void prologue(image *im) {
    x86_asm *s = &im->s;
    x86_put(s, X86_PUSH, 0, RBP, 0, x86_r(0), 0);
    x86_put(s, X86_MOV, 0, RBP, 0, x86_r(RSP), 0);
    for (size_t i = 0; i < COUNT_OF(kept); i++) x86_put(s, X86_PUSH, 0, kept[i], 0, x86_r(0), 0);
    x86_put(s, X86_SUBI, 0, 0, 0, x86_r(RSP), im->frame);
    x86_put(s, X86_ANDI, 0, 0, 0, x86_r(RSP), -64);
    mov_mr(s, RSP, im->f_slots, RDI);
    mov_mr(s, RSP, im->f_slot, RDI);
    mov_mr(s, RSP, im->f_par, RSI);
    mov_mr(s, RSP, im->f_steps, RDX);
    x86_put(s, X86_MOVI, 0, 0, 0, x86_m(RSP, im->f_tid), 0);
    mov_rm(s, RAX, RSI, 0); /* par->nt */
    mov_mr(s, RSP, im->f_nt, RAX);
    x86_put(s, X86_IMULI, 0, RAX, 0, x86_m(RSI, 16), (int32_t)im->out->scratch); /* par->me */
    x86_put(s, X86_ADD, 0, RAX, 0, x86_m(RDI, 8 * SLOT_SCRATCH), 0);
    mov_mr(s, RSP, im->f_scratch, RAX);
}

static void epilogue(image *im) {
    x86_asm *s = &im->s;
    for (size_t i = 0; i < COUNT_OF(kept); i++) mov_rm(s, kept[i], RBP, -8 * ((int)i + 1));
    x86_put(s, X86_LEAVE, 0, 0, 0, x86_r(0), 0);
    x86_put(s, X86_RET, 0, 0, 0, x86_r(0), 0);
}

static void put_launch(image *im, int i) { /* of the share in f_tid */
    const pkernel *pk = &im->p->kernels.at[i];
    x86_asm *s = &im->s;
    mov_rm(s, RCX, RSP, im->f_slots);
    mov_rm(s, RDI, RSP, im->f_scratch);
    for (int b = 0; b < pk->k->bufs.n; b++) {
        if (pk->k->bufs.at[b].kind == KB_LOCAL) continue;
        const pbuf *pb = &im->p->bufs.at[pk->args[b].buf];
        mov_rm(s, RAX, RCX, pb->slot * 8);
        if (pb->offset > INT32_MAX) {
            x86_movabs(s, RDX, pb->offset);
            x86_put(s, X86_ADD, 0, RAX, 0, x86_r(RDX), 0);
        } else if (pb->offset) {
            x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), (int32_t)pb->offset);
        }
        mov_mr(s, RDI, 8 * b, RAX);
    }
    if (pk->k->params) {
        mov_rm(s, RAX, RCX, 8 * SLOT_RING);
        x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), (int32_t)plan_rows_at(im->p->io.n, im->p->params));
        mov_mr(s, RDI, 8 * pk->k->bufs.n, RAX);
    }
    mov_rm(s, RSI, RSP, im->f_tid);
    mov_rm(s, RDX, RSP, im->f_nt);
    x86_jump(s, X86_CALL, im->label[pk->code]);
}

static int skip_unless_first(image *im) {
    int skip = x86_label(&im->s);
    x86_put(&im->s, X86_CMPI, 0, 0, 0, x86_m(RSP, im->f_tid), 0);
    x86_jump(&im->s, X86_JNE, skip);
    return skip;
}

/* Whether there are more regions behind one, as far as is known. */
typedef enum behind { LAST, LAST_OF_ITERATION, MORE } behind;

/* Kernels [i, end) are launched between two barriers: for each share that par->next gives out; see c.c. leave: where to go when
 * it says that this thread is to return, -1 = behind the region. */
static void put_region(image *im, int i, int end, behind more, int leave) {
    x86_asm *s = &im->s;
    int next = x86_label(s), body = x86_label(s), done = x86_label(s);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_m(RSP, im->f_nt), 1);
    x86_jump(s, X86_JLE, body);
    x86_bind(s, next);
    mov_rm(s, RDI, RSP, im->f_par);
    if (more == LAST_OF_ITERATION) {
        mov_rm(s, RSI, RSP, im->f_steps);
        x86_put(s, X86_SUB, 0, RSI, 0, x86_m(RSP, im->f_step), 0);
    } else {
        x86_put(s, X86_MOVI, 0, 0, 0, x86_r(RSI), more == MORE ? 2 : 1);
    }
    x86_put(s, X86_CALLM, 0, 0, 0, x86_m(RDI, 8), 0); /* par->next */
    x86_put(s, X86_MOVSXD, 0, RAX, 0, x86_r(RAX), 0);
    mov_mr(s, RSP, im->f_tid, RAX);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), 0);
    x86_jump(s, X86_JL, done);
    x86_bind(s, body);
    for (; i < end; i++) {
        int skip = im->p->kernels.at[i].k->par_var < 0 ? skip_unless_first(im) : -1;
        put_launch(im, i);
        if (skip >= 0) x86_bind(s, skip);
    }
    x86_put(s, X86_CMPI, 0, 0, 0, x86_m(RSP, im->f_nt), 2);
    x86_jump(s, X86_JGE, next);
    x86_bind(s, done);
    if (leave < 0) return;
    x86_put(s, X86_CMPI, 0, 0, 0, x86_m(RSP, im->f_tid), -1);
    x86_jump(s, X86_JL, leave);
}

/* With several iterations the slots are copied, and inputs and outputs advance in their rings. */
static void put_rings(image *im, const pstep *loop) {
    const plan *p = im->p;
    x86_asm *s = &im->s;
    int one = x86_label(s);
    if (!p->n_windows) { /* which are written to the slots */
        x86_put(s, X86_CMPI, 0, 0, 0, x86_m(RSP, im->f_steps), 1);
        x86_jump(s, X86_JLE, one);
    }
    mov_rm(s, RCX, RSP, im->f_slot);
    mov_rm(s, RDI, RSP, im->f_scratch);
    for (int i = 0; i < SLOT_IO + p->io.n; i++) { /* windows come behind */
        mov_rm(s, RAX, RCX, 8 * i);
        mov_mr(s, RDI, im->s_copy + 8 * i, RAX);
    }
    mov_rm(s, RCX, RCX, 8 * SLOT_RING);
    for (int r = 0; r < loop->n_rings; r++) {
        int i = p->bufs.at[loop->rings[r].buf].io;
        mov_rm(s, RAX, RSP, im->f_step);
        x86_put(s, X86_CQO, 0, 0, 0, x86_r(0), 0);
        x86_put(s, X86_IDIV, 0, 0, 0, x86_m(RCX, 8 * (p->io.n + i)), 0);
        x86_put(s, X86_IMUL, 0, RDX, 0, x86_m(RCX, 8 * i), 0);
        x86_put(s, X86_ADD, 0, RDX, 0, x86_m(RDI, im->s_copy + 8 * (SLOT_IO + i)), 0);
        mov_mr(s, RDI, im->s_copy + 8 * (SLOT_IO + i), RDX);
    }
    x86_put(s, X86_LEA, 0, RAX, 0, x86_m(RDI, im->s_copy), 0);
    mov_mr(s, RSP, im->f_slots, RAX);
    x86_bind(s, one);
}

/* ---- control flow: of plans whose kernels are not shared out ---- */

static void put_address(image *im, int to, const pbuf *b) { /* changes RCX, RDX */
    x86_asm *s = &im->s;
    mov_rm(s, RCX, RSP, im->f_slots);
    mov_rm(s, to, RCX, b->slot * 8);
    if (!b->offset) return;
    x86_movabs(s, RDX, b->offset);
    x86_put(s, X86_ADD, 0, to, 0, x86_r(RDX), 0);
}

/* Jumps there unless the bool is true. */
static void put_unless(image *im, int32_t cond, int to) {
    x86_asm *s = &im->s;
    put_address(im, RAX, &im->p->bufs.at[cond]);
    x86_put(s, X86_MOVZX8, 0, RAX, 0, x86_m(RAX, 0), 0);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), 0);
    x86_jump(s, X86_JE, to);
}

static void put_size(image *im, int to, ext e) {
    if (ext_is_lit(e)) {
        x86_movabs(&im->s, to, e);
        return;
    }
    mov_rm(&im->s, to, RSP, im->f_slots);
    mov_rm(&im->s, to, to, 8 * SLOT_RING);
    mov_rm(&im->s, to, to, (int32_t)plan_rows_at(im->p->io.n, im->p->params) + 8 * ext_index(e));
}

/* How many iterations, in RAX. */
static void put_count(image *im, const pstep *x) {
    x86_asm *s = &im->s;
    if (x->count < 0) {
        put_size(im, RAX, x->times);
        return;
    }
    put_address(im, RAX, &im->p->bufs.at[x->count]);
    mov_rm(s, RAX, RAX, 0);
    put_size(im, RDX, x->times);
    x86_put(s, X86_CMP, 0, RAX, 0, x86_r(RDX), 0);
    x86_put(s, X86_CMOVG, 0, RAX, 0, x86_r(RDX), 0);
}

static void put_serial(image *im, int i, int end, int depth, int leave);

/* Windows are slots, which move. */
static void put_repeat(image *im, int i, int depth) {
    const plan *p = im->p;
    const pstep *x = &p->steps.at[i];
    x86_asm *s = &im->s;
    int top = x86_label(s), done = x86_label(s);
    int32_t left = im->f_left + 8 * depth;
    if (x->times) {
        put_count(im, x);
        mov_mr(s, RSP, left, RAX);
        x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), 0);
        x86_jump(s, X86_JLE, done);
    }
    for (int k = 0; k < x->n_rings; k++) {
        const pbuf *w = &p->bufs.at[x->rings[k].buf];
        put_address(im, RAX, &p->bufs.at[w->window_of]);
        if (x->backward) {
            mov_rm(s, RDX, RSP, left);
            x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RDX), -1);
            put_size(im, RSI, x->rings[k].stride);
            x86_put(s, X86_IMUL, 0, RDX, 0, x86_r(RSI), 0);
            x86_put(s, X86_ADD, 0, RAX, 0, x86_r(RDX), 0);
        }
        mov_mr(s, RCX, 8 * w->slot, RAX);
    }
    x86_bind(s, top);
    put_serial(im, i + 1, pstep_end(p, i), depth + 1, done);
    mov_rm(s, RCX, RSP, im->f_slots);
    for (int k = 0; k < x->n_rings; k++) {
        int32_t slot = 8 * p->bufs.at[x->rings[k].buf].slot;
        mov_rm(s, RAX, RCX, slot);
        put_size(im, RDX, x->rings[k].stride);
        x86_put(s, x->backward ? X86_SUB : X86_ADD, 0, RAX, 0, x86_r(RDX), 0);
        mov_mr(s, RCX, slot, RAX);
    }
    if (!x->times) {
        x86_jump(s, X86_JMP, top);
    } else {
        mov_rm(s, RAX, RSP, left);
        x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), -1);
        mov_mr(s, RSP, left, RAX);
        x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RAX), 1);
        x86_jump(s, X86_JGE, top);
    }
    x86_bind(s, done);
}

static void put_branch(image *im, int i, int depth, int leave) {
    const pstep *x = &im->p->steps.at[i];
    x86_asm *s = &im->s;
    int other = x86_label(s), done = x86_label(s);
    put_unless(im, x->cond, other);
    put_serial(im, i + 1, i + 1 + x->n_then, depth, leave);
    x86_jump(s, X86_JMP, done);
    x86_bind(s, other);
    put_serial(im, i + 1 + x->n_then, pstep_end(im->p, i), depth, leave);
    x86_bind(s, done);
}

/* Steps [i, end), by one thread. leave: where the innermost loop ends. */
static void put_serial(image *im, int i, int end, int depth, int leave) {
    for (; i < end; i = pstep_end(im->p, i)) {
        const pstep *x = &im->p->steps.at[i];
        if (x->kind == PSTEP_LAUNCH) put_launch(im, x->kernel);
        if (x->kind == PSTEP_REPEAT) put_repeat(im, i, depth);
        if (x->kind == PSTEP_BRANCH) put_branch(im, i, depth, leave);
        if (x->kind == PSTEP_LEAVE) put_unless(im, x->cond, leave);
    }
}

static void put_steps(image *im, int i, int end, behind more, int leave);

/* leave: behind the loop, which is around all launches. */
static void put_loop(image *im, int i, int leave) {
    x86_asm *s = &im->s;
    int top = x86_label(s);
    x86_put(s, X86_MOVI, 0, 0, 0, x86_m(RSP, im->f_step), 0);
    x86_put(s, X86_CMPI, 0, 0, 0, x86_r(RDX), 0);
    x86_jump(s, X86_JLE, leave);
    x86_bind(s, top);
    put_rings(im, &im->p->steps.at[i]);
    put_steps(im, i + 1, pstep_end(im->p, i), LAST_OF_ITERATION, leave);
    mov_rm(s, RAX, RSP, im->f_step);
    x86_put(s, X86_ADDI, 0, 0, 0, x86_r(RAX), 1);
    mov_mr(s, RSP, im->f_step, RAX);
    x86_put(s, X86_CMP, 0, RAX, 0, x86_m(RSP, im->f_steps), 0);
    x86_jump(s, X86_JL, top);
}

/* Steps [i, end). more: behind the last of them. */
static void put_steps(image *im, int i, int end, behind more, int leave) {
    const plan *p = im->p;
    if (plan_has_control(p) && i < end && p->steps.at[i].kind != PSTEP_LOOP) {
        put_serial(im, i, end, 0, leave);
        return;
    }
    for (int next; i < end; i = next) {
        if (p->steps.at[i].kind == PSTEP_LOOP) {
            put_loop(im, i, leave);
            next = pstep_end(p, i);
            continue;
        }
        next = plan_region_end(p, i, end);
        put_region(im, p->steps.at[i].kernel, p->steps.at[next - 1].kernel + 1, next < end ? MORE : more, leave);
    }
}

static void put_main(image *im) {
    x86_asm *s = &im->s;
    int done = x86_label(s);
    x86_align(s, 16);
    size_t from = s->n;
    prologue(im);
    put_steps(im, 0, im->p->steps.n, LAST, done);
    x86_bind(s, done);
    epilogue(im);
    add_function(im, "tn_main", from);
}

static void put_entry(image *im, int i) {
    x86_align(&im->s, 16);
    size_t from = im->s.n;
    prologue(im);
    put_region(im, i, i + 1, LAST, -1);
    epilogue(im);
    add_function(im, arena_printf(im->a, "tn_kernel_%d", i), from);
}

/* ---- the image ---- */

static void lay_out(image *im) {
    int32_t *const places[] = { &im->f_slots, &im->f_tid,  &im->f_nt,   &im->f_par,
                                &im->f_steps, &im->f_step, &im->f_slot, &im->f_scratch };
    int n_args = 0;
    for (size_t i = 0; i < COUNT_OF(places); i++) *places[i] = 8 * (int32_t)i;
    im->frame = im->f_left = 8 * (int32_t)COUNT_OF(places);
    im->frame += 8 * (plan_depth(im->p) + 1);
    for (int i = 0; i < im->p->kernels.n; i++) {
        const kernel *k = im->p->kernels.at[i].k;
        if (k->bufs.n + (k->params != NULL) > n_args) n_args = k->bufs.n + (k->params != NULL);
    }
    im->s_copy = 8 * n_args;
    im->s_frame = (im->s_copy + 8 * plan_slots(im->p) + 63) & ~63;
}

static void print_listing(image *im, str *out) {
    int fn = 0;
    for (int i = 0; i < im->s.records.n; i++) {
        const x86_record *r = &im->s.records.at[i];
        size_t end = i + 1 < im->s.records.n ? im->s.records.at[i + 1].at : im->out->n_text;
        while (fn < im->out->functions.n && im->out->functions.at[fn].offset <= r->at)
            str_addf(out, "\n%s:\n", im->out->functions.at[fn++].name);
        str_addf(out, "%6x  ", (unsigned)r->at);
        for (size_t b = r->at; b < r->at + 12; b++) b < end ? str_addf(out, "%02x", im->s.at[b]) : str_add(out, "  ");
        str_add(out, "  ");
        x86_print(&im->s, r, out);
        str_add(out, "\n");
    }
    str_addf(out, "\n%zu bytes of code, %d of constants, %d imports\n", im->out->n_text, im->s.pool.n, im->imports.names.n);
}

bool emit_x86(const plan *p, x86_level level, arena *a, machine_code *out, str *listing, const char **out_why) {
    image im = { .p = p, .a = a, .out = out };
    static const int widths[] = { [X86_SSE] = 16, [X86_AVX2] = 32, [X86_AVX512] = 64 };
    static const int registers[] = { [X86_SSE] = 15, [X86_AVX2] = 16, [X86_AVX512] = 32 };
    xfn f = { .packed = level, .level = level < X86_AVX512 ? level : X86_AVX512 };
    f.vb = widths[f.level], f.n_vregs_phys = registers[f.level];
    memset(out, 0, sizeof *out);
    *out_why = "";
    VEC_RESERVE(a, &f.ops, USUAL_OPS), VEC_RESERVE(a, &f.v, USUAL_OPS), VEC_RESERVE(a, &f.seq, USUAL_OPS);
    arena_child(&im.scratch, a);
    x86_asm_init(&im.s, a, listing != NULL);
    im.s.legacy = level == X86_SSE;
    im.label = ARENA_ARRAY(a, int, p->kernels.n + 1);
    for (int i = 0; i < p->kernels.n; i++) im.label[i] = x86_label(&im.s);
    lay_out(&im);
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].code == i && !put_kernel(&im, &f, i, out_why)) return false;
    out->scratch = plan_room(im.s_frame + im.most);
    if (plan_is_one_function(p) || p->threads <= 1) put_main(&im);
    for (int i = 0; i < p->kernels.n; i++) put_entry(&im, i);
    im.s.n_cells = im.imports.names.n;
    size_t cells = x86_finish(&im.s, &out->n_text);
    out->bytes = im.s.at, out->n_bytes = im.s.n;
    for (int i = 0; i < im.imports.names.n; i++)
        VEC_PUSH(a, &out->imports, (machine_name){ im.imports.names.at[i], cells + 8 * (size_t)i, 0 });
    for (int i = 0; i < im.s.fixups.n; i++)
        if (im.s.fixups.at[i].kind == X86_CELL)
            VEC_PUSH(a, &out->calls, (machine_call){ im.s.fixups.at[i].at, im.s.fixups.at[i].to });
    if (listing) print_listing(&im, listing);
    return true;
}
