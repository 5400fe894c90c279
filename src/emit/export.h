/* export.h - what the files of the exporter share. In: a plan. Everything is made in the plan's arena. */
#ifndef TN_EMIT_EXPORT_H
#define TN_EMIT_EXPORT_H

#include "emit/clike/clike.h"

enum { EXPORT_ALIGN = 64 };

/* Constant data of an exported program are one piece of memory: the plan's constants, its states that no run changes, and
 * initial values of the others. */
typedef struct export_item {
    int32_t buf;
    int64_t at, bytes; /* in that memory */
} export_item;

typedef struct gpu_layout gpu_layout; /* of export_gpu.c */

typedef struct exporter {
    arena *a;
    const plan *p;
    const export_form *f;
    const char *upper;                                        /* the name in capitals */
    const char **param;                                       /* [io.n] names of inputs and outputs */
    int threads, n_dims;                                      /* n_dims: sizes that a call gives */
    bool shares;                                              /* threads have something to do together */
    int *region_end;                                          /* [steps.n] where the list of steps ends that a step stands in */
    VEC(export_item) items;                                   /* ascending; those that are not zero */
    int64_t temp_bytes, arena_bytes, state_bytes, data_bytes; /* temp_bytes: before the arrays of kernels */
    bool shared_in_state;  /* states that no run changes have no values: the host sets them */
    int n_states;          /* in memory of the host */
    const gpu_layout *gpu; /* NULL: for a processor */
    uint8_t *data;         /* [data_bytes]; NULL: they go into the text */
} exporter;

/* Adds a text to `out`: @ stands for the name, ^ for the same in capitals. */
#define say(x, out, ...) export_say(x, out, arena_printf((x)->a, __VA_ARGS__))
void export_say(const exporter *x, str *out, const char *text);

/* export.c: names, places and ends of steps, for all forms; form is changed where it asks for what there is not. */
void export_begin(exporter *x, const plan *p, export_form *form);
void export_object(exporter *x, export_files *out); /* machine code as ELF, and a header */

/* How a host says it. */
typedef struct export_host {
    void (*place)(exporter *x, int buf, str *out);                       /* the address of a buffer */
    void (*launches)(exporter *x, int i, int end, int indent, str *out); /* of the steps [i, end) */
    /* What a buffer of one element has, as an expression; statements that get it come before. Once for each step. */
    const char *(*value)(exporter *x, int buf, const char *type, int step, int indent, str *out);
    const char *window; /* a statement: the place A is C bytes behind the place B */
} export_host;

/* export_steps.c */
void export_print_steps(exporter *x, const export_host *h, int indent, str *out); /* all of the plan */
void export_find_ends(exporter *x, int i, int end);                               /* of the steps [i, end): x->region_end */

/* Parts of a text. */
void export_print_head(exporter *x, str *out); /* the comment that a file of C begins with */
void export_print_interface(exporter *x, str *out);
void export_print_init(exporter *x, str *out);
void export_print_run(exporter *x, str *out);
void export_print_loop(exporter *x, str *out);
void export_print_arrays(exporter *x, str *out); /* in a comment: inputs and outputs */
void export_print_work(exporter *x, str *out);
void export_print_io(exporter *x, str *out);
void export_print_ring(exporter *x, str *out);
void export_print_prototype(exporter *x, str *out); /* of the function that makes a call .. */
void export_print_gather(exporter *x, str *out);    /* .. whose arguments become a structure .. */
void export_print_move(exporter *x, str *out);      /* .. that moves on to the next step */
void export_print_states(exporter *x, str *out);
void export_print_state_struct(exporter *x, str *out);
int export_print_example_data(exporter *x, str *out); /* of the program in the comment */
void export_print_example_arguments(exporter *x, str *out);
void export_print_weights_check(exporter *x, str *out); /* with the function of this text: */
extern const char export_hash_text[];
uint64_t export_layout(const exporter *x);

/* Where a call gives sizes. io: a pointer to a structure with them, or with the sign before its members "io." or "io->". */
const char *export_dim_name(const exporter *x, int d);
const char *export_size_error(const exporter *x);
void export_print_size_check(exporter *x, const char *io, str *out);
/* What follows from sizes is computed as kernels do: rows of the table as e0, e1, .. */
void export_print_rows(exporter *x, const char *io, str *out);
static inline void export_print_ext(ext e, str *out) {
    if (ext_is_lit(e))
        str_addf(out, "%lldLL", (long long)e);
    else
        str_addf(out, "e%d", ext_index(e));
}
/* At most. */
static inline int64_t io_elems(const exporter *x, int i) {
    return ext_hi(x->p->params, x->p->bufs.at[x->p->io.at[i].buf].elems);
}

void export_gpu(exporter *x, export_files *out); /* export_gpu.c */
void export_wasm_head(exporter *x, str *out);    /* export_wasm.c: instead of the comment at the head of the C form .. */
void export_wasm(exporter *x, str *out);         /* .. and what comes behind its functions */

/* export_data.c. Fills in all that is known of memory. */
void export_place_data(exporter *x);
void export_print_data(exporter *x, str *out);
bool export_in_state(const exporter *x, const pbuf *b); /* in the host's memory for states, there: */
int64_t export_state_place(const exporter *x, const pbuf *b);
int64_t export_data_place(const exporter *x, const pbuf *b); /* in constant data */

#endif
