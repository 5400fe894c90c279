/* kernel_check.c - every problem of a kernel without parameters, in either form, one a line. In: any kernel. Out: text and the
 * number of problems. Scratch lives in the kernel's arena.
 *
 * Three rounds: structure (loops, scopes of registers), then each instruction by itself (lanes, dtypes, buffers), then memory:
 * every index inside its buffer in every iteration, and no two iterations of the parallel loop meeting in one element. Ranges
 * are proven by interval arithmetic where that is enough, else by enumeration (kernel_walk.h). */
#include "ir/boxes.h"
#include "ir/kernel_walk.h"

#include <math.h>
#include <stdio.h>

typedef struct checker {
    const kernel *k;
    str *out;
    int n;
    int *home;    /* [ins] innermost K_LOOP around it, 0 = none */
    int *parent;  /* [ins] K_LOOP: the loop around it */
    bool *closed; /* [ins] K_LOOP: its end has been passed */
    int *open;    /* scratch */
} checker;

static void problem(checker *c, reg r, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void problem(checker *c, reg r, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_addf(c->out, "kernel %s, %%%u: %s\n", c->k->name, r, text);
    c->n++;
}

static const kins *ins(const checker *c, reg r) { return &c->k->ins.at[r]; }

/* The loops around r, outermost first, in c->open; returns how many. After check_structure. */
static int open_loops(checker *c, reg r) {
    int n = 0;
    for (int l = c->home[r]; l > 0; l = c->parent[l]) n++;
    for (int l = c->home[r], i = n; l > 0; l = c->parent[l]) c->open[--i] = l;
    return n;
}

/* ---- structure ---- */

/* Nests dealt as one are perfect; the grid's and the thread blocks' are outermost. */
static void check_bound_loop(checker *c, reg r, int depth, const int *open) {
    const kins *in = ins(c, r);
    bool inner = ins(c, r - 1)->op == K_LOOP && ins(c, r - 1)->par == in->par;
    if (in->step != 1) problem(c, r, "a dealt loop of step %lld", (long long)in->step);
    for (int i = 0; i < depth; i++) {
        bool same = ins(c, (reg)open[i])->par == in->par && depth - i == (int)r - open[i];
        if (in->par != PAR_BLOCK_THREADS && !same) problem(c, r, "the loops bound to the grid are not outermost");
        if (in->par == PAR_BLOCK_THREADS && ins(c, (reg)open[i])->par == PAR_GRID_THREADS)
            problem(c, r, "a loop bound to the threads of a block in one bound to all threads");
    }
    int64_t first, grid_blocks = kernel_nest_blocks(c->k, r, &first);
    if (!inner && in->par == PAR_BLOCKS && kernel_nest_size(c->k, r) != grid_blocks)
        problem(c, r, "%lld iterations for %lld thread blocks", (long long)kernel_nest_size(c->k, r), (long long)grid_blocks);
    if (in->n_blocks && (inner || depth || in->par == PAR_BLOCK_THREADS || c->k->cluster || grid_blocks < 1 || first < 0 ||
                         first > c->k->grid_blocks - grid_blocks))
        problem(c, r, "bound to thread blocks [%lld, %lld) of %lld", (long long)first, (long long)(first + grid_blocks),
                (long long)c->k->grid_blocks);
    if (!inner) return;
    int end = (int)r, nested = 0;
    for (; end < c->k->ins.n; end++) {
        nested += ins(c, (reg)end)->op == K_LOOP;
        if (ins(c, (reg)end)->op == K_END && --nested == 0) break;
    }
    if (end + 1 >= c->k->ins.n || ins(c, (reg)end + 1)->op != K_END) problem(c, r, "a dealt nest is not perfect");
}

static void check_loop(checker *c, reg r, int depth, const int *open) {
    const kins *in = ins(c, r);
    if (in->var < 0 || in->var >= c->k->vars.n) {
        problem(c, r, "variable %d does not exist", in->var);
        return;
    }
    for (int i = 0; i < depth; i++)
        if (ins(c, (reg)open[i])->var == in->var)
            problem(c, r, "variable %s is used by a loop around it", c->k->vars.at[in->var].name);
    if (in->step < 1) problem(c, r, "step %lld", (long long)in->step);
    if (in->step > 1 && in->par != PAR_LAST && (in->hi - in->lo) % in->step)
        problem(c, r, "the last step ends behind %lld", (long long)in->hi);
    if (in->lo < 0 || in->hi > c->k->vars.at[in->var].extent)
        problem(c, r, "runs outside the variable's extent %lld", (long long)c->k->vars.at[in->var].extent);
    if (in->par > (c->k->block_threads ? PAR_BLOCK_THREADS : PAR_LAST) ||
        (c->k->block_threads && in->par && in->par < PAR_GRID_THREADS))
        problem(c, r, "par %d", in->par);
    if (in->par >= PAR_GRID_THREADS) check_bound_loop(c, r, depth, open);
    if (in->par < PAR_GRID_THREADS && in->n_blocks)
        problem(c, r, "bound to %lld thread blocks, and it is not", (long long)in->n_blocks);
    if (in->par && in->par <= PAR_LAST && in->var != c->k->par_var)
        problem(c, r, "parallel loop over another variable than the kernel's");
    if (in->par == PAR_LAST && in->hi != in->lo + in->step && in->hi != in->lo)
        problem(c, r, "the last thread's loop must run once, or not at all");
}

static bool check_structure(checker *c) {
    int depth = 0, before = c->n;
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        c->home[r] = depth ? c->open[depth - 1] : 0;
        if (in->op == K_LOOP) {
            check_loop(c, r, depth, c->open);
            c->open[depth++] = (int)r;
        } else if (in->op == K_END && depth-- == 0) {
            problem(c, r, "no loop to end");
            return false;
        } else if (in->op == K_NIL || in->op >= N_KOPS) {
            problem(c, r, "op code %d", in->op);
        }
    }
    if (depth) problem(c, (reg)c->open[depth - 1], "the loop is not closed");
    return c->n == before;
}

/* ---- instructions ---- */

static bool is_visible(checker *c, reg user, reg r) { /* made before, in a loop that is still open */
    if (r >= user || !kernel_makes(ins(c, r))) return false;
    return c->home[r] == 0 || !c->closed[c->home[r]];
}

/* Operand x of r: visible, of register dtype t, with one lane or as many as asked for. */
static void check_operand(checker *c, reg r, reg x, tn_dtype t, int lanes, const char *what) {
    if (x == 0 || !is_visible(c, r, x)) {
        problem(c, r, "%s %%%u is not computed here", what, x);
        return;
    }
    const kins *in = ins(c, x);
    if (dtype_reg((tn_dtype)in->dtype) != t)
        problem(c, r, "%s %%%u is %s, expected %s", what, x, dtype_name((tn_dtype)in->dtype), dtype_name(t));
    if (in->lanes != 1 && in->lanes != lanes) problem(c, r, "%s %%%u has %d lanes, expected %d", what, x, in->lanes, lanes);
}

static void check_affine(checker *c, reg r, affine x) {
    for (int i = 0; i < x.n; i++) {
        bool found = false;
        for (int l = c->home[r]; l && !found; l = c->parent[l]) found = ins(c, (reg)l)->var == x.t[i].var;
        if (!found) problem(c, r, "variable %d is not that of a loop around it", x.t[i].var);
        if (x.t[i].coef == 0 || (i && x.t[i].var <= x.t[i - 1].var)) problem(c, r, "terms out of order");
    }
}

