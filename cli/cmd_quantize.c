/* cmd_quantize.c - `tenon quantize`: the matrices of a language model as 8-bit numbers with a scale for each group of inputs,
 * or as bf16. */
#include "lm.h"
#include "tenon/tenon_io.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct quantiser {
    cli *c;
    const char *folder; /* that is read */
    lm_files *files;
    tn_io_tensor *out;
    int n;
    double squares, errors; /* sums over all quantised weights */
} quantiser;

/* Array `name` as f32, with this shape. */
static float *wide(quantiser *q, const char *name, tn_shape shape) {
    const tn_io_tensor *x = lm_files_find(q->files, name, shape);
    int64_t n = shape_count(shape);
    float *y = cli_alloc((size_t)n * sizeof *y + 1);
    cli_need(q->c, tn_io_to_f32(cli_ctx(q->c), x->dtype, x->data, (size_t)n, y));
    return y;
}

static void add(quantiser *q, const char *name, tn_dtype dtype, tn_shape shape, const void *data) {
    q->out[q->n++] = (tn_io_tensor){ .name = name, .dtype = dtype, .shape = shape, .data = data };
}

/* A group of inputs, `step` apart, as whole numbers times the scale that is returned: from -127 to 127, or of 4 bits from -8 to
 * 7, where the largest is -8 (as GGUF's q4_0 has it). */
static float quantise_group(quantiser *q, const char *name, const float *w, int64_t step, int64_t group, bool four,
                            int8_t *out) {
    float top = 0;
    for (int64_t k = 0; k < group; k++) top = fabsf(w[k * step]) > fabsf(top) ? w[k * step] : top;
    float s = four ? top / -8 : fabsf(top) / 127;
    for (int64_t k = 0; k < group; k++) {
        float v = w[k * step], n = s != 0 ? rintf(v / s) : 0;
        if (!isfinite(v)) cli_fail(q->c, "%s: %s has an element that is %g", q->folder, name, (double)v);
        if (four) n = fminf(n, 7);
        out[k] = (int8_t)n;
        q->squares += (double)v * (double)v;
        q->errors += ((double)v - (double)n * (double)s) * ((double)v - (double)n * (double)s);
    }
    return s;
}

/* The array `name` [rows,columns] in groups of rows, or, across, of columns; as shape says, with two numbers of 4 bits in a
 * byte. */
static void quantise(quantiser *q, const char *name, const char *scale_name, tn_shape shape, tn_shape scales, bool across,
                     const tn_nn_lm_opts *o) {
    bool four = o->bits == 4;
    int64_t group = o->group, rows = shape.dim[0] * (four && !across ? 2 : 1),
            columns = shape.dim[1] * (four && across ? 2 : 1);
    float *w = wide(q, name, TN_DIMS(rows, columns)), *scale = cli_alloc((size_t)shape_count(scales) * sizeof *scale);
    int8_t *narrow = cli_alloc((size_t)shape_count(shape)), *n = cli_alloc((size_t)group);
    for (int64_t i = 0; i < scales.dim[0]; i++)
        for (int64_t j = 0; j < scales.dim[1]; j++) {
            int64_t from = across ? i * columns + j * group : i * group * columns + j, step = across ? 1 : columns;
            scale[i * scales.dim[1] + j] = quantise_group(q, name, w + from, step, group, four, n);
            if (four) from = across ? from / 2 : i * (group / 2) * columns + j;
            for (int64_t k = 0; k < (four ? group / 2 : group); k++)
                narrow[from + k * step] = four ? (int8_t)(uint8_t)((n[k] + 8) | (n[k + group / 2] + 8) << 4) : n[k];
        }
    free(n);
    free(w);
    add(q, name, four ? TN_U8 : TN_I8, shape, narrow);
    add(q, scale_name, TN_F32, scales, scale);
}

/* Rounded to bf16, to the nearest, ties to even. */
static void halve(quantiser *q, const char *name, tn_shape shape) {
    float *w = wide(q, name, shape);
    size_t n = (size_t)shape_count(shape);
    uint16_t *half = cli_alloc(n * sizeof *half + 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits, back;
        float v;
        memcpy(&bits, &w[i], sizeof bits);
        bits += 0x7fff + (bits >> 16 & 1);
        half[i] = (uint16_t)(bits >> 16), back = bits & 0xffff0000;
        memcpy(&v, &back, sizeof v);
        if (!isfinite(w[i]) || !isfinite(v)) cli_fail(q->c, "%s: %s has an element that is %g", q->folder, name, (double)w[i]);
        q->squares += (double)w[i] * (double)w[i];
        q->errors += ((double)w[i] - (double)v) * ((double)w[i] - (double)v);
    }
    free(w);
    add(q, name, TN_BF16, shape, half);
}

