/* operand.c - implementation of operand.h. Operands of an instruction come before it, so one walk backwards finds all that a
 * value needs. */
#include "loop/loop.h"
#include "loop/operand.h"

enum { RANDOM_FLOPS = 40 };

static double reach(const kernel *k, const kins *load) { /* elements */
    double n = 1;
    for (int i = 0; i < load->idx.n; i++) n *= (double)k->vars.at[load->idx.t[i].var].extent;
    return n;
}

bool operand_find(const kernel *k, reg value, operand *out) {
    bool *needs = ARENA_ARRAY(k->a, bool, value + 1);
    double most = 0;
    *out = (operand){ .value = value, .needs = needs };
    if (k->vars.n > MAX_LOOPS) return false;
    needs[value] = value > 0;
    for (reg r = value; r > 0; r--) {
        const kins *in = &k->ins.at[r];
        if (!needs[r]) continue;
        if (in->op != K_LOAD && !kernel_is_pure(in)) return false;
        out->vars |= loop_vars_of(in);
        needs[in->a] = needs[in->b] = needs[in->c] = true;
        if (in->op != K_LOAD) continue;
        if (k->bufs.at[in->buf].kind != KB_IN || in->dyn) return false;
        if (reach(k, in) > most) most = reach(k, in), out->load = r;
    }
    return out->load > 0;
}

uint64_t *operand_loops(const kernel *k, const operand *o) {
    uint64_t *vars = ARENA_ARRAY(k->a, uint64_t, o->value + 1);
    for (reg r = 1; r <= o->value; r++) {
        const kins *in = &k->ins.at[r];
        if (o->needs[r]) vars[r] = loop_vars_of(in) | vars[in->a] | vars[in->b] | vars[in->c];
    }
    return vars;
}

int operand_flops(const kernel *k, const operand *o, uint64_t loops) {
    const uint64_t *vars = operand_loops(k, o);
    int n = 0;
    for (reg r = 1; r <= o->value; r++) {
        const kins *in = &k->ins.at[r];
        if (!o->needs[r] || !(vars[r] & loops)) continue;
        if (in->op == K_ALU) n += op_get((op_code)in->alu)->flops > 0 ? op_get((op_code)in->alu)->flops : 1;
        if (in->op == K_CAST || in->op == K_WRAP) n++;
        if (in->op == K_RANDOM) n += RANDOM_FLOPS;
    }
    return n;
}
