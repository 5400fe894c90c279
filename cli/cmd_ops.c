/* cmd_ops.c - `tenon ops`: the op table. */
#include "builders.h"
#include "cli.h"

#include <string.h>

static bool wanted(const cli *c, const tn_ir_op *o) {
    for (int i = 0; i < c->n_args; i++) {
        if (!strcmp(c->args[i], o->name)) return true;
    }
    return c->n_args == 0;
}

/* What holds for all ops of a kind: dtypes of operands and result, the result's shape, and the gradient where it is not a
 * row's.
 */
enum { FLOATS = 1, INTEGERS = 2, LOGIC = 4, STORED = 8, NUMBERS = FLOATS | INTEGERS, ANY = NUMBERS | LOGIC | STORED };
typedef struct kind_row {
    const char *kind;
    int dtypes; /* of the above */
    const char *index, *result, *shape, *gradient;
} kind_row;
static const kind_row kind_rows[] = {
    { "elementwise float", FLOATS, "", "same", "operands broadcast", NULL },
    { "elementwise number", NUMBERS, "", "same", "operands broadcast", NULL },
    { "elementwise bits", INTEGERS | LOGIC, "", "same", "operands broadcast", NULL },
    { "elementwise integer", INTEGERS, "", "same", "operands broadcast", NULL },
    { "elementwise logic", LOGIC, "", "bool", "operands broadcast", NULL },
    { "elementwise compare", NUMBERS, "", "bool", "operands broadcast", NULL },
    { "elementwise any", ANY, "", "same", "operands broadcast", NULL },
    { "cast", ANY, "", "dtype", "the operand's", "cast of the incoming one; 0 through integers" },
    { "reduce", NUMBERS, "", "same", "without the axes, or with size 1 there (keep)", "one rule for all of the kind" },
    { "arg", NUMBERS, "", "i64", "without the axis, or with size 1 there (keep)", NULL },
    { "move", ANY, "", "same", "by the attributes", "the adjoint movement" },
    { "fold", NUMBERS, "", "same", "by the attributes", "window" },
    { "join", ANY, "", "same", "sizes along axis are added", "slices" },
    { "dot", NUMBERS, "", "same", "batch axes, free axes of a, free axes of b", "two contractions" },
    { "gather", ANY, "; index i32 i64", "same", "the index's shape stands for axis", "scatter_add" },
    { "scatter", NUMBERS, "; index i32 i64", "same", "the base's",
      "the incoming one, with zeros where scatter_set writes; gather" },
    { "source", ANY, "", "dtype", "as given", NULL },
    { "random", 0, "i64", "f32", "as given", NULL },
};

static int class_of(const tn_dtype_info *t) {
    if (!t->arithmetic) return STORED;
    return t->kind == TN_KIND_FLOAT ? FLOATS : t->kind == TN_KIND_BOOL ? LOGIC : INTEGERS;
}
static void print_dtypes(json *j, const kind_row *r) {
    char text[256] = "";
    size_t n = 0;
    for (int t = 0; t < TN_N_DTYPES; t++) {
        const tn_dtype_info *i = tn_dtype_get_info((tn_dtype)t);
        if (r->dtypes & class_of(i)) n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", i->name);
    }
    snprintf(text + n, sizeof text - n, "%s", r->index);
    json_text(j, "dtypes", text);
}

