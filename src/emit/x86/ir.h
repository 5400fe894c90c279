/* ir.h - one kernel on its way to machine code: operations over virtual registers, and the addresses and loops they need.
 *
 * select.c writes it (legalize_sse.c: what SSE2 lacks, by what it has), peephole.c contracts and folds, interleave.c puts the
 * same work on neighbouring vectors side by side, alloc.c gives registers, code.c encodes. Everything lives in the
 * caller's arena for the time of one kernel.
 *
 * Vector registers (vreg) hold one chunk of a kernel register: `lanes` of it, or one. They are written once, except those that
 * are marked as mutable: accumulators and values that a branch decides. General registers (greg) are never computed by
 * operations of the list: each is a base address, an induction of a loop, a loop's counter, or a dynamic index. */
#ifndef TN_EMIT_X86_IR_H
#define TN_EMIT_X86_IR_H

#include "emit/emit.h"
#include "emit/x86/asm.h"

typedef uint32_t vreg; /* 0 = nil */
typedef int32_t greg;  /* 0 = nil */

/* Operations that are no single instruction; instructions use their x86_id. */
enum {
    P_LOOP = X86_N_INS, /* loop */
    P_END,
    P_IF,     /* skip to P_ENDIF unless (uint64_t)(greg + disp) < imm64 */
    P_IFLAST, /* skip unless this is the last thread */
    P_ENDIF,
    P_MOV,      /* dst = a */
    P_CONST,    /* dst = pool[imm]: made again rather than spilled */
    P_DOT,      /* dst = c and the products of the parts of a and b; imm: the instruction, an x86_id */
    P_FMA,      /* dst = +-(a * b) +- c; imm: bit 0 negate the product, bit 1 subtract c, bit 2 double */
    P_FROMG,    /* dst = greg + disp, in lane 0; type: I32 I64 F32 F64 (of the whole 64-bit value) */
    P_DYN,      /* greg (mem.index) = clamp(lane 0 of a) * stride; see xdyn */
    P_LDNARROW, /* dst = lane 0: the 1 or 2 bytes at mem, extended; imm: 1 zero 1 byte, 2 sign 1 byte, 3 zero 2 bytes */
    P_STNARROW, /* store of the low imm bytes of lane 0: 1 or 2 */
    P_PREFETCH, /* of mem */
    P_LLOAD,    /* lane by lane, see xlanes */
    P_LANEOP,   /* lane by lane arithmetic through memory; imm: laneop */
    P_CALL,     /* lane by lane libm; imm: import, type F32 or F64; only the lanes of the mask c, where there is one */
    P_N
};
enum { L_F32_I64, L_F64_I64, L_I64_F32, L_I64_F64, L_DIV32, L_DIV64, L_MOD32, L_MOD64 };

typedef enum xtype { XF32, XF64, XI32, XI64, XM64 } xtype; /* XM64: a mask in 64-bit lanes */

typedef struct xmem { /* base + index + disp */
    greg base, index;
    int64_t disp;
} xmem;

typedef struct xop {
    uint16_t op;
    uint8_t vl, type, lanes;
    bool dead, neg, has_mem;
    int32_t imm;
    vreg dst, a, b, c;
    xmem mem;
    int32_t loop;         /* P_LOOP, P_END: the loop; else the innermost open one */
    int32_t block;        /* straight-line code has one number */
    int32_t expr;         /* the instruction of the kernel that it belongs to */
    int32_t extra;        /* P_DYN: dyns; P_LLOAD: lloads; P_IF: bounds */
    uint32_t live, glive; /* P_CALL: registers that are in use across it */
} xop;

typedef struct xdyn { /* a dynamic index */
    ext n;
    int64_t stride;
    ext by; /* .. times this parameter; 0: as it is */
    bool clamp, wide;
    uint8_t lane;
    greg g;
    vreg v;
} xdyn;
typedef struct xbound { /* P_IF: lo <= value < hi */
    ext lo, hi;
} xbound;
typedef struct xlload { /* per lane: unless masked out, the word at mem + lane * stride (+ clamped dyn) */
    int64_t stride, dyn_stride;
    ext n, dyn_by;        /* dyn_by: as xdyn.by */
    uint8_t bytes, first; /* of a word; lane of dyn that belongs to lane 0 */
    bool sign, dyn_wide;
} xlload;

typedef struct xvreg {
    int32_t def; /* operation */
    uint8_t vl;
    bool is_mutable, full; /* full: every lane of the widest vector holds the value */
    int32_t loop;
    /* alloc.c */
    int32_t start, end;
    float weight;
    int8_t phys;  /* or -1 */
    int32_t slot; /* frame offset, when spilled */
    bool spilled; /* it lives in the frame, or, */
    bool remat;   /* .. in the pool: slot is an offset there */
    bool brief;   /* a copy for one operation */
} xvreg;

typedef enum gkind { G_NONE, G_BUF, G_LOCAL, G_SUM, G_IV, G_COUNT, G_DYN } gkind;
typedef struct xgreg {
    uint8_t kind;
    greg parent;  /* G_IV: value at the loop's start; G_SUM: what is added to, before all code; 0 = zero */
    int32_t loop; /* G_IV, G_COUNT */
    int64_t coef; /* G_IV: bytes a step; G_SUM: what is added */
    ext by;       /* .. times this parameter; 0: as it is */
    int64_t at;   /* G_BUF: buffer; G_LOCAL: frame offset */
    int32_t start, end;
    float weight;
    int8_t phys;
    int32_t slot;
} xgreg;

