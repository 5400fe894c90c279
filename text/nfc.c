/* nfc.c - text in Unicode's normalization form C, which Qwen's tokenizers ask for.
 *
 * In: any bytes; what is no UTF-8 stays. Out: the same text with characters composed and marks in order. Only a run of
 * characters that may change is looked at: a character and the marks behind it. What it has no tables for is an error:
 * compatibility ideographs, and scripts above U+FFFF whose characters combine. */
#include "text.h"

enum { MOST_MARKS = 4096 /* in a row: they are sorted by insertion */ };
/* Hangul is composed by numbers: a leading consonant, a vowel, a trailing consonant. */
enum { LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11A7, SYLLABLES = 0xAC00, N_LEADS = 19, N_VOWELS = 21, N_TAILS = 28 };

#define CLASS(first, n, class)
#define SECOND(c)
#define PAIR(step, first, second)
#define ONLY(step, first, second)
typedef struct run {
    uint16_t first;
    uint8_t n, class;
} run;
#undef CLASS
#define CLASS(first, n, class) { first, n, class },
static const run classes[] = {
#include "nfc.def"
};
#undef CLASS
#define CLASS(first, n, class)
#undef SECOND
#define SECOND(c) c,
static const uint16_t seconds[] = {
#include "nfc.def"
};
#undef SECOND
#define SECOND(c)
typedef struct row {
    uint16_t first;
    uint8_t step, second;
} row;
#undef PAIR
#define PAIR(step, first, second) { first, step, second },
static const row pairs[] = {
#include "nfc.def"
};
#undef PAIR
#define PAIR(step, first, second)
#undef ONLY
#define ONLY(step, first, second) { first, step, second },
static const row only[] = {
#include "nfc.def"
};

static uint8_t class_of(uint32_t c) {
    size_t lo = 0;
    for (size_t hi = sizeof classes / sizeof *classes; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)classes[mid].first + classes[mid].n <= c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof classes / sizeof *classes && classes[lo].first <= c ? classes[lo].class : 0;
}
static bool has_no_table(uint32_t c) {
    return (c >= 0xF900 && c < 0xFB00) || (c >= 0x2F800 && c < 0x2FA20) ||
           (c >= 0x101FD && c < 0x1E94B && !(c >= 0x1D300 && c < 0x1E000));
}

/* The two parts of a character; false: it has none. */
static bool parts_of(const row *r, size_t n, uint32_t c, uint32_t *first, uint32_t *second) {
    uint32_t at = 0;
    for (size_t i = 0; i < n && at <= c; i++) {
        at += r[i].first ? r[i].step : r[i].step * 256u;
        if (at != c || !r[i].first) continue;
        *first = r[i].first, *second = r[i].second ? seconds[r[i].second - 1] : 0;
        return true;
    }
    return false;
}
/* What two characters become; 0: they stay two. */
static uint32_t composed(uint32_t first, uint32_t second) {
    uint32_t at = 0, lead = first - LEADS, syllable = first - SYLLABLES;
    if (lead < N_LEADS && second - VOWELS < N_VOWELS) return SYLLABLES + (lead * N_VOWELS + second - VOWELS) * N_TAILS;
    if (syllable < N_LEADS * N_VOWELS * N_TAILS && syllable % N_TAILS == 0 && second - TAILS - 1 < N_TAILS - 1)
        return first + second - TAILS;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        at += pairs[i].first ? pairs[i].step : pairs[i].step * 256u;
        if (pairs[i].first == first && first && seconds[pairs[i].second - 1] == second) return at;
    }
    return 0;
}

/* ---- a run of characters ---- */

typedef struct normal {
    tn_ctx *ctx;
    uint32_t *at; /* [n] of the run, in parts */
    size_t n, room;
    char **out;
    size_t n_out, *out_room;
} normal;

/* The class that marks are sorted by. */
static uint8_t order_of(uint32_t c) {
    uint8_t class = class_of(c);
    return class == 255 ? 0 : class;
}

