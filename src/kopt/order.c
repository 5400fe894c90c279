/* order.c - the order of a contraction's loops: the loop along which the operands lie closest together becomes the innermost,
 * so that it walks through memory and may be joined with the next one. In and out: scalar form.
 *
 * Changes the order of summation, the same way wherever the kernel runs. */
#include "kopt/kopt.h"

static int64_t apart(const kins *load, kvar v) { /* 0: stands still */
    int64_t c = load->op == K_LOAD ? affine_coef(load->idx, v) : 0;
    return c < 0 ? -c : c;
}

static int64_t distance(const kins *a, const kins *b, kvar v) { /* of the operand that moves less */
    int64_t x = apart(a, v), y = apart(b, v);
    return x == 0 || (y != 0 && y < x) ? y : x;
}

/* Loops i .. i + n - 1 are perfectly nested contraction loops around one update. */
static int nest_at(const kernel *k, int i) {
    int n = 0;
    for (int end = k->ins.n; k->ins.at[i + n].op == K_LOOP && k->vars.at[k->ins.at[i + n].var].reduce; n++) {
        int e = kopt_loop_end(k, i + n);
        if (n && e != end - 1) break;
        end = e;
    }
    return n;
}

void kopt_order(kernel *k) {
    for (int i = 1; i < k->ins.n; i++) {
        int n = nest_at(k, i), upd = 0;
        if (n < 2) continue;
        for (int j = i + n; k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
            if (k->ins.at[j].op == K_UPD && k->ins.at[j].alu == OP_dot) upd = j;
        if (!upd) continue;
        const kins *a = &k->ins.at[k->ins.at[upd].a], *b = &k->ins.at[k->ins.at[upd].b];
        for (int x = i + 1; x < i + n; x++) /* insertion sort: farthest apart first */
            for (int y = x; y > i; y--) {
                kins *outer = &k->ins.at[y - 1], *inner = &k->ins.at[y];
                if (distance(a, b, outer->var) >= distance(a, b, inner->var)) break;
                kins swap = *outer;
                *outer = *inner, *inner = swap;
            }
        i += n - 1;
    }
}
