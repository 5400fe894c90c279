/* alternatives.c - the schedules next to a given one: one decision is another. The list from which `tenon tune` measures; it
 * goes on from the best of them. In: the scalar form, a schedule of it. Out: schedules with the same bits (same_bits.c), each
 * of which is possible, makes a sound kernel, and another one than the rest; those that promise most come first. */
#include "loop/contraction.h"
#include "recipe/recipe.h"

enum { MOST_ROWS = 14, MOST_VECTORS = 8, MOST_LONE = 16, MOST_TILES = MOST_ROWS * MOST_LONE, FIRST_TILES = 8, MOST_PLACES = 8 };

typedef struct lister {
    const kernel *k; /* scalar form */
    const target *t;
    const schedule *from;
    int nest; /* of the steps at hand; -1: the kernel's own */
    arena *a;
    const kernel *made; /* by `from` */
    recipe_alternative *out;
    int n, cap;
} lister;

/* ---- schedules with something changed ---- */

static const schedule *steps_at_hand(const lister *l) {
    for (int i = 0; l->nest >= 0 && i < l->from->steps.n; i++)
        if (l->from->steps.at[i].op == STEP_nests) return &l->from->steps.at[i].nest[l->nest];
    return l->from;
}

static schedule copied(const lister *l) {
    const schedule *s = steps_at_hand(l);
    schedule c = { .name = s->name };
    for (int i = 0; i < s->steps.n; i++) VEC_PUSH(l->a, &c.steps, s->steps.at[i]);
    return c;
}

/* The step on that loop or buffer, or on any; -1: there is none. */
static int find_step(const schedule *s, int op, const char *word) {
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == op && (!word || !strcmp(s->steps.at[i].arg[0].word, word))) return i;
    return -1;
}

/* `drop` steps from i on go, and the step of that text, where it is not empty, comes in their place. */
static void replace_steps(const lister *l, schedule *s, int i, int drop, const char *text) {
    schedule now = { .name = s->name };
    for (int x = 0; x <= s->steps.n; x++) {
        if (x == i && *text) VEC_PUSH(l->a, &now.steps, step_parse(l->a, text));
        if (x < s->steps.n && (x < i || x >= i + drop)) VEC_PUSH(l->a, &now.steps, s->steps.at[x]);
    }
    *s = now;
}

/* Where steps end that move no loop, or that only mark loops. */
static int end_of_marks(const schedule *s, bool packed) {
    int i = 0;
    while (i < s->steps.n && s->steps.at[i].op != STEP_split && s->steps.at[i].op < STEP_pack &&
           (packed || s->steps.at[i].op != STEP_packed_dot))
        i++;
    return i;
}

/* vectorize or unroll_jam of a loop by n; 1: no such step. */
static void mark_loop(const lister *l, schedule *s, step_op op, const char *loop, int n) {
    int at = find_step(s, (int)op, loop);
    const char *text = n > 1 ? arena_printf(l->a, "%s %s %d", step_get(op)->name, loop, n) : "";
    replace_steps(l, s, at >= 0 ? at : end_of_marks(s, false), at >= 0, text);
}

/* Step i with one argument set, added, or (n < 0) left out. */
static void set_argument(const lister *l, schedule *s, int i, const char *key, int kind, int64_t n) {
    loop_step *x = &s->steps.at[i];
    step_arg *arg = ARENA_ARRAY(l->a, step_arg, x->n + 1);
    int count = 0, at = -1;
    for (int a = 0; a < x->n; a++) {
        bool same = !strcmp(x->arg[a].word, key) && x->arg[a].kind == kind;
        if (same) at = count;
        if (!same || n >= 0) arg[count++] = x->arg[a];
    }
    if (n >= 0 && at < 0 && count < STEP_MOST_ARGS) at = count++;
    if (n >= 0 && at >= 0) {
        arg[at] = (step_arg){ .kind = (uint8_t)kind, .n = n };
        memcpy(arg[at].word, key, strlen(key) + 1);
    }
    x->arg = arg, x->n = count;
}

