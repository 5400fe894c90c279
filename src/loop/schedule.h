/* schedule.h - a schedule: how a kernel runs, as a list of steps, and as text.
 *
 *     schedule @matmul {
 *       hoist
 *       vectorize j1 16
 *       unroll_jam j1 3; unroll_jam i0 8
 *       pack b1 k2 256 tiles=2
 *       parallel nb
 *       tile
 *     }
 *
 * Steps stand on lines of their own or between semicolons; # begins a comment. steps.def lists them. A step that is not
 * possible is refused with a reason, and leaves the kernel as it is.
 *
 * A kernel that goes by blocks of rows has a list of steps for each nest in a block:
 *
 *     schedule @chain {
 *       parallel rb0
 *       nests {
 *         { hoist; vectorize i2 16; unroll_jam r1 8; tile }
 *         { hoist; vectorize r6 16; tile }
 *       }
 *       multiply_add
 *     } */
#ifndef TN_LOOP_SCHEDULE_H
#define TN_LOOP_SCHEDULE_H

#include "ir/kernel.h"
#include "ir/target.h"

typedef enum step_op {
    STEP_NONE,
#define STEP(name, args, order, form, devices, text) STEP_##name,
#include "loop/steps.def"
#undef STEP
    STEP_COUNT
} step_op;
typedef enum step_order { STEP_EXACT, STEP_ORDER } step_order;
typedef enum step_form {
    FORM_SCALAR = 1,
    FORM_TILED = 2,
    FORM_BLOCKS = 4
} step_form; /* of a kernel; a step may take several */
typedef enum step_devices { STEP_CPU = 1, STEP_GPU = 2, STEP_ANY = STEP_CPU | STEP_GPU } step_devices;
typedef struct step_info {
    const char *name, *args, *text;
    step_order order;
    int forms;
    step_devices devices; /* whose schedules may have it */
} step_info;
const step_info *step_get(step_op op);

typedef enum step_arg_kind { ARG_WORD, ARG_NUMBER, ARG_OPTION } step_arg_kind;
typedef struct step_arg {
    uint8_t kind;
    char word[15]; /* a loop, a buffer, a flag; of an option: its key */
    int64_t n;
} step_arg;
enum { STEP_MOST_ARGS = 16 };
typedef struct loop_step {
    uint8_t op; /* step_op */
    int n, n_nests;
    const step_arg *arg;         /* [n] */
    const struct schedule *nest; /* nests: [n_nests], their steps */
} loop_step;
typedef struct schedule {
    const char *name; /* of its kernel; NULL: of a nest */
    VEC(loop_step) steps;
} schedule;

/* Reads one step, or all schedules of a text. Jump with TN_ERR_PARSE and a place. */
loop_step step_parse(arena *a, const char *text);
typedef struct schedule_list {
    VEC(schedule) at;
} schedule_list;
void schedule_parse(arena *a, const char *text, size_t n, const char *file, schedule_list *out);
const schedule *schedule_find(const schedule_list *list, const char *name);

/* Steps without a name and braces, which are all of the text; and as one line. */
schedule schedule_parse_steps(arena *a, const char *text, size_t n, const char *file);
void schedule_print_steps(const schedule *s, str *out);

/* The steps of its nests; NULL: it has none. */
const schedule *schedule_nests(const schedule *s);

void step_print(const loop_step *s, str *out);
void schedule_print(const schedule *s, str *out);

/* Does one step to the kernel *k, which may become another one. Returns false, with the reason in *why and *k as it was, where
 * that is not possible. */
bool step_apply(kernel **k, const loop_step *s, str *why);

/* All steps. False, with the reason in *why and *k in any state: one is refused, or at last *k is not tiled or not sound. */
bool schedule_try(kernel **k, const schedule *s, str *why);
/* same_bits.c: whether y, of which no step is refused, gives x's bits: false says what may change them. k: the scalar form. */
bool schedule_same_bits(const kernel *k, const schedule *x, const schedule *y, str *why);
/* The kernel that all steps make. Jumps with TN_ERR_INVAL where one is refused, or where the last leaves a kernel that is not
 * in the target's form, needs more than the target has, or is not sound. *out (may be NULL): s. */
kernel *schedule_apply(kernel *k, const schedule *s, const target *t, const schedule **out);

/* ---- for the files of the steps ---- */

/* The argument's loop variable; -1, with the reason, where the kernel has none of that name. */
kvar step_loop(const kernel *k, const loop_step *s, int arg, str *why);
int step_buf(const kernel *k, const loop_step *s, int arg, str *why);
/* The option's number, or `none` where the step has no such option. */
int64_t step_option(const loop_step *s, const char *key, int64_t none);
bool step_flag(const loop_step *s, const char *word);
/* The instruction that opens variable v's only loop; 0 where there is none or there are several. */
int step_find_loop(const kernel *k, kvar v);
/* *why = the text; false. */
bool step_refuse(str *why, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* vectorize.c: whether iterations of loop v must run one after the other; *why says so. */
bool loop_keeps_order(const kernel *k, kvar v, str *why);
/* The same: whether the sum over reduction v has parts along another loop of it already; tile.c knows parts along one. */
bool loop_splits_sum(const kernel *k, kvar v, str *why);

#define STEP(name, args, order, form, devices, text) bool step_##name(kernel **k, const loop_step *s, str *why);
#include "loop/steps.def"
#undef STEP

#endif
