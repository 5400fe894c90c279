/* devices.c - the table of devices. A new one adds its row here. */
#include "rt/device.h"

const device_api *const *device_table(int *out_n) {
    static const device_api *const table[] = { &device_cpu, &device_cuda, &device_opencl, &device_null };
    *out_n = (int)COUNT_OF(table);
    return table;
}
