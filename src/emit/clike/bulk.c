/* bulk.c - copies in boxes (TMA) as CUDA C.
 *
 * In: runs of bulk copies (ir/boxes.h). Out: for each run statements of the first thread, which tells the stage's barrier how
 * many bytes will come and asks for the boxes. Who waits for copies waits for the stage that the next matrix lies in; a bit of
 * `phases` says which of its fillings, one after the other, that is. What is sent from shared memory is seen by what sends it
 * before threads meet, and read from there when they meet again - but for as many runs as it has other places - when the thread
 * block's next part begins (where results lie apart: when that has its last products), and at the end. */
#include "emit/clike/clike.h"

static const char functions[] =
    "#if __CUDA_ARCH__ < 900\n"
    "#error copies in boxes came with sm_90\n"
    "#endif\n"
    "struct __align__(64) bulk_map { unsigned char bytes[128]; };\n"
    "INL uint32_t bulk_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }\n"
    "INL void begin_boxes(uint64_t *filled, int stages) {\n"
    "    for (int i = 0; threadIdx.x == 0 && i < stages; i++)\n"
    "        asm volatile(\"mbarrier.init.shared::cta.b64 [%0], 1;\" :: \"r\"(bulk_at(filled + i)) : \"memory\");\n"
    "    if (threadIdx.x == 0) asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");\n"
    "    __syncthreads(); }\n"
    "INL void expect_boxes(uint64_t *filled, uint32_t bytes) {\n"
    "    asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\" :: \"r\"(bulk_at(filled)), \"r\"(bytes) : "
    "\"memory\"); }\n"
    "INL void copy_box(void *to, const bulk_map *m, int x, int y, uint64_t *filled) {\n"
    "    asm volatile(\"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
    "[%4];\"\n"
    "        :: \"r\"(bulk_at(to)), \"l\"(m), \"r\"(x), \"r\"(y), \"r\"(bulk_at(filled)) : \"memory\"); }\n"
    "INL void wait_boxes(uint64_t *filled, uint32_t phase) {\n"
    "    asm volatile(\"{ .reg .pred p;\\nagain:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n@p bra done;\\nbra "
    "again;\\ndone: }\"\n"
    "        :: \"r\"(bulk_at(filled)), \"r\"(phase) : \"memory\"); }\n"
    "INL void send_box(const void *from, const bulk_map *m, int x, int y) {\n"
    "    asm volatile(\"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\"\n"
    "        :: \"l\"(m), \"r\"(x), \"r\"(y), \"r\"(bulk_at(from)) : \"memory\"); }\n"
    "INL void end_sending() { asm volatile(\"cp.async.bulk.commit_group;\" ::: \"memory\"); }\n"
    "template <int N> INL void wait_sent() {\n"
    "    if (threadIdx.x == 0) asm volatile(\"cp.async.bulk.wait_group.read %0;\" :: \"n\"(N) : \"memory\"); }\n";

void clike_bulk_functions(const clike *e, str *out) {
    if (e->any_bulk) str_add(out, functions);
}

void clike_bulk_begin(clike *e) {
    const kernel *k = e->k;
    str reason;
    str_init(&reason, e->out->a);
    e->bulk = (clike_bulk){ .elems = ARENA_ARRAY(e->out->a, int64_t, k->bufs.n + 1) };
    if (!kernel_maps(k, &e->bulk.maps, &e->bulk.stages, &reason))
        guard_fail(e->out->a->gd, TN_ERR_INTERNAL, "kernel %s: %s", k->name, reason.s);
    if (e->bulk.stages && !e->l->matrix_units)
        guard_fail(e->out->a->gd, TN_ERR_UNSUPPORTED, "kernel %s: %s has no copies in boxes; leave bulk out of its schedule",
                   k->name, e->l->name);
    e->any_bulk |= e->bulk.stages > 0;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        kboxes b = { .end = r + 1 };
        if (!kernel_is_sent(k, &k->ins.at[r]) || !kernel_boxes(k, r, &e->bulk.maps, &b, &reason)) continue;
        if (b.stage >= e->bulk.sends) e->bulk.sends = (int)b.stage + 1;
        r = b.end - 1;
    }
    for (int i = 0; i < KERNEL_MOST_FIRST; i++) str_init(&e->bulk.first[i], e->out->a);
    if (k->turns && !kernel_turns(k, &e->bulk.turns, &reason))
        guard_fail(e->out->a->gd, TN_ERR_INTERNAL, "kernel %s: %s", k->name, reason.s);
}

/* Blocks [from, to) of part `group`. */
static void print_first(const clike *e, int64_t from, int64_t to, str *out) {
    str_addn(out, e->bulk.open.s, e->bulk.open.n);
    for (; from < to; from++) str_addn(out, e->bulk.first[from].s, e->bulk.first[from].n);
    str_add(out, "    }\n");
}

/* And of the part that comes next, if there is one. */
static void print_next(const clike *e, int64_t from, int64_t to) {
    str_addf(e->out, "if (group + %lld < %lld) { const %s next = group + %lld, group = next;\n", (long long)e->k->turns,
             (long long)e->k->grid_blocks, e->index, (long long)e->k->turns);
    print_first(e, from, to, e->out);
    str_add(e->out, "}\n");
}

