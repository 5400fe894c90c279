/* export.c - tn_program_export: a program as files for a C compiler. In: a program and options. Out: an object that owns the
 * texts. */
#include "api/api.h"
#include "drive/drive.h"

struct tn_export {
    tn_ctx *ctx;
    guard gd;
    arena arena;
    export_files files;
    const tn_program *p; /* while the call lasts */
    const tn_export_opts *o;
};

static void check_state(const tn_program *p, guard *gd) {
    for (int i = 0; i < p->n_states; i++)
        if (!drive_is_shared(p, i)) return;
    guard_fail(gd, TN_ERR_INVAL,
               "graph @%s changes none of its states, so that it is no training step: add gradients and an optimiser, such as "
               "tn_nn_adam",
               p->graph->name);
}

static const drive_processor *find_processor(const tn_export *x, const export_form *f) {
    const char *name = f->wasm && !x->o->cpu ? "neon" : x->o->cpu; /* vectors of 16 bytes, as WebAssembly has them */
    const char *known = f->gpu ? "sm_80, sm_90" : "native, avx512, avx2, sse2, neon, scalar";
    const drive_processor *cpu = f->gpu ? drive_find_gpu(name) : drive_find_processor(name);
    if (f->gpu && f->language == GPU_OPENCL && name)
        guard_fail(x->arena.gd, TN_ERR_INVAL, "tn_export_opts.cpu: a file for OpenCL is for any device, not for %s", name);
    if (f->wasm && cpu && strcmp(cpu->name, "neon") != 0 && strcmp(cpu->name, "scalar") != 0)
        guard_fail(x->arena.gd, TN_ERR_INVAL, "tn_export_opts.cpu: for WebAssembly neon (its vectors) or scalar, not %s", name);
    if (!cpu) guard_fail(x->arena.gd, TN_ERR_INVAL, "tn_export_opts.cpu: there is no %s (%s)", name, known);
    return cpu;
}

static void set_target(tn_export *x, export_form *f) {
    const tn_export_opts *o = x->o;
    const char *what = o->target ? o->target : "c";
    if (!strcmp(what, "object") || !strcmp(what, "library"))
        f->isa = "", f->archive = *what == 'l';
    else if (!strcmp(what, "wasm"))
        f->wasm = f->freestanding = true;
    else if (!strcmp(what, "cuda") || !strcmp(what, "opencl"))
        f->gpu = true, f->language = !strcmp(what, "cuda") ? GPU_CUDA : GPU_OPENCL;
    else if (strcmp(what, "c") != 0)
        guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.target: there is no %s (c, object, library, cuda, opencl, wasm)",
                   what);
    if (f->isa && o->weights)
        guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.weights: %s has its data inside, so that there is no file %s",
                   f->archive ? "a library" : "an object", o->weights);
    if (f->wasm && o->threads > 1) guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.threads: a page has one");
    if (f->gpu && o->freestanding)
        guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.freestanding: the host's part of a file for %s calls a library", what);
    if (f->gpu && o->threads > 1)
        guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.threads: of a file for %s the device runs all", what);
}

static void export_guarded(void *arg) {
    tn_export *x = arg;
    const tn_export_opts *o = x->o;
    export_form f = { .name = o->name ? o->name : export_name(&x->arena, x->p->graph->name),
                      .weights = o->weights,
                      .header = o->header,
                      .loop = o->train != 0,
                      .freestanding = o->freestanding != 0 };
    set_target(x, &f);
    const drive_processor *cpu = find_processor(x, &f);
    if (!export_is_name(f.name))
        guard_fail(&x->gd, TN_ERR_INVAL,
                   "tn_export_opts.name: \"%s\" cannot begin names of C: a letter, then letters, digits and _, at most 40",
                   f.name);
    if (o->threads < 0 || o->threads > 1024)
        guard_fail(&x->gd, TN_ERR_INVAL, "tn_export_opts.threads: %d; 0 or 1 (none) to 1024 are possible", o->threads);
    if (o->train && x->p->plan) check_state(x->p, &x->gd);
    f.flags = !f.wasm                        ? cpu->flags
              : !strcmp(cpu->name, "scalar") ? "--target=wasm32 -O2 -ffreestanding -nostdlib -Wl,--no-entry"
                                             : "--target=wasm32 -O2 -msimd128 -ffreestanding -nostdlib -Wl,--no-entry";
    drive_export(x->p, &f, cpu, o->threads > 1 ? o->threads : 1, &x->arena, &x->files);
}

tn_status tn_program_export(const tn_program *p, const tn_export_opts *opts, tn_export **out) {
    tn_export_opts o = TN_EXPORT_DEFAULTS;
    err e;
    if (out) *out = NULL;
    if (!p) return TN_ERR_INVAL;
    if (!out) {
        err_set(&e, TN_ERR_INVAL, "tn_program_export: out is NULL");
        return ctx_report(p->ctx, &e);
    }
    if (opts && (opts->struct_size > sizeof o || !opts->struct_size)) {
        err_set(&e, TN_ERR_INVAL, "tn_export_opts.struct_size is %zu; this library knows %zu: start from TN_EXPORT_DEFAULTS",
                opts->struct_size, sizeof o);
        return ctx_report(p->ctx, &e);
    }
    if (opts) memcpy(&o, opts, opts->struct_size);
    tn_export *x = mem_alloc(p->ctx->mem, sizeof *x);
    if (!x) {
        err_set(&e, TN_ERR_NOMEM, "out of memory: an export");
        return ctx_report(p->ctx, &e);
    }
    x->ctx = p->ctx, x->p = p, x->o = &o;
    arena_init(&x->arena, p->ctx->mem, &x->gd);
    tn_status code = api_try(&x->gd, export_guarded, x);
    x->p = NULL, x->o = NULL;
    if (!code) {
        *out = x;
        return TN_OK;
    }
    e = x->gd.err;
    tn_export_free(x);
    return ctx_report(p->ctx, &e);
}

const void *tn_export_data(const tn_export *x, tn_export_part part, size_t *out_size) {
    const void *data = !x                         ? NULL
                       : part == TN_EXPORT_CODE   ? x->files.code.s
                       : part == TN_EXPORT_HEADER ? x->files.header.s
                                                  : (const void *)x->files.weights;
    if (out_size)
        *out_size = !data                      ? 0
                    : part == TN_EXPORT_CODE   ? x->files.code.n
                    : part == TN_EXPORT_HEADER ? x->files.header.n
                                               : x->files.n_weights;
    return data;
}

void tn_export_free(tn_export *x) {
    if (!x) return;
    mem m = x->ctx->mem;
    arena_fini(&x->arena);
    mem_free(m, x, sizeof *x);
}