static void print_words(json *j, const char *key, const char *words) {
    json_array(j, key);
    for (size_t n; words && *words; words += n + (words[n] == ' ')) {
        char word[64];
        n = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        json_text(j, NULL, word);
    }
    json_end(j);
}
/* How tn_op builds it. */
static void print_builder(json *j, const tn_ir_op *o) {
    json_bool(j, "built_by_name", o->operands != NULL);
    print_words(j, "operands", o->operands);
    print_words(j, "builder", o->builder);
    for (size_t i = 0; i < COUNT_OF(kind_rows); i++) {
        const kind_row *r = &kind_rows[i];
        if (strcmp(r->kind, o->kind)) continue;
        print_dtypes(j, r);
        json_text(j, "result", r->result);
        json_text(j, "shape", r->shape);
        if (!o->gradient) json_text(j, "gradient", r->gradient);
    }
    if (o->gradient) json_text(j, "gradient", o->gradient);
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
    print_builder(j, o);
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

static void print_details(const tn_ir_op *o) {
    printf("%14s %s; arity %d, %d flops, %g ulp\n", "", o->detail, o->arity, o->flops, o->ulp);
    if (o->operands) printf("%14s tn_op: operands %s; attributes %s\n", "", o->operands, *o->builder ? o->builder : "none");
    if (o->gradient) printf("%14s gradient: %s\n", "", o->gradient);
}

static bool exists(const char *name) {
    tn_ir_op o;
    for (int i = 0; i < tn_ir_n_ops(); i++)
        if (!tn_ir_get_op(i, &o) && !strcmp(o.name, name)) return true;
    return false;
}

/* "quantize" and "tn_quantize" are one name. */
static bool is_named(const builder_row *r, const char *name) { return !strcmp(r->name, name) || !strcmp(r->name + 3, name); }

/* Functions of the public headers: builders of ops, and compositions of them. */
static int list_builders(cli *c) {
    json j = { 0 };
    for (int i = 0; i < c->n_args; i++) {
        const builder_row *r = builder_rows;
        while (r->name && !is_named(r, c->args[i])) r++;
        if (!r->name) cli_fail(c, "no builder has the name %s (tenon ops --builders lists them)", c->args[i]);
    }
    if (c->json) j = json_begin(stdout, "ops"), json_array(&j, "builders");
    for (const builder_row *r = builder_rows; r->name; r++) {
        bool given = c->n_args == 0;
        for (int i = 0; i < c->n_args; i++) given |= is_named(r, c->args[i]);
        if (!given) continue;
        if (c->json) {
            json_line(&j, NULL);
            json_text(&j, "name", r->name);
            json_text(&j, "header", r->header);
            json_text(&j, "declaration", r->declaration);
            json_text(&j, "doc", r->doc);
            json_end(&j);
        } else if (c->n_args)
            printf("%s  (%s)\n    %s\n", r->declaration, r->header, r->doc);
        else
            printf("%-28s %-16s %.*s\n", r->name, r->header, (int)strcspn(r->doc, ".:;"), r->doc);
    }
    if (c->json) json_end(&j), json_finish(&j);
    return CLI_OK;
}

static int run(cli *c) {
    if (cli_flag(c, "builders")) return list_builders(c);
    bool table = cli_flag(c, "table");
    for (int i = 0; i < c->n_args; i++)
        if (!exists(c->args[i])) cli_fail(c, "there is no op %s (tenon ops lists them)", c->args[i]);
    json j = { 0 };
    if (c->json) {
        j = json_begin(stdout, "ops");
        json_array(&j, "ops");
    } else if (table)
        printf("| op | kind | expression or attributes | flops | ulp | meaning |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < tn_ir_n_ops(); i++) {
        tn_ir_op o;
        if (tn_ir_get_op(i, &o) || !wanted(c, &o)) continue;
        if (c->json)
            print_json(&j, &o);
        else
            print_row(&o, table);
        if (!c->json && !table && c->n_args) print_details(&o);
    }
    if (c->json) {
        json_end(&j);
        json_finish(&j);
    }
    return CLI_OK;
}

static const cli_option options[] = {
    { "table", 0, NULL, "as a Markdown table" },
    { "builders", 0, NULL, "the functions of the public headers, which build ops and compositions of them" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_ops = {
    "ops",
    "[OP...]",
    "list the ops of the graph language",
    "Elementwise ops show their expression over x, y, z; others their attributes. flops and ulp are those of one element in "
    "f32. --json has what a binding needs: operands and attributes of tn_op, dtypes, the result's shape, the gradient.\n\n"
    "examples:\n"
    "  tenon ops\n"
    "  tenon ops tanh dot\n"
    "  tenon ops --table > ops.md\n"
    "  tenon ops --builders quantize",
    0,
    -1,
    options,
    run,
};
