/* cmd_ops.c - `tenon ops`: the op table. */
#include "cli.h"

#include <string.h>

static bool wanted(const cli *c, const tn_ir_op *o) {
    for (int i = 0; i < c->n_args; i++) {
        if (!strcmp(c->args[i], o->name)) return true;
    }
    return c->n_args == 0;
}

static void print_json(json *j, const tn_ir_op *o) {
    json_line(j, NULL);
    json_text(j, "name", o->name);
    json_text(j, "kind", o->kind);
    json_int(j, "arity", o->arity);
    if (!strncmp(o->kind, "elementwise", 11)) {
        json_text(j, "expr", o->detail);
        json_int(j, "flops", o->flops);
        json_number(j, "ulp", o->ulp);
    } else
        json_text(j, "attributes", o->detail);
    json_text(j, "doc", o->doc);
    json_end(j);
}

/* A bar inside a cell of a Markdown table has to be escaped. */
static void print_cell(const char *s) {
    for (; *s; s++) {
        if (*s == '|') putchar('\\');
        putchar(*s);
    }
}

static void print_row(const tn_ir_op *o, bool table) {
    if (!table) {
        printf("%-14s %-19s %s\n", o->name, o->kind, o->doc);
        return;
    }
    printf("| `%s` | %s | ", o->name, o->kind);
    if (o->detail[0]) putchar('`'), print_cell(o->detail), putchar('`');
    printf(" | %d | %g | ", o->flops, o->ulp);
    print_cell(o->doc);
    printf(" |\n");
}

static int run(cli *c) {
    bool table = cli_flag(c, "table");
    int shown = 0;
    json j = { 0 };
    if (c->json) {
        j = json_begin(stdout, "ops");
        json_array(&j, "ops");
    } else if (table)
        printf("| op | kind | expression or attributes | flops | ulp | meaning |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < tn_ir_n_ops(); i++) {
        tn_ir_op o;
        if (tn_ir_get_op(i, &o) || !wanted(c, &o)) continue;
        shown++;
        if (c->json)
            print_json(&j, &o);
        else
            print_row(&o, table);
        if (!c->json && !table && c->n_args)
            printf("%14s %s; arity %d, %d flops, %g ulp\n", "", o.detail, o.arity, o.flops, o.ulp);
    }
    if (c->json) {
        json_end(&j);
        json_finish(&j);
    }
    if (shown < c->n_args) cli_fail(c, "%d of the ops asked for do not exist", c->n_args - shown);
    return CLI_OK;
}

static const cli_option options[] = {
    { "table", 0, NULL, "as a Markdown table" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_ops = {
    "ops",
    "[OP...]",
    "list the ops of the graph language",
    "Elementwise ops show their expression over x, y, z; others their attributes. flops and ulp are those of one element in "
    "f32.\n\n"
    "examples:\n"
    "  tenon ops\n"
    "  tenon ops tanh dot\n"
    "  tenon ops --table > ops.md",
    0,
    -1,
    options,
    run,
};
