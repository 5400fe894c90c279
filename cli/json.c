/* json.c - writes JSON to a stream. Top-level keys and rows get a line each, so that the text diffs and reads well. */
#include "cli.h"

#include <math.h>
#include <string.h>
#include <stdlib.h>

static void quoted(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\')
            fprintf(f, "\\%c", ch);
        else if (ch == '\n')
            fputs("\\n", f);
        else if (ch == '\t')
            fputs("\\t", f);
        else if (ch < 0x20 || ch == 0x7f)
            fprintf(f, "\\u%04x", ch);
        else
            fputc(ch, f);
    }
    fputc('"', f);
}

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
