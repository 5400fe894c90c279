/* c_prelude.c - the vocabulary of generated C: vector types and the functions that the op table's expressions are written in.
 *
 * Everything is written once as a template over the lane count (@ stands for it) and the element type, and printed for the lane
 * counts in use. Functions of one lane are plain scalars, so that the same expressions serve both. Names: WORD_<type>x<lanes>,
 * such as SEL_f32x8. Functions of f32 are those of functions.def; of f64 they call libm lane by lane. */
#include "emit/clike/clike.h"
#include "emit/functions.h"

#include <math.h>

/* ---- templates: @ lanes, $ element type (f32, f64, i32, i64), ` its C type, & the mask type of the same width ---- */

/* A file of its own has them from <stdint.h>. */
static const char integers[] =
    "typedef __INT8_TYPE__ int8_t; typedef __UINT8_TYPE__ uint8_t; typedef __UINT16_TYPE__ uint16_t; "
    "typedef __INT16_TYPE__ int16_t; typedef __INT32_TYPE__ "
    "int32_t;\n"
    "typedef __UINT32_TYPE__ uint32_t; typedef __INT64_TYPE__ int64_t; typedef __UINT64_TYPE__ uint64_t;\n";

/* What is said to compilers that know GNU C, in words for others. */
static const char foreign[] =
    "#if !defined(__GNUC__)\n%s#define __attribute__(x)\n#define __asm__(x)\n"
    "#define __builtin_sqrtf sqrtf\n#define __builtin_sqrt "
    "sqrt\n#define __builtin_nanf(x) NAN\n#define __builtin_nan(x) NAN\n#define __builtin_inff() INFINITY\n#define "
    "__builtin_inf() INFINITY\n#define __builtin_assume_aligned(p, n) (p)\n#define __builtin_prefetch(p) ((void)0)\n"
    "#define __restrict restrict\n#define INL static inline\n#define HIDE(v) ((void)0)\n#define AGAIN(p) ((void)0)\n#define "
    "UNROLL(n)\n#define NOIPA\n#endif\n";

static const char common[] =
    "#if defined(__GNUC__)\n#define INL static inline __attribute__((always_inline, unused))\n"
    /* A vector of so many bytes stays in a register, where the machine has such registers. */
    "#define HIDE(v) __asm__(\"\" : \"+r\"(v))\n"
    /* What is at p may not be known from before. */
    "#define AGAIN(p) __asm__ volatile(\"\" : \"+r\"(p))\n"
    "#define PRAGMA(x) _Pragma(#x)\n#endif\n#if defined(__clang__)\n#define NOIPA\n#define UNROLL(n) PRAGMA(clang loop "
    "unroll_count(n))\n#elif defined(__GNUC__)\n"
    /* gcc 12 takes kernels that read one buffer forwards and backwards for functions without effects, and drops their calls */
    "#define NOIPA __attribute__((noipa))\n#define UNROLL(n) PRAGMA(GCC unroll n)\n"
    /* a constant that gcc keeps in a register around a tile takes it from one of the tile's sums, which then lies in memory */
    "#pragma GCC optimize(\"no-move-loop-invariants\")\n#endif\n"
    "#if defined(__AVX512F__)\n#define KEEP_16(v) __asm__(\"\" : \"+v\"(v))\n#elif defined(__SSE2__)\n#define KEEP_16(v) "
    "__asm__(\"\" : \"+x\"(v))\n#elif defined(__aarch64__)\n#define KEEP_16(v) __asm__(\"\" : \"+w\"(v))\n#else\n#define "
    "KEEP_16(v) ((void)0)\n#endif\n"
    /* clang contracts nothing across statements, and has no registers for vectors of 8 bytes */
    "#if defined(__clang__)\n#define KEEP_4(v) ((void)0)\n#define KEEP_8(v) ((void)0)\n#else\n#define KEEP_4(v) "
    "KEEP_16(v)\n#define "
    "KEEP_8(v) KEEP_16(v)\n#endif\n"
    "#if defined(__AVX512F__)\n#define KEEP_32(v) __asm__(\"\" : \"+v\"(v))\n#elif defined(__AVX__)\n#define KEEP_32(v) "
    "__asm__(\"\" : \"+x\"(v))\n#else\n#define KEEP_32(v) ((void)0)\n#endif\n"
    "#if defined(__AVX512F__)\n#define KEEP_64(v) __asm__(\"\" : \"+v\"(v))\n#else\n#define KEEP_64(v) ((void)0)\n#endif\n";

static const char vector_type[] =
    "typedef ` $x@ __attribute__((vector_size(sizeof(`) * @)));\n"
    "typedef ` $x@u __attribute__((vector_size(sizeof(`) * @), aligned(sizeof(`)), may_alias));\n";
static const char scalar_type[] = "typedef ` $x1;\n";
/* Sums, products and negations of integers are computed in these: they wrap around without -fwrapv. */
static const char unsigned_vectors[] = "typedef uint32_t u32x@ __attribute__((vector_size(4 * @)));\ntypedef uint64_t u64x@ "
                                       "__attribute__((vector_size(8 * @)));\n";
static const char unsigned_scalars[] = "typedef uint32_t u32x1;\ntypedef uint64_t u64x1;\n";

