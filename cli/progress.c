/* progress.c - a progress line on stderr: a bar on a terminal, plain lines elsewhere. */
#include "cli.h"

#include <string.h>
#include <unistd.h>

progress progress_begin(const cli *c, const char *label, int64_t total) {
    return (progress){ .on = c->progress && !c->quiet && total > 0,
                       .tty = isatty(STDERR_FILENO),
                       .label = label,
                       .total = total,
                       .shown = -1,
                       .started = cli_seconds() };
}

void progress_step(progress *p, int64_t done, const char *what) {
    if (!p->on) return;
    if (!p->tty) { /* a log file: one line a piece of work */
        fprintf(stderr, "%s: %lld/%lld %s\n", p->label, (long long)done, (long long)p->total, what ? what : "");
        return;
    }
    enum { width = 30 };
    int fill = (int)(done * width / p->total);
    double passed = cli_seconds() - p->started;
    fprintf(stderr, "\r\033[K%s [", p->label);
    for (int i = 0; i < width; i++) fputc(i < fill ? '#' : '.', stderr);
    fprintf(stderr, "] %lld/%lld %.0fs %.40s", (long long)done, (long long)p->total, passed, what ? what : "");
    fflush(stderr);
    p->shown = fill;
}

void progress_end(progress *p) {
    if (p->on && p->tty && p->shown >= 0) fprintf(stderr, "\r\033[K");
    p->on = false;
}
