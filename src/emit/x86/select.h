/* select.h - what the files that turn kernel instructions into operations share. */
#ifndef TN_EMIT_X86_SELECT_H
#define TN_EMIT_X86_SELECT_H

#include "emit/x86/ir.h"

enum { MAX_CHUNKS = 16 };

typedef struct kval { /* a kernel register: n chunks of cl lanes */
    uint8_t t, lanes, cl, n;
    vreg r[MAX_CHUNKS];
} kval;

typedef struct sel_steps {              /* round(x / step) + zero, within [lo, hi] .. */
    float step, high, low, least, most; /* .. is x within [least, most] times high + low, where that is found to be the same */
    tn_dtype to;
    int zero, lo, hi;
    bool found;
} sel_steps;

typedef struct selector {
    xfn *f;
    const kernel *k;
    kval *at;        /* [ins] */
    int64_t *local;  /* [bufs] frame offsets of the local buffers; -1 for the others */
    bool *bcast;     /* [ins] one lane, used by wider instructions */
    bool wide8;      /* some vector has 8-byte lanes: all are split alike */
    int vec;         /* lanes of a chunk at most */
    sel_steps steps; /* the last that were looked at */
    reg load;        /* the one being written */
} selector;

static inline xtype xt(tn_dtype t) {
    t = dtype_reg(t);
    return t == TN_F32 ? XF32 : t == TN_F64 ? XF64 : t == TN_I64 ? XI64 : XI32;
}
static inline bool is_wide(xtype t) { return t == XF64 || t == XI64 || t == XM64; }

/* value_numbering.c */
void x86_open_scope(xfn *f);
void x86_close_scope(xfn *f);
void x86_close_ifs(xfn *f, int n); /* the innermost n */
int x86_full_vl(const xfn *f);
uint64_t x86_value_bits(xtype t, double fv, int64_t iv);
int32_t x86_pool_of(xfn *f, xtype t, uint64_t bits);        /* the same bits in all lanes */
vreg x86_const_at(xfn *f, int32_t pool, bool full, int vl); /* made where it pays */
vreg x86_const_steps(xfn *f, xtype t, int lanes, int64_t first, int64_t stride,
                     int64_t base); /* base + (first + l) * stride in lane l */
xval x86_const_val(xfn *f, xtype t, double fv, int64_t iv);
xval x86_copied(xfn *f, xval x); /* a value of its own of a register that will change */
greg x86_greg(xfn *f, xgreg g);
greg x86_base_of(xfn *f, int buf, const int64_t *local);
xmem x86_address(xfn *f, greg base, affine x, int64_t scale); /* base + scale * x; a value when base is 0 */
greg x86_dynamic(xfn *f, vreg v, xdyn d);                     /* the register that holds d, made where v is known */

/* select.c */
int sel_chunk(const selector *s, int lanes);
kval sel_shaped(const selector *s, xtype t, int lanes);
xval sel_operand(selector *s, reg r, int lanes, int i);

/* memory.c */
void sel_load(selector *s, reg r);
void sel_store(selector *s, const kins *in);
/* select.c: an elementwise op of registers of `lanes` lanes; r: what they are of, or NULL. */
xval sel_combine(selector *s, op_code op, tn_dtype src, int lanes, const reg *r, const xval *x);
void sel_scatter(selector *s, const kins *in);
void sel_prefetch(selector *s, const kins *in);
/* quantise.c: the register whose steps a cast counts, without a division as sel_quantise does; 0: it is another cast. */
reg sel_find_steps(selector *s, const kins *cast);
xval sel_quantise(selector *s, xval x, int n);
/* Where these are all of u8: without the upper bound, for a store that saturates. */
bool sel_saturates(const selector *s);
xval sel_quantise_below(selector *s, xval x, int n);
/* The same of a cast back to f32, perhaps of the byte less a zero point: no integer is made on the way. */
reg sel_find_steps_again(selector *s, const kins *cast, int *out_zero);
xval sel_quantise_again(selector *s, xval x, int zero, int n);

#endif
