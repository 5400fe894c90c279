/* inplace.c - results written over what they are computed from.
 *
 * Legal when the old contents have no later reader and, within the kernel, every element is read, at the same index and in the
 * same nest, before it is written: all reads of the old buffer stand before the first write of the new one and use exactly its
 * index. In and out: mem.h. */
#include "mem/mem.h"

static int arg_of(const pkernel *pk, int32_t buf) {
    for (int b = 0; b < pk->k->bufs.n; b++)
        if (pk->args[b].buf == buf) return b;
    return -1;
}

/* Kernel buffer `from` may be overwritten by what is stored to `to`. */
static bool same_index_only(const kernel *k, int from, int to) {
    const kins *store = NULL;
    if (k->bufs.at[from].dtype != k->bufs.at[to].dtype) return false; /* one buffer has one type */
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_SCATTER && (in->buf == to || in->buf == from)) return false;
        if (in->op == K_STORE && in->buf == to) {
            if (store) return false;
            store = in;
        }
    }
    if (!store) return false;
    bool written = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in == store) written = true;
        if (in->op == K_STORE && in->buf == from) return false;
        if (in->op != K_LOAD || in->buf != from) continue;
        if (written || in->dyn || in->n_mask || !affine_equal(in->idx, store->idx)) return false;
    }
    return true;
}

static void merge_args(pkernel *pk, int from, int to) {
    kernel *k = pk->k;
    for (int i = 1; i < k->ins.n; i++) {
        kins *in = &k->ins.at[i];
        if ((in->op == K_LOAD || in->op == K_STORE || in->op == K_SCATTER) && in->buf == from) in->buf = (uint16_t)to;
    }
    k->bufs.at[to].kind = KB_INOUT;
    k->bufs.at[from].kind = KB_LOCAL; /* no longer used: an empty local */
    k->bufs.at[from].elems = 0;
    pk->args[from].buf = -1;
}

typedef struct use_range {
    int first_write, last_write, last_read;
} use_range;

static use_range range_of(const plan *p, int32_t buf) {
    use_range r = { -1, -1, -1 };
    for (int i = 0; i < p->kernels.n; i++) {
        int b = arg_of(&p->kernels.at[i], buf);
        if (b < 0) continue;
        kbuf_kind kind = (kbuf_kind)p->kernels.at[i].k->bufs.at[b].kind;
        if (kind != KB_IN) r.last_write = i;
        if (kind != KB_IN && r.first_write < 0) r.first_write = i;
        if (kind != KB_OUT) r.last_read = i;
    }
    return r;
}

static void rebind(plan *p, int32_t from, int32_t to) {
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        int b = arg_of(pk, from), other = arg_of(pk, to);
        if (b < 0) continue;
        pk->args[b].buf = to;
        if (other >= 0) merge_args(pk, other, b);
    }
}

static void add_copy(plan *p, int32_t from, int32_t to) {
    const pbuf *src = &p->bufs.at[from];
    kernel *k = kernel_make(p->a, arena_printf(p->a, "copy_%u", src->node));
    pkernel pk = { .k = k, .args = ARENA_ARRAY(p->a, parg, 2), .code = p->kernels.n, .root = src->node };
    pk.args[0].buf = from, pk.args[1].buf = to;
    kernel_buf(k, (kbuf){ .dtype = src->dtype, .kind = KB_IN, .node = src->node, .elems = src->elems, .plan_buf = from });
    kernel_buf(k, (kbuf){ .dtype = src->dtype, .kind = KB_OUT, .node = src->node, .elems = src->elems, .plan_buf = to });
    kvar v = kernel_var(k, "i", src->elems, true, false);
    kernel_push(k, (kins){ .op = K_LOOP, .var = v, .hi = src->elems, .step = 1 });
    reg r = kernel_push(k, (kins){ .op = K_LOAD,
                                   .dtype = (uint8_t)kernel_reg_dtype((tn_dtype)src->dtype),
                                   .src = src->dtype,
                                   .buf = 0,
                                   .idx = affine_var(p->a, v) });
    kernel_push(k, (kins){ .op = K_STORE, .dtype = src->dtype, .buf = 1, .idx = affine_var(p->a, v), .a = r });
    kernel_push(k, (kins){ .op = K_END });
    k->bytes_read = k->bytes_written = (uint64_t)src->bytes;
    VEC_PUSH(p->a, &p->kernels, pk);
}

static int32_t buffer_of_output(const plan *p, val v) {
    for (int i = 0; i < p->bufs.n; i++)
        if (p->bufs.at[i].node == v && (p->bufs.at[i].kind == PB_TEMP || p->bufs.at[i].kind == PB_OUTPUT)) return i;
    return -1;
}

/* A new state value goes straight into the state when nothing reads the old one afterwards. */
static bool update_directly(plan *p, int32_t state, int32_t value) {
    use_range s = range_of(p, state), v = range_of(p, value);
    if (p->bufs.at[value].kind != PB_TEMP || v.first_write < 0 || v.first_write != v.last_write) return false;
    if (s.last_write >= 0 || s.last_read > v.first_write) return false;
    pkernel *writer = &p->kernels.at[v.first_write];
    int from = arg_of(writer, state), to = arg_of(writer, value);
    if (from >= 0 && !same_index_only(writer->k, from, to)) return false;
    rebind(p, value, state);
    p->bufs.at[value].bytes = 0; /* nothing lives there any more */
    p->bufs.at[value].elems = 0;
    return true;
}

void mem_inplace(plan *p) {
    for (int i = 0; i < p->g->outputs.n; i++) {
        const output *o = &p->g->outputs.at[i];
        if (!o->state) continue;
        int32_t state = -1, value = buffer_of_output(p, o->v);
        for (int j = 0; j < p->states.n; j++)
            if (p->states.at[j].node == o->state) state = p->states.at[j].buf;
        if (!update_directly(p, state, value)) add_copy(p, value, state);
    }
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        for (int o = 0; o < pk->k->bufs.n; o++) {
            int32_t ob = pk->args[o].buf;
            if (ob < 0 || pk->k->bufs.at[o].kind != KB_OUT || p->bufs.at[ob].kind != PB_TEMP || p->bufs.at[ob].bytes == 0)
                continue;
            if (range_of(p, ob).first_write != i || range_of(p, ob).last_write != i) continue;
            for (int b = 0; b < pk->k->bufs.n; b++) {
                int32_t ib = pk->args[b].buf;
                if (ib < 0 || ib == ob || pk->k->bufs.at[b].kind != KB_IN || p->bufs.at[ib].kind != PB_TEMP) continue;
                if (p->bufs.at[ib].bytes != p->bufs.at[ob].bytes || range_of(p, ib).last_read != i ||
                    !same_index_only(pk->k, b, o))
                    continue;
                p->bufs.at[ob].inplace_of = ib;
                rebind(p, ob, ib);
                merge_args(pk, b == arg_of(pk, ib) ? o : b, arg_of(pk, ib));
                break;
            }
        }
    }
}
