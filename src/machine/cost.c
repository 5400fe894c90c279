/* cost.c - implementation of cost.h for processors: units, chains and lines of each loop; plans. */
#include "machine/cost.h"
#include "machine/footprint.h"

#include <math.h>

typedef struct op_cost {
    double products, adds, others, divisions;
} op_cost;
static const op_cost op_costs[N_OPS] = {
#define OP_COST(op, products, adds, others, divisions) [OP_##op] = { products, adds, others, divisions },
#include "machine/cost_ops.def"
#undef OP_COST
};

static op_cost cost_of_op(op_code op) {
    op_cost c = op_costs[op];
    return c.products + c.adds + c.others + c.divisions > 0 ? c : (op_cost){ 0, 0, 1, 0 };
}

/* ---- instructions ---- */

typedef struct work {                         /* of an iteration of a loop's own instructions */
    double products, adds, others, divisions; /* cycles of a unit */
    double loads, stores;                     /* cycles of a port */
    double instructions;
    double stalls;      /* cycles in which nothing else is done */
    double chain, path; /* cycles: of the longest accumulator; of all instructions, one waiting for the other */
} work;

typedef struct coster {
    const kernel *k;
    const machine *m;
    footprint f;
    work *of;       /* [loops] */
    int *uses;      /* [ins] */
    double *ready;  /* [ins] cycles after which a register is there */
    double *chain;  /* [ins] of an accumulator, in the loop at hand */
    double *inside; /* [loops] instructions of an iteration with all loops in it */
    double *cycles; /* [loops] that units take for it; with what inner loops wait */
    int *last_in;   /* [ins] the loop whose chain[] it is, plus 1 */
    bool *fixed;    /* [ins] computed from constants: once */
} coster;

/* Vector instructions for n bytes, and the cycles that they keep a unit. */
static double pieces(const machine *m, double bytes) { return larger(1, ceil(bytes / m->vector_bytes)); }
static double slots(const machine *m, double bytes, double unit) {
    double each = smaller(bytes, m->vector_bytes);
    return pieces(m, bytes) * larger(1, ceil(each / unit));
}

static void add_arithmetic(coster *c, work *w, const kins *in, op_cost o, double lanes) {
    double bytes = lanes * (double)dtype_size((tn_dtype)in->dtype), n = slots(c->m, bytes, c->m->pipe_bytes);
    w->products += o.products * n, w->adds += o.adds * n, w->others += o.others * n;
    w->divisions += o.divisions * larger(0.5, bytes / c->m->pipe_bytes); /* a narrow one takes less */
    w->instructions += (o.products + o.adds + o.others + o.divisions) * pieces(c->m, bytes);
}

/* An extremum with a constant need not look for NaNs on both sides. */
static op_cost cost_of(const coster *c, const kins *in) {
    bool constant = in->b && (c->k->ins.at[in->a].op == K_CONST || c->k->ins.at[in->b].op == K_CONST);
    if ((in->alu == OP_max || in->alu == OP_min) && constant) return (op_cost){ 1, 0, 0, 0 };
    return cost_of_op((op_code)in->alu);
}

static bool is_narrow(const kins *in) { return in->src != in->dtype && dtype_size((tn_dtype)in->src) < 4; }

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a < 0 ? -a : a;
}

/* How often an access of `bytes` bytes crosses the end of a line, which takes a port twice: buffers begin with one. */
static double across_lines(const coster *c, const kins *in, int r, double bytes) {
    int64_t size = (int64_t)dtype_size((tn_dtype)c->k->bufs.at[in->buf].dtype),
            g = common_divisor(MACHINE_LINE_BYTES, in->idx.base * size);
    for (int l = c->f.loop_of[r]; l > 0; l = c->f.loops.at[l].parent)
        g = common_divisor(g, affine_coef(in->idx, c->f.loops.at[l].var) * c->f.loops.at[l].step * size);
    double each = smaller(bytes, c->m->vector_bytes), starts = (double)(MACHINE_LINE_BYTES / g), over = 0;
    for (int64_t at = 0; at < MACHINE_LINE_BYTES; at += g) over += (double)at + each > MACHINE_LINE_BYTES;
    return over / starts * pieces(c->m, bytes);
}

