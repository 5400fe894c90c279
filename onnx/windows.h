/* windows.h - what convolutions and pools share: kernel, strides, padding and dilations of the spatial axes. */
#ifndef ONNX_WINDOWS_H
#define ONNX_WINDOWS_H

#include "import.h"

typedef struct onnx_windows {
    int n; /* spatial axes: 2 .. n+1 of the operand */
    int64_t in[TN_MAX_RANK], kernel[TN_MAX_RANK], stride[TN_MAX_RANK], dilation[TN_MAX_RANK];
    int64_t before[TN_MAX_RANK], after[TN_MAX_RANK]; /* padding as the model has it */
    int64_t out[TN_MAX_RANK];                        /* positions */
    int64_t axis[TN_MAX_RANK];
    bool by_taps; /* weights in i32 are in the order [O,C/groups,..K..], too: neighbouring taps are multiplied together */
} onnx_windows;

/* Reads the attributes. kernel: from the weights, or NULL: of the attribute kernel_shape. */
void onnx_windows_read(onnx_call *c, tn_shape x, const int64_t *kernel, onnx_windows *w);
/* x [N,C,..] padded with value, as windows [N,C,..positions..,..offsets..]. */
tn_tensor onnx_windows_of(tn_tensor x, const onnx_windows *w, double value);
/* x [N,C,..] with weights [O,C/groups,..], or i32 with filters [O,..,C/groups] (onnx_filters): [N,O,..positions..]. */
tn_tensor onnx_convolve(onnx_call *c, tn_tensor x, tn_tensor weights, const onnx_windows *w, int64_t groups, double pad);

#endif
