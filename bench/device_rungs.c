/* device_rungs.c - the rungs of the ladders on GPUs: kernels written by hand, one text for CUDA C and OpenCL C.
 *
 * A source is a head with the sizes, the dialect, then the rungs of one work. Every kernel has the same buffers: X, W, B, Y and
 * the scratch S; what it computes is right for all sizes. Launches have thread blocks of 256 threads. */
#include "device_rungs.h"

#include <string.h>

static const char cuda_dialect[] =
    "#define KERNEL(name) extern \"C\" __global__ void __launch_bounds__(256) name(char *p0, char "
    "*p1, char *p2, char *p3, char *p4)\n"
    "#define AT(type, k) ((type *)p##k)\n"
    "#define GLOBAL\n"
    "#define SHARED __shared__\n"
    "#define SHARED_ARG\n"
    "#define DEVICE static __device__ __forceinline__\n"
    "#define T ((int)threadIdx.x)\n"
    "#define G ((int)blockIdx.x)\n"
    "#define BLOCKS ((int)gridDim.x)\n"
    "#define SYNC __syncthreads()\n"
    "#define ADD(p, v) atomicAdd(p, v)\n"
    "#define FMA(a, b, c) fmaf(a, b, c)\n"
    "#define MAX(a, b) fmaxf(a, b)\n"
    "#define EXP(a) expf(a)\n";
static const char opencl_dialect[] =
    "#define KERNEL(name) __kernel __attribute__((reqd_work_group_size(256, 1, 1))) void name(__global uchar *p0, ulong o0, "
    "__global uchar *p1, ulong o1, __global uchar *p2, ulong o2, __global uchar *p3, ulong o3, __global uchar *p4, ulong o4)\n"
    "#define AT(type, k) ((__global type *)(p##k + o##k))\n"
    "#define GLOBAL __global\n"
    "#define SHARED __local\n"
    "#define SHARED_ARG __local\n"
    "#define DEVICE static inline\n"
    "#define T ((int)get_local_id(0))\n"
    "#define G ((int)get_group_id(0))\n"
    "#define BLOCKS ((int)get_num_groups(0))\n"
    "#define SYNC barrier(CLK_LOCAL_MEM_FENCE)\n"
    "#define ADD(p, v) atomic_add(p, v)\n"
    "#define FMA(a, b, c) fma(a, b, c)\n"
    "#define MAX(a, b) fmax(a, b)\n"
    "#define EXP(a) exp(a)\n";
const char *device_dialect(bool cuda) { return cuda ? cuda_dialect : opencl_dialect; }

static const char common[] = "#define X AT(const float, 0)\n"
                             "#define W AT(const float, 1)\n"
                             "#define B AT(const float, 2)\n"
                             "#define Y AT(float, 3)\n"
                             "#define S AT(float, 4)\n"
                             "#define X4 AT(const float4, 0)\n"
                             "#define Y4 AT(float4, 3)\n"
                             "#define ID (G * 256 + T)\n"
                             "#define COUNT (N * N)\n"
                             "#define RELU(v) MAX(v, 0.0f)\n"
                             "#define UP(n, d) (((n) + (d) - 1) / (d))\n";

/* ---- relu(x w + b), all n x n ---- */

