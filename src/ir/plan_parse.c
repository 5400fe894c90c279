/* plan_parse.c - reads the text of plan_text.c back (docs/ir.md). In: any bytes. Out: a plan in the arena whose text is the
 * same; whether it is one that can run is the business of kernel_check and plan_check. Its graph has the values that the text
 * names, with their types and the data of constants, but not how they are computed: what kernels compute is a constant without
 * a value. Jumps with TN_ERR_PARSE and a place. */
#include "ir/plan.h"
#include "ir/reader.h"

enum { LEAST_IDS = 1 << 16, MOST_THREADS = 1 << 16, MOST_OPEN = 64 /* steps inside of each other */ };

typedef struct value { /* what is known of a value of the graph */
    op_code op;        /* OP_NIL: nothing yet */
    tn_dtype dtype;
    int64_t elems;
    const void *data;
    const char *name;
    val update; /* of a state */
} value;

typedef struct argument {
    size_t mode; /* kbuf_kind */
    int32_t buf;
    val node;
} argument;

typedef struct launch { /* until its kernel has been read */
    const char *at;     /* in the text */
    int first, n;       /* in parser.args */
} launch;

typedef struct parser {
    reader r;
    plan *p;
    const char *name;
    int64_t most_ids; /* numbers of values and buffers, which tables go by, are below: so many have a long text */
    VEC(value) values;
    VEC(launch) launches;
    VEC(int) open; /* steps whose } is to come */
    VEC(argument) args;
} parser;

/* ---- words ---- */

static const char *quoted(parser *p) {
    reader *r = &p->r;
    str s;
    str_init(&s, r->a);
    read_expect(r, "\"");
    for (; r->at < r->end && *r->at != '"'; r->at++) {
        if (*r->at == '\\' && r->at + 1 < r->end) r->at++;
        if (!*r->at) read_fail(r, "a name without zero bytes");
        str_addn(&s, r->at, 1);
    }
    read_expect(r, "\"");
    return s.s;
}

static const char *graph_name(parser *p) { /* a word, or quoted */
    char name[256];
    read_blanks(&p->r);
    if (p->r.at < p->r.end && *p->r.at == '"') return quoted(p);
    read_word(&p->r, name, sizeof name, "a name");
    return arena_strdup(p->r.a, name);
}

static int64_t option(parser *p, const char *key, int64_t lo, int64_t hi, const char *what) { /* key=n */
    read_expect(&p->r, key);
    read_expect(&p->r, "=");
    return read_int_in(&p->r, lo, hi, what);
}

static int64_t size_option(parser *p, const char *key) { return option(p, key, 0, INT64_MAX / 2, "a number of bytes"); }

static int64_t length(parser *p) { /* [n] */
    read_expect(&p->r, "[");
    int64_t n = read_int_in(&p->r, 0, INT64_MAX / 16, "a length");
    read_expect(&p->r, "]");
    return n;
}

static val value_number(parser *p) {
    read_expect(&p->r, "%");
    val v = (val)read_int_in(&p->r, 1, p->most_ids, "the number of a value");
    while (p->values.n <= (int)v) VEC_PUSH(p->r.a, &p->values, (value){ 0 });
    return v;
}

static int32_t buffer_number(parser *p, int64_t lo, int64_t hi, const char *what) {
    read_buffer_letter(&p->r);
    return (int32_t)read_int_in(&p->r, lo, hi, what);
}

/* A value of this type; again, of the same. */
static value *define(parser *p, val v, op_code op, tn_dtype dtype, int64_t elems) {
    value *x = &p->values.at[v];
    if (x->op == OP_NIL) x->dtype = dtype, x->elems = elems;
    if (x->dtype != dtype || x->elems != elems) read_fail(&p->r, "a value of the same type as before");
    if (op != OP_NIL) x->op = op;
    if (x->op == OP_NIL) x->op = OP_const;
    return x;
}

