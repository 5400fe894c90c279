/* cc.c - implementation of cc.h. */
#include "rt/cc.h"
#include "rt/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOG_BYTES = 1400, MAX_ARGS = 32, MAX_IMAGE = 1 << 28 };

#if defined(__x86_64__) || defined(__i386__)
#define NATIVE "-march=native"
#else
#define NATIVE "-mcpu=native"
#endif

/* Neither list changes a value: no errno and no traps, which nobody can observe in a kernel; NaN, infinities, signed zeros and
 * the order of operations stay. Vectors and unrolling are already in the text, so clang needs no more than -O1, while gcc's
 * register allocation of large tiles needs -O2. */
static const char *const gcc_flags[] = { "-std=gnu11",
                                         "-O2",
                                         "-fPIC",
                                         "-shared",
                                         "-fwrapv",
                                         "-fno-math-errno",
                                         "-fno-trapping-math",
                                         "--param=avoid-fma-max-bits=0", /* the same contractions on every processor */
                                         "-fno-tree-vectorize",          /* it would split a multiply-add */
                                         "-fno-tree-slp-vectorize",
                                         "-fno-semantic-interposition",
                                         "-fno-stack-protector",
                                         "-fno-asynchronous-unwind-tables",
                                         "-w",
                                         NULL };
static const char *const clang_flags[] = { "-std=gnu11",
                                           "-O1",
                                           "-fPIC",
                                           "-shared",
                                           "-fwrapv",
                                           "-fno-math-errno",
                                           "-fno-trapping-math",
                                           "-fno-stack-protector",
                                           "-fno-asynchronous-unwind-tables",
                                           "-w",
                                           NULL };
static const char *const other_flags[] = { "-O2", "-fPIC", "-shared", "-w", NULL };

struct cc {
    mem mem;
    char *program;
    double timeout;
    bool clang;
    const char *arch; /* flag of the instruction set; "" = none */
    const char *const *flags;
    char identity[512];
};

/* What a finished compiler left. */
typedef struct outcome {
    char log[LOG_BYTES]; /* start of stdout and stderr */
    size_t n_log;
    int status;   /* as of waitpid */
    bool unknown; /* the host took the status away (SIGCHLD ignored, or its own wait) */
    bool late;    /* stopped at the deadline */
} outcome;

/* ---- running a program ---- */

static void pause_us(long us) {
    struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&t, NULL);
}

/* Reads what is there; false at the end of the stream. What does not fit the log is dropped. */
static bool drain(int fd, outcome *o) {
    char buf[4096];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        size_t room = sizeof o->log - 1 - o->n_log, take = (size_t)n < room ? (size_t)n : room;
        memcpy(o->log + o->n_log, buf, take);
        o->n_log += take;
        o->log[o->n_log] = 0;
    }
}

/* The pipe closes when the last process that holds it ends, which wakes poll at once; the time-out of poll covers a host that
 * forked while the pipe was open and so holds it too. */
static void wait_for(pid_t pid, int fd, double timeout, outcome *o) {
    double deadline = now_seconds() + timeout;
    bool open = true;
    for (long us = 50;;) {
        struct pollfd pfd = { .fd = fd, .events = POLLIN };
        if (open) {
            poll(&pfd, 1, 20);
            open = drain(fd, o);
        } else {
            pause_us(us);
            us = us < 5000 ? us * 2 : us;
        }
        pid_t got = waitpid(pid, &o->status, WNOHANG);
        if (got == pid) break;
        if (got < 0 && errno == ECHILD) { /* it has ended, and its number may already name another process */
            o->unknown = true;
            break;
        }
        if (now_seconds() < deadline) continue;
        o->late = true;
        kill(-pid, SIGKILL); /* the group: the compiler has children of its own */
        kill(pid, SIGKILL);
        while (waitpid(pid, &o->status, 0) < 0 && errno == EINTR) {
        }
        break;
    }
    if (open) drain(fd, o);
}