static const char vector_base[] = "INL $x@ K_$x@(` c) { const $x@ z = { 0 }; return c - z; }\n"
                                  "INL $x@ LD_$x@(const ` *p) { return *(const $x@u *)p; }\n"
                                  "INL void ST_$x@(` *p, $x@ v) { *($x@u *)p = v; }\n"
                                  "INL i32x@ LT_$x@($x@ a, $x@ b) { return __builtin_convertvector(a < b, i32x@); }\n"
                                  "INL i32x@ LE_$x@($x@ a, $x@ b) { return __builtin_convertvector(a <= b, i32x@); }\n"
                                  "INL i32x@ EQ_$x@($x@ a, $x@ b) { return __builtin_convertvector(a == b, i32x@); }\n"
                                  "INL i32x@ NE_$x@($x@ a, $x@ b) { return __builtin_convertvector(a != b, i32x@); }\n";
static const char scalar_memory[] = "INL $x1 LD_$x1(const ` *p) { return *p; }\n"
                                    "INL void ST_$x1(` *p, $x1 v) { *p = v; }\n";
static const char scalar_base[] = "#define K_$x1(c) (($x1)(c))\n" /* of thousands, not a call to inline for each */
                                  "INL i32x1 LT_$x1($x1 a, $x1 b) { return -(a < b); }\n"
                                  "INL i32x1 LE_$x1($x1 a, $x1 b) { return -(a <= b); }\n"
                                  "INL i32x1 EQ_$x1($x1 a, $x1 b) { return -(a == b); }\n"
                                  "INL i32x1 NE_$x1($x1 a, $x1 b) { return -(a != b); }\n"
                                  "INL $x1 SEL_$x1(i32x1 m, $x1 a, $x1 b) { return m ? a : b; }\n";
static const char vector_float[] = "INL $x@ SEL_$x@(i32x@ m, $x@ a, $x@ b) { &x@ w = __builtin_convertvector(m, &x@); return "
                                   "($x@)(((&x@)a & w) | ((&x@)b & ~w)); }\n"
                                   "INL &x@ BITS_$x@($x@ x) { return (&x@)x; }\nINL $x@ FROM_$x@(&x@ x) { return ($x@)x; }\n";
static const char blend8[] =
    "#ifdef __AVX__\nINL f32x8 SEL_f32x8(i32x8 m, f32x8 a, f32x8 b) { return __builtin_ia32_blendvps256(b, a, (f32x8)m); }\n"
    "INL i32x8 BITS_f32x8(f32x8 x) { return (i32x8)x; }\nINL f32x8 FROM_f32x8(i32x8 x) { return (f32x8)x; }\n#else\n";
static const char scalar_float[] = "INL &x1 BITS_$x1($x1 v) { &x1 r; __builtin_memcpy(&r, &v, sizeof r); return r; }\n"
                                   "INL $x1 FROM_$x1(&x1 v) { $x1 r; __builtin_memcpy(&r, &v, sizeof r); return r; }\n";
static const char vector_int[] =
    "INL $x@ SEL_$x@(i32x@ m, $x@ a, $x@ b) { $x@ w = __builtin_convertvector(m, $x@); return (a & w) | (b & ~w); }\n";
static const char mask_ops[] = "INL i32x@ NOT_i32x@(i32x@ x) { return ~x; }\n";
static const char int_ops[] =
    "INL $x@ ABS_$x@($x@ x) { return SEL_$x@(LT_$x@(x, K_$x@(0)), ($x@)(-(u#Wx@)x), x); }\n"
    "INL ` idiv_$x@(` a, ` b) { return b == 0 ? 0 : b == -1 ? (`)(0 - (uint64_t)a) : a / b; }\n"
    "INL ` imod_$x@(` a, ` b) { ` r = b == 0 || b == -1 ? 0 : a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }\n";
static const char shift_left[] =
    "INL $x@ LSHIFT_$x@($x@ x, $x@ y) { return SEL_$x@(LT_$x@(y, K_$x@(0)) | LE_$x@(K_$x@(#W), y), K_$x@(0), "
    "($x@)((u#Wx@)x << (u#Wx@)(y & K_$x@(#W - 1)))); }\n";
static const char shift_right[] =
    "INL $x@ RSHIFT_$x@($x@ x, $x@ y) { const $x@ most = K_$x@(#W - 1); return x >> SEL_$x@(LT_$x@(y, K_$x@(0)) | "
    "LT_$x@(most, y), most, y); }\n";
static const char float_ops[] =
    "INL $x@ ABS_$x@($x@ x) { return FROM_$x@(BITS_$x@(x) & #ABS); }\n"
    "INL $x@ SIGNED_$x@($x@ x, $x@ s) { return FROM_$x@((BITS_$x@(x) & #ABS) | (BITS_$x@(s) & ~#ABS)); }\n"
    "INL $x@ RINT_$x@($x@ x) { $x@ a = ABS_$x@(x), b = K_$x@(#BIG); return SEL_$x@(LT_$x@(a, b), SIGNED_$x@((a + b) - b, x), "
    "x); }\n"
    "INL $x@ FLOOR_$x@($x@ x) { $x@ r = RINT_$x@(x); return SIGNED_$x@(r - SEL_$x@(LT_$x@(x, r), K_$x@(1), K_$x@(0)), x); }\n"
    "INL $x@ CEIL_$x@($x@ x) { $x@ r = RINT_$x@(x); return SIGNED_$x@(r + SEL_$x@(LT_$x@(r, x), K_$x@(1), K_$x@(0)), x); }\n"
    "INL $x@ DIV_$x@($x@ a, $x@ b) { return a / b; }\n";
