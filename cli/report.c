/* report.c - rows of a benchmark as JSON, as a table and as CSV. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <string.h>

bench_row row_empty(void) {
    return (bench_row){ .fusion = -1,
                        .depth = -1,
                        .size = -1,
                        .batch = -1,
                        .threads = -1,
                        .kernels = -1,
                        .bytes_read = -1,
                        .bytes_written = -1,
                        .median_us = -1,
                        .p10_us = -1,
                        .p90_us = -1,
                        .compile_us = -1,
                        .transfer_us = -1,
                        .mallocs = -1,
                        .gflops = -1,
                        .peak_ratio = -1,
                        .max_abs_err = -1,
                        .max_ulp = -1,
                        .err_bound = -1,
                        .samples = -1 };
}

void row_time(bench_row *r, const stats *s, double flops, double peak) {
    r->median_us = s->median * 1e6;
    r->p10_us = s->p10 * 1e6;
    r->p90_us = s->p90 * 1e6;
    r->mallocs = s->mallocs;
    r->samples = s->samples;
    r->gflops = s->median > 0 ? flops / s->median * 1e-9 : 0;
    r->peak_ratio = peak > 0 ? r->gflops / peak : 0;
}

/* ULPs are those of the exact value's f32 neighbourhood, never smaller than the smallest subnormal. */
bool row_error(bench_row *r, const float *got, const double *want, int64_t n) {
    bool finite = true;
    r->max_abs_err = r->max_ulp = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!isfinite(d)) {
            finite = false;
            r->max_abs_err = r->max_ulp = INFINITY;
            continue;
        }
        int e = 0;
        frexp(want[i], &e);
        double ulp = ldexp(1, e - 24 < -149 ? -149 : e - 24);
        if (d > r->max_abs_err) r->max_abs_err = d;
        if (d / ulp > r->max_ulp) r->max_ulp = d / ulp;
    }
    return finite;
}

typedef struct column {
    const char *name;
    int width;
    char kind; /* 't' text, 'i' whole number, 'n' number */
    size_t at;
} column;
#define COLUMN(name, width, kind)                                                                                              \
    { #name, width, kind, offsetof(bench_row, name) }
/* The order of the keys: scripts may rely on the names. */
static const column columns[] = {
    COLUMN(work, 8, 't'),         COLUMN(rung, 26, 't'),      COLUMN(mode, 10, 't'),       COLUMN(fusion, 6, 'i'),
    COLUMN(depth, 5, 'i'),        COLUMN(size, 5, 'i'),       COLUMN(batch, 5, 'i'),       COLUMN(threads, 7, 'i'),
    COLUMN(median_us, 11, 'n'),   COLUMN(p10_us, 11, 'n'),    COLUMN(p90_us, 11, 'n'),     COLUMN(compile_us, 11, 'n'),
    COLUMN(transfer_us, 11, 'n'), COLUMN(kernels, 7, 'i'),    COLUMN(bytes_read, 11, 'i'), COLUMN(bytes_written, 13, 'i'),
    COLUMN(mallocs, 8, 'n'),      COLUMN(gflops, 8, 'n'),     COLUMN(peak_ratio, 10, 'n'), COLUMN(max_abs_err, 11, 'n'),
    COLUMN(max_ulp, 8, 'n'),      COLUMN(err_bound, 10, 'n'),
};

static const char *text_of(const bench_row *r, const column *k) {
    return *(const char *const *)(const void *)((const char *)r + k->at);
}
static int64_t int_of(const bench_row *r, const column *k) { return *(const int64_t *)(const void *)((const char *)r + k->at); }
static double number_of(const bench_row *r, const column *k) {
    return *(const double *)(const void *)((const char *)r + k->at);
}
static bool present(const bench_row *r, const column *k) {
    return k->kind == 't' ? text_of(r, k) != NULL : k->kind == 'i' ? int_of(r, k) >= 0 : number_of(r, k) >= 0;
}

void row_json(json *j, const bench_row *r) {
    json_line(j, NULL);
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        const column *k = &columns[i];
        if (!present(r, k)) continue;
        if (k->kind == 't')
            json_text(j, k->name, text_of(r, k));
        else if (k->kind == 'i')
            json_int(j, k->name, int_of(r, k));
        else { /* six digits are more than a timing has; zero stays zero */
            char text[32];
            snprintf(text, sizeof text, "%.6g", number_of(r, k));
            if (isfinite(number_of(r, k)))
                json_raw(j, k->name, text);
            else
                json_number(j, k->name, number_of(r, k));
        }
    }
    if (r->samples >= 0) json_int(j, "samples", r->samples);
    json_end(j);
}

void rows_csv(cli *c, const char *path, const bench_row *rows, int n) {
    FILE *f = fopen(path, "w");
    if (!f) cli_fail(c, "cannot write %s: %s", path, strerror(errno));
    for (size_t i = 0; i < COUNT_OF(columns); i++) fprintf(f, "%s%s", i ? "," : "", columns[i].name);
    fputc('\n', f);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            const column *k = &columns[i];
            if (i) fputc(',', f);
            if (!present(&rows[r], k)) continue;
            if (k->kind == 't')
                fputs(text_of(&rows[r], k), f);
            else if (k->kind == 'i')
                fprintf(f, "%lld", (long long)int_of(&rows[r], k));
            else
                fprintf(f, "%.6g", number_of(&rows[r], k));
        }
        fputc('\n', f);
    }
    if (fclose(f)) cli_fail(c, "cannot write %s: %s", path, strerror(errno));
    cli_note(c, "%d rows written to %s", n, path);
}

static void print_table(const cli *c, const bench_row *rows, int n) {
    bool shown[COUNT_OF(columns)] = { false };
    printf("%s", cli_bold(c));
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        const column *k = &columns[i];
        for (int r = 0; r < n && !shown[i]; r++) shown[i] = present(&rows[r], k);
        if (shown[i]) printf(k->kind == 't' ? "%-*s " : "%*s ", k->width, k->name);
    }
    printf("%s\n", cli_plain(c));
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            const column *k = &columns[i];
            if (!shown[i]) continue;
            if (!present(&rows[r], k))
                printf(k->kind == 't' ? "%-*s " : "%*s ", k->width, "-");
            else if (k->kind == 't')
                printf("%-*s ", k->width, text_of(&rows[r], k));
            else if (k->kind == 'i')
                printf("%*lld ", k->width, (long long)int_of(&rows[r], k));
            else
                printf("%*.4g ", k->width, number_of(&rows[r], k));
        }
        putchar('\n');
    }
}

void rows_report(cli *c, const char *command, const ceiling *m, const bench_row *rows, int n) {
    if (c->json) {
        json j = json_begin(stdout, command);
        ceiling_json(&j, m);
        json_text(&j, "mallocs_counted", mallocs_method());
        json_array(&j, "rows");
        for (int i = 0; i < n; i++) row_json(&j, &rows[i]);
        json_end(&j);
        json_finish(&j);
    } else {
        ceiling_print(stdout, m);
        print_table(c, rows, n);
    }
    const char *csv = cli_text(c, "csv", NULL);
    if (csv) rows_csv(c, csv, rows, n);
}
