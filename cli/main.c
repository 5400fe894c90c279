/* main.c - the program `tenon`: one table of subcommands, from which --help is written and the command line is parsed. */
#include "cli.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = { &command_run,     &command_compile,  &command_opt,       &command_emit,
                                               &command_explain, &command_export,   &command_verify,    &command_profile,
                                               &command_tune,    &command_bench,    &command_ops,       &command_opcodes,
                                               &command_cache,   &command_devices,  &command_onnx_test, &command_tokenizer,
                                               &command_pack,    &command_train_lm, &command_generate,  &command_quantize };

static const cli_option common_options[] = {
    { "help", 'h', NULL, "show this text" },
    { "json", 'j', NULL, "write one JSON object (key \"schema\": 1) to stdout" },
    { "quiet", 'q', NULL, "no chatter on stderr; errors stay" },
    { "verbose", 'v', NULL, "show the library's log on stderr" },
    { "progress", 0, NULL, "show progress even where stderr is no terminal" },
    { NULL, 0, NULL, NULL },
};

static void print_options(const cli_option *o) {
    for (; o && o->name; o++) {
        char left[64], letter[8] = "    ";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? "=" : "", o->arg ? o->arg : "");
        printf("  %-26s %s\n", left, o->doc);
    }
}

static void print_models(void) {
    int n;
    const model *m = model_table(&n);
    printf(
        "Builtin models, given where a graph is expected as @name or @name:sizes (sizes left out take the values shown):\n\n");
    for (int i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "@%s%s%s", m[i].name, m[i].sizes[0] ? ":" : "", m[i].sizes);
        printf("  %-22s %s\n", left, m[i].doc);
    }
    printf("\nParameters are random with a fixed seed; --seed changes it.\n");
}

static void print_command_help(const cli *c, const cli_command *k) {
    printf("%stenon %s%s - %s\n\nusage: tenon %s [options]%s%s\n\n%s\n", cli_bold(c), k->name, cli_plain(c), k->summary,
           k->name, k->args[0] ? " " : "", k->args, k->help);
    printf("%soptions%s\n", cli_bold(c), cli_plain(c));
    print_options(k->options);
    print_options(common_options);
    printf("\nexit codes: 0 ok, 1 a check or an operation failed, 2 wrong usage\n");
}

static void print_help(const cli *c) {
    printf("%stenon%s %s - a tensor graph compiler\n\nusage: tenon COMMAND [options] [arguments]\n\n", cli_bold(c),
           cli_plain(c), tn_version());
    for (size_t i = 0; i < COUNT_OF(commands); i++) printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("  %-10s %s\n", "help", "this text; `tenon help COMMAND`, `tenon help models`");
    printf("\nA graph is a .tn or .onnx file, - for stdin, or a builtin model such as @mlp:64x256 (`tenon help models`).\n"
           "Data goes to stdout, everything else to stderr. NO_COLOR turns colours off; TENON_CACHE_DIR, TENON_CACHE_BYTES and "
           "TENON_CC\n"
           "choose the kernel cache and the C compiler; TENON_CPU how programs become code (x86: machine code, the default; "
           "c);\nTENON_NAME_CODE=1 tells gdb and perf the names of kernels; TENON_LOG=error, warning, info or debug how much "
           "of the "
           "library's log is shown\n(--quiet and --verbose go before it).\n\n"
           "try:  tenon run @softmax:2x5\n"
           "      tenon explain @mlp:8x64\n"
           "      tenon bench modes --depths 64 --sizes 16,64\n\n"
           "exit codes: 0 ok, 1 a check or an operation failed, 2 wrong usage\n");
}

static const cli_command *find_command(const char *name) {
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (!strcmp(commands[i]->name, name)) return commands[i];
    }
    return NULL;
}

static int count_options(const cli_option *o) {
    int n = 0;
    while (o && o[n].name) n++;
    return n;
}

