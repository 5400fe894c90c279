/* memory.c - loads, stores and scatters of a kernel as operations: neighbouring and strided lanes, masks, dynamic indices,
 * narrow and half types. In: a kernel instruction and the selector's table of values. Out: operations. */
#include "emit/x86/select.h"

static xmem element(selector *s, const kins *in, affine x, int64_t size) {
    greg base = x86_base_of(s->f, in->buf, s->local);
    return x86_address(s->f, base, x, size);
}

/* ---- loads ---- */

static xval word(xfn *f, x86_id id, int vl, xmem m, xtype t) {
    vreg r = x86_new(f, vl);
    x86_add(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .dst = r, .has_mem = true, .mem = m });
    return (xval){ r, t };
}

/* f16: n neighbouring ones from memory, or those in the low 16-bit words of a register. */
static xval load_half(xfn *f, xmem m, int n) {
    if (n >= 4) return word(f, X86_CVTPH2PS, x86_vl(XF32, n), m, XF32);
    vreg r = n == 2 ? word(f, X86_MOVSS, 0, m, XI32).r : x86_new(f, 0);
    if (n == 1) x86_add(f, (xop){ .op = P_LDNARROW, .dst = r, .imm = 3, .has_mem = true, .mem = m });
    return (xval){ x86_value(f, (xop){ .op = X86_CVTPH2PS, .a = r }), XF32 };
}

/* Memory words to register words: n neighbouring ones. Narrow ones come as 32-bit integers, f16 as f32 where the processor can.
 */
static xval load_raw(selector *s, tn_dtype stored, xmem m, int n, bool spread) {
    xfn *f = s->f;
    size_t size = dtype_size(stored);
    xtype t = size >= 4 ? xt(stored) : XI32;
    if (stored == TN_F16 && f->level != X86_SSE) return load_half(f, m, n);
    if (size >= 4) {
        int bytes = n * (int)size;
        if (n == 1 && spread && f->level != X86_SSE) {
            int vl = x86_full_vl(f);
            xval x = word(f, size == 4 ? X86_BROADCASTSS : vl ? X86_BROADCASTSD : X86_MOVDDUP, vl, m, t);
            f->v.at[x.r].full = true;
            return x;
        }
        return word(f, bytes == 4 ? X86_MOVSS : bytes == 8 ? X86_MOVSD : X86_MOVUPS, x86_vl(t, n), m, t);
    }
    bool sign = stored == TN_I8;
    if (n == 1 || (n == 2 && size == 1)) {
        vreg r = x86_new(f, 0);
        int how = size == 2 || n == 2 ? 3 : sign ? 2 : 1;
        x86_add(f, (xop){ .op = P_LDNARROW, .dst = r, .imm = how, .has_mem = true, .mem = m });
        if (n == 2) r = x86_value(f, (xop){ .op = sign ? X86_PMOVSXBD : X86_PMOVZXBD, .a = r });
        return (xval){ r, XI32 };
    }
    x86_id id = size == 2 ? X86_PMOVZXWD : sign ? X86_PMOVSXBD : X86_PMOVZXBD;
    if (n == 2) { /* two words: 4 bytes */
        xval x = word(f, X86_MOVSS, 0, m, XI32);
        return (xval){ x86_value(f, (xop){ .op = (uint16_t)id, .a = x.r }), XI32 };
    }
    if (f->level == X86_SSE) {
        xval x = word(f, size == 1 ? X86_MOVSS : X86_MOVSD, 0, m, XI32);
        return (xval){ x86_value(f, (xop){ .op = (uint16_t)id, .a = x.r }), XI32 };
    }
    return word(f, id, x86_vl(XI32, n), m, XI32);
}

static xval from_stored(xfn *f, tn_dtype stored, xval raw, int n) {
    xval args[3] = { raw };
    switch (stored) {
    case TN_F16:
        return raw.t == XF32 ? raw : x86_expr(f, "FROM_HALF(x)", XF32, args, n);
    case TN_BF16:
        return x86_expr(f, "FROM_BF16(x)", XF32, args, n);
    case TN_F8E4M3:
        return x86_expr(f, "FROM_F8E4M3(x)", XF32, args, n);
    case TN_F8E5M2:
        return x86_expr(f, "FROM_F8E5M2(x)", XF32, args, n);
    case TN_I16: /* comes without its sign */
        return x86_expr(f, "WRAP_I16(x)", XI32, args, n);
    case TN_BOOL:
        return x86_bin(f, '-', x86_const_val(f, XI32, 0, 0), raw, n);
    default:
        return raw;
    }
}

static void open_masks(selector *s, const kins *in, int lane) {
    xfn *f = s->f;
    for (int m = 0; m < in->n_mask; m++) {
        xmem e = x86_address(f, 0, in->mask[m].e, 1);
        xbound b = { in->mask[m].lo, in->mask[m].hi };
        e.disp += lane * in->mask_lane[m];
        if (ext_is_lit(b.lo) && ext_is_lit(b.hi)) e.disp -= b.lo, b = (xbound){ 0, b.hi - b.lo };
        VEC_PUSH(f->keep, &f->bounds, b);
        x86_add(f, (xop){ .op = P_IF, .has_mem = true, .mem = e, .extra = f->bounds.n - 1 });
        x86_open_scope(f);
    }
}
/* Whether the masks are numbers; then which lanes hold, a bit a lane. */
static bool known_lanes(const kins *in, int first, int n, uint64_t *out) {
    *out = 0;
    for (int m = 0; m < in->n_mask; m++)
        if (in->mask[m].e.n || !ext_is_lit(in->mask[m].e.base) || !ext_is_lit(in->mask[m].lo) || !ext_is_lit(in->mask[m].hi))
            return false;
    for (int l = 0; l < n; l++) {
        bool holds = true;
        for (int m = 0; m < in->n_mask; m++) {
            int64_t at = in->mask[m].e.base + (first + l) * in->mask_lane[m];
            holds &= at >= in->mask[m].lo && at < in->mask[m].hi;
        }
        *out |= (uint64_t)holds << l;
    }
    return true;
}

