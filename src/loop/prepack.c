/* prepack.c - a constant operand of which a contraction reads a packed word for all lanes lies in words of 32 bits before any
 * run, in the order of the loops: inside of them nothing is widened. In and out: scalar form with roles, behind packed_dot.
 *
 * The operand with the lanes lies so in panels (pack.c). Words of two bytes take twice the room of their bytes; an operand that
 * already is whole words, as four bytes or two bf16 are, gains nothing. */
#include "loop/lay_out.h"
#include "loop/schedule.h"

bool step_prepack(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int buf = step_buf(k, s, 0, why), at = buf < 0 ? 0 : loop_only_load(k, buf);
    if (buf < 0) return false;
    const kins *load = &k->ins.at[at];
    if (!at || load->packed * dtype_size((tn_dtype)load->src) >= sizeof(uint32_t) || !load->packed)
        return step_refuse(why, "b%d is not read once, by words that its elements are widened to", buf);
    return loop_lay_out(k, buf, -1, why);
}
