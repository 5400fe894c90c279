/* load.c - a program from the bytes of a file. In: any bytes, mapped; but a file whose sums are right is taken to be what
 * save.c wrote, since its code is run. Out: a program that runs as the one that was saved; what explains a program is not in
 * it. */
#include "drive/saved.h"

#include "rt/tuning.h"

#include <stdatomic.h>

typedef struct reader {
    const unsigned char *at, *end;
    arena *a;
} reader;

static void NORETURN damaged(const reader *r) { guard_fail(r->a->gd, TN_ERR_PARSE, "a damaged file"); }
static const void *take(reader *r, size_t n) {
    if (n > (size_t)(r->end - r->at)) damaged(r);
    const unsigned char *at = r->at;
    r->at += n;
    return at;
}
static void get(reader *r, void *to, size_t n) { memcpy(to, take(r, n), n); }
static const char *get_text(reader *r) {
    int32_t n;
    get(r, &n, sizeof n);
    if (n < 0) damaged(r);
    const char *text = take(r, (size_t)n + 1);
    if (text[n]) damaged(r);
    return arena_copy(r->a, text, (size_t)n + 1);
}
/* That many entries, of `size` bytes at least: only what can be there takes memory. */
static int count(const reader *r, int32_t n, size_t size) {
    if (n < 0 || n > SAVED_MOST || (size_t)n > (size_t)(r->end - r->at) / size) damaged(r);
    return n;
}
static void need(const reader *r, bool holds) {
    if (!holds) damaged(r);
}

/* ---- tables ---- */

static void get_rows(reader *r, plan *l, int n, int n_dims) {
    if (!count(r, n, sizeof(ext_row))) return;
    l->params = l->g->params = exts_make(l->a);
    for (int i = 0; i < n; i++) {
        ext_row x;
        get(r, &x, sizeof x);
        need(r,
             (unsigned)x.op <= EXT_MAX && (ext_is_lit(x.a) || ext_index(x.a) < i) && (ext_is_lit(x.b) || ext_index(x.b) < i));
        need(r, x.op != EXT_DIM || (x.number >= 0 && x.number < n_dims && x.divisor > 0));
        if (x.op == EXT_DIM) x.name = get_text(r);
        VEC_PUSH(l->a, &l->params->at, x);
    }
    need(r, n_dims >= 0 && n_dims <= n);
    l->params->n_dims = n_dims;
}

/* Bytes of an arena that buffers of a slot lie in; -1: each has memory of its own. */
static int64_t room(const plan *l, int slot) {
    return slot == SLOT_TEMP     ? l->temp_bytes
           : slot == SLOT_STATE  ? l->state_bytes
           : slot == SLOT_SHARED ? l->shared_bytes
           : slot == SLOT_CONST  ? l->const_bytes
                                 : -1;
}

static void get_bufs(reader *r, plan *l, int n, int n_io) {
    VEC_RESERVE(l->a, &l->bufs, count(r, n, sizeof(pbuf)));
    for (int i = 0; i < n; i++) {
        pbuf b;
        int32_t panels;
        get(r, &b, sizeof b), get(r, &panels, sizeof panels);
        int64_t all = b.kind == PB_TEMP && b.first < 0 ? -1 : room(l, b.slot); /* what no kernel uses has no place */
        need(r,
             (unsigned)b.kind <= PB_WINDOW && b.dtype < TN_N_DTYPES && b.slot >= 0 && b.slot < SLOT_IO + n_io + l->n_windows);
        need(r, b.bytes >= 0 && b.offset >= 0 && (all < 0 || (b.offset <= all && b.bytes <= all - b.offset)));
        need(r, b.next_panels >= 0 && b.next_panels < n);
        need(r, (b.kind != PB_INPUT && b.kind != PB_OUTPUT) || (b.io >= 0 && b.io < n_io));
        need(r, b.kind != PB_WINDOW || (b.window_of >= 0 && b.window_of < n && b.window_of != i));
        if (panels) {
            kpanels *x = ARENA_NEW(l->a, kpanels);
            get(r, x, sizeof *x);
            need(r, x->n_outer >= 0 && x->n_depth >= 0 && x->n_outer <= PANEL_LOOPS && x->n_depth <= PANEL_LOOPS - x->n_outer);
            b.panels = x;
        }
        VEC_PUSH(l->a, &l->bufs, b);
    }
}

