/* online_softmax.c - online softmax: two contractions of a row with a softmax between them (attention) go through their scores
 * tile by tile. The maximum and the sums so far are carried from tile to tile; where the maximum grows, what was summed before
 * is rescaled. So a row never has all of its scores in memory.
 *
 * In: scalar form that is rows of
 *     scores s[j] from a contraction, m = max s[j], e[j] = exp(s[j] - m), l = sum e[j], o[i] = sum e[j] / l * v[j, i]
 * with any elementwise work before the scores, on them, and behind the result; without m and l, and with several contractions
 * that make scores, too (gradients). Numbers of the row may be stored: each loop behind that takes them from registers. Out:
 * scalar form
 *     m = -inf, l = 0, o[i] = 0
 *     for each tile: s[j], n = max(m, max s[j]), a = exp(m - n), e[j] = exp(s[j] - n),
 *                    l = l * a + sum e[j], o[i] = o[i] * a + sum e[j] * v[j, i], m = n
 *     o[i] / l
 * As long as all scores are -inf, n counts as 0 where it is subtracted: their powers are 0 then and no NaN, which a later tile
 * could not mend; a row of such scores alone ends as 0 / 0, the NaN that softmax has there.
 *
 * narrow: where the weights that the second contraction takes are f16 or bf16 in the kernel, they are so here, too, in a buffer
 * of their own, and their exponentials are approximate; the sums are of the f32 as ever.
 *
 * How many scores a row has may be a run's: loads of the last tile end there, what is combined of it is masked.
 *
 * Order-changing: sums are taken tile by tile, and the factor of a row goes behind its sum. All memory is the kernel's. */
#include "loop/build.h"
#include "loop/gpu_bind.h"

#include <math.h>

enum {
    OF_MAX = 1,
    OF_SUM = 2,
    OF_KEY = 4,
    MOST_SCORES = 4,
    MOST_VALUES = 5,
    MOST_LAST = 2,
    MOST_SUMS = 4,
    MOST_FACTORS = 4,
    MOST_TILE = 1024
};

typedef struct nest {
    int loop, end, acc, inner, upd; /* instructions; inner: the loop of a contraction, or 0 */
    bool key;                       /* of the scores' loop */
} nest;

typedef struct factor { /* the result is multiplied with (op OP_mul) or divided by r */
    uint8_t op;
    reg r;
} factor;

typedef struct taker { /* a last contraction */
    const nest *n;
    reg weight; /* what it multiplies with */
    bool weight_is_a;
    reg rounding[3]; /* how it loads the weight: a load, perhaps a cast, and what it multiplies with */
    uint8_t dtype;   /* as it takes it */
    int out_buf;
} taker;

typedef struct row {
    const kernel *k;
    kernel *o;
    str *why;
    int n_outer, from, end;
    VEC(nest) nests;
    int *nest_of;                    /* [ins] + 1, 0: outside of nests */
    uint8_t *needs;                  /* [ins] OF_ */
    const nest *scores[MOST_SCORES]; /* contractions whose columns are the keys, in order */
    taker last[MOST_LAST];
    int n_scores, n_last, n_values;
    struct {
        reg r;
        int store, buf;   /* store: instruction */
    } value[MOST_VALUES]; /* that the scores' nests store */
    int64_t tile;
    ext keys, n_tiles;
    reg max, max_of, sum[MOST_SUMS], sum_of[MOST_SUMS];
    int n_sums, n_factors;
    factor factor[MOST_FACTORS];
    /* writing */
    reg *to_row, *to;    /* [ins] */
    build_places places; /* what variables become, besides those of the scores */
    kvar step, at;
    int weight_buf[MOST_SUMS + MOST_LAST];
    reg stabiliser, scale;
} row;

static const kins *ins(const row *w, int i) { return &w->k->ins.at[i]; }
static bool is_local(const row *w, const kins *in) { return loop_is_local(w->k, in); }
static kvar var_of(const row *w, const nest *n) { return ins(w, n->loop)->var; }

/* ---- what the row is made of ---- */

/* One loop of elementwise work, sums, or one contraction. */
static bool read_nest(row *w, int loop) {
    nest n = { .loop = loop, .end = kernel_loop_end(w->k, loop) };
    for (int i = loop; i <= n.end; i++) {
        const kins *in = ins(w, i);
        w->nest_of[i] = w->nests.n + 1;
        bool inner = i > loop && in->op == K_LOOP;
        if (in->op == K_SCATTER || in->op == K_ARGUPD || (inner && (n.inner || !w->k->vars.at[in->var].reduce))) return false;
        if (inner) n.inner = i;
        if (in->op == K_ACC && n.acc) return false;
        if (in->op == K_ACC) n.acc = i;
        if (in->op == K_UPD && n.upd) return false;
        if (in->op == K_UPD) n.upd = i;
    }
    if (n.acc && (!n.inner || !n.upd || ins(w, n.upd)->alu != OP_dot || (int)ins(w, n.upd)->c != n.acc)) return false;
    if (n.inner && !n.acc) return false;
    VEC_PUSH(w->k->a, &w->nests, n);
    return true;
}

