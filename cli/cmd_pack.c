/* cmd_pack.c - `tenon pack`: many files become one data set, as data/ maps it: text as token ids, tables, npy arrays. */
#include "lm.h"

#include "tenon/tenon_data.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ARRAYS = 256 };
typedef struct packer {
    cli *c;
    tn_io_tensor arrays[MAX_ARRAYS];
    void *loaded[MAX_ARRAYS + 1]; /* of each array: what tn_io_free frees, or NULL */
    void *made[MAX_ARRAYS + 1];   /* what free frees, or NULL */
    char *names[MAX_ARRAYS + 1];
    int n;
} packer;

/* What it takes memory for is noted at p->n before. */
static void add(packer *p, const char *name, tn_dtype dtype, tn_shape shape, const void *data) {
    if (p->n == MAX_ARRAYS) cli_usage(p->c, "a data set has at most %d arrays", (int)MAX_ARRAYS);
    p->arrays[p->n++] = (tn_io_tensor){ .name = name, .dtype = dtype, .shape = shape, .data = data };
}

static void free_all(packer *p) {
    for (int i = 0; i < p->n; i++) {
        tn_io_free(cli_ctx(p->c), p->loaded[i]);
        free(p->made[i]);
        free(p->names[i]);
    }
}

/* ---- text ---- */

static tn_bpe *load_vocab(packer *p) {
    const char *folder = cli_text(p->c, "vocab", NULL);
    if (!folder) cli_usage(p->c, "--text needs --vocab=DIR, with the vocab.json and merges.txt of `tenon tokenizer train`");
    return lm_vocab_load(p->c, folder, TN_BPE_GPT2);
}

/* Behind each other, each with the end token behind it, if one is asked for. */
static void add_texts(packer *p) {
    const char *path, *end = cli_text(p->c, "end", NULL);
    int at = 0;
    if (!(path = cli_next(p->c, "text", &at))) return;
    tn_bpe *b = load_vocab(p);
    int32_t *ids = NULL, last = end ? tn_bpe_special_id(b, end) : -1;
    size_t n_ids = 0;
    if (end && last < 0) cli_fail(p->c, "the vocabulary has no special token %s", end);
    for (; path; path = cli_next(p->c, "text", &at)) {
        size_t n, more;
        char *text = cli_read_file(p->c, path, &n);
        int32_t *next = lm_encode(p->c, b, text, n, false, 0, &more);
        if (!(ids = realloc(ids, (n_ids + more + 1) * sizeof *ids))) cli_fail(p->c, "out of memory: token ids of %s", path);
        memcpy(ids + n_ids, next, more * sizeof *ids);
        n_ids += more;
        free(next);
        if (end) ids[n_ids++] = last;
        free(text);
    }
    tn_bpe_free(cli_ctx(p->c), b);
    p->made[p->n] = ids;
    add(p, "tokens", TN_I32, (tn_shape){ .rank = 1, .dim = { (int64_t)n_ids } }, ids);
}

/* ---- tables ---- */

/* Column `label` of a table as whole numbers, and the others. */
static void add_labelled(packer *p, const float *table, tn_shape shape, int64_t label) {
    int64_t rows = shape.dim[0], columns = shape.dim[1];
    float *x = cli_alloc((size_t)(rows * (columns - 1)) * sizeof *x + 1);
    int32_t *y = cli_alloc((size_t)rows * sizeof *y + 1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0, k = 0; j < columns; j++) {
            float v = table[i * columns + j];
            if (j != label)
                x[i * (columns - 1) + k++] = v;
            else if (v >= -1e9f && v <= 1e9f && v == (float)(int32_t)v)
                y[i] = (int32_t)v;
            else
                cli_fail(p->c, "row %lld: label %g is no whole number", (long long)i + 1, (double)v);
        }
    p->made[p->n] = x;
    add(p, "x", TN_F32, (tn_shape){ .rank = 2, .dim = { rows, columns - 1 } }, x);
    p->made[p->n] = y;
    add(p, "y", TN_I32, (tn_shape){ .rank = 1, .dim = { rows } }, y);
}

