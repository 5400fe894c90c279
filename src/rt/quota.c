/* quota.c - implementation of quota.h.
 *
 * A group's limit holds for all groups in it, so each level above the process's own is read, too. In a container the group's
 * path may be that of the host, which the container does not see: there the levels that exist are read. */
#include "rt/quota.h"
#include "rt/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Reads the begin of a file as text; false where there is none. */
static bool read_text(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t n = 0;
    ssize_t got;
    while (n + 1 < size && (got = read(fd, out + n, size - 1 - n)) > 0) n += (size_t)got;
    close(fd);
    out[n] = 0;
    return n > 0;
}

/* The smaller of `least` and what time of period allows; 0 = no limit. */
static int limit(int least, const char *time, const char *period) {
    char *end;
    long long t = strtoll(time, &end, 10), p = strtoll(period, NULL, 10);
    if (end == time || t <= 0 || p <= 0) return least; /* "max", -1: none */
    long long n = t / p + (t % p != 0);
    return n < (least ? least : INT32_MAX) ? (int)n : least;
}

/* One level: the folder of a group. */
static int read_level(const char *folder, bool v2, int least) {
    char path[PATH_BYTES], time[64], period[64];
    if (v2) {
        if ((size_t)snprintf(path, sizeof path, "%s/cpu.max", folder) >= sizeof path) return least;
        if (!read_text(path, time, sizeof time)) return least;
        const char *space = strchr(time, ' ');
        return limit(least, time, space ? space + 1 : "100000");
    }
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder) >= sizeof path) return least;
    if (!read_text(path, time, sizeof time)) return least;
    snprintf(path + strlen(folder), sizeof path - strlen(folder), "/cpu.cfs_period_us");
    return read_text(path, period, sizeof period) ? limit(least, time, period) : least;
}

/* group: its path, from where the controller is mounted. */
static int read_levels(const char *root, const char *mount, const char *block_threads, bool v2, int least) {
    char folder[PATH_BYTES - 32]; /* room for a file's name */
    int top = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, mount);
    if (top < 0 || (size_t)top + strlen(block_threads) >= sizeof folder) return least;
    strcpy(folder + top, block_threads);
    for (;;) {
        least = read_level(folder, v2, least);
        char *slash = strrchr(folder + top, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !memcmp(at, word, n)) return true;
    return false;
}

/* A line of /proc/self/cgroup, number:controllers:path, without its end. */
static int read_line(const char *root, char *line, int least) {
    char *controllers = strchr(line, ':'), *block_threads = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!block_threads) return least;
    *block_threads++ = 0;
    if (!*++controllers) return read_levels(root, "", block_threads, true, least);
    return has_word(controllers, "cpu") ? read_levels(root, "/cpu", block_threads, false, least) : least;
}

int quota_cpus(const char *root) {
    char text[PATH_BYTES]; /* the lines are read by and by: stacks may be small */
    int least = 0;
    if ((size_t)snprintf(text, sizeof text, "%s/proc/self/cgroup", root) >= sizeof text) return 0;
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t n = 0;
    for (ssize_t got = 1; got > 0;) {
        got = read(fd, text + n, sizeof text - 1 - n);
        n += got > 0 ? (size_t)got : 0;
        text[n] = 0;
        char *line = text;
        for (char *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            least = read_line(root, line, least);
        }
        if (got <= 0 && *line) least = read_line(root, line, least);
        if (line == text && n + 1 == sizeof text) line = text + n; /* longer than any path that can be opened */
        n = (size_t)(text + n - line);
        memmove(text, line, n);
    }
    close(fd);
    return least;
}
