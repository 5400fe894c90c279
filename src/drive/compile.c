/* compile.c - graph to program: runs the pipeline under the context's guard, writes the status, builds it on the device.
 *
 * In: a graph and options. Out: an immutable program that no longer refers to the graph. The program's arena owns what the
 * compile half made; module and constants belong to the device. */
#include "drive/drive.h"
#include "emit/emit.h"
#include "mem/mem.h"
#include "rt/tuning.h"

#include <stdatomic.h>
#include <stdio.h>

/* ---- compile half: everything here may jump ---- */

typedef struct job {
    tn_program *p;
    const graph *g;
    const tn_program *whole; /* whose special program it is; NULL: it is none */
    const int64_t *dims;     /* .. and for which of its dims */
    err *e;
    arena written; /* what the device takes, and what writing it took: until the device has it */
    drive_code code;
} job;

static void count(tn_program *p) {
    tn_program_stats *s = &p->stats;
    s->kernels = p->plan->kernels.n;
    for (int i = 0; i < p->plan->kernels.n; i++) {
        const pkernel *pk = &p->plan->kernels.at[i];
        s->distinct_kernels += pk->code == i;
        s->bytes_read += pk->k->bytes_read;
        s->bytes_written += pk->k->bytes_written;
        s->flops += pk->k->flops;
        p->parallel |= pk->k->par_var >= 0;
    }
    s->arena_bytes = drive_temp_room(p);
    s->arena_bound = (uint64_t)p->plan->temp_bound;
    s->state_bytes = (uint64_t)(p->plan->state_bytes + p->plan->shared_bytes);
}

/* Slots of an immediate program, in the order that plans use. */
static void list_slots(tn_program *p) {
    const graph *g = p->graph;
    const graph *most = p->most = graph_at(g, NULL, &p->arena);
    pio *io = ARENA_ARRAY(&p->arena, pio, g->inputs.n + g->outputs.n);
    pstate *states = ARENA_ARRAY(&p->arena, pstate, g->inputs.n);
    for (int i = 0; i < g->inputs.n; i++) {
        const node *n = graph_get(g, g->inputs.at[i]);
        int64_t bytes = graph_elems(most, g->inputs.at[i]) * (int64_t)dtype_size((tn_dtype)n->dtype);
        if (n->op == OP_state)
            states[p->n_states++] = (pstate){ n->name, g->inputs.at[i], -1, n->data != NULL };
        else
            io[p->n_io++] = (pio){ n->name, false, g->inputs.at[i], n->dtype, -1, bytes };
    }
    for (int i = 0; i < g->outputs.n; i++) {
        val v = g->outputs.at[i].v;
        const node *n = graph_get(g, v);
        if (!g->outputs.at[i].name) continue;
        io[p->n_io++] = (pio){
            g->outputs.at[i].name, true, v, n->dtype, -1, graph_elems(most, v) * (int64_t)dtype_size((tn_dtype)n->dtype)
        };
    }
    p->io = io, p->states = states;
}

static device_symbol *symbols(arena *a, const machine_name *names, int n) {
    device_symbol *s = ARENA_ARRAY(a, device_symbol, n + 1);
    for (int i = 0; i < n; i++) s[i] = (device_symbol){ names[i].name, names[i].offset, names[i].size };
    return s;
}

/* Straight to machine code, where device and code generator can. What they cannot takes the way through C. */
static bool as_machine_code(const tn_program *p, const plan *what, arena *a, drive_code *out) {
    machine_code code;
    x86_level level;
    const char *reason;
    device_caps caps;
    p->dev->api->get_caps(p->dev, &caps);
    if (!p->dev->api->load || !emit_x86_level(caps.code, &level)) return false;
    if (!emit_x86(what, level, a, &code, NULL, &reason)) {
        if (p->ctx->log)
            p->ctx->log(p->ctx->log_ud, TN_LOG_INFO, arena_printf(a, "no machine code for this program, so C: %s", reason));
        return false;
    }
    out->image = ARENA_NEW(a, device_image);
    *out->image = (device_image){ code.bytes,
                                  code.n_bytes,
                                  symbols(a, code.functions.at, code.functions.n),
                                  code.functions.n,
                                  symbols(a, code.imports.at, code.imports.n),
                                  code.imports.n };
    out->name = arena_strdup(a, caps.code);
    out->scratch = (size_t)code.scratch * (size_t)p->target.threads;
    return true;
}

