/* tuning.c - implementation of tuning.h. */
#include "rt/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_ENTRIES = 1 << 16, LINE_BYTES = 160, N_PARTS = 7, N_FIELDS = N_PARTS + 2 };
#define MAX_FILE ((size_t)LINE_BYTES * (MAX_ENTRIES + 1))
static const char head[] =
    "# tenon tuning 1: key; tile rows, vectors, way, tiles, stretch, threads, unroll; ns before, after\n";

/* ---- tables ---- */

static tn_status no_memory(err *e) { return err_set(e, TN_ERR_NOMEM, "out of memory: the tuning database"); }

static ktuned *table_at(const tuning *t) { return (ktuned *)(uintptr_t)t->table.at; } /* const for everybody else */

void tuning_free(tuning *t) {
    for (tuning *older; t; t = older) {
        older = t->older;
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

/* In its place; the entry of the same key goes. */
static void put(tuning *t, const tuning_entry *x) {
    int lo = 0, n = t->table.n;
    for (int hi = n; lo < hi;) {
        int mid = lo + (hi - lo) / 2;
        if (t->entries[mid].key < x->key)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || t->entries[lo].key != x->key) {
        if (n == t->room) return;
        memmove(t->entries + lo + 1, t->entries + lo, (size_t)(n - lo) * sizeof *t->entries);
        memmove(table_at(t) + lo + 1, table_at(t) + lo, (size_t)(n - lo) * sizeof(ktuned));
        t->table.n++;
    }
    t->entries[lo] = *x;
    table_at(t)[lo] = (ktuned){ x->key, x->choice };
}

tn_status tuning_with(mem m, const tuning *base, const tuning_entry *add, int n, tuning **out, err *e) {
    tuning *t = tuning_new(m, (base ? base->table.n : 0) + n);
    *out = t;
    if (!t) return no_memory(e);
    for (int i = 0; base && i < base->table.n; i++) put(t, &base->entries[i]);
    for (int i = 0; i < n; i++) put(t, &add[i]);
    return TN_OK;
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

static bool read_line(const char *s, const char *end, tuning_entry *out) {
    static const uint64_t most[N_FIELDS] = { 255, 255, WAY_TILES, 255, 65535, 255, 255, INT64_MAX, INT64_MAX };
    uint64_t v[N_FIELDS];
    *out = (tuning_entry){ 0 };
    if (!read_number(&s, end, 16, UINT64_MAX, &out->key)) return false;
    for (int i = 0; i < N_FIELDS; i++)
        if (!read_number(&s, end, 10, most[i], &v[i])) return false;
    out->choice = (kchoice){ .mr = (uint8_t)v[0],
                             .nv = (uint8_t)v[1],
                             .way = (uint8_t)v[2],
                             .tiles = (uint8_t)v[3],
                             .rows = (uint16_t)v[4],
                             .par = (uint8_t)v[5],
                             .unroll = (uint8_t)v[6] };
    out->before = v[7], out->after = v[8];
    return s == end && end[-1] != ' ';
}

static int count_lines(const char *text, size_t n) {
    int lines = 1;
    for (size_t i = 0; i < n && lines < MAX_ENTRIES; i++) lines += text[i] == '\n';
    return lines;
}

tn_status tuning_parse(mem m, const char *text, size_t n, tuning **out, int *out_skipped, err *e) {
    tuning *t = tuning_new(m, count_lines(text, n));
    *out = t, *out_skipped = 0;
    if (!t) return no_memory(e);
    for (const char *s = text, *end = text + n, *next; s < end; s = next) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        tuning_entry x;
        next = stop ? stop + 1 : end;
        if (*s == '#' || stop == s) continue;
        if (stop && stop - s < LINE_BYTES && read_line(s, stop, &x)) /* a last line without its end was cut off */
            put(t, &x);
        else
            ++*out_skipped;
    }
    return TN_OK;
}

static int print_line(char out[LINE_BYTES], const tuning_entry *x) {
    const kchoice *c = &x->choice;
    return snprintf(out, LINE_BYTES, "%016llx %u %u %u %u %u %u %u %llu %llu\n", (unsigned long long)x->key, c->mr, c->nv,
                    c->way, c->tiles, c->rows, c->par, c->unroll, (unsigned long long)x->before, (unsigned long long)x->after);
}

/* ---- files ---- */

tuning *tuning_load(mem m, disk *d, void (*log)(void *ud, tn_log_level level, const char *text), void *log_ud) {
    unsigned char *text;
    size_t n;
    tuning *t = NULL;
    int skipped = 0;
    err e;
    if (!d || !disk_read(d, TUNING_FILE, MAX_FILE, &text, &n)) return NULL;
    if (tuning_parse(m, (const char *)text, n, &t, &skipped, &e)) t = NULL;
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
    bool full = !st && had->table.n > MAX_ENTRIES - a->n;
    if (!st) st = tuning_with(a->mem, full ? NULL : had, a->add, a->n, &all, e);
    size_t room = !st ? sizeof head + (size_t)all->table.n * LINE_BYTES : 0, at = sizeof head - 1;
    char *text = !st ? mem_alloc(a->mem, room) : NULL;
    if (text) {
        memcpy(text, head, at);
        for (int i = 0; i < all->table.n; i++) at += (size_t)print_line(text + at, &all->entries[i]);
        *out = mem_realloc(a->mem, text, room, at), *out_size = at;
        if (!*out) mem_free(a->mem, text, room);
    }
    if (!st && !*out) st = no_memory(e);
    tuning_free(had);
    tuning_free(all);
    return st;
}

tn_status tuning_store(mem m, disk *d, const tuning_entry *add, int n, err *e) {
    if (n > MAX_ENTRIES) return err_set(e, TN_ERR_INVAL, "%d entries for the tuning database; it holds %d", n, MAX_ENTRIES);
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
