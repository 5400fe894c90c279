/* difference.c - what a schedule has that another has not, in words, for people. */
#include "recipe/recipe.h"

#include <stdio.h>

static const char *text_of(arena *a, const loop_step *s) {
    str text;
    str_init(&text, a);
    step_print(s, &text);
    return text.s;
}

/* A step with the same text, or on the same loop or buffer. */
static bool has_step(arena *a, const schedule *s, const loop_step *x, bool same_text) {
    const char *text = text_of(a, x);
    for (int i = 0; i < s->steps.n; i++) {
        const loop_step *y = &s->steps.at[i];
        if (y->op != x->op) continue;
        if (same_text ? !strcmp(text_of(a, y), text) : !x->n || !y->n || !strcmp(x->arg[0].word, y->arg[0].word)) return true;
    }
    return false;
}

static void add(arena *a, const schedule *from, const schedule *s, int nest, str *out) {
    char where[32] = "";
    if (nest) snprintf(where, sizeof where, "nest %d: ", nest);
    for (int i = 0; i < s->steps.n; i++) {
        const loop_step *x = &s->steps.at[i];
        const schedule *old = x->op == STEP_nests ? schedule_nests(from) : NULL;
        for (int n = 0; old && n < x->n_nests; n++) add(a, &old[n], &x->nest[n], n + 1, out);
        if (old || has_step(a, from, x, true)) continue;
        str_addf(out, "%s%s%s", out->n ? "; " : "", where, text_of(a, x));
    }
    for (int i = 0; i < from->steps.n; i++) {
        const loop_step *x = &from->steps.at[i];
        if (x->op == STEP_nests || has_step(a, s, x, false)) continue;
        str_addf(out, "%s%sno %s", out->n ? "; " : "", where, text_of(a, x));
    }
}

const char *recipe_difference(const schedule *from, const schedule *s, arena *a) {
    str out;
    str_init(&out, a);
    add(a, from, s, 0, &out);
    return out.n ? out.s : "as the recipe has it";
}