static bool masks_lanes(const kins *in) {
    for (int i = 0; i < in->n_mask; i++)
        if (in->mask_lane[i] && in->lanes > 1) return true;
    return false;
}

static void add_load(coster *c, work *w, const kins *in, int r) {
    double size = (double)dtype_size((tn_dtype)in->src) * (in->packed ? in->packed : 1), lanes = in->lanes, n;
    bool near = in->lane_stride == 1 || lanes == 1 || (in->packed && in->lane_stride == in->packed),
         same = in->lane_stride == 0;
    if (in->dyn && c->k->ins.at[in->dyn].lanes > 1) near = same = false;
    if (masks_lanes(
            in)) { /* each lane that its mask allows to memory, and all of them from there: not before they are written */
        w->loads += lanes + 1, w->stores += lanes + 1, w->instructions += 5 * lanes, w->stalls += c->m->forward_cycles;
    } else if (near || same) {
        double bytes = same ? size : lanes * size;
        n = slots(c->m, bytes, c->m->load_bytes) + across_lines(c, in, r, bytes);
        w->loads += n, w->instructions += c->uses[r] > 1 ? pieces(c->m, bytes) : 0; /* used once: part of what uses it */
    } else {                                                                        /* lane by lane, put together */
        n = lanes;
        w->loads += n, w->others += lanes, w->instructions += 2 * lanes;
    }
    if (is_narrow(in)) add_arithmetic(c, w, in, (op_cost){ 0, 0, 1, 0 }, lanes);
    if (in->n_mask) add_arithmetic(c, w, in, (op_cost){ in->n_mask, 0, in->n_mask, 0 }, lanes);
    if (in->dyn) w->others += 2, w->instructions += 3;
}

static void add_store(coster *c, work *w, const kins *in, int r) {
    double size = (double)dtype_size((tn_dtype)in->dtype), lanes = in->lanes;
    if (in->lane_stride == 1 || lanes == 1) {
        w->stores += slots(c->m, lanes * size, c->m->store_bytes) + across_lines(c, in, r, lanes * size);
        w->instructions += pieces(c->m, lanes * size);
    } else {
        w->stores += lanes, w->others += lanes, w->instructions += 2 * lanes;
    }
    if (size < 4) add_arithmetic(c, w, &c->k->ins.at[in->a], (op_cost){ 0, 0, 2, 0 }, lanes);
    if (in->op == K_SCATTER) w->loads += lanes, w->others += lanes, w->instructions += 3 * lanes;
}

static void add_instruction(coster *c, work *w, int r) {
    const kins *in = &c->k->ins.at[r];
    op_cost one = { 0, 0, 1, 0 };
    switch (in->op) {
    case K_LOAD:
        add_load(c, w, in, r);
        break;
    case K_STORE:
    case K_SCATTER:
        add_store(c, w, in, r);
        break;
    case K_PREFETCH:
        w->loads += 1, w->instructions += 1;
        break;
    case K_ALU:
        add_arithmetic(c, w, in, cost_of(c, in), in->lanes);
        break;
    case K_UPD:
        one = in->alu == OP_add ? (op_cost){ 0, 1, 0, 0 } : (op_cost){ 1, 0, 0, 0 };
        add_arithmetic(c, w, &c->k->ins.at[in->c], one, c->k->ins.at[in->c].lanes);
        break;
    case K_ARGUPD:
        add_arithmetic(c, w, &c->k->ins.at[in->c], (op_cost){ 1, 0, 5, 0 }, c->k->ins.at[in->c].lanes);
        break;
    case K_CAST:
    case K_INDEX:
        add_arithmetic(c, w, in, one, in->lanes);
        break;
    case K_ZIP: /* shuffles: as many units as multiply */
        add_arithmetic(c, w, in, (op_cost){ 1, 0, 0, 0 }, in->lanes);
        break;
    case K_LANES:
        if (in->first_lane) add_arithmetic(c, w, in, one, in->lanes);
        break;
    case K_WRAP:
        add_arithmetic(c, w, in, (op_cost){ 0, 1, 4, 0 }, in->lanes);
        break;
    case K_RANDOM:
        add_arithmetic(c, w, in, (op_cost){ 40, 20, 70, 0 }, in->lanes);
        break;
    case K_LANE_REDUCE:
        add_arithmetic(c, w, in,
                       (op_cost){ 0, log2(larger(2, (double)in->combined)), log2(larger(2, (double)in->combined)), 0 }, 1);
        break;
    default:
        break;
    }
}

