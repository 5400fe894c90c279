/* cmd_run.c - `tenon run`: compiles a graph, runs it, prints or saves its outputs. */
#include "cli.h"
#include "tenon/tenon_io.h"

#include <stdlib.h>
#include <string.h>

/* One step, or --steps of them in one call. */
static double run_steps(cli *c, tn_session *s, const ports *io, int64_t steps) {
    tn_binding *rings = cli_alloc(sizeof(tn_binding) * ((size_t)io->n + 1));
    int n = 0;
    for (int i = 0; i < io->n; i++) {
        if (io->kind[i] == 'i') rings[n++] = (tn_binding){ io->name[i], io->value[i].data };
    }
    double start = cli_seconds();
    cli_need(c, steps == 1 ? tn_session_run(s) : tn_run_n(s, steps, rings, n, 1));
    double spent = cli_seconds() - start;
    free(rings);
    return spent;
}

/* --output NAME=@FILE is saved; --output NAME is printed; without any --output all outputs are printed. */
static void save_outputs(cli *c, const ports *io, bool *print) {
    int at = 0, n_print = 0;
    for (const char *text; (text = cli_next(c, "output", &at));) {
        const char *eq = strchr(text, '=');
        char *name = cli_format("%.*s", (int)(eq ? eq - text : (long)strlen(text)), text);
        int k = ports_find(io, name);
        if (k < 0 || io->kind[k] != 'o') cli_usage(c, "--output %s: the graph has no such output", name);
        if (eq && eq[1] != '@') cli_usage(c, "--output %s: expected NAME or NAME=@file.npy", text);
        if (eq)
            value_save(c, &io->value[k], eq + 2), cli_note(c, "output %s written to %s", name, eq + 2);
        else
            print[k] = true, n_print++;
        free(name);
    }
    if (at == c->n_given && !cli_flag(c, "output")) {
        for (int i = 0; i < io->n; i++) print[i] = io->kind[i] == 'o';
    }
}

static void print_json(cli *c, const ports *io, const bool *print, const tn_program_stats *s, double seconds) {
    json j = json_begin(stdout, "run");
    json_text(&j, "graph", c->args[0]);
    json_line(&j, "stats");
    json_number(&j, "run_us", seconds * 1e6);
    json_number(&j, "compile_us", s->compile_seconds * 1e6);
    json_int(&j, "kernels", s->kernels);
    json_int(&j, "bytes_read", (int64_t)s->bytes_read);
    json_int(&j, "bytes_written", (int64_t)s->bytes_written);
    json_int(&j, "arena_bytes", (int64_t)s->arena_bytes);
    json_int(&j, "threads", s->threads);
    json_end(&j);
    json_object(&j, "outputs");
    for (int i = 0; i < io->n; i++) {
        if (print[i]) value_json(&j, io->name[i], &io->value[i]);
    }
    json_end(&j);
    json_finish(&j);
}

static void print_text(cli *c, const ports *io, const bool *print) {
    int64_t limit = cli_int(c, "limit", 8, -1, INT64_MAX);
    for (int i = 0; i < io->n; i++) {
        if (!print[i]) continue;
        char *shape = shape_text(io->value[i].dtype, io->value[i].shape);
        fputs(cli_bold(c), stdout);
        cli_show(stdout, io->name[i]);
        printf("%s %s\n", cli_plain(c), shape);
        value_print(stdout, &io->value[i], limit);
        free(shape);
    }
}

static int run(cli *c) {
    uint64_t seed = (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX);
    int64_t steps = cli_int(c, "steps", 1, 1, INT64_MAX);
    tn_compile_opts o = cli_compile_opts(c);
    program x = program_open(c, c->args[0], seed, &o);
    tn_program *p = x.p;
    tn_session *s;
    cli_need(c, tn_session_new(p, &s));
    ports io = ports_of(c, p, s);
    ports_fill(c, &io, NULL, seed);
    ports_bind(c, s, &io);
    ports_poison(&io);
    const char *state = cli_text(c, "state", NULL), *save = cli_text(c, "save-state", NULL);
    if (state) cli_need(c, tn_io_load_state(c->ctx, s, state));
    double spent = run_steps(c, s, &io, steps);
    if (save) cli_need(c, tn_io_save_state(c->ctx, s, save));
    tn_program_stats stats;
    tn_program_get_stats(p, &stats);
    cli_note(c, "%lld step%s in %.1f us; %s in %.1f ms: %d kernels, %d threads", (long long)steps, steps == 1 ? "" : "s",
             spent * 1e6, x.compiled ? "compiled" : "loaded", stats.compile_seconds * 1e3, stats.kernels, stats.threads);
    bool *print = cli_alloc((size_t)io.n + 1);
    save_outputs(c, &io, print);
    if (c->json)
        print_json(c, &io, print, &stats, spent);
    else
        print_text(c, &io, print);
    free(print);
    ports_free(&io);
    tn_session_free(s);
    program_close(c, &x);
    return CLI_OK;
}

static const cli_option options[] = {
    { "input", 'i', "NAME=SPEC", "an input: 2x3xf32:1,2,3,4,5,6, f32:0.5 (scalar), 8xf32:0 (repeated) or @file.npy" },
    { "output", 'o', "NAME[=@F]", "print this output only, or save it as .npy (repeatable)" },
    { "limit", 0, "N", "print the first N of each longer axis (default 8; -1 = all)" },
    { "steps", 'n', "N", "run N steps; in loop mode they are one call (default 1)" },
    { "state", 0, "FILE", "load the parameters from a .safetensors file" },
    { "save-state", 0, "FILE", "save the parameters after the run" },
    { "seed", 's', "N", "of inputs that are not given and of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_run = {
    "run",
    "GRAPH|PROGRAM",
    "compile a graph, run it, print its outputs",
    "Inputs that are not given are random (normal; integers 0..9), from the seed. --json prints every element; infinities and "
    "NaN are\n"
    "strings there, since JSON has no word for them.\n"
    "A program is a file of `tenon compile`. Programs of ONNX models are kept in the kernel cache until the model changes; "
    "--no-cache\n"
    "compiles again.\n\n"
    "examples:\n"
    "  tenon run @softmax:2x5\n"
    "  tenon run net.tn --input x=2x3xf32:1,2,3,4,5,6 --output y=@y.npy\n"
    "  tenon run @digits-train:64 --mode loop --steps 100 --save-state digits.safetensors\n"
    "  cat net.tn | tenon run - --mode immediate --json",
    1,
    1,
    options,
    run,
};