void drive_emit(const tn_program *p, const plan *what, arena *a, drive_code *out) {
    str text;
    *out = (drive_code){ 0 };
    if (p->target.kind == TARGET_CPU && as_machine_code(p, what, a, out)) return;
    str_init(&text, a);
    if (p->target.kind == TARGET_GPU) {
        device_caps caps;
        p->dev->api->get_caps(p->dev, &caps);
        emit_gpu(what, !strcmp(caps.code, "cuda") ? GPU_CUDA : GPU_OPENCL, &text);
        out->name = arena_strdup(a, caps.code);
    } else {
        out->scratch = (size_t)emit_c(what, &p->target, &text) * (size_t)p->target.threads;
        out->name = "c";
    }
    out->source = text.s, out->n_source = text.n;
}

/* Copies what nodes hold, but for large constants and states that no run changes: drive_keep_values finds those a place. */
static void own_values(graph *g) {
    for (val v = 1; v < (val)g->nodes.n; v++) {
        node *n = graph_get(g, v);
        if (n->data && !drive_is_large_constant(g, v) && (n->op != OP_state || graph_is_assigned(g, v)))
            n->data = arena_copy(g->a, n->data, drive_value_bytes(g, v));
    }
}

static void keep_values(job *j) { drive_keep_values(j->p); }

static bool is_named_before(const void *x, const void *y, const void *io) {
    return strcmp(((const pio *)io)[*(const int *)x].name, ((const pio *)io)[*(const int *)y].name) < 0;
}

void drive_sort_names(tn_program *p) {
    int *order = ARENA_ARRAY(&p->arena, int, p->n_io + 1);
    for (int i = 0; i < p->n_io; i++) order[i] = i;
    merge_sort(&p->arena, order, p->n_io, sizeof *order, is_named_before, p->io);
    p->io_by_name = order;
}

/* Sessions may be made by many threads: what they need is found now. */
static void find_maps(tn_program *p) {
    kmaps *maps = ARENA_ARRAY(&p->arena, kmaps, p->plan->kernels.n + 1);
    str reason;
    str_init(&reason, &p->arena);
    for (int i = 0, stages; i < p->plan->kernels.n; i++) kernel_maps(p->plan->kernels.at[i].k, &maps[i], &stages, &reason);
    p->maps = maps;
}

static void find_rows(tn_program *p) {
    if (!p->plan->params) return;
    int n_rows = p->plan->params->at.n;
    given_rows *rows = ARENA_ARRAY(&p->arena, given_rows, p->plan->kernels.n + 1);
    for (int i = 0; i < p->plan->kernels.n; i++) {
        bool *used = ARENA_ARRAY(&p->arena, bool, n_rows + 1), *given = ARENA_ARRAY(&p->arena, bool, n_rows + 1);
        int *at = ARENA_ARRAY(&p->arena, int, n_rows + 1);
        if (p->plan->kernels.at[i].k->params) kernel_used_rows(p->plan->kernels.at[i].k, used, given);
        for (int r = 0; r < n_rows; r++)
            if (given[r]) at[rows[i].n++] = r;
        rows[i].at = at;
    }
    p->rows = rows;
}

/* Steps of a run may overlap where temporaries, and results that the next step overwrites, have memory of their own; those of a
 * run's sizes, where they are small. */
static void find_elems(tn_program *p) {
    const plan *l = p->plan;
    bool overlaps = l->params ? p->opts.mode == TN_MODE_LOOP && p->target.overlaps && mem_may_overlap(l)
                              : plan_loop(l) && plan_loop(l)->overlaps;
    if (!overlaps) return;
    ext *elems = ARENA_ARRAY(&p->arena, ext, l->bufs.n + 1);
    for (int i = 0; i < l->kernels.n; i++)
        for (int b = 0; b < l->kernels.at[i].k->bufs.n; b++) {
            int32_t buf = l->kernels.at[i].args[b].buf;
            ext own = l->kernels.at[i].k->bufs.at[b].elems;
            bool moves = buf >= 0 && (l->bufs.at[buf].kind == PB_TEMP || l->bufs.at[buf].kind == PB_OUTPUT);
            if (!moves || elems[buf] == own) continue;
            elems[buf] = !elems[buf]        ? own
                         : l->params        ? ext_max(l->params, elems[buf], own)
                         : own > elems[buf] ? own
                                            : elems[buf];
        }
    p->elems = elems;
}

