/* gen_builders.c - host tool of the build: gen_builders OUT.c HEADER... writes the rows of `tenon ops --builders`: each
 * function of the public headers that takes or gives tensors, its declaration, and the comment above it or behind it.
 *
 * The headers are regular: a declaration begins with TN_API at the line's start and ends with a semicolon; a comment above
 * declarations belongs to all of them up to an empty line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text {
    char at[4096];
    size_t n;
} text;
static void add(text *t, const char *s, size_t n) {
    for (size_t i = 0; i < n && t->n + 2 < sizeof t->at; i++) {
        int c = s[i] == '\n' ? ' ' : s[i];
        if (c == ' ' && (t->n == 0 || t->at[t->n - 1] == ' ')) continue;
        t->at[t->n++] = (char)c;
    }
    t->at[t->n] = 0;
}
/* Without the marks of the comment. */
static void add_comment(text *t, const char *s, const char *end) {
    for (s += 2; s < end - 2;) {
        const char *eol = memchr(s, '\n', (size_t)(end - 2 - s)), *stop = eol ? eol : end - 2;
        while (s < stop && (*s == ' ' || *s == '*' || *s == '-')) s++;
        add(t, s, (size_t)(stop - s));
        add(t, " ", 1);
        s = stop + (eol != NULL);
    }
}
static void put(FILE *out, const text *t) {
    size_t n = t->n;
    while (n && t->at[n - 1] == ' ') n--;
    fputc('"', out);
    for (size_t i = 0; i < n; i++) {
        if (t->at[i] == '"' || t->at[i] == '\\') fputc('\\', out);
        fputc(t->at[i], out);
    }
    fputc('"', out);
}

/* One header, which is in memory. */
static void scan(FILE *out, const char *header, const char *s) {
    text above = { .n = 0 };
    while (*s) {
        if (!strncmp(s, "/*", 2)) {
            const char *end = strstr(s, "*/") + 2;
            above.n = 0, above.at[0] = 0;
            add_comment(&above, s, end);
            s = end + (*end == '\n');
        } else if (!strncmp(s, "TN_API ", 7)) {
            text declaration = { .n = 0 }, doc = above, name = { .n = 0 };
            for (s += 7; *s != ';'; s++) {
                if (!strncmp(s, "/*", 2)) { /* an operand's shape */
                    const char *end = strstr(s, "*/") + 2;
                    add(&declaration, s, (size_t)(end - s));
                    s = end;
                }
                add(&declaration, s, 1);
            }
            for (s++; *s == ' '; s++) {
            }
            if (!strncmp(s, "/*", 2)) {
                const char *end = strstr(s, "*/") + 2;
                doc.n = 0, doc.at[0] = 0;
                add_comment(&doc, s, end);
                s = end;
            }
            s += *s == '\n';
            const char *bracket = strchr(declaration.at, '('), *begin = bracket;
            while (begin > declaration.at && begin[-1] != ' ' && begin[-1] != '*') begin--;
            add(&name, begin, (size_t)(bracket - begin));
            if (!strstr(declaration.at, "tn_tensor ")) continue;
            fputs("    { ", out), put(out, &name);
            fprintf(out, ", \"%s\", ", strrchr(header, '/') + 1);
            put(out, &declaration), fputs(", ", out), put(out, &doc), fputs(" },\n", out);
        } else {
            if (*s == '\n') above.n = 0, above.at[0] = 0;
            const char *eol = strchr(s, '\n');
            s = eol ? eol + 1 : s + strlen(s);
        }
    }
}

int main(int argc, char **argv) {
    FILE *out = argc > 2 ? fopen(argv[1], "w") : NULL;
    if (!out) return 2;
    fprintf(
        out,
        "/* Written by the build from the public headers. */\n#include \"builders.h\"\nconst builder_row builder_rows[] = {\n");
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "r");
        char *all = calloc(1, 1 << 20);
        if (!f || !all || fread(all, 1, (1 << 20) - 1, f) == 0) return 2;
        scan(out, argv[i], all);
        fclose(f), free(all);
    }
    fprintf(out, "    { 0 }\n};\n");
    return fclose(out) ? 2 : 0;
}
