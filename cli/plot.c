/* plot.c - log-log line plots as one SVG file: decades as grid lines, one colour and marker a line, the legend beside the plot.
 * Panels with ordinates of their own lie below each other over one abscissa; marks go through all of them. */
#include "plot.h"

#include <math.h>
#include <string.h>

enum {
    PLOT_RIGHT = 650, /* the frame's right side; the legend's width follows its longest text */
    LEAST_WIDTH = 980,
    LEFT = 80,
    TOP = 60,
    BOTTOM = 60,
    GAP = 30,       /* between panels */
    TALL = 400,     /* a panel by itself */
    SHORT = 270,    /* one of several */
    CHAR_WIDTH = 7, /* of font size 12 */
    LEGEND_LINE = 20,
    MANY_POINTS = 40 /* a line of so many needs no circles */
};

/* Okabe and Ito's palette: told apart with colour-blind eyes too. */
static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a00" };

/* Lines of a legend with more entries than colours differ by dashes. */
static const char *const dashes[] = { "", " stroke-dasharray=\"6 4\"", " stroke-dasharray=\"2 3\"",
                                      " stroke-dasharray=\"9 3 2 3\"" };

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
static axis fit(const plot_panel *panels, int n, bool vertical, double from, double to) {
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++) {
        for (int l = 0; l < panels[i].n; l++) {
            const plot_line *line = &panels[i].line[l];
            for (int k = 0; k < line->n; k++) {
                double v = vertical ? line->y[k] : line->x[k];
                if (!(v > 0) || !isfinite(v)) continue;
                lo = fmin(lo, log10(v));
                hi = fmax(hi, log10(v));
            }
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
            fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", LEFT, PLOT_RIGHT, at, at,
                    i ? "#eee" : "#ccc");
            text_at(f, LEFT - 8, at + 4, "end", "", label);
        }
    }
}

static int bytes_text(double bytes, char *out, size_t n) {
    static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
    size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < COUNT_OF(units); unit++) bytes /= 1024;
    return snprintf(out, n, "%.3g %s", bytes, units[unit]);
}

/* The abscissa behind `last` that has a grid line: powers of two of bytes; else the abscissas themselves, because sizes and
 * depths are few, and rarely 1, 2, 5. */
static double next_tick(const plot *p, const axis *a, double last) {
    double next = INFINITY;
    if (p->bytes) {
        double first = exp2(ceil(a->lo / log10(2)));
        next = last > 0 ? 2 * last : first;
        return log10(next) <= a->hi ? next : INFINITY;
    }
    if (p->decades) {
        static const double steps[] = { 1, 2, 5, 10 };
        double decade = pow(10, floor(last > 0 ? log10(last * (1 + 1e-9)) : a->lo));
        for (size_t i = 0; i < COUNT_OF(steps) && isinf(next); i++)
            if (decade * steps[i] > last * (1 + 1e-9) && log10(decade * steps[i]) >= a->lo) next = decade * steps[i];
        if (isinf(next)) next = 10 * decade;
        return log10(next) <= a->hi ? next : INFINITY;
    }
    for (int i = 0; i < p->n_panels; i++) {
        for (int l = 0; l < p->panel[i].n; l++) {
            const plot_line *line = &p->panel[i].line[l];
            for (int k = 0; k < line->n; k++)
                if (line->x[k] > last && line->x[k] > 0) next = fmin(next, line->x[k]);
        }
    }
    return next;
}

static void ticks(FILE *f, const plot *p, const axis *a, double bottom) {
    double last = -INFINITY, right = -INFINITY; /* where the last label ends */
    while (isfinite(last = next_tick(p, a, last))) {
        double at = place(a, last);
        fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.0f\" stroke=\"#ddd\"/>\n", at, at, TOP, bottom);
        char label[32];
        int n = p->bytes ? bytes_text(last, label, sizeof label) : snprintf(label, sizeof label, "%.10g", last);
        double half = CHAR_WIDTH * n / 2.0;
        if (at - half < right + CHAR_WIDTH) continue;
        text_at(f, at, bottom + 18, "middle", "", label);
        right = at + half;
    }
}

/* Vertical lines. The words of a mark stand along it, from `top` on: of a measured one first, of the others lower, because both
 * often lie at the same place. */
static void draw_marks(FILE *f, const plot *p, const axis *a, double top, double bottom) {
    for (int i = 0; i < p->n_marks; i++) {
        const plot_mark *m = &p->mark[i];
        if (!(m->x > 0) || log10(m->x) < a->lo || log10(m->x) > a->hi) continue;
        double at = place(a, m->x), y = m->told ? top + 120 : top + 6;
        char text[64], more[160];
        int n = snprintf(text, sizeof text, "%s ", m->label);
        bytes_text(m->x, text + n, sizeof text - (size_t)n);
        fprintf(f,
                "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.0f\" stroke=\"#333\" stroke-width=\"%s\"%s/>\n",
                at, at, TOP, bottom, m->told ? "1" : "1.5", m->told ? dashes[2] : "");
        snprintf(
            more, sizeof more,
            "transform=\"rotate(-90 %.1f %.1f)\" font-size=\"11\" stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\"",
            at - 4, y);
        text_at(f, at - 4, y, "end", more, text);
    }
}

