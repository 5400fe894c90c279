/* gpu.c - a plan as one program of OpenCL C or CUDA C without headers: kernels round the statements of clike.c.
 *
 * In: kernels in the form of a GPU. Out: text. Element numbers have 32 bits where all of a kernel's fit. */
#include "emit/clike/clike.h"

#include <math.h>

enum { MULTIPROCESSOR_SHARED = 227 << 10 };

/* Largest magnitude that the index takes in any iteration, from above. */
static int64_t reach(const kernel *k, affine x) {
    double r = (double)(x.base < 0 ? -x.base : x.base);
    for (int i = 0; i < x.n; i++) {
        double c = (double)x.t[i].coef;
        r += (c < 0 ? -c : c) * (double)k->vars.at[x.t[i].var].extent;
    }
    return r > 1e18 ? INT64_MAX : (int64_t)r;
}

static bool fits_32_bits(const kernel *any) {
    const kernel *k = kernel_at_most(any, any->a);
    int64_t most = k->grid_blocks > INT32_MAX / k->block_threads ? INT64_MAX : k->grid_blocks * k->block_threads;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        int64_t r = reach(k, in->idx);
        if (r > most) most = r;
        for (int m = 0; m < in->n_mask; m++) {
            int64_t lo = in->mask[m].lo < 0 ? -in->mask[m].lo : in->mask[m].lo,
                    hi = in->mask[m].hi < 0 ? -in->mask[m].hi : in->mask[m].hi;
            r = reach(k, in->mask[m].e);
            if (r > most) most = r;
            if (lo > most) most = lo;
            if (hi > most) most = hi;
        }
        if (in->op == K_LOOP && in->par >= PAR_GRID_THREADS && kernel_nest_size(k, (reg)i) > most)
            most = kernel_nest_size(k, (reg)i);
        if (in->op == K_LOOP && in->hi > most) most = in->hi;
    }
    bool *used = any->params ? ARENA_ARRAY(any->a, bool, any->params->at.n + 1) : NULL,
         *given = used ? ARENA_ARRAY(any->a, bool, any->params->at.n + 1) : NULL;
    if (used) kernel_used_rows(any, used, given);
    for (int i = 0; used && i < any->params->at.n; i++) {
        const ext_row *x = &any->params->at.at[i];
        if (used[i] && (x->lo < -INT32_MAX / 2 || x->hi >= INT32_MAX / 2)) return false;
    }
    return most < INT32_MAX / 2; /* sums of two on the way */
}

/* Loads in a row that are told where to begin gain nothing by what a compiler knows of aliases, and cost it a third of its
 * time. */
static bool loads_ahead(const kernel *k) {
    bool any = false;
    int serial = 0, *open = ARENA_ARRAY(k->a, int, k->ins.n + 1), depth = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) serial += open[depth++] = in->par == PAR_SERIAL;
        if (in->op == K_END) serial -= open[--depth];
        bool ahead = in->op == K_LOAD && (in->mode == LOAD_HOISTED || in->mode == LOAD_UNMASKED);
        if (ahead && serial) return false;
        any |= ahead;
    }
    return any;
}

/* What a thread reads of it may be what another one wrote. A compiler takes a restricted pointer's memory for the thread's own:
 * it kept a value from before threads met and used it after. */
static bool is_read_back(const kernel *k, int b) {
    if (k->bufs.at[b].kind == KB_IN) return false;
    for (int i = 1; i < k->ins.n; i++)
        if ((k->ins.at[i].op == K_LOAD || k->ins.at[i].op == K_SCATTER) && k->ins.at[i].buf == b) return true;
    return false;
}

/* Values of the table come behind the buffers. */
static void print_params_arguments(clike *e, const bool *given, bool first) {
    for (int i = 0; e->k->params && i < e->k->params->at.n; i++) {
        if (!given[i]) continue;
        str_addf(e->out, "%sconst int64_t r%d", first ? "" : ", ", i);
        first = false;
    }
}

static void print_row(clike *e, ext x) {
    if (ext_is_lit(x))
        str_addf(e->out, "(%s)%lld", e->index, (long long)x);
    else
        str_addf(e->out, "e%d", ext_index(x));
}

