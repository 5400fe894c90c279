/* languages.c - what C, OpenCL C and CUDA C say differently: a row for each, and the definitions that programs start
 * with. Everything else of the three is printed by clike.c and memory.c. */
#include "emit/clike/clike.h"

#define SMALL_TYPES                                                                                                            \
    "typedef unsigned char uint8_t; typedef signed char int8_t; typedef unsigned short uint16_t; typedef short int16_t;\n"     \
    "typedef int int32_t;\n"                                                                                                   \
    "typedef unsigned int uint32_t;\n"
#define LOOPS                                                                                                                  \
    "#define PRAGMA(x) _Pragma(#x)\n#define UNROLL(n) PRAGMA(unroll n)\n"                                                      \
    "#define LANES(n) UNROLL(n) for (int l = 0; l < n; l++)\n"

const clike_language clike_c = {
    .name = "c", .index = "int64_t", .index_end = "L", .unsigned_index = "uint64_t", .unsigned_end = "ULL", .wide_end = "LL"
};

const clike_language clike_opencl = {
    .name = "opencl",
    .gpu = true,
    .index = "int",
    .index_end = "",
    .unsigned_index = "uint",
    .unsigned_end = "u",
    .wide_end = "L",
    .head = SMALL_TYPES LOOPS "typedef long int64_t; typedef ulong uint64_t;\n#pragma OPENCL FP_CONTRACT OFF\n"
                              "#define INL static inline\n"
                              "#define BITS_f32x1(x) as_int(x)\n#define FROM_f32x1(x) as_float(x)\n",
    .head_f64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#define BITS_f64x1(x) as_long(x)\n"
                "#define FROM_f64x1(x) as_double(x)\n",
    .fma = { "fma", "fma" },
    .math_end = "",
    .barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    .thread = "get_local_id(0)",
    .block = "get_group_id(0)",
    .kernel = "__kernel %s__attribute__((reqd_work_group_size(%s, 1, 1))) void %s(",
    .global = "__global ",
    .shared = "__local ",
    .restricted = "restrict",
    .offsets = true,
    .shared_space = "__local ",
    .long2 = "long2",
    .aligned = "__attribute__((aligned(%d)))",
};

/* nvcc has read the system's <stdint.h> before the text begins; NVRTC has no headers. */
#define CUDA_TYPES                                                                                                             \
    "#ifdef __CUDACC_RTC__\n" SMALL_TYPES "typedef long long int64_t; typedef unsigned long long uint64_t;\n"                  \
    "#else\n#include <stdint.h>\n#pragma nv_diag_suppress 177\n#endif\n" LOOPS

/* Loads that stay where they are written. */
#define AHEAD                                                                                                                  \
    "INL uint16_t load_ahead(const uint16_t *p) {\n"                                                                           \
    "    uint16_t x; asm volatile(\"ld.global.u16 %0, [%1];\" : \"=h\"(x) : \"l\"(p)); return x; }\n"                          \
    "INL uint32_t load_ahead(const uint32_t *p) {\n"                                                                           \
    "    uint32_t x; asm volatile(\"ld.global.u32 %0, [%1];\" : \"=r\"(x) : \"l\"(p)); return x; }\n"                          \
    "INL uint2 load_ahead(const uint2 *p) {\n"                                                                                 \
    "    uint2 x; asm volatile(\"ld.global.v2.u32 {%0,%1}, [%2];\" : \"=r\"(x.x), \"=r\"(x.y) : \"l\"(p)); return x; }\n"      \
    "INL float load_ahead(const float *p) {\n"                                                                                 \
    "    float x; asm volatile(\"ld.global.f32 %0, [%1];\" : \"=f\"(x) : \"l\"(p)); return x; }\n"                             \
    "INL float2 load_ahead(const float2 *p) {\n"                                                                               \
    "    float2 x; asm volatile(\"ld.global.v2.f32 {%0,%1}, [%2];\" : \"=f\"(x.x), \"=f\"(x.y) : \"l\"(p)); return x; }\n"     \
    "INL float4 load_ahead(const float4 *p) {\n"                                                                               \
    "    float4 x; asm volatile(\"ld.global.v4.f32 {%0,%1,%2,%3}, [%4];\" "                                                    \
    ": \"=f\"(x.x), \"=f\"(x.y), \"=f\"(x.z), \"=f\"(x.w) : \"l\"(p)); return x; }\n"                                          \
    "INL uint4 load_ahead(const uint4 *p) {\n"                                                                                 \
    "    uint4 x; asm volatile(\"ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\" "                                                     \
    ": \"=r\"(x.x), \"=r\"(x.y), \"=r\"(x.z), \"=r\"(x.w) : \"l\"(p)); return x; }\n"

