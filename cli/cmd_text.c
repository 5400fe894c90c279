/* cmd_text.c - the subcommands that compile a graph and print one stage of it: emit, explain, opcodes. */
#include "cli.h"
#include "report.h"
#include "tenon/tenon_onnx.h"
#include "tenon/tenon_io.h"

#include <stdlib.h>
#include <string.h>

tn_program *text_program(cli *c, tn_graph *g, const tn_compile_opts *o) {
    tn_program *p;
    tn_compile_opts text_only = *o;
    tn_status st = tn_compile(g, o, &p);
    bool gpu = !strcmp(o->device, "cuda") || !strcmp(o->device, "opencl");
    if (st == TN_ERR_DEVICE && gpu) { /* nothing is run: a text does not need the device */
        fprintf(stderr, "tenon: no device %s here: the text is for a common GPU\n", o->device);
        text_only.device = !strcmp(o->device, "cuda") ? "null-cuda" : "null-opencl";
        st = tn_compile(g, &text_only, &p);
    }
    cli_need(c, st);
    return p;
}

static char *stage_text(cli *c, tn_graph *g, const tn_compile_opts *o, const char *stage) {
    tn_program *p = text_program(c, g, o);
    char *text;
    cli_need(c, tn_program_text(p, stage, &text));
    tn_program_free(p);
    return text;
}

/* ---- emit ---- */

/* A file with the text of a plan instead of a graph's; NULL when it is none. */
static char *plan_file(cli *c, const char *path, size_t *n) {
    if (path[0] == '@' || !strcmp(path, "-")) return NULL;
    char *text = cli_read_file(c, path, n);
    if (*n > 6 && !memcmp(text, "plan @", 6)) return text;
    free(text);
    return NULL;
}

static char *plan_stage(cli *c, const char *path, const char *plan, size_t n, const char *stage) {
    char *text;
    cli_need(c, tn_ir_plan_text(cli_ctx(c), plan, n, path, stage, &text));
    return text;
}

static char *graph_stage(cli *c, const char *stage) {
    tn_compile_opts o = cli_compile_opts(c);
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    const char *state = cli_text(c, "state", NULL);
    if (state) cli_need(c, tn_io_load_graph(c->ctx, g, state));
    tn_graph *at = strcmp(stage, "standalone") ? g : model_given(c, g);
    char *text = stage_text(c, at, &o, stage);
    if (at != g) tn_graph_free(at);
    tn_graph_free(g);
    return text;
}

static int emit_onnx(cli *c, const char *file) {
    tn_onnx_save_opts o = TN_ONNX_SAVE_DEFAULTS;
    o.training = cli_flag(c, "training"), o.external = cli_flag(c, "external");
    if (!file) cli_usage(c, "--target=onnx needs --output=FILE");
    (void)cli_ctx(c);
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    const char *state = cli_text(c, "state", NULL);
    if (state) cli_need(c, tn_io_load_graph(c->ctx, g, state));
    cli_need(c, tn_onnx_save(g, file, &o));
    tn_graph_free(g);
    return CLI_OK;
}

static int emit(cli *c) {
    const char *target = cli_text(c, "target", "c"), *file = cli_text(c, "output", NULL);
    if (!strcmp(target, "onnx")) return emit_onnx(c, file);
    static const char *const stages[] = { "c",    "c-kernels", "x86",    "opencl",   "cuda",   "graph",
                                          "plan", "deps",      "scalar", "schedule", "kernels" };
    bool known = false;
    for (size_t i = 0; i < COUNT_OF(stages); i++) known = known || !strcmp(stages[i], target);
    if (!known)
        cli_usage(c,
                  "there is no target %s (c, c-kernels, onnx, x86, opencl, cuda, graph, plan, deps, scalar, schedule, kernels)",
                  target);
    const char *stage = !strcmp(target, "c") ? "standalone" : !strcmp(target, "c-kernels") ? "c" : target;
    size_t n = 0;
    char *plan = plan_file(c, c->args[0], &n), *text = plan ? plan_stage(c, c->args[0], plan, n, stage) : graph_stage(c, stage);
    free(plan);
    FILE *f = file ? cli_create(c, file) : stdout;
    if (c->json && !file) {
        json j = json_begin(stdout, "emit");
        json_text(&j, "target", target);
        json_text(&j, "text", text);
        json_finish(&j);
    } else if (file)
        fputs(text, f);
    else
        cli_show(stdout, text);
    if (file) cli_close(c, f, file);
    tn_string_free(c->ctx, text);
    return CLI_OK;
}

