/* matrix.c - products of matrix units as CUDA C.
 *
 * In: matrices in swizzled shared memory, and multiplies of them. Out: calls, and the functions that they call: on sm_90a one
 * instruction a multiply for the four warps together, which goes on by itself (wgmma); since sm_80 instructions of each warp,
 * whose operands come by ldmatrix (mma.sync). The sums have the same places in both. */
#include "emit/clike/clike.h"

#define MATRIX_HEAD                                                                                                            \
    "#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\n"                                                                                 \
    "#define WARPGROUPS 1\n"                                                                                                   \
    "#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800\n"                                                                    \
    "#error matrix units of this kind came with sm_80\n"                                                                       \
    "#endif\n"                                                                                                                 \
    "INL void commit_copies() { asm volatile(\"cp.async.commit_group;\" ::: \"memory\"); }\n"                                  \
    "INL void copies_are_seen() {\n"                                                                                           \
    "#ifdef WARPGROUPS\n"                                                                                                      \
    "    asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");\n"                                                   \
    "#endif\n}\n"                                                                                                              \
    "template <int N> INL void wait_copies() { asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(N) : \"memory\"); "           \
    "copies_are_seen(); }\n"                                                                                                   \
    "INL void wait_all_copies() { asm volatile(\"cp.async.wait_all;\" ::: \"memory\"); copies_are_seen(); }\n"                 \
    "INL void begin_products() {\n"                                                                                            \
    "#ifdef WARPGROUPS\n"                                                                                                      \
    "    asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"                                                        \
    "#endif\n}\n"                                                                                                              \
    "INL void commit_products() {\n"                                                                                           \
    "#ifdef WARPGROUPS\n"                                                                                                      \
    "    asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"                                                 \
    "#endif\n}\n"                                                                                                              \
    "template <int N> INL void wait_products() {\n"                                                                            \
    "#ifdef WARPGROUPS\n"                                                                                                      \
    "    asm volatile(\"wgmma.wait_group.sync.aligned %0;\" :: \"n\"(N) : \"memory\");\n"                                      \
    "#endif\n}\n"                                                                                                              \
    "template <int N> INL void settle(float (&c)[N]) {\n"                                                                      \
    "#pragma unroll\n"                                                                                                         \
    "    for (int i = 0; i < N; i++) asm volatile(\"\" : \"+f\"(c[i]) :: \"memory\");\n}\n"
/* A matrix: units take it by a descriptor: 16-byte units of its address, of the distance of tiles where rows lie along memory,
 * and of 8 rows; and how it is swizzled. Warps take its address. It is the same
 * for all threads of a warp, which a compiler is told by the shuffle; `more`: bytes behind p. */
#define MATRIX_AT                                                                                                              \
    "INL uint64_t matrix_at(const void *p, uint32_t more, uint64_t tiles) {\n"                                                 \
    "    const uint32_t at = __shfl_sync(0xffffffffu, (uint32_t)__cvta_generic_to_shared(p), 0);\n"                            \
    "#ifdef WARPGROUPS\n"                                                                                                      \
    "    const uint32_t low = ((at & 0x3ffffu) >> 4) + (uint32_t)(tiles << 16) + (more >> 4);\n"                               \
    "    return (uint64_t)(64u | 1u << 30) << 32 | low;\n"                                                                     \
    "#else\n"                                                                                                                  \
    "    return at + more + 0 * tiles;\n"                                                                                      \
    "#endif\n}\n"
/* Four blocks of 8 x 8, one for each 8 threads' addresses; turned: steps lie one below the other. */
#define MATRIX_LOAD                                                                                                            \
    "template <bool TURNED> INL void load_blocks(uint32_t (&x)[4], uint32_t base, int element) {\n"                            \
    "    uint32_t at = base + 2 * element;\n"                                                                                  \
    "    at ^= (at >> 7 & 7) << 4;\n"                                                                                          \
    "    if (TURNED)\n"                                                                                                        \
    "        asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\"\n"                           \
    "            : \"=r\"(x[0]), \"=r\"(x[1]), \"=r\"(x[2]), \"=r\"(x[3]) : \"r\"(at) : \"memory\");\n"                        \
    "    else\n"                                                                                                               \
    "        asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\"\n"                                 \
    "            : \"=r\"(x[0]), \"=r\"(x[1]), \"=r\"(x[2]), \"=r\"(x[3]) : \"r\"(at) : \"memory\");\n}\n"
