/* run.c - public entry points of programs and sessions: argument checks, then src/drive does the work.
 *
 * In: pointers from the host. Out: statuses, texts in the context. Names are looked up here and nowhere later. */
#include "api/api.h"
#include "drive/explain.h"
#include "run/run.h"
#include "emit/emit.h"
#include "loop/schedule.h"

#include <stdio.h>

/* ---- errors: programs and sessions may be used by several threads ---- */

static tn_status PRINTF_LIKE(3, 4) program_fail(const tn_program *p, tn_status code, const char *fmt, ...) {
    err e;
    va_list ap;
    va_start(ap, fmt);
    err_vset(&e, code, fmt, ap);
    va_end(ap);
    return ctx_report(p->ctx, &e);
}

/* ---- programs ---- */

tn_status tn_compile(tn_graph *g, const tn_compile_opts *opts, tn_program **out_program) {
    if (!g) return TN_ERR_INVAL;
    if (!out_program) return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_compile: out_program is NULL");
    *out_program = NULL;
    ctx_enter(g->ctx);
    if (g->err.code && g->n_later)
        return err_set(&g->ctx->err, g->err.code, "%s\n(and %d more errors: tn_graph_check lists them)", g->err.text,
                       g->n_later);
    if (g->err.code) return api_report(g->ctx, &g->err);
    if (g->ir->outputs.n == 0)
        return err_set(&g->ctx->err, TN_ERR_INVAL, "tn_compile: graph @%s has no outputs: use tn_output or tn_assign",
                       g->ir->name);
    return drive_compile(g->ctx, g->ir, opts, out_program);
}

void tn_program_free(tn_program *p) { drive_program_free(p); }

void tn_program_get_stats(const tn_program *p, tn_program_stats *out) {
    if (out) *out = p ? p->stats : (tn_program_stats){ 0 };
}

int tn_program_n_slots(const tn_program *p) { return p ? p->n_io : 0; }

static tn_shape shape_of(const graph *g, val v) {
    const node *n = graph_get(g, v);
    tn_shape s = { .rank = n->rank };
    for (int i = 0; i < n->rank; i++) s.dim[i] = n->dims[i];
    return s;
}
static const graph *graph_of(const tn_program *p) { return p->plan ? p->plan->g : p->graph; }

tn_status tn_program_slot(const tn_program *p, int slot, char *out_kind, const char **out_name, tn_dtype *out_dtype,
                          tn_shape *out_shape) {
    if (!p) return TN_ERR_INVAL;
    if (slot < 0 || slot >= p->n_io) return program_fail(p, TN_ERR_INVAL, "tn_program_slot: slot %d of %d", slot, p->n_io);
    const pio *io = &p->io[slot];
    if (out_kind) *out_kind = io->is_output ? 'o' : 'i';
    if (out_name) *out_name = io->name;
    if (out_dtype) *out_dtype = (tn_dtype)io->dtype;
    if (out_shape) *out_shape = shape_of(graph_of(p), io->node);
    return TN_OK;
}

typedef struct text_job {
    const tn_program *p;
    const char *stage;
    arena *a;
    str out;
    bool known;
} text_job;

/* The machine code of the program's level; where it went through C, of the level that its tiles were made for. */
static void text_machine(text_job *j, const tn_program *p) {
    machine_code code;
    const char *reason;
    x86_level level = p->target.vector_bytes >= 64 ? X86_AVX512 : p->target.vector_bytes >= 32 ? X86_AVX2 : X86_SSE;
    emit_x86_level(p->code, &level);
    if (!emit_x86(p->plan, level, j->a, &code, &j->out, &reason)) str_addf(&j->out, "no machine code: %s\n", reason);
}

/* For the device of the program, or for a GPU as most are. */
static void text_gpu(text_job *j, const tn_program *p, gpu_language language) {
    target common = target_common_gpu();
    common.local_barriers = common.overlaps = language == GPU_CUDA;
    emit_gpu(p->target.kind == TARGET_GPU ? p->plan
                                          : pipeline_run(drive_with_values(p, p->graph, j->a), j->a, &p->opts, &common),
             language, &j->out);
}

static void text_standalone(text_job *j, const tn_program *p) {
    const drive_processor *cpu = drive_find_processor(NULL);
    export_form form = { .name = export_name(j->a, p->plan->g->name), .flags = cpu->flags };
    export_files files;
    drive_export(p, &form, cpu, 1, j->a, &files);
    j->out = files.code;
}

