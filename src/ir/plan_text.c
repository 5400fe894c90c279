/* plan_text.c - prints a plan (docs/ir.md): values of constants, buffers with their places, the tree of steps, then each kernel
 * once. plan_parse.c reads it back. What states hold at first is not in the text: it belongs to a session. */
#include "ir/plan.h"

static void print_name(const char *s, str *out) {
    str_add(out, "\"");
    for (; *s; s++) str_addf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    str_add(out, "\"");
}

static void print_graph_name(const char *s, str *out) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t n = strlen(s);
    if (n > 0 && n < 256 && strspn(s, plain) == n)
        str_add(out, s);
    else
        print_name(s, out);
}

static void print_bytes(const unsigned char *x, int64_t n, str *out) {
    static const char digit[] = "0123456789abcdef";
    enum { LINE = 56 };
    str_add(out, "x\"");
    for (int64_t i = 0; i < n; i += LINE) {
        char text[2 * LINE];
        size_t m = 0;
        for (int64_t e = i; e < n && e < i + LINE; e++) text[m++] = digit[x[e] >> 4], text[m++] = digit[x[e] & 15];
        if (i) str_add(out, "\n    ");
        str_addn(out, text, m);
    }
    str_add(out, "\"");
}

/* [bufs] Temporaries and constants that nothing uses have no bytes and are left out. */
static const bool *find_shown(const plan *p, arena *a) {
    bool *shown = ARENA_ARRAY(a, bool, p->bufs.n + 1);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        shown[i] = b->bytes > 0 || b->elems > 0 || (b->kind != PB_TEMP && b->kind != PB_CONST);
    }
    for (int i = 0; i < p->kernels.n; i++)
        for (int b = 0; b < p->kernels.at[i].k->bufs.n; b++)
            if (p->kernels.at[i].args[b].buf >= 0) shown[p->kernels.at[i].args[b].buf] = true;
    return shown;
}

static void print_values(const plan *p, const bool *shown, str *out) {
    bool *done = ARENA_ARRAY(out->a, bool, p->g->nodes.n);
    for (int i = 0; i < p->bufs.n; i++) {
        const pbuf *b = &p->bufs.at[i];
        const node *n = graph_get(p->g, b->node);
        if (b->kind != PB_CONST || !shown[i] || !n->data || done[b->node]) continue;
        int64_t elems = graph_elems(p->g, b->node);
        done[b->node] = true;
        str_addf(out, "  value %%%u %s[%lld] = ", b->node, dtype_name((tn_dtype)n->dtype), (long long)elems);
        print_bytes(n->data, elems * (int64_t)dtype_size((tn_dtype)n->dtype), out);
        str_add(out, "\n");
    }
}

static val new_value(const graph *g, val state) {
    int32_t update = graph_get(g, state)->update;
    return update ? g->outputs.at[update - 1].v : 0;
}

static void print_buffer(const plan *p, int i, const pstate *state, str *out) {
    static const char *const kinds[] = { "temp", "state", "const", "input", "output", "states", "window" };
    const pbuf *b = &p->bufs.at[i];
    str_addf(out, "  buffer b%d %s %s[%lld] slot=%d offset=%lld bytes=%lld", i, kinds[b->kind], dtype_name((tn_dtype)b->dtype),
             (long long)b->elems, b->slot, (long long)b->offset, (long long)b->bytes);
    if (b->kind == PB_WINDOW) str_addf(out, " of=b%d", b->window_of);
    if (b->kind == PB_TEMP) str_addf(out, " live=%d..%d", b->first, b->last);
    if (b->inplace_of >= 0) str_addf(out, " inplace=b%d", b->inplace_of);
    if (b->copy) str_add(out, " copy");
    if (b->panels) {
        str_add(out, " panels ");
        kpanels_print(b->panels, out);
    }
    if (b->node) str_addf(out, " ; %%%u", b->node);
    if (b->io >= 0 || state) {
        str_add(out, " ");
        print_name(state ? state->name : p->io.at[b->io].name, out);
    }
    if (state && state->given) str_add(out, " given");
    if (state && new_value(p->g, b->node)) str_addf(out, " = %%%u", new_value(p->g, b->node));
    str_add(out, "\n");
}

