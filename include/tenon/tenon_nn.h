/* tenon_nn.h - layers, losses and optimisers as compositions of the builders of tenon.h.
 *
 * Everything here builds graph nodes through the public interface and nothing else: a layer of your own has the same rights.
 *
 * Parameters: a layer with a name makes its parameters as "<name>/w", "<name>/b" and so on with tn_param; optimisers train all
 *   parameters of the graph. They are f32 (f64 for an f64 input) and are cast to the input's dtype, so f16 and bf16 inputs give
 *   mixed-precision training. Initial values depend on tn_graph_set_seed and the parameter's name alone.
 *
 * Options: structs are given as compound literals; a field left 0 means the default in its comment.
 *
 * Axes: images are channels-last, [N,H,W,C]. Negative axes count from the end.
 *
 * Errors: as for all builders, the first one stays in the graph and the result is poisoned. */
#ifndef TENON_NN_H
#define TENON_NN_H

#include "tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parameters ---------------------------------------------------------------------------------------------------------- */

/* Initial values. Of a shape [.., in, out], as those of linear layers and convolutions are, the axes before `in` are a window:
 * an output has fan_in = window * in inputs, an input fan_out = window * out outputs. */
typedef enum {
    TN_NN_INIT_ZEROS,
    TN_NN_INIT_ONES,
    TN_NN_INIT_CONSTANT,         /* scale */
    TN_NN_INIT_UNIFORM,          /* in +-scale */
    TN_NN_INIT_NORMAL,           /* of standard deviation scale */
    TN_NN_INIT_TRUNCATED_NORMAL, /* the same within two of them */
    TN_NN_INIT_XAVIER_UNIFORM,   /* of variance scale^2 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010); 0 = 1 */
    TN_NN_INIT_XAVIER_NORMAL,
    TN_NN_INIT_KAIMING_UNIFORM, /* of variance scale^2 / fan_in (He et al., ICCV 2015): sqrt(2) before relu; 0 = 1 */
    TN_NN_INIT_KAIMING_NORMAL,
    TN_NN_INIT_ORTHOGONAL /* rows or columns of the matrix [.., out], whichever are fewer, at right angles, of length scale */
} tn_nn_init;
/* A parameter for layers of one's own, f32 or f64, whose initial value depends on tn_graph_set_seed and its whole name. */
TN_API tn_tensor tn_nn_param(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, tn_nn_init init, double scale);

/* ---- layers -------------------------------------------------------------------------------------------------------------- */

/* f[..,in] -> f[..,out]: x w + b, w f[in,out], b f[out]; both start uniform in +-1/sqrt(in). */
TN_API tn_tensor tn_nn_linear(tn_tensor x, int64_t out_features, const char *name);
TN_API tn_tensor tn_nn_linear_no_bias(tn_tensor x, int64_t out_features, const char *name);
/* The same with tensors that are there: tied, normalised or generated weights; b { 0 }: none. tn_graph_reuse calls any layer
 * again with the parameters that it has. */
TN_API tn_tensor tn_nn_linear_given(tn_tensor x /* f[..,in] */, tn_tensor w /* f[in,out] */, tn_tensor b /* f[out] */);

/* Per axis of the image. A 0 repeats the axis before it; a first 0 means 1 (kernel, stride, dilation) or no padding. Padding -1
 * is no padding on that axis. */
typedef struct {
    int64_t out_channels;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    int64_t groups; /* 0 = 1; divides both channel counts */
    int no_bias;
    /* 2 or 4, for tn_nn_conv2d with kernel 3, stride and dilation 1, one group, f32 or f64: Winograd's way, in tiles of so many
     * results squared, which takes 2.25 or 4 times fewer multiplications. It rounds otherwise: on random data 2 has about the
     * error of the plain sum, 4 five to ten times that. 0 = the plain sum. */
    int winograd;
    tn_tensor transformed;   /* winograd: use these, from tn_nn_winograd_weights, instead of the parameter "<name>/w" */
    tn_tensor weights, bias; /* use these instead of the parameters; with both the layer needs no name */
} tn_nn_conv_opts;
/* f[N,..image..,C] -> f[N,..positions..,out_channels]. w f[..kernel..,C/groups,out_channels], b f[out_channels]; both start
 * uniform in +-1/sqrt(C/groups * kernel size). */
TN_API tn_tensor tn_nn_conv1d(tn_tensor x /* f[N,W,C] */, tn_nn_conv_opts opts, const char *name);
TN_API tn_tensor tn_nn_conv2d(tn_tensor x /* f[N,H,W,C] */, tn_nn_conv_opts opts, const char *name);
TN_API tn_tensor tn_nn_conv3d(tn_tensor x /* f[N,D,H,W,C] */, tn_nn_conv_opts opts, const char *name);

/* The weights of a convolution for .winograd = m (2 or 4): f[(m+2)^2,C,O]. Made once and kept, they need not be made in each
 * run. */
TN_API tn_tensor tn_nn_winograd_weights(tn_tensor w /* f[3,3,C,O] */, int m);

typedef struct {
    int64_t kernel[3], stride[3], padding[3], dilation[3]; /* as above, but stride 0 = the kernel's size */
} tn_nn_pool_opts;
/* Over the axes between the first (batch) and the last (channels): 1 to 3 of them. Padding never wins a maximum. Equal largest
 * elements of a window share its gradient. */
TN_API tn_tensor tn_nn_max_pool(tn_tensor x, tn_nn_pool_opts opts);
/* The mean of the whole window: padding counts as zeros. */
TN_API tn_tensor tn_nn_avg_pool(tn_tensor x, tn_nn_pool_opts opts);

typedef struct {
    int64_t out[3];           /* positions along each axis of the image */
    uint64_t seed;            /* of pseudo-random borders, which differ from seed to seed */
    const int64_t *border[3]; /* or the borders of an axis, out + 1 of them, rising: position i has border[i] .. border[i+1] */
    int overlapping;          /* 1 = each window has its end border, too */
} tn_nn_fractional_pool_opts;
/* Max pooling by factors that are no whole numbers (Graham, Fractional Max-Pooling, 2014): windows of a and a + 1 elements in
 * pseudo-random turn, ceil(a (i + u)) with a = size / out and u from the seed. A program has one choice of windows; training
 * with several takes a program for each. */
TN_API tn_tensor tn_nn_fractional_max_pool(tn_tensor x /* f[N,..image..,C] */, tn_nn_fractional_pool_opts opts);

/* ---- images the other way, and of other sizes ---- */

typedef struct {
    int64_t out_channels;                                  /* of weights that are given: theirs */
    int64_t kernel[3], stride[3], padding[3], dilation[3]; /* as of tn_nn_conv_opts */
    int64_t output_padding[3]; /* elements more at the end; a 0 repeats the axis before, -1 is none on that axis */
    int64_t groups;            /* 0 = 1 */
    int no_bias;
    tn_tensor weights, bias; /* when their graphs are set: use these f[..kernel..,C,out/groups], f[out] (without it: none) */
} tn_nn_conv_transpose_opts;
/* The adjoint of a convolution, over 1 to 3 axes: f[N,..image..,C] -> f[N,..(d-1) stride + (k-1) dilation + 1 - 2 padding +
 * output_padding..,out]. Parameters "<name>/w" and "<name>/b" start uniform in +-1/sqrt(out/groups * kernel size). */
