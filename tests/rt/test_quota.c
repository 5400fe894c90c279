/* Limits of control groups, from files of both versions below a root of the test's own. */
#include "rt_util.h"

#include "rt/quota.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') *s = 0, mkdir(full, 0700);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
static int begin(void **state) {
    (void)state;
    strcpy(root, "/tmp/tenon-quota-XXXXXX");
    return mkdtemp(root) ? 0 : 1;
}
static int end(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void test_none(void **state) {
    (void)state;
    assert_int_equal(quota_cpus(root), 0);
    put("/proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(quota_cpus(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota_cpus(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "");
    assert_int_equal(quota_cpus(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "100000 0\n");
    assert_int_equal(quota_cpus(root), 0);
    put("/proc/self/cgroup", "no group\n1:cpu\n");
    assert_int_equal(quota_cpus(root), 0);
    assert_true(quota_cpus("") >= 0);
}
static void test_version_2(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n");
    assert_int_equal(quota_cpus(root), 2);
    put("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    assert_int_equal(quota_cpus(root), 2);
    put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_int_equal(quota_cpus(root), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "800000\n");
    assert_int_equal(quota_cpus(root), 8);
    put("/sys/fs/cgroup/a/cpu.max", "300000 100000\n"); /* a level above */
    assert_int_equal(quota_cpus(root), 3);
    put("/sys/fs/cgroup/cpu.max", "250000 250000\n");
    assert_int_equal(quota_cpus(root), 1);
}
/* A container: the path is the host's, the files are at the mount itself. */
static void test_version_1(void **state) {
    (void)state;
    put("/proc/self/cgroup", "5:cpuset:/x\n4:cpuacct,cpu:/docker/1\n0::/docker/1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_cpus(root), 0);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    assert_int_equal(quota_cpus(root), 2);
    put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "40000\n");
    put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "50000\n");
    assert_int_equal(quota_cpus(root), 1);
    put("/proc/self/cgroup", "5:cpuset:/docker/1\n");
    assert_int_equal(quota_cpus(root), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_none, begin, end),
                                        cmocka_unit_test_setup_teardown(test_version_2, begin, end),
                                        cmocka_unit_test_setup_teardown(test_version_1, begin, end) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