/* The bound of a mask, in all lanes. */
static xval bound_of(xfn *f, ext b) {
    const exts *t = f->k->params;
    if ((ext_is_lit(b) ? b : ext_lo(t, b)) < -(1ll << 30) || (ext_is_lit(b) ? b : ext_hi(t, b)) > 1ll << 30)
        x86_unsupported(f, "a mask over a huge range");
    if (ext_is_lit(b)) return x86_const_val(f, XI32, 0, b);
    vreg g = x86_new(f, 0);
    x86_add(f, (xop){ .op = P_FROMG, .type = XI32, .dst = g, .has_mem = true, .mem = x86_address(f, 0, affine_const(b), 1) });
    return (xval){ x86_broadcast(f, (xval){ g, XI32 }), XI32 };
}

/* The lanes for which all masks hold. */
static xval lane_mask(selector *s, const kins *in, int first, int n) {
    xfn *f = s->f;
    xval all = { 0 };
    uint64_t known;
    if (known_lanes(in, first, n, &known)) {
        int32_t lanes[64] = { 0 };
        for (int l = 0; l < n; l++) lanes[l] = -(int32_t)(known >> l & 1);
        return (xval){ x86_const_at(f, x86_pool(f->s, lanes, (size_t)f->vb), false, x86_vl(XI32, n)), XI32 };
    }
    for (int m = 0; m < in->n_mask; m++) {
        xmem e = x86_address(f, 0, in->mask[m].e, 1);
        int64_t stride = in->mask_lane[m];
        if (stride > 1 << 20 || stride < -(1 << 20)) x86_unsupported(f, "a mask over a huge range");
        vreg g = x86_new(f, 0);
        x86_add(f, (xop){ .op = P_FROMG, .type = XI32, .dst = g, .has_mem = true, .mem = { .base = e.base } });
        xval at = { x86_broadcast(f, (xval){ g, XI32 }), XI32 };
        at = x86_bin(f, '+', at, (xval){ x86_const_steps(f, XI32, n, first, stride, e.disp), XI32 }, n);
        xval lo = bound_of(f, in->mask[m].lo), hi = bound_of(f, in->mask[m].hi);
        xval in_range = x86_bin(f, '~', x86_bin(f, '<', at, lo, n), x86_bin(f, '<', at, hi, n), n);
        all = m ? x86_bin(f, '&', all, in_range, n) : in_range;
    }
    return all;
}

/* Two or four words of four bytes, interleaved. */
static vreg sse_load_strided(xfn *f, xmem m, int64_t stride, int n, uint64_t lanes) {
    vreg v[4] = { 0 };
    for (int l = 0; l < n; l++, m.disp += stride)
        v[l] = lanes >> l & 1 ? word(f, X86_MOVSS, 0, m, XI32).r : x86_const_val(f, XI32, 0, 0).r;
    for (int half = n / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) v[i] = x86_value(f, (xop){ .op = X86_UNPCKLPS, .a = v[i], .b = v[i + half] });
    return v[0];
}

/* Every second of the words of four bytes that n lanes reach over: two loads, of which the second begins a word early so that
 * it ends with the last one. */
static vreg load_every_second(xfn *f, xmem m, int n) {
    if (n == 16) {
        vreg low = load_every_second(f, m, 8);
        m.disp += 64;
        return x86_value(f, (xop){ .op = X86_INSERTF64X4, .vl = 2, .a = low, .b = load_every_second(f, m, 8), .imm = 1 });
    }
    uint8_t vl = (uint8_t)x86_vl(XI32, n);
    vreg low = word(f, X86_MOVUPS, vl, m, XI32).r;
    m.disp += 4 * (n - 1);
    vreg high = word(f, X86_MOVUPS, vl, m, XI32).r,
         r = x86_value(f, (xop){ .op = X86_SHUFPS, .vl = vl, .a = low, .b = high, .imm = 0xD8 });
    return vl ? x86_value(f, (xop){ .op = X86_PERMQ, .vl = vl, .a = r, .imm = 0xD8 }) : r; /* halves, quarter by quarter */
}