TN_API tn_tensor tn_nn_conv_transpose(tn_tensor x, tn_nn_conv_transpose_opts opts, const char *name);
/* The windows that pools and convolutions see: f[N,..image..,C] -> f[N,..positions..,..kernel..,C]; outside are zeros. */
TN_API tn_tensor tn_nn_unfold(tn_tensor x, tn_nn_pool_opts opts);
/* Its adjoint: every element of the windows is added to the image element it is of, f[N,..image..,C]. image: the sizes; a 0
 * repeats the one before. */
TN_API tn_tensor tn_nn_fold(tn_tensor x /* f[N,..positions..,..kernel..,C] */, const int64_t image[3], tn_nn_pool_opts opts);
/* f[N,..d..,C r^n] -> f[N,..d r..,C] over n image axes, and back: channel c r^n + i r + j gives element (i, j) of a block (Shi
 * et al. 2016, arXiv:1609.05158). */
TN_API tn_tensor tn_nn_pixel_shuffle(tn_tensor x, int64_t r);
TN_API tn_tensor tn_nn_pixel_unshuffle(tn_tensor x, int64_t r);

/* Pools to `out` positions (a 0 repeats the axis before): position i has the elements floor(i d / out) .. ceil((i+1) d / out).
 * Where a run gives d, `out` is 64 at most, and each position looks at all elements. */
TN_API tn_tensor tn_nn_adaptive_avg_pool(tn_tensor x /* f[N,..image..,C] */, const int64_t out[3]);
TN_API tn_tensor tn_nn_adaptive_max_pool(tn_tensor x /* f[N,..image..,C] */, const int64_t out[3]);

typedef enum { TN_NN_NEAREST, TN_NN_NEAREST_EXACT, TN_NN_LINEAR, TN_NN_CUBIC } tn_nn_interpolation;
typedef struct {
    int64_t out[3]; /* sizes of the image, numbers or dims; a 0 repeats the axis before */
    tn_nn_interpolation mode;
    int align_corners; /* the first and the last element stay where they are; else elements are areas, (i + 0.5) d / out - 0.5
                        */
    int antialias; /* LINEAR and CUBIC, sizes that are numbers: filters as wide as a position, where the image becomes smaller
                    */
} tn_nn_interpolate_opts;
/* NEAREST takes element floor(i d / out), NEAREST_EXACT floor((i + 0.5) d / out); CUBIC is Keys' with a = -3/4, with
 * antialiasing -1/2. Along one axis after the other. */
TN_API tn_tensor tn_nn_interpolate(tn_tensor x /* f[N,..image..,C] */, tn_nn_interpolate_opts opts);
/* What interpolations are made of: n positions along axis, each the sum over k of weight[k*n+i] * x[at[k*n+i]]. weight NULL:
 * the elements themselves, for n_taps 1. Where a run gives n, at and weight are for the most positions (n in their indexes), of
 * which a run has the first, and a place behind the axis's end is its last element. */
TN_API tn_tensor tn_nn_resample(tn_tensor x, int axis, int64_t n, int n_taps, const int64_t *at, const double *weight);

typedef enum { TN_NN_GRID_ZEROS, TN_NN_GRID_BORDER, TN_NN_GRID_REFLECTION } tn_nn_grid_padding;
typedef struct {
    tn_nn_interpolation mode; /* NEAREST rounds halves to even, as NEAREST_EXACT does */
    tn_nn_grid_padding padding;
    int align_corners; /* -1 and 1 are the middles of the outermost elements; else their outer borders */
} tn_nn_grid_opts;
/* Elements at places (x, y) in -1 .. 1 (Jaderberg et al. 2015, arXiv:1506.02025): f[N,Ho,Wo,C]. */
TN_API tn_tensor tn_nn_grid_sample(tn_tensor x /* f[N,H,W,C] */, tn_tensor places /* f[N,Ho,Wo,2] */, tn_nn_grid_opts opts);

typedef struct {
    int64_t out[2]; /* bins along H and W */
    double scale;   /* from coordinates of boxes to elements; 0 = 1 */
    int samples;    /* along each axis of a bin */
    int half_pixel; /* elements are areas: coordinates less 0.5; else boxes are at least 1 wide */
    int max;        /* the largest weighted neighbour of a bin's samples; 0: their mean */
} tn_nn_roi_opts;
/* Regions of images in bins (He et al. 2017, arXiv:1703.06870): f[R,out,out,C]. */
TN_API tn_tensor tn_nn_roi_align(tn_tensor x /* f[N,H,W,C] */, tn_tensor boxes /* f[R,4]: x1 y1 x2 y2 */,
                                 tn_tensor batch /* i[R]: which image */, tn_nn_roi_opts opts);

typedef struct {
    double iou; /* boxes that share more than this part of their union with a better one are left out */
    double score;
    int has_score; /* boxes must have more than .score */
} tn_nn_nms_opts;
/* The best boxes of each row, best first, that do not overlap: i64[B,most], -1 behind the count (out_count i64[B], may be
 * NULL). A loop of `most` steps (up to 8 are written out, for devices without loops). No gradient. */
TN_API tn_tensor tn_nn_nms(tn_tensor boxes /* f[B,N,4]: y1 x1 y2 x2 */, tn_tensor scores /* f[B,N] */, int64_t most,
                           tn_nn_nms_opts opts, tn_tensor *out_count);

/* i32 or i64[..] -> f32[..,dim]: rows of the table "<name>/w" f32[n_rows,dim], which starts standard normal. */
TN_API tn_tensor tn_nn_embedding(tn_tensor index, int64_t n_rows, int64_t dim, const char *name);

/* An i64[] state that counts runs: 0 in the first, 1 in the second, ... For dropout and schedules. */
TN_API tn_tensor tn_nn_counter(tn_graph *g, const char *name);
/* Zeroes each element with probability p and divides the others by 1 - p. The mask depends on (counter, name, element): give
 * each layer its own name. */
TN_API tn_tensor tn_nn_dropout(tn_tensor x, double p, tn_tensor counter /* i64[] */, const char *name);
/* Whole channels of a sample (Tompson et al., CVPR 2015), or whole samples, as on the branch of a residual layer (stochastic
 * depth: Huang et al., ECCV 2016). */
TN_API tn_tensor tn_nn_spatial_dropout(tn_tensor x /* f[N,..,C] */, double p, tn_tensor counter, const char *name);
TN_API tn_tensor tn_nn_drop_path(tn_tensor x /* f[N,..] */, double p, tn_tensor counter, const char *name);
/* For selu (Klambauer et al., NIPS 2017): keeps mean 0 and variance 1. */
TN_API tn_tensor tn_nn_alpha_dropout(tn_tensor x, double p, tn_tensor counter, const char *name);
/* Gyro dropout (Lee et al., MLSys 2022): of `subnets` masks that never change, `together` are in use at once, sample n having
 * the (n mod together)-th of them; after so many runs the next ones follow. */
