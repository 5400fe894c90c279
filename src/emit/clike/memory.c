/* memory.c - loads and stores as statements of the languages that look like C.
 *
 * In: LOAD, STORE and SCATTER instructions. Out: text. For GPUs neighbouring lanes go through memory together, up to 16 bytes
 * at once, where kernel_aligned proves that they may. */
#include "emit/clike/clike.h"

static bool is_copied(const clike *e, const kins *in) { /* to every thread block of a cluster */
    return in->op == K_STORE && e->k->bufs.at[in->buf].kind == KB_DISTRIBUTED;
}
static bool is_async(const clike *e, const kins *in) { return is_copied(e, in) && in->mode == STORE_ASYNC; }

/* `type` is that of the elements that x holds, which go to lane's place and the next ones. */
static void print_element(clike *e, const kins *in, int lane);
static void send(clike *e, const kins *in, const char *type, int lane, const char *x) {
    str_addf(e->out, "UNROLL(%d) for (int q = 0; q < %d; q++) send((%s *)&", e->k->cluster, e->k->cluster, type);
    print_element(e, in, lane);
    str_addf(e->out, ", %s, &full%d, ((unsigned)group + q) %% %d);", x, in->buf, e->k->cluster);
}

/* What follows is done for the copy of each thread block q, the own one first, so that not all write to the same one. */
static void open_copies(clike *e, const kins *in) {
    if (is_copied(e, in)) str_addf(e->out, "UNROLL(%d) for (int q = 0; q < %d; q++) ", e->k->cluster, e->k->cluster);
}

/* A scatter's index that has been found to be small needs no wide arithmetic. */
static bool is_small(const clike *e, const kins *in) {
    if (!ext_is_lit(in->dyn_n) || !ext_is_lit(in->dyn_stride)) return false;
    double reach = (double)in->dyn_n * (double)in->dyn_stride;
    return e->l->gpu && in->op == K_SCATTER && e->k->ins.at[in->dyn].dtype == TN_I32 && reach < INT32_MAX / 2;
}

/* Of an element of shared memory: what an unrolled loop and constants add to the address that the others make. Said apart, it
 * becomes part of the load; nvcc else adds some of them up again for each. */
static affine unrolled_part(const clike *e, const kins *in, affine *out_rest) {
    affine near = affine_const(in->idx.base);
    *out_rest = affine_const(0);
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        affine *x = e->k->vars.at[t.var].role.unroll > 1 ? &near : out_rest;
        *x = affine_add(e->k->a, *x, affine_scale(e->k->a, affine_var(e->k->a, t.var), t.coef));
    }
    return near;
}

/* Where an element of swizzled memory lies: what moves by whole groups of 8 rows is added behind. */
static void print_swizzled(clike *e, const kins *in, int lane) {
    affine rest = in->idx;
    int64_t group = 8 * KERNEL_MATRIX, base = rest.base + lane * in->lane_stride;
    rest.base = base % group;
    str_addf(e->out, "b%d[((", in->buf);
    clike_affine(e, rest, 0);
    str_add(e->out, ") ^ (("); /* kernel_swizzled */
    clike_affine(e, rest, 0);
    str_addf(e->out, ") >> 6 & 7) << 3) + %lld%s]", (long long)(base - rest.base), e->index_end);
}

static bool print_near(clike *e, const kins *in, int lane) {
    affine rest, near;
    if (e->k->bufs.at[in->buf].swizzled) {
        print_swizzled(e, in, lane);
        return true;
    }
    if (!e->l->gpu || e->k->bufs.at[in->buf].kind != KB_SHARED || in->dyn) return false;
    near = unrolled_part(e, in, &rest);
    near.base += lane * in->lane_stride;
    if (rest.n == 0 || (near.n == 0 && near.base == 0)) return false;
    str_addf(e->out, "(&b%d[", in->buf);
    clike_affine(e, rest, 0);
    str_add(e->out, "])[");
    clike_affine(e, near, 0);
    str_add(e->out, "]");
    return true;
}

/* Whether a scatter's place is inside. */
static void print_inside(clike *e, const kins *in) {
    str_addf(e->out, "if ((uint64_t)v%u < ", in->dyn);
    if (ext_is_lit(in->dyn_n))
        str_addf(e->out, "%lldU%s", (long long)in->dyn_n, e->l->wide_end);
    else
        str_add(e->out, "(uint64_t)"), clike_ext(e, in->dyn_n);
    str_add(e->out, ") {");
}

static void print_wide(clike *e, ext x) {
    if (ext_is_lit(x))
        str_addf(e->out, "%lld%s", (long long)x, e->l->wide_end);
    else
        clike_ext(e, x);
}

static void print_element(clike *e, const kins *in, int lane) { /* b[..] of one lane */
    if (print_near(e, in, lane)) return;
    bool copied = is_copied(e, in) && !is_async(e, in);
    if (copied) str_addf(e->out, "*%s(&", e->l->copy_at);
    str_addf(e->out, "b%d[", in->buf);
    clike_affine(e, in->idx, lane * in->lane_stride);
    if (in->dyn && is_small(e, in)) {
        str_addf(e->out, " + v%u * %lld", in->dyn, (long long)in->dyn_stride);
    } else if (in->dyn) {
        const kins *d = &e->k->ins.at[in->dyn];
        str_addf(e->out, " + at_%s(", in->op == K_LOAD ? "clamped" : "raw");
        str_addf(e->out, d->lanes > 1 ? "v%u[%d]" : "v%u", in->dyn, lane);
        str_add(e->out, ", "), print_wide(e, in->dyn_n);
        str_add(e->out, ") * "), print_wide(e, in->dyn_stride);
    }
    str_add(e->out, "]");
    if (copied) str_addf(e->out, ", ((unsigned)group + q) %% %d)", e->k->cluster);
}

