/* null.h - what the device null counted, for tests and for planning without running. */
#ifndef TN_RT_NULL_H
#define TN_RT_NULL_H

#include "rt/device.h"

typedef struct null_counts {
    uint64_t buffers, bytes; /* alive */
    uint64_t uploads, upload_bytes, downloads, download_bytes;
    uint64_t builds, source_bytes, modules;                   /* modules: alive */
    uint64_t lists, submits, steps;                           /* lists: alive; steps: summed over submits */
    uint64_t launches, parallel_launches, copies, copy_bytes; /* as executed by submits */
} null_counts;

/* d must be a device null. */
void null_get_counts(const device *d, null_counts *out);

#endif