static void print_params(clike *e, const bool *used, const bool *given) {
    const exts *t = e->k->params;
    for (int i = 0; t && i < t->at.n; i++) {
        if (!used[i]) continue;
        str_addf(e->out, "    const %s e%d = ", e->index, i);
        if (given[i]) {
            str_addf(e->out, "(%s)r%d", e->index, i);
        } else {
            print_row(e, t->at.at[i].a), str_add(e->out, t->at.at[i].op == EXT_ADD ? " + " : " * "),
                print_row(e, t->at.at[i].b);
        }
        str_add(e->out, ";\n");
    }
}

static void print_arguments(clike *e) {
    const kernel *k = e->k;
    int n_rows = k->params ? k->params->at.n : 0;
    bool first = true, free = e->l->ahead && loads_ahead(k);
    bool *used = ARENA_ARRAY(e->out->a, bool, n_rows + 1), *given = ARENA_ARRAY(e->out->a, bool, n_rows + 1);
    if (n_rows) kernel_used_rows(k, used, given);
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *kb = &k->bufs.at[b];
        if (kbuf_is_local(kb)) continue;
        str_add(e->out, first ? "" : ", ");
        first = false;
        const char *type = clike_memory_type((tn_dtype)kb->dtype), *con = kb->kind == KB_IN ? "const " : "";
        bool changes = e->any_early && !clike_reads_constant(kb);
        const char *restricted = free || changes || is_read_back(k, b) ? "" : e->l->restricted;
        if (e->l->offsets)
            str_addf(e->out, "%s%suchar *%s p%d, const ulong o%d", e->l->global, con, restricted, b, b);
        else
            str_addf(e->out, "%s%s%s *%s b%d", e->l->global, con, type, restricted, b);
    }
    clike_bulk_arguments(e, e->out);
    print_params_arguments(e, given, first);
    str_add(e->out, ") {\n");
    for (int b = 0; b < k->bufs.n && e->l->offsets; b++) {
        const kbuf *kb = &k->bufs.at[b];
        if (kbuf_is_local(kb)) continue;
        const char *type = clike_memory_type((tn_dtype)kb->dtype), *con = kb->kind == KB_IN ? "const " : "";
        str_addf(e->out, "    %s%s%s *const b%d = (%s%s%s *)(p%d + o%d);\n", e->l->global, con, type, b, e->l->global, con,
                 type, b, b);
    }
    print_params(e, used, given);
}

static void print_arrays(clike *e) {
    static const struct {
        tn_dtype t;
        const char *name, *type;
    } met[] = {
        { TN_F32, "f32", "float" }, { TN_F64, "f64", "double" }, { TN_I32, "i32", "int32_t" }, { TN_I64, "i64", "int64_t" }
    };
    const kernel *k = e->k;
    int64_t dynamic = e->l->dynamic ? kernel_dynamic_shared(k) : 0, end[2] = { 0, e->bulk.turns.late }; /* of late ones */
    int most = 16;
    for (int b = 0; b < k->bufs.n; b++)
        if (kbuf_align(&k->bufs.at[b]) > most) most = (int)kbuf_align(&k->bufs.at[b]);
    if (dynamic) str_addf(e->out, "    %s\n", arena_printf(e->out->a, e->l->dynamic, most, most));
    for (int b = 0; b < k->bufs.n; b++) {
        kbuf own = k->bufs.at[b], *kb = &own;
        if (k->params) kb->elems = ext_hi(k->params, kb->elems);
        if (!kbuf_is_local(kb) || kb->elems < 1) continue;
        if (dynamic && kb->kind >= KB_SHARED) {
            const char *type = clike_memory_type((tn_dtype)kb->dtype);
            int64_t at = kbuf_place(kb, &end[kb->late]);
            str_addf(e->out, "    %s *const b%d = (%s *)(tn_shared_%d + %lld);\n", type, b, type, most, (long long)at);
            continue;
        }
        bool block_threads = kb->kind >= KB_SHARED, in_words = block_threads || dtype_size((tn_dtype)kb->dtype) == 2;
        str_addf(e->out, "    %s%s b%d[%lld]%s%s;\n", block_threads ? e->l->shared : "", clike_memory_type((tn_dtype)kb->dtype),
                 b, (long long)kb->elems, in_words ? " " : "",
                 in_words ? arena_printf(e->out->a, e->l->aligned, (int)kbuf_align(kb)) : "");
    }
    for (size_t i = 0; i < COUNT_OF(met); i++)
        if (e->reduces[met[i].t])
            str_addf(e->out, "    %s%s met_%s[%d];\n", e->l->shared, met[i].type, met[i].name, k->block_threads);
    if (e->reduces_index) str_addf(e->out, "    %sint64_t met_index[%d];\n", e->l->shared, k->block_threads);
}

