/* emit.h - tiled kernels and plans to code. Texts and code are made in the caller's arena. */
#ifndef TN_EMIT_EMIT_H
#define TN_EMIT_EMIT_H

#include "ir/plan.h"
#include "emit/functions.h"
#include "ir/target.h"

/* c.c: one translation unit for the whole plan in C with GNU vector extensions: no headers, no library but libm. Kernels with
 * the same code (pkernel.code) are written once. Entries (signature: rt/device.h): tn_main: the plan's steps, whose loop goes
 * `steps` times and moves along the rings described in SLOT_RING; not of a plan with control flow; tn_kernel_<i>: kernel i
 * alone. Returns the bytes of scratch memory (SLOT_SCRATCH) of each thread. */
int64_t emit_c(const plan *p, const target *t, str *out);

typedef enum gpu_language { GPU_OPENCL, GPU_CUDA } gpu_language;

/* export.c: the same as files of their own, which a host program is linked with: kernels, data, and functions of plain
 * pointers. What they offer stands at the head of their text. */
typedef struct export_form {
    const char *name;    /* that the names of functions begin with: an identifier of C */
    const char *weights; /* data are in a file of this name, which the host reads or the assembler links; NULL: in the text */
    const char *header;  /* the name of the file with the interface; NULL: the text is its own */
    const char *flags;   /* that a compiler is best given for the processor in question; NULL: none */
    bool loop;           /* and a function that runs several steps, and those that save and load the states */
    bool freestanding;   /* without the C library and libm */
    const char *isa;     /* machine code for it, in an object of ELF, instead of C; NULL: C */
    bool archive;        /* that object as a static library */
    bool wasm;           /* C, and functions that a page calls */
    bool gpu;            /* the plan is for GPUs: kernels in `language`, and the C of a host that launches them */
    gpu_language language;
} export_form;
typedef struct export_files {
    str code, header;
    uint8_t *weights; /* [n_weights]; NULL: they are in the text */
    size_t n_weights;
} export_files;
/* Of a plan whose states, where runs change them, are in no panels. Jumps with TN_ERR_UNSUPPORTED where the form has no words
 * for something. Memory: p's arena. */
void emit_export(const plan *p, const export_form *f, export_files *out);
/* Whether `name` can be an identifier of C that is not reserved; one that is, of any text. */
bool export_is_name(const char *name);
char *export_name(arena *a, const char *text);

/* x86.c: the whole plan as x86-64 machine code: one image with the entries of emit_c. Position-independent; before it runs, the
 * loader writes the address of each import into its 8-byte cell. */
typedef enum x86_level {
    X86_SSE,
    X86_AVX2,
    X86_AVX512,
    X86_AVX512_VNNI, /* and sums of products of integers */
    X86_AVX512_BF16  /* and of bf16 */
} x86_level;
typedef struct machine_name {
    const char *name;
    size_t offset, size; /* size: of an entry's code; 0 for imports */
} machine_name;
typedef struct machine_call {
    size_t offset; /* of the last 4 bytes of a call by way of an import's cell: how far that is from behind them */
    int import;
} machine_call;
typedef struct machine_code {
    unsigned char *bytes;
    size_t n_bytes, n_text;               /* of the image; of the code at its start */
    int64_t scratch;                      /* bytes in SLOT_SCRATCH of each thread */
    VEC(machine_name) functions, imports; /* functions: the entries of emit_c, and kernels by their own names */
    VEC(machine_call) calls;
} machine_code;
/* False when some kernel has an instruction without a machine form: out_why then names both. Memory: a.
 * listing (may be NULL) gets the code as text. */
bool emit_x86(const plan *p, x86_level level, arena *a, machine_code *out, str *listing, const char **out_why);
/* Whether there is code for an instruction set as device_caps.isa names it, and at which level. */
bool emit_x86_level(const char *isa, x86_level *out);

/* elf.c: an object with the hidden symbols <name>_code, which is at `entry` of the code, and <name>_data; its imports are
 * symbols that the linker finds. */
void emit_elf(const machine_code *code, size_t entry, const void *data, size_t n_data, const char *name, str *out);
/* Such an object as a static library of one member, with an index of its symbols. */
void emit_archive(const str *object, const char *name, str *out);

/* gpu.c: the whole plan as one program for GPUs, with an entry tn_kernel_<i> for each kernel that is the first of its code. An
 * entry takes its buffers in the order of kernel.bufs, local ones left out: pointers in CUDA C, a base and a distance in bytes
 * (ulong) each in OpenCL C. It is launched as kernel.grid_blocks thread blocks of kernel.block_threads threads. */
void emit_gpu(const plan *p, gpu_language language, str *out);
void emit_gpu_named(const plan *p, gpu_language language, const char *prefix, str *out); /* instead of tn_ */

/* c.c, shared by both. Arrays of kernels that are too large for the stack are in memory that the caller hands over, as the
 * argument before tid of those that have any: emit_c_scratch bytes, or 0. */
void emit_c_kernels(const plan *p, const export_form *form, str *out); /* form NULL: for emit_c */
int64_t emit_c_scratch(const kernel *k);
int64_t emit_c_most_scratch(const plan *p); /* of its kernels */

/* c_prelude.c: vector types and functions for the register types and lane counts in use. */
typedef struct prelude_needs {
    const export_form *form; /* of a file of its own; NULL: for emit_c */
    bool f64, i64, half, random;
    bool lanes[65];              /* by lane count */
    bool ops[N_OPS];             /* elementwise ops used through their functions */
    bool functions[N_FUNCTIONS]; /* rows of functions.def that these need: filled in by emit_prelude */
} prelude_needs;
/* Jumps where an expression of ir/ops.def, computed in f64, needs libm: `op` and f say so. */
void emit_check_freestanding(const str *out, const export_form *f, const char *op, const char *expr);
void emit_freestanding(str *out); /* c_freestanding.c */
/* c_prune.c: of `definitions` only what `code` needs. */
void emit_pruned(const str *definitions, const str *code, str *out);
struct clike_language;
void emit_prelude(const prelude_needs *asked, const struct clike_language *l, str *out);
/* A float literal of the type (TN_F32 or TN_F64) that reads back exactly, whatever the host's locale. */
void emit_float(str *out, tn_dtype t, double v);

#endif