/* With the values of all constants. */
static void text_plan(text_job *j, const tn_program *p) {
    plan with = *p->plan;
    if (p->n_packed) with.g = graph_clone(drive_with_values(p, p->plan->g, j->a), j->a, false, NULL);
    plan_print(&with, &j->out);
}

static void make_text(void *arg) {
    text_job *j = arg;
    const tn_program *p = j->p;
    bool cpu = p->target.kind == TARGET_CPU;
    str_init(&j->out, j->a);
    j->known = true;
    if (!strcmp(j->stage, "graph"))
        graph_print(drive_with_values(p, graph_of(p), j->a), &j->out);
    else if (!strcmp(j->stage, "opencl") && p->plan)
        text_gpu(j, p, GPU_OPENCL);
    else if (!strcmp(j->stage, "cuda") && p->plan)
        text_gpu(j, p, GPU_CUDA);
    else if (!strcmp(j->stage, "c") && p->plan && cpu)
        emit_c(p->plan, &p->target, &j->out);
    else if (!strcmp(j->stage, "x86") && p->plan && cpu)
        text_machine(j, p);
    else if (!strcmp(j->stage, "standalone") && p->plan && cpu)
        text_standalone(j, p);
    else if (!strcmp(j->stage, "kernels") && p->plan)
        plan_print_kernels(p->plan, &j->out);
    else if (!strcmp(j->stage, "scalar") && p->plan)
        for (int i = 0; i < p->plan->kernels.n; i++) {
            const pkernel *pk = &p->plan->kernels.at[i]; /* kernels beside each other on a GPU have one form */
            if (pk->code == i) kernel_print(pk->scalar ? pk->scalar : pk->k, &j->out);
        }
    else if (!strcmp(j->stage, "schedule") && p->plan)
        for (int i = 0; i < p->plan->schedules.n; i++) {
            const pschedule *x = &p->plan->schedules.at[i];
            if (x->s)
                schedule_print(x->s, &j->out);
            else /* a comment of the text, which reads back */
                str_addf(&j->out, "# @%s has a form that is no list of steps yet\n", x->name);
        }
    else if (!strcmp(j->stage, "plan") && p->plan)
        text_plan(j, p);
    else if (!strcmp(j->stage, "deps") && p->plan)
        plan_print_deps(p->plan, &j->out);
    else if (!strcmp(j->stage, "explain") && p->plan)
        explain_print(explain_make(p, j->a), &j->out);
    else if (!strcmp(j->stage, "explain.json") && p->plan)
        explain_json(explain_make(p, j->a), j->a, &j->out);
    else if (!strcmp(j->stage, "explain.short.json") && p->plan)
        explain_short_json(explain_make(p, j->a), j->a, &j->out);
    else if (!strcmp(j->stage, "passes.json") && p->plan)
        explain_passes(p, j->a, &j->out);
    else
        j->known = false;
}

tn_status tn_program_text(const tn_program *p, const char *stage, char **out_text) {
    if (out_text) *out_text = NULL;
    if (!p) return TN_ERR_INVAL;
    if (!stage || !out_text) return program_fail(p, TN_ERR_INVAL, "tn_program_text: stage or out_text is NULL");
    if (p->file.at)
        return program_fail(p, TN_ERR_UNSUPPORTED,
                            "tn_program_text: the program comes from a file, which has its code and no stage before it");
    guard gd;
    arena a;
    arena_init(&a, p->ctx->mem, &gd);
    text_job j = { .p = p, .stage = stage, .a = &a };
    tn_status code = api_try(&gd, make_text, &j);
    if (code)
        ctx_report(p->ctx, &gd.err);
    else if (!j.known)
        code = program_fail(p, TN_ERR_INVAL,
                            "tn_program_text: no stage \"%s\" in this program; stages are graph, plan, deps, scalar, schedule, "
                            "kernels, c, x86, "
                            "standalone, opencl, cuda, explain, explain.json, explain.short.json, passes.json",
                            stage);
    else if (!(*out_text = mem_strdup(p->ctx->mem, j.out.s)))
        code = program_fail(p, TN_ERR_NOMEM, "out of memory: a text of %zu bytes", j.out.n);
    arena_fini(&a);
    return code;
}

/* ---- sessions ---- */