/* Four sums that are stored at once would lie in four registers in a row from the first product on, each in the bank of the
 * factor that it is multiplied by: one product of 2048 cubed took 360 us on an H200, not 350. x + -0 is x. */
#define APART "INL float apart(float x) { asm(\"add.f32 %0, %0, 0f80000000;\" : \"+f\"(x)); return x; }\n"

/* One instruction; two where the compiler knows both words. It does not know that all thread blocks lie along x. */
#define AND_OR                                                                                                                 \
    "INL int32_t and_or(int32_t x, int32_t a, int32_t b) { return (x & a) | (b + (int32_t)gridDim.y - 1); }\n"                 \
    "INL int32_t and_xor(int32_t x, int32_t a, int32_t b) { return (x & a) ^ (b + (int32_t)gridDim.y - 1); }\n"

/* x of the threads without bit h, and y of those with it, added over each two that differ by it. */
#define HALVES                                                                                                                 \
    "INL float halves(float x, float y, int h) {\n"                                                                            \
    "    const bool up = threadIdx.x & h; return (up ? y : x) + __shfl_xor_sync(0xffffffffu, up ? x : y, h); }\n"

/* Of numbers that will be rounded to 16 bits. What is below 2^-126 is 0: without .ftz there is a test and two products round
 * the instruction to bring that out. tanh near 0 is x - x^3 / 3 .. - its fourth term is 2^-16.8 of it at 1/2 - and beyond
 * 1 - 2 / (e^2|x| + 1). The unit of tanh is off by up to 2^-11 of it, an eighth of a bf16's rounding and as much as an f16's.
 */
#define COARSE                                                                                                                 \
    "INL float approximate_exp(float x) {\n"                                                                                   \
    "    float r; asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x * 1.44269504f)); return r; }\n"                     \
    "INL float coarse_exp_of(float x, float y) {\n"                                                                            \
    "    float r; asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(__fmaf_rn(x, 1.44269504f, y * -1.44269504f))); "      \
    "return r; }\n"                                                                                                            \
    "INL float approximate_tanh(float x) {\n"                                                                                  \
    "    float a = fabsf(x), z = x * x, e, r, p = __fmaf_rn(z, 0x1.664f48p-6f, -0x1.ba1ba2p-5f);\n"                            \
    "    p = __fmaf_rn(__fmaf_rn(p, z, 0x1.111112p-3f), z, -0x1.555556p-2f);\n"                                                \
    "    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(e) : \"f\"(a * 2.88539008f));\n"                                          \
    "    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(e + 1.0f));\n"                                                 \
    "    return copysignf(z < 0.25f ? __fmaf_rn(a * z, p, a) : __fmaf_rn(-2.0f, r, 1.0f), x); }\n"                             \
    "#if __CUDA_ARCH__ >= 750\n"                                                                                               \
    "INL float coarse_tanh(float x) { float r; asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"         \
    "#else\nINL float coarse_tanh(float x) { return approximate_tanh(x); }\n#endif\n"

/* exp(x) = 2^n 2^r, n = floor(x / ln 2) between -126 and 126: a product saturated to [0, 1] counts it in parts of 252, and
 * rounding down leaves n + 127 in the last bits. Beyond, r goes on, and so does what the unit of 2^r gives: infinity, denormals
 * and 0 come out right. The error is at most 1.94 units in the last place (all arguments, sm_90), of which the unit makes 1.4.
 * One statement, of which a compiler keeps no part in registers from one place to the next. */
#define EXP_BY_UNIT                                                                                                            \
    "float e; asm(\"{ .reg .f32 t, r; fma.rn.sat.f32 t, %1, 0f3BBB989D, 0f3F000000; \"\n"                                      \
    "    \"fma.rm.f32 t, t, 0f437C0000, 0f4B400001; add.f32 r, t, 0fCB40007F; neg.f32 r, r; \"\n"                              \
    "    \"fma.rn.f32 r, %1, 0f3FB8AA3B, r; fma.rn.f32 r, %1, 0f32A57060, r; \"\n"                                             \
    "    \"ex2.approx.ftz.f32 r, r; shl.b32 t, t, 23; mul.f32 %0, t, r; }\" : \"=f\"(e) : \"f\"(x)); return e;"

/* What GPUs since sm_80 have instructions for. */
#define EXTREME(name, sign)                                                                                                    \
    "INL float " #name "_nan(float x, float y) {\n"                                                                            \
    "#if __CUDA_ARCH__ >= 800\n"                                                                                               \
    "    float r; asm(\"" #name ".NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(x), \"f\"(y)); return r;\n"                        \
    "#else\n"                                                                                                                  \
    "    return y " sign " x || x != x ? x : y;\n"                                                                             \
    "#endif\n}\n"
