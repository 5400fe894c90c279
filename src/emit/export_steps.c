/* export_steps.c - the steps of a plan as statements of a host: launches, loops and branches in the order of a run.
 *
 * In: an exporter, and how its host says an address, a launch and a value that decides. Out: the body of the function that
 * makes a call, which is one step of a run. */
#include "emit/export.h"

void export_find_ends(exporter *x, int i, int end) {
    for (; i < end; i = pstep_end(x->p, i)) {
        const pstep *s = &x->p->steps.at[i];
        int then = i + 1 + (s->kind == PSTEP_BRANCH ? s->n_then : 0);
        x->region_end[i] = end;
        export_find_ends(x, i + 1, then);
        export_find_ends(x, then, pstep_end(x->p, i));
    }
}

static void print_condition(exporter *x, const export_host *h, int i, int indent, str *out) {
    const pstep *s = &x->p->steps.at[i];
    const char *yes = h->value(x, s->cond, "unsigned char", i, indent, out);
    if (s->kind == PSTEP_LEAVE)
        str_addf(out, "%*sif (!%s) break;\n", indent, "", yes);
    else
        str_addf(out, "%*sif (%s) {\n", indent, "", yes);
}

/* A window is so many strides behind the begin of its buffer as the loop has gone on, or is still to go. */
static void print_window(exporter *x, const export_host *h, int i, const pring *ring, int indent, str *out) {
    str_addf(out, "%*s", indent, "");
    for (const char *c = h->window; *c; c++)
        if (*c == 'A') {
            h->place(x, ring->buf, out);
        } else if (*c == 'B') {
            h->place(x, x->p->bufs.at[ring->buf].window_of, out);
        } else if (*c == 'C') {
            str_addf(out, x->p->steps.at[i].backward ? "(times%d - 1 - step%d) * " : "step%d * ", i, i);
            export_print_ext(ring->stride, out);
        } else {
            str_addn(out, c, 1);
        }
    str_add(out, ";\n");
}

static void print_repeat(exporter *x, const export_host *h, int i, int indent, str *out) {
    const pstep *s = &x->p->steps.at[i];
    if (!s->times) {
        str_addf(out, "%*sfor (;;) {\n", indent, "");
        return;
    }
    str_addf(out, "%*slong long times%d = ", indent, "", i);
    export_print_ext(s->times, out);
    str_add(out, ";\n");
    if (s->count >= 0) {
        const char *count = h->value(x, s->count, "long long", i, indent, out);
        str_addf(out, "%*sif (%s < times%d) times%d = %s;\n", indent, "", count, i, i, count);
    }
    str_addf(out, "%*sfor (long long step%d = 0; step%d < times%d; step%d++) {\n", indent, "", i, i, i, i);
    for (int k = 0; k < s->n_rings; k++) print_window(x, h, i, &s->rings[k], indent + 4, out);
}

static void print_steps(exporter *x, const export_host *h, int i, int end, int indent, str *out) {
    const plan *p = x->p;
    for (int next; i < end; i = next) {
        const pstep *s = &p->steps.at[i];
        int first = i + 1, then = first + s->n_then;
        next = pstep_end(p, i);
        if (s->kind == PSTEP_LAUNCH) {
            while (next < end && p->steps.at[next].kind == PSTEP_LAUNCH) next++;
            h->launches(x, i, next, indent, out);
            continue;
        }
        if (s->kind == PSTEP_LOOP) print_steps(x, h, first, next, indent, out);
        if (s->kind == PSTEP_REPEAT) print_repeat(x, h, i, indent, out);
        if (pstep_is_conditional(s)) print_condition(x, h, i, indent, out);
        if (s->kind == PSTEP_BRANCH) {
            print_steps(x, h, first, then, indent + 4, out);
            str_addf(out, "%*s} else {\n", indent, "");
            first = then;
        }
        if (s->kind != PSTEP_BRANCH && s->kind != PSTEP_REPEAT) continue;
        print_steps(x, h, first, next, indent + 4, out);
        str_addf(out, "%*s}\n", indent, "");
    }
}

void export_print_steps(exporter *x, const export_host *h, int indent, str *out) {
    print_steps(x, h, 0, x->p->steps.n, indent, out);
}