/* ---- latency ---- */

static double latency(const coster *c, const kins *in) {
    const machine *m = c->m;
    switch (in->op) {
    case K_LOAD:
        return m->level[LEVEL_L1].ns * m->ghz;
    case K_ALU: {
        op_cost o = cost_of(c, in); /* a quarter of them has a neighbour that it does not wait for */
        double n = o.products + o.adds + o.others, all = o.products * m->fma_cycles + (o.adds + o.others) * m->alu_cycles;
        return (n > 2 ? 0.75 : 1) * all + o.divisions * (m->divide_cycles + 8);
    }
    case K_UPD:
        return in->alu == OP_dot || in->alu == OP_mul ? m->fma_cycles : m->alu_cycles;
    case K_ARGUPD:
        return 2 * m->alu_cycles;
    case K_LANE_REDUCE:
        return log2(larger(2, (double)in->combined)) * (m->alu_cycles + 2);
    case K_CAST:
    case K_BITCAST:
    case K_ZIP:
    case K_LANES:
        return m->alu_cycles;
    case K_WRAP:
        return 4 * m->alu_cycles;
    case K_RANDOM:
        return 100;
    default:
        return 0;
    }
}

/* When the register of instruction r is there after an iteration of loop l began, which what comes from outside does not delay.
 */
static double time_of(const coster *c, int l, reg r) { return (int)r > c->f.loops.at[l].ins ? c->ready[r] : 0; }

static void find_path(coster *c, int l) {
    const fp_loop *x = &c->f.loops.at[l];
    work *w = &c->of[l];
    for (int i = x->ins + 1; i < x->end; i++) {
        const kins *in = &c->k->ins.at[i];
        bool adds = in->op == K_UPD || in->op == K_ARGUPD;
        double start = larger(time_of(c, l, in->a), time_of(c, l, in->dyn)), takes = c->fixed[i] ? 0 : latency(c, in);
        if (in->op != K_ARGUPD) start = larger(start, time_of(c, l, in->b));
        start = larger(start, time_of(c, l, in->c));
        c->ready[i] = start + takes, c->chain[i] = 0;
        if (adds && (int)in->c > x->ins) c->ready[in->c] = c->ready[i];
        if (adds && (int)in->c <= x->ins && c->f.loop_of[i] == l) { /* goes on from iteration to iteration */
            c->chain[in->c] = c->last_in[in->c] == l + 1 ? c->chain[in->c] + takes : takes;
            c->last_in[in->c] = l + 1;
            w->chain = larger(w->chain, c->chain[in->c]);
        }
        w->path = larger(w->path, c->ready[i]);
    }
}

static double issue_cycles(const machine *m, const work *w) {
    double t = larger(w->products / m->fma_pipes, w->adds / m->fma_pipes); /* as many units add, others or the same */
    t = larger(t, (w->products + w->adds + w->others + w->divisions) / m->alu_pipes);
    t = larger(t, w->divisions * m->divide_cycles);
    t = larger(t, larger(w->loads / m->load_pipes, w->stores / m->store_pipes));
    return larger(t, w->instructions / m->issue) + w->stalls;
}

/* Cycles that an iteration of loop l takes longer than its units do, for instructions wait for each other. As many iterations
 * are on the way as the core has room for. */
static double waiting_cycles(const coster *c, int l) {
    const work *w = &c->of[l];
    double room = smaller(1, c->inside[l] / c->m->window);
    return larger(0, larger(w->chain, w->path * room) - c->cycles[l]);
}

static bool is_fixed(const coster *c, const kins *in) {
    if (!kernel_is_pure(in) || in->idx.n || in->op == K_RANDOM) return false;
    return (!in->a || c->fixed[in->a]) && (!in->b || c->fixed[in->b]) && (!in->c || c->fixed[in->c]);
}