typedef struct xloop {
    kvar var;
    int32_t parent;                  /* or -1 */
    int64_t lo, step, trips, offset; /* offset: of the copy being written, in steps */
    uint8_t par;
    bool fixed;                 /* one iteration: no code, var is lo */
    bool counted;               /* the bounds are parameters: trips is a guess, lo is 0 .. */
    ext first_value, end_value; /* .. and these are the bounds */
    VEC(greg) ivs;
    greg count;
    VEC(int32_t) pre; /* operations that belong in front of it */
    int32_t first, last, label, end_label, depth;
    int32_t outer; /* the next around it that is code; 0 = none */
    float weight;  /* of a use in it */
    int32_t par_slot;
} xloop;

typedef struct xconst {
    int32_t loop;
    int32_t pool;
    vreg v;
} xconst;

typedef struct x86_names {
    VEC(const char *) names;
} x86_names;

typedef struct xfn {
    arena *a, *keep; /* for the time of this kernel; for lists that the next one uses again */
    const kernel *k;
    x86_asm *s;
    x86_level level; /* X86_AVX512 for all that have it; words: what there is for words of several numbers */
    x86_level packed;
    int vb, n_vregs_phys; /* bytes and number of vector registers; SSE: without xmm15, which serves the encoder */
    VEC(xop) ops;
    VEC(int32_t) seq; /* main order; loops' `pre` in front of them */
    int32_t *order;   /* [n_order] the final one */
    int n_order;
    VEC(xvreg) v;
    VEC(xgreg) g;
    VEC(xloop) loops;
    VEC(int32_t) open; /* loops, fixed ones too */
    VEC(xconst) consts;
    VEC(xdyn) dyns;
    VEC(xlload) lloads;
    VEC(xbound) bounds;
    int32_t block, n_blocks, expr;
    int32_t pre_of; /* >= 0: new operations go in front of this loop */
    /* value numbering */
    int32_t bucket[256];
    VEC(int32_t) numbered, numbered_next, numbered_hash;
    VEC(int32_t) scopes;
    const char *unsupported; /* why this kernel has no machine code; the rest is then rubbish */
    reg unsupported_at;
    int64_t frame;      /* bytes used so far */
    int32_t frame_at;   /* of a frame in scratch memory: its distance from the buffers' addresses */
    int64_t in_scratch; /* bytes of it that the code uses: 0 when the frame is on the stack */
    int64_t save_at;    /* of the registers around calls */
    bool calls;
    int near; /* label of the kernel that keeps results in the caches, for buffers that begin within a line; -1: this is it */
    x86_names *imports;
} xfn;

enum { X_SCRATCH = 256 }; /* bytes at the bottom of the frame for work lane by lane: two operands and a result */
enum { X_STACK = 4096 };  /* bytes of a frame that may be on the stack */
enum { X_TID = X_SCRATCH, X_NT = X_SCRATCH + 8, X_PARAMS = X_SCRATCH + 16, X_FRAME = X_SCRATCH + 64 };

/* select.c. What is given at run time, such as strides, is of kernels whose instructions have one lane. */
void x86_select(xfn *f);

/* value_numbering.c */
int x86_vl(xtype t, int lanes); /* width of the register that holds them: 0, 1, 2 of 16, 32, 64 bytes */
xop *x86_add(xfn *f, xop op);   /* appends; fills loop, block */
vreg x86_new(xfn *f, int vl);
vreg x86_numbered(xfn *f, xop op); /* the same operation twice gives the same register */
vreg x86_const_bits(xfn *f, xtype t, uint64_t bits);
vreg x86_const(xfn *f, xtype t, double fv, int64_t iv);
int x86_import(xfn *f, const char *name);
void x86_unsupported(xfn *f, const char *what);

/* legalize_sse.c: the value of an operation, numbered; where the processor has SSE2 only, by operations that it has. */
vreg x86_value(xfn *f, xop op);

/* lane_ops.c: the primitives of the vocabulary over one chunk of `lanes` */
typedef struct xval {
    vreg r;
    xtype t; /* a mask is XI32, or XM64 */
} xval;
xval x86_bin(xfn *f, char op, xval a, xval b, int lanes); /* + - * / & | ^ < (LT) l (LE) = (EQ) n (NE) M (max const) m */
xval x86_sel(xfn *f, xval m, xval a, xval b, int lanes);
xval x86_mask32(xfn *f, xval m, int lanes);
xval x86_mask64(xfn *f, xval m, int lanes);
xval x86_shift(xfn *f, x86_id id, xval a, int n, int lanes);
xval x86_convert(xfn *f, xval a, xtype to, int lanes); /* float to integer truncates */
/* mask: in which lanes, the others get rubbish; register 0: in all. */
xval x86_call(xfn *f, const char *name, xval a, xval b, xval mask, int lanes);
xval x86_low(xfn *f, xval a, int at, int lanes); /* `lanes` of a chunk from lane `at`, a multiple of lanes */
vreg x86_broadcast(xfn *f, xval a);
xval x86_word(xfn *f, const char *name, xtype t, const xval *args, int n, int lanes);

/* expr.c: an expression (emit/expression.h) over values of type t. */
xval x86_expr(xfn *f, const char *text, xtype t, const xval *xyz, int lanes);
xval x86_half_nan(xfn *f, xval x, int lanes); /* every NaN becomes the quiet one of its sign: what f16 keeps */

/* peephole.c */
void x86_peephole(xfn *f);
void x86_interleave(xfn *f);
bool x86_commutes(int op);
/* alloc.c */
void x86_alloc(xfn *f);
/* code.c: appends the function to f->s. */
void x86_code(xfn *f);

#endif
