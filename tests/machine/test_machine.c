/* Rows of machine.def say something about everything that is read of them, what a target knows goes before its row, and the
 * device at hand finds the row of its processor. */
#include "drive/drive.h"
#include "machine/machine.h"
#include "rt/cpuinfo.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void rows_are_whole(void **state) {
    (void)state;
    int n, common[2] = { 0, 0 };
    const machine *rows = machine_rows(&n);
    for (int i = 0; i < n; i++) {
        const machine *m = &rows[i];
        assert_ptr_equal(machine_row(m->name), m);
        assert_true(m->cores > 0 && m->ghz > 0.5 && m->ghz < 7 && m->issue > 0 && m->start_ns > 0 && m->barrier_ns > 0);
        assert_true(m->fma_pipes > 0 && m->alu_pipes > 0 && m->load_pipes > 0 && m->store_pipes > 0 && m->fma_cycles >= 1);
        double nearer = 1e9, sooner = 0;
        for (int l = 0; l < MACHINE_LEVELS; l++) {
            const machine_cache *c = &m->level[l];
            if (m->gpu && l == LEVEL_L3) continue;
            assert_true(c->read > 0 && c->read <= nearer && c->write > 0 && c->ns > sooner); /* farther is slower */
            nearer = c->read, sooner = c->ns;
            if (l != LEVEL_MEMORY && c->bytes && l > 0) assert_true(m->gpu || c->bytes > m->level[l - 1].bytes);
        }
        if (m->gpu)
            assert_true(m->warp > 0 && m->threads >= m->warp && m->registers > 0 && m->shared_bytes > 0 && m->link > 0);
        else
            assert_true(m->vector_bytes >= m->pipe_bytes && m->share_work > 0 && m->issue_shared > 0 && m->in_flight > 0);
        common[m->gpu] += !m->match;
    }
    assert_true(common[0] == 1 && common[1] == 1); /* what is not known has a row */
}

static void is_found_by_identity(void **state) {
    (void)state;
    assert_string_equal(machine_find("AuthenticAMD 26 avx512bf16", false)->name, "zen5");
    assert_string_equal(machine_find("AuthenticAMD 25 avx512bf16", false)->name, "zen4");
    assert_string_equal(machine_find("AuthenticAMD 25 avx2", false)->name, "zen3");
    assert_string_equal(machine_find("VIA 6 sse2", false)->name, "cpu");
    assert_string_equal(machine_find("sm_90", true)->name, "h200");
    assert_string_equal(machine_find("sm_70", true)->name, "gpu");
    assert_string_equal(machine_find("sm_90", false)->name, "cpu"); /* never the other kind */
    assert_null(machine_row("abacus"));
}

static void targets_know_better(void **state) {
    (void)state;
    target t = { .threads = 3, .vector_bytes = 64, .n_vector_regs = 32, .l1_bytes = 40 << 10, .l2_bytes = 3 << 20 };
    machine m = machine_of(&t);
    assert_int_equal(m.cores, 3);
    assert_int_equal(m.level[LEVEL_L1].bytes, 40 << 10);
    assert_int_equal(m.level[LEVEL_L2].bytes, 3 << 20);
    assert_int_equal(m.level[LEVEL_L3].bytes, machine_last_bytes(&t));
    assert_int_equal(m.pipe_bytes, 64); /* of an unknown machine with such vectors */
    t.machine = machine_row("zen4");
    m = machine_of(&t);
    assert_int_equal(m.pipe_bytes, 32); /* of one that is known to halve them */
    assert_int_equal(m.vector_bytes, 64);
    t = target_common_gpu();
    m = machine_of(&t);
    assert_true(m.gpu && m.cores == 128 && m.level[LEVEL_L2].bytes == 4 << 20);
    t.resident_threads *= 2;
    machine twice = machine_of(&t);
    assert_true(twice.cores == 256 && fabs(twice.level[LEVEL_MEMORY].all - 2 * m.level[LEVEL_MEMORY].all) < 1e-9);
}

static void this_processor_has_a_row(void **state) {
    (void)state;
    device_caps c = { 0 };
    cpuinfo_fill(&c);
    assert_non_null(c.machine);
    assert_false(c.machine->gpu);
    target t = drive_target(&c, NULL);
    assert_ptr_equal(machine_row_of(&t), c.machine);
    machine m = machine_of(&t);
    assert_int_equal(m.vector_bytes, c.vector_bytes);
    assert_int_equal(m.level[LEVEL_L1].bytes, c.l1_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_whole),
        cmocka_unit_test(is_found_by_identity),
        cmocka_unit_test(targets_know_better),
        cmocka_unit_test(this_processor_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
