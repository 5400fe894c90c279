/* save.c - a program to the bytes of a file. In: a program for the CPU in machine code. Out: pieces, in an arena, and of the
 * program's memory. */
#include "drive/saved.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t saved_tuning(const ktuning *t) {
    uint64_t h = 0;
    for (int i = 0; t && i < t->n; i++)
        h = hash_bytes(t->at[i].schedule, strlen(t->at[i].schedule), hash_bytes(&t->at[i].key, sizeof t->at[i].key, h));
    return h;
}

static uint64_t nanoseconds(struct timespec t) { return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; }

bool saved_stamp_of(const char *path, saved_stamp *out) {
    struct stat s;
    if (stat(path, &s)) return false;
    *out = (saved_stamp){ (uint64_t)s.st_dev, (uint64_t)s.st_ino, (uint64_t)s.st_size, nanoseconds(s.st_mtim),
                          nanoseconds(s.st_ctim) };
    return true;
}

tn_status saved_here(device *dev, saved_head *h, err *e) {
    device_caps caps;
    dev->api->get_caps(dev, &caps);
    memset(h, 0, sizeof *h);
    memcpy(h->magic, SAVED_MAGIC, sizeof h->magic);
    h->version = SAVED_VERSION, h->threads = caps.threads;
    snprintf(h->code, sizeof h->code, "%s", caps.code);
    snprintf(h->machine, sizeof h->machine, "%s", caps.machine ? caps.machine->name : "");
    if (!build_id(h->build))
        return err_set(e, TN_ERR_UNSUPPORTED, "programs as files: this library was linked without a build id (-Wl,--build-id)");
    return TN_OK;
}

/* ---- tables ---- */

static void put(str *out, const void *data, size_t n) { str_addn(out, data, n); }
static void put_text(str *out, const char *text) {
    int32_t n = (int32_t)strlen(text);
    put(out, &n, sizeof n), put(out, text, (size_t)n + 1);
}

static void put_node(str *out, const graph *g, val v, const char *name) {
    const node *n = graph_get(g, v);
    saved_node x = { n->dtype, n->rank };
    put(out, &x, sizeof x), put(out, n->dims, n->rank * sizeof *n->dims), put_text(out, name);
}

static void put_rows(str *out, const exts *t) {
    for (int i = 0; t && i < t->at.n; i++) {
        ext_row r = t->at.at[i];
        r.name = NULL;
        put(out, &r, sizeof r);
        if (r.op == EXT_DIM) put_text(out, t->at.at[i].name);
    }
}

static void put_bufs(str *out, const plan *p) {
    for (int i = 0; i < p->bufs.n; i++) {
        pbuf b = p->bufs.at[i];
        int32_t panels = b.panels != NULL;
        b.panels = NULL, b.node = 0;
        put(out, &b, sizeof b), put(out, &panels, sizeof panels);
        if (panels) put(out, p->bufs.at[i].panels, sizeof *b.panels);
    }
}

static void put_kernels(str *out, const plan *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        saved_kernel x = { pk->code, pk->barrier, pk->k->par_var >= 0, pk->k->bytes_read, pk->k->bytes_written, pk->k->flops };
        put(out, &x, sizeof x), put_text(out, pk->k->name ? pk->k->name : "");
    }
}

static void put_steps(str *out, const plan *p) {
    for (int i = 0; i < p->steps.n; i++) {
        pstep x = p->steps.at[i];
        x.rings = NULL;
        put(out, &x, sizeof x);
        if (x.n_rings) put(out, p->steps.at[i].rings, (size_t)x.n_rings * sizeof *x.rings);
    }
}

static void put_symbols(str *out, const device_symbol *s, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t place[2] = { s[i].offset, s[i].size };
        put(out, place, sizeof place), put_text(out, s[i].name);
    }
}

static size_t line(size_t n) { return (n + SAVED_LINE - 1) / SAVED_LINE * SAVED_LINE; }

/* The initial value of a state that runs change; NULL: it has none, or is shared. */
static const void *own_value(const tn_program *p, int i) {
    return drive_is_shared(p, i) ? NULL : graph_get(p->plan->g, p->states[i].node)->data;
}

static void put_states(str *out, const tn_program *p) {
    size_t at = 0;
    for (int i = 0; i < p->n_states; i++) {
        bool own = own_value(p, i) != NULL;
        saved_state x = { p->states[i].buf, p->states[i].given, own ? (int64_t)at : -1 };
        if (own) at += line(drive_value_bytes(p->plan->g, p->states[i].node));
        put(out, &x, sizeof x), put_node(out, p->plan->g, p->states[i].node, p->states[i].name);
    }
}

