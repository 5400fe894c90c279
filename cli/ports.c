/* ports.c - the inputs and outputs of a program, each with a host buffer bound to it. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* As the program calls it, or NULL. */
static const char *find_dim(cli *c, const tn_program *p, const char *name) {
    const char *own;
    for (int i = 0; i < tn_program_n_dims(p); i++) {
        cli_need(c, tn_program_dim(p, i, &own, NULL, NULL, NULL));
        if (cli_same_dim(own, name)) return own;
    }
    return NULL;
}
/* By the shapes of --input, then by --dim NAME=SIZE. Dims that an ONNX model's import gave a size are no more. */
static void bind_dims(cli *c, const tn_program *p, tn_session *s) {
    int at = 0;
    const char *name;
    int64_t lo, hi;
    for (const char *text; (text = cli_next(c, "input", &at));) {
        const char *eq = strchr(text, '=');
        char *own = eq ? cli_format("%.*s", (int)(eq - text), text) : NULL;
        if (own && tn_session_slot(s, own) >= 0) {
            value v = value_parse(c, own, eq + 1);
            cli_need(c, tn_bind_shape(s, own, v.shape));
            value_free(&v);
        }
        free(own);
    }
    at = 0;
    for (cli_dim d; cli_next_dim(c, &at, &d); free(d.name)) {
        const char *own = find_dim(c, p, d.name);
        if (!d.is_range && (!c->n_args || !model_is_onnx(c->args[0]) || own))
            cli_need(c, tn_bind_dim(s, own ? own : d.name, d.lo));
    }
    tn_shape shape;
    bool missing = tn_session_shape(s, 0, &shape) != TN_OK;
    for (int i = 0; missing && i < tn_program_n_dims(p); i++) {
        cli_need(c, tn_program_dim(p, i, &name, &lo, &hi, NULL));
        cli_note(c, "dim %s is %lld to %lld: give it with --dim %s=..", name, (long long)lo, (long long)hi, name);
    }
}

ports ports_new(cli *c, const tn_program *p) { return ports_of(c, p, NULL); }

ports ports_of(cli *c, const tn_program *p, tn_session *s) {
    int n = tn_program_n_slots(p);
    bool dims = tn_program_n_dims(p) > 0;
    if (dims && !s) cli_fail(c, "this command needs graphs whose sizes are all known");
    if (dims) bind_dims(c, p, s);
    ports io = { .n = n };
    io.kind = cli_alloc((size_t)n + 1);
    io.name = cli_alloc(sizeof(char *) * ((size_t)n + 1));
    io.value = cli_alloc(sizeof(value) * ((size_t)n + 1));
    for (int i = 0; i < n; i++) {
        tn_dtype t;
        tn_shape shape;
        cli_need(c, tn_program_slot(p, i, &io.kind[i], &io.name[i], &t, &shape));
        if (dims) cli_need(c, tn_session_shape(s, i, &shape));
        io.value[i] = value_new(t, shape);
    }
    return io;
}

void ports_bind(cli *c, tn_session *s, const ports *io) {
    for (int i = 0; i < io->n; i++) cli_need(c, tn_session_bind(s, i, io->value[i].data));
}

void ports_poison(const ports *io) {
    for (int i = 0; i < io->n; i++) {
        if (io->kind[i] == 'o') memset(io->value[i].data, 0xff, io->value[i].bytes); /* NaN as a float, -1 as an integer */
    }
}

int ports_find(const ports *io, const char *name) {
    for (int i = 0; i < io->n; i++) {
        if (!strcmp(io->name[i], name)) return i;
    }
    return -1;
}

/* An input that an ONNX model's import made a constant of: its value is in the graph. */
static bool is_constant(const cli *c, const char *name) {
    for (int i = 0; i < c->n_constants; i++)
        if (!strcmp(c->constants[i], name)) return true;
    return false;
}

