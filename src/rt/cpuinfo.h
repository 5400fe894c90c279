/* cpuinfo.h - what this processor is: name, instruction set, cache sizes, and a number that changes when any of them does. */
#ifndef TN_RT_CPUINFO_H
#define TN_RT_CPUINFO_H

#include "rt/device.h"

/* What compiling needs, in no time: name, isa, vector_bytes, n_vector_regs, l1_bytes, l2_bytes, machine. */
void cpuinfo_fill(device_caps *caps);
/* The rest: detail (processor and isa), l3_bytes, id. Under a hypervisor this takes hundreds of microseconds, for each cpuid is
 * a trap. */
void cpuinfo_describe(device_caps *caps);

#endif