static void set_number(const lister *l, schedule *s, int i, int which, int64_t n) {
    loop_step *x = &s->steps.at[i];
    step_arg *arg = arena_copy(l->a, x->arg, sizeof *arg * (size_t)x->n);
    arg[which].n = n;
    x->arg = arg;
}

/* ---- what comes of it ---- */

/* The loop that threads share most evenly, of those with the name's letters or, without a name, of all; -1: none can be. */
static kvar shared_loop(const lister *l, const kernel *k, const char *name) {
    double most = 0;
    kvar best = -1;
    size_t letters = name ? strcspn(name, "0123456789") : 0;
    for (kvar v = 0; v < k->vars.n; v++) {
        const kvar_info *x = &k->vars.at[v];
        str why;
        str_init(&why, l->a);
        if (name && (strncmp(x->name, name, letters) != 0 || strcspn(x->name, "0123456789") != letters)) continue;
        kernel *trial = kernel_clone(k, l->a);
        loop_step s = step_parse(l->a, arena_printf(l->a, "parallel %s", x->name));
        double even = loop_balance_of(k, v, (int64_t)x->role.unroll * x->role.lanes, l->t->threads);
        if (even > most + 0.05 && step_apply(&trial, &s, &why)) most = even, best = v;
    }
    return best;
}

/* All steps; threads share another loop where theirs is gone or has another name. NULL: some step is refused. */
static kernel *apply(const lister *l, schedule *s) {
    kernel *k = kernel_clone(l->k, l->a);
    str why;
    str_init(&why, l->a);
    for (int i = 0; i < s->steps.n; i++) {
        loop_step *x = &s->steps.at[i];
        if (step_apply(&k, x, &why)) continue;
        if (x->op != STEP_parallel) return NULL;
        kvar v = shared_loop(l, k, x->arg[0].word);
        if (v < 0) v = shared_loop(l, k, NULL);
        if (v < 0) return NULL;
        *x = step_parse(l->a, arena_printf(l->a, "parallel %s", k->vars.at[v].name));
        if (!step_apply(&k, x, &why)) return NULL;
    }
    return k->tiled && kernel_check(k, &why) == 0 ? k : NULL;
}

/* The whole schedule, with these steps for those at hand, joins the list if it is something new. */
static void offer(lister *l, schedule s) {
    schedule all = s;
    str why;
    str_init(&why, l->a);
    if (l->n == l->cap) return;
    if (l->nest >= 0) {
        lister own = *l;
        own.nest = -1;
        all = copied(&own);
        loop_step *x = &all.steps.at[find_step(&all, STEP_nests, NULL)];
        schedule *nests = arena_copy(l->a, x->nest, sizeof *nests * (size_t)x->n_nests);
        nests[l->nest] = s;
        x->nest = nests;
    }
    kernel *k = apply(l, &all);
    if (!k || !schedule_same_bits(l->k, l->from, &all, &why) || kernel_equal(k, l->made)) return;
    for (int i = 0; i < l->n; i++)
        if (kernel_equal(l->out[i].k, k)) return;
    l->out[l->n++] = (recipe_alternative){ arena_copy(l->a, &all, sizeof all), k };
}

/* The steps at hand with others, or with another number or argument of step i. */
static void offer_steps(lister *l, int i, int drop, const char *text) {
    schedule s = copied(l);
    replace_steps(l, &s, i, drop, text);
    offer(l, s);
}
static void offer_number(lister *l, int i, int which, int64_t n) {
    schedule s = copied(l);
    set_number(l, &s, i, which, n);
    offer(l, s);
}
static void offer_argument(lister *l, int i, const char *key, int kind, int64_t n) {
    schedule s = copied(l);
    set_argument(l, &s, i, key, kind, n);
    offer(l, s);
}

/* ---- register tiles ---- */