/* Of kernels there is left what runs and profiles say of them. */
static void get_kernels(reader *r, plan *l, int n) {
    VEC_RESERVE(l->a, &l->kernels, count(r, n, sizeof(saved_kernel)));
    kernel *k = ARENA_ARRAY(l->a, kernel, n + 1);
    for (int i = 0; i < n; i++) {
        saved_kernel x;
        get(r, &x, sizeof x);
        need(r, x.code >= 0 && x.code <= i);
        k[i].par_var = x.parallel ? 0 : -1;
        k[i].bytes_read = x.bytes_read, k[i].bytes_written = x.bytes_written, k[i].flops = x.flops;
        k[i].name = get_text(r);
        VEC_PUSH(l->a, &l->kernels, (pkernel){ .k = &k[i], .barrier = x.barrier != 0, .code = x.code });
    }
}

static bool is_known(const plan *l, ext e) { return ext_is_lit(e) || (l->params && ext_index(e) < l->params->at.n); }
static bool is_buf(const plan *l, int32_t b) { return b >= 0 && b < l->bufs.n; }

static void get_steps(reader *r, plan *l, int n) {
    VEC_RESERVE(l->a, &l->steps, count(r, n, sizeof(pstep)));
    for (int i = 0; i < n; i++) {
        pstep x;
        get(r, &x, sizeof x);
        need(r, (unsigned)x.kind < N_PSTEPS && x.inside >= 0 && x.inside < n - i);
        need(r, x.kind != PSTEP_LAUNCH || (x.kernel >= 0 && x.kernel < l->kernels.n));
        need(r, !pstep_is_conditional(&x) || is_buf(l, x.cond));
        need(r, x.kind != PSTEP_BRANCH || (x.n_then >= 0 && x.n_then <= x.inside));
        need(r, x.kind != PSTEP_REPEAT || ((x.count < 0 || is_buf(l, x.count)) && is_known(l, x.times)));
        pring *rings = ARENA_ARRAY(l->a, pring, count(r, x.n_rings, sizeof *rings) + 1);
        get(r, rings, (size_t)x.n_rings * sizeof *rings);
        for (int k = 0; k < x.n_rings; k++) {
            const pbuf *b = is_buf(l, rings[k].buf) ? &l->bufs.at[rings[k].buf] : NULL;
            need(r, b && is_known(l, rings[k].stride) && (x.kind != PSTEP_REPEAT || b->kind == PB_WINDOW));
        }
        x.rings = rings;
        VEC_PUSH(l->a, &l->steps, x);
    }
}

/* A value that has a name and a shape, and nothing that computes it. */
static val get_node(reader *r, plan *l, op_code op) {
    saved_node x;
    get(r, &x, sizeof x);
    need(r, x.dtype < TN_N_DTYPES && x.rank <= TN_MAX_RANK);
    ext *dims = ARENA_ARRAY(l->a, ext, x.rank + 1);
    get(r, dims, x.rank * sizeof *dims);
    int64_t bytes = (int64_t)dtype_size((tn_dtype)x.dtype);
    for (int i = 0; i < x.rank; i++)
        need(r, ext_is_lit(dims[i]) ? size_mul(bytes, dims[i], &bytes) : l->params && ext_index(dims[i]) < l->params->at.n);
    VEC_PUSH(l->a, &l->g->nodes,
             (node){ .op = (uint8_t)op, .dtype = x.dtype, .rank = x.rank, .dims = dims, .name = get_text(r) });
    return (val)l->g->nodes.n - 1;
}

