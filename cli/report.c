/* report.c - `tenon explain --html`: gathers what the page shows and writes it. In: the command line. Out: one file that needs
 * no network: cli/report.html and cli/report.js with one JSON object in them. What the compiler did is the library's own
 * `explain.json`, unchanged; texts of kernels stand beside it. */
#include "report.h"

#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    EXPLAIN_BYTES = 1400 << 10,
    PASSES_BYTES = 300 << 10,
    TEXT_BYTES = 900 << 10 /* of all kernels' texts */,
    PROGRAM_BYTES = 1700 << 10
};

static uint64_t report_seed(const cli *c) { return (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX); }

/* ---- texts of kernels ---- */

typedef struct stage_cut { /* where a stage's text has its kernels: each begins at a line that begins so; what is behind them */
    const char *stage, *begin, *end;
    bool listing; /* of machine code: its bytes are left out */
} stage_cut;
static const stage_cut cuts[] = {
    { "scalar", "kernel @", NULL, false },
    { "kernels", "kernel @", NULL, false },
    { "c", "static NOIPA __attribute__((noinline, unused)) void kernel_", "void tn_kernel_", false },
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

/* What each pass did, unless that is too much to look at. */
static size_t put_passes(cli *c, json *j, tn_program *p) {
    char *said;
    cli_need(c, tn_program_text(p, "passes.json", &said));
    size_t n = strlen(said);
    bool fits = n <= PASSES_BYTES;
    if (fits) json_raw(j, "passes", said);
    tn_string_free(c->ctx, said);
    return fits ? n : 0;
}

/* Returns the program, whose texts tell all of it unless they are too long for a page. */
static tn_program *put_program(cli *c, json *j, const char *spec, const tn_compile_opts *o, bool texts) {
    char *said;
    char device[32] = "";
    tn_graph *g = model_open(c, spec, report_seed(c));
    tn_program *p = text_program(c, g, o);
    cli_need(c, tn_program_text(p, "explain.json", &said));
    const char *at = strstr(said, "\"device\":\"");
    if (at) snprintf(device, sizeof device, "%.*s", (int)strcspn(at + 10, "\""), at + 10);
    bool fits = strlen(said) <= EXPLAIN_BYTES;
    if (!fits) {
        tn_string_free(c->ctx, said);
        cli_need(c, tn_program_text(p, "explain.short.json", &said));
    }
    json_object(j, NULL);
    json_text(j, "spec", spec);
    json_raw(j, "explain", said);
    if (fits && texts) {
        size_t room = PROGRAM_BYTES - strlen(said) - put_passes(c, j, p);
        put_texts(c, j, p, device, room < TEXT_BYTES ? room : TEXT_BYTES);
    }
    json_end(j);
    tn_string_free(c->ctx, said);
    tn_graph_free(g);
    return p;
}

/* ---- what this machine does ---- */

/* Speed of multiply-adds, and of reading from the middle of each memory level, of so many threads. */
static void put_ceilings(json *j, int threads) {
    static const struct {
        const char *name;
        int size; /* of sysconf, of a core; 0: memory */
    } levels[] = {
        { "l1", _SC_LEVEL1_DCACHE_SIZE }, { "l2", _SC_LEVEL2_CACHE_SIZE }, { "l3", _SC_LEVEL3_CACHE_SIZE }, { "memory", 0 }
    };
    char cpu[128];
    ceiling_cpu(cpu, sizeof cpu);
    json_object(j, "ceilings");
    json_text(j, "cpu", cpu);
    json_int(j, "threads", threads);
    json_number(j, "gflops", ceiling_of(PROBE_FMA, threads, 0));
    json_array(j, "levels");
    for (size_t i = 0; i < COUNT_OF(levels); i++) {
        enum { BEYOND = 256 << 20 };
        int64_t size = levels[i].size ? sysconf(levels[i].size) : (int64_t)BEYOND * 2;
        bool shared = levels[i].size == _SC_LEVEL3_CACHE_SIZE || !levels[i].size;
        if (size < 4096) continue;
        json_line(j, NULL);
        json_text(j, "level", levels[i].name);
        json_number(j, "gbs", ceiling_of(PROBE_READ, threads, (size_t)size / 2 * (shared ? 1 : (size_t)threads)));
        json_end(j);
    }
    json_end(j);
    json_end(j);
}

/* Times of all kernels over a second of runs, with random inputs. */
static void put_profile(cli *c, json *j, tn_program *p, uint64_t seed) {
    tn_graph *g = model_open(c, c->args[0], seed);
    tn_session *s;
    tn_profile *report;
    tn_profile_summary sum;
    tn_profiled_kernel k;
    cli_need(c, tn_session_new(p, &s));
    ports io = ports_of(c, p, s);
    ports_fill(c, &io, g, seed);
    tn_graph_free(g);
    ports_bind(c, s, &io);
    cli_need(c, tn_session_profile(s, cli_number(c, "seconds", 1, 0, 1e6), &report));
    tn_profile_get_summary(report, &sum);
    json_object(j, "profile");
    json_int(j, "rounds", sum.rounds);
    json_number(j, "run_us", sum.run_us);
    json_array(j, "kernels");
    for (int i = 0; i < sum.kernels && !tn_profile_kernel(report, i, &k); i++) {
        json_line(j, NULL);
        json_number(j, "median_us", k.median_us);
        json_number(j, "best_us", k.best_us);
        json_end(j);
    }
    json_end(j);
    json_end(j);
    tn_profile_free(report);
    ports_free(&io);
    tn_session_free(s);
}

/* ---- what if ---- */

/* One program of g, which is freed, as `explain.short.json`; nothing where it cannot be made. */
static void put_variant(cli *c, json *j, const char *group, const char *label, tn_graph *g, const tn_compile_opts *o) {
    char *said;
    tn_program *p;
    if (!tn_compile(g, o, &p)) {
        cli_need(c, tn_program_text(p, "explain.short.json", &said));
        json_object(j, NULL);
        json_text(j, "group", group);
        json_text(j, "label", label);
        json_raw(j, "explain", said);
        json_end(j);
        tn_string_free(c->ctx, said);
        tn_program_free(p);
    }
    tn_graph_free(g);
}

/* The same graph at each fusion level, with other threads, for a GPU as most are, and with other batches. */
static void put_variants(cli *c, json *j, const char *spec, const tn_compile_opts *own) {
    static const int64_t batches[] = { 1, 8, 32, 128 };
    char label[32];
    bool cpu = !strcmp(own->device, "cpu");
    const char *end = strrchr(spec, '.');
    bool onnx = end && !strcmp(end, ".onnx");
    char *no_batch = NULL;
    json_array(j, "variants");
    for (int fusion = 0; fusion < 4; fusion++) {
        tn_compile_opts o = *own;
        o.fusion = fusion, o.schedule = NULL;
        snprintf(label, sizeof label, "level %d", fusion);
        put_variant(c, j, "Fusion", label, model_open(c, spec, report_seed(c)), &o);
    }
    for (int threads = 1; threads <= 8 && cpu; threads *= 2) {
        tn_compile_opts o = *own;
        o.threads = threads, o.schedule = NULL;
        snprintf(label, sizeof label, "%d thread%s", threads, threads > 1 ? "s" : "");
        put_variant(c, j, "Threads", label, model_open(c, spec, report_seed(c)), &o);
    }
    for (int device = 0; device < 2; device++) {
        tn_compile_opts o = *own;
        o.device = device ? "null-cuda" : "cpu", o.schedule = NULL;
        put_variant(c, j, "Device", device ? "a GPU, by the model" : "this processor", model_open(c, spec, report_seed(c)), &o);
    }
    for (size_t i = 0; i < COUNT_OF(batches); i++) {
        tn_graph *other = model_batch(c, spec, report_seed(c), batches[i]);
        tn_compile_opts o = *own;
        o.schedule = NULL;
        snprintf(label, sizeof label, "batch %d", (int)batches[i]);
        if (other)
            put_variant(c, j, "Batch", label, other, &o);
        else if (!no_batch)
            no_batch = cli_format("%s", onnx ? tn_ctx_error(cli_ctx(c)) : "a graph as text has its sizes in it");
    }
    json_end(j);
    if (no_batch) json_text(j, "no_batch", no_batch);
    free(no_batch);
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
    const char *page = (const char *)report_page, *mark = strstr(page, "@data@"), *against = cli_text(c, "against", NULL);
    tn_program_stats compiled;
    FILE *f = open_memstream(&data, &n);
    if (!f) cli_fail(c, "out of memory");
    json j = json_begin(f, "explain");
    json_text(&j, "tenon", tn_version());
    json_array(&j, "programs");
    tn_program *p = put_program(c, &j, c->args[0], o, true);
    if (against) tn_program_free(put_program(c, &j, against, o, false));
    json_end(&j);
    tn_program_get_stats(p, &compiled);
    if (!cli_flag(c, "no-ceilings") && !strcmp(o->device, "cpu")) put_ceilings(&j, compiled.threads);
    if (cli_flag(c, "measure")) put_profile(c, &j, p, report_seed(c));
    if (!cli_flag(c, "no-what-if")) put_variants(c, &j, c->args[0], o);
    tn_program_free(p);
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