/* The kernel, or the nest, as it is before loops move; NULL where that has no steps of its own. */
static kernel *before_moves(const lister *l) {
    const schedule *s = steps_at_hand(l);
    kernel *k = l->nest >= 0 ? loop_nest(l->k, l->nest) : kernel_clone(l->k, l->a);
    str why;
    str_init(&why, l->a);
    if (loop_has_blocks(k)) return NULL;
    for (int i = 0, n = end_of_marks(s, true); i < n; i++)
        if (!step_apply(&k, &s->steps.at[i], &why)) return NULL;
    return k;
}

static const char *name_of(const kernel *k, kvar v) { return k->vars.at[v].name; }

typedef struct tile {
    int rows, vectors;
    double cost;
} tile;

static bool is_cheaper(const void *x, const void *y, const void *ud) {
    (void)ud;
    return ((const tile *)x)->cost < ((const tile *)y)->cost;
}

/* Tiles of rows x vectors that fit the registers, the cheapest of a product first. */
static int list_tiles(const lister *l, const contraction *c, kvar row, tile *out) {
    int n = 0, lanes = contraction_role(c, c->n).lanes;
    int64_t most_rows = row >= 0 ? contraction_extent(c, row) : 1, most_vectors = contraction_extent(c, c->n) / lanes;
    for (int rows = 1; rows <= MOST_ROWS && rows <= most_rows; rows++)
        for (int v = 1; v <= (row >= 0 ? MOST_VECTORS : MOST_LONE) && v <= most_vectors; v++)
            if (rows * v + v + 1 <= l->t->n_vector_regs)
                out[n++] = (tile){ rows, v, recipe_tile_cost(machine_row_of(l->t), rows, v) / (rows * v) };
    merge_sort(l->a, out, n, sizeof *out, is_cheaper, NULL);
    return n;
}

static kvar tile_row(const contraction *c) {
    kvar row = c->m;
    for (int i = 0; row < 0 && i < c->rows.n; i++)
        if (contraction_extent(c, c->rows.at[i]) > 1) row = c->rows.at[i];
    return row;
}

static void offer_tiles(lister *l, const contraction *c, int from, int to) {
    tile all[MOST_TILES];
    kvar row = tile_row(c);
    int n = list_tiles(l, c, row, all);
    for (int i = from; i < to && i < n; i++) {
        schedule s = copied(l);
        mark_loop(l, &s, STEP_unroll_jam, name_of(c->k, c->n), all[i].vectors);
        if (row >= 0) mark_loop(l, &s, STEP_unroll_jam, name_of(c->k, row), all[i].rows);
        offer(l, s);
    }
}

/* The same tile along another row. */
static void offer_rows(lister *l, const contraction *c) {
    for (int i = 0; i < c->rows.n && c->m >= 0; i++) {
        schedule s = copied(l);
        kvar v = c->rows.at[i];
        int rows = contraction_role(c, c->m).unroll;
        if (v == c->m || contraction_extent(c, v) < 2) continue;
        mark_loop(l, &s, STEP_unroll_jam, name_of(c->k, c->m), 1);
        mark_loop(l, &s, STEP_unroll_jam, name_of(c->k, v),
                  contraction_extent(c, v) < rows ? (int)contraction_extent(c, v) : rows);
        offer(l, s);
    }
}

/* ---- packing ---- */

static const int64_t counts[] = { 2, 1, 3, 4, 6, 8 }, blocks[] = { 256, 128, 512, 64, 192, 384, 32, 16, 768, 1024, 2048 };

/* The right operand in place, or row by row. */
static void offer_unpacked(lister *l, const contraction *c, int pack) {
    int at = pack >= 0 ? pack : end_of_marks(steps_at_hand(l), true);
    if (pack >= 0) offer_steps(l, pack, 1, "");
    for (int rows = 4; rows <= 16 && contraction_matrix(c); rows *= 2)
        offer_steps(l, at, pack >= 0, arena_printf(l->a, "accumulate %s %d", name_of(c->k, c->depth.at[c->depth.n - 1]), rows));
}

