/* cc.h - the system's C compiler as a function: C text in, bytes of a shared object out.
 *
 * The compiler is started with execve, a fixed argument list and a small fixed environment: no shell, and nothing of the host's
 * environment reaches it. It works in a private directory of mode 0700 that is removed afterwards, in its own process group,
 * and is stopped when it takes too long. A cc is immutable once open: safe for many threads. */
#ifndef TN_RT_CC_H
#define TN_RT_CC_H

#include "base/base.h"

typedef struct cc cc;

#define CC_TIMEOUT_SECONDS 300.0

/* program: a path, or a name that is looked up in PATH. Runs `program --version` once. arch: the flag that names
 * the instruction set, a constant; NULL = that of this processor. timeout_seconds 0 = the default.
 * TN_ERR_BUILD when there is no such program or it is no compiler. */
tn_status cc_open(mem m, const char *program, const char *arch, double timeout_seconds, cc **out, err *e);
void cc_close(cc *c); /* NULL is fine */

/* What the output depends on besides the source: version of the compiler and flags, as one line for cache keys. */
const char *cc_identity(const cc *c);
bool cc_is_clang(const cc *c);

/* The image is allocated from m: free it with mem_free(m, image, size). tmp: where to make the private directory first, before
 * the usual places; NULL = only those. TN_ERR_BUILD carries the first lines the compiler printed. */
tn_status cc_compile(const cc *c, const char *tmp, const char *source, size_t n_source, unsigned char **out_image,
                     size_t *out_size, err *e);

#endif
