/* gpu_hold.c - rows stay in registers: where each thread of a group works on the same few vectors of a row in every nest, its
 * share of the row is written out, so that what one nest loads or computes the next ones still have, and local buffers become
 * the threads' own.
 *
 * In and out: a kernel in the form of a GPU whose nests gpu_wide.c has made vectors of, changed in place. A nest is taken when
 * it is one loop that deals each thread the same few iterations; a buffer when all that touch it are such nests, each thread at
 * elements of its own. */
#include "kopt/gpu_copy.h"

enum {
    MAX_TURNS = 8 /* iterations of a thread */,
    SHARE = 32 /* elements of it, where a row has many, */,
    PACKED_SHARE = 64 /* two of them in a register */,
    LONG_GROUP = 256 /* threads, of a cluster */
};

/* Iterations of each thread of the nest at `head`, if it is one to take; else 0. */
static int turns_of(const kernel *k, int head) {
    const kins *in = &k->ins.at[head];
    if (in->op != K_LOOP || in->par != PAR_LOCAL || in->lo != 0 || in->hi % k->group || in->hi > MAX_TURNS * k->group) return 0;
    int end = kopt_loop_end(k, head);
    for (int i = head + 1; i < end; i++)
        if (k->ins.at[i].op == K_LOOP || (in[i - head].op == K_LOAD && in[i - head].par)) return 0;
    return (int)(in->hi / k->group);
}

/* Buffers in which every thread touches elements of its own alone, the same in each nest: how many of them; 0: it is not such a
 * buffer. */
static int *find_own(const kernel *k, const int *nest) {
    int *own = ARENA_ARRAY(k->a, int, k->bufs.n + 1), *lanes = ARENA_ARRAY(k->a, int, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) own[b] = k->bufs.at[b].kind == KB_GROUP ? -1 : 0;
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op != K_LOAD && in->op != K_STORE && in->op != K_SCATTER) || own[in->buf] == 0) continue;
        const kins *loop = &k->ins.at[nest[i]];
        int elems = nest[i] ? (int)(loop->hi / k->group) * in->lanes : 0;
        bool fits = elems && in->op != K_SCATTER && !in->dyn && !in->n_mask && (in->lanes == 1 || in->lane_stride == 1) &&
                    affine_equal(in->idx, affine_scale(k->a, affine_var(k->a, loop->var), in->lanes));
        bool other = own[in->buf] > 0 && (own[in->buf] != elems || lanes[in->buf] != in->lanes);
        own[in->buf] = fits && !other ? elems : 0, lanes[in->buf] = in->lanes;
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (own[b] < 0) own[b] = 0;
    return own;
}

/* Threads still meet where one reads what another wrote. */
static bool meets(const kernel *k, const int *own) {
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        if ((in->op == K_LOAD || in->op == K_SCATTER) && k->bufs.at[in->buf].kind != KB_IN &&
            k->bufs.at[in->buf].kind != KB_LOCAL && k->bufs.at[in->buf].kind != KB_CLUSTER && !own[in->buf])
            return true;
    }
    return false;
}

/* A thread's long part of a row is held as it lies in memory, two numbers of 16 bits in a register: each nest after the first
 * widens it, and computes what it needs of it, anew. */
static bool is_packed(const kernel *k, const kins *load, int turns) {
    const kbuf *b = &k->bufs.at[load->buf];
    return load->op == K_LOAD && b->kind == KB_IN && dtype_size((tn_dtype)b->dtype) == 2 && load->lanes * turns > SHARE &&
           !load->n_mask && !load->dyn;
}

void kopt_gpu_hold(kernel *k) {
    int *nest = ARENA_ARRAY(k->a, int, k->ins.n + 1), nests = 0; /* [ins] the loop around, of those to take */
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].par != PAR_LOCAL) continue;
        int end = kopt_loop_end(k, i), head = turns_of(k, i) ? i : 0;
        for (int j = i + 1; j < end; j++) nest[j] = head;
        nests += head > 0, i = end;
    }
    if (nests < 2 || k->vars.n > 50) return;
    int *own = find_own(k, nest);
    bool meet = meets(k, own);
    kernel *o = gpu_kernel(k, k->group);
    gpu_copier c = { k, o, ARENA_ARRAY(k->a, reg, k->ins.n) };
    bool *loaded = ARENA_ARRAY(k->a, bool, k->bufs.n + 1);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        gpu_places p = { .n = 0 };
        if (in->op == K_BARRIER && in->par == 0 && !meet) continue;
        if (nest[i + 1] == i && i + 1 < k->ins.n) {
            int turns = turns_of(k, i);
            kvar turn = kernel_var(o, "s", turns, false, false), thread = kernel_var(o, "t", k->group, false, false);
            o->vars.at[turn].role.unroll = turns;
            kernel_push(o, (kins){ .op = K_LOOP, .var = turn, .hi = turns, .step = 1 });
            kernel_push(o, (kins){ .op = K_LOOP, .var = thread, .hi = k->group, .step = 1, .par = PAR_LOCAL });
            affine first = affine_scale(k->a, affine_var(k->a, turn), k->group);
            gpu_put(&p, in->var, affine_add(k->a, first, affine_var(k->a, thread)));
            for (i++; nest[i]; i++) {
                bool memory = k->ins.at[i].op == K_LOAD || k->ins.at[i].op == K_STORE;
                gpu_places mine = { .n = 0 };
                gpu_put(&mine, in->var, affine_var(k->a, turn));
                reg r = gpu_copy(&c, i, memory && own[k->ins.at[i].buf] ? &mine : &p);
                if (!is_packed(k, &k->ins.at[i], turns)) continue;
                if (loaded[k->ins.at[i].buf]) o->ins.at[r].par = 3;
                loaded[k->ins.at[i].buf] = true;
            }
            kernel_push(o, (kins){ .op = K_END });
            kernel_push(o, (kins){ .op = K_END });
            continue;
        }
        gpu_copy(&c, i, &p);
    }
    for (int b = 0; b < k->bufs.n; b++)
        if (own[b]) o->bufs.at[b].kind = KB_LOCAL, o->bufs.at[b].elems = own[b];
    k->ins = o->ins, k->vars = o->vars, k->bufs = o->bufs;
}

