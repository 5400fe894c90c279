/* ml.h - what the ops of ai.onnx.ml share. */
#ifndef ONNX_ML_H
#define ONNX_ML_H

#include "import.h"

const float *onnx_attr_floats(onnx_call *c, const char *name, int *out_n);  /* NULL when not given */
const int64_t *onnx_attr_texts(onnx_call *c, const char *name, int *out_n); /* numbers of strings; the same */
tn_tensor onnx_features(onnx_call *c, tn_shape *out);                       /* operand 0 as f32 or f64 [N,F] */
tn_tensor onnx_post_transform(onnx_call *c, tn_tensor scores /* f[N,C] */);
void onnx_put_labels(onnx_call *c, tn_tensor at, const int64_t *ints, int n_ints, const int64_t *texts, int n_texts);

#endif