static void check_accumulator(checker *c, reg r, reg acc, tn_dtype t, int lanes) {
    if (acc == 0 || !is_visible(c, r, acc) || ins(c, acc)->op != K_ACC) {
        problem(c, r, "%%%u is not an accumulator in scope", acc);
        return;
    }
    if (ins(c, acc)->dtype != t)
        problem(c, r, "accumulator %%%u is %s, expected %s", acc, dtype_name((tn_dtype)ins(c, acc)->dtype), dtype_name(t));
    if (ins(c, acc)->lanes != lanes)
        problem(c, r, "accumulator %%%u has %d lanes, expected %d", acc, ins(c, acc)->lanes, lanes);
}

static bool is_identity(op_code op, const kins *acc) {
    bool f = dtype_is_float((tn_dtype)acc->dtype);
    switch (op) {
    case OP_add:
        return f ? acc->imm == 0 : acc->imm_int == 0;
    case OP_mul:
        return f ? acc->imm == 1 : acc->imm_int == 1;
    case OP_max:
        return f ? acc->imm == -INFINITY : acc->imm_int <= 0;
    case OP_min:
        return f ? acc->imm == INFINITY : acc->imm_int >= 0;
    case OP_argmax:
    case OP_argmin:
        return true; /* the index -1 says that there is no best yet */
    case OP_NIL:
        return true; /* what it starts at is not read */
    default:
        return false;
    }
}

static bool is_reg_dtype(uint8_t t) { return t == TN_F32 || t == TN_F64 || t == TN_I32 || t == TN_I64; }

static const kbuf *check_buffer(checker *c, reg r, const kins *in, uint8_t stored) {
    if (in->buf >= c->k->bufs.n) {
        problem(c, r, "buffer %d does not exist", in->buf);
        return NULL;
    }
    const kbuf *b = &c->k->bufs.at[in->buf];
    if (stored != b->dtype)
        problem(c, r, "buffer b%d holds %s, accessed as %s", in->buf, dtype_name((tn_dtype)b->dtype),
                dtype_name((tn_dtype)stored));
    for (int m = 0; m < in->n_mask; m++) check_affine(c, r, in->mask[m].e);
    if (in->n_mask && !in->mask_lane) problem(c, r, "masks without lane strides");
    if (in->n_mask && in->op != K_LOAD && !c->k->block_threads) problem(c, r, "a masked store");
    if (in->op != K_LOAD && b->kind == KB_IN) problem(c, r, "writes b%d, which is declared as read only", in->buf);
    if (!in->dyn) return b;
    tn_dtype t = (tn_dtype)ins(c, in->dyn)->dtype;
    check_operand(c, r, in->dyn, t, in->op == K_SCATTER ? 1 : in->lanes, "index");
    if (t != TN_I32 && t != TN_I64) problem(c, r, "index of dtype %s", dtype_name(t));
    return b;
}

/* Elements in one piece of 4 to 16 bytes, as they lie in memory; what is masked is 0. */
/* Whether the kernel has stored in the buffer when it comes to r, or does so in an iteration before. */
static bool is_stored_before(const kernel *k, reg r, uint16_t buf) {
    int end = (int)r;
    for (int i = 1; i < (int)r; i++) {
        const kins *in = &k->ins.at[i];
        int last = in->op == K_LOOP && in->par == PAR_SERIAL ? kernel_loop_end(k, i) : 0;
        if (last > end) end = last;
    }
    for (int i = 1; i < end; i++)
        if ((k->ins.at[i].op == K_STORE || k->ins.at[i].op == K_SCATTER) && k->ins.at[i].buf == buf) return true;
    return false;
}

static void check_copied(checker *c, reg r, const kins *in, const kbuf *b) {
    const kins *to = r + 1 < (reg)c->k->ins.n ? in + 1 : in;
    bool out = b->kind == KB_SHARED && in->mode == LOAD_BULK;
    bool first = b->kind == KB_INOUT && in->mode == LOAD_ASYNC && !is_stored_before(c->k, r, in->buf);
    int bytes = in->lanes * (int)dtype_size((tn_dtype)in->src);
    bool ok = c->k->block_threads && (b->kind == KB_IN || (out && b->swizzled) || first) && bytes >= 4 && bytes <= 16 &&
              !in->dyn && to->op == K_STORE && to->a == r && to->lanes == in->lanes && to->buf < c->k->bufs.n &&
              c->k->bufs.at[to->buf].kind == (out ? KB_OUT : KB_SHARED) && to->dtype == in->src && !to->dyn &&
              kernel_aligned(c->k, in, in->lanes) && kernel_aligned(c->k, to, in->lanes);
    for (reg i = r + 2; i < (reg)c->k->ins.n && ok; i++) {
        const kins *x = ins(c, i);
        ok = x->a != r && x->b != r && x->c != r && x->dyn != r;
    }
    if (!ok || (in->n_mask && (in->imm != 0 || in->imm_int != 0)))
        problem(c, r, "not copied to shared memory, or in boxes from there, as it is by the next instruction alone");
}

static void check_load(checker *c, reg r, const kins *in) {
    const kbuf *b = check_buffer(c, r, in, in->src);
    bool bytes = in->src == TN_I8 || in->src == TN_U8;
    if (!b) return;
    if (b->kind == KB_OUT) problem(c, r, "reads b%d, which is declared as written only", in->buf);
    if (in->packed && (c->k->block_threads || in->dyn || in->dtype != TN_I32 || !(in->src == TN_BF16 || bytes) ||
                       !(in->packed == 2 || (in->packed == 4 && bytes))))
        problem(c, r, "no words of %d %s", in->packed, dtype_name((tn_dtype)in->src));
    if (!in->packed && in->dtype != dtype_reg((tn_dtype)in->src))
        problem(c, r, "%s is not what %s is loaded as", dtype_name((tn_dtype)in->dtype), dtype_name((tn_dtype)in->src));
    if (in->mode == LOAD_REMATERIALISED && !c->k->block_threads) problem(c, r, "rematerialised, not for a GPU");
    if (in->mode >= LOAD_ASYNC) check_copied(c, r, in, b);
    bool again = in->mode == LOAD_REMATERIALISED && b->kind == KB_LOCAL;
    again |= (in->mode == LOAD_HOISTED || in->mode == LOAD_ASYNC) && b->kind == KB_INOUT && !is_stored_before(c->k, r, in->buf);
    if (in->mode && !again && (in->mode > LOAD_BULK || b->kind != (in->mode == LOAD_BULK && b->swizzled ? KB_SHARED : KB_IN)))
        problem(c, r, "hoisted above what b%d is yet to hold", in->buf);
    if (in->mode == LOAD_UNMASKED && !in->n_mask) problem(c, r, "unmasked, and there is no mask");
}

static void check_store(checker *c, reg r, const kins *in) {
    const kbuf *b = check_buffer(c, r, in, in->dtype);
    if (!b) return;
    if (in->mode == STORE_NONTEMPORAL && (c->k->block_threads || b->kind != KB_OUT || in->lane_stride != 1))
        problem(c, r, "a non-temporal store of what has to be in the caches or is in pieces");
    if (in->mode > STORE_ASYNC || (in->mode == STORE_ASYNC && (b->kind != KB_DISTRIBUTED || b->dtype != TN_F32)))
        problem(c, r, "counts what goes to b%d, which is no f32 memory of a cluster", in->buf);
}

