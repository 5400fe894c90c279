/* report.c - rows of a benchmark as JSON, as a table and as CSV. */
#include "bench.h"
#include "cli/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bench_row row_empty(void) {
    return (bench_row){ .inputs = -1,
                        .fusion = -1,
                        .depth = -1,
                        .size = -1,
                        .batch = -1,
                        .footprint = -1,
                        .told_bytes = -1,
                        .told_ratio = -1,
                        .threads = -1,
                        .kernels = -1,
                        .bytes_read = -1,
                        .bytes_written = -1,
                        .median_us = -1,
                        .p10_us = -1,
                        .p90_us = -1,
                        .best_us = -1,
                        .compile_us = -1,
                        .transfer_us = -1,
                        .mallocs = -1,
                        .specialised_us = -1,
                        .specialised_ratio = -1,
                        .gflops = -1,
                        .peak_gflops = -1,
                        .peak_ratio = -1,
                        .best_ratio = -1,
                        .gbs = -1,
                        .bandwidth_gbs = -1,
                        .bandwidth_ratio = -1,
                        .best_bandwidth_ratio = -1,
                        .roof_ratio = -1,
                        .best_roof_ratio = -1,
                        .latency_ns = -1,
                        .rival_ratio = -1,
                        .rival_best_ratio = -1,
                        .max_abs_err = -1,
                        .max_ulp = -1,
                        .err_bound = -1,
                        .ulp_bound = -1,
                        .us_per_million = -1,
                        .per_second = -1,
                        .budget_us = -1,
                        .budget_ratio = -1,
                        .one_thread_ratio = -1,
                        .quiet_ratio = -1,
                        .one_session_ratio = -1,
                        .p99_us = -1,
                        .asked_per_second = -1,
                        .mean_batch = -1,
                        .samples = -1 };
}

void row_time(bench_row *r, const stats *s, double flops, rate peak) {
    rate own = stats_rate(s, flops);
    r->median_us = s->median * 1e6;
    r->p10_us = s->p10 * 1e6;
    r->p90_us = s->p90 * 1e6;
    r->best_us = s->best * 1e6;
    r->mallocs = s->mallocs;
    r->samples = s->samples;
    if (!(flops > 0)) return;
    r->gflops = own.median;
    if (!(peak.median > 0)) return;
    r->peak_gflops = peak.median;
    r->peak_ratio = own.median / peak.median;
    r->best_ratio = own.best / peak.best;
}

void row_bandwidth(bench_row *r, const stats *s, double bytes, rate bandwidth) {
    rate own = stats_rate(s, bytes);
    r->gbs = own.median;
    if (!(bandwidth.median > 0)) return;
    r->bandwidth_gbs = bandwidth.median;
    r->bandwidth_ratio = own.median / bandwidth.median;
    r->best_bandwidth_ratio = own.best / bandwidth.best;
}

