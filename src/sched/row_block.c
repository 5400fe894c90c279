/* row_block.c - a contraction and what follows it row by row (softmax, norms, losses, the next contraction) become one kernel
 * for a CPU: block by block of rows, each part is done for the whole block before the next part starts, and what lies between
 * stays in the first caches and is never stored. row_join.c writes the kernel, recipe/nests.c tiles its parts as if they were
 * alone. Attention is such a chain: an operand that is packed is packed once, before the blocks (loop/nest_pack.h), whose rows
 * may then be as long as the second cache holds some tens of.
 *
 * In: a plan with kernels in scalar form, after the choice of what is done in place. Out: the plan with fewer kernels. What
 * decides, from shapes and the target alone: nothing may take longer than kernel by kernel, and every bit is the same: threads
 * still share the work evenly, blocks have enough rows for the operand that all of them read, and each sum has its terms in the
 * order that it would have alone. */
#include "loop/operand.h"
#include "recipe/recipe.h"
#include "sched/fusion.h"
#include "sched/row_join.h"

enum {
    WIDE_ROOM = 256 << 20, /* bytes between the parts, else MACHINE_LOCAL_BYTES, where blocks share operands that are packed
                              once: rows are as long as the operand */
    FEW_ROWS = 32,         /* of a block: at least these, even where they do not fit the first cache .. */
    MANY_ROWS = 64,        /* .. or these, where what all blocks read comes from beyond the second */
    MOST_LINKS = 4,        /* parts: equal layers behind them can share the code */
    MOST_KNOWN = 256,
    GRAIN = 8, /* rows of most tiles divide that */
};
#define EVENLY 0.97    /* so much of the time all threads work */
#define BLOCK_COST 0.2 /* of starting a block, in rows */
#define ROUGH 1.01     /* tiles that do not come out whole */
#define STUMP 1.05     /* a last block of few rows */

typedef struct chooser {
    plan *p;
    const target *t;
    row_uses uses;
    arena scratch; /* for one attempt */
    VEC(pkernel) out;
    struct {
        uint64_t key, order;
    } sums[MOST_KNOWN]; /* of kernels by their hashes, the last one for each place */
} chooser;

typedef struct facts {   /* of a chain */
    int64_t rows, outer; /* iterations of the innermost shared loop; of those around it */
    int64_t row_bytes;   /* what lies between the parts, of a row */
    int64_t common;      /* bytes that each block reads again */
    int64_t room;        /* bytes for that */
    bool copied;         /* some of it may be packed .. */
    bool once;           /* .. which is done once for all blocks of a thread, and pays */
    bool computed;       /* of it, an operand of a contraction is computed */
    bool shared;         /* among threads */
    int contractions;
} facts;

static bool has_contraction(const kernel *k) { return loop_products(k, 1, k->ins.n) > 0; }

/* Whether the kernel multiplies bytes several at once: panels of them are made for all rows, which blocks would make again. */
static bool multiplies_bytes(const kernel *k, const target *t) {
    for (int i = 1; t->packed && i < k->ins.n; i++)
        if (k->ins.at[i].op == K_UPD && k->ins.at[i].alu == OP_dot && k->ins.at[i].dtype == TN_I32) return true;
    return false;
}

/* Bytes of what a load reaches that does not depend on the innermost shared loop, in one iteration of those around it. */
static int64_t common_bytes(const kernel *k, int shared, const kins *in) {
    int64_t reach = 1;
    if ((shared && affine_coef(in->idx, k->ins.at[shared].var)) || in->dyn) return 0;
    for (int i = 0; i < in->idx.n; i++) {
        kterm t = in->idx.t[i];
        bool outside = false;
        for (int s = 0; s < shared; s++) outside |= k->ins.at[1 + s].var == t.var;
        if (!outside) reach += (k->vars.at[t.var].extent - 1) * (t.coef < 0 ? -t.coef : t.coef);
    }
    int64_t elems = k->bufs.at[in->buf].elems;
    return (reach < elems ? reach : elems) * (int64_t)dtype_size((tn_dtype)in->src);
}