/* The n parts of 16 bytes, a power of two, one behind the other in part[0]. */
static void join_parts(xfn *f, vreg *part, int n) {
    for (int half = 1; half < n; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            part[i] = x86_value(f, (xop){ .op = half == 1 ? X86_INSERTF128 : X86_INSERTF64X4,
                                          .vl = (uint8_t)half,
                                          .a = part[i],
                                          .b = part[i + half],
                                          .imm = 1 });
}

/* Four-byte and eight-byte words a stride apart, gathered without a detour through memory; 0 where lanes has no bit. */
static xval load_strided(selector *s, tn_dtype stored, xmem m, int64_t stride, int n, uint64_t lanes) {
    xfn *f = s->f;
    bool big = dtype_size(stored) == 8;
    int per = big ? 2 : 4;
    vreg part[4] = { 0 };
    if (!big && stride == 8 && n >= 4 && !(~lanes << (64 - n))) return (xval){ load_every_second(f, m, n), xt(stored) };
    if (f->level == X86_SSE && !big) return (xval){ sse_load_strided(f, m, stride, n, lanes), xt(stored) };
    for (int l = 0; l < n; l++) {
        xmem at = m;
        at.disp += l * stride;
        if (!(lanes >> l & 1)) {
            if (l % per == 0) part[l / per] = x86_const_val(f, XI32, 0, 0).r;
            continue;
        }
        if (l % per == 0) {
            part[l / per] = word(f, big ? X86_MOVSD : X86_MOVSS, 0, at, XI32).r;
            continue;
        }
        vreg r = x86_new(f, 0);
        x86_add(f, (xop){ .op = big ? X86_MOVHPS : X86_INSERTPS,
                          .dst = r,
                          .a = part[l / per],
                          .imm = l % per << 4,
                          .has_mem = true,
                          .mem = at });
        part[l / per] = r;
    }
    join_parts(f, part, (n + per - 1) / per);
    return (xval){ part[0], xt(stored) };
}

/* The instruction that reads neighbouring words, or one word for all lanes, where a mask holds; none where there is none. */
static x86_id masked_load(x86_level level, int64_t stride, int size, int n) {
    if (size < 4 || n * size < 16 || level == X86_SSE) return X86_NONE;
    if (stride == 0) return level == X86_AVX512 && size == 4 ? X86_BROADSS_Z : X86_NONE;
    if (stride != 1) return X86_NONE;
    if (level == X86_AVX512) return size == 8 ? X86_MOVUPD_Z : X86_MOVUPS_Z;
    return size == 8 ? X86_MASKLOADQ : X86_MASKLOADD;
}

/* Whether the element `at` beside the one that a load, or a part of it, begins with is in its buffer, too, whenever it runs. */
static bool is_inside(const selector *s, const kins *in, int64_t at) {
    const kernel *k = s->k;
    int64_t lo = in->idx.base + at, hi = lo;
    int found = 0, depth = 0;
    if (k->params || in->dyn) return false;
    for (const kins *l = &k->ins.at[s->load]; l > k->ins.at; l--) {
        depth += l->op == K_END;
        if (l->op != K_LOOP || depth-- > 0) continue;
        depth = 0;
        int64_t coef = affine_coef(in->idx, l->var), last = l->lo + (l->hi - 1 - l->lo) / l->step * l->step;
        found += coef != 0;
        lo += coef * (coef < 0 ? last : l->lo), hi += coef * (coef < 0 ? l->lo : last);
    }
    return found == in->idx.n && lo >= 0 && hi < k->bufs.at[in->buf].elems;
}

/* Every second of the bytes that n lanes reach over, widened: one half of each of as many words, where the byte behind the last
 * or before the first may be read; else two loads, as above. */
static xval load_every_second_byte(xfn *f, xmem m, int n, bool sign, bool behind, bool before) {
    static const unsigned char four[16] = { 0, 2, 5, 7 }, eight[16] = { 0, 2, 4, 6, 9, 11, 13, 15 };
    unsigned char pick[64];
    if (behind || before) {
        m.disp -= !behind;
        xval x = word(f, X86_PMOVZXWD, x86_vl(XI32, n), m, XI32);
        if (sign) return x86_shift(f, X86_PSRAD, x86_shift(f, X86_PSLLD, x, behind ? 24 : 16, n), 24, n);
        return behind ? x86_bin(f, '&', x, x86_const_val(f, XI32, 0, 255), n) : x86_shift(f, X86_PSRLD, x, 8, n);
    }
    if (n == 16) {
        vreg low = load_every_second_byte(f, m, 8, sign, false, false).r;
        m.disp += 16;
        vreg high = load_every_second_byte(f, m, 8, sign, false, false).r;
        return (xval){ x86_value(f, (xop){ .op = X86_INSERTF64X4, .vl = 2, .a = low, .b = high, .imm = 1 }), XI32 };
    }
    xmem end = m;
    end.disp += n - 1;
    for (int i = 0; i < f->vb; i++) pick[i] = (n == 8 ? eight : four)[i % 16];
    vreg r = word(f, n == 8 ? X86_MOVSD : X86_MOVSS, 0, m, XI32).r;
    if (n == 8)
        r = x86_value(f, (xop){ .op = X86_MOVHPS, .a = r, .has_mem = true, .mem = end });
    else
        r = x86_value(f, (xop){ .op = X86_PUNPCKLDQ, .a = r, .b = word(f, X86_MOVSS, 0, end, XI32).r });
    vreg p = x86_const_at(f, x86_pool(f->s, pick, (size_t)f->vb), false, x86_full_vl(f));
    r = x86_value(f, (xop){ .op = X86_PSHUFB, .a = r, .b = p });
    uint16_t id = sign ? X86_PMOVSXBD : X86_PMOVZXBD;
    return (xval){ x86_value(f, (xop){ .op = id, .vl = (uint8_t)x86_vl(XI32, n), .a = r }), XI32 };
}

/* The same of words of two bytes. */
static xval load_every_second_word(xfn *f, xmem m, int n, bool behind, bool before) {
    if (!behind && !before) { /* of each half one of them may */
        vreg low = load_every_second_word(f, m, n / 2, true, false).r;
        m.disp += 2 * n;
        vreg high = load_every_second_word(f, m, n / 2, false, true).r;
        uint16_t id = n == 16 ? X86_INSERTF64X4 : n == 8 ? X86_INSERTF128 : X86_SHUFPS;
        return (xval){ x86_value(f, (xop){ .op = id, .vl = (uint8_t)(n / 8), .a = low, .b = high, .imm = n == 4 ? 0x44 : 1 }),
                       XI32 };
    }
    m.disp -= behind ? 0 : 2;
    xval x = word(f, n == 2 ? X86_MOVSD : X86_MOVUPS, (uint8_t)x86_vl(XI32, n), m, XI32);
    return behind ? x86_bin(f, '&', x, x86_const_val(f, XI32, 0, 65535), n) : x86_shift(f, X86_PSRLD, x, 16, n);
}

/* The lowest n bytes of a register, the others 0: no byte beside them is read. */
static vreg load_few_bytes(xfn *f, xmem m, int n) {
    if (n == 4 || n == 8) return word(f, n == 4 ? X86_MOVSS : X86_MOVSD, 0, m, XI32).r;
    if (n < 3) {
        vreg r = x86_new(f, 0);
        x86_add(f, (xop){ .op = P_LDNARROW, .dst = r, .imm = n == 2 ? 3 : 1, .has_mem = true, .mem = m });
        return r;
    }
    int part = n > 4 ? 4 : 2;
    xmem end = m;
    end.disp += n - part;
    xval high = { load_few_bytes(f, end, part), XI32 };
    high = x86_shift(f, X86_PSLLQ, high, 8 * (n - part), 4); /* bytes that both have are the same */
    return x86_value(f, (xop){ .op = X86_POR, .a = load_few_bytes(f, m, part), .b = high.r });
}

/* 16 bytes of which `count` come from memory, from byte `from` on; the others are 0. */
static vreg load_bytes_to(xfn *f, xmem m, int from, int count) {
    unsigned char pick[64];
    int again = count > 8 ? 16 - count : 0; /* bytes that both halves have */
    xmem end = m;
    end.disp += count - 8;
    vreg r = load_few_bytes(f, m, count > 8 ? 8 : count);
    if (count > 8) r = x86_value(f, (xop){ .op = X86_MOVHPS, .a = r, .has_mem = true, .mem = end });
    for (int i = 0; i < f->vb; i++) {
        int at = i % 16 - from;
        pick[i] = (unsigned char)(at < 0 || at >= count ? 0x80 : at < 8 ? at : at + again);
    }
    vreg p = x86_const_at(f, x86_pool(f->s, pick, (size_t)f->vb), false, x86_full_vl(f));
    return x86_value(f, (xop){ .op = X86_PSHUFB, .a = r, .b = p });
}

/* Neighbouring bytes, widened to at most 16 lanes: those of `lanes`, which lie side by side; the others are 0. */
static xval load_bytes_within(xfn *f, xmem m, int n, uint64_t lanes, bool sign) {
    int from = 0, count = 0;
    if (!lanes) return x86_const_val(f, XI32, 0, 0);
    while (!(lanes >> from & 1)) from++;
    while (from + count < n && lanes >> (from + count) & 1) count++;
    m.disp += from;
    xval r = { n > 8 ? load_bytes_to(f, m, from, count) : load_few_bytes(f, m, count), XI32 };
    if (from && n <= 8) r = x86_shift(f, X86_PSLLQ, r, 8 * from, 4);
    uint16_t id = sign ? X86_PMOVSXBD : X86_PMOVZXBD;
    return (xval){ x86_value(f, (xop){ .op = id, .vl = (uint8_t)x86_vl(XI32, n), .a = r.r }), XI32 };
}

/* The same of words of two bytes. */
static xval load_words_within(xfn *f, xmem m, int n, uint64_t lanes) {
    int from = 0, count = 0;
    if (n == 16) {
        xmem end = m;
        end.disp += 16;
        vreg low = load_words_within(f, m, 8, lanes & 255).r, high = load_words_within(f, end, 8, lanes >> 8 & 255).r;
        return (xval){ x86_value(f, (xop){ .op = X86_INSERTF64X4, .vl = 2, .a = low, .b = high, .imm = 1 }), XI32 };
    }
    if (!lanes) return x86_const_val(f, XI32, 0, 0);
    while (!(lanes >> from & 1)) from++;
    while (from + count < n && lanes >> (from + count) & 1) count++;
    m.disp += 2 * from;
    vreg r = load_bytes_to(f, m, 2 * from, 2 * count);
    return (xval){ x86_value(f, (xop){ .op = X86_PMOVZXWD, .vl = (uint8_t)x86_vl(XI32, n), .a = r }), XI32 };
}

/* Whether the lanes that hold are one run of neighbours. */
static bool side_by_side(uint64_t lanes) { return !lanes || !((lanes + (lanes & -lanes)) & lanes); }

static xdyn dynamic_of(const selector *s, const kins *in, int64_t size, bool clamp) {
    bool lit = ext_is_lit(in->dyn_stride);
    return (xdyn){ .n = in->dyn_n,
                   .stride = lit ? in->dyn_stride * size : size,
                   .by = lit ? 0 : in->dyn_stride,
                   .clamp = clamp,
                   .wide = is_wide((xtype)s->at[in->dyn].t) };
}

/* Lane by lane: strides, masks of single lanes, an index of each lane's own. */
static xval load_lanes(selector *s, const kins *in, int first, int n) {
    xfn *f = s->f;
    tn_dtype stored = (tn_dtype)in->src;
    int64_t size = (int64_t)dtype_size(stored);
    affine x = in->idx;
    xmem m = element(s, in, x, size);
    m.disp += first * in->lane_stride * size;
    bool own_index = in->dyn && s->at[in->dyn].lanes > 1;
    if (in->dyn && !own_index) m.index = x86_dynamic(f, sel_operand(s, in->dyn, 1, 0).r, dynamic_of(s, in, size, true));
    x86_id masked = in->n_mask && !own_index ? masked_load(f->level, in->lane_stride, (int)size, n) : X86_NONE;
    uint64_t lanes = ~(uint64_t)0;
    bool known = !in->n_mask || known_lanes(in, first, n, &lanes);
    int64_t step = in->lane_stride, begin = first * step, end = (first + n - 1) * step;
    bool small = size < 4 && n >= 4 && known && !own_index && f->level != X86_SSE;
    if (small && (in->n_mask ? (step == 1 || step == 2) && is_inside(s, in, begin) && is_inside(s, in, end) : step == 2)) {
        bool sign = stored == TN_I8, behind = is_inside(s, in, end + 1), before = is_inside(s, in, begin - 1);
        xval read = step == 1   ? load_raw(s, stored, m, n, false) /* what a mask leaves out is there, too */
                    : size == 2 ? load_every_second_word(f, m, n, behind, before)
                                : load_every_second_byte(f, m, n, sign, behind, before);
        return in->n_mask ? x86_bin(f, '&', read, lane_mask(s, in, first, n), n) : read;
    }
    if (!own_index && in->n_mask && known && size == 1 && in->lane_stride == 1 && n <= 16 && side_by_side(lanes))
        return load_bytes_within(f, m, n, lanes, stored == TN_I8);
    if (small && in->n_mask && size == 2 && step == 1 && n <= 16 && side_by_side(lanes))
        return load_words_within(f, m, n, lanes);
    if (!own_index && known && !masked && size >= 4) return load_strided(s, stored, m, in->lane_stride * size, n, lanes);
    xlload l = { .stride = in->lane_stride * size, .bytes = (uint8_t)size, .sign = stored == TN_I8 };
    vreg mask = 0, dyn = 0;
    if (in->n_mask) mask = x86_mask32(f, lane_mask(s, in, first, n), n).r;
    if (own_index) {
        dyn = sel_operand(s, in->dyn, in->lanes, first / (s->at[in->dyn].cl)).r;
        if (s->at[in->dyn].lanes != in->lanes) x86_unsupported(f, "an index of other lanes");
        xdyn d = dynamic_of(s, in, size, true);
        l.n = d.n, l.dyn_stride = d.stride, l.dyn_by = d.by, l.dyn_wide = d.wide;
    }
    xtype t = size == 8 ? xt(stored) : size == 4 ? xt(stored) : XI32;
    if (masked) {
        vreg r = x86_new(f, x86_vl(t, n));
        vreg wide = size == 8 ? x86_mask64(f, (xval){ mask, XI32 }, n).r : mask;
        x86_add(f,
                (xop){ .op = (uint16_t)masked, .vl = (uint8_t)x86_vl(t, n), .dst = r, .a = wide, .has_mem = true, .mem = m });
        return (xval){ r, t };
    }
    VEC_PUSH(f->keep, &f->lloads, l);
    vreg r = x86_new(f, x86_vl(t, n));
    x86_add(f, (xop){ .op = P_LLOAD,
                      .vl = (uint8_t)x86_vl(t, n),
                      .lanes = (uint8_t)n,
                      .dst = r,
                      .a = mask,
                      .b = dyn,
                      .has_mem = true,
                      .mem = m,
                      .extra = f->lloads.n - 1 });
    return (xval){ r, t };
}

/* Part p of n words from lane `first` on, where it belongs; m: of the first of them. */
static xval load_part(selector *s, const kins *in, int p, xmem m, int first, int n) {
    xfn *f = s->f;
    kins part = *in;
    bool wide = dtype_size((tn_dtype)in->src) * in->packed < 4; /* bytes with a sign of their own become 16 bits */
    m.disp += p * in->packed_stride * (int64_t)dtype_size((tn_dtype)in->src);
    part.idx.base += p * in->packed_stride;
    part.packed = 0;
    if (in->src == TN_I8 && !wide) part.src = TN_U8;
    xval x = n == 1 || in->lane_stride == 1 ? load_raw(s, (tn_dtype)part.src, m, n, false) : load_lanes(s, &part, first, n);
    int up = wide ? 16 : 32 / in->packed * p;
    if (up) x = x86_shift(f, X86_PSLLD, x, up, n);
    return wide && p == 0 ? x86_shift(f, X86_PSRLD, x, 16, n) : x;
}

/* Words of neighbouring bytes (two of them widened to 16 bits), `step` bytes apart: 16 bytes for each four words, and what
 * belongs where. The last of these end with the last word. */
static xval load_overlapping(xfn *f, xmem m, int64_t step, int n, int packed) {
    unsigned char pick[64];
    int64_t span = (n - 1) * step + packed, four = 3 * step + packed;
    int bytes = span >= 16 ? 16 : span >= 8 ? 8 : 4;
    vreg part[4];
    for (int p = 0, before = -1; p < n / 4; p++) {
        int64_t at = 4 * step * p, last = span - 16;
        at = span < 16 || at + four <= 16 ? 0 : at < last ? at : last;
        xmem here = m, end = m;
        here.disp += at, end.disp += span - bytes;
        part[p] = at == before ? part[p - 1]
                               : word(f,
                                      bytes == 16  ? X86_MOVUPS
                                      : bytes == 8 ? X86_MOVSD
                                                   : X86_MOVSS,
                                      0, here, XI32)
                                     .r;
        before = (int)at;
        if (bytes == 8) part[p] = x86_value(f, (xop){ .op = X86_MOVHPS, .a = part[p], .has_mem = true, .mem = end });
        if (bytes == 4 && span > 4)
            part[p] = x86_value(f, (xop){ .op = X86_PUNPCKLDQ, .a = part[p], .b = word(f, X86_MOVSS, 0, end, XI32).r });
        for (int i = 0; i < 16; i++) {
            int64_t byte = (4 * p + i / 4) * step - at + (packed == 4 ? i % 4 : i % 4 / 2);
            if (bytes < 16 && byte >= bytes) byte += 2 * bytes - span;
            pick[16 * p + i] = (unsigned char)(packed == 2 && i % 2 ? 0x80 : byte);
        }
    }
    for (int i = 4 * n; i < f->vb; i++) pick[i] = 0x80;
    join_parts(f, part, n / 4);
    vreg p = x86_const_at(f, x86_pool(f->s, pick, (size_t)f->vb), false, x86_full_vl(f));
    return (xval){ x86_value(f, (xop){ .op = X86_PSHUFB, .vl = (uint8_t)x86_vl(XI32, n), .a = part[0], .b = p }), XI32 };
}

/* n words of a byte each of four rows, `apart` bytes from row to row: the rows behind each other, four bytes of each together,
 * and these turned. */
static xval load_across(xfn *f, xmem m, int64_t apart, int n) {
    unsigned char turn[64];
    int32_t order[16];
    vreg row[4];
    for (int p = 0; p < 4; p++) {
        xmem at = m;
        at.disp += p * apart;
        if (n == 8 && p % 2)
            row[p / 2] = x86_value(f, (xop){ .op = X86_MOVHPS, .a = row[p / 2], .has_mem = true, .mem = at });
        else
            row[n == 8 ? p / 2 : p] = word(f, n == 8 ? X86_MOVSD : X86_MOVUPS, 0, at, XI32).r;
    }
    join_parts(f, row, n / 4);
    for (int i = 0; i < f->vb / 4; i++) order[i] = i % 4 * (n / 4) + i / 4 % (n / 4);
    for (int i = 0; i < f->vb; i++) turn[i] = (unsigned char)(i % 4 * 4 + i % 16 / 4);
    vreg d = x86_const_at(f, x86_pool(f->s, order, (size_t)f->vb), false, x86_full_vl(f)),
         t = x86_const_at(f, x86_pool(f->s, turn, (size_t)f->vb), false, x86_full_vl(f));
    uint8_t vl = (uint8_t)x86_vl(XI32, n);
    vreg together = x86_value(f, (xop){ .op = X86_PERMD, .vl = vl, .a = d, .b = row[0] });
    return (xval){ x86_value(f, (xop){ .op = X86_PSHUFB, .vl = vl, .a = together, .b = t }), XI32 };
}

/* n words from lane `first` on, at m. */
static xval load_packed_lanes(selector *s, const kins *in, xmem m, int first, int n, bool spread) {
    xfn *f = s->f;
    int64_t size = (int64_t)dtype_size((tn_dtype)in->src), step = in->lane_stride * size;
    bool together = in->packed_stride == 1 && (n == 1 || in->lane_stride == in->packed);
    if (in->packed_stride == 1 && size == 1 && n >= 4 && in->lane_stride > 0 && in->lane_stride < in->packed &&
        (in->packed == 4 || in->src == TN_U8) && f->level != X86_SSE)
        return load_overlapping(f, m, in->lane_stride, n, in->packed);
    if (in->packed == 4 && size == 1 && in->lane_stride == 1 && n >= 8 && in->packed_stride != 1 && f->level != X86_SSE)
        return load_across(f, m, in->packed_stride, n);
    if (in->packed_stride == 1 && in->packed * size == 4)
        return together ? load_raw(s, TN_I32, m, n, spread) : load_strided(s, TN_I32, m, step, n, ~(uint64_t)0);
    if (together && in->packed == 2 && size == 1 && f->level != X86_SSE) {
        x86_id id = in->src == TN_I8 ? X86_PMOVSXBW : X86_PMOVZXBW;
        if (n >= 4) return word(f, id, x86_vl(XI32, n), m, XI32);
        if (n == 1 && spread) { /* the two bytes in all lanes, then widened */
            int vl = x86_full_vl(f);
            xval x = { x86_value(
                           f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .a = word(f, X86_PBROADCASTW, vl - 1, m, XI32).r }),
                       XI32 };
            f->v.at[x.r].full = true;
            return x;
        }
        vreg r = n == 2 ? word(f, X86_MOVSS, 0, m, XI32).r : x86_new(f, 0);
        if (n == 1) x86_add(f, (xop){ .op = P_LDNARROW, .dst = r, .imm = 3, .has_mem = true, .mem = m });
        return (xval){ x86_value(f, (xop){ .op = (uint16_t)id, .a = r }), XI32 };
    }
    xval all = load_part(s, in, 0, m, first, n);
    for (int p = 1; p < in->packed; p++) all = x86_bin(f, '|', all, load_part(s, in, p, m, first, n), n);
    return all;
}

