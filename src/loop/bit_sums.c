/* bit_sums.c - sums of products with bits of bytes (byte_bits.h), which are multiplied as they lie in the word: without an
 * exponent the bits of n, which begin at bit b, are the float n 2^(b - 149), below all others, which some GPUs multiply as fast
 * as those. So a product takes an instruction for its bits and one for itself. The other operand is multiplied by 2^(84 - b)
 * before, once for all rows of a thread; a group's sum is 2^-65 of what it should be, which its factor takes back, and begins
 * with what is subtracted from each number times the other operand. In and out: the form of a GPU, behind group_sums.
 *
 * Each group's sum is made at once, and its lanes are added up before it is multiplied: few registers hold sums, and more of
 * them loads that are under way (with sums side by side a token of a Llama-1B of 4 bits took as long as before).
 *
 * Operands from 2^43 on overflow, and what a product lacks below 2^-61 is less than 2^-85 of 1. */
#include "loop/byte_bits.h"
#include "loop/loop.h"
#include "loop/schedule.h"

#include <math.h>

enum { UP = 84, DOWN = 149 - UP, MOST_TERMS = 16, MOST_VECTORS = 64 };

typedef struct bit_term { /* an update: sum += lanes [first, ..) of vector * the same of value */
    reg value, vector;
    int first;
    byte_bits bits;
} bit_term;

typedef struct scaled {
    reg vector, is; /* of k; of o */
    int64_t shift;
} scaled;

typedef struct bit_sums {
    const kernel *k;
    build_copier c;
    bool *done;                   /* [ins] it is left out */
    bool *narrow;                 /* [ins] a sum of groups' sums, which has one lane now */
    int *close;                   /* [ins] of a sum of such products: the update that multiplies it by a factor; else 0 */
    reg *bare;                    /* [ins] of a value: its bits, in the loops that are open */
    scaled vectors[MOST_VECTORS]; /* likewise */
    int n_vectors;
    reg first; /* what a sum begins with, if it has the same terms as the one before */
    bit_term terms[MOST_TERMS];
    int n_terms;
} bit_sums;

static bool find_term(const kernel *k, int i, bit_term *out) {
    const kins *in = &k->ins.at[i], *a = &k->ins.at[in->a], *b = &k->ins.at[in->b];
    if (in->op != K_UPD || in->alu != OP_dot || in->dtype != TN_F32 || in->packed) return false;
    bool part = b->op == K_LANES;
    *out = (bit_term){ .value = part ? b->a : in->b, .first = part ? (int)b->first_lane : 0, .vector = in->a };
    if (part) {
        if (a->op != K_LANES || a->first_lane != b->first_lane) return false;
        out->vector = a->a;
    }
    const kins *value = &k->ins.at[out->value];
    return byte_bits_find(k, value, &out->bits) && k->ins.at[out->vector].lanes == value->lanes;
}

/* The update that multiplies by a factor sum i of nothing but such products; 0: it is none. */
static int find_close(const kernel *k, int i) {
    const kins *acc = &k->ins.at[i];
    if (acc->op != K_ACC || acc->alu != OP_add || acc->dtype != TN_F32 || acc->imm != 0) return 0;
    for (int u = i + 1, n = 0; u < k->ins.n; u++) {
        const kins *in = &k->ins.at[u];
        bit_term t;
        if (in->op == K_LOOP || in->op == K_END || in->op == K_STORE || in->op == K_SCATTER || kernel_syncs(in)) return 0;
        if (in->op == K_UPD && in->c == (reg)i) {
            if (n == MOST_TERMS || !find_term(k, u, &t)) return 0;
            n++;
        } else if (in->a == (reg)i) {
            bool ends = in->op == K_UPD && in->alu == OP_dot && n && in->b != (reg)i && in->b;
            for (int later = u + 1; later < k->ins.n && ends; later++) ends = !build_takes(&k->ins.at[later], (reg)i);
            return ends ? u : 0;
        } else if (build_takes(in, (reg)i)) {
            return 0;
        }
    }
    return 0;
}

static bool is_term(const bit_sums *w, int i, bit_term *out) {
    const kins *in = &w->k->ins.at[i];
    return in->op == K_UPD && w->close[in->c] && find_term(w->k, i, out);
}

/* The vector times 2^(UP - b) in each lane, b being where the bits that it is multiplied by begin. */
static reg scaled_vector(bit_sums *w, const bit_term *t) {
    kernel *o = w->c.o;
    int lanes = w->k->ins.at[t->vector].lanes;
    for (int i = 0; i < w->n_vectors; i++)
        if (w->vectors[i].vector == t->vector && w->vectors[i].shift == t->bits.shift) return w->vectors[i].is;
    reg all = build_acc(o, OP_add, TN_F32, 0, lanes), is;
    for (int l = 0; l < lanes; l++)
        build_put_lanes(o, all, l, build_number(o, TN_F32, ldexp(1, UP - (int)byte_bits_at(&t->bits, l))));
    is = build_op(o, OP_mul, w->c.to[t->vector], all);
    if (w->n_vectors < MOST_VECTORS) w->vectors[w->n_vectors++] = (scaled){ t->vector, is, t->bits.shift };
    return is;
}

static reg bare_bits(bit_sums *w, const bit_term *t) {
    kernel *o = w->c.o;
    int lanes = w->k->ins.at[t->value].lanes;
    if (w->bare[t->value]) return w->bare[t->value];
    reg all = build_acc(o, OP_add, TN_F32, 0, lanes);
    val of = w->k->ins.at[t->value].node;
    for (int l = 0; l < lanes; l++) build_put_lanes(o, all, l, byte_bits_lane(&w->c, &t->bits, l, 0, of));
    return w->bare[t->value] = all;
}

