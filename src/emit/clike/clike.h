/* clike.h - what the writers of C, OpenCL C and CUDA C share: one printer of instructions and one vocabulary, and a row of a
 * table for what each says differently. */
#ifndef TN_EMIT_CLIKE_H
#define TN_EMIT_CLIKE_H

#include "emit/emit.h"
#include "ir/boxes.h"

typedef struct clike_language {
    const char *name;
    bool gpu;
    const char *index, *index_end;             /* type of loop variables and element numbers, and the end of their literals */
    const char *unsigned_index, *unsigned_end; /* the same without sign */
    const char *wide_end;                      /* end of 64-bit literals */
    /* The rest is for GPUs only. */
    const char *head, *head_more, *head_f64; /* definitions that a program starts with; NULL: there are no more */
    const char *fma[2];                      /* of f32, f64 */
    const char *math_end;                    /* what the names of functions of f32 end in */
    const char *barrier, *thread,
        *block;            /* all threads of a thread block meet; the thread's number in it; the thread block's number */
    const char *barrier32; /* the same for warps; NULL: nothing of its own */
    const char *kernel;    /* printf: `together`, threads of a thread block, name */
    const char *together;  /* printf, thread blocks of a cluster: says that they run together; NULL: there are no clusters; */
    bool overlaps;         /* a launch may begin before those end that it waits for */
    const char *cluster_barrier, *copy_at; /* they meet; function, place and q: the same in the copy of thread block q */
    int resident; /* threads that a processor shall have room for, so that one has no more registers; 0: as it comes */
    const char *async_wait; /* for what copy_async(to, from, bytes or 0) copies; NULL: there is no such function */
    bool matrix_units;      /* matrix.c writes its products */
    const char *dynamic; /* printf, bytes twice: declares tn_shared_BYTES at a multiple of that (one name has one alignment in
                            all of a program), shared memory that a launch asks for; NULL: none */
    const char *global, *shared, *restricted; /* of memory that is everybody's, a thread block's, has no other name */
    const char *and_or, *and_xor;             /* functions of three words that are one instruction; NULL: a & b | c is */
    const char *ahead;      /* function that loads an f32 where the text says, not later; NULL: there is none */
    const char *anew;       /* printf, a word: the compiler shall not know what is in it; NULL: there is nothing */
    const char *extreme[2]; /* functions: larger and smaller of two f32, NaN if either is; NULL: the op's own expression */
    const char *pack_bf16;  /* function: two f32 rounded to bf16, as a word; NULL: one by one */
    struct {                /* functions of functions.def for which it has something better: the body, of x */
        const char *word, *text;
    } own[4];
    struct { /* functions of f32 for results that are rounded to 16 bits; name NULL: no more of them */
        op_code op;
        const char *name, *coarse; /* coarse: to bf16 */
    } approximate[3];
    const char *exp_of_difference; /* function of two f32, for weights that are rounded to bf16; NULL: none */
    bool contracts;                /* a product and a sum whose result is rounded to 16 bits are one instruction */
    const char *apart;   /* function: an f32 as it is, in a register that others need not lie beside; NULL: there is none */
    const char *shuffle; /* printf, value: that of the thread of 32 whose number differs by bit h; NULL: there is none */
    const char *shuffle_from; /* printf, value, thread: that of the thread of 32 with this number, modulo 32; as shuffle */
    const char *halves;       /* function (x, y, h): see languages.c; NULL: there is no shuffle */
    const char *least32;      /* printf, value: the smallest i32 of each 32 threads; NULL: by shuffles */
    const char *fetch; /* printf, prefix of kernels, kernel, argument: the byte that follows comes into the second cache; NULL:
                          nothing does */
    bool offsets;      /* a buffer comes as a base and its distance in bytes */
    const char *shared_space, *long2; /* in the type of a pointer to a thread block's memory; two i64 */
    const char *aligned;              /* printf, bytes: of an array, at a multiple of that */
} clike_language;
extern const clike_language clike_c, clike_opencl, clike_cuda;

typedef struct used_op { /* elementwise op instantiated for a type and lane count */
    uint8_t op, src, lanes;
} used_op;
typedef struct used_product { /* of matrix units: columns are twice as many as lanes; turned: rows lie along memory */
    uint8_t dtype, lanes, a_turned, b_turned, fragment, first; /* fragment: the rows come in registers; first: sums begin */
} used_product;
typedef struct named_base { /* the address of load `first` less its constant, p<first> in the text */
    reg first;
    int depth; /* open loops where it was named: visible until those are fewer */
} named_base;
typedef struct clike_bulk { /* of this kernel: copies in boxes */
    kmaps maps;
    int stages;
    reg end;                      /* of the run that is printed */
    bool last;                    /* the last copy was one */
    int sends;                    /* places that what is sent takes turns in; 0: nothing is sent */
    bool sent;                    /* something has been since threads met last */
    kturns turns;                 /* .first 0: there are none */
    str open;                     /* the nest over thread blocks opens */
    str first[KERNEL_MOST_FIRST]; /* [stages] statements that ask for the first blocks */
    int64_t *elems;               /* [bufs] of a stage, filled so; 0: it was filled otherwise */
} clike_bulk;
typedef struct clike {
    const clike_language *l;
    const kernel *k; /* being printed */
    str *out;
    const char *index, *index_end, *unsigned_index, *unsigned_end; /* of this kernel */
    prelude_needs needs;
    VEC(used_op) ops;
    VEC(used_product) products;
    VEC(bool) braces;          /* of the open loops: whether they have a block of their own */
    VEC(named_base) bases;     /* of loads ahead; those that are visible */
    bool reduces[TN_N_DTYPES]; /* of this kernel: its threads combine values of these types */
    bool asyncs;               /* of this kernel: something is copied by copy_async */
    bool reduces_index;
    bool any_bulk; /* of any kernel */
    clike_bulk bulk;
    reg only;                   /* of an open nest that goes on only where a vector has the element of this number */
    bool next_early, any_early; /* the launch behind it may begin before its end; one of the program's does */
    const char **early; /* [ins] of a load that is made before the kernel waits for other launches: the thread's turn; NULL */
    reg vector;         /* of the last product in lanes, */
    bool back;          /* which went over them from the last to the first */
    const char *prefix; /* that names of kernels begin with */
    int id;             /* in the name of the kernel */
    int indent;
    int lane; /* that the statement is for, plus 1; 0: for all of them, in a loop */
} clike;