static void check_scatter(checker *c, reg r, const kins *in) {
    const kbuf *b = check_buffer(c, r, in, in->dtype);
    if (b && b->kind == KB_DISTRIBUTED) problem(c, r, "adds to each copy of b%d", in->buf);
    if (!in->dyn) problem(c, r, "scatter without an index");
    if (in->mode > SCATTER_MIN) problem(c, r, "mode %d of a scatter does not exist", in->mode);
}

static bool may_fetch(kbuf_kind kind, bool to_write) { return to_write ? kind == KB_OUT || kind == KB_INOUT : kind != KB_OUT; }

static void check_prefetch(checker *c, reg r, const kins *in) {
    if ((c->k->block_threads && in->mode != PREFETCH_L2) || in->mode > PREFETCH_WRITE || in->buf >= c->k->bufs.n ||
        !may_fetch((kbuf_kind)c->k->bufs.at[in->buf].kind, in->mode == PREFETCH_WRITE) ||
        c->k->bufs.at[in->buf].dtype != in->dtype)
        problem(c, r, "nothing to fetch in b%d", in->buf);
}

static void check_alu(checker *c, reg r, const kins *in) {
    if (in->alu == OP_NIL || in->alu >= N_OPS || !op_is_elementwise((op_code)in->alu)) {
        problem(c, r, "op %d is not elementwise", in->alu);
        return;
    }
    const op_info *op = op_get((op_code)in->alu);
    reg operand[3] = { in->a, in->b, in->c };
    tn_dtype result = op->cls == CL_CMP || op->cls == CL_LOG ? TN_I32 : (tn_dtype)in->src;
    if (in->dtype != result)
        problem(c, r, "%s of %s gives %s, not %s", op->name, dtype_name((tn_dtype)in->src), dtype_name(result),
                dtype_name((tn_dtype)in->dtype));
    for (int i = 0; i < op->arity; i++)
        check_operand(c, r, operand[i], in->alu == OP_select && i == 0 ? TN_I32 : (tn_dtype)in->src, in->lanes, "operand");
    if (in->mode && (in->mode > ALU_COARSE || in->dtype != TN_F32 || !op_is_approximable((op_code)in->alu)))
        problem(c, r, "approximate %s of %s is the same", op->name, dtype_name((tn_dtype)in->dtype));
}

static void check_update(checker *c, reg r, const kins *in) {
    tn_dtype t = in->packed ? TN_I32 : (tn_dtype)in->dtype;
    check_accumulator(c, r, in->c, (tn_dtype)in->dtype, in->lanes);
    check_operand(c, r, in->a, t, in->lanes, "operand");
    if (in->alu == OP_dot) check_operand(c, r, in->b, t, in->lanes, "operand");
    if (in->alu != OP_dot && in->b) problem(c, r, "an update by %s takes no %%%u", kernel_update_name(in->alu), in->b);
    if (in->packed &&
        (c->k->block_threads || in->alu != OP_dot || (in->packed != 2 && (in->packed != 4 || in->dtype != TN_I32)) ||
         (in->dtype != TN_F32 && in->dtype != TN_I32)))
        problem(c, r, "an update of %s by packs of %d", dtype_name((tn_dtype)in->dtype), in->packed);
    if (in->c && ins(c, in->c)->op == K_ACC && (in->alu == OP_dot ? OP_add : in->alu) != ins(c, in->c)->alu)
        problem(c, r, "accumulator %%%u is of %s, updated by %s", in->c, kernel_update_name(ins(c, in->c)->alu),
                kernel_update_name(in->alu));
}

/* Whether all threads of a thread block have the same in register r: numbers of loops that they run together, and what follows.
 */
static bool is_uniform(const checker *c, reg r, int depth) {
    const kins *in = ins(c, r);
    if (in->op == K_CONST) return true;
    if (in->op == K_ALU && depth < 8)
        return is_uniform(c, in->a, depth + 1) && (!in->b || is_uniform(c, in->b, depth + 1)) &&
               (!in->c || is_uniform(c, in->c, depth + 1));
    for (int i = 0; i < in->idx.n && in->op == K_INDEX; i++)
        for (int l = c->home[r]; l; l = c->parent[l])
            if (ins(c, (reg)l)->var == in->idx.t[i].var && ins(c, (reg)l)->par != PAR_BLOCKS &&
                ins(c, (reg)l)->par != PAR_SERIAL)
                return false;
    return in->op == K_INDEX;
}

/* All threads of a thread block come here equally often: the loops around are run by all of them, or give each one its place.
 */
static void check_barrier_place(checker *c, reg r) {
    if (!c->k->block_threads) problem(c, r, "a barrier in a kernel without threads");
    for (int l = c->home[r]; l; l = c->parent[l]) {
        reg head = (reg)l;
        while (ins(c, head - 1)->op == K_LOOP && ins(c, head - 1)->par == ins(c, (reg)l)->par) head--;
        reg condition = ins(c, (reg)l)->a;
        if (condition && (ins(c, condition)->op != K_ALU || !is_uniform(c, condition, 0)))
            problem(c, r, "a barrier in a loop that not all threads run");
        if (ins(c, (reg)l)->par == PAR_GRID_THREADS ||
            (ins(c, (reg)l)->par == PAR_BLOCK_THREADS && kernel_nest_size(c->k, head) != c->k->block_threads))
            problem(c, r, "a barrier in a loop bound to the threads");
    }
}

static bool has_lanes(checker *c, reg r, reg x, int64_t lanes) { return is_visible(c, r, x) && ins(c, x)->lanes == lanes; }

static void check_lane_reduce(checker *c, reg r, const kins *in) {
    if (in->combined < 2 || in->combined > 64 || !has_lanes(c, r, in->a, in->combined))
        problem(c, r, "combines %lld lanes of %%%u", (long long)in->combined, in->a);
    if (in->lanes != 1) problem(c, r, "the result has one lane, not %d", in->lanes);
}

static void check_lanes(checker *c, reg r, const kins *in) {
    if (!is_visible(c, r, in->a) || in->first_lane < 0 || in->first_lane + in->lanes > ins(c, in->a)->lanes)
        problem(c, r, "takes lanes that %%%u does not have", in->a);
}

static void check_zip(checker *c, reg r, const kins *in) {
    int64_t piece = in->piece;
    if (piece < 1 || (piece & (piece - 1)) || 2 * piece > in->lanes || in->mode > ZIP_HIGH ||
        in->lanes * (int)dtype_size((tn_dtype)in->dtype) < 16 || !has_lanes(c, r, in->a, in->lanes) ||
        !has_lanes(c, r, in->b, in->lanes))
        problem(c, r, "interleaves pieces of %lld of %d lanes", (long long)piece, in->lanes);
}

static void check_bitcast(checker *c, reg r, const kins *in) {
    if (in->src >= TN_N_DTYPES || !is_reg_dtype(in->src) || dtype_size((tn_dtype)in->src) != dtype_size((tn_dtype)in->dtype))
        problem(c, r, "the bits of %s are no %s", dtype_name((tn_dtype)in->src), dtype_name((tn_dtype)in->dtype));
}

