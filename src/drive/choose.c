/* choose.c - the device "auto": the graph is planned for every device that is here, and goes where a run should take least.
 *
 * In: a graph, resolved options. Out: a device of the context, and why. A run is counted as a session makes it: inputs that the
 * host holds go to a GPU and outputs come back; states stay. Rates are those of device_rates, so what comes out is good to a
 * factor of two or so, where devices differ by much more. Of equals the CPU. */
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
    plan *p;
} planning;

static tn_status make_plan(planning *x, err *e) {
    if (GUARD_TRY(&x->gd)) {
        x->p = pipeline_run(x->g, &x->a, x->opts, x->t);
        return TN_OK;
    }
    return err_set(e, x->gd.err.code, "%s", x->gd.err.text);
}

/* Threads of a group wait for each other, and for memory, once for each barrier; loops that all of them run repeat it. */
static double meetings(const kernel *k) {
    double n = 0, times[64] = { 1 };
    int depth = 0;
    for (int i = 0; i < k->ins.n; i++) {
        const kins *x = &k->ins.at[i];
        if (x->op == K_LOOP && depth < 63) {
            double turns = x->par == PAR_SERIAL ? ceil((double)(x->hi - x->lo) / (double)x->step) : 1;
            times[depth + 1] = times[depth] * fmax(turns, 1);
            depth++;
        }
        if (x->op == K_END && depth > 0) depth--;
        n += x->op == K_BARRIER || x->op == K_GSUM || x->op == K_GARG ? times[depth] : 0;
    }
    return n;
}

static double kernel_us(const kernel *k, const device_caps *c, double near) {
    const device_rates *r = &c->rates;
    double flops = (double)k->flops, bytes = (double)(k->bytes_read + k->bytes_written);
    if (!c->gpu) {
        double threads = k->par_var >= 0 ? c->threads : 1;
        return (k->par_var >= 0 && c->threads > 1 ? r->launch_us : 0) +
               fmax(flops / (r->flops * threads), bytes / (near * threads));
    }
    double units = fmax((double)c->grid / 1024, 1), busy = fmin((double)k->groups, units);
    double share = fmax(busy, 1) / units; /* of the chip; a few groups reach more of the memory's rate than of arithmetic */
    double work = fmax(flops / (r->flops * share), bytes / (r->bytes * fmin(1, 2 * share)));
    double turns = fmax(1, (double)k->groups / (4 * units));
    return r->launch_us + fmax(work, meetings(k) * turns * r->meet_us);
}

/* Microseconds of a run of the plan, and those of them that go to transfers. */
static double run_us(const plan *p, const device_caps *c, bool loop, double *out_transfer) {
    const device_rates *r = &c->rates;
    double all = (double)p->temp_bytes + (double)p->state_bytes + (double)p->shared_bytes + (double)p->const_bytes;
    double submit = r->submit_us / (loop ? LOOP_STEPS : 1), us = submit;
    *out_transfer = 0;
    for (int i = 0; i < p->io.n; i++) {
        all += (double)p->io.at[i].bytes;
        if (r->link > 0) *out_transfer += submit + (double)p->io.at[i].bytes / r->link;
    }
    double near = all <= (double)c->l2_bytes ? r->near : r->bytes;
    for (int i = 0; i < p->kernels.n; i++) us += kernel_us(p->kernels.at[i].k, c, near);
    return us + *out_transfer;
}

tn_status drive_estimate(mem m, const graph *g, const tn_compile_opts *opts, const device_caps *c, double *out_us,
                         double *out_transfer, err *e) {
    target t = drive_target(c, NULL);
    planning x = { .g = g, .opts = opts, .t = &t };
    arena_init(&x.a, m, &x.gd);
    tn_status st = make_plan(&x, e);
    if (!st) *out_us = run_us(x.p, c, opts->mode == TN_MODE_LOOP, out_transfer);
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
        if (caps.rates.flops <= 0) {
            say(all, "; %s: computes on the processor, too", table[i]->name);
            continue;
        }
        if ((st = drive_estimate(ctx->mem, g, opts, &caps, &us, &transfer, e))) return st;
        say(all, "; %s: about %.3g us a run", table[i]->name, us);
        if (caps.rates.link > 0) say(all, ", %.3g of them transfers", transfer);
        if (us < least) least = us, *out = d;
    }
    if (!*out) return err_set(e, TN_ERR_DEVICE, "no device for \"auto\"%s", all);
    snprintf(reason, WHY_BYTES, "%s%s", (*out)->api->name, all);
    return TN_OK;
}
