/* attend.h - what the forms of attention share: heads, masks, rotation. */
#ifndef ONNX_ATTEND_H
#define ONNX_ATTEND_H

#include "import.h"

typedef struct onnx_attend {
    tn_tensor q, k, v;            /* f[N,H,T,d], f[N,G,S,d], f[N,G,S,e]; H a multiple of G */
    tn_tensor bias;               /* added to the scores, broadcasts to [N,H,T,S]; graph NULL = none. -inf = masked */
    tn_tensor allowed;            /* bool, the same: false = masked; graph NULL = all are */
    double scale, softcap, floor; /* softcap 0 = none; floor: what a masked score is, -INFINITY or a large negative number */
    bool guard;                   /* rows may be masked as a whole: they give 0 */
    tn_tensor stage[4];           /* out: scores, after softcap, after bias, after softmax */
} onnx_attend;

tn_tensor onnx_attention(onnx_attend *a);                                              /* f[N,H,T,e] */
tn_tensor onnx_split_heads(onnx_call *c, tn_tensor x /* f[N,T,H*d] */, int64_t heads); /* f[N,H,T,d] */
tn_tensor onnx_join_heads(tn_tensor x /* f[N,H,T,d] */);                               /* f[N,T,H*d] */
void onnx_allow(onnx_attend *a, tn_tensor allowed);                                    /* one condition more */
/* Query i at place offset + i sees keys from left places before it to right places after it; -1 = all of that side. offset: a
 * number, or i64[N,1,1,1]. */
void onnx_allow_band(onnx_call *c, onnx_attend *a, tn_tensor offset, int64_t left, int64_t right);

typedef struct onnx_rotary {
    tn_tensor cos, sin; /* f[N or 1,T,dims/2] */
    int64_t dims;       /* that are turned, 0 = all */
    bool interleaved;
} onnx_rotary;
tn_tensor onnx_rotate(onnx_call *c, tn_tensor x /* f[N,H,T,d] */, const onnx_rotary *r);
/* Rows of the caches by position: i64[N,T], or i64[1] where the first begins. position graph NULL: rows 0 .. T-1. */
tn_tensor onnx_rotary_rows(onnx_call *c, tn_tensor cache /* f[P,h] */, tn_tensor position, int64_t n, int64_t t);

#endif