/* A character in its parts, marks behind those of lower or equal classes. */
static tn_status add_char(normal *m, uint32_t c) {
    uint32_t tail[5], second;
    size_t n = 0;
    while (n < 4 && (parts_of(pairs, sizeof pairs / sizeof *pairs, c, &c, &second) ||
                     parts_of(only, sizeof only / sizeof *only, c, &c, &second)))
        if (second) tail[n++] = second;
    tail[n++] = c;
    if (m->n + n > MOST_MARKS) return text_fail(m->ctx, TN_ERR_INVAL, "tn_bpe_encode: more than %d marks in a row", MOST_MARKS);
    if (!text_grow(m->ctx, &m->at, &m->room, m->n + n, sizeof *m->at)) return TN_ERR_NOMEM;
    while (n) {
        uint32_t next = tail[--n];
        uint8_t order = order_of(next);
        size_t i = m->n++;
        for (; order && i && order_of(m->at[i - 1]) > order; i--) m->at[i] = m->at[i - 1];
        m->at[i] = next;
    }
    return TN_OK;
}

static tn_status put(normal *m, const char *text, size_t n) {
    if (!n) return TN_OK;
    if (!text_grow(m->ctx, m->out, m->out_room, m->n_out + n, 1)) return TN_ERR_NOMEM;
    memcpy(*m->out + m->n_out, text, n);
    m->n_out += n;
    return TN_OK;
}

/* The run, composed. */
static tn_status put_run(normal *m) {
    size_t n = 0, starter = SIZE_MAX;
    uint8_t last = 0; /* the class of the mark before */
    for (size_t i = 0; i < m->n; i++) {
        uint8_t order = order_of(m->at[i]);
        bool near = starter != SIZE_MAX && (starter + 1 == n || (order && last < order));
        uint32_t both = near ? composed(m->at[starter], m->at[i]) : 0;
        if (both) {
            m->at[starter] = both;
            continue;
        }
        if (!order) starter = n;
        last = order;
        m->at[n++] = m->at[i];
    }
    tn_status st = TN_OK;
    for (size_t i = 0; i < n && !st; i++) {
        char text[4];
        st = put(m, text, text_put_utf8(text, m->at[i]));
    }
    m->n = 0;
    return st;
}

tn_status text_nfc(tn_ctx *ctx, const char *text, size_t n, char **out, size_t *room, size_t *out_n) {
    normal m = { .ctx = ctx, .out = out, .out_room = room };
    size_t done = 0, before = 0; /* text before `done` is written; the last character that began before `at` */
    tn_status st = TN_OK;
    for (size_t at = 0, size; at < n && !st; at += size) {
        size = 1;
        if ((uint8_t)text[at] < 0xCC) { /* below U+0300: nothing changes it alone */
            if (((uint8_t)text[at] & 0xC0) != 0x80) before = at;
            continue;
        }
        uint32_t c = text_char(text, n, at, &size);
        if (size > 1 && has_no_table(c))
            st = text_fail(ctx, TN_ERR_UNSUPPORTED,
                           "tn_bpe_encode: U+%04X: this vocabulary is for text in NFC, for which there is no table of it",
                           (unsigned)c);
        if (st || size == 1 || !class_of(c)) {
            before = at;
            continue;
        }
        st = put(&m, text + done, before - done);
        done = at + size;
        if (before < at) { /* what the marks stand behind, if it is a character */
            size_t first;
            uint32_t b = text_char(text, n, before, &first);
            if (before + first < at || (first == 1 && (uint8_t)text[before] >= 0x80))
                st = st ? st : put(&m, text + before, at - before);
            else if (!st)
                st = add_char(&m, b);
        }
        if (!st) st = add_char(&m, c);
        for (size_t more; !st && done < n && (uint8_t)text[done] >= 0xCC; done += more) {
            c = text_char(text, n, done, &more);
            if (more == 1 || has_no_table(c) || !class_of(c)) break;
            st = add_char(&m, c);
        }
        if (!st) st = put_run(&m);
        size = done - at, before = done;
    }
    if (!st) st = put(&m, text + done, n - done);
    text_free(ctx, m.at, m.room, sizeof *m.at);
    *out_n = m.n_out;
    return st;
}