static void add_table(packer *p) {
    const char *path = cli_text(p->c, "csv", NULL);
    tn_shape shape;
    void *table;
    if (!path) return;
    cli_need(p->c, tn_io_csv_load(cli_ctx(p->c), path, TN_F32, (int)cli_int(p->c, "skip", 0, 0, 1000), &shape, &table));
    if (!cli_text(p->c, "labels", NULL)) {
        p->loaded[p->n] = table;
        add(p, "x", TN_F32, shape, table);
        return;
    }
    int64_t label = cli_int(p->c, "labels", 0, -shape.dim[1], shape.dim[1] - 1);
    add_labelled(p, table, shape, label < 0 ? label + shape.dim[1] : label);
    tn_io_free(cli_ctx(p->c), table);
}

/* NAME=FILE.npy */
static void add_array(packer *p, const char *arg) {
    const char *path = strchr(arg, '=');
    tn_dtype dtype;
    tn_shape shape;
    void *data;
    if (!path || path == arg) cli_usage(p->c, "expected NAME=FILE.npy, not %s", arg);
    cli_need(p->c, tn_io_npy_load(cli_ctx(p->c), path + 1, &dtype, &shape, &data));
    p->loaded[p->n] = data, p->names[p->n] = cli_format("%.*s", (int)(path - arg), arg);
    add(p, p->names[p->n], dtype, shape, data);
}

static int run(cli *c) {
    packer p = { .c = c };
    const char *out = cli_text(c, "output", NULL);
    tn_data *d;
    if (!out) cli_usage(c, "pack needs --output=FILE");
    for (int i = 0; i < c->n_args; i++) add_array(&p, c->args[i]);
    add_texts(&p);
    add_table(&p);
    if (!p.n) cli_usage(c, "nothing to pack: give NAME=FILE.npy, --text or --csv");
    cli_need(c, tn_data_arrays(cli_ctx(c), p.arrays, p.n, &d)); /* what a loader would refuse is refused here */
    cli_need(c, tn_io_safetensors_save(cli_ctx(c), out, p.arrays, p.n));
    tn_data_free(cli_ctx(c), d);
    json j = { 0 };
    if (c->json) j = json_begin(stdout, "pack"), json_array(&j, "arrays");
    for (int i = 0; i < p.n; i++) {
        const tn_io_tensor *x = &p.arrays[i];
        if (c->json) {
            json_line(&j, NULL);
            json_text(&j, "name", x->name), json_text(&j, "dtype", tn_dtype_name(x->dtype));
            json_int(&j, "examples", x->shape.dim[0]);
            json_end(&j);
        } else
            printf("%s: %s, %lld examples\n", x->name, tn_dtype_name(x->dtype), (long long)x->shape.dim[0]);
    }
    if (c->json) json_end(&j), json_finish(&j);
    free_all(&p);
    return CLI_OK;
}

static const cli_option options[] = {
    { "output", 'o', "FILE", "the data set, a .safetensors file" },
    { "text", 0, "FILE", "token ids of its text, as array `tokens` (repeatable: one behind the other)" },
    { "vocab", 0, "DIR", "tokenizer.json, or vocab.json and merges.txt, for --text" },
    { "end", 0, "TEXT", "a special token of the vocabulary that comes behind each text" },
    { "csv", 0, "FILE", "a table of numbers, as array `x` f32[rows, columns]" },
    { "labels", 0, "COLUMN", "this column of the table is `y` i32[rows] instead; -1 is the last" },
    { "skip", 0, "N", "lines of heading of the table (default 0)" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_pack = {
    "pack",
    "[NAME=FILE.npy...]",
    "make one data set of text, tables and arrays",
    "A data set is one file that programs map, so that training begins at once and shuffles without reading it all\n"
    "(tn_data_open and tn_loader_new of tenon_data.h). Axis 0 of each array counts examples.\n\n"
    "examples:\n"
    "  tenon pack -o digits.safetensors --csv=data/digits.csv --labels=-1\n"
    "  tenon pack -o book.safetensors --text=book.txt --vocab=book-8192\n"
    "  tenon pack -o images.safetensors x=images.npy y=labels.npy",
    0,
    -1,
    options,
    run,
};