static void get_io(reader *r, plan *l, int n) {
    for (int i = 0, end = count(r, n, sizeof(pio)); i < end; i++) {
        pio x;
        get(r, &x, sizeof x);
        x.node = get_node(r, l, OP_input);
        x.name = graph_get(l->g, x.node)->name;
        need(r, x.bytes >= 0 && x.dtype == graph_get(l->g, x.node)->dtype && is_buf(l, x.buf) &&
                    x.bytes <= l->bufs.at[x.buf].bytes);
        VEC_PUSH(l->a, &l->io, x);
    }
}

static void get_states(reader *r, plan *l, int n, const unsigned char *values, size_t n_values) {
    for (int i = 0, end = count(r, n, sizeof(saved_state)); i < end; i++) {
        saved_state x;
        get(r, &x, sizeof x);
        val v = get_node(r, l, OP_state);
        node *s = graph_get(l->g, v);
        need(r, is_buf(l, x.buf));
        for (int d = 0; d < s->rank; d++) need(r, s->dims[d] >= 0);
        need(r, l->bufs.at[x.buf].panels || l->bufs.at[x.buf].bytes == (int64_t)drive_value_bytes(l->g, v));
        if (x.value >= 0) {
            size_t bytes = drive_value_bytes(l->g, v);
            need(r, (uint64_t)x.value <= n_values && bytes <= n_values - (size_t)x.value);
            s->data = values + x.value;
        }
        VEC_PUSH(l->a, &l->states, (pstate){ s->name, v, x.buf, x.given != 0 });
    }
}

static device_symbol *get_symbols(reader *r, int n, size_t n_code, size_t least) {
    device_symbol *s = ARENA_ARRAY(r->a, device_symbol, count(r, n, 16) + 1);
    for (int i = 0; i < n; i++) {
        uint64_t place[2];
        get(r, place, sizeof place);
        need(r, place[0] <= n_code && n_code - place[0] >= least);
        s[i] = (device_symbol){ get_text(r), (size_t)place[0], (size_t)place[1] };
    }
    return s;
}

/* ---- the file ---- */

typedef struct load_job {
    tn_program *p;
    const saved_head *h;
    const drive_made_of *made_of; /* what it must be made of; NULL: anything */
    drive_code code;
    bool stale;
} load_job;

static const unsigned char *part(const load_job *j, saved_part i) { return j->p->file.at + j->h->part[i].at; }

/* Whether the files that it was made of are as they were. */
static void check_files(load_job *j, reader *r, const saved_program *x) {
    const drive_made_of *m = j->made_of;
    const char *key = get_text(r);
    bool same = !m || (!strcmp(key, m->key) && x->tuned == saved_tuning(j->p->target.tuning));
    for (int i = 0, end = count(r, x->n_files, sizeof(saved_stamp)); i < end; i++) {
        saved_stamp was, is = { 0 };
        get(r, &was, sizeof was);
        const char *path = get_text(r);
        if (m) same = same && saved_stamp_of(path, &is) && !memcmp(&was, &is, sizeof is);
    }
    j->stale = !same;
}