/* The states of the quantised model, each from an array of the file; a scale follows its matrix. */
static void convert(quantiser *q, tn_graph *g, const tn_nn_lm_opts *o) {
    int n = tn_graph_n_states(g);
    q->out = cli_alloc((size_t)(n + 1) * sizeof *q->out);
    progress bar = progress_begin(q->c, "quantising", n);
    for (int i = 0; i < n; i++) {
        tn_tensor x = tn_graph_state(g, i);
        tn_shape shape = tn_tensor_shape(x);
        progress_step(&bar, i, tn_tensor_name(x));
        if (tn_tensor_dtype(x) == TN_BF16) {
            halve(q, tn_tensor_name(x), shape);
            continue;
        }
        if (tn_tensor_dtype(x) == TN_F32) {
            add(q, tn_tensor_name(x), TN_F32, shape, wide(q, tn_tensor_name(x), shape));
            continue;
        }
        tn_tensor scale = tn_graph_state(g, ++i);
        tn_shape scales = tn_tensor_shape(scale);
        quantise(q, tn_tensor_name(x), tn_tensor_name(scale), shape, scales, scales.dim[0] == shape.dim[0], o);
    }
    progress_end(&bar);
}

static int run(cli *c) {
    const char *from = c->args[0], *to = cli_text(c, "output", NULL);
    lm_config k;
    if (!to) cli_usage(c, "quantize needs --output=FOLDER");
    if (!lm_config_load(c, from, &k)) cli_fail(c, "%s has no config.json: it is no model's folder", from);
    if (k.model.group) cli_fail(c, "%s is quantised already", from);
    int64_t bits = cli_int(c, "bits", 8, 4, 16);
    if (bits != 4 && bits != 8 && bits != 16) cli_usage(c, "--bits is 4, 8 or 16, not %lld", (long long)bits);
    if (bits < 16)
        k.model.group = cli_int(c, "group", 32, 1, 1 << 20), k.model.bits = bits == 4 ? 4 : 0;
    else
        k.model.weights = TN_BF16;
    k.model.dropout = 0;
    if (mkdir(to, 0777) && errno != EEXIST) cli_fail(c, "%s: %s", to, strerror(errno));
    tn_graph *g = tn_graph_new(cli_ctx(c), "quantised");
    tn_nn_lm(tn_input(g, "tokens", TN_I32, TN_DIMS(1, 1)), k.model);
    if (tn_graph_status(g)) cli_need(c, tn_graph_check(g));
    quantiser q = { .c = c, .folder = from, .files = lm_files_open(c, from) };
    char *path = lm_path(to, "model.safetensors");
    convert(&q, g, &k.model);
    cli_need(c, tn_io_safetensors_save(cli_ctx(c), path, q.out, q.n));
    lm_copy_files(c, from, to);
    lm_config_save(c, to, &k);
    int64_t bytes = 0;
    for (int i = 0; i < q.n; i++) {
        bytes += shape_count(q.out[i].shape) * (int64_t)tn_dtype_size(q.out[i].dtype);
        free((void *)(uintptr_t)q.out[i].data);
    }
    double error = q.squares > 0 ? sqrt(q.errors / q.squares) : 0;
    if (c->json) {
        json j = json_begin(stdout, "quantize");
        json_text(&j, "folder", to), json_int(&j, "bytes", bytes), json_number(&j, "relative_error", error);
        json_finish(&j);
    } else
        printf("%.1f MB of weights; matrices are off by %.2f %% (root mean square)\n", (double)bytes * 1e-6, 100 * error);
    lm_files_close(q.files);
    lm_config_free(c, &k);
    tn_graph_free(g);
    free(q.out);
    free(path);
    return CLI_OK;
}

static const cli_option options[] = {
    { "output", 'o', "FOLDER", "where the quantised model is written" },
    { "bits", 0, "N", "4, 8 (default), or 16: bf16" },
    { "group", 0, "N", "neighbouring inputs that share a scale of 4 or 8 bits (default 32)" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_quantize = {
    "quantize",
    "FOLDER",
    "a language model with weights of 4, 8 or 16 bits",
    "Matrices become numbers of 4 or 8 bits with an f32 scale for each group of inputs, or bf16; a token then moves about a "
    "quarter, or "
    "half, "
    "of the bytes.\n"
    "FOLDER is what train-lm wrote, or a model from Hugging Face, as for generate, which reads the result.\n\n"
    "examples:\n"
    "  tenon quantize kjv -o kjv8 && tenon generate kjv8 --prompt='And God said'",
    1,
    1,
    options,
    run,
};
