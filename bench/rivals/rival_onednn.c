/* rival_onednn.c - oneDNN 3: primitives made once, weights and images in the layouts that oneDNN asks for (reordered outside
 * the timer), post-ops fused. */
#include "worker.h"

#include <dnnl.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

#define NEED(call)                                                                                                             \
    do {                                                                                                                       \
        dnnl_status_t status_ = (call);                                                                                        \
        if (status_ != dnnl_success) {                                                                                         \
            fprintf(stderr, "onednn: %s: status %d\n", #call, (int)status_);                                                   \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

static dnnl_memory_desc_t desc(int rank, const int64_t *dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t d;
    dnnl_dims_t all = { 0 };
    memcpy(all, dims, (size_t)rank * sizeof dims[0]);
    NEED(dnnl_memory_desc_create_with_tag(&d, rank, all, dnnl_f32, tag));
    return d;
}
static dnnl_memory_t memory(const_dnnl_memory_desc_t d, void *data) {
    dnnl_memory_t m;
    NEED(dnnl_memory_create(&m, d, engine, data ? data : buffer(dnnl_memory_desc_get_size(d))));
    return m;
}
static void reorder(dnnl_memory_t from, dnnl_memory_t to) {
    const_dnnl_memory_desc_t a, b;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t p;
    NEED(dnnl_memory_get_memory_desc(from, &a));
    NEED(dnnl_memory_get_memory_desc(to, &b));
    NEED(dnnl_reorder_primitive_desc_create(&pd, a, engine, b, engine, NULL));
    NEED(dnnl_primitive_create(&p, pd));
    dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
    NEED(dnnl_primitive_execute(p, stream, 2, args));
    NEED(dnnl_stream_wait(stream));
    dnnl_primitive_destroy(p);
    dnnl_primitive_desc_destroy(pd);
}
/* Plain data in the layout the primitive asks for. */
static dnnl_memory_t wanted(dnnl_primitive_desc_t pd, int arg, const_dnnl_memory_desc_t plain, void *data) {
    const_dnnl_memory_desc_t d = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
    if (dnnl_memory_desc_equal(d, plain)) return memory(plain, data);
    dnnl_memory_t from = memory(plain, data), to = memory(d, NULL);
    reorder(from, to);
    dnnl_memory_destroy(from);
    return to;
}
static void read_plain(dnnl_memory_t from, const_dnnl_memory_desc_t plain, float *out) {
    dnnl_memory_t to = memory(plain, out);
    reorder(from, to);
    dnnl_memory_destroy(to);
}
static dnnl_primitive_attr_t with_relu(bool relu) {
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    NEED(dnnl_primitive_attr_create(&attr));
    NEED(dnnl_post_ops_create(&ops));
    if (relu) NEED(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0));
    NEED(dnnl_primitive_attr_set_post_ops(attr, ops));
    dnnl_post_ops_destroy(ops);
    return attr;
}

typedef struct step { /* one primitive with its arguments */
    dnnl_primitive_t p;
    dnnl_exec_arg_t args[4];
    int n;
} step;
typedef struct steps {
    int n;
    step at[LINE];
} steps;

static void run_steps(job *j, int64_t times) {
    steps *s = j->data;
    for (int64_t t = 0; t < times; t++) {
        for (int i = 0; i < s->n; i++) dnnl_primitive_execute(s->at[i].p, stream, s->at[i].n, s->at[i].args);
        dnnl_stream_wait(stream);
    }
}

/* y = x w + b, relu: one matmul primitive; returns y's memory. */
static dnnl_memory_t add_linear(steps *s, dnnl_memory_t x, int64_t m, int64_t n, int64_t k, float *w, float *b, bool relu,
                                bool constant) {
    dnnl_memory_desc_t xd = desc(2, (int64_t[]){ m, k }, dnnl_ab),
                       wd = desc(2, (int64_t[]){ k, n }, constant ? dnnl_format_tag_any : dnnl_ab),
                       plain = desc(2, (int64_t[]){ k, n }, dnnl_ab), bd = desc(2, (int64_t[]){ 1, n }, dnnl_ab),
                       yd = desc(2, (int64_t[]){ m, n }, dnnl_ab);
    dnnl_primitive_attr_t attr = with_relu(relu);
    dnnl_primitive_desc_t pd;
    NEED(dnnl_matmul_primitive_desc_create(&pd, engine, xd, wd, bd, yd, attr));
    step *t = &s->at[s->n++];
    dnnl_memory_t y = memory(yd, NULL);
    NEED(dnnl_primitive_create(&t->p, pd));
    t->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, x };
    t->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_WEIGHTS, wanted(pd, DNNL_ARG_WEIGHTS, plain, w) };
    t->args[2] = (dnnl_exec_arg_t){ DNNL_ARG_BIAS, memory(bd, b) };
    t->args[3] = (dnnl_exec_arg_t){ DNNL_ARG_DST, y };
    t->n = 4;
    dnnl_primitive_attr_destroy(attr);
    return y;
}