/* What the step pack may copy: a large operand, or one that lies the wrong way for lanes along the columns. */
static bool may_copy(const kernel *k, const kins *in, int64_t bytes, const target *t) {
    bool along = false;
    for (int i = 0; i < in->idx.n; i++) along |= in->idx.t[i].coef == 1 && !k->vars.at[in->idx.t[i].var].reduce;
    return !k->bufs.at[in->buf].fixed && in->idx.n > 1 && (bytes > t->l1_bytes / 2 || !along);
}

/* Whether some contraction computes an operand of what each block reads alike: panels of it are packed block by block. */
static bool computes_common(const kernel *k, int shared) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        operand o;
        if (in->op != K_UPD || in->alu != OP_dot) continue;
        for (int x = 0; x < 2; x++)
            if (operand_find(k, x ? in->b : in->a, &o) && o.value != o.load && common_bytes(k, shared, &k->ins.at[o.load]))
                return true;
    }
    return false;
}

static facts find_facts(const chooser *w, const row_chain *c) {
    facts f = { .room = MACHINE_LOCAL_BYTES - c->local };
    const kernel *k0 = w->p->kernels.at[c->first].k;
    kernel all = { 0 };
    f.rows = c->shared ? row_extent(k0, c->shared - 1) : 1, f.outer = row_count(k0, c->shared - 1);
    for (int i = 0; i < c->all.n; i++)
        if (c->all.at[i].reads && row_is_private(c, &w->uses, &c->all.at[i]))
            f.row_bytes += c->all.at[i].stride * (int64_t)dtype_size((tn_dtype)c->all.at[i].dtype);
    for (int i = 0; i < c->n; i++) {
        const kernel *k = w->p->kernels.at[c->first + i].k;
        int64_t most = 0;
        f.contractions += has_contraction(k), f.computed |= computes_common(k, c->shared);
        all.flops += k->flops, all.bytes_read += k->bytes_read, all.bytes_written += k->bytes_written;
        for (int j = 1; j < k->ins.n; j++) {
            if (k->ins.at[j].op != K_LOAD) continue;
            int64_t bytes = common_bytes(k, c->shared, &k->ins.at[j]);
            if (bytes > most) most = bytes;
            f.copied |= bytes && may_copy(k, &k->ins.at[j], bytes, w->t);
        }
        f.common = most > INT64_MAX - f.common ? INT64_MAX : f.common + most;
    }
    f.shared = recipe_is_worth_sharing(&all, w->t);
    int64_t threads = f.shared && f.outer < w->t->threads ? w->t->threads : 1;
    f.once = f.copied && f.rows / threads >= MANY_ROWS;
    if (f.once) f.room = WIDE_ROOM - c->local;
    return f;
}

/* How evenly threads share blocks of `rows` rows, or the loops around these. */
static double balance_of(const facts *f, int64_t rows, const target *t) {
    int threads = f->shared ? t->threads : 1;
    double by_blocks = loop_balance(f->rows / rows, (double)(f->rows % rows) / (double)rows, threads),
           by_outer = loop_balance(f->outer, 0, threads);
    return by_blocks > by_outer ? by_blocks : by_outer;
}

/* What lies between goes through the second cache, where a panel stays, too. */
static int64_t second_cache_rows(const facts *f, const target *t) {
    int64_t n = t->l2_bytes / 2 / f->row_bytes / GRAIN * GRAIN;
    return n < FEW_ROWS ? FEW_ROWS : n > MANY_ROWS ? MANY_ROWS : n;
}

/* Rows of a block, or 0: near the most that stay in the first cache, and such that threads share the blocks evenly, tiles come
 * out whole, and the last block, which may be shorter, is no stump. */
static int64_t choose_rows(const facts *f, const target *t) {
    int64_t threads = f->shared ? t->threads : 1, room = f->room / f->row_bytes, near = t->l1_bytes / 2 / f->row_bytes,
            most = near > FEW_ROWS ? near : FEW_ROWS, best = 0;
    double least = 1e300;
    if (f->once) most = second_cache_rows(f, t);
    if (f->rows <= 2 * most * (f->outer == 1 ? threads : 1)) most *= 2; /* one block is better than two */
    if (most > room) most = room;
    if (most > f->rows) most = f->rows;
    for (int64_t n = most; n > 0 && (n == most || (n >= GRAIN && (4 * n >= most || threads > 1))); n--) {
        int64_t rest = f->rows % n;
        double cost = (1 + BLOCK_COST / (double)n) / balance_of(f, n, t);
        if (rest) cost *= rest < GRAIN ? STUMP : ROUGH;
        if (n % GRAIN && n < f->rows) cost *= ROUGH;
        if (cost < least) least = cost, best = n;
    }
    return best;
}