/* One word for all lanes that is there whether the masks hold or not. */
static bool is_one_word(const selector *s, const kins *in) {
    const kernel *k = s->k;
    ext lo = in->idx.base, hi = lo;
    if (in->lanes == 1 || !in->n_mask || in->lane_stride || in->dyn || in->packed || k->params) return false;
    for (int i = 0; i < in->idx.n; i++) {
        ext last = k->vars.at[in->idx.t[i].var].extent - 1, coef = in->idx.t[i].coef;
        *(coef < 0 ? &lo : &hi) += coef * last;
    }
    return lo >= 0 && hi < k->bufs.at[in->buf].elems;
}

static bool lanes_vary(const selector *s, const kins *in) {
    for (int m = 0; m < in->n_mask; m++)
        if (in->mask_lane[m]) return true;
    return (in->lane_stride != 1 && !in->packed) || (in->dyn && s->at[in->dyn].lanes > 1);
}

void sel_load(selector *s, reg r) {
    s->load = r;
    const kins *in = &s->k->ins.at[r];
    xfn *f = s->f;
    tn_dtype stored = (tn_dtype)in->src;
    xtype t = xt((tn_dtype)in->dtype);
    int64_t size = (int64_t)dtype_size(stored);
    kval out = sel_shaped(s, t, in->lanes);
    int64_t imm = stored == TN_BOOL ? -(in->imm_int != 0) : in->imm_int;
    if (in->lanes > 1 && lanes_vary(s, in)) {
        if (in->packed) x86_unsupported(f, "words with a mask a lane");
        bool one = is_one_word(s, in);
        xval word = { 0 };
        if (one) word = from_stored(f, stored, load_raw(s, stored, element(s, in, in->idx, size), 1, true), 1);
        for (int c = 0; c < out.n; c++) {
            xval v = one ? (xval){ x86_broadcast(f, word), word.t }
                         : from_stored(f, stored, load_lanes(s, in, c * out.cl, out.cl), out.cl);
            if (in->n_mask && (one || x86_value_bits(t, in->imm, imm))) /* the others are 0 */
                v = x86_sel(f, lane_mask(s, in, c * out.cl, out.cl), v, x86_const_val(f, t, in->imm, imm), out.cl);
            out.r[c] = v.r;
        }
        s->at[r] = out;
        return;
    }
    xmem m = element(s, in, in->idx, size);
    if (in->dyn) m.index = x86_dynamic(f, sel_operand(s, in->dyn, 1, 0).r, dynamic_of(s, in, size, true));
    if (in->n_mask) {
        int32_t pool = x86_pool_of(f, t, x86_value_bits(t, in->imm, imm));
        for (int c = 0; c < out.n; c++) {
            out.r[c] = x86_new(f, x86_vl(t, out.cl));
            f->v.at[out.r[c]].is_mutable = true;
            x86_add(f, (xop){ .op = P_CONST, .vl = (uint8_t)x86_vl(t, out.cl), .dst = out.r[c], .imm = pool });
        }
        open_masks(s, in, 0);
    }
    for (int c = 0; c < out.n; c++) {
        xmem at = m;
        bool spread = in->lanes == 1 && s->bcast[r] && !in->n_mask;
        at.disp += c * out.cl * size * (in->packed ? in->lane_stride : 1);
        xval v = in->packed ? load_packed_lanes(s, in, at, c * out.cl, out.cl, spread)
                            : from_stored(f, stored, load_raw(s, stored, at, out.cl, spread), out.cl);
        if (in->n_mask)
            x86_add(f, (xop){ .op = P_MOV, .vl = (uint8_t)x86_vl(t, out.cl), .dst = out.r[c], .a = v.r });
        else
            out.r[c] = v.r;
    }
    if (in->n_mask) x86_close_ifs(f, in->n_mask);
    for (int c = 0; c < out.n && in->n_mask; c++) out.r[c] = x86_copied(f, (xval){ out.r[c], t }).r;
    s->at[r] = out;
}