TN_API tn_tensor tn_nn_gyro_dropout(tn_tensor x /* f[N,..] */, double p, int64_t subnets, int64_t together, int64_t runs,
                                    tn_tensor counter, const char *name);

/* (x - mean) / sqrt(var + eps) over the last axis, times "<name>/w", plus "<name>/b" (both f[C]). eps 0 = 1e-5. */
TN_API tn_tensor tn_nn_layer_norm(tn_tensor x /* f[..,C] */, double eps, const char *name);
/* x / sqrt(mean(x^2) + eps) over the last axis, times "<name>/w". eps 0 = 1e-6. */
TN_API tn_tensor tn_nn_rms_norm(tn_tensor x /* f[..,C] */, double eps, const char *name);
/* Layer norm over the image and C / groups channels, with one scale and shift a channel. */
TN_API tn_tensor tn_nn_group_norm(tn_tensor x /* f[N,..,C] */, int64_t groups, double eps, const char *name);
/* The same for each channel apart (Ulyanov et al. 2016, arXiv:1607.08022). */
TN_API tn_tensor tn_nn_instance_norm(tn_tensor x /* f[N,..,C] */, double eps, const char *name);
/* x / (k + alpha / size * sum of x^2 over `size` channels around)^beta (Krizhevsky et al., NIPS 2012). */
TN_API tn_tensor tn_nn_local_response_norm(tn_tensor x /* f[..,C] */, int64_t size, double alpha, double beta, double k);
/* Weights for tn_nn_linear_given and tn_nn_conv_opts.weights. Weight norm: v scaled to columns of length "<name>/g" f[out],
 * which starts as ones (Salimans and Kingma, NIPS 2016). Spectral norm: w divided by its largest singular value as a matrix
 * [.., out], which so many power iterations a run come near to, from the state "<name>/u" f[out]; 0 iterations leave that as it
 * is (Miyato et al., ICLR 2018). */
TN_API tn_tensor tn_nn_weight_norm(tn_tensor v /* f[..,out] */, const char *name);
TN_API tn_tensor tn_nn_spectral_norm(tn_tensor w /* f[..,out] */, int iterations, const char *name);
typedef struct {
    double eps;      /* 0 = 1e-5 */
    double momentum; /* share of the batch in the running statistics; 0 = 0.1 */
    int inference;   /* normalise with the running statistics and leave them as they are */
} tn_nn_batch_norm_opts;
/* Over all axes but the last. In training the batch is normalised by itself, and the states "<name>/mean" and "<name>/var"
 * follow the batches' mean and (unbiased) variance. */
TN_API tn_tensor tn_nn_batch_norm(tn_tensor x /* f[..,C] */, tn_nn_batch_norm_opts opts, const char *name);

typedef struct {
    int layers;        /* 0: 1 */
    int bidirectional; /* a second loop from the end: D = 2 directions, whose states are joined along the last axis; else D = 1
                        */
    int batch_first;   /* x and the result are [B,T,..] */
    tn_tensor lengths; /* i[B] of each sequence, behind which results are zero and states stay; { 0 }: all are T */
    tn_tensor h, c;    /* [layers*D,B,R], [layers*D,B,H] what states begin with (c: LSTM); { 0 }: zeros */
    tn_tensor *out_h, *out_c; /* of the same shapes: what they end with, when they are not NULL */
    int recompute;            /* as of tn_scan_opts */
    /* LSTM: */
    int64_t projection; /* h is (s(o) tanh(c)) w_r, of so many units: w_r [H,projection] (Sak et al. 2014, arXiv:1402.1128), and
                           R below stands for them; 0: none, R = H */
    int peepholes;      /* gates see the cell's state: w_c [3,H] of i, f (c before the step) and o (c behind it) (Gers &
                           Schmidhuber 2000) */
    double clip;        /* c stays in +-clip; 0: it is not clipped */
} tn_nn_rnn_opts;
/* Recurrent layers; the result is [T,B,D*R], the state in each step of the last layer. Parameters of each layer and direction
 * ("name/l0/", "name/l0/back/"): w_x [I,G*H], w_h [R,G*H], b [G*H], uniform in +-1/sqrt(H). rnn: h = tanh(x + u), with
 * x = x_t w_x + b and u = h w_h. gru, gates r z n: r = s(x + u), z = s(x + u), n = tanh(x + r (u + b_n)), h = n + z (h - n)
 * (Cho et al. 2014, arXiv:1406.1078; the reset gate behind the product). lstm, gates i f g o: c = s(f) c + s(i) tanh(g),
 * h = s(o) tanh(c) (Hochreiter & Schmidhuber 1997, with forget gates). */
TN_API tn_tensor tn_nn_rnn(tn_tensor x /* f[T,B,I] */, int64_t hidden, const char *name, tn_nn_rnn_opts opts);
TN_API tn_tensor tn_nn_gru(tn_tensor x /* f[T,B,I] */, int64_t hidden, const char *name, tn_nn_rnn_opts opts);
TN_API tn_tensor tn_nn_lstm(tn_tensor x /* f[T,B,I] */, int64_t hidden, const char *name, tn_nn_rnn_opts opts);

/* softmax(q k^T / sqrt(d)) v over the last two axes; leading axes broadcast. causal != 0: position i sees k[0..i]. Where k and
 * v have fewer heads (axis -3) than q, but more than one, each of them serves as many neighbouring heads of q (grouped-query
 * attention, Ainslie et al. 2023, arXiv:2305.13245). */
TN_API tn_tensor tn_nn_attention(tn_tensor q /* f[..,T,d] */, tn_tensor k /* f[..,S,d] */, tn_tensor v /* f[..,S,e] */,
                                 int causal);

/* Rotary positions (Su et al. 2021, arXiv:2104.09864) as Llama has them: elements i and i + d/2 of a row turn by position *
 * base^(-2i/d). d is even; base 0 = 10000. */
TN_API tn_tensor tn_nn_rope(tn_tensor x /* f[..,T,d] */, tn_tensor position /* i64[T] */, double base);
/* How models that read longer texts than they were first trained on scale the rates base^(-2i/d) by which positions turn pairs.
 */
