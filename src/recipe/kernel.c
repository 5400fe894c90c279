/* kernel.c - the schedule of a kernel by its target. */
#include "recipe/recipe.h"

/* The recipe's schedule first: what was measured must have its bits. */
static kernel *by_recipe(kernel *k, const target *t, const char *measured, recipe_made *out) {
    kernel *scalar = measured ? kernel_clone(k, k->a) : NULL;
    kernel *made = (t->kind == TARGET_GPU ? recipe_gpu : recipe_cpu)(k, t, &out->schedule);
    if (!measured) return made;
    kernel *other = recipe_tuned(scalar, t, out->schedule, measured, &out->schedule, &out->ignored);
    if (other) out->tuned = measured;
    return other ? other : made;
}

kernel *recipe_kernel(kernel *k, const target *t, const char *measured, recipe_made *out) {
    recipe_made made = { 0 };
    if (measured && !strcmp(measured, RECIPE_ITSELF)) measured = NULL;
    const schedule *given = schedule_find(t->schedules, k->name);
    if (given)
        k = schedule_apply(k, given, t, &made.schedule);
    else
        k = by_recipe(k, t, measured, &made);
    if (out) *out = made;
    return k;
}