static void open_convert(clike *e, tn_dtype stored, int lanes) { /* memory word to register */
    switch (stored) {
    case TN_F16:
    case TN_BF16:
    case TN_F8E4M3:
    case TN_F8E5M2:
        e->needs.half = true;
        str_addf(e->out, "FROM_%s_f32x%d(", clike_narrow_float(stored), lanes);
        break;
    case TN_BOOL:
        str_add(e->out, "-(");
        break;
    default:
        str_add(e->out, "(");
        break;
    }
}

static const char *narrow_word(tn_dtype t) {
    if (dtype_size(t) >= 4) return NULL;
    if (dtype_kind(t) == TN_KIND_INT) return dtype_size(t) == 1 ? "i8" : "i16";
    return dtype_size(t) == 1 ? "u8" : "u16";
}

static void print_bounded(clike *e, const kmask *m, int64_t extra) {
    str_add(e->out, "((");
    clike_affine(e, m->e, extra);
    str_add(e->out, ") >= ");
    clike_ext(e, m->lo);
    str_add(e->out, " & (");
    clike_affine(e, m->e, extra);
    str_add(e->out, ") < ");
    clike_ext(e, m->hi);
    str_add(e->out, ")");
}

static void print_condition(clike *e, const kins *in, int lane) {
    for (int m = 0; m < in->n_mask; m++) {
        if (m) str_add(e->out, " & ");
        bool lit = ext_is_lit(in->mask[m].lo) && ext_is_lit(in->mask[m].hi);
        if (!lit && (in->mask[m].lo != 0 || ext_lo(e->k->params, in->mask[m].hi) < 0)) {
            print_bounded(e, &in->mask[m], lane * in->mask_lane[m]);
            continue;
        }
        str_addf(e->out, "((%s)(", e->unsigned_index);
        clike_affine(e, in->mask[m].e, lane * in->mask_lane[m] - in->mask[m].lo);
        if (lit)
            str_addf(e->out, ") < %lld%s)", (long long)(in->mask[m].hi - in->mask[m].lo), e->unsigned_end);
        else
            str_addf(e->out, ") < (%s)", e->unsigned_index), clike_ext(e, in->mask[m].hi), str_add(e->out, ")");
    }
}

/* The parts of a word as they lie in memory. */
static bool is_whole_word(const kins *in) {
    return in->packed && in->packed_stride == 1 && in->packed * (int)dtype_size((tn_dtype)in->src) == 4;
}

static void print_loaded(clike *e, const kins *in, int lane) { /* the register's value of one lane */
    if (!in->packed) {
        open_convert(e, (tn_dtype)in->src, 1);
        print_element(e, in, lane);
        str_add(e->out, ")");
    } else if (is_whole_word(in)) {
        str_add(e->out, "LDword_x1(&");
        print_element(e, in, lane);
        str_add(e->out, ")");
    } else {
        for (int p = 0; p < in->packed; p++) {
            kins part = *in;
            part.idx.base += p * in->packed_stride;
            str_add(e->out, p ? " | (uint32_t)(" : "(int32_t)((uint32_t)(");
            print_element(e, &part, lane);
            str_addf(e->out, " & %s) << %d", in->packed == 4 ? "0xff" : "0xffff", 32 / in->packed * p);
        }
        str_add(e->out, ")");
    }
}

static bool lanes_vary(const clike *e, const kins *in) { /* each lane needs its own load */
    if (in->packed && !(is_whole_word(in) && in->lane_stride == in->packed)) return true;
    for (int m = 0; m < in->n_mask; m++)
        if (in->mask_lane[m]) return true;
    return (in->lane_stride != 1 && !in->packed) || (in->dyn && e->k->ins.at[in->dyn].lanes > 1);
}

/* A loop with products stands before it in the same block. Compilers would load such a vector, as a bias is, before all loops
 * round them, if it does not change there, and have too few registers for the tile. */
static bool follows_contraction(const clike *e, reg r) {
    int depth = 0;
    for (reg i = r - 1; i > 0; i--) {
        const kins *in = &e->k->ins.at[i];
        if (in->op == K_LOOP && depth-- == 0) return false;
        depth += in->op == K_END;
        if (depth && in->op == K_UPD && in->alu == OP_dot) return true;
    }
    return false;
}

static void print_vector_load(clike *e, const kins *in, int lane) { /* from this one on */
    tn_dtype stored = (tn_dtype)in->src;
    const char *narrow = narrow_word(stored);
    if (in->packed)
        str_add(e->out, "(");
    else
        open_convert(e, stored, in->lanes);
    if (in->packed)
        str_addf(e->out, "LDword_x%d(&", in->lanes);
    else if (narrow)
        str_addf(e->out, "LD%s_x%d(&", narrow, in->lanes);
    else
        str_addf(e->out, "LD_%sx%d(&", clike_reg_type(stored), in->lanes);
    print_element(e, in, lane);
    str_add(e->out, "))");
}

