/* pipeline.c - the whole compiler, one stage a line. In: a checked graph. Out: a plan with tiled kernels; everything lives in
 * the arena. */
#include "drive/drive.h"
#include "emit/emit.h"
#include "machine/cost.h"
#include "machine/machine.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "mem/mem.h"
#include "sched/sched.h"

static bool has_units(const target *t) { return t->kind == TARGET_GPU && t->matrix_units && machine_row_of(t)->matrix_f16 > 0; }

/* units: with the passes for matrix units. Returns whether one of these changed something. */
static bool run_passes(graph *g, arena *a, const tn_compile_opts *opts, const target *t, const pass_watch *w, bool units) {
    bool check = opts->check != 0, changed = false;
    if (!opts->no_passes)
        pass_run_all_watched(g, a, check, w);
    else /* not an optimisation: the scheduler knows no fold */
        pass_run_watched(g, pass_find("fold_lower"), a, check, w);
    if (!opts->no_passes && opts->fusion >= 2 && t->kind == TARGET_GPU) pass_run_stage_watched(g, STAGE_GPU, a, check, w);
    if (!opts->no_passes && opts->fusion >= 3 && has_units(t) && units)
        changed = g->params ? pass_run_watched(g, pass_find("recompute_weights"), a, check, w)
                            : pass_run_stage_watched(g, STAGE_UNITS, a, check, w);
    if (t->kind == TARGET_CPU) pass_run_stage_watched(g, STAGE_CPU, a, check, w);
    pass_run_stage_watched(g, STAGE_TARGET, a, check, w);
    return changed;
}

void pipeline_passes(graph *g, arena *a, const tn_compile_opts *opts, const target *t, const pass_watch *w) {
    run_passes(g, a, opts, t, w, true);
}

static void check_kernels(const plan *p, const char *stage) {
    str text;
    int n = 0;
    str_init(&text, p->a);
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.at[i].code == i) n += kernel_check(p->kernels.at[i].k, &text);
    if (n) guard_fail(p->a->gd, TN_ERR_INTERNAL, "%d problems after %s:\n%s", n, stage, text.s);
}

static void check_plan(const plan *p) {
    str text;
    str_init(&text, p->a);
    int n = plan_check(p, &text);
    if (n) guard_fail(p->a->gd, TN_ERR_INTERNAL, "%d problems of the plan:\n%s", n, text.s);
}

/* Tiling may have added local buffers, which have no place in the plan, and others that hold a fixed value in panels. */
void pipeline_args(plan *p, pkernel *pk, int n_before) {
    parg *args = ARENA_ARRAY(p->a, parg, pk->k->bufs.n + 1);
    for (int i = 0; i < pk->k->bufs.n; i++) {
        kbuf *b = &pk->k->bufs.at[i];
        if (b->panels)
            args[i].buf = plan_panels(p, pk->args[b->panels_of].buf, b->panels), b->node = p->bufs.at[args[i].buf].node;
        else
            args[i].buf = i < n_before && !kbuf_is_local(b) ? pk->args[i].buf : -1;
    }
    pk->args = args;
}

/* A launch of code that an earlier kernel has: its own name and buffers, the other's instructions. */
static kernel *share_code(const kernel *own, const kernel *code, arena *a) {
    kernel *k = arena_copy(a, code, sizeof *k);
    k->name = own->name;
    k->bufs.at = arena_copy(a, code->bufs.at, sizeof *k->bufs.at * (size_t)code->bufs.n);
    k->bufs.cap = code->bufs.n;
    for (int b = 0; b < own->bufs.n; b++) k->bufs.at[b].node = own->bufs.at[b].node;
    return k;
}