/* ---- values ---- */

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static void value_text(parser *p) {
    reader *r = &p->r;
    val v = value_number(p);
    tn_dtype t = read_dtype(r, NULL);
    int64_t elems = length(p), n = elems * (int64_t)dtype_size(t), i = 0;
    value *x = define(p, v, OP_const, t, elems);
    if (x->data) read_fail(r, "a value that has no data yet");
    read_expect(r, "=");
    read_expect(r, "x\"");
    if (n > r->end - r->at) read_fail(r, "the bytes of the value");
    unsigned char *data = arena_alloc(r->a, (size_t)n + 1);
    for (read_blanks(r); i < 2 * n && r->at < r->end && hex_digit(*r->at) >= 0; i++, read_blanks(r)) {
        int digit = hex_digit(*r->at++);
        data[i / 2] = (unsigned char)(i % 2 ? data[i / 2] | digit : digit << 4);
    }
    if (i < 2 * n) read_fail(r, "two hexadecimal digits a byte of the value");
    x->data = data;
    read_expect(r, "\"");
}

/* ---- buffers ---- */

static pbuf_kind kind_word(parser *p) {
    static const char *const kinds[] = { "temp", "state", "const", "input", "output", "states", "window" };
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (read_accept(&p->r, kinds[i])) return (pbuf_kind)i;
    read_fail(&p->r, "temp, state, const, input, output, states or window");
}

/* The type of the value that a buffer holds, packed or as it lies. */
static tn_dtype value_type(parser *p, const pbuf *b, int64_t *out_elems) {
    bool words = b->panels && b->panels->packed;
    if (!size_mul(b->elems, words ? b->panels->packed : 1, out_elems)) read_fail(&p->r, "fewer elements");
    return (tn_dtype)(b->panels ? b->panels->dtype : b->dtype);
}

static void state_text(parser *p, const pbuf *b) {
    int64_t elems;
    tn_dtype t = value_type(p, b, &elems);
    value *x = define(p, b->node, OP_state, t, elems);
    if (x->name) read_fail(&p->r, "a state that has no name yet");
    x->name = quoted(p);
    VEC_PUSH(p->r.a, &p->p->states, (pstate){ x->name, b->node, p->p->bufs.n, read_accept(&p->r, "given") });
    if (!read_accept(&p->r, "=")) return;
    val v = value_number(p); /* which may move the values */
    define(p, v, OP_NIL, t, elems);
    p->values.at[b->node].update = v;
}

static void io_text(parser *p, pbuf *b) {
    if (!b->node) read_fail(&p->r, "the value of the buffer");
    if (p->p->n_windows) read_fail(&p->r, "inputs and outputs before windows");
    b->io = p->p->io.n;
    if (b->slot != SLOT_IO + b->io) read_fail(&p->r, "slots of inputs and outputs in order");
    define(p, b->node, b->kind == PB_INPUT ? OP_input : OP_NIL, (tn_dtype)b->dtype, b->elems);
    const char *name = quoted(p);
    if (b->kind == PB_INPUT) p->values.at[b->node].name = name;
    pio io = { name, b->kind == PB_OUTPUT, b->node, b->dtype, p->p->bufs.n, b->bytes };
    VEC_PUSH(p->r.a, &p->p->io, io);
}

/* Copies of a value, in other orders, are listed at the buffer that has it. */
static void list_panels(plan *p, int32_t i) {
    pbuf *b = &p->bufs.at[i];
    for (int32_t of = 0; of < i && b->node; of++)
        if (p->bufs.at[of].node == b->node && p->bufs.at[of].kind == b->kind && !p->bufs.at[of].copy) {
            b->next_panels = p->bufs.at[of].next_panels, p->bufs.at[of].next_panels = i;
            return;
        }
}

