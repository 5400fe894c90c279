/* thread_cost.c - what one thread of a GPU does for one iteration, in instructions, roughly: how nests are shared out follows
 * from it (bind_rows.c), and recipes compare forms by it. */
#include "loop/bind_rows.h"

enum { LINE = 32 /* neighbouring threads, and elements that memory gives them at once */ };

/* Lines that neighbouring threads touch where what they read is `apart` elements apart. */
static int64_t lines_of(int64_t apart) {
    int64_t n = apart < 0 ? -apart : apart;
    return n < 1 ? 1 : n < LINE ? n : LINE;
}

/* The cost of a load or store by the lines that it touches; apart: elements from thread to thread. */
static double access_cost(int64_t apart) { return 4 + 2.0 * (double)(lines_of(apart) - 1); }

double loop_thread_lines(const kernel *k, int from, int to, kvar fast) {
    double sum = 0, times[64] = { 1 };
    int depth = 0;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP && depth < 63) times[depth + 1] = times[depth] * (double)(in->hi - in->lo), depth++;
        if (in->op == K_END) depth -= depth > 0;
        if ((in->op == K_LOAD || in->op == K_STORE) && !kbuf_is_local(&k->bufs.at[in->buf]))
            sum += times[depth] * (double)lines_of(fast >= 0 ? affine_coef(in->idx, fast) : 0);
    }
    return sum;
}

double loop_thread_cost(const kernel *k, int from, int to, kvar fast) {
    double sum = 0, times[64] = { 1 };
    int depth = 0;
    for (int i = from; i < to; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op == K_LOOP) {
            if (depth < 63) times[depth + 1] = times[depth] * (double)(in->hi - in->lo), depth++;
        } else if (in->op == K_END) {
            depth -= depth > 0;
        } else if (in->op == K_LOAD || in->op == K_STORE || in->op == K_SCATTER) {
            sum +=
                times[depth] * access_cost(fast >= 0 && !kbuf_is_local(&k->bufs.at[in->buf]) ? affine_coef(in->idx, fast) : 0);
        } else if (in->op == K_ALU) {
            sum += times[depth] * op_get((op_code)in->alu)->flops;
        } else if (in->op != K_CONST) {
            sum += times[depth] * (in->op == K_RANDOM ? 40 : 1);
        }
    }
    return sum;
}
