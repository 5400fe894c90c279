/* lay_out_table.c - a constant table, of which a run says the row (dyn), lies in panels of n rows before any run, as a
 * contraction reads it that all of its rows are results of (lay_out.c): an element of a row is n elements behind the one
 * before. words: bytes of it are one of four in a word (join_bytes.c). In and out: scalar form. */
#include "loop/build.h"
#include "loop/lay_out.h"
#include "loop/schedule.h"

static reg with(kernel *k, op_code op, reg a, int64_t b) {
    kins number = { .op = K_CONST, .dtype = k->ins.at[a].dtype, .lanes = 1, .imm = (double)b, .imm_int = b };
    return build_op(k, op, a, kernel_push(k, number));
}

bool step_lay_out_table(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why), at = buf < 0 ? 0 : loop_only_load(k, buf);
    int64_t n = s->arg[1].n;
    bool words = step_flag(s, "words");
    if (buf < 0) return false;
    const kbuf *own = &k->bufs.at[buf];
    kins load = k->ins.at[at];
    if (!own->fixed || own->panels) return step_refuse(why, "b%d does not stay as it is from run to run", buf);
    if (!at || !load.dyn || load.n_mask || load.packed || load.idx.base || load.dyn_stride < 2 || n < 4 || n & (n - 1) ||
        load.dyn_n % n || load.dyn_n * load.dyn_stride != own->elems || own->elems > INT32_MAX || (words && load.src != TN_U8))
        return step_refuse(why, "b%d is no table of panels of %lld rows of which one load takes elements", buf, (long long)n);
    kpanels x = { .width = n, .column = { n, load.dyn_stride }, .dtype = load.src };
    if (load.dyn_n > n) x.loops[x.n_depth++] = (kstep){ load.dyn_n / n, n * load.dyn_stride };
    x.loops[x.n_depth++] = (kstep){ load.dyn_stride, 1 };
    const kpanels *layout = words ? loop_joined(k->a, &x) : arena_copy(k->a, &x, sizeof x);
    kbuf panels = { .dtype = words ? TN_I32 : load.src, .kind = KB_IN, .fixed = true, .node = own->node, .plan_buf = -1 };
    panels.panels = layout, panels.panels_of = buf, panels.elems = kpanels_elems(layout);
    int64_t width = layout->width, panel = load.dyn_stride * width;
    int bits = 0, part = 0; /* of the number of a row in its panel; of that behind which is the byte of a word */
    while (n >> bits > 1) bits++;
    while (width >> part > 1) part++;
    int to = kernel_buf(k, panels);
    loop_insertion before = loop_insert_begin(k, at);
    reg row = with(k, OP_min, with(k, OP_max, load.dyn, 0), load.dyn_n - 1),
        first = with(k, OP_mul, with(k, OP_shift_right, row, bits), panel), shift = 0;
    if (words) shift = with(k, OP_mul, with(k, OP_and, with(k, OP_shift_right, row, part), n / width - 1), 32 / layout->packed);
    if (words && k->ins.at[shift].dtype != TN_I32)
        shift = kernel_push(k, (kins){ .op = K_CAST, .src = k->ins.at[shift].dtype, .dtype = TN_I32, .a = shift, .lanes = 1 });
    load.dyn = build_op(k, OP_add, first, with(k, OP_and, row, width - 1));
    load.dyn_stride = 1, load.dyn_n = panels.elems - panel + width;
    load.idx = affine_scale(k->a, load.idx, width), load.buf = (uint16_t)to, load.src = panels.dtype;
    reg value = kernel_push(k, load);
    if (words) value = with(k, OP_and, build_op(k, OP_shift_right, value, shift), 255);
    int more = loop_insert_end(k, &before);
    for (int i = at + more + 1; i < k->ins.n; i++) {
        reg *of[] = { &k->ins.at[i].a, &k->ins.at[i].b, &k->ins.at[i].c, &k->ins.at[i].dyn };
        for (size_t r = 0; r < COUNT_OF(of); r++)
            if ((int)*of[r] == at + more) *of[r] = value;
    }
    loop_sweep(k);
    loop_take_place(k, to);
    return true;
}
