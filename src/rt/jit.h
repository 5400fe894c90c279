/* jit.h - memory for machine code: images come in, modules with entries go out.
 *
 * Code is never at a writable address: where the system allows it, it is written to an anonymous file that is mapped to be run,
 * in big regions shared by many modules; a load is two system calls. Elsewhere each module has pages of its own, which turn
 * from writable to executable; so has the first one everywhere, for many a process loads no other, and so have all whose names
 * are told (perf wants it). After fork() the child starts regions of its own: it never writes to pages that it shares with its
 * parent.
 *
 * Threads: safe. */
#ifndef TN_RT_JIT_H
#define TN_RT_JIT_H

#include "rt/device.h"

typedef struct jit jit;
typedef struct jit_code jit_code;

tn_status jit_open(mem m, bool name_code, jit **out, err *e);
void jit_close(jit *j); /* after the last module was dropped; NULL is fine */
tn_status jit_load(jit *j, const device_image *image, jit_code **out, err *e);
void jit_drop(jit *j, jit_code *c);                  /* NULL is fine */
void *jit_find(const jit_code *c, const char *name); /* NULL when there is none */

#endif
