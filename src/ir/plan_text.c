/* plan_text.c - prints a plan: buffers with their places, then launches in order (docs/ir.md). */
#include "ir/plan.h"

void plan_print(const plan *p, str *out) {
    static const char *const kinds[] = { "temp", "state", "const", "input", "output", "states" };
    str_addf(out, "plan @%s fusion=%d temp=%lld bound=%lld {\n", p->g->name, p->fusion, (long long)p->temp_bytes,
             (long long)p->temp_bound);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        if (b->bytes == 0 && (b->kind == PB_TEMP || b->kind == PB_CONST)) continue;
        str_addf(out, "  buffer b%d %s %s slot=%d offset=%lld bytes=%lld", i, kinds[b->kind], dtype_name((tn_dtype)b->dtype),
                 b->slot, (long long)b->offset, (long long)b->bytes);
        if (b->kind == PB_TEMP) str_addf(out, " live=%d..%d", b->first, b->last);
        if (b->inplace_of >= 0) str_addf(out, " inplace=b%d", b->inplace_of);
        if (b->panels) str_addf(out, " panels=%lld", (long long)b->panels->width);
        if (b->packed) str_addf(out, " packed=b%d", b->packed);
        str_addf(out, b->node ? " ; %%%u\n" : "\n", b->node);
    }
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        if (pk->barrier) str_add(out, "  barrier\n");
        str_addf(out, "  launch k%d(", pk->code);
        bool first = true;
        for (int b = 0; b < pk->k->bufs.n; b++) {
            if (pk->args[b].buf < 0) continue;
            static const char *const modes[] = { "in", "out", "inout", "local" };
            str_addf(out, "%s%s b%d", first ? "" : ", ", modes[pk->k->bufs.at[b].kind], pk->args[b].buf);
            first = false;
        }
        str_addf(out, ") ; %s\n", pk->k->name);
    }
    str_add(out, "}\n");
}