static bool read_nests(row *w) {
    for (int i = w->from; i < w->end; i++) {
        const kins *in = ins(w, i);
        if (in->op == K_SCATTER || in->op == K_UPD || in->op == K_ARGUPD || is_local(w, in))
            return step_refuse(w->why, "between its nests a row does more than compute with numbers of its own");
        if (in->op != K_LOOP) continue;
        if (!read_nest(w, i)) return step_refuse(w->why, "a nest of the row is no elementwise work, sum or contraction");
        i = w->nests.at[w->nests.n - 1].end;
    }
    return w->nests.n > 1 || step_refuse(w->why, "a row is not several nests");
}

/* The last store to the buffer before instruction i; 0: there is none. */
static int store_before(const row *w, int buf, int i) {
    for (i--; i >= w->from; i--)
        if (ins(w, i)->op == K_STORE && ins(w, i)->buf == buf) return i;
    return 0;
}

/* The number of the row that instruction i loads, where the row has stored it before; 0: it loads something else. */
static reg stored_number(const row *w, int i) {
    const kins *in = ins(w, i);
    if (in->op != K_LOAD || in->dyn || in->n_mask || w->k->bufs.at[in->buf].kind == KB_IN || is_local(w, in)) return 0;
    int s = store_before(w, in->buf, i);
    return s && !w->nest_of[s] && affine_equal(ins(w, s)->idx, in->idx) ? ins(w, s)->a : 0;
}

/* The value that is stored, without its rounding to what the buffer has. */
static reg stored_value(const row *w, const kins *store) {
    const kins *wrap = ins(w, (int)store->a), *cast = ins(w, (int)wrap->a);
    uint8_t dtype = w->k->bufs.at[store->buf].dtype;
    if (!dtype_is_narrow_float(dtype) || wrap->op != K_WRAP || wrap->src != dtype) return store->a;
    return cast->op == K_CAST && cast->dtype == dtype && cast->src == TN_F32 ? cast->a : wrap->a;
}

/* What is loaded of what a nest has computed is that. */
static reg resolve(const row *w, reg r) {
    for (;;) {
        const kins *in = ins(w, (int)r);
        reg number = stored_number(w, (int)r);
        if (number) {
            r = number;
            continue;
        }
        if (in->op != K_LOAD || !is_local(w, in)) return r;
        int s = store_before(w, in->buf, (int)r);
        if (!s || !w->nests.at[w->nest_of[s] - 1].key) return r;
        r = stored_value(w, ins(w, s));
    }
}

/* Marks the contractions that what instruction i is computed from comes from. */
static void mark_scores(row *w, int i, int depth) {
    if (i == 0 || depth > 200) return;
    const kins *in = ins(w, i);
    if (in->op == K_LOAD) {
        int s = is_local(w, in) ? store_before(w, in->buf, i) : 0;
        nest *n = s ? &w->nests.at[w->nest_of[s] - 1] : NULL;
        if (n && n->inner) n->key = true;
        if (n) mark_scores(w, (int)ins(w, s)->a, depth + 1);
        return;
    }
    reg of[3] = { in->a, in->b, in->c };
    for (int x = 0; x < 3 && kernel_is_pure(in); x++) mark_scores(w, (int)of[x], depth + 1);
}

/* The operand is what the row has computed at the key, perhaps rounded. */
static bool takes_weight(const row *w, taker *x, reg r, kvar key) {
    const kins *wrap = ins(w, (int)r), *cast = ins(w, (int)wrap->a);
    bool rounds = wrap->op == K_WRAP && dtype_is_narrow_float(wrap->src) && cast->op == K_CAST && cast->src == TN_F32;
    reg from = rounds ? cast->a : r;
    if (!is_local(w, ins(w, (int)from)) || !loop_is_own(ins(w, (int)from), key)) return false;
    x->rounding[0] = from, x->rounding[1] = rounds ? wrap->a : from, x->rounding[2] = r;
    return true;
}