static const char matmul_text[] =
    "KERNEL(naive) { int i = ID % N, j = ID / N; float a = 0; if (ID >= COUNT) return;\n"
    "    for (int k = 0; k < N; k++) a = FMA(X[i * N + k], W[k * N + j], a);\n"
    "    Y[i * N + j] = RELU(a + B[j]); }\n"
    "KERNEL(coalesced) { int i = ID / N, j = ID % N; float a = 0; if (ID >= COUNT) return;\n"
    "    for (int k = 0; k < N; k++) a = FMA(X[i * N + k], W[k * N + j], a);\n"
    "    Y[i * N + j] = RELU(a + B[j]); }\n"
    "#define TILES UP(N, 16)\n"
    "KERNEL(tiled) { SHARED float x[16][16], w[16][16]; int r = T / 16, c = T % 16, i = G / TILES * 16 + r, j = G % TILES * 16 "
    "+ "
    "c; float a = 0;\n"
    "    for (int k0 = 0; k0 < N; k0 += 16) {\n"
    "        x[r][c] = i < N && k0 + c < N ? X[i * N + k0 + c] : 0; w[r][c] = j < N && k0 + r < N ? W[(k0 + r) * N + j] : 0; "
    "SYNC;\n"
    "        for (int k = 0; k < 16; k++) a = FMA(x[r][k], w[k][c], a);\n"
    "        SYNC; }\n"
    "    if (i < N && j < N) Y[i * N + j] = RELU(a + B[j]); }\n"
    /* Operands with zeros up to a multiple of the tile, then no bounds to check. */
    "#define P (TILES * 16)\n"
    "KERNEL(pad) { int i = ID / P, j = ID % P; if (ID >= P * P) return;\n"
    "    S[ID] = i < N && j < N ? X[i * N + j] : 0; S[P * P + ID] = i < N && j < N ? W[i * N + j] : 0; }\n"
    "KERNEL(padded) { SHARED float x[16][16], w[16][16]; int r = T / 16, c = T % 16, i = G / TILES * 16 + r, j = G % TILES * "
    "16 "
    "+ "
    "c; float a = 0;\n"
    "    for (int k0 = 0; k0 < P; k0 += 16) {\n"
    "        x[r][c] = S[i * P + k0 + c]; w[r][c] = S[P * P + (k0 + r) * P + j]; SYNC;\n"
    "        for (int k = 0; k < 16; k++) a = FMA(x[r][k], w[k][c], a);\n"
    "        SYNC; }\n"
    "    if (i < N && j < N) Y[i * N + j] = RELU(a + B[j]); }\n"
    /* The second operand turned first; the tile of it is read along k, too, and turned back on its way into shared memory. */
    "KERNEL(transpose) { SHARED float t[16][17]; int r = T / 16, c = T % 16, i = G / TILES * 16, j = G % TILES * 16;\n"
    "    if (i + r < N && j + c < N) t[r][c] = W[(i + r) * N + j + c];\n"
    "    SYNC; if (j + r < N && i + c < N) S[(j + r) * N + i + c] = t[c][r]; }\n"
    "KERNEL(transposed) { SHARED float x[16][16], w[16][17]; int r = T / 16, c = T % 16, i = G / TILES * 16 + r, j0 = G % "
    "TILES "
    "* "
    "16, j = j0 + c; float a = 0;\n"
    "    for (int k0 = 0; k0 < N; k0 += 16) {\n"
    "        x[r][c] = i < N && k0 + c < N ? X[i * N + k0 + c] : 0; w[r][c] = j0 + r < N && k0 + c < N ? S[(j0 + r) * N + k0 + "
    "c] : 0; SYNC;\n"
    "        for (int k = 0; k < 16; k++) a = FMA(x[r][k], w[c][k], a);\n"
    "        SYNC; }\n"
    "    if (i < N && j < N) Y[i * N + j] = RELU(a + B[j]); }\n";