/* Copies to shared memory that are there when async_wait has returned; 0 where there is nothing. */
#define ASYNC                                                                                                                  \
    "#if __CUDA_ARCH__ >= 800\n"                                                                                               \
    "#define COPY_ASYNC(n, how, type) \\\n"                                                                                    \
    "INL void copy_async##n(void *to, const void *from, bool there) { \\\n"                                                    \
    "    asm volatile(\"cp.async.\" how \".shared.global [%0], [%1], \" #n \", %2;\" \\\n"                                     \
    "        :: \"r\"((uint32_t)__cvta_generic_to_shared(to)), \"l\"(from), \"r\"(there ? n : 0) : \"memory\"); }\n"           \
    "INL void async_wait(void) { asm volatile(\"cp.async.wait_all;\" ::: \"memory\"); }\n"                                     \
    "#else\n"                                                                                                                  \
    "#define COPY_ASYNC(n, how, type) \\\n"                                                                                    \
    "INL void copy_async##n(void *to, const void *from, bool there) { \\\n"                                                    \
    "    type x = {}; if (there) x = *(const type *)from; *(type *)to = x; }\n"                                                \
    "INL void async_wait(void) {}\n"                                                                                           \
    "#endif\n"                                                                                                                 \
    "COPY_ASYNC(4, \"ca\", float)\nCOPY_ASYNC(8, \"ca\", float2)\nCOPY_ASYNC(16, \"cg\", float4)\n"
#define SM80                                                                                                                   \
    EXTREME(max, "<")                                                                                                          \
    EXTREME(min, ">")                                                                                                          \
    "INL uint32_t round_bf16(uint32_t u) {\n"                                                                                  \
    "    return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16; }\n"                 \
    "INL uint32_t pack_bf16(float low, float high) {\n"                                                                        \
    "#if __CUDA_ARCH__ >= 800\n"                                                                                               \
    "    uint32_t r; asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(high), \"f\"(low)); return r;\n"                \
    "#else\n"                                                                                                                  \
    "    return round_bf16(__float_as_uint(low)) | round_bf16(__float_as_uint(high)) << 16;\n"                                 \
    "#endif\n}\n"                                                                                                              \
    "INL int32_t least32(int32_t x) {\n"                                                                                       \
    "#if __CUDA_ARCH__ >= 800\n"                                                                                               \
    "    return __reduce_min_sync(0xffffffffu, x);\n"                                                                          \
    "#else\n"                                                                                                                  \
    "    for (int h = 16; h > 0; h /= 2) { int32_t y = __shfl_xor_sync(0xffffffffu, x, h); x = y < x ? y : x; }\n"             \
    "    return x;\n"                                                                                                          \
    "#endif\n}\n"

/* Clusters: all thread blocks meet; p of another thread block. A thread block's copy of a buffer that is being filled: who
 * sends to it counts the bytes there. The one who waits for the next bytes arms it again; who is late still finds the phase
 * that it waits for, for the next one needs what it sends. */
#define SEND(type, suffix, value, operands)                                                                                    \
    "INL void send(" type " *p, " type " x, uint64_t *full, uint32_t q) {\n"                                                   \
    "    asm volatile(\"st.async.shared::cluster.mbarrier::complete_tx::bytes." suffix " [%0], " value ", [%1];\"\n"           \
    "        :: \"r\"(far(p, q)), \"r\"(far(full, q)), " operands " : \"memory\"); }\n"
#define SM90                                                                                                                   \
    "#if __CUDA_ARCH__ >= 900\n"                                                                                               \
    "INL void cluster_barrier() {\n"                                                                                           \
    "    asm volatile(\"barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;\" ::: \"memory\"); "   \
    "}\n"                                                                                                                      \
    "template <class T> INL T *copy_at(T *p, uint32_t q) {\n"                                                                  \
    "    uint64_t r; asm(\"mapa.u64 %0, %1, %2;\" : \"=l\"(r) : \"l\"(p), \"r\"(q)); return (T *)r; }\n"                       \
    "INL uint32_t near(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }\n"                                     \
    "INL uint32_t far(const void *p, uint32_t q) {\n"                                                                          \
    "    uint32_t r; asm(\"mapa.shared::cluster.u32 %0, %1, %2;\" : \"=r\"(r) : \"r\"(near(p)), \"r\"(q)); return r; "         \
    "}\n" SEND("float", "f32", "%2", "\"f\"(x)") SEND("float2", "v2.f32", "{%2,%3}", "\"f\"(x.x), \"f\"(x.y)")                 \
        SEND("float4", "v4.f32", "{%2,%3,%4,%5}",                                                                              \
             "\"f\"(x.x), \"f\"(x.y), \"f\"(x.z), \"f\"(x.w)") "INL void expect(uint64_t *full, uint32_t n) {\n"               \
                                                               "    asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 " \
                                                               "_, [%0], %1;\"\n"                                              \
                                                               "        :: \"r\"(near(full)), \"r\"(n) : \"memory\"); }\n"     \
                                                               "INL void begin_full(uint64_t *full, uint32_t n) {\n"           \
                                                               "    asm volatile(\"mbarrier.init.shared::cta.b64 [%0], "       \
                                                               "1;\\nfence.mbarrier_init.release.cluster;\"\n"                 \
                                                               "        :: \"r\"(near(full)) : \"memory\");\n"                 \
                                                               "    expect(full, n); }\n"                                      \
                                                               "INL void wait_full(uint64_t *full, uint32_t phase) {\n"        \
                                                               "    asm volatile(\"{ .reg .pred p;\\nagain:\\n\"\n"            \
                                                               "        "                                                      \
                                                               "\"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "   \
                                                               "p, [%0], %1;\\n\"\n"                                           \
                                                               "        \"@p bra done;\\nbra again;\\ndone: }\" :: "           \
                                                               "\"r\"(near(full)), \"r\"(phase) : \"memory\"); }\n"            \
                                                               "#define WAIT_FULL(b, n) wait_full(&full##b, phase##b); if "    \
                                                               "(tid == 0) expect(&full##b, n); phase##b ^= 1;\n"              \
                                                               "#endif\n"

