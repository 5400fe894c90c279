/* lay_out.c - a constant operand lies in the order in which loops read it before any run, one of them innermost: that may have
 * lanes then, and the loops around it read memory from end to end. In and out: scalar form. */
#include "ir/kernel_walk.h"
#include "loop/build.h"
#include "loop/lay_out.h"
#include "loop/schedule.h"

int loop_only_load(const kernel *k, int buf) {
    int found = 0;
    for (int i = 1; i < k->ins.n; i++) {
        if (!kernel_has_buffer(&k->ins.at[i]) || k->ins.at[i].buf != buf) continue;
        if (found || k->ins.at[i].op != K_LOAD) return 0;
        found = i;
    }
    return found;
}

/* All loops that the index knows, the outermost first, but `last` behind all others. With that, rows of the value come in their
 * order, however their loops are nested, for one layout serves all kernels. Returns how many, or 0. */
static int list_vars(const kernel *k, int at, kvar last, kvar *vars /* [PANEL_LOOPS] */) {
    const kins *load = &k->ins.at[at];
    int *open = ARENA_ARRAY(k->a, int, k->ins.n + 1), depth = kernel_open_loops(k, (reg)at, open), n = 0;
    for (int i = 0; i <= depth; i++) {
        kvar v = i < depth ? k->ins.at[open[i]].var : last;
        int64_t step = v < 0 ? 0 : affine_coef(load->idx, v);
        if (!step || (i < depth && v == last)) continue;
        if (n == PANEL_LOOPS || !ext_is_lit(k->vars.at[v].extent) || k->vars.at[v].role.lanes > 1) return 0;
        int to = n++;
        while (to > 0 && last >= 0 && v != last && k->vars.at[v].row && k->vars.at[vars[to - 1]].row &&
               affine_coef(load->idx, vars[to - 1]) < step)
            vars[to] = vars[to - 1], to--;
        vars[to] = v;
    }
    return n;
}

/* Their layout. In front of `last`, those that walk through the value as one are one: it is the same however they were cut. */
static int list_loops(const kernel *k, int at, kvar last, kpanels *x, kvar *vars) {
    const kins *load = &k->ins.at[at];
    int n = list_vars(k, at, last, vars), m = 0;
    for (int i = 0; i < n; i++) {
        kstep s = { k->vars.at[vars[i]].extent, affine_coef(load->idx, vars[i]) }, *outer = m ? &x->loops[m - 1] : NULL;
        if (last >= 0 && vars[i] != last && s.extent == 1) continue;
        if (last >= 0 && vars[i] != last && outer && outer->step == s.extent * s.step)
            outer->extent *= s.extent, outer->step = s.step;
        else
            x->loops[m++] = s;
    }
    if (!n || n != load->idx.n) return 0;
    x->base = load->idx.base, x->n_depth = m - 1;
    x->column = x->loops[m - 1], x->width = x->column.extent;
    x->dtype = load->src, x->packed = load->packed, x->packed_stride = load->packed_stride;
    return n;
}

bool loop_lay_out(kernel *k, int buf, kvar last, str *why) {
    kpanels layout = { 0 };
    kvar vars[PANEL_LOOPS];
    const kbuf *own = &k->bufs.at[buf];
    int at = loop_only_load(k, buf), n;
    kins *load = &k->ins.at[at];
    if (!own->fixed || own->panels) return step_refuse(why, "b%d does not stay as it is from run to run", buf);
    if (!at || load->n_mask || load->dyn || !(n = list_loops(k, at, last, &layout, vars)))
        return step_refuse(why, "b%d is not read at one place for each iteration of some loops without lanes", buf);
    if (kpanels_elems(&layout) * (layout.packed ? layout.packed : 1) > own->elems)
        return step_refuse(why, "elements of b%d are read in several iterations", buf);
    kbuf panels = {
        .dtype = layout.packed ? TN_I32 : load->src, .kind = KB_IN, .fixed = true, .node = own->node, .plan_buf = -1
    };
    panels.elems = kpanels_elems(&layout), panels.panels_of = buf;
    panels.panels = arena_copy(k->a, &layout, sizeof layout);
    affine place = affine_const(0);
    int64_t scale = 1;
    while (n-- > 0) {
        place = build_plus(k->a, place, affine_var(k->a, vars[n]), scale);
        scale *= k->vars.at[vars[n]].extent;
    }
    load->idx = place, load->src = panels.dtype, load->packed = 0, load->packed_stride = 0;
    int b = kernel_buf(k, panels);
    k->ins.at[at].buf = (uint16_t)b;
    loop_take_place(k, b);
    return true;
}

bool step_lay_out(kernel **kk, const loop_step *s, str *why) {
    int buf = step_buf(*kk, s, 0, why), at = buf < 0 ? 0 : loop_only_load(*kk, buf);
    kvar last = step_loop(*kk, s, 1, why);
    if (buf < 0 || last < 0) return false;
    const kins *load = &(*kk)->ins.at[at];
    if (!at || load->packed || !affine_coef(load->idx, last))
        return step_refuse(why, "b%d is not read once, element by element along %s", buf, s->arg[1].word);
    return loop_lay_out(*kk, buf, last, why);
}