/* With errno, as C has it, a compiler would look for negative numbers, and call the library for these. */
static const char sqrt1[] =
    "#if defined(SQUARE_ROOTS)\n#define m_sqrtf SQUARE_ROOT32\n#define m_sqrt SQUARE_ROOT64\n#elif defined(__GNUC__) && "
    "defined(__AVX__)\n"
    "INL float m_sqrtf(float x) { float r; __asm__(\"vsqrtss %1, %1, %0\" : \"=x\"(r) : \"x\"(x)); return r; }\n"
    "INL double m_sqrt(double x) { double r; __asm__(\"vsqrtsd %1, %1, %0\" : \"=x\"(r) : \"x\"(x)); return r; }\n"
    "#elif defined(__GNUC__) && defined(__SSE2__)\n"
    "INL float m_sqrtf(float x) { float r; __asm__(\"sqrtss %1, %0\" : \"=x\"(r) : \"x\"(x)); return r; }\n"
    "INL double m_sqrt(double x) { double r; __asm__(\"sqrtsd %1, %0\" : \"=x\"(r) : \"x\"(x)); return r; }\n"
    "#elif defined(__GNUC__) && defined(__aarch64__)\n"
    "INL float m_sqrtf(float x) { float r; __asm__(\"fsqrt %s0, %s1\" : \"=w\"(r) : \"w\"(x)); return r; }\n"
    "INL double m_sqrt(double x) { double r; __asm__(\"fsqrt %d0, %d1\" : \"=w\"(r) : \"w\"(x)); return r; }\n"
    "#elif defined(__GNUC__) && defined(__ARM_FP) && (__ARM_FP & 8)\n"
    "INL float m_sqrtf(float x) { float r; __asm__(\"vsqrt.f32 %0, %1\" : \"=t\"(r) : \"t\"(x)); return r; }\n"
    "INL double m_sqrt(double x) { double r; __asm__(\"vsqrt.f64 %P0, %P1\" : \"=w\"(r) : \"w\"(x)); return r; }\n"
    "#elif defined(__GNUC__) && defined(__ARM_FP) && (__ARM_FP & 4)\n"
    "INL float m_sqrtf(float x) { float r; __asm__(\"vsqrt.f32 %0, %1\" : \"=t\"(r) : \"t\"(x)); return r; }\n"
    "#define m_sqrt SQUARE_ROOT64\n#else\n#define m_sqrtf SQUARE_ROOT32\n#define m_sqrt SQUARE_ROOT64\n#endif\n";
static const char sqrt4[] = "#ifdef __SSE__\nINL f32x4 SQRT_f32x4(f32x4 x) { return __builtin_ia32_sqrtps(x); }\n#else\n";
static const char sqrt16[] =
    "#if defined(__AVX512F__)\nINL f32x16 SQRT_f32x16(f32x16 x) { f32x16 r; __asm__(\"vsqrtps %1, %0\" : "
    "\"=v\"(r) : \"v\"(x)); return r; }\n#else\n";
static const char sqrt8[] = "#ifdef __AVX__\nINL f32x8 SQRT_f32x8(f32x8 x) { return __builtin_ia32_sqrtps256(x); }\n#else\n";

/* Bounds that are constants: NaN where x is. */
static const char bounds8[] =
    "#ifdef __AVX__\nINL f32x8 MAXC_f32x8(f32x8 c, f32x8 x) { return __builtin_ia32_maxps256(c, x); }\n"
    "INL f32x8 MINC_f32x8(f32x8 c, f32x8 x) { return __builtin_ia32_minps256(c, x); }\n#else\n";
static const char bounds4[] = "#ifdef __SSE__\nINL f32x4 MAXC_f32x4(f32x4 c, f32x4 x) { return __builtin_ia32_maxps(c, x); }\n"
                              "INL f32x4 MINC_f32x4(f32x4 c, f32x4 x) { return __builtin_ia32_minps(c, x); }\n#else\n";
/* Instructions of AVX-512 for which GNU C has no words that gcc and clang share. */
static const char bounds16[] = "#if defined(__AVX512F__)\n"
                               "INL f32x16 MAXC_f32x16(f32x16 c, f32x16 x) { f32x16 r; __asm__(\"vmaxps %1, %2, %0\" : "
                               "\"=v\"(r) : \"v\"(x), \"v\"(c)); return r; }\n"
                               "INL f32x16 MINC_f32x16(f32x16 c, f32x16 x) { f32x16 r; __asm__(\"vminps %1, %2, %0\" : "
                               "\"=v\"(r) : \"v\"(x), \"v\"(c)); return r; }\n"
                               "#else\n";
static const char scaled16[] = "#if defined(__AVX512F__)\n"
                               "INL f32x16 SCALED_f32x16(f32x16 x, f32x16 y) { f32x16 r; __asm__(\"vscalefps %1, %2, %0\" : "
                               "\"=v\"(r) : \"v\"(y - 12583166.0f), \"v\"(x + 1.0f)); "
                               "return r; }\n#else\n";
static const char f32_ops[] = "INL f32x@ MAXC_f32x@(f32x@ c, f32x@ x) { return SEL_f32x@(LT_f32x@(x, c), c, x); }\n"
                              "INL f32x@ MINC_f32x@(f32x@ c, f32x@ x) { return SEL_f32x@(LT_f32x@(c, x), c, x); }\n";
static const char float_vector[] = "INL f32x@ FLOAT_f32x@(i32x@ x) { return __builtin_convertvector(x, f32x@); }\n";
static const char float_scalar[] = "INL f32x1 FLOAT_f32x1(i32x1 x) { return (float)x; }\n";