static const char matmul_register_text[] =
    /* 64 x 64 results a thread block, 4 x 4 a thread. */
    "#define WIDE UP(N, 64)\n"
    "KERNEL(registers) { SHARED float x[16][64], w[16][64]; int r = T / 16, c = T % 16, i0 = G / WIDE * 64, j0 = G % WIDE * "
    "64; "
    "float a[4][4];\n"
    "    for (int u = 0; u < 4; u++) for (int v = 0; v < 4; v++) a[u][v] = 0;\n"
    "    for (int k0 = 0; k0 < N; k0 += 16) {\n"
    "        for (int e = T; e < 1024; e += 256) { int k = e % 16, m = e / 16; x[k][m] = i0 + m < N && k0 + k < N ? X[(i0 + m) "
    "* "
    "N + k0 + k] : 0; }\n"
    "        for (int e = T; e < 1024; e += 256) { int k = e / 64, m = e % 64; w[k][m] = j0 + m < N && k0 + k < N ? W[(k0 + k) "
    "* "
    "N + j0 + m] : 0; }\n"
    "        SYNC;\n"
    "        for (int k = 0; k < 16; k++) { float p[4], q[4];\n"
    "            for (int u = 0; u < 4; u++) p[u] = x[k][r * 4 + u], q[u] = w[k][c + 16 * u];\n"
    "            for (int u = 0; u < 4; u++) for (int v = 0; v < 4; v++) a[u][v] = FMA(p[u], q[v], a[u][v]); }\n"
    "        SYNC; }\n"
    "    for (int u = 0; u < 4; u++) for (int v = 0; v < 4; v++) { int i = i0 + r * 4 + u, j = j0 + c + 16 * v;\n"
    "        if (i < N && j < N) Y[i * N + j] = RELU(a[u][v] + B[j]); } }\n"
    /* 128 x 128 a thread block, 8 x 8 a thread; four values an access where rows are multiples of four. */
    "#define HUGE_TILES UP(N, 128)\n"
    "DEVICE float4 four(GLOBAL const float *p, int row, int column) { float4 v; v.x = v.y = v.z = v.w = 0;\n"
    "    if (row >= N) return v;\n"
    "    if (N % 4 == 0 && column + 3 < N) return *(GLOBAL const float4 *)(p + row * N + column);\n"
    "    if (column < N) v.x = p[row * N + column];\n"
    "    if (column + 1 < N) v.y = p[row * N + column + 1];\n"
    "    if (column + 2 < N) v.z = p[row * N + column + 2];\n"
    "    if (column + 3 < N) v.w = p[row * N + column + 3];\n"
    "    return v; }\n"
    "KERNEL(vectors) { SHARED float4 x[8][33], w[8][32]; SHARED_ARG float *xs = (SHARED_ARG float *)x; int r = T / 16, c = T % "
    "16, "
    "i0 = G / "
    "HUGE_TILES * 128, j0 = G % HUGE_TILES * 128; float a[8][8];\n"
    "    for (int u = 0; u < 8; u++) for (int v = 0; v < 8; v++) a[u][v] = 0;\n"
    "    float4 xn = four(X, i0 + T / 2, T % 2 * 4), wn = four(W, T / 32, j0 + T % 32 * 4);\n"
    "    for (int k0 = 0; k0 < N; k0 += 8) {\n"
    "        int k = T % 2 * 4, m = T / 2;\n"
    "        xs[k * 132 + m] = xn.x; xs[(k + 1) * 132 + m] = xn.y; xs[(k + 2) * 132 + m] = xn.z; xs[(k + 3) * 132 + m] = xn.w; "
    "w[T / 32][T % 32] = wn;\n"
    "        SYNC;\n"
    "        if (k0 + 8 < N) { xn = four(X, i0 + m, k0 + 8 + k); wn = four(W, k0 + 8 + T / 32, j0 + T % 32 * 4); }\n"
    "        for (k = 0; k < 8; k++) { float4 p0_ = x[k][r * 2], p1_ = x[k][r * 2 + 1], q0_ = w[k][c], q1_ = w[k][c + 16];\n"
    "            float p[8], q[8]; p[0] = p0_.x; p[1] = p0_.y; p[2] = p0_.z; p[3] = p0_.w; p[4] = p1_.x; p[5] = p1_.y; p[6] = "
    "p1_.z; p[7] = p1_.w;\n"
    "            q[0] = q0_.x; q[1] = q0_.y; q[2] = q0_.z; q[3] = q0_.w; q[4] = q1_.x; q[5] = q1_.y; q[6] = q1_.z; q[7] = "
    "q1_.w;\n"
    "            for (int u = 0; u < 8; u++) for (int v = 0; v < 8; v++) a[u][v] = FMA(p[u], q[v], a[u][v]); }\n"
    "        SYNC; }\n"
    "    for (int u = 0; u < 8; u++) for (int v = 0; v < 8; v++) { int i = i0 + r * 8 + u, j = j0 + c * 4 + v % 4 + v / 4 * "
    "64;\n"
    "        if (i < N && j < N) Y[i * N + j] = RELU(a[u][v] + B[j]); } }\n";

/* ---- elementwise ---- */

static const char relu_text[] =
    "KERNEL(strided) { for (int k = 0; k < 16; k++) { int i = ID * 16 + k; if (i < COUNT) Y[i] = RELU(X[i]); } }\n"
    "KERNEL(coalesced) { if (ID < COUNT) Y[ID] = RELU(X[ID]); }\n"
    "KERNEL(coarsened) { for (int i = ID; i < COUNT; i += BLOCKS * 256) Y[i] = RELU(X[i]); }\n"
    "KERNEL(vectors) { if (ID < COUNT / 4) { float4 v = X4[ID]; v.x = RELU(v.x); v.y = RELU(v.y); v.z = RELU(v.z); v.w = "
    "RELU(v.w); Y4[ID] = v; }\n"
    "    int i = COUNT / 4 * 4 + ID; if (i < COUNT) Y[i] = RELU(X[i]); }\n";

/* ---- rows ---- */

