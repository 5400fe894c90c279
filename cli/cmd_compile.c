/* cmd_compile.c - `tenon compile`: a graph to a file that `tenon run` takes in its place. */
#include "cli.h"

static int run(cli *c) {
    tn_compile_opts o = cli_compile_opts(c);
    const char *path = cli_text(c, "output", NULL);
    if (!path) cli_usage(c, "--output is missing: the file to write");
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    tn_program *p;
    tn_program_stats s;
    cli_need(c, tn_compile(g, &o, &p));
    cli_need(c, tn_program_save(p, path));
    tn_program_get_stats(p, &s);
    cli_note(c, "%s: %d kernels for %d thread%s, compiled in %.1f ms", path, s.kernels, s.threads, s.threads == 1 ? "" : "s",
             s.compile_seconds * 1e3);
    if (c->json) {
        json j = json_begin(stdout, "compile");
        json_text(&j, "file", path);
        json_int(&j, "kernels", s.kernels);
        json_int(&j, "threads", s.threads);
        json_number(&j, "compile_us", s.compile_seconds * 1e6);
        json_finish(&j);
    }
    tn_program_free(p);
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option options[] = {
    { "output", 'o', "FILE", "where the program goes" },
    { "input", 'i', "NAME=SPEC", "of an ONNX model whose sizes depend on it, as for `tenon run`" },
    { "seed", 's', "N", "of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_compile = {
    "compile",
    "GRAPH",
    "compile a graph to a file that `tenon run` takes",
    "The file has machine code, constants and initial values, for this build of the library, this processor and this number of "
    "threads;\n"
    "`tenon run FILE` maps it and starts at once. It is code: run files of others as you would run their programs.\n"
    "Of ONNX models `tenon run` keeps such files by itself, in the kernel cache (`tenon help cache`).\n\n"
    "examples:\n"
    "  tenon compile model.onnx --threads 1 -o model.program\n"
    "  tenon run model.program",
    1,
    1,
    options,
    run,
};