static const char narrow_vector[] =
    "typedef int8_t i8x@u __attribute__((vector_size(@), aligned(1), may_alias));\n"
    "typedef uint8_t u8x@u __attribute__((vector_size(@), aligned(1), may_alias));\n"
    "typedef int16_t i16x@u __attribute__((vector_size(2 * @), aligned(2), may_alias));\n"
    "typedef uint16_t u16x@u __attribute__((vector_size(2 * @), aligned(2), may_alias));\n"
    "INL i32x@ LDi8_x@(const int8_t *p) { return __builtin_convertvector(*(const i8x@u *)p, i32x@); }\n"
    "INL i32x@ LDu8_x@(const uint8_t *p) { return __builtin_convertvector(*(const u8x@u *)p, i32x@); }\n"
    "INL i32x@ LDi16_x@(const int16_t *p) { return __builtin_convertvector(*(const i16x@u *)p, i32x@); }\n"
    "INL void STi16_x@(int16_t *p, i32x@ v) { *(i16x@u *)p = __builtin_convertvector(v, i16x@u); }\n"
    "INL i32x@ LDu16_x@(const uint16_t *p) { return __builtin_convertvector(*(const u16x@u *)p, i32x@); }\n"
    "INL void STi8_x@(int8_t *p, i32x@ v) { *(i8x@u *)p = __builtin_convertvector(v, i8x@u); }\n"
    "INL void STu8_x@(uint8_t *p, i32x@ v) { *(u8x@u *)p = __builtin_convertvector(v, u8x@u); }\n"
    "INL void STu16_x@(uint16_t *p, i32x@ v) { *(u16x@u *)p = __builtin_convertvector(v, u16x@u); }\n";
static const char narrow_scalar[] =
    "INL i32x1 LDi8_x1(const int8_t *p) { return *p; }\nINL i32x1 LDu8_x1(const uint8_t *p) { return *p; }\n"
    "INL i32x1 LDi16_x1(const int16_t *p) { return *p; }\nINL void STi16_x1(int16_t *p, i32x1 v) { *p = (int16_t)v; }\n"
    "INL i32x1 LDu16_x1(const uint16_t *p) { return *p; }\nINL void STi8_x1(int8_t *p, i32x1 v) { *p = (int8_t)v; }\n"
    "INL void STu8_x1(uint8_t *p, i32x1 v) { *p = (uint8_t)v; }\nINL void STu16_x1(uint16_t *p, i32x1 v) { *p = (uint16_t)v; "
    "}\n";

/* Words of several numbers, and the sums of their products: kernel.h. */
static const char words[] =
    "INL i32x@ LDword_x@(const void *p) { i32x@ v; __builtin_memcpy(&v, p, sizeof v); return v; }\n"
    "INL f32x@ DOT_bf16_x@(i32x@ a, i32x@ b, f32x@ c) { c = MAC_f32x@(FROM_f32x@(a & -65536), FROM_f32x@(b & -65536), c); "
    "return MAC_f32x@(FROM_f32x@((i32x@)((u32x@)a << 16)), FROM_f32x@((i32x@)((u32x@)b << 16)), c); }\n"
    "INL i32x@ PART_x@(i32x@ a, int up, int bits) { return (i32x@)((u32x@)a << up) >> (32 - bits); }\n"
    "INL i32x@ DOT_i16_x@(i32x@ a, i32x@ b, i32x@ c) { return (i32x@)((u32x@)c + (u32x@)(PART_x@(a, 16, 16) * PART_x@(b, 16, "
    "16)) + (u32x@)(PART_x@(a, 0, 16) * PART_x@(b, 0, 16))); }\n"
    "INL i32x@ DOT_i8_x@(i32x@ a, i32x@ b, i32x@ c) { return (i32x@)((u32x@)c + (u32x@)((a & 255) * PART_x@(b, 24, 8)) + "
    "(u32x@)((a >> 8 & 255) * PART_x@(b, 16, 8)) + (u32x@)((a >> 16 & 255) * PART_x@(b, 8, 8)) + (u32x@)((a >> 24 & 255) * "
    "PART_x@(b, 0, 8))); }\n";

static const char random_text[] = "INL float random_at(int64_t counter, int64_t stream, int64_t i) {\n"
                                  "    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)((uint64_t)i >> 32), c2 = (uint32_t)stream, "
                                  "c3 = (uint32_t)((uint64_t)stream >> 32);\n"
                                  "    uint32_t k0 = (uint32_t)counter, k1 = (uint32_t)((uint64_t)counter >> 32);\n"
                                  "    for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {\n"
                                  "        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;\n"
                                  "        uint32_t d0 = (uint32_t)(b >> 32) ^ c1 ^ k0, d2 = (uint32_t)(a >> 32) ^ c3 ^ k1;\n"
                                  "        c1 = (uint32_t)b, c3 = (uint32_t)a, c0 = d0, c2 = d2;\n    }\n"
                                  "    return (float)(c0 >> 8) * 0x1p-24f;\n}\n";