/* best and sum of all threads of a thread block: halves of shared memory, or shuffles. */
static const char group_text[] =
    "#ifdef __CUDACC__\n"
    "#define COMBINE_WARPS(name, by) DEVICE float name(SHARED_ARG float *t, float v) {\\\n"
    "    for (int d = 16; d; d /= 2) { float o = __shfl_xor_sync(0xffffffffu, v, d); v = by; }\\\n"
    "    SYNC; if (T % 32 == 0) t[T / 32] = v;\\\n"
    "    SYNC; v = t[T % 8];\\\n"
    "    for (int d = 4; d; d /= 2) { float o = __shfl_xor_sync(0xffffffffu, v, d); v = by; }\\\n"
    "    return v; }\n"
    "COMBINE_WARPS(warps_max, MAX(v, o))\n"
    "COMBINE_WARPS(warps_sum, v + o)\n"
    "#endif\n"
    "#define COMBINE_TREE(name, by) DEVICE float name(SHARED_ARG float *t, float v) { float o;\\\n"
    "    SYNC; t[T] = v; SYNC;\\\n"
    "    for (int d = 128; d; d /= 2) { if (T < d) { v = t[T], o = t[T + d]; t[T] = by; } SYNC; }\\\n"
    "    return t[0]; }\n"
    "COMBINE_TREE(tree_max, MAX(v, o))\n"
    "COMBINE_TREE(tree_sum, v + o)\n";

static const char softmax_text[] =
    "#define SMALL (-3.4e38f)\n"
    "KERNEL(naive) { int i = ID; float top = SMALL, sum = 0; if (i >= N) return;\n"
    "    for (int j = 0; j < N; j++) top = MAX(top, X[i * N + j]);\n"
    "    for (int j = 0; j < N; j++) { float e = EXP(X[i * N + j] - top); Y[i * N + j] = e; sum += e; }\n"
    "    for (int j = 0; j < N; j++) Y[i * N + j] /= sum; }\n"
    "#define ROW(name, combine_max, combine_sum) KERNEL(name) { SHARED float t[256]; int i = G; float top = SMALL, sum = 0;\\\n"
    "    for (int j = T; j < N; j += 256) top = MAX(top, X[i * N + j]);\\\n"
    "    top = combine_max(t, top);\\\n"
    "    for (int j = T; j < N; j += 256) sum += EXP(X[i * N + j] - top);\\\n"
    "    sum = 1 / combine_sum(t, sum);\\\n"
    "    for (int j = T; j < N; j += 256) Y[i * N + j] = EXP(X[i * N + j] - top) * sum; }\n"
    "ROW(tree, tree_max, tree_sum)\n"
    "#ifdef __CUDACC__\n"
    "ROW(shuffle, warps_max, warps_sum)\n"
    "#endif\n"
    /* One pass: the sum so far shrinks when a larger value comes. */
    "KERNEL(online) { SHARED float t[256]; int i = G; float top = SMALL, sum = 0;\n"
    "    for (int j = T; j < N; j += 256) { float v = X[i * N + j]; if (v > top) { sum *= EXP(top - v); top = v; } sum += "
    "EXP(v - "
    "top); }\n"
    "    float all = tree_max(t, top); sum = 1 / tree_sum(t, sum * EXP(top - all));\n"
    "    for (int j = T; j < N; j += 256) Y[i * N + j] = EXP(X[i * N + j] - all) * sum; }\n"
    "#define PER UP(N, 256)\n"
    "KERNEL(held) { SHARED float t[256]; int i = G; float v[PER], top = SMALL, sum = 0;\n"
    "    for (int k = 0; k < PER; k++) { int j = T + k * 256; v[k] = j < N ? X[i * N + j] : SMALL; top = MAX(top, v[k]); }\n"
    "    top = tree_max(t, top);\n"
    "    for (int k = 0; k < PER; k++) { v[k] = EXP(v[k] - top); sum += T + k * 256 < N ? v[k] : 0; }\n"
    "    sum = 1 / tree_sum(t, sum);\n"
    "    for (int k = 0; k < PER; k++) if (T + k * 256 < N) Y[i * N + T + k * 256] = v[k] * sum; }\n";

/* ---- linear, relu, softmax; after matmul_text and softmax_text's rows ---- */