static const cli_option emit_options[] = {
    { "target", 0, "WHAT",
      "c (default): a C file of its own; onnx: a model of ONNX, into a file; c-kernels: what the library compiles; x86: "
      "machine "
      "code; opencl, cuda: a program for GPUs; or an earlier stage: graph, plan, deps, scalar (kernels before their "
      "schedules), schedule, kernels" },
    { "output", 'o', "FILE", "write there instead of stdout" },
    { "state", 0, "FILE", "with the parameters of a .safetensors file as the initial ones" },
    { "seed", 's', "N", "of builtin models (default 1)" },
    { "training", 0, NULL, "onnx: states that are updated become inputs, their next values outputs" },
    { "external", 0, NULL, "onnx: arrays in FILE.data beside the model" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_emit = {
    "emit",
    "GRAPH",
    "print the generated C, or an earlier stage",
    "The C text is one file that needs nothing but a C compiler; the comment at its head holds a program that calls it.\n"
    "GRAPH may be the text of a plan (--target=plan): it is checked, and printed as plan, deps, kernels, opencl or cuda.\n\n"
    "examples:\n"
    "  tenon emit @mlp --target=c --threads=1 > mlp.c && cc -O2 -c mlp.c\n"
    "  tenon emit @mlp --target=onnx -o mlp.onnx\n"
    "  tenon emit @mlp --target=cuda > mlp.cu && nvcc -fmad=false -arch=sm_80 -cubin mlp.cu\n"
    "  tenon emit net.tn --target=plan --fusion=1 > net.plan && tenon emit net.plan --target=deps",
    1,
    1,
    emit_options,
    emit,
};

/* ---- explain ---- */

static int explain(cli *c) {
    tn_compile_opts o = cli_compile_opts(c);
    const char *page = cli_text(c, "html", NULL);
    if (!page && (cli_flag(c, "measure") || cli_text(c, "against", NULL)))
        cli_usage(c, "--measure and --against need --html=FILE");
    if (page) {
        report_write(c, page, &o);
        return CLI_OK;
    }
    tn_graph *g = model_open(c, c->args[0], (uint64_t)cli_int(c, "seed", 1, 0, INT64_MAX));
    char *text = stage_text(c, g, &o, c->json ? "explain.json" : "explain");
    cli_show(stdout, text);
    size_t n = strlen(text);
    if (n && text[n - 1] != '\n') putchar('\n');
    tn_string_free(c->ctx, text);
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option explain_options[] = {
    { "html", 0, "FILE", "write one page for a browser instead: pictures, reasons, kernels; it needs no network" },
    { "measure", 0, NULL, "html: run it, too, and show measured times beside predicted ones" },
    { "seconds", 0, "N", "html: time to spend on that (default 1)" },
    { "against", 0, "GRAPH", "html: compare with another graph" },
    { "no-ceilings", 0, NULL, "html: the roof of the roofline by the model, not measured" },
    { "no-what-if", 0, NULL, "html: without other fusion levels, threads, devices and batches" },
    { "seed", 's', "N", "of builtin models (default 1)" },
    CLI_COMPILE_OPTIONS,
    { NULL, 0, NULL, NULL },
};

const cli_command command_explain = {
    "explain",
    "GRAPH",
    "say what was fused, what was not and why, and how many bytes move",
    "For every kernel: the ops in it, why its neighbours are not, bytes read and written before and after fusion, and the peak "
    "of\n"
    "planned memory against its lower bound.\n\n"
    "examples:\n"
    "  tenon explain @digits\n"
    "  tenon explain @mlp:8x64 --fusion=1\n"
    "  tenon explain net.tn --json\n"
    "  tenon explain @digits-train --html report.html",
    1,
    1,
    explain_options,
    explain,
};

/* ---- opcodes ---- */

typedef struct named_operator {
    const char *name, *model;
} named_operator;
static const named_operator operators[] = {
    { "linear", "@linear:32x64x128" },
    { "linear_relu", "@matmul:32x64x128" },
    { "linear_relu_softmax", "@linear_softmax:32x64x128" },
    { "relu", "@relu:32x128" },
    { "softmax", "@softmax:32x128" },
    { "layernorm", "@layernorm:32x128" },
    { "conv", "@conv:4x8x8x8x16" },
    { "maxpool", "@maxpool:4x8x8x8" },
};

/* A graph of one elementwise op, by way of the text form: a new row of the op table is known here by itself. */
static tn_graph *op_graph(cli *c, const char *name) {
    for (int i = 0; i < tn_ir_n_ops(); i++) {
        tn_ir_op o;
        if (tn_ir_get_op(i, &o) || strcmp(o.name, name) || strncmp(o.kind, "elementwise", 11) || o.arity > 2) continue;
        bool logic = !strcmp(o.kind, "elementwise logic"), bits = !strcmp(o.kind, "elementwise bits");
        const char *t = logic ? "bool" : bits ? "i32" : "f32", *second = o.arity == 2 ? ", y" : "";
        char *y = o.arity == 2 ? cli_format(", y %s[32,128]", t) : cli_format("%s", "");
        char *text = cli_format("graph @%s(x %s[32,128]%s) {\n  %%1 = %s x%s\n  return %%1\n}\n", name, t, y, name, second);
        free(y);
        tn_graph *g = tn_graph_parse(cli_ctx(c), text, strlen(text), name);
        if (!g) cli_need(c, tn_ctx_status(c->ctx));
        free(text);
        return g;
    }
    return NULL;
}

static tn_graph *operator_graph(cli *c, const char *name) {
    for (size_t i = 0; i < COUNT_OF(operators); i++) {
        if (!strcmp(operators[i].name, name)) return model_open(c, operators[i].model, 1);
    }
    tn_graph *g = op_graph(c, name);
    if (g) return g;
    if (name[0] == '@' || strchr(name, '.') || !strcmp(name, "-")) return model_open(c, name, 1);
    cli_usage(c, "there is no operator %s (`tenon opcodes --list`)", name);
}

static int opcodes(cli *c) {
    if (cli_flag(c, "list") || !c->n_args) {
        json j = { 0 };
        if (c->json) {
            j = json_begin(stdout, "opcodes");
            json_array(&j, "operators");
        }
        for (size_t i = 0; i < COUNT_OF(operators); i++) {
            if (c->json)
                json_text(&j, NULL, operators[i].name);
            else
                printf("%-20s %s\n", operators[i].name, operators[i].model);
        }
        if (c->json) {
            json_end(&j);
            json_finish(&j);
        } else
            printf("and every elementwise op of `tenon ops`\n");
        return CLI_OK;
    }
    int64_t levels[8];
    int n = cli_ints(c, "fusion", "0-3", levels, 8, 0, 3);
    tn_graph *g = operator_graph(c, c->args[0]);
    json j = { 0 };
    if (c->json) {
        j = json_begin(stdout, "opcodes");
        json_text(&j, "operator", c->args[0]);
        json_array(&j, "levels");
    }
    for (int i = 0; i < n; i++) {
        tn_compile_opts o = TN_COMPILE_DEFAULTS;
        o.fusion = (int)levels[i];
        o.threads = (int)cli_int(c, "threads", 1, 0, 256);
        char *text = stage_text(c, g, &o, "kernels");
        if (c->json) {
            json_object(&j, NULL);
            json_int(&j, "fusion", o.fusion);
            json_text(&j, "kernels", text);
            json_end(&j);
        } else
            printf("%s; %s, fusion %d%s\n%s\n", cli_bold(c), c->args[0], o.fusion, cli_plain(c), text);
        tn_string_free(c->ctx, text);
    }
    if (c->json) {
        json_end(&j);
        json_finish(&j);
    }
    tn_graph_free(g);
    return CLI_OK;
}

static const cli_option opcodes_options[] = {
    { "fusion", 'f', "LIST", "fusion levels to show (default 0-3)" },
    { "threads", 't', "N", "CPU threads (default 1)" },
    { "list", 'l', NULL, "list the operators" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_opcodes = {
    "opcodes",
    "[OPERATOR]",
    "print an operator as a list of op codes, at each fusion level",
    "Programs are lists of op codes, and fusion inserts op codes: compare the levels of linear_relu to see the ReLU move into "
    "the loop\n"
    "of the linear layer. OPERATOR is a name of `tenon opcodes --list`, an elementwise op, or a graph.\n\n"
    "examples:\n"
    "  tenon opcodes softmax\n"
    "  tenon opcodes linear_relu --fusion 0,1\n"
    "  tenon opcodes exp",
    0,
    1,
    opcodes_options,
    opcodes,
};
