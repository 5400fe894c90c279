/* prepack.c - a constant operand of which a contraction reads a packed word for all lanes lies in words of 32 bits before any
 * run, in the order of the loops: inside of them nothing is widened. In and out: scalar form with roles, behind packed_dot.
 *
 * The operand with the lanes lies so in panels (pack.c). Words of two bytes take twice the room of their bytes; an operand that
 * already is whole words, as four bytes or two bf16 are, gains nothing. */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/loop.h"
#include "loop/schedule.h"

/* The load of that buffer; 0: there is none, or several. */
static int only_load(const kernel *k, int buf) {
    int found = 0;
    for (int i = 1; i < k->ins.n; i++) {
        if (!kernel_has_buffer(&k->ins.at[i]) || k->ins.at[i].buf != buf) continue;
        if (found || k->ins.at[i].op != K_LOAD) return 0;
        found = i;
    }
    return found;
}

/* All loops that the index knows, the outermost first: the innermost runs over the columns of one panel. */
static bool list_loops(const kernel *k, int at, kpanels *x, kvar *vars, int *n) {
    const kins *load = &k->ins.at[at];
    int *open = ARENA_ARRAY(k->a, int, k->ins.n), depth = kernel_open_loops(k, (reg)at, open);
    *n = 0;
    for (int i = 0; i < depth; i++) {
        kvar v = k->ins.at[open[i]].var;
        if (!affine_coef(load->idx, v)) continue;
        if (*n == PANEL_LOOPS || !ext_is_lit(k->vars.at[v].extent) || k->vars.at[v].role.lanes > 1) return false;
        vars[*n] = v;
        x->loops[(*n)++] = (kstep){ k->vars.at[v].extent, affine_coef(load->idx, v) };
    }
    if (!*n || *n != load->idx.n) return false;
    x->base = load->idx.base, x->n_depth = *n - 1;
    x->column = x->loops[*n - 1], x->width = x->column.extent;
    x->dtype = load->src, x->packed = load->packed, x->packed_stride = load->packed_stride;
    return true;
}

bool step_prepack(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    kpanels layout = { 0 };
    kvar vars[PANEL_LOOPS];
    int n, buf = step_buf(k, s, 0, why), at = buf < 0 ? 0 : only_load(k, buf);
    if (buf < 0) return false;
    const kbuf *own = &k->bufs.at[buf];
    kins *load = &k->ins.at[at];
    if (!at || load->packed * dtype_size((tn_dtype)load->src) >= sizeof(uint32_t) || !load->packed)
        return step_refuse(why, "b%d is not read once, by words that its elements are widened to", buf);
    if (!own->fixed || own->panels) return step_refuse(why, "b%d does not stay as it is from run to run", buf);
    if (load->n_mask || load->dyn || !list_loops(k, at, &layout, vars, &n))
        return step_refuse(why, "b%d is not read at one place for each iteration of some loops without lanes", buf);
    if (kpanels_elems(&layout) * layout.packed > own->elems)
        return step_refuse(why, "elements of b%d are read in several iterations", buf);
    kbuf words = { .dtype = TN_I32, .kind = KB_IN, .fixed = true, .node = own->node, .plan_buf = -1 };
    words.elems = kpanels_elems(&layout), words.panels_of = buf;
    words.panels = arena_copy(k->a, &layout, sizeof layout);
    affine place = affine_const(0);
    int64_t scale = 1;
    for (int i = n - 1; i >= 0; i--) {
        place = build_plus(k->a, place, affine_var(k->a, vars[i]), scale);
        scale *= layout.loops[i].extent;
    }
    load->idx = place, load->src = TN_I32, load->packed = 0, load->packed_stride = 0;
    int panel = kernel_buf(k, words);
    k->ins.at[at].buf = (uint16_t)panel;
    loop_take_place(k, panel);
    return true;
}