static bool same_terms(const bit_sums *w, const bit_term *t, int n) {
    bool same = n == w->n_terms;
    for (int i = 0; i < n && same; i++)
        same = t[i].vector == w->terms[i].vector && t[i].first == w->terms[i].first && t[i].bits.less == w->terms[i].bits.less;
    return same;
}

/* What a sum of these terms begins with: what all of them lack. */
static reg first_of(bit_sums *w, const bit_term *t, int n, int lanes) {
    kernel *o = w->c.o;
    if (w->first && same_terms(w, t, n) && o->ins.at[w->first].lanes == lanes) return w->first;
    w->first = build_acc(o, OP_add, TN_F32, 0, lanes), w->n_terms = n;
    for (int j = 0; j < n; j++) {
        reg less = build_number(o, TN_F32, ldexp(-t[j].bits.less, -DOWN));
        w->terms[j] = t[j];
        build_update(o, OP_dot, build_lanes(o, w->c.to[t[j].vector], t[j].first, lanes), less, w->first);
    }
    return w->first;
}

/* All of sum i, and the update that multiplies it by a factor. */
static void write_sum(bit_sums *w, int i) {
    kernel *o = w->c.o;
    const kins *close = &w->k->ins.at[w->close[i]];
    bit_term t[MOST_TERMS];
    int n = 0, lanes = w->k->ins.at[i].lanes;
    for (int u = i + 1; u < w->close[i]; u++)
        if (w->k->ins.at[u].c == (reg)i && is_term(w, u, &t[n])) n++;
    reg first = first_of(w, t, n, lanes);
    for (int j = 0; j < n; j++) scaled_vector(w, &t[j]);
    reg sum = build_acc(o, OP_add, TN_F32, -0.0, lanes); /* to which anything may be added without an instruction */
    build_update(o, OP_add, first, 0, sum);
    for (int j = 0; j < n; j++) {
        reg vector = build_lanes(o, scaled_vector(w, &t[j]), t[j].first, lanes);
        build_update(o, OP_dot, vector, build_lanes(o, bare_bits(w, &t[j]), t[j].first, lanes), sum);
    }
    reg factor = build_op(o, OP_mul, w->c.to[close->b], build_number(o, TN_F32, ldexp(1, DOWN)));
    if (w->narrow[close->c]) sum = build_lane_reduce(o, OP_add, sum);
    build_update(o, OP_dot, sum, factor, w->c.to[close->c]);
}

/* Sums of nothing but groups' sums times one factor each, whose lanes are added up in the end: a group's are before. */
static void find_narrow(bit_sums *w) {
    const kernel *k = w->k;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool closes = in->op == K_UPD && w->close[in->a] == i && k->ins.at[in->b].lanes == 1;
        w->narrow[i] = in->op == K_ACC && in->alu == OP_add && in->imm == 0;
        if (in->op != K_LANE_REDUCE) w->narrow[in->a] = false;
        if (!closes) w->narrow[in->c] = false;
        w->narrow[in->b] = w->narrow[in->dyn] = false;
    }
}

/* Lanes that such products alone take, which name their own. */
static void leave_out_lanes(bit_sums *w) {
    const kernel *k = w->k;
    bool *needed = ARENA_ARRAY(k->a, bool, k->ins.n);
    bit_term t;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (!is_term(w, i, &t)) needed[in->a] = needed[in->b] = needed[in->c] = needed[in->dyn] = true;
    }
    for (int i = 1; i < k->ins.n; i++) w->done[i] = k->ins.at[i].op == K_LANES && !needed[i];
}

bool byte_bits_sum(kernel **kk, str *why) {
    const kernel *k = *kk;
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    bit_sums *w = ARENA_NEW(k->a, bit_sums);
    const build_places none = { .n = 0 };
    bool any = false;
    *w = (bit_sums){ .k = k, .c = build_copier_make(k, o), .done = ARENA_ARRAY(k->a, bool, k->ins.n) };
    w->close = ARENA_ARRAY(k->a, int, k->ins.n), w->bare = ARENA_ARRAY(k->a, reg, k->ins.n);
    w->narrow = ARENA_ARRAY(k->a, bool, k->ins.n);
    for (int i = 1; i < k->ins.n; i++) any |= (w->close[i] = find_close(k, i)) != 0;
    leave_out_lanes(w);
    find_narrow(w);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bit_term t;
        if (in->op == K_LOOP || in->op == K_END) {
            w->n_vectors = 0, w->first = 0;
            memset(w->bare, 0, sizeof(reg) * (size_t)k->ins.n);
        }
        if (w->done[i] || w->close[i] || is_term(w, i, &t)) continue; /* each sum is made where it ends: one at a time */
        if (in->op == K_UPD && w->close[in->a] == i) {
            write_sum(w, (int)in->a);
        } else if (in->op == K_LANE_REDUCE && w->narrow[in->a]) {
            w->c.to[i] = w->c.to[in->a];
        } else {
            build_copy(&w->c, i, &none);
            if (w->narrow[i]) o->ins.at[w->c.to[i]].lanes = 1;
        }
    }
    if (any) loop_sweep(o), *kk = o;
    return any || step_refuse(why, "no group's sum is one of products with bits of bytes");
}