static bool is_multiplied(const kernel *k, int sum) { /* by matrix units: its registers are there together, however few steps */
    for (int i = sum + 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_MMA && k->ins.at[i].c == (reg)sum) return true;
    return false;
}

/* Bytes of accumulators in [from, to), the body of a loop or all; of the loops side by side that run on a condition, the most
 * that one has. In a thread's share of a nest those that no loop adds to are its numbers, and no sums that go on. */
static int64_t accumulated_bytes(const kernel *k, int from, int to) {
    int64_t bytes = 0, most = 0;
    int last = to;
    bool share = k->ins.at[from - 1].op == K_LOOP && k->ins.at[from - 1].par == PAR_BLOCK_THREADS;
    while (share && last > from && k->ins.at[last - 1].op != K_LOOP) last--;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ACC && in->alu && (i < last || is_multiplied(k, i)))
            bytes += in->lanes * (int64_t)dtype_size((tn_dtype)in->dtype);
        if (in->op != K_LOOP) continue;
        int end = kernel_loop_end(k, i);
        int64_t inside = accumulated_bytes(k, i + 1, end);
        if (!in->a) bytes += inside;
        if (in->a && inside > most) most = inside;
        i = end;
    }
    return bytes + most;
}

/* Bytes of accumulators, and memory of its own, that a thread has. */
static int64_t tile_bytes(const kernel *k) {
    int64_t bytes = accumulated_bytes(k, 1, k->ins.n);
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) bytes += k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
    return bytes;
}

/* Nests of a thread's share of a row, written out (register_cache). */
static bool is_share(const kernel *k, int i) {
    const kins *in = &k->ins.at[i];
    return in->op == K_LOOP && in->par == PAR_SERIAL && in[1].op == K_LOOP && in[1].par == PAR_BLOCK_THREADS && in->hi > 1 &&
           k->vars.at[in->var].role.unroll == in->hi;
}

/* Bytes of its share of rows that a thread keeps from one nest to the next, at most; *operands: buffers that it reads again. */
static int64_t kept_bytes(const kernel *k, int *operands) {
    int *first = ARENA_ARRAY(k->a, int, k->bufs.n + 1), *last = ARENA_ARRAY(k->a, int, k->bufs.n + 1); /* nests that touch it */
    int64_t *share = ARENA_ARRAY(k->a, int64_t, k->bufs.n + 1), most = 0;
    for (int i = 1; i < k->ins.n; i++) {
        if (!is_share(k, i)) continue;
        for (int j = i, end = kernel_loop_end(k, i); j < end; j++) {
            const kins *in = &k->ins.at[j];
            bool own = (in->op == K_LOAD || in->op == K_STORE) && k->bufs.at[in->buf].kind == KB_LOCAL;
            if (in->op != K_LOAD && !own) continue;
            if (!first[in->buf]) first[in->buf] = i;
            last[in->buf] = i;
            share[in->buf] = k->ins.at[i].hi * in->lanes * (int64_t)dtype_size((tn_dtype)k->bufs.at[in->buf].dtype);
        }
    }
    *operands = 0;
    for (int b = 0; b < k->bufs.n; b++) *operands += last[b] > first[b] && k->bufs.at[b].kind != KB_LOCAL;
    for (int i = 1; i < k->ins.n; i++) {
        int64_t bytes = 0;
        if (!is_share(k, i)) continue;
        for (int b = 0; b < k->bufs.n; b++) bytes += first[b] && first[b] <= i && last[b] > i ? share[b] : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Its threads have a long part of a row each (register_cache), and nothing else that many registers would be good for: how
 * often as many threads as of other kernels there shall be room for. Parts that are only read are in registers as they were
 * loaded or as what they were widened to. What is made of several of them is kept, too, and there are fewer threads if these
 * would not have room for it: gradients of norms of 768 numbers, 24 and three operands of them a thread, took 88 us with 64
 * registers and 61 with 95. */
static double rows_at_once(const kernel *k) {
    enum { WORK = 24 }; /* registers of a thread for what it computes with */
    bool holds = false, own = false, anew = false;
    for (int b = 0; b < k->bufs.n; b++) own |= k->bufs.at[b].kind == KB_LOCAL && k->bufs.at[b].elems > 16;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_UPD && in->alu == OP_dot) return 1;
        anew |= in->op == K_LOAD && in->mode == LOAD_REMATERIALISED;
        holds |= is_share(k, i);
    }
    double most = own || anew || (holds && k->cluster) ? 2 : holds ? 1.5 : 1;
    int operands;
    int64_t bytes = kept_bytes(k, &operands) + (operands > 1 ? tile_bytes(k) : 0);
    return holds ? fmin(most, fmax(1, floor(4 * 128.0 / (WORK + (double)bytes / 4)) / 4)) : most;
}