/* What all rows share, such as the weights of a norm. */
static bool has_common(const kernel *k, int n_rows) {
    kvar loop = -1;
    for (int i = 1 + n_rows; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        bool rows = false;
        if (in->op == K_LOOP) loop = in->var;
        if (in->op != K_LOAD || kbuf_is_local(&k->bufs.at[in->buf])) continue;
        for (int r = 0; r < n_rows; r++) rows |= affine_coef(in->idx, k->ins.at[1 + r].var) != 0;
        if (!rows && loop >= 0 && gpu_uses(in, loop)) return true;
    }
    return false;
}

/* Rows of n elements that are too long for the registers of one group, or need the largest one, are shared out among the groups
 * of a cluster, the smallest that hold them: several of other rows on a processor load while others compute. With what rows
 * share a large group is as fast. Returns the threads of one, or 0. */
static int cluster_group(const kernel *k, int n_rows, int64_t n, int lanes, const target *t, int *cluster) {
    int group = t->group < LONG_GROUP ? t->group : LONG_GROUP, most = t->group_most > t->group ? t->group_most : t->group;
    int64_t large = (int64_t)most * SHARE;
    if (n <= large / 2 || (n <= large && has_common(k, n_rows))) return 0;
    while (*cluster < t->cluster && n > (int64_t)*cluster * group * SHARE) *cluster *= 2;
    while (group < most && n > (int64_t)*cluster * group * SHARE) group *= 2;
    int64_t step = (int64_t)*cluster * group * lanes;
    if (*cluster > 1 && n % step == 0 && n / step <= MAX_TURNS && kopt_gpu_rows_split(k, n_rows, group)) return group;
    *cluster = 1;
    return 0;
}

/* Rows of numbers of 16 bits, of which a thread can hold twice as many where what is computed anew in each nest is little, and
 * nothing else is held: groups are half as large, and two on a processor, of which one loads while the other computes. Returns
 * the threads of one, or 0. */
static int packed_group(const kernel *k, int n_rows, int64_t n, int lanes, const target *t) {
    enum { LITTLE = 16, COARSE = 3 /* times cheaper */ };
    int64_t group = t->group_most / 2, flops = 0;
    int *nest = ARENA_ARRAY(k->a, int, k->bufs.n + 1), held = 0; /* [bufs] the first to load it; -1: of those that are held */
    if (lanes != 8 || group < t->group || n <= group * SHARE || n > group * PACKED_SHARE || n % (group * lanes)) return 0;
    for (int i = 1 + n_rows, nests = 0; i < k->ins.n - n_rows; i++) {
        const kins *in = &k->ins.at[i];
        nests += in->op == K_LOOP;
        if (in->op == K_ALU && nests > 1) flops += op_get((op_code)in->alu)->flops / (in->par ? COARSE : 1);
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        int *first = &nest[in->buf];
        bool again = *first > 0 && *first != nests;
        if (again) held++;
        if (again && kbuf_is_local(&k->bufs.at[in->buf])) return 0;
        *first = again ? -1 : *first ? *first : nests;
    }
    return held <= 1 && flops <= LITTLE ? (int)group : 0;
}

int kopt_gpu_hold_group(const kernel *k, int n_rows, const target *t, int *cluster) {
    int from = 1 + n_rows, to = k->ins.n - n_rows, nests = 0, lanes = 16 / gpu_widest(k);
    int64_t n = 0, rows = 1;
    for (int i = 0; i < n_rows; i++) rows *= k->ins.at[1 + i].hi;
    for (int i = from; i < to; i++) {
        if (k->ins.at[i].op != K_LOOP) continue;
        int end = kopt_loop_end(k, i);
        if (k->ins.at[i].lo != 0 || (nests++ && k->ins.at[i].hi != n)) return 0;
        n = k->ins.at[i].hi;
        for (int j = i + 1; j < end; j++)
            if (k->ins.at[j].op == K_LOOP) return 0;
        i = end;
    }
    if (nests < 2 || n % lanes) return 0;
    int64_t vectors = n / lanes;
    int packed = packed_group(k, n_rows, n, lanes, t);
    if (packed) return packed;
    int shared = cluster_group(k, n_rows, n, lanes, t, cluster);
    if (shared) return shared;
    int group = 32, most = t->group_most > t->group ? t->group_most : t->group;
    while (group < most && group * SHARE < n) group *= 2;
    while (group < t->group && group * 2 <= vectors && rows * group < t->grid) group *= 2;
    return vectors % group || vectors / group > MAX_TURNS ? 0 : group;
}