/* ---- stores ---- */

static void store_op(xfn *f, x86_id id, int vl, vreg a, xmem m, int imm) {
    x86_add(f, (xop){ .op = (uint16_t)id, .vl = (uint8_t)vl, .a = a, .has_mem = true, .mem = m, .imm = imm });
}

static xval to_stored(xfn *f, tn_dtype t, xval x, int n) {
    xval args[3] = { x };
    if (t == TN_F16) return x86_expr(f, "TO_HALF(x)", XF32, args, n);
    if (t == TN_BF16) return x86_expr(f, "TO_BF16(x)", XF32, args, n);
    if (t == TN_F8E4M3) return x86_expr(f, "TO_F8E4M3(x)", XF32, args, n);
    if (t == TN_F8E5M2) return x86_expr(f, "TO_F8E5M2(x)", XF32, args, n);
    if (t == TN_BOOL) return x86_bin(f, '&', x86_mask32(f, x, n), x86_const_val(f, XI32, 0, 1), n);
    return x;
}

/* The low bytes of lane 0, or of as many lanes: all of it with what SSE2 has. */
static void sse_store_narrow(xfn *f, xval x, int size, int n, xmem m) {
    vreg r = x.r;
    if (n > 1) {
        vreg wide = size == 2 ? x86_shift(f, X86_PSRAD, x86_shift(f, X86_PSLLD, x, 16, 4), 16, 4).r
                              : x86_bin(f, '&', x, x86_const_val(f, XI32, 0, 255), 4).r;
        r = x86_value(f, (xop){ .op = X86_PACKSSDW, .a = wide, .b = wide });
        if (size == 1) r = x86_value(f, (xop){ .op = X86_PACKUSWB, .a = r, .b = r });
    }
    int bytes = n * size;
    if (bytes <= 2)
        x86_add(f, (xop){ .op = P_STNARROW, .a = r, .has_mem = true, .mem = m, .imm = bytes });
    else
        store_op(f, bytes == 8 ? X86_MOVSD_ST : X86_MOVSS_ST, 0, r, m, 0);
}