static const char fused_text[] =
    "#define LINEAR(name, out, finish) KERNEL(name) { SHARED float x[16][16], w[16][16]; int r = T / 16, c = T % 16, i = G / "
    "TILES * "
    "16 + r, j = G % TILES * 16 + c; float a = 0;\\\n"
    "    for (int k0 = 0; k0 < N; k0 += 16) {\\\n"
    "        x[r][c] = i < N && k0 + c < N ? X[i * N + k0 + c] : 0; w[r][c] = j < N && k0 + r < N ? W[(k0 + r) * N + j] : 0; "
    "SYNC;\\\n"
    "        for (int k = 0; k < 16; k++) a = FMA(x[r][k], w[k][c], a);\\\n"
    "        SYNC; }\\\n"
    "    if (i < N && j < N) out[i * N + j] = finish(a + B[j]); }\n"
    "#define AS_IS(v) (v)\n"
    "#define TILES UP(N, 16)\n"
    "LINEAR(linear, S, AS_IS)\n"
    "LINEAR(linear_relu, Y, RELU)\n"
    "KERNEL(relu) { if (ID < COUNT) Y[ID] = RELU(S[ID]); }\n"
    "KERNEL(softmax) { SHARED float t[256]; int i = G; float top = -3.4e38f, sum = 0;\n"
    "    for (int j = T; j < N; j += 256) top = MAX(top, Y[i * N + j]);\n"
    "    top = tree_max(t, top);\n"
    "    for (int j = T; j < N; j += 256) sum += EXP(Y[i * N + j] - top);\n"
    "    sum = 1 / tree_sum(t, sum);\n"
    "    for (int j = T; j < N; j += 256) Y[i * N + j] = EXP(Y[i * N + j] - top) * sum; }\n"
    /* Four rows are a thread block's from the operand to the result. */
    "#define PER UP(N, 256)\n"
    "KERNEL(rows) { SHARED float t[256], x[4][64]; int i0 = G * 4; float a[4][PER];\n"
    "    for (int u = 0; u < 4; u++) for (int k = 0; k < PER; k++) a[u][k] = 0;\n"
    "    for (int k0 = 0; k0 < N; k0 += 64) {\n"
    "        { int u = T / 64, k = T % 64; x[u][k] = i0 + u < N && k0 + k < N ? X[(i0 + u) * N + k0 + k] : 0; } SYNC;\n"
    "        for (int k = 0; k < 64 && k0 + k < N; k++) for (int p = 0; p < PER; p++) { int j = T + p * 256; float w = j < N ? "
    "W[(k0 + k) * N + j] : 0;\n"
    "            for (int u = 0; u < 4; u++) a[u][p] = FMA(x[u][k], w, a[u][p]); }\n"
    "        SYNC; }\n"
    "    for (int u = 0; u < 4; u++) { float top = 0, sum = 0;\n"
    "        for (int p = 0; p < PER; p++) { int j = T + p * 256; a[u][p] = j < N ? RELU(a[u][p] + B[j]) : 0; top = MAX(top, "
    "a[u][p]); }\n"
    "        top = tree_max(t, top);\n"
    "        for (int p = 0; p < PER; p++) { a[u][p] = EXP(a[u][p] - top); sum += T + p * 256 < N ? a[u][p] : 0; }\n"
    "        sum = 1 / tree_sum(t, sum);\n"
    "        for (int p = 0; p < PER; p++) if (T + p * 256 < N && i0 + u < N) Y[(i0 + u) * N + T + p * 256] = a[u][p] * sum; } "
    "}\n";

/* ---- the sum of all ---- */

static const char sum_text[] =
    "KERNEL(single) { SHARED float t[256]; float a = 0; for (int i = T; i < COUNT; i += 256) a += X[i];\n"
    "    a = tree_sum(t, a); if (T == 0) Y[0] = a; }\n"
    /* 512 to one, again and again: S holds the sums of one step behind those of the step before. */
    "#define L1 UP(COUNT, 512)\n"
    "#define L2 UP(L1, 512)\n"
    "#define STEP(name, from, n, to) KERNEL(name) { SHARED float t[256]; int i = G * 512 + T; float a = i < (n) ? (from)[i] : "
    "0; "
    "if "
    "(i + 256 < (n)) a += (from)[i + 256];\\\n"
    "    a = tree_sum(t, a); if (T == 0) (to)[G] = a; }\n"
    "STEP(tree1, X, COUNT, S)\n"
    "STEP(tree2, S, L1, S + L1)\n"
    "KERNEL(tree3) { SHARED float t[256]; float a = 0; for (int i = T; i < L2; i += 256) a += S[L1 + i];\n"
    "    a = tree_sum(t, a); if (T == 0) Y[0] = a; }\n"
    "#define SHARES(name, combine, body) KERNEL(name) { SHARED float t[256]; float a = 0; body a = combine(t, a); if (T == 0) "
    "S[G] = "
    "a; }\n"
    "#define ONE_BY_ONE for (int i = ID; i < COUNT; i += BLOCKS * 256) a += X[i];\n"
    "#define FOUR_BY_FOUR for (int i = ID; i < COUNT / 4; i += BLOCKS * 256) { float4 v = X4[i]; a += (v.x + v.y) + (v.z + "
    "v.w); "
    "} if (COUNT / 4 * 4 + ID < COUNT) a += X[COUNT / 4 * 4 + ID];\n"
    "SHARES(shares, tree_sum, ONE_BY_ONE)\n"
    "SHARES(vectors, tree_sum, FOUR_BY_FOUR)\n"
    "#ifdef __CUDACC__\n"
    "SHARES(shuffle, warps_sum, ONE_BY_ONE)\n"
    "#endif\n"
    "KERNEL(gather) { SHARED float t[256]; float a = 0; for (int i = T; i < SHARES_N; i += 256) a += S[i];\n"
    "    a = tree_sum(t, a); if (T == 0) Y[0] = a; }\n";