typedef enum {
    TN_NN_ROPE_PLAIN,
    TN_NN_ROPE_LINEAR, /* all are divided by factor */
    TN_NN_ROPE_LLAMA3, /* pairs that turn less than `low` times in `positions` are divided by factor, those that turn more than
                          `high` times are not, others partly (Llama 3.1) */
    TN_NN_ROPE_YARN    /* the same with `low` and `high` turns, partly by the number of the pair (Peng et al. 2023,
                          arXiv:2309.00071) */
} tn_nn_rope_kind;
typedef struct {
    tn_nn_rope_kind kind;
    double base;      /* 0 = 10000 */
    double factor;    /* at least 1 */
    double low, high; /* 0 = 1 and 4, for YaRN 1 and 32 */
    double positions; /* of the texts that the model was first trained on */
    double scale;     /* YaRN: what queries and keys are multiplied by; 0 = 1 + 0.1 log(factor) */
} tn_nn_rope_opts;
/* Rates of the d / 2 pairs of a head; returns what queries and keys are multiplied by, or 0 where an option or d is wrong. */
TN_API double tn_nn_rope_rates(int64_t d, tn_nn_rope_opts opts, double *rates /* [d/2] */);
/* (silu(x g) * (x u)) d (Shazeer 2020, arXiv:2002.05202) without biases: "<name>/gate/w" and "<name>/up/w" f[C,hidden],
 * "<name>/down/w" f[hidden,C]. */
TN_API tn_tensor tn_nn_swiglu(tn_tensor x /* f[..,C] */, int64_t hidden, const char *name);

/* ---- language models ----------------------------------------------------------------------------------------------------- */

/* Parameters have the names and layouts of Hugging Face's checkpoints ("h.0.attn.c_attn.weight", "wte.weight";
 * "model.layers.0.self_attn.q_proj.weight"), so that tn_io_load_state reads their safetensors files. Initial values are
 * GPT-2's. */
typedef enum { TN_NN_GPT2, TN_NN_LLAMA /* RMS norms, rotary positions, SwiGLU, grouped queries */ } tn_nn_lm_kind;
/* How a matrix of a program that does not train lies in memory. */
typedef struct {
    int64_t group; /* as in tn_nn_lm_opts; it divides the inputs. 0 = none */
    int bits;      /* 8 (0 is the same) or 4 */
    int has_least; /* 1: a number times its scale has "<name>_least" added, of which there are as many; 4 bits are 0 to 15 then
                    */
    tn_dtype type; /* without groups: TN_F32, TN_F16 or TN_BF16 */
    /* Of scales and least values: TN_F32, TN_F16, or TN_I8: those are multiplied by "<name>_scale_of" and "<name>_least_of",
     * f16 for each `block` inputs, which are whole groups and divide the inputs. */
    tn_dtype scale;
    int64_t block;
} tn_nn_lm_matrix;
typedef struct {
    tn_nn_lm_kind kind;
    int64_t vocab, positions, width, layers, heads;
    int64_t kv_heads;  /* Llama: heads of keys and values; 0 = heads */
    int64_t hidden;    /* of the feed-forward layers; 0 = 4 width, for Llama 8/3 width, rounded up to a multiple of 32 */
    double eps;        /* of the norms; 0 = 1e-5, for Llama 1e-6 */
    double rope_base;  /* Llama; 0 = 10000 */
    int tied;          /* Llama: the embedding's table makes the logits, too, as GPT-2's always does; 0 = "lm_head.weight" */
    double dropout;    /* of the embedding, and of what each layer adds; 0 = none */
    tn_tensor counter; /* i64[] for dropout, from tn_nn_counter */
    tn_dtype dtype;    /* of what is computed; parameters stay f32 */
    /* For programs that do not train: matrices are states i8 under their names, with a scale for each `group` neighbouring
     * inputs in "<name>_scale" f32[in/group,out] or [out,in/group] (rows of the embedding's table: [vocab,width/group]). They
     * stay narrow in memory. `tenon quantize` makes them. 0 = f32 parameters. */
    int64_t group;
    /* Of a number of such a matrix: 8 (0 is the same), or 4: states u8 of half as many inputs, a byte for two of a group. Input
     * i of group / 2 is in the low half, input i + group / 2 in the high one, each with 8 added, as GGUF's q4_0 has them. */
    int bits;
    /* The same without groups: matrices and the table of tokens are states of TN_F16 or TN_BF16, which contractions widen where
     * they read them: a token moves half of the bytes. TN_F32 = f32 parameters. */
    tn_dtype weights;
    /* Where it is not NULL: how the matrix (or table of tokens) of that name lies, instead of group, bits and weights. */
    tn_nn_lm_matrix (*matrix)(void *ud, const char *name);
    void *matrix_ud;
    /* 1: parameters are states without initial values, which a session gets before it runs: nothing is drawn at random, and the
     * program has no values of its own beside the session's. */
    int given;
    int recompute; /* 1: gradients compute each block again, from what goes into it (tn_checkpoint) */
    int64_t
        span; /* of tn_nn_lm_cached: only so many positions of the cache are looked at; start + T is at most that. 0 = all */
    /* What relatives of Llama differ in (Mistral, Qwen2, Qwen3); 0 is Llama. */
    int64_t head;   /* the width of a head; 0 = width / heads */
    int64_t window; /* a token sees so many positions, its own the last of them; 0: all up to its own */
    int biases;     /* 1: of q_proj, k_proj and v_proj; 2: of o_proj, too */
    int head_norms; /* 1: RMS norms of each head of queries and keys, "self_attn.q_norm.weight" and "k_norm" f[head] */
    /* Scaled rotary positions: by how much a position turns each pair of elements (NULL: rope_base^(-2i/head)), and what
     * queries and keys are multiplied by behind that (0 = 1). tn_nn_rope_rates makes both. */
    const double *rope_rates; /* [head/2] */
    double rope_scale;
} tn_nn_lm_opts;
/* The logits of what follows each token: f[B,T,vocab], where T is at most opts.positions. Token ids must be below vocab (as in
 * tn_gather they are clamped). */
TN_API tn_tensor tn_nn_lm(tn_tensor tokens /* i[B,T] */, tn_nn_lm_opts opts);
/* The same of tokens at positions start .. start + T - 1, after others: keys and values of all positions are kept in the states
 * "cache.<layer>.k" and "cache.<layer>.v" f[B,kv_heads,positions,head], which every run writes T rows of. start + T must
 * be at most opts.positions. What earlier runs wrote from start on is not seen. */
TN_API tn_tensor tn_nn_lm_cached(tn_tensor tokens /* i[B,T] */, tn_tensor start /* i64[] */, tn_nn_lm_opts opts);

/* ---- activations --------------------------------------------------------------------------------------------------------- */
/* Where the two sides of an activation or a loss have different derivatives, the gradient is the one that PyTorch has: 0 for
 * relu at 0 and at the ends of hard_tanh, relu6 and hard_sigmoid, alpha for elu at 0, slope for leaky_relu at 0, 0 for l1 at 0.
 */

