/* sizes.c - values for the symbolic dims of a graph: those of --dim and of the shapes of --input, and for a check some of those
 * that are not given. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 64 /* of what is not given, unless its least size is larger: a check is slow */ };

static void give(dim_sizes *s, const char *name, int64_t size) {
    for (int i = 0; i < s->n; i++)
        if (cli_same_dim(s->size[i].name, name)) s->size[i].size = size, s->given[i] = true;
}

/* Axes that are a dim by itself, of an input whose shape is given. */
static void by_input(cli *c, const tn_graph *g, dim_sizes *s, const char *text) {
    const char *spec;
    char *name = value_split(c, text, &spec);
    value x = value_parse(c, name, spec);
    for (int i = 0; i < tn_ir_n_values(g); i++) {
        tn_ir_value v;
        tn_ir_dim d;
        cli_need(c, tn_ir_get_value(g, i, &v));
        if (strcmp(v.op, "input") || strcmp(v.name, name) || v.shape.rank != x.shape.rank) continue;
        for (int k = 0; k < v.shape.rank; k++)
            if (v.shape.dim[k] < 0 && !tn_ir_get_dim(g, v.shape.dim[k], &d) && d.name) give(s, d.name, x.shape.dim[k]);
    }
    value_free(&x);
    free(name);
}

dim_sizes sizes_of(cli *c, const tn_graph *g) {
    dim_sizes s = { 0 };
    tn_ir_dim d;
    for (int64_t h; (h = tn_ir_dim_handle(g, s.n)); s.n++) {
        if (s.n == SIZES_MOST) cli_fail(c, "the graph has more than %d symbolic dims", SIZES_MOST);
        cli_need(c, tn_ir_get_dim(g, h, &d));
        s.size[s.n].name = d.name;
        s.lo[s.n] = d.lo, s.hi[s.n] = d.hi, s.multiple_of[s.n] = d.multiple_of;
    }
    int at = 0;
    for (const char *text; s.n && (text = cli_next(c, "input", &at));) by_input(c, g, &s, text);
    at = 0;
    for (cli_dim own; s.n && cli_next_dim(c, &at, &own); free(own.name))
        if (!own.is_range) give(&s, own.name, own.lo);
    return s;
}

bool sizes_sample(dim_sizes *s, int turn, uint64_t seed) {
    bool open = false;
    for (int i = 0; i < s->n; i++) {
        if (s->given[i]) continue;
        int64_t lo = s->lo[i], hi = s->hi[i], by = s->multiple_of[i], most = lo > LARGEST ? lo : hi < LARGEST ? hi : LARGEST;
        uint64_t own = seed + 0x51ed2701u * (uint64_t)(i + 1);
        (void)random_next(&own);
        double between = (double)lo + random_unit(&own) * (double)(most - lo);
        /* not all of them least together, then largest: products of two sizes hide a wrong one of them */
        int which = (turn + i) % 3;
        int64_t v = which == 0 ? lo : which == 1 ? most : (int64_t)between;
        s->size[i].size = v / by * by < lo ? lo : v / by * by;
        open = true;
    }
    return turn == 0 || (open && turn < 3);
}

char *sizes_text(const dim_sizes *s) {
    char *text = cli_format("%s", "");
    for (int i = 0; i < s->n; i++) {
        char *more = cli_format("%s%s%s=%lld", text, i ? " " : "", s->size[i].name, (long long)s->size[i].size);
        free(text);
        text = more;
    }
    return text;
}

tn_graph *model_given(cli *c, tn_graph *g) {
    dim_sizes s = sizes_of(c, g);
    int n = 0;
    for (int i = 0; i < s.n; i++) n += s.given[i];
    return n && n == s.n ? model_sized(c, g) : g;
}

tn_graph *model_sized(cli *c, tn_graph *g) {
    dim_sizes s = sizes_of(c, g);
    for (int i = 0; i < s.n; i++)
        if (!s.given[i])
            cli_fail(c, "this command needs all sizes: dim %s is %lld to %lld; give it with --dim %s=SIZE", s.size[i].name,
                     (long long)s.lo[i], (long long)s.hi[i], s.size[i].name);
    if (!s.n) return g;
    tn_graph *at = tn_ir_at(g, s.size, s.n);
    if (!at) cli_fail(c, "%s", tn_ctx_error(c->ctx));
    return at;
}
