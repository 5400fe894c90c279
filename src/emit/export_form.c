/* export_form.c - a plan as a program of its own, in the form that is asked for: C99, C for a page of WebAssembly, machine code
 * as an object, or C with kernels for GPUs. In: a plan whose graph has its values. Out: texts and data in the plan's arena. */
#include "emit/emit.h"
#include "emit/export.h"

static void export_c(exporter *x, export_files *out) {
    say(x, &out->header, "/* @.h - the interface of @.c, which says how to use it. */\n");
    export_print_interface(x, &out->header);
    (x->f->wasm ? export_wasm_head : export_print_head)(x, &out->code);
    export_print_interface(x, &out->code);
    say(x, &out->code,
        "#ifndef ^_INTERFACE\n#ifdef __FAST_MATH__\n#error \"-ffast-math changes the results of this file\"\n#endif\n"
        "#pragma GCC diagnostic ignored \"-Wpsabi\"\n");
    emit_c_kernels(x->p, x->f, &out->code);
    if (!x->f->weights) export_print_data(x, &out->code);
    export_print_states(x, &out->code);
    export_print_init(x, &out->code);
    export_print_run(x, &out->code);
    if (x->f->loop) export_print_loop(x, &out->code);
    if (x->f->wasm) export_wasm(x, &out->code);
    str_add(&out->code, "#endif\n");
    out->weights = x->f->weights ? x->data : NULL, out->n_weights = x->f->weights ? (size_t)x->data_bytes : 0;
}

void emit_export(const plan *p, const export_form *f, export_files *out) {
    export_form form = *f;
    exporter x;
    str_init(&out->code, p->a), str_init(&out->header, p->a);
    export_begin(&x, p, &form);
    (form.isa ? export_object : form.gpu ? export_gpu : export_c)(&x, out);
}