/* A contraction of what the row has computed at each key. */
static bool find_taker(const row *w, const nest *n, taker *x) {
    const kins *upd = ins(w, n->upd);
    *x = (taker){ .n = n };
    if (!n->inner) return false;
    kvar key = ins(w, n->inner)->var;
    x->weight_is_a = takes_weight(w, x, upd->a, key);
    if (!x->weight_is_a && !takes_weight(w, x, upd->b, key)) return false;
    x->weight = x->rounding[0];
    return true;
}

static bool is_last(const row *w, const nest *n) {
    for (int l = 0; l < w->n_last; l++)
        if (w->last[l].n == n) return true;
    return false;
}

static bool find_contractions(row *w) {
    int last = w->nests.n - 1;
    taker before;
    while (last > 0 && !w->nests.at[last].inner) last--;
    if (!w->nests.at[last].inner) return step_refuse(w->why, "the row has no contraction");
    if (!find_taker(w, &w->nests.at[last], &w->last[0]))
        return step_refuse(w->why, "the last contraction does not multiply with what the row has computed");
    w->n_last = 1, w->keys = w->k->vars.at[ins(w, w->last[0].n->inner)->var].extent;
    /* two that stand next to each other, and nothing behind them: gradients of keys and values */
    if (last > 1 && last == w->nests.n - 1 && find_taker(w, &w->nests.at[last - 1], &before) &&
        w->nests.at[last].end == w->end - 1 && w->nests.at[last - 1].end == w->nests.at[last].loop - 1 &&
        w->k->vars.at[ins(w, before.n->inner)->var].extent == w->keys)
        w->last[1] = w->last[0], w->last[0] = before, w->n_last = 2;
    for (int l = 0; l < w->n_last; l++) mark_scores(w, (int)w->last[l].weight, 0);
    for (int n = 0; n < w->nests.n; n++) {
        if (!w->nests.at[n].key) continue;
        if (w->n_scores == MOST_SCORES) return step_refuse(w->why, "more than %d contractions make scores", MOST_SCORES);
        w->scores[w->n_scores++] = &w->nests.at[n];
    }
    if (!w->n_scores) return step_refuse(w->why, "what the last contraction multiplies with comes from no other contraction");
    return true;
}

/* Nests over the scores, from the first contraction on. */
static bool mark_keys(row *w) {
    for (int n = 0; n < w->nests.n; n++) {
        nest *x = &w->nests.at[n];
        if (is_last(w, x)) continue;
        bool scores = x->key;
        for (int i = x->loop; i < x->end && !x->key; i++) {
            int s = is_local(w, ins(w, i)) && ins(w, i)->op == K_LOAD ? store_before(w, ins(w, i)->buf, i) : 0;
            x->key = s && w->nests.at[w->nest_of[s] - 1].key;
        }
        if (!x->key) continue;
        if (x > w->last[0].n) return step_refuse(w->why, "the scores are needed behind the last contraction, too");
        if (w->k->vars.at[var_of(w, x)].extent != w->keys)
            return step_refuse(w->why, "a nest of the scores has another length than they have");
        if (x->inner && !scores) return step_refuse(w->why, "a third contraction takes the scores");
        for (int i = x->loop; i < x->end; i++) {
            const kins *in = ins(w, i);
            if (in->op == K_STORE && (!is_local(w, in) || !loop_is_own(in, var_of(w, x))))
                return step_refuse(w->why, "the scores are needed elsewhere, too");
            int s = in->op == K_LOAD && is_local(w, in) ? store_before(w, in->buf, i) : 0;
            bool of_key = s && w->nests.at[w->nest_of[s] - 1].key;
            if (of_key && (!loop_is_own(in, var_of(w, x)) || (scores && i < kernel_loop_end(w->k, x->inner))))
                return step_refuse(w->why, "a score needs others than its own");
        }
    }
    for (int l = 0; l < w->n_last; l++)
        for (int i = w->last[l].n->loop; i < w->last[l].n->end; i++) {
            int store = is_local(w, ins(w, i)) && ins(w, i)->op == K_LOAD && (reg)i != w->last[l].rounding[0]
                            ? store_before(w, ins(w, i)->buf, i)
                            : 0;
            if (store && w->nests.at[w->nest_of[store] - 1].key)
                return step_refuse(w->why, "the scores are needed behind the last contraction, too");
        }
    return true;
}