static void survey(coster *c, arena *a) {
    const kernel *k = c->k;
    int n = k->ins.n + 1, n_loops = c->f.loops.n;
    c->of = ARENA_ARRAY(a, work, n_loops), c->inside = ARENA_ARRAY(a, double, n_loops),
    c->cycles = ARENA_ARRAY(a, double, n_loops);
    c->uses = ARENA_ARRAY(a, int, n), c->ready = ARENA_ARRAY(a, double, n), c->chain = ARENA_ARRAY(a, double, n),
    c->fixed = ARENA_ARRAY(a, bool, n), c->last_in = ARENA_ARRAY(a, int, n);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        c->uses[in->a]++, c->uses[in->b]++, c->uses[in->c]++;
    }
    for (int i = 1; i < k->ins.n; i++) {
        c->fixed[i] = is_fixed(c, &k->ins.at[i]);
        if (!c->fixed[i]) add_instruction(c, &c->of[c->f.loop_of[i]], i);
    }
    for (int l = 0; l < n_loops; l++) find_path(c, l);
    for (int l = n_loops - 1; l >= 0; l--) {
        const fp_loop *x = &c->f.loops.at[l];
        if (l) c->of[l].instructions += 3; /* count, places, branch */
        c->inside[l] += c->of[l].instructions;
        c->cycles[l] += issue_cycles(c->m, &c->of[l]);
        if (!l) continue;
        c->inside[x->parent] += c->inside[l] * x->trips;
        c->cycles[x->parent] += (c->cycles[l] + waiting_cycles(c, l)) * x->trips;
    }
}

/* ---- time ---- */

static double rate_of(const machine *m, double one, double all, int threads) {
    (void)m;
    return all > 0 && threads > 1 ? smaller(one, all / threads) : one;
}

/* Nanoseconds in which one thread has the lines of an access. */
static double access_ns(const coster *c, const fp_access *x, bool written, int threads, double *level_ns) {
    const machine *m = c->m;
    double sum = 0, n, nontemporal = rate_of(m, m->nontemporal, m->nontemporal_all, threads);
    for (int l = LEVEL_L2; l < MACHINE_LEVELS; l++) {
        double served = x->bytes[l] - (l + 1 < MACHINE_LEVELS ? x->bytes[l + 1] : 0);
        if (served <= 0) continue;
        const machine_cache *y = &m->level[l];
        double rate = rate_of(m, written ? y->write : y->read, y->all, threads), ns = served / rate;
        if (fp_run(&c->f, x, &n) < 4 * MACHINE_LINE_BYTES) ns = larger(ns, served / MACHINE_LINE_BYTES * y->ns / m->in_flight);
        level_ns[l] += ns, sum += ns;
    }
    if (x->nontemporal)
        sum += fp_bytes(&c->f, x, 0, false) / nontemporal, level_ns[LEVEL_MEMORY] += fp_bytes(&c->f, x, 0, false) / nontemporal;
    return sum;
}

static bool is_written(const kernel *k, int buf) {
    for (int i = 1; i < k->ins.n; i++)
        if ((k->ins.at[i].op == K_STORE || k->ins.at[i].op == K_SCATTER) && k->ins.at[i].buf == buf) return true;
    return false;
}

static double register_bytes(const coster *c) { /* loads and stores of one thread */
    double sum = 0;
    for (int i = 1; i < c->k->ins.n; i++) {
        const kins *in = &c->k->ins.at[i];
        if (in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) continue;
        double lanes = in->op == K_LOAD && in->lane_stride == 0 ? 1 : in->lanes;
        sum += lanes * (double)dtype_size((tn_dtype)c->k->bufs.at[in->buf].dtype) * c->f.loops.at[c->f.loop_of[i]].runs;
    }
    return sum;
}

enum { LONG_LOOP = 48 /* trips, of which the last is not foreseen */ };

