/* test_x86_objdump.c - the assembler against the disassembler of binutils: every row of the instruction table with random
 * operands, registers and addresses of all kinds, VEX, EVEX and legacy forms; one call of objdump for all. Skipped where there
 * is no objdump. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <unistd.h>

#include "emit/x86/asm.h"
#include "support/support.h"

enum { REPEATS = 40, MAX_LINES = 40000 };

static bool vector_kind(int kind) { return kind == KV || kind == KH || kind == KQ || kind == KX; }

static int any_reg(rng *r, int kind, bool evex) {
    if (kind == KK) return (int)rng_between(r, 1, 7);
    return (int)rng_below(r, vector_kind(kind) && evex ? 32 : 16);
}

static x86_opnd any_address(rng *r) {
    x86_opnd o = { .is_mem = true };
    static const int32_t disps[] = { 0, 8, -8, 127, 128, -128, -129, 0x12345, -0x7654321 };
    o.m.base = (int8_t)rng_below(r, 16);
    o.m.index = X86_NO_REG;
    if (rng_chance(r, 0.4)) {
        do o.m.index = (int8_t)rng_below(r, 16);
        while (o.m.index == RSP);
        o.m.scale = (uint8_t)rng_below(r, 4);
    }
    o.m.disp = disps[rng_below(r, (int64_t)COUNT_OF(disps))];
    return o;
}

/* Rows whose operand must be in memory, or must not. */
static bool memory_only(x86_id id) {
    switch (id) {
    case X86_MASKLOADD:
    case X86_MASKLOADQ:
    case X86_MOVUPS_Z:
    case X86_MOVUPD_Z:
    case X86_BROADSS_Z:
    case X86_MOVHPS:
    case X86_MOVHPS_ST:
    case X86_LEA:
    case X86_PREFETCHT0:
    case X86_PREFETCHT1:
    case X86_PREFETCHW:
    case X86_MOVNTPS:
    case X86_MOVSS:
    case X86_MOVSS_ST:
    case X86_MOVSD:
    case X86_MOVSD_ST:
    case X86_CALLM:
    case X86_MOVZX8:
    case X86_MOVZX16:
    case X86_MOVSX8:
    case X86_MOV8_ST:
    case X86_MOV16_ST:
        return true;
    default:
        return false;
    }
}
static bool register_only(const x86_ins *t, x86_id id) {
    return t->mv == KK || id == X86_MOVMSKPS || id == X86_PMOVD2M || id == X86_PMOVQ2M || t->form == F_VMI;
}

static void put_any(x86_asm *s, rng *r, x86_id id) {
    const x86_ins *t = &x86_table[id];
    bool evex = !s->legacy && (t->w < 0 || (t->ew >= 0 && rng_chance(r, 0.4)));
    bool fixed = (t->rv == KX && t->mv != KV) || id == X86_KMOVW;
    int vl = fixed || s->legacy ? 0 : (int)rng_between(r, 0, evex ? 2 : 1);
    if (id == X86_BROADCASTSD || id == X86_PERM2F128 || id == X86_INSERTF128 || id == X86_EXTRACTF128 || id == X86_PERMQ ||
        id == X86_PERMD)
        vl = (int)rng_between(r, 1, evex ? 2 : 1);
    if (id == X86_INSERTF64X4 || id == X86_EXTRACTF64X4) vl = 2;
    if ((id == X86_SHUFF32X4 || id == X86_PERMPS) && vl == 0) vl = 1;
    x86_opnd rm =
        (rng_chance(r, 0.5) || memory_only(id)) && !register_only(t, id) ? any_address(r) : x86_r(any_reg(r, t->mv, evex));
    int imm = (int)rng_below(r, 8);
    if (t->form == F_RVMR) imm = any_reg(r, KV, false) << 4;
    if (t->form == G_MI || t->form == G_MI4 || t->form == G_RMI)
        imm = rng_chance(r, 0.5) ? (int)rng_between(r, -128, 127) : (int)rng_between(r, 200, 1 << 30);
    x86_put(s, id, vl, any_reg(r, t->rv, evex), any_reg(r, t->rv == KK ? KV : t->rv, evex), rm, imm);
}

/* objdump's text without what we leave out: sizes of memory operands, the names of comparisons, spaces, comments. */
static void normalise(const char *in, char *out, size_t size) {
    static const char *const sizes[] = { "BYTE PTR ",    "WORD PTR ",    "DWORD PTR ",  "QWORD PTR ",
                                         "XMMWORD PTR ", "YMMWORD PTR ", "ZMMWORD PTR " };
    size_t n = 0;
    while (*in && *in != '\n' && *in != '#' && n + 2 < size) {
        bool skipped = false;
        for (size_t i = COUNT_OF(sizes); i-- > 0 && !skipped;)
            if (!strncmp(in, sizes[i], strlen(sizes[i]))) in += strlen(sizes[i]), skipped = true;
        if (skipped) continue;
        if (!strncmp(in, "+0x0]", 5)) in += 4; /* an address that needs an offset to be one */
        if (*in == ' ' && (n == 0 || out[n - 1] == ' ' || in[1] == ' ' || in[1] == '\n' || !in[1])) {
            in++;
            continue;
        }
        out[n++] = *in++;
    }
    out[n] = 0;
}

