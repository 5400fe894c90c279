/* cpuinfo.h - what this processor is: name, instruction set, cache sizes, and a number that changes when any of them does. */
#ifndef TN_RT_CPUINFO_H
#define TN_RT_CPUINFO_H

#include "rt/device.h"

/* Fills name, detail (processor and isa), isa, vector_bytes, n_vector_regs, l*_bytes and id. */
void cpuinfo_fill(device_caps *caps);

#endif
