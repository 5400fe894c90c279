/* test_block_barriers.c - which barriers inside kernels of GPUs go: small kernels, each with what must be left. That none too
 * many go in whole networks, eval/test_race and drive/test_gpu say: the interpreter finds races. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "mem/mem.h"
#include "support/support.h"

#define HEAD                                                                                                                   \
    "kernel @k(b0 in f32[64], b1 out f32[64], b2 shared f32[64], b3 shared f32[64]) tiled blocks 1 threads 8 {\n var g = 1\n"  \
    " var i = 8\n var j = 16\n var r = 4\n var m = 4\n var n = 2\n var o = 1\n loop g = 0 .. 1 step 1 blocks\n"
#define LOOP(v, n) "loop " v " = 0 .. " n " step 1 block-threads\n"
#define SERIAL(v, n) "loop " v " = 0 .. " n " step 1\n"
#define GET(b, at) "%9 = load " b "[" at "]  f32\n"
#define PUT(b, at) "%9 = const 1.0  f32\nstore " b "[" at "], %9  f32\n"
#define PUT_MASKED(b, at, m) "%9 = const 1.0  f32\nstore " b "[" at "], %9 where " m "  f32\n"
#define BARRIER "barrier\n"
#define END "end\n"
#define ALSO END "}\n"

static const struct {
    const char *text;
    int left;
    bool in_place; /* b1 lies where b0 does */
} cases[] = {
    /* each thread reads what it wrote */
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "i") END ALSO, 0, false },
    { HEAD LOOP("j", "16") PUT("b2", "j") END BARRIER LOOP("j", "16") GET("b2", "j") END ALSO, 0, false },
    /* its neighbour's */
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "i + 1") END ALSO, 1, false },
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "-i + 7") END ALSO, 1, false },
    /* other elements, another buffer, two reads */
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "-i + 15") END ALSO, 0, false },
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b3", "-i + 7") END ALSO, 0, false },
    { HEAD LOOP("i", "8") GET("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "-i + 7") END ALSO, 0, false },
    /* writes behind reads */
    { HEAD LOOP("i", "8") GET("b2", "-i + 7") END BARRIER LOOP("i", "8") PUT("b2", "i") END ALSO, 1, false },
    { HEAD LOOP("i", "8") GET("b2", "i") END BARRIER LOOP("i", "8") PUT("b2", "i") END ALSO, 0, false },
    /* the same elements by two loops and by one; other threads have them when the loops change places */
    { HEAD LOOP("m", "4") LOOP("n", "2") PUT("b2", "2*m + n") END END BARRIER LOOP("i", "8") GET("b2", "i") END ALSO, 0,
      false },
    { HEAD LOOP("n", "2") LOOP("m", "4") PUT("b2", "2*m + n") END END BARRIER LOOP("i", "8") GET("b2", "i") END ALSO, 1,
      false },
    /* iterations 8 to 15 are again those of the threads; two elements a thread are not */
    { HEAD LOOP("j", "16") PUT("b2", "j") END BARRIER LOOP("i", "8") GET("b2", "i") END ALSO, 0, false },
    { HEAD LOOP("i", "8") SERIAL("n", "2") PUT("b2", "2*i + n") END END BARRIER LOOP("j", "16") GET("b2", "j") END ALSO, 1,
      false },
    /* rows of four by a thread each */
    { HEAD LOOP("i", "8") SERIAL("r", "4") PUT("b2", "4*i + r") END END BARRIER LOOP("i", "8") SERIAL("r", "4")
          GET("b2", "4*i + r") END END ALSO,
      0, false },
    { HEAD LOOP("i", "8") SERIAL("r", "4") PUT("b2", "4*i + r") END END BARRIER LOOP("i", "8") GET("b2", "4*i") END ALSO, 1,
      false },
    /* several threads at one element, and the one that a mask leaves */
    { HEAD LOOP("m", "4") LOOP("n", "2") GET("b2", "m") END END BARRIER LOOP("i", "8") PUT_MASKED("b2", "i", "0 <= i < 4")
          END ALSO,
      1, false },
    { HEAD LOOP("m", "4") LOOP("n", "2") PUT_MASKED("b2", "m", "0 <= n < 1") END END BARRIER LOOP("m", "4") LOOP("n", "2")
          PUT_MASKED("b2", "m", "0 <= n < 1") END END ALSO,
      0, false },
    { HEAD LOOP("m", "4") LOOP("n", "2") PUT_MASKED("b2", "m", "0 <= n < 1") END END BARRIER LOOP("m", "4") LOOP("n", "2")
          PUT_MASKED("b2", "m", "1 <= n < 2") END END ALSO,
      1, false },
    /* all threads do it, one does */
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER GET("b2", "0") ALSO, 1, false },
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("o", "1") GET("b2", "0") END ALSO, 0, false },
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("o", "1") GET("b2", "1") END ALSO, 1, false },
    { HEAD LOOP("o", "1") PUT("b2", "0") END BARRIER LOOP("o", "1") GET("b2", "0") END ALSO, 0, false },
    /* one of two is enough */
    { HEAD LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") PUT("b3", "i") END BARRIER LOOP("i", "8")
          GET("b2", "-i + 7") END ALSO,
      1, false },
    /* a sum of the whole thread block is a barrier, one of neighbours is none */
    { HEAD LOOP("i", "8") PUT("b2", "i") END "%6 = const 1.0  f32\n%7 = block-reduce %6 add  f32\n" BARRIER LOOP("i", "8")
          GET("b2", "-i + 7") END ALSO,
      0, false },
    { HEAD LOOP("i", "8") PUT("b2", "i") END
      "%6 = const 1.0  f32\n%7 = block-reduce %6 add width 4  f32\n" BARRIER LOOP("i", "8") GET("b2", "-i + 7") END ALSO,
      1, false },
    /* a loop around: the next iteration writes what this one reads; its own elements; only the last barrier is needed */
    { HEAD SERIAL("r", "4") LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "-i + 7") END BARRIER END ALSO,
      2, false },
    { HEAD SERIAL("r", "4") LOOP("i", "8") PUT("b2", "8*r + i") END BARRIER LOOP("i", "8") GET("b2", "8*r + i")
          END BARRIER END ALSO,
      0, false },
    { HEAD SERIAL("r", "4") LOOP("i", "8") PUT("b2", "i") END BARRIER LOOP("i", "8") GET("b2", "8*r - i + 7") END END ALSO, 1,
      false },
    { HEAD SERIAL("r", "4") LOOP("i", "8") GET("b2", "i") END BARRIER LOOP("i", "8") PUT("b3", "-i + 7") END END ALSO, 0,
      false },
    /* in place */
    { HEAD LOOP("i", "8") GET("b0", "-i + 7") END BARRIER LOOP("i", "8") PUT("b1", "i") END ALSO, 1, true },
    { HEAD LOOP("i", "8") GET("b0", "-i + 7") END BARRIER LOOP("i", "8") PUT("b1", "i") END ALSO, 0, false },
    /* a nest in a nest stays one */
    { HEAD LOOP("i", "8") BARRIER LOOP("m", "4") PUT("b2", "m") END END ALSO, 1, false },
};

