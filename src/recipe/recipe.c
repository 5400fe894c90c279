/* recipe.c - does and writes down the steps that a recipe decides on. */
#include "recipe/recipe.h"

#include <stdarg.h>
#include <stdio.h>

recipe recipe_make(kernel *k, const target *t) {
    recipe r = { .k = k, .t = t, .s = ARENA_NEW(k->a, schedule), .threads = -1 };
    r.s->name = k->name;
    return r;
}

enum { MOST_TEXT = 256 };

static bool do_step(recipe *r, const char *text, str *why) {
    loop_step s = step_parse(r->k->a, text);
    if (!step_apply(&r->k, &s, why)) return false;
    VEC_PUSH(r->k->a, &r->s->steps, s);
    return true;
}

bool recipe_try(recipe *r, const char *fmt, ...) {
    str why;
    str_init(&why, r->k->a);
    char text[MOST_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bool done = do_step(r, text, &why);
    return done;
}

void recipe_do(recipe *r, const char *fmt, ...) {
    str why;
    str_init(&why, r->k->a);
    char text[MOST_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bool done = do_step(r, text, &why);
    if (done) return;
    guard_fail(r->k->a->gd, TN_ERR_INTERNAL, "kernel %s: the recipe's step \"%s\" is refused: %s", r->k->name, text, why.s);
}
