/* cmd_cache.c - `tenon cache`: what the kernel cache holds, and making it smaller. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void print_time(const char *label, int64_t seconds) {
    time_t t = (time_t)seconds;
    struct tm local;
    char text[64];
    if (seconds && localtime_r(&t, &local) && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local))
        printf("%-12s %s\n", label, text);
}

static int stats(cli *c) {
    tn_cache_stats s;
    cli_need(c, tn_cache_get_stats(cli_ctx(c), &s));
    if (c->json) {
        json j = json_begin(stdout, "cache stats");
        json_text(&j, "dir", s.dir);
        json_int(&j, "files", (int64_t)s.files);
        json_int(&j, "bytes", (int64_t)s.bytes);
        json_int(&j, "limit", (int64_t)s.limit);
        json_int(&j, "unfinished", (int64_t)s.unfinished);
        json_int(&j, "oldest", s.oldest);
        json_int(&j, "newest", s.newest);
        json_int(&j, "tuned", (int64_t)s.tuned);
        json_finish(&j);
        return CLI_OK;
    }
    if (!s.dir) {
        printf("no cache directory (set TENON_CACHE_DIR)\n");
        return CLI_OK;
    }
    printf("%-12s %s\n%-12s %llu\n%-12s %.1f MiB of %.0f MiB\n%-12s %llu\n", "directory", s.dir, "files",
           (unsigned long long)s.files, "size", (double)s.bytes / 1048576, (double)s.limit / 1048576, "unfinished",
           (unsigned long long)s.unfinished);
    printf("%-12s %llu kernels\n", "tuning", (unsigned long long)s.tuned);
    print_time("oldest use", s.oldest);
    print_time("newest use", s.newest);
    return CLI_OK;
}

/* "0", "1048576" or "64M". */
static uint64_t parse_bytes(const cli *c, const char *text) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (*text < '0' || *text > '9' || *end || errno || v > UINT64_MAX >> shift)
        cli_usage(c, "--max-bytes: '%s' is no size such as 64M", text);
    return (uint64_t)v << shift;
}

static int prune_tuning(cli *c) {
    uint64_t entries;
    cli_need(c, tn_cache_prune_tuning(cli_ctx(c), &entries));
    if (!c->json) {
        printf("%llu entries of the tuning database removed\n", (unsigned long long)entries);
        return CLI_OK;
    }
    json j = json_begin(stdout, "cache prune");
    json_int(&j, "removed_entries", (int64_t)entries);
    json_finish(&j);
    return CLI_OK;
}

static int prune(cli *c) {
    if (cli_flag(c, "tuning")) return prune_tuning(c);
    uint64_t files, bytes, limit = parse_bytes(c, cli_text(c, "max-bytes", "0"));
    cli_need(c, tn_cache_prune(cli_ctx(c), limit, &files, &bytes));
    if (!c->json) {
        printf("%llu files removed, %.1f MiB\n", (unsigned long long)files, (double)bytes / 1048576);
        return CLI_OK;
    }
    json j = json_begin(stdout, "cache prune");
    json_int(&j, "removed_files", (int64_t)files);
    json_int(&j, "removed_bytes", (int64_t)bytes);
    json_finish(&j);
    return CLI_OK;
}

static int run(cli *c) {
    if (!strcmp(c->args[0], "stats")) return stats(c);
    if (!strcmp(c->args[0], "prune")) return prune(c);
    cli_usage(c, "cache knows stats and prune, not %s", c->args[0]);
}

static const cli_option options[] = {
    { "max-bytes", 0, "SIZE",
      "prune: leave at most this much, least recently used out first, such as 64M (default 0 = remove all)" },
    { "tuning", 0, NULL, "prune: forget what `tenon tune` found, and keep the kernels" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_cache = {
    "cache",
    "stats|prune",
    "show or shrink the on-disk cache of kernels and programs",
    "Compiled kernels and programs of ONNX models are kept in TENON_CACHE_DIR (else XDG_CACHE_HOME/tenon, else "
    "~/.cache/tenon), at most TENON_CACHE_BYTES "
    "of them.\n"
    "Pruning is safe while other processes use the cache.\n\n"
    "examples:\n"
    "  tenon cache stats\n"
    "  tenon cache prune --max-bytes=64M",
    1,
    1,
    options,
    run,
};
