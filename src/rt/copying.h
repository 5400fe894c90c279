/* copying.h - what every device asks before bytes go between its buffers and the host. */
#ifndef TN_RT_COPYING_H
#define TN_RT_COPYING_H

#include "base/base.h"

/* TN_ERR_INVAL when `size` bytes at `offset` leave a buffer of `have` bytes, or when the host's bytes are no memory of this
 * process (freed, most likely). Only long copies are looked up: short ones come from a heap that keeps its pages, and a copy
 * would take less time than the look. */
tn_status copying_check(const char *what, size_t have, size_t offset, const void *host, size_t size, err *e);

#endif