#define MATRIX_WARP(type)                                                                                                      \
    "INL void mma_" type "(float *c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {\n"                                    \
    "    asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "   \
    "{%0,%1,%2,%3};\"\n"                                                                                                       \
    "        : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3])\n"                                                       \
    "        : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b0), \"r\"(b1)); }\n"                                 \
    "template <bool B, int N> INL void multiply_" type "_rows(float (&c)[N], const uint32_t (&x)[4], uint32_t b) {\n"          \
    "    const int lane = threadIdx.x & 31, low = lane & 7, even = lane >> 3 & 1, half = lane >> 4;\n"                         \
    "    uint32_t y[4];\n"                                                                                                     \
    "#pragma unroll\n"                                                                                                         \
    "    for (int j = 0; j < N / 8; j++) {\n"                                                                                  \
    "        load_blocks<B>(y, b, B ? j / 4 * 4096 + 64 * (8 * even + low) + j % 4 * 16 + 8 * half\n"                          \
    "                               : 64 * (16 * j + 8 * half + low) + 8 * even);\n"                                           \
    "        mma_" type "(c + 8 * j, x, y[0], y[1]);\n"                                                                        \
    "        mma_" type "(c + 8 * j + 4, x, y[2], y[3]);\n"                                                                    \
    "    }\n}\n"                                                                                                               \
    "template <bool A, bool B, int N> INL void multiply_" type "_warp(float (&c)[N], uint32_t a, uint32_t b) {\n"              \
    "    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, low = lane & 7, even = lane >> 3 & 1, "               \
    "half = lane >> 4;\n"                                                                                                      \
    "    uint32_t x[4];\n"                                                                                                     \
    "    load_blocks<A>(x, a, A ? 64 * (8 * half + low) + 16 * warp + 8 * even : 64 * (16 * warp + 8 * even + low) + "         \
    "8 * half);\n"                                                                                                             \
    "    multiply_" type "_rows<B>(c, x, b);\n}\n"

/* Two numbers of a fragment in a word, the first one in the lower half. */
#define MATRIX_FRAGMENT(type)                                                                                                  \
    "INL uint32_t both_" type "(float low, float high) { uint32_t x; asm(\"cvt.rn." type "x2.f32 %0, %1, %2;\" : \"=r\"(x) : " \
    "\"f\"(high), \"f\"(low)); return x; }\n"

static const char head[] = MATRIX_HEAD MATRIX_AT;
static const char warps[] = "#ifndef WARPGROUPS\n" MATRIX_LOAD MATRIX_WARP("bf16") MATRIX_WARP("f16") "#endif\n";
static const char fragments[] = MATRIX_FRAGMENT("bf16") MATRIX_FRAGMENT("f16");

static const char *product_name(const used_product *u, arena *a) {
    return u->fragment ? arena_printf(a, "multiply_rows_%s_%d_%d", dtype_name((tn_dtype)u->dtype), u->lanes, u->b_turned)
                       : arena_printf(a, "%s_%s_%d_%d%d", u->first ? "begin" : "multiply", dtype_name((tn_dtype)u->dtype),
                                      u->lanes, u->a_turned, u->b_turned);
}

/* The same with rows in registers. */
static void print_of_fragment(const used_product *u, str *out) {
    const char *type = dtype_name((tn_dtype)u->dtype);
    int n = u->lanes;
    str_addf(out, "INL void %s(float (&c)[%d], const uint32_t (&a)[4], uint64_t b) {\n#ifdef WARPGROUPS\n",
             product_name(u, out->a), n);
    str_addf(out,
             "    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, 1, 0;\\n\"\n"
             "        \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {",
             2 * n, type, type);
    for (int i = 0; i < n; i++) str_addf(out, "%s%%%d", i ? "," : "", i);
    str_addf(out, "}, {%%%d,%%%d,%%%d,%%%d}, %%%d, p, 1, 1, %d; }\"\n        : ", n, n + 1, n + 2, n + 3, n + 4, u->b_turned);
    for (int i = 0; i < n; i++) str_addf(out, "%s\"+f\"(c[%d])", i ? "," : "", i);
    str_addf(out,
             " : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n#else\n    multiply_%s_rows<%d>(c, a, "
             "(uint32_t)b);\n#endif\n}\n",
             type, u->b_turned);
}

