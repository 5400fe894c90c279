/* group_sums.c - a factor leaves the inner loops of a sum: what they add up to is multiplied by it once. Of weights that have a
 * scale for a group, sum_k x[k] q[k] s[k/32] becomes sum_g s[g] sum_k x[k] q[k]. In and out: scalar form with roles.
 *
 * Applies where an update adds a product of which one operand is a product itself, of a number that was an integer of 8 bits
 * and a factor that was computed before some of the loops around (step hoist does that). The integers are small: the inner sum
 * overflows only where the terms come to within a few thousand times of that. A factor that is not finite makes all of its
 * group so. Not where these loops have lanes: there would be a sum of lanes for each group.
 *
 * In the form of a GPU, whose lanes are of one group, the same for products that follow each other without a loop between, and
 * for the lanes of one: four of them are added up in one. */
#include "ir/kernel_walk.h"
#include "loop/byte_bits.h"
#include "loop/loop.h"
#include "loop/schedule.h"

typedef struct group_sum {
    int upd, loop, end; /* instructions: the update; the outermost loop that the factor leaves, and its end */
    bool first;         /* the product is operand a of the update .. */
    reg value, factor;  /* .. of these */
} group_sum;

/* A value whose absolute is at most 256 if it is not the factor: made of bytes and constants alone. */
static bool is_of_bytes(const kernel *k, reg r) {
    const kins *in = &k->ins.at[r];
    if (in->op == K_LOAD) return in->src == TN_I8 || in->src == TN_U8;
    if (in->op == K_CONST) return true;
    if (in->op == K_BITCAST || (in->op == K_ALU && in->alu == OP_or))
        return is_of_bytes(k, in->a); /* 2^23 more: see mantissa_casts */
    if (in->op == K_CAST || (in->op == K_ALU && in->alu == OP_shift_right)) return is_of_bytes(k, in->a);
    if (in->op != K_ALU || (in->alu != OP_sub && in->alu != OP_add && in->alu != OP_and)) return false;
    const kins *b = &k->ins.at[in->b];
    bool fixed = b->op == K_LOAD && k->bufs.at[b->buf].fixed && !affine_equal(b->idx, k->ins.at[in->a].idx);
    return is_of_bytes(k, in->a) && (fixed || is_of_bytes(k, in->b));
}

/* The outermost reduction around the update, inside of its accumulator, before which the factor is there; 0: there is none. */
static int loop_of(const kernel *k, int upd, reg factor) {
    int open[MAX_LOOPS + 1], n = kernel_open_loops(k, (reg)upd, open), found = 0;
    reg acc = k->ins.at[upd].c;
    for (int i = n - 1; i >= 0 && open[i] > (int)factor && open[i] > (int)acc; i--) {
        const kins *loop = &k->ins.at[open[i]];
        if (!k->vars.at[loop->var].reduce || loop->par || loop->a || k->vars.at[loop->var].role.lanes > 1) break;
        found = open[i];
    }
    return found;
}

static bool find(const kernel *k, int upd, group_sum *out) {
    const kins *in = &k->ins.at[upd];
    if (in->op != K_UPD || in->alu != OP_dot || in->packed || in->dtype != TN_F32 || k->vars.n >= MAX_LOOPS) return false;
    for (int side = 0; side < 4; side++) {
        const kins *mul = &k->ins.at[side & 1 ? in->b : in->a];
        if (mul->op != K_ALU || mul->alu != OP_mul) continue;
        *out = (group_sum){ .upd = upd, .first = !(side & 1) };
        out->value = side & 2 ? mul->b : mul->a, out->factor = side & 2 ? mul->a : mul->b;
        if (is_of_bytes(k, out->value) && (out->loop = loop_of(k, upd, out->factor))) return true;
    }
    return false;
}

static void take_out(kernel *k, group_sum *s) {
    s->end = kernel_loop_end(k, s->loop);
    reg acc = k->ins.at[s->upd].c;
    loop_insertion x = loop_insert_begin(k, s->loop);
    reg inner = build_acc(k, OP_add, TN_F32, 0, 1);
    k->ins.at[inner].node = k->ins.at[acc].node;
    int more = loop_insert_end(k, &x);
    if ((int)s->value >= s->loop) s->value += (reg)more;
    kins *upd = &k->ins.at[s->upd + more];
    *(s->first ? &upd->a : &upd->b) = s->value;
    upd->c = inner;
    kins add = *upd;
    add.a = inner, add.b = s->factor, add.c = acc;
    loop_insert(k, s->end + more + 1, &add, 1);
}

enum { LANES = 4 };