static void buffer_text(parser *p) {
    reader *r = &p->r;
    plan *o = p->p;
    const pbuf none = { .kind = PB_TEMP, .first = -1, .last = -1, .inplace_of = -1, .io = -1 };
    pbuf b = none;
    int32_t number = buffer_number(p, o->bufs.n, p->most_ids, "a buffer's number, larger than those above");
    while (o->bufs.n < number) VEC_PUSH(r->a, &o->bufs, none); /* nothing uses those in between */
    b.kind = kind_word(p);
    b.dtype = (uint8_t)read_dtype(r, NULL);
    b.elems = length(p);
    b.slot = (int)option(p, "slot", 0, SLOT_IO + p->most_ids, "a slot");
    b.offset = size_option(p, "offset"), b.bytes = size_option(p, "bytes");
    if (b.kind == PB_WINDOW) {
        read_expect(r, "of");
        read_expect(r, "=");
        b.window_of = buffer_number(p, 0, number, "a buffer above");
        if (b.slot != SLOT_IO + o->io.n + o->n_windows)
            read_fail(r, "slots of windows in order, behind those of inputs and outputs");
        o->n_windows++;
    }
    if (b.kind == PB_TEMP) {
        b.first = (int32_t)option(p, "live", -1, INT32_MAX, "a launch");
        read_expect(r, "..");
        b.last = (int32_t)read_int_in(r, -1, INT32_MAX, "a launch");
    }
    if (read_accept(r, "inplace")) {
        read_expect(r, "=");
        b.inplace_of = buffer_number(p, 0, p->most_ids, "a buffer");
        if (b.inplace_of == number) read_fail(r, "another buffer");
    }
    b.copy = read_accept(r, "copy");
    if (read_accept(r, "panels")) b.panels = kpanels_read(r, b.dtype);
    if (read_accept(r, ";")) b.node = value_number(p);
    if (b.kind == PB_INPUT || b.kind == PB_OUTPUT)
        io_text(p, &b);
    else if (b.kind == PB_STATE && b.node && !b.copy)
        state_text(p, &b);
    else if (b.node && !b.copy) {
        int64_t elems;
        tn_dtype t = value_type(p, &b, &elems);
        define(p, b.node, OP_NIL, t, elems);
    }
    VEC_PUSH(r->a, &o->bufs, b);
    if (b.copy) list_panels(o, number);
}

/* ---- steps ---- */

static void open_step(parser *p, pstep x) {
    if (p->open.n == MOST_OPEN) read_fail(&p->r, "steps that are nested less deeply");
    read_expect(&p->r, "{");
    VEC_PUSH(p->r.a, &p->open, p->p->steps.n);
    VEC_PUSH(p->r.a, &p->p->steps, x);
}

static void loop_text(parser *p) {
    reader *r = &p->r;
    pstep x = { .kind = read_accept(r, "steps") ? PSTEP_LOOP : PSTEP_REPEAT, .count = -1 };
    VEC(pring) rings = { 0 };
    if (x.kind == PSTEP_REPEAT && read_accept(r, "times")) {
        read_expect(r, "=");
        x.times = read_int_in(r, 1, INT64_MAX / 2, "a number of iterations");
        if (read_accept(r, "count")) {
            read_expect(r, "=");
            x.count = buffer_number(p, 0, p->p->bufs.n, "a buffer of the plan");
        }
        x.backward = read_accept(r, "backward");
    }
    if (read_accept(r, "ring")) {
        read_expect(r, "(");
        do {
            pring y = { .buf = buffer_number(p, 0, p->p->bufs.n, "a buffer of the plan") };
            y.stride = size_option(p, "stride");
            VEC_PUSH(r->a, &rings, y);
        } while (read_accept(r, ","));
        read_expect(r, ")");
    }
    if (x.kind == PSTEP_LOOP && read_accept(r, "overlap")) x.overlaps = (int)read_int_in(r, 1, 64, "a number of iterations");
    x.rings = rings.at, x.n_rings = rings.n;
    open_step(p, x);
}

