/* tuning.c - implementation of tuning.h. */
#include "rt/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_ENTRIES = 1 << 16, LINE_BYTES = TUNING_TEXT + 80 };
#define MAX_FILE ((size_t)16 << 20)
#define FORMAT "# tenon tuning 2"
static const char head[] = FORMAT ": key; ns before, after; steps of the schedule\n";

/* ---- tables ---- */

static tn_status no_memory(err *e) { return err_set(e, TN_ERR_NOMEM, "out of memory: the tuning database"); }

static ktuned *table_at(const tuning *t) { return (ktuned *)(uintptr_t)t->table.at; } /* const for everybody else */

static void drop_text(tuning *t, int i) { mem_strfree(t->mem, (char *)(uintptr_t)t->entries[i].schedule); }

void tuning_free(tuning *t) {
    for (tuning *older; t; t = older) {
        older = t->older;
        for (int i = 0; i < t->table.n; i++) drop_text(t, i);
        mem_free(t->mem, table_at(t), (size_t)t->room * sizeof(ktuned));
        mem_free(t->mem, t->entries, (size_t)t->room * sizeof *t->entries);
        mem_free(t->mem, t, sizeof *t);
    }
}

static tuning *tuning_new(mem m, int room) {
    tuning *t = mem_alloc(m, sizeof *t);
    if (!t) return NULL;
    t->mem = m, t->room = room;
    t->table.at = mem_alloc(m, (size_t)room * sizeof(ktuned));
    t->entries = mem_alloc(m, (size_t)room * sizeof *t->entries);
    if (t->table.at && t->entries) return t;
    tuning_free(t);
    return NULL;
}

/* In its place, with a text of its own; the entry of the same key goes. False: there is no memory. */
static bool put(tuning *t, const tuning_entry *x) {
    int lo = 0, n = t->table.n;
    for (int hi = n; lo < hi;) {
        int mid = lo + (hi - lo) / 2;
        if (t->entries[mid].key < x->key)
            lo = mid + 1;
        else
            hi = mid;
    }
    bool known = lo < n && t->entries[lo].key == x->key;
    if (!known && n == t->room) return true;
    char *text = mem_strdup(t->mem, x->schedule);
    if (!text) return false;
    if (known) {
        drop_text(t, lo);
    } else {
        memmove(t->entries + lo + 1, t->entries + lo, (size_t)(n - lo) * sizeof *t->entries);
        memmove(table_at(t) + lo + 1, table_at(t) + lo, (size_t)(n - lo) * sizeof(ktuned));
        t->table.n++;
    }
    t->entries[lo] = *x, t->entries[lo].schedule = text;
    table_at(t)[lo] = (ktuned){ x->key, text };
    return true;
}

tn_status tuning_with(mem m, const tuning *base, const tuning_entry *add, int n, tuning **out, err *e) {
    tuning *t = tuning_new(m, (base ? base->table.n : 0) + n);
    bool ok = t != NULL;
    for (int i = 0; base && i < base->table.n && ok; i++) ok = put(t, &base->entries[i]);
    for (int i = 0; i < n && ok; i++) ok = put(t, &add[i]);
    if (!ok) tuning_free(t);
    *out = ok ? t : NULL;
    return ok ? TN_OK : no_memory(e);
}

/* ---- text ---- */

/* A number of the given base up to `most`, and one space or the end after it. */
static bool read_number(const char **at, const char *end, int base, uint64_t most, uint64_t *out) {
    const char *s = *at;
    uint64_t v = 0;
    for (; s < end && *s != ' '; s++) {
        int digit = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 99;
        if (digit >= base || (uint64_t)digit > most || v > (most - (uint64_t)digit) / (uint64_t)base) return false;
        v = v * (uint64_t)base + (uint64_t)digit;
    }
    if (s == *at) return false;
    *at = s < end ? s + 1 : s;
    *out = v;
    return true;
}

/* What may stand in a schedule; the compile half knows what it says. */
static bool is_schedule(const char *s, size_t n) {
    bool ok = n > 0 && n <= TUNING_TEXT && *s >= 'a' && *s <= 'z' && s[n - 1] != ' ';
    for (size_t i = 0; i < n && ok; i++)
        ok = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') ||
             (s[i] && strchr("_=;{} ", s[i]));
    return ok;
}

/* *text: room for the schedule. */
static bool read_line(const char *s, const char *end, tuning_entry *out, char text[TUNING_TEXT + 1]) {
    *out = (tuning_entry){ .schedule = text };
    if (!read_number(&s, end, 16, UINT64_MAX, &out->key) || !read_number(&s, end, 10, INT64_MAX, &out->before) ||
        !read_number(&s, end, 10, INT64_MAX, &out->after) || !is_schedule(s, (size_t)(end - s)))
        return false;
    memcpy(text, s, (size_t)(end - s));
    text[end - s] = 0;
    return true;
}

static int count_lines(const char *text, size_t n) {
    int lines = 1;
    for (size_t i = 0; i < n && lines < MAX_ENTRIES; i++) lines += text[i] == '\n';
    return lines;
}

tn_status tuning_parse(mem m, const char *text, size_t n, tuning **out, int *out_skipped, err *e) {
    tuning *t = tuning_new(m, count_lines(text, n));
    bool ok = t != NULL;
    *out = NULL, *out_skipped = 0;
    for (const char *s = text, *end = text + n, *next; s < end && ok; s = next) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        char schedule[TUNING_TEXT + 1];
        tuning_entry x;
        next = stop ? stop + 1 : end;
        if (*s == '#' || stop == s) continue;
        if (stop && stop - s < LINE_BYTES && read_line(s, stop, &x, schedule)) /* a last line without its end was cut off */
            ok = put(t, &x);
        else
            ++*out_skipped;
    }
    if (!ok) tuning_free(t);
    *out = ok ? t : NULL;
    return ok ? TN_OK : no_memory(e);
}

