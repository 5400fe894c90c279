/* json.c - writes JSON to a stream, and text from outside so that neither JSON nor a terminal takes harm. Top-level keys and
 * rows get a line each, so that the text diffs and reads well. */
#include "cli.h"

#include <math.h>
#include <string.h>
#include <stdlib.h>

/* Bytes of the character at s, in UTF-8; 0: it is none, or a control character. */
static size_t character(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    size_t n = p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;
    for (size_t k = 1; k < n; k++)
        if ((p[k] & 0xc0) != 0x80) return 0;
    bool control = p[0] == 0xc2 && p[1] < 0xa0, surrogate = p[0] == 0xed && p[1] > 0x9f;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90), beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return control || surrogate || overlong || beyond ? 0 : n;
}

/* Text from outside: as it is, but what is no character is escaped, for JSON or for people. */
static void write_text(FILE *f, const char *s, bool as_json) {
    for (size_t n; *s; s += n ? n : 1) {
        unsigned char ch = (unsigned char)*s;
        n = character(s);
        if (as_json && (ch == '"' || ch == '\\'))
            fprintf(f, "\\%c", ch);
        else if (n)
            fwrite(s, 1, n, f);
        else if (ch == '\n' || ch == '\t')
            fputs(!as_json ? (char[]){ (char)ch, 0 } : ch == '\n' ? "\\n" : "\\t", f);
        else if (as_json)
            fprintf(f, "\\u%04x", ch < 0x80 ? ch : 0xfffdu);
        else
            fprintf(f, "\\x%02x", ch);
    }
}
static void quoted(FILE *f, const char *s) {
    fputc('"', f);
    write_text(f, s, true);
    fputc('"', f);
}
void cli_show(FILE *f, const char *text) { write_text(f, text, false); }

static void item(json *j, const char *key) {
    bool more = j->more[j->depth];
    if (more) fputc(',', j->f);
    j->more[j->depth] = true;
    if (!j->row)
        fprintf(j->f, "\n%*s", j->depth * 2, "");
    else if (key && more)
        fputc(' ', j->f);
    if (key) {
        quoted(j->f, key);
        fputs(": ", j->f);
    }
}

static void open_level(json *j, const char *key, bool array) {
    if (j->depth + 1 >= (int)COUNT_OF(j->more)) return; /* deeper than anything the program writes */
    item(j, key);
    fputc(array ? '[' : '{', j->f);
    j->depth++;
    j->more[j->depth] = false;
    j->array[j->depth] = array;
}

json json_begin(FILE *f, const char *command) {
    json j = { .f = f, .depth = 1 };
    fputc('{', f);
    json_int(&j, "schema", 1);
    json_text(&j, "command", command);
    return j;
}

void json_finish(json *j) { fputs("\n}\n", j->f); }
void json_object(json *j, const char *key) { open_level(j, key, false); }
void json_array(json *j, const char *key) { open_level(j, key, true); }

void json_line(json *j, const char *key) {
    open_level(j, key, false);
    if (!j->row) j->row = j->depth;
}

void json_end(json *j) {
    bool array = j->array[j->depth], more = j->more[j->depth];
    int level = j->depth--;
    if (!j->row && more) fprintf(j->f, "\n%*s", j->depth * 2, "");
    fputc(array ? ']' : '}', j->f);
    if (j->row == level) j->row = 0;
}

void json_text(json *j, const char *key, const char *text) {
    item(j, key);
    if (text)
        quoted(j->f, text);
    else
        fputs("null", j->f);
}

void json_int(json *j, const char *key, int64_t v) {
    item(j, key);
    fprintf(j->f, "%lld", (long long)v);
}

void json_word(json *j, const char *key, uint64_t v) {
    item(j, key);
    fprintf(j->f, "%llu", (unsigned long long)v);
}

void json_number(json *j, const char *key, double v) {
    item(j, key);
    if (isnan(v))
        fputs("\"nan\"", j->f);
    else if (isinf(v))
        fputs(v < 0 ? "\"-inf\"" : "\"inf\"", j->f);
    else {
        char text[40]; /* the shortest of a few precisions that reads back as the same double */
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v) break;
        }
        fputs(text, j->f);
    }
}

void json_bool(json *j, const char *key, bool v) {
    item(j, key);
    fputs(v ? "true" : "false", j->f);
}

void json_raw(json *j, const char *key, const char *text) {
    item(j, key);
    fputs(text, j->f);
}
