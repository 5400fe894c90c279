/* test_gguf.c - GGUF files: metadata, every type of blocks against the loops of its definition, malformed files and the message
 * of each, mutations, every failing allocation. */
#include "io_test.h"

#include <math.h>

typedef struct file { /* being written */
    uint8_t at[1 << 14];
    size_t n;
} file;
static void put(file *f, const void *bytes, size_t n) {
    assert_true(f->n + n <= sizeof f->at);
    memcpy(f->at + f->n, bytes, n);
    f->n += n;
}
static void put32(file *f, uint32_t v) { put(f, &v, 4); }
static void put64(file *f, uint64_t v) { put(f, &v, 8); }
static void put_text(file *f, const char *text) {
    put64(f, strlen(text));
    put(f, text, strlen(text));
}
static void put_tensor(file *f, const char *name, uint32_t type, uint64_t columns, uint64_t rows, uint64_t offset) {
    put_text(f, name);
    put32(f, rows ? 2 : 1);
    put64(f, columns);
    if (rows) put64(f, rows);
    put32(f, type);
    put64(f, offset);
}
static const struct {
    tn_io_gguf_type type;
    const char *name;
    size_t elements, bytes;
} types[] = { { TN_GGUF_F32, "f32", 1, 4 },       { TN_GGUF_F16, "f16", 1, 2 },      { TN_GGUF_BF16, "bf16", 1, 2 },
              { TN_GGUF_Q8_0, "q8_0", 32, 34 },   { TN_GGUF_Q4_0, "q4_0", 32, 18 },  { TN_GGUF_Q4_K, "q4_k", 256, 144 },
              { TN_GGUF_Q6_K, "q6_k", 256, 210 }, { TN_GGUF_Q4_1, "q4_1", 32, 20 },  { TN_GGUF_Q5_0, "q5_0", 32, 22 },
              { TN_GGUF_Q5_1, "q5_1", 32, 24 },   { TN_GGUF_Q5_K, "q5_k", 256, 176 } };
enum { TYPES = 11, ROWS = 3, COLUMNS = 512, ALIGN = 32 };

