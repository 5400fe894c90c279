/* options.c - typed reading of options, messages, the context: what every subcommand starts with. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *cli_bold(const cli *c) { return c->color_out ? "\033[1m" : ""; }
const char *cli_plain(const cli *c) { return c->color_out ? "\033[0m" : ""; }

static void message(const cli *c, const char *kind, const char *color, const char *fmt, va_list ap) {
    fflush(stdout);
    fprintf(stderr, "tenon%s%s: %s%s%s", c->command ? " " : "", c->command ? c->command->name : "", c->color_err ? color : "",
            kind, c->color_err ? "\033[0m" : "");
    char *text = NULL;
    if (vasprintf(&text, fmt, ap) >= 0) cli_show(stderr, text);
    free(text);
    fputc('\n', stderr);
}

void cli_note(const cli *c, const char *fmt, ...) {
    if (c->quiet) return;
    va_list ap;
    va_start(ap, fmt);
    message(c, "", "", fmt, ap);
    va_end(ap);
}

void cli_usage(const cli *c, const char *fmt, ...) {
    if (fmt) { /* getopt_long has said its own already */
        va_list ap;
        va_start(ap, fmt);
        message(c, "error: ", "\033[31m", fmt, ap);
        va_end(ap);
    }
    fprintf(stderr, "try: tenon %s%s--help\n", c->command ? c->command->name : "", c->command ? " " : "");
    exit(CLI_USAGE);
}

void cli_fail(const cli *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    message(c, "error: ", "\033[31m", fmt, ap);
    va_end(ap);
    exit(CLI_FAILED);
}

void cli_need(cli *c, tn_status s) {
    if (s != TN_OK) cli_fail(c, "%s: %s", tn_status_name(s), tn_ctx_error(c->ctx));
}

static const char *const log_names[] = { "error", "warning", "info", "debug" };
void cli_log_level(cli *c) {
    const char *given = getenv("TENON_LOG");
    c->log_level = c->quiet ? TN_LOG_ERROR : c->verbose ? TN_LOG_DEBUG : TN_LOG_WARN;
    if (!given || !given[0] || c->quiet || c->verbose) return;
    for (int i = 0; i < (int)COUNT_OF(log_names); i++)
        if (!strcmp(given, log_names[i])) {
            c->log_level = i;
            return;
        }
    cli_usage(c, "TENON_LOG: there is no level %s (error, warning, info, debug)", given);
}

static void log_line(void *ud, tn_log_level level, const char *text) {
    const cli *c = ud;
    if ((int)level > c->log_level) return;
    char *line = cli_format("tenon: %s: %s\n", log_names[level], text);
    cli_show(stderr, line);
    free(line);
}

tn_ctx *cli_ctx(cli *c) {
    if (c->ctx) return c->ctx;
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    const char *bytes = getenv("TENON_CACHE_BYTES"); /* what is no size is the default to the library, which cannot complain */
    if (bytes && bytes[0] && strcmp(bytes, "0") != 0 && !cfg.cache_bytes)
        cli_usage(c, "TENON_CACHE_BYTES: '%s' is no size such as 64M", bytes);
    cfg.log = log_line;
    cfg.log_ud = c;
    c->ctx = tn_ctx_new(&cfg);
    if (!c->ctx) cli_fail(c, "out of memory");
    return c->ctx;
}

bool cli_flag(const cli *c, const char *name) { return cli_text(c, name, NULL) != NULL; }

const char *cli_text(const cli *c, const char *name, const char *fallback) {
    for (int i = c->n_given; i-- > 0;) {
        if (!strcmp(c->given[i].name, name)) return c->given[i].value;
    }
    return fallback;
}

const char *cli_next(const cli *c, const char *name, int *at) {
    while (*at < c->n_given) {
        const cli_given *g = &c->given[(*at)++];
        if (!strcmp(g->name, name)) return g->value;
    }
    return NULL;
}

