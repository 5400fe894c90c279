/* quota.h - how much processor time the control groups of this process allow it. */
#ifndef TN_RT_QUOTA_H
#define TN_RT_QUOTA_H

#include "base/base.h"

/* In: the root of the file system ("" = the system's own), below which proc/self/cgroup and sys/fs/cgroup are read. Out:
 * processors, rounded up, at least 1; 0 where nothing limits them. Versions 1 and 2 of control groups, all levels of them. */
int quota_cpus(const char *root);

#endif