/* The same for n numbers, a multiple of four: in 64-bit lanes whose upper halves may hold anything. */
static const char random_vectors[] =
    "#if defined(__AVX2__)\n#define RANDOM_LANES 4\n#define MULU(a, b) (ru)__builtin_ia32_pmuludq256((ri)(a), (ri)(b))\n"
    "#elif defined(__SSE2__)\n#define RANDOM_LANES 2\n#define MULU(a, b) (ru)__builtin_ia32_pmuludq128((ri)(a), (ri)(b))\n"
    "#else\n#define RANDOM_LANES 2\n#define MULU(a, b) (((a) & 0xffffffff) * ((b) & 0xffffffff))\n#endif\n"
    "typedef uint64_t ru __attribute__((vector_size(8 * RANDOM_LANES)));\n"
    "typedef int32_t ri __attribute__((vector_size(8 * RANDOM_LANES)));\n"
    "typedef int32_t rn __attribute__((vector_size(4 * RANDOM_LANES)));\n"
    "typedef float rf __attribute__((vector_size(4 * RANDOM_LANES)));\n"
    "typedef float rfu __attribute__((vector_size(4 * RANDOM_LANES), aligned(4), may_alias));\n"
    "INL void random_lanes(int64_t counter, int64_t stream, int64_t i, int64_t stride, int n, float *out) {\n"
    "    ru zero = { 0 }, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;\n"
    "    for (int l = 0; l < n; l += RANDOM_LANES) {\n"
    "        ru c0 = { 0 };\n        for (int k = 0; k < RANDOM_LANES; k++) c0[k] = (uint64_t)((l + k) * stride);\n"
    "        c0 += (uint64_t)i;\n"
    "        ru c1 = c0 >> 32, c2 = zero + (uint64_t)stream, c3 = c2 >> 32;\n"
    "        ru k0 = zero + (uint64_t)counter, k1 = k0 >> 32;\n"
    "        for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {\n"
    "            ru a = MULU(c0, m0), b = MULU(c2, m1);\n"
    "            c0 = (b >> 32) ^ c1 ^ k0, c2 = (a >> 32) ^ c3 ^ k1, c1 = b, c3 = a;\n        }\n"
    "        rn u = __builtin_convertvector((c0 & 0xffffffff) >> 8, rn);\n"
    "        *(rfu *)(out + l) = __builtin_convertvector(u, rf) * 0x1p-24f;\n    }\n}\n";

typedef struct elem {
    const char *name, *c, *mask, *abs, *big;
    bool is_float;
} elem;
static const elem elems[] = {
    { "i32", "int32_t", "i32", "", "", false },
    { "i64", "int64_t", "i64", "", "", false },
    { "f32", "float", "i32", "0x7fffffff", "8388608.0f", true },
    { "f64", "double", "i64", "0x7fffffffffffffff", "4503599627370496.0", true },
};

static void fill(str *out, const char *text, int lanes, const elem *e) {
    for (const char *p = text; *p; p++) {
        if (*p == '@')
            str_addf(out, "%d", lanes);
        else if (*p == '$' && e)
            str_add(out, e->name);
        else if (*p == '`' && e)
            str_add(out, e->c);
        else if (*p == '&' && e && p[1] == 'x')
            str_add(out, e->mask);
        else if (!strncmp(p, "#ABS", 4) && e)
            str_add(out, e->abs), p += 3;
        else if (!strncmp(p, "#BIG", 4) && e)
            str_add(out, e->big), p += 3;
        else if (!strncmp(p, "#W", 2) && e)
            str_add(out, e->name + 1), p += 1;
        else
            str_addn(out, p, 1);
    }
}

static void lane_by_lane(str *out, const char *word, const char *fn, int lanes, const elem *e, int arity) {
    const char *second = arity == 2 ? ", " : "";
    str_addf(out, "INL %sx%d %s_%sx%d(%sx%d x", e->name, lanes, word, e->name, lanes, e->name, lanes);
    if (arity == 2) str_addf(out, ", %sx%d y", e->name, lanes);
    if (lanes == 1) {
        str_addf(out, ") { return %s(x%s%s); }\n", fn, second, arity == 2 ? "y" : "");
        return;
    }
    /* r begins as x: gcc says of an array written lane by lane that it may be used uninitialized. */
    str_addf(out, ") { %sx%d r = x; for (int i = 0; i < %d; i++) r[i] = %s(x[i]%s%s); return r; }\n", e->name, lanes, lanes, fn,
             second, arity == 2 ? "y[i]" : "");
}

/* The same in the lanes of a mask only: see LIBM_ in functions.def. */
static const char any8[] =
    "#ifdef __AVX__\nINL int ANY_i32x8(i32x8 m) { return __builtin_ia32_movmskps256((f32x8)m); }\n#else\n";
static const char any[] = "INL int ANY_i32x@(i32x@ m) { int a = 0; for (int i = 0; i < @; i++) a |= m[i]; return a; }\n";

static void some_lanes(str *out, const char *word, const char *fn, int lanes, int arity) {
    const char *y = arity == 2 ? ", y[i]" : "";
    str_addf(out, "INL f32x%d %s_f32x%d(i32x%d m, f32x%d x", lanes, word, lanes, lanes, lanes);
    if (arity == 2) str_addf(out, ", f32x%d y", lanes);
    if (lanes == 1)
        str_addf(out, ") { return m ? %s(x%s) : x; }\n", fn, arity == 2 ? ", y" : "");
    else
        str_addf(out,
                 ") {\n    f32x%d r = x;\n    if (ANY_i32x%d(m)) for (int i = 0; i < %d; i++) if (m[i]) r[i] = %s(x[i]%s);\n   "
                 " return r;\n}\n",
                 lanes, lanes, lanes, fn, y);
}