static void check_wrap(checker *c, reg r, const kins *in) {
    if (dtype_reg((tn_dtype)in->src) != (tn_dtype)in->dtype || in->src == in->dtype)
        problem(c, r, "%s does not wrap to %s", dtype_name((tn_dtype)in->dtype), dtype_name((tn_dtype)in->src));
}

static void check_index(checker *c, reg r, const kins *in) {
    if (dtype_is_float((tn_dtype)in->dtype)) problem(c, r, "an index of dtype %s", dtype_name((tn_dtype)in->dtype));
}

static void check_acc(checker *c, reg r, const kins *in) {
    if (!is_identity((op_code)in->alu, in))
        problem(c, r, "does not start at the identity of %s", in->alu < N_OPS ? op_get((op_code)in->alu)->name : "?");
}

static void check_arg_update(checker *c, reg r, const kins *in) {
    check_accumulator(c, r, in->c, (tn_dtype)in->dtype, in->lanes);
    check_accumulator(c, r, in->b, TN_I64, in->lanes);
    if (in->lane_stride) problem(c, r, "the reduced axis runs along the lanes");
}

static void check_barrier(checker *c, reg r, const kins *in) {
    if (in->mode > (c->k->cluster ? BARRIER_MBARRIER : BARRIER_BLOCK)) problem(c, r, "a cluster barrier without a cluster");
    if (in->mode == BARRIER_MBARRIER && (in->buf >= c->k->bufs.n || c->k->bufs.at[in->buf].kind != KB_DISTRIBUTED))
        problem(c, r, "b%d is of no cluster", in->buf);
}

static void check_block_reduce(checker *c, reg r, const kins *in) {
    int64_t reach = in->width * (in->lane_stride ? in->lane_stride : 1);
    if (in->width < 0 || in->width > c->k->block_threads || (in->width & (in->width - 1)) || in->lane_stride < 0 ||
        (in->lane_stride & (in->lane_stride - 1)) || reach > c->k->block_threads || (in->lane_stride && !in->width) ||
        (in->b && in->width))
        problem(c, r, "combines %lld of %d threads", (long long)in->width, c->k->block_threads);
    if (in->b) check_operand(c, r, in->b, dtype_reg((tn_dtype)in->dtype), 1, "operand");
}

static void check_block_argreduce(checker *c, reg r, const kins *in) {
    if (in->dtype != TN_I64) problem(c, r, "an index of dtype %s", dtype_name((tn_dtype)in->dtype));
    if (!is_reg_dtype(in->src)) problem(c, r, "values of dtype %s", dtype_name((tn_dtype)in->src));
}

static bool is_of_warpgroups(const checker *c) { return c->k->block_threads && c->k->block_threads % KERNEL_WARPGROUP == 0; }

/* Units read 8 rows of 128 bytes, from a multiple of that on, or one of its steps. */
static void check_matrix(checker *c, reg r, const kins *in) {
    const kbuf *b = in->buf < c->k->bufs.n ? &c->k->bufs.at[in->buf] : NULL;
    int64_t rows = 8 * KERNEL_MATRIX, step = in->idx.base % rows;
    bool ok = b && b->kind == KB_SHARED && b->swizzled && in->mode <= MN_MAJOR && in->dtype == TN_I64 && in->lanes == 1;
    ok = ok && (step == 0 || (in->mode == K_MAJOR && step < KERNEL_MATRIX && step % KERNEL_MATRIX_STEPS == 0));
    for (int i = 0; i < in->idx.n; i++) ok = ok && in->idx.t[i].coef % rows == 0;
    if (!ok) problem(c, r, "no matrix for the units in b%d", in->buf);
}

static void check_fragment(checker *c, reg r, const kins *in) {
    if (!is_of_warpgroups(c) || in->dtype != TN_I64 || in->lanes != KERNEL_FRAGMENT ||
        (in->src != TN_F16 && in->src != TN_BF16) || !is_visible(c, r, in->a) || ins(c, in->a)->dtype != TN_F32 ||
        in->first_lane < 0 || in->first_lane + KERNEL_FRAGMENT > ins(c, in->a)->lanes)
        problem(c, r, "%%%u has no fragment of f16 or bf16 from lane %lld on for warpgroups of %d", in->a,
                (long long)in->first_lane, KERNEL_WARPGROUP);
}

static void check_put(checker *c, reg r, const kins *in) {
    const kins *acc = ins(c, in->c);
    check_accumulator(c, r, in->c, (tn_dtype)in->dtype, acc->lanes);
    if (!c->k->block_threads || in->first_lane < 0 || in->first_lane + in->lanes > acc->lanes)
        problem(c, r, "puts %d lanes at lane %lld of %%%u", in->lanes, (long long)in->first_lane, in->c);
}

static void check_mma(checker *c, reg r, const kins *in) {
    const kins *a = ins(c, in->a), *b = ins(c, in->b);
    check_accumulator(c, r, in->c, TN_F32, in->lanes);
    check_barrier_place(c, r);
    if (!is_of_warpgroups(c) || in->dtype != TN_F32 || in->lanes < 4 || !is_visible(c, r, in->a) || !is_visible(c, r, in->b) ||
        (a->op != K_MATRIX && a->op != K_FRAGMENT) || b->op != K_MATRIX ||
        kernel_mma_dtype(c->k, a) != kernel_mma_dtype(c->k, b))
        problem(c, r, "multiplies %%%u and %%%u by %d threads: expected two matrices and warpgroups of %d", in->a, in->b,
                c->k->block_threads, KERNEL_WARPGROUP);
}

static void check_async(checker *c, reg r, const kins *in) {
    if (!c->k->block_threads || in->mode > ASYNC_PRODUCTS || in->pending < 0 || (in->mode == ASYNC_COMMIT && in->pending))
        problem(c, r, "nothing to wait for");
}

static void check_nothing(checker *c, reg r, const kins *in) { (void)c, (void)r, (void)in; }

typedef void (*check_fn)(checker *c, reg r, const kins *in);
static const check_fn check_row[N_KOPS] = {
    [K_NIL] = check_nothing,
#define KERNEL_INS(op, text, flags, uses, check, eval) [K_##op] = check_##check,
#include "ir/kernel.def"
};

/* The registers that the row says it needs. */
static void check_uses(checker *c, reg r, const kins *in) {
    const kop_info *op = kop_get(in->op);
    for (size_t i = 0; i < COUNT_OF(op->uses) && op->uses[i].type != USE_NONE; i++) {
        const kuse *u = &op->uses[i];
        reg x = *(const reg *)(const void *)((const char *)in + u->at);
        tn_dtype t = u->type == USE_I64 ? TN_I64 : dtype_reg((tn_dtype)(u->type == USE_SRC ? in->src : in->dtype));
        check_operand(c, r, x, t, u->lanes == USE_ANY ? ins(c, x)->lanes : u->lanes == USE_ONE ? 1 : in->lanes, "operand");
    }
}