/* %9 of each text is a register of its own. */
static kernel *read_case(arena *a, const char *text) {
    str out;
    str_init(&out, a);
    int r = 0;
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        int n = (int)(end - line) + 1;
        bool counts = strncmp(line, "kernel", 6) && strncmp(line, " var", 4);
        if (counts) r++;
        for (int i = 0; i < n; i++) {
            if (line[i] == '%') /* its own, or what the line before made */
                str_addf(&out, "%%%d", i == 0 ? r : r - 1), i++;
            else
                str_addn(&out, &line[i], 1);
        }
        line = end + 1;
    }
    return kernel_parse(a, out.s, out.n, "case");
}

static int count_barriers(const kernel *k) {
    int n = 0;
    for (int i = 1; i < k->ins.n; i++) n += k->ins.at[i].op == K_BARRIER;
    return n;
}

static void test_cases(void **st) {
    (void)st;
    int gone = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        arena a;
        guard gd;
        arena_init(&a, mem_libc(), &gd);
        if (!GUARD_TRY(&gd)) fail_msg("case %zu: %s\n%s", c, gd.err.text, cases[c].text);
        kernel *k = read_case(&a, cases[c].text);
        plan p = { .a = &a };
        parg args[] = { { 0 }, { 1 }, { -1 }, { -1 } };
        pkernel pk = { .k = k, .args = args };
        VEC_PUSH(&a, &p.kernels, pk);
        for (int b = 0; b < 2; b++)
            VEC_PUSH(&a, &p.bufs, ((pbuf){ .kind = PB_TEMP, .elems = 64, .bytes = 256, .slot = SLOT_TEMP, .offset = 512 * b }));
        if (cases[c].in_place) p.bufs.at[1].offset = 0;
        int before = count_barriers(k), left;
        mem_block_barriers(&p);
        left = count_barriers(k), gone += before - left;
        if (left != cases[c].left)
            fail_msg("case %zu: %d barriers are left, expected %d\n%s", c, left, cases[c].left, cases[c].text);
        arena_fini(&a);
    }
    printf("count: %d barriers between nests of %zu kernels go\n", gone, COUNT_OF(cases));
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
