/* prefetch.c - rows that are read several times come from afar once, and while the later loops work on a row, memory waits:
 * they fetch what the first loop of the next row will read. In and out: tiled form.
 *
 * Applies to a row loop around several loops, in kernels whose operands do not stay in the first cache: from the second one,
 * too, a row takes as long to come as the arithmetic of a norm. */
#include "kopt/kopt.h"

enum { LINE_BYTES = 64, MOST_STREAMS = 4, MOST_LINES = 8 };

typedef struct rows { /* a row loop and the loops directly in it */
    int loop, end;
    int child[16], n;
} rows;

static bool find_rows(const kernel *k, int i, rows *out) {
    *out = (rows){ .loop = i, .end = kopt_loop_end(k, i) };
    if (!k->vars.at[k->ins.at[i].var].row) return false;
    for (int j = i + 1; j < out->end; j++) {
        if (k->ins.at[j].op != K_LOOP) continue;
        if (out->n == (int)COUNT_OF(out->child)) return false;
        out->child[out->n++] = j;
        int end = kopt_loop_end(k, j);
        for (j++; j < end; j++)
            if (k->ins.at[j].op == K_LOOP) return false;
    }
    return out->n >= 2;
}

/* What the loop at i does for one element of a row. */
static double work(const kernel *k, int i) {
    double n = 0;
    int64_t step = k->ins.at[i].step;
    for (; k->ins.at[i].op != K_END; i++) n += k->ins.at[i].op == K_ALU ? op_get((op_code)k->ins.at[i].alu)->flops : 1;
    return n / (double)step;
}

static int longest_after_first(const kernel *k, const rows *r) {
    int best = 1;
    for (int i = 2; i < r->n; i++)
        if (work(k, r->child[i]) > work(k, r->child[best])) best = i;
    return r->child[best];
}

/* Loads of the first loop that start a stream: the first of neighbours. */
static int list_streams(const kernel *k, const rows *r, int *out) {
    const kins *first = &k->ins.at[r->child[0]];
    kvar row = k->ins.at[r->loop].var;
    int n = 0;
    for (int i = r->child[0] + 1; k->ins.at[i].op != K_END; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOAD || in->n_mask || in->dyn || k->bufs.at[in->buf].kind != KB_IN || affine_coef(in->idx, row) <= 0 ||
            affine_coef(in->idx, first->var) != 1)
            continue;
        bool known = n == MOST_STREAMS;
        for (int s = 0; s < n && !known; s++) {
            const kins *x = &k->ins.at[out[s]];
            int64_t apart = in->idx.base - x->idx.base;
            known =
                x->buf == in->buf && apart >= 0 && apart < first->step && affine_equal(affine_offset(x->idx, apart), in->idx);
        }
        if (!known) out[n++] = i;
    }
    return n;
}

/* One iteration of `loop` fetches what the same elements of the next rows lie in. */
static void list_fetches(const kernel *k, const rows *r, int loop, const kins *load, kins *out, int *n) {
    kvar row = k->ins.at[r->loop].var, from = k->ins.at[r->child[0]].var, to = k->ins.at[loop].var;
    int64_t size = (int64_t)dtype_size((tn_dtype)load->src), bytes = k->ins.at[loop].step * size;
    affine next = affine_offset(load->idx, affine_coef(load->idx, row) * k->ins.at[r->loop].step);
    next = affine_set_var(k->a, next, from, affine_var(k->a, to));
    for (int64_t b = 0; b < bytes && *n < MOST_STREAMS * MOST_LINES; b += LINE_BYTES)
        out[(*n)++] = (kins){ .op = K_PREFETCH,
                              .dtype = load->src,
                              .src = load->src,
                              .lanes = 1,
                              .buf = load->buf,
                              .idx = affine_offset(next, b / size),
                              .node = load->node };
}

static void insert(kernel *k, int at, const kins *in, int n) {
    kernel out = { .a = k->a };
    for (int i = 0; i < k->ins.n; i++) {
        kins x = k->ins.at[i];
        x.a += (int)x.a >= at ? (reg)n : 0, x.b += (int)x.b >= at ? (reg)n : 0;
        x.c += (int)x.c >= at ? (reg)n : 0, x.dyn += (int)x.dyn >= at ? (reg)n : 0;
        for (int j = 0; i == at && j < n; j++) VEC_PUSH(k->a, &out.ins, in[j]);
        VEC_PUSH(k->a, &out.ins, x);
    }
    k->ins.at = out.ins.at, k->ins.n = out.ins.n, k->ins.cap = out.ins.cap;
}

void kopt_prefetch(kernel *k, const target *t) {
    if (k->bytes_read + k->bytes_written <= (uint64_t)t->l1_bytes) return;
    for (int i = 1; i < k->ins.n; i++) {
        rows r;
        int streams[MOST_STREAMS], n = 0;
        kins fetches[MOST_STREAMS * MOST_LINES];
        if (k->ins.at[i].op != K_LOOP || !find_rows(k, i, &r)) continue;
        int loop = longest_after_first(k, &r);
        for (int s = 0, n_streams = list_streams(k, &r, streams); s < n_streams; s++)
            list_fetches(k, &r, loop, &k->ins.at[streams[s]], fetches, &n);
        if (n) insert(k, loop + 1, fetches, n);
        i = r.end + n;
    }
}
