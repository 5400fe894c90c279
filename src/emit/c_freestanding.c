/* c_freestanding.c - what C of its own needs of the C library and libm where there are none: copies of bytes, square roots,
 * remainders, and sines of angles that are too large for functions.def. Out: definitions, of which c_prune.c keeps what is
 * used. */
#include "emit/emit.h"

/* Compilers write calls of these for copies of structures and for loops. A program that has others keeps them; what is hidden
 * in the loops is that they are such copies themselves. */
static const char bytes[] =
    "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
    "#if defined(__GNUC__)\n#define WEAK __attribute__((weak))\n#define HIDE_LOOP __asm__ volatile(\"\" ::: \"memory\")\n"
    "#else\n#define WEAK static\n#define HIDE_LOOP ((void)0)\n#define memcpy copy_bytes\n#define memset set_bytes\n#define "
    "memmove "
    "move_bytes\n#endif\n"
    "WEAK void *memcpy(void *to, const void *from, size_t n) {\n"
    "    for (size_t i = 0; i < n; i++) {\n        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];\n"
    "        HIDE_LOOP;\n    }\n    return to;\n}\n"
    "WEAK void *memset(void *to, int value, size_t n) {\n"
    "    for (size_t i = 0; i < n; i++) {\n        ((unsigned char *)to)[i] = (unsigned char)value;\n        HIDE_LOOP;\n    "
    "}\n"
    "    return to;\n}\n"
    "WEAK void *memmove(void *to, const void *from, size_t n) {\n"
    "    if ((uintptr_t)to - (uintptr_t)from >= n) return memcpy(to, from, n);\n"
    "    while (n-- > 0) {\n        ((unsigned char *)to)[n] = ((const unsigned char *)from)[n];\n        HIDE_LOOP;\n    }\n"
    "    return to;\n}\n"
    "#ifdef __cplusplus\n}\n#endif\n";

/* Bit by bit, rounded to nearest. */
static const char roots[] =
    "static __attribute__((unused)) float root32(float x) {\n"
    "    uint32_t u, m, q = 0, s = 0;\n    int32_t e;\n    __builtin_memcpy(&u, &x, 4);\n"
    "    if (u << 1 == 0 || (u << 1) > 0xff000000u || u == 0x7f800000u) return x;\n"
    "    if (u >> 31) return (x - x) / (x - x);\n"
    "    e = (int32_t)(u >> 23), m = u & 0x7fffffu;\n"
    "    if (e) m |= 0x800000u;\n    else e = 1;\n"
    "    while (!(m & 0x800000u)) m <<= 1, e--;\n"
    "    e -= 127;\n    if (e & 1) m <<= 1;\n    e = (e - (e & 1)) / 2;\n    m <<= 1;\n"
    "    for (uint32_t r = 1u << 24; r; r >>= 1) {\n        uint32_t t = s + r;\n        if (t <= m) s = t + r, m -= t, q += "
    "r;\n"
    "        m <<= 1;\n    }\n"
    "    if (m) q += q & 1;\n    u = (q >> 1) + 0x3f000000u + ((uint32_t)e << 23);\n    __builtin_memcpy(&x, &u, 4);\n    "
    "return x;\n}\n"
    "static __attribute__((unused)) double root64(double x) {\n"
    "    uint64_t u, m, q = 0, s = 0;\n    int64_t e;\n    __builtin_memcpy(&u, &x, 8);\n"
    "    if (u << 1 == 0 || (u << 1) > 0xffe0000000000000u || u == 0x7ff0000000000000u) return x;\n"
    "    if (u >> 63) return (x - x) / (x - x);\n"
    "    e = (int64_t)(u >> 52), m = u & 0xfffffffffffffu;\n"
    "    if (e) m |= 0x10000000000000u;\n    else e = 1;\n"
    "    while (!(m & 0x10000000000000u)) m <<= 1, e--;\n"
    "    e -= 1023;\n    if (e & 1) m <<= 1;\n    e = (e - (e & 1)) / 2;\n    m <<= 1;\n"
    "    for (uint64_t r = (uint64_t)1 << 53; r; r >>= 1) {\n        uint64_t t = s + r;\n        if (t <= m) s = t + r, m -= "
    "t, q += r;\n"
    "        m <<= 1;\n    }\n"
    "    if (m) q += q & 1;\n    u = (q >> 1) + 0x3fe0000000000000u + ((uint64_t)e << 52);\n    __builtin_memcpy(&x, &u, 8);\n"
    "    return x;\n}\n";