/* --input NAME=SPEC into the slot it names; -1: it is in the graph. */
static int fill_given(cli *c, const ports *io, const char *text) {
    const char *spec;
    char *name = value_split(c, text, &spec);
    int k = ports_find(io, name);
    if (k < 0 && is_constant(c, name)) {
        free(name);
        return -1;
    }
    if (k < 0 || io->kind[k] != 'i') cli_usage(c, "--input %s: the graph has no such input", name);
    value v = value_parse(c, name, spec);
    char *given = shape_text(v.dtype, v.shape), *want = shape_text(io->value[k].dtype, io->value[k].shape);
    if (strcmp(given, want)) cli_usage(c, "--input %s: %s given, the graph wants %s", name, given, want);
    memcpy(io->value[k].data, v.data, v.bytes);
    value_free(&v);
    free(name);
    free(given);
    free(want);
    return k;
}

/* Rows of the smallest table that the input picks rows of, as it is or with other dims or dtype; FEW_NUMBERS: it picks none. */
static int64_t picks_below(cli *c, const tn_graph *g, const char *name) {
    int n = g ? tn_ir_n_values(g) : 0;
    int64_t rows = 0;
    bool *is_input = cli_alloc((size_t)n + 1); /* by id, which is one more than the index */
    for (int i = 0; i < n; i++) {
        tn_ir_value v, table;
        tn_ir_detail d;
        cli_need(c, tn_ir_get_value(g, i, &v)), cli_need(c, tn_ir_get_detail(g, i, &d));
        bool first = v.n_operands > 0 && is_input[v.operands[0]], second = v.n_operands > 1 && is_input[v.operands[1]];
        if (!strcmp(v.op, "input") && v.name && !strcmp(v.name, name)) is_input[v.tensor.id] = true;
        if (!strcmp(v.op, "cast") || !strcmp(v.op, "reshape") || !strcmp(v.op, "expand") || !strcmp(v.op, "permute") ||
            !strcmp(v.op, "slice"))
            is_input[v.tensor.id] = first;
        if (!second || (strcmp(v.op, "gather") && strncmp(v.op, "scatter_", 8)) || !d.n_attr) continue;
        cli_need(c, tn_ir_get_value(g, (int)v.operands[0] - 1, &table));
        int64_t axis = d.attr[0];
        if (axis < 0 || axis >= table.shape.rank || table.shape.dim[axis] < 1) continue;
        if (!rows || table.shape.dim[axis] < rows) rows = table.shape.dim[axis];
    }
    free(is_input);
    return rows ? rows : FEW_NUMBERS;
}

void ports_fill(cli *c, const ports *io, const tn_graph *g, uint64_t seed) {
    bool *done = cli_alloc((size_t)io->n + 1);
    int at = 0;
    for (const char *text; (text = cli_next(c, "input", &at));) {
        int k = fill_given(c, io, text);
        if (k >= 0) done[k] = true;
    }
    for (int i = 0; i < io->n; i++) {
        if (io->kind[i] != 'i' || done[i]) continue;
        char *shape = shape_text(io->value[i].dtype, io->value[i].shape);
        uint64_t own = seed + 0x51ed2701u * (uint64_t)(i + 1); /* an input's values do not depend on which others are given */
        int64_t below = picks_below(c, g, io->name[i]);
        value_random(&io->value[i], &own, below);
        char *drawn = below == FEW_NUMBERS ? cli_format("random") : cli_format("random, 0..%lld", (long long)below - 1);
        cli_note(c, "input %s %s is %s (--seed %llu); give it with --input %s=...", io->name[i], shape, drawn,
                 (unsigned long long)seed, io->name[i]);
        free(drawn);
        free(shape);
    }
    free(done);
}

void ports_free(ports *io) {
    for (int i = 0; i < io->n; i++) value_free(&io->value[i]);
    free(io->kind);
    free(io->name);
    free(io->value);
    *io = (ports){ 0 };
}