static void put_tables(const tn_program *p, const drive_code *code, const drive_made_of *made_of, str *out) {
    const plan *l = p->plan;
    saved_program x = { .opts = p->opts, .stats = p->stats, .scratch = p->scratch, .tuned = saved_tuning(p->target.tuning) };
    x.opts.device = x.opts.schedule = NULL;
    x.temp_bytes = l->temp_bytes, x.temp_bound = l->temp_bound, x.state_bytes = l->state_bytes;
    x.shared_bytes = l->shared_bytes, x.const_bytes = l->const_bytes;
    x.parallel = p->parallel, x.n_windows = l->n_windows, x.fusion = l->fusion, x.threads = l->threads;
    x.n_files = made_of->n_files;
    if (l->params) x.n_rows = l->params->at.n, x.n_dims = l->params->n_dims;
    x.n_bufs = l->bufs.n, x.n_kernels = l->kernels.n, x.n_steps = l->steps.n, x.n_io = p->n_io, x.n_states = p->n_states;
    x.n_functions = code->image->n_functions, x.n_imports = code->image->n_imports;
    put(out, &x, sizeof x);
    put_text(out, made_of->key ? made_of->key : "");
    for (int i = 0; i < made_of->n_files; i++) {
        saved_stamp s = { 0 };
        if (!saved_stamp_of(made_of->files[i], &s))
            guard_fail(out->a->gd, TN_ERR_IO, "%s: cannot be looked at", made_of->files[i]);
        if (s.mtime >= made_of->before || s.ctime >= made_of->before)
            guard_fail(out->a->gd, TN_ERR_UNSUPPORTED, "%s changed after the context was made", made_of->files[i]);
        put(out, &s, sizeof s), put_text(out, made_of->files[i]);
    }
    put_text(out, l->g->name ? l->g->name : "");
    put_rows(out, l->params);
    put_bufs(out, l);
    put_kernels(out, l);
    put_steps(out, l);
    for (int i = 0; i < p->n_io; i++) {
        pio io = p->io[i];
        io.name = NULL, io.node = 0;
        put(out, &io, sizeof io), put_node(out, l->g, p->io[i].node, p->io[i].name);
    }
    put_states(out, p);
    put_symbols(out, code->image->functions, code->image->n_functions);
    put_symbols(out, code->image->imports, code->image->n_imports);
}

/* ---- pieces ---- */

typedef struct writer {
    drive_saved *out;
    arena *a;
    saved_head *h;
    size_t at;
    const char *zeros; /* [SAVED_PAGE] */
} writer;

static void add(writer *w, const void *data, size_t n) {
    if (n) VEC_PUSH(w->a, w->out, (file_piece){ data, n });
    w->at += n;
}
static void align(writer *w, size_t to) { add(w, w->zeros, (to - w->at % to) % to); }
static void add_part(writer *w, saved_part i, const void *data, size_t n) {
    w->h->part[i].at = w->at, w->h->part[i].n = n;
    add(w, data, n);
    if (i > SAVED_CODE) w->h->rest = saved_rest(w->h->rest, data, n);
}

static void add_values(writer *w, const tn_program *p) {
    str all;
    str_init(&all, w->a);
    for (int i = 0; i < p->n_states; i++) {
        if (!own_value(p, i)) continue;
        put(&all, own_value(p, i), drive_value_bytes(p->plan->g, p->states[i].node));
        put(&all, w->zeros, line(all.n) - all.n);
    }
    add_part(w, SAVED_VALUES, all.s, all.n);
}

/* Sums the pieces up to the end of the code, joined. */
static void sum(writer *w) {
    saved_head *h = w->h;
    str all;
    str_init(&all, w->a);
    size_t end = (size_t)(h->part[SAVED_CODE].at + h->part[SAVED_CODE].n);
    for (int i = 0; i < w->out->n && all.n < end; i++) put(&all, w->out->at[i].data, w->out->at[i].n);
    h->sum = hash_bytes128(all.s + offsetof(saved_head, build), end - offsetof(saved_head, build));
}

void drive_save_boot(int fd) {
    char boot[BOOT_ID_BYTES];
    file_boot_id(boot);
    (void)!pwrite(fd, boot, sizeof boot, offsetof(saved_head, boot)); /* in vain: the file is summed again the next time */
}

void drive_save(const tn_program *p, const drive_made_of *made_of, arena *a, drive_saved *out) {
    drive_code code = { 0 };
    err e;
    saved_head *h = ARENA_NEW(a, saved_head);
    const device_api *api = p->dev->api;
    writer w = { out, a, h, 0, ARENA_ARRAY(a, char, SAVED_PAGE) };
    str tables;
    *out = (drive_saved){ 0 };
    if (p->file.at) guard_fail(a->gd, TN_ERR_UNSUPPORTED, "a program that comes from a file: copy that");
    if (!p->plan) guard_fail(a->gd, TN_ERR_UNSUPPORTED, "mode immediate has no program to keep");
    if (p->target.kind == TARGET_CPU && api->load && strcmp(p->code, "c") != 0) drive_emit(p, p->plan, a, &code);
    if (!code.image)
        guard_fail(a->gd, TN_ERR_UNSUPPORTED,
                   "programs as files are machine code for the device cpu; this one is %s, for the device %s", p->code,
                   api->name);
    if (saved_here(p->dev, h, &e)) guard_fail(a->gd, e.code, "%s", e.text);
    if (made_of->boot) snprintf(h->boot, sizeof h->boot, "%s", made_of->boot);
    str_init(&tables, a);
    put_tables(p, &code, made_of, &tables);
    add(&w, h, sizeof *h);
    add_part(&w, SAVED_TABLES, tables.s, tables.n);
    align(&w, SAVED_LINE);
    add_part(&w, SAVED_CODE, code.image->bytes, code.image->n_bytes);
    align(&w, SAVED_PAGE);
    add_part(&w, SAVED_CONSTS, p->consts ? api->map(p->dev, p->consts) : NULL, (size_t)p->plan->const_bytes);
    align(&w, SAVED_PAGE);
    add_part(&w, SAVED_SHARED, p->shared ? api->map(p->dev, p->shared) : NULL, p->shared ? (size_t)p->plan->shared_bytes : 0);
    align(&w, SAVED_PAGE);
    add_values(&w, p);
    h->bytes = w.at;
    sum(&w);
}
