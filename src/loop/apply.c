/* apply.c - does a step to a kernel: the one place that knows all of them. */
#include "loop/loop.h"
#include "loop/schedule.h"

static bool is_for_gpus(const loop_step *s) { return step_get((step_op)s->op)->devices == STEP_GPU; }

/* All steps until one is refused; *why has a reason then, with the step. */
static bool apply_all(kernel **k, const schedule *s, str *why) {
    str reason;
    str_init(&reason, (*k)->a);
    for (int i = 0; i < s->steps.n; i++) {
        if (step_apply(k, &s->steps.at[i], &reason)) continue;
        why->n = 0;
        str_addf(why, "step %d, \"", i + 1);
        step_print(&s->steps.at[i], why);
        str_addf(why, "\": %s", reason.s);
        return false;
    }
    return (*k)->tiled ||
           step_refuse(why, "there is no step \"tile\", which writes the vectors, nor one that binds loops to the "
                            "threads of a GPU, such as \"bind_grid 256\"");
}

bool step_nests(kernel **k, const loop_step *s, str *why) {
    arena *a = (*k)->a;
    kernel **tiled = ARENA_ARRAY(a, kernel *, s->n_nests + 1);
    knest all = { 0 };
    str reason;
    str_init(&reason, a);
    while (loop_next_nest(*k, &all)) {
    }
    if (all.all != s->n_nests) return step_refuse(why, "the kernel has %d nests; steps of %d are given", all.all, s->n_nests);
    for (int i = 0; i < s->n_nests; i++) {
        tiled[i] = loop_nest(*k, i);
        for (int j = 0; j < s->nest[i].steps.n; j++)
            if (is_for_gpus(&s->nest[i].steps.at[j])) return step_refuse(why, "nest %d: step %d is for GPUs", i + 1, j + 1);
        if (!apply_all(&tiled[i], &s->nest[i], &reason)) return step_refuse(why, "nest %d: %s", i + 1, reason.s);
        if (tiled[i]->par_var >= 0)
            return step_refuse(why, "nest %d: threads share loops around the nests; the step parallel stands before nests",
                               i + 1);
    }
    *k = loop_put_nests(*k, tiled);
    return true;
}

static const char *dim_names(const kernel *k) {
    str out;
    str_init(&out, k->a);
    for (int i = 0; i < k->params->at.n; i++)
        if (k->params->at.at[i].op == EXT_DIM) str_addf(&out, "%s$%s", out.n ? ", " : "", k->params->at.at[i].name);
    return out.s;
}

static bool takes_form(const kernel *k, step_op op, str *why) {
    int forms = step_get(op)->forms, form = k->block_threads ? FORM_BLOCKS : k->tiled ? FORM_TILED : FORM_SCALAR;
    if (forms & form) return true;
    if (form == FORM_BLOCKS)
        return step_refuse(why, "the loops are bound to threads of a GPU already: %s",
                           forms & FORM_SCALAR ? "this step comes before that" : "this step is for processors");
    if (form == FORM_TILED)
        return step_refuse(why, "the kernel is tiled already: %s",
                           forms & FORM_SCALAR ? "this step comes before tile" : "this step is for GPUs");
    return step_refuse(why, forms & FORM_TILED
                                ? "the kernel is not tiled yet: this step comes after tile"
                                : "the loops are not bound to threads yet: this step comes after a step that does");
}

/* The sizes of the kernel may be given at run time. */
static bool takes_params(step_op op) {
    return op == STEP_tile || op == STEP_parallel || op == STEP_multiply_add || op == STEP_block_rows ||
           op == STEP_fuse_loops || op == STEP_nests || op == STEP_reorder || op == STEP_hoist || op == STEP_vectorize ||
           op == STEP_unroll_jam || op == STEP_online_softmax || op == STEP_bind_row_tiles || op == STEP_reduce_columns ||
           op == STEP_dce;
}

bool step_apply(kernel **k, const loop_step *s, str *why) {
    static bool (*const apply[STEP_COUNT])(kernel **, const loop_step *, str *) = {
#define STEP(name, args, order, form, devices, text) [STEP_##name] = step_##name,
#include "loop/steps.def"
#undef STEP
    };
    if (!apply[s->op]) return step_refuse(why, "there is no such step");
    if (!takes_form(*k, (step_op)s->op, why)) return false;
    if ((*k)->params && !takes_params((step_op)s->op))
        return step_refuse(why, "the kernel has sizes that are given at run time (%s): this step needs literal ones",
                           dim_names(*k));
    bool blocks = !(*k)->tiled && loop_has_blocks(*k);
    if (blocks && s->op != STEP_parallel && s->op != STEP_nests)
        return step_refuse(why, "the kernel goes by blocks of rows: only parallel and nests come before it is tiled");
    if (!blocks && s->op == STEP_nests) return step_refuse(why, "the kernel does not go by blocks of rows");
    bool moves = s->op == STEP_reorder || s->op == STEP_fuse_loops || s->op == STEP_split || s->op == STEP_block_rows ||
                 s->op == STEP_pack || s->op == STEP_accumulate || is_for_gpus(s);
    if (moves && (*k)->par_var >= 0)
        return step_refuse(why, "threads share the loops already: this step comes before parallel");
    return apply[s->op](k, s, why);
}

bool schedule_try(kernel **k, const schedule *s, str *why) {
    str text;
    str_init(&text, (*k)->a);
    if (!apply_all(k, s, why)) return false;
    if (kernel_check(*k, &text)) return step_refuse(why, "what it makes is not sound: %s", text.s);
    return true;
}

/* What the kernel needs and the target has not; NULL: nothing. */
static const char *lacks(const kernel *k, const target *t) {
    int64_t bytes = kernel_shared_bytes(k);
    int most = t->max_block_threads > t->block_threads ? t->max_block_threads : t->block_threads;
    if (k->block_threads > most)
        return arena_printf(k->a, "%d threads a thread block; the device has at most %d", k->block_threads, most);
    int64_t room = target_shared_most(t);
    if (bytes > room)
        return arena_printf(k->a, "%lld bytes of shared memory a thread block; the device has %lld", (long long)bytes,
                            (long long)room);
    for (int i = 1; i < k->ins.n && !t->bulk; i++)
        if (k->ins.at[i].op == K_LOAD && k->ins.at[i].mode == LOAD_BULK) return "copies in boxes; the device has none";
    if (k->cluster > (t->cluster > 1 ? t->cluster : 1))
        return arena_printf(k->a, "clusters of %d thread blocks; the device has %d", k->cluster, t->cluster);
    return NULL;
}

kernel *schedule_apply(kernel *k, const schedule *s, const target *t, const schedule **out) {
    str why;
    str_init(&why, k->a);
    if (!schedule_try(&k, s, &why)) guard_fail(k->a->gd, TN_ERR_INVAL, "schedule @%s: %s", s->name, why.s);
    const char *more = t->kind == TARGET_GPU ? lacks(k, t) : NULL;
    if (more) guard_fail(k->a->gd, TN_ERR_INVAL, "schedule @%s: the kernel has %s", s->name, more);
    if ((t->kind == TARGET_GPU) != (k->block_threads > 0))
        guard_fail(k->a->gd, TN_ERR_INVAL, "schedule @%s: its steps are for %s", s->name,
                   k->block_threads ? "GPUs" : "processors");
    if (out) *out = s;
    return k;
}