/* ---- transpose ---- */

static const char transpose_text[] =
    "#define TILES UP(N, 32)\n"
    "KERNEL(naive) { int i = ID / N, j = ID % N; if (ID < COUNT) Y[j * N + i] = X[ID]; }\n"
    "KERNEL(gathered) { int i = ID / N, j = ID % N; if (ID < COUNT) Y[ID] = X[j * N + i]; }\n"
    "#define TURN(name, width) KERNEL(name) { SHARED float t[32][width]; int i = G / TILES * 32, j = G % TILES * 32, c = T % "
    "32, "
    "r = "
    "T / 32;\\\n"
    "    for (int k = r; k < 32; k += 8) if (i + k < N && j + c < N) t[k][c] = X[(i + k) * N + j + c];\\\n"
    "    SYNC;\\\n"
    "    for (int k = r; k < 32; k += 8) if (j + k < N && i + c < N) Y[(j + k) * N + i + c] = t[c][k]; }\n"
    "TURN(tiled, 32)\n"
    "TURN(padded, 33)\n"
    "KERNEL(vectors) { SHARED float t[32][33]; int i = G / TILES * 32, j = G % TILES * 32, c = T % 8 * 4, r = T / 8;\n"
    "    if (N % 4 == 0) {\n"
    "        if (i + r < N && j + c < N) { float4 v = X4[((i + r) * N + j + c) / 4]; t[r][c] = v.x; t[r][c + 1] = v.y; t[r][c "
    "+ 2] "
    "= v.z; t[r][c + 3] = v.w; }\n"
    "        SYNC;\n"
    "        if (j + r < N && i + c < N) { float4 v; v.x = t[c][r]; v.y = t[c + 1][r]; v.z = t[c + 2][r]; v.w = t[c + 3][r]; "
    "Y4[((j "
    "+ r) * N + i + c) / 4] = v; }\n"
    "    } else {\n"
    "        for (int k = 0; k < 4; k++) if (i + r < N && j + c + k < N) t[r][c + k] = X[(i + r) * N + j + c + k];\n"
    "        SYNC;\n"
    "        for (int k = 0; k < 4; k++) if (j + r < N && i + c + k < N) Y[(j + r) * N + i + c + k] = t[c + k][r]; } }\n";

/* ---- histogram: X and Y hold 32-bit integers ---- */

static const char histogram_text[] =
    "#define V AT(const int, 0)\n"
    "#define H AT(int, 3)\n"
    "KERNEL(clear) { if (ID < BINS) H[ID] = 0; }\n"
    "KERNEL(naive) { if (ID < COUNT) ADD(H + V[ID], 1); }\n"
    "#define PRIVATE(name, body) KERNEL(name) { SHARED int h[BINS]; for (int b = T; b < BINS; b += 256) h[b] = 0; SYNC; "
    "body\\\n"
    "    SYNC; for (int b = T; b < BINS; b += 256) if (h[b]) ADD(H + b, h[b]); }\n"
    "PRIVATE(own, if (ID < COUNT) ADD(h + V[ID], 1);)\n"
    /* The same number of values a thread: neighbours apart, neighbours together. */
    "PRIVATE(apart, for (int k = 0; k < 32; k++) { int i = ID * 32 + k; if (i < COUNT) ADD(h + V[i], 1); })\n"
    "PRIVATE(coarsened, for (int k = 0; k < 32; k++) { int i = (G * 32 + k) * 256 + T; if (i < COUNT) ADD(h + V[i], 1); })\n"
    /* A run of equal values is added at once. */
    "PRIVATE(aggregated, int last = -1; int run = 0; for (int k = 0; k < 32; k++) { int i = (G * 32 + k) * 256 + T; if (i < "
    "COUNT) "
    "{ int v = V[i]; if (v != last) { if (run) ADD(h + last, run); last = v; run = 0; } run++; } } if (run) ADD(h + last, "
    "run);)\n"
    /* No atomics: a thread block a bin reads everything. */
    "KERNEL(gather) { SHARED int t[256]; int n = 0; for (int i = T; i < COUNT; i += 256) n += V[i] == G;\n"
    "    t[T] = n; SYNC; for (int d = 128; d; d /= 2) { if (T < d) t[T] += t[T + d]; SYNC; } if (T == 0) H[G] = t[0]; }\n";

