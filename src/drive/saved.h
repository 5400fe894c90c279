/* saved.h - a program as a file: a head, tables, machine code, and what its memory holds at first.
 *
 * Only the build of the library that wrote a file reads it, so tables have structures as they are in memory, with 0 in place of
 * pointers and what they point to behind them. Parts of memory (constants, states) begin on pages, to be mapped. */
#ifndef TN_DRIVE_SAVED_H
#define TN_DRIVE_SAVED_H

#include "drive/drive.h"
#include "rt/build_id.h"
#include "rt/file.h"

enum { SAVED_VERSION = 2, SAVED_PAGE = 4096, SAVED_LINE = 64, SAVED_MOST = 1 << 24 /* entries of a table */ };
#define SAVED_MAGIC "TNPROG\r\n"

typedef enum saved_part { SAVED_TABLES, SAVED_CODE, SAVED_CONSTS, SAVED_SHARED, SAVED_VALUES, N_SAVED } saved_part;
typedef struct saved_head {
    char magic[8];
    uint64_t version, bytes; /* of the file */
    hash128 sum;             /* from build to the end of the code */
    char
        boot[BOOT_ID_BYTES]; /* in which the file was written or found whole: it may be lost in part after it; "": it may not */
    unsigned char build[BUILD_ID_BYTES];
    uint64_t rest;              /* saved_rest */
    char code[16], machine[32]; /* device_caps.code; the machine's row, or "" */
    int64_t threads;
    struct {
        uint64_t at, n;
    } part[N_SAVED]; /* in order */
} saved_head;

typedef struct saved_stamp {               /* of a file that the program was made of */
    uint64_t dev, ino, size, mtime, ctime; /* ns */
} saved_stamp;

typedef struct saved_program {
    tn_compile_opts opts; /* without pointers */
    tn_program_stats stats;
    uint64_t scratch, tuned; /* tuned: hash of the tuning database */
    int64_t temp_bytes, temp_bound, state_bytes, shared_bytes, const_bytes;
    int32_t parallel, n_windows, fusion, threads;
    int32_t n_files, n_rows, n_dims, n_bufs, n_kernels, n_steps, n_io, n_states, n_functions, n_imports;
} saved_program;

typedef struct saved_node { /* of an input, output or state; dims follow, and the name of a state or slot */
    uint8_t dtype, rank;
} saved_node;
typedef struct saved_state {
    int32_t buf, given;
    int64_t value; /* in SAVED_VALUES, or -1: it lies in shared memory, or has none */
} saved_state;
typedef struct saved_kernel { /* its name follows */
    int32_t code, barrier, parallel;
    uint64_t bytes_read, bytes_written, flops;
} saved_kernel;

/* Sums the memory behind the code, which only the first to load a file after the machine's start reads as a whole. */
static inline uint64_t saved_rest(uint64_t sum, const void *part, size_t n) { return hash_bytes(part, n, sum); }
uint64_t saved_tuning(const ktuning *t);
bool saved_stamp_of(const char *path, saved_stamp *out); /* false: there is no such file */
/* What a file must be for: *h without sums and sizes. */
tn_status saved_here(device *dev, saved_head *h, err *e);

#endif