/* "vcmpltps a,b" is "vcmpps a,b,0x1"; "cmpltps" likewise. */
static void spell_comparison(char *text, size_t size) {
    static const char *const fp[] = { "eq", "lt", "le", "unord", "neq", "nlt", "nle", "ord" };
    static const char *const whole[] = { "eq", "lt", "le", "false", "neq", "nlt", "nle", "true" };
    char end[4], made[160];
    for (int f = 0; f < 2; f++)
        for (int i = 7; i >= 0; i--) {
            const char *name = f ? fp[i] : whole[i], *start = !f ? "vpcmp" : *text == 'v' ? "vcmp" : "cmp";
            size_t n = strlen(start), m = strlen(name);
            if (strncmp(text, start, n) || strncmp(text + n, name, m)) continue;
            size_t e = strcspn(text + n + m, " ");
            if (e >= sizeof end || e == 0) continue;
            if (!f && (e != 1 || !strchr(text, 'k'))) continue; /* vpcmpeqd of vectors is an instruction of its own */
            memcpy(end, text + n + m, e);
            end[e] = 0;
            snprintf(made, sizeof made, "%s%s%s,0x%x", start, end, text + n + m + e, (unsigned)i);
            snprintf(text, size, "%s", made);
            return;
        }
}

static int compare_lines(x86_asm *s, FILE *f, arena *a) {
    char line[512], got[256], want[256];
    int at = 0, bad = 0;
    while (fgets(line, sizeof line, f) && at < s->records.n) {
        char *tab = strchr(line, '\t');
        if (!tab || !(tab = strchr(tab + 1, '\t'))) continue;
        normalise(tab + 1, got, sizeof got);
        spell_comparison(got, sizeof got);
        str ours;
        str_init(&ours, a);
        x86_print(s, &s->records.at[at], &ours);
        normalise(ours.s, want, sizeof want);
        unsigned long where = strtoul(line, NULL, 16);
        if (where != s->records.at[at].at || strcmp(got, want) != 0) {
            if (bad++ < 20)
                fprintf(stderr, "%lx: objdump says %s, we meant %s (at %x)\n", where, got, want,
                        (unsigned)s->records.at[at].at);
            if (where != s->records.at[at].at) return bad;
        }
        at++;
    }
    if (at < s->records.n) fprintf(stderr, "objdump printed %d of %d instructions\n", at, s->records.n), bad++;
    return bad;
}

static void every_row(arena *a, bool legacy) {
    x86_asm s;
    rng r = rng_make(7);
    char path[] = "/tmp/tenon-x86-XXXXXX", command[128];
    int fd, rows = 0;
    if (system("objdump --version >/dev/null 2>&1") != 0) skip();
    x86_asm_init(&s, a, true);
    s.legacy = legacy;
    for (int id = 1; id < X86_N_INS; id++) {
        if (x86_table[id].form == G_J || (legacy && !x86_has_legacy((x86_id)id))) continue;
        for (int i = 0; i < REPEATS; i++) put_any(&s, &r, (x86_id)id);
        rows++;
    }
    size_t n_text;
    x86_finish(&s, &n_text);
    assert_true((fd = mkstemp(path)) >= 0);
    assert_int_equal(write(fd, s.at, n_text), (ssize_t)n_text);
    close(fd);
    snprintf(command, sizeof command, "objdump -D -b binary -m i386:x86-64 -M intel --no-show-raw-insn -w %s | sed 's/:/:\\t/'",
             path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    int bad = compare_lines(&s, f, a);
    pclose(f);
    unlink(path);
    printf("count: %d%s instructions of %d rows: %d differ\n", s.records.n, legacy ? " legacy" : "", rows, bad);
    assert_int_equal(bad, 0);
    assert_true(rows > 50);
}

ARENA_TEST(test_every_row) { every_row(a, false); }
ARENA_TEST(test_legacy) { every_row(a, true); }

/* Jumps forwards and backwards, near and far, and references to the pool. */
ARENA_TEST(test_labels_and_pool) {
    x86_asm s;
    x86_asm_init(&s, a, false);
    int back = x86_label(&s), far = x86_label(&s);
    x86_bind(&s, back);
    x86_jump(&s, X86_JNE, back);
    x86_jump(&s, X86_JMP, far);
    for (int i = 0; i < 100; i++) x86_put(&s, X86_VZEROUPPER, 0, 0, 0, x86_r(0), 0);
    x86_bind(&s, far);
    x86_jump(&s, X86_JE, back);
    float eight[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    int32_t at = x86_pool(&s, eight, sizeof eight);
    assert_int_equal(x86_pool(&s, eight, sizeof eight), at);
    x86_put(&s, X86_MOVUPS, 1, 0, 0, x86_m(X86_POOL, at), 0);
    size_t n_text;
    x86_finish(&s, &n_text);
    const unsigned char head[] = { 0x75, 0xFE, 0xE9, 0x2C, 0x01, 0, 0 };
    assert_memory_equal(s.at, head, sizeof head);
    int32_t rel;
    memcpy(&rel, s.at + 307 + 2, 4);
    assert_int_equal(rel, -(307 + 6));
    memcpy(&rel, s.at + n_text - 4, 4);
    assert_memory_equal(s.at + n_text + rel, eight, sizeof eight);
    assert_int_equal((n_text + (size_t)rel) % 32, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_row), cmocka_unit_test(test_legacy),
                                        cmocka_unit_test(test_labels_and_pool) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
