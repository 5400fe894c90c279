/* devices.c - the table of devices. A new one adds its row here. */
#include "rt/device.h"

#include <string.h>

const device_api *const *device_table(int *out_n) {
    static const device_api *const table[] = { &device_cpu, &device_cuda, &device_opencl, &device_null };
    *out_n = (int)COUNT_OF(table);
    return table;
}

const device_api *device_find(const char *name) {
    static const device_api *const more[] = { &device_null_cuda, &device_null_opencl };
    int n;
    const device_api *const *table = device_table(&n);
    for (int i = 0; i < n; i++)
        if (!strcmp(table[i]->name, name)) return table[i];
    for (size_t i = 0; i < COUNT_OF(more); i++)
        if (!strcmp(more[i]->name, name)) return more[i];
    return NULL;
}
