/* cli.h - what the subcommands of `tenon` share: the command table, parsed options, messages, JSON, tensor values, models.
 *
 * The program uses the public headers only. It may exit: cli_usage ends with code 2, cli_fail with code 1.
 * stdout carries data and nothing else; chatter, progress and errors go to stderr. */
#ifndef TENON_CLI_H
#define TENON_CLI_H

#include "tenon/tenon.h"
#include "tenon/tenon_ir.h"

#include <stdbool.h>
#include <stdio.h>

#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define NORETURN __attribute__((noreturn))
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_option {
    const char *name; /* long name; NULL ends a table */
    int letter;       /* short name, or 0 */
    const char *arg;  /* name of the argument in the help; NULL = a flag */
    const char *doc;
} cli_option;

typedef struct cli cli;
typedef struct cli_command {
    const char *name;
    const char *args;    /* positional arguments, for the usage line */
    const char *summary; /* one line */
    const char *help;    /* paragraphs and examples */
    int min_args, max_args;
    const cli_option *options;
    int (*run)(cli *c);
} cli_command;

typedef struct cli_given { /* one option of the command line, in order */
    const char *name, *value;
} cli_given;

struct cli {
    const cli_command *command;
    bool json, quiet, verbose, progress, color_out, color_err;
    int log_level; /* tn_log_level: what of the library's log is shown */
    cli_given *given;
    int n_given;
    char **args;
    int n_args;
    char *schedule;   /* the text of --schedule's file, or NULL */
    char **constants; /* inputs of the last ONNX model that are constants of its graph */
    int n_constants;
    char **model_files; /* of the last ONNX model: its own, then those of external data */
    int n_model_files;
    tn_ctx *ctx; /* made by cli_ctx on first use */
};

extern const cli_command command_run, command_opt, command_emit, command_explain, command_bench, command_ops, command_opcodes,
    command_cache, command_devices, command_verify, command_tune, command_profile, command_onnx_test, command_tokenizer,
    command_pack, command_compile, command_export, command_train_lm, command_generate, command_quantize;

/* Options of the command line. The typed readers end the program with a usage error when the text is no such value. */
bool cli_flag(const cli *c, const char *name);
const char *cli_text(const cli *c, const char *name, const char *fallback);
const char *cli_next(const cli *c, const char *name,
                     int *at); /* every value of a repeated option; *at starts at 0; NULL at the end */
int64_t cli_int(const cli *c, const char *name, int64_t fallback, int64_t lo, int64_t hi);
double cli_number(const cli *c, const char *name, double fallback, double lo, double hi);
/* "4,16,64" or "4-256*2" (multiply) or "1-9+2" (add). Returns how many. */
int cli_ints(const cli *c, const char *name, const char *fallback, int64_t *out, int cap, int64_t lo, int64_t hi);
/* --dim NAME=SIZE or NAME=LO..HI[:MULTIPLE], one after the other; false at the end. The name is the caller's to free. */
typedef struct cli_dim {
    char *name;
    bool is_range;
    int64_t lo, hi, multiple_of;
} cli_dim;
bool cli_next_dim(cli *c, int *at, cli_dim *out);
bool cli_same_dim(const char *x, const char *y); /* x[0] is x_0_ in a graph */
/* Words of a comma list, copied; the array and words live as long as the program. */
int cli_words(const cli *c, const char *text, char **out, int cap);
tn_mode cli_mode(const cli *c, const char *word);
const char *cli_mode_name(tn_mode m);
const char *cli_device(const cli *c); /* --device: the name of one that Tenon knows, or "auto"; "cpu" when not given */
tn_compile_opts cli_compile_opts(const cli *c); /* --mode --fusion --threads --no-cache --no-passes --check --device */
#define CLI_COMPILE_OPTIONS                                                                                                    \
    { "mode", 'm', "MODE", "immediate, graph, compiled (default) or loop" },                                                   \
        { "schedule", 0, "FILE", "kernels that it names run as its steps say (emit --target=schedule prints some)" },          \
        { "memory-limit", 0, "MIB", "what a program and its session may have; values are computed again to keep within it" },  \
        CLI_DTYPE_OPTION, CLI_LEVEL_OPTIONS
#define CLI_DTYPE_OPTION                                                                                                       \
    { "dtype", 0, "TYPE", "bf16 or f16: products and convolutions of f32 read and give that; inputs and outputs stay f32" }