void row_rivals(bench_row *r, const stats_case *cases, const int *which, int n) {
    for (int i = 0; i < n; i++) {
        if (cases[i].failed) continue;
        double us = cases[i].result.median * 1e6, best = cases[i].result.best * 1e6;
        r->rival_us[which[i]] = us;
        r->rival_best_us[which[i]] = best;
        if (r->rival_ratio < 0 || us / r->median_us < r->rival_ratio) r->rival_ratio = us / r->median_us;
        if (r->rival_best_ratio < 0 || best / r->best_us < r->rival_best_ratio) r->rival_best_ratio = best / r->best_us;
    }
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
/* Scripts may rely on the names. */
static const column columns[] = {
    COLUMN(work, 8, 't'),
    { "case", 26, 't', offsetof(bench_row, name) },
    COLUMN(variant, 14, 't'),
    COLUMN(rung, 26, 't'),
    COLUMN(mode, 10, 't'),
    COLUMN(cache, 5, 't'),
    COLUMN(device, 6, 't'),
    COLUMN(fusion, 6, 'i'),
    COLUMN(depth, 5, 'i'),
    COLUMN(size, 5, 'i'),
    COLUMN(batch, 5, 'i'),
    COLUMN(threads, 7, 'i'),
    COLUMN(footprint, 10, 'i'),
    COLUMN(told_bytes, 10, 'i'),
    COLUMN(told_ratio, 10, 'n'),
    COLUMN(median_us, 11, 'n'),
    COLUMN(p10_us, 11, 'n'),
    COLUMN(p90_us, 11, 'n'),
    COLUMN(best_us, 11, 'n'),
    COLUMN(one_thread_ratio, 16, 'n'),
    COLUMN(quiet_ratio, 11, 'n'),
    COLUMN(one_session_ratio, 17, 'n'),
    COLUMN(specialised_us, 14, 'n'),
    COLUMN(specialised_ratio, 17, 'n'),
    COLUMN(budget_us, 9, 'n'),
    COLUMN(budget_ratio, 12, 'n'),
    COLUMN(compile_us, 11, 'n'),
    COLUMN(transfer_us, 11, 'n'),
    COLUMN(kernels, 7, 'i'),
    COLUMN(bytes_read, 11, 'i'),
    COLUMN(bytes_written, 13, 'i'),
    COLUMN(mallocs, 8, 'n'),
    COLUMN(gflops, 8, 'n'),
    COLUMN(peak_gflops, 11, 'n'),
    COLUMN(peak_ratio, 10, 'n'),
    COLUMN(best_ratio, 10, 'n'),
    COLUMN(gbs, 8, 'n'),
    COLUMN(bandwidth_gbs, 13, 'n'),
    COLUMN(bandwidth_ratio, 15, 'n'),
    COLUMN(best_bandwidth_ratio, 20, 'n'),
    COLUMN(roof_ratio, 10, 'n'),
    COLUMN(best_roof_ratio, 15, 'n'),
    COLUMN(latency_ns, 10, 'n'),
    COLUMN(rival_ratio, 11, 'n'),
    COLUMN(rival_best_ratio, 16, 'n'),
    COLUMN(max_abs_err, 11, 'n'),
    COLUMN(max_ulp, 8, 'n'),
    COLUMN(err_bound, 10, 'n'),
    COLUMN(ulp_bound, 9, 'n'),
    COLUMN(inputs, 10, 'i'),
    COLUMN(worst, 14, 't'),
    COLUMN(us_per_million, 14, 'n'),
    COLUMN(per_second, 11, 'n'),
    COLUMN(asked_per_second, 16, 'n'),
    COLUMN(p99_us, 10, 'n'),
    COLUMN(mean_batch, 10, 'n'),
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

/* Six digits are more than a timing has; zero stays zero. */
static void short_number(json *j, const char *key, double v) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", v);
    if (isfinite(v))
        json_raw(j, key, text);
    else
        json_number(j, key, v);
}

/* {"onnxruntime": us, ...}: those that did this work. */
static void rival_times(json *j, const char *key, const double *us) {
    bool any = false;
    for (int i = 0; i < MAX_RIVALS; i++) any |= us[i] > 0;
    if (!any) return;
    json_object(j, key);
    for (int i = 0; i < MAX_RIVALS && rival_names[i]; i++) {
        if (us[i] > 0) short_number(j, rival_names[i], us[i]);
    }
    json_end(j);
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
        else
            short_number(j, k->name, number_of(r, k));
    }
    rival_times(j, "rivals", r->rival_us);
    rival_times(j, "rivals_best", r->rival_best_us);
    if (r->samples >= 0) json_int(j, "samples", r->samples);
    json_end(j);
}

/* RFC 4180: what holds a comma stands in quotes. No name holds quotes itself. */
static void print_csv_text(FILE *f, const char *text) { fprintf(f, strchr(text, ',') ? "\"%s\"" : "%s", text); }

void rows_csv(cli *c, const char *path, const bench_row *rows, int n) {
    FILE *f = cli_create(c, path);
    for (size_t i = 0; i < COUNT_OF(columns); i++) fprintf(f, "%s%s", i ? "," : "", columns[i].name);
    for (int i = 0; i < MAX_RIVALS && rival_names[i]; i++) fprintf(f, ",%s_us", rival_names[i]);
    fputc('\n', f);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            const column *k = &columns[i];
            if (i) fputc(',', f);
            if (!present(&rows[r], k)) continue;
            if (k->kind == 't')
                print_csv_text(f, text_of(&rows[r], k));
            else if (k->kind == 'i')
                fprintf(f, "%lld", (long long)int_of(&rows[r], k));
            else
                fprintf(f, "%.6g", number_of(&rows[r], k));
        }
        for (int i = 0; i < MAX_RIVALS && rival_names[i]; i++) {
            fputc(',', f);
            if (rows[r].rival_us[i] > 0) fprintf(f, "%.6g", rows[r].rival_us[i]);
        }
        fputc('\n', f);
    }
    cli_close(c, f, path);
    cli_note(c, "%d rows written to %s", n, path);
}

