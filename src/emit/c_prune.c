/* c_prune.c - drops the functions of a C text that another text does not need: reading the whole vocabulary would cost the C
 * compiler more than the kernels themselves. In: definitions, each depending on earlier ones only, and the code that uses them.
 * Out: the needed ones, in order. */
#include "emit/emit.h"

typedef struct names { /* set of identifiers by hash; a false hit only keeps a function that is not needed */
    arena *a;
    uint64_t *at;
    size_t cap, n;
} names;

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

static bool has_name(const names *s, uint64_t h) {
    for (size_t i = h & (s->cap - 1);; i = (i + 1) & (s->cap - 1)) {
        if (s->at[i] == h) return true;
        if (s->at[i] == 0) return false;
    }
}
static void add_name(names *s, uint64_t h) {
    size_t k = h & (s->cap - 1);
    while (s->at[k] && s->at[k] != h) k = (k + 1) & (s->cap - 1);
    s->n += !s->at[k];
    s->at[k] = h;
}
/* A text of a megabyte has some thousand different names: room for one in every other word would be memory of megabytes to
 * clear. */
static void make_room(names *s) {
    names old = *s;
    if (s->n < s->cap / 2) return;
    s->cap = s->cap ? s->cap * 2 : 1024, s->n = 0;
    s->at = ARENA_ARRAY(s->a, uint64_t, s->cap);
    for (size_t i = 0; i < old.cap; i++)
        if (old.at[i]) add_name(s, old.at[i]);
}
static void add_names(names *s, const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t from = i;
        while (i < n && is_word(text[i])) i++;
        if (i == from) {
            i++;
            continue;
        }
        make_room(s);
        add_name(s, hash_bytes(text + from, i - from, 0) | 1);
    }
}

typedef struct chunk {
    size_t from, to;
    bool keep;
} chunk;

static size_t line_end(const char *s, size_t i) {
    while (s[i] && s[i] != '\n') i++;
    return s[i] ? i + 1 : i;
}

/* One definition, or an #if with its alternatives. */
static size_t chunk_end(const char *s, size_t i) {
    if (!strncmp(s + i, "#if", 3)) {
        do i = line_end(s, i);
        while (s[i] && strncmp(s + i, "#endif", 6));
        return line_end(s, i);
    }
    int depth = 0;
    do {
        size_t end = line_end(s, i);
        for (; i < end; i++) depth += (s[i] == '{') - (s[i] == '}');
    } while (depth > 0 && s[i]);
    return i;
}

static bool has_others(const char *s, chunk c) { /* an #if that defines more than functions is kept: they are few */
    for (size_t i = c.from; i < c.to; i = line_end(s, i))
        if (!strncmp(s + i, "#define", 7) || !strncmp(s + i, "#include", 8) || !strncmp(s + i, "typedef", 7)) return true;
    return false;
}

/* Whether the chunk defines a name of the set: the word before the first '(' of a line that starts a function. */
static bool defines_any(const char *s, chunk c, const names *set) {
    for (size_t i = c.from; i < c.to; i = line_end(s, i)) {
        if (strncmp(s + i, "INL", 3) && strncmp(s + i, "static", 6)) continue;
        size_t end = i;
        while (end < c.to && s[end] != '(') end++;
        size_t from = end;
        while (from > i && is_word(s[from - 1])) from--;
        if (has_name(set, hash_bytes(s + from, end - from, 0) | 1)) return true;
    }
    return false;
}

void emit_pruned(const str *definitions, const str *code, str *out) {
    arena *a = out->a;
    const char *s = definitions->s;
    VEC(chunk) chunks = { 0 };
    for (size_t i = 0; s[i];) {
        size_t end = chunk_end(s, i);
        bool function = !strncmp(s + i, "INL", 3) || !strncmp(s + i, "static", 6) || !strncmp(s + i, "#if", 3);
        VEC_PUSH(a, &chunks, (chunk){ i, end, !function || has_others(s, (chunk){ i, end, false }) });
        i = end;
    }
    names set = { .a = a };
    make_room(&set);
    add_names(&set, code->s, code->n);
    for (int i = chunks.n - 1; i >= 0; i--) {
        chunk *c = &chunks.at[i];
        if (!c->keep && !(c->keep = defines_any(s, *c, &set))) continue;
        if (!strncmp(s + c->from, "typedef", 7) || !strncmp(s + c->from, "#define", 7)) continue; /* types need no function */
        add_names(&set, s + c->from, c->to - c->from);
    }
    for (int i = 0; i < chunks.n; i++)
        if (chunks.at[i].keep) str_addn(out, s + chunks.at[i].from, chunks.at[i].to - chunks.at[i].from);
}