static size_t array_bytes(int i) { return ROWS * COLUMNS / types[i].elements * types[i].bytes; }
static size_t align(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Two arrays of small files: type i and a vector. All numbers random, scales finite. */
static void make_file(file *f, int i, uint64_t seed) {
    f->n = 0;
    put(f, "GGUF", 4);
    put32(f, 3);
    put64(f, 2), put64(f, 5);
    put_text(f, "general.architecture"), put32(f, 8), put_text(f, "llama");
    put_text(f, "llama.block_count"), put32(f, 4), put32(f, 22);
    put_text(f, "eps"), put32(f, 12), put(f, &(double){ 1e-5 }, 8);
    put_text(f, "tokens"), put32(f, 9), put32(f, 8), put64(f, 2), put_text(f, "a"), put_text(f, "bcd");
    put_text(f, "scores"), put32(f, 9), put32(f, 6), put64(f, 3), put(f, &(float[3]){ 1, 2, 3 }, 12);
    put_tensor(f, "w", types[i].type, COLUMNS, ROWS, 0);
    put_tensor(f, "v", TN_GGUF_F32, 3, 0, align(array_bytes(i)));
    while (f->n % ALIGN) put(f, "", 1);
    size_t from = f->n;
    for (size_t k = 0; k < align(array_bytes(i)); k++) put(f, &(uint8_t){ (uint8_t)rnd(&seed) }, 1);
    for (size_t b = 0; b < array_bytes(i) && types[i].bytes > 4; b += types[i].bytes) { /* halves below 2: no infinities */
        size_t at = types[i].type == TN_GGUF_Q6_K ? 208 : 0;
        f->at[from + b + at + 1] &= 0xBF;
        tn_io_gguf_type t = types[i].type;
        if (t == TN_GGUF_Q4_K || t == TN_GGUF_Q5_K || t == TN_GGUF_Q4_1 || t == TN_GGUF_Q5_1) f->at[from + b + 3] &= 0xBF;
    }
    for (size_t k = 0; types[i].type == TN_GGUF_F32 && k < ROWS * COLUMNS; k++) {
        float v = (float)k / 3 - 50;
        memcpy(f->at + from + 4 * k, &v, 4);
    }
    for (size_t k = 0; types[i].bytes == 2 && k < ROWS * COLUMNS; k++) f->at[from + 2 * k + 1] &= 0xBF;
    put(f, &(float[3]){ 7, 8, 9 }, 12);
}

/* ---- the definitions, as loops over a block in the order of its bytes ---- */

static double half(const uint8_t *at) { /* finite */
    int h = at[0] | at[1] << 8, e = h >> 10 & 31;
    double v = e ? ldexp(1 + (h & 1023) / 1024.0, e - 15) : ldexp(h & 1023, -24);
    return h & 0x8000 ? -v : v;
}
static void define_q4_k(const uint8_t *b, double *y) {
    const uint8_t *s = b + 4, *q = b + 16;
    double d = half(b), min = half(b + 2);
    for (int j = 0, is = 0; j < 256; j += 64, q += 32) {
        for (int nibble = 0; nibble < 2; nibble++, is++) {
            int sc = is < 4 ? s[is] & 63 : (s[is + 4] & 0xF) | ((s[is - 4] >> 6) << 4);
            int m = is < 4 ? s[is + 4] & 63 : (s[is + 4] >> 4) | ((s[is] >> 6) << 4);
            for (int l = 0; l < 32; l++) *y++ = d * sc * (nibble ? q[l] >> 4 : q[l] & 0xF) - min * m;
        }
    }
}
static void define_q6_k(const uint8_t *b, double *y) {
    const uint8_t *ql = b, *qh = b + 128;
    const int8_t *sc = (const int8_t *)b + 192;
    double d = half(b + 208);
    for (int n = 0; n < 256; n += 128, y += 128, ql += 64, qh += 32, sc += 8)
        for (int l = 0; l < 32; l++) {
            int is = l / 16;
            y[l] = d * sc[is] * (((ql[l] & 0xF) | ((qh[l] & 3) << 4)) - 32);
            y[l + 32] = d * sc[is + 2] * (((ql[l + 32] & 0xF) | ((qh[l] >> 2 & 3) << 4)) - 32);
            y[l + 64] = d * sc[is + 4] * (((ql[l] >> 4) | ((qh[l] >> 4 & 3) << 4)) - 32);
            y[l + 96] = d * sc[is + 6] * (((ql[l + 32] >> 4) | ((qh[l] >> 6 & 3) << 4)) - 32);
        }
}
static void define_q5_k(const uint8_t *b, double *y) {
    const uint8_t *s = b + 4, *qh = b + 16, *ql = b + 48;
    double d = half(b), min = half(b + 2);
    int is = 0, u1 = 1, u2 = 2;
    for (int j = 0; j < 256; j += 64, ql += 32, u1 <<= 2, u2 <<= 2)
        for (int nibble = 0; nibble < 2; nibble++, is++) {
            int sc = is < 4 ? s[is] & 63 : (s[is + 4] & 0xF) | ((s[is - 4] >> 6) << 4);
            int m = is < 4 ? s[is + 4] & 63 : (s[is + 4] >> 4) | ((s[is] >> 6) << 4);
            for (int l = 0; l < 32; l++)
                *y++ = d * sc * ((nibble ? ql[l] >> 4 : ql[l] & 0xF) + (qh[l] & (nibble ? u2 : u1) ? 16 : 0)) - min * m;
        }
}
static void define_q5(const uint8_t *b, bool least, double *y) {
    const uint8_t *h = b + (least ? 4 : 2), *q = h + 4;
    uint32_t qh = (uint32_t)h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
    for (int j = 0; j < 16; j++) {
        int low = (q[j] & 0xF) | (int)(qh >> j << 4 & 0x10), high = q[j] >> 4 | (int)(qh >> (j + 12) & 0x10);
        y[j] = least ? half(b) * low + half(b + 2) : half(b) * (low - 16);
        y[j + 16] = least ? half(b) * high + half(b + 2) : half(b) * (high - 16);
    }
}
static void define(tn_io_gguf_type type, const uint8_t *b, double *y) {
    float f;
    uint32_t bits;
    switch (type) {
    case TN_GGUF_F32:
        memcpy(&f, b, 4), *y = (double)f;
        break;
    case TN_GGUF_F16:
        *y = half(b);
        break;
    case TN_GGUF_BF16:
        bits = (uint32_t)(b[0] | b[1] << 8) << 16, memcpy(&f, &bits, 4), *y = (double)f;
        break;
    case TN_GGUF_Q8_0:
        for (int i = 0; i < 32; i++) y[i] = half(b) * ((const int8_t *)b)[2 + i];
        break;
    case TN_GGUF_Q4_0:
        for (int i = 0; i < 32; i++) y[i] = half(b) * ((i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8);
        break;
    case TN_GGUF_Q4_1:
        for (int i = 0; i < 32; i++) y[i] = half(b) * (i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4) + half(b + 2);
        break;
    case TN_GGUF_Q5_0:
        define_q5(b, false, y);
        break;
    case TN_GGUF_Q5_1:
        define_q5(b, true, y);
        break;
    case TN_GGUF_Q5_K:
        define_q5_k(b, y);
        break;
    case TN_GGUF_Q4_K:
        define_q4_k(b, y);
        break;
    case TN_GGUF_Q6_K:
        define_q6_k(b, y);
        break;
    }
}

static void add_text(void *ud, const char *text, size_t n) {
    size_t at = strlen(ud);
    memcpy((char *)ud + at, text, n), memcpy((char *)ud + at + n, "|", 2);
}

static void add_number(void *ud, double number) { *(double *)ud = *(double *)ud * 10 + number; }

/* Whole numbers times scales and least values, row by row, are what the array has. */
static void check_groups(tn_ctx *ctx, const tn_io_gguf_tensor *w, const float *want) {
    static int8_t n[COLUMNS];
    static float scale[COLUMNS], least[COLUMNS], of[2][COLUMNS];
    static int8_t whole[2][COLUMNS];
    static uint16_t half[2][COLUMNS];
    tn_io_gguf_groups g = tn_io_gguf_groups_of(w->type);
    if (w->type == TN_GGUF_F32 || w->type == TN_GGUF_F16 || w->type == TN_GGUF_BF16) {
        assert_int_equal(g.group, 0);
        assert_fails(ctx, tn_io_gguf_read_groups(ctx, w, 0, COLUMNS, n, scale, least), TN_ERR_INVAL, "not in groups", "plain");
        return;
    }
    for (size_t r = 0; r < ROWS; r++) {
        memset(least, 0, sizeof least);
        assert_int_equal(tn_io_gguf_read_groups(ctx, w, r * COLUMNS, COLUMNS, n, scale, g.has_least ? least : NULL), TN_OK);
        for (int k = 0; k < COLUMNS; k++) {
            assert_true(scale[k / g.group] * (float)n[k] + least[k / g.group] == want[r * COLUMNS + (size_t)k]);
            assert_true(g.bits == 8 || (g.has_least ? n[k] >= 0 && n[k] <= 15 : n[k] >= -8 && n[k] <= 7));
        }
        memset(whole, 1, sizeof whole), memset(half, 0, sizeof half); /* the same out of parts, bit by bit */
        assert_int_equal(tn_io_gguf_read_scales(ctx, w, r * COLUMNS, COLUMNS, half[0], g.has_least ? half[1] : NULL,
                                                g.block ? whole[0] : NULL, g.block && g.has_least ? whole[1] : NULL),
                         TN_OK);
        for (int p = 0; p <= g.has_least; p++) assert_int_equal(tn_io_to_f32(ctx, TN_F16, half[p], COLUMNS, of[p]), TN_OK);
        for (int k = 0; k < COLUMNS / g.group; k++)
            for (int p = 0; p <= g.has_least; p++) {
                float part = of[p][g.block ? k * g.group / g.block : k] * (float)whole[p][k];
                assert_memory_equal(&part, p ? &least[k] : &scale[k], sizeof part);
            }
    }
    assert_fails(ctx, tn_io_gguf_read_groups(ctx, w, 1, COLUMNS, n, scale, least), TN_ERR_INVAL, "in blocks of", "odd");
    assert_fails(ctx, tn_io_gguf_read_scales(ctx, w, 1, COLUMNS, half[0], half[1], whole[0], whole[1]), TN_ERR_INVAL,
                 "in blocks of", "odd");
    if (g.block)
        assert_fails(ctx, tn_io_gguf_read_scales(ctx, w, 0, COLUMNS, half[0], half[1], NULL, NULL), TN_ERR_INVAL, "is NULL",
                     "no whole numbers");
    assert_fails(ctx, tn_io_gguf_read_groups(ctx, w, ROWS * COLUMNS, COLUMNS, n, scale, least), TN_ERR_INVAL, "from", "behind");
}

static void test_types(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    static file f;
    static float got[ROWS * COLUMNS];
    static double want[ROWS * COLUMNS];
    for (int i = 0; i < TYPES; i++) {
        tn_io_gguf *g;
        make_file(&f, i, (uint64_t)i);
        write_bytes(in_dir("x.gguf"), f.at, f.n);
        if (tn_io_gguf_load(ctx, in_dir("x.gguf"), &g)) fail_msg("%s", tn_ctx_error(ctx));
        const tn_io_gguf_tensor *w = tn_io_gguf_get(g, 0), *v = tn_io_gguf_find(g, "v");
        assert_int_equal(tn_io_gguf_count(g), 2);
        assert_true(w && v && w == tn_io_gguf_find(g, "w") && !tn_io_gguf_find(g, "x") && !tn_io_gguf_get(g, 2));
        assert_true(w->type == types[i].type && w->bytes == array_bytes(i));
        assert_true(w->shape.rank == 2 && w->shape.dim[0] == ROWS && w->shape.dim[1] == COLUMNS);
        assert_string_equal(tn_io_gguf_type_name(w->type), types[i].name);
        assert_int_equal(tn_io_gguf_read(ctx, w, got, ROWS * COLUMNS), TN_OK);
        for (size_t k = 0; k < ROWS * COLUMNS; k += types[i].elements)
            define(types[i].type, (const uint8_t *)w->data + k / types[i].elements * types[i].bytes, want + k);
        for (int k = 0; k < ROWS * COLUMNS; k++)
            if (!(fabs((double)got[k] - want[k]) <= 1e-6 * (1 + fabs(want[k])) * 64))
                fail_msg("%s[%d]: %g, not %g", types[i].name, k, (double)got[k], want[k]);
        check_groups(ctx, w, got);
        float three[3];
        assert_int_equal(tn_io_gguf_read(ctx, v, three, 3), TN_OK);
        assert_true(three[0] == 7 && three[2] == 9);
        assert_fails(ctx, tn_io_gguf_read(ctx, v, three, 2), TN_ERR_INVAL, "has 3 elements", "too little room");
        double number = 0;
        assert_string_equal(tn_io_gguf_text(g, "general.architecture"), "llama");
        assert_true(tn_io_gguf_number(g, "llama.block_count", &number) && number == 22);
        assert_true(tn_io_gguf_number(g, "eps", &number) && number == 1e-5);
        assert_true(!tn_io_gguf_text(g, "eps") && !tn_io_gguf_number(g, "tokens", &number) && !tn_io_gguf_text(g, "nothing"));
        char texts[32] = "";
        assert_int_equal(tn_io_gguf_texts(g, "tokens", add_text, texts), 2);
        assert_string_equal(texts, "a|bcd|");
        assert_true(tn_io_gguf_texts(g, "tokens", NULL, NULL) == 2 && tn_io_gguf_texts(NULL, "tokens", NULL, NULL) == -1);
        double digits = 0;
        assert_true(tn_io_gguf_numbers(g, "scores", add_number, &digits) == 3 && digits == 123);
        assert_true(tn_io_gguf_numbers(g, "scores", NULL, NULL) == 3 && tn_io_gguf_numbers(g, "tokens", NULL, NULL) == -1);
        assert_true(tn_io_gguf_numbers(g, "eps", NULL, NULL) == -1 && tn_io_gguf_numbers(NULL, "scores", NULL, NULL) == -1);
        assert_true(tn_io_gguf_texts(g, "scores", NULL, NULL) == -1 && tn_io_gguf_texts(g, "eps", NULL, NULL) == -1);
        tn_io_gguf_free(g);
    }
    tn_ctx_free(ctx);
}

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *find; /* bytes after which the change comes */
        size_t n_find;
        int offset; /* from their end */
        const char *to;
        size_t n_to;
        tn_status status;
        const char *text;
    } cases[] = {
#define BYTES(x) x, sizeof x - 1
        { BYTES("GGU"), 0, BYTES("X"), TN_ERR_PARSE, "no GGUF file" },
        { BYTES("GGUF"), 0, BYTES("\1"), TN_ERR_UNSUPPORTED, "version 1" },
        { BYTES("GGUF\3\0\0\0"), 0, BYTES("\0\0\0\0\0\0\0\1"), TN_ERR_PARSE, "the limits are" },
        { BYTES("GGUF\3\0\0\0"), 0, BYTES("\x7f"), TN_ERR_PARSE, "" },
        { BYTES("GGUF\3\0\0\0"), 8, BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"), TN_ERR_PARSE, "the limits are" },
        { BYTES("architecture"), 0, BYTES("\x0d"), TN_ERR_PARSE, "type 13" },
        { BYTES("architecture"), 4, BYTES("\xff\xff\xff\xff"), TN_ERR_PARSE, "4294967295 bytes; the limit" },
        { BYTES("block_count"), 0, BYTES("\x63"), TN_ERR_PARSE, "type 99" },
        { BYTES("tokens"), 4, BYTES("\x09"), TN_ERR_PARSE, "an array of values of type 9" },
        { BYTES("tokens"), 8, BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"), TN_ERR_PARSE, "ends in an array of texts" },
        { BYTES("scores"), 8, BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"), TN_ERR_PARSE, "ends in an array" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 0, BYTES("\5"), TN_ERR_PARSE, "\"w\" has 5 axes" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 0, BYTES("\0"), TN_ERR_PARSE, "\"w\" has 0 axes" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 4, BYTES("\1"), TN_ERR_PARSE, "no blocks of 32" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 4, BYTES("\0\2\0\0\0\0\0\1"), TN_ERR_PARSE, "does not have (truncated?)" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 4, BYTES("\0\0\0\0\0\0\0\x80"), TN_ERR_PARSE, "too many elements" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 12, BYTES("\xff\xff\xff\xff\xff\xff\xff\x7f"), TN_ERR_PARSE, "too many elements" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 20, BYTES("\x0a"), TN_ERR_UNSUPPORTED, "\"w\" has type 10" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 24, BYTES("\1"), TN_ERR_PARSE, "multiple of 32" },
        { BYTES("\1\0\0\0\0\0\0\0w"), 24, BYTES("\xe0\xff\xff\xff\xff\xff\xff\xff"), TN_ERR_PARSE,
          "does not have (truncated?)" },
        { BYTES("\1\0\0\0\0\0\0\0"), 0, BYTES("v"), TN_ERR_PARSE, "" },
        { BYTES("\1\0\0\0\0\0\0\0v"), -1, BYTES("w"), TN_ERR_PARSE, "two arrays are \"w\"" },
        { BYTES("\1\0\0\0\0\0\0\0v"), -1, BYTES("\xff"), TN_ERR_PARSE, "no UTF-8" },
    };
    tn_ctx *ctx = tn_ctx_new(NULL);
    static file f;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_io_gguf *g;
        make_file(&f, 3, 1);
        uint8_t *at = memmem(f.at, f.n, cases[i].find, cases[i].n_find);
        assert_non_null(at);
        memcpy(at + cases[i].n_find + cases[i].offset, cases[i].to, cases[i].n_to);
        tn_status s = tn_io_gguf_parse(ctx, f.at, f.n, "m.gguf", &g);
        if (!*cases[i].text) { /* anything but a crash: it may be right again */
            if (!s) tn_io_gguf_free(g);
            continue;
        }
        char what[64];
        snprintf(what, sizeof what, "case %zu", i);
        assert_fails(ctx, s, cases[i].status, cases[i].text, what);
        assert_fails(ctx, s, cases[i].status, "m.gguf", what);
    }
    tn_ctx_free(ctx);
}

/* Whatever was accepted must be whole. */
static void read_everything(tn_ctx *ctx, const tn_io_gguf *g) {
    for (int i = 0; i < tn_io_gguf_count(g); i++) {
        const tn_io_gguf_tensor *t = tn_io_gguf_get(g, i);
        size_t n = 1;
        for (int k = 0; k < t->shape.rank; k++) n *= (size_t)t->shape.dim[k];
        float *out = malloc(n * sizeof *out + 1);
        assert_non_null(out);
        assert_int_equal(tn_io_gguf_read(ctx, t, out, n), TN_OK);
        free(out);
    }
}

static void test_mutations(void **state) {
    (void)state;
    counting c;
    tn_ctx *ctx = counting_ctx(&c);
    size_t live = c.live;
    static file f;
    static uint8_t changed[sizeof f.at];
    uint64_t seed = 7;
    int accepted = 0, rounds = 4000;
    for (int i = 0; i < rounds; i++) {
        tn_io_gguf *g;
        make_file(&f, 3 + i % 4, 2);
        size_t head = 420; /* changes in the arrays are of no interest */
        size_t n = mutate(&seed, f.at, head, changed, head + 64);
        memcpy(changed + n, f.at + head, f.n - head);
        n += f.n - head;
        uint8_t *exact = malloc(n + !n);
        memcpy(exact, changed, n);
        tn_status s = tn_io_gguf_parse(ctx, exact, n, "m", &g);
        if (s)
            assert_true((s == TN_ERR_PARSE || s == TN_ERR_UNSUPPORTED) && strlen(tn_ctx_error(ctx)) > 5 && !g);
        else
            read_everything(ctx, g), tn_io_gguf_free(g), accepted++;
        free(exact);
        assert_int_equal(c.live, live);
    }
    assert_in_range(accepted, 1, rounds / 2);
    printf("count: %d mutated GGUF files, %d of them accepted\n", rounds, accepted);
    make_file(&f, 3, 1);
    for (size_t n = 0; n < f.n; n++) { /* every truncation is noticed */
        tn_io_gguf *g;
        assert_int_equal(tn_io_gguf_parse(ctx, f.at, n, "m", &g), TN_ERR_PARSE);
    }
    for (long k = 0;; k++) { /* every allocation fails in turn */
        tn_io_gguf *g;
        c.requests = 0, c.fail_at = k;
        tn_status s = tn_io_gguf_parse(ctx, f.at, f.n, "m", &g);
        c.fail_at = -1;
        if (!s) {
            tn_io_gguf_free(g);
            assert_true(k >= 5);
            break;
        }
        assert_int_equal(s, TN_ERR_NOMEM);
        assert_int_equal(c.live, live);
    }
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_types), cmocka_unit_test(test_malformed),
                                        cmocka_unit_test(test_mutations) };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