/* Every second of the words that the lanes reach over: two vectors have them all, without a word behind the last. */
static bool is_every_second(const clike *e, const kins *in) {
    return !e->l->gpu && in->lanes >= 4 && in->lane_stride == 2 && !in->packed && !in->n_mask &&
           dtype_reg((tn_dtype)in->src) == in->src && dtype_size((tn_dtype)in->src) >= 4 &&
           !(in->dyn && e->k->ins.at[in->dyn].lanes > 1);
}
static void print_every_second(clike *e, const kins *in) {
    kins upper = *in;
    upper.lane_stride = in->lanes - 1; /* from there on; the base may be a row of the table */
    /* Eight words are two instructions when halves of 16 bytes stay where they are and pairs of words move then, else three. */
    bool pairs = in->lanes == 8 && dtype_size((tn_dtype)in->src) == 4;
    if (pairs) {
        clike_need(e, TN_F64, 4);
        str_addf(e->out, "(%sx8)__builtin_shufflevector((f64x4)", clike_reg_type((tn_dtype)in->src));
    }
    str_add(e->out, "__builtin_shufflevector(");
    print_vector_load(e, in, 0);
    str_add(e->out, ", ");
    print_vector_load(e, &upper, 1);
    for (int l = 0; l < in->lanes; l++) {
        static const int from[] = { 0, 2, 9, 11, 4, 6, 13, 15 };
        str_addf(e->out, ", %d", pairs ? from[l] : 2 * l + (l >= in->lanes / 2));
    }
    str_add(e->out, pairs ? "), (f64x4){ 0 }, 0, 2, 1, 3)" : ")");
}

/* Used by several multiply-adds: gcc would read memory again for each of them, and loads are what a tile is short of. */
bool clike_feeds_contraction(const clike *e, reg r) {
    int n = 0;
    for (reg i = r + 1; i < (reg)e->k->ins.n && e->k->ins.at[i].op != K_END; i++)
        n += e->k->ins.at[i].op == K_UPD && e->k->ins.at[i].alu == OP_dot && (e->k->ins.at[i].a == r || e->k->ins.at[i].b == r);
    return n > 1;
}

static void print_stored(clike *e, const kins *in, int lanes, int lane);

/* ---- several lanes on GPUs: a register is an array ---- */

/* Lanes that go through memory at once. */
static int piece_of(const clike *e, const kins *in) {
    int size = (int)dtype_size((tn_dtype)e->k->bufs.at[in->buf].dtype), n = in->lanes;
    while (n * size > 16) n /= 2;
    while (n > 1 && (n * size < 4 || !kernel_aligned(e->k, in, n))) n = n * size < 4 ? 1 : n / 2;
    return e->k->bufs.at[in->buf].kind == KB_LOCAL && size != 2 ? 1 : n;
}

/* Lanes that go through memory at once in a run whose sizes have them begin at a multiple of 16 bytes. 0: that does not depend
 * on sizes. All threads find the same, or nearly so. */
static int piece_of_run(const clike *e, const kins *in) {
    const kbuf *b = &e->k->bufs.at[in->buf];
    int size = (int)dtype_size((tn_dtype)b->dtype), n = size ? 16 / size : 0;
    bool sized = !ext_is_lit(in->idx.base);
    for (int i = 0; i < in->idx.n; i++) sized = sized || !ext_is_lit(in->idx.t[i].coef);
    if (!sized || in->lane_stride != 1 || in->packed || in->dyn || size < 4 || n < 2 || in->lanes % n) return 0;
    return kbuf_is_local(b) || piece_of(e, in) > 1 ? 0 : n;
}

/* Lanes [lane, lane + n) are all there, and begin at such a multiple. */
static void print_piece_condition(clike *e, const kins *in, int lane, int n) {
    str_add(e->out, "if (((size_t)(&");
    print_element(e, in, lane);
    str_add(e->out, ") & 15) == 0");
    for (int end = 0; end < (in->n_mask ? 2 : 0); end++) {
        str_add(e->out, " & ");
        print_condition(e, in, end ? lane + n - 1 : lane);
    }
    str_add(e->out, ")");
}

bool clike_is_kept(const clike *e, const kins *load) {
    const kins *store = load + 1, *last = &e->k->ins.at[e->k->ins.n - 1];
    return e->k->block_threads && store < last && load->op == K_LOAD && load->lanes == 8 && load->mode == LOAD_HOISTED &&
           dtype_size((tn_dtype)load->src) == 2 && !load->n_mask && !load->dyn && store->op == K_STORE &&
           &e->k->ins.at[store->a] == load && store[1].op == K_END && e->k->bufs.at[store->buf].kind == KB_LOCAL &&
           store->dtype == load->src && !store->n_mask && piece_of(e, load) == 8 && piece_of(e, store) == 8;
}

/* The type of n elements of memory, and what its parts are called. */
static const char *piece_type(clike *e, tn_dtype t, int n) {
    static const char *const words[] = { "uint32_t", "uint2", "", "uint4" };
    switch (t) {
    case TN_F32:
        return n == 4 ? "float4" : "float2";
    case TN_I32:
        return n == 4 ? "int4" : "int2";
    case TN_F64:
        return "double2";
    case TN_I64:
    case TN_U64:
        return e->l->long2;
    default:
        return words[n * (int)dtype_size(t) / 4 - 1];
    }
}
static const char *part(const char *type, int i) {
    static const char *const parts[] = { ".x", ".y", ".z", ".w" };
    return strcmp(type, "uint32_t") ? parts[i] : "";
}

static void print_place(clike *e, const kins *in, const char *type, int lane) {
    int kind = e->k->bufs.at[in->buf].kind;
    const char *space = kind == KB_LOCAL ? "" : kind >= KB_SHARED ? e->l->shared_space : e->l->global;
    str_addf(e->out, "*(%s%s%s *)&", space, e->k->bufs.at[in->buf].kind == KB_IN ? "const " : "", type);
    print_element(e, in, lane);
}

static bool is_ahead(const clike *e, const kins *in) { return in->mode == LOAD_HOISTED && e->l->ahead && in->src == TN_F32; }