/* 0, or the errno of the step that failed. */
static int spawn(const char *program, char *const argv[], char *const envp[], int out_fd, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc) return rc;
    if ((rc = posix_spawnattr_init(&attr))) {
        posix_spawn_file_actions_destroy(&actions);
        return rc;
    }
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (!rc) rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, out_fd, 2);
    if (!rc) rc = posix_spawnattr_setpgroup(&attr, 0);
    if (!rc) rc = posix_spawnattr_setsigmask(&attr, &none);
    if (!rc) rc = posix_spawnattr_setsigdefault(&attr, &all);
    if (!rc) rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!rc) rc = posix_spawnp(pid, program, &actions, &attr, argv, envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

static tn_status run_program(const cc *c, char *const argv[], const char *tmp, outcome *o, err *e) {
    memset(o, 0, sizeof *o);
    char tmp_var[PATH_BYTES + 16];
    snprintf(tmp_var, sizeof tmp_var, "TMPDIR=%s", tmp);
    char path_var[] = "PATH=/usr/local/bin:/usr/bin:/bin", locale_var[] = "LC_ALL=C";
    char *const envp[] = { path_var, locale_var, tmp_var, NULL };
    int fds[2];
    if (pipe2(fds, O_CLOEXEC)) return err_set(e, TN_ERR_IO, "cannot make a pipe to the C compiler: %s", strerror(errno));
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    pid_t pid = 0;
    int rc = spawn(c->program, argv, envp, fds[1], &pid);
    close(fds[1]);
    if (rc == 0) wait_for(pid, fds[0], c->timeout, o);
    close(fds[0]);
    if (rc == 0) return TN_OK;
    return err_set(e, TN_ERR_BUILD,
                   "cannot start the C compiler '%s'%s: %s. Install one (Debian: apt install gcc) or name another in "
                   "tn_config.compiler (for the program: TENON_CC)",
                   c->program, strchr(c->program, '/') ? "" : " (looked up in PATH)", strerror(rc));
}

/* TN_OK when the program ended well; otherwise why not, with what it printed. */
static tn_status judge(const cc *c, const outcome *o, err *e) {
    if (o->late)
        return err_set(e, TN_ERR_BUILD, "the C compiler '%s' took longer than %g seconds and was stopped\n%s", c->program,
                       c->timeout, o->log);
    if (o->unknown || (WIFEXITED(o->status) && WEXITSTATUS(o->status) == 0)) return TN_OK;
    if (WIFSIGNALED(o->status))
        return err_set(e, TN_ERR_BUILD, "the C compiler '%s' was killed by signal %d\n%s", c->program, WTERMSIG(o->status),
                       o->log);
    return err_set(e, TN_ERR_BUILD, "the C compiler '%s' failed with exit status %d\n%s", c->program, WEXITSTATUS(o->status),
                   o->log);
}

/* ---- the private directory ---- */

static tn_status write_source(const char *path, const char *source, size_t n, err *e) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && file_write_all(fd, source, n);
    int why = errno;
    if (fd >= 0 && close(fd) && ok) ok = false, why = errno;
    return ok ? TN_OK : err_set(e, TN_ERR_IO, "cannot write %s for the C compiler: %s", path, strerror(why));
}

static const unsigned char elf_magic[4] = { 0x7f, 'E', 'L', 'F' };

static tn_status read_image(const cc *c, const char *path, const outcome *o, unsigned char **out, size_t *out_size, err *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set(e, TN_ERR_BUILD, "the C compiler '%s' left no output (%s)\n%s", c->program, strerror(errno), o->log);
    tn_status st = file_read_all(c->mem, fd, MAX_IMAGE, out, out_size, e);
    close(fd);
    if (st == TN_OK && *out_size == 0) {
        mem_free(c->mem, *out, *out_size);
        *out = NULL;
        st = err_set(e, TN_ERR_BUILD, "the C compiler '%s' left an empty output\n%s", c->program, o->log);
    }
    if (st == TN_OK && (*out_size < sizeof elf_magic || memcmp(*out, elf_magic, sizeof elf_magic) != 0)) {
        mem_free(c->mem, *out, *out_size);
        *out = NULL;
        st = err_set(e, TN_ERR_BUILD, "the C compiler '%s' left %zu bytes that are no shared object (ELF)\n%s", c->program,
                     *out_size, o->log);
    }
    return st;
}

/* posix_spawn takes char *const[] but writes nothing. */
static char *arg(const char *s) {
    union {
        const char *in;
        char *out;
    } u = { s };
    return u.out;
}

typedef struct places { /* too much for small stacks */
    char dir[PATH_BYTES], in[PATH_BYTES + 8], out[PATH_BYTES + 8];
    outcome o;
} places;