/* ---- tables ---- */

enum { SHARES = 528 }; /* thread blocks: four a multiprocessor of a large GPU */

#define GENERATED(what)                                                                                                        \
    { .name = what, .doc = "compiled by Tenon" }

static const device_rung matmul_rungs[] = {
    { .name = "naive",
      .doc = "a thread an element, neighbours down a column: no access is shared",
      .steps = { { "naive", PER_ELEMENT, 1 } } },
    { .name = "coalesced", .doc = "neighbours along a row", .steps = { { "coalesced", PER_ELEMENT, 1 } } },
    { .name = "tiled", .doc = "16 x 16 tiles in shared memory, bounds checked", .steps = { { "tiled", PER_TILE, 16 } } },
    { .name = "padded",
      .doc = "operands padded with zeros first, then no checks",
      .steps = { { "pad", PER_PADDED, 16 }, { "padded", PER_TILE, 16 } } },
    { .name = "transposed",
      .doc = "the second operand transposed first",
      .steps = { { "transpose", PER_TILE, 16 }, { "transposed", PER_TILE, 16 } } },
    { .name = "registers",
      .doc = "64 x 64 a thread block, 4 x 4 in the registers of a thread",
      .steps = { { "registers", PER_TILE, 64 } } },
    { .name = "vectors",
      .doc = "128 x 128, 8 x 8 a thread, four values an access, the next tile under way",
      .steps = { { "vectors", PER_TILE, 128 } } },
    GENERATED("generated"),
};
static const device_rung relu_rungs[] = {
    { .name = "strided",
      .doc = "16 neighbouring elements a thread: neighbouring threads lie apart",
      .steps = { { "strided", PER_ELEMENT, 16 } } },
    { .name = "coalesced", .doc = "an element a thread", .steps = { { "coalesced", PER_ELEMENT, 1 } } },
    { .name = "coarsened",
      .doc = "as many thread blocks as fill the device, each with many elements",
      .steps = { { "coarsened", FIXED, SHARES } } },
    { .name = "vectors", .doc = "four elements a thread", .steps = { { "vectors", PER_ELEMENT, 4 } } },
    GENERATED("generated"),
};
static const device_rung softmax_rungs[] = {
    { .name = "naive", .doc = "a thread a row", .steps = { { "naive", PER_ROW, 256 } } },
    { .name = "tree", .doc = "a thread block a row, combined by halves in shared memory", .steps = { { "tree", PER_ROW, 1 } } },
    { .name = "shuffle", .doc = "combined by shuffles", .steps = { { "shuffle", PER_ROW, 1 } }, .cuda = true },
    { .name = "online", .doc = "maximum and sum in one pass", .steps = { { "online", PER_ROW, 1 } } },
    { .name = "held", .doc = "the row stays in registers", .steps = { { "held", PER_ROW, 1 } } },
    GENERATED("generated"),
};
static const device_rung fused_rungs[] = {
    { .name = "lin_relu_fission",
      .doc = "linear, then ReLU",
      .steps = { { "linear", PER_TILE, 16 }, { "relu", PER_ELEMENT, 1 } } },
    { .name = "lin_relu_fused", .doc = "ReLU before the result is stored", .steps = { { "linear_relu", PER_TILE, 16 } } },
    GENERATED("lin_relu_generated"),
    { .name = "lin_relu_softmax_fission",
      .doc = "three kernels",
      .steps = { { "linear", PER_TILE, 16 }, { "relu", PER_ELEMENT, 1 }, { "softmax", PER_ROW, 1 } } },
    { .name = "lin_relu_softmax_two",
      .doc = "linear with ReLU, then softmax",
      .steps = { { "linear_relu", PER_TILE, 16 }, { "softmax", PER_ROW, 1 } } },
    { .name = "lin_relu_softmax_fused",
      .doc = "four rows through all three in one kernel",
      .steps = { { "rows", PER_ROW, 4 } } },
    GENERATED("lin_relu_softmax_generated"),
};
static const device_rung sum_rungs[] = {
    { .name = "single", .doc = "one thread block, a single pass", .steps = { { "single", FIXED, 1 } } },
    { .name = "tree",
      .doc = "512 to one by halves in shared memory, again and again",
      .steps = { { "tree1", PER_ELEMENT, 2 }, { "tree2", PER_PAIRS, 1 }, { "tree3", FIXED, 1 } } },
    { .name = "shares",
      .doc = "many elements a thread, then a tree; the blocks' sums by one block",
      .steps = { { "shares", FIXED, SHARES }, { "gather", FIXED, 1 } } },
    { .name = "shuffle",
      .doc = "shuffles instead of the tree",
      .steps = { { "shuffle", FIXED, SHARES }, { "gather", FIXED, 1 } },
      .cuda = true },
    { .name = "vectors", .doc = "four elements an access", .steps = { { "vectors", FIXED, SHARES }, { "gather", FIXED, 1 } } },
    GENERATED("generated"),
};
static const device_rung transpose_rungs[] = {
    { .name = "naive", .doc = "reads along rows, writes down columns", .steps = { { "naive", PER_ELEMENT, 1 } } },
    { .name = "gathered", .doc = "reads down columns, writes along rows", .steps = { { "gathered", PER_ELEMENT, 1 } } },
    { .name = "tiled",
      .doc = "32 x 32 tiles through shared memory, all threads at one bank",
      .steps = { { "tiled", PER_TILE, 32 } } },
    { .name = "padded", .doc = "rows of 33: no two threads at one bank", .steps = { { "padded", PER_TILE, 32 } } },
    { .name = "vectors", .doc = "four values an access", .steps = { { "vectors", PER_TILE, 32 } } },
    GENERATED("generated"),
};
static const device_rung histogram_rungs[] = {
    { .name = "naive",
      .doc = "an atomic addition in memory a value",
      .steps = { { "clear", FIXED, 16 }, { "naive", PER_ELEMENT, 1 } } },
    { .name = "private",
      .doc = "a histogram a thread block in shared memory",
      .steps = { { "clear", FIXED, 16 }, { "own", PER_ELEMENT, 1 } } },
    { .name = "apart",
      .doc = "32 neighbouring values a thread",
      .steps = { { "clear", FIXED, 16 }, { "apart", PER_ELEMENT, 32 } } },
    { .name = "coarsened",
      .doc = "32 values a thread, neighbours together",
      .steps = { { "clear", FIXED, 16 }, { "coarsened", PER_ELEMENT, 32 } } },
    { .name = "aggregated",
      .doc = "runs of equal values at once",
      .steps = { { "clear", FIXED, 16 }, { "aggregated", PER_ELEMENT, 32 } } },
    { .name = "gather", .doc = "a thread block a bin reads everything, no atomics", .steps = { { "gather", PER_BIN, 1 } } },
    GENERATED("generated"),
};