/* A tile of sums with running maxima beside them: attention by tiles of scores, whose rows are rescaled meanwhile. */
static bool rescales(const kernel *k) {
    bool products = false, maxima = false;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        products |= in->op == K_UPD && in->alu == OP_dot;
        maxima |= in->op == K_ACC && in->alu == OP_max;
    }
    return products && maxima;
}

/* Contractions by matrix units: where there are several, not all sums are there at a time, since scores are done with when the
 * last one begins; what is computed with running maxima is beside them. (Gradients of keys, 64 numbers a head: 361 us with two
 * thread blocks of 128 threads, 290 with three, 266 with four.) */
static bool multiplies_in_few(const kernel *k, int64_t bytes) {
    bool products = false, maxima = false;
    for (int i = 1; i < k->ins.n; i++) {
        products |= k->ins.at[i].op == K_MMA;
        maxima |= k->ins.at[i].op == K_ACC && k->ins.at[i].alu == OP_max;
    }
    return products && bytes <= 4 * (maxima ? 72 : 104);
}

/* Two of them add up from tile to tile, narrow ones: gradients of keys and values, 64 numbers a head, take 484 us with two
 * thread blocks of 128 threads, and 425 with three. */
static bool multiplies_in_some(const kernel *k, int64_t bytes) {
    int widest = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_ACC && in->alu == OP_max) return false;
        if (in->op == K_MMA && in->lanes > widest) widest = in->lanes;
    }
    return widest && widest <= 32 && bytes <= 4 * 144;
}

/* Products with vectors of bytes, of which all threads have as many, and several rows (recipe/dot_rows.c): while some wait for
 * memory, others compute. */
static bool multiplies_bytes(const kernel *k) {
    for (int i = 2; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i], *loop = in;
        if (in->op != K_LOAD || dtype_size((tn_dtype)in->src) > 1 || in->lanes <= 4 || !k->bufs.at[in->buf].fixed) continue;
        while (loop > k->ins.at && loop->op != K_LOOP) loop--;
        while (loop > k->ins.at && loop[-1].op == K_LOOP && loop[-1].par == loop->par) loop--;
        if (loop->op == K_LOOP && loop->par == PAR_BLOCK_THREADS && ext_is_lit(loop->hi))
            return kernel_nest_size(k, (reg)(loop - k->ins.at)) % k->block_threads == 0;
    }
    return false;
}

/* Threads that a processor shall have room for. A tile of 8 x 8 with all that is under way wants 170 registers: with 128 a
 * product of 1024 x 1024 took 78 us, with those 55. */
static int resident_threads(const clike *e, const kernel *k) {
    int64_t bytes = tile_bytes(k);
    if (multiplies_bytes(k)) return e->l->resident;
    if (bytes <= 4 * 64 && kbufs_any_late(k->bufs.at, k->bufs.n)) return e->l->resident; /* of matrix units: they wait less */
    if (multiplies_in_few(k, bytes)) return e->l->resident;
    if (bytes > 4 * 80 && !multiplies_in_some(k, bytes)) return e->l->resident / 2;
    if (bytes > 4 * 48 || (bytes >= 4 * 40 && rescales(k))) return e->l->resident * 3 / 4;
    return (int)(rows_at_once(k) * e->l->resident);
}

static bool is_waited_for(const kernel *k, int b) { /* until it is full */
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_BARRIER && k->ins.at[i].mode == BARRIER_MBARRIER && k->ins.at[i].buf == b) return true;
    return false;
}

/* Where thread blocks take turns the nest over them opens more than once. */
static void print_open(clike *e) {
    clike own = *e;
    str_init(&e->bulk.open, e->out->a);
    own.out = &e->bulk.open, own.bulk.stages = 0;
    for (reg r = e->bulk.turns.open; e->k->ins.at[r].op == K_LOOP && e->k->ins.at[r].par == PAR_BLOCKS; r++)
        clike_instruction(&own, r);
}

