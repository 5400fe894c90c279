/* tune.c - public entry points of tuning: argument checks, then src/drive does the work. */
#include "api/api.h"
#include "run/run.h"

tn_status tn_tune(tn_graph *g, const tn_compile_opts *opts, const tn_tune_opts *tune, tn_tuning **out_report) {
    if (!g) return TN_ERR_INVAL;
    tn_ctx *ctx = g->ctx;
    tn_tune_opts t = { 0 };
    if (!out_report) return err_set(&ctx->err, TN_ERR_INVAL, "tn_tune: out_report is NULL");
    *out_report = NULL;
    ctx_enter(ctx);
    if (g->err.code) return api_report(ctx, &g->err);
    if (g->ir->outputs.n == 0)
        return err_set(&ctx->err, TN_ERR_INVAL, "tn_tune: graph @%s has no outputs: use tn_output or tn_assign", g->ir->name);
    if (tune && (tune->struct_size > sizeof t || tune->struct_size == 0))
        return err_set(&ctx->err, TN_ERR_INVAL, "tn_tune_opts.struct_size is %zu; this library knows %zu", tune->struct_size,
                       sizeof t);
    if (tune) memcpy(&t, tune, tune->struct_size);
    if (!(t.seconds >= 0 && t.seconds <= 1e6))
        return err_set(&ctx->err, TN_ERR_INVAL, "tn_tune: %g seconds; 0 (the default) to 1e6 are possible", t.seconds);
    return tune_graph(ctx, g->ir, opts, &t, out_report);
}

void tn_tuning_free(tn_tuning *t) { tune_free(t); }

void tn_tuning_get_summary(const tn_tuning *t, tn_tuning_summary *out) {
    if (out) *out = t ? t->summary : (tn_tuning_summary){ 0 };
}

tn_status tn_tuning_kernel(const tn_tuning *t, int i, tn_tuned_kernel *out) {
    if (!t) return TN_ERR_INVAL;
    err e;
    if (i < 0 || i >= t->n || !out) {
        err_set(&e, TN_ERR_INVAL, "tn_tuning_kernel: kernel %d of %d, out at %p", i, t->n, (void *)out);
        return ctx_report(t->ctx, &e);
    }
    const tuned_kernel *k = &t->kernels[i];
    *out = (tn_tuned_kernel){ .name = k->name,
                              .launches = k->launches,
                              .candidates = k->candidates,
                              .changed = k->changed,
                              .schedule = k->text,
                              .before_us = k->measured ? k->before * 1e6 : 0,
                              .after_us = k->measured ? k->after * 1e6 : 0,
                              .flops = k->flops };
    return TN_OK;
}

tn_status tn_tuning_variant(const tn_tuning *t, int which, int i, tn_tuned_variant *out) {
    if (!t) return TN_ERR_INVAL;
    int n = which >= 0 && which < t->n ? t->kernels[which].variants.n : 0;
    err e;
    if (i < 0 || i >= n || !out) {
        err_set(&e, TN_ERR_INVAL, "tn_tuning_variant: variant %d of %d of kernel %d, out at %p", i, n, which, (void *)out);
        return ctx_report(t->ctx, &e);
    }
    const tuned_kernel *k = &t->kernels[which];
    const tuned_variant *w = &k->variants.at[i];
    *out = (tn_tuned_variant){ w->text, w->form, w->seconds * 1e6, !strcmp(w->schedule, k->recipe),
                               !strcmp(w->schedule, k->schedule) };
    return TN_OK;
}
