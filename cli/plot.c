/* plot.c - a log-log line plot as one SVG file: decades as grid lines, one colour and marker a line, the legend beside the
 * plot. */
#include "bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 980, HEIGHT = 520, LEFT = 80, RIGHT = 330, TOP = 50, BOTTOM = 60, CHAR_WIDTH = 7 /* of font size 12 */ };

/* Okabe and Ito's palette: told apart with colour-blind eyes too. */
static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a00" };

typedef struct axis {
    double lo, hi;   /* log10 */
    double from, to; /* pixels */
} axis;

static double place(const axis *a, double v) { return a->from + (log10(v) - a->lo) / (a->hi - a->lo) * (a->to - a->from); }

static void escaped(FILE *f, const char *s) {
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else
            fputc(*s, f);
    }
}

static void text_at(FILE *f, double x, double y, const char *anchor, const char *more, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, more);
    escaped(f, text);
    fputs("</text>\n", f);
}

/* Smallest and largest positive value of one coordinate, widened by 8 % so that no point sits on the frame. */
static axis fit(const plot_line *lines, int n, bool vertical, double from, double to) {
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < lines[i].n; k++) {
            double v = vertical ? lines[i].y[k] : lines[i].x[k];
            if (!(v > 0) || !isfinite(v)) continue;
            lo = fmin(lo, log10(v));
            hi = fmax(hi, log10(v));
        }
    }
    if (!(lo <= hi)) lo = 0, hi = 1;
    double slack = fmax((hi - lo) * 0.08, 0.1);
    return (axis){ lo - slack, hi + slack, from, to };
}

/* 1, 2, 5 of each decade of the ordinate: grid line and label. */
static void grid(FILE *f, const axis *a) {
    static const double steps[] = { 1, 2, 5 };
    bool crowded = a->hi - a->lo > 3;
    for (int e = (int)floor(a->lo); e <= (int)ceil(a->hi); e++) {
        for (size_t i = 0; i < COUNT_OF(steps); i++) {
            double v = steps[i] * pow(10, e), at = place(a, v);
            if (log10(v) < a->lo || log10(v) > a->hi || (crowded && i)) continue;
            char label[32];
            snprintf(label, sizeof label, "%g", v);
            fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", LEFT, WIDTH - RIGHT, at, at,
                    i ? "#eee" : "#ccc");
            text_at(f, LEFT - 8, at + 4, "end", "", label);
        }
    }
}

/* The abscissas themselves: sizes and depths are few, and rarely 1, 2, 5. */
static void ticks(FILE *f, const axis *a, const plot_line *lines, int n) {
    double last = -INFINITY, right = -INFINITY; /* where the last label ends */
    for (;;) {
        double next = INFINITY;
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < lines[i].n; k++) {
                if (lines[i].x[k] > last && lines[i].x[k] > 0) next = fmin(next, lines[i].x[k]);
            }
        }
        if (!isfinite(next)) return;
        double at = place(a, next);
        last = next;
        fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>\n", at, at, TOP, HEIGHT - BOTTOM);
        char label[32];
        double half = CHAR_WIDTH * snprintf(label, sizeof label, "%.10g", next) / 2.0;
        if (at - half < right + CHAR_WIDTH) continue;
        text_at(f, at, HEIGHT - BOTTOM + 18, "middle", "", label);
        right = at + half;
    }
}

static void draw_line(FILE *f, const plot_line *l, const axis *ax, const axis *ay, int index) {
    const char *color = colors[(size_t)index % COUNT_OF(colors)];
    const char *dash = (size_t)index >= COUNT_OF(colors) ? " stroke-dasharray=\"6 4\"" : "";
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", color, dash);
    for (int k = 0; k < l->n; k++) {
        if (l->x[k] > 0 && l->y[k] > 0) fprintf(f, "%.1f,%.1f ", place(ax, l->x[k]), place(ay, l->y[k]));
    }
    fputs("\"/>\n", f);
    for (int k = 0; k < l->n; k++) {
        if (l->x[k] > 0 && l->y[k] > 0)
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", place(ax, l->x[k]), place(ay, l->y[k]),
                    color);
    }
    double y = TOP + 12 + 20.0 * index, x = WIDTH - RIGHT + 16;
    fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", x, x + 24, y - 4,
            y - 4, color, dash);
    text_at(f, x + 32, y, "start", "", l->label);
}

void plot_svg(cli *c, const char *path, const char *title, const char *x_label, const char *y_label, const plot_line *lines,
              int n) {
    FILE *f = cli_create(c, path);
    axis ax = fit(lines, n, false, LEFT, WIDTH - RIGHT), ay = fit(lines, n, true, HEIGHT - BOTTOM, TOP);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", WIDTH, HEIGHT);
    text_at(f, LEFT, TOP - 20, "start", "font-size=\"15\" font-weight=\"bold\"", title);
    ticks(f, &ax, lines, n);
    grid(f, &ay);
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP,
            WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    text_at(f, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16, "middle", "", x_label);
    char turn[96];
    snprintf(turn, sizeof turn, "transform=\"rotate(-90 20 %d)\"", (TOP + HEIGHT - BOTTOM) / 2);
    text_at(f, 20, (TOP + HEIGHT - BOTTOM) / 2.0, "middle", turn, y_label);
    for (int i = 0; i < n; i++) draw_line(f, &lines[i], &ax, &ay, i);
    fputs("</svg>\n", f);
    cli_close(c, f, path);
    cli_note(c, "plot written to %s", path);
}