static void check_ins(checker *c, reg r) {
    const kins *in = ins(c, r);
    bool fragment = in->op == K_ACC || in->op == K_MMA; /* of matrix units */
    int most = !c->k->tiled ? 1 : fragment ? 128 : 64;
    if (in->dtype >= TN_N_DTYPES || in->src >= TN_N_DTYPES) {
        problem(c, r, "dtype %d, %d", in->dtype, in->src);
        return;
    }
    if (in->lanes < 1 || in->lanes > most || (in->lanes & (in->lanes - 1))) problem(c, r, "%d lanes", in->lanes);
    if (in->a >= (reg)c->k->ins.n || in->b >= (reg)c->k->ins.n || in->c >= (reg)c->k->ins.n || in->dyn >= (reg)c->k->ins.n) {
        problem(c, r, "operand out of range");
        return;
    }
    check_affine(c, r, in->idx);
    if (kernel_makes(in) && in->op != K_CAST && !is_reg_dtype(in->dtype))
        problem(c, r, "%s is no dtype of registers", dtype_name((tn_dtype)in->dtype));
    if (kernel_syncs(in)) check_barrier_place(c, r);
    check_row[in->op](c, r, in);
    check_uses(c, r, in);
}

static void check_instructions(checker *c) {
    int depth = 0;
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        if (in->op == K_LOOP) {
            if (in->a && in->par) problem(c, r, "a condition of a loop that is dealt");
            if (in->a && !c->k->block_threads && ins(c, in->a)->op != K_ALU) problem(c, r, "a condition that is no comparison");
            if (in->a) check_operand(c, r, in->a, TN_I32, 1, "condition");
            c->parent[r] = depth ? c->open[depth - 1] : 0;
            c->open[depth++] = (int)r;
        } else if (in->op == K_END) {
            c->closed[c->open[--depth]] = true;
        } else {
            check_ins(c, r);
        }
    }
}

/* ---- memory ---- */

typedef struct bounds {
    int64_t lo, hi, n; /* elements touched; length of the buffer */
    int64_t reach;     /* of a dynamic index */
    bool bad;
    int64_t worst;
} bounds;

static void visit_bounds(const visit_at *v, void *ud) {
    bounds *b = ud;
    int64_t lo = v->at + (b->reach < 0 ? b->reach : 0), hi = v->at + (b->reach > 0 ? b->reach : 0);
    if (lo >= 0 && hi < b->n) return;
    b->bad = true;
    b->worst = lo < 0 ? lo : hi;
}

/* Range of x over the open loops, from above; rows do not count in local memory of the scalar form. */
static void affine_range(const checker *c, affine x, const int *open, int n_open, bool local, int64_t *lo, int64_t *hi) {
    *lo = *hi = x.base;
    for (int i = 0; i < n_open; i++) {
        const kins *loop = ins(c, (reg)open[i]);
        int64_t coef = affine_coef(x, loop->var), last = loop->lo;
        if (loop->par != PAR_LAST) last = loop->lo + (loop->hi - loop->lo - 1) / loop->step * loop->step;
        if (coef == 0 || (local && c->k->vars.at[loop->var].row)) continue;
        *lo += coef * (coef < 0 ? last : loop->lo);
        *hi += coef * (coef < 0 ? loop->lo : last);
    }
}

static bool never_runs(const checker *c, const int *open, int n_open) {
    for (int i = 0; i < n_open; i++)
        if (ins(c, (reg)open[i])->lo >= ins(c, (reg)open[i])->hi) return true;
    return false;
}

/* All of matrix x's rows, at a multiply. */
static void check_matrix_bounds(checker *c, reg r, reg x, int64_t rows) {
    const kins *in = ins(c, x);
    int64_t lo, hi, n = c->k->bufs.at[in->buf].elems, last = kernel_matrix_place(in, rows - 1, KERNEL_MATRIX_STEPS - 1);
    affine_range(c, in->idx, c->open, open_loops(c, x), false, &lo, &hi);
    if (rows > KERNEL_MATRIX && rows % KERNEL_MATRIX) last = n;
    if (lo < 0 || hi + last >= n)
        problem(c, r, "touches element %lld of b%d, which has %lld", (long long)(hi + last), in->buf, (long long)n);
}

static void check_bounds(checker *c, reg r, int n_open) {
    const kins *in = ins(c, r);
    bool local = !c->k->tiled && c->k->bufs.at[in->buf].kind == KB_LOCAL;
    bounds b = { .n = c->k->bufs.at[in->buf].elems, .reach = in->dyn ? (in->dyn_n - 1) * in->dyn_stride : 0 };
    if (never_runs(c, c->open, n_open) || (in->op == K_SCATTER && in->dyn_n <= 0)) return;
    affine_range(c, in->idx, c->open, n_open, local, &b.lo, &b.hi);
    int64_t along = (in->lanes - 1) * in->lane_stride;
    int64_t parts = in->packed ? (in->packed - 1) * in->packed_stride : 0;
    b.lo += (along < 0 ? along : 0) + (b.reach < 0 ? b.reach : 0) + (parts < 0 ? parts : 0);
    b.hi += (along > 0 ? along : 0) + (b.reach > 0 ? b.reach : 0) + (parts > 0 ? parts : 0);
    if (b.lo >= 0 && b.hi < b.n) return;
    kernel_walk(c->k, r, c->open, n_open, visit_bounds, &b);
    if (b.bad) problem(c, r, "touches element %lld of b%d, which has %lld", (long long)b.worst, in->buf, (long long)b.n);
}

/* ---- races ---- */

typedef struct owners { /* which iteration of the parallel loop wrote each element */
    int32_t *of;
    int64_t n;
    const kins *loop, *in;
    int32_t first; /* id of the loop's first iteration */
    bool store, clash;
} owners;

static void visit_owner(const visit_at *v, void *ud) {
    owners *o = ud;
    int32_t id = o->first + (int32_t)((v->var[o->loop->var] - o->loop->lo) / o->loop->step);
    for (int64_t d = 0; d < (o->in->dyn ? o->in->dyn_n : 1); d++) {
        int64_t at = v->at + d * o->in->dyn_stride;
        if (at < 0 || at >= o->n) continue;
        if (o->of[at] && o->of[at] != id) o->clash = true;
        if (o->store) o->of[at] = id;
    }
}

static const kins *parallel_loop(const checker *c, const int *open, int n_open) {
    for (int i = 0; i < n_open; i++)
        if (ins(c, (reg)open[i])->par) return ins(c, (reg)open[i]);
    return NULL;
}

static bool touches(const kins *in, int b, bool store) {
    return in->buf == b && (store ? in->op == K_STORE || in->op == K_SCATTER : in->op == K_LOAD);
}

/* All accesses step by one coefficient of the parallel variable that is wider than everything else: no enumeration is needed.
 */
static bool rows_apart(checker *c, int b) {
    int64_t coef = 0, lo = 0, hi = 0, step = INT64_MAX;
    bool any = false;
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        if (!touches(in, b, true) && !touches(in, b, false)) continue;
        int n_open = open_loops(c, r);
        const kins *loop = parallel_loop(c, c->open, n_open);
        if (!loop || in->dyn || in->n_mask) return false;
        if (never_runs(c, c->open, n_open)) continue;
        affine rest = affine_set_var(c->k->a, in->idx, loop->var, affine_const(0));
        int64_t cf = affine_coef(in->idx, loop->var), l, h, along = (in->lanes - 1) * in->lane_stride;
        if (cf == 0 || (any && cf != coef)) return false;
        affine_range(c, rest, c->open, n_open, false, &l, &h);
        if (in->packed) return false;
        l += along < 0 ? along : 0, h += along > 0 ? along : 0;
        lo = any && lo < l ? lo : l, hi = any && hi > h ? hi : h;
        if (loop->par == PAR_THREADS && loop->step < step) step = loop->step;
        coef = cf, any = true;
    }
    return !any || step == INT64_MAX || hi - lo < (coef < 0 ? -coef : coef) * step;
}

