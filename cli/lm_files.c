/* lm_files.c - the weights of a language model's folder: model.safetensors, or the files that its index names. Names of files
 * come from the index, which may come from anywhere: a file lies in the folder itself. */
#include "lm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILES = 4096 };
struct lm_files {
    cli *c;
    int n;
    char **path;
    tn_io_tensors **file;
    char *index_path;
    const tn_json *index; /* NULL: there is one file and no index */
};

static void add_file(lm_files *f, char *path) {
    if (f->n == MOST_FILES) cli_fail(f->c, "%s names more than %d files", f->index_path, MOST_FILES);
    f->path[f->n] = path;
    cli_need(f->c, tn_io_safetensors_load(cli_ctx(f->c), path, &f->file[f->n]));
    f->n++;
}

static int file_of(const lm_files *f, const char *name) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(strrchr(f->path[i], '/') + 1, name)) return i;
    return -1;
}

static const tn_json *map_of(const lm_files *f) { return tn_io_json_find(f->index, "weight_map"); }

/* Files that the index names, each once. */
static void open_named(lm_files *f, const char *folder) {
    const tn_json *map = map_of(f);
    if (!map || map->kind != TN_JSON_OBJECT)
        cli_fail(f->c, "%s: there is no \"weight_map\", an object of names and files", f->index_path);
    for (const tn_json *v = map + 1; v < map + map->all; v += v->all) {
        size_t n = v->text ? strlen(v->text) : 0;
        if (n < 13 || strchr(v->text, '/') || *v->text == '.' || strcmp(v->text + n - 12, ".safetensors") != 0)
            cli_fail(f->c, "%s: \"%.80s\" is in \"%.80s\"; expected the name of a file of safetensors in the same folder",
                     f->index_path, v->key, v->text ? v->text : "?");
        if (file_of(f, v->text) < 0) add_file(f, lm_path(folder, v->text));
    }
}

lm_files *lm_files_open(cli *c, const char *folder) {
    lm_files *f = cli_alloc(sizeof *f);
    *f = (lm_files){ .c = c };
    f->path = cli_alloc(MOST_FILES * sizeof *f->path), f->file = cli_alloc(MOST_FILES * sizeof(tn_io_tensors *));
    f->index_path = lm_path(folder, "model.safetensors.index.json");
    char *one = lm_path(folder, "model.safetensors"), *torch = lm_path(folder, "pytorch_model.bin");
    bool indexed = access(one, F_OK) && !access(f->index_path, F_OK);
    if (!indexed && access(one, F_OK) && !access(torch, F_OK))
        cli_fail(c, "%s has pytorch_model.bin, which can hold programs and is not read: convert it to model.safetensors",
                 folder);
    if (indexed) {
        cli_need(c, tn_io_json_load(cli_ctx(c), f->index_path, &f->index));
        open_named(f, folder);
        free(one);
    } else
        add_file(f, one);
    free(torch);
    return f;
}

void lm_files_close(lm_files *f) {
    if (!f) return;
    for (int i = 0; i < f->n; i++) tn_io_tensors_free(f->file[i]), free(f->path[i]);
    tn_io_json_free(cli_ctx(f->c), f->index);
    free(f->index_path);
    free(f->path);
    free(f->file);
    free(f);
}

/* *out_path: of the file that has it, or should. */
static const tn_io_tensor *find(const lm_files *f, const char *name, const char **out_path) {
    int i = 0;
    *out_path = f->index ? f->index_path : f->path[0];
    if (f->index) {
        const tn_json *v = tn_io_json_find(map_of(f), name);
        if (!v || (i = file_of(f, v->text)) < 0) return NULL;
        *out_path = f->path[i];
    }
    return tn_io_tensors_find(f->file[i], name);
}

const tn_io_tensor *lm_files_find(const lm_files *f, const char *name, tn_shape shape) {
    const char *path, *there;
    char *longer = cli_format("transformer.%s", name); /* as GPT2LMHeadModel writes them */
    const tn_io_tensor *x = find(f, name, &path);
    if (!x && (x = find(f, longer, &there))) path = there;
    free(longer);
    if (!x) cli_fail(f->c, "%s: there is no %s, which the model of config.json has", path, name);
    bool same = x->shape.rank == shape.rank;
    for (int i = 0; same && i < shape.rank; i++) same = x->shape.dim[i] == shape.dim[i];
    if (!same)
        cli_fail(f->c, "%s: %s is %s, config.json says %s", path, name, shape_text(x->dtype, x->shape),
                 shape_text(TN_F32, shape));
    return x;
}

tn_dtype lm_files_dtype(const lm_files *f) {
    tn_dtype t = TN_N_DTYPES;
    for (int k = 0; k < f->n; k++)
        for (int i = 0; i < tn_io_tensors_count(f->file[k]); i++) {
            const tn_io_tensor *x = tn_io_tensors_get(f->file[k], i);
            if (x && x->shape.rank == 2 && !strstr(x->name, "wpe.weight"))
                t = t == TN_N_DTYPES || t == x->dtype ? x->dtype : TN_F32;
        }
    return t == TN_F16 || t == TN_BF16 ? t : TN_F32;
}

void lm_files_weights(const lm_files *f, tn_session *s) {
    for (int i = 0; i < tn_session_n_states(s); i++) {
        const char *name;
        tn_dtype dtype;
        tn_shape shape;
        cli_need(f->c, tn_session_state(s, i, &name, &dtype, &shape));
        if (!strncmp(name, "cache.", 6)) continue;
        const tn_io_tensor *x = lm_files_find(f, name, shape);
        size_t n = (size_t)shape_count(shape);
        if (x->dtype == dtype) {
            cli_need(f->c, tn_session_set(s, name, x->data, n * tn_dtype_size(dtype)));
            continue;
        }
        if (dtype != TN_F32) cli_fail(f->c, "%s is %s, not %s", name, tn_dtype_name(x->dtype), tn_dtype_name(dtype));
        float *wide = cli_alloc(n * sizeof *wide);
        cli_need(f->c, tn_io_to_f32(cli_ctx(f->c), x->dtype, x->data, n, wide));
        cli_need(f->c, tn_session_set(s, name, wide, n * sizeof *wide));
        free(wide);
    }
}
