/* jit_names.h - tells debuggers and profilers about loaded machine code: its functions' names, and how to unwind through them.
 * Best effort: what the system does not take is left out. */
#ifndef TN_RT_JIT_NAMES_H
#define TN_RT_JIT_NAMES_H

#include "rt/device.h"

/* Appends the functions of an image that runs at `at` to /tmp/perf-PID.map, where perf looks for them. */
void jit_names_perf(const device_image *image, const unsigned char *at);

/* Unwind information (.eh_frame) of the image's functions that keep a frame pointer, known to the unwinder of the process if
 * there is one, until jit_names_forget. NULL = none. */
unsigned char *jit_names_unwind(mem m, const device_image *image, const unsigned char *at, size_t *out_size);
void jit_names_forget(mem m, unsigned char *unwind, size_t size);

#endif