static void check_races(checker *c, int b) {
    owners o = { .n = c->k->bufs.at[b].elems };
    if (o.n == 0 || rows_apart(c, b)) return;
    o.of = ARENA_ARRAY(c->k->a, int32_t, o.n);
    for (int round = 0; round < 2; round++) { /* writes, then reads */
        int32_t *first = ARENA_ARRAY(c->k->a, int32_t, c->k->ins.n), next = 1;
        for (reg r = 1; r < (reg)c->k->ins.n; r++) {
            const kins *in = ins(c, r);
            if (in->op == K_LOOP && in->par) {
                first[r] = next;
                next += (int32_t)(in->hi > in->lo ? (in->hi - in->lo + in->step - 1) / in->step : 0);
            }
            if (!touches(in, b, round == 0)) continue;
            int n_open = open_loops(c, r);
            o.loop = parallel_loop(c, c->open, n_open), o.in = in, o.store = round == 0, o.clash = false;
            if (!o.loop && round == 0) problem(c, r, "b%d is written outside the parallel loop", b);
            if (!o.loop) continue;
            o.first = first[o.loop - c->k->ins.at];
            bool many = o.loop->par == PAR_THREADS && o.loop->hi - o.loop->lo > o.loop->step;
            if (many && affine_coef(in->idx, o.loop->var) == 0 && round == 0 && !never_runs(c, c->open, n_open))
                problem(c, r, "every iteration of the parallel loop writes the same elements of b%d", b);
            kernel_walk(c->k, r, c->open, n_open, visit_owner, &o);
            if (o.clash) problem(c, r, "two iterations of the parallel loop touch the same element of b%d", b);
        }
    }
}

/* ---- races between thread blocks ---- */

enum { NEST_BITS = 32 }; /* of an iteration's number */

typedef struct group_owner { /* which thread block touched each element; in a grid, which of its iterations */
    const kernel *k;
    const kins *first, *in; /* of the dealt nest; the access */
    int n;
    int64_t *of, elems, base; /* base: ids of nests for other thread blocks are others */
    bool store, clash;
} group_owner;

static void visit_group(const visit_at *v, void *ud) {
    group_owner *o = ud;
    int64_t id = 0;
    for (int i = 0; i < o->n; i++) id = id * (o->first[i].hi - o->first[i].lo) + v->var[o->first[i].var] - o->first[i].lo;
    for (int64_t d = 0; d < (o->in->dyn ? o->in->dyn_n : 1); d++) {
        int64_t at = v->at + d * o->in->dyn_stride;
        if (at < 0 || at >= o->elems) continue;
        if (o->of[at] && o->of[at] != o->base + id + 1) o->clash = true;
        if (o->store) o->of[at] = o->base + id + 1;
    }
}

static bool is_masked_by(const kins *in, kvar v) {
    for (int m = 0; m < in->n_mask; m++)
        if (affine_coef(in->mask[m].e, v)) return true;
    return false;
}

static int64_t size_of(int64_t x) { return x < 0 ? -x : x; }

/* Digits of an index: it is the sum of them, each times its unit, where units divide the next ones. */
enum { MOST_DIGITS = 20 };

static bool in_digit(int64_t coef, int64_t unit, int64_t next) { return size_of(coef) >= unit && size_of(coef) < next; }

/* Whether the mask is over the terms that the access has in the digit, and no others. */
static bool bounds_digit(const checker *c, const kins *in, int m, int64_t unit, int64_t next) {
    for (kvar v = 0; v < c->k->vars.n; v++) {
        int64_t coef = affine_coef(in->idx, v);
        if (affine_coef(in->mask[m].e, v) * unit != (in_digit(coef, unit, next) ? coef : 0)) return false;
    }
    return in->mask_lane[m] * unit == (in->lanes > 1 && in_digit(in->lane_stride, unit, next) ? in->lane_stride : 0);
}

/* What an access has there, over its loops open[0] .. open[n_open - 1]; masks count where these are all of them. */
static void digit_range(const checker *c, const kins *in, const int *open, int n_open, bool all, int64_t unit, int64_t next,
                        int64_t *lo, int64_t *hi) {
    affine x = in->idx;
    kterm *terms = ARENA_ARRAY(c->k->a, kterm, x.n + 1);
    int64_t base = next < INT64_MAX ? (x.base % next + next) % next : x.base,
            along = in->lanes > 1 && in_digit(in->lane_stride, unit, next) ? (in->lanes - 1) * (in->lane_stride / unit) : 0;
    affine part = { .base = base / unit - (base % unit < 0), .t = terms };
    for (int i = 0; i < x.n; i++)
        if (in_digit(x.t[i].coef, unit, next)) terms[part.n++] = (kterm){ x.t[i].var, x.t[i].coef / unit };
    affine_range(c, part, open, n_open, false, lo, hi);
    *lo += along < 0 ? along : 0, *hi += along > 0 ? along : 0;
    for (int m = 0; m < in->n_mask && all; m++) {
        int64_t shift = part.base - in->mask[m].e.base;
        if (!bounds_digit(c, in, m, unit, next)) continue;
        if (*lo < in->mask[m].lo + shift) *lo = in->mask[m].lo + shift;
        if (*hi > in->mask[m].hi - 1 + shift) *hi = in->mask[m].hi - 1 + shift;
    }
}

/* Whether what has smaller coefficients than `next` stays below it, in all accesses, and `next` divides all others. */
static bool is_unit(checker *c, int b, int64_t unit, int64_t next) {
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        int64_t lo, hi;
        if (!touches(in, b, true) && !touches(in, b, false)) continue;
        int n_open = open_loops(c, r);
        if (never_runs(c, c->open, n_open)) continue;
        for (int i = 0; i < in->idx.n; i++)
            if (size_of(in->idx.t[i].coef) >= next && in->idx.t[i].coef % next) return false;
        if (in->lanes > 1 && size_of(in->lane_stride) >= next && in->lane_stride % next) return false;
        digit_range(c, in, c->open, n_open, true, unit, next, &lo, &hi);
        if (lo < 0 || hi >= next / unit) return false;
    }
    return true;
}

/* The units, ascending, ended by INT64_MAX: 1, and coefficients of the access `in`, such as what is from row to row. Large ones
 * first: a mask bounds all that is within a row. */
static int find_units(checker *c, int b, const kins *in, int64_t *unit) {
    int n = 1;
    unit[0] = 1, unit[1] = INT64_MAX;
    while (n < MOST_DIGITS) {
        int64_t best = 0;
        int at = 0;
        for (int i = 0; i < in->idx.n; i++) {
            int64_t coef = size_of(in->idx.t[i].coef);
            int d = 0;
            while (unit[d] <= coef) d++;
            if (coef > best && coef > unit[d - 1] && coef % unit[d - 1] == 0 && is_unit(c, b, unit[d - 1], coef))
                best = coef, at = d;
        }
        if (!best) break;
        memmove(unit + at + 1, unit + at, (size_t)(n + 1 - at) * sizeof *unit);
        unit[at] = best, n++;
    }
    return n;
}