static float *data_of(dnnl_memory_t m) {
    void *p;
    NEED(dnnl_memory_get_data_handle(m, &p));
    return p;
}

static double prepare_gemm(const char *line, job *j) {
    int64_t m = number(line, "m"), n = number(line, "n"), k = number(line, "k");
    float *x = uniform((size_t)(m * k), 1.7), *w = uniform((size_t)(k * n), sqrt(3.0 / (double)k)),
          *b = uniform((size_t)n, 0.1);
    steps *s = calloc(1, sizeof *s);
    dnnl_memory_t y =
        add_linear(s, memory(desc(2, (int64_t[]){ m, k }, dnnl_ab), x), m, n, k, w, b, true, number(line, "constant"));
    *j = (job){ run_steps, NULL, s, 0 };
    run_steps(j, 1);
    double *xd = doubles(x, (size_t)(m * k)), *want = malloc((size_t)(m * n + 1) * sizeof(double));
    linear_double(xd, w, b, m, n, k, true, want);
    double e = worst_error(data_of(y), want, (size_t)(m * n), 1e-5);
    free(xd);
    free(want);
    return e;
}

static double prepare_mlp(const char *line, job *j) {
    network *net = calloc(1, sizeof *net);
    network_read(net, line);
    int64_t m = net->batch, n = net->size;
    steps *s = calloc(1, sizeof *s);
    dnnl_memory_desc_t d = desc(2, (int64_t[]){ m, n }, dnnl_ab);
    dnnl_memory_t x = memory(d, net->x);
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i] == 'R') continue; /* fused into the layer before it */
        x = add_linear(s, x, m, n, n, net->w[i], net->b[i], i + 1 < net->n && net->layers[i + 1] == 'R', true);
    }
    dnnl_primitive_desc_t pd;
    NEED(dnnl_softmax_forward_primitive_desc_create(&pd, engine, dnnl_forward_inference, dnnl_softmax_accurate, d, d, 1, NULL));
    step *t = &s->at[s->n++];
    dnnl_memory_t y = memory(d, NULL);
    NEED(dnnl_primitive_create(&t->p, pd));
    t->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, x };
    t->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_DST, y };
    t->n = 2;
    *j = (job){ run_steps, NULL, s, 0 };
    run_steps(j, 1);
    double *want = network_double(net), e = worst_error(data_of(y), want, (size_t)(m * n), 1e-4);
    free(want);
    return e;
}

static double prepare_rows(const char *line, job *j, char *reason) {
    char what[32];
    text(line, "what", what, sizeof what);
    int64_t m = number(line, "m"), n = number(line, "n");
    float *x = uniform((size_t)(m * n), 2);
    dnnl_memory_desc_t d = desc(2, (int64_t[]){ m, n }, dnnl_ab), to = d;
    dnnl_primitive_desc_t pd;
    if (!strcmp(what, "softmax")) {
        NEED(dnnl_softmax_forward_primitive_desc_create(&pd, engine, dnnl_forward_inference, dnnl_softmax_accurate, d, d, 1,
                                                        NULL));
    } else if (!strcmp(what, "layer_norm")) {
        NEED(dnnl_layer_normalization_forward_primitive_desc_create(&pd, engine, dnnl_forward_inference, d, d, NULL, 1e-5f,
                                                                    dnnl_normalization_flags_none, NULL));
    } else if (!strcmp(what, "copy") || !strcmp(what, "transpose")) {
        if (what[0] == 't') to = desc(2, (int64_t[]){ m, n }, dnnl_ba);
        NEED(dnnl_reorder_primitive_desc_create(&pd, d, engine, to, engine, NULL));
    } else {
        snprintf(reason, 64, "- no such primitive");
        return -1;
    }
    steps *s = calloc(1, sizeof *s);
    step *t = &s->at[s->n++];
    dnnl_memory_t y = memory(to, NULL);
    NEED(dnnl_primitive_create(&t->p, pd));
    t->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, memory(d, x) };
    t->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_DST, y };
    t->n = 2;
    *j = (job){ run_steps, NULL, s, 0 };
    run_steps(j, 1);
    double *want = malloc((size_t)(m * n + 1) * sizeof(double));
    for (int64_t i = 0; i < m; i++) {
        double top = -INFINITY, sum = 0, mean = 0, var = 0;
        const float *r = x + i * n;
        for (int64_t k = 0; k < n; k++) top = fmax(top, (double)r[k]), mean += (double)r[k] / (double)n;
        for (int64_t k = 0; k < n; k++)
            sum += exp((double)r[k] - top), var += ((double)r[k] - mean) * ((double)r[k] - mean) / (double)n;
        for (int64_t k = 0; k < n; k++) {
            double v = (double)r[k];
            if (what[0] == 's') v = exp(v - top) / sum;
            if (what[0] == 'l') v = (v - mean) / sqrt(var + 1e-5);
            want[what[0] == 't' ? k * m + i : i * n + k] = v;
        }
    }
    double e = worst_error(data_of(y), want, (size_t)(m * n), 1e-5);
    free(want);
    return e;
}