/* Other K blocks: of the same contraction loop, or all of it at once. */
static void offer_blocks(lister *l, const contraction *c, int pack) {
    const loop_step *x = &steps_at_hand(l)->steps.at[pack];
    str why;
    str_init(&why, l->a);
    kvar v = step_loop(c->k, x, 1, &why);
    for (size_t i = 0; i < COUNT_OF(blocks) && v >= 0; i++) {
        schedule s = copied(l);
        if (blocks[i] >= contraction_extent(c, v)) continue;
        set_number(l, &s, pack, 2, blocks[i]);
        set_argument(l, &s, pack, "whole", ARG_WORD, -1);
        offer(l, s);
    }
    schedule s = copied(l);
    if (v != c->depth.at[0]) return;
    set_number(l, &s, pack, 2, contraction_extent(c, v));
    set_argument(l, &s, pack, "whole", ARG_WORD, 0);
    offer(l, s);
}

static void offer_panels(lister *l, const contraction *c, int pack) {
    const loop_step *x = &steps_at_hand(l)->steps.at[pack];
    for (size_t i = 0; i < COUNT_OF(counts); i++) offer_argument(l, pack, "tiles", ARG_OPTION, counts[i]);
    offer_blocks(l, c, pack);
    int outer = (int)step_option(x, "outer", 0);
    for (int64_t rows = 0; rows <= 1024 && outer < c->rows.n; rows = rows ? 2 * rows : 32) {
        if (rows && contraction_extent(c, c->rows.at[outer]) % rows) continue;
        offer_argument(l, pack, "rows", ARG_OPTION, rows ? rows : -1);
    }
    offer_argument(l, pack, "ahead", ARG_WORD, step_flag(x, "ahead") ? -1 : 0);
    offer_unpacked(l, c, pack);
}

static void offer_packed(lister *l, const contraction *c, int accumulate) {
    static const char *const forms[] = { "tiles=2", "tiles=1 whole", "tiles=2 whole constant" };
    const kins *b = contraction_ins(c, (int)c->load);
    int64_t depth = contraction_extent(c, c->depth.at[0]);
    int at = accumulate >= 0 ? accumulate : end_of_marks(steps_at_hand(l), true);
    for (size_t i = 0; i < COUNT_OF(forms) && c->load; i++) {
        const char *loop = name_of(c->k, c->depth.at[0]);
        int64_t block = i || depth < 256 ? depth : 256;
        offer_steps(l, at, accumulate >= 0,
                    arena_printf(l->a, "pack b%d %s %lld %s", b->buf, loop, (long long)block, forms[i]));
    }
}

static void offer_accumulate(lister *l, const contraction *c, int accumulate) {
    for (int rows = 2; rows <= 32; rows *= 2) offer_number(l, accumulate, 1, rows);
    offer_steps(l, accumulate, 1, "");
    offer_packed(l, c, accumulate);
}

static void offer_contraction(lister *l, const contraction *c) {
    const schedule *s = steps_at_hand(l);
    int pack = find_step(s, STEP_pack, NULL), accumulate = find_step(s, STEP_accumulate, NULL);
    offer_tiles(l, c, 0, FIRST_TILES);
    if (pack >= 0)
        offer_panels(l, c, pack);
    else if (accumulate >= 0)
        offer_accumulate(l, c, accumulate);
    else
        offer_packed(l, c, -1), offer_unpacked(l, c, -1);
    offer_rows(l, c);
    offer_tiles(l, c, FIRST_TILES, 2 * FIRST_TILES);
}

/* ---- loops of anything ---- */

static void offer_unrolled(lister *l, const kernel *k, kvar v) {
    static const int unrolled[] = { 1, 2, 4, 8, 3, 6, 16 };
    const kvar_info *x = &k->vars.at[v];
    for (size_t i = 0; i < COUNT_OF(unrolled); i++) {
        schedule s = copied(l);
        if (unrolled[i] == x->role.unroll || (int64_t)unrolled[i] * x->role.lanes > x->extent) continue;
        mark_loop(l, &s, STEP_unroll_jam, x->name, unrolled[i]);
        offer(l, s);
    }
}