/* All accesses are in one dealt nest and step by the same coefficients of its variables, each of which is wider than all that
 * smaller ones and the loops inside reach, in its digit: its iterations touch different elements, and no enumeration is
 * needed. */
static bool blocks_apart(checker *c, int b) {
    const kins *nest = NULL, *one = NULL;
    int64_t unit[MOST_DIGITS + 1];
    int n = 0;
    for (reg r = 1; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        if (!touches(in, b, true) && !touches(in, b, false)) continue;
        int n_open = open_loops(c, r);
        if (never_runs(c, c->open, n_open)) continue;
        const kins *first = n_open ? ins(c, (reg)c->open[0]) : NULL;
        if (!first || first->par == PAR_SERIAL || first->par == PAR_BLOCK_THREADS || in->dyn || in->packed) return false;
        if (nest && first != nest) return false;
        if (!nest) n = kernel_nest(c->k, (reg)c->open[0]), one = in;
        for (int i = 0; i < n; i++)
            if (affine_coef(in->idx, first[i].var) != affine_coef(one->idx, first[i].var)) return false;
        nest = first;
    }
    int n_units = one ? find_units(c, b, one, unit) : 0;
    for (int d = 0; d < n_units; d++) {
        int64_t lo = INT64_MAX, hi = INT64_MIN, l, h;
        for (reg r = 1; r < (reg)c->k->ins.n; r++) {
            if (!touches(ins(c, r), b, true) && !touches(ins(c, r), b, false)) continue;
            int n_open = open_loops(c, r);
            if (never_runs(c, c->open, n_open)) continue;
            digit_range(c, ins(c, r), c->open + n, n_open - n, false, unit[d], unit[d + 1], &l, &h);
            lo = l < lo ? l : lo, hi = h > hi ? h : hi;
        }
        for (int i = 0; i < n; i++) {
            int64_t coef = size_of(affine_coef(one->idx, nest[i].var)), reach = hi - lo;
            if (nest[i].hi - nest[i].lo <= 1 || (coef && !in_digit(coef, unit[d], unit[d + 1]))) continue;
            for (int j = 0; j < n; j++) {
                int64_t other = size_of(affine_coef(one->idx, nest[j].var));
                if (j != i && other <= coef && in_digit(other, unit[d], unit[d + 1]))
                    reach += other / unit[d] * (nest[j].hi - nest[j].lo - 1);
            }
            if (coef / unit[d] <= reach) return false;
        }
    }
    return true;
}

static void check_block_races(checker *c, int b) {
    group_owner o = { .k = c->k, .elems = c->k->bufs.at[b].elems };
    reg nest = 0;
    for (reg r = 1; r < (reg)c->k->ins.n && !nest; r++)
        if (ins(c, r)->op == K_LOOP && (ins(c, r)->par == PAR_GRID_THREADS || ins(c, r)->par == PAR_BLOCKS)) nest = r;
    if (c->k->grid_blocks <= 1 && !(nest && ins(c, nest)->par == PAR_GRID_THREADS)) return;
    if (!o.elems || blocks_apart(c, b)) return;
    o.of = ARENA_ARRAY(c->k->a, int64_t, o.elems);
    for (int store = 1; store >= 0; store--)
        for (reg r = 1; r < (reg)c->k->ins.n; r++) {
            const kins *in = ins(c, r);
            if (!touches(in, b, store)) continue;
            int n_open = open_loops(c, r);
            if (never_runs(c, c->open, n_open)) continue;
            bool inside =
                n_open && ins(c, (reg)c->open[0])->par != PAR_SERIAL && ins(c, (reg)c->open[0])->par != PAR_BLOCK_THREADS;
            if (!inside || (in->dyn && in->op == K_LOAD)) {
                if (store) problem(c, r, "b%d is written by all thread blocks", b);
                continue;
            }
            o.first = ins(c, (reg)c->open[0]), o.n = kernel_nest(c->k, (reg)c->open[0]), o.in = in, o.store = store,
            o.clash = false, kernel_nest_blocks(c->k, (reg)c->open[0], &o.base), o.base <<= NEST_BITS;
            for (int i = 0; i < o.n; i++)
                o.clash |= o.first[i].hi - o.first[i].lo > 1 && affine_coef(in->idx, o.first[i].var) == 0 &&
                           !is_masked_by(in, o.first[i].var); /* those that it leaves out are not walked to */
            if (!o.clash) kernel_walk(c->k, r, c->open, n_open, visit_group, &o);
            if (o.clash) problem(c, r, "two thread blocks touch the same element of b%d", b);
        }
}

/* ---- the thread blocks of a cluster ---- */

typedef struct touched { /* [bufs] by some thread block of the cluster since all met */
    bool *wrote, *async; /* by other stores; by counted ones */
    bool *read, *over;   /* over: the thread block has met since */
    int *cover;          /* and then written this one by asynchronous stores, plus 1: who has all of that knows */
    bool *told;          /* [ins] the problem there */
} touched;

static void cluster_problem(checker *c, reg r, touched *t, const char *what) {
    if (!t->told[r]) problem(c, r, "b%d is %s before the cluster has met", ins(c, r)->buf, what);
    t->told[r] = true;
}

static void cluster_syncs(const checker *c, const kins *in, touched *t) {
    for (int b = 0; b < c->k->bufs.n; b++) {
        if (in->mode == BARRIER_BLOCK && t->read[b]) t->over[b] = true;
        if (in->mode == BARRIER_CLUSTER) t->wrote[b] = t->read[b] = false;
        if (in->mode == BARRIER_MBARRIER && t->cover[b] == in->buf + 1) t->read[b] = false;
        if (in->mode == BARRIER_MBARRIER && b == in->buf) t->async[b] = false;
    }
}

/* Whether some thread runs more than one iteration. */
static bool is_repeated(const checker *c, reg loop) {
    const kins *in = ins(c, loop);
    if (in->par == PAR_SERIAL) return in->hi > in->lo + in->step;
    while (ins(c, loop - 1)->op == K_LOOP && ins(c, loop - 1)->par == in->par) loop--;
    return in->par == PAR_BLOCK_THREADS && kernel_nest_size(c->k, loop) > c->k->block_threads;
}

/* What one thread block writes, others read, and write again, only after a meeting. Bodies of loops are gone through twice: an
 * iteration follows another. */
static void check_cluster_range(checker *c, reg from, reg to, touched *t) {
    for (reg r = from; r < to; r++) {
        const kins *in = ins(c, r);
        bool memory = in->op == K_LOAD || in->op == K_STORE;
        if (in->op == K_BARRIER) {
            cluster_syncs(c, in, t);
        } else if (in->op == K_LOOP) {
            reg end = r + 1;
            for (int depth = 1; depth > 0; end++) depth += (ins(c, end)->op == K_LOOP) - (ins(c, end)->op == K_END);
            for (int i = 0; i < 2 && in->hi > in->lo; i++)
                if (i == 0 || is_repeated(c, r)) check_cluster_range(c, r + 1, end - 1, t);
            r = end - 1;
        } else if (memory && c->k->bufs.at[in->buf].kind == KB_DISTRIBUTED) {
            if (in->op == K_LOAD && (t->wrote[in->buf] || t->async[in->buf])) cluster_problem(c, r, t, "read");
            if (in->op == K_STORE && t->read[in->buf]) cluster_problem(c, r, t, "written");
            if (in->op == K_LOAD)
                t->read[in->buf] = true, t->over[in->buf] = false, t->cover[in->buf] = 0;
            else
                *(in->mode == STORE_ASYNC ? &t->async[in->buf] : &t->wrote[in->buf]) = true;
            for (int b = 0; b < c->k->bufs.n && in->op == K_STORE && in->mode == STORE_ASYNC; b++)
                if (t->over[b] && t->read[b]) t->cover[b] = in->buf + 1;
        }
    }
}