static void sum_up(coster *c, int threads, arena *a, cost *out) {
    const machine *m = c->m;
    double *memory = ARENA_ARRAY(a, double, c->f.loops.n), share[MACHINE_LEVELS] = { 0 };
    for (int i = 0; i < c->f.at.n; i++) {
        const fp_access *x = &c->f.at.at[i];
        memory[x->loop] += access_ns(c, x, is_written(c->k, x->buf), threads, share);
        for (int l = LEVEL_L2; l < MACHINE_LEVELS; l++) out->bytes[l] += x->bytes[l] * threads;
        if (x->nontemporal) out->bytes[LEVEL_MEMORY] += fp_bytes(&c->f, x, 0, false) * threads;
    }
    out->bytes[LEVEL_L1] = register_bytes(c) * threads;
    for (int l = 0; l < c->f.loops.n; l++) {
        const fp_loop *x = &c->f.loops.at[l];
        double all = issue_cycles(m, &c->of[l]) * x->runs / m->ghz, waits = waiting_cycles(c, l) * x->runs / m->ghz;
        if (x->trips > LONG_LOOP) waits += x->runs / x->trips * m->branch_cycles / m->ghz;
        out->issue_ns += all, out->latency_ns += waits, out->memory_ns += memory[l];
        out->ns += larger(all + waits, memory[l]);
    }
    for (int l = LEVEL_L2; l < MACHINE_LEVELS; l++) out->level_ns[l] = share[l];
}

static cost_bound bound_of(const cost *c) {
    double most = c->start_ns;
    cost_bound b = BOUND_START;
    const double parts[] = { c->issue_ns, c->latency_ns, c->level_ns[LEVEL_L2], c->level_ns[LEVEL_L3],
                             c->level_ns[LEVEL_MEMORY] };
    for (int i = 0; i < (int)COUNT_OF(parts); i++)
        if (parts[i] > most) most = parts[i], b = (cost_bound)(i + 1);
    return b;
}

cost cost_kernel(const kernel *any, const machine *m, const double *distance, arena *a) {
    const kernel *k = kernel_at_most(any, a);
    cost out = { 0 };
    if (k->block_threads) {
        out = cost_gpu_kernel(k, m, distance, a);
        out.bound = bound_of(&out);
        return out;
    }
    int threads = k->par_var >= 0 ? m->cores : 1;
    coster c = { .k = k, .m = m };
    fp_make(k, a, threads, MACHINE_LINE_BYTES, &c.f);
    survey(&c, a);
    for (int l = LEVEL_L1; l < LEVEL_MEMORY; l++) {
        double room = (double)m->level[l].bytes;
        fp_traffic(&c.f, room, (machine_level)(l + 1), distance);
    }
    sum_up(&c, threads, a, &out);
    out.start_ns = m->start_ns + (threads > 1 ? m->barrier_ns : 0);
    out.ns += out.start_ns;
    out.bound = bound_of(&out);
    return out;
}

const char *cost_bound_text(const cost *c, bool gpu) {
    static const char *const text[COST_BOUNDS] = {
        [BOUND_START] = "starting",        [BOUND_ISSUE] = "arithmetic", [BOUND_LATENCY] = "waiting for results",
        [BOUND_L2] = "second-level cache", [BOUND_L3] = "last cache",    [BOUND_MEMORY] = "memory"
    };
    return gpu && c->bound == BOUND_L2 ? "L2" : text[c->bound];
}

/* ---- plans ---- */

static double bytes_of(const kernel *k, int b) {
    ext n = k->bufs.at[b].elems;
    return (double)(ext_hi(k->params, n) * (int64_t)dtype_size((tn_dtype)k->bufs.at[b].dtype));
}

/* Twice through the plan, for a run follows a run: what each launch touched since the buffer's last use. */
void cost_plan(const plan *p, const machine *m, arena *a, cost *out) {
    double *last = ARENA_ARRAY(a, double, p->bufs.n + 1), touched = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < p->kernels.n; i++) {
            const pkernel *x = &p->kernels.at[i];
            double *distance = ARENA_ARRAY(a, double, x->k->bufs.n + 1);
            double own = 0;
            for (int b = 0; b < x->k->bufs.n; b++) own += kbuf_is_local(&x->k->bufs.at[b]) ? 0 : bytes_of(x->k, b);
            touched += own;
            for (int b = 0; b < x->k->bufs.n; b++) {
                int at = kbuf_is_local(&x->k->bufs.at[b]) ? -1 : x->args[b].buf;
                if (at < 0) continue;
                distance[b] = touched - last[at];
                last[at] = touched;
            }
            if (round) out[i] = cost_kernel(x->k, m, distance, a);
        }
}
