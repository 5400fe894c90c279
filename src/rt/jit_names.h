/* jit_names.h - tells debuggers, profilers and unwinders about loaded machine code: its functions' names, and how to unwind
 * through them. Best effort: what the system or the memory does not allow is left out. */
#ifndef TN_RT_JIT_NAMES_H
#define TN_RT_JIT_NAMES_H

#include "rt/device.h"

/* Appends the functions of an image that runs at `at` to /tmp/perf-PID.map, where perf looks for them. */
void jit_names_perf(const device_image *image, const unsigned char *at);

/* An object file in memory, with symbols and unwind information (.eh_frame) of the image's functions. */
typedef struct jit_object {
    void *entry;          /* what the debugger holds on to; NULL = nothing */
    unsigned char *bytes; /* [n] the file */
    size_t n;
    unsigned char *unwind; /* the part that the unwinder of the process was told, or NULL */
} jit_object;

/* Makes it and tells debuggers (GDB's JIT interface, which LLDB has too) and the unwinder of the process, if there is one. */
void jit_names_add(mem m, const device_image *image, const unsigned char *at, jit_object *out);
void jit_names_remove(mem m, jit_object *o);

/* jit_gdb.c: puts an object file on the list that debuggers read. NULL when out of memory. Safe. */
void *jit_gdb_add(mem m, const unsigned char *file, size_t n);
void jit_gdb_remove(mem m, void *entry); /* NULL is fine */

#endif