static tn_status compile_in(const cc *c, places *p, const char *source, size_t n_source, unsigned char **out_image,
                            size_t *out_size, err *e) {
    snprintf(p->in, sizeof p->in, "%s/k.c", p->dir);
    snprintf(p->out, sizeof p->out, "%s/k.so", p->dir);
    char *argv[MAX_ARGS];
    int n = 0;
    argv[n++] = c->program;
    for (int i = 0; c->flags[i]; i++) argv[n++] = arg(c->flags[i]);
    if (*c->arch) argv[n++] = arg(c->arch);
    const char *const rest[] = { "-x", "c", "-o", p->out, p->in, "-lm" };
    for (size_t i = 0; i < COUNT_OF(rest); i++) argv[n++] = arg(rest[i]);
    argv[n] = NULL;

    tn_status st = write_source(p->in, source, n_source, e);
    if (st == TN_OK) st = run_program(c, argv, p->dir, &p->o, e);
    if (st == TN_OK) st = judge(c, &p->o, e);
    if (st == TN_OK) st = read_image(c, p->out, &p->o, out_image, out_size, e);
    return st;
}

/* A place that cannot be written or is full is no reason to fail while there are others. */
tn_status cc_compile(const cc *c, const char *tmp, const char *source, size_t n_source, unsigned char **out_image,
                     size_t *out_size, err *e) {
    places *p = mem_alloc(c->mem, sizeof *p);
    tn_status st = TN_OK;
    int next = 0;
    bool tried = false, elsewhere = true;
    *out_image = NULL;
    *out_size = 0;
    if (!p) return err_set(e, TN_ERR_NOMEM, "out of memory to run the C compiler");
    while (elsewhere && file_private_dir(tmp, &next, p->dir)) {
        st = compile_in(c, p, source, n_source, out_image, out_size, e);
        tried = true, elsewhere = st == TN_ERR_IO || (st == TN_ERR_BUILD && file_disk_is_full(p->dir));
        file_remove_flat(AT_FDCWD, p->dir);
    }
    if (!tried)
        st = err_set(e, TN_ERR_IO, "cannot make a directory for the C compiler in %s%s/tmp, /var/tmp or /dev/shm: %s",
                     tmp ? tmp : "", tmp ? ", " : "", strerror(errno));
    mem_free(c->mem, p, sizeof *p);
    return st; /* of the last place */
}

/* ---- which compiler ---- */

/* One line without anything that could end it. */
static void set_identity(cc *c, const outcome *o) {
    hash128 h = hash_bytes128(o->log, o->n_log);
    int n = snprintf(c->identity, sizeof c->identity, "%016llx%016llx %.80s", (unsigned long long)h.hi,
                     (unsigned long long)h.lo, o->log);
    for (int i = 0; c->flags[i]; i++)
        n += snprintf(c->identity + n, n < (int)sizeof c->identity ? sizeof c->identity - (size_t)n : 0, " %s", c->flags[i]);
    snprintf(c->identity + n, n < (int)sizeof c->identity ? sizeof c->identity - (size_t)n : 0, " %s", c->arch);
    for (char *s = c->identity; *s; s++)
        if ((unsigned char)*s < ' ') *s = ' ';
}

tn_status cc_open(mem m, const char *program, const char *arch, double timeout_seconds, cc **out, err *e) {
    *out = NULL;
    cc *c = mem_alloc(m, sizeof *c);
    if (!c) return err_set(e, TN_ERR_NOMEM, "out of memory");
    c->mem = m;
    c->timeout = timeout_seconds > 0 ? timeout_seconds : CC_TIMEOUT_SECONDS;
    c->program = mem_strdup(m, program);
    tn_status st = c->program ? TN_OK : err_set(e, TN_ERR_NOMEM, "out of memory");
    outcome o;
    char version[] = "--version";
    if (st == TN_OK) st = run_program(c, (char *const[]){ c->program, version, NULL }, "/tmp", &o, e);
    if (st == TN_OK) st = judge(c, &o, e);
    if (st) {
        cc_close(c);
        return st;
    }
    c->clang = strstr(o.log, "clang") != NULL;
    bool gcc = !c->clang && (strstr(o.log, "Free Software Foundation") || strstr(o.log, "gcc"));
    c->flags = c->clang ? clang_flags : gcc ? gcc_flags : other_flags;
    c->arch = arch ? arch : c->flags == other_flags ? "" : NATIVE;
    set_identity(c, &o);
    *out = c;
    return TN_OK;
}

void cc_close(cc *c) {
    if (!c) return;
    mem m = c->mem;
    mem_strfree(m, c->program);
    mem_free(m, c, sizeof *c);
}

const char *cc_identity(const cc *c) { return c->identity; }
bool cc_is_clang(const cc *c) { return c->clang; }