static void print_instructions(clike *e, const kernel *k, bool waits) {
    if (!waits && clike_shares(e)) return;
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        clike_instruction(e, r);
        bool opens = k->ins.at[r].op == K_LOOP && k->ins.at[r].par == PAR_BLOCKS, more = opens && k->ins.at[r + 1].op == K_LOOP;
        if (opens && waits && !(more && k->ins.at[r + 1].par == PAR_BLOCKS)) clike_open_nest(e, r);
    }
}

static void print_kernel(clike *e, const kernel *k, int id) {
    const kernel *most = kernel_at_most(k, k->a);
    str body, *out = e->out;
    bool small = fits_32_bits(k);
    str_init(&body, out->a);
    e->k = k, e->id = id, e->indent = 1, e->reduces_index = e->asyncs = false, e->vector = 0, e->back = false, e->bases.n = 0;
    memset(e->reduces, 0, sizeof e->reduces);
    e->index = small ? e->l->index : "int64_t", e->index_end = small ? "" : e->l->wide_end;
    e->unsigned_index = small ? e->l->unsigned_index : "uint64_t";
    e->unsigned_end = small ? e->l->unsigned_end : arena_printf(out->a, "U%s", e->l->wide_end);
    clike_bulk_begin(e);
    if (k->turns) print_open(e);
    e->out = &body; /* what is met with is known only afterwards */
    for (reg r = 1; r < (reg)k->ins.n; r++) e->asyncs |= clike_is_async(e, &k->ins.at[r]);
    for (reg r = 1; r < (reg)k->ins.n; r++) e->asyncs &= k->ins.at[r].op != K_ASYNC; /* else it says itself when it waits */
    bool inside = !e->bulk.stages && clike_begins_early(e, k);
    e->early = ARENA_ARRAY(out->a, const char *, k->ins.n);
    print_instructions(e, k, inside);
    e->out = out;
    const char *threads = arena_printf(out->a, "%d", k->block_threads);
    int resident = resident_threads(e, most);
    if (e->l->dynamic && kernel_dynamic_shared(k)) { /* more of them there is no room for */
        int64_t fit = MULTIPROCESSOR_SHARED / kernel_dynamic_shared(k) * k->block_threads;
        if (fit < resident) resident = (int)fit;
    }
    if (resident > k->block_threads) threads = arena_printf(out->a, "%d, %d", k->block_threads, resident / k->block_threads);
    if (k->cluster && !e->l->together)
        guard_fail(out->a->gd, TN_ERR_INTERNAL, "kernel %s: there are no clusters in %s", k->name, e->l->name);
    str_add(out, TARGET_NEXT_KERNEL); /* a device may compile kernels apart */
    str_addf(out, e->l->kernel, k->cluster ? arena_printf(out->a, e->l->together, k->cluster) : "", threads,
             arena_printf(out->a, "%skernel_%d", e->prefix, id));
    print_arguments(e);
    print_arrays(e);
    str_addf(out, "    const int tid = (int)%s; const %s group = (%s)%s, thread = group * %d + tid;\n    (void)thread;\n",
             e->l->thread, e->index, e->index, e->l->block, k->block_threads);
    if (e->l->overlaps && !inside) clike_wait(e, out);
    clike_bulk_barriers(e, out);
    for (int b = 0; b < k->bufs.n; b++)
        if (is_waited_for(k, b))
            str_addf(out, "    __shared__ uint64_t full%d; uint32_t phase%d = 0; if (tid == 0) begin_full(&full%d, %lld);\n", b,
                     b, b, (long long)k->bufs.at[b].elems * 4);
    if (k->cluster) str_addf(out, "    %s\n", e->l->cluster_barrier); /* all are there, and have memory to be written */
    clike_bulk_turns(e, &body, out);
    str_add(out, "}\n");
}

void emit_gpu_named(const plan *p, gpu_language language, const char *prefix, str *out) {
    str body;
    str_init(&body, out->a);
    clike e = clike_make(language == GPU_CUDA ? &clike_cuda : &clike_opencl, &body);
    e.needs.lanes[1] = true, e.prefix = prefix;
    for (int i = 0; i < p->kernels.n; i++) e.any_early |= clike_begins_early(&e, p->kernels.at[i].k);
    for (int i = 0; i < p->kernels.n; i++) {
        e.next_early = i + 1 < p->kernels.n && clike_begins_early(&e, p->kernels.at[i + 1].k);
        if (p->kernels.at[i].code == i) print_kernel(&e, p->kernels.at[i].k, i);
    }
    clike_program(&e, out);
}

void emit_gpu(const plan *p, gpu_language language, str *out) { emit_gpu_named(p, language, "tn_", out); }