static bool same_base(const kins *x, const kins *y) {
    affine a = x->idx, b = y->idx;
    a.base = b.base = 0;
    return x->buf == y->buf && x->dyn == y->dyn && x->dyn_n == y->dyn_n && x->dyn_stride == y->dyn_stride && affine_equal(a, b);
}

/* Another place in each iteration of a serial loop. */
static bool moves(const clike *e, const kins *in) {
    for (int i = 1; i < e->k->ins.n && !in->dyn; i++) {
        const kins *loop = &e->k->ins.at[i];
        if (loop->op == K_LOOP && loop->par == PAR_SERIAL && affine_coef(in->idx, loop->var)) return true;
    }
    return in->dyn;
}

/* Loads of a loop that differ by constants share an address, which has a name: compilers take as long for it as for each of
 * them. Elsewhere ptxas makes other code where it has one, and a network of 64 x 64 took 11.3 us on an H200, not 11.1. */
static void name_base(clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    if (!is_ahead(e, in) || !moves(e, in)) return;
    for (int i = 0; i < e->bases.n; i++)
        if (same_base(&e->k->ins.at[e->bases.at[i].first], in)) return;
    kins from = *in;
    from.idx.base = 0;
    VEC_PUSH(e->out->a, &e->bases, (named_base){ r, e->braces.n });
    str_addf(e->out, "const float *const p%u = &", r);
    print_element(e, &from, 0);
    str_add(e->out, ";\n");
    clike_line(e);
}

static void print_ahead(clike *e, const kins *in, const char *type, int lane) {
    long long apart = (long long)(in->idx.base + lane * in->lane_stride);
    for (int i = 0; i < e->bases.n; i++) {
        if (!same_base(&e->k->ins.at[e->bases.at[i].first], in)) continue;
        str_addf(e->out, "%s((const %s *)(p%u + %lld))", e->l->ahead, type, e->bases.at[i].first, apart);
        return;
    }
    kins from = *in;
    from.idx.base = 0;
    str_addf(e->out, "%s((const %s *)(&", e->l->ahead, type);
    print_element(e, &from, 0);
    str_addf(e->out, " + %lld))", apart);
}

static void load_piece(clike *e, const kins *in, reg r, int lane, int n) {
    tn_dtype t = (tn_dtype)in->src;
    int size = (int)dtype_size(t);
    const char *type = piece_type(e, t, n);
    bool anew = in->mode == LOAD_REMATERIALISED && e->l->anew && size < 4;
    str_addf(e->out, " { %s%s q = ", anew ? "" : "const ", type);
    if (e->early && e->early[r])
        str_addf(e->out, "a%u[%s * %d + %d]", r, e->early[r], in->lanes / n, lane / n);
    else if (is_ahead(e, in))
        print_ahead(e, in, type, lane);
    else
        print_place(e, in, type, lane);
    str_add(e->out, ";");
    for (int i = 0; i < n * size / 4 && anew; i++) {
        str_add(e->out, " ");
        str_addf(e->out, e->l->anew, arena_printf(e->out->a, "q%s", part(type, i)));
    }
    for (int i = 0; i < n; i++) {
        str_addf(e->out, " v%u[%d] = ", r, lane + i);
        open_convert(e, t, 1);
        if (size >= 4)
            str_addf(e->out, "q%s);", part(type, i));
        else
            str_addf(e->out, "(%s)(q%s >> %d));", clike_memory_type(t), part(type, i * size / 4), i * size % 4 * 8);
    }
    str_add(e->out, " }");
}

/* Whether all threads of a thread block find the same: nothing in it is a thread's own. */
static bool is_uniform(const clike *e, affine x) {
    for (int i = 0; i < x.n; i++)
        for (int k = 1; k < e->k->ins.n; k++) {
            const kins *in = &e->k->ins.at[k];
            if (in->op == K_LOOP && in->var == x.t[i].var && in->par != PAR_SERIAL && in->par != PAR_BLOCKS) return false;
        }
    return true;
}

/* An early load under a condition that is the thread block's. */
static bool wants_branch(const clike *e, const kins *in) {
    bool wants = e->l->barrier32 && in->op == K_LOAD && in->mode == LOAD_UNMASKED && in->lanes > 1;
    for (int m = 0; m < in->n_mask && wants; m++) wants = !in->mask_lane[m] && is_uniform(e, in->mask[m].e);
    return wants;
}

/* Both loads stand in one branch. */
static bool same_branch(const clike *e, const kins *x, const kins *y) {
    bool same = wants_branch(e, x) && wants_branch(e, y) && x->n_mask == y->n_mask;
    for (int m = 0; m < x->n_mask && same; m++)
        same = affine_equal(x->mask[m].e, y->mask[m].e) && x->mask[m].lo == y->mask[m].lo && x->mask[m].hi == y->mask[m].hi;
    return same;
}

static void print_fill(clike *e, const kins *in, reg r, int lane, int n) {
    for (int i = 0; i < n; i++) {
        str_addf(e->out, " v%u[%d] = ", r, lane + i);
        clike_value(e, (tn_dtype)in->dtype, in->imm, in->src == TN_BOOL ? -(in->imm_int != 0) : in->imm_int);
        str_add(e->out, ";");
    }
}

static void load_lanes(clike *e, const kins *in, reg r, int lane, int n) {
    if (n > 1) {
        load_piece(e, in, r, lane, n);
        return;
    }
    str_addf(e->out, " v%u[%d] = ", r, lane);
    open_convert(e, (tn_dtype)in->src, 1);
    print_element(e, in, lane);
    str_add(e->out, ");");
}

/* Early loads in a row under one condition are one branch, which leaves open what they give where it does not hold. Threads
 * meet in it, so that it stays a branch: where ptxas makes conditions of the single loads, or numbers to fill in, it moves them
 * down to what needs them, and memory has a third of the time. */
