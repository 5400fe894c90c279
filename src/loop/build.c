/* build.c - see build.h. */
#include "loop/build.h"
#include "loop/loop.h"

void build_open(kernel *o, kvar v, ext lo, ext hi, kpar par) {
    kernel_push(o, (kins){ .op = K_LOOP, .var = v, .lo = lo, .hi = hi, .step = 1, .par = (uint8_t)par });
}

kvar build_loop(kernel *o, const char *name, int64_t n, kpar par) {
    kvar v = kernel_var(o, name, n, false, false);
    build_open(o, v, 0, n, par);
    return v;
}

kvar build_if(kernel *o, const char *name, int64_t n, reg condition) {
    kvar v = build_loop(o, name, n, PAR_SERIAL);
    o->ins.at[o->ins.n - 1].a = condition;
    return v;
}

void build_ends(kernel *o, int n) {
    for (int i = 0; i < n; i++) kernel_push(o, (kins){ .op = K_END });
}

void build_barrier(kernel *o) { kernel_push(o, (kins){ .op = K_BARRIER }); }

void build_mbarrier(kernel *o, int buf) {
    kernel_push(o, (kins){ .op = K_BARRIER, .mode = BARRIER_MBARRIER, .buf = (uint16_t)buf });
}

void build_around(kernel *k, kvar v, int64_t n) {
    loop_insert(k, 1, &(kins){ .op = K_LOOP, .var = v, .hi = n, .step = 1, .lanes = 1 }, 1);
    build_ends(k, 1);
}

reg build_halves(kernel *o, reg *v, int n, uint8_t op, uint8_t dtype, val of) {
    for (n /= 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) {
            kins both = { .op = K_ALU, .alu = op, .dtype = dtype, .src = dtype, .a = v[i], .b = v[i + n], .node = of };
            both.lanes = o->ins.at[v[i]].lanes;
            v[i] = kernel_push(o, both);
        }
    return v[0];
}

/* Of register r: values of narrow types are as wide there as numbers are. */
static uint8_t type_of(const kernel *o, reg r) { return (uint8_t)dtype_reg((tn_dtype)o->ins.at[r].dtype); }

reg build_number(kernel *o, uint8_t dtype, double x) {
    int64_t whole = dtype_is_float((tn_dtype)dtype) ? 0 : (int64_t)x;
    return kernel_push(o, (kins){ .op = K_CONST, .dtype = dtype, .imm = x, .imm_int = whole });
}

reg build_index(kernel *o, uint8_t dtype, affine e) {
    return kernel_push(o, (kins){ .op = K_INDEX, .dtype = dtype, .idx = e });
}

reg build_count(kernel *o, uint8_t dtype, ext n) {
    return ext_is_lit(n) ? build_number(o, dtype, (double)n) : build_index(o, dtype, affine_const(n));
}

static uint8_t wider(const kernel *o, reg a, reg b) {
    uint8_t x = o->ins.at[a].lanes, y = b ? o->ins.at[b].lanes : 1;
    return x > y ? x : y;
}

reg build_op(kernel *o, op_code op, reg a, reg b) {
    uint8_t t = type_of(o, a), to = op_get(op)->cls == CL_CMP ? TN_I32 : t;
    return kernel_push(
        o, (kins){ .op = K_ALU, .alu = (uint8_t)op, .dtype = to, .src = t, .a = a, .b = b, .lanes = wider(o, a, b) });
}

reg build_select(kernel *o, reg condition, reg a, reg b) {
    uint8_t t = type_of(o, a), lanes = wider(o, a, b);
    return kernel_push(
        o, (kins){ .op = K_ALU, .alu = OP_select, .dtype = t, .src = t, .a = condition, .b = a, .c = b, .lanes = lanes });
}

reg build_lane(kernel *o, reg a, int lane) {
    return kernel_push(o, (kins){ .op = K_LANES, .dtype = type_of(o, a), .a = a, .first_lane = lane });
}

reg build_lanes(kernel *o, reg a, int first, int n) {
    if (o->ins.at[a].lanes == 1 || o->ins.at[a].lanes == n) return a;
    return kernel_push(o, (kins){ .op = K_LANES, .dtype = type_of(o, a), .lanes = (uint8_t)n, .first_lane = first, .a = a });
}

void build_put_lanes(kernel *o, reg all, int first, reg a) {
    kernel_push(
        o, (kins){ .op = K_PUT, .dtype = type_of(o, all), .lanes = o->ins.at[a].lanes, .c = all, .first_lane = first, .a = a });
}

