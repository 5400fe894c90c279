/* report.c - `tenon explain --html`: gathers what the page shows and writes it. In: the command line. Out: one file that needs
 * no network: cli/report.html and cli/report.js with one JSON object in them. What the compiler did is the library's own
 * `explain.json`, unchanged; texts of kernels stand beside it. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 900 << 10 /* of all kernels' texts together */, EXPLAIN_BYTES = 900 << 10 };

/* ---- texts of kernels ---- */

typedef struct stage_cut { /* where a stage's text has its kernels: each begins at a line that begins so; what is behind them */
    const char *stage, *begin, *end;
    bool listing; /* of machine code: its bytes are left out */
} stage_cut;
static const stage_cut cuts[] = {
    { "scalar", "kernel @", NULL, false },
    { "kernels", "kernel @", NULL, false },
    { "c", "static __attribute__((noinline, unused)) void kernel_", "void tn_kernel_", false },
    { "x86", "kernel_", "tn_", true },
    { "cuda", "extern \"C\" __global__", NULL, false },
    { "opencl", "__kernel", NULL, false },
};

typedef struct piece {
    const char *at;
    size_t n;
} piece;

static bool begins(const char *line, const char *with) { return with && !strncmp(line, with, strlen(with)); }
static const char *next_line(const char *s) {
    const char *end = strchr(s, '\n');
    return end ? end + 1 : s + strlen(s);
}

/* Kernels of a text, in order; *out is the caller's. */
static int cut_text(const stage_cut *k, const char *text, piece **out) {
    int n = 0, cap = 64;
    *out = cli_alloc((size_t)cap * sizeof **out);
    bool inside = false;
    for (const char *s = text; *s; s = next_line(s)) {
        if (begins(s, k->begin)) {
            if (n == cap) {
                piece *more = cli_alloc((size_t)cap * 2 * sizeof *more);
                memcpy(more, *out, (size_t)cap * sizeof *more);
                free(*out);
                *out = more, cap *= 2;
            }
            (*out)[n++] = (piece){ s, 0 };
            inside = true;
        } else if (begins(s, k->end)) {
            inside = false;
        }
        if (inside) (*out)[n - 1].n = (size_t)(next_line(s) - (*out)[n - 1].at);
    }
    return n;
}

/* "    1f  488bc7                    mov rax,rdi" without what the processor reads. */
static size_t copy_line(char *to, const char *line, size_t n, bool listing) {
    enum { ADDRESS = 8, CODE = 26 };
    bool cut = listing && n > ADDRESS + CODE && line[0] == ' ';
    if (!cut) return memcpy(to, line, n), n;
    memcpy(to, line, ADDRESS);
    memcpy(to + ADDRESS, line + ADDRESS + CODE, n - ADDRESS - CODE);
    return n - CODE;
}

/* As many lines as fit into `most` bytes, and how many do not. */
static char *short_text(piece p, size_t most, bool listing) {
    char *out = cli_alloc((p.n < most ? p.n : most) + 128);
    size_t n = 0;
    int left = 0;
    for (const char *s = p.at, *end = p.at + p.n, *next; s < end; s = next) {
        next = next_line(s);
        size_t length = (size_t)(next - s);
        if (left || n + length > most)
            left++;
        else
            n += copy_line(out + n, s, length, listing);
    }
    if (left) n += (size_t)sprintf(out + n, ".. %d more lines", left);
    while (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    return out;
}

/* Whether a stage tells something of a program for this device. */
static bool stage_fits(const stage_cut *k, const char *device) {
    bool opencl = strstr(device, "opencl") != NULL, gpu = opencl || strstr(device, "cuda");
    if (!strcmp(k->stage, "c") || !strcmp(k->stage, "x86")) return !gpu;
    if (!strcmp(k->stage, "cuda")) return gpu && !opencl;
    if (!strcmp(k->stage, "opencl")) return opencl;
    return true;
}

static void put_texts(cli *c, json *j, tn_program *p, const char *device, size_t budget) {
    char *text[COUNT_OF(cuts)] = { 0 };
    piece *pieces[COUNT_OF(cuts)] = { 0 };
    int n[COUNT_OF(cuts)] = { 0 };
    size_t most = budget, total = budget + 1;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        if (!stage_fits(&cuts[i], device)) continue;
        cli_need(c, tn_program_text(p, cuts[i].stage, &text[i]));
        n[i] = cut_text(&cuts[i], text[i], &pieces[i]);
    }
    for (; total > budget && most > 256; most -= most / 8) { /* the longest lose their ends */
        total = 0;
        for (size_t i = 0; i < COUNT_OF(cuts); i++)
            for (int k = 0; k < n[i]; k++) total += pieces[i][k].n < most ? pieces[i][k].n : most;
    }
    json_object(j, "texts");
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        if (n[i]) json_array(j, cuts[i].stage);
        for (int k = 0; k < n[i]; k++) {
            char *one = short_text(pieces[i][k], most, cuts[i].listing);
            json_text(j, NULL, one);
            free(one);
        }
        if (n[i]) json_end(j);
        free(pieces[i]);
        if (text[i]) tn_string_free(c->ctx, text[i]);
    }
    json_end(j);
}

/* ---- programs ---- */

static void put_program(cli *c, json *j, const char *spec, const tn_compile_opts *o) {
    char *said;
    char device[32] = "";
    tn_graph *g = model_open(c, spec, (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    tn_program *p = text_program(c, g, o);
    cli_need(c, tn_program_text(p, "explain.json", &said));
    const char *at = strstr(said, "\"device\":\"");
    if (at) snprintf(device, sizeof device, "%.*s", (int)strcspn(at + 10, "\""), at + 10);
    json_object(j, NULL);
    json_text(j, "spec", spec);
    json_raw(j, "explain", said);
    put_texts(c, j, p, device, TEXT_BYTES);
    json_end(j);
    tn_string_free(c->ctx, said);
    tn_program_free(p);
    tn_graph_free(g);
}

/* ---- the page ---- */

/* Inside of a script element a browser looks for its end first, even in strings. */
static void put_data(FILE *f, const char *data) {
    for (; *data; data++) {
        if (*data == '<')
            fputs("\\u003c", f);
        else
            fputc(*data, f);
    }
}

void report_write(cli *c, const char *path, const tn_compile_opts *o) {
    char *data = NULL;
    size_t n = 0;
    const char *page = (const char *)report_page, *mark = strstr(page, "@data@");
    FILE *f = open_memstream(&data, &n);
    if (!f) cli_fail(c, "out of memory");
    json j = json_begin(f, "explain");
    json_text(&j, "tenon", tn_version());
    json_array(&j, "programs");
    put_program(c, &j, c->args[0], o);
    json_end(&j);
    json_finish(&j);
    if (fclose(f)) cli_fail(c, "out of memory");
    f = cli_create(c, path);
    fwrite(page, 1, (size_t)(mark - page), f);
    put_data(f, data);
    fputs(mark + strlen("@data@"), f);
    cli_close(c, f, path);
    free(data);
    cli_note(c, "page written to %s: open it in a browser", path);
}
