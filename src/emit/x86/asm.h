/* asm.h - an assembler for x86-64 over a growing buffer in an arena: legacy, VEX and EVEX encodings of the rows of
 * ins.def, labels, and a pool of constants behind the code.
 *
 * Operands are numbers: general registers 0..15 (rax rcx rdx rbx rsp rbp rsi rdi r8..), vector registers 0..31, mask registers
 * 0..7. The caller passes only operands that the instruction has; vector registers above 15 and 512 bits take the EVEX form. */
#ifndef TN_EMIT_X86_ASM_H
#define TN_EMIT_X86_ASM_H

#include "base/base.h"

typedef enum x86_id {
    X86_NONE,
#define INS(id, ...) X86_##id,
#include "emit/x86/ins.def"
    X86_N_INS
} x86_id;

typedef enum x86_form {
    F_RVM,  /* reg, vvvv, rm */
    F_RVMK, /* the same where k1 is set; reg keeps its other lanes */
    F_RM,   /* reg, rm */
    F_RMZ,  /* the same where k1 is set, 0 elsewhere; nothing is read there */
    F_MR,   /* rm, reg */
    F_RVMI, /* reg, vvvv, rm, imm8 */
    F_RMI,  /* reg, rm, imm8 */
    F_MRI,  /* rm, reg, imm8 */
    F_VMI,  /* vvvv, rm, imm8 */
    F_RVMR, /* reg, vvvv, rm, register in imm8 */
    G_RM,
    G_MR,
    G_RMI, /* reg, rm, imm32 */
    G_MI,  /* rm, imm8 or imm32 */
    G_MI4, /* rm, imm32 */
    G_M,   /* rm */
    G_O,   /* register in the opcode */
    G_J,   /* a label */
    G_RAW
} x86_form;

/* Kinds of operands: vector of the instruction's length, of half, of a quarter of it, always xmm; 64- and 32-bit general
 * register; mask register; 16 and 8 bits of a general register. */
typedef enum x86_kind { KV, KH, KQ, KX, KR, KG, KK, KW, KB } x86_kind;

typedef struct x86_ins {
    const char *name, *ename;
    uint8_t form, map, pp;
    int8_t w, ew;
    uint32_t op;
    uint8_t ext, rv, mv;
} x86_ins;
extern const x86_ins x86_table[X86_N_INS];

enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 };
enum { X86_NO_REG = -1, X86_POOL = -2, X86_CELL = -3 };

typedef struct x86_mem {
    int8_t base;   /* a register; X86_POOL: disp is an offset in the pool; X86_CELL: disp is the number of a cell */
    int8_t index;  /* or X86_NO_REG; never rsp */
    uint8_t scale; /* log2 */
    int32_t disp;
} x86_mem;
typedef struct x86_opnd {
    bool is_mem;
    int8_t r;
    x86_mem m;
} x86_opnd;
static inline x86_opnd x86_r(int r) { return (x86_opnd){ .r = (int8_t)r }; }
static inline x86_opnd x86_m(int base, int32_t disp) {
    return (x86_opnd){ .is_mem = true, .m = { (int8_t)base, X86_NO_REG, 0, disp } };
}

typedef struct x86_record { /* one instruction, for the listing */
    uint32_t at;
    uint16_t id;
    int8_t vl, reg, vvvv;
    bool evex;
    int32_t imm;
    x86_opnd rm;
} x86_record;

typedef struct x86_fixup {
    uint32_t at;   /* of the 4 bytes */
    uint32_t tail; /* bytes of the instruction behind them */
    int32_t kind;  /* X86_POOL, X86_CELL, or 0: label */
    int32_t to;
} x86_fixup;

typedef struct x86_asm {
    arena *a;
    unsigned char *at;
    size_t n, cap;
    VEC(uint32_t) labels; /* where they are; UINT32_MAX: not yet */
    VEC(x86_fixup) fixups;
    VEC(unsigned char) pool;
    VEC(uint32_t) pool_index; /* offsets of the entries, for finding them again */
    VEC(uint32_t) pool_key;   /* their hashes */
    int *pool_hash;           /* [n_pool_hash, a power of two] 1 + entry */
    uint32_t n_pool_hash;
    VEC(int) pool_next;
    int n_cells; /* 8-byte cells behind the pool, filled in by the loader */
    bool
        legacy; /* vector instructions without VEX: two operands, xmm0 to xmm15, packed operands in memory at multiples of 16 */
    bool trace;
    VEC(x86_record) records;
} x86_asm;

bool x86_has_legacy(x86_id id); /* for vector instructions */
void x86_asm_init(x86_asm *s, arena *a, bool trace);
/* vl: 0, 1, 2 for 128, 256, 512 bits. Legacy forms: vvvv (of shifts: the register in rm) is not looked at, for it is reg. */
void x86_put(x86_asm *s, x86_id id, int vl, int reg, int vvvv, x86_opnd rm, int32_t imm);
int x86_label(x86_asm *s);
void x86_bind(x86_asm *s, int label);
void x86_jump(x86_asm *s, x86_id id, int label);
void x86_movabs(x86_asm *s, int reg, int64_t v); /* the shortest form */
void x86_align(x86_asm *s, size_t to);
/* Offset of these bytes in the pool; n is 4 to 64 and a power of two. */
int32_t x86_pool(x86_asm *s, const void *bytes, size_t n);
/* Appends pool and cells and resolves all references. Returns the offset of the first cell; out_text: bytes of code. */
size_t x86_finish(x86_asm *s, size_t *out_text);

/* One recorded instruction in Intel syntax, as `objdump -M intel` prints it but for the sizes of memory operands. */
void x86_print(const x86_asm *s, const x86_record *r, str *out);

#endif