/* What was measured to be fastest for a scalar kernel, by its hash; NULL when nothing was. */
static const char *measured(uint64_t key, const target *t) {
    if (!t->tuning) return NULL;
    int lo = 0, hi = t->tuning->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (t->tuning->at[mid].key < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->tuning->n && t->tuning->at[lo].key == key ? t->tuning->at[lo].schedule : NULL;
}

/* Scalar kernels by their hashes, in a table of open addresses with more places than kernels. */
typedef struct known_kernel {
    uint64_t key;
    int smaller; /* see machine_parts */
    int at;      /* of the first of its code, + 1; 0 = a free place */
} known_kernel;

/* The place of kernel k, which has this part of the machine, among those known, or the free one where it belongs. */
static known_kernel *find_equal(const plan *p, const kernel *k, known_kernel of, known_kernel *table, uint64_t mask) {
    uint64_t i = of.key & mask;
    while (table[i].at && (table[i].key != of.key || table[i].smaller != of.smaller ||
                           !kernel_equal(p->kernels.at[table[i].at - 1].scalar, k)))
        i = (i + 1) & mask;
    return &table[i];
}

/* Equal kernels for equal parts of the machine, such as those of repeated layers, are optimised once. */
static void optimise(plan *p, const target *t) {
    const int *smaller = machine_parts(p, t);
    uint64_t mask = 1;
    while (mask < 2 * (uint64_t)p->kernels.n) mask = 2 * mask + 1;
    known_kernel *table = ARENA_ARRAY(p->a, known_kernel, mask + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        pkernel *pk = &p->kernels.at[i];
        int n_bufs = pk->k->bufs.n;
        uint64_t key = kernel_hash(pk->k, t->tuning_seed);
        known_kernel of = { key, smaller[i], i + 1 }, *known = find_equal(p, pk->k, of, table, mask);
        if (!known->at) *known = of;
        pk->code = known->at - 1;
        if (pk->code < i) {
            pk->k = share_code(pk->k, p->kernels.at[pk->code].k, p->a);
        } else {
            pk->scalar = kernel_clone(pk->k, p->a); /* recipe_kernel changes its kernel in place */
            recipe_made made;
            target own = *t;
            own.resident_threads /= smaller[i];
            pschedule one = { .name = pk->k->name };
            pk->k = recipe_kernel(pk->k, &own, measured(key, t), &made);
            one.s = pk->schedule = made.schedule, pk->ignored = made.ignored;
            if (made.tuned) pk->tuned = arena_strdup(p->a, made.tuned);
            VEC_PUSH(p->a, &p->schedules, one);
        }
        pipeline_args(p, pk, n_bufs);
    }
}

/* A schedule finds its kernel by name: kernels that make parts of one value, such as of a concat, are told apart. */
static void name_parts(plan *p) {
    int *parts = ARENA_ARRAY(p->a, int, p->g->nodes.n + 1);
    for (int i = 0; i < p->kernels.n; i++) {
        const pkernel *pk = &p->kernels.at[i];
        if (parts[pk->root]++) pk->k->name = arena_printf(p->a, "%s_part%d", pk->k->name, parts[pk->root]);
    }
}

/* The schedules that were given by hand: each must be a kernel's. */
static const schedule_list *given_schedules(plan *p, const tn_compile_opts *opts) {
    if (!opts->schedule) return NULL;
    schedule_list *given = ARENA_NEW(p->a, schedule_list);
    schedule_parse(p->a, opts->schedule, strlen(opts->schedule), "schedule", given);
    for (int s = 0; s < given->at.n; s++) {
        bool known = false;
        str names;
        str_init(&names, p->a);
        for (int i = 0; i < p->kernels.n && i < 32; i++) str_addf(&names, " %s", p->kernels.at[i].k->name);
        for (int i = 0; i < p->kernels.n; i++) known = known || !strcmp(p->kernels.at[i].k->name, given->at.at[s].name);
        if (!known)
            guard_fail(p->a->gd, TN_ERR_INVAL, "schedule @%s: the program has no kernel of that name; its kernels are%s%s",
                       given->at.at[s].name, names.s, p->kernels.n > 32 ? " .." : "");
    }
    return given;
}

static int64_t local_bytes(const target *t) { /* a thread block also combines sums there */
    return t->kind == TARGET_CPU ? MACHINE_LOCAL_BYTES : t->shared_bytes - 16 * t->block_threads;
}

static bool is_bound(const plan *p, int32_t buf) {
    for (int i = 0; i < p->kernels.n; i++)
        for (int x = 0; x < p->kernels.at[i].k->bufs.n; x++)
            if (p->kernels.at[i].args[x].buf == buf) return true;
    return false;
}

/* Weights of attention that were to be computed again where they are needed are stored all the same. */
static bool stores_weights(const plan *p) {
    bool *taken = ARENA_ARRAY(p->a, bool, p->g->nodes.n);
    recompute_weights_taken(p->g, taken);
    for (int b = 0; b < p->bufs.n; b++) /* a result may stand in an operand's place */
        for (int32_t at = b; at >= 0 && taken[p->bufs.at[b].node]; at = p->bufs.at[at].inplace_of)
            if (p->bufs.at[b].kind == PB_TEMP && is_bound(p, at)) return true;
    return false;
}

/* Scalar kernels of a graph that the passes have seen. */
static plan *plan_kernels(graph *g, arena *a, const tn_compile_opts *opts, const target *t) {
    plan *p = sched_plan(
        g, a,
        &(sched_opts){ .fusion = opts->fusion, .local_bytes = local_bytes(t), .rows_only = t->kind == TARGET_GPU, .t = t });
    if (opts->check) check_kernels(p, "lowering");
    mem_loop_states(p);
    mem_inplace(p, t->kind == TARGET_GPU ? t->resident_threads : 0);
    if (t->kind == TARGET_GPU && opts->fusion >= 3) mem_join_maps(p);
    mem_unread(p);
    if (opts->check) check_kernels(p, "the choice of what is done in place");
    if (opts->fusion >= 3 && t->kind == TARGET_GPU && !plan_has_control(p)) fuse_attention(p, t);
    if (opts->fusion >= 3 && t->kind == TARGET_GPU && !plan_has_control(p) && !p->params)
        fuse_attention_pairs(p, t), fuse_row_products(p, t), fuse_norm_products(p, t);
    return p;
}

static plan *plan_rest(plan *p, const tn_compile_opts *opts, const target *t) {
    if (opts->fusion >= 3 && !plan_has_control(p) && (!p->params || t->kind == TARGET_GPU))
        (t->kind == TARGET_GPU ? fuse_vertically : fuse_row_blocks)(p, t);
    if (opts->fusion >= 3 && !plan_has_control(p) && t->kind == TARGET_GPU) fuse_column_sums(p, t);
    if (opts->fusion >= 2 && t->kind == TARGET_CPU) lay_out_for_loops(p, t);
    if (opts->check) check_kernels(p, "chaining");
    target own = *t;
    name_parts(p);
    own.schedules = given_schedules(p, opts);
    optimise(p, &own);
    if (t->kind == TARGET_GPU && opts->fusion >= 3 && !plan_has_control(p)) fuse_horizontally(p, t);
    if (opts->check) check_kernels(p, "tiling");
    mem_steps(p, opts->mode != TN_MODE_GRAPH, opts->mode == TN_MODE_LOOP);
    mem_pack(p, t->overlaps ? t->l2_bytes : 0);
    if (opts->memory_limit && plan_loop(p) && plan_loop(p)->overlaps) plan_loop(p)->overlaps = 1;
    p->threads = t->threads;
    mem_barriers(p, t->threads);
    if (t->kind == TARGET_GPU) mem_block_barriers(p);
    if (opts->check) check_plan(p);
    return p;
}

/* ---- within a limit of memory ---- */

enum { MOST_ROUNDS = 12 }; /* of which each comes nearer to the limit */

static int64_t kept_bytes(const plan *p) { return p->state_bytes + p->shared_bytes + p->const_bytes; }

static uint64_t work_of(const plan *p) {
    uint64_t flops = 0;
    for (int i = 0; i < p->kernels.n; i++) flops += (uint64_t)p->kernels.at[i].k->flops;
    return flops;
}

/* The plan after some of p's values are computed again, or NULL. */
static plan *plan_again(const plan *p, int64_t aim, arena *a, const tn_compile_opts *opts, const target *t) {
    machine m = machine_of(t);
    cost *costs = ARENA_ARRAY(a, cost, p->kernels.n + 1);
    double *ns = ARENA_ARRAY(a, double, p->kernels.n + 1);
    graph *g = graph_clone(p->g, a, false, NULL);
    cost_plan(p, &m, a, costs);
    for (int i = 0; i < p->kernels.n; i++) ns[i] = costs[i].ns;
    int n = mem_recompute(p, g, ns, aim);
    if (!n) return NULL;
    graph_compact(g);
    plan *next = plan_rest(plan_kernels(g, a, opts, t), opts, t);
    next->again = p->again, next->again.n += n;
    return next;
}

static plan *keep_within(plan *p, arena *a, const tn_compile_opts *opts, const target *t) {
    int64_t limit = opts->memory_limit > INT64_MAX ? INT64_MAX : (int64_t)opts->memory_limit, goal = limit - kept_bytes(p);
    p->again.temp_bytes = p->temp_bytes, p->again.flops = work_of(p);
    plan *best = p;
    int64_t aim = goal - (p->temp_bytes - p->temp_bound);
    for (int round = 0; round < MOST_ROUNDS && best->temp_bytes > goal; round++) {
        plan *next = plan_again(best, aim, a, opts, t);
        if (!next) break;
        if (next->temp_bytes < best->temp_bytes) {
            best = next;
            aim = goal - (best->temp_bytes - best->temp_bound);
        } else {
            aim = (aim + best->temp_bound) / 2; /* too much at once */
        }
    }
    if (best->temp_bytes + kept_bytes(best) <= limit) return best;
    guard_fail(
        a->gd, TN_ERR_NOMEM,
        "memory_limit is %lld bytes; needed are %lld (temporaries %lld, states %lld, constants %lld), and %lld when %d values "
        "are computed again: allow more, or use smaller batches",
        (long long)limit, (long long)(p->temp_bytes + kept_bytes(p)), (long long)p->temp_bytes,
        (long long)(p->state_bytes + p->shared_bytes), (long long)p->const_bytes,
        (long long)(best->temp_bytes + kept_bytes(best)), best->again.n);
}

plan *pipeline_run(const graph *src, arena *a, const tn_compile_opts *opts, const target *t) {
    graph *g = graph_clone(src, a, src->a != a, NULL);
    bool changed = run_passes(g, a, opts, t, NULL, true);
    plan *p = plan_kernels(g, a, opts, t);
    if (changed && stores_weights(p)) { /* there is more to do than without the passes for matrix units */
        g = graph_clone(src, a, src->a != a, NULL);
        run_passes(g, a, opts, t, NULL, false);
        p = plan_kernels(g, a, opts, t);
    }
    p = plan_rest(p, opts, t);
    return opts->memory_limit ? keep_within(p, a, opts, t) : p;
}