static void print_function(const used_product *u, str *out) {
    if (u->fragment) {
        print_of_fragment(u, out);
        return;
    }
    const char *type = dtype_name((tn_dtype)u->dtype);
    str_addf(out, "INL void %s(float (&c)[%d], uint64_t a, uint64_t b) {\n#ifdef WARPGROUPS\n", product_name(u, out->a),
             u->lanes);
    str_addf(out,
             "    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, %d, 0;\\n\"\n"
             "        \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {",
             !u->first, 2 * u->lanes, type, type);
    for (int i = 0; i < u->lanes; i++) str_addf(out, "%s%%%d", i ? "," : "", i);
    str_addf(out, "}, %%%d, %%%d, p, 1, 1, %d, %d; }\"\n        : ", u->lanes, u->lanes + 1, u->a_turned, u->b_turned);
    for (int i = 0; i < u->lanes; i++) str_addf(out, "%s\"%cf\"(c[%d])", i ? "," : "", u->first ? '=' : '+', i);
    str_add(out, " : \"l\"(a), \"l\"(b));\n#else\n");
    if (u->first) str_addf(out, "    for (int i = 0; i < %d; i++) c[i] = 0;\n", u->lanes);
    str_addf(out, "    multiply_%s_warp<%d, %d>(c, (uint32_t)a, (uint32_t)b);\n#endif\n}\n", type, u->a_turned, u->b_turned);
}

void clike_matrix_functions(const clike *e, str *out) {
    if (e->products.n) str_add(out, head), str_add(out, warps);
    bool any = false;
    for (int i = 0; i < e->products.n; i++) any |= e->products.at[i].fragment;
    if (any) str_add(out, fragments);
    for (int i = 0; i < e->products.n; i++) print_function(&e->products.at[i], out);
}

void clike_matrix(clike *e, const kins *in, reg r) {
    affine moves = in->idx;
    moves.base = 0;
    str_addf(e->out, "const uint64_t v%u = matrix_at(&b%d[", r, in->buf);
    clike_affine(e, moves, 0);
    str_addf(e->out, "], %lld, %d);\n", 2 * (long long)in->idx.base,
             in->mode == MN_MAJOR ? KERNEL_MATRIX * KERNEL_MATRIX * 2 / 16 : 1);
}

void clike_fragment(clike *e, const kins *in, reg r) {
    const char *type = dtype_name((tn_dtype)in->src);
    str_addf(e->out, "const uint32_t v%u[4] = { ", r);
    for (int i = 0; i < KERNEL_FRAGMENT; i += 2)
        str_addf(e->out, "%sboth_%s(v%u[%lld], v%u[%lld])", i ? ", " : "", type, in->a, (long long)in->first_lane + i, in->a,
                 (long long)in->first_lane + i + 1);
    str_add(e->out, " };\n");
}

/* Whether a multiply stands between instruction r and the next one that is no matrix, in that direction. */
static bool follows(const clike *e, reg r, int direction) {
    for (r += (reg)direction; r > 0 && r < (reg)e->k->ins.n && e->k->ins.at[r].op == K_MATRIX; r += (reg)direction) {
    }
    return r > 0 && r < (reg)e->k->ins.n && e->k->ins.at[r].op == K_MMA;
}

/* Whether the sums are 0 before multiply r, as they began. */
static bool is_first(const kernel *k, const kins *in, reg r) {
    for (reg i = in->c + 1; i < r; i++) {
        const kins *x = &k->ins.at[i];
        if (x->op == K_LOOP || x->op == K_END || ((x->op == K_MMA || x->op == K_PUT || x->op == K_UPD) && x->c == in->c))
            return false;
    }
    return k->ins.at[in->c].op == K_ACC && k->ins.at[in->c].imm == 0;
}