/* 32-bit lanes to n neighbouring bytes or 16-bit words. */
static void store_narrow(xfn *f, xval x, int size, int n, xmem m) {
    unsigned char pick[64];
    if (f->level == X86_SSE) {
        sse_store_narrow(f, x, size, n, m);
        return;
    }
    if (n >= 16) {
        store_op(f, size == 1 ? X86_PMOVDB : X86_PMOVDW, 2, x.r, m, 0);
        return;
    }
    if (n == 1) {
        store_op(f, size == 1 ? X86_PEXTRB : X86_PEXTRW, 0, x.r, m, 0);
        return;
    }
    for (int i = 0; i < f->vb; i++) pick[i] = (unsigned char)(i % 16 < 4 * size ? i % 16 / size * 4 + i % 16 % size : 0x80);
    vreg p = x86_const_at(f, x86_pool(f->s, pick, (size_t)f->vb), false, x86_full_vl(f));
    vreg r = x86_value(f, (xop){ .op = X86_PSHUFB, .vl = (uint8_t)x86_vl(XI32, n), .a = x.r, .b = p });
    if (n == 8) {
        vreg high = x86_value(f, (xop){ .op = X86_EXTRACTF128, .vl = 1, .a = r, .imm = 1 });
        if (size == 1)
            r = x86_value(f, (xop){ .op = X86_PUNPCKLDQ, .vl = 0, .a = r, .b = high });
        else
            r = x86_value(f, (xop){ .op = X86_PERMQ, .vl = 1, .a = r, .imm = 0x08 });
    }
    int bytes = n * size;
    store_op(f, bytes == 16 ? X86_MOVUPS_ST : bytes == 8 ? X86_MOVSD_ST : bytes == 4 ? X86_MOVSS_ST : X86_PEXTRW, 0, r, m, 0);
}

