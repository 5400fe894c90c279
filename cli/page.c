/* page.c - the head of pages with plots and tables, in the colours of the page of `tenon explain --html`. */
#include "page.h"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n"
    ":root { --bg: #fff; --text: #16202c; --soft: #566272; --line: #d4d9e0; }\n"
    "@media (prefers-color-scheme: dark) { :root { --bg: #12161c; --text: #e8edf3; --soft: #a7b3c0; --line: #3a4450; } }\n"
    "body { margin: 0 auto; max-width: 1240px; padding: 16px; display: flex; flex-direction: column; background: var(--bg);\n"
    "  color: var(--text); font: 15px/1.5 system-ui, \"DejaVu Sans\", sans-serif; }\n"
    "header { order: -2; } section.plot { order: -1; } p { color: var(--soft); max-width: 78ch; } .wide { overflow: auto; }\n"
    ".plot svg { max-width: 100%; min-width: 680px; height: auto; }\n"
    "table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: 3px 8px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }\n"
    "th { color: var(--soft); } .t { text-align: left; }\n</style>\n";

void page_text(FILE *f, const char *text) {
    for (; *text; text++) {
        if (*text == '<' || *text == '&')
            fputs(*text == '<' ? "&lt;" : "&amp;", f);
        else
            fputc(*text, f);
    }
}

FILE *page_begin(cli *c, const char *path, const char *title) {
    FILE *f = cli_create(c, path);
    fprintf(f, "%s<title>", head);
    page_text(f, title);
    fputs("</title>\n<header><h1>", f);
    page_text(f, title);
    fputs("</h1>", f);
    return f;
}

void page_plot(FILE *f, const char *what, const plot *p) {
    fprintf(f, "<section class=\"plot\"><h2>The picture</h2><p>%s</p><div class=\"wide\" tabindex=\"0\">\n", what);
    plot_draw(f, p);
    fputs("</div></section>\n", f);
}