static const device_ladder ladders[] = {
    { "matmul", matmul_rungs, COUNT_OF(matmul_rungs), { matmul_text, matmul_register_text } },
    { "relu", relu_rungs, COUNT_OF(relu_rungs), { relu_text } },
    { "softmax", softmax_rungs, COUNT_OF(softmax_rungs), { group_text, softmax_text } },
    { "fused", fused_rungs, COUNT_OF(fused_rungs), { group_text, fused_text } },
    { "sum", sum_rungs, COUNT_OF(sum_rungs), { group_text, sum_text } },
    { "transpose", transpose_rungs, COUNT_OF(transpose_rungs), { transpose_text } },
    { "histogram", histogram_rungs, COUNT_OF(histogram_rungs), { histogram_text } },
};

const device_ladder *device_ladder_find(const char *work) {
    for (size_t i = 0; i < COUNT_OF(ladders); i++)
        if (!strcmp(ladders[i].work, work)) return &ladders[i];
    return NULL;
}

char *device_ladder_source(const device_ladder *l, bool cuda, int64_t n, int64_t bins) {
    return cli_format("#define N %lld\n#define BINS %lld\n#define SHARES_N %d\n%s%s%s%s", (long long)n, (long long)bins, SHARES,
                      device_dialect(cuda), common, l->text[0], l->text[1] ? l->text[1] : "");
}

int64_t device_ladder_groups(const device_step *s, int64_t n, int64_t bins) {
    int64_t by = s->by ? s->by : 1, tiles = (n + by - 1) / by;
    switch (s->groups) {
    case PER_ELEMENT:
        return (n * n + 256 * by - 1) / (256 * by);
    case PER_TILE:
        return tiles * tiles;
    case PER_PADDED:
        return (tiles * by * tiles * by + 255) / 256;
    case PER_ROW:
        return tiles;
    case PER_PAIRS:
        return ((n * n + 511) / 512 + 511) / 512;
    case PER_BIN:
        return bins;
    case FIXED:
        return by;
    }
    return 0;
}