/* Whether the update adds products of vectors of bytes, all with the same factor. */
static bool find_vector(const kernel *k, int i, group_sum *out) {
    const kins *in = &k->ins.at[i], *mul = &k->ins.at[in->b];
    if (in->op != K_UPD || in->alu != OP_dot || in->dtype != TN_F32 || in->lanes < 2 || k->ins.at[in->c].lanes != in->lanes ||
        mul->op != K_ALU || mul->alu != OP_mul)
        return false;
    *out = (group_sum){ .upd = i, .value = mul->a, .factor = mul->b };
    return k->ins.at[mul->a].lanes == in->lanes && k->ins.at[mul->b].lanes == 1 && is_of_bytes(k, mul->a);
}

/* The next update behind instruction i, without a loop between, of the same sum with the same factor; 0: there is none. */
static int next_of_group(const kernel *k, int i, const group_sum *g) {
    group_sum next;
    for (int j = i + 1; j < k->ins.n && k->ins.at[j].op != K_LOOP && k->ins.at[j].op != K_END; j++)
        if (k->ins.at[j].op == K_UPD && k->ins.at[j].c == k->ins.at[i].c)
            return find_vector(k, j, &next) && next.factor == g->factor ? j : 0;
    return 0;
}

/* Sums of nothing but such products, whose lanes are combined in the end: of few lanes, as their groups' sums are then, they
 * take fewer products with factors. */
static bool *find_narrow(const kernel *k) {
    bool *narrow = ARENA_ARRAY(k->a, bool, k->ins.n);
    group_sum g;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool sum = in->op == K_UPD && find_vector(k, i, &g);
        narrow[i] = in->op == K_ACC && in->lanes > LANES && in->imm == 0;
        if (in->op != K_LANE_REDUCE) narrow[in->a] = false;
        if (!sum) narrow[in->c] = false;
        narrow[in->b] = narrow[in->dyn] = false;
    }
    return narrow;
}

/* inner += a * b, as many of their lanes at a time as it has. */
static void add_parts(kernel *o, reg a, reg b, reg inner) {
    int all = o->ins.at[b].lanes, n = o->ins.at[inner].lanes;
    for (int l = 0; l < all; l += n) {
        reg x = build_lanes(o, a, l, n);
        build_update(o, OP_dot, x, build_lanes(o, b, l, n), inner);
    }
}

static bool sum_vectors(kernel **kk, str *why) {
    const kernel *k = *kk;
    kernel *o = kernel_clone(k, k->a);
    o->ins.n = 1;
    build_copier c = build_copier_make(k, o);
    const build_places none = { .n = 0 };
    const bool *narrow = find_narrow(k);
    reg *inner = ARENA_ARRAY(k->a, reg, k->ins.n); /* of an update that goes on with a group: the group's sum */
    bool any = false;
    for (int i = 1; i < k->ins.n; i++) {
        group_sum g;
        const kins *in = &k->ins.at[i];
        bool found = find_vector(k, i, &g);
        int next = found ? next_of_group(k, i, &g) : 0;
        if (!found || (!next && !inner[i] && !narrow[in->c])) {
            build_copy(&c, i, &none);
            if (narrow[i]) o->ins.at[c.to[i]].lanes = LANES;
            if (in->op == K_LANE_REDUCE && narrow[in->a]) o->ins.at[c.to[i]].combined = LANES;
            continue;
        }
        int lanes = narrow[in->c] ? LANES : in->lanes;
        reg sum = inner[i] ? inner[i] : build_acc(o, OP_add, TN_F32, 0, lanes);
        add_parts(o, c.to[in->a], c.to[g.value], sum);
        any = true;
        if (next)
            inner[next] = sum;
        else
            build_update(o, OP_dot, sum, c.to[g.factor], c.to[in->c]);
    }
    if (any) *kk = o;
    return any || step_refuse(why, "no vector of bytes is multiplied by a factor that could leave its sum");
}

bool step_group_sums(kernel **kk, const loop_step *s, str *why) {
    kernel *k = *kk;
    int n = 0;
    if (k->block_threads) {
        if (!sum_vectors(&k, why) || (step_flag(s, "bits") && !byte_bits_sum(&k, why))) return false;
        *kk = k;
        return true;
    }
    for (int i = 1; i < k->ins.n; i++) {
        group_sum g;
        if (!find(k, i, &g)) continue;
        take_out(k, &g);
        i = g.end + 2, n++;
    }
    if (!n) return step_refuse(why, "no sum multiplies bytes by a factor that was computed before the loop");
    loop_sweep(k);
    return true;
}