static void compile_half(job *j) {
    tn_program *p = j->p;
    bool by_node = p->opts.mode == TN_MODE_IMMEDIATE;
    p->graph = graph_clone(j->g, &p->arena, by_node, NULL);
    graph_compact(p->graph);
    if (by_node) {
        list_slots(p);
        drive_sort_names(p);
        return;
    }
    own_values(p->graph);
    p->plan = pipeline_run(p->graph, &p->arena, &p->opts, &p->target);
    p->io = p->plan->io.at, p->n_io = p->plan->io.n;
    p->states = p->plan->states.at, p->n_states = p->plan->states.n;
    p->kernel_entry = ARENA_ARRAY(&p->arena, void *, p->plan->kernels.n + 1);
    find_maps(p), find_elems(p), find_rows(p);
    drive_sort_names(p);
    if (j->whole) p->only = arena_copy(&p->arena, j->dims, sizeof *p->only * (size_t)j->whole->plan->params->n_dims);
    count(p);
}

/* The code of special programs stands behind the program's: a device compiles all of it at once. */
static void emit_half(job *j) {
    tn_program *p = j->p;
    plan all = *p->plan;
    all.kernels.at = arena_copy(&j->written, all.kernels.at, sizeof *all.kernels.at * (size_t)all.kernels.n);
    all.kernels.cap = all.kernels.n;
    for (int s = 0; s < p->n_special; s++) {
        int first = p->special[s]->first_code = all.kernels.n;
        for (int i = 0; i < p->special[s]->plan->kernels.n; i++) {
            pkernel k = p->special[s]->plan->kernels.at[i];
            k.code += first;
            VEC_PUSH(&j->written, &all.kernels, k);
        }
    }
    drive_emit(p, p->n_special ? &all : p->plan, &j->written, &j->code);
    p->code = arena_strdup(&p->arena, j->code.name);
    p->scratch = j->code.scratch;
}

static tn_status guarded(job *j, void (*what)(job *j)) {
    if (GUARD_TRY(&j->p->gd)) {
        what(j);
        return TN_OK;
    }
    err_set(j->e, j->p->gd.err.code, "%s", j->p->gd.err.text);
    return j->p->gd.err.code;
}

/* ---- run half ---- */

static tn_status find_entries(tn_program *p, module *m, err *e) {
    bool gpu = p->target.kind == TARGET_GPU; /* one entry for equal kernels */
    tn_status status = TN_OK;
    for (int i = 0; i < p->plan->kernels.n && !status; i++) {
        char name[32];
        snprintf(name, sizeof name, "tn_kernel_%d", gpu ? p->first_code + p->plan->kernels.at[i].code : i);
        status = p->dev->api->find(p->dev, m, name, &p->kernel_entry[i], e);
    }
    return status;
}

tn_status drive_build(tn_program *p, const drive_code *code, err *e) {
    const device_api *api = p->dev->api;
    double start = now_seconds();
    bool hit = false;
    tn_status status = code->image
                           ? api->load(p->dev, code->image, &p->module, e)
                           : api->build(p->dev, code->source, code->n_source, p->opts.no_cache != 0, &p->module, &hit, e);
    if (status) return status;
    p->stats.build_seconds = now_seconds() - start;
    p->stats.cache_hits = hit, p->stats.cache_misses = !hit;
    bool whole = code->image ? plan_is_one_function(p->plan) : !plan_has_control(p->plan);
    whole = whole && p->target.kind != TARGET_GPU;
    if (whole && (status = api->find(p->dev, p->module, "tn_main", &p->main_entry, e))) return status;
    status = find_entries(p, p->module, e);
    for (int i = 0; i < p->n_special && !status; i++) status = find_entries(p->special[i], p->module, e);
    return status;
}