/* overlap.c */
#define OVERLAP                                                                                                                \
    "#if __CUDA_ARCH__ >= 900\n"                                                                                               \
    "INL int wait_on_dependencies() {\n"                                                                                       \
    "    int zero; asm volatile(\"griddepcontrol.wait; mov.b32 %0, 0;\" : \"=r\"(zero) :: \"memory\"); return zero; }\n"       \
    "INL void launch_dependents() { asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\"); }\n"                   \
    "#else\nINL int wait_on_dependencies() { return 0; }\nINL void launch_dependents() {}\n#endif\n"

const clike_language clike_cuda = {
    .name = "cuda",
    .gpu = true,
    .index = "int",
    .index_end = "",
    .unsigned_index = "unsigned",
    .unsigned_end = "u",
    .wide_end = "LL",
    .head = CUDA_TYPES "#define INL static __device__ __forceinline__\n"
                       "#define BITS_f32x1(x) __float_as_int(x)\n#define FROM_f32x1(x) __int_as_float(x)\n" AHEAD APART AND_OR
                           HALVES COARSE OVERLAP,
    .head_more = ASYNC SM80 SM90,
    .head_f64 = "#define BITS_f64x1(x) __double_as_longlong(x)\n#define FROM_f64x1(x) __longlong_as_double(x)\n",
    .fma = { "__fmaf_rn", "__fma_rn" },
    .math_end = "f",
    .barrier = "__syncthreads();",
    .barrier32 = "__syncwarp();",
    .thread = "threadIdx.x",
    .block = "blockIdx.x",
    .kernel = "extern \"C\" __global__ void %s__launch_bounds__(%s) %s(",
    .together = "__cluster_dims__(%d, 1, 1) ",
    .cluster_barrier = "cluster_barrier();",
    .overlaps = true,
    .copy_at = "copy_at",
    .resident = 512,
    .global = "",
    .shared = "__shared__ ",
    .restricted = "__restrict__",
    .async_wait = "async_wait(); ",
    .matrix_units = true,
    .dynamic = "extern __shared__ __align__(%d) unsigned char tn_shared_%d[];",
    .and_or = "and_or",
    .and_xor = "and_xor",
    .ahead = "load_ahead",
    .anew = "asm volatile(\"\" : \"+r\"(%s));",
    .apart = "apart",
    .extreme = { "max_nan", "min_nan" },
    .pack_bf16 = "pack_bf16",
    .approximate = { { OP_exp, "approximate_exp", "approximate_exp" }, { OP_tanh, "approximate_tanh", "coarse_tanh" } },
    .exp_of_difference = "coarse_exp_of",
    .contracts = true,
    .own = { { "TO_BF16", "return (int32_t)pack_bf16(x, 0.0f);" },
             { "TO_HALF", "uint16_t r; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x)); return r;" },
             { "FROM_HALF", "float r; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(r) : \"h\"((uint16_t)x)); return r;" },
             { "EXP", EXP_BY_UNIT } },
    .fetch = "asm volatile(\"{ .reg .u64 a; ld.param.u64 a, [%skernel_%d_param_%d]; add.s64 a, a, %%0; \"\n"
             "\"prefetch.global.L2 [a]; }\" :: \"l\"",
    .shuffle = "__shfl_xor_sync(0xffffffffu, %s, h)",
    .shuffle_from = "__shfl_sync(0xffffffffu, %s, %s)",
    .halves = "halves",
    .least32 = "least32(%s)",
    .shared_space = "",
    .long2 = "longlong2",
    .aligned = "__align__(%d)",
};