/* Of a step: `} else {` is where its first part ends. */
static void close_text(parser *p) {
    int i = p->open.at[p->open.n - 1];
    pstep *x = &p->p->steps.at[i];
    if (x->kind == PSTEP_BRANCH && x->n_then < 0) {
        x->n_then = p->p->steps.n - 1 - i;
        if (read_accept(&p->r, "else")) {
            read_expect(&p->r, "{");
            return;
        }
    }
    x->inside = p->p->steps.n - 1 - i;
    p->open.n--;
}

static void launch_text(parser *p, bool barrier) {
    static const char *const modes[] = { "in", "out", "inout" };
    reader *r = &p->r;
    launch l = { .at = r->at, .first = p->args.n };
    char name[256];
    pkernel pk = { .barrier = barrier };
    read_blanks(r);
    if (r->at == r->end || *r->at != 'k') read_fail(r, "a kernel");
    r->at++;
    pk.code = (int)read_int_in(r, 0, p->launches.n + 1, "the number of this launch or one above");
    if (pk.code < p->launches.n && p->p->kernels.at[pk.code].code != pk.code) read_fail(r, "the first launch of its code");
    read_expect(r, "(");
    while (!read_accept(r, ")")) {
        argument x = { 0 };
        if (p->args.n > l.first) read_expect(r, ",");
        while (x.mode < COUNT_OF(modes) && !read_accept(r, modes[x.mode])) x.mode++;
        if (x.mode == COUNT_OF(modes)) read_fail(r, "in, out or inout");
        x.buf = buffer_number(p, 0, p->p->bufs.n, "a buffer of the plan");
        x.node = p->p->bufs.at[x.buf].node;
        read_blanks(r);
        if (r->at < r->end && *r->at == '%') x.node = value_number(p);
        VEC_PUSH(r->a, &p->args, x);
    }
    l.n = p->args.n - l.first;
    read_expect(r, ";");
    read_word(r, name, sizeof name, "a name");
    pk.k = kernel_make(r->a, arena_strdup(r->a, name)); /* its code is read later */
    VEC_PUSH(r->a, &p->p->steps, (pstep){ .kind = PSTEP_LAUNCH, .kernel = p->p->kernels.n });
    VEC_PUSH(r->a, &p->launches, l);
    VEC_PUSH(r->a, &p->p->kernels, pk);
}

/* One of them, or the end of one that is open. */
static void step_text(parser *p) {
    reader *r = &p->r;
    if (p->open.n && read_accept(r, "}")) {
        close_text(p);
    } else if (read_accept(r, "loop")) {
        loop_text(p);
    } else if (read_accept(r, "branch")) {
        int32_t cond = buffer_number(p, 0, p->p->bufs.n, "a buffer of the plan");
        open_step(p, (pstep){ .kind = PSTEP_BRANCH, .cond = cond, .n_then = -1 });
    } else if (read_accept(r, "leave")) {
        read_expect(r, "unless");
        int32_t cond = buffer_number(p, 0, p->p->bufs.n, "a buffer of the plan");
        VEC_PUSH(r->a, &p->p->steps, ((pstep){ .kind = PSTEP_LEAVE, .cond = cond }));
    } else {
        bool barrier = read_accept(r, "barrier");
        read_expect(r, "launch");
        launch_text(p, barrier);
    }
}

/* Launch i is of this code, with arguments of its own. */
static void bind(parser *p, int i, const kernel *code) {
    pkernel *pk = &p->p->kernels.at[i];
    const launch *l = &p->launches.at[i];
    kernel *k = arena_copy(p->r.a, code, sizeof *code);
    int n = 0;
    k->name = pk->k->name;
    k->bufs.at = arena_copy(p->r.a, code->bufs.at, sizeof *k->bufs.at * (size_t)(code->bufs.n ? code->bufs.n : 1));
    pk->args = ARENA_ARRAY(p->r.a, parg, k->bufs.n + 1);
    for (int b = 0; b < k->bufs.n; b++) {
        kbuf *kb = &k->bufs.at[b];
        const argument *x = n < l->n ? &p->args.at[l->first + n] : NULL;
        pk->args[b].buf = -1;
        if (kbuf_is_local(kb)) continue;
        p->r.at = l->at;
        if (!x || x->mode != kb->kind) read_fail(&p->r, "a launch with the arguments of its kernel");
        pk->args[b].buf = kb->plan_buf = x->buf, kb->node = x->node;
        n++;
    }
    p->r.at = l->at;
    if (n < l->n) read_fail(&p->r, "a launch with no more arguments than its kernel");
    pk->k = k;
}