static void read_tables(load_job *j) {
    tn_program *p = j->p;
    const saved_head *h = j->h;
    saved_program x;
    reader r = { part(j, SAVED_TABLES), part(j, SAVED_TABLES) + h->part[SAVED_TABLES].n, &p->arena };
    get(&r, &x, sizeof x);
    check_files(j, &r, &x);
    if (j->stale) return;
    plan *l = p->plan = ARENA_NEW(&p->arena, plan);
    l->a = &p->arena, l->g = p->graph = graph_make(&p->arena, get_text(&r));
    x.opts.device = p->opts.device, p->opts = x.opts, p->opts.schedule = NULL;
    p->stats = x.stats, p->scratch = (size_t)x.scratch, p->parallel = x.parallel != 0;
    l->temp_bytes = x.temp_bytes, l->temp_bound = x.temp_bound, l->state_bytes = x.state_bytes;
    l->shared_bytes = x.shared_bytes, l->const_bytes = x.const_bytes;
    l->n_windows = x.n_windows, l->fusion = x.fusion, l->threads = x.threads;
    need(&r, x.n_windows >= 0 && x.n_windows <= SAVED_MOST && x.n_io >= 0 && x.n_io <= SAVED_MOST);
    need(&r, l->const_bytes == (int64_t)h->part[SAVED_CONSTS].n);
    need(&r, !h->part[SAVED_SHARED].n || l->shared_bytes == (int64_t)h->part[SAVED_SHARED].n);
    get_rows(&r, l, x.n_rows, x.n_dims);
    get_bufs(&r, l, x.n_bufs, x.n_io);
    get_kernels(&r, l, x.n_kernels);
    get_steps(&r, l, x.n_steps);
    get_io(&r, l, x.n_io);
    get_states(&r, l, x.n_states, part(j, SAVED_VALUES), (size_t)h->part[SAVED_VALUES].n);
    size_t n_code = (size_t)h->part[SAVED_CODE].n;
    device_image *image = j->code.image = ARENA_NEW(&p->arena, device_image);
    *image = (device_image){
        .bytes = part(j, SAVED_CODE), .n_bytes = n_code, .n_functions = x.n_functions, .n_imports = x.n_imports
    };
    image->functions = get_symbols(&r, x.n_functions, n_code, 1);
    image->imports = get_symbols(&r, x.n_imports, n_code, 8);
    p->io = l->io.at, p->n_io = l->io.n, p->states = l->states.at, p->n_states = l->states.n;
    p->code = arena_strdup(&p->arena, h->code);
    p->kernel_entry = ARENA_ARRAY(&p->arena, void *, l->kernels.n + 1);
    drive_sort_names(p);
}

/* Whether nothing can have been lost of the file's memory; *out_now: that was found out now. */
static bool is_whole(const file_view *f, const saved_head *h, bool *out_now) {
    char boot[BOOT_ID_BYTES];
    uint64_t rest = 0;
    if (!h->boot[0]) return true;
    file_boot_id(boot);
    if (*boot && !memcmp(boot, h->boot, sizeof boot)) return true;
    for (int i = SAVED_CONSTS; i < N_SAVED; i++) rest = saved_rest(rest, f->at + h->part[i].at, (size_t)h->part[i].n);
    return *out_now = rest == h->rest;
}

/* TN_ERR_PARSE: it is none, or damaged. */
static tn_status check_head(const file_view *f, saved_head *h, bool *out_now, err *e) {
    static const char what[] = "no program that Tenon saved, or a damaged one";
    if (f->n < sizeof *h) return err_set(e, TN_ERR_PARSE, what);
    memcpy(h, f->at, sizeof *h);
    if (memcmp(h->magic, SAVED_MAGIC, sizeof h->magic) != 0) return err_set(e, TN_ERR_PARSE, what);
    unsigned char here[BUILD_ID_BYTES];
    if (h->version != SAVED_VERSION || !build_id(here) || memcmp(here, h->build, sizeof here) != 0)
        return err_set(e, TN_ERR_UNSUPPORTED, "it was saved by another build of the library: compile and save it again");
    uint64_t at = sizeof *h;
    for (int i = 0; i < N_SAVED; i++) {
        if (h->part[i].at < at || h->part[i].at > f->n || h->part[i].n > f->n - h->part[i].at ||
            h->part[i].at % (i < SAVED_CONSTS ? 8 : SAVED_PAGE))
            return err_set(e, TN_ERR_PARSE, what);
        at = h->part[i].at + h->part[i].n;
    }
    const size_t from = offsetof(saved_head, build), end = (size_t)(h->part[SAVED_CODE].at + h->part[SAVED_CODE].n);
    hash128 sum = hash_bytes128(f->at + from, end - from);
    bool whole = h->bytes == f->n && sum.lo == h->sum.lo && sum.hi == h->sum.hi && is_whole(f, h, out_now);
    return whole ? TN_OK : err_set(e, TN_ERR_PARSE, what);
}

