/* export.c - a program once more, for a processor that need not be here, as files for a C compiler.
 *
 * In: a program, which keeps its graph. Out: texts and bytes in the caller's arena. Jumps. */
#include "drive/drive.h"

static const drive_processor processors[] = {
    { "native", 0, 0, "-march=native" },
    { "avx512", 64, 32, "-march=x86-64-v4" },
    { "avx2", 32, 16, "-march=x86-64-v3" },
    { "sse2", 16, 16, NULL },
    { "neon", 16, 32, NULL },
    { "scalar", 4, 16, NULL },
};

const drive_processor *drive_find_processor(const char *name) {
    for (size_t i = 0; i < COUNT_OF(processors); i++)
        if (!strcmp(processors[i].name, name ? name : "native")) return &processors[i];
    return NULL;
}

static const drive_processor gpus[] = { { "sm_80", 16, 64, "-arch=sm_80" }, { "sm_90", 16, 64, "-arch=sm_90a" } };

const drive_processor *drive_find_gpu(const char *name) {
    for (size_t i = 0; i < COUNT_OF(gpus); i++)
        if (!strcmp(gpus[i].name, name ? name : "sm_80")) return &gpus[i];
    return NULL;
}

/* A GPU that need not be here: what all have that understand the text. */
static target gpu_target(const export_form *f, const drive_processor *gpu) {
    target t = target_common_gpu();
    t.local_barriers = t.overlaps = t.matrix_units = t.denormals = f->language == GPU_CUDA;
    if (f->language == GPU_OPENCL) {
        t.max_block_threads = 0, t.shared_bytes = 32 << 10, t.buffers = 64; /* the least that OpenCL 1.2 promises */
        return t;
    }
    t.machine = machine_find(gpu->name, true);
    t.shared_most = 99 << 10; /* the least since sm_80 */
    if (strcmp(gpu->name, "sm_90") != 0) return t;
    t.shared_most = 227 << 10, t.l2_bytes = 50 << 20, t.resident_threads = 132 << 10;
    t.cluster = 8, t.clusters = 15;
    return t;
}

/* What the model knows of the machine at hand says little of another one. */
static target target_of(const tn_program *p, const drive_processor *cpu, int threads) {
    target t = p->target;
    if (cpu->vector_bytes)
        t = (target){ .vector_bytes = cpu->vector_bytes,
                      .n_vector_regs = cpu->n_vector_regs,
                      .l1_bytes = 32 << 10,
                      .l2_bytes = 512 << 10,
                      .kind = TARGET_CPU };
    t.threads = threads;
    t.packed = 0, t.bf16_sums = false; /* C has no words for such instructions */
    return t;
}

/* The host may set states where they lie, so there must not be copies of them in another order: of those that runs change there
 * are none, of others where they have no value. */
static bool wants_no_panels(const tn_program *p) {
    for (int i = 0; i < p->n_states; i++)
        if (!p->states[i].given && drive_is_shared(p, i)) return true;
    return false;
}

void drive_export(const tn_program *p, const export_form *f, const drive_processor *cpu, int threads, arena *a,
                  export_files *out) {
    if (p->file.at) guard_fail(a->gd, TN_ERR_UNSUPPORTED, "the program comes from a file, which has its code alone");
    if (!p->plan || (!f->gpu && p->target.kind != TARGET_CPU))
        guard_fail(a->gd, TN_ERR_UNSUPPORTED,
                   "graph @%s: export needs a program for the device cpu, in another mode than immediate", p->graph->name);
    target t = f->gpu ? gpu_target(f, cpu) : target_of(p, cpu, threads);
    tn_compile_opts opts = p->opts;
    t.no_panels = wants_no_panels(p) ? PANELS_NEVER : 0;
    export_form form = *f;
    if (form.isa && cpu->vector_bytes) form.isa = cpu->name; /* the form says only that it shall be machine code */
    if (form.isa && !cpu->vector_bytes) form.isa = p->code;
    if (form.isa) t.packed = p->target.packed, t.bf16_sums = p->target.bf16_sums;
    if (form.isa && cpu->vector_bytes) t.packed = 0, t.bf16_sums = false;
    opts.schedule = NULL; /* it was for another machine */
    opts.threads = threads;
    if (opts.mode == TN_MODE_LOOP) opts.mode = TN_MODE_COMPILED;
    emit_export(pipeline_run(drive_with_values(p, p->graph, a), a, &opts, &t), &form, out);
}
