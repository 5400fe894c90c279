/* plot.h - log-log line plots as SVG files. */
#ifndef TENON_CLI_PLOT_H
#define TENON_CLI_PLOT_H

#include "cli.h"

/* Panels lie below each other. */
enum { PLOT_PANELS = 2, PLOT_MARKS = 8 };
typedef struct plot_line {
    const char *label;
    const double *x, *y;
    int n;
} plot_line;
typedef struct plot_mark { /* a vertical line at x bytes; x <= 0: none */
    const char *label;
    double x;
    bool told; /* reported by the system, not measured */
} plot_mark;
typedef struct plot_panel {
    const char *y_label;
    const plot_line *line;
    int n;
} plot_panel;
typedef struct plot {
    const char *title, *note, *x_label; /* note: a line of small print below the title, or NULL */
    bool bytes;                         /* of the abscissa: powers of two, in KiB and MiB */
    bool decades;                       /* ticks of the abscissa at 1, 2, 5 of each decade, not where points are */
    plot_panel panel[PLOT_PANELS];
    const plot_mark *mark;
    int n_panels, n_marks;
} plot;
void plot_draw(FILE *f, const plot *p); /* one svg element */
void plot_svg(cli *c, const char *path, const plot *p);

#endif