/* Why blocks of `rows` rows would be slower than kernel by kernel; NULL: they are not. */
static const char *cost_objection(const facts *f, int64_t rows, const target *t) {
    if (rows == 0) return "a row of what lies between them does not fit the first caches";
    int64_t blocks = (f->rows + rows - 1) / rows, threads = f->shared ? t->threads : 1;
    if (balance_of(f, rows, t) < EVENLY) return "threads could not share its few rows evenly";
    if (f->computed && blocks > 1) return "each block of rows would compute an operand again";
    int64_t each = f->outer > 1 ? blocks : (blocks + threads - 1) / threads; /* blocks of a thread that read the same */
    if (rows >= MANY_ROWS || f->once) return NULL;
    if (f->common > t->l2_bytes / 2 && (each > 1 || threads > 1))
        return "each block of rows would read again what does not fit the second cache";
    if (f->copied && each > 1) return "each block of rows would copy an operand again";
    if (f->common > t->l1_bytes && rows < GRAIN && (each > 1 || threads > 1))
        return "a block would have too few rows for what it reads again";
    return NULL;
}

static uint64_t sums_order(chooser *w, kernel *k) {
    uint64_t key = kernel_hash(k, 1), at = key % MOST_KNOWN;
    if (w->sums[at].key != key) w->sums[at].key = key, w->sums[at].order = recipe_sums_order(k, w->t);
    return w->sums[at].order;
}

/* Each nest of the joined kernel against the kernel that it was. Returns the first part whose sums would come out otherwise, or
 * n. */
static int same_sums(chooser *w, const row_chain *c, const kernel *k) {
    arena *a = &w->scratch;
    arena_reset(a);
    const kernel *joined = kernel_clone(k, a);
    for (int i = 0; i < c->n; i++) {
        const kernel *alone = w->p->kernels.at[c->first + i].k;
        uint64_t h = sums_order(w, kernel_clone(alone, a));
        for (int n = i; n < 2 * c->n; n += c->n) {
            kernel *nest = loop_nest(joined, n);
            if (nest && sums_order(w, nest) != h) return i;
        }
    }
    return c->n;
}

/* It reads what one of the chain makes, row by row. */
static bool follows(const row_chain *c, const row_link *l) {
    for (int i = 0; i < l->n; i++)
        for (int j = 0; j < c->all.n; j++)
            if (c->all.at[j].buf == l->at[i].buf && c->all.at[j].writes && l->at[i].reads) return true;
    return false;
}

/* The longest chain from kernel `first` on with `shared` shared loops; why it ends, or NULL. */
static row_chain grow(const chooser *w, int first, int shared, int most, const char **reason) {
    plan *p = w->p;
    row_chain c = row_chain_make(p, first, shared);
    *reason = NULL;
    for (int i = first; i < p->kernels.n && c.n < most; i++) {
        const kernel *k = p->kernels.at[i].k;
        int own = row_shared_loops(k); /* of a kernel with fewer loops, only what it reads and writes counts */
        row_link l = row_link_make(p, &p->kernels.at[i], own < shared ? own : shared, false);
        if (i > first && !follows(&c, &l)) break;
        if (!row_same(p->kernels.at[first].k, k, shared)) {
            *reason = "it has other rows";
            break;
        }
        if ((*reason = row_objection(&c, &l, k, MACHINE_LOCAL_BYTES, ROW_MOST_ARGS))) break;
        row_append(&c, arena_copy(p->a, &l, sizeof l), k);
    }
    return c;
}