tn_status tn_session_new(tn_program *p, tn_session **out) {
    if (!p) return TN_ERR_INVAL;
    if (!out) return program_fail(p, TN_ERR_INVAL, "tn_session_new: out_session is NULL");
    *out = NULL;
    err e;
    tn_status code = session_new(p, NULL, out, &e);
    return code ? ctx_report(p->ctx, &e) : TN_OK;
}

/* Whether states that no run changes are the same in two programs, in the same places; *unread: and in another order there,
 * which p does not read. */
static bool lie_alike(const tn_program *p, const tn_program *q, bool *unread) {
    bool alike = p->n_states == q->n_states && p->plan->shared_bytes == q->plan->shared_bytes;
    for (int i = 0; alike && i < p->n_states; i++) {
        const pbuf *a = &p->plan->bufs.at[p->states[i].buf], *b = &q->plan->bufs.at[q->states[i].buf];
        alike = a->slot == b->slot && !strcmp(p->states[i].name, q->states[i].name);
        if (!alike || a->slot != SLOT_SHARED) continue;
        bool same = a->dtype == b->dtype && (a->panels ? b->panels && kpanels_equal(a->panels, b->panels) : !b->panels);
        alike = a->offset == b->offset && a->bytes == b->bytes && !a->next_panels && !b->next_panels &&
                (same || !plan_reads(p->plan, p->states[i].buf));
        *unread |= !same;
    }
    return alike;
}

tn_status tn_session_new_sharing(tn_program *p, const tn_session *from, tn_session **out) {
    if (out) *out = NULL;
    if (!p) return TN_ERR_INVAL;
    if (!out || !from) return program_fail(p, TN_ERR_INVAL, "tn_session_new_sharing: %s is NULL", out ? "from" : "out_session");
    const tn_program *q = from->p;
    bool unread = from->unread;
    if (p->ctx != q->ctx || p->dev != q->dev || p->opts.mode == TN_MODE_IMMEDIATE || from->imm || !from->own_states ||
        (unread && p != q) || !lie_alike(p, q, &unread))
        return program_fail(
            p, TN_ERR_UNSUPPORTED,
            "tn_session_new_sharing: the states that no run changes are not the same, do not lie in the same way, "
            "or the other session has none of its own");
    err e;
    tn_status code = session_new(p, from, out, &e);
    if (!code) (*out)->unread = unread;
    return code ? ctx_report(p->ctx, &e) : TN_OK;
}
void tn_session_free(tn_session *s) { session_free(s); }

const char *tn_session_error(const tn_session *s) {
    if (!s) return "no session";
    return s->err.code ? s->err.text : "no error";
}

void tn_session_get_stats(const tn_session *s, tn_program_stats *out) {
    if (!out) return;
    *out = s ? s->p->stats : (tn_program_stats){ 0 };
    if (s && s->imm) immediate_get_stats(s->imm, out);
}

static tn_status run_watched(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring,
                             device_work *work, int cap, tn_span *out, int *out_n) {
    device *d = s->p->dev;
    int n = 0;
    err late;
    tn_status code = d->api->watch(d, work, cap, NULL, &s->err);
    if (code) return session_done(s, code);
    double start = now_seconds();
    code = tn_run_n(s, n_steps, rings, n_rings, n_ring);
    tn_status ended = d->api->watch(d, NULL, 0, &n, code ? &late : &s->err);
    if (!code && ended) return session_done(s, ended);
    for (int i = 0; i < n && !code; i++)
        out[i] = (tn_span){ work[i].what, work[i].bytes, (work[i].begin - start) * 1e6, (work[i].end - start) * 1e6 };
    *out_n = code ? 0 : n;
    return code;
}

tn_status tn_run_n_spans(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring, tn_span *out,
                         int cap, int *out_n) {
    if (!s) return TN_ERR_INVAL;
    if (!out || cap < 1 || cap > 1 << 20 || !out_n)
        return session_fail(s, TN_ERR_INVAL, "tn_run_n_spans: %d spans at %p, out_n at %p", cap, (void *)out, (void *)out_n);
    *out_n = 0;
    if (!s->p->dev->api->watch)
        return session_fail(s, TN_ERR_UNSUPPORTED, "tn_run_n_spans: the device %s does not tell when it copies and runs",
                            s->p->dev->api->name);
    mem m = s->p->ctx->mem;
    device_work *work = mem_alloc(m, (size_t)cap * sizeof *work);
    if (!work) return session_fail(s, TN_ERR_NOMEM, "out of memory: %d spans", cap);
    tn_status code = run_watched(s, n_steps, rings, n_rings, n_ring, work, cap, out, out_n);
    mem_free(m, work, (size_t)cap * sizeof *work);
    return code;
}

