/* page.h - a page for a browser with plots and tables, in one file that asks for nothing: its head, text in it, a plot in it.
 */
#ifndef TENON_CLI_PAGE_H
#define TENON_CLI_PAGE_H

#include "cli.h"
#include "plot.h"

/* Creates the file; the page is in its header, behind the title. Sections follow "</header>"; cli_close ends it. A section of
 * the class `plot` comes before the others. */
FILE *page_begin(cli *c, const char *path, const char *title);
void page_text(FILE *f, const char *text);                /* as text, whatever is in it */
void page_plot(FILE *f, const char *what, const plot *p); /* a section; what: two sentences that say how to read it */

#endif
