/* file.h - the few file operations that the compiler and the disk cache share: whole reads and writes, removal of a flat
 * folder. */
#ifndef TN_RT_FILE_H
#define TN_RT_FILE_H

#include "base/base.h"

enum { PATH_BYTES = 3072 };
#define FILE_TEMP_PREFIX "tenon-" /* of everything unfinished: files and private directories */

/* false leaves the reason in errno. */
bool file_write_all(int fd, const void *data, size_t n);
/* Pieces one behind the other as the file of that name in a directory (AT_FDCWD: where the process is): written under another
 * name, synced and renamed, so that a reader finds the old file, the new one or none. 0, or the errno of what failed; then
 * nothing is left behind. sync: false leaves writing to the system, which may lose parts of the file when the machine stops:
 * for files that are summed once in each boot. */
typedef struct file_piece {
    const void *data;
    size_t n;
} file_piece;
int file_replace(int dir, const char *name, const file_piece *pieces, int n, unsigned mode, bool sync);
enum { BOOT_ID_BYTES = 40 };
void file_boot_id(char out[BOOT_ID_BYTES]); /* changes when the machine starts; "": it is not known */
/* A regular file as it lies in the page cache, for reading, until file_unmap. Who makes it shorter meanwhile ends the process
 * that reads it. */
typedef struct file_view {
    const unsigned char *at;
    size_t n;
} file_view;
tn_status file_map(int fd, file_view *out, err *e);
void file_unmap(file_view *v);
/* Reads a regular file of at most `limit` bytes into memory of m: free it with mem_free(m, data, size). */
tn_status file_read_all(mem m, int fd, size_t limit, unsigned char **out_data, size_t *out_size, err *e);
/* Makes a private directory (mode 0700): in `first` (NULL = nowhere), else in /tmp, /var/tmp or /dev/shm, from place *next on
 * (0 at first), which moves past it. False, with the reason in errno, when no place is left. */
bool file_private_dir(const char *first, int *next, char path[PATH_BYTES]);
bool file_disk_is_full(const char *dir); /* next to no room is left there */
/* Removes a directory and the files in it; what cannot be removed stays. */
void file_remove_flat(int parent_fd, const char *dir);

#endif