#define CLI_LEVEL_OPTIONS                                                                                                      \
    { "fusion", 'f', "LEVEL", "0 none, 1 pairs, 2 elementwise and reductions, 3 by cost; default: the mode's own" },           \
        { "threads", 't', "N", "CPU threads; 0 (default) = as many as the process may use" },                                  \
        { "device", 'd', "NAME", "cpu (default), cuda, opencl, null, or auto: the fastest by a model" },                       \
        { "dim", 0, "NAME=SIZE",                                                                                               \
          "the size of a symbolic dim of a graph, or of a named one of an ONNX model (repeatable); NAME=LO..HI[:MULTIPLE]:\n"  \
          "it stays open, one program for all, and every run gives it: by inputs or NAME=SIZE" },                              \
        { "plain-convolutions", 0, NULL, "of an ONNX model: sums of products as they stand, not by Winograd's way" },          \
        { "no-cache", 0, NULL, "compile every kernel again" }, { "no-passes", 0, NULL, "skip the graph passes" }, {            \
        "check", 0, NULL, "verify every artefact between the stages (slow)"                                                    \
    }

/* Messages on stderr. */
void cli_note(const cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cli_usage(const cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3) NORETURN;
void cli_fail(const cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3) NORETURN;
void cli_need(cli *c, tn_status s); /* ends the program with the context's error text unless s is TN_OK */
void cli_log_level(cli *c);         /* from --quiet, --verbose, else TENON_LOG */
tn_ctx *cli_ctx(cli *c);
/* Terminal escapes, empty where colour is off. */
const char *cli_bold(const cli *c), *cli_plain(const cli *c);

void *cli_alloc(size_t n); /* zeroed, 64-byte aligned, never NULL; free with free() */
char *cli_format(const char *fmt, ...) PRINTF_LIKE(1, 2);
FILE *cli_create(const cli *c, const char *path);
void cli_close(const cli *c, FILE *f, const char *path);            /* ends the program unless all that was written is there */
char *cli_read_file(const cli *c, const char *path, size_t *out_n); /* "-" = stdin; ends with a zero byte */

/* progress.c: one line on stderr, rewritten in place; silent unless stderr is a terminal (or --progress is given) and not
 * --quiet. */
typedef struct progress {
    bool on, tty;
    const char *label;
    int64_t total;
    int shown;
    double started;
} progress;
progress progress_begin(const cli *c, const char *label, int64_t total);
void progress_step(progress *p, int64_t done, const char *what); /* what: the piece in work, or NULL */
void progress_end(progress *p);
double cli_seconds(void);

/* Names and messages: control characters, but for line ends and tabs, and what is no UTF-8 as \\xHH. */
void cli_show(FILE *f, const char *text);

/* json.c: a writer that knows where commas go. Keys are NULL inside arrays. Numbers that JSON lacks (inf, nan) are written as
 * strings. */
typedef struct json {
    FILE *f;
    int depth, row; /* row: the level that began a one-line object, or 0 */
    bool more[32], array[32];
} json;
json json_begin(FILE *f, const char *command); /* {"schema":1,"command":... */
void json_finish(json *j);
void json_object(json *j, const char *key);
void json_line(json *j, const char *key); /* an object on one line */
void json_array(json *j, const char *key);
void json_end(json *j);
void json_text(json *j, const char *key, const char *text); /* NULL = null */
void json_int(json *j, const char *key, int64_t v);
void json_word(json *j, const char *key, uint64_t v);
void json_number(json *j, const char *key, double v);
void json_bool(json *j, const char *key, bool v);
void json_raw(json *j, const char *key, const char *text); /* text is JSON already */

/* values.c: typed arrays on the host. */
typedef struct value {
    tn_dtype dtype;
    tn_shape shape;
    int64_t n;
    size_t bytes;
    void *data;
} value;
value value_new(tn_dtype t, tn_shape shape);
value value_of(cli *c, const tn_ir_value *v); /* of that type; ends the program where a size is not known */
void value_free(value *v);
/* "2x3xf32:1,2,3,4,5,6", "2x3xf32:0.5" (repeated), "f32:1" (rank 0) or "@file.npy". */
value value_parse(cli *c, const char *name, const char *text);
/* Of "NAME=SPEC", as --input takes it: the name, which is freed, and where the spec begins. */
char *value_split(cli *c, const char *text, const char **out_spec);
/* Floats normal(0, 1), integers 0 .. below - 1, bool even odds. */
void value_random(value *v, uint64_t *seed, int64_t below);
enum { FEW_NUMBERS = 10 /* below this where nothing else is known */ };
void value_print(FILE *f, const value *v,
                 int64_t limit); /* nested brackets; limit < 0 = all, else the first of each long axis */
void value_json(json *j, const char *key, const value *v);
void value_save(cli *c, const value *v, const char *path);
char *shape_text(tn_dtype t, tn_shape s); /* "f32[2,3]"; free it */
int64_t shape_count(tn_shape s);
bool dtype_parse(const char *text, size_t n, tn_dtype *out);

/* Seeded random numbers: splitmix64. */
uint64_t random_next(uint64_t *state);
double random_unit(uint64_t *state); /* [0, 1) */
double random_gauss(uint64_t *state);

/* models.c: a graph from a .tn or .onnx file, "-" or "@name:sizes". */
typedef struct model {
    const char *name, *sizes, *doc;
} model;
const model *model_table(int *out_n);
tn_graph *model_open(cli *c, const char *spec, uint64_t seed);
bool model_is_onnx(const char *spec);
void model_forget(cli *c);          /* what c keeps of it */
tn_dtype model_dtype(const cli *c); /* --dtype: f32, or what contractions are to be in */
/* A builtin model, or an ONNX file, with another batch: its first size, the first dim of its inputs. NULL: it has none, or
 * cannot have that one (tn_ctx_error says why). */
tn_graph *model_batch(cli *c, const char *spec, uint64_t seed, int64_t batch);
/* sizes.c: values of a graph's symbolic dims: those of --dim NAME=SIZE and of --input; others are drawn. */
enum { SIZES_MOST = 256 };
typedef struct dim_sizes {
    int n;
    tn_ir_size size[SIZES_MOST];
    bool given[SIZES_MOST];
    int64_t lo[SIZES_MOST], hi[SIZES_MOST], multiple_of[SIZES_MOST];
} dim_sizes;
dim_sizes sizes_of(cli *c, const tn_graph *g);
bool sizes_sample(dim_sizes *s, int turn, uint64_t seed); /* sizes to check in that turn, from 0; false: there are no more */
char *sizes_text(const dim_sizes *s);                     /* "batch=7 seq=64"; free it */
tn_graph *model_given(cli *c, tn_graph *g);               /* the same where all sizes are given, else g */
tn_graph *model_sized(cli *c,
                      tn_graph *g); /* g for the sizes given, all of which must be; freed before g. g itself without dims */
/* The same work with operands that lie otherwise: as given, transposed, with sizes padded to multiples of a block. Texts live
 * as long as the program. Returns how many there are, at most cap and at least one. */
typedef struct model_layout {
    const char *name, *spec;
} model_layout;
int model_layouts(cli *c, const char *spec, model_layout *out, int cap);
/* The random network of the `modes` benchmark: `depth` nodes of Linear and ReLU ending in softmax. out_linear counts the Linear
 * layers. */
tn_tensor model_digits(tn_tensor x);                  /* the digits network: f32[N,8,8,1] to f32[N,10] scores */
tn_tensor model_classifier(tn_tensor x);              /* 784-512-512-10: f32[N,784] to scores */
char *model_mlp_layers(int64_t depth, uint64_t seed); /* its layers as letters L and R, without the softmax; free it */
tn_graph *model_mlp(cli *c, int64_t depth, int64_t width, int64_t batch, uint64_t seed, int64_t *out_linear, int64_t *out_relu);

/* program.c: a program of a file that `tenon compile` wrote, of the cache, or of a graph as model_open takes it. */
typedef struct program {
    tn_program *p;
    bool compiled; /* now */
    char *key;     /* under which program_close keeps it, or NULL */
} program;
program program_open(cli *c, const char *spec, uint64_t seed, const tn_compile_opts *o);
void program_close(cli *c, program *x); /* after its sessions */
bool program_is_file(const char *path);

/* ports.c: the inputs and outputs of a program, with buffers bound to them. */
typedef struct ports {
    int n;
    char *kind; /* 'i' or 'o' */
    const char **name;
    value *value;
} ports;
ports ports_new(cli *c, const tn_program *p);               /* fails where sizes are given at run time */
ports ports_of(cli *c, const tn_program *p, tn_session *s); /* sizes of symbolic dims are those of --dim */
void ports_bind(cli *c, tn_session *s, const ports *io);
void ports_poison(const ports *io); /* outputs filled with a pattern, so that one not written is seen */
int ports_find(const ports *io, const char *name);
/* Inputs: those given by --input, the rest random from the seed. g: numbers that pick rows of a table in it are drawn over all
 * its rows, as the time that it takes depends on them; NULL: integers are 0..9. */
void ports_fill(cli *c, const ports *io, const tn_graph *g, uint64_t seed);
void ports_free(ports *io);

#endif
