/* plan_deps.c - prints why launches stand in their order: by data (one reads what the other wrote) or by control (one writes a
 * place that the other reads or wrote before: a state that is updated after its old value was used, memory that is used again).
 * In: a plan with places. Out: text; of each launch, the latest ones that it must come after. */
#include "ir/plan.h"

typedef struct touch {
    const pbuf *buf;
    bool reads, writes;
} touch;

static touch touch_of(const plan *p, const pkernel *pk, int b) {
    if (pk->args[b].buf < 0) return (touch){ 0 };
    uint8_t kind = pk->k->bufs.at[b].kind;
    return (touch){ &p->bufs.at[pk->args[b].buf], kind != KB_OUT, kind != KB_IN };
}

static bool overlap(const pbuf *x, const pbuf *y) {
    return x->slot == y->slot && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}
static bool covers(const touch *x, const pbuf *y) {
    return x->writes && x->buf->slot == y->slot && x->buf->offset <= y->offset &&
           x->buf->offset + x->buf->bytes >= y->offset + y->bytes;
}

/* What launch j says about x of a later launch; *over: what is before j does not matter any more. */
static void print_edge(const plan *p, int j, const touch *x, bool *over, const char **between, str *out) {
    const pkernel *pk = &p->kernels.at[j];
    const pbuf *buf = NULL;
    bool data = false, written = false;
    for (int b = 0; b < pk->k->bufs.n; b++) {
        touch y = touch_of(p, pk, b);
        if (!y.buf || !overlap(x->buf, y.buf) || !(y.writes || x->writes)) continue;
        if (!buf || (y.writes && x->reads)) buf = y.buf;
        data |= y.writes && x->reads, written |= y.writes;
        *over |= covers(&y, x->buf);
    }
    if (!buf) return;
    str_addf(out, "%s %s %d", *between, data ? "data" : "control", j);
    if (data)
        str_addf(out, " (%%%u)", buf->node);
    else
        str_addf(out, " (%%%u is %s before)", buf->node, written ? "written" : "read");
    *between = ",";
}

void plan_print_deps(const plan *p, str *out) {
    str_addf(out, "deps @%s {\n", p->g->name);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        const char *between = " after";
        str_addf(out, "  %d %s", i, pk->k->name);
        for (int b = 0; b < pk->k->bufs.n; b++) {
            touch x = touch_of(p, pk, b);
            bool over = !x.buf;
            for (int j = i - 1; j >= 0 && !over; j--) print_edge(p, j, &x, &over, &between, out);
        }
        str_add(out, "\n");
    }
    str_add(out, "}\n");
}