reg build_lane_reduce(kernel *o, op_code op, reg a) {
    const kins *in = &o->ins.at[a];
    kins all = { .op = K_LANE_REDUCE, .alu = (uint8_t)op, .dtype = type_of(o, a), .a = a, .combined = in->lanes };
    return in->lanes > 1 ? kernel_push(o, all) : a;
}

static kins access(const kernel *o, kop op, int buf, affine at, int lanes) {
    uint8_t t = o->bufs.at[buf].dtype;
    return (kins){ .op = (uint8_t)op,
                   .dtype = t,
                   .src = t,
                   .buf = (uint16_t)buf,
                   .idx = at,
                   .lanes = (uint8_t)lanes,
                   .lane_stride = lanes > 1 };
}

reg build_load(kernel *o, int buf, affine at, int lanes) {
    kins load = access(o, K_LOAD, buf, at, lanes);
    load.dtype = (uint8_t)dtype_reg((tn_dtype)load.src);
    return kernel_push(o, load);
}

reg build_store(kernel *o, int buf, affine at, reg a) {
    kins store = access(o, K_STORE, buf, at, o->ins.at[a].lanes);
    store.a = a;
    return kernel_push(o, store);
}

reg build_acc(kernel *o, op_code op, uint8_t dtype, double first, int lanes) {
    return kernel_push(o, (kins){ .op = K_ACC, .alu = (uint8_t)op, .dtype = dtype, .imm = first, .lanes = (uint8_t)lanes });
}

void build_update(kernel *o, op_code op, reg a, reg b, reg c) {
    const kins *acc = &o->ins.at[c];
    kernel_push(o, (kins){ .op = K_UPD, .alu = (uint8_t)op, .dtype = acc->dtype, .a = a, .b = b, .c = c, .lanes = acc->lanes });
}

reg build_before(kernel *o, reg v, uint8_t index, affine e, int64_t lane, int64_t n, reg like) {
    uint8_t lanes = lane ? o->ins.at[v].lanes : 1;
    reg at =
        kernel_push(o, (kins){ .op = K_INDEX, .dtype = index, .idx = e, .lanes = lanes, .lane_stride = lanes > 1 ? lane : 0 });
    kins none = { .op = K_CONST, .dtype = type_of(o, v), .imm = o->ins.at[like].imm, .imm_int = o->ins.at[like].imm_int };
    reg end = build_count(o, index, n), other = kernel_push(o, none);
    return build_select(o, build_op(o, OP_lt, at, end), v, other);
}

reg build_parts(kernel *o, op_code op, int buf, affine at, int64_t n, int64_t apart, int lanes) {
    reg all = build_load(o, buf, at, lanes);
    for (int64_t i = 1; i < n; i++) all = build_op(o, op, all, build_load(o, buf, affine_offset(at, i * apart), lanes));
    return all;
}

void build_carry(kernel *o, const reg *v, const reg *to, int n) {
    for (int i = 0; i < n; i++) build_update(o, OP_NIL, v[i], 0, to[i]);
}

void build_carried(kernel *o, const reg *v, reg *to, int n) {
    for (int i = 0; i < n; i++) to[i] = build_acc(o, OP_NIL, type_of(o, v[i]), 0, o->ins.at[v[i]].lanes);
    build_carry(o, v, to, n);
}

int build_buffer(kernel *o, uint8_t dtype, kbuf_kind kind, int64_t elems) {
    return kernel_buf(o, (kbuf){ .dtype = dtype, .kind = (uint8_t)kind, .elems = elems, .plan_buf = -1 });
}

static void own_masks(arena *a, kins *in) {
    if (in->n_mask) in->mask = arena_copy(a, in->mask, sizeof(kmask) * (size_t)in->n_mask);
}

void build_set_var(arena *a, kins *in, kvar v, affine value) {
    own_masks(a, in);
    in->idx = affine_set_var(a, in->idx, v, value);
    for (int m = 0; m < in->n_mask; m++) in->mask[m].e = affine_set_var(a, in->mask[m].e, v, value);
}

static affine renamed(arena *a, affine x, const kvar *to) {
    affine y = affine_const(x.base);
    for (int i = 0; i < x.n; i++) y = build_plus(a, y, affine_var(a, to[x.t[i].var]), x.t[i].coef);
    return y;
}

void build_rename(arena *a, kins *in, const kvar *to) {
    own_masks(a, in);
    in->idx = renamed(a, in->idx, to);
    for (int m = 0; m < in->n_mask; m++) in->mask[m].e = renamed(a, in->mask[m].e, to);
}