static void load_in_branch(clike *e, const kins *in, reg r) {
    bool first = !same_branch(e, in - 1, in), last = !same_branch(e, in, in + 1);
    int n = piece_of(e, in);
    for (int i = 0; first && (i == 0 || same_branch(e, in, in + i)); i++) {
        str_addf(e->out, "%sx1 v%u[%d]; ", clike_reg_type((tn_dtype)in[i].dtype), r + (reg)i, in[i].lanes);
    }
    if (first) {
        str_add(e->out, "if (");
        print_condition(e, in, 0);
        str_add(e->out, ") {");
    }
    for (int lane = 0; lane < in->lanes; lane += n) load_lanes(e, in, r, lane, n);
    if (last) str_addf(e->out, " %s }", e->l->barrier32);
    str_add(e->out, "\n");
}

static void load_array(clike *e, const kins *in, reg r) {
    int n = piece_of(e, in);
    clike_need(e, (tn_dtype)in->dtype, 1);
    if (wants_branch(e, in)) {
        load_in_branch(e, in, r);
        return;
    }
    str_addf(e->out, "%sx1 v%u[%d];", clike_reg_type((tn_dtype)in->dtype), r, in->lanes);
    int whole = in->op == K_LOAD ? piece_of_run(e, in) : 0;
    for (int lane = 0; lane < in->lanes; lane += n) {
        if (whole && lane % whole == 0) {
            str_add(e->out, " ");
            print_piece_condition(e, in, lane, whole);
            load_piece(e, in, r, lane, whole);
            str_add(e->out, " else {");
        }
        if (in->n_mask) {
            str_add(e->out, " if (");
            print_condition(e, in, lane);
            str_add(e->out, ")");
        }
        if (in->n_mask && n == 1) str_add(e->out, " {");
        load_lanes(e, in, r, lane, n);
        if (in->n_mask && n == 1) str_add(e->out, " }");
        if (in->n_mask) {
            str_add(e->out, " else {");
            print_fill(e, in, r, lane, n);
            str_add(e->out, " }");
        }
        if (whole && lane % whole == whole - 1) str_add(e->out, " }");
    }
    str_add(e->out, "\n");
}

/* ---- before a kernel waits: overlap.c ---- */

static int early_piece(const clike *e, const kins *in) { return in->lanes > 1 ? piece_of(e, in) : 1; }

int64_t clike_early_bytes(const clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    if (in->op != K_LOAD || !e->k->bufs.at[in->buf].fixed || in->dyn || in->n_mask || in->packed || in->mode) return 0;
    int size = (int)dtype_size((tn_dtype)in->src), n = early_piece(e, in);
    bool takes =
        n > 1 ? in->lane_stride == 1 && (size < 4 || in->src == TN_F32) : in->lanes == 1 && (size == 2 || in->src == TN_F32);
    return !takes ? 0 : in->lanes * size < 4 ? 4 : in->lanes * size;
}

static const char *early_type(clike *e, const kins *in) {
    int n = early_piece(e, in);
    return n > 1 ? piece_type(e, (tn_dtype)in->src, n) : dtype_size((tn_dtype)in->src) == 2 ? "uint16_t" : "float";
}

void clike_declare_early(clike *e, reg r, int turns) {
    const kins *in = &e->k->ins.at[r];
    clike_line(e);
    str_addf(e->out, "%s a%u[%d];\n", early_type(e, in), r, turns * in->lanes / early_piece(e, in));
}

void clike_load_early(clike *e, reg r) {
    const kins *in = &e->k->ins.at[r];
    int n = early_piece(e, in);
    for (int lane = 0; lane < in->lanes; lane += n) {
        clike_line(e);
        str_addf(e->out, "a%u[%s * %d + %d] = %s((const %s *)&", r, e->early[r], in->lanes / n, lane / n, e->l->ahead,
                 early_type(e, in));
        print_element(e, in, lane);
        str_add(e->out, ");\n");
    }
}

bool clike_is_async(const clike *e, const kins *load) {
    return e->l->async_wait && load->op == K_LOAD && load->mode == LOAD_ASYNC;
}

static void copy_async(clike *e, const kins *load, const kins *store) {
    if (e->bulk.stages) e->bulk.elems[store->buf] = 0, e->bulk.last = false;
    if (store->n_mask) {
        str_add(e->out, "if (");
        print_condition(e, store, 0);
        str_add(e->out, ") ");
    }
    str_addf(e->out, "copy_async%d(&", load->lanes * (int)dtype_size((tn_dtype)load->src));
    print_element(e, store, 0);
    str_add(e->out, ", &");
    print_element(e, load, 0);
    str_add(e->out, ", ");
    if (load->n_mask)
        print_condition(e, load, 0);
    else
        str_add(e->out, "true");
    str_add(e->out, ");\n");
}

/* Two lanes of a as one word of bf16. */
static void print_pair(clike *e, reg a, int lane) {
    bool wide = e->k->ins.at[a].lanes > 1;
    str_addf(e->out, wide ? " %s(v%u[%d]" : " %s(v%u", e->l->pack_bf16, a, lane);
    str_addf(e->out, wide ? ", v%u[%d]);" : ", v%u);", a, lane + 1);
}

