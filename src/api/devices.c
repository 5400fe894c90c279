/* devices.c - the public view of the table of devices: opens one, asks it what it is, closes it. */
#include "api/api.h"

int tn_device_count(void) {
    int n;
    device_table(&n);
    return n;
}

const char *tn_device_name(int i) {
    int n;
    const device_api *const *table = device_table(&n);
    return i < 0 || i >= n ? NULL : table[i]->name;
}

tn_status tn_device_get_info(tn_ctx *ctx, int i, tn_device_info *out) {
    if (!ctx) return TN_ERR_INVAL;
    err e = { 0 };
    int n;
    const device_api *const *table = device_table(&n);
    if (i < 0 || i >= n || !out) {
        err_set(&e, TN_ERR_INVAL, "tn_device_get_info: device %d of %d, or out is NULL", i, n);
        return api_report(ctx, &e);
    }
    device_opts o = { .mem = ctx->mem, .compiler = ctx->compiler, .cpu = ctx->cpu, .log = ctx->log, .log_ud = ctx->log_ud };
    device *d;
    *out = (tn_device_info){ 0 }; /* who it is, also when it is not there */
    memcpy(out->name, table[i]->name, strlen(table[i]->name) + 1);
    if (table[i]->open(&o, &d, &e)) return api_report(ctx, &e);
    device_caps caps = { 0 };
    (table[i]->describe ? table[i]->describe : table[i]->get_caps)(d, &caps);
    table[i]->close(d);
    *out = (tn_device_info){ .threads = caps.threads,
                             .vector_bytes = caps.vector_bytes,
                             .l1_bytes = caps.l1_bytes,
                             .l2_bytes = caps.l2_bytes,
                             .l3_bytes = caps.l3_bytes };
    memcpy(out->name, caps.name, sizeof caps.name);
    memcpy(out->detail, caps.detail, sizeof caps.detail);
    memcpy(out->isa, caps.isa, sizeof caps.isa);
    return TN_OK;
}