void clike_bulk_turns(const clike *e, const str *body, str *out) {
    long long n = (long long)e->k->turns, all = (long long)e->k->grid_blocks;
    if (n) {
        print_first(e, 0, KERNEL_MOST_FIRST, out);
        str_addf(out, "    for (%s part = group; part < %lld; part += %lld) { const %s group = part; copies_are_seen();\n",
                 e->index, all, n, e->index);
    }
    if (n && e->bulk.sends && !e->bulk.turns.apart) str_add(out, "    wait_sent<0>();\n");
    str_addn(out, body->s, body->n);
    if (n) str_add(out, "    }\n");
    if (e->bulk.sends) str_add(out, "    wait_sent<0>();\n");
}

void clike_bulk_meet(clike *e, reg r) {
    bool sends = e->bulk.sends && r + 1 < (reg)e->k->ins.n && kernel_is_sent(e->k, &e->k->ins.at[r + 1]);
    if (sends) str_add(e->out, "copies_are_seen(); ");
    bool again = e->k->turns && e->bulk.turns.apart && e->bulk.turns.again == r && e->bulk.sends;
    if (e->bulk.sent || again) str_addf(e->out, "wait_sent<%d>(); ", again ? 0 : e->bulk.sends - 1);
    e->bulk.sent = false;
}

void clike_bulk_again(clike *e, reg r) {
    if (!e->k->turns || e->bulk.turns.again != r || e->bulk.turns.streams) return;
    clike_line(e);
    print_next(e, 0, KERNEL_MOST_FIRST);
}

void clike_bulk_arguments(const clike *e, str *out) {
    for (int i = 0; i < e->bulk.maps.n; i++) str_addf(out, ", const __grid_constant__ bulk_map m%d", i);
}

void clike_bulk_barriers(const clike *e, str *out) {
    if (e->bulk.stages)
        str_addf(out, "    __shared__ uint64_t filled[%d]; uint32_t phases = 0; begin_boxes(filled, %d);\n", e->bulk.stages,
                 e->bulk.stages);
}

bool clike_bulk_copy(clike *e, reg r) {
    kboxes b;
    str reason;
    if (r < e->bulk.end) return true; /* the run's first instruction stands for it */
    if (!kernel_is_bulk(&e->k->ins.at[r])) return false;
    str_init(&reason, e->out->a);
    bool first = e->k->turns && r < e->bulk.turns.first_end;
    str *out = e->out;
    kernel_boxes(e->k, r, &e->bulk.maps, &b, &reason);
    if (first) e->out = &e->bulk.first[b.stage];
    clike_line(e);
    str_add(e->out, "if (tid == 0");
    for (int m = 0; m < b.n_mask; m++) {
        str_addf(e->out, " && (%s)(", e->unsigned_index);
        clike_affine(e, b.mask[m].e, -b.mask[m].lo);
        str_addf(e->out, ") < %lld%s", (long long)(b.mask[m].hi - b.mask[m].lo), e->unsigned_end);
    }
    str_add(e->out, ") {");
    if (!b.sent) str_addf(e->out, " expect_boxes(&filled[%lld], %lld);", (long long)b.stage, (long long)b.bytes);
    for (int i = 0; i < b.n; i++) {
        const kbox *x = &b.at[i];
        str_addf(e->out, " %s_box(&b%d[%lld], &m%d, (int)(", b.sent ? "send" : "copy", x->buf, (long long)x->at, x->map);
        clike_affine(e, x->x, 0);
        str_add(e->out, "), (int)(");
        clike_affine(e, x->y, 0);
        if (b.sent)
            str_add(e->out, "));");
        else
            str_addf(e->out, "), &filled[%lld]);", (long long)b.stage);
        if (!b.sent) e->bulk.elems[x->buf] = x->elems;
    }
    str_add(e->out, b.sent ? " end_sending(); }\n" : " }\n");
    if (e->bulk.turns.streams && !b.sent && kernel_ends_in_last_turn(e->k, r, &b)) {
        clike_line(e);
        str_add(e->out, "else ");
        print_next(e, b.stage, b.stage + 1);
    }
    e->out = out, e->bulk.end = b.end, e->bulk.last |= !b.sent, e->bulk.sent |= b.sent;
    return true;
}

/* The stage that the next matrix behind r lies in; -1: it was not filled by boxes. */
static int64_t next_stage(const clike *e, reg r) {
    while (r < (reg)e->k->ins.n && e->k->ins.at[r].op != K_MATRIX) r++;
    if (r == (reg)e->k->ins.n) return -1;
    const kins *m = &e->k->ins.at[r];
    int64_t elems = e->bulk.elems[m->buf];
    return elems ? m->idx.base / elems : -1;
}

bool clike_bulk_wait(clike *e, const kins *in, reg r) {
    if (in->mode == ASYNC_COMMIT) return e->bulk.last;
    int64_t stage = in->mode == ASYNC_COPIES ? next_stage(e, r) : -1;
    if (stage < 0) return false;
    str_addf(e->out, "wait_boxes(&filled[%lld], phases >> %lld & 1); phases ^= %lluu;\n", (long long)stage, (long long)stage,
             1ull << stage);
    return true;
}
