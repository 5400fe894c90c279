/* row_contraction.c - finds contractions inside a row. In: scalar form whose rows are its outer loops. Out: row_contraction.h.
 */
#include "loop/row_contraction.h"
#include "machine/machine.h"

#include <math.h>
#include <stdlib.h>

static bool is_pure(const kins *in) {
    return in->op == K_CONST || in->op == K_INDEX || in->op == K_LOAD || in->op == K_ALU || in->op == K_CAST ||
           in->op == K_BITCAST || in->op == K_WRAP;
}

static bool inside(const kins *in, int from) { /* its operands come from there */
    const reg r[] = { in->a, in->b, in->c, in->dyn };
    for (size_t i = 0; i < COUNT_OF(r); i++)
        if (r[i] && (int)r[i] < from) return false;
    return true;
}

static bool find_sum(const kernel *k, row_contraction *c) {
    const kins *in = &k->ins.at[c->inner];
    c->last = kernel_loop_end(k, c->inner);
    if (c->last != c->inner + 4 || !k->vars.at[in->var].reduce || in->lo != 0 || in->hi < 1) return false;
    c->load[0] = c->inner + 1, c->load[1] = c->inner + 2, c->update = c->inner + 3;
    const kins *x = in + 1, *y = in + 2, *upd = in + 3;
    if (x->op != K_LOAD || y->op != K_LOAD || x->dyn || y->dyn || x->n_mask || y->n_mask) return false;
    if (upd->op != K_UPD || upd->alu != OP_dot || (int)upd->c != c->acc) return false;
    c->depth = in->hi;
    return ((int)upd->a == c->load[0] && (int)upd->b == c->load[1]) || ((int)upd->a == c->load[1] && (int)upd->b == c->load[0]);
}

enum { LINE = MACHINE_GPU_LINE_BYTES };

double row_lines(const int64_t apart[2], int split_k) {
    double columns = 32.0 / split_k, along = fmin((double)(split_k * ROW_SUMS) * (double)apart[1] / LINE, split_k),
           across = fmin(columns * (double)apart[0] / LINE, columns);
    return fmax(along, 1) * fmax(across, 1);
}

/* The operand in memory that is read in most lines. */
static void find_distances(const kernel *k, row_contraction *c) {
    kvar v[2] = { k->ins.at[c->loop].var, k->ins.at[c->inner].var };
    for (int l = 0; l < 2; l++) {
        const kins *in = &k->ins.at[c->load[l]];
        int64_t apart[2], size = (int64_t)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype);
        for (int i = 0; i < 2; i++) apart[i] = llabs(affine_coef(in->idx, v[i])) * size;
        if (k->bufs.at[in->buf].kind == KB_LOCAL || row_lines(apart, 1) < row_lines(c->apart, 1)) continue;
        c->apart[0] = apart[0], c->apart[1] = apart[1];
    }
}

bool row_contraction_find(const kernel *k, int n_rows, int i, row_contraction *out) {
    const kins *loop = &k->ins.at[i];
    if (loop->op != K_LOOP || k->vars.at[loop->var].reduce || loop->lo != 0 || loop->hi < 1) return false;
    row_contraction c = { .loop = i, .end = kernel_loop_end(k, i), .n = loop->hi };
    bool stores = false;
    for (int j = i + 1; j < c.end; j++) {
        const kins *in = &k->ins.at[j];
        if (!inside(in, i)) return false;
        if (in->op == K_ACC && !c.acc) {
            c.acc = j;
        } else if (in->op == K_LOOP && c.acc && !c.inner) {
            c.inner = j;
            if (!find_sum(k, &c)) return false;
            j = c.last;
        } else if (in->op == K_STORE && c.inner && in->n_mask == 0) {
            stores = true;
            for (int l = 0; l < 2; l++)
                if (k->ins.at[c.load[l]].buf == in->buf) return false;
        } else if (!is_pure(in)) {
            return false;
        }
    }
    if (!stores) return false;
    c.common = row_common_bytes(k, n_rows, c.loop, c.end);
    find_distances(k, &c);
    *out = c;
    return true;
}

double row_common_bytes(const kernel *k, int n_rows, int from, int to) {
    double sum = 0;
    int open[64], depth = 0;
    for (int i = 1; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth < 64) open[depth++] = i;
        if (in->op == K_END && depth > 0) depth--;
        if (i < from || in->op != K_LOAD || k->bufs.at[in->buf].kind == KB_LOCAL) continue;
        double n = in->dyn ? (double)in->dyn_n : 1, loads = 1;
        bool own = false;
        for (int d = 0; d < depth; d++) {
            kvar v = k->ins.at[open[d]].var;
            if (d >= n_rows && open[d] >= from) loads *= (double)k->vars.at[v].extent;
            if (affine_coef(in->idx, v) == 0 || (d >= n_rows && open[d] < from)) continue;
            own |= d < n_rows;
            n *= (double)k->vars.at[v].extent;
        }
        if (in->dyn && n > loads) n = loads; /* of a table, a row reads what it looks up */
        if (!own) sum += n * (double)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype);
    }
    return sum;
}

/* Contractions from instruction i on that fill [i, end). */
static bool find_some(const kernel *k, int n_rows, int i, int end, row_layers *out) {
    for (row_contraction c; i < end; i = c.end + 1) {
        if (!row_contraction_find(k, n_rows, i, &c)) return false;
        VEC_PUSH(k->a, &out->c, c);
    }
    return true;
}

/* Instructions that are masked by which iteration of loop v it is: loads of later iterations could not be told. */
static bool is_masked_by(const kernel *k, int from, int to, kvar v) {
    for (int i = from; i < to; i++)
        for (int m = 0; m < k->ins.at[i].n_mask; m++)
            if (affine_coef(k->ins.at[i].mask[m].e, v)) return true;
    return false;
}

void row_layers_find(const kernel *k, int n_rows, row_layers *out) {
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_LOOP) continue;
        row_section s = { .loop = i, .end = kernel_loop_end(k, i), .first = out->c.n, .var = -1, .times = 1 };
        bool found = find_some(k, n_rows, i, s.end + 1, out);
        if (!found && in->lo == 0 && in->hi > 0 && !is_masked_by(k, i + 1, s.end, in->var) &&
            (found = find_some(k, n_rows, i + 1, s.end, out)))
            s.var = in->var, s.times = in->hi;
        s.n = out->c.n - s.first;
        if (found && s.n)
            VEC_PUSH(k->a, &out->sections, s);
        else
            out->c.n = s.first;
        i = s.end;
    }
}

bool row_layers_are_free(const kernel *k, int n_rows, const row_layers *l) {
    int start = 1 + n_rows, next = 0;
    for (int i = start; i < k->ins.n - n_rows; i++) {
        if (next < l->sections.n && i == l->sections.at[next].loop) {
            i = l->sections.at[next++].end;
            start = i + 1;
        } else if (!inside(&k->ins.at[i], start)) {
            return false;
        }
    }
    return true;
}
