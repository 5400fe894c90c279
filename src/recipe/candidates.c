/* candidates.c - what a kernel could be like instead: the list from which `tenon tune` measures. In: the scalar form as sched/
 * wrote it, and a text to start from. Out: texts with the same bits, each of which makes other code: schedules for processors
 * (recipe/alternatives.c), tiles of contractions for GPUs.
 *
 * The cost model puts them in order and leaves out what it finds hopeless, which never was the fastest: of nine kernels
 * (products, convolutions, softmax, layer norm; one core of a Zen 5, other programs running) the fastest of 20 to 223 schedules
 * was predicted within 1.16 of the least prediction. It does not choose: schedules that differ in one decision it ranks with a
 * correlation of 0.1 to 0.7, and what it would take was up to 1.25 times slower than the recipe's. So recipes keep their rules
 * for tiles. */
#include "machine/cost.h"
#include "recipe/recipe.h"

#include <stdlib.h>

#define HOPELESS 1.5 /* times the least prediction */

int recipe_candidates(const kernel *scalar, const target *t, const char *from, arena *a, recipe_candidate *out, int cap) {
    recipe_made made;
    kernel *first = recipe_kernel(kernel_clone(scalar, a), t, from, &made);
    recipe_alternative *all = ARENA_ARRAY(a, recipe_alternative, cap + 1);
    int n = (t->kind == TARGET_GPU ? recipe_gpu_alternatives : recipe_alternatives)(scalar, t, made.schedule, a, all, cap),
        found = 0;
    for (int i = 0; i < n; i++) {
        bool known = kernel_equal(first, all[i].k);
        for (int j = 0; j < found; j++) known = known || kernel_equal(out[j].k, all[i].k);
        if (known) continue;
        str text;
        str_init(&text, a);
        schedule_print_steps(all[i].s, &text);
        out[found++] = (recipe_candidate){ .text = text.s, .k = all[i].k };
    }
    return found;
}

static int by_prediction(const void *x, const void *y) {
    const recipe_candidate *a = x, *b = y;
    return a->ns != b->ns ? (a->ns > b->ns) - (a->ns < b->ns) : strcmp(a->text, b->text);
}

int recipe_rank(const target *t, arena *a, recipe_candidate *all, int n) {
    machine m = machine_of(t);
    int worth = 0;
    for (int i = 0; i < n; i++) all[i].ns = cost_kernel(all[i].k, &m, NULL, a).ns;
    qsort(all, (size_t)n, sizeof *all, by_prediction);
    while (worth < n && all[worth].ns < HOPELESS * all[0].ns) worth++;
    return worth;
}

const char *recipe_change_text(const char *old, const char *text, arena *a) {
    if (!strcmp(old, text)) return "as the recipe has it";
    schedule from = schedule_parse_steps(a, old, strlen(old), "recipe"),
             s = schedule_parse_steps(a, text, strlen(text), "tuning");
    return recipe_difference(&from, &s, a);
}

const char *recipe_form_text(const kernel *k, arena *a) {
    str s;
    int64_t bytes = 0, fast = 0;
    str_init(&s, a);
    for (int v = 0; v < k->vars.n && !k->block_threads; v++) { /* of a GPU's kernel most loops are how it moves things */
        const kvar_info *x = &k->vars.at[v];
        if (x->role.unroll > 1 || x->role.lanes > 1)
            str_addf(&s, ", %s %d x %d of %lld", x->name, x->role.unroll, x->role.lanes, (long long)x->extent);
    }
    for (int b = 0; b < k->bufs.n; b++) {
        int64_t size = k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
        *(k->bufs.at[b].kind == KB_LOCAL ? &bytes : &fast) += kbuf_is_local(&k->bufs.at[b]) ? size : 0;
    }
    if (k->block_threads) str_addf(&s, ", %lld thread blocks of %d", (long long)k->grid_blocks, k->block_threads);
    if (bytes) str_addf(&s, ", copies of %.1f KiB", (double)bytes / 1024);
    if (fast) str_addf(&s, ", shared memory %.1f KiB", (double)fast / 1024);
    return s.n ? s.s + 2 : "one by one";
}
