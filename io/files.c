/* files.c - several files that belong together, replaced together. In: their bytes. Out: all of them in their places, or an
 * error, and then those that were there. */
#include "io.h"

#include <unistd.h>

tn_status tn_io_files_save(tn_ctx *ctx, const tn_io_bytes *files, int n) {
    if (!ctx) return TN_ERR_INVAL;
    if (n < 0 || (n && !files)) return io_fail(ctx, TN_ERR_INVAL, "tn_io_files_save: %d files at %p", n, (const void *)files);
    for (int i = 0; i < n; i++)
        if (!files[i].path || (!files[i].data && files[i].n))
            return io_fail(ctx, TN_ERR_INVAL, "tn_io_files_save: path or data of file %d is NULL", i);
    io_writer *w = io_alloc(ctx, (size_t)(n + 1) * sizeof *w);
    if (!w) return TN_ERR_NOMEM;
    tn_status st = TN_OK;
    int begun = 0, done = 0;
    for (; begun < n && !st; begun++) {
        st = io_write_begin(ctx, files[begun].path, &w[begun]);
        if (!st) st = io_write(&w[begun], files[begun].data, files[begun].n);
    }
    for (int i = 0; i < n && !st; i++) /* some file systems find out only now that they are full */
        if (w[i].temp && fsync(w[i].fd)) st = io_fail_errno(ctx, "cannot flush", w[i].path);
    for (; done < n && !st; done++) st = io_write_commit(&w[done]);
    if (st && done) done--;
    for (int i = done; i < begun && st; i++) io_write_abort(&w[i]);
    tn_io_free(ctx, w);
    return st;
}
