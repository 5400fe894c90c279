/* lay_out.c - weights of a byte or less, [out,in] or [in,out], become panels of as many results as four vectors, with their
 * scales beside them: lanes are neighbouring results, an input is one number for all of them, and a panel is read from end to
 * end. Panels are the same for any number of rows, so that programs share weights. In and out: scalar form.
 *
 * Along a row of bytes, lanes would be neighbouring inputs, and each vector of weights would be widened (one core of a Zen 4,
 * 128 weights of 4 bits: 22 cycles by rows, 14 by panels, whose bytes are words (step join_bytes)). Not what other kernels read
 * as it lies: it would be in memory twice. A table of tokens that makes the logits, too, is read by row out of these panels. */
#include "loop/lay_out.h"
#include "loop/operand.h"
#include "recipe/register_tile.h"

enum { MOST_VARS = 28, MOST_TABLES = 4 };

/* The only sum, a contraction in f32; 0: there are others. */
static int only_sum(const kernel *k) {
    int upd = 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if (in->op != K_UPD && in->op != K_ARGUPD && in->op != K_SCATTER) continue;
        if (upd || in->op != K_UPD || in->alu != OP_dot || in->dtype != TN_F32) return 0;
        upd = i;
    }
    return upd;
}

/* All that operand x reads along row v is constant, and read by nothing else; marks its buffers. Not what is rounded: many rows
 * multiply by it in words of bf16, which are made before. */
static bool mark_bufs(const kernel *k, const operand *x, kvar v, bool *buf) {
    for (reg r = 1; r <= x->value; r++) {
        const kins *in = &k->ins.at[r];
        if (x->needs[r] && in->op == K_WRAP) return false;
        if (!x->needs[r] || in->op != K_LOAD || !affine_coef(in->idx, v)) continue;
        const kbuf *b = &k->bufs.at[in->buf];
        if (!b->fixed || b->elsewhere || b->panels || in->n_mask || loop_only_load(k, in->buf) != (int)r) return false;
        buf[in->buf] = true;
    }
    return true;
}

/* The table of bytes, or of scales, of which a run says the row, that a value is made of and nothing else; -1: it is not. */
static int table_of(const kernel *k, reg r, bool bytes) {
    const kins *in = &k->ins.at[r];
    while (bytes && (in->op == K_CAST || in->op == K_ALU)) in = &k->ins.at[in->a];
    if (in->op != K_LOAD || !in->dyn || !k->bufs.at[in->buf].fixed || k->bufs.at[in->buf].elsewhere) return -1;
    return (dtype_size((tn_dtype)in->src) == 1) == bytes && (bytes || in->src == TN_F32 || in->src == TN_F16) ? in->buf : -1;
}

/* The table of scales that a value is; of one that is computed of two such tables, which are in the list by themselves, -1. */
static bool find_scales(const kernel *k, reg r, int *out) {
    const kins *mul = &k->ins.at[r];
    *out = table_of(k, r, false);
    return *out >= 0 ||
           (mul->op == K_ALU && mul->alu == OP_mul && table_of(k, mul->a, true) >= 0 && table_of(k, mul->b, false) >= 0);
}

/* Rows of a table of bytes, and of their scales, come from the same panels as where all rows are multiplied by. */
static void lay_out_tables(recipe *r, int64_t width) {
    const char *words = r->t->n_vector_regs >= 32 ? " words" : "";
    int bytes[MOST_TABLES], scales[MOST_TABLES], n = 0;
    for (int i = 1; i < r->k->ins.n; i++) {
        const kins *mul = &r->k->ins.at[i];
        if (mul->op == K_STORE && mul->dtype != TN_F32) return; /* what is rounded is not multiplied in panels */
        if (mul->op != K_ALU || mul->alu != OP_mul || n == MOST_TABLES) continue;
        int q = table_of(r->k, mul->a, true);
        if (q >= 0 && find_scales(r->k, mul->b, &scales[n])) bytes[n++] = q;
    }
    for (int i = 0; i < n; i++)
        if (recipe_try(r, "lay_out_table b%d %lld%s", bytes[i], (long long)width,
                       r->k->bufs.at[bytes[i]].dtype == TN_U8 ? words : "") &&
            scales[i] >= 0)
            recipe_try(r, "lay_out_table b%d %lld", scales[i], (long long)width);
}

void recipe_lay_out(recipe *r) {
    const kernel *k = r->k;
    int upd = r->t->no_panels == PANELS_NEVER || k->vars.n > MOST_VARS ? 0 : only_sum(k);
    kvar v = upd ? recipe_result_row(k) : -1;
    int64_t width = PANEL_VECTORS * r->t->vector_bytes / (int64_t)sizeof(float);
    if (r->t->no_panels != PANELS_NEVER && k->vars.n <= MOST_VARS) lay_out_tables(r, width);
    if (v < 0 || k->vars.at[v].extent % width || k->vars.at[v].role.lanes > 1) return;
    for (int side = 0; side < 2; side++) {
        operand x, other;
        if (!operand_find(k, side ? k->ins.at[upd].b : k->ins.at[upd].a, &x) || x.load == x.value ||
            !operand_find(k, side ? k->ins.at[upd].a : k->ins.at[upd].b, &other) || (other.vars >> v & 1))
            continue;
        const kins *load = &k->ins.at[x.load];
        bool *buf = ARENA_ARRAY(k->a, bool, k->bufs.n + 1), one = true;
        if (dtype_size((tn_dtype)load->src) != 1 || affine_coef(load->idx, v) < 1 || !mark_bufs(k, &x, v, buf)) continue;
        for (kvar u = 0; u < k->vars.n; u++) one = one && (!k->vars.at[u].row || (x.vars >> u & 1));
        const char *name = k->vars.at[v].name;
        int n = k->bufs.n;
        if (!recipe_try(r, "split %s %lld", name, (long long)width)) return;
        for (int b = 0; b < n; b++)
            if (buf[b]) recipe_try(r, "lay_out b%d %s", b, name);
        r->laid_out = true, r->lone = one;
        return;
    }
}