static inline clike clike_make(const clike_language *l, str *out) {
    return (clike){ .l = l,
                    .out = out,
                    .index = l->index,
                    .index_end = l->index_end,
                    .unsigned_index = l->unsigned_index,
                    .unsigned_end = l->unsigned_end };
}
/* Instruction r of e->k as a line or more. */
void clike_instruction(clike *e, reg r);
/* vocabulary.c: the vocabulary that the text in e->out needs, then that text. */
void clike_program(clike *e, str *out);
const char *clike_memory_type(tn_dtype t);
const char *clike_narrow_float(tn_dtype t); /* what its conversions are called: FROM_<it>, TO_<it> */

/* overlap.c: where a kernel waits for the launches before it; what stands in nests over thread blocks, if it does so there. */
bool clike_begins_early(clike *e, const kernel *k);
void clike_wait(clike *e, str *out);
void clike_open_nest(clike *e, reg inner);
/* Whether what it reads of the buffer is constant while it is there. */
bool clike_reads_constant(const kbuf *kb);
/* A thread's turns in a nest that a thread block's threads share, if they are few and the same for all of them, or one; or 0.
 */
int clike_turns(const clike *e, reg nest);

/* shares.c: all instructions, where thread blocks share out many nests; false: they do not, and nothing is printed. */
bool clike_shares(clike *e);

/* What the files of clike share. */
const char *clike_reg_type(tn_dtype t);
void clike_need(clike *e, tn_dtype t, int lanes);
void clike_line(clike *e);
/* text.c: the words that statements are made of. */
void clike_ext(clike *e, ext x); /* a literal, or e and the number of its row */
void clike_params(clike *e);     /* all rows of e->k's parameters, from the array `dims` */
void clike_affine(clike *e, affine x, int64_t extra);
void clike_register(clike *e, reg r); /* of several lanes for GPUs: an array, in a loop over them */
void clike_value(clike *e, tn_dtype t, double f, int64_t i);
void clike_operand(clike *e, reg r, int lanes);
void clike_use_op(clike *e, op_code op, tn_dtype src, int lanes); /* op_..() will be there */
/* What stands between operands where the op is an operator; NULL: it is a function. */
const char *clike_infix(op_code op, tn_dtype t);
/* block_reduce.c: all threads of a thread block meet; `of` neighbours, or all, combine values; the index of the best value */
const char *clike_barrier(const clike *e);
void clike_block_part(clike *e, const kins *in, reg r);
void clike_block_reduce(clike *e, const kins *in, reg r);
void clike_block_before(clike *e, const kins *in, reg r);
void clike_block_argreduce(clike *e, const kins *in, reg r);
/* matrix.c: matrices, their products and what is waited for; the functions that these call. */
void clike_matrix(clike *e, const kins *in, reg r);
void clike_multiply(clike *e, const kins *in, reg r);
void clike_fragment(clike *e, const kins *in, reg r);
void clike_async(clike *e, const kins *in, reg r);
void clike_matrix_functions(const clike *e, str *out);
/* bulk.c: copies in boxes. begin: of a kernel; what it takes and declares for them. copy: false: instruction r is none. wait:
 * false: not for them. */
void clike_bulk_begin(clike *e);
void clike_bulk_arguments(const clike *e, str *out);
void clike_bulk_barriers(const clike *e, str *out);
bool clike_bulk_copy(clike *e, reg r);
/* Before barrier r: what is sent behind it is seen, what was sent has been read. */
void clike_bulk_meet(clike *e, reg r);
bool clike_bulk_wait(clike *e, const kins *in, reg r);
/* Where thread blocks take turns: the loop around the kernel's statements; behind barrier r, what asks for the next part. */
void clike_bulk_turns(const clike *e, const str *body, str *out);
void clike_bulk_again(clike *e, reg r);
void clike_bulk_functions(const clike *e, str *out);
/* memory.c */
bool clike_feeds_contraction(const clike *e, reg r);
void clike_forget_taps(clike *e, reg loop, int copies); /* at the head of a loop that compilers unroll so often */
/* What the load gives is stored as it is in the thread's own memory, and not used besides: the store moves it, as words. */
bool clike_is_kept(const clike *e, const kins *load);
/* The store behind the load copies without a register. */
bool clike_is_async(const clike *e, const kins *load);
/* Bytes of a thread's registers for what instruction r loads at once, if it loads so and no launch writes it; else 0. */
int64_t clike_early_bytes(const clike *e, reg r);
void clike_declare_early(clike *e, reg r, int turns), clike_load_early(clike *e, reg r);
void clike_load(clike *e, const kins *in, reg r);
void clike_store(clike *e, const kins *in);
void clike_scatter(clike *e, const kins *in);
void clike_prefetch(clike *e, const kins *in);

#endif