tn_status drive_compile_on(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, tn_program **out, err *e) {
    tuning *measured = atomic_load(&ctx->tuning);
    return drive_compile_tuned(ctx, dev, g, opts, measured ? &measured->table : NULL, out, e);
}

static void tell(const tn_program *p, const graph *g) {
    const tn_program_stats *s = &p->stats;
    char text[256];
    if (!p->ctx->log || !p->plan) return;
    for (int i = 0; i < p->plan->kernels.n; i++) {
        const pkernel *pk = &p->plan->kernels.at[i];
        if (!pk->ignored) continue;
        snprintf(text, sizeof text, "kernel @%.64s: the tuning database's schedule is ignored: %.120s", pk->k->name,
                 pk->ignored);
        p->ctx->log(p->ctx->log_ud, TN_LOG_INFO, text);
    }
    snprintf(text, sizeof text, "@%.64s for %s: %d kernels (%d different) in %.0f us, code %s", g->name, p->opts.device,
             s->kernels, s->distinct_kernels, s->compile_seconds * 1e6, s->cache_hits ? "from the cache" : "made");
    p->ctx->log(p->ctx->log_ud, TN_LOG_DEBUG, text);
}

/* Nothing of a special program refers to the graph that it was made of. */
static void drop_values(job *j) {
    for (val v = 1; v < (val)j->p->plan->g->nodes.n; v++) graph_get(j->p->plan->g, v)->data = NULL;
    for (val v = 1; v < (val)j->p->graph->nodes.n; v++) graph_get(j->p->graph, v)->data = NULL;
}

/* A program without code yet. */
static tn_status plan_program(tn_ctx *ctx, device *dev, const tn_compile_opts *opts, const ktuning *tuned, job *j) {
    tn_program *p = j->p = mem_alloc(ctx->mem, sizeof *p);
    if (!p) return err_set(j->e, TN_ERR_NOMEM, "out of memory: a program");
    p->ctx = ctx, p->opts = *opts, p->dev = dev;
    p->opts.device = dev->api->name; /* the caller's string need not live on */
    device_caps caps;
    dev->api->get_caps(dev, &caps);
    p->target = drive_target(&caps, tuned), p->target.no_panels = opts->no_panels ? PANELS_FOR_ANY_ROWS : 0;
    if (j->whole || drive_takes_special(j->g, opts, dev, &p->target)) p->target.no_panels = PANELS_NEVER;
    p->stats.threads = caps.threads;
    arena_init(&p->arena, ctx->mem, &p->gd);
    tn_status status = guarded(j, compile_half);
    p->opts.schedule = NULL; /* the caller's, too */
    return status;
}

typedef struct fixed { /* a graph with values for some dims */
    guard gd;
    arena a;
    graph *g;
} fixed;

static tn_status fix_dims(fixed *w, const graph *g, const int64_t *dims, err *e) {
    if (GUARD_TRY(&w->gd)) {
        w->g = graph_at(g, dims, &w->a);
        return TN_OK;
    }
    return err_set(e, w->gd.err.code, "%s", w->gd.err.text);
}

/* The one for these dims, where it is of at most so many launches. */
static tn_status plan_special(tn_program *p, const graph *g, const int64_t *dims, int most, err *e) {
    fixed w = { .g = NULL };
    job j = { .whole = p, .dims = dims, .e = e };
    arena_init(&w.a, p->ctx->mem, &w.gd);
    tn_status status = fix_dims(&w, g, dims, e);
    j.g = w.g;
    if (!status) status = plan_program(p->ctx, p->dev, &p->opts, p->target.tuning, &j);
    arena_fini(&w.a);
    if (!status && drive_wants_special(p, j.p, most))
        drive_add_special(p, j.p);
    else
        drive_program_free(j.p);
    return status;
}

/* Those for the least sizes; where that saves most launches, of not very many, for each dim's least values with the others
 * open, while these do. */