static void store_piece(clike *e, const kins *in, int lane, int n) {
    tn_dtype t = (tn_dtype)in->dtype;
    int size = (int)dtype_size(t), per_word = size < 4 ? 4 / size : 1;
    const char *type = piece_type(e, t, n);
    str_addf(e->out, "{ %s x;", type);
    for (int i = 0; i < n; i++) {
        if (i % per_word == 0) str_addf(e->out, " x%s =", part(type, i / per_word));
        if (t == TN_BF16 && e->l->pack_bf16) {
            print_pair(e, in->a, lane + i++);
            continue;
        }
        if (size < 4) str_addf(e->out, " %s(uint32_t)(uint%d_t)", i % per_word ? "| " : "", 8 * size);
        str_add(e->out, size < 4 ? "(" : " ");
        bool apart = e->l->apart && t == TN_F32 && n == 4 && e->k->ins.at[in->a].op == K_ACC && e->k->ins.at[in->a].alu;
        if (apart) str_addf(e->out, "%s(", e->l->apart);
        print_stored(e, in, 1, lane + i);
        if (apart) str_add(e->out, ")");
        if (size < 4) str_addf(e->out, ") << %d", i % per_word * size * 8);
        if (i % per_word == per_word - 1) str_add(e->out, ";");
    }
    str_add(e->out, " ");
    if (is_async(e, in)) {
        send(e, in, type, lane, "x");
        str_add(e->out, " }\n");
        return;
    }
    open_copies(e, in);
    print_place(e, in, type, lane);
    str_add(e->out, " = x; }\n");
}

/* What the unrolled loops round it add to the place is added last: then it is a constant of the instruction, and loads follow
 * each other without a sum between them. */
static void keep(clike *e, const kins *load, const kins *store) {
    affine iterations = affine_const(0);
    kins first = *load;
    for (int i = 0; i < load->idx.n; i++) {
        kvar v = load->idx.t[i].var;
        if (e->k->vars.at[v].role.unroll < 2) continue;
        iterations = affine_add(e->out->a, iterations, affine_scale(e->out->a, affine_var(e->out->a, v), load->idx.t[i].coef));
        first.idx = affine_set_var(e->out->a, first.idx, v, affine_const(0));
    }
    print_place(e, store, "uint4", 0);
    str_addf(e->out, " = %s((%sconst uint4 *)(&", e->l->ahead ? e->l->ahead : "*", e->l->global);
    print_element(e, &first, 0);
    str_add(e->out, " + ");
    clike_affine(e, iterations, 0);
    str_add(e->out, "));\n");
}

static void store_array(clike *e, const kins *in) {
    tn_dtype t = (tn_dtype)in->dtype;
    int n = piece_of(e, in);
    if (clike_is_kept(e, &e->k->ins.at[in->a])) {
        keep(e, &e->k->ins.at[in->a], in);
        return;
    }
    clike_need(e, dtype_reg(t), 1);
    int whole = is_async(e, in) || in->op != K_STORE ? 0 : piece_of_run(e, in);
    for (int lane = 0; lane < in->lanes; lane += n) {
        if (lane) clike_line(e);
        if (whole && lane % whole == 0) {
            print_piece_condition(e, in, lane, whole);
            str_add(e->out, " ");
            store_piece(e, in, lane, whole);
            clike_line(e);
            str_add(e->out, "else {\n");
            clike_line(e);
        }
        if (in->n_mask) {
            str_add(e->out, "if (");
            print_condition(e, in, lane);
            str_add(e->out, ") ");
        }
        if (n > 1) {
            store_piece(e, in, lane, n);
            continue;
        }
        if (is_async(e, in)) {
            send(e, in, "float", lane, arena_printf(e->out->a, e->k->ins.at[in->a].lanes > 1 ? "v%u[%d]" : "v%u", in->a, lane));
            str_add(e->out, "\n");
            continue;
        }
        open_copies(e, in);
        print_element(e, in, lane);
        str_addf(e->out, " = (%s)", clike_memory_type(t));
        print_stored(e, in, 1, lane);
        str_add(e->out, ";\n");
        if (whole && lane % whole == whole - 1) clike_line(e), str_add(e->out, "}\n");
    }
}

/* ---- all languages ---- */

/* Two taps of a window read one element in different copies of an unrolled body. */
static bool taps_meet(const clike *e, const kins *loop, const kins *x, int copies) {
    ext coef = affine_coef(x->idx, loop->var);
    int64_t by = ext_is_lit(coef) && ext_is_lit(x->idx.base) ? coef * loop->step : 0;
    for (const kins *y = x + 1; y->op != K_END && by > 0; y++) {
        if (y->op != K_LOAD || y->lanes > 1 || !same_base(x, y) || !ext_is_lit(y->idx.base)) continue;
        int64_t apart = y->idx.base > x->idx.base ? y->idx.base - x->idx.base : x->idx.base - y->idx.base;
        if (apart && apart % by == 0 && apart / by < copies && clike_feeds_contraction(e, (reg)(y - e->k->ins.at))) return true;
    }
    return false;
}

/* Before each copy of a body: gcc would keep what taps of two copies read, and sums of the tile in memory instead. */
void clike_forget_taps(clike *e, reg loop, int copies) {
    const kins *all = e->k->ins.at;
    int last = -1;
    for (reg i = loop + 1; all[i].op != K_LOOP && all[i].op != K_END; i++) {
        const kins *x = &all[i];
        if (x->op != K_LOAD || x->lanes > 1 || x->buf == last || e->k->bufs.at[x->buf].kind != KB_IN) continue;
        if (!clike_feeds_contraction(e, i) || !taps_meet(e, &all[loop], x, copies)) continue;
        last = x->buf;
        clike_line(e);
        str_addf(e->out, "AGAIN(b%d);\n", last);
    }
}