/* A whole number that ends at `*end`; the caller looks at what follows. */
static int64_t whole(const cli *c, const char *name, const char *text, char **end, int64_t lo, int64_t hi) {
    errno = 0;
    long long v = strtoll(text, end, 10);
    if (*end == text) cli_usage(c, "--%s: '%s' is no whole number", name, text);
    if (errno || v < lo || v > hi)
        cli_usage(c, "--%s: %.*s is outside %lld..%lld", name, (int)(*end - text), text, (long long)lo, (long long)hi);
    return v;
}

bool cli_next_dim(cli *c, int *at, cli_dim *out) {
    const char *text = cli_next(c, "dim", at), *eq = text ? strchr(text, '=') : NULL;
    char *end = NULL;
    if (!text) return false;
    *out = (cli_dim){ .lo = eq ? strtoll(eq + 1, &end, 10) : -1, .multiple_of = 1 };
    bool ok = eq && eq > text && end > eq + 1 && out->lo >= 0;
    out->hi = out->lo;
    if (ok && !strncmp(end, "..", 2)) {
        const char *from = end + 2;
        out->is_range = true;
        out->hi = strtoll(from, &end, 10);
        ok = end > from;
        if (ok && *end == ':') from = end + 1, out->multiple_of = strtoll(from, &end, 10), ok = end > from;
    }
    if (!ok || *end) cli_usage(c, "--dim %s: expected NAME=SIZE or NAME=LO..HI[:MULTIPLE]", text);
    out->name = cli_format("%.*s", (int)(eq - text), text);
    return true;
}

/* As an import names it in a graph: x[0] is x_0_ there. */
bool cli_same_dim(const char *x, const char *y) {
    for (; *x && *y; x++, y++) {
        char a = isalnum((unsigned char)*x) ? *x : '_', b = isalnum((unsigned char)*y) ? *y : '_';
        if (a != b) return false;
    }
    return !*x && !*y;
}

int64_t cli_int(const cli *c, const char *name, int64_t fallback, int64_t lo, int64_t hi) {
    const char *text = cli_text(c, name, NULL);
    if (!text) return fallback;
    char *end;
    int64_t v = whole(c, name, text, &end, lo, hi);
    if (*end) cli_usage(c, "--%s: '%s' is no whole number", name, text);
    return v;
}

double cli_number(const cli *c, const char *name, double fallback, double lo, double hi) {
    const char *text = cli_text(c, name, NULL);
    if (!text) return fallback;
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end) cli_usage(c, "--%s: '%s' is no number", name, text);
    if (!(v >= lo && v <= hi)) cli_usage(c, "--%s: %s is outside %g..%g", name, text, lo, hi);
    return v;
}

int cli_ints(const cli *c, const char *name, const char *fallback, int64_t *out, int cap, int64_t lo, int64_t hi) {
    const char *text = cli_text(c, name, fallback), *s = text;
    int n = 0;
    for (;;) {
        char *end;
        int64_t first = whole(c, name, s, &end, lo, hi), last = first, step = 1;
        char how = '+';
        if (*end == '-') {
            last = whole(c, name, end + 1, &end, lo, hi);
            if (*end == '+' || *end == '*') {
                how = *end;
                step = whole(c, name, end + 1, &end, 1, hi);
            }
            if (how == '*' && (step < 2 || first < 1)) cli_usage(c, "--%s: '%s' never ends", name, text);
        }
        for (int64_t v = first; v <= last; v = how == '*' ? v * step : v + step) {
            if (n == cap) cli_usage(c, "--%s: more than %d values", name, cap);
            out[n++] = v;
        }
        if (!*end) return n;
        if (*end != ',') cli_usage(c, "--%s: '%s' is no list such as 4,16 or 4-256*2", name, text);
        s = end + 1;
    }
}