/* On what each instruction depends of what the tiles change. */
static bool find_needs(row *w) {
    for (int i = w->from; i < w->end; i++) {
        const kins *in = ins(w, i);
        uint8_t *own = &w->needs[i];
        const nest *n = w->nest_of[i] ? &w->nests.at[w->nest_of[i] - 1] : NULL;
        *own |= w->needs[in->a] | w->needs[in->b] | w->needs[in->c] | w->needs[in->dyn];
        if (n && n->key && gpu_uses(in, var_of(w, n))) *own |= OF_KEY;
        if (stored_number(w, i)) *own |= w->needs[stored_number(w, i)];
        if (in->op == K_LOAD && is_local(w, in)) {
            int s = store_before(w, in->buf, i);
            if (s) *own |= w->needs[ins(w, s)->a];
        }
        if (in->op != K_UPD) continue;
        if (n && n->acc) {
            w->needs[n->acc] |= *own;
            continue;
        }
        if (!n || !n->key) continue;
        bool max = in->alu == OP_max;
        if (ins(w, (int)in->c)->dtype != TN_F32 || (!max && in->alu != OP_add) || w->n_sums == MOST_SUMS || (max && w->max))
            return step_refuse(w->why, "the scores are combined otherwise than by one maximum and sums of f32");
        w->needs[in->c] = max ? OF_MAX : OF_SUM;
        if (max)
            w->max = in->c, w->max_of = in->a;
        else
            w->sum[w->n_sums] = in->c, w->sum_of[w->n_sums++] = in->a;
    }
    return true;
}

static bool is_free(const row *w, reg r) { return !(w->needs[resolve(w, r)] & (OF_MAX | OF_SUM)); }

/* Both are the same, computed of the same score in two nests. */
static bool same_value(const row *w, reg a, reg b, int depth) {
    a = resolve(w, a), b = resolve(w, b);
    const kins *x = ins(w, (int)a), *y = ins(w, (int)b);
    if (a == b) return true;
    if (!a || !b || x->op != y->op || x->alu != y->alu || x->dtype != y->dtype || x->src != y->src || x->mode != y->mode ||
        x->buf != y->buf || x->imm != y->imm || x->imm_int != y->imm_int || x->dyn_stride != y->dyn_stride ||
        x->dyn_n != y->dyn_n || x->n_mask || y->n_mask || depth > 20)
        return false;
    if (!kernel_is_pure(x) && (x->op != K_LOAD || w->k->bufs.at[x->buf].kind != KB_IN)) return false;
    affine at = x->idx;
    if (w->nest_of[a] && w->nest_of[b])
        at = affine_set_var(w->k->a, at, var_of(w, &w->nests.at[w->nest_of[a] - 1]),
                            affine_var(w->k->a, var_of(w, &w->nests.at[w->nest_of[b] - 1])));
    return affine_equal(at, y->idx) && same_value(w, x->a, y->a, depth + 1) && same_value(w, x->b, y->b, depth + 1) &&
           same_value(w, x->c, y->c, depth + 1) && same_value(w, x->dyn, y->dyn, depth + 1);
}

/* Whether the value is exp(score - max) times what does not depend on the maximum: sums of it can be rescaled. */
static bool is_scaled(const row *w, reg r, int depth) {
    r = resolve(w, r);
    const kins *in = ins(w, (int)r);
    if (!w->max) return is_free(w, r);
    if (in->op != K_ALU || depth > 50) return false;
    if (in->alu == OP_mul && is_free(w, in->a)) return is_scaled(w, in->b, depth + 1);
    if (in->alu == OP_mul || in->alu == OP_div) return is_free(w, in->b) && is_scaled(w, in->a, depth + 1);
    const kins *x = ins(w, (int)resolve(w, in->a));
    return in->alu == OP_exp && x->op == K_ALU && x->alu == OP_sub && resolve(w, x->b) == w->max &&
           same_value(w, x->a, w->max_of, 0);
}

/* Factors of the row, which depend on its sums, leave the weight. */
static bool take_factors(row *w, taker *x) {
    for (reg r = resolve(w, x->weight);; r = resolve(w, r)) {
        const kins *in = ins(w, (int)r);
        bool mul = in->op == K_ALU && in->alu == OP_mul, div = in->op == K_ALU && in->alu == OP_div;
        bool b = (mul || div) && !(w->needs[in->b] & OF_KEY) && !is_free(w, in->b),
             a = mul && !(w->needs[in->a] & OF_KEY) && !is_free(w, in->a);
        x->weight = r;
        if (!a && !b) break;
        if (w->n_factors == MOST_FACTORS) return false;
        w->factor[w->n_factors++] = (factor){ div ? OP_div : OP_mul, b ? in->b : in->a };
        r = b ? in->a : in->b;
    }
    return is_scaled(w, x->weight, 0);
}