/* Nothing for a schedule that could not be read back. */
static size_t print_line(char out[LINE_BYTES], const tuning_entry *x) {
    if (!is_schedule(x->schedule, strlen(x->schedule))) return 0;
    return (size_t)snprintf(out, LINE_BYTES, "%016llx %llu %llu %s\n", (unsigned long long)x->key,
                            (unsigned long long)x->before, (unsigned long long)x->after, x->schedule);
}

/* All entries as text of *out_size bytes, in memory of *out_room; NULL: there is none. */
static char *print_all(mem m, const tuning *t, size_t *out_room, size_t *out_size) {
    size_t room = sizeof head, at = sizeof head - 1;
    for (int i = 0; i < t->table.n; i++) room += strlen(t->entries[i].schedule) + LINE_BYTES - TUNING_TEXT;
    char *text = mem_alloc(m, room), line[LINE_BYTES];
    if (text) memcpy(text, head, at);
    for (int i = 0; text && i < t->table.n; i++) {
        size_t n = print_line(line, &t->entries[i]);
        memcpy(text + at, line, n);
        at += n;
    }
    *out_room = room, *out_size = at;
    return text;
}

/* ---- files ---- */

/* It has nothing of use, and is replaced when something is stored. */
static bool is_other_version(const char *text, size_t n) {
    static const char any[] = "# tenon tuning ";
    return n >= sizeof FORMAT && !memcmp(text, any, sizeof any - 1) && memcmp(text, FORMAT, sizeof FORMAT - 1) != 0;
}

tuning *tuning_load(mem m, disk *d, void (*log)(void *ud, tn_log_level level, const char *text), void *log_ud) {
    unsigned char *text;
    size_t n;
    tuning *t = NULL;
    int skipped = 0;
    err e;
    if (!d || !disk_read(d, TUNING_FILE, MAX_FILE, &text, &n)) return NULL;
    bool other = is_other_version((const char *)text, n);
    if (other && log) log(log_ud, TN_LOG_INFO, "tuning database: " TUNING_FILE " is of another version and is ignored");
    if (other || tuning_parse(m, (const char *)text, n, &t, &skipped, &e)) t = NULL;
    if (skipped && log) {
        char line[128];
        snprintf(line, sizeof line, "tuning database: %d lines of " TUNING_FILE " are no entries and were skipped", skipped);
        log(log_ud, TN_LOG_WARN, line);
    }
    mem_free(m, text, n);
    return t;
}

typedef struct addition {
    mem mem;
    const tuning_entry *add;
    int n;
} addition;

/* More than fit are too many to be of use to anybody: the new ones alone stay. */
static tn_status add_entries(void *ud, const unsigned char *old, size_t n_old, unsigned char **out, size_t *out_size, err *e) {
    const addition *a = ud;
    tuning *had = NULL, *all = NULL;
    int skipped;
    tn_status st = tuning_parse(a->mem, old ? (const char *)old : "", n_old, &had, &skipped, e);
    bool full = !st && (had->table.n > MAX_ENTRIES - a->n || n_old + (size_t)a->n * LINE_BYTES > MAX_FILE);
    size_t room = 0;
    if (!st) st = tuning_with(a->mem, full ? NULL : had, a->add, a->n, &all, e);
    char *text = !st ? print_all(a->mem, all, &room, out_size) : NULL;
    if (text) {
        *out = mem_realloc(a->mem, text, room, *out_size);
        if (!*out) mem_free(a->mem, text, room);
    }
    if (!st && !*out) st = no_memory(e);
    tuning_free(had);
    tuning_free(all);
    return st;
}

tn_status tuning_store(mem m, disk *d, const tuning_entry *add, int n, err *e) {
    int most = (int)(MAX_FILE / LINE_BYTES);
    if (n > most) return err_set(e, TN_ERR_INVAL, "%d entries for the tuning database; it holds %d", n, most);
    return disk_update(d, TUNING_FILE, MAX_FILE, add_entries, &(addition){ m, add, n }, e);
}

static disk *open_existing(mem m, const char *dir) {
    return access(dir, R_OK | X_OK) ? NULL : disk_open(&(disk_opts){ .mem = m, .dir = dir });
}

int tuning_count(mem m, const char *dir) {
    disk *d = open_existing(m, dir);
    tuning *t = tuning_load(m, d, NULL, NULL);
    int n = t ? t->table.n : 0;
    tuning_free(t);
    disk_close(d);
    return n;
}

static tn_status no_entries(void *ud, const unsigned char *old, size_t n_old, unsigned char **out, size_t *out_size, err *e) {
    mem *m = ud;
    (void)n_old;
    if (!old) return TN_OK;
    *out = mem_alloc(*m, sizeof head - 1), *out_size = sizeof head - 1;
    if (!*out) return no_memory(e);
    memcpy(*out, head, sizeof head - 1);
    return TN_OK;
}

tn_status tuning_clear(mem m, const char *dir, int *out_removed, err *e) {
    *out_removed = tuning_count(m, dir);
    disk *d = open_existing(m, dir);
    tn_status st = d ? disk_update(d, TUNING_FILE, MAX_FILE, no_entries, &m, e) : TN_OK;
    disk_close(d);
    return st;
}