void clike_load(clike *e, const kins *in, reg r) {
    tn_dtype stored = (tn_dtype)in->src, t = (tn_dtype)in->dtype;
    name_base(e, r);
    if (e->l->gpu && in->lanes > 1) {
        load_array(e, in, r);
        return;
    }
    clike_need(e, t, in->lanes);
    const char *type = clike_reg_type(t);
    if (in->lanes > 1 && !lanes_vary(e, in) && !in->n_mask && !e->l->gpu && e->k->bufs.at[in->buf].kind == KB_IN &&
        follows_contraction(e, r)) {
        str_addf(e->out, "AGAIN(b%d); ", in->buf);
    }
    if (in->lanes == 1) {
        str_addf(e->out, "%sx1 v%u = ", type, r);
        if (in->n_mask) {
            str_add(e->out, "(");
            print_condition(e, in, 0);
            str_add(e->out, ") ? ");
        }
        if (e->early && e->early[r]) {
            open_convert(e, stored, 1);
            str_addf(e->out, "a%u[%s])", r, e->early[r]);
        } else if (is_ahead(e, in)) {
            print_ahead(e, in, "float", 0);
        } else {
            print_loaded(e, in, 0);
        }
        if (in->n_mask) {
            str_add(e->out, " : ");
            clike_value(e, t, in->imm, stored == TN_BOOL ? -(in->imm_int != 0) : in->imm_int);
        }
    } else if (!lanes_vary(e, in)) {
        if (in->n_mask) {
            str_addf(e->out, "%sx%d v%u = K_%sx%d(", type, in->lanes, r, type, in->lanes);
            clike_value(e, t, in->imm, stored == TN_BOOL ? -(in->imm_int != 0) : in->imm_int);
            str_add(e->out, "); if (");
            print_condition(e, in, 0);
            str_addf(e->out, ") v%u = ", r);
        } else {
            str_addf(e->out, "%sx%d v%u = ", type, in->lanes, r);
        }
        print_vector_load(e, in, 0);
        int bytes = in->lanes * (int)dtype_size(dtype_reg(t));
        if (in->op == K_LOAD && bytes >= 16 && bytes <= 64 && clike_feeds_contraction(e, r))
            str_addf(e->out, "; KEEP_%d(v%u)", bytes, r);
    } else if (is_every_second(e, in)) {
        str_addf(e->out, "%sx%d v%u = ", type, in->lanes, r);
        print_every_second(e, in);
    } else {
        clike_need(e, t, 1);
        str_addf(e->out, "%sx%d v%u = { ", type, in->lanes, r);
        for (int l = 0; l < in->lanes; l++) {
            if (l) str_add(e->out, ", ");
            if (in->n_mask) {
                str_add(e->out, "(");
                print_condition(e, in, l);
                str_add(e->out, ") ? ");
            }
            print_loaded(e, in, l);
            if (in->n_mask) {
                str_add(e->out, " : ");
                clike_value(e, t, in->imm, stored == TN_BOOL ? -(in->imm_int != 0) : in->imm_int);
            }
        }
        str_add(e->out, " }");
    }
    str_add(e->out, ";\n");
}

static void print_stored(clike *e, const kins *in, int lanes, int lane) { /* register to memory word */
    tn_dtype t = (tn_dtype)in->dtype;
    const kins *a = &e->k->ins.at[in->a];
    if (dtype_is_narrow_float(t)) {
        e->needs.half = true;
        str_addf(e->out, "TO_%s_f32x%d(", clike_narrow_float(t), lanes);
    }
    if (t == TN_BOOL) str_add(e->out, "(1 & ");
    if (lanes > 1)
        clike_operand(e, in->a, lanes);
    else
        str_addf(e->out, a->lanes > 1 ? "v%u[%d]" : "v%u", in->a, lane);
    if (dtype_is_narrow_float(t) || t == TN_BOOL) str_add(e->out, ")");
}

void clike_store(clike *e, const kins *in) {
    tn_dtype t = (tn_dtype)in->dtype;
    const char *narrow = narrow_word(t);
    if (in->op == K_STORE && clike_is_async(e, in - 1) && &e->k->ins.at[in->a] == in - 1) {
        copy_async(e, in - 1, in);
        return;
    }
    if (e->l->gpu && in->lanes > 1) {
        store_array(e, in);
        return;
    }
    clike_need(e, dtype_reg(t), in->lanes);
    if (in->lanes > 1 && in->lane_stride == 1 && in->op == K_STORE) {
        if (narrow)
            str_addf(e->out, "ST%s_x%d(&", narrow, in->lanes);
        else
            str_addf(e->out, "ST_%sx%d(&", clike_reg_type(t), in->lanes);
        print_element(e, in, 0);
        str_add(e->out, ", ");
        print_stored(e, in, in->lanes, 0);
        str_add(e->out, ");\n");
        return;
    }
    clike_need(e, dtype_reg(t), 1);
    for (int l = 0; l < in->lanes; l++) {
        if (l) clike_line(e);
        if (in->n_mask) {
            str_add(e->out, "if (");
            print_condition(e, in, l);
            str_add(e->out, ") ");
        }
        if (is_async(e, in)) {
            send(e, in, "float", l, arena_printf(e->out->a, e->k->ins.at[in->a].lanes > 1 ? "v%u[%d]" : "v%u", in->a, l));
            str_add(e->out, "\n");
            continue;
        }
        open_copies(e, in);
        print_element(e, in, l);
        str_addf(e->out, " = (%s)", clike_memory_type(t));
        print_stored(e, in, 1, l);
        str_add(e->out, ";\n");
    }
}