static bool find_parts(row *w) {
    if (!read_nests(w) || !find_contractions(w) || !mark_keys(w) || !find_needs(w)) return false;
    for (int n = 0; n < w->n_scores; n++) {
        const nest *x = w->scores[n];
        int first = w->n_values;
        for (int i = x->loop; i < x->end; i++)
            if (ins(w, i)->op == K_STORE) {
                if (w->n_values - first == w->n_last || w->n_values == MOST_VALUES)
                    return step_refuse(w->why, "a contraction of scores stores several values");
                w->value[w->n_values].r = stored_value(w, ins(w, i)), w->value[w->n_values++].store = i;
            }
        bool wide = w->n_values > first && ins(w, x->acc)->dtype == TN_F32;
        for (int v = first; v < w->n_values; v++) wide = wide && ins(w, (int)w->value[v].r)->dtype == TN_F32;
        for (int l = 0; l < w->n_last; l++) wide = wide && ins(w, w->last[l].n->acc)->dtype == TN_F32;
        if (!wide) return step_refuse(w->why, "the contractions are not of f32");
    }
    if (w->n_last > 1 && (w->max || w->n_sums))
        return step_refuse(w->why, "two contractions take what is computed with sums of the scores");
    if (w->max && !is_free(w, w->max_of)) return step_refuse(w->why, "the maximum depends on a sum of the scores");
    bool ok = true;
    for (int l = 0; l < w->n_last; l++) ok = ok && take_factors(w, &w->last[l]);
    for (int s = 0; s < w->n_sums; s++) ok = ok && is_scaled(w, w->sum_of[s], 0);
    if (!ok)
        return step_refuse(w->why, "what is summed is not exp(score - maximum) times factors: it cannot be rescaled when the "
                                   "maximum grows");
    return true;
}

/* ---- writing ---- */

static reg alu(row *w, op_code op, reg a, reg b) { return build_op(w->o, op, a, b); }
static reg number(row *w, double x) { return build_number(w->o, TN_F32, x); }
static kvar open(row *w, const char *name, int64_t n, bool reduce) {
    kvar v = build_loop(w->o, name, n, PAR_SERIAL);
    w->o->vars.at[v].reduce = reduce;
    return v;
}
static reg load(row *w, int buf, kvar v) { return build_load(w->o, buf, affine_var(w->o->a, v), 1); }
static void store(row *w, int buf, kvar v, reg a) { build_store(w->o, buf, affine_var(w->o->a, v), a); }
static int local(row *w, int64_t n) { return build_buffer(w->o, TN_F32, KB_LOCAL, n); }
static bool has_tail(const row *w) { return ext_divisor(w->k->params, w->keys) % w->tile != 0; }

/* The score that v of the tile is, of all. */
static affine key_at(const row *w, kvar v) {
    return affine_add(w->o->a, affine_scale(w->o->a, affine_var(w->o->a, w->step), w->tile), affine_var(w->o->a, v));
}

/* Instruction i with the tile's score for that of loop v; loads of what lies behind the last score give 0. */
static reg copy_at(row *w, int i, kvar v) {
    build_copier c = { w->k, w->o, w->to };
    build_places p = w->places;
    if (v >= 0 && w->at >= 0) {
        build_put(&p, v, key_at(w, w->at));
        if (ins(w, i)->op == K_LOAD && gpu_uses(ins(w, i), v) && has_tail(w)) build_bound(&p, key_at(w, w->at), w->keys, 0);
    }
    return build_copy(&c, i, &p);
}

/* The value in terms of the tile's scores, computed where it is not yet. */
static reg emit(row *w, reg r) {
    r = resolve(w, r);
    if (!r || w->to[r]) return w->to[r];
    for (int v = 0; v < w->n_values; v++)
        if (r == w->value[v].r) return w->to[r] = load(w, w->value[v].buf, w->at);
    const kins *in = ins(w, (int)r);
    emit(w, in->a), emit(w, in->b), emit(w, in->c), emit(w, in->dyn);
    reg of[4] = { in->a, in->b, in->c, in->dyn };
    for (int x = 0; x < 4; x++) w->to[of[x]] = w->to[resolve(w, of[x])];
    int n = w->nest_of[r];
    return copy_at(w, (int)r, n && w->nests.at[n - 1].key ? var_of(w, &w->nests.at[n - 1]) : -1);
}

/* v where there is a score, else what `like` begins with. */
static reg in_tail(row *w, reg v, reg like) {
    if (!has_tail(w)) return v;
    return build_before(w->o, v, ext_hi(w->k->params, w->keys) < INT32_MAX / 2 ? TN_I32 : TN_I64, key_at(w, w->at), 0, w->keys,
                        like);
}

static void begin_nest(row *w, const char *name, int64_t n, bool reduce) {
    memcpy(w->to, w->to_row, sizeof *w->to * (size_t)w->k->ins.n);
    w->at = open(w, name, n, reduce);
}