static const struct {
    const char *word, *f32, *f64;
    int arity;
} libm[] = {
    { "EXP2", NULL, "m_exp2", 1 },     { "LOG2", NULL, "m_log2", 1 },      { "ERFC", NULL, "m_erfc", 1 },
    { "ATAN2", NULL, "m_atan2", 2 },   { "HYPOT", NULL, "m_hypot", 2 },    { "SQRT", "m_sqrtf", "m_sqrt", 1 },
    { "EXP", NULL, "m_exp", 1 },       { "LOG", NULL, "m_log", 1 },        { "LOG1P", NULL, "m_log1p", 1 },
    { "EXPM1", NULL, "m_expm1", 1 },   { "SIN", NULL, "m_sin", 1 },        { "COS", NULL, "m_cos", 1 },
    { "TAN", NULL, "m_tan", 1 },       { "ASIN", NULL, "m_asin", 1 },      { "ACOS", NULL, "m_acos", 1 },
    { "ATAN", NULL, "m_atan", 1 },     { "SINH", NULL, "m_sinh", 1 },      { "COSH", NULL, "m_cosh", 1 },
    { "TANH", NULL, "m_tanh", 1 },     { "ASINH", NULL, "m_asinh", 1 },    { "ACOSH", NULL, "m_acosh", 1 },
    { "ATANH", NULL, "m_atanh", 1 },   { "ERF", NULL, "m_erf", 1 },        { "POW", NULL, "m_pow", 2 },
    { "MOD", NULL, "fmod_", 2 },       { "LIBM_SIN", "m_sinf", NULL, 1 },  { "LIBM_COS", "m_cosf", NULL, 1 },
    { "LIBM_TAN", "m_tanf", NULL, 1 }, { "LIBM_MOD", "m_fmodf", NULL, 2 },
};

/* Whether an op in use has this word in its expression, or in that of a function that it needs. */
static bool word_used(const prelude_needs *needs, const char *word) {
    for (int op = 1; op < N_OPS; op++)
        if (needs->ops[op] && function_calls(op_get((op_code)op)->expr, word)) return true;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const function_row *f = function_at(i);
        if (needs->functions[i] && (function_calls(f->text, word) || (f->fma && function_calls(f->fma, word)))) return true;
    }
    return false;
}

/* From the last row to the first: a text uses earlier rows only. */
static void find_functions(prelude_needs *needs) {
    for (int i = N_FUNCTIONS - 1; i >= 0; i--) {
        const function_row *f = function_at(i);
        bool converts = strchr(f->sig, 'f') && strchr(f->sig, 'i');
        needs->functions[i] = (needs->half && converts) || word_used(needs, f->word);
    }
}

/* x * y + z with one rounding, where the machine has such an instruction. gcc contracts a product with the sum that follows
 * only while both stand in one basic block, so that threading a jump or hoisting a product would change bits: there it is
 * called by name, and because it contracts nothing itself where it is asked for C of ISO. clang keeps them together. */
static void multiply_add(const elem *e, int lanes, str *out) {
    int bytes = lanes * (e->name[1] == '3' ? 4 : 8);
    char p = e->name[1] == '3' ? 's' : 'd';
    const char *type = arena_printf(out->a, "%sx%d", e->name, lanes), *call;
    if (lanes == 1)
        call = p == 's' ? "return __builtin_fmaf(x, y, z);" : "return __builtin_fma(x, y, z);";
    else if (bytes == 8)
        call = "const f32x2 r = { __builtin_fmaf(x[0], y[0], z[0]), __builtin_fmaf(x[1], y[1], z[1]) }; return r;";
    else if (bytes <= 32)
        call = arena_printf(out->a, "return (%s)__builtin_ia32_vfmaddp%c%s(x, y, z);", type, p, bytes == 32 ? "256" : "");
    else /* 4: rounded as the processor is set */
        call = arena_printf(out->a, "return (%s)__builtin_ia32_vfmaddp%c512_mask(x, y, z, -1, 4);", type, p);
    if (bytes <= 64) {
        str_addf(out, "#if defined(__x86_64__) && defined(%s) && !defined(__clang__)\nINL %s MAC_%s(%s x, %s y, %s z) { %s }\n",
                 bytes == 64 ? "__AVX512F__" : "__FMA__", type, type, type, type, type, call);
        if (lanes > 1 && bytes <= 16)
            call = arena_printf(out->a, "return __builtin_aarch64_fmav%d%cf(x, y, z);", lanes, p);
        else if (lanes > 1)
            call = arena_printf(out->a,
                                "%s r = x; for (int i = 0; i < %d; i++) r[i] = __builtin_fma%s(x[i], y[i], z[i]); return r;",
                                type, lanes, p == 's' ? "f" : "");
        str_addf(out,
                 "#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)\n"
                 "INL %s MAC_%s(%s x, %s y, %s z) { %s }\n#else\n",
                 type, type, type, type, type, call);
    }
    str_addf(out, "INL %s MAC_%s(%s x, %s y, %s z) { return x * y + z; }\n", type, type, type, type, type);
    if (bytes <= 64) str_add(out, "#endif\n");
}

/* What the language has for the function, or NULL. */
static const char *own_text(const clike_language *l, const char *word) {
    for (size_t i = 0; i < COUNT_OF(l->own); i++)
        if (l->own[i].word && !strcmp(l->own[i].word, word)) return l->own[i].text;
    return NULL;
}