TN_API tn_tensor tn_nn_gelu(tn_tensor x);              /* x/2 (1 + erf(x / sqrt 2)) */
TN_API tn_tensor tn_nn_gelu_tanh(tn_tensor x);         /* the tanh approximation */
TN_API tn_tensor tn_nn_silu(tn_tensor x);              /* x sigmoid(x) */
TN_API tn_tensor tn_nn_elu(tn_tensor x, double alpha); /* x, or alpha (e^x - 1) below 0 */
TN_API tn_tensor tn_nn_selu(tn_tensor x);
TN_API tn_tensor tn_nn_leaky_relu(tn_tensor x, double slope); /* x, or slope x below 0 */
TN_API tn_tensor tn_nn_relu6(tn_tensor x);                    /* min(max(x, 0), 6) */
TN_API tn_tensor tn_nn_softplus(tn_tensor x);                 /* log(1 + e^x), without overflow */
TN_API tn_tensor tn_nn_log_sigmoid(tn_tensor x);              /* -softplus(-x) */
TN_API tn_tensor tn_nn_softsign(tn_tensor x);                 /* x / (1 + |x|) */
TN_API tn_tensor tn_nn_mish(tn_tensor x);                     /* x tanh(softplus(x)) */
TN_API tn_tensor tn_nn_hard_tanh(tn_tensor x);                /* x cut to [-1, 1] */
TN_API tn_tensor tn_nn_hard_sigmoid(tn_tensor x);             /* x/6 + 1/2 cut to [0, 1] */
TN_API tn_tensor tn_nn_hard_swish(tn_tensor x);               /* x hard_sigmoid(x) */

TN_API tn_tensor tn_nn_softmax(tn_tensor x, int axis);
TN_API tn_tensor tn_nn_log_softmax(tn_tensor x, int axis);
/* log(sum(exp(x))) along axis, without overflow. keep != 0 leaves the axis with size 1. */
TN_API tn_tensor tn_nn_logsumexp(tn_tensor x, int axis, int keep);

/* How a sum is rounded. tn_sum (PLAIN) adds in an order of its own, the same for any number of threads. */
typedef enum {
    TN_NN_SUM_PLAIN,
    TN_NN_SUM_F64,        /* in f64, rounded once */
    TN_NN_SUM_PAIRWISE,   /* ((a + b) + (c + d)) + ..: an error of log2(n) roundings */
    TN_NN_SUM_COMPENSATED /* what every addition rounds off is summed beside: about one rounding */
} tn_nn_sum_policy;
/* tn_sum by another way; integers are exact anyway. f16 and bf16 are summed as f32. */
TN_API tn_tensor tn_nn_sum(tn_tensor x, const int64_t *axes, int n_axes, int keep, tn_nn_sum_policy policy);

/* ---- losses: scalars f[], means over all rows or elements ------------------------------------------------------------ */

/* Mean of -log softmax(logits)[label]. Labels are i32 or i64 in 0..C-1; one out of range counts as if it named the row's
 * largest logit. */
TN_API tn_tensor tn_nn_cross_entropy(tn_tensor logits /* f[..,C] */, tn_tensor labels /* i[..] */);
typedef struct {
    double smoothing;  /* share of each row that is spread over all classes evenly (Szegedy et al., CVPR 2016); 0 = none */
    int ignores;       /* 1 = rows with the label `ignored` do not count; 0 rows that count: loss 0 */
    int64_t ignored;   /* such as -100 */
    tn_tensor weights; /* f[C]: how much rows of each class count; { 0 }: all the same */
} tn_nn_cross_entropy_opts;
TN_API tn_tensor tn_nn_cross_entropy_with(tn_tensor logits /* f[..,C] */, tn_tensor labels /* i[..] */,
                                          tn_nn_cross_entropy_opts opts);
/* Mean of -log_p[label]; a label out of range counts 0. */
TN_API tn_tensor tn_nn_nll(tn_tensor log_p /* f[..,C] */, tn_tensor labels /* i[..] */);
TN_API tn_tensor tn_nn_mse(tn_tensor x, tn_tensor target);
TN_API tn_tensor tn_nn_l1(tn_tensor x, tn_tensor target);
TN_API tn_tensor tn_nn_huber(tn_tensor x, tn_tensor target, double delta); /* d^2/2, or delta (|d| - delta/2) for |d| > delta */
/* Sum over the last axis of p (log p - log_q), mean over the rest; p = 0 counts 0. */
TN_API tn_tensor tn_nn_kl_div(tn_tensor log_q /* f[..,C] */, tn_tensor p /* f[..,C] */);
/* Mean of -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)). */
TN_API tn_tensor tn_nn_bce_with_logits(tn_tensor x, tn_tensor t);
/* The same of probabilities p; each logarithm counts -100 at the least. */
TN_API tn_tensor tn_nn_bce(tn_tensor p, tn_tensor t);
TN_API tn_tensor tn_nn_smooth_l1(tn_tensor x, tn_tensor target, double beta); /* huber / beta; l1 for beta 0 */
/* bce_with_logits of each element times (1 - p_t)^gamma, p_t being the probability of the target, and times alpha for t = 1,
 * 1 - alpha for t = 0 (Lin et al., ICCV 2017: 0.25 and 2). alpha < 0: neither. gamma is 0 or at least 1. */
TN_API tn_tensor tn_nn_focal(tn_tensor x, tn_tensor t, double alpha, double gamma);
/* x y / (|x| |y|) along axis, lengths being 1e-8 at the least. Not a mean: f[..] without the axis. */
TN_API tn_tensor tn_nn_cosine_similarity(tn_tensor x, tn_tensor y, int axis);
/* 1 - cos(x, y) where same > 0, elsewhere cos(x, y) - margin where that is positive. */
TN_API tn_tensor tn_nn_cosine_embedding(tn_tensor x /* f[..,C] */, tn_tensor y /* f[..,C] */, tn_tensor same /* [..] */,
                                        double margin);
/* |anchor - near| - |anchor - far| + margin where that is positive. */
TN_API tn_tensor tn_nn_triplet(tn_tensor anchor /* f[..,C] */, tn_tensor near /* f[..,C] */, tn_tensor far /* f[..,C] */,
                               double margin);
/* 1 - (2 sum(p t) + smooth) / (sum(p) + sum(t) + smooth) over each sample (Milletari et al. 2016). */
TN_API tn_tensor tn_nn_dice(tn_tensor p /* f[N,..] */, tn_tensor t /* f[N,..] */, double smooth);
/* Connectionist temporal classification (Graves et al., ICML 2006): -log of the probability of all alignments of sizes[b]
 * labels with steps[b] steps, divided by sizes[b] (at least 1). A sequence that cannot be aligned has an infinite loss, without
 * a gradient. Labels are not the blank. */
TN_API tn_tensor tn_nn_ctc(tn_tensor log_p /* f[T,B,C] */, tn_tensor labels /* i[B,S] */, tn_tensor steps /* i[B] */,
                           tn_tensor sizes /* i[B] */, int64_t blank);

/* ---- statistics and shapes ----------------------------------------------------------------------------------------------- */