/* Numbers of the row that a nest of scores loads, and what is computed of these alone: once a row. */
static void write_numbers(row *w, const nest *n) {
    build_copier c = { w->k, w->o, w->to_row };
    for (int i = n->loop + 1; i < n->end; i++) {
        const kins *in = ins(w, i);
        bool inside = n->inner && i >= n->inner && i <= kernel_loop_end(w->k, n->inner);
        bool load = in->op == K_LOAD && w->k->bufs.at[in->buf].kind == KB_IN && !in->dyn && !in->n_mask;
        bool work = in->op == K_ALU && in->a && w->to_row[in->a] && (!in->b || w->to_row[in->b]) && !in->c;
        if (!inside && !w->needs[i] && (load || work)) build_copy(&c, i, &w->places);
    }
}

/* What is the row's own, and does not depend on the scores: as it is. */
static void write_before(row *w) {
    build_copier c = { w->k, w->o, w->to_row };
    for (int i = w->from; i < w->end; i++) {
        const nest *n = w->nest_of[i] ? &w->nests.at[w->nest_of[i] - 1] : NULL;
        if (n && (n->key || n >= w->last[0].n)) {
            if (n->key) write_numbers(w, n);
            i = n->end;
            continue;
        }
        if (!w->needs[i] && resolve(w, (reg)i) != (reg)i) {
            w->to_row[i] = w->to_row[resolve(w, (reg)i)];
            continue;
        }
        if (w->needs[i] || (ins(w, i)->op == K_STORE && !n) || (ins(w, i)->op == K_ACC && i == (int)w->max)) continue;
        build_copy(&c, i, &w->places);
    }
}

static void write_scores(row *w, int which) {
    const nest *n = w->scores[which];
    begin_nest(w, "i", w->tile, false);
    for (int i = n->loop + 1; i < n->end; i++) {
        if (w->to[i]) continue;
        for (int v = 0; v < w->n_values; v++)
            if (w->value[v].store == i) store(w, w->value[v].buf, w->at, w->to[w->value[v].r]);
        if (ins(w, i)->op == K_STORE) continue;
        if (resolve(w, (reg)i) != (reg)i)
            w->to[i] = emit(w, (reg)i);
        else
            copy_at(w, i, var_of(w, n));
    }
    build_ends(w->o, 1);
}

/* The new maximum, what is subtracted for it, and by what the sums so far shrink. */
static void write_maximum(row *w, reg *old) {
    if (!w->max) return;
    reg most = build_acc(w->o, OP_max, TN_F32, -INFINITY, 1);
    begin_nest(w, "r", w->tile, true);
    reg v = in_tail(w, emit(w, w->max_of), most);
    build_update(w->o, OP_max, v, 0, most);
    build_ends(w->o, 1);
    reg next = alu(w, OP_max, *old, most), low = number(w, -INFINITY), none = alu(w, OP_eq, next, low), zero = number(w, 0);
    w->stabiliser = build_select(w->o, none, zero, next);
    w->scale = alu(w, OP_exp, alu(w, OP_sub, *old, w->stabiliser), 0);
    build_update(w->o, OP_NIL, next, 0, *old);
}

/* Every value that is summed or multiplied with, once. */
static void write_weights(row *w) {
    reg of[MOST_SUMS + MOST_LAST];
    for (int s = 0; s < w->n_sums; s++) of[s] = resolve(w, w->sum_of[s]);
    for (int l = 0; l < w->n_last; l++) of[w->n_sums + l] = w->last[l].weight;
    begin_nest(w, "j", w->tile, false);
    w->to[w->max] = w->stabiliser;
    w->to[0] = 0;
    for (int s = 0; s < w->n_sums + w->n_last; s++) {
        int same = 0;
        while (of[same] != of[s]) same++;
        uint8_t dtype = s < w->n_sums ? TN_F32 : w->last[s - w->n_sums].dtype;
        bool narrow = dtype != TN_F32;
        if (same < s && !narrow) {
            w->weight_buf[s] = w->weight_buf[same];
            continue;
        }
        w->weight_buf[s] = build_buffer(w->o, dtype, KB_LOCAL, w->tile);
        store(w, w->weight_buf[s], w->at, in_tail(w, emit(w, of[s]), 0));
    }
    build_ends(w->o, 1);
}

/* Exponentials and sums that the weights are made of, of instructions from `scores` on, those of the weights from `weights` on:
 * with a maximum, what lies between is scores and by what sums shrink. What another function takes is no such factor of a
 * weight: an error of its own grows there. */
