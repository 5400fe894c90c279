/* file.c - implementation of file.h. */
#include "rt/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

bool file_write_all(int fd, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

int file_replace(int dir, const char *name, const file_piece *pieces, int n, unsigned mode, bool sync) {
    char temp[64];
    int fd = -1, why = 0;
    for (int tries = 0; tries < 8 && fd < 0; tries++) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        snprintf(temp, sizeof temp, FILE_TEMP_PREFIX "%ld-%x-%lx", (long)getpid(), (unsigned)tries, (unsigned long)t.tv_nsec);
        fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) return errno;
    }
    if (fd < 0) return EEXIST;
    for (int i = 0; i < n && !why; i++)
        if (!file_write_all(fd, pieces[i].data, pieces[i].n)) why = errno;
    if (!why && sync && fsync(fd)) why = errno;
    if (close(fd) && !why) why = errno;
    if (!why && renameat(dir, temp, dir, name)) why = errno;
    if (why) unlinkat(dir, temp, 0);
    return why;
}

void file_boot_id(char out[BOOT_ID_BYTES]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, BOOT_ID_BYTES - 1);
    if (fd >= 0) close(fd);
    memset(out + (n > 0 ? n : 0), 0, (size_t)(BOOT_ID_BYTES - (n > 0 ? n : 0)));
}

tn_status file_map(int fd, file_view *out, err *e) {
    struct stat s;
    *out = (file_view){ 0 };
    if (fstat(fd, &s)) return err_set(e, TN_ERR_IO, "cannot read: %s", strerror(errno));
    if (!S_ISREG(s.st_mode)) return err_set(e, TN_ERR_IO, "not a regular file");
    if (!s.st_size) return TN_OK;
    void *at = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) return err_set(e, TN_ERR_IO, "cannot map: %s", strerror(errno));
    *out = (file_view){ at, (size_t)s.st_size };
    return TN_OK;
}
void file_unmap(file_view *v) {
    if (v->at) munmap((void *)(uintptr_t)v->at, v->n);
    *v = (file_view){ 0 };
}

tn_status file_read_all(mem m, int fd, size_t limit, unsigned char **out_data, size_t *out_size, err *e) {
    *out_data = NULL;
    *out_size = 0;
    struct stat s;
    if (fstat(fd, &s)) return err_set(e, TN_ERR_IO, "cannot read: %s", strerror(errno));
    if (!S_ISREG(s.st_mode)) return err_set(e, TN_ERR_IO, "not a regular file");
    if (s.st_size < 0 || (uint64_t)s.st_size > limit) return err_set(e, TN_ERR_IO, "larger than %zu bytes", limit);
    size_t size = (size_t)s.st_size, n = 0;
    unsigned char *data = mem_alloc(m, size);
    if (!data) return err_set(e, TN_ERR_NOMEM, "out of memory: %zu bytes asked for", size);
    while (n < size) {
        ssize_t got = read(fd, data + n, size - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            tn_status st = err_set(e, TN_ERR_IO, "cannot read: %s", got ? strerror(errno) : "the file became shorter");
            mem_free(m, data, size);
            return st;
        }
        n += (size_t)got;
    }
    *out_data = data;
    *out_size = size;
    return TN_OK;
}

bool file_private_dir(const char *first, int *next, char path[PATH_BYTES]) {
    const char *const places[] = { first, "/tmp", "/var/tmp", "/dev/shm" };
    while (*next < (int)COUNT_OF(places)) {
        const char *place = places[(*next)++];
        int n = place ? snprintf(path, PATH_BYTES, "%s/" FILE_TEMP_PREFIX "XXXXXX", place) : PATH_BYTES;
        if (n < PATH_BYTES && mkdtemp(path)) return true;
    }
    return false;
}

bool file_disk_is_full(const char *dir) {
    enum { LITTLE = 16 << 20 };
    struct statvfs s;
    if (statvfs(dir, &s)) return false;
    return (s.f_blocks && s.f_bavail < LITTLE / (s.f_frsize ? s.f_frsize : 1)) || (s.f_files && !s.f_favail);
}

void file_remove_flat(int parent_fd, const char *dir) {
    int fd = openat(parent_fd, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) unlinkat(fd, entry->d_name, 0);
    closedir(d);
    unlinkat(parent_fd, dir, AT_REMOVEDIR);
}
