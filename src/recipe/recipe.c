/* recipe.c - does and writes down the steps that a recipe decides on. */
#include "recipe/recipe.h"

#include <stdarg.h>
#include <stdio.h>

recipe recipe_make(kernel *k, const target *t) {
    recipe r = { .k = k, .t = t, .s = ARENA_NEW(k->a, schedule), .threads = -1 };
    r.s->name = k->name;
    return r;
}

int64_t recipe_local_bytes(const kernel *k) {
    int64_t n = 0;
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_LOCAL) n += k->bufs.at[b].elems * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype);
    return n;
}

enum { MOST_TEXT = 256 };

typedef struct attempt {
    char text[MOST_TEXT]; /* of the step */
    str why;              /* it is refused */
} attempt;

static bool do_step(recipe *r, attempt *x, const char *fmt, va_list ap) {
    vsnprintf(x->text, sizeof x->text, fmt, ap);
    str_init(&x->why, r->k->a);
    loop_step s = step_parse(r->k->a, x->text);
    if (!step_apply(&r->k, &s, &x->why)) return false;
    VEC_PUSH(r->k->a, &r->s->steps, s);
    return true;
}

bool recipe_try(recipe *r, const char *fmt, ...) {
    attempt x;
    va_list ap;
    va_start(ap, fmt);
    bool done = do_step(r, &x, fmt, ap);
    va_end(ap);
    return done;
}

void recipe_do(recipe *r, const char *fmt, ...) {
    attempt x;
    va_list ap;
    va_start(ap, fmt);
    bool done = do_step(r, &x, fmt, ap);
    va_end(ap);
    if (done) return;
    guard_fail(r->k->a->gd, TN_ERR_INTERNAL, "kernel %s: the recipe's step \"%s\" is refused: %s", r->k->name, x.text, x.why.s);
}

void recipe_do_all(recipe *r, const char *steps) {
    while (*steps) {
        int n = (int)strcspn(steps, ";");
        recipe_do(r, "%.*s", n, steps);
        steps += n;
        steps += strspn(steps, "; ");
    }
}