static void approximate(row *w, int scores, int weights) {
    kernel *o = w->o;
    bool *taken = ARENA_ARRAY(o->a, bool, o->ins.n), *stored = ARENA_ARRAY(o->a, bool, o->bufs.n + 1);
    for (int i = o->ins.n - 1; i >= scores && w->last[0].dtype != TN_F32; i--) {
        kins *in = &o->ins.at[i];
        bool function = in->op == K_ALU && op_get((op_code)in->alu)->cls == CL_FLT;
        reg of[3] = { in->a, in->b, in->c };
        if (in->op == K_LOAD) stored[in->buf] |= taken[i];
        for (int x = 0; x < 3 && in->op != K_LOAD; x++)
            taken[of[x]] |= in->op == K_STORE ? stored[in->buf] : taken[i] || function;
        bool sum = in->op == K_ALU && (in->alu == OP_add || in->alu == OP_sub);
        if (((function && in->alu == OP_exp) || sum) && in->dtype == TN_F32 && !taken[i] && (i >= weights || !w->max))
            in->mode = w->last[0].dtype == TN_BF16 ? ALU_COARSE : ALU_APPROXIMATE;
    }
}

static void write_sum(row *w, int s, reg total) {
    reg sum = build_acc(w->o, OP_add, TN_F32, 0, 1);
    kvar r = open(w, "r", w->tile, true);
    build_update(w->o, OP_add, load(w, w->weight_buf[s], r), 0, sum);
    build_ends(w->o, 1);
    reg before = w->max ? alu(w, OP_mul, total, w->scale) : total;
    build_update(w->o, OP_NIL, alu(w, OP_add, before, sum), 0, total);
}

/* The contraction goes on from the rescaled sums. */
static void write_products(row *w, const taker *x) {
    const nest *n = x->n;
    const kins *upd = ins(w, n->upd);
    reg other = x->weight_is_a ? upd->b : upd->a;
    int64_t columns = w->k->vars.at[var_of(w, n)].extent;
    begin_nest(w, "c", columns, false);
    kvar c = w->at;
    reg before = load(w, x->out_buf, c);
    if (w->max) before = alu(w, OP_mul, before, w->scale);
    reg acc = build_acc(w->o, OP_add, TN_F32, 0, 1);
    build_update(w->o, OP_add, before, 0, acc);
    w->at = open(w, "k", w->tile, true);
    build_put(&w->places, var_of(w, n), affine_var(w->o->a, c));
    for (int i = n->loop + 1; i < n->upd; i++)
        if (i != n->inner && i != n->acc && (reg)i != x->rounding[0] && (reg)i != x->rounding[1] && (reg)i != x->rounding[2])
            copy_at(w, i, ins(w, n->inner)->var);
    w->places.n = 0;
    reg weight = load(w, w->weight_buf[w->n_sums + (x - w->last)], w->at);
    build_update(w->o, OP_dot, weight, w->to[other], acc);
    build_ends(w->o, 1);
    store(w, x->out_buf, c, acc);
    build_ends(w->o, 1);
}

/* A last contraction's result. */
static void write_result(row *w, const taker *x, const reg *factors) {
    const nest *n = x->n;
    kernel_push(w->o, *ins(w, n->loop));
    for (int i = n->loop + 1; i < n->inner; i++)
        if (i != n->acc) copy_at(w, i, -1);
    reg v = load(w, x->out_buf, var_of(w, n));
    for (int f = 0; f < w->n_factors; f++) v = alu(w, (op_code)w->factor[f].op, v, factors[f]);
    w->to[n->acc] = v;
    for (int i = kernel_loop_end(w->k, n->inner) + 1; i <= n->end; i++) {
        reg r = resolve(w, (reg)i);
        if (r != (reg)i)
            w->to[i] = w->to[r];
        else
            copy_at(w, i, -1);
    }
}

/* The factors of the row, and what came behind the last contraction. */
static void write_after(row *w) {
    reg factors[MOST_FACTORS];
    memcpy(w->to, w->to_row, sizeof *w->to * (size_t)w->k->ins.n);
    w->at = -1;
    for (int f = 0; f < w->n_factors; f++) factors[f] = emit(w, w->factor[f].r);
    for (int i = w->from; i < w->last[0].n->loop; i++) /* of the row */
        if (!w->nest_of[i] && !w->to[i] && !(w->needs[i] & OF_KEY) && ins(w, i)->op != K_ACC) emit(w, (reg)i);
    for (int l = 0; l < w->n_last; l++) write_result(w, &w->last[l], factors);
    for (int i = w->last[w->n_last - 1].n->end + 1; i < w->end; i++) {
        reg r = resolve(w, (reg)i);
        if (r != (reg)i)
            w->to[i] = emit(w, r);
        else if (w->nest_of[i] || ins(w, i)->op == K_ACC)
            copy_at(w, i, -1);
        else if (!w->to[i])
            emit(w, (reg)i);
    }
}