/* The two tables as getopt_long wants them; `val` is the index + 256, so that letters and long names meet in one row. */
static void parse(cli *c, int argc, char **argv) {
    int n_own = count_options(c->command->options), n = n_own + count_options(common_options);
    const cli_option **row = calloc((size_t)n, sizeof *row);
    struct option *lng = calloc((size_t)n + 1, sizeof *lng);
    char *letters = calloc((size_t)n * 2 + 1, 1);
    c->given = calloc((size_t)argc + 1, sizeof *c->given);
    if (!row || !lng || !letters || !c->given) cli_fail(c, "out of memory");
    for (int i = 0, k = 0; i < n; i++) {
        row[i] = i < n_own ? &c->command->options[i] : &common_options[i - n_own];
        lng[i] = (struct option){ row[i]->name, row[i]->arg ? required_argument : no_argument, NULL, 256 + i };
        if (!row[i]->letter) continue;
        letters[k++] = (char)row[i]->letter;
        if (row[i]->arg) letters[k++] = ':';
    }
    optind = 1;
    for (int got; (got = getopt_long(argc, argv, letters, lng, NULL)) != -1;) {
        if (got == '?') cli_usage(c, NULL);
        const cli_option *o = NULL;
        for (int i = 0; i < n && !o; i++) o = got == 256 + i || (got < 256 && row[i]->letter == got) ? row[i] : NULL;
        c->given[c->n_given++] = (cli_given){ o->name, o->arg ? optarg : "" };
    }
    c->args = argv + optind;
    c->n_args = argc - optind;
    free(row);
    free(lng);
    free(letters);
}

static int run_command(cli *c, const cli_command *k, int argc, char **argv) {
    c->command = k;
    argv[0] = cli_format("tenon %s", k->name); /* getopt_long puts it before its messages */
    parse(c, argc, argv);
    free(argv[0]);
    if (cli_flag(c, "help")) {
        print_command_help(c, k);
        return CLI_OK;
    }
    c->json = cli_flag(c, "json");
    c->quiet = cli_flag(c, "quiet");
    c->verbose = cli_flag(c, "verbose");
    cli_log_level(c);
    c->progress = cli_flag(c, "progress") || isatty(STDERR_FILENO);
    if (c->n_args < k->min_args) cli_usage(c, "an argument is missing: %s", k->args);
    if (k->max_args >= 0 && c->n_args > k->max_args) cli_usage(c, "one argument too many: %s", c->args[k->max_args]);
    const char *schedule = cli_text(c, "schedule", NULL);
    if (schedule) c->schedule = cli_read_file(c, schedule, &(size_t){ 0 });
    return k->run(c);
}

static int help_command(cli *c, int argc, char **argv) {
    if (argc < 2) {
        print_help(c);
        return CLI_OK;
    }
    if (!strcmp(argv[1], "models")) {
        print_models();
        return CLI_OK;
    }
    const cli_command *k = find_command(argv[1]);
    if (!k) cli_usage(c, "there is no help on %s", argv[1]);
    print_command_help(c, k);
    return CLI_OK;
}

static int run_words(cli *c, int argc, char **argv) {
    if (argc < 2) cli_usage(c, "a command is missing");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return help_command(c, 1, argv);
    if (!strcmp(argv[1], "help")) return help_command(c, argc - 1, argv + 1);
    if (!strcmp(argv[1], "--version")) {
        printf("tenon %s\n", tn_version());
        return CLI_OK;
    }
    const cli_command *k = find_command(argv[1]);
    if (!k) cli_usage(c, "there is no command %s", argv[1]);
    return run_command(c, k, argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool color = !(no_color && no_color[0]) && !(term && !strcmp(term, "dumb"));
    cli c = { .color_out = color && isatty(STDOUT_FILENO), .color_err = color && isatty(STDERR_FILENO) };
    int code = run_words(&c, argc, argv);
    tn_ctx_free(c.ctx);
    free(c.given);
    free(c.schedule);
    model_forget(&c);
    if (!fflush(stdout) && !ferror(stdout)) return code;
    perror("tenon: stdout");
    return CLI_FAILED;
}