/* Vectors half as wide; another unrolling; rows in pieces. */
static void offer_loops(lister *l, const kernel *k, const contraction *c) {
    for (kvar v = 0; v < k->vars.n; v++) {
        const kvar_info *x = &k->vars.at[v];
        if (x->reduce || (c && (v == c->n || v == c->m)) || (x->role.lanes == 1 && !x->row)) continue;
        if (!c || x->role.unroll > 1) offer_unrolled(l, k, v);
    }
    for (kvar v = 0; v < k->vars.n; v++) {
        const kvar_info *x = &k->vars.at[v];
        schedule s = copied(l);
        int at = find_step(&s, STEP_split, x->name);
        if (!x->reduce && x->role.lanes > 2) mark_loop(l, &s, STEP_vectorize, x->name, x->role.lanes / 2), offer(l, s);
        for (int piece = 64; piece <= 1024 && at >= 0; piece *= 2) offer_number(l, at, 1, piece);
        if (at >= 0) offer_steps(l, at, 1, "");
    }
}

/* ---- threads and memory: the kernel as a whole ---- */

static void offer_threads(lister *l) {
    schedule s = copied(l);
    int par = find_step(&s, STEP_parallel, NULL), at = par >= 0 ? par : find_step(&s, STEP_nests, NULL), n = 0;
    str why;
    str_init(&why, l->a);
    if (at < 0) at = find_step(&s, STEP_tile, NULL);
    if (l->t->threads < 2 || at < 0) return;
    if (par >= 0) offer_steps(l, par, 1, "");
    kernel *k = kernel_clone(l->k, l->a);
    for (int i = 0; i < at; i++)
        if (!step_apply(&k, &s.steps.at[i], &why)) return;
    for (kvar v = 0; v < k->vars.n && n < MOST_PLACES; v++) {
        const char *text = arena_printf(l->a, "parallel %s", k->vars.at[v].name);
        loop_step step = step_parse(l->a, text);
        kernel *trial = kernel_clone(k, l->a);
        if (k->vars.at[v].reduce || k->vars.at[v].extent < 2 || !step_apply(&trial, &step, &why)) continue;
        n++;
        offer_steps(l, at, par >= 0, text);
    }
}

/* With the step at the end, or without it. */
static void toggle(lister *l, int op, const char *word, const char *text) {
    const schedule *s = steps_at_hand(l);
    int at = find_step(s, op, word);
    offer_steps(l, at >= 0 ? at : s->steps.n, at >= 0, at >= 0 ? "" : text);
}

static void offer_memory(lister *l) {
    toggle(l, STEP_prefetch_rows, NULL, "prefetch_rows");
    for (int b = 0, n = 0; b < l->k->bufs.n && n < MOST_PLACES; b++) {
        if (l->k->bufs.at[b].kind != KB_OUT) continue;
        const char *name = arena_printf(l->a, "b%d", b);
        n++;
        toggle(l, STEP_prefetch_results, name, arena_printf(l->a, "prefetch_results %s", name));
        toggle(l, STEP_nontemporal, name, arena_printf(l->a, "nontemporal %s %d", name, l->t->vector_bytes));
    }
}

int recipe_alternatives(const kernel *scalar, const target *t, const schedule *from, arena *a, recipe_alternative *out,
                        int cap) {
    lister l = { .k = kernel_clone(scalar, a), .t = t, .from = from, .a = a, .out = out, .cap = cap, .nest = -1 };
    schedule same = copied(&l);
    l.made = apply(&l, &same);
    if (!l.made) return 0;
    int at = find_step(from, STEP_nests, NULL), n = at >= 0 ? from->steps.at[at].n_nests : 0;
    offer_threads(&l);
    for (l.nest = at >= 0 ? 0 : -1; l.nest < n; l.nest++) {
        contraction c;
        kernel *k = before_moves(&l);
        bool found = k && contraction_find(k, &c);
        if (found) offer_contraction(&l, &c);
        if (k) offer_loops(&l, k, found ? &c : NULL);
    }
    l.nest = -1;
    offer_memory(&l);
    return l.n;
}
