/* decide.c - what the scheduler writes down: decisions for explain, and the buffers of values. */
#include "sched/sched.h"

bool sched_decide(sched *s, val v, val user, bool fused, const char *reason) {
    VEC_PUSH(s->a, &s->p->decisions, (why){ v, user, fused, reason });
    return fused;
}

int32_t sched_add_buf(sched *s, pbuf_kind kind, val v, int slot, int64_t *fill) {
    const node *n = graph_get(s->g, v);
    pbuf b = {
        .kind = kind, .node = v, .dtype = n->dtype, .elems = graph_elems(s->g, v), .slot = slot, .inplace_of = -1, .io = -1
    };
    b.bytes = b.elems * (int64_t)dtype_size((tn_dtype)n->dtype);
    if (fill) {
        b.offset = *fill;
        *fill += plan_room(b.bytes);
    }
    VEC_PUSH(s->a, &s->p->bufs, b);
    s->buf_of[v] = s->p->bufs.n - 1;
    return s->p->bufs.n - 1;
}
