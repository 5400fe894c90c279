/* nontemporal.c - results that are larger than the caches are written past them: what they hold stays, and lines that are
 * written whole are not read first. In and out: tiled form.
 *
 * Applies to results of which a kernel writes each element once, and whole lines at a time. */
#include "loop/schedule.h"
#include "machine/machine.h"

static uint64_t size_of(const kernel *k, const kins *store) { return dtype_size((tn_dtype)k->bufs.at[store->buf].dtype); }

static bool adds_to(const kernel *k, int buf) {
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_SCATTER && k->ins.at[i].buf == buf) return true;
    return false;
}

/* Whether the loops around instruction i all move it, by multiples of `elems` elements. */
static bool moves_in_steps(const kernel *k, int i, int64_t elems) {
    int depth = 0;
    for (int j = i - 1; j > 0; j--) {
        const kins *loop = &k->ins.at[j];
        depth += loop->op == K_END ? 1 : loop->op == K_LOOP ? -1 : 0;
        if (loop->op != K_LOOP || depth >= 0) continue;
        depth = 0;
        int64_t by = affine_coef(k->ins.at[i].idx, loop->var);
        if (by == 0 ? loop->hi - loop->lo > loop->step : by * loop->step % elems || by * loop->lo % elems) return false;
    }
    return true;
}

/* The elements of the line at instruction i that are written in the same straight line of code. */
static int64_t written_nearby(const kernel *k, int i, int64_t elems) {
    const kins *in = &k->ins.at[i];
    int64_t n = 0;
    int from = i;
    while (from > 1 && k->ins.at[from - 1].op != K_LOOP && k->ins.at[from - 1].op != K_END) from--;
    for (int j = from; j < k->ins.n && k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++) {
        const kins *x = &k->ins.at[j];
        if (x->op == K_STORE && x->buf == in->buf && x->lane_stride == 1 && x->idx.base / elems == in->idx.base / elems &&
            affine_equal(affine_offset(x->idx, in->idx.base - x->idx.base), in->idx))
            n += x->lanes;
    }
    return n;
}

static bool is_nontemporal(const kernel *k, int i, int64_t vector_bytes) {
    const kins *in = &k->ins.at[i];
    int64_t size = (int64_t)size_of(k, in), line = MACHINE_LINE_BYTES / size;
    return size >= 4 && in->lane_stride == 1 && in->lanes * size >= 16 && in->lanes * size <= vector_bytes && !in->n_mask &&
           in->idx.base >= 0 && in->idx.base % in->lanes == 0 && moves_in_steps(k, i, line) &&
           written_nearby(k, i, line) == line;
}

bool step_nontemporal(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why);
    bool any = false;
    if (buf < 0) return false;
    if (k->bufs.at[buf].kind != KB_OUT || adds_to(k, buf))
        return step_refuse(why, "b%d is no result that is written once", buf);
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if (in->op != K_STORE || in->buf != buf) continue;
        in->mode = is_nontemporal(k, i, s->arg[1].n) ? STORE_NONTEMPORAL : STORE_PLAIN;
        any = any || in->mode == STORE_NONTEMPORAL;
    }
    return any || step_refuse(why, "b%d is not written in whole lines", buf);
}