static void write_row(row *w) {
    kernel *o = w->o;
    const kernel *k = w->k;
    for (int i = 1; i < w->from; i++) kernel_push(w->o, *ins(w, i));
    write_before(w);
    reg max = w->max ? build_acc(o, OP_NIL, TN_F32, -INFINITY, 1) : 0;
    for (int s = 0; s < w->n_sums; s++) w->to_row[w->sum[s]] = build_acc(o, OP_NIL, TN_F32, 0, 1);
    for (int v = 0; v < w->n_values; v++) w->value[v].buf = local(w, w->tile);
    for (int l = 0; l < w->n_last; l++) {
        int64_t columns = k->vars.at[var_of(w, w->last[l].n)].extent;
        w->last[l].out_buf = local(w, columns);
        kvar c = open(w, "c", columns, false);
        store(w, w->last[l].out_buf, c, number(w, 0));
        build_ends(w->o, 1);
    }
    w->step = open(w, "kt", w->n_tiles, true);
    int scores = o->ins.n;
    for (int n = 0; n < w->n_scores; n++) write_scores(w, n);
    write_maximum(w, &max);
    int weights = o->ins.n;
    write_weights(w);
    approximate(w, scores, weights);
    for (int s = 0; s < w->n_sums; s++) write_sum(w, s, w->to_row[w->sum[s]]);
    for (int l = 0; l < w->n_last; l++) write_products(w, &w->last[l]);
    build_ends(w->o, 1);
    if (max) w->to_row[w->max] = max;
    write_after(w);
    build_ends(o, w->n_outer);
    bool *used = ARENA_ARRAY(o->a, bool, o->bufs.n + 1);
    for (int i = 1; i < o->ins.n; i++) used[o->ins.at[i].buf] |= o->ins.at[i].op == K_LOAD || o->ins.at[i].op == K_STORE;
    bool *read = ARENA_ARRAY(o->a, bool, o->bufs.n + 1);
    for (int i = 1; i < o->ins.n; i++) read[o->ins.at[i].buf] |= o->ins.at[i].op == K_LOAD;
    for (int b = 0; b < o->bufs.n; b++) {
        if (o->bufs.at[b].kind == KB_LOCAL && !used[b]) o->bufs.at[b].elems = 0;
        if (o->bufs.at[b].kind == KB_INOUT && !read[b]) o->bufs.at[b].kind = KB_OUT; /* the row's own number */
    }
}

bool step_online_softmax(kernel **kk, const loop_step *s, str *why) {
    const kernel *k = gpu_compacted(*kk);
    row w = { .k = k, .why = why, .n_outer = gpu_outer_loops(k), .tile = s->arg[0].n, .at = -1 };
    w.from = 1 + w.n_outer, w.to_row = ARENA_ARRAY(k->a, reg, k->ins.n), w.to = ARENA_ARRAY(k->a, reg, k->ins.n);
    w.nest_of = ARENA_ARRAY(k->a, int, k->ins.n), w.needs = ARENA_ARRAY(k->a, uint8_t, k->ins.n);
    w.end = k->ins.n - w.n_outer;
    if (w.tile < 1 || w.tile > MOST_TILE)
        return step_refuse(why, "tiles of %lld scores: expected 1 to %d", (long long)w.tile, MOST_TILE);
    if (!gpu_can_bind(k, -1, 1, why)) return false;
    for (int i = 1; i < k->ins.n; i++)
        if (k->ins.at[i].op == K_LOOP && (k->ins.at[i].lo != 0 || gpu_may_be_empty(k, i)))
            return step_refuse(why, "loop %s is empty", k->vars.at[k->ins.at[i].var].name);
    if (!find_parts(&w)) return false;
    for (int l = 0; l < w.n_last; l++)
        if (!ext_is_lit(k->vars.at[var_of(&w, w.last[l].n)].extent))
            return step_refuse(why, "a run says how many columns the last contraction has");
    for (int l = 0; l < w.n_last; l++) {
        const kins *taken = ins(&w, (int)w.last[l].rounding[2]);
        w.last[l].dtype = !step_flag(s, "narrow") ? TN_F32 : taken->op == K_WRAP ? taken->src : k->bufs.at[taken->buf].dtype;
    }
    w.n_tiles = ext_ceil_div(k->params, w.keys, w.tile);
    kernel *o = w.o = kernel_clone(k, k->a);
    o->ins.n = 1;
    write_row(&w);
    *kk = o;
    return true;
}
