/* report.h - one offline page that explains a program: the text of cli/report.html and cli/report.js, which the build puts into
 * the program `tenon`, with the data of this program in it. */
#ifndef TENON_CLI_REPORT_H
#define TENON_CLI_REPORT_H

#include "cli.h"

extern const unsigned char report_page[]; /* terminated; "@data@" stands where the data belongs */

void report_write(cli *c, const char *path, const tn_compile_opts *o); /* of the graph of the command line */

/* cmd_text.c: a program whose texts are wanted: where the device is none of this machine, for a GPU as most are. */
tn_program *text_program(cli *c, tn_graph *g, const tn_compile_opts *o);

#endif
