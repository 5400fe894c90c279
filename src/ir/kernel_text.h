/* kernel_text.h - the texts of kernel.def, a token at a time: what kernel_text.c prints and kernel_parse.c reads. */
#ifndef TN_IR_KERNEL_TEXT_H
#define TN_IR_KERNEL_TEXT_H

#include "ir/kernel.h"

typedef enum kfield_kind {
    FIELD_REGISTER,
    FIELD_VARIABLE,
    FIELD_WHOLE,
    FIELD_EXT,
    FIELD_PACKED,
    FIELD_IMM,
    FIELD_DTYPE,
    FIELD_OP,
    FIELD_UPDATE,
    FIELD_ALU,
    FIELD_AFFINE,
    FIELD_STEP,
    FIELD_PLACE,
    FIELD_MASKS,
    FIELD_BUFFER
} kfield_kind;
typedef struct kfield {
    const char *name;
    kfield_kind kind;
    size_t at;      /* offset in kins */
    int64_t lo, hi; /* FIELD_WHOLE: range [lo, hi) */
    const char *what;
} kfield;

typedef enum ktoken_kind {
    TOKEN_END,
    TOKEN_WORD, /* or signs */
    TOKEN_FIELD,
    TOKEN_MODE, /* text: what stands between < and > */
    TOKEN_OPEN,
    TOKEN_CLOSE
} ktoken_kind;
typedef struct ktoken {
    ktoken_kind kind;
    char text[64];
    const kfield *field;
    const char *next;
} ktoken;

/* The token at `at`, which ends at out->next: where the one behind it is. */
ktoken ktoken_at(const char *at);
/* The word of mode n, or NULL when there are not so many. */
const char *kmode_word(const ktoken *modes, int n, char *out, size_t size);
/* The first field behind a TOKEN_OPEN's `next`. */
const kfield *kfield_first(const char *open);
/* Where what [..] begins with is there or not by fields that stand before it, 1 or 0; else -1. */
int kfield_implied(const kins *in, const kfield *f);

#endif