static void legend_entry(FILE *f, double y, const char *color, const char *width, const char *dash, const char *label) {
    double x = PLOT_RIGHT + 16;
    fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%s\"%s/>\n", x, x + 24,
            y - 4, y - 4, color, width, dash);
    text_at(f, x + 32, y, "start", "", label);
}

static void draw_line(FILE *f, const plot_line *l, const axis *ax, const axis *ay, int index, double legend_y) {
    const char *color = colors[(size_t)index % COUNT_OF(colors)];
    const char *dash = dashes[(size_t)index / COUNT_OF(colors) % COUNT_OF(dashes)];
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", color, dash);
    for (int k = 0; k < l->n; k++) {
        if (l->x[k] > 0 && l->y[k] > 0) fprintf(f, "%.1f,%.1f ", place(ax, l->x[k]), place(ay, l->y[k]));
    }
    fputs("\"/>\n", f);
    for (int k = 0; k < l->n && l->n < MANY_POINTS; k++) {
        if (l->x[k] > 0 && l->y[k] > 0)
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", place(ax, l->x[k]), place(ay, l->y[k]),
                    color);
    }
    legend_entry(f, legend_y, color, "2", dash, l->label);
}

static bool any_mark(const plot *p, bool told) {
    for (int i = 0; i < p->n_marks; i++)
        if (p->mark[i].told == told && p->mark[i].x > 0) return true;
    return false;
}

/* Frame, grid and lines of one panel; its legend beside it. Returns where the legend ends. */
static double draw_panel(FILE *f, const plot *p, int which, const axis *ax, double top, double bottom) {
    const plot_panel *panel = &p->panel[which];
    axis ay = fit(panel, 1, true, bottom, top);
    grid(f, &ay);
    fprintf(f, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%.0f\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, top,
            PLOT_RIGHT - LEFT, bottom - top);
    char turn[96];
    double middle = (top + bottom) / 2, y = top + 12;
    snprintf(turn, sizeof turn, "transform=\"rotate(-90 20 %.0f)\"", middle);
    text_at(f, 20, middle, "middle", turn, panel->y_label);
    for (int i = 0; i < panel->n; i++, y += LEGEND_LINE) draw_line(f, &panel->line[i], ax, &ay, i, y);
    return y;
}

static double panel_height(const plot *p, int which) {
    double height = p->n_panels > 1 ? SHORT : TALL, legend = LEGEND_LINE * (p->panel[which].n + (p->n_marks ? 3 : 1));
    return fmax(height, legend);
}

static int width_of(const plot *p) {
    int width = p->note ? LEFT + CHAR_WIDTH * (int)strlen(p->note) : 0;
    for (int i = 0; i < p->n_panels; i++) {
        for (int l = 0; l < p->panel[i].n; l++) {
            int wide = PLOT_RIGHT + 60 + CHAR_WIDTH * (int)strlen(p->panel[i].line[l].label);
            if (wide > width) width = wide;
        }
    }
    return width > LEAST_WIDTH ? width : LEAST_WIDTH;
}

void plot_draw(FILE *f, const plot *p) {
    int width = width_of(p);
    double bottom = TOP - GAP, y = TOP;
    for (int i = 0; i < p->n_panels; i++) bottom += GAP + panel_height(p, i);
    axis ax = fit(p->panel, p->n_panels, false, LEFT, PLOT_RIGHT);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            width, bottom + BOTTOM, width, bottom + BOTTOM);
    fprintf(f, "<rect width=\"%d\" height=\"%.0f\" fill=\"white\"/>\n", width, bottom + BOTTOM);
    text_at(f, LEFT, TOP - 32, "start", "font-size=\"15\" font-weight=\"bold\"", p->title);
    if (p->note) text_at(f, LEFT, TOP - 13, "start", "font-size=\"11\" fill=\"#444\"", p->note);
    ticks(f, p, &ax, bottom);
    double legend = 0;
    for (int i = 0; i < p->n_panels; i++) {
        double height = panel_height(p, i);
        legend = draw_panel(f, p, i, &ax, y, y + height);
        y += height + GAP;
    }
    draw_marks(f, p, &ax, bottom - panel_height(p, p->n_panels - 1), bottom); /* the last panel has the fewest lines */
    if (any_mark(p, false)) legend_entry(f, legend, "#333", "1.5", "", "found by Tenon"), legend += LEGEND_LINE;
    if (any_mark(p, true)) legend_entry(f, legend, "#333", "1", dashes[2], "reported by the system");
    text_at(f, (LEFT + PLOT_RIGHT) / 2.0, bottom + 44, "middle", "", p->x_label);
    fputs("</svg>\n", f);
}

void plot_svg(cli *c, const char *path, const plot *p) {
    FILE *f = cli_create(c, path);
    plot_draw(f, p);
    cli_close(c, f, path);
    cli_note(c, "plot written to %s", path);
}