static void f32_function(const function_row *f, int lanes, const clike_language *l, str *out) {
    const char *own = own_text(l, f->word);
    if (own) {
        str_addf(out, "INL %c32x1 %s_f32x1(%c32x1 x) { %s }\n", f->sig[0], f->word, f->sig[1], own);
        return;
    }
    if (l->gpu) { /* their compilers contract nothing, and have a function instead */
        if (!strcmp(f->word, "FMA"))
            str_addf(out, "INL f32x1 FMA_f32x1(f32x1 x, f32x1 y, f32x1 z) { return %s(x, y, z); }\n", l->fma[0]);
        else
            emit_function(out, f, f->fma ? f->fma : f->text, lanes, l->fma[0]);
        return;
    }
    if (f->fma) {
        str_add(out, "#if defined(__FMA__) || defined(__aarch64__)\n");
        if (!strcmp(f->word, "FMA")) /* a product that nothing else uses, so that it is contracted */
            str_addf(out, "INL f32x%d FMA_f32x%d(f32x%d x, f32x%d y, f32x%d z) { %s; return MAC_f32x%d(x, y, z); }\n", lanes,
                     lanes, lanes, lanes, lanes, 4 * lanes <= 64 ? arena_printf(out->a, "KEEP_%d(y)", 4 * lanes) : "(void)0",
                     lanes);
        else
            emit_function(out, f, f->fma, lanes, NULL);
        str_add(out, "#else\n");
    }
    emit_function(out, f, f->text, lanes, NULL);
    if (f->fma) str_add(out, "#endif\n");
}

static void functions(const prelude_needs *needs, const clike_language *l, int lanes, const elem *e, str *out) {
    bool f32 = !strcmp(e->name, "f32");
    if (!e->is_float) {
        fill(out, int_ops, lanes, e);
        if (word_used(needs, "DIV")) lane_by_lane(out, "DIV", arena_printf(out->a, "idiv_%sx%d", e->name, lanes), lanes, e, 2);
        if (word_used(needs, "LSHIFT")) fill(out, shift_left, lanes, e);
        if (word_used(needs, "RSHIFT")) fill(out, shift_right, lanes, e);
        if (word_used(needs, "MOD")) lane_by_lane(out, "MOD", arena_printf(out->a, "imod_%sx%d", e->name, lanes), lanes, e, 2);
        return;
    }
    fill(out, float_ops, lanes, e);
    if (!l->gpu) multiply_add(e, lanes, out);
    if (f32 && lanes > 1) {
        if (lanes == 8) str_add(out, any8);
        fill(out, any, lanes, e);
        if (lanes == 8) str_add(out, "#endif\n");
    }
    for (size_t i = 0; i < COUNT_OF(libm); i++) {
        const char *fn = f32 ? libm[i].f32 : libm[i].f64;
        if (!fn || !word_used(needs, libm[i].word)) continue;
        const char *fast = lanes == 4 ? sqrt4 : lanes == 8 ? sqrt8 : lanes == 16 ? sqrt16 : NULL;
        if (l->gpu || !f32 || strcmp(libm[i].word, "SQRT") != 0) fast = NULL;
        if (fast) str_add(out, fast);
        if (!libm[i].f64)
            some_lanes(out, libm[i].word, fn, lanes, libm[i].arity);
        else
            lane_by_lane(out, libm[i].word, fn, lanes, e, libm[i].arity);
        if (fast) str_add(out, "#endif\n");
    }
    if (!f32) return;
    fill(out, lanes > 1 ? float_vector : float_scalar, lanes, e);
    const char *bounds = lanes == 4 ? bounds4 : lanes == 8 ? bounds8 : lanes == 16 ? bounds16 : NULL;
    if (bounds && !l->gpu) str_add(out, bounds);
    fill(out, f32_ops, lanes, e);
    if (bounds && !l->gpu) str_add(out, "#endif\n");
    for (int i = 0; i < N_FUNCTIONS; i++) {
        bool own = lanes == 16 && !strcmp(function_at(i)->word, "SCALED");
        if (!needs->functions[i]) continue;
        if (own) str_add(out, scaled16);
        f32_function(function_at(i), lanes, l, out);
        if (own) str_add(out, "#endif\n");
    }
}

static void types(const prelude_needs *needs, int lanes, bool gpu, str *out) {
    for (size_t i = 0; i < COUNT_OF(elems); i++) {
        if (gpu && !needs->f64 && !strcmp(elems[i].name, "f64")) continue;
        fill(out, lanes > 1 ? vector_type : scalar_type, lanes, &elems[i]);
    }
    fill(out, lanes > 1 ? unsigned_vectors : unsigned_scalars, lanes, NULL);
}

static bool elem_used(const prelude_needs *needs, const elem *e) {
    return (strcmp(e->name, "f64") || needs->f64) && (strcmp(e->name, "i64") || needs->i64);
}

void emit_check_freestanding(const str *out, const export_form *f, const char *op, const char *expr) {
    static const char *const own[] = { "SQRT", "EXP", "LOG", "POW" };
    for (size_t i = 0; i < COUNT_OF(libm); i++) {
        bool known = false;
        for (size_t k = 0; k < COUNT_OF(own); k++) known |= !strcmp(libm[i].word, own[k]);
        if (!known && function_calls(expr, libm[i].word))
            guard_fail(out->a->gd, TN_ERR_UNSUPPORTED,
                       "%s, freestanding: op %s of f64 needs libm; compute it in f32, or export for a machine with a C library",
                       f->name, op);
    }
}

/* libm under names that the compiler does not know: it would compute calls with constant operands itself, with another rounding
 * than the library's, and turn some into other calls. */
