/* test_sched.c - layers (net_*.tn) and graphs that once were scheduled, tiled or placed wrongly: tests/sched/<name>.tn, at
 * every fusion level, with and without passes, for machines of every vector width. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>

#include "support/plan_run.h"

static const char *read_text(arena *a, const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be read", path);
    char *text = arena_alloc(a, 1 << 20);
    *out_n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

/* Kernels of the plan read back from their text, and have no problems then either. */
static void check_texts(arena *a, const char *name, const graph *g, int fusion) {
    char text[4096];
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    target t = plan_target((uint64_t)fusion);
    o.fusion = fusion;
    if (!plan_texts_agree(pipeline_run(g, a, &o, &t), a, text, sizeof text)) fail_msg("%s, fusion %d: %s", name, fusion, text);
}

static int run_file(arena *a, const char *name) {
    size_t n;
    int runs = 0;
    const char *path = arena_printf(a, "%s/sched/%s", TESTS_DIR, name), *text = read_text(a, path, &n);
    graph *g = graph_parse(a, text, n, path);
    for (int fusion = 0; fusion < 4; fusion++) check_texts(a, name, g, fusion);
    for (uint64_t seed = 0; seed < 4; seed++) {
        reference r = reference_make(g, a, seed);
        for (int fusion = 0; fusion < 4; fusion++)
            for (int no_passes = 0; no_passes < 2; no_passes++, runs++) {
                plan_config c = { .seed = seed, .fusion = fusion, .no_passes = no_passes, .t = plan_target(seed) };
                if (!plan_config_agrees(g, &r, &c))
                    fail_msg("%s, seed %d, fusion %d, no_passes %d: %s", name, (int)seed, fusion, no_passes, c.text);
            }
    }
    return runs;
}

ARENA_TEST(test_files) {
    DIR *d = opendir(TESTS_DIR "/sched");
    assert_non_null(d);
    int files = 0, runs = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".tn")) continue;
        runs += run_file(a, e->d_name);
        files++;
    }
    closedir(d);
    assert_true(files > 0);
    printf("%d graphs, %d plans\n", files, runs);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_files) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