typedef struct layer {
    int64_t n, h, w, in, out, kernel, stride, groups, oh, ow, pad;
} layer;

/* Channels-last plain layouts: images nhwc, weights [kernel, kernel, in / groups, out]. oneDNN's dims are n c h w and
 * (groups) out in kernel kernel. */
static dnnl_memory_desc_t image_desc(int64_t n, int64_t c, int64_t h, int64_t w, bool any) {
    return desc(4, (int64_t[]){ n, c, h, w }, any ? dnnl_format_tag_any : dnnl_nhwc);
}
static dnnl_memory_desc_t weight_desc(const layer *l, bool any) {
    int64_t in = l->in / l->groups, out = l->out / l->groups;
    if (l->groups == 1) return desc(4, (int64_t[]){ out, in, l->kernel, l->kernel }, any ? dnnl_format_tag_any : dnnl_hwio);
    return desc(5, (int64_t[]){ l->groups, out, in, l->kernel, l->kernel }, any ? dnnl_format_tag_any : dnnl_hwigo);
}

/* Sums over all taps: forward into y, or both gradients. */
static void conv_double(const layer *l, const float *x, const float *w, const float *dy, double *y, double *dx, double *dw) {
    int64_t cin = l->in / l->groups, cout = l->out / l->groups;
    for (int64_t i = 0; i < l->oh * l->ow; i++)
        for (int64_t t = 0; t < l->kernel * l->kernel; t++) {
            int64_t r = i / l->ow * l->stride + t / l->kernel - l->pad, s = i % l->ow * l->stride + t % l->kernel - l->pad;
            if (r < 0 || s < 0 || r >= l->h || s >= l->w) continue;
            for (int64_t c = 0; c < l->in; c++) {
                const int64_t g = c / cin, at = (r * l->w + s) * l->in + c, first = (t * cin + c % cin) * l->out + g * cout;
                double a = (double)x[at], sum = 0;
                for (int64_t o = 0; o < cout; o++) {
                    int64_t to = i * l->out + g * cout + o;
                    if (y)
                        y[to] += a * (double)w[first + o];
                    else {
                        sum += (double)dy[to] * (double)w[first + o];
                        dw[first + o] += (double)dy[to] * a;
                    }
                }
                if (!y) dx[at] += sum;
            }
        }
}

static double check_forward(const layer *l, const float *x, const float *w, const float *b, dnnl_memory_t y) {
    size_t n = (size_t)(l->oh * l->ow * l->out);
    double *want = calloc(n + 1, sizeof(double));
    float *got = calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++) want[i] = (double)b[i % (size_t)l->out];
    conv_double(l, x, w, NULL, want, NULL, NULL);
    read_plain(y, image_desc(l->n, l->out, l->oh, l->ow, false), got);
    double e = worst_error(got, want, n, 1e-5);
    free(want);
    free(got);
    return e;
}
static double check_backward(const layer *l, const float *x, const float *w, const float *dy, dnnl_memory_t dx,
                             dnnl_memory_t dw) {
    size_t nx = (size_t)(l->h * l->w * l->in), nw = (size_t)(l->kernel * l->kernel * l->in * l->out);
    double *want_x = calloc(nx + 1, sizeof(double)), *want_w = calloc(nw + 1, sizeof(double));
    float *got_x = calloc(nx + 1, sizeof(float)), *got_w = calloc(nw + 1, sizeof(float));
    conv_double(l, x, w, dy, NULL, want_x, want_w);
    read_plain(dx, image_desc(l->n, l->in, l->h, l->w, false), got_x);
    read_plain(dw, weight_desc(l, false), got_w);
    double e = fmax(worst_error(got_x, want_x, nx, 1e-5), worst_error(got_w, want_w, nw, 1e-5));
    free(want_x);
    free(want_w);
    free(got_x);
    free(got_w);
    return e;
}