/* Text columns are as wide as their longest entry. */
static int table_width(const column *k, const bench_row *rows, int n) {
    if (k->kind != 't') return k->width;
    size_t width = strlen(k->name);
    for (int r = 0; r < n; r++) {
        if (present(&rows[r], k) && strlen(text_of(&rows[r], k)) > width) width = strlen(text_of(&rows[r], k));
    }
    return (int)width;
}

static void print_cell(const bench_row *r, const column *k, int width) {
    if (!present(r, k))
        printf(k->kind == 't' ? "%-*s " : "%*s ", width, "-");
    else if (k->kind == 't')
        printf("%-*s ", width, text_of(r, k));
    else if (k->kind == 'i')
        printf("%*lld ", width, (long long)int_of(r, k));
    else
        printf("%*.4g ", width, number_of(r, k));
}

static void print_table(const cli *c, const bench_row *rows, int n) {
    int width[COUNT_OF(columns)] = { 0 }; /* 0: no row has it */
    bool rival[MAX_RIVALS] = { false };
    printf("%s", cli_bold(c));
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        const column *k = &columns[i];
        for (int r = 0; r < n && !width[i]; r++) width[i] = present(&rows[r], k) ? table_width(k, rows, n) : 0;
        if (width[i]) printf(k->kind == 't' ? "%-*s " : "%*s ", width[i], k->name);
    }
    for (int i = 0; i < MAX_RIVALS && rival_names[i]; i++) {
        for (int r = 0; r < n; r++) rival[i] |= rows[r].rival_us[i] > 0;
        if (rival[i]) printf("%10s_us ", rival_names[i]);
    }
    printf("%s\n", cli_plain(c));
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            if (width[i]) print_cell(&rows[r], &columns[i], width[i]);
        }
        for (int i = 0; i < MAX_RIVALS; i++) {
            if (rival[i]) rows[r].rival_us[i] > 0 ? printf("%13.4g ", rows[r].rival_us[i]) : printf("%13s ", "-");
        }
        putchar('\n');
    }
}

/* ---- the rows as a page for a browser: the table first in the file, the plot first on the page ---- */

static void page_table(FILE *f, const bench_row *rows, int n) {
    bool has[COUNT_OF(columns)] = { false };
    fputs("<section><h2>All rows</h2><p>Each row is one measured case; its median is over samples of at least 2 ms, taken in "
          "turns with the others. docs/bench.md says what each column is.</p><div class=\"wide\" tabindex=\"0\"><table><tr>",
          f);
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        for (int r = 0; r < n && !has[i]; r++) has[i] = present(&rows[r], &columns[i]);
        if (has[i]) fprintf(f, "<th class=\"%c\">%s</th>", columns[i].kind, columns[i].name);
    }
    for (int r = 0; r < n; r++) {
        fputs("</tr>\n<tr>", f);
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            const column *k = &columns[i];
            if (!has[i]) continue;
            fprintf(f, "<td class=\"%c\">", k->kind);
            if (present(&rows[r], k) && k->kind == 't') page_text(f, text_of(&rows[r], k));
            if (present(&rows[r], k) && k->kind == 'i') fprintf(f, "%lld", (long long)int_of(&rows[r], k));
            if (present(&rows[r], k) && k->kind == 'n') fprintf(f, "%.4g", number_of(&rows[r], k));
            fputs("</td>", f);
        }
    }
    fputs("</tr></table></div></section>\n", f);
}

static void page_rows(cli *c, const char *path, const char *command, const char *note, const ceiling *m, const bench_row *rows,
                      int n) {
    char *title = cli_format("tenon %s", command);
    FILE *f = page_begin(c, path, title);
    free(title);
    fputs("<p>", f);
    ceiling_print(f, m);
    fputs("</p><p>", f);
    if (note) page_text(f, note);
    fputs("</p></header>\n", f);
    page_table(f, rows, n);
    cli_close(c, f, path);
    cli_note(c, "page written to %s: open it in a browser", path);
}

static void add_plot(cli *c, const char *path, const plot *p) {
    FILE *f = fopen(path, "a");
    if (!f) cli_fail(c, "cannot write %s", path);
    page_plot(
        f,
        "Each line is a variant, and both axes are logarithmic, so that equal distances are equal factors. Lower is faster "
        "where the axis is a time, higher where it is a rate.",
        p);
    cli_close(c, f, path);
}

