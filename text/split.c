/* split.c - text to words, as the patterns of GPT-2, cl100k_base and their relatives split it; written by hand: no expression
 * engine.
 *
 * GPT-2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * cl100k:  '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * Qwen2 has \p{N} where cl100k has \p{N}{1,3}; SmolLM2 takes out each number, then splits what is between them as GPT-2 does.
 *
 * All take the first alternative that matches. Source: the encoders published with GPT-2 and tiktoken. */
#include "text.h"

typedef enum { OTHER, LETTER, NUMBER, BLANK } char_class;
typedef struct range {
    uint32_t first, last;
} range;

#define LETTERS(first, last) { first, last },
#define NUMBERS(first, last)
static const range letters[] = {
#include "unicode.def"
};
#undef LETTERS
#undef NUMBERS
#define LETTERS(first, last)
#define NUMBERS(first, last) { first, last },
static const range numbers[] = {
#include "unicode.def"
};

static bool is_in(const range *r, size_t n, uint32_t c) {
    size_t lo = 0;
    for (size_t hi = n; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        if (r[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].first <= c;
}

static bool is_blank(uint32_t c) { /* Unicode's White_Space */
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static char_class class_of(uint32_t c) {
    if (c < 128) {
        if ((c | 32) >= 'a' && (c | 32) <= 'z') return LETTER;
        if (c >= '0' && c <= '9') return NUMBER;
        return is_blank(c) ? BLANK : OTHER;
    }
    if (is_in(letters, sizeof letters / sizeof *letters, c)) return LETTER;
    if (is_in(numbers, sizeof numbers / sizeof *numbers, c)) return NUMBER;
    return is_blank(c) ? BLANK : OTHER;
}

typedef struct scanner {
    const uint8_t *text;
    size_t n;
} scanner;

static const uint32_t NO_CHAR = 0xFFFFFFFF; /* what a byte that begins no character of UTF-8 counts as */

/* The character at `at` < n, and its length. */
static uint32_t char_at(const scanner *s, size_t at, size_t *out_n) {
    const uint8_t *p = s->text + at;
    size_t left = s->n - at;
    uint32_t c = *p;
    *out_n = 1;
    if (c < 0x80) return c;
    size_t more = c >= 0xF0 && c < 0xF5 ? 3 : c >= 0xE0 ? 2 : 1;
    static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };
    if (c < 0xC2 || c > 0xF4 || more >= left) return NO_CHAR;
    c &= 0x3Fu >> more;
    for (size_t i = 1; i <= more; i++) {
        if ((p[i] & 0xC0) != 0x80) return NO_CHAR;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least[more] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return NO_CHAR;
    *out_n = more + 1;
    return c;
}

static char_class class_at(const scanner *s, size_t at, size_t *out_n) {
    uint32_t c = char_at(s, at, out_n);
    return c == NO_CHAR ? OTHER : class_of(c);
}

/* Where the run of this class ends that may begin at `at`; at most so many characters of it. */
static size_t run_end(const scanner *s, size_t at, char_class class, int most) {
    for (size_t n; at < s->n && most-- > 0 && class_at(s, at, &n) == class; at += n) {
    }
    return at;
}
enum { ALL = 1 << 30 };

/* Ends of the words 's 't 're 've 'm 'll 'd; `at` when there is none. */
static size_t contraction_end(const scanner *s, size_t at, bool any_case) {
    if (s->text[at] != '\'' || at + 1 >= s->n) return at;
    uint8_t fold = any_case ? 32 : 0;
    uint8_t x = s->text[at + 1] | fold, y = at + 2 < s->n ? s->text[at + 2] : 0;
    if (any_case && s->text[at + 1] == 0xC5 && y == 0xBF) return at + 3; /* U+017F is an s, too */
    y |= y ? fold : 0;
    if (x == 's' || x == 't' || x == 'm' || x == 'd') return at + 2;
    return (x == 'r' && y == 'e') || (x == 'v' && y == 'e') || (x == 'l' && y == 'l') ? at + 3 : at;
}

static bool is_line_end(uint32_t c) { return c == '\n' || c == '\r'; }

/* Blanks: all of them at the end of the text; else the last one goes with what follows, unless it is alone. */
static size_t blanks_end(const scanner *s, size_t at) {
    size_t end = at, last = at;
    for (size_t n; end < s->n && class_at(s, end, &n) == BLANK; end += n) last = end;
    return end < s->n && last > at ? last : end;
}

static size_t gpt2_end(const scanner *s, size_t at) {
    size_t n, next = contraction_end(s, at, false);
    if (next > at) return next;
    size_t body = at + (s->text[at] == ' ' && at + 1 < s->n);
    char_class c = class_at(s, body, &n);
    return c == BLANK ? blanks_end(s, at) : run_end(s, body, c, ALL);
}

/* Blanks up to behind the last end of a line among them; `at` when there is none. */
static size_t lines_end(const scanner *s, size_t at) {
    size_t end = at;
    for (size_t n; at < s->n && class_at(s, at, &n) == BLANK; at += n)
        if (is_line_end(s->text[at])) end = at + 1;
    return end;
}

static size_t digits_end(const scanner *s, size_t at) {
    size_t n, next;
    char_class c = class_at(s, at, &n);
    if (c == NUMBER) return at + n;
    if (c != BLANK) return gpt2_end(s, at);
    next = run_end(s, at, BLANK, ALL);
    return next < s->n && class_at(s, next, &n) == NUMBER ? next : gpt2_end(s, at);
}

/* So many numbers are a word at most. */
static size_t cl100k_end(const scanner *s, size_t at, int together) {
    size_t n, next = contraction_end(s, at, true);
    if (next > at) return next;
    uint32_t ch = char_at(s, at, &n);
    char_class c = ch == NO_CHAR ? OTHER : class_of(ch);
    if (c == NUMBER) return run_end(s, at, NUMBER, together);
    if (c == LETTER) return run_end(s, at, LETTER, ALL);
    if (!is_line_end(ch) && (next = run_end(s, at + n, LETTER, ALL)) > at + n) return next;
    size_t body = at + (ch == ' ');
    next = run_end(s, body, OTHER, ALL);
    if (next > body) {
        while (next < s->n && is_line_end(s->text[next])) next++;
        return next;
    }
    next = lines_end(s, at);
    return next > at ? next : blanks_end(s, at);
}

uint32_t text_char(const char *text, size_t n, size_t at, size_t *out_n) {
    return char_at(&(scanner){ (const uint8_t *)text, n }, at, out_n);
}

size_t text_put_utf8(char *out, uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

size_t text_word_end(tn_bpe_split split, const char *text, size_t n, size_t at) {
    scanner s = { (const uint8_t *)text, n };
    if (split == TN_BPE_GPT2) return gpt2_end(&s, at);
    return split == TN_BPE_DIGITS ? digits_end(&s, at) : cl100k_end(&s, at, split == TN_BPE_QWEN2 ? 1 : 3);
}