static tn_status plan_specials(tn_program *p, const graph *g, err *e) {
    enum { VALUES = 2, FEWER = 2, LAUNCHES = 64 };
    const exts *t = g->params;
    int all = p->plan->kernels.n, most = all / FEWER;
    int64_t *dims = mem_alloc(p->ctx->mem, sizeof *dims * (size_t)t->n_dims);
    if (!dims) return err_set(e, TN_ERR_NOMEM, "out of memory: a program");
    for (int d = 0; d < t->n_dims; d++) dims[d] = ext_lo(t, exts_dim(t, d));
    tn_status status = plan_special(p, g, dims, all - 1, e);
    bool worth = p->n_special && p->special[0]->plan->kernels.n <= most && all <= LAUNCHES;
    for (int d = 0; d < t->n_dims; d++) dims[d] = -1;
    for (int d = 0; d < t->n_dims && worth; d++) {
        const ext_row *r = exts_row(t, exts_dim(t, d));
        bool more = true;
        for (int i = t->n_dims == 1; i < VALUES && r->lo + i * r->divisor <= r->hi && more && !status; i++) {
            int before = p->n_special;
            dims[d] = r->lo + i * r->divisor;
            if (before < DRIVE_MOST_SPECIAL) status = plan_special(p, g, dims, most, e);
            more = p->n_special > before;
        }
        dims[d] = -1;
    }
    mem_free(p->ctx->mem, dims, sizeof *dims * (size_t)t->n_dims);
    return status;
}

static tn_status finish(job *j) {
    tn_program *p = j->p;
    tn_status status = drive_constants(p, p->plan, &p->consts, j->e);
    if (!status && !j->whole) status = drive_share_states(p, j->e);
    return status ? status : guarded(j, j->whole ? drop_values : keep_values);
}

static tn_status compile(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, const ktuning *tuned,
                         bool specials, tn_program **out, err *e) {
    double start = now_seconds();
    job j = { .g = g, .e = e };
    tn_status status = plan_program(ctx, dev, opts, tuned, &j);
    tn_program *p = j.p;
    bool built = opts->mode != TN_MODE_IMMEDIATE;
    if (!status && specials && built && drive_takes_special(g, opts, dev, &p->target)) status = plan_specials(p, g, e);
    if (!status && built) {
        arena_init(&j.written, ctx->mem, &p->gd);
        status = guarded(&j, emit_half);
        if (!status) status = drive_build(p, &j.code, e);
        arena_fini(&j.written);
        if (!status) status = finish(&j);
        for (int i = 0; i < p->n_special && !status; i++) status = finish(&(job){ .p = p->special[i], .whole = p, .e = e });
    }
    if (status) {
        drive_program_free(p);
        return status;
    }
    p->stats.compile_seconds = now_seconds() - start;
    tell(p, g);
    *out = p;
    return TN_OK;
}

tn_status drive_compile_tuned(tn_ctx *ctx, device *dev, const graph *g, const tn_compile_opts *opts, const ktuning *tuned,
                              tn_program **out, err *e) {
    return compile(ctx, dev, g, opts, tuned, false, out, e);
}

tn_status drive_compile(tn_ctx *ctx, const graph *g, const tn_compile_opts *opts, tn_program **out) {
    tn_compile_opts o;
    device *dev;
    char reason[WHY_BYTES] = "";
    tn_status status = drive_resolve(ctx, opts, &o);
    if (status) return status;
    status = !strcmp(o.device, "auto") ? drive_choose(ctx, g, &o, &dev, reason, &ctx->err)
                                       : ctx_device(ctx, o.device, o.threads, &dev, &ctx->err);
    tuning *measured = atomic_load(&ctx->tuning);
    if (!status) status = compile(ctx, dev, g, &o, measured ? &measured->table : NULL, true, out, &ctx->err);
    if (!status) memcpy((*out)->why, reason, sizeof reason);
    return status;
}

void drive_program_free(tn_program *p) {
    if (!p) return;
    for (int i = 0; i < p->n_special; i++) drive_program_free(p->special[i]);
    if (p->consts) p->dev->api->free(p->dev, p->consts);
    if (p->shared) p->dev->api->free(p->dev, p->shared);
    if (p->module) p->dev->api->drop(p->dev, p->module);
    arena_fini(&p->arena);
    file_unmap(&p->file);
    mem_free(p->ctx->mem, p, sizeof *p);
}
