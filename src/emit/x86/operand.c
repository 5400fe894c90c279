/* operand.c - kernel registers as chunks of vector registers. */
#include "emit/x86/select.h"

int sel_chunk(const selector *s, int lanes) { return lanes < s->vec ? lanes : s->vec; }

kval sel_shaped(const selector *s, xtype t, int lanes) {
    kval v = { .t = (uint8_t)t, .lanes = (uint8_t)lanes, .cl = (uint8_t)sel_chunk(s, lanes) };
    v.n = (uint8_t)(lanes / v.cl);
    if (v.n > MAX_CHUNKS) {
        x86_unsupported(s->f, "a vector of too many registers");
        v.n = 1;
    }
    return v;
}

xval sel_operand(selector *s, reg r, int lanes, int i) {
    const kval *v = &s->at[r];
    xval x = { v->r[v->n > 1 ? i : 0], (xtype)v->t };
    if (!r || !x.r) {
        x86_unsupported(s->f, "an operand without a value");
        return (xval){ x86_const(s->f, XI32, 0, 0), XI32 };
    }
    if (v->lanes == lanes || lanes == 1) return x;
    if (v->lanes != 1) {
        x86_unsupported(s->f, "operands of different lanes");
        return x;
    }
    return (xval){ x86_broadcast(s->f, x), x.t };
}
