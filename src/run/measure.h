/* measure.h - several ways to do one kernel of a program, run on the memory of a session: timed in turns, and compared bit by
 * bit. Run half: statuses, texts in the caller's err. One thread at a time. */
#ifndef TN_RUN_MEASURE_H
#define TN_RUN_MEASURE_H

#include "run/run.h"

/* Random numbers for a typed array: floats within [-1, 1), integers from 0 to 7, both of bool. */
void measure_fill(void *data, tn_dtype t, int64_t n, uint64_t seed);
/* Equal in every bit; NaN meets NaN. */
bool measure_same(const void *x, const void *y, tn_dtype t, int64_t n);

typedef struct piece { /* one buffer of the kernel */
    char *at;
    tn_dtype dtype;
    int64_t elems, bytes;
    bool written;
    char *want; /* written ones: after way 0 */
} piece;

typedef struct measure {
    tn_session *s;
    int n; /* ways */
    module *module;
    buffer *consts, *scratch;
    list **lists; /* [n] each way, `repeats` times */
    int repeats;
    piece *pieces;
    int n_pieces, room;
    bool in_place; /* reads what it writes: a repeated run does not do the same work */
} measure;

/* code has the entries tn_kernel_0 to tn_kernel_<n - 1>, which find constants where `what` has them and everything else where
 * the program's plan has it. The session's inputs are bound. Whatever the kernel touches is overwritten, but not what is fixed.
 * Call measure_close whatever comes back. */
tn_status measure_open(measure *m, tn_session *s, int which, const plan *what, const drive_code *code, const bool *parallel,
                       int n, int repeats, err *e);
void measure_close(measure *m);
/* Seconds of one launch. */
tn_status measure_time(measure *m, int variant, double *out_seconds, err *e);
/* Whether a way writes what way 0 writes: call it for way 0 first. */
tn_status measure_check(measure *m, int variant, bool *out_same, err *e);

#endif