/* x - n pi/2, |..| <= pi/4, for any finite x >= 2^-7: of 2/pi the 96 bits that matter (M. H. Payne and R. N. Hanek, 1983). */
static const char far_angles[] =
    "static double turned(float x, uint32_t *n) {\n"
    "    static const uint32_t bits[10] = { 0, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,\n"
    "                                       0xfe5163abu, 0xdebbc561u, 0xb7246e3au }; /* 2/pi behind 32 zeros */\n"
    "    uint32_t u, m, from, shift, w[3];\n    uint64_t low, middle, high, part;\n    __builtin_memcpy(&u, &x, 4);\n"
    "    m = (u & 0x7fffffu) | 0x800000u;\n    from = (u >> 23 & 255u) - 120u;\n    shift = from % 32u;\n    from /= 32u;\n"
    "    for (uint32_t i = 0; i < 3; i++)\n"
    "        w[i] = shift ? bits[from + i] << shift | bits[from + i + 1] >> (32u - shift) : bits[from + i];\n"
    "    low = (uint64_t)m * w[2], middle = (uint64_t)m * w[1] + (low >> 32), high = (uint64_t)m * w[0] + (middle >> 32);\n"
    "    part = high << 32 | (middle & 0xffffffffu);\n"
    "    *n = (uint32_t)((part + ((uint64_t)1 << 61)) >> 62);\n"
    "    return (double)(int64_t)(part - ((uint64_t)*n << 62)) * 3.4061215800865545e-19;\n}\n"
    "static double near_sine(double r) {\n    double z = r * r;\n"
    "    return r + r * z * (-1.6666666666666666e-1 + z * (8.3333333333333332e-3 + z * (-1.9841269841269841e-4 + z * "
    "2.7557319223985893e-6)));\n}\n"
    "static double near_cosine(double r) {\n    double z = r * r;\n"
    "    return 1.0 + z * (-0.5 + z * (4.1666666666666664e-2 + z * (-1.3888888888888889e-3 + z * (2.4801587301587302e-5 - z * "
    "2.7557319223985888e-7))));\n}\n"
    "static float m_sinf(float x) {\n    uint32_t n;\n    double r, v;\n    if (!(x - x == 0.0f)) return x - x;\n"
    "    r = turned(x, &n);\n    v = n & 1u ? near_cosine(r) : near_sine(r);\n"
    "    return (float)(((n & 2u) != 0) != (x < 0.0f) ? -v : v);\n}\n"
    "static float m_cosf(float x) {\n    uint32_t n;\n    double r, v;\n    if (!(x - x == 0.0f)) return x - x;\n"
    "    r = turned(x, &n);\n    v = n & 1u ? near_sine(r) : near_cosine(r);\n"
    "    return (float)(((n + 1u) & 2u) != 0 ? -v : v);\n}\n"
    "static float m_tanf(float x) {\n    uint32_t n;\n    double r, v;\n    if (!(x - x == 0.0f)) return x - x;\n"
    "    r = turned(x, &n);\n    v = n & 1u ? -near_cosine(r) / near_sine(r) : near_sine(r) / near_cosine(r);\n"
    "    return (float)(x < 0.0f ? -v : v);\n}\n";

/* Of x, y >= 0: exact, as a long division. */
static const char remainders[] =
    "static float m_fmodf(float x, float y) {\n"
    "    uint32_t u, v, ex, ey;\n    __builtin_memcpy(&u, &x, 4);\n    __builtin_memcpy(&v, &y, 4);\n"
    "    if (u >= 0x7f800000u || v == 0 || v > 0x7f800000u) return (x - x) / (x - x);\n"
    "    if (u < v) return x;\n"
    "    ex = u >> 23, ey = v >> 23;\n    u &= 0x7fffffu, v &= 0x7fffffu;\n"
    "    if (ex) u |= 0x800000u;\n    else ex = 1;\n    if (ey) v |= 0x800000u;\n    else ey = 1;\n"
    "    for (u %= v; ex > ey; ex--) u = (u << 1) % v;\n"
    "    while (u && !(u & 0x800000u) && ey > 1) u <<= 1, ey--;\n"
    "    if (u & 0x800000u) u = (ey << 23) | (u & 0x7fffffu);\n    __builtin_memcpy(&x, &u, 4);\n    return x;\n}\n";

/* exp, log and pow of f64, which optimisers want. log: x = 2^e m, log m = 2 atanh(s), s = (m - 1) / (m + 1), as a sum of two
 * numbers, so that pow loses nothing by the product (products by halves: T. J. Dekker, 1971). */
