/* tuned.c - a schedule from the tuning database: text that anybody may have written. It is heeded where all its steps are
 * possible, what they make is sound, and the bits are those of the recipe's schedule; else the reason is given. */
#include "recipe/recipe.h"

#include <stdio.h>

enum { MOST_WHY = 400 };

/* Kernels are found by their instructions; the letters of their loops' names may be others. A loop's number is its place. */
static void rename_loop(const kernel *k, step_arg *x) {
    char *digits = x->word;
    size_t n = 0;
    while (*digits && (*digits < '0' || *digits > '9')) digits++;
    for (const char *c = digits; *c >= '0' && *c <= '9' && n < 1000; c++) n = 10 * n + (size_t)(*c - '0');
    if (x->kind != ARG_WORD || *digits == 0 || x->word[0] == 'b' || n >= (size_t)k->vars.n) return;
    for (kvar v = 0; v < k->vars.n; v++)
        if (!strcmp(k->vars.at[v].name, x->word)) return;
    snprintf(x->word, sizeof x->word, "%.14s", k->vars.at[n].name);
}

static void rename_loops(const kernel *k, const schedule *s) {
    for (int i = 0; i < s->steps.n; i++) {
        const loop_step *x = &s->steps.at[i];
        step_arg *arg = arena_copy(k->a, x->arg, sizeof *arg * (size_t)x->n);
        for (int a = 0; a < x->n; a++) rename_loop(k, &arg[a]);
        s->steps.at[i].arg = arg;
        for (int n = 0; n < x->n_nests; n++) rename_loops(k, &x->nest[n]);
    }
}

static schedule *read(kernel *k, const char *text) {
    schedule *s = ARENA_NEW(k->a, schedule);
    *s = schedule_parse_steps(k->a, text, strlen(text), "tuning");
    s->name = k->name;
    rename_loops(k, s);
    return s;
}

typedef struct attempt {
    arena a;
    guard gd;
    bool possible;
    char why[MOST_WHY];
} attempt;

/* In memory of its own and with a guard of its own: whatever the text makes the steps do ends here. */
static void attempt_text(attempt *x, const kernel *scalar, const target *t, const schedule *model, const char *text) {
    arena_init(&x->a, scalar->a->mem, &x->gd);
    if (GUARD_TRY(&x->gd)) {
        kernel *k = kernel_clone(scalar, &x->a);
        str why;
        str_init(&why, &x->a);
        const schedule *s = read(k, text);
        if (schedule_same_bits(scalar, model, s, &why)) schedule_apply(k, s, t, NULL), x->possible = true;
        snprintf(x->why, sizeof x->why, "%.399s", why.s);
    } else {
        snprintf(x->why, sizeof x->why, "%.399s", x->gd.err.text);
    }
    arena_fini(&x->a);
}

kernel *recipe_tuned(kernel *k, const target *t, const schedule *model, const char *text, const schedule **out,
                     const char **why) {
    attempt x = { .possible = false };
    attempt_text(&x, k, t, model, text);
    if (x.gd.err.code == TN_ERR_NOMEM) guard_fail(k->a->gd, TN_ERR_NOMEM, "%s", x.why);
    *why = x.possible ? NULL : arena_strdup(k->a, x.why);
    return x.possible ? schedule_apply(k, read(k, text), t, out) : NULL;
}