static void store_half(xfn *f, xval x, int n, xmem m) {
    int vl = x86_vl(XF32, n);
    x = x86_half_nan(f, x, n);
    if (n >= 4) {
        store_op(f, X86_CVTPS2PH, vl, x.r, m, 0);
        return;
    }
    vreg r = x86_value(f, (xop){ .op = X86_CVTPS2PH, .a = x.r });
    store_op(f, n == 2 ? X86_MOVSS_ST : X86_PEXTRW, 0, r, m, 0);
}

static void store_chunk(xfn *f, tn_dtype t, xval x, int n, xmem m, bool nontemporal) {
    int size = (int)dtype_size(t), bytes = n * size;
    if (t == TN_F16 && f->level != X86_SSE) {
        store_half(f, x, n, m);
        return;
    }
    x = to_stored(f, t, x, n);
    if (size < 4)
        store_narrow(f, x, size, n, m);
    else
        store_op(f,
                 bytes == 4    ? X86_MOVSS_ST
                 : bytes == 8  ? X86_MOVSD_ST
                 : nontemporal ? X86_MOVNTPS
                               : X86_MOVUPS_ST,
                 x86_vl(x.t, n), x.r, m, 0);
}

static void store_lane(xfn *f, int size, xval x, int lane, xmem m) {
    int per = is_wide(x.t) ? 2 : 4;
    vreg q = lane >= per
                 ? x86_value(f, (xop){ .op = X86_EXTRACTF128, .vl = lane >= 2 * per ? 2 : 1, .a = x.r, .imm = lane / per })
                 : x.r;
    int l = lane % per;
    if (f->level == X86_SSE && size < 8) {
        if (l) q = x86_value(f, (xop){ .op = X86_PSHUFD, .a = q, .imm = l });
        if (size == 4)
            store_op(f, X86_MOVSS_ST, 0, q, m, 0);
        else
            sse_store_narrow(f, (xval){ q, XI32 }, size, 1, m);
        return;
    }
    if (size == 8)
        store_op(f, l ? X86_MOVHPS_ST : X86_MOVSD_ST, 0, q, m, 0);
    else if (size == 4)
        l ? store_op(f, X86_PEXTRD, 0, q, m, l) : store_op(f, X86_MOVSS_ST, 0, q, m, 0);
    else
        store_op(f, size == 2 ? X86_PEXTRW : X86_PEXTRB, 0, q, m, size == 2 ? 2 * l : 4 * l);
}