/* Sum of squared distances from the mean over (n - correction): 0 = population, 1 = sample variance. */
TN_API tn_tensor tn_nn_var(tn_tensor x, const int64_t *axes, int n_axes, int correction, int keep);
/* The root of tn_nn_var, and sqrt(sum(x^2)). Gradients are 0 where the result is 0. */
TN_API tn_tensor tn_nn_std(tn_tensor x, const int64_t *axes, int n_axes, int correction, int keep);
TN_API tn_tensor tn_nn_norm(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_nn_cumsum(tn_tensor x, int axis); /* element i: sum of 0..i along axis */
TN_API tn_tensor tn_nn_cumprod(tn_tensor x, int axis);

TN_API tn_tensor tn_nn_stack(const tn_tensor *xs, int n, int axis); /* along a new axis */
TN_API tn_tensor tn_nn_vstack(const tn_tensor *xs, int n);          /* NumPy: along axis 0, vectors as rows */
TN_API tn_tensor tn_nn_hstack(const tn_tensor *xs, int n);          /* NumPy: along axis 1, vectors along axis 0 */
/* out[i] = the next sizes[i] elements along axis; the sizes add up to the axis. */
TN_API void tn_nn_split(tn_tensor x, int axis, const int64_t *sizes, int n, tn_tensor *out);
TN_API tn_tensor tn_nn_tile(tn_tensor x, const int64_t *reps, int n_axes); /* the whole axis reps times; n_axes = rank */
TN_API tn_tensor tn_nn_repeat(tn_tensor x, int64_t reps, int axis);        /* each element reps times in a row */
TN_API tn_tensor tn_nn_roll(tn_tensor x, int64_t shift, int axis);         /* element i moves to (i + shift) mod size */
typedef enum { TN_NN_PAD_EDGE, TN_NN_PAD_REFLECT, TN_NN_PAD_WRAP } tn_nn_pad_mode;
/* Edge repeats the border element, reflect mirrors without it, wrap continues at the other end. Reflect and wrap pad by less
 * than (at most) the axis's size. */
TN_API tn_tensor tn_nn_pad(tn_tensor x, int axis, int64_t before, int64_t after, tn_nn_pad_mode mode);

/* ---- distributions ------------------------------------------------------------------------------------------------------- */
/* On top of tn_random_uniform: the uniform numbers are the same in every mode and on every device, what is computed from them
 * agrees within rounding. A counter i64[] and a stream say which numbers (tn_random_uniform); draws that shall be independent
 * have different streams. f32; no gradient flows, but through what a sample is scaled with afterwards. */

TN_API tn_tensor tn_nn_random_exponential(tn_tensor counter, int64_t stream, tn_shape shape); /* of rate 1 */
TN_API tn_tensor tn_nn_random_gumbel(tn_tensor counter, int64_t stream, tn_shape shape);      /* -log(-log(u)) */
/* Standard normal within lo .. hi. From 24-bit numbers: not for bounds more than 5 away from 0 on the same side. */
TN_API tn_tensor tn_nn_random_truncated_normal(tn_tensor counter, int64_t stream, tn_shape shape, double lo, double hi);
/* n draws from softmax(logits), with replacement or without: i64[..,n]. */
TN_API tn_tensor tn_nn_random_categorical(tn_tensor logits /* f[..,C] */, int64_t n, int replace, tn_tensor counter,
                                          int64_t stream);
TN_API tn_tensor tn_nn_random_permutation(tn_tensor counter, int64_t stream, int64_t n); /* 0 .. n - 1 in some order: i64[n] */
/* One sample for each element of the parameters, f32[..]: of the gamma distribution with shape a > 0 and scale 1 (Marsaglia and
 * Tsang 2000); of beta, with a and b broadcast; of Poisson, whole numbers (rate >= 0; from 10 on by Hormann's rejection).
 * Rejection ends after 6 and 12 candidates, of which the last counts in any case (once in 10^7 samples). */
TN_API tn_tensor tn_nn_random_gamma(tn_tensor a, tn_tensor counter, int64_t stream);
TN_API tn_tensor tn_nn_random_beta(tn_tensor a, tn_tensor b, tn_tensor counter, int64_t stream);
TN_API tn_tensor tn_nn_random_poisson(tn_tensor rate, tn_tensor counter, int64_t stream);
/* f32[..] as bf16[..]: one of the two neighbours, the upper one as often as x is near it, so that x is the mean (Gupta et al.,
 * ICML 2015). Beyond the largest finite value it may become infinite. No gradient flows. TN_ERR_DTYPE for other dtypes. */
TN_API tn_tensor tn_nn_round_stochastic(tn_tensor x, tn_tensor counter /* i64[] */, int64_t stream);

/* ---- optimisers ---------------------------------------------------------------------------------------------------------- */
/* They add gradients, and updates of the parameters and of the optimiser's own states, to the graph: every run is one training
 * step. All reads in a run see the values from before it.
 *
 * What stands between gradients and update (clipping, accumulation, regularisers of one's own) works on a list of gradients:
 *
 *     tn_grad(loss, params, n, grads);
 *     tn_nn_clip_norm(grads, n, 1.0);
 *     tn_nn_adam(loss, (tn_nn_optim_opts){ .params = params, .grads = grads, .n_params = n });
 *
 * Groups with options of their own are several calls with parts of the list and different names. */

#define TN_NN_ZERO (-0.0) /* says 0 in an option whose 0 means the default: .beta1 = TN_NN_ZERO */

typedef struct {
    double lr;               /* 0 = the optimiser's default */
    tn_tensor rate;          /* when its graph is set: f[] tensor to use instead of lr, such as a schedule */
    const tn_tensor *params; /* [n_params] what to train; NULL = every parameter of the graph */
    const tn_tensor *grads;  /* [n_params] their gradients; NULL = those of loss, which is then asked for its graph alone */
    int n_params;
    tn_tensor when; /* when its graph is set: bool[]; runs in which it is false leave parameters and states as they are */
    double momentum, beta1, beta2, eps; /* 0 = the optimiser's default */
    int nesterov;
    double weight_decay; /* added to the gradient as weight_decay * p, or, decoupled, taken from p as rate * weight_decay * p */
    int decoupled;       /* SGD and Adam; RMSprop and Adagrad never are, the others always */
    int decay_rank;      /* parameters of a lower rank do not decay: 2 spares biases and the scales of norms */
    const char *name;    /* prefix of the optimiser's states; NULL = "sgd", "adam" .. */
    /* 1: parameters of bf16, and the states that belong to them, are updated in f32 and stored by tn_nn_round_stochastic, by
     * the number "<name>/step" of updates: steps below half of bf16's spacing are not lost, and no f32 copy is kept. Other
     * dtypes: as without. */
    int stochastic;
} tn_nn_optim_opts;
typedef tn_nn_optim_opts tn_nn_sgd_opts;
typedef tn_nn_optim_opts tn_nn_adam_opts;

/* lr 0.01, momentum 0. */
TN_API void tn_nn_sgd(tn_tensor loss, tn_nn_optim_opts opts);
/* Kingma and Ba, ICLR 2015; AdamW (Loshchilov and Hutter, ICLR 2019) with .decoupled. lr 0.001, beta1 0.9, beta2 0.999, eps
 * 1e-8. The step is counted in the state "<name>/step" i64[], for LAMB and Adafactor too. */
TN_API void tn_nn_adam(tn_tensor loss, tn_nn_optim_opts opts);
/* Tieleman and Hinton 2012. lr 0.01, beta2 0.99, eps 1e-8, momentum 0. */
TN_API void tn_nn_rmsprop(tn_tensor loss, tn_nn_optim_opts opts);
/* Duchi et al., JMLR 2011. lr 0.01, eps 1e-10. */
TN_API void tn_nn_adagrad(tn_tensor loss, tn_nn_optim_opts opts);
/* Shazeer and Stern, ICML 2018, as PyTorch has it: the rate is min(lr, 1/sqrt(t)) * max(0.001, rms(p)); the running mean of
 * squares, of matrices kept as means of rows and columns, takes the share t^-beta2 of each run. lr 0.01, beta2 0.8, eps 2^-23.
 */
TN_API void tn_nn_adafactor(tn_tensor loss, tn_nn_optim_opts opts);
/* Chen et al. 2023, arXiv:2302.06675. lr 1e-4, beta1 0.9, beta2 0.99. */
TN_API void tn_nn_lion(tn_tensor loss, tn_nn_optim_opts opts);
/* You et al., ICLR 2020. lr 0.001, beta1 0.9, beta2 0.999, eps 1e-6. */
TN_API void tn_nn_lamb(tn_tensor loss, tn_nn_optim_opts opts);
/* Jordan et al. 2024, for matrices alone: the momentum, orthogonalised by five Newton-Schulz steps, times sqrt(max(1, rows /
 * columns)). lr 0.02, momentum 0.95, eps 1e-7. Give embeddings and vectors to tn_nn_adam. */
TN_API void tn_nn_muon(tn_tensor loss, tn_nn_optim_opts opts);

/* Norms sqrt(sum(x^2)) of tensors as f32[n]: which gradient is not finite, say. */
TN_API tn_tensor tn_nn_norms(const tn_tensor *xs, int n);
/* Scales the gradients so that the norm of all together is at most `most`. Returns it as it was before: f32[]. */
TN_API tn_tensor tn_nn_clip_norm(tn_tensor *grads, int n, double most);
TN_API void tn_nn_clip_value(tn_tensor *grads, int n, double most); /* each element to [-most, most] */
/* Means of the gradients of `runs` runs, in states "<name>/0", "<name>/1" ..: every so many runs the result bool[] is true and
 * grads are the means; give it to an optimiser as .when. */
TN_API tn_tensor tn_nn_accumulate(tn_tensor *grads, int n, int64_t runs, const char *name);
/* Loss scaling, for f16: gradients of tn_mul(loss, scale), with the loss in f32, are divided by the scale again; the result
 * bool[], for .when, is false in a run where one of them is not finite. Such runs halve the scale and are counted in the state
 * "<name>/skipped" i64[]; `growth` good ones behind each other (0 = 2000) double it. first 0 = 65536. */
TN_API tn_tensor tn_nn_loss_scale(tn_graph *g, double first, const char *name); /* the state "<name>" f32[] */
TN_API tn_tensor tn_nn_unscale(tn_tensor scale, tn_tensor *grads, int n, int64_t growth);
/* Running means of parameters, in states "<parameter>/<name>": at first the parameter, then decay * mean + (1 - decay) * p,
 * where p is as it was before the run. */
TN_API void tn_nn_ema(const tn_tensor *params, int n, double decay, const char *name);

/* Rates for .rate: f64[] of a counter i64[] of runs (tn_nn_counter). */
/* rate * (step + 1) / warmup in the first runs. */
TN_API tn_tensor tn_nn_rate_warmup(tn_tensor rate, tn_tensor step, int64_t warmup);
/* Up to lr in a straight line over `warmup` runs, then down to `least` along half a cosine, reached at `runs`. */
TN_API tn_tensor tn_nn_rate_cosine(tn_tensor step, double lr, double least, int64_t warmup, int64_t runs);
TN_API tn_tensor tn_nn_rate_steps(tn_tensor step, double lr, double factor, int64_t every); /* lr * factor^(step / every) */
/* From lr / 25 up to lr in the first 0.3 of the runs, then down to lr / 250,000, both along half a cosine (Smith and Topin
 * 2017, arXiv:1708.07120, as PyTorch has it). */
TN_API tn_tensor tn_nn_rate_one_cycle(tn_tensor step, double lr, int64_t runs);

/* The macros below let error texts name the caller's file and line, as those of tenon.h do. */
#if !defined(TN_NO_LOCATIONS) && !defined(TN_BUILDING)
static inline tn_tensor tn_nn_stack_at_(const char *where, const tn_tensor *xs, int n, int axis) {
    return tn_nn_stack(tn_list_at_(xs, n, where), n, axis);
}
static inline tn_tensor tn_nn_vstack_at_(const char *where, const tn_tensor *xs, int n) {
    return tn_nn_vstack(tn_list_at_(xs, n, where), n);
}
static inline tn_tensor tn_nn_hstack_at_(const char *where, const tn_tensor *xs, int n) {
    return tn_nn_hstack(tn_list_at_(xs, n, where), n);
}
static inline tn_tensor tn_nn_norms_at_(const char *where, const tn_tensor *xs, int n) {
    return tn_nn_norms(tn_list_at_(xs, n, where), n);
}
static inline tn_tensor *tn_nn_list_at_(tn_tensor *xs, int n, const char *where) {
    (void)tn_list_at_(xs, n, where);
    return xs;
}
#define tn_nn_clip_norm(grads, n, most) (tn_nn_clip_norm)(tn_nn_list_at_(grads, n, TN_HERE), n, most)
#define tn_nn_clip_value(grads, n, most) (tn_nn_clip_value)(tn_nn_list_at_(grads, n, TN_HERE), n, most)
#define tn_nn_accumulate(grads, n, ...) (tn_nn_accumulate)(tn_nn_list_at_(grads, n, TN_HERE), n, __VA_ARGS__)
#define tn_nn_ema(params, n, ...) (tn_nn_ema)(tn_list_at_(params, n, TN_HERE), n, __VA_ARGS__)
#define tn_nn_stack(...) tn_nn_stack_at_(TN_HERE, __VA_ARGS__)
#define tn_nn_vstack(...) tn_nn_vstack_at_(TN_HERE, __VA_ARGS__)
#define tn_nn_hstack(...) tn_nn_hstack_at_(TN_HERE, __VA_ARGS__)
#define tn_nn_norms(...) tn_nn_norms_at_(TN_HERE, __VA_ARGS__)
#define tn_nn_counter(g, ...) (tn_nn_counter)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_nn_param(g, ...) (tn_nn_param)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_nn_linear_given(x, ...) (tn_nn_linear_given)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_spatial_dropout(x, ...) (tn_nn_spatial_dropout)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_drop_path(x, ...) (tn_nn_drop_path)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_alpha_dropout(x, ...) (tn_nn_alpha_dropout)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_gyro_dropout(x, ...) (tn_nn_gyro_dropout)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_instance_norm(x, ...) (tn_nn_instance_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_local_response_norm(x, ...) (tn_nn_local_response_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_weight_norm(x, ...) (tn_nn_weight_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_spectral_norm(x, ...) (tn_nn_spectral_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cross_entropy_with(x, ...) (tn_nn_cross_entropy_with)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_bce(x, ...) (tn_nn_bce)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_smooth_l1(x, ...) (tn_nn_smooth_l1)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_focal(x, ...) (tn_nn_focal)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cosine_similarity(x, ...) (tn_nn_cosine_similarity)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cosine_embedding(x, ...) (tn_nn_cosine_embedding)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_triplet(x, ...) (tn_nn_triplet)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_dice(x, ...) (tn_nn_dice)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_ctc(x, ...) (tn_nn_ctc)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_exponential(x, ...) (tn_nn_random_exponential)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_gumbel(x, ...) (tn_nn_random_gumbel)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_truncated_normal(x, ...) (tn_nn_random_truncated_normal)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_categorical(x, ...) (tn_nn_random_categorical)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_permutation(x, ...) (tn_nn_random_permutation)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_gamma(x, ...) (tn_nn_random_gamma)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_beta(x, ...) (tn_nn_random_beta)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_round_stochastic(x, ...) (tn_nn_round_stochastic)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_random_poisson(x, ...) (tn_nn_random_poisson)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_linear(x, ...) (tn_nn_linear)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_linear_no_bias(x, ...) (tn_nn_linear_no_bias)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_conv1d(x, ...) (tn_nn_conv1d)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_conv2d(x, ...) (tn_nn_conv2d)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_conv3d(x, ...) (tn_nn_conv3d)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_winograd_weights(w, ...) (tn_nn_winograd_weights)(tn_at(w, TN_HERE), __VA_ARGS__)
#define tn_nn_max_pool(x, ...) (tn_nn_max_pool)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_avg_pool(x, ...) (tn_nn_avg_pool)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_fractional_max_pool(x, ...) (tn_nn_fractional_max_pool)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_conv_transpose(x, ...) (tn_nn_conv_transpose)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_unfold(x, ...) (tn_nn_unfold)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_fold(x, ...) (tn_nn_fold)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_pixel_shuffle(x, ...) (tn_nn_pixel_shuffle)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_pixel_unshuffle(x, ...) (tn_nn_pixel_unshuffle)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_adaptive_avg_pool(x, ...) (tn_nn_adaptive_avg_pool)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_adaptive_max_pool(x, ...) (tn_nn_adaptive_max_pool)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_interpolate(x, ...) (tn_nn_interpolate)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_resample(x, ...) (tn_nn_resample)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_grid_sample(x, ...) (tn_nn_grid_sample)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_roi_align(x, ...) (tn_nn_roi_align)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_nms(x, ...) (tn_nn_nms)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_embedding(x, ...) (tn_nn_embedding)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_dropout(x, ...) (tn_nn_dropout)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_layer_norm(x, ...) (tn_nn_layer_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rms_norm(x, ...) (tn_nn_rms_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_group_norm(x, ...) (tn_nn_group_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_batch_norm(x, ...) (tn_nn_batch_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rnn(x, ...) (tn_nn_rnn)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_gru(x, ...) (tn_nn_gru)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_lstm(x, ...) (tn_nn_lstm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_attention(x, ...) (tn_nn_attention)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rope(x, ...) (tn_nn_rope)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_swiglu(x, ...) (tn_nn_swiglu)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_lm(x, ...) (tn_nn_lm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_lm_cached(x, ...) (tn_nn_lm_cached)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_gelu(x) (tn_nn_gelu)(tn_at(x, TN_HERE))
#define tn_nn_gelu_tanh(x) (tn_nn_gelu_tanh)(tn_at(x, TN_HERE))
#define tn_nn_silu(x) (tn_nn_silu)(tn_at(x, TN_HERE))
#define tn_nn_selu(x) (tn_nn_selu)(tn_at(x, TN_HERE))
#define tn_nn_relu6(x) (tn_nn_relu6)(tn_at(x, TN_HERE))
#define tn_nn_softplus(x) (tn_nn_softplus)(tn_at(x, TN_HERE))
#define tn_nn_log_sigmoid(x) (tn_nn_log_sigmoid)(tn_at(x, TN_HERE))
#define tn_nn_softsign(x) (tn_nn_softsign)(tn_at(x, TN_HERE))
#define tn_nn_mish(x) (tn_nn_mish)(tn_at(x, TN_HERE))
#define tn_nn_hard_tanh(x) (tn_nn_hard_tanh)(tn_at(x, TN_HERE))
#define tn_nn_hard_sigmoid(x) (tn_nn_hard_sigmoid)(tn_at(x, TN_HERE))
#define tn_nn_hard_swish(x) (tn_nn_hard_swish)(tn_at(x, TN_HERE))
#define tn_nn_elu(x, ...) (tn_nn_elu)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_leaky_relu(x, ...) (tn_nn_leaky_relu)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_var(x, ...) (tn_nn_var)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_std(x, ...) (tn_nn_std)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_norm(x, ...) (tn_nn_norm)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_softmax(x, ...) (tn_nn_softmax)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_log_softmax(x, ...) (tn_nn_log_softmax)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_logsumexp(x, ...) (tn_nn_logsumexp)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cross_entropy(x, ...) (tn_nn_cross_entropy)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_sum(x, ...) (tn_nn_sum)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_nll(x, ...) (tn_nn_nll)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_mse(x, ...) (tn_nn_mse)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_l1(x, ...) (tn_nn_l1)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_huber(x, ...) (tn_nn_huber)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_kl_div(x, ...) (tn_nn_kl_div)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_bce_with_logits(x, ...) (tn_nn_bce_with_logits)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_split(x, ...) (tn_nn_split)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_tile(x, ...) (tn_nn_tile)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_repeat(x, ...) (tn_nn_repeat)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_roll(x, ...) (tn_nn_roll)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_pad(x, ...) (tn_nn_pad)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cumsum(x, ...) (tn_nn_cumsum)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_cumprod(x, ...) (tn_nn_cumprod)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_sgd(loss, ...) (tn_nn_sgd)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_adam(loss, ...) (tn_nn_adam)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_rmsprop(loss, ...) (tn_nn_rmsprop)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_adagrad(loss, ...) (tn_nn_adagrad)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_adafactor(loss, ...) (tn_nn_adafactor)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_lion(loss, ...) (tn_nn_lion)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_lamb(loss, ...) (tn_nn_lamb)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_muon(loss, ...) (tn_nn_muon)(tn_at(loss, TN_HERE), __VA_ARGS__)
#define tn_nn_rate_warmup(x, ...) (tn_nn_rate_warmup)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rate_cosine(x, ...) (tn_nn_rate_cosine)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rate_steps(x, ...) (tn_nn_rate_steps)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_rate_one_cycle(x, ...) (tn_nn_rate_one_cycle)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_nn_loss_scale(g, ...) (tn_nn_loss_scale)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_nn_unscale(x, ...) (tn_nn_unscale)(tn_at(x, TN_HERE), __VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif
