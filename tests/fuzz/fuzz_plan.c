/* fuzz_plan.c - any bytes as the text of a plan, or, behind "kernel", of a kernel. What parses must print, parse back and print
 * the same again, and the checks must survive it. */
#include "ir/plan.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int check_plan(arena *a, const char *text, size_t n, str *first, str *second, str *problems) {
    const plan *p = plan_parse(a, text, n, "f");
    int bad = 0;
    plan_print(p, first);
    plan_print(plan_parse(a, first->s, first->n, "printed"), second);
    for (int i = 0; i < p->kernels.n; i++) bad += kernel_check(p->kernels.at[i].k, problems);
    return bad ? bad : plan_check(p, problems);
}

static int check_kernel(arena *a, const char *text, size_t n, str *first, str *second, str *problems) {
    const kernel *k = kernel_parse(a, text, n, "f");
    kernel_print(k, first);
    kernel_print(kernel_parse(a, first->s, first->n, "printed"), second);
    return kernel_check(k, problems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    arena a;
    guard gd;
    const char *text = (const char *)data;
    arena_init(&a, mem_libc(), &gd);
    if (GUARD_TRY(&gd)) {
        str first, second, problems;
        str_init(&first, &a), str_init(&second, &a), str_init(&problems, &a);
        bool is_kernel = size > 6 && !memcmp(text, "kernel", 6);
        int n = (is_kernel ? check_kernel : check_plan)(&a, text, size, &first, &second, &problems);
        if (strcmp(first.s, second.s) || (n > 0) != (problems.n > 0)) abort();
    } else if ((gd.err.code != TN_ERR_PARSE && gd.err.code != TN_ERR_NOMEM) || !*gd.err.text) {
        abort();
    }
    arena_fini(&a);
    return 0;
}
