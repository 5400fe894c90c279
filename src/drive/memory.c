/* memory.c - values into the memory of a program's device, in the order in which its kernels read them. */
#include "drive/drive.h"

tn_status drive_upload(const tn_program *p, buffer *to, const pbuf *b, const void *value, err *e) {
    const device_api *api = p->dev->api;
    char *place = b->panels ? api->map(p->dev, to) : NULL;
    if (!b->panels) return api->upload(p->dev, to, (size_t)b->offset, value, (size_t)b->bytes, e);
    if (place) {
        pbuf_fill(b, value, place + b->offset);
        return TN_OK;
    }
    void *bytes = mem_alloc(p->ctx->mem, (size_t)b->bytes);
    if (!bytes) return err_set(e, TN_ERR_NOMEM, "out of memory: %lld bytes of weights in panels", (long long)b->bytes);
    pbuf_fill(b, value, bytes);
    tn_status status = api->upload(p->dev, to, (size_t)b->offset, bytes, (size_t)b->bytes, e);
    mem_free(p->ctx->mem, bytes, (size_t)b->bytes);
    return status;
}

tn_status drive_check_room(const tn_program *p, size_t temp, size_t state, size_t io, err *e) {
    size_t room, total, need = temp + state + io;
    if (!p->dev->api->room) return TN_OK;
    p->dev->api->room(p->dev, &room, &total);
    if (need <= room) return TN_OK;
    return err_set(
        e, TN_ERR_NOMEM,
        "memory of %zu bytes is needed (temporaries %zu, states %zu, inputs and outputs %zu); the device %s has %zu, "
        "of which %zu are free: use smaller batches, or another device",
        need, temp, state, io, p->dev->api->name, total, room);
}