/* ---- profiling ---- */

static tn_status profiled(tn_session *s, const char *who, double seconds, double each, tn_profile **out_profile) {
    if (!s) return TN_ERR_INVAL;
    if (!out_profile) return session_fail(s, TN_ERR_INVAL, "%s: out_profile is NULL", who);
    *out_profile = NULL;
    if (!(seconds >= 0 && seconds <= 1e6))
        return session_fail(s, TN_ERR_INVAL, "%s: %g seconds; 0 to 1e6 are possible", who, seconds);
    if (s->p->file.at)
        return session_fail(s, TN_ERR_UNSUPPORTED, "%s: the program comes from a file, which does not say what its kernels do",
                            who);
    tn_status code = session_ready(s, who);
    return code ? code : session_done(s, profile_session(s, seconds, each, out_profile));
}

tn_status tn_session_profile(tn_session *s, double seconds, tn_profile **out_profile) {
    return profiled(s, "tn_session_profile", seconds, 0, out_profile);
}

tn_status tn_session_profile_repeated(tn_session *s, double seconds, double each, tn_profile **out_profile) {
    if (s && !(each > 0 && each <= 1))
        return session_fail(s, TN_ERR_INVAL, "tn_session_profile_repeated: each kernel %g seconds; up to 1 is possible", each);
    return profiled(s, "tn_session_profile_repeated", seconds, each, out_profile);
}

void tn_profile_free(tn_profile *p) { profile_free(p); }

void tn_profile_get_summary(const tn_profile *p, tn_profile_summary *out) {
    if (out) *out = p ? p->summary : (tn_profile_summary){ 0 };
}

tn_status tn_profile_kernel(const tn_profile *p, int i, tn_profiled_kernel *out) {
    if (!p) return TN_ERR_INVAL;
    if (i < 0 || i >= p->n || !out)
        return program_fail(p->p, TN_ERR_INVAL, "tn_profile_kernel: kernel %d of %d, out at %p", i, p->n, (void *)out);
    const kernel *k = p->p->plan->kernels.at[i].k;
    const kernel_times *t = &p->kernels[i];
    int64_t blocks = ext_hi(k->params, k->grid_blocks);
    *out = (tn_profiled_kernel){ .name = k->name,
                                 .parallel = k->block_threads ? blocks > 1 : k->par_var >= 0,
                                 .grid_blocks = blocks,
                                 .block_threads = k->block_threads,
                                 .bytes_read = k->bytes_read,
                                 .bytes_written = k->bytes_written,
                                 .flops = k->flops,
                                 .median_us = t->median * 1e6,
                                 .best_us = t->best * 1e6,
                                 .begin_us = t->begin * 1e6,
                                 .end_us = t->end * 1e6,
                                 .predicted_us = t->predicted.ns * 1e-3,
                                 .predicted_bound = cost_bound_text(&t->predicted, p->p->target.kind == TARGET_GPU) };
    for (int l = 0; l < MACHINE_LEVELS; l++) out->level_bytes[l] = t->predicted.bytes[l];
    return TN_OK;
}

/* ---- state ---- */

int tn_session_n_states(const tn_session *s) { return s ? s->p->n_states : 0; }

tn_status tn_session_state(const tn_session *s, int i, const char **out_name, tn_dtype *out_dtype, tn_shape *out_shape) {
    if (!s) return TN_ERR_INVAL;
    if (i < 0 || i >= s->p->n_states)
        return session_fail(s, TN_ERR_INVAL, "tn_session_state: state %d of %d", i, s->p->n_states);
    const pstate *st = &s->p->states[i];
    if (out_name) *out_name = st->name;
    if (out_dtype) *out_dtype = (tn_dtype)graph_get(graph_of(s->p), st->node)->dtype;
    if (out_shape) *out_shape = shape_of(graph_of(s->p), st->node);
    return TN_OK;
}