static void print_launch(const plan *p, const pkernel *pk, int indent, str *out) {
    static const char *const modes[] = { "in", "out", "inout", "local" };
    bool first = true;
    if (pk->barrier) str_addf(out, "%*sbarrier\n", indent, "");
    str_addf(out, "%*slaunch k%d(", indent, "", pk->code);
    for (int b = 0; b < pk->k->bufs.n; b++) {
        const kbuf *x = &pk->k->bufs.at[b];
        int32_t at = pk->args[b].buf;
        if (at < 0) continue;
        str_addf(out, "%s%s b%d", first ? "" : ", ", modes[x->kind], at);
        if (x->node != p->bufs.at[at].node) str_addf(out, " %%%u", x->node);
        first = false;
    }
    str_addf(out, ") ; %s\n", pk->k->name);
}

static void print_rings(const plan *p, const pstep *x, int indent, str *out) {
    str_addf(out, "%*sloop", indent, "");
    if (x->kind == PSTEP_LOOP) str_add(out, " steps");
    if (x->times) str_add(out, " times="), ext_print(p->params, x->times, false, out);
    if (x->times && x->count >= 0) str_addf(out, " count=b%d", x->count);
    if (x->backward) str_add(out, " backward");
    for (int i = 0; i < x->n_rings; i++) {
        str_addf(out, "%sb%d stride=", i ? ", " : " ring(", x->rings[i].buf);
        ext_print(p->params, x->rings[i].stride, false, out);
    }
    if (x->n_rings) str_add(out, ")");
    if (x->overlaps) str_addf(out, " overlap %d", x->overlaps);
    str_add(out, " {\n");
}

static void print_steps(const plan *p, str *out) {
    VEC(int) open = { 0 };
    for (int i = 0;; i++) {
        for (; open.n && i == pstep_end(p, open.at[open.n - 1]); open.n--) str_addf(out, "%*s}\n", 2 * open.n, "");
        if (i >= p->steps.n) return;
        const pstep *x = &p->steps.at[i], *around = open.n ? &p->steps.at[open.at[open.n - 1]] : NULL;
        if (around && around->kind == PSTEP_BRANCH && i == open.at[open.n - 1] + 1 + around->n_then)
            str_addf(out, "%*s} else {\n", 2 * open.n, "");
        int indent = 2 * open.n + 2;
        if (x->kind == PSTEP_LAUNCH) print_launch(p, &p->kernels.at[x->kernel], indent, out);
        if (x->kind == PSTEP_LOOP || x->kind == PSTEP_REPEAT) print_rings(p, x, indent, out);
        if (x->kind == PSTEP_LEAVE) str_addf(out, "%*sleave unless b%d\n", indent, "", x->cond);
        if (x->kind == PSTEP_BRANCH) str_addf(out, "%*sbranch b%d {\n", indent, "", x->cond);
        if (x->kind != PSTEP_LAUNCH && x->kind != PSTEP_LEAVE) VEC_PUSH(out->a, &open, i);
    }
}

void plan_print_kernels(const plan *p, str *out) {
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].code == i) kernel_print(p->kernels.at[i].k, out);
}

void plan_print(const plan *p, str *out) {
    const pstate **state_of = ARENA_ARRAY(out->a, const pstate *, p->bufs.n + 1);
    const bool *shown = find_shown(p, out->a);
    for (int i = 0; i < p->states.n; i++) state_of[p->states.at[i].buf] = &p->states.at[i];
    str_add(out, "plan @");
    print_graph_name(p->g->name, out);
    str_addf(out, " fusion=%d threads=%d temp=%lld bound=%lld state=%lld shared=%lld const=%lld {\n", p->fusion, p->threads,
             (long long)p->temp_bytes, (long long)p->temp_bound, (long long)p->state_bytes, (long long)p->shared_bytes,
             (long long)p->const_bytes);
    print_values(p, shown, out);
    for (int i = 0; i < p->bufs.n; i++)
        if (shown[i]) print_buffer(p, i, state_of[i], out);
    print_steps(p, out);
    str_add(out, "}\n");
    plan_print_kernels(p, out);
}
