/* plan.c - tn_ir_plan_text: the text of a plan, read, checked and printed at another stage. In: any bytes. Out: a text. */
#include "api/api.h"
#include "tenon/tenon_ir.h"

#include "emit/emit.h"
#include "ir/plan.h"

typedef struct job {
    arena *a;
    const char *text, *file, *stage;
    size_t n;
    str out;
    bool known;
} job;

static void check(const plan *p) {
    str problems;
    str_init(&problems, p->a);
    int n = 0;
    for (int i = 0; i < p->kernels.n; i++) n += kernel_check(p->kernels.at[i].k, &problems);
    if (!n) n = plan_check(p, &problems); /* which relies on kernels */
    if (n) guard_fail(p->a->gd, TN_ERR_INVAL, "%d problem%s of the plan:\n%s", n, n > 1 ? "s" : "", problems.s);
}

static void make_text(void *arg) {
    job *j = arg;
    const plan *p = plan_parse(j->a, j->text, j->n, j->file);
    check(p);
    bool cuda = !strcmp(j->stage, "cuda"), opencl = !strcmp(j->stage, "opencl");
    str_init(&j->out, j->a);
    j->known = true;
    if (!strcmp(j->stage, "plan"))
        plan_print(p, &j->out);
    else if (!strcmp(j->stage, "deps"))
        plan_print_deps(p, &j->out);
    else if (!strcmp(j->stage, "kernels"))
        plan_print_kernels(p, &j->out);
    else if ((cuda || opencl) && plan_is_for_gpus(p))
        emit_gpu(p, cuda ? GPU_CUDA : GPU_OPENCL, &j->out);
    else
        j->known = false;
}

tn_status tn_ir_plan_text(tn_ctx *ctx, const char *text, size_t n, const char *file, const char *stage, char **out_text) {
    guard gd;
    arena a;
    err e = { 0 };
    if (!ctx) return TN_ERR_INVAL;
    if (out_text) *out_text = NULL;
    if (!text || !stage || !out_text) {
        err_set(&e, TN_ERR_INVAL, "tn_ir_plan_text: text, stage or out_text is NULL");
        return api_report(ctx, &e);
    }
    arena_init(&a, ctx->mem, &gd);
    job j = { .a = &a, .text = text, .n = n, .file = file ? file : "plan", .stage = stage };
    if (api_try(&gd, make_text, &j))
        e = gd.err;
    else if (!j.known)
        err_set(&e, TN_ERR_INVAL,
                "tn_ir_plan_text: no stage \"%s\" of this plan; stages are plan, deps, kernels, and for GPUs opencl, cuda",
                stage);
    else if (!(*out_text = mem_strdup(ctx->mem, j.out.s)))
        err_set(&e, TN_ERR_NOMEM, "out of memory: a text of %zu bytes", j.out.n);
    arena_fini(&a);
    return e.code ? api_report(ctx, &e) : TN_OK;
}
