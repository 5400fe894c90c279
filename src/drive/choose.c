/* choose.c - the device "auto": the graph is planned for every device that is here, and goes where a run should take least.
 *
 * In: a graph, resolved options. Out: a device of the context, and why. A run is counted as a session makes it: inputs that the
 * host holds go to a GPU and outputs come back; states stay. What kernels take is what the cost model says (machine/cost.h). Of
 * equals the CPU. */
#include "drive/drive.h"

#include <math.h>
#include <stdio.h>

enum { LOOP_STEPS = 100 /* that a call of mode loop is taken to have */ };

typedef struct planning { /* for one device */
    const graph *g;
    const tn_compile_opts *opts;
    const target *t;
    arena a;
    guard gd;
    double us, transfer; /* of a run; of these, for transfers */
} planning;

/* Microseconds of a run of the plan, and those of them that go to transfers. */
static double run_us(const plan *p, const machine *m, bool loop, arena *a, double *out_transfer) {
    double submit = m->submit_ns / (loop ? LOOP_STEPS : 1), ns = submit;
    cost *each = ARENA_ARRAY(a, cost, p->kernels.n + 1);
    *out_transfer = 0;
    for (int i = 0; i < p->io.n && m->link > 0; i++) *out_transfer += (submit + (double)p->io.at[i].bytes / m->link) * 1e-3;
    cost_plan(p, m, a, each);
    for (int i = 0; i < p->kernels.n; i++) ns += each[i].ns;
    return ns * 1e-3 + *out_transfer;
}

static tn_status price(planning *x, err *e) {
    if (GUARD_TRY(&x->gd)) {
        const plan *p = pipeline_run(x->g, &x->a, x->opts, x->t);
        machine m = machine_of(x->t);
        x->us = run_us(p, &m, x->opts->mode == TN_MODE_LOOP, &x->a, &x->transfer);
        return TN_OK;
    }
    return err_set(e, x->gd.err.code, "%s", x->gd.err.text);
}

tn_status drive_estimate(mem m, const graph *g, const tn_compile_opts *opts, const device_caps *c, double *out_us,
                         double *out_transfer, err *e) {
    target t = drive_target(c, NULL);
    planning x = { .g = g, .opts = opts, .t = &t };
    arena_init(&x.a, m, &x.gd);
    tn_status st = price(&x, e);
    *out_us = x.us, *out_transfer = x.transfer;
    arena_fini(&x.a);
    return st;
}

enum { ALL_BYTES = WHY_BYTES - 16 };

static void PRINTF_LIKE(2, 3) say(char *text, const char *fmt, ...) {
    size_t n = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, ALL_BYTES - n, fmt, ap);
    va_end(ap);
}

tn_status drive_choose(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, device **out, char *reason, err *e) {
    int n;
    const device_api *const *table = device_table(&n);
    double least = INFINITY;
    char all[ALL_BYTES] = "";
    *out = NULL;
    for (int i = 0; i < n; i++) {
        device *d;
        device_caps caps;
        double us, transfer;
        err missing = { 0 };
        if (!strcmp(table[i]->name, "null")) continue;
        tn_status st = ctx_device(ctx, table[i]->name, opts->threads, &d, &missing);
        if (st == TN_ERR_DEVICE) {
            size_t words = strcspn(missing.text, ":;\n"); /* the first of them */
            say(all, "; %s: %.*s", table[i]->name, (int)(words < 60 ? words : 60), missing.text);
            continue;
        }
        if (st) return err_set(e, st, "%s", missing.text);
        d->api->get_caps(d, &caps);
        if (!caps.machine) {
            say(all, "; %s: computes on the processor, too", table[i]->name);
            continue;
        }
        st = drive_estimate(ctx->mem, g, opts, &caps, &us, &transfer, &missing);
        if (st == TN_ERR_UNSUPPORTED) { /* such as symbolic dims on a GPU */
            say(all, "; %s: %.60s", table[i]->name, missing.text);
            continue;
        }
        if (st) return err_set(e, st, "%s", missing.text);
        say(all, "; %s: about %.3g us a run", table[i]->name, us);
        if (caps.machine->link > 0) say(all, ", %.3g of them transfers", transfer);
        if (us < least) least = us, *out = d;
    }
    if (!*out) return err_set(e, TN_ERR_DEVICE, "no device for \"auto\"%s", all);
    snprintf(reason, WHY_BYTES, "%s%s", (*out)->api->name, all);
    return TN_OK;
}