void rows_report(cli *c, const char *command, const char *note, const ceiling *m, const rivals *rival, const bench_row *rows,
                 int n) {
    if (c->json) {
        json j = json_begin(stdout, command);
        ceiling_json(&j, m);
        json_text(&j, "mallocs_counted", mallocs_method());
        if (note) json_text(&j, "note", note);
        rivals_json(&j, rival);
        json_array(&j, "rows");
        for (int i = 0; i < n; i++) row_json(&j, &rows[i]);
        json_end(&j);
        json_finish(&j);
    } else {
        ceiling_print(stdout, m);
        rivals_print(stdout, rival);
        if (note) printf("%s\n", note);
        print_table(c, rows, n);
    }
    const char *csv = cli_text(c, "csv", NULL);
    if (csv) rows_csv(c, csv, rows, n);
    const char *html = cli_text(c, "html", NULL);
    if (html) page_rows(c, html, command, note, m, rows, n);
}

enum { MAX_LINES = 32 };
typedef struct plotted { /* lines of a panel so far, with room for `room` points each */
    plot_line line[MAX_LINES];
    double *x, *y;
    int n, room;
} plotted;

static void add_point(plotted *p, const char *name, double x, double y) {
    int k = 0;
    while (k < p->n && strcmp(p->line[k].label, name)) k++;
    if (k == MAX_LINES) return; /* more lines than colours can tell apart */
    if (k == p->n) {
        size_t from = (size_t)k * (size_t)p->room;
        p->line[p->n++] = (plot_line){ cli_format("%s", name), p->x + from, p->y + from, 0 };
    }
    int at = k * p->room + p->line[k].n++;
    p->x[at] = x;
    p->y[at] = y;
}

static bool has_point(const plotted *p, double x, double y) {
    for (int k = 0; k < p->n; k++) {
        for (int i = 0; i < p->line[k].n; i++) {
            if (fabs(p->line[k].x[i] - x) <= 0 && fabs(p->line[k].y[i] - y) <= 0) return true;
        }
    }
    return false;
}

/* The row as the fastest rival would have it. */
static bench_row of_rival(const bench_row *r) {
    bench_row fast = *r;
    fast.median_us = r->median_us * r->rival_ratio;
    if (r->gflops > 0) fast.gflops = r->gflops / r->rival_ratio;
    if (r->gbs > 0) fast.gbs = r->gbs / r->rival_ratio;
    return fast;
}

static void plot_rows(plotted *p, const chart *k, const chart_panel *panel, const bench_row *rows, int n) {
    size_t room = sizeof(double) * (size_t)n * MAX_LINES;
    *p = (plotted){ .x = cli_alloc(room), .y = cli_alloc(room), .room = n };
    for (int i = 0; i < n; i++) {
        char buffer[96], rival[128];
        const char *name = panel->line_of(&rows[i], buffer, sizeof buffer);
        double x = k->x_of(&rows[i]), y = panel->y_of(&rows[i]);
        if (!name || !(y > 0)) continue;
        add_point(p, name, x, y);
        if (!(rows[i].rival_ratio > 0)) continue;
        bench_row fast = of_rival(&rows[i]);
        snprintf(rival, sizeof rival, "%s: fastest rival", name);
        if (!has_point(p, k->x_of(&fast), panel->y_of(&fast)))
            add_point(p, rival, k->x_of(&fast), panel->y_of(&fast)); /* once for all modes */
    }
}

void rows_plot(cli *c, const chart *k, const bench_row *rows, int n) {
    const char *svg = cli_text(c, "svg", cli_text(c, "plot", NULL)), *html = cli_text(c, "html", NULL);
    if ((!svg && !html) || !n) return;
    plotted *panels = cli_alloc(sizeof *panels * PLOT_PANELS);
    plot p = {
        .title = k->title, .note = k->note, .x_label = k->x_label, .bytes = k->bytes, .mark = k->mark, .n_marks = k->n_marks
    };
    for (int i = 0; i < PLOT_PANELS && k->panel[i].line_of; i++) {
        plot_rows(&panels[i], k, &k->panel[i], rows, n);
        if (!panels[i].n && i) continue; /* --cases left nothing for it */
        if (p.n_panels && !p.panel[0].n) p.n_panels = 0;
        p.panel[p.n_panels++] = (plot_panel){ k->panel[i].y_label, panels[i].line, panels[i].n };
    }
    if (svg) plot_svg(c, svg, &p);
    if (html) add_plot(c, html, &p);
    for (int i = 0; i < PLOT_PANELS; i++) {
        for (int l = 0; l < panels[i].n; l++) free((char *)panels[i].line[l].label);
        free(panels[i].x);
        free(panels[i].y);
    }
    free(panels);
}