void clike_multiply(clike *e, const kins *in, reg r) {
    const kins *a = &e->k->ins.at[in->a], *b = &e->k->ins.at[in->b];
    bool fragment = a->op == K_FRAGMENT;
    used_product u = { .dtype = e->k->bufs.at[b->buf].dtype,
                       .lanes = in->lanes,
                       .fragment = fragment,
                       .first = !fragment && is_first(e->k, in, r),
                       .a_turned = !fragment && a->mode == MN_MAJOR,
                       .b_turned = b->mode == MN_MAJOR };
    int known = 0;
    if (!e->l->matrix_units)
        guard_fail(e->out->a->gd, TN_ERR_UNSUPPORTED, "kernel %s: %s has no matrix units; leave tensorize out of its schedule",
                   e->k->name, e->l->name);
    while (known < e->products.n && memcmp(&e->products.at[known], &u, sizeof u) != 0) known++;
    if (known == e->products.n) VEC_PUSH(e->out->a, &e->products, u);
    if (!follows(e, r, -1)) str_add(e->out, "begin_products(); ");
    str_addf(e->out, "%s(v%u, v%u, v%u);", product_name(&u, e->out->a), in->c, in->a, in->b);
    str_add(e->out, follows(e, r, 1) ? "\n" : " commit_products();\n");
}

/* Whether what instruction i makes can be named at instruction r: no loop round it has ended between. */
static bool is_in_scope(const kernel *k, reg i, reg r) {
    int depth = 0;
    for (reg j = i + 1; j < r && depth >= 0; j++) depth += (k->ins.at[j].op == K_LOOP) - (k->ins.at[j].op == K_END);
    return i < r && depth >= 0;
}

/* Whether a wait between multiply i and instruction r, in the same block, is for it: as many groups as that one leaves under
 * way come behind i's. */
static bool is_waited_for(const clike *e, reg i, reg r) {
    int depth = 0;
    int64_t later = 0;
    for (reg j = i + 1; j < r && depth >= 0; j++) {
        const kins *in = &e->k->ins.at[j];
        depth += (in->op == K_LOOP) - (in->op == K_END);
        if (depth) continue;
        if (in->op == K_MMA && !follows(e, j, -1)) later++;
        if (in->op == K_ASYNC && in->mode == ASYNC_PRODUCTS && in->pending <= later) return true;
    }
    return false;
}

/* What reads sums behind the wait r must not be moved before it. Not those of the last groups, which it leaves under way, nor
 * those of an earlier wait: they are as they were, and may be gone. Kernels beside each other have sums of their own. */
static void settle(clike *e, const kins *wait, reg r) {
    bool *seen = ARENA_ARRAY(e->out->a, bool, e->k->ins.n);
    int64_t pending = wait->pending;
    reg to = pending ? r : (reg)e->k->ins.n;
    for (reg i = r; i > 0 && pending; i--)
        if (e->k->ins.at[i].op == K_MMA) seen[e->k->ins.at[i].c] = true, pending -= !follows(e, i, -1), to = i;
    for (reg i = to - 1; i > 0; i--) { /* the last multiply of each */
        const kins *in = &e->k->ins.at[i];
        if (in->op != K_MMA || seen[in->c] || !is_in_scope(e->k, in->c, r)) continue;
        seen[in->c] = true;
        if (i > r || !is_waited_for(e, i, r)) str_addf(e->out, " settle(v%u);", in->c);
    }
}

void clike_async(clike *e, const kins *in, reg r) {
    if (e->bulk.stages && clike_bulk_wait(e, in, r)) return;
    if (in->mode == ASYNC_COMMIT)
        str_add(e->out, "commit_copies();");
    else if (in->mode == ASYNC_COPIES && in->pending)
        str_addf(e->out, "wait_copies<%lld>();", (long long)in->pending);
    else if (in->mode == ASYNC_COPIES)
        str_add(e->out, "wait_all_copies();");
    else
        str_addf(e->out, "wait_products<%lld>();", (long long)in->pending);
    if (in->mode == ASYNC_PRODUCTS) settle(e, in, r);
    str_add(e->out, "\n");
}