void build_mask(arena *a, kins *in, affine e, int64_t lo, int64_t hi, int64_t lane_stride) {
    int n = in->n_mask;
    kmask *mask = ARENA_ARRAY(a, kmask, n + 1);
    int64_t *lane = ARENA_ARRAY(a, int64_t, n + 1);
    for (int m = 0; m < n; m++) mask[m] = in->mask[m], lane[m] = in->mask_lane ? in->mask_lane[m] : 0;
    mask[n] = (kmask){ e, lo, hi }, lane[n] = lane_stride;
    in->mask = mask, in->mask_lane = lane, in->n_mask = n + 1;
}

build_copier build_copier_make(const kernel *k, kernel *o) { return (build_copier){ k, o, ARENA_ARRAY(o->a, reg, k->ins.n) }; }

affine build_moved(arena *a, const build_places *p, affine x) {
    for (int i = 0; i < p->n; i++) x = affine_set_var(a, x, p->var[i], p->value[i]);
    return x;
}

affine build_set(const kernel *k, affine x, kvar v, affine value) {
    ext c = affine_coef(x, v);
    if (!k->params || c == 0) return affine_set_var(k->a, x, v, value);
    return affine_add_params(k->a, k->params, affine_without(k->a, x, v), affine_scale_params(k->a, k->params, value, c));
}

static affine moved(const kernel *k, const build_places *p, affine x) {
    for (int i = 0; i < p->n; i++) x = build_set(k, x, p->var[i], p->value[i]);
    return x;
}

void build_bounds(arena *a, kins *in, const build_places *p) {
    for (int m = 0; m < p->n_mask; m++)
        build_mask(a, in, p->mask[m].e, p->mask[m].lo, p->mask[m].hi, in->lanes > 1 ? p->mask_lane[m] : 0);
}

static void move_masks(const kernel *k, const build_places *p, kins *in, bool lanes) {
    if (!in->n_mask) return;
    kmask *mask = ARENA_ARRAY(k->a, kmask, in->n_mask);
    int64_t *lane = ARENA_ARRAY(k->a, int64_t, in->n_mask);
    for (int m = 0; m < in->n_mask; m++) {
        mask[m] = (kmask){ moved(k, p, in->mask[m].e), in->mask[m].lo, in->mask[m].hi };
        lane[m] = lanes ? affine_coef(in->mask[m].e, p->along) : in->lanes > 1 ? in->mask_lane[m] : 0;
    }
    in->mask = mask, in->mask_lane = lane;
}

kins build_at(const build_copier *c, int i, const build_places *p) {
    kins in = c->k->ins.at[i];
    bool lanes = p->lanes > 1 && p->varies[i];
    if (lanes) in.lanes = (uint8_t)p->lanes, in.lane_stride = affine_coef(in.idx, p->along);
    build_operands(&in, c->to);
    in.idx = moved(c->o, p, in.idx);
    if (in.n_mask == 0 && in.op == K_LOAD) in.imm = 0, in.imm_int = 0;
    move_masks(c->o, p, &in, lanes);
    if (in.op == K_LOAD || in.op == K_STORE) build_bounds(c->o->a, &in, p);
    return in;
}

reg build_copy(build_copier *c, int i, const build_places *p) { return c->to[i] = kernel_push(c->o, build_at(c, i, p)); }

static bool has_params(affine x) {
    bool has = !ext_is_lit(x.base);
    for (int i = 0; i < x.n; i++) has |= !ext_is_lit(x.t[i].coef);
    return has;
}

const char *build_other_params(const kernel *k, kvar v) {
    for (int b = 0; b < k->bufs.n; b++)
        if (kbuf_is_local(&k->bufs.at[b]) && !ext_is_lit(k->bufs.at[b].elems)) return arena_printf(k->a, "b%d", b);
    for (int i = 1; i < k->ins.n; i++) {
        const kins *in = &k->ins.at[i];
        bool has = has_params(in->idx);
        if (in->op == K_LOOP && in->var != v) has |= !ext_is_lit(in->lo) || !ext_is_lit(in->hi);
        for (int m = 0; m < in->n_mask; m++)
            has |= has_params(in->mask[m].e) || !ext_is_lit(in->mask[m].lo) || !ext_is_lit(in->mask[m].hi);
        if (has) return in->op == K_LOOP ? k->vars.at[in->var].name : arena_printf(k->a, "%%%d", i);
    }
    return NULL;
}

void build_mark_needed(const kernel *k, int end, bool *needed) {
    for (int i = end - 1; i > 0; i--) {
        const kins *in = &k->ins.at[i];
        if (needed[i]) needed[in->a] = needed[in->b] = needed[in->c] = needed[in->dyn] = true;
    }
    needed[0] = false;
}