static void check_cluster(checker *c) {
    const kernel *k = c->k;
    int n = k->bufs.n + 1;
    touched t = { ARENA_ARRAY(k->a, bool, n), ARENA_ARRAY(k->a, bool, n), ARENA_ARRAY(k->a, bool, n),
                  ARENA_ARRAY(k->a, bool, n), ARENA_ARRAY(k->a, int, n),  ARENA_ARRAY(k->a, bool, k->ins.n) };
    if (k->cluster && (!k->block_threads || k->cluster < 2 || k->cluster > KERNEL_MOST_CLUSTER || k->grid_blocks % k->cluster))
        problem(c, 0, "%lld thread blocks in clusters of %d", (long long)k->grid_blocks, k->cluster);
    for (int b = 0; b < k->bufs.n; b++)
        if (k->bufs.at[b].kind == KB_DISTRIBUTED && !k->cluster) problem(c, 0, "b%d is of a cluster, and there is none", b);
    if (k->cluster) check_cluster_range(c, 1, (reg)k->ins.n, &t);
    for (int b = 0; b < k->bufs.n && k->cluster; b++)
        if (t.wrote[b] || t.async[b]) problem(c, 0, "a thread block may end before another has written its copy of b%d", b);
}

/* What lies late is touched when nothing else of the thread block's memory is any more: products are done, and all threads have
 * met since. A thread block begins anew where loops over thread blocks do. */
static void check_late(checker *c) {
    bool late = false, early = false, products = false;
    for (reg r = 1, again = 0; r < (reg)c->k->ins.n; r++) {
        const kins *in = ins(c, r);
        if (in->op == K_LOOP && in->par == PAR_BLOCKS && ins(c, r - 1)->op != K_LOOP) late = early = products = false;
        if (in->op == K_LOOP && is_repeated(c, r) && again <= r) again = (reg)kernel_loop_end(c->k, (int)r);
        if (in->op == K_MMA) products = true;
        if (in->op == K_ASYNC && in->mode == ASYNC_PRODUCTS && !in->pending) products = false;
        if (in->op == K_BARRIER && !products) early = false;
        if (!kernel_has_buffer(in) || c->k->bufs.at[in->buf].kind < KB_SHARED) continue;
        if (c->k->bufs.at[in->buf].late ? early || r < again : late)
            problem(c, r, "b%d and what lies in the same place are needed at a time", in->buf);
        *(c->k->bufs.at[in->buf].late ? &late : &early) = true;
    }
}

/* What lies in panels no kernel writes, and has the elements that its layout has. */
static void check_panels(checker *c, int b) {
    const kbuf *buf = &c->k->bufs.at[b];
    const kpanels *x = buf->panels;
    int64_t n = x->column.extent;
    bool ok = !x->padded || size_add(n, x->width - 1, &n);
    if (x->padded) n = n / x->width * x->width;
    for (int i = 0; i < x->n_outer + x->n_depth; i++) ok = ok && size_mul(n, x->loops[i].extent, &n);
    if (!ok || n != buf->elems) problem(c, 0, "b%d has %lld elements, its panels have others", b, (long long)buf->elems);
    if (buf->kind != KB_IN || !buf->fixed) problem(c, 0, "b%d lies in panels, and runs may change it", b);
    if (buf->dtype != (x->packed ? TN_I32 : x->dtype) || x->packed * dtype_size((tn_dtype)x->dtype) > sizeof(uint32_t))
        problem(c, 0, "b%d of %s has panels of %d x %s", b, dtype_name((tn_dtype)buf->dtype), x->packed,
                dtype_name((tn_dtype)x->dtype));
    if (buf->panels_of < 0 || buf->panels_of >= c->k->bufs.n)
        problem(c, 0, "b%d has the value of b%d, which there is not", b, buf->panels_of);
}

static void check_boxes(checker *c) {
    str why;
    kmaps maps;
    int stages;
    str_init(&why, c->k->a);
    if (!kernel_maps(c->k, &maps, &stages, &why)) problem(c, 0, "%s", why.s);
    kturns turns;
    why.n = 0;
    if (c->k->turns && !kernel_turns(c->k, &turns, &why)) problem(c, 0, "%s", why.s);
}

int kernel_check_literal(const kernel *k, str *out) {
    checker c = { .k = k, .out = out };
    for (int b = 0; b < k->bufs.n; b++) {
        const kbuf *x = &k->bufs.at[b];
        if (x->panels) check_panels(&c, b);
        if (x->swizzled &&
            (x->kind != KB_SHARED || (x->dtype != TN_BF16 && x->dtype != TN_F16) || x->elems % (8 * KERNEL_MATRIX)))
            problem(&c, 0, "b%d is swizzled, and is no shared memory of rows of %d numbers of 2 bytes", b, KERNEL_MATRIX);
    }
    c.home = ARENA_ARRAY(k->a, int, k->ins.n), c.parent = ARENA_ARRAY(k->a, int, k->ins.n);
    c.closed = ARENA_ARRAY(k->a, bool, k->ins.n), c.open = ARENA_ARRAY(k->a, int, k->ins.n);
    if (!check_structure(&c)) return c.n;
    check_instructions(&c);
    if (c.n) return c.n; /* indices mean nothing yet */
    for (reg r = 1; r < (reg)k->ins.n; r++) {
        const kins *in = &k->ins.at[r];
        if (in->op == K_MMA && k->ins.at[in->a].op == K_MATRIX) check_matrix_bounds(&c, r, in->a, KERNEL_MATRIX);
        if (in->op == K_MMA) check_matrix_bounds(&c, r, in->b, 2 * (int64_t)in->lanes);
        if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
        check_bounds(&c, r, open_loops(&c, r));
    }
    if (k->block_threads && (k->block_threads > 1024 || (k->block_threads & (k->block_threads - 1))))
        problem(&c, 0, "blocks of %d threads", k->block_threads);
    check_cluster(&c);
    if (!c.n) check_boxes(&c);
    if (kbufs_any_late(k->bufs.at, k->bufs.n)) check_late(&c);
    for (int b = 0; b < k->bufs.n && k->block_threads && c.n == 0; b++) {
        bool written = false;
        for (int i = 1; i < k->ins.n; i++) written = written || touches(&k->ins.at[i], b, true);
        if (written && !kbuf_is_local(&k->bufs.at[b])) check_block_races(&c, b);
    }
    for (int b = 0; b < k->bufs.n && k->par_var >= 0 && k->tiled && c.n == 0; b++) {
        bool written = false;
        for (int i = 1; i < k->ins.n; i++) written = written || touches(&k->ins.at[i], b, true);
        if (written && !kbuf_is_local(&k->bufs.at[b])) check_races(&c, b);
    }
    return c.n;
}