static void kernels_text(parser *p) {
    for (int i = 0; i < p->p->kernels.n; i++) {
        pkernel *pk = &p->p->kernels.at[i];
        const kernel *code = pk->code < i ? p->p->kernels.at[pk->code].k : kernel_read(&p->r);
        if (code->params) read_fail(&p->r, "a kernel without dims: a plan has values for none");
        const char *after = p->r.at;
        bind(p, i, code);
        p->r.at = after;
    }
}

/* ---- the graph ---- */

static void add_value(parser *p, val v) {
    const value *x = &p->values.at[v];
    spec s = {
        .op = x->op ? x->op : OP_const, .dtype = x->dtype, .rank = 1, .dims = &x->elems, .data = x->data, .name = x->name
    };
    s.splat = s.op == OP_const && !s.data;
    if ((s.op == OP_input || s.op == OP_state) && (!s.name || !*s.name)) read_fail(&p->r, "a name for every input and state");
    graph_add(p->p->g, &s);
}

static void make_graph(parser *p) {
    plan *o = p->p;
    o->g = graph_make(p->r.a, p->name);
    for (val v = 1; v < (val)p->values.n; v++) add_value(p, v);
    for (int i = 0; i < o->io.n; i++)
        if (o->io.at[i].is_output) graph_sink(o->g, o->io.at[i].name, o->io.at[i].node, 0);
    for (int i = 0; i < o->states.n; i++) {
        val update = p->values.at[o->states.at[i].node].update;
        if (update) graph_assign(o->g, o->states.at[i].node, update);
    }
}

static void header_text(parser *p) {
    plan *o = p->p;
    read_expect(&p->r, "plan");
    read_expect(&p->r, "@");
    p->name = graph_name(p);
    o->fusion = (int)option(p, "fusion", 0, 4, "a fusion level, 0 to 3");
    o->threads = (int)option(p, "threads", 0, MOST_THREADS, "a number of threads");
    o->temp_bytes = size_option(p, "temp"), o->temp_bound = size_option(p, "bound");
    o->state_bytes = size_option(p, "state"), o->shared_bytes = size_option(p, "shared");
    o->const_bytes = size_option(p, "const");
    read_expect(&p->r, "{");
}

plan *plan_parse(arena *a, const char *text, size_t n, const char *file) {
    parser p = { .r = reader_make(a, text, n, file),
                 .p = ARENA_NEW(a, plan),
                 .most_ids = n < LEAST_IDS ? LEAST_IDS : (int64_t)n };
    if (p.most_ids > INT32_MAX - SLOT_IO) p.most_ids = INT32_MAX - SLOT_IO;
    p.p->a = a;
    VEC_PUSH(a, &p.values, (value){ 0 });
    header_text(&p);
    while (read_accept(&p.r, "value")) value_text(&p);
    while (read_accept(&p.r, "buffer")) buffer_text(&p);
    for (int i = 0; i < p.p->bufs.n; i++)
        if (p.p->bufs.at[i].inplace_of >= p.p->bufs.n) read_fail(&p.r, "the buffer whose place another one takes");
    while (p.open.n || !read_accept(&p.r, "}")) step_text(&p);
    kernels_text(&p);
    read_end(&p.r);
    make_graph(&p);
    return p.p;
}