int cli_words(const cli *c, const char *text, char **out, int cap) {
    int n = 0;
    for (const char *s = text;;) {
        size_t len = strcspn(s, ",");
        if (!len) cli_usage(c, "'%s' has an empty word", text);
        if (n == cap) cli_usage(c, "'%s' has more than %d words", text, cap);
        out[n++] = cli_format("%.*s", (int)len, s);
        if (!s[len]) return n;
        s += len + 1;
    }
}

static const char *const mode_names[] = { "immediate", "graph", "compiled", "loop" };
const char *cli_mode_name(tn_mode m) { return mode_names[m]; }

tn_mode cli_mode(const cli *c, const char *word) {
    for (size_t i = 0; i < COUNT_OF(mode_names); i++) {
        if (!strcmp(mode_names[i], word)) return (tn_mode)i;
    }
    cli_usage(c, "there is no mode %s (immediate, graph, compiled, loop)", word);
}

const char *cli_device(const cli *c) {
    const char *word = cli_text(c, "device", "cpu");
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < tn_device_count(); i++) {
        if (!strcmp(tn_device_name(i), word)) return word;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", tn_device_name(i));
        if (used >= sizeof known) used = sizeof known - 1;
    }
    if (!strcmp(word, "auto")) return word;
    cli_usage(c, "there is no device %s (%sauto)", word, known);
}

tn_compile_opts cli_compile_opts(const cli *c) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = cli_mode(c, cli_text(c, "mode", "compiled"));
    o.fusion = (int)cli_int(c, "fusion", -1, -1, 3);
    o.threads = (int)cli_int(c, "threads", 0, 0, 1024);
    o.no_cache = cli_flag(c, "no-cache");
    o.no_passes = cli_flag(c, "no-passes");
    o.check = cli_flag(c, "check");
    o.memory_limit = (uint64_t)cli_int(c, "memory-limit", 0, 0, INT32_MAX) << 20;
    o.device = cli_device(c);
    o.schedule = c->schedule;
    return o;
}

void *cli_alloc(size_t n) {
    size_t rounded = (n + 63) / 64 * 64 + 64; /* one more line: whole-vector reads of a tail stay inside */
    void *p = rounded > n ? aligned_alloc(64, rounded) : NULL;
    if (!p) {
        fprintf(stderr, "tenon: error: out of memory for %zu bytes\n", n);
        exit(CLI_FAILED);
    }
    return memset(p, 0, rounded);
}

char *cli_format(const char *fmt, ...) {
    va_list ap;
    char *s = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n >= 0) return s;
    fprintf(stderr, "tenon: error: out of memory\n");
    exit(CLI_FAILED);
}

FILE *cli_create(const cli *c, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) cli_fail(c, "cannot write %s: %s", path, strerror(errno));
    return f;
}

void cli_close(const cli *c, FILE *f, const char *path) {
    bool lost = ferror(f); /* earlier, when a full buffer was written: closing would not say so */
    if (fclose(f) || lost) cli_fail(c, "cannot write %s: %s", path, strerror(errno));
}

char *cli_read_file(const cli *c, const char *path, size_t *out_n) {
    bool standard = !strcmp(path, "-");
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) cli_fail(c, "cannot open %s: %s", path, strerror(errno));
    enum { MOST = 256 << 20 }; /* a device may never end */
    size_t n = 0, cap = 1 << 16;
    char *text = malloc(cap);
    while (text) {
        size_t got = fread(text + n, 1, cap - n - 1, f);
        n += got;
        if (!got) break;
        if (n > MOST) cli_fail(c, "%s has more than %d bytes; large arrays belong into safetensors (--state)", path, MOST);
        if (cap - n < 2) {
            char *more = realloc(text, cap *= 2);
            if (!more) free(text);
            text = more;
        }
    }
    if (!text) cli_fail(c, "out of memory while reading %s", path);
    if (ferror(f)) cli_fail(c, "cannot read %s: %s", path, strerror(errno));
    if (!standard) fclose(f);
    text[n] = 0;
    *out_n = n;
    return text;
}

double cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
