/* export_wasm.c - what a page calls of an exported C text that clang compiles for WebAssembly: functions of no arguments, and
 * arrays of their own for inputs and outputs, whose addresses they give.
 *
 * In: an exporter whose data have their places. Out: text behind that of the C form. Names that JavaScript sees are those of
 * the graph; others keep clear of the C names. */
#include "emit/export.h"

static const char *array_type(tn_dtype t) {
    static const char *const types[TN_N_DTYPES] = {
        [TN_F32] = "Float32Array",   [TN_F64] = "Float64Array",  [TN_F16] = "Uint16Array",   [TN_BF16] = "Uint16Array",
        [TN_I8] = "Int8Array",       [TN_I32] = "Int32Array",    [TN_I64] = "BigInt64Array", [TN_U8] = "Uint8Array",
        [TN_BOOL] = "Uint8Array",    [TN_I16] = "Int16Array",    [TN_U16] = "Uint16Array",   [TN_U32] = "Uint32Array",
        [TN_U64] = "BigUint64Array", [TN_F8E4M3] = "Uint8Array", [TN_F8E5M2] = "Uint8Array"
    };
    return types[t];
}

void export_wasm_head(exporter *x, str *out) {
    say(x, out,
        "/* @.c - a tensor graph for a page: no library, no allocation. Into one file of WebAssembly, and from JavaScript:\n "
        "*\n"
        " *     clang %s @.c -o @.wasm\n *\n"
        " *     const { instance } = await WebAssembly.instantiate(bytes), net = instance.exports;\n",
        x->f->flags);
    if (x->f->weights)
        say(x, out, " *     new Uint8Array(net.memory.buffer, net.weights(), %lld).set(weights); // the bytes of %s\n",
            (long long)x->data_bytes, x->f->weights);
    str_add(out, " *     net.init(); // 0, or what is wrong\n");
    for (int outputs = 0; outputs < 2; outputs++) {
        for (int i = 0; i < x->p->io.n; i++) {
            const pio *io = &x->p->io.at[i];
            if (io->is_output != (outputs == 1)) continue;
            str_addf(out, " *     new %s(net.memory.buffer, net.%s(), %lld)%s;\n", array_type((tn_dtype)io->dtype), x->param[i],
                     (long long)io_elems(x, i), outputs ? "" : ".set(values)");
        }
        if (outputs) continue;
        str_add(out, " *     net.run(");
        for (int d = 0; d < x->n_dims; d++) str_addf(out, "%s%s", d ? ", " : "", export_dim_name(x, d));
        str_add(out,
                x->n_dims ? "); // 0, or a size is wrong; arrays are as long as these say, at most as long as here\n" : ");\n");
    }
    str_add(out, " *\n * All arrays stay where they are; a C program may use this file, too, as its header says.\n *\n");
    export_print_arrays(x, out);
    str_add(out, " */\n");
}

void export_wasm(exporter *x, str *out) {
    say(x, out,
        "#ifdef __wasm__\n#define PAGE(name) __attribute__((export_name(name)))\n"
        "static unsigned char page_arena[^_ARENA_BYTES], page_state[^_STATE_BYTES + 1];\n"
        "static uint64_t page_weights[^_WEIGHTS_BYTES / 8 + 1];\nstatic struct @_ctx page;\n"
        "PAGE(\"weights\") void *@_page_weights(void) { return page_weights; }\n"
        "PAGE(\"state\") void *@_page_state(void) { return page.state; }\n"
        "PAGE(\"init\") int @_page_init(void) {\n"
        "    return @_init(&page, page_arena, sizeof page_arena, page_state, ^_STATE_BYTES, page_weights, ^_WEIGHTS_BYTES);\n"
        "}\n");
    for (int i = 0; i < x->p->io.n; i++) {
        long long n = (long long)io_elems(x, i);
        str_addf(out, "static %s page_%s[%lld];\n", clike_memory_type((tn_dtype)x->p->io.at[i].dtype), x->param[i], n ? n : 1);
        say(x, out, "PAGE(\"%s\") void *@_page_%s(void) { return page_%s; }\n", x->param[i], x->param[i], x->param[i]);
    }
    say(x, out, "PAGE(\"run\") %s @_page_run(", x->n_dims ? "int" : "void");
    for (int d = 0; d < x->n_dims; d++) str_addf(out, "%sint %s", d ? ", " : "", export_dim_name(x, d));
    say(x, out, "%s) { %s@_run(&page", x->n_dims ? "" : "void", x->n_dims ? "return " : "");
    for (int d = 0; d < x->n_dims; d++) str_addf(out, ", %s", export_dim_name(x, d));
    for (int i = 0; i < x->p->io.n; i++) str_addf(out, ", page_%s", x->param[i]);
    str_add(out, "); }\n#endif\n");
}