static const char doubles[] =
    "static double exact_product(double x, double y, double *rest) {\n"
    "    double p = x * y, u = x * 134217729.0, v = y * 134217729.0, xh, yh, xl, yl;\n"
    "    xh = u - (u - x), xl = x - xh, yh = v - (v - y), yl = y - yh;\n"
    "    *rest = ((xh * yh - p) + xh * yl + xl * yh) + xl * yl;\n    return p;\n}\n"
    "static double log_of(double x, double *rest) {\n"
    "    uint64_t u;\n    double m, e = 0, f, g, s, p, low, z, q, h;\n    __builtin_memcpy(&u, &x, 8);\n"
    "    if (!(u >> 52)) x *= 18014398509481984.0, e = -54;\n    __builtin_memcpy(&u, &x, 8);\n"
    "    u -= 0x3fe6a09e667f3bcdu;\n    e += (double)((int64_t)u >> 52);\n"
    "    u = (u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;\n    __builtin_memcpy(&m, &u, 8);\n"
    "    f = m - 1, g = m + 1, s = f / g, p = exact_product(s, g, &low);\n"
    "    low = ((f - p) - low - s * (m - (g - 1))) / g, z = s * s;\n"
    "    q = z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11 + z * (1.0 / 13 + z * (1.0 / 15 + z * "
    "(1.0 "
    "/ 17 + z * (1.0 / 19 + z * (1.0 / 21 + z / 23))))))))));\n"
    "    p = e * 6.93147180369123816490e-01, h = p + 2 * s, g = h - p;\n"
    "    m = ((p - (h - g)) + (2 * s - g)) + (2 * (low + s * q) + e * 1.90821492927058770002e-10);\n    f = h + m, *rest = m - "
    "(f - h);\n    return f;\n}\n"
    "static double m_log(double x) {\n    double rest, h;\n"
    "    if (x < 0 || x != x) return (x - x) / (x - x);\n    if (x == 0) return -1 / (x * x);\n    if (x - x != 0) return x;\n"
    "    h = log_of(x, &rest);\n    return h + rest;\n}\n"
    "static double m_exp(double x) {\n"
    "    double n, r, p = 1, a, b;\n    int64_t i;\n    uint64_t u;\n"
    "    if (x != x) return x;\n    if (x > 800) x = 800;\n    if (x < -800) x = -800;\n"
    "    n = x * 1.44269504088896338700 + 6755399441055744.0, n -= 6755399441055744.0, i = (int64_t)n;\n"
    "    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;\n"
    "    for (int k = 14; k > 0; k--) p = 1 + p * r / k;\n"
    "    u = (uint64_t)(i / 2 + 1023) << 52;\n    __builtin_memcpy(&a, &u, 8);\n"
    "    u = (uint64_t)(i - i / 2 + 1023) << 52;\n    __builtin_memcpy(&b, &u, 8);\n    return p * a * b;\n}\n"
    "static double m_pow(double x, double y) {\n"
    "    double a = x < 0 ? -x : x, size = y < 0 ? -y : y, rest, low, h, v, zero = 0;\n    uint64_t u;\n    int whole, odd, "
    "minus;\n"
    "    if (y == 0 || x == 1) return 1;\n    if (x != x || y != y) return x + y;\n"
    "    whole = size >= 9007199254740992.0 || (double)(int64_t)y == y;\n"
    "    odd = size < 9007199254740992.0 && whole && ((int64_t)y & 1);\n    __builtin_memcpy(&u, &x, 8);\n    minus = odd && u "
    ">> 63;\n"
    "    if (size - size != 0) return a == 1 ? 1 : (a > 1) == (y > 0) ? size : 0;\n"
    "    if (a == 0 || a - a != 0) {\n        v = (a == 0) == (y > 0) ? 0 : 1 / zero;\n        return minus ? -v : v;\n    }\n"
    "    if (x < 0 && !whole) return zero / zero;\n"
    "    h = log_of(a, &rest);\n    if (size > 1e18) return (h > 0) == (y > 0) ? (minus ? -1 / zero : 1 / zero) : minus ? "
    "-zero : 0;\n"
    "    v = exact_product(y, h, &low), low += y * rest;\n"
    "    if (v > 800 || v < -800) low = 0;\n    v = m_exp(v), v = v - v != 0 ? v : v + v * low;\n    return minus ? -v : "
    "v;\n}\n";

void emit_freestanding(str *out) {
    str_add(out, bytes);
    str_add(out, roots);
    str_add(out, far_angles);
    str_add(out, remainders);
    str_add(out, doubles);
}
