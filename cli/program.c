/* program.c - programs of the command line: from a file that `tenon compile` wrote, from the cache where an ONNX model was
 * compiled before, or compiled now and kept for the next time.
 *
 * A key of the cache is the model's path and all options that may change the program. What the model's files are, the library
 * compares. Dims with a range stay open, so a program that was made for inputs of one shape serves others: it is kept under a
 * key without shapes, and what is found there is asked whether it takes these. */
#include "cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char magic[8] = "TNPROG\r\n";

bool program_is_file(const char *path) {
    char head[sizeof magic];
    int fd = path[0] == '@' || !strcmp(path, "-") ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is = fd >= 0 && read(fd, head, sizeof head) == (ssize_t)sizeof head && !memcmp(head, magic, sizeof head);
    if (fd >= 0) close(fd);
    return is;
}

/* Options that are about one run: all others are a part of the key. */
static bool is_of_run(const char *name) {
    static const char *const names[] = { "input", "output", "limit",    "steps",   "state",   "save-state", "seed",
                                         "json",  "quiet",  "progress", "verbose", "threads", "mode",       "device" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

/* --dim batch=7 beside --dim batch=1..64: the program is for all of these. */
static bool is_run_size(cli *c, const cli_given *g) {
    int at = 0;
    bool open = false;
    if (strcmp(g->name, "dim") || !g->value || strstr(g->value, "..")) return false;
    char *name = cli_format("%.*s", (int)strcspn(g->value, "="), g->value);
    for (cli_dim d; cli_next_dim(c, &at, &d); free(d.name)) open |= d.is_range && cli_same_dim(d.name, name);
    free(name);
    return open;
}

static void add(char **text, const char *name, const char *what) {
    char *more = cli_format("%s\n%s=%s", *text, name, what);
    free(*text);
    *text = more;
}

typedef struct given_input {
    char *name;
    tn_dtype dtype;
    tn_shape shape;
} given_input;
static given_input next_input(cli *c, const char *text) {
    const char *spec;
    given_input x = { .name = value_split(c, text, &spec) };
    value v = value_parse(c, x.name, spec);
    x.dtype = v.dtype, x.shape = v.shape;
    value_free(&v);
    return x;
}

/* Of inputs types alone: the sizes of a model may be theirs. */
static void add_inputs(cli *c, char **key, bool shapes) {
    int at = 0;
    for (const char *text; (text = cli_next(c, "input", &at));) {
        given_input x = next_input(c, text);
        char *type = shapes ? shape_text(x.dtype, x.shape) : cli_format("%s, %d axes", tn_dtype_name(x.dtype), x.shape.rank);
        add(key, x.name, type);
        free(x.name), free(type);
    }
}

static bool any_range(cli *c) {
    int at = 0;
    bool any = false;
    for (cli_dim d; cli_next_dim(c, &at, &d); free(d.name)) any |= d.is_range;
    return any;
}

/* All that is given is an input of the program, of its sizes but where runs give them. */
static bool takes_inputs(cli *c, const tn_program *p) {
    int at = 0;
    bool takes = true;
    for (const char *text; takes && (text = cli_next(c, "input", &at));) {
        given_input x = next_input(c, text);
        bool found = false;
        for (int i = 0; i < tn_program_n_slots(p) && !found; i++) {
            char kind;
            const char *name;
            tn_dtype t;
            tn_shape own;
            cli_need(c, tn_program_slot(p, i, &kind, &name, &t, &own));
            found = kind == 'i' && !strcmp(name, x.name) && t == x.dtype && own.rank == x.shape.rank;
            for (int k = 0; k < own.rank && found; k++) found = own.dim[k] < 0 || own.dim[k] == x.shape.dim[k];
        }
        takes = found;
        free(x.name);
    }
    return takes;
}

/* NULL: such a program is not kept. */
static char *key_of(cli *c, const char *spec, const tn_compile_opts *o, bool shapes) {
    if (!model_is_onnx(spec) || o->no_cache || o->schedule || o->mode == TN_MODE_IMMEDIATE || strcmp(o->device, "cpu") != 0)
        return NULL;
    char *path = realpath(spec, NULL), number[32];
    if (!path) return NULL;
    char *key = cli_format("%s", path);
    free(path);
    snprintf(number, sizeof number, "%d", o->threads);
    add(&key, "threads", number);
    add(&key, "mode", cli_mode_name(o->mode));
    for (int i = 0; i < c->n_given; i++)
        if (!is_of_run(c->given[i].name) && !is_run_size(c, &c->given[i])) add(&key, c->given[i].name, c->given[i].value);
    add_inputs(c, &key, shapes);
    return key;
}

program program_open(cli *c, const char *spec, uint64_t seed, const tn_compile_opts *o) {
    program x = { 0 };
    if (program_is_file(spec)) {
        cli_need(c, tn_program_load(cli_ctx(c), spec, &x.p));
        return x;
    }
    tn_ctx *ctx = cli_ctx(c);                /* before the model is read: what changes from here on is noticed */
    bool open = any_range(c), other = false; /* other: a program for sizes that the model does not name */
    for (int shapes = !open; shapes < 2 && !x.p; shapes++) {
        free(x.key);
        x.key = key_of(c, spec, o, shapes);
        if (x.key) cli_need(c, tn_program_find(ctx, x.key, &x.p));
        if (!x.p || shapes || takes_inputs(c, x.p)) continue;
        tn_program_free(x.p);
        x.p = NULL, other = true;
    }
    if (x.p) {
        free(x.key);
        x.key = NULL;
        return x;
    }
    tn_graph *g = model_open(c, spec, seed);
    cli_need(c, tn_compile(g, o, &x.p));
    tn_graph_free(g); /* its memory is the run's now */
    if (open && !other && takes_inputs(c, x.p)) {
        free(x.key);
        x.key = key_of(c, spec, o, false);
    }
    x.compiled = true;
    return x;
}

/* Writing the file takes longer than some models run: a process of its own does it, which nobody waits for. */
void program_close(cli *c, program *x) {
    if (x->key && !c->n_constants && c->n_model_files && fork() == 0) {
        int null = open("/dev/null", O_RDWR);
        setsid();
        setpriority(PRIO_PROCESS, 0, 10); /* what is started next goes before it */
        for (int fd = 0; fd < 3; fd++) dup2(null, fd);
        tn_status kept = tn_program_keep(x->p, x->key, (const char *const *)c->model_files, c->n_model_files);
        _exit(kept ? CLI_FAILED : CLI_OK);
    }
    free(x->key);
    tn_program_free(x->p);
    *x = (program){ 0 };
}