enum { MOST_LEVELS = 4 };

/* Whether the register holds nothing but numbers of bf16. */
static bool is_bf16(const kernel *k, reg r, int level) {
    const kins *in = &k->ins.at[r];
    bool number = dtype_round(TN_BF16, in->imm) == in->imm; /* a constant, or what is read where a mask does not hold */
    if (in->op == K_WRAP || in->op == K_LOAD) return in->src == TN_BF16 && !in->packed && (!in->n_mask || number);
    if (in->op == K_CONST) return number;
    if (in->op != K_ALU || level == MOST_LEVELS || (in->alu != OP_select && in->alu != OP_max && in->alu != OP_min))
        return false;
    return is_bf16(k, in->b, level + 1) && is_bf16(k, in->alu == OP_select ? in->c : in->a, level + 1);
}

void sel_store(selector *s, const kins *in) {
    xfn *f = s->f;
    tn_dtype t = (tn_dtype)in->dtype;
    bool rounded = t == TN_BF16 && is_bf16(s->k, in->a, 0); /* what is to be stored is the upper half */
    int64_t size = (int64_t)dtype_size(t);
    xmem m = element(s, in, in->idx, size);
    int cl = sel_chunk(s, in->lanes), n = in->lanes / cl;
    if (in->dyn) x86_unsupported(f, "a store at a dynamic index");
    reg counted = cl == 16 && in->lane_stride == 1 ? sel_find_steps(s, &s->k->ins.at[in->a]) : 0;
    if (counted && sel_saturates(s)) {
        for (int c = 0; c < n; c++, m.disp += cl)
            store_op(f, X86_PMOVUSDB, 2, sel_quantise_below(s, sel_operand(s, counted, in->lanes, c), cl).r, m, 0);
        return;
    }
    for (int c = 0; c < n; c++) {
        xval x = sel_operand(s, in->a, in->lanes, c);
        xmem at = m;
        if (rounded) x = x86_shift(f, X86_PSRLD, (xval){ x.r, XI32 }, 16, cl), t = TN_U16;
        at.disp += c * cl * in->lane_stride * size;
        if (in->lanes == 1 || in->lane_stride == 1) {
            store_chunk(f, t, x, cl, at, in->mode == STORE_NONTEMPORAL && f->near >= 0);
            continue;
        }
        x = to_stored(f, t, x, cl);
        for (int l = 0; l < cl; l++, at.disp += in->lane_stride * size) store_lane(f, (int)size, x, l, at);
    }
}

static xval lane_of(selector *s, reg r, int lane) {
    const kval *v = &s->at[r];
    if (v->lanes == 1) return sel_operand(s, r, 1, 0);
    return x86_low(s->f, (xval){ v->r[lane / v->cl], (xtype)v->t }, lane % v->cl, 1);
}

void sel_scatter(selector *s, const kins *in) {
    xfn *f = s->f;
    tn_dtype t = (tn_dtype)in->dtype;
    int64_t size = (int64_t)dtype_size(t);
    const kval *dv = &s->at[in->dyn];
    if (dv->lanes != 1) {
        x86_unsupported(f, "a scatter with an index a lane");
        return;
    }
    vreg d = sel_operand(s, in->dyn, 1, 0).r;
    xdyn dyn = dynamic_of(s, in, size, false), plain = dyn;
    plain.stride = 1, plain.by = 0;
    greg raw = x86_dynamic(f, d, plain), scaled = x86_dynamic(f, d, dyn);
    VEC_PUSH(f->keep, &f->bounds, ((xbound){ 0, in->dyn_n }));
    x86_add(f, (xop){ .op = P_IF, .has_mem = true, .mem = { .base = raw }, .extra = f->bounds.n - 1 });
    x86_open_scope(f);
    xmem m = element(s, in, in->idx, size);
    m.index = scaled;
    bool whole = in->lane_stride == 1 || in->lanes == 1;
    int cl = whole ? sel_chunk(s, in->lanes) : 1;
    for (int l = 0; l < in->lanes; l += cl, m.disp += cl * in->lane_stride * size) {
        xval x = whole ? sel_operand(s, in->a, in->lanes, l / cl) : lane_of(s, in->a, l);
        op_code op = kernel_scatter_op(in);
        xval old[3] = { op ? from_stored(f, t, load_raw(s, t, m, cl, false), cl) : x, x };
        if (op == OP_add)
            x = x86_bin(f, '+', old[0], x, cl);
        else if (op)
            x = sel_combine(s, op, dtype_reg(t), cl, NULL, old);
        store_chunk(f, t, x, cl, m, false);
    }
    x86_close_ifs(f, 1);
}

void sel_prefetch(selector *s, const kins *in) {
    xmem m = element(s, in, in->idx, (int64_t)dtype_size((tn_dtype)in->dtype));
    x86_add(s->f, (xop){ .op = P_PREFETCH, .has_mem = true, .mem = m, .imm = in->mode });
}
