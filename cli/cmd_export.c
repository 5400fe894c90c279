/* cmd_export.c - `tenon export`: a model as C of its own. */
#include "cli.h"
#include "tenon/tenon_io.h"

#include <stdlib.h>
#include <string.h>

/* "dir/net.c" and "h": dir/net.h. */
static char *beside(const char *path, const char *end) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    size_t n = dot && dot != path && (!slash || dot > slash + 1) ? (size_t)(dot - path) : strlen(path);
    return cli_format("%.*s.%s", (int)n, path, end);
}
static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
/* A static library: dir/libnet.a, whose header is dir/net.h. */
static bool is_library(const char *path) {
    size_t n = strlen(path);
    return n > 2 && !strcmp(path + n - 2, ".a");
}
static char *header_of(const char *code) {
    const char *name = last_name(code);
    char *path = is_library(code) && !strncmp(name, "lib", 3) && name[3] != '.'
                     ? cli_format("%.*s%s", (int)(name - code), code, name + 3)
                     : cli_format("%s", code),
         *header = beside(path, "h");
    free(path);
    return header;
}

/* All parts, or none: each is written beside its place before any takes it. */
static void save(cli *c, const tn_export *x, const char *code, const char *header, const char *weights) {
    tn_io_bytes parts[3] = { { code, NULL, 0 }, { header, NULL, 0 }, { weights, NULL, 0 } };
    int n = 0;
    for (int i = 0; i < 3; i++) {
        const void *data = tn_export_data(x, (tn_export_part)i, &parts[i].n);
        if (data) parts[n].path = parts[i].path, parts[n].data = data, parts[n].n = parts[i].n, n++;
    }
    cli_need(c, tn_io_files_save(c->ctx, parts, n));
    for (int i = 0; i < n; i++) cli_note(c, "%s: %zu bytes", parts[i].path, parts[i].n);
}

static int export_model(cli *c) {
    const char *code = cli_text(c, "output", NULL), *weights = cli_text(c, "weights", NULL),
               *state = cli_text(c, "state", NULL);
    tn_compile_opts o = cli_compile_opts(c);
    tn_export_opts e = TN_EXPORT_DEFAULTS;
    tn_program *p;
    tn_export *x;
    if (!code) cli_usage(c, "where to? --output=FILE.c");
    char *header = header_of(code);
    bool no_code = !strcmp(header, code), onto_code = weights && !strcmp(weights, code),
         onto_header = weights && !strcmp(weights, header);
    if (no_code || onto_code || onto_header) free(header);
    if (no_code) cli_usage(c, "--output=%s is where the header goes: name a FILE.c", code);
    if (onto_code || onto_header) cli_usage(c, "--weights=%s is where the %s goes", weights, onto_code ? "C text" : "header");
    e.name = cli_text(c, "name", NULL), e.cpu = cli_text(c, "cpu", NULL), e.header = last_name(header);
    e.weights = weights ? last_name(weights) : NULL;
    e.threads = (int)cli_int(c, "threads", 0, 0, 1024);
    e.target = cli_text(c, "target", is_library(code) ? "library" : NULL);
    e.train = cli_flag(c, "train"), e.freestanding = cli_flag(c, "freestanding");
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    if (state) cli_need(c, tn_io_load_graph(c->ctx, g, state));
    tn_graph *at = model_given(c, g);
    cli_need(c, tn_compile(at, &o, &p));
    cli_need(c, tn_program_export(p, &e, &x));
    save(c, x, code, header, weights);
    tn_export_free(x);
    tn_program_free(p);
    if (at != g) tn_graph_free(at);
    tn_graph_free(g);
    free(header);
    return CLI_OK;
}

static const cli_option export_options[] = {
    { "output", 'o', "FILE", "the text; the header is FILE.h beside it" },
    { "target", 0, "WHAT",
      "c (default), object (machine code for x86-64, ELF), library (that object as FILE.a), wasm (C for a page), cuda or "
      "opencl "
      "(kernels and their host part)" },
    { "name", 'n', "NAME", "that all names begin with (default: the graph's)" },
    { "weights", 'w', "FILE", "constant data go there, which the host reads or the assembler links; default: into the C text" },
    { "train", 0, NULL, "a training step: with a loop over steps, and functions that save and load the states" },
    { "freestanding", 0, NULL, "without the C library and libm" },
    { "cpu", 0, "NAME",
      "whose vectors: native (default), avx512, avx2, sse2, neon, or scalar for any compiler of C99; cuda: sm_80 (default), "
      "sm_90" },
    { "threads", 't', "N", "of the host, which may run a call together (default 1)" },
    { "state", 0, "FILE", "with the parameters of a .safetensors file as the initial ones" },
    { "seed", 's', "N", "of builtin models (default 1)" },
    { "fusion", 'f', "LEVEL", "0 none, 1 pairs, 2 elementwise and reductions, 3 by cost (default)" },
    { "dim", 0, "NAME=SIZE", "the size of a symbolic dim of a graph, or of a named one of an ONNX model (repeatable)" },
    CLI_DTYPE_OPTION,
    { "plain-convolutions", 0, NULL, "of an ONNX model: sums of products as they stand, not by Winograd's way" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_export = {
    "export",
    "GRAPH",
    "write a model as C that needs no library",
    "The C text and its header are C99: no allocation, no library but libm; the comment at the head of the text holds a "
    "program "
    "that\ncalls it. docs/export.md tells more.\n\n"
    "examples:\n"
    "  tenon export @digits:1 -o digits.c && cc -O2 -march=native -c digits.c\n"
    "  tenon export net.onnx -o net.c --weights net.bin --cpu=neon\n"
    "  tenon export @digits-train -o train.c --train --name=train\n"
    "  tenon export net.onnx -o libnet.a --name=net && cc -O2 main.c -L. -lnet\n"
    "  tenon export net.onnx -o net.cu --target=cuda && nvcc -arch=sm_80 -c net.cu",
    1,
    1,
    export_options,
    export_model,
};