static int find_state(const tn_session *s, const char *name) {
    for (int i = 0; name && i < s->p->n_states; i++)
        if (!strcmp(s->p->states[i].name, name)) return i;
    return -1;
}

static size_t state_bytes(const tn_session *s, int i) { return drive_value_bytes(graph_of(s->p), s->p->states[i].node); }

static tn_status state_place(tn_session *s, const char *fn, const char *name, const void *data, size_t bytes, int *out) {
    *out = find_state(s, name);
    if (*out < 0) return session_fail(s, TN_ERR_INVAL, "%s: no state is named \"%s\"", fn, name ? name : "(null)");
    size_t need = state_bytes(s, *out);
    if (bytes != need) return session_fail(s, TN_ERR_SHAPE, "%s: %zu bytes given, state \"%s\" has %zu", fn, bytes, name, need);
    if (!data && need) return session_fail(s, TN_ERR_INVAL, "%s: data is NULL", fn);
    return TN_OK;
}

tn_status tn_session_get(tn_session *s, const char *state, void *data, size_t bytes) {
    if (!s) return TN_ERR_INVAL;
    int i;
    tn_status code = state_place(s, "tn_session_get", state, data, bytes, &i);
    if (code || bytes == 0) return code;
    if (s->imm) return session_done(s, immediate_session_get(s, s->p->states[i].node, data));
    return session_done(s, session_get(s, i, data));
}

tn_status tn_session_set(tn_session *s, const char *state, const void *data, size_t bytes) {
    if (!s) return TN_ERR_INVAL;
    int i;
    tn_status code = state_place(s, "tn_session_set", state, data, bytes, &i);
    if (code || bytes == 0) return code;
    if (s->imm) return session_done(s, immediate_session_set(s, s->p->states[i].node, data));
    return session_done(s, session_set(s, i, data));
}

tn_status tn_session_set_states(tn_session *s, const void *const *values) {
    if (!s) return TN_ERR_INVAL;
    if (!values) return session_fail(s, TN_ERR_INVAL, "tn_session_set_states: values is NULL");
    for (int i = 0; i < s->p->n_states; i++)
        if (!values[i] && state_bytes(s, i))
            return session_fail(s, TN_ERR_INVAL, "tn_session_set_states: the value of state \"%s\" is NULL",
                                s->p->states[i].name);
    return session_done(s, s->imm ? immediate_session_set_all(s, values) : session_set_all(s, values));
}

tn_status tn_session_copy_state(tn_session *to, const tn_session *from, int *out_n) {
    if (!to || !from) return TN_ERR_INVAL;
    int n = 0;
    tn_status code = TN_OK;
    for (int i = 0; i < to->p->n_states && !code; i++) {
        const char *name = to->p->states[i].name;
        int j = find_state(from, name);
        tn_dtype ta, tb;
        tn_shape sa, sb;
        if (j < 0 || tn_session_state(to, i, NULL, &ta, &sa) || tn_session_state(from, j, NULL, &tb, &sb)) continue;
        if (ta != tb || sa.rank != sb.rank || memcmp(sa.dim, sb.dim, sizeof(int64_t) * (size_t)sa.rank)) continue;
        if (!to->imm && to->shared && to->shared == from->shared && drive_is_shared(to->p, i)) { /* there already */
            n++;
            continue;
        }
        size_t bytes = tn_dtype_size(ta);
        for (int d = 0; d < sa.rank; d++) bytes *= (size_t)sa.dim[d];
        void *tmp = mem_alloc(to->p->ctx->mem, bytes);
        if (!tmp) return session_fail(to, TN_ERR_NOMEM, "out of memory: %zu bytes", bytes);
        code = tn_session_get((tn_session *)(uintptr_t)from, name, tmp, bytes);
        if (!code) code = tn_session_set(to, name, tmp, bytes);
        mem_free(to->p->ctx->mem, tmp, bytes);
        n += !code;
    }
    if (out_n) *out_n = n;
    return code;
}

tn_status tn_session_share_states(tn_session *to, const tn_session *from) {
    if (!to || !from) return TN_ERR_INVAL;
    if (to->p != from->p) return session_fail(to, TN_ERR_INVAL, "tn_session_share_states: the sessions are of two programs");
    if (to->imm)
        return session_fail(to, TN_ERR_UNSUPPORTED,
                            "tn_session_share_states: each session has its own states in mode immediate");
    session_share(to, from);
    return TN_OK;
}