/* The same by another op than a sum: a function of what is there and the value. */
static void print_combined(clike *e, const kins *in, op_code op, const char *x, int l) {
    tn_dtype t = (tn_dtype)in->dtype, held = dtype_reg(t);
    bool half = dtype_is_narrow_float(t);
    if (half) str_addf(e->out, "TO_%s_f32x1(", clike_narrow_float(t));
    clike_use_op(e, op, held, 1);
    str_addf(e->out, "op_%s_%sx1(", op_get(op)->name, clike_reg_type(held));
    open_convert(e, t, 1);
    if (x)
        str_add(e->out, x);
    else
        print_element(e, in, l);
    str_addf(e->out, e->k->ins.at[in->a].lanes > 1 ? "), v%u[%d])" : "), v%u)", in->a, l);
    str_add(e->out, half ? ");" : ";");
}

/* What is at x, or in memory where that is NULL, and lane l of the scatter's value, or the value alone; integers wrap around.
 */
static void print_added(clike *e, const kins *in, const char *x, int l) {
    tn_dtype t = (tn_dtype)in->dtype;
    bool half = dtype_is_narrow_float(t), is_int = !dtype_is_float(t);
    op_code op = kernel_scatter_op(in);
    str_addf(e->out, " = (%s)", clike_memory_type(t));
    if (!op) {
        print_stored(e, in, 1, l);
        str_add(e->out, ";");
        return;
    }
    if (op != OP_add) {
        print_combined(e, in, op, x, l);
        return;
    }
    if (half) str_addf(e->out, "TO_%s_f32x1(", clike_narrow_float(t));
    if (is_int) str_add(e->out, "((uint64_t)");
    open_convert(e, t, 1);
    if (x)
        str_add(e->out, x);
    else
        print_element(e, in, l);
    str_add(e->out, is_int ? ") + (uint64_t)" : ") + ");
    str_addf(e->out, e->k->ins.at[in->a].lanes > 1 ? "v%u[%d]" : "v%u", in->a, l);
    str_add(e->out, is_int ? ");" : half ? ");" : ";");
}

static void scatter_piece(clike *e, const kins *in, int lane, int n) {
    const char *type = piece_type(e, (tn_dtype)in->dtype, n);
    str_addf(e->out, "{ %s q = ", type);
    print_place(e, in, type, lane);
    str_add(e->out, ";");
    for (int i = 0; i < n; i++) {
        const char *x = arena_printf(e->out->a, "q%s", part(type, i));
        str_addf(e->out, " %s", x);
        print_added(e, in, x, lane + i);
    }
    str_add(e->out, " ");
    print_place(e, in, type, lane);
    str_add(e->out, " = q; }");
}

/* In shared memory an element is read and added to in any case, and written where it is to be: there is no branch round it. */
static void scatter_fast(clike *e, const kins *in) {
    kins at = *in;
    str_addf(e->out, "{ const bool in = (uint32_t)v%u < %lldU", in->dyn, (long long)in->dyn_n);
    if (in->n_mask) str_add(e->out, " & ");
    print_condition(e, in, 0);
    at.dyn = 0;
    str_addf(e->out, "; %s%s *const p = &", e->l->shared_space, clike_memory_type((tn_dtype)in->dtype));
    print_element(e, &at, 0);
    str_addf(e->out, " + (in ? v%u * %lld : 0); %s q", in->dyn, (long long)in->dyn_stride,
             clike_memory_type((tn_dtype)in->dtype));
    print_added(e, in, "*p", 0);
    str_add(e->out, " if (in) *p = q; }\n");
}

void clike_scatter(clike *e, const kins *in) {
    tn_dtype t = (tn_dtype)in->dtype;
    int n = e->l->gpu && in->lanes > 1 && dtype_size(t) >= 4 ? piece_of(e, in) : 1;
    clike_need(e, dtype_reg(t), 1);
    if (is_small(e, in) && in->lanes == 1 && e->k->bufs.at[in->buf].kind == KB_SHARED) {
        scatter_fast(e, in);
        return;
    }
    if (is_small(e, in))
        str_addf(e->out, "if ((uint32_t)v%u < %lldU) {", in->dyn, (long long)in->dyn_n);
    else
        print_inside(e, in);
    for (int l = 0; l < in->lanes; l += n) {
        str_add(e->out, " ");
        if (in->n_mask) {
            str_add(e->out, "if (");
            print_condition(e, in, l);
            str_add(e->out, ") ");
        }
        if (n > 1) {
            scatter_piece(e, in, l, n);
            continue;
        }
        print_element(e, in, l);
        print_added(e, in, NULL, l);
    }
    str_add(e->out, " }\n");
}

/* By the argument's number: a compiler that sees its pointer go to where it cannot look takes the memory for changed, and loads
 * once more what threads hold. */
static void fetch_line(clike *e, const kins *in) {
    const kbuf *kb = &e->k->bufs.at[in->buf];
    int argument = 0;
    if (!e->l->fetch) {
        str_add(e->out, "(void)0;\n");
        return;
    }
    for (int b = 0; b < in->buf; b++) argument += !kbuf_is_local(&e->k->bufs.at[b]);
    str_add(e->out, "if (");
    clike_affine(e, in->idx, 0);
    str_addf(e->out, " < %lld%s) ", (long long)kb->elems, e->index_end);
    str_addf(e->out, e->l->fetch, e->prefix, e->id, argument);
    str_add(e->out, "((int64_t)(");
    clike_affine(e, in->idx, 0);
    str_addf(e->out, ") * %d));\n", (int)dtype_size((tn_dtype)kb->dtype));
}

void clike_prefetch(clike *e, const kins *in) {
    if (e->l->gpu) {
        fetch_line(e, in);
        return;
    }
    str_add(e->out, "__builtin_prefetch(&");
    print_element(e, in, 0);
    str_add(e->out, in->mode == PREFETCH_WRITE ? ", 1);\n" : in->mode == PREFETCH_L2 ? ", 0, 2);\n" : ");\n");
}