/* The longest chain of at most `most` kernels that may and should be one; its blocks' rows in *rows. */
static row_chain choose(const chooser *w, int first, int shared, int most, int64_t *rows, facts *out, const char **reason) {
    for (;;) {
        const char *end, *no = NULL;
        row_chain c = grow(w, first, shared, most, &end);
        if (c.n < 2) {
            if (!*reason) *reason = end;
            return c;
        }
        facts f = *out = find_facts(w, &c);
        if (f.row_bytes == 0) no = "what lies between them is needed elsewhere, too";
        if (!no && !has_contraction(w->p->kernels.at[first].k) && f.contractions < 2) no = "only one contraction follows it";
        if (!no) *rows = choose_rows(&f, w->t), no = cost_objection(&f, *rows, w->t);
        if (!no) return c;
        *reason = no, most = c.n - 1;
    }
}

/* For explain: why, and at which cost. */
static const char *why_joined(arena *a, const facts *f, int64_t rows) {
    if (!f->once) return "a block of rows goes through both while it is in the first caches: one kernel";
    return arena_printf(
        a,
        "a block of rows goes through both: one kernel, which keeps %lld KiB for %lld rows at a time instead of %lld KiB for "
        "all; each block reads %lld KiB again, which is packed once where that pays",
        (long long)(rows * f->row_bytes >> 10), (long long)rows, (long long)(f->rows * f->outer * f->row_bytes >> 10),
        (long long)(f->common >> 10));
}

/* Returns how many kernels became one, or 0. */
static int try_join(chooser *w, int first, int shared, const char **reason) {
    for (int most = MOST_LINKS; most > 1;) {
        int64_t rows = 0;
        facts f = { 0 };
        row_chain c = choose(w, first, shared, most, &rows, &f, reason);
        if (c.n < 2) return 0;
        row_form form = { .room = f.room, .block = rows };
        pkernel pk = row_join(&c, &w->uses, &form);
        most = same_sums(w, &c, pk.k);
        if (most == c.n) {
            row_commit(&c, &w->uses, &pk, why_joined(w->p->a, &f, rows));
            VEC_PUSH(w->p->a, &w->out, pk);
            return c.n;
        }
        *reason = "for a block of rows its sums would be added up in another order";
    }
    return 0;
}

/* Elementwise work on what the next kernel, a contraction, then reads. */
static bool feeds_contraction(const plan *p, int i) {
    const pkernel *next = &p->kernels.at[i + 1];
    for (int j = 1; j < p->kernels.at[i].k->ins.n; j++)
        if (p->kernels.at[i].k->ins.at[j].op == K_UPD || p->kernels.at[i].k->ins.at[j].op == K_SCATTER) return false;
    if (!has_contraction(next->k)) return false;
    for (int b = 0; b < next->k->bufs.n; b++)
        for (int a = 0; a < p->kernels.at[i].k->bufs.n; a++)
            if (next->args[b].buf >= 0 && next->args[b].buf == p->kernels.at[i].args[a].buf &&
                p->kernels.at[i].k->bufs.at[a].kind != KB_IN)
                return true;
    return false;
}

void fuse_row_blocks(plan *p, const target *t) {
    chooser w = { .p = p, .t = t, .uses = row_find_uses(p) };
    arena_child(&w.scratch, p->a);
    for (int i = 0; i < p->kernels.n;) {
        const kernel *k = p->kernels.at[i].k;
        const char *reason = NULL;
        int n = 0;
        bool starts = i + 1 < p->kernels.n && (has_contraction(k) || feeds_contraction(p, i)) && !multiplies_bytes(k, t) &&
                      !multiplies_bytes(p->kernels.at[i + 1].k, t);
        for (int shared = starts ? row_shared_loops(k) : 0; shared > 0 && !n; shared--) n = try_join(&w, i, shared, &reason);
        if (starts && !n && row_shared_loops(p->kernels.at[i + 1].k) == 0) n = try_join(&w, i, 0, &reason); /* of one row */
        if (!n && reason) row_decide(p, p->kernels.at[i].root, p->kernels.at[i + 1].root, false, reason);
        if (!n) VEC_PUSH(p->a, &w.out, p->kernels.at[i]);
        i += n ? n : 1;
    }
    p->kernels.at = w.out.at, p->kernels.n = w.out.n, p->kernels.cap = w.out.cap;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.at[i].code = i;
}
