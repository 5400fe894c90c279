/* options.c - what a compilation is asked for, with its defaults, and what it has to know of the device. */
#include "drive/drive.h"

tn_status drive_resolve(tn_ctx *ctx, const tn_compile_opts *opts, tn_compile_opts *out) {
    *out = TN_COMPILE_DEFAULTS;
    if (opts) {
        if (opts->struct_size > sizeof *opts || opts->struct_size == 0)
            return err_set(&ctx->err, TN_ERR_INVAL,
                           "tn_compile_opts.struct_size is %zu; this library knows %zu: start from TN_COMPILE_DEFAULTS",
                           opts->struct_size, sizeof *opts);
        memcpy(out, opts, opts->struct_size);
    }
    if (out->mode < TN_MODE_IMMEDIATE || out->mode > TN_MODE_LOOP)
        return err_set(&ctx->err, TN_ERR_INVAL, "unknown mode %d", (int)out->mode);
    if (out->fusion < -1 || out->fusion > 3)
        return err_set(&ctx->err, TN_ERR_INVAL, "fusion level %d; levels are 0 to 3, and -1 for the mode's own", out->fusion);
    if (out->schedule && out->mode == TN_MODE_IMMEDIATE)
        return err_set(&ctx->err, TN_ERR_UNSUPPORTED, "tn_compile_opts.schedule: in immediate mode kernels have no names yet");
    if (out->memory_limit && out->mode == TN_MODE_IMMEDIATE)
        return err_set(&ctx->err, TN_ERR_UNSUPPORTED, "tn_compile_opts.memory_limit: in immediate mode no memory is planned");
    if (out->threads < 0 || out->threads > 1024)
        return err_set(&ctx->err, TN_ERR_INVAL, "%d threads; 0 (all) to 1024 are possible", out->threads);
    if (out->fusion < 0) out->fusion = out->mode == TN_MODE_COMPILED || out->mode == TN_MODE_LOOP ? 3 : 0;
    if (!out->device) out->device = "cpu";
    return TN_OK;
}

/* What measured times depend on besides the kernel, hashed; the number says what choices mean. */
static uint64_t tuning_seed(const device_caps *c) {
    int64_t words[] = {
        1, c->vector_bytes, c->n_vector_regs, c->threads, c->l1_bytes, c->l2_bytes, c->l3_bytes, (int64_t)c->id
    };
    return hash_bytes(words, sizeof words, hash_bytes(c->code, strlen(c->code), 0));
}

target drive_target(const device_caps *c, const ktuning *tuned) {
    return (target){ .vector_bytes = c->vector_bytes,
                     .n_vector_regs = c->n_vector_regs,
                     .threads = c->threads,
                     .l1_bytes = c->l1_bytes,
                     .l2_bytes = c->l2_bytes,
                     .kind = c->gpu ? TARGET_GPU : TARGET_CPU,
                     .block_threads = c->block_threads,
                     .max_block_threads = c->max_block_threads,
                     .shared_bytes = c->shared_bytes,
                     .shared_most = c->shared_most,
                     .resident_threads = c->resident_threads,
                     .buffers = c->buffers,
                     .machine = c->machine,
                     .ghz = c->ghz,
                     .memory_rate = c->memory_rate,
                     .packed = c->packed,
                     .cluster = c->cluster,
                     .clusters = c->clusters,
                     .local_barriers = c->local_barriers,
                     .overlaps = c->overlaps,
                     .denormals = c->denormals,
                     .matrix_units = c->matrix_units,
                     .bulk = c->bulk,
                     .bf16_sums = c->bf16_sums,
                     .tuning = tuned,
                     .tuning_seed = tuning_seed(c) };
}