static double prepare_conv(const char *line, job *j, char *reason) {
    layer l = { number(line, "n"),
                number(line, "h"),
                number(line, "w"),
                number(line, "in"),
                number(line, "out"),
                number(line, "kernel"),
                number(line, "stride"),
                number(line, "groups"),
                0,
                0,
                0 };
    l.pad = l.kernel / 2;
    l.oh = (l.h + 2 * l.pad - l.kernel) / l.stride + 1;
    l.ow = (l.w + 2 * l.pad - l.kernel) / l.stride + 1;
    if (l.n != 1) {
        snprintf(reason, 64, "batch 1 only");
        return -1;
    }
    float *x = uniform((size_t)(l.h * l.w * l.in), 1), *b = uniform((size_t)l.out, 0.1),
          *dy = uniform((size_t)(l.oh * l.ow * l.out), 1),
          *w = uniform((size_t)(l.kernel * l.kernel * l.in / l.groups * l.out),
                       1 / sqrt((double)(l.kernel * l.kernel * l.in / l.groups)));
    dnnl_memory_desc_t any_x = image_desc(l.n, l.in, l.h, l.w, true), any_y = image_desc(l.n, l.out, l.oh, l.ow, true),
                       plain_x = image_desc(l.n, l.in, l.h, l.w, false), plain_y = image_desc(l.n, l.out, l.oh, l.ow, false),
                       any_w = weight_desc(&l, true), plain_w = weight_desc(&l, false), bd = desc(1, &l.out, dnnl_a);
    dnnl_dims_t strides = { l.stride, l.stride }, dilates = { 0, 0 }, pad = { l.pad, l.pad };
    steps *s = calloc(1, sizeof *s);
    *j = (job){ run_steps, NULL, s, 0 };
    bool backward = number(line, "backward");
    dnnl_primitive_desc_t pd, pd_x, pd_w;
    NEED(dnnl_convolution_forward_primitive_desc_create(&pd, engine, backward ? dnnl_forward_training : dnnl_forward_inference,
                                                        dnnl_convolution_auto, any_x, any_w, backward ? NULL : bd, any_y,
                                                        strides, dilates, pad, pad, NULL));
    if (!backward) {
        step *t = &s->at[s->n++];
        dnnl_memory_t y = memory(dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0), NULL);
        NEED(dnnl_primitive_create(&t->p, pd));
        t->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, wanted(pd, DNNL_ARG_SRC, plain_x, x) };
        t->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_WEIGHTS, wanted(pd, DNNL_ARG_WEIGHTS, plain_w, w) };
        t->args[2] = (dnnl_exec_arg_t){ DNNL_ARG_BIAS, memory(bd, b) };
        t->args[3] = (dnnl_exec_arg_t){ DNNL_ARG_DST, y };
        t->n = 4;
        run_steps(j, 1);
        return check_forward(&l, x, w, b, y);
    }
    NEED(dnnl_convolution_backward_data_primitive_desc_create(&pd_x, engine, dnnl_convolution_direct, any_x, any_w, any_y,
                                                              strides, dilates, pad, pad, pd, NULL));
    NEED(dnnl_convolution_backward_weights_primitive_desc_create(&pd_w, engine, dnnl_convolution_direct, any_x, any_w, NULL,
                                                                 any_y, strides, dilates, pad, pad, pd, NULL));
    step *t = &s->at[s->n++], *u = &s->at[s->n++];
    dnnl_memory_t dx = memory(dnnl_primitive_desc_query_md(pd_x, dnnl_query_diff_src_md, 0), NULL),
                  dw = memory(dnnl_primitive_desc_query_md(pd_w, dnnl_query_diff_weights_md, 0), NULL);
    NEED(dnnl_primitive_create(&t->p, pd_x));
    t->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_DIFF_DST, wanted(pd_x, DNNL_ARG_DIFF_DST, plain_y, dy) };
    t->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_WEIGHTS, wanted(pd_x, DNNL_ARG_WEIGHTS, plain_w, w) };
    t->args[2] = (dnnl_exec_arg_t){ DNNL_ARG_DIFF_SRC, dx };
    t->n = 3;
    NEED(dnnl_primitive_create(&u->p, pd_w));
    u->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, wanted(pd_w, DNNL_ARG_SRC, plain_x, x) };
    u->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_DIFF_DST, wanted(pd_w, DNNL_ARG_DIFF_DST, plain_y, dy) };
    u->args[2] = (dnnl_exec_arg_t){ DNNL_ARG_DIFF_WEIGHTS, dw };
    u->n = 3;
    run_steps(j, 1);
    return check_backward(&l, x, w, dy, dx, dw);
}

static double prepare(const char *kind, const char *line, job *j, char *reason) {
    if (!strcmp(kind, "gemm")) return prepare_gemm(line, j);
    if (!strcmp(kind, "mlp")) return prepare_mlp(line, j);
    if (!strcmp(kind, "rows")) return prepare_rows(line, j, reason);
    if (!strcmp(kind, "conv")) return prepare_conv(line, j, reason);
    snprintf(reason, 64, "- no such primitive");
    return -1;
}

int main(void) {
    char version[32];
    const dnnl_version_t *v = dnnl_version();
    NEED(dnnl_engine_create(&engine, dnnl_cpu, 0));
    NEED(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    return serve(version);
}