static tn_status check_here(const saved_head *h, const saved_head *here, err *e) {
    if (memcmp(h->code, here->code, sizeof h->code) != 0 || memcmp(h->machine, here->machine, sizeof h->machine) != 0)
        return err_set(e, TN_ERR_UNSUPPORTED, "it was saved for %.15s on %.31s; here is %.15s on %.31s: compile it again",
                       h->code, *h->machine ? h->machine : "any processor", here->code,
                       *here->machine ? here->machine : "any processor");
    if (h->threads != here->threads)
        return err_set(e, TN_ERR_UNSUPPORTED, "it was saved for %lld threads; here are %lld: compile it again",
                       (long long)h->threads, (long long)here->threads);
    return TN_OK;
}

static tn_status adopt_memory(load_job *j, err *e) {
    tn_program *p = j->p;
    const device_api *api = p->dev->api;
    const saved_head *h = j->h;
    tn_status st =
        api->adopt(p->dev, (uint64_t)(uintptr_t)part(j, SAVED_CONSTS), (size_t)h->part[SAVED_CONSTS].n, &p->consts, e);
    if (!st && h->part[SAVED_SHARED].n)
        st = api->adopt(p->dev, (uint64_t)(uintptr_t)part(j, SAVED_SHARED), (size_t)h->part[SAVED_SHARED].n, &p->shared, e);
    return st;
}

/* The program of a checked head. */
static tn_status load(load_job *j, device *dev, double start, err *e) {
    tn_program *p = j->p;
    device_caps caps;
    dev->api->get_caps(dev, &caps);
    const tuning *measured = atomic_load(&p->ctx->tuning);
    p->dev = dev, p->opts.device = dev->api->name, p->target = drive_target(&caps, measured ? &measured->table : NULL);
    if (GUARD_TRY(&p->gd))
        read_tables(j);
    else
        return err_set(e, p->gd.err.code, "%s", p->gd.err.text);
    if (j->stale) return TN_OK;
    tn_status st = drive_build(p, &j->code, e);
    if (!st) st = adopt_memory(j, e);
    p->stats.cache_hits = 1, p->stats.cache_misses = 0;
    p->stats.compile_seconds = now_seconds() - start;
    return st;
}

/* Threads that the tables ask for: what the device is opened with. */
static int asked_threads(const saved_head *h, const file_view *f) {
    saved_program x;
    if (h->part[SAVED_TABLES].n < sizeof x) return -1;
    memcpy(&x, f->at + h->part[SAVED_TABLES].at, sizeof x);
    return x.opts.threads < 0 || x.opts.threads > 1024 ? -1 : x.opts.threads;
}

tn_status drive_load(tn_ctx *ctx, file_view f, const drive_made_of *made_of, tn_program **out, err *e) {
    double start = now_seconds();
    saved_head h, here;
    device *dev;
    *out = NULL;
    bool now = false;
    tn_status st = check_head(&f, &h, &now, e);
    int threads = st ? 0 : asked_threads(&h, &f);
    if (threads < 0) st = err_set(e, TN_ERR_PARSE, "a damaged file");
    if (!st) st = ctx_device(ctx, "cpu", threads, &dev, e);
    if (!st) st = saved_here(dev, &here, e);
    if (!st) st = check_here(&h, &here, e);
    tn_program *p = st ? NULL : mem_alloc(ctx->mem, sizeof *p);
    if (!st && !p) st = err_set(e, TN_ERR_NOMEM, "out of memory: a program");
    if (st) {
        file_unmap(&f);
        return st;
    }
    p->ctx = ctx, p->file = f;
    arena_init(&p->arena, ctx->mem, &p->gd);
    load_job j = { .p = p, .h = &h, .made_of = made_of };
    st = load(&j, dev, start, e);
    if (st || j.stale)
        drive_program_free(p);
    else
        *out = p;
    if (*out && made_of && made_of->out_whole) *made_of->out_whole = now;
    return st;
}
