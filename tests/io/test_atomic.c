/* test_atomic.c - what a reader finds after a writer died, ran out of room, or was not allowed: the old file or the new one. */
#include "io_test.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { N = 64 * 1024 };

/* Two arrays whose every element is `version`. */
static tn_status save(tn_ctx *ctx, const char *path, int32_t version) {
    static int32_t a[N], b[7];
    for (int i = 0; i < N; i++) a[i] = version;
    for (int i = 0; i < 7; i++) b[i] = version;
    return tn_io_safetensors_save(ctx, path,
                                  (const tn_io_tensor[]){ { "a", TN_I32, TN_DIMS(N), a }, { "b", TN_I32, TN_DIMS(7), b } }, 2);
}

/* The version that a file holds; fails when it is not one version throughout. */
static int32_t load(tn_ctx *ctx, const char *path) {
    tn_io_tensors *t;
    if (tn_io_safetensors_load(ctx, path, &t)) fail_msg("%s", tn_ctx_error(ctx));
    const int32_t *a = tn_io_tensors_find(t, "a")->data, *b = tn_io_tensors_find(t, "b")->data;
    int32_t version = a[0];
    for (int i = 0; i < N; i++) assert_int_equal(a[i], version);
    for (int i = 0; i < 7; i++) assert_int_equal(b[i], version);
    tn_io_tensors_free(t);
    return version;
}

static int files_in_dir(void) {
    int n = 0;
    DIR *d = opendir(test_dir);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void test_kill(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    const char *path = in_dir("kill.safetensors");
    uint64_t seed = 17;
    int changed = 0, kills = 50;
    int32_t version = 0;
    assert_int_equal(save(ctx, path, 0), TN_OK);
    for (int k = 0; k < kills; k++) {
        pid_t child = fork();
        if (child == 0) {
            for (int32_t v = version + 1;; v++)
                if (save(ctx, path, v)) _exit(1);
        }
        assert_true(child > 0);
        struct timespec t = { 0, 500000 + rnd_below(&seed, 20000000) };
        nanosleep(&t, NULL);
        int status;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it was saving, not failing */
        int32_t now = load(ctx, path);
        assert_true(now >= version);
        changed += now > version;
        version = now;
    }
    assert_true(changed > 0); /* the kills did fall between and into saves */
    printf("count: %d saves killed at random moments, file old or new each time (%d times new)\n", kills, changed);
    tn_ctx_free(ctx);
}

/* A file-size limit stands for the full disk: write fails part-way. */
static void test_no_room(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    const char *path = in_dir("room.safetensors");
    assert_int_equal(save(ctx, path, 1), TN_OK);
    int before = files_in_dir();
    struct rlimit old, small = { 100000, 100000 };
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tn_status s = save(ctx, path, 2);
    static char big[200000];
    tn_status npy = tn_io_npy_save(ctx, in_dir("room.npy"), TN_I8, TN_DIMS(200000), big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(s, TN_ERR_IO);
    assert_int_equal(npy, TN_ERR_IO);
    assert_non_null(strstr(tn_ctx_error(ctx), "room.npy: cannot write: File too large"));
    assert_int_equal(load(ctx, path), 1);
    assert_int_equal(files_in_dir(), before); /* no temporary file stays */
    if (access("/dev/full", W_OK) == 0)
        assert_fails(ctx, save(ctx, "/dev/full", 3), TN_ERR_IO, "/dev/full: cannot write: No space left on device",
                     "/dev/full");
    tn_ctx_free(ctx);
}

static void test_not_allowed(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    assert_fails(ctx, save(ctx, in_dir("no/such/dir"), 1), TN_ERR_IO, "cannot create a file beside it: No such file",
                 "no directory");
    assert_fails(ctx, save(ctx, test_dir, 1), TN_ERR_IO, "is a directory", "directory");
    assert_fails(ctx, save(ctx, "", 1), TN_ERR_INVAL, "empty", "empty");
    char file_as_dir[256];
    assert_int_equal(save(ctx, in_dir("plain"), 1), TN_OK);
    snprintf(file_as_dir, sizeof file_as_dir, "%s/x", in_dir("plain"));
    assert_fails(ctx, save(ctx, file_as_dir, 1), TN_ERR_IO, "Not a directory", "file as directory");
    assert_int_equal(load(ctx, in_dir("plain")), 1);
    tn_ctx_free(ctx);
}

/* Replacing keeps the permissions; a new file has those of the umask; a pipe is written to, not replaced. */
static void test_kinds_of_file(void **state) {
    (void)state;
    tn_ctx *ctx = tn_ctx_new(NULL);
    struct stat st;
    mode_t mask = umask(027);
    assert_int_equal(save(ctx, in_dir("mode"), 1), TN_OK);
    umask(mask);
    assert_int_equal(stat(in_dir("mode"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(chmod(in_dir("mode"), 0604), 0);
    assert_int_equal(save(ctx, in_dir("mode"), 2), TN_OK);
    assert_int_equal(stat(in_dir("mode"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0604);
    assert_int_equal(load(ctx, in_dir("mode")), 2);

    const char *pipe_path = in_dir("pipe");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    pid_t child = fork();
    if (child == 0) { /* reads all there is and says how much through its exit code */
        FILE *f = fopen(pipe_path, "rb");
        size_t n = 0;
        while (f && fgetc(f) >= 0) n++;
        _exit(n > N * 4 ? 0 : 1);
    }
    int status;
    assert_int_equal(save(ctx, pipe_path, 3), TN_OK);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(stat(pipe_path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    tn_io_tensors *t;
    assert_fails(ctx, tn_io_safetensors_load(ctx, pipe_path, &t), TN_ERR_IO, "not a regular file", "pipe");
    tn_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_not_allowed),
        cmocka_unit_test(test_kinds_of_file),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
