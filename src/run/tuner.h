/* tuner.h - what the files of tuning share: the job at hand, and how what was measured is kept. Run half: statuses, texts in
 * the caller's err. */
#ifndef TN_RUN_TUNER_H
#define TN_RUN_TUNER_H

#include "run/run.h"

#define TUNER_GAIN 0.98 /* a schedule is taken below this share of the recipe's time */

typedef struct tuner {
    tn_ctx *ctx;
    tn_tuning *t;
    const tn_tune_opts *opts;
    tn_program *p; /* as the recipes have it */
    tn_session *s;
    tn_session *first; /* another, of one run from the first state: what other schedules are compared with. NULL until needed */
    void **inputs;     /* [p->n_io] */
    double start, seconds;
    bool stopped;
    err *e;
} tuner;

double tuner_left(const tuner *u); /* seconds */
bool tuner_go_on(tuner *u, const char *what);
/* The session's inputs become the tuner's random numbers, made on first use. */
tn_status tuner_bind(tuner *u, tn_session *s);
/* Outputs and states of two sessions, bit by bit. */
tn_status tuner_same(const tuner *u, const tn_session *x, const tn_session *y, bool *out_same);
/* A schedule of a kernel, the kernel it makes and its time join the report; the least time of equal ones stays. *out_kept (may
 * be NULL): the text as long as the report lives. */
tn_status tuner_remember(tuner *u, tuned_kernel *k, const char *steps, const kernel *made, double seconds,
                         const char **out_kept);

/* tune_device.c: devices with memory of their own. Choices are whole programs there, whose kernels the device itself times. */
tn_status tuner_device_estimate(tuner *u);
tn_status tuner_device_kernel(tuner *u, tuned_kernel *k, double budget);

#endif
