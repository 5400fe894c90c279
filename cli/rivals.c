/* rivals.c - other programs for the same work (bench/rivals), run as child processes. */
#include "bench.h"

const char *const rival_names[MAX_RIVALS + 1] = {
    "ort", "openvino", "jax", "torch", "torch_compile", "onednn", "openblas", NULL
};