static void declare_libm(const prelude_needs *needs, str *out) {
    bool own = needs->form && needs->form->freestanding;
    if (own) emit_freestanding(out);
    if (word_used(needs, "SQRT"))
        str_addf(out, "#define SQUARE_ROOT32 %s\n#define SQUARE_ROOT64 %s\n%s", own ? "root32" : "__builtin_sqrtf",
                 own ? "root64" : "__builtin_sqrt", sqrt1);
    if (own) return;
    if (needs->form) str_add(out, "#if !defined(__GNUC__)\n");
    for (size_t i = 0; needs->form && i < COUNT_OF(libm); i++) {
        if (!word_used(needs, libm[i].word) || !strcmp(libm[i].word, "SQRT")) continue;
        const char *f32 = libm[i].f32, *f64 = strcmp(libm[i].word, "MOD") ? libm[i].f64 : "m_fmod";
        if (f32) str_addf(out, "#define %s %s\n", f32, f32 + 2);
        if (f64) str_addf(out, "#define %s %s\n", f64, f64 + 2);
    }
    str_addf(out, "%s#define LABEL_(x) #x\n#define LABEL(x) LABEL_(x)\n", needs->form ? "#endif\n#if defined(__GNUC__)\n" : "");
    for (size_t i = 0; i < COUNT_OF(libm); i++) {
        if (!word_used(needs, libm[i].word) || !strcmp(libm[i].word, "SQRT")) continue;
        for (int f64 = 0; f64 < 2; f64++) {
            const char *type = f64 ? "double" : "float", *fn = f64 ? libm[i].f64 : libm[i].f32;
            if (!fn) continue;
            const char *name = strcmp(libm[i].word, "MOD") ? fn : "m_fmod";
            str_addf(out, "%s %s(%s%s%s) __asm__(LABEL(__USER_LABEL_PREFIX__) \"%s\") __attribute__((const));\n", type, name,
                     type, libm[i].arity == 2 ? ", " : "", libm[i].arity == 2 ? type : "", name + 2);
        }
    }
    if (needs->form) str_add(out, "#endif\n");
}

/* The functions that the language of a GPU has. */
static void name_math(const prelude_needs *needs, const clike_language *l, str *out) {
    for (size_t i = 0; i < COUNT_OF(libm); i++) {
        if (!word_used(needs, libm[i].word)) continue;
        const char *f32 = libm[i].f32, *f64 = libm[i].f64;
        if (f64 && !strcmp(libm[i].word, "MOD")) f64 = "m_fmod";
        if (f32) str_addf(out, "#define %s %.*s%s\n", f32, (int)strlen(f32) - 3, f32 + 2, l->math_end);
        if (f64 && needs->f64) str_addf(out, "#define %s %s\n", f64, f64 + 2);
    }
}

void emit_prelude(const prelude_needs *asked, const clike_language *l, str *out) {
    prelude_needs all = *asked, *needs = &all;
    find_functions(needs);
    if (l->gpu) {
        str_add(out, l->head);
        if (l->head_more) str_add(out, l->head_more);
        if (needs->f64) str_add(out, l->head_f64);
        str_addf(out, "#define BARRIER %s\n", l->barrier);
        name_math(needs, l, out);
    } else {
        bool own = needs->form && needs->form->freestanding;
        if (needs->form)
            str_addf(out, foreign,
                     own ? "#define NAN ((float)(1e300 * 1e300 * 0))\n#define INFINITY ((float)(1e300 * 1e300))\n"
                           "#define __builtin_memcpy copy_bytes\n#define __builtin_memset set_bytes\n"
                         : "#include <math.h>\n#include <string.h>\n#define __builtin_memcpy memcpy\n"
                           "#define __builtin_memset memset\n");
        else
            str_add(out, integers);
        str_add(out, common);
        declare_libm(needs, out);
    }
    if (word_used(needs, "MOD") && (needs->f64 || !l->gpu))
        str_add(out, "INL double fmod_(double a, double b) { double r = m_fmod(a, b); return r == 0 ? (b < 0 ? -0.0 : 0.0) : "
                     "(r < 0) != (b < 0) ? r + b : r; }\n");
    for (int lanes = 1; lanes <= 64; lanes *= 2)
        if (needs->lanes[lanes]) types(needs, lanes, l->gpu, out);
    for (int lanes = 1; lanes <= 64; lanes *= 2) {
        if (!needs->lanes[lanes]) continue;
        for (size_t i = 0; i < COUNT_OF(elems); i++) {
            const elem *e = &elems[i];
            if (!elem_used(needs, e)) continue;
            fill(out, lanes > 1 ? vector_base : scalar_base, lanes, e);
            bool blend = lanes == 8 && !strcmp(e->name, "f32");
            if (blend) str_add(out, blend8);
            if (lanes > 1) fill(out, e->is_float ? vector_float : vector_int, lanes, e);
            if (blend) str_add(out, "#endif\n");
            if (lanes == 1 && !l->gpu) fill(out, scalar_memory, 1, e);
            if (lanes == 1 && e->is_float && !l->gpu) fill(out, scalar_float, 1, e);
        }
        fill(out, mask_ops, lanes, NULL);
        if (!l->gpu) fill(out, lanes > 1 ? narrow_vector : narrow_scalar, lanes, NULL);
        for (size_t i = 0; i < COUNT_OF(elems); i++)
            if (elem_used(needs, &elems[i])) functions(needs, l, lanes, &elems[i], out);
        if (!l->gpu) fill(out, words, lanes, NULL);
    }
    if (needs->random) str_add(out, random_text);
    if (needs->random && !l->gpu) str_add(out, random_vectors);
}
